/* quant_config.c - quantization_config into schemes and lists of modules: see quant.h.
 *
 * Keys are checked against the table of config_keys.c first.  Patterns are Python's re.match (GPTQ's "dynamic", "re:" of
 * compressed-tensors: anchored at the start), plain parts of a name (AWQ, mxfp4) or shell patterns (modelopt).
 * Thread: any, one at a time.  Memory: the heap, until close.  Test: tests/unit/test_quant.c */
#include "model/weights/quant.h"

#include "base/mem.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fnmatch.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#define MAX_FILE_BYTES (8u << 20)
#define MAX_DEPTH      16
#define MAX_PATTERN    100000
#define MATCH_LIMIT    100000 /* steps of a regular expression before it counts as no match */

typedef enum { PART, WHOLE, GLOB, REGEX } pattern_kind;

/* A pattern and what it means: leave out, or this scheme. */
typedef struct pattern {
    pattern_kind kind;
    const char *text; /* borrowed from the JSON */
    pcre2_code *code; /* REGEX */
    const char *list; /* name of the list, for messages */
    bool out;
    uint8_t scheme;
} pattern;

struct lg_quant {
    lg_quant_method method;
    lg_json_doc *doc; /* of lg_quant_load */
    lg_scheme scheme[LG_MAX_SCHEME];
    uint32_t n_scheme;
    int any_scheme; /* for every linear layer; -1: none */
    bool zero_less_one;
    pattern *pattern;
    size_t n_pattern;
    pcre2_match_data *data;
    pcre2_match_context *match;
};

static const struct {
    const char *name;
    lg_quant_method method;
    unsigned place;
} methods[] = {{"fp8", LG_QUANT_FP8, LG_CONFIG_QUANT},
               {"gptq", LG_QUANT_GPTQ, LG_CONFIG_GPTQ},
               {"awq", LG_QUANT_AWQ, LG_CONFIG_AWQ},
               {"compressed-tensors", LG_QUANT_CT, LG_CONFIG_CT},
               {"modelopt", LG_QUANT_MODELOPT, LG_CONFIG_MODELOPT},
               {"mxfp4", LG_QUANT_MXFP4, LG_CONFIG_MXFP4}};

lg_quant_method lg_quant_named(const lg_json *name) {
    for (size_t i = 0; i < LG_COUNT(methods); i++)
        if (lg_json_is(name, methods[i].name)) return methods[i].method;
    return LG_QUANT_NONE;
}

const char *lg_quant_name(lg_quant_method method) {
    for (size_t i = 0; i < LG_COUNT(methods); i++)
        if (methods[i].method == method) return methods[i].name;
    return "none";
}

lg_quant_method lg_quant_method_of(const lg_quant *q) {
    return q->method;
}

bool lg_quant_zero_less_one(const lg_quant *q) {
    return q->zero_less_one;
}

/* ---- fields ---- */

static lg_status fail_field(const lg_config_place *at, const char *key, const lg_json *v,
                            const char *expected) {
    char found[80];
    return LG_FAIL(at->err, LG_E_UNSUPPORTED, "%s: %s%s: found %s, expected %s", at->what,
                   at->prefix, key, lg_config_show(v, found, sizeof found), expected);
}

static bool is_null(const lg_json *v) {
    return !v || v->kind == LG_JSON_NULL;
}

/* A boolean; *out stays for a missing one unless it is needed. */
static lg_status read_flag(const lg_config_place *at, const lg_json *obj, const char *key,
                           bool needed, bool *out) {
    const lg_json *v = lg_json_get(obj, key);
    if (is_null(v) && !needed) return LG_OK;
    return lg_json_bool(v, out) ? LG_OK : fail_field(at, key, v, "true or false");
}

/* One of a few integers; -1 is what `minus` says. */
static lg_status read_bits(const lg_config_place *at, const lg_json *obj, const char *key,
                           bool eight, uint32_t *bits) {
    const lg_json *v = lg_json_get(obj, key);
    uint64_t x;
    if (!lg_json_u64(v, &x) || (x != 4 && !(eight && x == 8)))
        return fail_field(at, key, v, eight ? "4 or 8" : "4");
    *bits = (uint32_t)x;
    return LG_OK;
}

