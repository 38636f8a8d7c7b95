/* step_moe.c - the MLP of a step: router, routed experts, shared expert; or the dense MLP.
 *
 * In: normed rows [R][n_embd].  Out: rows for the residual.
 * Tiles: (row, expert) pairs are sorted by expert and cut into tiles of LG_STEP_MOE_TILE rows of one expert; a loop
 * runs over the tiles there are, so an expert that nobody chose is not read, and each tile adds to its rows' sums:
 * experts ascending, as docs/MODEL.md has it.  All: every expert over every row, weights zero where it was not chosen.
 * On several devices each holds experts device * n .. of every layer: hidden rows and routing are gathered from all in
 * one message, each computes its experts' share of all rows, and the shares are summed to the rows' owners.
 * Test: tests/unit/test_step.c */
#include "backend/pjrt/step/step.h"

/* Rows and their experts: x [n][n_embd] of the weights' type, id I32 and w F32 [n][k]; padding has ids that no device
 * holds. */
typedef struct routed {
    lg_hlo_val x, id, w;
    lg_hlo_val first;       /* scalar: first expert of this device */
    int64_t n, k, n_expert; /* rows; experts a row, experts here */
} routed;

/* y = down(silu(gate x) * up x) with gate and up as one matrix. */
static lg_hlo_val gated(lg_step_emit *s, lg_hlo_val gu) {
    lg_hlo *h = &s->h;
    uint32_t axis = lg_hlo_type_at(h, gu).n_dim - 1;
    int64_t ff = lg_hlo_dim(h, gu, axis) / 2;
    return lg_hlo_mul(h, lg_step_silu(s, lg_hlo_slice(h, gu, axis, 0, ff)),
                      lg_hlo_slice(h, gu, axis, ff, ff));
}

static lg_hlo_val mlp(lg_step_emit *s, lg_hlo_val x, lg_pjrt_weight gate_up,
                      lg_pjrt_weight down) {
    lg_hlo_val gu = lg_step_matmul(s, x, lg_step_weight(s, gate_up));
    return lg_step_matmul(s, gated(s, gu), lg_step_weight(s, down));
}

/* Inputs of a row of n that share a scale. */
static int64_t row_group(const lg_step_emit *s, int64_t n) {
    if (s->expert == LG_HLO_E4M3 && s->m->scale_in)
        return lg_pjrt_scale_in(s->m->scale_in, (uint32_t)n);
    return n % 128 ? n : 128;
}

lg_hlo_val lg_step_split_rows(lg_step_emit *s, lg_hlo_val x, lg_hlo_val *scale) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = lg_hlo_as(lg_hlo_type_at(h, x), LG_HLO_F32), ts = t;
    int64_t last = t.dim[t.n_dim - 1], g = row_group(s, last), n = lg_hlo_count(t) / g;
    lg_hlo_type part = LG_HLO_T(F32, n, g), one = LG_HLO_T(F32, n);
    x = lg_hlo_reshape(h, lg_hlo_convert(h, x, LG_HLO_F32), part);
    lg_hlo_val top = lg_hlo_reduce(h, "maximum", lg_hlo_un(h, "abs", x), 1);
    top = lg_hlo_bin_f(h, "maximum", top, 0x1p-100f);
    /* The power of two at or below the largest becomes 128; one that would be rounded to 256 becomes less than 128, so that what
     * was rounded is not rounded again when it is split once more. */
    top = lg_hlo_bin_f(h, "multiply", top, 0x1.09p0f);
    top = lg_hlo_bitcast(h, top, lg_hlo_as(one, LG_HLO_I32));
    top = lg_hlo_bitcast(h, lg_hlo_bin_i(h, "and", top, 0x7f800000), one);
    lg_hlo_val each = lg_hlo_bin_f(h, "multiply", top, 0x1p-7f);
    lg_hlo_val q = lg_hlo_bin(h, "divide", x, lg_hlo_like(h, each, x, "0"));
    ts.dim[t.n_dim - 1] = last / g;
    *scale = lg_hlo_reshape(h, each, ts);
    return lg_hlo_reshape(h, lg_hlo_convert(h, q, LG_HLO_E4M3), lg_hlo_as(t, LG_HLO_E4M3));
}

