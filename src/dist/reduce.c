/* reduce.c - see reduce.h.
 *
 * Each chunk is a small state machine whose steps are posted when the one before has arrived and was added; whoever waits, or
 * has filled a chunk, moves all of them.  Tags say chunk and step, since ranks reach them in different orders.
 * In a window a place is filled again when every rank of the machine has read the chunk that was there; until then its rank waits in
 * wait_read, which moves the other chunks, so nobody waits for somebody who waits for him.
 * Thread: engine.  Memory: at open.  Test: tests/unit/test_reduce.c */
#include "dist/reduce.h"
#include "dist/tags.h"

#include "dist/window.h"

#include <stdatomic.h>
#include <string.h>

#define TAG_STEPS 16 /* at least 1 + log2(LG_MAX_RANK) */

/* ---- who is where ---- */

static bool is_power_of_two(uint32_t n) {
    return (n & (n - 1)) == 0;
}

/* Machines with the same number of ranks each; else every rank is a machine. */
static void find_places(lg_reduce *r) {
    const lg_comm *c = r->comm;
    uint32_t n_at[LG_MAX_RANK] = {0};
    r->n_node = c->n_node;
    r->n_local = c->n_rank / c->n_node;
    for (uint32_t k = 0; k < c->n_rank; k++) n_at[c->node[k]]++;
    for (uint32_t m = 0; m < c->n_node; m++)
        if (n_at[m] != c->n_rank / c->n_node || c->n_rank % c->n_node) {
            r->n_node = c->n_rank;
            r->n_local = 1;
        }
    memset(n_at, 0, sizeof n_at);
    for (uint32_t k = 0; k < c->n_rank; k++) {
        uint32_t m = r->n_node == c->n_node ? c->node[k] : k, l = n_at[m]++;
        r->rank_at[m * r->n_local + l] = (uint16_t)k;
        if (k != c->rank) continue;
        r->node = m;
        r->local = l;
    }
}

static uint32_t rank_of(const lg_reduce *r, uint32_t node, uint32_t local) {
    return r->rank_at[node * r->n_local + local];
}

/* ---- the window ---- */

/* At the start of each rank's part. */
typedef struct reduce_head {
    _Alignas(
        64) _Atomic uint64_t filled[LG_REDUCE_RING]; /* number of the chunk in each place */
    _Alignas(
        64) _Atomic uint64_t read[LG_REDUCE_RING]; /* and of the last that it has read there */
} reduce_head;

static size_t pack_floats(const lg_comm *c, uint32_t max_chunk, uint32_t n_embd) {
    size_t line = LG_MEM_ALIGN / sizeof(float);
    return ((size_t)c->n_rank * max_chunk * n_embd + line - 1) / line * line;
}

static uint32_t chunk_of(uint32_t max_row) {
    return max_row < LG_REDUCE_CHUNK ? max_row : LG_REDUCE_CHUNK;
}

size_t lg_reduce_window_bytes(const lg_comm *comm, uint32_t max_row, uint32_t n_embd) {
    return sizeof(reduce_head) +
           LG_REDUCE_RING * sizeof(float) * pack_floats(comm, chunk_of(max_row), n_embd);
}

static reduce_head *head_of(const lg_reduce *r, uint32_t rank) {
    return (reduce_head *)(void *)r->comm->window->part[rank];
}

/* What a rank has written to place i. */
static float *place_of(const lg_reduce *r, uint32_t rank, uint32_t i) {
    return (float *)(void *)(head_of(r, rank) + 1) +
           i * pack_floats(r->comm, r->max_chunk, r->n_embd);
}

/* Rows of a rank in a chunk. */
static uint32_t rows_of(const lg_reduce *r, uint32_t chunk, uint32_t rank) {
    uint32_t n = r->row0[rank + 1] - r->row0[rank], at = chunk * r->chunk;
    if (n <= at) return 0;
    return n - at < r->chunk ? n - at : r->chunk;
}

/* Rows in a chunk of the local-th ranks of machines [lo, hi). */
static uint32_t rows_between(const lg_reduce *r, uint32_t chunk, uint32_t local, uint32_t lo,
                             uint32_t hi) {
    uint32_t n = 0;
    for (uint32_t m = lo; m < hi; m++) n += rows_of(r, chunk, rank_of(r, m, local));
    return n;
}

