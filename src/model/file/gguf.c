/* gguf.c - read the tables of GGUF files: see gguf.h.
 *
 * A file is: "GGUF", version, number of tensors, number of keys; the keys with their values; the table of tensors; padding;
 * the data.  Both tables are walked twice: the first walk checks and counts, then memory is taken, the second one fills it.
 * The tensors cover the data section in some order, each padded to the alignment, without gap or overlap.
 * Thread: any.  Memory: tables on the heap, all else mapped, until close.  Test: tests/unit/test_gguf.c, fuzz/fuzz_gguf.c */
#include "model/file/gguf.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define HEAD_BYTES     24 /* magic, version, two counts */
#define MIN_VALUE      14 /* bytes of the smallest key with its value */
#define MIN_TENSOR     33 /* bytes of the smallest line of the tensor table */
#define MAX_VALUE      (1u << 16)
#define MAX_TENSOR     (1u << 18)
#define MAX_PART       10000
#define MAX_META       ((size_t)256 << 20) /* bytes before the data */
#define MAX_ALIGN      (1u << 20)
#define FILE_DIMS      4
#define SUFFIX         ".gguf"
#define SUFFIX_BYTES   (sizeof SUFFIX - 1)
#define PART_BYTES     (sizeof "-00001-of-00001" SUFFIX - 1)
#define FORMAT_NAME    "GGUF"
#define KEY_ALIGN      "general.alignment"
#define KEY_PART       "split.no"
#define KEY_N_PART     "split.count"
#define KEY_ALL_TENSOR "split.tensors.count"

struct lg_gguf {
    char *what;  /* path of the first part */
    char **part; /* [n_part] */
    size_t n_part;
    lg_gguf_value *value; /* of the first part, sorted by key */
    size_t n_value;
    char *keys; /* their text */
    lg_tensors *set;
};

/* Tables of one file. */
typedef struct table {
    lg_gguf_value *value;
    size_t n_value;
    char *keys;
    lg_view *view;
    size_t n_view;
    char *names;
} table;

/* The bytes still to be read. */
typedef struct cursor {
    const uint8_t *at, *end;
    const char *what;
    lg_err *err;
} cursor;

/* One line of the tensor table as it lies there. */
typedef struct line {
    const char *name;
    size_t name_len;
    uint32_t n_dim, type;
    uint64_t dim[FILE_DIMS]; /* innermost first */
    uint64_t offset;
} line;

/* Types of tensors: `block` elements of one row take `bytes`. */
static const struct tensor_type {
    const char *name;
    uint32_t id, block, bytes;
    lg_dtype type;
} tensor_types[] = {
    {"F32", 0, 1, 4, LG_F32},
    {"F16", 1, 1, 2, LG_F16},
    {"Q4_0", 2, 32, 18, LG_Q4_0},
    {"Q4_1", 3, 32, 20, LG_Q4_1},
    {"Q5_0", 6, 32, 22, LG_Q5_0},
    {"Q5_1", 7, 32, 24, LG_Q5_1},
    {"Q8_0", 8, 32, 34, LG_Q8_0},
    {"Q2_K", 10, 256, 84, LG_Q2_K},
    {"Q3_K", 11, 256, 110, LG_Q3_K},
    {"Q4_K", 12, 256, 144, LG_Q4_K},
    {"Q5_K", 13, 256, 176, LG_Q5_K},
    {"Q6_K", 14, 256, 210, LG_Q6_K},
    {"IQ2_XXS", 16, 256, 66, LG_IQ2_XXS},
    {"IQ2_XS", 17, 256, 74, LG_IQ2_XS},
    {"IQ3_XXS", 18, 256, 98, LG_IQ3_XXS},
    {"IQ1_S", 19, 256, 50, LG_IQ1_S},
    {"IQ4_NL", 20, 32, 18, LG_IQ4_NL},
    {"IQ3_S", 21, 256, 110, LG_IQ3_S},
    {"IQ2_S", 22, 256, 82, LG_IQ2_S},
    {"IQ4_XS", 23, 256, 136, LG_IQ4_XS},
    {"I8", 24, 1, 1, LG_N_DTYPE},
    {"I16", 25, 1, 2, LG_N_DTYPE},
    {"I32", 26, 1, 4, LG_N_DTYPE},
    {"I64", 27, 1, 8, LG_N_DTYPE},
    {"F64", 28, 1, 8, LG_N_DTYPE},
    {"IQ1_M", 29, 256, 56, LG_IQ1_M},
    {"BF16", 30, 1, 2, LG_BF16},
    {"MXFP4", 39, 32, 17, LG_MXFP4},
};

