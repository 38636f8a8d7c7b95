/* test_reduce.c - the hierarchical reduce-scatter over ranks that are threads: sums, bytes, any shape of the group.
 *
 * Values are small whole numbers, so every order of additions gives the same bits and the sum is known exactly; with 16 or 8 bits between
 * machines only the error's size is. */
#include "comm_threads.h"

#include "base/num.h"
#include "dist/reduce.h"
#include "dist/window.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_EMBD  19
#define N_CALL  5
#define MAX_ROW 300 /* of a rank: several chunks */

typedef struct rig {
    comm_world *w;
    uint32_t n_rank, n_node;
    lg_wire wire;
    bool no_overlap;
    bool uneven; /* machines with different numbers of ranks */
    bool shared; /* the ranks of a machine have a window */
    uint64_t seed;
    uint32_t row0[N_CALL][LG_MAX_RANK + 1];
    lg_status status[LG_MAX_RANK];
    uint64_t sent_bytes[LG_MAX_RANK], want_bytes[LG_MAX_RANK];
    float *out[N_CALL][LG_MAX_RANK];
} rig;

typedef struct part {
    const rig *r;
    lg_reduce *x;
    uint32_t call, rank;
} part;

static float value(const rig *r, uint32_t call, uint32_t rank, uint32_t g, uint32_t c) {
    return (float)(int)(lg_num_rng(r->seed + call, rank, g, c) % 2001) - 1000.0f;
}

static void fill(void *ctx, uint32_t g, uint32_t n, float *y) {
    const part *p = ctx;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t c = 0; c < N_EMBD; c++) *y++ = value(p->r, p->call, p->rank, g + i, c);
        if (i % 16 == 0) lg_reduce_progress(p->x);
    }
}

static void rank_body(void *ctx, uint32_t rank) {
    rig *r = ctx;
    lg_comm c;
    lg_reduce x;
    lg_arena a;
    comm_threads_join(r->w, rank, &c);
    if (r->uneven) { /* 0 0 0 1 2 ... */
        c.n_node = r->n_rank - 2;
        for (uint32_t k = 0; k < r->n_rank; k++) c.node[k] = k < 3 ? 0 : k - 2;
    }
    lg_window win;
    size_t shared = r->shared ? lg_reduce_window_bytes(&c, MAX_ROW, N_EMBD) : 0;
    assert_int_equal(lg_window_open(&c, shared, &win), LG_OK);
    lg_arena_init(&a, NULL, 0);
    lg_reduce_carve(&a, &c, r->wire, MAX_ROW, N_EMBD, &x);
    assert_int_equal(x.shared, r->shared && x.n_local > 1);
    size_t bytes = a.used_bytes;
    void *block = lg_mem_alloc(bytes);
    lg_arena_init(&a, block, bytes);
    lg_reduce_carve(&a, &c, r->wire, MAX_ROW, N_EMBD, &x);
    memset(block, 0xff, bytes);
    x.no_overlap = r->no_overlap;
    uint64_t before = c.sent_bytes;
    for (uint32_t i = 0; i < N_CALL && r->status[rank] == LG_OK; i++) {
        part p = {r, &x, i, rank};
        r->status[rank] = lg_reduce_run(&x, r->row0[i], fill, &p, r->out[i][rank]);
        if (i == 2) { /* another one begins where the last has stopped */
            lg_arena_init(&a, block, bytes);
            lg_reduce_carve(&a, &c, r->wire, MAX_ROW, N_EMBD, &x);
        }
        r->want_bytes[rank] += lg_reduce_bytes(&x, r->row0[i]);
    }
    r->sent_bytes[rank] = c.sent_bytes - before;
    lg_window_close(&c, &win);
    lg_comm_close(&c);
    lg_mem_free(block);
}

static void check(const rig *r) {
    for (uint32_t i = 0; i < N_CALL; i++)
        for (uint32_t k = 0; k < r->n_rank; k++) {
            const float *got = r->out[i][k];
            for (uint32_t g = r->row0[i][k]; g < r->row0[i][k + 1]; g++)
                for (uint32_t c = 0; c < N_EMBD; c++, got++) {
                    float want = 0;
                    for (uint32_t q = 0; q < r->n_rank; q++) want += value(r, i, q, g, c);
                    /* In bf16 each of log2(n_node) roundings is 1/256 of what has come together; in q8 1/254 of the
                     * largest value of the row. */
                    float most = 1000.0f * (float)r->n_rank;
                    if (r->wire ? !(fabsf(*got - want) <= most * 4 / 254) : *got != want)
                        fail_msg("%u ranks, %u machines, call %u: rank %u, row %u", r->n_rank,
                                 r->n_node, i, k, g);
                }
        }
}

static void run_with(uint32_t n_rank, uint32_t n_node, bool uneven, uint64_t seed, lg_wire wire,
                     bool shared) {
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    *r = (rig){.n_rank = n_rank,
               .n_node = n_node,
               .uneven = uneven,
               .seed = seed,
               .wire = wire,
               .shared = shared,
               .no_overlap = seed % 5 == 0};
    r->w = comm_threads_open(n_rank, uneven ? 1 : n_node, (uint32_t)(seed % 2) * 3);
    for (uint32_t i = 0; i < N_CALL; i++)
        for (uint32_t k = 0; k < n_rank; k++) {
            /* call 0: all the same; 1: nobody; then anything, often nothing or one row */
            uint32_t any = (uint32_t)(lg_num_rng(seed, 1, i, k) % MAX_ROW);
            uint32_t kind = (uint32_t)(lg_num_rng(seed, 2, i, k) % 3);
            uint32_t n = i == 0 ? 40 : i == 1 ? 0 : kind == 0 ? 0 : kind == 1 ? 1 : any;
            r->row0[i][k + 1] = r->row0[i][k] + n;
            r->out[i][k] = lg_mem_calloc((size_t)n * N_EMBD, sizeof(float));
        }
    comm_threads_run(n_rank, rank_body, r);
    for (uint32_t k = 0; k < n_rank; k++) {
        assert_int_equal(r->status[k], LG_OK);
        assert_int_equal(r->sent_bytes[k], r->want_bytes[k]);
    }
    check(r);
    for (uint32_t i = 0; i < N_CALL; i++)
        for (uint32_t k = 0; k < n_rank; k++) lg_mem_free(r->out[i][k]);
    comm_threads_close(r->w);
    lg_mem_free(r);
}

