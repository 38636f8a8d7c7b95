/* attn.h - one page of attention over v16, and what is stored in it; contracts and formulas: kern.h.  Included after a v16
 * header.
 *
 * Consecutive query rows are taken in groups.  Scores: lanes over positions of the transposed keys.  Values: lanes over the head
 * width.  Both are tiles of rows and V16_ATTN_V vectors, sums in registers.  A few rows widen what they read on the way; for
 * many, columns of the page are widened once, into floats side by side.  Rows of a tile share the positions that all
 * of them see; each finishes its own.  Memory ahead (values, then the next page's keys) is asked for while a tile runs. */
#ifndef LG_KERN_SIMD_ATTN_H
#define LG_KERN_SIMD_ATTN_H

#include "base/num.h"
#include "kern/kern.h"
#include "kern/simd/row.h"
#include "kern/simd/tile.h"

#include <string.h>

#define ATTN_GROUP 128 /* query rows of a group */
#define ATTN_SUM   8   /* rows whose weights are summed side by side */
#define ATTN_COL   (16 * V16_ATTN_V)
#define ATTN_K     256 /* rows of keys widened at a time */

/* ---- tiles ---- */

/* What a tile multiplies its rows with: [n_k][ld] elements of ATTN_COL columns. */
typedef struct attn_b {
    lg_dtype type;
    const void *at;
    size_t ld;
    const uint16_t *key_scale; /* Q8_0 keys: [n_k / 32][LG_PAGE_TOK], of these columns */
    const float *value_scale;  /* Q8_0 values: [n_k] */
    const uint8_t *ahead;      /* asked for on the way, `step` bytes a row */
    size_t step;
} attn_b;

/* Rows x [][ld_x] times b; the sums begin at y [][LG_PAGE_TOK] with `add`, else at +0.  They end in y, or with `acc` are merged:
 * acc [][ld_acc] = the sums, or sums c_b + acc c. */
typedef struct attn_rows {
    const float *x;
    size_t ld_x;
    uint32_t n_k;
    bool add, first;
    float *y, *acc;
    size_t ld_acc;
    const float *c, *c_b;
} attn_rows;

/* 16 elements as floats; bytes of Q8_0 without their scale. */
INLINE v16 attn_load(const lg_dtype type, const void *p, size_t at) {
    if (type == LG_BF16) return v16_load_bf16((const uint16_t *)p + at);
    if (type == LG_F16) return v16_load_f16((const uint16_t *)p + at);
    if (type == LG_Q8_0) return v16_load_i8((const int8_t *)p + at);
    return v16_load((const float *)p + at);
}

/* Ask for memory at p, nearly `step` bytes of it, as far as the second-level cache: the first holds what is in work. */
INLINE void attn_fetch(const lg_dtype type, const uint8_t *p) {
    __builtin_prefetch(p, 0, 2);
    if (type == LG_F32) __builtin_prefetch(p + 64, 0, 2);
}

/* Row k of b, scaled. */
INLINE void attn_widen(const lg_dtype type, const attn_b *b, size_t k, const v16 *key_scale,
                       v16 *w) {
    for (int v = 0; v < V16_ATTN_V; v++) {
        w[v] = attn_load(type, b->at, k * b->ld + 16 * (size_t)v);
        if (type == LG_Q8_0)
            w[v] = v16_mul(w[v], b->key_scale ? key_scale[v] : v16_set(b->value_scale[k]));
    }
}

/* Scales of keys for rows k .. k + 31. */
INLINE void attn_key_scale(const lg_dtype type, const attn_b *b, size_t k, v16 *scale) {
    for (int v = 0; v < V16_ATTN_V; v++)
        scale[v] = type == LG_Q8_0 && b->key_scale
                       ? v16_load_f16(b->key_scale + k / 32 * LG_PAGE_TOK + 16 * v)
                       : v16_set(1.0f);
}

