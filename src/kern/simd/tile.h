/* tile.h - the register tile of all products: y[r][0..16) = (y) + sum_k x[r][k] b[k][0..16), k ascending.
 * Included after a v16 header.  Rows are given by pointers, so that gathered rows need no copy. */
#ifndef LG_KERN_SIMD_TILE_H
#define LG_KERN_SIMD_TILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

/* One product: rows x[r] of n_k floats, b with ld_b floats between its rows, n_ch (1 .. 16) columns of y[r]; with `add`
 * the sums go on from y, else they start at +0. */
typedef struct tile {
    const float *x[V16_TILE_R];
    float *y[V16_TILE_R];
    const float *b;
    size_t ld_b;
    uint32_t n_k, n_ch;
    bool add;
} tile;

INLINE void tile_rows(const tile *t, const int n_row) {
    const float *b = t->b, *x[V16_TILE_R];
    const size_t ld_b = t->ld_b;
    v16 acc[V16_TILE_R];
    for (int r = 0; r < n_row; r++) x[r] = t->x[r];
    for (int r = 0; r < n_row; r++)
        acc[r] = t->add ? v16_load_n(t->y[r], t->n_ch) : v16_set(0.0f);
    for (size_t k = 0; k < t->n_k; k++) {
        v16 w = v16_load(b + k * ld_b);
        for (int r = 0; r < n_row; r++) acc[r] = v16_fma(v16_set(x[r][k]), w, acc[r]);
    }
    for (int r = 0; r < n_row; r++) v16_store_n(t->y[r], acc[r], t->n_ch);
}

/* n_row in 1 .. V16_TILE_R; b must be readable in whole rows of 16. */
static inline void tile_run(const tile *t, uint32_t n_row) {
    switch (n_row) {
    case 1: tile_rows(t, 1); break;
    case 2: tile_rows(t, 2); break;
    case 3: tile_rows(t, 3); break;
    case 4: tile_rows(t, 4); break;
    case 5: tile_rows(t, 5); break;
    case 6: tile_rows(t, 6); break;
#if V16_TILE_R > 6
    case 7: tile_rows(t, 7); break;
    case 8: tile_rows(t, 8); break;
    case 9: tile_rows(t, 9); break;
    case 10: tile_rows(t, 10); break;
    case 11: tile_rows(t, 11); break;
    case 12: tile_rows(t, 12); break;
#endif
    default: break;
    }
}

/* How many of n_left rows the next tile takes: tiles of nearly equal height keep enough sums in flight. */
static inline uint32_t tile_take(uint32_t n_left) {
    uint32_t n_tile = (n_left + V16_TILE_R - 1) / V16_TILE_R;
    return (n_left + n_tile - 1) / n_tile;
}

#define TILE_PACK_K 256 /* rows of b packed at a time */

/* A whole product of row-major operands: y[n_row][n_col] = (y) + x[n_row][n_k] b[n_k][n_col], any sizes. */
typedef struct product {
    const float *x, *b;
    float *y;
    size_t ld_x, ld_b, ld_y;
    uint32_t n_row, n_k, n_col;
    bool add;
} product;

/* Columns [c, c + n_ch) and k [k0, k0 + n_k) of b as whole rows of 16 in `pack`. */
static inline void product_pack(const product *p, uint32_t c, uint32_t n_ch, uint32_t k0,
                                uint32_t n_k, float *pack) {
    const float *b = p->b + k0 * p->ld_b + c;
    for (uint32_t k = 0; k < n_k; k++)
        v16_store(pack + (size_t)k * 16, v16_load_n(b + k * p->ld_b, n_ch));
}

/* b is packed when many rows use it (a long stride keeps it out of the first-level cache) or when its rows end early. */
static inline void product_run(const product *p) {
    _Alignas(64) float pack[TILE_PACK_K * 16];
    for (uint32_t c = 0; c < p->n_col; c += 16) {
        uint32_t n_ch = p->n_col - c < 16 ? p->n_col - c : 16;
        bool packed = n_ch < 16 || p->n_row > 2 * V16_TILE_R;
        for (uint32_t k0 = 0; k0 < p->n_k || k0 == 0; k0 += TILE_PACK_K) {
            uint32_t n_k = p->n_k - k0 < TILE_PACK_K ? p->n_k - k0 : TILE_PACK_K;
            tile t = {.b = p->b + k0 * p->ld_b + c, .ld_b = p->ld_b, .n_k = n_k, .n_ch = n_ch};
            t.add = p->add || k0 > 0;
            if (packed) {
                product_pack(p, c, n_ch, k0, n_k, pack);
                t.b = pack;
                t.ld_b = 16;
            }
            for (uint32_t r0 = 0; r0 < p->n_row;) {
                uint32_t n = tile_take(p->n_row - r0);
                for (uint32_t r = 0; r < n; r++) {
                    t.x[r] = p->x + (r0 + r) * p->ld_x + k0;
                    t.y[r] = p->y + (r0 + r) * p->ld_y + c;
                }
                tile_run(&t, n);
                r0 += n;
            }
        }
    }
}

#endif
