/* bench_scale.c - how a group would grow with ranks: the exchange as it is, on a network and processors that are numbers.
 *
 * usage: bench_scale [--bandwidth GB/s] [--ops TFLOP/s] [--link GB/s] [--latency US] [--inside GB/s] [--ranks-per-node G] [--layers L]
 *                    [--exchange NAME] [--wire NAME] [--overlap on|off] [--measure THREADS] [--check PER_CENT] [--real]
 *                    [--threads N] [--head-us US] [--prompt-rows N] [--slow F] [--model 35b|122b|397b] [--case TEXT]
 * What runs is src/dist: rows, routing and sums travel, with replicas of nothing and routing drawn evenly.  What does not run are the
 * products: a rank is told to compute for as long as their bytes and operations take at the given rates (--measure: those of this machine's
 * kernels, of one thread, times THREADS).  Clocks are numbers (comm_sim.h).  L layers are simulated and stand for all.
 * --real: under mpirun, by real messages between its ranks, which sleep for as long as they would compute (tests/e2e/netns.py); links are
 * measured as the engine does, and the cases are those with few rows.  Give rates, or take those of one thread, once for all ranks.
 * --slow F, with it: ranks compute F times longer, and all times are divided by F; give cables a rate of 1/F and F times the delay.  What this
 * machine's processors need for messages of all ranks weighs 1/F then.
 * --case: only those with TEXT in their names.  --check: exit status 1 when a forecast is off by more.  Results depend on the options alone, but for
 * --measure.
 * The recurrence of a prompt is counted apart, as it runs over rows: a value head of one row takes --head-us on one of a rank's N threads
 * (--measure: that of this machine's kernel), and a head is one thread's.
 * Beside each result the forecast: the same rates, the expected number of experts that the fullest rank reads, and choose.h.
 * Cases: T sequences that decode; prompts on all ranks, 512 rows of each (up to 4 ranks); one prompt of 8,192 alone, in steps of 1,024 rows
 * (--prompt-rows) of its rank, or divided over all ranks (spread.h: rows, heads, keys, states); one sequence that decodes, of its rank
 * alone but for the experts, or divided (slice.h: slices of all products).  What the other files do: bench_scale.h. */
#include "bench_scale.h"

#include "dist/spread.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t divided_rows(uint32_t t, uint32_t n, uint32_t rank) {
    uint32_t p = lg_spread_place(0, n, rank);
    return lg_spread_part(t, n, p + 1) - lg_spread_part(t, n, p);
}

static double worst, allowed = 1e9;
static const char *only = "";

/* Whose the t rows are. */
typedef enum {
    EVEN,    /* of all ranks together */
    ONE,     /* of rank 0 */
    EACH,    /* of every rank, t each */
    DIVIDED, /* of a prompt of rank 0's, over all */
    SLICED   /* of rank 0, with the help of all */
} rows_of;

static void measure_case(const char *name, const char *what, uint32_t t, rows_of of) {
    bool one = of == ONE || of == SLICED, each = of == EACH;
    double base = 0;
    if (!strstr(what, only)) return;
    for (uint32_t n = 1; n <= (each ? 4 : 16); n *= 2) {
        scale_step *r = calloc(1, sizeof *r);
        LG_ASSERT(r && lg_plan_model_named(name, &r->m));
        if ((n % scale.n_local || (scale.real.n_rank > 1 && n != scale.real.n_rank)) && n > 1) {
            free(r);
            continue;
        }
        r->n_rank = n;
        r->divided = of == DIVIDED && n > 1;
        r->sliced = of == SLICED && n > 1;
        r->prompt = each || of == DIVIDED || (one && t > 1);
        r->n_layer = r->prompt || r->sliced ? (scale.n_layer + 3) / 4 * 4
                                            : scale.n_layer; /* both kinds */
        scale.how.links = scale.links;
        for (uint32_t k = 0; k < n; k++)
            r->n_row[k] = each         ? t
                          : one        ? (k == 0) * t
                          : r->divided ? divided_rows(t, n, k)
                                       : t * (k + 1) / n - t * k / n;
        double tokens = each ? t * n : t, f = scale_forecast(r);
        double s = n > 1 && scale.real.n_rank == n ? scale_measure(r) : scale_simulate(r),
               off = f / s - 1;
        if (n == 1) base = s / tokens;
        if (fabs(off) > fabs(worst)) worst = off;
        if (scale.real.rank == 0)
            printf("%-5s %-22s %3u  %9.2f  %9.1f  %6.2f  %9.1f  %+5.1f %%\n", name, what, n,
                   s * 1e3, tokens / s, base * tokens / s, tokens / f, off * 100);
        fflush(stdout);
        free(r);
    }
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
    REAL,
    CHECK,
    THREADS,
    SLOW,
    MODEL,
    HEAD_US,
    PROMPT_ROWS,
    CASE
};

/* Join the group and measure its links. */
static bool join(void) {
    lg_err err;
    if (lg_comm_mpi(&scale.real, &err) != LG_OK) {
        fprintf(stderr, "bench_scale: %s\n", err.msg);
        return false;
    }
    scale.real.timeout_us = 60 * 1000000;
    scale.n_local = scale.real.n_rank / scale.real.n_node;
    if (lg_links_measure(&scale.real, &scale.links) != LG_OK) return false;
    lg_way *way[2] = {&scale.links.in, &scale.links.out};
    for (int i = 0; i < 2; i++) {
        way[i]->latency_s /= scale.slow;
        way[i]->message_s /= scale.slow;
        way[i]->bytes_s *= scale.slow;
    }
    return true;
}

