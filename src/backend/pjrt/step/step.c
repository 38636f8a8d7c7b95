/* step.c - the program of one bucket: arguments and signature, the walk over the layers, results.  See step.h.
 *
 * Thread: any.  Memory: the text grows in the caller's buffer; the rest is freed at the end.  Test:
 * tests/unit/test_step.c */
#include "backend/pjrt/step/step.h"

#include "kern/kern.h"

#include <stdio.h>
#include <string.h>

/* ---- types of the two headers ---- */

static bool dt_of(lg_pjrt_type t, lg_hlo_dt *dt) {
    switch ((int)t) {
    case LG_PJRT_F32: *dt = LG_HLO_F32; return true;
    case LG_PJRT_BF16: *dt = LG_HLO_BF16; return true;
    case LG_PJRT_F16: *dt = LG_HLO_F16; return true;
    case LG_PJRT_F8E4M3FN: *dt = LG_HLO_E4M3; return true;
    case LG_PJRT_S32: *dt = LG_HLO_I32; return true;
    default: return false;
    }
}

static lg_pjrt_dims dims_of(lg_hlo_type t) {
    static const lg_pjrt_type type[LG_HLO_N_DT] = {
        LG_PJRT_F32, LG_PJRT_BF16, LG_PJRT_F16, LG_PJRT_F8E4M3FN, LG_PJRT_S32, LG_PJRT_U32,
        0,           LG_PJRT_U8,   LG_PJRT_BOOL};
    lg_pjrt_dims d = {.type = type[t.dt], .rank = t.n_dim};
    for (uint32_t i = 0; i < t.n_dim; i++) d.dim[i] = t.dim[i];
    return d;
}

/* ---- the config ---- */

uint32_t lg_step_period(const lg_config *cfg) {
    for (uint32_t p = 1; p < cfg->n_layer; p++) {
        bool same = cfg->n_layer % p == 0;
        for (uint32_t i = p; same && i < cfg->n_layer; i++)
            same = cfg->layer[i] == cfg->layer[i - p];
        if (same) return p;
    }
    return cfg->n_layer;
}

