/* qlayout.c - interleave the blocks of 16 channels, and back: see qlayout.h.  Thread: any.  Test: tests/unit/test_dequant.c */
#include "kern/qlayout.h"

#include <string.h>

#define MAX_FIELD 5

/* Fields in the order of the block; n 0 ends the list. */
typedef struct field {
    uint8_t n, unit;
} field;

static const field fields[LG_N_DTYPE][MAX_FIELD + 1] = {
    [LG_Q4_0] = {{2, 2}, {16, 2}},
    [LG_Q4_1] = {{2, 2}, {2, 2}, {16, 2}},
    [LG_Q5_0] = {{2, 2}, {4, 4}, {16, 2}},
    [LG_Q5_1] = {{2, 2}, {2, 2}, {4, 4}, {16, 2}},
    [LG_Q8_0] = {{2, 2}, {32, 2}},
    [LG_IQ4_NL] = {{2, 2}, {16, 2}},
    [LG_MXFP4] = {{1, 1}, {16, 2}},
    [LG_Q2_K] = {{16, 1}, {64, 2}, {2, 2}, {2, 2}},
    [LG_Q3_K] = {{32, 2}, {64, 2}, {12, 1}, {2, 2}},
    [LG_Q4_K] = {{2, 2}, {2, 2}, {12, 1}, {128, 4}},
    [LG_Q5_K] = {{2, 2}, {2, 2}, {12, 1}, {32, 2}, {128, 2}},
    [LG_Q6_K] = {{128, 4}, {64, 4}, {16, 1}, {2, 2}},
    [LG_IQ4_XS] = {{2, 2}, {2, 2}, {4, 1}, {128, 2}},
    [LG_IQ2_XXS] = {{66, 66}},
    [LG_IQ2_XS] = {{74, 74}},
    [LG_IQ2_S] = {{82, 82}},
    [LG_IQ3_XXS] = {{98, 98}},
    [LG_IQ3_S] = {{110, 110}},
    [LG_IQ1_S] = {{50, 50}},
    [LG_IQ1_M] = {{56, 56}},
    [LG_I4_32] = {{4, 4}, {1, 1}, {16, 2}},
    [LG_I4_128] = {{4, 4}, {1, 1}, {64, 2}},
    [LG_I8_128] = {{4, 4}, {128, 2}},
    [LG_NVFP4] = {{1, 1}, {8, 2}},
};

static void put_field(const uint8_t *src, size_t n, const size_t unit, uint8_t *dst) {
    for (size_t i = 0; i < n; i += unit) memcpy(dst + i * LG_NR, src + i, unit);
}

static void zero_field(size_t n, size_t unit, uint8_t *dst) {
    for (size_t i = 0; i < n; i += unit) memset(dst + i * LG_NR, 0, unit);
}

void lg_qlayout_pack(lg_dtype type, const uint8_t *src, size_t stride, uint32_t n_ch,
                     uint8_t *group) {
    for (uint32_t c = 0; c < LG_NR; c++) {
        size_t at = 0;
        for (const field *f = fields[type]; f->n; at += f->n, f++) {
            const uint8_t *from = src + (c < n_ch ? c * stride + at : 0);
            uint8_t *to = group + at * LG_NR + (size_t)c * f->unit;
            if (c >= n_ch) {
                zero_field(f->n, f->unit, to);
                continue;
            }
            switch (f->unit) {
            case 1: put_field(from, f->n, 1, to); break;
            case 2: put_field(from, f->n, 2, to); break;
            case 4: put_field(from, f->n, 4, to); break;
            default: put_field(from, f->n, f->unit, to); break;
            }
        }
    }
}

void lg_qlayout_block(lg_dtype type, const uint8_t *group, uint32_t c, uint8_t *block) {
    size_t at = 0;
    for (const field *f = fields[type]; f->n; at += f->n, f++) {
        const uint8_t *from = group + at * LG_NR + (size_t)c * f->unit;
        for (size_t i = 0; i < f->n; i += f->unit)
            memcpy(block + at + i, from + i * LG_NR, f->unit);
    }
}
