/* tile.h - the register tile of all products: y[r][0..16) = (y) + sum_k x[r][k] b[k][0..16), k ascending.
 * Included after a v16 header.  Rows are given by pointers, so that gathered rows need no copy. */
#ifndef LG_KERN_SIMD_TILE_H
#define LG_KERN_SIMD_TILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

/* Loops over the registers of a tile are unrolled whole, or its sums are put into memory and taken out again. */
#define TILE_EACH _Pragma("GCC unroll 12")

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

#endif
