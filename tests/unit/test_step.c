/* test_step.c - the step's programs on XLA's CPU plugin against reference tensors: every golden model and every
 * tensor; then the looped form, both forms of the experts, ragged and split batches, narrow types, and what padding
 * may not touch. */
#include "backend/pjrt/mosaic/kernels.h"
#include "golden.h"
#include "pjrt_rig.h"
#include "rig.h"
#include "step_rig.h"

#include "base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_SLOT   6
#define N_PAGE   33
#define MAX_KIND 48

static lg_pjrt_client *client;
static lg_pool *pool;

static const uint32_t pages[4][6] = {{7, 2, 19, 0, 11, 5},
                                     {3, 21, 8, 14, 1, 23},
                                     {9, 4, 17, 6, 22, 10},
                                     {12, 20, 15, 13, 16, 18}};

/* One prompt of up to 257 rows; four sequences of one row; four prompts. */
static const lg_pjrt_bucket prompt_bucket = {
    .n_many = 1, .n_row = 257, .n_page = 6, .n_out = 257, .logits = true, .trace = true};
static const lg_pjrt_bucket decode_bucket = {
    .n_one = 4, .n_page = 6, .n_out = 4, .logits = true};
static const lg_pjrt_bucket ragged_bucket = {
    .n_many = 4, .n_row = 97, .n_page = 6, .n_out = 199, .logits = true};

/* Worst error of one kind of tensor. */
typedef struct kind_row {
    char kind[64];
    uint32_t n_tensor;
    double worst, tol;
} kind_row;

typedef struct model_case {
    const char *name;
    lg_weights *w;
    step_rig rig;
    golden gold;
    kind_row kind[MAX_KIND];
    uint32_t n_kind;
} model_case;

/* As in test_golden.c. */
static double tolerance(const model_case *m, const char *tensor, const char *kind) {
    bool first = strcmp(m->name, "tiny-moe") == 0 && strncmp(tensor, "p1.", 3) == 0;
    if (strcmp(kind, "logits") == 0 || strcmp(kind, "decode_logits") == 0)
        return first ? 1e-2 : 1e-3;
    if (strcmp(kind, "hidden") == 0 || strcmp(kind, "conv") == 0) return first ? 2e-3 : 5e-4;
    if (strcmp(kind, "state") == 0) return first ? 5e-4 : 1e-4;
    if (strcmp(kind, "gdn.gated_norm") == 0) return 1e-3;
    return 5e-4;
}

static void note(model_case *m, const golden_tensor *t, double diff) {
    char kind[64];
    golden_kind(t, kind, sizeof kind);
    double tol = tolerance(m, t->name, kind);
    if (tolerance(m, "", kind) != tol) strcat(kind, " (p1)");
    uint32_t i = 0;
    while (i < m->n_kind && strcmp(m->kind[i].kind, kind) != 0) i++;
    assert_true(i < MAX_KIND);
    kind_row *row = &m->kind[i];
    if (i == m->n_kind) {
        m->n_kind++;
        snprintf(row->kind, sizeof row->kind, "%s", kind);
    }
    row->n_tensor += !t->seen;
    row->tol = tol;
    if (diff > row->worst) row->worst = diff;
    if (!(diff <= tol))
        fail_msg("%s: %s differs by %g, allowed %g", m->name, t->name, diff, tol);
}

static void compare(model_case *m, golden_tensor *t, size_t from, const float *x, size_t n) {
    assert_true(from + n <= t->n);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d =
            fabs((t->f ? (double)t->f[from + i] : (double)t->i[from + i]) - (double)x[i]);
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
    }
    note(m, t, worst);
    t->seen = true;
}

static golden_tensor *must_find(model_case *m, const char *prompt, const char *what) {
    golden_tensor *t = golden_find(&m->gold, "%s.%s", prompt, what);
    if (!t) fail_msg("%s: no tensor %s.%s", m->name, prompt, what);
    return t;
}

static const uint32_t *ids_of(model_case *m, const char *prompt, uint32_t *n) {
    golden_tensor *t = must_find(m, prompt, "ids");
    t->seen = true;
    *n = (uint32_t)t->n;
    return (const uint32_t *)t->i;
}

