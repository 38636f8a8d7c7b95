/* step_gdn.c - Gated DeltaNet of a step: convolution, gates, and the recurrence over state slots.
 *
 * In: normed rows [R][n_embd]; the pools of states S [GDN layer][slot][n_v_head][d_k][d_v] and of the last raw rows.
 * Out: rows for the residual. Sequences of one row take one step of the recurrence, written so that the old state is
 * read once:
 *     e = exp(g)   r = k S   p = q S   d = beta (v - e r)   o = e p + (q . k) d   S = e S + k (x) d
 * Longer ones run in blocks of LG_STEP_GDN_TILE rows, with c_r the sum of g from the block's first row to r:
 *     A = I + strictly lower(beta_r (k_r . k_j) exp(c_r - c_j))     A [U | W] = [beta v | beta exp(c) k]
 *     D = U - W S    O = exp(c) q S + lower((q_r . k_j) exp(c_r - c_j)) D    S = exp(c_C) S + (exp(c_C - c) k)^T D
 * Exponents are never positive: differences above the diagonal are cut first.  Rows of padding have k, v, beta and g
 * zero, which changes nothing of S.  States are F32 here whatever the pool's type.  Test: tests/unit/test_step.c */
#include "backend/pjrt/step/step.h"

#include "kern/kern.h"

#include <math.h>

/* One kind of sequences of the bucket. */
typedef struct part {
    uint32_t from, n; /* sequences */
    int64_t row0, t;  /* first row of R, rows each */
    lg_hlo_val idx;   /* [n][2] layer and slot; out of range for padding */
    lg_hlo_val fresh; /* [n] I1: the slot's content is not read */
} part;

static part part_of(lg_step_emit *s, uint32_t from, uint32_t n, int64_t row0, int64_t t) {
    lg_hlo *h = &s->h;
    lg_hlo_val slot = lg_step_seqs(s, s->slot, from, n);
    lg_hlo_val col[2] = {lg_step_layer_col(s, lg_hlo_type_at(h, slot)), slot};
    part p = {.from = from, .n = n, .row0 = row0, .t = t};
    p.idx = lg_hlo_idx(h, col, 2);
    p.fresh = lg_hlo_cmp_i(h, "EQ", lg_step_seqs(s, s->pos, from, n), 0);
    return p;
}

/* What a pool holds for the sequences, as F32, zero where they are fresh. */
static lg_hlo_val load(lg_step_emit *s, lg_pjrt_pool pool, const part *p) {
    lg_hlo *h = &s->h;
    lg_hlo_val x = lg_hlo_convert(h, lg_hlo_take(h, s->pool[pool], p->idx), LG_HLO_F32);
    return lg_hlo_select(h, lg_hlo_like(h, p->fresh, x, "0"),
                         lg_hlo_float(h, lg_hlo_type_at(h, x), 0), x);
}

static void save(lg_step_emit *s, lg_pjrt_pool pool, const part *p, lg_hlo_val x) {
    lg_hlo_dt dt = lg_hlo_type_at(&s->h, s->pool[pool]).dt;
    s->pool[pool] = lg_hlo_put(&s->h, s->pool[pool], p->idx, lg_hlo_convert(&s->h, x, dt));
}

/* The part's rows of x [R][w] as [n][t][w]. */
static lg_hlo_val rows_of(lg_step_emit *s, const part *p, lg_hlo_val x) {
    lg_hlo *h = &s->h;
    int64_t w = lg_hlo_dim(h, x, 1);
    return lg_hlo_reshape(h, lg_hlo_slice(h, x, 0, p->row0, p->n * p->t),
                          LG_HLO_T(F32, p->n, p->t, w));
}