uint32_t lg_step_conv_unit(const lg_config *cfg) {
    uint32_t a = cfg->d_k, b = cfg->d_v;
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* ---- arguments ---- */

static lg_hlo_val add_arg(lg_step_emit *s, const char *name, lg_pjrt_role role, lg_hlo_type t) {
    if (s->sig->n_arg >= LG_PJRT_MAX_ARG) {
        lg_hlo_fail(&s->h, "more than %d arguments", LG_PJRT_MAX_ARG);
        return 0;
    }
    uint32_t i = s->sig->n_arg++;
    lg_pjrt_arg *a = &s->sig->arg[i];
    *a = (lg_pjrt_arg){
        .role = role, .dims = dims_of(t), .result = role == LG_PJRT_POOL ? (int)i : -1};
    bool looped = !s->m->unrolled && s->period < s->cfg->n_layer;
    /* The compiler stops at matrices of fewer rows than a tile has. */
    a->tiled = s->m->tiled && looped && role == LG_PJRT_WEIGHT && t.n_dim >= 3 &&
               t.dt == LG_HLO_BF16 && t.dim[t.n_dim - 2] % 16 == 0;
    snprintf(a->name, sizeof a->name, "%s", name);
    if (!a->tiled) return lg_hlo_arg(&s->h, t, a->result);
    return lg_hlo_arg_laid_out(&s->h, t, t.n_dim == 3 ? LG_PJRT_TILES_3 : LG_PJRT_TILES_4);
}

static void pool_arg(lg_step_emit *s, const char *name, lg_pjrt_pool pool, lg_hlo_type t) {
    s->pool[pool] = add_arg(s, name, LG_PJRT_POOL, t);
    if (!s->pool[pool]) return;
    lg_pjrt_arg *a = &s->sig->arg[s->sig->n_arg - 1];
    a->pool = pool;
    a->unit_dim = 1;
}

static void pool_args(lg_step_emit *s) {
    const lg_config *c = s->cfg;
    uint32_t n_group = c->n_layer / s->period, g = lg_step_conv_unit(c);
    int64_t attn = (int64_t)s->n_attn * n_group, gdn = (int64_t)s->n_gdn * n_group;
    lg_hlo_type kv =
        LG_HLO_T(F32, attn, s->m->n_page, LG_PAGE_TOK, (int64_t)c->n_kv_head * c->d_head);
    if (attn) {
        pool_arg(s, "pool_key", LG_PJRT_POOL_KEY, lg_hlo_as(kv, s->kv));
        pool_arg(s, "pool_value", LG_PJRT_POOL_VALUE, lg_hlo_as(kv, s->kv));
    }
    if (gdn) {
        lg_hlo_type state = LG_HLO_T(F32, gdn, s->m->n_slot, c->n_v_head, c->d_k, c->d_v);
        pool_arg(s, "pool_s", LG_PJRT_POOL_S, lg_hlo_as(state, s->state));
        pool_arg(s, "pool_conv", LG_PJRT_POOL_CONV,
                 LG_HLO_T(F32, gdn, s->m->n_slot, LG_CONV_K - 1, lg_config_conv_dim(c) / g, g));
    }
}

static const char *const weight_name[LG_PJRT_N_WEIGHT] = {
    [LG_PJRT_W_EMBED] = "embed",
    [LG_PJRT_W_HEAD] = "head",
    [LG_PJRT_W_FINAL_NORM] = "final_norm",
    [LG_PJRT_W_COS] = "cos",
    [LG_PJRT_W_SIN] = "sin",
    [LG_PJRT_W_IN_NORM] = "in_norm",
    [LG_PJRT_W_POST_NORM] = "post_norm",
    [LG_PJRT_W_Q] = "q",
    [LG_PJRT_W_K] = "k",
    [LG_PJRT_W_V] = "v",
    [LG_PJRT_W_O] = "o",
    [LG_PJRT_W_Q_NORM] = "q_norm",
    [LG_PJRT_W_K_NORM] = "k_norm",
    [LG_PJRT_W_QKV] = "qkv",
    [LG_PJRT_W_Z] = "z",
    [LG_PJRT_W_B] = "b",
    [LG_PJRT_W_A] = "a",
    [LG_PJRT_W_OUT] = "out",
    [LG_PJRT_W_CONV] = "conv",
    [LG_PJRT_W_NEG_EXP_A] = "neg_exp_a",
    [LG_PJRT_W_DT_BIAS] = "dt_bias",
    [LG_PJRT_W_GDN_NORM] = "gdn_norm",
    [LG_PJRT_W_GATE_UP] = "gate_up",
    [LG_PJRT_W_DOWN] = "down",
    [LG_PJRT_W_ROUTER] = "router",
    [LG_PJRT_W_EXPERT_GATE_UP] = "expert_gate_up",
    [LG_PJRT_W_EXPERT_DOWN] = "expert_down",
    [LG_PJRT_W_EXPERT_GATE_UP_SCALE] = "expert_gate_up_scale",
    [LG_PJRT_W_EXPERT_DOWN_SCALE] = "expert_down_scale",
    [LG_PJRT_W_SHARED_GATE_UP] = "shared_gate_up",
    [LG_PJRT_W_SHARED_DOWN] = "shared_down",
    [LG_PJRT_W_SHARED_SCALE] = "shared_scale",
};

static void once_arg(lg_step_emit *s, lg_pjrt_weight w, lg_hlo_type t) {
    s->once[w] = add_arg(s, weight_name[w], LG_PJRT_WEIGHT, t);
    if (s->once[w]) s->sig->arg[s->sig->n_arg - 1].weight = w;
}

/* The weight of layer s->at of every group: stacked, or one argument when unrolled. */
static void layer_arg(lg_step_emit *s, lg_pjrt_weight w, lg_hlo_type t) {
    char name[32];
    bool stacked = !s->m->unrolled && s->period < s->cfg->n_layer;
    if (stacked) {
        for (uint32_t i = t.n_dim; i > 0; i--) t.dim[i] = t.dim[i - 1];
        t.dim[0] = s->cfg->n_layer / s->period;
        t.n_dim++;
    }
    snprintf(name, sizeof name, "l%u_%s", s->at, weight_name[w]);
    s->layer_w[s->at][w] = add_arg(s, name, LG_PJRT_WEIGHT, t);
    if (!s->layer_w[s->at][w]) return;
    lg_pjrt_arg *a = &s->sig->arg[s->sig->n_arg - 1];
    a->weight = w;
    a->layer0 = (uint16_t)s->at;
    a->layer_step = (uint16_t)s->period;
    a->n_layer = stacked ? (uint16_t)(s->cfg->n_layer / s->period) : 0;
}

static void matrix_arg(lg_step_emit *s, lg_pjrt_weight w, int64_t n_out, int64_t n_in) {
    layer_arg(s, w, lg_hlo_as(LG_HLO_T(F32, n_out, n_in), s->weight));
}

static void mixer_args(lg_step_emit *s) {
    const lg_config *c = s->cfg;
    int64_t n = c->n_embd, vals = (int64_t)c->n_v_head * c->d_v, conv = lg_config_conv_dim(c);
    if (c->layer[s->at] == LG_LAYER_ATTN) {
        int64_t heads = (int64_t)c->n_head * c->d_head, kv = (int64_t)c->n_kv_head * c->d_head;
        matrix_arg(s, LG_PJRT_W_Q, 2 * heads, n);
        matrix_arg(s, LG_PJRT_W_K, kv, n);
        matrix_arg(s, LG_PJRT_W_V, kv, n);
        matrix_arg(s, LG_PJRT_W_O, n, heads);
        layer_arg(s, LG_PJRT_W_Q_NORM, LG_HLO_T(F32, c->d_head));
        layer_arg(s, LG_PJRT_W_K_NORM, LG_HLO_T(F32, c->d_head));
        return;
    }
    matrix_arg(s, LG_PJRT_W_QKV, conv, n);
    matrix_arg(s, LG_PJRT_W_Z, vals, n);
    matrix_arg(s, LG_PJRT_W_B, c->n_v_head, n);
    matrix_arg(s, LG_PJRT_W_A, c->n_v_head, n);
    matrix_arg(s, LG_PJRT_W_OUT, n, vals);
    layer_arg(s, LG_PJRT_W_CONV, LG_HLO_T(F32, LG_CONV_K, conv));
    layer_arg(s, LG_PJRT_W_NEG_EXP_A, LG_HLO_T(F32, c->n_v_head));
    layer_arg(s, LG_PJRT_W_DT_BIAS, LG_HLO_T(F32, c->n_v_head));
    layer_arg(s, LG_PJRT_W_GDN_NORM, LG_HLO_T(F32, c->d_v));
}

/* Scales of FP8 experts. */
static lg_hlo_type scales_type(const lg_step_emit *s, int64_t e, int64_t n_out, int64_t n_in) {
    if (!s->m->scale_in) return LG_HLO_T(F32, e, n_out / 128, n_in / 128);
    return LG_HLO_T(F32, e, n_in / lg_pjrt_scale_in(s->m->scale_in, (uint32_t)n_in), n_out);
}

static void mlp_args(lg_step_emit *s) {
    const lg_config *c = s->cfg;
    int64_t n = c->n_embd, ff = c->n_ff_expert, shared = c->n_ff_shared;
    if (c->n_expert == 0) {
        matrix_arg(s, LG_PJRT_W_GATE_UP, 2 * (int64_t)c->n_ff, n);
        matrix_arg(s, LG_PJRT_W_DOWN, n, c->n_ff);
        return;
    }
    int64_t e = c->n_expert / s->m->n_device;
    matrix_arg(s, LG_PJRT_W_ROUTER, c->n_expert, n);
    layer_arg(s, LG_PJRT_W_EXPERT_GATE_UP, lg_hlo_as(LG_HLO_T(F32, e, 2 * ff, n), s->expert));
    layer_arg(s, LG_PJRT_W_EXPERT_DOWN, lg_hlo_as(LG_HLO_T(F32, e, n, ff), s->expert));
    if (s->expert == LG_HLO_E4M3) {
        layer_arg(s, LG_PJRT_W_EXPERT_GATE_UP_SCALE, scales_type(s, e, 2 * ff, n));
        layer_arg(s, LG_PJRT_W_EXPERT_DOWN_SCALE, scales_type(s, e, n, ff));
    }
    matrix_arg(s, LG_PJRT_W_SHARED_GATE_UP, 2 * shared, n);
    matrix_arg(s, LG_PJRT_W_SHARED_DOWN, n, shared);
    layer_arg(s, LG_PJRT_W_SHARED_SCALE, LG_HLO_T(F32, n));
}

static void weight_args(lg_step_emit *s) {
    const lg_config *c = s->cfg;
    lg_hlo_type table = lg_hlo_as(LG_HLO_T(F32, c->n_vocab, c->n_embd), s->weight);
    once_arg(s, LG_PJRT_W_EMBED, table);
    if (!c->tied) once_arg(s, LG_PJRT_W_HEAD, table);
    once_arg(s, LG_PJRT_W_FINAL_NORM, LG_HLO_T(F32, c->n_embd));
    if (s->n_attn) {
        once_arg(s, LG_PJRT_W_COS, LG_HLO_T(F32, s->m->n_ctx, c->n_rot / 2));
        once_arg(s, LG_PJRT_W_SIN, LG_HLO_T(F32, s->m->n_ctx, c->n_rot / 2));
    }
    for (s->at = 0; s->at < s->period; s->at++) {
        layer_arg(s, LG_PJRT_W_IN_NORM, LG_HLO_T(F32, c->n_embd));
        layer_arg(s, LG_PJRT_W_POST_NORM, LG_HLO_T(F32, c->n_embd));
        mixer_args(s);
        mlp_args(s);
    }
}

/* ---- inputs ---- */

lg_hlo_val lg_step_seqs(lg_step_emit *s, lg_hlo_val x, uint32_t from, uint32_t n) {
    return lg_hlo_slice(&s->h, x, 0, from, n);
}

/* [S] values as [R]: each sequence's for all its rows. */
static lg_hlo_val by_row(lg_step_emit *s, lg_hlo_val x) {
    const lg_pjrt_bucket *b = s->b;
    lg_hlo_val part[2];
    uint32_t n = 0;
    if (b->n_one) part[n++] = lg_step_seqs(s, x, 0, b->n_one);
    if (b->n_many) {
        lg_hlo_dt dt = lg_hlo_type_at(&s->h, x).dt;
        lg_hlo_type wide = lg_hlo_as(LG_HLO_T(I32, b->n_many, b->n_row), dt);
        lg_hlo_val v = lg_hlo_bcast(&s->h, lg_step_seqs(s, x, b->n_one, b->n_many), wide, "0");
        part[n++] = lg_hlo_reshape(&s->h, v,
                                   lg_hlo_as(LG_HLO_T(I32, (int64_t)b->n_many * b->n_row), dt));
    }
    return lg_hlo_concat(&s->h, 0, part, n);
}

/* [R]: row of its sequence. */
static lg_hlo_val row_in_seq(lg_step_emit *s) {
    const lg_pjrt_bucket *b = s->b;
    lg_hlo_val part[2];
    uint32_t n = 0;
    if (b->n_one) part[n++] = lg_hlo_int(&s->h, LG_HLO_T(I32, b->n_one), 0);
    if (b->n_many) {
        lg_hlo_val v = lg_hlo_iota(&s->h, LG_HLO_T(I32, b->n_many, b->n_row), 1);
        part[n++] = lg_hlo_reshape(&s->h, v, LG_HLO_T(I32, (int64_t)b->n_many * b->n_row));
    }
    return lg_hlo_concat(&s->h, 0, part, n);
}

static void inputs(lg_step_emit *s) {
    lg_hlo *h = &s->h;
    lg_pjrt_step at = lg_pjrt_step_of(s->b);
    lg_hlo_val v = add_arg(s, "step", LG_PJRT_STEP, LG_HLO_T(I32, at.n));
    s->tok = lg_hlo_slice(h, v, 0, at.tok, s->n_row);
    s->pos = lg_hlo_slice(h, v, 0, at.pos, s->n_seq);
    s->n_tok = lg_hlo_slice(h, v, 0, at.n_tok, s->n_seq);
    s->slot = lg_hlo_slice(h, v, 0, at.slot, s->n_seq);
    s->page =
        lg_hlo_reshape(h, lg_hlo_slice(h, v, 0, at.page, (int64_t)s->n_seq * s->b->n_page),
                       LG_HLO_T(I32, s->n_seq, s->b->n_page));
    s->out = lg_hlo_slice(h, v, 0, at.out, s->b->n_out);
    lg_hlo_val there = lg_hlo_cmp_i(h, "GT", s->n_tok, 0);
    s->slot =
        lg_hlo_select(h, there, s->slot, lg_hlo_int(h, LG_HLO_T(I32, s->n_seq), s->m->n_slot));
    lg_hlo_val row = row_in_seq(s);
    s->row_pos = lg_hlo_add(h, by_row(s, s->pos), row);
    s->row_ok = lg_hlo_cmp(h, "LT", row, by_row(s, s->n_tok));
    if (s->n_attn) {
        s->cos = lg_hlo_take(h, s->once[LG_PJRT_W_COS], lg_hlo_idx(h, &s->row_pos, 1));
        s->sin = lg_hlo_take(h, s->once[LG_PJRT_W_SIN], lg_hlo_idx(h, &s->row_pos, 1));
    }
}

/* ---- for the parts ---- */

lg_hlo_val lg_step_weight_arg(lg_step_emit *s, lg_pjrt_weight w) {
    return s->layer_w[s->at][w];
}

lg_hlo_val lg_step_weight(lg_step_emit *s, lg_pjrt_weight w) {
    lg_hlo_val v = s->layer_w[s->at][w];
    return s->group ? lg_hlo_row(&s->h, v, s->group) : v;
}

lg_hlo_val lg_step_matmul(lg_step_emit *s, lg_hlo_val x, lg_hlo_val w) {
    return lg_hlo_dot(&s->h, "ni,oi->no", lg_hlo_convert(&s->h, x, lg_hlo_type_at(&s->h, w).dt),
                      w);
}

/* Axes of all but the last dimension: "01" of three. */
static const char *but_last(lg_hlo_type t) {
    static const char *const axes[LG_HLO_MAX_DIM + 1] = {"",    "",     "0",    "01",
                                                         "012", "0123", "01234"};
    return axes[t.n_dim];
}

lg_hlo_val lg_step_norm(lg_step_emit *s, lg_hlo_val x, lg_hlo_val w) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = lg_hlo_type_at(h, x);
    if (t.n_dim == 0) return 0;
    char last[2] = {(char)('0' + t.n_dim - 1), 0};
    lg_hlo_val sum = lg_hlo_reduce(h, "add", lg_hlo_mul(h, x, x), t.n_dim - 1);
    lg_hlo_val mean = lg_hlo_bin_f(h, "divide", sum, (float)t.dim[t.n_dim - 1]);
    lg_hlo_val scale = lg_hlo_un(h, "rsqrt", lg_hlo_bin_f(h, "add", mean, s->cfg->eps));
    return lg_hlo_mul(h, lg_hlo_mul(h, x, lg_hlo_like(h, scale, x, but_last(t))),
                      lg_hlo_like(h, w, x, last));
}

