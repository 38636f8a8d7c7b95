/* quant_vnni.c - quant_row of level avx512vnni.  Test: tests/unit/test_qgemm.c */
#include "kern/avx512/avx512.h"

#include "base/num.h"

#include <immintrin.h>
#include <math.h>

/* Largest |x| of n floats, a multiple of 32, as bits; NaN above infinity above all numbers. */
static uint32_t max_bits(const float *x, uint32_t n) {
    __m512i a = _mm512_setzero_si512(), b = a, mask = _mm512_set1_epi32(0x7fffffff);
    for (uint32_t i = 0; i < n; i += 32) {
        a = _mm512_max_epu32(a, _mm512_and_si512(_mm512_loadu_si512(x + i), mask));
        b = _mm512_max_epu32(b, _mm512_and_si512(_mm512_loadu_si512(x + i + 16), mask));
    }
    return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}

/* Sums of 16 words each of a and b as two words. */
static uint32_t sum_words(__m256i a, __m256i b) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i s = _mm256_hadd_epi32(_mm256_madd_epi16(a, one), _mm256_madd_epi16(b, one));
    s = _mm256_hadd_epi32(s, s); /* in each half: of a, of b */
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    return (uint32_t)_mm_cvtsi128_si32(_mm_packs_epi32(t, t));
}

/* 32 floats times inv -> bytes, words and their sums. */
static void quant32(const float *x, __m512 inv, int8_t *bytes, int16_t *words, int16_t *sum,
                    int16_t *sum16) {
    __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inv));
    __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), inv));
    __m256i wa = _mm512_cvtepi32_epi16(a), wb = _mm512_cvtepi32_epi16(b);
    _mm256_storeu_si256((__m256i *)(void *)words, wa);
    _mm256_storeu_si256((__m256i *)(void *)(words + 16), wb);
    _mm_storeu_si128((__m128i *)(void *)bytes, _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128((__m128i *)(void *)(bytes + 16), _mm512_cvtepi32_epi8(b));
    uint32_t two = sum_words(wa, wb);
    sum16[0] = (int16_t)two;
    sum16[1] = (int16_t)(two >> 16);
    *sum = (int16_t)(sum16[0] + sum16[1]);
}

void lg_quant_row_avx512vnni(const float *x, uint32_t n, const lg_qrows *q, size_t row) {
    static const float none[32];
    lg_qrows r = lg_qrows_at(q, row);
    for (uint32_t k = 0, g = 0; k < n; g++) {
        uint32_t max = max_bits(x + k, q->group);
        float amax = lg_num_float_of_bits(max);
        bool finite = max < 0x7f800000u, zero = !finite || amax < 0x1p-100f;
        r.d[g] = !finite ? NAN : zero ? 0.0f : amax / 127.0f;
        __m512 inv = _mm512_set1_ps(zero ? 0.0f : 127.0f / amax);
        for (uint32_t end = k + q->group; k < end; k += 32)
            quant32(zero ? none : x + k, inv, r.v8 + k, r.v16 + k, r.sum + k / 32,
                    r.sum16 + k / 16);
    }
}
