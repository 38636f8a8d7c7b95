/* test_kern.c - the reference kernels against plain mathematics in double, and the kernels that are not dispatched.
 * That the other levels give the same bits as ref is test_kern_bits.c. */
#include "kern_data.h"

#include "kern/vmath.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define assert_close(got, want, tol)                                                           \
    assert_true(fabs((double)(got) - (double)(want)) <= (double)(tol))

static const lg_kern *ref;

static double ulp_of(double v) {
    int e;
    frexp(v, &e);
    return ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

static void test_exp_is_within_two_ulp(void **state) {
    (void)state;
    double worst = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 197) {
        float x = lg_num_float_of_bits((uint32_t)bits), y = lg_expf(x);
        if (x != x) {
            assert_true(y != y);
            continue;
        }
        double want = exp((double)x);
        if (want > 3.4028234663852886e38) {
            assert_true(isinf(y) && y > 0);
        } else if (want < 1.1754943508222875e-38) {
            assert_true(y >= 0 && (double)y <= 1.1754944e-38);
        } else {
            double err = fabs((double)y - want) / ulp_of(want);
            if (err > worst) worst = err;
        }
    }
    print_message("worst error of lg_expf: %.3f ulp\n", worst);
    assert_true(worst <= 2.0);
    assert_true(lg_expf(0.0f) == 1.0f && lg_expf(-0.0f) == 1.0f);
    assert_true(lg_expf(-INFINITY) == 0.0f && isinf(lg_expf(INFINITY)));
    assert_true(lg_expf(-88.0f) == 0.0f && isinf(lg_expf(88.8f)) && isfinite(lg_expf(88.7f)));
    assert_true(lg_sigmoidf(-1000.0f) == 0.0f && lg_sigmoidf(1000.0f) == 1.0f);
    assert_close(lg_siluf(1.5f), 1.5 / (1 + exp(-1.5)), 2e-7);
}

static void check_gemm(lg_dtype type, uint32_t n_out, uint32_t n_in, uint32_t n_row, bool idx) {
    lg_mat w = random_mat(type, n_out, n_in);
    uint32_t row_idx[16], n_panel = lg_mat_n_panel(&w), ld_y = n_out + 3;
    float *x = random_floats((size_t)(n_row + 2) * n_in, -1, 1);
    float *y = filled_floats((size_t)n_row * ld_y, -7);
    for (uint32_t r = 0; r < n_row; r++) row_idx[r] = (r * 5 + 1) % (n_row + 2);
    ref->gemm(&w, 0, n_panel, x, n_in, idx ? row_idx : NULL, n_row, y, ld_y);
    for (uint32_t r = 0; r < n_row; r++) {
        const float *xr = x + (idx ? row_idx[r] : r) * n_in;
        for (uint32_t c = 0; c < n_out; c++) {
            double want = 0, size = 0;
            for (uint32_t k = 0; k < n_in; k++) {
                double t = (double)xr[k] * weight_at(&w, c, k);
                want += t;
                size += fabs(t);
            }
            assert_close(y[r * ld_y + c], want, size * (n_in + 2) * 0x1p-24 + 1e-30);
        }
        for (uint32_t c = n_out; c < ld_y; c++) assert_true(y[r * ld_y + c] == -7);
    }
    guarded_free();
}

static void test_gemm(void **state) {
    (void)state;
    for (int type = 0; type < LG_Q4_0; type++) {
        check_gemm((lg_dtype)type, 1, 1, 1, false);
        check_gemm((lg_dtype)type, 16, 0, 2, false);
        check_gemm((lg_dtype)type, 40, 67, 3, true);
        check_gemm((lg_dtype)type, 150, 300, 5, false);
    }
}

