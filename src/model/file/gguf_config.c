/* gguf_config.c - metadata of a GGUF file into lg_config.
 *
 * In:  lg_gguf.   Out: lg_config with every size in range and no contradiction left.
 * Fails closed like config.c: a key of the architecture is read, fixed to what this program computes, or known to change
 * nothing; any other is refused.  Keys of other groups (general, quantize, the makers' own) are informative.
 * Thread: any.  Memory: none.  Test: tests/unit/test_gguf.c, fuzz/fuzz_gguf.c */
#include "model/file/gguf_config.h"

#include "model/config_read.h"

#include <stdio.h>
#include <string.h>

#define TOKENS    "tokenizer.ggml.tokens"
#define END_TOKEN "<|endoftext|>"
#define ARCH_MOE  "qwen35moe"
#define ARCH      "qwen35"

/* What is being read. */
typedef struct reader {
    const lg_gguf *g;
    const char *what; /* file */
    const char *arch; /* prefix of the model's keys */
    bool moe;
    uint32_t n_block; /* layers and draft layers */
    lg_err *err;
} reader;

/* How a key of the architecture is treated. */
typedef enum {
    READ, /* below */
    FREE, /* changes nothing that is computed here */
    NONE, /* 0, false or "none" */
    UNIT  /* 1 or true */
} rule_kind;

static const struct {
    const char *key;
    rule_kind kind;
} rules[] = {
    {"block_count", READ},
    {"nextn_predict_layers", READ},
    {"vocab_size", READ},
    {"context_length", READ},
    {"embedding_length", READ},
    {"feed_forward_length", READ},
    {"attention.head_count", READ},
    {"attention.head_count_kv", READ},
    {"attention.key_length", READ},
    {"attention.value_length", READ},
    {"attention.layer_norm_rms_epsilon", READ},
    {"attention.recurrent_layers", READ},
    {"full_attention_interval", READ},
    {"rope.freq_base", READ},
    {"rope.dimension_count", READ},
    {"rope.dimension_sections", READ},
    {"ssm.conv_kernel", READ},
    {"ssm.state_size", READ},
    {"ssm.group_count", READ},
    {"ssm.time_step_rank", READ},
    {"ssm.inner_size", READ},
    {"expert_count", READ},
    {"expert_used_count", READ},
    {"expert_feed_forward_length", READ},
    {"expert_shared_feed_forward_length", READ},
    {"attention.layer_norm_epsilon", FREE}, /* no layer of this family has one */
    {"rope.scaling.original_context_length", FREE},
    {"rope.scaling.finetuned", FREE},
    {"rope.scaling.type", NONE},
    {"attention.sliding_window", NONE},
    {"leading_dense_block_count", NONE},
    {"use_parallel_residual", NONE},
    {"ssm.dt_b_c_rms", NONE},
    {"rope.scaling.factor", UNIT},
    {"attention.causal", UNIT},
    {"expert_shared_count", UNIT},
    {"expert_weights_norm", UNIT},
    {"expert_weights_scale", UNIT},
    {"expert_gating_func", UNIT}, /* 1 is softmax */
};

/* ---- reading ---- */

/* The value of "ARCH.name"; key gets the whole. */
static const lg_gguf_value *model_value(const reader *r, const char *name, char key[128]) {
    snprintf(key, 128, "%s.%s", r->arch, name);
    return lg_gguf_find(r->g, key);
}

static lg_status fail_value(const reader *r, const char *key, const lg_gguf_value *v,
                            lg_status code, const char *expected) {
    char found[80];
    return LG_FAIL(r->err, code, "%s: %s: found %s, expected %s", r->what, key,
                   lg_gguf_show(v, found, sizeof found), expected);
}