/* group_size: a number, or -1 for a whole row. */
static lg_status read_group(const lg_config_place *at, const lg_json *obj, const char *key,
                            lg_scheme *s) {
    const lg_json *v = lg_json_get(obj, key);
    int64_t x;
    if (!lg_json_i64(v, &x) || x < -1 || x == 0 || x > (int64_t)LG_CONFIG_MAX_SIZE)
        return fail_field(at, key, v, "-1 or the number of input channels in a group");
    s->per = x == -1 ? LG_PER_CHANNEL : LG_PER_GROUP;
    s->group = x == -1 ? 0 : (uint32_t)x;
    return LG_OK;
}

/* ---- patterns ---- */

static lg_status compile(const lg_config_place *at, const char *key, pattern *p) {
    int code;
    PCRE2_SIZE offset;
    p->code = pcre2_compile((PCRE2_SPTR)p->text, PCRE2_ZERO_TERMINATED,
                            PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code,
                            &offset, NULL);
    if (p->code) return LG_OK;
    char msg[120];
    if (pcre2_get_error_message(code, (PCRE2_UCHAR *)msg, sizeof msg) < 0) msg[0] = 0;
    return LG_FAIL(at->err, LG_E_FORMAT, "%s: %s%s: pattern %.80s: byte %zu: %s", at->what,
                   at->prefix, key, p->text, (size_t)offset, msg);
}

/* Append one; v gives its text from byte `skip` on. */
static lg_status add_pattern(const lg_config_place *at, lg_quant *q, const char *key,
                             const char *text, size_t len, pattern p) {
    if (strlen(text) != len || len == 0 || q->n_pattern == MAX_PATTERN)
        return LG_FAIL(at->err, LG_E_FORMAT,
                       "%s: %s%s: expected at most %d names that are not empty", at->what,
                       at->prefix, key, MAX_PATTERN);
    if (q->n_pattern % 64 == 0) {
        pattern *all = lg_mem_realloc(q->pattern, (q->n_pattern + 64) * sizeof *all);
        if (!all) return LG_FAIL(at->err, LG_E_NOMEM, "%s: no memory", at->what);
        q->pattern = all;
    }
    p.text = text;
    p.list = key;
    if (p.kind == REGEX) LG_TRY(compile(at, key, &p));
    q->pattern[q->n_pattern++] = p;
    return LG_OK;
}

/* A list of modules that stay as they are; `kind` is that of plain entries. */
static lg_status read_list(const lg_config_place *at, const lg_json *obj, const char *key,
                           pattern_kind kind, lg_quant *q) {
    const lg_json *v = lg_json_get(obj, key);
    if (is_null(v)) return LG_OK;
    if (v->kind != LG_JSON_ARRAY) return fail_field(at, key, v, "a list of names");
    for (const lg_json *s = v->child; s; s = s->next) {
        if (s->kind != LG_JSON_STRING) return fail_field(at, key, s, "a list of names");
        bool regex = strncmp(s->text, "re:", 3) == 0;
        size_t skip = regex ? 3 : 0;
        pattern p = {.kind = regex ? REGEX : kind, .out = true};
        LG_TRY(add_pattern(at, q, key, s->text + skip, s->text_len - skip, p));
    }
    return LG_OK;
}

static bool matches(const lg_quant *q, const pattern *p, const char *module) {
    switch (p->kind) {
    case PART: return strstr(module, p->text) != NULL;
    case WHOLE: return strcmp(module, p->text) == 0;
    case GLOB: return fnmatch(p->text, module, 0) == 0;
    default: break;
    }
    return pcre2_match(p->code, (PCRE2_SPTR)module, strlen(module), 0, 0, q->data, q->match) >=
           0;
}

/* ---- GPTQ and AWQ ---- */

