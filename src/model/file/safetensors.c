/* safetensors.c - map tensor files and check their tables.
 *
 * In:  a folder (or one file).   Out: lg_tensors, one lg_view a tensor, sorted by name.
 * A file is: 8 bytes header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.  The format's own
 * rule holds here too: the tensors cover the data without gap or overlap.  Nothing is used before it is checked, and no
 * product or sum is taken unchecked.
 * Thread: any, one at a time.  Memory: views and names on the heap, data mapped, until close.
 * Test: tests/unit/test_safetensors.c, tests/unit/test_loader.c, fuzz/fuzz_safetensors.c */
#include "model/file/safetensors.h"

#include "base/num.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_HEADER    100000000u /* bytes, the format's own limit */
#define MAX_INDEX     (256u << 20)
#define MAX_DEPTH     8
#define MAX_SHARD     10000
#define INDEX_NAME    "model.safetensors.index.json"
#define SINGLE_NAME   "model.safetensors"
#define LEN_BYTES     8 /* of the header length */
#define METADATA_NAME "__metadata__"

/* Tensors of one file. */
typedef struct table {
    lg_view *view;
    size_t n_view;
    char *names;
} table;

/* Every type of the format whose elements are whole bytes. */
static const struct {
    const char *name;
    uint32_t bytes;
    lg_dtype type;
} types[] = {{"F32", 4, LG_F32},      {"BF16", 2, LG_BF16},       {"F16", 2, LG_F16},
             {"F8_E4M3", 1, LG_E4M3}, {"F8_E5M2", 1, LG_N_DTYPE}, {"F8_E8M0", 1, LG_N_DTYPE},
             {"F64", 8, LG_N_DTYPE},  {"I64", 8, LG_N_DTYPE},     {"I32", 4, LG_N_DTYPE},
             {"I16", 2, LG_N_DTYPE},  {"I8", 1, LG_N_DTYPE},      {"U64", 8, LG_N_DTYPE},
             {"U32", 4, LG_N_DTYPE},  {"U16", 2, LG_N_DTYPE},     {"U8", 1, LG_N_DTYPE},
             {"BOOL", 1, LG_N_DTYPE}, {"C64", 8, LG_N_DTYPE}};

/* ---- one file ---- */

static lg_status read_type(const lg_json *v, lg_view *t, uint32_t *elem_bytes, lg_err *err) {
    if (!v || v->kind != LG_JSON_STRING)
        return LG_FAIL(err, LG_E_FORMAT, "%s: tensor %s: dtype: missing or no string", t->file,
                       t->name);
    for (size_t i = 0; i < LG_COUNT(types); i++)
        if (lg_json_is(v, types[i].name)) {
            t->type = types[i].type;
            t->type_name = types[i].name;
            *elem_bytes = types[i].bytes;
            return LG_OK;
        }
    return LG_FAIL(err, LG_E_UNSUPPORTED,
                   "%s: tensor %s: dtype: found an unknown one, expected BF16, F16, F32, "
                   "F8_E4M3 or another of the format",
                   t->file, t->name);
}

/* Shape, and the bytes it needs. */
static lg_status read_shape(const lg_json *v, lg_view *t, uint32_t elem_bytes,
                            uint64_t *need_bytes, lg_err *err) {
    if (!v || v->kind != LG_JSON_ARRAY || v->n_child > LG_MAX_DIM)
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: tensor %s: shape: expected a list of at most %d integers", t->file,
                       t->name, LG_MAX_DIM);
    uint64_t need = elem_bytes;
    t->n_dim = v->n_child;
    uint32_t i = 0;
    for (const lg_json *d = v->child; d; d = d->next, i++) {
        if (!lg_json_u64(d, &t->shape[i]))
            return LG_FAIL(err, LG_E_FORMAT, "%s: tensor %s: shape: expected integers", t->file,
                           t->name);
        if (!lg_num_mul(need, t->shape[i], &need)) {
            char buf[128];
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: tensor %s: shape %s: the product overflows 64 bits", t->file,
                           t->name, lg_tensors_shape(i + 1, t->shape, buf, sizeof buf));
        }
    }
    *need_bytes = need;
    return LG_OK;
}

