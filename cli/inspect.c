/* inspect.c - `lignum inspect PATH`: what a model folder or GGUF file holds and what it needs, without loading it.
 *
 * In:  its path.   Out: a page of text, or one JSON object, on standard output.
 * Every tensor's name, type and shape is checked as at loading, so a folder that passes here also loads.
 * Test: tests/py/inspect_compare.py */
#include "cli.h"

#include "backend/backend.h"
#include "engine/engine.h"
#include "model/weights/quant.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

/* A count of tensors and their bytes. */
typedef struct tally {
    const char *name;
    uint64_t n, bytes;
} tally;

#define MAX_TYPE 24

typedef struct report {
    const char *path;
    const lg_weights *w;
    uint32_t n_ctx;
    lg_kv_type kv;
    tally type[MAX_TYPE]; /* tensors in use, by type */
    size_t n_type;
    bool blocks;       /* some of them are quantised in blocks */
    tally mtp, vision; /* tensors left out */
    uint32_t unit;     /* layers after which the plan repeats */
    uint64_t page_bytes, slot_bytes;
    uint64_t n_page;
    lg_options opt; /* as `lignum serve` would get them */
    uint64_t budget_bytes;
    lg_budget budget; /* when it fits, */
    lg_err no_fit;    /* else why not */
} report;

static const char help[] =
    "Show what a model folder or GGUF file holds and the memory it needs; the weights are not\n"
    "loaded.\n"
    "\n"
    "usage: lignum inspect PATH [OPTIONS]\n"
    "\n"
    "options:\n"
    "  --ctx N   context length for the memory of a sequence (default: the model's longest)\n"
    "  --kv TYPE keys and values as f32, bf16, f16 (default) or q8_0\n"
    "  --memory SIZE\n"
    "            budget to plan for, as of `lignum serve` (default: what this machine has, "
    "less a\n"
    "            margin)\n"
    "  --parallel N\n"
    "            sequences at the same time (default: 64, less if memory asks)\n"
    "  --json    print one JSON object\n"
    "  --help    print this\n";

/* ---- gathering ---- */

static void add(tally *t, uint64_t bytes) {
    t->n++;
    t->bytes += bytes;
}

static void count_tensors(report *r) {
    lg_tensors *set = lg_weights_tensors(r->w);
    for (size_t i = 0; i < lg_tensors_count(set); i++) {
        const lg_view *v = lg_tensors_at(set, i);
        if (!v->used) {
            add(lg_weights_is_draft(r->w, v->name) ? &r->mtp : &r->vision, v->len_bytes);
            continue;
        }
        size_t k = 0;
        while (k < r->n_type && strcmp(r->type[k].name, v->type_name) != 0) k++;
        LG_ASSERT(k < MAX_TYPE);
        if (k == r->n_type) r->type[r->n_type++].name = v->type_name;
        add(&r->type[k], v->len_bytes);
        r->blocks = r->blocks || lg_dtype_is_block(v->type);
    }
}

/* The shortest run of layers whose repetition is the whole plan. */
static uint32_t repeating_unit(const lg_config *c) {
    for (uint32_t p = 1; p < c->n_layer; p++) {
        bool same = c->n_layer % p == 0;
        for (uint32_t i = p; i < c->n_layer && same; i++) same = c->layer[i] == c->layer[i - p];
        if (same) return p;
    }
    return c->n_layer;
}

