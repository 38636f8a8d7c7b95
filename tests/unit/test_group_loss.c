/* test_group_loss.c - an engine over ranks whose load comes and goes, and of which one falls silent. */
#include "group_rig.h"

#include "base/clock.h"

#include <stdlib.h>

/* Steps of an engine whose load comes and goes: all idle, one token, one busy rank, cancel storms. */
static lg_status run_patterns(lg_engine *eng, uint32_t n_vocab, uint64_t seed,
                              uint32_t n_step) {
    static outcome many[64];
    uint64_t id[64];
    uint32_t n = 0, step = 0, ids[150];
    lg_status st = LG_OK;
    lg_event e;
    for (uint32_t turn = 0; step < n_step && st >= 0; turn++) {
        uint64_t x = lg_num_rng(seed, 0, turn, 0);
        uint32_t n_new = x % 8 < 4 ? 0 : x % 8 < 7 ? 1 : (uint32_t)(x >> 8) % 9;
        for (uint32_t i = 0; i < n_new; i++, n++) {
            uint64_t y = lg_num_rng(seed, 1, turn, i);
            uint32_t n_id =
                y % 5 == 0 ? 1 + (uint32_t)(y >> 8) % 150 : 1 + (uint32_t)(y >> 8) % 6;
            lg_err err;
            for (uint32_t k = 0; k < n_id; k++)
                ids[k] = (uint32_t)(lg_num_rng(seed, 2, n, k) % n_vocab);
            lg_request req = {.ids = ids,
                              .n_id = n_id,
                              .max_tokens = 1 + (uint32_t)(y >> 32) % 12,
                              .user = &many[n % 64]};
            lg_params_init(eng, &req.params);
            req.params.has_seed = true;
            req.params.seed = y;
            assert_int_equal(lg_submit(eng, &req, &id[n % 64], &err), LG_OK);
        }
        uint32_t n_run = (uint32_t)(x >> 40) % 6;
        for (uint32_t i = 0; i < n_run && st >= 0; i++) {
            st = lg_step(eng);
            step += st == LG_OK;
            while (lg_next_event(eng, &e) == LG_OK) continue;
        }
        if (x >> 56 < 8)
            for (uint32_t i = 0; i < 64 && i < n; i++) lg_cancel(eng, id[i]);
        if (x >> 48 & 1) lg_clock_sleep_us(x >> 49 & 1023);
    }
    while (st == LG_OK) {
        st = lg_step(eng);
        while (lg_next_event(eng, &e) == LG_OK) continue;
    }
    return st;
}

static lg_status lead_patterns(rig *r) {
    lg_engine *eng;
    lg_status st =
        group_open_engine(r, r->part[0], lg_ranks_ops(), r->n_rank, &eng, &r->err[0]);
    if (st != LG_OK) return st;
    st = run_patterns(eng, r->all->cfg.n_vocab, r->seed, r->n_step);
    lg_close(&eng);
    return st;
}

/* LG_GROUP_STEPS steps (300) over 4 ranks, each exchange in turn: nobody is left waiting. */
static void test_idle_patterns(void **state) {
    (void)state;
    const char *text = getenv("LG_GROUP_STEPS");
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    group_open_model(r, "tests/data/models/tiny-moe");
    r->lead = lead_patterns;
    for (int i = 0; i < 3; i++) {
        r->how = (lg_exchange_how){.kind = (lg_exchange_kind)i,
                                   .wire = i ? LG_WIRE_BF16 : LG_WIRE_F32,
                                   .answers = i == 1 ? LG_DIVIDE_OFF : LG_DIVIDE_ON};
        r->n_sliced = 0;
        r->n_node = i ? 2 : 1;
        r->seed = 60 + (uint64_t)i;
        r->n_step = (text ? (uint32_t)atoi(text) : 300) / 3 + 1;
        group_open_ranks(r, 4, r->seed);
        for (uint32_t k = 0; k < 4; k++) r->comm[k].timeout_us = 30 * 1000000;
        group_run(r, LG_AGAIN);
        assert_int_equal(r->n_sliced > 0, i != 1);
        group_close_ranks(r);
    }
    group_close_model(r);
    lg_mem_free(r);
}

/* The group runs, rests, runs again; then a rank falls silent in the middle: every rank leaves within the time limit, and
 * every request has its end. */
static void lose_a_rank(lg_divide divide) {
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    group_open_model(r, "tests/data/models/tiny-moe");
    r->how = (lg_exchange_how){.divide = divide, .divide_ctx = 448};
    group_open_ranks(r, 3, 31);
    for (uint32_t k = 0; k < 3; k++) r->comm[k].timeout_us = 300000;
    comm_threads_mute(r->w, 2);
    uint64_t start = lg_clock_us();
    /* A member waits for plans without limit: only the leader and rank 2 are in the step to the end. */
    comm_threads_run(3, group_rank, r);
    assert_true(lg_clock_us() - start < 30 * 1000000);
    assert_int_equal(r->status[0], LG_E_BACKEND);
    assert_int_equal(r->status[1], LG_E_COMM);
    uint32_t n_error = 0;
    for (uint32_t i = 0; i < N_REQ; i++)
        n_error += r->got[i].done && r->got[i].finish == LG_FINISH_ERROR;
    assert_true(n_error > 0);
    if (!strstr(r->comm[0].why, "rank 2")) fail_msg("%s", r->comm[0].why);
    group_close_ranks(r);
    group_close_model(r);
    lg_mem_free(r);
}

static void test_a_rank_is_lost(void **state) {
    (void)state;
    lose_a_rank(LG_DIVIDE_OFF);
    lose_a_rank(LG_DIVIDE_ON);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_patterns),
        cmocka_unit_test(test_a_rank_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
