/* dequant_hf.c - the types that quantised Hugging Face folders are kept in.  Contract: kern/dequant.h.
 *
 *     I4_32, I4_128   [float scale][zero point, 0 .. 16][16 bytes for every 32 elements]: scale (q - zero)
 *     I8_128          [float scale][128 signed bytes]: scale q
 *     NVFP4           [E4M3 scale][8 bytes]: scale E2M1(q); the matrix's number comes in lg_dequant_mat
 *     I4_ANY, I8_ANY  bare q, [n_in][16] in a panel; scales and zero points lie in the matrix's tables
 *
 * 32 elements of four bits lie as in the blocks of dequant.c: i in the low half of byte i, i + 16 in the high one; 16 have
 * eight bytes.  In a panel of I4_ANY byte c (< 8) of an input channel holds channels c (low) and c + 8.
 * Thread: any.  Memory: none.  Test: tests/unit/test_dequant.c */
#include "kern/dequant.h"

#include "base/num.h"
#include "kern/qlayout.h"

static void i4(const uint8_t *b, int n, float *y) {
    float d = lg_num_float_of_bits(lg_num_load32(b));
    int zero = b[4];
    for (int k = 0; k < n; k++) {
        uint8_t two = b[5 + k / 32 * 16 + k % 16];
        y[k] = d * (float)((k % 32 < 16 ? two & 15 : two >> 4) - zero);
    }
}

void lg_dequant_i4_32(const uint8_t *b, float *y) {
    i4(b, 32, y);
}

void lg_dequant_i4_128(const uint8_t *b, float *y) {
    i4(b, 128, y);
}

void lg_dequant_i8_128(const uint8_t *b, float *y) {
    float d = lg_num_float_of_bits(lg_num_load32(b));
    for (int k = 0; k < 128; k++) y[k] = d * (float)(int8_t)b[4 + k];
}

static void nvfp4(const uint8_t *b, float scale, float *y) {
    float d = 0.5f * (lg_num_e4m3(b[0]) * scale);
    for (int k = 0; k < 16; k++)
        y[k] = d * (float)lg_dequant_e2m1[k < 8 ? b[1 + k] & 15 : b[1 + k - 8] >> 4];
}

void lg_dequant_nvfp4(const uint8_t *b, float *y) {
    nvfp4(b, 1.0f, y);
}

static void mat_nvfp4(const lg_mat *w, const uint8_t *panel, uint32_t k0, uint32_t n_k,
                      float *y) {
    uint8_t block[LG_MAX_BLOCK_BYTES];
    float one[16];
    LG_ASSERT(k0 % 16 == 0 && n_k % 16 == 0);
    for (uint32_t k = 0; k < n_k; k += 16)
        for (uint32_t c = 0; c < LG_NR; c++) {
            lg_qlayout_block(LG_NVFP4, panel + (size_t)(k0 + k) * 9, c, block);
            nvfp4(block, w->scale[0], one);
            for (uint32_t i = 0; i < 16; i++) y[(size_t)(k + i) * LG_NR + c] = one[i];
        }
}

static void mat_any(const lg_mat *w, const uint8_t *panel, uint32_t p, uint32_t k0,
                    uint32_t n_k, float *y) {
    for (uint32_t k = k0; k < k0 + n_k; k++, y += LG_NR) {
        size_t table = ((size_t)p * w->n_group + w->group[k]) * LG_NR;
        const float *scale = w->scale + table;
        const uint8_t *zero = w->zero + table;
        uint8_t q[LG_NR];
        for (uint32_t c = 0; c < LG_NR; c++)
            q[c] = w->type == LG_I8_ANY ? panel[(size_t)k * LG_NR + c]
                   : c < 8              ? panel[(size_t)k * 8 + c] & 15
                                        : panel[(size_t)k * 8 + c - 8] >> 4;
        for (uint32_t c = 0; c < LG_NR; c++)
            y[c] = scale[c] * (float)((int)q[c] - (int)zero[c]);
    }
}

void lg_dequant_mat(const lg_mat *w, uint32_t panel, uint32_t k0, uint32_t n_k, float *y) {
    const uint8_t *p =
        (const uint8_t *)w->panel + panel * lg_dtype_panel_bytes(w->type, w->n_in);
    if (w->type == LG_NVFP4)
        mat_nvfp4(w, p, k0, n_k, y);
    else if (lg_dtype_has_table(w->type))
        mat_any(w, p, panel, k0, n_k, y);
    else
        lg_dequant_panel(w->type, p, k0, n_k, y);
}
