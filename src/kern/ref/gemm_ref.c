/* gemm_ref.c - matrix product from packed panels, plain C.  Test: tests/unit/test_kern.c */
#include "base/num.h"
#include "kern/ref/ref.h"

#include <math.h>

/* Weight k of channel c (0 .. 15) in a panel. */
static float element(const lg_mat *w, uint32_t panel, uint32_t k, uint32_t c) {
    size_t i = ((size_t)panel * w->n_in + k) * LG_NR + c;
    switch (w->type) {
    case LG_F32: return ((const float *)w->panel)[i];
    case LG_BF16: return lg_num_bf16(((const uint16_t *)w->panel)[i]);
    case LG_F16: return lg_num_f16(((const uint16_t *)w->panel)[i]);
    default: break;
    }
    size_t n_block = (w->n_in + 127u) / 128;
    float scale = w->scale[(size_t)panel * LG_NR / 128 * n_block + k / 128];
    return lg_num_e4m3(((const uint8_t *)w->panel)[i]) * scale;
}

void lg_gemm_ref(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const float *x,
                 size_t ld_x, const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y) {
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        uint32_t c0 = p * LG_NR, n_ch = w->n_out - c0 < LG_NR ? w->n_out - c0 : LG_NR;
        for (uint32_t r = 0; r < n_row; r++) {
            const float *xr = x + (row_idx ? row_idx[r] : r) * ld_x;
            float acc[LG_NR] = {0};
            for (uint32_t k = 0; k < w->n_in; k++)
                for (uint32_t c = 0; c < n_ch; c++)
                    acc[c] = fmaf(xr[k], element(w, p, k, c), acc[c]);
            for (uint32_t c = 0; c < n_ch; c++) y[r * ld_y + c0 + c] = acc[c];
        }
    }
}
