/* mosaic_parts.c - what several kernels are made of: sums of operations of mosaic.c.
 *
 * Test: tests/unit/test_mosaic_*.c */
#include "backend/pjrt/mosaic/mosaic.h"

/* 1 / (1 + exp(-x)) for any shape. */
lg_mv lg_mosaic_sigmoid(lg_mosaic *m, lg_mv x) {
    uint32_t r = x.type.dim[0], c = x.type.dim[1];
    lg_mv one = lg_mosaic_fill_f32(m, r, c, 1.0f);
    lg_mv e = lg_mosaic_un(m, "math.exp", lg_mosaic_un(m, "arith.negf", x));
    return lg_mosaic_bin(m, "arith.divf", one, lg_mosaic_bin(m, "arith.addf", one, e));
}

/* max(x, 0) + log1p(exp(-|x|)). */
lg_mv lg_mosaic_softplus(lg_mosaic *m, lg_mv x) {
    lg_mv zero = lg_mosaic_fill_f32(m, x.type.dim[0], x.type.dim[1], 0.0f);
    lg_mv e = lg_mosaic_un(m, "math.exp",
                           lg_mosaic_un(m, "arith.negf", lg_mosaic_un(m, "math.absf", x)));
    return lg_mosaic_bin(m, "arith.addf", lg_mosaic_bin(m, "arith.maximumf", x, zero),
                         lg_mosaic_un(m, "math.log1p", e));
}

lg_mv lg_mosaic_mul(lg_mosaic *m, lg_mv x, lg_mv y) {
    return lg_mosaic_bin(m, "arith.mulf", x, y);
}

lg_mv lg_mosaic_add(lg_mosaic *m, lg_mv x, lg_mv y) {
    return lg_mosaic_bin(m, "arith.addf", x, y);
}

lg_mv lg_mosaic_sub(lg_mosaic *m, lg_mv x, lg_mv y) {
    return lg_mosaic_bin(m, "arith.subf", x, y);
}

/* [1][n] to [n][1]: the diagonal of its n copies, summed over lanes.  Exact: all other terms are zero. */
lg_mv lg_mosaic_column(lg_mosaic *m, lg_mv row) {
    uint32_t n = row.type.dim[1];
    lg_mv eye = lg_mosaic_cmp(m, 0, lg_mosaic_iota(m, n, n, 0), lg_mosaic_iota(m, n, n, 1));
    lg_mv diag = lg_mosaic_select(m, eye, lg_mosaic_spread(m, row, n, n),
                                  lg_mosaic_fill_f32(m, n, n, 0.0f));
    return lg_mosaic_sum(m, diag, 1);
}

/* A block of a window whose leading dimensions are 1, as a matrix of F32. */
lg_mv lg_mosaic_load_rows(lg_mosaic *m, lg_mv ref, const lg_mv *idx, uint32_t rows,
                          uint32_t cols) {
    uint32_t shape[LG_MOSAIC_RANK];
    for (uint32_t i = 0; i < ref.type.rank; i++) shape[i] = 1;
    shape[ref.type.rank - 2] = rows;
    shape[ref.type.rank - 1] = cols;
    lg_mv v = lg_mosaic_load(m, ref, idx, shape);
    if (ref.type.rank > 2) v = lg_mosaic_matrix_of(m, v, rows, cols);
    return lg_mosaic_to(m, v, LG_M_F32);
}

/* Store a matrix of F32 into such a block. */
void lg_mosaic_store_rows(lg_mosaic *m, lg_mv v, lg_mv ref, const lg_mv *idx) {
    uint32_t shape[LG_MOSAIC_RANK];
    for (uint32_t i = 0; i < ref.type.rank; i++) shape[i] = 1;
    shape[ref.type.rank - 2] = v.type.dim[0];
    shape[ref.type.rank - 1] = v.type.dim[1];
    v = lg_mosaic_to(m, v, ref.type.elem);
    if (ref.type.rank > 2) v = lg_mosaic_shape(m, v, ref.type.rank, shape);
    lg_mosaic_store(m, v, ref, idx);
}

/* Rows of x divided by their length, times `scale`. */
lg_mv lg_mosaic_unit_rows(lg_mosaic *m, lg_mv x, float scale) {
    uint32_t r = x.type.dim[0], c = x.type.dim[1];
    lg_mv s = lg_mosaic_sum(m, lg_mosaic_mul(m, x, x), 1);
    s = lg_mosaic_un(m, "math.rsqrt", lg_mosaic_add(m, s, lg_mosaic_fill_f32(m, r, 1, 1e-6f)));
    if (scale != 1.0f) s = lg_mosaic_mul(m, s, lg_mosaic_fill_f32(m, r, 1, scale));
    return lg_mosaic_mul(m, x, lg_mosaic_spread(m, s, r, c));
}

/* ---- Windows ---- */

lg_mosaic_at lg_mosaic_zero_at(void) {
    return (lg_mosaic_at){.kind = LG_M_AT_ZERO};
}

lg_mosaic_at lg_mosaic_grid_at(int g) {
    return (lg_mosaic_at){.kind = LG_M_AT_GRID, .g = g};
}

lg_mosaic_at lg_mosaic_fetch_at(uint32_t fetch, int g, uint32_t add) {
    return (lg_mosaic_at){.kind = LG_M_AT_FETCH, .g = g, .fetch = fetch, .add = add};
}

void lg_mosaic_limit(lg_mosaic_kernel *k) {
    uint64_t kib = lg_mosaic_vmem_bytes(k) / 1024 +
                   4096; /* beside windows and scratch: what the body spills */
    k->vmem_kib = kib > 16 * 1024 ? (uint32_t)kib : 0;
}
