/* v16_avx2.h - a vector of 16 floats in two AVX2 registers: the type that simd/ is written over.
 *
 * Lane j of the sums of kern.h is lane j here.  Every operation is one IEEE operation a lane, rounded to nearest. */
#ifndef LG_KERN_AVX2_V16_AVX2_H
#define LG_KERN_AVX2_V16_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define V16_TILE_R    6   /* rows of a register tile, one v16 each */
#define V16_P1        4   /* panels walked together for one row */
#define V16_P2        2   /* and for two or three rows */
#define V16_P3        1   /* and for four to six rows */
#define V16_PROD_V    1   /* vectors of a tile of product.h, V16_TILE_R rows each */
#define V16_ATTN_V    3   /* vectors of 8 of a tile of attention */
#define V16_ATTN_H    4   /* and its rows */
#define V16_ATTN_K    128 /* rows of keys that a tile goes through at a time */
#define V16_ATTN_R    8   /* rows up to which keys and values are widened in registers */
#define V16_ATTN_Q8_R 6   /* the same for Q8_0, which costs more to widen */
#define V16_ATTN_KEEP 16  /* rows up to which a tile of it keeps for others what it widens */

typedef struct v16 {
    __m256 a, b; /* lanes 0-7, 8-15 */
} v16;

/* Lanes below n (0 .. 8) are all ones. */
static inline __m256i v16_mask8(uint32_t n) {
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(const void *)(ones + 8 - n));
}

static inline uint32_t v16_low(uint32_t n) {
    return n < 8 ? n : 8;
}

static inline v16 v16_set(float x) {
    __m256 v = _mm256_set1_ps(x);
    return (v16){v, v};
}

static inline v16 v16_load(const float *p) {
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void v16_store(float *p, v16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

/* The first n (0 .. 16) lanes; the others are 0, their memory is not touched. */
static inline v16 v16_load_n(const float *p, uint32_t n) {
    if (n == 16) return v16_load(p);
    return (v16){_mm256_maskload_ps(p, v16_mask8(v16_low(n))),
                 n > 8 ? _mm256_maskload_ps(p + 8, v16_mask8(n - 8)) : _mm256_setzero_ps()};
}

static inline void v16_store_n(float *p, v16 x, uint32_t n) {
    if (n == 16) {
        v16_store(p, x); /* a masked store is slow on some processors */
        return;
    }
    _mm256_maskstore_ps(p, v16_mask8(v16_low(n)), x.a);
    if (n > 8) _mm256_maskstore_ps(p + 8, v16_mask8(n - 8), x.b);
}

/* x y + z, rounded once */
static inline v16 v16_fma(v16 x, v16 y, v16 z) {
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

static inline v16 v16_add(v16 x, v16 y) {
    return (v16){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}

static inline v16 v16_sub(v16 x, v16 y) {
    return (v16){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}

static inline v16 v16_mul(v16 x, v16 y) {
    return (v16){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}

static inline v16 v16_div(v16 x, v16 y) {
    return (v16){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}

/* x > y ? x : y */
static inline v16 v16_max(v16 x, v16 y) {
    return (v16){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}

static inline v16 v16_neg(v16 x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
}

/* x >= y ? yes : no */
static inline v16 v16_pick_ge(v16 x, v16 y, v16 yes, v16 no) {
    return (v16){_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)),
                 _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ))};
}

/* x is NaN ? yes : no */
static inline v16 v16_pick_nan(v16 x, v16 yes, v16 no) {
    return (v16){_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
                 _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
}

/* Lane j < n ? yes : no */
static inline v16 v16_pick_n(uint32_t n, v16 yes, v16 no) {
    __m256 lo = _mm256_castsi256_ps(v16_mask8(v16_low(n)));
    __m256 hi = _mm256_castsi256_ps(v16_mask8(n > 8 ? n - 8 : 0));
    return (v16){_mm256_blendv_ps(no.a, yes.a, lo), _mm256_blendv_ps(no.b, yes.b, hi)};
}

/* p with the low bits of t added to its exponent: the last step of exp. */
static inline v16 v16_add_exponent(v16 p, v16 t) {
    __m256i a = _mm256_slli_epi32(_mm256_castps_si256(t.a), 23);
    __m256i b = _mm256_slli_epi32(_mm256_castps_si256(t.b), 23);
    return (v16){_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.a), a)),
                 _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.b), b))};
}

/* Lanes added pairwise: j and j + 8, then + 4, + 2, + 1. */
static inline float v16_sum(v16 x) {
    __m256 s8 = _mm256_add_ps(x.a, x.b);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* The largest lane; no lane is NaN. */
static inline float v16_max_lane(v16 x) {
    __m256 m8 = _mm256_max_ps(x.a, x.b);
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

/* Bit j set where x_j == y_j; where x_j is NaN. */
static inline uint32_t v16_eq_bits(v16 x, v16 y) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)) << 8;
}

static inline uint32_t v16_nan_bits(v16 x) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)) << 8;
}

static inline v16 v16_load_bf16(const uint16_t *p) {
    __m128i lo = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i hi = _mm_loadu_si128((const __m128i *)(const void *)(p + 8));
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lo), 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(hi), 16))};
}

static inline v16 v16_load_f16(const uint16_t *p) {
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}

static inline void v16_store_f16(uint16_t *p, v16 x) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(p + 8),
                     _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

static inline v16 v16_load_i8(const int8_t *p) {
    __m128i lo = _mm_loadl_epi64((const __m128i *)(const void *)p);
    __m128i hi = _mm_loadl_epi64((const __m128i *)(const void *)(p + 8));
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi))};
}

/* E4M3 times 2^-8, through binary16: sign and the other bits one place down are the number with the same bias difference,
 * subnormals included.  0x7f is NaN. */
static inline v16 v16_load_e4m3_256th(const uint8_t *p) {
    const __m256i high =
        _mm256_setr_epi8(-1, 0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7, -1, 8, -1, 9,
                         -1, 10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15);
    __m256i e = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
    e = _mm256_shuffle_epi8(e, high); /* each byte in the upper half of a word */
    __m256i mag = _mm256_and_si256(e, _mm256_set1_epi16(0x7f00));
    __m256i nan = _mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x7f00));
    __m256i h = _mm256_and_si256(_mm256_srai_epi16(e, 1), _mm256_set1_epi16((short)0xbf80));
    h = _mm256_or_si256(h, _mm256_srli_epi16(nan, 1));
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

/* ---- one register, for tiles whose shape fits the registers ---- */

typedef __m256 vt;

#define VT_N 8

static inline vt vt_set(float x) {
    return _mm256_set1_ps(x);
}

static inline vt vt_load(const float *p) {
    return _mm256_loadu_ps(p);
}

static inline void vt_store(float *p, vt x) {
    _mm256_storeu_ps(p, x);
}

static inline vt vt_fma(vt x, vt y, vt z) {
    return _mm256_fmadd_ps(x, y, z);
}

static inline vt vt_mul(vt x, vt y) {
    return _mm256_mul_ps(x, y);
}

static inline vt vt_load_bf16(const uint16_t *p) {
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline vt vt_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vt vt_load_i8(const int8_t *p) {
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
}

#endif
