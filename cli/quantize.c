/* quantize.c - `lignum quantize IN OUT`: a Hugging Face folder to a GGUF file.
 *
 * In:  a folder.   Out: the file; a table of what is in it on standard output, what was done differently on standard error.
 * Test: tests/py/quantize.py */
#include "cli.h"

#include "base/clock.h"
#include "kern/quantize.h"
#include "model/file/togguf.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MAX_RULE 256

static const char help[] =
    "Write the model of a Hugging Face folder as a GGUF file.\n"
    "\n"
    "usage: lignum quantize IN OUT --type TYPE [OPTIONS]\n"
    "\n"
    "IN is a folder with BF16, F16, F32 or FP8 safetensors; OUT is "
    "written in one go and appears when it is whole.\n"
    "\n"
    "options:\n"
    "  --type TYPE             of all matrices: q4_k q5_k q6_k q8_0 "
    "iq4_xs mxfp4 bf16 f16 f32, or\n"
    "                          q4_0 q4_1 q5_0 q5_1 iq4_nl; mxfp4 is for "
    "the routed experts, the\n"
    "                          other matrices get q8_0\n"
    "  --tensor PATTERN=TYPE   another type for matrices whose name in "
    "OUT fits (* and ?), such as\n"
    "                          output.weight=q6_k or "
    "'blk.*.ffn_down*=q5_k'; may be repeated, the\n"
    "                          last that fits counts\n"
    "  --imatrix FILE          importance of input channels, as llama.cpp's imatrix tool "
    "writes it\n"
    "                          (GGUF); matrices that it does not know are quantised without\n"
    "  --no-mtp                leave the draft layer out\n"
    "  --threads N             default: one a core\n"
    "  --help                  print this\n";

typedef struct options {
    const char *in, *out, *imatrix;
    lg_togguf_opt opt;
    lg_togguf_rule rule[MAX_RULE];
    char pattern[MAX_RULE][96];
    int n_thread;
} options;

static bool read_type(const char *argv0, const char *option, const char *text, lg_dtype *out) {
    for (int t = 0; t < LG_N_DTYPE; t++)
        if (lg_quantize_has((lg_dtype)t) && strcasecmp(text, lg_dtype_name((lg_dtype)t)) == 0) {
            *out = (lg_dtype)t;
            return true;
        }
    fprintf(stderr, "%s: %s: no type '%s' that can be written\n", argv0, option, text);
    return false;
}

static bool read_rule(const char *argv0, const char *text, options *o) {
    const char *eq = strrchr(text, '=');
    size_t n = o->opt.n_rule;
    if (!eq || eq == text || eq - text >= (long)sizeof o->pattern[0] || n == MAX_RULE) {
        fprintf(stderr, "%s: --tensor: expected PATTERN=TYPE, found '%s'\n", argv0, text);
        return false;
    }
    snprintf(o->pattern[n], sizeof o->pattern[n], "%.*s", (int)(eq - text), text);
    o->rule[n].pattern = o->pattern[n];
    o->opt.n_rule++;
    return read_type(argv0, "--tensor", eq + 1, &o->rule[n].type);
}

/* 0: go on; else the exit status and 1. */
static int read_options(int argc, char **argv, options *o) {
    enum { TYPE = 256, TENSOR, IMATRIX, NO_MTP, THREADS, HELP };
    static const struct option known[] = {{"type", required_argument, NULL, TYPE},
                                          {"tensor", required_argument, NULL, TENSOR},
                                          {"imatrix", required_argument, NULL, IMATRIX},
                                          {"no-mtp", no_argument, NULL, NO_MTP},
                                          {"threads", required_argument, NULL, THREADS},
                                          {"help", no_argument, NULL, HELP},
                                          {NULL, 0, NULL, 0}};
    bool typed = false, ok = true;
    int c;
    while (ok && (c = getopt_long(argc, argv, "", known, NULL)) != -1) switch (c) {
        case TYPE: ok = typed = read_type(argv[0], "--type", optarg, &o->opt.type); break;
        case TENSOR: ok = read_rule(argv[0], optarg, o); break;
        case IMATRIX: o->imatrix = optarg; break;
        case NO_MTP: o->opt.no_mtp = true; break;
        case THREADS:
            ok = lg_option_int(argv[0], "--threads", optarg, 1, 1024, &o->n_thread);
            break;
        case HELP: fputs(help, stdout); return 1;
        default: ok = false;
        }
    if (ok && argc - optind != 2) {
        fprintf(stderr, "%s: expected IN and OUT\n", argv[0]);
        ok = false;
    }
    if (ok && !typed) {
        fprintf(stderr, "%s: expected --type TYPE\n", argv[0]);
        ok = false;
    }
    if (!ok) return 1 + lg_option_usage(argv[0]);
    o->in = argv[optind];
    o->out = argv[optind + 1];
    o->opt.rule = o->rule;
    return 0;
}

