/* test_sched.c - who is served when, on the fake backend and its clock: stalls, fairness, priorities, sequences put back
 * for want of memory, prompts that wait for one that begins alike.  Every answer is checked against its definition. */
#include "sched_rig.h"
#include "base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- stalls ---- */

/* Four answers in the making while asks[4] is read.  Returns the longest step of those with its rows, and their sum of rows and time. */
static uint64_t read_beside_answers(rig *r, uint32_t n_id, double *rows, double *us) {
    uint64_t longest = 0;
    uint32_t n_done = 0;
    *rows = *us = 0;
    ask *q = put(r, 4, n_id, 2, 0, 0);
    while (q->a.n_token == 0) {
        uint64_t start = fake_clock_us(), n_tok = stats(r).n_prefill_tok;
        step(r);
        uint64_t took = fake_clock_us() - start;
        n_tok = stats(r).n_prefill_tok - n_tok;
        assert_true(n_tok > 0);
        n_done += (uint32_t)n_tok;
        if (took > longest) longest = took;
        if (n_done == n_id) break; /* the last piece is what was left */
        *rows += (double)n_tok;
        *us += (double)took;
    }
    while (!q->a.done) step(r);
    return longest;
}

static void test_no_step_is_longer_than_allowed(void **state) {
    rig *r = *state;
    double rows, us;
    r->m.pace = (fake_pace){.step = 2000, .decode = 100, .prefill = 40, .depth = 0.01};
    open_or_fail(
        r, (lg_options){.n_ctx = 4096, .n_seq = 8, .no_cache = true, .max_stall_us = 8000});
    for (uint32_t i = 0; i < 4; i++) put(r, i, 20, 3000, 0, 0);
    while (!asks[3].a.n_token) step(r);
    for (uint32_t i = 0; i < 30; i++) step(r);
    /* Nothing is known of prompts yet: no step goes far beyond what was tried. */
    uint64_t first = read_beside_answers(r, 3000, &rows, &us);
    assert_true(first <= 8800);
    uint64_t again = read_beside_answers(r, 3000, &rows, &us);
    print_message("  longest step %u us, then %u us, of 8000; %.0f rows of %.0f possible\n",
                  (unsigned)first, (unsigned)again, rows, us / 8000 * (8000 - 2400) / 55);
    assert_true(again <= 8160);
    assert_true(rows > 0.85 * us / 8000 * (8000 - 2400) / 55);
    lg_stats st = stats(r);
    assert_true(st.n_cut_step > 20);
    assert_true((double)st.mixed_error_us < 0.1 * (double)st.mixed_us);
    /* The machine becomes slower by half: a few steps are late, then no more. */
    r->m.pace = (fake_pace){.step = 3000, .decode = 150, .prefill = 60, .depth = 0.015};
    read_beside_answers(r, 3000, &rows, &us);
    read_beside_answers(r, 3000, &rows, &us);
    assert_true(read_beside_answers(r, 3000, &rows, &us) <= 8000 * 1.05);
    expect(r, &asks[0]);
    expect(r, &asks[4]);
}

static void test_a_limit_too_small_still_reads(void **state) {
    rig *r = *state;
    double rows, us;
    r->m.pace = (fake_pace){.step = 2000, .decode = 100, .prefill = 40};
    open_or_fail(r, (lg_options){.n_ctx = 4096, .n_seq = 8, .max_stall_us = 1});
    for (uint32_t i = 0; i < 4; i++) put(r, i, 20, 1000, 0, 0);
    for (uint32_t i = 0; i < 10; i++) step(r);
    read_beside_answers(r, 800, &rows, &us);
    assert_int_equal(rows, 799);
}

