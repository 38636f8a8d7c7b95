/* weights_quant.c - the tensors of a quantised matrix, method by method.
 *
 * In:  lg_quant and the mapped tensors.   Out: the matrix's type, its job (lg_qsrc) and its tables.
 *
 *     GPTQ                M.qweight M.qzeros M.scales M.g_idx
 *     AWQ                 M.qweight M.qzeros M.scales
 *     compressed-tensors  M.weight_packed M.weight_scale M.weight_shape [M.weight_zero_point] [M.weight_g_idx], in words;
 *                         M.weight M.weight_scale [M.weight_zero_point], in bytes;  M.weight_packed M.weight_scale
 *                         [M.weight_global_scale] for four-bit floats
 *     modelopt            M.weight M.weight_scale [M.weight_scale_2]
 *     mxfp4               NAME_blocks NAME_scales, stacked experts
 *
 * A matrix with none of these is one of the file's plain ones.  The type is the one that holds the file's numbers exactly and
 * is fastest: docs/MODEL.md.  Shapes and types are checked on each walk; values (scales, groups, zero points that must be
 * the middle) on the second, when they are needed anyway.
 * Thread: the opener's.  Memory: the arena of the walk.  Test: tests/unit/test_quant.c */
#include "model/weights/weights_map.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 128 /* rows and columns that share a scale in FP8 */

/* A matrix while its tensors are gathered. */
typedef struct gather {
    lg_weights_walk *k;
    char base[LG_WEIGHTS_NAME]; /* the module */
    const lg_scheme *scheme;
    const lg_view *first; /* the tensor of codes, for messages */
    const lg_view *scale_view;
    uint32_t n_out, n_in;
    lg_qsrc q;
    const uint8_t *g_idx; /* I32 [n_in], or NULL */
    float factor;         /* LG_NVFP4 */
} gather;

/* ---- finding and checking ---- */

static lg_view *find(const gather *g, const char *end) {
    char name[LG_WEIGHTS_NAME + 32];
    snprintf(name, sizeof name, "%s%s", g->base, end);
    return lg_tensors_find(g->k->set, name);
}

/* Whether `types` ("I32|I64") names the type of v. */
static bool is_type(const lg_view *v, const char *types) {
    size_t n = strlen(v->type_name);
    for (const char *p = types; p; p = strchr(p, '|')) {
        if (*p == '|') p++;
        if (strncmp(p, v->type_name, n) == 0 && (p[n] == '|' || p[n] == '\0')) return true;
    }
    return false;
}

static lg_status fail_view(const gather *g, lg_status code, const lg_view *v, const char *found,
                           const char *expected) {
    return LG_FAIL(g->k->err, code, "%s: tensor %s: found %s, expected %s", v->file, v->name,
                   found, expected);
}

static lg_status check_view(const gather *g, lg_view *v, const char *types, uint32_t n_dim,
                            const uint64_t *shape) {
    char found[112], expected[112], text[128];
    if (!is_type(v, types)) return fail_view(g, LG_E_UNSUPPORTED, v, v->type_name, types);
    lg_tensors_shape(n_dim, shape, expected, sizeof expected);
    snprintf(text, sizeof text, "shape %s",
             lg_tensors_shape(v->n_dim, v->shape, found, sizeof found));
    if (v->n_dim != n_dim || (n_dim && memcmp(v->shape, shape, n_dim * sizeof *shape) != 0))
        return fail_view(g, LG_E_FORMAT, v, text, expected);
    v->used = true;
    return LG_OK;
}

/* The tensor of that end, with one of `types` and exactly this shape. */
static lg_status take(const gather *g, const char *end, const char *types, uint64_t d0,
                      uint64_t d1, lg_view **out) {
    uint64_t shape[2] = {d0, d1};
    lg_view *v = find(g, end);
    if (!v) {
        char text[64];
        return LG_FAIL(g->k->err, LG_E_FORMAT, "%s: tensor %s%s: missing, expected %s %s",
                       g->k->path, g->base, end, types,
                       lg_tensors_shape(2, shape, text, sizeof text));
    }
    *out = v;
    return check_view(g, v, types, 2, shape);
}

