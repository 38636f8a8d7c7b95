/* quantize_k.c - blocks of 256 elements from floats.  Contract: kern/quantize.h; byte layouts: ref/dequant_k.c.
 *
 * Every run of 16 or 32 is fitted alone; the block's floats are those that reach the largest scale (and min).  Then, twice at
 * most: the runs' integer scales are chosen among the nearest by the error they really give, and the block's floats are
 * solved again for all 256 elements with the integers held.  The best of these states is stored.
 * Thread: any.  Memory: stack.  Test: tests/unit/test_quantize.c */
#include "kern/quantize.h"

#include "base/num.h"
#include "kern/dequant.h"

#include <math.h>
#include <string.h>

#define N      256
#define PASSES 3

/* The binary16 nearest to f, within the finite ones. */
static uint16_t half_of(float f) {
    return lg_num_to_f16(fminf(fmaxf(f, -65504.0f), 65504.0f));
}

static int clamp_int(int v, int lo, int hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

/* v / d as an integer; 0 when d is 0. */
static int ratio(float v, float d) {
    return d != 0 ? (int)lrintf(fminf(fmaxf(v / d, -1000.0f), 1000.0f)) : 0;
}

/* ---- Q4_K and Q5_K: runs of 32 with scale and min ---- */

typedef struct affine_block {
    uint16_t d, dmin; /* binary16 */
    uint8_t scale[8], min[8];
    int8_t q[N];
    float err;
} affine_block;

/* Integer scale and min of one run, its q and error, around the wanted real ones. */
static float choose_affine(const float *x, const float *w, int hi, float d, float dmin,
                           float scale, float min, uint8_t *best_scale, uint8_t *best_min,
                           int8_t *q) {
    float best = INFINITY;
    int s0 = ratio(scale, d), m0 = ratio(min, dmin);
    for (int s = s0 - 1; s <= s0 + 1; s++)
        for (int m = m0 - 1; m <= m0 + 1; m++) {
            int sc = clamp_int(s, 0, 63), mc = clamp_int(m, 0, 63);
            float err = lg_quantize_nearest(x, w, 32, LG_QUANTIZE_INT, 0, hi, d * (float)sc,
                                            -(dmin * (float)mc), NULL);
            if (!(err < best)) continue;
            best = err;
            *best_scale = (uint8_t)sc;
            *best_min = (uint8_t)mc;
        }
    return lg_quantize_nearest(x, w, 32, LG_QUANTIZE_INT, 0, hi, d * (float)*best_scale,
                               -(dmin * (float)*best_min), q);
}

/* d and dmin that fit x ~ d (scale q) - dmin min best over the block. */
static void solve_affine(const float *x, const float *w, const affine_block *b, float *d,
                         float *dmin) {
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (int i = 0; i < N; i++) {
        double p = (double)b->scale[i / 32] * b->q[i], m = b->min[i / 32], wi = (double)w[i];
        aa += wi * p * p;
        ab += wi * p * m;
        bb += wi * m * m;
        xa += wi * (double)x[i] * p;
        xb += wi * (double)x[i] * m;
    }
    double det = aa * bb - ab * ab;
    if (det > 1e-9 * aa * bb) {
        *d = (float)((xa * bb - xb * ab) / det);
        *dmin = (float)((xa * ab - xb * aa) / det);
    } else if (aa > 0) {
        *d = (float)((xa + (double)*dmin * ab) / aa);
    }
    if (!(*dmin >= 0)) *dmin = 0;
}

static void fit_affine(const float *x, const float *w, int hi, affine_block *best) {
    float scale[8], min[8], d = 0, dmin = 0;
    for (int r = 0; r < 8; r++) {
        float b;
        lg_quantize_fit_affine(x + 32 * r, w + 32 * r, 32, hi, true, &scale[r], &b);
        min[r] = -b;
        d = fmaxf(d, scale[r] / 63);
        dmin = fmaxf(dmin, min[r] / 63);
    }
    best->err = INFINITY;
    for (int pass = 0; pass < PASSES; pass++) {
        affine_block b = {.d = half_of(d), .dmin = half_of(dmin)};
        for (int r = 0; r < 8; r++)
            b.err +=
                choose_affine(x + 32 * r, w + 32 * r, hi, lg_num_f16(b.d), lg_num_f16(b.dmin),
                              scale[r], min[r], &b.scale[r], &b.min[r], b.q + 32 * r);
        if (!(b.err < best->err)) break;
        *best = b;
        solve_affine(x, w, &b, &d, &dmin);
    }
}

/* 8 scales and 8 mins of six bits into 12 bytes. */
static void put_scale_min(uint8_t *s, const uint8_t *scale, const uint8_t *min) {
    for (int r = 0; r < 4; r++) {
        s[r] = (uint8_t)(scale[r] | (scale[r + 4] >> 4) << 6);
        s[r + 4] = (uint8_t)(min[r] | (min[r + 4] >> 4) << 6);
        s[r + 8] = (uint8_t)((scale[r + 4] & 15) | (min[r + 4] & 15) << 4);
    }
}

static void put_affine(const affine_block *f, bool five, uint8_t *b) {
    uint8_t *low = b + (five ? 48 : 16);
    memcpy(b, &f->d, sizeof f->d);
    memcpy(b + 2, &f->dmin, sizeof f->dmin);
    put_scale_min(b + 4, f->scale, f->min);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 32; i++) {
            int even = f->q[64 * p + i], odd = f->q[64 * p + 32 + i];
            low[32 * p + i] = (uint8_t)((even & 15) | (odd & 15) << 4);
        }
    for (int i = 0; five && i < 32; i++) {
        int bits = 0;
        for (int r = 0; r < 8; r++) bits |= (f->q[32 * r + i] >> 4) << r;
        b[16 + i] = (uint8_t)bits;
    }
}

