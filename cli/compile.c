/* compile.c - `lignum compile`: a model's step programs, compiled for devices that are not here.
 *
 * In:  a config, a target and the buckets.   Out: a table of what the compiler says: does it fit, is every pool kept in place,
 * which collectives there are.  No weights are read.  Test: tests/py/compile.py; docs/PJRT.md has tables of real widths. */
#include "cli.h"

#include "backend/pjrt/be.h"
#include "backend/pjrt/plugin/aot.h"
#include "base/mem.h"
#include "kern/kern.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_LIST 16
#define GIB      (1024.0 * 1024 * 1024)

static const char help[] =
    "Compile the programs of a model's steps for devices that are not here, and show what "
    "their\n"
    "compiler says: memory, whether pools stay in place, collectives.  Ends with status 1 when "
    "a\n"
    "program does not compile, does not fit, or moves a pool.\n"
    "\n"
    "usage: lignum compile --model PATH [OPTIONS]\n"
    "\n"
    "options:\n"
    "  -m, --model PATH    config.json, a model folder or a GGUF file; only the config is "
    "read\n"
    "      --target NAME   topology as the plugin names it (default: tpu7x:2x2x1)\n"
    "      --plugin FILE   the PJRT plugin that compiles (default: libtpu.so, or what\n"
    "                      make check-pjrt has fetched)\n"
    "      --decode LIST   sequences of a decode step, over all devices (default: 64,256)\n"
    "      --prefill LIST  sequences x rows of a prefill step, over all devices (default: "
    "8x1024)\n"
    "      --ctx LIST      longest contexts, each bucket for each (default: 8192)\n"
    "      --parallel N    sequences that have state and pages, over all devices (default: "
    "the\n"
    "                      largest bucket)\n"
    "      --pool-ctx N    positions that each of these has pages for (default: the longest "
    "--ctx)\n"
    "      --experts TYPE  f32, bf16, wide (as --weights), fp8 (scales of 128 x 128 weights), "
    "or\n"
    "                      fp8s128, fp8s256, fp8s512, fp8s1024 or fp8s2048 (of so many "
    "inputs;\n"
    "                      default: as the config says)\n"
    "      --act TYPE      rows into experts: fp8, or bf16 (default: as the matrices)\n"
    "      --weights TYPE  other matrices: f32 or bf16 (default)\n"
    "      --kv TYPE       f32, bf16 (default), f16 or fp8\n"
    "      --state TYPE    f32 (default) or bf16\n"
    "      --plain         StableHLO and plain collectives only, no kernels of ours\n"
    "      --mixed         the first of both kinds in one program too\n"
    "      --unrolled      layers written out, not a loop over groups\n"
    "      --dump DIR      write the texts there too\n"
    "      --help          print this\n";

typedef struct list {
    uint32_t n, a[MAX_LIST], b[MAX_LIST];
} list;

typedef struct compile {
    const char *argv0, *model, *plugin, *dump;
    lg_aot aot;
    list decode, prefill, ctx;
    uint64_t n_parallel, n_pool_ctx;
    lg_pjrt_type expert, weight, kv, state;
    uint32_t scale_in;
    bool act_fp8, wide, plain, unrolled, mixed; /* wide: experts are as other matrices */
    lg_config cfg;
    lg_pjrt_device_info dev[LG_PJRT_MAX_DEV];
    uint32_t n_dev;
    lg_kernels kernels;
    lg_pjrt_model m;
    int64_t limit_bytes;
    uint32_t n_bad;
} compile;

/* ---- options ---- */

/* "64,256" into a, or with `pairs` "8x1024,..." into a and b. */
static bool read_list(const char *argv0, const char *option, const char *text, bool pairs,
                      list *l) {
    const char *p = text;
    l->n = 0;
    while (*p && l->n < MAX_LIST) {
        char *end;
        unsigned long v = strtoul(p, &end, 10), w = 1;
        if (end == p || v == 0 || v > 1u << 24) break;
        if (pairs) {
            if (*end != 'x') break;
            p = end + 1;
            w = strtoul(p, &end, 10);
            if (end == p || w == 0 || w > 1u << 24) break;
        }
        l->a[l->n] = (uint32_t)v;
        l->b[l->n++] = (uint32_t)w;
        p = end;
        if (*p == ',' && p[1])
            p++;
        else if (*p)
            break;
    }
    if (!*p && (l->n || !*text)) return true;
    fprintf(stderr, "%s: %s %s: expected %s\n", argv0, option, text,
            pairs ? "numbers like 8x1024, with commas between" : "numbers with commas between");
    return false;
}

