/* grammar_dfa.c - the places of a regular expression into a table of states: see grammar_dfa.h.
 *
 * In:  lg_regex, bounds of the length.   Out: lg_dfa.
 * Characters that no set tells apart share a class.  A state is the set of places where the text read so far may stand; with
 * bounds of the length, together with the number of its characters.
 * Thread: any.  Memory: while it works at most some MiB.  Test: tests/unit/test_grammar.c */
#include "model/grammar/grammar_dfa.h"

#include <stdlib.h>
#include <string.h>

enum {
    TOP = 0x10ffff,
    MAX_CUT = 2 * LG_REGEX_MAX_SPAN + 64,
    MAX_CLASS = 512,
    SET_WORDS = LG_REGEX_MAX_SET / 64,
    MAX_WORDS = LG_REGEX_MAX_PLACE / 64
};

typedef struct class {
    uint64_t in[SET_WORDS];  /* sets that it is in */
    uint32_t allowed, plain; /* bool, without a gap: classes are compared as bytes */
} class;

/* An automaton while it is made. */
typedef struct table {
    uint32_t n, cap, n_class;
    uint16_t *next; /* [cap][n_class] */
    bool *match;
} table;

typedef struct maker {
    lg_regex *x;
    uint32_t *work;
    bool raw;
    uint32_t cut[MAX_CUT], n_cut; /* where intervals of characters begin */
    uint16_t class_of[MAX_CUT];
    class class[MAX_CLASS];
    uint32_t n_class;
    /* sets of places */
    uint32_t n_word;
    uint64_t *set; /* [cap][n_word] of the states of `sets` */
    uint32_t cap_set;
    uint32_t bucket[2 * LG_DFA_MAX_STATE]; /* state + 1 */
    uint32_t mark[LG_REGEX_MAX_PLACE], round;
    uint32_t stack[2 * LG_REGEX_MAX_PLACE + 2];
    uint64_t now[MAX_WORDS];
    table sets, counted;
} maker;

static bool fail(lg_regex *x, const char *why) {
    if (!x->why) x->why = why;
    return false;
}

static bool no_memory(lg_regex *x) {
    x->no_memory = true;
    return fail(x, "no memory");
}

static bool spend(maker *m, uint64_t n) {
    if (n > LG_DFA_MAX_WORK - *m->work) {
        *m->work = LG_DFA_MAX_WORK;
        return fail(m->x, "it is too complex");
    }
    *m->work += (uint32_t)n;
    return true;
}

/* ---- Classes of characters ---- */

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Characters that a string of the answer may hold, as they are or by an escape of one letter. */
static bool is_allowed(uint32_t c, bool raw) {
    if (c >= 0xd800 && c < 0xe000) return false;
    if (raw) return c == '\t' || (c >= 0x20 && c != '<');
    return c >= 0x20 || c == '\b' || c == '\t' || c == '\n' || c == '\f' || c == '\r';
}

static uint32_t interval_of(const uint32_t *cut, uint32_t n, uint32_t c) {
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (cut[mid] <= c)
            low = mid;
        else
            high = mid;
    }
    return low;
}

enum { WORK_EACH = 4000 }; /* of any pattern: its memory is cleared first */

