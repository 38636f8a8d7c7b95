/* bench.c - `lignum bench`: how fast this build reads prompts and writes answers on this machine.
 *
 * Every figure goes through the whole engine: scheduler, forward pass, sampling (temperature, top-k, top-p), text.  Medians
 * with the smallest and the largest; a figure that takes long is measured fewer times.  At a depth, the texts begin with so
 * many ids that the engine has kept from an earlier request; all other ids are fresh.  Test: tests/py/run.py */
#include "cli.h"
#include "roofline.h"
#include "base/base.h"
#include "kern/kern.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_LIST      16
#define N_REPEAT      5
#define N_STEP_REPEAT 3 /* runs of a step, of many tokens each */
#define MAX_REPEAT    99
#define N_SEED        16 /* prompt tokens before a measured answer */
/* Prompt and answer of the texts before anything is measured: the first goes on until the last of many has been read. */
#define N_WARM     (LG_GDN_C + 1)
#define N_WARM_GEN 8
/* Tokens that the first of n_seq texts may have before the last begins, and some. */
#define N_BEGIN(n_seq) ((n_seq) + 2)
#define N_SPARE        (2 * LG_PAGE_TOK) /* tokens of room for each text beyond what it needs */
#define MAX_DEPTH      4
#define LONG_US                                                                                \
    10000000 /* a figure that has taken so long is not measured again, unless asked for */
#define GIB (1024.0 * 1024.0 * 1024.0)

typedef struct list {
    uint32_t v[MAX_LIST], n;
} list;

/* Tokens a second of some runs, and microseconds of processor time a token, all threads together. */
typedef struct figure {
    double v[MAX_REPEAT], cpu[MAX_REPEAT];
    uint32_t n;
    uint64_t spent_us;
} figure;

/* An answer being measured. */
typedef struct asked {
    uint64_t id;
    bool begun; /* its first token has come */
} asked;

typedef struct bench {
    const char *argv0;
    lg_options opt;
    list prompt, batch, depth;
    uint32_t n_gen, n_repeat; /* n_repeat 0: at most N_REPEAT, and no more when it takes long */
    bool json, roofline;
    lg_engine *eng;
    lg_info info;
    uint32_t *ids;    /* as many as the longest text has */
    asked *text;      /* as many as the largest batch has */
    uint64_t n_fresh; /* ids drawn so far */
    uint32_t n_busy;
    lg_beside beside;
    figure busy[MAX_LIST]; /* answers at the first depth, with busy processes beside */
    figure prefill[MAX_DEPTH][MAX_LIST], decode[MAX_DEPTH][MAX_LIST];
} bench;

/* ---- measuring ---- */

static uint32_t largest(const list *l) {
    uint32_t m = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->v[i] > m) m = l->v[i];
    return m;
}

/* A text of `depth` ids that are the same in every text of `seed`, and n_id fresh ones; t may be NULL. */
static bool submit(bench *b, uint32_t depth, uint32_t n_id, uint32_t n_gen, uint32_t seed,
                   asked *t) {
    for (uint32_t i = 0; i < depth; i++)
        b->ids[i] = (uint32_t)(lg_num_rng(2, seed, i, 0) % b->info.n_token);
    for (uint32_t i = 0; i < n_id; i++)
        b->ids[depth + i] = (uint32_t)(lg_num_rng(1, 0, b->n_fresh++, 0) % b->info.n_token);
    lg_request req = {.ids = b->ids, .n_id = depth + n_id, .max_tokens = n_gen, .user = t};
    lg_params_init(b->eng, &req.params);
    req.params.temperature = 1.0f;
    req.params.top_k = 20;
    req.params.top_p = 0.95f;
    req.params.ignore_eos = true;
    req.params.has_seed = true;
    req.params.seed = seed;
    lg_err err = {0};
    uint64_t id;
    lg_status st = lg_submit(b->eng, &req, &id, &err);
    if (st != LG_OK) fprintf(stderr, "%s: %s: %s\n", b->argv0, lg_status_name(st), err.msg);
    if (t) *t = (asked){.id = id};
    return st == LG_OK;
}

static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Take the events that are there and count their tokens; false when a text failed or did not go on from `depth`. */
static bool take_events(bench *b, uint32_t depth, uint32_t *n_tok) {
    lg_event e;
    while (lg_next_event(b->eng, &e) == LG_OK) {
        asked *t = e.user;
        if (e.kind == LG_EVENT_TOKEN) {
            ++*n_tok;
            if (t) t->begun = true;
            continue;
        }
        if (e.finish == LG_FINISH_ERROR) return false;
        if (e.n_cached == depth) continue;
        fprintf(stderr, "%s: only %u of %u ids were kept: more --memory is needed\n", b->argv0,
                e.n_cached, depth);
        return false;
    }
    return true;
}

