/* test_kern_bits.c - every entry of every level gives the bits of ref (the rule of kern.h), at odd sizes, in buffers that end
 * at a guard page; rows, panels and cuts do not change a bit. */
#include "kern_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const lg_kern *ref;
static const lg_kern *level[MAX_LEVEL]; /* levels above ref that run here */
static size_t n_level;

#define assert_same(x, y, n) assert_memory_equal(x, y, (size_t)(n) * sizeof *(x))

/* Skipped, and so counted, where the best level is not available. */
static void test_all_levels_run_here(void **state) {
    (void)state;
    if (n_level == 0 || lg_kern_names[n_level + 1]) skip();
}

/* The same product at ref and at a level, in buffers of their own; y beyond the matrix must stay. */
static void check_gemm(const lg_mat *w, uint32_t panel0, uint32_t n_panel, uint32_t n_row,
                       bool idx) {
    size_t ld_x = w->n_in, ld_y = w->n_out;
    uint32_t n_x = n_row + 2, *row_idx = guarded(n_row * sizeof *row_idx);
    float *x = random_floats(n_x * ld_x, -1, 1), *want = filled_floats(n_row * ld_y, -7);
    for (uint32_t r = 0; r < n_row; r++) row_idx[r] = (r * 5 + 1) % n_x;
    ref->gemm(w, panel0, n_panel, x, ld_x, idx ? row_idx : NULL, n_row, want, ld_y);
    for (size_t i = 0; i < n_level; i++) {
        float *y = filled_floats(n_row * ld_y, -7);
        level[i]->gemm(w, panel0, n_panel, x, ld_x, idx ? row_idx : NULL, n_row, y, ld_y);
        assert_same(y, want, n_row * ld_y);
    }
}

static void test_gemm_small(void **state) {
    (void)state;
    const uint32_t outs[] = {1, 15, 16, 17, 64, 131}, ins[] = {0, 1, 7, 128, 129, 257};
    const uint32_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 13};
    for (int type = 0; type < LG_Q4_0; type++)
        for (size_t o = 0; o < LG_COUNT(outs); o++)
            for (size_t i = 0; i < LG_COUNT(ins); i++) {
                for (size_t r = 0; r < LG_COUNT(rows); r++) {
                    lg_mat w = random_mat((lg_dtype)type, outs[o], ins[i]);
                    check_gemm(&w, 0, lg_mat_n_panel(&w), rows[r], r % 2);
                    guarded_free();
                }
            }
}

static void test_gemm_real(void **state) {
    (void)state;
    for (int type = 0; type < LG_Q4_0; type++) {
        const uint32_t rows[] = {1, 2, 3, 4, 9, 100};
        for (size_t r = 0; r < LG_COUNT(rows); r++) {
            lg_mat w = random_mat((lg_dtype)type, 200, rows[r] > 50 ? 600 : 2048);
            check_gemm(&w, 0, lg_mat_n_panel(&w), rows[r], true);
            check_gemm(&w, 3, 7, rows[r], false);
            check_gemm(&w, 2, 0, rows[r], false);
            guarded_free();
        }
    }
}

/* A row of a batch equals the row alone; panels in any pieces give the same. */
static void test_gemm_rows_and_panels_are_independent(void **state) {
    (void)state;
    enum { M = 29, N = 96, K = 300 };
    for (size_t i = 0; i < n_level; i++)
        for (int type = 0; type < LG_Q4_0; type++) {
            lg_mat w = random_mat((lg_dtype)type, N, K);
            float *x = random_floats(M * K, -1, 1), *all = filled_floats(M * N, 0);
            float *alone = filled_floats(M * N, 0), *cut = filled_floats(M * N, 0);
            level[i]->gemm(&w, 0, N / LG_NR, x, K, NULL, M, all, N);
            for (uint32_t r = 0; r < M; r++)
                level[i]->gemm(&w, 0, N / LG_NR, x + r * K, K, NULL, 1, alone + r * N, N);
            level[i]->gemm(&w, 5, 1, x, K, NULL, M, cut, N);
            level[i]->gemm(&w, 0, 3, x, K, NULL, M, cut, N);
            level[i]->gemm(&w, 3, 2, x, K, NULL, M, cut, N);
            assert_same(alone, all, M * N);
            assert_same(cut, all, M * N);
            guarded_free();
        }
}