/* ---- lookups ---- */

uint32_t lg_gguf_type_id(lg_dtype type) {
    size_t i = 0;
    while (i < LG_COUNT(tensor_types) && tensor_types[i].type != type) i++;
    LG_ASSERT(i < LG_COUNT(tensor_types)); /* every type of ours but E4M3 is one of GGUF */
    return tensor_types[i].id;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const lg_gguf_value *)a)->key, ((const lg_gguf_value *)b)->key);
}

static const lg_gguf_value *find_value(const lg_gguf_value *value, size_t n, const char *key) {
    lg_gguf_value want = {.key = key};
    return n ? bsearch(&want, value, n, sizeof want, by_key) : NULL;
}

const lg_gguf_value *lg_gguf_find(const lg_gguf *g, const char *key) {
    return find_value(g->value, g->n_value, key);
}

size_t lg_gguf_count(const lg_gguf *g) {
    return g->n_value;
}

const lg_gguf_value *lg_gguf_at(const lg_gguf *g, size_t i) {
    return i < g->n_value ? &g->value[i] : NULL;
}

/* ---- reading ---- */

static size_t left(const cursor *c) {
    return (size_t)(c->end - c->at);
}

static lg_status take_u32(cursor *c, const char *field, uint32_t *out) {
    if (left(c) < 4)
        return LG_FAIL(c->err, LG_E_FORMAT, "%s: %s: the file ends here", c->what, field);
    *out = lg_num_load32(c->at);
    c->at += 4;
    return LG_OK;
}

static lg_status take_u64(cursor *c, const char *field, uint64_t *out) {
    if (left(c) < 8)
        return LG_FAIL(c->err, LG_E_FORMAT, "%s: %s: the file ends here", c->what, field);
    *out = lg_num_load64(c->at);
    c->at += 8;
    return LG_OK;
}

/* A length in bytes and as many bytes. */
static lg_status take_text(cursor *c, const char *field, const char **s, size_t *len) {
    uint64_t n = 0;
    LG_TRY(take_u64(c, field, &n));
    if (n > left(c))
        return LG_FAIL(c->err, LG_E_FORMAT,
                       "%s: %s: found a length of %llu, expected at most the %zu bytes left",
                       c->what, field, (unsigned long long)n, left(c));
    *s = (const char *)c->at;
    *len = (size_t)n;
    c->at += n;
    return LG_OK;
}

/* The elements of v, whose type and number are known. */
static lg_status take_elements(cursor *c, const char *key, lg_gguf_value *v) {
    uint64_t bytes;
    v->data = c->at;
    if (v->type == LG_GGUF_STR) {
        const char *s;
        size_t len;
        if (v->n > left(c) / 8)
            return LG_FAIL(c->err, LG_E_FORMAT,
                           "%s: %s: found %llu strings, expected at most %zu in the bytes left",
                           c->what, key, (unsigned long long)v->n, left(c) / 8);
        for (uint64_t i = 0; i < v->n; i++) LG_TRY(take_text(c, key, &s, &len));
    } else {
        if (!lg_num_mul(v->n, lg_gguf_type_bytes(v->type), &bytes) || bytes > left(c))
            return LG_FAIL(c->err, LG_E_FORMAT,
                           "%s: %s: found %llu elements, expected at most the %zu bytes left",
                           c->what, key, (unsigned long long)v->n, left(c));
        c->at += bytes;
        for (uint64_t i = 0; v->type == LG_GGUF_BOOL && i < v->n; i++)
            if (v->data[i] > 1)
                return LG_FAIL(c->err, LG_E_FORMAT,
                               "%s: %s: found a bool of %u, expected 0 or 1", c->what, key,
                               v->data[i]);
    }
    v->len_bytes = (size_t)(c->at - v->data);
    return LG_OK;
}

