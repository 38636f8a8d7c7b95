/* argval.c - the text of an argument into JSON: see argval.h.
 *
 * In:  a schema, a text.   Out: a bit set of types, a value.   Thread: any.  Memory: the parser's while a value is read.
 * Test: tests/unit/test_argval.c */
#include "gateway/wire/argval.h"

#include <math.h>
#include <string.h>

#define SCHEMA_DEPTH 16   /* schemas in schemas; a $ref that leads to itself ends here */
#define SCHEMA_VISIT 1024 /* schemas looked at for one argument: references may multiply */
#define VALUE_DEPTH  64   /* deepest nesting of a value that is read as JSON */

/* ---- Types ---- */

static uint32_t type_of_name(const lg_json *t) {
    static const struct {
        const char *name;
        uint32_t bits;
    } type[] = {{"null", LG_ARG_NULL},       {"boolean", LG_ARG_BOOL},
                {"integer", LG_ARG_INTEGER}, {"number", LG_ARG_INTEGER | LG_ARG_NUMBER},
                {"string", LG_ARG_STRING},   {"array", LG_ARG_ARRAY},
                {"object", LG_ARG_OBJECT}};
    for (size_t i = 0; i < LG_COUNT(type); i++)
        if (lg_json_is(t, type[i].name)) return type[i].bits;
    return 0;
}

static uint32_t type_of_value(const lg_json *v) {
    static const uint32_t bits[] = {
        [LG_JSON_NULL] = LG_ARG_NULL,     [LG_JSON_FALSE] = LG_ARG_BOOL,
        [LG_JSON_TRUE] = LG_ARG_BOOL,     [LG_JSON_NUMBER] = LG_ARG_NUMBER,
        [LG_JSON_STRING] = LG_ARG_STRING, [LG_JSON_ARRAY] = LG_ARG_ARRAY,
        [LG_JSON_OBJECT] = LG_ARG_OBJECT};
    double x;
    if (v->kind == LG_JSON_NUMBER && lg_json_f64(v, &x) && x == floor(x)) return LG_ARG_INTEGER;
    return bits[v->kind];
}

typedef struct walk {
    const lg_json *root;
    uint32_t n_left, depth;
} walk;

static uint32_t types_of(walk *w, const lg_json *schema);

/* Types of any (or of all) schemas of a list. */
static uint32_t types_of_list(walk *w, const lg_json *list, bool all) {
    uint32_t bits = all ? LG_ARG_ANY : 0;
    if (!list || list->kind != LG_JSON_ARRAY || !list->child) return LG_ARG_ANY;
    for (const lg_json *c = list->child; c; c = c->next) {
        uint32_t one = types_of(w, c);
        bits = all ? bits & one : bits | one;
    }
    return bits;
}

static uint32_t types_of(walk *w, const lg_json *schema) {
    const lg_json *v;
    uint32_t bits = LG_ARG_ANY, some = 0;
    if (!schema || schema->kind != LG_JSON_OBJECT) return LG_ARG_ANY;
    if (w->depth == SCHEMA_DEPTH || w->n_left == 0) return LG_ARG_ANY;
    w->depth++;
    w->n_left--;
    if ((v = lg_json_get(schema, "type"))) {
        some = type_of_name(v);
        if (v->kind == LG_JSON_ARRAY)
            for (const lg_json *c = v->child; c; c = c->next) some |= type_of_name(c);
        if (some) bits &= some;
    }
    if ((v = lg_json_get(schema, "enum")) && v->kind == LG_JSON_ARRAY && v->child) {
        some = 0;
        for (const lg_json *c = v->child; c; c = c->next) some |= type_of_value(c);
        bits &= some;
    }
    if ((v = lg_json_get(schema, "const"))) bits &= type_of_value(v);
    if ((v = lg_json_get(schema, "$ref")) && v->kind == LG_JSON_STRING)
        bits &= types_of(w, lg_json_point(w->root, v->text));
    bits &= types_of_list(w, lg_json_get(schema, "anyOf"), false);
    bits &= types_of_list(w, lg_json_get(schema, "oneOf"), false);
    bits &= types_of_list(w, lg_json_get(schema, "allOf"), true);
    w->depth--;
    return bits ? bits : LG_ARG_ANY;
}

uint32_t lg_argval_types(const lg_json *root, const lg_json *schema) {
    walk w = {.root = root, .n_left = SCHEMA_VISIT};
    return types_of(&w, schema);
}