static bool make_classes(maker *m) {
    static const uint32_t fixed[] = {0,    8,    9,    10,   11,   12,   13,     14,    0x20,
                                     0x22, 0x23, 0x3c, 0x3d, 0x5c, 0x5d, 0xd800, 0xe000};
    const lg_regex *x = m->x;
    uint32_t n = 0;
    memcpy(m->cut, fixed, sizeof fixed);
    m->n_cut = LG_COUNT(fixed);
    for (uint32_t i = 0; i < x->n_span; i++) {
        m->cut[m->n_cut++] = x->span[i].low;
        if (x->span[i].high < TOP) m->cut[m->n_cut++] = x->span[i].high + 1;
    }
    qsort(m->cut, m->n_cut, sizeof m->cut[0], by_value);
    for (uint32_t i = 0; i < m->n_cut; i++)
        if (n == 0 || m->cut[i] != m->cut[n - 1]) m->cut[n++] = m->cut[i];
    m->n_cut = n;
    class *of = lg_mem_calloc(n, sizeof *of);
    if (!of) return no_memory(m->x);
    bool ok = true;
    for (uint32_t i = 0; i < x->n_set && ok; i++)
        for (uint32_t k = x->set[i].first; k < x->set[i].first + x->set[i].n && ok; k++) {
            uint32_t at = interval_of(m->cut, n, x->span[k].low);
            for (; at < n && m->cut[at] <= x->span[k].high; at++) {
                of[at].in[i / 64] |= (uint64_t)1 << i % 64;
                ok = spend(m, 1);
            }
        }
    for (uint32_t i = 0; i < n && ok; i++) {
        uint32_t c = m->cut[i], k = 0;
        of[i].allowed = is_allowed(c, m->raw);
        of[i].plain = of[i].allowed && c >= 0x20 && c != '"' && c != '\\' && c != '<';
        if (!of[i].allowed) memset(of[i].in, 0, sizeof of[i].in);
        while (k < m->n_class && memcmp(&m->class[k], &of[i], sizeof of[i]) != 0) k++;
        ok = spend(m, k) && (k < MAX_CLASS || fail(m->x, "it has too many classes"));
        if (ok && k == m->n_class) m->class[m->n_class++] = of[i];
        m->class_of[i] = (uint16_t)k;
    }
    lg_mem_free(of);
    return ok;
}

/* ---- Sets of places ---- */

static bool has(const uint64_t *set, uint32_t i) {
    return set[i / 64] >> i % 64 & 1;
}

/* Add the places that wait for a character, or are the end, reached from `place`.  True when a match is among them. */
static bool reach(maker *m, uint32_t place, bool begin, bool end, bool *ok) {
    const lg_regex *x = m->x;
    uint32_t n = 0;
    bool done = false;
    m->stack[n++] = place;
    while (n > 0) {
        uint32_t i = m->stack[--n];
        const lg_regex_place *p = &x->place[i];
        if (m->mark[i] == m->round) continue;
        m->mark[i] = m->round;
        *ok &= spend(m, 1);
        switch (p->kind) {
        case LG_REGEX_FORK:
            m->stack[n++] = p->b;
            m->stack[n++] = p->a;
            break;
        case LG_REGEX_BEGIN:
            if (begin) m->stack[n++] = p->a;
            break;
        case LG_REGEX_END:
            if (end)
                m->stack[n++] = p->a;
            else
                m->now[i / 64] |= (uint64_t)1 << i % 64;
            break;
        case LG_REGEX_CHAR: m->now[i / 64] |= (uint64_t)1 << i % 64; break;
        case LG_REGEX_DONE:
            m->now[i / 64] |= (uint64_t)1 << i % 64;
            done = true;
            break;
        }
    }
    return done;
}

static bool grow_table(table *t) {
    uint32_t cap = t->cap ? 2 * t->cap : 64;
    if (t->n < t->cap) return true;
    uint16_t *next = lg_mem_realloc(t->next, (size_t)cap * t->n_class * sizeof *next);
    if (next) t->next = next;
    bool *match = next ? lg_mem_realloc(t->match, cap * sizeof *match) : NULL;
    if (!match) return false;
    t->match = match;
    t->cap = cap;
    return true;
}

/* One more state, all its ways dead. */
static bool add_state(maker *m, table *t, bool match) {
    if (t->n == LG_DFA_MAX_STATE) return fail(m->x, "it needs more than 4096 states");
    if (!grow_table(t)) return no_memory(m->x);
    for (uint32_t i = 0; i < t->n_class; i++)
        t->next[(size_t)t->n * t->n_class + i] = LG_DFA_DEAD;
    t->match[t->n++] = match;
    return spend(m, t->n_class);
}

