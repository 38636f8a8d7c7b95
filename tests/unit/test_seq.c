/* test_seq.c - the text of an answer: stop strings over any cut, half characters, and answers that go on. */
#include "engine_rig.h"
#include "base/num.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char story[] =
    "Hello wonderful world, wonder of wonders! aaaaab aabaaab \xe6\xbc\xa2\xe5\xad\x97 "
    "caf\xc3\xa9 "
    "\xf0\x9f\x98\x80\xf0\x9f\x98\x81 end of text. Hello again; the end.";

typedef struct told {
    rig r;
    lg_ids ids; /* of the story */
    rig_script script;
    answer a, b;
} told;

static const uint32_t prompt[] = {7, 8, 9};

static int setup(void **state) {
    told *t = calloc(1, sizeof *t);
    rig_init(&t->r);
    lg_err err = {0};
    if (lg_tokenizer_encode(t->r.tok, story, strlen(story), NULL, 0, false, &t->ids, &err))
        fail_msg("%s", err.msg);
    assert_true(t->ids.n < strlen(story));
    t->script = (rig_script){.n_prompt = 3, .ids = t->ids.id, .n_id = (uint32_t)t->ids.n};
    t->r.m.next = rig_script_next;
    t->r.m.next_ctx = &t->script;
    lg_options opt = {.n_ctx = 512, .n_seq = 4};
    if (rig_open(&t->r, &opt, &err) != LG_OK) fail_msg("%s", err.msg);
    *state = t;
    return 0;
}

static int teardown(void **state) {
    told *t = *state;
    lg_ids_fini(&t->ids);
    rig_fini(&t->r);
    free(t);
    return 0;
}

