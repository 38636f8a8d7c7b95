/* cost.h - how long a step will take: a small linear model, fitted to the steps that were measured.
 *
 * Time = constant + experts touched + rows that decode + rows of prompts + earlier positions, once for each sequence (they are read)
 * and once for each row (they are multiplied): the rows of a prompt share one pass over its keys and values.  Weighted least
 * squares on relative errors; older steps are forgotten exponentially, those with and those without prompt rows each at their
 * own pace, so that an hour of decoding does not wear out what is known of prompts.  No weight is ever negative.  On top of it the
 * last few steps tell how fast the machine is just now: other work on it comes and goes faster than the fit can follow.
 * Nothing that depends on this changes a bit of an answer.
 * Thread: engine.  Memory: none.  Test: tests/unit/test_cost.c */
#ifndef LG_ENGINE_COST_H
#define LG_ENGINE_COST_H

#include <stdbool.h>
#include <stdint.h>

#define LG_COST_N 6

/* What a step has to do. */
typedef struct lg_cost_load {
    double decode, prefill; /* rows */
    double read;            /* sum over sequences of the positions before their first row */
    double seen;            /* sum over rows of the positions before each */
} lg_cost_load;

typedef struct lg_cost {
    double a[2][LG_COST_N][LG_COST_N]; /* normal equations: steps without, with prompt rows */
    double b[2][LG_COST_N];
    double n[2];              /* steps in them, faded */
    double weight[LG_COST_N]; /* microseconds a unit */
    double spared;            /* share of the experts that one row leaves alone; 0: dense */
    double widest;            /* most prompt rows of the steps measured lately */
    double pace;              /* measured / fitted of the last few steps */
    double margin;            /* measured / predicted that is rarely exceeded, >= 1 */
    double copy_us;           /* of one snapshot, in or out */
} lg_cost;

/* n_expert 0: dense.  copy_us: a first guess. */
void lg_cost_init(lg_cost *c, uint32_t n_expert, uint32_t n_expert_tok, double copy_us);

/* Expected microseconds; 0 before the first step was measured. */
double lg_cost_step_us(const lg_cost *c, const lg_cost_load *load);

/* Microseconds, constant left out, of computing `n` positions of a prompt from `from` on. */
double lg_cost_tokens_us(const lg_cost *c, uint32_t from, uint32_t n);

/* Whether the steps measured lately had rows enough to tell what `n` rows of a prompt cost: of few, a fit cannot tell their cost
 * from a step's constant. */
bool lg_cost_knows_prompts(const lg_cost *c, uint32_t n);

/* Microseconds that every step costs, however few its rows. */
double lg_cost_floor_us(const lg_cost *c);

/* A step of this load took so long. */
void lg_cost_learn(lg_cost *c, const lg_cost_load *load, double us);

/* A snapshot was copied in so long. */
void lg_cost_learn_copy(lg_cost *c, double us);

#endif
