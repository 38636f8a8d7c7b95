/* attn_ref.c - one page of attention, and what is stored in it, plain C.  Test: tests/unit/test_kern.c */
#include "kern/ref/ref.h"
#include "base/num.h"
#include "kern/vmath.h"

#include <string.h>

/* Element `at` of keys or values as a float; Q8_0: its 32 have scale[s]. */
static float element(lg_dtype kv, const uint8_t *from, size_t at, const uint16_t *scale,
                     size_t s) {
    switch (kv) {
    case LG_BF16: return lg_num_bf16(lg_num_load16(from + 2 * at));
    case LG_F16: return lg_num_f16(lg_num_load16(from + 2 * at));
    case LG_Q8_0: return (float)((const int8_t *)from)[at] * lg_num_f16(scale[s]);
    default: return lg_num_float_of_bits(lg_num_load32(from + 4 * at));
    }
}

/* Element i of the key, or of the value, at position j. */
static float key(const lg_attn_arg *a, const lg_kv_part *at, uint32_t i, uint32_t j) {
    return element(a->kv, at->key, (size_t)i * LG_PAGE_TOK + j, at->key_scale,
                   i / 32 * LG_PAGE_TOK + j);
}

static float value(const lg_attn_arg *a, const lg_kv_part *at, uint32_t i, uint32_t j) {
    return element(a->kv, at->value, (size_t)j * a->d + i, at->value_scale,
                   i / 32 * LG_PAGE_TOK + j);
}

/* Weights p of the n visible positions and their maximum and sum. */
static void weights(const lg_attn_arg *a, const lg_kv_part *at, const float *q, uint32_t n,
                    float *p, float *m, float *l) {
    for (uint32_t j = 0; j < n; j++) p[j] = 0.0f;
    for (uint32_t i = 0; i < a->d; i++)
        for (uint32_t j = 0; j < n; j++) p[j] = fmaf(q[i], key(a, at, i, j), p[j]);
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
    lg_kv_part at = lg_kv_at(a->kv, a->d, a->page);
    for (uint32_t r = 0; r < a->n_q; r++) {
        float p[LG_PAGE_TOK], m_b, l_b, *acc = a->acc + (size_t)r * a->d;
        uint32_t n = a->n_see[r];
        if (n == 0) continue;
        weights(a, &at, a->q + r * a->ld_q, n, p, &m_b, &l_b);
        float m = a->first || m_b > a->m[r] ? m_b : a->m[r];
        float c = a->first ? 0.0f : lg_expf(a->m[r] - m), c_b = lg_expf(m_b - m);
        for (uint32_t i = 0; i < a->d; i++) {
            float sum = 0.0f;
            for (uint32_t j = 0; j < n; j++) sum = fmaf(p[j], value(a, &at, i, j), sum);
            acc[i] = a->first ? sum : fmaf(sum, c_b, acc[i] * c);
        }
        a->l[r] = a->first ? l_b : fmaf(l_b, c_b, a->l[r] * c);
        a->m[r] = m;
    }
}

/* Scale of n <= 32 elements. */
static uint16_t scale_of(const float *x, uint32_t n) {
    float amax = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return lg_num_to_f16(NAN);
        if (fabsf(x[i]) > amax) amax = fabsf(x[i]);
    }
    return lg_num_to_f16(amax / 127.0f);
}

static int8_t byte_of(float x, float scale) {
    if (!(scale > 0.0f)) return 0;
    float v = x / scale;
    return (int8_t)lrintf(v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v);
}

/* Element i of x [d] rounded, to place `at` of `to`; scale: of its 32. */
static void put(lg_dtype kv, float x, uint8_t *to, size_t at, float scale) {
    uint16_t h = kv == LG_BF16 ? lg_num_to_bf16(x) : lg_num_to_f16(x);
    if (kv == LG_F32) {
        memcpy(to + 4 * at, &x, sizeof x);
    } else if (kv == LG_Q8_0) {
        to[at] = (uint8_t)byte_of(x, scale);
    } else {
        memcpy(to + 2 * at, &h, sizeof h);
    }
}

void lg_attn_ref_store(lg_dtype kv, const float *k, const float *v, uint32_t d, uint32_t j,
                       void *page) {
    lg_kv_part at = lg_kv_at(kv, d, page);
    for (uint32_t g = 0; g < d; g += 32) {
        uint32_t n = d - g < 32 ? d - g : 32;
        size_t s = (size_t)g / 32 * LG_PAGE_TOK + j;
        uint16_t ks = scale_of(k + g, n), vs = scale_of(v + g, n);
        if (kv == LG_Q8_0) {
            at.key_scale[s] = ks;
            at.value_scale[s] = vs;
        }
        for (uint32_t i = g; i < g + n; i++) {
            put(kv, k[i], at.key, (size_t)i * LG_PAGE_TOK + j, lg_num_f16(ks));
            put(kv, v[i], at.value, (size_t)j * d + i, lg_num_f16(vs));
        }
    }
}
