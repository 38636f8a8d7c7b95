/* grammar_tools.c - tools of which one must be called, into nodes: see grammar.h.
 *
 * In:  tools as the chat format takes them.   Out: nodes for calls as it writes them: strings as they are, the rest as JSON.
 * Thread: any.  Memory: the grammar's arrays.  Test: tests/unit/test_grammar_calls.c */
#include "model/grammar/grammar_make.h"

#include <stdio.h>
#include <string.h>

static uint16_t literal(lg_grammar_maker *m, const char *text) {
    uint16_t node = lg_grammar_make_node(m, LG_NODE_TEXTS);
    size_t from = m->g->text.len_bytes;
    if (node == LG_NODE_NONE || !lg_grammar_make_items(m, node, 1)) return LG_NODE_NONE;
    lg_buf_puts(&m->g->text, text);
    return lg_grammar_make_text(m, node, 0, from) ? node : LG_NODE_NONE;
}

/* Append the values of a schema that has only a few: enum, const, null, true and false, alternatives of such.  Returns how many, 0
 * for any other schema.  out may be NULL. */
static uint32_t few_values(const lg_json *schema, const lg_json **out, int depth) {
    static const lg_json word[] = {
        {.kind = LG_JSON_NULL}, {.kind = LG_JSON_TRUE}, {.kind = LG_JSON_FALSE}};
    const lg_json *v = lg_json_get(schema, "enum"), *type = lg_json_get(schema, "type");
    const lg_json *one = lg_json_get(schema, "const"), *list = lg_json_get(schema, "anyOf");
    uint32_t n = 0, more;
    if (!list) list = lg_json_get(schema, "oneOf");
    if (v && v->kind == LG_JSON_ARRAY) {
        for (const lg_json *c = v->child; c; c = c->next, n++)
            if (out) out[n] = c;
    } else if (one) {
        if (out) out[n] = one;
        n++;
    } else if (lg_json_is(type, "null") || lg_json_is(type, "boolean")) {
        bool null = lg_json_is(type, "null");
        for (uint32_t i = null ? 0 : 1; i < (null ? 1 : 3); i++, n++)
            if (out) out[n] = &word[i];
    } else if (list && list->kind == LG_JSON_ARRAY && depth < 4) {
        for (const lg_json *c = list->child; c; c = c->next, n += more)
            if ((more = few_values(c, out ? out + n : NULL, depth + 1)) == 0) return 0;
    }
    return n;
}

/* These values as a parameter shows them: strings as they are. */
static uint16_t make_few(lg_grammar_maker *m, const lg_json *schema, uint32_t n) {
    const lg_json **v = lg_mem_calloc(n, sizeof *v);
    uint16_t node = v ? lg_grammar_make_node(m, LG_NODE_TEXTS) : lg_grammar_make_no_memory(m);
    bool ok = node != LG_NODE_NONE && lg_grammar_make_items(m, node, n);
    if (ok) few_values(schema, v, 0);
    for (uint32_t i = 0; i < n && ok; i++) {
        size_t from = m->g->text.len_bytes;
        if (v[i]->kind == LG_JSON_STRING)
            lg_buf_put(&m->g->text, v[i]->text, v[i]->text_len);
        else
            lg_json_put(&m->g->text, v[i], LG_JSON_COMPACT);
        ok = lg_grammar_make_text(m, node, i, from);
    }
    lg_mem_free(v);
    return ok ? node : LG_NODE_NONE;
}

/* Whether a string is among what the schema allows: then the value is written as it is. */
static bool allows_string(const lg_json *schema) {
    static const char *const some[] = {"anyOf", "oneOf"};
    const lg_json *type = lg_json_get(schema, "type");
    if (lg_json_is(type, "string")) return true;
    for (const lg_json *t = type && type->kind == LG_JSON_ARRAY ? type->child : NULL; t;
         t = t->next)
        if (lg_json_is(t, "string")) return true;
    for (size_t i = 0; i < LG_COUNT(some); i++) {
        const lg_json *list = lg_json_get(schema, some[i]);
        if (!list || list->kind != LG_JSON_ARRAY) continue;
        for (const lg_json *c = list->child; c; c = c->next)
            if (allows_string(c)) return true;
    }
    return !type && !lg_json_get(schema, "properties") && !lg_json_get(schema, "items") &&
           !lg_json_get(schema, "$ref") && !lg_json_get(schema, "anyOf") &&
           !lg_json_get(schema, "oneOf") && !lg_json_get(schema, "enum");
}

/* Text as it is, with the end of its parameter.  Where only a string may stand its bounds of length hold, but for such as mean
 * nothing. */
static uint16_t make_raw(lg_grammar_maker *m, const lg_json *schema) {
    bool told = m->err && m->err->msg[0];
    uint16_t node = LG_NODE_NONE;
    if (lg_json_is(lg_json_get(schema, "type"), "string"))
        node = lg_grammar_make_between(m, LG_NODE_RAW, schema, "minLength", "maxLength");
    if (m->err && !told) m->err->msg[0] = 0;
    return node != LG_NODE_NONE ? node : lg_grammar_make_node(m, LG_NODE_RAW);
}

