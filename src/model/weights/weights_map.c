/* weights_map.c - the names of a model's tensors and the fields they fill.
 *
 * In:  lg_config and the mapped tensors of a Hugging Face folder or of GGUF files, which differ in names, in transforms that
 * are applied already and in some shapes.   Out: lg_weights' fields and the list of matrices to pack.
 * Fails closed: a tensor that is missing, of another type or shape, or left over is an error that names it.
 * Thread: the opener's.  Memory: the arena of the walk.  Test: tests/unit/test_weights.c, tests/unit/test_loader.c */
#include "model/weights/weights_map.h"

#include "base/hash.h"
#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES LG_WEIGHTS_NAME
#define FP8_BLOCK  128 /* rows and columns that share a scale */

/* Sets of types. */
#define FLOATS     (1u << LG_F32 | 1u << LG_BF16 | 1u << LG_F16)
#define FLOATS_FP8 (FLOATS | 1u << LG_E4M3)
#define BLOCKS     ((1u << LG_I4_32) - (1u << LG_Q4_0)) /* those of GGUF */

/* How a vector of the file becomes the vector of the model. */
typedef enum {
    PLAIN,
    ONE_PLUS,
    NEG_EXP,
    NEGATIVE /* as it is, and below zero */
} vec_kind;

/* ---- finding and checking ---- */

static lg_status fail_tensor(lg_weights_walk *k, lg_status code, const lg_view *v,
                             const char *found, const char *expected) {
    return LG_FAIL(k->err, code, "%s: tensor %s: found %s, expected %s", v->file, v->name,
                   found, expected);
}

/* The view of that name with one of the types in `allowed` and exactly this shape; marks it as used. */
static lg_status take(lg_weights_walk *k, const char *name, unsigned allowed, uint32_t n_dim,
                      const uint64_t *shape, lg_view **out) {
    char found[96], expected[96];
    lg_view *v = lg_tensors_find(k->set, name);
    lg_tensors_shape(n_dim, shape, expected, sizeof expected);
    if (!v)
        return LG_FAIL(k->err, LG_E_FORMAT, "%s: tensor %s: missing, expected shape %s",
                       k->path, name, expected);
    if (v->type == LG_N_DTYPE || !(allowed & 1u << v->type))
        return fail_tensor(k, LG_E_UNSUPPORTED, v, v->type_name,
                           allowed == FLOATS  ? "BF16, F16 or F32"
                           : allowed & BLOCKS ? "a float type, Q4_0 to Q8_0, Q2_K to Q6_K, "
                                                "IQ1 to IQ4 or MXFP4"
                                              : "BF16, F16, F32 or F8_E4M3");
    if (v->n_dim != n_dim || memcmp(v->shape, shape, n_dim * sizeof *shape) != 0) {
        char text[112];
        snprintf(text, sizeof text, "shape %s",
                 lg_tensors_shape(v->n_dim, v->shape, found, sizeof found));
        return fail_tensor(k, LG_E_FORMAT, v, text, expected);
    }
    v->used = true;
    *out = v;
    return LG_OK;
}

static float element(const lg_view *v, uint64_t i) {
    switch (v->type) {
    case LG_F32: return lg_num_float_of_bits(lg_num_load32(v->data + 4 * i));
    case LG_BF16: return lg_num_bf16(lg_num_load16(v->data + 2 * i));
    case LG_F16: return lg_num_f16(lg_num_load16(v->data + 2 * i));
    case LG_E4M3: return lg_num_e4m3(v->data[i]);
    default: return 0;
    }
}

/* Convert a whole view, in its own order; y is NULL when only the values are checked. */
static lg_status convert(lg_weights_walk *k, const lg_view *v, vec_kind kind, float *y) {
    uint64_t n = v->len_bytes / lg_dtype_bytes(v->type);
    if (k->ready) return LG_OK;
    for (uint64_t i = 0; i < n; i++) {
        float x = element(v, i);
        if (kind == ONE_PLUS) x = 1 + x;
        if (kind == NEG_EXP) x = -expf(x);
        if (!isfinite(x))
            return fail_tensor(k, LG_E_FORMAT, v, "a value that is not finite",
                               "finite numbers");
        if (kind == NEGATIVE && x > 0)
            return fail_tensor(k, LG_E_FORMAT, v, "a positive value", "-exp(A_log)");
        if (y) y[i] = x;
    }
    return LG_OK;
}

