/* roofline.c - time of each operation of a step beside its limit: see roofline.h.
 *
 * Steps of the CPU backend alone, without the engine: chunks of a prompt, answers, and both in one step, behind texts of some length
 * (pages are copies of one real page; states are real).  The backend says where its time goes (lg_profile); src/plan says what the
 * step needs at least, from peaks that are measured before and after.  Thread: the caller's, and the pool's. */
#include "roofline.h"
#include "cli.h"

#include "backend/backend.h"
#include "base/base.h"
#include "engine/engine.h"
#include "kern/peak.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CASE   160 /* more than lists of options can ask for: (16 + 16 + 2) x 4 */
#define MAX_REPEAT 99
#define N_FILL     64 /* tokens that are really read before a text of any length */

/* A step: n_one answers of one token, and a chunk of n_chunk prompt tokens, each behind `depth`. */
typedef struct shape {
    uint32_t n_one, n_chunk, depth;
} shape;

/* What one took, and what its batch was. */
typedef struct outcome {
    shape s;
    double us[LG_N_OP], total_us; /* of a step: medians, each of its own runs */
    double min_us, max_us;
    lg_plan_batch batch;
} outcome;

typedef struct roofline {
    const lg_roofline *r;
    lg_pool *pool;
    lg_weights *w;
    lg_backend *be;
    lg_plan_cpu cpu;
    lg_plan_hw hw;
    lg_peak peak;
    lg_profile profile;
    uint32_t n_seq, n_page; /* sequences, pages of each */
    uint32_t *page, *tok;
    lg_batch_seq *seq;
    lg_sampler *sampler;
    lg_sampled *sampled;
    uint64_t n_fresh;
    outcome out[MAX_CASE];
    uint32_t n_out;
} roofline;

/* ---- the machine ---- */

static bool measure_peaks(const char *argv0, lg_pool *pool, lg_peak *best) {
    lg_peak p;
    if (!lg_peak_measure(pool, &p)) {
        fprintf(stderr,
                "%s: the limits of this processor are not known (x86-64 with AVX2 is)\n",
                argv0);
        return false;
    }
    double *to[] = {&best->stream_gbs, &best->fma_gmacs,  &best->fma512_gmacs,
                    &best->int8_gmacs, &best->vnni_gmacs, &best->amx_gmacs};
    const double from[] = {p.stream_gbs, p.fma_gmacs,  p.fma512_gmacs,
                           p.int8_gmacs, p.vnni_gmacs, p.amx_gmacs};
    for (size_t i = 0; i < LG_COUNT(to); i++)
        if (from[i] > *to[i]) *to[i] = from[i];
    best->n_thread = p.n_thread;
    return true;
}

