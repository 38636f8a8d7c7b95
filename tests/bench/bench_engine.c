/* bench_engine.c - what the engine costs beside its backend, and what its scheduler and its kept texts are worth.
 *
 *     bench_engine overhead            microseconds a step outside the backend, 64 to 1,024 sequences (a backend that does nothing)
 *     bench_engine lookup              of texts among up to ten million kept tokens, and evictions there
 *     bench_engine stall [CASE ...]    gaps between tokens while a long prompt is read, at bounds of 3, 8 and 16 times the idle gap:
 *                                      stall.c
 *     bench_engine slots               tokens a second of two and of three answers, wherever their slots lie among eight
 *     bench_engine cache               requests a second at 64 users, kept texts on beside off
 *
 * slots and cache run the model of LG_MODEL (models/tiny-qwen35moe) on one thread, and the engine's clock is the processor
 * time of that thread, so that other work on the machine disturbs less. */
#include "engine_bench.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a backend that does nothing ---- */

static double inside_ns; /* time in its step */

struct lg_backend {
    int none;
};

static void null_plan(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                      lg_backend_plan *plan) {
    (void)cfg, (void)opt, (void)n_thread;
    *plan = (lg_backend_plan){.page_bytes = 64, .slot_bytes = 64, .snap_bytes = 64};
}

static lg_status null_open(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                           lg_backend **be, lg_err *err) {
    (void)w, (void)opt, (void)pool, (void)err;
    static lg_backend none;
    *be = &none;
    return LG_OK;
}

static void null_close(lg_backend **be) {
    *be = NULL;
}

static lg_status null_step(lg_backend *be, const lg_batch *batch, lg_step_out *out) {
    double start = bench_now_ns();
    (void)be;
    for (uint32_t i = 0; i < batch->n_seq; i++)
        if (batch->seq[i].sampler) out->sampled[i] = (lg_sampled){.id = 300 + i % 1000};
    inside_ns += bench_now_ns() - start;
    return LG_OK;
}

static void null_copy(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                      uint32_t snap) {
    (void)be, (void)owner, (void)slot, (void)n_tok, (void)snap;
}

static void null_page(lg_backend *be, uint32_t owner, uint32_t from, uint32_t to) {
    (void)be, (void)owner, (void)from, (void)to;
}

static const lg_backend_ops nothing = {.plan = null_plan,
                                       .open = null_open,
                                       .close = null_close,
                                       .step = null_step,
                                       .save = null_copy,
                                       .load = null_copy,
                                       .copy_page = null_page};

/* ---- engines ---- */

/* One step and its events; tokens and ends of `watch` (0: of all). */
static uint32_t step(lg_engine *eng, uint64_t watch, uint32_t *n_end) {
    lg_event e;
    uint32_t n = 0;
    if (lg_step(eng) < 0) exit(1);
    while (lg_next_event(eng, &e) == LG_OK) {
        if (watch && e.id != watch) continue;
        if (e.kind == LG_EVENT_TOKEN) n++;
        if (e.kind == LG_EVENT_DONE && n_end) ++*n_end;
    }
    return n;
}

/* ---- overhead ---- */

static void overhead(void) {
    static uint32_t ids[1024];
    bench_model m = bench_load(NULL, false, 1);
    lg_weights w = {
        .cfg = {.n_vocab = 4096, .n_ctx_max = 8192, .top_p = 1, .repetition_penalty = 1}};
    printf("sequences   us a step outside the backend   a sequence\n");
    for (uint32_t n_seq = 1; n_seq <= 1024; n_seq *= n_seq == 1 ? 16 : n_seq == 16 ? 4 : 2) {
        double us[5];
        lg_engine *eng = bench_open_engine(
            &m, &nothing, &w,
            &(lg_options){
                .n_ctx = 4096, .n_seq = n_seq, .n_batch_tok = 2048, .max_stall_us = 100000});
        for (uint32_t i = 0; i < n_seq; i++) {
            bench_fill(ids, 1024, i);
            bench_submit(eng, ids, 900 + i % 100, 2500);
        }
        while (step(eng, 0, NULL) < n_seq) {
        }
        for (uint32_t r = 0; r < 5; r++) {
            inside_ns = 0;
            double start = bench_now_ns();
            for (uint32_t i = 0; i < 200; i++) step(eng, 0, NULL);
            us[r] = (bench_now_ns() - start - inside_ns) / 200 * 1e-3;
        }
        double mid = bench_quantile(us, 5, 0.5);
        printf("%9u   %29.1f   %10.3f\n", n_seq, mid, mid / n_seq);
        lg_close(&eng);
    }
    bench_unload(&m);
}

/* ---- look-up and eviction ---- */

