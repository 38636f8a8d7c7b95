/* test_step.c - the step's programs on XLA's CPU plugin against reference tensors: every golden model and every
 * tensor; then the looped form, both forms of the experts, ragged and split batches, and what padding may not touch. */
#include "step_case.h"

#include "base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static step_case one;

/* Every intermediate of p65. */
static void check_trace(step_case *m) {
    if (!golden_find(&m->gold, "p65.ids")) return;
    uint32_t n;
    const uint32_t *ids = golden_ids(&m->gold, "p65", &n);
    lg_pjrt_bucket b = {.n_many = 1, .n_row = n, .n_page = 6, .n_out = 1};
    step_rig_seq seq = case_rows(2, 0, ids, n, 1);
    case_run(m, &b, &seq, 1, 0, true);
    for (uint32_t i = 0; i < m->rig.debug.n; i++) {
        int layer = m->rig.debug.item[i].layer;
        const char *name = m->rig.debug.item[i].name;
        golden_tensor *t = layer < 0 ? golden_find(&m->gold, "trace.%s", name)
                                     : golden_find(&m->gold, "trace.L%d.%s", layer, name);
        if (!t) fail_msg("%s: no reference for %s of layer %d", m->name, name, layer);
        assert_int_equal(t->n, lg_hlo_count(m->rig.debug.item[i].type));
        case_compare(m, t, 0, m->rig.item[i], t->n);
    }
}

static void report(step_case *m) {
    for (size_t i = 0; i < m->gold.n; i++)
        if (!m->gold.tensor[i].seen && strncmp(m->gold.tensor[i].name, "mtp.", 4) != 0)
            fail_msg("%s: tensor %s was not compared", m->name, m->gold.tensor[i].name);
    for (uint32_t i = 0; i < m->gold.n_row; i++)
        printf("  %-14s %-22s %4u tensors  max error %.2e, allowed %.0e\n", m->name,
               m->gold.row[i].kind, m->gold.row[i].n_tensor, m->gold.row[i].worst,
               m->gold.row[i].tol);
    printf("  %-14s compiled %u programs in %.1f s\n", m->name, m->rig.n_exe, m->rig.compile_s);
}

static void check_all(const char *name) {
    static const char *const prompts[] = {"p1", "p5", "p64", "p65", "p130", "p257"};
    case_open(&one, name, case_plain());
    for (size_t i = 0; i < LG_COUNT(prompts); i++)
        if (golden_find(&one.gold, "%s.ids", prompts[i])) case_prompt(&one, prompts[i]);
    check_trace(&one);
    case_two_segments(&one);
    case_ragged(&one);
    report(&one);
    case_close(&one);
}

static void test_goldens(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    check_all("tiny-moe");
    check_all("tiny-moe-fp8");
    check_all("tiny-dense");
    check_all("tiny-dense-r3");
}

/* Where the long prompt is of use: logits of its rows after a run in pieces. */
typedef struct piece {
    uint32_t n;
    bool one; /* in the part of one row */
} piece;

/* A prompt in pieces, every row's logits against the reference's for one piece. */
static double run_pieces(step_case *m, const char *prompt, const piece *p, uint32_t n_piece,
                         uint32_t slot) {
    uint32_t n, at = 0;
    const uint32_t *ids = golden_ids(&m->gold, prompt, &n);
    double worst = 0;
    for (uint32_t i = 0; i < n_piece && at < n; i++) {
        uint32_t k = p[i].n < n - at ? p[i].n : n - at;
        step_rig_seq seq = case_rows(slot, at, ids + at, k, k);
        case_run(m, p[i].one ? &case_decode_bucket : &case_prompt_bucket, &seq, 1, p[i].one,
                 false);
        double d = case_off_golden(m, prompt, at, k, m->rig.logits);
        if (!(d <= worst)) worst = d;
        at += k;
    }
    assert_int_equal(at, n);
    return worst;
}

static void test_splits(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    case_open(&one, "tiny-moe", case_plain());
    static const piece small[] = {{1, true}, {1, false},  {2, false},  {3, false}, {1, true},
                                  {1, true}, {63, false}, {64, false}, {65, false}};
    static const piece odd[] = {{100, false}, {1, true},    {1, true},
                                {1, true},    {127, false}, {27, false}};
    double worst = run_pieces(&one, "p130", small, LG_COUNT(small), 3);
    double more = run_pieces(&one, "p257", odd, LG_COUNT(odd), 2);
    piece single[65];
    for (int i = 0; i < 65; i++) single[i] = (piece){1, true};
    double singly = run_pieces(&one, "p65", single, 65, 1);
    printf("  pieces differ from one piece by %.1e, %.1e; row by row by %.1e\n", worst, more,
           singly);
    assert_true(worst < 1e-3 && more < 1e-3 && singly < 1e-3);
    /* A bucket of longer sequences whose rows are one. */
    const lg_pjrt_bucket thin = {
        .n_many = 2, .n_row = 1, .n_page = 6, .n_out = 2, .logits = true};
    uint32_t n;
    const uint32_t *ids = golden_ids(&one.gold, "p5", &n);
    for (uint32_t i = 0; i < n; i++) {
        step_rig_seq seq = case_rows(0, i, ids + i, 1, 1);
        case_run(&one, &thin, &seq, 1, 0, false);
        assert_true(case_off_golden(&one, "p5", i, 1, one.rig.logits) < 1e-3);
    }
    case_close(&one);
}

