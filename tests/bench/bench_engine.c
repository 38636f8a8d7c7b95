/* bench_engine.c - what the engine costs beside its backend, and what its scheduler and its kept texts are worth.
 *
 *     bench_engine overhead            microseconds a step outside the backend, 64 to 1,024 sequences (a backend that does nothing)
 *     bench_engine lookup              of texts among up to ten million kept tokens, and evictions there
 *     bench_engine stall [N [THREADS [DEPTH]]]
 *                                      gaps between tokens while N (16384) tokens of a prompt are read, after DEPTH (0) that are kept,
 *                                      at bounds of 3, 8 and 16 times the idle gap
 *     bench_engine slots               tokens a second of two and of three answers, wherever their slots lie among eight
 *     bench_engine cache               requests a second at 64 users, kept texts on beside off
 *
 * stall and cache run the model of LG_MODEL (models/tiny-qwen35moe) on one thread, and the engine's clock is the processor
 * time of that thread, so that other work on the machine disturbs less; with more threads it is the time on the wall. */
#include "base/base.h"
#include "engine/engine.h"
#include "model/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static clockid_t clock_id = CLOCK_THREAD_CPUTIME_ID;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void die(const char *what, const lg_err *err) {
    fprintf(stderr, "bench_engine: %s: %s\n", what, err->msg);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quantile(double *v, size_t n, double q) {
    qsort(v, n, sizeof *v, by_value);
    size_t i = (size_t)(q * (double)n);
    return v[i < n ? i : n - 1];
}

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
    double start = now_ns();
    (void)be;
    for (uint32_t i = 0; i < batch->n_seq; i++)
        if (batch->seq[i].sampler) out->sampled[i] = (lg_sampled){.id = 300 + i % 1000};
    inside_ns += now_ns() - start;
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

typedef struct model {
    const char *path;
    lg_tokenizer *tok;
    lg_weights *w;
    lg_pool *pool;
} model;

static model load(bool weights, int n_thread) {
    lg_err err = {0};
    model m = {.path = getenv("LG_MODEL") ? getenv("LG_MODEL") : "models/tiny-qwen35moe"};
    if (lg_tokenizer_open(m.path, &m.tok, &err) || lg_pool_open(n_thread, &m.pool, &err))
        die(m.path, &err);
    if (weights && lg_weights_open(m.path, m.pool, NULL, NULL, &m.w, &err)) die(m.path, &err);
    return m;
}

static void unload(model *m) {
    lg_weights_close(&m->w);
    lg_tokenizer_close(&m->tok);
    lg_pool_close(&m->pool);
}

static lg_engine *open_engine(const model *m, const lg_backend_ops *ops, lg_weights *w,
                              const lg_options *opt) {
    lg_err err = {0};
    lg_engine *eng;
    lg_engine_parts parts = {.ops = ops,
                             .w = w,
                             .pool = m->pool,
                             .n_thread = lg_pool_n_thread(m->pool),
                             .tok = m->tok,
                             .name = "bench",
                             .clock_us = now_us};
    uint32_t n_token = lg_tokenizer_n_id(m->tok);
    if (n_token > w->cfg.n_vocab) n_token = w->cfg.n_vocab;
    if (lg_budget_fit(&w->cfg, opt, 0, UINT64_C(3) << 30, false, n_token, parts.n_thread,
                      ops->plan, &parts.budget, &err))
        die("budget", &err);
    parts.budget.stall_us = opt->max_stall_us;
    if (lg_engine_open(&parts, &eng, &err)) die("open", &err);
    return eng;
}

static uint64_t submit(lg_engine *eng, const uint32_t *ids, uint32_t n_id, uint32_t n_new) {
    lg_err err = {0};
    uint64_t id;
    lg_request req = {.ids = ids, .n_id = n_id, .max_tokens = n_new};
    lg_params_init(eng, &req.params);
    req.params.temperature = 0.0f;
    req.params.ignore_eos = true;
    if (lg_submit(eng, &req, &id, &err)) die("submit", &err);
    return id;
}

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

static void fill(uint32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = 300 + (uint32_t)(lg_num_rng(seed, 0, i, 0) % 3000);
}

/* ---- overhead ---- */