lg_hlo_val lg_step_round_rows(lg_step_emit *s, lg_hlo_val x) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = lg_hlo_type_at(h, x);
    lg_hlo_val scale;
    if (!s->m->act_fp8 || t.n_dim == 0) return lg_hlo_convert(h, x, s->weight);
    lg_hlo_val q = lg_step_split_rows(s, x, &scale);
    /* As bits between, so that no compiler takes both conversions away. */
    q = lg_hlo_bitcast(h, q, lg_hlo_as(t, LG_HLO_U8));
    q = lg_hlo_convert(h, lg_hlo_bitcast(h, q, lg_hlo_as(t, LG_HLO_E4M3)), LG_HLO_F32);
    int64_t n = lg_hlo_count(lg_hlo_type_at(h, scale));
    q = lg_hlo_reshape(h, q, LG_HLO_T(F32, n, lg_hlo_count(t) / n));
    scale = lg_hlo_reshape(h, scale, LG_HLO_T(F32, n));
    q = lg_hlo_mul(h, q, lg_hlo_like(h, scale, q, "0"));
    return lg_hlo_convert(h, lg_hlo_reshape(h, q, lg_hlo_as(t, LG_HLO_F32)), s->weight);
}

/* FP8 weights q [..][n_out][n_in] with their scales, as the type of the products. */
static lg_hlo_val unscale(lg_step_emit *s, lg_hlo_val q, lg_hlo_val scale) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = lg_hlo_type_at(h, q);
    int64_t e = t.n_dim == 3 ? t.dim[0] : 1, out = t.dim[t.n_dim - 2], in = t.dim[t.n_dim - 1];
    lg_hlo_val x = lg_hlo_convert(h, q, LG_HLO_F32);
    if (s->m->scale_in) {
        int64_t g = lg_pjrt_scale_in(s->m->scale_in, (uint32_t)in);
        x = lg_hlo_reshape(h, x, LG_HLO_T(F32, e, out, in / g, g));
        scale = lg_hlo_reshape(h, scale, LG_HLO_T(F32, e, in / g, out));
        x = lg_hlo_mul(h, x, lg_hlo_like(h, lg_hlo_transpose(h, scale, "021"), x, "012"));
    } else {
        x = lg_hlo_reshape(h, x, LG_HLO_T(F32, e, out / 128, 128, in / 128, 128));
        scale = lg_hlo_reshape(h, scale, LG_HLO_T(F32, e, out / 128, in / 128));
        x = lg_hlo_mul(h, x, lg_hlo_like(h, scale, x, "013"));
    }
    return lg_hlo_convert(h, lg_hlo_reshape(h, x, lg_hlo_as(t, LG_HLO_F32)), s->weight);
}

/* ---- every expert over every row ---- */

static lg_hlo_val all_matrix(lg_step_emit *s, lg_pjrt_weight w, lg_pjrt_weight scale) {
    lg_hlo_val m = lg_step_weight(s, w);
    return s->expert == LG_HLO_E4M3 ? unscale(s, m, lg_step_weight(s, scale)) : m;
}

static lg_hlo_val all_experts(lg_step_emit *s, const routed *r) {
    lg_hlo *h = &s->h;
    lg_hlo_type pick = LG_HLO_T(I32, r->n, r->k, r->n_expert);
    lg_hlo_val expert =
        lg_hlo_add(h, lg_hlo_iota(h, pick, 2), lg_hlo_bcast(h, r->first, pick, ""));
    lg_hlo_val mine = lg_hlo_cmp(h, "EQ", lg_hlo_bcast(h, r->id, pick, "01"), expert);
    lg_hlo_val w = lg_hlo_bcast(h, r->w, lg_hlo_as(pick, LG_HLO_F32), "01");
    w = lg_hlo_reduce(h, "add", lg_hlo_select_f(h, mine, w, 0.0f), 1);
    lg_hlo_val gate_up =
        all_matrix(s, LG_PJRT_W_EXPERT_GATE_UP, LG_PJRT_W_EXPERT_GATE_UP_SCALE);
    lg_hlo_val down = all_matrix(s, LG_PJRT_W_EXPERT_DOWN, LG_PJRT_W_EXPERT_DOWN_SCALE);
    lg_hlo_val hid = gated(s, lg_hlo_dot(h, "ni,eoi->neo", r->x, gate_up));
    if (s->m->act_fp8) hid = lg_hlo_convert(h, lg_step_round_rows(s, hid), LG_HLO_F32);
    hid = lg_hlo_mul(h, hid, lg_hlo_like(h, w, hid, "01"));
    return lg_hlo_dot(h, "nef,eof->no", lg_hlo_convert(h, hid, s->weight), down);
}

/* ---- rows sorted by expert ---- */

