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
 * alone but for the experts, or divided (slice.h: slices of all products). */
#include "comm_sim.h"

#include "base/clock.h"
#include "base/num.h"
#include "dist/exchange.h"
#include "dist/slice.h"
#include "dist/spread.h"
#include "kern/kern.h"
#include "plan/plan.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECES   8 /* of a product, between which messages are looked after */
#define CONTEXT  4096.0
#define FILL_BLK 16

typedef struct rates {
    double bandwidth, ops;   /* of one rank */
    double n_thread, head_s; /* of one rank; a value head of a row of a prompt */
    double slow;             /* --real: everything takes so many times as long */
    uint32_t n_prompt_row;
    lg_links links;
    uint32_t n_local, n_layer;
    const char *model; /* NULL: all of them */
    lg_exchange_how how;
    bool is_real;
    lg_comm real; /* --real: the group that mpirun started */
} rates;

static rates R = {.bandwidth = 300e9,
                  .ops = 9.2e12,
                  .n_thread = 16,
                  .head_s = 1.9e-6,
                  .slow = 1,
                  .n_prompt_row = 1024,
                  .links = {.in = {2e-6, 0.5e-6, 20e9}, .out = {20e-6, 2e-6, 12.5e9}},
                  .n_local = 1,
                  .n_layer = 4,
                  .how = {.kind = LG_EXCHANGE_AUTO}};

typedef struct run {
    lg_plan_model m;
    sim *s;
    lg_place place;
    uint32_t n_rank, n_row[LG_MAX_RANK];
    uint32_t n_layer;
    bool prompt, divided; /* divided: rank 0's prompt over all */
    bool sliced;          /* rank 0's row, with the help of all */
    uint64_t start_us;    /* of a real step */
} run;

/* ---- what computing takes ---- */

static double spend(double bytes, double ops) {
    return fmax(bytes / R.bandwidth, ops / R.ops);
}

static bool is_attn(uint32_t layer) {
    return layer % 4 == 3;
}

/* Recurrence of a prompt's rows: `heads` value heads on this rank. */
static double heads_seconds(double rows, double heads) {
    return rows * ceil(heads / R.n_thread) * R.head_s;
}

/* Weights of a mixer's products, on average. */
static double mixer_params(const lg_plan_model *m) {
    double n = lg_plan_n_layer(m);
    return (lg_plan_dense_params(m) - n * lg_plan_shared_params(m)) / n;
}

/* States, keys and values of `rows` own rows. */
static double state_seconds(const lg_plan_model *m, double rows, bool prompt) {
    double n = lg_plan_n_layer(m), share = m->n_attn / n, seqs = prompt ? 1 : rows;
    double state = seqs * (2 * lg_plan_slot_bytes(m) + CONTEXT * lg_plan_token_bytes(m)) / n;
    return spend(state, share * 4 * m->n_head * m->d_head * CONTEXT * rows);
}

/* Mixer, router, norms of `rows` own rows, without the recurrence. */
static double mixer_seconds(const lg_plan_model *m, double rows, bool prompt) {
    double params = mixer_params(m), router = m->hidden * m->n_expert;
    if (rows == 0) return 0;
    return spend(params * m->b_dense + router * m->b_router, 2 * (params + router) * rows) +
           state_seconds(m, rows, prompt);
}

/* A part of a layer's dense weights, one row. */
static double part_seconds(const lg_plan_model *m, double params) {
    return spend(params * m->b_dense, 2 * params);
}

static double router_seconds(const lg_plan_model *m) {
    double p = m->hidden * m->n_expert;
    return spend(p * m->b_router, 2 * p);
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
    lg_spread sp;
    uint32_t *rows, *whole, *home; /* spread.h */
    lg_slice sl;
    uint32_t *words; /* slice.h */
} rank_ctx;

