/* comm_threads.c - see comm_threads.h. */
#include "comm_threads.h"

#include "base/mem.h"
#include "base/num.h"

#include <pthread.h>
#include <string.h>

typedef struct letter {
    struct letter *next;
    int tag;
    uint32_t hidden; /* tests that do not see it yet */
    size_t n_bytes;
    uint8_t data[];
} letter;

/* A receive under way. */
typedef struct want {
    uint32_t from, rank;
    int tag;
    void *buf;
    size_t cap_bytes;
    struct want *next; /* of this rank, in order of posting */
} want;

typedef struct end {
    comm_world *w;
    uint32_t rank;
    want *wants;
    uint64_t n_test;
} end;

struct comm_world {
    uint32_t n_rank, n_node, jitter;
    pthread_mutex_t lock;
    letter **box; /* [n_rank to][n_rank from] */
    end *ends;
    bool mute[LG_MAX_RANK];
    uint64_t n_sent;
};

static lg_status t_send(void *impl, uint32_t to, int tag, const void *buf, size_t n_bytes,
                        lg_comm_req *req) {
    end *e = impl;
    comm_world *w = e->w;
    letter *l = lg_mem_alloc(sizeof *l + n_bytes);
    if (!l) return LG_E_COMM;
    l->tag = tag;
    l->n_bytes = n_bytes;
    memcpy(l->data, buf, n_bytes);
    pthread_mutex_lock(&w->lock);
    if (w->jitter) l->hidden = (uint32_t)(lg_num_rng(w->n_sent++, to, 0, 0) % (w->jitter + 1));
    letter **at = &w->box[to * w->n_rank + e->rank];
    while (*at) at = &(*at)->next;
    if (w->mute[e->rank])
        lg_mem_free(l);
    else
        *at = l;
    pthread_mutex_unlock(&w->lock);
    req->handle = NULL;
    return LG_OK;
}

static lg_status t_recv(void *impl, uint32_t from, int tag, void *buf, size_t cap_bytes,
                        lg_comm_req *req) {
    end *e = impl;
    want *m = lg_mem_alloc(sizeof *m), **at = &e->wants;
    if (!m) return LG_E_COMM;
    *m = (want){.from = from, .rank = e->rank, .tag = tag, .buf = buf, .cap_bytes = cap_bytes};
    while (*at) at = &(*at)->next;
    *at = m;
    req->handle = m;
    return LG_OK;
}

/* Whether an earlier receive of the same kind is still open: messages arrive in order. */
static bool is_behind(const end *e, const want *m) {
    for (const want *o = e->wants; o != m; o = o->next)
        if (o->from == m->from && o->tag == m->tag) return true;
    return false;
}

static lg_status t_test(void *impl, lg_comm_req *req, bool *done) {
    end *e = impl;
    comm_world *w = e->w;
    want *m = req->handle;
    *done = !m;
    if (!m || is_behind(e, m)) return LG_OK;
    pthread_mutex_lock(&w->lock);
    letter **at = &w->box[e->rank * w->n_rank + m->from];
    while (*at && (*at)->tag != m->tag) at = &(*at)->next;
    letter *l = *at;
    if (l && l->hidden) {
        l->hidden--;
        l = NULL;
    }
    if (l) *at = l->next;
    pthread_mutex_unlock(&w->lock);
    if (!l) return LG_OK;
    LG_ASSERT(l->n_bytes <= m->cap_bytes);
    memcpy(m->buf, l->data, l->n_bytes);
    req->n_bytes = l->n_bytes;
    req->handle = NULL;
    *done = true;
    want **of = &e->wants;
    while (*of != m) of = &(*of)->next;
    *of = m->next;
    lg_mem_free(m);
    lg_mem_free(l);
    return LG_OK;
}

static void t_close(void *impl, bool abort) {
    end *e = impl;
    (void)abort;
    for (want *m = e->wants, *next; m; m = next) {
        next = m->next;
        lg_mem_free(m);
    }
    e->wants = NULL;
}

comm_world *comm_threads_open(uint32_t n_rank, uint32_t n_node, uint32_t jitter) {
    comm_world *w = lg_mem_alloc(sizeof *w);
    LG_ASSERT(w && n_rank % n_node == 0);
    w->n_rank = n_rank;
    w->n_node = n_node;
    w->jitter = jitter;
    pthread_mutex_init(&w->lock, NULL);
    w->box = lg_mem_calloc((size_t)n_rank * n_rank, sizeof *w->box);
    w->ends = lg_mem_calloc(n_rank, sizeof *w->ends);
    LG_ASSERT(w->box && w->ends);
    return w;
}

void comm_threads_close(comm_world *w) {
    for (uint32_t i = 0; i < w->n_rank * w->n_rank; i++)
        for (letter *l = w->box[i], *next; l; l = next) {
            next = l->next;
            lg_mem_free(l);
        }
    pthread_mutex_destroy(&w->lock);
    lg_mem_free(w->box);
    lg_mem_free(w->ends);
    lg_mem_free(w);
}

void comm_threads_join(comm_world *w, uint32_t rank, lg_comm *c) {
    static const lg_comm_ops ops = {
        .send = t_send, .recv = t_recv, .test = t_test, .close = t_close};
    lg_comm_self(c);
    w->ends[rank] = (end){.w = w, .rank = rank};
    c->ops = &ops;
    c->impl = &w->ends[rank];
    c->rank = rank;
    c->n_rank = w->n_rank;
    c->n_node = w->n_node;
    c->timeout_us = 60 * 1000000;
    for (uint32_t r = 0; r < w->n_rank; r++) c->node[r] = r / (w->n_rank / w->n_node);
}

void comm_threads_mute(comm_world *w, uint32_t rank) {
    pthread_mutex_lock(&w->lock);
    w->mute[rank] = true;
    pthread_mutex_unlock(&w->lock);
}

typedef struct start {
    void (*body)(void *ctx, uint32_t rank);
    void *ctx;
    uint32_t rank;
} start;

static void *run(void *arg) {
    const start *s = arg;
    s->body(s->ctx, s->rank);
    return NULL;
}

void comm_threads_run(uint32_t n_rank, void (*body)(void *ctx, uint32_t rank), void *ctx) {
    pthread_t thread[LG_MAX_RANK];
    start s[LG_MAX_RANK];
    for (uint32_t r = 0; r < n_rank; r++) {
        s[r] = (start){body, ctx, r};
        LG_ASSERT(pthread_create(&thread[r], NULL, run, &s[r]) == 0);
    }
    for (uint32_t r = 0; r < n_rank; r++) pthread_join(thread[r], NULL);
}
