/* qunpack_avx2.h - a group of 16 blocks (kern/qlayout.h) as 16-bit integers with the integer scales multiplied in.
 *
 * Integers are those of lg_qsplit_block.  Channels are 16 neighbours in memory with two (here) input channels each, so that a
 * load gives the pairs of eight channels for vpmaddwd.  Test: tests/unit/test_qgemm.c */
#ifndef LG_KERN_AVX2_QUNPACK_AVX2_H
#define LG_KERN_AVX2_QUNPACK_AVX2_H

#include "kern/dequant.h"

#include <immintrin.h>

#define FORCED inline __attribute__((always_inline))
#define INLINE static FORCED

#define QW_PART 8 /* groups of 32 that are widened together */

/* One group of 256, ready for the rows, or QW_PART groups of 32. */
typedef struct qwide {
    _Alignas(32) int16_t w[LG_MAX_BLOCK / 2][LG_NR][2];
    _Alignas(32) int16_t j[LG_MAX_BLOCK / 32][LG_NR][2]; /* of two runs of 32, or of 16 */
    _Alignas(32) float d[QW_PART][LG_NR], m[QW_PART][LG_NR];
} qwide;

INLINE __m128i load16(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

INLINE __m256i load32(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* 16 bytes in both lanes. */
INLINE __m256i twice16(const uint8_t *p) {
    return _mm256_broadcastsi128_si256(load16(p));
}

INLINE void store32(void *p, __m256i v) {
    _mm256_store_si256((__m256i *)p, v);
}

/* 16 binary16 numbers to float. */
INLINE void halves(const uint8_t *p, float *f) {
    _mm256_store_ps(f, _mm256_cvtph_ps(load16(p)));
    _mm256_store_ps(f + 8, _mm256_cvtph_ps(load16(p + 16)));
}

/* Words a and b of 16 channels as pairs [16][2]. */
INLINE void store_pairs(__m256i a, __m256i b, int16_t (*to)[2]) {
    __m256i lo = _mm256_unpacklo_epi16(a, b), hi = _mm256_unpackhi_epi16(a, b);
    store32(to, _mm256_permute2x128_si256(lo, hi, 0x20));
    store32(to + 8, _mm256_permute2x128_si256(lo, hi, 0x31));
}

INLINE void store_twice(__m256i words, int16_t (*to)[2]) {
    store_pairs(words, words, to);
}

/* 32 signed bytes [16][2] to words. */
INLINE void store_words(__m256i bytes, int16_t (*to)[2]) {
    store32(to, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)));
    store32(to + 8, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1)));
}

/* The same times a scale a channel, given twice. */
INLINE void store_scaled(__m256i bytes, const int16_t (*scale)[2], int16_t (*to)[2]) {
    __m256i lo = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes));
    __m256i hi = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1));
    store32(to, _mm256_mullo_epi16(lo, *(const __m256i *)(const void *)scale));
    store32(to + 8, _mm256_mullo_epi16(hi, *(const __m256i *)(const void *)(scale + 8)));
}

INLINE __m256i bytes_of(int v) {
    return _mm256_set1_epi8((char)v);
}

INLINE __m256i low4(__m256i v) {
    return _mm256_and_si256(v, bytes_of(15));
}

INLINE __m256i high4(__m256i v) {
    return low4(_mm256_srli_epi16(v, 4));
}

/* 16 bytes as a table in both lanes. */
INLINE __m256i table(const int8_t *t) {
    return twice16((const uint8_t *)t);
}

/* ---- 32 elements: pairs 0-7 of w from the low halves of the bytes, 8-15 from the high ones ---- */

INLINE void unpack_q8_0(const uint8_t *g, qwide *q, int part) {
    int16_t(*w)[LG_NR][2] = q->w + 16 * part;
    halves(g, q->d[part]);
    for (int i = 0; i < 16; i++) store_words(load32(g + 32 + 32 * i), w[i]);
}

INLINE void unpack_q4_0(const uint8_t *g, qwide *q, int part) {
    int16_t(*w)[LG_NR][2] = q->w + 16 * part;
    halves(g, q->d[part]);
    for (int i = 0; i < 8; i++) {
        __m256i v = load32(g + 32 + 32 * i);
        store_words(_mm256_sub_epi8(low4(v), bytes_of(8)), w[i]);
        store_words(_mm256_sub_epi8(high4(v), bytes_of(8)), w[8 + i]);
    }
}

