/* gdn_plain.c - gdn_plain.h, written as the formulas are. */
#include "gdn_plain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define D GDN_D

static void unit(double *x, double scale) {
    double s = 1e-6;
    for (int i = 0; i < D; i++) s += x[i] * x[i];
    for (int i = 0; i < D; i++) x[i] *= scale / sqrt(s);
}

void gdn_plain_row(const gdn_plain *g, const float *qkv, const float *a, const float *b,
                   float *conv, double *state, float *o) {
    uint32_t r = 2 * g->nk + g->nv;
    size_t n = (size_t)r * D;
    double *u = malloc(n * sizeof *u);
    if (!u) abort();
    for (size_t i = 0; i < n; i++) {
        double s = (double)g->conv_w[3 * n + i] * qkv[i];
        for (size_t j = 0; j < 3; j++) s += (double)g->conv_w[j * n + i] * conv[j * n + i];
        u[i] = s / (1 + exp(-s));
    }
    memmove(conv, conv + n, 2 * n * sizeof *conv);
    memcpy(conv + 2 * n, qkv, n * sizeof *conv);
    for (uint32_t h = 0; h < g->nk; h++) {
        unit(u + (size_t)h * D, 1 / sqrt(D));
        unit(u + (size_t)(g->nk + h) * D, 1);
    }
    for (uint32_t h = 0; h < g->nv; h++) {
        const double *q = u + (size_t)(h / (g->nv / g->nk)) * D, *k = q + (size_t)g->nk * D;
        const double *v = u + (size_t)(2 * g->nk + h) * D;
        double *s = state + (size_t)h * D * D;
        double e = exp(g->neg_a[h] * log1p(exp(a[h] + g->dt[h]))), beta = 1 / (1 + exp(-b[h]));
        for (int j = 0; j < D; j++) {
            double read = 0, out = 0;
            for (int i = 0; i < D; i++) read += k[i] * (s[i * D + j] *= e);
            for (int i = 0; i < D; i++)
                out += q[i] * (s[i * D + j] += k[i] * beta * (v[j] - read));
            o[h * D + (uint32_t)j] = (float)out;
        }
    }
    free(u);
}
