/* plan.h - the map of src/plan: how fast a model can be on some hardware, and what stands in the way.
 *
 *   model.c     what a model of the family weighs and computes       hardware.c  chips and nodes: peaks, links, memory
 *   step.c      the terms of one step: bytes, operations, time       serve.c     steps to tokens a second; memory; best split
 *   cpu.c       a step of the CPU backend, operation by operation
 *   anchors.c   published limits and measurements, replayed          svg.c       a plot of a sweep
 *
 * A step is cut into terms.  The time of a term is the larger of bytes / bandwidth and operations / peak; terms follow each
 * other.  What no first principle gives is a constant in lg_plan_cal, each with where it was taken from.
 * Units: seconds, bytes, operations (a multiply-add is two).  No state, no allocation.  Test: tests/unit/test_plan.c
 * Formulas and results: docs/PLAN.md */
#ifndef LG_PLAN_PLAN_H
#define LG_PLAN_PLAN_H

#include "base/buf.h"
#include "model/config.h"
#include "model/weights/weights.h"

/* ---- model.c ---- */

/* Dimensions, and bytes of a stored number. */
typedef struct lg_plan_model {
    char name[64];
    double hidden, n_gdn, n_attn, n_head, n_kv_head, d_head;
    double n_k_head, n_v_head, d_k, d_v;
    double n_expert, n_used, wide,
        wide_shared; /* n_expert 0: a dense MLP of width wide_shared */
    double n_vocab;
    double b_dense, b_expert, b_router, b_head; /* bytes of a weight */
    double b_act, b_kv,
        b_state; /* of an activation, of keys and values, of the recurrent state */
    double
        state_moves; /* times that a decoded token moves a recurrent state to or from memory */
    double chunk;    /* rows of GDN that are computed together in prefill */
} lg_plan_model;

/* The published models "397b", "122b", "35b": their configurations.  False: no such name. */
bool lg_plan_config_named(const char *name, lg_config *c);

/* The same, as served on TPUs: 8-bit weights and KV, 16-bit state.  False: no such name. */
bool lg_plan_model_named(const char *name, lg_plan_model *m);

/* From a checkpoint's configuration; weights of weight_bytes a number (both kinds), activations and state in 32 bits, KV in 16. */
void lg_plan_model_of(const lg_config *c, double weight_bytes, lg_plan_model *m);

double lg_plan_n_layer(const lg_plan_model *m);
double lg_plan_gdn_params(const lg_plan_model *m);  /* matrices of one GDN layer */
double lg_plan_attn_params(const lg_plan_model *m); /* of one attention layer */
double lg_plan_shared_params(
    const lg_plan_model *m); /* shared expert and its gate, or the dense MLP */
double lg_plan_expert_params(const lg_plan_model *m); /* of one expert */
double lg_plan_dense_params(const lg_plan_model *m); /* all layers: mixers and shared experts */
double lg_plan_slot_bytes(
    const lg_plan_model *m); /* recurrent state and conv rows of a sequence, all layers */
double
lg_plan_slot_moved(const lg_plan_model *m); /* of it, to and from memory for a decoded token */
double lg_plan_gdn_ops(const lg_plan_model *m,
                       double chunk); /* of a token, all layers; chunk 0: one token alone */
double lg_plan_token_bytes(const lg_plan_model *m); /* keys and values of a token, all layers */

/* Expected share of experts that n tokens touch, under even routing. */
double lg_plan_touched(const lg_plan_model *m, double n_tok);

/* ---- hardware.c ---- */

typedef struct lg_plan_hw {
    char name[96];
    double n_chip;     /* chips, or nodes of a cluster */
    double n_dev;      /* devices (ranks) of one chip (node) */
    double ops_weight; /* peak of products with weights, of one device */
    double ops_16, ops_32;
    double bandwidth; /* of one device's memory */
    double memory;    /* of one device, bytes */
    double n_link;    /* links of a chip that a collective uses at once, each direction */
    double link;      /* bytes a second of one, one direction */
    double inside;    /* between devices of a chip, one direction */
    double latency;   /* of one collective, seconds */
    double dim[3];    /* chips along the axes of the torus; 0: no torus, full bisection */
} lg_plan_hw;

