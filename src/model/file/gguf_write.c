/* gguf_write.c - write a GGUF file: see gguf_write.h.
 *
 * Keys and tensor entries are kept as the bytes of the file until start.  Offsets count from the data section, which starts,
 * like every tensor, at a multiple of 32.
 * Thread: one.  Memory: two growing buffers and one number a tensor.  Test: tests/unit/test_togguf.c */
#include "model/file/gguf_write.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ALIGN 32

struct lg_gguf_write {
    char *path, *part; /* owned: its name, and the one it has until it is finished */
    FILE *file;
    lg_buf keys, tensors; /* as in the file */
    uint64_t n_key, n_tensor;
    lg_buf ends; /* uint64_t [n_tensor]: first byte after each tensor, of the data section */
    uint64_t data_bytes; /* declared, padded */
    uint64_t at;         /* written of the data section */
    uint64_t next;       /* tensor that `at` is in */
    uint64_t n_bytes;    /* written in all */
};

static void put32(lg_buf *b, uint32_t v) {
    lg_buf_put(b, &v, sizeof v);
}

static void put64(lg_buf *b, uint64_t v) {
    lg_buf_put(b, &v, sizeof v);
}

void lg_gguf_write_put_text(lg_buf *b, const char *s, size_t len_bytes) {
    put64(b, len_bytes);
    lg_buf_put(b, s, len_bytes);
}

static lg_status fail_io(const lg_gguf_write *w, lg_err *err) {
    return LG_FAIL(err, LG_E_IO, "%s: cannot be written: %s", w->part, strerror(errno));
}

lg_status lg_gguf_write_open(const char *path, lg_gguf_write **out, lg_err *err) {
    lg_gguf_write *w = lg_mem_alloc(sizeof *w);
    size_t len = strlen(path);
    *out = w;
    if (w) w->path = lg_mem_strdup(path);
    if (w) w->part = lg_mem_alloc(len + sizeof ".part");
    if (!w || !w->path || !w->part) {
        lg_gguf_write_close(out);
        return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    }
    snprintf(w->part, len + sizeof ".part", "%s.part", path);
    w->file = fopen(w->part, "wb");
    if (w->file) return LG_OK;
    lg_status st = fail_io(w, err);
    lg_gguf_write_close(out);
    return st;
}

/* ---- metadata ---- */

static void put_key(lg_gguf_write *w, const char *key, lg_gguf_type type) {
    lg_gguf_write_put_text(&w->keys, key, strlen(key));
    put32(&w->keys, type);
    w->n_key++;
}

void lg_gguf_write_u32(lg_gguf_write *w, const char *key, uint32_t v) {
    put_key(w, key, LG_GGUF_U32);
    put32(&w->keys, v);
}

void lg_gguf_write_i32(lg_gguf_write *w, const char *key, int32_t v) {
    put_key(w, key, LG_GGUF_I32);
    lg_buf_put(&w->keys, &v, sizeof v);
}

void lg_gguf_write_f32(lg_gguf_write *w, const char *key, float v) {
    put_key(w, key, LG_GGUF_F32);
    lg_buf_put(&w->keys, &v, sizeof v);
}

void lg_gguf_write_bool(lg_gguf_write *w, const char *key, bool v) {
    put_key(w, key, LG_GGUF_BOOL);
    lg_buf_putc(&w->keys, v);
}

void lg_gguf_write_text(lg_gguf_write *w, const char *key, const char *s, size_t len_bytes) {
    put_key(w, key, LG_GGUF_STR);
    lg_gguf_write_put_text(&w->keys, s, len_bytes);
}

void lg_gguf_write_array(lg_gguf_write *w, const char *key, lg_gguf_type type, uint64_t n,
                         const void *data, size_t len_bytes) {
    put_key(w, key, LG_GGUF_ARRAY);
    put32(&w->keys, type);
    put64(&w->keys, n);
    lg_buf_put(&w->keys, data, len_bytes);
}

/* ---- tensors ---- */