static void overhead(void) {
    static uint32_t ids[1024];
    model m = load(false, 1);
    lg_weights w = {
        .cfg = {.n_vocab = 4096, .n_ctx_max = 8192, .top_p = 1, .repetition_penalty = 1}};
    printf("sequences   us a step outside the backend   a sequence\n");
    for (uint32_t n_seq = 1; n_seq <= 1024; n_seq *= n_seq == 1 ? 16 : n_seq == 16 ? 4 : 2) {
        double us[5];
        lg_engine *eng = open_engine(
            &m, &nothing, &w,
            &(lg_options){
                .n_ctx = 4096, .n_seq = n_seq, .n_batch_tok = 2048, .max_stall_us = 100000});
        for (uint32_t i = 0; i < n_seq; i++) {
            fill(ids, 1024, i);
            submit(eng, ids, 900 + i % 100, 2500);
        }
        while (step(eng, 0, NULL) < n_seq) {
        }
        for (uint32_t r = 0; r < 5; r++) {
            inside_ns = 0;
            double start = now_ns();
            for (uint32_t i = 0; i < 200; i++) step(eng, 0, NULL);
            us[r] = (now_ns() - start - inside_ns) / 200 * 1e-3;
        }
        double mid = quantile(us, 5, 0.5);
        printf("%9u   %29.1f   %10.3f\n", n_seq, mid, mid / n_seq);
        lg_close(&eng);
    }
    unload(&m);
}

/* ---- look-up and eviction ---- */

enum { TEXT = 1000, TEXT_PAGES = (TEXT + LG_PAGE_TOK - 1) / LG_PAGE_TOK };

