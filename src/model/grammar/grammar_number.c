/* grammar_number.c - numbers with bounds: see grammar.h.
 *
 * In:  minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf.   Out: a node; then one byte at a time.
 * Such a number is written without an exponent, in at most 18 digits, 9 of them after the point (fewer where a bound needs more
 * before it); it is counted in units of its last possible digit, so that everything is whole numbers below 10^18.  What was written
 * so far stands for the values [low, high] that it may become; a digit is taken only when one of these is allowed, so there is
 * always a way on.
 * Thread: any.  Memory: the grammar's arrays.  Test: tests/unit/test_grammar.c, fuzz/fuzz_grammar.c */
#include "model/grammar/grammar_make.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DIGIT = 18, MAX_SCALE = 9, FAR = 100000 };

#define LIMIT  ((int64_t)999999999999999999)
#define BEYOND (2 * LIMIT) /* stands for anything further away */

static const uint64_t power10[MAX_DIGIT + 1] = {1,
                                                10,
                                                100,
                                                1000,
                                                10000,
                                                100000,
                                                1000000,
                                                10000000,
                                                100000000,
                                                1000000000,
                                                10000000000,
                                                100000000000,
                                                1000000000000,
                                                10000000000000,
                                                100000000000000,
                                                1000000000000000,
                                                10000000000000000,
                                                100000000000000000,
                                                1000000000000000000};

/* ---- Making ---- */

/* A JSON number: 0.DIGITS times 10^point, the first digit not 0. */
typedef struct decimal {
    bool negative, more; /* digits were left out that are not all 0 */
    char digit[40];
    int n, point;
} decimal;

static decimal read_decimal(const char *s) {
    decimal d = {.negative = *s == '-'};
    bool after = false;
    long e = 0, sign = 1;
    for (s += d.negative; (*s >= '0' && *s <= '9') || *s == '.'; s++) {
        if (*s == '.') {
            after = true;
            continue;
        }
        bool leading = d.n == 0 && *s == '0';
        if (!after && !leading && d.point < FAR) d.point++;
        if (after && leading && d.point > -FAR) d.point--;
        if (leading) continue;
        if (d.n < (int)sizeof d.digit)
            d.digit[d.n++] = *s;
        else
            d.more |= *s != '0';
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '-' || *s == '+') sign = *s++ == '-' ? -1 : 1;
        for (; *s >= '0' && *s <= '9'; s++)
            if (e < FAR) e = 10 * e + (*s - '0');
    }
    d.point += (int)(sign * e);
    return d;
}

/* In units of 10^-scale, rounded up or down; *exact: nothing was rounded. */
static int64_t scale_decimal(const decimal *d, int scale, bool up, bool *exact) {
    int n = d->point + scale; /* digits before the point */
    int64_t v = 0;
    bool rest = d->more;
    if (d->n == 0) n = 0;
    for (int i = n > 0 ? n : 0; i < d->n; i++) rest |= d->digit[i] != '0';
    if (n > MAX_DIGIT) {
        *exact = false;
        return d->negative ? -BEYOND : BEYOND;
    }
    for (int i = 0; i < n; i++) v = 10 * v + (i < d->n ? d->digit[i] - '0' : 0);
    if (rest && up != d->negative) v++;
    *exact = !rest;
    return d->negative ? -v : v;
}

static const char *const bound_name[] = {"minimum", "exclusiveMinimum", "maximum",
                                         "exclusiveMaximum", "multipleOf"};
enum { MIN, MIN_OPEN, MAX, MAX_OPEN, MULTIPLE, N_BOUND };

bool lg_grammar_make_bounded(const lg_json *schema) {
    for (int i = 0; i < N_BOUND; i++)
        if (lg_json_get(schema, bound_name[i])) return true;
    return false;
}

/* Whether a multiple lies in [from, to], as far as the range goes on this side of 0. */
static bool fits(const lg_node_range *r, bool negative, uint64_t from, uint64_t to) {
    if (!r->some[negative]) return false;
    uint64_t low = r->low[negative], high = r->high[negative];
    if (from > low) low = from;
    if (to < high) high = to;
    return low <= high && high / r->multiple * r->multiple >= low;
}

/* The range [low, high] as two of magnitudes: from 0 up, and below 0. */
static void split(lg_node_range *r, int64_t low, int64_t high) {
    if (low < -LIMIT) low = -LIMIT;
    if (high > LIMIT) high = LIMIT;
    if (low > high) return;
    if (high >= 0) {
        r->some[0] = true;
        r->low[0] = low > 0 ? (uint64_t)low : 0;
        r->high[0] = (uint64_t)high;
    }
    if (low < 0) {
        r->some[1] = true;
        r->low[1] = high < 0 ? (uint64_t)-high : 1;
        r->high[1] = (uint64_t)-low;
    }
    for (int side = 0; side < 2; side++)
        r->some[side] = fits(r, side, r->low[side], r->high[side]);
}

