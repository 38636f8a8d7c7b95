/* test_togguf.c - model folders written as GGUF files and loaded again: logits beside the folder's own, by type; tokenizer;
 * what is refused, and that nothing is left of a file that was refused. */
#include "fixture.h"
#include "rig.h"

#include "base/json.h"
#include "kern/dequant.h"
#include "model/file/safetensors.h"
#include "model/file/togguf.h"
#include "model/text/tokenizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define MAX_TOK  64
#define N_PROMPT 12

static char out[300], part[310];
static lg_pool *pool;

static const uint32_t page[1] = {0};

typedef struct prompt {
    uint32_t id[MAX_TOK], n;
} prompt;

/* The logits of all positions of all prompts, [n_row][n_vocab]. */
typedef struct rows {
    float *x;
    size_t n_row, n_vocab;
} rows;

static rows run(const char *model, const prompt *p, size_t n) {
    lg_err err = {0};
    lg_weights *w;
    lg_backend *be;
    if (lg_weights_open(model, pool, NULL, NULL, &w, &err) != LG_OK) fail_msg("%s", err.msg);
    lg_backend_opt opt = {.n_slot = 1,
                          .n_page = 1,
                          .max_tok = MAX_TOK,
                          .max_seq = 1,
                          .max_out = MAX_TOK,
                          .n_sample_vocab = w->cfg.n_vocab};
    assert_int_equal(lg_backend_open(w, &opt, pool, &be, &err), LG_OK);
    rows r = {.n_vocab = w->cfg.n_vocab};
    r.x = lg_mem_calloc(n * MAX_TOK * r.n_vocab, sizeof *r.x);
    for (size_t i = 0; i < n; i++) {
        lg_step_out step;
        rig_seq s = {
            .page = page, .n_page = 1, .tok = p[i].id, .n_tok = p[i].n, .n_out = p[i].n};
        rig_step(be, &s, 1, &step);
        for (size_t t = 0; t < p[i].n; t++)
            memcpy(r.x + r.n_row++ * r.n_vocab, step.logits + t * step.ld_logits,
                   r.n_vocab * sizeof *r.x);
    }
    lg_backend_close(&be);
    lg_weights_close(&w);
    return r;
}

static double log_sum(const float *x, size_t n) {
    double top = -INFINITY, s = 0;
    for (size_t i = 0; i < n; i++) top = fmax(top, (double)x[i]);
    for (size_t i = 0; i < n; i++) s += exp((double)x[i] - top);
    return top + log(s);
}

/* Mean KL(a || b) over the rows, and the share of rows with the same best id. */
static double divergence(rows a, rows b, double *top1) {
    double sum = 0, same = 0;
    assert_true(a.n_row == b.n_row && a.n_vocab == b.n_vocab);
    for (size_t r = 0; r < a.n_row; r++) {
        const float *x = a.x + r * a.n_vocab, *y = b.x + r * a.n_vocab;
        double la = log_sum(x, a.n_vocab), lb = log_sum(y, a.n_vocab);
        for (size_t i = 0; i < a.n_vocab; i++) {
            double p = exp((double)x[i] - la);
            if (p > 0) sum += p * ((double)x[i] - la - (double)y[i] + lb);
        }
        uint32_t n = (uint32_t)a.n_vocab;
        same += rig_argmax(x, n) == rig_argmax(y, n);
    }
    *top1 = same / (double)a.n_row;
    return sum / (double)a.n_row;
}

static lg_status write_as(const char *folder, lg_dtype type, lg_err *err) {
    lg_togguf_opt opt = {.type = type};
    lg_togguf_report report;
    return lg_togguf_write(folder, out, &opt, pool, &report, err);
}

static void write_ok(const char *folder, lg_dtype type) {
    lg_err err = {0};
    if (write_as(folder, type, &err) != LG_OK) fail_msg("%s", err.msg);
}

static bool exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

/* ---- logits ---- */

static void add_ids(prompt *p, const lg_json *list) {
    for (const lg_json *v = list->child; v && p->n < MAX_TOK; v = v->next) {
        uint64_t id;
        assert_true(lg_json_u64(v, &id));
        p->id[p->n++] = (uint32_t)id;
    }
}