static uint64_t padded(uint64_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

void lg_gguf_write_tensor(lg_gguf_write *w, const char *name, lg_dtype type, uint32_t n_dim,
                          const uint64_t *dim) {
    uint64_t bytes = dim[0] / lg_dtype_block(type) * lg_dtype_block_bytes(type);
    LG_ASSERT(n_dim >= 1 && n_dim <= 4 && dim[0] % lg_dtype_block(type) == 0);
    lg_gguf_write_put_text(&w->tensors, name, strlen(name));
    put32(&w->tensors, n_dim);
    for (uint32_t i = 0; i < n_dim; i++) {
        put64(&w->tensors, dim[i]);
        if (i) bytes *= dim[i];
    }
    put32(&w->tensors, lg_gguf_type_id(type));
    put64(&w->tensors, w->data_bytes);
    put64(&w->ends, w->data_bytes + bytes);
    w->data_bytes = padded(w->data_bytes + bytes);
    w->n_tensor++;
}

/* ---- the file ---- */

static lg_status put_file(lg_gguf_write *w, const void *data, size_t len_bytes, lg_err *err) {
    if (len_bytes && fwrite(data, 1, len_bytes, w->file) != len_bytes) return fail_io(w, err);
    w->n_bytes += len_bytes;
    return LG_OK;
}

static lg_status put_padding(lg_gguf_write *w, uint64_t n, lg_err *err) {
    static const uint8_t zero[ALIGN];
    return put_file(w, zero, (size_t)n, err);
}

lg_status lg_gguf_write_start(lg_gguf_write *w, lg_err *err) {
    lg_buf head = {0};
    lg_buf_puts(&head, "GGUF");
    put32(&head, 3);
    put64(&head, w->n_tensor);
    put64(&head, w->n_key);
    lg_status st = LG_OK;
    if (head.failed || w->keys.failed || w->tensors.failed || w->ends.failed)
        st = LG_FAIL(err, LG_E_NOMEM, "%s: no memory for its tables", w->path);
    if (st == LG_OK) st = put_file(w, head.data, head.len_bytes, err);
    if (st == LG_OK) st = put_file(w, w->keys.data, w->keys.len_bytes, err);
    if (st == LG_OK) st = put_file(w, w->tensors.data, w->tensors.len_bytes, err);
    if (st == LG_OK) st = put_padding(w, padded(w->n_bytes) - w->n_bytes, err);
    lg_buf_fini(&head);
    return st;
}

lg_status lg_gguf_write_data(lg_gguf_write *w, const void *data, size_t len_bytes,
                             lg_err *err) {
    uint64_t end;
    LG_ASSERT(w->next < w->n_tensor);
    memcpy(&end, w->ends.data + w->next * sizeof end, sizeof end);
    LG_ASSERT(len_bytes <= end - w->at);
    LG_TRY(put_file(w, data, len_bytes, err));
    w->at += len_bytes;
    if (w->at < end) return LG_OK;
    w->next++;
    w->at = padded(end);
    return put_padding(w, w->at - end, err);
}

uint64_t lg_gguf_write_bytes(const lg_gguf_write *w) {
    return w->n_bytes;
}

lg_status lg_gguf_write_finish(lg_gguf_write **out, lg_err *err) {
    lg_gguf_write *w = *out;
    lg_status st = LG_OK;
    LG_ASSERT(w->next == w->n_tensor && w->at == w->data_bytes);
    if (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0) st = fail_io(w, err);
    if (fclose(w->file) != 0 && st == LG_OK) st = fail_io(w, err);
    w->file = NULL;
    if (st == LG_OK && rename(w->part, w->path) != 0)
        st = LG_FAIL(err, LG_E_IO, "%s: cannot be put in its place: %s", w->path,
                     strerror(errno));
    if (st != LG_OK) unlink(w->part);
    lg_gguf_write_close(out);
    return st;
}

void lg_gguf_write_close(lg_gguf_write **out) {
    lg_gguf_write *w = *out;
    if (!w) return;
    if (w->file) {
        fclose(w->file);
        unlink(w->part);
    }
    lg_buf_fini(&w->keys);
    lg_buf_fini(&w->tensors);
    lg_buf_fini(&w->ends);
    lg_mem_free(w->path);
    lg_mem_free(w->part);
    LG_FREE(*out);
}