void lg_reduce_carve(lg_arena *a, lg_comm *comm, lg_wire wire, uint32_t max_row,
                     uint32_t n_embd, lg_reduce *r) {
    *r = (lg_reduce){.comm = comm, .n_embd = n_embd, .wire = wire};
    r->max_chunk = chunk_of(max_row);
    find_places(r);
    r->shared = r->n_local > 1 && comm->window &&
                comm->window->part_bytes >= lg_reduce_window_bytes(comm, max_row, n_embd);
    size_t row = n_embd, chunk = r->max_chunk, f = sizeof(float);
    size_t n_in = (size_t)r->n_node * (r->n_local > 2 && !r->shared ? r->n_local - 1 : 1);
    for (uint32_t i = 0; i < LG_REDUCE_RING; i++) {
        lg_reduce_unit *u = &r->unit[i];
        u->pack = r->shared ? place_of(r, comm->rank, i)
                            : lg_arena_take(a, comm->n_rank * chunk * row, f);
        u->sum = lg_arena_take(a, r->n_node * chunk * row, f);
        u->in =
            lg_arena_take(a, n_in * chunk * (row + 1), f); /* one more: the scale of a q8 row */
        if (wire != LG_WIRE_F32)
            u->wire = lg_arena_take(a, r->n_node * chunk * lg_wire_words(wire, n_embd), f);
        u->req = lg_arena_take(a, 2 * (size_t)comm->n_rank, sizeof *u->req);
        if (r->shared) u->number = atomic_load(&head_of(r, comm->rank)->filled[i]);
        if (u->number > r->n_begun) r->n_begun = u->number;
    }
}

/* ---- messages of a unit ---- */

static int tag_of(const lg_reduce_unit *u) {
    return LG_TAG_REDUCE + (int)(u->chunk * TAG_STEPS + u->step);
}

/* How rows of the message under way are written. */
static lg_wire wire_of(const lg_reduce *r, const lg_reduce_unit *u) {
    return u->step == 0 ? LG_WIRE_F32 : r->wire;
}

static size_t row_words(const lg_reduce *r, const lg_reduce_unit *u) {
    return lg_wire_words(wire_of(r, u), r->n_embd);
}

/* at: rows sent to others in this step, which lie before these in the wire's buffer. */
static lg_status send_rows(lg_reduce *r, lg_reduce_unit *u, uint32_t to, const float *x,
                           uint32_t n, uint32_t *at) {
    const void *data = x;
    if (n == 0) return LG_OK;
    if (wire_of(r, u) != LG_WIRE_F32) {
        uint32_t *words = u->wire + *at * row_words(r, u);
        lg_wire_put(r->wire, x, n, r->n_embd, words);
        data = words;
    }
    *at += n;
    return lg_comm_send(r->comm, to, tag_of(u), data, n * row_words(r, u) * sizeof *x,
                        &u->req[u->n_req++]);
}

static lg_status recv_rows(lg_reduce *r, lg_reduce_unit *u, uint32_t from, float *x,
                           uint32_t n) {
    if (n == 0) return LG_OK;
    return lg_comm_recv(r->comm, from, tag_of(u), x, n * row_words(r, u) * sizeof *x,
                        &u->req[u->n_req++]);
}

/* Received rows, or parts of this rank's own: set or added. */
static void take_rows(const lg_reduce *r, lg_wire w, const float *x, uint32_t n, bool add,
                      float *y) {
    const uint32_t *words = (const uint32_t *)(const void *)x;
    if (add)
        lg_wire_add(w, words, n, r->n_embd, y);
    else
        lg_wire_get(w, words, n, r->n_embd, y);
}

/* Where the parts for the local-th ranks begin in pack. */
static float *pack_of(const lg_reduce *r, const lg_reduce_unit *u, uint32_t local) {
    size_t at = 0;
    for (uint32_t l = 0; l < local; l++) at += rows_between(r, u->chunk, l, 0, r->n_node);
    return u->pack + at * r->n_embd;
}

/* Where the sums of a unit's own rows are to lie when this machine is the only one. */
static float *out_of(const lg_reduce *r, const lg_reduce_unit *u) {
    return r->out + (size_t)u->chunk * r->chunk * r->n_embd;
}

