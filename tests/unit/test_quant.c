/* test_quant.c - quantised folders of every method: the forward pass equals that of the same numbers as F32, matrices are kept
 * in the type they should be, and damaged folders are refused by name. */
#include "quant_folder.h"
#include "rig.h"

#include "base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define DENSE "tests/data/models/tiny-dense"
#define MOE   "tests/data/models/tiny-moe"
#define N_TOK 12

#define GPTQ LG_QUANT_GPTQ
#define AWQ  LG_QUANT_AWQ
#define CT   LG_QUANT_CT
#define OPT  LG_QUANT_MODELOPT

/* How modules whose name holds `part` are stored; the first that fits counts. */
typedef struct rule {
    const char *part;
    qf_spec spec;
    lg_dtype type; /* what they must become */
} rule;

typedef struct quant_case {
    const char *name, *model, *config; /* config: quantization_config */
    rule rule[4];
} quant_case;

#define AS_IS                                                                                  \
    { LG_QUANT_NONE, {0}, LG_F32, false }
#define INT4(m, n, symmetric, scale)                                                           \
    {                                                                                          \
        .method = m,                                                                           \
        .scheme = {.per = (n) ? LG_PER_GROUP : LG_PER_CHANNEL,                                 \
                   .bits = 4,                                                                  \
                   .group = n,                                                                 \
                   .packed = true,                                                             \
                   .sym = symmetric},                                                          \
        .scale_type = scale                                                                    \
    }
#define ORDERED(m, n, symmetric, scale)                                                        \
    {                                                                                          \
        .method = m,                                                                           \
        .scheme = {.per = LG_PER_GROUP,                                                        \
                   .bits = 4,                                                                  \
                   .group = n,                                                                 \
                   .packed = true,                                                             \
                   .sym = symmetric,                                                           \
                   .act_order = true},                                                         \
        .scale_type = scale                                                                    \
    }
#define INT8(m, of, n, words, symmetric, scale)                                                \
    {                                                                                          \
        .method = m,                                                                           \
        .scheme = {.per = of, .bits = 8, .group = n, .packed = words, .sym = symmetric},       \
        .scale_type = scale                                                                    \
    }
#define FLOAT(m, k, of, n, scale)                                                              \
    {                                                                                          \
        .method = m,                                                                           \
        .scheme = {.kind = k,                                                                  \
                   .per = of,                                                                  \
                   .bits = k == LG_SCHEME_FP8 ? 8 : 4,                                         \
                   .group = n,                                                                 \
                   .sym = true},                                                               \
        .scale_type = scale                                                                    \
    }

#define ARGS_INT(bits, rest)                                                                   \
    "\"weights\":{\"num_bits\":" bits ",\"type\":\"int\"," rest                                \
    ",\"dynamic\":false,\"observer\":\"minmax\"},\"input_activations\":null"
#define GROUPS(format, args)                                                                   \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format                            \
    "\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"]," args                        \
    "}},\"ignore\":[\"lm_head\"],\"quantization_status\":\"compressed\"}"
#define ARGS_FLOAT(bits, rest)                                                                 \
    "\"weights\":{\"num_bits\":" bits ",\"type\":\"float\",\"symmetric\":true," rest "}"
#define GPTQ_JSON(bits, group, sym, act, rest)                                                 \
    "{\"quant_method\":\"gptq\",\"bits\":" bits ",\"group_size\":" group ",\"sym\":" sym       \
    ",\"desc_act\":" act ",\"damp_percent\":0.01" rest "}"
#define AWQ_JSON(group, zero)                                                                  \
    "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":" group ",\"zero_point\":" zero       \
    ",\"version\":\"gemm\",\"modules_to_not_convert\":[\"lm_head\",\"mlp.gate.\"]}"

/* clang-format off */
#define THREE_SCHEMES \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\",\"config_groups\":{" \
    "\"a\":{\"targets\":[\"re:.*experts\"],\"format\":\"pack-quantized\"," \
    ARGS_INT("4", "\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32") "}," \
    "\"b\":{\"targets\":[\"Linear\"],\"format\":\"float-quantized\"," \
    ARGS_FLOAT("8", "\"strategy\":\"channel\"") "}}," \
    "\"ignore\":[\"lm_head\",\"re:.*shared_expert\",\"model.layers.0.mlp.gate\"]}"
/* clang-format on */

