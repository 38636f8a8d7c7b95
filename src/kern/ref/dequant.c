/* dequant.c - rows and panels of stored numbers to float; the blocks of 32 elements.  Contract: kern/dequant.h.
 *
 * A block of 32 keeps element i (< 16) in the low half of byte i and element i + 16 in the high half.
 * Thread: any.  Memory: stack.  Test: tests/unit/test_dequant.c */
#include "kern/dequant.h"

#include "base/num.h"
#include "kern/qlayout.h"

const int8_t lg_dequant_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

const int8_t lg_dequant_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float f16_at(const uint8_t *p) {
    return lg_num_f16(lg_num_load16(p));
}

static int low4(const uint8_t *q, int i) {
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

/* [d][16 bytes]: d (q - 8) */
static void q4_0(const uint8_t *b, float *y) {
    float d = f16_at(b);
    for (int i = 0; i < 32; i++) y[i] = d * (float)(low4(b + 2, i) - 8);
}

/* [d][m][16 bytes]: d q + m */
static void q4_1(const uint8_t *b, float *y) {
    float d = f16_at(b), m = f16_at(b + 2);
    for (int i = 0; i < 32; i++) y[i] = d * (float)low4(b + 4, i) + m;
}

/* [d][32 fifth bits][16 bytes]: d (q - 16) */
static void q5_0(const uint8_t *b, float *y) {
    float d = f16_at(b);
    uint32_t high = lg_num_load32(b + 2);
    for (int i = 0; i < 32; i++) {
        int q = low4(b + 6, i) | (int)(high >> i & 1) << 4;
        y[i] = d * (float)(q - 16);
    }
}

/* [d][m][32 fifth bits][16 bytes]: d q + m */
static void q5_1(const uint8_t *b, float *y) {
    float d = f16_at(b), m = f16_at(b + 2);
    uint32_t high = lg_num_load32(b + 4);
    for (int i = 0; i < 32; i++) {
        int q = low4(b + 8, i) | (int)(high >> i & 1) << 4;
        y[i] = d * (float)q + m;
    }
}

/* [d][32 bytes]: q d */
static void q8_0(const uint8_t *b, float *y) {
    float d = f16_at(b);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)b[2 + i] * d;
}

/* [d][16 bytes]: d value(q) */
static void iq4_nl(const uint8_t *b, float *y) {
    float d = f16_at(b);
    for (int i = 0; i < 32; i++) y[i] = d * (float)lg_dequant_iq4[low4(b + 2, i)];
}

/* [e][16 bytes]: 2^(e - 127) E2M1(q), with half of the power and the values doubled */
static void mxfp4(const uint8_t *b, float *y) {
    uint32_t e = b[0];
    float d = lg_num_float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    for (int i = 0; i < 32; i++) y[i] = d * (float)lg_dequant_e2m1[low4(b + 1, i)];
}

static lg_dequant_fn *decoder(lg_dtype type) {
    switch (type) {
    case LG_Q4_0: return q4_0;
    case LG_Q4_1: return q4_1;
    case LG_Q5_0: return q5_0;
    case LG_Q5_1: return q5_1;
    case LG_Q8_0: return q8_0;
    case LG_IQ4_NL: return iq4_nl;
    case LG_MXFP4: return mxfp4;
    case LG_Q2_K: return lg_dequant_q2_k;
    case LG_Q3_K: return lg_dequant_q3_k;
    case LG_Q4_K: return lg_dequant_q4_k;
    case LG_Q5_K: return lg_dequant_q5_k;
    case LG_Q6_K: return lg_dequant_q6_k;
    case LG_IQ4_XS: return lg_dequant_iq4_xs;
    case LG_IQ2_XXS: return lg_dequant_iq2_xxs;
    case LG_IQ2_XS: return lg_dequant_iq2_xs;
    case LG_IQ2_S: return lg_dequant_iq2_s;
    case LG_IQ3_XXS: return lg_dequant_iq3_xxs;
    case LG_IQ3_S: return lg_dequant_iq3_s;
    case LG_IQ1_S: return lg_dequant_iq1_s;
    case LG_IQ1_M: return lg_dequant_iq1_m;
    case LG_I4_32: return lg_dequant_i4_32;
    case LG_I4_128: return lg_dequant_i4_128;
    case LG_I8_128: return lg_dequant_i8_128;
    case LG_NVFP4: return lg_dequant_nvfp4;
    default: return NULL;
    }
}

static float element(lg_dtype type, const uint8_t *src, size_t i) {
    switch (type) {
    case LG_F32: return lg_num_float_of_bits(lg_num_load32(src + 4 * i));
    case LG_BF16: return lg_num_bf16(lg_num_load16(src + 2 * i));
    case LG_F16: return lg_num_f16(lg_num_load16(src + 2 * i));
    default: return lg_num_e4m3(src[i]);
    }
}

void lg_dequant_row(lg_dtype type, const uint8_t *src, size_t n, float *y) {
    lg_dequant_fn *decode = decoder(type);
    size_t block = lg_dtype_block(type), bytes = lg_dtype_block_bytes(type);
    LG_ASSERT(n % block == 0 && (decode || type < LG_Q4_0));
    for (size_t i = 0; i < n; i += block) {
        if (decode)
            decode(src + i / block * bytes, y + i);
        else
            y[i] = element(type, src, i);
    }
}

void lg_dequant_panel(lg_dtype type, const void *panel, uint32_t k0, uint32_t n_k, float *y) {
    lg_dequant_fn *decode = decoder(type);
    uint32_t n = lg_dtype_block(type);
    size_t bytes = lg_dtype_block_bytes(type);
    uint8_t block[LG_MAX_BLOCK_BYTES];
    float one[LG_MAX_BLOCK];
    LG_ASSERT(decode && k0 % n == 0 && n_k % n == 0);
    for (uint32_t k = k0; k < k0 + n_k; k += n)
        for (uint32_t c = 0; c < LG_NR; c++) {
            lg_qlayout_block(type, (const uint8_t *)panel + (size_t)(k / n) * LG_NR * bytes, c,
                             block);
            decode(block, one);
            for (uint32_t i = 0; i < n; i++) y[(size_t)(k - k0 + i) * LG_NR + c] = one[i];
        }
}
