/* spread.c - see spread.h.
 *
 * Each rank begins with another peer, so that no way in is crowded.
 * Thread: engine.  Memory: the caller's arena; nothing is allocated in a step.  Test: tests/unit/test_spread.c */
#include "dist/spread.h"
#include "dist/tags.h"

#include <string.h>

void lg_spread_carve(lg_arena *a, lg_comm *comm, uint32_t n_head, lg_spread *s) {
    *s = (lg_spread){.comm = comm, .n_head = n_head};
    s->req = lg_arena_take(a, 2 * (size_t)comm->n_rank * LG_SPREAD_DEPTH, sizeof *s->req);
    s->home = lg_arena_take(a, comm->n_rank, sizeof *s->home);
}

void lg_spread_begin(lg_spread *s, uint32_t owner, uint32_t n_row) {
    uint32_t n_rank = s->comm->n_rank;
    s->owner = owner;
    s->n_row = n_row;
    for (uint32_t r = 0; r < n_rank; r++) {
        uint32_t p = lg_spread_place(owner, n_rank, r);
        s->row0[r] = lg_spread_part(n_row, n_rank, p);
        s->n[r] = lg_spread_part(n_row, n_rank, p + 1) - s->row0[r];
    }
    memset(s->req, 0, 2 * (size_t)n_rank * LG_SPREAD_DEPTH * sizeof *s->req);
    memset(s->home, 0, n_rank * sizeof *s->home);
    s->n_req = s->n_home = 0;
}

static uint32_t n_head_of(const lg_spread *s, uint32_t rank) {
    return lg_spread_head0(s, rank + 1) - lg_spread_head0(s, rank);
}

size_t lg_spread_block(const lg_spread *s, uint32_t r, uint32_t h, size_t w) {
    /* The rank of a head: the last one whose first head is not after it. */
    uint32_t rank = (uint32_t)(((uint64_t)h * s->comm->n_rank) / s->n_head);
    while (lg_spread_head0(s, rank + 1) <= h) rank++;
    uint32_t h0 = lg_spread_head0(s, rank), n_own = lg_spread_n_row(s);
    return ((size_t)n_own * h0 + (size_t)r * n_head_of(s, rank) + (h - h0)) * w;
}

/* One message of n_word words at p; nothing when it is empty. */
static lg_status post(lg_spread *s, bool send, uint32_t peer, int tag, uint32_t *p,
                      size_t n_word, lg_comm_req *req, uint32_t *n) {
    lg_comm *c = s->comm;
    if (n_word == 0) return LG_OK;
    size_t bytes = n_word * sizeof *p;
    return send ? lg_comm_send(c, peer, tag, p, bytes, &req[(*n)++])
                : lg_comm_recv(c, peer, tag, p, bytes, &req[(*n)++]);
}

static void begin(lg_spread *s, lg_span_kind kind) {
    LG_ASSERT(s->n_req == 0 || s->comm->lost);
    s->n_req = 0;
    s->kind = kind;
    s->start_us = lg_trace_now(s->comm->trace);
}

void lg_spread_progress(lg_spread *s) {
    bool done;
    if (s->n_req) lg_comm_poll(s->comm, s->req, s->n_req, &done);
}

/* Wait for all that was posted; a span of it. */
lg_status lg_spread_wait(lg_spread *s) {
    lg_comm *c = s->comm;
    uint32_t n = s->n_req;
    s->n_req = 0;
    if (c->lost) return LG_E_COMM;
    LG_TRY(lg_comm_wait(c, s->req, n));
    lg_trace_add(c->trace, (lg_span_kind)s->kind, LG_TRACE_ROWS, c->layer, lg_spread_n_row(s),
                 s->start_us);
    return LG_OK;
}