enum { TEXT = 1000, TEXT_PAGES = (TEXT + LG_PAGE_TOK - 1) / LG_PAGE_TOK };

/* Keep a text of TEXT ids of its own, with a snapshot at its half and at its end; pages are evicted when none is free. */
static void keep_text(lg_prefix *t, uint64_t seed, uint32_t *ids) {
    uint32_t page[TEXT_PAGES];
    lg_pages *p = t->pages;
    bench_fill(ids, TEXT, seed);
    if (!lg_prefix_make_room(t, TEXT_PAGES, LG_PREFIX_NONE)) exit(1);
    for (uint32_t k = 0; k < TEXT_PAGES; k++) page[k] = lg_pages_take(p);
    lg_prefix_keep(t, 0, ids, TEXT / 2, page, lg_prefix_reserve(t));
    lg_prefix_keep(t, 0, ids, TEXT, page, lg_prefix_reserve(t));
    for (uint32_t k = 0; k < TEXT_PAGES; k++) lg_pages_drop(p, page[k]);
}

/* A tree full of n texts; snap_short: snapshots run out first, else pages do. */
static void lookup_among(uint32_t n_text, bool snap_short) {
    enum { REPEAT = 2000 };
    lg_prefix t;
    lg_state st;
    uint32_t *ids = lg_mem_calloc((size_t)n_text * TEXT, sizeof *ids);
    uint32_t n_page = n_text * TEXT_PAGES + (snap_short ? 4 * TEXT_PAGES : 0);
    uint32_t n_snap = 2 * n_text + (snap_short ? 0 : 8);
    if (!ids || lg_state_init(&st, 1, n_page, 64) ||
        lg_prefix_init(&t, &st.pages, n_snap, 1, 1))
        exit(1);
    for (uint32_t i = 0; i < n_text; i++) keep_text(&t, i, ids + (size_t)i * TEXT);
    lg_prefix_hit hit;
    double start = bench_now_ns(), n_pos = 0;
    for (uint32_t i = 0; i < REPEAT; i++) {
        lg_prefix_find(&t, 0, ids + (size_t)(i * 7919u % n_text) * TEXT, TEXT, &hit);
        n_pos += hit.pos;
    }
    double find_us = (bench_now_ns() - start) / REPEAT * 1e-3;
    LG_ASSERT(n_pos == (double)REPEAT * TEXT);
    uint64_t n_evicted = t.n_evicted;
    uint32_t n = 2 * n_text < 400 ? 2 * n_text : 400;
    start = bench_now_ns();
    for (uint32_t i = 0; i < n; i++) keep_text(&t, n_text + i, ids);
    double keep_us = (bench_now_ns() - start) * 1e-3;
    n_evicted = t.n_evicted - n_evicted;
    printf("%9u %10u   %12.2f   %17.1f (%s)\n", n_text * TEXT, 2 * n_text, find_us,
           keep_us / (double)n_evicted, snap_short ? "for snapshots" : "for pages");
    lg_prefix_fini(&t);
    lg_state_fini(&st);
    lg_mem_free(ids);
}

static void lookup(void) {
    printf("kept ids  snapshots   us a look-up   us an eviction and what takes its place\n");
    for (uint32_t n = 10; n <= 10000; n *= 10) {
        lookup_among(n, false);
        lookup_among(n, true);
    }
}

/* ---- slots ---- */

enum { N_PROMPT = 64 };

/* Steps a second of answers in the slots of this set. */
static double in_slots(lg_engine *eng, uint32_t set) {
    enum { N_STEP = 40 };
    static uint32_t ids[N_PROMPT];
    double us[N_STEP];
    uint64_t id[8];
    uint32_t n = 0;
    lg_state *st = &eng->home->state;
    for (uint32_t k = 0, low = 0, high = 8; k < 8; k++) /* those of the set are taken first */
        st->slot_free[set >> k & 1 ? --high : low++] = k;
    for (uint32_t k = 0; k < 8; k++) {
        if (!(set >> k & 1)) continue;
        bench_fill(ids, N_PROMPT,
                   n); /* the same texts in all sets: others choose other experts */
        id[n++] = bench_submit(eng, ids, N_PROMPT, 0);
    }
    for (uint32_t i = 0; i < 5; i++) step(eng, 0, NULL);
    uint32_t used = 0;
    for (uint32_t i = 0; i < eng->n_run; i++) used |= 1u << eng->run[i]->slot;
    LG_ASSERT(used == set);
    for (uint32_t i = 0; i < N_STEP; i++) {
        double start = bench_now_ns();
        step(eng, 0, NULL);
        us[i] = (bench_now_ns() - start) * 1e-3;
    }
    while (n) lg_cancel(eng, id[--n]);
    step(eng, 0, NULL);
    return 1e6 / bench_quantile(us, N_STEP, 0.25);
}