static void test_rows(void **state) {
    (void)state;
    const uint32_t sizes[] = {0, 1, 15, 16, 17, 31, 128, 1009, 2048};
    for (size_t s = 0; s < LG_COUNT(sizes); s++) {
        uint32_t n = sizes[s];
        float *x = random_floats(n, -2, 2), *w = random_floats(n, -1, 1);
        float *z = random_floats(n, -9, 9), *y = random_floats(n, -1, 1);
        double sum = 0, dot = 0;
        for (uint32_t i = 0; i < n; i++) {
            sum += (double)x[i] * (double)x[i];
            dot += (double)x[i] * (double)w[i];
        }
        double rms = 1 / sqrt(sum / (n ? n : 1) + 1e-6), l2 = 1 / sqrt(sum + 1e-6);
        assert_close(ref->dot(x, w, n), dot, 1e-6 * (1 + n / 16.0));
        ref->rmsnorm(x, w, 1e-6f, n, y);
        for (uint32_t i = 0; i < n; i++)
            assert_close(y[i], (double)x[i] * rms * (double)w[i], 1e-6);
        ref->l2norm(x, 1e-6f, 0.25f, n, y);
        for (uint32_t i = 0; i < n; i++) assert_close(y[i], (double)x[i] * l2 * 0.25, 1e-6);
        ref->gated_norm(x, w, z, 1e-6f, n, y);
        for (uint32_t i = 0; i < n; i++) {
            double silu = (double)z[i] / (1 + exp(-(double)z[i]));
            assert_close(y[i], (double)x[i] * rms * (double)w[i] * silu, 1e-5);
        }
        ref->swiglu(z, x, n, y);
        for (uint32_t i = 0; i < n; i++)
            assert_close(y[i], (double)z[i] / (1 + exp(-(double)z[i])) * (double)x[i], 5e-6);
        ref->sigmoid_mul(x, z, n, y);
        for (uint32_t i = 0; i < n; i++)
            assert_close(y[i], (double)x[i] / (1 + exp(-(double)z[i])), 1e-6);
        float *before = same_floats(y, n);
        ref->add(x, n, y);
        for (uint32_t i = 0; i < n; i++) assert_true(y[i] == before[i] + x[i]);
        ref->axpy(0.37f, x, n, before);
        guarded_free();
    }
    float y[2] = {1.0f, 2.0f}, x[2] = {4.0f, -8.0f};
    ref->axpy(0.5f, x, 2, y);
    assert_true(y[0] == 3.0f && y[1] == -2.0f);
}

static void test_argmax(void **state) {
    (void)state;
    float max, x[] = {1, 5, -3, 5, 2};
    assert_int_equal(ref->argmax(x, 5, &max), 1);
    assert_true(max == 5);
    x[4] = NAN;
    assert_int_equal(ref->argmax(x, 5, &max), UINT32_MAX);
    assert_true(max != max);
    assert_int_equal(ref->argmax(x, 4, &max), 1);
    assert_int_equal(ref->argmax(x, 0, &max), UINT32_MAX);
}

static void test_rope_rotates_pairs(void **state) {
    (void)state;
    float cos_t[32], sin_t[32], x[70], y[70];
    for (uint32_t pos = 0; pos < 300000; pos += 99991) {
        lg_rope_table(pos, 1e7, 64, cos_t, sin_t);
        for (int i = 0; i < 70; i++) x[i] = y[i] = random_in(-1, 1);
        ref->rope(y, cos_t, sin_t, 64);
        for (int i = 0; i < 32; i++) {
            double angle = pos * pow(1e7, -2.0 * i / 64);
            double lo = (double)x[i], hi = (double)x[i + 32];
            assert_close(cos_t[i], cos(angle), 1e-7);
            assert_close(sin_t[i], sin(angle), 1e-7);
            assert_close(y[i], lo * cos(angle) - hi * sin(angle), 1e-6);
            assert_close(y[i + 32], hi * cos(angle) + lo * sin(angle), 1e-6);
        }
        for (int i = 64; i < 70; i++) assert_true(y[i] == x[i]);
    }
}