/* Step until n_tok tokens have come.  Returns microseconds (*cpu: of the processors), 0 when the engine failed or a text did
 * not go on from `depth`. */
static uint64_t step_tokens(bench *b, uint32_t n_tok, uint32_t depth, double *cpu) {
    uint64_t start = lg_clock_us();
    double cpu_start = cpu_us();
    for (uint32_t n = 0; n < n_tok;)
        if (lg_step(b->eng) != LG_OK || !take_events(b, depth, &n)) return 0;
    uint64_t us = lg_clock_us() - start;
    *cpu = cpu_us() - cpu_start;
    return us ? us : 1;
}

/* Note a run of n_tok tokens. */
static void add_run(figure *f, uint32_t n_tok, uint64_t us, double cpu) {
    f->v[f->n] = (double)n_tok * 1e6 / (double)us;
    f->cpu[f->n++] = cpu / (double)n_tok;
}

static bool measure_prefill(bench *b, uint32_t depth, uint32_t n_id, figure *f) {
    double cpu;
    if (!submit(b, depth, n_id, 1, 0, NULL)) return false;
    uint64_t us = step_tokens(b, 1, depth, &cpu);
    if (us) add_run(f, n_id, us, cpu);
    return us != 0;
}

/* Step until each of n_seq texts has had its first token, and all run at once. */
static bool step_begun(bench *b, uint32_t n_seq, uint32_t depth) {
    for (uint32_t n = 0, ignored = 0; n < n_seq;) {
        if (lg_step(b->eng) != LG_OK || !take_events(b, depth, &ignored)) return false;
        while (n < n_seq && b->text[n].begun) n++;
    }
    lg_stats st;
    lg_get_stats(b->eng, &st);
    if (st.n_running == n_seq) return true;
    fprintf(stderr, "%s: only %u of %u texts run at the same time: more --memory is needed\n",
            b->argv0, st.n_running, n_seq);
    return false;
}

/* All sequences begin, then n_gen steps of one token each are timed; what is left of them is cancelled. */
static bool measure_decode(bench *b, uint32_t depth, uint32_t n_seq, figure *f) {
    double cpu;
    uint32_t ignored = 0;
    for (uint32_t i = 0; i < n_seq; i++)
        if (!submit(b, depth, N_SEED, N_BEGIN(n_seq) + b->n_gen, i, &b->text[i])) return false;
    if (!step_begun(b, n_seq, depth)) return false;
    uint64_t us = step_tokens(b, n_seq * b->n_gen, depth, &cpu);
    if (us) add_run(f, n_seq * b->n_gen, us, cpu);
    for (uint32_t i = 0; us && i < n_seq; i++) {
        lg_cancel(b->eng, b->text[i].id);
        if (!take_events(b, depth, &ignored)) return false;
    }
    return us != 0;
}

/* One more run of a figure, unless it has had its time. */
static bool run_figure(bench *b, figure *f, uint32_t depth, uint32_t size, bool decode) {
    uint64_t start = lg_clock_us();
    if (b->n_repeat == 0 && f->spent_us >= LONG_US) return true;
    bool ok = decode ? measure_decode(b, depth, size, f) : measure_prefill(b, depth, size, f);
    f->spent_us += lg_clock_us() - start;
    return ok;
}

