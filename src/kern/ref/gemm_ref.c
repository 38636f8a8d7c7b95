/* gemm_ref.c - matrix product from packed panels, plain C.  Test: tests/unit/test_kern.c */
#include "base/num.h"
#include "kern/dequant.h"
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
    if (w->scale_row)
        return lg_num_e4m3(((const uint8_t *)w->panel)[i]) * lg_mat_row_scales(w, panel, k)[c];
    float scale = w->scale[(size_t)panel * LG_NR / 128 * n_block + k / 128];
    return lg_num_e4m3(((const uint8_t *)w->panel)[i]) * scale;
}

/* Channel sums of one row over input channels [k0, k0 + n_k), whose weights are given as [n_k][16]. */
static void add_block(const float *x, const float *wide, uint32_t n_k, float *acc) {
    for (uint32_t k = 0; k < n_k; k++)
        for (uint32_t c = 0; c < LG_NR; c++)
            acc[c] = fmaf(x[k], wide[(size_t)k * LG_NR + c], acc[c]);
}

/* LG_MAX_BLOCK input channels of a panel as floats. */
static void widen(const lg_mat *w, uint32_t panel, uint32_t k0, uint32_t n_k, float *wide) {
    if (lg_dtype_is_block(w->type)) {
        lg_dequant_mat(w, panel, k0, n_k, wide);
        return;
    }
    for (uint32_t k = 0; k < n_k; k++)
        for (uint32_t c = 0; c < LG_NR; c++)
            wide[(size_t)k * LG_NR + c] = element(w, panel, k0 + k, c);
}

void lg_gemm_ref(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const float *x,
                 size_t ld_x, const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y) {
    float wide[LG_MAX_BLOCK * LG_NR];
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        uint32_t c0 = p * LG_NR, n_ch = w->n_out - c0 < LG_NR ? w->n_out - c0 : LG_NR;
        for (uint32_t k0 = 0; k0 < w->n_in || k0 == 0; k0 += LG_MAX_BLOCK) {
            uint32_t n_k = w->n_in - k0 < LG_MAX_BLOCK ? w->n_in - k0 : LG_MAX_BLOCK;
            widen(w, p, k0, n_k, wide);
            for (uint32_t r = 0; r < n_row; r++) {
                float acc[LG_NR] = {0}, *out = y + r * ld_y + c0;
                for (uint32_t c = 0; c < n_ch && k0 > 0; c++) acc[c] = out[c];
                add_block(x + (row_idx ? row_idx[r] : r) * ld_x + k0, wide, n_k, acc);
                for (uint32_t c = 0; c < n_ch; c++) out[c] = acc[c];
            }
        }
    }
}