/* Four taps over the rows and the three before them; then silu.  raw [n][t][conv_dim]. */
static lg_hlo_val convolve(lg_step_emit *s, const part *p, lg_hlo_val raw) {
    lg_hlo *h = &s->h;
    int64_t conv = lg_config_conv_dim(s->cfg), before = LG_CONV_K - 1, n = p->n,
            g = lg_step_conv_unit(s->cfg);
    lg_hlo_val w = lg_step_weight(s, LG_PJRT_W_CONV), sum = 0;
    lg_hlo_val old =
        lg_hlo_reshape(h, load(s, LG_PJRT_POOL_CONV, p), LG_HLO_T(F32, n, before, conv));
    lg_hlo_val x = lg_hlo_concat(h, 1, (lg_hlo_val[]){old, raw}, 2);
    for (int64_t j = 0; j < LG_CONV_K; j++) {
        lg_hlo_val tap = lg_hlo_reshape(h, lg_hlo_slice(h, w, 0, j, 1), LG_HLO_T(F32, conv));
        lg_hlo_val at = lg_hlo_slice(h, x, 1, j, p->t);
        at = lg_hlo_mul(h, at, lg_hlo_like(h, tap, at, "2"));
        sum = sum ? lg_hlo_add(h, sum, at) : at;
    }
    /* The last three rows that are there: n_tok rows on from the old ones. */
    lg_hlo_type last = LG_HLO_T(I32, n, before);
    lg_hlo_val n_tok = lg_step_seqs(s, s->n_tok, p->from, p->n);
    lg_hlo_val col[2] = {
        lg_hlo_iota(h, last, 0),
        lg_hlo_add(h, lg_hlo_iota(h, last, 1), lg_hlo_bcast(h, n_tok, last, "0"))};
    lg_hlo_val keep = lg_hlo_take(h, x, lg_hlo_idx(h, col, 2));
    save(s, LG_PJRT_POOL_CONV, p,
         lg_hlo_reshape(h, keep, LG_HLO_T(F32, n, before, conv / g, g)));
    return lg_step_silu(s, sum);
}

/* x [..][n_k_head][..] with its key heads repeated for the value heads, along `axis`. */
static lg_hlo_val for_value_heads(lg_step_emit *s, lg_hlo_val x, uint32_t axis) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    lg_hlo_type t = lg_hlo_type_at(h, x), wide = t, to = t;
    uint32_t times = c->n_v_head / c->n_k_head;
    char axes[LG_HLO_MAX_DIM + 1] = "";
    if (times == 1 || h->failed) return x;
    if (t.n_dim >= LG_HLO_MAX_DIM) {
        lg_hlo_fail(h, "heads of too many axes");
        return 0;
    }
    /* The new axis lies before the heads when tiled, behind them otherwise. */
    uint32_t at = c->v_head_tiled ? axis : axis + 1;
    wide.n_dim++;
    for (uint32_t i = t.n_dim; i > at; i--) wide.dim[i] = t.dim[i - 1];
    wide.dim[at] = times;
    for (uint32_t i = 0; i < t.n_dim; i++) axes[i] = (char)('0' + (i < at ? i : i + 1));
    to.dim[axis] = c->n_v_head;
    return lg_hlo_reshape(h, lg_hlo_bcast(h, x, wide, axes), to);
}

/* Rows of the recurrence: q, k [n][t][n_k_head][d_k], v [n][t][n_v_head][d_v], g, beta [n][t][n_v_head]. */
typedef struct rows {
    lg_hlo_val q, k, v, g, beta;
} rows;

/* x / sqrt(sum x^2 + 1e-6) * scale along the last axis. */
static lg_hlo_val unit(lg_step_emit *s, lg_hlo_val x, float scale) {
    lg_hlo *h = &s->h;
    lg_hlo_val sum = lg_hlo_reduce(h, "add", lg_hlo_mul(h, x, x), 3);
    lg_hlo_val r = lg_hlo_un(h, "rsqrt", lg_hlo_bin_f(h, "add", sum, 1e-6f));
    return lg_hlo_mul(h, x, lg_hlo_like(h, lg_hlo_bin_f(h, "multiply", r, scale), x, "012"));
}

