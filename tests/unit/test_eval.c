/* test_eval.c - the bundled model answers its evaluation chats with the reference's tokens, in company and alone.
 *
 * tests/data/eval.jsonl holds 200 chats with prompt ids and the greedy ids of the reference implementation.  Where the
 * reference's two best logits came closer than TIE somewhere on the way, another token is allowed, counted and printed. */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_CHAT  200
#define N_BATCH 32
#define MAX_TOK 256
#define TIE     1e-3

typedef struct chat {
    lg_json_doc *doc;
    uint32_t prompt[1024], n_prompt;
    uint32_t want[MAX_TOK], n_want;
    uint32_t got[MAX_TOK], n_got; /* in company */
    lg_buf text;
    lg_finish finish;
    double margin;
} chat;

typedef struct eval {
    lg_engine *eng;
    chat chat[N_CHAT];
    uint32_t n_chat;
} eval;

static uint32_t read_ids(const lg_json *v, uint32_t *ids, uint32_t max) {
    uint32_t n = 0;
    uint64_t id;
    assert_non_null(v);
    for (v = v->child; v; v = v->next) {
        assert_true(n < max && lg_json_u64(v, &id));
        ids[n++] = (uint32_t)id;
    }
    return n;
}

static void read_chats(eval *e, const char *path) {
    static char line[1 << 16];
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s: cannot be read", path);
    while (fgets(line, sizeof line, f)) {
        chat *c = &e->chat[e->n_chat++];
        lg_err err = {0};
        assert_true(e->n_chat <= N_CHAT);
        if (lg_json_parse(line, strlen(line), 64, path, &c->doc, &err)) fail_msg("%s", err.msg);
        const lg_json *root = lg_json_root(c->doc);
        c->n_prompt = read_ids(lg_json_get(root, "prompt_ids"), c->prompt, 1024);
        c->n_want = read_ids(lg_json_get(root, "expected_ids"), c->want, MAX_TOK);
        assert_true(lg_json_f64(lg_json_get(root, "min_margin"), &c->margin));
    }
    fclose(f);
    assert_int_equal(e->n_chat, N_CHAT);
}

static int setup(void **state) {
    eval *e = calloc(1, sizeof *e);
    char path[1024];
    lg_err err = {0};
    const char *root = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/data/eval.jsonl", root ? root : ".");
    read_chats(e, path);
    lg_options opt;
    lg_options_init(&opt);
    snprintf(path, sizeof path, "%s/models/tiny-qwen35moe", root ? root : ".");
    opt.model_path = path;
    opt.n_seq = N_BATCH;
    opt.n_ctx = 2048;
    opt.memory_bytes = UINT64_C(1) << 30;
    if (lg_open(&opt, &e->eng, &err) != LG_OK) fail_msg("%s", err.msg);
    *state = e;
    return 0;
}

static int teardown(void **state) {
    eval *e = *state;
    lg_close(&e->eng);
    for (uint32_t i = 0; i < e->n_chat; i++) {
        lg_json_close(&e->chat[i].doc);
        lg_buf_fini(&e->chat[i].text);
    }
    free(e);
    return lg_mem_alive() == 0 ? 0 : -1;
}

static void test_prompts_are_what_the_chat_format_renders(void **state) {
    eval *e = *state;
    for (uint32_t i = 0; i < e->n_chat; i++) {
        const chat *c = &e->chat[i];
        lg_buf json = {0};
        lg_err err = {0};
        uint32_t *ids;
        size_t n_id;
        lg_json_put(&json, lg_json_root(c->doc), LG_JSON_COMPACT);
        if (lg_text_chat(lg_get_text(e->eng), json.data, json.len_bytes, &ids, &n_id, &err))
            fail_msg("chat %u: %s", i, err.msg);
        assert_int_equal(n_id, c->n_prompt);
        assert_memory_equal(ids, c->prompt, n_id * sizeof *ids);
        lg_free(ids);
        lg_buf_fini(&json);
    }
}