static const quant_case cases[] = {
    {"GPTQ, groups of 32",
     DENSE,
     GPTQ_JSON("4", "32", "true", "false", ""),
     {{"_proj", INT4(GPTQ, 32, true, LG_F16), LG_Q4_0}}},
    {"GPTQ, zero points",
     DENSE,
     GPTQ_JSON("4", "32", "false", "false", ""),
     {{"_proj", INT4(GPTQ, 32, false, LG_F16), LG_I4_32}}},
    {"GPTQ, version 2, whole rows",
     MOE,
     GPTQ_JSON("4", "-1", "false", "false", ",\"checkpoint_format\":\"gptq_v2\""),
     {{"attn", {GPTQ, {.per = LG_PER_CHANNEL, .bits = 4}, LG_F32, true}, LG_I4_128}}},
    {"GPTQ, act-order",
     DENSE,
     GPTQ_JSON("4", "32", "true", "true", ""),
     {{"_proj", ORDERED(GPTQ, 32, true, LG_F16), LG_I4_ANY}}},
    {"GPTQ, act-order, zero points, experts",
     MOE,
     GPTQ_JSON("4", "32", "false", "true", ""),
     {{"experts.down", ORDERED(GPTQ, 32, false, LG_BF16), LG_I4_32}, /* one group */
      {"_proj", ORDERED(GPTQ, 32, false, LG_BF16), LG_I4_ANY}}},
    {"GPTQ, odd groups",
     DENSE,
     GPTQ_JSON("4", "16", "true", "false", ""),
     {{"_proj", INT4(GPTQ, 16, true, LG_F16), LG_I4_ANY}}},
    {"GPTQ, 8 bits",
     DENSE,
     GPTQ_JSON("8", "128", "true", "false", ""),
     {{"down_proj", AS_IS, LG_BF16},
      {"_proj", INT8(GPTQ, LG_PER_GROUP, 128, true, true, LG_F16), LG_I8_128}}},
    {"GPTQ, dynamic",
     DENSE,
     GPTQ_JSON("4", "32", "true", "false",
               ",\"dynamic\":{\"-:.*linear_attn\":{},\"+:.*\\\\.mlp\\\\.\":{"
               "\"bits\":8}}"),
     {{"linear_attn", AS_IS, LG_BF16},
      {".mlp.", INT8(GPTQ, LG_PER_GROUP, 32, true, true, LG_F16), LG_I8_ANY},
      {"_proj", INT4(GPTQ, 32, true, LG_F16), LG_Q4_0}}},
    {"AWQ, groups of 32",
     DENSE,
     AWQ_JSON("32", "true"),
     {{"_proj", INT4(AWQ, 32, false, LG_F16), LG_I4_32}}},
    {"AWQ, groups of 128, experts apart",
     MOE,
     AWQ_JSON("128", "true"),
     {{"experts", AS_IS, LG_BF16},
      {"shared_expert.down", AS_IS, LG_BF16},
      {"_proj", INT4(AWQ, 128, false, LG_F16), LG_I4_128}}},
    {"AWQ, no zero points",
     MOE,
     AWQ_JSON("32", "false"),
     {{"_proj", INT4(AWQ, 32, true, LG_F16), LG_Q4_0}}},
    {"words of 4 bits",
     DENSE,
     GROUPS("pack-quantized",
            ARGS_INT("4", "\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32")),
     {{"_proj", INT4(CT, 32, true, LG_BF16), LG_I4_32}}},
    {"words of 4 bits, zero points, experts",
     MOE,
     GROUPS("pack-quantized",
            ARGS_INT("4", "\"symmetric\":false,\"strategy\":\"group\",\"group_size\":32")),
     {{"_proj", INT4(CT, 32, false, LG_BF16), LG_I4_32}}},
    {"words of 4 bits, act-order",
     DENSE,
     GROUPS("pack-quantized",
            ARGS_INT("4", "\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32,"
                          "\"actorder\":\"group\"")),
     {{"_proj", ORDERED(CT, 32, true, LG_BF16), LG_I4_ANY}}},
    {"words of 8 bits, a scale a channel",
     MOE,
     GROUPS("pack-quantized", ARGS_INT("8", "\"symmetric\":true,\"strategy\":\"channel\"")),
     {{"attn", INT8(CT, LG_PER_CHANNEL, 0, true, true, LG_BF16), LG_I8_128}}},
    {"bytes, a scale a channel",
     DENSE,
     GROUPS("int-quantized", ARGS_INT("8", "\"symmetric\":true,\"strategy\":\"channel\"")),
     {{"down_proj", INT8(CT, LG_PER_CHANNEL, 0, false, true, LG_F32), LG_I8_ANY},
      {"_proj", INT8(CT, LG_PER_CHANNEL, 0, false, true, LG_F32), LG_I8_128}}},
    {"bytes, one scale, zero points",
     DENSE,
     GROUPS("int-quantized", ARGS_INT("8", "\"symmetric\":false,\"strategy\":\"channel\"")),
     {{"_proj", INT8(CT, LG_PER_CHANNEL, 0, false, false, LG_BF16), LG_I8_ANY}}},
    {"bytes, one scale",
     DENSE,
     GROUPS("int-quantized", ARGS_INT("8", "\"symmetric\":true,\"strategy\":\"tensor\"")),
     {{"down_proj", AS_IS, LG_BF16},
      {"_proj", INT8(CT, LG_PER_TENSOR, 0, false, true, LG_F32), LG_I8_128}}},
    {"FP8, a scale a channel",
     DENSE,
     GROUPS("float-quantized", ARGS_FLOAT("8", "\"strategy\":\"channel\"")),
     {{"_proj", FLOAT(CT, LG_SCHEME_FP8, LG_PER_CHANNEL, 0, LG_BF16), LG_E4M3}}},
    {"FP8, a scale for 128 inputs of a channel",
     DENSE,
     GROUPS("float-quantized", ARGS_FLOAT("8", "\"strategy\":\"group\",\"group_size\":128")),
     {{"down_proj", AS_IS, LG_BF16},
      {"_proj", FLOAT(CT, LG_SCHEME_FP8, LG_PER_GROUP, 128, LG_BF16), LG_E4M3}}},
    {"FP8, one scale",
     MOE,
     GROUPS("float-quantized", ARGS_FLOAT("8", "\"strategy\":\"tensor\"")),
     {{"_proj", FLOAT(CT, LG_SCHEME_FP8, LG_PER_TENSOR, 0, LG_F32), LG_E4M3}}},
    {"FP8, blocks",
     DENSE,
     GROUPS("float-quantized",
            ARGS_FLOAT("8", "\"strategy\":\"block\",\"block_structure\":[128,128]")),
     {{"_proj", FLOAT(CT, LG_SCHEME_FP8, LG_PER_BLOCK, 0, LG_BF16), LG_E4M3}}},
    {"NVFP4",
     DENSE,
     GROUPS("nvfp4-pack-quantized",
            ARGS_FLOAT("4", "\"strategy\":\"tensor_group\",\"group_size\":16")),
     {{"_proj", FLOAT(CT, LG_SCHEME_NVFP4, LG_PER_GROUP, 16, LG_F32), LG_NVFP4}}},
    {"NVFP4 of modelopt, experts",
     MOE,
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":[\"lm_"
     "head\",\"*attn*\"],"
     "\"producer\":{\"name\":\"modelopt\"}}",
     {{"mlp", FLOAT(OPT, LG_SCHEME_NVFP4, LG_PER_GROUP, 16, LG_F32), LG_NVFP4}}},
    {"FP8 of modelopt",
     DENSE,
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\"}",
     {{"_proj", FLOAT(OPT, LG_SCHEME_FP8, LG_PER_TENSOR, 0, LG_F32), LG_E4M3}}},
    {"MXFP4",
     DENSE,
     GROUPS("mxfp4-pack-quantized",
            ARGS_FLOAT("4", "\"strategy\":\"group\",\"group_size\":32")),
     {{"_proj", FLOAT(CT, LG_SCHEME_MXFP4, LG_PER_GROUP, 32, LG_F32), LG_MXFP4}}},
    {"MXFP4, stacked experts",
     MOE,
     "{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"self_attn\",\"lm_"
     "head\"]}",
     {{"mlp.experts", FLOAT(LG_QUANT_MXFP4, LG_SCHEME_MXFP4, LG_PER_GROUP, 32, LG_F32),
       LG_MXFP4}}},
    {"three schemes in one layer",
     MOE,
     THREE_SCHEMES,
     {{"mlp.experts", INT4(CT, 32, true, LG_BF16), LG_I4_32},
      {"shared_expert", AS_IS, LG_BF16},
      {"_proj", FLOAT(CT, LG_SCHEME_FP8, LG_PER_CHANNEL, 0, LG_BF16), LG_E4M3}}},
};

