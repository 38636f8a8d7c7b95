/* plan.c - `lignum plan`: how fast a model can be on some hardware, and what limits it.
 *
 * In:  a model, hardware, a load.   Out: tables on standard output; a sweep over concurrency as CSV and as a plot.
 * The formulas are in src/plan; nothing is measured but this machine, when it is the hardware.
 * Test: tests/unit/test_plan.c, tests/py/plan.py */
#include "cli.h"
#include "roofline.h"

#include "base/base.h"
#include "plan/plan.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GB        1e9
#define N_SWEEP   13 /* concurrency 4, 8, ... 16384 */
#define N_ASSUME  3
#define MAX_POINT 64

typedef struct plan {
    const char *argv0;
    lg_plan_model model;
    lg_plan_hw hw;
    lg_plan_load load;
    lg_plan_split split; /* n_ep 0: the best */
    int assume;
    double weight_bits; /* 0: not given */
    const char *csv, *svg, *keep;
    bool anchors, groups, measured; /* measured: hw is this machine */
    bool floats;                    /* the model's weights are multiplied as floats */
    const char *bits_from;          /* where the bits of weights are from */
} plan;

static const char *const assumes[N_ASSUME] = {"ideal", "published", "measured"};

static const char help[] =
    "How fast a model of the family can be on some hardware, term by term, and how to divide "
    "it.\n"
    "\n"
    "usage: lignum plan [OPTIONS]\n"
    "\n"
    "options:\n"
    "  -m, --model WHAT       397b, 122b, 35b, a model folder or a GGUF file (default: 397b)\n"
    "      --hardware WHAT    tpu7x:AxBxC (chips along three axes; default: tpu7x:2x2x1), a "
    "JSON\n"
    "                         file that describes the nodes of a cluster, or `this`: the "
    "machine\n"
    "                         that this runs on, measured now\n"
    "      --keep FILE        write the measured machine as such a file, to be edited and "
    "used\n"
    "                         again; without it the file is printed\n"
    "      --isl N, --osl N   tokens of a prompt and of an answer (default: 8192 and 1024)\n"
    "      --concurrency N    requests in flight on all of it (default: 64)\n"
    "      --weight-bits X    of a stored weight (default: as in the model's files; 8 "
    "without)\n"
    "      --ep N, --tp N     devices that hold the experts once, and of those, devices that "
    "share\n"
    "                         sequences (default: the best of all)\n"
    "      --assume WHAT      ideal: physics only; published: the limit as published for "
    "TPU7x;\n"
    "                         measured: fitted to published measurements there (default: "
    "ideal)\n"
    "      --sweep FILE       concurrency 4 to 16384 as CSV\n"
    "      --plot FILE        the same as SVG\n"
    "      --groups           every size of a group that divides devices and experts\n"
    "      --anchors          published limits and measurements beside what these formulas "
    "give\n"
    "      --help             print this\n";

static lg_plan_cal cal_of(int assume) {
    return assume == 0   ? lg_plan_cal_ideal()
           : assume == 1 ? lg_plan_cal_published()
                         : lg_plan_cal_measured();
}

static void run_one(const plan *p, double concurrency, int assume, lg_plan_result *r) {
    lg_plan_cal cal = cal_of(assume);
    lg_plan_load load = p->load;
    load.concurrency = concurrency;
    if (p->split.n_ep > 0)
        lg_plan_serve(&p->model, &p->hw, &p->split, &cal, &load, r);
    else
        lg_plan_best(&p->model, &p->hw, &cal, &load, r);
}

/* What the other two assumptions were taken from. */
static bool is_tpu(const plan *p) {
    return p->hw.dim[0] > 0;
}

/* ---- tables ---- */

static const char *limit_name(char limit) {
    return limit == 'm'   ? "memory"
           : limit == 'c' ? "products"
           : limit == 'l' ? "links"
                          : "fixed";
}

