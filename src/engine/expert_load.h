/* expert_load.h - how often each expert was chosen, as a file: measured by one run, used to place experts in the next.
 *
 *     {"n_layer": 60, "n_expert": 512, "load": [[12, 0, ...], ...]}         one list a layer, one number an expert
 *
 * Test: tests/unit/test_ranks.c */
#ifndef LG_ENGINE_EXPERT_LOAD_H
#define LG_ENGINE_EXPERT_LOAD_H

#include "base/diag.h"

/* load [n_layer * n_expert].  LG_E_IO; LG_E_FORMAT naming file and place: other counts than the model's, or a number that is
 * negative or not finite; LG_E_NOMEM. */
lg_status lg_expert_load_read(const char *path, uint32_t n_layer, uint32_t n_expert,
                              float *load, lg_err *err);

/* LG_OK, LG_E_IO, LG_E_NOMEM.  The file appears whole or not at all. */
lg_status lg_expert_load_write(const char *path, uint32_t n_layer, uint32_t n_expert,
                               const uint64_t *n_chosen, lg_err *err);

#endif
