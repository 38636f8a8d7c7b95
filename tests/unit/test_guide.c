/* test_guide.c - answers that must fit a grammar, through the engine: at temperature 100 every one that ends is valid, and one that
 * goes on in another life is the same. */
#include "engine_rig.h"
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char schema[] =
    "{\"schema\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
    "\"maxLength\":8},"
    "\"n\":{\"type\":[\"integer\",\"null\"]},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":["
    "\"a\",\"b\"]},"
    "\"maxItems\":3},\"ok\":{\"type\":\"boolean\"}},\"required\":[\"name\",\"ok\"]}}";

static const char tools[] =
    "{\"tools\":[{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
    "\"type\":"
    "\"integer\"}},\"required\":[\"a\"]}},{\"name\":\"ping\"}],\"many\":true}";

static const uint32_t prompt[] = {7, 8, 9};

typedef struct told {
    rig r;
    answer a, b;
} told;

static int setup(void **state) {
    told *t = calloc(1, sizeof *t);
    lg_err err = {0};
    lg_options opt = {.n_ctx = 1024, .n_seq = 4};
    rig_init(&t->r);
    if (rig_open(&t->r, &opt, &err) != LG_OK) fail_msg("%s", err.msg);
    *state = t;
    return 0;
}

static int teardown(void **state) {
    told *t = *state;
    rig_fini(&t->r);
    free(t);
    return 0;
}

static lg_request wild(told *t, const char *grammar, uint64_t seed, answer *a) {
    lg_request r = rig_request(&t->r, prompt, 3, 400, a);
    r.params.temperature = 100;
    r.params.top_k = 0;
    r.params.top_p = 1;
    r.params.has_seed = true;
    r.params.seed = seed;
    r.grammar = grammar;
    return r;
}

static void run(told *t, const lg_request *req) {
    lg_err err = {0};
    answer *a = req->user;
    if (lg_submit(t->r.eng, req, &a->id, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_int_equal(rig_run(t->r.eng), LG_AGAIN);
    assert_true(a->done);
}

static void check(const answer *a) {
    lg_json_doc *doc;
    lg_err err = {0};
    if (lg_json_parse(a->text, a->len_bytes, 16, "answer", &doc, &err) != LG_OK)
        fail_msg("%s: %.*s", err.msg, (int)a->len_bytes, a->text);
    const lg_json *v = lg_json_root(doc), *name = lg_json_get(v, "name"),
                  *n = lg_json_get(v, "n");
    const lg_json *tags = lg_json_get(v, "tags");
    bool ok;
    assert_true(v->kind == LG_JSON_OBJECT && name && name->kind == LG_JSON_STRING);
    assert_true(lg_json_bool(lg_json_get(v, "ok"), &ok));
    assert_true(!n || n->kind == LG_JSON_NUMBER || n->kind == LG_JSON_NULL);
    assert_true(!tags || (tags->kind == LG_JSON_ARRAY && tags->n_child <= 3));
    assert_int_equal(v->n_child, 2 + (n != NULL) + (tags != NULL));
    lg_json_close(&doc);
}

static void test_valid_at_temperature_100(void **state) {
    told *t = *state;
    uint32_t n_end = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        lg_request r = wild(t, schema, seed, &t->a);
        run(t, &r);
        assert_true(t->a.end.finish == LG_FINISH_EOS || t->a.end.finish == LG_FINISH_LENGTH);
        if (t->a.end.finish != LG_FINISH_EOS) continue;
        check(&t->a);
        n_end++;
    }
    assert_true(n_end > 50);
}

static void test_calls_at_temperature_100(void **state) {
    told *t = *state;
    static const char head[] = "<tool_call>\n<function=", tail[] = "</function>\n</tool_call>";
    for (uint64_t seed = 0; seed < 30; seed++) {
        lg_request r = wild(t, tools, seed, &t->a);
        r.max_tokens = 1000;
        run(t, &r);
        assert_int_equal(strncmp(t->a.text, head, sizeof head - 1), 0);
        if (t->a.end.finish != LG_FINISH_EOS) continue;
        assert_memory_equal(t->a.text + t->a.len_bytes - (sizeof tail - 1), tail,
                            sizeof tail - 1);
    }
}

/* Reasoning is free until it closes; then the grammar holds. */
static void test_reasoning_comes_first(void **state) {
    told *t = *state;
    lg_ids ids = {0};
    static const char thought[] = "Any {text}.\n</think>\n\n";
    assert_int_equal(
        lg_tokenizer_encode(t->r.tok, thought, strlen(thought), NULL, 0, true, &ids, NULL),
        LG_OK);
    uint32_t all[64] = {7, 8, 9};
    memcpy(all + 3, ids.id, ids.n * sizeof *ids.id);
    lg_request r = wild(t, schema, 5, &t->a);
    r.ids = all;
    r.n_id = 3 + (uint32_t)ids.n;
    r.n_produced = (uint32_t)ids.n;
    r.grammar_think = true;
    run(t, &r);
    if (t->a.end.finish == LG_FINISH_EOS) check(&t->a);
    assert_int_equal(t->a.text[0], '{');
    lg_ids_fini(&ids);
    /* what was produced must fit */
    lg_err err = {0};
    uint64_t id;
    r.grammar_think = false;
    assert_int_equal(lg_submit(t->r.eng, &r, &id, &err), LG_E_ARG);
    assert_non_null(strstr(err.msg, "grammar"));
}

/* Cut after each token and submitted again with what was produced: the same answer. */
static void test_a_second_life_is_the_same(void **state) {
    told *t = *state;
    uint32_t all[600] = {7, 8, 9};
    lg_request r = wild(t, schema, 3, &t->a);
    run(t, &r);
    memcpy(all + 3, t->a.token, t->a.n_token * sizeof *all);
    for (uint32_t n = 1; n < t->a.n_token; n += 3) {
        lg_request again = wild(t, schema, 3, &t->b);
        again.ids = all;
        again.n_id = 3 + n;
        again.n_produced = n;
        run(t, &again);
        assert_int_equal(t->b.n_token, t->a.n_token - n);
        assert_memory_equal(t->b.token, t->a.token + n, t->b.n_token * sizeof *all);
    }
}

static void test_refused(void **state) {
    told *t = *state;
    static const char *const bad[] = {"", "{", "{}", "{\"schema\":{\"type\":\"x\"}}",
                                      "{\"tools\":[]}"};
    lg_err err = {0};
    uint64_t id;
    for (size_t i = 0; i < LG_COUNT(bad); i++) {
        lg_request r = wild(t, bad[i], 1, &t->a);
        assert_int_equal(lg_submit(t->r.eng, &r, &id, &err), LG_E_ARG);
    }
    lg_request r = wild(t, schema, 1, &t->a);
    r.params.ignore_eos = true;
    assert_int_equal(lg_submit(t->r.eng, &r, &id, &err), LG_E_ARG);
}

/* Guides stay within what the kit may take, and give it back. */
static void test_memory_is_limited(void **state) {
    told *t = *state;
    lg_err err = {0};
    lg_guide *g[64];
    uint32_t n = 0, n_again = 0;
    lg_guide_kit kit = {
        .tok = t->r.tok, .n_id = lg_tokenizer_n_id(t->r.tok), .limit_bytes = 1000};
    assert_int_equal(lg_guide_open(&kit, schema, false, NULL, 0, &g[0], &err), LG_E_NOMEM);
    assert_non_null(strstr(err.msg, "memory budget 0 KiB"));
    assert_int_equal(kit.used_bytes, 0);
    uint64_t alive = lg_mem_bytes();
    kit.limit_bytes = lg_grammar_vocab_bytes(kit.tok, kit.n_id) + (200 << 10);
    while (n < 64 && lg_guide_open(&kit, schema, false, NULL, 0, &g[n], &err) == LG_OK) n++;
    assert_in_range(n, 3, 63);
    assert_true(kit.used_bytes <= kit.limit_bytes);
    assert_true(lg_mem_bytes() - alive <= kit.used_bytes);
    assert_true(lg_mem_bytes() - alive > kit.used_bytes - kit.used_bytes / 8);
    for (uint32_t i = 0; i < n; i++) lg_guide_close(&g[i]);
    while (n_again < 64 &&
           lg_guide_open(&kit, schema, false, NULL, 0, &g[n_again], &err) == LG_OK)
        n_again++;
    assert_int_equal(n_again, n);
    for (uint32_t i = 0; i < n; i++) lg_guide_close(&g[i]);
    lg_guide_kit_fini(&kit);
    assert_int_equal(lg_mem_bytes(), alive);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_valid_at_temperature_100, setup, teardown),
        cmocka_unit_test_setup_teardown(test_calls_at_temperature_100, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reasoning_comes_first, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_second_life_is_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memory_is_limited, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
