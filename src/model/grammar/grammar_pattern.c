/* grammar_pattern.c - strings with a pattern: see grammar.h.
 *
 * In:  the pattern, bounds of the length.   Out: a node; then one byte at a time.
 * In JSON a character is written as it is, but for the quote, the backslash and \b \t \n \f \r, which are written by those
 * escapes; other control characters do not come.
 * Thread: any.  Memory: the grammar's arrays.  Test: tests/unit/test_grammar.c, fuzz/fuzz_grammar.c */
#include "model/grammar/grammar_make.h"

#include <string.h>

uint16_t lg_grammar_make_pattern(lg_grammar_maker *m, const lg_json *pattern, uint32_t low,
                                 uint32_t high, bool raw) {
    lg_grammar *g = m->g;
    uint16_t node = lg_grammar_make_node(m, LG_NODE_PATTERN);
    if (node == LG_NODE_NONE) return node;
    if (pattern->kind != LG_JSON_STRING)
        return lg_grammar_make_fail(m, "pattern: expected a string");
    lg_regex *x = lg_mem_alloc(sizeof *x);
    if (!x || !lg_grammar_make_grow((void **)&g->dfa, &g->cap_dfa, g->n_dfa, sizeof *g->dfa)) {
        lg_mem_free(x);
        return lg_grammar_make_no_memory(m);
    }
    bool ok = lg_grammar_regex_parse(x, pattern->text, pattern->text_len) &&
              lg_grammar_dfa_make(&g->dfa[g->n_dfa], x, low, high, raw, &m->n_cell, &m->n_work);
    if (ok) {
        g->node[node].item = g->n_dfa++;
        g->node[node].low = raw;
    } else if (x->no_memory) {
        node = lg_grammar_make_no_memory(m);
    } else {
        node = lg_grammar_make_fail(m, "pattern '%.60s': %s", pattern->text, x->why);
    }
    lg_mem_free(x);
    return node;
}

/* ---- Stepping ---- */

enum {
    BEFORE,
    INSIDE,
    ESCAPE,
    CHARACTER
}; /* CHARACTER: within one; x bytes to come, v what they add to */

static const char letter[] = "\"\\bfnrt", meant[] = "\"\\\b\f\n\r\t";

/* A character is complete. */
static lg_node_step take(const lg_dfa *d, lg_grammar_frame *f, uint32_t c) {
    uint16_t to = lg_grammar_dfa_step(d, f->a, c);
    if (to == LG_DFA_DEAD) return LG_STEP_NO;
    f->a = to;
    f->b = 0;
    f->v = 0;
    f->phase = INSIDE;
    return LG_STEP_TAKEN;
}

/* Some byte of a character: go on when one that begins so may come.  b: its bytes after the first. */
static lg_node_step take_byte(const lg_dfa *d, lg_grammar_frame *f) {
    static const uint32_t least[] = {0, 0x80, 0x800,
                                     0x10000}; /* shorter forms are no characters */
    uint32_t low = (uint32_t)f->v << 6 * f->x, high = low | ((1u << 6 * f->x) - 1);
    if (low < least[f->b]) low = least[f->b];
    if (high > 0x10ffff) high = 0x10ffff;
    if (low > high) return LG_STEP_NO;
    if (f->x == 0) return take(d, f, low);
    f->phase = CHARACTER;
    return lg_grammar_dfa_any(d, f->a, low, high) ? LG_STEP_TAKEN : LG_STEP_NO;
}

static lg_node_step begin_character(const lg_dfa *d, lg_grammar_frame *f, uint8_t c) {
    if (c < 0xc2 || c > 0xf4) return LG_STEP_NO;
    f->x = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    f->b = f->x;
    f->v = c & (0x3f >> f->x);
    return take_byte(d, f);
}

static bool may_escape(const lg_dfa *d, uint16_t state) {
    for (const char *c = meant; *c; c++)
        if (lg_grammar_dfa_step(d, state, (uint8_t)*c) != LG_DFA_DEAD) return true;
    return false;
}

/* a: state. */
lg_node_step lg_grammar_pattern_step(const lg_grammar *g, const lg_node *k, lg_grammar_frame *f,
                                     uint8_t c) {
    const lg_dfa *d = &g->dfa[k->item];
    bool raw = k->low;
    const char *at;
    if (f->phase == BEFORE && raw) f->phase = INSIDE;
    switch (f->phase) {
    case BEFORE: f->phase = INSIDE; return c == '"' ? LG_STEP_TAKEN : LG_STEP_NO;
    case INSIDE:
        if (c == '"' && !raw) return d->match[f->a] ? LG_STEP_LAST : LG_STEP_NO;
        if (c == '\\' && !raw) {
            f->phase = ESCAPE;
            return may_escape(d, f->a) ? LG_STEP_TAKEN : LG_STEP_NO;
        }
        if (c < 0x20 && !raw) return LG_STEP_NO;
        return c < 0x80 ? take(d, f, c) : begin_character(d, f, c);
    case ESCAPE:
        at = c ? strchr(letter, c) : NULL;
        return at ? take(d, f, (uint8_t)meant[at - letter]) : LG_STEP_NO;
    default:
        if ((c & 0xc0) != 0x80) return LG_STEP_NO;
        f->v = f->v << 6 | (c & 0x3f);
        f->x--;
        return take_byte(d, f);
    }
}

bool lg_grammar_pattern_may_end(const lg_grammar *g, const lg_node *k,
                                const lg_grammar_frame *f) {
    return k->low && f->phase <= INSIDE && g->dfa[k->item].match[f->a];
}

uint32_t lg_grammar_pattern_n_plain(const lg_grammar *g, const lg_node *k,
                                    const lg_grammar_frame *f) {
    if (f->phase != INSIDE && !(k->low && f->phase == BEFORE)) return 0;
    uint16_t n = g->dfa[k->item].plain[f->a];
    return n == LG_DFA_ENDLESS ? UINT32_MAX : n;
}