static step_rig_seq rows(uint32_t slot, uint32_t pos, const uint32_t *tok, uint32_t n,
                         uint32_t n_out) {
    return (step_rig_seq){.slot = slot,
                          .pos = pos,
                          .page = pages[slot],
                          .n_page = 6,
                          .tok = tok,
                          .n_tok = n,
                          .n_out = n_out};
}

static void run(model_case *m, const lg_pjrt_bucket *b, const step_rig_seq *seq, uint32_t n_seq,
                uint32_t n_one, bool debug) {
    step_rig_batch batch = {seq, n_seq, n_one};
    step_rig_step(&m->rig, b, &batch, debug);
}

static void check_states(model_case *m, const char *prompt, uint32_t slot) {
    const lg_config *c = &m->w->cfg;
    size_t conv = 3 * (size_t)lg_config_conv_dim(c),
           n_s = (size_t)c->n_v_head * c->d_k * c->d_v, n, at = 0;
    float *s = step_rig_pool(&m->rig, LG_PJRT_POOL_S, 0, &n),
          *u = step_rig_pool(&m->rig, LG_PJRT_POOL_CONV, 0, &n);
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (c->layer[l] == LG_LAYER_ATTN) continue;
        golden_tensor *ts = golden_find(&m->gold, "%s.state.L%u", prompt, l);
        golden_tensor *tc = golden_find(&m->gold, "%s.conv.L%u", prompt, l);
        size_t row = at++ * N_SLOT + slot;
        if (!ts || !tc) continue;
        compare(m, ts, 0, s + row * n_s, n_s);
        compare(m, tc, conv / 3, u + row * conv, conv); /* the oldest of four is not kept */
    }
    lg_mem_free(s);
    lg_mem_free(u);
}

static void check_hidden(model_case *m, const char *prompt, uint32_t n) {
    golden_tensor *t = must_find(m, prompt, "hidden");
    size_t keep = t->shape[1], width = t->shape[2];
    for (size_t l = 0; l < t->shape[0]; l++)
        compare(m, t, l * keep * width,
                m->rig.trace + (l * prompt_bucket.n_row + n - keep) * width, keep * width);
}

/* Greedy steps of up to four sequences side by side: ids exact, on device and host; logits within tolerance. */
static void check_decode(model_case *m, const char *const *prompt, const uint32_t *n,
                         const float *const *last, const int32_t *last_id, uint32_t n_seq) {
    uint32_t n_vocab = m->w->cfg.n_vocab, id[4];
    const float *row[4];
    int32_t got[4];
    for (uint32_t i = 0; i < n_seq; i++) {
        row[i] = last[i];
        got[i] = last_id[i];
    }
    uint32_t n_step = (uint32_t)must_find(m, prompt[0], "decode_ids")->n;
    for (uint32_t j = 0; j < n_step; j++) {
        step_rig_seq seq[4];
        for (uint32_t i = 0; i < n_seq; i++) {
            golden_tensor *ids = must_find(m, prompt[i], "decode_ids"),
                          *want = must_find(m, prompt[i], "decode_logits");
            ids->seen = true;
            compare(m, want, (size_t)j * n_vocab, row[i], n_vocab);
            id[i] = rig_argmax(row[i], n_vocab);
            assert_int_equal(id[i], ids->i[j]);
            assert_int_equal(got[i], ids->i[j]);
            seq[i] = rows(i, n[i] + j, &id[i], 1, 1);
        }
        if (j + 1 == n_step) break;
        run(m, &decode_bucket, seq, n_seq, n_seq, false);
        for (uint32_t i = 0; i < n_seq; i++) {
            row[i] = m->rig.logits + i * n_vocab;
            got[i] = m->rig.id[i];
        }
    }
}

static void check_prompt(model_case *m, const char *prompt) {
    uint32_t n, n_vocab = m->w->cfg.n_vocab;
    const uint32_t *ids = ids_of(m, prompt, &n);
    step_rig_seq seq = rows(0, 0, ids, n, n);
    run(m, &prompt_bucket, &seq, 1, 0, false);
    compare(m, must_find(m, prompt, "logits"), 0, m->rig.logits, (size_t)n * n_vocab);
    check_hidden(m, prompt, n);
    check_states(m, prompt, 0);
    float *last = lg_mem_calloc(n_vocab, sizeof *last);
    memcpy(last, m->rig.logits + (size_t)(n - 1) * n_vocab, n_vocab * sizeof *last);
    int32_t id = m->rig.id[n - 1];
    check_decode(m, &prompt, &n, (const float *const[]){last}, &id, 1);
    lg_mem_free(last);
}

