/* json.c - the strict reader and the lookups: see json.h.
 *
 * The document owns one copy of the source.  Strings are decoded inside it: an escape is never shorter than what it
 * stands for, and the closing quote becomes the NUL.  A number moves one byte to the left, over a delimiter which is
 * already read (the copy starts with a spare byte for that), and its last byte becomes the NUL.  So the only other
 * memory is that of the nodes, taken from blocks which double in size.  The reader is a loop over an explicit stack;
 * time is linear in the source.  Test: tests/unit/test_json.c, tests/py/json_compare.py, fuzz/fuzz_json.c */
#include "base/json.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_MIN  4096
#define BLOCK_MAX  (1u << 20)
#define BLOCK_HEAD LG_MEM_ALIGN /* the link to the next block takes the first line */

typedef struct block {
    struct block *next;
} block;

struct lg_json_doc {
    lg_json *root;
    char *text; /* one spare byte, then the source, then a NUL */
    block *blocks;
    size_t used_bytes, cap_bytes; /* of blocks, the newest */
};

/* One open array or object; frames are kept for reuse when it closes. */
typedef struct frame {
    lg_json *node;
    lg_json *tail; /* its last child so far */
    struct frame *up, *down;
} frame;

typedef struct reader {
    lg_json_doc *doc;
    char *start, *p, *end; /* *end is NUL */
    frame *top;            /* innermost open container, or NULL */
    frame *outermost;
    unsigned depth, max_depth;
    size_t n_left;   /* values that may still come */
    const char *key; /* of the member whose value comes next */
    size_t key_len;
    const char *what;
    lg_err *err;
} reader;

static void *take(lg_json_doc *doc, size_t size_bytes) {
    if (!doc->blocks || size_bytes > doc->cap_bytes - doc->used_bytes) {
        size_t cap = doc->blocks ? doc->cap_bytes * 2 : BLOCK_MIN;
        if (cap > BLOCK_MAX) cap = BLOCK_MAX;
        block *b = lg_mem_realloc(NULL, cap);
        if (!b) return NULL;
        b->next = doc->blocks;
        doc->blocks = b;
        doc->cap_bytes = cap;
        doc->used_bytes = BLOCK_HEAD;
    }
    void *p = (char *)doc->blocks + doc->used_bytes;
    doc->used_bytes += size_bytes;
    return p;
}

static lg_status no_memory(const reader *r) {
    return LG_FAIL(r->err, LG_E_NOMEM, "%s: no memory for the parsed JSON", r->what);
}

/* Report what was expected at `at` and what is there. */
static lg_status bad(const reader *r, const char *at, const char *expected) {
    char found[32];
    uint8_t c = (uint8_t)*at;
    if (at >= r->end)
        snprintf(found, sizeof found, "the end");
    else if (c >= 0x21 && c < 0x7f)
        snprintf(found, sizeof found, "'%c'", c);
    else
        snprintf(found, sizeof found, "byte 0x%02x", c);
    return LG_FAIL(r->err, LG_E_FORMAT, "%s: byte %zu: expected %s, found %s", r->what,
                   (size_t)(at - r->start), expected, found);
}

static void skip_space(reader *r) {
    while (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t') r->p++;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Four hexadecimal digits at s, or UINT32_MAX.  The NUL at the end of the source is no digit. */
static uint32_t hex4(const char *s) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        if (is_digit(c))
            v = v << 4 | (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v << 4 | (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            v = v << 4 | (uint32_t)(c - 'A' + 10);
        else
            return UINT32_MAX;
    }
    return v;
}

static char *put_utf8(char *q, uint32_t cp) {
    if (cp < 0x80) {
        *q++ = (char)cp;
    } else if (cp < 0x800) {
        *q++ = (char)(0xc0 | cp >> 6);
        *q++ = (char)(0x80 | (cp & 0x3f));
    } else if (cp < 0x10000) {
        *q++ = (char)(0xe0 | cp >> 12);
        *q++ = (char)(0x80 | (cp >> 6 & 0x3f));
        *q++ = (char)(0x80 | (cp & 0x3f));
    } else {
        *q++ = (char)(0xf0 | cp >> 18);
        *q++ = (char)(0x80 | (cp >> 12 & 0x3f));
        *q++ = (char)(0x80 | (cp >> 6 & 0x3f));
        *q++ = (char)(0x80 | (cp & 0x3f));
    }
    return q;
}

/* Decode the escape at r->p (a backslash) to *q and step over it. */
static lg_status read_escape(reader *r, char **q) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char *p = r->p, c = p[1];
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        *(*q)++ = to[at - from];
        r->p = p + 2;
        return LG_OK;
    }
    if (c != 'u') return bad(r, p + 1, "one of \"\\/bfnrtu after a backslash");
    uint32_t cp = hex4(p + 2);
    if (cp == UINT32_MAX) {
        p += 2;
        while (hex4((char[]){'0', '0', '0', *p}) != UINT32_MAX) p++;
        return bad(r, p, "four hexadecimal digits after \\u");
    }
    p += 6;
    if (cp >= 0xdc00 && cp <= 0xdfff)
        return bad(r, r->p, "no low surrogate without its high one");
    if (cp >= 0xd800 && cp <= 0xdbff) {
        uint32_t low = p[0] == '\\' && p[1] == 'u' ? hex4(p + 2) : UINT32_MAX;
        if (low < 0xdc00 || low > 0xdfff)
            return bad(r, p, "the low surrogate (\\udc00 to \\udfff) of a pair");
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        p += 6;
    }
    *q = put_utf8(*q, cp);
    r->p = p;
    return LG_OK;
}