static void test_conv(void **state) {
    (void)state;
    enum { T = 12, C = 19 };
    float *x = random_floats(T * C, -1, 1), *w = random_floats(LG_CONV_K * C, -1, 1);
    float *u = filled_floats(T * C, 0), *prev = filled_floats(3 * C, NAN);
    const uint32_t cut[] = {0, 1, 3, 3, 8, T};
    for (size_t i = 0; i + 1 < LG_COUNT(cut); i++)
        ref->conv_silu(x + cut[i] * C, C, cut[i + 1] - cut[i], C, w, C, i > 0, prev, C,
                       u + cut[i] * C, C);
    for (int t = 0; t < T; t++) {
        for (int c = 0; c < C; c++) {
            double sum = 0;
            for (int k = 0; k < LG_CONV_K; k++)
                if (t + k - 3 >= 0)
                    sum += (double)w[k * C + c] * (double)x[(t + k - 3) * C + c];
            assert_close(u[t * C + c], sum / (1 + exp(-sum)), 1e-6);
        }
    }
    assert_memory_equal(prev, x + (T - 3) * C, 3 * C * sizeof *x);
    guarded_free();
}

/* One head of Gated DeltaNet: inputs of L tokens and what a recurrence in double gives. */
enum { L = 100, DK = 24, DV = 20 };

typedef struct gdn {
    float q[L][DK], k[L][DK], v[L][DV], g[L], beta[L];
    double o[L][DV];
} gdn;

static gdn gdn_data;

static void gdn_fill(gdn *h) {
    static double s[DK][DV];
    memset(s, 0, sizeof s);
    for (int t = 0; t < L; t++) {
        for (int i = 0; i < DK; i++)
            h->q[t][i] = random_in(-1, 1), h->k[t][i] = random_in(-1, 1);
        for (int j = 0; j < DV; j++) h->v[t][j] = random_in(-1, 1);
        ref->l2norm(h->q[t], 1e-6f, 1 / sqrtf(DK), DK, h->q[t]);
        ref->l2norm(h->k[t], 1e-6f, 1, DK, h->k[t]);
        h->g[t] = random_in(-0.4f, 0);
        h->beta[t] = random_in(0, 1);
        for (int j = 0; j < DV; j++) {
            double r = 0, o = 0;
            for (int i = 0; i < DK; i++)
                r += (s[i][j] *= exp((double)h->g[t])) * (double)h->k[t][i];
            double d = (double)h->beta[t] * ((double)h->v[t][j] - r);
            for (int i = 0; i < DK; i++)
                o += (s[i][j] += d * (double)h->k[t][i]) * (double)h->q[t][i];
            h->o[t][j] = o;
        }
    }
}

static void test_gdn_is_the_recurrence(void **state) {
    (void)state;
    gdn *h = &gdn_data;
    gdn_fill(h);
    float *o = filled_floats(L * DV, NAN), *s = filled_floats(DK * DV, NAN);
    float *open_k = filled_floats(DK * LG_GDN_C, NAN),
          *open_d = filled_floats(LG_GDN_C * DV, NAN);
    float *open_g = filled_floats(LG_GDN_C, NAN);
    const uint32_t cut[] = {0, 1, 2, 31, 33, 33, 64, L};
    uint32_t n_open = 0;
    for (size_t i = 0; i + 1 < LG_COUNT(cut); i++) {
        uint32_t t = cut[i], n_tok = cut[i + 1] - t;
        lg_gdn_arg a = {.dk = DK,
                        .dv = DV,
                        .n_tok = n_tok,
                        .n_open = n_open,
                        .has_init = t >= LG_GDN_C,
                        .q = h->q[t],
                        .k = h->k[t],
                        .ld_qk = DK,
                        .v = h->v[t],
                        .ld_v = DV,
                        .g = h->g + t,
                        .beta = h->beta + t,
                        .ld_g = 1,
                        .o = o + t * DV,
                        .ld_o = DV,
                        .s = s,
                        .ld_s = DV,
                        .open_k = open_k,
                        .open_d = open_d,
                        .open_g = open_g,
                        .scratch = guarded(lg_gdn_scratch_floats(DK, DV) * sizeof(float))};
        ref->gdn_rows(&a);
        lg_gdn_keep_g(h->g + t, 1, n_tok, n_open, open_g);
        n_open = lg_gdn_keep_k(h->k[t], DK, DK, n_tok, n_open, open_k);
        assert_int_equal(n_open, cut[i + 1] % LG_GDN_C);
    }
    for (int t = 0; t < L; t++)
        for (int j = 0; j < DV; j++) assert_close(o[t * DV + j], h->o[t][j], 1e-5);
    guarded_free();
}

