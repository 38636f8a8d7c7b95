/* qwide_vnni.c - groups as unsigned bytes: see qwide_vnni.h.
 *
 * Groups that are cut in twos of bytes are put into fours by one vpermw.  Where a run's scale times its weights fits a byte
 * (Q3_K), it is multiplied in.  Thread: any.  Test: tests/unit/test_qgemm.c */
#include "kern/avx512/qwide_vnni.h"
#include "kern/dequant.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

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

/* ---- 32 elements: part 0 .. VW_PART - 1 of a wide group ---- */

static void widen_q8_0(const uint8_t *g, lg_vwide *t, int part) {
    vhalves(g, t->d[part]);
    for (int i = 0; i < 8; i++)
        vstore(t->w[8 * part + i], _mm512_xor_si512(vfours(g + 32 + 64 * i), vbytes(-128)));
}

/* Bytes 4i .. 4i + 3 of 16: elements 4i .. in the low halves, 16 + 4i .. in the high ones. */
INLINE void widen_nibbles(const uint8_t *nib, lg_vwide *t, int part) {
    for (int i = 0; i < 4; i++) {
        __m512i v = vfours(nib + 64 * i);
        vstore(t->w[8 * part + i], vlow4(v));
        vstore(t->w[8 * part + 4 + i], vhigh4(v));
    }
}

static void widen_q4_0(const uint8_t *g, lg_vwide *t, int part) {
    vhalves(g, t->d[part]);
    widen_nibbles(g + 32, t, part);
}

static void widen_q4_1(const uint8_t *g, lg_vwide *t, int part) {
    vhalves(g, t->d[part]);
    vhalves(g + 32, t->m[part]);
    widen_nibbles(g + 64, t, part);
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

INLINE void widen_q5(const uint8_t *bits, const uint8_t *nib, lg_vwide *t, int part) {
    __m512i b = vload64(bits);
    for (int i = 0; i < 4; i++) {
        __m512i v = vfours(nib + 64 * i);
        vstore(t->w[8 * part + i], vfifth(vlow4(v), b, i));
        vstore(t->w[8 * part + 4 + i], vfifth(vhigh4(v), b, 4 + i));
    }
}

static void widen_q5_0(const uint8_t *g, lg_vwide *t, int part) {
    vhalves(g, t->d[part]);
    widen_q5(g + 32, g + 96, t, part);
}

static void widen_q5_1(const uint8_t *g, lg_vwide *t, int part) {
    vhalves(g, t->d[part]);
    vhalves(g + 32, t->m[part]);
    widen_q5(g + 64, g + 128, t, part);
}

INLINE void widen_table(const uint8_t *nib, __m512i table, uint8_t (*w)[LG_NR][4]) {
    for (int i = 0; i < 4; i++) {
        __m512i v = vfours(nib + 64 * i);
        vstore(w[i], _mm512_shuffle_epi8(table, vlow4(v)));
        vstore(w[4 + i], _mm512_shuffle_epi8(table, vhigh4(v)));
    }
}

static void widen_iq4_nl(const uint8_t *g, lg_vwide *t, int part) {
    vhalves(g, t->d[part]);
    widen_table(g + 32, vtable(lg_dequant_iq4, 128), t->w + 8 * part);
}

/* 2^(e - 128), e below 2 as subnormals. */
static void widen_mxfp4(const uint8_t *g, lg_vwide *t, int part) {
    const __m512i one = _mm512_set1_epi32(1);
    __m512i e = vwiden_u(vload16(g));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __mmask16 is_small = _mm512_cmple_epu32_mask(e, one);
    vstore(t->d[part], _mm512_mask_mov_epi32(normal, is_small, small));
    widen_table(g + 16, vtable(lg_dequant_e2m1, 16), t->w + 8 * part);
}

/* ---- 32 or 128 elements with a float scale; 128 fill parts `part` to `part` + 3 ---- */

/* n_part times 32 elements less the zero points [16], which are at most 16, plus 16. */
INLINE void widen_i4(const uint8_t *g, lg_vwide *t, int part, int n_part) {
    __m512i up = _mm512_sub_epi8(vbytes(16), vrepeat(vload16(g + 64)));
    for (int s = part; s < part + n_part; s++) {
        const uint8_t *nib = g + 80 + 256 * (s - part);
        vstore(t->d[s], vload64(g));
        for (int i = 0; i < 4; i++) {
            __m512i v = vfours(nib + 64 * i);
            vstore(t->w[8 * s + i], _mm512_add_epi8(vlow4(v), up));
            vstore(t->w[8 * s + 4 + i], _mm512_add_epi8(vhigh4(v), up));
        }
    }
}

static void widen_i4_32(const uint8_t *g, lg_vwide *t, int part) {
    widen_i4(g, t, part, 1);
}

static void widen_i4_128(const uint8_t *g, lg_vwide *t, int part) {
    widen_i4(g, t, part, 4);
}

static void widen_i8_128(const uint8_t *g, lg_vwide *t, int part) {
    for (int s = 0; s < 4; s++) vstore(t->d[part + s], vload64(g));
    for (int i = 0; i < 32; i++)
        vstore(t->w[8 * part + i], _mm512_xor_si512(vfours(g + 64 + 64 * i), vbytes(-128)));
}

/* ---- 256 elements ---- */

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

static void widen_q4_k(const uint8_t *g, lg_vwide *t, int part) {
    (void)part;
    vhalves(g, t->d[0]);
    vhalves(g + 32, t->m[0]);
    vscales_mins(g + 64, t);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 8; i++) {
            __m512i v = vload64(g + 256 + 512 * p + 64 * i);
            vstore(t->w[16 * p + i], vlow4(v));
            vstore(t->w[16 * p + 8 + i], vhigh4(v));
        }
}

