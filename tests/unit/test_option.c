/* test_option.c - values of command line options. */
#include "cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static bool u64(const char *text, uint64_t *out) {
    return lg_option_u64("lignum test", "--n", text, 2, UINT64_MAX - 1, out);
}

static void test_whole_numbers(void **state) {
    (void)state;
    uint64_t v = 0;
    assert_true(u64("2", &v) && v == 2);
    assert_true(u64("18446744073709551614", &v) && v == UINT64_MAX - 1);
    static const char *const bad[] = {"",
                                      "1",
                                      "-3",
                                      "+3",
                                      " 3",
                                      "3 ",
                                      "3x",
                                      "0x10",
                                      "1e3",
                                      "18446744073709551615",
                                      "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(u64(bad[i], &v));
    int n = 0;
    assert_true(lg_option_int("lignum test", "--n", "-5", -5, 7, &n) && n == -5);
    assert_false(lg_option_int("lignum test", "--n", "8", -5, 7, &n));
    assert_false(lg_option_int("lignum test", "--n", "-", -5, 7, &n));
    assert_false(lg_option_int("lignum test", "--n", "99999999999999999999", -5, 7, &n));
    assert_int_equal(n, -5);
}

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t want; /* 0 = refused */
    } row[] = {
        {"4096", 4096},
        {"1", 1},
        {"8G", (uint64_t)8 << 30},
        {"8GiB", (uint64_t)8 << 30},
        {"8gb", 0},
        {"512M", 512u << 20},
        {"1.5K", 1536},
        {"2T", (uint64_t)2 << 40},
        {"3KB", 3072},
        {"7B", 7},
        {"0", 0},
        {"", 0},
        {"G", 0},
        {"-1G", 0},
        {"1GG", 0},
        {"1X", 0},
        {"99999999T", 0},
        {"nan", 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        uint64_t v = 0;
        assert_int_equal(lg_option_size("lignum test", "--memory", row[i].text, &v),
                         row[i].want != 0);
        assert_true(v == row[i].want);
    }
}

static void test_floats(void **state) {
    (void)state;
    float v = 9;
    assert_true(lg_option_float("lignum test", "--t", "0.5", 0, 1, &v) && v == 0.5f);
    assert_false(lg_option_float("lignum test", "--t", "1.5", 0, 1, &v));
    assert_false(lg_option_float("lignum test", "--t", "nan", 0, 1, &v));
    assert_false(lg_option_float("lignum test", "--t", "0.5x", 0, 1, &v));
    assert_false(lg_option_float("lignum test", "--t", "", 0, 1, &v));
    assert_true(v == 0.5f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
