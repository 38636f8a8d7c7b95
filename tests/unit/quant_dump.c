/* quant_dump.c - `quant_dump FOLDER`: the matrices of layer 0 as little-endian floats on standard output, in the order in_proj_qkv,
 * in_proj_z, out_proj, gate_proj, up_proj, down_proj, each row by row.  Every number comes from a product with a unit vector, so
 * it is what the kernels multiply with.  For tests/py/quant_packages.py. */
#include "model/weights/weights.h"

#include <stdio.h>

static bool dump(const lg_mat *m) {
    const lg_kern *k = lg_kern_level("ref");
    float *x = lg_mem_calloc(m->n_in, sizeof *x), *y = lg_mem_calloc(m->n_out, sizeof *y);
    float *w = lg_mem_calloc((size_t)m->n_out * m->n_in, sizeof *w);
    LG_ASSERT(x && y && w);
    for (uint32_t i = 0; i < m->n_in; i++) {
        x[i] = 1;
        k->gemm(m, 0, lg_mat_n_panel(m), x, m->n_in, NULL, 1, y, m->n_out);
        x[i] = 0;
        for (uint32_t r = 0; r < m->n_out; r++) w[(size_t)r * m->n_in + i] = y[r];
    }
    size_t n = (size_t)m->n_out * m->n_in;
    bool ok = fwrite(w, sizeof *w, n, stdout) == n;
    lg_mem_free(x);
    lg_mem_free(y);
    lg_mem_free(w);
    return ok;
}

int main(int argc, char **argv) {
    lg_weights *w = NULL;
    lg_err err;
    if (argc != 2) return 2;
    if (lg_weights_open(argv[1], NULL, NULL, NULL, &w, &err) != LG_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const lg_layer_w *l = &w->layer[0];
    const lg_mat *all[] = {&l->qkv, &l->z, &l->out, &l->mlp.gate, &l->mlp.up, &l->mlp.down};
    bool ok = true;
    for (size_t i = 0; i < LG_COUNT(all); i++) ok = dump(all[i]) && ok;
    lg_weights_close(&w);
    return ok ? 0 : 1;
}
