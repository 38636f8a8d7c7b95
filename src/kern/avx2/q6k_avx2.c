/* q6k_avx2.c - qgemm for Q6_K, in which most files keep the head and some down projections.
 *
 * Six-bit weights are unpacked to bytes 0 .. 63 in the first-level cache.  Times bytes of +-127 a pair's sum is at most 16,002,
 * so two vpmaddubsw add up in 16 bits; vpmaddwd with the run's scale widens them.  The 32 that is missing in each weight is
 * taken off at the end of a block: 32 x scale x sum of the run's 16 inputs.  Test: tests/unit/test_qgemm.c */
#include "kern/avx2/qrows_avx2.h"

#define TILE 3 /* rows */

/* A group of 16 blocks: [4 k][16 channels][4]. */
typedef struct q6k_wide {
    _Alignas(32) uint8_t w[64][LG_NR][4];
    _Alignas(32) int16_t scale[16][LG_NR][2]; /* twice */
    _Alignas(32) int16_t pair[8][LG_NR][2];   /* of two runs of 16 */
    _Alignas(32) float d[LG_NR];
} q6k_wide;

static void read_scales(const uint8_t *s, q6k_wide *t) {
    for (int i = 0; i < 8; i++) {
        __m256i a = _mm256_cvtepi8_epi16(load16(s + 32 * i));
        __m256i b = _mm256_cvtepi8_epi16(load16(s + 32 * i + 16));
        store_twice(a, t->scale[2 * i]);
        store_twice(b, t->scale[2 * i + 1]);
        store_pairs(a, b, t->pair[i]);
    }
    halves(s + 256, t->d);
}

/* Weights of four input channels at `at`, 32, 64 and 96 further on; a half of the block at a time. */
static void unpack(const uint8_t *g, q6k_wide *t) {
    const __m256i two = bytes_of(48);
    read_scales(g + 3072, t);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 16; i++) {
            uint8_t *w = &t->w[32 * half][0][0] + 32 * i;
            __m256i h = load32(g + 2048 + 512 * half + 32 * i);
            __m256i a = load32(g + 1024 * half + 32 * i);
            __m256i b = load32(g + 1024 * half + 512 + 32 * i);
            __m256i h0 = _mm256_and_si256(_mm256_slli_epi16(h, 4), two);
            __m256i h1 = _mm256_and_si256(_mm256_slli_epi16(h, 2), two);
            __m256i h2 = _mm256_and_si256(h, two);
            __m256i h3 = _mm256_and_si256(_mm256_srli_epi16(h, 2), two);
            store32(w, _mm256_or_si256(low4(a), h0));
            store32(w + 512, _mm256_or_si256(low4(b), h1));
            store32(w + 1024, _mm256_or_si256(high4(a), h2));
            store32(w + 1536, _mm256_or_si256(high4(b), h3));
        }
}

/* Eight input channels of n_row rows. */
static FORCED void add_eight(const q6k_wide *t, int k8, const qrow *x, const int n_row,
                             __m256i (*sum)[2]) {
    const int16_t(*scale)[2] = t->scale[k8 / 2];
    for (int i = 0; i < 2; i++) {
        __m256i a = aligned32(t->w[2 * k8] + 8 * i), b = aligned32(t->w[2 * k8 + 1] + 8 * i);
        __m256i sc = aligned32(scale + 8 * i);
        for (int r = 0; r < n_row; r++) {
            __m256i s = _mm256_maddubs_epi16(a, x4(x[r].v8 + 8 * k8));
            mac_bytes(&s, b, x4(x[r].v8 + 8 * k8 + 4));
            mac_words(&sum[r][i], s, sc);
        }
    }
}

static FORCED void add_rows(const q6k_wide *t, const qrow *x, const int n_row) {
    __m256i sum[TILE][2];
    for (int r = 0; r < n_row; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (int k8 = 0; k8 < 32; k8++) add_eight(t, k8, x, n_row, sum);
    for (int r = 0; r < n_row; r++) {
        __m256i off[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int p = 0; p < 8; p++) {
            __m256i v = _mm256_set1_epi32((int)lg_num_load32(x[r].sum16 + 2 * p));
            for (int i = 0; i < 2; i++) mac_words(&off[i], aligned32(t->pair[p] + 8 * i), v);
        }
        for (int i = 0; i < 2; i++)
            sum[r][i] = _mm256_sub_epi32(sum[r][i], _mm256_slli_epi32(off[i], 5));
        qrow_add(&x[r], t->d, sum[r]);
    }
}

void lg_qgemm_avx2_q6k(const qgemm *g, uint32_t panel0, uint32_t n_panel) {
    q6k_wide t;
    qrow row[QG_ROW];
    float acc[QG_ROW][LG_NR];
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        const uint8_t *group = qgemm_panel(g, p);
        for (uint32_t i = 0; i < g->n_row; i++) qrow_start(g, i, &row[i], acc[i]);
        for (uint32_t b = 0; b < g->w->n_in / 256; b++, group += g->group_bytes) {
            qgemm_prefetch(group, g->group_bytes);
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
