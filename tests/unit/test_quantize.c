/* test_quantize.c - floats to block types: errors beside the format's reference quantiser (data/quant/quantize.json, made by
 * py/make_quantize_reference.py), exactness of the types without blocks, and odd rows. */
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "kern/dequant.h"
#include "kern/quantize.h"
#include "model/file/safetensors.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define WIDTH 256
#define ROWS  256
#define COUNT (WIDTH * ROWS)

static const lg_dtype block_type[] = {LG_Q4_0,  LG_Q4_1, LG_Q5_0, LG_Q5_1, LG_Q8_0,  LG_IQ4_NL,
                                      LG_MXFP4, LG_Q4_K, LG_Q5_K, LG_Q6_K, LG_IQ4_XS};

static double normal_at(uint64_t i) {
    double s = 0;
    for (uint32_t d = 0; d < 12; d++) s += (double)lg_num_rng_unit(1, 0, i, d);
    return s - 6;
}

/* The numbers of that name in the reference file. */
static void fill(const char *name, float *x) {
    if (strcmp(name, "normal") == 0 || strcmp(name, "heavy") == 0) {
        for (uint64_t i = 0; i < COUNT; i++) {
            double v = normal_at(i) * 0.02;
            if (name[0] == 'h') v /= 0.05 + (double)lg_num_rng_unit(2, 0, i, 0);
            x[i] = (float)v;
        }
        return;
    }
    char path[512];
    lg_err err;
    lg_tensors *set;
    snprintf(path, sizeof path, "%s/models/tiny-qwen35moe", getenv("LG_SOURCE_DIR"));
    assert_int_equal(lg_st_open(path, &set, &err), LG_OK);
    const lg_view *v = lg_tensors_find(set, name);
    assert_true(v && v->len_bytes >= 2 * COUNT);
    lg_dequant_row(v->type, v->data, COUNT, x);
    lg_tensors_close(&set);
}

/* Relative error of x stored as `type`; all rows have the weights w [WIDTH], or none. */
static double error(lg_dtype type, const float *x, const float *w) {
    static uint8_t row[WIDTH * 4];
    float y[WIDTH];
    double err = 0, all = 0;
    for (size_t r = 0; r < ROWS; r++, x += WIDTH) {
        lg_quantize_row(type, x, WIDTH, w, row);
        lg_dequant_row(type, row, WIDTH, y);
        for (int i = 0; i < WIDTH; i++) {
            double wi = w ? (double)w[i] : 1, e = (double)x[i] - (double)y[i];
            err += wi * e * e;
            all += wi * (double)x[i] * (double)x[i];
        }
    }
    return err / all;
}

static void test_errors_are_at_most_the_reference_s(void **state) {
    (void)state;
    char path[512];
    lg_json_doc *doc;
    lg_err err;
    static float x[COUNT];
    float w[WIDTH];
    snprintf(path, sizeof path, "%s/tests/data/quant/quantize.json", getenv("LG_SOURCE_DIR"));
    assert_int_equal(lg_json_load(path, 1 << 16, 8, &doc, &err), LG_OK);
    for (uint64_t i = 0; i < WIDTH; i++) {
        double u = (double)lg_num_rng_unit(3, 0, i, 0);
        w[i] = (float)(u * u + 0.01);
    }
    for (size_t t = 0; t < LG_COUNT(block_type); t++) {
        const char *type = lg_dtype_name(block_type[t]);
        const lg_json *sets = lg_json_get(lg_json_root(doc), type);
        assert_true(sets && sets->n_child == 4);
        for (const lg_json *s = sets->child; s; s = s->next) {
            double want[2];
            fill(s->key, x);
            for (size_t k = 0; k < 2; k++) {
                assert_true(lg_json_f64(lg_json_at(s, k), &want[k]));
                double got = error(block_type[t], x, k ? w : NULL);
                print_message("%-7s %-46s %s %.3e, reference %.3e: %.3f\n", type, s->key,
                              k ? "weighted" : "plain   ", got, want[k], got / want[k]);
                assert_true(got <= 1.05 * want[k]);
            }
        }
    }
    lg_json_close(&doc);
}

