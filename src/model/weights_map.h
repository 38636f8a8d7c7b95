/* weights_map.h - what weights.c and weights_map.c share: one walk over all tensors that a model must have. */
#ifndef LG_MODEL_WEIGHTS_MAP_H
#define LG_MODEL_WEIGHTS_MAP_H

#include "base/mem.h"
#include "model/weights.h"

/* A matrix to be packed: rows in the file, panels in the block. */
typedef struct lg_weights_job {
    lg_dtype type;
    uint32_t n_out, n_in;
    const uint8_t *src; /* row-major [n_out][n_in], mapped */
    void *dst;
} lg_weights_job;

/* The state of a walk.  The first one counts (arena without block, no jobs) and checks; the second carves and fills. */
typedef struct lg_weights_walk {
    lg_weights *w; /* cfg, layer and expert arrays are there; fields are filled */
    lg_tensors *set;
    const char *path; /* folder, for messages */
    lg_arena arena;
    lg_weights_job *job; /* NULL when counting */
    size_t n_job;
    uint64_t pack_bytes; /* panels of all jobs */
    uint64_t n_param, n_param_expert;
    uint32_t n_fp8; /* matrices stored as FP8 */
    lg_err *err;
} lg_weights_walk;

/* Visit every tensor of the model in a fixed order: names, types and shapes are checked, the views are marked as used,
 * vectors are converted, matrices become jobs.  LG_OK, LG_E_FORMAT, LG_E_UNSUPPORTED. */
lg_status lg_weights_map_walk(lg_weights_walk *walk);

/* After a walk: count vision and MTP tensors as skipped and refuse any other that was not used. */
lg_status lg_weights_map_rest(lg_weights_walk *walk);

#endif
