/* gdn.h - Gated DeltaNet in row form over v16; contract and formulas: lg_gdn_arg in kern.h.  Included after a v16 header.
 *
 * The tokens of a call are cut where LG_GDN_C rows are open.  A piece of several tokens is evaluated as products: keys and
 * queries with S, keys and queries with the open keys, then substitution in groups of tokens; a single token reads S once.
 * Each sum has the order of ref/gdn_ref.c, so that both give the same bits. */
#ifndef LG_KERN_SIMD_GDN_H
#define LG_KERN_SIMD_GDN_H

#include "kern/kern.h"
#include "kern/simd/product.h"
#include "kern/simd/row.h"

#include <string.h>

#define GDN_GROUP (V16_TILE_R / 2) /* tokens whose two rows fill a register tile */
#define GDN_S_ROW 4                /* rows of S that one token takes at a time */
#define GDN_AHEAD 4096             /* bytes ahead of them that memory is asked for */

/* Tokens [t0, t0 + n) of a call become open rows [n0, n0 + n). */
typedef struct piece {
    const lg_gdn_arg *a;
    uint32_t t0, n, n0;
    bool has_s;   /* S is there; else it is zero, and not written yet */
    float *key;   /* [dk][C]: open keys, one a column */
    float *x;     /* [n][2][dk]: key and query of each token */
    float *r, *p; /* [n][2][dv], p the second: what the memory returns for key and query */
    float *wk,
        *wq;  /* [n][2][C] the same: dots with the open keys, then weighted with their decay */
    float *g; /* [C] cumulative log-decay of the open rows */
} piece;

static inline float *gdn_d(const piece *b, uint32_t row) {
    return b->a->open_d + (size_t)row * b->a->ld_s;
}

/* The open keys: those of before the call (only a call's first piece has any), then the piece's own. */
static inline void gdn_gather_keys(const piece *b) {
    const lg_gdn_arg *a = b->a;
    if (b->n0 > 0) memcpy(b->key, a->open_k, (size_t)a->dk * LG_GDN_C * sizeof(float));
    for (uint32_t t = 0; t < b->n; t++) {
        const float *k = a->k + (b->t0 + t) * a->ld_qk;
        for (uint32_t i = 0; i < a->dk; i++) b->key[(size_t)i * LG_GDN_C + b->n0 + t] = k[i];
    }
}

/* Multiply the weights of open row l by exp(g - G_l), for token t of the piece. */
static inline void gdn_decay(const piece *b, uint32_t t) {
    float *wk = b->wk + (size_t)t * 2 * LG_GDN_C, *wq = wk + LG_GDN_C;
    v16 g = v16_set(b->g[b->n0 + t]);
    for (uint32_t l = 0; l < LG_GDN_C; l += 16) {
        v16 e = v16_exp(v16_sub(g, v16_load(b->g + l)));
        v16_store(wk + l, v16_mul(e, v16_load(wk + l)));
        v16_store(wq + l, v16_mul(e, v16_load(wq + l)));
    }
}

/* S = exp(G_C) S + sum_l (exp(G_C - G_l) k_l) d_l, for keys in b->key. */
static inline void gdn_fold(const piece *b) {
    const lg_gdn_arg *a = b->a;
    float g = b->g[LG_GDN_C - 1];
    v16 e = v16_set(lg_expf(g));
    for (size_t i = 0; b->has_s && i < a->dk; i++) {
        float *s = a->s + i * a->ld_s;
        for (uint32_t j = 0; j < a->dv; j += 16)
            row_put(s, j, a->dv, v16_mul(e, row_at(s, j, a->dv)));
    }
    for (uint32_t l = 0; l < LG_GDN_C; l += 16) {
        v16 w = v16_exp(v16_sub(v16_set(g), v16_load(b->g + l)));
        for (size_t i = 0; i < a->dk; i++) {
            float *k = b->key + i * LG_GDN_C + l;
            v16_store(k, v16_mul(w, v16_load(k)));
        }
    }
    product_run(&(product){.x = b->key,
                           .ld_x = LG_GDN_C,
                           .n_row = a->dk,
                           .b = a->open_d,
                           .ld_b = a->ld_s,
                           .n_k = LG_GDN_C,
                           .n_col = a->dv,
                           .y = a->s,
                           .ld_y = a->ld_s,
                           .add = b->has_s});
}

