/* weights.h - one struct for the model's weights, filled from any file format.
 *
 * Names -> fields, every tensor consumed exactly once, then packed into the kernels' panel layout (kern.h).  Vision and MTP
 * tensors are known and listed as skipped.  Memory: one block per weight kind, owned by lg_weights, until close.
 * Of a matrix with n panels memory node k of N (lg_pool_n_node) has panels [lg_pool_share(n, k, N), lg_pool_share(n, k + 1, N)):
 * its threads write them first.  Pages of a packed file lie wherever the system's file cache has them.
 * Test: tests/unit/test_weights.c, tests/unit/test_loader.c (damaged folders), tests/unit/test_golden.c */
#ifndef LG_MODEL_WEIGHTS_WEIGHTS_H
#define LG_MODEL_WEIGHTS_WEIGHTS_H

#include "base/pool.h"
#include "kern/kern.h"
#include "model/config.h"
#include "model/weights/tensors.h"

/* Two-layer gated MLP: down(silu(gate x) * up x).  Dense MLP, shared expert or one routed expert. */
typedef struct lg_mlp_w {
    lg_mat gate, up; /* [n_ff][n_embd] */
    lg_mat down;     /* [n_embd][n_ff] */
} lg_mlp_w;

typedef struct lg_layer_w {
    lg_layer_kind kind;
    const float *in_norm;   /* [n_embd], 1 + w */
    const float *post_norm; /* [n_embd], 1 + w */
    /* LG_LAYER_ATTN */
    lg_mat q;            /* [n_head * 2 * d_head][n_embd]: per head query then gate */
    lg_mat k, v;         /* [n_kv_head * d_head][n_embd] */
    lg_mat o;            /* [n_embd][n_head * d_head] */
    const float *q_norm; /* [d_head], 1 + w */
    const float *k_norm; /* [d_head], 1 + w */
    /* LG_LAYER_GDN */
    lg_mat qkv;             /* [conv_dim][n_embd]: q | k | v */
    lg_mat z;               /* [n_v_head * d_v][n_embd] */
    lg_mat b, a;            /* [n_v_head][n_embd] */
    lg_mat out;             /* [n_embd][n_v_head * d_v] */
    const float *conv;      /* [LG_CONV_K][conv_dim]: one tap a row */
    const float *neg_exp_a; /* [n_v_head], -exp(A_log) */
    const float *dt_bias;   /* [n_v_head] */
    const float *gdn_norm;  /* [d_v], w itself */
    /* MLP */
    lg_mlp_w mlp;     /* dense (n_expert == 0) */
    lg_mat router;    /* [n_expert][n_embd] */
    lg_mlp_w *expert; /* [n_expert] */
    lg_mlp_w shared;
    const float *shared_gate; /* [n_embd] */
} lg_layer_w;

/* What a file of packed weights had to do with an open (packed.h). */
typedef enum {
    LG_PACKED_NO,
    LG_PACKED_FOUND,  /* panels and vectors come from a file that was there */
    LG_PACKED_WRITTEN /* the file was written */
} lg_packed_state;

typedef struct lg_weights {
    lg_config cfg;
    lg_layer_w *layer;       /* [n_layer] */
    lg_view embed;           /* [n_vocab][n_embd], rows as in the file (mapped) */
    lg_mat head;             /* [n_vocab][n_embd] */
    const float *final_norm; /* [n_embd], 1 + w */
    uint64_t weight_bytes;   /* resident: packed blocks + the embedding */
    uint64_t n_param;        /* elements of the weights used: no scales, no vision, no MTP */
    uint64_t n_param_active; /* of them, used for one token: n_expert_tok of n_expert experts */
    uint32_t n_skipped;      /* vision and MTP tensors left out */
    uint64_t skipped_bytes;
    lg_packed_state packed;
    struct lg_weights_own *own; /* mapping and blocks */
} lg_weights;

