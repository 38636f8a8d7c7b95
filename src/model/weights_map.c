/* weights_map.c - the names of a Qwen3.5 folder's tensors and the fields they fill.
 *
 * In:  lg_config and the mapped tensors.   Out: lg_weights' fields and the list of matrices to pack.
 * Fails closed: a tensor that is missing, of another type or shape, or left over is an error that names it.
 * Thread: the opener's.  Memory: the arena of the walk.  Test: tests/unit/test_weights.c, tests/unit/test_loader.c */
#include "model/weights_map.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 192
#define FP8_BLOCK  128 /* rows and columns that share a scale */

/* Sets of types. */
#define FLOATS     (1u << LG_F32 | 1u << LG_BF16 | 1u << LG_F16)
#define FLOATS_FP8 (FLOATS | 1u << LG_E4M3)

/* How a vector of the file becomes the vector of the model. */
typedef enum { PLAIN, ONE_PLUS, NEG_EXP } vec_kind;

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
                           allowed == FLOATS ? "BF16, F16 or F32"
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
    for (uint64_t i = 0; i < n; i++) {
        float x = element(v, i);
        if (kind == ONE_PLUS) x = 1 + x;
        if (kind == NEG_EXP) x = -expf(x);
        if (!isfinite(x))
            return fail_tensor(k, LG_E_FORMAT, v, "a value that is not finite",
                               "finite numbers");
        if (y) y[i] = x;
    }
    return LG_OK;
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

/* [1][n], one row. */
static lg_status take_row(lg_weights_walk *k, const char *name, uint32_t n, const float **out) {
    lg_view *v;
    LG_TRY(take(k, name, FLOATS, 2, (uint64_t[]){1, n}, &v));
    float *y = lg_arena_take(&k->arena, n, sizeof *y);
    *out = y;
    k->n_param += n;
    return convert(k, v, PLAIN, y);
}

/* [n_ch][1][LG_CONV_K] in the file, one tap a row here. */
static lg_status take_conv(lg_weights_walk *k, const char *name, uint32_t n_ch,
                           const float **out) {
    lg_view *v;
    LG_TRY(take(k, name, FLOATS, 3, (uint64_t[]){n_ch, 1, LG_CONV_K}, &v));
    float *y = lg_arena_take(&k->arena, (size_t)n_ch * LG_CONV_K, sizeof *y);
    *out = y;
    k->n_param += (uint64_t)n_ch * LG_CONV_K;
    LG_TRY(convert(k, v, PLAIN, NULL));
    for (uint32_t c = 0; y && c < n_ch; c++)
        for (uint32_t t = 0; t < LG_CONV_K; t++)
            y[(size_t)t * n_ch + c] = element(v, (uint64_t)c * LG_CONV_K + t);
    return LG_OK;
}

/* ---- matrices ---- */

/* One matrix out of rows that lie at `src`. */
static void put_mat(lg_weights_walk *k, lg_dtype type, const uint8_t *src, uint32_t n_out,
                    uint32_t n_in, lg_mat *m) {
    uint64_t bytes = lg_pack_bytes(type, n_out, n_in);
    void *dst = lg_arena_take(&k->arena, 1, bytes);
    *m = (lg_mat){.type = type, .n_out = n_out, .n_in = n_in, .panel = dst};
    if (k->job) k->job[k->n_job] = (lg_weights_job){type, n_out, n_in, src, dst};
    k->n_job++;
    k->pack_bytes += bytes;
    k->n_param += (uint64_t)n_out * n_in;
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
    if (!k->w->cfg.fp8)
        return fail_tensor(k, LG_E_FORMAT, v, "F8_E4M3",
                           "BF16, F16 or F32, as config.json has no quantization_config");
    uint64_t shape[] = {((uint64_t)m->n_out + FP8_BLOCK - 1) / FP8_BLOCK,
                        ((uint64_t)m->n_in + FP8_BLOCK - 1) / FP8_BLOCK};
    LG_TRY(take(k, name, 1u << LG_F32 | 1u << LG_BF16, 2, shape, &s));
    float *y = lg_arena_take(&k->arena, (size_t)(shape[0] * shape[1]), sizeof *y);
    m->scale = y;
    k->n_fp8++;
    /* There may be a hundred thousand of them all over the files: read once, when they are needed. */
    return y ? convert(k, s, PLAIN, y) : LG_OK;
}

static lg_status take_mat(lg_weights_walk *k, const char *name, uint32_t n_out, uint32_t n_in,
                          lg_mat *m) {
    lg_view *v;
    LG_TRY(take(k, name, FLOATS_FP8, 2, (uint64_t[]){n_out, n_in}, &v));
    put_mat(k, v->type, v->data, n_out, n_in, m);
    return take_scale(k, v, m);
}