/* True for the bytes that stand for themselves in a string and are one whole character. */
static bool is_plain(char c) {
    return (uint8_t)c >= 0x20 && (uint8_t)c < 0x80 && c != '"' && c != '\\';
}

/* The string whose opening quote is at r->p, decoded in place. */
static lg_status read_string(reader *r, const char **text, size_t *len_bytes) {
    char *s = ++r->p, *q = s;
    *text = s;
    while (is_plain(*r->p)) r->p++;
    q = r->p;
    while (*r->p != '"') {
        char *p = r->p;
        if (is_plain(*p)) {
            *q++ = *p;
            r->p++;
        } else if (*p == '\\') {
            LG_TRY(read_escape(r, &q));
        } else if ((uint8_t)*p >= 0x80) {
            uint32_t cp;
            size_t n = lg_utf8_next(p, (size_t)(r->end - p), &cp);
            if (cp == UINT32_MAX) return bad(r, p, "well-formed UTF-8");
            if (q != p) memmove(q, p, n);
            q += n;
            r->p += n;
        } else {
            return bad(r, p,
                       p == r->end ? "a closing quote"
                                   : "no bare control character in a string");
        }
    }
    *len_bytes = (size_t)(q - s);
    *q = 0;
    r->p++;
    return LG_OK;
}

/* The number at r->p, moved one byte to the left to make room for its NUL. */
static lg_status read_number(reader *r, lg_json *v) {
    char *s = r->p, *p = s;
    if (*p == '-') p++;
    if (!is_digit(*p)) return bad(r, p, "a digit");
    if (*p == '0')
        p++;
    else
        while (is_digit(*p)) p++;
    if (*p == '.') {
        p++;
        if (!is_digit(*p)) return bad(r, p, "a digit after the decimal point");
        while (is_digit(*p)) p++;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-') p++;
        if (!is_digit(*p)) return bad(r, p, "a digit in the exponent");
        while (is_digit(*p)) p++;
    }
    v->kind = LG_JSON_NUMBER;
    v->text = s - 1;
    v->text_len = (size_t)(p - s);
    memmove(s - 1, s, v->text_len);
    p[-1] = 0;
    r->p = p;
    return LG_OK;
}

static lg_status read_word(reader *r, const char *word, lg_json_kind kind, lg_json *v) {
    for (size_t i = 0; word[i]; i++)
        if (r->p[i] != word[i]) return bad(r, r->p + i, word);
    r->p += strlen(word);
    v->kind = kind;
    return LG_OK;
}

/* A key and its colon; the value follows. */
static lg_status read_key(reader *r) {
    skip_space(r);
    if (*r->p != '"') return bad(r, r->p, "a key in quotes");
    LG_TRY(read_string(r, &r->key, &r->key_len));
    skip_space(r);
    if (*r->p != ':') return bad(r, r->p, "':' after a key");
    r->p++;
    return LG_OK;
}

/* Enter the array or object v, whose bracket is at r->p. */
static lg_status enter(reader *r, lg_json *v) {
    if (r->depth == r->max_depth)
        return LG_FAIL(r->err, LG_E_FORMAT, "%s: byte %zu: nested deeper than %u levels",
                       r->what, (size_t)(r->p - r->start), r->max_depth);
    frame *f = r->top ? r->top->down : r->outermost;
    if (!f) {
        f = take(r->doc, sizeof *f);
        if (!f) return no_memory(r);
        *f = (frame){.up = r->top};
        if (r->top)
            r->top->down = f;
        else
            r->outermost = f;
    }
    v->kind = *r->p++ == '{' ? LG_JSON_OBJECT : LG_JSON_ARRAY;
    f->node = v;
    f->tail = NULL;
    r->top = f;
    r->depth++;
    return LG_OK;
}

