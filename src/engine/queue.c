/* queue.c - who waits, and who is next: see engine.h.
 *
 * In:  requests with a client's number and a priority.   Out: the next to be admitted.
 * Fair among clients (start-time fair queueing, Goyal, Vin and Cheng 1996): each client has a clock of the work done for it, and
 * among the earliest priority the client with the least goes first; one that comes anew begins at the clock of whoever was
 * served last, so that rest earns nothing and a hundred requests of one client do not delay the first of another.
 * Invariants: a client's line is sorted by priority, then put-back before new, then age; n_wait counts all lines.
 * Thread: engine.  Memory: the table of clients; it grows at lg_submit.  Test: tests/unit/test_sched.c */
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

void lg_queue_charge(lg_queue *q, const lg_seq *seq, double work) {
    q->client[seq->client].used += work;
}

/* ---- order ---- */

/* Within one client's line. */
static bool ahead(const lg_seq *x, const lg_seq *y) {
    if (x->priority != y->priority) return x->priority < y->priority;
    if ((x->n_preempt > 0) != (y->n_preempt > 0)) return x->n_preempt > 0;
    return x->id < y->id;
}

bool lg_queue_before(const lg_queue *q, const lg_seq *x, const lg_seq *y) {
    double ux = q->client[x->client].used, uy = q->client[y->client].used;
    if (x->priority != y->priority) return x->priority < y->priority;
    if ((x->n_preempt > 0) != (y->n_preempt > 0)) return x->n_preempt > 0;
    return ux != uy ? ux < uy : x->id < y->id;
}

void lg_queue_return(lg_queue *q, lg_seq *seq) {
    lg_client *c = &q->client[seq->client];
    lg_seq *at = c->last; /* goes after this one */
    while (at && ahead(seq, at)) at = at->prev;
    seq->prev = at;
    seq->next = at ? at->next : c->first;
    *(at ? &at->next : &c->first) = seq;
    *(seq->next ? &seq->next->prev : &c->last) = seq;
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
    *(seq->prev ? &seq->prev->next : &c->first) = seq->next;
    *(seq->next ? &seq->next->prev : &c->last) = seq->prev;
    seq->prev = seq->next = NULL;
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
