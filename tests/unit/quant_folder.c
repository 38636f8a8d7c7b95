/* quant_folder.c - see quant_folder.h. */
#include "quant_folder.h"

#include "base/num.h"
#include "model/file/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sets of tensors ---- */

static size_t type_bytes(const char *type) {
    static const struct {
        const char *name;
        size_t bytes;
    } types[] = {{"I32", 4}, {"I64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}};
    for (size_t i = 0; i < LG_COUNT(types); i++)
        if (strcmp(types[i].name, type) == 0) return types[i].bytes;
    return 1;
}

qf_tensor *qf_add(qf_set *s, const char *name, const char *type, uint32_t n_dim,
                  const uint64_t *shape) {
    s->t = realloc(s->t, (s->n + 1) * sizeof *s->t);
    LG_ASSERT(s->t && n_dim <= 4);
    qf_tensor *t = &s->t[s->n++];
    *t = (qf_tensor){.type = type, .n_dim = n_dim, .len_bytes = type_bytes(type)};
    snprintf(t->name, sizeof t->name, "%s", name);
    for (uint32_t d = 0; d < n_dim; d++) {
        t->shape[d] = shape[d];
        t->len_bytes *= shape[d];
    }
    t->data = calloc(1, t->len_bytes + 1);
    LG_ASSERT(t->data);
    return t;
}

qf_tensor *qf_find(qf_set *s, const char *name) {
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->t[i].name, name) == 0) return &s->t[i];
    return NULL;
}

void qf_fini(qf_set *s) {
    for (size_t i = 0; i < s->n; i++) free(s->t[i].data);
    free(s->t);
    *s = (qf_set){0};
}

void qf_write(const qf_set *s, const lg_fixture *f) {
    lg_buf head = {0}, out = {0};
    size_t at = 0;
    lg_buf_putc(&head, '{');
    for (size_t i = 0; i < s->n; i++) {
        const qf_tensor *t = &s->t[i];
        char shape[128];
        lg_buf_printf(
            &head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
            i ? "," : "", t->name, t->type,
            lg_tensors_shape(t->n_dim, t->shape, shape, sizeof shape), at, at + t->len_bytes);
        at += t->len_bytes;
    }
    lg_buf_putc(&head, '}');
    uint64_t n = head.len_bytes;
    lg_buf_put(&out, &n, sizeof n);
    lg_buf_put(&out, head.data, head.len_bytes);
    for (size_t i = 0; i < s->n; i++) lg_buf_put(&out, s->t[i].data, s->t[i].len_bytes);
    LG_ASSERT(!out.failed);
    lg_fixture_write(f, "model.safetensors", out.data, out.len_bytes);
    lg_buf_fini(&head);
    lg_buf_fini(&out);
}

/* ---- numbers ---- */

/* x as the type stores it; returns what that is. */
static float store_scale(lg_dtype type, float x, uint8_t *to) {
    uint16_t h = type == LG_F16 ? lg_num_to_f16(x) : lg_num_to_bf16(x);
    if (type == LG_F32) {
        memcpy(to, &x, 4);
        return x;
    }
    memcpy(to, &h, 2);
    return type == LG_F16 ? lg_num_f16(h) : lg_num_bf16(h);
}

/* The nearest E4M3 number's byte, the even one from the middle. */
static uint8_t to_e4m3(float x) {
    uint8_t low = 0, high = 126; /* bytes of positive numbers ascend with them */
    while (high - low > 1) {
        uint8_t mid = (uint8_t)((low + high) / 2);
        if (lg_num_e4m3(mid) <= fabsf(x))
            low = mid;
        else
            high = mid;
    }
    float above = lg_num_e4m3(high) - fabsf(x), below = fabsf(x) - lg_num_e4m3(low);
    bool up = above < below || (above <= below && high % 2 == 0);
    return (uint8_t)((up ? high : low) | (x < 0 ? 128 : 0));
}

static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