lg_hlo_val lg_step_silu(lg_step_emit *s, lg_hlo_val x) {
    return lg_hlo_mul(&s->h, x, lg_hlo_un(&s->h, "logistic", x));
}

lg_hlo_val lg_step_layer_col(lg_step_emit *s, lg_hlo_type like) {
    return lg_hlo_bcast(&s->h, s->pool_layer, lg_hlo_as(like, LG_HLO_I32), "");
}

void lg_step_note(lg_step_emit *s, const char *name, lg_hlo_val x) {
    lg_step_debug *d = s->debug;
    if (!d || s->h.failed) return;
    if (d->n >= LG_COUNT(d->item)) {
        lg_hlo_fail(&s->h, "more intermediates than %zu", LG_COUNT(d->item));
        return;
    }
    int layer = s->at < s->period ? (int)s->at : -1;
    d->item[d->n].layer = layer;
    d->item[d->n].name = name;
    d->item[d->n].type = lg_hlo_type_at(&s->h, x);
    d->item[d->n++].val = x;
}

/* ---- the walk ---- */

static lg_hlo_val embed(lg_step_emit *s) {
    lg_hlo_val x = lg_hlo_take(&s->h, s->once[LG_PJRT_W_EMBED], lg_hlo_idx(&s->h, &s->tok, 1));
    return lg_hlo_convert(&s->h, x, LG_HLO_F32);
}

