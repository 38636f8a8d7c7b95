/* conv.h - causal convolution of four taps and SiLU over v16, lanes over channels; contract: lg_kern.conv_silu.
 * Included after a v16 header. */
#ifndef LG_KERN_SIMD_CONV_H
#define LG_KERN_SIMD_CONV_H

#include "kern/kern.h"
#include "kern/simd/row.h"

#include <string.h>

#define CONV_PREV (LG_CONV_K - 1)

/* One token: row[i] is the input under tap i. */
static inline void conv_token(const float *const *row, const float *w_tap, size_t ld_w,
                              uint32_t n_ch, float *u) {
    for (uint32_t c = 0; c < n_ch; c += 16) {
        v16 acc = v16_set(0.0f);
        for (int i = 0; i < LG_CONV_K; i++)
            acc = v16_fma(row_at(w_tap + (size_t)i * ld_w, c, n_ch), row_at(row[i], c, n_ch),
                          acc);
        row_put(u, c, n_ch, v16_silu(acc));
    }
}

static inline void conv_silu(const float *x, size_t ld_x, uint32_t n_tok, uint32_t n_ch,
                             const float *w_tap, size_t ld_w, bool has_init, float *prev,
                             size_t ld_prev, float *u, size_t ld_u) {
    size_t row_bytes = n_ch * sizeof *x;
    if (row_bytes == 0) return;
    for (uint32_t i = 0; i < CONV_PREV && !has_init; i++)
        memset(prev + i * ld_prev, 0, row_bytes);
    for (uint32_t t = 0; t < n_tok; t++) {
        const float *row[LG_CONV_K];
        for (uint32_t i = 0; i < LG_CONV_K; i++)
            row[i] =
                t + i < CONV_PREV ? prev + (t + i) * ld_prev : x + (t + i - CONV_PREV) * ld_x;
        conv_token(row, w_tap, ld_w, n_ch, u + t * ld_u);
    }
    /* The last three of (prev, x): ascending, so that a row is read before it is overwritten. */
    for (uint32_t i = 0; i < CONV_PREV && n_tok > 0; i++) {
        const float *from = n_tok + i < CONV_PREV ? prev + (n_tok + i) * ld_prev
                                                  : x + (n_tok + i - CONV_PREV) * ld_x;
        memcpy(prev + i * ld_prev, from, row_bytes);
    }
}

#endif
