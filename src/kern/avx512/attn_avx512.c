/* attn_avx512.c - simd/attn.h compiled for avx512.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx512/avx512.h"
#include "kern/avx512/v16_avx512.h"

#include "kern/simd/attn.h"

void lg_attn_avx512_page(const lg_attn_arg *a) {
    attn_page(a);
}

void lg_attn_avx512_store(lg_dtype kv, const float *k, const float *v, uint32_t d, uint32_t j,
                          void *page) {
    attn_store(kv, k, v, d, j, page);
}
