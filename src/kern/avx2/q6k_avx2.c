/* q6k_avx2.c - qgemm for Q6_K, in which most files keep the head and some down projections.
 *
 * Six-bit weights as bytes 0 .. 63, which are 32 too large.  A run of 16 is four vpmaddubsw, whose sum passes 16 bits, but without
 * the 32 it would not (8 products in a word: 32,512).  So the sum begins at -32 x the sum of the word's inputs, computed once a
 * call, and may wrap on its way: it ends right.  One vpmaddwd with the run's scale widens it.
 * One or two rows take the weights as they come from memory; for more a group is unpacked in the first-level cache once.
 * Test: tests/unit/test_qgemm.c; what else was tried: docs/EXPERIMENTS.md */
#include "kern/avx2/qrows_avx2.h"

#define TILE 6         /* rows */
#define FEW  2         /* rows up to which nothing is unpacked to memory */
#define SPAN (1 << 14) /* runs of all rows of a call whose beginnings are kept */

/* What the sums of a group of 16 blocks are scaled by. */
typedef struct q6k_scales {
    _Alignas(32) int16_t scale[16][LG_NR][2]; /* twice */
    _Alignas(32) float d[LG_NR];
} q6k_scales;

/* And its weights: [4 k][16 channels][4]. */
typedef struct q6k_wide {
    _Alignas(32) uint8_t w[64][LG_NR][4];
    q6k_scales s;
} q6k_wide;

/* A row of the call and its float sums. */
typedef struct q6k_row {
    const int8_t *v;
    const uint32_t *from; /* [run] two words: where the sums of a run begin */
    const float *d;
} q6k_row;

typedef float q6k_acc[LG_NR];

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
            for (int q = 0; q < 4; q++)
                store32(&t->w[32 * half + 8 * q][0][0] + 32 * i, v.w[q]);
        }
}

/* Where the sums of n runs begin: word 0 has the inputs 0, 1, 4, 5 ... of the 16, word 1 the others. */
static void begin_runs(const int8_t *v, uint32_t n, uint32_t *from) {
    const __m256i offset = bytes_of(32);
    for (uint32_t i = 0; i < n; i += 2) {
        __m256i s = _mm256_maddubs_epi16(offset, load32((const uint8_t *)v + 16 * i));
        s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4e));
        s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xb1));
        s = _mm256_sub_epi16(_mm256_setzero_si256(), s);
        from[i] = (uint32_t)_mm256_extract_epi32(s, 0);
        from[i + 1] = (uint32_t)_mm256_extract_epi32(s, 4);
    }
}

/* The rows of a call from block b on.  n_block blocks have their beginnings in `from`. */
static void start(const qgemm *g, uint32_t b, uint32_t n_block, q6k_row *x, uint32_t *from) {
    for (uint32_t i = 0; i < g->n_row; i++, from += 16 * n_block) {
        uint32_t r = g->row0 + i;
        lg_qrows q = lg_qrows_at(g->x, g->row_idx ? g->row_idx[r] : r);
        x[i] = (q6k_row){q.v8 + 256 * (size_t)b, from, q.d + b};
        begin_runs(x[i].v, 16 * n_block, from);
    }
}

/* The sums of block b of a row come to its float sums. */
INLINE void end_block(const q6k_scales *t, const q6k_row *x, size_t b, const __m256i *sum,
                      float *acc) {
    __m256 dx = _mm256_set1_ps(x->d[b]);
    for (int i = 0; i < 2; i++) {
        __m256 d = _mm256_mul_ps(_mm256_load_ps(t->d + 8 * i), dx);
        __m256 y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i]), d, _mm256_load_ps(acc + 8 * i));
        _mm256_store_ps(acc + 8 * i, y);
    }
}

/* ---- many rows ---- */

/* Block b of n_row rows. */
static FORCED void add_rows(const q6k_wide *t, const q6k_row *x, size_t b, const int n_row,
                            qahead *ahead, q6k_acc *acc) {
    __m256i sum[TILE][2];
    const int8_t *v[TILE];
    const uint32_t *from[TILE];
    for (int r = 0; r < n_row; r++) {
        v[r] = x[r].v + 256 * b;
        from[r] = x[r].from + 16 * b;
        sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    }
#pragma GCC unroll 1
    for (int run = 0; run < 16; run++) {
        __m256i s[TILE][2];
        qgemm_ask(ahead);
        for (int r = 0; r < n_row; r++)
            s[r][0] = s[r][1] = _mm256_set1_epi32((int)from[r][run]);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            __m256i w0 = aligned32(t->w[4 * run + k]), w1 = aligned32(t->w[4 * run + k] + 8);
            for (int r = 0; r < n_row; r++)
                mac_four(&s[r][0], &s[r][1], w0, w1, v[r] + 16 * run + 4 * k);
        }
        for (int r = 0; r < n_row; r++)
            for (int i = 0; i < 2; i++) {
                __m256i p = _mm256_madd_epi16(s[r][i], aligned32(t->s.scale[run] + 8 * i));
                sum[r][i] = _mm256_add_epi32(sum[r][i], p);
            }
    }
    for (int r = 0; r < n_row; r++) end_block(&t->s, &x[r], b, sum[r], acc[r]);
}

