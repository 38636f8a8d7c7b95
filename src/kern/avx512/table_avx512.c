/* table_avx512.c - the table of level avx512, with the integer products of AVX2.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx2/avx2.h"
#include "kern/avx512/avx512.h"
#include "kern/level.h"

const lg_kern lg_kern_avx512 = {
    .name = "avx512",
    LG_KERN_AVX512_COMMON,
    .quant_row = lg_quant_row_avx2,
    .qgemm = lg_qgemm_avx2,
};
