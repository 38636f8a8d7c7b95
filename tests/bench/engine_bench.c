/* engine_bench.c - see engine_bench.h. */
#include "engine_bench.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

clockid_t bench_clock = CLOCK_THREAD_CPUTIME_ID;

uint64_t bench_now_us(void) {
    struct timespec t;
    clock_gettime(bench_clock, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

double bench_now_ns(void) {
    struct timespec t;
    clock_gettime(bench_clock, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

void bench_die(const char *what, const lg_err *err) {
    fprintf(stderr, "bench_engine: %s: %s\n", what, err->msg);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_quantile(double *v, size_t n, double q) {
    qsort(v, n, sizeof *v, by_value);
    size_t i = (size_t)(q * (double)n);
    return v[i < n ? i : n - 1];
}

bench_model bench_load(const char *path, bool weights, int n_thread) {
    lg_err err = {0};
    bench_model m = {.path = path};
    if (!path) m.path = getenv("LG_MODEL") ? getenv("LG_MODEL") : "models/tiny-qwen35moe";
    if (lg_tokenizer_open(m.path, &m.tok, &err) || lg_pool_open(n_thread, &m.pool, &err))
        bench_die(m.path, &err);
    if (weights && lg_weights_open(m.path, m.pool, NULL, NULL, &m.w, &err))
        bench_die(m.path, &err);
    return m;
}

void bench_unload(bench_model *m) {
    lg_weights_close(&m->w);
    lg_tokenizer_close(&m->tok);
    lg_pool_close(&m->pool);
}

lg_engine *bench_open_engine(const bench_model *m, const lg_backend_ops *ops, lg_weights *w,
                             const lg_options *opt) {
    lg_err err = {0};
    lg_engine *eng;
    lg_engine_parts parts = {.ops = ops,
                             .w = w,
                             .pool = m->pool,
                             .n_thread = lg_pool_n_thread(m->pool),
                             .tok = m->tok,
                             .name = "bench",
                             .clock_us = bench_now_us};
    uint32_t n_token = lg_tokenizer_n_id(m->tok);
    if (n_token > w->cfg.n_vocab) n_token = w->cfg.n_vocab;
    if (lg_budget_fit(&w->cfg, opt, 0, UINT64_C(3) << 30, false, n_token, parts.n_thread,
                      ops->plan, &parts.budget, &err))
        bench_die("budget", &err);
    parts.budget.stall_us = opt->max_stall_us;
    if (lg_engine_open(&parts, &eng, &err)) bench_die("open", &err);
    return eng;
}

uint64_t bench_submit(lg_engine *eng, const uint32_t *ids, uint32_t n_id, uint32_t n_new) {
    lg_err err = {0};
    uint64_t id;
    lg_request req = {.ids = ids, .n_id = n_id, .max_tokens = n_new};
    lg_params_init(eng, &req.params);
    req.params.temperature = 0.0f;
    req.params.ignore_eos = true;
    if (lg_submit(eng, &req, &id, &err)) bench_die("submit", &err);
    return id;
}

void bench_fill(uint32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = 300 + (uint32_t)(lg_num_rng(seed, 0, i, 0) % 3000);
}
