/* test_backend.c - what the backend promises besides numbers: the plan, failure at open, sampling in a step, rows that
 * are not finite. */
#include "rig.h"

#include "backend/cpu/cpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lg_weights *w; /* tiny-moe */
static lg_pool *pool;

static const lg_backend_opt options = {.n_slot = 3,
                                       .n_page = 6,
                                       .max_tok = 70,
                                       .max_seq = 3,
                                       .max_out = 10,
                                       .n_sample_vocab = 512};
static const uint32_t page[6] = {4, 0, 5, 1, 3, 2};

static int open_all(void **state) {
    char models[512], unused[512], path[1024];
    lg_err err = {0};
    (void)state;
    if (!rig_data(0, models, unused) || lg_pool_open(2, &pool, &err) != LG_OK) return -1;
    snprintf(path, sizeof path, "%s/tiny-moe", models);
    return lg_weights_open(path, pool, NULL, NULL, &w, &err) == LG_OK ? 0 : -1;
}

static int close_all(void **state) {
    (void)state;
    lg_weights_close(&w);
    lg_pool_close(&pool);
    return 0;
}

/* Sizes from the formulas of docs/MODEL.md, section 7. */
static void test_plan_counts_pages_and_slots(void **state) {
    lg_backend_plan plan, twice;
    (void)state;
    lg_backend_plan_bytes(&w->cfg, &options, 2, &plan);
    /* 2 attention layers, 2 KV heads of 64: keys and values of 64 positions. */
    assert_int_equal(plan.page_bytes, 2 * 2 * 2 * 64 * 64 * 4);
    static const struct {
        lg_dtype kv;
        uint32_t bytes;
    } kept[] = {{LG_BF16, 64 * 64 * 2}, {LG_F16, 64 * 64 * 2}, {LG_Q8_0, 64 * (64 + 2 * 2)}};
    for (size_t i = 0; i < LG_COUNT(kept); i++) {
        lg_backend_opt opt = options;
        opt.kv = kept[i].kv;
        lg_backend_plan_bytes(&w->cfg, &opt, 2, &twice);
        assert_int_equal(twice.page_bytes, 2 * 2 * 2 * kept[i].bytes);
    }
    /* 6 GDN layers, 4 key and 8 value heads of 32. */
    assert_int_equal(
        plan.slot_bytes,
        6 * 4 * (8 * 32 * 32 + 32 * (4 * 32 + 8 * (32 + 1)) + 3 * (2 * 4 * 32 + 8 * 32)));
    lg_backend_opt big = options;
    big.max_tok *= 2;
    lg_backend_plan_bytes(&w->cfg, &big, 2, &twice);
    assert_true(twice.scratch_bytes > plan.scratch_bytes);
    assert_true(twice.scratch_bytes < 2 * plan.scratch_bytes);
    lg_backend_plan_bytes(&w->cfg, &options, 3, &twice);
    assert_true(twice.scratch_bytes > plan.scratch_bytes);
}

static void test_open_survives_every_failed_allocation(void **state) {
    (void)state;
    int64_t alive = lg_mem_alive();
    lg_backend *be = NULL;
    lg_err err = {0};
    lg_status st = LG_E_NOMEM;
    uint64_t n = 0;
    while (st == LG_E_NOMEM) {
        lg_mem_fail_at(++n);
        st = lg_backend_open(w, &options, pool, &be, &err);
        lg_mem_fail_at(0);
        if (st != LG_OK) {
            assert_null(be);
            assert_int_equal(err.code, LG_E_NOMEM);
            assert_int_equal(lg_mem_alive(), alive);
        }
    }
    assert_int_equal(st, LG_OK);
    assert_true(n >= 5);
    lg_backend_close(&be);
    assert_null(be);
    lg_backend_close(&be);
    assert_int_equal(lg_mem_alive(), alive);
}

static void test_open_refuses_empty_sizes(void **state) {
    (void)state;
    lg_backend *be = NULL;
    lg_err err = {0};
    lg_backend_opt bad = options;
    bad.max_tok = 0;
    assert_int_equal(lg_backend_open(w, &bad, pool, &be, &err), LG_E_ARG);
    assert_null(be);
    assert_int_equal(err.code, LG_E_ARG);
}

