/* verify.c - `lignum verify MODEL`: what the kernels' rounding, or a device, costs in nats; or how far a model is from another.
 *
 * Two distributions of the next token at every position of some texts: the reference's P and the tested Q.  Alone, both have
 * the same weights: P multiplies floats, Q is the model as it is served on this machine (LG_CPU chooses the level).  With
 * --against MODEL2, P is that of MODEL2 by float products.  With --device, Q is computed there: the first half of a text in
 * large steps, the second token by token, so that states and keys are read back as they are kept.  The residual stream after
 * every layer is compared too, and with --operations what the parts of a layer give.  Texts are what the reference says by chance (a fixed seed), so they
 * look like what the model is used for, or a file.
 * Test: tests/py/verify.py */
#include "cli.h"
#include "score.h"
#include "taps.h"

#include "backend/pjrt/be.h"
#include "kern/kern.h"
#include "model/text/tokenizer.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TEXT   8
#define NEAR_TIE 0.1f /* logits closer than this may change places */
#define SEED     20260401

#define MAX_ROW_ALL 32 /* rows in a step whose every intermediate is kept */

static const char help[] =
    "Measure how far a model, as it is served here, is from the same weights multiplied as "
    "floats.\n"
    "\n"
    "usage: lignum verify MODEL [OPTIONS]\n"
    "\n"
    "Prints KL(reference || model) of the next token over positions of 8 texts that the "
    "reference\n"
    "model itself writes (fixed seed), and how often both agree on the best token. Exit status "
    "1 when\n"
    "the gate is missed. The level of kernels is that of the machine, or LG_CPU.\n"
    "\n"
    "options:\n"
    "  --against MODEL2  take MODEL2, by float products, as the reference (no gate unless "
    "given)\n"
    "  --device D        run MODEL on pjrt:PLUGIN.so[,name=value]... (docs/PJRT.md), the "
    "second\n"
    "                    half of a text token by token\n"
    "  --operations      compare what every part of a layer gives, too; on a device with "
    "layers\n"
    "                    written out\n"
    "  --text FILE       use the texts of a file, cut into pieces of --ctx tokens\n"
    "  --ctx N           tokens in a text (default 128)\n"
    "  --skip N          leave out the first N positions of each text (default 0)\n"
    "  --max-kl X        gate: mean KL in nats (default 0.003)\n"
    "  --min-top1 X      gate: agreement outside near-ties in percent (default 99)\n"
    "  --kv TYPE         keys and values of the model as f32, bf16, f16 (default) or q8_0; "
    "the\n"
    "                    reference has f32\n"
    "  --pack-dir DIR    take the packed weights in DIR (made if they are not there), and "
    "check\n"
    "                    every byte of them first\n"
    "  --threads N       default: one a core\n"
    "  --help            print this\n";

typedef struct options {
    const char *model, *against, *text, *pack_dir, *device;
    uint64_t n_ctx, n_skip; /* n_skip < n_ctx */
    float max_kl, min_top1; /* below 0: not given */
    lg_kv_type kv;
    bool operations;
    int n_thread;
} options;

/* What was found at all positions. */
typedef struct result {
    double *kl; /* [n] owned */
    size_t n;
    size_t n_same, n_clear, n_clear_same; /* clear: no near-tie of the reference */
} result;

/* Reference and tested model: the same weights or two. */
typedef struct pair {
    lg_weights *w[2];
    lg_score s[2];
    uint32_t max_row;       /* in a step */
    lg_pjrt_device *device; /* of the tested one; NULL: this processor */
    lg_taps *taps;          /* NULL: their layers are not alike */
    lg_tap tap[2];
} pair;

