/* attn.h - one page of attention over v16; contract and formulas: lg_attn_arg in kern.h.  Included after a v16 header.
 *
 * Query rows are taken in groups.  Scores: lanes over positions of the transposed keys.  Values: lanes over the head width.
 * Rows of a register tile share the positions that all of them see; each finishes its own. */
#ifndef LG_KERN_SIMD_ATTN_H
#define LG_KERN_SIMD_ATTN_H

#include "kern/kern.h"
#include "kern/simd/row.h"
#include "kern/simd/tile.h"

#define ATTN_GROUP (V16_TILE_R * 8) /* query rows of a group */
#define ATTN_SUM   8                /* rows whose weights are summed side by side */

/* The rows of a group that see anything of the page. */
typedef struct attn_group {
    uint32_t n_row, n_most; /* rows; the most positions that one of them sees */
    uint32_t row[ATTN_GROUP], n_see[ATTN_GROUP];
    float l_b[ATTN_GROUP];
    float c[ATTN_GROUP],
        c_b[ATTN_GROUP]; /* factors of what was merged before and of this page */
    _Alignas(64) float p[ATTN_GROUP][LG_PAGE_TOK]; /* scores, then weights; 0 where not seen */
} attn_group;

/* Fill the group from query row `row` on.  Returns the first row that did not fit. */
static inline uint32_t attn_collect(const lg_attn_arg *a, uint32_t row, attn_group *g) {
    g->n_row = g->n_most = 0;
    for (; row < a->n_q && g->n_row < ATTN_GROUP; row++) {
        uint32_t n = a->n_see[row];
        if (n == 0) continue;
        g->row[g->n_row] = row;
        g->n_see[g->n_row++] = n;
        if (n > g->n_most) g->n_most = n;
    }
    return row;
}

/* Rows of 16 columns of b, `ld_b` apart, in `pack`: n_ch columns exist. */
static inline void attn_pack(const float *b, size_t ld_b, uint32_t n_k, uint32_t n_ch,
                             float *pack) {
    for (size_t k = 0; k < n_k; k++) v16_store(pack + k * 16, v16_load_n(b + k * ld_b, n_ch));
}

static inline void attn_scores(const lg_attn_arg *a, attn_group *g) {
    _Alignas(64) float pack[TILE_PACK_K * 16];
    for (uint32_t j = 0; j < g->n_most; j += 16) {
        for (uint32_t k0 = 0; k0 < a->d; k0 += TILE_PACK_K) {
            tile t = {.ld_b = LG_PAGE_TOK, .n_ch = 16, .add = k0 > 0};
            t.n_k = a->d - k0 < TILE_PACK_K ? a->d - k0 : TILE_PACK_K;
            t.b = a->k_page + (size_t)k0 * LG_PAGE_TOK + j;
            if (g->n_row > 2 * V16_TILE_R) {
                attn_pack(t.b, LG_PAGE_TOK, t.n_k, 16, pack);
                t.b = pack;
                t.ld_b = 16;
            }
            for (uint32_t r0 = 0; r0 < g->n_row;) {
                uint32_t n = tile_take(g->n_row - r0);
                for (uint32_t r = 0; r < n; r++) {
                    t.x[r] = a->q + g->row[r0 + r] * a->ld_q + k0;
                    t.y[r] = &g->p[r0 + r][j];
                }
                tile_run(&t, n);
                r0 += n;
            }
        }
    }
}

/* Scale, maximum and exp of one row of scores.  Returns the maximum. */
static inline float attn_weights(float scale, uint32_t n, float *p) {
    v16 s = v16_set(scale), most = v16_set(-INFINITY);
    for (uint32_t j = 0; j < n; j += 16) {
        v16 v = v16_mul(s, v16_load(p + j));
        v16_store(p + j, v);
        most = v16_max(most, n - j >= 16 ? v : v16_pick_n(n - j, v, v16_set(-INFINITY)));
    }
    float m = v16_max_lane(most) + 0.0f;
    for (uint32_t j = 0; j < LG_PAGE_TOK; j += 16) {
        uint32_t n_left = j < n ? n - j : 0;
        v16 v = n_left ? v16_exp(v16_sub(v16_load(p + j), v16_set(m))) : v16_set(0.0f);
        v16_store(p + j, n_left >= 16 ? v : v16_pick_n(n_left, v, v16_set(0.0f)));
    }
    return m;
}

