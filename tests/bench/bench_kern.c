/* bench_kern.c - time of the kernels on the shapes that matter, one thread.
 *
 *     bench_kern [=TEXT] [LEVEL ...]      default: every level that runs here but ref; =TEXT: lines that hold TEXT
 *
 * First the limits of one thread here: a read-only stream, products by FMA and by bytes (maddubs, maddwd, add; vpdpbusd).
 * Each line: kernel, shape, level, best time of several batches, speed, and the ratio to ref where ref is not too slow.
 * Time is processor time of the thread, so that other work on the machine disturbs less. */
#include "base/base.h"
#include "kern/kern.h"
#include "kern/peak.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

typedef void work(const lg_kern *k, void *ctx);

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Microseconds of one call: the best of batches of at least 3 ms, within about 0.15 s. */
static double time_us(work *run, const lg_kern *k, void *ctx) {
    double best = 1e30;
    uint64_t n = 1;
    double start = now_us();
    run(k, ctx);
    do {
        double t0 = now_us();
        for (uint64_t i = 0; i < n; i++) run(k, ctx);
        double t = now_us() - t0, us = t / (double)n;
        if (t < 3000) {
            n *= 2;
        } else if (us < best) {
            best = us;
        }
    } while (best == 1e30 || now_us() - start < 150000);
    return best;
}

static float *floats(size_t n, float lo, float hi) {
    float *x = lg_mem_calloc(n, sizeof *x);
    LG_ASSERT(x);
    for (size_t i = 0; i < n; i++) x[i] = lo + (hi - lo) * lg_num_rng_unit(3, 0, i, 0);
    return x;
}

static void drop(float **all, size_t n) {
    for (size_t i = 0; i < n; i++) lg_mem_free(all[i]);
}

static const char *only = ""; /* lines to measure */

static lg_peak peak; /* of one thread */

/* What a line is a share of: reading, or the products that its level is made of. */
static double limit_of(const char *name, const lg_kern *k, const char *unit) {
    if (strcmp(unit, "B") == 0) return peak.stream_gbs;
    if (strcmp(unit, "MAC") != 0) return 0;
    return name[0] == 'q' ? lg_peak_integer(&peak, k->name) : lg_peak_float(&peak, k->name);
}

/* `units` is the work of one call. */
static void report(const char *name, const lg_kern *k, work *run, void *ctx, double units,
                   const char *unit, bool vs_ref) {
    if (!strstr(name, only)) return;
    double us = time_us(run, k, ctx);
    double speed = units / us * 1e-3, limit = limit_of(name, k, unit);
    printf("%-34s %-10s %12.2f us %9.2f G%s/s", name, k->name, us, speed, unit);
    if (limit > 0) printf(" = %3.0f %% of %.0f", 100 * speed / limit, limit);
    if (vs_ref) printf("   %6.1f x ref", time_us(run, lg_kern_level("ref"), ctx) / us);
    printf("\n");
    fflush(stdout);
}

typedef struct gemm_case {
    lg_mat w;
    float *x, *y;
    uint32_t n_row;
} gemm_case;

static void run_gemm(const lg_kern *k, void *ctx) {
    gemm_case *c = ctx;
    k->gemm(&c->w, 0, lg_mat_n_panel(&c->w), c->x, c->w.n_in, NULL, c->n_row, c->y, c->w.n_out);
}

static void bench_gemm(const lg_kern *k, lg_dtype type, uint32_t n_out, uint32_t n_in,
                       uint32_t n_row) {
    size_t n = (size_t)n_out * n_in, bytes = lg_dtype_bytes(type);
    uint8_t *panel = lg_mem_calloc(n, bytes);
    LG_ASSERT(panel);
    for (size_t i = 0; i < n * bytes; i++) panel[i] = (uint8_t)(lg_num_rng(1, 0, i, 0) % 0x3c);
    float *scale = floats((n_out / 128 + 1) * (size_t)(n_in / 128 + 1), 0.5f, 1);
    gemm_case c = {
        .w = {.type = type, .n_out = n_out, .n_in = n_in, .panel = panel, .scale = scale},
        .x = floats((size_t)n_row * n_in, -1, 1),
        .y = floats((size_t)n_row * n_out, 0, 1),
        .n_row = n_row};
    char name[64];
    snprintf(name, sizeof name, "gemm %s M=%u %ux%u", lg_dtype_name(type), n_row, n_out, n_in);
    if (n_row == 1) report(name, k, run_gemm, &c, (double)(n * bytes), "B", n < 1000000);
    if (n_row > 1)
        report(name, k, run_gemm, &c, (double)n * n_row, "MAC", n * n_row < 10000000);
    lg_mem_free(panel);
    drop((float *[]){scale, c.x, c.y}, 3);
}

