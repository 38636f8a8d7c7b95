/* twin.c - the kernels in plain StableHLO (twin.h).
 *
 * Tests: tests/unit/test_mosaic_*.c, test_step_types.c */
#include "backend/pjrt/mosaic/twin.h"

#include <math.h>

/* Operands behind the prefetched ones, in the order of mosaic_kern.h. */
enum { QKV, A, B, CONV_W, NEG_A, DT, CONV, STATE };

/* ---- Gated DeltaNet: n rows, one of each of n sequences ---- */

typedef struct gdn_rows {
    const lg_mosaic_gdn *g;
    int64_t n;
    lg_hlo_val conv_w, neg_a, dt; /* of the layer: [4][R][d], [nv] twice */
    lg_hlo_val conv, state;       /* [n][3][R][d], [n][nv][d][d]: brought forward; F32 */
} gdn_rows;

static lg_hlo_val element(lg_hlo *h, lg_hlo_val x, int64_t i) {
    return lg_hlo_reshape(h, lg_hlo_slice(h, x, 0, i, 1), lg_hlo_scalar(LG_HLO_I32));
}

/* The layer's weights; layer: scalar. */
static void layer_weights(lg_hlo *h, gdn_rows *r, const lg_hlo_val *in, lg_hlo_val layer) {
    lg_hlo_type head = LG_HLO_T(F32, r->g->nv);
    r->conv_w = lg_hlo_row(h, in[CONV_W], layer);
    r->neg_a = lg_hlo_reshape(h, lg_hlo_row(h, in[NEG_A], layer), head);
    r->dt = lg_hlo_reshape(h, lg_hlo_row(h, in[DT], layer), head);
}

static lg_hlo_val softplus(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_val tail =
        lg_hlo_un(h, "exponential", lg_hlo_un(h, "negate", lg_hlo_un(h, "abs", x)));
    return lg_hlo_add(h, lg_hlo_bin_f(h, "maximum", x, 0.0f),
                      lg_hlo_un(h, "log_plus_one", tail));
}

/* [n][nk][d] rows divided by their length, times scale, repeated for the value heads: [n][nv][d]. */
static lg_hlo_val heads(lg_hlo *h, const gdn_rows *r, lg_hlo_val x, float scale) {
    const lg_mosaic_gdn *g = r->g;
    int64_t rep = g->nv / g->nk;
    lg_hlo_val s = lg_hlo_reduce(h, "add", lg_hlo_mul(h, x, x), 2);
    s = lg_hlo_un(h, "rsqrt", lg_hlo_bin_f(h, "add", s, 1e-6f));
    x = lg_hlo_mul(h, x, lg_hlo_like(h, lg_hlo_bin_f(h, "multiply", s, scale), x, "01"));
    x = lg_hlo_bcast(h, x, LG_HLO_T(F32, r->n, g->nk, rep, g->d), "013");
    return lg_hlo_reshape(h, x, LG_HLO_T(F32, r->n, g->nv, g->d));
}

/* x [n][R][d], a, b [n][nv] F32 -> o [n][nv][d]. */
static lg_hlo_val gdn_row(lg_hlo *h, gdn_rows *r, lg_hlo_val x, lg_hlo_val a, lg_hlo_val b) {
    const lg_mosaic_gdn *g = r->g;
    int64_t n = r->n, rows = 2 * (int64_t)g->nk + g->nv, d = g->d;
    lg_hlo_val part[2] = {r->conv, lg_hlo_reshape(h, x, LG_HLO_T(F32, n, 1, rows, d))};
    lg_hlo_val all = lg_hlo_concat(h, 1, part, 2);
    lg_hlo_val u =
        lg_hlo_reduce(h, "add", lg_hlo_mul(h, all, lg_hlo_like(h, r->conv_w, all, "123")), 1);
    r->conv = lg_hlo_slice(h, all, 1, 1, 3);
    u = lg_hlo_mul(h, u, lg_hlo_un(h, "logistic", u));
    lg_hlo_val q = heads(h, r, lg_hlo_slice(h, u, 1, 0, g->nk), 1.0f / sqrtf((float)d));
    lg_hlo_val k = heads(h, r, lg_hlo_slice(h, u, 1, g->nk, g->nk), 1.0f);
    lg_hlo_val v = lg_hlo_slice(h, u, 1, 2 * (int64_t)g->nk, g->nv);
    lg_hlo_val gate = softplus(h, lg_hlo_add(h, a, lg_hlo_like(h, r->dt, a, "1")));
    gate = lg_hlo_un(h, "exponential", lg_hlo_mul(h, gate, lg_hlo_like(h, r->neg_a, a, "1")));
    lg_hlo_val s = lg_hlo_mul(h, r->state, lg_hlo_like(h, gate, r->state, "01"));
    lg_hlo_val delta = lg_hlo_sub(h, v, lg_hlo_dot(h, "nhk,nhkv->nhv", k, s));
    delta = lg_hlo_mul(h, delta, lg_hlo_like(h, lg_hlo_un(h, "logistic", b), delta, "01"));
    r->state = lg_hlo_add(
        h, s, lg_hlo_mul(h, lg_hlo_like(h, k, s, "012"), lg_hlo_like(h, delta, s, "013")));
    return lg_hlo_dot(h, "nhk,nhkv->nhv", q, r->state);
}

