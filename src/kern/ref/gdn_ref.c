/* gdn_ref.c - Gated DeltaNet in row form, one token after the other, plain C.
 *
 * Open row l of the current block is either a column of open_k (it was open before the call) or a token of this call.
 * Test: tests/unit/test_kern.c */
#include "kern/ref/ref.h"
#include "kern/vmath.h"

/* Keys of the open rows: those before the call, then tokens t0, t0 + 1 ... of it. */
typedef struct open_rows {
    const lg_gdn_arg *a;
    uint32_t n_old, t0;
    const float *g; /* cumulative log-decay of the open rows */
} open_rows;

static float key_at(const open_rows *o, uint32_t l, uint32_t i) {
    if (l < o->n_old) return o->a->open_k[(size_t)i * LG_GDN_C + l];
    return o->a->k[(o->t0 + l - o->n_old) * o->a->ld_qk + i];
}

static float key_dot(const open_rows *o, uint32_t l, const float *x) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < o->a->dk; i++) sum = fmaf(x[i], key_at(o, l, i), sum);
    return sum;
}

/* y = e (x S), 0 where S is not there yet. */
static void project(const lg_gdn_arg *a, bool has_s, const float *x, float e, float *y) {
    for (uint32_t j = 0; j < a->dv; j++) y[j] = 0.0f;
    if (!has_s) return;
    for (uint32_t i = 0; i < a->dk; i++)
        for (uint32_t j = 0; j < a->dv; j++)
            y[j] = fmaf(x[i], a->s[(size_t)i * a->ld_s + j], y[j]);
    for (uint32_t j = 0; j < a->dv; j++) y[j] = e * y[j];
}

static void fold(const lg_gdn_arg *a, bool has_s, const open_rows *o) {
    float g_last = o->g[LG_GDN_C - 1], e = lg_expf(g_last);
    for (uint32_t i = 0; i < a->dk; i++) {
        float *s = a->s + (size_t)i * a->ld_s;
        for (uint32_t j = 0; j < a->dv; j++) s[j] = has_s ? e * s[j] : 0.0f;
        for (uint32_t l = 0; l < LG_GDN_C; l++) {
            float w = lg_expf(g_last - o->g[l]) * key_at(o, l, i);
            for (uint32_t j = 0; j < a->dv; j++)
                s[j] = fmaf(w, a->open_d[(size_t)l * a->ld_s + j], s[j]);
        }
    }
}

void lg_gdn_ref_rows(const lg_gdn_arg *a) {
    float *r = a->scratch, *p = a->scratch + a->dv, sum_g[LG_GDN_C];
    open_rows o = {.a = a, .n_old = a->n_open, .g = sum_g};
    uint32_t n = a->n_open;
    bool has_s = a->has_init;
    for (uint32_t l = 0; l < n; l++) sum_g[l] = a->open_g[l];
    for (uint32_t t = 0; t < a->n_tok; t++) {
        const float *q = a->q + t * a->ld_qk, *k = a->k + t * a->ld_qk, *v = a->v + t * a->ld_v;
        float *d = a->open_d + (size_t)n * a->ld_s, qk = 0.0f;
        float g = (n ? sum_g[n - 1] : 0.0f) + a->g[t * a->ld_g], e = lg_expf(g);
        project(a, has_s, k, e, r);
        project(a, has_s, q, e, p);
        for (uint32_t l = 0; l < n; l++) {
            const float *dl = a->open_d + (size_t)l * a->ld_s;
            float w = lg_expf(g - sum_g[l]);
            float wk = w * key_dot(&o, l, k), wq = w * key_dot(&o, l, q);
            for (uint32_t j = 0; j < a->dv; j++) r[j] = fmaf(wk, dl[j], r[j]);
            for (uint32_t j = 0; j < a->dv; j++) p[j] = fmaf(wq, dl[j], p[j]);
        }
        for (uint32_t j = 0; j < a->dv; j++) d[j] = a->beta[t * a->ld_g] * (v[j] - r[j]);
        for (uint32_t i = 0; i < a->dk; i++) qk = fmaf(q[i], k[i], qk);
        for (uint32_t j = 0; j < a->dv; j++) a->o[t * a->ld_o + j] = fmaf(qk, d[j], p[j]);
        sum_g[n++] = g;
        if (n == LG_GDN_C) {
            fold(a, has_s, &o);
            has_s = true;
            n = 0;
            o = (open_rows){.a = a, .n_old = 0, .t0 = t + 1, .g = sum_g};
        }
    }
}