/* Every intermediate of p65. */
static void check_trace(model_case *m) {
    if (!golden_find(&m->gold, "p65.ids")) return;
    uint32_t n;
    const uint32_t *ids = ids_of(m, "p65", &n);
    lg_pjrt_bucket b = {.n_many = 1, .n_row = n, .n_page = 6, .n_out = 1};
    step_rig_seq seq = rows(2, 0, ids, n, 1);
    run(m, &b, &seq, 1, 0, true);
    for (uint32_t i = 0; i < m->rig.debug.n; i++) {
        int layer = m->rig.debug.item[i].layer;
        const char *name = m->rig.debug.item[i].name;
        golden_tensor *t = layer < 0 ? golden_find(&m->gold, "trace.%s", name)
                                     : golden_find(&m->gold, "trace.L%d.%s", layer, name);
        if (!t) fail_msg("%s: no reference for %s of layer %d", m->name, name, layer);
        assert_int_equal(t->n, lg_hlo_count(m->rig.debug.item[i].type));
        compare(m, t, 0, m->rig.item[i], t->n);
    }
}

static void check_two_segments(model_case *m) {
    golden_tensor *t = golden_find(&m->gold, "twoseg.logits");
    if (!t) return;
    uint32_t n, n_vocab = m->w->cfg.n_vocab;
    const uint32_t *ids = ids_of(m, "p257", &n);
    uint32_t cut = n - (uint32_t)t->shape[0];
    step_rig_seq seq = rows(1, 0, ids, cut, 0);
    run(m, &prompt_bucket, &seq, 1, 0, false);
    seq = rows(1, cut, ids + cut, n - cut, n - cut);
    run(m, &prompt_bucket, &seq, 1, 0, false);
    compare(m, t, 0, m->rig.logits, (size_t)(n - cut) * n_vocab);
    check_states(m, "p257", 1);
}

/* The ragged prompts in one batch, decoded together. */
static void check_ragged(model_case *m) {
    if (!golden_find(&m->gold, "ragged0.ids")) return;
    static const char *const name[4] = {"ragged0", "ragged1", "ragged2", "ragged3"};
    uint32_t n[4], n_vocab = m->w->cfg.n_vocab;
    step_rig_seq seq[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t *ids = ids_of(m, name[i], &n[i]);
        seq[i] = rows(i, 0, ids, n[i], n[i]);
    }
    run(m, &ragged_bucket, seq, 4, 0, false);
    const float *row = m->rig.logits;
    const int32_t *got = m->rig.id;
    float *last = lg_mem_calloc(4 * (size_t)n_vocab, sizeof *last);
    int32_t id[4];
    for (uint32_t i = 0; i < 4; i++) {
        compare(m, must_find(m, name[i], "logits"), 0, row, (size_t)n[i] * n_vocab);
        row += (size_t)n[i] * n_vocab;
        got += n[i];
        memcpy(last + (size_t)i * n_vocab, row - n_vocab, n_vocab * sizeof *last);
        id[i] = got[-1];
    }
    const float *const at[4] = {last, last + n_vocab, last + 2 * n_vocab, last + 3 * n_vocab};
    check_decode(m, name, n, at, id, 4);
    lg_mem_free(last);
}

static void report(model_case *m) {
    for (size_t i = 0; i < m->gold.n; i++)
        if (!m->gold.tensor[i].seen && strncmp(m->gold.tensor[i].name, "mtp.", 4) != 0)
            fail_msg("%s: tensor %s was not compared", m->name, m->gold.tensor[i].name);
    for (uint32_t i = 0; i < m->n_kind; i++)
        printf("  %-14s %-22s %4u tensors  max error %.2e, allowed %.0e\n", m->name,
               m->kind[i].kind, m->kind[i].n_tensor, m->kind[i].worst, m->kind[i].tol);
    printf("  %-14s compiled %u programs in %.1f s\n", m->name, m->rig.n_exe, m->rig.compile_s);
}

