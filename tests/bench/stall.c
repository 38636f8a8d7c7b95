/* stall.c - gaps between the tokens of four answers while a long prompt is read: how well --max-stall holds, and what it costs.
 *
 *     bench_engine stall [[MODEL,]THREADS,DEPTH,N[,KV] ...]
 *
 * A case reads N tokens of a prompt, or as many as 12 s let it, after DEPTH that are there already; KV as --kv.  Without cases: the model
 * of LG_MODEL on one thread, 4,096 tokens at 0, 30,720 and 61,440, then all of 65,536, as long as that takes.
 *
 * What is there already was not computed: one page of real keys and values, copied, and an empty state.  Times are those of a
 * real text, since they depend on how much is read, not on what.
 * Target: p99/bound at most 1.10, share at least 80 %, cost at 3x on the bundled model below 15 % (tokens of prompt and answers
 * a second, beside those without a bound).
 * "Could": first, steps with fixed numbers of prompt rows are timed at that depth (medians); a straight line between them says how many
 * rows a step of exactly the bound has room for, so what the best scheduler would read with these kernels.
 * One thread: processor time, which other work on the machine disturbs less; several: time on the wall. */
#include "engine_bench.h"

#include "backend/cpu/cpu.h"
#include "base/base.h"
#include "kern/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_ANSWER = 4,
    N_PROMPT = 64,
    MAX_GAP = 1 << 18,
    N_IDLE = 400,
    N_SIZE = 10,
    N_TIMED = 15
};

#define LIMIT_S 12.0       /* of one reading */
#define ALIKE   4096       /* tokens of a prompt over which its depth changes little */
#define IDLE_S  4.0        /* of the steps without a prompt */
#define WIDE_US 4e5        /* of a step: wider ones are not timed */
#define PIECE   (1u << 20) /* bytes that a task reads */

static const uint32_t size_of[N_SIZE] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 508};

/* Answers in the making; one that has ended is asked for again and begins from its kept prompt, so their depth stays alike. */
typedef struct crowd {
    lg_engine *eng;
    uint64_t id[N_ANSWER];
    uint32_t depth, n;
    double limit_s;
    double idle_us, size_us[N_SIZE]; /* a step without prompt rows; with so many */
} crowd;

static void ask(crowd *c, uint32_t i) {
    uint32_t ids[N_PROMPT];
    bench_fill(ids, N_PROMPT, i);
    c->id[i] = bench_submit(c->eng, ids, N_PROMPT, 256 + 64 * i);
}

/* One step, timed; true when the sequence `watch` has its first token. */
static bool beside(crowd *c, uint64_t watch, double *us) {
    lg_event e;
    bool first = false, over[N_ANSWER] = {false};
    double start = bench_now_ns();
    if (lg_step(c->eng) < 0) exit(1);
    while (lg_next_event(c->eng, &e) == LG_OK) {
        first |= e.id == watch && e.kind == LG_EVENT_TOKEN;
        for (uint32_t i = 0; i < N_ANSWER; i++)
            over[i] |= e.id == c->id[i] && e.kind == LG_EVENT_DONE;
    }
    *us = (bench_now_ns() - start) * 1e-3;
    for (uint32_t i = 0; i < N_ANSWER; i++)
        if (over[i]) ask(c, i);
    return first;
}

/* ---- a text that is there already ---- */

/* A page that a real prompt has filled. */
static void *real_page(lg_engine *eng) {
    uint32_t ids[LG_PAGE_TOK + 2];
    lg_event e;
    bool over = false;
    void *bytes = lg_mem_alloc(eng->parts.budget.page_bytes);
    LG_ASSERT(bytes);
    bench_fill(ids, LG_COUNT(ids), 1001);
    bench_submit(eng, ids, LG_COUNT(ids), 2);
    while (!over) {
        if (lg_step(eng) < 0) exit(1);
        const lg_state *st = &eng->home->state;
        if (eng->n_run && eng->run[0]->n_done >= LG_PAGE_TOK)
            eng->parts.ops->get_page(eng->be, 0,
                                     st->page[(size_t)eng->run[0]->slot * st->max_page],
                                     LG_PAGE_TOK, bytes);
        while (lg_next_event(eng, &e) == LG_OK) over |= e.kind == LG_EVENT_DONE;
    }
    return bytes;
}

