/* bench_scale.h - what the files of bench_scale share.
 *
 * bench_scale.c     options and cases
 * scale_parts.c     what computing takes, what travels, the rates of this machine's kernels
 * scale_run.c       a step whose messages are sent: in simulated time (comm_sim.h), or by real messages
 * scale_forecast.c  the same step in closed form
 *
 * Seconds and numbers of weights are double; rows are those of one rank unless said otherwise. */
#ifndef LG_BENCH_SCALE_H
#define LG_BENCH_SCALE_H

#include "dist/exchange.h"
#include "plan/plan.h"

#include "comm_sim.h"

/* What was asked for. */
typedef struct scale_opt {
    double bandwidth, ops;   /* of one rank */
    double n_thread, head_s; /* of one rank; a value head of a row of a prompt */
    double slow;             /* --real: everything takes so many times as long */
    uint32_t n_prompt_row;
    lg_links links;
    uint32_t n_local, n_layer;
    const char *model; /* NULL: all of them */
    lg_exchange_how how;
    bool is_real;
    lg_comm real; /* --real: the group that mpirun started */
} scale_opt;

extern scale_opt scale;

/* A step of a model on some ranks. */
typedef struct scale_step {
    lg_plan_model m;
    sim *s;
    lg_place place;
    uint32_t n_rank, n_row[LG_MAX_RANK];
    uint32_t n_layer;
    bool prompt, divided; /* divided: rank 0's prompt over all */
    bool sliced;          /* rank 0's row, with the help of all */
    uint64_t start_us;    /* of a real step */
} scale_step;

/* ---- scale_parts.c: seconds of a layer's parts ---- */

bool scale_is_attn(uint32_t layer);

/* Weights of a mixer's products, on average. */
double scale_mixer_params(const lg_plan_model *m);

/* Mixer, router, norms of `rows` own rows, without the recurrence of a prompt; of it, states, keys and values. */
double scale_mixer(const lg_plan_model *m, double rows, bool prompt);
double scale_states(const lg_plan_model *m, double rows, bool prompt);

/* Recurrence of a prompt's rows, `heads` key heads on this rank, as the threads take it (backend/cpu/gdn.c); part: of a divided prompt. */
double scale_heads(const lg_plan_model *m, double rows, double heads, bool part);

/* Of the products of a divided prompt's own rows, those made while rows go to the heads (z), or keys travel (queries). */
double scale_beside(const lg_plan_model *m, bool attn, double rows);

/* Some of a layer's dense weights, one row. */
double scale_slice(const lg_plan_model *m, double params);
double scale_router(const lg_plan_model *m);

double scale_shared(const lg_plan_model *m, double rows);
double scale_expert(const lg_plan_model *m, double rows); /* of one expert */
double scale_copy(const lg_plan_model *m, double rows);

/* What is moved in memory of this rank's n rows and of its heads of all, in a divided prompt. */
double scale_pack(const lg_plan_model *m, double n);

/* What comes after the layers; `most`: rows of the rank that has most. */
double scale_end(const scale_step *r, double most);

/* Words of a key head: of a row before the recurrence and after it, of its state; of a row's keys and values. */
size_t scale_in_words(const lg_plan_model *m);
size_t scale_out_words(const lg_plan_model *m);
size_t scale_state_words(const lg_plan_model *m);
size_t scale_key_words(const lg_plan_model *m);

/* What a mixer's input products give for a row, and what goes into its output product. */
double scale_product_words(const lg_plan_model *m, bool attn);
double scale_mixed_words(const lg_plan_model *m, bool attn);

/* The shape of a group, for choose.h. */
lg_group_shape scale_group_of(const scale_step *r);

/* Rates of this machine's kernels into `scale`: of products, of one thread times n_thread; of a value head. */
void scale_measure_kernels(double n_thread);
void scale_measure_head(void);

/* ---- scale_run.c ---- */

/* Seconds of the step in simulated time. */
double scale_simulate(scale_step *r);

/* Seconds of the same step by real messages, the median of some.  Collective. */
double scale_measure(scale_step *r);

/* ---- scale_forecast.c ---- */

double scale_forecast(const scale_step *r);

#endif
