/* test_exchange.c - the exchange of a MoE layer over ranks that are threads.
 *
 * The products are a made-up function of (row, expert, column), so the sum of every row is known; of the strict exchange the order of
 * additions is checked by comparing bits, of the others the error against sums in double, which is printed as a table.  Ranks have
 * between no and many rows, placements are random with replicas, messages come late. */
#include "comm_threads.h"

#include "base/clock.h"
#include "base/num.h"
#include "dist/exchange.h"
#include "dist/window.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_EMBD   37
#define N_EXPERT 11
#define K        4
#define MAX_ROW  96
#define N_LAYER  2
#define N_STEP   12

typedef struct rig {
    comm_world *w;
    lg_place place;
    uint32_t n_rank, n_node;
    lg_exchange_how how;
    bool shared; /* the ranks of a machine have a window */
    uint64_t seed;
    uint32_t n_row[N_STEP][LG_MAX_RANK];
    uint32_t skip_step_of; /* this rank thinks that it is one step further; UINT32_MAX: none */
    uint32_t stray_of;     /* this rank came by another way; UINT32_MAX: none */
    uint64_t timeout_us;
    /* results */
    float sum[N_STEP][N_LAYER][MAX_ROW][N_EMBD];
    uint64_t sent_bytes[LG_MAX_RANK], n_sent[LG_MAX_RANK], pairs_away[LG_MAX_RANK];
    uint32_t n_kind[LG_EXCHANGE_AUTO]; /* layers that rank 0 did by each */
    uint64_t reduce_bytes[LG_MAX_RANK];
    lg_status status[LG_MAX_RANK];
    char why[LG_MAX_RANK][160];
} rig;

static uint64_t key(const rig *r, uint32_t step, uint32_t layer, uint32_t g) {
    return r->seed * 1000003 + step * 7919 + layer * 104729 + g;
}

/* Row g of all rows, whoever has it. */
static void make_row(const rig *r, uint32_t step, uint32_t layer, uint32_t g, float *x,
                     uint32_t *id, float *w) {
    uint64_t s = key(r, step, layer, g);
    uint32_t perm[N_EXPERT];
    for (uint32_t i = 0; i < N_EMBD; i++) x[i] = lg_num_rng_unit(s, 1, i, 0) - 0.5f;
    for (uint32_t i = 0; i < N_EXPERT; i++) perm[i] = i;
    for (uint32_t j = 0; j < K; j++) {
        uint32_t at = j + (uint32_t)(lg_num_rng(s, 2, j, 0) % (N_EXPERT - j)), e = perm[at];
        perm[at] = perm[j];
        perm[j] = e;
        id[j] = e;
        w[j] = lg_num_rng_unit(s, 3, j, 0);
    }
}

static float product(float x, uint32_t e) {
    return fmaf(x, (float)(e + 1) * 0.37f, 0.01f * (float)e);
}

static void multiply(lg_exchange *x) {
    for (uint32_t e = 0; e < N_EXPERT; e++)
        for (uint32_t p = x->first[e]; p < x->first[e + 1]; p++)
            for (uint32_t i = 0; i < N_EMBD; i++)
                x->out[(size_t)p * N_EMBD + i] =
                    product(x->in[(size_t)x->in_row[p] * N_EMBD + i], e);
}

static void fill(void *ctx, uint32_t at, uint32_t n, float *y) {
    const lg_exchange *x = ctx;
    for (uint32_t i = at; i < at + n; i++, y += N_EMBD) {
        uint32_t rank = 0;
        while (x->row0[rank + 1] <= i) rank++;
        const float *w = lg_exchange_weights(x, lg_exchange_record(x, rank, i));
        memset(y, 0, N_EMBD * sizeof *y);
        for (uint32_t j = 0; j < K; j++) {
            uint32_t pair = x->pair[i * K + j];
            for (uint32_t c = 0; pair != UINT32_MAX && c < N_EMBD; c++)
                y[c] = fmaf(w[j], x->out[(size_t)pair * N_EMBD + c], y[c]);
        }
        lg_exchange_progress(ctx); /* as between tasks of a pool */
    }
}