/* u [n][t][conv_dim] cut into heads and normalised; padding rows zero. */
static rows cut(lg_step_emit *s, const part *p, lg_hlo_val u, lg_hlo_val g, lg_hlo_val beta) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    int64_t keys = (int64_t)c->n_k_head * c->d_k, vals = (int64_t)c->n_v_head * c->d_v;
    lg_hlo_val ok = lg_hlo_reshape(h, lg_hlo_slice(h, s->row_ok, 0, p->row0, p->n * p->t),
                                   LG_HLO_T(I1, p->n, p->t));
    u = lg_hlo_select_f(h, lg_hlo_like(h, ok, u, "01"), u, 0.0f);
    lg_hlo_type head = LG_HLO_T(F32, p->n, p->t, c->n_k_head, c->d_k);
    rows r = {.q = lg_hlo_reshape(h, lg_hlo_slice(h, u, 2, 0, keys), head),
              .k = lg_hlo_reshape(h, lg_hlo_slice(h, u, 2, keys, keys), head),
              .v = lg_hlo_reshape(h, lg_hlo_slice(h, u, 2, 2 * keys, vals),
                                  LG_HLO_T(F32, p->n, p->t, c->n_v_head, c->d_v))};
    r.q = unit(s, r.q, 1.0f / sqrtf((float)c->d_k));
    r.k = unit(s, r.k, 1.0f);
    lg_hlo_val gates[2] = {rows_of(s, p, g), rows_of(s, p, beta)};
    for (int i = 0; i < 2; i++)
        gates[i] = lg_hlo_select_f(h, lg_hlo_like(h, ok, gates[i], "01"), gates[i], 0.0f);
    r.g = gates[0];
    r.beta = gates[1];
    return r;
}

/* One row each: x [n][1][..] -> core [n][1][n_v_head][d_v]. */
static lg_hlo_val one_row(lg_step_emit *s, const part *p, const rows *x) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    int64_t n = p->n;
    lg_hlo_type key = LG_HLO_T(F32, n, c->n_k_head, c->d_k),
                val = LG_HLO_T(F32, n, c->n_v_head, c->d_v);
    lg_hlo_type head = LG_HLO_T(F32, n, c->n_v_head);
    lg_hlo_val q = lg_hlo_reshape(h, x->q, key), k = lg_hlo_reshape(h, x->k, key),
               v = lg_hlo_reshape(h, x->v, val);
    lg_hlo_val qk = for_value_heads(s, lg_hlo_reduce(h, "add", lg_hlo_mul(h, q, k), 2), 1);
    q = for_value_heads(s, q, 1);
    k = for_value_heads(s, k, 1);
    lg_hlo_val e = lg_hlo_un(h, "exponential", lg_hlo_reshape(h, x->g, head));
    lg_hlo_val state = load(s, LG_PJRT_POOL_S, p);
    lg_hlo_val ev = lg_hlo_like(h, e, v, "01"),
               beta = lg_hlo_like(h, lg_hlo_reshape(h, x->beta, head), v, "01");
    lg_hlo_val r = lg_hlo_mul(h, ev, lg_hlo_dot(h, "nhk,nhkv->nhv", k, state));
    lg_hlo_val o = lg_hlo_mul(h, ev, lg_hlo_dot(h, "nhk,nhkv->nhv", q, state));
    lg_hlo_val d = lg_hlo_mul(h, beta, lg_hlo_sub(h, v, r));
    o = lg_hlo_add(h, o, lg_hlo_mul(h, lg_hlo_like(h, qk, d, "01"), d));
    lg_hlo_val write =
        lg_hlo_mul(h, lg_hlo_like(h, k, state, "012"), lg_hlo_like(h, d, state, "013"));
    save(s, LG_PJRT_POOL_S, p,
         lg_hlo_add(h, lg_hlo_mul(h, lg_hlo_like(h, e, state, "01"), state), write));
    return lg_hlo_reshape(h, o, LG_HLO_T(F32, n, 1, c->n_v_head, c->d_v));
}

/* exp(c_r - c_j) for j <= r, 0 above: c [n][n_v_head][t] -> [n][n_v_head][t][t]. */
static lg_hlo_val decay(lg_step_emit *s, lg_hlo_val c) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = lg_hlo_type_at(h, c);
    lg_hlo_type sq = LG_HLO_T(F32, t.dim[0], t.dim[1], t.dim[2], t.dim[2]),
                at = lg_hlo_as(sq, LG_HLO_I32);
    lg_hlo_val diff =
        lg_hlo_sub(h, lg_hlo_bcast(h, c, sq, "012"), lg_hlo_bcast(h, c, sq, "013"));
    lg_hlo_val lower = lg_hlo_cmp(h, "GE", lg_hlo_iota(h, at, 2), lg_hlo_iota(h, at, 3));
    diff = lg_hlo_bin_f(h, "minimum", lg_hlo_select_f(h, lower, diff, 0.0f), 0.0f);
    return lg_hlo_select_f(h, lower, lg_hlo_un(h, "exponential", diff), 0.0f);
}