static lg_pjrt_model plain(void) {
    return (lg_pjrt_model){.n_device = 1,
                           .weight = LG_PJRT_F32,
                           .kv = LG_PJRT_F32,
                           .state = LG_PJRT_F32,
                           .n_slot = N_SLOT,
                           .n_page = N_PAGE,
                           .n_ctx = 512,
                           .unrolled = true};
}

/* Parts of a step as twins of our kernels, and sums along the wires: what surrounds the kernels, on this plugin. */
static lg_kernels kernels;
static bool use_twins;

static void twins(lg_pjrt_model *how, const lg_config *cfg) {
    static const uint32_t place[8] = {3, 0, 6, 5, 1, 7, 4, 2};
    lg_pjrt_device_info dev[8] = {0};
    for (uint32_t i = 0; i < how->n_device; i++) {
        uint32_t at = how->n_device == 8 ? place[i] : i;
        dev[i].core = at % 2;
        dev[i].coord[0] = at / 2 % 2;
        dev[i].coord[1] = at / 4;
    }
    how->cfg = cfg;
    lg_kernels_init(&kernels, how, dev, true);
    how->parts = &kernels.parts;
}

static void open_model(model_case *m, const char *name, lg_pjrt_model how) {
    char models[512], goldens[512], path[1100];
    lg_err err = {0};
    memset(m, 0, sizeof *m);
    m->name = name;
    assert_true(rig_data(0, models, goldens));
    snprintf(path, sizeof path, "%s/%s", models, name);
    if (lg_weights_open(path, pool, NULL, NULL, &m->w, &err) != LG_OK) fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/%s.safetensors", goldens, name);
    if (golden_open(&m->gold, path, &err) != LG_OK) fail_msg("%s", err.msg);
    how.n_sample_vocab = m->w->cfg.n_vocab;
    if (use_twins) twins(&how, &m->w->cfg);
    step_rig_open(&m->rig, client, m->w, &how);
}

static void close_model(model_case *m) {
    step_rig_close(&m->rig);
    lg_weights_close(&m->w);
    golden_close(&m->gold);
}

static model_case one;

#define NEEDS_PLUGIN                                                                           \
    if (!client) skip()

