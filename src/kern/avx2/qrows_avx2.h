/* qrows_avx2.h - what the integer products share: rows of one call, their float sums, and the steps that end a block.
 * Test: tests/unit/test_qgemm.c */
#ifndef LG_KERN_AVX2_QROWS_AVX2_H
#define LG_KERN_AVX2_QROWS_AVX2_H

#include "kern/avx2/qunpack_avx2.h"
#include "kern/avx2/v16_avx2.h"
#include "base/num.h"

#include <string.h>

#define QG_ROW  96 /* rows that pass over a widened group */
#define QG_TILE 6  /* rows whose integer sums are in registers */

/* The sources of integer products are compiled a second time, for level avxvnni, under other names. */
#ifdef __AVXVNNI__
#define lg_qgemm_avx2     lg_qgemm_avxvnni
#define lg_qgemm_avx2_q4k lg_qgemm_avxvnni_q4k
#define lg_qgemm_avx2_q6k lg_qgemm_avxvnni_q6k
#endif

/* acc += pairs of products of words.  In assembly, so that gcc neither computes many products ahead, for which there are no
 * registers, nor moves sums between registers (both cost a third of the speed). */
INLINE void mac_words(__m256i *acc, __m256i w, __m256i x) {
#ifdef __AVXVNNI__
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(*acc) : "x"(w), "x"(x));
#else
    __m256i t;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(*acc), "=&x"(t) : "x"(w), "x"(x));
#endif
}

/* Sums in 16 bits of unsigned bytes times a row's signed ones: four input channels at x times 2 x 8 channels.  The two products come
 * before the two additions: a pair of instructions that alternate would all go to one half of Zen 3's schedulers. */
INLINE void mac_four(__m256i *s0, __m256i *s1, __m256i a, __m256i b, const int8_t *x) {
    __m256i t, u;
    __asm__("vpbroadcastd %6, %3\n\t"
            "vpmaddubsw %3, %4, %2\n\t"
            "vpmaddubsw %3, %5, %3\n\t"
            "vpaddw %2, %0, %0\n\t"
            "vpaddw %3, %1, %1"
            : "+x"(*s0), "+x"(*s1), "=&x"(t), "=&x"(u)
            : "x"(a), "x"(b), "m"(*(const int32_t *)(const void *)x));
}

/* The same of two fours of input channels, at x and y: eight output channels each. */
INLINE void mac_two(__m256i *s0, __m256i *s1, __m256i a, __m256i b, const int8_t *x,
                    const int8_t *y) {
    __m256i t, u;
    __asm__("vpbroadcastd %6, %2\n\t"
            "vpbroadcastd %7, %3\n\t"
            "vpmaddubsw %2, %4, %2\n\t"
            "vpmaddubsw %3, %5, %3\n\t"
            "vpaddw %2, %0, %0\n\t"
            "vpaddw %3, %1, %1"
            : "+x"(*s0), "+x"(*s1), "=&x"(t), "=&x"(u)
            : "x"(a), "x"(b), "m"(*(const int32_t *)(const void *)x),
              "m"(*(const int32_t *)(const void *)y));
}

/* The arguments of one call, for at most QG_ROW rows. */
typedef struct qgemm {
    const lg_mat *w;
    const lg_qrows *x;
    const uint32_t *row_idx;
    uint32_t row0, n_row;
    float *y;
    size_t ld_y, group_bytes, panel_bytes;
} qgemm;

/* One row at the current block. */
typedef struct qrow {
    const int8_t *v8;
    const int16_t *v16, *sum, *sum16;
    const float *d;
    float *acc; /* [16] */
} qrow;

void lg_qgemm_avx2_q4k(const qgemm *g, uint32_t panel0, uint32_t n_panel);
void lg_qgemm_avx2_q6k(const qgemm *g, uint32_t panel0, uint32_t n_panel);

INLINE __m256i aligned32(const void *p) {
    return *(const __m256i *)p;
}

/* Four bytes of a row for all channels. */
INLINE __m256i x4(const int8_t *v) {
    return _mm256_set1_epi32((int)lg_num_load32(v));
}

INLINE const uint8_t *qgemm_panel(const qgemm *g, uint32_t panel) {
    return (const uint8_t *)g->w->panel + panel * g->panel_bytes;
}

/* How many of n_left rows the next tile of at most `most` takes, so that tiles are nearly equal. */
INLINE uint32_t qgemm_take(uint32_t n_left, uint32_t most) {
    uint32_t n_tile = (n_left + most - 1) / most;
    return (n_left + n_tile - 1) / n_tile;
}