static lg_status run_layer(rig *r, lg_exchange *x, uint32_t step, uint32_t layer) {
    static _Thread_local float xn[MAX_ROW * N_EMBD], w[MAX_ROW * K];
    static _Thread_local uint32_t id[MAX_ROW * K];
    uint32_t n = lg_exchange_n_own(x), g0 = x->row0[x->comm->rank];
    for (uint32_t i = 0; i < n; i++)
        make_row(r, step, layer, g0 + i, xn + i * N_EMBD, id + i * K, w + i * K);
    LG_TRY(lg_exchange_start(x, layer, xn, id, w));
    lg_exchange_progress(x);
    LG_TRY(lg_exchange_arrive(x));
    multiply(x);
    if (x->comm->rank == 0) r->n_kind[x->kind]++;
    if (x->kind == LG_EXCHANGE_REDUCE)
        r->reduce_bytes[x->comm->rank] += lg_reduce_bytes(&x->reduce, x->row0);
    if (x->kind != LG_EXCHANGE_STRICT)
        return lg_exchange_sums(x, fill, x, r->sum[step][layer][g0]);
    LG_TRY(lg_exchange_finish(x));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < K; j++) {
            const float *row = x->back + (size_t)x->back_at[i * K + j] * N_EMBD;
            float weight = lg_exchange_weight(x, i, j), *y = r->sum[step][layer][g0 + i];
            for (uint32_t c = 0; c < N_EMBD; c++) y[c] = fmaf(weight, row[c], j ? y[c] : 0.0f);
        }
    return LG_OK;
}

static void rank_body(void *ctx, uint32_t rank) {
    rig *r = ctx;
    lg_comm c;
    lg_exchange x;
    lg_arena a;
    lg_window win;
    comm_threads_join(r->w, rank, &c);
    lg_arena_init(&a, NULL, 0);
    lg_exchange_carve(&a, &c, &r->place, &r->how, MAX_ROW, N_EMBD, K, &x);
    size_t bytes = a.used_bytes, shared = 0;
    if (r->shared) shared = lg_exchange_window_bytes(&c, &r->how, MAX_ROW, N_EMBD, K);
    assert_int_equal(lg_window_open(&c, shared, &win), LG_OK);
    if (r->timeout_us) c.timeout_us = r->timeout_us;
    uint64_t bytes_before = c.sent_bytes, n_before = c.n_sent;
    lg_arena_init(&a, NULL, 0);
    lg_exchange_carve(&a, &c, &r->place, &r->how, MAX_ROW, N_EMBD, K, &x);
    assert_int_equal(x.shared, shared > 0 && r->n_rank > r->n_node);
    /* What a plan has counted without a window is enough. */
    assert_true(a.used_bytes + (x.shared ? win.part_bytes : 0) <= bytes + 4096);
    bytes = a.used_bytes;
    void *block = lg_mem_alloc(bytes);
    lg_arena_init(&a, block, bytes);
    lg_exchange_carve(&a, &c, &r->place, &r->how, MAX_ROW, N_EMBD, K, &x);
    memset(block, 0xff, bytes); /* NaN: what was not written is not read */
    if (rank == r->stray_of) lg_exchange_begin(&x, r->n_row[0]); /* once more than the others */
    for (uint32_t s = 0; s < N_STEP && r->status[rank] == LG_OK; s++) {
        c.step = s + (rank == r->skip_step_of);
        lg_exchange_begin(&x, r->n_row[s]);
        for (uint32_t l = 0; l < N_LAYER && r->status[rank] == LG_OK; l++)
            r->status[rank] = run_layer(r, &x, s, l);
    }
    r->sent_bytes[rank] = c.sent_bytes - bytes_before;
    r->n_sent[rank] = c.n_sent - n_before;
    lg_window_close(&c, &win);
    memcpy(r->why[rank], c.why, sizeof c.why);
    lg_comm_close(&c);
    lg_mem_free(block);
}