/* Number of the current layer among all of its kind. */
static lg_hlo_val pool_layer(lg_step_emit *s) {
    const uint8_t *kind = s->cfg->layer;
    uint32_t before = 0, each = kind[s->at] == LG_LAYER_ATTN ? s->n_attn : s->n_gdn;
    for (uint32_t i = 0; i < s->at; i++) before += kind[i] == kind[s->at];
    if (!s->group) return lg_hlo_i32(&s->h, before);
    return lg_hlo_bin_i(&s->h, "add", lg_hlo_bin_i(&s->h, "multiply", s->group, each), before);
}

static lg_hlo_val layer(lg_step_emit *s, lg_hlo_val x) {
    lg_hlo *h = &s->h;
    s->pool_layer = pool_layer(s);
    lg_hlo_val xn = lg_step_norm(s, x, lg_step_weight(s, LG_PJRT_W_IN_NORM));
    lg_step_note(s, "in_norm", xn);
    lg_hlo_val mix =
        s->cfg->layer[s->at] == LG_LAYER_ATTN ? lg_step_attn(s, xn) : lg_step_gdn(s, xn);
    lg_step_note(s, "mixer_out", mix);
    x = lg_hlo_add(h, x, mix);
    xn = lg_step_norm(s, x, lg_step_weight(s, LG_PJRT_W_POST_NORM));
    lg_step_note(s, "post_norm", xn);
    mix = lg_step_mlp(s, xn);
    lg_step_note(s, "mlp.out", mix);
    x = lg_hlo_add(h, x, mix);
    lg_step_note(s, "out", x);
    return x;
}

