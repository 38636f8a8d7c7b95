/* twin.h - the kernels of mosaic_kern.h in plain StableHLO: same operands, same results, for any plugin.
 *
 * They say what the numbers are: written the simplest way (the recurrence row by row, a product tile by tile,
 * one softmax over all pages), in F32.
 * arg: the prefetched operands, then the others; result: as the kernel's.  Sizes need not fit the kernel.
 * Tests: tests/unit/test_mosaic_*.c (on the arrays that the kernels get), test_step_types.c (in a model) */
#ifndef LG_BACKEND_PJRT_MOSAIC_TWIN_H
#define LG_BACKEND_PJRT_MOSAIC_TWIN_H

#include "backend/pjrt/mosaic/mosaic_kern.h"

void lg_twin_gdn_decode(const lg_mosaic_gdn *g, lg_hlo *h, const lg_hlo_val *arg,
                        lg_hlo_val *result);
void lg_twin_gdn_prefill(const lg_mosaic_gdn *g, lg_hlo *h, const lg_hlo_val *arg,
                         lg_hlo_val *result);
void lg_twin_gmm(const lg_mosaic_gmm *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result);
void lg_twin_attn(const lg_mosaic_attn *a, lg_hlo *h, const lg_hlo_val *arg,
                  lg_hlo_val *result);

#endif
