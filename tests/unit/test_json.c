/* test_json.c - the strict reader, the lookups, number conversions and the writer. */
#include "base/json.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static lg_json_doc *parse(const char *text) {
    lg_json_doc *doc;
    lg_err err = {0};
    if (lg_json_parse(text, strlen(text), 64, "test", &doc, &err) != LG_OK)
        fail_msg("%s: %s", text, err.msg);
    return doc;
}

static void test_accepts(void **state) {
    (void)state;
    static const char *const text[] = {
        "0",
        "-0",
        "1",
        "-1.5e+300",
        "1E5",
        "0e0",
        "0.0",
        "1e-999",
        "1e999",
        "null",
        "true",
        "false",
        "\"\"",
        "[]",
        "{}",
        " \t\r\n[ ] \n",
        "[1,2]",
        "{\"\":0}",
        "{\"a\":1,\"a\":2}",
        "[[],{}]",
        "\"\\u0000\"",
        "\"\\ud83d\\ude00\"",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\x7f\"",
        "\"\xf4\x8f\xbf\xbf\"",
        "\"\\uFFFF\"",
        "123456789012345678901234567890",
    };
    for (size_t i = 0; i < LG_COUNT(text); i++) {
        lg_json_doc *doc = parse(text[i]);
        lg_json_close(&doc);
        assert_null(doc);
    }
}

static void test_refuses_and_says_where(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t offset;
    } row[] = {
        {"", 0},
        {" ", 1},
        {"nul", 3},
        {"True", 0},
        {"NaN", 0},
        {"Infinity", 0},
        {"-Infinity", 1},
        {"+1", 0},
        {"-", 1},
        {"01", 1},
        {"-01", 2},
        {"1.", 2},
        {".5", 0},
        {"1e", 2},
        {"1e+", 3},
        {"0x10", 1},
        {"1 2", 2},
        {"[1,]", 3},
        {"[,1]", 1},
        {"[1 2]", 3},
        {"[1", 2},
        {"[", 1},
        {"]", 0},
        {"[1}", 2},
        {"{", 1},
        {"{1:2}", 1},
        {"{\"a\"}", 4},
        {"{\"a\" 1}", 5},
        {"{\"a\":}", 5},
        {"{\"a\":1,}", 7},
        {"{\"a\":1]", 6},
        {"{'a':1}", 1},
        {"\"", 1},
        {"\"a", 2},
        {"\"\\", 2},
        {"\"\\x\"", 2},
        {"\"\\u12\"", 5},
        {"\"\\u12g4\"", 5},
        {"\"\\", 2},
        {"\"a\nb\"", 2},
        {"\"\x1f\"", 1},
        {"\"\xff\"", 1},
        {"\"a\xc3\"", 2},
        {"\"\xed\xa0\x80\"", 1},
        {"\"\xc0\x80\"", 1},
        {"\"\\ud800\"", 7},
        {"\"\\udc00\"", 1},
        {"\"\\ud800\\u0041\"", 7},
        {"\"\\ud800\\ud800\"", 7},
        {"// c\n1", 0},
        {"[1]/**/", 3},
        {"\xef\xbb\xbf[]", 0},
        {"[1]\v", 3},
        {"\xc2\xa0[]", 0},
        {"[\"a\" \"b\"]", 5},
        {"{\"a\":1 \"b\":2}", 7},
        {"[1]]", 3},
        {"{}{}", 2},
        {"trueX", 4},
        {"[truefalse]", 5},
    };
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        lg_json_doc *doc = (lg_json_doc *)&doc;
        lg_err err = {0};
        lg_status st = lg_json_parse(row[i].text, strlen(row[i].text), 64, "body", &doc, &err);
        if (st != LG_E_FORMAT) fail_msg("accepted: %s", row[i].text);
        assert_null(doc);
        char want[64];
        snprintf(want, sizeof want, "body: byte %zu: ", row[i].offset);
        if (strncmp(err.msg, want, strlen(want)) != 0)
            fail_msg("%s: \"%s\" does not start with \"%s\"", row[i].text, err.msg, want);
    }
    lg_json_doc *doc;
    lg_err err;
    assert_int_equal(lg_json_parse("[1\0]", 4, 64, "body", &doc, &err), LG_E_FORMAT);
    assert_string_equal(err.msg, "body: byte 2: expected ',' or ']', found byte 0x00");
    assert_int_equal(lg_json_parse("{\"a\":[1", 7, 64, "body", &doc, &err), LG_E_FORMAT);
    assert_string_equal(err.msg, "body: byte 7: expected ',' or ']', found the end");
    assert_int_equal(lg_json_parse("[;", 2, 64, "body", &doc, NULL), LG_E_FORMAT);
}

