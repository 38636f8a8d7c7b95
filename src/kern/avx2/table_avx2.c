/* table_avx2.c - the table of level avx2.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx2/avx2.h"
#include "kern/level.h"

const lg_kern lg_kern_avx2 = {
    .name = "avx2",
    LG_KERN_AVX2_COMMON,
    .qgemm = lg_qgemm_avx2,
};
