/* sig.h - what a step's program takes and gives: the contract between the emitter of texts and the backend that runs them.
 *
 * A program computes one bucket: n_one sequences of one row each, then n_many sequences of up to n_row rows each; together
 *     R = n_one + n_many * n_row  rows,   S = n_one + n_many  sequences;
 * row s is sequence s for s < n_one; row n_one + i * n_row + t is row t of sequence n_one + i.  Sequences that are not there
 * have n_tok 0, slot and pages as below; rows at and after n_tok are padding: nothing of them may reach a real row, page or slot.
 * Everything of a step on one device comes in one vector of 32-bit integers (lg_pjrt_step), so a step moves little.
 * Pools are arguments tied to results (donated): the first results, in the order of their arguments.
 * With n_device > 1 the text is in replica form: every device has its own step vector, pools, slots and pages, and the same
 * bucket; experts are divided, the rest of the weights is on each. */
#ifndef LG_BACKEND_PJRT_STEP_SIG_H
#define LG_BACKEND_PJRT_STEP_SIG_H

#include "backend/pjrt/pjrt.h"
#include "model/config.h"

/* How experts are computed: rows sorted by expert and cut into tiles, or every expert over every row. */
typedef enum { LG_PJRT_MOE_TILES, LG_PJRT_MOE_ALL } lg_pjrt_moe;

struct lg_step_parts;

/* The layout that a TPU's products read stacked BF16 matrices in, of three axes and of four.  In the plain one a loop over layers
 * copies all of them in every step. */
#define LG_PJRT_TILES_3 "{2,1,0:T(16,128)(2,1)}"
#define LG_PJRT_TILES_4 "{3,2,1,0:T(16,128)(2,1)}"

/* What is the same in all programs of one backend. */
typedef struct lg_pjrt_model {
    const lg_config *cfg;
    uint32_t n_device;
    lg_pjrt_type weight; /* of matrices: BF16 or F32; vectors are F32 */
    lg_pjrt_type expert; /* 0: as weight; F8E4M3FN: with scales */
    uint32_t
        scale_in; /* 0: scales are of 128 x 128 blocks; else of so many inputs of one output (lg_pjrt_scale_in) */
    bool
        act_fp8; /* rows into the routed experts' products are rounded to E4M3 (lg_step_split_rows) */
    lg_pjrt_moe moe;
    lg_pjrt_type kv;    /* F32, BF16, F16, F8E4M3FN */
    lg_pjrt_type state; /* of S: F32 or BF16 */
    uint32_t
        n_slot; /* rows of state: the engine's slots, then its snapshots, then one that nobody reads (the last) */
    uint32_t n_page;         /* pages of LG_PAGE_TOK positions, the last one nobody reads */
    uint32_t n_ctx;          /* longest sequence: rows of the rope tables */
    uint32_t n_sample_vocab; /* ids from here up are never chosen */
    bool unrolled;           /* layers written out instead of a loop over groups */
    bool
        tiled; /* TPU, looped: stacked BF16 matrices are laid out on the device as LG_PJRT_TILES_3 and _4 say (lg_pjrt_arg.tiled) */
    const struct lg_step_parts *parts; /* NULL: everything in StableHLO */
} lg_pjrt_model;

/* Inputs that share a scale of one output, in a matrix of n_in: scale_in or a half of it and so on that divides n_in and is 128 at
 * least; else all. */
static inline uint32_t lg_pjrt_scale_in(uint32_t scale_in, uint32_t n_in) {
    for (uint32_t g = scale_in; g >= 128 && g < n_in; g /= 2)
        if (n_in % g == 0) return g;
    return n_in;
}

typedef struct lg_pjrt_bucket {
    uint32_t n_one, n_many, n_row;
    uint32_t n_page; /* entries of each page table: positions < n_page * LG_PAGE_TOK */
    uint32_t n_out;  /* rows that give logits; >= 1 */
    bool logits;     /* they come out (F32 [n_out][n_vocab]) */
    bool
        trace; /* the residual stream comes out: F32 [n_layer + 1][R][n_embd], before layer 0 and after each */
} lg_pjrt_bucket;

/* Where things lie in the step vector, in words; `n` is its length. */
typedef struct lg_pjrt_step {
    uint32_t tok; /* [R] ids, < n_vocab also in padding */
    uint32_t
        pos; /* [S] position of the sequence's first row = tokens in its state; 0: the slot's content is not read */
    uint32_t n_tok; /* [S] rows that are there */
    uint32_t slot;  /* [S] row of state, read and written; n_slot - 1 where n_tok is 0 */
    uint32_t page;  /* [S][n_page]; n_page(model) - 1 where there is none */
    uint32_t out;   /* [n_out] rows (0 .. R-1); 0 in padding */
    uint32_t n;
} lg_pjrt_step;

static inline lg_pjrt_step lg_pjrt_step_of(const lg_pjrt_bucket *b) {
    uint32_t s = b->n_one + b->n_many, r = b->n_one + b->n_many * b->n_row;
    lg_pjrt_step at = {.tok = 0, .pos = r};
    at.n_tok = at.pos + s;
    at.slot = at.n_tok + s;
    at.page = at.slot + s;
    at.out = at.page + s * b->n_page;
    at.n = at.out + b->n_out;
    return at;
}