/* "dynamic": {"-:pattern": {}, "+:pattern": {"bits": 8, ...}}; the first that matches counts. */
static lg_status read_dynamic(const lg_config_place *at, const lg_json *obj, lg_quant *q) {
    const lg_json *v = lg_json_get(obj, "dynamic");
    if (is_null(v)) return LG_OK;
    if (v->kind != LG_JSON_OBJECT) return fail_field(at, "dynamic", v, "an object");
    lg_config_place in = *at;
    in.place = LG_CONFIG_DYNAMIC;
    for (const lg_json *s = v->child; s; s = s->next) {
        bool minus = strncmp(s->key, "-:", 2) == 0, plus = strncmp(s->key, "+:", 2) == 0;
        size_t skip = minus || plus ? 2 : 0;
        pattern p = {.kind = REGEX, .out = minus};
        if (!minus) {
            if (s->kind != LG_JSON_OBJECT || q->n_scheme == LG_MAX_SCHEME)
                return fail_field(at, "dynamic", s, "up to 15 objects");
            LG_TRY(lg_config_check_keys(&in, s));
            lg_scheme *to = &q->scheme[q->n_scheme];
            *to = q->scheme[0];
            if (!is_null(lg_json_get(s, "bits")))
                LG_TRY(read_bits(at, s, "bits", true, &to->bits));
            if (!is_null(lg_json_get(s, "group_size")))
                LG_TRY(read_group(at, s, "group_size", to));
            LG_TRY(read_flag(at, s, "sym", false, &to->sym));
            LG_TRY(read_flag(at, s, "desc_act", false, &to->act_order));
            p.scheme = (uint8_t)q->n_scheme++;
        }
        LG_TRY(add_pattern(at, q, "dynamic", s->key + skip, s->key_len - skip, p));
    }
    return LG_OK;
}

static lg_status read_gptq(const lg_config_place *at, const lg_json *obj, lg_quant *q) {
    lg_scheme *s = &q->scheme[0];
    const lg_json *form = lg_json_get(obj, "checkpoint_format");
    if (is_null(form)) form = lg_json_get(obj, "format");
    q->n_scheme = 1;
    q->any_scheme = 0;
    q->zero_less_one = is_null(form) || lg_json_is(form, "gptq");
    if (!q->zero_less_one && !lg_json_is(form, "gptq_v2"))
        return fail_field(at, "checkpoint_format", form, "gptq or gptq_v2");
    LG_TRY(read_bits(at, obj, "bits", true, &s->bits));
    LG_TRY(read_group(at, obj, "group_size", s));
    LG_TRY(read_flag(at, obj, "sym", true, &s->sym));
    LG_TRY(read_flag(at, obj, "desc_act", false, &s->act_order));
    return read_dynamic(at, obj, q);
}

static lg_status read_awq(const lg_config_place *at, const lg_json *obj, lg_quant *q) {
    lg_scheme *s = &q->scheme[0];
    const lg_json *version = lg_json_get(obj, "version");
    bool zero_point = true;
    q->n_scheme = 1;
    q->any_scheme = 0;
    if (!is_null(version) && !lg_json_is(version, "gemm") && !lg_json_is(version, "GEMM"))
        return fail_field(at, "version", version, "gemm");
    LG_TRY(read_bits(at, obj, "bits", false, &s->bits));
    LG_TRY(read_group(at, obj, "group_size", s));
    LG_TRY(read_flag(at, obj, "zero_point", true, &zero_point));
    s->sym = !zero_point;
    return read_list(at, obj, "modules_to_not_convert", PART, q);
}

/* ---- compressed-tensors and modelopt ---- */

