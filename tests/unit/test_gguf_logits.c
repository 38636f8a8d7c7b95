/* test_gguf_logits.c - the forward pass of GGUF files: logits of the 65-token prompt against the published weights' (F32 and
 * BF16 files), or against the file's own weights dequantised elsewhere (<stem>.f32); and the states, whose value heads are in
 * another order.
 * Then the same with products of integers, as they are by default: KL from the file's own weights in float beside that of
 * another engine on this file, where the reference file has it (<stem>.native).
 *
 * Files are those of tests/data/gguf, and all of $LG_GOLDEN/gguf when it is set. */
#include "golden.h"
#include "rig.h"

#include "backend/cpu/cpu.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_TOK 65
#define TOL   1e-3

static const uint32_t page[2] = {1, 0};

/* A model of the golden data: its file, which comes with the tree or with LG_GOLDEN. */
static bool open_golden(golden *g, const char *goldens, const char *model) {
    char path[1100];
    lg_err err;
    snprintf(path, sizeof path, "%s/%s.safetensors", goldens, model);
    return golden_open(g, path, &err) == LG_OK;
}

/* "tiny-moe" of "tiny-moe-BF16-00001-of-00002.gguf". */
static const char *model_of(const char *file, char *buf, size_t size_bytes) {
    static const char *const model[] = {"tiny-moe-256", "tiny-moe", "tiny-dense-r3",
                                        "tiny-dense"};
    for (size_t i = 0; i < LG_COUNT(model); i++)
        if (strncmp(file, model[i], strlen(model[i])) == 0) {
            snprintf(buf, size_bytes, "%s", model[i]);
            return buf;
        }
    fail_msg("%s: of no known model", file);
    return NULL;
}

/* Worst |state| difference over all GDN layers: head h of the golden is the backend's v_head(g, j). */
static double state_diff(const lg_backend *be, const lg_config *c, const golden *gold) {
    size_t n = (size_t)c->d_k * c->d_v, ratio = c->n_v_head / c->n_k_head;
    float *s = lg_mem_calloc(c->n_v_head * n, sizeof *s);
    double worst = 0;
    uint32_t n_seen = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        const golden_tensor *t = golden_find(gold, "p65.state.L%u", l);
        if (!t) continue;
        n_seen++;
        assert_int_equal(t->n, c->n_v_head * n);
        lg_backend_read_state(be, 0, N_TOK, l, s, NULL);
        for (uint32_t h = 0; h < c->n_v_head; h++) {
            uint32_t at = lg_config_v_head(c, (uint32_t)(h / ratio), (uint32_t)(h % ratio));
            assert_int_equal(lg_config_k_head(c, at), h / ratio);
            double d = rig_max_diff(s + at * n, t->f + h * n, n);
            if (d > worst) worst = d;
        }
    }
    assert_true(n_seen > 0);
    lg_mem_free(s);
    return worst;
}

/* Sums over files: of log(our KL / the other's), and their number. */
static double log_ratio;
static uint32_t n_ratio;

static void check_integers(lg_backend *be, const rig_seq *seq, uint32_t n,
                           const golden_tensor *want, const golden_tensor *other) {
    lg_step_out out = {0};
    uint32_t same;
    if (!other) return;
    rig_step(be, seq, 1, &out);
    double ours = rig_mean_kl(want->f, n, out.logits, out.ld_logits, N_TOK, n, &same);
    double theirs = rig_mean_kl(want->f, n, other->f, n, N_TOK, n, &same);
    printf("    with integers: mean KL %.5f, the other engine's %.5f\n", ours, theirs);
    if (ours < 1e-7) return; /* no block types */
    log_ratio += log(ours / theirs);
    n_ratio++;
}