/* Floats with zeros of both signs, subnormals, and infinities where `wild`. */
static float *odd_floats(size_t n, bool wild) {
    static const float odd[] = {0.0f, -0.0f, 1e-40f, -1e-40f, 88.8f, -88.8f, 200.0f, -200.0f};
    float *x = random_floats(n, -12, 12);
    for (size_t i = 0; i < n; i += 7) x[i] = odd[i / 7 % LG_COUNT(odd)];
    if (wild)
        for (size_t i = 5; i < n; i += 31) x[i] = i % 2 ? INFINITY : -INFINITY;
    return x;
}

typedef void row_case(const lg_kern *k, const float *x, const float *w, const float *z,
                      uint32_t n, float *y);

static void do_rmsnorm(const lg_kern *k, const float *x, const float *w, const float *z,
                       uint32_t n, float *y) {
    (void)z;
    k->rmsnorm(x, w, 1e-6f, n, y);
}

static void do_l2norm(const lg_kern *k, const float *x, const float *w, const float *z,
                      uint32_t n, float *y) {
    (void)w, (void)z;
    k->l2norm(x, 1e-6f, 0.088f, n, y);
}

static void do_dot(const lg_kern *k, const float *x, const float *w, const float *z, uint32_t n,
                   float *y) {
    (void)z;
    float dot = k->dot(x, w, n);
    for (uint32_t i = 0; i < n; i++) y[i] = dot;
}

static void do_add(const lg_kern *k, const float *x, const float *w, const float *z, uint32_t n,
                   float *y) {
    (void)w, (void)z;
    k->add(x, n, y);
}

static void do_axpy(const lg_kern *k, const float *x, const float *w, const float *z,
                    uint32_t n, float *y) {
    (void)w, (void)z;
    k->axpy(0.7f, x, n, y);
}

static void do_swiglu(const lg_kern *k, const float *x, const float *w, const float *z,
                      uint32_t n, float *y) {
    (void)w;
    k->swiglu(z, x, n, y);
}

static void do_sigmoid_mul(const lg_kern *k, const float *x, const float *w, const float *z,
                           uint32_t n, float *y) {
    (void)w;
    k->sigmoid_mul(x, z, n, y);
}

static void do_gated_norm(const lg_kern *k, const float *x, const float *w, const float *z,
                          uint32_t n, float *y) {
    k->gated_norm(x, w, z, 1e-6f, n, y);
}

static void do_rope(const lg_kern *k, const float *x, const float *w, const float *z,
                    uint32_t n, float *y) {
    (void)x;
    k->rope(y, w, z, n / 2 * 2);
}

static void do_argmax(const lg_kern *k, const float *x, const float *w, const float *z,
                      uint32_t n, float *y) {
    (void)w, (void)z;
    float max;
    uint32_t at = k->argmax(x, n, &max);
    if (n == 0) assert_int_equal(at, UINT32_MAX);
    for (uint32_t i = 0; i < n; i++) y[i] = i % 2 ? max : (float)at;
}

static void test_rows(void **state) {
    (void)state;
    row_case *const cases[] = {do_rmsnorm, do_l2norm,      do_dot,        do_add,  do_axpy,
                               do_swiglu,  do_sigmoid_mul, do_gated_norm, do_rope, do_argmax};
    const uint32_t sizes[] = {0,  1,  2,  7,   8,   9,   15,   16,   17,  30,
                              31, 32, 33, 127, 128, 129, 1009, 2048, 4099};
    for (size_t c = 0; c < LG_COUNT(cases); c++)
        for (size_t s = 0; s < LG_COUNT(sizes); s++) {
            uint32_t n = sizes[s];
            float *x = random_floats(n, -3, 3), *w = random_floats(n, -1, 1);
            float *z = odd_floats(n, false), *y0 = odd_floats(n, false),
                  *want = same_floats(y0, n);
            cases[c](ref, x, w, z, n, want);
            for (size_t i = 0; i < n_level; i++) {
                float *y = same_floats(y0, n);
                cases[c](level[i], x, w, z, n, y);
                assert_same(y, want, n);
            }
            guarded_free();
        }
}