/* "weights" of a group. */
static lg_status read_args(const lg_config_place *at, const lg_json *obj, const char *format,
                           lg_scheme *s) {
    static const char *const words[] = {
        [LG_PER_GROUP] = "group", "channel", "block", "tensor", "tensor_group"};
    const lg_json *type = lg_json_get(obj, "type"), *per = lg_json_get(obj, "strategy");
    const lg_json *order = lg_json_get(obj, "actorder");
    bool is_float = lg_json_is(type, "float"), sized = !is_null(lg_json_get(obj, "group_size"));
    size_t k = 0;
    LG_TRY(lg_config_check_keys(at, obj));
    if (!is_null(type) && !is_float && !lg_json_is(type, "int"))
        return fail_field(at, "type", type, "int or float");
    LG_TRY(read_bits(at, obj, "num_bits", true, &s->bits));
    s->sym = true;
    LG_TRY(read_flag(at, obj, "symmetric", false, &s->sym));
    if (is_null(per))
        k = sized ? LG_PER_GROUP : LG_PER_TENSOR;
    else
        while (k < LG_COUNT(words) && !lg_json_is(per, words[k])) k++;
    if (k == LG_COUNT(words))
        return fail_field(at, "strategy", per, "group, tensor_group, channel, block or tensor");
    s->per = k > LG_PER_TENSOR ? LG_PER_GROUP : (lg_scheme_per)k;
    if (s->per == LG_PER_GROUP) LG_TRY(read_group(at, obj, "group_size", s));
    bool word = lg_json_is(order, "group") || lg_json_is(order, "dynamic");
    if (!is_null(order) && !word && !lg_json_is(order, "weight") &&
        !lg_json_is(order, "static") && order->kind != LG_JSON_FALSE)
        return fail_field(at, "actorder", order, "group, weight or null");
    s->act_order = word;
    s->kind = !is_float        ? LG_SCHEME_INT
              : s->bits == 8   ? LG_SCHEME_FP8
              : s->group == 32 ? LG_SCHEME_MXFP4
                               : LG_SCHEME_NVFP4;
    s->packed = s->kind != LG_SCHEME_FP8 && strstr(format, "pack") != NULL;
    if (is_float && (!s->sym || (s->kind == LG_SCHEME_NVFP4 && s->group != 16)))
        return fail_field(at, s->sym ? "group_size" : "symmetric",
                          lg_json_get(obj, s->sym ? "group_size" : "symmetric"),
                          s->sym ? "16 or 32 for 4-bit floats" : "true for floats");
    if (s->kind == LG_SCHEME_FP8 && s->per == LG_PER_GROUP && s->group % 128 != 0)
        return fail_field(at, "group_size", lg_json_get(obj, "group_size"),
                          "a multiple of 128 for FP8");
    if (s->kind == LG_SCHEME_INT && s->per == LG_PER_BLOCK)
        return fail_field(at, "strategy", per, "group, channel or tensor for integers");
    if (s->per == LG_PER_BLOCK) {
        const lg_json *b = lg_json_get(obj, "block_structure");
        uint64_t x[2] = {0, 0};
        if (!b || b->kind != LG_JSON_ARRAY || b->n_child != 2 ||
            !lg_json_u64(b->child, &x[0]) || !lg_json_u64(b->child->next, &x[1]) ||
            x[0] != 128 || x[1] != 128)
            return fail_field(at, "block_structure", b, "[128, 128]");
    }
    return LG_OK;
}