/* Everybody waits for everybody; the largest value comes back. */
static double meet(double mine) {
    lg_comm *c = &R.real;
    double all[LG_MAX_RANK], most = mine;
    lg_status st = LG_OK;
    for (uint32_t d = 1; d < c->n_rank && st == LG_OK; d++) {
        lg_comm_req q[2] = {{0}};
        uint32_t to = (c->rank + d) % c->n_rank, from = (c->rank + c->n_rank - d) % c->n_rank;
        st = lg_comm_recv(c, from, 9, &all[from], sizeof mine, &q[0]);
        if (st == LG_OK) st = lg_comm_send(c, to, 9, &mine, sizeof mine, &q[1]);
        if (st == LG_OK) st = lg_comm_wait(c, q, 2);
        most = fmax(most, all[from]);
    }
    if (st == LG_OK) return most;
    fprintf(stderr, "bench_scale: %s\n", c->why);
    exit(1);
}

/* Compute for so long: on the rank's clock, or asleep, since what is computed is not there. */
static void spend_time(const rank_ctx *c, double seconds) {
    static double until; /* one real rank is one process */
    if (c->r->s) {
        sim_compute(c->r->s, c->rank, seconds);
        return;
    }
    double now = (double)lg_clock_us();
    until = fmax(until, now) + seconds * R.slow * 1e6;
    for (; now < until; now = (double)lg_clock_us())
        lg_clock_sleep_us((uint64_t)(until - now) + 1);
}

static void compute(const rank_ctx *c, double seconds) {
    for (int i = 0; i < PIECES; i++) {
        spend_time(c, seconds / PIECES);
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
        spend_time(c, copy_seconds(&c->r->m, rows));
        lg_exchange_progress(c->x);
    }
}

/* n rows from row `first` of all on. */
static void draw_rows(const lg_exchange *x, uint32_t layer, uint32_t first, uint32_t n,
                      uint32_t *id, float *w) {
    uint32_t n_expert = x->place->n_expert;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < x->k; j++) {
            uint32_t *at = &id[i * x->k], e, draw = 0;
            bool again = true;
            while (again) {
                again = false;
                e = (uint32_t)(lg_num_rng(layer, j, first + i, draw++) % n_expert);
                for (uint32_t q = 0; q < j; q++) again |= at[q] == e;
            }
            at[j] = e;
            w[i * x->k + j] = 0.1f;
        }
}

/* Words of a key head: of a row before the recurrence and after it, of its state; of a row's keys and values. */
static size_t in_words(const lg_plan_model *m) {
    return (size_t)(2 * m->d_k + m->n_v_head / m->n_k_head * (m->d_v + 2));
}

static size_t out_words(const lg_plan_model *m) {
    return (size_t)(m->n_v_head / m->n_k_head * m->d_v);
}

static size_t state_words(const lg_plan_model *m) {
    double ratio = m->n_v_head / m->n_k_head;
    return (size_t)(3 * 2 * m->d_k + ratio * (m->d_k + 3) * m->d_v);
}

static size_t key_words(const lg_plan_model *m) {
    return (size_t)(2 * m->n_kv_head * m->d_head);
}

/* What is moved in memory of this rank's n rows and of its heads of all. */
static double pack_seconds(const lg_plan_model *m, double n) {
    return 4 * 4 * n * m->n_k_head * (double)(in_words(m) + out_words(m)) / R.bandwidth;
}

/* The messages of a divided mixer, and what comes between them. */
static lg_status run_divided(rank_ctx *c, uint32_t layer) {
    const lg_plan_model *m = &c->r->m;
    lg_spread *sp = &c->sp;
    double n = lg_spread_n_row(sp), all = sp->n_row, ratio = m->n_v_head / m->n_k_head;
    double heads = lg_spread_head0(sp, c->rank + 1) - lg_spread_head0(sp, c->rank);
    if (is_attn(layer)) {
        LG_TRY(lg_spread_gather(sp, key_words(m), c->whole));
        spend_time(c, 4 * 2 * all * (double)key_words(m) / R.bandwidth);
        return LG_OK;
    }
    LG_TRY(lg_spread_home_end(sp));
    LG_TRY(lg_spread_swap(sp, true, in_words(m), c->rows, c->whole));
    spend_time(c, heads_seconds(all, heads * ratio) + pack_seconds(m, n));
    LG_TRY(lg_spread_swap(sp, false, out_words(m), c->rows, c->whole));
    return lg_spread_home(sp, state_words(m), c->home);
}

