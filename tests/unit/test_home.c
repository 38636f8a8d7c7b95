/* test_home.c - an engine over several owners: where sequences go, and that answers do not depend on it.
 *
 * The fake backend keeps the pools of each owner apart and reads the history back through them, so a page, slot or snapshot
 * of the wrong owner changes an answer or trips an assertion. */
#include "engine_rig.h"
#include "kept_files.h"

#include "base/num.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_REQ 60

static answer answers[2][N_REQ];

static void open_rig(rig *r, uint32_t n_owner, const lg_options *opt) {
    lg_err err = {0};
    rig_init(r);
    r->m.n_owner = n_owner;
    if (rig_open(r, opt, &err) != LG_OK) fail_msg("%s", err.msg);
}

/* Owners of the sequences of the last step, in order of the batch. */
static uint32_t owner_of(const rig *r, uint32_t i) {
    assert_true(i < r->m.n_seq);
    return r->m.seq[i].owner;
}

static void submit(rig *r, const uint32_t *ids, uint32_t n_id, uint32_t max_tokens, answer *a) {
    lg_request req = rig_request(r, ids, n_id, max_tokens, a);
    lg_err err = {0};
    if (lg_submit(r->eng, &req, &a->id, &err) != LG_OK) fail_msg("%s", err.msg);
}

static void fill(uint32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = 300 + (uint32_t)(lg_num_rng(seed, 0, i, 0) % 3000);
}

static void test_least_owed_first(void **state) {
    (void)state;
    static uint32_t ids[4][900];
    static const uint32_t n_id[4] = {900, 200, 100, 90};
    rig r;
    lg_options opt = {.n_seq = 4, .n_ctx = 1024, .n_batch_tok = 64, .no_cache = true};
    open_rig(&r, 3, &opt);
    for (uint32_t i = 0; i < 4; i++) {
        fill(ids[i], n_id[i], i);
        submit(&r, ids[i], n_id[i], 4, &answers[0][i]);
    }
    assert_int_equal(lg_step(r.eng), LG_OK);
    /* 900 -> home 0; 200 -> 1 (nothing owed); 100 -> 2; 90 -> 2, which owes 100, less than the others. */
    assert_int_equal(r.eng->home[0].n_run, 1);
    assert_int_equal(r.eng->home[1].n_run, 1);
    assert_int_equal(r.eng->home[2].n_run, 2);
    while (lg_step(r.eng) == LG_OK) rig_fetch(r.eng);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(r.eng->home[i].n_run, 0);
    rig_fini(&r);
}

/* Equal loads: the home with fewer sequences, then the one whose sequence ends first. */
static void test_ties(void **state) {
    (void)state;
    static uint32_t ids[4][8];
    rig r;
    lg_options opt = {.n_seq = 4, .n_ctx = 1024, .n_batch_tok = 64, .no_cache = true};
    open_rig(&r, 2, &opt);
    for (uint32_t i = 0; i < 4; i++) fill(ids[i], 8, 40 + i);
    submit(&r, ids[0], 8, 500, &answers[0][0]); /* home 0, long */
    submit(&r, ids[1], 8, 20, &answers[0][1]);  /* home 1, short */
    assert_int_equal(lg_step(r.eng), LG_OK);
    assert_int_equal(owner_of(&r, 0), 0);
    assert_int_equal(owner_of(&r, 1), 1);
    assert_int_equal(lg_step(r.eng), LG_OK); /* both decode: nothing is owed */
    submit(&r, ids[2], 8, 500, &answers[0][2]);
    assert_int_equal(lg_step(r.eng), LG_OK);
    assert_int_equal(r.eng->home[1].n_run, 2); /* one each, but home 1 frees a slot sooner */
    assert_int_equal(lg_step(r.eng), LG_OK);
    submit(&r, ids[3], 8, 500, &answers[0][3]);
    assert_int_equal(lg_step(r.eng), LG_OK);
    assert_int_equal(r.eng->home[0].n_run, 2);
    rig_fini(&r);
}