typedef struct qgemm_case {
    lg_mat w;
    lg_qrows x;
    float *y;
    uint32_t n_row;
} qgemm_case;

static void run_qgemm(const lg_kern *k, void *ctx) {
    qgemm_case *c = ctx;
    k->qgemm(&c->w, 0, lg_mat_n_panel(&c->w), &c->x, NULL, c->n_row, c->y, c->w.n_out);
}

/* No scales that are subnormal, which would be slow: those of bytes that are powers, and floats. */
static void sound_scales(lg_dtype type, uint8_t *panel, size_t bytes) {
    size_t group = LG_NR * lg_dtype_block_bytes(type);
    const float d = 0.01f;
    for (size_t g = 0; g < bytes; g += group)
        for (size_t c = 0; c < LG_NR; c++) {
            if (type == LG_MXFP4) panel[g + c] = 120;
            if (type >= LG_I4_32 && type <= LG_I8_128) memcpy(panel + g + 4 * c, &d, sizeof d);
            if (type == LG_I4_32 || type == LG_I4_128) panel[g + 64 + c] = 8;
        }
}

/* Rows of integers against blocks; one row also in bytes of weights, from memory when the matrix is large. */
static void bench_qgemm(const lg_kern *k, lg_dtype type, uint32_t n_out, uint32_t n_in,
                        uint32_t n_row) {
    lg_mat w = {.type = type, .n_out = n_out, .n_in = n_in};
    size_t bytes = lg_mat_n_panel(&w) * lg_dtype_panel_bytes(type, n_in),
           n = (size_t)n_row * n_in;
    char name[64];
    snprintf(name, sizeof name, "qgemm %s M=%u %ux%u", lg_dtype_name(type), n_row, n_out, n_in);
    if (!strstr(name, only)) return;
    uint8_t *panel = lg_mem_alloc(bytes);
    float *x = floats(n, -1, 1), *d = floats(n / 32, 0, 1);
    int8_t *v8 = lg_mem_alloc(n);
    int16_t *v16 = lg_mem_alloc(2 * n), *sum = lg_mem_alloc(n / 16),
            *sum16 = lg_mem_alloc(n / 8);
    LG_ASSERT(panel && v8 && v16 && sum && sum16);
    for (size_t i = 0; i < bytes; i++) panel[i] = (uint8_t)((i * 2654435761u >> 13) % 0x3c);
    sound_scales(type, panel, bytes);
    w.panel = panel;
    qgemm_case c = {w,
                    {lg_dtype_row_group(type), n_in, v8, v16, sum, sum16, d},
                    floats(n_row * (size_t)n_out, 0, 1),
                    n_row};
    for (uint32_t r = 0; r < n_row; r++) k->quant_row(x + (size_t)r * n_in, n_in, &c.x, r);
    if (n_row == 1)
        report(name, k, run_qgemm, &c, (double)bytes, "B", false);
    else
        report(name, k, run_qgemm, &c, (double)n_out * n_in * n_row, "MAC", false);
    lg_mem_free(panel);
    lg_mem_free(v8);
    lg_mem_free(v16);
    lg_mem_free(sum);
    lg_mem_free(sum16);
    drop((float *[]){x, d, c.y}, 3);
}