/* Rows of a pool for n sequences as F32, zero unless mode says that they go on. */
static lg_hlo_val read_pool(lg_hlo *h, lg_hlo_val pool, lg_hlo_val idx, lg_hlo_val mode) {
    lg_hlo_val x = lg_hlo_convert(h, lg_hlo_take(h, pool, idx), LG_HLO_F32);
    lg_hlo_val has = lg_hlo_cmp_i(h, "EQ", mode, LG_MOSAIC_GOES_ON);
    return lg_hlo_select_f(h, lg_hlo_like(h, has, x, "0"), x, 0.0f);
}

static lg_hlo_val write_pool(lg_hlo *h, lg_hlo_val pool, lg_hlo_val idx, lg_hlo_val x) {
    return lg_hlo_put(h, pool, idx, lg_hlo_convert(h, x, lg_hlo_type_at(h, pool).dt));
}

/* (layer, slot) for each of n; idle ones out of range, so that nothing is written. */
static lg_hlo_val places(lg_hlo *h, const gdn_rows *r, lg_hlo_val layer, lg_hlo_val slot,
                         lg_hlo_val mode, bool write) {
    lg_hlo_type t = LG_HLO_T(I32, r->n);
    if (write)
        slot = lg_hlo_select(h, lg_hlo_cmp_i(h, "NE", mode, LG_MOSAIC_IDLE), slot,
                             lg_hlo_int(h, t, r->g->n_slot));
    lg_hlo_val col[2] = {lg_hlo_bcast(h, layer, t, ""), slot};
    return lg_hlo_idx(h, col, 2);
}

void lg_twin_gdn_decode(const lg_mosaic_gdn *g, lg_hlo *h, const lg_hlo_val *arg,
                        lg_hlo_val *result) {
    lg_hlo_val slot = arg[0], mode = arg[1], layer = arg[2];
    const lg_hlo_val *in = arg + 3;
    gdn_rows r = {.g = g, .n = g->n_row};
    lg_hlo_type head = LG_HLO_T(F32, g->n_row, g->nv);
    lg_hlo_val pool_layer = element(h, layer, 0);
    layer_weights(h, &r, in, element(h, layer, 1));
    lg_hlo_val from = places(h, &r, pool_layer, slot, mode, false),
               to = places(h, &r, pool_layer, slot, mode, true);
    r.conv = read_pool(h, in[CONV], from, mode);
    r.state = read_pool(h, in[STATE], from, mode);
    lg_hlo_val o = gdn_row(h, &r, lg_hlo_convert(h, in[QKV], LG_HLO_F32),
                           lg_hlo_reshape(h, in[A], head), lg_hlo_reshape(h, in[B], head));
    result[0] = lg_hlo_convert(h, o, lg_hlo_type_at(h, in[QKV]).dt);
    result[1] = write_pool(h, in[CONV], to, r.conv);
    result[2] = write_pool(h, in[STATE], to, r.state);
}

/* Column `at` of row i of x [N][nv][C] as [1][nv]. */
static lg_hlo_val gate_at(lg_hlo *h, const lg_mosaic_gdn *g, lg_hlo_val x, lg_hlo_val i,
                          lg_hlo_val at) {
    lg_hlo_val start[3] = {i, lg_hlo_i32(h, 0), at};
    const int64_t size[3] = {1, g->nv, 1};
    return lg_hlo_reshape(h, lg_hlo_window(h, x, start, size), LG_HLO_T(F32, 1, g->nv));
}

