/* exchange.h - one MoE layer over ranks: rows to the ranks of their experts, results back to the ranks of the rows.
 *
 *   start     every rank sends its rows, hidden values and routing in one record: to every other, or (all-to-all) to each that
 *             has one of the row's experts                                                                (rows)
 *   arrive    all rows that concern this rank are here; the pairs (row, expert) that it computes are sorted by expert
 *             ... the caller multiplies: x.in rows -> x.out, one row for each pair ...
 *   finish    strict: each product row goes back to the row's rank, which adds them itself                (back)
 *   sums      else: each rank's sums go to the ranks of the rows, by the reduce-scatter (reduce.h) or, all-to-all, as one row for
 *             each row that came, added in order of rank                                                  (sums)
 *
 * STRICT gives the bits of one rank alone for any number of ranks and any placement: a product row depends on its own input row
 * only (kern.h), and the sum is made by the rank of the row, in ascending expert id, as alone.  The others may send rows in
 * fewer bits (wire.h); then every rank multiplies the rows as they travelled, also its own.
 *
 * Bytes that a rank sends, t its rows, N ranks, H floats, W bytes of a row on the wire, k experts a row:
 *     rows   (N - 1) t (W + 8 k), window: N - G        all-to-all: (W + 8 k + 4) for each row and other rank that has an expert of it
 *     sums   see reduce.h                              all-to-all: W for each row that came from another rank
 *     back   4 H for each pair that it computes for a row of another rank: of its T k / N about (N-1)/N; window: of another machine
 * Every record block is led by LG_EXCHANGE_HEAD bytes, which a receiver checks: step, layer, rows, and a hash of all collectives and numbers of rows since the start.  A rank without rows sends
 * nothing and still receives and computes.
 * With a window (window.h) nothing is sent inside a machine, but all-to-all: rows, products and sums (reduce.h) lie where their rank writes
 * them, and the others of the machine read them there.
 * Messages move while the caller computes if it calls lg_exchange_progress between pieces of its work.
 * A lost comm makes every call return at once; what is in the buffers then means nothing, and the step ends in LG_E_BACKEND.
 * Thread: engine; products are the caller's.  Memory: carved from the caller's arena.  Test: tests/unit/test_exchange.c */
#ifndef LG_DIST_EXCHANGE_H
#define LG_DIST_EXCHANGE_H

#include "dist/choose.h"
#include "dist/comm.h"
#include "dist/place.h"
#include "dist/reduce.h"

/* How a group exchanges; the same on all ranks. */
typedef struct lg_exchange_how {
    lg_exchange_kind kind;
    lg_wire wire;        /* LG_WIRE_F32 with STRICT */
    bool no_overlap;     /* every message is waited for at once: to see what overlap gains */
    lg_links links;      /* with AUTO */
    lg_divide divide;    /* long prompts over all ranks (spread.h) */
    uint32_t divide_ctx; /* up to this position */
    lg_divide answers;   /* few rows of one rank by all ranks (slice.h) */
} lg_exchange_how;

#define LG_EXCHANGE_HEAD 16 /* bytes: u32 step, layer, rows, trail */

typedef struct lg_exchange {
    lg_comm *comm;         /* borrowed */
    const lg_place *place; /* borrowed */
    lg_exchange_how how;
    lg_exchange_kind kind; /* of this step */
    uint32_t max_row;      /* of all ranks together in a step */
    uint32_t n_embd, k;
    size_t hw; /* words of a row on the wire */
    size_t
        ld; /* words of a record: the row, k ids (ascending), k weights, all-to-all: its number among all rows */
    /* the step */
    uint32_t row0[LG_MAX_RANK + 1]; /* first row of each rank among all rows */
    uint32_t layer;
    uint64_t start_us; /* of rows under way, for the trace */
    bool flying;       /* messages may be under way: progress has something to do */
    /* what arrived, and what to do with it; places in `all` and `pair`: row0[rank] + number of the record among those of its rank */
    uint32_t *all; /* heads and records that came in messages, by rank */
    uint32_t *block
        [LG_MAX_RANK]; /* head and records of each rank: in `all`, or in its part of the window */
    uint32_t n_got
        [LG_MAX_RANK]; /* records of each rank; all rows, or with all-to-all those that have a pair here */
    uint32_t n_sent[LG_MAX_RANK]; /* all-to-all: own rows that went to each rank */
    uint32_t *first;  /* [n_expert + 1] first pair of each expert, of those computed here */
    uint32_t *in_row; /* [max_row * k] row of `in` of each pair */
    float *in;        /* [max_row][n_embd] rows that have a pair here */
    uint32_t n_in;
    uint64_t *n_chosen; /* lg_dist */
    uint64_t trail;     /* hash of what was done together, the same on all ranks */
    float *out; /* [max_row * k][n_embd] product row of each pair: the caller's to fill */
    size_t out_words;
    uint32_t *
        pair; /* [max_row * k] of (record, j): its place among the pairs, UINT32_MAX: elsewhere */
    /* strict: the way back */
    float *pack;       /* [max_row * k][n_embd] rows for other ranks */
    float *back;       /* [max_row * k][n_embd] product rows of this rank's own rows */
    uint32_t *back_at; /* [max_row][k] of own row r and its j-th expert: row of `back` */
    uint32_t *
        home; /* all-to-all: [max_row * min(k, n_rank - 1)] wire rows: sums of own rows from other ranks */
    lg_reduce reduce; /* LG_EXCHANGE_REDUCE */
    lg_comm_req *req; /* [2 * n_rank] */
    uint32_t n_req;
    /* with a window */
    bool shared;       /* rows and products of this machine's ranks are in it */
    size_t shared_at;  /* from this byte of each part on */
    uint64_t n_shared; /* exchanges of rows there since open */
    lg_comm_req *peer; /* [n_rank] active: what it writes is waited for */
} lg_exchange;

