/* bench_scale.c - how a group would grow with ranks: the exchange as it is, on a network and processors that are numbers.
 *
 * usage: bench_scale [--bandwidth GB/s] [--ops TFLOP/s] [--link GB/s] [--latency US] [--inside GB/s] [--ranks-per-node G] [--layers L]
 *                    [--exchange NAME] [--wire NAME] [--overlap on|off] [--measure THREADS] [--check PER_CENT]
 * What runs is src/dist: rows, routing and sums travel, with replicas of nothing and routing drawn evenly.  What does not run are the
 * products: a rank is told to compute for as long as their bytes and operations take at the given rates (--measure: those of this machine's
 * kernels, of one thread, times THREADS).  Clocks are numbers (comm_sim.h).  L layers are simulated and stand for all.
 * --check: exit status 1 when a forecast is off by more.  Results depend on the options alone, but for --measure.
 * Beside each result the forecast: the same rates, the expected number of experts that the fullest rank reads, and choose.h.
 * Cases: T sequences that decode; prompts on all ranks, 512 rows of each (up to 4 ranks); one prompt of 8,192 alone, in steps of 1,024 rows of its rank; one sequence alone. */
#include "comm_sim.h"

#include "base/clock.h"
#include "base/num.h"
#include "dist/exchange.h"
#include "kern/kern.h"
#include "plan/plan.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROW  1024
#define PIECES   8 /* of a product, between which messages are looked after */
#define CONTEXT  4096.0
#define FILL_BLK 16

typedef struct rates {
    double bandwidth, ops; /* of one rank */
    lg_links links;
    uint32_t n_local, n_layer;
    lg_exchange_how how;
} rates;

static rates R = {.bandwidth = 300e9,
                  .ops = 9.2e12,
                  .links = {.in = {2e-6, 0.5e-6, 20e9}, .out = {20e-6, 2e-6, 12.5e9}},
                  .n_local = 1,
                  .n_layer = 4,
                  .how = {.kind = LG_EXCHANGE_AUTO}};

typedef struct run {
    lg_plan_model m;
    sim *s;
    lg_place place;
    uint32_t n_rank, n_row[LG_MAX_RANK];
    bool prompt;
} run;

/* ---- what computing takes ---- */

static double spend(double bytes, double ops) {
    return fmax(bytes / R.bandwidth, ops / R.ops);
}

/* Mixer, router, norms of `rows` own rows. */
static double mixer_seconds(const lg_plan_model *m, double rows, bool prompt) {
    double n = lg_plan_n_layer(m), share = m->n_attn / n;
    double params = (lg_plan_dense_params(m) - n * lg_plan_shared_params(m)) / n;
    double router = m->hidden * m->n_expert;
    double seqs = prompt ? 1 : rows;
    double state = seqs * (2 * lg_plan_slot_bytes(m) + CONTEXT * lg_plan_token_bytes(m)) / n;
    double core = share * 4 * m->n_head * m->d_head * CONTEXT * rows;
    if (rows == 0) return 0;
    return spend(params * m->b_dense + router * m->b_router, 2 * (params + router) * rows) +
           spend(state, core);
}

static double shared_seconds(const lg_plan_model *m, double rows) {
    double p = lg_plan_shared_params(m);
    return rows > 0 ? spend(p * m->b_dense, 2 * p * rows) : 0;
}

static double expert_seconds(const lg_plan_model *m, double rows) {
    double p = lg_plan_expert_params(m);
    return rows > 0 ? spend(p * m->b_expert, 2 * p * rows) : 0;
}

static double copy_seconds(const lg_plan_model *m, double rows) {
    return rows * m->hidden * 4 / R.bandwidth;
}

static double head_seconds(const lg_plan_model *m, double rows) {
    double p = m->n_vocab * m->hidden;
    return rows > 0 ? spend(p * m->b_head, 2 * p * rows) : 0;
}

/* ---- the simulation ---- */

typedef struct rank_ctx {
    run *r;
    lg_exchange *x;
    uint32_t rank;
} rank_ctx;

static void compute(const rank_ctx *c, double seconds) {
    for (int i = 0; i < PIECES; i++) {
        sim_compute(c->r->s, c->rank, seconds / PIECES);
        lg_exchange_progress(c->x);
    }
}

/* Parts of n rows: for each the rows of its pairs here are read, and one is written. */
static void fill(void *ctx, uint32_t at, uint32_t n, float *y) {
    const rank_ctx *c = ctx;
    const lg_exchange *x = c->x;
    memset(y, 0, (size_t)n * x->n_embd * sizeof *y);
    for (uint32_t i = 0; i < n; i += FILL_BLK) {
        double rows = 0;
        for (uint32_t j = i; j < n && j < i + FILL_BLK; j++, rows++)
            for (uint32_t k = 0; k < x->k; k++)
                rows += x->pair[(size_t)(at + j) * x->k + k] != UINT32_MAX;
        sim_compute(c->r->s, c->rank, copy_seconds(&c->r->m, rows));
        lg_exchange_progress(c->x);
    }
}