static void submit(eval *e, chat *c) {
    lg_request req = {.ids = c->prompt, .n_id = c->n_prompt, .max_tokens = 200, .user = c};
    lg_err err = {0};
    uint64_t id;
    lg_params_init(e->eng, &req.params);
    c->n_got = 0;
    c->finish = LG_FINISH_NONE;
    lg_buf_clear(&c->text);
    if (lg_submit(e->eng, &req, &id, &err)) fail_msg("%s", err.msg);
}

static void run(eval *e) {
    lg_event ev;
    lg_status st;
    while ((st = lg_step(e->eng)) == LG_OK)
        while (lg_next_event(e->eng, &ev) == LG_OK) {
            chat *c = ev.user;
            lg_buf_put(&c->text, ev.text, ev.len_bytes);
            if (ev.kind == LG_EVENT_DONE) {
                c->finish = ev.finish;
            } else {
                assert_true(c->n_got < MAX_TOK);
                c->got[c->n_got++] = ev.token;
            }
        }
    assert_int_equal(st, LG_AGAIN);
}

static void test_greedy_ids_are_the_references(void **state) {
    eval *e = *state;
    for (uint32_t i = 0; i < e->n_chat; i++) submit(e, &e->chat[i]);
    run(e);
    uint32_t n_equal = 0, n_near = 0, n_tok = 0;
    for (uint32_t i = 0; i < e->n_chat; i++) {
        chat *c = &e->chat[i];
        n_tok += c->n_got;
        bool ended = c->n_want && (c->want[c->n_want - 1] == 4065);
        if (c->n_got == c->n_want && memcmp(c->got, c->want, c->n_got * sizeof *c->got) == 0) {
            assert_int_equal(c->finish, ended ? LG_FINISH_EOS : LG_FINISH_LENGTH);
            n_equal++;
        } else if (c->margin < TIE) {
            print_message("chat %u: other ids; the reference's margin is %g\n", i, c->margin);
            n_near++;
        } else {
            fail_msg("chat %u: other ids, margin %g: '%s'", i, c->margin, lg_buf_str(&c->text));
        }
    }
    print_message("%u chats, %u tokens, %u at a time: %u equal, %u excused by a margin below "
                  "%g\n",
                  e->n_chat, n_tok, N_BATCH, n_equal, n_near, TIE);
}

/* The text of an answer is its ids decoded without the end token. */
static void test_text_is_the_ids_decoded(void **state) {
    eval *e = *state;
    for (uint32_t i = 0; i < e->n_chat; i++) {
        chat *c = &e->chat[i];
        char *s;
        size_t len;
        lg_text *text = lg_get_text(e->eng);
        assert_int_equal(lg_text_decode(text, c->got, c->n_got, false, &s, &len, NULL), LG_OK);
        assert_int_equal(len, c->text.len_bytes);
        assert_memory_equal(s, lg_buf_str(&c->text), len);
        lg_free(s);
    }
}

static void test_alone_is_the_same_as_in_company(void **state) {
    eval *e = *state;
    static uint32_t got[MAX_TOK];
    for (uint32_t i = 0; i < N_CHAT; i += N_CHAT / N_BATCH) {
        chat *c = &e->chat[i];
        uint32_t n = c->n_got;
        memcpy(got, c->got, n * sizeof *got);
        submit(e, c);
        run(e);
        assert_int_equal(c->n_got, n);
        assert_memory_equal(c->got, got, n * sizeof *got);
    }
}

static void test_a_seeded_answer_is_the_same_in_company(void **state) {
    eval *e = *state;
    lg_err err;
    uint64_t id;
    static chat copy[N_BATCH];
    for (uint32_t company = 0; company < 2; company++) {
        for (uint32_t i = 0; i < N_BATCH; i++) {
            chat *c = company ? &copy[i] : &e->chat[i];
            lg_request req = {.ids = e->chat[i].prompt,
                              .n_id = e->chat[i].n_prompt,
                              .max_tokens = 40,
                              .user = c};
            lg_params_init(e->eng, &req.params);
            req.params.temperature = 3.0f;
            req.params.top_p = 0.98f;
            req.params.has_seed = true;
            req.params.seed = i;
            c->n_got = 0;
            assert_int_equal(lg_submit(e->eng, &req, &id, &err), LG_OK);
            if (!company) run(e);
        }
        run(e);
    }
    uint32_t n_other = 0;
    for (uint32_t i = 0; i < N_BATCH; i++) {
        chat *c = &e->chat[i];
        assert_int_equal(c->n_got, copy[i].n_got);
        assert_memory_equal(c->got, copy[i].got, c->n_got * sizeof *c->got);
        n_other += c->n_got != c->n_want || memcmp(c->got, c->want, c->n_got * sizeof *c->got);
        lg_buf_fini(&copy[i].text);
    }
    assert_true(n_other > N_BATCH / 2); /* it was not greedy after all */
}

