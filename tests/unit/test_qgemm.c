/* test_qgemm.c - products of quantised rows with block types: ref against its definition, every level against ref by bits,
 * and the distance from the float product over the same weights. */
#include "quant_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const lg_kern *ref, *level[MAX_LEVEL];
static size_t n_level;

/* Rows in buffers that end at a guard page. */
static lg_qrows new_rows(uint32_t group, size_t n_row, size_t ld) {
    size_t n = n_row * ld;
    return (lg_qrows){.group = group,
                      .ld = ld,
                      .v8 = guarded(n),
                      .v16 = guarded(n * sizeof(int16_t)),
                      .sum = guarded(n / 32 * sizeof(int16_t)),
                      .sum16 = guarded(n / 16 * sizeof(int16_t)),
                      .d = guarded(n / 32 * sizeof(float))};
}

static lg_qrows quantise(const lg_kern *k, const float *x, uint32_t group, uint32_t n_row,
                         uint32_t n) {
    lg_qrows q = new_rows(group, n_row, n);
    for (uint32_t r = 0; r < n_row; r++) k->quant_row(x + (size_t)r * n, n, &q, r);
    return q;
}

/* Rows of very different sizes, with zeros in them. */
static float *odd_rows(uint32_t n_row, uint32_t n) {
    float *x = random_floats((size_t)n_row * n, -1, 1);
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t k = 0; k < n; k++) {
            x[(size_t)r * n + k] *= ldexpf(1, (int)(r * 7 % 40) - 20);
            if ((k / 32 + r) % 5 == 4) x[(size_t)r * n + k] = 0;
        }
    return x;
}

static void check_quant(const lg_kern *k, const float *x, uint32_t group, uint32_t n) {
    lg_qrows q = quantise(k, x, group, 1, n);
    for (uint32_t g = 0; g < n / group; g++) {
        float amax = 0;
        for (uint32_t i = 0; i < group; i++) amax = fmaxf(amax, fabsf(x[g * group + i]));
        assert_true(q.d[g] == amax / 127);
        for (uint32_t i = g * group; i < (g + 1) * group; i++) {
            assert_true(q.v8[i] == q.v16[i] && abs(q.v16[i]) <= 127);
            double want = amax > 0 ? (double)x[i] * 127 / (double)amax : 0;
            assert_true(fabs(q.v16[i] - want) <= 0.5 + 1e-4);
        }
    }
    for (uint32_t i = 0; i < n / 32; i++) {
        int sum = 0;
        for (uint32_t j = 0; j < 32; j++) {
            sum += q.v8[32 * i + j];
            if (j == 15) assert_int_equal(q.sum16[2 * i], sum);
        }
        assert_int_equal(q.sum[i], sum);
        assert_int_equal(q.sum16[2 * i] + q.sum16[2 * i + 1], sum);
    }
}

static void test_rows_as_integers(void **state) {
    (void)state;
    for (size_t l = 0; l <= n_level; l++) {
        const lg_kern *k = l < n_level ? level[l] : ref;
        for (uint32_t r = 0; r < 40; r++) {
            uint32_t n = 256 * (1 + r % 3);
            float *x = odd_rows(r + 1, n);
            check_quant(k, x + (size_t)r * n, 32, n);
            check_quant(k, x + (size_t)r * n, 256, n);
            guarded_free();
        }
    }
}

static void test_ties_and_odd_groups(void **state) {
    (void)state;
    for (size_t l = 0; l <= n_level; l++) {
        const lg_kern *k = l < n_level ? level[l] : ref;
        float x[128] = {127, 0.5f, 1.5f, -2.5f, 3.5f, -0.5f}; /* ties go to even */
        x[32] = 1e-38f;                                       /* too small for a scale */
        x[64] = INFINITY;
        x[65] = 3;
        x[100] = NAN;
        lg_qrows q = quantise(k, x, 32, 1, 128);
        const int want[6] = {127, 0, 2, -2, 4, 0};
        for (int i = 0; i < 6; i++) assert_int_equal(q.v8[i], want[i]);
        assert_true(q.d[0] == 1 && q.d[1] == 0 && isnan(q.d[2]) && isnan(q.d[3]));
        for (int i = 32; i < 128; i++) assert_true(q.v8[i] == 0 && q.v16[i] == 0);
        assert_true(q.sum[0] == 131 && q.sum[1] == 0 && q.sum[2] == 0 && q.sum[3] == 0);
        lg_qrows none = new_rows(32, 1, 0);
        k->quant_row(x, 0, &none, 0);
        guarded_free();
    }
}

