/* scale_run.c - bench_scale: a step of ranks that compute in numbers and send real messages of src/dist, in simulated time or by mpirun. */
#include "bench_scale.h"

#include "base/clock.h"
#include "base/num.h"
#include "dist/slice.h"
#include "dist/spread.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECES   8 /* of a product, between which messages are looked after */
#define FILL_BLK 16

typedef struct rank_ctx {
    scale_step *r;
    lg_exchange *x;
    uint32_t rank;
    lg_spread sp;
    uint32_t *rows, *whole, *home; /* spread.h */
    lg_slice sl;
    uint32_t *words; /* slice.h */
} rank_ctx;

/* Everybody waits for everybody; the largest value comes back. */
static double meet(double mine) {
    lg_comm *c = &scale.real;
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
    until = fmax(until, now) + seconds * scale.slow * 1e6;
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
        spend_time(c, scale_copy(&c->r->m, rows));
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

/* Compute while a swap or gather is under way. */
static lg_status meanwhile(rank_ctx *c, double seconds) {
    for (int i = 0; i < PIECES; i++) {
        spend_time(c, seconds / PIECES);
        lg_spread_progress(&c->sp);
    }
    return lg_spread_wait(&c->sp);
}

/* The messages of a divided mixer, and what comes between them. */
static lg_status run_divided(rank_ctx *c, uint32_t layer) {
    const lg_plan_model *m = &c->r->m;
    lg_spread *sp = &c->sp;
    double n = lg_spread_n_row(sp), all = sp->n_row;
    double heads = lg_spread_head0(sp, c->rank + 1) - lg_spread_head0(sp, c->rank);
    if (scale_is_attn(layer)) {
        LG_TRY(lg_spread_gather(sp, scale_key_words(m), c->whole));
        LG_TRY(meanwhile(c, scale_beside(m, true, n)));
        spend_time(c, 4 * 2 * all * (double)scale_key_words(m) / scale.bandwidth);
        return LG_OK;
    }
    LG_TRY(lg_spread_home_end(sp));
    LG_TRY(lg_spread_swap(sp, true, scale_in_words(m), c->rows, c->whole));
    LG_TRY(meanwhile(c, scale_beside(m, false, n)));
    spend_time(c, scale_heads(m, all, heads, true) + scale_pack(m, n));
    LG_TRY(lg_spread_swap(sp, false, scale_out_words(m), c->rows, c->whole));
    LG_TRY(lg_spread_wait(sp));
    return lg_spread_home(sp, scale_state_words(m), c->home);
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
    double s = scale_copy(&c->r->m, 2 * x->n_in);
    for (uint32_t e = 0; e < x->place->n_expert; e++)
        s += scale_expert(&c->r->m, x->first[e + 1] - x->first[e]);
    return s;
}

/* A layer of one row with the help of all ranks: backend/cpu/slice.c. */
static lg_status run_sliced(rank_ctx *c, uint32_t layer, const float *xn, uint32_t *id,
                            float *w) {
    const lg_plan_model *m = &c->r->m;
    bool attn = scale_is_attn(layer);
    double n = c->r->n_rank, in = scale_product_words(m, attn),
           mixed = scale_mixed_words(m, attn);
    double mixer = scale_mixer_params(m) / n, shared = lg_plan_shared_params(m) / n;
    spend_time(c, scale_slice(m, mixer * in / (in + mixed)));
    LG_TRY(collect(c, false, in));
    LG_TRY(lg_slice_wait(&c->sl));
    if (c->rank == 0) spend_time(c, scale_states(m, 1, false));
    LG_TRY(lg_slice_copy(&c->sl, c->words, (size_t)mixed));
    spend_time(c, scale_slice(m, mixer * mixed / (in + mixed)));
    LG_TRY(collect(c, true, m->hidden));
    LG_TRY(lg_slice_wait(&c->sl));
    spend_time(c, scale_router(m) + scale_slice(m, shared * 2 / 3) + scale_copy(m, 2));
    LG_TRY(collect(c, true, lg_plan_shared_params(m) / m->hidden / 3));
    draw_rows(c->x, layer, 0, 1, id, w);
    lg_exchange_known(c->x, layer, 0, xn, id, w);
    double s = pairs_seconds(c);
    for (int i = 0; i < PIECES; i++) {
        spend_time(c, s / PIECES);
        lg_slice_progress(&c->sl);
    }
    LG_TRY(lg_slice_wait(&c->sl));
    spend_time(c, scale_slice(m, shared / 3));
    LG_TRY(bring_back(c, id));
    spend_time(c, scale_copy(m, 2.0 + c->x->k));
    return LG_OK;
}

static lg_status run_layer(rank_ctx *c, uint32_t layer, const float *xn, uint32_t *id, float *w,
                           float *out) {
    const lg_plan_model *m = &c->r->m;
    lg_exchange *x = c->x;
    uint32_t n = lg_exchange_n_own(x);
    double beside = c->r->divided ? scale_beside(m, scale_is_attn(layer), n) : 0;
    spend_time(c, scale_mixer(m, n, c->r->prompt) - beside);
    if (c->r->divided)
        LG_TRY(run_divided(c, layer));
    else if (c->r->prompt && !scale_is_attn(layer))
        spend_time(c, scale_heads(m, n, m->n_k_head, false));
    draw_rows(x, layer, x->row0[c->rank], n, id, w);
    LG_TRY(lg_exchange_start(x, layer, xn, id, w));
    compute(c, scale_shared(m, n));
    LG_TRY(lg_exchange_arrive(x));
    spend_time(c, pairs_seconds(c));
    if (x->kind == LG_EXCHANGE_STRICT) {
        LG_TRY(lg_exchange_finish(x));
        spend_time(c, scale_copy(m, (1.0 + x->k) * n));
    } else {
        LG_TRY(lg_exchange_sums(x, fill, c, out));
    }
    spend_time(c, scale_copy(m, 3.0 * n));
    return LG_OK;
}

/* Memory for a divided prompt of t rows; nobody writes it but the messages. */
static void *open_divided(rank_ctx *c, lg_comm *comm, uint32_t t) {
    const lg_plan_model *m = &c->r->m;
    uint32_t n_head = (uint32_t)m->n_k_head;
    size_t own = t / comm->n_rank + 1, heads = (n_head + comm->n_rank - 1) / comm->n_rank;
    size_t n_whole =
        t * (heads * scale_in_words(m) > scale_key_words(m) ? heads * scale_in_words(m)
                                                            : scale_key_words(m));
    lg_arena a;
    lg_arena_init(&a, NULL, 0);
    lg_spread_carve(&a, comm, n_head, &c->sp);
    size_t n_req = a.used_bytes, n_rows = own * n_head * scale_in_words(m);
    char *p = calloc(1, n_req + 4 * (n_rows + n_whole + n_head * scale_state_words(m)));
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
    double most = fmax(back, fmax(scale_product_words(m, false), scale_product_words(m, true)));
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
    scale_step *r = ctx;
    lg_comm numbers, *comm = r->s ? &numbers : &scale.real;
    lg_exchange x;
    lg_arena a;
    uint32_t k = (uint32_t)r->m.n_used, h = (uint32_t)r->m.hidden, t = 0;
    for (uint32_t q = 0; q < r->n_rank; q++) t += r->n_row[q];
    if (r->s) sim_join(r->s, rank, comm);
    lg_arena_init(&a, NULL, 0);
    lg_exchange_carve(&a, comm, &r->place, &scale.how, t, h, k, &x);
    size_t bytes = a.used_bytes;
    void *block = malloc(bytes); /* pages of it that nobody touches are never there */
    float *rows = malloc((size_t)(2 * t + 1) * h * sizeof *rows);
    float *w = malloc((size_t)(t + 1) * k * sizeof *w);
    uint32_t *id = malloc((size_t)(t + 1) * k * sizeof *id);
    LG_ASSERT(block && rows && w && id);
    memset(rows, 0, (size_t)t * h * sizeof *rows);
    lg_arena_init(&a, block, bytes);
    lg_exchange_carve(&a, comm, &r->place, &scale.how, t, h, k, &x);
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

double scale_simulate(scale_step *r) {
    lg_place_opt o = {
        .n_rank = r->n_rank, .n_layer = r->n_layer, .n_expert = (uint32_t)r->m.n_expert};
    double last = 0, most = 0;
    LG_ASSERT(lg_place_balance(&r->place, &o, NULL) == LG_OK);
    r->s = sim_open(r->n_rank, r->n_rank / scale.n_local ? r->n_rank / scale.n_local : 1,
                    &scale.links);
    sim_run(r->s, rank_body, r);
    for (uint32_t k = 0; k < r->n_rank; k++) {
        last = fmax(last, sim_clock(r->s, k));
        most = fmax(most, r->n_row[k]);
    }
    sim_close(r->s);
    lg_place_fini(&r->place);
    return last / r->n_layer * lg_plan_n_layer(&r->m) + scale_end(r, most);
}

/* The same step by real messages, some times; the median. */
double scale_measure(scale_step *r) {
    enum { ROUNDS = 3 };
    double took[ROUNDS], most = 0;
    lg_place_opt o = {
        .n_rank = r->n_rank, .n_layer = r->n_layer, .n_expert = (uint32_t)r->m.n_expert};
    LG_ASSERT(lg_place_balance(&r->place, &o, NULL) == LG_OK);
    for (int i = 0; i < ROUNDS; i++) {
        rank_body(r, scale.real.rank);
        double s = meet((double)(lg_clock_us() - r->start_us) * 1e-6) / scale.slow;
        int at = i;
        for (; at > 0 && took[at - 1] > s; at--) took[at] = took[at - 1];
        took[at] = s;
    }
    lg_place_fini(&r->place);
    for (uint32_t k = 0; k < r->n_rank; k++) most = fmax(most, r->n_row[k]);
    return took[ROUNDS / 2] / r->n_layer * lg_plan_n_layer(&r->m) + scale_end(r, most);
}
