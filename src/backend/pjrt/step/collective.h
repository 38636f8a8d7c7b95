/* collective.h - sums over devices that follow how the devices are wired.
 *
 * A reduce-scatter in halves: with each partner a device exchanges half of what it still holds, so after log2(n) exchanges it
 * holds the sum of its own part.  First the other core of its chip, where the link is fastest and half of everything goes; then
 * chips that are neighbours along x, y, z.  Between chips the columns are cut into as many strips as there are such exchanges, and
 * each strip takes them in another order, so that all links are busy at once; and into blocks, so that one block's chip exchange
 * goes on while another's core exchange does.  All of it is collective_permute, adds and slices: the compiler starts and ends the
 * exchanges as it likes.  The sums are the plain reduce-scatter's in another order.
 * Test: tests/unit/test_collective.c */
#ifndef LG_BACKEND_PJRT_STEP_COLLECTIVE_H
#define LG_BACKEND_PJRT_STEP_COLLECTIVE_H

#include "backend/pjrt/step/hlo.h"
#include "backend/pjrt/pjrt.h"

/* Device i of a program has the address addr[i]: one bit for each exchange, the core's first, then x, y, z, lowest first. */
typedef struct lg_collective_plan {
    uint32_t n;                 /* devices, a power of two */
    uint32_t n_core_bit, n_bit; /* exchanges inside a chip; in all */
    uint32_t n_block;           /* blocks of columns; 0: by the number of rows */
    uint16_t addr[LG_PJRT_MAX_DEV];
} lg_collective_plan;

/* From where the devices are.  LG_OK; LG_E_UNSUPPORTED when they are not a full box whose sides are powers of two (use the plain
 * collective then). */
lg_status lg_collective_plan_make(lg_collective_plan *p, const lg_pjrt_device_info *dev,
                                  uint32_t n, lg_err *err);

/* x [n * rows][cols] -> [rows][cols]: part i of the sum over all devices, on device i.  Numbers travel as `wire` and are added as
 * x's type (wire BF16 with x F32: only what is sent is rounded). */
lg_hlo_val lg_collective_reduce_scatter(const lg_collective_plan *p, lg_hlo *h, lg_hlo_val x,
                                        lg_hlo_dt wire);

#endif