/* Whether the text may end where the set at hand stands; END places are left behind for that alone. */
static bool ends(maker *m, bool done, bool *ok) {
    uint64_t keep[MAX_WORDS];
    if (done) return true;
    *ok &= spend(m, m->x->n_place / 8);
    memcpy(keep, m->now, m->n_word * sizeof keep[0]);
    for (uint32_t i = 0; i < m->x->n_place && !done; i++)
        if (m->x->place[i].kind == LG_REGEX_END && has(keep, i)) {
            m->round++;
            done = reach(m, i, false, true, ok);
        }
    memcpy(m->now, keep, m->n_word * sizeof keep[0]);
    return done;
}

/* The state of the set at hand, a new one if need be. */
static bool find_state(maker *m, bool done, uint32_t *state) {
    table *t = &m->sets;
    uint64_t hash = 0;
    bool ok = true;
    if (done) { /* whatever follows */
        memset(m->now, 0, m->n_word * sizeof m->now[0]);
        m->now[m->x->done / 64] |= (uint64_t)1 << m->x->done % 64;
    }
    for (uint32_t i = 0; i < m->n_word; i++)
        hash = (hash ^ m->now[i]) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
    uint32_t at = (uint32_t)(hash % LG_COUNT(m->bucket));
    for (; m->bucket[at]; at = (at + 1) % LG_COUNT(m->bucket)) {
        *state = m->bucket[at] - 1;
        if (!spend(m, m->n_word)) return false;
        if (memcmp(m->set + (size_t)*state * m->n_word, m->now, m->n_word * sizeof m->now[0]) ==
            0)
            return true;
    }
    *state = t->n;
    if (t->n == m->cap_set) {
        uint32_t cap = m->cap_set ? 2 * m->cap_set : 64;
        uint64_t *p = lg_mem_realloc(m->set, (size_t)cap * m->n_word * sizeof *p);
        if (!p) return no_memory(m->x);
        m->set = p;
        m->cap_set = cap;
    }
    memcpy(m->set + (size_t)t->n * m->n_word, m->now, m->n_word * sizeof m->now[0]);
    bool match = ends(m, done, &ok);
    if (!ok || !add_state(m, t, match)) return false;
    m->bucket[at] = *state + 1;
    return true;
}

/* The set after a character of a class, from state s; false: there is none, or *ok is false. */
static bool advance(maker *m, uint32_t s, uint32_t cls, bool *done, bool *ok) {
    const lg_regex *x = m->x;
    bool any = false;
    *done = false;
    memset(m->now, 0, m->n_word * sizeof m->now[0]);
    m->round++;
    *ok = spend(m, m->n_word);
    for (uint32_t w = 0; w < m->n_word && *ok; w++) {
        uint64_t bits = m->set[(size_t)s * m->n_word + w];
        for (; bits && *ok; bits &= bits - 1) {
            const lg_regex_place *p = &x->place[64 * w + (uint32_t)__builtin_ctzll(bits)];
            bool stays = p->kind == LG_REGEX_DONE && m->class[cls].allowed;
            if (stays) *done = any = true;
            if (p->kind != LG_REGEX_CHAR || !has(m->class[cls].in, p->a)) continue;
            *done |= reach(m, p->b, false, false, ok);
            any = true;
        }
    }
    return any && *ok;
}

static bool make_sets(maker *m) {
    table *t = &m->sets;
    bool ok = true, done;
    uint32_t to;
    m->n_word = (m->x->n_place + 63) / 64;
    m->round = 1;
    t->n_class = m->n_class;
    done = reach(m, m->x->start, true, false, &ok);
    if (!ok || !find_state(m, done, &to)) return false;
    for (uint32_t s = 0; s < t->n; s++)
        for (uint32_t c = 0; c < m->n_class; c++) {
            bool any = advance(m, s, c, &done, &ok);
            if (!ok) return false;
            if (!any) continue;
            if (!find_state(m, done, &to)) return false;
            t->next[(size_t)s * t->n_class + c] = (uint16_t)to;
        }
    return true;
}

/* ---- Bounds of the length ---- */