static lg_pool *pool;

static const rule *rule_of(const quant_case *c, const char *name) {
    if (strstr(name, "in_proj_a") || strstr(name, "in_proj_b")) return NULL;
    if (strstr(name, "norm") || strstr(name, "mlp.gate") == name + strlen(name) - 8 ||
        strstr(name, "expert_gate") || !strstr(name, "_proj"))
        return NULL;
    for (size_t i = 0; i < LG_COUNT(c->rule) && c->rule[i].part; i++)
        if (strstr(name, c->rule[i].part)) return &c->rule[i];
    return NULL;
}

static const qf_spec *choose(void *ctx, const char *name) {
    const rule *r = rule_of(ctx, name);
    return r && r->spec.method != LG_QUANT_NONE ? &r->spec : NULL;
}

/* A folder with these tensors, and with a quantization_config. */
static void make_folder(lg_fixture *f, const quant_case *c, const qf_set *set, bool quantised) {
    char text[2048];
    lg_fixture_init(f, c->model);
    snprintf(text, sizeof text, "{\"quantization_config\":%s,", c->config);
    if (quantised) lg_fixture_replace(f, "config.json", "{", text);
    const char *const more[] = {"model.safetensors.index.json",
                                "model.safetensors-00001-of-00003.safetensors",
                                "model.safetensors-00002-of-00003.safetensors",
                                "model.safetensors-00003-of-00003.safetensors"};
    for (size_t i = 0; i < LG_COUNT(more) && strcmp(c->model, MOE) == 0; i++)
        lg_fixture_remove(f, more[i]);
    qf_write(set, f);
}