/* Sums v of row r, where they belong; i: their columns. */
INLINE void attn_put(const attn_rows *t, int r, int i, v16 v) {
    if (!t->acc) {
        v16_store(t->y + r * LG_PAGE_TOK + i, v);
        return;
    }
    float *acc = t->acc + (size_t)r * t->ld_acc + i;
    if (!t->first) v = v16_fma(v, v16_set(t->c_b[r]), v16_mul(v16_load(acc), v16_set(t->c[r])));
    v16_store(acc, v);
}

INLINE void attn_tile(const lg_dtype type, const attn_b *b, const attn_rows *t,
                      const size_t ld_x, const size_t n_k, const int n_row) {
    v16 acc[V16_TILE_R][V16_ATTN_V], w[V16_ATTN_V], scale[V16_ATTN_V];
    const float *x = t->x;
    const size_t step = b->step;
    const bool fetch = type != LG_F32 || step > 0;
    for (int r = 0; r < n_row; r++)
        for (int v = 0; v < V16_ATTN_V; v++)
            acc[r][v] = t->add ? v16_load(t->y + r * LG_PAGE_TOK + 16 * v) : v16_set(0.0f);
    const size_t block = type == LG_Q8_0 ? 32 : n_k; /* of one scale */
    for (size_t k0 = 0; k0 < n_k; k0 += block) {
        size_t end = k0 + block < n_k ? k0 + block : n_k;
        attn_key_scale(type, b, k0, scale);
        _Pragma("GCC unroll 4") for (size_t k = k0; k < end; k++) {
            if (fetch) attn_fetch(type, b->ahead + k * step);
            attn_widen(type, b, k, scale, w);
            for (int r = 0; r < n_row; r++) {
                v16 xr = v16_set(x[(size_t)r * ld_x + k]);
                for (int v = 0; v < V16_ATTN_V; v++) acc[r][v] = v16_fma(xr, w[v], acc[r][v]);
            }
        }
    }
    for (int r = 0; r < n_row; r++)
        for (int v = 0; v < V16_ATTN_V; v++) attn_put(t, r, 16 * v, acc[r][v]);
}

/* The distances and lengths that mostly occur are constants: a row is then an offset, not a register, and loops end as foreseen. */
INLINE void attn_tile_ld(const lg_dtype type, const attn_b *b, const attn_rows *t,
                         const int n_row) {
    if (t->ld_x == LG_PAGE_TOK && t->n_k == LG_PAGE_TOK) {
        attn_tile(type, b, t, LG_PAGE_TOK, LG_PAGE_TOK, n_row);
    } else if (t->ld_x == 256 && t->n_k == ATTN_K) {
        attn_tile(type, b, t, 256, ATTN_K, n_row);
    } else {
        attn_tile(type, b, t, t->ld_x, t->n_k, n_row);
    }
}

INLINE void attn_tile_rows(const lg_dtype type, const attn_b *b, const attn_rows *t,
                           uint32_t n_row) {
    switch (n_row) {
    case 1: attn_tile_ld(type, b, t, 1); break;
    case 2: attn_tile_ld(type, b, t, 2); break;
    case 3: attn_tile_ld(type, b, t, 3); break;
    case 4: attn_tile_ld(type, b, t, 4); break;
    case 6: attn_tile_ld(type, b, t, 6); break;
#if V16_TILE_R > 6
    case 8: attn_tile_ld(type, b, t, 8); break;
    case 12: attn_tile_ld(type, b, t, 12); break;
#endif
    default: break;
    }
}

static void attn_run(const attn_b *b, const attn_rows *t, uint32_t n_row) {
    switch (b->type) {
    case LG_BF16: attn_tile_rows(LG_BF16, b, t, n_row); break;
    case LG_F16: attn_tile_rows(LG_F16, b, t, n_row); break;
    case LG_Q8_0: attn_tile_rows(LG_Q8_0, b, t, n_row); break;
    default: attn_tile_rows(LG_F32, b, t, n_row); break;
    }
}

/* Rows that the next tile takes of n_left: a height for which attn_tile_rows has code. */
static inline uint32_t attn_take(uint32_t n_left) {
    uint32_t n = tile_take(n_left);
    return n >= 12 ? 12 : n >= 8 ? 8 : n >= 6 ? 6 : n >= 4 ? 4 : n;
}

