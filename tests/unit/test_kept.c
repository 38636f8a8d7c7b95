/* test_kept.c - how much of a prompt is computed again, what is shared with whom, and what is forgotten, on the fake backend. */
#include "base/num.h"
#include "engine_rig.h"
#include "few.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static bool few(void) {
    return test_few("every fifth round");
}

static void submit_fake(rig *r, const lg_request *req) {
    lg_err err = {0};
    uint64_t id;
    if (lg_submit(r->eng, req, &id, &err)) fail_msg("%s", err.msg);
    ((answer *)req->user)->id = id;
}

static uint32_t ask(rig *r, const uint32_t *ids, uint32_t n_id, uint64_t salt) {
    static answer a;
    lg_request req = rig_request(r, ids, n_id, 4, &a);
    req.cache_salt = salt;
    submit_fake(r, &req);
    rig_run(r->eng);
    assert_int_equal(a.end.finish, LG_FINISH_LENGTH);
    return a.end.n_cached;
}

static void fill(uint32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (uint32_t)(lg_num_rng(seed, 0, i, 0) % 3000);
}

static rig *open_rig(lg_options opt) {
    rig *r = malloc(sizeof *r);
    lg_err err = {0};
    rig_init(r);
    r->m.w.cfg.n_ctx_max = 16384;
    if (rig_open(r, &opt, &err)) fail_msg("%s", err.msg);
    return r;
}

static void close_rig(rig *r) {
    rig_fini(r);
    free(r);
}

static void test_how_much_is_computed_again(void **state) {
    (void)state;
    static const uint32_t shared[] = {100, 500, 2000, 12000};
    static uint32_t ids[4][12200];
    rig *r = open_rig((lg_options){.n_ctx = 16384, .n_seq = 4});
    uint32_t mark = lg_tokenizer_added(r->tok, "<|im_start|>");
    uint32_t spacing = r->eng->info.snapshot_tok;
    print_message("  a snapshot every %u tokens\n", spacing);
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t n = shared[k / 2] - k % 3;
        bool message = k % 2;
        for (uint32_t i = 0; i < 4; i++) {
            fill(ids[i], n, 100 + k);
            fill(ids[i] + n, 150, 1000 + 10 * k + i);
            ids[i][0] = mark;
            ids[i][n] = message ? mark : 3000 + i; /* where they part */
        }
        uint32_t again[4];
        for (uint32_t i = 0; i < 4; i++) again[i] = n - ask(r, ids[i], n + 150, 0);
        print_message("  %5u shared tokens, %s: computed again %u, then %u, then %u\n", n,
                      message ? "a whole message " : "inside a message", again[1], again[2],
                      again[3]);
        assert_in_range(again[0], n - 1, n); /* the mark may be known */
        assert_true(again[1] <= (message ? 64 : spacing));
        assert_true(again[2] <= 64 && again[3] <= 64);
    }
    close_rig(r);
}

/* Whatever the length, a prompt asked again is known but for its last tokens, and so is an answer. */
static void test_every_length_asked_again(void **state) {
    (void)state;
    static uint32_t ids[300];
    static answer a;
    rig *r = open_rig((lg_options){.n_ctx = 1024, .n_seq = 4});
    for (uint32_t n = 1; n < 200; n++) {
        fill(ids, n, n);
        assert_true(ask(r, ids, n, 0) <= 1);
        uint32_t known = ask(r, ids, n, 0);
        assert_true(known < n && (n <= 16 ? known == 0 : known + 16 >= n));
        lg_request req = rig_request(r, ids, n, 40, &a);
        submit_fake(r, &req);
        rig_run(r->eng);
        memcpy(ids + n, a.token, 40 * sizeof *ids);
        fill(ids + n + 40, 10, n + 1000);
        /* The last token of an answer has not been through the model. */
        assert_int_equal(ask(r, ids, n + 50, 0), n + 39);
    }
    close_rig(r);
}

static void test_salts_do_not_meet(void **state) {
    (void)state;
    static uint32_t ids[300];
    rig *r = open_rig((lg_options){.n_ctx = 1024, .n_seq = 4});
    fill(ids, 300, 1);
    assert_int_equal(ask(r, ids, 300, 1), 0);
    assert_int_equal(ask(r, ids, 300, 2), 0);
    assert_int_equal(ask(r, ids, 300, 0), 0);
    assert_int_equal(ask(r, ids, 300, 1), 299);
    assert_int_equal(ask(r, ids, 300, 2), 299);
    close_rig(r);
}

