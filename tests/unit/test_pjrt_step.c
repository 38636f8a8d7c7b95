/* test_pjrt_step.c - whole steps on XLA's CPU plugin, as the engine drives them, against reference tensors.
 *
 * Every golden model: logits of prompts in one step and in several, decoding, sequences side by side, snapshots, pages and snapshots as
 * bytes; the pools stay where they are, and what moves between host and device in a step is counted.
 * LG_PJRT_SPEC in the environment holds further options of the device ("devices=2,..."). */
#include "backend/pjrt/be.h"
#include "golden.h"
#include "pjrt_rig.h"
#include "rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_SLOT 5
#define N_SNAP 3
#define N_PAGE 24
#define N_CTX  320
#define STEP   256

static const char *const models[] = {"tiny-moe", "tiny-dense", "tiny-dense-r3", "tiny-moe-fp8"};

/* Pages of up to four sequences, in no order. */
static const uint32_t pages[4][5] = {
    {7, 2, 19, 0, 11}, {3, 21, 8, 14, 1}, {9, 4, 17, 6, 22}, {12, 20, 15, 13, 16}};

static lg_pjrt_device *device;
static const lg_backend_ops *ops;

/* One golden model under test. */
typedef struct model {
    const char *name;
    lg_weights *w;
    lg_backend *be;
    golden gold;
} model;

static model m;

static int open_model(void **state) {
    lg_err err;
    char folder[512], goldens[512], path[700];
    (void)state;
    if (!device) return 0;
    if (!rig_data(0, folder, goldens)) return 1;
    snprintf(path, sizeof path, "%s/%s", folder, m.name);
    lg_backend_opt opt = {.n_slot = N_SLOT,
                          .n_snap = N_SNAP,
                          .n_ctx = N_CTX,
                          .n_page = N_PAGE,
                          .max_tok = STEP,
                          .max_seq = 4,
                          .max_out = STEP,
                          .kv = LG_F32,
                          .device = device};
    lg_status st = lg_weights_open(path, NULL, NULL, NULL, &m.w, &err);
    snprintf(path, sizeof path, "%s/%s.safetensors", goldens, m.name);
    if (st == LG_OK) st = golden_open(&m.gold, path, &err);
    if (st == LG_OK) {
        opt.n_sample_vocab = m.w->cfg.n_vocab;
        st = ops->open(m.w, &opt, NULL, &m.be, &err);
    }
    if (st != LG_OK) {
        printf("%s: %s\n", m.name, err.msg);
        return 1;
    }
    bool fp8 = lg_pjrt_be_of(m.be)->model.expert == LG_PJRT_F8E4M3FN;
    if (fp8 != (strcmp(m.name, "tiny-moe-fp8") == 0))
        printf("%s: experts in FP8: %d\n", m.name, fp8);
    return fp8 != (strcmp(m.name, "tiny-moe-fp8") == 0);
}

static int close_model(void **state) {
    (void)state;
    if (!device) return 0;
    ops->close(&m.be);
    golden_close(&m.gold);
    lg_weights_close(&m.w);
    m.w = NULL;
    return 0;
}

#define NEEDS_PLUGIN                                                                           \
    if (!device) {                                                                             \
        printf("XLA's CPU plugin is not there (make check-pjrt fetches it)\n");                \
        skip();                                                                                \
    }

/* A sequence of a test, and where it stands. */
typedef struct seq {
    uint32_t owner, slot, pos;
    const uint32_t *page;
} seq;

