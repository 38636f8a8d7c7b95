/* weights_map.h - what weights.c, weights_map.c, weights_quant.c and packq.c share: one walk over all tensors that a model must
 * have. */
#ifndef LG_MODEL_WEIGHTS_WEIGHTS_MAP_H
#define LG_MODEL_WEIGHTS_WEIGHTS_MAP_H

#include "base/mem.h"
#include "model/weights/quant.h"
#include "model/weights/weights.h"

#define LG_WEIGHTS_NAME 192 /* bytes of a tensor's name */

/* How the integers of a quantised matrix lie in their tensor. */
typedef enum {
    LG_CODES_ROWS, /* [n_out][n_in], of four bits the even channel low */
    LG_CODES_GPTQ, /* words [n_in / n][n_out], n = 32 / bits channels of input in a word, ascending from the low bits */
    LG_CODES_AWQ   /* words [n_in][n_out / 8], output channels in the order 0 2 4 6 1 3 5 7 */
} lg_codes;

/* How zero points lie: words as above with the group in place of the input channel. */
typedef enum {
    LG_ZERO_CONST,
    LG_ZERO_GPTQ, /* words [n_group][n_out / n] */
    LG_ZERO_AWQ,
    LG_ZERO_OUT,  /* words [n_out / n][n_group] */
    LG_ZERO_BYTES /* signed [n_out][n_group] */
} lg_zeros;

/* A quantised matrix in the file; all mapped. */
typedef struct lg_qsrc {
    const uint8_t *code; /* NULL: the matrix is not quantised by groups */
    lg_codes order;
    lg_zeros zeros;
    uint8_t bits;       /* 4 or 8 */
    uint8_t flip;       /* turned in every code: 128 for signed bytes */
    uint8_t zero_const; /* LG_ZERO_CONST */
    bool zero_less_one; /* words of zero points are stored less one in each place */
    bool scale_by_out;  /* scales are [n_out][n_group], else [n_group][n_out] */
    lg_dtype
        scale_type; /* LG_F32, LG_F16, LG_BF16, LG_E4M3, or LG_MXFP4: a power of two in a byte */
    const uint8_t *scale; /* one if n_scale is 1 */
    const uint8_t *zero;
    uint64_t n_scale;
    uint32_t group, n_group; /* input channels; the last group may be short */
} lg_qsrc;

/* A matrix to be packed: rows in the file, panels in the block. */
typedef struct lg_weights_job {
    lg_dtype type;
    uint32_t n_out, n_in;
    const uint8_t *src; /* row-major [n_out][n_in], mapped; NULL when q says where */
    void *dst;
    lg_qsrc q;
    float *scale; /* of LG_I*_ANY: tables of the matrix, filled with the panels */
    uint8_t *zero;
} lg_weights_job;

/* packq.c: as lg_pack_panels for a job with q.code. */
void lg_packq_panels(const lg_weights_job *j, uint32_t panel0, uint32_t n_panel);

/* The scale and the zero point of output channel c in group g. */
float lg_packq_scale(const lg_qsrc *q, uint32_t n_out, uint32_t c, uint32_t g);
uint8_t lg_packq_zero(const lg_qsrc *q, uint32_t n_out, uint32_t c, uint32_t g);

/* The state of a walk.  The first one counts (arena without block, no jobs) and checks; the second carves and fills. */
typedef struct lg_weights_walk {
    lg_weights *w; /* cfg, layer and expert arrays are there; fields are filled */
    lg_tensors *set;
    lg_quant *quant;  /* NULL: none, or fp8 */
    const char *path; /* folder, for messages */
    lg_arena arena;
    bool keep;  /* the block will be written to a file */
    bool ready; /* the arena's block is filled already: values are neither read nor written */
    lg_weights_job *job; /* NULL when counting */
    size_t n_job;
    const lg_weights_part *part; /* NULL: all experts */
    bool elsewhere;              /* the expert being visited is checked, not loaded */
    uint64_t pack_bytes;         /* panels of all jobs */
    uint64_t plan;               /* a hash of types, sizes and places of all matrices */
    uint64_t n_param, n_param_expert;
    uint32_t n_quant; /* matrices that quantization_config is about */
    uint32_t
        n_slow; /* matrices of blocks without integer products, and the type of the last one */
    lg_dtype slow;
    lg_err *err;
} lg_weights_walk;

/* Visit every tensor of the model in a fixed order: names, types and shapes are checked, the views are marked as used,
 * vectors are converted, matrices become jobs.  LG_OK, LG_E_FORMAT, LG_E_UNSUPPORTED. */
lg_status lg_weights_map_walk(lg_weights_walk *walk);

/* weights_quant.c: the matrix `name` ("... .weight") [n_out][n_in] if it is quantised as k->quant says; else *taken is
 * false and nothing has happened. */
lg_status lg_weights_quant_mat(lg_weights_walk *k, const char *name, uint32_t n_out,
                               uint32_t n_in, lg_mat *m, bool *taken);

/* weights_quant.c: the experts of a layer, when the stacked tensors of these names are kept as NAME_blocks and NAME_scales
 * (mxfp4); gate rows before up rows.  *taken as above. */
lg_status lg_weights_quant_experts(lg_weights_walk *k, const char *gate_up, const char *down,
                                   lg_layer_w *l, bool *taken);

/* Count a matrix and, when jobs are kept, add one; the caller fills its source. */
lg_weights_job *lg_weights_put(lg_weights_walk *k, lg_dtype type, uint32_t n_out, uint32_t n_in,
                               lg_mat *m);

/* Expert x of layer l is visited next; it may be another rank's. */
void lg_weights_at_expert(lg_weights_walk *walk, const lg_layer_w *l, uint32_t x);

/* After a walk: count vision and MTP tensors as skipped and refuse any other that was not used. */
lg_status lg_weights_map_rest(lg_weights_walk *walk);

#endif