/* Random holders: one to all ranks each. */
static lg_place random_place(uint32_t n_rank, uint64_t seed) {
    uint32_t n_holder[N_LAYER * N_EXPERT];
    uint16_t holder[N_LAYER * N_EXPERT * 16];
    size_t n = 0;
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++) {
        uint32_t first = (uint32_t)(lg_num_rng(seed, 9, i, 0) % n_rank);
        n_holder[i] = 0;
        for (uint32_t r = 0; r < n_rank; r++)
            if (r == first || lg_num_rng(seed, 10, i, r) % 4 == 0) {
                holder[n++] = (uint16_t)r;
                n_holder[i]++;
            }
    }
    lg_place_opt o = {.n_rank = n_rank, .n_layer = N_LAYER, .n_expert = N_EXPERT};
    lg_place p;
    assert_int_equal(lg_place_set(&p, &o, n_holder, holder, NULL), LG_OK);
    return p;
}

static rig *open_rig(uint32_t n_rank, uint32_t n_node, uint64_t seed, uint32_t jitter) {
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    r->n_rank = n_rank;
    r->n_node = n_node;
    r->seed = seed;
    r->skip_step_of = r->stray_of = UINT32_MAX;
    r->w = comm_threads_open(n_rank, n_node, jitter);
    r->place = random_place(n_rank, seed);
    for (uint32_t s = 0; s < N_STEP; s++) {
        uint32_t left = s == 3 ? 0 : MAX_ROW; /* one step in which all are idle */
        for (uint32_t i = 0; i < n_rank; i++) {
            uint32_t kind = (uint32_t)(lg_num_rng(seed, 4, s, i) % 4), n = 0;
            if (kind == 1) n = 1;
            if (kind == 2) n = (uint32_t)(lg_num_rng(seed, 5, s, i) % 20);
            if (kind == 3 && s % 3 == 0) n = left;
            if (n > left) n = left;
            r->n_row[s][i] = n;
            left -= n;
        }
    }
    return r;
}

static void close_rig(rig **r) {
    comm_threads_close((*r)->w);
    lg_place_fini(&(*r)->place);
    LG_FREE(*r);
}

/* Every sum against the same chain of fused additions in one place. */
static void check_sums(const rig *r) {
    for (uint32_t s = 0; s < N_STEP; s++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < r->n_rank; i++) n += r->n_row[s][i];
        for (uint32_t l = 0; l < N_LAYER; l++)
            for (uint32_t g = 0; g < n; g++) {
                float x[N_EMBD], w[K], want[N_EMBD] = {0};
                uint32_t id[K];
                make_row(r, s, l, g, x, id, w);
                for (uint32_t e = 0; e < N_EXPERT; e++)
                    for (uint32_t j = 0; j < K; j++)
                        for (uint32_t c = 0; id[j] == e && c < N_EMBD; c++)
                            want[c] = fmaf(w[j], product(x[c], e), want[c]);
                if (memcmp(want, r->sum[s][l][g], sizeof want) != 0)
                    fail_msg("%u ranks, seed %llu: step %u, layer %u, row %u", r->n_rank,
                             (unsigned long long)r->seed, s, l, g);
            }
    }
}

/* Whether what rank a has for rank b is a message. */
static bool far(const rig *r, uint32_t a, uint32_t b) {
    uint32_t n = r->n_rank / r->n_node;
    return a != b && (!r->shared || a / n != b / n);
}

static uint32_t n_far(const rig *r, uint32_t me) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < r->n_rank; k++) n += far(r, me, k);
    return n;
}

/* Bytes by the formulas of exchange.h, from the routing alone. */
static void check_bytes(const rig *r) {
    const uint64_t record = 4 * N_EMBD + 8 * K;
    for (uint32_t me = 0; me < r->n_rank; me++) {
        uint64_t want = 0, n_msg = 0;
        for (uint32_t s = 0; s < N_STEP; s++)
            for (uint32_t l = 0; l < N_LAYER; l++) {
                if (r->n_row[s][me]) {
                    want += n_far(r, me) * (LG_EXCHANGE_HEAD + r->n_row[s][me] * record);
                    n_msg += n_far(r, me);
                }
                for (uint32_t q = 0, g = 0; q < r->n_rank; q++) {
                    uint64_t back = 0;
                    for (uint32_t i = 0; i < r->n_row[s][q]; i++, g++) {
                        float x[N_EMBD], w[K];
                        uint32_t id[K];
                        make_row(r, s, l, g, x, id, w);
                        for (uint32_t j = 0; far(r, me, q) && j < K; j++)
                            back += lg_place_rank(&r->place, l, id[j], g) == me;
                    }
                    want += back * 4 * N_EMBD;
                    n_msg += back > 0;
                }
            }
        assert_int_equal(r->sent_bytes[me], want);
        assert_int_equal(r->n_sent[me], n_msg);
    }
}

