/* test_golden.c - the forward pass against reference tensors: every golden model, every tensor.
 *
 * Prints the worst error per model and kind of tensor.  A tensor that is not compared fails the test, except the draft head's
 * (mtp.*), which is counted.  Then a table of deliberate faults, each of which must leave the tolerance. */
#include "golden.h"
#include "rig.h"

#include "base/json.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_TOK     260
#define N_PAGE      32
#define N_LONG_PAGE 32
#define LONG_STEP   187

typedef struct model_case {
    const char *name;
    lg_weights *w;
    lg_backend *be;
    golden gold;
    uint32_t n_skipped;
    bool trace_all;        /* compare every intermediate with trace.* */
    const char *hidden_of; /* compare the residual stream with this prompt's */
} model_case;

static const uint32_t pages[4][6] = {{7, 2, 19, 0, 11, 5},
                                     {3, 21, 8, 14, 1, 23},
                                     {9, 4, 17, 6, 22, 10},
                                     {12, 20, 15, 13, 16, 18}};

static void on_trace(void *ctx, int layer, const char *name, const float *data, size_t n_row,
                     size_t n_col, size_t ld) {
    model_case *m = ctx;
    if (m->trace_all && strcmp(name, "embed") != 0) {
        golden_tensor *t = layer < 0 ? golden_find(&m->gold, "trace.%s", name)
                                     : golden_find(&m->gold, "trace.L%d.%s", layer, name);
        if (!t) fail_msg("%s: no reference for %s of layer %d", m->name, name, layer);
        assert_int_equal(t->n, n_row * n_col);
        golden_compare(&m->gold, t, 0, data, n_row, n_col, ld);
    }
    bool embed = strcmp(name, "embed") == 0;
    if (m->hidden_of && (embed || strcmp(name, "out") == 0)) {
        size_t at = embed ? 0 : (size_t)layer + 1;
        golden_tensor *t = golden_must_find(&m->gold, m->hidden_of, "hidden");
        size_t keep = t->shape[1];
        assert_true(keep <= n_row && t->shape[2] == n_col);
        golden_compare(&m->gold, t, at * keep * n_col, data + (n_row - keep) * ld, keep, n_col,
                       ld);
    }
}

static rig_seq rows(uint32_t slot, uint32_t pos, const uint32_t *tok, uint32_t n,
                    uint32_t n_out) {
    return (rig_seq){.slot = slot,
                     .pos = pos,
                     .page = pages[slot],
                     .n_page = 6,
                     .tok = tok,
                     .n_tok = n,
                     .n_out = n_out};
}

static void check_states(model_case *m, const char *prompt, uint32_t slot, uint32_t n_tok) {
    const lg_config *c = &m->w->cfg;
    size_t conv_dim = lg_config_conv_dim(c), n_s = (size_t)c->n_v_head * c->d_k * c->d_v;
    float *s = lg_mem_calloc(n_s, sizeof *s), *conv = lg_mem_calloc(3 * conv_dim, sizeof *conv);
    for (uint32_t l = 0; l < c->n_layer; l++) {
        golden_tensor *ts = golden_find(&m->gold, "%s.state.L%u", prompt, l);
        golden_tensor *tc = golden_find(&m->gold, "%s.conv.L%u", prompt, l);
        if (!ts || !tc) continue;
        lg_backend_read_state(m->be, slot, n_tok, l, s, conv);
        golden_compare(&m->gold, ts, 0, s, 1, n_s, n_s);
        golden_compare(&m->gold, tc, conv_dim, conv, 3, conv_dim,
                       conv_dim); /* the oldest of four is not kept */
    }
    lg_mem_free(s);
    lg_mem_free(conv);
}

/* Greedy steps of up to four sequences side by side, each after its prompt of n[i] rows whose last logits row is in
 * last[i]: ids exact, logits within tolerance. */
static void check_decode(model_case *m, const char *const *prompt, const uint32_t *n,
                         const float *const *last, uint32_t n_seq) {
    uint32_t n_vocab = m->w->cfg.n_vocab, id[4];
    const float *row[4];
    for (uint32_t i = 0; i < n_seq; i++) row[i] = last[i];
    uint32_t n_step = (uint32_t)golden_must_find(&m->gold, prompt[0], "decode_ids")->n;
    for (uint32_t j = 0; j < n_step; j++) {
        rig_seq seq[4];
        for (uint32_t i = 0; i < n_seq; i++) {
            golden_tensor *ids = golden_must_find(&m->gold, prompt[i], "decode_ids");
            golden_tensor *want = golden_must_find(&m->gold, prompt[i], "decode_logits");
            ids->seen = true;
            golden_compare(&m->gold, want, (size_t)j * n_vocab, row[i], 1, n_vocab, n_vocab);
            id[i] = rig_argmax(row[i], n_vocab);
            assert_int_equal(id[i], ids->i[j]);
            seq[i] = rows(i, n[i] + j, &id[i], 1, 1);
        }
        if (j + 1 == n_step) break;
        lg_step_out out = {0};
        rig_step(m->be, seq, n_seq, &out);
        for (uint32_t i = 0; i < n_seq; i++) row[i] = out.logits + i * out.ld_logits;
    }
}