static uint8_t to_e2m1(float x) {
    int best = 0;
    for (int i = 1; i < 8; i++)
        if (fabsf(e2m1[i] - fabsf(x)) < fabsf(e2m1[best] - fabsf(x))) best = i;
    return (uint8_t)(best | (x < 0 ? 8 : 0));
}

/* ---- one matrix ---- */

/* A matrix on its way: weights in, codes and what they mean out. */
typedef struct work {
    const qf_spec *spec;
    float *w; /* [n_out][n_in]; becomes the dequantised numbers */
    uint32_t n_out, n_in, n_group;
    uint32_t *group; /* [n_in] */
    uint8_t *code;   /* [n_out][n_in] */
    float *scale;    /* [n_out][n_group] */
    uint8_t *raw;    /* the same as stored, 4 bytes each */
    uint8_t *zero;   /* [n_out][n_group] */
    qf_set *out;
    const char *base;
} work;

/* Channels of a group that are not neighbours, where the scheme allows it. */
static void set_groups(work *k) {
    uint32_t size = k->spec->scheme.group ? k->spec->scheme.group : k->n_in;
    k->n_group = (k->n_in + size - 1) / size;
    k->group = calloc(k->n_in, sizeof *k->group);
    for (uint32_t i = 0; i < k->n_in; i++) {
        uint32_t at = k->spec->scheme.act_order ? i * 37 % k->n_in : i;
        k->group[i] = at / size;
    }
    k->code = calloc(k->n_out, k->n_in);
    k->scale = calloc((size_t)k->n_out * k->n_group, sizeof *k->scale);
    k->raw = calloc((size_t)k->n_out * k->n_group, 4);
    k->zero = calloc(k->n_out, k->n_group);
    LG_ASSERT(k->group && k->code && k->scale && k->raw && k->zero);
}

static void range_of(const work *k, uint32_t r, uint32_t g, float *low, float *high) {
    bool all = k->spec->scheme.per == LG_PER_TENSOR;
    size_t n = all ? (size_t)k->n_out * k->n_in : k->n_in;
    *low = *high = 0;
    for (size_t i = 0; i < n; i++) {
        float x = k->w[all ? i : (size_t)r * k->n_in + i];
        if (k->group[i % k->n_in] != g) continue;
        if (x < *low) *low = x;
        if (x > *high) *high = x;
    }
}

/* Integers: the usual rounding to the nearest. */
static void quantise_int(work *k) {
    const lg_scheme *s = &k->spec->scheme;
    int top = (1 << s->bits) - 1, middle = (top + 1) / 2;
    for (uint32_t r = 0; r < k->n_out; r++)
        for (uint32_t g = 0; g < k->n_group; g++) {
            size_t at = (size_t)r * k->n_group + g;
            float low, high, d;
            range_of(k, r, g, &low, &high);
            d = s->sym ? fmaxf(-low, high) * 2 / (float)top : (high - low) / (float)top;
            if (d == 0) d = 1e-4f;
            k->scale[at] = store_scale(k->spec->scale_type, d, k->raw + 4 * at);
            /* Not every middle: GPTQ of version 1 holds 1 to 16. */
            k->zero[at] =
                (uint8_t)(s->sym ? middle
                                 : (int)lrintf(fminf(-low / k->scale[at], (float)top)));
            if (!s->sym && !k->spec->v2 && k->spec->method == LG_QUANT_GPTQ && k->zero[at] == 0)
                k->zero[at] = 1;
        }
    for (uint32_t r = 0; r < k->n_out; r++)
        for (uint32_t i = 0; i < k->n_in; i++) {
            size_t at = (size_t)r * k->n_in + i, t = (size_t)r * k->n_group + k->group[i];
            long q = lrintf(k->w[at] / k->scale[t]) + k->zero[t];
            k->code[at] = (uint8_t)(q < 0 ? 0 : q > top ? top : q);
            k->w[at] = k->scale[t] * (float)(k->code[at] - k->zero[t]);
        }
}