/* Every 16th chat of the bundled model: prompt and answer. */
static void read_prompts(prompt *p) {
    char path[512];
    static char line[1 << 14];
    FILE *f = fopen(lg_fixture_source("tests/data/eval.jsonl", path, sizeof path), "r");
    assert_non_null(f);
    for (int i = 0, n = 0; n < N_PROMPT && fgets(line, sizeof line, f); i++) {
        lg_json_doc *doc;
        lg_err err;
        if (i % 16) continue;
        assert_int_equal(lg_json_parse(line, strlen(line), 32, path, &doc, &err), LG_OK);
        p[n].n = 0;
        add_ids(&p[n], lg_json_get(lg_json_root(doc), "prompt_ids"));
        add_ids(&p[n++], lg_json_get(lg_json_root(doc), "expected_ids"));
        lg_json_close(&doc);
    }
    fclose(f);
}

/* The trained model.  Limits: three times what the weights alone cost here, and 0.003 that kernels with rounded activations
 * may add (docs/KERNELS.md). */
static void test_divergence_by_type(void **state) {
    (void)state;
    static const struct {
        lg_dtype type;
        double kl, top1;
    } limit[] = {
        {LG_F32, 1e-9, 1},      {LG_BF16, 1e-9, 1},       {LG_F16, 1e-6, 1},
        {LG_Q8_0, 3.1e-3, .98}, {LG_Q6_K, 3.6e-3, .97},   {LG_Q5_K, 5.2e-3, .95},
        {LG_Q4_K, 1e-2, .93},   {LG_IQ4_XS, 1.7e-2, .93}, {LG_MXFP4, 5.8e-3, .95},
        {LG_Q5_1, 5e-3, .95},   {LG_Q5_0, 5.6e-3, .95},   {LG_Q4_1, 1.1e-2, .93},
        {LG_Q4_0, 1.4e-2, .93}, {LG_IQ4_NL, 1.6e-2, .93},
    };
    char folder[512];
    static prompt p[N_PROMPT];
    read_prompts(p);
    lg_fixture_source("models/tiny-qwen35moe", folder, sizeof folder);
    rows want = run(folder, p, N_PROMPT);
    for (size_t i = 0; i < LG_COUNT(limit); i++) {
        double top1;
        write_ok(folder, limit[i].type);
        rows got = run(out, p, N_PROMPT);
        double kl = divergence(want, got, &top1);
        print_message("%-7s KL %.2e (limit %.0e), top-1 %.1f %%, %zu positions\n",
                      lg_dtype_name(limit[i].type), kl, limit[i].kl, 100 * top1, got.n_row);
        assert_true(kl <= limit[i].kl && top1 >= limit[i].top1);
        lg_mem_free(got.x);
    }
    lg_mem_free(want.x);
}

/* Types that lose nothing: the same logits, and the same bits where value heads keep their order. */
static void test_exact_types(void **state) {
    (void)state;
    static const struct {
        const char *model;
        lg_dtype type;
        double tol;
    } c[] = {
        {"tests/data/models/tiny-dense", LG_F32, 0},
        {"tests/data/models/tiny-dense", LG_BF16, 0},
        {"tests/data/models/tiny-dense-r3", LG_F32, 1e-3},
        {"tests/data/models/tiny-dense-r3", LG_BF16, 1e-3},
        {"tests/data/models/tiny-moe", LG_BF16, 1e-3},
        {"tests/data/models/tiny-moe-fp8", LG_F32, 1e-3},
    };
    static prompt p[1];
    char folder[512];
    p->n = 60;
    for (uint32_t i = 0; i < p->n; i++) p->id[i] = (i * 37 + 11) % 470;
    for (size_t i = 0; i < LG_COUNT(c); i++) {
        lg_fixture_source(c[i].model, folder, sizeof folder);
        rows want = run(folder, p, 1);
        write_ok(folder, c[i].type);
        rows got = run(out, p, 1);
        assert_true(want.n_row == got.n_row && want.n_vocab == got.n_vocab);
        double d = rig_max_diff(want.x, got.x, want.n_row * want.n_vocab);
        print_message("%s as %s: logits differ by %.2e at most\n", c[i].model,
                      lg_dtype_name(c[i].type), d);
        assert_true(d <= c[i].tol);
        lg_mem_free(want.x);
        lg_mem_free(got.x);
    }
}

