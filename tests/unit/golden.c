/* golden.c - reader of the golden files, and comparing with them: see golden.h.  Data is copied to aligned memory. */
#include "golden.h"

#include "base/json.h"
#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lg_status read_file(const char *path, uint8_t **data, size_t *len, lg_err *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return LG_FAIL(err, LG_E_IO, "%s: cannot open", path);
    lg_status st = LG_OK;
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    rewind(f);
    *data = size > 8 ? lg_mem_alloc((size_t)size) : NULL;
    if (!*data)
        st = LG_FAIL(err, LG_E_IO, "%s: too short or no memory", path);
    else if (fread(*data, 1, (size_t)size, f) != (size_t)size)
        st = LG_FAIL(err, LG_E_IO, "%s: cannot read", path);
    *len = (size_t)size;
    fclose(f);
    return st;
}

static bool read_tensor(golden_tensor *t, const lg_json *v, uint8_t *data, size_t len) {
    uint64_t lo, hi;
    const lg_json *at = lg_json_get(v, "data_offsets"), *shape = lg_json_get(v, "shape");
    if (!lg_json_u64(lg_json_at(at, 0), &lo) || !lg_json_u64(lg_json_at(at, 1), &hi))
        return false;
    if (lo > hi || hi > len || lo % 4 || !shape || shape->n_child > 4) return false;
    if (v->key_len >= sizeof t->name) return false;
    memcpy(t->name, v->key, v->key_len + 1);
    t->n = 1;
    for (const lg_json *s = shape->child; s; s = s->next) {
        uint64_t dim;
        if (!lg_json_u64(s, &dim)) return false;
        t->shape[t->n_dim++] = (size_t)dim;
        t->n *= (size_t)dim;
    }
    if (t->n * 4 != hi - lo) return false;
    if (lg_json_is(lg_json_get(v, "dtype"), "F32"))
        t->f = (const float *)(void *)(data + lo);
    else if (lg_json_is(lg_json_get(v, "dtype"), "I32"))
        t->i = (const int32_t *)(void *)(data + lo);
    else
        return false;
    return true;
}

lg_status golden_open(golden *g, const char *path, lg_err *err) {
    *g = (golden){0};
    lg_json_doc *doc = NULL;
    lg_status st;
    size_t len = 0;
    LG_TRY_GOTO(read_file(path, &g->file, &len, err), st, fail);
    uint64_t head = lg_num_load64(g->file);
    if (head > len - 8) {
        st = LG_FAIL(err, LG_E_FORMAT, "%s: header of %llu bytes", path,
                     (unsigned long long)head);
        goto fail;
    }
    LG_TRY_GOTO(lg_json_parse((const char *)g->file + 8, head, 8, path, &doc, err), st, fail);
    /* The header's length moves the data off alignment: bring it back over the header. */
    uint8_t *data = g->file;
    memmove(data, g->file + 8 + head, len - 8 - head);
    const lg_json *root = lg_json_root(doc);
    g->tensor = lg_mem_calloc(root->n_child, sizeof *g->tensor);
    if (!g->tensor) {
        st = LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
        goto fail;
    }
    for (const lg_json *v = root->child; v; v = v->next) {
        if (strcmp(v->key, "__metadata__") == 0) continue;
        if (!read_tensor(&g->tensor[g->n++], v, data, len - 8 - head)) {
            st = LG_FAIL(err, LG_E_FORMAT, "%s: tensor %s", path, v->key);
            goto fail;
        }
    }
    lg_json_close(&doc);
    return LG_OK;
fail:
    lg_json_close(&doc);
    golden_close(g);
    return st;
}

void golden_close(golden *g) {
    LG_FREE(g->tensor);
    LG_FREE(g->file);
    g->n = 0;
}

golden_tensor *golden_find(const golden *g, const char *fmt, ...) {
    char name[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < g->n; i++)
        if (strcmp(g->tensor[i].name, name) == 0) return &g->tensor[i];
    return NULL;
}

const char *golden_kind(const golden_tensor *t, char *buf, size_t len_bytes) {
    const char *dot = strchr(t->name, '.'), *s = dot ? dot + 1 : t->name;
    if (s[0] == 'L' && strchr(s, '.')) s = strchr(s, '.') + 1;
    snprintf(buf, len_bytes, "%s", s);
    char *layer = strstr(buf, ".L");
    if (layer) *layer = 0;
    return buf;
}

/* ---- for cmocka tests ---- */

static double tolerance(const golden *g, const char *tensor, const char *kind) {
    bool first = strcmp(g->name, "tiny-moe") == 0 && strncmp(tensor, "p1.", 3) == 0;
    if (strcmp(kind, "logits") == 0 || strcmp(kind, "decode_logits") == 0)
        return first ? 1e-2 : 1e-3;
    if (strcmp(kind, "hidden") == 0 || strcmp(kind, "conv") == 0) return first ? 2e-3 : 5e-4;
    if (strcmp(kind, "state") == 0) return first ? 5e-4 : 1e-4;
    if (strcmp(kind, "gdn.gated_norm") == 0) return 1e-3;
    return 5e-4;
}

static void note(golden *g, const golden_tensor *t, double diff, bool new_tensor) {
    char kind[64];
    golden_kind(t, kind, sizeof kind);
    double tol = tolerance(g, t->name, kind);
    if (tolerance(g, "", kind) != tol) strcat(kind, " (p1)");
    uint32_t i = 0;
    while (i < g->n_row && strcmp(g->row[i].kind, kind) != 0) i++;
    assert_true(i < GOLDEN_MAX_KIND);
    golden_row *row = &g->row[i];
    if (i == g->n_row) {
        g->n_row++;
        snprintf(row->kind, sizeof row->kind, "%s", kind);
    }
    row->n_tensor += new_tensor;
    row->tol = tol;
    if (diff > row->worst) {
        row->worst = diff;
        for (size_t e = 0; e < t->n; e++)
            if (t->f && fabs((double)t->f[e]) > row->scale) row->scale = fabs((double)t->f[e]);
    }
    if (!(diff <= tol))
        fail_msg("%s: %s differs by %g, allowed %g", g->name, t->name, diff, tol);
}

void golden_compare(golden *g, golden_tensor *t, size_t from, const float *x, size_t n_row,
                    size_t n_col, size_t ld) {
    assert_true(from + n_row * n_col <= t->n);
    double worst = 0;
    for (size_t r = 0; r < n_row; r++)
        for (size_t c = 0; c < n_col; c++) {
            size_t at = from + r * n_col + c;
            double want = t->f ? (double)t->f[at] : (double)t->i[at];
            double d = fabs(want - (double)x[r * ld + c]);
            if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
        }
    note(g, t, worst, !t->seen);
    t->seen = true;
}

golden_tensor *golden_must_find(const golden *g, const char *prompt, const char *what) {
    golden_tensor *t = golden_find(g, "%s.%s", prompt, what);
    if (!t) fail_msg("%s: no tensor %s.%s", g->name, prompt, what);
    return t;
}

const uint32_t *golden_ids(const golden *g, const char *prompt, uint32_t *n) {
    golden_tensor *t = golden_must_find(g, prompt, "ids");
    t->seen = true;
    *n = (uint32_t)t->n;
    return (const uint32_t *)t->i;
}
