/* comm_sim.c - see comm_sim.h.
 *
 * The baton: run_next wakes the rank with the lowest time at which it has something to do: its clock when it computes, the next
 * arrival when it waits, never while it waits for a message that nobody has sent yet.
 * Thread: one for each rank, one at a time.  Memory: a copy of each message under way. */
#include "comm_sim.h"

#include "base/mem.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

typedef struct letter {
    struct letter *next;
    int tag;
    double at; /* when it is there */
    size_t n_bytes;
    uint8_t data[];
} letter;

typedef struct ask { /* a message of req->handle */
    uint32_t from;
    int tag;
    void *buf; /* NULL: one that is sent */
    double at; /* sent: when it has left */
} ask;

typedef struct end {
    sim *s;
    uint32_t rank;
    double clock, wake; /* wake: when it runs again; INFINITY: when something comes */
    double free_in;     /* when what it sent inside its machine has left */
    bool done, waits;
    pthread_cond_t turn;
} end;

/* Messages on their way into a machine, by the time at which their first byte comes. */
typedef struct inlet {
    double free_at; /* after the last one that is wholly there */
    uint32_t n;
    struct {
        double first, took;
        letter *l;
    } way[LG_MAX_RANK * 8];
} inlet;

struct sim {
    uint32_t n_rank, n_node;
    lg_links links;
    pthread_mutex_t lock;
    uint32_t runs;
    letter **box;     /* [n_rank to][n_rank from] */
    double *free_out; /* [n_node] when its way out is free */
    inlet *in;        /* [n_node] */
    end *ends;
};

static uint32_t node_of(const sim *s, uint32_t rank) {
    return rank / (s->n_rank / s->n_node);
}

/* Hand the baton to the rank that is first. */
static void run_next(sim *s) {
    uint32_t first = UINT32_MAX;
    for (uint32_t r = 0; r < s->n_rank; r++)
        if (!s->ends[r].done && (first == UINT32_MAX || s->ends[r].wake < s->ends[first].wake))
            first = r;
    if (first == UINT32_MAX) return;
    LG_ASSERT(isfinite(s->ends[first].wake)); /* else all wait for ever */
    s->runs = first;
    pthread_cond_signal(&s->ends[first].turn);
}

/* Give the baton away until this rank is first again. */
static void yield(end *e) {
    sim *s = e->s;
    run_next(s);
    while (s->runs != e->rank) pthread_cond_wait(&e->turn, &s->lock);
    e->waits = false;
    if (e->wake > e->clock) e->clock = e->wake;
}

void sim_compute(sim *s, uint32_t rank, double seconds) {
    end *e = &s->ends[rank];
    pthread_mutex_lock(&s->lock);
    e->clock += seconds;
    e->wake = e->clock;
    yield(e);
    pthread_mutex_unlock(&s->lock);
}

double sim_clock(const sim *s, uint32_t rank) {
    return s->ends[rank].clock;
}

/* One more on its way into a machine: those behind it come later. */
static void queue(inlet *q, double first, double took, letter *l) {
    LG_ASSERT(q->n < LG_COUNT(q->way));
    uint32_t at = q->n++;
    for (; at > 0 && q->way[at - 1].first > first; at--) q->way[at] = q->way[at - 1];
    q->way[at].first = first;
    q->way[at].took = took;
    q->way[at].l = l;
    double t = q->free_at;
    for (uint32_t i = 0; i < q->n; i++)
        q->way[i].l->at = t = fmax(q->way[i].first, t) + q->way[i].took;
}

/* One is taken from there. */
static void unqueue(inlet *q, const letter *l) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->n; i++)
        if (q->way[i].l != l) q->way[n++] = q->way[i];
    if (n < q->n) q->free_at = fmax(q->free_at, l->at);
    q->n = n;
}

/* Sent now: returns when it has left, l->at is when it is there. */
static double departure(end *e, uint32_t to, letter *l) {
    sim *s = e->s;
    uint32_t a = node_of(s, e->rank), b = node_of(s, to);
    bool inside = a == b;
    const lg_way *w = inside ? &s->links.in : &s->links.out;
    double *out = inside ? &e->free_in : &s->free_out[a];
    double took = (double)l->n_bytes / w->bytes_s, start = fmax(e->clock, *out);
    *out = start + took;
    l->at = *out + w->latency_s;
    if (!inside) queue(&s->in[b], start + w->latency_s, took, l);
    return *out;
}

static lg_status s_send(void *impl, uint32_t to, int tag, const void *buf, size_t n_bytes,
                        lg_comm_req *req) {
    end *e = impl;
    sim *s = e->s;
    letter *l = lg_mem_alloc(sizeof *l + n_bytes), **at = &s->box[to * s->n_rank + e->rank];
    ask *k = lg_mem_alloc(sizeof *k);
    LG_ASSERT(l && k);
    l->tag = tag;
    l->n_bytes = n_bytes;
    memcpy(l->data, buf, n_bytes);
    pthread_mutex_lock(&s->lock);
    bool inside = node_of(s, e->rank) == node_of(s, to);
    e->clock += (inside ? &s->links.in : &s->links.out)->message_s;
    *k = (ask){.at = departure(e, to, l)};
    while (*at) at = &(*at)->next;
    *at = l;
    end *peer = &s->ends[to];
    if (peer->waits && l->at < peer->wake) peer->wake = fmax(l->at, peer->clock);
    pthread_mutex_unlock(&s->lock);
    req->handle = k;
    return LG_OK;
}