/* What a mixer's input products give for a row, and what goes into its output product, in words. */
static double mixed_words(const lg_plan_model *m, bool attn) {
    return attn ? m->n_head * m->d_head : m->n_v_head * m->d_v;
}

static double product_words(const lg_plan_model *m, bool attn) {
    if (attn) return 2 * (m->n_head + m->n_kv_head) * m->d_head;
    return 2 * m->n_k_head * m->d_k + 2 * m->n_v_head * (m->d_v + 1);
}

/* Slices of n words of all ranks, to the owner or to all. */
static lg_status collect(rank_ctx *c, bool all, double n) {
    uint32_t ranks = c->r->n_rank;
    for (uint32_t r = 0; r < ranks; r++) {
        c->sl.at[r] = lg_slice_part((uint32_t)n, ranks, r);
        c->sl.n[r] = lg_slice_part((uint32_t)n, ranks, r + 1) - c->sl.at[r];
    }
    return lg_slice_start(&c->sl, all, c->words);
}

/* Product rows of all ranks' experts, and slices of the shared expert's row, to all. */
static lg_status bring_back(rank_ctx *c, const uint32_t *id) {
    const lg_exchange *x = c->x;
    uint32_t ranks = c->r->n_rank;
    size_t at = 0;
    for (uint32_t r = 0; r < ranks; r++) c->sl.n[r] = 16 + x->n_embd / ranks;
    for (uint32_t j = 0; j < x->k; j++)
        c->sl.n[lg_place_rank(x->place, x->layer, id[j], 0)] += x->n_embd;
    for (uint32_t r = 0; r < ranks; at += c->sl.n[r++]) c->sl.at[r] = at;
    LG_TRY(lg_slice_start(&c->sl, true, c->words));
    return lg_slice_wait(&c->sl);
}

/* Experts of the pairs that are here. */
static double pairs_seconds(const rank_ctx *c) {
    const lg_exchange *x = c->x;
    double s = copy_seconds(&c->r->m, 2 * x->n_in);
    for (uint32_t e = 0; e < x->place->n_expert; e++)
        s += expert_seconds(&c->r->m, x->first[e + 1] - x->first[e]);
    return s;
}

/* A layer of one row with the help of all ranks: backend/cpu/slice.c. */
static lg_status run_sliced(rank_ctx *c, uint32_t layer, const float *xn, uint32_t *id,
                            float *w) {
    const lg_plan_model *m = &c->r->m;
    bool attn = is_attn(layer);
    double n = c->r->n_rank, in = product_words(m, attn), mixed = mixed_words(m, attn);
    double mixer = mixer_params(m) / n, shared = lg_plan_shared_params(m) / n;
    spend_time(c, part_seconds(m, mixer * in / (in + mixed)));
    LG_TRY(collect(c, false, in));
    LG_TRY(lg_slice_wait(&c->sl));
    if (c->rank == 0) spend_time(c, state_seconds(m, 1, false));
    LG_TRY(lg_slice_copy(&c->sl, c->words, (size_t)mixed));
    spend_time(c, part_seconds(m, mixer * mixed / (in + mixed)));
    LG_TRY(collect(c, true, m->hidden));
    LG_TRY(lg_slice_wait(&c->sl));
    spend_time(c, router_seconds(m) + part_seconds(m, shared * 2 / 3) + copy_seconds(m, 2));
    LG_TRY(collect(c, true, lg_plan_shared_params(m) / m->hidden / 3));
    draw_rows(c->x, layer, 0, 1, id, w);
    lg_exchange_known(c->x, layer, 0, xn, id, w);
    double s = pairs_seconds(c);
    for (int i = 0; i < PIECES; i++) {
        spend_time(c, s / PIECES);
        lg_slice_progress(&c->sl);
    }
    LG_TRY(lg_slice_wait(&c->sl));
    spend_time(c, part_seconds(m, shared / 3));
    LG_TRY(bring_back(c, id));
    spend_time(c, copy_seconds(m, 2.0 + c->x->k));
    return LG_OK;
}