/* Read the beginnings of all texts of a depth once; an end of one id leaves a snapshot right before it. */
static bool keep_beginnings(bench *b, uint32_t depth) {
    for (uint32_t i = 0, n = largest(&b->batch); depth && i < n; i++) {
        lg_event e;
        if (!submit(b, depth, 1, 1, i, NULL)) return false;
        for (bool done = false; !done;) {
            if (lg_step(b->eng) != LG_OK) return false;
            while (lg_next_event(b->eng, &e) == LG_OK) done = done || e.kind == LG_EVENT_DONE;
        }
    }
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void sort_figures(figure f[MAX_LIST]) {
    for (uint32_t i = 0; i < MAX_LIST; i++) {
        qsort(f[i].v, f[i].n, sizeof(double), by_value);
        qsort(f[i].cpu, f[i].n, sizeof(double), by_value);
    }
}

/* As many texts at once as any figure has, each long enough that its whole state is written: memory that the system gives at
 * its first use is there before anything is timed. */
static bool warm_up(bench *b) {
    uint32_t n = largest(&b->batch);
    double ignored;
    for (uint32_t i = 0; i < n; i++)
        if (!submit(b, 0, N_WARM, N_WARM_GEN, i, NULL)) return false;
    return step_tokens(b, n * N_WARM_GEN, 0, &ignored) != 0;
}

static bool measure(bench *b) {
    figure warm = {0};
    if (!warm_up(b) || !measure_prefill(b, 0, b->prompt.v[0], &warm)) return false;
    for (uint32_t d = 0; d < b->depth.n; d++)
        if (!keep_beginnings(b, b->depth.v[d])) return false;
    uint32_t n_run = b->n_repeat ? b->n_repeat : N_REPEAT;
    for (uint32_t r = 0; r < n_run; r++) {
        for (uint32_t i = 0; i < b->prompt.n; i++)
            for (uint32_t d = 0; d < b->depth.n; d++)
                if (!run_figure(b, &b->prefill[d][i], b->depth.v[d], b->prompt.v[i], false))
                    return false;
        for (uint32_t i = 0; i < b->batch.n; i++)
            for (uint32_t d = 0; d < b->depth.n; d++)
                if (!run_figure(b, &b->decode[d][i], b->depth.v[d], b->batch.v[i], true))
                    return false;
        for (uint32_t i = 0; b->n_busy && i < b->batch.n; i++) {
            lg_beside_run(&b->beside, true);
            bool ok = run_figure(b, &b->busy[i], b->depth.v[0], b->batch.v[i], true);
            lg_beside_run(&b->beside, false);
            if (!ok) return false;
        }
    }
    sort_figures(b->busy);
    for (uint32_t d = 0; d < b->depth.n; d++) {
        sort_figures(b->prefill[d]);
        sort_figures(b->decode[d]);
    }
    return true;
}

/* ---- telling ---- */

/* Bytes of weights that one token of one sequence passes through. */
static double token_bytes(const lg_info *info) {
    double share = (double)info->n_param_active / (double)info->n_param;
    return (double)info->weight_bytes * share;
}

static const figure *figure_at(const bench *b, bool decode, uint32_t depth, uint32_t i) {
    return decode ? &b->decode[depth][i] : &b->prefill[depth][i];
}

static double median(const figure *f) {
    return f->v[f->n / 2];
}

/* Microseconds of processor time a token: less disturbed by other work than the clock. */
static double middle_cpu(const figure *f) {
    return f->cpu[f->n / 2];
}

/* One line for each depth; the first is what the others are compared with. */
static void print_figures(const bench *b, bool decode, uint32_t i, double gbs) {
    uint32_t size = decode ? b->batch.v[i] : b->prompt.v[i];
    for (uint32_t d = 0; d < b->depth.n; d++) {
        const figure *g = figure_at(b, decode, d, i);
        printf("%-8s %5u", decode ? "answers" : "prompt", size);
        if (b->depth.n > 1 || b->depth.v[0]) printf(" at %6u", b->depth.v[d]);
        printf("   %10.1f   %10.1f .. %.1f", median(g), g->v[0], g->v[g->n - 1]);
        printf("   %8.3f", middle_cpu(g) * 1e-3);
        if (d) {
            const figure *base = figure_at(b, decode, 0, i);
            printf("   %.3f of that at %u, by processor time %.3f", median(g) / median(base),
                   b->depth.v[0], middle_cpu(base) / middle_cpu(g));
        }
        if (gbs > 0) printf("   %.2f GB/s of weights", gbs * median(g));
        if (g->n < N_REPEAT && b->n_repeat == 0) printf("   (%u runs)", g->n);
        printf("\n");
    }
}

/* Answers with busy processes beside: of alone, and of what an even share of the processors allows. */
static void print_busy(const bench *b, uint32_t i) {
    const figure *g = &b->busy[i];
    double alone = median(g) / median(&b->decode[0][i]);
    printf(
        "answers %6u beside %u busy   %10.1f   %10.1f .. %.1f   %.3f of alone, %.0f %% of the "
        "fair share\n",
        b->batch.v[i], b->n_busy, median(g), g->v[0], g->v[g->n - 1], alone,
        100 * alone / lg_beside_share((uint32_t)b->info.n_thread, b->n_busy));
}

static void print_text(const bench *b, const char *machine) {
    const lg_info *info = &b->info;
    printf("lignum %s\n", lg_version());
    printf("machine  %s, %d thread%s, %s kernels\n", machine, info->n_thread,
           info->n_thread == 1 ? "" : "s", lg_kern_get()->name);
    printf(
        "model    %s: %.2f M parameters, %.2f M active, weights %.3f GiB (%.1f MB a token)\n",
        info->model_name, (double)info->n_param / 1e6, (double)info->n_param_active / 1e6,
        (double)info->weight_bytes / GIB, token_bytes(info) / 1e6);
    printf("sampling temperature 1, top-k 20, top-p 0.95, in every figure; medians of %u\n",
           b->n_repeat ? b->n_repeat : N_REPEAT);
    printf("keys and values %s\n\n", lg_option_kv_name(info->kv));
    printf("                   tokens/s     min .. max     processor ms a token\n");
    for (uint32_t i = 0; i < b->prompt.n; i++) print_figures(b, false, i, 0);
    for (uint32_t i = 0; i < b->batch.n; i++)
        print_figures(b, true, i, b->batch.v[i] == 1 ? token_bytes(info) / 1e9 : 0);
    for (uint32_t i = 0; b->n_busy && i < b->batch.n; i++) print_busy(b, i);
}

static void put_figures(lg_buf *out, const bench *b, bool decode) {
    const list *l = decode ? &b->batch : &b->prompt;
    lg_buf_printf(out, ",\"%s\":[", decode ? "answers" : "prompt");
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t d = 0; d < b->depth.n; d++) {
            const figure *g = figure_at(b, decode, d, i);
            lg_buf_printf(out,
                          "%s{\"%s\":%u,\"depth\":%u,\"tokens_per_s\":%.2f,\"min\":%.2f,"
                          "\"max\":%.2f,\"cpu_ms_per_token\":%.4f,\"runs\":%u}",
                          i || d ? "," : "", decode ? "batch" : "tokens", l->v[i],
                          b->depth.v[d], median(g), g->v[0], g->v[g->n - 1],
                          middle_cpu(g) * 1e-3, g->n);
        }
    lg_buf_putc(out, ']');
}

