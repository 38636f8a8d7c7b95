/* test_score.c - logits of whole texts: mean negative log-likelihood beside the reference implementation's (golden/ppl.json),
 * beside a naive computation, and texts drawn by chance. */
#include "score.h"

#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static const char *source(const char *name, char *buf, size_t size_bytes) {
    snprintf(buf, size_bytes, "%s/%s", getenv("LG_SOURCE_DIR"), name);
    return buf;
}

static lg_weights *load(const char *model) {
    char path[512];
    lg_err err = {0};
    lg_weights *w;
    if (lg_weights_open(source(model, path, sizeof path), NULL, NULL, NULL, &w, &err) != LG_OK)
        fail_msg("%s", err.msg);
    return w;
}

static size_t read_ids(const lg_json *list, uint32_t *id, size_t max) {
    size_t n = 0;
    uint64_t x;
    for (const lg_json *v = list->child; v && n < max; v = v->next) {
        assert_true(lg_json_u64(v, &x));
        id[n++] = (uint32_t)x;
    }
    return n;
}

static lg_json_doc *goldens(void) {
    char path[512];
    lg_err err;
    lg_json_doc *doc;
    assert_int_equal(lg_json_load(source("tests/data/golden/ppl.json", path, sizeof path),
                                  1 << 20, 8, &doc, &err),
                     LG_OK);
    return doc;
}

static void test_mean_is_the_reference_s(void **state) {
    (void)state;
    static const char *const model[] = {"tiny-moe", "tiny-dense"};
    static uint32_t id[2000];
    lg_json_doc *doc = goldens();
    for (size_t i = 0; i < LG_COUNT(model); i++) {
        char path[64];
        lg_err err;
        lg_score s;
        double want, sum, sq;
        const lg_json *m = lg_json_get(lg_json_root(doc), model[i]);
        assert_true(lg_json_f64(lg_json_get(m, "mean_nll"), &want));
        assert_int_equal(read_ids(lg_json_get(m, "ids"), id, 2000), 2000);
        snprintf(path, sizeof path, "tests/data/models/%s", model[i]);
        lg_weights *w = load(path);
        assert_int_equal(lg_score_init(&s, w, NULL, 2000, 1, true, LG_KV_F32, &err), LG_OK);
        assert_int_equal(lg_score_nll(&s, id, 2000, 0, &sum, &sq, &err), LG_OK);
        print_message("%s: mean %.6f, reference %.6f\n", model[i], sum / 1999, want);
        assert_true(fabs(sum / 1999 - want) < 2e-4);
        lg_score_fini(&s);
        lg_weights_close(&w);
    }
    lg_json_close(&doc);
}

/* The second half of a chunk, token by token in one-row steps. */
static void test_half_a_chunk_is_the_naive_sum(void **state) {
    (void)state;
    enum { N = 300, FIRST = N / 2 };
    static uint32_t id[N];
    lg_err err;
    lg_score s;
    lg_json_doc *doc = goldens();
    read_ids(lg_json_get(lg_json_get(lg_json_root(doc), "tiny-dense"), "ids"), id, N);
    lg_json_close(&doc);
    lg_weights *w = load("tests/data/models/tiny-dense");
    double want = 0, want_sq = 0, sum, sq;
    assert_int_equal(lg_score_init(&s, w, NULL, N, 1, false, LG_KV_DEFAULT, &err), LG_OK);
    for (uint32_t i = 0; i + 1 < N; i++) {
        const float *x;
        size_t ld;
        assert_int_equal(lg_score_step(&s, &id[i], 1, i, 1, &x, &ld, &err), LG_OK);
        if (i < FIRST) continue;
        long double all = 0;
        for (uint32_t k = 0; k < w->cfg.n_vocab; k++) all += expl((long double)x[k]);
        double nll = (double)(logl(all) - (long double)x[id[i + 1]]);
        want += nll;
        want_sq += nll * nll;
    }
    assert_int_equal(lg_score_nll(&s, id, N, FIRST, &sum, &sq, &err), LG_OK);
    assert_true(fabs(sum - want) < 1e-9 * want && fabs(sq - want_sq) < 1e-9 * want_sq);
    lg_score_fini(&s);
    lg_weights_close(&w);
}

/* What is drawn follows the seed alone, and is likelier to the model than ids at random. */
static void test_texts_by_chance(void **state) {
    (void)state;
    enum { N = 48, SEQ = 3 };
    static uint32_t a[SEQ * N], b[SEQ * N];
    lg_err err;
    lg_score s;
    lg_weights *w = load("models/tiny-qwen35moe");
    assert_int_equal(lg_score_init(&s, w, NULL, N, SEQ, true, LG_KV_F32, &err), LG_OK);
    assert_int_equal(lg_score_sample(&s, a, N, 5, 4000, 1, &err), LG_OK);
    assert_int_equal(lg_score_sample(&s, b, N, 5, 4000, 1, &err), LG_OK);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(lg_score_sample(&s, b, N, 5, 4000, 2, &err), LG_OK);
    assert_memory_not_equal(a, b, sizeof a);
    double drawn, shuffled, sq;
    for (int i = 0; i < SEQ * N; i++) assert_true(a[i] < 4000 && (i % N || a[i] == 5));
    assert_int_equal(lg_score_nll(&s, a, N, 0, &drawn, &sq, &err), LG_OK);
    for (uint32_t i = 0; i < N; i++) b[i] = (i * 1009u + 77u) % 4000u;
    assert_int_equal(lg_score_nll(&s, b, N, 0, &shuffled, &sq, &err), LG_OK);
    print_message("drawn %.2f, at random %.2f nats a token\n", drawn / (N - 1),
                  shuffled / (N - 1));
    assert_true(drawn < 0.7 * shuffled);
    lg_score_fini(&s);
    assert_int_equal(lg_score_init(&s, w, NULL, w->cfg.n_ctx_max + 1, 1, true, LG_KV_F32, &err),
                     LG_E_ARG);
    lg_weights_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean_is_the_reference_s),
        cmocka_unit_test(test_half_a_chunk_is_the_naive_sum),
        cmocka_unit_test(test_texts_by_chance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