/* Where answers alone take longer than a second, prompts still get most of the time. */
static void test_the_default_does_not_starve_prompts(void **state) {
    rig *r = *state;
    double rows, us;
    static const double slow[] = {1, 10};
    for (uint32_t k = 0; k < 2; k++) {
        r->m.pace =
            (fake_pace){.step = 150e3 * slow[k], .decode = 1e3, .prefill = 5e3 * slow[k]};
        open_or_fail(
            r, (lg_options){
                   .n_ctx = 4096, .n_seq = 8, .no_cache = true, .max_stall_us = LG_STALL_AUTO});
        for (uint32_t i = 0; i < 4; i++) put(r, i, 20, 3000, 0, 0);
        for (uint32_t i = 0; i < 30; i++) step(r);
        read_beside_answers(r, 3000, &rows, &us);
        uint64_t longest = read_beside_answers(r, 3000, &rows, &us);
        double limit = k == 0 ? 1e6 : 4 * (1500e3 + 4e3);
        assert_true(longest <= limit * 1.02);
        assert_true(rows * r->m.pace.prefill > 0.6 * us);
        lg_close(&r->eng);
    }
}

static void test_alone_a_prompt_is_not_cut(void **state) {
    rig *r = *state;
    r->m.pace = (fake_pace){.step = 2000, .decode = 100, .prefill = 40};
    open_or_fail(r, (lg_options){.n_ctx = 4096, .n_seq = 8, .max_stall_us = 3000});
    ask *q = put(r, 0, 3000, 2, 0, 0);
    uint32_t n = 0;
    for (; !q->a.n_token; n++) step(r);
    assert_int_equal(n, 6);
    assert_int_equal(stats(r).n_cut_step, 0);
}

/* ---- fairness and priorities ---- */

static void test_a_hundred_requests_do_not_delay_another_client(void **state) {
    rig *r = *state;
    open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 2, .n_batch_tok = 64});
    for (uint32_t i = 0; i < 100; i++) put(r, i, 60 + i % 7, 10, 1, 0);
    for (uint32_t i = 0; i < 30; i++) step(r);
    uint32_t before = (uint32_t)stats(r).n_done;
    for (uint32_t i = 0; i < 3; i++) put(r, 100 + i, 60, 10, 2, 0);
    while (!asks[100].a.done) step(r);
    assert_in_range(stats(r).n_done - before, 1, 5); /* those that ran already, and it */
    while (!asks[102].a.done) step(r);
    assert_in_range(stats(r).n_done - before, 3, 12); /* in turns from then on */
    rig_run(r->eng);
    for (uint32_t i = 0; i < 103; i++) expect(r, &asks[i]);
    assert_idle(r);
}

/* Three clients keep asking, one of them ten times as often: each gets a third of the work. */
static void test_work_is_shared_alike(void **state) {
    rig *r = *state;
    uint32_t n = 0, n_done[3] = {0}, n_wait[3] = {0};
    open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 3, .n_batch_tok = 64});
    static uint32_t whose[160];
    for (uint32_t i = 0; i < 160; i++) asks[i].a.done = true, whose[i] = 9;
    while (n < 600) {
        for (uint32_t i = 0; i < 160; i++) {
            if (!asks[i].a.done) continue;
            if (whose[i] < 3) {
                n_wait[whose[i]]--;
                if (n > 60) n_done[whose[i]]++;
                expect(r, &asks[i]);
                n++;
            }
            uint32_t k = n_wait[0] < 4 ? 0 : n_wait[1] < 4 ? 1 : 2;
            whose[i] = 9;
            if (n_wait[k] >= (k == 2 ? 40 : 4)) continue;
            whose[i] = k;
            n_wait[k]++;
            put(r, i, 40, 20, k + 1, 0);
        }
        step(r);
    }
    print_message("  ended for each client: %u %u %u\n", n_done[0], n_done[1], n_done[2]);
    for (uint32_t k = 0; k < 3; k++) assert_in_range(n_done[k], 160, 200);
    for (uint32_t i = 0; i < 160; i++) lg_cancel(r->eng, asks[i].a.id);
    rig_fetch(r->eng);
    assert_idle(r);
}

