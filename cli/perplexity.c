/* perplexity.c - `lignum perplexity MODEL TEXT`: how well a model predicts a text.
 *
 * The definition is that of llama.cpp's tool of the same name, so that figures can be compared: the text (without its last
 * line break, no bos) is cut into chunks of --ctx tokens, what is left over is dropped; each chunk is run from an empty context
 * and the predictions made from its second half are scored: of position ctx/2 for token ctx/2 + 1 up to the last token.
 * Perplexity is exp of the mean negative log-likelihood.  Test: tests/unit/test_score.c, tests/py/verify.py */
#include "cli.h"
#include "score.h"

#include "kern/kern.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>

static const char help[] = "Measure how well a model predicts a text.\n"
                           "\n"
                           "usage: lignum perplexity MODEL TEXTFILE [OPTIONS]\n"
                           "\n"
                           "The text is cut into chunks of N tokens; in each, the tokens of "
                           "the second half are scored. The\n"
                           "result is exp of the mean negative log-likelihood, as llama.cpp's "
                           "perplexity tool defines it.\n"
                           "\n"
                           "options:\n"
                           "  --ctx N       tokens in a chunk (default 512)\n"
                           "  --chunks N    stop after so many (default: all)\n"
                           "  --exact       float products for every type of weights, keys "
                           "and values f32\n"
                           "  --kv TYPE     keys and values as f32, bf16, f16 (default) or "
                           "q8_0\n"
                           "  --threads N   default: one a core\n"
                           "  --help        print this\n";

typedef struct options {
    const char *model, *text;
    uint64_t n_ctx, n_chunk;
    bool exact;
    lg_kv_type kv;
    int n_thread;
} options;

/* 0: go on; else the exit status and 1. */
static int read_options(int argc, char **argv, options *o) {
    enum { CTX = 256, CHUNKS, EXACT, KV, THREADS, HELP };
    static const struct option known[] = {{"ctx", required_argument, NULL, CTX},
                                          {"chunks", required_argument, NULL, CHUNKS},
                                          {"exact", no_argument, NULL, EXACT},
                                          {"threads", required_argument, NULL, THREADS},
                                          {"kv", required_argument, NULL, KV},
                                          {"help", no_argument, NULL, HELP},
                                          {NULL, 0, NULL, 0}};
    bool ok = true;
    int c;
    while (ok && (c = getopt_long(argc, argv, "", known, NULL)) != -1) switch (c) {
        case CTX: ok = lg_option_u64(argv[0], "--ctx", optarg, 4, 1 << 20, &o->n_ctx); break;
        case CHUNKS:
            ok = lg_option_u64(argv[0], "--chunks", optarg, 1, 1 << 30, &o->n_chunk);
            break;
        case KV: ok = lg_option_kv(argv[0], optarg, &o->kv); break;
        case EXACT: o->exact = true; break;
        case THREADS:
            ok = lg_option_int(argv[0], "--threads", optarg, 1, 1024, &o->n_thread);
            break;
        case HELP: fputs(help, stdout); return 1;
        default: ok = false;
        }
    if (ok && argc - optind != 2) {
        fprintf(stderr, "%s: expected MODEL and TEXTFILE\n", argv[0]);
        ok = false;
    }
    if (!ok) return 1 + lg_option_usage(argv[0]);
    o->model = argv[optind];
    o->text = argv[optind + 1];
    return 0;
}

/* All chunks; one line a chunk on standard error, the result on standard output. */
static lg_status score_all(lg_score *s, const uint32_t *id, uint64_t n_chunk, lg_err *err) {
    double nll = 0, sq = 0;
    uint64_t n = 0;
    uint32_t first = s->n_ctx / 2;
    for (uint64_t i = 0; i < n_chunk; i++) {
        double sum, sum_sq;
        LG_TRY(lg_score_nll(s, id + i * s->n_ctx, s->n_ctx, first, &sum, &sum_sq, err));
        nll += sum;
        sq += sum_sq;
        n += s->n_ctx - first - 1;
        fprintf(stderr, "chunk %llu of %llu: %.4f\n", (unsigned long long)i + 1,
                (unsigned long long)n_chunk, exp(nll / (double)n));
    }
    double mean = nll / (double)n, var = sq / (double)n - mean * mean;
    double error = n > 1 && var > 0 ? sqrt(var / (double)(n - 1)) : 0;
    printf("perplexity %.4f +- %.4f; mean negative log-likelihood %.6f, %llu tokens scored in "
           "%llu "
           "chunks of %u\n",
           exp(mean), exp(mean) * error, mean, (unsigned long long)n,
           (unsigned long long)n_chunk, s->n_ctx);
    return LG_OK;
}

static lg_status measure(const options *o, lg_err *err) {
    lg_pool *pool = NULL;
    lg_weights *w = NULL;
    lg_score s = {0};
    uint32_t *id = NULL;
    size_t n = 0;
    lg_status st;
    LG_TRY_GOTO(lg_score_read(o->model, o->text, &id, &n, err), st, done);
    uint64_t n_chunk = n / o->n_ctx;
    if (o->n_chunk && n_chunk > o->n_chunk) n_chunk = o->n_chunk;
    if (n_chunk == 0) {
        st = LG_FAIL(err, LG_E_ARG, "%s: found %zu tokens, expected at least %llu (--ctx)",
                     o->text, n, (unsigned long long)o->n_ctx);
        goto done;
    }
    LG_TRY_GOTO(lg_pool_open(o->n_thread, &pool, err), st, done);
    LG_TRY_GOTO(lg_weights_open(o->model, pool, NULL, NULL, &w, err), st, done);
    LG_TRY_GOTO(lg_score_init(&s, w, pool, (uint32_t)o->n_ctx, 1, o->exact, o->kv, err), st,
                done);
    LG_TRY_GOTO(lg_score_check(w, id, n, o->text, err), st, done);
    st = score_all(&s, id, n_chunk, err);
done:
    lg_score_fini(&s);
    lg_weights_close(&w);
    lg_pool_close(&pool);
    lg_free(id);
    return st;
}

int lg_perplexity_main(int argc, char **argv) {
    options o = {.n_ctx = 512};
    lg_err err = {0};
    int end = read_options(argc, argv, &o);
    if (end) return end - 1;
    lg_status st = measure(&o, &err);
    if (st == LG_OK) return 0;
    fprintf(stderr, "%s: %s: %s\n", argv[0], lg_status_name(st), err.msg);
    return 1;
}
