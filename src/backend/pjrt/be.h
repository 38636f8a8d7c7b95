/* be.h - the backend that the engine drives on PJRT devices: what its files share, and how it is opened.
 *
 *   device.c   "pjrt:PATH,name=value" -> plugin, client and choices      load.c   weights -> device buffers
 *   be.c       plan, open, close; snapshots and pages                    round.c  one step: rounds of programs, samples
 *   layout.c   weights as a TPU wants them
 *   bucket.c   programs for sizes: find, compile, call                   unit.c   copies of pages and slots, also as bytes
 *
 * Weights and pools stay on the devices.  Every program takes the pools and gives them back (donated), so their handles change with
 * each call and their memory doesn't.  A step moves one vector of integers up, and ids and log-probabilities down; rows of logits come
 * down only for sequences that do not choose the plain best token.  Owner d (backend.h) is device d.
 *
 * A step is cut so that programs see rectangles: sequences of one row together, those of more rows by the next larger number of rows
 * that has a program.  Where a snapshot is due in the middle of a sequence's rows they are cut there, and the rest is another
 * program's.  Snapshots are more rows of the state pools.
 * A program is compiled when its sizes are met first (or read from a file, cache.c), those of likely sizes at open; then memory is
 * taken, otherwise a step takes none.
 * There are as many as `loaded` says: for one more, the one that was not used for the longest time goes.
 * Thread: engine; get_ and put_ from another one beside it, under `lock`.  Test: tests/unit/test_pjrt_step.c */
#ifndef LG_BACKEND_PJRT_BE_H
#define LG_BACKEND_PJRT_BE_H

#include "backend/backend.h"
#include "backend/pjrt/mosaic/kernels.h"
#include "backend/pjrt/step/sig.h"

#include <pthread.h>

/* Which programs a step's parts get: StableHLO, our kernels, or their twins (kernels.h). */
typedef enum { LG_PJRT_PLAIN, LG_PJRT_KERNELS, LG_PJRT_TWINS } lg_pjrt_parts;

/* How routed experts are kept: FP8 as the file has them, or else as other matrices; always so; or all in FP8 with scales of
 * our own. */
typedef enum {
    LG_PJRT_EXPERTS_FILE,
    LG_PJRT_EXPERTS_WIDE,
    LG_PJRT_EXPERTS_REGROUPED
} lg_pjrt_experts;

/* Devices that were opened for a backend, and how it is to use them. */
typedef struct lg_pjrt_device {
    lg_pjrt_plugin *plugin;
    lg_pjrt_client *client;
    uint32_t n; /* devices to use: owners */
    lg_pjrt_type weight, state;
    lg_pjrt_experts experts;
    uint32_t scale_in; /* of LG_PJRT_EXPERTS_REGROUPED: inputs that share a scale */
    bool act_fp8;      /* rows into routed experts are rounded to FP8 */
    bool kv_fp8;       /* keys and values are FP8, whatever lg_backend_opt.kv says */
    bool tiled;        /* stacked matrices are laid out as a TPU's products read them */
    bool mixed;        /* rows of answers and of prompts in one program */
    lg_pjrt_parts parts;
    uint32_t grow;   /* programs' sizes grow by this factor */
    uint32_t warm_s; /* seconds for compiling programs at open */
    bool warm_given;
    uint32_t loaded; /* programs in memory at most */
    const lg_weights *
        source; /* to load, where the weights that a backend is opened on are shapes alone; NULL: those */
    lg_pjrt_cache cache;
    char dir[512]; /* of cache */
    char path[512];
} lg_pjrt_device;

/* ---- device.c ---- */

/* Open what `spec` names: "pjrt:PATH[,name=value]...".  Own names are taken out, the rest are the plugin's client options:
 *     weights=bf16|f32   how matrices are kept (bf16)       state=f32|bf16    how the recurrent state is kept (f32)
 *     experts=fp8|wide|fp8sN   FP8 experts of a model as they are, or as other matrices; all experts rounded to FP8 with one scale
 *                        for N inputs (128, 256, 512, 1024, 2048) of an output (fp8)
 *     act=bf16|fp8       rows into routed experts (as the matrices)   kv=fp8   keys and values (as --kv says)
 *     devices=N          use the first N (1)                programs=DIR      keep compiled programs there
 *     programs_mib=N     of which at most so many MiB are kept, the last used (16384)
 *     loaded=N           programs in memory at most, the last used (128)
 *     grow=N             2 to 8: sizes of programs (4 on a CPU, else 2)
 *     warm=SECONDS       compile likely programs at open for so long (0 on a CPU, else 300)
 *     mixed=true|false   answers and prompts in one program (false on a CPU, else true)
 *     tiled=true|false   stacked matrices laid out as a TPU's products read them (true on a TPU)
 *     kernels=true|false|twin   kernels of ours in the steps (true on a TPU); twin: what stands around them, for tests
 * LG_E_ARG naming the part; what opening the plugin and its client returns.  The caller owns *d. */