static uint16_t add_range(lg_grammar_maker *m, const lg_node_range *r) {
    lg_grammar *g = m->g;
    uint16_t node = lg_grammar_make_node(m, LG_NODE_RANGE);
    if (node == LG_NODE_NONE) return node;
    if (!lg_grammar_make_grow((void **)&g->range, &g->cap_range, g->n_range, sizeof *g->range))
        return lg_grammar_make_no_memory(m);
    g->node[node].item = g->n_range;
    g->range[g->n_range++] = *r;
    return node;
}

uint16_t lg_grammar_make_range(lg_grammar_maker *m, const lg_json *schema, bool integer) {
    decimal bound[N_BOUND];
    const lg_json *given[N_BOUND];
    lg_node_range r = {.scale = integer ? 0 : MAX_SCALE, .multiple = 1};
    int64_t low = -LIMIT, high = LIMIT, v;
    bool exact;
    for (int i = 0; i < N_BOUND; i++) {
        given[i] = lg_json_get(schema, bound_name[i]);
        if (!given[i]) continue;
        if (given[i]->kind != LG_JSON_NUMBER)
            return lg_grammar_make_fail(m, "%s: expected a number", bound_name[i]);
        bound[i] = read_decimal(given[i]->text);
        int room = MAX_DIGIT - bound[i].point;
        if (bound[i].n && room >= 0 && room < r.scale) r.scale = (uint8_t)room;
    }
    for (int i = 0; i < N_BOUND; i++) {
        if (!given[i]) continue;
        bool open = i == MIN_OPEN || i == MAX_OPEN, down = i == MIN_OPEN || i == MAX;
        v = scale_decimal(&bound[i], r.scale, !down, &exact);
        if ((i == MIN || i == MIN_OPEN) && v + open > low) low = v + open;
        if ((i == MAX || i == MAX_OPEN) && v - open < high) high = v - open;
        if (i != MULTIPLE) continue;
        if (v <= 0 || !exact)
            return lg_grammar_make_fail(
                m, "multipleOf: found %.30s, expected more than 0 with at most %u decimals",
                given[i]->text, r.scale);
        r.multiple = (uint64_t)v;
    }
    split(&r, low, high);
    if (!r.some[0] && !r.some[1])
        return lg_grammar_make_fail(m,
                                    "no number of at most %d digits fits minimum, maximum and "
                                    "multipleOf",
                                    MAX_DIGIT);
    return add_range(m, &r);
}

/* ---- Stepping ---- */

enum { START, MINUS, DIGITS, POINT, FRACTION };

/* Whether n digits of the value v can become a number: as they are with a fraction, or with more digits before it. */
static bool may_become(const lg_node_range *r, bool negative, uint64_t v, int n) {
    uint64_t one = power10[r->scale];
    for (; n <= MAX_DIGIT - r->scale; n++, v *= 10, one *= 10) {
        if (fits(r, negative, v * power10[r->scale], v * power10[r->scale] + one - 1))
            return true;
        if (v == 0) return false; /* no digits after a leading 0 */
    }
    return false;
}

bool lg_grammar_range_may_end(const lg_grammar *g, const lg_node *k,
                              const lg_grammar_frame *f) {
    const lg_node_range *r = &g->range[k->item];
    uint64_t v = f->v * power10[r->scale - f->b];
    return (f->phase == DIGITS || f->phase == FRACTION) && fits(r, f->x, v, v);
}

bool lg_grammar_range_begins(const lg_grammar *g, const lg_node *k, uint8_t c) {
    const lg_node_range *r = &g->range[k->item];
    if (c == '-') return r->some[1];
    return c >= '0' && c <= '9' && may_become(r, false, c - '0', 1);
}

/* a: digits before the point; b: after it; x: below 0; v: all of them. */
lg_node_step lg_grammar_range_step(const lg_grammar *g, const lg_node *k, lg_grammar_frame *f,
                                   uint8_t c) {
    const lg_node_range *r = &g->range[k->item];
    bool digit = c >= '0' && c <= '9';
    uint64_t v = f->v * 10 + (digit ? c - '0' : 0), one;
    switch (f->phase) {
    case START:
        if (c == '-' && r->some[1]) {
            f->phase = MINUS;
            f->x = 1;
            return LG_STEP_TAKEN;
        } /* fall through */
    case MINUS:
        if (!digit || !may_become(r, f->x, v, 1)) return LG_STEP_NO;
        f->phase = DIGITS;
        break;
    case DIGITS:
        if (c == '.') {
            one = power10[r->scale];
            if (r->scale == 0 || !fits(r, f->x, f->v * one, f->v * one + one - 1))
                return LG_STEP_NO;
            f->phase = POINT;
            return LG_STEP_TAKEN;
        }
        if (!digit || f->v == 0 || f->a == MAX_DIGIT - r->scale ||
            !may_become(r, f->x, v, f->a + 1))
            return LG_STEP_NO;
        break;
    default:
        if (!digit || f->b == r->scale) return LG_STEP_NO;
        one = power10[r->scale - f->b - 1];
        if (!fits(r, f->x, v * one, v * one + one - 1)) return LG_STEP_NO;
        f->phase = FRACTION;
        f->v = v;
        f->b++;
        return LG_STEP_TAKEN;
    }
    f->v = v;
    f->a++;
    return LG_STEP_TAKEN;
}
