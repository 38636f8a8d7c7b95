/* gemm.h - matrix product from packed panels over v16; contract: lg_kern.gemm.  Included after a v16 header.
 *
 * Panels are walked in their stored type, the sums of some rows and panels in registers.  E4M3 (with many rows) and block
 * types are slow to widen: a piece of a panel becomes float once, for all row tiles, and between pieces the sums wait in y. */
#ifndef LG_KERN_SIMD_GEMM_H
#define LG_KERN_SIMD_GEMM_H

#include "kern/dequant.h"
#include "kern/simd/tile.h"

#define GEMM_GROUP 6     /* rows whose sums are kept in registers while a panel is streamed */
#define GEMM_X     98304 /* floats of the rows of a block: 384 KiB of the second-level cache */
#define GEMM_K     256 /* input channels widened at a time: a multiple of 128, and LG_MAX_BLOCK */
#define GEMM_ROW   96  /* rows that use them */
#define SCALE_K    128 /* side of an E4M3 scale block */

/* The arguments of one call. */
typedef struct gemm {
    const lg_mat *w;
    const float *x;
    size_t ld_x;
    const uint32_t *row_idx;
    float *y;
    size_t ld_y;
} gemm;

INLINE const float *gemm_x(const gemm *g, uint32_t r) {
    return g->x + (g->row_idx ? g->row_idx[r] : r) * g->ld_x;
}

/* Weights k of the 16 channels of a panel; E4M3 without scale and divided by 256. */
INLINE v16 gemm_weights(const lg_dtype type, const void *panel, size_t k) {
    if (type == LG_F32) return v16_load((const float *)panel + k * LG_NR);
    if (type == LG_BF16) return v16_load_bf16((const uint16_t *)panel + k * LG_NR);
    if (type == LG_F16) return v16_load_f16((const uint16_t *)panel + k * LG_NR);
    return v16_load_e4m3_256th((const uint8_t *)panel + k * LG_NR);
}

static inline const void *gemm_panel(const lg_mat *w, uint32_t panel) {
    return (const uint8_t *)w->panel + panel * lg_dtype_panel_bytes(w->type, w->n_in);
}

/* 256 times the scales of a panel at input channel k.  The factors of 256 are exact, so that the product is rounded once, as
 * float(element) * scale is. */
INLINE v16 gemm_scale(const lg_mat *w, uint32_t panel, uint32_t k) {
    size_t n_block = (w->n_in + SCALE_K - 1) / SCALE_K;
    if (w->scale_row) return v16_mul(v16_set(256.0f), v16_load(lg_mat_row_scales(w, panel, k)));
    return v16_set(256.0f * w->scale[(size_t)panel * LG_NR / SCALE_K * n_block + k / SCALE_K]);
}

static inline uint32_t gemm_n_ch(const lg_mat *w, uint32_t panel) {
    uint32_t left = w->n_out - panel * LG_NR;
    return left < LG_NR ? left : LG_NR;
}

/* n_row rows from row0 times n_p panels from panel0, all in registers. */
INLINE void gemm_stream(const gemm *g, const lg_dtype type, uint32_t panel0, const int n_p,
                        uint32_t row0, const int n_row) {
    const lg_mat *w = g->w;
    const void *panel[V16_P1];
    const float *x[V16_TILE_R];
    v16 acc[V16_TILE_R][V16_P1], scale[V16_P1];
    for (int p = 0; p < n_p; p++) panel[p] = gemm_panel(w, panel0 + (uint32_t)p);
    for (int r = 0; r < n_row; r++) x[r] = gemm_x(g, row0 + (uint32_t)r);
    for (int r = 0; r < n_row; r++)
        for (int p = 0; p < n_p; p++) acc[r][p] = v16_set(0.0f);
    for (uint32_t k0 = 0; k0 < w->n_in;) {
        uint32_t k1 = type == LG_E4M3 && w->n_in - k0 > SCALE_K ? k0 + SCALE_K : w->n_in;
        for (int p = 0; p < n_p && type == LG_E4M3; p++)
            scale[p] = gemm_scale(w, panel0 + (uint32_t)p, k0);
        for (size_t k = k0; k < k1; k++) {
            for (int p = 0; p < n_p; p++) {
                v16 v = gemm_weights(type, panel[p], k);
                if (type == LG_E4M3) v = v16_mul(v, scale[p]);
                for (int r = 0; r < n_row; r++)
                    acc[r][p] = v16_fma(v16_set(x[r][k]), v, acc[r][p]);
            }
        }
        k0 = k1;
    }
    for (int r = 0; r < n_row; r++)
        for (int p = 0; p < n_p; p++)
            v16_store_n(g->y + (row0 + (uint32_t)r) * g->ld_y + (panel0 + (uint32_t)p) * LG_NR,
                        acc[r][p], gemm_n_ch(w, panel0 + (uint32_t)p));
}

/* n_row rows, panels n_p at a time and the rest one by one. */
INLINE void gemm_few(const gemm *g, const lg_dtype type, uint32_t panel0, uint32_t n_panel,
                     const int n_p, const int n_row) {
    uint32_t end = panel0 + n_panel, p = panel0;
    for (; end - p >= (uint32_t)n_p; p += (uint32_t)n_p) gemm_stream(g, type, p, n_p, 0, n_row);
    for (; p < end; p++) gemm_stream(g, type, p, 1, 0, n_row);
}