/* Keep a text of TEXT ids of its own, with a snapshot at its half and at its end; pages are evicted when none is free. */
static void keep_text(lg_prefix *t, uint64_t seed, uint32_t *ids) {
    uint32_t page[TEXT_PAGES];
    lg_pages *p = t->pages;
    fill(ids, TEXT, seed);
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
    double start = now_ns(), n_pos = 0;
    for (uint32_t i = 0; i < REPEAT; i++) {
        lg_prefix_find(&t, 0, ids + (size_t)(i * 7919u % n_text) * TEXT, TEXT, &hit);
        n_pos += hit.pos;
    }
    double find_us = (now_ns() - start) / REPEAT * 1e-3;
    LG_ASSERT(n_pos == (double)REPEAT * TEXT);
    uint64_t n_evicted = t.n_evicted;
    uint32_t n = 2 * n_text < 400 ? 2 * n_text : 400;
    start = now_ns();
    for (uint32_t i = 0; i < n; i++) keep_text(&t, n_text + i, ids);
    double keep_us = (now_ns() - start) * 1e-3;
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

/* ---- stalls ---- */

static const lg_backend_ops cpu = {.plan = lg_backend_plan_bytes,
                                   .open = lg_backend_open,
                                   .close = lg_backend_close,
                                   .step = lg_backend_step,
                                   .save = lg_backend_save,
                                   .load = lg_backend_load,
                                   .copy_page = lg_backend_copy_page};

enum { N_ANSWER = 4, N_PROMPT = 64, MAX_GAP = 1 << 18 };

/* Answers in the making; one that has ended is asked for again and begins from its kept prompt, so their depth stays alike. */
typedef struct crowd {
    lg_engine *eng;
    uint64_t id[N_ANSWER];
} crowd;

static void ask(crowd *c, uint32_t i) {
    uint32_t ids[N_PROMPT];
    fill(ids, N_PROMPT, i);
    c->id[i] = submit(c->eng, ids, N_PROMPT, 256 + 64 * i);
}

/* One step, timed; true when the sequence `watch` has its first token. */
static bool beside(crowd *c, uint64_t watch, double *us) {
    lg_event e;
    bool first = false, over[N_ANSWER] = {false};
    double start = now_ns();
    if (lg_step(c->eng) < 0) exit(1);
    while (lg_next_event(c->eng, &e) == LG_OK) {
        first |= e.id == watch && e.kind == LG_EVENT_TOKEN;
        for (uint32_t i = 0; i < N_ANSWER; i++)
            over[i] |= e.id == c->id[i] && e.kind == LG_EVENT_DONE;
    }
    *us = (now_ns() - start) * 1e-3;
    for (uint32_t i = 0; i < N_ANSWER; i++)
        if (over[i]) ask(c, i);
    return first;
}

typedef struct reading {
    uint32_t n_gap;
    double p50_us, p99_us, worst_us, mean_us;
    double rate, all; /* prompt tokens a second, and tokens of answers with them */
} reading;

/* Read a prompt beside the running answers: n ids of this seed, after `depth` that are always the same. */
static reading read_prompt(crowd *c, uint32_t depth, uint32_t n, uint64_t seed) {
    static double gap[MAX_GAP];
    reading r = {0};
    lg_stats before, after;
    uint32_t *ids = lg_mem_calloc(depth + n, sizeof *ids);
    fill(ids, depth, 1000);
    fill(ids + depth, n, seed);
    lg_get_stats(c->eng, &before);
    uint64_t id = submit(c->eng, ids, depth + n, 2);
    double start = now_ns();
    while (r.n_gap < MAX_GAP && !beside(c, id, &gap[r.n_gap++])) {
    }
    double sec = (now_ns() - start) * 1e-9;
    lg_cancel(c->eng, id);
    lg_get_stats(c->eng, &after);
    r.rate = (double)(after.n_prefill_tok - before.n_prefill_tok) / sec;
    r.all = r.rate + (double)(after.n_decode_tok - before.n_decode_tok) / sec;
    for (uint32_t i = 0; i < r.n_gap; i++) r.mean_us += gap[i] / r.n_gap;
    r.p50_us = quantile(gap, r.n_gap, 0.5);
    r.p99_us = quantile(gap, r.n_gap, 0.99);
    r.worst_us = gap[r.n_gap - 1];
    lg_mem_free(ids);
    if (!depth) /* the next one finds pages that were touched before */
        lg_prefix_clear(&c->eng->home->prefix);
    return r;
}

/* left: what a bound of `us` leaves of the unbounded rate beside steps that the answers need alone.
 * fits: what it would let through if every step took exactly so long, at the time a row that was measured at this bound.
 * all: tokens of the answers counted too, of those without a bound. */
static void stall(uint32_t n, int n_thread, uint32_t depth) {
    static const double bound[] = {3, 8, 16};
    static double gap[600];
    reading r[LG_COUNT(bound)];
    double error[LG_COUNT(bound)];
    if (n_thread != 1) clock_id = CLOCK_MONOTONIC;
    model m = load(true, n_thread);
    uint32_t n_ctx = depth + n + 4096;
    m.w->cfg.n_ctx_max = n_ctx;
    crowd c = {open_engine(&m, &cpu, m.w, &(lg_options){.n_ctx = n_ctx, .n_seq = 8}), {0}};
    for (uint32_t i = 0; i < N_ANSWER; i++) ask(&c, i);
    for (uint32_t i = 0; i < 600; i++) beside(&c, 0, &gap[i]);
    double idle = quantile(gap, 600, 0.5);
    printf("%d answers, idle gap %.0f us (p99 %.0f); %u tokens of a prompt after %u\n",
           N_ANSWER, idle, quantile(gap, 600, 0.99), n, depth);
    read_prompt(&c, depth, n < 4096 ? n : 4096, 99); /* what a server has seen before */
    reading free = read_prompt(&c, depth, n, 98);
    for (size_t i = 0; i < LG_COUNT(bound); i++) {
        lg_stats a, b;
        c.eng->sched.stall_us = (uint64_t)(bound[i] * idle);
        lg_get_stats(c.eng, &a);
        r[i] = read_prompt(&c, depth, n, 10 + i);
        lg_get_stats(c.eng, &b);
        error[i] =
            (double)(b.mixed_error_us - a.mixed_error_us) / (double)(b.mixed_us - a.mixed_us);
    }
    c.eng->sched.stall_us = 0;
    reading again =
        read_prompt(&c, depth, n, 97); /* the machine may have become faster or slower */
    free.rate = (free.rate + again.rate) / 2;
    free.all = (free.all + again.all) / 2;
    printf("without a bound: %.0f tokens/s, gaps p50 %.0f p99 %.0f us\n", free.rate,
           free.p50_us, free.p99_us);
    printf("bound us   gap p50      p99    worst   p99/bound   tokens/s   of unbounded   of "
           "left   "
           "of fits   of all   error of the model\n");
    for (size_t i = 0; i < LG_COUNT(bound); i++) {
        double us = bound[i] * idle, left = free.rate * (1 - idle / us);
        double fits = (r[i].mean_us - idle) / (us - idle) * us / r[i].mean_us;
        printf("%2.0fx %6.0f   %7.0f  %7.0f  %7.0f   %9.2f   %8.0f   %12.0f   %7.0f   %7.0f   "
               "%6.0f   %16.1f %%\n",
               bound[i], us, r[i].p50_us, r[i].p99_us, r[i].worst_us, r[i].p99_us / us,
               r[i].rate, 100 * r[i].rate / free.rate, 100 * r[i].rate / left, 100 * fits,
               100 * r[i].all / free.all, 100 * error[i]);
    }
    lg_close(&c.eng);
    unload(&m);
}

/* ---- slots ---- */

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
        fill(ids, N_PROMPT, n); /* the same texts in all sets: others choose other experts */
        id[n++] = submit(eng, ids, N_PROMPT, 0);
    }
    for (uint32_t i = 0; i < 5; i++) step(eng, 0, NULL);
    uint32_t used = 0;
    for (uint32_t i = 0; i < eng->n_run; i++) used |= 1u << eng->run[i]->slot;
    LG_ASSERT(used == set);
    for (uint32_t i = 0; i < N_STEP; i++) {
        double start = now_ns();
        step(eng, 0, NULL);
        us[i] = (now_ns() - start) * 1e-3;
    }
    while (n) lg_cancel(eng, id[--n]);
    step(eng, 0, NULL);
    return 1e6 / quantile(us, N_STEP, 0.25);
}

