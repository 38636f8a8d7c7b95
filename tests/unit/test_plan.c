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
    assert_true(m.b_dense == 2 && m.b_kv == 2);
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

/* ---- one step of the CPU backend ---- */

/* Two layers, one of each kind, with weights whose sums are easy. */
static lg_plan_cpu small_cpu(void) {
    lg_plan_cpu c = {.m = {.hidden = 10,
                           .n_gdn = 1,
                           .n_attn = 1,
                           .n_head = 4,
                           .n_kv_head = 2,
                           .d_head = 8,
                           .n_k_head = 1,
                           .n_v_head = 2,
                           .d_k = 4,
                           .d_v = 4,
                           .n_expert = 8,
                           .n_used = 2,
                           .n_vocab = 100,
                           .b_act = 4,
                           .b_kv = 2,
                           .b_state = 4,
                           .state_moves = 1.5,
                           .chunk = 32}};
    c.mix_in = (lg_plan_weights){1000, 100, 900, "a"};
    c.mix_out = (lg_plan_weights){500, 0, 250, "a"};
    c.route = (lg_plan_weights){0, 200, 800, "b"};
    c.shared_down = (lg_plan_weights){40, 0, 20, "a"};
    c.mlp = (lg_plan_weights){8000, 800, 4000, "a"};
    c.head = (lg_plan_weights){0, 1000, 2000, "b"};
    return c;
}

static void check_term(const lg_plan_term *t, double bytes, double macs, double s, char limit) {
    if (fabs(t->bytes - bytes) < 1e-9 && fabs(t->ops - 2 * macs) < 1e-9 &&
        fabs(t->s - s) < 1e-9 * s && t->limit == limit)
        return;
    fail_msg("%s: %g bytes, %g macs, %g s, %c; expected %g, %g, %g, %c", t->name, t->bytes,
             t->ops / 2, t->s, t->limit, bytes, macs, s, limit);
}

/* 100 bytes, 2,000 integer and 500 float products a second. */
static void test_cpu_step(void **state) {
    (void)state;
    lg_plan_cpu c = small_cpu();
    lg_plan_hw hw;
    lg_plan_step s;
    lg_plan_hw_node("here", 100, 2000, 500, 1e9, &hw);
    lg_plan_batch b = {.touched = 0.25};
    lg_plan_batch_add(&b, 1, 9, true);
    assert_true(b.n_row == 1 && b.n_one == 1 && b.seen == 10 && b.read == 10);
    lg_plan_cpu_step(&c, &hw, &b, &s);
    /* state: 2 heads of 4 x 4 floats, 1.5 times; 3 rows of 16 channels there and back */
    double moved = 2 * 16 * 4 * 1.5 + 2 * 3 * 16 * 4;
    check_term(&s.term[0], 900, 1100, 9, 'm');
    check_term(&s.term[1], moved, 3 * 16 * 2, moved / 100, 'm');
    check_term(&s.term[2], 10 * 2 * 2 * 8 * 2, 2 * 10 * 4 * 8, 6.4, 'm');
    check_term(&s.term[3], 250, 500, 2.5, 'm');
    check_term(&s.term[4], 800, 200, 8, 'm');
    check_term(&s.term[5], 0.25 * 4000 + 20, 8800 / 4.0 + 40, 10.2, 'm');
    check_term(&s.term[6], 2000, 1000, 20, 'm');
    check_term(&s.term[7], 400, 0, 4, 'm');
    double sum = 0;
    for (uint32_t i = 0; i < LG_PLAN_N_CPU; i++) sum += s.term[i].s;
    assert_true(s.n_term == LG_PLAN_N_CPU && s.s == sum);
    /* 64 more rows: products are the limit, integers and floats one after the other; no more output rows */
    lg_plan_batch_add(&b, 64, 100, false);
    assert_true(b.n_seq == 2 && b.n_one == 1 && b.read == 174 && b.seen == 10 + 6400 + 2080);
    b.touched = 1;
    lg_plan_cpu_step(&c, &hw, &b, &s);
    check_term(&s.term[0], 900, 65 * 1100, 65 * (1000 / 2000.0 + 100 / 500.0), 'c');
    double chunk =
        32 * (4 * 4 + 2 * 8 + 4) / 2.0; /* of a head and row, beside the state's 48 */
    double gdn = 3 * 16 * 2 + 64 * 2 * (48 + chunk);
    check_term(&s.term[1], moved + 2 * (2 * 16 * 4 + 3 * 16 * 4), gdn, gdn / 500, 'c');
    check_term(&s.term[2], 174 * 64, 2 * b.seen * 32, 2 * b.seen * 32 / 500, 'c');
    double rows = 65 * 2 / 8.0;
    check_term(&s.term[5], 4020, rows * 8800 + 65 * 40,
               rows * (8000 / 2000.0 + 800 / 500.0) + 65 * 40 / 2000.0, 'c');
    check_term(&s.term[6], 2000, 1000, 20, 'm');
}