static void slots(void) {
    enum { ROUND = 9 };
    static double rate[256][ROUND];
    bench_model m = bench_load(NULL, true, 1);
    lg_engine *eng = bench_open_engine(
        &m, lg_backend_cpu(), m.w, &(lg_options){.n_ctx = 512, .n_seq = 8, .no_cache = true});
    for (uint32_t r = 0; r < ROUND; r++)
        for (uint32_t set = 0; set < 256; set++)
            if (__builtin_popcount(set) == 2 || __builtin_popcount(set) == 3)
                rate[set][r] = in_slots(eng, set);
    for (int n = 2; n <= 3; n++) {
        double low = 1e30, high = 0, side = 0;
        uint32_t slowest = 0;
        for (uint32_t set = 0; set < 256; set++) {
            if (__builtin_popcount(set) != n) continue;
            double x = bench_quantile(rate[set], ROUND, 1.0); /* other work only slows */
            if (x < low) slowest = set;
            if (x < low) low = x;
            if (x > high) high = x;
            if (set == (1u << n) - 1) side = x;
        }
        printf("%d answers in slots of 8: side by side %.0f steps/s, all sets %.0f (0x%02x) to "
               "%.0f\n",
               n, side, low, slowest, high);
    }
    lg_close(&eng);
    bench_unload(&m);
}

/* ---- kept texts ---- */

/* Requests a second of 64 users who ask again when they are answered: prompts of n_same common tokens and n_own of their own. */
static double users(lg_engine *eng, uint32_t n_req, uint32_t n_same, uint32_t n_own,
                    uint64_t seed) {
    static uint32_t ids[4096];
    uint64_t start = bench_now_us();
    for (uint32_t asked = 0, over = 0; over < n_req; step(eng, 0, &over)) {
        while (asked < n_req && asked < over + 64) {
            bench_fill(ids, n_same, 5);
            bench_fill(ids + n_same, n_own, seed + asked++);
            bench_submit(eng, ids, n_same + n_own, 16);
        }
    }
    return n_req * 1e6 / (double)(bench_now_us() - start);
}

static void cache(void) {
    enum { REPEAT = 7 };
    static const struct {
        const char *name;
        uint32_t n_same, n_own;
    } load_[] = {{"prompts of 300 of their own", 0, 300},
                 {"500 shared, 50 of their own", 500, 50}};
    bench_model m = bench_load(NULL, true, 1);
    lg_engine *eng[3]; /* off, on, off again: what the machine itself makes of it */
    for (uint32_t k = 0; k < 3; k++)
        eng[k] =
            bench_open_engine(&m, lg_backend_cpu(), m.w,
                              &(lg_options){.n_ctx = 1024, .n_seq = 64, .no_cache = k != 1});
    printf(
        "64 users, 16 tokens each       requests/s off       on   on/off   off/off (medians of "
        "%d rounds)\n",
        REPEAT);
    for (size_t i = 0; i < LG_COUNT(load_); i++) {
        double rate[3][REPEAT], ratio[2][REPEAT];
        for (uint32_t r = 0; r < REPEAT; r++) {
            for (uint32_t j = 0; j < 3; j++) {
                uint32_t k = (j + r) % 3;
                rate[k][r] =
                    users(eng[k], 96, load_[i].n_same, load_[i].n_own, 1000 * r + 100000 * i);
                lg_prefix_clear(&eng[k]->home->prefix);
            }
            ratio[0][r] = rate[1][r] / rate[0][r];
            ratio[1][r] = rate[2][r] / rate[0][r];
        }
        printf("%-30s   %12.1f %8.1f   %6.3f   %7.3f\n", load_[i].name,
               bench_quantile(rate[0], REPEAT, 0.5), bench_quantile(rate[1], REPEAT, 0.5),
               bench_quantile(ratio[0], REPEAT, 0.5), bench_quantile(ratio[1], REPEAT, 0.5));
    }
    for (uint32_t k = 0; k < 3; k++) lg_close(&eng[k]);
    bench_unload(&m);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *what = argc > 1 ? argv[1] : "";
    bool all = argc == 1;
    if (all || strcmp(what, "overhead") == 0) overhead();
    if (all || strcmp(what, "lookup") == 0) lookup();
    if (all || strcmp(what, "stall") == 0) bench_stall(argc > 2 ? argc - 2 : 0, argv + 2);
    if (all || strcmp(what, "slots") == 0) slots();
    if (all || strcmp(what, "cache") == 0) cache();
    return 0;
}