/* 0: go on; else the exit status and 1. */
static int read_options(int argc, char **argv, options *o) {
    enum {
        AGAINST = 256,
        TEXT,
        CTX,
        SKIP,
        MAX_KL,
        MIN_TOP1,
        KV,
        DEVICE,
        OPERATIONS,
        PACK,
        THREADS,
        HELP
    };
    static const struct option known[] = {{"against", required_argument, NULL, AGAINST},
                                          {"text", required_argument, NULL, TEXT},
                                          {"ctx", required_argument, NULL, CTX},
                                          {"skip", required_argument, NULL, SKIP},
                                          {"max-kl", required_argument, NULL, MAX_KL},
                                          {"min-top1", required_argument, NULL, MIN_TOP1},
                                          {"kv", required_argument, NULL, KV},
                                          {"device", required_argument, NULL, DEVICE},
                                          {"operations", no_argument, NULL, OPERATIONS},
                                          {"pack-dir", required_argument, NULL, PACK},
                                          {"threads", required_argument, NULL, THREADS},
                                          {"help", no_argument, NULL, HELP},
                                          {NULL, 0, NULL, 0}};
    bool ok = true;
    int c;
    while (ok && (c = getopt_long(argc, argv, "", known, NULL)) != -1) switch (c) {
        case AGAINST: o->against = optarg; break;
        case TEXT: o->text = optarg; break;
        case PACK: o->pack_dir = optarg; break;
        case DEVICE: o->device = optarg; break;
        case OPERATIONS: o->operations = true; break;
        case CTX: ok = lg_option_u64(argv[0], "--ctx", optarg, 2, 1 << 20, &o->n_ctx); break;
        case SKIP: ok = lg_option_u64(argv[0], "--skip", optarg, 0, 1 << 20, &o->n_skip); break;
        case MAX_KL:
            ok = lg_option_float(argv[0], "--max-kl", optarg, 0, 100, &o->max_kl);
            break;
        case MIN_TOP1:
            ok = lg_option_float(argv[0], "--min-top1", optarg, 0, 100, &o->min_top1);
            break;
        case KV: ok = lg_option_kv(argv[0], optarg, &o->kv); break;
        case THREADS:
            ok = lg_option_int(argv[0], "--threads", optarg, 1, 1024, &o->n_thread);
            break;
        case HELP: fputs(help, stdout); return 1;
        default: ok = false;
        }
    if (ok && argc - optind != 1) {
        fprintf(stderr, "%s: expected one MODEL\n", argv[0]);
        ok = false;
    }
    if (ok && o->n_skip >= o->n_ctx) {
        fprintf(stderr, "%s: --skip: found %llu, expected fewer than the %llu of --ctx\n",
                argv[0], (unsigned long long)o->n_skip, (unsigned long long)o->n_ctx);
        ok = false;
    }
    if (!ok) return 1 + lg_option_usage(argv[0]);
    o->model = argv[optind];
    return 0;
}

/* ---- comparing ---- */

/* One position: x of the reference, y of the tested model. */
static void compare_row(result *r, const float *x, const float *y, uint32_t n) {
    double lx = lg_score_log_sum(x, n), ly = lg_score_log_sum(y, n), kl = 0;
    uint32_t bx = 0, by = 0;
    float second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        double d = (double)x[i] - lx;
        kl += exp(d) * (d - ((double)y[i] - ly));
        if (y[i] > y[by]) by = i;
        if (x[i] > x[bx]) bx = i;
    }
    for (uint32_t i = 0; i < n; i++)
        if (i != bx && x[i] > second) second = x[i];
    bool clear = x[bx] - second >= NEAR_TIE;
    r->kl[r->n++] = kl > 0 ? kl : 0; /* rounding may leave -1e-16 */
    r->n_same += bx == by;
    r->n_clear += clear;
    r->n_clear_same += clear && bx == by;
}

/* Rows of the next step of a text. */
static uint32_t next_rows(const pair *p, uint32_t at, uint32_t n) {
    uint32_t len = p->max_row;
    if (p->device && at >= n / 2) return 1;
    if (p->device && at < n / 2) n = n / 2;
    return n - at < len ? n - at : len;
}

/* Positions [first, n). */
static lg_status compare_text(pair *p, const uint32_t *id, uint32_t n, uint32_t first,
                              result *r, lg_err *err) {
    for (uint32_t at = 0, len; at < n; at += len) {
        const float *x[2];
        size_t ld[2];
        len = next_rows(p, at, n);
        uint32_t skip = at < first ? first - at : 0;
        if (p->taps) LG_TRY(lg_taps_next(p->taps, skip, err));
        for (int k = 0; k < 2; k++)
            LG_TRY(lg_score_step(&p->s[k], id + at, len, at, len, &x[k], &ld[k], err));
        for (uint32_t i = skip; i < len; i++) {
            compare_row(r, x[0] + i * ld[0], x[1] + i * ld[1], p->w[0]->cfg.n_vocab);
            if (!isfinite(r->kl[r->n - 1]))
                return LG_FAIL(err, LG_E_BACKEND, "logits are not finite at position %u",
                               at + i);
        }
    }
    return LG_OK;
}

/* ---- the texts ---- */

