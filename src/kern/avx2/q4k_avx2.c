/* q4k_avx2.c - qgemm for Q4_K, the type most models are kept in.
 *
 * Four-bit weights times bytes of +-127: a pair's sum is at most 3,810, so the eight vpmaddubsw of a run of 32 add up in 16 bits
 * (30,480); one vpmaddwd with the run's six-bit scale then widens and scales, one vpaddd adds it to the block's sum.
 * That is 17 instructions for 256 products.  Up to four rows take the nibbles as they come from memory; for more rows a
 * group is unpacked to bytes in the first-level cache once, and tiles of up to six rows keep their 16-bit sums in registers and
 * the sums of the block in memory.
 * Test: tests/unit/test_qgemm.c; what else was tried: docs/EXPERIMENTS.md */
#include "kern/avx2/qrows_avx2.h"

#define TILE 6 /* rows */
#define FEW  4 /* rows up to which nothing is unpacked to memory */

/* What the sums of a group of 16 blocks are scaled by. */
typedef struct q4k_scales {
    _Alignas(32) int16_t scale[8][LG_NR][2]; /* twice */
    _Alignas(32) int16_t j[4][LG_NR][2];     /* mins of two runs */
    _Alignas(32) float d[LG_NR], m[LG_NR];
} q4k_scales;

/* And its weights as bytes. */
typedef struct q4k_wide {
    _Alignas(32) uint8_t w[8][8][LG_NR][4]; /* [run][4 k][16 channels][4] */
    q4k_scales s;
} q4k_wide;

/* A row of the call, from its first block, and its float sums. */
typedef struct q4k_row {
    const int8_t *v;
    const int16_t *sum;
    const float *d;
} q4k_row;

typedef float q4k_acc[LG_NR];

/* The first four of a run. */
INLINE void mul_four(__m256i *s0, __m256i *s1, __m256i a, __m256i b, const int8_t *x) {
    __m256i xv = x4(x);
    *s0 = _mm256_maddubs_epi16(a, xv);
    *s1 = _mm256_maddubs_epi16(b, xv);
}

/* Ask for the line so many bytes after one that is read now: line by line, so that memory, unpacking and products overlap.  One row
 * waits for memory alone and wants fewer lines under way. */
INLINE void ask(const uint8_t *p, const int n_row) {
    _mm_prefetch((const char *)p + (n_row == 1 ? QG_AHEAD / 2 : QG_AHEAD), _MM_HINT_T0);
}

INLINE void read_scales(const uint8_t *g, q4k_scales *s) {
    halves(g, s->d);
    halves(g + 32, s->m);
    scales_mins(g + 64, s->scale, s->j);
}

static FORCED void unpack(const uint8_t *g, q4k_wide *t) {
    read_scales(g, &t->s);
    for (int p = 0; p < 4; p++)
#pragma GCC unroll 4
        for (int i = 0; i < 16; i++) {
            __m256i v = load32(g + 256 + 512 * p + 32 * i);
            store32(&t->w[2 * p][0][0][0] + 32 * i, low4(v));
            store32(&t->w[2 * p + 1][0][0][0] + 32 * i, high4(v));
        }
}

/* The sums of block b of a row come to its float sums. */
INLINE void end_block(const q4k_scales *s, const q4k_row *x, size_t b, const __m256i *sum,
                      float *acc) {
    __m256 dx = _mm256_set1_ps(x->d[b]);
    __m256i mins[2];
    for (int p = 0; p < 4; p++) {
        __m256i xs = _mm256_set1_epi32((int)lg_num_load32(x->sum + 8 * b + 2 * p));
        for (int i = 0; i < 2; i++) {
            __m256i v = _mm256_madd_epi16(aligned32(s->j[p] + 8 * i), xs);
            mins[i] = p ? _mm256_add_epi32(mins[i], v) : v;
        }
    }
    for (int i = 0; i < 2; i++) {
        __m256 d = _mm256_mul_ps(_mm256_load_ps(s->d + 8 * i), dx);
        __m256 m = _mm256_mul_ps(_mm256_load_ps(s->m + 8 * i), dx);
        __m256 y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i]), d, _mm256_load_ps(acc + 8 * i));
        _mm256_store_ps(acc + 8 * i, _mm256_fnmadd_ps(_mm256_cvtepi32_ps(mins[i]), m, y));
    }
}

