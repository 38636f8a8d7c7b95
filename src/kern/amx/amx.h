/* amx.h - what level amx adds to the level beneath it.  Contracts: kern.h, under the same name. */
#ifndef LG_KERN_AMX_AMX_H
#define LG_KERN_AMX_AMX_H

#include "kern/kern.h"

void lg_qgemm_amx(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const lg_qrows *x,
                  const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y);

#endif