/* The parts for other ranks of the machine go to them, or lie where they read. */
static lg_status post_local(lg_reduce *r, lg_reduce_unit *u) {
    uint32_t i = (uint32_t)(u - r->unit), n_sent = 0;
    uint32_t n_mine = rows_between(r, u->chunk, r->local, 0, r->n_node);
    float *in = u->in;
    if (r->shared)
        atomic_store_explicit(&head_of(r, r->comm->rank)->filled[i], u->number,
                              memory_order_release);
    for (uint32_t l = 0; l < r->n_local; l++) {
        uint32_t peer = rank_of(r, r->node, l);
        if (l == r->local) continue;
        if (r->shared)
            u->req[u->n_req++] = (lg_comm_req){.peer = peer, .active = true};
        else
            LG_TRY(recv_rows(r, u, peer, in, n_mine));
        in += (size_t)n_mine * r->n_embd;
    }
    for (uint32_t d = 1; d < r->n_local && !r->shared; d++) {
        uint32_t l = (r->local + d) % r->n_local;
        LG_TRY(send_rows(r, u, rank_of(r, r->node, l), pack_of(r, u, l),
                         rows_between(r, u->chunk, l, 0, r->n_node), &n_sent));
    }
    return LG_OK;
}

/* Parts of the machine's ranks, in order of rank. */
static void add_local(lg_reduce *r, lg_reduce_unit *u) {
    uint32_t n = rows_between(r, u->chunk, r->local, 0, r->n_node), i = (uint32_t)(u - r->unit);
    size_t own = (size_t)(pack_of(r, u, r->local) - u->pack);
    float *y = r->n_node == 1 ? out_of(r, u) : u->sum;
    for (uint32_t row = 0; row < n; row++) {
        const float *in = u->in + (size_t)row * r->n_embd;
        for (uint32_t l = 0; l < r->n_local; l++) {
            const float *x = l == r->local || r->shared ? u->pack : in;
            if (l != r->local && r->shared) x = place_of(r, rank_of(r, r->node, l), i);
            if (l == r->local || r->shared)
                x += own + (size_t)row * r->n_embd;
            else
                in += (size_t)n * r->n_embd;
            take_rows(r, LG_WIRE_F32, x, 1, l > 0, y + (size_t)row * r->n_embd);
        }
    }
    if (r->shared)
        atomic_store_explicit(&head_of(r, r->comm->rank)->read[i], u->number,
                              memory_order_release);
}

/* Rows of machines [lo, hi) inside sum, which begins with machine 0. */
static float *sum_of(const lg_reduce *r, const lg_reduce_unit *u, uint32_t lo) {
    return u->sum + (size_t)rows_between(r, u->chunk, r->local, 0, lo) * r->n_embd;
}

/* Send the half of the machines that this one is not in; keep the other. */
static lg_status post_half(lg_reduce *r, lg_reduce_unit *u) {
    uint32_t half = (u->hi - u->lo) / 2, mid = u->lo + half, lo = u->lo, hi = mid, peer;
    uint32_t n_sent = 0;
    if (r->node < mid) {
        lo = mid;
        hi = u->hi;
        peer = r->node + half;
        u->hi = mid;
    } else {
        peer = r->node - half;
        u->lo = mid;
    }
    peer = rank_of(r, peer, r->local);
    LG_TRY(recv_rows(r, u, peer, u->in, rows_between(r, u->chunk, r->local, u->lo, u->hi)));
    return send_rows(r, u, peer, sum_of(r, u, lo), rows_between(r, u->chunk, r->local, lo, hi),
                     &n_sent);
}

/* Each machine's rows straight to it. */
static lg_status post_direct(lg_reduce *r, lg_reduce_unit *u) {
    uint32_t n = rows_of(r, u->chunk, r->comm->rank), n_sent = 0;
    float *in = u->in;
    for (uint32_t m = 0; m < r->n_node; m++) {
        if (m == r->node) continue;
        LG_TRY(recv_rows(r, u, rank_of(r, m, r->local), in, n));
        in += n * row_words(r, u);
    }
    for (uint32_t d = 1; d < r->n_node; d++) {
        uint32_t m = (r->node + d) % r->n_node, k = rank_of(r, m, r->local);
        LG_TRY(send_rows(r, u, k, sum_of(r, u, m), rows_of(r, u->chunk, k), &n_sent));
    }
    u->lo = r->node;
    u->hi = r->node + 1;
    return LG_OK;
}

