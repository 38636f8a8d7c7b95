/* fuzz_grammar.c - any bytes as the source of a grammar, and random answers of what is accepted.
 *
 * A schema is refused with a reason, or every answer that the grammar lets end is JSON and valid by the checker below, which knows
 * nothing of the grammar; on the way there is always a byte that may come next, but where nesting ends.  Of tools the answer must be
 * calls.  Memory stays below what the header says.  The first byte chooses the answers.  Seeds: fuzz/corpus/grammar */
#include "base/num.h"
#include "model/grammar/grammar.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_ANSWER = 3, N_STEP = 400, WORK_BYTES = 24 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const lg_json *root;
static int depth;

static bool valid(const lg_json *v, const lg_json *s);

static bool same(const lg_json *a, const lg_json *b) {
    lg_buf x = {0}, y = {0};
    lg_json_put(&x, a, LG_JSON_COMPACT);
    lg_json_put(&y, b, LG_JSON_COMPACT);
    bool eq = x.len_bytes == y.len_bytes && memcmp(x.data, y.data, x.len_bytes) == 0;
    lg_buf_fini(&x);
    lg_buf_fini(&y);
    return eq;
}

static bool is_type(const lg_json *v, const lg_json *t) {
    static const char *const name[] = {"null",   "boolean", "boolean", "number",
                                       "string", "array",   "object"};
    static const lg_json_kind kind[] = {LG_JSON_NULL,   LG_JSON_FALSE,  LG_JSON_TRUE,
                                        LG_JSON_NUMBER, LG_JSON_STRING, LG_JSON_ARRAY,
                                        LG_JSON_OBJECT};
    if (t->kind == LG_JSON_ARRAY) {
        for (const lg_json *c = t->child; c; c = c->next)
            if (is_type(v, c)) return true;
        return false;
    }
    if (lg_json_is(t, "integer")) return v->kind == LG_JSON_NUMBER && !strpbrk(v->text, ".eE");
    for (size_t i = 0; i < LG_COUNT(kind); i++)
        if (v->kind == kind[i]) return lg_json_is(t, name[i]);
    return false;
}

static const lg_json *follow(const char *p) {
    const lg_json *v = root;
    if (*p++ != '#') return NULL;
    while (v && *p == '/') {
        char key[128];
        size_t n = 0;
        for (p++; *p && *p != '/' && n < sizeof key - 1; p++) {
            key[n] = *p;
            if (*p == '~' && (p[1] == '0' || p[1] == '1')) key[n] = *++p == '0' ? '~' : '/';
            n++;
        }
        key[n] = 0;
        v = lg_json_get(v, key);
    }
    return v;
}

/* A member as a number; false when there is none. */
static bool number(const lg_json *s, const char *key, long double *x) {
    const lg_json *v = lg_json_get(s, key);
    if (v) *x = strtold(v->text, NULL);
    return v != NULL;
}

static bool valid_number(const lg_json *v, const lg_json *s) {
    long double x = strtold(v->text, NULL), y;
    if (number(s, "minimum", &y) && x < y) return false;
    if (number(s, "maximum", &y) && x > y) return false;
    if (number(s, "exclusiveMinimum", &y) && x <= y) return false;
    if (number(s, "exclusiveMaximum", &y) && x >= y) return false;
    if (number(s, "multipleOf", &y) && fabsl(x / y) < 1e12L) {
        long double q = x / y;
        return fabsl(q - roundl(q)) < 1e-6L;
    }
    return true;
}

static bool within(const lg_json *s, const char *low, const char *high, long double n) {
    long double y;
    return !(number(s, low, &y) && n < y) && !(number(s, high, &y) && n > y);
}

static bool valid_object(const lg_json *v, const lg_json *s) {
    const lg_json *props = lg_json_get(s, "properties"),
                  *more = lg_json_get(s, "additionalProperties");
    const lg_json *need = lg_json_get(s, "required");
    for (const lg_json *r = need ? need->child : NULL; r; r = r->next) {
        const lg_json *c = v->child;
        while (c && !(c->key_len == r->text_len && memcmp(c->key, r->text, r->text_len) == 0))
            c = c->next;
        if (!c) return false;
    }
    for (const lg_json *c = v->child; c; c = c->next) {
        const lg_json *p = props ? props->child : NULL;
        while (p && !(c->key_len == p->key_len && memcmp(c->key, p->key, p->key_len) == 0))
            p = p->next;
        if (p ? !valid(c, p) : more && !valid(c, more)) return false;
    }
    return true;
}

static bool valid_kind(const lg_json *v, const lg_json *s) {
    const lg_json *items = lg_json_get(s, "items");
    size_t n = 0;
    switch (v->kind) {
    case LG_JSON_NUMBER: return valid_number(v, s);
    case LG_JSON_STRING:
        for (size_t i = 0; i < v->text_len; i++) n += (v->text[i] & 0xc0) != 0x80;
        return within(s, "minLength", "maxLength", (long double)n);
    case LG_JSON_ARRAY:
        for (const lg_json *c = v->child; c && items; c = c->next)
            if (!valid(c, items)) return false;
        return within(s, "minItems", "maxItems", (long double)v->n_child);
    case LG_JSON_OBJECT: return valid_object(v, s);
    default: return true;
    }
}

