/* test_pjrt_scales.c - FP8 experts with scales of channels and of groups of inputs, from files to programs on XLA's CPU plugin; and
 * experts that are rounded to FP8 when they are loaded.
 *
 * The reference is the CPU backend's exact mode on a folder that plain code has quantised (quant_folder.c): it reads the same
 * numbers, which test_quant compares with floats by bits. */
#include "backend/pjrt/be.h"
#include "pjrt_rig.h"
#include "rig.h"
#include "scales_folder.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_ROW 70

static const uint32_t page[2] = {1, 0};

static lg_weights *weights_of(const char *path) {
    lg_weights *w = NULL;
    lg_err err = {0};
    if (lg_weights_open(path, NULL, NULL, NULL, &w, &err) != LG_OK) fail_msg("%s", err.msg);
    return w;
}

static void text_of(const lg_weights *w, uint32_t tok[N_ROW]) {
    for (uint32_t i = 0; i < N_ROW; i++) tok[i] = (i * 131 + 7) % w->cfg.n_vocab;
}

static lg_backend_opt opt_of(const lg_weights *w) {
    return (lg_backend_opt){.n_slot = 1,
                            .n_ctx = 128,
                            .n_page = 2,
                            .max_tok = N_ROW,
                            .max_seq = 1,
                            .max_out = N_ROW,
                            .n_sample_vocab = w->cfg.n_vocab,
                            .kv = LG_F32};
}

static void reference(const lg_weights *w, float *to) {
    lg_backend *be = NULL;
    lg_err err = {0};
    lg_pool *pool = NULL;
    lg_backend_opt opt = opt_of(w);
    uint32_t tok[N_ROW];
    opt.exact = true;
    if (lg_pool_open(2, &pool, &err) != LG_OK ||
        lg_backend_open(w, &opt, pool, &be, &err) != LG_OK)
        fail_msg("%s", err.msg);
    text_of(w, tok);
    rig_seq seq = {0, 0, page, 2, tok, N_ROW, N_ROW};
    lg_step_out out = {0};
    rig_step(be, &seq, 1, &out);
    for (size_t r = 0; r < N_ROW; r++)
        memcpy(to + r * w->cfg.n_vocab, out.logits + r * out.ld_logits,
               w->cfg.n_vocab * sizeof *to);
    lg_backend_close(&be);
    lg_pool_close(&pool);
}

/* The model as a device has it. */
typedef struct kept {
    lg_pjrt_type expert;
    uint32_t scale_in;
    bool rounded;
} kept;

static kept on_device(const lg_weights *w, const char *more, float *to) {
    lg_pjrt_device *device = NULL;
    lg_backend *be = NULL;
    lg_err err = {0};
    lg_buf spec = {0};
    const char *build = getenv("LG_BUILD_DIR");
    const lg_backend_ops *ops = lg_backend_pjrt();
    lg_backend_opt opt = opt_of(w);
    uint32_t tok[N_ROW];
    lg_buf_printf(&spec, "pjrt:%s,weights=f32,programs=%s/pjrt-programs,%s",
                  pjrt_rig_path("cpu"), build ? build : "build", more);
    if (lg_pjrt_device_open(lg_buf_str(&spec), &device, &err) != LG_OK) fail_msg("%s", err.msg);
    lg_buf_fini(&spec);
    opt.device = device;
    if (ops->open(w, &opt, NULL, &be, &err) != LG_OK) fail_msg("%s", err.msg);
    text_of(w, tok);
    const lg_batch_seq seq = {.n_tok = N_ROW, .n_out = N_ROW};
    const lg_batch batch = {
        .tok = tok, .n_tok = N_ROW, .seq = &seq, .n_seq = 1, .page = page, .n_page = 2};
    lg_step_out out = {0};
    assert_int_equal(ops->step(be, &batch, &out), LG_OK);
    memcpy(to, out.logits, (size_t)N_ROW * w->cfg.n_vocab * sizeof *to);
    kept k = {lg_pjrt_be_of(be)->model.expert, lg_pjrt_be_of(be)->model.scale_in,
              lg_pjrt_be_of(be)->round_experts};
    ops->close(&be);
    lg_pjrt_device_close(&device);
    return k;
}

/* `path` on a device against the CPU backend on `same`. */
static kept check(const char *path, const char *same, const char *more, double most,
                  double most_kl) {
    lg_weights *w = weights_of(path), *r = weights_of(same);
    size_t n = (size_t)N_ROW * w->cfg.n_vocab;
    float *want = lg_mem_calloc(n, sizeof *want), *got = lg_mem_calloc(n, sizeof *got);
    uint32_t best, v = w->cfg.n_vocab;
    assert_true(want && got);
    reference(r, want);
    kept k = on_device(w, more, got);
    double d = rig_max_diff(want, got, n), kl = rig_mean_kl(want, v, got, v, N_ROW, v, &best);
    printf("  %-44s logits within %.1e, mean divergence %.1e\n", more, d, kl);
    assert_true(d <= most && kl <= most_kl);
    lg_mem_free(want);
    lg_mem_free(got);
    lg_weights_close(&w);
    lg_weights_close(&r);
    return k;
}

