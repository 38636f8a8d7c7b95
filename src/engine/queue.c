/* queue.c - who waits, and who is next: see engine.h.
 *
 * In:  requests with a client's number and a priority.   Out: the next to be admitted.
 * Fair among clients (start-time fair queueing, Goyal, Vin and Cheng 1996): each client has a clock of the work done for it, and
 * among the earliest priority the client with the least goes first; one that comes anew begins at the clock of whoever was
 * served last, so that rest earns nothing and a hundred requests of one client do not delay the first of another.
 * Ageing counts work, not time: a sixteenth of it is due to later priorities, whatever the machine's speed.  The oldest of them
 * gets it, so each comes to be the oldest; rest earns nothing here either.
 * Invariants: a client's line is sorted by rank, then put-back before new, then age; n_wait counts all lines.
 * Thread: engine.  Memory: the table of clients; it grows at lg_submit.  Test: tests/unit/test_sched.c, tests/unit/test_age.c */
#include "engine/engine.h"

#define MIN_CLIENT  64
#define MAX_RESTING 256 /* clients without requests that are remembered */
#define LOOK_AHEAD  64  /* requests of one client looked at, when the first ones are held */

static lg_status grow(lg_queue *q, uint32_t cap) {
    lg_client *p = lg_mem_realloc(q->client, cap * sizeof *p);
    if (!p) return LG_E_NOMEM;
    q->client = p;
    q->cap_client = cap;
    return LG_OK;
}

lg_status lg_queue_init(lg_queue *q) {
    *q = (lg_queue){0};
    return grow(q, MIN_CLIENT);
}

void lg_queue_fini(lg_queue *q) {
    for (uint32_t i = 0; i < q->n_client; i++) {
        while (q->client[i].first) {
            lg_seq *seq = q->client[i].first;
            q->client[i].first = seq->next;
            lg_seq_close(&seq);
        }
    }
    lg_mem_free(q->client);
    *q = (lg_queue){0};
}

/* ---- clients ---- */

/* The entry of a client, or one that may be given to it; n_client: there is none. */
static uint32_t find_entry(const lg_queue *q, uint64_t id) {
    uint32_t resting = 0, best = q->n_client;
    for (uint32_t i = 0; i < q->n_client; i++) {
        const lg_client *c = &q->client[i];
        if (c->id == id) return i;
        if (c->n_live) continue;
        resting++;
        if (best == q->n_client || c->used < q->client[best].used) best = i;
    }
    return resting < MAX_RESTING ? q->n_client : best;
}

lg_status lg_queue_enter(lg_queue *q, lg_seq *seq, uint64_t client) {
    uint32_t i = find_entry(q, client);
    if (i == q->cap_client) LG_TRY(grow(q, 2 * q->cap_client));
    lg_client *c = &q->client[i];
    if (i == q->n_client || c->id != client) *c = (lg_client){.id = client};
    if (i == q->n_client) q->n_client++;
    if (c->n_live++ == 0 && c->used < q->clock) c->used = q->clock;
    seq->client = i;
    lg_queue_return(q, seq);
    return LG_OK;
}

void lg_queue_leave(lg_queue *q, lg_seq *seq) {
    LG_ASSERT(q->client[seq->client].n_live > 0);
    q->client[seq->client].n_live--;
}

void lg_queue_charge(lg_queue *q, lg_seq *seq, double work) {
    q->client[seq->client].used += work;
    if (!seq->aged) {
        q->credit += work / LG_QUEUE_SHARE;
        return;
    }
    double paid = work < seq->prepaid ? work : seq->prepaid;
    seq->prepaid -= paid;
    q->credit -= work - paid;
    if (q->credit < -LG_QUEUE_DEBT) q->credit = -LG_QUEUE_DEBT;
}

/* ---- order ---- */

int64_t lg_queue_rank(const lg_seq *seq) {
    return seq->aged ? (int64_t)INT32_MIN - 1 : seq->priority;
}

/* Within one client's line. */
static bool ahead(const lg_seq *x, const lg_seq *y) {
    int64_t rx = lg_queue_rank(x), ry = lg_queue_rank(y);
    if (rx != ry) return rx < ry;
    if ((x->n_preempt > 0) != (y->n_preempt > 0)) return x->n_preempt > 0;
    return x->id < y->id;
}

bool lg_queue_before(const lg_queue *q, const lg_seq *x, const lg_seq *y) {
    double ux = q->client[x->client].used, uy = q->client[y->client].used;
    int64_t rx = lg_queue_rank(x), ry = lg_queue_rank(y);
    if (rx != ry) return rx < ry;
    if ((x->n_preempt > 0) != (y->n_preempt > 0)) return x->n_preempt > 0;
    return ux != uy ? ux < uy : x->id < y->id;
}

/* Into its client's line, or out of it. */
static void enlist(lg_client *c, lg_seq *seq) {
    lg_seq *at = c->last; /* goes after this one */
    while (at && ahead(seq, at)) at = at->prev;
    seq->prev = at;
    seq->next = at ? at->next : c->first;
    *(at ? &at->next : &c->first) = seq;
    *(seq->next ? &seq->next->prev : &c->last) = seq;
}