typedef struct bar {
    uint64_t start_us, shown_us;
} bar;

static bool draw(void *ctx, uint64_t done, uint64_t total) {
    bar *b = ctx;
    uint64_t now = lg_clock_us();
    if (now - b->start_us < 1000000 || now - b->shown_us < 200000 || total == 0) return false;
    b->shown_us = now;
    double left = (double)(now - b->start_us) * 1e-6 * (double)(total - done) / (double)done;
    fprintf(stderr, "\rwriting %3.0f %%  %.0f of %.0f MiB  %.0f s left \x1b[K",
            100 * (double)done / (double)total, (double)done / 1048576, (double)total / 1048576,
            left);
    return false;
}

static void print_report(const char *argv0, const options *o, const lg_togguf_report *r,
                         double seconds) {
    if (o->imatrix)
        fprintf(stderr, "%s: %s knows %u of the matrices\n", argv0, o->imatrix, r->n_weighted);
    if (r->mtp_reason[0])
        fprintf(stderr, "%s: the draft layer is left out: %s\n", argv0, r->mtp_reason);
    if (r->n_fallback)
        fprintf(stderr,
                "%s: %u matrices have rows that are no multiple of the type's block and got "
                "another type (the first: %s instead of %s)\n",
                argv0, r->n_fallback, lg_dtype_name(r->fallback_to),
                lg_dtype_name(r->fallback_from));
    printf("%-8s %8s %12s  %s\n", "type", "tensors", "MiB", "relative rms error");
    for (int t = 0; t < LG_N_DTYPE; t++)
        if (r->n_tensor[t])
            printf("%-8s %8u %12.1f  %.3g\n", lg_dtype_name((lg_dtype)t), r->n_tensor[t],
                   (double)r->bytes[t] / 1048576, sqrt(r->error[t]));
    printf("%.1f MiB in %.1f s, %.1f MiB of buffers; draft layer: %s\n",
           (double)r->file_bytes / 1048576, seconds, (double)r->buffer_bytes / 1048576,
           r->mtp ? "yes" : "no");
}

int lg_quantize_main(int argc, char **argv) {
    options o = {0};
    lg_togguf_report report;
    lg_pool *pool = NULL;
    lg_imatrix *imatrix = NULL;
    lg_err err = {0};
    int end = read_options(argc, argv, &o);
    if (end) return end - 1;
    bar b = {.start_us = lg_clock_us()};
    if (isatty(STDERR_FILENO)) {
        o.opt.progress = draw;
        o.opt.progress_ctx = &b;
    }
    lg_status st = lg_pool_open(o.n_thread, &pool, &err);
    if (st == LG_OK && o.imatrix) st = lg_imatrix_open(o.imatrix, &imatrix, &err);
    o.opt.imatrix = imatrix;
    if (st == LG_OK) st = lg_togguf_write(o.in, o.out, &o.opt, pool, &report, &err);
    lg_pool_close(&pool);
    lg_imatrix_close(&imatrix);
    if (b.shown_us) fputs("\r\x1b[K", stderr);
    if (st != LG_OK) {
        fprintf(stderr, "%s: %s: %s\n", argv[0], lg_status_name(st), err.msg);
        return 1;
    }
    print_report(argv[0], &o, &report, (double)(lg_clock_us() - b.start_us) * 1e-6);
    return 0;
}
