/* quantize_fit.c - the scale (and offset) with which a run of numbers is stored best.  Contract: kern/quantize.h.
 *
 * The error as a function of the scale is bumpy: it is a parabola while no number changes its integer.  So a grid of scales
 * around the one that just reaches the largest number is tried; for the integers that each gives, the best scale (and offset)
 * is the solution of a linear least-squares problem, whose error is known without decoding.  The best is then rounded and
 * solved again while that helps.
 * Four floats at a time with the compiler's vectors, in a fixed order.
 * Thread: any.  Memory: stack.  Test: tests/unit/test_quantize.c */
#include "kern/quantize.h"

#include "kern/dequant.h"

#include <math.h>
#include <string.h>

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

#define MAX_PASS 4 /* rounds of rounding and solving */

static inline vf splat(float x) {
    return (vf){x, x, x, x};
}

static inline vf load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline vf choose(vi mask, vf a, vf b) {
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

static inline vf clamp(vf v, float lo, float hi) {
    v = choose(v < splat(lo), splat(lo), v);
    return choose(v > splat(hi), splat(hi), v);
}

/* Nearest integer, even on ties; |v| < 2^22. */
static inline vf nearest_int(vf v) {
    const vf magic = splat(12582912.0f); /* 1.5 * 2^23 */
    return (v + magic) - magic;
}

/* Nearest value of the table of IQ4_NL. */
static inline vf nearest_iq4(vf v) {
    vf y = splat(lg_dequant_iq4[0]);
    for (int i = 1; i < 16; i++) {
        float low = lg_dequant_iq4[i - 1], high = lg_dequant_iq4[i];
        y = choose(v > splat(0.5f * (low + high)), splat(high), y);
    }
    return y;
}

static inline vf nearest(vf v, lg_quantize_grid grid, float lo, float hi) {
    return grid == LG_QUANTIZE_IQ4 ? nearest_iq4(v) : nearest_int(clamp(v, lo, hi));
}

static inline float sum(vf v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* ---- x ~ d value ---- */

typedef struct scale_fit {
    float d;
    float gain; /* by how much d reduces the error of storing zeros */
} scale_fit;

static inline scale_fit try_scale(const float *x, const float *w, int n, lg_quantize_grid grid,
                                  float lo, float hi, float inverse) {
    vf xq = splat(0), qq = splat(0);
    for (int i = 0; i < n; i += 4) {
        vf v = load(x + i);
        vf q = nearest(v * splat(inverse), grid, lo, hi);
        vf wq = load(w + i) * q;
        xq += wq * v;
        qq += wq * q;
    }
    float a = sum(xq), b = sum(qq);
    return b > 0 ? (scale_fit){a / b, a * (a / b)} : (scale_fit){0, 0};
}

/* The element of largest magnitude that counts. */
static float peak_of(const float *x, const float *w, int n) {
    float peak = 0;
    for (int i = 0; i < n; i++)
        if (w[i] > 0 && fabsf(x[i]) > fabsf(peak)) peak = x[i];
    return peak;
}

float lg_quantize_fit_scale(const float *x, const float *w, int n, lg_quantize_grid grid,
                            int lo, int hi) {
    float peak = peak_of(x, w, n), unit = 1 / peak;
    scale_fit best = {0, 0};
    if (peak == 0 || !isfinite(unit)) return 0;
    float step = (float)(hi - lo) < 32 ? 0.15f : (float)(hi - lo) / 200;
    /* The peak at either end of the range: the range is not symmetric, and a negative scale is allowed. */
    for (int side = 0; side < 2; side++)
        for (int i = -7; i <= 7; i++) {
            float end = (float)(side ? hi : lo);
            float at = end + (side ? step : -step) * (float)i;
            scale_fit f = try_scale(x, w, n, grid, (float)lo, (float)hi, at * unit);
            if (f.gain > best.gain) best = f;
        }
    for (int pass = 0; pass < MAX_PASS && best.d != 0; pass++) {
        scale_fit f = try_scale(x, w, n, grid, (float)lo, (float)hi, 1 / best.d);
        if (!(f.gain > best.gain)) break;
        best = f;
    }
    return best.d;
}

/* ---- x ~ d q + b ---- */

typedef struct affine_fit {
    float d, b;
    float err; /* less than the true one by sum w x^2 */
} affine_fit;

/* Sums over a run that do not depend on q. */
typedef struct run_sums {
    float w, wx;
} run_sums;

static inline affine_fit try_affine(const float *x, const float *w, int n, float hi, bool below,
                                    run_sums s, float inverse, float from) {
    vf vq = splat(0), vqq = splat(0), vxq = splat(0);
    for (int i = 0; i < n; i += 4) {
        vf v = load(x + i);
        vf q = nearest_int(clamp((v - splat(from)) * splat(inverse), 0, hi));
        vf wq = load(w + i) * q;
        vq += wq;
        vqq += wq * q;
        vxq += wq * v;
    }
    float q = sum(vq), qq = sum(vqq), xq = sum(vxq);
    float det = s.w * qq - q * q;
    affine_fit f = {0, 0, 0};
    if (det > 1e-6f * s.w * qq) {
        f.d = (s.w * xq - s.wx * q) / det;
        f.b = (s.wx - f.d * q) / s.w;
    }
    if (below && !(f.b < 0 && f.d > 0)) {
        f.b = 0;
        f.d = qq > 0 ? xq / qq : 0;
    }
    if (!(f.d > 0)) f.d = 0;
    f.err = f.d * (f.d * qq - 2 * xq) + f.b * (f.b * s.w - 2 * s.wx) + 2 * f.d * f.b * q;
    return f;
}

void lg_quantize_fit_affine(const float *x, const float *w, int n, int hi, bool below, float *d,
                            float *b) {
    float low = INFINITY, high = -INFINITY;
    run_sums s = {0, 0};
    for (int i = 0; i < n; i++) {
        if (w[i] > 0 && x[i] < low) low = x[i];
        if (w[i] > 0 && x[i] > high) high = x[i];
        s.w += w[i];
        s.wx += w[i] * x[i];
    }
    *d = *b = 0;
    if (!(s.w > 0)) return;
    if (below && low > 0) low = 0;
    if (!(high > low) || !isfinite(1 / (high - low))) {
        *b = below && high > 0 ? 0 : high;
        return;
    }
    affine_fit best = {0, 0, INFINITY};
    for (int i = -12; i <= 8; i++) {
        float inverse = ((float)hi + 0.1f * (float)i) / (high - low);
        affine_fit f = try_affine(x, w, n, (float)hi, below, s, inverse, low);
        if (f.err < best.err) best = f;
    }
    for (int pass = 0; pass < MAX_PASS && best.d > 0; pass++) {
        affine_fit f = try_affine(x, w, n, (float)hi, below, s, 1 / best.d, best.b);
        if (!(f.err < best.err)) break;
        best = f;
    }
    *d = best.d;
    *b = best.b;
}

/* ---- rounding ---- */

static int8_t index_iq4(float value) {
    for (int8_t i = 0; i < 16; i++)
        if ((float)lg_dequant_iq4[i] == value) return i;
    return 0;
}

float lg_quantize_nearest(const float *x, const float *w, int n, lg_quantize_grid grid, int lo,
                          int hi, float d, float b, int8_t *q) {
    vf err = splat(0);
    float inverse = d != 0 ? 1 / d : 0;
    if (!isfinite(inverse)) inverse = 0;
    for (int i = 0; i < n; i += 4) {
        vf v = load(x + i);
        vf k = nearest((v - splat(b)) * splat(inverse), grid, (float)lo, (float)hi);
        vf e = v - (splat(d) * k + splat(b));
        err += load(w + i) * e * e;
        for (int j = 0; q && j < 4; j++)
            q[i + j] = grid == LG_QUANTIZE_IQ4 ? index_iq4(k[j]) : (int8_t)k[j];
    }
    return sum(err);
}