static void test_steps_allocate_nothing(void **state) {
    eval *e = *state;
    lg_event ev;
    for (uint32_t i = 0; i < 2 * N_BATCH; i++) {
        chat *c = &e->chat[i];
        lg_request req = {.ids = c->prompt, .n_id = c->n_prompt, .max_tokens = 70};
        lg_err err = {0};
        uint64_t id;
        lg_params_init(e->eng, &req.params);
        req.params.temperature = i % 2 ? 1.0f : 0.0f;
        req.params.n_top = (int)(i % 8) - 1;
        req.params.ignore_eos = true;
        if (lg_submit(e->eng, &req, &id, &err)) fail_msg("%s", err.msg);
    }
    uint64_t before = lg_mem_count();
    while (lg_step(e->eng) == LG_OK)
        while (lg_next_event(e->eng, &ev) == LG_OK)
            ;
    assert_int_equal(lg_mem_count(), before);
}

static void test_open_without_memory_leaves_nothing(void **state) {
    (void)state;
    char path[1024];
    const char *root = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/models/tiny-qwen35moe", root ? root : ".");
    lg_options opt = {.model_path = path, .n_seq = 2, .n_ctx = 128, .n_thread = 1};
    opt.memory_bytes = UINT64_C(1) << 28;
    int64_t alive = lg_mem_alive();
    uint32_t n_try = 0;
    lg_engine *eng = NULL;
    lg_err err;
    for (uint64_t n = 1;; n++, n_try++) { /* every allocation in turn */
        lg_mem_fail_at(n);
        lg_status st = lg_open(&opt, &eng, &err);
        lg_mem_fail_at(0);
        if (st == LG_OK) break;
        assert_int_equal(st, LG_E_NOMEM);
        assert_null(eng);
        assert_int_equal(lg_mem_alive(), alive);
    }
    lg_close(&eng);
    assert_int_equal(lg_mem_alive(), alive);
    print_message("%u places where memory ran out\n", n_try);
}

static void test_the_engine_tells_what_it_took(void **state) {
    eval *e = *state;
    lg_info info;
    lg_stats st;
    lg_get_info(e->eng, &info);
    lg_get_stats(e->eng, &st);
    assert_string_equal(info.model_name, "tiny-qwen35moe");
    assert_int_equal(info.n_seq, N_BATCH);
    assert_int_equal(info.n_ctx, 2048);
    /* Pages for every sequence, and some for kept texts. */
    assert_int_equal(info.n_page, N_BATCH * 2048 / info.page_tok + 8 * info.n_snapshot);
    assert_true(info.n_snapshot >= 256);
    assert_true(info.n_param > 6000000 && info.weight_bytes >= 2 * info.n_param);
    assert_true(info.weight_bytes + info.state_bytes + info.scratch_bytes < 1u << 30);
    assert_int_equal(st.n_page_free, info.n_page);
    assert_int_equal(st.n_slot_free, info.n_seq);
    assert_int_equal(st.n_done, st.n_submitted);
    print_message("weights %.1f MiB, state %.1f MiB, scratch %.1f MiB; %u pages\n",
                  (double)info.weight_bytes / 1048576.0, (double)info.state_bytes / 1048576.0,
                  (double)info.scratch_bytes / 1048576.0, info.n_page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_are_what_the_chat_format_renders),
        cmocka_unit_test(test_greedy_ids_are_the_references),
        cmocka_unit_test(test_text_is_the_ids_decoded),
        cmocka_unit_test(test_alone_is_the_same_as_in_company),
        cmocka_unit_test(test_a_seeded_answer_is_the_same_in_company),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_open_without_memory_leaves_nothing),
        cmocka_unit_test(test_the_engine_tells_what_it_took),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