static void check_logits(lg_weights *w, const char *file, const golden *gold, const golden *own,
                         lg_pool *pool) {
    char model[64], stem[128];
    lg_err err = {0};
    lg_backend *be = NULL;
    lg_backend_opt opt = {.n_slot = 1,
                          .n_page = 2,
                          .max_tok = N_TOK,
                          .max_seq = 1,
                          .max_out = N_TOK,
                          .n_sample_vocab = w->cfg.n_vocab,
                          .exact = true};
    snprintf(stem, sizeof stem, "%.*s", (int)strcspn(file, "."), file);
    model_of(file, model, sizeof model);
    const golden_tensor *want = golden_find(own, "%s.f32", stem), *ids;
    ids = golden_find(own, "%s.p65.ids", model);
    bool published = !want;
    if (gold->n) ids = golden_find(gold, "p65.ids");
    if (published) want = golden_find(gold, "p65.logits");
    if (!want || !ids) fail_msg("%s: no reference logits", file);
    assert_int_equal(want->n, N_TOK * w->cfg.n_vocab);
    if (lg_backend_open(w, &opt, pool, &be, &err) != LG_OK) fail_msg("%s", err.msg);
    rig_poison(be);
    rig_seq seq = {0, 0, page, 2, (const uint32_t *)ids->i, N_TOK, N_TOK};
    lg_step_out out = {0};
    rig_step(be, &seq, 1, &out);
    double worst = 0, state = published ? state_diff(be, &w->cfg, gold) : 0;
    for (size_t r = 0; r < N_TOK; r++) {
        double d = rig_max_diff(out.logits + r * out.ld_logits, want->f + r * w->cfg.n_vocab,
                                w->cfg.n_vocab);
        if (d > worst) worst = d;
    }
    printf("  %-40s logits max error %.2e against %s", file, worst,
           published ? "the published weights" : "its own weights in float");
    if (published) printf(", states %.2e", state);
    printf("\n");
    if (!(worst <= TOL)) fail_msg("%s: logits differ by %g, allowed %g", file, worst, TOL);
    assert_true(state <= 1e-4);
    be->exact = false;
    if (!published)
        check_integers(be, &seq, w->cfg.n_vocab, want, golden_find(own, "%s.native", stem));
    lg_backend_close(&be);
}

static void check_file(const char *folder, const char *goldens, const char *file,
                       const golden *own, lg_pool *pool) {
    char path[1100], model[64];
    lg_err err = {0};
    lg_weights *w = NULL;
    golden gold = {0};
    snprintf(path, sizeof path, "%.800s/%.200s", folder, file);
    if (lg_weights_open(path, pool, NULL, NULL, &w, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_true(w->cfg.v_head_tiled && (w->n_skipped > 0) == (w->cfg.n_mtp_layer > 0));
    open_golden(&gold, goldens, model_of(file, model, sizeof model));
    check_logits(w, file, &gold, own, pool);
    golden_close(&gold);
    lg_weights_close(&w);
}

static int by_text(const void *a, const void *b) {
    return strcmp(a, b);
}

static void test_every_file(void **state) {
    char models[512], goldens[512], folder[600], path[700];
    static char names[64][128]; /* file names, sorted */
    lg_pool *pool = NULL;
    lg_err err;
    (void)state;
    assert_int_equal(lg_pool_open(2, &pool, &err), LG_OK);
    for (int i = 0; rig_data(i, models, goldens); i++) {
        /* tests/data/gguf lies beside tests/data/golden, $LG_GOLDEN/gguf inside it. */
        snprintf(folder, sizeof folder, i == 0 ? "%s/../gguf" : "%s/gguf", goldens);
        golden own = {0};
        snprintf(path, sizeof path, "%s/gguf_logits.safetensors", folder);
        if (golden_open(&own, path, &err) != LG_OK) fail_msg("%s", err.msg);
        DIR *dir = opendir(folder);
        assert_non_null(dir);
        size_t n = 0;
        for (struct dirent *e; (e = readdir(dir)) != NULL && n < LG_COUNT(names);) {
            const char *end = strstr(e->d_name, ".gguf");
            const char *part = strstr(e->d_name, "-0000");
            if (end && (!part || strstr(part, "-00001-of-")))
                snprintf(names[n++], sizeof names[0], "%.127s", e->d_name);
        }
        closedir(dir);
        qsort(names, n, sizeof names[0], by_text);
        for (size_t k = 0; k < n; k++) check_file(folder, goldens, names[k], &own, pool);
        printf("  %s: %zu models compared\n", folder, n);
        assert_true(n > 0);
        if (n_ratio) {
            double mean = exp(log_ratio / n_ratio);
            printf("  KL over the other engine's, geometric mean of %u files: %.2f\n", n_ratio,
                   mean);
            assert_true(mean <= 1.5);
        }
        golden_close(&own);
    }
    if (!rig_data(1, models, goldens))
        printf("  skipped: files outside tests/data (LG_GOLDEN is not set)\n");
    lg_pool_close(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