/* One step of n sequences: tok[i] has n_tok[i] ids; the last n_out[i] rows give logits. */
static const float *step(seq *s, uint32_t n, const uint32_t *const *tok, const uint32_t *n_tok,
                         const uint32_t *n_out, const lg_batch_save *save,
                         const lg_sampler *sampler, lg_sampled *sampled) {
    lg_batch_seq part[4];
    uint32_t ids[STEP], table[20], at = 0, n_page = 0;
    assert_true(n <= 4);
    for (uint32_t i = 0; i < n; i++) {
        part[i] = (lg_batch_seq){.owner = s[i].owner,
                                 .slot = s[i].slot,
                                 .pos = s[i].pos,
                                 .n_tok = n_tok[i],
                                 .tok0 = at,
                                 .page0 = n_page,
                                 .n_out = n_out[i],
                                 .sampler = sampler,
                                 .save = save,
                                 .n_save = save ? 1 : 0};
        memcpy(ids + at, tok[i], n_tok[i] * sizeof *ids);
        memcpy(table + n_page, s[i].page, 5 * sizeof *table);
        at += n_tok[i];
        n_page += 5;
        s[i].pos += n_tok[i];
    }
    const lg_batch batch = {
        .tok = ids, .n_tok = at, .seq = part, .n_seq = n, .page = table, .n_page = n_page};
    lg_step_out out = {.sampled = sampled};
    assert_int_equal(ops->step(m.be, &batch, &out), LG_OK);
    return out.logits;
}

static const float *step_one(seq *s, const uint32_t *tok, uint32_t n_tok, uint32_t n_out) {
    return step(s, 1, &tok, &n_tok, &n_out, NULL, NULL, NULL);
}

static const golden_tensor *find(const char *prompt, const char *kind) {
    const golden_tensor *t = golden_find(&m.gold, "%s.%s", prompt, kind);
    if (!t) fail_msg("%s has no %s.%s", m.name, prompt, kind);
    return t;
}

static double worst;

static void expect(const float *x, const golden_tensor *t, size_t row, size_t n_row) {
    size_t v = m.w->cfg.n_vocab;
    double tol =
        strcmp(m.name, "tiny-moe") == 0 && strncmp(t->name, "p1.", 3) == 0 ? 1e-2 : 1e-3;
    double d = rig_max_diff(x, t->f + row * v, n_row * v);
    if (d > worst) worst = d;
    if (!(d <= tol))
        fail_msg("%s: %s rows %zu + %zu differ by %g, allowed %g", m.name, t->name, row, n_row,
                 d, tol);
}

/* A prompt in steps of `chunk` rows, then its continuation. */
static void run_prompt(const char *prompt, uint32_t chunk, uint32_t n_decode) {
    const golden_tensor *ids = find(prompt, "ids"), *want = find(prompt, "logits");
    const golden_tensor *next = find(prompt, "decode_ids"),
                        *after = find(prompt, "decode_logits");
    const uint32_t *tok = (const uint32_t *)ids->i;
    uint32_t n = (uint32_t)ids->n;
    seq s = {.slot = 2, .page = pages[1]};
    for (uint32_t at = 0, len; at < n; at += len) {
        len = n - at < chunk ? n - at : chunk;
        expect(step_one(&s, tok + at, len, len), want, at, len);
    }
    for (uint32_t j = 0; j + 1 < n_decode; j++)
        expect(step_one(&s, (const uint32_t *)next->i + j, 1, 1), after, j + 1, 1);
}

static void test_prompts(void **state) {
    (void)state;
    NEEDS_PLUGIN
    static const char *const prompts[] = {"p1", "p5", "p64", "p65", "p130", "p257"};
    worst = 0;
    for (size_t i = 0; i < LG_COUNT(prompts); i++)
        if (golden_find(&m.gold, "%s.ids", prompts[i])) run_prompt(prompts[i], STEP, 32);
    printf("%s: prompts in one step and 32 tokens more: at most %.2g from the reference\n",
           m.name, worst);
}

/* The prompt that is cut in tests. */
static const char *long_prompt(void) {
    return golden_find(&m.gold, "p130.ids") ? "p130" : "p65";
}

static void test_splits(void **state) {
    (void)state;
    NEEDS_PLUGIN
    static const uint32_t chunks[] = {1, 3, 16, 61, 64, 129};
    worst = 0;
    for (size_t i = 0; i < LG_COUNT(chunks); i++) run_prompt(long_prompt(), chunks[i], 2);
    printf("%s: %s in steps of 1, 3, 16, 61, 64 and 129: at most %.2g\n", m.name, long_prompt(),
           worst);
}