/* The element at `at` of what a page keeps, and how far rounding may have moved it. */
static void check_kept(lg_dtype kv, float got, float x, float amax) {
    static const double rel[LG_N_DTYPE] = {[LG_BF16] = 0x1p-8, [LG_F16] = 0x1p-11};
    double most =
        kv == LG_Q8_0 ? (double)amax / 127 * (0.5 + 0x1p-5) : rel[kv] * fabs((double)x);
    assert_true(fabs((double)got - (double)x) <= most);
    if (kv == LG_F32) assert_true(got == x);
}

/* Each type keeps keys and values as well as it can; the neighbours' are not touched. */
static void test_kv_store(void **state) {
    (void)state;
    static const lg_dtype types[] = {LG_F32, LG_BF16, LG_F16, LG_Q8_0};
    enum { D = 40 };
    for (size_t t = 0; t < LG_COUNT(types); t++) {
        lg_dtype kv = types[t];
        size_t bytes = lg_kv_bytes(kv, D), n_same = 0;
        assert_int_equal(bytes % 64, 0);
        uint8_t *page = guarded(bytes), *old = guarded(bytes);
        memset(page, 0xff, bytes);
        memset(old, 0xff, bytes);
        float *k = random_floats(D, -3, 3), *v = random_floats(D, -0.01f, 0.01f);
        k[7] = 0;
        ref->kv_store(kv, k, v, D, 5, page);
        lg_kv_part at = lg_kv_at(kv, D, page);
        size_t width = kv == LG_Q8_0 ? 1 : lg_dtype_bytes(kv);
        for (uint32_t i = 0; i < D; i++) {
            float x[2] = {k[i], v[i]}, got[2], amax[2] = {0, 0};
            for (uint32_t e = i / 32 * 32; e < D && e < i / 32 * 32 + 32; e++) {
                amax[0] = fmaxf(amax[0], fabsf(k[e]));
                amax[1] = fmaxf(amax[1], fabsf(v[e]));
            }
            for (int w = 0; w < 2; w++) {
                const uint8_t *p =
                    w ? at.value + (5 * D + i) * width : at.key + (i * LG_PAGE_TOK + 5) * width;
                size_t s = i / 32 * LG_PAGE_TOK + 5;
                if (kv == LG_F32) memcpy(&got[w], p, 4);
                if (kv == LG_BF16) got[w] = lg_num_bf16(lg_num_load16(p));
                if (kv == LG_F16) got[w] = lg_num_f16(lg_num_load16(p));
                if (kv == LG_Q8_0)
                    got[w] =
                        (float)(int8_t)*p * lg_num_f16(w ? at.value_scale[s] : at.key_scale[s]);
                check_kept(kv, got[w], x[w], amax[w]);
            }
        }
        for (size_t i = 0; i < bytes; i++) n_same += page[i] == old[i];
        assert_true(n_same >= bytes - 2 * D * width - (kv == LG_Q8_0 ? 8 : 0));
        guarded_free();
    }
}

