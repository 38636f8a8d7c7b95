/* step.h - one step of the model as a program: from a config and a bucket (sig.h) to text.
 *
 *   step.c       arguments and their signature, inputs, embedding, the walk over the layers, results
 *   step_attn.c  gated attention over KV pages      step_gdn.c  Gated DeltaNet over state slots
 *   step_moe.c   router, experts, shared expert; the dense MLP      hlo.h  the writer
 *
 * Rows of a step are flat, [R]: first n_one sequences of one row, then n_many times n_row rows.  Everything about them
 * (positions, which are padding) is made in the program from the step vector.  Padding rows are computed like others
 * and finite, and are written to no pool: their row number in a scatter is out of range.  A pool's old content is only
 * ever selected, never multiplied by zero, so it may be anything.  Layers come in groups of the config's period (3
 * GDN, 1 attention); the looped form has one text for a group, with weights stacked over groups; the unrolled form is
 * the same text for every layer. Equations: docs/MODEL.md; their form here: docs/PJRT.md.
 * Test: tests/unit/test_step_text.c, tests/unit/test_step.c */
#ifndef LG_BACKEND_PJRT_STEP_STEP_H
#define LG_BACKEND_PJRT_STEP_STEP_H

#include "backend/pjrt/step/hlo.h"
#include "backend/pjrt/step/sig.h"

#define LG_STEP_GDN_TILE  64 /* rows of a GDN block in prefill */
#define LG_STEP_ATTN_TILE 64 /* query rows whose scores exist at once */
#define LG_STEP_MOE_TILE  16 /* rows of one expert's product */
#define LG_STEP_LIST      8  /* values that parts keep for all layers */

#define LG_STEP_MAX_ITEM 1536

/* Intermediates as further results, after those of lg_pjrt_sig.out: rows [R][..] of every layer, named as in
 * lg_backend_opt.trace.  Unrolled form only. */
typedef struct lg_step_debug {
    struct {
        int layer; /* -1: none */
        const char *name;
        lg_hlo_val val;
        lg_hlo_type type;
    } item[LG_STEP_MAX_ITEM];
    uint32_t n;
} lg_step_debug;

/* What the parts of a step work on. */
typedef struct lg_step_emit {
    lg_hlo h;
    const lg_pjrt_model *m;
    const lg_config *cfg;
    const lg_pjrt_bucket *b;
    lg_pjrt_sig *sig;
    lg_step_debug *debug;   /* or NULL */
    uint32_t n_row;         /* R */
    uint32_t n_seq;         /* S */
    uint32_t period;        /* layers of a group; unrolled: all */
    uint32_t n_attn, n_gdn; /* layers of each kind in a group */
    lg_hlo_dt weight, kv, state, expert;
    /* inputs */
    lg_hlo_val tok;      /* [R] */
    lg_hlo_val pos;      /* [S] */
    lg_hlo_val n_tok;    /* [S] */
    lg_hlo_val slot;     /* [S]; out of range where n_tok is 0 */
    lg_hlo_val page;     /* [S][n_page] */
    lg_hlo_val out;      /* [n_out] */
    lg_hlo_val row_pos;  /* [R] position */
    lg_hlo_val row_ok;   /* [R] I1: no padding */
    lg_hlo_val cos, sin; /* [R][n_rot / 2] */
    /* The arguments: of the whole model, and of each layer of a group (with a leading axis of groups when looped). */
    lg_hlo_val once[LG_PJRT_N_WEIGHT];
    lg_hlo_val (*layer_w)[LG_PJRT_N_WEIGHT]; /* [period] */
    /* where the walk is */
    lg_hlo_val pool[LG_PJRT_N_POOL]; /* as they are now */
    lg_hlo_val group;                /* scalar, looped only */
    uint32_t at;                     /* layer in the group */
    lg_hlo_val
        list[2][LG_STEP_LIST]; /* of lg_step_parts.begin: for sequences of one row, of many */
    lg_hlo_val pool_layer;     /* scalar: number of the layer among those of its kind */
} lg_step_emit;

/* Other programs for parts of a step, with the meaning of those here (kernels of one kind of device).  NULL entries:
 * StableHLO. layer: s->pool_layer is the pool's layer and s->group the stack's (0: weights are not stacked). */