/* Every prefix of a valid document is refused, with nothing read past its end (run under ASan). */
static void test_refuses_every_prefix(void **state) {
    (void)state;
    const char *text =
        "[{\"k\\u00e9\\ud83d\\ude00\xc3\xa9\":[-1.5e+3,true,false,null,\"\\n\"]},[]]";
    for (size_t n = 0; n <= strlen(text); n++) {
        char *copy = lg_mem_alloc(n);
        memcpy(copy, text, n);
        lg_json_doc *doc;
        assert_int_equal(lg_json_parse(copy, n, 64, "t", &doc, NULL),
                         n == strlen(text) ? LG_OK : LG_E_FORMAT);
        lg_json_close(&doc);
        lg_mem_free(copy);
    }
}

static void test_tree_keeps_what_was_written(void **state) {
    (void)state;
    const char *text =
        " {\"b\":[1.50,-0, 12345678901234567890123 ],\"a\":\"x\\u0000y\",\"\":null,"
        "\"k\\u0000\":true,\"a\":false}";
    lg_json_doc *doc = parse(text);
    const lg_json *root = lg_json_root(doc), *v = root->child;
    assert_int_equal(root->kind, LG_JSON_OBJECT);
    assert_int_equal(root->n_child, 5);
    assert_int_equal(root->offset, 1);
    assert_null(root->key);
    assert_string_equal(v->key, "b");
    assert_int_equal(v->n_child, 3);
    assert_int_equal(v->offset, 6);
    assert_string_equal(lg_json_at(v, 0)->text, "1.50");
    assert_string_equal(lg_json_at(v, 1)->text, "-0");
    assert_string_equal(lg_json_at(v, 2)->text, "12345678901234567890123");
    assert_int_equal(lg_json_at(v, 2)->offset, 16);
    assert_int_equal(lg_json_at(v, 2)->text_len, 23);
    assert_null(lg_json_at(v, 0)->key);
    assert_null(lg_json_at(v, 3));
    v = v->next;
    assert_int_equal(v->text_len, 3);
    assert_memory_equal(v->text, "x\0y", 4);
    assert_string_equal(v->next->key, "");
    assert_int_equal(v->next->next->key_len, 2);
    assert_memory_equal(v->next->next->key, "k\0", 3);
    assert_int_equal(lg_json_get(root, "a")->kind, LG_JSON_FALSE); /* the last one */
    assert_null(lg_json_get(root, "k")); /* no prefix of a key with a NUL */
    assert_int_equal(lg_json_get(root, "")->kind, LG_JSON_NULL);
    assert_null(lg_json_get(v, "a"));
    assert_null(lg_json_get(NULL, "a"));
    assert_null(lg_json_at(NULL, 0));
    assert_false(lg_json_is(v, "x"));
    assert_false(lg_json_is(NULL, ""));
    bool b = true;
    assert_true(lg_json_bool(lg_json_get(root, "a"), &b) && !b);
    assert_false(lg_json_bool(v, &b));
    assert_string_equal(lg_json_kind_name(v->kind), "string");
    lg_json_close(&doc);
    lg_json_close(&doc);
}

static void test_strings_decode(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } row[] = {
        {"\"\\u00e9\\u20AC\\ud834\\udd1E\\u007f\"", "\xc3\xa9\xe2\x82\xac\xf0\x9d\x84\x9e\x7f"},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"a\\nb\xc3\xa9\\u0041\xf0\x9f\x91\xa9z\"", "a\nb\xc3\xa9"
                                                      "A\xf0\x9f\x91\xa9z"},
        {"\"\"", ""},
    };
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        lg_json_doc *doc = parse(row[i].text);
        assert_true(lg_json_is(lg_json_root(doc), row[i].want));
        assert_string_equal(lg_json_root(doc)->text, row[i].want);
        lg_json_close(&doc);
    }
}

static char *nested(size_t depth) {
    char *s = lg_mem_alloc(2 * depth + 1);
    memset(s, '[', depth);
    memset(s + depth, ']', depth);
    return s;
}

static void test_number_of_values_is_limited(void **state) {
    (void)state;
    static const char text[] = "{\"a\": [1, [], {\"b\": null}]}"; /* six values */
    lg_json_doc *doc;
    lg_err err;
    for (size_t max = 0; max < 6; max++) {
        lg_status st = lg_json_parse_bounded(text, strlen(text), 9, max, "x", &doc, &err);
        assert_int_equal(st, LG_E_FORMAT);
        assert_null(doc);
        assert_non_null(strstr(err.msg, "more values"));
    }
    assert_int_equal(lg_json_parse_bounded(text, strlen(text), 9, 6, "x", &doc, &err), LG_OK);
    lg_json_close(&doc);
}

