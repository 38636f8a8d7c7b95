/* qrows_vnni.h - what the integer products share: rows of one call, and the steps that end a block.
 * Test: tests/unit/test_qgemm.c */
#ifndef LG_KERN_AVX512_QROWS_VNNI_H
#define LG_KERN_AVX512_QROWS_VNNI_H

#include "kern/avx512/qload_vnni.h"

#include "base/num.h"

#include <string.h>

/* Counts of shift intrinsics: signed in gcc's headers, unsigned in clang's. */
#ifdef __clang__
#define LG_SHIFT(n) ((unsigned)(n))
#else
#define LG_SHIFT(n) (n)
#endif

/* What is indexed by the counter of an unrolled loop stays in registers. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#define ROLL   _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#define ROLL   _Pragma("GCC unroll 1")
#endif

/* One row at the current group; acc: its float sums for the panels of a tile. */
typedef struct vrow {
    const int8_t *v8;
    const int16_t *sum, *sum16;
    const float *d;
    float (*acc)[LG_NR];
} vrow;

/* The arguments of one call, for at most VG_ROW rows. */
typedef struct vgemm {
    const lg_mat *w;
    const lg_qrows *x;
    const uint32_t *row_idx;
    uint32_t row0, n_row;
    float *y;
    size_t ld_y, group_bytes, panel_bytes;
} vgemm;

#define VG_FEW 4

/* Panels [panel0, panel0 + n_panel) for at most VG_FEW rows: qfew_vnni.c. */
void lg_qgemm_vnni_few(const vgemm *g, uint32_t panel0, uint32_t n_panel);

INLINE vrow row_of(const vgemm *g, uint32_t i) {
    uint32_t r = g->row0 + i;
    lg_qrows x = lg_qrows_at(g->x, g->row_idx ? g->row_idx[r] : r);
    return (vrow){x.v8, x.sum, x.sum16, x.d, NULL};
}

INLINE void row_next(vrow *row, uint32_t n_k, uint32_t n_group) {
    row->v8 += n_k;
    row->sum += n_k / 32;
    row->sum16 += n_k / 16;
    row->d += n_group;
}

INLINE __m512i load_i(const void *p) {
    return *(const __m512i *)p;
}

/* Sums of pairs of words: acc += w x.  In assembly, so that gcc does not move sums between registers. */
INLINE void dot_words(__m512i *acc, __m512i w, __m512i x) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*acc) : "v"(w), "v"(x));
}

/* Four neighbouring numbers of a row, for all channels. */
INLINE __m512i four_of(const vrow *row, int k4) {
    return _mm512_set1_epi32((int)lg_num_load32(row->v8 + 4 * k4));
}

/* -32 x the sum of every eight of 256 numbers of a row, in every other element: what sums of Q6_K start with. */
INLINE void starts_of_eight(const vrow *x, int32_t *start) {
    for (int i = 0; i < 4; i++) { /* sums of eight v + 128, in 64 bits each */
        __m512i v = _mm512_xor_si512(_mm512_loadu_si512(x->v8 + 64 * i), vbytes(-128));
        v = _mm512_slli_epi32(_mm512_sad_epu8(v, _mm512_setzero_si512()), 5);
        vstore(start + 16 * i, _mm512_sub_epi32(_mm512_set1_epi32(1024 * 32), v));
    }
}

/* -offset x the sum of every 32 of 32 n (n <= 8) numbers. */
INLINE void starts_of_32(const vrow *x, int n, int offset, int32_t *start) {
    __m128i sum = _mm_maskz_loadu_epi16((__mmask8)((1u << n) - 1u), x->sum);
    __m256i v = _mm256_mullo_epi32(_mm256_cvtepi16_epi32(sum), _mm256_set1_epi32(-offset));
    _mm256_store_si256((__m256i *)(void *)start, v);
}

/* acc = fmaf((float)sum, d * dx, acc) */
INLINE __m512 add_scaled(__m512 acc, __m512i sum, const float *d, float dx) {
    __m512 t = _mm512_mul_ps(_mm512_load_ps(d), _mm512_set1_ps(dx));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), t, acc);
}

/* acc = fmaf(-sum, m * dx, acc) */
INLINE __m512 sub_scaled(__m512 acc, __m512 sum, const float *m, float dx) {
    __m512 t = _mm512_mul_ps(_mm512_load_ps(m), _mm512_set1_ps(dx));
    return _mm512_fnmadd_ps(sum, t, acc);
}

/* The mins of 2 n_pair runs times the sums of the runs' inputs. */
INLINE __m512 min_sum(const lg_vwide *t, const int16_t *run_sum, const int n_pair) {
    __m512i s = _mm512_setzero_si512();
    for (int p = 0; p < n_pair; p++)
        s = _mm512_dpwssd_epi32(s, load_i(t->pair[p]),
                                _mm512_set1_epi32((int)lg_num_load32(run_sum + 2 * p)));
    return _mm512_cvtepi32_ps(s);
}

/* Sums of row i of a panel to y. */
INLINE void store_row(const vgemm *g, uint32_t panel, uint32_t i, __m512 acc) {
    uint32_t c0 = panel * LG_NR, n_ch = g->w->n_out - c0 < LG_NR ? g->w->n_out - c0 : LG_NR;
    _mm512_mask_storeu_ps(g->y + (g->row0 + i) * g->ld_y + c0, (__mmask16)((1u << n_ch) - 1u),
                          acc);
}

#endif