/* The same bytes and products as the planner's decode step on one device. */
static void test_cpu_step_is_the_planners(void **state) {
    (void)state;
    char path[512];
    lg_weights *w;
    lg_err err = {0};
    const char *root = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/models/tiny-qwen35moe", root ? root : ".");
    assert_int_equal(lg_weights_check(path, &w, &err), LG_OK);
    lg_plan_cpu c;
    lg_plan_cpu_of(w, false, 2, &c);
    assert_string_equal(c.mlp.types, "BF16");
    assert_true(c.m.b_dense == 2 && c.m.b_expert == 2 && c.m.b_head == 2);
    lg_plan_hw hw;
    lg_plan_step cpu, dev;
    lg_plan_hw_node("here", 1e10, 1e12, 1e11, 1e10, &hw);
    lg_plan_batch b = {.touched = -1};
    for (int i = 0; i < 5; i++) lg_plan_batch_add(&b, 1, 1000, true);
    lg_plan_cpu_step(&c, &hw, &b, &cpu);
    const lg_plan_split alone = {1, 1, LG_PLAN_AUTO};
    const lg_plan_cal ideal = lg_plan_cal_ideal();
    lg_plan_decode(&c.m, &hw, &alone, &ideal, 5, 1001, &dev);
    double bytes[2] = {0}, ops[2] = {0};
    for (uint32_t i = 0; i < 7; i++) /* the planner has no sampling */
        bytes[0] += cpu.term[i].bytes, ops[0] += cpu.term[i].ops;
    for (uint32_t i = 0; i < dev.n_term; i++)
        bytes[1] += dev.term[i].bytes, ops[1] += dev.term[i].ops;
    const lg_config *g = &w->cfg;
    /* The gate of the shared expert is a vector, not a product of its own, in the backend. */
    double gate = (double)g->n_layer * g->n_embd;
    NEAR(bytes[0] + 2 * gate, bytes[1], 1e-9);
    NEAR(ops[0] + 5 * 2 * gate, ops[1], 1e-9);
    lg_weights_close(&w);
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

/* A file that is written is the hardware that is read. */
static void test_hardware_is_written(void **state) {
    (void)state;
    lg_plan_hw hw, back;
    lg_err err;
    lg_buf b = {0};
    lg_plan_hw_node("a \"node\"", 23.6e9, 3834.5e9, 124.25e9, 23e9, &hw);
    lg_plan_hw_write(&hw, &b);
    assert_int_equal(load_text(lg_buf_str(&b), &back, &err), LG_OK);
    assert_string_equal(back.name, "a \"node\"");
    assert_true(back.n_chip == 1 && back.n_dev == 1 && back.n_link == 1);
    NEAR(back.bandwidth, 23.6e9, 1e-4);
    NEAR(back.ops_weight, 2 * 3834.5e9, 1e-4);
    NEAR(back.ops_32, 2 * 124.25e9, 1e-4);
    NEAR(back.ops_16, 2 * 124.25e9, 1e-4);
    NEAR(back.memory, 23e9, 1e-4);
    NEAR(back.link, hw.link, 1e-4);
    NEAR(back.latency, hw.latency, 1e-4);
    lg_buf_fini(&b);
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
        cmocka_unit_test(test_cpu_step),
        cmocka_unit_test(test_cpu_step_is_the_planners),
        cmocka_unit_test(test_hardware_is_written),
        cmocka_unit_test(test_exchange_follows_the_number_of_devices),
        cmocka_unit_test(test_best_split_fits),
        cmocka_unit_test(test_hardware_files),
        cmocka_unit_test(test_plot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
