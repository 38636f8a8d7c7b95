/* test_base.c - diag, mem, buf, num. */
#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void test_fail_fills_err(void **state) {
    (void)state;
    lg_err err = {0};
    assert_int_equal(LG_FAIL(&err, LG_E_FORMAT, "%s: field %s", "config.json", "x"),
                     LG_E_FORMAT);
    assert_int_equal(err.code, LG_E_FORMAT);
    assert_string_equal(err.msg, "config.json: field x");
    assert_string_equal(err.file, "test_base.c");
    assert_int_equal(LG_FAIL(NULL, LG_E_IO, "nobody listens"), LG_E_IO);
}

static void test_mem_counts_and_fails_on_demand(void **state) {
    (void)state;
    int64_t alive = lg_mem_alive();
    uint64_t bytes = lg_mem_bytes();
    lg_mem_reset_peak();
    uint8_t *p = lg_mem_alloc(100);
    assert_int_equal(lg_mem_bytes(), bytes + 100);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % LG_MEM_ALIGN, 0);
    for (int i = 0; i < 100; i++) assert_int_equal(p[i], 0);
    p[99] = 7;
    p = lg_mem_realloc(p, 100000);
    assert_int_equal(p[99], 7);
    assert_int_equal(lg_mem_alive(), alive + 1);
    lg_mem_fail_at(2);
    void *a = lg_mem_alloc(1), *b = lg_mem_alloc(1), *c = lg_mem_alloc(1);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_null(lg_mem_calloc(SIZE_MAX / 2, 3));
    lg_mem_free(a);
    lg_mem_free(c);
    LG_FREE(p);
    assert_null(p);
    assert_int_equal(lg_mem_alive(), alive);
    assert_int_equal(lg_mem_bytes(), bytes);
    assert_int_equal(lg_mem_peak(), bytes + 100100); /* while realloc held both */
    lg_mem_reset_peak();
    assert_int_equal(lg_mem_peak(), bytes);
}

static void test_arena_counts_what_it_would_take(void **state) {
    (void)state;
    lg_arena count, real;
    lg_arena_init(&count, NULL, 0);
    assert_null(lg_arena_take(&count, 3, 5));
    assert_null(lg_arena_take(&count, 10, 100));
    assert_int_equal(count.used_bytes, 64 + 1024);
    void *block = lg_mem_alloc(count.used_bytes);
    lg_arena_init(&real, block, count.used_bytes);
    assert_ptr_equal(lg_arena_take(&real, 3, 5), block);
    assert_non_null(lg_arena_take(&real, 10, 100));
    assert_null(lg_arena_take(&real, 1, 1));
    assert_null(lg_arena_take(&real, SIZE_MAX, 2));
    lg_mem_free(block);
}

static void test_buf_grows_and_consumes(void **state) {
    (void)state;
    lg_buf b = {0};
    assert_string_equal(lg_buf_str(&b), "");
    lg_buf_puts(&b, "abc");
    lg_buf_printf(&b, "%d-%s", 42, "xyz");
    lg_buf_putc(&b, '!');
    assert_string_equal(lg_buf_str(&b), "abc42-xyz!");
    lg_buf_consume(&b, 3);
    assert_string_equal(lg_buf_str(&b), "42-xyz!");
    lg_mem_fail_at(1);
    for (int i = 0; i < 1000; i++) lg_buf_putc(&b, 'x');
    assert_true(b.failed);
    lg_mem_fail_at(0);
    lg_buf_fini(&b);
}

static void test_formats_against_definition(void **state) {
    (void)state;
    /* binary16: every bit pattern against the definition in double */
    for (uint32_t h = 0; h < 65536; h++) {
        int exp = (int)(h >> 10 & 31);
        double frac = (double)(h & 1023), want = exp == 31  ? (frac != 0 ? NAN : INFINITY)
                                                 : exp == 0 ? ldexp(frac, -24)
                                                            : ldexp(1024 + frac, exp - 25);
        if (h & 0x8000) want = -want;
        float got = lg_num_f16((uint16_t)h);
        if (isnan(want))
            assert_true(isnan(got));
        else
            assert_true((double)got == want && !signbit(got) == !signbit(want));
    }
    for (uint32_t b = 0; b < 256; b++) {
        int exp = (int)(b >> 3 & 15);
        double frac = b & 7, want = exp == 15 && frac == 7 ? NAN
                                    : exp == 0             ? ldexp(frac, -9)
                                                           : ldexp(8 + frac, exp - 10);
        if (b & 0x80) want = -want;
        float got = lg_num_e4m3((uint8_t)b);
        if (isnan(want))
            assert_true(isnan(got));
        else
            assert_true((double)got == want);
    }
    assert_int_equal(lg_num_to_bf16(1.0f), 0x3f80);
    assert_int_equal(lg_num_to_bf16(lg_num_float_of_bits(0x3f808000)),
                     0x3f80); /* tie to even */
    assert_int_equal(lg_num_to_bf16(lg_num_float_of_bits(0x3f818000)), 0x3f82);
    assert_true(isnan(lg_num_bf16(lg_num_to_bf16(NAN))));
    assert_true(isinf(lg_num_bf16(lg_num_to_bf16(INFINITY))));
}

static void test_rng_is_uniform_and_depends_on_every_key(void **state) {
    (void)state;
    int bin[64] = {0};
    for (uint32_t i = 0; i < 64000; i++) {
        float u = lg_num_rng_unit(1, 0, i, 0);
        assert_true(u >= 0 && u < 1);
        bin[(int)(u * 64)]++;
    }
    double chi2 = 0;
    for (int i = 0; i < 64; i++) chi2 += (bin[i] - 1000.0) * (bin[i] - 1000.0) / 1000.0;
    assert_true(chi2 > 30 &&
                chi2 < 110); /* 63 degrees of freedom: far outside both ends is p < 1e-4 */
    uint64_t r = lg_num_rng(1, 2, 3, 4);
    assert_true(r != lg_num_rng(2, 2, 3, 4) && r != lg_num_rng(1, 3, 3, 4));
    assert_true(r != lg_num_rng(1, 2, 4, 4) && r != lg_num_rng(1, 2, 3, 5));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_fills_err),
        cmocka_unit_test(test_mem_counts_and_fails_on_demand),
        cmocka_unit_test(test_arena_counts_what_it_would_take),
        cmocka_unit_test(test_buf_grows_and_consumes),
        cmocka_unit_test(test_formats_against_definition),
        cmocka_unit_test(test_rng_is_uniform_and_depends_on_every_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
