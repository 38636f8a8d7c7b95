/* test_step_types.c - the step's programs on XLA's CPU plugin with narrow types, on several devices, and with twins of
 * our kernels; against the CPU backend where there is no reference file. */
#include "scales_folder.h"
#include "step_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static step_case one;

/* ---- against the CPU backend ---- */

#define N_TEXT 192

/* A text of the model's own: the likeliest id after each, from `first` on; logits of every row [N_TEXT][n_vocab]. */
static void own_text(const lg_weights *w, uint32_t first, uint32_t *ids, float *logits) {
    lg_err err = {0};
    lg_backend *be = NULL;
    uint32_t n_vocab = w->cfg.n_vocab;
    lg_backend_opt opt = {.n_slot = 1,
                          .n_page = 6,
                          .max_tok = 1,
                          .max_seq = 1,
                          .max_out = 1,
                          .n_sample_vocab = n_vocab,
                          .exact = true};
    if (lg_backend_open(w, &opt, case_pool, &be, &err) != LG_OK) fail_msg("%s", err.msg);
    static const uint32_t page[6] = {0, 1, 2, 3, 4, 5};
    ids[0] = first;
    for (uint32_t i = 0; i < N_TEXT; i++) {
        rig_seq seq = {0, i, page, 6, ids + i, 1, 1};
        lg_step_out out = {0};
        rig_step(be, &seq, 1, &out);
        memcpy(logits + (size_t)i * n_vocab, out.logits, n_vocab * sizeof *logits);
        /* Not always the best, so that the text does not run in a circle. */
        uint32_t best = rig_argmax(out.logits, n_vocab);
        if (i + 1 < N_TEXT) ids[i + 1] = i % 7 == 6 ? (best + i) % (n_vocab / 2) : best;
    }
    lg_backend_close(&be);
}

typedef struct likeness {
    double kl, worst;
    uint32_t same;
} likeness;

static likeness against_cpu(const char *path, lg_pjrt_model how, uint32_t first) {
    char full[1100];
    lg_err err = {0};
    likeness l;
    memset(&one, 0, sizeof one);
    one.name = path;
    if (path[0] == '/')
        snprintf(full, sizeof full, "%s", path);
    else
        snprintf(full, sizeof full, "%s/%s", getenv("LG_SOURCE_DIR"), path);
    if (lg_weights_open(full, case_pool, NULL, NULL, &one.w, &err) != LG_OK)
        fail_msg("%s", err.msg);
    uint32_t n_vocab = one.w->cfg.n_vocab, ids[N_TEXT];
    how.n_sample_vocab = n_vocab;
    if (case_use_twins) case_twins(&how, &one.w->cfg);
    step_rig_open(&one.rig, case_client, one.w, &how);
    float *want = lg_mem_calloc((size_t)N_TEXT * n_vocab, sizeof *want);
    assert_non_null(want);
    own_text(one.w, first, ids, want);
    lg_pjrt_bucket b = {
        .n_many = 1, .n_row = N_TEXT, .n_page = 6, .n_out = N_TEXT, .logits = true};
    step_rig_seq seq = case_rows(0, 0, ids, N_TEXT, N_TEXT);
    step_rig_batch batch[8];
    assert_true(how.n_device <= 8);
    for (uint32_t d = 0; d < how.n_device; d++) batch[d] = (step_rig_batch){&seq, 1, 0};
    step_rig_step(&one.rig, &b, batch, false);
    l.kl = rig_mean_kl(want, n_vocab, one.rig.logits, n_vocab, N_TEXT, n_vocab, &l.same);
    l.worst = rig_max_diff(want, one.rig.logits, (size_t)N_TEXT * n_vocab);
    printf("  %s: logits within %.1e, mean divergence %.2e, the same best id in %u of %u rows, "
           "compiled in %.1f s\n",
           path, l.worst, l.kl, l.same, N_TEXT, one.rig.compile_s);
    lg_mem_free(want);
    step_rig_close(&one.rig);
    lg_weights_close(&one.w);
    return l;
}

/* The bundled model, trained: exact types, then narrow weights, keys and states. */
static void test_bundled(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    lg_pjrt_model how = case_plain();
    likeness l = against_cpu("models/tiny-qwen35moe", how, 17);
    assert_true(l.worst < 1e-3 && l.same == N_TEXT);
    how.weight = how.kv = how.state = LG_PJRT_BF16;
    l = against_cpu("models/tiny-qwen35moe", how, 17);
    assert_true(l.kl < 1e-3 && l.same >= N_TEXT * 9 / 10);
    /* Rows and sums of experts travel as BF16, routing as halves of 32-bit words. */
    how.n_device = 4;
    l = against_cpu("models/tiny-qwen35moe", how, 17);
    assert_true(l.kl < 1e-3 && l.same >= N_TEXT * 9 / 10);
    how.n_device = 1;
    how.kv = LG_PJRT_F8E4M3FN;
    l = against_cpu("models/tiny-qwen35moe", how, 17);
    assert_true(l.kl < 1e-2 && l.same >= N_TEXT * 9 / 10);
}

/* Value heads in the other order, as GGUF files have them. */
static void test_tiled_heads(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    likeness l = against_cpu("tests/data/gguf/tiny-dense-r3-F16.gguf", case_plain(), 5);
    assert_true(l.worst < 1e-3 && l.same == N_TEXT);
}