void lg_twin_gdn_prefill(const lg_mosaic_gdn *g, lg_hlo *h, const lg_hlo_val *arg,
                         lg_hlo_val *result) {
    int64_t rows = 2 * (int64_t)g->nk + g->nv, d = g->d;
    const lg_hlo_val *in = arg + 4;
    lg_hlo_dt act = lg_hlo_type_at(h, in[QKV]).dt;
    gdn_rows r = {.g = g, .n = 1};
    lg_hlo_val pool_layer = element(h, arg[3], 0);
    layer_weights(h, &r, in, element(h, arg[3], 1));
    lg_hlo_type o_type =
        lg_hlo_as(LG_HLO_T(F32, (int64_t)g->n_row * LG_MOSAIC_CHUNK, g->nv * d), act);
    /* Carried over tiles: result, both pools, and the sequence's rows and state as they are now. */
    lg_hlo_val c[5] = {lg_hlo_float(h, lg_hlo_as(o_type, LG_HLO_F32), 0.0f), in[CONV],
                       in[STATE], lg_hlo_float(h, LG_HLO_T(F32, 1, 3, rows, d), 0.0f),
                       lg_hlo_float(h, LG_HLO_T(F32, 1, g->nv, d, d), 0.0f)};
    lg_hlo_val i = lg_hlo_for(h, lg_hlo_i32(h, g->n_row), c, 5);
    lg_hlo_val slot = lg_hlo_rows(h, arg[0], i, 1), mode = lg_hlo_rows(h, arg[1], i, 1);
    lg_hlo_val follows = lg_hlo_cmp_i(h, "EQ", mode, LG_MOSAIC_FOLLOWS);
    lg_hlo_val from = places(h, &r, pool_layer, slot, mode, false),
               to = places(h, &r, pool_layer, slot, mode, true);
    lg_hlo_val now[3] = {lg_hlo_select(h, lg_hlo_like(h, follows, c[3], "0"), c[3],
                                       read_pool(h, c[1], from, mode)),
                         lg_hlo_select(h, lg_hlo_like(h, follows, c[4], "0"), c[4],
                                       read_pool(h, c[2], from, mode)),
                         c[0]};
    lg_hlo_val live = lg_hlo_cmp_i(h, "NE", lg_hlo_row(h, arg[1], i), LG_MOSAIC_IDLE);
    lg_hlo_val n = lg_hlo_select(h, live, lg_hlo_row(h, arg[2], i), lg_hlo_i32(h, 0));
    lg_hlo_val j = lg_hlo_for(h, n, now, 3);
    lg_hlo_val at = lg_hlo_add(h, lg_hlo_bin_i(h, "multiply", i, LG_MOSAIC_CHUNK), j);
    lg_hlo_val x = lg_hlo_convert(h, lg_hlo_rows(h, in[QKV], at, 1), LG_HLO_F32);
    r.conv = now[0];
    r.state = now[1];
    lg_hlo_val o = gdn_row(h, &r, lg_hlo_reshape(h, x, LG_HLO_T(F32, 1, rows, d)),
                           gate_at(h, g, in[A], i, j), gate_at(h, g, in[B], i, j));
    lg_hlo_val next[3] = {
        r.conv, r.state,
        lg_hlo_rows_put(h, now[2], lg_hlo_reshape(h, o, LG_HLO_T(F32, 1, g->nv * d)), at)};
    lg_hlo_end_for(h, next, 3);
    lg_hlo_val end[5] = {next[2], write_pool(h, c[1], to, next[0]),
                         write_pool(h, c[2], to, next[1]), next[0], next[1]};
    lg_hlo_end_for(h, end, 5);
    result[0] = lg_hlo_convert(h, end[0], act);
    result[1] = end[1];
    result[2] = end[2];
}

/* ---- Grouped product ---- */