static void test_ragged(void **state) {
    (void)state;
    NEEDS_PLUGIN
    if (!golden_find(&m.gold, "ragged0.ids")) {
        printf("%s: no reference of several sequences\n", m.name);
        skip();
    }
    seq s[4];
    const uint32_t *tok[4];
    uint32_t n_tok[4], n_out[4];
    const golden_tensor *want[4], *next[4], *after[4];
    for (uint32_t i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "ragged%u", i);
        const golden_tensor *ids = find(name, "ids");
        s[i] = (seq){.owner = i % device->n, .slot = 3 - i, .page = pages[i]};
        tok[i] = (const uint32_t *)ids->i;
        n_tok[i] = n_out[i] = (uint32_t)ids->n;
        want[i] = find(name, "logits");
        next[i] = find(name, "decode_ids");
        after[i] = find(name, "decode_logits");
    }
    worst = 0;
    const float *x = step(s, 4, tok, n_tok, n_out, NULL, NULL, NULL);
    for (uint32_t i = 0; i < 4; x += n_tok[i++] * m.w->cfg.n_vocab)
        expect(x, want[i], 0, n_tok[i]);
    for (uint32_t j = 0; j < 7; j++) {
        for (uint32_t i = 0; i < 4; i++) {
            tok[i] = (const uint32_t *)next[i]->i + j;
            n_tok[i] = n_out[i] = 1;
        }
        x = step(s, 4, tok, n_tok, n_out, NULL, NULL, NULL);
        for (uint32_t i = 0; i < 4; i++) expect(x + i * m.w->cfg.n_vocab, after[i], j + 1, 1);
    }
    printf("%s: 4 sequences side by side on %u devices: at most %.2g\n", m.name, device->n,
           worst);
}

/* A prompt whose rows are cut by a snapshot; then the continuation from the slot, from the snapshot in another slot with a
 * copied last page, and from both after a way through bytes: the same bits. */
static void test_snapshots(void **state) {
    (void)state;
    NEEDS_PLUGIN
    if (!golden_find(&m.gold, "p130.ids")) {
        printf("%s: no reference of 130 tokens\n", m.name);
        skip();
    }
    const golden_tensor *ids = find("p130", "ids"), *want = find("p130", "logits");
    const uint32_t *tok = (const uint32_t *)ids->i, n = 130, all = 1;
    const lg_batch_save save = {.n_row = 100, .snap = 1};
    size_t v = m.w->cfg.n_vocab;
    lg_backend_plan plan;
    lg_backend_opt opt = {.n_slot = 1,
                          .n_ctx = N_CTX,
                          .n_page = 1,
                          .max_tok = 1,
                          .max_seq = 1,
                          .max_out = 1,
                          .kv = LG_F32,
                          .device = device};
    float *first = lg_mem_calloc(30 * v, sizeof *first);
    assert_non_null(first);
    seq s = {.slot = 0, .page = pages[0]};
    expect(step(&s, 1, &tok, &n, &all, &save, NULL, NULL), want, 129, 1);
    ops->plan(&m.w->cfg, &opt, 1, &plan);
    uint8_t *page = lg_mem_alloc(plan.page_bytes), *snap = lg_mem_alloc(plan.snap_bytes);
    assert_non_null(page);
    assert_non_null(snap);
    for (int way = 0; way < 2; way++) {
        /* position 100 is in page 1; the other sequence shares page 0 */
        uint32_t table[5] = {pages[0][0], way == 0 ? 23u : 5u, 10, 18, 18};
        if (way == 0) {
            ops->copy_page(m.be, 0, pages[0][1], 23);
            ops->load(m.be, 0, 4, 100, 1);
        } else {
            ops->get_page(m.be, 0, pages[0][1], 36, page);
            ops->put_page(m.be, 0, 5, page);
            ops->get_snap(m.be, 0, 1, 100, 0, snap);
            ops->put_snap(m.be, 0, 2, 0, snap);
            ops->load(m.be, 0, 1, 100, 2);
        }
        seq t = {.slot = way == 0 ? 4u : 1u, .pos = 100, .page = table};
        const float *x = step_one(&t, tok + 100, 30, 30);
        if (way == 0)
            memcpy(first, x, 30 * v * sizeof *first);
        else
            assert_memory_equal(first, x, 30 * v * sizeof *first);
        expect(x, want, 100, 30);
    }
    lg_mem_free(page);
    lg_mem_free(snap);
    lg_mem_free(first);
}