/* With messages inside the machines, and with windows. */
static void run(uint32_t n_rank, uint32_t n_node, bool uneven, uint64_t seed, lg_wire wire) {
    for (int shared = 0; shared < 2; shared++)
        run_with(n_rank, n_node, uneven, seed, wire, shared != 0);
}

static void test_machines_and_ranks(void **state) {
    (void)state;
    static const uint32_t shape[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 3}, {4, 2}, {4, 4},
                                        {6, 3}, {6, 2}, {8, 4}, {8, 2}, {10, 5}};
    for (size_t i = 0; i < LG_COUNT(shape); i++)
        run(shape[i][0], shape[i][1], false, 7 + i, LG_WIRE_F32);
}

static void test_few_bits(void **state) {
    (void)state;
    static const uint32_t shape[][2] = {{2, 2}, {3, 3}, {4, 2}, {8, 4}};
    for (size_t i = 0; i < LG_COUNT(shape); i++)
        for (int w = LG_WIRE_BF16; w <= LG_WIRE_Q8; w++)
            run(shape[i][0], shape[i][1], false, 60 + i, (lg_wire)w);
}

static void test_uneven_machines(void **state) {
    (void)state;
    run(4, 2, true, 40, LG_WIRE_F32);  /* 3 + 1 */
    run(5, 3, true, 41, LG_WIRE_BF16); /* 3 + 1 + 1 */
}

/* ---- windows ---- */

typedef struct absent {
    comm_world *w;
    size_t part_bytes;
    uint32_t rank; /* does not come to the sum */
    lg_status status[4];
    char why[4][160];
} absent;

static void nothing(void *ctx, uint32_t g, uint32_t n, float *y) {
    (void)ctx;
    (void)g;
    memset(y, 0, (size_t)n * N_EMBD * sizeof *y);
}

static void absent_body(void *ctx, uint32_t rank) {
    static const uint32_t row0[5] = {0, 20, 40, 60, 80};
    absent *t = ctx;
    float out[20 * N_EMBD];
    lg_comm c;
    lg_window win;
    lg_reduce x;
    lg_arena a;
    comm_threads_join(t->w, rank, &c);
    assert_int_equal(lg_window_open(&c, t->part_bytes, &win), LG_OK);
    if (t->rank < 4) c.timeout_us = 100000;
    lg_arena_init(&a, NULL, 0);
    lg_reduce_carve(&a, &c, LG_WIRE_F32, 20, N_EMBD, &x);
    assert_int_equal(x.shared, t->part_bytes < 1 << 30);
    void *block = lg_mem_alloc(a.used_bytes);
    lg_arena_init(&a, block, a.used_bytes);
    lg_reduce_carve(&a, &c, LG_WIRE_F32, 20, N_EMBD, &x);
    if (rank != t->rank) t->status[rank] = lg_reduce_run(&x, row0, nothing, NULL, out);
    memcpy(t->why[rank], c.why, sizeof c.why);
    lg_window_close(&c, &win);
    lg_comm_close(&c);
    lg_mem_free(block);
}

/* Nobody waits for ever for a rank that does not write its part. */
static void test_absent_rank(void **state) {
    (void)state;
    absent t = {.w = comm_threads_open(4, 2, 0), .part_bytes = 1 << 20, .rank = 1};
    comm_threads_run(4, absent_body, &t);
    for (uint32_t k = 0; k < 4; k++) assert_int_equal(t.status[k], k == 1 ? LG_OK : LG_E_COMM);
    assert_non_null(strstr(t.why[0], "no answer from rank 1 for")); /* in the window */
    comm_threads_close(t.w);
}

/* Where there is no room for a window there are messages. */
static void test_no_room(void **state) {
    (void)state;
    absent t = {.w = comm_threads_open(4, 2, 0), .part_bytes = (size_t)1 << 50, .rank = 4};
    comm_threads_run(4, absent_body, &t);
    for (uint32_t k = 0; k < 4; k++) assert_int_equal(t.status[k], LG_OK);
    comm_threads_close(t.w);
}

/* The even case by the formulas of reduce.h. */
static void test_formula(void **state) {
    (void)state;
    comm_world *w = comm_threads_open(8, 4, 0);
    uint32_t row0[9];
    lg_comm c;
    lg_reduce x;
    lg_arena a;
    comm_threads_join(w, 3, &c);
    lg_arena_init(&a, NULL, 0);
    lg_reduce_carve(&a, &c, LG_WIRE_F32, 16, 4096, &x);
    for (uint32_t k = 0; k <= 8; k++) row0[k] = 8 * k;
    /* T = 64, G = 2, M = 4 */
    double t = 64.0 * 4096 * 4;
    assert_true((double)lg_reduce_bytes(&x, row0) == t / 2 + t / 2 * 0.75);
    lg_comm_close(&c);
    comm_threads_close(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machines_and_ranks),
        cmocka_unit_test(test_few_bits),
        cmocka_unit_test(test_uneven_machines),
        cmocka_unit_test(test_absent_rank),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