/* FP8 rows x [n][m][in] by FP8 weights [n][w][in]: a block's product, summed in F32, times its scales; and the sum of all. */
static lg_hlo_val gmm_narrow(const lg_mosaic_gmm *g, lg_hlo *h, lg_hlo_val x,
                             lg_hlo_val x_scale, lg_hlo_val weight, lg_hlo_val scale) {
    lg_hlo_type t = lg_hlo_type_at(h, weight);
    int64_t n = t.dim[0], w = t.dim[1], m = g->tile_rows, kb = g->k_block, nb = g->n_in / kb;
    x = lg_hlo_reshape(h, x, lg_hlo_as(LG_HLO_T(F32, n, m, nb, kb), LG_HLO_E4M3));
    weight = lg_hlo_reshape(h, weight, lg_hlo_as(LG_HLO_T(F32, n, w, nb, kb), LG_HLO_E4M3));
    lg_hlo_val y = lg_hlo_dot(h, "nmbk,nwbk->nbmw", x, weight);
    if (g->tiled) {
        y = lg_hlo_reshape(h, y, LG_HLO_T(F32, n, nb, m, w / kb, kb));
        y = lg_hlo_mul(h, y, lg_hlo_like(h, lg_hlo_transpose(h, scale, "021"), y, "013"));
        y = lg_hlo_reshape(h, y, LG_HLO_T(F32, n, nb, m, w));
    } else {
        y = lg_hlo_mul(h, y, lg_hlo_like(h, scale, y, "013"));
    }
    x_scale = lg_hlo_transpose(h, lg_hlo_reshape(h, x_scale, LG_HLO_T(F32, n, m, nb)), "021");
    y = lg_hlo_mul(h, y, lg_hlo_like(h, x_scale, y, "012"));
    return lg_hlo_reduce(h, "add", y, 1);
}

/* F32 weights [n][w][in] of FP8 ones with their scales. */
static lg_hlo_val gmm_wide(const lg_mosaic_gmm *g, lg_hlo *h, lg_hlo_val weight,
                           lg_hlo_val scale) {
    lg_hlo_type t = lg_hlo_type_at(h, weight);
    int64_t n = t.dim[0], w = t.dim[1], in = g->n_in, kb = g->k_block;
    if (g->tiled) {
        weight = lg_hlo_reshape(h, weight, LG_HLO_T(F32, n, w / kb, kb, in / kb, kb));
        weight = lg_hlo_mul(h, weight, lg_hlo_like(h, scale, weight, "013"));
    } else {
        weight = lg_hlo_reshape(h, weight, LG_HLO_T(F32, n, w, in / kb, kb));
        weight = lg_hlo_mul(h, weight,
                            lg_hlo_like(h, lg_hlo_transpose(h, scale, "021"), weight, "012"));
    }
    return lg_hlo_reshape(h, weight, t);
}

void lg_twin_gmm(const lg_mosaic_gmm *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result) {
    int64_t n = g->n_tile, m = g->tile_rows, in = g->n_in;
    bool narrow = g->act == LG_M_E4M3;
    const lg_hlo_val *weights = arg + (narrow ? 6 : 5);
    lg_hlo_dt dt = narrow ? LG_HLO_E4M3 : LG_HLO_F32;
    lg_hlo_val layer = lg_hlo_bcast(h, element(h, arg[3], 0), LG_HLO_T(I32, n), "");
    lg_hlo_val idx = lg_hlo_idx(h, (lg_hlo_val[]){layer, arg[0]}, 2);
    lg_hlo_val x = lg_hlo_convert(h, arg[4], dt), y, block = lg_hlo_idx(h, &arg[1], 1);
    x = lg_hlo_take(h, lg_hlo_reshape(h, x, lg_hlo_as(LG_HLO_T(F32, n, m, in), dt)), block);
    lg_hlo_val weight = lg_hlo_convert(h, lg_hlo_take(h, weights[0], idx), dt);
    lg_hlo_val scale = g->weight == LG_M_E4M3 ? lg_hlo_take(h, weights[1], idx) : 0;
    if (narrow) {
        lg_hlo_val x_scale =
            lg_hlo_reshape(h, arg[5], LG_HLO_T(F32, n, m, g->n_in / g->k_block));
        y = gmm_narrow(g, h, x, lg_hlo_take(h, x_scale, block), weight, scale);
    } else {
        if (scale) weight = gmm_wide(g, h, weight, scale);
        y = lg_hlo_dot(h, "nmk,nwk->nmw", x, weight);
    }
    lg_hlo_dt hidden = g->hidden == LG_M_BF16 ? LG_HLO_BF16 : LG_HLO_F32;
    if (g->swiglu) {
        lg_hlo_val gate = lg_hlo_slice(h, y, 2, 0, g->n_out);
        y = lg_hlo_mul(h, lg_hlo_mul(h, gate, lg_hlo_un(h, "logistic", gate)),
                       lg_hlo_slice(h, y, 2, g->n_out, g->n_out));
        y = lg_hlo_convert(h, y, hidden);
    }
    /* Each live tile to its block. */
    lg_hlo_val to = lg_hlo_select(h, lg_hlo_cmp_i(h, "NE", arg[2], 0), arg[1],
                                  lg_hlo_int(h, LG_HLO_T(I32, n), n));
    y = lg_hlo_put(h, lg_hlo_float(h, lg_hlo_type_at(h, y), 0.0f), lg_hlo_idx(h, &to, 1), y);
    result[0] = lg_hlo_reshape(
        h, y, lg_hlo_as(LG_HLO_T(F32, n * m, g->n_out), g->swiglu ? hidden : LG_HLO_F32));
}

