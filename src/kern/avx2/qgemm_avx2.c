/* qgemm_avx2.c - products of integer rows with blocks of all types but Q4_K and Q6_K (q4k_avx2.c, q6k_avx2.c).
 *
 * A group of 16 blocks, or eight of 32 elements, becomes 16-bit integers in the first-level cache (qunpack_avx2.h), then all rows pass over it, six
 * at a time with their sums in registers: one vpmaddwd and one vpaddd for 16 products.
 * Sums of up to QG_ROW rows wait in a buffer on the stack between blocks.  Test: tests/unit/test_qgemm.c */
#include "kern/avx2/avx2.h"
#include "kern/avx2/qrows_avx2.h"
#include "kern/avx2/qunpack_avx2.h"

#include "base/num.h"

/* Integer sums of n_row rows over n_k input channels of a group. */
static FORCED void dot_rows(const int16_t (*w)[LG_NR][2], const int n_k, const qrow *x,
                            const int n_row, __m256i (*sum)[2]) {
    const int16_t *v[QG_TILE];
    for (int r = 0; r < n_row; r++) v[r] = x[r].v16;
    for (int r = 0; r < n_row; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (int k = 0; k < n_k / 2; k++) {
        __m256i a = *(const __m256i *)(const void *)w[k];
        __m256i b = *(const __m256i *)(const void *)(w[k] + 8);
        for (int r = 0; r < n_row; r++) {
            __m256i xv = _mm256_set1_epi32((int)lg_num_load32(v[r] + 2 * k));
            mac_words(&sum[r][0], a, xv);
            mac_words(&sum[r][1], b, xv);
        }
    }
}

/* Add n_part blocks of n_k input channels to the sums of n_row rows.  min: input channels of a minimum, 0: there are none. */
static FORCED void add_rows(const qwide *q, const int n_k, uint32_t n_part, const int min,
                            const qrow *row, const int n_row) {
    qrow x[QG_TILE];
    for (int r = 0; r < n_row; r++) x[r] = row[r];
    for (uint32_t b = 0; b < n_part; b++) {
        __m256i sum[QG_TILE][2];
        dot_rows((const int16_t(*)[LG_NR][2])q->w + 16 * b, n_k, x, n_row, sum);
        for (int r = 0; r < n_row; r++) {
            qrow_add(&x[r], q->d[b], sum[r]);
            if (min && n_k == 32)
                qrow_sub(&x[r], q->m[b],
                         (__m256i[]){_mm256_set1_epi32(-x[r].sum[0]),
                                     _mm256_set1_epi32(-x[r].sum[0])});
            if (min && n_k == 256)
                qrow_sub_mins(&x[r], q->m[0], (const int16_t(*)[LG_NR][2])q->j,
                              min == 16 ? x[r].sum16 : x[r].sum, 128 / min);
            qrow_next(&x[r], n_k, 1);
        }
    }
}

typedef void unpack_fn(const uint8_t *group, qwide *q, int part);

/* n_k: elements of a row's group; n_unpack groups are one block of the weights. */
static FORCED void run_parts(const qgemm *g, uint32_t panel0, uint32_t n_panel,
                             unpack_fn *unpack, const int n_k, const uint32_t n_unpack,
                             const int min) {
    qwide q;
    qrow row[QG_ROW];
    float acc[QG_ROW][LG_NR];
    uint32_t n_block = g->w->n_in / (uint32_t)n_k, step = n_k == 32 ? QW_PART : 1;
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        const uint8_t *group = qgemm_panel(g, p);
        for (uint32_t i = 0; i < g->n_row; i++) qrow_start(g, i, &row[i], acc[i]);
        for (uint32_t b = 0; b < n_block; b += step) {
            uint32_t n_part = n_block - b < step ? n_block - b : step;
            for (uint32_t i = 0; i < n_part; i += n_unpack, group += g->group_bytes) {
                qgemm_prefetch(group, g->group_bytes);
                unpack(group, &q, (int)i);
            }
            for (uint32_t r = 0; r < g->n_row;) {
                uint32_t n = qgemm_take(g->n_row - r, QG_TILE);
                switch (n) {
                case 1: add_rows(&q, n_k, n_part, min, row + r, 1); break;
                case 2: add_rows(&q, n_k, n_part, min, row + r, 2); break;
                case 3: add_rows(&q, n_k, n_part, min, row + r, 3); break;
                case 4: add_rows(&q, n_k, n_part, min, row + r, 4); break;
                case 5: add_rows(&q, n_k, n_part, min, row + r, 5); break;
                default: add_rows(&q, n_k, n_part, min, row + r, QG_TILE); break;
                }
                r += n;
            }
            for (uint32_t i = 0; i < g->n_row; i++)
                qrow_next(&row[i], n_k * (int)n_part, (int)n_part);
        }
        qgemm_store(g, p, acc);
    }
}

static FORCED void run_type(const qgemm *g, uint32_t panel0, uint32_t n_panel,
                            unpack_fn *unpack, const int n_k, const int min) {
    run_parts(g, panel0, n_panel, unpack, n_k, 1, min);
}

static void run_rows(const qgemm *g, uint32_t p0, uint32_t n_p) {
    switch (g->w->type) {
    case LG_Q4_0: run_type(g, p0, n_p, unpack_q4_0, 32, 0); break;
    case LG_Q4_1: run_type(g, p0, n_p, unpack_q4_1, 32, 32); break;
    case LG_Q5_0: run_type(g, p0, n_p, unpack_q5_0, 32, 0); break;
    case LG_Q5_1: run_type(g, p0, n_p, unpack_q5_1, 32, 32); break;
    case LG_Q8_0: run_type(g, p0, n_p, unpack_q8_0, 32, 0); break;
    case LG_IQ4_NL: run_type(g, p0, n_p, unpack_iq4_nl, 32, 0); break;
    case LG_MXFP4: run_type(g, p0, n_p, unpack_mxfp4, 32, 0); break;
    case LG_Q2_K: run_type(g, p0, n_p, unpack_q2_k, 256, 16); break;
    case LG_Q3_K: run_type(g, p0, n_p, unpack_q3_k, 256, 0); break;
    case LG_Q4_K: lg_qgemm_avx2_q4k(g, p0, n_p); break;
    case LG_Q5_K: run_type(g, p0, n_p, unpack_q5_k, 256, 32); break;
    case LG_Q6_K: lg_qgemm_avx2_q6k(g, p0, n_p); break;
    case LG_IQ4_XS: run_type(g, p0, n_p, unpack_iq4_xs, 256, 0); break;
    case LG_I4_32: run_type(g, p0, n_p, unpack_i4_32, 32, 0); break;
    case LG_I4_128: run_parts(g, p0, n_p, unpack_i4_128, 32, 4, 0); break;
    case LG_I8_128: run_parts(g, p0, n_p, unpack_i8_128, 32, 4, 0); break;
    default: LG_ASSERT(lg_dtype_is_int(g->w->type)); break;
    }
}

void lg_qgemm_avx2(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const lg_qrows *x,
                   const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y) {
    LG_ASSERT(x->group == lg_dtype_row_group(w->type));
    for (uint32_t r = 0; r < n_row; r += QG_ROW) {
        qgemm g = {.w = w, .x = x, .row_idx = row_idx, .row0 = r, .y = y, .ld_y = ld_y};
        g.n_row = n_row - r < QG_ROW ? n_row - r : QG_ROW;
        g.group_bytes = LG_NR * lg_dtype_block_bytes(w->type);
        g.panel_bytes = lg_dtype_panel_bytes(w->type, w->n_in);
        run_rows(&g, panel0, n_panel);
    }
}
