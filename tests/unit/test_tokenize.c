/* test_tokenize.c - /tokenize and /detokenize against the tokenizer and the chat route, refusals by name, and every
 * allocation failing. */
#include "gateway/wire/openai.h"
#include "gateway/wire/tokenize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lg_request_model model;

static int open_model(void **state) {
    (void)state;
    char path[512];
    lg_err err;
    const char *dir = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/tiny", dir ? dir : ".");
    model = (lg_request_model){.name = "tiny", .n_ctx = 600, .n_vocab = 4096, .created = 1};
    return lg_tokenizer_open(path, &model.tok, &err);
}

static int close_model(void **state) {
    (void)state;
    lg_tokenizer_close(&model.tok);
    return 0;
}

static lg_json_doc *ask(lg_request_answer_fn *fn, const char *body) {
    lg_buf answer = {0};
    lg_request_error e;
    lg_json_doc *doc;
    if (!fn(&model, body, strlen(body), &answer, &e)) fail_msg("%s: %s", body, e.msg);
    assert_int_equal(lg_json_parse(answer.data, answer.len_bytes, 8, "answer", &doc, NULL),
                     LG_OK);
    lg_buf_fini(&answer);
    return doc;
}

static void expect_ids(const lg_json *root, const uint32_t *id, size_t n) {
    uint64_t x;
    size_t i = 0;
    assert_true(lg_json_u64(lg_json_get(root, "count"), &x));
    assert_int_equal(x, n);
    assert_true(lg_json_u64(lg_json_get(root, "max_model_len"), &x));
    assert_int_equal(x, 600);
    for (const lg_json *t = lg_json_get(root, "tokens")->child; t; t = t->next, i++) {
        assert_true(i < n && lg_json_u64(t, &x));
        assert_int_equal(x, id[i]);
    }
    assert_int_equal(i, n);
}

static void test_text_is_text(void **state) {
    (void)state;
    static const char text[] = "Hi <|im_end|> \xc3\xa9";
    lg_ids ids = {0};
    assert_int_equal(
        lg_tokenizer_encode(model.tok, text, sizeof text - 1, NULL, 0, false, &ids, NULL),
        LG_OK);
    static const char *const body[] = {
        "{\"prompt\":\"Hi <|im_end|> \\u00e9\"}",
        "{\"model\":\"tiny\",\"text\":\"Hi <|im_end|> \xc3\xa9\","
        "\"add_special_tokens\":true}"};
    for (size_t i = 0; i < LG_COUNT(body); i++) {
        lg_json_doc *doc = ask(lg_tokenize_text, body[i]);
        expect_ids(lg_json_root(doc), ids.id, ids.n);
        assert_null(lg_json_get(lg_json_root(doc), "token_strs"));
        lg_json_close(&doc);
    }
    lg_ids_fini(&ids);
}

