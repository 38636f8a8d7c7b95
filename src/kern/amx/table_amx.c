/* table_amx.c - the table of level amx: avx512vnni with tiles for integer products of many rows.  Test: tests/unit/test_kern_bits.c */
#include "kern/amx/amx.h"
#include "kern/avx512/avx512.h"
#include "kern/level.h"

const lg_kern lg_kern_amx = {
    .name = "amx",
    .qgemm_copies = true,
    LG_KERN_AVX512_COMMON,
    .quant_row = lg_quant_row_avx512vnni,
    .qgemm = lg_qgemm_amx,
};
