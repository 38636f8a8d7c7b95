/* backend.h - the seam between the engine and what computes: a whole step at a time.
 *
 * The engine decides which rows run and owns the numbers of pages and slots; the backend owns their memory, runs embed ->
 * layers -> head and chooses the tokens.  cpu/ computes on this processor; group/ is one backend of many of these; pjrt/ runs
 * whole compiled steps on devices, so nothing finer than a step fits all.  Thread: engine.  Memory: everything at open.
 * Test: tests/unit/test_golden.c, tests/unit/test_exact.c */
#ifndef LG_BACKEND_BACKEND_H
#define LG_BACKEND_BACKEND_H

#include "base/pool.h"
#include "dist/dist.h"
#include "model/weights/weights.h"

typedef struct lg_backend lg_backend;

/* What a step's time goes to. */
typedef enum lg_op {
    LG_OP_MIX_IN,   /* products into the mixers */
    LG_OP_GDN,      /* convolution, recurrence, gated norm */
    LG_OP_ATTN,     /* queries look at their pages */
    LG_OP_MIX_OUT,  /* products out of the mixers */
    LG_OP_ROUTE,    /* router, gate and up of the shared expert */
    LG_OP_MLP,      /* experts and down of the shared expert; the dense MLP */
    LG_OP_HEAD,     /* products of the output rows */
    LG_OP_SAMPLE,   /* their tokens */
    LG_OP_QUANTISE, /* input rows as integers */
    LG_OP_ROWS, /* what is done to each row alone: embedding, norms, rotation and storing of keys, choice and sum of experts */
    LG_N_OP
} lg_op;

/* Nanoseconds by the clock, added up over steps; experts whose weights were read, over layers and steps. */
typedef struct lg_profile {
    uint64_t ns[LG_N_OP], n_expert;
    uint64_t last_ns; /* the backend's: where the running operation began */
} lg_profile;

typedef struct lg_backend_opt {
    uint32_t n_slot;  /* sequence states */
    uint32_t n_snap;  /* snapshots of sequence states */
    uint32_t n_ctx;   /* longest sequence; only with dist or a device */
    uint32_t n_page;  /* KV pages of LG_PAGE_TOK positions (all attention layers together) */
    uint32_t max_tok; /* rows in a step */
    uint32_t max_seq; /* sequences in a step */
    uint32_t max_out; /* logits rows in a step */
    uint32_t n_sample_vocab; /* ids from here up are never sampled */
    lg_dtype kv; /* how keys and values are kept: lg_kv_has; 0 = LG_F32, which rounds nothing */
    bool
        exact; /* multiply block types as floats; otherwise rows are rounded to bytes where that is faster (kern.h, qgemm) */
    const lg_dist *
        dist; /* this backend is one rank of a group, and max_tok is of all ranks together; NULL: alone */
    lg_profile *profile; /* cpu/ alone: where the time of its steps goes; NULL: nobody asks */
    uint32_t
        n_spread; /* with dist: positions of a divided sequence of another rank that fit here; 0: none is divided */
    struct lg_pjrt_device *device; /* pjrt/: opened devices (backend/pjrt/be.h), borrowed */
    /* Called on the stepping thread before a product x w, with its input rows x [n_row][w->n_in] (row r is row_idx[r] unless
     * that is NULL).  NULL: nothing. */
    void (*observe)(void *ctx, const lg_mat *w, const float *x, size_t ld_x,
                    const uint32_t *row_idx, uint32_t n_row);
    void *observe_ctx;
    /* For tests: called with every intermediate of a step, [n_row][n_col] with ld; names as in
     * tests/data/golden/TENSORS.md without "trace.L<i>.", layer -1 for "embed" and "final_norm".  NULL in use.  On a device
     * only "embed" and each layer's "out", of one part of a sequence at a time; with trace_all what else its parts know, from programs
     * whose layers are written out. */
    void (*trace)(void *ctx, int layer, const char *name, const float *data, size_t n_row,
                  size_t n_col, size_t ld);
    void *trace_ctx;
    bool trace_all;
} lg_backend_opt;

#define LG_SLICE_ROWS 8 /* rows at most of a step that all ranks help with */

/* How many these options allow; 0: no step is sliced. */
static inline uint32_t lg_slice_rows(const lg_backend_opt *opt) {
    if (!opt->dist || opt->dist->how.answers == LG_DIVIDE_OFF || opt->dist->comm->n_rank < 2)
        return 0;
    return opt->max_tok < LG_SLICE_ROWS ? opt->max_tok : LG_SLICE_ROWS;
}

/* Bytes that the options would take; no allocation happens. */
typedef struct lg_backend_plan {
    uint64_t page_bytes;    /* one page, all attention layers */
    uint64_t slot_bytes;    /* one slot, all GDN layers */
    uint64_t snap_bytes;    /* one snapshot of a slot */
    uint32_t n_snap_part;   /* equal parts in which a snapshot goes to a file and back */
    uint64_t scratch_bytes; /* step scratch for max_tok, max_seq, max_out */
} lg_backend_plan;
void lg_backend_plan_bytes(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                           lg_backend_plan *plan);