static qf_tensor *add(work *k, const char *end, const char *type, uint64_t d0, uint64_t d1) {
    char name[200];
    snprintf(name, sizeof name, "%s%s", k->base, end);
    return qf_add(k->out, name, type, d1 ? 2 : 1, (uint64_t[]){d0, d1});
}

static void or_word(qf_tensor *t, size_t word, uint32_t bits) {
    uint32_t v = lg_num_load32(t->data + 4 * word) | bits;
    memcpy(t->data + 4 * word, &v, 4);
}

/* scales [n_group][n_out] and, in words along n_out, zero points: GPTQ and AWQ. */
static void write_tables(work *k, const uint8_t *place, uint32_t per, uint32_t less) {
    qf_tensor *s = add(k, ".scales", lg_dtype_name(k->spec->scale_type), k->n_group, k->n_out);
    size_t one = lg_dtype_bytes(k->spec->scale_type);
    for (uint32_t g = 0; g < k->n_group; g++)
        for (uint32_t r = 0; r < k->n_out; r++)
            memcpy(s->data + ((size_t)g * k->n_out + r) * one,
                   k->raw + 4 * ((size_t)r * k->n_group + g), one);
    if (k->spec->method == LG_QUANT_AWQ && k->spec->scheme.sym) return;
    qf_tensor *z = add(k, ".qzeros", "I32", k->n_group, k->n_out / per);
    for (uint32_t g = 0; g < k->n_group; g++)
        for (uint32_t r = 0; r < k->n_out; r++) {
            uint32_t v = k->zero[(size_t)r * k->n_group + g] - less,
                     p = place ? place[r % per] : r % per;
            or_word(z, (size_t)g * (k->n_out / per) + r / per, v << p * (32 / per));
        }
}

static void write_gptq(work *k) {
    uint32_t per = 32 / k->spec->scheme.bits;
    qf_tensor *q = add(k, ".qweight", "I32", k->n_in / per, k->n_out);
    for (uint32_t i = 0; i < k->n_in; i++)
        for (uint32_t r = 0; r < k->n_out; r++)
            or_word(q, (size_t)(i / per) * k->n_out + r,
                    (uint32_t)k->code[(size_t)r * k->n_in + i] << i % per * (32 / per));
    write_tables(k, NULL, per, k->spec->v2 ? 0 : 1);
    qf_tensor *g = add(k, ".g_idx", "I32", k->n_in, 0);
    memcpy(g->data, k->group, 4 * (size_t)k->n_in);
}

static void write_awq(work *k) {
    static const uint8_t order[8] = {0, 2, 4, 6, 1, 3, 5, 7}; /* channel of each place */
    uint8_t place[8];
    for (uint8_t p = 0; p < 8; p++) place[order[p]] = p;
    qf_tensor *q = add(k, ".qweight", "I32", k->n_in, k->n_out / 8);
    for (uint32_t i = 0; i < k->n_in; i++)
        for (uint32_t r = 0; r < k->n_out; r++)
            or_word(q, (size_t)i * (k->n_out / 8) + r / 8,
                    (uint32_t)k->code[(size_t)r * k->n_in + i] << place[r % 8] * 4);
    write_tables(k, place, 8, 0);
}

static void write_ct_scale(work *k) {
    bool one = k->spec->scheme.per == LG_PER_TENSOR;
    size_t bytes = lg_dtype_bytes(k->spec->scale_type), n = (size_t)k->n_out * k->n_group;
    qf_tensor *s = add(k, ".weight_scale", lg_dtype_name(k->spec->scale_type),
                       one ? 1 : k->n_out, one ? 0 : k->n_group);
    for (size_t i = 0; i < (one ? 1 : n); i++)
        memcpy(s->data + i * bytes, k->raw + 4 * i, bytes);
}