void lg_roofline_processor(char *name, size_t size_bytes) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(name, size_bytes, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        snprintf(name, size_bytes, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    if (f) fclose(f);
}

static void hardware(const lg_peak *p, lg_plan_hw *hw) {
    char cpu[128], name[192];
    const char *level = lg_kern_get()->name;
    lg_roofline_processor(cpu, sizeof cpu);
    snprintf(name, sizeof name, "%s, %d threads, %s kernels", cpu, p->n_thread, level);
    lg_plan_hw_node(name, p->stream_gbs * 1e9, lg_peak_integer(p, level) * 1e9,
                    lg_peak_float(p, level) * 1e9, (double)lg_budget_machine(""), hw);
}

bool lg_roofline_machine(const char *argv0, int n_thread, lg_plan_hw *hw) {
    lg_err err = {0};
    lg_pool *pool;
    lg_peak peak = {0};
    if (lg_pool_open(n_thread, &pool, &err) != LG_OK) {
        fprintf(stderr, "%s: %s\n", argv0, err.msg);
        return false;
    }
    bool ok = measure_peaks(argv0, pool, &peak);
    if (ok) hardware(&peak, hw);
    lg_pool_close(&pool);
    return ok;
}

/* ---- steps ---- */

static uint32_t largest(const uint32_t *v, uint32_t n) {
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        if (v[i] > m) m = v[i];
    return m;
}

/* Append n_row fresh tokens of sequence `at` at position pos. */
static void put(roofline *f, lg_batch *b, uint32_t at, uint32_t pos, uint32_t n_row,
                bool samples) {
    f->seq[b->n_seq++] = (lg_batch_seq){.slot = at,
                                        .pos = pos,
                                        .n_tok = n_row,
                                        .tok0 = b->n_tok,
                                        .page0 = at * f->n_page,
                                        .n_out = samples,
                                        .sampler = samples ? &f->sampler[at] : NULL};
    for (uint32_t i = 0; i < n_row; i++)
        f->tok[b->n_tok++] = (uint32_t)(lg_num_rng(3, 0, f->n_fresh++, 0) % f->w->cfg.n_vocab);
}

static bool step(roofline *f, const lg_batch *b) {
    lg_step_out out = {.sampled = f->sampled};
    if (lg_backend_step(f->be, b, &out) == LG_OK) return true;
    fprintf(stderr, "%s: the backend failed\n", f->r->argv0);
    return false;
}

static lg_batch empty(const roofline *f) {
    return (lg_batch){
        .tok = f->tok, .seq = f->seq, .page = f->page, .n_page = f->n_seq * f->n_page};
}

/* The beginning of every sequence, so that all memory is there and holds numbers that occur. */
static bool fill(roofline *f) {
    for (uint32_t i = 0; i < f->n_seq; i++) {
        lg_batch b = empty(f);
        put(f, &b, i, 0, N_FILL, false);
        if (!step(f, &b)) return false;
        for (uint32_t p = 1; p < f->n_page; p++)
            lg_backend_copy_page(f->be, 0, f->page[i * f->n_page], f->page[i * f->n_page + p]);
    }
    return true;
}

/* One run: a step with a chunk, or as many steps of answers as there are rows until states are folded once. */
static bool run_once(roofline *f, const shape *s, outcome *o) {
    uint32_t n_step = s->n_chunk ? 1 : LG_GDN_C, pos = s->depth > N_FILL ? s->depth : N_FILL;
    double touched = 0;
    memset(&f->profile, 0, sizeof f->profile);
    o->batch = (lg_plan_batch){.touched = -1};
    uint64_t start = lg_clock_ns();
    for (uint32_t i = 0; i < n_step; i++) {
        lg_batch b = empty(f);
        for (uint32_t k = 0; k < s->n_one; k++) put(f, &b, k, pos + i, 1, true);
        if (s->n_chunk) put(f, &b, f->n_seq - 1, s->depth, s->n_chunk, false);
        if (!step(f, &b)) return false;
    }
    o->total_us = (double)(lg_clock_ns() - start) * 1e-3 / n_step;
    for (uint32_t k = 0; k < s->n_one; k++)
        lg_plan_batch_add(&o->batch, 1, pos + (n_step - 1) / 2.0, true);
    if (s->n_chunk) lg_plan_batch_add(&o->batch, s->n_chunk, s->depth, false);
    const lg_config *c = &f->w->cfg;
    if (c->n_expert) {
        touched = (double)f->profile.n_expert / n_step / c->n_layer / c->n_expert;
        o->batch.touched = touched;
    }
    for (int k = 0; k < LG_N_OP; k++) o->us[k] = (double)f->profile.ns[k] * 1e-3 / n_step;
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool run_case(roofline *f, shape s) {
    static outcome run[MAX_REPEAT];
    double v[MAX_REPEAT];
    uint32_t n = f->r->n_repeat;
    LG_ASSERT(f->n_out < MAX_CASE && n <= MAX_REPEAT);
    if (!run_once(f, &s, &run[0])) return false; /* not counted */
    for (uint32_t i = 0; i < n; i++)
        if (!run_once(f, &s, &run[i])) return false;
    outcome *o = &f->out[f->n_out++];
    *o = run[0];
    o->s = s;
    for (int k = 0; k <= LG_N_OP; k++) {
        for (uint32_t i = 0; i < n; i++) v[i] = k < LG_N_OP ? run[i].us[k] : run[i].total_us;
        qsort(v, n, sizeof *v, by_value);
        *(k < LG_N_OP ? &o->us[k] : &o->total_us) = v[n / 2];
    }
    o->min_us = v[0];
    o->max_us = v[n - 1];
    return true;
}

/* At each depth: chunks, answers, and the largest chunk beside the largest batch less one. */
static bool run_all(roofline *f) {
    const lg_roofline *r = f->r;
    uint32_t chunk = largest(r->prompt, r->n_prompt), many = largest(r->batch, r->n_batch);
    for (uint32_t d = 0; d < r->n_depth; d++) {
        for (uint32_t i = 0; i < r->n_prompt; i++)
            if (!run_case(f, (shape){0, r->prompt[i], r->depth[d]})) return false;
        for (uint32_t i = 0; i < r->n_batch; i++)
            if (!run_case(f, (shape){r->batch[i], 0, r->depth[d]})) return false;
        if (many > 1 && chunk > 0 &&
            (!run_case(f, (shape){many - 1, 0, r->depth[d]}) ||
             !run_case(f, (shape){many - 1, chunk, r->depth[d]})))
            return false;
    }
    return true;
}

/* ---- telling ---- */

static const char *const rest_name[] = {"rows as integers", "other work on rows"};

static const lg_plan_weights *weights_of(const roofline *f, int op) {
    const lg_plan_cpu *c = &f->cpu;
    return op == LG_OP_MIX_IN    ? &c->mix_in
           : op == LG_OP_MIX_OUT ? &c->mix_out
           : op == LG_OP_ROUTE   ? &c->route
           : op == LG_OP_MLP     ? &c->mlp
           : op == LG_OP_HEAD    ? &c->head
                                 : NULL;
}

static void case_name(const shape *s, char *text, size_t cap) {
    size_t n = 0;
    if (s->n_chunk) n += (size_t)snprintf(text, cap, "%u prompt tokens", s->n_chunk);
    if (s->n_one)
        n += (size_t)snprintf(text + n, cap - n, "%s%u answer%s", n ? " and " : "", s->n_one,
                              s->n_one == 1 ? "" : "s");
    snprintf(text + n, cap - n, " behind %u", s->depth);
}

/* The outcome of a mixed step's parts: time of both apart over its own time; 0 for other steps. */
static double of_apart(const roofline *f, const outcome *o) {
    double sum = 0;
    uint32_t n = 0;
    if (!o->s.n_one || !o->s.n_chunk) return 0;
    for (uint32_t i = 0; i < f->n_out; i++) {
        const shape *s = &f->out[i].s;
        bool chunk = s->n_chunk == o->s.n_chunk && !s->n_one,
             ones = s->n_one == o->s.n_one && !s->n_chunk;
        if (s->depth != o->s.depth || (!chunk && !ones)) continue;
        sum += f->out[i].total_us;
        n++;
    }
    return n >= 2 ? sum / o->total_us : 0;
}

static void print_case(const roofline *f, const outcome *o) {
    char name[96];
    lg_plan_step least;
    lg_plan_cpu_step(&f->cpu, &f->hw, &o->batch, &least);
    case_name(&o->s, name, sizeof name);
    printf("\n%-42s %9s %8s %9s %9s %9s   %s\n", name, "MB", "GMAC", "ms", "limit ms",
           "of limit", "limited by");
    for (int k = 0; k < LG_N_OP; k++) {
        if (o->us[k] == 0) continue;
        if (k >= LG_PLAN_N_CPU) {
            printf("  %-40s %9s %8s %9.3f %9s %9s\n", rest_name[k - LG_PLAN_N_CPU], "", "",
                   o->us[k] * 1e-3, "-", "-");
            continue;
        }
        const lg_plan_term *t = &least.term[k];
        const lg_plan_weights *w = weights_of(f, k);
        char what[80];
        snprintf(what, sizeof what, "%s%s%s", t->name, w ? ": " : "", w ? w->types : "");
        printf("  %-40s %9.2f %8.3f %9.3f %9.3f %7.0f %%   %s\n", what, t->bytes * 1e-6,
               t->ops * 0.5e-9, o->us[k] * 1e-3, t->s * 1e3, 100 * t->s * 1e6 / o->us[k],
               t->limit == 'm' ? "memory" : "products");
    }
    printf("  %-40s %9s %8s %9.3f %9.3f %7.0f %%   (%.3f .. %.3f ms)\n", "step", "", "",
           o->total_us * 1e-3, least.s * 1e3, 100 * least.s * 1e6 / o->total_us,
           o->min_us * 1e-3, o->max_us * 1e-3);
    printf("  %.1f tokens/s", o->batch.n_row * 1e6 / o->total_us);
    double apart = of_apart(f, o);
    if (apart > 0) printf("; %.2f of what both steps apart predict", apart);
    printf("\n");
}

static void print_text(const roofline *f) {
    const lg_peak *p = &f->peak;
    const char *level = lg_kern_get()->name;
    printf("lignum %s, %s\n", lg_version(), f->hw.name);
    printf("limits  reading %.1f GB/s; products of floats %.0f, of bytes %.0f GMAC/s (this "
           "level's; best of before and after)\n",
           p->stream_gbs, lg_peak_float(p, level), lg_peak_integer(p, level));
    printf("keys and values %s; medians of %u\n", lg_option_kv_name(f->r->kv), f->r->n_repeat);
    for (uint32_t i = 0; i < f->n_out; i++) print_case(f, &f->out[i]);
}

static void print_json(const roofline *f) {
    lg_buf out = {0};
    lg_buf_printf(&out,
                  "{\"level\":\"%s\",\"threads\":%d,\"stream_gbs\":%.2f,\"float_gmacs\":%.2f,"
                  "\"integer_gmacs\":%.2f,\"steps\":[",
                  lg_kern_get()->name, f->peak.n_thread, f->hw.bandwidth * 1e-9,
                  f->hw.ops_32 * 0.5e-9, f->hw.ops_weight * 0.5e-9);
    for (uint32_t i = 0; i < f->n_out; i++) {
        const outcome *o = &f->out[i];
        lg_plan_step least;
        lg_plan_cpu_step(&f->cpu, &f->hw, &o->batch, &least);
        lg_buf_printf(
            &out,
            "%s{\"answers\":%u,\"prompt\":%u,\"depth\":%u,\"ms\":%.6f,\"limit_ms\":%.6f,"
            "\"of_apart\":%.4f,\"experts_read\":%.5f,\"operations\":[",
            i ? "," : "", o->s.n_one, o->s.n_chunk, o->s.depth, o->total_us * 1e-3,
            least.s * 1e3, of_apart(f, o), o->batch.touched);
        for (int k = 0; k < LG_N_OP; k++) {
            const lg_plan_term *t = k < LG_PLAN_N_CPU ? &least.term[k] : NULL;
            lg_buf_printf(&out,
                          "%s{\"name\":\"%s\",\"ms\":%.6f,\"limit_ms\":%.6f,\"bytes\":%.0f,"
                          "\"macs\":%.0f}",
                          k ? "," : "", t ? t->name : rest_name[k - LG_PLAN_N_CPU],
                          o->us[k] * 1e-3, t ? t->s * 1e3 : 0, t ? t->bytes : 0,
                          t ? t->ops / 2 : 0);
        }
        lg_buf_puts(&out, "]}");
    }
    lg_buf_puts(&out, "]}");
    puts(lg_buf_str(&out));
    lg_buf_fini(&out);
}

/* ---- all ---- */

static lg_status prepare(roofline *f, lg_err *err) {
    const lg_roofline *r = f->r;
    uint32_t chunk = largest(r->prompt, r->n_prompt), many = largest(r->batch, r->n_batch);
    uint32_t depth = largest(r->depth, r->n_depth);
    uint32_t longest =
        (depth > N_FILL ? depth : N_FILL) + (chunk > LG_GDN_C ? chunk : LG_GDN_C);
    LG_TRY(
        lg_weights_open_packed(r->model, NULL, r->pack_dir, f->pool, NULL, NULL, &f->w, err));
    f->n_seq = many > 0 ? many : 1;
    f->n_page = (longest + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
    lg_backend_opt opt = {.n_slot = f->n_seq,
                          .n_page = f->n_seq * f->n_page,
                          .max_tok = f->n_seq + (chunk > N_FILL ? chunk : N_FILL),
                          .max_seq = f->n_seq,
                          .max_out = f->n_seq,
                          .n_sample_vocab = f->w->cfg.n_vocab,
                          .kv = lg_kv_of(r->kv),
                          .profile = &f->profile};
    LG_TRY(lg_backend_open(f->w, &opt, f->pool, &f->be, err));
    f->page = lg_mem_calloc(opt.n_page, sizeof *f->page);
    f->tok = lg_mem_calloc(opt.max_tok, sizeof *f->tok);
    f->seq = lg_mem_calloc(f->n_seq, sizeof *f->seq);
    f->sampler = lg_mem_calloc(f->n_seq, sizeof *f->sampler);
    f->sampled = lg_mem_calloc(f->n_seq, sizeof *f->sampled);
    if (!f->page || !f->tok || !f->seq || !f->sampler || !f->sampled)
        return LG_FAIL(err, LG_E_NOMEM, "no memory");
    for (uint32_t i = 0; i < opt.n_page; i++) f->page[i] = i;
    for (uint32_t i = 0; i < f->n_seq; i++)
        f->sampler[i].params = (lg_params){.temperature = 1,
                                           .top_k = 20,
                                           .top_p = 0.95f,
                                           .repetition_penalty = 1,
                                           .has_seed = true,
                                           .seed = i,
                                           .n_top = -1};
    const lg_config *c = &f->w->cfg;
    double kept = (double)lg_kv_bytes(opt.kv, c->d_head) / (2.0 * LG_PAGE_TOK * c->d_head);
    lg_plan_cpu_of(f->w, strcmp(lg_kern_get()->name, "ref") == 0, kept, &f->cpu);
    return LG_OK;
}

static void fini(roofline *f) {
    lg_backend_close(&f->be);
    if (f->w) lg_weights_close(&f->w);
    lg_mem_free(f->page);
    lg_mem_free(f->tok);
    lg_mem_free(f->seq);
    lg_mem_free(f->sampler);
    lg_mem_free(f->sampled);
    lg_pool_close(&f->pool);
}

bool lg_roofline_run(const lg_roofline *r) {
    static roofline f;
    lg_err err = {0};
    f = (roofline){.r = r};
    lg_status st = lg_pool_open(r->n_thread, &f.pool, &err);
    if (st == LG_OK) st = prepare(&f, &err);
    if (st != LG_OK) fprintf(stderr, "%s: %s: %s\n", r->argv0, lg_status_name(st), err.msg);
    bool ok = st == LG_OK && measure_peaks(r->argv0, f.pool, &f.peak) && fill(&f) &&
              run_all(&f) && measure_peaks(r->argv0, f.pool, &f.peak);
    if (ok) hardware(&f.peak, &f.hw);
    if (ok && r->json) print_json(&f);
    if (ok && !r->json) print_text(&f);
    fini(&f);
    return ok;
}