/* ---- many rows ---- */

/* Block b of n_row rows. */
static FORCED void add_rows(const q4k_wide *t, const q4k_row *x, size_t b, const int n_row,
                            qahead *ahead, q4k_acc *acc) {
    __m256i sum[TILE][2];
    const int8_t *v[TILE];
    for (int r = 0; r < n_row; r++) {
        v[r] = x[r].v + 256 * b;
        sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    }
#pragma GCC unroll 1
    for (int run = 0; run < 8; run++) {
        __m256i s[TILE][2];
        qgemm_ask(ahead);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            __m256i w0 = aligned32(t->w[run][k]), w1 = aligned32(t->w[run][k] + 8);
            for (int r = 0; r < n_row; r++) {
                const int8_t *at = v[r] + 32 * run + 4 * k;
                if (k == 0)
                    mul_four(&s[r][0], &s[r][1], w0, w1, at);
                else
                    mac_four(&s[r][0], &s[r][1], w0, w1, at);
            }
        }
        for (int r = 0; r < n_row; r++)
            for (int i = 0; i < 2; i++) {
                __m256i p = _mm256_madd_epi16(s[r][i], aligned32(t->s.scale[run] + 8 * i));
                sum[r][i] = _mm256_add_epi32(sum[r][i], p);
            }
    }
    for (int r = 0; r < n_row; r++) end_block(&t->s, &x[r], b, sum[r], acc[r]);
}

static FORCED void start(const qgemm *g, q4k_row *x) {
    for (uint32_t i = 0; i < g->n_row; i++) {
        uint32_t r = g->row0 + i;
        lg_qrows q = lg_qrows_at(g->x, g->row_idx ? g->row_idx[r] : r);
        x[i] = (q4k_row){q.v8, q.sum, q.d};
    }
}

static void run_many(const qgemm *g, uint32_t panel0, uint32_t n_panel) {
    q4k_wide t;
    q4k_row x[QG_ROW];
    _Alignas(32) q4k_acc acc[QG_ROW];
    start(g, x);
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        const uint8_t *group = qgemm_panel(g, p);
        memset(acc, 0, g->n_row * sizeof *acc);
        for (size_t b = 0; b < g->w->n_in / 256; b++, group += g->group_bytes) {
            qahead ahead = qgemm_ahead(group, g->group_bytes, g->n_row, TILE, 8);
            unpack(group, &t);
            for (uint32_t r = 0, n; r < g->n_row; r += n) {
                n = qgemm_take(g->n_row - r, TILE);
                switch (n) {
                case 1: add_rows(&t, x + r, b, 1, &ahead, acc + r); break;
                case 2: add_rows(&t, x + r, b, 2, &ahead, acc + r); break;
                case 3: add_rows(&t, x + r, b, 3, &ahead, acc + r); break;
                case 4: add_rows(&t, x + r, b, 4, &ahead, acc + r); break;
                case 5: add_rows(&t, x + r, b, 5, &ahead, acc + r); break;
                default: add_rows(&t, x + r, b, TILE, &ahead, acc + r); break;
                }
            }
        }
        qgemm_store(g, p, acc);
    }
}

/* ---- few rows ---- */