/* ---- the model ---- */

/* prefix + name; the result lives in buf. */
static const char *join(char *buf, const char *prefix, const char *name) {
    snprintf(buf, NAME_BYTES, "%.120s%.64s", prefix, name);
    return buf;
}

static lg_status take_mlp(lg_weights_walk *k, const char *prefix, uint32_t n_ff, lg_mlp_w *m) {
    char name[NAME_BYTES];
    uint32_t h = k->w->cfg.n_embd;
    LG_TRY(take_mat(k, join(name, prefix, "gate_proj.weight"), n_ff, h, &m->gate));
    LG_TRY(take_mat(k, join(name, prefix, "up_proj.weight"), n_ff, h, &m->up));
    return take_mat(k, join(name, prefix, "down_proj.weight"), h, n_ff, &m->down);
}

/* gate_up_proj [E][2 I][H], gate rows first, and down_proj [E][H][I]. */
static lg_status take_fused_experts(lg_weights_walk *k, const char *prefix, lg_layer_w *l) {
    const lg_config *c = &k->w->cfg;
    char name[NAME_BYTES];
    lg_view *gu, *down;
    uint64_t e = c->n_expert, i = c->n_ff_expert, h = c->n_embd;
    LG_TRY(take(k, join(name, prefix, "experts.gate_up_proj"), FLOATS, 3,
                (uint64_t[]){e, 2 * i, h}, &gu));
    LG_TRY(take(k, join(name, prefix, "experts.down_proj"), FLOATS, 3, (uint64_t[]){e, h, i},
                &down));
    size_t gu_bytes = (size_t)(i * h) * lg_dtype_bytes(gu->type);
    size_t down_bytes = (size_t)(i * h) * lg_dtype_bytes(down->type);
    for (uint32_t x = 0; x < c->n_expert; x++) {
        const uint8_t *src = gu->data + 2 * x * gu_bytes;
        lg_mlp_w *m = &l->expert[x];
        put_mat(k, gu->type, src, c->n_ff_expert, c->n_embd, &m->gate);
        put_mat(k, gu->type, src + gu_bytes, c->n_ff_expert, c->n_embd, &m->up);
        put_mat(k, down->type, down->data + x * down_bytes, c->n_embd, c->n_ff_expert,
                &m->down);
    }
    return LG_OK;
}

static lg_status take_moe(lg_weights_walk *k, const char *prefix, lg_layer_w *l) {
    const lg_config *c = &k->w->cfg;
    char name[NAME_BYTES];
    LG_TRY(take_mat(k, join(name, prefix, "gate.weight"), c->n_expert, c->n_embd, &l->router));
    uint64_t before = k->n_param;
    if (lg_tensors_find(k->set, join(name, prefix, "experts.gate_up_proj"))) {
        LG_TRY(take_fused_experts(k, prefix, l));
    } else {
        for (uint32_t x = 0; x < c->n_expert; x++) {
            char one[NAME_BYTES];
            snprintf(one, sizeof one, "%.120sexperts.%u.", prefix, x);
            LG_TRY(take_mlp(k, one, c->n_ff_expert, &l->expert[x]));
        }
    }
    k->n_param_expert += k->n_param - before;
    LG_TRY(take_mlp(k, join(name, prefix, "shared_expert."), c->n_ff_shared, &l->shared));
    return take_row(k, join(name, prefix, "shared_expert_gate.weight"), c->n_embd,
                    &l->shared_gate);
}

static lg_status take_attn(lg_weights_walk *k, const char *prefix, lg_layer_w *l) {
    const lg_config *c = &k->w->cfg;
    char name[NAME_BYTES];
    uint32_t h = c->n_embd, d = c->d_head, q = c->n_head * d, kv = c->n_kv_head * d;
    LG_TRY(take_mat(k, join(name, prefix, "q_proj.weight"), 2 * q, h, &l->q));
    LG_TRY(take_mat(k, join(name, prefix, "k_proj.weight"), kv, h, &l->k));
    LG_TRY(take_mat(k, join(name, prefix, "v_proj.weight"), kv, h, &l->v));
    LG_TRY(take_mat(k, join(name, prefix, "o_proj.weight"), h, q, &l->o));
    LG_TRY(take_vec(k, join(name, prefix, "q_norm.weight"), d, ONE_PLUS, &l->q_norm));
    return take_vec(k, join(name, prefix, "k_norm.weight"), d, ONE_PLUS, &l->k_norm);
}

