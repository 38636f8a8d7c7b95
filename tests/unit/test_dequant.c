/* test_dequant.c - block types of GGUF files: decoded numbers against the package `gguf` (data/quant, made by
 * py/make_quant_vectors.py), panels, and the float product over them at every level. */
#include "quant_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static const lg_kern *level[MAX_LEVEL];
static size_t n_level;

static bool is_zero(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (x[i] != 0.0f) return false;
    return true;
}

static void check_vectors(lg_dtype type) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/data/quant/%s.bin", getenv("LG_SOURCE_DIR"),
             lg_dtype_name(type));
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    static uint8_t data[1 << 16];
    size_t len = fread(data, 1, sizeof data, f), n = lg_dtype_block(type);
    fclose(f);
    size_t one = lg_dtype_block_bytes(type) + n * sizeof(float), n_block = len / one;
    assert_true(len < sizeof data && n_block > 0 && len % one == 0);
    float *got = filled_floats(n_block * n, 0);
    lg_dequant_row(type, data, n_block * n, got);
    assert_memory_equal(got, data + n_block * lg_dtype_block_bytes(type),
                        n_block * n * sizeof *got);
    guarded_free();
}

static void test_decoded_bits_are_those_of_gguf(void **state) {
    (void)state;
    for (int type = LG_Q4_0; type < LG_I4_32; type++) check_vectors((lg_dtype)type);
}

/* The types of quantised folders, by hand. */
static void test_blocks_of_folders(void **state) {
    (void)state;
    uint8_t b[132] = {0, 0, 0, 0x3f, 3}; /* 0.5, zero point 3 */
    float y[128];
    for (int i = 0; i < 64; i++) b[5 + i] = (uint8_t)(i * 37);
    lg_dequant_row(LG_I4_32, b, 32, y);
    for (int k = 0; k < 16; k++) {
        assert_true(y[k] == 0.5f * (float)((k * 37 & 15) - 3));
        assert_true(y[k + 16] == 0.5f * (float)((k * 37 >> 4 & 15) - 3));
    }
    lg_dequant_row(LG_I4_128, b, 128, y);
    for (int k = 0; k < 128; k++) {
        int byte = (k / 32 * 16 + k % 16) * 37;
        assert_true(y[k] == 0.5f * (float)((byte >> (k % 32 < 16 ? 0 : 4) & 15) - 3));
    }
    for (int i = 0; i < 128; i++) b[4 + i] = (uint8_t)(i * 3 - 128);
    lg_dequant_row(LG_I8_128, b, 128, y);
    for (int k = 0; k < 128; k++) assert_true(y[k] == 0.5f * (float)(int8_t)(k * 3 - 128));
    const uint8_t four[9] = {0x34, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}; /* 0.75 */
    const float half[8] = {0, 1, 2, 4, 0, -1, -2, -4},
                other[8] = {.5f, 1.5f, 3, 6, -.5f, -1.5f, -3, -6};
    lg_dequant_row(LG_NVFP4, four, 16, y);
    for (int k = 0; k < 8; k++)
        assert_true(y[k] == 0.75f * half[k] && y[k + 8] == 0.75f * other[k]);
}

static void test_zero_bytes_decode_to_zero(void **state) {
    (void)state;
    static const uint8_t zero[LG_MAX_BLOCK];
    float y[LG_MAX_BLOCK];
    for (int type = LG_Q4_0; type < LG_I4_ANY; type++) {
        uint32_t n = lg_dtype_block((lg_dtype)type);
        assert_true(lg_dtype_block_bytes((lg_dtype)type) <= sizeof zero);
        lg_dequant_row((lg_dtype)type, zero, n, y);
        assert_true(is_zero(y, n));
    }
}

static void test_types_with_one_element_a_block(void **state) {
    (void)state;
    const uint8_t f32[] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}, bf16[] = {0x80, 0x3f, 0, 0xc0};
    const uint8_t f16[] = {0, 0x3c, 0, 0xc0}, e4m3[] = {0x38, 0xc0};
    const uint8_t *src[] = {f32, bf16, f16, e4m3};
    for (int type = 0; type < LG_Q4_0; type++) {
        float y[2];
        lg_dequant_row((lg_dtype)type, src[type], 2, y);
        assert_true(y[0] == 1.0f && y[1] == -2.0f);
        assert_int_equal(lg_dtype_block((lg_dtype)type), 1);
        assert_int_equal(lg_dtype_block_bytes((lg_dtype)type), lg_dtype_bytes((lg_dtype)type));
    }
}

