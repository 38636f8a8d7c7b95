/* qgemm_ref.c - rows to integers, and their product with blocks, plain C.  Test: tests/unit/test_qgemm.c */
#include "base/num.h"
#include "kern/dequant.h"
#include "kern/qlayout.h"
#include "kern/ref/ref.h"

#include <math.h>

void lg_quant_row_ref(const float *x, uint32_t n, const lg_qrows *q, size_t row) {
    lg_qrows r = lg_qrows_at(q, row);
    for (uint32_t g = 0; g < n / q->group; g++, x += q->group) {
        uint32_t max = 0;
        for (uint32_t i = 0; i < q->group; i++) {
            uint32_t bits = lg_num_bits_of_float(x[i]) & 0x7fffffffu;
            if (bits > max) max = bits;
        }
        float amax = lg_num_float_of_bits(max);
        bool finite = max < 0x7f800000u, zero = !finite || amax < 0x1p-100f;
        r.d[g] = !finite ? NAN : zero ? 0.0f : amax / 127.0f;
        float inv = zero ? 0.0f : 127.0f / amax;
        for (uint32_t i = 0; i < q->group; i++) {
            size_t at = (size_t)g * q->group + i;
            int v = zero ? 0 : (int)lrintf(x[i] * inv);
            r.v8[at] = (int8_t)v;
            r.v16[at] = (int16_t)v;
            r.sum16[at / 16] = (int16_t)(at % 16 ? r.sum16[at / 16] + v : v);
            r.sum[at / 32] = (int16_t)(at % 32 ? r.sum[at / 32] + v : v);
        }
    }
}

/* Group b of a row times one channel of a block, from the block's element k0 on, added to acc. */
static float add_group(const lg_qsplit *s, uint32_t k0, bool has_min, const lg_qrows *x,
                       uint32_t b, float acc) {
    int32_t sum = 0, min = 0;
    const int16_t *v = x->v16 + (size_t)b * x->group;
    const int16_t *v16 = x->sum16 + (size_t)b * x->group / 16;
    for (uint32_t k = 0; k < x->group; k++) sum += s->i[k0 + k] * v[k];
    for (uint32_t k = 0; k < x->group / 16; k++) min += s->j[k] * v16[k];
    acc = fmaf((float)sum, s->d * x->d[b], acc);
    return has_min ? fmaf(-(float)min, s->m * x->d[b], acc) : acc;
}

void lg_qgemm_ref(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const lg_qrows *x,
                  const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y) {
    uint32_t block = lg_dtype_block(w->type), end = (panel0 + n_panel) * LG_NR;
    size_t panel_bytes = lg_dtype_panel_bytes(w->type, w->n_in);
    bool has_min = lg_qsplit_has_min(w->type);
    LG_ASSERT(lg_dtype_is_int(w->type) && x->group == lg_dtype_row_group(w->type));
    for (uint32_t c = panel0 * LG_NR; c < end && c < w->n_out; c++) {
        const uint8_t *group = (const uint8_t *)w->panel + c / LG_NR * panel_bytes;
        for (uint32_t r = 0; r < n_row; r++) y[r * ld_y + c] = 0.0f;
        for (uint32_t b = 0; b < w->n_in / block; b++) {
            uint8_t raw[LG_MAX_BLOCK_BYTES];
            lg_qsplit s;
            lg_qlayout_block(w->type, group, c % LG_NR, raw);
            lg_qsplit_block(w->type, raw, &s);
            group += LG_NR * lg_dtype_block_bytes(w->type);
            for (uint32_t r = 0; r < n_row; r++) {
                lg_qrows one = lg_qrows_at(x, row_idx ? row_idx[r] : r);
                float *acc = &y[r * ld_y + c];
                for (uint32_t k = 0; k < block; k += x->group)
                    *acc = add_group(&s, k, has_min, &one, (b * block + k) / x->group, *acc);
            }
        }
    }
}
