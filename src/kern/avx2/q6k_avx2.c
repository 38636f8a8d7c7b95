/* q6k_avx2.c - qgemm for Q6_K, in which most files keep the head and some down projections.
 *
 * Six-bit weights as bytes 0 .. 63.  Times bytes of +-127 a pair's sum is at most 16,002, so two vpmaddubsw add up in 16 bits;
 * vpmaddwd with the run's scale widens them.  The 32 that is missing in each weight is taken off at the end of a block:
 * 32 x scale x sum of the run's 16 inputs.  Up to four rows take the weights as they come from memory; for more rows a group is
 * unpacked in the first-level cache once.  Test: tests/unit/test_qgemm.c */
#include "kern/avx2/qrows_avx2.h"

#define TILE 3 /* rows */
#define FEW  4 /* rows up to which nothing is unpacked to memory */

/* What the sums of a group of 16 blocks are scaled by. */
typedef struct q6k_scales {
    _Alignas(32) int16_t scale[16][LG_NR][2]; /* twice */
    _Alignas(32) int16_t pair[8][LG_NR][2];   /* of two runs of 16 */
    _Alignas(32) float d[LG_NR];
} q6k_scales;

/* And its weights: [4 k][16 channels][4]. */
typedef struct q6k_wide {
    _Alignas(32) uint8_t w[64][LG_NR][4];
    q6k_scales s;
} q6k_wide;

/* Weights of four input channels of eight output channels, and of those 32, 64 and 96 further on. */
typedef struct q6k_four {
    __m256i w[4];
} q6k_four;

static void read_scales(const uint8_t *s, q6k_scales *t) {
    for (int i = 0; i < 8; i++) {
        __m256i a = _mm256_cvtepi8_epi16(load16(s + 32 * i));
        __m256i b = _mm256_cvtepi8_epi16(load16(s + 32 * i + 16));
        store_twice(a, t->scale[2 * i]);
        store_twice(b, t->scale[2 * i + 1]);
        store_pairs(a, b, t->pair[i]);
    }
    halves(s + 256, t->d);
}

/* The i-th 32 bytes (four input channels of eight output channels) of half a block. */
INLINE q6k_four unpack_four(const uint8_t *g, int half, int i) {
    const __m256i two = bytes_of(48);
    __m256i h = load32(g + 2048 + 512 * half + 32 * i);
    __m256i a = load32(g + 1024 * half + 32 * i);
    __m256i b = load32(g + 1024 * half + 512 + 32 * i);
    __m256i h0 = _mm256_and_si256(_mm256_slli_epi16(h, 4), two);
    __m256i h1 = _mm256_and_si256(_mm256_slli_epi16(h, 2), two);
    __m256i h2 = _mm256_and_si256(h, two);
    __m256i h3 = _mm256_and_si256(_mm256_srli_epi16(h, 2), two);
    return (q6k_four){{_mm256_or_si256(low4(a), h0), _mm256_or_si256(low4(b), h1),
                       _mm256_or_si256(high4(a), h2), _mm256_or_si256(high4(b), h3)}};
}

/* Ask for the n-th of 64 pieces of the memory QG_AHEAD bytes after a group: piece by piece, so that memory, unpacking and
 * products overlap. */
INLINE void ask(const uint8_t *group, int n) {
    _mm_prefetch((const char *)group + QG_AHEAD + 53 * n, _MM_HINT_T0);
}

static void unpack(const uint8_t *g, q6k_wide *t) {
    read_scales(g + 3072, &t->s);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 16; i++) {
            q6k_four v = unpack_four(g, half, i);
            ask(g, 32 * half + 2 * i);
            ask(g, 32 * half + 2 * i + 1);
            for (int q = 0; q < 4; q++)
                store32(&t->w[32 * half + 8 * q][0][0] + 32 * i, v.w[q]);
        }
}

/* The sums of a row's block come to its float sums. */
INLINE void end_block(const q6k_scales *t, const qrow *x, __m256i *sum) {
    __m256i off[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int p = 0; p < 8; p++) {
        __m256i v = _mm256_set1_epi32((int)lg_num_load32(x->sum16 + 2 * p));
        for (int i = 0; i < 2; i++) mac_words(&off[i], aligned32(t->pair[p] + 8 * i), v);
    }
    for (int i = 0; i < 2; i++) sum[i] = _mm256_sub_epi32(sum[i], _mm256_slli_epi32(off[i], 5));
    qrow_add(x, t->d, sum);
}