static void test_strict_bits_and_bytes(void **state) {
    (void)state;
    static const uint32_t shape[][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {8, 1}, {6, 2}, {6, 3}};
    for (size_t i = 0; i < LG_COUNT(shape); i++)
        for (uint64_t seed = 1; seed <= 4; seed++) {
            rig *r = open_rig(shape[i][0], shape[i][1], seed, seed % 2 ? 0 : 8);
            r->shared = seed > 2;
            r->how.no_overlap = seed == 4;
            comm_threads_run(r->n_rank, rank_body, r);
            for (uint32_t k = 0; k < r->n_rank; k++)
                if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->why[k]);
            check_sums(r);
            check_bytes(r);
            close_rig(&r);
        }
}

/* ---- the exchanges that round otherwise ---- */

/* Worst and root mean square error against sums in double of the rows as they were, relative to the largest sum of all. */
static void measure(const rig *r, double *worst, double *rms) {
    double most = 0, square = 0, n_value = 0;
    *worst = 0;
    for (uint32_t s = 0; s < N_STEP; s++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < r->n_rank; i++) n += r->n_row[s][i];
        for (uint32_t l = 0; l < N_LAYER; l++)
            for (uint32_t g = 0; g < n; g++) {
                float x[N_EMBD], w[K];
                uint32_t id[K];
                make_row(r, s, l, g, x, id, w);
                for (uint32_t c = 0; c < N_EMBD; c++) {
                    double want = 0;
                    for (uint32_t j = 0; j < K; j++)
                        want += (double)w[j] *
                                ((double)x[c] * (double)((float)(id[j] + 1) * 0.37f) +
                                 (double)(0.01f * (float)id[j]));
                    double e = fabs((double)r->sum[s][l][g][c] - want);
                    if (!(e <= *worst)) *worst = e;
                    square += e * e;
                    n_value++;
                    if (fabs(want) > most) most = fabs(want);
                }
            }
    }
    *worst /= most;
    *rms = sqrt(square / n_value) / most;
}

/* All-to-all by the formulas of exchange.h. */
static uint64_t alltoall_bytes(const rig *r, uint32_t me) {
    uint64_t hw = lg_wire_words(r->how.wire, N_EMBD), want = 0;
    for (uint32_t s = 0; s < N_STEP; s++)
        for (uint32_t l = 0; l < N_LAYER; l++) {
            if (r->n_row[s][me]) want += (r->n_rank - 1) * LG_EXCHANGE_HEAD;
            for (uint32_t q = 0, g = 0; q < r->n_rank; q++)
                for (uint32_t i = 0; i < r->n_row[s][q]; i++, g++) {
                    float x[N_EMBD], w[K];
                    uint32_t id[K];
                    bool to[LG_MAX_RANK] = {0};
                    make_row(r, s, l, g, x, id, w);
                    for (uint32_t j = 0; j < K; j++)
                        to[lg_place_rank(&r->place, l, id[j], g)] = true;
                    for (uint32_t k = 0; q == me && k < r->n_rank; k++)
                        if (k != me && to[k]) want += 4 * (hw + 2 * K + 1);
                    if (q != me && to[me]) want += 4 * hw;
                }
        }
    return want;
}

/* The all-gather's part of the other two. */
static uint64_t rows_bytes(const rig *r, uint32_t me) {
    uint64_t record = 4 * (lg_wire_words(r->how.wire, N_EMBD) + 2 * K), want = 0;
    for (uint32_t s = 0; s < N_STEP; s++)
        if (r->n_row[s][me])
            want += N_LAYER * n_far(r, me) * (LG_EXCHANGE_HEAD + r->n_row[s][me] * record);
    return want;
}

