/* test_sample.c - lg_sample against a plain implementation in double precision and against exact probabilities. */
#include "backend/backend.h"
#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define MAX_V 6000

typedef struct rig {
    float logits[MAX_V]; /* as the model gave them */
    float row[MAX_V];    /* what lg_sample may overwrite */
    double p[MAX_V];     /* exact probabilities after all filters */
    double raw[MAX_V];   /* natural log of probabilities before temperature and filters */
    uint32_t order[MAX_V];
    void *work;
} rig;

static const double *sort_by;

static int better(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (sort_by[i] != sort_by[j]) return sort_by[i] > sort_by[j] ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* The definition: fill p, raw and order (best first).  Returns how many ids are kept. */
static uint32_t define(rig *r, const lg_sampler *s, uint32_t n) {
    static double l[MAX_V];
    const lg_params *q = &s->params;
    for (uint32_t i = 0; i < n; i++) {
        l[i] = (double)r->logits[i];
        r->order[i] = i;
        for (uint32_t j = 0; j < s->n_bias; j++)
            if (s->bias[j].id == i) l[i] += (double)s->bias[j].bias;
        uint32_t seen = 0, produced = 0;
        for (uint32_t j = 0; j < s->n_id; j++) {
            seen += s->ids[j] == i;
            produced += j >= s->n_prompt && s->ids[j] == i;
        }
        double rep = (double)q->repetition_penalty;
        if (seen) l[i] = l[i] > 0 ? l[i] / rep : l[i] * rep;
        l[i] -= (double)q->frequency_penalty * produced;
        if (produced) l[i] -= (double)q->presence_penalty;
    }
    sort_by = l;
    qsort(r->order, n, sizeof *r->order, better);
    double top = l[r->order[0]], sum = 0.0;
    for (uint32_t i = 0; i < n; i++) sum += exp(l[i] - top);
    for (uint32_t i = 0; i < n; i++) r->raw[i] = l[i] - top - log(sum);
    for (uint32_t i = 0; i < n; i++) r->p[i] = 0.0;
    if (q->temperature == 0.0f) {
        r->p[r->order[0]] = 1.0;
        return 1;
    }
    uint32_t kept = q->top_k && q->top_k < n ? q->top_k : n;
    sum = 0.0;
    for (uint32_t i = 0; i < kept; i++) {
        uint32_t id = r->order[i];
        r->p[id] = exp((l[id] - top) / (double)q->temperature);
        sum += r->p[id];
    }
    double so_far = 0.0, total = 0.0;
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < kept; i++) {
        uint32_t id = r->order[i];
        bool in = q->top_p >= 1.0f || so_far < (double)q->top_p * sum;
        if (i > 0 && r->p[id] < (double)q->min_p) in = false;
        so_far += r->p[id];
        if (!in) r->p[id] = 0.0;
        total += r->p[id];
        n_kept += in;
    }
    for (uint32_t i = 0; i < n; i++) r->p[i] /= total;
    return n_kept;
}

static lg_sampler plain(void) {
    return (lg_sampler){.params = {.temperature = 1.0f,
                                   .top_p = 1.0f,
                                   .repetition_penalty = 1.0f,
                                   .has_seed = true,
                                   .seed = 7,
                                   .n_top = -1}};
}

static lg_sampled sample(rig *r, const lg_sampler *s, uint32_t n_vocab, uint32_t n) {
    lg_sampled out = {0};
    memcpy(r->row, r->logits, n_vocab * sizeof *r->row);
    lg_sample(s, r->row, n_vocab, n, r->work, &out);
    return out;
}

static float noise(uint64_t seed, uint32_t i) {
    return 8.0f * lg_num_rng_unit(seed, 1, i, 0) - 4.0f;
}

static int setup(void **state) {
    rig *r = calloc(1, sizeof *r);
    r->work = malloc(lg_sample_work_bytes(MAX_V));
    *state = r;
    return 0;
}

static int teardown(void **state) {
    rig *r = *state;
    free(r->work);
    free(r);
    return 0;
}

/* Upper 0.1 % point of chi-square (Wilson and Hilferty). */
static double chi_limit(double df) {
    double c = 2.0 / (9.0 * df), t = 1.0 - c + 3.0902 * sqrt(c);
    return df * t * t * t;
}

static const uint32_t past[] = {3, 3, 9, 0, 5, 9, 9, 12}; /* prompt 4, produced 4 */

