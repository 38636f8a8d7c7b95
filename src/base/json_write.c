/* json_write.c - the writer: see json.h.
 *
 * Appends to the caller's buffer, whose `failed` flag tells about memory.  It recurses once per level; the reader
 * allows at most LG_JSON_MAX_DEPTH of them.  Test: tests/unit/test_json.c, tests/py/json_compare.py */
#include "base/json.h"
#include "base/utf8.h"

#include <math.h>
#include <string.h>

/* Append the escape of c, a quote, a backslash or a control character. */
static void put_escape(lg_buf *b, char c) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        lg_buf_put(b, (char[]){'\\', to[at - from]}, 2);
    } else {
        lg_buf_printf(b, "\\u%04x", (unsigned)(uint8_t)c);
    }
}

void lg_json_put_escaped(lg_buf *b, const char *s, size_t len_bytes) {
    size_t from = 0, i = 0; /* s[from, i) is still to be copied as it is */
    while (i < len_bytes) {
        uint8_t c = (uint8_t)s[i];
        uint32_t cp = 0;
        size_t n = 1;
        bool plain = c >= 0x20 && c != '"' && c != '\\';
        if (c >= 0x80) {
            n = lg_utf8_next(s + i, len_bytes - i, &cp);
            plain = cp != UINT32_MAX;
        }
        if (!plain) {
            lg_buf_put(b, s + from, i - from);
            if (c >= 0x80)
                lg_utf8_put(b, 0xfffd);
            else
                put_escape(b, s[i]);
            from = i + n;
        }
        i += n;
    }
    lg_buf_put(b, s + from, i - from);
}

void lg_json_put_string(lg_buf *b, const char *s, size_t len_bytes) {
    lg_buf_putc(b, '"');
    lg_json_put_escaped(b, s, len_bytes);
    lg_buf_putc(b, '"');
}

/* A number as Python prints what it reads from this text. */
static void put_python_number(lg_buf *b, const lg_json *v) {
    double x;
    if (!strpbrk(v->text, ".eE"))
        lg_buf_puts(b, strcmp(v->text, "-0") == 0 ? "0" : v->text);
    else if (lg_json_f64(v, &x))
        lg_json_put_double(b, x);
    else
        lg_buf_puts(b, v->text[0] == '-' ? "-Infinity" : "Infinity");
}

static void put_children(lg_buf *b, const lg_json *v, lg_json_style style) {
    bool object = v->kind == LG_JSON_OBJECT, python = style == LG_JSON_PYTHON;
    lg_buf_putc(b, object ? '{' : '[');
    for (const lg_json *m = v->child; m; m = m->next) {
        if (m != v->child) lg_buf_puts(b, python ? ", " : ",");
        if (object) {
            lg_json_put_string(b, m->key, m->key_len);
            lg_buf_puts(b, python ? ": " : ":");
        }
        lg_json_put(b, m, style);
    }
    lg_buf_putc(b, object ? '}' : ']');
}

void lg_json_put(lg_buf *b, const lg_json *v, lg_json_style style) {
    switch (v->kind) {
    case LG_JSON_NULL: lg_buf_puts(b, "null"); break;
    case LG_JSON_FALSE: lg_buf_puts(b, "false"); break;
    case LG_JSON_TRUE: lg_buf_puts(b, "true"); break;
    case LG_JSON_NUMBER:
        if (style == LG_JSON_PYTHON)
            put_python_number(b, v);
        else
            lg_buf_put(b, v->text, v->text_len);
        break;
    case LG_JSON_STRING: lg_json_put_string(b, v->text, v->text_len); break;
    case LG_JSON_ARRAY:
    case LG_JSON_OBJECT: put_children(b, v, style); break;
    }
}
