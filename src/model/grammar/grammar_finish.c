/* grammar_finish.c - a grammar whose nodes are all there: see grammar.h.
 *
 * In:  nodes with stand-ins.   Out: nodes that refer to each other, alternatives that the first byte tells apart.
 * Thread: any.  Memory: the grammar's arrays.  Test: tests/unit/test_grammar.c */
#include "model/grammar/grammar_make.h"

#include <stdio.h>
#include <string.h>

/* What a stand-in stands for; LG_NODE_NONE: for itself. */
static uint16_t target(const lg_grammar_maker *m, uint16_t node) {
    for (uint32_t n = 0; n <= m->n_made; n++) {
        const lg_node *k = &m->g->node[node];
        if (k->kind != LG_NODE_SEQ || k->n_item != 1) return node;
        node = m->g->item[k->item].node;
        if (node == LG_NODE_NONE) return node;
    }
    return LG_NODE_NONE;
}

/* Put what is meant in place of stand-ins. */
static bool resolve(lg_grammar_maker *m) {
    lg_grammar *g = m->g;
    bool ok = true;
    for (uint32_t i = 0; i < g->n_item; i++) {
        g->item[i].text = g->item[i].len_bytes ? g->text.data + (size_t)g->item[i].text : "";
        if (g->item[i].node != LG_NODE_NONE) {
            uint16_t to = target(m, g->item[i].node);
            ok &= to != LG_NODE_NONE;
            if (to != LG_NODE_NONE) g->item[i].node = to;
        }
    }
    for (uint32_t i = 0; i < g->n_node; i++)
        if (g->node[i].child != LG_NODE_NONE) {
            uint16_t to = target(m, g->node[i].child);
            ok &= to != LG_NODE_NONE;
            if (to != LG_NODE_NONE) g->node[i].child = to;
        }
    if (!ok) lg_grammar_make_fail(m, "$ref: a schema is nothing but itself");
    return ok;
}

/* Bytes that a value of the node may begin with; false when choices lead back to themselves. */
static bool first_bytes(const lg_grammar_maker *m, uint16_t node, bool *set, int depth) {
    const lg_node *k = &m->g->node[node];
    if (depth == LG_GRAMMAR_MAX_REF) return false;
    switch (k->kind) {
    case LG_NODE_STRING:
    case LG_NODE_PATTERN: set['"'] = true; return true;
    case LG_NODE_RANGE:
        for (int c = 0; c < 256; c++) set[c] |= lg_grammar_range_begins(m->g, k, (uint8_t)c);
        return true;
    case LG_NODE_NUMBER:
        set['-'] = true;
        memset(set + '0', true, 10);
        return true;
    case LG_NODE_OBJECT:
    case LG_NODE_MAP: set['{'] = true; return true;
    case LG_NODE_ARRAY: set['['] = true; return true;
    case LG_NODE_TEXTS:
        for (uint32_t i = 0; i < k->n_item; i++)
            set[(uint8_t)m->g->item[k->item + i].text[0]] = true;
        return true;
    case LG_NODE_CHOICE:
        for (uint32_t i = 0; i < k->n_item; i++)
            if (!first_bytes(m, m->g->item[k->item + i].node, set, depth + 1)) return false;
        return true;
    default: return true;
    }
}

/* Choices of nothing but texts become one list of texts. */
static bool merge_texts(lg_grammar_maker *m, uint16_t node) {
    lg_node k = m->g->node[node];
    uint32_t n = 0;
    for (uint32_t i = 0; i < k.n_item; i++) {
        const lg_node *t = &m->g->node[m->g->item[k.item + i].node];
        if (t->kind != LG_NODE_TEXTS) return false;
        n += t->n_item;
    }
    if (!lg_grammar_make_items(m, node, n)) return false;
    n = 0;
    for (uint32_t i = 0; i < k.n_item; i++) {
        const lg_node *t = &m->g->node[m->g->item[k.item + i].node];
        for (uint32_t j = 0; j < t->n_item; j++)
            *lg_grammar_make_item(m, node, n++) = m->g->item[t->item + j];
    }
    m->g->node[node].kind = LG_NODE_TEXTS;
    return true;
}

/* Whether all values of a node are of the type that stands beside it, as far as their first byte tells. */
static bool is_typed(const lg_grammar_maker *m, uint16_t node, const lg_json *type) {
    static const struct {
        const char *type, *first;
    } row[] = {{"string", "\""}, {"number", "-0123456789"}, {"object", "{"},
               {"array", "["},   {"boolean", "tf"},         {"null", "n"}};
    bool set[256] = {false}, some = false;
    if (!first_bytes(m, target(m, node), set, 0)) return false;
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        bool named = lg_json_is(type, row[i].type);
        for (const lg_json *t = type->kind == LG_JSON_ARRAY ? type->child : NULL; t;
             t = t->next)
            named |= lg_json_is(t, row[i].type);
        for (const char *c = row[i].first; *c; c++) {
            if (set[(uint8_t)*c] && !named) return false;
            some |= set[(uint8_t)*c];
        }
    }
    return some;
}

/* The first byte must tell which alternative it is. */
static bool check_fork(lg_grammar_maker *m, const lg_grammar_fork *f) {
    if (f->type) {
        if (is_typed(m, f->node, f->type)) return true;
        if (m->lax && m->any != LG_NODE_NONE) {
            m->g->node[target(m, f->node)] = m->g->node[m->any];
            return true;
        }
        snprintf(m->path, sizeof m->path, "%s", f->path);
        lg_grammar_make_fail(m, "it excludes what stands beside it");
        return false;
    }
    const lg_node *k = &m->g->node[f->node];
    for (uint32_t i = 0; i < k->n_item;
         i++) /* it was given up, and something else stands for it */
        if (m->g->item[k->item + i].node == LG_NODE_NONE) return true;
    bool seen[256] = {false}, set[256], clash = false;
    for (uint32_t i = 0; i < k->n_item && !clash; i++) {
        memset(set, false, sizeof set);
        clash = !first_bytes(m, m->g->item[k->item + i].node, set, 0);
        for (int c = 0; c < 256; c++) {
            clash |= seen[c] && set[c];
            seen[c] |= set[c];
        }
    }
    if (!clash || merge_texts(m, f->node)) return true;
    if (m->no_memory) return false;
    if (m->lax && m->any != LG_NODE_NONE) {
        m->g->node[f->node] = m->g->node[m->any];
        return true;
    }
    snprintf(m->path, sizeof m->path, "%s", f->path);
    lg_grammar_make_fail(m, "two alternatives begin alike");
    return false;
}

bool lg_grammar_make_finish(lg_grammar_maker *m) {
    if (!resolve(m)) return false;
    for (uint32_t i = 0; i < m->n_fork; i++)
        if (!check_fork(m, &m->fork[i])) return false;
    return true;
}