static lg_status run_layer(rank_ctx *c, uint32_t layer, const float *xn, uint32_t *id, float *w,
                           float *out) {
    const lg_plan_model *m = &c->r->m;
    lg_exchange *x = c->x;
    uint32_t n = lg_exchange_n_own(x);
    spend_time(c, mixer_seconds(m, n, c->r->prompt));
    if (c->r->divided)
        LG_TRY(run_divided(c, layer));
    else if (c->r->prompt && !is_attn(layer))
        spend_time(c, heads_seconds(n, m->n_v_head));
    draw_rows(x, layer, x->row0[c->rank], n, id, w);
    LG_TRY(lg_exchange_start(x, layer, xn, id, w));
    compute(c, shared_seconds(m, n));
    LG_TRY(lg_exchange_arrive(x));
    spend_time(c, pairs_seconds(c));
    if (x->kind == LG_EXCHANGE_STRICT) {
        LG_TRY(lg_exchange_finish(x));
        spend_time(c, copy_seconds(m, (1.0 + x->k) * n));
    } else {
        LG_TRY(lg_exchange_sums(x, fill, c, out));
    }
    spend_time(c, copy_seconds(m, 3.0 * n));
    return LG_OK;
}

/* Memory for a divided prompt of t rows; nobody writes it but the messages. */
static void *open_divided(rank_ctx *c, lg_comm *comm, uint32_t t) {
    const lg_plan_model *m = &c->r->m;
    uint32_t n_head = (uint32_t)m->n_k_head;
    size_t own = t / comm->n_rank + 1, heads = (n_head + comm->n_rank - 1) / comm->n_rank;
    size_t n_whole =
        t * (heads * in_words(m) > key_words(m) ? heads * in_words(m) : key_words(m));
    lg_arena a;
    lg_arena_init(&a, NULL, 0);
    lg_spread_carve(&a, comm, n_head, &c->sp);
    size_t n_req = a.used_bytes, n_rows = own * n_head * in_words(m);
    char *p = calloc(1, n_req + 4 * (n_rows + n_whole + n_head * state_words(m)));
    LG_ASSERT(p);
    lg_arena_init(&a, p, n_req);
    lg_spread_carve(&a, comm, n_head, &c->sp);
    c->rows = (uint32_t *)(void *)(p + n_req);
    c->whole = c->rows + n_rows;
    c->home = c->whole + n_whole;
    lg_spread_begin(&c->sp, 0, t);
    return p;
}

/* Memory for a row with the help of all. */
static void *open_sliced(rank_ctx *c, lg_comm *comm) {
    const lg_plan_model *m = &c->r->m;
    double back = (m->n_used + 1) * m->hidden + 16.0 * comm->n_rank;
    double most = fmax(back, fmax(product_words(m, false), product_words(m, true)));
    lg_arena a;
    lg_arena_init(&a, NULL, 0);
    lg_slice_carve(&a, comm, &c->sl);
    size_t n_req = (a.used_bytes + 63) / 64 * 64;
    char *p = calloc(1, n_req + 4 * (size_t)most);
    LG_ASSERT(p);
    lg_arena_init(&a, p, n_req);
    lg_slice_carve(&a, comm, &c->sl);
    c->words = (uint32_t *)(void *)(p + n_req);
    lg_slice_begin(&c->sl, 0);
    return p;
}

