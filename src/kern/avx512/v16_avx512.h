/* v16_avx512.h - a vector of 16 floats in one AVX-512 register: the type that simd/ is written over.
 *
 * The same functions as avx2/v16_avx2.h with the same results.  Every operation is one IEEE operation a lane. */
#ifndef LG_KERN_AVX512_V16_AVX512_H
#define LG_KERN_AVX512_V16_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define V16_TILE_R    12  /* rows of a register tile, one v16 each */
#define V16_P1        8   /* panels walked together for one row */
#define V16_P2        4   /* and for two or three rows */
#define V16_P3        2   /* and for four to six rows */
#define V16_PROD_V    2   /* vectors of a tile of product.h, V16_TILE_R rows each */
#define V16_ATTN_V    2   /* vectors of a tile of attention */
#define V16_ATTN_H    12  /* and its rows */
#define V16_ATTN_K    256 /* rows of keys that a tile goes through at a time */
#define V16_ATTN_R    16  /* rows up to which keys and values are widened in registers */
#define V16_ATTN_Q8_R 16  /* the same for Q8_0, which costs more to widen */
#define V16_ATTN_KEEP 0   /* rows up to which a tile of it keeps for others what it widens */

typedef struct v16 {
    __m512 a;
} v16;

/* Lanes below n (0 .. 16). */
static inline __mmask16 v16_mask(uint32_t n) {
    return (__mmask16)((1u << n) - 1u);
}

static inline v16 v16_set(float x) {
    return (v16){_mm512_set1_ps(x)};
}

static inline v16 v16_load(const float *p) {
    return (v16){_mm512_loadu_ps(p)};
}

static inline void v16_store(float *p, v16 x) {
    _mm512_storeu_ps(p, x.a);
}

/* The first n (0 .. 16) lanes; the others are 0, their memory is not touched. */
static inline v16 v16_load_n(const float *p, uint32_t n) {
    return (v16){_mm512_maskz_loadu_ps(v16_mask(n), p)};
}

static inline void v16_store_n(float *p, v16 x, uint32_t n) {
    _mm512_mask_storeu_ps(p, v16_mask(n), x.a);
}

/* x y + z, rounded once */
static inline v16 v16_fma(v16 x, v16 y, v16 z) {
    return (v16){_mm512_fmadd_ps(x.a, y.a, z.a)};
}

static inline v16 v16_add(v16 x, v16 y) {
    return (v16){_mm512_add_ps(x.a, y.a)};
}

static inline v16 v16_sub(v16 x, v16 y) {
    return (v16){_mm512_sub_ps(x.a, y.a)};
}

static inline v16 v16_mul(v16 x, v16 y) {
    return (v16){_mm512_mul_ps(x.a, y.a)};
}

static inline v16 v16_div(v16 x, v16 y) {
    return (v16){_mm512_div_ps(x.a, y.a)};
}

/* x > y ? x : y */
static inline v16 v16_max(v16 x, v16 y) {
    return (v16){_mm512_max_ps(x.a, y.a)};
}

static inline v16 v16_neg(v16 x) {
    return (v16){_mm512_xor_ps(x.a, _mm512_set1_ps(-0.0f))};
}

/* x >= y ? yes : no */
static inline v16 v16_pick_ge(v16 x, v16 y, v16 yes, v16 no) {
    return (v16){_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.a, y.a, _CMP_GE_OQ), no.a, yes.a)};
}

/* x is NaN ? yes : no */
static inline v16 v16_pick_nan(v16 x, v16 yes, v16 no) {
    return (v16){_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.a, x.a, _CMP_UNORD_Q), no.a, yes.a)};
}

/* Lane j < n ? yes : no */
static inline v16 v16_pick_n(uint32_t n, v16 yes, v16 no) {
    return (v16){_mm512_mask_blend_ps(v16_mask(n), no.a, yes.a)};
}

/* p with the low bits of t added to its exponent: the last step of exp. */
static inline v16 v16_add_exponent(v16 p, v16 t) {
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t.a), 23);
    return (v16){_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.a), n))};
}

/* Lanes added pairwise: j and j + 8, then + 4, + 2, + 1. */
static inline float v16_sum(v16 x) {
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* The largest lane; no lane is NaN. */
static inline float v16_max_lane(v16 x) {
    __m256 m8 = _mm256_max_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1));
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

/* Bit j set where x_j == y_j; where x_j is NaN. */
static inline uint32_t v16_eq_bits(v16 x, v16 y) {
    return _mm512_cmp_ps_mask(x.a, y.a, _CMP_EQ_OQ);
}

static inline uint32_t v16_nan_bits(v16 x) {
    return _mm512_cmp_ps_mask(x.a, x.a, _CMP_UNORD_Q);
}

static inline v16 v16_load_bf16(const uint16_t *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return (v16){_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}

static inline v16 v16_load_f16(const uint16_t *p) {
    return (v16){_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p))};
}

static inline void v16_store_f16(uint16_t *p, v16 x) {
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
}

static inline v16 v16_load_i8(const int8_t *p) {
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (v16){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b))};
}

/* E4M3 times 2^-8, through binary16: sign and the other bits one place down are the number with the same bias difference,
 * subnormals included.  0x7f is NaN. */
static inline v16 v16_load_e4m3_256th(const uint8_t *p) {
    __m256i e = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    e = _mm256_slli_epi16(e, 8);
    __m256i mag = _mm256_and_si256(e, _mm256_set1_epi16(0x7f00));
    __m256i nan = _mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x7f00));
    __m256i h = _mm256_and_si256(_mm256_srai_epi16(e, 1), _mm256_set1_epi16((short)0xbf80));
    return (v16){_mm512_cvtph_ps(_mm256_or_si256(h, _mm256_srli_epi16(nan, 1)))};
}

/* ---- one register, for tiles whose shape fits the registers: here v16 ---- */

typedef v16 vt;

#define VT_N         16
#define vt_set       v16_set
#define vt_load      v16_load
#define vt_store     v16_store
#define vt_fma       v16_fma
#define vt_mul       v16_mul
#define vt_load_bf16 v16_load_bf16
#define vt_load_f16  v16_load_f16
#define vt_load_i8   v16_load_i8

#endif