/* ---- tokenizer and config ---- */

static void test_tokenizer_and_config_come_back(void **state) {
    (void)state;
    static const char *const model[] = {"models/tiny-qwen35moe", "tests/data/models/tiny-moe",
                                        "tests/data/models/tiny-dense-r3"};
    static const char text[] = "<|im_start|>user\nWie geht's, e\xcc\x81t\xc3\xa9 42?<think>  "
                               "x<|im_end|>\n<tool_call><|fim_pad|>";
    char folder[512];
    for (size_t i = 0; i < LG_COUNT(model); i++) {
        lg_err err = {0};
        lg_tokenizer *tok[2];
        lg_ids ids[2] = {{0}};
        lg_config c[2];
        lg_fixture_source(model[i], folder, sizeof folder);
        write_ok(folder, LG_BF16);
        for (int k = 0; k < 2; k++) {
            const char *path = k ? out : folder;
            assert_int_equal(lg_tokenizer_open(path, &tok[k], &err), LG_OK);
            assert_int_equal(lg_tokenizer_encode(tok[k], text, sizeof text - 1, NULL, 0, true,
                                                 &ids[k], &err),
                             LG_OK);
            assert_int_equal(lg_config_load(&c[k], path, &err), LG_OK);
            lg_tokenizer_close(&tok[k]);
        }
        assert_int_equal(ids[0].n, ids[1].n);
        assert_memory_equal(ids[0].id, ids[1].id, ids[0].n * sizeof *ids[0].id);
        assert_int_equal(c[0].n_layer, c[1].n_layer);
        assert_memory_equal(c[0].layer, c[1].layer, c[0].n_layer);
        assert_int_equal(c[0].n_ctx_max, c[1].n_ctx_max);
        assert_int_equal(c[0].n_rot, c[1].n_rot);
        assert_int_equal(c[0].tied, c[1].tied);
        assert_int_equal(c[0].n_mtp_layer, c[1].n_mtp_layer);
        assert_int_equal(c[0].do_sample, c[1].do_sample);
        assert_true(c[0].eps == c[1].eps && c[0].rope_theta == c[1].rope_theta);
        lg_ids_fini(&ids[0]);
        lg_ids_fini(&ids[1]);
    }
}

/* ---- choices ---- */

static void test_rules_fallbacks_and_no_draft_layer(void **state) {
    (void)state;
    char folder[512];
    lg_err err = {0};
    lg_togguf_report r;
    const lg_togguf_rule rule[] = {{"blk.*.ffn_down_exps.weight", LG_F16},
                                   {"blk.0.*exps*", LG_BF16}, /* the last that fits counts */
                                   {"output.weight", LG_Q6_K}};
    lg_togguf_opt opt = {.type = LG_Q4_K, .rule = rule, .n_rule = 3, .no_mtp = true};
    lg_fixture_source("models/tiny-qwen35moe", folder, sizeof folder);
    assert_int_equal(lg_togguf_write(folder, out, &opt, pool, &r, &err), LG_OK);
    assert_int_equal(r.n_tensor[LG_F16], 3);
    assert_int_equal(r.n_tensor[LG_BF16], 3);
    assert_int_equal(r.n_tensor[LG_Q6_K], 1);
    assert_int_equal(r.n_fallback, 4); /* rows of 64: ffn_down_shexp of four layers */
    assert_true(r.fallback_from == LG_Q4_K && r.fallback_to == LG_Q5_0);
    assert_true(!r.mtp && r.mtp_reason[0]);
    lg_gguf *g;
    assert_int_equal(lg_gguf_open(out, &g, &err), LG_OK);
    int64_t n = 0;
    assert_true(lg_gguf_int(lg_gguf_find(g, "qwen35moe.block_count"), 0, &n) && n == 4);
    assert_null(lg_gguf_find(g, "qwen35moe.nextn_predict_layers"));
    lg_tensors *set = lg_gguf_tensors(g);
    assert_int_equal(lg_tensors_find(set, "blk.0.ffn_down_exps.weight")->type, LG_BF16);
    assert_int_equal(lg_tensors_find(set, "blk.1.ffn_down_exps.weight")->type, LG_F16);
    lg_gguf_close(&g);
}

