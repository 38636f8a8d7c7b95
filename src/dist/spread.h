/* spread.h - one sequence over all ranks: whose rows and heads are whose, and the messages between.
 *
 * In a step that divides a sequence of owner o, the rank at place p = (rank - o - 1) mod N has its rows [n p / N, n (p + 1) / N): so the
 * owner has the last ones, and everything that goes on from the last row stays with it.  Of n_head heads a rank has
 * [n_head rank / N, n_head (rank + 1) / N), in every step.  What belongs together travels in blocks of W words:
 *
 *   swap     rows -> heads: every rank's rows [own rows][n_head][W] become [all rows][own heads][W], and back
 *   gather   every rank's own rows become all rows [all rows][W]
 *   deal     the owner's [n_head][W] to the ranks of the heads; home: back
 *   copy     bytes of the owner to every other rank
 *
 * Bytes that a rank sends, t its rows of T, h its heads of H:
 *     swap to heads 4 W t (H - h), back 4 W (T - t) h     gather 4 W t (N - 1)     deal: the owner 4 W (H - h); home: the others 4 W h
 *     copy  (N - 1) bytes, the owner
 * Blocks without rows or heads are not sent.
 * Thread: engine.  Memory: the caller's.  Test: tests/unit/test_spread.c */
#ifndef LG_DIST_SPREAD_H
#define LG_DIST_SPREAD_H

#include "base/mem.h"
#include "dist/comm.h"

#define LG_SPREAD_DEPTH 16 /* messages to each rank under way at once, where there are many */

typedef struct lg_spread {
    lg_comm *comm; /* borrowed */
    uint32_t n_head;
    /* the step */
    uint32_t owner, n_row;
    uint32_t row0[LG_MAX_RANK], n[LG_MAX_RANK]; /* rows of each rank */
    lg_comm_req *req;                           /* [2 * n_rank * LG_SPREAD_DEPTH] */
    lg_comm_req *home;                          /* [n_rank] of what is on its way home */
    uint32_t n_req, n_home; /* n_req: of a swap or gather that is under way */
    int kind;               /* lg_span_kind of that, and since when */
    uint64_t start_us;
    uint64_t home_us; /* since when, and of which layer */
    uint32_t home_layer;
} lg_spread;

/* A counting arena counts. */
void lg_spread_carve(lg_arena *a, lg_comm *comm, uint32_t n_head, lg_spread *s);

/* First row, or head, of a rank's part; n in all. */
static inline uint32_t lg_spread_place(uint32_t owner, uint32_t n_rank, uint32_t rank) {
    return (rank + n_rank - 1 - owner) % n_rank;
}
static inline uint32_t lg_spread_part(uint32_t n, uint32_t n_rank, uint32_t place) {
    return (uint32_t)((uint64_t)n * place / n_rank);
}

/* A step begins: n_row rows of a sequence of `owner`.  Collective. */
void lg_spread_begin(lg_spread *s, uint32_t owner, uint32_t n_row);

/* Own rows begin here; own heads. */
static inline uint32_t lg_spread_row0(const lg_spread *s) {
    return s->row0[s->comm->rank];
}
static inline uint32_t lg_spread_n_row(const lg_spread *s) {
    return s->n[s->comm->rank];
}
static inline uint32_t lg_spread_head0(const lg_spread *s, uint32_t rank) {
    return lg_spread_part(s->n_head, s->comm->n_rank, rank);
}

/* Where block (own row r, head h) of `rows` begins in swap: the blocks for one rank lie together. */
size_t lg_spread_block(const lg_spread *s, uint32_t r, uint32_t h, size_t w);

/* All of these are collective, and return LG_OK or LG_E_COMM.  rows and whole: as above, in words of 4 bytes. */

/* Start of a swap, of a gather: memory must stay as it is until lg_spread_wait, before which no other of these begins.  Meanwhile
 * somebody calls lg_spread_progress now and then. */
lg_status lg_spread_swap(lg_spread *s, bool to_heads, size_t w, uint32_t *rows,
                         uint32_t *whole);
lg_status lg_spread_gather(lg_spread *s, size_t w, uint32_t *all);
void lg_spread_progress(lg_spread *s);
lg_status lg_spread_wait(lg_spread *s);

lg_status lg_spread_deal(lg_spread *s, size_t w, uint32_t *heads);
lg_status lg_spread_copy(lg_spread *s, void *const *block, size_t n_bytes, uint32_t n_block);

/* Home: heads must stay as it is until lg_spread_home_end, which comes before the next one. */
lg_status lg_spread_home(lg_spread *s, size_t w, uint32_t *heads);
lg_status lg_spread_home_end(lg_spread *s);

#endif