/* A copy of some positions attends as the page does, and what was not copied is zero. */
static void test_kv_copy(void **state) {
    (void)state;
    static const lg_dtype types[] = {LG_F32, LG_BF16, LG_F16, LG_Q8_0};
    enum { D = 40, N = 37 };
    for (size_t t = 0; t < LG_COUNT(types); t++) {
        size_t bytes = lg_kv_bytes(types[t], D);
        void *whole = guarded(bytes), *part = guarded(bytes), *copy = guarded(bytes);
        memset(whole, 0xff, bytes);
        memset(part, 0, bytes);
        memset(copy, 0xff, bytes);
        for (uint32_t j = 0; j < LG_PAGE_TOK; j++) {
            float *x = random_floats(D, -1, 1);
            ref->kv_store(types[t], x, x, D, j, whole);
            if (j < N) ref->kv_store(types[t], x, x, D, j, part);
        }
        lg_kv_copy(types[t], D, N, whole, copy);
        assert_memory_equal(copy, part, bytes);
        lg_kv_copy(types[t], D, LG_PAGE_TOK, whole, copy);
        assert_memory_equal(copy, whole, bytes);
        guarded_free();
    }
}

/* What has no number stays visible: a NaN in every type, never a wrong finite value. */
static void test_kv_store_keeps_nan(void **state) {
    (void)state;
    float x[32] = {1, INFINITY}, zero[32] = {0};
    uint8_t *page = guarded(lg_kv_bytes(LG_Q8_0, 32));
    lg_kv_part at = lg_kv_at(LG_Q8_0, 32, page);
    ref->kv_store(LG_Q8_0, x, zero, 32, 0, page);
    assert_true(isnan(lg_num_f16(at.key_scale[0])));
    assert_true(lg_num_f16(at.value_scale[0]) == 0 && at.value[3] == 0);
    x[1] = 1e9f; /* the scale is too large for F16: 0 x infinity */
    ref->kv_store(LG_Q8_0, x, zero, 32, 0, page);
    assert_true(isinf(lg_num_f16(at.key_scale[0])) && at.key[0] == 0);
    guarded_free();
}

/* Types of pages and the error that their rounding may add. */
static void check_attention(lg_dtype kv, double tol) {
    enum { D = 40, N = 150, NP = (N + LG_PAGE_TOK - 1) / LG_PAGE_TOK, Q = 7 };
    float *k = random_floats(N * D, -1, 1), *v = random_floats(N * D, -1, 1);
    float *q = random_floats(Q * D, -3, 3), *acc = filled_floats(Q * D, NAN);
    float m[Q], l[Q];
    void *pages[NP];
    uint32_t n_pos[Q] = {1, 5, 64, 65, 128, 149, 150}, n_see[Q];
    for (int p = 0; p < NP; p++) {
        pages[p] = guarded(lg_kv_bytes(kv, D));
        memset(pages[p], 0xff, lg_kv_bytes(kv, D));
    }
    for (uint32_t i = 0; i < N; i++)
        ref->kv_store(kv, k + i * D, v + i * D, D, i % LG_PAGE_TOK, pages[i / LG_PAGE_TOK]);
    for (uint32_t p = 0; p < NP; p++) {
        for (int r = 0; r < Q; r++) {
            uint32_t base = p * LG_PAGE_TOK, left = n_pos[r] > base ? n_pos[r] - base : 0;
            n_see[r] = left < LG_PAGE_TOK ? left : LG_PAGE_TOK;
        }
        ref->attn_page(&(lg_attn_arg){.d = D,
                                      .n_q = Q,
                                      .q = q,
                                      .ld_q = D,
                                      .n_see = n_see,
                                      .first = p == 0,
                                      .kv = kv,
                                      .page = pages[p],
                                      .scale = 0.158f,
                                      .m = m,
                                      .l = l,
                                      .acc = acc});
    }
    for (int r = 0; r < Q; r++) {
        double w[N], sum = 0, want[D] = {0};
        for (uint32_t i = 0; i < n_pos[r]; i++) {
            double s = 0;
            for (int c = 0; c < D; c++)
                s += (double)q[r * D + c] * (double)k[i * D + (uint32_t)c];
            sum += w[i] = exp((double)0.158f * s);
        }
        for (uint32_t i = 0; i < n_pos[r]; i++)
            for (int c = 0; c < D; c++) want[c] += w[i] / sum * (double)v[i * D + (uint32_t)c];
        for (int c = 0; c < D; c++) assert_close(acc[r * D + c] / l[r], want[c], tol);
    }
    guarded_free();
}