/* A string that must fit a pattern, and nothing else may stand there; LG_NODE_NONE when it is not so, or cannot be enforced.  Without
 * line feeds, so that its end is certain.  raw: its node without the pattern, which has the bounds of its length. */
static uint16_t make_raw_pattern(lg_grammar_maker *m, const lg_json *schema, uint16_t raw) {
    const lg_json *pattern = lg_json_get(schema, "pattern");
    if (!pattern || !lg_json_is(lg_json_get(schema, "type"), "string") || raw == LG_NODE_NONE)
        return LG_NODE_NONE;
    bool told = m->err && m->err->msg[0];
    const lg_node *k = &m->g->node[raw];
    uint32_t high = k->high == LG_NODE_NO_MAX ? LG_REGEX_NO_MAX : k->high;
    uint16_t node = lg_grammar_make_pattern(m, pattern, k->low, high, true);
    if (m->err && !told) m->err->msg[0] = 0;
    return node;
}

/* A parameter's value with what follows it. */
static uint16_t make_value(lg_grammar_maker *m, const char *name, const lg_json *schema) {
    uint32_t n_few = few_values(schema, NULL, 0);
    uint16_t value, end;
    if (n_few > 0 && n_few < 4096) {
        value = make_few(m, schema, n_few);
    } else if (allows_string(schema)) {
        uint16_t raw = make_raw(m, schema);
        if ((value = make_raw_pattern(m, schema, raw)) == LG_NODE_NONE)
            return lg_grammar_make_group(m, LG_NODE_SEQ, (uint16_t[]){raw, literal(m, "\n")},
                                         2);
    } else {
        value = lg_grammar_make_schema(m, name, schema);
    }
    end = literal(m, "\n</parameter>\n");
    return lg_grammar_make_group(m, LG_NODE_SEQ, (uint16_t[]){value, end}, 2);
}

static uint16_t make_params(lg_grammar_maker *m, const lg_json *schema) {
    static const char close[] = "</function>\n</tool_call>";
    const lg_json *props = lg_json_get(schema, "properties");
    const lg_json *required = lg_json_get(schema, "required");
    if (!props || props->kind != LG_JSON_OBJECT || lg_grammar_make_twice(props)) props = NULL;
    uint32_t n = props ? props->n_child : 0, i = 0;
    uint16_t node = lg_grammar_make_node(m, LG_NODE_PARAMS);
    if (node == LG_NODE_NONE || !lg_grammar_make_items(m, node, n + 1)) return LG_NODE_NONE;
    for (const lg_json *p = props ? props->child : NULL; p; p = p->next, i++) {
        size_t from = m->g->text.len_bytes;
        if (strpbrk(p->key, "<>\n"))
            return lg_grammar_make_fail(m, "%.60s: not a name of a parameter", p->key);
        lg_buf_puts(&m->g->text, "<parameter=");
        lg_buf_put(&m->g->text, p->key, p->key_len);
        lg_buf_puts(&m->g->text, ">\n");
        if (!lg_grammar_make_text(m, node, i, from)) return LG_NODE_NONE;
        uint16_t value = make_value(m, p->key, p);
        if (value == LG_NODE_NONE) return value;
        lg_grammar_make_item(m, node, i)->node = value;
        lg_grammar_make_item(m, node, i)->needed =
            required && required->kind == LG_JSON_ARRAY && lg_grammar_make_needed(required, p);
    }
    size_t from = m->g->text.len_bytes;
    lg_buf_puts(&m->g->text, close);
    return lg_grammar_make_text(m, node, n, from) ? node : LG_NODE_NONE;
}

uint16_t lg_grammar_make_tools(lg_grammar_maker *m, const lg_json *tools, bool many) {
    uint16_t node = lg_grammar_make_node(m, LG_NODE_CALLS);
    uint32_t i = 0;
    m->lax = true;
    if (tools->kind != LG_JSON_ARRAY || !tools->child)
        return lg_grammar_make_fail(m, "tools: there are none");
    if (node == LG_NODE_NONE || !lg_grammar_make_items(m, node, tools->n_child))
        return LG_NODE_NONE;
    m->g->node[node].high = many ? LG_NODE_NO_MAX : 1;
    for (const lg_json *t = tools->child; t; t = t->next, i++) {
        const lg_json *f = lg_json_get(t, "function");
        const lg_json *name = lg_json_get(f ? f : t, "name");
        size_t from = m->g->text.len_bytes;
        snprintf(m->path, sizeof m->path, "tools[%u]", i);
        if (!name || name->kind != LG_JSON_STRING)
            return lg_grammar_make_fail(m, "a tool without a name");
        m->root = lg_json_get(f ? f : t, "parameters");
        lg_buf_puts(&m->g->text, "<tool_call>\n<function=");
        lg_buf_put(&m->g->text, name->text, name->text_len);
        lg_buf_puts(&m->g->text, ">\n");
        if (!lg_grammar_make_text(m, node, i, from)) return LG_NODE_NONE;
        uint16_t params = make_params(m, m->root);
        if (params == LG_NODE_NONE) return params;
        lg_grammar_make_item(m, node, i)->node = params;
    }
    return node;
}
