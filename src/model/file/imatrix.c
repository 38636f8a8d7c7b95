/* imatrix.c - files with the importance of channels: see imatrix.h.  Memory: the mapping and its table. */
#include "model/file/imatrix.h"

#include "base/mem.h"
#include "base/num.h"
#include "model/file/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SUM   ".in_sum2"
#define COUNT ".counts"

struct lg_imatrix {
    lg_gguf *g;
};

static bool ends(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

lg_status lg_imatrix_open(const char *path, lg_imatrix **out, lg_err *err) {
    lg_imatrix *im = lg_mem_alloc(sizeof *im);
    *out = im;
    if (!im) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    lg_status st = lg_gguf_open(path, &im->g, err);
    size_t n = 0;
    for (size_t i = 0; st == LG_OK && i < lg_tensors_count(lg_gguf_tensors(im->g)); i++)
        n += ends(lg_tensors_at(lg_gguf_tensors(im->g), i)->name, SUM);
    if (st == LG_OK && n == 0)
        st = LG_FAIL(err, LG_E_FORMAT, "%s: found no tensor named *" SUM, path);
    if (st != LG_OK) lg_imatrix_close(out);
    return st;
}

void lg_imatrix_close(lg_imatrix **im) {
    if (*im) lg_gguf_close(&(*im)->g);
    LG_FREE(*im);
}

lg_imatrix_entry lg_imatrix_find(const lg_imatrix *im, const char *name, uint64_t n_expert,
                                 uint32_t n_in) {
    char text[128];
    lg_imatrix_entry e;
    snprintf(text, sizeof text, "%.100s" SUM, name);
    e.sum = lg_tensors_find(lg_gguf_tensors(im->g), text);
    snprintf(text, sizeof text, "%.100s" COUNT, name);
    e.count = lg_tensors_find(lg_gguf_tensors(im->g), text);
    if (e.sum && e.count && e.sum->type == LG_F32 && e.count->type == LG_F32 &&
        e.sum->len_bytes == n_expert * n_in * sizeof(float) &&
        e.count->len_bytes == n_expert * sizeof(float))
        return e;
    return (lg_imatrix_entry){NULL, NULL};
}

bool lg_imatrix_weights(lg_imatrix_entry e, uint64_t expert, uint32_t n_in, float *w) {
    double mean = 0;
    if (!e.sum) return false;
    float count = lg_num_float_of_bits(lg_num_load32(e.count->data + 4 * expert));
    const uint8_t *at = e.sum->data + 4 * expert * n_in;
    if (!(count > 0) || !isfinite(count)) return false;
    for (uint32_t i = 0; i < n_in; i++) {
        w[i] = lg_num_float_of_bits(lg_num_load32(at + 4 * (size_t)i)) / count;
        if (!(w[i] >= 0)) return false;
        mean += (double)w[i];
    }
    mean /= n_in;
    if (!isfinite(mean) || !(mean > 0)) return false;
    for (uint32_t i = 0; i < n_in; i++) w[i] = (float)(((double)w[i] + 1e-4 * mean) / mean);
    return true;
}