/* Keep bench_fill(depth, 1000), whole pages, in the tree. */
static void keep_depth(lg_engine *eng, uint32_t depth) {
    lg_prefix *t = &eng->home->prefix;
    uint32_t n_page = depth / LG_PAGE_TOK;
    uint32_t *ids = lg_mem_calloc(depth, sizeof *ids),
             *page = lg_mem_calloc(n_page, sizeof *page);
    void *bytes = real_page(eng);
    lg_backend_plan plan;
    eng->parts.ops->plan(&eng->parts.w->cfg, &eng->parts.budget.opt, eng->parts.n_thread,
                         &plan);
    uint64_t part = plan.snap_bytes / plan.n_snap_part;
    void *state = lg_mem_calloc(1, part);
    LG_ASSERT(ids && page && state && lg_prefix_make_room(t, n_page, LG_PREFIX_NONE));
    bench_fill(ids, depth, 1000);
    for (uint32_t i = 0; i < n_page; i++) {
        page[i] = lg_pages_take(t->pages);
        eng->parts.ops->put_page(eng->be, 0, page[i], bytes);
    }
    uint32_t snap = lg_prefix_reserve(t);
    for (uint32_t i = 0; i < plan.n_snap_part; i++)
        eng->parts.ops->put_snap(eng->be, 0, snap, i, state);
    LG_ASSERT(lg_prefix_keep(t, 0, ids, depth, page, snap));
    for (uint32_t i = 0; i < n_page; i++) lg_pages_drop(t->pages, page[i]);
    lg_mem_free(ids);
    lg_mem_free(page);
    lg_mem_free(bytes);
    lg_mem_free(state);
}

/* Ask for a prompt: n ids of this seed after those that are there. */
static uint64_t ask_prompt(crowd *c, uint32_t n, uint64_t seed) {
    uint32_t *ids = lg_mem_calloc(c->depth + n, sizeof *ids);
    LG_ASSERT(ids);
    bench_fill(ids, c->depth, 1000);
    bench_fill(ids + c->depth, n, seed);
    uint64_t id = bench_submit(c->eng, ids, c->depth + n, 2);
    lg_mem_free(ids);
    return id;
}

/* What a reading has left in memory is not of use; the next one finds pages that were touched before. */
static void forget(crowd *c, uint64_t id) {
    double us;
    lg_cancel(c->eng, id);
    beside(c, 0, &us);
    if (c->depth) return; /* their beginning is to stay, and the rest is the first to go */
    lg_prefix_clear(&c->eng->home->prefix);
}

/* ---- steps of fixed sizes ---- */

static void time_sizes(crowd *c) {
    uint32_t was = c->eng->sched.n_batch_tok, n = 0;
    double us[N_TIMED];
    for (uint32_t k = 0; k < N_SIZE; k++)
        n += size_of[k] * (size_of[k] < 64 ? N_TIMED + 3 : N_TIMED / 3 + 3);
    c->eng->sched.stall_us = 0;
    uint64_t id = ask_prompt(c, n + 64, 50);
    for (uint32_t k = 0; k < N_SIZE; k++) {
        c->eng->sched.n_batch_tok = N_ANSWER + size_of[k];
        if (k > 1 && c->size_us[k - 1] > WIDE_US) { /* as the two before */
            double slope =
                (c->size_us[k - 1] - c->size_us[k - 2]) / (size_of[k - 1] - size_of[k - 2]);
            c->size_us[k] = c->size_us[k - 1] + slope * (size_of[k] - size_of[k - 1]);
            continue;
        }
        for (uint32_t i = 0; i < 2; i++) beside(c, id, us);
        uint32_t n_timed = size_of[k] < 64 ? N_TIMED : N_TIMED / 3;
        for (uint32_t i = 0; i < n_timed; i++) beside(c, id, &us[i]);
        c->size_us[k] = bench_quantile(us, n_timed, 0.5);
    }
    c->eng->sched.n_batch_tok = was;
    forget(c, id);
}

/* Prompt rows that fit into a step of so long; 0: not even one. */
static double rows_within(const crowd *c, double us) {
    if (us < c->size_us[0]) return 0;
    uint32_t k = 1;
    while (k < N_SIZE - 1 && c->size_us[k] < us) k++;
    double slope = (c->size_us[k] - c->size_us[k - 1]) / (size_of[k] - size_of[k - 1]);
    return size_of[k - 1] + (us - c->size_us[k - 1]) / slope;
}

/* ---- what one row reads ---- */

typedef struct memory {
    const uint8_t *at;
    size_t n_byte;
} memory;

static void read_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const memory *m = ctx;
    lg_peak_read(m->at + task * PIECE, PIECE);
}

/* Microseconds in which all threads read as many bytes of the pool of pages as one row does at the end of the prompt. */
static double read_us(const crowd *c, const bench_model *m, double *mb) {
    const lg_backend *be = c->eng->be;
    double row = (double)(c->depth + c->n) / LG_PAGE_TOK * (double)be->lay.page, best = 1e30;
    size_t all = (size_t)c->eng->parts.budget.opt.n_page * be->lay.page;
    memory r = {(const uint8_t *)(((uintptr_t)be->page + 63) / 64 * 64), (size_t)row};
    if (r.n_byte > all - 64) r.n_byte = all - 64;
    r.n_byte = r.n_byte / PIECE * PIECE;
    *mb = row * 1e-6;
    for (int i = 0; i < 9 && r.n_byte; i++) {
        double start = bench_now_ns();
        lg_pool_run(m->pool, r.n_byte / PIECE, read_task, &r);
        double us = (bench_now_ns() - start) * 1e-3;
        if (us < best) best = us;
    }
    return r.n_byte ? best * row / (double)r.n_byte : 0;
}