/* Open row l of token t of the piece is written, its output follows: d = beta (v - r), o = p + (q . k) d. */
static inline void gdn_write(const piece *b, uint32_t t, float qk) {
    const lg_gdn_arg *a = b->a;
    const float *r = b->r + (size_t)t * 2 * a->dv, *p = r + a->dv;
    const float *v = a->v + (b->t0 + t) * a->ld_v;
    float *d = gdn_d(b, b->n0 + t), *o = a->o + (b->t0 + t) * a->ld_o;
    v16 beta = v16_set(a->beta[(b->t0 + t) * a->ld_g]), c = v16_set(qk);
    for (uint32_t j = 0; j < a->dv; j += 16) {
        v16 dj = v16_mul(beta, v16_sub(row_at(v, j, a->dv), row_at(r, j, a->dv)));
        row_put(d, j, a->dv, dj);
        row_put(o, j, a->dv, v16_fma(c, dj, row_at(p, j, a->dv)));
    }
}

/* Add the open rows [l0, l1) to what memory returns for tokens [t, t + n). */
static inline void gdn_add_rows(const piece *b, uint32_t t, uint32_t n, uint32_t l0,
                                uint32_t l1) {
    const size_t dv = b->a->dv;
    if (l0 == l1) return;
    product_run(&(product){.x = b->wk + (size_t)t * 2 * LG_GDN_C + l0,
                           .ld_x = LG_GDN_C,
                           .n_row = 2 * n,
                           .b = gdn_d(b, l0),
                           .ld_b = b->a->ld_s,
                           .n_k = l1 - l0,
                           .n_col = b->a->dv,
                           .y = b->r + t * 2 * dv,
                           .ld_y = dv,
                           .add = true});
}

/* The same for one token and few rows. */
static inline void gdn_add_few(const piece *b, uint32_t t, uint32_t l0, uint32_t l1) {
    const uint32_t dv = b->a->dv;
    const float *wk = b->wk + (size_t)t * 2 * LG_GDN_C, *wq = wk + LG_GDN_C;
    float *r = b->r + (size_t)t * 2 * dv, *p = r + dv;
    for (uint32_t j = 0; j < dv && l0 < l1; j += 16) {
        v16 rj = row_at(r, j, dv), pj = row_at(p, j, dv);
        for (uint32_t l = l0; l < l1; l++) {
            v16 dj = row_at(gdn_d(b, l), j, dv);
            rj = v16_fma(v16_set(wk[l]), dj, rj);
            pj = v16_fma(v16_set(wq[l]), dj, pj);
        }
        row_put(r, j, dv, rj);
        row_put(p, j, dv, pj);
    }
}

/* The dots of all tokens with the open keys; r and p from S, scaled by their decay. */
static inline void gdn_project(const piece *b) {
    const lg_gdn_arg *a = b->a;
    product p = {.x = b->x, .ld_x = a->dk, .n_row = 2 * b->n, .n_k = a->dk};
    for (uint32_t t = 0; t < b->n; t++) {
        size_t row = (b->t0 + t) * a->ld_qk;
        memcpy(b->x + (size_t)t * 2 * a->dk, a->k + row, a->dk * sizeof(float));
        memcpy(b->x + ((size_t)t * 2 + 1) * a->dk, a->q + row, a->dk * sizeof(float));
    }
    p.b = b->key;
    p.y = b->wk;
    p.ld_b = p.ld_y = LG_GDN_C;
    p.n_col = b->n0 + b->n;
    product_run(&p);
    if (!b->has_s) {
        memset(b->r, 0, (size_t)2 * b->n * a->dv * sizeof(float));
        return;
    }
    p.b = a->s;
    p.y = b->r;
    p.ld_b = a->ld_s;
    p.ld_y = p.n_col = a->dv;
    product_run(&p);
    for (uint32_t t = 0; t < b->n; t++) {
        v16 e = v16_set(lg_expf(b->g[b->n0 + t]));
        float *r = b->r + (size_t)t * 2 * a->dv;
        for (uint32_t j = 0; j < 2 * a->dv; j += 16)
            row_put(r, j, 2 * a->dv, v16_mul(e, row_at(r, j, 2 * a->dv)));
    }
}