/* Row `at` of the traced stream. */
static lg_hlo_val trace_put(lg_step_emit *s, lg_hlo_val trace, lg_hlo_val x, lg_hlo_val at) {
    if (!s->b->trace) return trace;
    lg_hlo_type one = LG_HLO_T(F32, 1, s->n_row, s->cfg->n_embd);
    return lg_hlo_rows_put(&s->h, trace, lg_hlo_reshape(&s->h, x, one), at);
}

/* All layers, written out or in a loop over groups; *trace: [n_layer + 1][R][n_embd] or none. */
static lg_hlo_val layers(lg_step_emit *s, lg_hlo_val x, lg_hlo_val *trace) {
    lg_hlo *h = &s->h;
    lg_hlo_val carry[2 + LG_PJRT_N_POOL];
    uint32_t n = 0, n_group = s->cfg->n_layer / s->period;
    if (n_group > 1) {
        carry[n++] = x;
        if (*trace) carry[n++] = *trace;
        for (uint32_t i = 0; i < LG_PJRT_N_POOL; i++)
            if (s->pool[i]) carry[n++] = s->pool[i];
        s->group = lg_hlo_for(h, lg_hlo_i32(h, n_group), carry, n);
        n = 0;
        x = carry[n++];
        if (*trace) *trace = carry[n++];
        for (uint32_t i = 0; i < LG_PJRT_N_POOL; i++)
            if (s->pool[i]) s->pool[i] = carry[n++];
    }
    for (s->at = 0; s->at < s->period; s->at++) {
        x = layer(s, x);
        lg_hlo_val at = lg_hlo_i32(h, s->at + 1);
        if (s->group) at = lg_hlo_add(h, at, lg_hlo_bin_i(h, "multiply", s->group, s->period));
        *trace = trace_put(s, *trace, x, at);
    }
    if (n_group == 1) return x;
    n = 0;
    carry[n++] = x;
    if (*trace) carry[n++] = *trace;
    for (uint32_t i = 0; i < LG_PJRT_N_POOL; i++)
        if (s->pool[i]) carry[n++] = s->pool[i];
    lg_hlo_end_for(h, carry, n);
    n = 0;
    s->group = 0;
    x = carry[n++];
    if (*trace) *trace = carry[n++];
    for (uint32_t i = 0; i < LG_PJRT_N_POOL; i++)
        if (s->pool[i]) s->pool[i] = carry[n++];
    return x;
}