/* ---- Values ---- */

static const struct {
    const char *text, *json;
    uint32_t bit;
} words[] = {{"null", "null", LG_ARG_NULL},   {"None", "null", LG_ARG_NULL},
             {"true", "true", LG_ARG_BOOL},   {"True", "true", LG_ARG_BOOL},
             {"false", "false", LG_ARG_BOOL}, {"False", "false", LG_ARG_BOOL}};

/* Whether a word of that type may be read as one: it is allowed, or a string is not. */
static bool reads_word(uint32_t types, uint32_t bit) {
    return (types & bit) || !(types & LG_ARG_STRING);
}

static bool keeps_json(uint32_t types, const lg_json *v) {
    uint32_t bit = type_of_value(v);
    if (types == LG_ARG_ANY || !(types & LG_ARG_STRING)) return true;
    if (bit == LG_ARG_STRING) return false; /* its quotes are part of the text */
    return types & bit;
}

lg_status lg_argval_put(lg_buf *out, uint32_t types, const char *s, size_t len_bytes) {
    lg_json_doc *doc = NULL;
    if (types == LG_ARG_STRING) {
        lg_json_put_string(out, s, len_bytes);
        return LG_OK;
    }
    for (size_t i = 0; i < LG_COUNT(words); i++)
        if (reads_word(types, words[i].bit) && len_bytes == strlen(words[i].text) &&
            memcmp(s, words[i].text, len_bytes) == 0) {
            lg_buf_puts(out, words[i].json);
            return LG_OK;
        }
    lg_status st = lg_json_parse(s, len_bytes, VALUE_DEPTH, "argument", &doc, NULL);
    if (st == LG_E_NOMEM) return st;
    if (st == LG_OK && keeps_json(types, lg_json_root(doc)))
        lg_json_put(out, lg_json_root(doc), LG_JSON_COMPACT);
    else
        lg_json_put_string(out, s, len_bytes);
    lg_json_close(&doc);
    return LG_OK;
}

/* ---- Beginnings ---- */

enum { AT_START, IN_NUMBER, IN_WORD, AT_TAIL };

lg_argval_form lg_argval_begin(lg_argval *a, uint32_t types) {
    *a = (lg_argval){.types = types};
    if (types == LG_ARG_STRING) return LG_ARGVAL_TEXT;
    return types & LG_ARG_STRING ? LG_ARGVAL_OPEN : LG_ARGVAL_WHOLE;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The word so far and c: 0 = no word begins so, 1 = one does, 2 = one is complete and c is a blank. */
static int step_word(lg_argval *a, char c) {
    for (size_t i = 0; i < LG_COUNT(words); i++) {
        const char *w = words[i].text;
        if (!reads_word(a->types, words[i].bit) || memcmp(w, a->word, a->n_word) != 0) continue;
        if (w[a->n_word] == 0 && is_blank(c)) return 2;
        if (w[a->n_word] != 0 && w[a->n_word] == c) {
            a->word[a->n_word++] = c;
            return 1;
        }
    }
    return 0;
}

lg_argval_form lg_argval_feed(lg_argval *a, char c) {
    bool number = (c >= '0' && c <= '9') || c == '-';
    if (a->phase == AT_START) {
        if (is_blank(c)) return LG_ARGVAL_OPEN;
        if ((c == '{' && (a->types & LG_ARG_OBJECT)) ||
            (c == '[' && (a->types & LG_ARG_ARRAY)) || (c == '"' && a->types == LG_ARG_ANY))
            return LG_ARGVAL_WHOLE;
        if (number && !(a->types & (LG_ARG_INTEGER | LG_ARG_NUMBER))) return LG_ARGVAL_TEXT;
        a->phase = number ? IN_NUMBER : IN_WORD;
    }
    switch (a->phase) {
    case IN_NUMBER:
        if (is_blank(c))
            a->phase = AT_TAIL;
        else if (!number && c != '+' && c != '.' && c != 'e' && c != 'E')
            return LG_ARGVAL_TEXT;
        return LG_ARGVAL_OPEN;
    case IN_WORD:
        switch (step_word(a, c)) {
        case 0: return LG_ARGVAL_TEXT;
        case 2: a->phase = AT_TAIL; break;
        }
        return LG_ARGVAL_OPEN;
    default: return is_blank(c) ? LG_ARGVAL_OPEN : LG_ARGVAL_TEXT;
    }
}
