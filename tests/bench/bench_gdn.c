/* bench_gdn.c - the recurrence of Gated DeltaNet alone: the backend's own code between the products of a layer.
 *
 *     bench_gdn [THREADS [SEQUENCES ...]]      default: all cores; 1, 4 and 16 sequences
 *     bench_gdn THREADS prompt [KEY_HEADS]     1,024 rows of one sequence, two value heads a key head; default: 16
 *
 * Shape of the 35B model: 16 key heads, 32 value heads, 128 wide.  One token of each sequence a step, many layers in turns, so
 * that states come from memory.  Median of the steps that do not fold, and of those that do, in turns with reading the slots'
 * memory with the same threads.  What a step reads: S, half of the open rows, half to all of the open keys, the last raw rows.
 * Of a prompt: least times as the engine does it, then with each value head in 1, 2, 4 and 8 parts (lg_cpu_gdn_parts), in turns. */
#include "backend/cpu/cpu.h"
#include "base/base.h"
#include "kern/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_BYTE  (512u << 20) /* of states, about */
#define MAX_SEQ 64
#define N_STEP  96
#define DK      128
#define N_KEY   16
#define RATIO   2 /* value heads a key head */
#define N_ROW   1024
#define N_ROUND 9
#define PIECE   (1u << 20) /* bytes that a task reads */

typedef struct bench {
    lg_weights w;
    lg_pool *pool;
    lg_backend *be;
    uint32_t n_key, n_row, n_seq, n_layer;
    size_t n_byte; /* of the slots, cut to whole pieces */
} bench;

static float *random_floats(uint32_t n, float low, float high) {
    float *x = lg_mem_calloc(n, sizeof *x);
    LG_ASSERT(x);
    for (uint32_t i = 0; i < n; i++) x[i] = low + (high - low) * lg_num_rng_unit(1, n, i, 0);
    return x;
}

/* Channels of the convolution. */
static uint32_t n_conv(const bench *b) {
    return (2 + RATIO) * b->n_key * DK;
}

static void open_bench(bench *b, uint32_t n_seq, uint32_t n_row, uint32_t n_key) {
    lg_err err = {0};
    lg_config *c = &b->w.cfg;
    uint32_t n_value = RATIO * n_key;
    b->n_seq = n_seq;
    b->n_row = n_row;
    b->n_key = n_key;
    *c = (lg_config){.n_embd = 64,
                     .n_vocab = 16,
                     .n_head = 1,
                     .n_kv_head = 1,
                     .d_head = 64,
                     .n_rot = 64,
                     .n_k_head = n_key,
                     .n_v_head = n_value,
                     .d_k = DK,
                     .d_v = DK,
                     .n_ff = 16,
                     .v_head_tiled = true};
    c->n_layer = b->n_layer = N_BYTE / (n_seq * n_value * DK * DK * (uint32_t)sizeof(float));
    if (c->n_layer > 48) c->n_layer = b->n_layer = 48;
    if (n_row > n_seq) c->n_layer = b->n_layer = 1;
    b->w.layer = lg_mem_calloc(c->n_layer, sizeof *b->w.layer);
    LG_ASSERT(b->w.layer);
    b->w.layer[0] = (lg_layer_w){.kind = LG_LAYER_GDN,
                                 .conv = random_floats(LG_CONV_K * n_conv(b), -0.5f, 0.5f),
                                 .gdn_norm = random_floats(DK, 0.9f, 1.1f),
                                 .neg_exp_a = random_floats(n_value, -0.1f, -0.01f),
                                 .dt_bias = random_floats(n_value, -1.0f, 1.0f)};
    for (uint32_t i = 0; i < c->n_layer; i++) {
        c->layer[i] = LG_LAYER_GDN;
        b->w.layer[i] = b->w.layer[0];
    }
    lg_backend_opt opt = {.n_slot = n_seq,
                          .n_page = 1,
                          .max_tok = n_row,
                          .max_seq = n_seq,
                          .max_out = 1,
                          .n_sample_vocab = 16,
                          .kv = LG_F16};
    if (lg_backend_open(&b->w, &opt, b->pool, &b->be, &err) != LG_OK) {
        fprintf(stderr, "bench_gdn: %s\n", err.msg);
        exit(1);
    }
    b->n_byte = n_seq * b->be->lay.slot * sizeof(float) / PIECE * PIECE;
    lg_cpu_scratch *s = &b->be->s;
    for (uint32_t i = 0; i < n_row * n_conv(b); i++)
        s->qkv[i] = lg_num_rng_unit(2, i, 0, 0) - 0.5f;
    for (uint32_t i = 0; i < n_row * n_value * DK; i++) s->z[i] = lg_num_rng_unit(3, i, 0, 0);
    for (uint32_t i = 0; i < n_row * n_value; i++)
        s->a[i] = s->b[i] = lg_num_rng_unit(4, i, 0, 0);
}

static void close_bench(bench *b) {
    const lg_layer_w *l = &b->w.layer[0];
    lg_mem_free((void *)(uintptr_t)l->conv);
    lg_mem_free((void *)(uintptr_t)l->gdn_norm);
    lg_mem_free((void *)(uintptr_t)l->neg_exp_a);
    lg_mem_free((void *)(uintptr_t)l->dt_bias);
    LG_FREE(b->w.layer);
    lg_backend_close(&b->be);
}