/* Load folder or GGUF file `path` with the pool's threads.  The caller owns *w.  progress may be NULL.
 * Returns LG_OK; LG_E_IO, LG_E_FORMAT, LG_E_UNSUPPORTED naming file, tensor or field, found and expected; LG_E_NOMEM;
 * LG_E_CANCELLED. */
lg_status lg_weights_open(const char *path, lg_pool *pool, lg_progress_fn *progress,
                          void *progress_ctx, lg_weights **w, lg_err *err);
void lg_weights_close(lg_weights **w);

/* Which routed experts a process loads.  The others are checked as always, but their matrices have no panels and nothing of
 * them is read from the files. */
typedef struct lg_weights_part {
    bool (*has)(const void *ctx, uint32_t layer, uint32_t e);
    const void *ctx;
} lg_weights_part;

/* lg_weights_open and lg_weights_check of a part; NULL: everything. */
lg_status lg_weights_open_part(const char *path, const lg_weights_part *part, lg_pool *pool,
                               lg_progress_fn *progress, void *progress_ctx, lg_weights **w,
                               lg_err *err);
lg_status lg_weights_check_part(const char *path, const lg_weights_part *part, lg_weights **w,
                                lg_err *err);

/* The same with packed weights kept in folder `pack_dir` (NULL: as above): a file there that belongs to this state of the
 * model and this part is taken instead of packing (copied; for a part mapped, so that ranks share its pages); otherwise one is
 * written, for a part mapped, and a line on standard error says so.
 * A file that does not fit is named there, not used and replaced; if none can be written, the open goes on without. */
lg_status lg_weights_open_packed(const char *path, const lg_weights_part *part,
                                 const char *pack_dir, lg_pool *pool, lg_progress_fn *progress,
                                 void *progress_ctx, lg_weights **w, lg_err *err);

/* Compare every byte of the packed file with its hashes (LG_OK at once for LG_PACKED_NO).  LG_E_FORMAT, LG_E_NOMEM. */
lg_status lg_weights_verify_packed(const lg_weights *w, lg_pool *pool, lg_err *err);

/* ---- weights_sum.c: checksums of what lies in memory, as the kernels read it ---- */

/* sum[layer * n_expert + e]: panels and scales of each routed expert, never 0; 0 for one that is not loaded or not of this part (NULL:
 * all are). */
void lg_weights_sum_experts(const lg_weights *w, const lg_weights_part *part, lg_pool *pool,
                            uint64_t *sum);

/* Everything else, shapes included: the same in every process that has loaded this model, whatever its part. */
uint64_t lg_weights_sum_rest(const lg_weights *w, lg_pool *pool);

/* Check config, every tensor's name, type and shape, and the values of vectors, without packing (what `inspect` and the
 * loader tests use); fills *w's cfg, counts and sizes; lg_mat fields have no data.  Returns as lg_weights_open. */
lg_status lg_weights_check(const char *path, lg_weights **w, lg_err *err);

/* The files' tensors, sorted by name; `used` is false for the skipped ones.  Borrowed until close. */
lg_tensors *lg_weights_tensors(const lg_weights *w);

/* Whether a skipped tensor belongs to a draft layer; else it is the vision tower's. */
bool lg_weights_is_draft(const lg_weights *w, const char *name);

/* Row `id` (< n_vocab) of the embedding as float; y [n_embd]. */
void lg_weights_embed(const lg_weights *w, uint32_t id, float *y);

/* ---- pack.c: row-major file views -> panels ---- */

/* Bytes of the panels of a matrix; n_in is a multiple of the type's block. */
uint64_t lg_pack_bytes(lg_dtype type, uint32_t n_out, uint32_t n_in);

/* Pack panels [panel0, panel0 + n_panel) of a row-major [n_out][n_in] source of elements or blocks (any alignment) into dst, the start of the
 * matrix's panel block.  Channels past n_out become zero; nothing else of dst is touched. */
void lg_pack_panels(lg_dtype type, const uint8_t *src, uint32_t n_out, uint32_t n_in,
                    uint32_t panel0, uint32_t n_panel, void *dst);

#endif
