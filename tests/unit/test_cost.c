/* test_cost.c - the model of step times: it finds the numbers behind made-up steps, follows a machine that changes, and
 * keeps what it knows of prompts while none come. */
#include "engine/cost.h"
#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

typedef struct machine {
    double weight[LG_COST_N]; /* as lg_cost.weight */
    double spared, noise;     /* share of its time by which a step differs */
} machine;

static const machine dense = {{900, 0, 60, 40, 12, 9}, 0, 0};
static const machine sparse = {{2000, 30000, 100, 220, 12, 9}, 1 - 8.0 / 256, 0};

/* A number in [0, 1). */
static double dice(uint64_t i, uint32_t what) {
    return (double)(lg_num_rng(3, what, i, 0) >> 11) * 0x1p-53;
}

static lg_cost_load any_load(uint64_t i, bool prompts) {
    lg_cost_load l = {.decode = (double)(uint32_t)(dice(i, 0) * 33)};
    l.read = l.seen = l.decode * dice(i, 1) * 4000;
    if (prompts) l.prefill = 1 + (double)(uint32_t)(dice(i, 2) * 500);
    if (l.decode + l.prefill == 0) l.decode = 1;
    double depth = dice(i, 3) * 8000;
    if (l.prefill > 0) l.read += depth;
    l.seen += l.prefill * (depth + l.prefill / 2);
    return l;
}

static double real_us(const machine *m, const lg_cost_load *l, uint64_t i) {
    const double x[] = {1,
                        m->spared > 0 ? 1 - pow(m->spared, l->decode + l->prefill) : 0,
                        l->decode,
                        l->prefill,
                        l->read / 1024,
                        l->seen / 1024};
    double us = 0;
    for (uint32_t k = 0; k < LG_COST_N; k++) us += m->weight[k] * x[k];
    return us * (1 + m->noise * (2 * dice(i, 9) - 1));
}

static void learn(lg_cost *c, const machine *m, uint64_t from, uint64_t n, bool prompts) {
    for (uint64_t i = from; i < from + n; i++) {
        lg_cost_load l = any_load(i, prompts && i % 2);
        lg_cost_learn(c, &l, real_us(m, &l, i));
    }
}

/* Largest relative error over loads never seen. */
static double worst(const lg_cost *c, const machine *m) {
    machine quiet = *m;
    quiet.noise = 0;
    double most = 0;
    for (uint64_t i = 100000; i < 100500; i++) {
        lg_cost_load l = any_load(i, i % 2);
        double us = real_us(&quiet, &l, i), off = fabs(lg_cost_step_us(c, &l) - us) / us;
        if (off > most) most = off;
    }
    return most;
}

static lg_cost fresh(const machine *m) {
    lg_cost c;
    bool moe = m->spared > 0;
    lg_cost_init(&c, moe ? 256 : 0, moe ? 8 : 0, 100);
    return c;
}

static void test_finds_the_numbers_behind_the_steps(void **state) {
    (void)state;
    const machine *all[] = {&dense, &sparse};
    for (uint32_t k = 0; k < 2; k++) {
        lg_cost c = fresh(all[k]);
        lg_cost_load l = any_load(1, true);
        assert_true(lg_cost_step_us(&c, &l) == 0);
        learn(&c, all[k], 0, 300, true);
        assert_true(worst(&c, all[k]) < 0.02);
        double us = lg_cost_tokens_us(&c, 1000, 100);
        double want = 100 * all[k]->weight[3] + 100 * 1050 / 1024.0 * all[k]->weight[5];
        assert_true(fabs(us - want) < 0.05 * want);
    }
}

static void test_noise_is_averaged_and_widens_the_margin(void **state) {
    (void)state;
    machine m = dense;
    m.noise = 0.2;
    lg_cost c = fresh(&m);
    learn(&c, &m, 0, 3000, true);
    assert_true(worst(&c, &m) < 0.2);
    /* Late are a few in a hundred of the steps with both. */
    uint32_t n = 0, late = 0;
    for (uint64_t i = 3001; i < 9000; i += 2) {
        lg_cost_load l = any_load(i, true);
        double us = real_us(&m, &l, i);
        n += l.decode > 0;
        late += l.decode > 0 && us > lg_cost_step_us(&c, &l) * c.margin;
        lg_cost_learn(&c, &l, us);
    }
    assert_in_range(late, n / 100, n / 12);
    assert_true(c.margin > 1.1 && c.margin < 1.3);
}

static void test_follows_a_machine_that_changes(void **state) {
    (void)state;
    machine slow = dense;
    for (uint32_t k = 0; k < LG_COST_N; k++) slow.weight[k] *= 2;
    lg_cost c = fresh(&dense);
    learn(&c, &dense, 0, 1000, true);
    learn(&c, &slow, 1000, 600, true);
    assert_true(worst(&c, &slow) < 0.05);
    learn(&c, &dense, 1600, 1000, true);
    assert_true(worst(&c, &dense) < 0.05);
}

/* Other work on the machine comes: a dozen steps later it is known, long before the fit follows; and goes. */
static void test_the_last_steps_tell_the_pace(void **state) {
    (void)state;
    machine slow = dense;
    for (uint32_t k = 0; k < LG_COST_N; k++) slow.weight[k] *= 1.4;
    lg_cost c = fresh(&dense);
    learn(&c, &dense, 0, 1000, true);
    learn(&c, &slow, 1000, 12, true);
    assert_true(worst(&c, &slow) < 0.06);
    learn(&c, &dense, 1012, 12, true);
    assert_true(worst(&c, &dense) < 0.06);
    /* One accident says little. */
    lg_cost_load l = any_load(1, true);
    lg_cost_learn(&c, &l, 50 * real_us(&dense, &l, 1));
    assert_true(c.pace < 1.2);
}