static void rank_body(void *ctx, uint32_t rank) {
    run *r = ctx;
    lg_comm numbers, *comm = r->s ? &numbers : &R.real;
    lg_exchange x;
    lg_arena a;
    uint32_t k = (uint32_t)r->m.n_used, h = (uint32_t)r->m.hidden, t = 0;
    for (uint32_t q = 0; q < r->n_rank; q++) t += r->n_row[q];
    if (r->s) sim_join(r->s, rank, comm);
    lg_arena_init(&a, NULL, 0);
    lg_exchange_carve(&a, comm, &r->place, &R.how, t, h, k, &x);
    size_t bytes = a.used_bytes;
    void *block = malloc(bytes); /* pages of it that nobody touches are never there */
    float *rows = malloc((size_t)(2 * t + 1) * h * sizeof *rows);
    float *w = malloc((size_t)(t + 1) * k * sizeof *w);
    uint32_t *id = malloc((size_t)(t + 1) * k * sizeof *id);
    LG_ASSERT(block && rows && w && id);
    memset(rows, 0, (size_t)t * h * sizeof *rows);
    lg_arena_init(&a, block, bytes);
    lg_exchange_carve(&a, comm, &r->place, &R.how, t, h, k, &x);
    if (!r->s) memset(block, 0, bytes);
    lg_exchange_begin(&x, r->n_row);
    rank_ctx c = {.r = r, .x = &x, .rank = rank};
    void *more = r->divided  ? open_divided(&c, comm, t)
                 : r->sliced ? open_sliced(&c, comm)
                             : NULL;
    if (!r->s) meet(0);
    r->start_us = lg_clock_us();
    for (uint32_t l = 0; l < r->n_layer; l++)
        if ((r->sliced ? run_sliced(&c, l, rows, id, w)
                       : run_layer(&c, l, rows, id, w, rows + (size_t)t * h)) != LG_OK) {
            fprintf(stderr, "bench_scale: %s\n", comm->why);
            exit(1);
        }
    if (r->divided) LG_ASSERT(lg_spread_home_end(&c.sp) == LG_OK);
    free(more);
    free(block);
    free(rows);
    free(w);
    free(id);
}

/* The shape of a group, for choose.h. */
static lg_group_shape group_of(const run *r) {
    return (lg_group_shape){r->n_rank,     fmax(1, floor(r->n_rank / R.n_local)),
                            r->m.hidden,   r->m.n_used,
                            r->m.n_expert, R.how.wire};
}

/* The head, which is in no simulated layer. */
static double end_seconds(const run *r, double most) {
    const lg_plan_model *m = &r->m;
    lg_group_shape g = group_of(r);
    lg_slice_shape logits = {.logits = 4 * m->n_vocab};
    if (!r->sliced) return head_seconds(m, r->prompt ? 1 : most);
    return head_seconds(m, 1) / r->n_rank + lg_slice_seconds(&R.links, &g, &logits, 1, 1);
}

static double simulate(run *r) {
    lg_place_opt o = {
        .n_rank = r->n_rank, .n_layer = r->n_layer, .n_expert = (uint32_t)r->m.n_expert};
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
    return last / r->n_layer * lg_plan_n_layer(&r->m) + end_seconds(r, most);
}

