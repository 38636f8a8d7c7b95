/* avx512.h - the kernels of levels avx512 and avx512vnni.  Contracts: kern.h, under the same name. */
#ifndef LG_KERN_AVX512_AVX512_H
#define LG_KERN_AVX512_AVX512_H

#include "kern/kern.h"

void lg_gemm_avx512(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const float *x,
                    size_t ld_x, const uint32_t *row_idx, uint32_t n_row, float *y,
                    size_t ld_y);
void lg_row_avx512_rmsnorm(const float *x, const float *w, float eps, uint32_t n, float *y);
void lg_row_avx512_l2norm(const float *x, float eps, float scale, uint32_t n, float *y);
float lg_row_avx512_dot(const float *x, const float *y, uint32_t n);
void lg_row_avx512_add(const float *x, uint32_t n, float *y);
void lg_row_avx512_axpy(float a, const float *x, uint32_t n, float *y);
void lg_row_avx512_swiglu(const float *gate, const float *up, uint32_t n, float *y);
void lg_row_avx512_sigmoid_mul(const float *x, const float *gate, uint32_t n, float *y);
void lg_row_avx512_gated_norm(const float *x, const float *w, const float *z, float eps,
                              uint32_t n, float *y);
void lg_row_avx512_rope(float *x, const float *cos, const float *sin, uint32_t n_rot);
uint32_t lg_row_avx512_argmax(const float *x, uint32_t n, float *max);
void lg_conv_avx512_silu(const float *x, size_t ld_x, uint32_t n_tok, uint32_t n_ch,
                         const float *w_tap, size_t ld_w, bool has_init, float *prev,
                         size_t ld_prev, float *u, size_t ld_u);
void lg_gdn_avx512_rows(const lg_gdn_arg *a);
void lg_attn_avx512_page(const lg_attn_arg *a);
void lg_attn_avx512_store(lg_dtype kv, const float *k, const float *v, uint32_t d, uint32_t j,
                          void *page);

/* ---- with VNNI ---- */

void lg_quant_row_avx512vnni(const float *x, uint32_t n, const lg_qrows *q, size_t row);
void lg_qgemm_avx512vnni(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const lg_qrows *x,
                         const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y);

/* What the levels above AVX2 have in common. */
#define LG_KERN_AVX512_COMMON                                                                  \
    .gemm = lg_gemm_avx512, .rmsnorm = lg_row_avx512_rmsnorm, .l2norm = lg_row_avx512_l2norm,  \
    .dot = lg_row_avx512_dot, .add = lg_row_avx512_add, .axpy = lg_row_avx512_axpy,            \
    .swiglu = lg_row_avx512_swiglu, .sigmoid_mul = lg_row_avx512_sigmoid_mul,                  \
    .gated_norm = lg_row_avx512_gated_norm, .rope = lg_row_avx512_rope,                        \
    .conv_silu = lg_conv_avx512_silu, .gdn_rows = lg_gdn_avx512_rows,                          \
    .attn_page = lg_attn_avx512_page, .kv_store = lg_attn_avx512_store,                        \
    .argmax = lg_row_avx512_argmax

#endif