/* The sorted pairs, and the tiles they are cut into. */
typedef struct tiles {
    lg_hlo_val pair;  /* [n * k] pair (row * k + j) at each place */
    lg_hlo_val start; /* [n_expert] first place of each expert */
    lg_hlo_val stop;  /* [n_expert] and the first behind it */
    lg_hlo_val end;   /* [n_expert] tiles up to and with each expert */
    lg_hlo_val n;     /* scalar: tiles */
} tiles;

/* Sums of x [n] I32 over the entries before (or up to and with) each. */
static lg_hlo_val running(lg_step_emit *s, lg_hlo_val x, bool with) {
    lg_hlo *h = &s->h;
    int64_t n = lg_hlo_dim(h, x, 0);
    lg_hlo_type sq = LG_HLO_T(I32, n, n);
    lg_hlo_val in =
        lg_hlo_cmp(h, with ? "GE" : "GT", lg_hlo_iota(h, sq, 0), lg_hlo_iota(h, sq, 1));
    lg_hlo_val wide = lg_hlo_bcast(h, x, sq, "1");
    return lg_hlo_reduce(h, "add", lg_hlo_select(h, in, wide, lg_hlo_int(h, sq, 0)), 1);
}

static tiles sort(lg_step_emit *s, const routed *r) {
    lg_hlo *h = &s->h;
    tiles t;
    int64_t pairs = r->n * r->k;
    lg_hlo_type flat = LG_HLO_T(I32, pairs), wide = LG_HLO_T(I32, r->n_expert, pairs);
    lg_hlo_val local = lg_hlo_reshape(h, r->id, flat);
    local = lg_hlo_sub(h, local, lg_hlo_bcast(h, r->first, flat, ""));
    lg_hlo_val mine = lg_hlo_bin(h, "and", lg_hlo_cmp_i(h, "GE", local, 0),
                                 lg_hlo_cmp_i(h, "LT", local, r->n_expert));
    /* Other devices' pairs and padding go to the end. */
    local = lg_hlo_select(h, mine, local, lg_hlo_int(h, flat, r->n_expert));
    lg_hlo_val is =
        lg_hlo_cmp(h, "EQ", lg_hlo_iota(h, wide, 0), lg_hlo_bcast(h, local, wide, "1"));
    lg_hlo_val count = lg_hlo_reduce(h, "add", lg_hlo_convert(h, is, LG_HLO_I32), 1);
    t.start = running(s, count, false);
    t.stop = lg_hlo_add(h, t.start, count);
    lg_hlo_val each = lg_hlo_bin_i(
        h, "divide", lg_hlo_bin_i(h, "add", count, LG_STEP_MOE_TILE - 1), LG_STEP_MOE_TILE);
    t.end = running(s, each, true);
    t.n = lg_hlo_reduce(h, "add", each, 0);
    t.pair = lg_hlo_iota(h, flat, 0);
    lg_hlo_sort(h, &local, &t.pair);
    return t;
}

/* Expert e's matrix of the layer, as the type of the products. */
static lg_hlo_val expert_matrix(lg_step_emit *s, lg_pjrt_weight w, lg_pjrt_weight scale,
                                lg_hlo_val e) {
    lg_hlo *h = &s->h;
    lg_pjrt_weight which[2] = {w, scale};
    lg_hlo_val part[2] = {0};
    for (int i = 0; i < (s->expert == LG_HLO_E4M3 ? 2 : 1); i++) {
        lg_hlo_val m = lg_step_weight_arg(s, which[i]), zero = lg_hlo_i32(h, 0);
        lg_hlo_type t = lg_hlo_type_at(h, m), to = {.dt = t.dt, .n_dim = 2};
        lg_hlo_val start[LG_HLO_MAX_DIM] = {s->group ? s->group : e, s->group ? e : zero, zero,
                                            zero};
        uint32_t lead = s->group ? 2 : 1;
        for (uint32_t k = 0; k < lead; k++) t.dim[k] = 1;
        for (uint32_t k = 0; k < 2; k++) to.dim[k] = t.dim[lead + k];
        part[i] = lg_hlo_reshape(h, lg_hlo_window(h, m, start, t.dim), to);
    }
    return part[1] ? unscale(s, part[0], part[1]) : part[0];
}

