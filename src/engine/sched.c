/* sched.c - which rows run in the next step: see engine.h.
 *
 * In:  running sequences, the model of costs (cost.c).   Out: eng->sched.batch (backend.h).
 * Policy: decodes first; n_seq <= n_batch_tok, so that all of them fit and a prompt always gets a row.  Prompts share what is
 * left by priority, then by how little their clients were served.  Beside decodes the step's expected time stays below
 * stall_us.  No bit of an answer depends on any of this.
 * Invariants: a sequence appears at most once in a batch; the batch's rows <= n_batch_tok.
 * Thread: engine.  Memory: nothing after open.  Test: tests/unit/test_engine.c, tests/unit/test_sched.c */
#include "engine/engine.h"

#include <string.h>

#define MIN_SHARE 32 /* rows; smaller pieces of a prompt cost more than they are worth */
#define MAX_SHARE 64 /* prompts that get rows in one step */

#define MIN_BELIEVED 4 /* rows; see divide_within */

/* LG_STALL_AUTO: so long, or so many steps of the answers alone: where those take seconds, a second would starve prompts. */
#define AUTO_US    1e6
#define AUTO_STEPS 4.0

/* Prompts in the order in which they are served; indices of run[]. */
typedef struct prompts {
    uint32_t run[MAX_SHARE], n;
    uint32_t n_decode;
} prompts;

/* Ids that the state does not hold yet: 1 while decoding. */
static uint32_t n_left(const lg_seq *seq) {
    return seq->sampler.n_id - seq->n_done;
}

/* Grant every decode its row, and find the prompts that may get some. */
static prompts order(lg_engine *eng) {
    prompts p = {0};
    uint32_t most = eng->sched.n_batch_tok / MIN_SHARE + 1;
    bool held = lg_home_holds(eng);
    if (most > MAX_SHARE) most = MAX_SHARE;
    for (uint32_t i = 0; i < eng->n_run; i++) {
        lg_seq *seq = eng->run[i];
        bool decodes = n_left(seq) == 1;
        eng->sched.grant[i] = decodes;
        p.n_decode += decodes;
        if (decodes || held) continue;
        uint32_t at = p.n; /* its place: the list is sorted and short */
        while (at > 0 && lg_queue_before(&eng->queue, seq, eng->run[p.run[at - 1]])) at--;
        if (at == most) continue;
        if (p.n < most) p.n++;
        memmove(p.run + at + 1, p.run + at, (p.n - 1 - at) * sizeof *p.run);
        p.run[at] = i;
    }
    return p;
}

/* Give sequence i up to n more rows; returns what is left of n. */
static uint32_t give(lg_engine *eng, uint32_t i, uint32_t n) {
    uint32_t *grant = &eng->sched.grant[i], want = n_left(eng->run[i]) - *grant;
    uint32_t got = want < n ? want : n;
    *grant += got;
    return n - got;
}

/* Divide `left` rows among prompts first .. end - 1, which are served alike; returns what they do not need. */
static uint32_t divide_class(lg_engine *eng, const prompts *p, uint32_t first, uint32_t end,
                             uint32_t left) {
    uint32_t n = end - first, half = n == 1 ? left : left - left / 2;
    left = left - half + give(eng, p->run[first], half);
    uint32_t share = n > 1 ? left / (n - 1) : 0;
    if (share < MIN_SHARE) share = MIN_SHARE;
    for (uint32_t k = first + 1; k < end && left; k++) {
        uint32_t rows = share < left ? share : left;
        left = left - rows + give(eng, p->run[k], rows);
    }
    for (uint32_t k = first; k < end && left; k++) left = give(eng, p->run[k], left);
    return left;
}

/* The same with several homes: equal rows for each as far as it needs them, so those that need least come first. */
static uint32_t divide_homes(lg_engine *eng, const prompts *p, uint32_t first, uint32_t end,
                             uint32_t left) {
    uint64_t want[LG_MAX_HOME] = {0};
    uint32_t n_home = 0;
    for (uint32_t k = first; k < end; k++) {
        const lg_seq *s = eng->run[p->run[k]];
        n_home += want[s->home] == 0;
        want[s->home] += n_left(s);
    }
    for (; n_home && left; n_home--) {
        uint32_t least = 0, share = (left + n_home - 1) / n_home;
        prompts part = {.n = 0};
        for (uint32_t h = 1; h < eng->n_home; h++)
            if (want[h] && (want[least] == 0 || want[h] < want[least])) least = h;
        for (uint32_t k = first; k < end; k++)
            if (eng->run[p->run[k]]->home == least) part.run[part.n++] = p->run[k];
        want[least] = 0;
        left = left - share + divide_class(eng, &part, 0, part.n, share);
    }
    return left;
}

/* Divide `left` rows among the prompts; what they were granted before is taken back. */
static void divide(lg_engine *eng, const prompts *p, uint32_t left) {
    for (uint32_t k = 0; k < p->n; k++) eng->sched.grant[p->run[k]] = 0;
    for (uint32_t k = 0, end; k < p->n && left; k = end) {
        for (end = k + 1; end < p->n;
             end++) { /* one priority; those that aged share with the first */
            const lg_seq *x = eng->run[p->run[end - 1]], *y = eng->run[p->run[end]];
            if (!x->aged && x->priority != y->priority) break;
        }
        left = eng->n_home == 1 ? divide_class(eng, p, k, end, left)
                                : divide_homes(eng, p, k, end, left);
    }
}

