/* reduce.h - hierarchical reduce-scatter: each rank gets the sum over all ranks of its own rows.
 *
 * M machines with G ranks each, N = M G.  Rows are taken in chunks, the c-th rows of every rank together:
 *     1  inside a machine: rank l of it gets, from each other, their parts of the rows of all ranks that are l-th on their machine
 *     2  between machines, among the l-th ranks: recursive halving when M is a power of two, else each part straight to its rank
 * Chunks are small, 16 to 64 rows of each rank, and several are under way: one inside the machine while another is between machines.
 * (Cutting columns instead of rows would do the same; a network whose switch gives each machine one cable has no dimensions to rotate.)
 * While a chunk travels the next one is filled by the caller, who calls lg_reduce_progress between pieces of that work: it moves
 * messages and adds what came.  With machines of unequal numbers of ranks every rank counts as a
 * machine of its own.  Sums are fp32, in an order that depends on the ranks alone, so a result does not depend on timing.
 *
 * With a window (window.h) step 1 sends nothing: parts are written where the ranks of the machine read them, and each adds, in the same order,
 * its rows of all parts.  Counters say which chunk lies in a place and who has read it.
 *
 * Bytes that a rank sends for T rows spread evenly, H = n_embd floats:
 *     1  4 H T (G-1)/G, or 0     2  W T/G (1 - 1/M)          for any rows: lg_reduce_bytes
 * W is a row on the wire (wire.h): sums travel in fewer bits between machines only, inside they cross memory.
 * Thread: engine.  Memory: carved from the caller's arena: a few chunks, not T rows.  Test: tests/unit/test_reduce.c */
#ifndef LG_DIST_REDUCE_H
#define LG_DIST_REDUCE_H

#include "base/mem.h"
#include "dist/comm.h"
#include "dist/wire.h"

#define LG_REDUCE_CHUNK  64 /* most rows of each rank in a chunk */
#define LG_REDUCE_LEAST  16 /* and how few are worth a chunk of their own */
#define LG_REDUCE_PIECES 16 /* chunks that a call shall have, if they are not too small */
#define LG_REDUCE_RING   4  /* chunks under way */

/* Write this rank's part of rows [g, g + n) of all rows to y [n][n_embd]. */
typedef void lg_reduce_fill(void *ctx, uint32_t g, uint32_t n, float *y);

/* A chunk under way. */
typedef struct lg_reduce_unit {
    bool active;
    uint32_t chunk;
    uint32_t
        step; /* messages under way: 0 inside the machine, then 1, 2 ... between machines */
    uint32_t lo, hi; /* machines whose rows `sum` is still about */
    float *
        pack; /* [n_rank * chunk][n_embd] own parts: by place in the machine, then by machine; in the window, if there is one */
    float *sum;     /* [n_node * chunk][n_embd] rows of the l-th ranks, by machine */
    float *in;      /* received: floats inside the machine, else words of the wire */
    uint32_t *wire; /* rows to be sent to other machines; NULL for LG_WIRE_F32 */
    uint64_t start_us;
    uint64_t number; /* with a window: of this chunk since open, from 1 */
    lg_comm_req
        *req; /* inside the machine with a window: active while a rank's parts are not there */
    uint32_t n_req;
} lg_reduce_unit;

typedef struct lg_reduce {
    lg_comm *comm; /* borrowed */
    uint32_t n_embd;
    uint32_t max_chunk;            /* rows that there is memory for */
    uint32_t chunk;                /* of the running call */
    uint32_t piece;                /* not 0: take this as chunk, to compare */
    lg_wire wire;                  /* between machines */
    bool no_overlap;               /* each chunk is waited for before the next */
    uint32_t n_node, n_local;      /* M, G */
    uint32_t node, local;          /* this rank */
    uint16_t rank_at[LG_MAX_RANK]; /* [node * n_local + local] */
    bool shared;                   /* parts lie in comm->window */
    uint64_t n_begun;              /* chunks since open, with a window */
    const uint32_t *row0;          /* [n_rank + 1] of the running call */
    float *out;
    lg_reduce_unit unit[LG_REDUCE_RING];
} lg_reduce;

/* Bytes of a rank's part of a window. */
size_t lg_reduce_window_bytes(const lg_comm *comm, uint32_t max_row, uint32_t n_embd);

/* Take memory (a counting arena counts), and all of comm->window if that is large enough.  max_row: rows of one rank in a call, at most. */
void lg_reduce_carve(lg_arena *a, lg_comm *comm, lg_wire wire, uint32_t max_row,
                     uint32_t n_embd, lg_reduce *r);

/* Rows row0[k] .. row0[k + 1] belong to rank k.  out [own rows][n_embd].  Collective.  LG_OK or LG_E_COMM. */
lg_status lg_reduce_run(lg_reduce *r, const uint32_t *row0, lg_reduce_fill *fill, void *ctx,
                        float *out);

/* From inside `fill`, or between: move the chunks under way.  An error shows in lg_reduce_run. */
void lg_reduce_progress(lg_reduce *r);

/* Bytes that this rank sends in a call, by the formulas above. */
uint64_t lg_reduce_bytes(const lg_reduce *r, const uint32_t *row0);

#endif
