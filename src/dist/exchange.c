/* exchange.c - see exchange.h.
 *
 * Messages go straight from and into `all`, where each rank's head and records lie together.
 * Both ends of the way back know from the routing how many rows come in which order, so nothing but rows is sent.
 * Thread: engine.  Memory: the caller's arena; nothing is allocated in a step.  Test: tests/unit/test_exchange.c */
#include "dist/exchange.h"
#include "dist/tags.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

#define HEAD (LG_EXCHANGE_HEAD / 4) /* words */

static bool may_be(const lg_exchange *x, lg_exchange_kind kind) {
    return x->how.kind == kind ||
           (x->how.kind == LG_EXCHANGE_AUTO && kind != LG_EXCHANGE_STRICT);
}

static lg_exchange begin_with(lg_comm *comm, const lg_exchange_how *how, uint32_t max_row,
                              uint32_t n_embd, uint32_t k) {
    lg_exchange x = {.comm = comm,
                     .how = *how,
                     .kind = how->kind,
                     .max_row = max_row,
                     .n_embd = n_embd,
                     .k = k,
                     .hw = lg_wire_words(how->wire, n_embd),
                     .trail = LG_HASH_START,
                     .out_words = (size_t)max_row * k * n_embd};
    LG_ASSERT(how->kind != LG_EXCHANGE_STRICT || how->wire == LG_WIRE_F32);
    x.ld = x.hw + 2 * (size_t)k + (may_be(&x, LG_EXCHANGE_ALLTOALL) ? 1 : 0);
    return x;
}

/* Of a part of the window the reduce-scatter has the first bytes. */
static size_t reduce_bytes(const lg_exchange *x) {
    return may_be(x, LG_EXCHANGE_REDUCE)
               ? lg_reduce_window_bytes(x->comm, x->max_row, x->n_embd)
               : 0;
}

size_t lg_exchange_window_bytes(lg_comm *comm, const lg_exchange_how *how, uint32_t max_row,
                                uint32_t n_embd, uint32_t k) {
    lg_exchange x = begin_with(comm, how, max_row, n_embd, k);
    if (how->kind == LG_EXCHANGE_ALLTOALL) return 0;
    return reduce_bytes(&x) + LG_MEM_ALIGN + lg_shared_bytes(&x);
}

static bool has_neighbour(const lg_comm *c) {
    for (uint32_t r = 0; r < c->n_rank; r++)
        if (r != c->rank && c->node[r] == c->node[c->rank]) return true;
    return false;
}

void lg_exchange_carve(lg_arena *a, lg_comm *comm, const lg_place *place,
                       const lg_exchange_how *how, uint32_t max_row, uint32_t n_embd,
                       uint32_t k, lg_exchange *x) {
    size_t t = max_row, pairs = t * k, f = sizeof(float), u = sizeof(uint32_t);
    *x = begin_with(comm, how, max_row, n_embd, k);
    x->place = place;
    if (how->kind != LG_EXCHANGE_ALLTOALL) lg_shared_carve(x, reduce_bytes(x));
    x->all = lg_arena_take(a, t * x->ld + (size_t)comm->n_rank * HEAD, u);
    x->first = lg_arena_take(a, (size_t)place->n_expert + 1, u);
    x->in_row = lg_arena_take(a, pairs, u);
    x->in = lg_arena_take(a, t * n_embd, f);
    x->pair = lg_arena_take(a, pairs, u);
    if (may_be(x, LG_EXCHANGE_REDUCE))
        lg_reduce_carve(a, comm, how->wire, max_row, n_embd, &x->reduce);
    if (may_be(x, LG_EXCHANGE_ALLTOALL)) lg_alltoall_carve(a, x);
    if (how->kind == LG_EXCHANGE_STRICT) {
        if (!x->shared) x->pack = lg_arena_take(a, pairs * n_embd, f);
        x->back = lg_arena_take(a, pairs * n_embd, f);
        x->back_at = lg_arena_take(a, pairs, u);
    }
    /* A plan is made before there is a window: it has room for all of it. */
    if (!x->shared && how->kind != LG_EXCHANGE_ALLTOALL && has_neighbour(comm))
        lg_arena_take(a, lg_shared_more_bytes(x), 1);
    x->out = lg_arena_take(a, x->out_words, f);
    x->req = lg_arena_take(a, 2 * (size_t)comm->n_rank, sizeof *x->req);
    x->peer = lg_arena_take(a, comm->n_rank, sizeof *x->peer);
    x->reduce.no_overlap = how->no_overlap;
}

