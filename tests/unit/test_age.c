/* test_age.c - late priorities behind earlier ones that never rest: each has its turn, together they get their share. */
#include "sched_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Keep `n` requests of priority 0 waiting, in asks[0 .. n). */
static void keep_busy(rig *r, uint32_t n, uint32_t n_id, uint32_t n_new) {
    for (uint32_t i = 0; i < n; i++)
        if (asks[i].a.done) put(r, i, n_id + i % 7, n_new, 1, 0);
}

static double work_done(const rig *r) {
    lg_stats st = stats(r);
    return (double)st.n_prefill_tok + 2.0 * (double)st.n_decode_tok;
}

/* Earlier priorities never rest: one of a later priority has its turn after as much work as engine.h says, keeps its slot, and
 * takes none from those that run. */
static void test_a_late_priority_has_its_turn(void **state) {
    rig *r = *state;
    static const uint32_t n_id[] = {20, 400};
    for (uint32_t k = 0; k < 2; k++) {
        open_or_fail(r, (lg_options){.n_ctx = 1024, .n_seq = 3, .n_batch_tok = 64});
        for (uint32_t i = 0; i < 12; i++) asks[i].a.done = true;
        keep_busy(r, 12, 60, 20);
        ask *late = put(r, 20, n_id[k], 50, 2, 5);
        double turn = 0;
        while (!late->a.done) {
            step(r);
            keep_busy(r, 12, 60, 20);
            if (!turn && late->a.n_token) turn = work_done(r);
        }
        double most = LG_QUEUE_SHARE * (double)(n_id[k] > 256 ? n_id[k] : 256);
        print_message("  a prompt of %u: answered after %.0f of %.0f\n", n_id[k], turn, most);
        /* what runs ends first, and its own prompt shares the steps */
        assert_true(turn > most && turn < most + 3 * 100 + 3 * n_id[k]);
        assert_int_equal(stats(r).n_aged, 1);
        lg_stats st = stats(r);
        assert_int_equal(st.n_preempt_kept + st.n_preempt_dropped, 0);
        rig_run(r->eng);
        expect(r, late);
        for (uint32_t i = 0; i < 12; i++) expect(r, &asks[i]);
        assert_idle(r);
        lg_close(&r->eng);
    }
}

/* Both priorities never rest: a sixteenth of the work is for the later one, and its oldest is the first. */
static void test_late_priorities_get_their_share(void **state) {
    rig *r = *state;
    enum { EARLY = 12, LATE = 40 };
    open_or_fail(r, (lg_options){.n_ctx = 1024, .n_seq = 3, .n_batch_tok = 64});
    for (uint32_t i = 0; i < EARLY + LATE; i++) asks[i].a.done = true;
    uint32_t n_late = 0;
    for (uint32_t i = 0; i < LATE; i++)
        put(r, EARLY + i, 100 + i, 60, 2 + i % 3, i % 2 ? 9 : 4);
    double late = 0, all = 0;
    for (uint32_t next = 0; n_late < LATE - 2;) {
        keep_busy(r, EARLY, 60, 20);
        step(r);
        for (; next < LATE && asks[EARLY + next].a.done;
             next++) { /* in the order of their ages */
            late += asks[EARLY + next].n_id + 2.0 * 59;
            n_late++;
            expect(r, &asks[EARLY + next]);
        }
        uint32_t n_done = 0;
        for (uint32_t i = 0; i < LATE; i++) n_done += asks[EARLY + i].a.done;
        assert_in_range(n_done, n_late, n_late + 1); /* two may run side by side */
    }
    all = work_done(r);
    print_message("  %.0f of %.0f work, 1/%.1f\n", late, all, all / late);
    assert_true(all / late > 0.8 * LG_QUEUE_SHARE && all / late < 1.25 * (LG_QUEUE_SHARE + 1));
    rig_run(r->eng);
    assert_idle(r);
}

/* A prompt that has a slot but gets no rows beside those of earlier priorities. */
static void test_a_late_prompt_in_its_slot_is_read(void **state) {
    rig *r = *state;
    open_or_fail(r,
                 (lg_options){.n_ctx = 1024, .n_seq = 8, .n_batch_tok = 64, .no_cache = true});
    for (uint32_t i = 0; i < 4; i++) asks[i].a.done = true;
    ask *late = put(r, 20, 300, 5, 2, 1);
    for (uint32_t n = 0; !late->a.done; n++) {
        keep_busy(r, 4, 500, 2);
        step(r);
        assert_int_equal(stats(r).n_waiting, 0);
        assert_true(n < 2 * 16 * 300 / 64);
    }
    assert_int_equal(stats(r).n_aged, 1);
    rig_run(r->eng);
    expect(r, late);
    assert_idle(r);
}

/* The oldest asks for much and leaves: the next waits for its own need only. */
static void test_who_leaves_does_not_keep_others_waiting(void **state) {
    rig *r = *state;
    open_or_fail(r, (lg_options){.n_ctx = 4096, .n_seq = 3, .n_batch_tok = 64});
    for (uint32_t i = 0; i < 12; i++) asks[i].a.done = true;
    keep_busy(r, 12, 60, 20);
    ask *large = put(r, 20, 3900, 5, 2, 5), *small = put(r, 21, 20, 5, 2, 5);
    while (work_done(r) < 6000) {
        step(r);
        keep_busy(r, 12, 60, 20);
    }
    lg_cancel(r->eng, large->a.id);
    while (!small->a.done) {
        step(r);
        keep_busy(r, 12, 60, 20);
    }
    assert_true(work_done(r) < 6000 + LG_QUEUE_SHARE * LG_QUEUE_LOOK + 1000);
    rig_run(r->eng);
    expect(r, small);
    assert_idle(r);
}

/* Where nobody is passed over nobody ages, and what was saved up before is forgotten. */
static void test_equals_do_not_age(void **state) {
    rig *r = *state;
    open_or_fail(r, (lg_options){.n_ctx = 1024, .n_seq = 2, .n_batch_tok = 64});
    for (uint32_t i = 0; i < 40; i++) put(r, i, 300 + i, 40, i % 4, 7);
    rig_run(r->eng);
    assert_int_equal(stats(r).n_aged, 0);
    assert_true(r->eng->queue.credit <= LG_QUEUE_LOOK + 64.0);
    for (uint32_t i = 0; i < 40; i++) expect(r, &asks[i]);
    assert_idle(r);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_a_late_priority_has_its_turn),
        T(test_late_priorities_get_their_share),
        T(test_a_late_prompt_in_its_slot_is_read),
        T(test_who_leaves_does_not_keep_others_waiting),
        T(test_equals_do_not_age),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