static void print_step(const char *what, const lg_plan_step *s) {
    printf("\n%-22s %10s %10s %10s   limited by\n", what, "GB", "Gop", "ms");
    for (uint32_t i = 0; i < s->n_term; i++) {
        const lg_plan_term *t = &s->term[i];
        printf("  %-20s %10.3f %10.1f %10.3f   %s\n", t->name, t->bytes / GB, t->ops / 1e9,
               t->s * 1e3, limit_name(t->limit));
    }
    printf("  %-20s %10s %10s %10.3f\n", "sum", "", "", s->s * 1e3);
}

static void print_plan(const plan *p) {
    lg_plan_result r;
    run_one(p, p->load.concurrency, p->assume, &r);
    const lg_plan_term *longest =
        lg_plan_longest(p->load.osl * r.decode.s > r.prefill.s * p->load.concurrency /
                                                       r.n_group * p->load.isl / r.prefill_tok
                            ? &r.decode
                            : &r.prefill);
    const lg_plan_model *m = &p->model;
    double dense = lg_plan_dense_params(m), one = lg_plan_n_layer(m) * lg_plan_expert_params(m);
    printf("model     %s: %.3g B parameters, %.3g B for a token, %.3g bits a weight%s\n",
           m->name, (dense + one * m->n_expert) / 1e9, (dense + one * m->n_used) / 1e9,
           8 * m->b_expert, p->bits_from);
    printf("hardware  %s: %.0f x %.0f devices, %.0f GB/s each\n", p->hw.name, p->hw.n_chip,
           p->hw.n_dev, p->hw.bandwidth / GB);
    printf("load      %.0f in, %.0f out, %.0f at a time; assumed: %s\n", p->load.isl,
           p->load.osl, p->load.concurrency, assumes[p->assume]);
    if (r.split.n_ep > 1)
        printf("split     experts over %.0f devices, sequences over sets of %.0f, %.0f "
               "group%s, %s\n",
               r.split.n_ep, r.split.n_tp, r.n_group, r.n_group == 1 ? "" : "s",
               r.prefill.a2a ? "all-to-all" : "all-gather and reduce-scatter");
    else
        printf("split     everything on each of %.0f device%s\n", r.n_group,
               r.n_group == 1 ? "" : "s");
    printf("memory    %.1f GB of weights and %.1f GB of requests on a device of %.1f GB: %s\n",
           r.weights / GB, r.kv_state / GB, r.room / GB, r.fits ? "fits" : "DOES NOT FIT");
    print_step("prefill step", &r.prefill);
    printf("  (%.0f tokens of a group)\n", r.prefill_tok);
    print_step("decode step", &r.decode);
    printf("\n%.0f tokens/s a %s, of them %.0f written; most time goes to: %s\n",
           r.total_per_chip, is_tpu(p) ? "chip" : "node", r.output_per_chip, longest->name);
}

/* Milliseconds of the exchange of a decode step, done this way. */
static double exchange_ms(const plan *p, const lg_plan_result *r, lg_plan_exchange how) {
    lg_plan_split sp = r->split;
    lg_plan_cal cal = cal_of(p->assume);
    lg_plan_step s;
    double sum = 0;
    sp.exchange = how;
    lg_plan_decode(&p->model, &p->hw, &sp, &cal, p->load.concurrency / r->n_group,
                   p->load.isl + p->load.osl / 2, &s);
    for (uint32_t i = 0; i < s.n_term; i++)
        if (s.term[i].limit == 'l' && strcmp(s.term[i].name, "all-reduce") != 0)
            sum += s.term[i].s;
    return sum * 1e3;
}

/* What each size of a group comes to; groups are copies of all experts. */
static void print_groups(const plan *p) {
    const lg_plan_cal cal = cal_of(p->assume);
    printf("\ngroups of devices that hold every expert once (decode exchange both ways, the "
           "shorter is taken)\n"
           "%8s %4s %7s %9s %8s %10s %10s %10s %10s %13s\n",
           "devices", "set", "groups", "experts", "needed", "gather ms", "to all ms",
           "prefill ms", "decode ms", is_tpu(p) ? "tokens/s/chip" : "tokens/s/node");
    for (double ep = 1; ep <= p->hw.n_chip * p->hw.n_dev; ep++) {
        lg_plan_result r;
        if (!lg_plan_best_of(&p->model, &p->hw, &cal, &p->load, ep, &r)) continue;
        printf("%8.0f %4.0f %7.0f %9.0f %5.0f GB %10.3f %10.3f %10.1f %10.3f ", ep,
               r.split.n_tp, r.n_group, ceil(p->model.n_expert / ep),
               (r.weights + r.kv_state) / GB, exchange_ms(p, &r, LG_PLAN_GATHER),
               exchange_ms(p, &r, LG_PLAN_A2A), r.prefill.s * 1e3, r.decode.s * 1e3);
        if (r.fits)
            printf("%13.0f\n", r.total_per_chip);
        else
            printf("%13s\n", "does not fit");
    }
}