static void check_prompt(model_case *m, const char *prompt) {
    uint32_t n, n_vocab = m->w->cfg.n_vocab;
    const uint32_t *ids = golden_ids(&m->gold, prompt, &n);
    rig_seq seq = rows(0, 0, ids, n, n);
    lg_step_out out = {0};
    m->hidden_of = prompt;
    m->trace_all = strcmp(prompt, "p65") == 0;
    rig_step(m->be, &seq, 1, &out);
    m->hidden_of = NULL;
    m->trace_all = false;
    golden_compare(&m->gold, golden_must_find(&m->gold, prompt, "logits"), 0, out.logits, n,
                   n_vocab, out.ld_logits);
    check_states(m, prompt, 0, n);
    const float *last = out.logits + (n - 1) * out.ld_logits;
    check_decode(m, &prompt, &n, &last, 1);
}

static void check_two_segments(model_case *m) {
    golden_tensor *t = golden_find(&m->gold, "twoseg.logits");
    if (!t) return;
    uint32_t n, n_vocab = m->w->cfg.n_vocab;
    const uint32_t *ids = golden_ids(&m->gold, "p257", &n);
    uint32_t cut = n - (uint32_t)t->shape[0];
    lg_step_out out = {0};
    rig_seq seq = rows(1, 0, ids, cut, 0);
    rig_step(m->be, &seq, 1, &out);
    seq = rows(1, cut, ids + cut, n - cut, n - cut);
    rig_step(m->be, &seq, 1, &out);
    golden_compare(&m->gold, t, 0, out.logits, n - cut, n_vocab, out.ld_logits);
    check_states(m, "p257", 1, n);
}

/* The ragged prompts in one batch, decoded together. */
static void check_ragged(model_case *m) {
    if (!golden_find(&m->gold, "ragged0.ids")) return;
    static const char *const name[4] = {"ragged0", "ragged1", "ragged2", "ragged3"};
    uint32_t n[4], n_vocab = m->w->cfg.n_vocab;
    rig_seq seq[4];
    const float *last[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t *ids = golden_ids(&m->gold, name[i], &n[i]);
        seq[i] = rows(i, 0, ids, n[i], n[i]);
    }
    lg_step_out out = {0};
    rig_step(m->be, seq, 4, &out);
    const float *row = out.logits;
    for (uint32_t i = 0; i < 4; i++) {
        golden_compare(&m->gold, golden_must_find(&m->gold, name[i], "logits"), 0, row, n[i],
                       n_vocab, out.ld_logits);
        row += n[i] * out.ld_logits;
        last[i] = row - out.ld_logits;
    }
    check_decode(m, name, n, last, 4);
}

static void report(model_case *m) {
    for (size_t i = 0; i < m->gold.n; i++) {
        const golden_tensor *t = &m->gold.tensor[i];
        if (strncmp(t->name, "mtp.", 4) == 0)
            m->n_skipped++;
        else if (!t->seen)
            fail_msg("%s: tensor %s was not compared", m->name, t->name);
    }
    for (uint32_t i = 0; i < m->gold.n_row; i++) {
        const golden_row *r = &m->gold.row[i];
        printf(
            "  %-14s %-22s %4u tensors  max error %.2e of %.3g (relative %.1e), allowed %.0e\n",
            m->name, r->kind, r->n_tensor, r->worst, r->scale,
            r->scale > 0 ? r->worst / r->scale : 0.0, r->tol);
    }
    if (m->n_skipped)
        printf("  %-14s skipped: %u tensors mtp.* (draft head is not loaded yet)\n", m->name,
               m->n_skipped);
}

static void open_backend(model_case *m, lg_pool *pool, bool trace) {
    lg_err err = {0};
    lg_backend_opt opt = {.n_slot = 4,
                          .n_page = N_PAGE,
                          .max_tok = MAX_TOK,
                          .max_seq = 4,
                          .max_out = MAX_TOK,
                          .n_sample_vocab = m->w->cfg.n_vocab,
                          .trace = trace ? on_trace : NULL,
                          .trace_ctx = m};
    if (lg_backend_open(m->w, &opt, pool, &m->be, &err) != LG_OK) fail_msg("%s", err.msg);
    rig_poison(m->be);
}