static void widen_q5_k(const uint8_t *g, lg_vwide *t, int part) {
    (void)part;
    const __m512i four = vbytes(15), five = vbytes(31);
    vhalves(g, t->d[0]);
    vhalves(g + 32, t->m[0]);
    vscales_mins(g + 64, t);
    for (int i = 0; i < 8; i++) {
        __m512i h = vfours(g + 256 + 64 * i);
        for (int p = 0; p < 4; p++, h = _mm512_srli_epi16(h, 2)) {
            __m512i v = vfours(g + 768 + 512 * p + 64 * i);
            __m512i lo = vpick(four, v, _mm512_slli_epi16(h, 4));
            __m512i hi = vpick(four, _mm512_srli_epi16(v, 4), _mm512_slli_epi16(h, 3));
            vstore(t->w[16 * p + i], _mm512_and_si512(lo, five));
            vstore(t->w[16 * p + 8 + i], _mm512_and_si512(hi, five));
        }
    }
}

static void widen_q6_k(const uint8_t *g, lg_vwide *t, int part) {
    (void)part;
    const __m512i four = vbytes(15), six = vbytes(63), words = _mm512_set1_epi32(0xffff);
    for (int i = 0; i < 16; i++) {
        __m512i s = _mm512_cvtepi8_epi32(vload16(g + 3072 + 16 * i));
        vstore(t->scale[i], _mm512_and_si512(s, words));
    }
    vhalves(g + 3328, t->d[0]);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 8; i++) {
            uint8_t(*w)[LG_NR][4] = t->w + 32 * half + i;
            __m512i h = vload64(g + 2048 + 512 * half + 64 * i);
            __m512i a = vload64(g + 1024 * half + 64 * i);
            __m512i b = vload64(g + 1024 * half + 512 + 64 * i);
            __m512i w0 = vpick(four, a, _mm512_slli_epi16(h, 4));
            __m512i w1 = vpick(four, b, _mm512_slli_epi16(h, 2));
            __m512i w2 = vpick(four, _mm512_srli_epi16(a, 4), h);
            __m512i w3 = vpick(four, _mm512_srli_epi16(b, 4), _mm512_srli_epi16(h, 2));
            vstore(w, _mm512_and_si512(w0, six));
            vstore(w + 8, _mm512_and_si512(w1, six));
            vstore(w + 16, _mm512_and_si512(w2, six));
            vstore(w + 24, _mm512_and_si512(w3, six));
        }
}

