/* bench_reduce.c - our hierarchical reduce-scatter, with messages inside a machine and with a window, beside MPI_Reduce_scatter, in one run of
 * all ranks.
 *
 * usage: LG_MODULE_DIR=build/src/dist mpirun -n N build/tests/bench/bench_reduce [columns (4096)] [rounds (7)] [overlap | pieces]
 * With "overlap" instead: our own with sums that take work (the products of 10 experts a row, divided over the ranks), once waiting for every
 * chunk before the next is summed, once not; with "pieces" such sums in chunks of 128, 64 ... 8 rows of each rank.
 * Rows of all ranks T = 8 ... 2048, spread evenly; all are timed in turn, a barrier before each, and the slowest rank counts;
 * medians.  Sums are compared.  Bytes are those that rank 0 sends in ours, with a window.  tests/e2e/netns.py runs it between network
 * namespaces. */
#include "bench_ranks.h"

#include "base/clock.h"
#include "base/num.h"
#include "dist/reduce.h"
#include "dist/window.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROUND 99
#define MAX_T     2048

static uint32_t n_embd = 4096;
static const float *parts;

static void fill(void *ctx, uint32_t g, uint32_t n, float *y) {
    (void)ctx;
    memcpy(y, parts + (size_t)g * n_embd, (size_t)n * n_embd * sizeof *y);
}

/* A part that is made of several rows, as in a MoE layer; messages are looked after in between. */
static void combine(void *ctx, uint32_t g, uint32_t n, float *y) {
    lg_reduce *r = ctx;
    uint32_t n_sum = 10 / comm.n_rank + 1;
    for (uint32_t i = 0; i < n; i++, y += n_embd) {
        memset(y, 0, n_embd * sizeof *y);
        for (uint32_t j = 0; j < n_sum; j++) {
            const float *x = parts + (size_t)((g + i + 37 * j) % MAX_T) * n_embd;
            for (uint32_t c = 0; c < n_embd; c++) y[c] += 0.1f * x[c];
        }
        if (i % 8 == 7 && !r->no_overlap) lg_reduce_progress(r);
    }
}

/* One call of ours; the slowest rank's microseconds. */
static double run_once(lg_reduce *r, const uint32_t *row0, float *out) {
    meet(0);
    uint64_t before = comm.sent_bytes, start = lg_clock_us();
    must(lg_reduce_run(r, row0, fill, NULL, out));
    double took = (double)(lg_clock_us() - start);
    if (comm.sent_bytes - before != lg_reduce_bytes(r, row0))
        must(lg_comm_lose(&comm, "bytes were not counted"));
    return meet(took);
}

/* r: with messages, with a window. */
static void measure(lg_reduce *r, uint32_t t, int n_round, float *out, float *want) {
    uint32_t row0[LG_MAX_RANK + 1] = {0}, n_float[LG_MAX_RANK];
    double ours[2][MAX_ROUND], theirs[MAX_ROUND];
    for (uint32_t k = 0; k < comm.n_rank; k++) {
        row0[k + 1] = (uint32_t)((uint64_t)t * (k + 1) / comm.n_rank);
        n_float[k] = (row0[k + 1] - row0[k]) * n_embd;
    }
    for (int i = -1; i < n_round; i++) { /* the first one warms up */
        double a = run_once(&r[0], row0, want), b = run_once(&r[1], row0, out);
        if (memcmp(out, want, n_float[comm.rank] * sizeof *out) != 0)
            must(lg_comm_lose(&comm, "sums differ"));
        meet(0);
        uint64_t start = lg_clock_us();
        must(comm.ops->reduce_scatter(comm.impl, parts, want, n_float));
        double c = meet((double)(lg_clock_us() - start));
        if (i >= 0) ours[0][i] = a, ours[1][i] = b, theirs[i] = c;
    }
    for (uint32_t i = 0; i < n_float[comm.rank]; i++)
        if (fabsf(out[i] - want[i]) > 1e-4f) must(lg_comm_lose(&comm, "sums differ at %u", i));
    if (comm.rank) return;
    double a = median(ours[0], n_round), b = median(ours[1], n_round),
           c = median(theirs, n_round);
    printf("%6u  %11.0f  %9.0f  %10.0f  %10.2f  %7.2f  %10llu\n", t, a, b, c, a / b, c / b,
           (unsigned long long)lg_reduce_bytes(&r[1], row0));
    fflush(stdout);
}