/* ---- names ---- */

/* The tensors of a layer, and how their names end. */
typedef enum {
    IN_NORM,
    POST_NORM,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_O,
    Q_NORM,
    K_NORM,
    GDN_QKV,
    GDN_Z,
    GDN_B,
    GDN_A,
    GDN_OUT,
    GDN_CONV,
    GDN_LOG_A,
    GDN_DT,
    GDN_NORM,
    ROUTER,
    EXPERT_GATE_UP,
    EXPERT_DOWN,
    SHARED_GATE,
    SHARED_UP,
    SHARED_DOWN,
    SHARED_SWITCH,
    MLP_GATE,
    MLP_UP,
    MLP_DOWN,
    N_NAME
} name_id;

static const char *const folder_names[N_NAME] = {
    [IN_NORM] = "input_layernorm.weight",
    [POST_NORM] = "post_attention_layernorm.weight",
    [ATTN_Q] = "self_attn.q_proj.weight",
    [ATTN_K] = "self_attn.k_proj.weight",
    [ATTN_V] = "self_attn.v_proj.weight",
    [ATTN_O] = "self_attn.o_proj.weight",
    [Q_NORM] = "self_attn.q_norm.weight",
    [K_NORM] = "self_attn.k_norm.weight",
    [GDN_QKV] = "linear_attn.in_proj_qkv.weight",
    [GDN_Z] = "linear_attn.in_proj_z.weight",
    [GDN_B] = "linear_attn.in_proj_b.weight",
    [GDN_A] = "linear_attn.in_proj_a.weight",
    [GDN_OUT] = "linear_attn.out_proj.weight",
    [GDN_CONV] = "linear_attn.conv1d.weight",
    [GDN_LOG_A] = "linear_attn.A_log",
    [GDN_DT] = "linear_attn.dt_bias",
    [GDN_NORM] = "linear_attn.norm.weight",
    [ROUTER] = "mlp.gate.weight",
    [EXPERT_GATE_UP] = "mlp.experts.gate_up_proj",
    [EXPERT_DOWN] = "mlp.experts.down_proj",
    [SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
    [SHARED_UP] = "mlp.shared_expert.up_proj.weight",
    [SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",
    [SHARED_SWITCH] = "mlp.shared_expert_gate.weight",
    [MLP_GATE] = "mlp.gate_proj.weight",
    [MLP_UP] = "mlp.up_proj.weight",
    [MLP_DOWN] = "mlp.down_proj.weight",
};

static const char *const gguf_names[N_NAME] = {
    [IN_NORM] = "attn_norm.weight",
    [POST_NORM] = "post_attention_norm.weight",
    [ATTN_Q] = "attn_q.weight",
    [ATTN_K] = "attn_k.weight",
    [ATTN_V] = "attn_v.weight",
    [ATTN_O] = "attn_output.weight",
    [Q_NORM] = "attn_q_norm.weight",
    [K_NORM] = "attn_k_norm.weight",
    [GDN_QKV] = "attn_qkv.weight",
    [GDN_Z] = "attn_gate.weight",
    [GDN_B] = "ssm_beta.weight",
    [GDN_A] = "ssm_alpha.weight",
    [GDN_OUT] = "ssm_out.weight",
    [GDN_CONV] = "ssm_conv1d.weight",
    [GDN_LOG_A] = "ssm_a",
    [GDN_DT] = "ssm_dt.bias",
    [GDN_NORM] = "ssm_norm.weight",
    [ROUTER] = "ffn_gate_inp.weight",
    [EXPERT_GATE_UP] = "ffn_gate_up_exps.weight",
    [EXPERT_DOWN] = "ffn_down_exps.weight",
    [SHARED_GATE] = "ffn_gate_shexp.weight",
    [SHARED_UP] = "ffn_up_shexp.weight",
    [SHARED_DOWN] = "ffn_down_shexp.weight",
    [SHARED_SWITCH] = "ffn_gate_inp_shexp.weight",
    [MLP_GATE] = "ffn_gate.weight",
    [MLP_UP] = "ffn_up.weight",
    [MLP_DOWN] = "ffn_down.weight",
};

/* What stands before the names of a folder. */
static const char *folder_root(const lg_weights_walk *k) {
    return k->w->cfg.nested ? "model.language_model." : "model.";
}

/* The name of layer i's tensor; the result lives in buf. */
static const char *layer_name(const lg_weights_walk *k, uint32_t i, const char *name,
                              char buf[NAME_BYTES]) {
    if (k->w->cfg.gguf)
        snprintf(buf, NAME_BYTES, "blk.%u.%s", i, name);
    else
        snprintf(buf, NAME_BYTES, "%slayers.%u.%s", folder_root(k), i, name);
    return buf;
}

static const char *name_of(const lg_weights_walk *k, uint32_t i, name_id id,
                           char buf[NAME_BYTES]) {
    return layer_name(k, i, k->w->cfg.gguf ? gguf_names[id] : folder_names[id], buf);
}

/* ---- vectors ---- */

static lg_status take_vec(lg_weights_walk *k, const char *name, uint32_t n, vec_kind kind,
                          const float **out) {
    lg_view *v;
    LG_TRY(take(k, name, FLOATS, 1, (uint64_t[]){n}, &v));
    float *y = lg_arena_take(&k->arena, n, sizeof *y);
    *out = y;
    k->n_param += n;
    return convert(k, v, kind, y);
}

/* [1][n], one row; quantised GGUF files drop the one. */
static lg_status take_row(lg_weights_walk *k, const char *name, uint32_t n, const float **out) {
    lg_view *v = k->w->cfg.gguf ? lg_tensors_find(k->set, name) : NULL;
    if (v && v->n_dim == 1) return take_vec(k, name, n, PLAIN, out);
    LG_TRY(take(k, name, FLOATS, 2, (uint64_t[]){1, n}, &v));
    float *y = lg_arena_take(&k->arena, n, sizeof *y);
    *out = y;
    k->n_param += n;
    return convert(k, v, PLAIN, y);
}

/* [n_ch][1][LG_CONV_K] in a folder, [n_ch][LG_CONV_K] in GGUF, one tap a row here. */
static lg_status take_conv(lg_weights_walk *k, const char *name, uint32_t n_ch,
                           const float **out) {
    lg_view *v;
    bool flat = k->w->cfg.gguf;
    LG_TRY(take(k, name, FLOATS, flat ? 2 : 3,
                flat ? (uint64_t[]){n_ch, LG_CONV_K} : (uint64_t[]){n_ch, 1, LG_CONV_K}, &v));
    float *y = lg_arena_take(&k->arena, (size_t)n_ch * LG_CONV_K, sizeof *y);
    *out = y;
    k->n_param += (uint64_t)n_ch * LG_CONV_K;
    LG_TRY(convert(k, v, PLAIN, NULL));
    for (uint32_t c = 0; y && !k->ready && c < n_ch; c++)
        for (uint32_t t = 0; t < LG_CONV_K; t++)
            y[(size_t)t * n_ch + c] = element(v, (uint64_t)c * LG_CONV_K + t);
    return LG_OK;
}

/* ---- matrices ---- */

lg_weights_job *lg_weights_put(lg_weights_walk *k, lg_dtype type, uint32_t n_out, uint32_t n_in,
                               lg_mat *m) {
    uint64_t bytes = lg_pack_bytes(type, n_out, n_in);
    *m = (lg_mat){.type = type, .n_out = n_out, .n_in = n_in};
    k->n_param += (uint64_t)n_out * n_in;
    if (k->elsewhere) { /* two parts with as many experts each are two plans */
        k->plan = lg_hash_add(k->plan, "elsewhere", 9);
        return NULL;
    }
    if (lg_dtype_is_block(type) && !lg_dtype_is_int(type)) {
        k->n_slow++;
        k->slow = type;
    }
    const uint64_t plan[] = {(uint64_t)type, n_out, n_in, k->arena.used_bytes};
    k->plan = lg_hash_add(k->plan, plan, sizeof plan);
    void *dst = lg_arena_take(&k->arena, 1, bytes);
    m->panel = dst;
    lg_weights_job *job = k->job ? &k->job[k->n_job] : NULL;
    if (job) *job = (lg_weights_job){.type = type, .n_out = n_out, .n_in = n_in, .dst = dst};
    k->n_job++;
    k->pack_bytes += bytes;
    return job;
}

/* One matrix out of rows that lie at `src`. */
static void put_mat(lg_weights_walk *k, lg_dtype type, const uint8_t *src, uint32_t n_out,
                    uint32_t n_in, lg_mat *m) {
    lg_weights_job *job = lg_weights_put(k, type, n_out, n_in, m);
    if (job) job->src = src;
}

/* The scales of an FP8 matrix: they must be there for it, and must not for any other. */
static lg_status take_scale(lg_weights_walk *k, const lg_view *v, lg_mat *m) {
    char name[NAME_BYTES + 16];
    lg_view *s;
    snprintf(name, sizeof name, "%s_scale_inv", v->name);
    if (v->type != LG_E4M3) {
        s = lg_tensors_find(k->set, name);
        if (!s) return LG_OK;
        return LG_FAIL(k->err, LG_E_FORMAT,
                       "%s: tensor %s: found a scale for a %s matrix, expected F8_E4M3",
                       s->file, name, v->type_name);
    }
    if (k->w->cfg.quant != LG_QUANT_FP8)
        return fail_tensor(k, LG_E_FORMAT, v, "F8_E4M3",
                           k->quant
                               ? "BF16, F16 or F32, as quantization_config does not say fp8"
                               : "BF16, F16 or F32, as config.json has no "
                                 "quantization_config");
    uint64_t shape[] = {((uint64_t)m->n_out + FP8_BLOCK - 1) / FP8_BLOCK,
                        ((uint64_t)m->n_in + FP8_BLOCK - 1) / FP8_BLOCK};
    LG_TRY(take(k, name, 1u << LG_F32 | 1u << LG_BF16, 2, shape, &s));
    k->n_quant++;
    if (k->elsewhere) return LG_OK;
    float *y = lg_arena_take(&k->arena, (size_t)(shape[0] * shape[1]), sizeof *y);
    m->scale = y;
    /* There may be a hundred thousand of them all over the files: read once, when they are needed. */
    return y ? convert(k, s, PLAIN, y) : LG_OK;
}

/* The types that a matrix may have. */
static unsigned mat_types(const lg_weights_walk *k) {
    return k->w->cfg.gguf ? FLOATS | BLOCKS : FLOATS_FP8;
}

static lg_status take_mat(lg_weights_walk *k, const char *name, uint32_t n_out, uint32_t n_in,
                          lg_mat *m) {
    lg_view *v;
    bool taken = false;
    if (k->quant) LG_TRY(lg_weights_quant_mat(k, name, n_out, n_in, m, &taken));
    if (taken) return LG_OK;
    LG_TRY(take(k, name, mat_types(k), 2, (uint64_t[]){n_out, n_in}, &v));
    put_mat(k, v->type, v->data, n_out, n_in, m);
    return take_scale(k, v, m);
}

/* ---- the model ---- */

/* One matrix of layer i. */
static lg_status layer_mat(lg_weights_walk *k, uint32_t i, name_id id, uint32_t n_out,
                           uint32_t n_in, lg_mat *m) {
    char name[NAME_BYTES];
    return take_mat(k, name_of(k, i, id, name), n_out, n_in, m);
}

/* One vector of layer i.  GGUF holds 1 + w and -exp(A) themselves. */
static lg_status layer_vec(lg_weights_walk *k, uint32_t i, name_id id, uint32_t n,
                           vec_kind kind, const float **out) {
    char name[NAME_BYTES];
    return take_vec(k, name_of(k, i, id, name), n, k->w->cfg.gguf ? PLAIN : kind, out);
}

/* n_out rows of v from row `row0` on, v's last dimension being n_in. */
static void put_rows(lg_weights_walk *k, const lg_view *v, uint64_t row0, uint32_t n_out,
                     uint32_t n_in, lg_mat *m) {
    uint64_t n_row = 1;
    for (uint32_t d = 0; d + 1 < v->n_dim; d++) n_row *= v->shape[d];
    put_mat(k, v->type, v->data + row0 * (v->len_bytes / n_row), n_out, n_in, m);
}

void lg_weights_at_expert(lg_weights_walk *k, const lg_layer_w *l, uint32_t x) {
    k->elsewhere = k->part && !k->part->has(k->part->ctx, (uint32_t)(l - k->w->layer), x);
}

/* All experts of layer i: gate and up [E][2 I][H], gate rows first, or (GGUF) two tensors [E][I][H]; down [E][H][I]. */
static lg_status take_stacked_experts(lg_weights_walk *k, uint32_t i, bool fused,
                                      lg_layer_w *l) {
    const lg_config *c = &k->w->cfg;
    char name[NAME_BYTES];
    unsigned types = FLOATS | (c->gguf ? BLOCKS : 0);
    lg_view *gate, *up, *down;
    uint64_t e = c->n_expert, n = c->n_ff_expert, h = c->n_embd;
    uint64_t step = fused ? 2 * n : n, up0 = fused ? n : 0;
    if (fused) {
        name_of(k, i, EXPERT_GATE_UP, name);
        LG_TRY(take(k, name, types, 3, (uint64_t[]){e, 2 * n, h}, &gate));
        up = gate;
    } else {
        layer_name(k, i, "ffn_gate_exps.weight", name);
        LG_TRY(take(k, name, types, 3, (uint64_t[]){e, n, h}, &gate));
        layer_name(k, i, "ffn_up_exps.weight", name);
        LG_TRY(take(k, name, types, 3, (uint64_t[]){e, n, h}, &up));
    }
    name_of(k, i, EXPERT_DOWN, name);
    LG_TRY(take(k, name, types, 3, (uint64_t[]){e, h, n}, &down));
    for (uint32_t x = 0; x < c->n_expert; x++) {
        lg_mlp_w *m = &l->expert[x];
        lg_weights_at_expert(k, l, x);
        put_rows(k, gate, x * step, c->n_ff_expert, c->n_embd, &m->gate);
        put_rows(k, up, x * step + up0, c->n_ff_expert, c->n_embd, &m->up);
        put_rows(k, down, x * h, c->n_embd, c->n_ff_expert, &m->down);
    }
    return LG_OK;
}

/* Expert x of layer i, from tensors of its own. */
static lg_status take_expert(lg_weights_walk *k, uint32_t i, uint32_t x, lg_mlp_w *m) {
    const lg_config *c = &k->w->cfg;
    const struct {
        const char *name;
        uint32_t n_out, n_in;
        lg_mat *m;
    } part[3] = {{"gate", c->n_ff_expert, c->n_embd, &m->gate},
                 {"up", c->n_ff_expert, c->n_embd, &m->up},
                 {"down", c->n_embd, c->n_ff_expert, &m->down}};
    for (int p = 0; p < 3; p++) {
        char end[64], name[NAME_BYTES];
        snprintf(end, sizeof end, "mlp.experts.%u.%s_proj.weight", x, part[p].name);
        layer_name(k, i, end, name);
        LG_TRY(take_mat(k, name, part[p].n_out, part[p].n_in, part[p].m));
    }
    return LG_OK;
}

static lg_status take_moe(lg_weights_walk *k, uint32_t i, lg_layer_w *l) {
    const lg_config *c = &k->w->cfg;
    char name[NAME_BYTES];
    uint32_t h = c->n_embd, n = c->n_ff_shared;
    LG_TRY(layer_mat(k, i, ROUTER, c->n_expert, h, &l->router));
    uint64_t before = k->n_param;
    bool taken = false;
    if (c->quant == LG_QUANT_MXFP4) {
        char down[NAME_BYTES];
        name_of(k, i, EXPERT_DOWN, down);
        LG_TRY(
            lg_weights_quant_experts(k, name_of(k, i, EXPERT_GATE_UP, name), down, l, &taken));
    }
    bool fused = lg_tensors_find(k->set, name_of(k, i, EXPERT_GATE_UP, name)) != NULL;
    if (taken)
        (void)fused;
    else if (fused || c->gguf)
        LG_TRY(take_stacked_experts(k, i, fused, l));
    else
        for (uint32_t x = 0; x < c->n_expert; x++) {
            lg_weights_at_expert(k, l, x);
            LG_TRY(take_expert(k, i, x, &l->expert[x]));
        }
    k->elsewhere = false;
    k->n_param_expert += k->n_param - before;
    LG_TRY(layer_mat(k, i, SHARED_GATE, n, h, &l->shared.gate));
    LG_TRY(layer_mat(k, i, SHARED_UP, n, h, &l->shared.up));
    LG_TRY(layer_mat(k, i, SHARED_DOWN, h, n, &l->shared.down));
    return take_row(k, name_of(k, i, SHARED_SWITCH, name), h, &l->shared_gate);
}

static lg_status take_mlp(lg_weights_walk *k, uint32_t i, lg_mlp_w *m) {
    uint32_t h = k->w->cfg.n_embd, n = k->w->cfg.n_ff;
    LG_TRY(layer_mat(k, i, MLP_GATE, n, h, &m->gate));
    LG_TRY(layer_mat(k, i, MLP_UP, n, h, &m->up));
    return layer_mat(k, i, MLP_DOWN, h, n, &m->down);
}

/* Query (with gate), key and value rows: three tensors, or in GGUF one. */
static lg_status take_attn_inputs(lg_weights_walk *k, uint32_t i, lg_layer_w *l) {
    const lg_config *c = &k->w->cfg;
    char name[NAME_BYTES];
    lg_view *v;
    uint32_t h = c->n_embd, q = 2 * c->n_head * c->d_head, kv = c->n_kv_head * c->d_head;
    if (!c->gguf || !lg_tensors_find(k->set, name_of(k, i, GDN_QKV, name))) {
        LG_TRY(layer_mat(k, i, ATTN_Q, q, h, &l->q));
        LG_TRY(layer_mat(k, i, ATTN_K, kv, h, &l->k));
        return layer_mat(k, i, ATTN_V, kv, h, &l->v);
    }
    LG_TRY(take(k, name, FLOATS | BLOCKS, 2, (uint64_t[]){(uint64_t)q + 2 * kv, h}, &v));
    put_rows(k, v, 0, q, h, &l->q);
    put_rows(k, v, q, kv, h, &l->k);
    put_rows(k, v, (uint64_t)q + kv, kv, h, &l->v);
    return LG_OK;
}

static lg_status take_attn(lg_weights_walk *k, uint32_t i, lg_layer_w *l) {
    const lg_config *c = &k->w->cfg;
    LG_TRY(take_attn_inputs(k, i, l));
    LG_TRY(layer_mat(k, i, ATTN_O, c->n_embd, c->n_head * c->d_head, &l->o));
    LG_TRY(layer_vec(k, i, Q_NORM, c->d_head, ONE_PLUS, &l->q_norm));
    return layer_vec(k, i, K_NORM, c->d_head, ONE_PLUS, &l->k_norm);
}

static lg_status take_gdn(lg_weights_walk *k, uint32_t i, lg_layer_w *l) {
    const lg_config *c = &k->w->cfg;
    char name[NAME_BYTES];
    uint32_t h = c->n_embd, nv = c->n_v_head, v = nv * c->d_v, conv = lg_config_conv_dim(c);
    LG_TRY(layer_mat(k, i, GDN_QKV, conv, h, &l->qkv));
    LG_TRY(layer_mat(k, i, GDN_Z, v, h, &l->z));
    LG_TRY(layer_mat(k, i, GDN_B, nv, h, &l->b));
    LG_TRY(layer_mat(k, i, GDN_A, nv, h, &l->a));
    LG_TRY(layer_mat(k, i, GDN_OUT, h, v, &l->out));
    LG_TRY(take_conv(k, name_of(k, i, GDN_CONV, name), conv, &l->conv));
    LG_TRY(take_vec(k, name_of(k, i, GDN_LOG_A, name), nv, c->gguf ? NEGATIVE : NEG_EXP,
                    &l->neg_exp_a));
    LG_TRY(layer_vec(k, i, GDN_DT, nv, PLAIN, &l->dt_bias));
    return layer_vec(k, i, GDN_NORM, c->d_v, PLAIN, &l->gdn_norm);
}

static lg_status take_layer(lg_weights_walk *k, uint32_t i) {
    const lg_config *c = &k->w->cfg;
    lg_layer_w *l = &k->w->layer[i];
    l->kind = c->layer[i];
    LG_TRY(layer_vec(k, i, IN_NORM, c->n_embd, ONE_PLUS, &l->in_norm));
    if (l->kind == LG_LAYER_ATTN)
        LG_TRY(take_attn(k, i, l));
    else
        LG_TRY(take_gdn(k, i, l));
    LG_TRY(layer_vec(k, i, POST_NORM, c->n_embd, ONE_PLUS, &l->post_norm));
    return c->n_expert ? take_moe(k, i, l) : take_mlp(k, i, &l->mlp);
}

/* A folder says whether its head is tied; in GGUF it is when there is no tensor of its own. */
static lg_status take_head(lg_weights_walk *k, const lg_view *embed) {
    const lg_config *c = &k->w->cfg;
    const char *name = c->gguf ? "output.weight" : "lm_head.weight";
    if (!c->tied) {
        k->n_param += (uint64_t)c->n_vocab * c->n_embd;
        return take_mat(k, name, c->n_vocab, c->n_embd, &k->w->head);
    }
    lg_view *head = lg_tensors_find(k->set, name);
    if (head)
        return LG_FAIL(k->err, LG_E_FORMAT,
                       "%s: tensor %s: found, but tie_word_embeddings is true", head->file,
                       name);
    put_mat(k, embed->type, embed->data, c->n_vocab, c->n_embd, &k->w->head);
    return LG_OK;
}

/* The embedding stays in the file; a tied head packs it too. */
static lg_status take_ends(lg_weights_walk *k) {
    lg_weights *w = k->w;
    const lg_config *c = &w->cfg;
    char embed[NAME_BYTES] = "token_embd.weight", norm[NAME_BYTES] = "output_norm.weight";
    lg_view *v;
    if (!c->gguf) {
        snprintf(embed, sizeof embed, "%sembed_tokens.weight", folder_root(k));
        snprintf(norm, sizeof norm, "%snorm.weight", folder_root(k));
    }
    LG_TRY(take(k, embed, FLOATS | (c->gguf ? BLOCKS : 0), 2,
                (uint64_t[]){c->n_vocab, c->n_embd}, &v));
    w->embed = *v;
    LG_TRY(take_vec(k, norm, c->n_embd, c->gguf ? PLAIN : ONE_PLUS, &w->final_norm));
    return take_head(k, v);
}

lg_status lg_weights_map_walk(lg_weights_walk *k) {
    const lg_config *c = &k->w->cfg;
    k->n_job = 0;
    k->pack_bytes = k->n_param = k->n_param_expert = 0;
    k->n_quant = k->n_slow = 0;
    k->plan = 0;
    k->elsewhere = false;
    LG_TRY(take_ends(k));
    for (uint32_t i = 0; i < c->n_layer; i++) LG_TRY(take_layer(k, i));
    if (c->quant && k->n_quant == 0)
        return LG_FAIL(k->err, LG_E_FORMAT,
                       "%s: quantization_config says %s, but no tensor is %s", k->path,
                       lg_quant_name(c->quant),
                       c->quant == LG_QUANT_FP8 ? "F8_E4M3" : "stored like that");
    return LG_OK;
}

static bool starts(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool lg_weights_is_draft(const lg_weights *w, const char *name) {
    const lg_config *c = &w->cfg;
    if (!c->gguf) return starts(name, "mtp.");
    for (uint32_t i = c->n_layer; i < c->n_layer + c->n_mtp_layer; i++) {
        char prefix[24];
        snprintf(prefix, sizeof prefix, "blk.%u.", i);
        if (starts(name, prefix)) return true;
    }
    return false;
}

lg_status lg_weights_map_rest(lg_weights_walk *k) {
    lg_weights *w = k->w;
    w->n_skipped = 0;
    w->skipped_bytes = 0;
    for (size_t i = 0; i < lg_tensors_count(k->set); i++) {
        const lg_view *v = lg_tensors_at(k->set, i);
        if (v->used) continue;
        if (!lg_weights_is_draft(w, v->name) &&
            !(w->cfg.nested && starts(v->name, "model.visual.")))
            return fail_tensor(k, LG_E_FORMAT, v, "a tensor that this model does not have",
                               w->cfg.gguf ? "only the names that the metadata implies"
                                           : "only the names that config.json implies");
        w->n_skipped++;
        w->skipped_bytes += v->len_bytes;
    }
    return LG_OK;
}
