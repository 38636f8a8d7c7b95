/* grammar.c - a text against a grammar, byte by byte: see grammar.h.
 *
 * In:  nodes, a state, a byte.   Out: the next state, or no.
 * A state is a stack of frames; the one on top takes the byte, or is done and leaves it to the one below, or puts a frame on
 * top for what is inside of it.  Each kind of node has one function; it is deterministic: one byte decides.
 * Thread: any.  Memory: the caller's state.  Test: tests/unit/test_grammar.c */
#include "model/grammar/grammar_node.h"

#include <string.h>

enum { MAX_INDENT = 32, MAX_DIGIT = 20 };

typedef enum { NO, TAKEN, AGAIN } verdict; /* AGAIN: the frame on top has changed, ask it */

typedef struct walk {
    const lg_grammar *g;
    lg_grammar_state *s;
} walk;

static lg_grammar_frame *top(walk *w) {
    return &w->s->frame[w->s->n - 1];
}

static verdict pop(walk *w, verdict v) {
    w->s->n--;
    return v;
}

static verdict push(walk *w, uint16_t node) {
    if (w->s->n == LG_GRAMMAR_DEPTH) return NO;
    w->s->frame[w->s->n++] = (lg_grammar_frame){.node = node};
    return AGAIN;
}

static const lg_node_item *item_of(const walk *w, const lg_node *k, uint32_t i) {
    return &w->g->item[k->item + i];
}

/* ---- Texts of which one is to come ---- */

/* The first of items [from, to) that begins with the n bytes of item `like` and byte c; UINT32_MAX: none. */
static uint32_t next_text(const walk *w, const lg_node *k, uint32_t from, uint32_t to,
                          uint32_t like, uint32_t n, uint8_t c) {
    const char *same = n ? item_of(w, k, like)->text : NULL;
    for (uint32_t i = from; i < to; i++) {
        const lg_node_item *it = item_of(w, k, i);
        if (it->len_bytes > n && (uint8_t)it->text[n] == c &&
            (n == 0 || memcmp(it->text, same, n) == 0))
            return i;
    }
    return UINT32_MAX;
}

/* Whether one of the items is exactly the n bytes of item `like`. */
static bool is_text(const walk *w, const lg_node *k, uint32_t like, uint32_t n) {
    const char *same = item_of(w, k, like)->text;
    for (uint32_t i = 0; i < k->n_item; i++) {
        const lg_node_item *it = item_of(w, k, i);
        if (it->len_bytes == n && (n == 0 || memcmp(it->text, same, n) == 0)) return true;
    }
    return false;
}

/* a: bytes so far; b: an item that begins with them. */
static verdict step_texts(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    uint32_t i = next_text(w, k, 0, k->n_item, f->b, f->a, c);
    if (i == UINT32_MAX) return is_text(w, k, f->b, f->a) ? pop(w, AGAIN) : NO;
    f->b = (uint16_t)i;
    f->a++;
    return k->n_item == 1 && f->a == item_of(w, k, 0)->len_bytes ? pop(w, TAKEN) : TAKEN;
}

/* ---- Values ---- */

/* Count one more in f->a, as far as it matters: equal states have equal masks. */
static void count(const lg_node *k, lg_grammar_frame *f) {
    uint16_t most = k->high == LG_NODE_NO_MAX ? k->low : k->high;
    if (f->a < most) f->a++;
}

