/* small.c - the kernels that are not dispatched: GDN gates and kept keys, rotary table, router.
 * Contracts: kern.h.  Test: tests/unit/test_kern.c */
#include "kern/kern.h"
#include "kern/vmath.h"

/* Transposed keys (dk x C), keys and queries (2 x C x dk), their dots with the open keys (2 x C x C), cumulative decay (C), what memory
 * returns for them (2 x C x dv). */
size_t lg_gdn_scratch_floats(uint32_t dk, uint32_t dv) {
    return (size_t)LG_GDN_C * (3 * (size_t)dk + 2 * (size_t)dv + 2 * LG_GDN_C + 1);
}

uint32_t lg_gdn_keep_k(const float *k, size_t ld_k, uint32_t dk, uint32_t n_tok,
                       uint32_t n_open, float *open_k) {
    uint32_t n_end = (n_open + n_tok) % LG_GDN_C, n_all = n_open + n_tok;
    /* Rows kept: the last n_end of all, and of these only tokens of this call are new. */
    uint32_t first = n_all - n_end;
    for (uint32_t row = first < n_open ? n_open : first; row < n_all; row++)
        for (uint32_t i = 0; i < dk; i++)
            open_k[(size_t)i * LG_GDN_C + row % LG_GDN_C] = k[(row - n_open) * ld_k + i];
    return n_end;
}

void lg_gdn_keep_g(const float *g, size_t ld_g, uint32_t n_tok, uint32_t n_open,
                   float *open_g) {
    uint32_t n_all = n_open + n_tok, first = n_all - n_all % LG_GDN_C;
    for (uint32_t row = first < n_open ? n_open : first; row < n_all; row++) {
        uint32_t at = row % LG_GDN_C;
        open_g[at] = (at ? open_g[at - 1] : 0.0f) + g[(row - n_open) * ld_g];
    }
}

void lg_gdn_gates(const float *a, const float *b, const float *neg_exp_a, const float *dt_bias,
                  uint32_t n, float *g, float *beta) {
    for (uint32_t i = 0; i < n; i++) {
        float x = a[i] + dt_bias[i];
        g[i] = neg_exp_a[i] * ((x > 0.0f ? x : 0.0f) + log1pf(lg_expf(-fabsf(x))));
        beta[i] = lg_sigmoidf(b[i]);
    }
}

void lg_rope_table(uint32_t pos, double theta, uint32_t n_rot, float *cos_out, float *sin_out) {
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        double angle = pos * pow(theta, -2.0 * i / n_rot);
        cos_out[i] = (float)cos(angle);
        sin_out[i] = (float)sin(angle);
    }
}

/* Whether logit a goes before b; a NaN goes last. */
static bool before(float a, float b) {
    return a > b || (b != b && a == a);
}

void lg_router_topk(const float *logit, uint32_t n, uint32_t k, uint32_t *id, float *weight) {
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = n_kept;
        while (at > 0 && before(logit[i], logit[id[at - 1]])) at--;
        if (at == k) continue;
        if (n_kept < k) n_kept++;
        for (uint32_t j = n_kept - 1; j > at; j--) id[j] = id[j - 1];
        id[at] = i;
    }
    float sum = 0.0f;
    for (uint32_t j = 0; j < n_kept; j++) {
        weight[j] = lg_expf(logit[id[j]] - logit[id[0]]);
        sum += weight[j];
    }
    for (uint32_t j = 0; j < n_kept; j++) weight[j] /= sum;
}