static void delist(lg_client *c, lg_seq *seq) {
    *(seq->prev ? &seq->prev->next : &c->first) = seq->next;
    *(seq->next ? &seq->next->prev : &c->last) = seq->prev;
    seq->prev = seq->next = NULL;
}

void lg_queue_return(lg_queue *q, lg_seq *seq) {
    lg_client *c = &q->client[seq->client];
    enlist(c, seq);
    seq->in_queue = true;
    c->n_wait++;
    q->n_wait++;
}

lg_seq *lg_queue_next(const lg_queue *q) {
    lg_seq *best = NULL;
    for (uint32_t i = 0; i < q->n_client; i++) {
        lg_seq *seq = q->client[i].first;
        for (uint32_t k = 0; seq && seq->hold_on && k < LOOK_AHEAD; k++) seq = seq->next;
        if (seq && !seq->hold_on && (!best || lg_queue_before(q, seq, best))) best = seq;
    }
    return best;
}

/* It waits for another sequence no more. */
static void end_hold(lg_seq *seq) {
    if (!seq->hold_on) return;
    seq->hold_on->n_holder--;
    seq->hold_on = NULL;
}

void lg_queue_remove(lg_queue *q, lg_seq *seq) {
    lg_client *c = &q->client[seq->client];
    end_hold(seq);
    delist(c, seq);
    seq->in_queue = false;
    c->n_wait--;
    q->n_wait--;
    if (c->used > q->clock) q->clock = c->used;
}

lg_seq *lg_queue_find(const lg_queue *q, uint64_t id) {
    for (uint32_t i = 0; i < q->n_client; i++)
        for (lg_seq *seq = q->client[i].first; seq; seq = seq->next)
            if (seq->id == id) return seq;
    return NULL;
}

void lg_queue_let_go(lg_queue *q, lg_seq *seq, uint32_t n_done) {
    if (seq->n_holder == 0 || n_done < seq->holder_pos) return;
    seq->holder_pos = UINT32_MAX;
    for (uint32_t i = 0; i < q->n_client && seq->n_holder; i++) {
        for (lg_seq *s = q->client[i].first; s; s = s->next) {
            if (s->hold_on != seq) continue;
            if (s->hold_pos <= n_done) {
                end_hold(s);
            } else if (s->hold_pos < seq->holder_pos) {
                seq->holder_pos = s->hold_pos;
            }
        }
    }
}

/* ---- ageing ---- */

/* The earliest priority of those that wait or run; INT64_MAX: there is none that has not aged. */
static int64_t earliest(const lg_queue *q, lg_seq *const *run, uint32_t n_run) {
    int64_t least = INT64_MAX;
    for (uint32_t i = 0; i < n_run; i++)
        if (!run[i]->aged && run[i]->priority < least) least = run[i]->priority;
    for (uint32_t i = 0; i < q->n_client; i++) {
        const lg_seq *seq = q->client[i].first;
        while (seq && seq->aged) seq = seq->next;
        if (seq && seq->priority < least) least = seq->priority;
    }
    return least;
}

/* The oldest that waits or reads its prompt in a priority later than `first`. */
static lg_seq *oldest_after(const lg_queue *q, lg_seq *const *run, uint32_t n_run,
                            int64_t first) {
    lg_seq *oldest = NULL;
    for (uint32_t i = 0; i < n_run; i++) {
        bool reads = run[i]->sampler.n_id - run[i]->n_done > 1;
        if (reads && lg_queue_rank(run[i]) > first && (!oldest || run[i]->id < oldest->id))
            oldest = run[i];
    }
    for (uint32_t i = 0; i < q->n_client; i++)
        for (lg_seq *s = q->client[i].first; s; s = s->next)
            if (lg_queue_rank(s) > first && (!oldest || s->id < oldest->id)) oldest = s;
    return oldest;
}

bool lg_queue_age(lg_queue *q, lg_seq *const *run, uint32_t n_run) {
    if (q->credit < q->credit_next) return false;
    lg_seq *seq = oldest_after(q, run, n_run, earliest(q, run, n_run));
    if (!seq) q->credit = 0;
    double need = seq ? seq->sampler.n_id - seq->n_done : 0.0;
    q->credit_next =
        q->credit + LG_QUEUE_LOOK; /* the oldest may leave, and the next need less */
    if (q->credit < need && need < q->credit_next) q->credit_next = need;
    if (q->credit_next < LG_QUEUE_LOOK) q->credit_next = LG_QUEUE_LOOK;
    if (!seq || q->credit < need || q->credit < LG_QUEUE_LOOK) return false;
    lg_client *c = &q->client[seq->client];
    if (seq->in_queue) delist(c, seq);
    end_hold(seq);
    seq->aged = true;
    seq->prepaid = need;
    q->credit -= need;
    q->credit_next = LG_QUEUE_LOOK;
    if (seq->in_queue) enlist(c, seq);
    return true;
}
