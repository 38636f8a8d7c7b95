/* test_plan.c - the planner against published numbers and against arithmetic done by hand. */
#include "base/base.h"
#include "plan/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define NEAR(a, b, rel) assert_true(fabs((a) - (b)) <= (rel)*fabs(b))

static lg_plan_model big(void) {
    lg_plan_model m;
    assert_true(lg_plan_model_named("397b", &m));
    return m;
}

static lg_plan_hw four_chips(void) {
    lg_plan_hw hw;
    assert_int_equal(lg_plan_hw_load("tpu7x:2x2x1", &hw, NULL), LG_OK);
    return hw;
}

static void test_counts_are_the_models(void **state) {
    (void)state;
    lg_plan_model m = big();
    assert_true(lg_plan_gdn_params(&m) == 117964800);
    assert_true(lg_plan_attn_params(&m) == 104857600);
    assert_true(lg_plan_shared_params(&m) == 12587008);
    assert_true(lg_plan_expert_params(&m) == 12582912);
    assert_true(lg_plan_slot_bytes(&m) == 45 * 2170880.0);
    assert_true(lg_plan_token_bytes(&m) == 15360);
    NEAR(lg_plan_touched(&m, 64), 367.0 / 512, 0.002);
    assert_false(lg_plan_model_named("398b", &m));
}

/* The configuration of the bundled model gives the parameters that its file has. */
static void test_a_checkpoint(void **state) {
    (void)state;
    char path[512];
    lg_config c;
    lg_plan_model m;
    lg_err err;
    const char *root = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/models/tiny-qwen35moe", root ? root : ".");
    assert_int_equal(lg_config_load(&c, path, &err), LG_OK);
    lg_plan_model_of(&c, 2, &m);
    assert_true(lg_plan_n_layer(&m) == c.n_layer);
    assert_true(lg_plan_expert_params(&m) == 3.0 * c.n_embd * c.n_ff_expert);
    double key = (double)c.n_k_head * c.d_k, value = (double)c.n_v_head * c.d_v,
           conv = 2 * key + value;
    assert_true(lg_plan_gdn_params(&m) == c.n_embd * (conv + 2 * value + 2.0 * c.n_v_head));
    assert_true(m.b_dense == 2 && m.b_kv == 4);
}

static void test_published_limits(void **state) {
    (void)state;
    lg_plan_anchor a[LG_PLAN_N_ANCHOR];
    lg_plan_anchors(a);
    for (int i = 0; i < LG_PLAN_N_ANCHOR; i++) {
        if (fabs(a[i].found / a[i].expected - 1) <= 0.01) continue;
        fail_msg("%s: %.2f, published %.2f", a[i].what, a[i].found, a[i].expected);
    }
}

static void test_published_measurements(void **state) {
    (void)state;
    lg_plan_point p[64];
    uint32_t n = lg_plan_points(p, 64);
    double sum = 0;
    assert_true(n >= 20);
    for (uint32_t i = 0; i < n; i++) sum += fabs(p[i].predicted / p[i].measured - 1);
    printf("planner: mean error %.1f %% of %u published points\n", 100 * sum / n, n);
    assert_true(sum / n < 0.12);
    assert_int_equal(lg_plan_points(p, 3), 3);
}

/* Copies of a token that leave its device, by devices (10 of 512 experts). */
static void test_copies(void **state) {
    (void)state;
    const double n[] = {2, 4, 8, 16, 32, 64}, want[] = {1.00, 2.84, 5.18, 7.18, 8.50, 9.26};
    lg_plan_model m = big();
    for (size_t i = 0; i < LG_COUNT(n); i++) {
        assert_true(fabs(lg_plan_copies_a2a(&m, n[i]) - want[i]) < 0.006);
        assert_true(lg_plan_copies_gather(n[i]) == n[i] - 1);
    }
    assert_true(lg_plan_copies_a2a(&m, 1024) < 10);
}

static double term(const lg_plan_step *s, const char *name) {
    for (uint32_t i = 0; i < s->n_term; i++)
        if (strcmp(s->term[i].name, name) == 0) return s->term[i].s;
    return 0;
}

/* Times of one prefill step of 8,192 tokens on 8 devices, mean of a layer, in microseconds. */
static void test_prefill_terms(void **state) {
    (void)state;
    lg_plan_model m = big();
    lg_plan_hw hw = four_chips();
    lg_plan_cal cal = lg_plan_cal_ideal();
    const lg_plan_split dp8 = {8, 1, LG_PLAN_GATHER};
    lg_plan_step s;
    lg_plan_prefill(&m, &hw, &dp8, &cal, 8192, 4096, &s);
    const double us = 1e6 / 60;
    NEAR(term(&s, "mixers") * us, (45 * 104.7 + 15 * 93.1) / 60, 0.01);
    NEAR(term(&s, "GDN") * us, 45 * 58.2 / 60, 0.02);
    NEAR(term(&s, "attention") * us, 15 * 119.1 / 60, 0.01);
    NEAR(term(&s, "router") * us, 3.7, 0.02);
    NEAR(term(&s, "experts") * us, 218.5, 0.01);
    NEAR(term(&s, "shared") * us, 11.2, 0.01);
    NEAR(term(&s, "rows moved") * us, 120.7, 0.01);
    NEAR(term(&s, "all-gather") * us, 251.7 + 1.7, 0.01);
    assert_string_equal(lg_plan_longest(&s)->name, "all-gather");
}