/* Microseconds of one layer, over all layers. */
static double step(const bench *b, uint32_t pos) {
    lg_batch_seq seq[MAX_SEQ] = {0};
    uint32_t n = b->n_row / b->n_seq;
    for (uint32_t i = 0; i < b->n_seq; i++)
        seq[i] = (lg_batch_seq){.pos = pos, .tok0 = i * n, .n_tok = n, .slot = i};
    lg_batch batch = {.n_tok = b->n_row, .seq = seq, .n_seq = b->n_seq};
    b->be->batch = &batch;
    uint64_t t = lg_clock_us();
    for (uint32_t l = 0; l < b->n_layer; l++) lg_cpu_gdn_heads(b->be, l);
    b->be->batch = NULL;
    return (double)(lg_clock_us() - t) / b->n_layer;
}

static void read_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const bench *b = ctx;
    uintptr_t at = ((uintptr_t)b->be->slot + 31) / 32 * 32;
    if ((task + 1) * PIECE < b->n_byte) lg_peak_read((const uint8_t *)at + task * PIECE, PIECE);
}

/* GB/s. */
static double stream(bench *b) {
    uint64_t t = lg_clock_us();
    lg_pool_run(b->pool, b->n_byte / PIECE, read_task, b);
    return (double)b->n_byte * 1e-3 / (double)(lg_clock_us() - t);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(bench *b, uint32_t n_seq) {
    double row[N_STEP], fold[N_STEP], read[N_STEP];
    size_t n_row = 0, n_fold = 0;
    open_bench(b, n_seq, n_seq, N_KEY);
    for (uint32_t pos = 0; pos < LG_GDN_C; pos++) step(b, pos);
    for (uint32_t i = 0; i < N_STEP; i++) {
        double us = step(b, LG_GDN_C + i);
        if (i % LG_GDN_C == LG_GDN_C - 1)
            fold[n_fold++] = us;
        else
            row[n_row++] = us;
        read[i] = stream(b);
    }
    qsort(row, n_row, sizeof *row, by_value);
    qsort(fold, n_fold, sizeof *fold, by_value);
    qsort(read, N_STEP, sizeof *read, by_value);
    double floats = RATIO * N_KEY * DK * (DK + LG_GDN_C / 2) + N_KEY * DK * LG_GDN_C * 3 / 4 +
                    (LG_CONV_K - 1) * (double)n_conv(b);
    double bytes = n_seq * floats * sizeof(float), gbs = read[N_STEP / 2];
    printf("%3u sequences: %8.1f us a layer, %5.1f GB/s = %3.0f %% of reading at %5.1f; with a "
           "fold %8.1f us\n",
           n_seq, row[n_row / 2], bytes * 1e-3 / row[n_row / 2],
           100 * bytes * 1e-3 / row[n_row / 2] / gbs, gbs, fold[n_fold / 2]);
    fflush(stdout);
    close_bench(b);
}

/* The same rows by units, then by value heads in parts. */
static void measure_prompt(bench *b, uint32_t n_key) {
    static const uint32_t parts[] = {0, 1, 2, 4, 8};
    double best[LG_COUNT(parts)];
    open_bench(b, 1, N_ROW, n_key);
    for (size_t i = 0; i < LG_COUNT(parts) * N_ROUND; i++) {
        size_t k = i % LG_COUNT(parts);
        b->be->gdn_parts = parts[k];
        double us = step(b, LG_GDN_C * (uint32_t)(1 + i)) / N_ROW;
        if (i < LG_COUNT(parts) || us < best[k]) best[k] = us;
    }
    printf("%u key heads, %u rows, us a row: ", n_key, N_ROW);
    for (size_t k = 0; k < LG_COUNT(parts); k++)
        if (parts[k])
            printf(", %u parts %.2f", parts[k], best[k]);
        else
            printf("as the engine does %.2f", best[k]);
    printf("\n");
    close_bench(b);
}

int main(int argc, char **argv) {
    static const uint32_t sizes[] = {1, 4, 16};
    static bench b;
    lg_err err = {0};
    if (lg_pool_open(argc > 1 ? atoi(argv[1]) : 0, &b.pool, &err) != LG_OK) {
        fprintf(stderr, "bench_gdn: %s\n", err.msg);
        return 1;
    }
    printf("%d threads, %s\n", lg_pool_n_thread(b.pool), lg_kern_get()->name);
    bool prompt = argc > 2 && strcmp(argv[2], "prompt") == 0;
    if (prompt) measure_prompt(&b, argc > 3 ? (uint32_t)atoi(argv[3]) : N_KEY);
    for (size_t i = 0; argc <= 2 && i < LG_COUNT(sizes); i++) measure(&b, sizes[i]);
    for (int i = 2; i < argc && !prompt; i++) {
        int n = atoi(argv[i]);
        if (n >= 1 && n <= MAX_SEQ) measure(&b, (uint32_t)n);
    }
    lg_pool_close(&b.pool);
    return 0;
}