static void draw_rows(const lg_exchange *x, uint32_t layer, uint32_t *id, float *w) {
    uint32_t n = lg_exchange_n_own(x), n_expert = x->place->n_expert;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < x->k; j++) {
            uint32_t *at = &id[i * x->k], e, draw = 0;
            bool again = true;
            while (again) {
                again = false;
                e = (uint32_t)(lg_num_rng(layer, j, x->row0[x->comm->rank] + i, draw++) %
                               n_expert);
                for (uint32_t q = 0; q < j; q++) again |= at[q] == e;
            }
            at[j] = e;
            w[i * x->k + j] = 0.1f;
        }
}

static lg_status run_layer(const rank_ctx *c, uint32_t layer, const float *xn, uint32_t *id,
                           float *w, float *out) {
    const lg_plan_model *m = &c->r->m;
    lg_exchange *x = c->x;
    uint32_t n = lg_exchange_n_own(x);
    sim_compute(c->r->s, c->rank, mixer_seconds(m, n, c->r->prompt));
    draw_rows(x, layer, id, w);
    LG_TRY(lg_exchange_start(x, layer, xn, id, w));
    compute(c, shared_seconds(m, n));
    LG_TRY(lg_exchange_arrive(x));
    double s = copy_seconds(m, 2 * x->n_in);
    for (uint32_t e = 0; e < x->place->n_expert; e++)
        s += expert_seconds(m, x->first[e + 1] - x->first[e]);
    sim_compute(c->r->s, c->rank, s);
    if (x->kind == LG_EXCHANGE_STRICT) {
        LG_TRY(lg_exchange_finish(x));
        sim_compute(c->r->s, c->rank, copy_seconds(m, (1.0 + x->k) * n));
    } else {
        LG_TRY(lg_exchange_sums(x, fill, (void *)(uintptr_t)c, out));
    }
    sim_compute(c->r->s, c->rank, copy_seconds(m, 3.0 * n));
    return LG_OK;
}

static void rank_body(void *ctx, uint32_t rank) {
    run *r = ctx;
    lg_comm comm;
    lg_exchange x;
    lg_arena a;
    uint32_t k = (uint32_t)r->m.n_used, h = (uint32_t)r->m.hidden, t = 0;
    for (uint32_t q = 0; q < r->n_rank; q++) t += r->n_row[q];
    sim_join(r->s, rank, &comm);
    lg_arena_init(&a, NULL, 0);
    lg_exchange_carve(&a, &comm, &r->place, &R.how, t, h, k, &x);
    size_t bytes = a.used_bytes;
    void *block = malloc(bytes); /* pages of it that nobody touches are never there */
    float *rows = malloc((size_t)(2 * t + 1) * h * sizeof *rows);
    float *w = malloc((size_t)(t + 1) * k * sizeof *w);
    uint32_t *id = malloc((size_t)(t + 1) * k * sizeof *id);
    LG_ASSERT(block && rows && w && id);
    memset(rows, 0, (size_t)t * h * sizeof *rows);
    lg_arena_init(&a, block, bytes);
    lg_exchange_carve(&a, &comm, &r->place, &R.how, t, h, k, &x);
    lg_exchange_begin(&x, r->n_row);
    rank_ctx c = {r, &x, rank};
    for (uint32_t l = 0; l < R.n_layer; l++)
        if (run_layer(&c, l, rows, id, w, rows + (size_t)t * h) != LG_OK) {
            fprintf(stderr, "bench_scale: %s\n", comm.why);
            exit(1);
        }
    free(block);
    free(rows);
    free(w);
    free(id);
}

static double simulate(run *r) {
    lg_place_opt o = {
        .n_rank = r->n_rank, .n_layer = R.n_layer, .n_expert = (uint32_t)r->m.n_expert};
    double last = 0, most = 0;
    LG_ASSERT(lg_place_balance(&r->place, &o, NULL) == LG_OK);
    r->s = sim_open(r->n_rank, r->n_rank / R.n_local ? r->n_rank / R.n_local : 1, &R.links);
    sim_run(r->s, rank_body, r);
    for (uint32_t k = 0; k < r->n_rank; k++) {
        last = fmax(last, sim_clock(r->s, k));
        most = fmax(most, r->n_row[k]);
    }
    sim_close(r->s);
    lg_place_fini(&r->place);
    return last / R.n_layer * lg_plan_n_layer(&r->m) +
           head_seconds(&r->m, r->prompt ? 1 : most);
}