/* The same step by real messages, some times; the median. */
static double measure_step(run *r) {
    enum { ROUNDS = 3 };
    double took[ROUNDS], most = 0;
    lg_place_opt o = {
        .n_rank = r->n_rank, .n_layer = r->n_layer, .n_expert = (uint32_t)r->m.n_expert};
    LG_ASSERT(lg_place_balance(&r->place, &o, NULL) == LG_OK);
    for (int i = 0; i < ROUNDS; i++) {
        rank_body(r, R.real.rank);
        double s = meet((double)(lg_clock_us() - r->start_us) * 1e-6) / R.slow;
        int at = i;
        for (; at > 0 && took[at - 1] > s; at--) took[at] = took[at - 1];
        took[at] = s;
    }
    lg_place_fini(&r->place);
    for (uint32_t k = 0; k < r->n_rank; k++) most = fmax(most, r->n_row[k]);
    return took[ROUNDS / 2] / r->n_layer * lg_plan_n_layer(&r->m) + end_seconds(r, most);
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

/* Part of the layers that are attention, or not. */
static void kinds(const run *r, double *attn, double *gdn) {
    *attn = *gdn = 0;
    for (uint32_t l = 0; l < r->n_layer; l++) *(is_attn(l) ? attn : gdn) += 1.0 / r->n_layer;
}

/* One row with the help of all. */
static double sliced_forecast(const run *r) {
    const lg_plan_model *m = &r->m;
    lg_group_shape g = group_of(r);
    double shared = lg_plan_shared_params(m);
    lg_slice_shape s = {.gdn_in = 4 * product_words(m, false),
                        .gdn_mixed = 4 * mixed_words(m, false),
                        .attn_in = 4 * product_words(m, true),
                        .attn_mixed = 4 * mixed_words(m, true),
                        .shared = 4 * shared / m->hidden / 3};
    kinds(r, &s.n_attn, &s.n_gdn);
    double layer = part_seconds(m, (mixer_params(m) + shared) / r->n_rank) +
                   state_seconds(m, 1, false) + router_seconds(m) + experts_forecast(r, 1) +
                   copy_seconds(m, 4 + m->n_used) + lg_slice_seconds(&R.links, &g, &s, 1, 0);
    return layer * lg_plan_n_layer(m) + end_seconds(r, 1);
}

static double forecast(const run *r) {
    const lg_plan_model *m = &r->m;
    lg_row_count n = {0, 0};
    lg_group_shape g = group_of(r);
    if (r->sliced) return sliced_forecast(r);
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
    double attn, gdn, rec = r->divided ? ceil(m->n_k_head / r->n_rank) : m->n_k_head;
    kinds(r, &attn, &gdn);
    if (r->prompt)
        layer +=
            gdn * heads_seconds(r->divided ? n.all : n.most, rec * m->n_v_head / m->n_k_head);
    if (r->divided) {
        lg_divide_shape d = {.n_gdn = gdn,
                             .n_attn = attn,
                             .in = 4 * m->n_k_head * (double)in_words(m),
                             .out = 4 * m->n_k_head * (double)out_words(m),
                             .keys = 4 * (double)key_words(m),
                             .state = 4 * m->n_k_head * (double)state_words(m)};
        layer += lg_divide_seconds(&R.links, &g, &d, n.all, 0, 0) +
                 gdn * pack_seconds(m, n.most) + attn * 2 * n.all * d.keys / R.bandwidth;
    }
    return layer * lg_plan_n_layer(m) + end_seconds(r, n.most);
}

/* ---- cases ---- */

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
        run *r = calloc(1, sizeof *r);
        LG_ASSERT(r && lg_plan_model_named(name, &r->m));
        if ((n % R.n_local || (R.real.n_rank > 1 && n != R.real.n_rank)) && n > 1) {
            free(r);
            continue;
        }
        r->n_rank = n;
        r->divided = of == DIVIDED && n > 1;
        r->sliced = of == SLICED && n > 1;
        r->prompt = each || of == DIVIDED || (one && t > 1);
        r->n_layer =
            r->prompt || r->sliced ? (R.n_layer + 3) / 4 * 4 : R.n_layer; /* both kinds */
        R.how.links = R.links;
        for (uint32_t k = 0; k < n; k++)
            r->n_row[k] = each         ? t
                          : one        ? (k == 0) * t
                          : r->divided ? divided_rows(t, n, k)
                                       : t * (k + 1) / n - t * k / n;
        double tokens = each ? t * n : t, f = forecast(r);
        double s = n > 1 && R.real.n_rank == n ? measure_step(r) : simulate(r), off = f / s - 1;
        if (n == 1) base = s / tokens;
        if (fabs(off) > fabs(worst)) worst = off;
        if (R.real.rank == 0)
            printf("%-5s %-22s %3u  %9.2f  %9.1f  %6.2f  %9.1f  %+5.1f %%\n", name, what, n,
                   s * 1e3, tokens / s, base * tokens / s, tokens / f, off * 100);
        fflush(stdout);
        free(r);
    }
}

