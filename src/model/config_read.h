/* config_read.h - what config.c, config_keys.c, quant_config.c and gguf_config.c share: limits, a place in a file, the check of its keys. */
#ifndef LG_MODEL_CONFIG_READ_H
#define LG_MODEL_CONFIG_READ_H

#include "model/config.h"

#define LG_CONFIG_MAX_SIZE (1u << 20) /* hidden and intermediate sizes */
#define LG_CONFIG_MAX_ROWS (1u << 24) /* rows of any matrix */

/* Where an object stands; a flat config.json is FILE and TEXT at once. */
enum {
    LG_CONFIG_FILE = 1,   /* the outermost object of config.json */
    LG_CONFIG_NEST = 2,   /* the same, with text_config inside */
    LG_CONFIG_TEXT = 4,   /* the text model */
    LG_CONFIG_MOE = 8,    /* the text model, mixture of experts */
    LG_CONFIG_DENSE = 16, /* the text model, dense */
    LG_CONFIG_ROPE = 32,  /* rope_parameters */
    LG_CONFIG_QUANT = 64, /* quantization_config */
    LG_CONFIG_GEN = 128,  /* generation_config.json */
    /* quantization_config of other methods, and what lies in it */
    LG_CONFIG_GPTQ = 256,
    LG_CONFIG_DYNAMIC = 512, /* one value of GPTQ's "dynamic" */
    LG_CONFIG_AWQ = 1024,
    LG_CONFIG_CT = 2048,
    LG_CONFIG_CT_GROUP = 4096, /* one of config_groups */
    LG_CONFIG_CT_ARGS = 8192,  /* its "weights" */
    LG_CONFIG_MODELOPT = 16384,
    LG_CONFIG_MXFP4 = 32768
};

/* What messages about an object say.  All borrowed. */
typedef struct lg_config_place {
    const char *what;   /* file */
    const char *prefix; /* "" or "text_config." */
    unsigned place;     /* LG_CONFIG_* */
    lg_err *err;
} lg_config_place;

/* Every member of `obj` against the table.  LG_OK; LG_E_UNSUPPORTED (unknown key, or a value we do not compute);
 * LG_E_FORMAT (a key twice, or too many). */
lg_status lg_config_check_keys(const lg_config_place *at, const lg_json *obj);

/* A value in a few printable characters, "nothing" for NULL.  Returns buf. */
const char *lg_config_show(const lg_json *v, char *buf, size_t size_bytes);

#endif