static void test_depth_is_limited(void **state) {
    (void)state;
    lg_json_doc *doc;
    lg_err err;
    assert_int_equal(lg_json_parse("[[1],{\"a\":2}]", 13, 2, "t", &doc, &err), LG_OK);
    lg_json_close(&doc);
    assert_int_equal(lg_json_parse("[[1],{\"a\":[]}]", 14, 2, "t", &doc, &err), LG_E_FORMAT);
    assert_string_equal(err.msg, "t: byte 10: nested deeper than 2 levels");
    assert_int_equal(lg_json_parse("7", 1, 0, "t", &doc, &err), LG_OK);
    lg_json_close(&doc);
    assert_int_equal(lg_json_parse("[]", 2, 0, "t", &doc, &err), LG_E_FORMAT);
    char *s = nested(LG_JSON_MAX_DEPTH);
    assert_int_equal(lg_json_parse(s, strlen(s), UINT32_MAX, "t", &doc, &err), LG_OK);
    lg_buf b = {0};
    lg_json_put(&b, lg_json_root(doc), LG_JSON_COMPACT);
    assert_string_equal(lg_buf_str(&b), s);
    lg_buf_fini(&b);
    lg_json_close(&doc);
    lg_mem_free(s);
    s = nested(LG_JSON_MAX_DEPTH + 1);
    assert_int_equal(lg_json_parse(s, strlen(s), UINT32_MAX, "t", &doc, &err), LG_E_FORMAT);
    lg_mem_free(s);
}

static void test_integers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool is_u64, is_i64;
        uint64_t u;
        int64_t i;
    } row[] = {
        {"0", 1, 1, 0, 0},
        {"-0", 1, 1, 0, 0},
        {"-0.0e5", 1, 1, 0, 0},
        {"0e999999999999999999999", 1, 1, 0, 0},
        {"42", 1, 1, 42, 42},
        {"-42", 0, 1, 0, -42},
        {"1.0", 1, 1, 1, 1},
        {"1e3", 1, 1, 1000, 1000},
        {"1.5e1", 1, 1, 15, 15},
        {"1.50", 0, 0, 0, 0},
        {"0.001e3", 1, 1, 1, 1},
        {"120e-1", 1, 1, 12, 12},
        {"100e-3", 0, 0, 0, 0},
        {"-2.50e2", 0, 1, 0, -250},
        {"1e-1", 0, 0, 0, 0},
        {"1e-99999999999999999999", 0, 0, 0, 0},
        {"9223372036854775807", 1, 1, INT64_MAX, INT64_MAX},
        {"9223372036854775808", 1, 0, (uint64_t)1 << 63, 0},
        {"-9223372036854775808", 0, 1, 0, INT64_MIN},
        {"-9223372036854775809", 0, 0, 0, 0},
        {"18446744073709551615", 1, 0, UINT64_MAX, 0},
        {"18446744073709551616", 0, 0, 0, 0},
        {"1.8446744073709551615e19", 1, 0, UINT64_MAX, 0},
        {"1e19", 1, 0, 10000000000000000000u, 0},
        {"1e20", 0, 0, 0, 0},
        {"1e999999999999999999999", 0, 0, 0, 0},
        {"9007199254740993", 1, 1, 9007199254740993, 9007199254740993},
        {"\"1\"", 0, 0, 0, 0},
        {"true", 0, 0, 0, 0},
        {"null", 0, 0, 0, 0},
    };
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        lg_json_doc *doc = parse(row[i].text);
        uint64_t u = 77;
        int64_t s = 77;
        if (lg_json_u64(lg_json_root(doc), &u) != row[i].is_u64)
            fail_msg("u64 %s", row[i].text);
        if (lg_json_i64(lg_json_root(doc), &s) != row[i].is_i64)
            fail_msg("i64 %s", row[i].text);
        assert_true(u == (row[i].is_u64 ? row[i].u : 77));
        assert_true(s == (row[i].is_i64 ? row[i].i : 77));
        lg_json_close(&doc);
    }
    uint64_t u;
    assert_false(lg_json_u64(NULL, &u));
}