static bool valid(const lg_json *v, const lg_json *s) {
    const lg_json *t;
    bool any;
    if (s->kind == LG_JSON_TRUE) return true;
    if (s->kind != LG_JSON_OBJECT || depth > 400) return false;
    depth++;
    bool ok = !((t = lg_json_get(s, "type")) && !is_type(v, t));
    if ((t = lg_json_get(s, "const"))) ok &= same(v, t);
    if ((t = lg_json_get(s, "enum"))) {
        any = false;
        for (const lg_json *c = t->child; c; c = c->next) any |= same(v, c);
        ok &= any;
    }
    if ((t = lg_json_get(s, "$ref"))) {
        const lg_json *to = follow(t->text);
        ok &= to && valid(v, to);
    }
    static const char *const list[] = {"anyOf", "oneOf", "allOf"};
    for (size_t i = 0; i < LG_COUNT(list); i++) {
        if (!(t = lg_json_get(s, list[i]))) continue;
        any = false;
        for (const lg_json *c = t->child; c && !any; c = c->next) any = valid(v, c);
        ok &= any;
    }
    ok = ok && valid_kind(v, s);
    depth--;
    return ok;
}

/* A random answer in *text; false when it did not end in time, or nesting ended it. */
static bool play(const lg_grammar *g, uint64_t key, bool think, lg_buf *text) {
    lg_grammar_state s, next;
    uint64_t n = 0;
    lg_grammar_begin(g, think, &s);
    for (int step = 0; step < N_STEP; step++) {
        uint64_t r = lg_num_rng(key, 0, (uint64_t)step, 0);
        if (lg_grammar_may_end(g, &s) && (step > N_STEP / 2 || r % 8 == 0)) return true;
        /* closing signs are tried first once the answer is long, so that it ends */
        static const char close[] = "\"}],:</>\n0";
        bool found = false;
        for (int i = 0; i < 256 + 10 && !found; i++) {
            uint8_t c = (uint8_t)(r + (uint64_t)i * 149);
            if (step > N_STEP / 4 && i < 10) c = (uint8_t)close[i];
            lg_grammar_copy(&next, &s);
            found = lg_grammar_step(g, &next, c);
            if (found) lg_buf_putc(text, (char)c);
        }
        if (!found) {
            LG_ASSERT(lg_grammar_may_end(g, &s) || s.n >= LG_GRAMMAR_DEPTH - 2);
            return lg_grammar_may_end(g, &s);
        }
        lg_grammar_copy(&s, &next);
        LG_ASSERT(s.n <= LG_GRAMMAR_DEPTH);
        n = lg_grammar_n_plain(g, &s);
        if (n && step % 16 == 0) { /* what may come, whatever it is, may come */
            lg_grammar_copy(&next, &s);
            LG_ASSERT(lg_grammar_step(g, &next, (uint8_t) "x z~"[r / 8 % 4]));
        }
    }
    return false;
}

static void check(const lg_buf *text, bool think) {
    const char *p = lg_buf_str(text);
    if (think) p = strstr(p, "</think>") + 8;
    lg_json_doc *doc;
    lg_err err = {0};
    while (*p == '\n') p++;
    LG_ASSERT(lg_json_parse(p, strlen(p), 128, "answer", &doc, &err) == LG_OK);
    LG_ASSERT(valid(lg_json_root(doc), root));
    lg_json_close(&doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lg_grammar *g;
    lg_json_doc *doc = NULL;
    lg_err err = {0};
    if (size < 2 || size > 4096) return 0;
    int64_t alive = lg_mem_alive();
    uint64_t before = lg_mem_bytes();
    lg_mem_reset_peak();
    lg_status st = lg_grammar_open((const char *)data + 1, size - 1, &g, &err);
    LG_ASSERT(lg_mem_peak() - before < WORK_BYTES);
    LG_ASSERT(st == LG_OK || (st == LG_E_ARG && err.msg[0] && !g));
    if (st == LG_OK) {
        lg_buf text = {0};
        LG_ASSERT(lg_grammar_bytes(g) <= LG_GRAMMAR_MAX_MEMORY);
        LG_ASSERT(lg_mem_bytes() - before <= lg_grammar_bytes(g));
        LG_ASSERT(lg_json_parse((const char *)data + 1, size - 1, 128, "source", &doc, NULL) ==
                  LG_OK);
        root = lg_json_get(lg_json_root(doc), "schema");
        for (uint64_t i = 0; i < N_ANSWER; i++) {
            lg_buf_clear(&text);
            bool think = data[0] % 8 == 0;
            if (!play(g, data[0] + 256 * i, think, &text)) continue;
            if (root)
                check(&text, think);
            else
                LG_ASSERT(strstr(lg_buf_str(&text), "<tool_call>\n<function="));
        }
        lg_buf_fini(&text);
        lg_json_close(&doc);
    }
    lg_grammar_close(&g);
    LG_ASSERT(lg_mem_alive() == alive);
    return 0;
}