/* A tile of the loop: its expert, and its first place. */
static lg_hlo_val tile_expert(lg_step_emit *s, const tiles *t, lg_hlo_val i, lg_hlo_val *at) {
    lg_hlo *h = &s->h;
    lg_hlo_type each = lg_hlo_type_at(h, t->end);
    lg_hlo_val before = lg_hlo_cmp(h, "LE", t->end, lg_hlo_bcast(h, i, each, ""));
    before = lg_hlo_convert(h, before, LG_HLO_I32);
    lg_hlo_val e = lg_hlo_reduce(h, "add", before, 0);
    lg_hlo_val done = lg_hlo_reduce(h, "maximum", lg_hlo_mul(h, before, t->end), 0);
    *at = lg_hlo_bin_i(h, "multiply", lg_hlo_sub(h, i, done), LG_STEP_MOE_TILE);
    *at = lg_hlo_add(h, *at, lg_hlo_row(h, t->start, e));
    return e;
}

static lg_hlo_val tiled_experts(lg_step_emit *s, const routed *r) {
    lg_hlo *h = &s->h;
    int64_t tile = LG_STEP_MOE_TILE;
    tiles t = sort(s, r);
    lg_hlo_val padded = lg_hlo_pad(h, t.pair, 0, 0, tile), at;
    lg_hlo_val weight = lg_hlo_reshape(h, r->w, LG_HLO_T(F32, r->n * r->k));
    lg_hlo_val y = lg_hlo_float(h, LG_HLO_T(F32, r->n, s->cfg->n_embd), 0.0f);
    lg_hlo_val i = lg_hlo_for(h, t.n, &y, 1);
    lg_hlo_val e = tile_expert(s, &t, i, &at);
    lg_hlo_val pair = lg_hlo_rows(h, padded, at, tile);
    lg_hlo_val row = lg_hlo_bin_i(h, "divide", pair, r->k);
    lg_hlo_val x = lg_hlo_take(h, r->x, lg_hlo_idx(h, &row, 1));
    lg_hlo_val gu = lg_step_matmul(
        s, x, expert_matrix(s, LG_PJRT_W_EXPERT_GATE_UP, LG_PJRT_W_EXPERT_GATE_UP_SCALE, e));
    lg_hlo_val o =
        lg_step_matmul(s, lg_step_round_rows(s, gated(s, gu)),
                       expert_matrix(s, LG_PJRT_W_EXPERT_DOWN, LG_PJRT_W_EXPERT_DOWN_SCALE, e));
    o = lg_hlo_mul(h, o,
                   lg_hlo_like(h, lg_hlo_take(h, weight, lg_hlo_idx(h, &pair, 1)), o, "0"));
    /* What lies behind the expert's rows is the next one's: not written. */
    lg_hlo_type places = LG_HLO_T(I32, tile);
    lg_hlo_val place =
        lg_hlo_add(h, lg_hlo_iota(h, places, 0), lg_hlo_bcast(h, at, places, ""));
    lg_hlo_val own =
        lg_hlo_cmp(h, "LT", place, lg_hlo_bcast(h, lg_hlo_row(h, t.stop, e), places, ""));
    row = lg_hlo_select(h, own, row, lg_hlo_int(h, places, r->n));
    y = lg_hlo_put_add(h, y, lg_hlo_idx(h, &row, 1), o);
    lg_hlo_end_for(h, &y, 1);
    return y;
}

/* ---- several devices ---- */

/* x as bits: of the weights' type as one number an element, of 32 bits as one or two. */
static lg_hlo_val bits(lg_step_emit *s, lg_hlo_val x) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = lg_hlo_type_at(h, x);
    if (s->weight == LG_HLO_F32) return lg_hlo_bitcast(h, x, lg_hlo_as(t, LG_HLO_U32));
    if (lg_hlo_dt_bytes(t.dt) == 2) return lg_hlo_bitcast(h, x, lg_hlo_as(t, LG_HLO_U16));
    x = lg_hlo_bitcast(h, x, LG_HLO_T(U16, t.dim[0], t.dim[1], 2));
    return lg_hlo_reshape(h, x, LG_HLO_T(U16, t.dim[0], 2 * t.dim[1]));
}

/* The reverse: n columns from `from` on as [rows][width] of dt. */
static lg_hlo_val unbits(lg_step_emit *s, lg_hlo_val x, int64_t from, int64_t width,
                         lg_hlo_dt dt) {
    lg_hlo *h = &s->h;
    int64_t rows = lg_hlo_dim(h, x, 0);
    bool two = s->weight != LG_HLO_F32 && lg_hlo_dt_bytes(dt) == 4;
    lg_hlo_val part = lg_hlo_slice(h, x, 1, from, two ? 2 * width : width);
    if (two) part = lg_hlo_reshape(h, part, LG_HLO_T(U16, rows, width, 2));
    return lg_hlo_bitcast(h, part, lg_hlo_as(LG_HLO_T(F32, rows, width), dt));
}