/* The largest logit below n_sample_vocab: its id (-1 for a row that is not finite) and its log-probability. */
static void choose(lg_step_emit *s, lg_hlo_val logits, lg_hlo_val *id, lg_hlo_val *logprob) {
    lg_hlo *h = &s->h;
    lg_hlo_val x = lg_hlo_slice(h, logits, 1, 0, s->m->n_sample_vocab);
    lg_hlo_type wide = lg_hlo_as(lg_hlo_type_at(h, x), LG_HLO_I32);
    lg_hlo_val max = lg_hlo_reduce(h, "maximum", x, 1), max_wide = lg_hlo_like(h, max, x, "0");
    lg_hlo_val place = lg_hlo_select(h, lg_hlo_cmp(h, "EQ", x, max_wide),
                                     lg_hlo_iota(h, wide, 1), lg_hlo_int(h, wide, INT32_MAX));
    lg_hlo_val finite = lg_hlo_reduce(h, "and", lg_hlo_un(h, "is_finite", logits), 1);
    *id = lg_hlo_select(h, finite, lg_hlo_reduce(h, "minimum", place, 1),
                        lg_hlo_int(h, LG_HLO_T(I32, s->b->n_out), -1));
    lg_hlo_val sum =
        lg_hlo_reduce(h, "add", lg_hlo_un(h, "exponential", lg_hlo_sub(h, x, max_wide)), 1);
    *logprob = lg_hlo_un(h, "negate", lg_hlo_un(h, "log", sum));
}

