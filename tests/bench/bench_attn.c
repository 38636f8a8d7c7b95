/* bench_attn.c - attention alone, at the depths of long texts: the backend's own code between the products of a layer.
 *
 *     bench_attn [THREADS [TYPE ...]]      default: all cores, every type of keys and values
 *
 * Shape of the 35B model: 16 heads of 256, two KV heads.  Decode: one token of one sequence, in so many layers (up to 16) that
 * their pages are as many bytes as those of 131,072 tokens in one: a last cache that holds 32,768 of one layer is not what a model with
 * ten of them meets.
 * Prefill: 512 tokens behind 8,192.  Each figure is the best of several runs, in turns with its limit: reading the same memory
 * with the same threads, and independent FMA.  Twice: by the clock, and by processor time, which other work disturbs less. */
#include "backend/cpu/cpu.h"
#include "base/base.h"
#include "kern/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_RUN   7
#define N_CHUNK 512
#define DEPTH   8192
#define MOST    131072
#define PIECE   (1u << 20) /* bytes that a task reads */

/* Seconds by the clock and of the process. */
typedef struct span {
    double clock, cpu;
} span;

static span now(void) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    return (span){(double)a.tv_sec + (double)a.tv_nsec * 1e-9,
                  (double)b.tv_sec + (double)b.tv_nsec * 1e-9};
}

/* The best of both kinds of time since t. */
static void keep_best(span *best, span t) {
    span end = now();
    if (end.clock - t.clock < best->clock) best->clock = end.clock - t.clock;
    if (end.cpu - t.cpu < best->cpu) best->cpu = end.cpu - t.cpu;
}

typedef struct bench {
    lg_weights w;
    lg_pool *pool;
    lg_backend *be;
    uint32_t *page;
    size_t n_byte; /* of all pages, cut to whole pieces */
} bench;

static void open_bench(bench *b, lg_dtype kv, uint32_t n_tok, uint32_t n_layer) {
    lg_err err = {0};
    b->w.cfg = (lg_config){.n_layer = n_layer,
                           .n_embd = 64,
                           .n_vocab = 16,
                           .n_head = 16,
                           .n_kv_head = 2,
                           .d_head = 256,
                           .n_rot = 64,
                           .n_k_head = 1,
                           .n_v_head = 1,
                           .d_k = 16,
                           .d_v = 16,
                           .n_ff = 16};
    for (uint32_t l = 0; l < n_layer; l++) b->w.cfg.layer[l] = LG_LAYER_ATTN;
    lg_backend_opt opt = {.n_slot = 1,
                          .n_page = (n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK,
                          .max_tok = N_CHUNK,
                          .max_seq = 1,
                          .max_out = 1,
                          .n_sample_vocab = 16,
                          .kv = kv};
    if (lg_backend_open(&b->w, &opt, b->pool, &b->be, &err) != LG_OK) {
        fprintf(stderr, "bench_attn: %s\n", err.msg);
        exit(1);
    }
    b->page = lg_mem_calloc(opt.n_page, sizeof *b->page);
    LG_ASSERT(b->page);
    for (uint32_t i = 0; i < opt.n_page; i++) b->page[i] = i;
    b->n_byte = opt.n_page * b->be->lay.page / PIECE * PIECE;
    /* One page of random numbers, and all others like it. */
    float x[256];
    for (uint32_t j = 0; j < LG_PAGE_TOK; j++)
        for (uint32_t h = 0; h < 2; h++) {
            for (uint32_t i = 0; i < 256; i++) x[i] = lg_num_rng_unit(j, h, i, 0) - 0.5f;
            for (uint32_t l = 0; l < n_layer; l++)
                b->be->kern->kv_store(kv, x, x, 256, j, lg_cpu_kv(b->be, 0, l, h));
        }
    for (uint32_t i = 1; i < opt.n_page; i++) lg_backend_copy_page(b->be, 0, 0, i);
    for (size_t i = 0; i < (size_t)N_CHUNK * 16 * 256; i++) {
        b->be->s.q[i] = lg_num_rng_unit(1, 0, i, 1) - 0.5f;
        b->be->s.qg[2 * i] = b->be->s.qg[2 * i + 1] = 0.5f;
    }
}

static void close_bench(bench *b) {
    LG_FREE(b->page);
    lg_backend_close(&b->be);
}

static span attend(const bench *b, uint32_t pos, uint32_t n_tok, span best) {
    lg_backend *be = b->be;
    lg_batch_seq seq = {.pos = pos, .n_tok = n_tok};
    lg_batch batch = {
        .n_tok = n_tok, .seq = &seq, .n_seq = 1, .page = b->page, .n_page = be->opt.n_page};
    be->batch = &batch;
    be->s.seq_task[0] = 0;
    be->s.seq_task[1] = (n_tok + LG_CPU_ATTN_BLK - 1) / LG_CPU_ATTN_BLK;
    span t = now();
    for (uint32_t l = 0; l < be->cfg->n_layer; l++) lg_cpu_attn_pages(be, l);
    keep_best(&best, t);
    be->batch = NULL;
    return best;
}

static void read_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const bench *b = ctx;
    uintptr_t at = ((uintptr_t)b->be->page + 31) / 32 * 32;
    if ((task + 1) * PIECE < b->n_byte) lg_peak_read((const uint8_t *)at + task * PIECE, PIECE);
}