/* What the machines sent, in order of machine. */
static void add_direct(lg_reduce *r, lg_reduce_unit *u, float *out) {
    uint32_t n = rows_of(r, u->chunk, r->comm->rank);
    const float *in = u->in;
    for (uint32_t m = 0; m < r->n_node; m++) {
        bool mine = m == r->node;
        take_rows(r, mine ? LG_WIRE_F32 : r->wire, mine ? sum_of(r, u, m) : in, n, m > 0, out);
        if (!mine) in += n * row_words(r, u);
    }
}

/* Messages of the step are there: add them, post the next ones or end. */
static lg_status next_step(lg_reduce *r, lg_reduce_unit *u) {
    bool halving = is_power_of_two(r->n_node);
    float *mine = out_of(r, u);
    if (u->step == 0)
        add_local(r, u);
    else if (halving)
        take_rows(r, r->wire, u->in, rows_between(r, u->chunk, r->local, u->lo, u->hi), true,
                  sum_of(r, u, u->lo));
    else
        add_direct(r, u, mine);
    u->step++;
    u->n_req = 0;
    if (u->hi - u->lo > 1) return halving ? post_half(r, u) : post_direct(r, u);
    if (halving && r->n_node > 1)
        memcpy(mine, sum_of(r, u, r->node),
               (size_t)rows_of(r, u->chunk, r->comm->rank) * r->n_embd * sizeof *mine);
    u->active = false;
    lg_trace_add(r->comm->trace, LG_SPAN_SUMS, LG_TRACE_SUMS + u->chunk % LG_REDUCE_RING,
                 r->comm->layer, u->chunk, u->start_us);
    return LG_OK;
}

/* Whether what the unit waits for has come. */
static lg_status look(lg_reduce *r, lg_reduce_unit *u, bool *done) {
    if (!r->shared || u->step > 0) return lg_comm_poll(r->comm, u->req, u->n_req, done);
    uint32_t i = (uint32_t)(u - r->unit);
    *done = true;
    if (r->comm->lost) return LG_E_COMM;
    for (uint32_t k = 0; k < u->n_req; k++) {
        lg_comm_req *q = &u->req[k];
        q->active = q->active && atomic_load_explicit(&head_of(r, q->peer)->filled[i],
                                                      memory_order_acquire) < u->number;
        *done = *done && !q->active;
    }
    return LG_OK;
}

/* Move every unit as far as its messages have come; *moved when one made a step. */
static lg_status advance(lg_reduce *r, bool *moved) {
    *moved = false;
    for (uint32_t i = 0; i < LG_REDUCE_RING; i++) {
        lg_reduce_unit *u = &r->unit[i];
        bool done;
        if (!u->active) continue;
        LG_TRY(look(r, u, &done));
        if (!done) continue;
        LG_TRY(next_step(r, u));
        *moved = true;
    }
    return LG_OK;
}

/* A unit's place in the window may be written: every rank of the machine has read what was there. */
static lg_status wait_read(lg_reduce *r, lg_reduce_unit *u) {
    lg_comm_patience p = {0};
    uint32_t i = (uint32_t)(u - r->unit);
    for (;;) {
        bool done = true, moved;
        for (uint32_t l = 0; l < r->n_local; l++) {
            uint32_t peer = rank_of(r, r->node, l);
            u->req[l] = (lg_comm_req){.peer = peer};
            u->req[l].active = atomic_load_explicit(&head_of(r, peer)->read[i],
                                                    memory_order_acquire) < u->number;
            done = done && !u->req[l].active;
        }
        if (done) break;
        LG_TRY(advance(r, &moved));
        if (moved)
            p = (lg_comm_patience){0};
        else
            LG_TRY(lg_comm_pause(r->comm, &p, u->req, r->n_local));
    }
    u->number = ++r->n_begun;
    memset(u->req, 0, r->n_local * sizeof *u->req);
    return LG_OK;
}