lg_status lg_pjrt_device_open(const char *spec, lg_pjrt_device **d, lg_err *err);
void lg_pjrt_device_close(lg_pjrt_device **d);

/* Whether a --device text is one of ours. */
bool lg_pjrt_device_is(const char *spec);

/* Whether a model's experts can be kept in FP8 as they are: E4M3 in every layer, all with one scale a block of 128 x 128 and
 * widths that are whole blocks (*scale_in = 0), or all with scales of the same number of inputs (lg_pjrt_model.scale_in). */
bool lg_pjrt_load_has_fp8(const lg_weights *w, uint32_t *scale_in);

/* Bytes that a model's weights take on one device, at most; of shapes alone by what the config says. */
uint64_t lg_pjrt_device_weight_bytes(const lg_pjrt_device *d, const lg_weights *w);

/* Bytes that one device has for everything, or 0 when it does not say. */
uint64_t lg_pjrt_device_memory(const lg_pjrt_device *d);

/* A fingerprint of what decides the bits of states and pages. */
uint64_t lg_pjrt_device_build(const lg_pjrt_device *d);

#define LG_PJRT_EXPERTS_NAMES "fp8, wide, fp8s128, fp8s256, fp8s512, fp8s1024, fp8s2048"

/* One of these names, as `experts` above; *scale_in is 0 but for fp8sN.  false: it is none. */
bool lg_pjrt_device_experts(const char *name, lg_pjrt_experts *experts, uint32_t *scale_in);

/* ---- the backend ---- */

/* A compiled bucket. */
typedef struct lg_pjrt_program {
    lg_pjrt_bucket bucket;
    lg_pjrt_exe *exe;
    lg_pjrt_out out;
    lg_step_debug
        *items; /* owned: results behind those of out, with opt.trace_all; else NULL */
    struct lg_pjrt_program *next;
} lg_pjrt_program;

/* Some rows of one sequence, without a cut in them. */
typedef struct lg_pjrt_part {
    uint32_t seq, row0, n_tok; /* in the batch; first of them and how many, of this sequence */
    uint32_t n_out, out0; /* the last n_out of them give logits: rows out0 ... of the step */
    uint32_t save; /* entry of the sequence's save list to take after them; UINT32_MAX: none */
    bool done;
} lg_pjrt_part;

typedef struct lg_pjrt_be {
    lg_pjrt_device *dev; /* borrowed */
    const lg_config *cfg;
    lg_backend_opt opt;
    lg_pool *pool;
    lg_pjrt_model model;
    lg_kernels kernels; /* model.parts, unless plain */
    bool round_experts; /* to FP8, when they are loaded; else FP8 ones are the file's */
    lg_pjrt_sig *sig;   /* weights and pools are the same in every program */
    uint32_t n_arg, n_pool, step_arg;
    uint32_t pool_arg[LG_PJRT_N_POOL]; /* argument of each pool, in the order of results */
    lg_pjrt_buf **arg;                 /* [n][n_arg]; the step vector's is NULL between calls */
    lg_pjrt_buf **out;                 /* [n][most results] */
    int64_t *keep;                     /* arguments that are not given away */
    uint32_t n_keep;
    lg_pjrt_program *program; /* list, the last used first */
    uint32_t n_program;
    lg_pjrt_exe *unit[2][3]; /* unit.c */
    lg_pjrt_buf **unit_arg;  /* [n][2 LG_PJRT_N_POOL + 1] */
    lg_pjrt_buf **unit_out;  /* [n][LG_PJRT_N_POOL] */
    int32_t *unit_at;        /* [2] */
    /* one step */
    uint32_t max_seq;       /* of all owners */
    lg_pjrt_part *part;     /* [max_seq] */
    uint32_t n_part;        /* in this round */
    uint32_t *done, *saved; /* [max_seq] rows and saves of each sequence that are done */
    uint32_t *out0;         /* [max_seq] first output row of each sequence */
    float *logits;          /* [max_out][n_vocab] in the step's order */
    void *sample_work;
    void *block; /* owned: all of these arrays */
    /* host memory of one device in one program, for the largest that there is */
    int32_t *step, *id;
    float *logprob, *down;
    size_t step_room, out_room, down_room;
    uint64_t n_step, n_call, n_compiled;
    pthread_mutex_t lock;
    bool lost;
} lg_pjrt_be;