static void run_kind(lg_exchange_kind kind, lg_wire wire, uint32_t n_rank, uint32_t n_node,
                     uint64_t seed, bool no_overlap, double *worst, double *rms) {
    rig *r = open_rig(n_rank, n_node, seed, seed % 2 ? 0 : 4);
    r->how = (lg_exchange_how){.kind = kind, .wire = wire, .no_overlap = no_overlap};
    r->shared = seed % 2;
    comm_threads_run(n_rank, rank_body, r);
    for (uint32_t k = 0; k < n_rank; k++) {
        if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->why[k]);
        uint64_t want = kind == LG_EXCHANGE_ALLTOALL ? alltoall_bytes(r, k)
                                                     : rows_bytes(r, k) + r->reduce_bytes[k];
        assert_int_equal(r->sent_bytes[k], want);
    }
    measure(r, worst, rms);
    close_rig(&r);
}

static void test_sums_and_bytes(void **state) {
    (void)state;
    static const uint32_t shape[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 3}, {4, 2}, {8, 4}, {8, 1}};
    static const double bound[LG_N_WIRE] = {1e-6, 0.02, 0.03};
    printf("  error against sums in double, of the largest sum\n"
           "  exchange  wire    worst       rms\n");
    for (int kind = LG_EXCHANGE_REDUCE; kind <= LG_EXCHANGE_ALLTOALL; kind++)
        for (int wire = 0; wire < LG_N_WIRE; wire++) {
            double worst = 0, rms = 0;
            for (size_t i = 0; i < LG_COUNT(shape); i++) {
                double a, b;
                run_kind((lg_exchange_kind)kind, (lg_wire)wire, shape[i][0], shape[i][1],
                         30 + i, i % 3 == 2, &a, &b);
                worst = fmax(worst, a);
                rms = fmax(rms, b);
            }
            printf("  %-8s  %-4s  %9.2e  %9.2e\n", lg_exchange_name((lg_exchange_kind)kind),
                   lg_wire_name((lg_wire)wire), worst, rms);
            assert_true(worst < bound[wire]);
            assert_true(rms < bound[wire] / 4);
            assert_true(wire == 0 || worst > 1e-5); /* it was this wire */
        }
}

/* Few rows one way, many the other: all ranks choose the same in each step. */
static void run_auto(uint32_t n_node, bool shared) {
    rig *r = open_rig(8, n_node, 50, 0);
    double worst, rms;
    /* All-to-all has more messages, the reduce-scatter more bytes. */
    lg_way way = {.latency_s = 1e-4, .message_s = 1e-4, .bytes_s = 5e6};
    r->how = (lg_exchange_how){.kind = LG_EXCHANGE_AUTO, .links = {way, way, 0}};
    r->shared = shared;
    for (uint32_t s = 0; s < N_STEP; s++)
        for (uint32_t i = 0; i < 8; i++) r->n_row[s][i] = s % 2 ? 12 : 1;
    comm_threads_run(8, rank_body, r);
    for (uint32_t k = 0; k < 8; k++)
        if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->why[k]);
    measure(r, &worst, &rms);
    assert_true(worst < 1e-6);
    lg_group_shape g = {8, n_node, N_EMBD, K, N_EXPERT, LG_WIRE_F32};
    uint32_t want[2] = {lg_exchange_choose(&r->how.links, &g, (lg_row_count){8, 1}),
                        lg_exchange_choose(&r->how.links, &g, (lg_row_count){96, 12})};
    assert_int_not_equal(want[0], want[1]);
    for (int i = 0; i < 2; i++) assert_int_equal(r->n_kind[want[i]], N_STEP / 2 * N_LAYER);
    close_rig(&r);
}

static void test_auto(void **state) {
    (void)state;
    run_auto(8, false);
    run_auto(4, true); /* what is sent and what is read in place, in turn */
}

typedef struct progress_rig {
    comm_world *w;
    lg_place place;
    pthread_barrier_t sent;
    lg_exchange_kind kind;
    bool looks;
    uint32_t n_left; /* messages still under way at rank 0 when its rows are asked for */
} progress_rig;

