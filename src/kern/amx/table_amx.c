/* table_amx.c - the table of level amx: avx512vnni with tiles for integer products of many rows.  Test: tests/unit/test_kern_bits.c */
#include "kern/amx/amx.h"
#include "kern/avx512/avx512.h"
#include "kern/level.h"

const lg_kern lg_kern_amx = {
    .name = "amx",
    .gemm = lg_gemm_avx512,
    .quant_row = lg_quant_row_avx512vnni,
    .qgemm = lg_qgemm_amx,
    .rmsnorm = lg_row_avx512_rmsnorm,
    .l2norm = lg_row_avx512_l2norm,
    .dot = lg_row_avx512_dot,
    .add = lg_row_avx512_add,
    .axpy = lg_row_avx512_axpy,
    .swiglu = lg_row_avx512_swiglu,
    .sigmoid_mul = lg_row_avx512_sigmoid_mul,
    .gated_norm = lg_row_avx512_gated_norm,
    .rope = lg_row_avx512_rope,
    .conv_silu = lg_conv_avx512_silu,
    .gdn_rows = lg_gdn_avx512_rows,
    .attn_page = lg_attn_avx512_page,
    .kv_store = lg_attn_avx512_store,
    .argmax = lg_row_avx512_argmax,
};
