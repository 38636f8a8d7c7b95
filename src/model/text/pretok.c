/* pretok.c - compile and run the pre-tokenizer pattern: see pretok.h.
 *
 * Patterns are meant for an engine whose \s is the Unicode property White_Space and whose tables are those of Unicode
 * 16.  PCRE2's \s also matches U+180E and the tables of 10.42 are those of Unicode 14, so \s and \S become explicit
 * classes, and \p{L}, \p{M}, \p{N} get the code points that Unicode 15 to 16 added.  Everything both engines do not read
 * alike (., ^, $, \d, \w, nested classes, back references, ...) is refused.
 * Memory: PCRE2 allocates through mem.c, except the code pages and stack of its JIT.  Test: tests/unit/test_tokenizer.c */
#include "model/text/pretok.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

/* Steps a match may take: a run of n characters costs a few n, a pattern that needs more is out of control. */
#define STEP_ALWAYS   ((uint32_t)1000000)
#define STEP_BYTE     ((uint32_t)64)
#define JIT_STACK_MIN ((size_t)32 << 10)
#define JIT_STACK_MAX ((size_t)8 << 20)

struct lg_pretok {
    pcre2_general_context *general;
    pcre2_compile_context *compile;
    pcre2_match_context *match;
    pcre2_match_data *data;
    pcre2_jit_stack *stack; /* NULL without JIT */
    pcre2_code *code;
};

/* White_Space, for use inside brackets. */
static const char space_class[] =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"
    "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

/* Letters, marks and numbers of Unicode 15, 15.1 and 16. */
static const char letter_class[] =
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}"
    "\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}"
    "\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}"
    "\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}"
    "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}"
    "\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}"
    "\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}"
    "\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}"
    "\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"
    "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}";
static const char mark_class[] =
    "\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}"
    "\\x{11241}\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}"
    "\\x{113CC}-\\x{113D0}\\x{113D2}\\x{113E1}-\\x{113E2}"
    "\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}"
    "\\x{11F3E}-\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}"
    "\\x{1611E}-\\x{1612F}\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}"
    "\\x{1E5EE}-\\x{1E5EF}";
static const char number_class[] =
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}"
    "\\x{11F50}-\\x{11F59}\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}"
    "\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}\\x{1E4F0}-\\x{1E4F9}"
    "\\x{1E5F1}-\\x{1E5FA}";

/* ---- Rewriting ---- */

typedef struct rewriter {
    const char *pattern, *what, *p; /* p: next byte */
    lg_buf *out;
    lg_err *err;
} rewriter;

static lg_status refuse(const rewriter *rw, const char *why) {
    return LG_FAIL(rw->err, LG_E_UNSUPPORTED,
                   "%s: pre_tokenizer pattern: byte %zu: %s is not supported", rw->what,
                   (size_t)(rw->p - rw->pattern), why);
}

/* Put a set: inside brackets as it is, outside in brackets of its own. */
static void put_set(rewriter *rw, const char *head, const char *set, bool in_class,
                    bool negate) {
    if (!in_class) lg_buf_puts(rw->out, negate ? "[^" : "[");
    lg_buf_puts(rw->out, head);
    lg_buf_puts(rw->out, set);
    if (!in_class) lg_buf_putc(rw->out, ']');
}

/* \p{X} or \P{X}; p stands on the letter p. */
static lg_status property(rewriter *rw, bool in_class) {
    bool negate = rw->p[0] == 'P';
    if (rw->p[1] != '{') return refuse(rw, "\\p without braces");
    const char *name = rw->p + 2, *close = strchr(name, '}');
    size_t len = close ? (size_t)(close - name) : 0;
    if (len < 1 || len > 2 || !strchr("LMNPSZC", name[0]) ||
        (len == 2 && !strchr("ultmoncedsfkip", name[1])))
        return refuse(rw, "a property that is no general category");
    char head[8] = "\\p{";
    memcpy(head + 3, name, len);
    head[3 + len] = '}';
    const char *more = "";
    if (len == 1)
        more = name[0] == 'L'   ? letter_class
               : name[0] == 'M' ? mark_class
               : name[0] == 'N' ? number_class
                                : "";
    if (in_class && negate) return refuse(rw, "\\P inside brackets");
    put_set(rw, head, more, in_class, negate);
    rw->p = close + 1;
    return LG_OK;
}

