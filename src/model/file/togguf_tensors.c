/* togguf_tensors.c - the tensors of a GGUF file and the rows of the folder they are made of: see togguf.h.
 *
 * One walk over the layers, in the order of the file.  The draft layer is all or nothing: what is missing or left over of it
 * is told as the reason for leaving it out.
 * Thread: the caller's.  Memory: the list, sized before the walk.  Test: tests/unit/test_togguf.c */
#include "model/file/togguf.h"

#include "base/mem.h"
#include "kern/quantize.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 192
#define PER_LAYER  24 /* more tensors than any layer has */
#define FP8_BLOCK  128

typedef struct walk {
    const char *folder;
    const lg_config *c;
    lg_tensors *set;
    lg_togguf_list *list;
    char src[96], dst[48]; /* prefixes of the layer: "model.layers.3." and "blk.3." */
    lg_err *err;
} walk;

/* ---- one tensor ---- */

/* The view of that name with that shape, of a type that has floats, and its scale. */
static lg_status find(walk *k, const char *name, uint32_t n_dim, const uint64_t *shape,
                      const lg_view **view, const lg_view **scale) {
    char text[NAME_BYTES + 16];
    lg_view *v = lg_tensors_find(k->set, name), *s;
    if (!v) return LG_FAIL(k->err, LG_E_FORMAT, "%s: tensor %s: missing", k->folder, name);
    if (v->n_dim != n_dim || memcmp(v->shape, shape, n_dim * sizeof *shape) != 0)
        return LG_FAIL(k->err, LG_E_FORMAT, "%s: tensor %s: found shape %s, expected another",
                       v->file, name, lg_tensors_shape(v->n_dim, v->shape, text, sizeof text));
    if (v->type > LG_E4M3)
        return LG_FAIL(k->err, LG_E_UNSUPPORTED,
                       "%s: tensor %s: found %s, expected BF16, F16, F32 or F8_E4M3", v->file,
                       name, v->type_name);
    v->used = true;
    *view = v;
    *scale = NULL;
    if (v->type != LG_E4M3) return LG_OK;
    snprintf(text, sizeof text, "%.180s_scale_inv", name);
    s = lg_tensors_find(k->set, text);
    if (!s || s->n_dim != 2 || s->shape[0] != (shape[0] + FP8_BLOCK - 1) / FP8_BLOCK ||
        s->shape[1] != (shape[1] + FP8_BLOCK - 1) / FP8_BLOCK || s->type > LG_F16)
        return LG_FAIL(k->err, LG_E_FORMAT,
                       "%s: tensor %s: expected one number for 128 x 128 elements", v->file,
                       text);
    s->used = true;
    *scale = s;
    return LG_OK;
}