/* Run one request to its end. */
static void run(told *t, const lg_request *req) {
    lg_err err = {0};
    answer *a = req->user;
    if (lg_submit(t->r.eng, req, &a->id, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_int_equal(rig_run(t->r.eng), LG_AGAIN);
    assert_true(a->done);
}

static lg_request tell(told *t, answer *a) {
    return rig_request(&t->r, prompt, 3, (uint32_t)t->ids.n, a);
}

static void test_text_is_whole_characters(void **state) {
    told *t = *state;
    lg_request req = tell(t, &t->a);
    run(t, &req);
    assert_string_equal(t->a.text, story);
    for (uint32_t i = 0; i < t->a.n_token; i++)
        assert_true(lg_utf8_valid(t->a.text, t->a.emitted[i]));
}

/* The first place where one of the strings ends; the longest that ends there wins. */
static size_t stop_at(const char *const *stop, uint32_t n_stop, uint32_t *index) {
    for (size_t end = 1; end <= strlen(story); end++) {
        size_t best = 0;
        for (uint32_t i = 0; i < n_stop; i++) {
            size_t len = strlen(stop[i]);
            if (len > end || len <= best || memcmp(story + end - len, stop[i], len)) continue;
            best = len;
            *index = i;
        }
        if (best) return end - best;
    }
    return SIZE_MAX;
}

static void check_stops(told *t, const char *const *stop, uint32_t n_stop) {
    uint32_t index = 0;
    size_t cut = stop_at(stop, n_stop, &index);
    lg_request req = tell(t, &t->a);
    req.stop = stop;
    req.n_stop = n_stop;
    run(t, &req);
    if (cut == SIZE_MAX) {
        assert_int_equal(t->a.end.finish, LG_FINISH_LENGTH);
        assert_string_equal(t->a.text, story);
        return;
    }
    assert_int_equal(t->a.end.finish, LG_FINISH_STOP);
    assert_int_equal(t->a.end.stop_index, index);
    if (t->a.len_bytes != cut || memcmp(t->a.text, story, cut))
        fail_msg("stop '%s': got '%s', expected %zu bytes", stop[index], t->a.text, cut);
}

static void test_every_substring_stops_before_itself(void **state) {
    told *t = *state;
    uint32_t n = 0;
    for (size_t at = 0; at < strlen(story); at++)
        for (size_t len = 1; len <= 16 && at + len <= strlen(story); len++) {
            char s[32] = {0};
            memcpy(s, story + at, len);
            if (!lg_utf8_valid(s, len)) continue;
            const char *stop[] = {s};
            check_stops(t, stop, 1);
            n++;
        }
    print_message("%u stop strings, each cut in the right place\n", n);
}

static void test_several_strings_and_near_misses(void **state) {
    told *t = *state;
    static const char *set[][4] = {{"wonders", "wonder of wonders!", "of", "zzz"},
                                   {"aaab", "aaaab", "aab", "ab "},
                                   {"wonderfox", "worldly", "zzz", "end!"},
                                   {"aaaaaab", "aabaaaab", "\xf0\x9f\x98\x82", "the end.!"},
                                   {"end.", "the end.", "d.", "."}};
    for (size_t i = 0; i < LG_COUNT(set); i++) check_stops(t, set[i], 4);
}

static void test_added_tokens_show_and_special_ones_do_not(void **state) {
    told *t = *state;
    uint32_t think = lg_tokenizer_added(t->r.tok, "<think>");
    uint32_t start = lg_tokenizer_added(t->r.tok, "<|im_start|>");
    assert_true(think != UINT32_MAX && start != UINT32_MAX);
    uint32_t ids[] = {start, think, t->ids.id[0], start};
    t->script.ids = ids;
    t->script.n_id = 4;
    lg_request req = rig_request(&t->r, prompt, 3, 4, &t->a);
    run(t, &req);
    const char *first;
    size_t len;
    bool added, special;
    assert_true(lg_tokenizer_piece(t->r.tok, t->ids.id[0], &first, &len, &added, &special));
    assert_int_equal(t->a.len_bytes, 7 + len);
    assert_memory_equal(t->a.text, "<think>", 7);
    assert_memory_equal(t->a.text + 7, first, len);
}

static void test_a_character_that_never_ends_is_replaced_at_the_end(void **state) {
    told *t = *state;
    /* The first byte token of an emoji, then nothing. */
    lg_ids ids = {0};
    assert_int_equal(
        lg_tokenizer_encode(t->r.tok, "\xf0\x9f\xa6\xab", 4, NULL, 0, false, &ids, NULL),
        LG_OK);
    assert_true(ids.n > 1);
    t->script.ids = ids.id;
    t->script.n_id = (uint32_t)ids.n;
    lg_request req = rig_request(&t->r, prompt, 3, 1, &t->a);
    run(t, &req);
    assert_int_equal(t->a.emitted[0], 0);
    assert_string_equal(t->a.text, "\xef\xbf\xbd");
    lg_ids_fini(&ids);
}

/* Cut an answer after each token, as a lost worker would, and let a new request go on with what was received. */
static void check_every_cut(told *t, lg_request req) {
    static uint32_t ids[512];
    run(t, &req);
    const answer *a = &t->a;
    assert_true(a->n_token > 10);
    memcpy(ids, req.ids, req.n_id * sizeof *ids);
    memcpy(ids + req.n_id, a->token, a->n_token * sizeof *ids);
    uint32_t n_prompt = req.n_id;
    for (uint32_t cut = 1; cut <= a->n_token; cut++) {
        lg_request again = req;
        rig_request(&t->r, ids, 1, 0, &t->b); /* empties b */
        again.ids = ids;
        again.n_id = n_prompt + cut;
        again.n_produced = cut;
        again.user = &t->b;
        run(t, &again);
        const answer *b = &t->b;
        assert_int_equal(b->n_token, a->n_token - cut);
        assert_memory_equal(b->token, a->token + cut, b->n_token * sizeof *ids);
        size_t had = a->emitted[cut - 1];
        assert_string_equal(b->text, a->text + had);
        for (uint32_t i = 0; i < b->n_token; i++) {
            assert_int_equal(b->emitted[i] + had, a->emitted[cut + i]);
            assert_true(b->logprob[i] == a->logprob[cut + i]);
        }
        assert_int_equal(b->end.finish, a->end.finish);
        assert_int_equal(b->end.stop_index, a->end.stop_index);
        assert_int_equal(b->end.n_prompt, a->end.n_prompt);
        assert_int_equal(b->end.n_produced, a->end.n_produced);
    }
    print_message("%u cuts, finish %d\n", a->n_token, (int)a->end.finish);
}

static void test_a_resubmitted_answer_goes_on_at_every_cut(void **state) {
    told *t = *state;
    static const char *stop[] = {"aaabz", "wonderful world?", "xt. Hello again; the end"};
    lg_request req = tell(t, &t->a); /* ends by length */
    check_every_cut(t, req);
    req = tell(t, &t->a); /* ends by a stop string of many tokens, near misses before it */
    req.stop = stop;
    req.n_stop = 3;
    check_every_cut(t, req);
    assert_int_equal(t->a.end.finish, LG_FINISH_STOP);
    static uint32_t with_eos[512];
    memcpy(with_eos, t->ids.id, 30 * sizeof *with_eos);
    with_eos[30] = 4065;
    t->script.ids = with_eos;
    t->script.n_id = 31;
    req = tell(t, &t->a);
    req.params.n_top = 3;
    check_every_cut(t, req);
    assert_int_equal(t->a.end.finish, LG_FINISH_EOS);
}

static void test_a_resubmitted_draw_goes_on_at_every_cut(void **state) {
    told *t = *state;
    static const lg_bias bias[] = {{17, 5.0f}, {4, 2.0f}};
    t->r.m.next = rig_hash_next;
    lg_request req = rig_request(&t->r, prompt, 3, 60, &t->a);
    req.params.temperature = 6.0f;
    req.params.top_p = 0.95f;
    req.params.seed = 99;
    req.params.choice = 2;
    req.params.presence_penalty = 1.5f;
    req.params.frequency_penalty = 0.5f;
    req.params.repetition_penalty = 1.2f;
    req.params.n_top = 0;
    req.bias = bias;
    req.n_bias = 2;
    check_every_cut(t, req);
    static uint32_t long_prompt[460];
    req = rig_request(&t->r, long_prompt, 460, 0, &t->a); /* until the context is full */
    req.params.temperature = 3.0f;
    check_every_cut(t, req);
    assert_int_equal(t->a.n_token, 512 - 460);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_text_is_whole_characters),
        T(test_every_substring_stops_before_itself),
        T(test_several_strings_and_near_misses),
        T(test_added_tokens_show_and_special_ones_do_not),
        T(test_a_character_that_never_ends_is_replaced_at_the_end),
        T(test_a_resubmitted_answer_goes_on_at_every_cut),
        T(test_a_resubmitted_draw_goes_on_at_every_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