/* The device's own choice is that of the logits, and only it comes down. */
static void test_greedy(void **state) {
    (void)state;
    NEEDS_PLUGIN
    const golden_tensor *ids = find("p65", "ids"), *next = find("p65", "decode_ids"),
                        *after = find("p65", "decode_logits");
    const uint32_t *tok = (const uint32_t *)ids->i, one = 1;
    uint32_t n = 65;
    const lg_sampler greedy = {.params = {.top_p = 1, .repetition_penalty = 1, .n_top = 0}};
    lg_sampled got;
    seq s = {.slot = 1, .page = pages[2]};
    step(&s, 1, &tok, &n, &one, NULL, &greedy, &got);
    lg_pjrt_be *be = lg_pjrt_be_of(m.be);
    uintptr_t at[LG_PJRT_N_POOL];
    lg_pjrt_counts before = lg_pjrt_be_counts(m.be);
    for (uint32_t j = 0; j < 31; j++) {
        assert_false(got.nonfinite);
        assert_int_equal(got.id, next->i[j]);
        const float *x = after->f + j * m.w->cfg.n_vocab;
        double sum = 0;
        for (uint32_t i = 0; i < m.w->cfg.n_vocab; i++) sum += exp((double)(x[i] - x[got.id]));
        assert_true(fabs((double)got.logprob + log(sum)) < 1e-3);
        const uint32_t *id = &got.id;
        step(&s, 1, &id, &one, &one, NULL, &greedy, &got);
        /* pools stay where they are */
        for (uint32_t p = 0; p < be->n_pool; p++) {
            uintptr_t now = lg_pjrt_buf_address(device->client, be->arg[be->pool_arg[p]]);
            if (j > 0) assert_true(now == at[p]);
            at[p] = now;
        }
    }
    lg_pjrt_counts c = lg_pjrt_be_counts(m.be);
    uint64_t up = (c.traffic.up_bytes - before.traffic.up_bytes) / 31,
             down = (c.traffic.down_bytes - before.traffic.down_bytes) / 31;
    printf("%s: a step of one token moves %llu bytes up and %llu down\n", m.name,
           (unsigned long long)up, (unsigned long long)down);
    /* id, position, rows, slot, a page table of at most 5, output row; id and log-probability */
    assert_true(up <= 10 * sizeof(int32_t));
    assert_int_equal(down, 8);
}

/* Programs that were compiled ahead are those that a request needs. */
static void test_warm(void **state) {
    (void)state;
    NEEDS_PLUGIN
    const lg_backend_opt opt = {.n_slot = 1,
                                .n_ctx = 100,
                                .n_page = 2,
                                .max_tok = 16,
                                .max_seq = 1,
                                .max_out = 1,
                                .n_sample_vocab = m.w->cfg.n_vocab,
                                .kv = LG_F32,
                                .device = device};
    lg_backend *before = m.be;
    lg_err err = {0};
    device->warm_s = 86400;
    lg_status st = ops->open(m.w, &opt, NULL, &m.be, &err);
    device->warm_s = 0;
    if (st != LG_OK) fail_msg("%s", err.msg);
    /* one row, and 4 and 16 rows; with logits and without */
    uint64_t n = lg_pjrt_be_counts(m.be).n_compiled;
    assert_int_equal(n, 6);
    const golden_tensor *ids = find("p65", "ids"), *want = find("p65", "logits");
    static const uint32_t table[5] = {1, 0};
    seq s = {.slot = 0, .page = table};
    step_one(&s, (const uint32_t *)ids->i, 3, 0);
    step_one(&s, (const uint32_t *)ids->i + 3, 16, 0);
    expect(step_one(&s, (const uint32_t *)ids->i + 19, 11, 1), want, 29, 1);
    expect(step_one(&s, (const uint32_t *)ids->i + 30, 1, 1), want, 30, 1);
    assert_int_equal(lg_pjrt_be_counts(m.be).n_compiled, n);
    ops->close(&m.be);
    m.be = before;
}