/* One key and its value; v->key stays unset, the text is *key. */
static lg_status take_value(cursor *c, lg_gguf_value *v, const char **key, size_t *key_len) {
    char name[520];
    uint32_t type = 0;
    *v = (lg_gguf_value){.n = 1};
    LG_TRY(take_text(c, "a key", key, key_len));
    if (!lg_tensors_is_name(*key, *key_len))
        return LG_FAIL(c->err, LG_E_FORMAT, "%s: a key is empty, too long or not printable",
                       c->what);
    snprintf(name, sizeof name, "%.*s", (int)*key_len, *key);
    LG_TRY(take_u32(c, name, &type));
    v->array = type == LG_GGUF_ARRAY;
    if (v->array) {
        LG_TRY(take_u32(c, name, &type));
        LG_TRY(take_u64(c, name, &v->n));
        if (type == LG_GGUF_ARRAY)
            return LG_FAIL(c->err, LG_E_UNSUPPORTED, "%s: %s: found an array of arrays",
                           c->what, name);
    }
    if (type >= LG_GGUF_N_TYPE)
        return LG_FAIL(c->err, LG_E_UNSUPPORTED, "%s: %s: found type %u, expected one below %d",
                       c->what, name, type, LG_GGUF_N_TYPE);
    v->type = (lg_gguf_type)type;
    return take_elements(c, name, v);
}

static lg_status take_line(cursor *c, line *t) {
    char name[520];
    LG_TRY(take_text(c, "the tensor table", &t->name, &t->name_len));
    if (!lg_tensors_is_name(t->name, t->name_len))
        return LG_FAIL(c->err, LG_E_FORMAT,
                       "%s: a tensor name is empty, too long or not printable", c->what);
    snprintf(name, sizeof name, "tensor %.*s", (int)t->name_len, t->name);
    LG_TRY(take_u32(c, name, &t->n_dim));
    if (t->n_dim == 0 || t->n_dim > FILE_DIMS)
        return LG_FAIL(c->err, LG_E_FORMAT, "%s: %s: found %u dimensions, expected 1 to %d",
                       c->what, name, t->n_dim, FILE_DIMS);
    for (uint32_t i = 0; i < t->n_dim; i++) LG_TRY(take_u64(c, name, &t->dim[i]));
    LG_TRY(take_u32(c, name, &t->type));
    return take_u64(c, name, &t->offset);
}

/* ---- one file ---- */

static lg_status take_head(cursor *c, uint64_t *n_tensor, uint64_t *n_value) {
    uint32_t version = 0;
    if (left(c) < HEAD_BYTES || memcmp(c->at, "GGUF", 4) != 0)
        return LG_FAIL(c->err, LG_E_FORMAT, "%s: expected a file that starts with GGUF",
                       c->what);
    c->at += 4;
    LG_TRY(take_u32(c, "version", &version));
    if (version != 2 && version != 3)
        return LG_FAIL(c->err, LG_E_UNSUPPORTED, "%s: version: found %u%s, expected 2 or 3",
                       c->what, version,
                       version && version % (1u << 24) == 0 ? " (big-endian)" : "");
    LG_TRY(take_u64(c, "number of tensors", n_tensor));
    LG_TRY(take_u64(c, "number of keys", n_value));
    if (*n_value > left(c) / MIN_VALUE || *n_value > MAX_VALUE)
        return LG_FAIL(c->err, LG_E_FORMAT,
                       "%s: number of keys: found %llu, expected at most %u and what fits the "
                       "%zu bytes left",
                       c->what, (unsigned long long)*n_value, MAX_VALUE, left(c));
    if (*n_tensor > left(c) / MIN_TENSOR || *n_tensor > MAX_TENSOR)
        return LG_FAIL(c->err, LG_E_FORMAT,
                       "%s: number of tensors: found %llu, expected at most %u and what fits "
                       "the %zu bytes left",
                       c->what, (unsigned long long)*n_tensor, MAX_TENSOR, left(c));
    return LG_OK;
}

static void table_fini(table *t) {
    LG_FREE(t->value);
    LG_FREE(t->keys);
    LG_FREE(t->view);
    LG_FREE(t->names);
}