/* One that rested does not get back what it did not use, and the table does not grow with every name. */
static void test_rest_earns_nothing_and_names_are_forgotten(void **state) {
    rig *r = *state;
    open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 1, .n_batch_tok = 64});
    put(r, 0, 20, 5, 7, 0);
    rig_run(r->eng);
    for (uint32_t i = 0; i < 2000; i++) {
        put(r, 1, 20, 2, 1000 + i, 0);
        rig_run(r->eng);
    }
    assert_in_range(r->eng->queue.n_client, 2, 300);
    for (uint32_t i = 0; i < 20; i++) put(r, 10 + i, 20, 5, 8, 0);
    for (uint32_t i = 0; i < 20; i++) put(r, 40 + i, 20, 5, 7, 0);
    for (uint32_t n = 0; n < 20; n = (uint32_t)stats(r).n_done - 2001) step(r);
    uint32_t n7 = 0;
    for (uint32_t i = 0; i < 20; i++) n7 += asks[40 + i].a.done;
    assert_in_range(n7, 9, 11);
    rig_run(r->eng);
    assert_idle(r);
}

static void test_earlier_priorities_take_slots_and_those_put_back_go_on(void **state) {
    rig *r = *state;
    r->m.pace =
        (fake_pace){.step = 1000, .decode = 10, .prefill = 500}; /* recomputing is dear */
    open_or_fail(r, (lg_options){.n_ctx = 1024, .n_seq = 3, .n_batch_tok = 64});
    for (uint32_t i = 0; i < 6; i++) put(r, i, 50 + 30 * i, 200, 1, 5);
    for (uint32_t i = 0; i < 40; i++) step(r);
    uint32_t had = asks[2].a.n_token;
    assert_true(had > 0);
    ask *soon = put(r, 10, 90, 30, 2, -1), *mid = put(r, 11, 90, 30, 2, 0);
    step(r);
    assert_int_equal(stats(r).n_preempt_kept, 2); /* the two youngest; copying is cheaper */
    assert_int_equal(asks[2].a.n_token, had);
    assert_true(asks[0].a.n_token > had);
    while (!soon->a.done || !mid->a.done) step(r);
    put(r, 12, 90, 5, 2, 5); /* new, of the same priority: after those that were put back */
    rig_run(r->eng);
    lg_stats st = stats(r);
    assert_int_equal(st.n_done, 9);
    assert_true(st.n_again_tok <= 2);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(asks[i].a.n_token, 200);
        expect(r, &asks[i]);
    }
    expect(r, soon);
    expect(r, mid);
    assert_idle(r);
}

/* A prompt of an earlier priority gets the rows first. */
static void test_prompts_share_rows_by_priority(void **state) {
    rig *r = *state;
    open_or_fail(r, (lg_options){.n_ctx = 4096, .n_seq = 4, .n_batch_tok = 64});
    put(r, 0, 1000, 2, 1, 3);
    put(r, 1, 1000, 2, 1, 3);
    step(r);
    ask *q = put(r, 2, 640, 2, 1, 0);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(q->a.n_token, 0);
        step(r);
        assert_int_equal(r->m.seq[0].n_tok, 64);
    }
    assert_int_equal(q->a.n_token, 1);
    rig_run(r->eng);
    for (uint32_t i = 0; i < 3; i++) expect(r, &asks[i]);
}

/* ---- memory ---- */

static void test_those_put_back_for_memory_go_on(void **state) {
    rig *r = *state;
    for (uint32_t cache = 0; cache < 2; cache++) {
        r->n_page = 40; /* of 8 * 16 */
        open_or_fail(
            r, (lg_options){.n_ctx = 1024, .n_seq = 8, .n_batch_tok = 64, .no_cache = !cache});
        for (uint32_t i = 0; i < 24; i++)
            put(r, i, 20 + 17 * i % 190, 300 + 31 * i % 400, i % 3, 0);
        assert_int_equal(rig_run(r->eng), LG_AGAIN);
        lg_stats st = stats(r);
        print_message("  %s: %u steps, put back %u times, %u tokens computed again of %u\n",
                      cache ? "with snapshots" : "without", (unsigned)st.n_step,
                      (unsigned)st.n_preempt_dropped, (unsigned)st.n_again_tok,
                      (unsigned)(st.n_prefill_tok + st.n_decode_tok));
        assert_true(st.n_preempt_dropped > 2);
        assert_int_equal(st.n_done, 24);
        for (uint32_t i = 0; i < 24; i++) {
            assert_int_equal(asks[i].a.end.finish, LG_FINISH_LENGTH);
            assert_int_equal(asks[i].a.n_token, 300 + 31 * i % 400);
            assert_int_equal(asks[i].a.end.n_prompt, asks[i].n_id);
            expect(r, &asks[i]);
        }
        assert_idle(r);
        lg_close(&r->eng);
    }
}