static void print_anchors(void) {
    lg_plan_anchor a[LG_PLAN_N_ANCHOR];
    lg_plan_point p[MAX_POINT];
    lg_plan_anchors(a);
    printf("%-46s %10s %10s %8s\n", "397b on tpu7x:2x2x1, published limit", "published", "here",
           "error");
    for (int i = 0; i < LG_PLAN_N_ANCHOR; i++)
        printf("%-46s %10.2f %10.2f %7.1f%%\n", a[i].what, a[i].expected, a[i].found,
               100 * (a[i].found / a[i].expected - 1));
    uint32_t n = lg_plan_points(p, MAX_POINT);
    double sum = 0;
    printf("\n%-14s %6s %6s %6s %12s %10s %8s\n", "measured", "in", "out", "n", "tokens/s/chip",
           "here", "error");
    for (uint32_t i = 0; i < n; i++) {
        double error = p[i].predicted / p[i].measured - 1;
        sum += fabs(error);
        printf("%-14s %6.0f %6.0f %6.0f %12.0f %10.0f %7.1f%%\n", p[i].source, p[i].isl,
               p[i].osl, p[i].concurrency, p[i].measured, p[i].predicted, 100 * error);
    }
    printf("mean error %.1f %% of %u points (the fit took decode steps at 1k/8k and one at "
           "1k/1k)\n",
           100 * sum / n, n);
}

static bool write_file(const plan *p, const char *path, const lg_buf *b) {
    FILE *f = fopen(path, "w");
    bool ok = f && !b->failed && fwrite(lg_buf_str(b), 1, b->len_bytes, f) == b->len_bytes;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) fprintf(stderr, "%s: %s: %s\n", p->argv0, path, strerror(errno ? errno : ENOMEM));
    return ok;
}

/* The measured machine as a file: to p->keep, or printed. */
static bool tell_machine(const plan *p) {
    lg_buf b = {0};
    lg_plan_hw_write(&p->hw, &b);
    bool ok = true;
    if (p->keep)
        ok = write_file(p, p->keep, &b);
    else
        printf(
            "\nthe machine as a hardware file (--keep FILE writes it; the network's fields are "
            "not measured):\n%s",
            lg_buf_str(&b));
    lg_buf_fini(&b);
    return ok;
}

/* ---- sweep ---- */

static bool sweep(const plan *p) {
    double x[N_SWEEP], y[N_ASSUME][N_SWEEP];
    lg_plan_curve curve[N_ASSUME];
    const int n_assume = is_tpu(p) ? N_ASSUME : 1;
    lg_buf csv = {0}, svg = {0};
    lg_buf_puts(&csv, "assume,concurrency,ep,tp,exchange,fits,prefill_ms,decode_ms,"
                      "tokens_per_s_chip,output_per_s_chip,decode_limit\n");
    for (int a = 0; a < n_assume; a++) {
        curve[a] = (lg_plan_curve){assumes[a], x, y[a], 0};
        for (int i = 0; i < N_SWEEP; i++) {
            lg_plan_result r;
            x[i] = ldexp(4, i);
            run_one(p, x[i], a, &r);
            y[a][i] = r.total_per_chip;
            if (r.fits && curve[a].n == (uint32_t)i) curve[a].n++;
            lg_buf_printf(&csv, "%s,%.0f,%.0f,%.0f,%s,%d,%.3f,%.3f,%.1f,%.1f,%s\n", assumes[a],
                          x[i], r.split.n_ep, r.split.n_tp,
                          r.decode.a2a ? "all-to-all" : "all-gather", r.fits, r.prefill.s * 1e3,
                          r.decode.s * 1e3, r.total_per_chip, r.output_per_chip,
                          lg_plan_longest(&r.decode)->name);
        }
    }
    char title[200];
    snprintf(title, sizeof title, "%s on %s, %.0f in, %.0f out", p->model.name, p->hw.name,
             p->load.isl, p->load.osl);
    lg_plan_svg(&svg, title, "requests at a time", "tokens/s/chip", curve, (uint32_t)n_assume);
    bool ok =
        (!p->csv || write_file(p, p->csv, &csv)) && (!p->svg || write_file(p, p->svg, &svg));
    lg_buf_fini(&csv);
    lg_buf_fini(&svg);
    return ok;
}