/* Rows of n_in numbers, quantised as the type's products take them. */
static lg_qrows make_rows(lg_dtype type, uint32_t n_in, uint32_t n_row) {
    size_t n = (size_t)n_in * n_row;
    lg_qrows q = {.group = lg_dtype_row_group(type), .ld = n_in};
    float *x = calloc(n_in, sizeof *x);
    q.v8 = aligned_alloc(64, n);
    q.v16 = aligned_alloc(64, 2 * n);
    q.sum = calloc(n / 32, sizeof *q.sum);
    q.sum16 = calloc(n / 16, sizeof *q.sum16);
    q.d = calloc(n / 32, sizeof *q.d);
    LG_ASSERT(x && q.v8 && q.v16 && q.sum && q.sum16 && q.d);
    for (uint32_t r = 0; r < n_row; r++) {
        for (uint32_t i = 0; i < n_in; i++) x[i] = lg_num_rng_unit(1, r, i, 0) - 0.5f;
        lg_kern_get()->quant_row(x, n_in, &q, r);
    }
    free(x);
    return q;
}

/* This machine's products of 8-bit weights, as the models have them (one thread, times n_thread): bytes a second of one row, from more
 * matrices than a cache of a core holds; operations a second of 64 rows. */
static void measure_kernels(double n_thread) {
    enum { OUT = 2048, IN = 4096, ROWS = 64, N_MAT = 24, ROUNDS = 5 };
    const lg_kern *k = lg_kern_get();
    lg_mat w = {.type = LG_Q8_0, .n_out = OUT, .n_in = IN};
    size_t bytes = lg_dtype_panel_bytes(w.type, IN) * lg_mat_n_panel(&w), step;
    step = (bytes + 63) / 64 * 64;
    uint8_t *panel = aligned_alloc(64, N_MAT * step);
    float *y = calloc((size_t)ROWS * OUT, sizeof *y);
    lg_qrows x = make_rows(w.type, IN, ROWS);
    double best[2] = {1e30, 1e30};
    LG_ASSERT(panel && y);
    memset(panel, 0, N_MAT * step);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        uint64_t start = lg_clock_us();
        for (size_t m = 0; m < N_MAT; m++) {
            w.panel = panel + m * step;
            k->qgemm(&w, 0, lg_mat_n_panel(&w), &x, NULL, i % 2 ? ROWS : 1, y, OUT);
        }
        best[i % 2] = fmin(best[i % 2], (double)(lg_clock_us() - start) * 1e-6);
    }
    R.bandwidth = (double)bytes * N_MAT / best[0] * n_thread;
    R.ops = 2.0 * OUT * IN * ROWS * N_MAT / best[1] * n_thread;
    free(panel);
    free(y);
    free(x.v8);
    free(x.v16);
    free(x.sum);
    free(x.sum16);
    free(x.d);
}