/* Open on borrowed weights and pool (NULL: the caller alone).  LG_E_ARG for a size of 0; LG_E_NOMEM. */
lg_status lg_backend_open(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                          lg_backend **be, lg_err *err);
void lg_backend_close(lg_backend **be);

/* ---- sample.c: logits row -> token ---- */

/* How one sequence samples, and what it has produced.  Owned by the engine's sequence. */
typedef struct lg_sampler {
    lg_params params;    /* seed filled */
    const lg_bias *bias; /* sorted by id */
    uint32_t n_bias;
    const uint32_t *mask;    /* bit id: it may be chosen; at least one; NULL: all may */
    const uint32_t *ids;     /* prompt then produced ids */
    uint32_t n_prompt, n_id; /* produced = ids[n_prompt .. n_id) */
} lg_sampler;

typedef struct lg_sampled {
    uint32_t id;
    float
        logprob; /* of id, natural log, before temperature and filters (after bias and penalties) */
    uint32_t n_top;
    lg_top top[LG_MAX_TOP];
    bool nonfinite; /* the row held NaN or infinity: id means nothing */
} lg_sampled;

/* Take snapshot `snap` of a sequence's state as it is after the first n_row rows of the step (1 <= n_row <= n_tok). */
typedef struct lg_batch_save {
    uint32_t n_row, snap;
} lg_batch_save;

/* One sequence's rows in a step. */
typedef struct lg_batch_seq {
    uint32_t owner; /* whose pools slot, page and snap numbers are of; 0 when there is one */
    uint32_t slot;  /* state slot */
    uint32_t
        pos; /* tokens already in the state = position of the first row; 0: the slot's content is not read */
    uint32_t n_tok; /* rows, >= 1 */
    uint32_t tok0;  /* first row in lg_batch.tok */
    uint32_t
        page0; /* first entry in lg_batch.page; entry i holds positions i * LG_PAGE_TOK ... */
    uint32_t n_out;            /* the last n_out rows give logits (0: none yet) */
    const lg_sampler *sampler; /* chooses a token from the last row; NULL: logits only */
    const lg_batch_save *save; /* [n_save], n_row ascending */
    uint32_t n_save;
} lg_batch_seq;

#define LG_SPREAD_MAX_SAVE 8 /* snapshots that a step may take of a divided sequence */

/* One sequence whose rows of this step are divided over all ranks (dist/spread.h).  The rank's own part of it, at least a row, is the
 * last of the batch's sequences: pos, n_tok and ids of the part, n_save 0, pages of the whole; on ranks that are not the owner
 * slot is n_slot and page i is n_page + i: memory that is kept for it.  Only the owner's part has outputs and a sampler. */
typedef struct lg_batch_spread {
    uint32_t owner;
    uint32_t pos, n_tok;       /* of the whole */
    bool fresh;                /* the others have not what is before pos: the owner sends it */
    const lg_batch_save *save; /* [n_save], of the whole; numbers of the owner */
    uint32_t n_save;
} lg_batch_spread;

/* All rows of this step, at most lg_slice_rows, are of `owner`; every rank adds its slice of the products (dist/slice.h).  The others
 * have the same rows without sequences: their ids, and which of them give logits. */
typedef struct lg_batch_slice {
    uint32_t owner;
    uint32_t n_out;
    const uint32_t *out_row; /* [n_out], ascending */
} lg_batch_slice;

/* A step.  Rows are in the order of sequences, without gaps; a sequence appears at most once. */
typedef struct lg_batch {
    const uint32_t *tok; /* [n_tok] ids */
    uint32_t n_tok;
    const lg_batch_seq *seq; /* [n_seq] */
    uint32_t n_seq;
    const uint32_t *page; /* page numbers */
    uint32_t n_page;
    const uint32_t *
        rank_tok; /* with opt.dist: [n_rank] rows of every rank in this step; ours is n_tok, which may be 0 */
    const lg_batch_spread *spread; /* NULL: no sequence is divided */
    const lg_batch_slice
        *slice; /* NULL: each rank multiplies its own rows; else spread is NULL */
} lg_batch;

typedef struct lg_step_out {
    lg_sampled *sampled; /* [n_seq] storage of the caller; filled where sampler is set */
    const float *
        logits; /* [sum n_out][n_vocab], in order of sequences; backend's, until the next step */
    size_t ld_logits;
} lg_step_out;

/* Run one step.  With opt.dist: collective, all ranks step together.  Returns LG_OK, or LG_E_BACKEND when a rank is lost. */
lg_status lg_backend_step(lg_backend *be, const lg_batch *batch, lg_step_out *out);

/* What dividing a sequence of this model sends (dist/choose.h). */
lg_divide_shape lg_backend_divide_shape(const lg_config *cfg, lg_dtype kv);