/* ---- the forecast ---- */

/* Largest of n draws from a normal distribution, in deviations above the mean. */
static double extreme(double n) {
    static const double at[] = {0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344};
    double x = log2(n);
    int i = (int)x;
    if (i >= 6) return at[6];
    return at[i] + (at[i + 1] - at[i]) * (x - i);
}

/* The rank that has most to read, or most to multiply. */
static double experts_forecast(const run *r, double t) {
    const lg_plan_model *m = &r->m;
    double n = r->n_rank, held = m->n_expert / n, p = pow(1 - m->n_used / m->n_expert, t);
    double hot = held * (1 - p), hot_dev = sqrt(held * p * (1 - p));
    double pairs = t * m->n_used / n, pairs_dev = sqrt(pairs * (1 - 1 / n));
    hot += extreme(n) * hot_dev;
    pairs += extreme(n) * pairs_dev;
    if (hot > held) hot = held;
    if (hot < 1 && t > 0) hot = 1;
    return hot * expert_seconds(m, pairs / hot) + copy_seconds(m, fmin(2 * t, 2 * pairs));
}

static double forecast(const run *r) {
    const lg_plan_model *m = &r->m;
    lg_row_count n = {0, 0};
    lg_group_shape g = {r->n_rank,   fmax(1, floor(r->n_rank / R.n_local)),
                        m->hidden,   m->n_used,
                        m->n_expert, R.how.wire};
    for (uint32_t k = 0; k < r->n_rank; k++) {
        n.all += r->n_row[k];
        n.most = fmax(n.most, r->n_row[k]);
    }
    bool to_some = R.how.kind == LG_EXCHANGE_ALLTOALL ||
                   (R.how.kind == LG_EXCHANGE_AUTO &&
                    lg_exchange_choose(&R.links, &g, n) == LG_EXCHANGE_ALLTOALL);
    double touched = to_some ? 1 - pow(1 - 1.0 / r->n_rank, m->n_used) : 1;
    double shared = shared_seconds(m, n.most);
    double rows = lg_exchange_rows_seconds(&R.links, &g, R.how.kind, n);
    double layer = mixer_seconds(m, n.most, r->prompt) + shared + experts_forecast(r, n.all) +
                   copy_seconds(m, 3 * n.most) +
                   copy_seconds(m, n.all * (touched + m->n_used / r->n_rank)) +
                   lg_exchange_seconds(&R.links, &g, R.how.kind, n) -
                   (R.how.no_overlap ? 0 : fmin(shared, rows));
    return layer * lg_plan_n_layer(m) + head_seconds(m, r->prompt ? 1 : n.most);
}

/* ---- cases ---- */

static double worst, allowed = 1e9;

/* `one`: the rows are all of rank 0; `each`: every rank has t of them. */
static void measure_case(const char *name, const char *what, uint32_t t, bool one, bool each) {
    double base = 0;
    for (uint32_t n = 1; n <= (each ? 4 : 16); n *= 2) {
        run *r = calloc(1, sizeof *r);
        LG_ASSERT(r && lg_plan_model_named(name, &r->m));
        if (n % R.n_local && n > 1) {
            free(r);
            continue;
        }
        r->n_rank = n;
        r->prompt = each || (one && t > 1);
        R.how.links = R.links;
        for (uint32_t k = 0; k < n; k++)
            r->n_row[k] = each ? t : one ? (k == 0) * t : t * (k + 1) / n - t * k / n;
        double tokens = each ? t * n : t, s = simulate(r), f = forecast(r), off = f / s - 1;
        if (n == 1) base = s / tokens;
        if (fabs(off) > fabs(worst)) worst = off;
        printf("%-5s %-22s %3u  %9.2f  %9.1f  %6.2f  %9.1f  %+5.1f %%\n", name, what, n,
               s * 1e3, tokens / s, base * tokens / s, tokens / f, off * 100);
        fflush(stdout);
        free(r);
    }
}