void lg_quantize_q4_k(const float *x, const float *w, uint8_t *block) {
    affine_block f;
    fit_affine(x, w, 15, &f);
    put_affine(&f, false, block);
}

void lg_quantize_q5_k(const float *x, const float *w, uint8_t *block) {
    affine_block f;
    fit_affine(x, w, 31, &f);
    put_affine(&f, true, block);
}

/* ---- Q6_K and IQ4_XS: runs with a signed scale ---- */

/* What differs between the two. */
typedef struct scaled_kind {
    int n_run;
    lg_quantize_grid grid;
    int lo, hi;             /* of q */
    int scale_lo, scale_hi; /* of the runs' integers */
} scaled_kind;

typedef struct scaled_block {
    uint16_t d; /* binary16 */
    int8_t scale[16];
    int8_t q[N];
    float err;
} scaled_block;

static float choose_scale(const float *x, const float *w, const scaled_kind *k, float d,
                          float scale, int8_t *best_scale, int8_t *q) {
    int n = N / k->n_run, s0 = ratio(scale, d);
    float best = INFINITY;
    for (int s = s0 - 1; s <= s0 + 1; s++) {
        int sc = clamp_int(s, k->scale_lo, k->scale_hi);
        float err = lg_quantize_nearest(x, w, n, k->grid, k->lo, k->hi, d * (float)sc, 0, NULL);
        if (!(err < best)) continue;
        best = err;
        *best_scale = (int8_t)sc;
    }
    return lg_quantize_nearest(x, w, n, k->grid, k->lo, k->hi, d * (float)*best_scale, 0, q);
}

/* d that fits x ~ d (scale value) best over the block. */
static float solve_scaled(const float *x, const float *w, const scaled_kind *k,
                          const scaled_block *b, float d) {
    double pp = 0, xp = 0;
    for (int i = 0; i < N; i++) {
        int v = k->grid == LG_QUANTIZE_IQ4 ? lg_dequant_iq4[b->q[i]] : b->q[i];
        double p = (double)b->scale[i / (N / k->n_run)] * v, wi = (double)w[i];
        pp += wi * p * p;
        xp += wi * (double)x[i] * p;
    }
    return pp > 0 ? (float)(xp / pp) : d;
}

static void fit_scaled(const float *x, const float *w, const scaled_kind *k,
                       scaled_block *best) {
    int n = N / k->n_run;
    float scale[16], top = 0;
    for (int r = 0; r < k->n_run; r++) {
        scale[r] = lg_quantize_fit_scale(x + n * r, w + n * r, n, k->grid, k->lo, k->hi);
        if (fabsf(scale[r]) > fabsf(top)) top = scale[r];
    }
    float d = top / (float)k->scale_lo; /* the longer side of the range */
    best->err = INFINITY;
    for (int pass = 0; pass < PASSES; pass++) {
        scaled_block b = {.d = half_of(d)};
        for (int r = 0; r < k->n_run; r++)
            b.err += choose_scale(x + n * r, w + n * r, k, lg_num_f16(b.d), scale[r],
                                  &b.scale[r], b.q + n * r);
        if (!(b.err < best->err)) break;
        *best = b;
        d = solve_scaled(x, w, k, &b, d);
    }
}

void lg_quantize_q6_k(const float *x, const float *w, uint8_t *block) {
    static const scaled_kind kind = {16, LG_QUANTIZE_INT, -32, 31, -128, 127};
    scaled_block f;
    fit_scaled(x, w, &kind, &f);
    memset(block, 0, 192);
    for (int i = 0; i < N; i++) {
        int half = i / 128, at = i % 128, q = f.q[i] + 32;
        block[half * 64 + at % 64] |= (uint8_t)((q & 15) << at / 64 * 4);
        block[128 + half * 32 + at % 32] |= (uint8_t)(q >> 4 << at / 32 * 2);
    }
    memcpy(block + 192, f.scale, 16);
    memcpy(block + 208, &f.d, sizeof f.d);
}

void lg_quantize_iq4_xs(const float *x, const float *w, uint8_t *block) {
    static const scaled_kind kind = {8, LG_QUANTIZE_IQ4, -127, 113, -32, 31};
    scaled_block f;
    fit_scaled(x, w, &kind, &f);
    unsigned high = 0;
    memset(block, 0, 136);
    memcpy(block, &f.d, sizeof f.d);
    for (int r = 0; r < 8; r++) {
        unsigned s = (unsigned)(f.scale[r] + 32);
        block[4 + r / 2] |= (uint8_t)((s & 15) << r % 2 * 4);
        high |= s >> 4 << 2 * r;
        for (int i = 0; i < 16; i++)
            block[8 + 16 * r + i] = (uint8_t)(f.q[32 * r + i] | f.q[32 * r + 16 + i] << 4);
    }
    block[2] = (uint8_t)high;
    block[3] = (uint8_t)(high >> 8);
}