static void print_sizes(const crowd *c, const bench_model *m) {
    const lg_config *cfg = &m->w->cfg;
    double mb, us = read_us(c, m, &mb), macs = 0;
    for (uint32_t i = 0; i < cfg->n_layer; i++)
        if (cfg->layer[i] == LG_LAYER_ATTN) macs += 2.0 * cfg->n_head * cfg->d_head;
    macs *= c->depth + c->n;
    double peak = lg_peak_fma512_gmacs() > 0 ? lg_peak_fma512_gmacs() : lg_peak_fma_gmacs();
    peak *= lg_pool_n_thread(m->pool);
    printf("a step, us: no prompt row %.0f", c->idle_us);
    for (uint32_t k = 0; k < N_SIZE; k++) printf("; %u: %.0f", size_of[k], c->size_us[k]);
    printf("\na row at %u: %.0f us more than none, of 16 rows each %.0f more; its keys and "
           "values, "
           "%.1f MB, are read in %.0f us (%.1f GB/s), its %.0f M products take %.0f (%.0f "
           "GMAC/s)\n",
           c->depth, c->size_us[0] - c->idle_us, (c->size_us[4] - c->idle_us) / 16, mb, us,
           us > 0 ? mb / us * 1e3 : 0, macs * 1e-6, peak > 0 ? macs / peak * 1e-3 : 0, peak);
}

/* ---- readings ---- */

typedef struct reading {
    uint32_t n_gap;
    double p50_us, p99_us, worst_us;
    double rate, all; /* prompt tokens a second, and tokens of answers with them */
    double rows;      /* of the prompt, a step */
    double error;     /* of the cost model, share */
} reading;

/* Read the prompt beside the running answers. */
static reading read_prompt(crowd *c, uint32_t n, double bound_us, uint64_t seed) {
    static double gap[MAX_GAP];
    reading r = {0};
    lg_stats a, b;
    double start = bench_now_ns(), sec = 0;
    c->eng->sched.stall_us = (uint64_t)bound_us;
    lg_get_stats(c->eng, &a);
    uint64_t id = ask_prompt(c, n, seed);
    while (r.n_gap < MAX_GAP && sec < c->limit_s && !beside(c, id, &gap[r.n_gap++]))
        sec = (bench_now_ns() - start) * 1e-9;
    sec = (bench_now_ns() - start) * 1e-9;
    lg_get_stats(c->eng, &b);
    c->eng->sched.stall_us = 0;
    forget(c, id);
    double n_tok = (double)(b.n_prefill_tok - a.n_prefill_tok);
    r.rate = n_tok / sec;
    r.rows = n_tok / r.n_gap;
    r.all = r.rate + (double)(b.n_decode_tok - a.n_decode_tok) / sec;
    if (b.mixed_us > a.mixed_us)
        r.error =
            (double)(b.mixed_error_us - a.mixed_error_us) / (double)(b.mixed_us - a.mixed_us);
    r.p50_us = bench_quantile(gap, r.n_gap, 0.5);
    r.p99_us = bench_quantile(gap, r.n_gap, 0.99);
    r.worst_us = gap[r.n_gap - 1];
    return r;
}

static void compare(crowd *c) {
    static const double bound[] = {3, 8, 16};
    reading r[LG_COUNT(bound)];
    double limit_s = c->limit_s;
    c->limit_s = LIMIT_S / 4;
    read_prompt(c, c->n < 4096 ? c->n : 4096, 0, 99); /* what a server has seen before */
    c->limit_s = limit_s;
    reading free = read_prompt(c, c->n, 0, 98);
    for (size_t i = 0; i < LG_COUNT(bound); i++)
        r[i] = read_prompt(c, c->n, bound[i] * c->idle_us, 10 + i);
    reading again = read_prompt(c, c->n, 0, 97); /* the machine may be faster or slower now */
    free.rate = (free.rate + again.rate) / 2;
    free.all = (free.all + again.all) / 2;
    printf("no bound: %.0f tokens/s, %.0f rows a step, gaps p50 %.0f p99 %.0f us\n", free.rate,
           free.rows, free.p50_us, free.p99_us);
    printf(
        "bound us      gap p50     p99   worst   p99/bound   rows a step  tokens/s   could   "
        "share   of no bound   cost, answers counted   model off\n");
    for (size_t i = 0; i < LG_COUNT(bound); i++) {
        double us = bound[i] * c->idle_us, rows = rows_within(c, us), could = rows / us * 1e6;
        char share[32] = "no row fits", rate[32] = "-";
        if (c->n > ALIKE) { /* what fits at the beginning says little of the end */
            snprintf(share, sizeof share, "-");
        } else if (rows > 0) {
            snprintf(rate, sizeof rate, "%.0f", could);
            snprintf(share, sizeof share, "%.0f %%", 100 * r[i].rate / could);
        }
        printf("%2.0fx %7.0f   %7.0f %7.0f %7.0f   %9.2f   %11.1f  %8.0f %7s %7s   %9.0f %%   "
               "%18.0f %%   %7.1f %%\n",
               bound[i], us, r[i].p50_us, r[i].p99_us, r[i].worst_us, r[i].p99_us / us,
               r[i].rows, r[i].rate, rate, share, 100 * r[i].rate / free.rate,
               100 - 100 * r[i].all / free.all, 100 * r[i].error);
    }
}