/* A number alone, [] or [1]; finite and not zero. */
static lg_status take_number(const gather *g, const char *end, const char *types, float *out) {
    lg_view *v = find(g, end);
    if (!v)
        return LG_FAIL(g->k->err, LG_E_FORMAT, "%s: tensor %s%s: missing, expected one %s",
                       g->k->path, g->base, end, types);
    LG_TRY(check_view(g, v, types, v->n_dim == 0 ? 0 : 1, (uint64_t[]){1}));
    *out = v->type == LG_F32    ? lg_num_float_of_bits(lg_num_load32(v->data))
           : v->type == LG_BF16 ? lg_num_bf16(lg_num_load16(v->data))
                                : lg_num_f16(lg_num_load16(v->data));
    if (isfinite(*out) && *out != 0) return LG_OK;
    return fail_view(g, LG_E_FORMAT, v, "a value that is zero or not finite", "a scale");
}

/* Tensors about activations, which stay float here. */
static lg_status skip_activations(const gather *g) {
    static const char *const ends[] = {".input_scale", ".input_global_scale",
                                       ".input_zero_point", ".k_scale", ".v_scale"};
    for (size_t i = 0; i < LG_COUNT(ends); i++) {
        lg_view *v = find(g, ends[i]);
        if (!v) continue;
        LG_TRY(check_view(g, v, "F32|BF16|F16|I8", v->n_dim == 0 ? 0 : 1, (uint64_t[]){1}));
    }
    return LG_OK;
}

/* n_out or n_in must be a multiple of what a word holds. */
static lg_status check_width(const gather *g, const char *what, uint32_t n, uint32_t per) {
    if (n % per == 0) return LG_OK;
    return LG_FAIL(g->k->err, LG_E_UNSUPPORTED,
                   "%s: tensor %s: found a matrix of %u %s channels, expected a multiple of %u",
                   g->first->file, g->first->name, n, what, per);
}

/* Groups of the scheme over n_in input channels. */
static lg_status set_groups(gather *g) {
    const lg_scheme *s = g->scheme;
    g->q.group = s->per == LG_PER_GROUP ? s->group : g->n_in;
    g->q.n_group = (g->n_in + g->q.group - 1) / g->q.group;
    if (g->n_in % g->q.group == 0 || s->act_order) return LG_OK;
    return LG_FAIL(g->k->err, LG_E_FORMAT,
                   "%s: tensor %s: found %u input channels, expected a multiple of the group "
                   "size %u",
                   g->first->file, g->first->name, g->n_in, g->q.group);
}

static void set_scale(gather *g, const lg_view *v, bool by_out) {
    g->scale_view = v;
    g->q.scale = v->data;
    g->q.scale_type = v->type == LG_N_DTYPE ? LG_MXFP4 : v->type;
    g->q.n_scale = v->len_bytes / (v->type == LG_N_DTYPE ? 1 : lg_dtype_bytes(v->type));
    g->q.scale_by_out = by_out;
}

/* ---- the methods ---- */

static lg_status gather_gptq(gather *g) {
    uint32_t per = 32 / g->scheme->bits;
    lg_view *v;
    LG_TRY(check_width(g, "input", g->n_in, per));
    LG_TRY(check_width(g, "output", g->n_out, per));
    LG_TRY(set_groups(g));
    LG_TRY(take(g, ".qweight", "I32", g->n_in / per, g->n_out, &v));
    g->q.code = v->data;
    g->q.order = LG_CODES_GPTQ;
    LG_TRY(take(g, ".scales", "F16|BF16|F32", g->q.n_group, g->n_out, &v));
    set_scale(g, v, false);
    LG_TRY(take(g, ".qzeros", "I32", g->q.n_group, g->n_out / per, &v));
    g->q.zero = v->data;
    g->q.zeros = LG_ZERO_GPTQ;
    g->q.zero_less_one = lg_quant_zero_less_one(g->k->quant);
    if (!(v = find(g, ".g_idx"))) {
        if (!g->scheme->act_order) return LG_OK;
        return LG_FAIL(g->k->err, LG_E_FORMAT,
                       "%s: tensor %s.g_idx: missing, expected I32 [%u], as desc_act is true",
                       g->k->path, g->base, g->n_in);
    }
    LG_TRY(check_view(g, v, "I32", 1, (uint64_t[]){g->n_in}));
    g->g_idx = v->data;
    return LG_OK;
}

