/* exchange.h - one MoE layer over ranks: rows to the ranks of their experts, results back to the ranks of the rows.
 *
 *   start     every rank sends its rows, hidden values and routing in one record, to every other        (rows)
 *   arrive    all rows of the step are here; the pairs (row, expert) that this rank computes are sorted by expert
 *             ... the caller multiplies: x.in rows -> x.out, one row for each pair ...
 *   finish    strict: each product row goes back to the row's rank, which adds them itself                (back)
 *   lg_reduce_run(&x.reduce, x.row0, ...)  else: each rank's sums are summed over the ranks              (sums)
 *
 * STRICT gives the bits of one rank alone for any number of ranks and any placement: a product row depends on its own input row
 * only (kern.h), and the sum is made by the rank of the row, in ascending expert id, as alone.
 *
 * Bytes that a rank sends, t its rows, N ranks, H = n_embd floats, k experts a row:
 *     rows   (N - 1) t (4 H + 8 k)                     = (N-1)/N T (4 H + 8 k) when rows are spread evenly
 *     sums   see reduce.h
 *     back   4 H for each pair that it computes for a row of another rank: of its T k / N about (N-1)/N
 * Every record is led by LG_EXCHANGE_HEAD bytes, which a receiver checks: step, layer, rows.  A rank without rows sends
 * nothing and still receives and computes.
 * A lost comm makes every call return at once; what is in the buffers then means nothing, and the step ends in LG_E_BACKEND.
 * Thread: engine; products are the caller's.  Memory: carved from the caller's arena.  Test: tests/unit/test_exchange.c */
#ifndef LG_DIST_EXCHANGE_H
#define LG_DIST_EXCHANGE_H

#include "dist/comm.h"
#include "dist/place.h"
#include "dist/reduce.h"

typedef enum {
    LG_EXCHANGE_STRICT,
    LG_EXCHANGE_REDUCE /* sums of each rank's experts, summed over ranks (reduce.h): less traffic, other rounding */
} lg_exchange_kind;

#define LG_EXCHANGE_HEAD 16 /* bytes: u32 step, layer, rows, 0 */

typedef struct lg_exchange {
    lg_comm *comm;         /* borrowed */
    const lg_place *place; /* borrowed */
    lg_exchange_kind kind;
    uint32_t max_row; /* of all ranks together in a step */
    uint32_t n_embd, k;
    size_t ld; /* floats of a record: n_embd values, k ids (as u32, ascending), k weights */
    /* the step */
    uint32_t row0[LG_MAX_RANK + 1]; /* first row of each rank among all rows */
    uint32_t layer;
    /* what arrived, and what to do with it */
    float *all;       /* records of rank r after its head: see lg_exchange_record */
    uint32_t *first;  /* [n_expert + 1] first pair of each expert, of those computed here */
    uint32_t *in_row; /* [max_row * k] row of `in` of each pair */
    float *in;        /* [max_row][n_embd] rows that have a pair here */
    uint32_t n_in;
    uint64_t *n_chosen; /* lg_dist */
    float *out; /* [max_row * k][n_embd] product row of each pair: the caller's to fill */
    uint32_t
        *pair; /* [max_row * k] of (row, j): its place among the pairs, UINT32_MAX: elsewhere */
    /* strict: the way back */
    float *pack;       /* [max_row * k][n_embd] rows for other ranks */
    float *back;       /* [max_row * k][n_embd] product rows of this rank's own rows */
    uint32_t *back_at; /* [max_row][k] of own row r and its j-th expert: row of `back` */
    lg_reduce reduce;  /* LG_EXCHANGE_REDUCE */
    lg_comm_req *req;  /* [2 * n_rank] */
    uint32_t n_req;
} lg_exchange;

/* Take memory for an exchange (a counting arena counts). */
void lg_exchange_carve(lg_arena *a, lg_comm *comm, const lg_place *place, lg_exchange_kind kind,
                       uint32_t max_row, uint32_t n_embd, uint32_t k, lg_exchange *x);

/* A step begins: n_row[r] rows of rank r, at most max_row in all.  Collective. */
void lg_exchange_begin(lg_exchange *x, const uint32_t *n_row);

/* Rows of this rank. */
static inline uint32_t lg_exchange_n_own(const lg_exchange *x) {
    return x->row0[x->comm->rank + 1] - x->row0[x->comm->rank];
}

/* Record of row g of all rows: hidden values, then k ids, then k weights. */
static inline float *lg_exchange_record(const lg_exchange *x, uint32_t rank, uint32_t g) {
    return x->all + (size_t)(rank + 1) * (LG_EXCHANGE_HEAD / 4) + g * x->ld;
}

/* Send the own rows: xn [n_own][n_embd], their experts and weights [n_own][k] in any order.  Collective, once a layer. */
lg_status lg_exchange_start(lg_exchange *x, uint32_t layer, const float *xn,
                            const uint32_t *top_id, const float *top_w);

/* Wait for all rows and sort the pairs.  LG_OK; LG_E_COMM, also when a record is not of this step and layer. */
lg_status lg_exchange_arrive(lg_exchange *x);

/* Strict: bring the product rows home: x.back, x.back_at are filled. */
lg_status lg_exchange_finish(lg_exchange *x);

/* The weight of own row r's j-th expert in ascending id. */
static inline float lg_exchange_weight(const lg_exchange *x, uint32_t r, uint32_t j) {
    uint32_t me = x->comm->rank;
    return lg_exchange_record(x, me, x->row0[me] + r)[x->n_embd + x->k + j];
}

#endif