static void check_all(const char *name) {
    static const char *const prompts[] = {"p1", "p5", "p64", "p65", "p130", "p257"};
    open_model(&one, name, plain());
    for (size_t i = 0; i < LG_COUNT(prompts); i++)
        if (golden_find(&one.gold, "%s.ids", prompts[i])) check_prompt(&one, prompts[i]);
    check_trace(&one);
    check_two_segments(&one);
    check_ragged(&one);
    report(&one);
    close_model(&one);
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

/* Largest difference of the last rows' logits, [n][n_vocab], from golden rows of `prompt` from row `from` on. */
static double off_golden(model_case *m, const char *prompt, uint32_t from, uint32_t n,
                         const float *logits) {
    golden_tensor *t = must_find(m, prompt, "logits");
    size_t n_vocab = m->w->cfg.n_vocab;
    assert_true((from + n) * n_vocab <= t->n);
    return rig_max_diff(t->f + from * n_vocab, logits, n * n_vocab);
}

/* A prompt in pieces, every row's logits against the reference's for one piece. */
static double run_pieces(model_case *m, const char *prompt, const piece *p, uint32_t n_piece,
                         uint32_t slot) {
    uint32_t n, at = 0;
    const uint32_t *ids = ids_of(m, prompt, &n);
    double worst = 0;
    for (uint32_t i = 0; i < n_piece && at < n; i++) {
        uint32_t k = p[i].n < n - at ? p[i].n : n - at;
        step_rig_seq seq = rows(slot, at, ids + at, k, k);
        run(m, p[i].one ? &decode_bucket : &prompt_bucket, &seq, 1, p[i].one, false);
        double d = off_golden(m, prompt, at, k, m->rig.logits);
        if (!(d <= worst)) worst = d;
        at += k;
    }
    assert_int_equal(at, n);
    return worst;
}

static void test_splits(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    open_model(&one, "tiny-moe", plain());
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
    const uint32_t *ids = ids_of(&one, "p5", &n);
    for (uint32_t i = 0; i < n; i++) {
        step_rig_seq seq = rows(0, i, ids + i, 1, 1);
        run(&one, &thin, &seq, 1, 0, false);
        assert_true(off_golden(&one, "p5", i, 1, one.rig.logits) < 1e-3);
    }
    close_model(&one);
}

/* One step that has everything: two sequences go on by one row while two prompts of different lengths come in, one in
 * its middle. */
static double run_mixed(model_case *m) {
    const lg_pjrt_bucket b = {
        .n_one = 3, .n_many = 3, .n_row = 80, .n_page = 6, .n_out = 150, .logits = true};
    uint32_t n[4], n_vocab = m->w->cfg.n_vocab;
    const uint32_t *ids[4];
    static const char *const name[4] = {"ragged0", "ragged1", "ragged2", "ragged3"};
    for (uint32_t i = 0; i < 4; i++) ids[i] = ids_of(m, name[i], &n[i]);
    step_rig_seq first[3] = {rows(0, 0, ids[0], n[0] - 1, 0), rows(1, 0, ids[1], n[1] - 1, 0),
                             rows(3, 0, ids[3], 30, 0)};
    run(m, &ragged_bucket, first, 3, 0, false);
    step_rig_seq all[4] = {
        rows(0, n[0] - 1, ids[0] + n[0] - 1, 1, 1), rows(1, n[1] - 1, ids[1] + n[1] - 1, 1, 1),
        rows(2, 0, ids[2], n[2], n[2]), rows(3, 30, ids[3] + 30, n[3] - 30, n[3] - 30)};
    run(m, &b, all, 4, 2, false);
    const float *row = m->rig.logits;
    double worst = off_golden(m, name[0], n[0] - 1, 1, row);
    for (uint32_t i = 1; i < 4; i++) {
        row += (size_t)all[i - 1].n_out * n_vocab;
        double d = off_golden(m, name[i], n[i] - all[i].n_out, all[i].n_out, row);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void test_mixed(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    for (int form = 0; form < 3; form++) {
        lg_pjrt_model how = plain();
        how.unrolled = form == 0;
        how.moe = form == 2 ? LG_PJRT_MOE_ALL : LG_PJRT_MOE_TILES;
        open_model(&one, "tiny-moe", how);
        if (form) assert_true(lg_step_period(&one.w->cfg) < one.w->cfg.n_layer);
        double d = run_mixed(&one);
        printf("  one row and many in one step, %s, experts %s: %.1e from the reference, "
               "compiled in %.1f s\n",
               form ? "in a loop" : "written out", form == 2 ? "all" : "by tiles", d,
               one.rig.compile_s);
        assert_true(d < 1e-3);
        close_model(&one);
    }
}

/* The looped form against the reference: prompts, pieces, decode. */
static void test_loop(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    lg_pjrt_model how = plain();
    how.unrolled = false;
    open_model(&one, "tiny-moe", how);
    check_prompt(&one, "p5");
    check_prompt(&one, "p257");
    check_two_segments(&one);
    printf("  in a loop: logits within %.1e, compiled %u programs in %.1f s\n",
           one.kind[0].worst, one.rig.n_exe, one.rig.compile_s);
    close_model(&one);
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
    lg_pjrt_model how = plain();
    how.n_ctx = 2048;
    open_model(&one, "tiny-moe", how);
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
        run(&one, &b, &seq, 1, 0, false);
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
    close_model(&one);
}

/* Everything of a pool but rows of `unit` floats that `used` names; pool [layer][unit number][unit]. */
static void check_untouched(model_case *m, lg_pjrt_pool which, const float *before,
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
    open_model(&one, "tiny-moe", plain());
    float *before[LG_PJRT_N_POOL];
    for (int p = 0; p < LG_PJRT_N_POOL; p++) before[p] = step_rig_pool(&one.rig, p, 0, &n);
    const uint32_t *ids = ids_of(&one, "p65", &(uint32_t){0});
    /* Two rows of a prompt in page 9 alone, and a sequence of one row in page 3. */
    step_rig_seq seq[2] = {rows(1, 0, ids, 1, 1), rows(2, 0, ids, 2, 2)};
    run(&one, &b, seq, 2, 1, false);
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
    close_model(&one);
}

/* A sequence whose state is not a number says so, and its batch mates do not notice. */
static void test_broken_mate(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    const lg_pjrt_bucket b = {
        .n_one = 2, .n_many = 2, .n_row = 64, .n_page = 6, .n_out = 67, .logits = true};
    for (int all = 0; all < 2; all++) {
        lg_pjrt_model how = plain();
        how.moe = all ? LG_PJRT_MOE_ALL : LG_PJRT_MOE_TILES;
        open_model(&one, "tiny-moe", how);
        uint32_t n;
        const uint32_t *ids = ids_of(&one, "p64", &n);
        /* The pools hold no numbers yet, and two of the sequences claim 64 positions of them. */
        step_rig_seq seq[3] = {rows(0, 64, ids, 1, 1), rows(1, 64, ids, 2, 2),
                               rows(2, 0, ids, n, n)};
        run(&one, &b, seq, 3, 1, false);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(one.rig.id[i], -1);
            assert_true(isnan(one.rig.logprob[i]));
        }
        assert_true(off_golden(&one, "p64", 0, n,
                               one.rig.logits + 3 * (size_t)one.w->cfg.n_vocab) < 1e-3);
        for (uint32_t i = 3; i < n + 3; i++)
            assert_true(one.rig.id[i] >= 0 && isfinite(one.rig.logprob[i]));
        close_model(&one);
    }
}

/* ---- against the CPU backend, where there is no reference file ---- */

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
    if (lg_backend_open(w, &opt, pool, &be, &err) != LG_OK) fail_msg("%s", err.msg);
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
    snprintf(full, sizeof full, "%s/%s", getenv("LG_SOURCE_DIR"), path);
    if (lg_weights_open(full, pool, NULL, NULL, &one.w, &err) != LG_OK) fail_msg("%s", err.msg);
    uint32_t n_vocab = one.w->cfg.n_vocab, ids[N_TEXT];
    how.n_sample_vocab = n_vocab;
    step_rig_open(&one.rig, client, one.w, &how);
    float *want = lg_mem_calloc((size_t)N_TEXT * n_vocab, sizeof *want);
    assert_non_null(want);
    own_text(one.w, first, ids, want);
    lg_pjrt_bucket b = {
        .n_many = 1, .n_row = N_TEXT, .n_page = 6, .n_out = N_TEXT, .logits = true};
    step_rig_seq seq = rows(0, 0, ids, N_TEXT, N_TEXT);
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
    lg_pjrt_model how = plain();
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
    likeness l = against_cpu("tests/data/gguf/tiny-dense-r3-F16.gguf", plain(), 5);
    assert_true(l.worst < 1e-3 && l.same == N_TEXT);
}

/* Experts kept in FP8 with their blocks' scales: the same numbers as widened ones, so the same reference. */
static void test_fp8(void **state) {
    (void)state;
    NEEDS_PLUGIN;
    for (int all = 0; all < 2; all++) {
        lg_pjrt_model how = plain();
        how.expert = LG_PJRT_F8E4M3FN;
        how.moe = all ? LG_PJRT_MOE_ALL : LG_PJRT_MOE_TILES;
        open_model(&one, "tiny-moe-fp8", how);
        check_prompt(&one, "p5");
        check_prompt(&one, "p65");
        printf("  FP8 experts, %s: logits within %.1e, compiled in %.1f s\n",
               all ? "all" : "by tiles", one.kind[0].worst, one.rig.compile_s);
        close_model(&one);
    }
}

/* ---- several devices ---- */

/* Every device has rows of its own, one has none; experts are divided.  Each row's logits are the reference's. */
static void check_devices(uint32_t n_dev, lg_pjrt_moe moe, bool unrolled) {
    static const char *const name[4] = {"ragged0", "ragged1", "ragged2", "ragged3"};
    const lg_pjrt_bucket b = {
        .n_many = 1, .n_row = 97, .n_page = 6, .n_out = 97, .logits = true};
    const lg_pjrt_bucket next = {.n_one = 2, .n_page = 6, .n_out = 2, .logits = true};
    lg_pjrt_model how = plain();
    how.n_device = n_dev;
    how.moe = moe;
    how.unrolled = unrolled;
    open_model(&one, "tiny-moe", how);
    uint32_t n[4], n_vocab = one.w->cfg.n_vocab, id[8];
    step_rig_seq seq[8];
    step_rig_batch batch[8];
    double worst = 0, later = 0;
    assert_true(n_dev <= 8);
    for (uint32_t d = 0; d < n_dev; d++) {
        const uint32_t *ids = ids_of(&one, name[d % 4], &n[d % 4]);
        seq[d] = rows(d % 3, 0, ids, n[d % 4], n[d % 4]);
        batch[d] = (step_rig_batch){&seq[d], d != 5, 0};
    }
    step_rig_step(&one.rig, &b, batch, false);
    for (uint32_t d = 0; d < n_dev; d++) {
        if (d == 5) continue;
        const float *row = one.rig.logits + (size_t)d * b.n_out * n_vocab;
        double off = off_golden(&one, name[d % 4], 0, n[d % 4], row);
        if (!(off <= worst)) worst = off;
        id[d] = rig_argmax(row + (size_t)(n[d % 4] - 1) * n_vocab, n_vocab);
        assert_int_equal(id[d], one.rig.id[d * b.n_out + n[d % 4] - 1]);
        seq[d] = rows(d % 3, n[d % 4], &id[d], 1, 1);
        batch[d] = (step_rig_batch){&seq[d], 1, 1};
    }
    step_rig_step(&one.rig, &next, batch, false);
    for (uint32_t d = 0; d < n_dev; d++) {
        if (d == 5) continue;
        golden_tensor *t = must_find(&one, name[d % 4], "decode_logits");
        double off = rig_max_diff(t->f + n_vocab,
                                  one.rig.logits + (size_t)d * next.n_out * n_vocab, n_vocab);
        if (!(off <= later)) later = off;
    }
    printf("  %u devices, experts %s, %s: prompts within %.1e, the next token within %.1e of "
           "the reference; compiled in %.1f s\n",
           n_dev, moe == LG_PJRT_MOE_ALL ? "all" : "by tiles",
           unrolled ? "written out" : "in a loop", worst, later, one.rig.compile_s);
    assert_true(worst < 1e-3 && later < 1e-3);
    close_model(&one);
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
    lg_pjrt_model how = plain();
    use_twins = true;
    how.unrolled = false;
    open_model(&one, "tiny-moe", how);
    printf("  %s\n", lg_kernels_about(&kernels));
    check_prompt(&one, "p5");
    check_prompt(&one, "p257");
    check_two_segments(&one);
    check_ragged(&one);
    double d = run_mixed(&one);
    printf("  with twins of our kernels: logits within %.1e, mixed %.1e of the reference\n",
           one.kind[0].worst, d);
    assert_true(d < 1e-3);
    close_model(&one);
    check_devices(8, LG_PJRT_MOE_TILES, false);
    check_devices(2, LG_PJRT_MOE_TILES, true);
    use_twins = false;
}

static int start(void **state) {
    (void)state;
    lg_err err;
    lg_pjrt_options o;
    lg_pjrt_plugin *plugin = NULL;
    const char *path = pjrt_rig_path("cpu");
    if (lg_pool_open(2, &pool, &err) != LG_OK) return 1;
    if (!path) return 0;
    if (lg_pjrt_plugin_open(path, &plugin, &err) == LG_OK &&
        lg_pjrt_options_parse("cpu_device_count=8", &o, &err) == LG_OK &&
        lg_pjrt_client_open(plugin, &o, &client, &err) == LG_OK)
        return 0;
    printf("%s\n", err.msg);
    return 1;
}

static int finish(void **state) {
    (void)state;
    lg_pjrt_client_close(&client);
    lg_pool_close(&pool);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),     cmocka_unit_test(test_loop),
        cmocka_unit_test(test_splits),      cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_padding),     cmocka_unit_test(test_bundled),
        cmocka_unit_test(test_devices),     cmocka_unit_test(test_tiled_heads),
        cmocka_unit_test(test_fp8),         cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_broken_mate), cmocka_unit_test(test_twins)};
    cmocka_set_test_filter(getenv("LG_STEP_TEST"));
    return cmocka_run_group_tests(tests, start, finish);
}