static lg_backend *open_poisoned(void) {
    lg_backend *be = NULL;
    lg_err err = {0};
    if (lg_backend_open(w, &options, pool, &be, &err) != LG_OK) fail_msg("%s", err.msg);
    rig_poison(be);
    return be;
}

static const uint32_t tok[] = {3, 141, 59, 26, 5, 358, 97, 93, 238, 462, 64, 338};

static lg_sampler greedy(uint32_t n_id) {
    lg_sampler s = {.ids = tok, .n_prompt = n_id, .n_id = n_id};
    s.params.top_p = 1;
    s.params.repetition_penalty = 1;
    s.params.n_top = -1;
    return s;
}

/* Three sequences in one step: the first samples after two logits rows, the second only fills its state, the third samples. */
static void test_a_step_samples_from_the_last_row_of_a_sequence(void **state) {
    (void)state;
    lg_backend *be = open_poisoned();
    lg_sampler s0 = greedy(5), s2 = greedy(3);
    lg_batch_seq seq[3] = {
        {.slot = 2, .n_tok = 5, .tok0 = 0, .page0 = 0, .n_out = 2, .sampler = &s0},
        {.slot = 0, .n_tok = 4, .tok0 = 5, .page0 = 1, .n_out = 0},
        {.slot = 1, .n_tok = 3, .tok0 = 9, .page0 = 2, .n_out = 1, .sampler = &s2}};
    lg_batch batch = {
        .tok = tok, .n_tok = 12, .seq = seq, .n_seq = 3, .page = page, .n_page = 6};
    lg_sampled sampled[3] = {{.id = 9999}, {.id = 9999}, {.id = 9999}};
    lg_step_out out = {.sampled = sampled};
    assert_int_equal(lg_backend_step(be, &batch, &out), LG_OK);
    uint32_t n_vocab = w->cfg.n_vocab, first = sampled[0].id, third = sampled[2].id;
    assert_int_equal(sampled[1].id, 9999);
    assert_false(sampled[0].nonfinite || sampled[2].nonfinite);
    /* The same rows alone, without a sampler. */
    rig_seq alone = {0, 0, page, 1, tok, 5, 1};
    rig_step(be, &alone, 1, &out);
    assert_int_equal(first, rig_argmax(out.logits, n_vocab));
    alone = (rig_seq){0, 0, page, 1, tok + 9, 3, 1};
    rig_step(be, &alone, 1, &out);
    assert_int_equal(third, rig_argmax(out.logits, n_vocab));
    lg_backend_close(&be);
}

static void test_a_row_that_is_not_finite_touches_nobody_else(void **state) {
    (void)state;
    lg_backend *be = open_poisoned();
    uint32_t n_vocab = w->cfg.n_vocab;
    lg_step_out out = {0};
    rig_seq start[2] = {{0, 0, page, 1, tok, 5, 0}, {1, 0, page + 1, 1, tok + 5, 4, 0}};
    rig_step(be, start, 2, &out);
    rig_seq next = {1, 4, page + 1, 1, tok + 9, 1, 1};
    float *want = lg_mem_calloc(n_vocab, sizeof *want);
    assert_non_null(want);
    rig_step(be, &next, 1, &out);
    memcpy(want, out.logits, n_vocab * sizeof *want);
    rig_step(be, start, 2, &out);
    /* Now the first sequence's state breaks. */
    memset(be->slot, 0xff, be->lay.slot * sizeof(float));
    lg_sampler s[2] = {greedy(6), greedy(5)};
    lg_batch_seq seq[2] = {
        {.slot = 0, .pos = 5, .n_tok = 1, .tok0 = 0, .page0 = 0, .n_out = 1, .sampler = &s[0]},
        {.slot = 1, .pos = 4, .n_tok = 1, .tok0 = 1, .page0 = 1, .n_out = 1, .sampler = &s[1]}};
    const uint32_t both[2] = {tok[5], tok[9]};
    lg_batch batch = {
        .tok = both, .n_tok = 2, .seq = seq, .n_seq = 2, .page = page, .n_page = 6};
    lg_sampled sampled[2] = {0};
    out.sampled = sampled;
    assert_int_equal(lg_backend_step(be, &batch, &out), LG_OK);
    assert_true(sampled[0].nonfinite);
    assert_false(sampled[1].nonfinite);
    assert_int_equal(sampled[1].id, rig_argmax(want, n_vocab));
    /* The slot is as good as new for the next sequence. */
    rig_step(be, start, 2, &out);
    rig_step(be, &next, 1, &out);
    assert_memory_equal(out.logits, want, n_vocab * sizeof *want);
    lg_mem_free(want);
    lg_backend_close(&be);
}