static void print_json(const bench *b, const char *machine) {
    lg_buf out = {0};
    lg_buf_puts(&out, "{\"version\":");
    lg_json_put_string(&out, lg_version(), strlen(lg_version()));
    lg_buf_puts(&out, ",\"machine\":");
    lg_json_put_string(&out, machine, strlen(machine));
    lg_buf_puts(&out, ",\"model\":");
    lg_json_put_string(&out, b->info.model_name, strlen(b->info.model_name));
    lg_buf_printf(&out,
                  ",\"kernels\":\"%s\",\"threads\":%d,\"weight_bytes\":%llu,"
                  "\"weight_bytes_per_token\":%.0f,\"repeats\":%u,\"answer_tokens\":%u,"
                  "\"kv_type\":\"%s\"",
                  lg_kern_get()->name, b->info.n_thread,
                  (unsigned long long)b->info.weight_bytes, token_bytes(&b->info),
                  b->n_repeat ? b->n_repeat : N_REPEAT, b->n_gen,
                  lg_option_kv_name(b->info.kv));
    put_figures(&out, b, false);
    put_figures(&out, b, true);
    if (b->n_busy) {
        lg_buf_printf(&out, ",\"busy_processes\":%u,\"fair_share\":%.4f,\"beside\":[",
                      b->n_busy, lg_beside_share((uint32_t)b->info.n_thread, b->n_busy));
        for (uint32_t i = 0; i < b->batch.n; i++)
            lg_buf_printf(&out, "%s{\"batch\":%u,\"tokens_per_s\":%.2f}", i ? "," : "",
                          b->batch.v[i], median(&b->busy[i]));
        lg_buf_putc(&out, ']');
    }
    lg_buf_putc(&out, '}');
    puts(lg_buf_str(&out));
    lg_buf_fini(&out);
}

/* ---- options ---- */

