/* test_bar.c - the text of the loading bar: share, rate and time left, by hand. */
#include "cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define MIB (1ull << 20)

static void expect(uint64_t done, uint64_t total, uint64_t us, const char *want) {
    char text[160];
    lg_bar_text(text, sizeof text, done, total, us);
    assert_string_equal(text, want);
}

static void test_text(void **state) {
    (void)state;
    expect(0, 3000 * MIB, 1500000,
           "loading [..............................]   0 %  0 of 3000 MiB  0 MiB/s");
    /* 1000 MiB in 2 s are 500 MiB/s; the 2000 MiB left take 4 s. */
    expect(1000 * MIB, 3000 * MIB, 2000000,
           "loading [##########....................]  33 %  1000 of 3000 MiB  500 MiB/s  4 s "
           "left");
    expect(3000 * MIB, 3000 * MIB, 6000000,
           "loading [##############################] 100 %  3000 of 3000 MiB  500 MiB/s  0 s "
           "left");
    /* 2 TiB, the largest that matters: 1 TiB in 1000 s. */
    expect(
        1024 * 1024 * MIB, 2 * 1024 * 1024 * MIB, 1000000000,
        "loading [###############...............]  50 %  1048576 of 2097152 MiB  1049 MiB/s  "
        "1000 s left");
}

static void test_short_buffers(void **state) {
    (void)state;
    char text[160];
    for (size_t cap = 1; cap <= sizeof text; cap++) {
        memset(text, 'x', sizeof text);
        lg_bar_text(text, cap, 1000 * MIB, 3000 * MIB, 2000000);
        assert_non_null(memchr(text, 0, cap));
        for (size_t i = cap; i < sizeof text; i++) assert_int_equal(text[i], 'x');
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_short_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