typedef struct lg_step_parts {
    void *ctx;
    /* [n_dev * n][..] -> [n][..]: sums over devices, part i to device i. */
    lg_hlo_val (*reduce_scatter)(void *ctx, lg_hlo *h, lg_hlo_val x, uint32_t n_dev);
    /* Convolution, gates and recurrence of n sequences of t rows each, from sequence `from` on: raw [n t][conv_dim] before the
     * convolution, a and b [n t][n_v_head] as projected, all F32; reads and writes s->pool S and CONV; -> F32 [n t][n_v_head][d_v]. */
    lg_hlo_val (*gdn)(void *ctx, lg_step_emit *s, uint32_t from, uint32_t n, uint32_t t,
                      lg_hlo_val raw, lg_hlo_val a, lg_hlo_val b);
    /* The routed experts of this device over all rows: x [n][n_embd] of the weights' type, id I32 and w F32 [n][k], an id out
     * of this device's range (from first, scalar I32, on) adds nothing; -> F32 [n][n_embd]. */
    lg_hlo_val (*experts)(void *ctx, lg_step_emit *s, lg_hlo_val x, lg_hlo_val id, lg_hlo_val w,
                          lg_hlo_val first);
    /* Attention of n sequences of t rows each, from sequence `from` on: q F32 [n t][n_head][d_head], normed and rotated, keys and
     * values stored already; -> F32 [n t][n_head * d_head], or 0: StableHLO's. */
    lg_hlo_val (*attn)(void *ctx, lg_step_emit *s, uint32_t from, uint32_t n, uint32_t t,
                       lg_hlo_val q);
    /* Before the walk over the layers: makes s->list, what is the same for all of them. */
    void (*begin)(void *ctx, lg_step_emit *s);
} lg_step_parts;

/* lg_pjrt_step_text with intermediates; LG_E_ARG when the model asks for the looped form. */
lg_status lg_step_debug_text(const lg_pjrt_model *m, const lg_pjrt_bucket *b, lg_buf *text,
                             lg_pjrt_sig *sig, lg_step_debug *debug, lg_err *err);

/* Layers after which the kinds of layers repeat; n_layer when they do not. */
uint32_t lg_step_period(const lg_config *cfg);

/* ---- for the parts ---- */

/* The current layer's weight; the argument itself, stacked or not. */
lg_hlo_val lg_step_weight(lg_step_emit *s, lg_pjrt_weight w);
lg_hlo_val lg_step_weight_arg(lg_step_emit *s, lg_pjrt_weight w);

/* y = x W: x [n][n_in] F32, w [n_out][n_in] -> F32 [n][n_out]. */
lg_hlo_val lg_step_matmul(lg_step_emit *s, lg_hlo_val x, lg_hlo_val w);

/* x / sqrt(mean x^2 + eps) * w along the last axis, F32. */
lg_hlo_val lg_step_norm(lg_step_emit *s, lg_hlo_val x, lg_hlo_val w);
lg_hlo_val lg_step_silu(lg_step_emit *s, lg_hlo_val x);

/* Rows [..][n] into a routed expert's product as E4M3 numbers and, F32 [..][n / g], their scales: for as many inputs as share a scale
 * of the weights (128 where these have none, the whole row where that does not divide it) the power of two that brings the largest
 * to 124 ... 248.  Rows that are such numbers already stay what they are. */
lg_hlo_val lg_step_split_rows(lg_step_emit *s, lg_hlo_val x, lg_hlo_val *scale);

/* Rows into a routed expert's product [..][n] as the weights' type; with model.act_fp8 the numbers of lg_step_split_rows, which BF16
 * holds exactly, so a product of FP8 rows is the same. */
lg_hlo_val lg_step_round_rows(lg_step_emit *s, lg_hlo_val x);

/* Rows of the sequences from..from + n - 1 out of [S] values. */
lg_hlo_val lg_step_seqs(lg_step_emit *s, lg_hlo_val x, uint32_t from, uint32_t n);

/* The current layer's number as a column of `like`'s shape. */
lg_hlo_val lg_step_layer_col(lg_step_emit *s, lg_hlo_type like);

/* Keep an intermediate [R][..] when asked to. */
void lg_step_note(lg_step_emit *s, const char *name, lg_hlo_val x);

/* g of the convolution pool's last axis. */
uint32_t lg_step_conv_unit(const lg_config *cfg);

lg_hlo_val lg_step_attn(lg_step_emit *s, lg_hlo_val xn); /* [R][n_embd] -> [R][n_embd] */
lg_hlo_val lg_step_gdn(lg_step_emit *s, lg_hlo_val xn);
lg_hlo_val lg_step_mlp(lg_step_emit *s, lg_hlo_val xn);

#endif