static void test_mixed(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    for (int form = 0; form < 3; form++) {
        lg_pjrt_model how = case_plain();
        how.unrolled = form == 0;
        how.moe = form == 2 ? LG_PJRT_MOE_ALL : LG_PJRT_MOE_TILES;
        case_open(&one, "tiny-moe", how);
        if (form) assert_true(lg_step_period(&one.w->cfg) < one.w->cfg.n_layer);
        double d = case_mixed(&one);
        printf("  one row and many in one step, %s, experts %s: %.1e from the reference, "
               "compiled in %.1f s\n",
               form ? "in a loop" : "written out", form == 2 ? "all" : "by tiles", d,
               one.rig.compile_s);
        assert_true(d < 1e-3);
        case_close(&one);
    }
}

/* The looped form against the reference: prompts, pieces, decode. */
static void test_loop(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    lg_pjrt_model how = case_plain();
    how.unrolled = false;
    case_open(&one, "tiny-moe", how);
    case_prompt(&one, "p5");
    case_prompt(&one, "p257");
    case_two_segments(&one);
    printf("  in a loop: logits within %.1e, compiled %u programs in %.1f s\n",
           one.gold.row[0].worst, one.rig.n_exe, one.rig.compile_s);
    case_close(&one);
}

/* Minus the log-probability of `id`, in double. */
static double nll(const float *row, uint32_t n_vocab, uint32_t id) {
    double max = (double)row[rig_argmax(row, n_vocab)], sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) sum += exp((double)row[i] - max);
    return max + log(sum) - (double)row[id];
}

/* Mean over a long text of the model's own against the reference's mean: 32 pages, steps that end anywhere. */
static void test_long_text(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    const lg_pjrt_bucket b = {
        .n_many = 1, .n_row = 187, .n_page = 32, .n_out = 187, .logits = true};
    char models[512], goldens[512], path[1100];
    lg_json_doc *doc = NULL;
    lg_err err = {0};
    lg_pjrt_model how = case_plain();
    how.n_ctx = 2048;
    case_open(&one, "tiny-moe", how);
    assert_true(rig_data(0, models, goldens));
    snprintf(path, sizeof path, "%s/ppl.json", goldens);
    if (lg_json_load(path, 1 << 20, 8, &doc, &err) != LG_OK) fail_msg("%s", err.msg);
    const lg_json *of = lg_json_get(lg_json_root(doc), one.name),
                  *list = lg_json_get(of, "ids");
    uint32_t page[32], at = 0, n_vocab = one.w->cfg.n_vocab, ids[2048], n = list->n_child;
    double want, sum = 0, worst = 0;
    assert_true(lg_json_f64(lg_json_get(of, "mean_nll"), &want) && n > 1000 && n <= 2048);
    for (const lg_json *v = list->child; v; v = v->next) {
        uint64_t id;
        assert_true(lg_json_u64(v, &id) && id < n_vocab);
        ids[at++] = (uint32_t)id;
    }
    for (uint32_t i = 0; i < 32; i++) page[i] = (i * 7 + 3) % 32;
    for (uint32_t pos = 0; pos < n; pos += b.n_row) {
        uint32_t k = n - pos < b.n_row ? n - pos : b.n_row;
        step_rig_seq seq = {0, pos, page, 32, ids + pos, k, k};
        case_run(&one, &b, &seq, 1, 0, false);
        for (uint32_t r = 0; r < k && pos + r + 1 < n; r++) {
            const float *row = one.rig.logits + (size_t)r * n_vocab;
            sum += nll(row, n_vocab, ids[pos + r + 1]);
            /* What the device says of its own choice. */
            double d =
                fabs(nll(row, n_vocab, (uint32_t)one.rig.id[r]) + (double)one.rig.logprob[r]);
            if (!(d <= worst)) worst = d;
        }
    }
    printf("  %u positions: mean negative log-likelihood %.6f, reference %.6f; "
           "log-probabilities of the device within %.1e\n",
           n, sum / (n - 1), want, worst);
    assert_true(fabs(sum / (n - 1) - want) < 1e-4 && worst < 1e-5);
    lg_json_close(&doc);
    case_close(&one);
}