/* Eight input channels of n_row rows. */
static FORCED void add_eight(const q6k_wide *t, int k8, const qrow *x, const int n_row,
                             __m256i (*sum)[2]) {
    const int16_t(*scale)[2] = t->s.scale[k8 / 2];
    for (int i = 0; i < 2; i++) {
        __m256i a = aligned32(t->w[2 * k8] + 8 * i), b = aligned32(t->w[2 * k8 + 1] + 8 * i);
        __m256i sc = aligned32(scale + 8 * i);
        for (int r = 0; r < n_row; r++) {
            __m256i s = _mm256_maddubs_epi16(a, x4(x[r].v8 + 8 * k8));
            __m256i u = _mm256_maddubs_epi16(b, x4(x[r].v8 + 8 * k8 + 4));
            mac_words(&sum[r][i], _mm256_add_epi16(s, u), sc);
        }
    }
}

static FORCED void add_rows(const q6k_wide *t, const qrow *x, const int n_row) {
    __m256i sum[TILE][2];
    for (int r = 0; r < n_row; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (int k8 = 0; k8 < 32; k8++) add_eight(t, k8, x, n_row, sum);
    for (int r = 0; r < n_row; r++) end_block(&t->s, &x[r], sum[r]);
}

static void run_many(const qgemm *g, uint32_t panel0, uint32_t n_panel) {
    q6k_wide t;
    qrow row[QG_ROW];
    float acc[QG_ROW][LG_NR];
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        const uint8_t *group = qgemm_panel(g, p);
        for (uint32_t i = 0; i < g->n_row; i++) qrow_start(g, i, &row[i], acc[i]);
        for (uint32_t b = 0; b < g->w->n_in / 256; b++, group += g->group_bytes) {
            unpack(group, &t);
            for (uint32_t r = 0; r < g->n_row;) {
                uint32_t n = qgemm_take(g->n_row - r, TILE);
                switch (n) {
                case 1: add_rows(&t, row + r, 1); break;
                case 2: add_rows(&t, row + r, 2); break;
                default: add_rows(&t, row + r, TILE); break;
                }
                r += n;
            }
            for (uint32_t i = 0; i < g->n_row; i++) qrow_next(&row[i], 256, 1);
        }
        qgemm_store(g, p, acc);
    }
}

/* Eight input channels of half a block, and those 32, 64 and 96 further on, of eight output channels from 8 i; k8: 0 .. 3. */
static FORCED void add_packed(const uint8_t *group, const q6k_scales *t, int half, int k8,
                              int i, const qrow *x, const int n_row, __m256i (*sum)[2]) {
    q6k_four a = unpack_four(group, half, 4 * k8 + i);
    q6k_four b = unpack_four(group, half, 4 * k8 + 2 + i);
    for (int r = 0; r < n_row; r++) {
        const int8_t *v = x[r].v8 + 128 * half + 8 * k8;
        for (int q = 0; q < 4; q++) {
            __m256i s = _mm256_maddubs_epi16(a.w[q], x4(v + 32 * q));
            __m256i u = _mm256_maddubs_epi16(b.w[q], x4(v + 32 * q + 4));
            mac_words(&sum[r][i], _mm256_add_epi16(s, u),
                      aligned32(t->scale[8 * half + 2 * q + k8 / 2] + 8 * i));
        }
    }
}

static FORCED void run_few(const qgemm *g, uint32_t panel0, uint32_t n_panel, const int n_row) {
    q6k_scales t;
    qrow row[FEW];
    float acc[FEW][LG_NR];
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        const uint8_t *group = qgemm_panel(g, p);
        for (int i = 0; i < n_row; i++) qrow_start(g, (uint32_t)i, &row[i], acc[i]);
        for (uint32_t b = 0; b < g->w->n_in / 256; b++, group += g->group_bytes) {
            __m256i sum[FEW][2];
            for (int r = 0; r < n_row; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
            read_scales(group + 3072, &t);
            for (int half = 0; half < 2; half++)
                for (int k8 = 0; k8 < 4; k8++)
                    for (int i = 0; i < 2; i++) {
                        for (int n = 0; n < 4; n++) ask(group, 32 * half + 8 * k8 + 4 * i + n);
                        add_packed(group, &t, half, k8, i, row, n_row, sum);
                    }
            for (int r = 0; r < n_row; r++) end_block(&t, &row[r], sum[r]);
            for (int i = 0; i < n_row; i++) qrow_next(&row[i], 256, 1);
        }
        qgemm_store(g, p, acc);
    }
}

void lg_qgemm_avx2_q6k(const qgemm *g, uint32_t panel0, uint32_t n_panel) {
    switch (g->n_row) {
    case 1: run_few(g, panel0, n_panel, 1); break;
    case 2: run_few(g, panel0, n_panel, 2); break;
    case 3: run_few(g, panel0, n_panel, 3); break;
    case 4: run_few(g, panel0, n_panel, 4); break;
    default: run_many(g, panel0, n_panel); break;
    }
}
