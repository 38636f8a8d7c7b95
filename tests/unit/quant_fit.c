/* quant_fit.c - see quant_fit.h. */
#include "quant_fit.h"

#include "base/base.h"
#include "kern/dequant.h"
#include "rig.h"

#include <math.h>
#include <string.h>

/* To binary16, mantissa cut; 0 below its normal numbers. */
static void put_f16(float x, uint8_t *p) {
    uint32_t bits = lg_num_bits_of_float(x);
    int e = (int)(bits >> 23 & 255) - 112;
    uint16_t h =
        e < 1 ? 0 : (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)e << 10 | (bits >> 13 & 1023));
    LG_ASSERT(e < 31);
    memcpy(p, &h, 2);
}

static float get_f16(const uint8_t *p) {
    return lg_num_f16(lg_num_load16(p));
}

static int rounded(float x, float step, int lo, int hi) {
    int v = step > 0 ? (int)lrintf(x / step) : 0;
    return v < lo ? lo : v > hi ? hi : v;
}

static float extreme(const float *x, int n) {
    float m = 0;
    for (int i = 0; i < n; i++) m = fmaxf(m, fabsf(x[i]));
    return m;
}

static void fit_q8_0(const float *x, uint8_t *b) {
    put_f16(extreme(x, 32) / 127, b);
    for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)rounded(x[i], get_f16(b), -127, 127);
}

static void fit_q4_k(const float *x, uint8_t *b) {
    float range[8], min[8], most = 0, most_min = 0;
    int sc[8], mn[8];
    for (int r = 0; r < 8; r++) {
        float lo = 0, hi = 0;
        for (int i = 0; i < 32; i++) {
            lo = fminf(lo, x[32 * r + i]);
            hi = fmaxf(hi, x[32 * r + i]);
        }
        min[r] = -lo;
        range[r] = (hi - lo) / 15;
        most = fmaxf(most, range[r]);
        most_min = fmaxf(most_min, min[r]);
    }
    memset(b, 0, 144);
    put_f16(most / 63, b);
    put_f16(most_min / 63, b + 2);
    float d = get_f16(b), dmin = get_f16(b + 2);
    for (int r = 0; r < 8; r++) {
        sc[r] = rounded(range[r], d, 0, 63);
        mn[r] = rounded(min[r], dmin, 0, 63);
        for (int i = 0; i < 32; i++) {
            int q = rounded(x[32 * r + i] + dmin * (float)mn[r], d * (float)sc[r], 0, 15);
            b[16 + r / 2 * 32 + i] |= (uint8_t)(q << r % 2 * 4);
        }
    }
    for (int r = 0; r < 4; r++) {
        b[4 + r] = (uint8_t)(sc[r] | sc[r + 4] >> 4 << 6);
        b[8 + r] = (uint8_t)(mn[r] | mn[r + 4] >> 4 << 6);
        b[12 + r] = (uint8_t)((sc[r + 4] & 15) | (mn[r + 4] & 15) << 4);
    }
}

static void fit_q6_k(const float *x, uint8_t *b) {
    memset(b, 0, 210);
    put_f16(extreme(x, 256) / 31 / 127, b + 208);
    for (int r = 0; r < 16; r++) {
        int sc = rounded(extreme(x + 16 * r, 16) / 31, get_f16(b + 208), 0, 127);
        b[192 + r] = (uint8_t)sc;
        for (int k = 16 * r; k < 16 * r + 16; k++) {
            int q = rounded(x[k], get_f16(b + 208) * (float)sc, -32, 31) + 32;
            int half = k / 128, at = k % 128;
            b[half * 64 + at % 64] |= (uint8_t)((q & 15) << at / 64 * 4);
            b[128 + half * 32 + at % 32] |= (uint8_t)(q >> 4 << at / 32 * 2);
        }
    }
}

static void fit(quant_fit *f, lg_mat *m, bool k_types) {
    bool wide = k_types && m->n_in % 256 == 0;
    lg_dtype type = !wide ? LG_Q8_0 : f->n % 2 ? LG_Q6_K : LG_Q4_K;
    uint32_t block = lg_dtype_block(type);
    size_t bytes = lg_dtype_block_bytes(type), row = m->n_in / block * bytes;
    uint8_t *rows = lg_mem_alloc(m->n_out * row);
    void *panel = lg_mem_alloc((size_t)lg_pack_bytes(type, m->n_out, m->n_in));
    LG_ASSERT(rows && panel && f->n < LG_COUNT(f->panel) && m->n_in % block == 0);
    for (uint32_t c = 0; c < m->n_out; c++)
        for (uint32_t k = 0; k < m->n_in; k += block) {
            float x[LG_MAX_BLOCK];
            size_t len;
            for (uint32_t i = 0; i < block; i++)
                lg_dequant_row(m->type, rig_element(m, c, k + i, &len), 1, x + i);
            uint8_t *b = rows + c * row + k / block * bytes;
            if (type == LG_Q8_0) fit_q8_0(x, b);
            if (type == LG_Q4_K) fit_q4_k(x, b);
            if (type == LG_Q6_K) fit_q6_k(x, b);
        }
    lg_pack_panels(type, rows, m->n_out, m->n_in, 0, lg_mat_n_panel(m), panel);
    lg_mem_free(rows);
    m->type = type;
    m->panel = f->panel[f->n++] = panel;
    f->n_type[type]++;
}

static void fit_mlp(quant_fit *f, lg_mlp_w *m, bool k_types) {
    fit(f, &m->gate, k_types);
    fit(f, &m->up, k_types);
    fit(f, &m->down, k_types);
}

void quant_fit_weights(quant_fit *f, lg_weights *w, bool k_types) {
    *f = (quant_fit){0};
    for (uint32_t i = 0; i < w->cfg.n_layer; i++) {
        lg_layer_w *l = &w->layer[i];
        lg_mat *attn[] = {&l->q, &l->k, &l->v, &l->o}, *gdn[] = {&l->qkv, &l->z, &l->out};
        if (l->kind == LG_LAYER_ATTN)
            for (size_t j = 0; j < LG_COUNT(attn); j++) fit(f, attn[j], k_types);
        else
            for (size_t j = 0; j < LG_COUNT(gdn); j++) fit(f, gdn[j], k_types);
        if (w->cfg.n_expert == 0) fit_mlp(f, &l->mlp, k_types);
        if (w->cfg.n_expert == 0) continue;
        for (uint32_t e = 0; e < w->cfg.n_expert; e++) fit_mlp(f, &l->expert[e], k_types);
        fit_mlp(f, &l->shared, k_types);
    }
    fit(f, &w->head, k_types);
}

void quant_fit_fini(quant_fit *f) {
    while (f->n > 0) lg_mem_free(f->panel[--f->n]);
}