/* A sequence taken out as bytes and put back elsewhere goes on with the same bits; what it had not written is zero. */
static void test_pages_and_snapshots_as_bytes(void **state) {
    (void)state;
    lg_backend *be = NULL;
    lg_err err = {0};
    lg_backend_opt opt = options;
    lg_backend_plan plan;
    lg_step_out out = {0};
    opt.n_snap = 2;
    if (lg_backend_open(w, &opt, pool, &be, &err) != LG_OK) fail_msg("%s", err.msg);
    rig_poison(be);
    memset(be->snap, 0xff, 2 * be->lay.slot * sizeof(float));
    lg_backend_plan_bytes(&w->cfg, &opt, 2, &plan);
    assert_int_equal(plan.snap_bytes % plan.n_snap_part, 0);
    size_t part_bytes = (size_t)plan.snap_bytes / plan.n_snap_part, n_vocab = w->cfg.n_vocab;
    uint8_t *bytes = lg_mem_alloc((size_t)plan.page_bytes);
    float *part = lg_mem_alloc(part_bytes), *want = lg_mem_calloc(n_vocab, sizeof *want);
    assert_true(bytes && part && want);
    for (uint32_t n = 1; n <= 64;
         n += n < 3 ? 1 : 29) { /* 1, 2, 3, 32, 61: open rows and none */
        static uint32_t text[65];
        for (uint32_t i = 0; i < 65; i++) text[i] = tok[i % LG_COUNT(tok)] + i / 12;
        rig_seq start = {0, 0, page, 1, text, n, 0}, next = {0, n, page, 1, text + n, 1, 1};
        rig_step(be, &start, 1, &out);
        lg_backend_save(be, 0, 0, n, 1);
        lg_backend_get_page(be, 0, page[0], n, bytes);
        for (size_t i = 0; i < plan.page_bytes / 4; i++)
            assert_true(((const float *)(void *)bytes)[i] == ((const float *)(void *)bytes)[i]);
        lg_backend_put_page(be, 0, page[1], bytes);
        for (uint32_t i = 0; i < plan.n_snap_part; i++) {
            lg_backend_get_snap(be, 0, 1, n, i, part);
            for (size_t k = 0; k < part_bytes / 4; k++) assert_true(part[k] == part[k]);
            lg_backend_put_snap(be, 0, 0, i, part);
        }
        rig_step(be, &next, 1, &out);
        memcpy(want, out.logits, n_vocab * sizeof *want);
        lg_backend_load(be, 0, 2, n, 0);
        rig_seq moved = {2, n, page + 1, 1, text + n, 1, 1};
        rig_step(be, &moved, 1, &out);
        assert_memory_equal(out.logits, want, n_vocab * sizeof *want);
    }
    lg_mem_free(bytes);
    lg_mem_free(part);
    lg_mem_free(want);
    lg_backend_close(&be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_counts_pages_and_slots),
        cmocka_unit_test(test_open_survives_every_failed_allocation),
        cmocka_unit_test(test_open_refuses_empty_sizes),
        cmocka_unit_test(test_a_step_samples_from_the_last_row_of_a_sequence),
        cmocka_unit_test(test_pages_and_snapshots_as_bytes),
        cmocka_unit_test(test_a_row_that_is_not_finite_touches_nobody_else)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