static void test_doubles(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double want;
        const char *repr;
    } row[] = {
        {"0.75", 0.75, "0.75"},
        {"2", 2, "2.0"},
        {"-0.0", -0.0, "-0.0"},
        {"1e-7", 1e-7, "1e-07"},
        {"10000000000000000", 1e16, "1e+16"},
        {"1e15", 1e15, "1000000000000000.0"},
        {"0.0001", 1e-4, "0.0001"},
        {"0.00001", 1e-5, "1e-05"},
        {"0.1", 0.1, "0.1"},
        {"1e22", 1e22, "1e+22"},
        {"1e23", 1e23, "1e+23"},
        {"9007199254740993", 0x1p53, "9007199254740992.0"},
        {"5e-324", 0x1p-1074, "5e-324"},
        {"2.4703282292062327e-324", 0, "0.0"},
        {"2.4703282292062328e-324", 0x1p-1074, "5e-324"},
        {"1.7976931348623157e308", DBL_MAX, "1.7976931348623157e+308"},
        {"123456.789e-3", 123.456789, "123.456789"},
        {"5.684341886080801486968994140625e-14", 0x1p-44, "5.684341886080802e-14"},
        {"2.2250738585072011e-308", 0x0.fffffffffffffp-1022, "2.225073858507201e-308"},
    };
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        lg_json_doc *doc = parse(row[i].text);
        double x;
        assert_true(lg_json_f64(lg_json_root(doc), &x));
        assert_true(x == row[i].want && !signbit(x) == !signbit(row[i].want));
        lg_buf b = {0};
        lg_json_put_double(&b, x);
        assert_string_equal(lg_buf_str(&b), row[i].repr);
        lg_buf_fini(&b);
        lg_json_close(&doc);
    }
    lg_json_doc *doc = parse("1e400");
    double x = 1;
    assert_false(lg_json_f64(lg_json_root(doc), &x));
    assert_true(x == 1);
    lg_json_close(&doc);
    lg_buf b = {0};
    lg_json_put_double(&b, (double)NAN);
    lg_buf_putc(&b, ' ');
    lg_json_put_double(&b, -(double)INFINITY);
    assert_string_equal(lg_buf_str(&b), "nan -inf");
    lg_buf_fini(&b);
}

static void test_writer(void **state) {
    (void)state;
    lg_json_doc *doc = parse("{\"a\" : [1.50, -0,1E400,-1e400,1e-7, true,false,null], "
                             "\"\\u001f\\u007f/\\\"\\\\\\n\" : { } , \"e\":[]}");
    lg_buf b = {0};
    lg_json_put(&b, lg_json_root(doc), LG_JSON_COMPACT);
    assert_string_equal(lg_buf_str(&b), "{\"a\":[1.50,-0,1E400,-1e400,1e-7,true,false,null],"
                                        "\"\\u001f\x7f/\\\"\\\\\\n\":{},\"e\":[]}");
    lg_buf_clear(&b);
    lg_json_put(&b, lg_json_root(doc), LG_JSON_PYTHON);
    assert_string_equal(lg_buf_str(&b),
                        "{\"a\": [1.5, 0, Infinity, -Infinity, 1e-07, true, false, null], "
                        "\"\\u001f\x7f/\\\"\\\\\\n\": {}, \"e\": []}");
    lg_json_close(&doc);
    lg_buf_clear(&b);
    lg_json_put_string(&b, "\0\b\f\r\t\x01z\xff\xc3\xa9\xe2\x82", 12);
    assert_string_equal(lg_buf_str(&b),
                        "\"\\u0000\\b\\f\\r\\t\\u0001z\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\"");
    lg_buf_fini(&b);
}

/* Parse, then print: with every allocation failed in turn, nothing leaks and the status is LG_E_NOMEM. */
static void test_no_memory_at_any_point(void **state) {
    (void)state;
    lg_buf src = {0};
    lg_buf_putc(&src, '[');
    for (int i = 0; i < 500; i++) lg_buf_printf(&src, "{\"key%d\":[%d,\"x\"]},", i, i);
    lg_buf_puts(&src, "0]");
    int64_t alive = lg_mem_alive();
    lg_status st = LG_E_NOMEM;
    bool printed = false;
    int n_failed = 0;
    for (uint64_t n = 1; st != LG_OK || !printed; n++) {
        lg_json_doc *doc;
        lg_err err = {0};
        lg_buf out = {0};
        lg_mem_fail_at(n);
        st = lg_json_parse(src.data, src.len_bytes, 64, "t", &doc, &err);
        if (st == LG_OK) {
            lg_json_put(&out, lg_json_root(doc), LG_JSON_COMPACT);
            printed = !out.failed;
        } else {
            assert_int_equal(st, LG_E_NOMEM);
            assert_int_equal(err.code, LG_E_NOMEM);
            assert_null(doc);
        }
        lg_mem_fail_at(0);
        n_failed += st != LG_OK || !printed;
        if (printed) assert_string_equal(out.data, src.data);
        lg_json_close(&doc);
        lg_buf_fini(&out);
        assert_int_equal(lg_mem_alive(), alive);
        assert_true(n < 100);
    }
    assert_true(n_failed > 10);
    lg_buf_fini(&src);
}

