/* quant.h - how the matrices of a folder are quantised, as the quantization_config of its config.json says.
 *
 * Methods: GPTQ, AWQ, compressed-tensors, modelopt, mxfp4 (fused experts).  "fp8" with blocks of 128 x 128 needs no more than
 * LG_QUANT_FP8.  A file may quantise matrices in several ways and leave others alone: which way a matrix *may* be
 * stored is a scheme here; which it *is* the tensors say (weights_quant.c), and both must agree.
 * Test: tests/unit/test_config.c, tests/unit/test_quant.c, fuzz/fuzz_config.c */
#ifndef LG_MODEL_WEIGHTS_QUANT_H
#define LG_MODEL_WEIGHTS_QUANT_H

#include "model/config_read.h"

#define LG_MAX_SCHEME 16

typedef enum {
    LG_SCHEME_INT,
    LG_SCHEME_FP8,   /* E4M3 */
    LG_SCHEME_NVFP4, /* E2M1 in groups of 16 */
    LG_SCHEME_MXFP4  /* E2M1 in groups of 32 */
} lg_scheme_kind;

typedef enum { LG_PER_GROUP, LG_PER_CHANNEL, LG_PER_BLOCK, LG_PER_TENSOR } lg_scheme_per;

/* One way to store a matrix. */
typedef struct lg_scheme {
    lg_scheme_kind kind;
    lg_scheme_per per; /* what shares a scale; blocks are 128 x 128 */
    uint32_t bits;     /* 4 or 8 */
    uint32_t group;    /* input channels of a group (LG_PER_GROUP) */
    bool packed;       /* compressed-tensors: in words; else in bytes */
    bool sym;          /* no zero points */
    bool act_order;    /* groups in any order */
} lg_scheme;

typedef struct lg_quant lg_quant;

/* Read a quantization_config whose quant_method is one of the above; `at` is its place.  The caller owns *q, which borrows
 * the JSON; q may be NULL: only check.  LG_OK; LG_E_FORMAT, LG_E_UNSUPPORTED naming the field; LG_E_NOMEM. */
lg_status lg_quant_read(const lg_config_place *at, const lg_json *obj, lg_quant_method method,
                        lg_quant **q);

/* The same for the folder's config.json, which must have one; *q keeps what it needs. */
lg_status lg_quant_load(const char *folder, lg_quant **q, lg_err *err);
void lg_quant_close(lg_quant **q);

lg_quant_method lg_quant_method_of(const lg_quant *q);

/* The method by its name in config.json, LG_QUANT_NONE for another. */
lg_quant_method lg_quant_named(const lg_json *name);
const char *lg_quant_name(lg_quant_method method);

/* GPTQ: zero points are stored less one, word by word. */
bool lg_quant_zero_less_one(const lg_quant *q);

/* The scheme for a module ("model.layers.0.mlp.up_proj"), NULL when the file's lists leave it out; *list then names the
 * list.  It may be changed by the next call. */
const lg_scheme *lg_quant_find(lg_quant *q, const char *module, const char **list);

#endif