/* Every binary16 comes back; what lies between two goes to the nearer, and to the even one from the middle. */
static void test_binary16_is_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float a = lg_num_f16((uint16_t)h), b = lg_num_f16((uint16_t)(h + 1));
        assert_int_equal(lg_num_to_f16(a), h);
        assert_int_equal(lg_num_to_f16(-a), h | 0x8000);
        if (h == 0x7bff) b = 65536;
        float middle = 0.5f * (a + b);
        assert_int_equal(lg_num_to_f16(middle), h + (h & 1));
        assert_int_equal(lg_num_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(lg_num_to_f16(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(lg_num_to_f16(INFINITY), 0x7c00);
    assert_int_equal(lg_num_to_f16(-FLT_MAX), 0xfc00);
    assert_true(isnan(lg_num_f16(lg_num_to_f16(NAN))));
}

/* The same of every E4M3 number. */
static void test_e4m3_is_nearest_even(void **state) {
    (void)state;
    for (uint32_t q = 0; q < 0x7e; q++) {
        float a = lg_num_e4m3((uint8_t)q), b = lg_num_e4m3((uint8_t)(q + 1));
        assert_int_equal(lg_num_to_e4m3(a), q);
        assert_int_equal(lg_num_to_e4m3(-a), q | 0x80);
        float middle = 0.5f * (a + b);
        assert_int_equal(lg_num_to_e4m3(middle), q + (q & 1));
        assert_int_equal(lg_num_to_e4m3(nextafterf(middle, 0)), q);
        assert_int_equal(lg_num_to_e4m3(nextafterf(middle, INFINITY)), q + 1);
    }
    assert_int_equal(lg_num_to_e4m3(448), 0x7e);
    assert_int_equal(lg_num_to_e4m3(INFINITY), 0x7e);
    assert_int_equal(lg_num_to_e4m3(-FLT_MAX), 0xfe);
    assert_true(isnan(lg_num_e4m3(lg_num_to_e4m3(NAN))));
}

static void test_types_without_blocks(void **state) {
    (void)state;
    const float x[] = {1, -2.5f, 1e6f, -1e6f};
    float y[4];
    uint8_t row[16];
    lg_quantize_row(LG_F32, x, 4, NULL, row);
    assert_memory_equal(row, x, sizeof x);
    lg_quantize_row(LG_BF16, x, 4, NULL, row);
    lg_dequant_row(LG_BF16, row, 4, y);
    assert_true(y[0] == 1 && y[1] == -2.5f && fabsf(y[2] - 1e6f) < 4096);
    lg_quantize_row(LG_F16, x, 4, NULL, row);
    lg_dequant_row(LG_F16, row, 4, y);
    assert_true(y[0] == 1 && y[1] == -2.5f && y[2] == 65504 && y[3] == -65504);
    assert_false(lg_quantize_has(LG_E4M3));
    assert_false(lg_quantize_has(LG_Q2_K));
}

/* Rows of one value, with one outlier, of the smallest and the largest numbers: decoded they are finite and near. */
static void test_odd_rows(void **state) {
    (void)state;
    static const float scale[] = {0, FLT_TRUE_MIN, 1e-38f, 1e-8f, 1, 3e4f};
    float x[WIDTH], y[WIDTH], zero[WIDTH] = {0};
    uint8_t row[WIDTH * 4];
    for (size_t t = 0; t < LG_COUNT(block_type); t++)
        for (size_t s = 0; s < LG_COUNT(scale); s++)
            for (int kind = 0; kind < 4; kind++) {
                for (int i = 0; i < WIDTH; i++)
                    x[i] = scale[s] * (kind == 0   ? 1
                                       : kind == 1 ? -1
                                       : kind == 2 ? (i % 32 == 5)
                                                   : (float)(i % 7 - 3) / 3);
                lg_quantize_row(block_type[t], x, WIDTH, kind == 3 ? zero : NULL, row);
                lg_quantize_row(block_type[t], x, WIDTH, NULL, row);
                lg_dequant_row(block_type[t], row, WIDTH, y);
                for (int i = 0; i < WIDTH; i++)
                    assert_true(fabsf(y[i] - x[i]) <= 0.2f * scale[s] + 1e-7f);
            }
}

/* Numbers that a block decodes to are stored without loss when it is quantised again, for types whose range has no choice. */
static void test_q8_0_again_is_the_same(void **state) {
    (void)state;
    static float x[COUNT];
    float y[WIDTH], z[WIDTH];
    uint8_t row[WIDTH * 4];
    fill("normal", x);
    for (size_t r = 0; r < ROWS; r++) {
        lg_quantize_row(LG_Q8_0, x + r * WIDTH, WIDTH, NULL, row);
        lg_dequant_row(LG_Q8_0, row, WIDTH, y);
        lg_quantize_row(LG_Q8_0, y, WIDTH, NULL, row);
        lg_dequant_row(LG_Q8_0, row, WIDTH, z);
        assert_memory_equal(y, z, sizeof y);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_are_at_most_the_reference_s),
        cmocka_unit_test(test_binary16_is_nearest_even),
        cmocka_unit_test(test_e4m3_is_nearest_even),
        cmocka_unit_test(test_types_without_blocks),
        cmocka_unit_test(test_odd_rows),
        cmocka_unit_test(test_q8_0_again_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
