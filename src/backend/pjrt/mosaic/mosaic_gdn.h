/* mosaic_gdn.h - what the two Gated DeltaNet kernels share: their windows, in the order of mosaic_kern.h. */
#ifndef LG_BACKEND_PJRT_MOSAIC_MOSAIC_GDN_H
#define LG_BACKEND_PJRT_MOSAIC_MOSAIC_GDN_H

#include "backend/pjrt/mosaic/mosaic_kern.h"

#define LG_MOSAIC_GDN_D 128u

enum {
    GDN_QKV,
    GDN_A,
    GDN_B,
    GDN_CONV_W,
    GDN_NEG_A,
    GDN_DT,
    GDN_CONV,
    GDN_STATE,
    GDN_OUT,
    GDN_CONV_OUT,
    GDN_STATE_OUT
};
enum { GDN_SLOT, GDN_MODE, GDN_LAYER };

/* Weights and pools, which are the same in both; counts of windows. */
void lg_mosaic_gdn_windows(const lg_mosaic_gdn *g, lg_mosaic_kernel *k);

/* The first step of the grid, when it is idle, hands its slot's block through: what leaves is what came. */
void lg_mosaic_gdn_through(lg_mosaic *m, uint32_t from, uint32_t to, lg_mv mode, lg_mv z);

#endif
