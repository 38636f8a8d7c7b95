/* gdn_avx2.c - simd/gdn.h compiled for avx2.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx2/avx2.h"
#include "kern/avx2/v16_avx2.h"

#include "kern/simd/gdn.h"

void lg_gdn_avx2_rows(const lg_gdn_arg *a) {
    gdn_rows(a);
}