static void test_belief_in_wide_steps_fades(void **state) {
    (void)state;
    lg_cost c = fresh(&dense);
    lg_cost_load wide = {.decode = 4, .prefill = 500}, narrow = {.decode = 4, .prefill = 4},
                 none = {.decode = 4};
    lg_cost_learn(&c, &wide, 30000);
    assert_true(c.widest == 500);
    for (uint32_t i = 0; i < 20; i++) lg_cost_learn(&c, &narrow, 1500);
    assert_true(c.widest > 250);
    for (uint32_t i = 0; i < 1000; i++) lg_cost_learn(&c, &none, 1000);
    assert_true(c.widest > 250);
    for (uint32_t i = 0; i < 200; i++) lg_cost_learn(&c, &narrow, 1500);
    assert_true(c.widest == 4);
}

/* A step of one prompt row, as after a restart that reads all but the last token from files, says nothing of 700. */
static void test_few_rows_do_not_tell_what_a_prompt_costs(void **state) {
    (void)state;
    lg_cost c = fresh(&dense);
    lg_cost_load one = {.prefill = 1}, ten = {.prefill = 10}, wide = {.prefill = 300},
                 answer = {.decode = 1};
    assert_false(lg_cost_knows_prompts(&c, 1));
    lg_cost_learn(&c, &one, 900);
    for (uint32_t i = 0; i < 24; i++) lg_cost_learn(&c, &answer, 1000);
    assert_true(lg_cost_knows_prompts(&c, 2));
    assert_false(lg_cost_knows_prompts(&c, 3));
    lg_cost_learn(&c, &ten, 1400);
    assert_true(lg_cost_knows_prompts(&c, 20));
    assert_false(lg_cost_knows_prompts(&c, 700));
    lg_cost_learn(&c, &wide, 9000);
    assert_true(lg_cost_knows_prompts(&c, 700));
    assert_true(lg_cost_knows_prompts(&c, 100000));
}

static void test_an_hour_of_answers_keeps_what_is_known_of_prompts(void **state) {
    (void)state;
    lg_cost c = fresh(&sparse);
    learn(&c, &sparse, 0, 300, true);
    double before = worst(&c, &sparse);
    learn(&c, &sparse, 300, 100000, false);
    assert_true(worst(&c, &sparse) < before + 0.02);
}

/* Loads that never vary do not tell the weights apart; nothing becomes negative or absurd. */
static void test_poor_evidence_does_no_harm(void **state) {
    (void)state;
    lg_cost c = fresh(&dense);
    lg_cost_load same = {.decode = 4, .prefill = 512, .read = 1900, .seen = 9e5};
    for (uint32_t i = 0; i < 500; i++) lg_cost_learn(&c, &same, 30000 + 100 * (i % 3));
    assert_true(fabs(lg_cost_step_us(&c, &same) - 30100) < 300);
    for (uint32_t k = 0; k < LG_COST_N; k++) assert_true(c.weight[k] >= 0);
    lg_cost_load half = {.decode = 4, .prefill = 256, .read = 1900, .seen = 4e5};
    double us = lg_cost_step_us(&c, &half);
    assert_true(us > 0 && us <= 30100);
    lg_cost_learn(&c, &same, 0); /* a clock that stands still */
    assert_true(isfinite(lg_cost_step_us(&c, &half)));
}

/* Deep in a prompt one row costs what reading takes, the next ones little more: after many steps of one row that is still known,
 * so that several run as soon as there is room for them. */
static void test_rows_share_what_is_read(void **state) {
    (void)state;
    machine deep = {{400, 0, 5, 40, 14, 10}, 0, 0};
    lg_cost c = fresh(&deep);
    for (uint64_t i = 0; i < 60; i++) { /* wide steps, as without a bound */
        lg_cost_load l = {
            .decode = 4, .prefill = 400 + (double)(i % 3), .read = 61000 + 300 * (double)i};
        l.seen = 1200 + l.prefill * l.read;
        lg_cost_learn(&c, &l, real_us(&deep, &l, i));
        lg_cost_load none = {.decode = 4, .read = 1200, .seen = 1200};
        lg_cost_learn(&c, &none, real_us(&deep, &none, i));
    }
    for (uint64_t i = 0; i < 2000; i++) {
        lg_cost_load l = {.decode = 4, .prefill = 1, .read = 64000, .seen = 65200};
        lg_cost_learn(&c, &l, real_us(&deep, &l, i));
    }
    lg_cost_load four = {.decode = 4, .prefill = 4, .read = 64000, .seen = 1200 + 4 * 64000};
    double want = real_us(&deep, &four, 0), got = lg_cost_step_us(&c, &four);
    assert_true(fabs(got - want) < 0.1 * want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_the_numbers_behind_the_steps),
        cmocka_unit_test(test_noise_is_averaged_and_widens_the_margin),
        cmocka_unit_test(test_follows_a_machine_that_changes),
        cmocka_unit_test(test_the_last_steps_tell_the_pace),
        cmocka_unit_test(test_belief_in_wide_steps_fades),
        cmocka_unit_test(test_few_rows_do_not_tell_what_a_prompt_costs),
        cmocka_unit_test(test_an_hour_of_answers_keeps_what_is_known_of_prompts),
        cmocka_unit_test(test_poor_evidence_does_no_harm),
        cmocka_unit_test(test_rows_share_what_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