static lg_hlo_val head(lg_step_emit *s, lg_hlo_val x) {
    lg_hlo *h = &s->h;
    s->at = s->period; /* notes belong to no layer from here on */
    if (s->debug)
        lg_step_note(s, "final_norm", lg_step_norm(s, x, s->once[LG_PJRT_W_FINAL_NORM]));
    x = lg_hlo_take(h, x, lg_hlo_idx(h, &s->out, 1));
    x = lg_step_norm(s, x, s->once[LG_PJRT_W_FINAL_NORM]);
    return lg_step_matmul(s, x, s->once[s->cfg->tied ? LG_PJRT_W_EMBED : LG_PJRT_W_HEAD]);
}

static uint32_t body(lg_step_emit *s, lg_hlo_val *result) {
    lg_hlo *h = &s->h;
    lg_pjrt_out *out = &s->sig->out;
    uint32_t n = 0;
    lg_hlo_val trace = 0, id, logprob, x;
    pool_args(s);
    weight_args(s);
    inputs(s);
    x = embed(s);
    if (s->m->parts && s->m->parts->begin) s->m->parts->begin(s->m->parts->ctx, s);
    if (s->b->trace) {
        trace =
            lg_hlo_float(h, LG_HLO_T(F32, s->cfg->n_layer + 1, s->n_row, s->cfg->n_embd), 0);
        trace = trace_put(s, trace, x, lg_hlo_i32(h, 0));
    }
    x = layers(s, x, &trace);
    lg_hlo_val logits = head(s, x);
    choose(s, logits, &id, &logprob);
    for (uint32_t i = 0; i < LG_PJRT_N_POOL; i++)
        if (s->pool[i]) result[n++] = s->pool[i];
    *out = (lg_pjrt_out){.id = (int)n, .logprob = (int)n + 1, .logits = -1, .trace = -1};
    result[n++] = id;
    result[n++] = logprob;
    if (s->b->logits) {
        out->logits = (int)n;
        result[n++] = logits;
    }
    if (s->b->trace) {
        out->trace = (int)n;
        result[n++] = trace;
    }
    out->n = (int)n;
    for (uint32_t i = 0; s->debug && i < s->debug->n; i++) result[n++] = s->debug->item[i].val;
    return n;
}

/* ---- checks ---- */