/* Many devices: rows go to the experts that want them instead of to all. */
static void test_exchange_follows_the_number_of_devices(void **state) {
    (void)state;
    lg_plan_model m = big();
    lg_plan_hw hw = four_chips();
    lg_plan_cal cal = lg_plan_cal_ideal();
    lg_plan_step s;
    hw.dim[0] = 0; /* full bisection */
    lg_plan_split sp = {4, 1, LG_PLAN_AUTO};
    lg_plan_decode(&m, &hw, &sp, &cal, 256, 1000, &s);
    assert_false(s.a2a);
    sp.n_ep = 64;
    hw.n_chip = 32;
    lg_plan_decode(&m, &hw, &sp, &cal, 2048, 1000, &s);
    assert_true(s.a2a);
    sp.exchange = LG_PLAN_GATHER;
    double a2a = s.s;
    lg_plan_decode(&m, &hw, &sp, &cal, 2048, 1000, &s);
    assert_false(s.a2a);
    assert_true(s.s > a2a);
}

static void test_best_split_fits(void **state) {
    (void)state;
    lg_plan_model m = big();
    lg_plan_cal cal = lg_plan_cal_ideal();
    lg_plan_hw hw;
    lg_plan_result best, other;
    lg_plan_load load = {8192, 1024, 64, 1, 1};
    hw = four_chips();
    lg_plan_best(&m, &hw, &cal, &load, &best);
    assert_true(best.fits);
    for (double tp = 1; tp <= 8; tp *= 2) {
        const lg_plan_split sp = {8, tp, LG_PLAN_AUTO};
        lg_plan_serve(&m, &hw, &sp, &cal, &load, &other);
        assert_true(!other.fits || other.total_per_chip <= best.total_per_chip);
    }
    hw.memory = 1e9; /* nothing fits: the split that needs least */
    lg_plan_best(&m, &hw, &cal, &load, &best);
    assert_false(best.fits);
    /* a whole pod: experts are divided or copied evenly */
    assert_int_equal(lg_plan_hw_load("tpu7x:16x24x24", &hw, NULL), LG_OK);
    assert_true(hw.n_chip == 9216);
    load.concurrency = 500000;
    lg_plan_best(&m, &hw, &cal, &load, &best);
    assert_true(best.fits &&
                (fmod(512, best.split.n_ep) == 0 || fmod(best.split.n_ep, 512) == 0));
}

static lg_status load_text(const char *text, lg_plan_hw *hw, lg_err *err) {
    char path[] = "/tmp/lignum-plan-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    lg_status st = lg_plan_hw_load(path, hw, err);
    unlink(path);
    return st;
}

#define NODE                                                                                   \
    "\"weight_gops\":1,\"f16_gops\":1,\"f32_gops\":1,\"memory_gb_s\":200,\"memory_gib\":64"

static void test_hardware_files(void **state) {
    (void)state;
    lg_plan_hw hw;
    lg_err err;
    const char *wrong[] = {"tpu7x:2x2", "tpu7x:0x1x1", "tpu7x:2x2x1x",
                           "tpu7x:", "/nowhere.json"};
    for (size_t i = 0; i < LG_COUNT(wrong); i++)
        assert_int_not_equal(lg_plan_hw_load(wrong[i], &hw, &err), LG_OK);
    assert_int_equal(load_text("{\"nodes\":3," NODE ",\"latency_us\":5}", &hw, &err), LG_OK);
    assert_true(hw.n_chip == 3 && hw.n_dev == 1 && hw.bandwidth == 200e9 &&
                fabs(hw.latency - 5e-6) < 1e-12);
    const struct {
        const char *text, *says;
    } bad[] = {{"[]", "object"},
               {"{" NODE ",\"colour\":1}", "colour"},
               {"{\"weight_gops\":1}", "f16_gops is missing"},
               {"{" NODE ",\"nodes\":0}", "nodes: expected"},
               {"{" NODE ",\"nodes\":\"3\"}", "nodes: expected"},
               {"{" NODE, "JSON"}};
    for (size_t i = 0; i < LG_COUNT(bad) - 1; i++) {
        assert_int_equal(load_text(bad[i].text, &hw, &err), LG_E_FORMAT);
        if (!strstr(err.msg, bad[i].says)) fail_msg("%s: %s", bad[i].text, err.msg);
    }
    assert_int_not_equal(load_text(bad[LG_COUNT(bad) - 1].text, &hw, &err), LG_OK);
}

static void test_plot(void **state) {
    (void)state;
    const double x[] = {4, 8, 16}, y[] = {10, 40, 35};
    const lg_plan_curve c[] = {{"a < b", x, y, 3}, {"none", x, y, 0}};
    lg_buf b = {0};
    lg_plan_svg(&b, "title", "x", "y", c, 2);
    const char *s = lg_buf_str(&b);
    assert_non_null(strstr(s, "<svg "));
    assert_non_null(strstr(s, "a &lt; b"));
    assert_non_null(strstr(s, "</svg>\n"));
    assert_null(strstr(s, "nan"));
    lg_buf_clear(&b);
    lg_plan_svg(&b, "nothing", "x", "y", c + 1, 1);
    assert_int_equal(b.len_bytes, 0);
    lg_buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_are_the_models),
        cmocka_unit_test(test_a_checkpoint),
        cmocka_unit_test(test_published_limits),
        cmocka_unit_test(test_published_measurements),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_prefill_terms),
        cmocka_unit_test(test_exchange_follows_the_number_of_devices),
        cmocka_unit_test(test_best_split_fits),
        cmocka_unit_test(test_hardware_files),
        cmocka_unit_test(test_plot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