static inline lg_pjrt_be *lg_pjrt_be_of(lg_backend *be) {
    return (lg_pjrt_be *)(void *)be;
}

/* What a backend has moved and done so far, for tests and reports. */
typedef struct lg_pjrt_counts {
    lg_pjrt_traffic traffic;
    uint64_t n_step, n_call, n_compiled;
} lg_pjrt_counts;
lg_pjrt_counts lg_pjrt_be_counts(lg_backend *be);

/* ---- load.c ---- */

/* Fill every WEIGHT argument of be->sig on every device.  Pieces of at most 32 MiB are converted at a time. */
lg_status lg_pjrt_load_weights(lg_pjrt_be *be, const lg_weights *w, lg_err *err);

/* ---- layout.c ---- */

/* Append the text of a program that gives its argument back in another layout than the device's own. */
void lg_pjrt_layout_text(const lg_pjrt_dims *d, const char *layout, uint32_t n_replica,
                         lg_buf *text);

/* Lay out the tiled argument `index` on every device.  *exe: the program for its dims, or NULL: it is made; the caller's. */
lg_status lg_pjrt_layout_apply(lg_pjrt_be *be, uint32_t index, lg_pjrt_exe **exe, lg_err *err);

/* ---- bucket.c ---- */

/* The program for a bucket: one that is there, or compiled now.  It stays until the next call of this. */
lg_status lg_pjrt_bucket_program(lg_pjrt_be *be, const lg_pjrt_bucket *b,
                                 lg_pjrt_program **program, lg_err *err);

/* The smallest number of a ladder that holds n: least, least * grow, ... up to most. */
uint32_t lg_pjrt_bucket_rung(uint32_t n, uint32_t least, uint32_t most, uint32_t grow);

/* Sizes that a step is likely to have, likely ones first: number i, or false behind the last one.  Short contexts come before long
 * ones; in each, an answer alone, pieces of one prompt, then more and more answers; each with rows of logits out and without. */
bool lg_pjrt_bucket_likely(const lg_backend_opt *opt, uint32_t grow, uint32_t i,
                           lg_pjrt_bucket *b);

/* Compile the likely programs until dev->warm_s have passed, or all are there; a program that was begun is finished. */
lg_status lg_pjrt_bucket_warm(lg_pjrt_be *be, lg_err *err);

#define LG_PJRT_LEAST_ROWS  4 /* rows of a sequence in the smallest program of prompts */
#define LG_PJRT_LEAST_PAGES 4

static inline uint32_t lg_pjrt_bucket_pages(uint32_t n_tok) {
    return (n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
}

/* Call a step's program: arguments be->arg, results in be->out, pools changed in be->arg.  Under be->lock. */
lg_status lg_pjrt_bucket_call(lg_pjrt_be *be, lg_pjrt_exe *exe, lg_err *err);

/* ---- round.c ---- */

/* lg_backend_step, under be->lock. */
lg_status lg_pjrt_round_step(lg_pjrt_be *be, const lg_batch *batch, lg_step_out *out,
                             lg_err *err);

/* ---- unit.c ---- */

/* Make the pools, zeroed, and compile what copies their parts; be->sig and be->unit_arg are there. */
lg_status lg_pjrt_unit_open(lg_pjrt_be *be, lg_err *err);
void lg_pjrt_unit_close(lg_pjrt_be *be);

/* Copy row `from` of the state pools (state) or page `from` of the others to `to`, on device d. */
lg_status lg_pjrt_unit_copy(lg_pjrt_be *be, uint32_t d, bool state, uint32_t from, uint32_t to,
                            lg_err *err);

/* One row or page as bytes, pools in order, and back. */
size_t lg_pjrt_unit_bytes(const lg_pjrt_be *be, bool state);
lg_status lg_pjrt_unit_get(lg_pjrt_be *be, uint32_t d, bool state, uint32_t at, void *to,
                           lg_err *err);
lg_status lg_pjrt_unit_put(lg_pjrt_be *be, uint32_t d, bool state, uint32_t at,
                           const void *from, lg_err *err);

#endif