static lg_status gather_awq(gather *g) {
    lg_view *v;
    LG_TRY(check_width(g, "output", g->n_out, 8));
    LG_TRY(set_groups(g));
    LG_TRY(take(g, ".qweight", "I32", g->n_in, g->n_out / 8, &v));
    g->q.code = v->data;
    g->q.order = LG_CODES_AWQ;
    LG_TRY(take(g, ".scales", "F16|BF16|F32", g->q.n_group, g->n_out, &v));
    set_scale(g, v, false);
    if (g->scheme->sym) return LG_OK;
    LG_TRY(take(g, ".qzeros", "I32", g->q.n_group, g->n_out / 8, &v));
    g->q.zero = v->data;
    g->q.zeros = LG_ZERO_AWQ;
    return LG_OK;
}

/* weight_shape says what we know already. */
static lg_status check_shape(const gather *g) {
    lg_view *v = find(g, ".weight_shape");
    if (!v)
        return LG_FAIL(g->k->err, LG_E_FORMAT,
                       "%s: tensor %s.weight_shape: missing, expected [%u, %u]", g->k->path,
                       g->base, g->n_out, g->n_in);
    LG_TRY(check_view(g, v, "I64|I32", 1, (uint64_t[]){2}));
    uint64_t x[2];
    for (int i = 0; i < 2; i++)
        x[i] =
            is_type(v, "I64") ? lg_num_load64(v->data + 8 * i) : lg_num_load32(v->data + 4 * i);
    if (x[0] == g->n_out && x[1] == g->n_in) return LG_OK;
    char found[64], expected[64];
    return fail_view(
        g, LG_E_FORMAT, v, lg_tensors_shape(2, x, found, sizeof found),
        lg_tensors_shape(2, (uint64_t[]){g->n_out, g->n_in}, expected, sizeof expected));
}

/* weight_scale [n_out][n_group], or one number. */
static lg_status take_scales(gather *g, const char *types) {
    lg_view *v = find(g, ".weight_scale");
    if (v && g->scheme->per == LG_PER_TENSOR)
        LG_TRY(check_view(g, v, types, v->n_dim == 0 ? 0 : 1, (uint64_t[]){1}));
    else
        LG_TRY(take(g, ".weight_scale", types, g->n_out, g->q.n_group, &v));
    set_scale(g, v, true);
    return LG_OK;
}

static lg_status gather_ct_int(gather *g) {
    uint32_t bits = g->scheme->bits, per = 32 / bits;
    lg_view *v;
    LG_TRY(set_groups(g));
    if (g->scheme->packed) {
        LG_TRY(check_width(g, "input", g->n_in, per));
        LG_TRY(take(g, ".weight_packed", "I32", g->n_out, g->n_in / per, &v));
        LG_TRY(check_shape(g));
    } else {
        if (bits != 8)
            return fail_view(g, LG_E_UNSUPPORTED, g->first, "4 bits in bytes",
                             "pack-quantized for 4 bits");
        LG_TRY(take(g, ".weight", "I8", g->n_out, g->n_in, &v));
        g->q.flip = 128;
    }
    g->q.code = v->data;
    LG_TRY(take_scales(g, "F16|BF16|F32"));
    if (!g->scheme->sym && !g->scheme->packed) {
        LG_TRY(take(g, ".weight_zero_point", "I8", g->n_out, g->q.n_group, &v));
        g->q.zero = v->data;
        g->q.zeros = LG_ZERO_BYTES;
    } else if (!g->scheme->sym) {
        LG_TRY(check_width(g, "output", g->n_out, per));
        LG_TRY(take(g, ".weight_zero_point", "I32", g->n_out / per, g->q.n_group, &v));
        g->q.zero = v->data;
        g->q.zeros = LG_ZERO_OUT;
    }
    if (!g->scheme->act_order) return LG_OK;
    if (!(v = find(g, ".weight_g_idx")))
        return LG_FAIL(g->k->err, LG_E_FORMAT,
                       "%s: tensor %s.weight_g_idx: missing, expected I32 [%u], as actorder is "
                       "group",
                       g->k->path, g->base, g->n_in);
    LG_TRY(check_view(g, v, "I32", 1, (uint64_t[]){g->n_in}));
    g->g_idx = v->data;
    return LG_OK;
}

