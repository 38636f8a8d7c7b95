/* test_utf8.c - decoding against table 3-7 and 3-8 of the Unicode standard, and Python's replacements. */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* Encode any 21 bit number in the generalised way, to make the table of what must decode. */
static size_t encode(uint32_t cp, char *s) {
    if (cp < 0x80) return s[0] = (char)cp, 1;
    if (cp < 0x800) return s[0] = (char)(0xc0 | cp >> 6), s[1] = (char)(0x80 | (cp & 63)), 2;
    size_t n = cp < 0x10000 ? 3 : 4;
    s[0] = (char)((n == 3 ? 0xe0 : 0xf0) | cp >> 6 * (n - 1));
    for (size_t i = 1; i < n; i++) s[i] = (char)(0x80 | (cp >> 6 * (n - 1 - i) & 63));
    return n;
}

static void test_every_code_point(void **state) {
    (void)state;
    lg_buf b = {0};
    for (uint32_t cp = 0; cp < 0x200000; cp++) {
        char s[5] = {0};
        size_t n = encode(cp, s);
        bool scalar = cp < 0xd800 || (cp > 0xdfff && cp <= 0x10ffff);
        uint32_t got;
        size_t took = lg_utf8_next(s, n, &got);
        assert_int_equal(lg_utf8_valid(s, n), scalar);
        assert_int_equal(got, scalar ? cp : UINT32_MAX);
        assert_int_equal(took, scalar ? n : 1);
        lg_buf_clear(&b);
        lg_utf8_put(&b, cp);
        assert_int_equal(b.len_bytes, scalar ? n : 3);
        assert_memory_equal(b.data, scalar ? s : "\xef\xbf\xbd", b.len_bytes);
    }
    lg_buf_fini(&b);
}

#define R "\xef\xbf\xbd"

/* Right sides: bytes.decode("utf-8", "replace") of Python 3.11. */
static void test_repair_as_python(void **state) {
    (void)state;
    static const struct {
        const char *in, *out;
    } row[] = {
        {"", ""},
        {"abc", "abc"},
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A"},   /* table 3-8 */
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A"},   /* table 3-9 */
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B"}, /* table 3-10 */
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A"},           /* table 3-11 */
        {"\xe2\x82", R},
        {"\xe2\x82\x41", R "A"},
        {"\xf0\x9f\x91\xa9", "\xf0\x9f\x91\xa9"},
        {"\xf0\x9f\x91", R},
        {"\xf0\x9f\x91\xf0\x9f\x91\xa9", R "\xf0\x9f\x91\xa9"},
        {"\xf5\x80\x80\x80", R R R R},
        {"\xc3\xc3\xa9", R "\xc3\xa9"},
        {"x\xc3", "x" R},
        {"\x80y", R "y"},
        {"\xfe\xff", R R},
        {"\xef\xbb\xbfz", "\xef\xbb\xbfz"},
    };
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        lg_buf b = {0};
        lg_utf8_repair(&b, row[i].in, strlen(row[i].in));
        assert_string_equal(lg_buf_str(&b), row[i].out);
        assert_int_equal(lg_utf8_valid(row[i].in, strlen(row[i].in)),
                         strcmp(row[i].in, row[i].out) == 0);
        lg_buf_fini(&b);
    }
}

static void test_whole_keeps_what_may_complete(void **state) {
    (void)state;
    static const struct {
        const char *in;
        size_t whole;
    } row[] = {
        {"", 0},
        {"ab", 2},
        {"a\xc3", 1},
        {"a\xc3\xa9", 3},
        {"a\xe2", 1},
        {"a\xe2\x82", 1},
        {"a\xe2\x82\xac", 4},
        {"a\xf0", 1},
        {"a\xf0\x9f\x91", 1},
        {"a\xf0\x9f\x91\xa9", 5},
        {"a\x80\x80\x80\x80", 5}, /* nothing completes stray continuation bytes */
        {"\xc0", 1},              /* nor a byte that never leads */
        {"\xff", 1},
        {"\xe0\x80", 2}, /* nor a second byte out of range */
        {"\xed\xa0", 2},
        {"\xf4\x90", 2},
        {"\xf0\x80\x80", 3},
        {"\xe0\xa0", 0},
        {"\xf4\x8f\xbf", 0},
        {"\xc3\xa9\x80", 3},
    };
    for (size_t i = 0; i < LG_COUNT(row); i++)
        assert_int_equal(lg_utf8_whole(row[i].in, strlen(row[i].in)), row[i].whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_repair_as_python),
        cmocka_unit_test(test_whole_keeps_what_may_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