/* Take memory for an exchange (a counting arena counts). */
void lg_exchange_carve(lg_arena *a, lg_comm *comm, const lg_place *place,
                       const lg_exchange_how *how, uint32_t max_row, uint32_t n_embd,
                       uint32_t k, lg_exchange *x);

/* Bytes of a rank's part of a window (window.h) that an exchange can use; 0: none. */
size_t lg_exchange_window_bytes(lg_comm *comm, const lg_exchange_how *how, uint32_t max_row,
                                uint32_t n_embd, uint32_t k);

/* A step begins: n_row[r] rows of rank r, at most max_row in all.  Collective. */
void lg_exchange_begin(lg_exchange *x, const uint32_t *n_row);

/* Rows of this rank. */
static inline uint32_t lg_exchange_n_own(const lg_exchange *x) {
    return x->row0[x->comm->rank + 1] - x->row0[x->comm->rank];
}

/* A record of a rank by its place: the row on the wire, then k ids, then k weights. */
static inline uint32_t *lg_exchange_record(const lg_exchange *x, uint32_t rank, uint32_t at) {
    return x->block[rank] + LG_EXCHANGE_HEAD / 4 + (at - x->row0[rank]) * x->ld;
}

static inline const uint32_t *lg_exchange_ids(const lg_exchange *x, const uint32_t *record) {
    return record + x->hw;
}

static inline const float *lg_exchange_weights(const lg_exchange *x, const uint32_t *record) {
    return (const float *)(const void *)(record + x->hw + x->k);
}

/* Send the own rows: xn [n_own][n_embd], their experts and weights [n_own][k] in any order.  Collective, once a layer. */
lg_status lg_exchange_start(lg_exchange *x, uint32_t layer, const float *xn,
                            const uint32_t *top_id, const float *top_w);

/* Wait for all rows and sort the pairs.  LG_OK; LG_E_COMM, also when a record is not of this step and layer. */
lg_status lg_exchange_arrive(lg_exchange *x);

/* Strict: bring the product rows home: x.back, x.back_at are filled. */
lg_status lg_exchange_finish(lg_exchange *x);

/* Not strict: sums of own rows into out [n_own][n_embd].  fill writes this rank's part of the records at places [g, g + n), all of
 * one rank. */
lg_status lg_exchange_sums(lg_exchange *x, lg_reduce_fill *fill, void *ctx, float *out);

/* ---- steps whose rows all ranks have (slice.h): nothing travels there, and back is the caller's ---- */

/* Instead of start and arrive: the rows of `owner`, the only ones of the step; xn and routing are the same on all ranks.  Collective. */
void lg_exchange_known(lg_exchange *x, uint32_t layer, uint32_t owner, const float *xn,
                       const uint32_t *top_id, const float *top_w);

/* Copy the product rows of the pairs of rank r's rows to `to`, in order of row and expert; returns how many. */
uint32_t lg_exchange_pack(const lg_exchange *x, uint32_t r, float *to);

/* Move what is under way, between pieces of other work.  An error shows in the next call. */
void lg_exchange_progress(lg_exchange *x);

/* The weight of own row r's j-th expert in ascending id. */
static inline float lg_exchange_weight(const lg_exchange *x, uint32_t r, uint32_t j) {
    uint32_t me = x->comm->rank;
    return lg_exchange_weights(x, lg_exchange_record(x, me, x->row0[me] + r))[j];
}

/* ---- alltoall.c: the parts of it that differ ---- */

void lg_alltoall_carve(lg_arena *a, lg_exchange *x);
lg_status lg_alltoall_start(lg_exchange *x);
lg_status lg_alltoall_arrive(lg_exchange *x); /* n_got, after checking */
lg_status lg_alltoall_sums(lg_exchange *x, lg_reduce_fill *fill, void *ctx, float *out);

/* ---- shared.c: rows and products in the window ---- */

/* Bytes of it, and of the part of them that nothing in the arena is for. */
size_t lg_shared_bytes(const lg_exchange *x);
size_t lg_shared_more_bytes(const lg_exchange *x);

/* Use comm->window from byte `at` on, if it is large enough; pack is there then. */
void lg_shared_carve(lg_exchange *x, size_t at);

/* Whether rank r reads and writes there. */
bool lg_shared_has(const lg_exchange *x, uint32_t r);

/* Where rank r's rows of the exchange that begins lie. */
uint32_t *lg_shared_block(const lg_exchange *x, uint32_t r);

/* Own rows, or products, are there. */
void lg_shared_post_rows(lg_exchange *x);
void lg_shared_post_back(lg_exchange *x);

/* Wait for the rows of all, or for products of the ranks with n_from[r]; messages move meanwhile.  LG_E_COMM. */
lg_status lg_shared_wait_rows(lg_exchange *x);
lg_status lg_shared_wait_back(lg_exchange *x, const uint32_t *n_from);

/* Where in `pack` the products for rank r begin, in rows; and those of rank r for this one. */
void lg_shared_put_at(lg_exchange *x, uint32_t r, uint32_t row);
const float *lg_shared_back(const lg_exchange *x, uint32_t r);

/* What a receiver must find at the head of n rows. */
void lg_exchange_head(const lg_exchange *x, uint32_t n, uint32_t head[LG_EXCHANGE_HEAD / 4]);

#endif