static lg_status s_recv(void *impl, uint32_t from, int tag, void *buf, size_t cap_bytes,
                        lg_comm_req *req) {
    (void)impl;
    (void)cap_bytes;
    ask *k = lg_mem_alloc(sizeof *k);
    LG_ASSERT(k);
    *k = (ask){.from = from, .tag = tag, .buf = buf};
    req->handle = k;
    return LG_OK;
}

/* The first letter of a kind from a rank; *at its place. */
static letter *find(const sim *s, uint32_t to, const ask *k, letter ***at) {
    letter **p = &s->box[to * s->n_rank + k->from];
    while (*p && (*p)->tag != k->tag) p = &(*p)->next;
    *at = p;
    return *p;
}

static lg_status s_test(void *impl, lg_comm_req *req, bool *done) {
    end *e = impl;
    sim *s = e->s;
    ask *k = req->handle;
    letter **at = NULL, *l = NULL;
    pthread_mutex_lock(&s->lock);
    if (k->buf) l = find(s, e->rank, k, &at);
    *done = k->buf ? l && l->at <= e->clock : k->at <= e->clock;
    if (*done && l) {
        memcpy(k->buf, l->data, l->n_bytes);
        req->n_bytes = l->n_bytes;
        *at = l->next;
        unqueue(&s->in[node_of(s, e->rank)], l);
    }
    pthread_mutex_unlock(&s->lock);
    if (!*done) return LG_OK;
    if (l) lg_mem_free(l);
    lg_mem_free(k);
    req->handle = NULL;
    return LG_OK;
}

/* Until the next letter, or a little later when what is waited for is that something leaves. */
static void s_pause(void *impl) {
    end *e = impl;
    sim *s = e->s;
    pthread_mutex_lock(&s->lock);
    double out = fmax(e->free_in, s->free_out[node_of(s, e->rank)]);
    e->wake = out > e->clock ? out : INFINITY;
    for (uint32_t r = 0; r < s->n_rank; r++)
        for (const letter *l = s->box[e->rank * s->n_rank + r]; l; l = l->next)
            if (l->at > e->clock && l->at < e->wake) e->wake = l->at;
    e->waits = true;
    yield(e);
    pthread_mutex_unlock(&s->lock);
}

static void s_close(void *impl, bool abort) {
    (void)impl;
    (void)abort;
}

sim *sim_open(uint32_t n_rank, uint32_t n_node, const lg_links *links) {
    sim *s = lg_mem_alloc(sizeof *s);
    LG_ASSERT(s && n_rank % n_node == 0 && n_rank <= LG_MAX_RANK);
    *s = (sim){.n_rank = n_rank, .n_node = n_node, .links = *links};
    pthread_mutex_init(&s->lock, NULL);
    s->box = lg_mem_calloc((size_t)n_rank * n_rank, sizeof *s->box);
    s->free_out = lg_mem_calloc(n_node, sizeof *s->free_out);
    s->in = lg_mem_calloc(n_node, sizeof *s->in);
    s->ends = lg_mem_calloc(n_rank, sizeof *s->ends);
    LG_ASSERT(s->box && s->free_out && s->in && s->ends);
    for (uint32_t r = 0; r < n_rank; r++) {
        s->ends[r] = (end){.s = s, .rank = r};
        pthread_cond_init(&s->ends[r].turn, NULL);
    }
    return s;
}

void sim_close(sim *s) {
    for (uint32_t i = 0; i < s->n_rank * s->n_rank; i++)
        for (letter *l = s->box[i], *next; l; l = next) {
            next = l->next;
            lg_mem_free(l);
        }
    for (uint32_t r = 0; r < s->n_rank; r++) pthread_cond_destroy(&s->ends[r].turn);
    pthread_mutex_destroy(&s->lock);
    lg_mem_free(s->box);
    lg_mem_free(s->free_out);
    lg_mem_free(s->in);
    lg_mem_free(s->ends);
    lg_mem_free(s);
}

void sim_join(sim *s, uint32_t rank, lg_comm *c) {
    static const lg_comm_ops ops = {
        .send = s_send, .recv = s_recv, .test = s_test, .close = s_close, .pause = s_pause};
    lg_comm_self(c);
    c->ops = &ops;
    c->impl = &s->ends[rank];
    c->rank = rank;
    c->n_rank = s->n_rank;
    c->n_node = s->n_node;
    for (uint32_t r = 0; r < s->n_rank; r++) c->node[r] = node_of(s, r);
}

typedef struct start {
    sim *s;
    void (*body)(void *ctx, uint32_t rank);
    void *ctx;
    uint32_t rank;
} start;

static void *run(void *arg) {
    const start *a = arg;
    sim *s = a->s;
    end *e = &s->ends[a->rank];
    pthread_mutex_lock(&s->lock);
    while (s->runs != a->rank) pthread_cond_wait(&e->turn, &s->lock);
    pthread_mutex_unlock(&s->lock);
    a->body(a->ctx, a->rank);
    pthread_mutex_lock(&s->lock);
    e->done = true;
    run_next(s);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void sim_run(sim *s, void (*body)(void *ctx, uint32_t rank), void *ctx) {
    pthread_t thread[LG_MAX_RANK];
    start a[LG_MAX_RANK];
    s->runs = 0;
    for (uint32_t r = 0; r < s->n_rank; r++) {
        a[r] = (start){s, body, ctx, r};
        LG_ASSERT(pthread_create(&thread[r], NULL, run, &a[r]) == 0);
    }
    for (uint32_t r = 0; r < s->n_rank; r++) pthread_join(thread[r], NULL);
}