static lg_exchange_kind kind_of(const lg_exchange *x) {
    if (x->how.kind != LG_EXCHANGE_AUTO) return x->how.kind;
    lg_group_shape g = {x->comm->n_rank,    x->comm->n_node, x->n_embd, x->k,
                        x->place->n_expert, x->how.wire};
    lg_row_count n = {x->row0[x->comm->n_rank], 0};
    for (uint32_t r = 0; r < x->comm->n_rank; r++)
        n.most = fmax(n.most, x->row0[r + 1] - x->row0[r]);
    return lg_exchange_choose(&x->how.links, &g, n);
}

/* What every rank does alike goes into the trail. */
static void note(lg_exchange *x, uint32_t what, uint32_t value) {
    uint32_t word[2] = {what, value};
    x->trail = lg_hash_add(x->trail, word, sizeof word);
}

void lg_exchange_begin(lg_exchange *x, const uint32_t *n_row) {
    memset(x->req, 0, 2 * (size_t)x->comm->n_rank * sizeof *x->req);
    x->n_req = 0;
    x->flying = false;
    x->row0[0] = 0;
    for (uint32_t r = 0; r < x->comm->n_rank; r++) {
        LG_ASSERT(n_row[r] <= x->max_row - x->row0[r]);
        x->row0[r + 1] = x->row0[r] + n_row[r];
    }
    x->kind = kind_of(x);
    note(x, x->kind, x->comm->n_rank);
    x->trail = lg_hash_add(x->trail, x->row0, (x->comm->n_rank + 1) * sizeof *x->row0);
}

/* ---- rows ---- */

void lg_exchange_head(const lg_exchange *x, uint32_t n, uint32_t head[HEAD]) {
    head[0] = (uint32_t)x->comm->step;
    head[1] = x->layer;
    head[2] = n;
    head[3] = (uint32_t)(x->trail ^ (x->trail >> 32));
}

/* Where each rank's head and records lie. */
static void find_blocks(lg_exchange *x, bool shared) {
    for (uint32_t r = 0; r < x->comm->n_rank; r++)
        x->block[r] = shared && lg_shared_has(x, r)
                          ? lg_shared_block(x, r)
                          : x->all + (size_t)r * HEAD + x->row0[r] * x->ld;
}

/* One own row, its experts in ascending id. */
static void put_record(const lg_exchange *x, uint32_t g, const float *xn, const uint32_t *id,
                       const float *w, uint32_t *record) {
    uint32_t *to_id = record + x->hw;
    float *to_w = (float *)(void *)(to_id + x->k);
    lg_wire_put(x->how.wire, xn, 1, x->n_embd, record);
    for (uint32_t j = 0; j < x->k; j++) {
        uint32_t at = j;
        for (; at > 0 && to_id[at - 1] > id[j]; at--) {
            to_id[at] = to_id[at - 1];
            to_w[at] = to_w[at - 1];
        }
        to_id[at] = id[j];
        to_w[at] = w[j];
    }
    if (x->ld > x->hw + 2 * (size_t)x->k) record[x->ld - 1] = g;
}

/* Every row to every rank. */
static lg_status start_gather(lg_exchange *x) {
    lg_comm *c = x->comm;
    uint32_t me = c->rank, n_own = lg_exchange_n_own(x);
    for (uint32_t r = 0; r < c->n_rank; r++) {
        uint32_t n = x->row0[r + 1] - x->row0[r];
        x->n_got[r] = n;
        if (r != me && n && !lg_shared_has(x, r))
            LG_TRY(lg_comm_recv(c, r, LG_TAG_ROWS, x->block[r],
                                LG_EXCHANGE_HEAD + n * x->ld * sizeof(uint32_t),
                                &x->req[x->n_req++]));
    }
    lg_exchange_head(x, n_own, x->block[me]);
    if (x->shared) lg_shared_post_rows(x);
    for (uint32_t d = 1; n_own && d < c->n_rank; d++) { /* each rank begins with another one */
        uint32_t to = (me + d) % c->n_rank;
        if (lg_shared_has(x, to)) continue;
        LG_TRY(lg_comm_send(c, to, LG_TAG_ROWS, x->block[me],
                            LG_EXCHANGE_HEAD + n_own * x->ld * sizeof(uint32_t),
                            &x->req[x->n_req++]));
    }
    return LG_OK;
}