/* Logits of N_TOK tokens. */
static float *logits_of(const lg_weights *w, bool exact) {
    lg_backend *be = NULL;
    lg_err err = {0};
    lg_backend_opt opt = {.n_slot = 1,
                          .n_page = 1,
                          .max_tok = N_TOK,
                          .max_seq = 1,
                          .max_out = N_TOK,
                          .n_sample_vocab = w->cfg.n_vocab,
                          .exact = exact};
    uint32_t tok[N_TOK], page[1] = {0};
    size_t n = w->cfg.n_vocab;
    for (uint32_t i = 0; i < N_TOK; i++) tok[i] = (i * 131 + 7) % w->cfg.n_vocab;
    if (lg_backend_open(w, &opt, pool, &be, &err) != LG_OK) fail_msg("%s", err.msg);
    rig_seq seq = {0, 0, page, 1, tok, N_TOK, N_TOK};
    lg_step_out out = {0};
    rig_step(be, &seq, 1, &out);
    float *y = lg_mem_calloc(N_TOK * n, sizeof *y);
    for (size_t r = 0; r < N_TOK; r++)
        memcpy(y + r * n, out.logits + r * out.ld_logits, n * sizeof *y);
    lg_backend_close(&be);
    return y;
}

static void check_type(const quant_case *c, const char *name, const lg_mat *m) {
    const rule *r = rule_of(c, name);
    lg_dtype want = r ? r->type : LG_BF16;
    if (m->type != want)
        fail_msg("%s: %s is kept as %s, expected %s", c->name, name, lg_dtype_name(m->type),
                 lg_dtype_name(want));
}

static void check_types(const quant_case *c, const lg_weights *w) {
    for (uint32_t i = 0; i < w->cfg.n_layer; i++) {
        const lg_layer_w *l = &w->layer[i];
        bool attn = l->kind == LG_LAYER_ATTN;
        check_type(c, attn ? "self_attn.q_proj" : "linear_attn.in_proj_qkv",
                   attn ? &l->q : &l->qkv);
        check_type(c, attn ? "self_attn.o_proj" : "linear_attn.out_proj",
                   attn ? &l->o : &l->out);
        if (!w->cfg.n_expert) {
            check_type(c, ".mlp.up_proj", &l->mlp.up);
            check_type(c, ".mlp.down_proj", &l->mlp.down);
            continue;
        }
        check_type(c, "mlp.shared_expert.down_proj", &l->shared.down);
        check_type(c, "mlp.experts.gate_up_proj", &l->expert[3].gate);
        check_type(c, "mlp.experts.gate_up_proj", &l->expert[3].up);
        check_type(c, "mlp.experts.down_proj", &l->expert[0].down);
    }
}

/* The quantised folder against the same numbers as F32: by bits, as every number is held exactly and every sum has one order;
 * but NVFP4's scale of the tensor may be rounded once more. */
