/* q4k_avx2.c - qgemm for Q4_K, the type most models are kept in.
 *
 * Four-bit weights times bytes of +-127: a pair's sum is at most 3,810, so the eight vpmaddubsw of a run of 32 add up in 16 bits
 * (30,480); one vpmaddwd with the run's six-bit scale then widens and scales, one vpaddd adds it to the block's sum.
 * That is 17 instructions for 256 products.  One and two rows take the nibbles as they come from memory; for more rows a
 * group is unpacked to bytes in the first-level cache once.
 * Test: tests/unit/test_qgemm.c; what else was tried: docs/EXPERIMENTS.md */
#include "kern/avx2/qrows_avx2.h"

#define TILE 3 /* rows */

/* A group of 16 blocks: [run][4 k][16 channels][4]. */
typedef struct q4k_wide {
    _Alignas(32) uint8_t w[8][8][LG_NR][4];
    _Alignas(32) int16_t scale[8][LG_NR][2];
    _Alignas(32) int16_t j[4][LG_NR][2]; /* mins of two runs */
    _Alignas(32) float d[LG_NR], m[LG_NR];
} q4k_wide;

static void read_scales(const uint8_t *g, q4k_wide *t) {
    halves(g, t->d);
    halves(g + 32, t->m);
    scales_mins(g + 64, t->scale, t->j);
}

static FORCED void unpack(const uint8_t *g, q4k_wide *t) {
    read_scales(g, t);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 16; i++) {
            __m256i v = load32(g + 256 + 512 * p + 32 * i);
            store32(&t->w[2 * p][0][0][0] + 32 * i, low4(v));
            store32(&t->w[2 * p + 1][0][0][0] + 32 * i, high4(v));
        }
}

/* A run of 32 of n_row rows: 16-bit sums, then scaled into sum. */
static FORCED void add_run(const q4k_wide *t, int run, const qrow *x, const int n_row,
                           __m256i (*sum)[2]) {
    __m256i s[TILE][2];
    for (int k = 0; k < 8; k++) {
        __m256i a = aligned32(t->w[run][k]), b = aligned32(t->w[run][k] + 8);
        for (int r = 0; r < n_row; r++) {
            __m256i xv = x4(x[r].v8 + 32 * run + 4 * k);
            if (k == 0) {
                s[r][0] = _mm256_maddubs_epi16(a, xv);
                s[r][1] = _mm256_maddubs_epi16(b, xv);
            } else {
                mac_bytes(&s[r][0], a, xv);
                mac_bytes(&s[r][1], b, xv);
            }
        }
    }
    for (int r = 0; r < n_row; r++)
        for (int i = 0; i < 2; i++) {
            __m256i v = _mm256_madd_epi16(s[r][i], aligned32(t->scale[run] + 8 * i));
            sum[r][i] = _mm256_add_epi32(sum[r][i], v);
        }
}

static FORCED void end_block(const q4k_wide *t, const qrow *x, const int n_row,
                             __m256i (*sum)[2]) {
    for (int r = 0; r < n_row; r++) {
        qrow_add(&x[r], t->d, sum[r]);
        qrow_sub_mins(&x[r], t->m, (const int16_t(*)[LG_NR][2])t->j, x[r].sum, 4);
    }
}

static FORCED void add_rows(const q4k_wide *t, const qrow *x, const int n_row) {
    __m256i sum[TILE][2];
    for (int r = 0; r < n_row; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (int run = 0; run < 8; run++) add_run(t, run, x, n_row, sum);
    end_block(t, x, n_row, sum);
}

/* Runs 2p and 2p + 1 from packed nibbles, one or two rows. */
static FORCED void add_packed(const uint8_t *nib, const q4k_wide *t, int p, const qrow *x,
                              const int n_row, __m256i (*sum)[2]) {
    __m256i s[2][2][2];
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 2; i++) {
            __m256i v = load32(nib + 64 * k + 32 * i), lo = low4(v), hi = high4(v);
            for (int r = 0; r < n_row; r++) {
                const int8_t *xr = x[r].v8 + 64 * p + 4 * k;
                if (k == 0) {
                    s[r][0][i] = _mm256_maddubs_epi16(lo, x4(xr));
                    s[r][1][i] = _mm256_maddubs_epi16(hi, x4(xr + 32));
                } else {
                    mac_bytes(&s[r][0][i], lo, x4(xr));
                    mac_bytes(&s[r][1][i], hi, x4(xr + 32));
                }
            }
        }
    for (int r = 0; r < n_row; r++)
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 2; i++) {
                __m256i v =
                    _mm256_madd_epi16(s[r][h][i], aligned32(t->scale[2 * p + h] + 8 * i));
                sum[r][i] = _mm256_add_epi32(sum[r][i], v);
            }
}

static FORCED void run_few(const qgemm *g, uint32_t panel0, uint32_t n_panel, const int n_row) {
    q4k_wide t;
    qrow row[2];
    float acc[2][LG_NR];
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        const uint8_t *group = qgemm_panel(g, p);
        for (int i = 0; i < n_row; i++) qrow_start(g, (uint32_t)i, &row[i], acc[i]);
        for (uint32_t b = 0; b < g->w->n_in / 256; b++, group += g->group_bytes) {
            __m256i sum[2][2];
            for (int i = 0; i < n_row; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
            qgemm_prefetch(group, g->group_bytes);
            read_scales(group, &t);
            for (int pair = 0; pair < 4; pair++)
                add_packed(group + 256 + 512 * pair, &t, pair, row, n_row, sum);
            end_block(&t, row, n_row, sum);
            for (int i = 0; i < n_row; i++) qrow_next(&row[i], 256, 1);
        }
        qgemm_store(g, p, acc);
    }
}

static void run_many(const qgemm *g, uint32_t panel0, uint32_t n_panel) {
    q4k_wide t;
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

void lg_qgemm_avx2_q4k(const qgemm *g, uint32_t panel0, uint32_t n_panel) {
    if (g->n_row == 1)
        run_few(g, panel0, n_panel, 1);
    else if (g->n_row == 2)
        run_few(g, panel0, n_panel, 2);
    else
        run_many(g, panel0, n_panel);
}
