/* test_place.c - placements: balance, replicas, and what is refused. */
#include "dist/place.h"

#include "base/num.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lg_place must_balance(const lg_place_opt *o) {
    lg_place p;
    lg_err err = {0};
    if (lg_place_balance(&p, o, &err) != LG_OK) fail_msg("%s", err.msg);
    return p;
}

static uint32_t n_held(const lg_place *p, uint32_t rank, uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < p->n_expert; e++) n += lg_place_holds(p, rank, layer, e);
    return n;
}

static void test_even_runs(void **state) {
    (void)state;
    lg_place_opt o = {.n_rank = 4, .n_layer = 2, .n_expert = 512};
    lg_place p = must_balance(&o);
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t e = 0; e < 512; e++) {
            assert_int_equal(lg_place_n_holder(&p, l, e), 1);
            assert_int_equal(lg_place_rank(&p, l, e, e * 7), e / 128);
        }
    lg_place_fini(&p);
    /* 10 experts over 4 ranks: 3, 2, 3, 2 or the like, never more than 3. */
    o = (lg_place_opt){.n_rank = 4, .n_layer = 1, .n_expert = 10};
    p = must_balance(&o);
    for (uint32_t r = 0; r < 4; r++) assert_in_range(n_held(&p, r, 0), 2, 3);
    lg_place_fini(&p);
    /* More ranks than experts: some hold none. */
    o = (lg_place_opt){.n_rank = 7, .n_layer = 1, .n_expert = 3};
    p = must_balance(&o);
    for (uint32_t r = 0; r < 7; r++) assert_in_range(n_held(&p, r, 0), 0, 1);
    lg_place_fini(&p);
}

/* The heaviest rank with a profile of powers: close to the mean with balance, far from it without. */
static void test_balance_by_load(void **state) {
    (void)state;
    float load[64];
    double total = 0, carried[4] = {0}, run[4] = {0};
    for (uint32_t e = 0; e < 64; e++) {
        load[e] = 1000.0f / (float)(e + 1);
        total += (double)load[e];
        run[e / 16] += (double)load[e];
    }
    lg_place_opt o = {.n_rank = 4, .n_layer = 1, .n_expert = 64, .load = load, .n_extra = 4};
    lg_place p = must_balance(&o);
    for (uint32_t e = 0; e < 64; e++)
        for (uint32_t r = 0; r < 4; r++)
            if (lg_place_holds(&p, r, 0, e))
                carried[r] += (double)load[e] / lg_place_n_holder(&p, 0, e);
    double most = 0, most_run = 0;
    for (uint32_t r = 0; r < 4; r++) {
        if (carried[r] > most) most = carried[r];
        if (run[r] > most_run) most_run = run[r];
        assert_true(n_held(&p, r, 0) <= 20);
    }
    assert_true(most < 1.05 * total / 4);
    assert_true(most_run > 2 * total / 4);
    assert_true(lg_place_n_holder(&p, 0, 0) > 1); /* the hottest has replicas */
    assert_int_equal(lg_place_n_holder(&p, 0, 63), 1);
    lg_place_fini(&p);
}

/* Replicas take turns by row, and only holders are chosen. */
static void test_turns(void **state) {
    (void)state;
    const uint32_t n_holder[2] = {3, 1};
    const uint16_t holder[4] = {0, 2, 3, 1};
    lg_place_opt o = {.n_rank = 4, .n_layer = 1, .n_expert = 2};
    lg_place p;
    assert_int_equal(lg_place_set(&p, &o, n_holder, holder, NULL), LG_OK);
    for (uint32_t row = 0; row < 30; row++) {
        assert_int_equal(lg_place_rank(&p, 0, 0, row), holder[row % 3]);
        assert_int_equal(lg_place_rank(&p, 0, 1, row), 1);
    }
    lg_place_fini(&p);
}

static void expect_refused(const lg_place_opt *o, const uint32_t *n_holder,
                           const uint16_t *holder, const char *part) {
    lg_place p;
    lg_err err = {0};
    assert_int_equal(lg_place_set(&p, o, n_holder, holder, &err), LG_E_ARG);
    if (!strstr(err.msg, part)) fail_msg("%s: expected %s", err.msg, part);
}

