/* twin_rig.h - runs the twin of a kernel on XLA's CPU plugin with the arrays that mosaic_eval.h takes. */
#ifndef LG_TESTS_TWIN_RIG_H
#define LG_TESTS_TWIN_RIG_H

#include "backend/pjrt/mosaic/mosaic.h"
#include "mosaic_eval.h"

/* false: the plugin is not there. */
bool twin_rig_open(void);
void twin_rig_close(void);

typedef void (*twin_fn)(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result);

/* fetch and win as for mosaic_eval; out[i] gets result i as floats (malloc).  Operands are not changed. */
void twin_rig_run(const lg_mosaic_kernel *k, twin_fn twin, const void *g,
                  const mosaic_array *fetch, const mosaic_array *win, float **out);

#endif