static void print_help(void) {
    fputs("usage: lignum bench [OPTIONS]\n"
          "\n"
          "Measures tokens per second, sampling included: reading prompts of several lengths,\n"
          "and writing answers for one or more users at the same time.\n"
          "\n"
          "  -m, --model PATH   default: the small bundled model\n"
          "      --roofline     instead, where the time of a step goes: each operation beside "
          "the least\n"
          "                     that this machine's memory and products allow, measured in the "
          "same\n"
          "                     run (docs/PLAN.md); default --prompt 512 --batch 1,16\n"
          "      --prompt N,N   lengths of prompts; default 128,512\n"
          "      --gen N        tokens of each answer; default 64\n"
          "      --batch N,N    answers at the same time; default 1,8,32\n"
          "      --depth N,N    tokens that the texts have before that; default 0\n"
          "      --beside N     answers also with N busy processes beside; default 0\n"
          "      --repeat N     runs of each; medians are told; default 5, fewer of what takes "
          "long\n"
          "      --kv TYPE      keys and values as f32, bf16, f16 (default) or q8_0\n"
          "      --step N       rows of a step at most; default 512\n"
          "      --device D     cpu (default), or pjrt:PLUGIN.so[,name=value]... "
          "(docs/PJRT.md)\n"
          "      --threads N    default: all cores\n"
          "      --pack-dir DIR keep packed weights in DIR, or take those that are there\n"
          "      --json         print one JSON object\n"
          "      --help         print this\n",
          stdout);
}

/* Read "N,N,N". */
static bool read_list(const char *argv0, const char *option, char *text, uint32_t min,
                      uint32_t max, list *l) {
    l->n = 0;
    for (char *at = text, *next; at; at = next) {
        uint64_t v;
        next = strchr(at, ',');
        if (next) *next++ = 0;
        if (l->n == MAX_LIST) {
            fprintf(stderr, "%s: %s: at most %d values\n", argv0, option, MAX_LIST);
            return false;
        }
        if (!lg_option_u64(argv0, option, at, min, max, &v)) return false;
        l->v[l->n++] = (uint32_t)v;
    }
    return true;
}

enum {
    OPT_KV = 256,
    OPT_STEP,
    OPT_DEVICE,
    OPT_PROMPT,
    OPT_GEN,
    OPT_BATCH,
    OPT_DEPTH,
    OPT_BESIDE,
    OPT_REPEAT,
    OPT_ROOFLINE,
    OPT_THREADS,
    OPT_PACK,
    OPT_JSON,
    OPT_HELP
};

static const struct option long_options[] = {{"model", required_argument, NULL, 'm'},
                                             {"prompt", required_argument, NULL, OPT_PROMPT},
                                             {"gen", required_argument, NULL, OPT_GEN},
                                             {"batch", required_argument, NULL, OPT_BATCH},
                                             {"depth", required_argument, NULL, OPT_DEPTH},
                                             {"beside", required_argument, NULL, OPT_BESIDE},
                                             {"repeat", required_argument, NULL, OPT_REPEAT},
                                             {"roofline", no_argument, NULL, OPT_ROOFLINE},
                                             {"kv", required_argument, NULL, OPT_KV},
                                             {"step", required_argument, NULL, OPT_STEP},
                                             {"device", required_argument, NULL, OPT_DEVICE},
                                             {"threads", required_argument, NULL, OPT_THREADS},
                                             {"pack-dir", required_argument, NULL, OPT_PACK},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {NULL, 0, NULL, 0}};

static bool set_option(bench *b, int c) {
    const char *a = b->argv0;
    uint64_t v = 0;
    bool ok = true;
    switch (c) {
    case 'm': b->opt.model_path = optarg; return true;
    case OPT_PROMPT: return read_list(a, "--prompt", optarg, 1, 1u << 20, &b->prompt);
    case OPT_BATCH: return read_list(a, "--batch", optarg, 1, 4096, &b->batch);
    case OPT_DEPTH:
        if (!read_list(a, "--depth", optarg, 0, 1u << 20, &b->depth)) return false;
        if (b->depth.n <= MAX_DEPTH) return true;
        fprintf(stderr, "%s: --depth: at most %d values\n", a, MAX_DEPTH);
        return false;
    case OPT_GEN:
        ok = lg_option_u64(a, "--gen", optarg, 1, 100000, &v);
        b->n_gen = (uint32_t)v;
        return ok;
    case OPT_REPEAT:
        ok = lg_option_u64(a, "--repeat", optarg, 1, MAX_REPEAT, &v);
        b->n_repeat = (uint32_t)v;
        return ok;
    case OPT_KV: return lg_option_kv(a, optarg, &b->opt.kv);
    case OPT_STEP:
        ok = lg_option_u64(a, "--step", optarg, 1, LG_OPTION_STEP_MAX, &v);
        b->opt.n_batch_tok = (uint32_t)v;
        return ok;
    case OPT_DEVICE: b->opt.device = optarg; return true;
    case OPT_BESIDE:
        ok = lg_option_u64(a, "--beside", optarg, 0, LG_BESIDE_MAX, &v);
        b->n_busy = (uint32_t)v;
        return ok;
    case OPT_PACK: b->opt.pack_dir = optarg; return true;
    case OPT_THREADS: return lg_option_int(a, "--threads", optarg, 1, 1024, &b->opt.n_thread);
    case OPT_JSON: b->json = true; return true;
    case OPT_ROOFLINE: b->roofline = true; return true;
    default: return false;
    }
}

