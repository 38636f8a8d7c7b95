/* qdigit_amx.h - a group of 16 blocks of 256 (kern/qlayout.h) as bytes in the order of B tiles: [4 k][16 channels][4].
 *
 * The integers I of lg_qsplit_block have the integer scales in them and do not fit bytes.  They are cut into two digits, I =
 * (high << shift) + low, so that two chains of tile products over the whole block replace a product and a scaling a run.
 * Shift 3: the scale, 0 .. 63, is cut (Q4_K, Q5_K).  Shift 8: the product is cut (Q6_K, IQ4_XS).  Test: tests/unit/test_qgemm.c */
#ifndef LG_KERN_AMX_QDIGIT_AMX_H
#define LG_KERN_AMX_QDIGIT_AMX_H

#include "kern/amx/qpass_amx.h"
#include "kern/avx512/qrows_vnni.h"
#include "kern/avx512/qwide_vnni.h"
#include "kern/dequant.h"

#include <string.h>

#define NOINLINE static __attribute__((noinline))

/* Digits of a group, in four tiles of 64 input channels, and what is needed while they are made. */
typedef struct qtile {
    _Alignas(64) uint8_t high[4][16][LG_NR][4], low[4][16][LG_NR][4];
    _Alignas(64)
        uint16_t digit[8][2][LG_NR][2]; /* Q4_K: high and low digit of a run's scale, twice */
    lg_vwide wide;                      /* Q2_K, Q3_K, Q5_K, IQ4_XS */
} qtile;

/* What the sums of a block are multiplied with. */
typedef struct qscale {
    _Alignas(64) float d[LG_NR], m[LG_NR];
    _Alignas(
        64) int16_t j[8][LG_NR][2]; /* mins of two runs; Q2_K has eight pairs, others four */
} qscale;

/* Quarter q of a group, 64 input channels (Q6_K: of each 32 a half); quarter 0 also makes the scales. */
typedef void unpack_256(const uint8_t *group, int q, qscale *s, qtile *t);

INLINE __m128i load16(const void *p) {
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE __m512i low4(__m512i v) {
    return _mm512_and_si512(v, bytes64(15));
}

INLINE __m512i high4(__m512i v) {
    return low4(_mm512_srli_epi16(v, 4));
}

INLINE void halves(const uint8_t *p, float *f) {
    _mm512_store_ps(f, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)));
}

/* A word of 16 bits in the lower half of each element, twice. */
INLINE __m512i twice(__m512i w) {
    return _mm512_or_si512(w, _mm512_slli_epi32(w, 16));
}

#define WORD_OF(c) c, 0x80, c, 0x80
static const _Alignas(64) uint8_t word_of[64] = {
    WORD_OF(0),  WORD_OF(1),  WORD_OF(2),  WORD_OF(3), WORD_OF(4),  WORD_OF(5),
    WORD_OF(6),  WORD_OF(7),  WORD_OF(8),  WORD_OF(9), WORD_OF(10), WORD_OF(11),
    WORD_OF(12), WORD_OF(13), WORD_OF(14), WORD_OF(15)};

/* A byte of each channel as its two words. */
INLINE __m512i words(__m128i v) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(v), load64(word_of));
}

/* ---- shift 3 ---- */

INLINE void scales_q4_k(const uint8_t *g, qscale *s, qtile *t) {
    const __m128i six = _mm_set1_epi8(63), four = _mm_set1_epi8(15), top = _mm_set1_epi8(48);
    const __m512i three = _mm512_set1_epi16(7);
    __m128i sc[8], mn[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const uint8_t *at = g + 64 + 16 * i;
        __m128i a = load16(at), b = load16(at + 64), c = load16(at + 128);
        __m128i a2 = _mm_and_si128(_mm_srli_epi16(a, 2), top);
        __m128i b2 = _mm_and_si128(_mm_srli_epi16(b, 2), top);
        sc[i] = _mm_and_si128(a, six);
        mn[i] = _mm_and_si128(b, six);
        sc[i + 4] = _mm_or_si128(_mm_and_si128(c, four), a2);
        mn[i + 4] = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(c, 4), four), b2);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m512i v = words(sc[i]);
        store64(t->digit[i][0], _mm512_srli_epi16(v, 3));
        store64(t->digit[i][1], _mm512_and_si512(v, three));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m128i a = mn[2 * i], b = mn[2 * i + 1];
        __m256i two = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
        store64(s->j[i], _mm512_cvtepu8_epi16(two));
    }
    halves(g, s->d);
    halves(g + 32, s->m);
}

/* Bytes times digits.  Products stay below 256, so that one product of words makes two of bytes. */
INLINE void put_digits(__m512i v, __m512i high, __m512i low, qtile *t, int tile, int line) {
    store64(t->high[tile][line], _mm512_mullo_epi16(v, high));
    store64(t->low[tile][line], _mm512_mullo_epi16(v, low));
}

static FORCED void digits_q4_k(const uint8_t *g, int q, qscale *s, qtile *t) {
    if (q == 0) scales_q4_k(g, s, t);
    const uint8_t *nib = g + 256 + 512 * q;
    __m512i a = load64(t->digit[2 * q][0]), b = load64(t->digit[2 * q][1]);
    __m512i c = load64(t->digit[2 * q + 1][0]), d = load64(t->digit[2 * q + 1][1]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m512i v = load64(nib + 64 * i);
        put_digits(low4(v), a, b, t, q, i);
        put_digits(high4(v), c, d, t, q, i + 8);
    }
}

