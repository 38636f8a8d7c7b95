/* row.h - norms and element-wise kernels over v16; contracts: kern.h, under the same name.  Included after a v16 header. */
#ifndef LG_KERN_SIMD_ROW_H
#define LG_KERN_SIMD_ROW_H

#include "kern/simd/exp.h"

static inline float row_dot(const float *x, const float *y, uint32_t n) {
    v16 sum = v16_set(0.0f);
    uint32_t i = 0;
    for (; n - i >= 16; i += 16) sum = v16_fma(v16_load(x + i), v16_load(y + i), sum);
    if (i < n) {
        v16 more = v16_fma(v16_load_n(x + i, n - i), v16_load_n(y + i, n - i), sum);
        sum = v16_pick_n(n - i, more, sum);
    }
    return v16_sum(sum);
}

/* Lanes at i of n, and their store: whole or the rest. */
static inline v16 row_at(const float *x, uint32_t i, uint32_t n) {
    return n - i >= 16 ? v16_load(x + i) : v16_load_n(x + i, n - i);
}

static inline void row_put(float *y, uint32_t i, uint32_t n, v16 v) {
    if (n - i >= 16) {
        v16_store(y + i, v);
    } else {
        v16_store_n(y + i, v, n - i);
    }
}

/* y = (x * scale) * w */
static inline void row_scale(const float *x, float scale, const float *w, uint32_t n,
                             float *y) {
    v16 s = v16_set(scale);
    for (uint32_t i = 0; i < n; i += 16)
        row_put(y, i, n, v16_mul(v16_mul(row_at(x, i, n), s), row_at(w, i, n)));
}

static inline float row_rms(const float *x, float eps, uint32_t n) {
    return 1.0f / sqrtf(row_dot(x, x, n) / (float)n + eps);
}

static inline void row_rmsnorm(const float *x, const float *w, float eps, uint32_t n,
                               float *y) {
    row_scale(x, row_rms(x, eps, n), w, n, y);
}

static inline void row_l2norm(const float *x, float eps, float scale, uint32_t n, float *y) {
    v16 inv = v16_set(1.0f / sqrtf(row_dot(x, x, n) + eps)), s = v16_set(scale);
    for (uint32_t i = 0; i < n; i += 16)
        row_put(y, i, n, v16_mul(v16_mul(row_at(x, i, n), inv), s));
}

static inline void row_add(const float *x, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i += 16)
        row_put(y, i, n, v16_add(row_at(y, i, n), row_at(x, i, n)));
}

static inline void row_axpy(float a, const float *x, uint32_t n, float *y) {
    v16 va = v16_set(a);
    for (uint32_t i = 0; i < n; i += 16)
        row_put(y, i, n, v16_fma(va, row_at(x, i, n), row_at(y, i, n)));
}

static inline void row_swiglu(const float *gate, const float *up, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i += 16)
        row_put(y, i, n, v16_mul(v16_silu(row_at(gate, i, n)), row_at(up, i, n)));
}

static inline void row_sigmoid_mul(const float *x, const float *gate, uint32_t n, float *y) {
    for (uint32_t i = 0; i < n; i += 16)
        row_put(y, i, n, v16_mul(row_at(x, i, n), v16_sigmoid(row_at(gate, i, n))));
}

static inline void row_gated_norm(const float *x, const float *w, const float *z, float eps,
                                  uint32_t n, float *y) {
    v16 s = v16_set(row_rms(x, eps, n));
    for (uint32_t i = 0; i < n; i += 16) {
        v16 v = v16_mul(v16_mul(row_at(x, i, n), s), row_at(w, i, n));
        row_put(y, i, n, v16_mul(v, v16_silu(row_at(z, i, n))));
    }
}

static inline void row_rope(float *x, const float *cos, const float *sin, uint32_t n_rot) {
    uint32_t n = n_rot / 2;
    for (uint32_t i = 0; i < n; i += 16) {
        v16 lo = row_at(x, i, n), hi = row_at(x + n, i, n);
        v16 c = row_at(cos, i, n), s = row_at(sin, i, n);
        row_put(x, i, n, v16_fma(lo, c, v16_neg(v16_mul(hi, s))));
        row_put(x + n, i, n, v16_fma(hi, c, v16_mul(lo, s)));
    }
}

/* The lanes of a row's last vector that do not exist count as -inf. */
static inline v16 row_or_least(const float *x, uint32_t i, uint32_t n) {
    if (n - i >= 16) return v16_load(x + i);
    return v16_pick_n(n - i, v16_load_n(x + i, n - i), v16_set(-INFINITY));
}

static inline uint32_t row_argmax(const float *x, uint32_t n, float *max) {
    v16 best = v16_set(-INFINITY);
    uint32_t nan = n == 0, at = UINT32_MAX;
    *max = NAN;
    for (uint32_t i = 0; i < n; i += 16) {
        v16 v = row_or_least(x, i, n);
        nan |= v16_nan_bits(v);
        best = v16_max(best, v);
    }
    if (nan) return at;
    best = v16_set(v16_max_lane(best));
    for (uint32_t i = 0; i < n && at == UINT32_MAX; i += 16) {
        uint32_t bits = v16_eq_bits(row_or_least(x, i, n), best);
        if (bits) at = i + (uint32_t)__builtin_ctz(bits);
    }
    *max = x[at];
    return at;
}

#endif