/* The three members of one table entry; t->name and t->file are set. */
static lg_status read_entry(const lg_json *v, const uint8_t *data, uint64_t data_bytes,
                            lg_view *t, lg_err *err) {
    const lg_json *offsets = lg_json_get(v, "data_offsets");
    uint64_t need = 0, begin, end;
    uint32_t elem_bytes = 0;
    if (v->kind != LG_JSON_OBJECT || v->n_child != 3)
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: tensor %s: expected an object of dtype, shape and data_offsets",
                       t->file, t->name);
    LG_TRY(read_type(lg_json_get(v, "dtype"), t, &elem_bytes, err));
    LG_TRY(read_shape(lg_json_get(v, "shape"), t, elem_bytes, &need, err));
    if (!offsets || offsets->kind != LG_JSON_ARRAY || offsets->n_child != 2 ||
        !lg_json_u64(offsets->child, &begin) || !lg_json_u64(offsets->child->next, &end))
        return LG_FAIL(err, LG_E_FORMAT, "%s: tensor %s: data_offsets: expected two integers",
                       t->file, t->name);
    if (begin > end || end > data_bytes)
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: tensor %s: data_offsets: found [%llu, %llu], expected a range of "
                       "the %llu data bytes the file holds",
                       t->file, t->name, (unsigned long long)begin, (unsigned long long)end,
                       (unsigned long long)data_bytes);
    if (end - begin != need) {
        char buf[128];
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: tensor %s: data_offsets: found %llu bytes, expected %llu for %s %s",
                       t->file, t->name, (unsigned long long)(end - begin),
                       (unsigned long long)need, t->type_name,
                       lg_tensors_shape(t->n_dim, t->shape, buf, sizeof buf));
    }
    t->data = data + begin;
    t->len_bytes = need;
    return LG_OK;
}

static int by_place(const void *a, const void *b) {
    const lg_view *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->len_bytes > y->len_bytes) - (x->len_bytes < y->len_bytes);
}

/* No gap, no overlap, nothing after the last tensor. */
static lg_status check_cover(table *t, const uint8_t *data, uint64_t data_bytes,
                             const char *what, lg_err *err) {
    const uint8_t *at = data;
    if (t->n_view) qsort(t->view, t->n_view, sizeof *t->view, by_place);
    for (size_t i = 0; i < t->n_view; i++) {
        const lg_view *v = &t->view[i];
        if (v->data != at)
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: tensor %s: data_offsets: found a begin of %llu, expected %llu, "
                           "where the tensor before it ends (%s)",
                           what, v->name, (unsigned long long)(v->data - data),
                           (unsigned long long)(at - data), v->data < at ? "overlap" : "gap");
        at += v->len_bytes;
    }
    if (at != data + data_bytes)
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: found %llu data bytes, expected %llu by its table", what,
                       (unsigned long long)data_bytes, (unsigned long long)(at - data));
    return LG_OK;
}

static void table_fini(table *t) {
    LG_FREE(t->view);
    LG_FREE(t->names);
}

/* Fill *t (zeroed) from a parsed header. */
static lg_status fill_table(const lg_json *root, const uint8_t *data, uint64_t data_bytes,
                            const char *what, table *t, lg_err *err) {
    if (root->kind != LG_JSON_OBJECT)
        return LG_FAIL(err, LG_E_FORMAT, "%s: header: found %s, expected an object", what,
                       lg_json_kind_name(root->kind));
    size_t names_bytes = 0;
    for (const lg_json *v = root->child; v; v = v->next) names_bytes += v->key_len + 1;
    t->view = lg_mem_calloc(root->n_child, sizeof *t->view);
    t->names = lg_mem_alloc(names_bytes);
    if (!t->view || !t->names) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", what);
    char *name = t->names;
    bool metadata = false;
    for (const lg_json *v = root->child; v; v = v->next) {
        if (!lg_tensors_is_name(v->key, v->key_len))
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: header: a tensor name is empty, too long or not printable",
                           what);
        if (strcmp(v->key, METADATA_NAME) == 0) {
            if (metadata || v->kind != LG_JSON_OBJECT)
                return LG_FAIL(err, LG_E_FORMAT,
                               "%s: header: " METADATA_NAME ": expected one object", what);
            metadata = true;
            continue;
        }
        lg_view *view = &t->view[t->n_view++];
        memcpy(name, v->key, v->key_len + 1);
        view->name = name;
        view->file = what;
        name += v->key_len + 1;
        LG_TRY(read_entry(v, data, data_bytes, view, err));
    }
    LG_TRY(check_cover(t, data, data_bytes, what, err));
    return lg_tensors_sort(t->view, t->n_view, err);
}