/* A block of rows against the state [n][n_v_head][d_k][d_v]: -> core [n][t][n_v_head][d_v]; *state moves on. */
static lg_hlo_val block(lg_step_emit *s, const rows *x, lg_hlo_val *state) {
    lg_hlo *h = &s->h;
    const lg_config *cfg = s->cfg;
    int64_t n = lg_hlo_dim(h, x->q, 0), t = lg_hlo_dim(h, x->q, 1), nv = cfg->n_v_head;
    lg_hlo_type tri = LG_HLO_T(I32, t, t);
    lg_hlo_val upto = lg_hlo_cmp(h, "LE", lg_hlo_iota(h, tri, 0), lg_hlo_iota(h, tri, 1));
    lg_hlo_val c = lg_hlo_dot(h, "njh,jr->nhr", x->g, lg_hlo_convert(h, upto, LG_HLO_F32));
    lg_hlo_val ec = lg_hlo_un(h, "exponential", c), fall = decay(s, c);
    lg_hlo_val beta = lg_hlo_transpose(h, x->beta, "021");
    lg_hlo_val k = lg_hlo_transpose(h, for_value_heads(s, x->k, 2), "0213");
    lg_hlo_val q = lg_hlo_transpose(h, for_value_heads(s, x->q, 2), "0213");
    lg_hlo_val v = lg_hlo_transpose(h, x->v, "0213");
    lg_hlo_val kk = for_value_heads(s, lg_hlo_dot(h, "nrgd,njgd->ngrj", x->k, x->k), 1);
    lg_hlo_val qk = for_value_heads(s, lg_hlo_dot(h, "nrgd,njgd->ngrj", x->q, x->k), 1);
    lg_hlo_type at = lg_hlo_as(lg_hlo_type_at(h, fall), LG_HLO_I32);
    lg_hlo_val below = lg_hlo_cmp(h, "GT", lg_hlo_iota(h, at, 2), lg_hlo_iota(h, at, 3));
    lg_hlo_val a = lg_hlo_mul(h, lg_hlo_mul(h, kk, fall), lg_hlo_like(h, beta, fall, "012"));
    a = lg_hlo_select_f(h, below, a, 0.0f);
    lg_hlo_val scaled_k = lg_hlo_mul(h, k, lg_hlo_like(h, lg_hlo_mul(h, beta, ec), k, "012"));
    lg_hlo_val right[2] = {lg_hlo_mul(h, v, lg_hlo_like(h, beta, v, "012")), scaled_k};
    lg_hlo_val uw = lg_hlo_solve(h, a, lg_hlo_concat(h, 3, right, 2));
    lg_hlo_val u = lg_hlo_slice(h, uw, 3, 0, cfg->d_v),
               w = lg_hlo_slice(h, uw, 3, cfg->d_v, cfg->d_k);
    lg_hlo_val d = lg_hlo_sub(h, u, lg_hlo_dot(h, "nhrk,nhkv->nhrv", w, *state));
    lg_hlo_val o = lg_hlo_dot(h, "nhrk,nhkv->nhrv",
                              lg_hlo_mul(h, q, lg_hlo_like(h, ec, q, "012")), *state);
    o = lg_hlo_add(h, o, lg_hlo_dot(h, "nhrj,nhjv->nhrv", lg_hlo_mul(h, qk, fall), d));
    lg_hlo_val last = lg_hlo_slice(h, c, 2, t - 1, 1),
               left = lg_hlo_sub(h,
                                 lg_hlo_bcast(h, lg_hlo_reshape(h, last, LG_HLO_T(F32, n, nv)),
                                              lg_hlo_type_at(h, c), "01"),
                                 c);
    lg_hlo_val k_end =
        lg_hlo_mul(h, k, lg_hlo_like(h, lg_hlo_un(h, "exponential", left), k, "012"));
    lg_hlo_val e_end =
        lg_hlo_un(h, "exponential", lg_hlo_reshape(h, last, LG_HLO_T(F32, n, nv)));
    *state = lg_hlo_add(h, lg_hlo_mul(h, *state, lg_hlo_like(h, e_end, *state, "01")),
                        lg_hlo_dot(h, "nhrk,nhrv->nhkv", k_end, d));
    return lg_hlo_transpose(h, o, "0213");
}

