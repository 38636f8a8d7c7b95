/* exchange.c - see exchange.h.
 *
 * Messages go straight from and into `all`, where each rank's head and records lie together.
 * Both ends of the way back know from the routing how many rows come in which order, so nothing but rows is sent.
 * Thread: engine.  Memory: the caller's arena; nothing is allocated in a step.  Test: tests/unit/test_exchange.c */
#include "dist/exchange.h"

#include <string.h>

#define TAG_ROWS 2
#define TAG_BACK 3
#define HEAD     (LG_EXCHANGE_HEAD / 4) /* floats */

void lg_exchange_carve(lg_arena *a, lg_comm *comm, const lg_place *place, lg_exchange_kind kind,
                       uint32_t max_row, uint32_t n_embd, uint32_t k, lg_exchange *x) {
    size_t t = max_row, pairs = t * k, f = sizeof(float), u = sizeof(uint32_t);
    *x = (lg_exchange){.comm = comm,
                       .place = place,
                       .kind = kind,
                       .max_row = max_row,
                       .n_embd = n_embd,
                       .k = k,
                       .ld = n_embd + 2 * (size_t)k};
    x->all = lg_arena_take(a, t * x->ld + (size_t)comm->n_rank * HEAD, f);
    x->first = lg_arena_take(a, (size_t)place->n_expert + 1, u);
    x->in_row = lg_arena_take(a, pairs, u);
    x->in = lg_arena_take(a, t * n_embd, f);
    x->out = lg_arena_take(a, pairs * n_embd, f);
    x->pair = lg_arena_take(a, pairs, u);
    if (kind == LG_EXCHANGE_REDUCE) {
        lg_reduce_carve(a, comm, max_row, n_embd, &x->reduce);
    } else {
        x->pack = lg_arena_take(a, pairs * n_embd, f);
        x->back = lg_arena_take(a, pairs * n_embd, f);
        x->back_at = lg_arena_take(a, pairs, u);
    }
    x->req = lg_arena_take(a, 2 * (size_t)comm->n_rank, sizeof *x->req);
}

void lg_exchange_begin(lg_exchange *x, const uint32_t *n_row) {
    memset(x->req, 0, 2 * (size_t)x->comm->n_rank * sizeof *x->req);
    x->n_req = 0;
    x->row0[0] = 0;
    for (uint32_t r = 0; r < x->comm->n_rank; r++) {
        LG_ASSERT(n_row[r] <= x->max_row - x->row0[r]);
        x->row0[r + 1] = x->row0[r] + n_row[r];
    }
}

static const uint32_t *ids_of(const lg_exchange *x, const float *record) {
    return (const uint32_t *)(const void *)(record + x->n_embd);
}

/* ---- rows ---- */

/* The head of rank r's records: what a receiver must find there. */
static void make_head(const lg_exchange *x, uint32_t r, uint32_t head[HEAD]) {
    head[0] = (uint32_t)x->comm->step;
    head[1] = x->layer;
    head[2] = x->row0[r + 1] - x->row0[r];
    head[3] = 0;
}

static float *block_of(const lg_exchange *x, uint32_t r) {
    return lg_exchange_record(x, r, x->row0[r]) - HEAD;
}

/* One own row, its experts in ascending id. */
static void put_record(const lg_exchange *x, const float *xn, const uint32_t *id,
                       const float *w, float *record) {
    uint32_t *to_id = (uint32_t *)(void *)(record + x->n_embd);
    float *to_w = record + x->n_embd + x->k;
    memcpy(record, xn, x->n_embd * sizeof *record);
    for (uint32_t j = 0; j < x->k; j++) {
        uint32_t at = j;
        for (; at > 0 && to_id[at - 1] > id[j]; at--) {
            to_id[at] = to_id[at - 1];
            to_w[at] = to_w[at - 1];
        }
        to_id[at] = id[j];
        to_w[at] = w[j];
    }
}

lg_status lg_exchange_start(lg_exchange *x, uint32_t layer, const float *xn,
                            const uint32_t *top_id, const float *top_w) {
    lg_comm *c = x->comm;
    uint32_t me = c->rank, n_own = lg_exchange_n_own(x);
    x->layer = layer;
    lg_comm_at(c, "rows", layer);
    x->n_req = 0;
    for (uint32_t r = 0; r < c->n_rank; r++) {
        uint32_t n = x->row0[r + 1] - x->row0[r];
        if (r != me && n)
            LG_TRY(lg_comm_recv(c, r, TAG_ROWS, block_of(x, r),
                                LG_EXCHANGE_HEAD + n * x->ld * sizeof(float),
                                &x->req[x->n_req++]));
    }
    make_head(x, me, (uint32_t *)(void *)block_of(x, me));
    for (uint32_t i = 0; i < n_own; i++)
        put_record(x, xn + (size_t)i * x->n_embd, top_id + (size_t)i * x->k,
                   top_w + (size_t)i * x->k, lg_exchange_record(x, me, x->row0[me] + i));
    for (uint32_t d = 1; n_own && d < c->n_rank; d++) /* each rank begins with another one */
        LG_TRY(lg_comm_send(c, (me + d) % c->n_rank, TAG_ROWS, block_of(x, me),
                            LG_EXCHANGE_HEAD + n_own * x->ld * sizeof(float),
                            &x->req[x->n_req++]));
    return LG_OK;
}

