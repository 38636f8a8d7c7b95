/* anchors.c - published numbers of the 397B model on four TPU7x chips: see plan.h.
 *
 * The limits are of the team that put the model there; the measurements are from its pull requests, totals of the machine
 * divided by four.  Lengths drawn from 0.8 to 1.0 of the maximum are entered with their mean, 0.9.
 * Memory: none.  Test: tests/unit/test_plan.c */
#include "plan/plan.h"

#include <math.h>

#define DISCOUNT 0.87 /* of the published limits */

static void four_chips(lg_plan_model *m, lg_plan_hw *hw) {
    lg_plan_model_named("397b", m);
    lg_plan_hw_load("tpu7x:2x2x1", hw, NULL);
}

void lg_plan_anchors(lg_plan_anchor a[LG_PLAN_N_ANCHOR]) {
    lg_plan_model m;
    lg_plan_hw hw;
    lg_plan_result r;
    lg_plan_step step;
    const lg_plan_split dp8 = {8, 1, LG_PLAN_GATHER};
    const lg_plan_cal published = lg_plan_cal_published(), ideal = lg_plan_cal_ideal();
    const lg_plan_load load = {8192, 1024, 64, 1, 1};
    four_chips(&m, &hw);
    lg_plan_decode(&m, &hw, &dp8, &published, 64, 5120, &step);
    double decode = 64 / (4 * step.s);
    a[0] = (lg_plan_anchor){"decode step of 64, ms", 16.36, step.s * 1e3};
    a[1] = (lg_plan_anchor){"decode, tokens/s a chip", 978, decode};
    a[2] = (lg_plan_anchor){"decode, discounted", 850, decode * DISCOUNT};
    lg_plan_serve(&m, &hw, &dp8, &published, &load, &r);
    a[3] = (lg_plan_anchor){"prefill-heavy, tokens/s a chip", 5170, r.total_per_chip};
    a[4] = (lg_plan_anchor){"prefill-heavy, discounted", 4500, r.total_per_chip * DISCOUNT};
    lg_plan_prefill(&m, &hw, &dp8, &ideal, 8192, 4096, &step);
    a[5] = (lg_plan_anchor){"ideal prefill of 8,192, ms", 62, step.s * 1e3};
    lg_plan_decode(&m, &hw, &dp8, &ideal, 64, 5120, &step);
    a[6] = (lg_plan_anchor){"decode step of 64, cold experts skipped, ms", 12.65, step.s * 1e3};
}

/* As published: devices of a set of sequences, lengths, concurrency, tokens/s of the machine. */
static const struct {
    const char *source;
    double n_tp, isl, osl, concurrency, total;
} measured[] = {
    {"#2985 1k/8k", 1, 922, 7373, 64, 2693},    {"#2985 1k/8k", 1, 922, 7373, 128, 4548},
    {"#2985 1k/8k", 1, 922, 7373, 256, 6768},   {"#2985 1k/8k", 1, 922, 7373, 512, 8771},
    {"#2985 8k/1k", 1, 7373, 922, 64, 14929},   {"#2985 8k/1k", 1, 7373, 922, 128, 21506},
    {"#2985 8k/1k", 1, 7373, 922, 256, 25023},  {"#2985 8k/1k", 1, 7373, 922, 512, 27102},
    {"#2888 8k/1k", 1, 7373, 922, 64, 14881},   {"#2888 8k/1k", 1, 7373, 922, 256, 22123},
    {"#3050 8k/1k", 2, 7373, 922, 16, 6975},    {"#3050 8k/1k", 2, 7373, 922, 32, 10397},
    {"#3050 8k/1k", 1, 7373, 922, 64, 14812},   {"#3050 8k/1k", 1, 7373, 922, 256, 28445},
    {"#3079 8k/1k", 2, 8192, 1024, 16, 8349},   {"#3079 8k/1k", 2, 8192, 1024, 32, 12504},
    {"#3079 8k/1k", 1, 8192, 1024, 64, 17825},  {"#3079 8k/1k", 1, 8192, 1024, 128, 24905},
    {"#3079 8k/1k", 1, 8192, 1024, 256, 32585}, {"#3079 1k/1k", 2, 1024, 1024, 16, 2229},
    {"#3079 1k/1k", 2, 1024, 1024, 32, 3660},   {"#3079 1k/1k", 2, 1024, 1024, 64, 5989},
    {"#3079 1k/1k", 2, 1024, 1024, 128, 9146},  {"#3116 8k/1k", 8, 8192, 1024, 4, 3364},
    {"#3116 8k/1k", 8, 8192, 1024, 8, 5116},    {"#3116 1k/1k", 8, 1024, 1024, 4, 946},
    {"#3116 1k/1k", 8, 1024, 1024, 8, 1640}};

uint32_t lg_plan_points(lg_plan_point *p, uint32_t max) {
    lg_plan_model m;
    lg_plan_hw hw;
    const lg_plan_cal cal = lg_plan_cal_measured();
    uint32_t n = 0;
    four_chips(&m, &hw);
    for (; n < sizeof measured / sizeof *measured && n < max; n++) {
        const lg_plan_split sp = {8, measured[n].n_tp, LG_PLAN_GATHER};
        const lg_plan_load load = {measured[n].isl, measured[n].osl, measured[n].concurrency, 1,
                                   1};
        lg_plan_result r;
        lg_plan_serve(&m, &hw, &sp, &cal, &load, &r);
        p[n] =
            (lg_plan_point){measured[n].source,    load.isl,        load.osl, load.concurrency,
                            measured[n].total / 4, r.total_per_chip};
    }
    return n;
}
