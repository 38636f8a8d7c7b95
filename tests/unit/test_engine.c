/* test_engine.c - scheduling, lives and ends of requests on the fake backend. */
#include "engine_rig.h"
#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void open_or_fail(rig *r, lg_options opt) {
    lg_err err = {0};
    if (rig_open(r, &opt, &err) != LG_OK) fail_msg("%s", err.msg);
}

static void submit(rig *r, const lg_request *req) {
    lg_err err = {0};
    uint64_t id;
    if (lg_submit(r->eng, req, &id, &err) != LG_OK) fail_msg("%s", err.msg);
    if (req->user) ((answer *)req->user)->id = id;
}

static lg_stats stats(const rig *r) {
    lg_stats st;
    lg_get_stats(r->eng, &st);
    return st;
}

/* Everything reserved has come back. */
static void assert_idle(const rig *r) {
    lg_stats st = stats(r);
    assert_int_equal(st.n_running, 0);
    assert_int_equal(st.n_waiting, 0);
    assert_int_equal(st.n_page_free, r->eng->info.n_page);
    assert_int_equal(st.n_slot_free, r->eng->info.n_seq);
}

static int setup(void **state) {
    rig *r = malloc(sizeof *r);
    rig_init(r);
    *state = r;
    return 0;
}

static int teardown(void **state) {
    rig_fini(*state);
    free(*state);
    return 0;
}

/* The greedy answer by definition. */
static void expect(const rig *r, const uint32_t *prompt, uint32_t n_prompt, const answer *a) {
    static uint32_t ids[4200];
    memcpy(ids, prompt, n_prompt * sizeof *ids);
    for (uint32_t i = 0; i < a->n_token; i++) {
        assert_int_equal(a->token[i], rig_hash_next(&r->m, ids, n_prompt + i));
        ids[n_prompt + i] = a->token[i];
    }
}

static void fill_prompt(uint32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (uint32_t)(lg_num_rng(seed, 0, i, 0) % 3000);
}

static void test_many_sequences_each_get_their_own_answer(void **state) {
    rig *r = *state;
    enum { N = 150, LONGEST = 400 };
    uint32_t(*prompt)[LONGEST] = malloc(sizeof *prompt * N), n_prompt[N], max[N];
    answer *a = malloc(N * sizeof *a);
    /* Pages for about three whole contexts: both pools run short at times. */
    open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 12, .n_batch_tok = 64});
    r->eng->home->state.pages.n_free = 25;
    for (uint32_t i = 0; i < N; i++) {
        n_prompt[i] = 1 + (uint32_t)(lg_num_rng(1, 0, i, 0) % LONGEST);
        max[i] = 1 + (uint32_t)(lg_num_rng(2, 0, i, 0) % 60);
        fill_prompt(prompt[i], n_prompt[i], i);
        lg_request req = rig_request(r, prompt[i], n_prompt[i], max[i], &a[i]);
        submit(r, &req);
        if (i % 3 == 0 && lg_step(r->eng) == LG_OK) rig_fetch(r->eng);
    }
    assert_int_equal(rig_run(r->eng), LG_AGAIN);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(a[i].done);
        assert_int_equal(a[i].end.finish, LG_FINISH_LENGTH);
        assert_int_equal(a[i].n_token, max[i]);
        assert_int_equal(a[i].end.n_produced, max[i]);
        assert_int_equal(a[i].end.n_prompt, n_prompt[i]);
        expect(r, prompt[i], n_prompt[i], &a[i]);
    }
    assert_int_equal(stats(r).n_page_free, 25);
    assert_int_equal(stats(r).n_done, N);
    free(prompt);
    free(a);
}