/* ---- options ---- */

enum {
    OPT_HW = 256,
    OPT_KEEP,
    OPT_ISL,
    OPT_OSL,
    OPT_CONC,
    OPT_BITS,
    OPT_EP,
    OPT_TP,
    OPT_ASSUME,
    OPT_SWEEP,
    OPT_PLOT,
    OPT_GROUPS,
    OPT_ANCHORS,
    OPT_HELP
};

static const struct option long_options[] = {{"model", required_argument, NULL, 'm'},
                                             {"hardware", required_argument, NULL, OPT_HW},
                                             {"keep", required_argument, NULL, OPT_KEEP},
                                             {"isl", required_argument, NULL, OPT_ISL},
                                             {"osl", required_argument, NULL, OPT_OSL},
                                             {"concurrency", required_argument, NULL, OPT_CONC},
                                             {"weight-bits", required_argument, NULL, OPT_BITS},
                                             {"ep", required_argument, NULL, OPT_EP},
                                             {"tp", required_argument, NULL, OPT_TP},
                                             {"assume", required_argument, NULL, OPT_ASSUME},
                                             {"sweep", required_argument, NULL, OPT_SWEEP},
                                             {"plot", required_argument, NULL, OPT_PLOT},
                                             {"groups", no_argument, NULL, OPT_GROUPS},
                                             {"anchors", no_argument, NULL, OPT_ANCHORS},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {NULL, 0, NULL, 0}};

static bool take_count(const plan *p, const char *option, double *to) {
    uint64_t v;
    if (!lg_option_u64(p->argv0, option, optarg, 1, 1u << 24, &v)) return false;
    *to = (double)v;
    return true;
}

static bool take_assume(plan *p) {
    for (int i = 0; i < N_ASSUME; i++)
        if (strcmp(assumes[i], optarg) == 0) return p->assume = i, true;
    fprintf(stderr, "%s: --assume: expected ideal, published or measured, found '%s'\n",
            p->argv0, optarg);
    return false;
}

static bool take_bits(plan *p) {
    char *end;
    p->weight_bits = strtod(optarg, &end);
    if (end != optarg && !*end && p->weight_bits >= 1 && p->weight_bits <= 32) return true;
    fprintf(stderr, "%s: --weight-bits: expected 1 to 32, found '%s'\n", p->argv0, optarg);
    return false;
}

static bool set_option(plan *p, int c, const char **model, const char **hw) {
    switch (c) {
    case 'm': *model = optarg; return true;
    case OPT_HW: *hw = optarg; return true;
    case OPT_KEEP: p->keep = optarg; return true;
    case OPT_ISL: return take_count(p, "--isl", &p->load.isl);
    case OPT_OSL: return take_count(p, "--osl", &p->load.osl);
    case OPT_CONC: return take_count(p, "--concurrency", &p->load.concurrency);
    case OPT_BITS: return take_bits(p);
    case OPT_EP: return take_count(p, "--ep", &p->split.n_ep);
    case OPT_TP: return take_count(p, "--tp", &p->split.n_tp);
    case OPT_ASSUME: return take_assume(p);
    case OPT_SWEEP: p->csv = optarg; return true;
    case OPT_PLOT: p->svg = optarg; return true;
    case OPT_GROUPS: p->groups = true; return true;
    case OPT_ANCHORS: p->anchors = true; return true;
    default: return false;
    }
}