INLINE void unpack_q4_1(const uint8_t *g, qwide *q, int part) {
    int16_t(*w)[LG_NR][2] = q->w + 16 * part;
    halves(g, q->d[part]);
    halves(g + 32, q->m[part]);
    for (int i = 0; i < 8; i++) {
        __m256i v = load32(g + 64 + 32 * i);
        store_words(low4(v), w[i]);
        store_words(high4(v), w[8 + i]);
    }
}

/* 16 where bit `bit` of the channel's 32 bits is set, for pair (bit, bit + 1) of 16 channels. */
INLINE __m256i fifth(__m256i low_ch, __m256i high_ch, int bit) {
    __m256i two[2], ch[2] = {low_ch, high_ch};
    for (int i = 0; i < 2; i++) {
        __m256i b = _mm256_srl_epi32(ch[i], _mm_cvtsi32_si128(bit));
        __m256i first = _mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(1)), 4);
        __m256i second = _mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(2)), 11);
        two[i] = _mm256_or_si256(first, second); /* a word of two bytes a channel */
    }
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(two[0], two[1]), 0xd8);
}

/* bits: the fifth bits [16]x4 bytes, nib: the others. */
INLINE void unpack_q5(const uint8_t *bits, const uint8_t *nib, int offset,
                      int16_t (*w)[LG_NR][2]) {
    __m256i a = load32(bits), b = load32(bits + 32), off = bytes_of(offset);
    for (int i = 0; i < 8; i++) {
        __m256i v = load32(nib + 32 * i);
        __m256i lo = _mm256_or_si256(low4(v), fifth(a, b, 2 * i));
        __m256i hi = _mm256_or_si256(high4(v), fifth(a, b, 16 + 2 * i));
        store_words(_mm256_sub_epi8(lo, off), w[i]);
        store_words(_mm256_sub_epi8(hi, off), w[8 + i]);
    }
}

INLINE void unpack_q5_0(const uint8_t *g, qwide *q, int part) {
    halves(g, q->d[part]);
    unpack_q5(g + 32, g + 96, 16, q->w + 16 * part);
}

INLINE void unpack_q5_1(const uint8_t *g, qwide *q, int part) {
    halves(g, q->d[part]);
    halves(g + 32, q->m[part]);
    unpack_q5(g + 64, g + 128, 0, q->w + 16 * part);
}

INLINE void unpack_table(const uint8_t *nib, const int8_t *values, int16_t (*w)[LG_NR][2]) {
    __m256i t = table(values);
    for (int i = 0; i < 8; i++) {
        __m256i v = load32(nib + 32 * i);
        store_words(_mm256_shuffle_epi8(t, low4(v)), w[i]);
        store_words(_mm256_shuffle_epi8(t, high4(v)), w[8 + i]);
    }
}

INLINE void unpack_iq4_nl(const uint8_t *g, qwide *q, int part) {
    halves(g, q->d[part]);
    unpack_table(g + 32, lg_dequant_iq4, q->w + 16 * part);
}

INLINE void unpack_mxfp4(const uint8_t *g, qwide *q, int part) {
    for (int c = 0; c < LG_NR; c++) {
        uint32_t e = g[c];
        q->d[part][c] = _mm_cvtss_f32(_mm_castsi128_ps(
            _mm_cvtsi32_si128((int)(e < 2 ? 0x00200000u << e : (e - 1) << 23))));
    }
    unpack_table(g + 16, lg_dequant_e2m1, q->w + 16 * part);
}

/* ---- 32 or 128 elements with a float scale; 128 fill parts `part` to `part` + 3 ---- */

INLINE void floats(const uint8_t *p, float *f) {
    store32(f, load32(p));
    store32(f + 8, load32(p + 32));
}