static void test_decodes_go_first_and_prompts_share(void **state) {
    rig *r = *state;
    static uint32_t ids[3][2000];
    static answer a[3];
    open_or_fail(r, (lg_options){.n_ctx = 4096, .n_seq = 4, .n_batch_tok = 64});
    for (uint32_t i = 0; i < 3; i++) fill_prompt(ids[i], 2000, i);
    lg_request one = rig_request(r, ids[0], 3, 500, &a[0]);
    lg_request big = rig_request(r, ids[1], 2000, 5, &a[1]);
    lg_request small = rig_request(r, ids[2], 60, 5, &a[2]);
    submit(r, &one);
    assert_int_equal(lg_step(r->eng), LG_OK);
    rig_fetch(r->eng);
    submit(r, &big);
    submit(r, &small);
    uint32_t step = 0, small_first = 0, big_first = 0;
    for (; !big_first; step++) {
        assert_int_equal(lg_step(r->eng), LG_OK);
        rig_fetch(r->eng);
        assert_int_equal(a[0].n_token, step + 2); /* a token in every step */
        assert_int_equal(r->m.seq[0].n_tok, 1);
        assert_true(r->m.n_tok == 64 || a[1].n_token);
        if (!small_first && a[2].n_token) small_first = step + 1;
        if (a[1].n_token) big_first = step + 1;
    }
    assert_int_equal(small_first, 2); /* 31 rows each in the first step, then what was left */
    assert_in_range(big_first, 2000 / 64, 2000 / 63 + 3);
    rig_run(r->eng);
    expect(r, ids[1], 2000, &a[1]);
    assert_idle(r);
}

static void test_many_prompts_go_by_age_in_useful_pieces(void **state) {
    rig *r = *state;
    static uint32_t ids[20][400];
    static answer a[20];
    open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 20, .n_batch_tok = 128});
    for (uint32_t i = 0; i < 20; i++) {
        fill_prompt(ids[i], 400, i);
        lg_request req = rig_request(r, ids[i], 300 + i, 2, &a[i]);
        submit(r, &req);
    }
    assert_int_equal(lg_step(r->eng), LG_OK);
    assert_int_equal(r->m.n_seq, 3); /* half for the oldest, the rest in pieces of 32 */
    assert_int_equal(r->m.seq[0].n_tok, 64);
    assert_int_equal(r->m.seq[1].n_tok, 32);
    assert_int_equal(r->m.seq[2].n_tok, 32);
    rig_run(r->eng);
    for (uint32_t i = 0; i < 20; i++) expect(r, ids[i], 300 + i, &a[i]);
    assert_idle(r);
}

static void test_a_full_queue_says_again(void **state) {
    rig *r = *state;
    uint32_t ids[] = {1, 2};
    open_or_fail(r, (lg_options){.n_ctx = 128, .n_seq = 2});
    lg_request req = rig_request(r, ids, 2, 1, NULL);
    uint64_t id;
    for (uint32_t i = 0; i < LG_MAX_WAIT; i++) submit(r, &req);
    assert_int_equal(lg_submit(r->eng, &req, &id, NULL), LG_AGAIN);
    assert_int_equal(lg_step(r->eng), LG_OK);
    assert_int_equal(lg_submit(r->eng, &req, &id, NULL), LG_OK);
    assert_int_equal(lg_submit(r->eng, &req, &id, NULL), LG_OK);
    assert_int_equal(lg_submit(r->eng, &req, &id, NULL), LG_AGAIN);
    rig_run(r->eng);
    assert_int_equal(stats(r).n_done, LG_MAX_WAIT + 2);
    assert_idle(r);
}

/* Requests take no more memory than the budget has for them, and give back what they took. */
static void test_requests_stay_within_their_memory(void **state) {
    rig *r = *state;
    static uint32_t ids[900];
    static char word[LG_MAX_STOP][LG_MAX_STOP_BYTES + 1];
    static lg_bias bias[LG_MAX_BIAS];
    const char *stop[LG_MAX_STOP];
    fill_prompt(ids, 900, 1);
    open_or_fail(r, (lg_options){.n_ctx = 1024, .n_seq = 4, .memory_bytes = 24 << 20});
    uint64_t all = r->eng->parts.budget.request_bytes, id;
    assert_int_equal(r->eng->limit.n_byte_free, all);
    /* Alone the largest there may be is taken. */
    for (uint32_t i = 0; i < LG_MAX_STOP; i++) {
        memset(word[i], 'a' + (int)i, LG_MAX_STOP_BYTES);
        stop[i] = word[i];
    }
    for (uint32_t i = 0; i < LG_MAX_BIAS; i++) bias[i] = (lg_bias){.id = i};
    lg_request big = rig_request(r, ids, 900, 2, NULL), plain = big;
    big.stop = stop;
    big.n_stop = LG_MAX_STOP;
    big.bias = bias;
    big.n_bias = LG_MAX_BIAS;
    submit(r, &big);
    assert_true(all - r->eng->limit.n_byte_free > LG_MAX_STOP * 5 * LG_MAX_STOP_BYTES);
    uint64_t n = 1;
    int64_t n_alloc = lg_mem_alive();
    while (lg_submit(r->eng, &plain, &id, NULL) == LG_OK) n++;
    assert_true(n > 8 && n < all / (900 * sizeof *ids));
    assert_int_equal(lg_submit(r->eng, &plain, &id, NULL), LG_AGAIN);
    assert_int_equal(lg_mem_alive(), n_alloc + 2 * (int64_t)(n - 1));
    assert_true(r->eng->limit.n_byte_free < 8192);
    rig_run(r->eng);
    assert_int_equal(lg_step(r->eng), LG_AGAIN);
    assert_int_equal(stats(r).n_done, n);
    assert_int_equal(r->eng->limit.n_byte_free, all);
    assert_idle(r);
}

