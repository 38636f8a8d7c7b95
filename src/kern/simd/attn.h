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

#define ATTN_GROUP 128                 /* query rows of a group */
#define ATTN_SUM   8                   /* rows whose weights are summed side by side */
#define ATTN_COL   (VT_N * V16_ATTN_V) /* columns of a tile */
#define ATTN_LEAST (VT_N * 2)          /* and of one at the end */

/* ---- tiles ---- */

/* What a tile multiplies its rows with: [n_k][ld] elements, from the first of its columns. */
typedef struct attn_b {
    lg_dtype type;
    const void *at;
    size_t ld;
    const uint16_t *key_scale; /* Q8_0 keys: [n_k / 32][LG_PAGE_TOK], of these columns */
    const float *value_scale[V16_ATTN_V]; /* Q8_0 values: [n_k] of each vector's columns */
    const uint8_t *ahead; /* asked for on the way, `step` bytes a row; NULL: nothing */
    size_t step;
    float *keep; /* Q8_0: where rows go that a tile has widened, side by side; or NULL */
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

/* VT_N elements as floats; bytes of Q8_0 without their scale. */
INLINE vt attn_load(const lg_dtype type, const uint8_t *p, const size_t at) {
    if (type == LG_BF16) return vt_load_bf16((const uint16_t *)(const void *)p + at);
    if (type == LG_F16) return vt_load_f16((const uint16_t *)(const void *)p + at);
    if (type == LG_Q8_0) return vt_load_i8((const int8_t *)p + at);
    return vt_load((const float *)(const void *)p + at);
}

static inline size_t attn_bytes(lg_dtype type) {
    return type == LG_Q8_0 ? 1 : type == LG_F32 ? 4 : 2;
}

/* Ask for memory at p, nearly `step` bytes of it, as far as the second-level cache: the first holds what is in work. */
INLINE void attn_fetch(const lg_dtype type, const uint8_t *p) {
    __builtin_prefetch(p, 0, 2);
    if (type == LG_F32) __builtin_prefetch(p + 64, 0, 2);
}

/* Row k of b, which begins at p, scaled; `key`: whether b is keys, where that makes a difference. */
INLINE void attn_widen(const lg_dtype type, const bool key, const attn_b *b, const uint8_t *p,
                       size_t k, const vt *key_scale, const int n_v, vt *w) {
    TILE_EACH for (int v = 0; v < n_v; v++) {
        w[v] = attn_load(type, p, (size_t)v * VT_N);
        if (type == LG_Q8_0)
            w[v] = vt_mul(w[v], key ? key_scale[v] : vt_set(b->value_scale[v][k]));
    }
}

/* Scales of keys for rows k .. k + 31. */
INLINE void attn_key_scale(const lg_dtype type, const bool key, const attn_b *b, size_t k,
                           const int n_v, vt *scale) {
    TILE_EACH for (int v = 0; v < n_v; v++) scale[v] =
        type == LG_Q8_0 && key ? vt_load_f16(b->key_scale + k / 32 * LG_PAGE_TOK + VT_N * v)
                               : vt_set(1.0f);
}

/* The sums of n_row rows, where they belong. */
INLINE void attn_put(const attn_rows *t, const int n_row, const int n_v,
                     vt (*sum)[V16_ATTN_V]) {
    float *y = t->acc ? t->acc : t->y;
    const size_t ld = t->acc ? t->ld_acc : LG_PAGE_TOK;
    if (t->acc && !t->first) {
        const float *old = t->c, *new = t->c_b;
        TILE_EACH for (int r = 0; r < n_row; r++) {
            vt c = vt_set(old[r]), c_b = vt_set(new[r]);
            TILE_EACH for (int v = 0; v < n_v; v++) {
                float *at = y + (size_t)r * ld + (size_t)v * VT_N;
                sum[r][v] = vt_fma(sum[r][v], c_b, vt_mul(vt_load(at), c));
            }
        }
    }
    TILE_EACH for (int r = 0; r < n_row; r++) TILE_EACH for (int v = 0; v < n_v; v++)
        vt_store(y + (size_t)r * ld + (size_t)v * VT_N, sum[r][v]);
}

/* n_row rows, n_v vectors of columns. */
INLINE void attn_tile(const lg_dtype type, const bool key, const bool keep, const bool ask,
                      const attn_b *b, const attn_rows *t, const int n_row, const int n_v) {
    vt acc[V16_ATTN_H][V16_ATTN_V], w[V16_ATTN_V], scale[V16_ATTN_V];
    const size_t ld = b->ld * attn_bytes(type), ld_x = t->ld_x, n_k = t->n_k, step = b->step;
    const uint8_t *p = b->at, *ahead = b->ahead;
    const float *x = t->x;
    float *kept = b->keep;
    TILE_EACH for (int r = 0; r < n_row; r++) TILE_EACH for (int v = 0; v < n_v; v++)
        acc[r][v] = t->add ? vt_load(t->y + r * LG_PAGE_TOK + VT_N * v) : vt_set(0.0f);
    const size_t block = type == LG_Q8_0 ? 32 : n_k; /* of one scale */
    for (size_t k0 = 0; k0 < n_k; k0 += block) {
        size_t end = k0 + block < n_k ? k0 + block : n_k;
        attn_key_scale(type, key, b, k0, n_v, scale);
        _Pragma("GCC unroll 4") for (size_t k = k0; k < end; k++) {
            if (ask) attn_fetch(type, ahead);
            if (ask) ahead += step;
            attn_widen(type, key, b, p, k, scale, n_v, w);
            if (keep) {
                TILE_EACH for (int v = 0; v < n_v; v++) vt_store(kept + (size_t)v * VT_N, w[v]);
                kept += (size_t)n_v * VT_N;
            }
            p += ld;
            TILE_EACH for (int r = 0; r < n_row; r++) {
                vt xr = vt_set(x[(size_t)r * ld_x]);
                TILE_EACH for (int v = 0; v < n_v; v++) acc[r][v] = vt_fma(xr, w[v], acc[r][v]);
            }
            x++;
        }
    }
    attn_put(t, n_row, n_v, acc);
}

INLINE void attn_tile_rows(const lg_dtype type, const bool key, const bool keep, const bool ask,
                           const attn_b *b, const attn_rows *t, uint32_t n_row, const int n_v) {
    switch (n_row) {
    case 1: attn_tile(type, key, keep, ask, b, t, 1, n_v); break;
    case 2: attn_tile(type, key, keep, ask, b, t, 2, n_v); break;
    case 3: attn_tile(type, key, keep, ask, b, t, 3, n_v); break;
    case 4: attn_tile(type, key, keep, ask, b, t, 4, n_v); break;
#if V16_ATTN_H > 4
    case 6: attn_tile(type, key, keep, ask, b, t, 6, n_v); break;
    case 8: attn_tile(type, key, keep, ask, b, t, 8, n_v); break;
    case 12: attn_tile(type, key, keep, ask, b, t, 12, n_v); break;
#endif
    default: break;
    }
}

INLINE void attn_tile_of(const lg_dtype type, const bool key, const bool keep, const bool ask,
                         const attn_b *b, const attn_rows *t, uint32_t n_row, uint32_t n_col) {
    if (n_col == ATTN_COL) attn_tile_rows(type, key, keep, ask, b, t, n_row, V16_ATTN_V);
#if V16_ATTN_V > 2
    if (n_col == ATTN_LEAST) attn_tile_rows(type, key, keep, ask, b, t, n_row, 2);
#endif
}

static void attn_run_q8(const attn_b *b, const attn_rows *t, uint32_t n_row, uint32_t n_col) {
#if V16_ATTN_KEEP > 0
    if (b->keep && b->key_scale) {
        attn_tile_of(LG_Q8_0, true, true, true, b, t, n_row, n_col);
        return;
    }
    if (b->keep) {
        attn_tile_of(LG_Q8_0, false, true, true, b, t, n_row, n_col);
        return;
    }
#endif
    if (b->key_scale) {
        attn_tile_of(LG_Q8_0, true, false, true, b, t, n_row, n_col);
    } else {
        attn_tile_of(LG_Q8_0, false, false, true, b, t, n_row, n_col);
    }
}

/* A tile of n_row rows, a height of attn_take, and n_col columns, a width of attn_width. */
static void attn_run(const attn_b *b, const attn_rows *t, uint32_t n_row, uint32_t n_col) {
    switch (b->type) {
    case LG_BF16: attn_tile_of(LG_BF16, false, false, true, b, t, n_row, n_col); break;
    case LG_F16: attn_tile_of(LG_F16, false, false, true, b, t, n_row, n_col); break;
    case LG_Q8_0: attn_run_q8(b, t, n_row, n_col); break;
    default:
        if (b->ahead) {
            attn_tile_of(LG_F32, false, false, true, b, t, n_row, n_col);
        } else {
            attn_tile_of(LG_F32, false, false, false, b, t, n_row, n_col);
        }
        break;
    }
}

/* Rows that the next tile takes of n_left: tiles of nearly equal height, of those for which there is code. */
static inline uint32_t attn_take(uint32_t n_left) {
    uint32_t n_tile = (n_left + V16_ATTN_H - 1) / V16_ATTN_H;
    uint32_t n = (n_left + n_tile - 1) / n_tile;
    return n >= 12 ? 12 : n >= 8 ? 8 : n >= 6 ? 6 : n >= 4 ? 4 : n;
}

/* Columns that the next tile takes of n_left; fewer are left than it takes only at the end. */
static inline uint32_t attn_width(uint32_t n_left) {
    return n_left >= ATTN_COL && n_left != 2 * ATTN_LEAST ? ATTN_COL : ATTN_LEAST;
}

/* Widen n_k rows of b, n_v vectors of columns, into rows of as many. */
INLINE void attn_pack_of(const lg_dtype type, const bool key, const attn_b *b, uint32_t n_k,
                         const int n_v, float *pack) {
    vt w[V16_ATTN_V], scale[V16_ATTN_V];
    const size_t ld = b->ld * attn_bytes(type), width = (size_t)n_v * VT_N, step = b->step;
    const uint8_t *p = b->at, *ahead = b->ahead;
    for (size_t k0 = 0; k0 < n_k; k0 += 32) {
        attn_key_scale(type, key, b, k0, n_v, scale);
        size_t end = k0 + 32 < n_k ? k0 + 32 : n_k;
        for (size_t k = k0; k < end; k++, p += ld, ahead += step, pack += width) {
            attn_fetch(type, ahead);
            attn_widen(type, key, b, p, k, scale, n_v, w);
            TILE_EACH for (int v = 0; v < n_v; v++) vt_store(pack + (size_t)v * VT_N, w[v]);
        }
    }
}

INLINE void attn_pack_v(const attn_b *b, uint32_t n_k, const int n_v, float *pack) {
    switch (b->type) {
    case LG_BF16: attn_pack_of(LG_BF16, false, b, n_k, n_v, pack); break;
    case LG_F16: attn_pack_of(LG_F16, false, b, n_k, n_v, pack); break;
    case LG_Q8_0:
        if (b->key_scale) {
            attn_pack_of(LG_Q8_0, true, b, n_k, n_v, pack);
        } else {
            attn_pack_of(LG_Q8_0, false, b, n_k, n_v, pack);
        }
        break;
    default: attn_pack_of(LG_F32, false, b, n_k, n_v, pack); break;
    }
}

/* ATTN_LEAST columns of which only the first n_col exist; the others become 0. */
static inline void attn_pack_some(const attn_b *b, uint32_t n_k, uint32_t n_col, float *pack) {
    size_t bytes = attn_bytes(b->type);
    for (size_t k = 0; k < n_k; k++) {
        uint8_t row[ATTN_LEAST * sizeof(float)] = {0};
        memcpy(row, (const uint8_t *)b->at + k * b->ld * bytes, n_col * bytes);
        attn_b one = *b;
        one.at = row;
        one.ahead += k * b->step;
        for (int v = 0; b->value_scale[0] && v < ATTN_LEAST / VT_N; v++)
            one.value_scale[v] += k;
        attn_pack_v(&one, 1, ATTN_LEAST / VT_N, pack + k * ATTN_LEAST);
    }
}

/* n_k rows of b, n_col of `width` columns, as floats in `pack`; b then says so. */
static inline void attn_pack(attn_b *b, uint32_t n_k, uint32_t width, uint32_t n_col,
                             float *pack) {
    if (n_col < width) {
        attn_pack_some(b, n_k, n_col, pack);
    } else if (width == ATTN_COL) {
        attn_pack_v(b, n_k, V16_ATTN_V, pack);
    } else {
        attn_pack_v(b, n_k, ATTN_LEAST / VT_N, pack);
    }
    *b = (attn_b){.type = LG_F32, .at = pack, .ld = width};
}

/* Rows up to which a page is widened in registers. */
static inline uint32_t attn_n_widen(lg_dtype kv) {
    return kv == LG_Q8_0 ? V16_ATTN_Q8_R : V16_ATTN_R;
}

/* Whether the first tile of n_row rows keeps what it widens for the others: it stores while it multiplies. */
static inline bool attn_keeps(lg_dtype kv, uint32_t n_row) {
    return kv == LG_Q8_0 && n_row > attn_n_widen(kv) && n_row <= V16_ATTN_KEEP;
}

/* ---- a group of rows ---- */

typedef struct attn_group {
    uint32_t row0, n_row; /* rows that follow each other and see anything of the page */
    uint32_t n_most;      /* the most positions that one of them sees */
    bool even;            /* all of them see so many */
    const uint8_t *ahead; /* memory that is asked for next */
    size_t rate;          /* bytes of it for each product of a row and an element, times 256 */
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
    g->even = true;
    for (; row < a->n_q && g->n_row < ATTN_GROUP && a->n_see[row] > 0; row++, g->n_row++) {
        if (g->n_row > 0 && a->n_see[row] != g->n_most) g->even = false;
        if (a->n_see[row] > g->n_most) g->n_most = a->n_see[row];
    }
    return row;
}

/* From here on the n_byte bytes at `from` are asked for, line after line, as evenly as the page's keys, or its values, are
 * multiplied with the rows: memory is then never idle. */
static inline void attn_ask(const lg_attn_arg *a, attn_group *g, const void *from,
                            size_t n_byte) {
    g->ahead = from;
    g->rate = n_byte * 256 / (LG_PAGE_TOK * a->d * g->n_row);
}

/* The share of n rows times n_k rows of b, n_col columns. */
static inline void attn_ask_share(attn_group *g, attn_b *b, uint32_t n, uint32_t n_k,
                                  uint32_t n_col) {
    b->ahead = g->ahead;
    b->step = (g->rate * n * n_col + 255) / 256;
    g->ahead += b->step * n_k;
}

/* Scores of `width` positions from j, over the n_k elements of queries and keys from k0. */
static inline void attn_score_part(const lg_attn_arg *a, const lg_kv_part *at, attn_group *g,
                                   uint32_t j, uint32_t width, uint32_t k0, uint32_t n_k) {
    _Alignas(64) float pack[V16_ATTN_K * ATTN_COL];
    bool in_tile = g->n_row <= attn_n_widen(a->kv);
    attn_b b = {.type = a->kv,
                .at = at->key + ((size_t)k0 * LG_PAGE_TOK + j) * attn_bytes(a->kv),
                .ld = LG_PAGE_TOK,
                .key_scale = at->key_scale};
    attn_rows t = {.ld_x = a->ld_q, .n_k = n_k, .add = k0 > 0};
    if (b.key_scale) b.key_scale += k0 / 32 * LG_PAGE_TOK + j;
    bool keep = attn_keeps(a->kv, g->n_row);
    if (!in_tile) attn_ask_share(g, &b, g->n_row, n_k, width);
    if (!in_tile && !keep) attn_pack(&b, n_k, width, width, pack);
    if (keep) b.keep = pack;
    for (uint32_t r = 0, n; r < g->n_row; r += n) {
        n = attn_take(g->n_row - r);
        if (keep && r > 0) b = (attn_b){.type = LG_F32, .at = pack, .ld = width};
        t.x = a->q + (g->row0 + r) * a->ld_q + k0;
        t.y = &g->p[r][j];
        if (in_tile) attn_ask_share(g, &b, n, n_k, width);
        attn_run(&b, &t, n, width);
    }
}

static inline void attn_scores(const lg_attn_arg *a, const lg_kv_part *at, attn_group *g) {
    attn_ask(a, g, at->value, lg_kv_bytes(a->kv, a->d) / 2);
    for (uint32_t k0 = 0, n_k; k0 < a->d; k0 += n_k) {
        n_k = a->d - k0 < V16_ATTN_K ? a->d - k0 : V16_ATTN_K;
        for (uint32_t j = 0, width; j < g->n_most; j += width) {
            width = attn_width(LG_PAGE_TOK - j);
            attn_score_part(a, at, g, j, width, k0, n_k);
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
    if (n == LG_PAGE_TOK) {
        for (uint32_t j = 0; j < LG_PAGE_TOK; j += 16)
            v16_store(p + j, v16_exp(v16_sub(v16_load(p + j), v16_set(m))));
        return m;
    }
    for (uint32_t j = 0; j < LG_PAGE_TOK; j += 16) {
        uint32_t n_left = j < n ? n - j : 0;
        v16 v = n_left ? v16_exp(v16_sub(v16_load(p + j), v16_set(m))) : v16_set(0.0f);
        v16_store(p + j, n_left >= 16 ? v : v16_pick_n(n_left, v, v16_set(0.0f)));
    }
    return m;
}

/* l_b of rows [r0, r0 + n): several sums side by side, each ascending (adding 0 changes none). */
static inline void attn_sums(attn_group *g, uint32_t r0, uint32_t n) {
    const float *row[ATTN_SUM];
    float sum[ATTN_SUM] = {0};
    for (uint32_t r = 0; r < ATTN_SUM; r++) row[r] = g->p[r0 + (r < n ? r : 0)];
    for (uint32_t j = 0; j < g->n_most; j++)
        for (uint32_t r = 0; r < ATTN_SUM; r++) sum[r] += row[r][j];
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
                                   uint32_t r0, uint32_t n, uint32_t c, uint32_t width,
                                   uint32_t n_ch) {
    _Alignas(64) float sum[V16_ATTN_H * LG_PAGE_TOK];
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
    if (whole && n_ch == width) t.acc = a->acc + (size_t)(g->row0 + r0) * a->d + c;
    attn_run(b, &t, n, width);
    if (t.acc) return;
    if (whole) {
        attn_merge(a, g, r0, n, c, n_ch, sum);
        return;
    }
    attn_b rest = *b;
    rest.at = (const uint8_t *)b->at + t.n_k * b->ld * attn_bytes(b->type);
    for (int v = 0; b->value_scale[0] && v < V16_ATTN_V; v++) rest.value_scale[v] += t.n_k;
    for (uint32_t r = 0; r < n; r++) {
        attn_rows one = {.x = g->p[r0 + r] + t.n_k,
                         .ld_x = LG_PAGE_TOK,
                         .n_k = n_see[r] - t.n_k,
                         .add = true,
                         .y = sum + r * LG_PAGE_TOK};
        if (one.n_k) attn_run(&rest, &one, 1, width);
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

/* Values of `width` columns from c, of which n_ch exist. */
static inline void attn_value_part(const lg_attn_arg *a, const lg_kv_part *at, attn_group *g,
                                   uint32_t c, uint32_t width, uint32_t n_ch) {
    _Alignas(64) float pack[LG_PAGE_TOK * ATTN_COL];
    float scale[2][LG_PAGE_TOK]; /* of the 32 elements that c is in, and of the next */
    bool in_tile = g->n_row <= attn_n_widen(a->kv) && n_ch == width;
    attn_b b = {.type = a->kv, .at = at->value + c * attn_bytes(a->kv), .ld = a->d};
    for (uint32_t v = 0; at->value_scale && v < width / VT_N; v++)
        b.value_scale[v] = scale[(c + v * VT_N) / 32 - c / 32];
    for (uint32_t i = c / 32; at->value_scale && i <= (c + n_ch - 1) / 32; i++)
        for (uint32_t j = 0; j < LG_PAGE_TOK; j += VT_N)
            vt_store(scale[i - c / 32] + j,
                     vt_load_f16(at->value_scale + (size_t)i * LG_PAGE_TOK + j));
    bool keep = attn_keeps(a->kv, g->n_row) && n_ch == width && g->even;
    if (!in_tile) attn_ask_share(g, &b, g->n_row, g->n_most, n_ch);
    if (!in_tile && !keep) attn_pack(&b, g->n_most, width, n_ch, pack);
    if (keep) b.keep = pack;
    for (uint32_t r = 0, n; r < g->n_row; r += n) {
        n = attn_take(g->n_row - r);
        if (keep && r > 0) b = (attn_b){.type = LG_F32, .at = pack, .ld = width};
        if (in_tile) {
            attn_ask_share(g, &b, n, g->n_most, n_ch);
        } else {
            attn_fetch_acc(a, g, r, n, c);
        }
        attn_value_tile(a, g, &b, r, n, c, width, n_ch);
    }
}

static inline void attn_values(const lg_attn_arg *a, const lg_kv_part *at, attn_group *g) {
    const void *next = a->next ? a->next : a->page; /* what is in the cache costs nothing */
    attn_ask(a, g, next, lg_kv_bytes(a->kv, a->d) / 2);
    for (uint32_t c = 0, width; c < a->d; c += width) {
        width = attn_width(a->d - c);
        attn_value_part(a, at, g, c, width, a->d - c < width ? a->d - c : width);
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