static void check_case(const quant_case *c) {
    qf_set quant = {0}, plain = {0};
    lg_fixture fq, fp;
    lg_weights *wq = NULL, *wp = NULL;
    lg_err err = {0};
    union {
        const quant_case *in;
        void *out;
    } ctx = {c};
    qf_make(c->model, choose, ctx.out, &quant, &plain);
    make_folder(&fq, c, &quant, true);
    make_folder(&fp, c, &plain, false);
    if (lg_weights_open(fq.path, pool, NULL, NULL, &wq, &err) != LG_OK)
        fail_msg("%s: %s", c->name, err.msg);
    if (lg_weights_open(fp.path, pool, NULL, NULL, &wp, &err) != LG_OK) fail_msg("%s", err.msg);
    check_types(c, wq);
    assert_int_equal(wq->n_param, wp->n_param);
    size_t n = (size_t)N_TOK * wq->cfg.n_vocab;
    float *want = logits_of(wp, true), *exact = logits_of(wq, true),
          *fast = logits_of(wq, false);
    uint32_t same;
    double d = rig_max_diff(exact, want, n);
    double kl = rig_mean_kl(want, wq->cfg.n_vocab, fast, wq->cfg.n_vocab, N_TOK,
                            wq->cfg.n_vocab, &same);
    printf("  %-40s max difference %.1e, with integers mean KL %.1e\n", c->name, d, kl);
    assert_true(d <= (c->rule[0].type == LG_NVFP4 ? 1e-3 : 0));
    /* These weights are random, so rounded rows cost more than in a trained model, and other experts may be chosen. */
    assert_true(kl < (wq->cfg.n_expert ? 0.6 : 0.1));
    lg_mem_free(want);
    lg_mem_free(exact);
    lg_mem_free(fast);
    lg_weights_close(&wq);
    lg_weights_close(&wp);
    lg_fixture_fini(&fq);
    lg_fixture_fini(&fp);
    qf_fini(&quant);
    qf_fini(&plain);
}

static void test_every_method(void **state) {
    (void)state;
    for (size_t i = 0; i < LG_COUNT(cases); i++) check_case(&cases[i]);
}

/* ---- damage ---- */

typedef enum {
    DROP,   /* tensor a */
    RENAME, /* tensor a to b */
    TYPE,   /* tensor a has type b, of the same size an element */
    SWAP,   /* the two dimensions of tensor a */
    LESS,   /* the last dimension of tensor a is one less */
    WORD,   /* word n of tensor a becomes b */
    HALF,   /* 16 bits n of tensor a become b */
    ADD,    /* tensor a, type b, shape [n] */
    CONFIG  /* a becomes b in config.json */
} op;

typedef struct damage {
    const char *name; /* of a case */
    op what;
    const char *a, *b;
    unsigned n;
    lg_status status;
    const char *words[2]; /* that the message must hold */
} damage;

#define L0 "model.layers.0.linear_attn.out_proj"
#define FM LG_E_FORMAT
#define UN LG_E_UNSUPPORTED