/* "tpu7x:2x2x1" (chips along three axes), or the path of a JSON file (docs/PLAN.md).  LG_E_ARG, LG_E_IO, LG_E_FORMAT name
 * what is wrong. */
lg_status lg_plan_hw_load(const char *what, lg_plan_hw *hw, lg_err *err);

/* Append hw as such a file; torus or not, the axes are lost. */
void lg_plan_hw_write(const lg_plan_hw *hw, lg_buf *out);

/* One node that reads `stream` bytes a second and does so many multiply-adds a second: of bytes, of floats. */
void lg_plan_hw_node(const char *name, double stream, double int_macs, double float_macs,
                     double memory, lg_plan_hw *hw);

/* ---- step.c ---- */

typedef enum { LG_PLAN_AUTO, LG_PLAN_GATHER, LG_PLAN_A2A } lg_plan_exchange;

/* How the devices share the work.  Groups of n_ep devices hold all experts once; inside, mixers run on n_ep / n_tp sets of
 * sequences, each cut over n_tp devices. */
typedef struct lg_plan_split {
    double n_ep, n_tp;
    lg_plan_exchange exchange;
} lg_plan_split;

/* Constants that no first principle gives. */
typedef struct lg_plan_cal {
    bool all_hot;   /* every expert is read in every step: what the published limit assumes */
    double latency; /* added to each collective; < 0: the hardware's */
    double step_fixed;   /* decode: seconds a step beside the terms */
    double step_per_seq; /* decode: seconds for each sequence of an 8-device group */
    /* prefill: share of the ideal time that is reached */
    double eff_proj, eff_core, eff_small, eff_expert, eff_move, eff_gather, eff_scatter;
    double other_per_tok; /* seconds for each token of a device and layer: norms, casts */
} lg_plan_cal;

lg_plan_cal lg_plan_cal_ideal(void);     /* physics only, cold experts skipped */
lg_plan_cal lg_plan_cal_published(void); /* the published limit for TPU7x */
lg_plan_cal lg_plan_cal_measured(void);  /* fitted to published measurements on TPU7x */

#define LG_PLAN_MAX_TERM 16

typedef struct lg_plan_term {
    const char *name;
    double bytes, ops, s; /* of one device, all layers */
    char limit;           /* 'm' memory, 'c' compute, 'l' link, 'f' fixed */
} lg_plan_term;

typedef struct lg_plan_step {
    lg_plan_term term[LG_PLAN_MAX_TERM];
    uint32_t n_term;
    double s;
    bool a2a; /* the exchange that was taken */
} lg_plan_step;

/* One token for each of n_seq sequences (of one group of n_ep devices) with `context` tokens behind each. */
void lg_plan_decode(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_split *sp,
                    const lg_plan_cal *cal, double n_seq, double context, lg_plan_step *out);

/* n_tok prompt tokens of one group, `context` tokens behind each on average. */
void lg_plan_prefill(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_split *sp,
                     const lg_plan_cal *cal, double n_tok, double context, lg_plan_step *out);

/* The term that takes longest. */
const lg_plan_term *lg_plan_longest(const lg_plan_step *s);

/* Copies of a token that leave its device when each of n_dev holds an equal share of the experts: all-gather, and all-to-all
 * that sends a token once to a device. */
double lg_plan_copies_gather(double n_dev);
double lg_plan_copies_a2a(const lg_plan_model *m, double n_dev);

/* A term from bytes and seconds of products, at this bandwidth. */
lg_plan_term lg_plan_term_of(const char *name, double bytes, double ops, double ops_s,
                             double bandwidth);

/* ---- cpu.c ---- */

/* Weights of an operation, all layers: how many are multiplied as integers, how many as floats; their bytes and types. */
typedef struct lg_plan_weights {
    double n_int, n_float, bytes;
    char types[48];
} lg_plan_weights;

