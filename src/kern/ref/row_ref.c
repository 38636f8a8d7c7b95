/* row_ref.c - norms and element-wise kernels over one row, plain C.  Test: tests/unit/test_kern.c */
#include "kern/ref/ref.h"
#include "kern/vmath.h"

#define N_LANE 16 /* partial sums of a reduction */

float lg_row_ref_dot(const float *x, const float *y, uint32_t n) {
    float lane[N_LANE] = {0};
    for (uint32_t i = 0; i < n; i++) lane[i % N_LANE] = fmaf(x[i], y[i], lane[i % N_LANE]);
    for (uint32_t half = N_LANE / 2; half > 0; half /= 2)
        for (uint32_t j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

void lg_row_ref_rmsnorm(const float *x, const float *w, float eps, uint32_t n, float *y) {
    float scale = 1.0f / sqrtf(lg_row_ref_dot(x, x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (x[i] * scale) * w[i];
}

void lg_row_ref_l2norm(const float *x, float eps, float scale, uint32_t n, float *y) {
    float inv = 1.0f / sqrtf(lg_row_ref_dot(x, x, n) + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (x[i] * inv) * scale;
}

void lg_row_ref_add(const float *x, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i++) y[i] = y[i] + x[i];
}

void lg_row_ref_axpy(float a, const float *x, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}

void lg_row_ref_swiglu(const float *gate, const float *up, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i++) y[i] = lg_siluf(gate[i]) * up[i];
}

void lg_row_ref_sigmoid_mul(const float *x, const float *gate, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * lg_sigmoidf(gate[i]);
}

void lg_row_ref_gated_norm(const float *x, const float *w, const float *z, float eps,
                           uint32_t n, float *y) {
    float scale = 1.0f / sqrtf(lg_row_ref_dot(x, x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = ((x[i] * scale) * w[i]) * lg_siluf(z[i]);
}

void lg_row_ref_rope(float *x, const float *cos, const float *sin, uint32_t n_rot) {
    uint32_t n = n_rot / 2;
    for (uint32_t i = 0; i < n; i++) {
        float lo = x[i], hi = x[i + n];
        x[i] = fmaf(lo, cos[i], -(hi * sin[i]));
        x[i + n] = fmaf(hi, cos[i], lo * sin[i]);
    }
}

uint32_t lg_row_ref_argmax(const float *x, uint32_t n, float *max) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (x[i] != x[i]) {
            best = UINT32_MAX;
            break;
        }
        if (best == UINT32_MAX || x[i] > x[best]) best = i;
    }
    *max = best == UINT32_MAX ? NAN : x[best];
    return best;
}