/* Parameter sets for the draws below. */
static lg_sampler combo(unsigned i) {
    lg_sampler s = plain();
    s.params.seed = 1000 + i;
    if (i & 1) s.params.temperature = i & 2 ? 0.6f : 1.7f;
    if (i & 2) s.params.top_k = 12;
    if (i & 4) s.params.top_p = 0.8f;
    if (i & 8) s.params.min_p = 0.05f;
    if (i & 16) {
        s.ids = past;
        s.n_prompt = 4;
        s.n_id = 8;
        s.params.presence_penalty = 0.4f;
        s.params.frequency_penalty = -0.3f;
        s.params.repetition_penalty = 1.3f;
    }
    return s;
}

static void test_draws_have_the_exact_probabilities(void **state) {
    rig *r = *state;
    enum { N = 20000, V = 40 };
    static uint32_t produced[N];
    double worst = 0.0;
    for (unsigned c = 0; c < 32; c++) {
        lg_sampler s = combo(c);
        for (uint32_t i = 0; i < V; i++) r->logits[i] = noise(c, i) * 0.6f;
        define(r, &s, V);
        uint32_t count[V] = {0};
        for (uint32_t d = 0; d < N; d++) {
            if (s.n_id == 0) { /* without penalties the position alone moves the generator */
                lg_sampler at = s;
                at.ids = produced;
                at.n_id = d;
                count[sample(r, &at, V, V).id]++;
            } else {
                s.params.seed = 77777u * c + d;
                count[sample(r, &s, V, V).id]++;
            }
        }
        double chi = 0.0, df = -1.0, rest = 0.0, n_rest = 0.0;
        for (uint32_t i = 0; i < V; i++) {
            double want = r->p[i] * N;
            if (want == 0.0) assert_int_equal(count[i], 0);
            if (want < 5.0) {
                rest += want;
                n_rest += count[i];
                continue;
            }
            chi += (count[i] - want) * (count[i] - want) / want;
            df++;
        }
        if (rest >= 5.0) {
            chi += (n_rest - rest) * (n_rest - rest) / rest;
            df++;
        }
        if (chi / chi_limit(df) > worst) worst = chi / chi_limit(df);
        if (chi > chi_limit(df)) fail_msg("combination %u: chi2 %g, %g degrees", c, chi, df);
    }
    print_message("chi-square: 32 combinations, worst %.2f of the 0.1 %% limit\n", worst);
}

/* Draw as the definition would with the same random number. */
static uint32_t defined_draw(const rig *r, const lg_sampler *s, uint32_t n) {
    uint64_t bits = lg_num_rng(s->params.seed, s->params.choice, s->n_id - s->n_prompt, 0);
    double target = (double)(bits >> 11) * 0x1p-53, sum = 0.0;
    uint32_t last = r->order[0];
    for (uint32_t i = 0; i < n && sum <= target; i++) {
        uint32_t id = r->order[i];
        if (r->p[id] > 0.0) last = id;
        sum += r->p[id];
    }
    return last;
}

static void test_every_filter_equals_the_definition(void **state) {
    rig *r = *state;
    static const uint32_t size[] = {1, 2, 3, 17, 64, 65, 129, 1000, MAX_V};
    static const uint32_t top_k[] = {0, 1, 2, 20, 63, 64, 65, 400, 5999};
    static const float top_p[] = {1.0f, 1e-6f, 0.3f, 0.95f, 0.9999f};
    static const float min_p[] = {0.0f, 0.01f, 0.5f, 1.0f};
    static const float temp[] = {0.0f, 1e-30f, 0.1f, 1.0f, 100.0f};
    uint32_t n_case = 0;
    for (uint32_t a = 0; a < LG_COUNT(size); a++) {
        uint32_t n = size[a];
        /* Coarse values make many ties. */
        for (uint32_t i = 0; i < n; i++)
            r->logits[i] = a % 2 ? noise(a, i) : roundf(4.0f * noise(a, i)) / 4.0f;
        for (uint32_t c = 0; c < LG_COUNT(top_k) * LG_COUNT(top_p) * LG_COUNT(min_p); c++) {
            lg_sampler s = plain();
            s.params.top_k = top_k[c % LG_COUNT(top_k)];
            s.params.top_p = top_p[c / LG_COUNT(top_k) % LG_COUNT(top_p)];
            s.params.min_p = min_p[c / LG_COUNT(top_k) / LG_COUNT(top_p)];
            s.params.temperature = temp[c % LG_COUNT(temp)];
            define(r, &s, n);
            for (uint32_t d = 0; d < 5; d++, n_case++) {
                s.params.seed = (uint64_t)c << 8 | d;
                uint32_t id = sample(r, &s, n, n).id, want = defined_draw(r, &s, n);
                if (id != want)
                    fail_msg("%u ids, k %u, p %g, min %g, temperature %g: id %u, not %u", n,
                             s.params.top_k, (double)s.params.top_p, (double)s.params.min_p,
                             (double)s.params.temperature, id, want);
            }
        }
    }
    print_message("%u draws equal the definition's\n", n_case);
}