lg_status lg_exchange_start(lg_exchange *x, uint32_t layer, const float *xn,
                            const uint32_t *top_id, const float *top_w) {
    lg_comm *c = x->comm;
    uint32_t me = c->rank, g0 = x->row0[me];
    x->layer = layer;
    lg_comm_at(c, "rows", layer);
    note(x, LG_TAG_ROWS, layer);
    x->n_req = 0;
    x->start_us = lg_trace_now(c->trace);
    bool shared = x->shared && x->kind != LG_EXCHANGE_ALLTOALL;
    x->n_shared += shared;
    find_blocks(x, shared);
    for (uint32_t g = g0; g < x->row0[me + 1]; g++) {
        size_t i = g - g0;
        put_record(x, g, xn + i * x->n_embd, top_id + i * x->k, top_w + i * x->k,
                   lg_exchange_record(x, me, g));
    }
    LG_TRY(x->kind == LG_EXCHANGE_ALLTOALL ? lg_alltoall_start(x) : start_gather(x));
    x->flying = !x->how.no_overlap;
    return x->flying ? LG_OK : lg_comm_wait(c, x->req, x->n_req);
}

static lg_status check_heads(const lg_exchange *x) {
    for (uint32_t r = 0; r < x->comm->n_rank; r++) {
        uint32_t want[HEAD];
        if (x->n_got[r] == 0) continue;
        const uint32_t *got = x->block[r];
        lg_exchange_head(x, x->n_got[r], want);
        if (r != x->comm->rank && memcmp(got, want, 3 * sizeof *want) != 0)
            return lg_comm_lose(
                x->comm,
                "rows of rank %u are of step %u, layer %u, %u rows; expected step "
                "%u, layer %u, %u rows",
                r, got[0], got[1], got[2], want[0], want[1], want[2]);
        if (r != x->comm->rank && got[3] != want[3])
            return lg_comm_lose(x->comm,
                                "rank %u came to step %u, layer %u by other collectives "
                                "or other numbers of rows than this one",
                                r, got[0], got[1]);
        for (uint32_t i = 0; i < x->n_got[r]; i++) {
            const uint32_t *id = lg_exchange_ids(x, lg_exchange_record(x, r, x->row0[r] + i));
            for (uint32_t j = 0; j < x->k; j++)
                if (id[j] >= x->place->n_expert || (j && id[j - 1] >= id[j]))
                    return lg_comm_lose(x->comm, "rank %u routes a row to expert %u", r, id[j]);
        }
    }
    return LG_OK;
}

/* The number among all rows of a record. */
static uint32_t number_of(const lg_exchange *x, const uint32_t *record, uint32_t at) {
    return x->kind == LG_EXCHANGE_ALLTOALL ? record[x->ld - 1] : at;
}

static void count_pairs(lg_exchange *x) {
    const lg_place *p = x->place;
    memset(x->first, 0, ((size_t)p->n_expert + 1) * sizeof *x->first);
    for (uint32_t r = 0; r < x->comm->n_rank; r++)
        for (uint32_t at = x->row0[r]; at < x->row0[r] + x->n_got[r]; at++) {
            const uint32_t *record = lg_exchange_record(x, r, at);
            const uint32_t *id = lg_exchange_ids(x, record);
            uint32_t g = number_of(x, record, at);
            for (uint32_t j = 0; j < x->k; j++) {
                if (lg_place_rank(p, x->layer, id[j], g) == x->comm->rank)
                    x->first[id[j] + 1]++;
                if (x->n_chosen && r == x->comm->rank)
                    x->n_chosen[(size_t)x->layer * p->n_expert + id[j]]++;
            }
        }
    for (uint32_t e = 0; e < p->n_expert; e++) x->first[e + 1] += x->first[e];
}

