/* kernels.h - parts of a step made for TPUs in place of StableHLO's: our kernels, and sums along the wires.
 *
 * Fills an lg_step_parts (step.h).  Each part is used where it fits the model's sizes, and said so in lg_kernels_about.
 * With `twin` set every kernel call is written as its twin (twin.h) instead: the same operands in the same form, so that what
 * surrounds the kernels can be run on any plugin.  Test: tests/unit/test_step_types.c */
#ifndef LG_BACKEND_PJRT_MOSAIC_KERNELS_H
#define LG_BACKEND_PJRT_MOSAIC_KERNELS_H

#include "backend/pjrt/step/collective.h"
#include "backend/pjrt/step/step.h"

typedef struct lg_kernels {
    lg_step_parts
        parts; /* for lg_pjrt_model.parts; its ctx is this struct, which must stay where it is */
    bool twin;
    lg_collective_plan plan;
    char about[160];
} lg_kernels;

/* dev: where the model's n_device devices are; NULL: not known (then sums are plain).  twin: as above. */
void lg_kernels_init(lg_kernels *k, const lg_pjrt_model *m, const lg_pjrt_device_info *dev,
                     bool twin);

/* Which parts are used: "GDN kernels, expert kernels, sums along the wires"; borrowed. */
const char *lg_kernels_about(const lg_kernels *k);

#endif
