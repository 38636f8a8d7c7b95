/* qwide_vnni.c - groups as unsigned bytes: see qwide_vnni.h.
 *
 * Groups that are cut in twos of bytes are put into fours by one vpermw.  Where a run's scale times its weights fits a byte
 * (Q2_K, Q3_K), it is multiplied in.  Thread: any.  Test: tests/unit/test_qgemm.c */
#include "kern/avx512/qload_vnni.h"

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

static void widen_mxfp4(const uint8_t *g, lg_vwide *t, int part) {
    _mm512_store_ps(t->d[part], vpowers(g));
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
    const __m512i four = vbytes(15), six = vbytes(63);
    vscales_q6(g + 3072, t);
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

/* Q2_K: q of two bits times the scale, at most 45. */
static void widen_q2_k(const uint8_t *g, lg_vwide *t, int part) {
    (void)part;
    vscales_q2(g, t);
    vhalves(g + 1280, t->d[0]);
    vhalves(g + 1312, t->m[0]);
    for (int half = 0; half < 2; half++)
        for (int run = 0; run < 8; run++) {
            __m128i scale =
                _mm_and_si128(vload16(g + 128 * half + 16 * run), _mm_set1_epi8(15));
            __m512i s1 = vrepeat(scale), s2 = _mm512_add_epi8(s1, s1);
            int shift = run / 2 * 2;
            for (int i = 0; i < 4; i++) {
                int at = run % 2 * 4 + i;
                __m512i v = vfours(g + 256 + 512 * half + 64 * at);
                __m512i u =
                    _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(v, vbytes(1 << shift)), s1);
                u = _mm512_mask_add_epi8(u, _mm512_test_epi8_mask(v, vbytes(2 << shift)), u,
                                         s2);
                vstore(t->w[32 * half + 8 * (run / 2) + at], u);
            }
        }
}

/* Q3_K: (q - 4) times scale + 124 for q of three bits fits a byte, so the scale of a run is multiplied in. */
static void widen_q3_k(const uint8_t *g, lg_vwide *t, int part) {
    (void)part;
    const uint8_t *two = g + 512;
    _Alignas(64) uint8_t scale[16][LG_NR];
    vscales_q3(g + 1536, scale);
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
    const __m512i table = vtable(lg_dequant_iq4, 128);
    vhalves(g, t->d[0]);
    vscales_iq4_xs(g + 32, t);
    for (int run = 0; run < 8; run++) widen_table(g + 128 + 256 * run, table, t->w + 8 * run);
}

static const struct {
    lg_vwiden_fn *widen;
    int offset;
} info[LG_N_DTYPE] = {
    [LG_Q4_0] = {widen_q4_0, 8},       [LG_Q4_1] = {widen_q4_1, 0},
    [LG_Q5_0] = {widen_q5_0, 16},      [LG_Q5_1] = {widen_q5_1, 0},
    [LG_Q8_0] = {widen_q8_0, 128},     [LG_IQ4_NL] = {widen_iq4_nl, 128},
    [LG_MXFP4] = {widen_mxfp4, 16},    [LG_Q2_K] = {widen_q2_k, 0},
    [LG_Q3_K] = {widen_q3_k, 124},     [LG_Q4_K] = {widen_q4_k, 0},
    [LG_Q5_K] = {widen_q5_k, 0},       [LG_Q6_K] = {widen_q6_k, 32},
    [LG_IQ4_XS] = {widen_iq4_xs, 128}, [LG_I4_32] = {widen_i4_32, 16},
    [LG_I4_128] = {widen_i4_128, 16},  [LG_I8_128] = {widen_i8_128, 128},
};

lg_vwiden_fn *lg_vwiden(lg_dtype type) {
    LG_ASSERT((unsigned)type < LG_N_DTYPE && info[type].widen);
    return info[type].widen;
}

int lg_vwide_offset(lg_dtype type) {
    LG_ASSERT((unsigned)type < LG_N_DTYPE && info[type].widen);
    return info[type].offset;
}