static inline void gdn_many(const piece *b) {
    float qk[LG_GDN_C];
    gdn_gather_keys(b);
    gdn_project(b);
    for (uint32_t t = 0; t < b->n; t++) {
        qk[t] = b->wq[(size_t)t * 2 * LG_GDN_C + b->n0 + t];
        gdn_decay(b, t);
    }
    for (uint32_t t0 = 0; t0 < b->n; t0 += GDN_GROUP) {
        uint32_t n = b->n - t0 < GDN_GROUP ? b->n - t0 : GDN_GROUP;
        gdn_add_rows(b, t0, n, 0, b->n0 + t0);
        for (uint32_t t = t0; t < t0 + n; t++) {
            gdn_add_few(b, t, b->n0 + t0, b->n0 + t);
            gdn_write(b, t, qk[t]);
        }
    }
}

/* What one token reads, as one run of memory: S, the open rows, then the S of whoever is next. */
typedef struct gdn_ahead {
    const char *part[3];
    size_t len[2]; /* bytes of the first two */
} gdn_ahead;

/* The place that will be read GDN_AHEAD bytes after byte `at` of the run. */
static inline const char *gdn_ask(const gdn_ahead *h, size_t at) {
    at += GDN_AHEAD;
    if (at < h->len[0]) return h->part[0] + at;
    at -= h->len[0];
    return at < h->len[1] ? h->part[1] + at : h->part[2] + (at - h->len[1]);
}

/* Rows [i, i + n_i) of m times their elements of ck and cq are added to r and p; `at`: the run's byte that row i begins at.
 * Memory is asked for line after line, also where rows are read side by side: some processors want it in order. */
INLINE void gdn_pair(const float *m, size_t ld, uint32_t n_col, const float *ck,
                     const float *cq, uint32_t i, const uint32_t n_i, const gdn_ahead *h,
                     size_t at, float *r, float *p) {
    v16 ki[GDN_S_ROW], qi[GDN_S_ROW];
    const char *ask[GDN_S_ROW];
    for (uint32_t u = 0; u < n_i; u++) {
        ki[u] = v16_set(ck[i + u]);
        qi[u] = v16_set(cq[i + u]);
        ask[u] = gdn_ask(h, at + u * ld * sizeof(float));
    }
    const float *s = m + i * ld;
    size_t line = 64, width = n_col * sizeof(float), row = 0, off = 0;
    for (uint32_t j = 0; j < n_col; j += 16) {
        v16 rj = row_at(r, j, n_col), pj = row_at(p, j, n_col);
        for (uint32_t u = 0; u < n_i; u++) {
            v16 sj = row_at(s + u * ld, j, n_col);
            __builtin_prefetch(ask[row] + off + u * line, 0, 2);
            rj = v16_fma(ki[u], sj, rj);
            pj = v16_fma(qi[u], sj, pj);
        }
        row_put(r, j, n_col, rj);
        row_put(p, j, n_col, pj);
        off += n_i * line;
        if (off >= width) off -= width, row++;
    }
}

/* All n_row rows of m, which begin at byte `at` of the run; columns as in a. */
static inline void gdn_pairs(const lg_gdn_arg *a, const float *m, const float *ck,
                             const float *cq, uint32_t n_row, const gdn_ahead *h, size_t at,
                             float *r, float *p) {
    size_t ld = a->ld_s, row = ld * sizeof *m;
    uint32_t i = 0;
    for (; n_row - i >= GDN_S_ROW; i += GDN_S_ROW)
        gdn_pair(m, ld, a->dv, ck, cq, i, GDN_S_ROW, h, at + i * row, r, p);
    for (; i < n_row; i++) gdn_pair(m, ld, a->dv, ck, cq, i, 1, h, at + i * row, r, p);
}