/* Products that underflow leave lanes of -0, which an added +0 would change. */
static void test_dot_keeps_negative_zero(void **state) {
    (void)state;
    for (uint32_t n = 17; n < 48; n++) {
        float *x = filled_floats(n, 1e-30f), *w = filled_floats(n, -1e-30f);
        float want = ref->dot(x, w, n);
        assert_true(signbit(want) && want == 0);
        for (size_t i = 0; i < n_level; i++) {
            float dot = level[i]->dot(x, w, n);
            assert_memory_equal(&dot, &want, sizeof dot);
        }
        guarded_free();
    }
}

/* Output in place of an input, where kern.h allows it. */
static void test_rows_in_place(void **state) {
    (void)state;
    enum { N = 131 };
    float *w = random_floats(N, -1, 1), *x = random_floats(N, -2, 2),
          *want = filled_floats(N, 0);
    for (size_t i = 0; i < n_level; i++) {
        float *y = same_floats(x, N);
        ref->rmsnorm(x, w, 1e-6f, N, want);
        level[i]->rmsnorm(y, w, 1e-6f, N, y);
        assert_same(y, want, N);
        memcpy(y, x, N * sizeof *y);
        ref->swiglu(x, w, N, want);
        level[i]->swiglu(y, w, N, y);
        assert_same(y, want, N);
        memcpy(y, x, N * sizeof *y);
        ref->sigmoid_mul(x, w, N, want);
        level[i]->sigmoid_mul(y, w, N, y);
        assert_same(y, want, N);
        memcpy(y, x, N * sizeof *y);
        ref->l2norm(x, 1e-6f, 1, N, want);
        level[i]->l2norm(y, 1e-6f, 1, N, y);
        assert_same(y, want, N);
    }
    guarded_free();
}

/* The exponential inside swiglu, at every 1009th float that is not a NaN and at the edges. */
static void test_exp_bits(void **state) {
    (void)state;
    enum { N = 4096 };
    static float x[N], one[N], want[N], y[N];
    uint64_t bits = 0;
    for (int i = 0; i < N; i++) one[i] = 1;
    while (bits <= UINT32_MAX) {
        for (int i = 0; i < N; i++, bits += 1009) {
            x[i] = lg_num_float_of_bits((uint32_t)bits);
            if (x[i] != x[i]) x[i] = i % 2 ? 0x1.62e42ep+6f : -0x1.62e430p+6f;
        }
        ref->sigmoid_mul(one, x, N, want);
        for (size_t i = 0; i < n_level; i++) {
            level[i]->sigmoid_mul(one, x, N, y);
            assert_same(y, want, N);
        }
    }
}

static void test_argmax_edges(void **state) {
    (void)state;
    for (size_t i = 0; i < n_level; i++)
        for (uint32_t n = 1; n < 70; n++) {
            float *x = random_floats(n, -1, 1), max, want;
            for (uint32_t at = 0; at < n; at += 3) {
                x[at] = 2;
                assert_int_equal(level[i]->argmax(x, n, &max), 0);
            }
            for (uint32_t j = 0; j < n; j++) x[j] = j % 2 ? 0.0f : -0.0f;
            uint32_t at = ref->argmax(x, n, &want);
            assert_int_equal(level[i]->argmax(x, n, &max), at);
            assert_memory_equal(&max, &want, sizeof max);
            for (uint32_t j = 0; j < n; j++) x[j] = -INFINITY;
            assert_int_equal(level[i]->argmax(x, n, &max), 0);
            x[n - 1] = NAN;
            assert_int_equal(level[i]->argmax(x, n, &max), UINT32_MAX);
            assert_true(max != max);
            guarded_free();
        }
}