/* One value at r->p, linked into the open container.  Sets *entered when it is a container that is now open. */
static lg_status read_value(reader *r, bool *entered) {
    skip_space(r);
    if (r->n_left-- == 0)
        return LG_FAIL(r->err, LG_E_FORMAT, "%s: byte %zu: more values than are taken", r->what,
                       (size_t)(r->p - r->start));
    lg_json *v = take(r->doc, sizeof *v);
    if (!v) return no_memory(r);
    *v = (lg_json){.key = r->key, .key_len = r->key_len, .offset = (size_t)(r->p - r->start)};
    r->key = NULL;
    r->key_len = 0;
    frame *f = r->top;
    if (!f) {
        r->doc->root = v;
    } else {
        if (f->tail)
            f->tail->next = v;
        else
            f->node->child = v;
        f->tail = v;
        f->node->n_child++;
    }
    *entered = false;
    switch (*r->p) {
    case '"': v->kind = LG_JSON_STRING; return read_string(r, &v->text, &v->text_len);
    case '{':
    case '[': *entered = true; return enter(r, v);
    case 't': return read_word(r, "true", LG_JSON_TRUE, v);
    case 'f': return read_word(r, "false", LG_JSON_FALSE, v);
    case 'n': return read_word(r, "null", LG_JSON_NULL, v);
    default:
        if (*r->p != '-' && !is_digit(*r->p)) return bad(r, r->p, "a value");
        return read_number(r, v);
    }
}

/* After a value: close what ends here and step to the next value.  *more is false when the root is complete. */
static lg_status read_between(reader *r, bool entered, bool *more) {
    while (r->top) {
        bool object = r->top->node->kind == LG_JSON_OBJECT;
        skip_space(r);
        if (*r->p == (object ? '}' : ']')) {
            r->p++;
            r->top = r->top->up;
            r->depth--;
            entered = false;
            continue;
        }
        *more = true;
        if (!entered) {
            if (*r->p != ',') return bad(r, r->p, object ? "',' or '}'" : "',' or ']'");
            r->p++;
        }
        return object ? read_key(r) : LG_OK;
    }
    *more = false;
    return LG_OK;
}

/* Parse the source inside doc->text.  doc is closed on failure. */
static lg_status parse_owned(lg_json_doc *owned, size_t len_bytes, unsigned max_depth,
                             size_t max_value, const char *what, lg_json_doc **doc,
                             lg_err *err) {
    reader r = {
        .doc = owned, .start = owned->text + 1, .n_left = max_value, .what = what, .err = err};
    r.p = r.start;
    r.end = r.start + len_bytes;
    r.max_depth = max_depth < LG_JSON_MAX_DEPTH ? max_depth : LG_JSON_MAX_DEPTH;
    lg_status st;
    for (bool more = true, entered = false; more;) {
        LG_TRY_GOTO(read_value(&r, &entered), st, fail);
        LG_TRY_GOTO(read_between(&r, entered, &more), st, fail);
    }
    skip_space(&r);
    if (r.p != r.end) {
        st = bad(&r, r.p, "nothing after the value");
        goto fail;
    }
    *doc = owned;
    return LG_OK;
fail:
    lg_json_close(&owned);
    return st;
}

/* A document with room for a source of len_bytes, or NULL. */
static lg_json_doc *doc_open(size_t len_bytes) {
    lg_json_doc *doc = lg_mem_alloc(sizeof *doc);
    if (!doc) return NULL;
    doc->text = lg_mem_realloc(NULL, len_bytes + 2);
    if (doc->text) {
        doc->text[0] = doc->text[1 + len_bytes] = 0;
        return doc;
    }
    lg_mem_free(doc);
    return NULL;
}

lg_status lg_json_parse(const char *text, size_t len_bytes, unsigned max_depth,
                        const char *what, lg_json_doc **doc, lg_err *err) {
    return lg_json_parse_bounded(text, len_bytes, max_depth, SIZE_MAX, what, doc, err);
}

lg_status lg_json_parse_bounded(const char *text, size_t len_bytes, unsigned max_depth,
                                size_t max_value, const char *what, lg_json_doc **doc,
                                lg_err *err) {
    *doc = NULL;
    if (len_bytes > UINT32_MAX)
        return LG_FAIL(err, LG_E_FORMAT, "%s: %zu bytes of JSON, expected at most 4 GiB", what,
                       len_bytes);
    lg_json_doc *own = doc_open(len_bytes);
    if (!own) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory for the JSON text", what);
    if (len_bytes) memcpy(own->text + 1, text, len_bytes);
    return parse_owned(own, len_bytes, max_depth, max_value, what, doc, err);
}