/* Q3_K: (q - 4) times scale + 124 for q of three bits fits a byte, so the scale of a run is multiplied in. */
static void widen_q3_k(const uint8_t *g, lg_vwide *t, int part) {
    (void)part;
    const uint8_t *two = g + 512, *s = g + 1536;
    _Alignas(64) uint8_t scale[16][LG_NR];
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
    vhalves(g + 1728, t->d[0]);
    for (int half = 0; half < 2; half++)
        for (int run = 0; run < 8; run++) {
            __m512i s1 = vrepeat(vload16(scale[8 * half + run]));
            __m512i s2 = _mm512_add_epi8(s1, s1), s4 = _mm512_add_epi8(s2, s2);
            __m512i base = _mm512_sub_epi8(vbytes(124), s4);
            int shift = run / 2 * 2;
            for (int i = 0; i < 4; i++) {
                int at = run % 2 * 4 + i;
                __m512i v = vfours(two + 512 * half + 64 * at), h = vfours(g + 64 * at),
                        u = base;
                u = _mm512_mask_add_epi8(u, _mm512_test_epi8_mask(v, vbytes(1 << shift)), u,
                                         s1);
                u = _mm512_mask_add_epi8(u, _mm512_test_epi8_mask(v, vbytes(2 << shift)), u,
                                         s2);
                u = _mm512_mask_add_epi8(
                    u, _mm512_test_epi8_mask(h, vbytes(1 << (4 * half + run / 2))), u, s4);
                vstore(t->w[32 * half + 8 * (run / 2) + at], u);
            }
        }
}

static void widen_iq4_xs(const uint8_t *g, lg_vwide *t, int part) {
    (void)part;
    const __m512i table = vtable(lg_dequant_iq4, 128), four = _mm512_set1_epi32(15);
    const __m512i top = _mm512_set1_epi32(48), off = _mm512_set1_epi32(32);
    __m512i high = _mm512_cvtepu16_epi32(vload32(g + 32)); /* 16 bits a channel */
    vhalves(g, t->d[0]);
    for (int run = 0; run < 8; run++) {
        __m512i low = vwiden_u(vload16(g + 64 + run / 2 * 16));
        low = _mm512_and_si512(run % 2 ? _mm512_srli_epi32(low, 4) : low, four);
        __m512i two = _mm512_and_si512(_mm512_slli_epi32(high, 4), top);
        high = _mm512_srli_epi32(high, 2);
        vstore(t->scale[run], _mm512_sub_epi32(_mm512_or_si512(low, two), off));
        widen_table(g + 128 + 256 * run, table, t->w + 8 * run);
    }
}

static const struct {
    lg_vwiden_fn *widen;
    int offset;
} info[LG_N_DTYPE] = {
    [LG_Q4_0] = {widen_q4_0, 8},       [LG_Q4_1] = {widen_q4_1, 0},
    [LG_Q5_0] = {widen_q5_0, 16},      [LG_Q5_1] = {widen_q5_1, 0},
    [LG_Q8_0] = {widen_q8_0, 128},     [LG_IQ4_NL] = {widen_iq4_nl, 128},
    [LG_MXFP4] = {widen_mxfp4, 16},    [LG_Q3_K] = {widen_q3_k, 124},
    [LG_Q4_K] = {widen_q4_k, 0},       [LG_Q5_K] = {widen_q5_k, 0},
    [LG_Q6_K] = {widen_q6_k, 32},      [LG_IQ4_XS] = {widen_iq4_xs, 128},
    [LG_I4_32] = {widen_i4_32, 16},    [LG_I4_128] = {widen_i4_128, 16},
    [LG_I8_128] = {widen_i8_128, 128},
};

lg_vwiden_fn *lg_vwiden(lg_dtype type) {
    LG_ASSERT((unsigned)type < LG_N_DTYPE && info[type].widen);
    return info[type].widen;
}

int lg_vwide_offset(lg_dtype type) {
    LG_ASSERT((unsigned)type < LG_N_DTYPE && info[type].widen);
    return info[type].offset;
}
