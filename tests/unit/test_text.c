/* test_text.c - the public text calls on the bundled model's folder. */
#include "base/json.h"
#include "model/text/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lg_text *open_text(void) {
    char path[1024];
    lg_text *text;
    lg_err err;
    snprintf(path, sizeof path, "%s/models/tiny-qwen35moe", getenv("LG_SOURCE_DIR"));
    if (lg_text_open(path, &text, &err) != LG_OK) fail_msg("%s", err.msg);
    return text;
}

static void expect_text(lg_text *text, const uint32_t *ids, size_t n, bool special,
                        const char *want) {
    char *s;
    size_t len;
    lg_err err;
    assert_int_equal(lg_text_decode(text, ids, n, special, &s, &len, &err), LG_OK);
    assert_string_equal(s, want);
    assert_int_equal(len, strlen(want));
    lg_free(s);
}

static void test_plain_text_both_ways(void **state) {
    (void)state;
    lg_text *text = open_text();
    static const char s[] = "Hello<|im_end|> w\xc3\xb6rld\n";
    uint32_t *ids, end = lg_tokenizer_added(lg_text_tokenizer(text), "<|im_end|>");
    size_t n;
    lg_err err;
    assert_int_equal(lg_text_encode(text, s, sizeof s - 1, &ids, &n, &err), LG_OK);
    for (size_t i = 0; i < n; i++) assert_int_not_equal(ids[i], end);
    expect_text(text, ids, n, false, s);
    lg_free(ids);
    assert_int_equal(lg_text_encode(text, "", 0, &ids, &n, &err), LG_OK);
    assert_int_equal(n, 0);
    assert_non_null(ids);
    expect_text(text, ids, 0, false, "");
    lg_free(ids);
    lg_text_close(&text);
    assert_null(text);
    lg_text_close(&text);
}

static void expect_chat(lg_text *text, const char *json, const char *want) {
    uint32_t *ids;
    size_t n;
    lg_err err;
    if (lg_text_chat(text, json, strlen(json), &ids, &n, &err) != LG_OK)
        fail_msg("%s", err.msg);
    expect_text(text, ids, n, true, want);
    lg_free(ids);
}

static void test_chat(void **state) {
    (void)state;
    lg_text *text = open_text();
    static const char user[] = "<|im_start|>user\nHi<|im_end|>\n";
    char want[256];
    snprintf(want, sizeof want, "%s<|im_start|>assistant\n<think>\n", user);
    expect_chat(text, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", want);
    snprintf(want, sizeof want, "%s<|im_start|>assistant\n<think>\n\n</think>\n\n", user);
    expect_chat(text,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"tools\":null,"
                "\"enable_thinking\":false}",
                want);
    expect_chat(text,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
                "\"add_generation_prompt\":false,\"model\":\"x\"}",
                user);
    lg_text_close(&text);
}

static void test_refused_chats(void **state) {
    (void)state;
    static const struct {
        const char *json, *message;
        lg_status status;
    } row[] = {
        {"{\"messages\":[]}", "No messages provided.", LG_E_ARG},
        {"{", "chat: byte ", LG_E_FORMAT},
        {"[]", "chat: expected an object, found array", LG_E_ARG},
        {"{}", "chat: messages: expected an array, found nothing", LG_E_ARG},
        {"{\"messages\":{}}", "chat: messages: expected an array, found object", LG_E_ARG},
        {"{\"messages\":[],\"tools\":1}", "chat: tools: expected an array, found number",
         LG_E_ARG},
        {"{\"messages\":[],\"enable_thinking\":\"no\"}",
         "chat: enable_thinking: expected true or false, found string", LG_E_ARG},
    };
    lg_text *text = open_text();
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        uint32_t *ids;
        size_t n;
        lg_err err = {0};
        lg_status st = lg_text_chat(text, row[i].json, strlen(row[i].json), &ids, &n, &err);
        if (st != row[i].status || !strstr(err.msg, row[i].message))
            fail_msg("%s: status %d, \"%s\"", row[i].json, st, err.msg);
        assert_null(ids);
    }
    lg_text_close(&text);
}

static void test_missing_folder(void **state) {
    (void)state;
    lg_text *text;
    lg_err err;
    assert_int_equal(lg_text_open("/nonexistent", &text, &err), LG_E_IO);
    assert_non_null(strstr(err.msg, "/nonexistent/tokenizer.json"));
    assert_null(text);
}

/* Every call with the n-th allocation failing. */
static void test_calls_without_memory(void **state) {
    (void)state;
    static const char chat[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi \xc3\xa9\xcc\xa3\"}]}";
    lg_text *text = open_text();
    uint64_t failures = 1;
    for (uint64_t n = 1; failures; n++) {
        failures = 0;
        uint32_t *ids;
        size_t n_id, len;
        char *s;
        lg_err err;
        static const uint32_t one[] = {5};
        int64_t alive = lg_mem_alive();
        for (int call = 0; call < 3; call++) {
            lg_mem_fail_at(n);
            lg_status st = call == 0
                               ? lg_text_chat(text, chat, sizeof chat - 1, &ids, &n_id, &err)
                           : call == 1 ? lg_text_encode(text, "abc", 3, &ids, &n_id, &err)
                                       : lg_text_decode(text, one, 1, false, &s, &len, &err);
            lg_mem_fail_at(0);
            failures += st != LG_OK;
            assert_true(st == LG_OK || st == LG_E_NOMEM);
            if (call < 2) {
                assert_true((st == LG_OK) == (ids != NULL));
                lg_free(ids);
            } else {
                assert_true((st == LG_OK) == (s != NULL));
                lg_free(s);
            }
        }
        /* scratch of the tokenizer may have grown, by a handful of blocks in all */
        assert_true(lg_mem_alive() - alive <= 8);
    }
    lg_text_close(&text);
}

static void test_nothing_leaks(void **state) {
    (void)state;
    assert_int_equal(lg_mem_alive(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_text_both_ways), cmocka_unit_test(test_chat),
        cmocka_unit_test(test_refused_chats),        cmocka_unit_test(test_missing_folder),
        cmocka_unit_test(test_calls_without_memory), cmocka_unit_test(test_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