static span stream(bench *b, span best) {
    span t = now();
    lg_pool_run(b->pool, b->n_byte / PIECE, read_task, b);
    keep_best(&best, t);
    return best;
}

static void fma_task(void *ctx, size_t task, int thread) {
    (void)thread;
    double *speed = ctx;
    speed[task] = lg_peak_fma512_gmacs() > 0 ? lg_peak_fma512_gmacs() : lg_peak_fma_gmacs();
}

static void decode(bench *b, lg_dtype kv, uint32_t depth) {
    span look = {1e9, 1e9}, read = {1e9, 1e9};
    uint32_t n_layer = depth < MOST ? MOST / depth : 1;
    open_bench(b, kv, depth, n_layer);
    for (int i = 0; i < N_RUN; i++) {
        look = attend(b, depth - 1, 1, look);
        read = stream(b, read);
    }
    double bytes = (double)b->be->opt.n_page * (double)b->be->lay.page, n = (double)b->n_byte;
    printf(
        "decode   %-4s at %6u: %7.2f ms a layer, %5.1f GB/s = %3.0f %% of reading at %5.1f; by "
        "processor "
        "time %3.0f %%\n",
        lg_dtype_name(kv), depth, look.clock * 1e3 / n_layer, bytes / look.clock * 1e-9,
        100 * bytes / look.clock / (n / read.clock), n / read.clock * 1e-9,
        100 * bytes / look.cpu / (n / read.cpu));
    fflush(stdout);
    close_bench(b);
}

static void prefill(bench *b, lg_dtype kv) {
    span look = {1e9, 1e9};
    int n_thread = lg_pool_n_thread(b->pool);
    double *speed = lg_mem_calloc((size_t)n_thread, sizeof *speed), peak = 0;
    LG_ASSERT(speed);
    open_bench(b, kv, DEPTH + N_CHUNK, 1);
    for (int i = 0; i < N_RUN; i++) look = attend(b, DEPTH, N_CHUNK, look);
    lg_pool_run(b->pool, (size_t)n_thread, fma_task, speed);
    for (int i = 0; i < n_thread; i++) peak += speed[i];
    double macs = 2.0 * 16 * 256 * ((double)N_CHUNK * DEPTH + N_CHUNK * (N_CHUNK + 1) / 2.0);
    printf(
        "prefill  %-4s at %6u: %7.2f ms, %5.1f GMAC/s = %3.0f %% of FMA at %5.1f; by processor "
        "time %3.0f %%; %.3f ms a token\n",
        lg_dtype_name(kv), (unsigned)DEPTH, look.clock * 1e3, macs / look.clock * 1e-9,
        100 * macs / look.clock * 1e-9 / peak, peak,
        100 * macs / look.cpu * 1e-9 / (peak / n_thread), look.clock * 1e3 / N_CHUNK);
    fflush(stdout);
    lg_mem_free(speed);
    close_bench(b);
}

int main(int argc, char **argv) {
    static const lg_dtype types[] = {LG_F32, LG_BF16, LG_F16, LG_Q8_0};
    static const uint32_t depth[] = {8192, 32768, MOST};
    static bench b;
    lg_err err = {0};
    int n_thread = argc > 1 ? atoi(argv[1]) : 0;
    if (lg_pool_open(n_thread, &b.pool, &err) != LG_OK) {
        fprintf(stderr, "bench_attn: %s\n", err.msg);
        return 1;
    }
    printf("%d threads, %s\n", lg_pool_n_thread(b.pool), lg_kern_get()->name);
    for (size_t t = 0; t < LG_COUNT(types); t++) {
        bool wanted = argc <= 2;
        for (int i = 2; i < argc; i++)
            wanted = wanted || strcmp(argv[i], lg_dtype_name(types[t])) == 0;
        if (!wanted) continue;
        for (size_t i = 0; i < LG_COUNT(depth); i++) decode(&b, types[t], depth[i]);
        prefill(&b, types[t]);
    }
    lg_pool_close(&b.pool);
    return 0;
}