/* ---- importance ---- */

/* A file that says which channels of the head matter: every 8th a hundred times more; and of one expert of two tensors. */
static void write_importance(const char *path, uint32_t n_in, float first) {
    static float sum[4096];
    lg_gguf_write *w;
    lg_err err;
    const float count = 7;
    assert_int_equal(lg_gguf_write_open(path, &w, &err), LG_OK);
    lg_gguf_write_text(w, "general.type", "imatrix", 7);
    lg_gguf_write_tensor(w, "output.weight.in_sum2", LG_F32, 2, (uint64_t[]){n_in, 1});
    lg_gguf_write_tensor(w, "output.weight.counts", LG_F32, 2, (uint64_t[]){1, 1});
    assert_int_equal(lg_gguf_write_start(w, &err), LG_OK);
    for (uint32_t i = 0; i < n_in; i++) sum[i] = i % 8 ? 1 : 100;
    sum[0] = first;
    assert_int_equal(lg_gguf_write_data(w, sum, n_in * sizeof *sum, &err), LG_OK);
    assert_int_equal(lg_gguf_write_data(w, &count, sizeof count, &err), LG_OK);
    assert_int_equal(lg_gguf_write_finish(&w, &err), LG_OK);
}

/* Squared errors of the head's important channels. */
static double head_error(const char *folder) {
    lg_err err;
    lg_tensors *set;
    lg_gguf *g;
    float x[256], y[256];
    double sum = 0;
    assert_int_equal(lg_st_open(folder, &set, &err), LG_OK);
    assert_int_equal(lg_gguf_open(out, &g, &err), LG_OK);
    const lg_view *a = lg_tensors_find(set, "lm_head.weight");
    const lg_view *b = lg_tensors_find(lg_gguf_tensors(g), "output.weight");
    assert_true(a && b && b->type == LG_Q4_K && a->shape[1] == 256);
    for (uint64_t r = 0; r < a->shape[0]; r++) {
        lg_dequant_row(a->type, a->data + r * (a->len_bytes / a->shape[0]), 256, x);
        lg_dequant_row(b->type, b->data + r * (b->len_bytes / b->shape[0]), 256, y);
        for (int i = 0; i < 256; i += 8) sum += pow((double)x[i] - (double)y[i], 2);
    }
    lg_gguf_close(&g);
    lg_tensors_close(&set);
    return sum;
}

static void test_important_channels_are_kept_better(void **state) {
    (void)state;
    char folder[512], file[320];
    lg_err err = {0};
    lg_imatrix *im;
    lg_togguf_report r;
    lg_togguf_opt opt = {.type = LG_Q4_K};
    lg_fixture_source("models/tiny-qwen35moe", folder, sizeof folder);
    snprintf(file, sizeof file, "%s.imatrix", out);
    assert_int_equal(lg_togguf_write(folder, out, &opt, pool, &r, &err), LG_OK);
    double plain = head_error(folder);
    assert_int_equal(r.n_weighted, 0);
    write_importance(file, 256, 100);
    assert_int_equal(lg_imatrix_open(file, &im, &err), LG_OK);
    opt.imatrix = im;
    assert_int_equal(lg_togguf_write(folder, out, &opt, pool, &r, &err), LG_OK);
    assert_int_equal(r.n_weighted, 1);
    double weighted = head_error(folder);
    print_message("error of important channels %.3g, without weights %.3g\n", weighted, plain);
    assert_true(weighted < 0.7 * plain);
    lg_imatrix_close(&im);
    /* Numbers of no use count as none; another width is another matrix; a model is no such file. */
    write_importance(file, 256, NAN);
    assert_int_equal(lg_imatrix_open(file, &im, &err), LG_OK);
    float w[256];
    assert_false(lg_imatrix_weights(lg_imatrix_find(im, "output.weight", 1, 256), 0, 256, w));
    assert_null(lg_imatrix_find(im, "output.weight", 1, 128).sum);
    assert_null(lg_imatrix_find(im, "token_embd.weight", 1, 256).sum);
    lg_imatrix_close(&im);
    assert_int_equal(lg_imatrix_open(out, &im, &err), LG_E_FORMAT);
    unlink(file);
}