/* Panels, packed in two calls, give back every channel's numbers, and zero past the last. */
static void check_panels(lg_dtype type, uint32_t n_out, uint32_t n_in) {
    quant_mat m = random_quant(type, n_out, n_in);
    uint32_t n_panel = lg_mat_n_panel(&m.w);
    size_t bytes = (size_t)lg_pack_bytes(type, n_out, n_in);
    uint8_t *panel = guarded(bytes);
    float *wide = filled_floats((size_t)n_in * LG_NR, NAN);
    if (type == LG_NVFP4) lg_dequant_row(type, m.rows, (size_t)n_out * n_in, m.dense);
    lg_pack_panels(type, m.rows, n_out, n_in, n_panel / 2, n_panel - n_panel / 2, panel);
    lg_pack_panels(type, m.rows, n_out, n_in, 0, n_panel / 2, panel);
    assert_memory_equal(panel, m.w.panel, bytes);
    for (uint32_t p = 0; p < n_panel; p++) {
        const uint8_t *at = panel + p * lg_dtype_panel_bytes(type, n_in);
        uint32_t half = n_in / 2 / LG_MAX_BLOCK * LG_MAX_BLOCK;
        lg_dequant_panel(type, at, half, n_in - half, wide + (size_t)half * LG_NR);
        lg_dequant_panel(type, at, 0, half, wide);
        for (uint32_t c = 0; c < LG_NR; c++)
            for (uint32_t k = 0; k < n_in; k++) {
                uint32_t row = p * LG_NR + c;
                float got = wide[(size_t)k * LG_NR + c];
                float want = row < n_out ? m.dense[(size_t)row * n_in + k] : 0.0f;
                assert_true(got == want);
            }
    }
    guarded_free();
}

static void test_panels(void **state) {
    (void)state;
    for (int type = LG_Q4_0; type < LG_I4_ANY; type++) {
        uint32_t n = lg_dtype_block((lg_dtype)type);
        check_panels((lg_dtype)type, 1, n);
        check_panels((lg_dtype)type, 16, 3 * n);
        check_panels((lg_dtype)type, 37, 17 * n);
    }
}

static void check_gemm(lg_dtype type, uint32_t n_out, uint32_t n_in, uint32_t n_row, bool idx) {
    quant_mat m = random_quant(type, n_out, n_in);
    uint32_t row_idx[64], n_panel = lg_mat_n_panel(&m.w), ld_y = n_out + 3;
    float *x = random_floats((size_t)(n_row + 2) * n_in, -1, 1);
    float *want = filled_floats((size_t)n_row * ld_y, -7);
    for (uint32_t r = 0; r < n_row; r++) row_idx[r] = (r * 5 + 1) % (n_row + 2);
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t c = 0; c < n_out; c++) {
            const float *xr = x + (idx ? row_idx[r] : r) * n_in;
            float acc = 0.0f; /* the order of kern.h */
            for (uint32_t k = 0; k < n_in; k++)
                acc = fmaf(xr[k], m.dense[(size_t)c * n_in + k], acc);
            want[(size_t)r * ld_y + c] = acc;
        }
    for (size_t i = 0; i < n_level; i++) {
        float *y = filled_floats((size_t)n_row * ld_y, -7);
        level[i]->gemm(&m.w, 0, n_panel, x, n_in, idx ? row_idx : NULL, n_row, y, ld_y);
        assert_memory_equal(y, want, (size_t)n_row * ld_y * sizeof *y);
    }
    guarded_free();
}

static void test_float_product(void **state) {
    (void)state;
    for (int type = LG_Q4_0; type < LG_N_DTYPE; type++) {
        uint32_t n = lg_dtype_block((lg_dtype)type);
        check_gemm((lg_dtype)type, 16, 0, 2, false);
        check_gemm((lg_dtype)type, 5, n, 1, false);
        check_gemm((lg_dtype)type, 40, 3 * n, 3, true);
        check_gemm((lg_dtype)type, 33, 9 * n, 13, false);
        check_gemm((lg_dtype)type, 16, 256, 50, true);
    }
}

int main(void) {
    n_level = find_levels(true, level);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoded_bits_are_those_of_gguf),
        cmocka_unit_test(test_blocks_of_folders),
        cmocka_unit_test(test_zero_bytes_decode_to_zero),
        cmocka_unit_test(test_types_with_one_element_a_block),
        cmocka_unit_test(test_panels),
        cmocka_unit_test(test_float_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