/* Seconds that one row among many takes in the products that every rank has: mixers and shared experts; into d the seconds of a row's parts.
 * Measured now, before the first step.  With opt.n_spread. */
double lg_backend_row_seconds(lg_backend *be, lg_divide_shape *d);

/* What the steps with batch.slice send. */
lg_slice_shape lg_backend_slice_shape(const lg_config *cfg);

/* Seconds of all products that every rank has (mixers, shared experts, head) with n_row rows, at most lg_slice_rows: whole, or this rank's
 * slices of them.  Measured now, between two steps. */
double lg_backend_dense_seconds(lg_backend *be, uint32_t n_row, bool sliced);

/* Choose from one logits row of n_vocab floats, which it may overwrite; ids >= n_sample_vocab are never chosen.
 * `work`: lg_sample_work_bytes(n_vocab) bytes of the calling thread. */
void lg_sample(const lg_sampler *s, float *logits, uint32_t n_vocab, uint32_t n_sample_vocab,
               void *work, lg_sampled *out);
size_t lg_sample_work_bytes(uint32_t n_vocab);

/* ---- snapshots: the recurrent state of a slot, kept aside bit for bit (keys and values stay in their pages) ---- */

/* Copy the state of a slot that holds n_tok tokens (>= 1) to snapshot `snap`, or back.  Between two steps.  The numbers are
 * those of an owner, of which the CPU backend is one: 0. */
void lg_backend_save(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                     uint32_t snap);
void lg_backend_load(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                     uint32_t snap);

/* Copy the keys and values of page `from` to page `to`, so that a sequence can go on in the middle of a shared page. */
void lg_backend_copy_page(lg_backend *be, uint32_t owner, uint32_t from, uint32_t to);

/* ---- pages and snapshots as bytes, for files (plan: page_bytes; snap_bytes / n_snap_part); numbers are the owner's, as above ----
 *
 * What the first n_tok positions have not written is zero in what get_ gives.  May run on another thread beside a step as long as
 * nobody writes those positions of the page, or that snapshot. */

void lg_backend_get_page(const lg_backend *be, uint32_t owner, uint32_t page, uint32_t n_tok,
                         void *to);
void lg_backend_put_page(lg_backend *be, uint32_t owner, uint32_t page, const void *from);
/* Part `part` of a snapshot that was taken after n_tok tokens. */
void lg_backend_get_snap(const lg_backend *be, uint32_t owner, uint32_t snap, uint32_t n_tok,
                         uint32_t part, void *to);
void lg_backend_put_snap(lg_backend *be, uint32_t owner, uint32_t snap, uint32_t part,
                         const void *from);

/* ---- state of a slot, for tests ---- */

/* Copy the recurrent state of GDN layer `layer` of a slot that holds n_tok tokens, open rows folded in: s [n_v_head][d_k][d_v];
 * conv [3][conv_dim] raw rows, oldest first.  Either may be NULL. */
void lg_backend_read_state(const lg_backend *be, uint32_t slot, uint32_t n_tok, uint32_t layer,
                           float *s, float *conv);

/* ---- the calls above as a table: what an engine or a command stands on ---- */

typedef void lg_backend_plan_fn(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                                lg_backend_plan *plan);

typedef struct lg_backend_ops {
    lg_backend_plan_fn *plan;
    lg_status (*open)(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                      lg_backend **be, lg_err *err);
    void (*close)(lg_backend **be);
    lg_status (*step)(lg_backend *be, const lg_batch *batch, lg_step_out *out);
    void (*save)(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok, uint32_t snap);
    void (*load)(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok, uint32_t snap);
    void (*copy_page)(lg_backend *be, uint32_t owner, uint32_t from, uint32_t to);
    void (*get_page)(const lg_backend *be, uint32_t owner, uint32_t page, uint32_t n_tok,
                     void *to);
    void (*put_page)(lg_backend *be, uint32_t owner, uint32_t page, const void *from);
    void (*get_snap)(const lg_backend *be, uint32_t owner, uint32_t snap, uint32_t n_tok,
                     uint32_t part, void *to);
    void (*put_snap)(lg_backend *be, uint32_t owner, uint32_t snap, uint32_t part,
                     const void *from);
    /* Between two steps: a message to whoever keeps the files of an owner above 0, after all that was asked of it before, and the
     * answer, at most cap_bytes; `patient`: however long that takes.  LG_OK, LG_E_COMM.  The four calls above are for owner 0 alone
     * then.  NULL: they are for all owners. */
    lg_status (*call)(lg_backend *be, uint32_t owner, bool patient, const void *msg,
                      size_t n_bytes, void *answer, size_t cap_bytes, size_t *n_answer);
} lg_backend_ops;

/* This processor (cpu/), and the devices of opt.device (pjrt/). */
const lg_backend_ops *lg_backend_cpu(void);
const lg_backend_ops *lg_backend_pjrt(void);

#endif