/* clang-format off */
static const damage damages[] = {
    {"GPTQ, groups of 32", DROP, L0 ".qzeros", "", 0, FM, {L0 ".qzeros", "missing, expected I32 [8, 16]"}},
    {"GPTQ, groups of 32", DROP, L0 ".scales", "", 0, FM, {L0 ".scales", "missing"}},
    {"GPTQ, groups of 32", DROP, L0 ".qweight", "", 0, FM, {L0 ".weight", "missing"}},
    {"GPTQ, groups of 32", SWAP, L0 ".qweight", "", 0, FM, {L0 ".qweight", "found shape [128, 32], expected [32, 128]"}},
    {"GPTQ, groups of 32", LESS, L0 ".scales", "", 0, FM, {L0 ".scales", "found shape [8, 127], expected [8, 128]"}},
    {"GPTQ, groups of 32", LESS, L0 ".g_idx", "", 0, FM, {L0 ".g_idx", "found shape [255], expected [256]"}},
    {"GPTQ, groups of 32", TYPE, L0 ".qweight", "F32", 0, UN, {L0 ".qweight", "found F32, expected I32"}},
    {"GPTQ, groups of 32", TYPE, L0 ".scales", "I16", 0, UN, {L0 ".scales", "found I16, expected F16|BF16|F32"}},
    {"GPTQ, groups of 32", WORD, L0 ".g_idx", "1", 0, FM, {L0 ".g_idx", "desc_act is false"}},
    {"GPTQ, groups of 32", WORD, L0 ".qzeros", "0", 0, FM, {L0 ".qzeros", "found a zero point of 1"}},
    {"GPTQ, groups of 32", HALF, L0 ".scales", "31744", 3, FM, {L0 ".scales", "not finite"}},
    {"GPTQ, groups of 32", ADD, L0 ".bias", "F16", 128, FM, {L0 ".bias", "does not have"}},
    {"GPTQ, groups of 32", ADD, L0 ".weight", "F16", 128, FM, {L0 ".weight", "does not have"}},
    {"GPTQ, groups of 32", RENAME, L0 ".qweight", L0 ".weight_packed", 0, FM, {L0 ".weight", "missing"}},
    {"GPTQ, groups of 32", CONFIG, "\"group_size\":32", "\"group_size\":64", 0, FM, {"in_proj_qkv.scales", "found shape [4, 512], expected [2, 512]"}},
    {"GPTQ, groups of 32", CONFIG, "\"group_size\":32", "\"group_size\":16", 0, FM, {"scales", "expected [8, 512]"}},
    {"GPTQ, groups of 32", CONFIG, "\"group_size\":32", "\"group_size\":0", 0, UN, {"quantization_config.group_size", "found 0"}},
    {"GPTQ, groups of 32", CONFIG, "\"group_size\":32,", "", 0, UN, {"quantization_config.group_size", "found nothing"}},
    {"GPTQ, groups of 32", CONFIG, "\"group_size\":32", "\"group_size\":99999999", 0, UN, {"quantization_config.group_size", "99999999"}},
    {"GPTQ, groups of 32", CONFIG, "\"bits\":4", "\"bits\":3", 0, UN, {"quantization_config.bits", "found 3, expected 4 or 8"}},
    {"GPTQ, groups of 32", CONFIG, "\"bits\":4", "\"bits\":8", 0, FM, {"qweight", "expected [32, 512]"}},
    {"GPTQ, groups of 32", CONFIG, "\"sym\":true", "\"sym\":1", 0, UN, {"quantization_config.sym", "true or false"}},
    {"GPTQ, groups of 32", CONFIG, "\"damp_percent\"", "\"clip\"", 0, UN, {"quantization_config.clip", "not understood"}},
    {"GPTQ, groups of 32", CONFIG, "\"gptq\"", "\"bitsandbytes\"", 0, UN, {"quant_method", "bitsandbytes"}},
    {"GPTQ, groups of 32", CONFIG, "\"gptq\"", "\"awq\"", 0, UN, {"quantization_config.sym", "not understood"}},
    {"GPTQ, groups of 32", CONFIG, "\"damp_percent\":0.01", "\"checkpoint_format\":\"marlin\"", 0, UN, {"checkpoint_format", "marlin"}},
    {"GPTQ, groups of 32", CONFIG, "\"damp_percent\":0.01", "\"dynamic\":{\"-:.*out_proj\":{}}", 0, FM, {L0 ".qweight", "quantization_config.dynamic"}},
    {"GPTQ, groups of 32", CONFIG, "\"damp_percent\":0.01", "\"dynamic\":{\"-:(\":{}}", 0, FM, {"quantization_config.dynamic", "pattern ("}},
    {"GPTQ, groups of 32", CONFIG, "\"damp_percent\":0.01", "\"dynamic\":{\"+:.*\":{\"bit\":8}}", 0, UN, {"bit", "not understood"}},
    {"GPTQ, act-order", WORD, L0 ".g_idx", "8", 5, FM, {L0 ".g_idx", "found group 8 for input channel 5, expected 0 to 7"}},
    {"GPTQ, act-order", WORD, L0 ".g_idx", "4294967295", 255, FM, {L0 ".g_idx", "found group -1"}},
    {"GPTQ, act-order", DROP, L0 ".g_idx", "", 0, FM, {L0 ".g_idx", "missing, expected I32 [256]"}},
    {"AWQ, groups of 32", DROP, L0 ".qzeros", "", 0, FM, {L0 ".qzeros", "missing"}},
    {"AWQ, groups of 32", SWAP, L0 ".qweight", "", 0, FM, {L0 ".qweight", "expected [256, 16]"}},
    {"AWQ, groups of 32", LESS, L0 ".qzeros", "", 0, FM, {L0 ".qzeros", "found shape [8, 15]"}},
    {"AWQ, groups of 32", CONFIG, "\"gemm\"", "\"gemv\"", 0, UN, {"quantization_config.version", "gemv"}},
    {"AWQ, groups of 32", CONFIG, "\"bits\":4", "\"bits\":8", 0, UN, {"quantization_config.bits", "found 8, expected 4"}},
    {"AWQ, groups of 32", CONFIG, "\"zero_point\":true", "\"zero_point\":false", 0, FM, {"qzeros", "does not have"}},
    {"AWQ, groups of 32", CONFIG, "\"lm_head\"", "\"linear_attn\"", 0, FM, {"linear_attn", "modules_to_not_convert"}},
    {"AWQ, groups of 32", CONFIG, "[\"lm_head\",", "[7,", 0, UN, {"modules_to_not_convert", "found 7"}},
    {"words of 4 bits", DROP, L0 ".weight_shape", "", 0, FM, {L0 ".weight_shape", "missing, expected [128, 256]"}},
    {"words of 4 bits", WORD, L0 ".weight_shape", "64", 0, FM, {L0 ".weight_shape", "found [64, 256], expected [128, 256]"}},
    {"words of 4 bits", DROP, L0 ".weight_scale", "", 0, FM, {L0 ".weight_scale", "missing"}},
    {"words of 4 bits", LESS, L0 ".weight_packed", "", 0, FM, {L0 ".weight_packed", "found shape [128, 31], expected [128, 32]"}},
    {"words of 4 bits", HALF, L0 ".weight_scale", "32640", 9, FM, {L0 ".weight_scale", "not finite"}},
    {"words of 4 bits", ADD, L0 ".weight_zero_point", "I32", 16, FM, {L0 ".weight_zero_point", "does not have"}},
    {"words of 4 bits", CONFIG, "\"symmetric\":true", "\"symmetric\":false", 0, FM, {"weight_zero_point", "missing"}},
    {"words of 4 bits", CONFIG, "\"group_size\":32", "\"group_size\":8", 0, FM, {"weight_scale", "expected [512, 16]"}},
    {"words of 4 bits", CONFIG, "\"num_bits\":4", "\"num_bits\":2", 0, UN, {"config_groups.group_0.weights.num_bits", "found 2"}},
    {"words of 4 bits", CONFIG, "pack-quantized", "marlin-24", 0, UN, {"format", "expected pack-quantized"}},
    {"words of 4 bits", CONFIG, "\"group\"", "\"token\"", 0, UN, {"weights.strategy", "token"}},
    {"words of 4 bits", CONFIG, "\"dynamic\":false", "\"dynamic\":true", 0, UN, {"weights.dynamic", "true"}},
    {"words of 4 bits", CONFIG, "\"lm_head\"", "\"re:.*out_proj\"", 0, FM, {L0, "quantization_config.ignore"}},
    {"words of 4 bits", CONFIG, "\"Linear\"", "\"re:.*mlp\"", 0, FM, {"linear_attn", "config_groups.targets"}},
    {"words of 4 bits", CONFIG, "\"ignore\"", "\"transform_config\":{\"a\":1},\"ignore\"", 0, UN, {"transform_config", "an object"}},
    {"bytes, a scale a channel", TYPE, L0 ".weight", "U8", 0, UN, {L0 ".weight", "found U8, expected I8"}},
    {"bytes, a scale a channel", LESS, L0 ".weight_scale", "", 0, FM, {L0 ".weight_scale", "expected [128, 1]"}},
    {"FP8, a scale a channel", DROP, L0 ".weight_scale", "", 0, FM, {L0 ".weight_scale", "missing, expected"}},
    {"FP8, a scale a channel", HALF, L0 ".weight_scale", "65472", 1, FM, {L0 ".weight_scale", "not finite"}},
    {"FP8, a scale a channel", CONFIG, "\"channel\"", "\"group\",\"group_size\":64", 0, UN, {"weights.group_size", "found 64"}},
    {"FP8, a scale a channel", CONFIG, "\"channel\"", "\"group\",\"group_size\":256", 0, FM, {"in_proj_qkv.weight", "multiple of the group size 256"}},
    {"FP8, blocks", CONFIG, "[128,128]", "[64,128]", 0, UN, {"weights.block_structure", "an array"}},
    {"FP8, blocks", SWAP, L0 ".weight_scale", "", 0, FM, {L0 ".weight_scale", "found shape [2, 1], expected [1, 2]"}},
    {"NVFP4", DROP, L0 ".weight_global_scale", "", 0, FM, {L0 ".weight_global_scale", "missing"}},
    {"NVFP4", WORD, L0 ".weight_global_scale", "0", 0, FM, {L0 ".weight_global_scale", "zero or not finite"}},
    {"NVFP4", TYPE, L0 ".weight_scale", "U8", 0, UN, {L0 ".weight_scale", "found U8, expected F8_E4M3"}},
    {"NVFP4", WORD, L0 ".weight_scale", "2139062143", 1, FM, {L0 ".weight_scale", "not finite"}},
    {"NVFP4", CONFIG, "\"group_size\":16", "\"group_size\":64", 0, UN, {"weights.group_size", "found 64"}},
    {"MXFP4", WORD, L0 ".weight_scale", "4294967295", 0, FM, {L0 ".weight_scale", "not finite"}},
    {"MXFP4, stacked experts", DROP, "model.language_model.layers.0.mlp.experts.down_proj_scales", "", 0, FM, {"down_proj_scales", "missing"}},
    {"MXFP4, stacked experts", CONFIG, "\"self_attn\"", "\"experts\"", 0, FM, {"gate_up_proj_blocks", "modules_to_not_convert"}},
    {"FP8 of modelopt", CONFIG, "\"FP8\"", "\"W4A8_AWQ\"", 0, UN, {"quant_algo", "W4A8_AWQ"}},
};
/* clang-format on */

