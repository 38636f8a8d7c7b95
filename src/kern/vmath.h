/* vmath.h - the exponential that every level computes, operation for operation, and what is made of it.
 *
 * exp(x) = 2^n exp(r), n = round(x log2 e), |r| <= ln2 / 2; exp(r) = 1 + r + r^2 (c2 + c3 r + .. + c6 r^4), a minimax fit of
 * relative error 3.1e-9.  Below 2 ulp over the whole range (test_kern tries every 197th float).  Above LG_EXP_MAX: +inf.
 * Below LG_EXP_MIN, where the true value is below the smallest normal number: +0.  A NaN is returned as it is.
 * The vector form is in simd/exp.h. */
#ifndef LG_KERN_VMATH_H
#define LG_KERN_VMATH_H

#include "base/num.h"

#include <math.h>

#define LG_EXP_MAX   0x1.62e42ep+6f  /* largest float below log(FLT_MAX) */
#define LG_EXP_MIN   -0x1.5d589ep+6f /* smallest float above log(2^-126) */
#define LG_EXP_LOG2E 0x1.715476p+0f
#define LG_EXP_ROUND                                                                           \
    0x1.8p+23f /* adding it rounds to an integer, which lands in the low bits */
#define LG_EXP_LN2_H 0x1.62e430p-1f /* ln 2 in two parts */
#define LG_EXP_LN2_L -0x1.05c610p-29f
#define LG_EXP_C2    0x1.fffffcp-2f
#define LG_EXP_C3    0x1.555492p-3f
#define LG_EXP_C4    0x1.5558f2p-5f
#define LG_EXP_C5    0x1.123a20p-7f
#define LG_EXP_C6    0x1.6a23d0p-10f

static inline float lg_expf(float x) {
    if (!(x >= LG_EXP_MIN)) return x != x ? x : 0.0f;
    if (x > LG_EXP_MAX) return INFINITY;
    float t = fmaf(x, LG_EXP_LOG2E, LG_EXP_ROUND), n = t - LG_EXP_ROUND;
    float r = fmaf(n, -LG_EXP_LN2_L, fmaf(n, -LG_EXP_LN2_H, x));
    float p = fmaf(LG_EXP_C6, r, LG_EXP_C5);
    p = fmaf(p, r, LG_EXP_C4);
    p = fmaf(p, r, LG_EXP_C3);
    p = fmaf(p, r, LG_EXP_C2);
    p = fmaf(p * r, r, r) + 1.0f;
    return lg_num_float_of_bits(lg_num_bits_of_float(p) + (lg_num_bits_of_float(t) << 23));
}

/* 1 / (1 + exp(-x)) */
static inline float lg_sigmoidf(float x) {
    return 1.0f / (1.0f + lg_expf(-x));
}

/* x / (1 + exp(-x)) */
static inline float lg_siluf(float x) {
    return x / (1.0f + lg_expf(-x));
}

#endif