/* A text goes back to the home that keeps its beginning, and only the rest is computed. */
static void test_kept_text_draws(void **state) {
    (void)state;
    static uint32_t ids[700];
    rig r;
    lg_options opt = {.n_seq = 4, .n_ctx = 1024, .n_batch_tok = 256};
    open_rig(&r, 3, &opt);
    fill(ids, 700, 9);
    static uint32_t other[40];
    fill(other, 40, 10);
    submit(&r, other, 40, 400,
           &answers[0][0]); /* home 0 is busy, so that the text goes to home 1 */
    assert_int_equal(lg_step(r.eng), LG_OK);
    submit(&r, ids, 600, 2, &answers[0][1]);
    while (!answers[0][1].done) {
        assert_int_equal(lg_step(r.eng), LG_OK);
        rig_fetch(r.eng);
    }
    assert_int_equal(r.eng->home[1].n_run, 0);
    assert_true(r.eng->home[1].prefix.n_kept > 0);
    submit(&r, ids, 700, 2, &answers[0][2]);
    while (!answers[0][2].done) {
        assert_int_equal(lg_step(r.eng), LG_OK);
        if (r.eng->n_run == 2) assert_int_equal(r.eng->home[1].n_run, 1);
        rig_fetch(r.eng);
    }
    assert_true(answers[0][2].end.n_cached >= 599);
    rig_fini(&r);
}

/* The same requests, in waves with cancels, over one owner and over three with less room each. */
static void run_mixed(uint32_t n_owner, answer *a, uint32_t n_seq) {
    static uint32_t ids[N_REQ][320];
    rig r;
    lg_options opt = {.n_seq = n_seq, .n_ctx = 512, .n_batch_tok = 48};
    open_rig(&r, n_owner, &opt);
    for (uint32_t i = 0; i < N_REQ; i++) {
        uint32_t n_shared = i % 4 * 64 + 40, n = n_shared + i % 7 + 3;
        fill(ids[i], n_shared, 100 + i % 5);
        fill(ids[i] + n_shared, n - n_shared, 200 + i);
        submit(&r, ids[i], n, 1 + i % 23, &a[i]);
        if (i % 11 == 10) lg_cancel(r.eng, a[i].id);
        if (i % 3 == 0) lg_step(r.eng);
        rig_fetch(r.eng);
    }
    while (lg_step(r.eng) == LG_OK) rig_fetch(r.eng);
    lg_stats st;
    lg_get_stats(r.eng, &st);
    assert_int_equal(st.n_slot_free, r.eng->info.n_seq);
    assert_int_equal(st.n_page_free, r.eng->info.n_page);
    for (uint32_t i = 0; i < r.eng->n_home; i++) assert_int_equal(r.eng->home[i].n_run, 0);
    rig_fini(&r);
}

static void test_answers_do_not_depend_on_homes(void **state) {
    (void)state;
    run_mixed(1, answers[0], 6);
    run_mixed(3, answers[1], 2);
    for (uint32_t i = 0; i < N_REQ; i++) {
        const answer *a = &answers[0][i], *b = &answers[1][i];
        assert_true(a->done && b->done);
        if (i % 11 == 10) continue; /* cancelled, at different points */
        assert_int_equal(a->n_token, b->n_token);
        assert_memory_equal(a->token, b->token, a->n_token * sizeof *a->token);
        assert_int_equal(a->end.finish, b->end.finish);
    }
}

/* ---- files ---- */

#define N_FILE_TEXT 24

static void run_flushing(rig *r) {
    while (lg_step(r->eng) == LG_OK) {
        rig_fetch(r->eng);
        for (uint32_t h = 0; h < r->eng->n_home; h++) lg_disk_flush(r->eng->home[h].disk);
    }
    rig_fetch(r->eng);
}

/* A life over `dir`: every text, all at once or alone.  stats: at its end. */
static void live_with_files(const char *dir, uint32_t n_owner, bool alone, answer *a,
                            lg_stats *stats) {
    static uint32_t ids[N_FILE_TEXT][320];
    rig r;
    lg_options opt = {.n_seq = 2, .n_ctx = 512, .n_batch_tok = 48, .cache_dir = dir};
    lg_err err = {0};
    rig_init(&r);
    r.m.n_owner = n_owner;
    r.disk = (lg_disk_opt){.dir = dir, .always = true};
    if (rig_open(&r, &opt, &err) != LG_OK) fail_msg("%s", err.msg);
    for (uint32_t i = 0; i < N_FILE_TEXT; i++) {
        uint32_t n = 30 + 12 * i;
        fill(ids[i], n, 300 + i);
        submit(&r, ids[i], n, 3, &a[i]);
        if (alone) run_flushing(&r);
    }
    run_flushing(&r);
    lg_get_stats(r.eng, stats);
    assert_int_equal(stats->n_page_free, r.eng->info.n_page);
    assert_int_equal(stats->n_slot_free, r.eng->info.n_seq);
    rig_fini(&r);
}