/* Everybody's rows and routing, in one message. */
static void gather(lg_step_emit *s, routed *r) {
    lg_hlo *h = &s->h;
    int64_t n_embd = s->cfg->n_embd, per = s->weight == LG_HLO_F32 ? 1 : 2;
    lg_hlo_val part[3] = {bits(s, r->x), bits(s, r->id), bits(s, r->w)};
    lg_hlo_val all = lg_hlo_all_gather(h, lg_hlo_concat(h, 1, part, 3), s->m->n_device);
    r->n *= s->m->n_device;
    r->x = unbits(s, all, 0, n_embd, s->weight);
    r->id = unbits(s, all, n_embd, r->k, LG_HLO_I32);
    r->w = unbits(s, all, n_embd + per * r->k, r->k, LG_HLO_F32);
    r->first = lg_hlo_bin_i(h, "multiply", lg_hlo_replica_id(h), r->n_expert);
}

/* Sum of all devices' shares, this device's rows.  On the way they have the weights' type. */
static lg_hlo_val scatter(lg_step_emit *s, lg_hlo_val y) {
    lg_hlo *h = &s->h;
    const lg_step_parts *other = s->m->parts;
    y = lg_hlo_convert(h, y, s->weight);
    y = other && other->reduce_scatter ? other->reduce_scatter(other->ctx, h, y, s->m->n_device)
                                       : lg_hlo_reduce_scatter(h, y, s->m->n_device);
    return lg_hlo_convert(h, y, LG_HLO_F32);
}

/* ---- the layer's MLP ---- */

static routed route(lg_step_emit *s, lg_hlo_val xn) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    routed r = {.n = s->n_row, .k = c->n_expert_tok, .n_expert = c->n_expert / s->m->n_device};
    lg_hlo_val logit = lg_step_matmul(s, xn, lg_step_weight(s, LG_PJRT_W_ROUTER)), best;
    lg_hlo_top_k(h, logit, r.k, &best, &r.id);
    lg_hlo_val max = lg_hlo_reduce(h, "maximum", best, 1);
    lg_hlo_val p =
        lg_hlo_un(h, "exponential", lg_hlo_sub(h, best, lg_hlo_like(h, max, best, "0")));
    r.w = lg_hlo_bin(h, "divide", p, lg_hlo_like(h, lg_hlo_reduce(h, "add", p, 1), p, "0"));
    lg_step_note(s, "moe.router_logits", logit);
    if (s->debug) lg_step_note(s, "moe.topk_ids", lg_hlo_convert(h, r.id, LG_HLO_F32));
    lg_step_note(s, "moe.topk_weights", r.w);
    r.id = lg_hlo_select(h, lg_hlo_like(h, s->row_ok, r.id, "0"), r.id,
                         lg_hlo_int(h, lg_hlo_type_at(h, r.id), c->n_expert));
    r.x = lg_step_round_rows(s, xn);
    r.first = lg_hlo_i32(h, 0);
    return r;
}

lg_hlo_val lg_step_mlp(lg_step_emit *s, lg_hlo_val xn) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    const lg_step_parts *other = s->m->parts;
    if (c->n_expert == 0) return mlp(s, xn, LG_PJRT_W_GATE_UP, LG_PJRT_W_DOWN);
    routed r = route(s, xn);
    if (s->m->n_device > 1) gather(s, &r);
    lg_hlo_val shared = mlp(s, xn, LG_PJRT_W_SHARED_GATE_UP, LG_PJRT_W_SHARED_DOWN), y;
    lg_hlo_val gate =
        lg_hlo_mul(h, xn, lg_hlo_like(h, lg_step_weight(s, LG_PJRT_W_SHARED_SCALE), xn, "1"));
    gate = lg_hlo_reduce(h, "add", gate, 1);
    if (other && other->experts) {
        y = other->experts(other->ctx, s, r.x, r.id, r.w, r.first);
    } else {
        y = s->m->moe == LG_PJRT_MOE_ALL ? all_experts(s, &r) : tiled_experts(s, &r);
    }
    if (s->m->n_device > 1) y = scatter(s, y);
    if (s->debug)
        lg_step_note(s, "moe.shared_gate_logit",
                     lg_hlo_reshape(h, gate, LG_HLO_T(F32, s->n_row, 1)));
    lg_step_note(s, "moe.shared_out", shared);
    lg_step_note(s, "moe.routed_out", y);
    gate = lg_hlo_un(h, "logistic", gate);
    return lg_hlo_add(h, y, lg_hlo_mul(h, shared, lg_hlo_like(h, gate, shared, "0")));
}