static void open_model(model_case *m, const char *name, const char *models, const char *goldens,
                       lg_pool *pool) {
    char path[1100];
    lg_err err = {0};
    *m = (model_case){.name = name};
    snprintf(path, sizeof path, "%s/%s", models, name);
    if (lg_weights_open(path, pool, NULL, NULL, &m->w, &err) != LG_OK) fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/%s.safetensors", goldens, name);
    if (golden_open(&m->gold, path, &err) != LG_OK) fail_msg("%s", err.msg);
    m->gold.name = m->name;
}

/* Minus the log-probability of `id`, in double. */
static double nll(const float *row, uint32_t n_vocab, uint32_t id) {
    double max = row[rig_argmax(row, n_vocab)], sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) sum += exp((double)row[i] - max);
    return max + log(sum) - (double)row[id];
}

/* Mean over a long text sampled from the model itself: 2,000 positions, 32 pages, against the reference's mean. */
static void check_long_text(model_case *m, const char *goldens, lg_pool *pool) {
    char path[1100];
    lg_json_doc *doc = NULL;
    lg_err err = {0};
    snprintf(path, sizeof path, "%s/ppl.json", goldens);
    if (lg_json_load(path, 1 << 20, 8, &doc, &err) != LG_OK) fail_msg("%s", err.msg);
    const lg_json *of = lg_json_get(lg_json_root(doc), m->name), *ids = lg_json_get(of, "ids");
    double want, sum = 0;
    if (of) {
        assert_true(lg_json_f64(lg_json_get(of, "mean_nll"), &want) &&
                    ids->n_child > LONG_STEP);
        uint32_t n = ids->n_child, page[N_LONG_PAGE], *tok = lg_mem_calloc(n, sizeof *tok);
        assert_true(tok && n <= N_LONG_PAGE * LG_PAGE_TOK);
        uint32_t at = 0, n_vocab = m->w->cfg.n_vocab;
        for (const lg_json *v = ids->child; v; v = v->next) {
            uint64_t id;
            assert_true(lg_json_u64(v, &id) && id < n_vocab);
            tok[at++] = (uint32_t)id;
        }
        for (uint32_t i = 0; i < N_LONG_PAGE; i++) page[i] = (i * 7 + 3) % N_LONG_PAGE;
        open_backend(m, pool, false);
        for (uint32_t pos = 0; pos < n; pos += LONG_STEP) {
            uint32_t k = n - pos < LONG_STEP ? n - pos : LONG_STEP;
            rig_seq seq = {0, pos, page, N_LONG_PAGE, tok + pos, k, k};
            lg_step_out out = {0};
            rig_step(m->be, &seq, 1, &out);
            for (uint32_t r = 0; r < k && pos + r + 1 < n; r++)
                sum += nll(out.logits + r * out.ld_logits, n_vocab, tok[pos + r + 1]);
        }
        double got = sum / (n - 1);
        printf("  %-14s %u positions: mean negative log-likelihood %.6f, reference %.6f\n",
               m->name, n, got, want);
        assert_true(fabs(got - want) < 1e-4);
        lg_mem_free(tok);
        lg_backend_close(&m->be);
    }
    lg_json_close(&doc);
}

static void close_model(model_case *m) {
    lg_backend_close(&m->be);
    lg_weights_close(&m->w);
    golden_close(&m->gold);
}

static void check_model(const char *name, const char *models, const char *goldens,
                        lg_pool *pool) {
    static const char *const prompts[] = {"p1", "p5", "p64", "p65", "p130", "p257"};
    model_case m;
    open_model(&m, name, models, goldens, pool);
    open_backend(&m, pool, true);
    for (size_t i = 0; i < LG_COUNT(prompts); i++)
        if (golden_find(&m.gold, "%s.ids", prompts[i])) check_prompt(&m, prompts[i]);
    check_two_segments(&m);
    check_ragged(&m);
    report(&m);
    lg_backend_close(&m.be);
    check_long_text(&m, goldens, pool);
    close_model(&m);
}

/* Every folder of `models` whose golden file exists. */
static uint32_t check_folder(const char *models, const char *goldens, lg_pool *pool) {
    DIR *dir = opendir(models);
    if (!dir) fail_msg("%s: cannot open", models);
    uint32_t n = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[1100];
        snprintf(path, sizeof path, "%s/%s.safetensors", goldens, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!f) continue;
        fclose(f);
        check_model(e->d_name, models, goldens, pool);
        n++;
    }
    closedir(dir);
    return n;
}

static void test_every_golden_model(void **state) {
    char models[512], goldens[512];
    lg_pool *pool = NULL;
    lg_err err;
    (void)state;
    assert_int_equal(lg_pool_open(2, &pool, &err), LG_OK);
    for (int i = 0; rig_data(i, models, goldens); i++)
        assert_true(check_folder(models, goldens, pool) > 0);
    if (!rig_data(1, models, goldens))
        printf("  skipped: models outside tests/data (LG_GOLDEN is not set)\n");
    lg_pool_close(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_golden_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