/* States with the number of characters before them, as far as it matters. */
static bool make_counted(maker *m, uint32_t low, uint32_t high) {
    table *t = &m->counted, *from = &m->sets;
    bool bounded = high != LG_REGEX_NO_MAX;
    uint32_t most = bounded ? high : low;
    t->n_class = m->n_class;
    if (most >= LG_DFA_MAX_STATE) return fail(m->x, "the length's bound is too large for it");
    size_t n_pair = (size_t)from->n * (most + 1);
    if (!spend(m, n_pair / 16)) return false;
    uint16_t *id = lg_mem_calloc(n_pair, sizeof *id); /* + 1 */
    uint32_t *pair = lg_mem_calloc(LG_DFA_MAX_STATE, sizeof *pair);
    bool ok = (id && pair) || no_memory(m->x);
    ok = ok && add_state(m, t, from->match[0] && low == 0);
    if (ok) id[0] = 1;
    for (uint32_t s = 0; ok && s < t->n; s++) {
        uint32_t q = pair[s] / (most + 1), n = pair[s] % (most + 1);
        if (bounded && n == most) continue;
        uint32_t after = n < most ? n + 1 : n;
        for (uint32_t c = 0; ok && c < m->n_class; c++) {
            uint16_t to = from->next[(size_t)q * m->n_class + c];
            if (to == LG_DFA_DEAD) continue;
            size_t i = (size_t)to * (most + 1) + after;
            if (!id[i]) {
                if (!(ok = add_state(m, t, from->match[to] && after >= low))) break;
                id[i] = (uint16_t)t->n;
                pair[t->n - 1] = (uint32_t)i;
            }
            t->next[(size_t)s * m->n_class + c] = id[i] - 1;
        }
        ok = ok && spend(m, m->n_class);
    }
    lg_mem_free(id);
    lg_mem_free(pair);
    return ok;
}

/* ---- The table ---- */

/* States from which a match can be reached get new numbers, others LG_DFA_DEAD. */
static bool number_live(maker *m, const table *t, uint16_t *number, uint32_t *n_live) {
    bool changed = true;
    for (uint32_t s = 0; s < t->n; s++) number[s] = t->match[s] ? 0 : LG_DFA_DEAD;
    while (changed) {
        changed = false;
        if (!spend(m, (uint64_t)t->n * t->n_class / 4)) return false;
        for (uint32_t s = t->n; s-- > 0;)
            for (uint32_t c = 0; c < t->n_class && number[s] == LG_DFA_DEAD; c++) {
                uint16_t to = t->next[(size_t)s * t->n_class + c];
                if (to == LG_DFA_DEAD || number[to] == LG_DFA_DEAD) continue;
                number[s] = 0;
                changed = true;
            }
    }
    *n_live = 0;
    for (uint32_t s = 0; s < t->n; s++)
        if (number[s] != LG_DFA_DEAD) number[s] = (uint16_t)(*n_live)++;
    return true;
}

/* How many characters of any plain text may come: of what may always come, one more than after any of them. */
static bool count_plain(maker *m, lg_dfa *d) {
    bool changed = true;
    for (uint32_t s = 0; s < d->n_state; s++) d->plain[s] = LG_DFA_ENDLESS;
    while (changed) {
        changed = false;
        if (!spend(m, (uint64_t)d->n_state * d->n_class / 4)) return false;
        for (uint32_t s = d->n_state; s-- > 0;) {
            uint16_t least = LG_DFA_ENDLESS;
            for (uint32_t c = 0; c < d->n_class; c++) {
                uint16_t to = d->next[(size_t)s * d->n_class + c];
                if (!m->class[c].plain) continue;
                uint16_t n = to == LG_DFA_DEAD ? 0 : d->plain[to];
                if (to != LG_DFA_DEAD && n != LG_DFA_ENDLESS) n++;
                if (n < least) least = n;
            }
            changed |= least != d->plain[s];
            d->plain[s] = least;
        }
    }
    return true;
}

