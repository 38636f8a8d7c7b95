/* product.h - whole products of row-major floats: y[n_row][n_col] = (y) + x[n_row][n_k] b[n_k][n_col], any sizes, k ascending.
 * Included after a v16 header.
 *
 * Columns go in runs of V16_PROD_V vectors: a broadcast element of x then serves them all, so that additions are the limit
 * and not loads.  The distances of rows of x that occur are constants in the code: a row is then an offset, not a register. */
#ifndef LG_KERN_SIMD_PRODUCT_H
#define LG_KERN_SIMD_PRODUCT_H

#include "kern/simd/tile.h"

#define PRODUCT_K   256 /* rows of b packed at a time */
#define PRODUCT_COL (16 * V16_PROD_V)
#define PRODUCT_FAR                                                                            \
    64 /* rows of b from which a long stride keeps it out of the first-level cache */

typedef struct product {
    const float *x, *b;
    float *y;
    size_t ld_x, ld_b, ld_y;
    uint32_t n_row, n_k, n_col;
    bool add;
} product;

/* Columns [c, c + n_ch) and k [k0, k0 + n_k) of b as whole rows of `width` in `pack`. */
static inline void product_pack(const product *p, uint32_t c, uint32_t n_ch, uint32_t k0,
                                uint32_t n_k, uint32_t width, float *pack) {
    const float *b = p->b + k0 * p->ld_b + c;
    for (uint32_t k = 0; k < n_k; k++)
        for (uint32_t i = 0; i < width; i += 16)
            v16_store(pack + (size_t)k * width + i,
                      n_ch - i >= 16 ? v16_load(b + k * p->ld_b + i)
                                     : v16_load_n(b + k * p->ld_b + i, n_ch - i));
}

/* n_row rows of a product that has PRODUCT_COL columns. */
INLINE void product_tile(const product *p, const size_t ld_x, const int n_row) {
    v16 acc[V16_TILE_R][V16_PROD_V], w[V16_PROD_V];
    const float *x = p->x, *b = p->b;
    float *y = p->y;
    const size_t ld_b = p->ld_b, ld_y = p->ld_y, n_k = p->n_k;
    TILE_EACH for (int r = 0; r < n_row; r++) TILE_EACH for (int v = 0; v < V16_PROD_V; v++)
        acc[r][v] = p->add ? v16_load(y + (size_t)r * ld_y + 16 * v) : v16_set(0.0f);
    _Pragma("GCC unroll 4") for (size_t k = 0; k < n_k; k++, b += ld_b) {
        TILE_EACH for (int v = 0; v < V16_PROD_V; v++) w[v] = v16_load(b + 16 * v);
        TILE_EACH for (int r = 0; r < n_row; r++) {
            v16 xr = v16_set(x[(size_t)r * ld_x + k]);
            TILE_EACH for (int v = 0; v < V16_PROD_V; v++) acc[r][v] =
                v16_fma(xr, w[v], acc[r][v]);
        }
    }
    TILE_EACH for (int r = 0; r < n_row; r++) TILE_EACH for (int v = 0; v < V16_PROD_V; v++)
        v16_store(y + (size_t)r * ld_y + 16 * v, acc[r][v]);
}

INLINE void product_tile_ld(const product *p, const int n_row) {
    if (p->ld_x == 32) {
        product_tile(p, 32, n_row);
    } else if (p->ld_x == 128) {
        product_tile(p, 128, n_row);
    } else {
        product_tile(p, p->ld_x, n_row);
    }
}

/* The rows of the next tile of n_left: a height for which there is code. */
static inline uint32_t product_take(uint32_t n_left) {
    static const uint32_t height[] = {12, 8, 6, 4, 2, 1};
    if (n_left == 8 && V16_TILE_R < 8)
        return 4; /* two rows alone do not keep enough sums in flight */
    for (size_t i = 0; i < sizeof height / sizeof *height; i++)
        if (height[i] <= V16_TILE_R && height[i] <= n_left) return height[i];
    return 0;
}

/* All rows of a product that has PRODUCT_COL columns. */
static inline void product_columns(product p) {
    for (uint32_t n_left = p.n_row, n; n_left > 0; n_left -= n) {
        n = product_take(n_left);
        switch (n) {
#if V16_TILE_R > 6
        case 12: product_tile_ld(&p, 12); break;
        case 8: product_tile_ld(&p, 8); break;
#endif
        case 6: product_tile_ld(&p, 6); break;
        case 4: product_tile_ld(&p, 4); break;
        case 2: product_tile_ld(&p, 2); break;
        default: product_tile_ld(&p, 1); break;
        }
        p.x += n * p.ld_x;
        p.y += n * p.ld_y;
    }
}

/* All rows, the n_ch columns (1 .. 16) from c of a piece of k that lies in `pack`. */
static inline void product_rest(const product *p, uint32_t c, uint32_t n_ch, uint32_t k0,
                                uint32_t n_k, const float *pack) {
    tile t = {.b = pack, .ld_b = 16, .n_k = n_k, .n_ch = n_ch, .add = p->add || k0 > 0};
    for (uint32_t r0 = 0, n; r0 < p->n_row; r0 += n) {
        n = tile_take(p->n_row - r0);
        for (uint32_t r = 0; r < n; r++) {
            t.x[r] = p->x + (r0 + r) * p->ld_x + k0;
            t.y[r] = p->y + (r0 + r) * p->ld_y + c;
        }
        tile_run(&t, n);
    }
}

/* b is packed when many rows use it and it lies far apart, or when its rows end early. */
static inline void product_run(const product *p) {
    _Alignas(64) float pack[PRODUCT_K * PRODUCT_COL];
    for (uint32_t c = 0, width; c < p->n_col; c += width) {
        bool whole = p->n_col - c >= PRODUCT_COL;
        width = whole ? PRODUCT_COL : p->n_col - c < 16 ? p->n_col - c : 16;
        for (uint32_t k0 = 0, n_k; k0 < p->n_k || k0 == 0; k0 += PRODUCT_K) {
            n_k = p->n_k - k0 < PRODUCT_K ? p->n_k - k0 : PRODUCT_K;
            if (!whole) {
                product_pack(p, c, width, k0, n_k, 16, pack);
                product_rest(p, c, width, k0, n_k, pack);
                continue;
            }
            product part = *p;
            part.x += k0;
            part.y += c;
            part.b += k0 * p->ld_b + c;
            part.n_k = n_k;
            part.add = p->add || k0 > 0;
            if (p->n_row > V16_TILE_R && n_k > PRODUCT_FAR && p->ld_b > PRODUCT_COL) {
                product_pack(p, c, width, k0, n_k, PRODUCT_COL, pack);
                part.b = pack;
                part.ld_b = PRODUCT_COL;
            }
            product_columns(part);
        }
    }
}

#endif