/* Words along n_in, low bits first; zero points along n_out. */
static void write_ct_words(work *k) {
    uint32_t per = 32 / k->spec->scheme.bits;
    qf_tensor *q = add(k, ".weight_packed", "I32", k->n_out, k->n_in / per);
    for (uint32_t r = 0; r < k->n_out; r++)
        for (uint32_t i = 0; i < k->n_in; i++)
            or_word(q, (size_t)r * (k->n_in / per) + i / per,
                    (uint32_t)k->code[(size_t)r * k->n_in + i] << i % per * (32 / per));
    qf_tensor *shape = add(k, ".weight_shape", "I64", 2, 0);
    memcpy(shape->data, (uint64_t[]){k->n_out, k->n_in}, 16);
    write_ct_scale(k);
    if (!k->spec->scheme.sym) {
        qf_tensor *z = add(k, ".weight_zero_point", "I32", k->n_out / per, k->n_group);
        for (uint32_t r = 0; r < k->n_out; r++)
            for (uint32_t g = 0; g < k->n_group; g++)
                or_word(z, (size_t)(r / per) * k->n_group + g,
                        (uint32_t)k->zero[(size_t)r * k->n_group + g] << r % per * (32 / per));
    }
    if (!k->spec->scheme.act_order) return;
    qf_tensor *g = add(k, ".weight_g_idx", "I32", k->n_in, 0);
    memcpy(g->data, k->group, 4 * (size_t)k->n_in);
}

static void write_ct_bytes(work *k) {
    qf_tensor *q = add(k, ".weight", "I8", k->n_out, k->n_in);
    for (size_t i = 0; i < q->len_bytes; i++) q->data[i] = (uint8_t)(k->code[i] - 128);
    write_ct_scale(k);
    if (k->spec->scheme.sym) return;
    qf_tensor *z = add(k, ".weight_zero_point", "I8", k->n_out, k->n_group);
    for (size_t i = 0; i < z->len_bytes; i++) z->data[i] = (uint8_t)(k->zero[i] - 128);
}

/* ---- floats of eight and four bits ---- */

static void write_fp8(work *k) {
    lg_scheme_per per = k->spec->scheme.per;
    uint32_t n_in = k->n_in, step_out = per == LG_PER_TENSOR  ? k->n_out
                                        : per == LG_PER_BLOCK ? 128
                                                              : 1;
    uint32_t step_in = per == LG_PER_BLOCK   ? 128
                       : per == LG_PER_GROUP ? k->spec->scheme.group
                                             : n_in;
    uint32_t n0 = (k->n_out + step_out - 1) / step_out, n1 = (n_in + step_in - 1) / step_in;
    qf_tensor *q = add(k, ".weight", "F8_E4M3", k->n_out, n_in);
    qf_tensor *s = add(k, ".weight_scale", lg_dtype_name(k->spec->scale_type), n0,
                       per == LG_PER_TENSOR ? 0 : n1);
    q = &k->out->t[k->out->n - 2];
    for (uint32_t b = 0; b < n0 * n1; b++) {
        uint32_t r0 = b / n1 * step_out, c0 = b % n1 * step_in;
        float max = 0, d;
        for (uint32_t r = r0; r < r0 + step_out && r < k->n_out; r++)
            for (uint32_t i = c0; i < c0 + step_in && i < n_in; i++)
                max = fmaxf(max, fabsf(k->w[(size_t)r * n_in + i]));
        d = store_scale(k->spec->scale_type, max > 0 ? max / 448 : 1,
                        s->data + b * lg_dtype_bytes(k->spec->scale_type));
        for (uint32_t r = r0; r < r0 + step_out && r < k->n_out; r++)
            for (uint32_t i = c0; i < c0 + step_in && i < n_in; i++) {
                size_t at = (size_t)r * n_in + i;
                q->data[at] = to_e4m3(k->w[at] / d);
                k->w[at] = lg_num_e4m3(q->data[at]) * d;
            }
    }
}