/* Counting sort by expert of the pairs that this rank computes; rows stay in order inside an expert. */
static void sort_pairs(lg_exchange *x) {
    const lg_place *p = x->place;
    uint32_t me = x->comm->rank, n_rank = x->comm->n_rank, k = x->k;
    count_pairs(x);
    x->n_in = 0;
    for (uint32_t r = 0; r < n_rank; r++)
        for (uint32_t at = x->row0[r]; at < x->row0[r] + x->n_got[r]; at++) {
            const uint32_t *record = lg_exchange_record(x, r, at);
            const uint32_t *id = lg_exchange_ids(x, record);
            uint32_t g = number_of(x, record, at);
            bool any = false;
            for (uint32_t j = 0; j < k; j++) {
                uint32_t *pair = &x->pair[(size_t)at * k + j];
                *pair = UINT32_MAX;
                if (lg_place_rank(p, x->layer, id[j], g) != me) continue;
                *pair = x->first[id[j]]++; /* the cursor of this expert */
                x->in_row[*pair] = x->n_in;
                any = true;
            }
            if (!any) continue;
            lg_wire_get(x->how.wire, record, 1, x->n_embd,
                        x->in + (size_t)x->n_in++ * x->n_embd);
        }
    memmove(x->first + 1, x->first, p->n_expert * sizeof *x->first);
    x->first[0] = 0;
}

lg_status lg_exchange_arrive(lg_exchange *x) {
    lg_trace *t = x->comm->trace;
    x->flying = false;
    if (x->shared && x->kind != LG_EXCHANGE_ALLTOALL) LG_TRY(lg_shared_wait_rows(x));
    LG_TRY(lg_comm_wait(x->comm, x->req, x->n_req));
    lg_trace_add(t, LG_SPAN_ROWS, LG_TRACE_ROWS, x->layer, lg_exchange_n_own(x), x->start_us);
    uint64_t start = lg_trace_now(t);
    if (x->kind == LG_EXCHANGE_ALLTOALL) LG_TRY(lg_alltoall_arrive(x));
    LG_TRY(check_heads(x));
    sort_pairs(x);
    lg_trace_add(t, LG_SPAN_SORT, 0, x->layer, x->first[x->place->n_expert], start);
    return LG_OK;
}

void lg_exchange_known(lg_exchange *x, uint32_t layer, uint32_t owner, const float *xn,
                       const uint32_t *top_id, const float *top_w) {
    x->layer = layer;
    x->kind = LG_EXCHANGE_STRICT;
    note(x, LG_TAG_KNOWN, layer);
    find_blocks(x, false);
    for (uint32_t r = 0; r < x->comm->n_rank; r++) x->n_got[r] = x->row0[r + 1] - x->row0[r];
    for (uint32_t g = x->row0[owner]; g < x->row0[owner + 1]; g++) {
        size_t i = g - x->row0[owner];
        put_record(x, g, xn + i * x->n_embd, top_id + i * x->k, top_w + i * x->k,
                   lg_exchange_record(x, owner, g));
    }
    sort_pairs(x);
}

void lg_exchange_progress(lg_exchange *x) {
    bool done;
    if (!x->flying) return;
    if (x->n_req) lg_comm_poll(x->comm, x->req, x->n_req, &done);
    if (x->kind == LG_EXCHANGE_REDUCE) lg_reduce_progress(&x->reduce);
}

lg_status lg_exchange_sums(lg_exchange *x, lg_reduce_fill *fill, void *ctx, float *out) {
    LG_ASSERT(x->kind != LG_EXCHANGE_STRICT);
    if (x->comm->lost) return LG_E_COMM;
    lg_comm_at(x->comm, "sums", x->layer);
    note(x, LG_TAG_SUMS, x->layer);
    x->n_req = 0;
    x->flying = !x->how.no_overlap;
    lg_status st = x->kind == LG_EXCHANGE_REDUCE
                       ? lg_reduce_run(&x->reduce, x->row0, fill, ctx, out)
                       : lg_alltoall_sums(x, fill, ctx, out);
    x->flying = false;
    return st;
}

/* ---- the way back, strict ---- */

/* Where the product rows of own rows will lie in `back`: those of rank 0 first, each rank's in order of row and expert.
 * n_from[r]: how many come from rank r. */
