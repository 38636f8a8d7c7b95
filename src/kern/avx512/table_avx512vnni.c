/* table_avx512vnni.c - the table of level avx512vnni: avx512 with other integer products.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx512/avx512.h"
#include "kern/level.h"

const lg_kern lg_kern_avx512vnni = {
    .name = "avx512vnni",
    LG_KERN_AVX512_COMMON,
    .quant_row = lg_quant_row_avx512vnni,
    .qgemm = lg_qgemm_avx512vnni,
};
