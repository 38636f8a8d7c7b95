/* pack.c - row-major matrices into the kernels' panels (kern.h).
 *
 * In:  a file's rows, at any alignment.   Out: panels of 16 channels, [n_in][16] elements or groups of 16 blocks (qlayout.h).
 * Elements are moved, never converted.  One panel belongs to one call, so that threads share nothing.
 * Thread: any.  Memory: none.  Test: tests/unit/test_weights.c */
#include "model/weights/weights.h"

#include "base/num.h"
#include "kern/qlayout.h"

#define BLOCK 64 /* columns at a time: 16 rows of them stay in the first cache level */

uint64_t lg_pack_bytes(lg_dtype type, uint32_t n_out, uint32_t n_in) {
    uint64_t n_panel = ((uint64_t)n_out + LG_NR - 1) / LG_NR;
    return n_panel * lg_dtype_panel_bytes(type, n_in);
}

/* One panel of n_row <= 16 rows for each width of element. */
static void pack8(const uint8_t *src, uint32_t n_row, uint32_t n_in, uint8_t *dst) {
    for (uint32_t k0 = 0; k0 < n_in; k0 += BLOCK) {
        uint32_t k1 = n_in - k0 < BLOCK ? n_in : k0 + BLOCK;
        for (uint32_t j = 0; j < LG_NR; j++)
            for (uint32_t k = k0; k < k1; k++)
                dst[(size_t)k * LG_NR + j] = j < n_row ? src[(size_t)j * n_in + k] : 0;
    }
}

static void pack16(const uint8_t *src, uint32_t n_row, uint32_t n_in, uint16_t *dst) {
    for (uint32_t k0 = 0; k0 < n_in; k0 += BLOCK) {
        uint32_t k1 = n_in - k0 < BLOCK ? n_in : k0 + BLOCK;
        for (uint32_t j = 0; j < LG_NR; j++)
            for (uint32_t k = k0; k < k1; k++)
                dst[(size_t)k * LG_NR + j] =
                    j < n_row ? lg_num_load16(src + ((size_t)j * n_in + k) * 2) : 0;
    }
}

static void pack32(const uint8_t *src, uint32_t n_row, uint32_t n_in, uint32_t *dst) {
    for (uint32_t k0 = 0; k0 < n_in; k0 += BLOCK) {
        uint32_t k1 = n_in - k0 < BLOCK ? n_in : k0 + BLOCK;
        for (uint32_t j = 0; j < LG_NR; j++)
            for (uint32_t k = k0; k < k1; k++)
                dst[(size_t)k * LG_NR + j] =
                    j < n_row ? lg_num_load32(src + ((size_t)j * n_in + k) * 4) : 0;
    }
}

/* One panel of blocks of size_bytes each, n_block in a row. */
static void pack_blocks(lg_dtype type, const uint8_t *src, uint32_t n_row, size_t n_block,
                        size_t size_bytes, uint8_t *dst) {
    for (size_t b = 0; b < n_block; b++)
        lg_qlayout_pack(type, src + b * size_bytes, n_block * size_bytes, n_row,
                        dst + b * LG_NR * size_bytes);
}

void lg_pack_panels(lg_dtype type, const uint8_t *src, uint32_t n_out, uint32_t n_in,
                    uint32_t panel0, uint32_t n_panel, void *dst) {
    size_t bytes = lg_dtype_block_bytes(type), n_block = n_in / lg_dtype_block(type);
    LG_ASSERT(n_in % lg_dtype_block(type) == 0);
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        uint32_t row = p * LG_NR, n_row = n_out - row < LG_NR ? n_out - row : LG_NR;
        LG_ASSERT(row < n_out);
        const uint8_t *from = src + (size_t)row * n_block * bytes;
        uint8_t *to = (uint8_t *)dst + p * lg_dtype_panel_bytes(type, n_in);
        if (lg_dtype_is_block(type))
            pack_blocks(type, from, n_row, n_block, bytes, to);
        else if (bytes == 1)
            pack8(from, n_row, n_in, to);
        else if (bytes == 2)
            pack16(from, n_row, n_in, (uint16_t *)(void *)to);
        else
            pack32(from, n_row, n_in, (uint32_t *)(void *)to);
    }
}