/* Runs 2p and 2p + 1 of block b from packed nibbles, n_row rows, eight channels from 8 i. */
static FORCED void add_nibbles(const uint8_t *group, const q4k_scales *t, int p, int i,
                               const q4k_row *x, size_t b, const int n_row, __m256i (*sum)[2]) {
    __m256i s[FEW][2];
    const uint8_t *nib = group + 256 + 512 * p + 32 * i;
    const int8_t *v[FEW];
    for (int r = 0; r < n_row; r++) {
        v[r] = x[r].v + 256 * b + 64 * p;
        __asm__("" : "+r"(v[r])); /* or gcc keeps the address of every load */
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
        if (k % 2 == i) ask(nib + 64 * k, n_row);
        __m256i w = load32(nib + 64 * k), lo = low4(w), hi = high4(w);
        for (int r = 0; r < n_row; r++) {
            const int8_t *at = v[r] + 4 * k;
            if (k == 0) {
                s[r][0] = _mm256_maddubs_epi16(lo, x4(at));
                s[r][1] = _mm256_maddubs_epi16(hi, x4(at + 32));
            } else {
                mac_two(&s[r][0], &s[r][1], lo, hi, at, at + 32);
            }
        }
    }
    for (int r = 0; r < n_row; r++)
        for (int h = 0; h < 2; h++) {
            __m256i y = _mm256_madd_epi16(s[r][h], aligned32(t->scale[2 * p + h] + 8 * i));
            sum[r][i] = _mm256_add_epi32(sum[r][i], y);
        }
}

/* The same of one or two rows and all channels. */
static FORCED void add_nibbles_16(const uint8_t *group, const q4k_scales *t, int p,
                                  const q4k_row *x, size_t b, const int n_row,
                                  __m256i (*sum)[2]) {
    __m256i s[2][2][2];
    const uint8_t *nib = group + 256 + 512 * p;
    const int8_t *v[2];
    for (int r = 0; r < n_row; r++) v[r] = x[r].v + 256 * b + 64 * p;
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
        ask(nib + 64 * k, n_row);
        __m256i w0 = load32(nib + 64 * k), w1 = load32(nib + 64 * k + 32);
        for (int h = 0; h < 2; h++) {
            __m256i a = h ? high4(w0) : low4(w0), c = h ? high4(w1) : low4(w1);
            for (int r = 0; r < n_row; r++) {
                const int8_t *at = v[r] + 32 * h + 4 * k;
                if (k == 0)
                    mul_four(&s[r][h][0], &s[r][h][1], a, c, at);
                else
                    mac_four(&s[r][h][0], &s[r][h][1], a, c, at);
            }
        }
    }
    for (int r = 0; r < n_row; r++)
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 2; i++) {
                const int16_t(*scale)[2] = t->scale[2 * p + h] + 8 * i;
                __m256i y = _mm256_madd_epi16(s[r][h][i], aligned32(scale));
                sum[r][i] = _mm256_add_epi32(sum[r][i], y);
            }
}

static FORCED void run_few(const qgemm *g, uint32_t panel0, uint32_t n_panel, const int n_row) {
    q4k_scales t;
    q4k_row x[FEW];
    _Alignas(32) q4k_acc acc[FEW];
    start(g, x);
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        const uint8_t *group = qgemm_panel(g, p);
        memset(acc, 0, sizeof acc);
        for (size_t b = 0; b < g->w->n_in / 256; b++, group += g->group_bytes) {
            __m256i sum[FEW][2];
            for (int r = 0; r < n_row; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
            for (int i = 0; i < 4; i++) ask(group + 64 * i, n_row);
            read_scales(group, &t);
#pragma GCC unroll 1
            for (int pair = 0; pair < 4; pair++)
                if (n_row <= 2) {
                    add_nibbles_16(group, &t, pair, x, b, n_row, sum);
                } else {
                    for (int i = 0; i < 2; i++)
                        add_nibbles(group, &t, pair, i, x, b, n_row, sum);
                }
            for (int r = 0; r < n_row; r++) end_block(&t, &x[r], b, sum[r], acc[r]);
        }
        qgemm_store(g, p, acc);
    }
}

void lg_qgemm_avx2_q4k(const qgemm *g, uint32_t panel0, uint32_t n_panel) {
    switch (g->n_row) {
    case 1: run_few(g, panel0, n_panel, 1); break;
    case 2: run_few(g, panel0, n_panel, 2); break;
    case 3: run_few(g, panel0, n_panel, 3); break;
    case 4: run_few(g, panel0, n_panel, 4); break;
    default: run_many(g, panel0, n_panel); break;
    }
}
