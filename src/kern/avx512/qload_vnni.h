/* qload_vnni.h - places of a group (kern/qlayout.h) as vectors of bytes, and its scales.  Test: tests/unit/test_qgemm.c */
#ifndef LG_KERN_AVX512_QLOAD_VNNI_H
#define LG_KERN_AVX512_QLOAD_VNNI_H

#include "kern/avx512/qwide_vnni.h"
#include "kern/dequant.h"

#include <immintrin.h>

#define FORCED inline __attribute__((always_inline))
#define INLINE static FORCED

INLINE __m128i vload16(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

INLINE __m256i vload32(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

INLINE __m512i vload64(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}

INLINE void vstore(void *p, __m512i v) {
    _mm512_store_si512(p, v);
}

INLINE __m512i vbytes(int v) {
    return _mm512_set1_epi8((char)v);
}

/* Two neighbours of a field cut in twos, [2][16][2] bytes, as [16][4]. */
INLINE __m512i vfours(const uint8_t *p) {
    const __m512i at =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(at, vload64(p));
}

INLINE __m512i vlow4(__m512i v) {
    return _mm512_and_si512(v, vbytes(15));
}

INLINE __m512i vhigh4(__m512i v) {
    return vlow4(_mm512_srli_epi16(v, 4));
}

/* a where the bits of mask are set, else b. */
INLINE __m512i vpick(__m512i mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

/* 16 binary16 numbers to float. */
INLINE void vhalves(const uint8_t *p, float *f) {
    _mm512_store_ps(f, _mm512_cvtph_ps(vload32(p)));
}

/* A table of 16 signed bytes plus an offset, in each lane. */
INLINE __m512i vtable(const int8_t *t, int offset) {
    __m128i v = _mm_add_epi8(_mm_loadu_si128((const __m128i *)(const void *)t),
                             _mm_set1_epi8((char)offset));
    return _mm512_broadcast_i32x4(v);
}

/* 16 bytes, one a channel, as integers of 32 bits. */
INLINE __m512i vwiden_u(__m128i bytes) {
    return _mm512_cvtepu8_epi32(bytes);
}

/* A byte a channel, repeated in its four bytes. */
INLINE __m512i vrepeat(__m128i bytes) {
    const __m512i at =
        _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    return _mm512_shuffle_epi8(vwiden_u(bytes), at);
}

/* Bytes a and b of 16 channels as pairs of words. */
INLINE __m512i vpairs(__m128i a, __m128i b) {
    return _mm512_or_si512(vwiden_u(a), _mm512_slli_epi32(vwiden_u(b), 16));
}

/* 2^(e - 128) of 16 bytes e; below 2 as subnormals. */
INLINE __m512 vpowers(const uint8_t *g) {
    const __m512i one = _mm512_set1_epi32(1);
    __m512i e = vwiden_u(vload16(g));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __mmask16 is_small = _mm512_cmple_epu32_mask(e, one);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small));
}

/* v plus 16 in byte b of a channel where bit 4i + b of its 32 bits is set. */
INLINE __m512i vfifth(__m512i v, __m512i bits, int i) {
    const __m512i spread = _mm512_add_epi8(
        _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0)),
        vbytes(i / 2));
    const __m512i which = _mm512_set1_epi32(i % 2 ? (int)0x80402010 : 0x08040201);
    __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(bits, spread), which);
    return _mm512_mask_add_epi8(v, set, v, vbytes(16));
}