static void damage_set(qf_set *s, const damage *d) {
    qf_tensor *t = qf_find(s, d->a);
    uint32_t word = d->what == WORD || d->what == HALF ? (uint32_t)strtoul(d->b, NULL, 10) : 0;
    if (d->what == CONFIG) return;
    if (d->what == ADD) {
        qf_add(s, d->a, d->b, 1, (uint64_t[]){d->n});
        return;
    }
    if (!t) fail_msg("%s: no tensor %s", d->name, d->a);
    if (d->what == DROP) {
        free(t->data);
        *t = s->t[--s->n];
    } else if (d->what == RENAME) {
        snprintf(t->name, sizeof t->name, "%s", d->b);
    } else if (d->what == TYPE) {
        t->type = d->b;
    } else if (d->what == SWAP) {
        uint64_t keep = t->shape[0];
        t->shape[0] = t->shape[1];
        t->shape[1] = keep;
    } else if (d->what == LESS) {
        uint64_t *last = &t->shape[t->n_dim - 1];
        t->len_bytes = t->len_bytes / *last * (*last - 1);
        --*last;
    } else {
        size_t one = d->what == WORD ? 4 : 2;
        LG_ASSERT((d->n + 1) * one <= t->len_bytes);
        memcpy(t->data + d->n * one, &word, one);
    }
}

