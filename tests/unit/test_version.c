/* test_version.c - lg_version() names version, compiler and processor features, and stays the same text. */
#include "kern/kern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static void test_version_names_its_parts(void **state) {
    (void)state;
    const char *v = lg_version();
    assert_ptr_equal(v, lg_version());
    assert_int_equal(strncmp(v, LG_VERSION " (build ", strlen(LG_VERSION) + 8), 0);
    const char *features = lg_kern_features();
    size_t n = strlen(v), f = strlen(features);
    assert_true(n > f + 1);
    assert_int_equal(v[n - 1], ')');
    assert_memory_equal(v + n - 1 - f, features, f);
#ifdef __clang__
    assert_non_null(strstr(v, ", clang 1"));
#else
    assert_non_null(strstr(v, ", gcc 1"));
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_version_names_its_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