static bool read_type(const char *argv0, const char *option, const char *text,
                      const char *const *name, const lg_pjrt_type *type, lg_pjrt_type *out) {
    lg_buf all = {0};
    for (int i = 0; name[i]; i++) {
        if (strcmp(name[i], text) == 0) {
            *out = type[i];
            lg_buf_fini(&all);
            return true;
        }
        lg_buf_printf(&all, "%s%s", i ? ", " : "", name[i]);
    }
    fprintf(stderr, "%s: %s %s: expected one of %s\n", argv0, option, text, lg_buf_str(&all));
    lg_buf_fini(&all);
    return false;
}

/* A plain type, or what --device takes. */
static bool read_experts(compile *c, const char *text) {
    lg_pjrt_experts how = LG_PJRT_EXPERTS_FILE;
    c->scale_in = 0;
    c->expert = strcmp(text, "f32") == 0    ? LG_PJRT_F32
                : strcmp(text, "bf16") == 0 ? LG_PJRT_BF16
                                            : 0;
    if (!c->expert && !lg_pjrt_device_experts(text, &how, &c->scale_in)) {
        fprintf(stderr, "%s: --experts %s: expected one of f32, bf16, %s\n", c->argv0, text,
                LG_PJRT_EXPERTS_NAMES);
        return false;
    }
    c->wide = how == LG_PJRT_EXPERTS_WIDE;
    if (!c->expert && !c->wide) c->expert = LG_PJRT_F8E4M3FN;
    return true;
}

static bool read_act(compile *c, const char *text) {
    c->act_fp8 = strcmp(text, "fp8") == 0;
    if (c->act_fp8 || strcmp(text, "bf16") == 0) return true;
    fprintf(stderr, "%s: --act %s: expected bf16 or fp8\n", c->argv0, text);
    return false;
}

enum {
    OPT_HELP = 1,
    TARGET,
    PLUGIN,
    DECODE,
    PREFILL,
    CTX,
    PARALLEL,
    POOL_CTX,
    EXPERTS,
    ACT,
    WEIGHTS,
    KV,
    STATE,
    PLAIN,
    MIXED,
    UNROLLED,
    DUMP
};

static const struct option long_options[] = {{"model", required_argument, NULL, 'm'},
                                             {"target", required_argument, NULL, TARGET},
                                             {"plugin", required_argument, NULL, PLUGIN},
                                             {"decode", required_argument, NULL, DECODE},
                                             {"prefill", required_argument, NULL, PREFILL},
                                             {"ctx", required_argument, NULL, CTX},
                                             {"parallel", required_argument, NULL, PARALLEL},
                                             {"pool-ctx", required_argument, NULL, POOL_CTX},
                                             {"experts", required_argument, NULL, EXPERTS},
                                             {"act", required_argument, NULL, ACT},
                                             {"weights", required_argument, NULL, WEIGHTS},
                                             {"kv", required_argument, NULL, KV},
                                             {"state", required_argument, NULL, STATE},
                                             {"plain", no_argument, NULL, PLAIN},
                                             {"mixed", no_argument, NULL, MIXED},
                                             {"unrolled", no_argument, NULL, UNROLLED},
                                             {"dump", required_argument, NULL, DUMP},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {NULL, 0, NULL, 0}};

static bool set_option(compile *c, int opt, const char *arg) {
    static const char *const name[] = {"f32", "bf16", "f16", "fp8", NULL};
    static const lg_pjrt_type type[] = {LG_PJRT_F32, LG_PJRT_BF16, LG_PJRT_F16,
                                        LG_PJRT_F8E4M3FN};
    static const char *const two[] = {"f32", "bf16", NULL};
    const char *argv0 = c->argv0;
    switch (opt) {
    case 'm': c->model = arg; return true;
    case TARGET: c->aot.topology = arg; return true;
    case PLUGIN: c->plugin = arg; return true;
    case DECODE: return read_list(argv0, "--decode", arg, false, &c->decode);
    case PREFILL: return read_list(argv0, "--prefill", arg, true, &c->prefill);
    case CTX: return read_list(argv0, "--ctx", arg, false, &c->ctx) && c->ctx.n;
    case PARALLEL: return lg_option_u64(argv0, "--parallel", arg, 1, 1u << 20, &c->n_parallel);
    case POOL_CTX: return lg_option_u64(argv0, "--pool-ctx", arg, 1, 1u << 24, &c->n_pool_ctx);
    case EXPERTS: return read_experts(c, arg);
    case ACT: return read_act(c, arg);
    case WEIGHTS: return read_type(argv0, "--weights", arg, two, type, &c->weight);
    case KV: return read_type(argv0, "--kv", arg, name, type, &c->kv);
    case STATE: return read_type(argv0, "--state", arg, two, type, &c->state);
    case PLAIN: c->plain = true; return true;
    case MIXED: c->mixed = true; return true;
    case UNROLLED: c->unrolled = true; return true;
    case DUMP: c->dump = arg; return true;
    default: return false;
    }
}

