/* quant_fit.h - round the matrices of an open model to block types in memory, for tests without a file of such types.
 * The encoders are simple ones: scales from the extremes of a run. */
#ifndef LG_TESTS_QUANT_FIT_H
#define LG_TESTS_QUANT_FIT_H

#include "model/weights/weights.h"

typedef struct quant_fit {
    void *panel[1024]; /* owned */
    size_t n;
    uint32_t n_type[LG_N_DTYPE]; /* matrices made of each type */
} quant_fit;

/* Replace every matrix but router, b and a: Q4_K and Q6_K in turn where the width is a multiple of 256 (and k_types),
 * else Q8_0.  The panels belong to *f. */
void quant_fit_weights(quant_fit *f, lg_weights *w, bool k_types);
void quant_fit_fini(quant_fit *f);

#endif