/* Walk both tables from a copy of the cursor: checks, and bytes of text. */
static lg_status measure(cursor c, const table *t, size_t *key_bytes, size_t *name_bytes) {
    const uint8_t *begin = c.at;
    for (size_t i = 0; i < t->n_value; i++) {
        lg_gguf_value v;
        const char *key;
        size_t len;
        LG_TRY(take_value(&c, &v, &key, &len));
        *key_bytes += len + 1;
    }
    for (size_t i = 0; i < t->n_view; i++) {
        line l;
        LG_TRY(take_line(&c, &l));
        *name_bytes += l.name_len + 1;
    }
    if ((size_t)(c.at - begin) > MAX_META)
        return LG_FAIL(c.err, LG_E_FORMAT,
                       "%s: found %zu bytes of metadata, expected at most %zu", c.what,
                       (size_t)(c.at - begin), MAX_META);
    return LG_OK;
}

static lg_status fill_values(cursor *c, table *t) {
    char *text = t->keys;
    for (size_t i = 0; i < t->n_value; i++) {
        const char *key;
        size_t len;
        LG_TRY(take_value(c, &t->value[i], &key, &len));
        memcpy(text, key, len);
        text[len] = '\0';
        t->value[i].key = text;
        text += len + 1;
    }
    if (t->n_value) qsort(t->value, t->n_value, sizeof *t->value, by_key);
    for (size_t i = 1; i < t->n_value; i++)
        if (by_key(&t->value[i - 1], &t->value[i]) == 0)
            return LG_FAIL(c->err, LG_E_FORMAT, "%s: %s: given twice", c->what,
                           t->value[i].key);
    return LG_OK;
}

static lg_status read_align(const cursor *c, const table *t, uint64_t *align) {
    const lg_gguf_value *v = find_value(t->value, t->n_value, KEY_ALIGN);
    char found[80];
    int64_t n = 32;
    if (v && (!lg_gguf_int(v, 0, &n) || v->array || n < 1 || n > MAX_ALIGN || (n & (n - 1))))
        return LG_FAIL(c->err, LG_E_FORMAT,
                       "%s: " KEY_ALIGN ": found %s, expected a power of two up to %u", c->what,
                       lg_gguf_show(v, found, sizeof found), MAX_ALIGN);
    *align = (uint64_t)n;
    return LG_OK;
}

static lg_status find_type(const cursor *c, uint32_t id, const char *name,
                           const struct tensor_type **type) {
    for (size_t i = 0; i < LG_COUNT(tensor_types); i++)
        if (tensor_types[i].id == id) {
            *type = &tensor_types[i];
            return LG_OK;
        }
    return LG_FAIL(c->err, LG_E_UNSUPPORTED,
                   "%s: tensor %s: found type %u, expected one of GGUF that is still in use",
                   c->what, name, id);
}

/* Type, shape, and the bytes they need; v->name and v->file are set. */
static lg_status fill_shape(const cursor *c, const line *l, lg_view *v) {
    const struct tensor_type *type = NULL;
    char shape[128];
    LG_TRY(find_type(c, l->type, v->name, &type));
    v->type = type->type;
    v->type_name = type->name;
    v->n_dim = l->n_dim;
    for (uint32_t i = 0; i < l->n_dim; i++) v->shape[i] = l->dim[l->n_dim - 1 - i];
    lg_tensors_shape(v->n_dim, v->shape, shape, sizeof shape);
    if (l->dim[0] % type->block != 0)
        return LG_FAIL(
            c->err, LG_E_FORMAT,
            "%s: tensor %s: shape %s: expected rows of a multiple of %u, as %s needs", c->what,
            v->name, shape, type->block, type->name);
    uint64_t bytes = type->bytes, elements = 1;
    bool fits = lg_num_mul(bytes, l->dim[0] / type->block, &bytes);
    for (uint32_t i = 0; i < l->n_dim && fits; i++) {
        if (l->dim[i] == 0)
            return LG_FAIL(c->err, LG_E_FORMAT, "%s: tensor %s: shape %s: found a zero",
                           c->what, v->name, shape);
        fits = lg_num_mul(elements, l->dim[i], &elements) &&
               (i == 0 || lg_num_mul(bytes, l->dim[i], &bytes));
    }
    if (!fits)
        return LG_FAIL(c->err, LG_E_FORMAT,
                       "%s: tensor %s: shape %s: the product overflows 64 bits", c->what,
                       v->name, shape);
    v->len_bytes = bytes;
    return LG_OK;
}