/* Rows of all ranks: with and without overlap in turn. */
static void compare_overlap(lg_reduce *r, uint32_t t, int n_round, float *out) {
    uint32_t row0[LG_MAX_RANK + 1] = {0};
    double took[2][MAX_ROUND];
    for (uint32_t k = 0; k < comm.n_rank; k++)
        row0[k + 1] = (uint32_t)((uint64_t)t * (k + 1) / comm.n_rank);
    for (int i = -1; i < n_round; i++)
        for (int k = 0; k < 2; k++) {
            int off = (i + 1 + k) % 2; /* each is the first as often */
            r->no_overlap = off;
            r->piece = off ? LG_REDUCE_CHUNK : 0; /* who waits has less of it with few chunks */
            meet(0);
            uint64_t start = lg_clock_us();
            must(lg_reduce_run(r, row0, combine, r, out));
            double a = meet((double)(lg_clock_us() - start));
            if (i >= 0) took[off][i] = a;
        }
    r->no_overlap = false;
    r->piece = 0;
    if (comm.rank) return;
    double on = median(took[0], n_round), off = median(took[1], n_round);
    printf("%6u  %10.0f  %10.0f  %5.1f %%\n", t, off, on, (1 - on / off) * 100);
    fflush(stdout);
}

/* Chunks of several sizes in turn. */
static void compare_pieces(lg_reduce *r, uint32_t t, int n_round, float *out) {
    static const uint32_t size[] = {128, 64, 32, 16, 8};
    uint32_t row0[LG_MAX_RANK + 1] = {0};
    double took[LG_COUNT(size)][MAX_ROUND];
    for (uint32_t k = 0; k < comm.n_rank; k++)
        row0[k + 1] = (uint32_t)((uint64_t)t * (k + 1) / comm.n_rank);
    for (int i = -1; i < n_round; i++)
        for (size_t j = 0; j < LG_COUNT(size); j++) {
            r->piece = size[j];
            meet(0);
            uint64_t start = lg_clock_us();
            must(lg_reduce_run(r, row0, combine, r, out));
            double a = meet((double)(lg_clock_us() - start));
            if (i >= 0) took[j][i] = a;
        }
    r->piece = 0;
    if (comm.rank) return;
    printf("%6u", t);
    for (size_t j = 0; j < LG_COUNT(size); j++) printf("  %10.0f", median(took[j], n_round));
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    lg_err err;
    lg_reduce r[2];
    lg_window w;
    lg_arena a;
    int n_round = argc > 2 ? atoi(argv[2]) : 7;
    if (argc > 1) n_embd = (uint32_t)atoi(argv[1]);
    if (n_embd == 0 || n_embd > 65536 || n_round < 1 || n_round > MAX_ROUND) return 2;
    if (lg_comm_mpi(&comm, &err) != LG_OK) {
        fprintf(stderr, "bench_reduce: %s\n", err.msg);
        return 1;
    }
    comm.timeout_us = 60 * 1000000;
    size_t n = (size_t)MAX_T * n_embd;
    float *x = lg_mem_calloc(n, sizeof *x), *out = lg_mem_calloc(n, sizeof *out);
    float *want = lg_mem_calloc(n, sizeof *want);
    lg_arena_init(&a, NULL, 0);
    for (int i = 0; i < 2; i++) lg_reduce_carve(&a, &comm, LG_WIRE_F32, MAX_T, n_embd, &r[i]);
    size_t bytes = a.used_bytes;
    void *block = lg_mem_alloc(bytes);
    if (!x || !out || !want || !block) return 1;
    lg_arena_init(&a, block, bytes);
    for (int i = 0; i < 2; i++) {
        if (i) must(lg_window_open(&comm, lg_reduce_window_bytes(&comm, MAX_T, n_embd), &w));
        lg_reduce_carve(&a, &comm, LG_WIRE_F32, MAX_T, n_embd, &r[i]);
    }
    for (size_t i = 0; i < n; i++) x[i] = lg_num_rng_unit(comm.rank, 0, i, 0) - 0.5f;
    parts = x;
    bool overlap = argc > 3 && strcmp(argv[3], "overlap") == 0;
    bool pieces = argc > 3 && strcmp(argv[3], "pieces") == 0;
    if (comm.rank == 0 && overlap)
        printf("%u ranks on %u machines, rows of %u floats\n"
               "  rows    waiting us  overlap us  saved\n",
               comm.n_rank, r[1].n_node, n_embd);
    for (uint32_t t = 128; overlap && t <= MAX_T; t *= 2)
        compare_overlap(&r[1], t, n_round, out);
    if (comm.rank == 0 && pieces)
        printf("%u ranks on %u machines, rows of %u floats, us in chunks of\n"
               "  rows         128          64          32          16           8\n",
               comm.n_rank, r[1].n_node, n_embd);
    for (uint32_t t = 128; pieces && t <= MAX_T; t *= 4) compare_pieces(&r[1], t, n_round, out);
    overlap |= pieces; /* no comparison with MPI */
    if (comm.rank == 0 && !overlap)
        printf("%u ranks on %u machines, rows of %u floats\n"
               "  rows  messages us  window us      MPI us  messages/w    MPI/w  bytes sent by "
               "rank 0\n",
               comm.n_rank, r[1].n_node, n_embd);
    for (uint32_t t = 8; !overlap && t <= MAX_T; t *= 4) measure(r, t, n_round, out, want);
    lg_window_close(&comm, &w);
    lg_comm_close(&comm);
    lg_mem_free(x);
    lg_mem_free(out);
    lg_mem_free(want);
    lg_mem_free(block);
    return 0;
}