static bool make_table(maker *m, const table *t, lg_dfa *d, uint32_t *n_cell) {
    uint32_t n = 0;
    uint16_t *number = lg_mem_calloc(t->n, sizeof *number);
    bool ok = (number || no_memory(m->x)) && number_live(m, t, number, &n);
    if (ok && (n == 0 || number[0] == LG_DFA_DEAD)) ok = fail(m->x, "nothing fits it");
    if (ok && n * t->n_class > LG_DFA_MAX_CELL - *n_cell)
        ok = fail(m->x, "the patterns of the schema need too much memory together");
    if (ok) {
        *n_cell += n * t->n_class;
        d->n_state = (uint16_t)n;
        d->n_class = (uint16_t)t->n_class;
        d->n_span = m->n_cut;
        d->next = lg_mem_calloc((size_t)n * t->n_class, sizeof *d->next);
        d->plain = lg_mem_calloc(n, sizeof *d->plain);
        d->match = lg_mem_calloc(n, sizeof *d->match);
        d->low = lg_mem_calloc(m->n_cut, sizeof *d->low);
        d->class_of = lg_mem_calloc(m->n_cut, sizeof *d->class_of);
        ok = (d->next && d->plain && d->match && d->low && d->class_of) || no_memory(m->x);
    }
    for (uint32_t s = 0; ok && s < t->n; s++) {
        if (number[s] == LG_DFA_DEAD) continue;
        d->match[number[s]] = t->match[s];
        for (uint32_t c = 0; c < t->n_class; c++) {
            uint16_t to = t->next[(size_t)s * t->n_class + c];
            d->next[(size_t)number[s] * t->n_class + c] =
                to == LG_DFA_DEAD ? LG_DFA_DEAD : number[to];
        }
    }
    if (ok) {
        memcpy(d->low, m->cut, m->n_cut * sizeof *d->low);
        memcpy(d->class_of, m->class_of, m->n_cut * sizeof *d->class_of);
    }
    lg_mem_free(number);
    return ok && count_plain(m, d);
}

bool lg_grammar_dfa_make(lg_dfa *d, lg_regex *x, uint32_t low, uint32_t high, bool raw,
                         uint32_t *n_cell, uint32_t *n_work) {
    bool count = low > 0 || high != LG_REGEX_NO_MAX;
    *d = (lg_dfa){0};
    maker *m = lg_mem_alloc(sizeof *m);
    if (!m) return no_memory(x);
    m->x = x;
    m->work = n_work;
    m->raw = raw;
    bool ok = spend(m, WORK_EACH) && make_classes(m) && make_sets(m) &&
              (!count || make_counted(m, low, high)) &&
              make_table(m, count ? &m->counted : &m->sets, d, n_cell);
    lg_mem_free(m->set);
    lg_mem_free(m->sets.next);
    lg_mem_free(m->sets.match);
    lg_mem_free(m->counted.next);
    lg_mem_free(m->counted.match);
    lg_mem_free(m);
    if (!ok) lg_grammar_dfa_fini(d);
    return ok;
}

void lg_grammar_dfa_fini(lg_dfa *d) {
    lg_mem_free(d->next);
    lg_mem_free(d->plain);
    lg_mem_free(d->match);
    lg_mem_free(d->low);
    lg_mem_free(d->class_of);
    *d = (lg_dfa){0};
}

size_t lg_grammar_dfa_bytes(const lg_dfa *d) {
    return (size_t)d->n_state * (d->n_class * sizeof *d->next + sizeof *d->plain + 1) +
           (size_t)d->n_span * (sizeof *d->low + sizeof *d->class_of);
}

uint16_t lg_grammar_dfa_step(const lg_dfa *d, uint16_t state, uint32_t c) {
    return d->next[(size_t)state * d->n_class + d->class_of[interval_of(d->low, d->n_span, c)]];
}

bool lg_grammar_dfa_any(const lg_dfa *d, uint16_t state, uint32_t low, uint32_t high) {
    for (uint32_t i = interval_of(d->low, d->n_span, low); i < d->n_span && d->low[i] <= high;
         i++)
        if (d->next[(size_t)state * d->n_class + d->class_of[i]] != LG_DFA_DEAD) return true;
    return false;
}
