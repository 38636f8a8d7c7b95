/* config.c - config.json and generation_config.json into lg_config.
 *
 * In:  the two files (or a GGUF file, read by gguf_config.c), or their text.   Out: lg_config with every size in range and no contradiction left.
 * The keys themselves are checked against the table of config_keys.c first; here the values are read.
 * Thread: any.  Memory: the JSON tree, until return.  Test: tests/unit/test_config.c, fuzz/fuzz_config.c */
#include "model/config_read.h"
#include "model/file/gguf_config.h"
#include "model/weights/quant.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILE_BYTES (8u << 20)
#define MAX_DEPTH      16

/* Sizes that must be there, and their largest value; the smallest is 1. */
static const struct size_rule {
    const char *key;
    size_t offset;
    uint32_t max;
    unsigned place;
} sizes[] = {
    {"vocab_size", offsetof(lg_config, n_vocab), LG_CONFIG_MAX_ROWS, LG_CONFIG_TEXT},
    {"hidden_size", offsetof(lg_config, n_embd), LG_CONFIG_MAX_SIZE, LG_CONFIG_TEXT},
    {"num_hidden_layers", offsetof(lg_config, n_layer), LG_MAX_LAYER, LG_CONFIG_TEXT},
    {"max_position_embeddings", offsetof(lg_config, n_ctx_max), 1u << 28, LG_CONFIG_TEXT},
    {"num_attention_heads", offsetof(lg_config, n_head), 1024, LG_CONFIG_TEXT},
    {"num_key_value_heads", offsetof(lg_config, n_kv_head), 1024, LG_CONFIG_TEXT},
    {"head_dim", offsetof(lg_config, d_head), 1024, LG_CONFIG_TEXT},
    {"linear_num_key_heads", offsetof(lg_config, n_k_head), 1024, LG_CONFIG_TEXT},
    {"linear_num_value_heads", offsetof(lg_config, n_v_head), 1024, LG_CONFIG_TEXT},
    {"linear_key_head_dim", offsetof(lg_config, d_k), 1024, LG_CONFIG_TEXT},
    {"linear_value_head_dim", offsetof(lg_config, d_v), 1024, LG_CONFIG_TEXT},
    {"intermediate_size", offsetof(lg_config, n_ff), LG_CONFIG_MAX_SIZE, LG_CONFIG_DENSE},
    {"num_experts", offsetof(lg_config, n_expert), 4096, LG_CONFIG_MOE},
    {"num_experts_per_tok", offsetof(lg_config, n_expert_tok), 256, LG_CONFIG_MOE},
    {"moe_intermediate_size", offsetof(lg_config, n_ff_expert), LG_CONFIG_MAX_SIZE,
     LG_CONFIG_MOE},
    {"shared_expert_intermediate_size", offsetof(lg_config, n_ff_shared), LG_CONFIG_MAX_SIZE,
     LG_CONFIG_MOE},
};

/* "found X, expected Y" for a field. */
static lg_status fail_field(const lg_config_place *at, const char *key, const lg_json *v,
                            lg_status code, const char *expected) {
    char found[80];
    return LG_FAIL(at->err, code, "%s: %s%s: found %s, expected %s", at->what, at->prefix, key,
                   lg_config_show(v, found, sizeof found), expected);
}

static lg_status read_u32(const lg_config_place *at, const lg_json *obj, const char *key,
                          uint32_t min, uint32_t max, uint32_t *out) {
    const lg_json *v = lg_json_get(obj, key);
    uint64_t x;
    if (!lg_json_u64(v, &x) || x < min || x > max) {
        char expected[64];
        snprintf(expected, sizeof expected, "an integer from %u to %u", min, max);
        return fail_field(at, key, v, LG_E_FORMAT, expected);
    }
    *out = (uint32_t)x;
    return LG_OK;
}

