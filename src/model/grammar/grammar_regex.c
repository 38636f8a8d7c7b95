/* grammar_regex.c - a regular expression as JSON schemas have it into a tree, and the tree into places: see grammar_dfa.h.
 *
 * In:  the expression's text.   Out: lg_regex.
 * ECMA 262: characters, escapes, classes, groups, alternatives, repetitions, ^ and $.  What looks around, back or at words is
 * refused.
 * Thread: any.  Memory: the arrays of lg_regex, bounded by its limits.  Test: tests/unit/test_grammar.c */
#include "model/grammar/grammar_dfa.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 40, MAX_REPEAT = 1000, MAX_TREE = 4096, MAX_LAY = 50000, TOP = 0x10ffff };

typedef enum { EMPTY, SET, CAT, ALT, REPEAT, BEGIN, END } tree_kind;

typedef struct tree {
    tree_kind kind;
    uint32_t a, b;      /* CAT, ALT: parts; REPEAT: a; SET: a is the set */
    uint32_t low, high; /* REPEAT; high LG_REGEX_NO_MAX: any number */
} tree;

typedef struct parser {
    lg_regex *x;
    const char *s, *end;
    tree *tree; /* [MAX_TREE] */
    uint32_t n_tree;
    lg_regex_span *span; /* of the set at hand, [LG_REGEX_MAX_SPAN] */
    uint32_t n_span, n_lay;
    int depth;
} parser;

static uint32_t fail(lg_regex *x, const char *why) {
    if (!x->why) x->why = why;
    return 0;
}

static uint32_t new_tree(parser *p, tree t) {
    if (p->n_tree == MAX_TREE) return fail(p->x, "it is too long");
    p->tree[p->n_tree] = t;
    return p->n_tree++;
}

/* ---- Sets of characters ---- */

static void add_span(parser *p, uint32_t low, uint32_t high) {
    if (p->n_span == LG_REGEX_MAX_SPAN) {
        fail(p->x, "its classes are too large");
        return;
    }
    p->span[p->n_span++] = (lg_regex_span){low, high};
}

/* Spans in order, without overlap. */
static void tidy(parser *p) {
    for (uint32_t i = 1; i < p->n_span; i++) /* short lists */
        for (uint32_t k = i; k > 0 && p->span[k].low < p->span[k - 1].low; k--) {
            lg_regex_span t = p->span[k];
            p->span[k] = p->span[k - 1];
            p->span[k - 1] = t;
        }
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_span; i++) {
        if (n > 0 && p->span[i].low <= p->span[n - 1].high + 1) {
            if (p->span[i].high > p->span[n - 1].high) p->span[n - 1].high = p->span[i].high;
        } else {
            p->span[n++] = p->span[i];
        }
    }
    p->n_span = n;
}

/* Everything but the spans from `from` on. */
static void invert(parser *p, uint32_t from) {
    parser q = *p;
    q.span = p->span + from;
    q.n_span -= from;
    tidy(&q);
    uint32_t n = q.n_span, at = 0, low = 0;
    lg_regex_span old[64];
    if (n > LG_COUNT(old)) {
        fail(p->x, "its classes are too large");
        return;
    }
    memcpy(old, q.span, n * sizeof old[0]);
    p->n_span = from;
    for (; at < n; at++) {
        if (old[at].low > low) add_span(p, low, old[at].low - 1);
        low = old[at].high + 1;
    }
    if (low <= TOP) add_span(p, low, TOP);
}