/* One value head of a row of a prompt by this machine's kernel, one thread. */
static void measure_head(void) {
    enum { D = 128, ROWS = LG_GDN_C, ROUNDS = 20 };
    static float q[ROWS * D], k[ROWS * D], v[ROWS * D], o[ROWS * D], g[ROWS], beta[ROWS],
        s[D * D];
    static float open_k[D * LG_GDN_C], open_d[LG_GDN_C * D], open_g[LG_GDN_C];
    size_t n = (lg_gdn_scratch_floats(D, D) * sizeof(float) + 63) / 64 * 64;
    float *scratch = aligned_alloc(64, n);
    LG_ASSERT(scratch);
    for (uint32_t i = 0; i < ROWS * D; i++) {
        q[i] = 0.1f * (lg_num_rng_unit(2, i, 0, 0) - 0.5f);
        k[i] = 0.1f * (lg_num_rng_unit(2, i, 1, 0) - 0.5f);
        v[i] = lg_num_rng_unit(2, i, 2, 0) - 0.5f;
        g[i % ROWS] = -0.1f;
        beta[i % ROWS] = 0.5f;
    }
    lg_gdn_arg a = {.dk = D,
                    .dv = D,
                    .n_tok = ROWS,
                    .has_init = true,
                    .q = q,
                    .k = k,
                    .ld_qk = D,
                    .v = v,
                    .ld_v = D,
                    .g = g,
                    .beta = beta,
                    .ld_g = 1,
                    .o = o,
                    .ld_o = D,
                    .s = s,
                    .open_k = open_k,
                    .open_d = open_d,
                    .open_g = open_g,
                    .scratch = scratch};
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start = lg_clock_ns();
        lg_kern_get()->gdn_rows(&a);
        best = fmin(best, (double)(lg_clock_ns() - start) * 1e-9);
    }
    R.head_s = best / ROWS;
    free(scratch);
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
    if (lg_comm_mpi(&R.real, &err) != LG_OK) {
        fprintf(stderr, "bench_scale: %s\n", err.msg);
        return false;
    }
    R.real.timeout_us = 60 * 1000000;
    R.n_local = R.real.n_rank / R.real.n_node;
    if (lg_links_measure(&R.real, &R.links) != LG_OK) return false;
    lg_way *way[2] = {&R.links.in, &R.links.out};
    for (int i = 0; i < 2; i++) {
        way[i]->latency_s /= R.slow;
        way[i]->message_s /= R.slow;
        way[i]->bytes_s *= R.slow;
    }
    return true;
}

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
    if (c == THREADS) R.n_thread = v;
    if (c == SLOW) R.slow = v;
    if (c == MODEL) R.model = optarg;
    if (c == HEAD_US) R.head_s = v * 1e-6;
    if (c == CASE) only = optarg;
    if (c == PROMPT_ROWS) R.n_prompt_row = (uint32_t)v;
    if (c == MEASURE) {
        measure_kernels(v);
        measure_head();
        R.n_thread = v;
    }
    if (c == REAL) R.is_real = true;
    if (c == EXCHANGE) return lg_exchange_named(optarg, &R.how.kind);
    for (int i = 0; c == WIRE && i < LG_N_WIRE; i++)
        if (strcmp(optarg, lg_wire_name((lg_wire)i)) == 0) R.how.wire = (lg_wire)i;
    return c != '?' && R.bandwidth > 0 && R.ops > 0 && R.links.out.bytes_s > 0 &&
           R.links.in.bytes_s > 0 && R.n_local >= 1 && R.n_local <= 16 && R.n_layer >= 1 &&
           R.n_thread >= 1 && R.slow > 0 && R.head_s > 0 && R.n_prompt_row >= 16;
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
    if (R.is_real && !join()) return 1;
    if (R.real.rank == 0)
        printf(
            "a rank %.0f GB/s, %.2f TFLOP/s, %.0f threads; a row's value head %.2f us; between "
            "machines %.1f GB/s, %.0f us; %u ranks a "
            "machine; exchange "
            "%s, rows in %s%s%s\n"
            "model case                   ranks  step ms   tokens/s  times   forecast   off\n",
            R.bandwidth * 1e-9, R.ops * 1e-12, R.n_thread, R.head_s * 1e6,
            R.links.out.bytes_s * 1e-9, R.links.out.latency_s * 1e6, R.n_local,
            lg_exchange_name(R.how.kind), lg_wire_name(R.how.wire),
            R.how.no_overlap ? ", no overlap" : "", R.real.n_rank ? "; real messages" : "");
    for (size_t m = 0; m < LG_COUNT(model); m++) {
        if (R.model && strcmp(R.model, model[m]) != 0) continue;
        for (size_t i = 0; i < LG_COUNT(rows); i++) {
            char what[40];
            snprintf(what, sizeof what, "%u sequences decode", rows[i]);
            measure_case(model[m], what, rows[i], EVEN);
        }
        measure_case(model[m], "one sequence alone", 1, ONE);
        measure_case(model[m], "one sequence divided", 1, SLICED);
        if (R.real.n_rank) continue;
        measure_case(model[m], "prompts on all ranks", 512, EACH);
        measure_case(model[m], "one prompt alone", R.n_prompt_row, ONE);
        measure_case(model[m], "one prompt divided", R.n_prompt_row, DIVIDED);
    }
    if (R.real.n_rank) lg_comm_close(&R.real);
    if (R.real.rank == 0) printf("the forecast is off by %+.1f %% at most\n", worst * 100);
    return fabs(worst) > allowed;
}