/* A number in [min, max]; `expected` describes the range. */
static lg_status read_f64(const lg_config_place *at, const lg_json *obj, const char *key,
                          double min, double max, const char *expected, double *out) {
    const lg_json *v = lg_json_get(obj, key);
    double x = 0;
    if (!lg_json_f64(v, &x) || x < min || x > max)
        return fail_field(at, key, v, LG_E_FORMAT, expected);
    *out = x;
    return LG_OK;
}

/* A boolean; a missing key or null leaves *out and *given alone. */
static lg_status read_bool(const lg_config_place *at, const lg_json *obj, const char *key,
                           bool *out, bool *given) {
    const lg_json *v = lg_json_get(obj, key);
    if (!v || v->kind == LG_JSON_NULL) return LG_OK;
    if (!lg_json_bool(v, out)) return fail_field(at, key, v, LG_E_FORMAT, "true or false");
    *given = true;
    return LG_OK;
}

/* True for a key that is there and not null. */
static bool has(const lg_json *obj, const char *key) {
    const lg_json *v = lg_json_get(obj, key);
    return v && v->kind != LG_JSON_NULL;
}

/* An id or a list of at most LG_MAX_EOS; missing or null leaves the list of `c` alone. */
static lg_status read_eos(const lg_config_place *at, const lg_json *obj, lg_config *c) {
    const lg_json *v = lg_json_get(obj, "eos_token_id");
    if (!v || v->kind == LG_JSON_NULL) return LG_OK;
    uint32_t n = v->kind == LG_JSON_ARRAY ? v->n_child : 1;
    if (n == 0 || n > LG_MAX_EOS)
        return fail_field(at, "eos_token_id", v, LG_E_FORMAT, "an id, or a list of 1 to 8");
    const lg_json *item = v->kind == LG_JSON_ARRAY ? v->child : v;
    for (uint32_t i = 0; i < n; i++, item = item->next) {
        uint64_t id;
        if (!lg_json_u64(item, &id) || id >= c->n_vocab)
            return fail_field(at, "eos_token_id", item, LG_E_FORMAT, "ids below vocab_size");
        c->eos[i] = (uint32_t)id;
    }
    c->n_eos = n;
    return LG_OK;
}

static lg_status read_layers(const lg_config_place *at, const lg_json *obj, lg_config *c) {
    const lg_json *types = lg_json_get(obj, "layer_types");
    uint32_t interval = 0;
    if (has(obj, "full_attention_interval"))
        LG_TRY(read_u32(at, obj, "full_attention_interval", 1, LG_MAX_LAYER, &interval));
    if (!has(obj, "layer_types")) {
        if (!interval)
            return LG_FAIL(at->err, LG_E_FORMAT,
                           "%s: %slayer_types: found nothing, expected a list (or "
                           "full_attention_interval)",
                           at->what, at->prefix);
        for (uint32_t i = 0; i < c->n_layer; i++)
            c->layer[i] = (i + 1) % interval == 0 ? LG_LAYER_ATTN : LG_LAYER_GDN;
        return LG_OK;
    }
    if (types->kind != LG_JSON_ARRAY || types->n_child != c->n_layer) {
        char found[80];
        snprintf(found, sizeof found, "%u entries", types->n_child);
        return LG_FAIL(at->err, LG_E_FORMAT,
                       "%s: %slayer_types: found %s, expected num_hidden_layers = %u entries",
                       at->what, at->prefix, found, c->n_layer);
    }
    uint32_t i = 0;
    for (const lg_json *v = types->child; v; v = v->next, i++) {
        if (lg_json_is(v, "full_attention"))
            c->layer[i] = LG_LAYER_ATTN;
        else if (lg_json_is(v, "linear_attention"))
            c->layer[i] = LG_LAYER_GDN;
        else
            return fail_field(at, "layer_types", v, LG_E_UNSUPPORTED,
                              "linear_attention or full_attention");
        bool attn = interval && (i + 1) % interval == 0;
        if (interval && attn != (c->layer[i] == LG_LAYER_ATTN))
            return LG_FAIL(at->err, LG_E_FORMAT,
                           "%s: %slayer_types: entry %u contradicts full_attention_interval %u",
                           at->what, at->prefix, i, interval);
    }
    return LG_OK;
}