static lg_status read_u32(const reader *r, const char *name, uint32_t min, uint32_t max,
                          uint32_t *out) {
    char key[128], expected[64];
    const lg_gguf_value *v = model_value(r, name, key);
    int64_t x;
    snprintf(expected, sizeof expected, "an integer from %u to %u", min, max);
    if (!v || v->array || !lg_gguf_int(v, 0, &x) || x < (int64_t)min || x > (int64_t)max)
        return fail_value(r, key, v, LG_E_FORMAT, expected);
    *out = (uint32_t)x;
    return LG_OK;
}

/* The same for a key that may be missing: *out is then left alone. */
static lg_status read_optional(const reader *r, const char *name, uint32_t min, uint32_t max,
                               uint32_t *out) {
    char key[128];
    return model_value(r, name, key) ? read_u32(r, name, min, max, out) : LG_OK;
}

static lg_status read_float(const reader *r, const char *name, double min, double max,
                            double *out) {
    char key[128], expected[64];
    const lg_gguf_value *v = model_value(r, name, key);
    double x;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (!lg_gguf_float(v, &x) || x < min || x > max)
        return fail_value(r, key, v, LG_E_FORMAT, expected);
    *out = x;
    return LG_OK;
}

/* True for 1 or true (unit), or for 0, false or "none". */
static bool is_plain(const lg_gguf_value *v, bool unit) {
    int64_t n;
    double x;
    bool yes;
    if (v->array) return false;
    if (lg_gguf_int(v, 0, &n)) return n == unit;
    if (lg_gguf_float(v, &x)) return x == unit;
    if (lg_gguf_bool(v, 0, &yes)) return yes == unit;
    return !unit && lg_gguf_text_is(v, "none");
}

/* Every key of the architecture against the table. */
static lg_status check_keys(const reader *r) {
    size_t len = strlen(r->arch);
    for (size_t i = 0; i < lg_gguf_count(r->g); i++) {
        const lg_gguf_value *v = lg_gguf_at(r->g, i);
        if (strncmp(v->key, r->arch, len) != 0 || v->key[len] != '.') continue;
        size_t k = 0;
        while (k < LG_COUNT(rules) && strcmp(rules[k].key, v->key + len + 1) != 0) k++;
        if (k == LG_COUNT(rules))
            return LG_FAIL(r->err, LG_E_UNSUPPORTED,
                           "%s: %s: not understood, and it could change what is computed",
                           r->what, v->key);
        bool unit = rules[k].kind == UNIT;
        if ((unit || rules[k].kind == NONE) && !is_plain(v, unit))
            return fail_value(r, v->key, v, LG_E_UNSUPPORTED,
                              unit ? "1 or true" : "0, false or \"none\"");
    }
    return LG_OK;
}

/* ---- the fields ---- */

static lg_status read_general(reader *r) {
    const lg_gguf_value *arch = lg_gguf_find(r->g, "general.architecture");
    const lg_gguf_value *type = lg_gguf_find(r->g, "general.type");
    const lg_gguf_value *version = lg_gguf_find(r->g, "general.quantization_version");
    int64_t n = 0;
    r->moe = lg_gguf_text_is(arch, ARCH_MOE);
    r->arch = r->moe ? ARCH_MOE : ARCH;
    if (!r->moe && !lg_gguf_text_is(arch, ARCH))
        return fail_value(r, "general.architecture", arch, LG_E_UNSUPPORTED,
                          ARCH_MOE " or " ARCH);
    if (type && !lg_gguf_text_is(type, "model"))
        return fail_value(r, "general.type", type, LG_E_UNSUPPORTED, "model");
    if (version && (version->array || !lg_gguf_int(version, 0, &n) || n != 2))
        return fail_value(r, "general.quantization_version", version, LG_E_UNSUPPORTED, "2");
    return LG_OK;
}