static void bench_quantised(const lg_kern *k) {
    static const uint32_t rows[] = {4, 16, 32, 64, 128, 512, 2048};
    for (int type = LG_Q4_0; type < LG_N_DTYPE; type++) {
        if (!lg_dtype_is_int((lg_dtype)type)) continue;
        bench_qgemm(k, (lg_dtype)type, 131072, 2048, 1);
        for (uint32_t m = 1; m <= 16; m = m < 4 ? m + 1 : m * 2) {
            bench_qgemm(k, (lg_dtype)type, 256, 2048, m);
            bench_qgemm(k, (lg_dtype)type, 65536, 2048, m);
        }
        for (size_t i = 0; i < LG_COUNT(rows); i++)
            bench_qgemm(k, (lg_dtype)type, 2048, 2048, rows[i]);
    }
}

static void run_gdn(const lg_kern *k, void *ctx) {
    k->gdn_rows(ctx);
}

/* n_tok tokens of n_col columns of one head of 128 x 128; half of the rows are open before a single token. */
static void bench_gdn(const lg_kern *k, uint32_t n_tok, uint32_t n_col) {
    enum { D = 128 };
    float *q = floats((size_t)n_tok * D, -0.1f, 0.1f), *v = floats((size_t)n_tok * D, -1, 1);
    float *g = floats(n_tok, -0.1f, 0), *open_k = floats(D * LG_GDN_C, -0.1f, 0.1f);
    float *o = floats((size_t)n_tok * D, 0, 1), *s = floats(D * D, -1, 1);
    float *open_d = floats(LG_GDN_C * D, -1, 1), *open_g = floats(LG_GDN_C, -0.1f, 0);
    float *scratch = floats(lg_gdn_scratch_floats(D, D), 0, 1);
    lg_gdn_arg a = {.dk = D,
                    .dv = n_col,
                    .n_tok = n_tok,
                    .n_open = n_tok == 1 ? LG_GDN_C / 2 : 0,
                    .has_init = true,
                    .q = q,
                    .k = q,
                    .ld_qk = D,
                    .v = v,
                    .ld_v = D,
                    .g = g,
                    .beta = g,
                    .ld_g = 1,
                    .o = o,
                    .ld_o = D,
                    .ld_s = D,
                    .s = s,
                    .open_k = open_k,
                    .open_d = open_d,
                    .open_g = open_g,
                    .scratch = scratch};
    char name[64];
    snprintf(name, sizeof name, "gdn_rows %u tok 128x%u", n_tok, n_col);
    if (n_tok == 1) report(name, k, run_gdn, &a, D * 4.0 * n_col, "B", true);
    if (n_tok > 1)
        report(name, k, run_gdn, &a, (3.0 * D * n_col + LG_GDN_C * (D + n_col)) * n_tok, "MAC",
               true);
    drop((float *[]){q, v, g, open_k, o, s, open_d, open_g, scratch}, 9);
}

static void run_attn(const lg_kern *k, void *ctx) {
    k->attn_page(ctx);
}

static void bench_attn(const lg_kern *k, lg_dtype kv, uint32_t n_q) {
    enum { D = 256 };
    uint32_t *n_see = lg_mem_calloc(n_q, sizeof *n_see);
    void *page = lg_mem_alloc(lg_kv_bytes(kv, D));
    LG_ASSERT(n_see && page);
    for (uint32_t i = 0; i < n_q; i++) n_see[i] = LG_PAGE_TOK;
    float *q = floats((size_t)n_q * D, -1, 1), *x = floats(D, -1, 1), *m = floats(n_q, 0, 1);
    float *l = floats(n_q, 1, 2), *acc = floats((size_t)n_q * D, 0, 1);
    for (uint32_t j = 0; j < LG_PAGE_TOK; j++) k->kv_store(kv, x, x, D, j, page);
    lg_attn_arg a = {.d = D,
                     .n_q = n_q,
                     .q = q,
                     .ld_q = D,
                     .n_see = n_see,
                     .kv = kv,
                     .page = page,
                     .scale = 0.0625f,
                     .m = m,
                     .l = l,
                     .acc = acc};
    char name[64];
    snprintf(name, sizeof name, "attn_page %s %u rows d=256", lg_dtype_name(kv), n_q);
    report(name, k, run_attn, &a, 2.0 * D * LG_PAGE_TOK * n_q, "MAC", kv == LG_F32);
    drop((float *[]){q, x, m, l, acc}, 5);
    lg_mem_free(page);
    lg_mem_free(n_see);
}