/* Check a whole file in memory; on LG_OK the caller owns what *t holds. */
static lg_status read_table(const uint8_t *buf, size_t len, const char *what, table *t,
                            lg_err *err) {
    lg_json_doc *doc = NULL;
    memset(t, 0, sizeof *t);
    if (len < LEN_BYTES)
        return LG_FAIL(err, LG_E_FORMAT, "%s: found %zu bytes, expected a header length of 8",
                       what, len);
    uint64_t n = lg_num_load64(buf);
    if (n > len - LEN_BYTES || n > MAX_HEADER)
        return LG_FAIL(
            err, LG_E_FORMAT,
            "%s: header length: found %llu, expected at most %llu (file size and the "
            "format's limit)",
            what, (unsigned long long)n,
            (unsigned long long)(len - LEN_BYTES < MAX_HEADER ? len - LEN_BYTES : MAX_HEADER));
    const uint8_t *data = buf + LEN_BYTES + n;
    LG_TRY(lg_json_parse((const char *)buf + LEN_BYTES, (size_t)n, MAX_DEPTH, what, &doc, err));
    lg_status st =
        fill_table(lg_json_root(doc), data, len - LEN_BYTES - (size_t)n, what, t, err);
    lg_json_close(&doc);
    if (st != LG_OK) table_fini(t);
    return st;
}

lg_status lg_st_check(const uint8_t *buf, size_t len_bytes, const char *what, lg_err *err) {
    table t;
    LG_TRY(read_table(buf, len_bytes, what, &t, err));
    table_fini(&t);
    return LG_OK;
}

/* ---- all files ---- */

/* Map one more file and append its tensors. */
static lg_status add_shard(lg_tensors *set, const char *folder, const char *name, lg_err *err) {
    table t;
    lg_tensors_file f;
    LG_TRY(lg_tensors_map(set, folder, name, "safetensors", &f, err));
    LG_TRY(read_table(f.map, f.len_bytes, f.path, &t, err));
    lg_status st = lg_tensors_add(set, t.view, t.n_view, t.names, err);
    lg_mem_free(t.view);
    return st;
}

/* ---- the index ---- */

/* One line of weight_map; borrowed from the document. */
typedef struct entry {
    const char *name, *file;
} entry;

static int by_entry_file(const void *a, const void *b) {
    return strcmp(((const entry *)a)->file, ((const entry *)b)->file);
}

static int by_entry_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

/* A plain file name: the index may not lead out of its folder. */
static bool is_file_name(const lg_json *v) {
    return v->kind == LG_JSON_STRING && lg_tensors_is_name(v->text, v->text_len) &&
           strlen(v->text) == v->text_len && v->text[0] != '.' && !strchr(v->text, '/') &&
           !strchr(v->text, '\\') && !strstr(v->text, "..");
}

static lg_status read_entries(const lg_json *root, const char *what, entry **out, size_t *n,
                              lg_err *err) {
    const lg_json *map = lg_json_get(root, "weight_map");
    if (!map || map->kind != LG_JSON_OBJECT || map->n_child == 0)
        return LG_FAIL(err, LG_E_FORMAT, "%s: weight_map: expected an object that is not empty",
                       what);
    entry *e = lg_mem_calloc(map->n_child, sizeof *e);
    if (!e) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", what);
    *out = e;
    *n = map->n_child;
    size_t i = 0;
    for (const lg_json *v = map->child; v; v = v->next, i++) {
        if (!lg_tensors_is_name(v->key, v->key_len) || strlen(v->key) != v->key_len)
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: weight_map: a tensor name is empty, too long or not printable",
                           what);
        if (!is_file_name(v))
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: weight_map: %s: expected the name of a file in this folder",
                           what, v->key);
        e[i] = (entry){v->key, v->text};
    }
    return LG_OK;
}