/* n_part times 32 elements less the zero points [16]. */
INLINE void unpack_i4(const uint8_t *g, qwide *q, int part, const int n_part) {
    __m128i z = load16(g + 64);
    __m256i zero = _mm256_cvtepu8_epi16(z); /* each byte twice, one a pair */
    zero = _mm256_or_si256(zero, _mm256_slli_epi16(zero, 8));
    for (int s = 0; s < n_part; s++) {
        int16_t(*w)[LG_NR][2] = q->w + 16 * (part + s);
        floats(g, q->d[part + s]);
        for (int i = 0; i < 8; i++) {
            __m256i v = load32(g + 80 + 256 * s + 32 * i);
            store_words(_mm256_sub_epi8(low4(v), zero), w[i]);
            store_words(_mm256_sub_epi8(high4(v), zero), w[8 + i]);
        }
    }
}

INLINE void unpack_i4_32(const uint8_t *g, qwide *q, int part) {
    unpack_i4(g, q, part, 1);
}

INLINE void unpack_i4_128(const uint8_t *g, qwide *q, int part) {
    unpack_i4(g, q, part, 4);
}

INLINE void unpack_i8_128(const uint8_t *g, qwide *q, int part) {
    for (int s = 0; s < 4; s++) {
        int16_t(*w)[LG_NR][2] = q->w + 16 * (part + s);
        floats(g, q->d[part + s]);
        for (int i = 0; i < 16; i++) store_words(load32(g + 64 + 512 * s + 32 * i), w[i]);
    }
}

/* ---- 256 elements ---- */

/* Bytes of 16 channels, the same in both lanes, as words given twice a channel. */
INLINE void store_bytes_twice(__m256i v, int16_t (*to)[2]) {
    const __m256i low =
        _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1,
                         5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    store32(to, _mm256_shuffle_epi8(v, low));
    store32(to + 8, _mm256_shuffle_epi8(v, _mm256_or_si256(low, bytes_of(8))));
}

/* Such bytes a and b as pairs of words. */
INLINE void store_byte_pairs(__m256i a, __m256i b, int16_t (*to)[2]) {
    const __m256i part =
        _mm256_setr_epi8(0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7, -1, 8, -1, 9, -1,
                         10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15, -1);
    store32(to, _mm256_shuffle_epi8(_mm256_unpacklo_epi8(a, b), part));
    store32(to + 8, _mm256_shuffle_epi8(_mm256_unpackhi_epi8(a, b), part));
}

/* Six-bit scales and mins of Q4_K and Q5_K from [12][16] bytes: scale[run] twice a channel, mins of two runs into j. */
INLINE void scales_mins(const uint8_t *s, int16_t (*scale)[LG_NR][2], int16_t (*j)[LG_NR][2]) {
    __m256i six = bytes_of(63), four = bytes_of(15), top = bytes_of(48), mn[8];
    for (int i = 0; i < 4; i++) {
        __m256i a = twice16(s + 16 * i), b = twice16(s + 64 + 16 * i),
                c = twice16(s + 128 + 16 * i);
        store_bytes_twice(_mm256_and_si256(a, six), scale[i]);
        store_bytes_twice(_mm256_or_si256(_mm256_and_si256(c, four),
                                          _mm256_and_si256(_mm256_srli_epi16(a, 2), top)),
                          scale[i + 4]);
        mn[i] = _mm256_and_si256(b, six);
        mn[i + 4] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), four),
                                    _mm256_and_si256(_mm256_srli_epi16(b, 2), top));
    }
    for (int i = 0; i < 4; i++) store_byte_pairs(mn[2 * i], mn[2 * i + 1], j[i]);
}

INLINE void unpack_q5_k(const uint8_t *g, qwide *q, int part) {
    (void)part;
    _Alignas(32) int16_t scale[8][LG_NR][2];
    halves(g, q->d[0]);
    halves(g + 32, q->m[0]);
    scales_mins(g + 64, scale, q->j);
    const uint8_t *high = g + 256, *nib = g + 768;
    for (int i = 0; i < 16; i++) {
        __m256i h = load32(high + 32 * i);
        for (int p = 0; p < 4; p++, h = _mm256_srli_epi16(h, 2)) {
            __m256i v = load32(nib + 32 * (16 * p + i));
            __m256i a = _mm256_and_si256(_mm256_slli_epi16(h, 4), bytes_of(16));
            __m256i b = _mm256_and_si256(_mm256_slli_epi16(h, 3), bytes_of(16));
            store_scaled(_mm256_or_si256(low4(v), a), scale[2 * p], q->w[32 * p + i]);
            store_scaled(_mm256_or_si256(high4(v), b), scale[2 * p + 1], q->w[32 * p + 16 + i]);
        }
    }
}