/* ---- refusals ---- */

static void refused(const char *folder, lg_dtype type, lg_status want, const char *word) {
    lg_err err = {0};
    lg_status st = write_as(folder, type, &err);
    if (st != want || !strstr(err.msg, word)) fail_msg("%d: %s", st, err.msg);
    assert_false(exists(part));
}

static void test_refusals_leave_nothing(void **state) {
    (void)state;
    lg_fixture f;
    char folder[512];
    lg_fixture_source("tests/data/models/tiny-dense", folder, sizeof folder);
    unlink(out);
    lg_fixture_init(&f, "tests/data/models/tiny-dense");
    lg_fixture_edit_tensor(&f, LG_FIXTURE_POISON, "model.layers.1.mlp.up_proj.weight", NULL,
                           NULL);
    refused(f.path, LG_Q8_0, LG_E_FORMAT, "model.layers.1.mlp.up_proj.weight");
    assert_false(exists(out));
    write_ok(folder, LG_F32); /* a file that is there stays when the next is refused */
    refused(f.path, LG_Q8_0, LG_E_FORMAT, "not finite");
    assert_true(exists(out));
    refused(f.path, LG_Q2_K, LG_E_ARG, "type");
    refused(out, LG_F32, LG_E_UNSUPPORTED, "folder");
    lg_fixture_fini(&f);
    lg_fixture_init(&f, "tests/data/models/tiny-dense");
    lg_fixture_replace(&f, "tokenizer.json", "\"NFC\"", "\"NFKC\"");
    lg_err err = {0};
    assert_true(write_as(f.path, LG_F32, &err) < 0);
    assert_false(exists(part));
    lg_fixture_fini(&f);
    lg_togguf_report r;
    const lg_togguf_rule rule = {"blk.*.attn_norm.weight", LG_F16};
    lg_togguf_opt opt = {.type = LG_F32, .rule = &rule, .n_rule = 1};
    assert_int_equal(lg_togguf_write(folder, out, &opt, pool, &r, &err), LG_E_ARG);
    assert_non_null(strstr(err.msg, "blk.*.attn_norm.weight"));
    opt.n_rule = 0;
    assert_int_equal(lg_togguf_write(folder, "/nowhere/at/all.gguf", &opt, pool, &r, &err),
                     LG_E_IO);
}

static void test_no_memory_at_every_point(void **state) {
    (void)state;
    char folder[512];
    lg_status st = LG_E_NOMEM;
    lg_fixture_source("tests/data/models/tiny-dense", folder, sizeof folder);
    uint64_t n = 0;
    while (st != LG_OK) {
        lg_err err = {0};
        int64_t alive = lg_mem_alive();
        lg_mem_fail_at(++n);
        st = write_as(folder, LG_BF16, &err);
        lg_mem_fail_at(0);
        assert_true(st == LG_OK || st == LG_E_NOMEM || st == LG_E_IO);
        assert_int_equal(lg_mem_alive(), alive);
        assert_false(exists(part));
        assert_true(n < 5000);
    }
    print_message("%llu points\n", (unsigned long long)n - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divergence_by_type),
        cmocka_unit_test(test_exact_types),
        cmocka_unit_test(test_tokenizer_and_config_come_back),
        cmocka_unit_test(test_rules_fallbacks_and_no_draft_layer),
        cmocka_unit_test(test_important_channels_are_kept_better),
        cmocka_unit_test(test_refusals_leave_nothing),
        cmocka_unit_test(test_no_memory_at_every_point),
    };
    lg_err err;
    if (lg_pool_open(2, &pool, &err) != LG_OK) return 1;
    const char *tmp = getenv("TMPDIR");
    snprintf(out, sizeof out, "%.200s/lignum-togguf-%d.gguf", tmp ? tmp : "/tmp",
             (int)getpid());
    snprintf(part, sizeof part, "%s.part", out);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(out);
    lg_pool_close(&pool);
    return failed;
}