static void test_greedy_takes_the_lower_of_equals(void **state) {
    rig *r = *state;
    lg_sampler s = plain();
    s.params.temperature = 0.0f;
    float l[] = {1.0f, 5.0f, 5.0f, -2.0f};
    memcpy(r->logits, l, sizeof l);
    assert_int_equal(sample(r, &s, 4, 4).id, 1);
    r->logits[0] = 0.0f;
    r->logits[1] = -0.0f;
    r->logits[2] = -1.0f;
    assert_int_equal(sample(r, &s, 3, 3).id, 0);
}

static void test_penalties_follow_their_formulas(void **state) {
    rig *r = *state;
    lg_sampler s = plain();
    s.params.temperature = 0.0f;
    s.params.n_top = 4;
    s.params.repetition_penalty = 2.0f;
    s.params.frequency_penalty = 0.5f;
    s.params.presence_penalty = 0.25f;
    static const uint32_t ids[] = {0, 1, 1, 2, 2, 2}; /* prompt: 0, 1 */
    static const lg_bias bias[] = {{1, -1.0f}, {3, 2.0f}};
    s.ids = ids;
    s.n_prompt = 2;
    s.n_id = 6;
    s.bias = bias;
    s.n_bias = 2;
    float l[] = {-1.0f, 5.0f, 3.0f, -1.0f};
    memcpy(r->logits, l, sizeof l);
    /* -1 * 2;  (5 - 1) / 2 - 0.5 - 0.25;  3 / 2 - 1.5 - 0.25;  -1 + 2 */
    double want[] = {-2.0, 1.25, -0.25, 1.0}, sum = 0.0;
    for (int i = 0; i < 4; i++) sum += exp(want[i]);
    lg_sampled out = sample(r, &s, 4, 4);
    static const uint32_t order[] = {1, 3, 2, 0};
    assert_int_equal(out.id, 1);
    assert_int_equal(out.n_top, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(out.top[i].id, order[i]);
        assert_float_equal(out.top[i].logprob, (float)(want[order[i]] - log(sum)), 1e-6);
    }
    assert_float_equal(out.logprob, (float)(want[1] - log(sum)), 1e-6);
}

static void test_logprobs_come_before_temperature_and_filters(void **state) {
    rig *r = *state;
    for (uint32_t i = 0; i < 500; i++) r->logits[i] = noise(3, i);
    lg_sampler s = plain();
    s.params.temperature = 2.0f;
    s.params.top_k = 3;
    s.params.n_top = LG_MAX_TOP;
    define(r, &s, 500);
    for (uint32_t d = 0; d < 50; d++) {
        s.params.seed = d;
        lg_sampled out = sample(r, &s, 500, 500);
        assert_float_equal(out.logprob, r->raw[out.id], 1e-5);
        assert_int_equal(out.n_top, LG_MAX_TOP);
        for (uint32_t i = 0; i < LG_MAX_TOP; i++) {
            assert_int_equal(out.top[i].id, r->order[i]);
            assert_float_equal(out.top[i].logprob, r->raw[r->order[i]], 1e-5);
        }
    }
    s.params.n_top = 5;
    assert_int_equal(sample(r, &s, 3, 3).n_top, 3);
    s.params.n_top = 0;
    assert_int_equal(sample(r, &s, 500, 500).n_top, 0);
}

static void test_padding_rows_do_not_exist(void **state) {
    rig *r = *state;
    enum { V = 128, REAL = 100 };
    for (uint32_t i = 0; i < V; i++) r->logits[i] = i < REAL ? noise(5, i) : 50.0f + (float)i;
    r->logits[V - 1] = NAN;
    lg_sampler s = plain();
    s.params.n_top = LG_MAX_TOP;
    define(r, &s, REAL);
    for (uint32_t d = 0; d < 3000; d++) {
        s.params.seed = d;
        s.params.temperature = d % 3 ? 100.0f : 0.0f;
        s.params.top_k = d % 2 ? 0 : 5;
        lg_sampled out = sample(r, &s, V, REAL);
        assert_false(out.nonfinite);
        assert_true(out.id < REAL);
        assert_float_equal(out.logprob, r->raw[out.id], 1e-5);
        for (uint32_t i = 0; i < out.n_top; i++) assert_true(out.top[i].id < REAL);
    }
    static const lg_bias up[] = {{REAL, 100.0f}};
    s.bias = up;
    s.n_bias = 1;
    assert_true(sample(r, &s, V, REAL).id < REAL);
}