static void test_load(void **state) {
    (void)state;
    char path[] = "/tmp/lignum_test_json_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{\"a\":1x", 7), 7);
    lg_json_doc *doc;
    lg_err err;
    char want[128];
    assert_int_equal(lg_json_load(path, 100, 64, &doc, &err), LG_E_FORMAT);
    snprintf(want, sizeof want, "%s: byte 6: expected ',' or '}', found 'x'", path);
    assert_string_equal(err.msg, want);
    assert_int_equal(lg_json_load(path, 6, 64, &doc, &err), LG_E_FORMAT);
    snprintf(want, sizeof want, "%s: 7 bytes, expected at most 6", path);
    assert_string_equal(err.msg, want);
    assert_int_equal(pwrite(fd, "}", 1, 6), 1);
    assert_int_equal(lg_json_load(path, 7, 64, &doc, &err), LG_OK);
    assert_string_equal(lg_json_get(lg_json_root(doc), "a")->text, "1");
    lg_json_close(&doc);
    int64_t alive = lg_mem_alive();
    for (uint64_t n = 1; n <= 3; n++) {
        lg_mem_fail_at(n);
        assert_int_equal(lg_json_load(path, 7, 64, &doc, &err), LG_E_NOMEM);
        assert_int_equal(lg_mem_alive(), alive);
    }
    lg_mem_fail_at(0);
    close(fd);
    unlink(path);
    assert_int_equal(lg_json_load(path, 7, 64, &doc, &err), LG_E_IO);
    assert_int_equal(lg_json_load("/", 7, 64, &doc, &err), LG_E_IO);
    assert_string_equal(err.msg, "/: not a regular file");
    assert_null(doc);
}

/* A process that has set a locale with a decimal comma reads and prints the same. */
static void test_locale_does_not_matter(void **state) {
    (void)state;
    static const char *const name[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8",
                                       "ps_AF.UTF-8"};
    const char *set = NULL;
    for (size_t i = 0; i < LG_COUNT(name) && !set; i++) set = setlocale(LC_ALL, name[i]);
    if (!set) {
        print_message("skipped: no locale with a decimal comma is installed\n");
        skip();
    }
    test_doubles(state);
    setlocale(LC_ALL, "C");
}

static void test_pointers(void **state) {
    (void)state;
    lg_err err;
    lg_json_doc *doc = NULL;
    static const char text[] = "{\"a\":{\"b\":1,\"\":2,\"/x\":3,\"~\":4},\"l\":[{\"c\":5}]}";
    assert_int_equal(lg_json_parse(text, sizeof text - 1, 8, "test", &doc, &err), LG_OK);
    const lg_json *root = lg_json_root(doc);
    static const struct {
        const char *at;
        uint64_t value; /* 0: nowhere */
    } row[] = {{"#/a/b", 1},   {"#/a/", 2},  {"#/a/~1x", 3}, {"#/a/~0", 4},
               {"#/a/b/c", 0}, {"#/l/0", 0}, {"#/l/c", 0},   {"#a", 0},
               {"/a/b", 0},    {"", 0},      {"#/a//", 0},   {"#/a/~2x", 0}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint64_t got = 0;
        const lg_json *v = lg_json_point(root, row[i].at);
        assert_true(row[i].value ? lg_json_u64(v, &got) && got == row[i].value : v == NULL);
    }
    assert_ptr_equal(lg_json_point(root, "#"), root);
    assert_null(lg_json_point(NULL, "#/a"));
    char far[140] = "#/";
    memset(far + 2, 'k', 128);
    assert_null(lg_json_point(root, far));
    lg_json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_refuses_and_says_where),
        cmocka_unit_test(test_refuses_every_prefix),
        cmocka_unit_test(test_tree_keeps_what_was_written),
        cmocka_unit_test(test_strings_decode),
        cmocka_unit_test(test_pointers),
        cmocka_unit_test(test_depth_is_limited),
        cmocka_unit_test(test_number_of_values_is_limited),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_no_memory_at_any_point),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_locale_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