/* A loaded (or checked) model as the CPU backend runs it. */
typedef struct lg_plan_cpu {
    lg_plan_model m; /* bytes a number as they are in these weights */
    lg_plan_weights mix_in, mix_out, route, shared_down, mlp,
        head; /* mlp: every expert, or the dense MLP */
} lg_plan_cpu;

/* `as_float`: block types are multiplied as floats too; b_kv: bytes of one kept number. */
void lg_plan_cpu_of(const lg_weights *w, bool as_float, double b_kv, lg_plan_cpu *c);

/* Rows of one step. */
typedef struct lg_plan_batch {
    double n_row, n_seq, n_one; /* n_one: sequences of one row */
    double n_out, n_sample;     /* rows of logits, sequences that sample */
    double seen,
        read; /* positions that rows look at, positions whose keys and values are read: sums */
    double
        touched; /* share of the experts that are read; < 0: as expected under even routing */
} lg_plan_batch;

/* Add a sequence of n_row rows behind `context` tokens; one that samples has one output row. */
void lg_plan_batch_add(lg_plan_batch *b, double n_row, double context, bool samples);

enum { LG_PLAN_N_CPU = 8 };

/* The least time of each operation of a step on all threads together: LG_PLAN_N_CPU terms in the order of lg_op (backend.h).
 * Work on single rows has no term. */
void lg_plan_cpu_step(const lg_plan_cpu *c, const lg_plan_hw *hw, const lg_plan_batch *b,
                      lg_plan_step *out);

/* ---- serve.c ---- */

typedef struct lg_plan_load {
    double isl, osl,
        concurrency; /* prompt and answer tokens, requests in flight on all the hardware */
    double phi;      /* useful share of the prefill steps' tokens, 0 < phi <= 1 */
    double discount; /* of the result, 0 < discount <= 1 */
} lg_plan_load;

typedef struct lg_plan_result {
    lg_plan_split split;
    lg_plan_step prefill, decode;
    double n_group;                         /* groups of n_ep devices */
    double prefill_tok;                     /* tokens of a prefill step of one group */
    double total_per_chip, output_per_chip; /* tokens/s */
    double weights, kv_state,
        room; /* bytes of one device: weights, what the requests need, what there is */
    bool fits;
} lg_plan_result;

void lg_plan_serve(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_split *sp,
                   const lg_plan_cal *cal, const lg_plan_load *load, lg_plan_result *r);

/* The best sets in groups of n_ep devices; false: the devices or the experts cannot be divided so. */
bool lg_plan_best_of(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_cal *cal,
                     const lg_plan_load *load, double n_ep, lg_plan_result *r);

/* The split with the most tokens a second among those that fit; when none fits, the one that needs least memory. */
void lg_plan_best(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_cal *cal,
                  const lg_plan_load *load, lg_plan_result *r);

/* ---- anchors.c ---- */

typedef struct lg_plan_anchor {
    const char *what;
    double expected, found;
} lg_plan_anchor;

#define LG_PLAN_N_ANCHOR 7

/* Published limits of the 397B model on four TPU7x chips, and what these formulas give. */
void lg_plan_anchors(lg_plan_anchor a[LG_PLAN_N_ANCHOR]);

typedef struct lg_plan_point {
    const char *source;
    double isl, osl, concurrency;
    double measured; /* tokens/s of a chip, prompts included */
    double predicted;
} lg_plan_point;

/* Published measurements of the same system; returns their number, fills at most max. */
uint32_t lg_plan_points(lg_plan_point *p, uint32_t max);

/* ---- svg.c ---- */

typedef struct lg_plan_curve {
    const char *name;
    const double *x, *y;
    uint32_t n;
} lg_plan_curve;

/* Append a plot; x is logarithmic, both > 0. */
void lg_plan_svg(lg_buf *out, const char *title, const char *x_name, const char *y_name,
                 const lg_plan_curve *curve, uint32_t n_curve);

#endif