/* A number that may stand in the rope object, beside it, or in both with the same value. */
static lg_status read_rope_number(const lg_config_place *at, const lg_json *text,
                                  const lg_config_place *in, const lg_json *rope,
                                  const char *key, double min, double max, const char *expected,
                                  double *out) {
    double outer = 0;
    if (!has(text, key)) return read_f64(in, rope, key, min, max, expected, out);
    LG_TRY(read_f64(at, text, key, min, max, expected, &outer));
    *out = outer;
    if (!has(rope, key)) return LG_OK;
    LG_TRY(read_f64(in, rope, key, min, max, expected, out));
    if (*out != outer)
        return LG_FAIL(at->err, LG_E_FORMAT, "%s: %s%s: found %g, expected %g as in %s",
                       at->what, at->prefix, key, outer, *out, in->prefix);
    return LG_OK;
}

/* Three sections that share the n_rot / 2 frequencies. */
static lg_status check_sections(const lg_config_place *at, const lg_json *rope,
                                const lg_config *c) {
    const lg_json *v = lg_json_get(rope, "mrope_section");
    if (!v || v->kind == LG_JSON_NULL) return LG_OK;
    if (v->kind != LG_JSON_ARRAY || v->n_child != 3)
        return fail_field(at, "rope_parameters.mrope_section", v, LG_E_FORMAT,
                          "a list of 3 integers");
    uint64_t sum = 0;
    for (const lg_json *s = v->child; s; s = s->next) {
        uint64_t x;
        if (!lg_json_u64(s, &x) || x > c->d_head)
            return fail_field(at, "rope_parameters.mrope_section", s, LG_E_FORMAT,
                              "integers up to head_dim");
        sum += x;
    }
    if (sum != c->n_rot / 2)
        return LG_FAIL(at->err, LG_E_FORMAT,
                       "%s: %srope_parameters.mrope_section: found a sum of %u, expected half "
                       "of the %u rotated dims",
                       at->what, at->prefix, (unsigned)sum, c->n_rot);
    return LG_OK;
}

static lg_status read_rope(const lg_config_place *at, const lg_json *text, lg_config *c) {
    bool old = has(text, "rope_scaling");
    if (old && has(text, "rope_parameters"))
        return LG_FAIL(at->err, LG_E_FORMAT,
                       "%s: %srope_scaling: given beside rope_parameters, expected one of them",
                       at->what, at->prefix);
    const char *key = old ? "rope_scaling" : "rope_parameters";
    const lg_json *rope = lg_json_get(text, key);
    if (!rope || rope->kind != LG_JSON_OBJECT)
        return fail_field(at, key, rope, LG_E_FORMAT, "an object");
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s%s.", at->prefix, key);
    lg_config_place in = {at->what, prefix, LG_CONFIG_ROPE, at->err};
    LG_TRY(lg_config_check_keys(&in, rope));

    double factor = 0;
    LG_TRY(read_rope_number(at, text, &in, rope, "rope_theta", 1, 1e15,
                            "a number from 1 to 1e15", &c->rope_theta));
    LG_TRY(read_rope_number(at, text, &in, rope, "partial_rotary_factor", 0, 1,
                            "a number above 0, up to 1", &factor));
    double n_rot = factor * c->d_head;
    c->n_rot = (uint32_t)(n_rot + 1e-6);
    if (fabs(n_rot - c->n_rot) > 1e-6 || c->n_rot == 0 || c->n_rot % 2 != 0)
        return LG_FAIL(at->err, LG_E_FORMAT,
                       "%s: %spartial_rotary_factor: found %g of head_dim %u, expected an even "
                       "number of dims, at least 2",
                       at->what, at->prefix, factor, c->d_head);
    return check_sections(at, rope, c);
}