/* A named shape, or what lies at a path; bits of weights as they are there, when weights are there at all. */
static lg_status find_model(plan *p, const char *model, lg_err *err) {
    lg_config c;
    lg_weights *w;
    lg_plan_cpu as_is;
    lg_err no_weights;
    p->bits_from = "";
    if (lg_plan_model_named(model, &p->model)) return LG_OK;
    LG_TRY(lg_config_load(&c, model, err));
    lg_plan_model_of(&c, 1, &p->model);
    if (p->weight_bits > 0) return LG_OK;
    if (lg_weights_check(model, &w, &no_weights) != LG_OK) {
        p->bits_from = " (assumed: no weights are there)";
        return LG_OK;
    }
    lg_plan_cpu_of(w, false, p->model.b_kv, &as_is);
    p->model = as_is.m;
    p->floats = as_is.mlp.n_float > as_is.mlp.n_int;
    p->bits_from = " (as in the files)";
    lg_weights_close(&w);
    return LG_OK;
}

static bool find_hardware(plan *p, const char *hw) {
    lg_err err = {0};
    p->measured = strcmp(hw, "this") == 0;
    if (p->keep && !p->measured) {
        fprintf(stderr, "%s: --keep: expected --hardware this\n", p->argv0);
        return false;
    }
    if (p->measured) {
        if (!lg_roofline_machine(p->argv0, 0, &p->hw)) return false;
        if (p->floats || p->weight_bits >= 16) p->hw.ops_weight = p->hw.ops_32;
        return true;
    }
    if (lg_plan_hw_load(hw, &p->hw, &err) == LG_OK) return true;
    fprintf(stderr, "%s: %s\n", p->argv0, err.msg);
    return false;
}

/* Model and hardware by their names; the split must divide what there is. */
static bool prepare(plan *p, const char *model, const char *hw) {
    lg_err err = {0};
    if (find_model(p, model, &err) != LG_OK) {
        fprintf(stderr, "%s: %s\n", p->argv0, err.msg);
        return false;
    }
    if (!find_hardware(p, hw)) return false;
    if (p->weight_bits > 0) p->model.b_dense = p->model.b_expert = p->weight_bits / 8;
    if (p->assume != 0 && !is_tpu(p)) {
        fprintf(stderr, "%s: --assume %s: its constants are those of tpu7x\n", p->argv0,
                assumes[p->assume]);
        return false;
    }
    double all = p->hw.n_chip * p->hw.n_dev, ep = p->split.n_ep, tp = p->split.n_tp;
    if (ep == 0 && tp == 0) return true;
    if (ep == 0) p->split.n_ep = ep = all;
    if (tp == 0) p->split.n_tp = tp = 1;
    if (ep <= all && fmod(all, ep) == 0 && tp <= ep && fmod(ep, tp) == 0) return true;
    fprintf(stderr,
            "%s: --ep %.0f --tp %.0f: expected tp to divide ep, and ep the %.0f devices\n",
            p->argv0, ep, tp, all);
    return false;
}

int lg_plan_main(int argc, char **argv) {
    plan p = {.argv0 = argv[0], .load = {8192, 1024, 64, 1, 1}};
    const char *model = "397b", *hw = "tpu7x:2x2x1";
    for (int c; (c = getopt_long(argc, argv, "m:", long_options, NULL)) != -1;) {
        if (c == OPT_HELP) {
            fputs(help, stdout);
            return 0;
        }
        if (c == '?' || !set_option(&p, c, &model, &hw)) return lg_option_usage(argv[0]);
    }
    if (optind < argc) {
        fprintf(stderr, "%s: unexpected '%s'\n", argv[0], argv[optind]);
        return lg_option_usage(argv[0]);
    }
    if (p.anchors) {
        print_anchors();
        return 0;
    }
    if (!prepare(&p, model, hw)) return 1;
    print_plan(&p);
    if (p.groups) print_groups(&p);
    if (p.measured && !tell_machine(&p)) return 1;
    return (!p.csv && !p.svg) || sweep(&p) ? 0 : 1;
}