static lg_status take_gdn(lg_weights_walk *k, const char *prefix, lg_layer_w *l) {
    const lg_config *c = &k->w->cfg;
    char name[NAME_BYTES];
    uint32_t h = c->n_embd, nv = c->n_v_head, v = nv * c->d_v, conv = lg_config_conv_dim(c);
    LG_TRY(take_mat(k, join(name, prefix, "in_proj_qkv.weight"), conv, h, &l->qkv));
    LG_TRY(take_mat(k, join(name, prefix, "in_proj_z.weight"), v, h, &l->z));
    LG_TRY(take_mat(k, join(name, prefix, "in_proj_b.weight"), nv, h, &l->b));
    LG_TRY(take_mat(k, join(name, prefix, "in_proj_a.weight"), nv, h, &l->a));
    LG_TRY(take_mat(k, join(name, prefix, "out_proj.weight"), h, v, &l->out));
    LG_TRY(take_conv(k, join(name, prefix, "conv1d.weight"), conv, &l->conv));
    LG_TRY(take_vec(k, join(name, prefix, "A_log"), nv, NEG_EXP, &l->neg_exp_a));
    LG_TRY(take_vec(k, join(name, prefix, "dt_bias"), nv, PLAIN, &l->dt_bias));
    return take_vec(k, join(name, prefix, "norm.weight"), c->d_v, PLAIN, &l->gdn_norm);
}

static lg_status take_layer(lg_weights_walk *k, const char *root, uint32_t i) {
    const lg_config *c = &k->w->cfg;
    lg_layer_w *l = &k->w->layer[i];
    char prefix[96], part[NAME_BYTES], name[NAME_BYTES];
    snprintf(prefix, sizeof prefix, "%slayers.%u.", root, i);
    l->kind = c->layer[i];
    LG_TRY(take_vec(k, join(name, prefix, "input_layernorm.weight"), c->n_embd, ONE_PLUS,
                    &l->in_norm));
    if (l->kind == LG_LAYER_ATTN)
        LG_TRY(take_attn(k, join(part, prefix, "self_attn."), l));
    else
        LG_TRY(take_gdn(k, join(part, prefix, "linear_attn."), l));
    LG_TRY(take_vec(k, join(name, prefix, "post_attention_layernorm.weight"), c->n_embd,
                    ONE_PLUS, &l->post_norm));
    join(part, prefix, "mlp.");
    return c->n_expert ? take_moe(k, part, l) : take_mlp(k, part, c->n_ff, &l->mlp);
}

/* The embedding stays in the file; a tied head packs it too. */
static lg_status take_ends(lg_weights_walk *k, const char *root) {
    lg_weights *w = k->w;
    const lg_config *c = &w->cfg;
    char name[NAME_BYTES];
    lg_view *v;
    LG_TRY(take(k, join(name, root, "embed_tokens.weight"), FLOATS, 2,
                (uint64_t[]){c->n_vocab, c->n_embd}, &v));
    w->embed = *v;
    LG_TRY(take_vec(k, join(name, root, "norm.weight"), c->n_embd, ONE_PLUS, &w->final_norm));
    if (!c->tied) {
        k->n_param += (uint64_t)c->n_vocab * c->n_embd;
        return take_mat(k, "lm_head.weight", c->n_vocab, c->n_embd, &w->head);
    }
    lg_view *head = lg_tensors_find(k->set, "lm_head.weight");
    if (head)
        return LG_FAIL(k->err, LG_E_FORMAT,
                       "%s: tensor lm_head.weight: found, but tie_word_embeddings is true",
                       head->file);
    put_mat(k, v->type, v->data, c->n_vocab, c->n_embd, &w->head);
    return LG_OK;
}

lg_status lg_weights_map_walk(lg_weights_walk *k) {
    const lg_config *c = &k->w->cfg;
    const char *root = c->nested ? "model.language_model." : "model.";
    k->n_job = 0;
    k->pack_bytes = k->n_param = k->n_param_expert = 0;
    k->n_fp8 = 0;
    LG_TRY(take_ends(k, root));
    for (uint32_t i = 0; i < c->n_layer; i++) LG_TRY(take_layer(k, root, i));
    if (c->fp8 && k->n_fp8 == 0)
        return LG_FAIL(k->err, LG_E_FORMAT,
                       "%s: quantization_config says fp8, but no tensor is F8_E4M3", k->path);
    return LG_OK;
}

static bool starts(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

lg_status lg_weights_map_rest(lg_weights_walk *k) {
    lg_weights *w = k->w;
    w->n_skipped = 0;
    w->skipped_bytes = 0;
    for (size_t i = 0; i < lg_tensors_count(k->set); i++) {
        const lg_view *v = lg_tensors_at(k->set, i);
        if (v->used) continue;
        if (!starts(v->name, "mtp.") && !(w->cfg.nested && starts(v->name, "model.visual.")))
            return fail_tensor(k, LG_E_FORMAT, v, "a tensor that this model does not have",
                               "only the names that config.json implies");
        w->n_skipped++;
        w->skipped_bytes += v->len_bytes;
    }
    return LG_OK;
}