static lg_status read_quant(const lg_config_place *at, const lg_json *obj, lg_config *c) {
    if (!has(obj, "quantization_config")) return LG_OK;
    const lg_json *q = lg_json_get(obj, "quantization_config");
    if (q->kind != LG_JSON_OBJECT)
        return fail_field(at, "quantization_config", q, LG_E_FORMAT, "an object");
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%squantization_config.", at->prefix);
    lg_config_place in = {at->what, prefix, LG_CONFIG_QUANT, at->err};
    lg_quant_method method = lg_quant_named(lg_json_get(q, "quant_method"));
    if (method == LG_QUANT_NONE)
        return fail_field(&in, "quant_method", lg_json_get(q, "quant_method"), LG_E_UNSUPPORTED,
                          "fp8, gptq, awq, compressed-tensors, modelopt or mxfp4");
    if (c->quant)
        return LG_FAIL(at->err, LG_E_FORMAT, "%s: quantization_config: given twice", at->what);
    c->quant = method;
    if (method != LG_QUANT_FP8) return lg_quant_read(&in, q, method, NULL);
    LG_TRY(lg_config_check_keys(&in, q));
    const lg_json *block = lg_json_get(q, "weight_block_size");
    uint64_t rows, cols;
    if (!block || block->kind != LG_JSON_ARRAY || block->n_child != 2 ||
        !lg_json_u64(block->child, &rows) || !lg_json_u64(block->child->next, &cols))
        return fail_field(&in, "weight_block_size", block, LG_E_UNSUPPORTED, "[128, 128]");
    if (rows != 128 || cols != 128)
        return LG_FAIL(at->err, LG_E_UNSUPPORTED,
                       "%s: %sweight_block_size: found [%llu, %llu], expected [128, 128]",
                       at->what, prefix, (unsigned long long)rows, (unsigned long long)cols);
    return LG_OK;
}

/* What one field says about another. */
static lg_status check_shape(const lg_config_place *at, const lg_config *c) {
    if (c->n_head % c->n_kv_head != 0)
        return LG_FAIL(at->err, LG_E_FORMAT,
                       "%s: %snum_attention_heads: found %u, expected a multiple of "
                       "num_key_value_heads %u",
                       at->what, at->prefix, c->n_head, c->n_kv_head);
    if (c->n_v_head % c->n_k_head != 0)
        return LG_FAIL(at->err, LG_E_FORMAT,
                       "%s: %slinear_num_value_heads: found %u, expected a multiple of "
                       "linear_num_key_heads %u",
                       at->what, at->prefix, c->n_v_head, c->n_k_head);
    if (c->n_expert_tok > c->n_expert)
        return LG_FAIL(at->err, LG_E_FORMAT,
                       "%s: %snum_experts_per_tok: found %u, expected at most num_experts %u",
                       at->what, at->prefix, c->n_expert_tok, c->n_expert);
    return LG_OK;
}

static lg_status read_sizes(const lg_config_place *at, const lg_json *text, lg_config *c) {
    for (size_t i = 0; i < LG_COUNT(sizes); i++) {
        if (!(sizes[i].place & at->place)) continue;
        uint32_t x;
        LG_TRY(read_u32(at, text, sizes[i].key, 1, sizes[i].max, &x));
        memcpy((char *)c + sizes[i].offset, &x, sizeof x);
    }
    double eps = 0;
    LG_TRY(read_f64(at, text, "rms_norm_eps", 1e-12, 0.1, "a number from 1e-12 to 0.1", &eps));
    c->eps = (float)eps;
    if (has(text, "mtp_num_hidden_layers"))
        LG_TRY(read_u32(at, text, "mtp_num_hidden_layers", 0, 16, &c->n_mtp_layer));
    return check_shape(at, c);
}

/* The text model's own object: all of a flat file, or text_config. */
static lg_status read_text(const lg_config_place *at, const lg_json *text, lg_config *c) {
    LG_TRY(lg_config_check_keys(at, text));
    LG_TRY(read_sizes(at, text, c));
    LG_TRY(read_layers(at, text, c));
    LG_TRY(read_rope(at, text, c));
    LG_TRY(read_quant(at, text, c));
    return read_eos(at, text, c);
}

