/* gguf_rig.c - see gguf_rig.h. */
#include "gguf_rig.h"

#include "base/num.h"
#include "model/file/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_U32 = 4, TYPE_STR = 8, TYPE_ARRAY = 9 };

static void put_u32(lg_buf *b, uint32_t x) {
    lg_buf_put(b, &x, sizeof x);
}

static void put_u64(lg_buf *b, uint64_t x) {
    lg_buf_put(b, &x, sizeof x);
}

static void put_text(lg_buf *b, const char *s) {
    put_u64(b, strlen(s));
    lg_buf_puts(b, s);
}

static uint32_t type_id(const char *name) {
    static const struct {
        const char *name;
        uint32_t id;
    } types[] = {{"F32", 0}, {"F16", 1}, {"Q8_0", 8}, {"Q4_K", 12}, {"Q6_K", 14}, {"BF16", 30}};
    for (size_t i = 0; i < LG_COUNT(types); i++)
        if (strcmp(types[i].name, name) == 0) return types[i].id;
    fprintf(stderr, "the rig does not know the type %s\n", name);
    abort();
}

void gguf_rig_load(gguf_rig *r, const char *path) {
    lg_gguf *g = NULL;
    lg_err err = {0};
    *r = (gguf_rig){.version = 3, .align = 32};
    if (lg_gguf_open(path, &g, &err) != LG_OK) fprintf(stderr, "%s\n", err.msg);
    LG_ASSERT(g && lg_gguf_count(g) < GGUF_RIG_MAX_KEY);
    for (size_t i = 0; i < lg_gguf_count(g); i++) {
        const lg_gguf_value *v = lg_gguf_at(g, i);
        lg_buf *b = &gguf_rig_get_key(r, v->key)->value;
        lg_buf_clear(b);
        if (v->array) put_u32(b, TYPE_ARRAY);
        put_u32(b, v->type);
        if (v->array) put_u64(b, v->n);
        lg_buf_put(b, v->data, v->len_bytes);
    }
    lg_tensors *set = lg_gguf_tensors(g);
    LG_ASSERT(lg_tensors_count(set) < GGUF_RIG_MAX_TENSOR);
    for (size_t i = 0; i < lg_tensors_count(set); i++) {
        const lg_view *v = lg_tensors_at(set, i);
        gguf_rig_tensor *t = &r->tensor[r->n_tensor++];
        snprintf(t->name, sizeof t->name, "%s", v->name);
        t->type = type_id(v->type_name);
        t->n_dim = v->n_dim;
        for (uint32_t d = 0; d < v->n_dim; d++) t->dim[d] = v->shape[v->n_dim - 1 - d];
        lg_buf_put(&t->data, v->data, v->len_bytes);
    }
    lg_gguf_close(&g);
}

void gguf_rig_fini(gguf_rig *r) {
    for (size_t i = 0; i < r->n_key; i++) lg_buf_fini(&r->key[i].value);
    for (size_t i = 0; i < r->n_tensor; i++) lg_buf_fini(&r->tensor[i].data);
    *r = (gguf_rig){0};
}

static void pad(lg_buf *b, size_t start, uint64_t align) {
    while ((b->len_bytes - start) % align != 0) lg_buf_putc(b, 0);
}

void gguf_rig_write(const gguf_rig *r, lg_buf *out) {
    size_t start = out->len_bytes;
    uint64_t at = 0;
    lg_buf_puts(out, "GGUF");
    put_u32(out, r->version);
    put_u64(out, r->say_tensors ? r->say_tensors : r->n_tensor);
    put_u64(out, r->say_keys ? r->say_keys : r->n_key);
    for (size_t i = 0; i < r->n_key; i++) {
        put_text(out, r->key[i].name);
        lg_buf_put(out, r->key[i].value.data, r->key[i].value.len_bytes);
    }
    for (size_t i = 0; i < r->n_tensor; i++) {
        const gguf_rig_tensor *t = &r->tensor[i];
        put_text(out, t->name);
        put_u32(out, t->n_dim);
        for (uint32_t d = 0; d < t->n_dim && d < 8; d++) put_u64(out, t->dim[d]);
        put_u32(out, t->type);
        put_u64(out, t->placed ? t->offset : at);
        at = (at + t->data.len_bytes + r->align - 1) / r->align * r->align;
    }
    pad(out, start, r->align);
    for (size_t i = 0; i < r->n_tensor; i++) {
        lg_buf_put(out, r->tensor[i].data.data, r->tensor[i].data.len_bytes);
        pad(out, start, r->align);
    }
    LG_ASSERT(!out->failed);
}