/* E2M1 in groups of 16 or 32, both vendors' names. */
static lg_status gather_fp4(gather *g) {
    bool opt = lg_quant_method_of(g->k->quant) == LG_QUANT_MODELOPT;
    bool nv = g->scheme->kind == LG_SCHEME_NVFP4;
    lg_view *v;
    LG_TRY(set_groups(g));
    LG_TRY(take(g, opt ? ".weight" : ".weight_packed", "U8", g->n_out, g->n_in / 2, &v));
    g->q.code = v->data;
    LG_TRY(take_scales(g, nv ? "F8_E4M3" : "U8|F8_E8M0"));
    if (!nv) return LG_OK;
    LG_TRY(take_number(g, opt ? ".weight_scale_2" : ".weight_global_scale", "F32", &g->factor));
    if (!opt) g->factor = 1.0f / g->factor;
    return LG_OK;
}

/* ---- values ---- */

static lg_status check_scales(const gather *g) {
    for (uint32_t c = 0; c < g->n_out; c++)
        for (uint32_t i = 0; i < g->q.n_group; i++)
            if (!isfinite(lg_packq_scale(&g->q, g->n_out, c, i)))
                return fail_view(g, LG_E_FORMAT, g->scale_view, "a value that is not finite",
                                 "finite numbers");
    return LG_OK;
}

/* Zero points in the middle, as a symmetric scheme says. */
static lg_status check_middle(const gather *g) {
    uint8_t middle = (uint8_t)(1u << (g->q.bits - 1));
    if (g->q.zeros == LG_ZERO_CONST) return LG_OK;
    for (uint32_t c = 0; c < g->n_out; c++)
        for (uint32_t i = 0; i < g->q.n_group; i++) {
            uint8_t z = lg_packq_zero(&g->q, g->n_out, c, i);
            if (z != middle)
                return LG_FAIL(g->k->err, LG_E_FORMAT,
                               "%s: tensor %s.qzeros: found a zero point of %u (group %u, "
                               "channel %u), expected %u, as sym is true",
                               g->first->file, g->base, z, i, c, middle);
        }
    return LG_OK;
}

static uint32_t group_of(const gather *g, uint32_t k) {
    return g->g_idx ? lg_num_load32(g->g_idx + 4 * (size_t)k) : k / g->q.group;
}

/* Whether every channel is in the group of its place; *st is an error for a group that does not exist. */
static bool in_order(const gather *g, lg_status *st) {
    bool yes = true;
    for (uint32_t k = 0; k < g->n_in && g->g_idx; k++) {
        uint32_t at = group_of(g, k);
        if (at >= g->q.n_group) {
            *st = LG_FAIL(
                g->k->err, LG_E_FORMAT,
                "%s: tensor %s%s: found group %d for input channel %u, expected 0 to %u",
                g->first->file, g->base,
                g->q.order == LG_CODES_GPTQ ? ".g_idx" : ".weight_g_idx", (int)at, k,
                g->q.n_group - 1);
            return false;
        }
        yes = yes && at == k / g->q.group;
    }
    return yes;
}

/* ---- the matrix ---- */