/* Sizes that must be there, and their largest value; the smallest is 1. */
static lg_status read_sizes(reader *r, lg_config *c) {
    static const struct {
        const char *name;
        size_t offset;
        uint32_t max;
        bool moe, dense;
    } sizes[] = {
        {"context_length", offsetof(lg_config, n_ctx_max), 1u << 28, true, true},
        {"embedding_length", offsetof(lg_config, n_embd), LG_CONFIG_MAX_SIZE, true, true},
        {"attention.head_count", offsetof(lg_config, n_head), 1024, true, true},
        {"attention.head_count_kv", offsetof(lg_config, n_kv_head), 1024, true, true},
        {"attention.key_length", offsetof(lg_config, d_head), 1024, true, true},
        {"ssm.group_count", offsetof(lg_config, n_k_head), 1024, true, true},
        {"ssm.time_step_rank", offsetof(lg_config, n_v_head), 1024, true, true},
        {"ssm.state_size", offsetof(lg_config, d_k), 1024, true, true},
        {"feed_forward_length", offsetof(lg_config, n_ff), LG_CONFIG_MAX_SIZE, false, true},
        {"expert_count", offsetof(lg_config, n_expert), 4096, true, false},
        {"expert_used_count", offsetof(lg_config, n_expert_tok), 256, true, false},
        {"expert_feed_forward_length", offsetof(lg_config, n_ff_expert), LG_CONFIG_MAX_SIZE,
         true, false},
        {"expert_shared_feed_forward_length", offsetof(lg_config, n_ff_shared),
         LG_CONFIG_MAX_SIZE, true, false}};
    for (size_t i = 0; i < LG_COUNT(sizes); i++) {
        uint32_t x;
        if (!(r->moe ? sizes[i].moe : sizes[i].dense)) continue;
        LG_TRY(read_u32(r, sizes[i].name, 1, sizes[i].max, &x));
        memcpy((char *)c + sizes[i].offset, &x, sizeof x);
    }
    double eps = 0;
    LG_TRY(read_float(r, "attention.layer_norm_rms_epsilon", 1e-12, 0.1, &eps));
    c->eps = (float)eps;
    LG_TRY(read_u32(r, "block_count", 1, LG_MAX_LAYER, &r->n_block));
    LG_TRY(read_optional(r, "nextn_predict_layers", 0, 16, &c->n_mtp_layer));
    if (c->n_mtp_layer >= r->n_block)
        return LG_FAIL(r->err, LG_E_FORMAT,
                       "%s: %s.nextn_predict_layers: found %u, expected fewer than block_count "
                       "%u",
                       r->what, r->arch, c->n_mtp_layer, r->n_block);
    c->n_layer = r->n_block - c->n_mtp_layer;
    return LG_OK;
}

/* What one size says about another. */
static lg_status check_shape(const reader *r, lg_config *c) {
    uint32_t inner, taps, value;
    LG_TRY(read_u32(r, "ssm.inner_size", 1, LG_CONFIG_MAX_SIZE, &inner));
    LG_TRY(read_u32(r, "ssm.conv_kernel", LG_CONV_K, LG_CONV_K, &taps));
    LG_TRY(read_u32(r, "attention.value_length", c->d_head, c->d_head, &value));
    if (inner % c->n_v_head != 0 || inner / c->n_v_head > 1024)
        return LG_FAIL(r->err, LG_E_FORMAT,
                       "%s: %s.ssm.inner_size: found %u, expected a multiple of "
                       "ssm.time_step_rank %u, up to 1024 times",
                       r->what, r->arch, inner, c->n_v_head);
    c->d_v = inner / c->n_v_head;
    if (c->n_v_head % c->n_k_head != 0)
        return LG_FAIL(r->err, LG_E_FORMAT,
                       "%s: %s.ssm.time_step_rank: found %u, expected a multiple of "
                       "ssm.group_count %u",
                       r->what, r->arch, c->n_v_head, c->n_k_head);
    if (c->n_head % c->n_kv_head != 0)
        return LG_FAIL(r->err, LG_E_FORMAT,
                       "%s: %s.attention.head_count: found %u, expected a multiple of "
                       "head_count_kv %u",
                       r->what, r->arch, c->n_head, c->n_kv_head);
    if (c->n_expert_tok > c->n_expert)
        return LG_FAIL(r->err, LG_E_FORMAT,
                       "%s: %s.expert_used_count: found %u, expected at most expert_count %u",
                       r->what, r->arch, c->n_expert_tok, c->n_expert);
    return LG_OK;
}

