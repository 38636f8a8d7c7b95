/* test_choose.c - what an exchange is expected to cost: against sums made by hand, and where one passes the other. */
#include "comm_threads.h"

#include "base/num.h"
#include "dist/choose.h"
#include "dist/window.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const lg_links fast = {.in = {2e-6, 1e-6, 20e9}, .out = {20e-6, 2e-6, 10e9}};

static void near(double found, double expected) {
    if (fabs(found - expected) > 1e-9 * fabs(expected))
        fail_msg("%g, expected %g", found, expected);
}

/* 4 machines of 2 ranks, 512 experts, 10 a row. */
static void test_formulas(void **state) {
    (void)state;
    lg_group_shape g = {8, 4, 4096, 10, 512, LG_WIRE_F32};
    double rows = 2e-6 + 64 * 16464 / 20e9 + 20e-6 + 5 * 2e-6 + 2 * 6 * 64 * 16464 / 10e9;
    double reduce = 2e-6 + 16384 * 512 * 0.5 / 20e9 + 2 * 20e-6 + 16384 * 512 * 0.75 / 10e9;
    near(lg_exchange_seconds(&fast, &g, LG_EXCHANGE_REDUCE, lg_rows_even(&g, 512)),
         rows + reduce);
    lg_links shared = fast;
    lg_group_shape big = {8,  2,   4096,
                          10, 512, LG_WIRE_F32}; /* 4 ranks read what 3 others wrote */
    lg_row_count even = lg_rows_even(&big, 512);
    shared.shared_bytes_s = 40e9;
    near(lg_exchange_seconds(&fast, &big, LG_EXCHANGE_REDUCE, even) -
             lg_exchange_seconds(&shared, &big, LG_EXCHANGE_REDUCE, even),
         2 * 2 * 1e-6 + (3 * 64 * 16464 + 16384 * 512 * 0.75) * (1 / 20e9 - 1 / 40e9));
    double pairs = 16384 * 10.0 / 8;
    double back = 2e-6 + 64 * pairs / 20e9 + 20e-6 + 5 * 2e-6 + 2 * 6 * 64 * pairs / 10e9;
    near(lg_exchange_seconds(&fast, &g, LG_EXCHANGE_STRICT, lg_rows_even(&g, 512)),
         rows + back);
    /* Copies that leave a token's rank: 5.18 of 7 (docs of the design's table). */
    double p = 5.18 / 7, fixed = 2 * (2e-6 + 20e-6 + 5 * 2e-6);
    double a2a = fixed + p * 64 * (16468 + 16384) * (1 / 20e9 + 12 / 10e9);
    double found = lg_exchange_seconds(&fast, &g, LG_EXCHANGE_ALLTOALL, lg_rows_even(&g, 512));
    assert_true(fabs(found - a2a) < 0.01 * a2a);
    g.wire = LG_WIRE_BF16;
    lg_group_shape floats = {8, 4, 4096, 10, 512, LG_WIRE_F32};
    lg_row_count n = {4096, 512};
    assert_true(lg_exchange_seconds(&fast, &g, LG_EXCHANGE_REDUCE, n) <
                0.62 * lg_exchange_seconds(&fast, &floats, LG_EXCHANGE_REDUCE, n));
}

/* Many machines: all-to-all; few with several ranks each: the reduce-scatter. */
static void test_choice(void **state) {
    (void)state;
    lg_group_shape few = {8, 2, 4096, 10, 512, LG_WIRE_F32};
    lg_group_shape many = {64, 64, 4096, 10, 512, LG_WIRE_F32};
    lg_group_shape one = {1, 1, 4096, 10, 512, LG_WIRE_F32};
    assert_int_equal(lg_exchange_choose(&fast, &few, lg_rows_even(&few, 2048)),
                     LG_EXCHANGE_REDUCE);
    assert_int_equal(lg_exchange_choose(&fast, &many, lg_rows_even(&many, 2048)),
                     LG_EXCHANGE_ALLTOALL);
    assert_true(lg_exchange_seconds(&fast, &one, LG_EXCHANGE_REDUCE, lg_rows_even(&one, 100)) ==
                0);
    near(lg_exchange_seconds(&fast, &many, LG_EXCHANGE_AUTO, lg_rows_even(&many, 2048)),
         lg_exchange_seconds(&fast, &many, LG_EXCHANGE_ALLTOALL, lg_rows_even(&many, 2048)));
}

/* 8 machines of a rank; what is made meanwhile hides messages, but never more than there are. */
static void test_dividing(void **state) {
    (void)state;
    lg_group_shape g = {8, 8, 1024, 10, 512, LG_WIRE_F32}, one = g;
    lg_divide_shape d = {
        .n_gdn = 3, .n_attn = 1, .in = 8000, .out = 4000, .keys = 2000, .state = 1e6};
    double way = 20e-6 + 6 * 2e-6, rows = 512 / 8.0;
    double in = way + 7 * rows * 1000 / 10e9, out = way + 7 * rows * 500 / 10e9;
    double keys = way + 7 * rows * 2000 / 10e9, home = way + 7 * 125e3 / 10e9;
    near(lg_divide_seconds(&fast, &g, &d, 512, 0, 0), 3 * (in + out + home) + keys);
    near(lg_divide_seconds(&fast, &g, &d, 512, 2, 0), 3 * (in + out + 3 * home) + keys);
    d.z_s = in / rows / 4;
    d.q_s = 1;
    near(lg_divide_seconds(&fast, &g, &d, 512, 0, 0), 3 * (in * 3 / 4 + out + home));
    d.all_heads_s = 2e-6;
    d.own_heads_s = 0.5e-6;
    near(lg_divide_seconds(&fast, &g, &d, 512, 0, 0),
         3 * (in * 3 / 4 + out + home - 512 * 1.5e-6));
    one.n_rank = one.n_node = 1;
    assert_true(lg_divide_seconds(&fast, &one, &d, 512, 0, 0) == 0);
}