/* Fill a chunk and post its parts inside the machine. */
static lg_status begin(lg_reduce *r, lg_reduce_unit *u, uint32_t chunk, lg_reduce_fill *fill,
                       void *ctx) {
    lg_trace *t = r->comm->trace;
    *u = (lg_reduce_unit){.chunk = chunk,
                          .hi = r->n_node,
                          .pack = u->pack,
                          .sum = u->sum,
                          .in = u->in,
                          .wire = u->wire,
                          .number = u->number,
                          .req = u->req};
    float *y = u->pack;
    memset(u->req, 0, 2 * (size_t)r->comm->n_rank * sizeof *u->req);
    if (r->shared) LG_TRY(wait_read(r, u));
    uint64_t start = lg_trace_now(t);
    for (uint32_t l = 0; l < r->n_local; l++)
        for (uint32_t m = 0; m < r->n_node; m++) {
            uint32_t k = rank_of(r, m, l), n = rows_of(r, chunk, k);
            if (n) fill(ctx, r->row0[k] + chunk * r->chunk, n, y);
            y += (size_t)n * r->n_embd;
        }
    lg_trace_add(t, LG_SPAN_COMBINE, 0, r->comm->layer, chunk, start);
    u->start_us = lg_trace_now(t);
    u->active = true; /* not before: progress would take it for one whose messages have come */
    return post_local(r, u);
}

void lg_reduce_progress(lg_reduce *r) {
    bool moved;
    advance(r, &moved);
}

static lg_status finish(lg_reduce *r, lg_reduce_unit *u) {
    lg_comm_patience p = {0};
    uint64_t start = lg_trace_now(r->comm->trace);
    if (!u->active) return LG_OK;
    while (u->active) {
        bool moved;
        LG_TRY(advance(r, &moved));
        if (moved)
            p = (lg_comm_patience){0};
        else
            LG_TRY(lg_comm_pause(r->comm, &p, u->req, u->n_req));
    }
    lg_trace_add(r->comm->trace, LG_SPAN_WAIT, 0, r->comm->layer, u->chunk, start);
    return LG_OK;
}

/* Rows of each rank in a chunk when one has `most`: a call shall have several, or nothing overlaps. */
static uint32_t choose_chunk(const lg_reduce *r, uint32_t most) {
    uint32_t n = (most + LG_REDUCE_PIECES - 1) / LG_REDUCE_PIECES;
    if (n < LG_REDUCE_LEAST) n = LG_REDUCE_LEAST;
    if (r->piece) n = r->piece;
    return n < r->max_chunk ? n : r->max_chunk;
}

lg_status lg_reduce_run(lg_reduce *r, const uint32_t *row0, lg_reduce_fill *fill, void *ctx,
                        float *out) {
    uint32_t most = 0, n_chunk;
    r->row0 = row0;
    r->out = out;
    for (uint32_t k = 0; k < r->comm->n_rank; k++)
        if (row0[k + 1] - row0[k] > most) most = row0[k + 1] - row0[k];
    r->chunk = choose_chunk(r, most);
    n_chunk = (most + r->chunk - 1) / r->chunk;
    for (uint32_t i = 0; i < LG_REDUCE_RING; i++) r->unit[i].active = false;
    for (uint32_t c = 0; c < n_chunk; c++) {
        lg_reduce_unit *u = &r->unit[c % LG_REDUCE_RING];
        bool moved;
        LG_TRY(finish(r, u));
        LG_TRY(begin(r, u, c, fill, ctx));
        if (r->no_overlap) LG_TRY(finish(r, u));
        LG_TRY(advance(r, &moved));
    }
    for (uint32_t c = 0; c < LG_REDUCE_RING; c++) LG_TRY(finish(r, &r->unit[c]));
    return LG_OK;
}

uint64_t lg_reduce_bytes(const lg_reduce *r, const uint32_t *row0) {
    uint64_t words = 0;
    for (uint32_t m = 0; m < r->n_node; m++)
        for (uint32_t l = 0; l < r->n_local; l++) {
            uint32_t k = rank_of(r, m, l), n = row0[k + 1] - row0[k];
            if (l != r->local)
                words += r->shared ? 0 : (uint64_t)n * r->n_embd; /* inside the machine */
            else if (m != r->node)
                words += n * lg_wire_words(r->wire, r->n_embd); /* between machines */
        }
    return words * sizeof(uint32_t);
}