/* Input channels [k0, k0 + n_k) of a panel of E4M3 or blocks as floats in `wide`. */
static inline void gemm_widen(const lg_mat *w, uint32_t panel, uint32_t k0, uint32_t n_k,
                              float *wide) {
    const void *p = gemm_panel(w, panel);
    v16 scale = v16_set(1.0f);
    if (lg_dtype_is_block(w->type)) {
        lg_dequant_mat(w, panel, k0, n_k, wide);
        return;
    }
    for (uint32_t k = 0; k < n_k; k++) {
        if (k % SCALE_K == 0) scale = gemm_scale(w, panel, k0 + k);
        v16_store(wide + (size_t)k * LG_NR, v16_mul(gemm_weights(LG_E4M3, p, k0 + k), scale));
    }
}

/* All tiles of rows [row0, row0 + n_row) against one widened block. */
static inline void gemm_tiles(const gemm *g, tile *t, uint32_t channel0, uint32_t k0,
                              uint32_t row0, uint32_t n_row) {
    for (uint32_t r0 = row0, end = row0 + n_row; r0 < end;) {
        uint32_t n = tile_take(end - r0);
        for (uint32_t r = 0; r < n; r++) {
            t->x[r] = gemm_x(g, r0 + r) + k0;
            t->y[r] = g->y + (r0 + r) * g->ld_y + channel0;
        }
        tile_run(t, n);
        r0 += n;
    }
}

static inline void gemm_widened(const gemm *g, uint32_t panel0, uint32_t n_panel,
                                uint32_t n_row) {
    _Alignas(64) float wide[GEMM_K * LG_NR];
    const lg_mat *w = g->w;
    for (uint32_t row0 = 0; row0 < n_row; row0 += GEMM_ROW) {
        uint32_t n = n_row - row0 < GEMM_ROW ? n_row - row0 : GEMM_ROW;
        for (uint32_t k0 = 0; k0 < w->n_in || k0 == 0; k0 += GEMM_K) {
            uint32_t n_k = w->n_in - k0 < GEMM_K ? w->n_in - k0 : GEMM_K;
            for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
                tile t = {.b = wide, .ld_b = LG_NR, .n_k = n_k, .n_ch = gemm_n_ch(w, p)};
                t.add = k0 > 0;
                gemm_widen(w, p, k0, n_k, wide);
                gemm_tiles(g, &t, p * LG_NR, k0, row0, n);
            }
        }
    }
}

/* n_p panels from `panel` for rows [row0, row0 + n_row), in groups of GEMM_GROUP. */
INLINE void gemm_groups_of(const gemm *g, const lg_dtype type, uint32_t panel, const int n_p,
                           uint32_t row0, uint32_t n_row) {
    for (uint32_t r0 = row0, end = row0 + n_row; r0 < end;) {
        uint32_t n_group = (end - r0 + GEMM_GROUP - 1) / GEMM_GROUP;
        uint32_t n = (end - r0 + n_group - 1) / n_group;
        switch (n) {
        case 1: gemm_stream(g, type, panel, n_p, r0, 1); break;
        case 2: gemm_stream(g, type, panel, n_p, r0, 2); break;
        case 3: gemm_stream(g, type, panel, n_p, r0, 3); break;
        case 4: gemm_stream(g, type, panel, n_p, r0, 4); break;
        case 5: gemm_stream(g, type, panel, n_p, r0, 5); break;
        default: gemm_stream(g, type, panel, n_p, r0, GEMM_GROUP); break;
        }
        r0 += n;
    }
}

/* Rows in blocks whose inputs stay in the second-level cache while all panels pass. */
INLINE void gemm_groups(const gemm *g, const lg_dtype type, uint32_t panel0, uint32_t n_panel,
                        uint32_t n_row) {
    uint32_t n_fit = GEMM_X / (g->w->n_in + 1) / GEMM_GROUP * GEMM_GROUP,
             end = panel0 + n_panel;
    uint32_t block = n_fit < 4 * GEMM_GROUP ? 4 * GEMM_GROUP : n_fit;
    for (uint32_t row0 = 0; row0 < n_row; row0 += block) {
        uint32_t n = n_row - row0 < block ? n_row - row0 : block, p = panel0;
        for (; end - p >= V16_P3; p += V16_P3) gemm_groups_of(g, type, p, V16_P3, row0, n);
        for (; p < end && V16_P3 > 1; p++) gemm_groups_of(g, type, p, 1, row0, n);
    }
}

INLINE void gemm_typed(const gemm *g, const lg_dtype type, uint32_t panel0, uint32_t n_panel,
                       uint32_t n_row) {
    if (n_row == 1) {
        gemm_few(g, type, panel0, n_panel, V16_P1, 1);
    } else if (n_row == 2) {
        gemm_few(g, type, panel0, n_panel, V16_P2, 2);
    } else if (n_row == 3) {
        gemm_few(g, type, panel0, n_panel, V16_P2, 3);
    } else if (type == LG_E4M3 && n_row > GEMM_GROUP) {
        gemm_widened(g, panel0, n_panel, n_row);
    } else {
        gemm_groups(g, type, panel0, n_panel, n_row);
    }
}

INLINE void gemm_run(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const float *x,
                     size_t ld_x, const uint32_t *row_idx, uint32_t n_row, float *y,
                     size_t ld_y) {
    gemm g = {.w = w, .x = x, .ld_x = ld_x, .row_idx = row_idx, .y = y, .ld_y = ld_y};
    switch (w->type) {
    case LG_F32: gemm_typed(&g, LG_F32, panel0, n_panel, n_row); break;
    case LG_BF16: gemm_typed(&g, LG_BF16, panel0, n_panel, n_row); break;
    case LG_F16: gemm_typed(&g, LG_F16, panel0, n_panel, n_row); break;
    case LG_E4M3: gemm_typed(&g, LG_E4M3, panel0, n_panel, n_row); break;
    default: gemm_widened(&g, panel0, n_panel, n_row); break;
    }
}

#endif