/* l_b of rows [r0, r0 + n): several sums side by side, each ascending (adding 0 changes none). */
static inline void attn_sums(attn_group *g, uint32_t r0, uint32_t n) {
    float sum[ATTN_SUM] = {0};
    for (uint32_t j = 0; j < g->n_most; j++)
        for (uint32_t r = 0; r < ATTN_SUM; r++) sum[r] += g->p[r0 + (r < n ? r : 0)][j];
    for (uint32_t r = 0; r < n; r++) g->l_b[r0 + r] = sum[r];
}

/* Weights of all rows, their sums, and the running maximum and sum of each. */
static inline void attn_softmax(const lg_attn_arg *a, attn_group *g) {
    float m_b[ATTN_GROUP];
    for (uint32_t r = 0; r < g->n_row; r++)
        m_b[r] = attn_weights(a->scale, g->n_see[r], g->p[r]);
    for (uint32_t r = 0; r < g->n_row; r += ATTN_SUM)
        attn_sums(g, r, g->n_row - r < ATTN_SUM ? g->n_row - r : ATTN_SUM);
    for (uint32_t r = 0; r < g->n_row; r++) {
        uint32_t row = g->row[r];
        float m = a->first || m_b[r] > a->m[row] ? m_b[r] : a->m[row];
        g->c[r] = a->first ? 0.0f : lg_expf(a->m[row] - m);
        g->c_b[r] = lg_expf(m_b[r] - m);
        a->l[row] = a->first ? g->l_b[r] : fmaf(g->l_b[r], g->c_b[r], a->l[row] * g->c[r]);
        a->m[row] = m;
    }
}

/* acc = a_b, or a_b c_b + acc c, for n_ch columns from c. */
static inline void attn_merge(const lg_attn_arg *a, const attn_group *g, uint32_t r, uint32_t c,
                              uint32_t n_ch, v16 a_b) {
    float *acc = a->acc + (size_t)g->row[r] * a->d + c;
    if (!a->first)
        a_b =
            v16_fma(a_b, v16_set(g->c_b[r]), v16_mul(v16_load_n(acc, n_ch), v16_set(g->c[r])));
    v16_store_n(acc, a_b, n_ch);
}

/* Values of columns [c, c + n_ch), given as packed rows, for the n rows from r0. */
static inline void attn_value_tile(const lg_attn_arg *a, const attn_group *g, uint32_t r0,
                                   uint32_t n, const float *v, uint32_t c, uint32_t n_ch) {
    _Alignas(64) float sum[V16_TILE_R][16];
    tile t = {.b = v, .ld_b = 16, .n_ch = 16, .n_k = LG_PAGE_TOK};
    for (uint32_t r = 0; r < n; r++) {
        t.x[r] = g->p[r0 + r];
        t.y[r] = sum[r];
        if (g->n_see[r0 + r] < t.n_k) t.n_k = g->n_see[r0 + r];
    }
    tile_run(&t, n);
    for (uint32_t r = 0; r < n; r++) {
        v16 s = v16_load(sum[r]);
        for (uint32_t j = t.n_k; j < g->n_see[r0 + r]; j++)
            s = v16_fma(v16_set(g->p[r0 + r][j]), v16_load(v + (size_t)j * 16), s);
        attn_merge(a, g, r0 + r, c, n_ch, s);
    }
}

static inline void attn_values(const lg_attn_arg *a, const attn_group *g) {
    _Alignas(64) float pack[LG_PAGE_TOK * 16];
    for (uint32_t c = 0; c < a->d; c += 16) {
        uint32_t n_ch = a->d - c < 16 ? a->d - c : 16;
        attn_pack(a->v_page + c, a->d, g->n_most, n_ch, pack);
        for (uint32_t r0 = 0; r0 < g->n_row;) {
            uint32_t n = tile_take(g->n_row - r0);
            attn_value_tile(a, g, r0, n, pack, c, n_ch);
            r0 += n;
        }
    }
}

static inline void attn_page(const lg_attn_arg *a) {
    attn_group g;
    for (uint32_t row = 0; row < a->n_q;) {
        row = attn_collect(a, row, &g);
        if (g.n_row == 0) continue;
        attn_scores(a, &g);
        attn_softmax(a, &g);
        attn_values(a, &g);
    }
}

#endif