static uint32_t n_cached(const answer *a) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_FILE_TEXT; i++) n += a[i].end.n_cached;
    return n;
}

static void expect_same(const answer *a, const answer *b) {
    for (uint32_t i = 0; i < N_FILE_TEXT; i++) {
        assert_true(a[i].done && b[i].done && a[i].n_token == 3 && b[i].n_token == 3);
        assert_memory_equal(a[i].token, b[i].token, sizeof a[i].token[0] * 3);
    }
}

/* Each home has files in a folder of its own, and a text goes where its files are. */
static void test_each_home_has_files(void **state) {
    (void)state;
    char dir[64] = "/tmp/lignum-home-XXXXXX", of[3][80], command[100];
    uint32_t n[3], most = 0;
    lg_stats st;
    assert_non_null(mkdtemp(dir));
    snprintf(of[0], sizeof of[0], "%s", dir);
    for (uint32_t h = 1; h < 3; h++) snprintf(of[h], sizeof of[h], "%s/device-%u", dir, h);
    live_with_files(dir, 3, false, answers[0], &st);
    assert_int_equal(n_cached(answers[0]), 0);
    for (uint32_t h = 0; h < 3; h++) assert_true((n[h] = kept_files(of[h], 0)) > 3);
    assert_int_equal(st.n_file_written, n[0] + n[1] + n[2]);
    assert_int_equal(st.n_file_skipped, 0);
    /* Restarted, alone: all but the last id of each. */
    live_with_files(dir, 3, true, answers[1], &st);
    expect_same(answers[0], answers[1]);
    for (uint32_t i = 0; i < N_FILE_TEXT; i++) most += 30 + 12 * i - 1;
    assert_int_equal(n_cached(answers[1]), most);
    assert_true(st.n_file_tok >= most);
    assert_int_equal(st.n_file_refused, 0);
    /* Restarted, in company: where another home would be sooner, files are not read. */
    live_with_files(dir, 3, false, answers[1], &st);
    expect_same(answers[0], answers[1]);
    assert_true(n_cached(answers[1]) > 0);
    assert_int_equal(st.n_file_refused, 0);
    /* What is damaged is removed: found at the start (heads), and when it is read (ids). */
    for (uint32_t h = 1; h < 3; h++) {
        uint32_t n_bad = kept_files(of[h], h == 1 ? 20 : 300);
        assert_true(n_bad > 3);
        live_with_files(dir, 3, true, answers[1], &st);
        expect_same(answers[0], answers[1]);
        assert_true(n_cached(answers[1]) > 0);
        assert_true(st.n_file_refused > 0 && st.n_file_refused <= n_bad);
    }
    /* Fewer homes find what is in their folders. */
    live_with_files(dir, 2, true, answers[1], &st);
    expect_same(answers[0], answers[1]);
    assert_true(n_cached(answers[1]) > 0 && st.n_file_refused == 0);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* ---- prompts that begin together ---- */

#define N_HOME 4

static answer talkers[N_HOME], prompts[8];

/* Rows of each home in the last step, and the most of one. */
static uint32_t rows_of_homes(const rig *r, uint32_t *rows) {
    uint32_t most = 0;
    memset(rows, 0, N_HOME * sizeof *rows);
    for (uint32_t i = 0; i < r->m.n_seq; i++) {
        uint32_t *n = &rows[r->m.seq[i].owner];
        *n += r->m.seq[i].n_tok;
        if (*n > most) most = *n;
    }
    return most;
}

/* Four homes, n_talk of which produce a long answer each. */
static void open_talking(rig *r, uint32_t n_talk, uint32_t hold_steps, uint32_t n_batch_tok) {
    static uint32_t ids[N_HOME][8];
    lg_options opt = {.n_seq = 4, .n_ctx = 2048, .n_batch_tok = n_batch_tok, .no_cache = true};
    lg_err err = {0};
    rig_init(r);
    r->m.n_owner = N_HOME;
    r->hold_steps = hold_steps;
    if (rig_open(r, &opt, &err) != LG_OK) fail_msg("%s", err.msg);
    for (uint32_t i = 0; i < n_talk; i++) {
        fill(ids[i], 8, 70 + i);
        submit(r, ids[i], 8, 900, &talkers[i]);
    }
    for (uint32_t i = 0; n_talk && i < 2; i++) { /* the second one has answers only */
        assert_int_equal(lg_step(r->eng), LG_OK);
        rig_fetch(r->eng);
    }
}

/* Steps until the prompt's first row. */
static uint32_t steps_before(rig *r, uint32_t n_id, answer *a) {
    static uint32_t ids[1000];
    uint32_t rows[N_HOME];
    fill(ids, n_id, 80);
    submit(r, ids, n_id, 4, a);
    for (uint32_t n = 0;; n++) {
        assert_int_equal(lg_step(r->eng), LG_OK);
        rig_fetch(r->eng);
        if (rows_of_homes(r, rows) > 1) return n;
        for (uint32_t h = 0; h < N_HOME; h++)
            assert_int_equal(rows[h], 1); /* nobody else waits */
        assert_in_range(n, 0, 100);
    }
}

/* A prompt alone waits for exactly so many steps, and not at all where nobody loses. */
static void test_a_prompt_waits_for_steps(void **state) {
    (void)state;
    static const struct {
        uint32_t n_talk, hold_steps, n_id, want;
    } c[] = {{4, 8, 300, 8}, {4, 3, 300, 3},
             {4, 0, 300, 0}, {3, 8, 300, 0}, /* it goes to the home without an answer */
             {4, 8, 40, 0},                  /* short */
             {0, 8, 300, 0}};
    for (size_t i = 0; i < LG_COUNT(c); i++) {
        rig r;
        open_talking(&r, c[i].n_talk, c[i].hold_steps, 512);
        assert_int_equal(steps_before(&r, c[i].n_id, &prompts[0]), c[i].want);
        rig_fini(&r);
    }
}

/* Eight prompts that come one every second step while all homes answer: rows of the longest parts, added up over all steps. */
static uint32_t cost_of_prompts(uint32_t hold_steps, uint32_t *n_long) {
    static uint32_t ids[8][256];
    uint32_t rows[N_HOME], cost = 0;
    rig r;
    *n_long = 0;
    open_talking(&r, N_HOME, hold_steps, 512);
    for (uint32_t step = 0;; step++) {
        bool all = step > 16;
        if (step % 2 == 0 && step < 16) {
            fill(ids[step / 2], 256, 90 + step);
            submit(&r, ids[step / 2], 256, 2, &prompts[step / 2]);
        }
        for (uint32_t i = 0; all && i < 8; i++) all = prompts[i].done;
        if (all) break;
        assert_int_equal(lg_step(r.eng), LG_OK);
        rig_fetch(r.eng);
        uint32_t most = rows_of_homes(&r, rows);
        cost += most;
        *n_long += most > 8;
        assert_in_range(step, 0, 100);
    }
    rig_fini(&r);
    return cost;
}

static void test_prompts_begin_together(void **state) {
    (void)state;
    uint32_t n_alone, n_together, alone = cost_of_prompts(0, &n_alone);
    uint32_t together = cost_of_prompts(8, &n_together);
    printf("  8 prompts of 256 ids, 4 homes: rows of the longest parts %u in %u long steps; "
           "begun together %u in %u\n",
           alone, n_alone, together, n_together);
    assert_true(together * 2 < alone);
    assert_true(n_together < n_alone);
}

/* Prompts of several homes get equal rows; what one does not need goes to the others. */
static void test_rows_are_shared_by_homes(void **state) {
    (void)state;
    static const uint32_t n_id[4] = {400, 400, 40, 400};
    static uint32_t ids[4][400];
    uint32_t rows[N_HOME];
    rig r;
    open_talking(&r, 0, 0, 256);
    for (uint32_t i = 0; i < 4; i++) {
        fill(ids[i], n_id[i], 60 + i);
        submit(&r, ids[i], n_id[i], 2, &prompts[i]);
    }
    assert_int_equal(lg_step(r.eng), LG_OK);
    assert_int_equal(rows_of_homes(&r, rows), 72);
    for (uint32_t h = 0; h < N_HOME; h++) assert_int_equal(rows[h], h == 2 ? 40 : 72);
    while (lg_step(r.eng) == LG_OK) rig_fetch(r.eng);
    rig_fini(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_owed_first),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_kept_text_draws),
        cmocka_unit_test(test_a_prompt_waits_for_steps),
        cmocka_unit_test(test_prompts_begin_together),
        cmocka_unit_test(test_rows_are_shared_by_homes),
        cmocka_unit_test(test_answers_do_not_depend_on_homes),
        cmocka_unit_test(test_each_home_has_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
