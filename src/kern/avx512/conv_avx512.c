/* conv_avx512.c - simd/conv.h compiled for avx512.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx512/avx512.h"
#include "kern/avx512/v16_avx512.h"

#include "kern/simd/conv.h"

void lg_conv_avx512_silu(const float *x, size_t ld_x, uint32_t n_tok, uint32_t n_ch,
                         const float *w_tap, size_t ld_w, bool has_init, float *prev,
                         size_t ld_prev, float *u, size_t ld_u) {
    conv_silu(x, ld_x, n_tok, n_ch, w_tap, ld_w, has_init, prev, ld_prev, u, ld_u);
}