/* This machine's products of 16-bit weights: bytes a second of one row, operations a second of 64. */
static void measure_kernels(double n_thread) {
    enum { OUT = 2048, IN = 4096, ROWS = 64 };
    const lg_kern *k = lg_kern_get();
    lg_mat w = {.type = LG_BF16, .n_out = OUT, .n_in = IN};
    size_t bytes = lg_dtype_panel_bytes(LG_BF16, IN) * lg_mat_n_panel(&w);
    void *panel = aligned_alloc(64, (bytes + 63) / 64 * 64);
    float *x = calloc((size_t)ROWS * IN, sizeof *x), *y = calloc((size_t)ROWS * OUT, sizeof *y);
    double best[2] = {1e30, 1e30};
    LG_ASSERT(panel && x && y);
    memset(panel, 0, bytes);
    w.panel = panel;
    for (int i = 0; i < 10; i++) {
        uint32_t row = i % 2 ? ROWS : 1;
        uint64_t start = lg_clock_us();
        k->gemm(&w, 0, lg_mat_n_panel(&w), x, IN, NULL, row, y, OUT);
        best[i % 2] = fmin(best[i % 2], (double)(lg_clock_us() - start) * 1e-6);
    }
    R.bandwidth = (double)bytes / best[0] * n_thread;
    R.ops = 2.0 * OUT * IN * ROWS / best[1] * n_thread;
    free(panel);
    free(x);
    free(y);
}

enum {
    BANDWIDTH = 256,
    OPS,
    LINK,
    LATENCY,
    INSIDE,
    LOCAL,
    LAYERS,
    EXCHANGE,
    WIRE,
    OVERLAP,
    MEASURE,
    CHECK
};

static bool take(int c) {
    double v = optarg ? atof(optarg) : 0;
    if (c == BANDWIDTH) R.bandwidth = v * 1e9;
    if (c == OPS) R.ops = v * 1e12;
    if (c == LINK) R.links.out.bytes_s = v * 1e9;
    if (c == LATENCY) R.links.out.latency_s = v * 1e-6;
    if (c == INSIDE) R.links.in.bytes_s = v * 1e9;
    if (c == LOCAL) R.n_local = (uint32_t)v;
    if (c == LAYERS) R.n_layer = (uint32_t)v;
    if (c == OVERLAP) R.how.no_overlap = strcmp(optarg, "off") == 0;
    if (c == CHECK) allowed = v / 100;
    if (c == MEASURE) measure_kernels(v);
    if (c == EXCHANGE) return lg_exchange_named(optarg, &R.how.kind);
    for (int i = 0; c == WIRE && i < LG_N_WIRE; i++)
        if (strcmp(optarg, lg_wire_name((lg_wire)i)) == 0) R.how.wire = (lg_wire)i;
    return c != '?' && R.bandwidth > 0 && R.ops > 0 && R.links.out.bytes_s > 0 &&
           R.links.in.bytes_s > 0 && R.n_local >= 1 && R.n_local <= 16 && R.n_layer >= 1;
}

int main(int argc, char **argv) {
    static const struct option longs[] = {{"bandwidth", 1, NULL, BANDWIDTH},
                                          {"ops", 1, NULL, OPS},
                                          {"link", 1, NULL, LINK},
                                          {"latency", 1, NULL, LATENCY},
                                          {"inside", 1, NULL, INSIDE},
                                          {"ranks-per-node", 1, NULL, LOCAL},
                                          {"layers", 1, NULL, LAYERS},
                                          {"exchange", 1, NULL, EXCHANGE},
                                          {"wire", 1, NULL, WIRE},
                                          {"overlap", 1, NULL, OVERLAP},
                                          {"measure", 1, NULL, MEASURE},
                                          {"check", 1, NULL, CHECK},
                                          {NULL, 0, NULL, 0}};
    static const char *const model[] = {"35b", "122b", "397b"};
    static const uint32_t rows[] = {8, 64, 256};
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
        if (!take(c)) return 2;
    printf("a rank %.0f GB/s, %.2f TFLOP/s; between machines %.1f GB/s, %.0f us; %u ranks a "
           "machine; exchange "
           "%s, rows in %s%s\n"
           "model case                   ranks  step ms   tokens/s  times   forecast   off\n",
           R.bandwidth * 1e-9, R.ops * 1e-12, R.links.out.bytes_s * 1e-9,
           R.links.out.latency_s * 1e6, R.n_local, lg_exchange_name(R.how.kind),
           lg_wire_name(R.how.wire), R.how.no_overlap ? ", no overlap" : "");
    for (size_t m = 0; m < LG_COUNT(model); m++) {
        for (size_t i = 0; i < LG_COUNT(rows); i++) {
            char what[40];
            snprintf(what, sizeof what, "%u sequences decode", rows[i]);
            measure_case(model[m], what, rows[i], false, false);
        }
        measure_case(model[m], "prompts on all ranks", 512, false, true);
        measure_case(model[m], "one sequence alone", 1, true, false);
        measure_case(model[m], "one prompt alone", MAX_ROW, true, false);
    }
    printf("the forecast is off by %+.1f %% at most\n", worst * 100);
    return fabs(worst) > allowed;
}