/* The integers of a block say what the decoder says, up to rounding. */
static void test_blocks_as_integers(void **state) {
    (void)state;
    for (int t = LG_Q4_0; t < LG_N_DTYPE; t++) {
        lg_dtype type = (lg_dtype)t;
        if (!lg_dtype_is_int(type)) continue;
        uint32_t n = lg_dtype_block(type);
        for (int i = 0; i < 50; i++) {
            uint8_t *b = random_blocks(type, 1);
            float y[LG_MAX_BLOCK];
            lg_qsplit s;
            lg_dequant_row(type, b, n, y);
            lg_qsplit_block(type, b, &s);
            assert_true(lg_qsplit_has_min(type) || s.m == 0);
            for (uint32_t k = 0; k < n; k++) {
                double a = (double)s.d * s.i[k], m = (double)s.m * s.j[k / 16];
                assert_true(fabs(a - m - (double)y[k]) <= (fabs(a) + fabs(m)) * 0x1p-22);
            }
        }
        guarded_free();
    }
}

/* ref in another order of loops, straight from the file's blocks. */
static float defined(const quant_mat *m, const lg_qrows *x, uint32_t c) {
    lg_dtype type = m->w.type;
    uint32_t n = lg_dtype_block(type), n_block = m->w.n_in / n;
    float acc = 0;
    for (uint32_t b = 0; b < n_block; b++) {
        lg_qsplit s;
        lg_qsplit_block(type, m->rows + (size_t)(c * n_block + b) * lg_dtype_block_bytes(type),
                        &s);
        int64_t sum = 0, min = 0;
        for (uint32_t k = 0; k < n; k++) {
            sum += (int64_t)s.i[k] * x->v8[b * n + k];
            min += (int64_t)s.j[k / 16] * x->v8[b * n + k];
            if ((k + 1) % x->group) continue;
            float dx = x->d[(b * n + k) / x->group];
            acc = fmaf((float)sum, s.d * dx, acc);
            if (lg_qsplit_has_min(type)) acc = fmaf(-(float)min, s.m * dx, acc);
            sum = min = 0;
        }
    }
    return acc;
}

static void check_product(lg_dtype type, uint32_t n_out, uint32_t n_in, uint32_t n_row,
                          bool idx) {
    quant_mat m = random_quant(type, n_out, n_in);
    uint32_t n_x = n_row + 2, *row_idx = guarded(n_row * sizeof *row_idx);
    uint32_t n_panel = lg_mat_n_panel(&m.w), ld_y = n_out;
    float *x = odd_rows(n_x, n_in), *want = filled_floats((size_t)n_row * ld_y, -7);
    lg_qrows q = quantise(ref, x, lg_dtype_row_group(type), n_x, n_in);
    for (uint32_t r = 0; r < n_row; r++) row_idx[r] = (r * 5 + 1) % n_x;
    for (uint32_t r = 0; r < n_row; r++) {
        lg_qrows one = lg_qrows_at(&q, idx ? row_idx[r] : r);
        for (uint32_t c = 0; c < n_out; c++) want[r * ld_y + c] = defined(&m, &one, c);
    }
    for (size_t l = 0; l <= n_level; l++) {
        const lg_kern *k = l < n_level ? level[l] : ref;
        float *y = filled_floats((size_t)n_row * ld_y, -7);
        lg_qrows mine = quantise(k, x, lg_dtype_row_group(type), n_x, n_in);
        assert_memory_equal(mine.v8, q.v8, n_x * (size_t)n_in);
        k->qgemm(&m.w, 0, n_panel, &mine, idx ? row_idx : NULL, n_row, y, ld_y);
        assert_memory_equal(y, want, (size_t)n_row * ld_y * sizeof *y);
    }
    guarded_free();
}

