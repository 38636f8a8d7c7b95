/* quant_data.h - random matrices of block types for tests: file blocks, their panels and what they decode to. */
#ifndef LG_TESTS_QUANT_DATA_H
#define LG_TESTS_QUANT_DATA_H

#include "kern_data.h"

#include "kern/dequant.h"
#include "model/weights.h"

/* Places of the binary16 numbers of a block, -1: none. */
static const int quant_f16[LG_N_DTYPE][2] = {
    [LG_Q4_0] = {0, -1},    [LG_Q4_1] = {0, 2},    [LG_Q5_0] = {0, -1},
    [LG_Q5_1] = {0, 2},     [LG_Q8_0] = {0, -1},   [LG_IQ4_NL] = {0, -1},
    [LG_MXFP4] = {-1, -1},  [LG_Q2_K] = {80, 82},  [LG_Q3_K] = {108, -1},
    [LG_Q4_K] = {0, 2},     [LG_Q5_K] = {0, 2},    [LG_Q6_K] = {208, -1},
    [LG_IQ2_XXS] = {0, -1}, [LG_IQ2_XS] = {0, -1}, [LG_IQ2_S] = {0, -1},
    [LG_IQ3_XXS] = {0, -1}, [LG_IQ3_S] = {0, -1},  [LG_IQ1_S] = {0, -1},
    [LG_IQ1_M] = {-1, -1},  [LG_IQ4_XS] = {0, -1},
};

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
    }
    return b;
}

typedef struct quant_mat {
    lg_mat w;
    uint8_t *rows; /* as in a file */
    float *dense;  /* [n_out][n_in] */
} quant_mat;

static inline quant_mat random_quant(lg_dtype type, uint32_t n_out, uint32_t n_in) {
    quant_mat m = {.w = {.type = type, .n_out = n_out, .n_in = n_in}};
    m.rows = random_blocks(type, (size_t)n_out * (n_in / lg_dtype_block(type)));
    m.dense = guarded((size_t)n_out * n_in * sizeof *m.dense);
    void *panel = guarded((size_t)lg_pack_bytes(type, n_out, n_in));
    lg_pack_panels(type, m.rows, n_out, n_in, 0, lg_mat_n_panel(&m.w), panel);
    m.w.panel = panel;
    lg_dequant_row(type, m.rows, (size_t)n_out * n_in, m.dense);
    return m;
}

#endif