/* One of config_groups. */
static lg_status read_config_group(const lg_config_place *at, const lg_json *g,
                                   const char *format, lg_quant *q) {
    static const char *const formats[] = {
        "pack-quantized",       "int-quantized",        "float-quantized", "naive-quantized",
        "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision"};
    const lg_json *form = lg_json_get(g, "format"), *w = lg_json_get(g, "weights");
    const lg_json *targets = lg_json_get(g, "targets");
    if (!is_null(form)) format = form->kind == LG_JSON_STRING ? form->text : "";
    size_t k = 0;
    while (k < LG_COUNT(formats) && strcmp(format, formats[k]) != 0) k++;
    if (q->method == LG_QUANT_CT && k == LG_COUNT(formats))
        return fail_field(at, "format", form,
                          "pack-quantized, int-quantized, float-quantized, naive-quantized, "
                          "nvfp4-pack-quantized or mxfp4-pack-quantized");
    if (q->n_scheme == LG_MAX_SCHEME)
        return LG_FAIL(at->err, LG_E_UNSUPPORTED, "%s: %s: more than %d groups", at->what,
                       at->prefix, LG_MAX_SCHEME);
    if (!w || w->kind != LG_JSON_OBJECT) return fail_field(at, "weights", w, "an object");
    if (!targets || targets->kind != LG_JSON_ARRAY || targets->n_child == 0)
        return fail_field(at, "targets", targets, "a list that is not empty");
    char prefix[160];
    snprintf(prefix, sizeof prefix, "%sweights.", at->prefix);
    lg_config_place in = {at->what, prefix, LG_CONFIG_CT_ARGS, at->err};
    LG_TRY(read_args(&in, w, format, &q->scheme[q->n_scheme]));
    for (const lg_json *t = targets->child; t; t = t->next) {
        if (t->kind != LG_JSON_STRING) return fail_field(at, "targets", t, "names");
        if (lg_json_is(t, "Linear")) {
            q->any_scheme = (int)q->n_scheme;
            continue;
        }
        bool regex = strncmp(t->text, "re:", 3) == 0;
        size_t skip = regex ? 3 : 0;
        pattern p = {.kind = regex ? REGEX : WHOLE, .scheme = (uint8_t)q->n_scheme};
        LG_TRY(add_pattern(at, q, "targets", t->text + skip, t->text_len - skip, p));
    }
    q->n_scheme++;
    return LG_OK;
}

static lg_status read_groups(const lg_config_place *at, const lg_json *obj, lg_quant *q) {
    const lg_json *groups = lg_json_get(obj, "config_groups");
    const lg_json *format = lg_json_get(obj, "format");
    const char *form = format && format->kind == LG_JSON_STRING ? format->text : "";
    LG_TRY(read_list(at, obj, "ignore", q->method == LG_QUANT_CT ? WHOLE : GLOB, q));
    if (!groups || groups->kind != LG_JSON_OBJECT || groups->n_child == 0)
        return fail_field(at, "config_groups", groups, "an object that is not empty");
    for (const lg_json *g = groups->child; g; g = g->next) {
        char prefix[128];
        snprintf(prefix, sizeof prefix, "%sconfig_groups.%.32s.", at->prefix, g->key);
        lg_config_place in = {at->what, prefix, LG_CONFIG_CT_GROUP, at->err};
        if (g->kind != LG_JSON_OBJECT) return fail_field(at, "config_groups", g, "objects");
        LG_TRY(lg_config_check_keys(&in, g));
        LG_TRY(read_config_group(&in, g, form, q));
    }
    return LG_OK;
}

/* quant_algo with or without groups that say the same. */
static lg_status read_modelopt(const lg_config_place *at, const lg_json *obj, lg_quant *q) {
    const lg_json *algo = lg_json_get(obj, "quant_algo");
    bool four = lg_json_is(algo, "NVFP4");
    if (!four && !lg_json_is(algo, "FP8"))
        return fail_field(at, "quant_algo", algo, "NVFP4 or FP8");
    LG_TRY(read_list(at, obj, "ignore", GLOB, q));
    LG_TRY(read_list(at, obj, "exclude_modules", GLOB, q));
    q->scheme[0] = (lg_scheme){.kind = four ? LG_SCHEME_NVFP4 : LG_SCHEME_FP8,
                               .per = four ? LG_PER_GROUP : LG_PER_TENSOR,
                               .bits = four ? 4 : 8,
                               .group = four ? 16 : 0,
                               .sym = true};
    q->n_scheme = 1;
    q->any_scheme = 0;
    if (!four || is_null(lg_json_get(obj, "group_size"))) return LG_OK;
    LG_TRY(read_group(at, obj, "group_size", &q->scheme[0]));
    return q->scheme[0].group == 16
               ? LG_OK
               : fail_field(at, "group_size", lg_json_get(obj, "group_size"), "16 for NVFP4");
}

/* ---- the whole ---- */