/* d, m and the mins as they were widened. */
INLINE void widen(lg_dtype type, const uint8_t *g, qscale *s, qtile *t) {
    lg_vwiden(type)(g, &t->wide, 0);
    memcpy(s->d, t->wide.d[0], sizeof s->d);
    if (!lg_qsplit_has_min(type)) return;
    memcpy(s->m, t->wide.m[0], sizeof s->m);
    memcpy(s->j, t->wide.pair, sizeof s->j);
}

NOINLINE void digits_q5_k(const uint8_t *g, int q, qscale *s, qtile *t) {
    if (q == 0) widen(LG_Q5_K, g, s, t);
    const __m512i three = _mm512_set1_epi16(7);
    for (int run = 0; run < 2; run++) {
        __m512i sc = twice(load64(t->wide.scale[2 * q + run]));
        __m512i high = _mm512_srli_epi16(sc, 3), low = _mm512_and_si512(sc, three);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            put_digits(load64(t->wide.w[16 * q + 8 * run + i]), high, low, t, q, 8 * run + i);
    }
}

/* ---- shift 8 ---- */

/* A run's scale as bytes for even and odd input channels, and as words times the offset of the weights. */
typedef struct run_scale {
    __m512i even, odd, off;
} run_scale;

/* scale: a signed byte in the lowest byte of each element. */
INLINE run_scale run_scale_of(__m512i scale, const int offset_bits) {
    run_scale r;
    r.even = twice(_mm512_and_si512(scale, _mm512_set1_epi32(0xff))); /* s 0 s 0 */
    r.odd = _mm512_slli_epi16(r.even, 8);                             /* 0 s 0 s */
    r.off = _mm512_srai_epi16(r.odd, LG_SHIFT(8 - offset_bits));
    return r;
}

/* (Bytes - offset) times the scale: words, cut into bytes. */
INLINE void put_words(__m512i v, const run_scale *r, qtile *t, int tile, int line) {
    const __mmask64 second = 0xaaaaaaaaaaaaaaaau;
    __m512i even = _mm512_sub_epi16(_mm512_maddubs_epi16(v, r->even), r->off);
    __m512i odd = _mm512_sub_epi16(_mm512_maddubs_epi16(v, r->odd), r->off);
    store64(t->high[tile][line], _mm512_mask_mov_epi8(_mm512_srli_epi16(even, 8), second, odd));
    store64(t->low[tile][line], _mm512_mask_mov_epi8(even, second, _mm512_slli_epi16(odd, 8)));
}

NOINLINE void digits_q6_k(const uint8_t *g, int q, qscale *s, qtile *t) {
    if (q == 0) halves(g + 3328, s->d);
    int half = q / 2, part = q % 2;
    const __m512i two = bytes64(48);
    const uint8_t *a = g + 1024 * half + 256 * part, *h = g + 2048 + 512 * half + 256 * part;
    run_scale r[4]; /* runs of 16, each in another 32 */
    for (int i = 0; i < 4; i++) {
        const uint8_t *sc = g + 3072 + 16 * (8 * half + 2 * i + part);
        r[i] = run_scale_of(_mm512_cvtepi8_epi32(load16(sc)), 5);
    }
    for (int i = 0; i < 4; i++) {
        __m512i n0 = load64(a + 64 * i), n1 = load64(a + 512 + 64 * i), hh = load64(h + 64 * i);
        __m512i h0 = _mm512_and_si512(_mm512_slli_epi16(hh, 4), two);
        __m512i h1 = _mm512_and_si512(_mm512_slli_epi16(hh, 2), two);
        __m512i h2 = _mm512_and_si512(hh, two);
        __m512i h3 = _mm512_and_si512(_mm512_srli_epi16(hh, 2), two);
        int tile = 2 * half, line = 4 * part + i;
        put_words(_mm512_or_si512(low4(n0), h0), &r[0], t, tile, line);
        put_words(_mm512_or_si512(low4(n1), h1), &r[1], t, tile, line + 8);
        put_words(_mm512_or_si512(high4(n0), h2), &r[2], t, tile + 1, line);
        put_words(_mm512_or_si512(high4(n1), h3), &r[3], t, tile + 1, line + 8);
    }
}

NOINLINE void digits_iq4_xs(const uint8_t *g, int q, qscale *s, qtile *t) {
    if (q == 0) widen(LG_IQ4_XS, g, s, t);
    for (int run = 0; run < 2; run++) {
        run_scale r = run_scale_of(load64(t->wide.scale[2 * q + run]), 7);
        for (int i = 0; i < 8; i++)
            put_words(load64(t->wide.w[16 * q + 8 * run + i]), &r, t, q, 8 * run + i);
    }
}

/* ---- one digit: unsigned bytes, for Q3_K with an offset ---- */

NOINLINE void digits_q2_k(const uint8_t *g, int q, qscale *s, qtile *t) {
    if (q == 0) widen(LG_Q2_K, g, s, t);
    memcpy(t->low[q], t->wide.w[16 * q], sizeof t->low[q]);
}

NOINLINE void digits_q3_k(const uint8_t *g, int q, qscale *s, qtile *t) {
    if (q == 0) widen(LG_Q3_K, g, s, t);
    memcpy(t->low[q], t->wide.w[16 * q], sizeof t->low[q]);
}

#endif