gguf_rig_key *gguf_rig_get_key(gguf_rig *r, const char *name) {
    for (size_t i = 0; i < r->n_key; i++)
        if (strcmp(r->key[i].name, name) == 0) return &r->key[i];
    LG_ASSERT(r->n_key < GGUF_RIG_MAX_KEY);
    gguf_rig_key *k = &r->key[r->n_key++];
    *k = (gguf_rig_key){0};
    snprintf(k->name, sizeof k->name, "%s", name);
    return k;
}

gguf_rig_tensor *gguf_rig_get_tensor(gguf_rig *r, const char *name) {
    for (size_t i = 0; i < r->n_tensor; i++)
        if (strcmp(r->tensor[i].name, name) == 0) return &r->tensor[i];
    fprintf(stderr, "no tensor %s\n", name);
    abort();
}

void gguf_rig_drop_key(gguf_rig *r, const char *name) {
    gguf_rig_key *k = gguf_rig_get_key(r, name), *last = &r->key[r->n_key - 1];
    lg_buf_fini(&k->value);
    memmove(k, k + 1, (size_t)(last - k) * sizeof *k);
    r->n_key--;
}

void gguf_rig_drop_tensor(gguf_rig *r, const char *name) {
    gguf_rig_tensor *t = gguf_rig_get_tensor(r, name), *last = &r->tensor[r->n_tensor - 1];
    lg_buf_fini(&t->data);
    memmove(t, t + 1, (size_t)(last - t) * sizeof *t);
    r->n_tensor--;
}

void gguf_rig_set_raw(gguf_rig *r, const char *key, uint32_t type, const void *data,
                      size_t len_bytes) {
    lg_buf *b = &gguf_rig_get_key(r, key)->value;
    lg_buf_clear(b);
    put_u32(b, type);
    lg_buf_put(b, data, len_bytes);
}

void gguf_rig_set_u32(gguf_rig *r, const char *key, uint32_t x) {
    gguf_rig_set_raw(r, key, TYPE_U32, &x, sizeof x);
}

void gguf_rig_set_str(gguf_rig *r, const char *key, const char *s) {
    lg_buf b = {0};
    put_text(&b, s);
    gguf_rig_set_raw(r, key, TYPE_STR, b.data, b.len_bytes);
    lg_buf_fini(&b);
}

void gguf_rig_set_string_at(gguf_rig *r, const char *key, uint64_t i, const char *s) {
    lg_buf *b = &gguf_rig_get_key(r, key)->value, out = {0};
    size_t at = 16;
    for (; i > 0; i--) at += 8 + lg_num_load64(b->data + at);
    size_t end = at + 8 + lg_num_load64(b->data + at);
    LG_ASSERT(end <= b->len_bytes);
    lg_buf_put(&out, b->data, at);
    put_text(&out, s);
    lg_buf_put(&out, b->data + end, b->len_bytes - end);
    lg_buf_fini(b);
    *b = out;
}

void gguf_rig_set_i32_at(gguf_rig *r, const char *key, uint64_t i, int32_t x) {
    lg_buf *b = &gguf_rig_get_key(r, key)->value;
    LG_ASSERT(16 + 4 * i + 4 <= b->len_bytes);
    memcpy(b->data + 16 + 4 * i, &x, sizeof x);
}
