/* dtype.c - sizes and names of the weights' types: see kern.h.  Thread: any.  Test: tests/unit/test_kern.c, test_dequant.c */
#include "kern/kern.h"

static const struct {
    const char *name;
    uint16_t n, bytes; /* elements and bytes of a block */
} info[LG_N_DTYPE] = {
    [LG_F32] = {"F32", 1, 4},
    [LG_BF16] = {"BF16", 1, 2},
    [LG_F16] = {"F16", 1, 2},
    [LG_E4M3] = {"F8_E4M3", 1, 1},
    [LG_Q4_0] = {"Q4_0", 32, 18},
    [LG_Q4_1] = {"Q4_1", 32, 20},
    [LG_Q5_0] = {"Q5_0", 32, 22},
    [LG_Q5_1] = {"Q5_1", 32, 24},
    [LG_Q8_0] = {"Q8_0", 32, 34},
    [LG_IQ4_NL] = {"IQ4_NL", 32, 18},
    [LG_MXFP4] = {"MXFP4", 32, 17},
    [LG_Q2_K] = {"Q2_K", 256, 84},
    [LG_Q3_K] = {"Q3_K", 256, 110},
    [LG_Q4_K] = {"Q4_K", 256, 144},
    [LG_Q5_K] = {"Q5_K", 256, 176},
    [LG_Q6_K] = {"Q6_K", 256, 210},
    [LG_IQ4_XS] = {"IQ4_XS", 256, 136},
    [LG_IQ2_XXS] = {"IQ2_XXS", 256, 66},
    [LG_IQ2_XS] = {"IQ2_XS", 256, 74},
    [LG_IQ2_S] = {"IQ2_S", 256, 82},
    [LG_IQ3_XXS] = {"IQ3_XXS", 256, 98},
    [LG_IQ3_S] = {"IQ3_S", 256, 110},
    [LG_IQ1_S] = {"IQ1_S", 256, 50},
    [LG_IQ1_M] = {"IQ1_M", 256, 56},
    [LG_I4_32] = {"I4_32", 32, 21},
    [LG_I4_128] = {"I4_128", 128, 69},
    [LG_I8_128] = {"I8_128", 128, 132},
    [LG_NVFP4] = {"NVFP4", 16, 9},
    [LG_I4_ANY] = {"I4_ANY", 2, 1},
    [LG_I8_ANY] = {"I8_ANY", 1, 1},
};

size_t lg_dtype_bytes(lg_dtype type) {
    LG_ASSERT((unsigned)type < LG_N_DTYPE && info[type].n == 1);
    return info[type].bytes;
}

const char *lg_dtype_name(lg_dtype type) {
    LG_ASSERT((unsigned)type < LG_N_DTYPE);
    return info[type].name;
}

uint32_t lg_dtype_block(lg_dtype type) {
    LG_ASSERT((unsigned)type < LG_N_DTYPE);
    return info[type].n;
}

size_t lg_dtype_block_bytes(lg_dtype type) {
    LG_ASSERT((unsigned)type < LG_N_DTYPE);
    return info[type].bytes;
}

size_t lg_dtype_panel_bytes(lg_dtype type, uint32_t n_in) {
    return (size_t)n_in / lg_dtype_block(type) * LG_NR * lg_dtype_block_bytes(type);
}

bool lg_dtype_is_int(lg_dtype type) {
    if (type >= LG_I4_32 && type <= LG_I8_128) return true;
    return lg_dtype_is_block(type) && type <= LG_IQ4_XS;
}

uint32_t lg_dtype_row_group(lg_dtype type) {
    return lg_dtype_block(type) == 256 ? 256 : 32;
}