static void progress_body(void *ctx, uint32_t rank) {
    progress_rig *r = ctx;
    lg_comm c;
    lg_exchange x;
    lg_arena a;
    lg_exchange_how how = {.kind = r->kind};
    float xn[N_EMBD] = {0}, w[K] = {0};
    uint32_t n_row[3] = {1, 1, 1}, id[K] = {1, 4, 7, 10};
    comm_threads_join(r->w, rank, &c);
    lg_arena_init(&a, NULL, 0);
    lg_exchange_carve(&a, &c, &r->place, &how, 3, N_EMBD, K, &x);
    void *block = lg_mem_alloc(a.used_bytes);
    size_t bytes = a.used_bytes;
    lg_arena_init(&a, block, bytes);
    lg_exchange_carve(&a, &c, &r->place, &how, 3, N_EMBD, K, &x);
    lg_exchange_begin(&x, n_row);
    assert_int_equal(lg_exchange_start(&x, 0, xn, id, w), LG_OK);
    pthread_barrier_wait(&r->sent);
    for (uint32_t i = 0; r->looks && i < 60; i++) lg_exchange_progress(&x);
    for (uint32_t i = 0; rank == 0 && i < x.n_req; i++) r->n_left += x.req[i].active;
    assert_int_equal(lg_exchange_arrive(&x), LG_OK);
    lg_comm_close(&c);
    lg_mem_free(block);
}

/* A carrier that moves a message only when it is asked many times: rows have come while somebody computes and looks after them, and
 * have not when nobody does. */
static void test_progress(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        progress_rig r = {.kind = (lg_exchange_kind)(i / 2), .looks = i % 2};
        r.w = comm_threads_open(3, 1, 50);
        r.place = random_place(3, 70);
        pthread_barrier_init(&r.sent, NULL, 3);
        comm_threads_run(3, progress_body, &r);
        assert_int_equal(r.n_left > 0, i % 2 == 0);
        pthread_barrier_destroy(&r.sent);
        lg_place_fini(&r.place);
        comm_threads_close(r.w);
    }
}

/* A rank that is out of step is noticed by what it sends. */
static void test_out_of_step(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        rig *r = open_rig(3, 1, 5, 0);
        r->shared = shared;
        r->skip_step_of = 1;
        r->timeout_us = 300000;
        for (uint32_t i = 0; i < 3; i++) r->n_row[0][i] = 2;
        comm_threads_run(3, rank_body, r);
        assert_int_equal(r->status[0], LG_E_COMM);
        if (!strstr(r->why[0], "rows of rank 1 are of step 1")) fail_msg("%s", r->why[0]);
        close_rig(&r);
    }
}

/* As is one whose messages look right, but that did something else before. */
static void test_another_way(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        rig *r = open_rig(3, 1, 5, 0);
        r->how.kind = (lg_exchange_kind)(i / 2);
        r->shared = i % 2;
        r->stray_of = 2;
        r->timeout_us = 300000;
        for (uint32_t k = 0; k < 3; k++) r->n_row[0][k] = 2;
        comm_threads_run(3, rank_body, r);
        assert_int_equal(r->status[0], LG_E_COMM);
        if (!strstr(r->why[0], "rank 2 came to step 0, layer 0 by other collectives"))
            fail_msg("%s", r->why[0]);
        close_rig(&r);
    }
}

/* A rank that falls silent ends the others' waits, which say whom they waited for and where. */
static void test_silent_rank(void **state) {
    (void)state;
    rig *r = open_rig(4, 1, 6, 0);
    r->timeout_us = 200000;
    for (uint32_t i = 0; i < 4; i++) r->n_row[0][i] = 3;
    comm_threads_mute(r->w, 2);
    uint64_t start = lg_clock_us();
    comm_threads_run(4, rank_body, r);
    assert_true(lg_clock_us() - start < 20 * 1000000);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == 2) continue;
        assert_int_equal(r->status[i], LG_E_COMM);
        if (!strstr(r->why[i], "no answer from rank 2 for") ||
            !strstr(r->why[i], "in rows, layer 0"))
            fail_msg("%s", r->why[i]);
    }
    close_rig(&r);
}

int main(void) {
    lg_diag_set_level(LG_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strict_bits_and_bytes),
        cmocka_unit_test(test_sums_and_bytes),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_out_of_step),
        cmocka_unit_test(test_another_way),
        cmocka_unit_test(test_silent_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