/* The type that holds all numbers exactly: see docs/MODEL.md. */
static lg_dtype type_of(const gather *g, bool ordered) {
    uint32_t unit = g->q.n_group == 1 ? g->n_in : g->q.group;
    if (g->scheme->kind == LG_SCHEME_NVFP4) return LG_NVFP4;
    if (g->scheme->kind == LG_SCHEME_MXFP4) return LG_MXFP4;
    if (!ordered) return g->q.bits == 4 ? LG_I4_ANY : LG_I8_ANY;
    if (g->q.bits == 8) return g->scheme->sym && unit % 128 == 0 ? LG_I8_128 : LG_I8_ANY;
    if (unit % 32 != 0) return LG_I4_ANY;
    if (g->scheme->sym && g->q.scale_type == LG_F16) return LG_Q4_0;
    return unit % 128 == 0 ? LG_I4_128 : LG_I4_32;
}

static lg_status put_any(gather *g, lg_mat *m, lg_weights_job *job) {
    lg_arena *a = &g->k->arena;
    size_t n = (size_t)lg_mat_n_panel(m) * LG_NR * g->q.n_group;
    if (g->q.n_group > UINT16_MAX)
        return LG_FAIL(g->k->err, LG_E_UNSUPPORTED,
                       "%s: tensor %s: found %u groups, expected "
                       "at most 65535",
                       g->first->file, g->first->name, g->q.n_group);
    float *scale = lg_arena_take(a, n, sizeof *scale);
    uint8_t *zero = lg_arena_take(a, n, 1);
    uint16_t *group = lg_arena_take(a, g->n_in, sizeof *group);
    m->n_group = (uint16_t)g->q.n_group;
    m->scale = scale;
    m->zero = zero;
    m->group = group;
    if (!job) return LG_OK;
    job->scale = scale;
    job->zero = zero;
    for (uint32_t k = 0; k < g->n_in; k++) group[k] = (uint16_t)group_of(g, k);
    return LG_OK;
}

/* Choose the type, check values when they are read, add the job. */
static lg_status put(gather *g, lg_mat *m) {
    lg_status st = LG_OK;
    bool values = g->k->job != NULL && !g->k->elsewhere;
    /* The order of the groups decides about the type, so it is read on each walk where it may be any. */
    bool ordered = (!g->scheme->act_order && !values) || in_order(g, &st);
    LG_TRY(st);
    if (!ordered && !g->scheme->act_order)
        return LG_FAIL(g->k->err, LG_E_FORMAT,
                       "%s: tensor %s.g_idx: found groups in another order, expected channel / "
                       "%u, as desc_act is false",
                       g->first->file, g->base, g->q.group);
    if (ordered && g->n_in % g->q.group)
        return LG_FAIL(g->k->err, LG_E_FORMAT,
                       "%s: tensor %s: found %u input channels, expected a multiple of the "
                       "group size %u",
                       g->first->file, g->first->name, g->n_in, g->q.group);
    if (values) LG_TRY(check_scales(g));
    if (values && g->scheme->sym) LG_TRY(check_middle(g));
    lg_dtype type = type_of(g, ordered);
    if (g->n_in % lg_dtype_block(type))
        return check_width(g, "input", g->n_in, lg_dtype_block(type));
    lg_weights_job *job = lg_weights_put(g->k, type, g->n_out, g->n_in, m);
    if (g->k->elsewhere) return LG_OK;
    if (type == LG_I4_ANY || type == LG_I8_ANY) LG_TRY(put_any(g, m, job));
    if (type == LG_NVFP4) {
        float *factor = lg_arena_take(&g->k->arena, 1, sizeof *factor);
        m->scale = factor;
        if (factor && !g->k->ready) *factor = g->factor;
    }
    if (job) job->q = g->q;
    return LG_OK;
}

/* Entry i of lg_mat.scale with scale_row; 0 past the last channel. */
static float row_scale(const gather *g, uint32_t n_group, size_t i) {
    size_t c = i / LG_NR / n_group * LG_NR + i % LG_NR;
    if (c >= g->n_out) return 0.0f;
    return lg_packq_scale(&g->q, g->n_out, (uint32_t)c, (uint32_t)(i / LG_NR % n_group));
}