static int by_place(const void *a, const void *b) {
    const lg_view *x = a, *y = b;
    return (x->data > y->data) - (x->data < y->data);
}

/* Each tensor begins where the one before it ends, rounded up, and the file ends with the last. */
static lg_status check_cover(const cursor *c, table *t, const uint8_t *data,
                             uint64_t data_bytes, uint64_t align) {
    uint64_t end = 0; /* of the tensors so far, rounded up */
    if (t->n_view) qsort(t->view, t->n_view, sizeof *t->view, by_place);
    for (size_t i = 0; i < t->n_view; i++) {
        const lg_view *v = &t->view[i];
        uint64_t at = (uint64_t)(v->data - data);
        if (at != end)
            return LG_FAIL(c->err, LG_E_FORMAT,
                           "%s: tensor %s: offset: found %llu, expected %llu, where the tensor "
                           "before it ends (%s)",
                           c->what, v->name, (unsigned long long)at, (unsigned long long)end,
                           at < end ? "overlap" : "gap");
        end = (at + v->len_bytes + align - 1) / align * align;
    }
    if (data_bytes > end)
        return LG_FAIL(c->err, LG_E_FORMAT,
                       "%s: found %llu bytes of data, expected %llu by its table", c->what,
                       (unsigned long long)data_bytes, (unsigned long long)end);
    return LG_OK;
}

/* The tensor table; `buf` is the whole file. */
static lg_status fill_views(cursor *c, const uint8_t *buf, table *t) {
    char *text = t->names;
    uint64_t align = 1, len = (uint64_t)(c->end - buf);
    cursor scan = *c;
    line l;
    LG_TRY(read_align(c, t, &align));
    for (size_t i = 0; i < t->n_view; i++) LG_TRY(take_line(&scan, &l));
    uint64_t start = ((uint64_t)(scan.at - buf) + align - 1) / align * align;
    uint64_t data_bytes = start < len ? len - start : 0;
    const uint8_t *data = buf + (start < len ? start : len);
    for (size_t i = 0; i < t->n_view; i++) {
        lg_view *v = &t->view[i];
        LG_TRY(take_line(c, &l));
        memcpy(text, l.name, l.name_len);
        text[l.name_len] = '\0';
        v->name = text;
        v->file = c->what;
        text += l.name_len + 1;
        LG_TRY(fill_shape(c, &l, v));
        if (l.offset % align != 0)
            return LG_FAIL(c->err, LG_E_FORMAT,
                           "%s: tensor %s: offset: found %llu, expected a multiple of %llu",
                           c->what, v->name, (unsigned long long)l.offset,
                           (unsigned long long)align);
        if (l.offset > data_bytes || v->len_bytes > data_bytes - l.offset)
            return LG_FAIL(
                c->err, LG_E_FORMAT,
                "%s: tensor %s: offset: found %llu bytes at %llu, but the file holds "
                "%llu bytes of data",
                c->what, v->name, (unsigned long long)v->len_bytes,
                (unsigned long long)l.offset, (unsigned long long)data_bytes);
        v->data = data + l.offset;
    }
    return check_cover(c, t, data, data_bytes, align);
}

/* Check a whole file; on LG_OK the caller owns what *t holds. */
static lg_status read_table(const uint8_t *buf, size_t len, const char *what, table *t,
                            lg_err *err) {
    cursor c = {buf, buf + len, what, err};
    uint64_t n_tensor = 0, n_value = 0;
    size_t key_bytes = 0, name_bytes = 0;
    *t = (table){0};
    LG_TRY(take_head(&c, &n_tensor, &n_value));
    t->n_value = (size_t)n_value;
    t->n_view = (size_t)n_tensor;
    LG_TRY(measure(c, t, &key_bytes, &name_bytes));
    t->value = lg_mem_calloc(t->n_value, sizeof *t->value);
    t->keys = lg_mem_alloc(key_bytes);
    t->view = lg_mem_calloc(t->n_view, sizeof *t->view);
    t->names = lg_mem_alloc(name_bytes);
    lg_status st = t->value && t->keys && t->view && t->names
                       ? LG_OK
                       : LG_FAIL(err, LG_E_NOMEM, "%s: no memory", what);
    if (st == LG_OK) st = fill_values(&c, t);
    if (st == LG_OK) st = fill_views(&c, buf, t);
    if (st != LG_OK) table_fini(t);
    return st;
}