/* As many pages as one whole context: the oldest always goes on, and all come to their end. */
static void test_one_context_of_pages_is_enough_for_all(void **state) {
    rig *r = *state;
    r->n_page = 8;
    open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 8, .n_batch_tok = 64});
    for (uint32_t i = 0; i < 20; i++) put(r, i, 10 + 19 * i, 0, i % 2, (int32_t)(i % 3));
    uint32_t n = 0;
    for (; lg_step(r->eng) == LG_OK; n++) {
        rig_fetch(r->eng);
        assert_true(n < 60000);
    }
    rig_fetch(r->eng);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(asks[i].a.n_token + asks[i].n_id, 512);
        expect(r, &asks[i]);
    }
    assert_idle(r);
}

/* Pages that were lost: a request that could never go on ends with an error instead of waiting for ever. */
static void test_a_pool_too_small_is_an_error(void **state) {
    rig *r = *state;
    open_or_fail(r, (lg_options){.n_ctx = 512, .n_seq = 2, .no_cache = true});
    r->eng->home->state.pages.n_free = 2;
    ask *q = put(r, 0, 100, 300, 0, 0);
    rig_run(r->eng);
    assert_true(q->a.done);
    assert_int_equal(q->a.end.status, LG_E_NOMEM);
    assert_int_equal(q->a.n_token, 29);
    assert_int_equal(stats(r).n_failed, 1);
}

/* ---- prompts that begin alike ---- */

static void copy_prompts(rig *r, uint32_t n, uint32_t n_same, uint32_t n_id) {
    for (uint32_t i = 0; i < n; i++) {
        asks[i].n_id = n_id;
        fill(asks[i].ids, n_same, 77);
        fill(asks[i].ids + n_same, n_id - n_same, 1000 + i);
        submit(r, &asks[i], 5, i % 3, 0);
    }
}

static void test_copies_wait_for_the_first(void **state) {
    rig *r = *state;
    static const uint32_t n_copy[] = {2, 3, 4, 8, 16, 64};
    for (uint32_t k = 0; k < LG_COUNT(n_copy); k++) {
        for (uint32_t n_same = 600; n_same <= 700; n_same += 100) {
            open_or_fail(r, (lg_options){.n_ctx = 1024, .n_seq = 64, .n_batch_tok = 128});
            uint32_t n = n_copy[k];
            copy_prompts(r, n, n_same, 700);
            rig_run(r->eng);
            lg_stats st = stats(r);
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(asks[i].a.n_token, 5);
                expect(r, &asks[i]);
            }
            assert_int_equal(st.n_held, n - 1);
            /* the beginning once, what is their own, and at most a page each around where they part */
            assert_in_range(st.n_prefill_tok, 700, n_same + n * (700 - n_same + 2));
            assert_idle(r);
            lg_close(&r->eng);
        }
    }
}

static void test_others_do_not_wait_and_nothing_waits_for_ever(void **state) {
    rig *r = *state;
    open_or_fail(r, (lg_options){.n_ctx = 1024, .n_seq = 16, .n_batch_tok = 64});
    copy_prompts(r, 4, 700, 700);
    ask *other = put(r, 8, 30, 3, 0, 0);
    put(r, 9, 20, 3, 0, 0);
    step(r);
    assert_int_equal(stats(r).n_running, 3);
    assert_int_equal(stats(r).n_waiting, 3);
    while (!other->a.done) step(r);
    assert_int_equal(asks[0].a.n_token, 0);
    lg_cancel(r->eng, asks[0].a.id); /* whom they wait for */
    lg_cancel(r->eng, asks[2].a.id); /* one that waits */
    step(r);
    assert_int_equal(stats(r).n_running, 2); /* each on its own now: held once only */
    rig_run(r->eng);
    assert_true(asks[1].a.done && asks[3].a.done);
    expect(r, &asks[1]);
    expect(r, &asks[3]);
    assert_idle(r);
    /* Other salts share nothing, so they do not wait. */
    for (uint32_t i = 0; i < 4; i++) {
        lg_err err = {0};
        lg_request req = rig_request(r, asks[0].ids, 700, 5, &asks[i].a);
        req.cache_salt = i + 1;
        if (lg_submit(r->eng, &req, &asks[i].a.id, &err) != LG_OK) fail_msg("%s", err.msg);
    }
    step(r);
    assert_int_equal(stats(r).n_running, 4);
    rig_run(r->eng);
    assert_idle(r);
}

