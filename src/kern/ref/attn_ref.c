/* attn_ref.c - one page of attention, plain C.  Test: tests/unit/test_kern.c */
#include "kern/ref/ref.h"
#include "kern/vmath.h"

/* Weights p of the n visible positions and their maximum and sum. */
static void weights(const lg_attn_arg *a, const float *q, uint32_t n, float *p, float *m,
                    float *l) {
    for (uint32_t j = 0; j < n; j++) p[j] = 0.0f;
    for (uint32_t i = 0; i < a->d; i++)
        for (uint32_t j = 0; j < n; j++)
            p[j] = fmaf(q[i], a->k_page[(size_t)i * LG_PAGE_TOK + j], p[j]);
    *m = p[0] * a->scale;
    for (uint32_t j = 0; j < n; j++) {
        p[j] = a->scale * p[j];
        if (p[j] > *m) *m = p[j];
    }
    *m += 0.0f; /* a zero is +0, whichever of equal zeros was found */
    *l = 0.0f;
    for (uint32_t j = 0; j < n; j++) {
        p[j] = lg_expf(p[j] - *m);
        *l += p[j];
    }
}

void lg_attn_ref_page(const lg_attn_arg *a) {
    for (uint32_t r = 0; r < a->n_q; r++) {
        float p[LG_PAGE_TOK], m_b, l_b, *acc = a->acc + (size_t)r * a->d;
        uint32_t n = a->n_see[r];
        if (n == 0) continue;
        weights(a, a->q + r * a->ld_q, n, p, &m_b, &l_b);
        float m = a->first || m_b > a->m[r] ? m_b : a->m[r];
        float c = a->first ? 0.0f : lg_expf(a->m[r] - m), c_b = lg_expf(m_b - m);
        for (uint32_t i = 0; i < a->d; i++) {
            float sum = 0.0f;
            for (uint32_t j = 0; j < n; j++)
                sum = fmaf(p[j], a->v_page[(size_t)j * a->d + i], sum);
            acc[i] = a->first ? sum : fmaf(sum, c_b, acc[i] * c);
        }
        a->l[r] = a->first ? l_b : fmaf(l_b, c_b, a->l[r] * c);
        a->m[r] = m;
    }
}