/* Six-bit scales and mins of Q4_K and Q5_K from [12][16] bytes. */
INLINE void vscales_mins(const uint8_t *s, lg_vwide *t) {
    const __m512i six = vbytes(63), four = vbytes(15), top = vbytes(48);
    __m512i a = vload64(s), b = vload64(s + 64), c = vload64(s + 128);
    __m512i sc[2], mn[2];
    sc[0] = _mm512_and_si512(a, six);
    mn[0] = _mm512_and_si512(b, six);
    sc[1] = vpick(four, c, _mm512_and_si512(_mm512_srli_epi16(a, 2), top));
    mn[1] =
        vpick(four, _mm512_srli_epi16(c, 4), _mm512_and_si512(_mm512_srli_epi16(b, 2), top));
    for (int i = 0; i < 2; i++) {
        vstore(t->scale[4 * i], vwiden_u(_mm512_castsi512_si128(sc[i])));
        vstore(t->scale[4 * i + 1], vwiden_u(_mm512_extracti32x4_epi32(sc[i], 1)));
        vstore(t->scale[4 * i + 2], vwiden_u(_mm512_extracti32x4_epi32(sc[i], 2)));
        vstore(t->scale[4 * i + 3], vwiden_u(_mm512_extracti32x4_epi32(sc[i], 3)));
        vstore(t->pair[2 * i],
               vpairs(_mm512_castsi512_si128(mn[i]), _mm512_extracti32x4_epi32(mn[i], 1)));
        vstore(t->pair[2 * i + 1], vpairs(_mm512_extracti32x4_epi32(mn[i], 2),
                                          _mm512_extracti32x4_epi32(mn[i], 3)));
    }
}

/* Scales (low) and mins of four bits of Q2_K. */
INLINE void vscales_q2(const uint8_t *s, lg_vwide *t) {
    const __m128i four = _mm_set1_epi8(15);
    for (int i = 0; i < 8; i++) {
        __m128i a = vload16(s + 32 * i), b = vload16(s + 32 * i + 16);
        vstore(t->scale[2 * i], vwiden_u(_mm_and_si128(a, four)));
        vstore(t->scale[2 * i + 1], vwiden_u(_mm_and_si128(b, four)));
        a = _mm_and_si128(_mm_srli_epi16(a, 4), four);
        b = _mm_and_si128(_mm_srli_epi16(b, 4), four);
        vstore(t->pair[i], vpairs(a, b));
    }
}

/* The 16 signed scales of Q6_K, cut to 16 bits. */
INLINE void vscales_q6(const uint8_t *s, lg_vwide *t) {
    const __m512i words = _mm512_set1_epi32(0xffff);
    for (int i = 0; i < 16; i++) {
        __m512i v = _mm512_cvtepi8_epi32(vload16(s + 16 * i));
        vstore(t->scale[i], _mm512_and_si512(v, words));
    }
}

/* The 16 signed scales of Q3_K as bytes, from [12][16]. */
INLINE void vscales_q3(const uint8_t *s, uint8_t (*scale)[LG_NR]) {
    for (int i = 0; i < 4; i++) {
        __m128i four = _mm_set1_epi8(15), top = _mm_set1_epi8(48), off = _mm_set1_epi8(32);
        __m128i h = vload16(s + 128 + 16 * i);
        for (int j = 0; j < 4; j++) {
            __m128i low = vload16(s + 16 * (j % 2 * 4 + i));
            low = _mm_and_si128(j < 2 ? low : _mm_srli_epi16(low, 4), four);
            __m128i high = _mm_slli_epi16(_mm_srl_epi16(h, _mm_cvtsi32_si128(2 * j)), 4);
            high = _mm_or_si128(low, _mm_and_si128(high, top));
            _mm_store_si128((__m128i *)(void *)scale[4 * j + i], _mm_sub_epi8(high, off));
        }
    }
}

/* The eight signed scales of IQ4_XS: two high bits each in 16 bits a channel, then [4][16] bytes of four low bits. */
INLINE void vscales_iq4_xs(const uint8_t *s, lg_vwide *t) {
    const __m512i four = _mm512_set1_epi32(15), top = _mm512_set1_epi32(48);
    __m512i high = _mm512_cvtepu16_epi32(vload32(s));
    for (int run = 0; run < 8; run++) {
        __m512i low = vwiden_u(vload16(s + 32 + run / 2 * 16));
        low = _mm512_and_si512(run % 2 ? _mm512_srli_epi32(low, 4) : low, four);
        __m512i two = _mm512_and_si512(_mm512_slli_epi32(high, 4), top);
        high = _mm512_srli_epi32(high, 2);
        vstore(t->scale[run],
               _mm512_sub_epi32(_mm512_or_si512(low, two), _mm512_set1_epi32(32)));
    }
}

#endif