/* Rows at.. of x [n][padded][..] along axis 1. */
static lg_hlo_val tile_of(lg_step_emit *s, lg_hlo_val x, lg_hlo_val at, int64_t tile) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = lg_hlo_type_at(h, x);
    lg_hlo_val zero = lg_hlo_i32(h, 0),
               start[LG_HLO_MAX_DIM] = {zero, at, zero, zero, zero, zero};
    t.dim[1] = tile;
    return lg_hlo_window(h, x, start, t.dim);
}

/* Sequences of many rows, block by block; blocks past the longest are not run. */
static lg_hlo_val many_rows(lg_step_emit *s, const part *p, rows *x) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    int64_t tile = p->t < LG_STEP_GDN_TILE ? p->t : LG_STEP_GDN_TILE,
            more = (tile - p->t % tile) % tile;
    lg_hlo_val *all[5] = {&x->q, &x->k, &x->v, &x->g, &x->beta};
    for (int i = 0; i < 5; i++) *all[i] = lg_hlo_pad(h, *all[i], 1, 0, more);
    lg_hlo_val longest =
        lg_hlo_reduce(h, "maximum", lg_step_seqs(s, s->n_tok, p->from, p->n), 0);
    lg_hlo_val n_tile =
        lg_hlo_bin_i(h, "divide", lg_hlo_bin_i(h, "add", longest, tile - 1), tile);
    lg_hlo_val carry[2] = {
        load(s, LG_PJRT_POOL_S, p),
        lg_hlo_float(h, LG_HLO_T(F32, p->n, p->t + more, c->n_v_head, c->d_v), 0)};
    lg_hlo_val at = lg_hlo_bin_i(h, "multiply", lg_hlo_for(h, n_tile, carry, 2), tile);
    rows part_x = {tile_of(s, x->q, at, tile), tile_of(s, x->k, at, tile),
                   tile_of(s, x->v, at, tile), tile_of(s, x->g, at, tile),
                   tile_of(s, x->beta, at, tile)};
    lg_hlo_val o = block(s, &part_x, &carry[0]), zero = lg_hlo_i32(h, 0);
    carry[1] = lg_hlo_window_put(h, carry[1], o, (lg_hlo_val[]){zero, at, zero, zero});
    lg_hlo_end_for(h, carry, 2);
    save(s, LG_PJRT_POOL_S, p, carry[0]);
    return lg_hlo_slice(h, carry[1], 1, 0, p->t);
}

/* Core of one kind of sequences, [n * t][n_v_head][d_v].  proj: rows as projected, QKV, A and B; *conv: the rows after
 * convolution. */
static lg_hlo_val core_of(lg_step_emit *s, const part *p, const lg_hlo_val proj[3],
                          lg_hlo_val g, lg_hlo_val beta, lg_hlo_val *conv) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    const lg_step_parts *other = s->m->parts;
    int64_t conv_dim = lg_config_conv_dim(c);
    lg_hlo_val raw = proj[0];
    if (other && other->gdn && !s->debug) {
        lg_hlo_val x[3];
        for (int i = 0; i < 3; i++) x[i] = lg_hlo_slice(h, proj[i], 0, p->row0, p->n * p->t);
        return other->gdn(other->ctx, s, p->from, p->n, (uint32_t)p->t, x[0], x[1], x[2]);
    }
    lg_hlo_val u = convolve(s, p, rows_of(s, p, raw));
    *conv = lg_hlo_reshape(h, u, LG_HLO_T(F32, p->n * p->t, conv_dim));
    rows x = cut(s, p, u, g, beta);
    lg_hlo_val o = p->t == 1 ? one_row(s, p, &x) : many_rows(s, p, &x);
    return lg_hlo_reshape(h, o, LG_HLO_T(F32, p->n * p->t, c->n_v_head, c->d_v));
}

