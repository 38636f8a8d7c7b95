/* engine_bench.h - what the parts of bench_engine share: a model, an engine on it, requests.
 *
 *   bench_engine  overhead, lookup, slots, cache        stall  gaps between tokens beside a long prompt */
#ifndef LG_BENCH_ENGINE_BENCH_H
#define LG_BENCH_ENGINE_BENCH_H

#include "engine/engine.h"

#include <time.h>

/* The clock of all that is measured, and of the engines: processor time of this thread unless changed. */
extern clockid_t bench_clock;

uint64_t bench_now_us(void);
double bench_now_ns(void);

/* Print what is wrong and end. */
void bench_die(const char *what, const lg_err *err);

/* Sorts v. */
double bench_quantile(double *v, size_t n, double q);

typedef struct bench_model {
    const char *path;
    lg_tokenizer *tok;
    lg_weights *w; /* NULL: not asked for */
    lg_pool *pool;
} bench_model;

/* path NULL: LG_MODEL, else models/tiny-qwen35moe. */
bench_model bench_load(const char *path, bool weights, int n_thread);
void bench_unload(bench_model *m);

/* 3 GiB for everything but the weights. */
lg_engine *bench_open_engine(const bench_model *m, const lg_backend_ops *ops, lg_weights *w,
                             const lg_options *opt);

/* Ask for n_new tokens, greedy, with no end before. */
uint64_t bench_submit(lg_engine *eng, const uint32_t *ids, uint32_t n_id, uint32_t n_new);

/* Ids that depend on the seed alone. */
void bench_fill(uint32_t *ids, uint32_t n, uint64_t seed);

/* stall.c: bench_engine stall CASE ... */
void bench_stall(int n_case, char **text);

#endif