/* A request of an earlier priority does not wait for one of a later priority; the other way round it does. */
static void test_nobody_waits_for_a_later_priority(void **state) {
    rig *r = *state;
    open_or_fail(r, (lg_options){.n_ctx = 1024, .n_seq = 16, .n_batch_tok = 64});
    for (uint32_t i = 0; i < 3; i++) {
        asks[i].n_id = 700;
        fill(asks[i].ids, 700, 5);
        submit(r, &asks[i], 5, 0, i == 0 ? 1 : i == 1 ? 0 : 2);
        step(r);
    }
    assert_int_equal(stats(r).n_running, 2);
    assert_int_equal(stats(r).n_held, 1);
    rig_run(r->eng);
    for (uint32_t i = 0; i < 3; i++) expect(r, &asks[i]);
    assert_idle(r);
}

/* ---- cancelling ---- */

/* One that waits, one that was put back, one that waits for another's prompt, one in its prompt, one in its answer: what it had is
 * free before the next step, and the others' answers are what they are. */
static void test_a_cancel_frees_its_own_and_nothing_else(void **state) {
    rig *r = *state;
    enum { WAITS, PUT_BACK, HELD, READS, WRITES, N };
    for (uint32_t which = 0; which < N; which++) {
        open_or_fail(r, (lg_options){.n_ctx = 1024, .n_seq = 5, .n_batch_tok = 64});
        ask *q[N] = {NULL};
        put(r, 20, 30, 60, 0, 0); /* runs beside */
        q[WRITES] = put(r, WRITES, 40, 60, 0, 0);
        q[PUT_BACK] = put(r, PUT_BACK, 50, 60, 0, 1);
        for (uint32_t i = 0; i < 8; i++) step(r);
        lg_admit_put_back(r->eng, r->eng->run[2], which % 2);
        assert_int_equal(q[PUT_BACK]->a.done, false);
        q[READS] = put(r, READS, 900, 5, 0, 0);
        q[HELD] = &asks[HELD];
        *q[HELD] = *q[READS];
        submit(r, q[HELD], 5, 0, 0);
        put(r, 21, 800, 5, 0, 0);
        put(r, 22, 800, 5, 0, 0);
        q[WAITS] = put(r, WAITS, 30, 5, 0, 2);
        step(r);
        assert_int_equal(stats(r).n_held, 1);
        uint32_t n_store = r->eng->store.n_free, n_slot = stats(r).n_slot_free;
        uint32_t n_page = stats(r).n_page_free, n_live = r->eng->queue.client[0].n_live;
        lg_cancel(r->eng, q[which]->a.id);
        bool ran = which == READS || which == WRITES;
        assert_int_equal(r->eng->queue.client[0].n_live, n_live - 1);
        assert_int_equal(r->eng->store.n_free, n_store + (ran || which == PUT_BACK));
        assert_int_equal(stats(r).n_slot_free, n_slot + ran);
        assert_true(ran ? stats(r).n_page_free > n_page : stats(r).n_page_free == n_page);
        rig_run(r->eng);
        for (uint32_t k = 0; k < N; k++) {
            assert_true(q[k]->a.done);
            assert_int_equal(q[k]->a.end.finish,
                             k == which ? LG_FINISH_CANCELLED : LG_FINISH_LENGTH);
            expect(r, q[k]);
        }
        for (uint32_t k = 20; k < 23; k++) expect(r, &asks[k]);
        assert_idle(r);
        lg_close(&r->eng);
    }
}

/* ---- everything at once ---- */

