/* quant_data.h - random matrices of block types for tests: file blocks, their panels and what they decode to. */
#ifndef LG_TESTS_QUANT_DATA_H
#define LG_TESTS_QUANT_DATA_H

#include "kern_data.h"

#include "kern/dequant.h"
#include "model/weights/weights.h"

/* Places of the binary16 numbers of a block, -1: none. */
static const int quant_f16[LG_N_DTYPE][2] = {
    [LG_Q4_0] = {0, -1},    [LG_Q4_1] = {0, 2},     [LG_Q5_0] = {0, -1},
    [LG_Q5_1] = {0, 2},     [LG_Q8_0] = {0, -1},    [LG_IQ4_NL] = {0, -1},
    [LG_MXFP4] = {-1, -1},  [LG_Q2_K] = {80, 82},   [LG_Q3_K] = {108, -1},
    [LG_Q4_K] = {0, 2},     [LG_Q5_K] = {0, 2},     [LG_Q6_K] = {208, -1},
    [LG_IQ2_XXS] = {0, -1}, [LG_IQ2_XS] = {0, -1},  [LG_IQ2_S] = {0, -1},
    [LG_IQ3_XXS] = {0, -1}, [LG_IQ3_S] = {0, -1},   [LG_IQ1_S] = {0, -1},
    [LG_IQ1_M] = {-1, -1},  [LG_IQ4_XS] = {0, -1},  [LG_I4_32] = {-1, -1},
    [LG_I4_128] = {-1, -1}, [LG_I8_128] = {-1, -1}, [LG_NVFP4] = {-1, -1},
};

/* A float of about 2^-9, of either sign. */
static inline void random_scale(uint8_t *at) {
    float d = random_in(-0x1p-8f, 0x1p-8f);
    memcpy(at, &d, sizeof d);
}

/* n random blocks; scales are about 2^-9, of both signs. */
static inline uint8_t *random_blocks(lg_dtype type, size_t n) {
    size_t bytes = lg_dtype_block_bytes(type);
    uint8_t *b = guarded(n * bytes);
    for (size_t i = 0; i < n * bytes; i++) b[i] = (uint8_t)lg_num_rng(11, 0, random_draw++, 0);
    for (size_t i = 0; i < n; i++) {
        uint8_t *one = b + i * bytes;
        for (int j = 0; j < 2; j++) {
            int at = quant_f16[type][j];
            if (at >= 0) one[at + 1] = (one[at + 1] & 0x83) | 0x18;
        }
        if (type == LG_IQ1_M) one[55] = (one[55] & 0x8f) | 0x10;
        if (type == LG_MXFP4) one[0] = (uint8_t)(118 + one[0] % 4);
        if (type >= LG_I4_32 && type <= LG_I8_128) random_scale(one);
        if (type == LG_I4_32 || type == LG_I4_128) one[4] %= 17;
        if (type == LG_NVFP4) one[0] = (one[0] & 0x80) | one[0] % 64;
    }
    return b;
}

typedef struct quant_mat {
    lg_mat w;
    uint8_t *rows; /* as in a file; NULL for LG_I*_ANY */
    float *dense;  /* [n_out][n_in] */
} quant_mat;

/* LG_I4_ANY or LG_I8_ANY with 3 groups in any order. */
static inline quant_mat random_any(lg_dtype type, uint32_t n_out, uint32_t n_in) {
    quant_mat m = {.w = {.type = type, .n_out = n_out, .n_in = n_in, .n_group = 3}};
    size_t n_ch = (size_t)lg_mat_n_panel(&m.w) * LG_NR, four = type == LG_I4_ANY;
    uint8_t *panel = guarded((size_t)lg_pack_bytes(type, n_out, n_in));
    uint8_t *zero = guarded(n_ch * 3);
    uint16_t *group = guarded(n_in * sizeof *group);
    float *scale = random_floats(n_ch * 3, -0x1p-8f, 0x1p-8f);
    m.dense = guarded((size_t)n_out * n_in * sizeof *m.dense);
    for (size_t i = 0; i < n_ch * 3; i++)
        zero[i] = (uint8_t)(lg_num_rng(11, 0, random_draw++, 0) % (four ? 17 : 256));
    for (uint32_t k = 0; k < n_in; k++)
        group[k] = (uint16_t)(lg_num_rng(11, 0, random_draw++, 0) % 3);
    memset(panel, 0, (size_t)lg_pack_bytes(type, n_out, n_in));
    for (uint32_t c = 0; c < n_out; c++)
        for (uint32_t k = 0; k < n_in; k++) {
            uint8_t q = (uint8_t)(lg_num_rng(11, 0, random_draw++, 0) % (four ? 16 : 256));
            size_t row = (size_t)(c / LG_NR) * n_in + k,
                   t = (c / LG_NR * 3 + group[k]) * 16 + c % 16;
            if (four)
                panel[row * 8 + c % 8] |= (uint8_t)(q << (c % 16 < 8 ? 0 : 4));
            else
                panel[row * 16 + c % 16] = q;
            m.dense[(size_t)c * n_in + k] = scale[t] * (float)(q - zero[t]);
        }
    m.w.panel = panel;
    m.w.scale = scale;
    m.w.zero = zero;
    m.w.group = group;
    return m;
}

static inline quant_mat random_quant(lg_dtype type, uint32_t n_out, uint32_t n_in) {
    if (type == LG_I4_ANY || type == LG_I8_ANY) return random_any(type, n_out, n_in);
    quant_mat m = {.w = {.type = type, .n_out = n_out, .n_in = n_in}};
    m.rows = random_blocks(type, (size_t)n_out * (n_in / lg_dtype_block(type)));
    m.dense = guarded((size_t)n_out * n_in * sizeof *m.dense);
    void *panel = guarded((size_t)lg_pack_bytes(type, n_out, n_in));
    lg_pack_panels(type, m.rows, n_out, n_in, 0, lg_mat_n_panel(&m.w), panel);
    m.w.panel = panel;
    lg_dequant_row(type, m.rows, (size_t)n_out * n_in, m.dense);
    if (type == LG_NVFP4) { /* a power of two, so that the order of factors does not matter */
        float *scale = filled_floats(1, 0.25f);
        m.w.scale = scale;
        for (size_t i = 0; i < (size_t)n_out * n_in; i++) m.dense[i] *= scale[0];
    }
    return m;
}

#endif