#define NEEDS_PLUGIN                                                                           \
    if (!pjrt_rig_path("cpu")) {                                                               \
        printf("XLA's CPU plugin is not there (make check-pjrt fetches it)\n");                \
        skip();                                                                                \
    }

static void same_kept(kept k, uint32_t scale_in, bool rounded) {
    assert_int_equal(k.expert, LG_PJRT_F8E4M3FN);
    assert_int_equal(k.scale_in, scale_in);
    assert_int_equal(k.rounded, rounded);
}

/* Files' scales: as they are, in both forms of the programs, on two devices; and widened. */
static void test_files(void **state) {
    (void)state;
    NEEDS_PLUGIN
    static const uint32_t group[2] = {0, 128};
    for (int i = 0; i < 2; i++) {
        lg_fixture f;
        uint32_t in = group[i] ? group[i] : 256;
        scales_folder(&f, group[i], LG_BF16);
        printf("  a scale for %u inputs of a channel\n", in);
        same_kept(check(f.path, f.path, "experts=fp8", 1e-3, 1e-6), in, false);
        same_kept(check(f.path, f.path, "experts=fp8,kernels=twin", 1e-3, 1e-6), in, false);
        same_kept(check(f.path, f.path, "devices=2,cpu_device_count=2", 1e-3, 1e-6), in, false);
        kept k = check(f.path, f.path, "experts=wide", 1e-3, 1e-6);
        assert_true((int)k.expert == 0);
        lg_fixture_fini(&f);
    }
}

/* Rounded at load: BF16 experts, and FP8 ones of 128 x 128 blocks, to what plain code makes of the same numbers. */
static void test_rounded(void **state) {
    (void)state;
    NEEDS_PLUGIN
    lg_fixture f, g, h;
    char plain[512];
    lg_fixture_source(SCALES_SOURCE, plain, sizeof plain);
    scales_folder(&f, 128, LG_F32);
    scales_folder(&g, 0, LG_F32);
    same_kept(check(plain, f.path, "experts=fp8s128", 1e-3, 1e-6), 128, true);
    same_kept(check(plain, f.path, "experts=fp8s128,kernels=twin", 1e-3, 1e-6), 128, true);
    same_kept(check(plain, g.path, "experts=fp8s512", 1e-3, 1e-6), 512, true);
    /* What has such scales is not rounded again; another number of inputs is. */
    same_kept(check(f.path, f.path, "experts=fp8s128", 1e-3, 1e-6), 128, false);
    /* From FP8 to other scales: a second rounding, which shows and is small. */
    scales_folder(&h, SCALES_BLOCKS, LG_BF16);
    same_kept(check(f.path, f.path, "experts=fp8s256", 0.5, 1e-3), 256, true);
    same_kept(check(h.path, h.path, "experts=fp8s512", 0.5, 1e-3), 512, true);
    lg_fixture_fini(&f);
    lg_fixture_fini(&g);
    lg_fixture_fini(&h);
}

/* Rows of FP8: twins multiply them by FP8 weights as they are, the plain form as floats; the numbers are the same.  Where a hidden
 * value falls between two E4M3 numbers another order of sums may round it the other way. */
static void test_rows_of_fp8(void **state) {
    (void)state;
    NEEDS_PLUGIN
    static const char *const how[4] = {"experts=fp8", "act=fp8", "act=fp8,kernels=twin",
                                       "act=fp8,kernels=twin,devices=2,cpu_device_count=2"};
    for (int i = 0; i < 3; i++) {
        /* Scales of a channel, of 128 inputs, of 128 x 128 weights. */
        lg_fixture f;
        char blocks[512];
        lg_fixture_source("tests/data/models/tiny-moe-fp8", blocks, sizeof blocks);
        scales_folder(&f, i ? 128 : 0, LG_BF16);
        lg_weights *w = weights_of(i < 2 ? f.path : blocks);
        uint32_t best, v = w->cfg.n_vocab;
        size_t n = (size_t)N_ROW * v;
        float *got[4];
        for (int k = 0; k < 4; k++) {
            assert_non_null(got[k] = lg_mem_calloc(n, sizeof **got));
            kept is = on_device(w, how[k], got[k]);
            assert_true(is.expert == LG_PJRT_F8E4M3FN && !is.rounded);
        }
        double seen = rig_mean_kl(got[0], v, got[1], v, N_ROW, v, &best);
        printf("  scales of kind %d: rows of FP8 cost %.1e nats", i, seen);
        assert_true(seen > 1e-8 &&
                    seen < (i < 2 ? 0.003 : 0.2)); /* the last is a random model */
        for (int k = 2; k < 4; k++) {
            double d = rig_max_diff(got[1], got[k], n),
                   kl = rig_mean_kl(got[1], v, got[k], v, N_ROW, v, &best);
            printf("; %s: within %.1e, %.1e nats", how[k] + 8, d, kl);
            assert_true(kl < seen / 50);
        }
        printf("\n");
        for (int k = 0; k < 4; k++) lg_mem_free(got[k]);
        lg_weights_close(&w);
        lg_fixture_fini(&f);
    }
}

int main(void) {
    /* What compiles fast is enough here. */
    setenv("XLA_FLAGS", "--xla_backend_optimization_level=0", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_rounded),
                                       cmocka_unit_test(test_rows_of_fp8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