static void test_attention_is_softmax(void **state) {
    (void)state;
    check_attention(LG_F32, 2e-6);
    check_attention(LG_F16, 2e-3);
    check_attention(LG_BF16, 1.6e-2);
    check_attention(LG_Q8_0, 1.6e-2);
}

static void test_router(void **state) {
    (void)state;
    float logit[] = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f}, weight[5];
    uint32_t id[5];
    lg_router_topk(logit, 5, 3, id, weight);
    assert_int_equal(id[0], 1);
    assert_int_equal(id[1], 3);
    assert_int_equal(id[2], 4);
    double sum = 2 + exp(-1.0);
    assert_close(weight[0], 1 / sum, 1e-7);
    assert_close(weight[1], 1 / sum, 1e-7);
    assert_close(weight[2], exp(-1.0) / sum, 1e-7);
    lg_router_topk(logit, 5, 5, id, weight);
    assert_int_equal(id[4], 2);
    logit[1] = NAN; /* stays a permutation, the NaN last */
    lg_router_topk(logit, 5, 5, id, weight);
    assert_int_equal(id[0], 3);
    assert_int_equal(id[4], 1);
}

static void test_gates(void **state) {
    (void)state;
    const float a[] = {0.3f, -40.0f, 60.0f, 1.0f}, b[] = {0.0f, -3.0f, 200.0f, -200.0f};
    const float neg[] = {-1.0f, -2.0f, -0.5f, 0.0f}, bias[] = {0.1f, 0.0f, 0.0f, 1.0f};
    float g[4], beta[4];
    lg_gdn_gates(a, b, neg, bias, 4, g, beta);
    for (int i = 0; i < 4; i++) {
        double x = (double)a[i] + (double)bias[i];
        assert_close(g[i], (double)neg[i] * log1p(exp(x)), 1e-5);
        assert_close(beta[i], 1 / (1 + exp(-(double)b[i])), 1e-7);
    }
}

static void test_names_and_levels(void **state) {
    (void)state;
    const size_t bytes[LG_Q4_0] = {4, 2, 2, 1};
    const char *const names[LG_Q4_0] = {"F32", "BF16", "F16", "F8_E4M3"};
    for (int i = 0; i < LG_Q4_0; i++) {
        assert_int_equal(lg_dtype_bytes((lg_dtype)i), bytes[i]);
        assert_string_equal(lg_dtype_name((lg_dtype)i), names[i]);
    }
    assert_null(lg_kern_level("sse9"));
    assert_string_equal(ref->name, "ref");
    assert_non_null(lg_kern_level(lg_kern_get()->name));
    print_message("level %s, processor: %s\n", lg_kern_get()->name, lg_kern_features());
}

int main(void) {
    ref = lg_kern_level("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_is_within_two_ulp),
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_rope_rotates_pairs),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_gdn_is_the_recurrence),
        cmocka_unit_test(test_kv_store),
        cmocka_unit_test(test_kv_copy),
        cmocka_unit_test(test_kv_store_keeps_nan),
        cmocka_unit_test(test_attention_is_softmax),
        cmocka_unit_test(test_router),
        cmocka_unit_test(test_gates),
        cmocka_unit_test(test_names_and_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