/* Both directions: every line names a tensor that its file holds, every tensor has its line. */
static lg_status check_index(lg_tensors *set, const entry *e, size_t n, const char *what,
                             lg_err *err) {
    size_t i = 0, j = 0;
    while (i < n || j < lg_tensors_count(set)) {
        const lg_view *v = lg_tensors_at(set, j);
        int order = i == n ? 1 : !v ? -1 : strcmp(e[i].name, v->name);
        if (i > 0 && i < n && strcmp(e[i - 1].name, e[i].name) == 0)
            return LG_FAIL(err, LG_E_FORMAT, "%s: weight_map: %s: given twice", what,
                           e[i].name);
        if (order < 0)
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: weight_map: %s: expected in %s, but it does not hold it", what,
                           e[i].name, e[i].file);
        if (order > 0)
            return LG_FAIL(err, LG_E_FORMAT, "%s: tensor %s: not in the weight_map of %s",
                           v->file, v->name, INDEX_NAME);
        if (strcmp(strrchr(v->file, '/') + 1, e[i].file) != 0)
            return LG_FAIL(err, LG_E_FORMAT, "%s: weight_map: %s: found in %s, expected in %s",
                           what, v->name, v->file, e[i].file);
        i++, j++;
    }
    return LG_OK;
}

static lg_status open_listed(lg_tensors *set, const char *path, const char *what, entry *e,
                             size_t n, lg_err *err) {
    size_t n_file = 0;
    qsort(e, n, sizeof *e, by_entry_file);
    for (size_t i = 0; i < n; i++) n_file += i == 0 || strcmp(e[i - 1].file, e[i].file) != 0;
    if (n_file > MAX_SHARD)
        return LG_FAIL(err, LG_E_FORMAT, "%s: weight_map: %zu files, at most %d expected", what,
                       n_file, MAX_SHARD);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(e[i - 1].file, e[i].file) != 0)
            LG_TRY(add_shard(set, path, e[i].file, err));
    LG_TRY(lg_tensors_finish(set, err));
    qsort(e, n, sizeof *e, by_entry_name);
    return check_index(set, e, n, what, err);
}

static lg_status open_index(lg_tensors *set, const char *path, const char *what, lg_err *err) {
    lg_json_doc *doc = NULL;
    entry *e = NULL;
    size_t n = 0;
    LG_TRY(lg_json_load(what, MAX_INDEX, MAX_DEPTH, &doc, err));
    lg_status st = read_entries(lg_json_root(doc), what, &e, &n, err);
    if (st == LG_OK) st = open_listed(set, path, what, e, n, err);
    lg_mem_free(e);
    lg_json_close(&doc);
    return st;
}

/* ---- the set ---- */

/* 1 for a folder, 0 for anything else that exists, -1 for nothing. */
static int kind_of(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return -1;
    return S_ISDIR(info.st_mode) ? 1 : 0;
}

static lg_status open_single(lg_tensors *set, const char *folder, const char *name,
                             lg_err *err) {
    LG_TRY(add_shard(set, folder, name, err));
    return lg_tensors_finish(set, err);
}

static lg_status open_folder(lg_tensors *set, const char *path, lg_err *err) {
    char *single = lg_tensors_path(path, SINGLE_NAME),
         *index = lg_tensors_path(path, INDEX_NAME);
    lg_status st;
    if (!single || !index) {
        st = LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    } else if (kind_of(single) >= 0 && kind_of(index) >= 0) {
        st = LG_FAIL(err, LG_E_FORMAT,
                     "%s: found both " SINGLE_NAME " and " INDEX_NAME ", expected one of them",
                     path);
    } else if (kind_of(index) == 1) {
        st = LG_FAIL(err, LG_E_IO, "%s: not a regular file", index);
    } else if (kind_of(index) == 0) {
        st = open_index(set, path, index, err);
    } else if (kind_of(single) >= 0) {
        st = open_single(set, path, SINGLE_NAME, err);
    } else {
        st = LG_FAIL(err, LG_E_IO, "%s: found neither " SINGLE_NAME " nor " INDEX_NAME, path);
    }
    lg_mem_free(single);
    lg_mem_free(index);
    return st;
}

lg_status lg_st_open(const char *path, lg_tensors **set, lg_err *err) {
    *set = NULL;
    int kind = kind_of(path);
    if (kind < 0)
        return LG_FAIL(err, LG_E_IO, "%s: cannot be opened: %s", path, strerror(errno));
    lg_tensors *s;
    LG_TRY(lg_tensors_open(path, &s, err));
    lg_status st = kind == 1 ? open_folder(s, path, err) : open_single(s, path, NULL, err);
    if (st != LG_OK)
        lg_tensors_close(&s);
    else
        *set = s;
    return st;
}
