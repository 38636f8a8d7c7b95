/* bench_exchange.c - the strict exchange of a layer, with messages inside a machine and with a window, in one run of all ranks.
 *
 * usage: LG_MODULE_DIR=build/src/dist mpirun -n N build/tests/bench/bench_exchange [columns (4096)] [experts a row (10)] [rounds (9)]
 * Rows of all ranks T = N ... 512, spread evenly, each for other experts of 128; the products are not made, so what is timed is rows there, sorting,
 * product rows back.  Both are timed in turn; the slowest rank counts; medians.  Bytes are those that rank 0 sends. */
#include "bench_ranks.h"

#include "base/clock.h"
#include "base/num.h"
#include "dist/exchange.h"
#include "dist/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_EXPERT  128
#define MAX_ROUND 99
#define MAX_T     512
#define MAX_K     16

/* One layer; microseconds of the slowest rank, bytes of this one. */
static double run_once(lg_exchange *x, const uint32_t *n_row, const float *xn, uint64_t *sent) {
    static uint32_t id[MAX_T * MAX_K];
    static float w[MAX_T * MAX_K];
    for (uint32_t i = 0; i < n_row[comm.rank]; i++)
        for (uint32_t j = 0; j < x->k; j++)
            id[i * x->k + j] = (i * 37 + comm.rank * 11 + j * (N_EXPERT / x->k)) % N_EXPERT;
    lg_exchange_begin(x, n_row);
    meet(0);
    uint64_t before = comm.sent_bytes, start = lg_clock_us();
    must(lg_exchange_start(x, 0, xn, id, w));
    must(lg_exchange_arrive(x));
    must(lg_exchange_finish(x));
    double took = (double)(lg_clock_us() - start);
    *sent = comm.sent_bytes - before;
    return meet(took);
}

static void measure(lg_exchange *x, uint32_t t, int n_round, const float *xn) {
    double took[2][MAX_ROUND];
    uint32_t n_row[LG_MAX_RANK];
    uint64_t sent[2];
    for (uint32_t k = 0; k < comm.n_rank; k++)
        n_row[k] = t * (k + 1) / comm.n_rank - t * k / comm.n_rank;
    for (int i = -1; i < n_round; i++) /* the first one warms up */
        for (int k = 0; k < 2; k++) {
            double us = run_once(&x[k], n_row, xn, &sent[k]);
            if (i >= 0) took[k][i] = us;
        }
    if (comm.rank) return;
    for (int k = 0; k < 2; k++) median(took[k], n_round); /* sorts */
    double a = took[0][n_round / 2], b = took[1][n_round / 2];
    printf("%6u  %11.0f  %9.0f  %10.2f  %10llu  %10llu\n", t, a, b, a / b,
           (unsigned long long)sent[0], (unsigned long long)sent[1]);
    fflush(stdout);
}

int main(int argc, char **argv) {
    lg_err err;
    lg_exchange x[2];
    lg_window w;
    lg_place place;
    uint32_t n_embd = argc > 1 ? (uint32_t)atoi(argv[1]) : 4096;
    uint32_t k = argc > 2 ? (uint32_t)atoi(argv[2]) : 10;
    int n_round = argc > 3 ? atoi(argv[3]) : 9;
    if (n_embd < 1 || n_embd > 65536 || k < 1 || k > MAX_K || n_round < 1 ||
        n_round > MAX_ROUND)
        return 2;
    if (lg_comm_mpi(&comm, &err) != LG_OK) {
        fprintf(stderr, "bench_exchange: %s\n", err.msg);
        return 1;
    }
    comm.timeout_us = 60 * 1000000;
    lg_exchange_how how = {.kind = LG_EXCHANGE_STRICT};
    lg_place_opt o = {.n_rank = comm.n_rank, .n_layer = 1, .n_expert = N_EXPERT};
    if (lg_place_balance(&place, &o, &err) != LG_OK) return 1;
    float *xn = lg_mem_calloc((size_t)MAX_T * n_embd, sizeof *xn);
    void *block[2];
    for (int i = 0; i < 2; i++) {
        lg_arena a;
        if (i)
            must(lg_window_open(&comm, lg_exchange_window_bytes(&comm, &how, MAX_T, n_embd, k),
                                &w));
        lg_arena_init(&a, NULL, 0);
        lg_exchange_carve(&a, &comm, &place, &how, MAX_T, n_embd, k, &x[i]);
        size_t bytes = a.used_bytes;
        block[i] = lg_mem_alloc(bytes);
        if (!block[i] || !xn) return 1;
        lg_arena_init(&a, block[i], bytes);
        lg_exchange_carve(&a, &comm, &place, &how, MAX_T, n_embd, k, &x[i]);
    }
    if (comm.rank == 0)
        printf("%u ranks on %u machines, rows of %u floats, %u experts each\n"
               "  rows  messages us  window us  messages/w  bytes, messages and window\n",
               comm.n_rank, comm.n_node, n_embd, k);
    for (uint32_t t = 8; t <= MAX_T; t *= 4) measure(x, t, n_round, xn);
    measure(x, 1, n_round, xn);
    lg_window_close(&comm, &w);
    lg_comm_close(&comm);
    lg_place_fini(&place);
    for (int i = 0; i < 2; i++) lg_mem_free(block[i]);
    lg_mem_free(xn);
    return 0;
}