static void test_conv(void **state) {
    (void)state;
    const uint32_t ch[] = {0, 1, 15, 16, 17, 33, 515}, toks[] = {0, 1, 2, 3, 4, 11};
    for (size_t c = 0; c < LG_COUNT(ch); c++)
        for (size_t t = 0; t < LG_COUNT(toks); t++)
            for (int init = 0; init < 2; init++) {
                uint32_t n = ch[c], n_tok = toks[t];
                float *x = random_floats(n_tok * n, -2, 2),
                      *w = random_floats(LG_CONV_K * n, -1, 1);
                float *prev0 = random_floats(3 * n, -1, 1),
                      *want_prev = same_floats(prev0, 3 * n);
                float *want = filled_floats(n_tok * n, 0);
                ref->conv_silu(x, n, n_tok, n, w, n, init, want_prev, n, want, n);
                for (size_t i = 0; i < n_level; i++) {
                    float *prev = same_floats(prev0, 3 * n), *u = filled_floats(n_tok * n, 0);
                    level[i]->conv_silu(x, n, n_tok, n, w, n, init, prev, n, u, n);
                    assert_same(u, want, n_tok * n);
                    assert_same(prev, want_prev, 3 * n);
                }
                guarded_free();
            }
}

/* One GDN head over `n_tok` tokens. */
typedef struct head {
    uint32_t dk, dv, n_tok;
    float *q, *k, *v, *g, *beta;
} head;

typedef struct memory {
    float *s, *open_k, *open_d, *open_g, *o;
} memory;

static head random_head(uint32_t dk, uint32_t dv, uint32_t n_tok) {
    head h = {.dk = dk, .dv = dv, .n_tok = n_tok};
    h.q = random_floats(n_tok * dk, -1, 1);
    h.k = random_floats(n_tok * dk, -1, 1);
    h.v = random_floats(n_tok * dv, -1, 1);
    h.g = random_floats(n_tok, -0.5f, 0);
    h.beta = random_floats(n_tok, 0, 1);
    for (uint32_t t = 0; t < n_tok; t++) {
        ref->l2norm(h.q + t * dk, 1e-6f, 0.09f, dk, h.q + t * dk);
        ref->l2norm(h.k + t * dk, 1e-6f, 1, dk, h.k + t * dk);
    }
    return h;
}

static memory fresh_memory(const head *h) {
    return (memory){.s = filled_floats(h->dk * h->dv, NAN),
                    .open_k = filled_floats(h->dk * LG_GDN_C, NAN),
                    .open_d = filled_floats(LG_GDN_C * h->dv, NAN),
                    .open_g = filled_floats(LG_GDN_C, NAN),
                    .o = filled_floats(h->n_tok * h->dv, NAN)};
}

/* Run tokens [t0, t1) in one call, or in parts of `width` columns. */
static void run_head(const lg_kern *k, const head *h, memory *m, uint32_t t0, uint32_t t1,
                     uint32_t width) {
    uint32_t n_open = t0 % LG_GDN_C;
    size_t n_scratch = lg_gdn_scratch_floats(h->dk, h->dv);
    float *scratch = lg_mem_calloc(n_scratch + 1, sizeof *scratch);
    memset(scratch, 0xff, n_scratch * sizeof *scratch);
    scratch[n_scratch] = 3;
    lg_gdn_arg a = {.dk = h->dk,
                    .n_tok = t1 - t0,
                    .n_open = n_open,
                    .has_init = t0 >= LG_GDN_C,
                    .q = h->q + t0 * h->dk,
                    .k = h->k + t0 * h->dk,
                    .ld_qk = h->dk,
                    .ld_v = h->dv,
                    .g = h->g + t0,
                    .beta = h->beta + t0,
                    .ld_g = 1,
                    .ld_o = h->dv,
                    .ld_s = h->dv,
                    .open_k = m->open_k,
                    .open_g = m->open_g,
                    .scratch = scratch};
    for (uint32_t c = 0; c < h->dv; c += a.dv) {
        a.dv = h->dv - c < width ? h->dv - c : width;
        a.v = h->v + t0 * h->dv + c;
        a.o = m->o + t0 * h->dv + c;
        a.s = m->s + c;
        a.open_d = m->open_d + c;
        k->gdn_rows(&a);
    }
    lg_gdn_keep_g(h->g + t0, 1, t1 - t0, n_open, m->open_g);
    lg_gdn_keep_k(h->k + t0 * h->dk, h->dk, h->dk, t1 - t0, n_open, m->open_k);
    assert_true(scratch[n_scratch] == 3);
    lg_mem_free(scratch);
}

