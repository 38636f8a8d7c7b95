/* sched.c - who is admitted and which rows run in the next step: see engine.h.
 *
 * In:  waiting and running sequences, free pages and slots (state.c), kept texts (reuse.c).   Out: eng->sched.batch (backend.h).
 * Policy: first come, first admitted, with room for the longest a sequence can become, so that nothing that runs is ever
 * stuck or thrown out (docs/DECISIONS.md).  Decodes first; n_seq <= n_batch_tok, so that all of them fit and a prompt always
 * gets a row.  No bit of an answer depends on any of this.
 * Invariants: a sequence appears at most once in a batch; the batch's rows <= n_batch_tok.
 * Thread: engine.  Memory: nothing after open.  Test: tests/unit/test_engine.c */
#include "engine/engine.h"
#include "base/clock.h"

#include <string.h>

#define MIN_SHARE 32 /* rows; smaller pieces of a prompt cost more than they are worth */

void lg_sched_admit(lg_engine *eng) {
    while (eng->wait_first) {
        lg_seq *seq = eng->wait_first;
        if (!lg_reuse_admit(eng, seq)) return;
        eng->wait_first = seq->next;
        if (seq->next) {
            seq->next->prev = NULL;
        } else {
            eng->wait_last = NULL;
        }
        seq->next = NULL;
        eng->n_wait--;
        const lg_state *st = &eng->home[seq->home].state;
        uint32_t *ids = st->ids + (size_t)seq->slot * st->n_ctx;
        memcpy(ids, seq->prompt_ids, seq->sampler.n_id * sizeof *ids);
        seq->sampler.ids = ids;
        seq->admit_us = lg_clock_us();
        eng->run[eng->n_run++] = seq;
    }
}

/* Ids that the state does not hold yet: 1 while decoding. */
static uint32_t n_left(const lg_seq *seq) {
    return seq->sampler.n_id - seq->n_done;
}

/* Give sequence i up to n more rows; returns what is left of n. */
static uint32_t give(lg_engine *eng, uint32_t i, uint32_t n) {
    uint32_t *grant = &eng->sched.grant[i], want = n_left(eng->run[i]) - *grant;
    uint32_t got = want < n ? want : n;
    *grant += got;
    return n - got;
}

/* Decide rows of every running sequence. */
static void divide(lg_engine *eng) {
    uint32_t *grant = eng->sched.grant;
    uint32_t left = eng->sched.n_batch_tok, n_prompt = 0, oldest = 0;
    for (uint32_t i = 0; i < eng->n_run; i++) {
        bool decodes = n_left(eng->run[i]) == 1;
        grant[i] = decodes;
        left -= decodes;
        if (!decodes && n_prompt++ == 0) oldest = i;
    }
    if (n_prompt == 0) return;
    uint32_t half = n_prompt == 1 ? left : left - left / 2;
    left = left - half + give(eng, oldest, half);
    uint32_t share = n_prompt > 1 ? left / (n_prompt - 1) : 0;
    if (share < MIN_SHARE) share = MIN_SHARE;
    for (uint32_t i = oldest + 1; i < eng->n_run && left; i++) {
        uint32_t n = share < left ? share : left;
        left = left - n + give(eng, i, n);
    }
    for (uint32_t i = oldest; i < eng->n_run && left; i++) left = give(eng, i, left);
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
    if (n_left(seq) > 1) lg_reuse_plan(eng, seq, &s->row[b->n_seq - 1]);
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
    divide(eng);
    for (uint32_t pass = 0; pass < 2; pass++) /* decodes, then prompts */
        for (uint32_t i = 0; i < eng->n_run; i++)
            if (s->grant[i] && (n_left(eng->run[i]) == 1) == (pass == 0)) put_rows(eng, i);
}
