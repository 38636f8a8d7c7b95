/* quantize_row.c - rows of floats to stored numbers; the blocks of 32 elements.  Contract: kern/quantize.h.
 *
 * Byte layouts: ref/dequant.c.  Q8_0 has the bits of the format's reference; the others are searched (quantize_fit.c).
 * Thread: any.  Memory: stack.  Test: tests/unit/test_quantize.c */
#include "kern/quantize.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

#define N 32

static void put16(uint8_t *p, uint16_t v) {
    memcpy(p, &v, sizeof v);
}

/* The binary16 nearest to f, within the finite ones; *f becomes it. */
static uint16_t half_of(float *f) {
    uint16_t h = lg_num_to_f16(fminf(fmaxf(*f, -65504.0f), 65504.0f));
    *f = lg_num_f16(h);
    return h;
}

/* Low four bits of q (0 .. 31) as the blocks keep them. */
static void put_low4(uint8_t *dst, const int8_t *q) {
    for (int i = 0; i < 16; i++) dst[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static uint32_t fifth_bits(const int8_t *q) {
    uint32_t bits = 0;
    for (int i = 0; i < N; i++) bits |= (uint32_t)(q[i] >> 4 & 1) << i;
    return bits;
}

/* Integers -half ... half - 1, stored from 0. */
static uint16_t scaled(const float *x, const float *w, int half, int8_t *q) {
    float d = lg_quantize_fit_scale(x, w, N, LG_QUANTIZE_INT, -half, half - 1);
    uint16_t h = half_of(&d);
    lg_quantize_nearest(x, w, N, LG_QUANTIZE_INT, -half, half - 1, d, 0, q);
    for (int i = 0; i < N; i++) q[i] = (int8_t)(q[i] + half);
    return h;
}

static void affine(const float *x, const float *w, int hi, uint16_t h[2], int8_t *q) {
    float d, m;
    lg_quantize_fit_affine(x, w, N, hi, false, &d, &m);
    h[0] = half_of(&d);
    h[1] = half_of(&m);
    lg_quantize_nearest(x, w, N, LG_QUANTIZE_INT, 0, hi, d, m, q);
}

static void q4_0(const float *x, const float *w, uint8_t *b) {
    int8_t q[N];
    put16(b, scaled(x, w, 8, q));
    put_low4(b + 2, q);
}

static void q5_0(const float *x, const float *w, uint8_t *b) {
    int8_t q[N];
    put16(b, scaled(x, w, 16, q));
    uint32_t high = fifth_bits(q);
    memcpy(b + 2, &high, sizeof high);
    put_low4(b + 6, q);
}

static void q4_1(const float *x, const float *w, uint8_t *b) {
    int8_t q[N];
    uint16_t h[2];
    affine(x, w, 15, h, q);
    memcpy(b, h, sizeof h);
    put_low4(b + 4, q);
}

static void q5_1(const float *x, const float *w, uint8_t *b) {
    int8_t q[N];
    uint16_t h[2];
    affine(x, w, 31, h, q);
    memcpy(b, h, sizeof h);
    uint32_t high = fifth_bits(q);
    memcpy(b + 4, &high, sizeof high);
    put_low4(b + 8, q);
}

static void iq4_nl(const float *x, const float *w, uint8_t *b) {
    int8_t q[N];
    float d = lg_quantize_fit_scale(x, w, N, LG_QUANTIZE_IQ4, -127, 113);
    put16(b, half_of(&d));
    lg_quantize_nearest(x, w, N, LG_QUANTIZE_IQ4, 0, 0, d, 0, q);
    put_low4(b + 2, q);
}

static void q8_0(const float *x, const float *w, uint8_t *b) {
    (void)w;
    float peak = 0;
    for (int i = 0; i < N; i++) peak = fmaxf(peak, fabsf(x[i]));
    float d = peak / 127, inverse = d != 0 ? 1 / d : 0;
    if (!isfinite(inverse)) inverse = 0;
    for (int i = 0; i < N; i++) b[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
    put16(b, half_of(&d));
}

/* ---- MXFP4 ---- */

/* Index of the E2M1 value nearest to v, without its sign bit. */
static uint8_t nearest_e2m1(float v) {
    static const float middle[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    uint8_t k = 0;
    for (int i = 0; i < 7; i++) k = (uint8_t)(k + (v > middle[i]));
    return k;
}

static float mxfp4_with(const float *x, const float *w, int exponent, uint8_t *q) {
    static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float d = ldexpf(1, exponent), inverse = ldexpf(1, -exponent), err = 0;
    for (int i = 0; i < N; i++) {
        uint8_t k = nearest_e2m1(fabsf(x[i]) * inverse);
        float e = fabsf(x[i]) - d * value[k];
        err += w[i] * e * e;
        q[i] = (uint8_t)(x[i] < 0 && k ? k | 8 : k);
    }
    return err;
}

/* The power that reaches the peak within [4, 8), or one beside it. */
static void mxfp4(const float *x, const float *w, uint8_t *b) {
    float peak = 0, best = INFINITY;
    uint8_t q[N];
    for (int i = 0; i < N; i++) peak = fmaxf(peak, fabsf(x[i]));
    memset(b, 0, 17);
    if (peak == 0) return;
    int top = ilogbf(peak) - 2;
    for (int e = top - 1; e <= top + 1; e++) {
        if (e < -126 || e > 127) continue;
        float err = mxfp4_with(x, w, e, q);
        if (!(err < best)) continue;
        best = err;
        b[0] = (uint8_t)(e + 127);
        put_low4(b + 1, (const int8_t *)q);
    }
}

/* ---- rows ---- */

static lg_quantize_fn *encoder(lg_dtype type) {
    switch (type) {
    case LG_Q4_0: return q4_0;
    case LG_Q4_1: return q4_1;
    case LG_Q5_0: return q5_0;
    case LG_Q5_1: return q5_1;
    case LG_Q8_0: return q8_0;
    case LG_IQ4_NL: return iq4_nl;
    case LG_MXFP4: return mxfp4;
    case LG_Q4_K: return lg_quantize_q4_k;
    case LG_Q5_K: return lg_quantize_q5_k;
    case LG_Q6_K: return lg_quantize_q6_k;
    case LG_IQ4_XS: return lg_quantize_iq4_xs;
    default: return NULL;
    }
}

bool lg_quantize_has(lg_dtype type) {
    return type == LG_F32 || type == LG_BF16 || type == LG_F16 || encoder(type);
}

static void put_element(lg_dtype type, float x, uint8_t *dst) {
    if (type == LG_F32)
        memcpy(dst, &x, sizeof x);
    else
        put16(dst, type == LG_BF16 ? lg_num_to_bf16(x) : half_of(&x));
}

void lg_quantize_row(lg_dtype type, const float *x, size_t n, const float *weight,
                     uint8_t *dst) {
    lg_quantize_fn *encode = encoder(type);
    size_t block = lg_dtype_block(type), bytes = lg_dtype_block_bytes(type);
    float ones[LG_MAX_BLOCK];
    LG_ASSERT(n % block == 0 && lg_quantize_has(type));
    for (size_t i = 0; i < LG_MAX_BLOCK; i++) ones[i] = 1;
    for (size_t i = 0; i < n; i += block) {
        if (encode)
            encode(x + i, weight ? weight + i : ones, dst + i / block * bytes);
        else
            put_element(type, x[i], dst + i * bytes);
    }
}