static void test_cancel_frees_everything_in_every_phase(void **state) {
    rig *r = *state;
    static uint32_t ids[300];
    static answer a[4];
    fill_prompt(ids, 300, 4);
    open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 2, .n_batch_tok = 64});
    /* steps taken before the cancel: waiting, prefill, prefill, first token, decoding */
    for (uint32_t n_step = 0; n_step < 8; n_step++) {
        for (uint32_t fetch = 0; fetch < 2; fetch++) {
            for (uint32_t i = 0; i < 4; i++) {
                lg_request req = rig_request(r, ids, 280 - i, 100, &a[i]);
                submit(r, &req);
            }
            for (uint32_t i = 0; i < n_step; i++) {
                assert_int_equal(lg_step(r->eng), LG_OK);
                if (fetch || i + 1 < n_step) rig_fetch(r->eng);
            }
            for (uint32_t i = 0; i < 4; i++) lg_cancel(r->eng, a[i].id);
            assert_idle(r);
            lg_cancel(r->eng, a[0].id); /* nothing any more */
            lg_cancel(r->eng, 123456789);
            if (n_step % 2) assert_int_equal(lg_step(r->eng), LG_OK); /* the ends survive it */
            assert_int_equal(rig_fetch(r->eng) >= 4, 1);
            for (uint32_t i = 0; i < 4; i++) {
                assert_true(a[i].done);
                assert_int_equal(a[i].end.finish, LG_FINISH_CANCELLED);
                assert_int_equal(a[i].end.status, LG_E_CANCELLED);
            }
            assert_int_equal(lg_step(r->eng), LG_AGAIN);
            assert_null(r->eng->ended);
        }
    }
    assert_int_equal(stats(r).n_cancelled, 8 * 2 * 4);
}

static void test_close_in_the_middle_frees_everything(void **state) {
    rig *r = *state;
    static uint32_t ids[300];
    fill_prompt(ids, 300, 4);
    int64_t alive = lg_mem_alive();
    for (uint32_t n_step = 0; n_step < 9; n_step++) {
        open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 2, .n_batch_tok = 64});
        for (uint32_t i = 0; i < 4; i++) {
            lg_request req = rig_request(r, ids, 100 + i, 3, NULL);
            submit(r, &req);
        }
        for (uint32_t i = 0; i < n_step; i++) lg_step(r->eng);
        lg_close(&r->eng);
        assert_null(r->eng);
        assert_int_equal(lg_mem_alive(), alive);
    }
    lg_close(&r->eng);
}

static void test_answers_end_at_max_tokens_and_at_the_context(void **state) {
    rig *r = *state;
    static uint32_t ids[128];
    static answer a;
    fill_prompt(ids, 128, 5);
    open_or_fail(r, (lg_options){.n_ctx = 128, .n_seq = 2});
    static const struct {
        uint32_t n_id, max, want;
    } t[] = {{1, 1, 1},     {10, 7, 7},  {10, 0, 118}, {100, 28, 28},
             {100, 29, 28}, {127, 0, 1}, {127, 1, 1},  {127, 4000000000u, 1}};
    for (uint32_t i = 0; i < LG_COUNT(t); i++) {
        lg_request req = rig_request(r, ids, t[i].n_id, t[i].max, &a);
        submit(r, &req);
        rig_run(r->eng);
        assert_int_equal(a.n_token, t[i].want);
        assert_int_equal(a.end.finish, LG_FINISH_LENGTH);
        assert_int_equal(a.end.status, LG_OK);
        expect(r, ids, t[i].n_id, &a);
    }
    assert_idle(r);
}