/* Widen n_k rows of b; the columns from n_col on do not exist and become 0.  b then is these floats. */
INLINE void attn_pack_of(const lg_dtype type, const attn_b *b, uint32_t n_k, float *pack) {
    v16 w[V16_ATTN_V], scale[V16_ATTN_V];
    attn_key_scale(type, b, 0, scale);
    for (size_t k = 0; k < n_k; k++) {
        if (k % 32 == 0) attn_key_scale(type, b, k, scale);
        attn_fetch(type, b->ahead + k * b->step);
        attn_widen(type, b, k, scale, w);
        for (size_t v = 0; v < V16_ATTN_V; v++) v16_store(pack + k * ATTN_COL + 16 * v, w[v]);
    }
}

static inline size_t attn_bytes(lg_dtype type) {
    return type == LG_Q8_0 ? 1 : lg_dtype_bytes(type);
}

/* The same where only the first n_col columns exist. */
static inline void attn_pack_some(const attn_b *b, uint32_t n_k, uint32_t n_col, float *pack) {
    size_t bytes = attn_bytes(b->type);
    for (size_t k = 0; k < n_k; k++) {
        uint8_t row[ATTN_COL * sizeof(float)] = {0};
        memcpy(row, (const uint8_t *)b->at + k * b->ld * bytes, n_col * bytes);
        attn_b one = *b;
        one.at = row;
        one.ahead += k * b->step;
        if (b->value_scale) one.value_scale = b->value_scale + k;
        switch (b->type) {
        case LG_BF16: attn_pack_of(LG_BF16, &one, 1, pack + k * ATTN_COL); break;
        case LG_F16: attn_pack_of(LG_F16, &one, 1, pack + k * ATTN_COL); break;
        case LG_Q8_0: attn_pack_of(LG_Q8_0, &one, 1, pack + k * ATTN_COL); break;
        default: attn_pack_of(LG_F32, &one, 1, pack + k * ATTN_COL); break;
        }
    }
}

/* n_k rows of b, n_col of its columns, as floats in `pack`; b then says so. */
static inline void attn_pack(attn_b *b, uint32_t n_k, uint32_t n_col, float *pack) {
    if (n_col < ATTN_COL) {
        attn_pack_some(b, n_k, n_col, pack);
    } else {
        switch (b->type) {
        case LG_BF16: attn_pack_of(LG_BF16, b, n_k, pack); break;
        case LG_F16: attn_pack_of(LG_F16, b, n_k, pack); break;
        case LG_Q8_0: attn_pack_of(LG_Q8_0, b, n_k, pack); break;
        default: attn_pack_of(LG_F32, b, n_k, pack); break;
        }
    }
    *b = (attn_b){.type = LG_F32, .at = pack, .ld = ATTN_COL, .ahead = (const uint8_t *)pack};
}

/* Rows up to which a page is widened in registers. */
static inline uint32_t attn_n_widen(lg_dtype kv) {
    return kv == LG_Q8_0 ? V16_ATTN_Q8_R : V16_ATTN_R;
}

/* ---- a group of rows ---- */

typedef struct attn_group {
    uint32_t row0, n_row; /* rows that follow each other and see anything of the page */
    uint32_t n_most;      /* the most positions that one of them sees */
    float l_b[ATTN_GROUP];
    float c[ATTN_GROUP],
        c_b[ATTN_GROUP]; /* factors of what was merged before and of this page */
    _Alignas(64) float p[ATTN_GROUP][LG_PAGE_TOK]; /* scores, then weights; 0 where not seen */
} attn_group;

/* The next group from query row `row` on.  Returns the first row after it. */
static inline uint32_t attn_collect(const lg_attn_arg *a, uint32_t row, attn_group *g) {
    while (row < a->n_q && a->n_see[row] == 0) row++;
    g->row0 = row;
    g->n_row = g->n_most = 0;
    for (; row < a->n_q && g->n_row < ATTN_GROUP && a->n_see[row] > 0; row++, g->n_row++)
        if (a->n_see[row] > g->n_most) g->n_most = a->n_see[row];
    return row;
}