/* Weights, by the field of lg_weights or lg_layer_w. */
typedef enum lg_pjrt_weight {
    /* once */
    LG_PJRT_W_EMBED,      /* [n_vocab][n_embd] */
    LG_PJRT_W_HEAD,       /* [n_vocab][n_embd] */
    LG_PJRT_W_FINAL_NORM, /* [n_embd] */
    LG_PJRT_W_COS,        /* F32 [n_ctx][n_rot / 2] */
    LG_PJRT_W_SIN,
    /* of a layer */
    LG_PJRT_W_IN_NORM,
    LG_PJRT_W_POST_NORM,
    LG_PJRT_W_Q,
    LG_PJRT_W_K,
    LG_PJRT_W_V,
    LG_PJRT_W_O,
    LG_PJRT_W_Q_NORM,
    LG_PJRT_W_K_NORM,
    LG_PJRT_W_QKV,
    LG_PJRT_W_Z,
    LG_PJRT_W_B,
    LG_PJRT_W_A,
    LG_PJRT_W_OUT,
    LG_PJRT_W_CONV,      /* [LG_CONV_K][conv_dim] */
    LG_PJRT_W_NEG_EXP_A, /* [n_v_head] */
    LG_PJRT_W_DT_BIAS,
    LG_PJRT_W_GDN_NORM, /* [d_v] */
    LG_PJRT_W_GATE_UP, /* dense MLP [2 * n_ff][n_embd]: gate's rows, then up's; so all that follow */
    LG_PJRT_W_DOWN,
    LG_PJRT_W_ROUTER,
    LG_PJRT_W_EXPERT_GATE_UP, /* [n_expert][2 * n_ff_expert][n_embd]: a third dimension in front */
    LG_PJRT_W_EXPERT_DOWN,
    LG_PJRT_W_EXPERT_GATE_UP_SCALE, /* of F8E4M3FN experts: F32 [n_expert][out / 128][in / 128], or with scale_in
                                       [n_expert][groups of inputs][out] */
    LG_PJRT_W_EXPERT_DOWN_SCALE,
    LG_PJRT_W_SHARED_GATE_UP,
    LG_PJRT_W_SHARED_DOWN,
    LG_PJRT_W_SHARED_SCALE, /* shared_gate [n_embd] */
    LG_PJRT_N_WEIGHT
} lg_pjrt_weight;

typedef enum {
    LG_PJRT_POOL_KEY,
    LG_PJRT_POOL_VALUE,
    LG_PJRT_POOL_S,
    LG_PJRT_POOL_CONV,
    LG_PJRT_N_POOL
} lg_pjrt_pool;

typedef enum { LG_PJRT_WEIGHT, LG_PJRT_POOL, LG_PJRT_STEP } lg_pjrt_role;

typedef struct lg_pjrt_arg {
    char name[32]; /* %name in the text */
    lg_pjrt_role role;
    lg_pjrt_dims dims; /* on one device */
    int result;        /* POOL: the result it is tied to; else -1 */
    /* WEIGHT.  dims = [n_layer of the stack, unless that is 0] [experts of this device] matrix or vector.  Stack entry i is layer
     * layer0 + i * layer_step.  A matrix is [n_out][n_in] as in lg_mat, or with in_out [n_in][n_out].  Experts of device d of N:
     * from d * n_expert / N on. */
    lg_pjrt_weight weight;
    uint16_t layer0, layer_step, n_layer;
    bool in_out;
    bool
        tiled; /* wanted in the layout LG_PJRT_TILES_3 or _4, which is not the device's own choice */
    /* POOL.  The dimension that counts pages (KEY, VALUE) or slots (S, CONV), so that one of them can be copied. */
    lg_pjrt_pool pool;
    uint32_t unit_dim;
} lg_pjrt_arg;

/* What results there are after those of the pools, in this order. */
typedef struct lg_pjrt_out {
    int id; /* S32 [n_out]: the largest logit below n_sample_vocab, lowest id on ties; -1 when a logit is not finite */
    int logprob; /* F32 [n_out]: of it, natural logarithm, over the ids below n_vocab as in lg_sample */
    int logits; /* F32 [n_out][n_vocab], or -1 */
    int trace;  /* F32 [n_layer + 1][R][n_embd], or -1 */
    int n;      /* results in all */
} lg_pjrt_out;

#define LG_PJRT_MAX_ARG 1536 /* unrolled texts have arguments for every layer */

typedef struct lg_pjrt_sig {
    lg_pjrt_arg arg[LG_PJRT_MAX_ARG];
    uint32_t n_arg;
    lg_pjrt_out out;
} lg_pjrt_sig;

/* Append the text of one bucket and describe it.  Weights and pools are the same in every bucket of a model: same order, same dims.
 * LG_OK; LG_E_UNSUPPORTED naming what the model has and the text cannot do; LG_E_NOMEM. */
lg_status lg_pjrt_step_text(const lg_pjrt_model *m, const lg_pjrt_bucket *b, lg_buf *text,
                            lg_pjrt_sig *sig, lg_err *err);

#endif