static void test_nothing_is_kept_when_told_so(void **state) {
    (void)state;
    static uint32_t ids[300];
    rig *r = open_rig((lg_options){.n_ctx = 1024, .n_seq = 4, .no_cache = true});
    fill(ids, 300, 1);
    assert_int_equal(ask(r, ids, 300, 0), 0);
    assert_int_equal(ask(r, ids, 300, 0), 0);
    assert_int_equal(r->eng->home->state.pages.n_free, r->eng->info.n_page);
    assert_int_equal(r->eng->info.n_snapshot, 0);
    close_rig(r);
}

static void test_bad_logits_forget_where_they_came_from(void **state) {
    (void)state;
    static uint32_t ids[300], other[300];
    static answer a;
    rig *r = open_rig((lg_options){.n_ctx = 1024, .n_seq = 4});
    fill(ids, 300, 1);
    fill(other, 300, 2);
    memcpy(other, ids, 50 * sizeof *ids);
    ask(r, ids, 100, 0);
    ask(r, other, 200, 0);
    assert_int_equal(ask(r, ids, 100, 0), 99);
    r->m.nan_after = 150;
    lg_request req = rig_request(r, ids, 150, 4, &a);
    submit_fake(r, &req);
    rig_run(r->eng);
    assert_int_equal(a.end.finish, LG_FINISH_ERROR);
    lg_stats st;
    lg_get_stats(r->eng, &st);
    assert_int_equal(st.n_nonfinite, 1);
    assert_true(st.n_discarded >= 2); /* what it came from, and its own */
    r->m.nan_after = 0;
    assert_true(ask(r, ids, 100, 0) <= 50);
    assert_int_equal(ask(r, other, 200, 0), 199); /* nobody else's */
    close_rig(r);
}

static void test_random_lives_leave_no_trace(void **state) {
    (void)state;
    static uint32_t ids[40][600];
    static answer a[40];
    rig *r = open_rig((lg_options){.n_ctx = 700, .n_seq = 5, .n_batch_tok = 64});
    uint32_t n_page = 2 * r->eng->home->state.max_page;
    close_rig(r);
    lg_options opt = {.n_ctx = 700, .n_seq = 5, .n_batch_tok = 64, .cache_bytes = 40000};
    opt.memory_bytes = UINT64_C(3) << 20;
    r = open_rig(opt);
    uint64_t before = 0;
    uint32_t mark = lg_tokenizer_added(r->tok, "<|im_start|>");
    uint32_t n_round = few() ? 12 : 60;
    for (uint32_t round = 0; round < n_round; round++) {
        for (uint32_t i = 0; i < 40; i++) {
            uint64_t x = lg_num_rng(round, 0, i, 7);
            uint32_t n = 1 + (uint32_t)(x >> 8) % 600;
            fill(ids[i], 600, x % 5);
            for (uint32_t k = 60; k < 600; k += 100) ids[i][k] = mark;
            fill(ids[i] + n / 2, n - n / 2, x % 9);
            lg_request req = rig_request(r, ids[i], n, 1 + (uint32_t)(x >> 40) % 50, &a[i]);
            req.cache_salt = x % 2;
            submit_fake(r, &req);
        }
        before = lg_mem_count();
        for (uint32_t step = 0; lg_step(r->eng) == LG_OK; step++) {
            rig_fetch(r->eng);
            if (step % 7 == 3) lg_cancel(r->eng, a[step % 40].id);
        }
        assert_int_equal(lg_mem_count(), before); /* steps allocate nothing */
        rig_fetch(r->eng);
        for (uint32_t i = 0; i < 40; i++) assert_true(a[i].done);
    }
    lg_stats st;
    lg_get_stats(r->eng, &st);
    print_message(
        "  %u pages (%u used alone), %llu of %llu prompt tokens reused, %llu evicted\n",
        r->eng->info.n_page, n_page, (unsigned long long)st.n_hit_tok,
        (unsigned long long)st.n_prompt_tok, (unsigned long long)st.n_evicted);
    assert_true(st.n_hit_tok > 0 && st.n_evicted > n_round);
    assert_int_equal(st.n_page_free, r->eng->info.n_page);
    assert_int_equal(st.n_slot_free, 5);
    lg_prefix_clear(&r->eng->home->prefix);
    assert_int_equal(r->eng->home->state.pages.n_free, r->eng->info.n_page);
    assert_int_equal(r->eng->home->prefix.n_snap_free, r->eng->info.n_snapshot);
    close_rig(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_how_much_is_computed_again),
        cmocka_unit_test(test_every_length_asked_again),
        cmocka_unit_test(test_salts_do_not_meet),
        cmocka_unit_test(test_nothing_is_kept_when_told_so),
        cmocka_unit_test(test_bad_logits_forget_where_they_came_from),
        cmocka_unit_test(test_random_lives_leave_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
