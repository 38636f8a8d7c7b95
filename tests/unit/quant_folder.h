/* quant_folder.h - folders for tests: a model's weights quantised by plain code and written as a method does, and beside it the
 * same numbers as F32.  Layouts are written down here a second time, from the formats' descriptions. */
#ifndef LG_TESTS_QUANT_FOLDER_H
#define LG_TESTS_QUANT_FOLDER_H

#include "fixture.h"
#include "kern/kern.h"
#include "model/weights/quant.h"

/* How to store a matrix. */
typedef struct qf_spec {
    lg_quant_method method;
    lg_scheme scheme;    /* group 0: the whole row */
    lg_dtype scale_type; /* LG_F16, LG_BF16, LG_F32 of integers and FP8 */
    bool v2;             /* GPTQ: zero points as they are */
} qf_spec;

/* A tensor to be written. */
typedef struct qf_tensor {
    char name[160];
    const char *type; /* "I32" */
    uint32_t n_dim;
    uint64_t shape[4];
    uint8_t *data;
    size_t len_bytes;
} qf_tensor;

typedef struct qf_set {
    qf_tensor *t;
    size_t n;
} qf_set;

/* Append a tensor of zeros, its data to be filled; type as in the file. */
qf_tensor *qf_add(qf_set *s, const char *name, const char *type, uint32_t n_dim,
                  const uint64_t *shape);
qf_tensor *qf_find(qf_set *s, const char *name);
void qf_fini(qf_set *s);

/* Write the set as the folder's only file of tensors. */
void qf_write(const qf_set *s, const lg_fixture *f);

/* The tensors of model folder `source`: into `plain` with the chosen matrices dequantised to F32, into `quant` as the method
 * stores them.  choose: how to store module `name`, NULL for as it is.  Stacked experts become modules of their own unless
 * the method is mxfp4. */
typedef const qf_spec *qf_choose(void *ctx, const char *name);
void qf_make(const char *source, qf_choose *choose, void *ctx, qf_set *quant, qf_set *plain);

#endif