static void test_refused(void **state) {
    (void)state;
    lg_place_opt o = {.n_rank = 2, .n_layer = 1, .n_expert = 2};
    expect_refused(&o, (uint32_t[]){1, 0}, (uint16_t[]){0}, "expert 1");
    expect_refused(&o, (uint32_t[]){2, 1}, (uint16_t[]){1, 0, 0}, "expert 0");
    expect_refused(&o, (uint32_t[]){2, 1}, (uint16_t[]){0, 0, 0}, "expert 0");
    expect_refused(&o, (uint32_t[]){1, 1}, (uint16_t[]){0, 2}, "expert 1");
    expect_refused(&o, (uint32_t[]){3, 1}, (uint16_t[]){0, 1, 1, 0}, "expert 0");
    o.n_rank = 0;
    expect_refused(&o, (uint32_t[]){1, 1}, (uint16_t[]){0, 0}, "0 ranks");
    float load[2] = {1, -1};
    lg_place p;
    o = (lg_place_opt){.n_rank = 2, .n_layer = 1, .n_expert = 2, .load = load};
    assert_int_equal(lg_place_balance(&p, &o, NULL), LG_E_ARG);
}

static void test_hash(void **state) {
    (void)state;
    lg_place_opt o = {.n_rank = 2, .n_layer = 1, .n_expert = 2};
    static const uint16_t a[] = {0, 1}, b[] = {1, 0};
    lg_place p, q;
    assert_int_equal(lg_place_set(&p, &o, (uint32_t[]){1, 1}, a, NULL), LG_OK);
    assert_int_equal(lg_place_set(&q, &o, (uint32_t[]){1, 1}, b, NULL), LG_OK);
    assert_true(lg_place_hash(&p) != lg_place_hash(&q));
    lg_place_fini(&q);
    assert_int_equal(lg_place_set(&q, &o, (uint32_t[]){1, 1}, a, NULL), LG_OK);
    assert_true(lg_place_hash(&p) == lg_place_hash(&q));
    lg_place_fini(&q);
    lg_place_fini(&p);
}

static void test_verify(void **state) {
    (void)state;
    lg_place_opt o = {.n_rank = 3, .n_layer = 2, .n_expert = 2};
    const uint32_t n_holder[] = {2, 1, 1, 3};
    const uint16_t holder[] = {0, 2, 1, 0, 0, 1, 2};
    const uint64_t good[] = {11, 0, 13, 14, 0, 12, 0, 14, 11, 0, 0, 14};
    lg_place p;
    lg_err err = {0};
    assert_int_equal(lg_place_set(&p, &o, n_holder, holder, NULL), LG_OK);
    assert_int_equal(lg_place_verify(&p, good, &err), LG_OK);
    for (size_t i = 0; i < LG_COUNT(good); i++) {
        uint64_t bad[LG_COUNT(good)];
        memcpy(bad, good, sizeof bad);
        bad[i] ^= 64;
        bool shared = i / 4 != 1 ? i % 4 == 0 || i % 4 == 3 : i % 4 == 3;
        bool placed = good[i] != 0;
        /* A lone holder has nobody to differ from; everything else is noticed. */
        assert_int_equal(lg_place_verify(&p, bad, &err),
                         placed && !shared ? LG_OK : LG_E_FORMAT);
        bad[i] = placed ? 0 : 1;
        assert_int_equal(lg_place_verify(&p, bad, &err), LG_E_FORMAT);
    }
    lg_place_fini(&p);
}

/* Random profiles: always valid, never over capacity. */
static void test_random(void **state) {
    (void)state;
    float load[3 * 40];
    for (uint32_t n = 0; n < 200; n++) {
        uint32_t n_expert = 1 + (uint32_t)(lg_num_rng(n, 0, 0, 0) % 40);
        lg_place_opt o = {.n_rank = 1 + (uint32_t)(lg_num_rng(n, 0, 1, 0) % 9),
                          .n_layer = 3,
                          .n_expert = n_expert,
                          .load = load,
                          .n_extra = (uint32_t)(lg_num_rng(n, 0, 2, 0) % 5)};
        for (uint32_t i = 0; i < 3 * n_expert; i++)
            load[i] = lg_num_rng_unit(n, 1, i, 0) < 0.3f ? 0 : lg_num_rng_unit(n, 2, i, 0);
        lg_place p = must_balance(&o);
        uint32_t share = (n_expert + o.n_rank - 1) / o.n_rank;
        for (uint32_t l = 0; l < 3; l++)
            for (uint32_t r = 0; r < o.n_rank; r++)
                assert_true(n_held(&p, r, l) <= share + o.n_extra);
        lg_place_fini(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_even_runs), cmocka_unit_test(test_balance_by_load),
        cmocka_unit_test(test_turns),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_hash),      cmocka_unit_test(test_verify),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