typedef struct case_ {
    const char *path;
    int n_thread;
    uint32_t depth, n;
    lg_kv_type kv;
    double limit_s;
} case_;

static void run(const case_ *k) {
    double gap[N_IDLE];
    crowd c = {.depth = k->depth / LG_PAGE_TOK * LG_PAGE_TOK, .n = k->n, .limit_s = k->limit_s};
    bench_clock = k->n_thread == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    bench_model m = bench_load(k->path, true, k->n_thread);
    uint32_t n_ctx = c.depth + (c.n > 24576 ? c.n : 24576) + 4096;
    m.w->cfg.n_ctx_max = n_ctx;
    c.eng = bench_open_engine(&m, lg_backend_cpu(), m.w,
                              &(lg_options){.n_ctx = n_ctx, .n_seq = 8, .kv = k->kv});
    if (c.depth) keep_depth(c.eng, c.depth);
    for (uint32_t i = 0; i < N_ANSWER; i++) ask(&c, i);
    uint32_t n_idle = 0;
    double start = bench_now_ns();
    while (n_idle < N_IDLE && (n_idle < 30 || bench_now_ns() - start < IDLE_S * 1e9))
        beside(&c, 0, &gap[n_idle++]);
    c.idle_us = bench_quantile(gap, n_idle, 0.5);
    printf("\n%s, %s, %d threads, keys and values in %s: %d answers, idle gap %.0f us (p99 "
           "%.0f); %u tokens of a prompt after %u\n",
           m.path, lg_kern_get()->name, lg_pool_n_thread(m.pool),
           lg_dtype_name(c.eng->parts.budget.opt.kv), N_ANSWER, c.idle_us,
           bench_quantile(gap, n_idle, 0.99), c.n, c.depth);
    time_sizes(&c);
    print_sizes(&c, &m);
    compare(&c);
    lg_close(&c.eng);
    bench_unload(&m);
}

static bool parse_kv(const char *name, lg_kv_type *kv) {
    for (int i = 0; i < 16; i++)
        if (lg_kv_of((lg_kv_type)i) != LG_N_DTYPE &&
            strcmp(lg_dtype_name(lg_kv_of((lg_kv_type)i)), name) == 0) {
            *kv = (lg_kv_type)i;
            return true;
        }
    return false;
}

static bool parse(char *text, case_ *k) {
    char *field[5] = {0};
    int n = 0, at = 0;
    for (char *p = strtok(text, ","); p && n < 5; p = strtok(NULL, ",")) field[n++] = p;
    *k = (case_){.limit_s = LIMIT_S};
    if (n && (field[0][0] < '0' || field[0][0] > '9')) k->path = field[at++];
    if (n - at < 3 || n - at > 4) return false;
    k->n_thread = atoi(field[at]);
    k->depth = (uint32_t)atoi(field[at + 1]);
    k->n = (uint32_t)atoi(field[at + 2]);
    return k->n_thread > 0 && k->n > 0 && (n - at == 3 || parse_kv(field[at + 3], &k->kv));
}

void bench_stall(int n_case, char **text) {
    case_ whole = {.n_thread = 1, .n = 65536, .limit_s = 1e9};
    case_ part = {.n_thread = 1, .n = 4096, .limit_s = LIMIT_S};
    if (n_case == 0) {
        for (part.depth = 0; part.depth <= 61440; part.depth += 30720) run(&part);
        run(&whole);
    }
    for (int i = 0; i < n_case; i++) {
        case_ k;
        if (!parse(text[i], &k)) {
            fprintf(stderr, "bench_engine: a case is [MODEL,]THREADS,DEPTH,N[,KV]\n");
            exit(2);
        }
        run(&k);
    }
}
