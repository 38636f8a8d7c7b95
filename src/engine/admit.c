/* admit.c - who gets a slot and pages, who is put back, and who waits for another's prompt: see engine.h.
 *
 * In:  the queue, free pages and slots, kept texts.   Out: run[], each with a slot, a token buffer and pages for its next row.
 * Policy (docs/DECISIONS.md): a sequence is admitted when its ids fit and every running one could still grow by a page (more, up to
 * LG_MAX_SPARE, after that was too few); pages for what it produces come one at a time.  When there is none, the last one (latest priority, then youngest) goes back to the
 * queue with its ids and is computed again from its last snapshot.  The first one is never put back, and alone it has the
 * whole pool, so something always comes to its end.
 * Invariants: nothing here changes a bit of an answer; a sequence that was put back keeps its token buffer.
 * Thread: engine.  Memory: nothing after open.  Test: tests/unit/test_sched.c, tests/unit/test_reuse.c */
#include "engine/engine.h"

#include <string.h>

#define MIN_HOLD 32 /* tokens; less is computed twice before anything is known of costs */

static uint32_t pages_of(uint32_t n_tok) {
    return (uint32_t)(((uint64_t)n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK);
}

/* ---- putting back ---- */

void lg_admit_put_back(lg_engine *eng, lg_seq *seq, bool keep) {
    lg_engine_unlink_run(eng, seq);
    if (keep && lg_reuse_end(eng, seq)) {
        eng->stats.n_preempt_kept++;
    } else {
        eng->stats.n_preempt_dropped++;
    }
    lg_state_release(&eng->home[seq->home].state, seq->slot);
    eng->home[seq->home].n_run--;
    seq->slot = UINT32_MAX;
    seq->n_done = 0;
    seq->n_preempt++;
    seq->disk_asked = seq->disk_seen = false;
    lg_queue_return(&eng->queue, seq);
}

/* The rank after which sequences may be put back to make room for seq: one that has aged takes what is free. */
static int64_t floor_of(const lg_seq *seq) {
    return seq->aged ? INT64_MAX : seq->priority;
}

/* The sequence running in a home (LG_MAX_HOME: in any) that goes first when somebody must; NULL: none is later than `floor`. */
static lg_seq *last_of(const lg_engine *eng, uint32_t home, int64_t floor) {
    lg_seq *last = NULL;
    for (uint32_t i = 0; i < eng->n_run; i++) {
        lg_seq *s = eng->run[i];
        int64_t rank = lg_queue_rank(s), latest = last ? lg_queue_rank(last) : INT64_MIN;
        if (rank <= floor || (home != LG_MAX_HOME && s->home != home)) continue;
        if (rank > latest || (rank == latest && s->id > last->id)) last = s;
    }
    return last;
}

/* Whether copying the state out and in costs less than computing what came after the last snapshot. */
static bool copy_is_cheaper(const lg_engine *eng, const lg_seq *seq) {
    lg_prefix_hit hit;
    if (seq->n_done == 0) return false;
    lg_prefix_find(&eng->home[seq->home].prefix, seq->salt, seq->sampler.ids, seq->n_done,
                   &hit);
    double again = lg_cost_tokens_us(&eng->cost, hit.pos, seq->n_done - hit.pos);
    return again > 2.0 * eng->cost.copy_us;
}

/* ---- waiting for another's prompt ---- */

/* Ids that both begin with, at most n. */
static uint32_t n_common(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t i = 0;
    while (i + 64 <= n && memcmp(a + i, b + i, 64 * sizeof *a) == 0) i += 64;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* Let seq wait for a running prompt that it begins with, if this saves more than the step that it may come later.  Once only, and
 * never for one that is served later than itself. */
static bool hold(lg_engine *eng, lg_seq *seq) {
    lg_prefix_hit hit;
    lg_seq *on = NULL;
    uint32_t pos = 0, n = seq->sampler.n_id - 1;
    if (seq->was_held || eng->parts.budget.opt.n_snap == 0) return false;
    for (uint32_t i = 0; i < eng->n_run; i++) {
        lg_seq *r = eng->run[i];
        uint32_t most = r->n_known - 1 < n ? r->n_known - 1 : n;
        if (r->salt != seq->salt || lg_queue_rank(r) > lg_queue_rank(seq) ||
            r->n_done >= most || pos >= most)
            continue;
        uint32_t same = n_common(r->sampler.ids, seq->sampler.ids, most);
        if (same <= r->n_done || same <= pos) continue;
        if (r->branch_pos <= r->n_done || r->branch_pos > same) r->branch_pos = same;
        uint32_t snap = lg_reuse_next_snap(eng, r, same);
        if (snap > pos) {
            pos = snap;
            on = r;
        }
    }
    if (!on) return false;
    lg_prefix_find(&eng->home[on->home].prefix, seq->salt, seq->sampler.ids, n, &hit);
    if (pos <= hit.pos) return false;
    double saved = lg_cost_tokens_us(&eng->cost, hit.pos, pos - hit.pos);
    if (saved > 0.0 ? saved <= lg_cost_floor_us(&eng->cost) : pos - hit.pos < MIN_HOLD)
        return false;
    seq->hold_on = on;
    seq->hold_pos = pos;
    seq->was_held = true;
    if (on->n_holder++ == 0 || pos < on->holder_pos) on->holder_pos = pos;
    eng->stats.n_held++;
    return true;
}

/* ---- admission ---- */

/* A slot, a token buffer and pages. */
static bool admit(lg_engine *eng, lg_seq *seq) {
    lg_store *st = &eng->store;
    if (seq->store == UINT32_MAX && st->n_free == 0) return false;
    if (!lg_reuse_admit(eng, seq)) return false;
    lg_queue_remove(&eng->queue, seq);
    if (seq->store == UINT32_MAX) {
        seq->store = lg_store_take(st);
        uint32_t *ids = st->ids + (size_t)seq->store * st->n_ctx;
        memcpy(ids, seq->prompt_ids, seq->sampler.n_id * sizeof *ids);
        seq->sampler.ids = ids;
        seq->admit_us = lg_engine_now_us(eng);
    }
    eng->run[eng->n_run++] = seq;
    return true;
}

/* A home in which putting back all sequences of later priorities would make room for seq; LG_MAX_HOME: none. */
static uint32_t home_to_clear(const lg_engine *eng, const lg_seq *seq) {
    if (seq->store == UINT32_MAX && eng->store.n_free == 0) return LG_MAX_HOME;
    for (uint32_t h = 0; h < eng->n_home; h++) {
        const lg_state *st = &eng->home[h].state;
        uint64_t n_page = st->pages.n_free + st->pages.n_cached, n_slot = st->n_slot_free;
        bool any = false;
        for (uint32_t i = 0; i < eng->n_run; i++) {
            if (eng->run[i]->home != h || lg_queue_rank(eng->run[i]) <= floor_of(seq)) continue;
            n_page += st->n_page_of[eng->run[i]->slot];
            n_slot++;
            any = true;
        }
        if (any && n_slot && n_page > pages_of(seq->sampler.n_id)) return h;
    }
    return LG_MAX_HOME;
}

static bool any_slot_free(const lg_engine *eng) {
    for (uint32_t h = 0; h < eng->n_home; h++)
        if (eng->home[h].state.n_slot_free) return true;
    return false;
}

void lg_admit_run(lg_engine *eng) {
    eng->stats.n_aged += lg_queue_age(&eng->queue, eng->run, eng->n_run);
    for (lg_seq *seq; (seq = lg_queue_next(&eng->queue));) {
        if (!any_slot_free(eng) && !last_of(eng, LG_MAX_HOME, floor_of(seq))) return;
        if (hold(eng, seq)) continue;
        if (lg_reuse_is_coming(eng, seq)) return; /* and who comes later may want it too */
        bool ok = admit(eng, seq);
        uint32_t home = ok ? LG_MAX_HOME : home_to_clear(eng, seq);
        while (!ok && home != LG_MAX_HOME) {
            lg_seq *out = last_of(eng, home, floor_of(seq));
            if (!out) break;
            lg_admit_put_back(eng, out, copy_is_cheaper(eng, out));
            ok = admit(eng, seq);
        }
        if (!ok) return;
    }
}

/* Have the page that the sequence's next row needs. */
static bool grow(lg_engine *eng, const lg_seq *seq) {
    lg_home *h = &eng->home[seq->home];
    if (pages_of(seq->sampler.n_id) <= h->state.n_page_of[seq->slot]) return true;
    if (!lg_prefix_make_room(&h->prefix, 1, LG_PREFIX_NONE) &&
        !(h->disk && lg_disk_yield(h->disk) &&
          lg_prefix_make_room(&h->prefix, 1, LG_PREFIX_NONE)))
        return false;
    return lg_state_grow(&h->state, seq->slot) == LG_OK;
}

void lg_admit_grow(lg_engine *eng) {
    for (uint32_t i = 0; i < eng->n_run;) {
        lg_seq *seq = eng->run[i];
        if (grow(eng, seq)) {
            i++;
            continue;
        }
        if (eng->home[seq->home].n_run == 1) {
            /* Its home holds a whole context: not reached unless pages were lost. */
            lg_engine_end(eng, seq, LG_FINISH_ERROR, LG_E_NOMEM);
            continue;
        }
        /* Pages are what is needed: kept beyond its last snapshot, they would be evicted at once. */
        lg_admit_put_back(eng, last_of(eng, seq->home, INT64_MIN), false);
        eng->spare = eng->spare * 2.0 < LG_MAX_SPARE ? eng->spare * 2.0 : LG_MAX_SPARE;
        i = 0;
    }
}