static void test_products(void **state) {
    (void)state;
    const uint32_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 13, 24, 33};
    for (int t = LG_Q4_0; t < LG_N_DTYPE; t++) {
        lg_dtype type = (lg_dtype)t;
        if (!lg_dtype_is_int(type)) continue;
        uint32_t n = lg_dtype_block(type);
        for (size_t r = 0; r < LG_COUNT(rows); r++) {
            check_product(type, 1, n, rows[r], false);
            check_product(type, 17, 3 * n, rows[r], true);
            check_product(type, 50, 2 * n, rows[r], r % 2);
        }
        check_product(type, 16, 0, 3, false);
        check_product(type, 32, 2048, 2, false);
        check_product(type, 33, 512, 199, true);   /* more rows than pass together */
        check_product(type, 18, 2304, 131, false); /* and more input channels */
    }
    check_product(LG_Q6_K, 17, 1025 * 256, 3,
                  true); /* more than q6k_avx2.c prepares at a time */
}

/* The largest integers: no sum may overflow. */
static void test_extremes(void **state) {
    (void)state;
    for (int t = LG_Q4_0; t < LG_N_DTYPE; t++) {
        lg_dtype type = (lg_dtype)t;
        if (!lg_dtype_is_int(type)) continue;
        for (int fill = 0; fill < 4; fill++) {
            const uint8_t bytes[4] = {0xff, 0x00, 0x80, 0x7f};
            quant_mat m = random_quant(type, 16, 256);
            size_t len = lg_dtype_panel_bytes(type, 256), one = lg_dtype_block_bytes(type);
            uint8_t *panel = guarded(len);
            for (size_t b = 0; b < len / one; b++) {
                uint8_t *block = m.rows + b * one, keep[5];
                bool own = type >= LG_I4_32;
                memcpy(keep, block, 5);
                for (int j = 0; j < 2; j++)
                    if (quant_f16[type][j] >= 0)
                        memcpy(keep + 2 * j, block + quant_f16[type][j], 2);
                memset(block, bytes[fill], one);
                for (int j = 0; j < 2; j++)
                    if (quant_f16[type][j] >= 0)
                        memcpy(block + quant_f16[type][j], keep + 2 * j, 2);
                if (type == LG_MXFP4) block[0] = 120;
                if (own) memcpy(block, keep, type == LG_I8_128 ? 4 : 5);
            }
            lg_pack_panels(type, m.rows, 16, 256, 0, 1, panel);
            m.w.panel = panel;
            float *x = filled_floats(40 * 256, fill == 1 ? -3.0f : 2.5f);
            lg_qrows q = quantise(ref, x, lg_dtype_row_group(type), 40, 256);
            float want[16];
            for (uint32_t c = 0; c < 16; c++) want[c] = defined(&m, &q, c);
            for (size_t l = 0; l <= n_level; l++) {
                const lg_kern *k = l < n_level ? level[l] : ref;
                static const uint32_t n_row[] = {1, 3, 7, 40};
                float y[40 * 16];
                for (size_t r = 0; r < LG_COUNT(n_row); r++) {
                    k->qgemm(&m.w, 0, 1, &q, NULL, n_row[r], y, 16);

                    for (uint32_t i = 0; i < n_row[r] * 16; i++)
                        assert_true(y[i] == want[i % 16]);
                }
            }
            guarded_free();
        }
    }
}