/* An escape; p stands on the backslash. */
static lg_status escape(rewriter *rw, bool in_class) {
    char c = *++rw->p;
    if (c == 'p' || c == 'P') return property(rw, in_class);
    if (c == 's' || c == 'S') {
        if (in_class && c == 'S') return refuse(rw, "\\S inside brackets");
        put_set(rw, "", space_class, in_class, c == 'S');
    } else if (c && (strchr("rntf", c) || strchr("\\/'\"[](){}.*+?|^$-!#&,:;<=>@_~%", c))) {
        char text[3] = {'\\', c, 0};
        lg_buf_puts(rw->out, text);
    } else {
        return refuse(rw, "this escape");
    }
    rw->p++;
    return LG_OK;
}

/* A bracketed class; p stands on the opening bracket. */
static lg_status bracket(rewriter *rw) {
    lg_buf_putc(rw->out, *rw->p++);
    if (*rw->p == '^') lg_buf_putc(rw->out, *rw->p++);
    if (*rw->p == ']') return refuse(rw, "an empty class");
    while (*rw->p != ']') {
        char c = *rw->p;
        if (!c) return refuse(rw, "a class without end");
        if (c == '[') return refuse(rw, "a class inside a class");
        if (c == '&' && rw->p[1] == '&') return refuse(rw, "&& inside brackets");
        if (c == '\\') {
            LG_TRY(escape(rw, true));
        } else {
            lg_buf_putc(rw->out, c);
            rw->p++;
        }
    }
    lg_buf_putc(rw->out, *rw->p++);
    return LG_OK;
}

/* {n}, {n,} or {n,m}; p stands on the brace. */
static lg_status repeat(rewriter *rw) {
    const char *q = rw->p + 1;
    size_t n = strspn(q, "0123456789");
    if (n == 0 || n > 3) return refuse(rw, "this repeat");
    q += n;
    if (*q == ',') {
        n = strspn(++q, "0123456789");
        if (n > 3) return refuse(rw, "this repeat");
        q += n;
    }
    if (*q != '}' || q[1] == '+') return refuse(rw, "this repeat");
    lg_buf_put(rw->out, rw->p, (size_t)(q + 1 - rw->p));
    rw->p = q + 1;
    return LG_OK;
}

/* An opening parenthesis with what follows it. */
static lg_status group(rewriter *rw) {
    static const char *const kind[] = {"(?i:", "(?:", "(?!", "(?="};
    size_t n = 1;
    for (size_t i = 0; i < LG_COUNT(kind) && n == 1; i++)
        if (strncmp(rw->p, kind[i], strlen(kind[i])) == 0) n = strlen(kind[i]);
    if (n == 1 && (rw->p[1] == '?' || rw->p[1] == '*')) return refuse(rw, "this group");
    lg_buf_put(rw->out, rw->p, n);
    rw->p += n;
    return LG_OK;
}

lg_status lg_pretok_rewrite(const char *pattern, const char *what, lg_buf *out, lg_err *err) {
    rewriter rw = {.pattern = pattern, .what = what, .p = pattern, .out = out, .err = err};
    while (*rw.p) {
        switch (*rw.p) {
        case '\\': LG_TRY(escape(&rw, false)); break;
        case '[': LG_TRY(bracket(&rw)); break;
        case '{': LG_TRY(repeat(&rw)); break;
        case '(': LG_TRY(group(&rw)); break;
        case '.':
        case '^':
        case '$':
        case '}': return refuse(&rw, "this character");
        default: lg_buf_putc(out, *rw.p++);
        }
    }
    return out->failed ? LG_FAIL(err, LG_E_NOMEM, "%s: out of memory", what) : LG_OK;
}

/* ---- Running ---- */

static void *pcre_take(size_t size_bytes, void *ctx) {
    (void)ctx;
    return lg_mem_alloc(size_bytes);
}

static void pcre_give(void *p, void *ctx) {
    (void)ctx;
    lg_mem_free(p);
}

static lg_status pcre_fail(lg_err *err, const char *what, int code, size_t offset) {
    char msg[160];
    if (pcre2_get_error_message(code, (PCRE2_UCHAR *)msg, sizeof msg) < 0) msg[0] = 0;
    return LG_FAIL(err, LG_E_FORMAT, "%s: byte %zu: %s (pcre2 error %d)", what, offset, msg,
                   code);
}

