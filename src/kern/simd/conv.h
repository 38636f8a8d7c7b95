/* conv.h - causal convolution of four taps and SiLU over v16, lanes over channels; contract: lg_kern.conv_silu.
 * Included after a v16 header. */
#ifndef LG_KERN_SIMD_CONV_H
#define LG_KERN_SIMD_CONV_H

#include "kern/kern.h"
#include "kern/simd/row.h"

#include <string.h>

#define CONV_PREV (LG_CONV_K - 1)

#define CONV_CH    128 /* channels taken through all tokens together */
#define CONV_AHEAD 4   /* tokens ahead that x is asked for */

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

/* The last three of (prev, x): ascending, so that a row is read before it is overwritten. */
static inline void conv_keep(const float *x, size_t ld_x, uint32_t n_tok, uint32_t n_ch,
                             float *prev, size_t ld_prev) {
    for (uint32_t i = 0; i < CONV_PREV && n_tok > 0; i++) {
        const float *from = n_tok + i < CONV_PREV ? prev + (n_tok + i) * ld_prev
                                                  : x + (n_tok + i - CONV_PREV) * ld_x;
        memcpy(prev + i * ld_prev, from, n_ch * sizeof *x);
    }
}

/* A few tokens, all channels. */
static inline void conv_few(const float *x, size_t ld_x, uint32_t n_tok, uint32_t n_ch,
                            const float *w_tap, size_t ld_w, const float *prev, size_t ld_prev,
                            float *u, size_t ld_u) {
    for (uint32_t t = 0; t < n_tok; t++) {
        const float *row[LG_CONV_K];
        for (uint32_t i = 0; i < LG_CONV_K; i++)
            row[i] =
                t + i < CONV_PREV ? prev + (t + i) * ld_prev : x + (t + i - CONV_PREV) * ld_x;
        conv_token(row, w_tap, ld_w, n_ch, u + t * ld_u);
    }
}

/* Many tokens, n_ch <= CONV_CH channels: taps and last rows lie side by side meanwhile.  Rows of x, and taps, mostly are a
 * multiple of 4 KiB apart and would push each other out of the first-level cache. */
static inline void conv_many(const float *x, size_t ld_x, uint32_t n_tok, uint32_t n_ch,
                             const float *w_tap, size_t ld_w, const float *prev, size_t ld_prev,
                             float *u, size_t ld_u) {
    _Alignas(64) float w[LG_CONV_K][CONV_CH], last[LG_CONV_K][CONV_CH];
    for (uint32_t i = 0; i < LG_CONV_K; i++) {
        memcpy(w[i], w_tap + i * ld_w, n_ch * sizeof *x);
        if (i < CONV_PREV) memcpy(last[i], prev + i * ld_prev, n_ch * sizeof *x);
    }
    for (uint32_t t = 0; t < n_tok; t++, x += ld_x) {
        const float *row[LG_CONV_K];
        for (uint32_t i = 0; i < LG_CONV_K; i++) row[i] = last[(t + i) % LG_CONV_K];
        float *newest = last[(t + CONV_PREV) % LG_CONV_K];
        for (uint32_t c = 0; c < n_ch; c += 16) {
            if (t + CONV_AHEAD < n_tok) __builtin_prefetch(x + CONV_AHEAD * ld_x + c);
            row_put(newest, c, n_ch, row_at(x, c, n_ch));
        }
        conv_token(row, w[0], CONV_CH, n_ch, u + t * ld_u);
    }
}

static inline void conv_silu(const float *x, size_t ld_x, uint32_t n_tok, uint32_t n_ch,
                             const float *w_tap, size_t ld_w, bool has_init, float *prev,
                             size_t ld_prev, float *u, size_t ld_u) {
    if (n_ch == 0) return;
    for (uint32_t i = 0; i < CONV_PREV && !has_init; i++)
        memset(prev + i * ld_prev, 0, n_ch * sizeof *x);
    if (n_tok <= CONV_PREV) conv_few(x, ld_x, n_tok, n_ch, w_tap, ld_w, prev, ld_prev, u, ld_u);
    for (uint32_t c = 0; n_tok > CONV_PREV && c < n_ch; c += CONV_CH)
        conv_many(x + c, ld_x, n_tok, n_ch - c < CONV_CH ? n_ch - c : CONV_CH, w_tap + c, ld_w,
                  prev + c, ld_prev, u + c, ld_u);
    conv_keep(x, ld_x, n_tok, n_ch, prev, ld_prev);
}

#endif