/* ---- the parts ---- */

/* The digits and the "of" of a part's name; *prefix_len is what comes before. */
static bool read_part_name(const char *path, size_t *prefix_len, unsigned *i, unsigned *n) {
    size_t len = strlen(path);
    if (len < PART_BYTES) return false;
    const char *s = path + len - PART_BYTES;
    static const char shape[] = "-00000-of-00000" SUFFIX;
    for (size_t k = 0; k < PART_BYTES; k++)
        if (shape[k] == '0' ? s[k] < '0' || s[k] > '9' : s[k] != shape[k]) return false;
    *i = (unsigned)strtoul(s + 1, NULL, 10);
    *n = (unsigned)strtoul(s + sizeof "-00000-of-" - 1, NULL, 10);
    *prefix_len = len - PART_BYTES;
    return *n >= 1 && *i >= 1 && *i <= *n;
}

/* A number of the split keys; `missing` when the key is not there. */
static lg_status read_split(const table *t, const char *what, const char *key, int64_t missing,
                            int64_t *out, lg_err *err) {
    char found[80];
    const lg_gguf_value *v = find_value(t->value, t->n_value, key);
    *out = missing;
    if (!v || (!v->array && lg_gguf_int(v, 0, out))) return LG_OK;
    return LG_FAIL(err, LG_E_FORMAT, "%s: %s: found %s, expected an integer", what, key,
                   lg_gguf_show(v, found, sizeof found));
}

/* The split keys of part i (from 0) of n. */
static lg_status check_part(const table *t, const char *what, unsigned i, unsigned n,
                            int64_t *n_tensor, lg_err *err) {
    int64_t no, count;
    LG_TRY(read_split(t, what, KEY_PART, n == 1 ? 0 : -1, &no, err));
    LG_TRY(read_split(t, what, KEY_N_PART, n == 1 ? 1 : -1, &count, err));
    LG_TRY(read_split(t, what, KEY_ALL_TENSOR, -1, n_tensor, err));
    if (count == 0 && n == 1) count = 1;
    if (count != (int64_t)n)
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: " KEY_N_PART ": found %lld, expected %u as the file's name says "
                       "(NAME-00001-of-%05u.gguf)",
                       what, (long long)count, n, n);
    if (no != (int64_t)i)
        return LG_FAIL(err, LG_E_FORMAT, "%s: " KEY_PART ": found %lld, expected %u", what,
                       (long long)no, i);
    return LG_OK;
}

/* Keep what the first part says, and the views of all. */
static lg_status keep(lg_gguf *g, table *t, lg_err *err) {
    if (!g->value) {
        g->value = t->value;
        g->n_value = t->n_value;
        g->keys = t->keys;
        t->value = NULL;
        t->keys = NULL;
    }
    char *names = t->names;
    t->names = NULL;
    lg_status st = lg_tensors_add(g->set, t->view, t->n_view, names, err);
    table_fini(t);
    return st;
}

/* Part i (from 0) of n, at g->part[i]. */
static lg_status add_part(lg_gguf *g, unsigned i, unsigned n, int64_t *n_tensor, lg_err *err) {
    lg_tensors_file f;
    table t;
    LG_TRY(lg_tensors_map(g->set, g->part[i], NULL, FORMAT_NAME, &f, err));
    LG_TRY(read_table(f.map, f.len_bytes, f.path, &t, err));
    lg_status st = check_part(&t, f.path, i, n, n_tensor, err);
    if (st == LG_OK) return keep(g, &t, err);
    table_fini(&t);
    return st;
}

