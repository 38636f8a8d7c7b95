/* test_argval.c - schema and text -> JSON value; and that what is decided early is what the whole text gives. */
#include "base/num.h"
#include "gateway/wire/argval.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static lg_json_doc *parse(const char *text) {
    lg_json_doc *doc = NULL;
    lg_err err;
    if (lg_json_parse(text, strlen(text), 64, "test", &doc, &err) != LG_OK)
        fail_msg("%s: %s", err.msg, text);
    return doc;
}

static const char root_json[] =
    "{\"$defs\":{\"color\":{\"enum\":[\"red\",\"5\"]},\"loop\":{\"$ref\":\"#/$defs/loop\"},"
    "\"a/b~c\":{\"type\":\"integer\"},\"wide\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
    "wide\"},{\"$ref\":\""
    "#/$defs/wide\"},{\"$ref\":\"#/$defs/wide\"},{\"$ref\":\"#/$defs/"
    "wide\"},{\"type\":\"string\"}]}}}";

#define ANY_OF(a, b) "{\"anyOf\":[{\"type\":\"" a "\"},{\"type\":\"" b "\"}]}"
#define TYPE(a)      "{\"type\":\"" a "\"}"

static const struct {
    const char *schema, *text, *value;
} rows[] = {
    {TYPE("string"), "42", "\"42\""},
    {TYPE("string"), "null", "\"null\""},
    {TYPE("string"), "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
    {TYPE("string"), "\"quoted\"", "\"\\\"quoted\\\"\""},
    {TYPE("string"), "", "\"\""},
    {TYPE("integer"), "42", "42"},
    {TYPE("integer"), "2024-01-01", "\"2024-01-01\""},
    {TYPE("integer"), "123456789012345678901234567890", "123456789012345678901234567890"},
    {TYPE("number"), "-1.5e3", "-1.5e3"},
    {TYPE("number"), " 7 ", "7"},
    {TYPE("boolean"), "True", "true"},
    {TYPE("boolean"), "false", "false"},
    {TYPE("boolean"), "yes", "\"yes\""},
    {TYPE("array"), "[1, {\"a\": null}]", "[1,{\"a\":null}]"},
    {TYPE("array"), "[1, ", "\"[1, \""},
    {TYPE("object"), "{\"a\": 1}", "{\"a\":1}"},
    {TYPE("null"), "None", "null"},
    {ANY_OF("object", "null"), "{\"a\": 1}", "{\"a\":1}"},
    {ANY_OF("object", "string"), "{\"a\": 1}", "{\"a\":1}"},
    {ANY_OF("string", "object"), "{\"a\": 1}", "{\"a\":1}"},
    {ANY_OF("string", "object"), "[1]", "\"[1]\""},
    {ANY_OF("string", "object"), "{a: 1}", "\"{a: 1}\""},
    {ANY_OF("string", "null"), "None", "null"},
    {ANY_OF("string", "null"), "Nonesense", "\"Nonesense\""},
    {ANY_OF("string", "integer"), "5", "5"},
    {ANY_OF("string", "integer"), "5.5", "\"5.5\""},
    {ANY_OF("string", "integer"), "5 apples", "\"5 apples\""},
    {ANY_OF("string", "integer"), "null", "\"null\""},
    {"{\"oneOf\":[{\"type\":\"array\"},{\"type\":\"string\"}]}", "[\"a\"]", "[\"a\"]"},
    {"{\"type\":[\"string\",\"boolean\"]}", "true", "true"},
    {"{\"type\":[\"string\",\"boolean\"]}", "1", "\"1\""},
    {"{\"allOf\":[" ANY_OF("string", "integer") "," TYPE("integer") "]}", "5", "5"},
    {"{\"allOf\":[" ANY_OF("string", "integer") "," TYPE("string") "]}", "5", "\"5\""},
    {"{\"enum\":[\"1\",\"2\"]}", "1", "\"1\""},
    {"{\"enum\":[1,2]}", "1", "1"},
    {"{\"enum\":[1,\"auto\"]}", "auto", "\"auto\""},
    {"{\"const\":\"7\"}", "7", "\"7\""},
    {"{\"$ref\":\"#/$defs/color\"}", "5", "\"5\""},
    {"{\"$ref\":\"#/$defs/a~1b~0c\"}", "5", "5"},
    {"{\"$ref\":\"#/$defs/gone\"}", "5", "5"},
    {"{\"$ref\":\"http://x/y\"}", "x", "\"x\""},
    {"{\"$ref\":\"#/$defs/loop\"}", "5", "5"},
    {"{\"type\":\"string\",\"enum\":[1]}", "5", "5"}, /* contradicts itself: anything */
    {"{}", "5", "5"},
    {"{}", "five", "\"five\""},
    {"{}", "\"five\"", "\"five\""},
    {"{}", "None", "null"},
    {"true", "{\"a\":1}", "{\"a\":1}"},
    {"{\"type\":\"date\"}", "x", "\"x\""},
};

static void check_value(uint32_t types, const char *text, const char *value) {
    lg_buf out = {0};
    assert_int_equal(lg_argval_put(&out, types, text, strlen(text)), LG_OK);
    assert_string_equal(lg_buf_str(&out), value);
    lg_buf_fini(&out);
}

static void test_table(void **state) {
    (void)state;
    lg_json_doc *root = parse(root_json);
    for (size_t i = 0; i < LG_COUNT(rows); i++) {
        lg_json_doc *schema = parse(rows[i].schema);
        uint32_t types = lg_argval_types(lg_json_root(root), lg_json_root(schema));
        check_value(types, rows[i].text, rows[i].value);
        lg_json_close(&schema);
    }
    lg_json_close(&root);
}

/* A reference that multiplies costs little, and what could not be looked at allows anything. */
static void test_references_are_bounded(void **state) {
    (void)state;
    lg_json_doc *root = parse(root_json);
    const lg_json *wide = lg_json_get(lg_json_get(lg_json_root(root), "$defs"), "wide");
    assert_int_equal(lg_argval_types(lg_json_root(root), wide), LG_ARG_ANY);
    assert_int_equal(lg_argval_types(NULL, NULL), LG_ARG_ANY);
    lg_json_close(&root);
}

/* Texts of characters that matter, under every set of types: TEXT is never said of what is no string in the end. */
static void test_early_decisions_hold(void **state) {
    (void)state;
    static const char *const piece[] = {
        "null", "None", "true", "False", "{", "}", "[",   "]", "\"",        "1",         "-",
        ".5",   "e3",   " ",    "\n",    "x", ",", "nul", "T", "\"a\": 1}", "[1, true]", "{}"};
    size_t n_text = 0, n_early = 0;
    for (uint64_t key = 0; key < 50000; key++) {
        char text[64] = "";
        uint32_t types = 1 + (uint32_t)(lg_num_rng(key, 0, 0, 0) % LG_ARG_ANY);
        uint64_t n = lg_num_rng(key, 0, 0, 1) % 5;
        for (uint64_t i = 0; i < n; i++)
            strcat(text, piece[lg_num_rng(key, 1, (uint32_t)i, 0) % LG_COUNT(piece)]);
        lg_argval a;
        lg_argval_form form = lg_argval_begin(&a, types);
        for (const char *p = text; *p && form == LG_ARGVAL_OPEN; p++)
            form = lg_argval_feed(&a, *p);
        lg_buf out = {0}, as_text = {0};
        assert_int_equal(lg_argval_put(&out, types, text, strlen(text)), LG_OK);
        lg_json_put_string(&as_text, text, strlen(text));
        bool same = strcmp(lg_buf_str(&out), lg_buf_str(&as_text)) == 0;
        if (form == LG_ARGVAL_TEXT) assert_true(same);
        n_early += form == LG_ARGVAL_TEXT;
        n_text += same;
        lg_json_doc *doc = parse(lg_buf_str(&out));
        lg_json_close(&doc);
        lg_buf_fini(&out);
        lg_buf_fini(&as_text);
    }
    assert_true(n_early > 10000 && n_text > n_early);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_references_are_bounded),
        cmocka_unit_test(test_early_decisions_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
