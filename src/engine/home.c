/* home.c - which home a new sequence gets: see engine.h.
 *
 * In:  homes, running sequences, kept texts.   Out: lg_seq.home.
 * Policy: every step is as long as its busiest owner's part, so a new prompt goes where least is owed; what an owner has
 * kept of it is not owed.  For the same reason prompts of several homes begin together.  No bit of an answer depends on it.
 * Thread: engine.  Memory: the homes, at open.  Test: tests/unit/test_home.c */
#include "engine/engine.h"

#define SHORT_ROWS 64 /* prompts that owe less together cost little more than an answer's row */

lg_status lg_home_open(lg_engine *eng) {
    const lg_budget *b = &eng->parts.budget;
    eng->home = lg_mem_calloc(eng->n_home, sizeof *eng->home);
    if (!eng->home) return LG_E_NOMEM;
    for (uint32_t i = 0; i < eng->n_home; i++) {
        lg_home *h = &eng->home[i];
        LG_TRY(lg_state_init(&h->state, b->opt.n_slot, b->opt.n_page, b->n_ctx));
        LG_TRY(lg_prefix_init(&h->prefix, &h->state.pages, b->opt.n_snap, b->page_bytes,
                              b->snap_bytes));
    }
    return LG_OK;
}

void lg_home_close(lg_engine *eng) {
    for (uint32_t i = 0; eng->home && i < eng->n_home; i++) {
        LG_ASSERT(!eng->home[i].disk);
        lg_prefix_fini(&eng->home[i].prefix);
        lg_state_fini(&eng->home[i].state);
    }
    LG_FREE(eng->home);
}

/* The three keys by which homes are compared, smallest first. */
typedef struct rating {
    uint64_t owed;      /* ids to compute before the new sequence has its first token */
    uint32_t n_run;     /* sequences there */
    uint32_t next_free; /* ids that the sequence nearest to its end may still produce */
} rating;

static rating rate(const lg_engine *eng, const lg_seq *seq, uint32_t home) {
    const lg_home *h = &eng->home[home];
    rating r = {.n_run = h->n_run, .next_free = UINT32_MAX};
    for (uint32_t i = 0; i < eng->n_run; i++) {
        const lg_seq *s = eng->run[i];
        if (s->home != home) continue;
        uint32_t left = s->sampler.n_id - s->n_done, n_ctx = h->state.n_ctx;
        uint32_t to_come = lg_seq_n_need(s, n_ctx) - s->sampler.n_id;
        if (left > 1) r.owed += left;
        if (to_come < r.next_free) r.next_free = to_come;
    }
    lg_prefix_hit hit;
    lg_prefix_find(&h->prefix, seq->salt, seq->sampler.ids, seq->sampler.n_id - 1, &hit);
    uint32_t kept = hit.pos;
    if (home == seq->file_home && kept < seq->file_pos) kept = seq->file_pos;
    r.owed += seq->sampler.n_id - kept;
    return r;
}

static bool is_better(rating a, rating b) {
    if (a.owed != b.owed) return a.owed < b.owed;
    if (a.n_run != b.n_run) return a.n_run < b.n_run;
    return a.next_free < b.next_free;
}

uint32_t lg_home_choose(const lg_engine *eng, const lg_seq *seq, const bool *tried) {
    uint32_t best = LG_MAX_HOME;
    rating top = {0};
    for (uint32_t i = 0; i < eng->n_home; i++) {
        if (tried[i]) continue;
        if (eng->n_home == 1) return i;
        rating r = rate(eng, seq, i);
        if (best < LG_MAX_HOME && !is_better(r, top)) continue;
        best = i;
        top = r;
    }
    return best;
}

/* What the homes do that matters for holding prompts. */
typedef struct outlook {
    uint32_t n_fresh,
        n_answer;     /* homes with prompts not begun; with answers and none of those */
    uint32_t n_quiet; /* without any answer */
    uint64_t owed;    /* by prompts not begun */
    bool urgent;      /* a prompt is being read, or one has aged */
} outlook;

static outlook look(const lg_engine *eng) {
    outlook o = {0};
    bool fresh[LG_MAX_HOME] = {0}, answers[LG_MAX_HOME] = {0};
    for (uint32_t i = 0; i < eng->n_run; i++) {
        const lg_seq *s = eng->run[i];
        uint32_t left = s->sampler.n_id - s->n_done;
        if (left == 1) {
            answers[s->home] = true;
            continue;
        }
        o.urgent |= s->aged || s->n_done > s->hit_pos;
        fresh[s->home] = true;
        o.owed += left;
    }
    for (uint32_t h = 0; h < eng->n_home; h++) {
        o.n_fresh += fresh[h];
        o.n_answer += answers[h] && !fresh[h];
        o.n_quiet += !answers[h];
    }
    return o;
}

bool lg_home_holds(lg_engine *eng) {
    if (eng->n_home == 1 || eng->parts.hold_steps == 0) return false;
    outlook o = look(eng);
    bool hold = o.n_fresh && o.n_answer && !o.urgent && o.owed > SHORT_ROWS &&
                o.n_quiet < o.n_fresh && eng->n_hold < eng->parts.hold_steps;
    eng->n_hold = hold ? eng->n_hold + 1 : 0;
    return hold;
}