static void gather(report *r) {
    lg_backend_opt opt = {.n_slot = 1,
                          .n_page = 1,
                          .max_tok = 1,
                          .max_seq = 1,
                          .max_out = 1,
                          .kv = lg_kv_of(r->kv)};
    lg_backend_plan plan;
    count_tensors(r);
    r->unit = repeating_unit(&r->w->cfg);
    lg_backend_plan_bytes(&r->w->cfg, &opt, 1, &plan);
    r->page_bytes = plan.page_bytes;
    r->slot_bytes = plan.slot_bytes;
    r->n_page = ((uint64_t)r->n_ctx + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
}

/* What the engine would make of the budget. */
static void plan_budget(report *r) {
    bool asked = r->opt.memory_bytes != 0;
    r->budget_bytes = asked ? r->opt.memory_bytes : lg_budget_machine("");
    r->opt.kv = r->kv;
    r->no_fit.code = lg_budget_fit(&r->w->cfg, &r->opt, r->w->weight_bytes, r->budget_bytes,
                                   !asked, r->w->cfg.n_vocab, lg_pool_default_n_thread(),
                                   lg_backend_plan_bytes, &r->budget, &r->no_fit);
}

/* Layers of the same kind from `i` on, within the unit. */
static uint32_t run_of(const report *r, uint32_t i) {
    const uint8_t *layer = r->w->cfg.layer;
    uint32_t n = 1;
    while (i + n < r->unit && layer[i + n] == layer[i]) n++;
    return n;
}

static const char *kind_name(uint8_t kind) {
    return kind == LG_LAYER_ATTN ? "attention" : "GDN";
}

/* ---- text ---- */

/* "13.1 MiB", "6.53 M": x in units of `base`, three digits. */
static const char *scaled(uint64_t x, double base, const char *const *unit, char *buf,
                          size_t size_bytes) {
    double v = (double)x;
    int k = 0;
    while (v >= base && k < 4) v /= base, k++;
    int digits = k == 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
    snprintf(buf, size_bytes, "%.*f%s", digits, v, unit[k]);
    return buf;
}

static const char *quant_text(lg_quant_method method) {
    return method == LG_QUANT_FP8 ? "FP8 E4M3, 128 x 128 blocks" : lg_quant_name(method);
}

/* Text that lives as long as the report is printed: one buffer a call within an expression. */
typedef struct text {
    char s[32];
} text;

static text bytes_text(uint64_t n) {
    static const char *const unit[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    text t;
    scaled(n, 1024, unit, t.s, sizeof t.s);
    return t;
}

static text count_text(uint64_t n) {
    static const char *const unit[] = {"", " K", " M", " B", " T"};
    text t;
    scaled(n, 1000, unit, t.s, sizeof t.s);
    return t;
}

static void put_layers(lg_buf *b, const report *r) {
    const lg_config *c = &r->w->cfg;
    uint32_t repeat = c->n_layer / r->unit;
    lg_buf_printf(b, "  layers        %u: ", c->n_layer);
    if (repeat > 1) lg_buf_puts(b, "(");
    for (uint32_t i = 0; i < r->unit; i += run_of(r, i))
        lg_buf_printf(b, "%s%u x %s", i ? " + " : "", run_of(r, i), kind_name(c->layer[i]));
    if (repeat > 1) lg_buf_printf(b, ") x %u", repeat);
    lg_buf_puts(b, "\n");
}

static void put_shape(lg_buf *b, const lg_config *c) {
    lg_buf_printf(b, "  width         %u, vocabulary %u, head %s\n", c->n_embd, c->n_vocab,
                  c->tied ? "tied to the embedding" : "of its own");
    lg_buf_printf(b,
                  "  attention     %u query and %u key/value heads of %u, %u dims rotated, "
                  "theta %g\n",
                  c->n_head, c->n_kv_head, c->d_head, c->n_rot, c->rope_theta);
    lg_buf_printf(b, "  GDN           %u key heads of %u, %u value heads of %u\n", c->n_k_head,
                  c->d_k, c->n_v_head, c->d_v);
    if (c->n_expert)
        lg_buf_printf(
            b, "  experts       %u, each %u wide, %u for a token, and a shared one %u wide\n",
            c->n_expert, c->n_ff_expert, c->n_expert_tok, c->n_ff_shared);
    else
        lg_buf_printf(b, "  MLP           %u wide\n", c->n_ff);
    lg_buf_printf(b, "  context       up to %u tokens\n", c->n_ctx_max);
}

static void put_tensors(lg_buf *b, const report *r) {
    for (size_t i = 0; i < r->n_type; i++)
        lg_buf_printf(b, "  %-12s  %-8s %6llu  %s\n", i ? "" : "tensors", r->type[i].name,
                      (unsigned long long)r->type[i].n, bytes_text(r->type[i].bytes).s);
    const tally *left[] = {&r->mtp, &r->vision};
    for (int i = 0; i < 2; i++)
        if (left[i]->n)
            lg_buf_printf(b, "  not used      %s, %llu tensor%s, %s\n",
                          i ? "vision tower" : "draft layer (MTP)",
                          (unsigned long long)left[i]->n, left[i]->n == 1 ? "" : "s",
                          bytes_text(left[i]->bytes).s);
}

static void put_generation(lg_buf *b, const lg_config *c) {
    if (c->do_sample)
        lg_buf_printf(b, "  sampling      temperature %g, top-p %g, top-k %u, min-p %g\n",
                      (double)c->temperature, (double)c->top_p, c->top_k, (double)c->min_p);
    else
        lg_buf_puts(b, "  sampling      greedy\n");
    lg_buf_puts(b, "  end tokens   ");
    for (uint32_t i = 0; i < c->n_eos; i++) lg_buf_printf(b, " %u", c->eos[i]);
    lg_buf_puts(b, c->n_eos ? "\n" : " none\n");
}

static void put_memory(lg_buf *b, const report *r) {
    uint64_t kv = r->n_page * r->page_bytes;
    lg_buf_printf(b, "  memory        weights %s\n", bytes_text(r->w->weight_bytes).s);
    lg_buf_printf(b,
                  "                a sequence of %u tokens %s: %s keys and values (%s), "
                  "%s state\n",
                  r->n_ctx, bytes_text(kv + r->slot_bytes).s, bytes_text(kv).s,
                  lg_option_kv_name(r->kv), bytes_text(r->slot_bytes).s);
    const lg_budget *p = &r->budget;
    lg_buf_printf(b, "  budget        %s%s: ", bytes_text(r->budget_bytes).s,
                  r->opt.memory_bytes ? "" : " (what this machine has, less a margin)");
    if (r->no_fit.code != LG_OK) {
        lg_buf_printf(b, "%s\n", r->no_fit.msg);
        return;
    }
    lg_buf_printf(
        b,
        "%u sequences at the same time, each up to %u tokens\n"
        "                state %s (%u pages of %d tokens, %u snapshots of kept texts), "
        "scratch %s; with the weights %s\n",
        p->opt.n_slot, p->n_ctx, bytes_text(p->state_bytes).s, p->opt.n_page, LG_PAGE_TOK,
        p->opt.n_snap, bytes_text(p->scratch_bytes).s,
        bytes_text(r->w->weight_bytes + p->state_bytes + p->scratch_bytes).s);
}

static void put_text(lg_buf *b, const report *r) {
    const lg_weights *w = r->w;
    const lg_config *c = &w->cfg;
    lg_buf_printf(b, "%s\n", r->path);
    lg_buf_printf(b, "  kind          %s, %s\n", c->model_type,
                  c->n_expert ? "mixture of experts" : "dense");
    put_layers(b, r);
    put_shape(b, c);
    lg_buf_printf(b, "  parameters    %s", count_text(w->n_param).s);
    if (c->n_expert)
        lg_buf_printf(b, ", %s active for a token", count_text(w->n_param_active).s);
    lg_buf_puts(b, " (without draft layer and vision)\n");
    lg_buf_printf(b, "  quantisation  %s\n",
                  c->quant    ? quant_text(c->quant)
                  : r->blocks ? "blocks, by tensor"
                              : "none");
    put_tensors(b, r);
    put_generation(b, c);
    put_memory(b, r);
}

/* ---- JSON ---- */

static void put_key(lg_buf *b, const char *key, uint64_t value) {
    lg_buf_printf(b, ",\"%s\":%llu", key, (unsigned long long)value);
}

static void put_tally(lg_buf *b, const char *key, const tally *t) {
    lg_buf_printf(b, "\"%s\":{\"tensors\":%llu,\"bytes\":%llu}", key, (unsigned long long)t->n,
                  (unsigned long long)t->bytes);
}

static void put_json_config(lg_buf *b, const report *r) {
    const lg_config *c = &r->w->cfg;
    lg_buf_printf(b, ",\"layers\":{\"count\":%u,\"repeat\":%u,\"unit\":[", c->n_layer,
                  c->n_layer / r->unit);
    for (uint32_t i = 0; i < r->unit; i += run_of(r, i))
        lg_buf_printf(b, "%s{\"kind\":\"%s\",\"count\":%u}", i ? "," : "",
                      kind_name(c->layer[i]), run_of(r, i));
    lg_buf_puts(b, "]}");
    put_key(b, "hidden_size", c->n_embd);
    put_key(b, "vocab_size", c->n_vocab);
    lg_buf_printf(b, ",\"tied\":%s", c->tied ? "true" : "false");
    lg_buf_printf(b,
                  ",\"attention\":{\"heads\":%u,\"kv_heads\":%u,\"head_dim\":%u,"
                  "\"rotated\":%u,\"theta\":",
                  c->n_head, c->n_kv_head, c->d_head, c->n_rot);
    lg_json_put_double(b, c->rope_theta);
    lg_buf_printf(b,
                  "},\"gdn\":{\"key_heads\":%u,\"key_dim\":%u,\"value_heads\":%u,"
                  "\"value_dim\":%u}",
                  c->n_k_head, c->d_k, c->n_v_head, c->d_v);
    if (c->n_expert)
        lg_buf_printf(b,
                      ",\"moe\":{\"experts\":%u,\"experts_per_token\":%u,\"expert_size\":%u,"
                      "\"shared_size\":%u}",
                      c->n_expert, c->n_expert_tok, c->n_ff_expert, c->n_ff_shared);
    else
        put_key(b, "intermediate_size", c->n_ff);
    put_key(b, "max_context", c->n_ctx_max);
}

static void put_json(lg_buf *b, const report *r) {
    const lg_weights *w = r->w;
    uint64_t kv = r->n_page * r->page_bytes;
    lg_buf_puts(b, "{\"path\":");
    lg_json_put_string(b, r->path, strlen(r->path));
    lg_buf_printf(b, ",\"model_type\":\"%s\"", w->cfg.model_type);
    put_json_config(b, r);
    if (w->cfg.quant)
        lg_buf_printf(b, ",\"quantization\":\"%s\"", lg_quant_name(w->cfg.quant));
    else
        lg_buf_printf(b, ",\"quantization\":%s", r->blocks ? "\"gguf\"" : "null");
    lg_buf_printf(b, ",\"parameters\":{\"total\":%llu,\"active\":%llu}",
                  (unsigned long long)w->n_param, (unsigned long long)w->n_param_active);
    lg_buf_puts(b, ",\"tensors\":{");
    for (size_t i = 0; i < r->n_type; i++) {
        if (i) lg_buf_puts(b, ",");
        put_tally(b, r->type[i].name, &r->type[i]);
    }
    lg_buf_puts(b, "},\"skipped\":{");
    put_tally(b, "mtp", &r->mtp);
    lg_buf_puts(b, ",");
    put_tally(b, "vision", &r->vision);
    lg_buf_printf(b, "},\"eos_token_ids\":[");
    for (uint32_t i = 0; i < w->cfg.n_eos; i++)
        lg_buf_printf(b, "%s%u", i ? "," : "", w->cfg.eos[i]);
    lg_buf_printf(b, "],\"memory\":{\"weight_bytes\":%llu",
                  (unsigned long long)w->weight_bytes);
    put_key(b, "context", r->n_ctx);
    put_key(b, "page_tokens", LG_PAGE_TOK);
    put_key(b, "page_bytes", r->page_bytes);
    lg_buf_printf(b, ",\"kv_type\":\"%s\"", lg_option_kv_name(r->kv));
    put_key(b, "kv_bytes", kv);
    put_key(b, "state_bytes", r->slot_bytes);
    put_key(b, "sequence_bytes", kv + r->slot_bytes);
    lg_buf_printf(b, "},\"plan\":{\"budget_bytes\":%llu", (unsigned long long)r->budget_bytes);
    if (r->no_fit.code != LG_OK) {
        lg_buf_puts(b, ",\"error\":");
        lg_json_put_string(b, r->no_fit.msg, strlen(r->no_fit.msg));
    } else {
        put_key(b, "sequences", r->budget.opt.n_slot);
        put_key(b, "context", r->budget.n_ctx);
        put_key(b, "pages", r->budget.opt.n_page);
        put_key(b, "snapshots", r->budget.opt.n_snap);
        put_key(b, "state_bytes", r->budget.state_bytes);
        put_key(b, "scratch_bytes", r->budget.scratch_bytes);
    }
    lg_buf_puts(b, "}}\n");
}

/* ---- the command ---- */

static int print_report(const char *argv0, const char *path, const lg_options *opt,
                        uint64_t n_ctx, bool json) {
    lg_weights *w;
    lg_err err;
    if (lg_weights_check(path, &w, &err) != LG_OK) {
        fprintf(stderr, "%s: %s\n", argv0, err.msg);
        return 1;
    }
    report r = {.path = path, .w = w, .n_ctx = w->cfg.n_ctx_max, .kv = opt->kv, .opt = *opt};
    lg_buf b = {0};
    int rc = 1;
    if (n_ctx > w->cfg.n_ctx_max) {
        fprintf(stderr, "%s: --ctx: found %llu, expected at most the model's %u\n", argv0,
                (unsigned long long)n_ctx, w->cfg.n_ctx_max);
        goto done;
    }
    if (n_ctx) r.opt.n_ctx = r.n_ctx = (uint32_t)n_ctx;
    gather(&r);
    plan_budget(&r);
    if (json)
        put_json(&b, &r);
    else
        put_text(&b, &r);
    if (b.failed)
        fprintf(stderr, "%s: out of memory\n", argv0);
    else if (fwrite(b.data, 1, b.len_bytes, stdout) == b.len_bytes && fflush(stdout) == 0)
        rc = 0;
    else
        perror(argv0);
done:
    lg_buf_fini(&b);
    lg_weights_close(&w);
    return rc;
}

int lg_inspect_main(int argc, char **argv) {
    static const struct option options[] = {{"ctx", required_argument, NULL, 'c'},
                                            {"kv", required_argument, NULL, 'k'},
                                            {"memory", required_argument, NULL, 'm'},
                                            {"parallel", required_argument, NULL, 'p'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    uint64_t n_ctx = 0, n_seq = 0;
    lg_options opt;
    lg_options_init(&opt);
    bool json = false;
    optind = 0;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (c) {
        case 'c':
            if (!lg_option_u64(argv[0], "--ctx", optarg, 1, UINT32_MAX, &n_ctx)) return 2;
            break;
        case 'k':
            if (!lg_option_kv(argv[0], optarg, &opt.kv)) return 2;
            break;
        case 'm':
            if (!lg_option_size(argv[0], "--memory", optarg, &opt.memory_bytes)) return 2;
            break;
        case 'p':
            if (!lg_option_u64(argv[0], "--parallel", optarg, 1, 4096, &n_seq)) return 2;
            opt.n_seq = (uint32_t)n_seq;
            break;
        case 'j': json = true; break;
        case 'h': fputs(help, stdout); return 0;
        default: return lg_option_usage(argv[0]);
        }
    }
    if (argc - optind != 1) {
        fprintf(stderr, "%s: expected one model folder or file, found %d arguments\n", argv[0],
                argc - optind);
        return lg_option_usage(argv[0]);
    }
    return print_report(argv[0], argv[optind], &opt, n_ctx, json);
}