/* Everything of a pool but rows of `unit` floats that `used` names; pool [layer][unit number][unit]. */
static void check_untouched(step_case *m, lg_pjrt_pool which, const float *before,
                            const uint32_t *used, uint32_t n_used) {
    size_t n,
        n_unit = which == LG_PJRT_POOL_KEY || which == LG_PJRT_POOL_VALUE ? N_PAGE : N_SLOT,
        n_layer = 0;
    float *now = step_rig_pool(&m->rig, which, 0, &n);
    for (uint32_t i = 0; i < m->w->cfg.n_layer; i++)
        n_layer += (m->w->cfg.layer[i] == LG_LAYER_ATTN) == (n_unit == N_PAGE);
    size_t unit = n / n_layer / n_unit;
    for (size_t u = 0; u < n_layer * n_unit; u++) {
        bool skip_it = false;
        for (uint32_t i = 0; i < n_used; i++) skip_it |= u % n_unit == used[i];
        if (!skip_it)
            assert_memory_equal(now + u * unit, before + u * unit, unit * sizeof *now);
        if (skip_it && before)
            assert_memory_not_equal(now + u * unit, before + u * unit, unit * sizeof *now);
    }
    lg_mem_free(now);
}

/* Padding: sequences that are not there, rows that are not there and places behind a sequence's end leave no trace in
 * any pool. */
static void test_padding(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    size_t n;
    lg_pjrt_bucket b = {
        .n_one = 3, .n_many = 3, .n_row = 80, .n_page = 6, .n_out = 150, .logits = true};
    case_open(&one, "tiny-moe", case_plain());
    float *before[LG_PJRT_N_POOL];
    for (int p = 0; p < LG_PJRT_N_POOL; p++) before[p] = step_rig_pool(&one.rig, p, 0, &n);
    const uint32_t *ids = golden_ids(&one.gold, "p65", &(uint32_t){0});
    /* Two rows of a prompt in page 9 alone, and a sequence of one row in page 3. */
    step_rig_seq seq[2] = {case_rows(1, 0, ids, 1, 1), case_rows(2, 0, ids, 2, 2)};
    case_run(&one, &b, seq, 2, 1, false);
    static const uint32_t page[] = {3, 9}, slot[] = {1, 2};
    check_untouched(&one, LG_PJRT_POOL_KEY, before[LG_PJRT_POOL_KEY], page, 2);
    check_untouched(&one, LG_PJRT_POOL_VALUE, before[LG_PJRT_POOL_VALUE], page, 2);
    check_untouched(&one, LG_PJRT_POOL_S, before[LG_PJRT_POOL_S], slot, 2);
    check_untouched(&one, LG_PJRT_POOL_CONV, before[LG_PJRT_POOL_CONV], slot, 2);
    /* Inside page 9: two places of 64 were written, in both layers. */
    float *k = step_rig_pool(&one.rig, LG_PJRT_POOL_KEY, 0, &n);
    size_t place = (size_t)one.w->cfg.n_kv_head * one.w->cfg.d_head,
           at = 9 * LG_PAGE_TOK * place;
    assert_memory_equal(k + at + 2 * place, before[LG_PJRT_POOL_KEY] + at + 2 * place,
                        62 * place * sizeof *k);
    lg_mem_free(k);
    for (int p = 0; p < LG_PJRT_N_POOL; p++) lg_mem_free(before[p]);
    case_close(&one);
}

/* A sequence whose state is not a number says so, and its batch mates do not notice. */
static void test_broken_mate(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    const lg_pjrt_bucket b = {
        .n_one = 2, .n_many = 2, .n_row = 64, .n_page = 6, .n_out = 67, .logits = true};
    for (int all = 0; all < 2; all++) {
        lg_pjrt_model how = case_plain();
        how.moe = all ? LG_PJRT_MOE_ALL : LG_PJRT_MOE_TILES;
        case_open(&one, "tiny-moe", how);
        uint32_t n;
        const uint32_t *ids = golden_ids(&one.gold, "p64", &n);
        /* The pools hold no numbers yet, and two of the sequences claim 64 positions of them. */
        step_rig_seq seq[3] = {case_rows(0, 64, ids, 1, 1), case_rows(1, 64, ids, 2, 2),
                               case_rows(2, 0, ids, n, n)};
        case_run(&one, &b, seq, 3, 1, false);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(one.rig.id[i], -1);
            assert_true(isnan(one.rig.logprob[i]));
        }
        assert_true(case_off_golden(&one, "p64", 0, n,
                                    one.rig.logits + 3 * (size_t)one.w->cfg.n_vocab) < 1e-3);
        for (uint32_t i = 3; i < n + 3; i++)
            assert_true(one.rig.id[i] >= 0 && isfinite(one.rig.logprob[i]));
        case_close(&one);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),    cmocka_unit_test(test_loop),
        cmocka_unit_test(test_splits),     cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_padding),    cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_broken_mate)};
    cmocka_set_test_filter(getenv("LG_STEP_TEST"));
    return cmocka_run_group_tests(tests, case_start, case_finish);
}