/* text_config of a multimodal file, and what the outer object adds to it. */
static lg_status read_nested(const lg_config_place *at, const lg_json *root, bool moe,
                             lg_config *c, bool *tied, bool *tied_given) {
    const lg_json *text = lg_json_get(root, "text_config");
    if (!text || text->kind != LG_JSON_OBJECT)
        return fail_field(at, "text_config", text, LG_E_FORMAT, "an object");
    lg_config_place in = {at->what, "text_config.",
                          LG_CONFIG_TEXT | (moe ? LG_CONFIG_MOE : LG_CONFIG_DENSE), at->err};
    const char *type = moe ? "qwen3_5_moe_text" : "qwen3_5_text";
    if (!lg_json_is(lg_json_get(text, "model_type"), type))
        return fail_field(&in, "model_type", lg_json_get(text, "model_type"), LG_E_UNSUPPORTED,
                          type);
    LG_TRY(read_text(&in, text, c));
    bool inner = false, given = false;
    LG_TRY(read_bool(&in, text, "tie_word_embeddings", &inner, &given));
    if (given && *tied_given && inner != *tied)
        return LG_FAIL(at->err, LG_E_FORMAT,
                       "%s: text_config.tie_word_embeddings: found %s, expected %s as in the "
                       "outer object",
                       at->what, inner ? "true" : "false", *tied ? "true" : "false");
    if (given) *tied = inner, *tied_given = true;
    LG_TRY(read_quant(at, root, c));
    return read_eos(at, root, c);
}

static lg_status read_config(lg_config *c, const lg_json *root, const char *what, lg_err *err) {
    static const struct {
        const char *type;
        bool nested, moe;
    } kinds[] = {{"qwen3_5_moe", true, true},
                 {"qwen3_5_moe_text", false, true},
                 {"qwen3_5", true, false},
                 {"qwen3_5_text", false, false}};
    memset(c, 0, sizeof *c);
    c->temperature = c->top_p = c->repetition_penalty = 1;
    lg_config_place at = {what, "", LG_CONFIG_FILE, err};
    if (root->kind != LG_JSON_OBJECT)
        return LG_FAIL(err, LG_E_FORMAT, "%s: found %s, expected an object", what,
                       lg_json_kind_name(root->kind));
    const lg_json *type = lg_json_get(root, "model_type");
    size_t k = 0;
    while (k < LG_COUNT(kinds) && !lg_json_is(type, kinds[k].type)) k++;
    if (k == LG_COUNT(kinds))
        return fail_field(&at, "model_type", type, LG_E_UNSUPPORTED,
                          "qwen3_5_moe, qwen3_5_moe_text, qwen3_5 or qwen3_5_text");
    snprintf(c->model_type, sizeof c->model_type, "%s", kinds[k].type);
    c->nested = kinds[k].nested;
    bool tied = false, tied_given = false;
    LG_TRY(read_bool(&at, root, "tie_word_embeddings", &tied, &tied_given));
    if (kinds[k].nested) {
        at.place |= LG_CONFIG_NEST;
        LG_TRY(lg_config_check_keys(&at, root));
        LG_TRY(read_nested(&at, root, kinds[k].moe, c, &tied, &tied_given));
    } else {
        at.place |= LG_CONFIG_TEXT | (kinds[k].moe ? LG_CONFIG_MOE : LG_CONFIG_DENSE);
        LG_TRY(read_text(&at, root, c));
    }
    c->tied = tied;
    return LG_OK;
}

static lg_status read_optional(const lg_config_place *at, const lg_json *obj, const char *key,
                               double min, double max, const char *expected, float *out) {
    double x = 0;
    if (!has(obj, key)) return LG_OK;
    LG_TRY(read_f64(at, obj, key, min, max, expected, &x));
    *out = (float)x;
    return LG_OK;
}

