/* test_reduce.c - the hierarchical reduce-scatter over ranks that are threads: sums, bytes, any shape of the group.
 *
 * Values are small whole numbers, so every order of additions gives the same bits and the sum is known exactly; with 16 or 8 bits between
 * machines only the error's size is. */
#include "comm_threads.h"

#include "base/num.h"
#include "dist/reduce.h"

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
    lg_arena_init(&a, NULL, 0);
    lg_reduce_carve(&a, &c, r->wire, MAX_ROW, N_EMBD, &x);
    size_t bytes = a.used_bytes;
    void *block = lg_mem_alloc(bytes);
    lg_arena_init(&a, block, bytes);
    lg_reduce_carve(&a, &c, r->wire, MAX_ROW, N_EMBD, &x);
    memset(block, 0xff, bytes);
    x.no_overlap = r->no_overlap;
    for (uint32_t i = 0; i < N_CALL && r->status[rank] == LG_OK; i++) {
        part p = {r, &x, i, rank};
        r->status[rank] = lg_reduce_run(&x, r->row0[i], fill, &p, r->out[i][rank]);
        r->want_bytes[rank] += lg_reduce_bytes(&x, r->row0[i]);
    }
    r->sent_bytes[rank] = c.sent_bytes;
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

static void run(uint32_t n_rank, uint32_t n_node, bool uneven, uint64_t seed, lg_wire wire) {
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    *r = (rig){.n_rank = n_rank,
               .n_node = n_node,
               .uneven = uneven,
               .seed = seed,
               .wire = wire,
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
        cmocka_unit_test(test_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