/* Experts kept in FP8 with their blocks' scales: the same numbers as widened ones, so the same reference. */
static void test_fp8(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    for (int all = 0; all < 2; all++) {
        lg_pjrt_model how = case_plain();
        how.expert = LG_PJRT_F8E4M3FN;
        how.moe = all ? LG_PJRT_MOE_ALL : LG_PJRT_MOE_TILES;
        case_open(&one, "tiny-moe-fp8", how);
        case_prompt(&one, "p5");
        case_prompt(&one, "p65");
        printf("  FP8 experts, %s: logits within %.1e, compiled in %.1f s\n",
               all ? "all" : "by tiles", one.gold.row[0].worst, one.rig.compile_s);
        case_close(&one);
    }
}

/* Scales of a channel, and of groups of its inputs: every way to compute experts. */
static void test_scales(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    static const uint32_t group[2] = {0, 128};
    for (int i = 0; i < 6; i++) {
        lg_fixture f;
        lg_pjrt_model how = case_plain();
        how.expert = LG_PJRT_F8E4M3FN;
        how.scale_in = group[i % 2] ? group[i % 2] : UINT32_MAX;
        how.moe = i / 2 == 0 ? LG_PJRT_MOE_ALL : LG_PJRT_MOE_TILES;
        case_use_twins = i / 2 == 2;
        scales_folder(&f, group[i % 2], LG_BF16);
        likeness l = against_cpu(f.path, how, 17);
        assert_true(l.worst < 1e-3 && l.same == N_TEXT);
        lg_fixture_fini(&f);
    }
    case_use_twins = false;
}

/* ---- several devices ---- */

/* Every device has rows of its own, one has none; experts are divided.  Each row's logits are the reference's. */
static void check_devices(uint32_t n_dev, lg_pjrt_moe moe, bool unrolled) {
    static const char *const name[4] = {"ragged0", "ragged1", "ragged2", "ragged3"};
    const lg_pjrt_bucket b = {
        .n_many = 1, .n_row = 97, .n_page = 6, .n_out = 97, .logits = true};
    const lg_pjrt_bucket next = {.n_one = 2, .n_page = 6, .n_out = 2, .logits = true};
    lg_pjrt_model how = case_plain();
    how.n_device = n_dev;
    how.moe = moe;
    how.unrolled = unrolled;
    case_open(&one, "tiny-moe", how);
    uint32_t n[4], n_vocab = one.w->cfg.n_vocab, id[8];
    step_rig_seq seq[8];
    step_rig_batch batch[8];
    double worst = 0, later = 0;
    assert_true(n_dev <= 8);
    for (uint32_t d = 0; d < n_dev; d++) {
        const uint32_t *ids = golden_ids(&one.gold, name[d % 4], &n[d % 4]);
        seq[d] = case_rows(d % 3, 0, ids, n[d % 4], n[d % 4]);
        batch[d] = (step_rig_batch){&seq[d], d != 5, 0};
    }
    step_rig_step(&one.rig, &b, batch, false);
    for (uint32_t d = 0; d < n_dev; d++) {
        if (d == 5) continue;
        const float *row = one.rig.logits + (size_t)d * b.n_out * n_vocab;
        double off = case_off_golden(&one, name[d % 4], 0, n[d % 4], row);
        if (!(off <= worst)) worst = off;
        id[d] = rig_argmax(row + (size_t)(n[d % 4] - 1) * n_vocab, n_vocab);
        assert_int_equal(id[d], one.rig.id[d * b.n_out + n[d % 4] - 1]);
        seq[d] = case_rows(d % 3, n[d % 4], &id[d], 1, 1);
        batch[d] = (step_rig_batch){&seq[d], 1, 1};
    }
    step_rig_step(&one.rig, &next, batch, false);
    for (uint32_t d = 0; d < n_dev; d++) {
        if (d == 5) continue;
        golden_tensor *t = golden_must_find(&one.gold, name[d % 4], "decode_logits");
        double off = rig_max_diff(t->f + n_vocab,
                                  one.rig.logits + (size_t)d * next.n_out * n_vocab, n_vocab);
        if (!(off <= later)) later = off;
    }
    printf("  %u devices, experts %s, %s: prompts within %.1e, the next token within %.1e of "
           "the reference; compiled in %.1f s\n",
           n_dev, moe == LG_PJRT_MOE_ALL ? "all" : "by tiles",
           unrolled ? "written out" : "in a loop", worst, later, one.rig.compile_s);
    assert_true(worst < 1e-3 && later < 1e-3);
    case_close(&one);
}

static void test_devices(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    check_devices(8, LG_PJRT_MOE_TILES, false);
    check_devices(8, LG_PJRT_MOE_ALL, false);
    check_devices(2, LG_PJRT_MOE_TILES, true);
}

/* Our parts in a model: prompts, pieces, decode, one row and many in a step, 8 devices. */
static void test_twins(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    lg_pjrt_model how = case_plain();
    case_use_twins = true;
    how.unrolled = false;
    case_open(&one, "tiny-moe", how);
    printf("  %s\n", lg_kernels_about(&case_kernels));
    case_prompt(&one, "p5");
    case_prompt(&one, "p257");
    case_two_segments(&one);
    case_ragged(&one);
    double d = case_mixed(&one);
    printf("  with twins of our kernels: logits within %.1e, mixed %.1e of the reference\n",
           one.gold.row[0].worst, d);
    assert_true(d < 1e-3);
    case_close(&one);
    check_devices(8, LG_PJRT_MOE_TILES, false);
    check_devices(2, LG_PJRT_MOE_TILES, true);
    case_use_twins = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bundled), cmocka_unit_test(test_tiled_heads),
        cmocka_unit_test(test_fp8),     cmocka_unit_test(test_scales),
        cmocka_unit_test(test_devices), cmocka_unit_test(test_twins)};
    cmocka_set_test_filter(getenv("LG_STEP_TEST"));
    return cmocka_run_group_tests(tests, case_start, case_finish);
}