/* \d, \w, \s and their opposites; false for another letter. */
static bool add_class(parser *p, char c) {
    static const lg_regex_span digit[] = {{'0', '9'}},
                               word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                               space[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},
                                          {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                          {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                          {0xfeff, 0xfeff}};
    char lower = (char)(c | 32);
    const lg_regex_span *list = lower == 'd' ? digit : lower == 'w' ? word : space;
    size_t n = lower == 'd'   ? LG_COUNT(digit)
               : lower == 'w' ? LG_COUNT(word)
               : lower == 's' ? LG_COUNT(space)
                              : 0;
    uint32_t from = p->n_span;
    for (size_t i = 0; i < n; i++) add_span(p, list[i].low, list[i].high);
    if (n && c != lower) invert(p, from);
    return n > 0;
}

/* The set at hand as a number; equal ones are kept once. */
static uint32_t keep_set(parser *p) {
    lg_regex *x = p->x;
    tidy(p);
    for (uint32_t i = 0; i < x->n_set; i++)
        if (x->set[i].n == p->n_span &&
            memcmp(x->span + x->set[i].first, p->span, p->n_span * sizeof *p->span) == 0)
            return i;
    if (x->n_set == LG_REGEX_MAX_SET || x->n_span + p->n_span > LG_REGEX_MAX_SPAN)
        return fail(x, "it has too many classes");
    x->set[x->n_set] = (lg_regex_set){x->n_span, p->n_span};
    memcpy(x->span + x->n_span, p->span, p->n_span * sizeof *p->span);
    x->n_span += p->n_span;
    return x->n_set++;
}

static uint32_t set_tree(parser *p) {
    return new_tree(p, (tree){.kind = SET, .a = keep_set(p)});
}

/* ---- Characters ---- */

static uint32_t next_char(parser *p) {
    uint32_t c;
    p->s += lg_utf8_next(p->s, (size_t)(p->end - p->s), &c);
    return c == UINT32_MAX ? fail(p->x, "it is no UTF-8") : c;
}

static uint32_t hex(parser *p, int n) {
    uint32_t v = 0;
    for (; n > 0; n--, p->s++) {
        char c = p->s < p->end ? *p->s : 0, lower = (char)(c | 32);
        if (c >= '0' && c <= '9')
            v = 16 * v + (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            v = 16 * v + (uint32_t)(lower - 'a') + 10;
        else
            return fail(p->x, "\\x needs 2 and \\u 4 hexadecimal digits");
    }
    return v;
}

/* After a backslash: a character.  Classes are seen before. */
static uint32_t escaped(parser *p) {
    static const char from[] = "tnrfv", to[] = "\t\n\r\f\v";
    char c = *p->s;
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        p->s++;
        return (uint8_t)to[at - from];
    }
    if (c == 'x' || c == 'u') {
        p->s++;
        uint32_t v = hex(p, c == 'x' ? 2 : 4);
        return v >= 0xd800 && v < 0xe000 ? fail(p->x, "it names half a surrogate pair") : v;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
        return fail(p->x, "\\b, \\B, \\k, \\p, \\c, references and \\0 are not supported");
    return next_char(p);
}

/* One member of a class: true when it is one character, in *c. */
static bool class_member(parser *p, uint32_t *c) {
    if (*p->s != '\\') {
        *c = next_char(p);
        return true;
    }
    if (++p->s == p->end) return fail(p->x, "a backslash is last");
    if (add_class(p, *p->s)) {
        p->s++;
        return false;
    }
    if (*p->s == 'b') {
        p->s++;
        *c = 8;
        return true;
    }
    *c = escaped(p);
    return true;
}

static uint32_t parse_class(parser *p) {
    bool not = p->s < p->end && *p->s == '^';
    p->n_span = 0;
    p->s += not ;
    while (p->s < p->end && *p->s != ']' && !p->x->why) {
        uint32_t low, high;
        if (!class_member(p, &low)) continue;
        high = low;
        if (p->end - p->s >= 2 && p->s[0] == '-' && p->s[1] != ']') {
            p->s++;
            if (!class_member(p, &high)) return fail(p->x, "a class ends a range");
            if (high < low) return fail(p->x, "a range goes down");
        }
        add_span(p, low, high);
    }
    if (p->s == p->end) return fail(p->x, "a [ is not closed");
    p->s++;
    if (not ) invert(p, 0);
    return set_tree(p);
}

/* ---- Structure ---- */

static uint32_t parse_alt(parser *p);

static uint32_t parse_group(parser *p) {
    if (p->s + 1 < p->end && p->s[0] == '?') {
        bool named = p->s[1] == '<' && p->s + 2 < p->end && p->s[2] != '=' && p->s[2] != '!';
        if (p->s[1] != ':' && !named)
            return fail(p->x, "looking ahead and behind and flags are not supported");
        while (named && p->s < p->end && *p->s != '>') p->s++;
        if (p->s == p->end) return fail(p->x, "a group's name does not end");
        p->s += named ? 1 : 2;
    }
    if (++p->depth > MAX_DEPTH) return fail(p->x, "groups are nested too deeply");
    uint32_t t = parse_alt(p);
    p->depth--;
    if (p->s == p->end || *p->s != ')') return fail(p->x, "a ( is not closed");
    p->s++;
    return t;
}

static bool read_counts(const parser *p, const char **end, uint32_t *low, uint32_t *high);

/* Whether a repetition stands at s. */
static bool at_repeat(const parser *p) {
    const char *end;
    uint32_t low, high;
    if (p->s == p->end) return false;
    return *p->s == '*' || *p->s == '+' || *p->s == '?' ||
           (*p->s == '{' && read_counts(p, &end, &low, &high));
}

static uint32_t parse_atom(parser *p) {
    char c = *p->s;
    p->n_span = 0;
    if (at_repeat(p)) return fail(p->x, "nothing stands before a repetition");
    if (c == '(' || c == '[' || c == '^' || c == '$' || c == '.' || c == '\\') p->s++;
    switch (c) {
    case '(': return parse_group(p);
    case '[': return parse_class(p);
    case '^':
    case '$':
        if (at_repeat(p)) return fail(p->x, "^ and $ cannot be repeated");
        return new_tree(p, (tree){.kind = c == '^' ? BEGIN : END});
    case '.':
        add_span(p, '\n', '\n');
        add_span(p, '\r', '\r');
        add_span(p, 0x2028, 0x2029);
        invert(p, 0);
        return set_tree(p);
    case '\\':
        if (p->s == p->end) return fail(p->x, "a backslash is last");
        if (add_class(p, *p->s)) {
            p->s++;
            return set_tree(p);
        }
        break;
    default: break;
    }
    uint32_t one = c == '\\' ? escaped(p) : next_char(p);
    add_span(p, one, one);
    return set_tree(p);
}

/* {n}, {n,} or {n,m} at s; anything else is text. */
static bool read_counts(const parser *p, const char **end, uint32_t *low, uint32_t *high) {
    const char *s = p->s + 1;
    uint32_t v[2] = {0, LG_REGEX_NO_MAX};
    int n_digit[2] = {0, 0}, i = 0;
    for (; s < p->end && *s != '}'; s++) {
        if (*s == ',' && i == 0) {
            i = 1;
            continue;
        }
        if (*s < '0' || *s > '9') return false;
        if (n_digit[i]++ == 0) v[i] = 0;
        if (v[i] <= MAX_REPEAT) v[i] = 10 * v[i] + (uint32_t)(*s - '0');
    }
    if (s == p->end || !n_digit[0]) return false;
    *low = v[0];
    *high = i == 0 ? v[0] : v[1];
    *end = s + 1;
    return true;
}

static uint32_t parse_repeat(parser *p, uint32_t t) {
    uint32_t low = 0, high = LG_REGEX_NO_MAX;
    const char *end = p->s + 1;
    if (p->s == p->end) return t;
    switch (*p->s) {
    case '*': break;
    case '+': low = 1; break;
    case '?': high = 1; break;
    case '{':
        if (read_counts(p, &end, &low, &high)) break;
        return t;
    default: return t;
    }
    if (low > MAX_REPEAT || (high > MAX_REPEAT && high != LG_REGEX_NO_MAX))
        return fail(p->x, "a part is repeated more than 1000 times");
    if (low > high) return fail(p->x, "a repetition's bounds are the wrong way round");
    p->s = end;
    if (p->s < p->end && *p->s == '?') p->s++; /* lazy: the same texts */
    if (at_repeat(p)) return fail(p->x, "a repetition is repeated");
    return new_tree(p, (tree){.kind = REPEAT, .a = t, .low = low, .high = high});
}

static uint32_t parse_alt(parser *p) {
    uint32_t all = 0, seq = 0;
    bool any = false, some = false;
    for (;; p->s++) {
        seq = 0;
        some = false;
        while (p->s < p->end && *p->s != '|' && *p->s != ')' && !p->x->why) {
            uint32_t t = parse_repeat(p, parse_atom(p));
            seq = some ? new_tree(p, (tree){.kind = CAT, .a = seq, .b = t}) : t;
            some = true;
        }
        if (!some) seq = new_tree(p, (tree){.kind = EMPTY});
        all = any ? new_tree(p, (tree){.kind = ALT, .a = all, .b = seq}) : seq;
        any = true;
        if (p->x->why || p->s == p->end || *p->s == ')') return all;
    }
}

/* ---- Places ---- */

static uint32_t new_place(lg_regex *x, lg_regex_place at) {
    if (x->n_place == LG_REGEX_MAX_PLACE) return fail(x, "it is too long");
    x->place[x->n_place] = at;
    return x->n_place++;
}

/* The place where t begins, with `next` behind it. */
static uint32_t lay(parser *p, uint32_t i, uint32_t next) {
    lg_regex *x = p->x;
    const tree *t = &p->tree[i];
    uint32_t at = next;
    if (p->n_lay++ == MAX_LAY) return fail(x, "it is too long"); /* repetitions of nothing */
    if (x->why) return 0;
    switch (t->kind) {
    case EMPTY: return next;
    case SET: return new_place(x, (lg_regex_place){LG_REGEX_CHAR, t->a, next});
    case BEGIN: return new_place(x, (lg_regex_place){LG_REGEX_BEGIN, next, 0});
    case END: return new_place(x, (lg_regex_place){LG_REGEX_END, next, 0});
    case CAT: return lay(p, t->a, lay(p, t->b, next));
    case ALT: {
        uint32_t a = lay(p, t->a, next), b = lay(p, t->b, next);
        return new_place(x, (lg_regex_place){LG_REGEX_FORK, a, b});
    }
    case REPEAT: break;
    }
    if (t->high == LG_REGEX_NO_MAX) {
        at = new_place(x, (lg_regex_place){LG_REGEX_FORK, 0, next});
        uint32_t body = lay(p, t->a, at);
        if (!x->why) x->place[at].a = body;
    } else {
        for (uint32_t n = t->low; n < t->high && !x->why; n++)
            at = new_place(x, (lg_regex_place){LG_REGEX_FORK, lay(p, t->a, at), next});
    }
    for (uint32_t n = 0; n < t->low && !x->why; n++) at = lay(p, t->a, at);
    return at;
}

bool lg_grammar_regex_parse(lg_regex *x, const char *text, size_t len_bytes) {
    parser p = {.x = x, .s = text, .end = text + len_bytes};
    x->why = NULL;
    x->n_place = x->n_set = x->n_span = 0;
    if (len_bytes > LG_REGEX_MAX_BYTES) return fail(x, "it is longer than 1000 bytes");
    p.tree = lg_mem_calloc(MAX_TREE, sizeof *p.tree);
    p.span = lg_mem_calloc(LG_REGEX_MAX_SPAN, sizeof *p.span);
    if (!p.tree || !p.span) {
        x->no_memory = true;
        fail(x, "no memory");
    } else {
        uint32_t t = parse_alt(&p);
        if (!x->why && p.s != p.end) fail(x, "a ) closes nothing");
        /* any text before it, and, as the end is a place that stays, behind it */
        p.n_span = 0;
        add_span(&p, 0, TOP);
        uint32_t all = keep_set(&p), done = new_place(x, (lg_regex_place){LG_REGEX_DONE, 0, 0});
        x->done = done;
        uint32_t start = lay(&p, t, done);
        uint32_t fork = new_place(x, (lg_regex_place){LG_REGEX_FORK, 0, start});
        uint32_t any = new_place(x, (lg_regex_place){LG_REGEX_CHAR, all, fork});
        if (!x->why) x->place[fork].a = any;
        x->start = fork;
    }
    lg_mem_free(p.tree);
    lg_mem_free(p.span);
    return !x->why;
}