static bool is_hex(uint8_t c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

/* phase 0: before the quote; 1: inside; 2: after \; 3: within a code point, b: its next byte's range; 4: \u.  a: code points. */
static verdict step_string(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    switch (f->phase) {
    case 0: f->phase = 1; return c == '"' ? TAKEN : NO;
    case 1:
        if (c == '"') return f->a >= k->low ? pop(w, TAKEN) : NO;
        if (c < 0x20 || (c >= 0x80 && c < 0xc2) || c > 0xf4) return NO;
        if (f->a == k->high && k->high != LG_NODE_NO_MAX) return NO;
        count(k, f);
        if (c == '\\') f->phase = 2;
        if (c < 0x80) return TAKEN;
        f->phase = 3;
        f->x = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
        f->b = (uint16_t)((c == 0xe0   ? 0xa0
                           : c == 0xf0 ? 0x90
                                       : 0x80)
                              << 8 |
                          (c == 0xed   ? 0x9f
                           : c == 0xf4 ? 0x8f
                                       : 0xbf));
        return TAKEN;
    case 2:
        f->phase = c == 'u' ? 4 : 1;
        f->x = 0;
        return c == 'u' || (c && strchr("\"\\/bfnrt", c)) ? TAKEN : NO;
    case 3:
        if (c < f->b >> 8 || c > (f->b & 0xff)) return NO;
        f->b = 0x80bf;
        if (--f->x == 0) f->phase = 1;
        return TAKEN;
    default: /* a surrogate, \ud8.. to \udf.., could be a lone one */
        if (!is_hex(c) || (f->x == 1 && f->b && c > '7')) return NO;
        f->b = f->x == 0 && (c | 32) == 'd';
        if (++f->x == 4) f->phase = 1;
        return TAKEN;
    }
}

enum { START, MINUS, ZERO, DIGITS, POINT, FRACTION, EXPONENT, SIGN, POWER };

static bool number_may_end(uint8_t phase) {
    return phase == ZERO || phase == DIGITS || phase == FRACTION || phase == POWER;
}

/* a: digits so far, or those of the power. */
static verdict step_number(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    bool digit = c >= '0' && c <= '9', e = (c | 32) == 'e' && !k->low;
    uint8_t next = START;
    switch (f->phase) {
    case START:
    case MINUS:
        next = c == '0' ? ZERO : digit ? DIGITS : c == '-' && f->phase == START ? MINUS : START;
        break;
    case ZERO:
    case DIGITS:
        next = digit && f->phase == DIGITS ? DIGITS
               : c == '.' && !k->low       ? POINT
               : e                         ? EXPONENT
                                           : START;
        break;
    case POINT:
    case FRACTION:
        next = digit ? FRACTION : e && f->phase == FRACTION ? EXPONENT : START;
        break;
    case EXPONENT:
        next = digit ? POWER : c == '-' || c == '+' ? SIGN : START;
        f->a = MAX_DIGIT - 2;
        break;
    default: next = digit ? POWER : START; break;
    }
    if (next != START && digit) {
        if (f->a >= MAX_DIGIT) return NO;
        f->a++;
    }
    if (next == START) return number_may_end(f->phase) ? pop(w, AGAIN) : NO;
    f->phase = next;
    return TAKEN;
}

static bool is_blank(uint8_t c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* White space as printers of JSON write it: one space, or a line feed and an indentation.  More of it is how a model without
 * a better idea fills its answer.  n_blank: 1 after the space, 2 and up after the line feed. */
static verdict blank(walk *w, uint8_t c) {
    uint16_t *n = &w->s->n_blank;
    if (*n == 0 && (c == ' ' || c == '\n'))
        *n = c == ' ' ? 1 : 2;
    else if (*n >= 2 && *n < 2 + MAX_INDENT && (c == ' ' || c == '\t'))
        ++*n;
    else
        return NO;
    return TAKEN;
}

/* Where the properties end of which one may come after the first `from`: at the first that must. */
static uint32_t last_of(const walk *w, const lg_node *k, uint32_t from, bool *needed) {
    *needed = false;
    for (uint32_t i = from; i < k->n_item; i++)
        if (item_of(w, k, i)->needed) {
            *needed = true;
            return i + 1;
        }
    return k->n_item;
}

/* phase 0: before {; 1: after it; 2: in a name, x bytes of it, those of item b; 3: before the colon; 4: before the value; 5: after
 * it; 6: after a comma.  a: properties before it are past. */
static verdict step_object(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    bool needed;
    uint32_t end = last_of(w, k, f->a, &needed), i;
    if (f->phase != 0 && f->phase != 2 && f->phase != 3 && is_blank(c)) return blank(w, c);
    switch (f->phase) {
    case 0: f->phase = 1; return c == '{' ? TAKEN : NO;
    case 1:
    case 6:
        if (c == '}' && f->phase == 1 && !needed) return pop(w, TAKEN);
        f->phase = 2;
        f->x = 0;
        return c == '"' ? AGAIN : NO;
    case 2:
        if ((i = next_text(w, k, f->a, end, f->b, f->x, c)) == UINT32_MAX) return NO;
        f->b = (uint16_t)i;
        if (++f->x == item_of(w, k, i)->len_bytes) f->phase = 3;
        return TAKEN;
    case 3: f->phase = 4; return c == ':' ? TAKEN : NO;
    case 4:
        f->phase = 5;
        f->a = (uint16_t)(f->b + 1);
        return push(w, item_of(w, k, f->b)->node);
    default:
        if (c == '}' && !needed) return pop(w, TAKEN);
        f->phase = 6;
        return c == ',' && f->a < k->n_item ? TAKEN : NO;
    }
}

/* The same with any names. */
static verdict step_map(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    if (f->phase != 0 && f->phase != 3 && is_blank(c)) return blank(w, c);
    switch (f->phase) {
    case 0: f->phase = 1; return c == '{' ? TAKEN : NO;
    case 1:
    case 6:
        if (c == '}' && f->phase == 1) return pop(w, TAKEN);
        f->phase = 3;
        return c == '"' ? push(w, k->low) : NO; /* low: the node of names */
    case 3: f->phase = 4; return c == ':' ? TAKEN : NO;
    case 4: f->phase = 5; return push(w, k->child);
    default:
        if (c == '}') return pop(w, TAKEN);
        f->phase = 6;
        return c == ',' ? TAKEN : NO;
    }
}

/* phase 0: before [; 1: after it; 2: after an item; 3: after a comma.  a: items. */
static verdict step_array(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    bool room = f->a < k->high || k->high == LG_NODE_NO_MAX;
    if (f->phase != 0 && is_blank(c)) return blank(w, c);
    switch (f->phase) {
    case 0: f->phase = 1; return c == '[' ? TAKEN : NO;
    case 1:
        if (c == ']') return k->low == 0 ? pop(w, TAKEN) : NO;
        break;
    case 2:
        if (c == ']') return f->a >= k->low ? pop(w, TAKEN) : NO;
        f->phase = 3;
        return c == ',' && room ? TAKEN : NO;
    default: break;
    }
    if (!room) return NO;
    count(k, f);
    f->phase = 2;
    return push(w, k->child);
}

/* ---- Around values ---- */

/* Whether a value of the node may begin with c. */
static bool begins(const walk *w, uint16_t node, uint8_t c) {
    const lg_node *k = &w->g->node[node];
    switch (k->kind) {
    case LG_NODE_STRING:
    case LG_NODE_PATTERN: return c == '"';
    case LG_NODE_NUMBER: return c == '-' || (c >= '0' && c <= '9');
    case LG_NODE_RANGE: return lg_grammar_range_begins(w->g, k, c);
    case LG_NODE_OBJECT:
    case LG_NODE_MAP: return c == '{';
    case LG_NODE_ARRAY: return c == '[';
    case LG_NODE_TEXTS: return next_text(w, k, 0, k->n_item, 0, 0, c) != UINT32_MAX;
    case LG_NODE_CHOICE:
        for (uint32_t i = 0; i < k->n_item; i++)
            if (begins(w, item_of(w, k, i)->node, c)) return true;
        return false;
    default: return true;
    }
}

static verdict step_choice(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    for (uint32_t i = 0; i < k->n_item; i++) {
        uint16_t node = item_of(w, k, i)->node;
        if (!begins(w, node, c)) continue;
        *f = (lg_grammar_frame){.node = node};
        return AGAIN;
    }
    return NO;
}

static verdict step_seq(walk *w, const lg_node *k, lg_grammar_frame *f) {
    if (f->a == k->n_item) return pop(w, AGAIN);
    return push(w, item_of(w, k, f->a++)->node);
}

/* phase: bytes of </think>; x: bytes of <tool_call>, which would end the thinking too early. */
static verdict step_think(walk *w, lg_grammar_frame *f, uint8_t c) {
    static const char close[] = "</think>", call[] = "<tool_call>";
    f->phase = c == (uint8_t)close[f->phase] ? f->phase + 1 : c == '<';
    f->x = c == (uint8_t)call[f->x] ? f->x + 1 : c == '<';
    if (f->x == sizeof call - 1) return NO;
    return f->phase == sizeof close - 1 ? pop(w, TAKEN) : TAKEN;
}

static verdict step_lines(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    if (c != '\n' || f->a == k->high) return pop(w, AGAIN);
    f->a++;
    return TAKEN;
}

/* phase: bytes of </parameter>; x: a line feed stood before it that may be the end's.  The tag itself may only stand at the end.
 * a: code points so far, without those of x and phase, which are the value's only when something else follows; v: bytes of one
 * that are to come.  A line feed before the least length is no end's, so the end can always be reached once it is begun. */
static verdict step_raw(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    static const char close[] = "</parameter>";
    bool within = (c & 0xc0) == 0x80 && f->v > 0, end;
    uint32_t most = k->high == LG_NODE_NO_MAX ? UINT32_MAX : k->high, n = f->a;
    if (f->phase && c == (uint8_t)close[f->phase]) {
        if (!f->x && n + f->phase + 1 > most) return NO;
        if (++f->phase < sizeof close - 1) return TAKEN;
        return f->x ? pop(w, TAKEN) : NO;
    }
    if (f->x && c == '<' && f->phase == 0) {
        f->phase = 1;
        return TAKEN;
    }
    n += f->x + f->phase;
    end = c == '\n' && n >= k->low;
    if (n + (!within && !end) > most) return NO;
    f->v = within ? f->v - 1 : c < 0xc2 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : 0;
    f->x = end;
    f->phase = c == '<';
    n += !within && !end && !f->phase;
    if (k->high == LG_NODE_NO_MAX && n > k->low) n = k->low;
    f->a = (uint16_t)n;
    return TAKEN;
}

/* phase 0: in a head, x bytes of it, those of item b; 1: after a call.  a: calls. */
static verdict step_calls(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    uint32_t i;
    if (f->phase == 1) {
        if (c != '\n' || f->a == k->high) return NO;
        f->phase = 0;
        f->x = 0;
        return TAKEN;
    }
    if ((i = next_text(w, k, 0, k->n_item, f->b, f->x, c)) == UINT32_MAX) return NO;
    f->b = (uint16_t)i;
    if (++f->x < item_of(w, k, i)->len_bytes) return TAKEN;
    f->phase = 1;
    count(k, f);
    return push(w, item_of(w, k, i)->node) == NO ? NO : TAKEN;
}

/* x bytes of a tag, those of item b; a: parameters before it are past. */
static verdict step_params(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    bool needed;
    uint32_t end = last_of(w, k, f->a, &needed), i;
    if ((i = next_text(w, k, f->a, end, f->b, f->x, c)) == UINT32_MAX) return NO;
    f->b = (uint16_t)i;
    if (++f->x < item_of(w, k, i)->len_bytes) return TAKEN;
    if (i + 1 == k->n_item) return pop(w, TAKEN); /* the closing tags */
    f->x = 0;
    f->a = (uint16_t)(i + 1);
    return push(w, item_of(w, k, i)->node) == NO ? NO : TAKEN;
}

/* ---- Bounds and patterns ---- */

static bool part_may_end(const lg_grammar *g, const lg_node *k, const lg_grammar_frame *f) {
    return k->kind == LG_NODE_RANGE ? lg_grammar_range_may_end(g, k, f)
                                    : lg_grammar_pattern_may_end(g, k, f);
}

static verdict step_part(walk *w, const lg_node *k, lg_grammar_frame *f, uint8_t c) {
    lg_node_step s = k->kind == LG_NODE_RANGE ? lg_grammar_range_step(w->g, k, f, c)
                                              : lg_grammar_pattern_step(w->g, k, f, c);
    if (s == LG_STEP_TAKEN) return TAKEN;
    if (s == LG_STEP_LAST) return pop(w, TAKEN);
    return part_may_end(w->g, k, f) ? pop(w, AGAIN) : NO;
}

/* ---- Interface ---- */

static verdict step(walk *w, uint8_t c) {
    lg_grammar_frame *f = top(w);
    const lg_node *k = &w->g->node[f->node];
    switch (k->kind) {
    case LG_NODE_STRING: return step_string(w, k, f, c);
    case LG_NODE_NUMBER: return step_number(w, k, f, c);
    case LG_NODE_RANGE:
    case LG_NODE_PATTERN: return step_part(w, k, f, c);
    case LG_NODE_TEXTS: return step_texts(w, k, f, c);
    case LG_NODE_OBJECT: return step_object(w, k, f, c);
    case LG_NODE_MAP: return step_map(w, k, f, c);
    case LG_NODE_ARRAY: return step_array(w, k, f, c);
    case LG_NODE_CHOICE: return step_choice(w, k, f, c);
    case LG_NODE_SEQ: return step_seq(w, k, f);
    case LG_NODE_THINK: return step_think(w, f, c);
    case LG_NODE_LINES: return step_lines(w, k, f, c);
    case LG_NODE_RAW: return step_raw(w, k, f, c);
    case LG_NODE_CALLS: return step_calls(w, k, f, c);
    case LG_NODE_PARAMS: return step_params(w, k, f, c);
    }
    return NO;
}

bool lg_grammar_step(const lg_grammar *g, lg_grammar_state *s, uint8_t byte) {
    walk w = {g, s};
    uint16_t n_blank = s->n_blank;
    while (s->n > 0) {
        verdict v = step(&w, byte);
        if (v == NO) return false;
        if (v == AGAIN) continue;
        if (s->n_blank == n_blank) s->n_blank = 0; /* it was no white space */
        return true;
    }
    return false;
}

uint32_t lg_grammar_n_plain(const lg_grammar *g, const lg_grammar_state *s) {
    if (s->n == 0) return 0;
    const lg_grammar_frame *f = &s->frame[s->n - 1];
    const lg_node *k = &g->node[f->node];
    switch (k->kind) {
    case LG_NODE_STRING:
        if (f->phase != 1) return 0;
        return k->high == LG_NODE_NO_MAX ? UINT32_MAX : (uint32_t)(k->high - f->a);
    case LG_NODE_PATTERN: return lg_grammar_pattern_n_plain(g, k, f);
    case LG_NODE_THINK: return f->phase == 0 && f->x == 0 ? UINT32_MAX : 0;
    case LG_NODE_RAW:
        if (f->phase != 0) return 0;
        if (k->high == LG_NODE_NO_MAX) return UINT32_MAX;
        return k->high > f->a + f->x ? (uint32_t)(k->high - f->a - f->x) : 0;
    default: return 0;
    }
}

bool lg_grammar_may_end(const lg_grammar *g, const lg_grammar_state *s) {
    walk w = {g, (lg_grammar_state *)s};
    for (uint32_t i = s->n; i-- > 0;) {
        const lg_grammar_frame *f = &s->frame[i];
        const lg_node *k = &g->node[f->node];
        bool done = (k->kind == LG_NODE_NUMBER && number_may_end(f->phase)) ||
                    ((k->kind == LG_NODE_RANGE || k->kind == LG_NODE_PATTERN) &&
                     part_may_end(g, k, f)) ||
                    (k->kind == LG_NODE_TEXTS && is_text(&w, k, f->b, f->a)) ||
                    (k->kind == LG_NODE_SEQ && f->a == k->n_item) ||
                    (k->kind == LG_NODE_CALLS && f->phase == 1);
        if (!done) return false;
    }
    return true;
}

void lg_grammar_begin(const lg_grammar *g, bool think, lg_grammar_state *s) {
    /* the root is thinking, line feeds, the answer */
    const lg_node *root = &g->node[g->root];
    s->n = think ? 2 : 1;
    s->n_blank = 0;
    s->frame[0] = (lg_grammar_frame){.node = g->root, .a = think ? 1 : 2};
    s->frame[1] = (lg_grammar_frame){.node = g->item[root->item].node};
}

void lg_grammar_copy(lg_grammar_state *to, const lg_grammar_state *from) {
    to->n = from->n;
    to->n_blank = from->n_blank;
    memcpy(to->frame, from->frame, from->n * sizeof from->frame[0]);
}

bool lg_grammar_same(const lg_grammar_state *a, const lg_grammar_state *b) {
    return a->n == b->n && a->n_blank == b->n_blank &&
           memcmp(a->frame, b->frame, a->n * sizeof a->frame[0]) == 0;
}
