/* tensors.c - mapped files and their views: see tensors.h.
 *
 * Thread: any, one at a time.  Memory: views, names and paths on the heap, data mapped, until close.
 * Test: tests/unit/test_safetensors.c, tests/unit/test_gguf.c */
#include "model/weights/tensors.h"

#include "base/buf.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* One mapped file. */
typedef struct mapping {
    char *path;
    uint8_t *map;
    size_t len_bytes;
    int64_t state[5]; /* size, time of change, inode, device */
} mapping;

struct lg_tensors {
    mapping *file;
    size_t n_file;
    char **names; /* blocks of text that views point into */
    size_t n_names;
    lg_view *view; /* sorted by name once finished */
    size_t n_view;
};

/* ---- use ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const lg_view *)a)->name, ((const lg_view *)b)->name);
}

lg_view *lg_tensors_find(lg_tensors *set, const char *name) {
    lg_view key = {.name = name};
    if (set->n_view == 0) return NULL;
    return bsearch(&key, set->view, set->n_view, sizeof key, by_name);
}

size_t lg_tensors_count(const lg_tensors *set) {
    return set->n_view;
}

lg_view *lg_tensors_at(lg_tensors *set, size_t i) {
    return i < set->n_view ? &set->view[i] : NULL;
}

/* Where a view's data begins in its file. */
static uint64_t place_of(const lg_tensors *set, const lg_view *v) {
    for (size_t i = 0; i < set->n_file; i++)
        if (set->file[i].path == v->file) return (uint64_t)(v->data - set->file[i].map);
    return 0;
}

uint64_t lg_tensors_identity(const lg_tensors *set) {
    uint64_t h = set->n_view;
    for (size_t i = 0; i < set->n_file; i++)
        h = lg_hash_add(h, set->file[i].state, sizeof set->file[i].state);
    for (size_t i = 0; i < set->n_view; i++) {
        const lg_view *v = &set->view[i];
        const uint64_t n[] = {place_of(set, v), v->len_bytes, v->n_dim};
        h = lg_hash_add(h, v->name, strlen(v->name));
        h = lg_hash_add(h, v->type_name, strlen(v->type_name));
        h = lg_hash_add(h, v->shape, v->n_dim * sizeof *v->shape);
        h = lg_hash_add(h, n, sizeof n);
    }
    return h;
}

void lg_tensors_release(lg_tensors *set) {
    for (size_t i = 0; i < set->n_file; i++)
        madvise(set->file[i].map, set->file[i].len_bytes, MADV_DONTNEED);
}

void lg_tensors_close(lg_tensors **set) {
    lg_tensors *s = *set;
    if (!s) return;
    for (size_t i = 0; i < s->n_file; i++) {
        if (s->file[i].map) munmap(s->file[i].map, s->file[i].len_bytes);
        lg_mem_free(s->file[i].path);
    }
    for (size_t i = 0; i < s->n_names; i++) lg_mem_free(s->names[i]);
    lg_mem_free(s->file);
    lg_mem_free(s->names);
    lg_mem_free(s->view);
    LG_FREE(*set);
}

const char *lg_tensors_shape(uint32_t n_dim, const uint64_t *shape, char *buf,
                             size_t size_bytes) {
    size_t len = (size_t)snprintf(buf, size_bytes, "[");
    for (uint32_t i = 0; i < n_dim && len < size_bytes; i++)
        len += (size_t)snprintf(buf + len, size_bytes - len, "%s%llu", i ? ", " : "",
                                (unsigned long long)shape[i]);
    if (len < size_bytes) snprintf(buf + len, size_bytes - len, "]");
    return buf;
}

/* ---- making one ---- */

lg_status lg_tensors_open(const char *what, lg_tensors **set, lg_err *err) {
    *set = lg_mem_alloc(sizeof **set);
    return *set ? LG_OK : LG_FAIL(err, LG_E_NOMEM, "%s: no memory", what);
}

/* Map a regular file; its size is checked here and trusted afterwards. */
static lg_status map_file(mapping *m, const char *format, lg_err *err) {
    struct stat info;
    int fd = open(m->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return LG_FAIL(err, LG_E_IO, "%s: cannot be opened: %s", m->path, strerror(errno));
    lg_status st = LG_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        st = LG_FAIL(err, LG_E_IO, "%s: not a regular file", m->path);
    } else if (info.st_size == 0) {
        st = LG_FAIL(err, LG_E_FORMAT, "%s: the file is empty, expected %s", m->path, format);
    } else {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            st = LG_FAIL(err, LG_E_IO, "%s: cannot be mapped: %s", m->path, strerror(errno));
        else
            m->map = map, m->len_bytes = (size_t)info.st_size;
        const int64_t state[] = {(int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec,
                                 (int64_t)info.st_mtim.tv_nsec, (int64_t)info.st_ino,
                                 (int64_t)info.st_dev};
        memcpy(m->state, state, sizeof state);
    }
    close(fd);
    return st;
}

char *lg_tensors_path(const char *folder, const char *name) {
    lg_buf b = {0};
    lg_buf_puts(&b, folder);
    if (name) lg_buf_printf(&b, "/%s", name);
    char *s = b.failed ? NULL : lg_mem_strdup(lg_buf_str(&b));
    lg_buf_fini(&b);
    return s;
}

lg_status lg_tensors_map(lg_tensors *set, const char *folder, const char *name,
                         const char *format, lg_tensors_file *file, lg_err *err) {
    mapping *all = lg_mem_realloc(set->file, (set->n_file + 1) * sizeof *all);
    if (!all) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", folder);
    set->file = all;
    mapping *m = &all[set->n_file];
    *m = (mapping){.path = lg_tensors_path(folder, name)};
    if (!m->path) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", folder);
    set->n_file++;
    LG_TRY(map_file(m, format, err));
    *file = (lg_tensors_file){m->path, m->map, m->len_bytes};
    return LG_OK;
}

lg_status lg_tensors_add(lg_tensors *set, const lg_view *view, size_t n, char *names,
                         lg_err *err) {
    if (names) {
        char **kept = lg_mem_realloc(set->names, (set->n_names + 1) * sizeof *kept);
        if (!kept) {
            lg_mem_free(names);
            return LG_FAIL(err, LG_E_NOMEM, "no memory for names of tensors");
        }
        set->names = kept;
        kept[set->n_names++] = names;
    }
    if (n == 0) return LG_OK;
    lg_view *all = lg_mem_realloc(set->view, (set->n_view + n) * sizeof *all);
    if (!all) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", view->file);
    memcpy(all + set->n_view, view, n * sizeof *all);
    set->view = all;
    set->n_view += n;
    return LG_OK;
}

lg_status lg_tensors_sort(lg_view *view, size_t n, lg_err *err) {
    if (n) qsort(view, n, sizeof *view, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(view[i - 1].name, view[i].name) == 0)
            return LG_FAIL(err, LG_E_FORMAT, "%s: tensor %s: given twice (also in %s)",
                           view[i].file, view[i].name, view[i - 1].file);
    return LG_OK;
}

lg_status lg_tensors_finish(lg_tensors *set, lg_err *err) {
    return lg_tensors_sort(set->view, set->n_view, err);
}

bool lg_tensors_is_name(const char *s, size_t len_bytes) {
    for (size_t i = 0; i < len_bytes; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) return false;
    return len_bytes > 0 && len_bytes < 512;
}