/* ---- preparation ---- */

/* A config by itself, whatever its name. */
static lg_status load_file(compile *c, lg_err *err) {
    char chunk[4096];
    lg_buf text = {0};
    FILE *f = fopen(c->model, "rb");
    if (!f) return LG_FAIL(err, LG_E_IO, "%s: cannot be read", c->model);
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0 && text.len_bytes < (1u << 24);)
        lg_buf_put(&text, chunk, n);
    fclose(f);
    lg_status st = lg_config_parse(&c->cfg, lg_buf_str(&text), text.len_bytes, c->model, err);
    lg_buf_fini(&text);
    return st;
}

static bool load_config(compile *c) {
    size_t n = strlen(c->model);
    lg_err err;
    bool json = n > 5 && strcmp(c->model + n - 5, ".json") == 0;
    if ((json ? load_file(c, &err) : lg_config_load(&c->cfg, c->model, &err)) == LG_OK)
        return true;
    fprintf(stderr, "%s: %s\n", c->argv0, err.msg);
    return false;
}

static void find_plugin(compile *c, char *path, size_t cap) {
    const char *dir = getenv("LIGNUM_PJRT_DIR"), *home = getenv("HOME");
    c->aot.plugin = c->plugin ? c->plugin : "libtpu.so";
    if (c->plugin) return;
    if (dir && *dir)
        snprintf(path, cap, "%s/tpu/libtpu/libtpu.so", dir);
    else
        snprintf(path, cap, "%s/.cache/lignum/pjrt/tpu/libtpu/libtpu.so", home ? home : "");
    if (access(path, R_OK) == 0) c->aot.plugin = path;
}

static uint32_t largest(const list *l) {
    uint32_t v = 0;
    for (uint32_t i = 0; i < l->n; i++) v = l->a[i] > v ? l->a[i] : v;
    return v;
}

static uint32_t per_device(const compile *c, uint64_t n) {
    return (uint32_t)((n + c->n_dev - 1) / c->n_dev);
}

static uint32_t pages(uint64_t n_ctx) {
    return (uint32_t)((n_ctx + LG_PAGE_TOK - 1) / LG_PAGE_TOK);
}

static bool prepare(compile *c) {
    lg_err err;
    if (lg_aot_devices(&c->aot, c->dev, &c->n_dev, &err) != LG_OK) {
        fprintf(stderr, "%s: %s\n", c->argv0, err.msg);
        return false;
    }
    c->limit_bytes = c->dev[0].memory_bytes;
    if (!c->n_parallel)
        c->n_parallel = largest(&c->decode) > largest(&c->prefill) ? largest(&c->decode)
                                                                   : largest(&c->prefill);
    if (!c->n_pool_ctx) c->n_pool_ctx = largest(&c->ctx);
    if (!c->expert && !c->wide && c->cfg.quant == LG_QUANT_FP8 && c->cfg.n_expert)
        c->expert = LG_PJRT_F8E4M3FN;
    uint32_t n_seq = per_device(c, c->n_parallel);
    c->m = (lg_pjrt_model){.cfg = &c->cfg,
                           .n_device = c->n_dev,
                           .weight = c->weight,
                           .expert = c->expert,
                           .scale_in = c->scale_in,
                           .act_fp8 = c->act_fp8,
                           .moe = LG_PJRT_MOE_TILES,
                           .kv = c->kv,
                           .state = c->state,
                           .n_slot = n_seq + 1,
                           .n_page = n_seq * pages(c->n_pool_ctx) + 1,
                           .n_ctx = largest(&c->ctx),
                           .n_sample_vocab = c->cfg.n_vocab,
                           .unrolled = c->unrolled,
                           .tiled = !c->unrolled && strncmp(c->aot.topology, "tpu", 3) == 0};
    if (c->plain) return true;
    lg_kernels_init(&c->kernels, &c->m, c->dev, false);
    c->m.parts = &c->kernels.parts;
    return true;
}