static lg_status check_heads(const lg_exchange *x) {
    for (uint32_t r = 0; r < x->comm->n_rank; r++) {
        uint32_t want[HEAD];
        if (x->row0[r + 1] == x->row0[r]) continue;
        const uint32_t *got = (const uint32_t *)(const void *)block_of(x, r);
        make_head(x, r, want);
        if (memcmp(got, want, sizeof want) != 0)
            return lg_comm_lose(
                x->comm,
                "rows of rank %u are of step %u, layer %u, %u rows; expected step "
                "%u, layer %u, %u rows",
                r, got[0], got[1], got[2], want[0], want[1], want[2]);
        for (uint32_t g = x->row0[r]; g < x->row0[r + 1]; g++) {
            const uint32_t *id = ids_of(x, lg_exchange_record(x, r, g));
            for (uint32_t j = 0; j < x->k; j++)
                if (id[j] >= x->place->n_expert || (j && id[j - 1] >= id[j]))
                    return lg_comm_lose(x->comm, "rank %u routes a row to expert %u", r, id[j]);
        }
    }
    return LG_OK;
}

/* Counting sort by expert of the pairs that this rank computes; rows stay in order inside an expert. */
static void sort_pairs(lg_exchange *x) {
    const lg_place *p = x->place;
    uint32_t me = x->comm->rank, n_rank = x->comm->n_rank, k = x->k;
    memset(x->first, 0, ((size_t)p->n_expert + 1) * sizeof *x->first);
    for (uint32_t r = 0; r < n_rank; r++)
        for (uint32_t g = x->row0[r]; g < x->row0[r + 1]; g++) {
            const uint32_t *id = ids_of(x, lg_exchange_record(x, r, g));
            for (uint32_t j = 0; j < k; j++) {
                if (lg_place_rank(p, x->layer, id[j], g) == me) x->first[id[j] + 1]++;
                if (x->n_chosen) x->n_chosen[(size_t)x->layer * p->n_expert + id[j]]++;
            }
        }
    for (uint32_t e = 0; e < p->n_expert; e++) x->first[e + 1] += x->first[e];
    x->n_in = 0;
    for (uint32_t r = 0; r < n_rank; r++)
        for (uint32_t g = x->row0[r]; g < x->row0[r + 1]; g++) {
            const float *record = lg_exchange_record(x, r, g);
            const uint32_t *id = ids_of(x, record);
            bool any = false;
            for (uint32_t j = 0; j < k; j++) {
                uint32_t *pair = &x->pair[(size_t)g * k + j];
                *pair = UINT32_MAX;
                if (lg_place_rank(p, x->layer, id[j], g) != me) continue;
                *pair = x->first[id[j]]++; /* the cursor of this expert */
                x->in_row[*pair] = x->n_in;
                any = true;
            }
            if (!any) continue;
            memcpy(x->in + (size_t)x->n_in++ * x->n_embd, record, x->n_embd * sizeof *record);
        }
    memmove(x->first + 1, x->first, p->n_expert * sizeof *x->first);
    x->first[0] = 0;
}

lg_status lg_exchange_arrive(lg_exchange *x) {
    LG_TRY(lg_comm_wait(x->comm, x->req, x->n_req));
    LG_TRY(check_heads(x));
    sort_pairs(x);
    return LG_OK;
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
            const uint32_t *id = ids_of(x, lg_exchange_record(x, me, g));
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

/* Copy the pairs of rank r's rows to `to` in order of row and expert; returns how many. */
static uint32_t pack_rows(const lg_exchange *x, uint32_t r, float *to) {
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

lg_status lg_exchange_finish(lg_exchange *x) {
    lg_comm *c = x->comm;
    uint32_t me = c->rank, n_from[LG_MAX_RANK];
    size_t row = x->n_embd * sizeof(float);
    float *back = x->back, *pack = x->pack, *mine = NULL;
    if (c->lost) return LG_E_COMM;
    lg_comm_at(c, "back", x->layer);
    x->n_req = 0;
    plan_back(x, n_from);
    for (uint32_t r = 0; r < c->n_rank; r++) {
        if (r == me) mine = back;
        if (r != me && n_from[r])
            LG_TRY(lg_comm_recv(c, r, TAG_BACK, back, n_from[r] * row, &x->req[x->n_req++]));
        back += (size_t)n_from[r] * x->n_embd;
    }
    for (uint32_t d = 1; d < c->n_rank; d++) {
        uint32_t to = (me + d) % c->n_rank, n = pack_rows(x, to, pack);
        if (n) LG_TRY(lg_comm_send(c, to, TAG_BACK, pack, n * row, &x->req[x->n_req++]));
        pack += (size_t)n * x->n_embd;
    }
    LG_ASSERT(pack_rows(x, me, mine) == n_from[me]);
    return lg_comm_wait(c, x->req, x->n_req);
}