/* Codes of four-bit floats with the scales d of groups of `size`. */
static void round_fp4(work *k, uint32_t size, const float *d, uint8_t *codes) {
    for (uint32_t r = 0; r < k->n_out; r++)
        for (uint32_t i = 0; i < k->n_in; i++) {
            size_t at = (size_t)r * k->n_in + i;
            float s = d[at / size];
            uint8_t c = s > 0 ? to_e2m1(k->w[at] / s) : 0;
            codes[at / 2] |= (uint8_t)(c << at % 2 * 4);
            k->w[at] = (c & 8 ? -1.0f : 1.0f) * e2m1[c & 7] * s;
        }
}

static float group_max(const work *k, size_t g, uint32_t size) {
    float max = 0;
    for (size_t i = g * size; i < (g + 1) * size; i++) max = fmaxf(max, fabsf(k->w[i]));
    return max;
}

static void write_nvfp4(work *k) {
    bool opt = k->spec->method == LG_QUANT_MODELOPT;
    size_t n = (size_t)k->n_out * k->n_in / 16;
    float max = 0, global, *d = calloc(n, sizeof *d);
    for (size_t g = 0; g < n; g++) max = fmaxf(max, group_max(k, g, 16));
    global = 448 * 6 /
             max; /* compressed-tensors divides by it, modelopt multiplies with its inverse */
    float times = opt ? 1 / global : global;
    add(k, opt ? ".weight" : ".weight_packed", "U8", k->n_out, k->n_in / 2);
    add(k, ".weight_scale", "F8_E4M3", k->n_out, k->n_in / 16);
    add(k, opt ? ".weight_scale_2" : ".weight_global_scale", "F32", 1, 0);
    qf_tensor *t = &k->out->t[k->out->n - 3];
    memcpy(t[2].data, &times, 4);
    for (size_t g = 0; g < n; g++) {
        t[1].data[g] = to_e4m3(group_max(k, g, 16) / 6 * global);
        float s = lg_num_e4m3(t[1].data[g]);
        d[g] = opt ? s * times : s / times;
    }
    round_fp4(k, 16, d, t[0].data);
    free(d);
}

/* Codes and powers of two; the caller gives the two tensors' data. */
static void fill_mxfp4(work *k, uint8_t *codes, uint8_t *scales) {
    size_t n = (size_t)k->n_out * k->n_in / 32;
    float *d = calloc(n, sizeof *d);
    for (size_t g = 0; g < n; g++) {
        float max = group_max(k, g, 32);
        int e = max > 0 ? ilogbf(max) - 2 : -20;
        scales[g] = (uint8_t)(e + 127);
        d[g] = ldexpf(1, e);
    }
    round_fp4(k, 32, d, codes);
    free(d);
}

static void write_mxfp4(work *k) {
    add(k, ".weight_packed", "U8", k->n_out, k->n_in / 2);
    add(k, ".weight_scale", "U8", k->n_out, k->n_in / 32);
    qf_tensor *t = &k->out->t[k->out->n - 2];
    fill_mxfp4(k, t[0].data, t[1].data);
}

/* Quantise w [n_out][n_in] in place and write its tensors. */
static void put_matrix(const qf_spec *spec, const char *base, float *w, uint32_t n_out,
                       uint32_t n_in, qf_set *out) {
    work k = {.spec = spec, .w = w, .n_out = n_out, .n_in = n_in, .out = out, .base = base};
    if (spec->scheme.kind == LG_SCHEME_FP8) {
        write_fp8(&k);
    } else if (spec->scheme.kind == LG_SCHEME_NVFP4) {
        write_nvfp4(&k);
    } else if (spec->scheme.kind == LG_SCHEME_MXFP4) {
        write_mxfp4(&k);
    } else {
        set_groups(&k);
        quantise_int(&k);
        if (spec->method == LG_QUANT_GPTQ) write_gptq(&k);
        if (spec->method == LG_QUANT_AWQ) write_awq(&k);
        if (spec->method == LG_QUANT_CT && spec->scheme.packed) write_ct_words(&k);
        if (spec->method == LG_QUANT_CT && !spec->scheme.packed) write_ct_bytes(&k);
    }
    free(k.group);
    free(k.code);
    free(k.scale);
    free(k.raw);
    free(k.zero);
}