static lg_status read_method(const lg_config_place *at, const lg_json *obj, lg_quant *q) {
    switch (q->method) {
    case LG_QUANT_GPTQ: return read_gptq(at, obj, q);
    case LG_QUANT_AWQ: return read_awq(at, obj, q);
    case LG_QUANT_CT: return read_groups(at, obj, q);
    case LG_QUANT_MODELOPT: return read_modelopt(at, obj, q);
    default: break;
    }
    q->scheme[0] = (lg_scheme){.kind = LG_SCHEME_MXFP4, .bits = 4, .group = 32, .sym = true};
    q->n_scheme = 1;
    q->any_scheme = 0;
    return read_list(at, obj, "modules_to_not_convert", PART, q);
}

lg_status lg_quant_read(const lg_config_place *at, const lg_json *obj, lg_quant_method method,
                        lg_quant **out) {
    lg_config_place in = *at;
    for (size_t i = 0; i < LG_COUNT(methods); i++)
        if (methods[i].method == method) in.place = methods[i].place;
    lg_quant *q = lg_mem_alloc(sizeof *q);
    if (!q) return LG_FAIL(at->err, LG_E_NOMEM, "%s: no memory", at->what);
    q->method = method;
    q->any_scheme = -1;
    q->data = pcre2_match_data_create(1, NULL);
    q->match = pcre2_match_context_create(NULL);
    lg_status st =
        q->data && q->match ? LG_OK : LG_FAIL(at->err, LG_E_NOMEM, "%s: no memory", at->what);
    if (st == LG_OK) pcre2_set_match_limit(q->match, MATCH_LIMIT);
    if (st == LG_OK) st = lg_config_check_keys(&in, obj);
    if (st == LG_OK) st = read_method(&in, obj, q);
    if (st == LG_OK && out)
        *out = q;
    else
        lg_quant_close(&q);
    return st;
}

lg_status lg_quant_load(const char *folder, lg_quant **out, lg_err *err) {
    char path[4096], prefix[64];
    lg_json_doc *doc = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", folder) >= sizeof path)
        return LG_FAIL(err, LG_E_IO, "%.200s...: path too long", folder);
    LG_TRY(lg_json_load(path, MAX_FILE_BYTES, MAX_DEPTH, &doc, err));
    const lg_json *root = lg_json_root(doc), *text = lg_json_get(root, "text_config");
    const lg_json *obj = lg_json_get(root, "quantization_config");
    bool inner = is_null(obj);
    if (inner) obj = lg_json_get(text, "quantization_config");
    snprintf(prefix, sizeof prefix, "%squantization_config.", inner ? "text_config." : "");
    lg_config_place at = {path, prefix, LG_CONFIG_QUANT, err};
    lg_quant_method method = lg_quant_named(lg_json_get(obj, "quant_method"));
    lg_status st = method <= LG_QUANT_FP8
                       ? fail_field(&at, "quant_method", lg_json_get(obj, "quant_method"),
                                    "the one that was there before")
                       : lg_quant_read(&at, obj, method, out);
    if (st == LG_OK)
        (*out)->doc = doc;
    else
        lg_json_close(&doc);
    return st;
}

void lg_quant_close(lg_quant **q) {
    lg_quant *p = *q;
    if (!p) return;
    for (size_t i = 0; i < p->n_pattern; i++) pcre2_code_free(p->pattern[i].code);
    lg_mem_free(p->pattern);
    pcre2_match_data_free(p->data);
    pcre2_match_context_free(p->match);
    lg_json_close(&p->doc);
    LG_FREE(*q);
}

const lg_scheme *lg_quant_find(lg_quant *q, const char *module, const char **list) {
    int scheme = q->any_scheme;
    bool named = false;
    *list = "config_groups.targets";
    for (size_t i = 0; i < q->n_pattern; i++) {
        const pattern *p = &q->pattern[i];
        if ((named && !p->out) || !matches(q, p, module)) continue;
        if (p->out) {
            *list = p->list;
            return NULL;
        }
        scheme = p->scheme;
        named = true;
        if (q->method == LG_QUANT_GPTQ) break; /* the first that matches counts */
    }
    return scheme < 0 ? NULL : &q->scheme[scheme];
}