/* FP8 bytes: a scale for the tensor, for each channel, for each group of a channel's inputs or each block of 128 x 128. */
static lg_status put_fp8(gather *g, lg_mat *m) {
    uint32_t blocks_in = (g->n_in + BLOCK - 1) / BLOCK,
             blocks_out = (g->n_out + BLOCK - 1) / BLOCK;
    lg_scheme_per per = g->scheme->per;
    lg_view *v, *s = find(g, ".weight_scale");
    LG_TRY(take(g, ".weight", "F8_E4M3", g->n_out, g->n_in, &v));
    if (s && per == LG_PER_TENSOR)
        LG_TRY(check_view(g, s, "F16|BF16|F32", s->n_dim == 0 ? 0 : 1, (uint64_t[]){1}));
    else if (per == LG_PER_BLOCK)
        LG_TRY(take(g, ".weight_scale", "F16|BF16|F32", blocks_out, blocks_in, &s));
    else {
        LG_TRY(set_groups(g));
        LG_TRY(take(g, ".weight_scale", "F16|BF16|F32", g->n_out, g->q.n_group, &s));
    }
    lg_weights_job *job = lg_weights_put(g->k, LG_E4M3, g->n_out, g->n_in, m);
    if (job) job->src = v->data;
    m->scale_row = per == LG_PER_CHANNEL || per == LG_PER_GROUP;
    m->n_group = m->scale_row ? (uint16_t)g->q.n_group : 0;
    if (g->k->elsewhere) return LG_OK;
    size_t n = m->scale_row ? (size_t)lg_mat_n_panel(m) * LG_NR * m->n_group
                            : (size_t)blocks_out * blocks_in;
    float *y = lg_arena_take(&g->k->arena, n, sizeof *y);
    m->scale = y;
    if (!y || g->k->ready) return LG_OK;
    set_scale(g, s, true);
    for (size_t i = 0; i < n; i++) {
        y[i] = m->scale_row
                   ? row_scale(g, m->n_group, i)
                   : lg_packq_scale(&g->q, 1, 0, per == LG_PER_TENSOR ? 0 : (uint32_t)i);
        if (!isfinite(y[i]))
            return fail_view(g, LG_E_FORMAT, s, "a value that is not finite", "finite numbers");
    }
    return LG_OK;
}

/* The tensor that shows that this module is quantised, or NULL. */
static const lg_view *first_of(const gather *g) {
    lg_quant_method method = lg_quant_method_of(g->k->quant);
    if (method == LG_QUANT_GPTQ || method == LG_QUANT_AWQ) return find(g, ".qweight");
    const lg_view *v = find(g, ".weight_packed");
    if (v && method == LG_QUANT_CT) return v;
    v = find(g, ".weight");
    return v && is_type(v, "I8|U8|F8_E4M3") ? v : NULL;
}

lg_status lg_weights_quant_mat(lg_weights_walk *k, const char *name, uint32_t n_out,
                               uint32_t n_in, lg_mat *m, bool *taken) {
    gather g = {.k = k, .n_out = n_out, .n_in = n_in};
    size_t len = strlen(name), end = strlen(".weight");
    const char *list;
    *taken = false;
    if (len < end || strcmp(name + len - end, ".weight") != 0) return LG_OK;
    snprintf(g.base, sizeof g.base, "%.*s", (int)(len - end), name);
    LG_TRY(skip_activations(&g));
    g.first = first_of(&g);
    if (!g.first) return LG_OK;
    g.scheme = lg_quant_find(k->quant, g.base, &list);
    if (!g.scheme)
        return LG_FAIL(k->err, LG_E_FORMAT,
                       "%s: tensor %s: found a quantised matrix, expected a plain one by "
                       "quantization_config.%s",
                       g.first->file, g.first->name, list);
    *taken = true;
    k->n_quant++;
    g.q.bits = (uint8_t)g.scheme->bits;
    g.q.zero_const = (uint8_t)(1u << (g.q.bits - 1));
    if (g.scheme->kind == LG_SCHEME_FP8) return put_fp8(&g, m);
    if (lg_quant_method_of(k->quant) == LG_QUANT_GPTQ)
        LG_TRY(gather_gptq(&g));
    else if (lg_quant_method_of(k->quant) == LG_QUANT_AWQ)
        LG_TRY(gather_awq(&g));
    else if (g.scheme->kind == LG_SCHEME_INT)
        LG_TRY(gather_ct_int(&g));
    else
        LG_TRY(gather_fp4(&g));
    return put(&g, m);
}