static void test_end_tokens_end_unless_ignored(void **state) {
    rig *r = *state;
    static answer a;
    uint32_t prompt[] = {7, 8, 9}, script[] = {70, 71, 4063, 72, 4065, 73};
    rig_script s = {.n_prompt = 3, .ids = script, .n_id = 6};
    r->m.next = rig_script_next;
    r->m.next_ctx = &s;
    open_or_fail(r, (lg_options){.n_ctx = 128});
    lg_request req = rig_request(r, prompt, 3, 6, &a);
    submit(r, &req);
    rig_run(r->eng);
    assert_int_equal(a.n_token, 3);
    assert_int_equal(a.token[2], 4063);
    assert_int_equal(a.end.finish, LG_FINISH_EOS);
    assert_null(strchr(a.text, '<')); /* no text of special tokens */
    req = rig_request(r, prompt, 3, 6, &a);
    req.params.ignore_eos = true;
    submit(r, &req);
    rig_run(r->eng);
    assert_int_equal(a.n_token, 6);
    assert_int_equal(a.end.finish, LG_FINISH_LENGTH);
    assert_null(strchr(a.text, '<'));
}

static void test_logprobs_are_those_of_the_logits(void **state) {
    rig *r = *state;
    static answer a;
    static float logits[RIG_VOCAB];
    uint32_t prompt[8] = {7, 8, 9}, n_token = lg_tokenizer_n_id(r->tok);
    open_or_fail(r, (lg_options){.n_ctx = 128});
    assert_true(n_token < RIG_VOCAB);
    lg_request req = rig_request(r, prompt, 3, 4, &a);
    req.params.n_top = 5;
    submit(r, &req);
    for (uint32_t i = 0; i < 4; i++) {
        lg_event e;
        assert_int_equal(lg_step(r->eng), LG_OK);
        assert_int_equal(lg_next_event(r->eng, &e), LG_OK);
        fake_logits(&r->m, prompt, 3 + i, n_token, logits);
        double sum = 0.0;
        for (uint32_t j = 0; j < n_token; j++) sum += exp((double)logits[j]);
        assert_int_equal(e.n_top, 5);
        assert_int_equal(e.top[0].id, e.token);
        assert_true(e.top[0].logprob == e.logprob);
        for (uint32_t j = 0; j < 5; j++) {
            double want = (double)logits[e.top[j].id] - log(sum);
            assert_float_equal(e.top[j].logprob, (float)want, 1e-5f);
        }
        prompt[3 + i] = e.token;
    }
    rig_fetch(r->eng);
}

static void test_fresh_seeds_differ_and_given_ones_repeat(void **state) {
    rig *r = *state;
    static answer a[4];
    uint32_t prompt[] = {1, 2, 3};
    open_or_fail(r, (lg_options){.n_ctx = 128});
    for (uint32_t i = 0; i < 4; i++) {
        lg_request req = rig_request(r, prompt, 3, 30, &a[i]);
        req.params.temperature = 20.0f;
        req.params.has_seed = i >= 2;
        submit(r, &req);
    }
    rig_run(r->eng);
    assert_memory_not_equal(a[0].token, a[1].token, 30 * sizeof(uint32_t));
    assert_memory_equal(a[2].token, a[3].token, 30 * sizeof(uint32_t));
}

static void test_a_lost_backend_ends_every_request(void **state) {
    rig *r = *state;
    static answer a[5];
    uint32_t prompt[] = {1, 2, 3};
    open_or_fail(r, (lg_options){.n_ctx = 128, .n_seq = 2});
    r->m.fail_at_step = 3;
    for (uint32_t i = 0; i < 5; i++) {
        lg_request req = rig_request(r, prompt, 3, 30, &a[i]);
        submit(r, &req);
    }
    assert_int_equal(rig_run(r->eng), LG_E_BACKEND);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(a[i].done);
        assert_int_equal(a[i].end.finish, LG_FINISH_ERROR);
        assert_int_equal(a[i].end.status, LG_E_BACKEND);
        assert_int_equal(a[i].n_token, i < 2 ? 2 : 0);
    }
    uint64_t id;
    lg_request req = rig_request(r, prompt, 3, 30, NULL);
    assert_int_equal(lg_submit(r->eng, &req, &id, NULL), LG_E_BACKEND);
    assert_int_equal(lg_step(r->eng), LG_E_BACKEND);
    assert_idle(r);
}