static inline void attn_scores(const lg_attn_arg *a, const lg_kv_part *at, attn_group *g) {
    _Alignas(64) float pack[ATTN_K * ATTN_COL];
    size_t bytes = attn_bytes(a->kv), half = lg_kv_bytes(a->kv, a->d) / 2;
    uint32_t n_widen = attn_n_widen(a->kv);
    size_t step = half * ATTN_COL / LG_PAGE_TOK / a->d; /* of the values for a row of keys */
    for (uint32_t j = 0; j < g->n_most; j += ATTN_COL) {
        for (uint32_t k0 = 0; k0 < a->d; k0 += ATTN_K) {
            attn_b b = {.type = a->kv,
                        .at = at->key + ((size_t)k0 * LG_PAGE_TOK + j) * bytes,
                        .ld = LG_PAGE_TOK,
                        .key_scale = at->key_scale,
                        .ahead = at->value + half / LG_PAGE_TOK * j + step * k0,
                        .step = step};
            if (b.key_scale) b.key_scale += k0 / 32 * LG_PAGE_TOK + j;
            attn_rows t = {.ld_x = a->ld_q, .add = k0 > 0};
            t.n_k = a->d - k0 < ATTN_K ? a->d - k0 : ATTN_K;
            if (g->n_row > n_widen) attn_pack(&b, t.n_k, ATTN_COL, pack);
            for (uint32_t r = 0, n; r < g->n_row; r += n) {
                n = attn_take(g->n_row - r);
                t.x = a->q + (g->row0 + r) * a->ld_q + k0;
                t.y = &g->p[r][j];
                attn_run(&b, &t, n);
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

/* exp(m - most); the common case costs nothing: lg_expf(0) is 1. */
static inline float attn_factor(float m, float most) {
    return m == most ? 1.0f : lg_expf(m - most);
}

/* Weights of all rows, their sums, and the running maximum and sum of each. */
static inline void attn_softmax(const lg_attn_arg *a, attn_group *g) {
    float m_b[ATTN_GROUP];
    for (uint32_t r = 0; r < g->n_row; r++)
        m_b[r] = attn_weights(a->scale, a->n_see[g->row0 + r], g->p[r]);
    for (uint32_t r = 0; r < g->n_row; r += ATTN_SUM)
        attn_sums(g, r, g->n_row - r < ATTN_SUM ? g->n_row - r : ATTN_SUM);
    for (uint32_t r = 0; r < g->n_row; r++) {
        uint32_t row = g->row0 + r;
        float m = a->first || m_b[r] > a->m[row] ? m_b[r] : a->m[row];
        g->c[r] = a->first ? 0.0f : attn_factor(a->m[row], m);
        g->c_b[r] = attn_factor(m_b[r], m);
        a->l[row] = a->first ? g->l_b[r] : fmaf(g->l_b[r], g->c_b[r], a->l[row] * g->c[r]);
        a->m[row] = m;
    }
}

/* acc = a_b, or a_b c_b + acc c, for n_ch columns from c of n rows from r0; a_b lies LG_PAGE_TOK apart. */
static inline void attn_merge(const lg_attn_arg *a, const attn_group *g, uint32_t r0,
                              uint32_t n, uint32_t c, uint32_t n_ch, const float *a_b) {
    for (uint32_t r = r0; r < r0 + n; r++, a_b += LG_PAGE_TOK) {
        float *acc = a->acc + (size_t)(g->row0 + r) * a->d + c;
        v16 old = v16_set(g->c[r]), new = v16_set(g->c_b[r]);
        for (uint32_t i = 0; i < n_ch; i += 16) {
            v16 v = v16_load(a_b + i);
            if (!a->first) v = v16_fma(v, new, v16_mul(row_at(acc, i, n_ch), old));
            row_put(acc, i, n_ch, v);
        }
    }
}

/* Values of n_ch columns from c, those of b, for the n rows from r0, merged: what all see, then what each sees alone. */
static inline void attn_value_tile(const lg_attn_arg *a, const attn_group *g, const attn_b *b,
                                   uint32_t r0, uint32_t n, uint32_t c, uint32_t n_ch) {
    _Alignas(64) float sum[V16_TILE_R * LG_PAGE_TOK];
    const uint32_t *n_see = a->n_see + g->row0 + r0;
    attn_rows t = {.x = g->p[r0],
                   .ld_x = LG_PAGE_TOK,
                   .n_k = LG_PAGE_TOK,
                   .first = a->first,
                   .y = sum,
                   .ld_acc = a->d,
                   .c = g->c + r0,
                   .c_b = g->c_b + r0};
    for (uint32_t r = 0; r < n; r++)
        if (n_see[r] < t.n_k) t.n_k = n_see[r];
    bool whole = t.n_k == g->n_most;
    if (whole && n_ch == ATTN_COL) t.acc = a->acc + (size_t)(g->row0 + r0) * a->d + c;
    attn_run(b, &t, n);
    if (t.acc) return;
    if (whole) {
        attn_merge(a, g, r0, n, c, n_ch, sum);
        return;
    }
    attn_b rest = *b;
    rest.at = (const uint8_t *)b->at + t.n_k * b->ld * attn_bytes(b->type);
    if (b->value_scale) rest.value_scale = b->value_scale + t.n_k;
    for (uint32_t r = 0; r < n; r++) {
        attn_rows one = {.x = g->p[r0 + r] + t.n_k,
                         .ld_x = LG_PAGE_TOK,
                         .n_k = n_see[r] - t.n_k,
                         .add = true,
                         .y = sum + r * LG_PAGE_TOK};
        if (one.n_k) attn_run(&rest, &one, 1);
    }
    attn_merge(a, g, r0, n, c, n_ch, sum);
}

/* Ask for the sums of n rows from r0 that a tile of columns from c will be merged into. */
static inline void attn_fetch_acc(const lg_attn_arg *a, const attn_group *g, uint32_t r0,
                                  uint32_t n, uint32_t c) {
    for (uint32_t r = r0; r < r0 + n; r++)
        for (uint32_t i = 0; i < ATTN_COL; i += 16)
            __builtin_prefetch(a->acc + (size_t)(g->row0 + r) * a->d + c + i, 1);
}

static inline void attn_values(const lg_attn_arg *a, const lg_kv_part *at,
                               const attn_group *g) {
    _Alignas(64) float pack[LG_PAGE_TOK * ATTN_COL];
    float scale[LG_PAGE_TOK];
    size_t bytes = attn_bytes(a->kv), half = lg_kv_bytes(a->kv, a->d) / 2;
    uint32_t n_widen = attn_n_widen(a->kv);
    const uint8_t *next = a->next ? a->next : a->page; /* what is in the cache costs nothing */
    for (uint32_t c = 0; c < a->d; c += ATTN_COL) {
        uint32_t n_ch = a->d - c < ATTN_COL ? a->d - c : ATTN_COL;
        attn_b b = {.type = a->kv,
                    .at = at->value + c * bytes,
                    .ld = a->d,
                    .ahead = next + half / a->d * c,
                    .step = half * ATTN_COL / a->d / LG_PAGE_TOK};
        if (at->value_scale) {
            for (uint32_t j = 0; j < LG_PAGE_TOK; j += 16)
                v16_store(scale + j,
                          v16_load_f16(at->value_scale + (size_t)c / 32 * LG_PAGE_TOK + j));
            b.value_scale = scale;
        }
        if (g->n_row > n_widen || n_ch < ATTN_COL) attn_pack(&b, g->n_most, n_ch, pack);
        for (uint32_t r = 0, n; r < g->n_row; r += n) {
            n = attn_take(g->n_row - r);
            attn_fetch_acc(a, g, r, n, c);
            attn_value_tile(a, g, &b, r, n, c, n_ch);
        }
    }
}

static inline void attn_page(const lg_attn_arg *a) {
    attn_group g;
    lg_kv_part at = lg_kv_at(a->kv, a->d, a->page);
    for (uint32_t row = 0; row < a->n_q;) {
        row = attn_collect(a, row, &g);
        if (g.n_row == 0) continue;
        attn_scores(a, &at, &g);
        attn_softmax(a, &g);
        attn_values(a, &at, &g);
    }
}

/* ---- storing ---- */

/* Scale of the n <= 32 elements x, and their bytes. */
static inline uint16_t attn_bytes_of(const float *x, uint32_t n, int8_t *byte) {
    v16 lo = row_at(x, 0, n), hi = n > 16 ? row_at(x, 16, n) : v16_set(0.0f);
    v16 big = v16_max(v16_max(lo, v16_neg(lo)), v16_max(hi, v16_neg(hi)));
    bool nan = v16_nan_bits(lo) | v16_nan_bits(hi);
    float amax = nan ? NAN : v16_max_lane(big) + 0.0f, t[32]; /* +0, not -0 */
    uint16_t scale = lg_num_to_f16(isfinite(amax) ? amax / 127.0f : NAN);
    float s = lg_num_f16(scale);
    memset(byte, 0, 32);
    if (!(s > 0.0f)) return scale;
    /* 3 x 2^22 added: the fraction is rounded off, the low bits are the integer. */
    v16 most = v16_set(127.0f), magic = v16_set(12582912.0f), vs = v16_set(s);
    for (int i = 0; i < 2; i++) {
        v16 v = v16_div(i ? hi : lo, vs);
        v = v16_max(v16_neg(v16_max(v16_neg(v), v16_neg(most))), v16_neg(most));
        v16_store(t + 16 * i, v16_add(v, magic));
    }
    for (uint32_t i = 0; i < n; i++) byte[i] = (int8_t)(uint8_t)lg_num_bits_of_float(t[i]);
    return scale;
}

/* n <= 32 elements x as words. */
static inline void attn_words_of(lg_dtype kv, const float *x, uint32_t n, uint16_t *word) {
    for (uint32_t i = 0; i < n; i += 16)
        if (kv == LG_F16) v16_store_f16(word + i, row_at(x, i, n));
    for (uint32_t i = 0; i < n && kv == LG_BF16; i++) word[i] = lg_num_to_bf16(x[i]);
}

/* 32 elements or fewer from i on, of position j. */
static inline void attn_store_some(lg_dtype kv, const float *k, const float *v, uint32_t d,
                                   uint32_t j, uint32_t i, const lg_kv_part *at) {
    uint32_t n = d - i < 32 ? d - i : 32;
    size_t key = (size_t)i * LG_PAGE_TOK + j, value = (size_t)j * d + i;
    if (kv == LG_F32) {
        float *to = (float *)(void *)at->key + key;
        for (size_t e = 0; e < n; e++) to[e * LG_PAGE_TOK] = k[i + e];
        memcpy(at->value + value * sizeof *to, v + i, n * sizeof *to);
    } else if (kv == LG_Q8_0) {
        int8_t byte[32];
        size_t s = i / 32 * LG_PAGE_TOK + j;
        at->key_scale[s] = attn_bytes_of(k + i, n, byte);
        for (size_t e = 0; e < n; e++) at->key[key + e * LG_PAGE_TOK] = (uint8_t)byte[e];
        at->value_scale[s] = attn_bytes_of(v + i, n, byte);
        memcpy(at->value + value, byte, n);
    } else {
        uint16_t word[32], *to = (uint16_t *)(void *)at->key + key;
        attn_words_of(kv, k + i, n, word);
        for (size_t e = 0; e < n; e++) to[e * LG_PAGE_TOK] = word[e];
        attn_words_of(kv, v + i, n, word);
        memcpy(at->value + value * sizeof *to, word, n * sizeof *to);
    }
}

static inline void attn_store(lg_dtype kv, const float *k, const float *v, uint32_t d,
                              uint32_t j, void *page) {
    lg_kv_part at = lg_kv_at(kv, d, page);
    for (uint32_t i = 0; i < d; i += 32) attn_store_some(kv, k, v, d, j, i, &at);
}

#endif