/* Outputs, and the state a later token depends on. */
static void same_memory(const head *h, const memory *m, const memory *want) {
    uint32_t n_open = h->n_tok % LG_GDN_C;
    assert_same(m->o, want->o, h->n_tok * h->dv);
    assert_same(m->open_d, want->open_d, n_open * h->dv);
    assert_same(m->open_g, want->open_g, n_open);
    if (h->n_tok >= LG_GDN_C) assert_same(m->s, want->s, h->dk * h->dv);
}

static void test_gdn_any_cut(void **state) {
    (void)state;
    const uint32_t dims[][3] = {{1, 1, 40},      {5, 3, 70},    {16, 16, 33}, {20, 17, 100},
                                {128, 128, 100}, {130, 64, 97}, {260, 33, 66}};
    const uint32_t steps[] = {1, 2, 3, 7, 31, 32, 33, 50, 1000};
    const uint32_t width[] = {1000, 32, 16, 64, 5};
    for (size_t d = 0; d < LG_COUNT(dims); d++)
        for (size_t i = 0; i <= n_level; i++) {
            const lg_kern *k = i < n_level ? level[i] : ref;
            head h = random_head(dims[d][0], dims[d][1], dims[d][2]);
            memory want = fresh_memory(&h);
            for (uint32_t t = 0; t < h.n_tok; t++) run_head(ref, &h, &want, t, t + 1, h.dv);
            for (size_t s = 0; s < LG_COUNT(steps); s++) {
                memory m = fresh_memory(&h);
                for (uint32_t t = 0; t < h.n_tok; t += steps[s])
                    run_head(k, &h, &m, t, t + steps[s] < h.n_tok ? t + steps[s] : h.n_tok,
                             width[s % LG_COUNT(width)]);
                same_memory(&h, &m, &want);
            }
            for (int trial = 0; trial < 5; trial++) {
                memory m = fresh_memory(&h);
                for (uint32_t t = 0, t1; t < h.n_tok; t = t1) {
                    t1 = t + (uint32_t)random_in(0, 40);
                    if (t1 > h.n_tok) t1 = h.n_tok;
                    run_head(k, &h, &m, t, t1, 1 + (uint32_t)random_in(0, 40));
                }
                same_memory(&h, &m, &want);
            }
            guarded_free();
        }
}

/* A page of `most` positions, stored by k from the same numbers each time; the rest is 0xff. */
static void *stored_page(const lg_kern *k, lg_dtype kv, uint32_t d, uint32_t most) {
    void *page = guarded(lg_kv_bytes(kv, d));
    float *key = random_floats(d, -1, 1), *value = random_floats(d, -1, 1);
    memset(page, 0xff, lg_kv_bytes(kv, d));
    for (uint32_t j = 0; j < most; j++) {
        for (uint32_t i = 0; i < d; i++) key[i] = random_in(-1, 1), value[i] = random_in(-1, 1);
        k->kv_store(kv, key, value, d, j, page);
    }
    return page;
}

