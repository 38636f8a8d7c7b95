/* mosaic.h - a small writer of Mosaic kernels: the programs that a TPU's compiler takes inside a `tpu_custom_call`.
 *
 * A kernel is one module in MLIR's generic text.  Every operation is written by one call below, which knows the types of
 * its operands, so kernels (mosaic_gdn.c, mosaic_gdn_chunk.c, mosaic_gmm.c, mosaic_attn.c) read as a list of what they compute.  The writer
 * checks shapes: a kernel that does not fit together is a bug of ours and stops at LG_ASSERT.
 *
 * Vocabulary.  A grid step runs the body once.  A window is the block of an operand or result that the step sees: the
 * compiler makes the copies between the device's memory (HBM) and VMEM, two deep, and copies nothing when the block of a
 * step is that of the step before.  Prefetched operands are whole arrays of i32 in scalar memory (SMEM), known before the
 * windows are chosen.  Scratch is VMEM that lives from step to step.  An operand may also stay in HBM whole: then the body
 * copies what it needs itself, and a semaphore counts what has arrived.
 *
 * What the text means is fixed twice: by libtpu, which compiles it, and by tests/unit/mosaic_eval.c, which runs it.
 * Versions: the operations here are those of version 15, read by libtpu 0.0.48 and 0.0.52.  Memory: the caller's lg_buf.
 * Test: tests/unit/test_mosaic_*.c */
#ifndef LG_BACKEND_PJRT_MOSAIC_MOSAIC_H
#define LG_BACKEND_PJRT_MOSAIC_MOSAIC_H

#include "backend/pjrt/step/hlo.h"

#include <stdint.h>

#define LG_MOSAIC_VERSION 15
#define LG_MOSAIC_RANK    6  /* dimensions of a value at most */
#define LG_MOSAIC_ARGS    24 /* prefetched operands, windows and scratch together at most */
#define LG_MOSAIC_GRID    3  /* grid dimensions at most */

typedef enum {
    LG_M_I1,
    LG_M_I32,
    LG_M_INDEX,
    LG_M_F32,
    LG_M_BF16,
    LG_M_E4M3,
    LG_M_COPIES /* a semaphore of copies */
} lg_mosaic_elem;
typedef enum {
    LG_M_SCALAR,
    LG_M_VECTOR,
    LG_M_VMEM,
    LG_M_SMEM,
    LG_M_HBM,
    LG_M_SEMAPHORE
} lg_mosaic_form;

typedef struct lg_mosaic_type {
    lg_mosaic_form form;
    lg_mosaic_elem elem;
    uint32_t rank; /* 0 for a scalar */
    uint32_t dim[LG_MOSAIC_RANK];
} lg_mosaic_type;

/* A value of the kernel: its number in the text and its type. */
typedef struct lg_mv {
    uint32_t id;
    lg_mosaic_type type;
} lg_mv;

/* Where a window's block lies along one dimension, in blocks. */
typedef enum {
    LG_M_AT_ZERO,
    LG_M_AT_GRID,  /* grid index g */
    LG_M_AT_FETCH, /* prefetched operand `fetch`, element grid index g (g < 0: element add) */
    LG_M_AT_ADD,   /* grid index g, plus add */
} lg_mosaic_at_kind;

typedef struct lg_mosaic_at {
    lg_mosaic_at_kind kind;
    int g;
    uint32_t fetch, add;
} lg_mosaic_at;

typedef struct lg_mosaic_window {
    lg_mosaic_elem elem;
    uint32_t rank;
    uint32_t array[LG_MOSAIC_RANK]; /* the whole operand or result */
    uint32_t block[LG_MOSAIC_RANK];
    lg_mosaic_at at[LG_MOSAIC_RANK];
    int alias; /* results: 1 + the window that shares its memory, or 0 */
} lg_mosaic_window;

/* What surrounds the body. */
typedef struct lg_mosaic_kernel {
    const char *name;
    uint32_t n_grid, grid[LG_MOSAIC_GRID];   /* the last one runs fastest */
    uint32_t n_fetch, fetch[LG_MOSAIC_ARGS]; /* elements of each prefetched operand */
    uint32_t n_in, n_out;                    /* windows: operands, then results */
    lg_mosaic_window win[LG_MOSAIC_ARGS];
    uint32_t whole; /* bits: operands that stay in HBM, without block and place */
    uint32_t n_scratch;
    lg_mosaic_type scratch[LG_MOSAIC_ARGS]; /* of form LG_M_VMEM or LG_M_SEMAPHORE */
    uint32_t vmem_kib; /* limit asked of the compiler; 0: its own default */
} lg_mosaic_kernel;