/* ---- stacked experts ---- */

/* NAME_blocks [n_expert][n_row][n_in / 32][16] and NAME_scales [n_expert][n_row][n_in / 32]. */
static lg_status take_stack(lg_weights_walk *k, const char *name, uint32_t n_row, uint32_t n_in,
                            gather *g, lg_view **codes) {
    uint32_t n_expert = k->w->cfg.n_expert;
    *g = (gather){.k = k, .n_in = n_in};
    snprintf(g->base, sizeof g->base, "%s", name);
    const char *list;
    g->scheme = lg_quant_find(k->quant, name, &list);
    *codes = find(g, "_blocks");
    lg_view *s = find(g, "_scales");
    if (!*codes || !s)
        return LG_FAIL(k->err, LG_E_FORMAT, "%s: tensor %s%s: missing, expected U8", k->path,
                       name, *codes ? "_scales" : "_blocks");
    g->first = *codes;
    if (!g->scheme)
        return LG_FAIL(k->err, LG_E_FORMAT,
                       "%s: tensor %s: found a quantised matrix, expected a plain one by "
                       "quantization_config.%s",
                       g->first->file, g->first->name, list);
    LG_TRY(check_width(g, "input", n_in, 32));
    uint64_t shape[4] = {n_expert, n_row, n_in / 32, 16};
    LG_TRY(check_view(g, *codes, "U8", 4, shape));
    LG_TRY(check_view(g, s, "U8|F8_E8M0", 3, shape));
    g->q = (lg_qsrc){.bits = 4, .scale_type = LG_MXFP4, .scale_by_out = true, .group = 32};
    g->q.n_group = n_in / 32;
    set_scale(g, s, true);
    return LG_OK;
}

/* Rows [row0, row0 + n_out) of all. */
static lg_status put_stacked(gather *g, const lg_view *codes, uint64_t row0, uint32_t n_out,
                             lg_mat *m) {
    gather one = *g;
    one.n_out = n_out;
    one.q.code = codes->data + row0 * (g->n_in / 2);
    one.q.scale = g->q.scale + row0 * (g->n_in / 32);
    one.q.n_scale = (uint64_t)n_out * g->q.n_group;
    return put(&one, m);
}

lg_status lg_weights_quant_experts(lg_weights_walk *k, const char *gate_up, const char *down,
                                   lg_layer_w *l, bool *taken) {
    const lg_config *c = &k->w->cfg;
    uint32_t n = c->n_ff_expert, h = c->n_embd;
    gather probe = {.k = k}, a, b;
    lg_view *a_codes, *b_codes;
    snprintf(probe.base, sizeof probe.base, "%s", gate_up);
    *taken = find(&probe, "_blocks") != NULL;
    if (!*taken) return LG_OK;
    LG_TRY(take_stack(k, gate_up, 2 * n, h, &a, &a_codes));
    LG_TRY(take_stack(k, down, h, n, &b, &b_codes));
    k->n_quant += 3 * c->n_expert;
    for (uint64_t x = 0; x < c->n_expert; x++) {
        lg_mlp_w *m = &l->expert[x];
        lg_weights_at_expert(k, l, (uint32_t)x);
        LG_TRY(put_stacked(&a, a_codes, 2 * n * x, n, &m->gate));
        LG_TRY(put_stacked(&a, a_codes, 2 * n * x + n, n, &m->up));
        LG_TRY(put_stacked(&b, b_codes, h * x, h, &m->down));
    }
    return LG_OK;
}