lg_status lg_spread_swap(lg_spread *s, bool to_heads, size_t w, uint32_t *rows,
                         uint32_t *whole) {
    lg_comm *c = s->comm;
    uint32_t me = c->rank, n_own = s->n[me], h_own = n_head_of(s, me);
    size_t at = (size_t)n_own * lg_spread_head0(s, me) * w,
           to = (size_t)s->row0[me] * h_own * w;
    size_t own = (size_t)n_own * h_own * w * sizeof *rows;
    if (to_heads)
        memcpy(whole + to, rows + at, own);
    else
        memcpy(rows + at, whole + to, own);
    begin(s, to_heads ? LG_SPAN_HEADS : LG_SPAN_OUTPUT);
    for (int pass = 0; pass < 2; pass++) /* receives first */
        for (uint32_t d = 1; d < c->n_rank; d++) {
            uint32_t r = (me + d) % c->n_rank;
            bool of_rows = (pass == 1) == to_heads;
            uint32_t *p = of_rows ? rows + (size_t)n_own * lg_spread_head0(s, r) * w
                                  : whole + (size_t)s->row0[r] * h_own * w;
            size_t n =
                (of_rows ? (size_t)n_own * n_head_of(s, r) : (size_t)s->n[r] * h_own) * w;
            LG_TRY(post(s, pass == 1, r, LG_TAG_SWAP, p, n, s->req, &s->n_req));
        }
    return LG_OK;
}

lg_status lg_spread_gather(lg_spread *s, size_t w, uint32_t *all) {
    lg_comm *c = s->comm;
    uint32_t me = c->rank;
    begin(s, LG_SPAN_KEYS);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t d = 1; d < c->n_rank; d++) {
            uint32_t r = (me + d) % c->n_rank, whose = pass ? me : r;
            LG_TRY(post(s, pass == 1, r, LG_TAG_GATHER, all + s->row0[whose] * w,
                        s->n[whose] * w, s->req, &s->n_req));
        }
    return LG_OK;
}

/* The owner's blocks to the ranks of the heads, or back. */
static lg_status between(lg_spread *s, bool out, int tag, size_t w, uint32_t *heads,
                         lg_comm_req *req, uint32_t *n) {
    lg_comm *c = s->comm;
    uint32_t me = c->rank;
    *n = 0;
    if (me != s->owner)
        return post(s, !out, s->owner, tag, heads + lg_spread_head0(s, me) * w,
                    n_head_of(s, me) * w, req, n);
    for (uint32_t d = 1; d < c->n_rank; d++) {
        uint32_t r = (me + d) % c->n_rank;
        LG_TRY(post(s, out, r, tag, heads + lg_spread_head0(s, r) * w, n_head_of(s, r) * w, req,
                    n));
    }
    return LG_OK;
}

lg_status lg_spread_deal(lg_spread *s, size_t w, uint32_t *heads) {
    begin(s, LG_SPAN_DEAL);
    LG_TRY(between(s, true, LG_TAG_DEAL, w, heads, s->req, &s->n_req));
    return lg_spread_wait(s);
}

lg_status lg_spread_home(lg_spread *s, size_t w, uint32_t *heads) {
    LG_ASSERT(s->n_home == 0);
    s->home_us = lg_trace_now(s->comm->trace);
    s->home_layer = s->comm->layer;
    return between(s, false, LG_TAG_HOME_HEADS, w, heads, s->home, &s->n_home);
}

lg_status lg_spread_home_end(lg_spread *s) {
    uint32_t n = s->n_home;
    s->n_home = 0;
    if (n == 0) return LG_OK;
    LG_TRY(lg_comm_wait(s->comm, s->home, n));
    lg_trace_add(s->comm->trace, LG_SPAN_HOME, LG_TRACE_HOME, s->home_layer, lg_spread_n_row(s),
                 s->home_us);
    return LG_OK;
}

lg_status lg_spread_copy(lg_spread *s, void *const *block, size_t n_bytes, uint32_t n_block) {
    lg_comm *c = s->comm;
    begin(s, LG_SPAN_PAGES);
    for (uint32_t i = 0; i < n_block; i += LG_SPREAD_DEPTH) {
        uint32_t end = n_block - i < LG_SPREAD_DEPTH ? n_block : i + LG_SPREAD_DEPTH;
        s->n_req = 0;
        for (uint32_t k = i; k < end; k++) {
            if (c->rank != s->owner) {
                LG_TRY(lg_comm_recv(c, s->owner, LG_TAG_COPY, block[k], n_bytes,
                                    &s->req[s->n_req++]));
                continue;
            }
            for (uint32_t d = 1; d < c->n_rank; d++)
                LG_TRY(lg_comm_send(c, (c->rank + d) % c->n_rank, LG_TAG_COPY, block[k],
                                    n_bytes, &s->req[s->n_req++]));
        }
        LG_TRY(lg_comm_wait(c, s->req, s->n_req));
    }
    s->n_req = 0;
    return lg_spread_wait(s);
}