/* ---- one bucket ---- */

static uint64_t arg_bytes(const lg_pjrt_sig *sig, lg_pjrt_role role, uint64_t *smallest) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < sig->n_arg; i++) {
        uint64_t n = lg_pjrt_dims_bytes(&sig->arg[i].dims);
        if (sig->arg[i].role != role) continue;
        if (smallest && (!*smallest || n < *smallest)) *smallest = n;
        sum += n;
    }
    return sum;
}

static void dump_text(const compile *c, const char *name, const lg_buf *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.mlir", c->dump, name);
    FILE *f = fopen(path, "w");
    bool ok = f && fwrite(lg_buf_str(text), 1, text->len_bytes, f) == text->len_bytes;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) fprintf(stderr, "%s: %s: cannot be written\n", c->argv0, path);
}

static void print_collectives(const lg_report_sum *s) {
    uint32_t n = 0;
    for (size_t i = 0; i < LG_COUNT(s->collective); i++)
        if (s->collective[i].n)
            printf("%s%u %s of %.1f MB", n++ ? ", " : "", s->collective[i].n,
                   s->collective[i].opcode, (double)s->collective[i].bytes / 1e6);
    printf("%s\n", n ? " in the text of a group" : "no collectives");
}

static void print_result(compile *c, const char *name, const lg_buf *text,
                         const lg_pjrt_sig *sig, const lg_aot_result *r) {
    const lg_pjrt_exe_memory *m = &r->memory;
    uint64_t pool = arg_bytes(sig, LG_PJRT_POOL, NULL);
    int64_t need = m->arg_bytes + m->out_bytes - m->alias_bytes + m->temp_bytes + m->code_bytes;
    bool fits = !c->limit_bytes || need <= c->limit_bytes,
         kept = m->alias_bytes >= (int64_t)pool;
    if (!fits || !kept) c->n_bad++;
    printf("%-22s %6zu %7.1f %8.3f %8.3f %8.3f %8.3f %8.3f %6.1f%%  %s\n", name,
           text->len_bytes / 1024, r->seconds, (double)m->arg_bytes / GIB,
           (double)m->alias_bytes / GIB, (double)m->temp_bytes / GIB,
           (double)(m->out_bytes - m->alias_bytes) / GIB, (double)need / GIB,
           c->limit_bytes ? 100 * (double)need / (double)c->limit_bytes : 0.0,
           !fits   ? "DOES NOT FIT"
           : !kept ? "POOLS MOVE"
                   : "fits");
    printf("    %.3g flop, %.3g bytes; %u kernels; %u copies as big as a pool (%.1f MB); ",
           r->flops, r->accessed_bytes, r->sum.n_kernel, r->sum.n_copy,
           (double)r->sum.copied_bytes / 1e6);
    print_collectives(&r->sum);
    fflush(stdout);
}

static void run_bucket(compile *c, const char *name, const lg_pjrt_bucket *b) {
    lg_pjrt_sig *sig = lg_mem_alloc(sizeof *sig);
    lg_buf text = {0};
    lg_aot_result r;
    lg_err err = {.msg = "no memory"};
    uint64_t smallest = 0;
    const lg_pjrt_compile how = {.n_replica = c->n_dev, .n_partition = 1};
    lg_status st = sig ? lg_pjrt_step_text(&c->m, b, &text, sig, &err) : LG_E_NOMEM;
    if (st == LG_OK) {
        if (c->dump) dump_text(c, name, &text);
        arg_bytes(sig, LG_PJRT_POOL, &smallest);
        st = lg_aot_compile(&c->aot, &text, &how, smallest, &r, &err);
    }
    if (st == LG_OK) {
        print_result(c, name, &text, sig, &r);
    } else {
        printf("%-22s FAILED: %s\n", name, err.msg);
        fflush(stdout);
        c->n_bad++;
    }
    lg_buf_fini(&text);
    lg_mem_free(sig);
}