static lg_status check(const lg_pjrt_model *m, const lg_pjrt_bucket *b, lg_step_emit *s,
                       lg_err *err) {
    const lg_config *c = m->cfg;
    bool kv = dt_of(m->kv, &s->kv) && s->kv <= LG_HLO_E4M3;
    bool state =
        dt_of(m->state, &s->state) && (s->state == LG_HLO_F32 || s->state == LG_HLO_BF16);
    if (!dt_of(m->weight, &s->weight) || s->weight > LG_HLO_BF16 || !kv || !state)
        return LG_FAIL(err, LG_E_ARG, "step: weights, keys and states of types %d, %d, %d",
                       m->weight, m->kv, m->state);
    s->expert = s->weight;
    if ((int)m->expert != 0 &&
        (!dt_of(m->expert, &s->expert) || (s->expert != s->weight && s->expert != LG_HLO_E4M3)))
        return LG_FAIL(err, LG_E_ARG, "step: experts of type %d", m->expert);
    if (s->expert == LG_HLO_E4M3 && !m->scale_in && (c->n_ff_expert % 128 || c->n_embd % 128))
        return LG_FAIL(err, LG_E_UNSUPPORTED,
                       "step: FP8 experts of %u x %u: both must be multiples of 128",
                       c->n_ff_expert, c->n_embd);
    if (m->n_device == 0 || m->n_device > 256 || (c->n_expert && c->n_expert % m->n_device))
        return LG_FAIL(err, LG_E_ARG, "step: %u experts on %u devices", c->n_expert,
                       m->n_device);
    if (m->n_slot == 0 || m->n_page == 0 || m->n_ctx == 0 || m->n_sample_vocab == 0 ||
        m->n_sample_vocab > c->n_vocab)
        return LG_FAIL(err, LG_E_ARG, "step: %u slots, %u pages, %u positions, %u of %u ids",
                       m->n_slot, m->n_page, m->n_ctx, m->n_sample_vocab, c->n_vocab);
    if ((b->n_one == 0 && b->n_many == 0) || (b->n_many && b->n_row == 0) || b->n_page == 0 ||
        b->n_out == 0 || (uint64_t)b->n_one + (uint64_t)b->n_many * b->n_row > 1u << 20)
        return LG_FAIL(err, LG_E_ARG,
                       "step: a bucket of %u + %u x %u rows, %u pages, %u outputs", b->n_one,
                       b->n_many, b->n_row, b->n_page, b->n_out);
    return LG_OK;
}

static lg_status step_text(const lg_pjrt_model *m, const lg_pjrt_bucket *b, lg_buf *text,
                           lg_pjrt_sig *sig, lg_step_debug *debug, lg_err *err) {
    lg_step_emit s = {.m = m, .cfg = m->cfg, .b = b, .sig = sig, .debug = debug};
    LG_TRY(check(m, b, &s, err));
    sig->n_arg = 0;
    s.n_seq = b->n_one + b->n_many;
    s.n_row = b->n_one + b->n_many * b->n_row;
    s.period = m->unrolled ? m->cfg->n_layer : lg_step_period(m->cfg);
    for (uint32_t i = 0; i < s.period; i++)
        if (m->cfg->layer[i] == LG_LAYER_ATTN) {
            s.n_attn++;
        } else {
            s.n_gdn++;
        }
    uint32_t n_max = LG_PJRT_N_POOL + 4 + (debug ? (uint32_t)LG_COUNT(debug->item) : 0);
    lg_hlo_val *result = lg_mem_calloc(n_max, sizeof *result);
    s.layer_w = lg_mem_calloc(s.period, sizeof *s.layer_w);
    lg_status st = LG_OK;
    if (!result || !s.layer_w) {
        st = LG_FAIL(err, LG_E_NOMEM, "step: out of memory");
    } else {
        lg_hlo_init(&s.h);
        uint32_t n = body(&s, result);
        st = lg_hlo_finish(&s.h, "step", m->n_device, result, n, text, err);
        lg_hlo_fini(&s.h);
    }
    lg_mem_free(result);
    lg_mem_free(s.layer_w);
    return st;
}

lg_status lg_pjrt_step_text(const lg_pjrt_model *m, const lg_pjrt_bucket *b, lg_buf *text,
                            lg_pjrt_sig *sig, lg_err *err) {
    return step_text(m, b, text, sig, NULL, err);
}

lg_status lg_step_debug_text(const lg_pjrt_model *m, const lg_pjrt_bucket *b, lg_buf *text,
                             lg_pjrt_sig *sig, lg_step_debug *debug, lg_err *err) {
    if (!m->unrolled && lg_step_period(m->cfg) < m->cfg->n_layer)
        return LG_FAIL(err, LG_E_ARG, "step: intermediates of the looped form");
    debug->n = 0;
    return step_text(m, b, text, sig, debug, err);
}