/* Two pages at ref and at a level; what no row may see is 0xff. */
static void check_attn(lg_dtype kv, uint32_t d, uint32_t n_q, int pattern) {
    uint32_t *n_see = guarded(n_q * sizeof *n_see), most = 0;
    float *q = random_floats(n_q * d, -2, 2), *acc0 = filled_floats(n_q * d, NAN);
    float *m0 = filled_floats(n_q, NAN), *l0 = filled_floats(n_q, NAN);
    for (size_t i = 0; i <= n_level; i++) {
        const lg_kern *k = i ? level[i - 1] : ref;
        float *acc = i ? filled_floats(n_q * d, NAN) : acc0;
        float *m = i ? filled_floats(n_q, NAN) : m0, *l = i ? filled_floats(n_q, NAN) : l0;
        uint64_t draw = random_draw;
        random_draw = 1000000; /* every level sees the same pages */
        for (int page = 0; page < 2; page++) {
            for (uint32_t r = 0; r < n_q; r++) {
                uint32_t n = pattern == 0   ? 64
                             : pattern == 1 ? 17 + r % 40
                                            : (r / 3 * 5 + 1) % 65;
                n_see[r] = n == 0 && page == 0 ? 1 : n;
                if (n_see[r] > most) most = n_see[r];
            }
            void *part = stored_page(k, kv, d, most);
            k->attn_page(&(lg_attn_arg){.d = d,
                                        .n_q = n_q,
                                        .q = q,
                                        .ld_q = d,
                                        .n_see = n_see,
                                        .first = page == 0,
                                        .kv = kv,
                                        .page = part,
                                        .next = page == 0 ? part : NULL,
                                        .scale = 0.11f,
                                        .m = m,
                                        .l = l,
                                        .acc = acc});
        }
        random_draw = draw;
        for (uint32_t r = 0; r < n_q * d; r++) assert_true(acc[r] == acc[r]);
        assert_same(acc, acc0, n_q * d);
        assert_same(m, m0, n_q);
        assert_same(l, l0, n_q);
    }
    guarded_free();
}

static const lg_dtype kv_type[] = {LG_F32, LG_BF16, LG_F16, LG_Q8_0};

static void test_attention(void **state) {
    (void)state;
    const uint32_t widths[] = {1, 15, 16, 40, 128, 256, 300};
    const uint32_t rows[] = {0, 1, 2, 6, 7, 16, 48, 131};
    for (size_t w = 0; w < LG_COUNT(widths); w++)
        for (size_t r = 0; r < LG_COUNT(rows); r++)
            for (int pattern = 0; pattern < 3; pattern++)
                for (size_t t = 0; t < LG_COUNT(kv_type); t++)
                    if (t == 0 || (w + r) % 3 == t - 1 || widths[w] == 40)
                        check_attn(kv_type[t], widths[w], rows[r], pattern);
    for (uint32_t n_q = 3; n_q < 13; n_q++) /* every height of a tile that widens on the way */
        for (size_t t = 0; t < LG_COUNT(kv_type); t++)
            check_attn(kv_type[t], n_q % 2 ? 64 : 256, n_q, 1);
}

/* What ref and a level store: the same bytes at every width, whatever the numbers are. */
static void test_kv_store_bits(void **state) {
    (void)state;
    for (uint32_t d = 1; d < 100; d += d < 40 ? 1 : 29)
        for (size_t t = 0; t < LG_COUNT(kv_type); t++)
            for (size_t i = 0; i < n_level; i++) {
                size_t bytes = lg_kv_bytes(kv_type[t], d);
                uint8_t *want = guarded(bytes), *got = guarded(bytes);
                memset(want, 0x55, bytes);
                memset(got, 0x55, bytes);
                for (uint32_t j = 0; j < LG_PAGE_TOK; j += 9) {
                    float *x = random_floats(d, -1, 1), *y = random_floats(d, -1, 1);
                    /* from far below the smallest F16 to beyond the largest */
                    for (uint32_t e = 0; e < d; e++)
                        x[e] = ldexpf(x[e], (int)j - 34 + (int)(e % 4));
                    if (j == 27) x[d / 2] = INFINITY;
                    if (j == 36) y[d - 1] = 0.0f;
                    for (uint32_t e = 0; e < d && j == 45; e++)
                        y[e] = (float)(e % 9) * 0.5f - 2;
                    ref->kv_store(kv_type[t], x, y, d, j, want);
                    level[i]->kv_store(kv_type[t], x, y, d, j, got);
                }
                for (size_t e = 0; e < bytes; e++)
                    if (got[e] != want[e])
                        fail_msg("%s, %s, width %u: byte %zu is %02x, expected %02x",
                                 level[i]->name, lg_dtype_name(kv_type[t]), d, e, got[e],
                                 want[e]);
                guarded_free();
            }
}