/* Room for two programs only: what goes is there again when it is needed, and results stay right. */
static void test_loaded(void **state) {
    (void)state;
    NEEDS_PLUGIN
    static const uint32_t chunk[] = {1, 4, 16, 64};
    lg_pjrt_be *be = lg_pjrt_be_of(m.be);
    uint64_t before = be->n_compiled;
    for (uint32_t i = 0; i < 2 * LG_COUNT(chunk); i++) {
        run_prompt("p65", chunk[i % LG_COUNT(chunk)], 1);
        assert_true(be->n_program > 0 && be->n_program <= 2);
    }
    assert_true(be->n_compiled - before >= 6); /* three sizes and more, twice */
}

/* Open the first n_device of as many. */
static int start(uint32_t n_device) {
    lg_err err;
    lg_buf spec = {0};
    const char *path = pjrt_rig_path("cpu"), *more = getenv("LG_PJRT_SPEC"),
               *build = getenv("LG_BUILD_DIR");
    ops = lg_backend_pjrt();
    if (!path) return 0;
    lg_buf_printf(&spec,
                  "pjrt:%s,weights=f32,devices=%u,cpu_device_count=%u,programs=%s/pjrt-programs"
                  "%s%s",
                  path, n_device, n_device, build ? build : "build", more ? "," : "",
                  more ? more : "");
    lg_diag_set_level(getenv("LG_PJRT_LOG") ? LG_LOG_INFO : LG_LOG_WARN);
    lg_status st = lg_pjrt_device_open(lg_buf_str(&spec), &device, &err);
    if (st != LG_OK) printf("%s\n", err.msg);
    lg_buf_fini(&spec);
    return st != LG_OK;
}

static int run_model(const char *name) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts), cmocka_unit_test(test_splits),
        cmocka_unit_test(test_ragged),  cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_greedy),
    };
    m.name = name;
    return cmocka_run_group_tests(tests, open_model, close_model);
}

/* Each device has two of the four sequences, and half of the experts. */
static int run_devices(const char *name) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ragged)};
    m.name = name;
    return cmocka_run_group_tests_name("two devices", tests, open_model, close_model);
}

static int run_warm(const char *name) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_warm)};
    m.name = name;
    return cmocka_run_group_tests_name("programs ahead", tests, open_model, close_model);
}

static int run_loaded(const char *name) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loaded)};
    uint32_t loaded = device ? device->loaded : 0;
    m.name = name;
    if (device) device->loaded = 2;
    int failed = cmocka_run_group_tests_name("two programs", tests, open_model, close_model);
    if (device) device->loaded = loaded;
    return failed;
}

int main(int argc, char **argv) {
    int failed = start(1);
    for (size_t i = 0; i < LG_COUNT(models); i++)
        if (!failed && (argc < 2 || strcmp(argv[1], models[i]) == 0))
            failed = run_model(models[i]);
    if (!failed && (argc < 2 || strcmp(argv[1], "warm") == 0)) failed = run_warm("tiny-dense");
    if (!failed && (argc < 2 || strcmp(argv[1], "loaded") == 0))
        failed = run_loaded("tiny-dense");
    lg_pjrt_device_close(&device);
    if (!failed && (argc < 2 || strcmp(argv[1], "devices") == 0)) {
        failed = start(2) || run_devices("tiny-moe") || run_devices("tiny-moe-fp8");
        lg_pjrt_device_close(&device);
    }
    return failed;
}