static void test_random_lives_return_everything(void **state) {
    rig *r = *state;
    uint64_t n_ended = 0, n_cancel = 0, n_more[4] = {0};
    for (uint32_t world = 0; world < 12; world++) {
        uint32_t n_seq = 1 + world % 5;
        r->n_page = 6 + 5 * (world % 4);
        r->m.pace = (fake_pace){.step = 100, .decode = 5, .prefill = 2 + 40.0 * (world % 2)};
        open_or_fail(r, (lg_options){.n_ctx = 384,
                                     .n_seq = n_seq,
                                     .n_batch_tok = 48,
                                     .no_cache = world % 3 == 2,
                                     .max_stall_us = world % 2 * 400});
        uint64_t submitted = 0;
        for (uint32_t i = 0; i < 40; i++) asks[i].a.done = true;
        for (uint32_t round = 0; round < 1500; round++) {
            uint64_t x = lg_num_rng(9, world, round, 0);
            ask *q = &asks[x % 40];
            if (x / 64 % 4 == 0 && q->a.done && round < 1300) {
                q->n_id = 1 + (uint32_t)(x >> 16) % 300;
                fill(q->ids, q->n_id, x >> 8 & 3);
                fill(q->ids + q->n_id / 2, q->n_id - q->n_id / 2, x >> 10 & 7);
                submit(r, q, 1 + (uint32_t)(x >> 40) % 90, x >> 13 & 3, (int32_t)(x >> 30 & 3));
                submitted++;
            } else if (x / 64 % 16 == 5 && !q->a.done) {
                lg_cancel(r->eng, q->a.id);
                n_cancel++;
            }
            uint64_t n_alloc = lg_mem_count();
            lg_step(r->eng);
            assert_int_equal(lg_mem_count(), n_alloc);
            rig_fetch(r->eng);
            /* Slots and token buffers are where the lists say. */
            lg_stats st = stats(r);
            assert_int_equal(st.n_slot_free + st.n_running, n_seq);
            assert_int_equal(st.n_submitted, submitted);
            assert_int_equal(st.n_done + st.n_cancelled + st.n_failed + st.n_running +
                                 st.n_waiting,
                             submitted);
        }
        rig_run(r->eng);
        for (uint32_t i = 0; i < 40; i++) {
            assert_true(asks[i].a.done);
            if (asks[i].n_id) expect(r, &asks[i]);
        }
        lg_stats st = stats(r);
        assert_int_equal(st.n_failed, 0);
        assert_int_equal(st.n_done + st.n_cancelled, submitted);
        n_ended += st.n_done;
        n_more[0] += st.n_preempt_kept;
        n_more[1] += st.n_preempt_dropped;
        n_more[2] += st.n_held;
        n_more[3] += st.n_evicted;
        assert_idle(r);
        lg_prefix_clear(&r->eng->home->prefix);
        assert_int_equal(r->eng->home->state.pages.n_free, r->eng->info.n_page);
        assert_int_equal(r->eng->home->prefix.n_snap_free, r->eng->info.n_snapshot);
        lg_close(&r->eng);
    }
    print_message("  %u ended, %u cancelled, put back %u with and %u without a snapshot, %u "
                  "held, %u evicted\n",
                  (unsigned)n_ended, (unsigned)n_cancel, (unsigned)n_more[0],
                  (unsigned)n_more[1], (unsigned)n_more[2], (unsigned)n_more[3]);
    for (uint32_t i = 0; i < 4; i++) assert_true(n_more[i] > 20);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_no_step_is_longer_than_allowed),
        T(test_a_limit_too_small_still_reads),
        T(test_the_default_does_not_starve_prompts),
        T(test_alone_a_prompt_is_not_cut),
        T(test_a_hundred_requests_do_not_delay_another_client),
        T(test_work_is_shared_alike),
        T(test_rest_earns_nothing_and_names_are_forgotten),
        T(test_earlier_priorities_take_slots_and_those_put_back_go_on),
        T(test_prompts_share_rows_by_priority),
        T(test_those_put_back_for_memory_go_on),
        T(test_one_context_of_pages_is_enough_for_all),
        T(test_a_pool_too_small_is_an_error),
        T(test_copies_wait_for_the_first),
        T(test_others_do_not_wait_and_nothing_waits_for_ever),
        T(test_nobody_waits_for_a_later_priority),
        T(test_a_cancel_frees_its_own_and_nothing_else),
        T(test_random_lives_return_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