static void print_head(const compile *c) {
    const lg_config *g = &c->cfg;
    printf("%s: %u layers, hidden %u, %u experts; %s, %u devices of %s, %.1f GiB each\n",
           g->model_type, g->n_layer, g->n_embd, g->n_expert, c->aot.topology, c->n_dev,
           c->dev[0].kind, (double)c->limit_bytes / GIB);
    char scales[40] = "";
    if (c->scale_in) snprintf(scales, sizeof scales, " (a scale for %u inputs)", c->scale_in);
    printf(
        "matrices %s, experts %s%s%s, KV %s, state %s; on a device: %u slots, %u pages of %d "
        "positions; %s, %s\n",
        lg_pjrt_type_name(c->weight), lg_pjrt_type_name(c->expert ? c->expert : c->weight),
        scales, c->act_fp8 ? " with rows of FP8" : "", lg_pjrt_type_name(c->kv),
        lg_pjrt_type_name(c->state), c->m.n_slot, c->m.n_page, LG_PAGE_TOK,
        c->unrolled ? "unrolled" : "looped",
        c->plain ? "plain" : lg_kernels_about(&c->kernels));
    printf("%-22s %6s %7s %8s %8s %8s %8s %8s %7s\n", "bucket", "KiB", "s", "args", "kept",
           "temp", "results", "needs", "");
}

static int run_all(compile *c) {
    char name[64];
    print_head(c);
    for (uint32_t k = 0; k < c->ctx.n; k++) {
        for (uint32_t i = 0; i < c->decode.n; i++) {
            uint32_t n = per_device(c, c->decode.a[i]);
            snprintf(name, sizeof name, "decode-%u-ctx-%u", c->decode.a[i], c->ctx.a[k]);
            run_bucket(c, name,
                       &(lg_pjrt_bucket){.n_one = n, .n_page = pages(c->ctx.a[k]), .n_out = n});
        }
        for (uint32_t i = 0; i < c->prefill.n; i++) {
            uint32_t n = per_device(c, c->prefill.a[i]);
            snprintf(name, sizeof name, "prefill-%ux%u-ctx-%u", c->prefill.a[i],
                     c->prefill.b[i], c->ctx.a[k]);
            run_bucket(c, name,
                       &(lg_pjrt_bucket){.n_many = n,
                                         .n_row = c->prefill.b[i],
                                         .n_page = pages(c->ctx.a[k]),
                                         .n_out = n});
        }
        if (c->mixed && c->decode.n && c->prefill.n) {
            uint32_t one = per_device(c, c->decode.a[0]), many = per_device(c, c->prefill.a[0]);
            snprintf(name, sizeof name, "mixed-%u-%ux%u-ctx-%u", c->decode.a[0],
                     c->prefill.a[0], c->prefill.b[0], c->ctx.a[k]);
            run_bucket(c, name,
                       &(lg_pjrt_bucket){.n_one = one,
                                         .n_many = many,
                                         .n_row = c->prefill.b[0],
                                         .n_page = pages(c->ctx.a[k]),
                                         .n_out = one + many});
        }
    }
    printf("GiB on one device; kept: pools that results take over in place\n");
    if (c->n_bad) printf("%u programs do not fit, move a pool or do not compile\n", c->n_bad);
    return c->n_bad ? 1 : 0;
}

int lg_compile_main(int argc, char **argv) {
    char path[4096];
    compile *c = lg_mem_alloc(sizeof *c);
    int rc = 1;
    if (!c) return 1;
    *c = (compile){.argv0 = argv[0],
                   .aot.topology = "tpu7x:2x2x1",
                   .decode = {2, {64, 256}, {1, 1}},
                   .prefill = {1, {8}, {1024}},
                   .ctx = {1, {8192}, {1}},
                   .weight = LG_PJRT_BF16,
                   .kv = LG_PJRT_BF16,
                   .state = LG_PJRT_F32};
    for (int o; (o = getopt_long(argc, argv, "m:", long_options, NULL)) != -1;) {
        if (o == OPT_HELP) {
            fputs(help, stdout);
            lg_mem_free(c);
            return 0;
        }
        if (o == '?' || !set_option(c, o, optarg)) {
            lg_mem_free(c);
            return lg_option_usage(argv[0]);
        }
    }
    if (optind < argc || !c->model) {
        fprintf(stderr, "%s: %s\n", argv[0],
                optind < argc ? "an unexpected argument" : "--model is missing");
        lg_mem_free(c);
        return lg_option_usage(argv[0]);
    }
    find_plugin(c, path, sizeof path);
    if (load_config(c) && prepare(c)) rc = run_all(c);
    lg_mem_free(c);
    return rc;
}