/* ---- Attention: every tile gathers its sequence's whole row of the table ---- */

enum { FIRST, TILE_OF, SEQ, POS, SEE, LAYER, TABLE, QUERY, KEY, VALUE };

/* [T][positions][n_kv][d] of one pool, F32. */
static lg_hlo_val all_pages(const lg_mosaic_attn *a, lg_hlo *h, const lg_hlo_val *arg,
                            int pool) {
    int64_t t = a->n_tile, places = (int64_t)a->n_page_seq * LG_MOSAIC_ATTN_PAGE;
    lg_hlo_val table = lg_hlo_reshape(h, arg[TABLE], LG_HLO_T(I32, a->n_seq, a->n_page_seq));
    lg_hlo_val page = lg_hlo_take(h, table, lg_hlo_idx(h, &arg[SEQ], 1));
    lg_hlo_val col[2] = {lg_hlo_like(h, element(h, arg[LAYER], 0), page, ""), page};
    lg_hlo_val x =
        lg_hlo_convert(h, lg_hlo_take(h, arg[pool], lg_hlo_idx(h, col, 2)), LG_HLO_F32);
    return lg_hlo_reshape(h, x, LG_HLO_T(F32, t, places, a->n_kv, a->d));
}

void lg_twin_attn(const lg_mosaic_attn *a, lg_hlo *h, const lg_hlo_val *arg,
                  lg_hlo_val *result) {
    int64_t t = a->n_tile, rows = (int64_t)a->group * a->rows,
            places = (int64_t)a->n_page_seq * LG_MOSAIC_ATTN_PAGE;
    lg_hlo_type at = LG_HLO_T(I32, t, rows, places);
    lg_hlo_val place = lg_hlo_iota(h, at, 2), see = lg_hlo_bcast(h, arg[SEE], at, "0");
    lg_hlo_val own = lg_hlo_bin_i(h, "remainder", lg_hlo_iota(h, at, 1), a->rows);
    own = lg_hlo_add(h, own, lg_hlo_bcast(h, arg[POS], at, "0"));
    lg_hlo_val open =
        lg_hlo_bin(h, "and", lg_hlo_cmp(h, "LE", place, own), lg_hlo_cmp(h, "LT", place, see));
    lg_hlo_val k = all_pages(a, h, arg, KEY), v = all_pages(a, h, arg, VALUE);
    lg_hlo_type line = LG_HLO_T(I32, t, places);
    lg_hlo_val there =
        lg_hlo_cmp(h, "LT", lg_hlo_iota(h, line, 1), lg_hlo_bcast(h, arg[SEE], line, "0"));
    v = lg_hlo_select_f(h, lg_hlo_like(h, there, v, "01"), v, 0.0f);
    lg_hlo_val s =
        lg_hlo_dot(h, "tkrd,tlkd->tkrl", lg_hlo_convert(h, arg[QUERY], LG_HLO_F32), k);
    s = lg_hlo_select_f(h, lg_hlo_like(h, open, s, "023"), s, -1e30f);
    lg_hlo_val max = lg_hlo_reduce(h, "maximum", s, 3);
    s = lg_hlo_un(h, "exponential", lg_hlo_sub(h, s, lg_hlo_like(h, max, s, "012")));
    lg_hlo_val o = lg_hlo_dot(h, "tkrl,tlkd->tkrd", s, v);
    o = lg_hlo_bin(h, "divide", o, lg_hlo_like(h, lg_hlo_reduce(h, "add", s, 3), o, "012"));
    lg_hlo_val some = lg_hlo_cmp_i(h, "GT", arg[SEE], 0);
    result[0] = lg_hlo_select_f(h, lg_hlo_like(h, some, o, "0"), o, 0.0f);
}