/* [n_text][n_ctx] ids; the caller frees *id with lg_free. */
static lg_status write_texts(const options *o, pair *p, lg_pool *pool, uint32_t **id,
                             size_t *n_text, lg_err *err) {
    const char *path = o->against ? o->against : o->model;
    const lg_config *c = &p->w[0]->cfg;
    uint32_t n_ctx = (uint32_t)o->n_ctx, n_token;
    lg_tokenizer *tok;
    lg_score s;
    LG_TRY(lg_tokenizer_open(path, &tok, err));
    n_token = lg_tokenizer_n_id(tok);
    lg_tokenizer_close(&tok);
    if (n_token > c->n_vocab) n_token = c->n_vocab;
    *n_text = N_TEXT;
    *id = lg_mem_calloc((size_t)N_TEXT * n_ctx, sizeof **id);
    if (!*id) return LG_FAIL(err, LG_E_NOMEM, "no memory for texts");
    LG_TRY(lg_score_init(&s, p->w[0], pool, n_ctx, N_TEXT, true, LG_KV_F32, err));
    lg_status st = lg_score_sample(&s, *id, n_ctx, c->n_eos ? c->eos[c->n_eos - 1] : 0, n_token,
                                   SEED, err);
    lg_score_fini(&s);
    return st;
}

static lg_status read_texts(const options *o, const pair *p, uint32_t **id, size_t *n_text,
                            lg_err *err) {
    size_t n;
    LG_TRY(lg_score_read(o->model, o->text, id, &n, err));
    *n_text = n / o->n_ctx;
    if (*n_text == 0)
        return LG_FAIL(err, LG_E_ARG, "%s: found %zu tokens, expected at least %llu (--ctx)",
                       o->text, n, (unsigned long long)o->n_ctx);
    return lg_score_check(p->w[0], *id, n, o->text, err);
}

/* ---- the table ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_types(const char *path, const lg_weights *w) {
    lg_tensors *set = lg_weights_tensors(w);
    printf("%s:", path);
    for (int t = 0; t < LG_N_DTYPE; t++) {
        uint32_t n = 0;
        for (size_t i = 0; i < lg_tensors_count(set); i++) {
            const lg_view *v = lg_tensors_at(set, i);
            n += v->used && v->type == (lg_dtype)t && v->n_dim > 1;
        }
        if (n) printf(" %s %u", lg_dtype_name((lg_dtype)t), n);
    }
    printf("\n");
}

/* The figures, and whether they pass. */
static bool print_result(const options *o, const pair *p, result *r) {
    double sum = 0, n = (double)r->n;
    for (size_t i = 0; i < r->n; i++) sum += r->kl[i];
    qsort(r->kl, r->n, sizeof *r->kl, by_value);
    double mean = sum / n,
           clear = r->n_clear ? 100.0 * (double)r->n_clear_same / (double)r->n_clear : 100;
    print_types(o->model, p->w[1]);
    if (o->against) print_types(o->against, p->w[0]);
    printf("level            %s\n", lg_kern_get()->name);
    if (o->device) printf("device           %s\n", o->device);
    printf("keys and values  %s\n", lg_option_kv_name(o->kv));
    printf("reference        %s, float products, keys and values f32\n",
           o->against ? o->against : "the same weights");
    printf("positions        %zu, of %s\n", r->n,
           o->text ? o->text : "what the reference says by chance");
    printf("KL, nats         mean %.3g, median %.3g, 99 %% %.3g, max %.3g\n", mean,
           r->kl[r->n / 2], r->kl[r->n * 99 / 100], r->kl[r->n - 1]);
    printf("top-1 agreement  %.2f %%; outside near-ties (%.1f) %.2f %% of %zu\n",
           100.0 * (double)r->n_same / n, (double)NEAR_TIE, clear, r->n_clear);
    if (p->taps) lg_taps_print(p->taps, stdout);
    float max_kl = o->max_kl, min_top1 = o->min_top1;
    if (!o->against && max_kl < 0) max_kl = 0.003f;
    if (!o->against && min_top1 < 0) min_top1 = 99;
    bool ok =
        (max_kl < 0 || mean <= (double)max_kl) && (min_top1 < 0 || clear >= (double)min_top1);
    if (max_kl >= 0) printf("gate             mean KL <= %g\n", (double)max_kl);
    if (min_top1 >= 0)
        printf("gate             top-1 outside near-ties >= %g %%\n", (double)min_top1);
    if (max_kl >= 0 || min_top1 >= 0) printf("result           %s\n", ok ? "passed" : "MISSED");
    return ok;
}