/* max(x, 0) + log(1 + exp(-|x|)) */
static lg_hlo_val softplus(lg_step_emit *s, lg_hlo_val x) {
    lg_hlo *h = &s->h;
    lg_hlo_val tail =
        lg_hlo_un(h, "exponential", lg_hlo_un(h, "negate", lg_hlo_un(h, "abs", x)));
    return lg_hlo_add(h, lg_hlo_bin_f(h, "maximum", x, 0.0f),
                      lg_hlo_un(h, "log_plus_one", tail));
}

static void note_conv(lg_step_emit *s, lg_hlo_val u) {
    const lg_config *c = s->cfg;
    int64_t keys = (int64_t)c->n_k_head * c->d_k;
    if (!s->debug) return;
    lg_step_note(s, "gdn.q", lg_hlo_slice(&s->h, u, 1, 0, keys));
    lg_step_note(s, "gdn.k", lg_hlo_slice(&s->h, u, 1, keys, keys));
    lg_step_note(s, "gdn.v",
                 lg_hlo_slice(&s->h, u, 1, 2 * keys, (int64_t)c->n_v_head * c->d_v));
}

lg_hlo_val lg_step_gdn(lg_step_emit *s, lg_hlo_val xn) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    const lg_pjrt_bucket *b = s->b;
    int64_t n = s->n_row, vals = (int64_t)c->n_v_head * c->d_v;
    lg_hlo_type head = LG_HLO_T(F32, n, c->n_v_head);
    lg_hlo_val raw = lg_step_matmul(s, xn, lg_step_weight(s, LG_PJRT_W_QKV));
    lg_hlo_val z = lg_step_matmul(s, xn, lg_step_weight(s, LG_PJRT_W_Z));
    lg_hlo_val b_raw = lg_step_matmul(s, xn, lg_step_weight(s, LG_PJRT_W_B));
    lg_hlo_val a_raw = lg_step_matmul(s, xn, lg_step_weight(s, LG_PJRT_W_A));
    lg_hlo_val beta = lg_hlo_un(h, "logistic", b_raw), proj[3] = {raw, a_raw, b_raw};
    lg_hlo_val g = softplus(
        s,
        lg_hlo_add(h, a_raw, lg_hlo_bcast(h, lg_step_weight(s, LG_PJRT_W_DT_BIAS), head, "1")));
    g = lg_hlo_mul(h, g, lg_hlo_bcast(h, lg_step_weight(s, LG_PJRT_W_NEG_EXP_A), head, "1"));
    lg_step_note(s, "gdn.qkv_raw", raw);
    lg_step_note(s, "gdn.z", z);
    lg_hlo_val core[2], conv[2] = {0};
    uint32_t n_part = 0;
    if (b->n_one) {
        part p = part_of(s, 0, b->n_one, 0, 1);
        core[n_part] = core_of(s, &p, proj, g, beta, &conv[n_part]);
        n_part++;
    }
    if (b->n_many) {
        part p = part_of(s, b->n_one, b->n_many, b->n_one, b->n_row);
        core[n_part] = core_of(s, &p, proj, g, beta, &conv[n_part]);
        n_part++;
    }
    if (s->debug) note_conv(s, lg_hlo_concat(h, 0, conv, n_part));
    lg_step_note(s, "gdn.g", g);
    lg_step_note(s, "gdn.beta", beta);
    lg_hlo_val o = lg_hlo_concat(h, 0, core, n_part);
    lg_step_note(s, "gdn.core_out", o);
    lg_hlo_val y = lg_hlo_reshape(h, lg_step_norm(s, o, lg_step_weight(s, LG_PJRT_W_GDN_NORM)),
                                  LG_HLO_T(F32, n, vals));
    y = lg_hlo_mul(h, y, lg_step_silu(s, z));
    lg_step_note(s, "gdn.gated_norm", y);
    return lg_step_matmul(s, y, lg_step_weight(s, LG_PJRT_W_OUT));
}