/* Which layers are attention: the list, the interval, or both when they agree. */
static lg_status read_layers(const reader *r, lg_config *c) {
    char key[128];
    const lg_gguf_value *list = model_value(r, "attention.recurrent_layers", key);
    uint32_t interval = 0;
    LG_TRY(read_optional(r, "full_attention_interval", 1, LG_MAX_LAYER, &interval));
    if (!list && !interval)
        return fail_value(r, key, NULL, LG_E_FORMAT, "a list (or full_attention_interval)");
    if (list && (!list->array || list->type != LG_GGUF_BOOL || list->n != r->n_block)) {
        char expected[64];
        snprintf(expected, sizeof expected, "an array of block_count = %u bool", r->n_block);
        return fail_value(r, key, list, LG_E_FORMAT, expected);
    }
    for (uint32_t i = 0; i < r->n_block; i++) {
        bool by_interval = interval && (i >= c->n_layer || (i + 1) % interval == 0);
        bool recurrent = !by_interval;
        (void)lg_gguf_bool(list, i, &recurrent);
        if ((interval && recurrent == by_interval) || (recurrent && i >= c->n_layer))
            return LG_FAIL(r->err, LG_E_FORMAT,
                           "%s: %s: entry %u contradicts full_attention_interval %u or "
                           "nextn_predict_layers %u",
                           r->what, key, i, interval, c->n_mtp_layer);
        if (i < c->n_layer) c->layer[i] = recurrent ? LG_LAYER_GDN : LG_LAYER_ATTN;
    }
    return LG_OK;
}

/* For text the sections of multi-axis rope are one; their sum must be the rotated pairs. */
static lg_status read_rope(const reader *r, lg_config *c) {
    char key[128];
    LG_TRY(read_float(r, "rope.freq_base", 1, 1e15, &c->rope_theta));
    LG_TRY(read_u32(r, "rope.dimension_count", 2, c->d_head, &c->n_rot));
    if (c->n_rot % 2 != 0)
        return LG_FAIL(r->err, LG_E_FORMAT,
                       "%s: %s.rope.dimension_count: found %u, expected an even number",
                       r->what, r->arch, c->n_rot);
    const lg_gguf_value *v = model_value(r, "rope.dimension_sections", key);
    if (!v) return LG_OK;
    int64_t sum = 0;
    if (!v->array || v->n != 4)
        return fail_value(r, key, v, LG_E_UNSUPPORTED, "an array of 4 integers");
    for (uint64_t i = 0; i < 4; i++) {
        int64_t x;
        if (!lg_gguf_int(v, i, &x) || x < 0 || x > (int64_t)c->d_head)
            return fail_value(r, key, v, LG_E_FORMAT, "integers from 0 to key_length");
        sum += x;
    }
    if (sum != c->n_rot / 2)
        return LG_FAIL(r->err, LG_E_FORMAT,
                       "%s: %s: found a sum of %lld, expected half of rope.dimension_count %u",
                       r->what, key, (long long)sum, c->n_rot);
    return LG_OK;
}

/* The vocabulary is as long as the embedding and as the list of tokens. */
static lg_status read_vocab(const reader *r, lg_config *c) {
    lg_tensors *set = lg_gguf_tensors(r->g);
    const lg_view *embed = lg_tensors_find(set, "token_embd.weight");
    const lg_gguf_value *tokens = lg_gguf_find(r->g, TOKENS);
    uint32_t size;
    if (!tokens || !tokens->array || tokens->type != LG_GGUF_STR || tokens->n == 0 ||
        tokens->n > LG_CONFIG_MAX_ROWS)
        return fail_value(r, TOKENS, tokens, LG_E_FORMAT, "an array of strings");
    c->n_vocab = size = (uint32_t)tokens->n;
    LG_TRY(read_optional(r, "vocab_size", size, size, &size));
    if (embed && embed->n_dim == 2 && embed->shape[0] != c->n_vocab)
        return LG_FAIL(r->err, LG_E_FORMAT,
                       "%s: " TOKENS ": found %u, expected %llu as token_embd.weight has rows",
                       r->what, c->n_vocab, (unsigned long long)embed->shape[0]);
    c->tied = lg_tensors_find(set, "output.weight") == NULL;
    return LG_OK;
}