INLINE void unpack_q2_k(const uint8_t *g, qwide *q, int part) {
    (void)part;
    _Alignas(32) int16_t scale[16][LG_NR][2];
    const __m128i four = _mm_set1_epi8(15);
    for (int run = 0; run < 16; run += 2) {
        __m128i a = load16(g + 16 * run), b = load16(g + 16 * run + 16);
        store_twice(_mm256_cvtepu8_epi16(_mm_and_si128(a, four)), scale[run]);
        store_twice(_mm256_cvtepu8_epi16(_mm_and_si128(b, four)), scale[run + 1]);
        a = _mm_and_si128(_mm_srli_epi16(a, 4), four);
        b = _mm_and_si128(_mm_srli_epi16(b, 4), four);
        store_pairs(_mm256_cvtepu8_epi16(a), _mm256_cvtepu8_epi16(b), q->j[run / 2]);
    }
    halves(g + 1280, q->d[0]);
    halves(g + 1312, q->m[0]);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 16; i++) {
            __m256i v = load32(g + 256 + 512 * half + 32 * i);
            for (int t = 0; t < 4; t++, v = _mm256_srli_epi16(v, 2))
                store_scaled(_mm256_and_si256(v, bytes_of(3)), scale[8 * half + 2 * t + i / 8],
                             q->w[64 * half + 16 * t + i]);
        }
}

INLINE void unpack_q3_k(const uint8_t *g, qwide *q, int part) {
    (void)part;
    _Alignas(32) int16_t scale[16][LG_NR][2];
    const uint8_t *two = g + 512, *s = g + 1536;
    for (int run = 0; run < 16; run++) {
        __m128i low = load16(s + run % 8 * 16), high = load16(s + 128 + run % 4 * 16);
        low = _mm_and_si128(run < 8 ? low : _mm_srli_epi16(low, 4), _mm_set1_epi8(15));
        high = _mm_srl_epi16(high, _mm_cvtsi32_si128(run / 4 * 2));
        high = _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4);
        __m128i v = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
        store_twice(_mm256_cvtepi8_epi16(v), scale[run]);
    }
    halves(g + 1728, q->d[0]);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 16; i++) {
            __m256i v = load32(two + 512 * half + 32 * i);
            __m256i h = _mm256_srli_epi16(load32(g + 32 * i), 4 * half);
            for (int t = 0; t < 4; t++) {
                __m256i low = _mm256_and_si256(v, bytes_of(3));
                __m256i bit = _mm256_and_si256(h, bytes_of(1));
                __m256i four = _mm256_sub_epi8(bytes_of(4), _mm256_slli_epi16(bit, 2));
                store_scaled(_mm256_sub_epi8(low, four), scale[8 * half + 2 * t + i / 8],
                             q->w[64 * half + 16 * t + i]);
                v = _mm256_srli_epi16(v, 2);
                h = _mm256_srli_epi16(h, 1);
            }
        }
}

INLINE void unpack_iq4_xs(const uint8_t *g, qwide *q, int part) {
    (void)part;
    const __m256i t = table(lg_dequant_iq4);
    const uint8_t *s = g + 64, *nib = g + 128;
    __m256i high = load32(g + 32); /* a word of 16 bits a channel */
    halves(g, q->d[0]);
    for (int run = 0; run < 8; run++, high = _mm256_srli_epi16(high, 2)) {
        _Alignas(32) int16_t scale[LG_NR][2];
        __m256i low = _mm256_cvtepu8_epi16(load16(s + run / 2 * 16));
        low =
            _mm256_and_si256(run % 2 ? _mm256_srli_epi16(low, 4) : low, _mm256_set1_epi16(15));
        __m256i two = _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi16(3)), 4);
        store_twice(_mm256_sub_epi16(_mm256_or_si256(low, two), _mm256_set1_epi16(32)), scale);
        for (int i = 0; i < 8; i++) {
            __m256i v = load32(nib + 32 * (8 * run + i));
            store_scaled(_mm256_shuffle_epi8(t, low4(v)), scale, q->w[16 * run + i]);
            store_scaled(_mm256_shuffle_epi8(t, high4(v)), scale, q->w[16 * run + 8 + i]);
        }
    }
}

#endif