/* Sizes that were not asked for. */
static void set_defaults(bench *b) {
    if (!b->prompt.n)
        b->prompt = b->roofline ? (list){.v = {512}, .n = 1} : (list){.v = {128, 512}, .n = 2};
    if (!b->batch.n)
        b->batch = b->roofline ? (list){.v = {1, 16}, .n = 2} : (list){.v = {1, 8, 32}, .n = 3};
}

/* The other table, of steps without the engine. */
static bool run_roofline(bench *b) {
    char path[2048];
    if (b->opt.device || b->n_busy) {
        fprintf(stderr, "%s: --roofline: not with --device or --beside\n", b->argv0);
        return false;
    }
    lg_roofline r = {.argv0 = b->argv0,
                     .model = b->opt.model_path,
                     .pack_dir = b->opt.pack_dir,
                     .n_thread = b->opt.n_thread,
                     .kv = b->opt.kv ? b->opt.kv : LG_KV_F16,
                     .prompt = b->prompt.v,
                     .batch = b->batch.v,
                     .depth = b->depth.v,
                     .n_prompt = b->prompt.n,
                     .n_batch = b->batch.n,
                     .n_depth = b->depth.n,
                     .n_repeat = b->n_repeat ? b->n_repeat : N_STEP_REPEAT,
                     .json = b->json};
    if (!r.model) r.model = lg_load_default(path, sizeof path);
    if (r.model) return lg_roofline_run(&r);
    fprintf(stderr, "%s: no model given (--model PATH), and the bundled one is not here\n",
            b->argv0);
    return false;
}

/* Open with just the room that the figures need, and some: a text is not admitted when that would leave fewer free pages than
 * texts that run. */
static bool prepare(bench *b) {
    uint32_t longest = largest(&b->prompt),
             room = N_SEED + b->n_gen + N_BEGIN(largest(&b->batch)), depth = largest(&b->depth);
    if (room < N_WARM + N_WARM_GEN) room = N_WARM + N_WARM_GEN;
    b->opt.n_ctx = (longest > room ? longest : room) + depth + 2 + N_SPARE;
    b->opt.n_seq = largest(&b->batch);
    b->opt.no_cache = depth == 0; /* nothing comes again */
    if (!lg_load_open(b->argv0, &b->opt, &b->eng)) return false;
    lg_get_info(b->eng, &b->info);
    b->ids = lg_mem_calloc(b->opt.n_ctx, sizeof *b->ids);
    b->text = lg_mem_calloc(b->opt.n_seq, sizeof *b->text);
    return b->ids && b->text;
}

int lg_bench_main(int argc, char **argv) {
    bench b = {.argv0 = argv[0], .n_gen = 64, .depth = {.n = 1}};
    lg_options_init(&b.opt);
    for (int c; (c = getopt_long(argc, argv, "m:", long_options, NULL)) != -1;) {
        if (c == OPT_HELP) {
            print_help();
            return 0;
        }
        if (c == '?' || !set_option(&b, c)) return lg_option_usage(argv[0]);
    }
    if (optind < argc) {
        fprintf(stderr, "%s: unexpected '%s'\n", argv[0], argv[optind]);
        return lg_option_usage(argv[0]);
    }
    set_defaults(&b);
    if (b.roofline) return run_roofline(&b) ? 0 : 1;
    char machine[128];
    lg_roofline_processor(machine, sizeof machine);
    bool ok = lg_beside_start(&b.beside, b.n_busy);
    if (!ok) fprintf(stderr, "%s: %u processes could not be started\n", argv[0], b.n_busy);
    ok = ok && prepare(&b) && measure(&b);
    lg_beside_end(&b.beside);
    if (ok && b.json) print_json(&b, machine);
    if (ok && !b.json) print_text(&b, machine);
    if (!ok && b.eng) fprintf(stderr, "%s: the engine failed\n", argv[0]);
    lg_mem_free(b.ids);
    lg_mem_free(b.text);
    lg_close(&b.eng);
    return ok ? 0 : 1;
}