typedef struct lg_mosaic {
    lg_buf *out; /* borrowed */
    const lg_mosaic_kernel *kernel;
    uint32_t n_value, depth;
    lg_mv grid[LG_MOSAIC_GRID], fetch[LG_MOSAIC_ARGS], win[LG_MOSAIC_ARGS],
        scratch[LG_MOSAIC_ARGS];
} lg_mosaic;

/* ---- A module: begin, the body, end.  A failed allocation shows in out->failed. ---- */

void lg_mosaic_begin(lg_mosaic *m, const lg_mosaic_kernel *k, lg_buf *out);
void lg_mosaic_end(lg_mosaic *m);

/* Operand or result i of a call, as the program has it: the prefetched ones, the operands, the results. */
lg_hlo_type lg_mosaic_hlo_type(const lg_mosaic_kernel *k, uint32_t i);

/* Call the kernel with this body from a program: arg[n_fetch + n_in], result[n_out]. */
void lg_mosaic_call(const lg_mosaic_kernel *k, const lg_buf *body, lg_hlo *h,
                    const lg_hlo_val *arg, lg_hlo_val *result);

/* VMEM that windows (two of each) and scratch take, in bytes, with the last two dimensions padded to whole tiles. */
uint64_t lg_mosaic_vmem_bytes(const lg_mosaic_kernel *k);

/* ---- Types ---- */

lg_mosaic_type lg_mosaic_vector(lg_mosaic_elem e, uint32_t rank, const uint32_t *dim);
lg_mosaic_type lg_mosaic_matrix(lg_mosaic_elem e, uint32_t rows, uint32_t cols);
lg_mosaic_type lg_mosaic_vmem(lg_mosaic_elem e, uint32_t rank, const uint32_t *dim);
lg_mosaic_type lg_mosaic_semaphores(uint32_t n);

/* ---- Operations ---- */

lg_mv lg_mosaic_index(lg_mosaic *m, uint32_t v);
lg_mv lg_mosaic_i32(lg_mosaic *m, int32_t v);
lg_mv lg_mosaic_fill_f32(lg_mosaic *m, uint32_t rows, uint32_t cols, float v);
lg_mv lg_mosaic_fill_i32(lg_mosaic *m, uint32_t rows, uint32_t cols, int32_t v);

/* op: the name without prefix ("math.exp", "arith.addf"); operands and result have one type. */
lg_mv lg_mosaic_un(lg_mosaic *m, const char *op, lg_mv x);
lg_mv lg_mosaic_bin(lg_mosaic *m, const char *op, lg_mv x, lg_mv y);

/* Comparisons of integers: predicate as in arith.cmpi (0 equal, 1 not, 2 less, 3 less or equal, signed). */
lg_mv lg_mosaic_cmp(lg_mosaic *m, int predicate, lg_mv x, lg_mv y);
/* x where c, else y; c is a scalar or has the shape of x. */
lg_mv lg_mosaic_select(lg_mosaic *m, lg_mv c, lg_mv x, lg_mv y);
/* The same numbers as another float type; from I32 to INDEX. */
lg_mv lg_mosaic_to(lg_mosaic *m, lg_mv x, lg_mosaic_elem e);

/* The block of `shape` at idx (rank(ref) values of type INDEX), and back. */
lg_mv lg_mosaic_load(lg_mosaic *m, lg_mv ref, const lg_mv *idx, const uint32_t *shape);
void lg_mosaic_store(lg_mosaic *m, lg_mv v, lg_mv ref, const lg_mv *idx);
/* One i32 of a prefetched operand. */
lg_mv lg_mosaic_scalar(lg_mosaic *m, lg_mv ref, lg_mv idx);

/* What lies behind the first n_at dimensions of ref at `at` (I32): memory of the other dimensions. */
lg_mv lg_mosaic_part(lg_mosaic *m, lg_mv ref, const lg_mv *at, uint32_t n_at);
/* Start a copy between memory of one shape; wait for one like it: the semaphore counts bytes, not which copy they are of. */
void lg_mosaic_copy(lg_mosaic *m, lg_mv from, lg_mv to, lg_mv semaphore);
void lg_mosaic_wait(lg_mosaic *m, lg_mv from, lg_mv to, lg_mv semaphore);

