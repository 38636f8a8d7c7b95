/* kernels.c - which of our parts a model's steps get (kernels.h).
 *
 * Test: tests/unit/test_kernels.c */
#include "backend/pjrt/kernels.h"

#include <stdio.h>
#include <string.h>

static lg_hlo_val reduce_scatter(void *ctx, lg_hlo *h, lg_hlo_val x, uint32_t n_dev) {
    const lg_kernels *k = ctx;
    LG_ASSERT(n_dev == k->plan.n);
    return lg_collective_reduce_scatter(&k->plan, h, x, lg_hlo_type_at(h, x).dt);
}

static void say(lg_kernels *k, const char *what) {
    size_t n = strlen(k->about);
    snprintf(k->about + n, sizeof k->about - n, "%s%s", n ? ", " : "", what);
}

void lg_kernels_init(lg_kernels *k, const lg_pjrt_model *m, const lg_pjrt_device_info *dev) {
    *k = (lg_kernels){.parts = {.ctx = k}};
    if (dev && m->n_device > 1 &&
        lg_collective_plan_make(&k->plan, dev, m->n_device, NULL) == LG_OK) {
        k->parts.reduce_scatter = reduce_scatter;
        say(k, "sums along the wires");
    }
}

const char *lg_kernels_about(const lg_kernels *k) {
    return k->about[0] ? k->about : "plain";
}
