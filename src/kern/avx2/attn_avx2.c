/* attn_avx2.c - simd/attn.h compiled for avx2.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx2/avx2.h"
#include "kern/avx2/v16_avx2.h"

#include "kern/simd/attn.h"

void lg_attn_avx2_page(const lg_attn_arg *a) {
    attn_page(a);
}

void lg_attn_avx2_store(lg_dtype kv, const float *k, const float *v, uint32_t d, uint32_t j,
                        void *page) {
    attn_store(kv, k, v, d, j, page);
}