/* A page that rounds is a page of floats that holds what it rounds to: widened keys and values give the same bits. */
static void test_attention_of_rounded_floats(void **state) {
    (void)state;
    enum { D = 64, N_Q = 9 };
    const lg_kern *k = n_level ? level[n_level - 1] : ref;
    for (size_t t = 1; t < LG_COUNT(kv_type); t++) {
        void *part = stored_page(k, kv_type[t], D, LG_PAGE_TOK);
        float *flat = guarded(lg_kv_bytes(LG_F32, D));
        lg_kv_part at = lg_kv_at(kv_type[t], D, part);
        for (size_t e = 0; e < 2 * D * LG_PAGE_TOK; e++) {
            bool is_key = e < D * LG_PAGE_TOK;
            size_t i = is_key ? e : e - D * LG_PAGE_TOK;
            size_t s = is_key ? i / (32 * LG_PAGE_TOK) * LG_PAGE_TOK + i % LG_PAGE_TOK
                              : i % D / 32 * LG_PAGE_TOK + i / D;
            const uint8_t *from = is_key ? at.key : at.value;
            if (kv_type[t] == LG_BF16) flat[e] = lg_num_bf16(lg_num_load16(from + 2 * i));
            if (kv_type[t] == LG_F16) flat[e] = lg_num_f16(lg_num_load16(from + 2 * i));
            if (kv_type[t] == LG_Q8_0)
                flat[e] = (float)((const int8_t *)from)[i] *
                          lg_num_f16(is_key ? at.key_scale[s] : at.value_scale[s]);
        }
        float *q = random_floats(N_Q * D, -2, 2), *acc[2];
        float *m = filled_floats(N_Q, 0), *l = filled_floats(N_Q, 0);
        uint32_t n_see[N_Q];
        for (uint32_t r = 0; r < N_Q; r++) n_see[r] = LG_PAGE_TOK - r;
        for (int w = 0; w < 2; w++) {
            acc[w] = filled_floats(N_Q * D, NAN);
            k->attn_page(&(lg_attn_arg){.d = D,
                                        .n_q = N_Q,
                                        .q = q,
                                        .ld_q = D,
                                        .n_see = n_see,
                                        .first = true,
                                        .kv = w ? LG_F32 : kv_type[t],
                                        .page = w ? flat : part,
                                        .scale = 0.11f,
                                        .m = m,
                                        .l = l,
                                        .acc = acc[w]});
        }
        assert_same(acc[0], acc[1], N_Q * D);
        guarded_free();
    }
}

int main(void) {
    ref = lg_kern_level("ref");
    n_level = find_levels(false, level);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_levels_run_here),
        cmocka_unit_test(test_gemm_small),
        cmocka_unit_test(test_gemm_real),
        cmocka_unit_test(test_gemm_rows_and_panels_are_independent),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_dot_keeps_negative_zero),
        cmocka_unit_test(test_rows_in_place),
        cmocka_unit_test(test_exp_bits),
        cmocka_unit_test(test_argmax_edges),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_gdn_any_cut),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_kv_store_bits),
        cmocka_unit_test(test_attention_of_rounded_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
