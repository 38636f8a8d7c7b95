/* fixture.c - model folders to damage: see fixture.h.  Every failure of its own is an assertion. */
#include "fixture.h"

#include "model/file/safetensors.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct path {
    char s[512];
} path;

static path in_folder(const lg_fixture *f, const char *file) {
    path p;
    int n = snprintf(p.s, sizeof p.s, "%s/%s", f->path, file);
    LG_ASSERT(n > 0 && (size_t)n < sizeof p.s);
    return p;
}

const char *lg_fixture_source(const char *name, char *buf, size_t size_bytes) {
    const char *root = getenv("LG_SOURCE_DIR");
    int n = snprintf(buf, size_bytes, "%s/%s", root ? root : ".", name);
    LG_ASSERT(n > 0 && (size_t)n < size_bytes);
    return buf;
}

void lg_fixture_init(lg_fixture *f, const char *source) {
    char from[400], target[700];
    const char *tmp = getenv("TMPDIR");
    snprintf(f->path, sizeof f->path, "%s/lignum-XXXXXX", tmp ? tmp : "/tmp");
    LG_ASSERT(mkdtemp(f->path));
    lg_fixture_source(source, from, sizeof from);
    DIR *d = opendir(from);
    LG_ASSERT(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        int n = snprintf(target, sizeof target, "%s/%s", from, e->d_name);
        LG_ASSERT(n > 0 && (size_t)n < sizeof target);
        LG_ASSERT(symlink(target, in_folder(f, e->d_name).s) == 0);
    }
    closedir(d);
}

void lg_fixture_remove(const lg_fixture *f, const char *file) {
    LG_ASSERT(remove(in_folder(f, file).s) == 0);
}