static void test_messages_are_the_prompt_of_a_chat(void **state) {
    (void)state;
    static const char rest[] =
        "\"messages\":[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\","
        "\"content\":\"1+1?\"}],\"enable_thinking\":false,\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"f\"}}]}";
    lg_buf chat = {0}, tok = {0}, back = {0}, joined = {0};
    lg_request_parsed *r;
    lg_request_error e;
    lg_buf_printf(&chat, "{\"model\":\"tiny\",%s", rest);
    lg_buf_printf(&tok, "{\"return_token_strs\":true,%s", rest);
    assert_true(lg_oai_open(&model, true, chat.data, chat.len_bytes, &r, &e));
    lg_json_doc *doc = ask(lg_tokenize_text, tok.data);
    expect_ids(lg_json_root(doc), r->ids.id, r->ids.n);
    for (const lg_json *s = lg_json_get(lg_json_root(doc), "token_strs")->child; s; s = s->next)
        lg_buf_put(&joined, s->text, s->text_len);
    /* and back */
    lg_buf_puts(&back, "{\"tokens\":");
    lg_json_put(&back, lg_json_get(lg_json_root(doc), "tokens"), LG_JSON_COMPACT);
    lg_buf_puts(&back, "}");
    lg_json_close(&doc);
    doc = ask(lg_tokenize_ids, back.data);
    const char *text = lg_json_get(lg_json_root(doc), "prompt")->text;
    assert_string_equal(text, joined.data);
    assert_int_equal(strncmp(text, "<|im_start|>system\n# Tools", 26), 0);
    assert_non_null(strstr(text, "Be kind.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
                                 "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    lg_json_close(&doc);
    lg_request_close(&r);
    lg_buf_fini(&chat);
    lg_buf_fini(&tok);
    lg_buf_fini(&back);
    lg_buf_fini(&joined);
}

static void test_refused_by_name(void **state) {
    (void)state;
    static const struct {
        lg_request_answer_fn *fn;
        const char *body, *param;
    } c[] = {
        {lg_tokenize_text, "{}", "prompt"},
        {lg_tokenize_text, "{\"prompt\":5}", "prompt"},
        {lg_tokenize_text, "{\"prompt\":\"a\",\"text\":\"a\"}", "text"},
        {lg_tokenize_text, "{\"prompt\":\"a\",\"messages\":[]}", "prompt"},
        {lg_tokenize_text, "{\"messages\":[]}", "messages"},
        {lg_tokenize_text, "{\"prompt\":\"a\",\"temperature\":1}", "temperature"},
        {lg_tokenize_text, "{\"prompt\":\"a\",\"add_special_tokens\":1}", "add_special_tokens"},
        {lg_tokenize_text, "{\"prompt\":\"a\",\"add_generation_prompt\":false}",
         "add_generation_prompt"},
        {lg_tokenize_ids, "{}", "tokens"},
        {lg_tokenize_ids, "{\"tokens\":\"a\"}", "tokens"},
        {lg_tokenize_ids, "{\"tokens\":[1,4096]}", "tokens[1]"},
        {lg_tokenize_ids, "{\"tokens\":[-1]}", "tokens[0]"},
        {lg_tokenize_ids, "{\"tokens\":[1],\"prompt\":\"a\"}", "prompt"},
        {lg_tokenize_embed, "{\"input\":\"a\"}", "model"},
    };
    for (size_t i = 0; i < LG_COUNT(c); i++) {
        lg_buf answer = {0};
        lg_request_error e;
        if (c[i].fn(&model, c[i].body, strlen(c[i].body), &answer, &e))
            fail_msg("accepted: %s", c[i].body);
        assert_int_equal(e.http, 400);
        assert_string_equal(e.param, c[i].param);
        assert_int_equal(answer.len_bytes, 0);
    }
}

static void test_a_long_list_is_refused(void **state) {
    (void)state;
    lg_buf b = {0}, answer = {0};
    lg_request_error e;
    lg_buf_puts(&b, "{\"prompt\":\"");
    for (int i = 0; i < 1 << 18; i++) lg_buf_puts(&b, "0\\n");
    lg_buf_puts(&b, "\"}");
    assert_false(lg_tokenize_text(&model, b.data, b.len_bytes, &answer, &e));
    assert_string_equal(e.code, "too_many_tokens");
    assert_string_equal(e.param, "prompt");
    lg_buf_fini(&b);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    static const struct {
        lg_request_answer_fn *fn;
        const char *body;
    } c[] = {
        {lg_tokenize_text, "{\"prompt\":\"hello there\",\"return_token_strs\":true}"},
        {lg_tokenize_text, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"},
        {lg_tokenize_ids, "{\"tokens\":[1,2,3,400,500]}"},
    };
    for (size_t i = 0; i < LG_COUNT(c); i++) {
        for (uint64_t n = 1;; n++) {
            int64_t alive = lg_mem_alive();
            lg_buf answer = {0};
            lg_request_error e;
            lg_mem_fail_at(n);
            bool ok = c[i].fn(&model, c[i].body, strlen(c[i].body), &answer, &e);
            lg_mem_fail_at(0);
            bool failed = answer.failed;
            lg_buf_fini(&answer);
            assert_int_equal(lg_mem_alive(), alive);
            if (!ok) assert_int_equal(e.http, 503);
            if (ok && !failed) break;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_text),
        cmocka_unit_test(test_messages_are_the_prompt_of_a_chat),
        cmocka_unit_test(test_refused_by_name),
        cmocka_unit_test(test_a_long_list_is_refused),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
