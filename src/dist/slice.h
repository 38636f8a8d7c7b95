/* slice.h - few rows of one rank, multiplied by all: every rank has the rows and computes its slice of each product's channels.
 *
 * Of a product's n panels (kern.h) rank r of N has [n r / N, n (r + 1) / N).  What belongs together travels in words:
 *
 *   collect  every rank's words, n[r] of them at at[r], to the owner of the rows, or to all
 *   copy     the owner's words to all
 *
 * Bytes that a rank sends, w its words: to the owner 4 w, itself none; to all 4 w (N - 1); copy: the owner 4 w (N - 1).
 * A rank without words sends nothing.
 * Thread: engine.  Memory: the caller's.  Test: tests/unit/test_slice.c */
#ifndef LG_DIST_SLICE_H
#define LG_DIST_SLICE_H

#include "base/mem.h"
#include "dist/comm.h"

typedef struct lg_slice {
    lg_comm *comm; /* borrowed */
    uint32_t owner;
    size_t at[LG_MAX_RANK], n[LG_MAX_RANK]; /* of collect: the same on all ranks */
    lg_comm_req *req;                       /* [2 * n_rank] */
    uint32_t n_req;                         /* > 0: under way */
} lg_slice;

/* A counting arena counts. */
void lg_slice_carve(lg_arena *a, lg_comm *comm, lg_slice *s);

/* A step begins: its rows are of `owner`.  Collective. */
void lg_slice_begin(lg_slice *s, uint32_t owner);

/* Where rank's slice of n panels begins; that of rank + 1: where it ends. */
static inline uint32_t lg_slice_part(uint32_t n, uint32_t n_rank, uint32_t rank) {
    return (uint32_t)((uint64_t)n * rank / n_rank);
}

/* Collect: own words are in their place of `words`, which stays as it is until lg_slice_wait.  One at a time.  Collective, as the other
 * two.  LG_OK, LG_E_COMM. */
lg_status lg_slice_start(lg_slice *s, bool to_all, uint32_t *words);
lg_status lg_slice_wait(lg_slice *s);
lg_status lg_slice_copy(lg_slice *s, uint32_t *words, size_t n_word);

/* Move what is under way, between pieces of other work.  An error shows in the next call. */
void lg_slice_progress(lg_slice *s);

#endif
