/* exp.h - lg_expf of vmath.h over v16: the same operations in the same order.  Included after a v16 header. */
#ifndef LG_KERN_SIMD_EXP_H
#define LG_KERN_SIMD_EXP_H

#include "kern/vmath.h"

static inline v16 v16_exp(v16 x) {
    v16 t = v16_fma(x, v16_set(LG_EXP_LOG2E), v16_set(LG_EXP_ROUND));
    v16 n = v16_sub(t, v16_set(LG_EXP_ROUND));
    v16 r = v16_fma(n, v16_set(-LG_EXP_LN2_L), v16_fma(n, v16_set(-LG_EXP_LN2_H), x));
    v16 p = v16_fma(v16_set(LG_EXP_C6), r, v16_set(LG_EXP_C5));
    p = v16_fma(p, r, v16_set(LG_EXP_C4));
    p = v16_fma(p, r, v16_set(LG_EXP_C3));
    p = v16_fma(p, r, v16_set(LG_EXP_C2));
    p = v16_add(v16_fma(v16_mul(p, r), r, r), v16_set(1.0f));
    v16 y = v16_add_exponent(p, t);
    y = v16_pick_ge(v16_set(LG_EXP_MAX), x, y, v16_set(INFINITY));
    y = v16_pick_ge(x, v16_set(LG_EXP_MIN), y, v16_set(0.0f));
    return v16_pick_nan(x, x, y);
}

/* 1 + exp(-x), the denominator of sigmoid and silu */
static inline v16 v16_one_plus_exp_neg(v16 x) {
    return v16_add(v16_set(1.0f), v16_exp(v16_neg(x)));
}

static inline v16 v16_silu(v16 x) {
    return v16_div(x, v16_one_plus_exp_neg(x));
}

static inline v16 v16_sigmoid(v16 x) {
    return v16_div(v16_set(1.0f), v16_one_plus_exp_neg(x));
}

#endif