static lg_status name_parts(lg_gguf *g, const char *path, size_t prefix_len, unsigned n,
                            lg_err *err) {
    g->part = lg_mem_calloc(n, sizeof *g->part);
    if (!g->part) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    g->n_part = n;
    for (unsigned i = 0; i < n; i++) {
        size_t size = strlen(path) + 1;
        g->part[i] = lg_mem_alloc(size);
        if (!g->part[i]) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
        if (n == 1)
            memcpy(g->part[i], path, size);
        else
            snprintf(g->part[i], size, "%.*s-%05u-of-%05u" SUFFIX, (int)prefix_len, path, i + 1,
                     n);
    }
    return LG_OK;
}

static lg_status open_parts(lg_gguf *g, const char *path, lg_err *err) {
    size_t prefix_len = 0;
    unsigned i = 1, n = 1;
    int64_t want = -1;
    if (!read_part_name(path, &prefix_len, &i, &n)) n = 1;
    if (n > MAX_PART)
        return LG_FAIL(err, LG_E_FORMAT, "%s: found %u parts, expected at most %d", path, n,
                       MAX_PART);
    LG_TRY(name_parts(g, path, prefix_len, n, err));
    g->what = lg_mem_strdup(g->part[0]);
    if (!g->what) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    for (i = 0; i < n; i++) {
        int64_t n_tensor = -1;
        LG_TRY(add_part(g, i, n, &n_tensor, err));
        if (i > 0 && n_tensor != want)
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: " KEY_ALL_TENSOR ": found %lld, expected %lld as in part 1",
                           g->part[i], (long long)n_tensor, (long long)want);
        want = n_tensor;
    }
    if (want >= 0 && (uint64_t)want != lg_tensors_count(g->set))
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: " KEY_ALL_TENSOR ": found %lld, but the parts hold %zu", g->what,
                       (long long)want, lg_tensors_count(g->set));
    return lg_tensors_finish(g->set, err);
}

/* ---- the whole ---- */

static lg_status start(const char *what, lg_gguf **g, lg_err *err) {
    *g = lg_mem_alloc(sizeof **g);
    if (!*g) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", what);
    lg_status st = lg_tensors_open(what, &(*g)->set, err);
    if (st != LG_OK) LG_FREE(*g);
    return st;
}

bool lg_gguf_is(const char *path) {
    struct stat info;
    size_t len = strlen(path);
    if (stat(path, &info) == 0) return !S_ISDIR(info.st_mode);
    return len >= SUFFIX_BYTES && strcasecmp(path + len - SUFFIX_BYTES, SUFFIX) == 0;
}

lg_status lg_gguf_open(const char *path, lg_gguf **g, lg_err *err) {
    LG_TRY(start(path, g, err));
    lg_status st = open_parts(*g, path, err);
    if (st != LG_OK) lg_gguf_close(g);
    return st;
}

lg_status lg_gguf_parse(const uint8_t *buf, size_t len_bytes, const char *what, lg_gguf **g,
                        lg_err *err) {
    table t;
    int64_t n_tensor;
    LG_TRY(start(what, g, err));
    (*g)->what = lg_mem_strdup(what);
    lg_status st = (*g)->what ? read_table(buf, len_bytes, (*g)->what, &t, err)
                              : LG_FAIL(err, LG_E_NOMEM, "%s: no memory", what);
    if (st == LG_OK) {
        st = check_part(&t, what, 0, 1, &n_tensor, err);
        if (st == LG_OK)
            st = keep(*g, &t, err);
        else
            table_fini(&t);
    }
    if (st == LG_OK) st = lg_tensors_finish((*g)->set, err);
    if (st != LG_OK) lg_gguf_close(g);
    return st;
}

void lg_gguf_close(lg_gguf **gguf) {
    lg_gguf *g = *gguf;
    if (!g) return;
    lg_tensors_close(&g->set);
    for (size_t i = 0; i < g->n_part; i++) lg_mem_free(g->part[i]);
    lg_mem_free(g->part);
    lg_mem_free(g->what);
    lg_mem_free(g->value);
    lg_mem_free(g->keys);
    LG_FREE(*gguf);
}

const char *lg_gguf_what(const lg_gguf *g) {
    return g->what;
}

size_t lg_gguf_n_part(const lg_gguf *g) {
    return g->n_part;
}

const char *lg_gguf_part(const lg_gguf *g, size_t i) {
    return i < g->n_part ? g->part[i] : NULL;
}

lg_tensors *lg_gguf_tensors(const lg_gguf *g) {
    return g->set;
}
