/* togguf.h - a Hugging Face folder to a GGUF file, with its matrices in a type of choice.
 *
 * Names, transforms and the order of value heads are those of the family's GGUF files: docs/QUANTIZE.md.
 *   togguf.c         the file from start to end: rows are read, transformed, stored, a few megabytes at a time
 *   togguf_tensors.c the list of tensors: where their rows come from, and their types
 *   togguf_meta.c    keys, tokenizer
 * Test: tests/unit/test_togguf.c, tests/py/quantize.py */
#ifndef LG_MODEL_FILE_TOGGUF_H
#define LG_MODEL_FILE_TOGGUF_H

#include "base/buf.h"
#include "base/pool.h"
#include "model/config.h"
#include "model/file/gguf_write.h"
#include "model/file/imatrix.h"
#include "model/weights/tensors.h"

/* Matrices whose GGUF name fits `pattern` (* and ? as in file names) get another type. */
typedef struct lg_togguf_rule {
    const char *pattern;
    lg_dtype type;
} lg_togguf_rule;

typedef struct lg_togguf_opt {
    lg_dtype
        type; /* of all matrices; LG_MXFP4: of the routed experts, the others get LG_Q8_0 */
    const lg_togguf_rule *rule; /* the last one that fits counts */
    size_t n_rule;
    const lg_imatrix *imatrix; /* importance of channels, or NULL: all count the same */
    bool no_mtp;               /* leave the draft layer out */
    lg_progress_fn *progress;  /* may be NULL */
    void *progress_ctx;
} lg_togguf_opt;

/* What was written. */
typedef struct lg_togguf_report {
    uint32_t n_tensor[LG_N_DTYPE]; /* by type */
    uint64_t bytes[LG_N_DTYPE];
    double error
        [LG_N_DTYPE];    /* sum of squared errors over sum of squares, of the type's tensors */
    uint32_t n_weighted; /* tensors for which the importance of channels was known */
    uint32_t n_fallback; /* tensors whose rows are no multiple of their type's block */
    lg_dtype fallback_from, fallback_to; /* of the first of them */
    bool mtp;                            /* the draft layer is in the file */
    char mtp_reason[256];                /* why it is not, when the folder has one; else "" */
    uint64_t file_bytes;
    uint64_t buffer_bytes; /* working memory: does not depend on the size of the model */
} lg_togguf_report;

/* Write the model of `folder` as the file `out`.  pool may be NULL.
 * Returns LG_OK; LG_E_ARG (a type that cannot be written; a rule that fits no matrix); LG_E_IO, LG_E_FORMAT,
 * LG_E_UNSUPPORTED (also a folder that is a GGUF file, and a tokenizer that GGUF cannot express), LG_E_NOMEM,
 * LG_E_CANCELLED; then nothing is left of the file. */
lg_status lg_togguf_write(const char *folder, const char *out, const lg_togguf_opt *opt,
                          lg_pool *pool, lg_togguf_report *report, lg_err *err);

/* ---- between the three files ---- */

typedef enum { LG_TOGGUF_PLAIN, LG_TOGGUF_ONE_PLUS, LG_TOGGUF_NEG_EXP } lg_togguf_map;

/* One tensor of the new file and where its rows come from.  Row r belongs to expert e = r / n_row_expert and is row
 * row0 + r % n_row_expert of it; expert e is rows e * stride ... of the view, or the matrix of that number in `expert`. */
typedef struct lg_togguf_tensor {
    char name[64];
    lg_dtype type;
    bool fixed, routed; /* always F32; belongs to routed experts */
    uint32_t n_dim;
    uint64_t dim[3]; /* innermost first */
    uint64_t n_row;
    uint32_t n_in;
    const lg_view *view;  /* NULL: experts one by one */
    const lg_view *scale; /* of an FP8 view, or NULL */
    const lg_view *
        *expert; /* [n_expert][matrix, its scale or NULL]; in lg_togguf_list.experts */
    uint64_t row0, stride, n_row_expert;
    lg_togguf_map map;
    uint64_t v_row0;    /* rows from here on are value heads ... */
    uint32_t v_rows;    /* ... of so many rows each, to be put into tiled order; 0: none are */
    uint32_t v_columns; /* the same for all columns */
} lg_togguf_tensor;

typedef struct lg_togguf_list {
    lg_togguf_tensor *tensor; /* [n] owned, room for cap */
    size_t n, cap;
    const lg_view **expert; /* owned: what tensor.expert points into */
    size_t n_expert_used, n_expert_cap;
} lg_togguf_list;

/* All tensors of the model and their types.  set has been checked against cfg except for the draft layer.  LG_OK,
 * LG_E_ARG, LG_E_NOMEM; the list is the caller's in any case. */
lg_status lg_togguf_tensors_list(const char *folder, const lg_config *cfg, lg_tensors *set,
                                 const lg_togguf_opt *opt, lg_togguf_list *list,
                                 lg_togguf_report *report, lg_err *err);
void lg_togguf_tensors_fini(lg_togguf_list *list);

/* All keys.  LG_OK, LG_E_IO, LG_E_FORMAT, LG_E_UNSUPPORTED, LG_E_NOMEM. */
lg_status lg_togguf_meta_write(lg_gguf_write *w, const char *folder, const lg_config *cfg,
                               const lg_togguf_opt *opt, bool mtp, lg_err *err);

#endif
