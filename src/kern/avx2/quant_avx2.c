/* quant_avx2.c - rows to integers.  Test: tests/unit/test_qgemm.c */
#include "kern/avx2/avx2.h"

#include "base/num.h"

#include <immintrin.h>
#include <math.h>

/* Largest |x| of n floats as bits; NaN above infinity above all numbers. */
static uint32_t max_bits(const float *x, uint32_t n) {
    __m256i max = _mm256_setzero_si256(), mask = _mm256_set1_epi32(0x7fffffff);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        max = _mm256_max_epi32(max, _mm256_and_si256(v, mask));
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* 32 floats times inv -> bytes, words and their sum. */
static void quant32(const float *x, float inv, int8_t *bytes, int16_t *words, int16_t *sum,
                    int16_t *sum16) {
    __m256 f = _mm256_set1_ps(inv);
    __m256i v[4], w[2];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), f));
    for (int i = 0; i < 2; i++) {
        w[i] = _mm256_permute4x64_epi64(_mm256_packs_epi32(v[2 * i], v[2 * i + 1]), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(words + 16 * i), w[i]);
    }
    _mm256_storeu_si256((__m256i *)(void *)bytes,
                        _mm256_permute4x64_epi64(_mm256_packs_epi16(w[0], w[1]), 0xd8));
    __m256i one = _mm256_set1_epi16(1);
    __m256i s = _mm256_hadd_epi32(_mm256_madd_epi16(w[0], one), _mm256_madd_epi16(w[1], one));
    s = _mm256_hadd_epi32(s, s); /* in each half, of the first 16 and of the others */
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    sum16[0] = (int16_t)_mm_cvtsi128_si32(t);
    sum16[1] = (int16_t)_mm_extract_epi32(t, 1);
    *sum = (int16_t)(sum16[0] + sum16[1]);
}

void lg_quant_row_avx2(const float *x, uint32_t n, const lg_qrows *q, size_t row) {
    lg_qrows r = lg_qrows_at(q, row);
    static const float none[32] = {0};
    for (uint32_t g = 0, k = 0; k < n; g++) {
        uint32_t max = max_bits(x + k, q->group);
        float amax = lg_num_float_of_bits(max);
        bool finite = max < 0x7f800000u, zero = !finite || amax < 0x1p-100f;
        r.d[g] = !finite ? NAN : zero ? 0.0f : amax / 127.0f;
        float inv = zero ? 0.0f : 127.0f / amax;
        for (uint32_t end = k + q->group; k < end; k += 32)
            quant32(zero ? none : x + k, inv, r.v8 + k, r.v16 + k, r.sum + k / 32,
                    r.sum16 + k / 16);
    }
}