static lg_status read_generation(lg_config *c, const lg_json *root, const char *what,
                                 lg_err *err) {
    lg_config_place at = {what, "", LG_CONFIG_GEN, err};
    bool given = false;
    if (root->kind != LG_JSON_OBJECT)
        return LG_FAIL(err, LG_E_FORMAT, "%s: found %s, expected an object", what,
                       lg_json_kind_name(root->kind));
    LG_TRY(lg_config_check_keys(&at, root));
    LG_TRY(read_eos(&at, root, c));
    LG_TRY(read_bool(&at, root, "do_sample", &c->do_sample, &given));
    LG_TRY(read_optional(&at, root, "temperature", 0, 100, "a number from 0 to 100",
                         &c->temperature));
    LG_TRY(read_optional(&at, root, "top_p", 1e-9, 1, "a number above 0, up to 1", &c->top_p));
    LG_TRY(read_optional(&at, root, "min_p", 0, 1, "a number from 0 to 1", &c->min_p));
    LG_TRY(read_optional(&at, root, "repetition_penalty", 1e-3, 10, "a number from 0.001 to 10",
                         &c->repetition_penalty));
    int64_t k;
    if (lg_json_i64(lg_json_get(root, "top_k"), &k) && k == -1) return LG_OK; /* off */
    if (has(root, "top_k"))
        LG_TRY(read_u32(&at, root, "top_k", 0, LG_CONFIG_MAX_ROWS, &c->top_k));
    return LG_OK;
}

lg_status lg_config_parse(lg_config *c, const char *text, size_t len_bytes, const char *what,
                          lg_err *err) {
    lg_json_doc *doc = NULL;
    LG_TRY(lg_json_parse(text, len_bytes, MAX_DEPTH, what, &doc, err));
    lg_status st = read_config(c, lg_json_root(doc), what, err);
    lg_json_close(&doc);
    return st;
}

lg_status lg_config_parse_generation(lg_config *c, const char *text, size_t len_bytes,
                                     const char *what, lg_err *err) {
    lg_json_doc *doc = NULL;
    LG_TRY(lg_json_parse(text, len_bytes, MAX_DEPTH, what, &doc, err));
    lg_status st = read_generation(c, lg_json_root(doc), what, err);
    lg_json_close(&doc);
    return st;
}

/* Read one of the two files.  A path that is no regular file is LG_E_IO before anything is read. */
static lg_status load(lg_config *c, const char *path, const char *name, bool optional,
                      lg_status (*read)(lg_config *, const lg_json *, const char *, lg_err *),
                      lg_err *err) {
    char file[4096];
    struct stat info;
    lg_json_doc *doc = NULL;
    if ((size_t)snprintf(file, sizeof file, "%s/%s", path, name) >= sizeof file)
        return LG_FAIL(err, LG_E_IO, "%.200s...: path too long", path);
    if (stat(file, &info) != 0) {
        if (optional && errno == ENOENT) return LG_OK;
        return LG_FAIL(err, LG_E_IO, "%s: cannot be opened, expected a model folder with it",
                       file);
    }
    if (!S_ISREG(info.st_mode)) return LG_FAIL(err, LG_E_IO, "%s: not a regular file", file);
    LG_TRY(lg_json_load(file, MAX_FILE_BYTES, MAX_DEPTH, &doc, err));
    lg_status st = read(c, lg_json_root(doc), file, err);
    lg_json_close(&doc);
    return st;
}

static lg_status load_gguf(lg_config *c, const char *path, lg_err *err) {
    lg_gguf *g = NULL;
    LG_TRY(lg_gguf_open(path, &g, err));
    lg_status st = lg_gguf_config_read(c, g, err);
    lg_gguf_close(&g);
    return st;
}

lg_status lg_config_load(lg_config *c, const char *path, lg_err *err) {
    if (lg_gguf_is(path)) return load_gguf(c, path, err);
    LG_TRY(load(c, path, "config.json", false, read_config, err));
    return load(c, path, "generation_config.json", true, read_generation, err);
}