lg_mv lg_mosaic_shape(lg_mosaic *m, lg_mv x, uint32_t rank,
                      const uint32_t *dim); /* the same elements in order */
lg_mv lg_mosaic_matrix_of(lg_mosaic *m, lg_mv x, uint32_t rows, uint32_t cols);
lg_mv lg_mosaic_spread(lg_mosaic *m, lg_mv x, uint32_t rows,
                       uint32_t cols); /* [1][c], [r][1] or a scalar to [r][c] */
lg_mv lg_mosaic_slice(lg_mosaic *m, lg_mv x, uint32_t row, uint32_t col, uint32_t rows,
                      uint32_t cols);
lg_mv lg_mosaic_spread_to(lg_mosaic *m, lg_mv x, uint32_t rank,
                          const uint32_t *dim); /* any rank; 1s grow */
lg_mv lg_mosaic_slice_of(lg_mosaic *m, lg_mv x, const uint32_t *at, const uint32_t *dim);
lg_mv lg_mosaic_stack(lg_mosaic *m, const lg_mv *x, uint32_t n,
                      int dim); /* concatenated along dim */
lg_mv lg_mosaic_sum(lg_mosaic *m, lg_mv x,
                    int dim); /* [r][c] to [1][c] (dim 0) or [r][1] (dim 1) */
lg_mv lg_mosaic_max(lg_mosaic *m, lg_mv x, int dim);
lg_mv lg_mosaic_iota(lg_mosaic *m, uint32_t rows, uint32_t cols,
                     int dim);                    /* i32: the index along dim */
lg_mv lg_mosaic_transpose(lg_mosaic *m, lg_mv x); /* [r][c] to [c][r] */

/* acc + a b, or acc + a b^T when bt, or acc + a^T b when at; acc is F32.  F32 operands are multiplied in full precision. */
lg_mv lg_mosaic_matmul(lg_mosaic *m, lg_mv a, lg_mv b, lg_mv acc, bool at, bool bt);

/* if (c) { ... }  and  for (i = lo; i < hi; i++) { ... }, bounds I32; for gives i. */
void lg_mosaic_if(lg_mosaic *m, lg_mv c);
void lg_mosaic_if_end(lg_mosaic *m);
lg_mv lg_mosaic_for(lg_mosaic *m, lg_mv lo, lg_mv hi);
void lg_mosaic_for_end(lg_mosaic *m);

/* ---- Made of these (mosaic_parts.c); x F32, any matrix ---- */

lg_mv lg_mosaic_mul(lg_mosaic *m, lg_mv x, lg_mv y);
lg_mv lg_mosaic_add(lg_mosaic *m, lg_mv x, lg_mv y);
lg_mv lg_mosaic_sub(lg_mosaic *m, lg_mv x, lg_mv y);
lg_mv lg_mosaic_sigmoid(lg_mosaic *m, lg_mv x);
lg_mv lg_mosaic_softplus(lg_mosaic *m, lg_mv x);
lg_mv lg_mosaic_column(lg_mosaic *m, lg_mv row); /* [1][n] to [n][1] */
lg_mv lg_mosaic_unit_rows(lg_mosaic *m, lg_mv x,
                          float scale); /* rows divided by sqrt(sum of squares + 1e-6) */

/* A block [1]..[rows][cols] of a window as a matrix of F32, and back in the window's type. */
lg_mv lg_mosaic_load_rows(lg_mosaic *m, lg_mv ref, const lg_mv *idx, uint32_t rows,
                          uint32_t cols);
void lg_mosaic_store_rows(lg_mosaic *m, lg_mv v, lg_mv ref, const lg_mv *idx);

lg_mosaic_at lg_mosaic_zero_at(void);
lg_mosaic_at lg_mosaic_grid_at(int g);
lg_mosaic_at lg_mosaic_fetch_at(uint32_t fetch, int g, uint32_t add);
/* Ask for as much VMEM as the windows and scratch need where that is more than the compiler's own limit. */
void lg_mosaic_limit(lg_mosaic_kernel *k);

#endif
