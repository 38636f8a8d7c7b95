/* expert_load.c - see expert_load.h.
 *
 * Thread: any.  Memory: the parsed file.  Test: tests/unit/test_ranks.c */
#include "engine/expert_load.h"

#include "base/buf.h"
#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAX_BYTES (64u << 20)

/* One layer's list. */
static lg_status read_layer(const char *path, const lg_json *v, uint32_t layer,
                            uint32_t n_expert, float *load, lg_err *err) {
    uint32_t e = 0;
    for (const lg_json *x = v->child; x; x = x->next, e++) {
        double d;
        if (e == n_expert || !lg_json_f64(x, &d) || d < 0 || d > 3e38)
            return LG_FAIL(
                err, LG_E_FORMAT,
                "%s: load of layer %u: found \"%.40s\" at place %u, expected %u numbers "
                "from 0 up",
                path, layer, x->text ? x->text : "", e, n_expert);
        load[e] = (float)d;
    }
    if (e == n_expert) return LG_OK;
    return LG_FAIL(err, LG_E_FORMAT, "%s: load of layer %u: found %u numbers, expected %u",
                   path, layer, e, n_expert);
}

lg_status lg_expert_load_read(const char *path, uint32_t n_layer, uint32_t n_expert,
                              float *load, lg_err *err) {
    lg_json_doc *doc = NULL;
    LG_TRY(lg_json_load(path, MAX_BYTES, 8, &doc, err));
    const lg_json *list = lg_json_get(lg_json_root(doc), "load");
    uint32_t layer = 0;
    lg_status st = LG_OK;
    for (const lg_json *v = list ? list->child : NULL; v && st == LG_OK; v = v->next, layer++) {
        if (layer == n_layer)
            st = LG_FAIL(err, LG_E_FORMAT, "%s: load: found more than the model's %u layers",
                         path, n_layer);
        else
            st = read_layer(path, v, layer, n_expert, load + (size_t)layer * n_expert, err);
    }
    if (st == LG_OK && layer != n_layer)
        st = LG_FAIL(err, LG_E_FORMAT, "%s: load: found %u layers, expected %u", path, layer,
                     n_layer);
    lg_json_close(&doc);
    return st;
}

static lg_status write_file(const char *path, const char *tmp, const lg_buf *b, lg_err *err) {
    FILE *f = fopen(tmp, "wb");
    bool ok = f && fwrite(b->data, 1, b->len_bytes, f) == b->len_bytes;
    if (f && fclose(f) != 0) ok = false;
    if (ok && rename(tmp, path) == 0) return LG_OK;
    lg_status st = LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
    remove(tmp);
    return st;
}

lg_status lg_expert_load_write(const char *path, uint32_t n_layer, uint32_t n_expert,
                               const uint64_t *n_chosen, lg_err *err) {
    lg_buf b = {0}, tmp = {0};
    lg_buf_printf(&b, "{\"n_layer\": %u, \"n_expert\": %u, \"load\": [", n_layer, n_expert);
    for (uint32_t l = 0; l < n_layer; l++)
        for (uint32_t e = 0; e < n_expert; e++)
            lg_buf_printf(&b, "%s%llu%s",
                          e   ? ", "
                          : l ? ",\n["
                              : "\n[",
                          (unsigned long long)n_chosen[(size_t)l * n_expert + e],
                          e + 1 == n_expert ? "]" : "");
    lg_buf_puts(&b, "]}\n");
    lg_buf_printf(&tmp, "%s.part", path);
    lg_status st = b.failed || tmp.failed ? LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path)
                                          : write_file(path, lg_buf_str(&tmp), &b, err);
    lg_buf_fini(&b);
    lg_buf_fini(&tmp);
    return st;
}