void lg_fixture_fini(lg_fixture *f) {
    DIR *d = opendir(f->path);
    LG_ASSERT(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            lg_fixture_remove(f, e->d_name);
    closedir(d);
    LG_ASSERT(rmdir(f->path) == 0);
}

lg_buf lg_fixture_read(const lg_fixture *f, const char *file) {
    lg_buf b = {0};
    char part[1 << 15];
    FILE *in = fopen(in_folder(f, file).s, "rb");
    LG_ASSERT(in);
    for (size_t n; (n = fread(part, 1, sizeof part, in)) > 0;) lg_buf_put(&b, part, n);
    fclose(in);
    LG_ASSERT(!b.failed);
    return b;
}

void lg_fixture_write(const lg_fixture *f, const char *file, const void *data,
                      size_t len_bytes) {
    path p = in_folder(f, file);
    unlink(p.s);
    FILE *out = fopen(p.s, "wb");
    LG_ASSERT(out);
    LG_ASSERT(fwrite(data, 1, len_bytes, out) == len_bytes);
    LG_ASSERT(fclose(out) == 0);
}

void lg_fixture_make_dir(const lg_fixture *f, const char *file) {
    unlink(in_folder(f, file).s);
    LG_ASSERT(mkdir(in_folder(f, file).s, 0700) == 0);
}

/* Append text[len] to out with its first `from` replaced. */
static void put_replaced(lg_buf *out, const char *text, size_t len, const char *from,
                         const char *to) {
    const char *at = memmem(text, len, from, strlen(from));
    if (!at) fprintf(stderr, "fixture: no \"%s\" to replace\n", from);
    LG_ASSERT(at);
    size_t before = (size_t)(at - text), after = before + strlen(from);
    lg_buf_put(out, text, before);
    lg_buf_puts(out, to);
    lg_buf_put(out, text + after, len - after);
}

void lg_fixture_replace(const lg_fixture *f, const char *file, const char *from,
                        const char *to) {
    lg_buf b = lg_fixture_read(f, file), out = {0};
    put_replaced(&out, b.data, b.len_bytes, from, to);
    lg_fixture_write(f, file, out.data, out.len_bytes);
    lg_buf_fini(&b);
    lg_buf_fini(&out);
}

void lg_fixture_replace_header(const lg_fixture *f, const char *file, const char *from,
                               const char *to) {
    lg_buf b = lg_fixture_read(f, file), head = {0}, out = {0};
    uint64_t n;
    memcpy(&n, b.data, sizeof n);
    put_replaced(&head, b.data + 8, (size_t)n, from, to);
    uint64_t n_new = head.len_bytes;
    lg_buf_put(&out, &n_new, sizeof n_new);
    lg_buf_put(&out, head.data, head.len_bytes);
    lg_buf_put(&out, b.data + 8 + n, b.len_bytes - 8 - (size_t)n);
    lg_fixture_write(f, file, out.data, out.len_bytes);
    lg_buf_fini(&b);
    lg_buf_fini(&head);
    lg_buf_fini(&out);
}

/* ---- tensors ---- */

static void put_entry(lg_buf *head, lg_buf *data, const char *name, const char *type,
                      const char *shape, const void *bytes, size_t len) {
    size_t begin = data->len_bytes;
    lg_buf_put(data, bytes, len);
    lg_buf_printf(head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                  head->len_bytes > 1 ? "," : "", name, type, shape, begin, data->len_bytes);
}

static void put_zeros(lg_buf *head, lg_buf *data, const char *name, const char *type,
                      const char *shape) {
    size_t n = strcmp(type, "F32") == 0 || strcmp(type, "I32") == 0    ? 4
               : strcmp(type, "BF16") == 0 || strcmp(type, "F16") == 0 ? 2
               : strcmp(type, "F64") == 0                              ? 8
                                                                       : 1;
    for (const char *p = shape; *p;) {
        char *end;
        unsigned long d = strtoul(p, &end, 10);
        if (end == p) {
            p++;
            continue;
        }
        n *= d;
        p = end;
    }
    void *zeros = lg_mem_alloc(n);
    put_entry(head, data, name, type, shape, zeros, n);
    lg_mem_free(zeros);
}

void lg_fixture_edit_tensor(const lg_fixture *f, lg_fixture_edit edit, const char *name,
                            const char *arg, const char *shape) {
    lg_tensors *set;
    lg_err err;
    lg_buf head = {0}, data = {0};
    bool met = false;
    LG_ASSERT(lg_st_open(f->path, &set, &err) == LG_OK);
    lg_buf_putc(&head, '{');
    for (size_t i = 0; i < lg_tensors_count(set); i++) {
        const lg_view *v = lg_tensors_at(set, i);
        char text[128];
        const char *as = v->name;
        lg_tensors_shape(v->n_dim, v->shape, text, sizeof text);
        bool hit = strcmp(v->name, name) == 0;
        met = met || hit;
        if (hit && (edit == LG_FIXTURE_DROP || edit == LG_FIXTURE_ADD)) continue;
        if (hit && edit == LG_FIXTURE_RENAME) as = arg;
        put_entry(&head, &data, as, v->type_name, text, v->data, (size_t)v->len_bytes);
        if (hit && edit == LG_FIXTURE_POISON) memset(data.data + data.len_bytes - 4, 0xff, 4);
    }
    LG_ASSERT(met || edit == LG_FIXTURE_ADD);
    if (edit == LG_FIXTURE_ADD) put_zeros(&head, &data, name, arg, shape);
    lg_buf_putc(&head, '}');
    lg_tensors_close(&set);
    lg_buf out = {0};
    uint64_t n = head.len_bytes;
    lg_buf_put(&out, &n, sizeof n);
    lg_buf_put(&out, head.data, head.len_bytes);
    lg_buf_put(&out, data.data, data.len_bytes);
    LG_ASSERT(!out.failed && !head.failed && !data.failed);
    unlink(in_folder(f, "model.safetensors.index.json").s);
    lg_fixture_write(f, "model.safetensors", out.data, out.len_bytes);
    lg_buf_fini(&head);
    lg_buf_fini(&data);
    lg_buf_fini(&out);
}