/* Read all of fd, whose size was `size` when looked at, into text[size]; a file that grew or shrank is an error. */
static lg_status read_all(int fd, char *text, size_t size, const char *path, lg_err *err) {
    size_t have = 0;
    while (have < size) {
        ssize_t n = read(fd, text + have, size - have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
        if (n == 0)
            return LG_FAIL(err, LG_E_IO, "%s: ends after %zu bytes, expected %zu", path, have,
                           size);
        have += (size_t)n;
    }
    return LG_OK;
}

lg_status lg_json_load(const char *path, size_t max_bytes, unsigned max_depth,
                       lg_json_doc **doc, lg_err *err) {
    *doc = NULL;
    lg_json_doc *own = NULL;
    lg_status st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        st = LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        st = LG_FAIL(err, LG_E_IO, "%s: not a regular file", path);
        goto done;
    }
    size_t size = (size_t)info.st_size;
    if (max_bytes > UINT32_MAX) max_bytes = UINT32_MAX;
    if (size > max_bytes) {
        st = LG_FAIL(err, LG_E_FORMAT, "%s: %zu bytes, expected at most %zu", path, size,
                     max_bytes);
        goto done;
    }
    own = doc_open(size);
    if (!own) {
        st = LG_FAIL(err, LG_E_NOMEM, "%s: no memory for the JSON text", path);
        goto done;
    }
    LG_TRY_GOTO(read_all(fd, own->text + 1, size, path, err), st, done);
    st = parse_owned(own, size, max_depth, SIZE_MAX, path, doc, err);
    own = NULL;
done:
    if (fd >= 0) close(fd);
    lg_json_close(&own);
    return st;
}

const lg_json *lg_json_root(const lg_json_doc *doc) {
    return doc->root;
}

void lg_json_close(lg_json_doc **doc) {
    if (!*doc) return;
    for (block *b = (*doc)->blocks, *next; b; b = next) {
        next = b->next;
        lg_mem_free(b);
    }
    lg_mem_free((*doc)->text);
    LG_FREE(*doc);
}

const lg_json *lg_json_get(const lg_json *v, const char *key) {
    if (!v || v->kind != LG_JSON_OBJECT) return NULL;
    const lg_json *found = NULL;
    size_t len = strlen(key);
    for (const lg_json *m = v->child; m; m = m->next)
        if (m->key_len == len && memcmp(m->key, key, len) == 0) found = m;
    return found;
}

static const lg_json *pointer_step(const lg_json *v, const char *s, size_t len) {
    char key[128];
    size_t n = 0;
    for (size_t i = 0; i < len; i++, n++) {
        if (n + 1 == sizeof key) return NULL;
        bool tilde = s[i] == '~' && i + 1 < len && (s[i + 1] == '0' || s[i + 1] == '1');
        key[n] = !tilde ? s[i] : s[i + 1] == '0' ? '~' : '/';
        i += tilde;
    }
    key[n] = 0;
    return lg_json_get(v, key);
}

const lg_json *lg_json_point(const lg_json *root, const char *pointer) {
    const char *s = pointer;
    if (*s++ != '#') return NULL;
    while (root && *s == '/') {
        size_t len = strcspn(++s, "/");
        root = pointer_step(root, s, len);
        s += len;
    }
    return *s ? NULL : root;
}

const lg_json *lg_json_at(const lg_json *v, size_t i) {
    if (!v || i >= v->n_child) return NULL;
    const lg_json *m = v->child;
    while (i--) m = m->next;
    return m;
}

bool lg_json_is(const lg_json *v, const char *s) {
    if (!v || v->kind != LG_JSON_STRING) return false;
    size_t len = strlen(s);
    return v->text_len == len && memcmp(v->text, s, len) == 0;
}

bool lg_json_bool(const lg_json *v, bool *out) {
    if (!v || (v->kind != LG_JSON_TRUE && v->kind != LG_JSON_FALSE)) return false;
    *out = v->kind == LG_JSON_TRUE;
    return true;
}

const char *lg_json_kind_name(lg_json_kind kind) {
    switch (kind) {
    case LG_JSON_NULL: return "null";
    case LG_JSON_FALSE:
    case LG_JSON_TRUE: return "boolean";
    case LG_JSON_NUMBER: return "number";
    case LG_JSON_STRING: return "string";
    case LG_JSON_ARRAY: return "array";
    case LG_JSON_OBJECT: return "object";
    }
    return "unknown";
}