static const quant_case *case_named(const char *name) {
    for (size_t i = 0; i < LG_COUNT(cases); i++)
        if (strcmp(cases[i].name, name) == 0) return &cases[i];
    fail_msg("no case %s", name);
    return NULL;
}

static bool check_damage(const damage *d) {
    union {
        const quant_case *in;
        void *out;
    } ctx = {case_named(d->name)};
    qf_set quant = {0}, plain = {0};
    lg_fixture f;
    lg_weights *w = NULL;
    lg_err err = {0};
    qf_make(ctx.in->model, choose, ctx.out, &quant, &plain);
    damage_set(&quant, d);
    make_folder(&f, ctx.in, &quant, true);
    if (d->what == CONFIG) lg_fixture_replace(&f, "config.json", d->a, d->b);
    lg_status st = lg_weights_open(f.path, pool, NULL, NULL, &w, &err);
    bool good = st == d->status && !w;
    for (size_t i = 0; i < LG_COUNT(d->words); i++)
        good = good && strstr(err.msg, d->words[i]) != NULL;
    if (!good)
        print_error("%s, %s -> %s: found %s \"%s\", expected %s with \"%s\" and \"%s\"\n",
                    d->name, d->a, d->b, lg_status_name(st), err.msg, lg_status_name(d->status),
                    d->words[0], d->words[1]);
    lg_fixture_fini(&f);
    qf_fini(&quant);
    qf_fini(&plain);
    return good;
}

static void test_damage_is_named(void **state) {
    (void)state;
    size_t n_bad = 0;
    for (size_t i = 0; i < LG_COUNT(damages); i++) n_bad += !check_damage(&damages[i]);
    assert_int_equal(n_bad, 0);
    printf("  %zu damaged folders refused\n", LG_COUNT(damages));
}

int main(void) {
    lg_err err;
    if (lg_pool_open(2, &pool, &err) != LG_OK) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_method),
                                       cmocka_unit_test(test_damage_is_named)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    lg_pool_close(&pool);
    return failed;
}