/* ---- all ---- */

static lg_status open_pair(const options *o, lg_pool *pool, pair *p, lg_err *err) {
    uint32_t n_ctx = (uint32_t)o->n_ctx;
    LG_TRY(
        lg_weights_open_packed(o->model, NULL, o->pack_dir, pool, NULL, NULL, &p->w[1], err));
    LG_TRY(lg_weights_verify_packed(p->w[1], pool, err));
    p->w[0] = p->w[1];
    if (o->against) {
        p->w[0] = NULL;
        LG_TRY(lg_weights_open(o->against, pool, NULL, NULL, &p->w[0], err));
        if (p->w[0]->cfg.n_vocab != p->w[1]->cfg.n_vocab)
            return LG_FAIL(err, LG_E_ARG, "%s: found a vocabulary of %u, expected %u as in %s",
                           o->against, p->w[0]->cfg.n_vocab, p->w[1]->cfg.n_vocab, o->model);
    }
    const lg_config *c = &p->w[1]->cfg;
    bool alike = p->w[0]->cfg.n_layer == c->n_layer && p->w[0]->cfg.n_embd == c->n_embd;
    if (o->operations && !alike)
        return LG_FAIL(err, LG_E_ARG, "--operations: the layers of both models are not alike");
    p->max_row = o->operations ? MAX_ROW_ALL : LG_SCORE_STEP;
    if (alike) LG_TRY(lg_taps_open(c, o->operations, p->max_row, &p->taps, err));
    if (o->device) LG_TRY(lg_pjrt_device_open(o->device, &p->device, err));
    for (int k = 0; k < 2; k++) {
        lg_backend_opt opt = lg_score_options(p->w[k], n_ctx, 1, k == 0, o->kv);
        p->tap[k] = (lg_tap){p->taps, k == 1};
        opt.trace = alike ? lg_taps_take : NULL;
        opt.trace_ctx = &p->tap[k];
        opt.trace_all = o->operations;
        opt.device = k ? p->device : NULL;
        const lg_backend_ops *ops = opt.device ? lg_backend_pjrt() : lg_backend_cpu();
        LG_TRY(lg_score_init_on(&p->s[k], p->w[k], pool, ops, &opt, err));
    }
    return LG_OK;
}

static lg_status measure(const options *o, bool *passed, lg_err *err) {
    lg_pool *pool = NULL;
    pair p;
    result r = {0};
    uint32_t *id = NULL;
    size_t n_text = 0;
    lg_status st;
    memset(&p, 0, sizeof p);
    LG_TRY_GOTO(lg_pool_open(o->n_thread, &pool, err), st, done);
    LG_TRY_GOTO(open_pair(o, pool, &p, err), st, done);
    LG_TRY_GOTO(o->text ? read_texts(o, &p, &id, &n_text, err)
                        : write_texts(o, &p, pool, &id, &n_text, err),
                st, done);
    r.kl = lg_mem_calloc(n_text * o->n_ctx, sizeof *r.kl);
    if (!r.kl) {
        st = LG_FAIL(err, LG_E_NOMEM, "no memory for %zu texts", n_text);
        goto done;
    }
    for (size_t i = 0; i < n_text; i++)
        LG_TRY_GOTO(compare_text(&p, id + i * o->n_ctx, (uint32_t)o->n_ctx, (uint32_t)o->n_skip,
                                 &r, err),
                    st, done);
    *passed = print_result(o, &p, &r);
done:
    lg_mem_free(r.kl);
    lg_free(id);
    for (int k = 0; k < 2; k++) lg_score_fini(&p.s[k]);
    lg_taps_close(&p.taps);
    lg_pjrt_device_close(&p.device);
    if (p.w[0] != p.w[1]) lg_weights_close(&p.w[0]);
    lg_weights_close(&p.w[1]);
    lg_pool_close(&pool);
    return st;
}

int lg_verify_main(int argc, char **argv) {
    options o = {.n_ctx = 128, .max_kl = -1, .min_top1 = -1};
    lg_err err = {0};
    bool passed = false;
    int end = read_options(argc, argv, &o);
    if (end) return end - 1;
    lg_status st = measure(&o, &passed, &err);
    if (st == LG_OK) return passed ? 0 : 1;
    fprintf(stderr, "%s: %s: %s\n", argv[0], lg_status_name(st), err.msg);
    return 1;
}