/* 4 machines of 2 ranks; 3 GDN layers, 1 of attention. */
static void test_slices(void **state) {
    (void)state;
    static const lg_slice_shape s = {3, 1, 8000, 4000, 6000, 3000, 512, 40000};
    lg_group_shape g = {8, 4, 1024, 10, 512, LG_WIRE_F32}, one = g;
    double way = 2e-6 + 20e-6, more = 5 * 2e-6; /* 1 rank beside it, 6 on other machines */
    double one_to = 1.0 / 8 / 20e9 + 6.0 / 8 / 10e9, from = 1 / 20e9 + 6 / 10e9;
    double gdn = 2 * way + more + 8000 * one_to + 4000 * from;
    double attn = 2 * way + more + 6000 * one_to + 3000 * from;
    double even = 1.0 / 8 / 20e9 + 6 * 2.0 / 8 / 10e9;
    double out = way + more + 4096 * even, shared = 1e-6 + 6 * 2e-6;
    double f = lg_slice_fullest(10, 8);
    double most = 40960 * f + 4096.0 / 8, others = (40960 + 4096) / 8.0;
    double back = way + more + most / 20e9 + 6 * (most + others) / 10e9;
    near(lg_slice_seconds(&fast, &g, &s, 1, 0), 3 * gdn + attn + 4 * (out + shared + back));
    near(lg_slice_seconds(&fast, &g, &s, 1, 1) - lg_slice_seconds(&fast, &g, &s, 1, 0),
         way + 40000 * one_to);
    one.n_rank = one.n_node = 1;
    assert_true(lg_slice_seconds(&fast, &one, &s, 1, 1) == 0);
}

/* Against draws. */
static void test_fullest(void **state) {
    (void)state;
    static const uint32_t ranks[] = {2, 3, 4, 8, 16}, things[] = {10, 80};
    for (size_t i = 0; i < LG_COUNT(ranks); i++)
        for (size_t k = 0; k < LG_COUNT(things); k++) {
            enum { DRAWS = 4000 };
            double sum = 0, found = lg_slice_fullest(things[k], ranks[i]);
            for (uint32_t d = 0; d < DRAWS; d++) {
                uint32_t n[64] = {0}, most = 0;
                for (uint32_t t = 0; t < things[k]; t++) {
                    uint32_t *at = &n[lg_num_rng(5, d, t, ranks[i]) % ranks[i]];
                    if (++*at > most) most = *at;
                }
                sum += (double)most / things[k];
            }
            if (fabs(found - sum / DRAWS) > 0.2 * found)
                fail_msg("%u of %u ranks: %g, drawn %g", things[k], ranks[i], found,
                         sum / DRAWS);
        }
    assert_true(lg_slice_fullest(10, 1) == 1 && lg_slice_fullest(1, 8) == 1);
}

static void test_names(void **state) {
    (void)state;
    lg_exchange_kind kind;
    for (int i = 0; i <= LG_EXCHANGE_AUTO; i++) {
        assert_true(lg_exchange_named(lg_exchange_name((lg_exchange_kind)i), &kind));
        assert_int_equal(kind, i);
    }
    assert_false(lg_exchange_named("fast", &kind));
}

typedef struct rig {
    comm_world *w;
    size_t part_bytes; /* of a window */
    lg_links links[6];
    uint64_t sent[6];
} rig;

static void measure(void *ctx, uint32_t rank) {
    rig *r = ctx;
    lg_comm c;
    lg_window w;
    comm_threads_join(r->w, rank, &c);
    assert_int_equal(lg_window_open(&c, r->part_bytes, &w), LG_OK);
    if (lg_links_measure(&c, &r->links[rank]) != LG_OK) fail_msg("%s", c.why);
    r->sent[rank] = c.sent_bytes;
    lg_window_close(&c, &w);
    lg_comm_close(&c);
}

/* All ranks get the same figures, and they make sense. */
static void test_measuring(void **state) {
    (void)state;
    static const uint32_t shape[][2] = {{6, 3}, {6, 3}, {2, 2}, {3, 1}, {1, 1}};
    for (size_t i = 0; i < LG_COUNT(shape); i++) {
        rig r = {.w = comm_threads_open(shape[i][0], shape[i][1], 0),
                 .part_bytes = i ? 1 << 20 : 0};
        comm_threads_run(shape[i][0], measure, &r);
        for (uint32_t k = 0; k < shape[i][0]; k++) {
            bool both = shape[i][1] > 1 && shape[i][0] > shape[i][1];
            assert_memory_equal(&r.links[k], &r.links[0], sizeof r.links[0]);
            /* nine rounds of a MiB each way that there is, and short messages */
            double mib = (double)r.sent[k] / (1 << 20);
            if (shape[i][0] > 1) assert_true(mib > 8.99 * (1 + both) && mib < 9.1 * (1 + both));
        }
        if (shape[i][0] > 1) {
            assert_true(r.links[0].in.latency_s > 0 && r.links[0].out.latency_s > 0);
            assert_true(r.links[0].in.bytes_s > 1e6 && r.links[0].out.bytes_s > 1e6);
            assert_true(r.links[0].in.message_s >= 0);
            bool shared = i > 0 && shape[i][0] > shape[i][1];
            assert_int_equal(r.links[0].shared_bytes_s > 1e6, shared);
        }
        comm_threads_close(r.w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),  cmocka_unit_test(test_choice),
        cmocka_unit_test(test_dividing),  cmocka_unit_test(test_slices),
        cmocka_unit_test(test_fullest),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_measuring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