static lg_status compile(lg_pretok *pt, const char *pattern, bool jit, const char *what,
                         lg_err *err) {
    int code;
    size_t offset;
    pt->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                             &code, &offset, pt->compile);
    if (!pt->code && code == PCRE2_ERROR_HEAP_FAILED) return LG_E_NOMEM;
    if (!pt->code) return pcre_fail(err, what, code, offset);
    pt->data = pcre2_match_data_create(1, pt->general);
    if (!pt->data) return LG_E_NOMEM;
    if (!jit || pcre2_jit_compile(pt->code, PCRE2_JIT_COMPLETE) != 0) return LG_OK;
    pt->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, pt->general);
    if (!pt->stack) return LG_E_NOMEM;
    pcre2_jit_stack_assign(pt->match, NULL, pt->stack);
    return LG_OK;
}

lg_status lg_pretok_open(const char *pattern, bool jit, const char *what, lg_pretok **out,
                         lg_err *err) {
    lg_status st = LG_E_NOMEM;
    lg_buf text = {0};
    lg_pretok *pt = lg_mem_alloc(sizeof *pt);
    *out = NULL;
    if (!pt) goto done;
    LG_TRY_GOTO(lg_pretok_rewrite(pattern, what, &text, err), st, done);
    st = LG_E_NOMEM;
    pt->general = pcre2_general_context_create(pcre_take, pcre_give, NULL);
    if (!pt->general) goto done;
    pt->compile = pcre2_compile_context_create(pt->general);
    pt->match = pcre2_match_context_create(pt->general);
    if (!pt->compile || !pt->match) goto done;
    pcre2_set_depth_limit(pt->match, UINT32_MAX);
    LG_TRY_GOTO(compile(pt, lg_buf_str(&text), jit, what, err), st, done);
    *out = pt;
    pt = NULL;
done:
    if (st == LG_E_NOMEM) st = LG_FAIL(err, LG_E_NOMEM, "%s: out of memory", what);
    lg_buf_fini(&text);
    lg_pretok_close(&pt);
    return st;
}

void lg_pretok_close(lg_pretok **out) {
    lg_pretok *pt = *out;
    if (!pt) return;
    pcre2_jit_stack_free(pt->stack);
    pcre2_match_data_free(pt->data);
    pcre2_code_free(pt->code);
    pcre2_match_context_free(pt->match);
    pcre2_compile_context_free(pt->compile);
    pcre2_general_context_free(pt->general);
    LG_FREE(*out);
}

lg_status lg_pretok_next(lg_pretok *pt, const char *text, size_t len_bytes, size_t begin,
                         size_t *end, lg_err *err) {
    LG_ASSERT(begin < len_bytes);
    size_t from = begin, left = len_bytes - begin;
    pcre2_set_match_limit(pt->match, left < UINT32_MAX / STEP_BYTE - STEP_ALWAYS / STEP_BYTE
                                         ? STEP_ALWAYS + STEP_BYTE * (uint32_t)left
                                         : UINT32_MAX);
    for (;;) {
        int n = pcre2_match(pt->code, (PCRE2_SPTR)text, len_bytes, from, PCRE2_NO_UTF_CHECK,
                            pt->data, pt->match);
        if (n == PCRE2_ERROR_NOMEMORY || n == PCRE2_ERROR_HEAPLIMIT)
            return LG_FAIL(err, LG_E_NOMEM, "text: out of memory while it is split");
        if (n == PCRE2_ERROR_NOMATCH) {
            *end = len_bytes;
            return LG_OK;
        }
        if (n < 0) return pcre_fail(err, "text", n, begin);
        const size_t *at = pcre2_get_ovector_pointer(pt->data);
        if (at[0] > begin) {
            *end = at[0];
            return LG_OK;
        }
        if (at[1] > begin) {
            *end = at[1];
            return LG_OK;
        }
        /* An empty match here: look on after the next character. */
        from++;
        while (from < len_bytes && ((uint8_t)text[from] & 0xc0) == 0x80) from++;
        if (from == len_bytes) {
            *end = len_bytes;
            return LG_OK;
        }
    }
}