/* Files store one end token, the published generation_config.json has two. */
static lg_status read_eos(const reader *r, lg_config *c) {
    static const char key[] = "tokenizer.ggml.eos_token_id";
    const lg_gguf_value *v = lg_gguf_find(r->g, key), *tokens = lg_gguf_find(r->g, TOKENS);
    int64_t id;
    if (v) {
        if (v->array || !lg_gguf_int(v, 0, &id) || id < 0 || id >= (int64_t)c->n_vocab)
            return fail_value(r, key, v, LG_E_FORMAT, "an id below the number of tokens");
        c->eos[c->n_eos++] = (uint32_t)id;
    }
    const char *s;
    size_t at = 0, len;
    for (uint32_t i = 0; lg_gguf_next(tokens, &at, &s, &len); i++)
        if (len == sizeof END_TOKEN - 1 && memcmp(s, END_TOKEN, len) == 0) {
            if (c->n_eos == 0 || c->eos[0] != i) c->eos[c->n_eos++] = i;
            break;
        }
    return LG_OK;
}

/* A number of general.sampling that may be missing. */
static lg_status read_sampling(const reader *r, const char *name, double min, double max,
                               float *out, bool *given) {
    char key[64], expected[64];
    double x;
    int64_t n;
    snprintf(key, sizeof key, "general.sampling.%s", name);
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    const lg_gguf_value *v = lg_gguf_find(r->g, key);
    if (!v) return LG_OK;
    if (!v->array && lg_gguf_int(v, 0, &n))
        x = (double)n;
    else if (!lg_gguf_float(v, &x))
        return fail_value(r, key, v, LG_E_FORMAT, expected);
    if (!(x >= min && x <= max)) return fail_value(r, key, v, LG_E_FORMAT, expected);
    *out = (float)x;
    *given = true;
    return LG_OK;
}

static lg_status read_generation(const reader *r, lg_config *c) {
    bool given = false;
    float k = 0;
    c->temperature = c->top_p = c->repetition_penalty = 1;
    LG_TRY(read_sampling(r, "temp", 0, 100, &c->temperature, &given));
    LG_TRY(read_sampling(r, "top_p", 1e-9, 1, &c->top_p, &given));
    LG_TRY(read_sampling(r, "min_p", 0, 1, &c->min_p, &given));
    LG_TRY(read_sampling(r, "top_k", -1, LG_CONFIG_MAX_ROWS, &k, &given));
    bool unused;
    LG_TRY(read_sampling(r, "penalty_repeat", 1e-3, 10, &c->repetition_penalty, &unused));
    c->top_k = k > 0 ? (uint32_t)k : 0;
    c->do_sample = given && c->temperature > 0;
    return LG_OK;
}

lg_status lg_gguf_config_read(lg_config *c, const lg_gguf *g, lg_err *err) {
    reader r = {.g = g, .what = lg_gguf_what(g), .err = err};
    memset(c, 0, sizeof *c);
    LG_TRY(read_general(&r));
    LG_TRY(check_keys(&r));
    snprintf(c->model_type, sizeof c->model_type, "%s", r.arch);
    c->gguf = true;
    c->v_head_tiled = true;
    LG_TRY(read_sizes(&r, c));
    LG_TRY(check_shape(&r, c));
    LG_TRY(read_layers(&r, c));
    LG_TRY(read_rope(&r, c));
    LG_TRY(read_vocab(&r, c));
    LG_TRY(read_eos(&r, c));
    return read_generation(&r, c);
}