typedef struct row_case {
    float *x, *w, *z, *y;
    uint32_t n;
} row_case;

static void run_rmsnorm(const lg_kern *k, void *ctx) {
    row_case *c = ctx;
    k->rmsnorm(c->x, c->w, 1e-6f, c->n, c->y);
}

static void run_swiglu(const lg_kern *k, void *ctx) {
    row_case *c = ctx;
    k->swiglu(c->x, c->w, c->n, c->y);
}

static void run_gated(const lg_kern *k, void *ctx) {
    row_case *c = ctx;
    k->gated_norm(c->x, c->w, c->z, 1e-6f, c->n, c->y);
}

static void run_argmax(const lg_kern *k, void *ctx) {
    row_case *c = ctx;
    k->argmax(c->x, c->n, c->y);
}

static void run_conv(const lg_kern *k, void *ctx) {
    row_case *c = ctx;
    uint32_t n_ch = c->n / 8;
    k->conv_silu(c->x, n_ch, 8, n_ch, c->w, n_ch, true, c->z, n_ch, c->y, n_ch);
}

static void bench_rows(const lg_kern *k, uint32_t n) {
    static const struct {
        const char *name;
        work *run;
    } cases[] = {{"rmsnorm", run_rmsnorm},
                 {"swiglu", run_swiglu},
                 {"gated_norm", run_gated},
                 {"conv_silu, 8 tokens", run_conv},
                 {"argmax", run_argmax}};
    row_case c = {floats(n, -2, 2), floats(n, -1, 1), floats(n, -4, 4), floats(n, 0, 1), n};
    for (size_t i = 0; i < LG_COUNT(cases); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s n=%u", cases[i].name, n);
        report(name, k, cases[i].run, &c, n, "elem", true);
    }
    drop((float *[]){c.x, c.w, c.z, c.y}, 4);
}

static void bench(const lg_kern *k) {
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 512};
    for (int type = 0; type < LG_Q4_0; type++) {
        bench_gemm(k, (lg_dtype)type, 256, 2048, 1);
        for (size_t i = 0; i < LG_COUNT(rows); i++)
            bench_gemm(k, (lg_dtype)type, 2048, 2048, rows[i]);
    }
    bench_gemm(k, LG_BF16, 32768, 2048, 1);
    bench_quantised(k);
    bench_gdn(k, 1, 128);
    bench_gdn(k, 32, 128);
    for (uint32_t n_col = 128; n_col >= 16; n_col /= 2) bench_gdn(k, 256, n_col);
    static const lg_dtype kv[] = {LG_F32, LG_BF16, LG_F16, LG_Q8_0};
    for (size_t i = 0; i < LG_COUNT(kv); i++) {
        bench_attn(k, kv[i], 1);
        bench_attn(k, kv[i], 8);
        bench_attn(k, kv[i], 16);
        bench_attn(k, kv[i], 128);
    }
    bench_rows(k, 2048);
    bench_rows(k, 248320);
}

static void print_limits(void) {
    if (!lg_peak_measure(NULL, &peak)) return;
    printf("limits of one thread: stream %.1f GB/s, FMA %.1f and %.1f GMAC/s, bytes %.1f "
           "GMAC/s, VNNI "
           "%.1f GMAC/s, AMX %.1f GMAC/s\n",
           peak.stream_gbs, peak.fma_gmacs, peak.fma512_gmacs, peak.int8_gmacs, peak.vnni_gmacs,
           peak.amx_gmacs);
}

int main(int argc, char **argv) {
    int first = 1;
    if (argc > 1 && argv[1][0] == '=') only = argv[first++] + 1;
    print_limits();
    for (int i = first; i < argc; i++) {
        const lg_kern *k = lg_kern_level(argv[i]);
        if (!k) {
            fprintf(stderr, "bench_kern: no level %s here\n", argv[i]);
            return 1;
        }
        bench(k);
    }
    for (int i = 1; lg_kern_names[i] && argc == first; i++)
        if (lg_kern_level(lg_kern_names[i])) bench(lg_kern_level(lg_kern_names[i]));
    return 0;
}
