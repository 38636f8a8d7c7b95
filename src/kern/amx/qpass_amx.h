/* qpass_amx.h - what the integer products share: a pass over some rows and input channels, and its rows in tile order.
 *
 * A call is cut into passes of QA_ROW rows and as many input channels as fit QA_X bytes; between passes over k the float sums wait
 * in y.  Rows form groups of equal height, at most QA_TILE.  Test: tests/unit/test_qgemm.c */
#ifndef LG_KERN_AMX_QPASS_AMX_H
#define LG_KERN_AMX_QPASS_AMX_H

#include "kern/amx/tile_amx.h"
#include "kern/kern.h"

#include <immintrin.h>

#define QA_ROW  128    /* rows of a pass */
#define QA_TILE 16     /* rows of a tile at most */
#define QA_X    131072 /* bytes of rows in tile order */

enum { TILE_BYTES = QA_TILE * 64 };

/* Rows of a pass.  v: [256 k][group][64 k] tiles of 16 lines; the others [block of 256 or 32][row].  pair: sums of 32 (Q2_K: of 16),
 * two by two; of Q3_K [0] is offset x sum of all.  sum32: sums of 32.  Some lines past the last row are read, whole tiles of d32 and
 * sum32. */
typedef struct xtile {
    _Alignas(64) int8_t v[QA_X];
    union {
        struct {
            float d[QA_X / 256 + QA_TILE];
            int32_t pair[QA_X / 256 + QA_TILE][8];
        };
        struct {
            float d32[QA_X / 32 + QA_TILE], sum32[QA_X / 32 + QA_TILE];
        };
    };
} xtile;

/* One call and its current pass. */
typedef struct pass {
    const lg_mat *w;
    const lg_qrows *x;
    const uint32_t *row_idx;
    uint32_t row0, n_row;   /* rows of the pass */
    uint32_t n_group, tall; /* they are in groups of `tall` rows */
    uint32_t k0, n_k;
    float *y; /* of row row0 */
    size_t ld_y, group_bytes, panel_bytes;
    uint32_t panel0, n_panel;
} pass;

INLINE __m512i load64(const void *p) {
    return _mm512_loadu_si512(p);
}

INLINE void store64(void *p, __m512i v) {
    _mm512_store_si512(p, v);
}

INLINE __m512i bytes64(int v) {
    return _mm512_set1_epi8((char)v);
}

INLINE const int8_t *x_tile(const pass *g, const xtile *x, uint32_t k64, uint32_t group) {
    return x->v + ((size_t)(k64 / 4 * g->n_group + group) * 4 + k64 % 4) * TILE_BYTES;
}

/* The group of 16 blocks `b` of panel p, both counted from the start of the pass; NULL past the last panel. */
INLINE const uint8_t *weight_group(const pass *g, uint32_t p, uint32_t b) {
    if (p >= g->n_panel) return NULL;
    size_t first = g->k0 / lg_dtype_block(g->w->type);
    return (const uint8_t *)g->w->panel + (g->panel0 + p) * g->panel_bytes +
           (first + b) * g->group_bytes;
}

/* Which channels of panel p exist. */
INLINE __mmask16 panel_channels(const pass *g, uint32_t p) {
    uint32_t n = g->w->n_out - (g->panel0 + p) * LG_NR;
    return (__mmask16)(n < LG_NR ? (1u << n) - 1 : 0xffff);
}

INLINE float *panel_y(const pass *g, uint32_t p, uint32_t row) {
    return g->y + row * g->ld_y + (size_t)(g->panel0 + p) * LG_NR;
}

/* Products of one pass with blocks of 32 or 128 (qsmall_amx.c). */
void lg_qgemm_amx_small(const pass *g, const xtile *x);

#endif