static void test_bad_logits_end_one_request_only(void **state) {
    rig *r = *state;
    static answer a[2];
    uint32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    open_or_fail(r, (lg_options){.n_ctx = 128});
    r->m.nan_after = 7;
    lg_request bad = rig_request(r, prompt, 3, 30, &a[0]);
    lg_request good = rig_request(r, prompt, 10, 30, &a[1]);
    submit(r, &bad);
    submit(r, &good);
    rig_run(r->eng);
    assert_int_equal(a[0].end.finish, LG_FINISH_ERROR);
    assert_int_equal(a[0].end.status, LG_E_BACKEND);
    assert_int_equal(a[0].n_token, 4);
    assert_int_equal(a[1].end.finish, LG_FINISH_LENGTH);
    assert_int_equal(a[1].n_token, 30);
    assert_int_equal(stats(r).n_nonfinite, 1);
    assert_int_equal(stats(r).n_failed, 1);
    assert_idle(r);
}

static void refuse(rig *r, const lg_request *req, const char *field) {
    uint64_t id;
    lg_err err = {0};
    assert_int_equal(lg_submit(r->eng, req, &id, &err), LG_E_ARG);
    if (strncmp(err.msg, field, strlen(field)) != 0)
        fail_msg("expected a message about %s: %s", field, err.msg);
}

#define REFUSE(field, set)                                                                     \
    do {                                                                                       \
        lg_request req = rig_request(r, ids, 3, 10, NULL);                                     \
        set;                                                                                   \
        refuse(r, &req, field);                                                                \
    } while (0)

static void test_values_out_of_range_are_refused_by_name(void **state) {
    rig *r = *state;
    static uint32_t ids[200];
    static const char *stop[LG_MAX_STOP + 1];
    static char longest[LG_MAX_STOP_BYTES + 2];
    static lg_bias bias[LG_MAX_BIAS + 1];
    uint32_t n_token = lg_tokenizer_n_id(r->tok);
    open_or_fail(r, (lg_options){.n_ctx = 128});
    memset(longest, 'a', LG_MAX_STOP_BYTES + 1);
    for (uint32_t i = 0; i <= LG_MAX_STOP; i++) stop[i] = "x";
    REFUSE("n_id", req.n_id = 0);
    REFUSE("n_id", req.ids = NULL);
    REFUSE("n_id", req.n_id = 128);
    REFUSE("n_produced", req.n_produced = 3);
    uint32_t outside[] = {1, n_token, 2};
    REFUSE("ids[1]", req.ids = outside);
    static const float bad[] = {NAN, INFINITY, -INFINITY, -0.5f - 2.0f, 100.5f};
    for (uint32_t i = 0; i < LG_COUNT(bad); i++) {
        REFUSE("temperature", req.params.temperature = bad[i]);
        REFUSE("top_p", req.params.top_p = bad[i]);
        REFUSE("min_p", req.params.min_p = bad[i]);
        REFUSE("presence_penalty", req.params.presence_penalty = bad[i]);
        REFUSE("frequency_penalty", req.params.frequency_penalty = bad[i]);
        REFUSE("repetition_penalty", req.params.repetition_penalty = bad[i]);
    }
    REFUSE("top_p", req.params.top_p = 0.0f);
    REFUSE("repetition_penalty", req.params.repetition_penalty = 0.0f);
    REFUSE("n_top", req.params.n_top = -2);
    REFUSE("n_top", req.params.n_top = LG_MAX_TOP + 1);
    REFUSE("n_stop", (req.stop = stop, req.n_stop = LG_MAX_STOP + 1));
    REFUSE("n_stop", req.n_stop = 1);
    static const char *ill[] = {"", longest, "\xff", NULL};
    for (uint32_t i = 0; i < LG_COUNT(ill); i++)
        REFUSE("stop[0]", (req.stop = &ill[i], req.n_stop = 1));
    REFUSE("n_bias", (req.bias = bias, req.n_bias = LG_MAX_BIAS + 1));
    REFUSE("n_bias", req.n_bias = 1);
    bias[0].id = n_token;
    REFUSE("bias[0].id", (req.bias = bias, req.n_bias = 1));
    bias[0] = (lg_bias){.id = 1, .bias = 100.5f};
    REFUSE("bias", (req.bias = bias, req.n_bias = 1));
    assert_int_equal(stats(r).n_submitted, 0);
    assert_int_equal(lg_step(r->eng), LG_AGAIN);
}