/* Dots of key and query with the open keys before this token.  Returns q . k. */
static inline float gdn_one_dots(const lg_gdn_arg *a, const float *k, const float *q, float *wk,
                                 float *wq) {
    v16 qk = v16_set(0.0f), k0 = qk, k1 = qk, q0 = qk, q1 = qk;
    for (size_t i = 0; i < a->dk; i++) {
        v16 ki = v16_set(k[i]), qi = v16_set(q[i]);
        qk = v16_fma(qi, ki, qk);
        if (a->n_open == 0) continue;
        v16 o0 = v16_load(a->open_k + i * LG_GDN_C);
        k0 = v16_fma(ki, o0, k0);
        q0 = v16_fma(qi, o0, q0);
        if (a->n_open <= 16) continue; /* half of the keys' memory is left alone */
        v16 o1 = v16_load(a->open_k + i * LG_GDN_C + 16);
        k1 = v16_fma(ki, o1, k1);
        q1 = v16_fma(qi, o1, q1);
    }
    v16_store(wk, k0);
    v16_store(wk + 16, k1);
    v16_store(wq, q0);
    v16_store(wq + 16, q1);
    float lane[16];
    v16_store(lane, qk);
    return lane[0];
}

/* One token of a call: S and the open rows are read once, for key and query together. */
static inline void gdn_one(const piece *b) {
    const lg_gdn_arg *a = b->a;
    const float *k = a->k + b->t0 * a->ld_qk, *q = a->q + b->t0 * a->ld_qk;
    float g = b->g[b->n0], qk = gdn_one_dots(a, k, q, b->wk, b->wq);
    size_t row = a->ld_s * sizeof(float), s_len = b->has_s ? a->dk * row : 0;
    const float *next = a->next ? a->next : a->open_d;
    gdn_ahead h = {{(const char *)a->s, (const char *)a->open_d, (const char *)next},
                   {s_len, b->n0 * row}};
    memset(b->r, 0, a->dv * sizeof(float));
    memset(b->p, 0, a->dv * sizeof(float));
    if (b->has_s) {
        v16 e = v16_set(lg_expf(g));
        gdn_pairs(a, a->s, k, q, a->dk, &h, 0, b->r, b->p);
        for (uint32_t j = 0; j < a->dv; j += 16) {
            row_put(b->r, j, a->dv, v16_mul(e, row_at(b->r, j, a->dv)));
            row_put(b->p, j, a->dv, v16_mul(e, row_at(b->p, j, a->dv)));
        }
    }
    gdn_decay(b, 0);
    gdn_pairs(a, a->open_d, b->wk, b->wq, b->n0, &h, s_len, b->r, b->p);
    gdn_write(b, 0, qk);
    if (b->n0 + 1 == LG_GDN_C) gdn_gather_keys(b);
}

static inline void gdn_rows(const lg_gdn_arg *a) {
    const size_t C = LG_GDN_C;
    float *at = a->scratch;
    piece b = {.a = a, .n0 = a->n_open};
    b.key = at, at += a->dk * C;
    b.x = at, at += 2 * a->dk * C;
    b.wk = at, at += 2 * C * C;
    b.g = at, at += C;
    b.r = at;
    b.wq = b.wk + C;
    b.p = b.r + a->dv;
    memcpy(b.g, a->open_g, C * sizeof *b.g);
    b.has_s = a->has_init;
    while (b.t0 < a->n_tok) {
        b.n = a->n_tok - b.t0 < LG_GDN_C - b.n0 ? a->n_tok - b.t0 : LG_GDN_C - b.n0;
        for (uint32_t t = 0; t < b.n; t++) {
            uint32_t row = b.n0 + t;
            b.g[row] = (row ? b.g[row - 1] : 0.0f) + a->g[(b.t0 + t) * a->ld_g];
        }
        if (a->n_tok == 1) {
            gdn_one(&b);
        } else {
            gdn_many(&b);
        }
        if (b.n0 + b.n == LG_GDN_C) {
            gdn_fold(&b);
            b.has_s = true;
        }
        b.t0 += b.n;
        b.n0 = (b.n0 + b.n) % LG_GDN_C;
    }
}

#endif