static bool take(int c) {
    double v = optarg ? atof(optarg) : 0;
    if (c == BANDWIDTH) scale.bandwidth = v * 1e9;
    if (c == OPS) scale.ops = v * 1e12;
    if (c == LINK) scale.links.out.bytes_s = v * 1e9;
    if (c == LATENCY) scale.links.out.latency_s = v * 1e-6;
    if (c == INSIDE) scale.links.in.bytes_s = v * 1e9;
    if (c == LOCAL) scale.n_local = (uint32_t)v;
    if (c == LAYERS) scale.n_layer = (uint32_t)v;
    if (c == OVERLAP) scale.how.no_overlap = strcmp(optarg, "off") == 0;
    if (c == CHECK) allowed = v / 100;
    if (c == THREADS) scale.n_thread = v;
    if (c == SLOW) scale.slow = v;
    if (c == MODEL) scale.model = optarg;
    if (c == HEAD_US) scale.head_s = v * 1e-6;
    if (c == CASE) only = optarg;
    if (c == PROMPT_ROWS) scale.n_prompt_row = (uint32_t)v;
    if (c == MEASURE) {
        scale_measure_kernels(v);
        scale_measure_head();
        scale.n_thread = v;
    }
    if (c == REAL) scale.is_real = true;
    if (c == EXCHANGE) return lg_exchange_named(optarg, &scale.how.kind);
    for (int i = 0; c == WIRE && i < LG_N_WIRE; i++)
        if (strcmp(optarg, lg_wire_name((lg_wire)i)) == 0) scale.how.wire = (lg_wire)i;
    return c != '?' && scale.bandwidth > 0 && scale.ops > 0 && scale.links.out.bytes_s > 0 &&
           scale.links.in.bytes_s > 0 && scale.n_local >= 1 && scale.n_local <= 16 &&
           scale.n_layer >= 1 && scale.n_thread >= 1 && scale.slow > 0 && scale.head_s > 0 &&
           scale.n_prompt_row >= 16;
}

int main(int argc, char **argv) {
    static const struct option longs[] = {
        {"bandwidth", 1, NULL, BANDWIDTH}, {"ops", 1, NULL, OPS},
        {"link", 1, NULL, LINK},           {"latency", 1, NULL, LATENCY},
        {"inside", 1, NULL, INSIDE},       {"ranks-per-node", 1, NULL, LOCAL},
        {"layers", 1, NULL, LAYERS},       {"exchange", 1, NULL, EXCHANGE},
        {"wire", 1, NULL, WIRE},           {"overlap", 1, NULL, OVERLAP},
        {"measure", 1, NULL, MEASURE},     {"real", 0, NULL, REAL},
        {"check", 1, NULL, CHECK},         {"threads", 1, NULL, THREADS},
        {"slow", 1, NULL, SLOW},           {"model", 1, NULL, MODEL},
        {"head-us", 1, NULL, HEAD_US},     {"prompt-rows", 1, NULL, PROMPT_ROWS},
        {"case", 1, NULL, CASE},           {NULL, 0, NULL, 0}};
    static const char *const model[] = {"35b", "122b", "397b"};
    static const uint32_t rows[] = {8, 64, 256};
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
        if (!take(c)) return 2;
    if (scale.is_real && !join()) return 1;
    if (scale.real.rank == 0)
        printf(
            "a rank %.0f GB/s, %.2f TFLOP/s, %.0f threads; a row's value head %.2f us; between "
            "machines %.1f GB/s, %.0f us; %u ranks a "
            "machine; exchange "
            "%s, rows in %s%s%s\n"
            "model case                   ranks  step ms   tokens/s  times   forecast   off\n",
            scale.bandwidth * 1e-9, scale.ops * 1e-12, scale.n_thread, scale.head_s * 1e6,
            scale.links.out.bytes_s * 1e-9, scale.links.out.latency_s * 1e6, scale.n_local,
            lg_exchange_name(scale.how.kind), lg_wire_name(scale.how.wire),
            scale.how.no_overlap ? ", no overlap" : "",
            scale.real.n_rank ? "; real messages" : "");
    for (size_t m = 0; m < LG_COUNT(model); m++) {
        if (scale.model && strcmp(scale.model, model[m]) != 0) continue;
        for (size_t i = 0; i < LG_COUNT(rows); i++) {
            char what[40];
            snprintf(what, sizeof what, "%u sequences decode", rows[i]);
            measure_case(model[m], what, rows[i], EVEN);
        }
        measure_case(model[m], "one sequence alone", 1, ONE);
        measure_case(model[m], "one sequence divided", 1, SLICED);
        if (scale.real.n_rank) continue;
        measure_case(model[m], "prompts on all ranks", 512, EACH);
        measure_case(model[m], "one prompt alone", scale.n_prompt_row, ONE);
        measure_case(model[m], "one prompt divided", scale.n_prompt_row, DIVIDED);
    }
    if (scale.real.n_rank) lg_comm_close(&scale.real);
    if (scale.real.rank == 0) printf("the forecast is off by %+.1f %% at most\n", worst * 100);
    return fabs(worst) > allowed;
}