static void add_panel_many(const qgemm *g, const uint8_t *group, const q6k_row *x,
                           uint32_t n_block, q6k_acc *acc) {
    q6k_wide t;
    for (size_t b = 0; b < n_block; b++, group += g->group_bytes) {
        qahead ahead = qgemm_ahead(group, g->group_bytes, g->n_row, TILE, 16);
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
}

/* ---- few rows ---- */

/* Run j of each 32 input channels of half a block, eight output channels from 8 i. */
static FORCED void add_packed(const uint8_t *group, const q6k_scales *t, int half, int j, int i,
                              const q6k_row *x, size_t b, const int n_row, __m256i (*sum)[2]) {
    __m256i s[FEW][4];
    int run = 8 * half + j;
    for (int r = 0; r < n_row; r++)
        for (int q = 0; q < 4; q++)
            s[r][q] = _mm256_set1_epi32((int)x[r].from[16 * b + (size_t)(run + 2 * q)]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        q6k_four w = unpack_four(group, half, 2 * (4 * j + k) + i);
        for (int r = 0; r < n_row; r++) {
            const int8_t *v = x[r].v + 256 * b + 16 * run + 4 * k;
            mac_two(&s[r][0], &s[r][1], w.w[0], w.w[1], v, v + 32);
            mac_two(&s[r][2], &s[r][3], w.w[2], w.w[3], v + 64, v + 96);
        }
    }
    for (int r = 0; r < n_row; r++)
        for (int q = 0; q < 4; q++) {
            __m256i p = _mm256_madd_epi16(s[r][q], aligned32(t->scale[run + 2 * q] + 8 * i));
            sum[r][i] = _mm256_add_epi32(sum[r][i], p);
        }
}

static FORCED void add_panel_few(const qgemm *g, const uint8_t *group, const q6k_row *x,
                                 uint32_t n_block, const int n_row, q6k_acc *acc) {
    q6k_scales t;
    for (size_t b = 0; b < n_block; b++, group += g->group_bytes) {
        __m256i sum[FEW][2];
        for (int r = 0; r < n_row; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
        read_scales(group + 3072, &t);
        for (int part = 0; part < 8; part++) {
            int half = part / 4, j = part / 2 % 2, i = part % 2;
            for (int n = 0; n < 8; n++) ask(group, 8 * part + n);
            add_packed(group, &t, half, j, i, x, b, n_row, sum);
        }
        for (int r = 0; r < n_row; r++) end_block(&t, &x[r], b, sum[r], acc[r]);
    }
}

void lg_qgemm_avx2_q6k(const qgemm *all, uint32_t panel0, uint32_t n_panel) {
    uint32_t from[SPAN];
    q6k_row x[QG_ROW];
    _Alignas(32) q6k_acc acc[QG_ROW];
    uint32_t n_block = all->w->n_in / 256, end = all->row0 + all->n_row;
    uint32_t span = n_block < SPAN / 16 ? n_block : SPAN / 16; /* blocks at a time */
    if (span == 0) span = 1;
    uint32_t most = SPAN / 16 / span < QG_ROW ? SPAN / 16 / span : QG_ROW;
    qgemm g = *all;
    for (; g.row0 < end; g.row0 += g.n_row) {
        g.n_row = qgemm_take(end - g.row0, most);
        for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
            const uint8_t *group = qgemm_panel(&g, p);
            memset(acc, 0, g.n_row * sizeof *acc);
            for (uint32_t b = 0, n; b < n_block; b += n, group += n * g.group_bytes) {
                n = n_block - b < span ? n_block - b : span;
                if (p == panel0 || span < n_block) start(&g, b, n, x, from);
                switch (g.n_row) {
                case 1: add_panel_few(&g, group, x, n, 1, acc); break;
                case 2: add_panel_few(&g, group, x, n, 2, acc); break;
                default: add_panel_many(&g, group, x, n, acc); break;
                }
            }
            qgemm_store(&g, p, acc);
        }
    }
}
