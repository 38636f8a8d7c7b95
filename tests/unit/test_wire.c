/* test_wire.c - rows on the wire: error bounds, what is not finite, odd lengths, nothing written beside the row. */
#include "base/diag.h"
#include "base/num.h"
#include "dist/wire.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX 133
#define PAD 0x5a5a5a5au

static void make(uint64_t seed, uint32_t n, float size, float *x) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = (lg_num_rng_unit(seed, 0, i, 0) - 0.5f) * size *
               (i % 7 == 0 ? 1.0f : lg_num_rng_unit(seed, 1, i, 0));
}

static void test_round_trip(void **state) {
    (void)state;
    static const float size[] = {1.0f, 3e-20f, 5e15f};
    for (int w = 0; w < LG_N_WIRE; w++)
        for (uint32_t n = 1; n <= MAX; n++) {
            float x[3 * MAX], y[3 * MAX], sum[3 * MAX];
            uint32_t wire[3 * (MAX + 1) + 1];
            size_t words = lg_wire_words((lg_wire)w, n);
            assert_int_equal(words, w == LG_WIRE_F32    ? n
                                    : w == LG_WIRE_BF16 ? (n + 1) / 2
                                                        : 1 + (n + 3) / 4);
            for (uint32_t r = 0; r < 3; r++) make(n * 3 + r, n, size[r], x + r * n);
            for (size_t i = 0; i < LG_COUNT(wire); i++) wire[i] = PAD;
            lg_wire_put((lg_wire)w, x, 3, n, wire);
            assert_int_equal(wire[3 * words], PAD);
            lg_wire_get((lg_wire)w, wire, 3, n, y);
            for (uint32_t r = 0; r < 3; r++) {
                float most = 0;
                for (uint32_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[r * n + i]));
                for (uint32_t i = r * n; i < (r + 1) * n; i++) {
                    float bound = w == LG_WIRE_F32    ? 0
                                  : w == LG_WIRE_BF16 ? fabsf(x[i]) / 256
                                                      : most / 127 * 0.5001f;
                    assert_true(fabsf(y[i] - x[i]) <= bound);
                    sum[i] = x[i];
                }
            }
            lg_wire_add((lg_wire)w, wire, 3, n, sum);
            for (uint32_t i = 0; i < 3 * n; i++) assert_true(sum[i] == x[i] + y[i]);
        }
}

static void test_not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int w = 0; w < LG_N_WIRE; w++)
        for (size_t b = 0; b < LG_COUNT(bad); b++) {
            float x[40], y[40];
            uint32_t wire[40];
            make(b, 40, 2, x);
            x[b * 11] = bad[b];
            lg_wire_put((lg_wire)w, x, 1, 40, wire);
            lg_wire_get((lg_wire)w, wire, 1, 40, y);
            assert_true(!isfinite(y[b * 11]));
        }
}

/* Rows of zeros, and of values too small to be scaled, are zeros. */
static void test_nothing(void **state) {
    (void)state;
    float x[9] = {0}, y[9];
    uint32_t wire[9];
    for (int w = 0; w < LG_N_WIRE; w++) {
        lg_wire_put((lg_wire)w, x, 1, 9, wire);
        lg_wire_get((lg_wire)w, wire, 1, 9, y);
        for (int i = 0; i < 9; i++) assert_true(y[i] == 0.0f);
    }
    x[4] = 1e-39f;
    lg_wire_put(LG_WIRE_Q8, x, 1, 9, wire);
    lg_wire_get(LG_WIRE_Q8, wire, 1, 9, y);
    for (int i = 0; i < 9; i++) assert_true(y[i] == 0.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