/* A row of a batch equals the row alone; panels in any pieces give the same. */
static void test_rows_and_panels_are_independent(void **state) {
    (void)state;
    enum { M = 29, N = 96, K = 512 };
    for (size_t l = 0; l < n_level; l++)
        for (int t = LG_Q4_0; t < LG_N_DTYPE; t++) {
            if (!lg_dtype_is_int((lg_dtype)t)) continue;
            quant_mat m = random_quant((lg_dtype)t, N, K);
            float *all = filled_floats(M * N, 0), *alone = filled_floats(M * N, 0);
            float *cut = filled_floats(M * N, 0), *x = odd_rows(M, K);
            lg_qrows q = quantise(level[l], x, lg_dtype_row_group((lg_dtype)t), M, K);
            level[l]->qgemm(&m.w, 0, N / LG_NR, &q, NULL, M, all, N);
            for (uint32_t r = 0; r < M; r++) {
                lg_qrows one = lg_qrows_at(&q, r);
                level[l]->qgemm(&m.w, 0, N / LG_NR, &one, NULL, 1, alone + r * N, N);
            }
            level[l]->qgemm(&m.w, 5, 1, &q, NULL, M, cut, N);
            level[l]->qgemm(&m.w, 0, 3, &q, NULL, M, cut, N);
            level[l]->qgemm(&m.w, 3, 2, &q, NULL, M, cut, N);
            assert_memory_equal(alone, all, M * N * sizeof *all);
            assert_memory_equal(cut, all, M * N * sizeof *all);
            guarded_free();
        }
}

/* A value that is not finite reaches every output of its row and of no other. */
static void test_not_finite(void **state) {
    (void)state;
    for (size_t l = 0; l <= n_level; l++) {
        const lg_kern *k = l < n_level ? level[l] : ref;
        for (int t = LG_Q4_0; t < LG_N_DTYPE; t++) {
            if (!lg_dtype_is_int((lg_dtype)t)) continue;
            quant_mat m = random_quant((lg_dtype)t, 16, 512);
            float *x = random_floats(27 * 512, -1, 1), y[27 * 16];
            x[512 + 300] = l % 2 ? NAN : -INFINITY;
            lg_qrows q = quantise(k, x, lg_dtype_row_group((lg_dtype)t), 27, 512);
            for (uint32_t n_row = 3; n_row <= 27; n_row *= 3) {
                k->qgemm(&m.w, 0, 1, &q, NULL, n_row, y, 16);
                for (uint32_t c = 0; c < n_row * 16; c++)
                    assert_true(c / 16 == 1 ? isnan(y[c]) : isfinite(y[c]));
            }
            guarded_free();
        }
    }
}

/* Against the float product of the same weights: every activation is off by at most d / 2, so the sum is by at most
 * sum |w| d / 2, and at random by about sqrt(sum w^2 / 12) d. */
static void test_distance_from_floats(void **state) {
    (void)state;
    enum { M = 8, N = 64, K = 1024 };
    for (int t = LG_Q4_0; t < LG_N_DTYPE; t++) {
        lg_dtype type = (lg_dtype)t;
        if (!lg_dtype_is_int(type)) continue;
        quant_mat m = random_quant(type, N, K);
        uint32_t n = lg_dtype_row_group(type);
        float *x = random_floats(M * K, -1, 1), y[M * N], exact[M * N];
        lg_qrows q = quantise(ref, x, n, M, K);
        ref->qgemm(&m.w, 0, N / LG_NR, &q, NULL, M, y, N);
        ref->gemm(&m.w, 0, N / LG_NR, x, K, NULL, M, exact, N);
        double err = 0, expected = 0, size = 0;
        for (uint32_t i = 0; i < M * N; i++) {
            const float *w = m.dense + (size_t)(i % N) * K, *d = q.d + i / N * (K / 32);
            double bound = 0;
            for (uint32_t k = 0; k < K; k++) {
                double wd = fabs((double)w[k]) * (double)d[k / n];
                bound += wd / 2;
                expected += wd * wd / 12;
            }
            double e = (double)y[i] - (double)exact[i];
            assert_true(fabs(e) <= bound * 1.001 + 1e-4 * fabs((double)exact[i]) + 1e-6);
            err += e * e;
            size += (double)exact[i] * (double)exact[i];
        }
        print_message("%-7s error %.2f of the expected one, %.4f of the outputs\n",
                      lg_dtype_name(type), sqrt(err / expected), sqrt(err / size));
        assert_true(err <= 1.5 * expected);
        guarded_free();
    }
}

int main(void) {
    ref = lg_kern_level("ref");
    n_level = find_levels(false, level);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_as_integers),
        cmocka_unit_test(test_ties_and_odd_groups),
        cmocka_unit_test(test_blocks_as_integers),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_rows_and_panels_are_independent),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_distance_from_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
