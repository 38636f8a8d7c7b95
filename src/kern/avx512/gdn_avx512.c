/* gdn_avx512.c - simd/gdn.h compiled for avx512.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx512/avx512.h"
#include "kern/avx512/v16_avx512.h"

#include "kern/simd/gdn.h"

void lg_gdn_avx512_rows(const lg_gdn_arg *a) {
    gdn_rows(a);
}