static void slots(void) {
    enum { ROUND = 9 };
    static double rate[256][ROUND];
    model m = load(true, 1);
    lg_engine *eng =
        open_engine(&m, &cpu, m.w, &(lg_options){.n_ctx = 512, .n_seq = 8, .no_cache = true});
    for (uint32_t r = 0; r < ROUND; r++)
        for (uint32_t set = 0; set < 256; set++)
            if (__builtin_popcount(set) == 2 || __builtin_popcount(set) == 3)
                rate[set][r] = in_slots(eng, set);
    for (int n = 2; n <= 3; n++) {
        double low = 1e30, high = 0, side = 0;
        uint32_t slowest = 0;
        for (uint32_t set = 0; set < 256; set++) {
            if (__builtin_popcount(set) != n) continue;
            double x = quantile(rate[set], ROUND, 1.0); /* other work only slows */
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
    unload(&m);
}

/* ---- kept texts ---- */

/* Requests a second of 64 users who ask again when they are answered: prompts of n_same common tokens and n_own of their own. */
static double users(lg_engine *eng, uint32_t n_req, uint32_t n_same, uint32_t n_own,
                    uint64_t seed) {
    static uint32_t ids[4096];
    uint64_t start = now_us();
    for (uint32_t asked = 0, over = 0; over < n_req; step(eng, 0, &over)) {
        while (asked < n_req && asked < over + 64) {
            fill(ids, n_same, 5);
            fill(ids + n_same, n_own, seed + asked++);
            submit(eng, ids, n_same + n_own, 16);
        }
    }
    return n_req * 1e6 / (double)(now_us() - start);
}

static void cache(void) {
    enum { REPEAT = 7 };
    static const struct {
        const char *name;
        uint32_t n_same, n_own;
    } load_[] = {{"prompts of 300 of their own", 0, 300},
                 {"500 shared, 50 of their own", 500, 50}};
    model m = load(true, 1);
    lg_engine *eng[3]; /* off, on, off again: what the machine itself makes of it */
    for (uint32_t k = 0; k < 3; k++)
        eng[k] = open_engine(&m, &cpu, m.w,
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
               quantile(rate[0], REPEAT, 0.5), quantile(rate[1], REPEAT, 0.5),
               quantile(ratio[0], REPEAT, 0.5), quantile(ratio[1], REPEAT, 0.5));
    }
    for (uint32_t k = 0; k < 3; k++) lg_close(&eng[k]);
    unload(&m);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *what = argc > 1 ? argv[1] : "";
    bool all = argc == 1;
    if (all || strcmp(what, "overhead") == 0) overhead();
    if (all || strcmp(what, "lookup") == 0) lookup();
    uint32_t num[] = {16384, 1, 0};
    for (int i = 0; i < 3 && argc > i + 2; i++) num[i] = (uint32_t)atoi(argv[i + 2]);
    if (all || strcmp(what, "stall") == 0) stall(num[0], (int)num[1], num[2]);
    if (all || strcmp(what, "slots") == 0) slots();
    if (all || strcmp(what, "cache") == 0) cache();
    return 0;
}