/* Masked ids are as if they were not there: the same probabilities as without them. */
static void test_masked_ids_do_not_exist(void **state) {
    rig *r = *state;
    enum { V = 200 };
    uint32_t mask[(V + 31) / 32] = {0}, n_set = 0, hits[V] = {0};
    for (uint32_t i = 0; i < V; i++) {
        r->logits[i] = 3 * noise(8, i);
        if (i % 7 != 3) continue;
        mask[i / 32] |= 1u << i % 32;
        n_set++;
    }
    lg_sampler s = plain();
    s.mask = mask;
    s.params.n_top = LG_MAX_TOP;
    double sum = 0.0;
    for (uint32_t i = 3; i < V; i += 7) sum += exp((double)r->logits[i]);
    enum { DRAWS = 20000 };
    for (uint32_t d = 0; d < DRAWS; d++) {
        s.params.seed = d;
        s.params.temperature = 1.0f;
        lg_sampled out = sample(r, &s, V, V);
        assert_false(out.nonfinite);
        assert_true(out.id % 7 == 3);
        assert_float_equal(out.logprob, (float)((double)r->logits[out.id] - log(sum)), 1e-4f);
        hits[out.id]++;
    }
    for (uint32_t i = 3; i < V; i += 7)
        assert_float_equal((float)hits[i] / DRAWS, (float)(exp((double)r->logits[i]) / sum),
                           0.015f);
    for (uint32_t d = 0; d < 500; d++) {
        s.params.seed = d;
        s.params.temperature = d % 2 ? 100.0f : 0.0f;
        s.params.top_k = d % 3 ? 0 : 40;
        s.params.min_p = d % 5 ? 0 : 0.9f;
        lg_sampled out = sample(r, &s, V, V);
        assert_true(out.id % 7 == 3);
        assert_int_equal(out.n_top, n_set < LG_MAX_TOP ? n_set : LG_MAX_TOP);
        for (uint32_t i = 0; i < out.n_top; i++) assert_true(out.top[i].id % 7 == 3);
    }
    memset(mask, 0, sizeof mask);
    mask[2] = 1u << 5;
    assert_int_equal(sample(r, &s, V, V).id, 69);
    assert_int_equal(sample(r, &s, V, V).n_top, 1);
}

static void test_numbers_that_are_not_finite_are_seen(void **state) {
    rig *r = *state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    lg_sampler s = plain();
    for (uint32_t b = 0; b < 3; b++)
        for (uint32_t at = 0; at < 70; at++) {
            for (uint32_t i = 0; i < 70; i++) r->logits[i] = noise(6, i);
            s.params.temperature = at % 2 ? 1.0f : 0.0f;
            assert_false(sample(r, &s, 70, 70).nonfinite);
            r->logits[at] = bad[b];
            assert_true(sample(r, &s, 70, 70).nonfinite);
        }
}

static void test_seed_choice_and_position_move_the_draw(void **state) {
    rig *r = *state;
    for (uint32_t i = 0; i < 1000; i++) r->logits[i] = 0.0f;
    lg_sampler s = plain();
    uint32_t first = sample(r, &s, 1000, 1000).id;
    assert_int_equal(sample(r, &s, 1000, 1000).id, first);
    s.params.choice = 1;
    assert_int_not_equal(sample(r, &s, 1000, 1000).id, first);
    s.params.choice = 0;
    s.params.seed = 8;
    assert_int_not_equal(sample(r, &s, 1000, 1000).id, first);
    s.params.seed = 7;
    s.ids = past;
    s.n_id = 1;
    uint32_t later = sample(r, &s, 1000, 1000).id;
    assert_int_not_equal(later, first);
    s.n_id = 4; /* the same place among produced ids after a longer prompt */
    s.n_prompt = 3;
    assert_int_equal(sample(r, &s, 1000, 1000).id, later);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws_have_the_exact_probabilities),
        cmocka_unit_test(test_every_filter_equals_the_definition),
        cmocka_unit_test(test_greedy_takes_the_lower_of_equals),
        cmocka_unit_test(test_penalties_follow_their_formulas),
        cmocka_unit_test(test_logprobs_come_before_temperature_and_filters),
        cmocka_unit_test(test_padding_rows_do_not_exist),
        cmocka_unit_test(test_masked_ids_do_not_exist),
        cmocka_unit_test(test_numbers_that_are_not_finite_are_seen),
        cmocka_unit_test(test_seed_choice_and_position_move_the_draw),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
