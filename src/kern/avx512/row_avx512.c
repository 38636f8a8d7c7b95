/* row_avx512.c - simd/row.h compiled for avx512.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx512/avx512.h"
#include "kern/avx512/v16_avx512.h"

#include "kern/simd/row.h"

void lg_row_avx512_rmsnorm(const float *x, const float *w, float eps, uint32_t n, float *y) {
    row_rmsnorm(x, w, eps, n, y);
}

void lg_row_avx512_l2norm(const float *x, float eps, float scale, uint32_t n, float *y) {
    row_l2norm(x, eps, scale, n, y);
}

float lg_row_avx512_dot(const float *x, const float *y, uint32_t n) {
    return row_dot(x, y, n);
}

void lg_row_avx512_add(const float *x, uint32_t n, float *y) {
    row_add(x, n, y);
}

void lg_row_avx512_axpy(float a, const float *x, uint32_t n, float *y) {
    row_axpy(a, x, n, y);
}

void lg_row_avx512_swiglu(const float *gate, const float *up, uint32_t n, float *y) {
    row_swiglu(gate, up, n, y);
}

void lg_row_avx512_sigmoid_mul(const float *x, const float *gate, uint32_t n, float *y) {
    row_sigmoid_mul(x, gate, n, y);
}

void lg_row_avx512_gated_norm(const float *x, const float *w, const float *z, float eps,
                              uint32_t n, float *y) {
    row_gated_norm(x, w, z, eps, n, y);
}

void lg_row_avx512_rope(float *x, const float *cos, const float *sin, uint32_t n_rot) {
    row_rope(x, cos, sin, n_rot);
}

uint32_t lg_row_avx512_argmax(const float *x, uint32_t n, float *max) {
    return row_argmax(x, n, max);
}
