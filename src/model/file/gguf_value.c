/* gguf_value.c - typed access to the metadata of a GGUF file: see gguf.h.
 *
 * Values were checked when the file was opened: their elements lie inside it.
 * Thread: any.  Memory: none.  Test: tests/unit/test_gguf.c */
#include "model/file/gguf.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const type_names[LG_GGUF_N_TYPE] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                       "i32", "f32", "bool", "string", "array",
                                                       "u64", "i64", "f64"};

/* Bytes of an element; 0 for those without a fixed size. */
static const uint8_t type_bytes[LG_GGUF_N_TYPE] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

size_t lg_gguf_type_bytes(lg_gguf_type type) {
    return type_bytes[type];
}

bool lg_gguf_int(const lg_gguf_value *v, uint64_t i, int64_t *out) {
    if (!v || i >= v->n) return false;
    const uint8_t *p = v->data + (size_t)i * type_bytes[v->type];
    switch (v->type) {
    case LG_GGUF_U8: *out = p[0]; return true;
    case LG_GGUF_I8: *out = (int8_t)p[0]; return true;
    case LG_GGUF_U16: *out = lg_num_load16(p); return true;
    case LG_GGUF_I16: *out = (int16_t)lg_num_load16(p); return true;
    case LG_GGUF_U32: *out = lg_num_load32(p); return true;
    case LG_GGUF_I32: *out = (int32_t)lg_num_load32(p); return true;
    case LG_GGUF_I64: *out = (int64_t)lg_num_load64(p); return true;
    case LG_GGUF_U64:
        if (lg_num_load64(p) > INT64_MAX) return false;
        *out = (int64_t)lg_num_load64(p);
        return true;
    default: return false;
    }
}

bool lg_gguf_float(const lg_gguf_value *v, double *out) {
    double x;
    if (!v || v->array) return false;
    if (v->type == LG_GGUF_F32) {
        x = (double)lg_num_float_of_bits(lg_num_load32(v->data));
    } else if (v->type == LG_GGUF_F64) {
        memcpy(&x, v->data, sizeof x);
    } else {
        return false;
    }
    if (!isfinite(x)) return false;
    *out = x;
    return true;
}

bool lg_gguf_bool(const lg_gguf_value *v, uint64_t i, bool *out) {
    if (!v || v->type != LG_GGUF_BOOL || i >= v->n) return false;
    *out = v->data[i] != 0;
    return true;
}

bool lg_gguf_next(const lg_gguf_value *v, size_t *at, const char **s, size_t *len_bytes) {
    if (!v || v->type != LG_GGUF_STR || *at >= v->len_bytes) return false;
    *len_bytes = (size_t)lg_num_load64(v->data + *at);
    *s = (const char *)v->data + *at + 8;
    *at += 8 + *len_bytes;
    return true;
}

bool lg_gguf_text(const lg_gguf_value *v, const char **s, size_t *len_bytes) {
    size_t at = 0;
    return v && !v->array && lg_gguf_next(v, &at, s, len_bytes);
}

bool lg_gguf_text_is(const lg_gguf_value *v, const char *s) {
    const char *text;
    size_t len;
    return lg_gguf_text(v, &text, &len) && len == strlen(s) && memcmp(text, s, len) == 0;
}

const char *lg_gguf_show(const lg_gguf_value *v, char *buf, size_t size_bytes) {
    const char *s;
    size_t len;
    int64_t n;
    double x;
    bool yes;
    if (!v)
        snprintf(buf, size_bytes, "nothing");
    else if (v->array)
        snprintf(buf, size_bytes, "an array of %llu %s", (unsigned long long)v->n,
                 type_names[v->type]);
    else if (lg_gguf_text(v, &s, &len))
        snprintf(buf, size_bytes, "\"%.*s\"", len < 40 ? (int)len : 40, s);
    else if (lg_gguf_int(v, 0, &n))
        snprintf(buf, size_bytes, "%lld (%s)", (long long)n, type_names[v->type]);
    else if (lg_gguf_float(v, &x))
        snprintf(buf, size_bytes, "%g (%s)", x, type_names[v->type]);
    else if (lg_gguf_bool(v, 0, &yes))
        snprintf(buf, size_bytes, "%s", yes ? "true" : "false");
    else
        snprintf(buf, size_bytes, "a %s out of range", type_names[v->type]);
    for (char *p = buf; *p; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f) *p = '?';
    return buf;
}
