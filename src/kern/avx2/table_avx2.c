/* table_avx2.c - the table of level avx2.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx2/avx2.h"
#include "kern/level.h"

const lg_kern lg_kern_avx2 = {
    .name = "avx2",
    .gemm = lg_gemm_avx2,
    .quant_row = lg_quant_row_avx2,
    .qgemm = lg_qgemm_avx2,
    .rmsnorm = lg_row_avx2_rmsnorm,
    .l2norm = lg_row_avx2_l2norm,
    .dot = lg_row_avx2_dot,
    .add = lg_row_avx2_add,
    .axpy = lg_row_avx2_axpy,
    .swiglu = lg_row_avx2_swiglu,
    .sigmoid_mul = lg_row_avx2_sigmoid_mul,
    .gated_norm = lg_row_avx2_gated_norm,
    .rope = lg_row_avx2_rope,
    .conv_silu = lg_conv_avx2_silu,
    .gdn_rows = lg_gdn_avx2_rows,
    .attn_page = lg_attn_avx2_page,
    .kv_store = lg_attn_avx2_store,
    .argmax = lg_row_avx2_argmax,
};
