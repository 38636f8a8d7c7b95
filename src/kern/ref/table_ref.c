/* table_ref.c - the table of level ref.  Test: tests/unit/test_kern.c */
#include "kern/level.h"
#include "kern/ref/ref.h"

const lg_kern lg_kern_ref = {
    .name = "ref",
    .gemm = lg_gemm_ref,
    .quant_row = lg_quant_row_ref,
    .qgemm = lg_qgemm_ref,
    .rmsnorm = lg_row_ref_rmsnorm,
    .l2norm = lg_row_ref_l2norm,
    .dot = lg_row_ref_dot,
    .add = lg_row_ref_add,
    .axpy = lg_row_ref_axpy,
    .swiglu = lg_row_ref_swiglu,
    .sigmoid_mul = lg_row_ref_sigmoid_mul,
    .gated_norm = lg_row_ref_gated_norm,
    .rope = lg_row_ref_rope,
    .conv_silu = lg_conv_ref_silu,
    .gdn_rows = lg_gdn_ref_rows,
    .attn_page = lg_attn_ref_page,
    .kv_store = lg_attn_ref_store,
    .argmax = lg_row_ref_argmax,
};