static void test_no_memory_at_open_or_submit_leaves_nothing(void **state) {
    rig *r = *state;
    int64_t alive = lg_mem_alive();
    lg_options opt = {.n_ctx = 256, .n_seq = 4};
    lg_err err;
    lg_status st = LG_E_NOMEM;
    uint32_t n_open = 0, n_submit = 0;
    for (; st != LG_OK; n_open++) {
        lg_mem_fail_at(n_open + 1);
        st = rig_open(r, &opt, &err);
        lg_mem_fail_at(0);
        if (st == LG_OK) break;
        assert_int_equal(st, LG_E_NOMEM);
        assert_int_equal(lg_mem_alive(), alive);
    }
    alive = lg_mem_alive();
    uint32_t ids[] = {1, 2, 3};
    const char *stop[] = {"a", "bc"};
    lg_bias bias[] = {{9, 1.0f}, {2, 1.0f}};
    lg_request req = rig_request(r, ids, 3, 2, NULL);
    req.stop = stop;
    req.n_stop = 2;
    req.bias = bias;
    req.n_bias = 2;
    uint64_t id;
    for (st = LG_E_NOMEM; st != LG_OK; n_submit++) {
        lg_mem_fail_at(n_submit + 1);
        st = lg_submit(r->eng, &req, &id, &err);
        lg_mem_fail_at(0);
        if (st == LG_OK) break;
        assert_int_equal(st, LG_E_NOMEM);
        assert_int_equal(lg_mem_alive(), alive);
    }
    rig_run(r->eng);
    assert_int_equal(lg_mem_alive(), alive);
    assert_true(n_open >= 8 && n_submit >= 2);
    print_message("every allocation failed in turn: %u at open, %u at submit\n", n_open,
                  n_submit);
}

static void test_steps_allocate_nothing(void **state) {
    rig *r = *state;
    static uint32_t ids[300];
    static answer a[20];
    const char *stop[] = {"never met, but long enough to hold text back", "e"};
    fill_prompt(ids, 300, 4);
    open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 6, .n_batch_tok = 64});
    for (uint32_t i = 0; i < 20; i++) {
        lg_request req = rig_request(r, ids, 20 + 14 * i, 50 + i, &a[i]);
        req.stop = stop;
        req.n_stop = i % 3;
        req.params.temperature = i % 2 ? 5.0f : 0.0f;
        req.params.top_k = i;
        req.params.top_p = 0.9f;
        req.params.n_top = (int)i;
        req.params.presence_penalty = 0.5f;
        submit(r, &req);
    }
    uint64_t before = lg_mem_count();
    uint32_t n = 0;
    for (; lg_step(r->eng) == LG_OK; n++) {
        rig_fetch(r->eng);
        if (n == 20) lg_cancel(r->eng, a[3].id);
    }
    assert_int_equal(lg_mem_count(), before);
    print_message("%u steps, no allocation\n", n);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_many_sequences_each_get_their_own_answer),
        T(test_decodes_go_first_and_prompts_share),
        T(test_many_prompts_go_by_age_in_useful_pieces),
        T(test_a_full_queue_says_again),
        T(test_requests_stay_within_their_memory),
        T(test_cancel_frees_everything_in_every_phase),
        T(test_close_in_the_middle_frees_everything),
        T(test_answers_end_at_max_tokens_and_at_the_context),
        T(test_end_tokens_end_unless_ignored),
        T(test_logprobs_are_those_of_the_logits),
        T(test_fresh_seeds_differ_and_given_ones_repeat),
        T(test_a_lost_backend_ends_every_request),
        T(test_bad_logits_end_one_request_only),
        T(test_values_out_of_range_are_refused_by_name),
        T(test_no_memory_at_open_or_submit_leaves_nothing),
        T(test_steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
