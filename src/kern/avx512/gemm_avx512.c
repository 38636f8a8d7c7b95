/* gemm_avx512.c - simd/gemm.h compiled for avx512.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx512/avx512.h"
#include "kern/avx512/v16_avx512.h"

#include "kern/simd/gemm.h"

void lg_gemm_avx512(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const float *x,
                    size_t ld_x, const uint32_t *row_idx, uint32_t n_row, float *y,
                    size_t ld_y) {
    gemm_run(w, panel0, n_panel, x, ld_x, row_idx, n_row, y, ld_y);
}