/* ---- the model ---- */

static void copy(const lg_view *v, qf_set *to) {
    qf_tensor *t = qf_add(to, v->name, v->type_name, v->n_dim, v->shape);
    memcpy(t->data, v->data, v->len_bytes);
}

/* A tensor as F32 in `plain`; returns its numbers. */
static float *widen(const lg_view *v, qf_set *plain) {
    qf_tensor *t = qf_add(plain, v->name, "F32", v->n_dim, v->shape);
    float *w = (float *)(void *)t->data;
    for (size_t i = 0; i < t->len_bytes / 4; i++)
        w[i] = v->type == LG_F32 ? lg_num_float_of_bits(lg_num_load32(v->data + 4 * i))
                                 : lg_num_bf16(lg_num_load16(v->data + 2 * i));
    return w;
}

/* mlp.experts.gate_up_proj [E][2I][H] or down_proj [E][H][I], each expert's matrices apart. */
static void put_experts(const qf_spec *spec, const lg_view *v, float *w, qf_set *quant) {
    uint32_t rows = (uint32_t)v->shape[1], n_in = (uint32_t)v->shape[2];
    bool both = strstr(v->name, "gate_up_proj") != NULL;
    uint32_t n_part = both ? 2 : 1, n_out = rows / n_part;
    if (spec->method == LG_QUANT_MXFP4) {
        char name[2][200];
        snprintf(name[0], sizeof name[0], "%s_blocks", v->name);
        snprintf(name[1], sizeof name[1], "%s_scales", v->name);
        uint64_t shape[4] = {v->shape[0], rows, n_in / 32, 16};
        qf_add(quant, name[0], "U8", 4, shape);
        qf_add(quant, name[1], "U8", 3, shape);
        qf_tensor *t = &quant->t[quant->n - 2];
        work k = {.w = w, .n_out = rows * (uint32_t)v->shape[0], .n_in = n_in};
        fill_mxfp4(&k, t[0].data, t[1].data);
        return;
    }
    for (uint32_t e = 0; e < v->shape[0]; e++)
        for (uint32_t p = 0; p < n_part; p++) {
            char base[200];
            int len = (int)(strstr(v->name, ".experts.") - v->name);
            snprintf(base, sizeof base, "%.*s.experts.%u.%s_proj", len, v->name, e,
                     !both ? "down"
                     : p   ? "up"
                           : "gate");
            put_matrix(spec, base, w + ((size_t)e * rows + p * n_out) * n_in, n_out, n_in,
                       quant);
        }
}

void qf_make(const char *source, qf_choose *choose, void *ctx, qf_set *quant, qf_set *plain) {
    char path[512], base[200];
    lg_tensors *set;
    lg_err err;
    lg_fixture_source(source, path, sizeof path);
    LG_ASSERT(lg_st_open(path, &set, &err) == LG_OK);
    for (size_t i = 0; i < lg_tensors_count(set); i++) {
        const lg_view *v = lg_tensors_at(set, i);
        size_t len = strlen(v->name), end = strlen(".weight");
        bool stacked = strstr(v->name, ".experts.") && v->n_dim == 3;
        bool mat = len > end && strcmp(v->name + len - end, ".weight") == 0 && v->n_dim == 2;
        if (strncmp(v->name, "mtp.", 4) == 0) continue;
        snprintf(base, sizeof base, "%.*s", (int)(mat ? len - end : len), v->name);
        const qf_spec *spec = mat || stacked ? choose(ctx, base) : NULL;
        if (!spec) {
            copy(v, quant);
            copy(v, plain);
            continue;
        }
        float *w = widen(v, plain);
        if (stacked)
            put_experts(spec, v, w, quant);
        else
            put_matrix(spec, base, w, (uint32_t)v->shape[0], (uint32_t)v->shape[1], quant);
    }
    lg_tensors_close(&set);
}