/* A new entry, zeroed but for its name. */
static lg_togguf_tensor *add(walk *k, const char *name) {
    lg_togguf_list *l = k->list;
    LG_ASSERT(l->n < l->cap);
    lg_togguf_tensor *t = &l->tensor[l->n++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%.31s%.32s", k->dst, name);
    return t;
}

/* [n_out][n_in] of the folder, as it is. */
static lg_status matrix(walk *k, const char *src, const char *dst, uint64_t n_out,
                        uint32_t n_in, lg_togguf_tensor **out) {
    char name[NAME_BYTES];
    lg_togguf_tensor *t = add(k, dst);
    snprintf(name, sizeof name, "%s%s", k->src, src);
    t->n_dim = 2;
    t->dim[0] = t->n_in = n_in;
    t->dim[1] = t->n_row = t->n_row_expert = n_out;
    if (out) *out = t;
    return find(k, name, 2, (uint64_t[]){n_out, n_in}, &t->view, &t->scale);
}

/* A vector of n numbers: F32. */
static lg_status vector(walk *k, const char *src, const char *dst, uint32_t n,
                        lg_togguf_map map, lg_togguf_tensor **out) {
    char name[NAME_BYTES];
    lg_togguf_tensor *t = add(k, dst);
    snprintf(name, sizeof name, "%s%s", k->src, src);
    t->n_dim = 1;
    t->dim[0] = t->n_in = n;
    t->n_row = t->n_row_expert = 1;
    t->fixed = true;
    t->map = map;
    if (out) *out = t;
    return find(k, name, 1, (uint64_t[]){n}, &t->view, &t->scale);
}

/* ---- parts of a layer ---- */

static lg_status attention(walk *k) {
    const lg_config *c = k->c;
    uint32_t h = c->n_embd, d = c->d_head, q = c->n_head * d, kv = c->n_kv_head * d;
    LG_TRY(matrix(k, "self_attn.q_proj.weight", "attn_q.weight", 2ull * q, h, NULL));
    LG_TRY(matrix(k, "self_attn.k_proj.weight", "attn_k.weight", kv, h, NULL));
    LG_TRY(matrix(k, "self_attn.v_proj.weight", "attn_v.weight", kv, h, NULL));
    LG_TRY(matrix(k, "self_attn.o_proj.weight", "attn_output.weight", h, q, NULL));
    LG_TRY(vector(k, "self_attn.q_norm.weight", "attn_q_norm.weight", d, LG_TOGGUF_ONE_PLUS,
                  NULL));
    return vector(k, "self_attn.k_norm.weight", "attn_k_norm.weight", d, LG_TOGGUF_ONE_PLUS,
                  NULL);
}

static lg_status linear_attention(walk *k) {
    const lg_config *c = k->c;
    uint32_t h = c->n_embd, nv = c->n_v_head, v = nv * c->d_v, conv = lg_config_conv_dim(c);
    lg_togguf_tensor *t;
    LG_TRY(matrix(k, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", conv, h, &t));
    t->v_row0 = conv - v;
    t->v_rows = c->d_v;
    LG_TRY(matrix(k, "linear_attn.in_proj_z.weight", "attn_gate.weight", v, h, &t));
    t->v_rows = c->d_v;
    LG_TRY(matrix(k, "linear_attn.in_proj_a.weight", "ssm_alpha.weight", nv, h, &t));
    t->v_rows = 1;
    LG_TRY(matrix(k, "linear_attn.in_proj_b.weight", "ssm_beta.weight", nv, h, &t));
    t->v_rows = 1;
    LG_TRY(vector(k, "linear_attn.A_log", "ssm_a", nv, LG_TOGGUF_NEG_EXP, &t));
    t->v_columns = 1;
    LG_TRY(vector(k, "linear_attn.dt_bias", "ssm_dt.bias", nv, LG_TOGGUF_PLAIN, &t));
    t->v_columns = 1;
    LG_TRY(
        vector(k, "linear_attn.norm.weight", "ssm_norm.weight", c->d_v, LG_TOGGUF_PLAIN, NULL));
    LG_TRY(matrix(k, "linear_attn.out_proj.weight", "ssm_out.weight", h, v, &t));
    t->v_columns = c->d_v;
    /* [channels][1][taps] */
    char name[NAME_BYTES];
    t = add(k, "ssm_conv1d.weight");
    snprintf(name, sizeof name, "%slinear_attn.conv1d.weight", k->src);
    t->n_dim = 2;
    t->dim[0] = t->n_in = LG_CONV_K;
    t->dim[1] = t->n_row = t->n_row_expert = conv;
    t->fixed = true;
    t->v_row0 = conv - v;
    t->v_rows = c->d_v;
    return find(k, name, 3, (uint64_t[]){conv, 1, LG_CONV_K}, &t->view, &t->scale);
}

static lg_togguf_tensor *experts(walk *k, const char *dst, uint32_t n_out, uint32_t n_in) {
    lg_togguf_tensor *t = add(k, dst);
    t->routed = true;
    t->n_dim = 3;
    t->dim[0] = t->n_in = n_in;
    t->dim[1] = t->n_row_expert = t->stride = n_out;
    t->dim[2] = k->c->n_expert;
    t->n_row = (uint64_t)n_out * k->c->n_expert;
    return t;
}

/* gate_up_proj [E][2 I][H], gate rows first, and down_proj [E][H][I]. */
static lg_status stacked_experts(walk *k, const char *stacked) {
    const lg_config *c = k->c;
    const lg_view *view, *scale;
    char name[NAME_BYTES];
    uint32_t e = c->n_expert, i = c->n_ff_expert, h = c->n_embd;
    LG_TRY(find(k, stacked, 3, (uint64_t[]){e, 2ull * i, h}, &view, &scale));
    for (int up = 0; up < 2; up++) {
        lg_togguf_tensor *t =
            experts(k, up ? "ffn_up_exps.weight" : "ffn_gate_exps.weight", i, h);
        t->view = view;
        t->stride = 2ull * i;
        t->row0 = up ? i : 0;
    }
    lg_togguf_tensor *t = experts(k, "ffn_down_exps.weight", h, i);
    snprintf(name, sizeof name, "%smlp.experts.down_proj", k->src);
    return find(k, name, 3, (uint64_t[]){e, h, i}, &t->view, &t->scale);
}

/* The matrices of that name of all experts. */
static lg_status single_experts(walk *k, const char *src, const char *dst, uint32_t n_out,
                                uint32_t n_in) {
    char name[NAME_BYTES];
    lg_togguf_list *l = k->list;
    lg_togguf_tensor *t = experts(k, dst, n_out, n_in);
    uint32_t n = k->c->n_expert;
    LG_ASSERT(l->n_expert_used + 2ull * n <= l->n_expert_cap);
    t->expert = l->expert + l->n_expert_used;
    l->n_expert_used += 2ull * n;
    for (uint32_t e = 0; e < n; e++) {
        snprintf(name, sizeof name, "%smlp.experts.%u.%s", k->src, e, src);
        LG_TRY(find(k, name, 2, (uint64_t[]){n_out, n_in}, &t->expert[2 * e],
                    &t->expert[2 * e + 1]));
    }
    return LG_OK;
}

static lg_status mixture(walk *k) {
    const lg_config *c = k->c;
    lg_togguf_tensor *t;
    char name[NAME_BYTES];
    uint32_t h = c->n_embd, s = c->n_ff_shared, i = c->n_ff_expert;
    LG_TRY(matrix(k, "mlp.gate.weight", "ffn_gate_inp.weight", c->n_expert, h, &t));
    t->fixed = true;
    snprintf(name, sizeof name, "%smlp.experts.gate_up_proj", k->src);
    if (lg_tensors_find(k->set, name)) {
        LG_TRY(stacked_experts(k, name));
    } else {
        LG_TRY(single_experts(k, "gate_proj.weight", "ffn_gate_exps.weight", i, h));
        LG_TRY(single_experts(k, "up_proj.weight", "ffn_up_exps.weight", i, h));
        LG_TRY(single_experts(k, "down_proj.weight", "ffn_down_exps.weight", h, i));
    }
    LG_TRY(
        matrix(k, "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", s, h, NULL));
    LG_TRY(matrix(k, "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", s, h, NULL));
    LG_TRY(
        matrix(k, "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", h, s, NULL));
    LG_TRY(matrix(k, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", 1, h, &t));
    t->fixed = true;
    t->n_dim = 1;
    return LG_OK;
}

static lg_status feed_forward(walk *k) {
    uint32_t h = k->c->n_embd, f = k->c->n_ff;
    if (k->c->n_expert) return mixture(k);
    LG_TRY(matrix(k, "mlp.gate_proj.weight", "ffn_gate.weight", f, h, NULL));
    LG_TRY(matrix(k, "mlp.up_proj.weight", "ffn_up.weight", f, h, NULL));
    return matrix(k, "mlp.down_proj.weight", "ffn_down.weight", h, f, NULL);
}

static lg_status layer(walk *k, lg_layer_kind kind) {
    uint32_t h = k->c->n_embd;
    LG_TRY(
        vector(k, "input_layernorm.weight", "attn_norm.weight", h, LG_TOGGUF_ONE_PLUS, NULL));
    LG_TRY(kind == LG_LAYER_ATTN ? attention(k) : linear_attention(k));
    LG_TRY(vector(k, "post_attention_layernorm.weight", "post_attention_norm.weight", h,
                  LG_TOGGUF_ONE_PLUS, NULL));
    return feed_forward(k);
}

/* ---- the draft layer ---- */

static lg_status draft_parts(walk *k) {
    uint32_t h = k->c->n_embd;
    char block[24];
    snprintf(block, sizeof block, "blk.%u.", k->c->n_layer);
    snprintf(k->src, sizeof k->src, "mtp.layers.0.");
    snprintf(k->dst, sizeof k->dst, "%s", block);
    LG_TRY(layer(k, LG_LAYER_ATTN));
    snprintf(k->src, sizeof k->src, "mtp.");
    snprintf(k->dst, sizeof k->dst, "%snextn.", block);
    LG_TRY(matrix(k, "fc.weight", "eh_proj.weight", h, 2 * h, NULL));
    LG_TRY(
        vector(k, "pre_fc_norm_embedding.weight", "enorm.weight", h, LG_TOGGUF_ONE_PLUS, NULL));
    LG_TRY(vector(k, "pre_fc_norm_hidden.weight", "hnorm.weight", h, LG_TOGGUF_ONE_PLUS, NULL));
    LG_TRY(vector(k, "norm.weight", "shared_head_norm.weight", h, LG_TOGGUF_ONE_PLUS, NULL));
    for (size_t i = 0; i < lg_tensors_count(k->set); i++) {
        const lg_view *v = lg_tensors_at(k->set, i);
        if (!v->used && strncmp(v->name, "mtp.", 4) == 0)
            return LG_FAIL(k->err, LG_E_UNSUPPORTED, "%s: tensor %s: has no place in the file",
                           v->file, v->name);
    }
    return LG_OK;
}

/* All of the draft layer, or nothing of it and the reason. */
static void draft(walk *k, const lg_togguf_opt *opt, lg_togguf_report *report) {
    lg_err err = {0}, *old = k->err;
    size_t n = k->list->n;
    bool any = false;
    for (size_t i = 0; i < lg_tensors_count(k->set); i++)
        any = any || strncmp(lg_tensors_at(k->set, i)->name, "mtp.", 4) == 0;
    report->mtp = false;
    report->mtp_reason[0] = 0;
    if (!any) return;
    k->err = &err;
    if (opt->no_mtp)
        snprintf(report->mtp_reason, sizeof report->mtp_reason, "as asked");
    else if (k->c->n_mtp_layer != 1)
        snprintf(report->mtp_reason, sizeof report->mtp_reason,
                 "config.json says mtp_num_hidden_layers %u, and only 1 is known",
                 k->c->n_mtp_layer);
    else if (draft_parts(k) == LG_OK)
        report->mtp = true;
    else
        snprintf(report->mtp_reason, sizeof report->mtp_reason, "%.250s", err.msg);
    if (!report->mtp) k->list->n = n;
    k->err = old;
}

/* ---- types ---- */

/* The type that takes a row that `type` cannot: what the format's own quantiser chooses. */
static lg_dtype fallback(lg_dtype type, uint32_t n_in) {
    if (n_in % lg_dtype_block(type) == 0) return type;
    if (n_in % 32) return LG_F16;
    switch (type) {
    case LG_Q4_K: return LG_Q5_0;
    case LG_Q5_K: return LG_Q5_1;
    case LG_IQ4_XS: return LG_IQ4_NL;
    default: return LG_Q8_0;
    }
}

static void set_type(lg_togguf_tensor *t, const lg_togguf_opt *opt, bool *fits,
                     lg_togguf_report *report) {
    lg_dtype want = opt->type == LG_MXFP4 && !t->routed ? LG_Q8_0 : opt->type;
    t->type = LG_F32;
    if (t->fixed) return;
    for (size_t i = 0; i < opt->n_rule; i++)
        if (fnmatch(opt->rule[i].pattern, t->name, 0) == 0) {
            want = opt->rule[i].type;
            fits[i] = true;
        }
    t->type = fallback(want, t->n_in);
    if (t->type == want) return;
    if (report->n_fallback++ == 0) {
        report->fallback_from = want;
        report->fallback_to = t->type;
    }
}

static lg_status set_types(walk *k, const lg_togguf_opt *opt, lg_togguf_report *report) {
    bool *fits = lg_mem_calloc(opt->n_rule + 1, sizeof *fits);
    lg_status st = LG_OK;
    if (!fits) return LG_FAIL(k->err, LG_E_NOMEM, "%s: no memory", k->folder);
    for (size_t i = 0; i < k->list->n; i++) set_type(&k->list->tensor[i], opt, fits, report);
    for (size_t i = 0; i < opt->n_rule && st == LG_OK; i++)
        if (!fits[i])
            st = LG_FAIL(k->err, LG_E_ARG,
                         "no matrix of the model fits '%s' (vectors, router and convolution "
                         "stay F32)",
                         opt->rule[i].pattern);
    lg_mem_free(fits);
    return st;
}

/* ---- all ---- */

static lg_status reserve(walk *k) {
    lg_togguf_list *l = k->list;
    size_t n_layer = (size_t)k->c->n_layer + 1;
    l->cap = n_layer * PER_LAYER + 8;
    l->n_expert_cap = n_layer * 3 * 2 * k->c->n_expert + 1;
    l->tensor = lg_mem_calloc(l->cap, sizeof *l->tensor);
    l->expert = lg_mem_calloc(l->n_expert_cap, sizeof *l->expert);
    if (l->tensor && l->expert) return LG_OK;
    return LG_FAIL(k->err, LG_E_NOMEM, "%s: no memory for its list of tensors", k->folder);
}

lg_status lg_togguf_tensors_list(const char *folder, const lg_config *cfg, lg_tensors *set,
                                 const lg_togguf_opt *opt, lg_togguf_list *list,
                                 lg_togguf_report *report, lg_err *err) {
    walk k = {.folder = folder, .c = cfg, .set = set, .list = list, .err = err};
    const char *root = cfg->nested ? "model.language_model." : "model.";
    LG_TRY(reserve(&k));
    snprintf(k.src, sizeof k.src, "%s", root);
    LG_TRY(matrix(&k, "embed_tokens.weight", "token_embd.weight", cfg->n_vocab, cfg->n_embd,
                  NULL));
    for (uint32_t i = 0; i < cfg->n_layer; i++) {
        snprintf(k.src, sizeof k.src, "%slayers.%u.", root, i);
        snprintf(k.dst, sizeof k.dst, "blk.%u.", i);
        LG_TRY(layer(&k, (lg_layer_kind)cfg->layer[i]));
    }
    draft(&k, opt, report);
    snprintf(k.src, sizeof k.src, "%s", root);
    k.dst[0] = 0;
    LG_TRY(
        vector(&k, "norm.weight", "output_norm.weight", cfg->n_embd, LG_TOGGUF_ONE_PLUS, NULL));
    k.src[0] = 0;
    if (!cfg->tied)
        LG_TRY(matrix(&k, "lm_head.weight", "output.weight", cfg->n_vocab, cfg->n_embd, NULL));
    return set_types(&k, opt, report);
}

void lg_togguf_tensors_fini(lg_togguf_list *list) {
    lg_mem_free(list->tensor);
    lg_mem_free(list->expert);
    *list = (lg_togguf_list){0};
}
