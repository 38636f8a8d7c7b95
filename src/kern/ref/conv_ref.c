/* conv_ref.c - causal convolution of four taps and SiLU, plain C.  Test: tests/unit/test_kern.c */
#include "kern/ref/ref.h"
#include "kern/vmath.h"

#define N_PREV (LG_CONV_K - 1)

void lg_conv_ref_silu(const float *x, size_t ld_x, uint32_t n_tok, uint32_t n_ch,
                      const float *w_tap, size_t ld_w, bool has_init, float *prev,
                      size_t ld_prev, float *u, size_t ld_u) {
    for (uint32_t c = 0; c < n_ch; c++) {
        float win[LG_CONV_K] = {0}; /* the last rows, oldest first */
        for (uint32_t i = 0; i < N_PREV && has_init; i++) win[i + 1] = prev[i * ld_prev + c];
        for (uint32_t t = 0; t < n_tok; t++) {
            float acc = 0.0f;
            for (uint32_t i = 0; i < N_PREV; i++) win[i] = win[i + 1];
            win[N_PREV] = x[t * ld_x + c];
            for (uint32_t i = 0; i < LG_CONV_K; i++)
                acc = fmaf(w_tap[i * ld_w + c], win[i], acc);
            u[t * ld_u + c] = lg_siluf(acc);
        }
        for (uint32_t i = 0; i < N_PREV; i++) prev[i * ld_prev + c] = win[i + 1];
    }
}