INLINE void qrow_start(const qgemm *g, uint32_t i, qrow *row, float *acc) {
    uint32_t r = g->row0 + i;
    lg_qrows x = lg_qrows_at(g->x, g->row_idx ? g->row_idx[r] : r);
    *row = (qrow){x.v8, x.v16, x.sum, x.sum16, x.d, acc};
    memset(acc, 0, LG_NR * sizeof *acc);
}

/* n_k input channels, n_group groups, on. */
INLINE void qrow_next(qrow *row, int n_k, int n_group) {
    row->v8 += n_k;
    row->v16 += n_k;
    row->sum += n_k / 32;
    row->sum16 += n_k / 16;
    row->d += n_group;
}

/* acc = fmaf((float)sum, d * dx, acc) */
INLINE void qrow_add(const qrow *row, const float *d, const __m256i *sum) {
    __m256 dx = _mm256_set1_ps(row->d[0]);
    for (int i = 0; i < 2; i++) {
        __m256 t = _mm256_mul_ps(_mm256_load_ps(d + 8 * i), dx);
        __m256 acc = _mm256_loadu_ps(row->acc + 8 * i);
        _mm256_storeu_ps(row->acc + 8 * i, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i]), t, acc));
    }
}

/* acc = fmaf(-(float)sum, m * dx, acc) */
INLINE void qrow_sub(const qrow *row, const float *m, const __m256i *sum) {
    __m256 dx = _mm256_set1_ps(row->d[0]);
    for (int i = 0; i < 2; i++) {
        __m256 t = _mm256_mul_ps(_mm256_load_ps(m + 8 * i), dx);
        __m256 acc = _mm256_loadu_ps(row->acc + 8 * i);
        _mm256_storeu_ps(row->acc + 8 * i,
                         _mm256_fnmadd_ps(_mm256_cvtepi32_ps(sum[i]), t, acc));
    }
}

/* The same with sum = the mins of 2 n_pair runs times the runs' sums. */
INLINE void qrow_sub_mins(const qrow *row, const float *m, const int16_t (*j)[LG_NR][2],
                          const int16_t *run_sum, const int n_pair) {
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int p = 0; p < n_pair; p++) {
        __m256i x = _mm256_set1_epi32((int)lg_num_load32(run_sum + 2 * p));
        for (int i = 0; i < 2; i++)
            sum[i] = _mm256_add_epi32(
                sum[i], _mm256_madd_epi16(*(const __m256i *)(const void *)(j[p] + 8 * i), x));
    }
    qrow_sub(row, m, sum);
}

#define QG_AHEAD 4096 /* bytes */

/* What tiles of rows ask for while they pass over a group: the lines of the memory QG_AHEAD bytes further, a few at each of their steps.
 * All at once they would wait for memory, with nothing to do meanwhile. */
typedef struct qahead {
    const uint8_t *at, *end;
    int n_line; /* a step */
} qahead;

/* n_row rows in tiles of at most `most`, each of n_step steps. */
INLINE qahead qgemm_ahead(const uint8_t *group, size_t len_bytes, uint32_t n_row, uint32_t most,
                          uint32_t n_step) {
    uint32_t n = (n_row + most - 1) / most * n_step;
    return (qahead){group + QG_AHEAD, group + QG_AHEAD + len_bytes,
                    (int)((len_bytes / 64 + n) / n)};
}

INLINE void qgemm_ask(qahead *a) {
    for (int i = 0; i < a->n_line && a->at < a->end; i++, a->at += 64)
        _mm_prefetch((const char *)a->at, _MM_HINT_T0);
}

/* Ask for the bytes that follow a group at some distance: unpacking and multiplying alternate, which the processor's own
 * prefetching does not keep up with. */
INLINE void qgemm_prefetch(const uint8_t *group, size_t len_bytes) {
    for (size_t i = 0; i < len_bytes; i += 64)
        _mm_prefetch((const char *)group + QG_AHEAD + i, _MM_HINT_T0);
}

INLINE void qgemm_store(const qgemm *g, uint32_t panel, float (*acc)[LG_NR]) {
    uint32_t c0 = panel * LG_NR, n_ch = g->w->n_out - c0 < LG_NR ? g->w->n_out - c0 : LG_NR;
    for (uint32_t i = 0; i < g->n_row; i++)
        v16_store_n(g->y + (g->row0 + i) * g->ld_y + c0, v16_load(acc[i]), n_ch);
}

#endif