/* Add the prompts' rows to the load of the decodes. */
static lg_cost_load load_of(const lg_engine *eng, const prompts *p, lg_cost_load load) {
    for (uint32_t k = 0; k < p->n; k++) {
        double n = eng->sched.grant[p->run[k]], done = eng->run[p->run[k]]->n_done;
        load.prefill += n;
        load.seen += n * (done + n / 2.0);
        if (n > 0) load.read += done;
    }
    return load;
}

/* The longest that a step with prompt rows may take beside these decodes. */
static double limit_us(const lg_engine *eng, const lg_cost_load *decodes) {
    if (eng->sched.stall_us != LG_STALL_AUTO) return (double)eng->sched.stall_us;
    double alone_us = lg_cost_step_us(&eng->cost, decodes);
    return alone_us * AUTO_STEPS > AUTO_US ? alone_us * AUTO_STEPS : AUTO_US;
}

/* Divide as many rows, at most `left`, as keep the expected time within the limit.  What is expected of many rows is believed only up to
 * twice as many as were measured lately: a thousand steps of 4 rows deep in a long prompt say nothing of 500 at the
 * beginning of the next. */
static void divide_within(lg_engine *eng, const prompts *p, uint32_t left,
                          const lg_cost_load *decodes) {
    const lg_cost *c = &eng->cost;
    double most_us = (limit_us(eng, decodes) - (double)eng->sched.spent_us) / c->margin;
    uint32_t low = 1, high = left, believed = (uint32_t)(2.0 * c->widest);
    if (believed < MIN_BELIEVED) believed = MIN_BELIEVED;
    if (high > believed) high = believed;
    divide(eng, p, left);
    lg_cost_load load = load_of(eng, p, *decodes);
    if (load.prefill <= low || (load.prefill <= high && lg_cost_step_us(c, &load) <= most_us))
        return;
    if (load.prefill < high) high = (uint32_t)load.prefill;
    while (low < high) { /* one row always may run */
        uint32_t mid = low + (high - low + 1) / 2;
        divide(eng, p, mid);
        load = load_of(eng, p, *decodes);
        if (lg_cost_step_us(c, &load) <= most_us) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    divide(eng, p, low < left ? low : left);
    eng->stats.n_cut_step++;
}

/* Append sequence i's granted rows to the batch. */
static void put_rows(lg_engine *eng, uint32_t i) {
    lg_sched *s = &eng->sched;
    lg_batch *b = &s->batch;
    lg_seq *seq = eng->run[i];
    uint32_t n = s->grant[i], end = seq->n_done + n;
    bool whole = n == n_left(seq);
    s->who[b->n_seq] = seq;
    s->row[b->n_seq++] = (lg_batch_seq){.owner = seq->home,
                                        .slot = seq->slot,
                                        .pos = seq->n_done,
                                        .n_tok = n,
                                        .tok0 = b->n_tok,
                                        .page0 = b->n_page,
                                        .n_out = whole,
                                        .sampler = whole ? &seq->sampler : NULL};
    lg_reuse_plan(eng, seq, &s->row[b->n_seq - 1]);
    memcpy(s->tok + b->n_tok, seq->sampler.ids + seq->n_done, n * sizeof *s->tok);
    b->n_tok += n;
    uint32_t n_page = (end + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
    const lg_state *st = &eng->home[seq->home].state;
    LG_ASSERT(n_page <= st->n_page_of[seq->slot]);
    memcpy(s->page + b->n_page, st->page + (size_t)seq->slot * st->max_page,
           n_page * sizeof *s->page);
    b->n_page += n_page;
}

void lg_sched_plan(lg_engine *eng) {
    lg_sched *s = &eng->sched;
    s->batch = (lg_batch){.tok = s->tok, .seq = s->row, .page = s->page};
    s->n_save = 0;
    prompts p = order(eng);
    lg_cost_load load = {.decode = p.n_decode};
    for (uint32_t i = 0; i < eng->n_run; i++)
        if (s->grant[i]) load.read += eng->run[i]->n_done;
    load.seen = load.read;
    uint32_t left = s->n_batch_tok - p.n_decode;
    if (p.n && p.n_decode && s->stall_us) {
        divide_within(eng, &p, left, &load);
    } else if (p.n) {
        divide(eng, &p, left);
    }
    s->load = load_of(eng, &p, load);
    s->expected_us = lg_cost_step_us(&eng->cost, &s->load);
    for (uint32_t i = 0; i < eng->n_run; i++) /* decodes, then prompts */
        if (s->grant[i] && n_left(eng->run[i]) == 1) put_rows(eng, i);
    for (uint32_t k = 0; k < p.n; k++)
        if (s->grant[p.run[k]]) put_rows(eng, p.run[k]);
}