static void plan_back(lg_exchange *x, uint32_t *n_from) {
    uint32_t me = x->comm->rank, n_rank = x->comm->n_rank, at[LG_MAX_RANK + 1] = {0};
    uint32_t g0 = x->row0[me], g1 = x->row0[me + 1];
    memset(n_from, 0, n_rank * sizeof *n_from);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t g = g0; g < g1; g++) {
            const uint32_t *id = lg_exchange_ids(x, lg_exchange_record(x, me, g));
            for (uint32_t j = 0; j < x->k; j++) {
                uint32_t r = lg_place_rank(x->place, x->layer, id[j], g);
                if (pass == 0)
                    n_from[r]++;
                else
                    x->back_at[(size_t)(g - g0) * x->k + j] = at[r]++;
            }
        }
        for (uint32_t r = 0; pass == 0 && r < n_rank; r++) at[r + 1] = at[r] + n_from[r];
    }
}

uint32_t lg_exchange_pack(const lg_exchange *x, uint32_t r, float *to) {
    uint32_t n = 0;
    for (uint32_t g = x->row0[r]; g < x->row0[r + 1]; g++)
        for (uint32_t j = 0; j < x->k; j++) {
            uint32_t pair = x->pair[(size_t)g * x->k + j];
            if (pair == UINT32_MAX) continue;
            memcpy(to + (size_t)n++ * x->n_embd, x->out + (size_t)pair * x->n_embd,
                   x->n_embd * sizeof *to);
        }
    return n;
}

/* Products of own rows that others of the machine have written; messages move between some rows. */
static lg_status read_back(lg_exchange *x, const uint32_t *n_from) {
    float *back = x->back;
    LG_TRY(lg_shared_wait_back(x, n_from));
    for (uint32_t r = 0; r < x->comm->n_rank; back += (size_t)n_from[r++] * x->n_embd) {
        if (n_from[r] == 0 || r == x->comm->rank || !lg_shared_has(x, r)) continue;
        const float *from = lg_shared_back(x, r);
        for (uint32_t i = 0; i < n_from[r]; i++) {
            bool done;
            memcpy(back + (size_t)i * x->n_embd, from + (size_t)i * x->n_embd,
                   x->n_embd * sizeof *back);
            if (i % 16 == 15 && x->n_req)
                LG_TRY(lg_comm_poll(x->comm, x->req, x->n_req, &done));
        }
    }
    return LG_OK;
}

lg_status lg_exchange_finish(lg_exchange *x) {
    lg_comm *c = x->comm;
    uint32_t me = c->rank, n_from[LG_MAX_RANK];
    size_t row = x->n_embd * sizeof(float);
    float *back = x->back, *pack = x->pack, *mine = NULL;
    if (c->lost) return LG_E_COMM;
    uint64_t start = lg_trace_now(c->trace);
    lg_comm_at(c, "back", x->layer);
    note(x, LG_TAG_BACK, x->layer);
    x->n_req = 0;
    plan_back(x, n_from);
    for (uint32_t r = 0; r < c->n_rank; r++) {
        if (r == me) mine = back;
        if (r != me && n_from[r] && !lg_shared_has(x, r))
            LG_TRY(lg_comm_recv(c, r, LG_TAG_BACK, back, n_from[r] * row, &x->req[x->n_req++]));
        back += (size_t)n_from[r] * x->n_embd;
    }
    for (uint32_t d = 1; d < 2 * c->n_rank; d++) { /* first what has the longer way */
        uint32_t to = (me + d) % c->n_rank;
        bool near = lg_shared_has(x, to);
        if (to == me || near != (d > c->n_rank)) continue;
        uint32_t n = lg_exchange_pack(x, to, pack);
        if (near)
            lg_shared_put_at(x, to, (uint32_t)((size_t)(pack - x->pack) / x->n_embd));
        else if (n)
            LG_TRY(lg_comm_send(c, to, LG_TAG_BACK, pack, n * row, &x->req[x->n_req++]));
        pack += (size_t)n * x->n_embd;
    }
    if (x->shared) lg_shared_post_back(x);
    LG_ASSERT(lg_exchange_pack(x, me, mine) == n_from[me]);
    if (x->shared) LG_TRY(read_back(x, n_from));
    LG_TRY(lg_comm_wait(c, x->req, x->n_req));
    lg_trace_add(c->trace, LG_SPAN_BACK, LG_TRACE_ROWS, x->layer, 0, start);
    return LG_OK;
}
