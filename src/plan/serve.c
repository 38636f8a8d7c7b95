/* serve.c - steps to served tokens: see plan.h.
 *
 * All groups do the same.  While a group answers its requests once, it reads all their prompts:
 *     n_p   = requests x isl / (phi x tokens of a prefill step)         prefill steps
 *     cycle = n_p x P + osl x D                                         seconds
 *     rate  = requests x (isl + osl) / cycle
 * Memory: none.  Test: tests/unit/test_plan.c */
#include "plan/plan.h"

#include <math.h>

/* Prompt tokens of one set of sequences in a step: the recipe's bounds. */
#define LEAST_TOK 1024
#define MOST_TOK  2048

static void weigh(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_load *load,
                  lg_plan_result *r) {
    const lg_plan_split *sp = &r->split;
    double dp = sp->n_ep / sp->n_tp, n_layer = lg_plan_n_layer(m);
    double local = ceil(m->n_expert / sp->n_ep);
    double set = load->concurrency / r->n_group / dp; /* requests of a set of sequences */
    r->weights = local * lg_plan_expert_params(m) * n_layer * m->b_expert +
                 lg_plan_dense_params(m) * m->b_dense / sp->n_tp +
                 n_layer * m->hidden * m->n_expert * m->b_router +
                 2 * m->n_vocab * m->hidden * m->b_head / sp->n_ep;
    r->kv_state =
        set * (lg_plan_slot_bytes(m) / sp->n_tp +
               (load->isl + load->osl) * lg_plan_token_bytes(m) / fmin(sp->n_tp, m->n_kv_head));
    r->room = hw->memory;
    r->fits = r->weights + r->kv_state <= r->room;
}

void lg_plan_serve(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_split *sp,
                   const lg_plan_cal *cal, const lg_plan_load *load, lg_plan_result *r) {
    *r = (lg_plan_result){.split = *sp, .n_group = hw->n_chip * hw->n_dev / sp->n_ep};
    double dp = sp->n_ep / sp->n_tp, n = load->concurrency / r->n_group;
    double budget = fmin(fmax(load->isl / dp, LEAST_TOK), MOST_TOK);
    r->prefill_tok = fmin(dp * budget, n * load->isl);
    lg_plan_prefill(m, hw, sp, cal, r->prefill_tok, load->isl / 2, &r->prefill);
    lg_plan_decode(m, hw, sp, cal, n, load->isl + load->osl / 2, &r->decode);
    double n_p = n * load->isl / (load->phi * r->prefill_tok);
    double cycle = n_p * r->prefill.s + load->osl * r->decode.s;
    double per_chip = n / cycle / (sp->n_ep / hw->n_dev) * load->discount;
    r->total_per_chip = per_chip * (load->isl + load->osl);
    r->output_per_chip = per_chip * load->osl;
    weigh(m, hw, load, r);
}

/* Experts are divided evenly, or copied evenly. */
static bool is_even(const lg_plan_model *m, double ep) {
    return m->n_expert == 0 || fmod(m->n_expert, ep) == 0 || fmod(ep, m->n_expert) == 0;
}

static bool better(const lg_plan_result *a, const lg_plan_result *b) {
    if (a->fits != b->fits) return a->fits;
    if (!a->fits) return a->weights + a->kv_state < b->weights + b->kv_state;
    return a->total_per_chip > b->total_per_chip;
}

bool lg_plan_best_of(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_cal *cal,
                     const lg_plan_load *load, double n_ep, lg_plan_result *r) {
    double all = hw->n_chip * hw->n_dev;
    bool found = false;
    if (n_ep > all || fmod(all, n_ep) != 0 || !is_even(m, n_ep)) return false;
    for (double tp = 1; tp <= n_ep && tp <= m->n_k_head; tp *= 2) {
        lg_plan_split sp = {n_ep, tp, LG_PLAN_AUTO};
        lg_plan_result one;
        if (fmod(n_ep, tp) != 0) continue;
        lg_plan_serve(m, hw, &sp, cal, load, &one);
        if (!found || better(&one, r)) *r = one;
        found = true;
    }
    return found;
}

void lg_plan_best(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_cal *cal,
                  const lg_plan_load *load, lg_plan_result *r) {
    bool first = true;
    for (double ep = 1; ep <= hw->n_chip * hw->n_dev; ep++) {
        lg_plan_result one;
        if (!lg_plan_best_of(m, hw, cal, load, ep, &one)) continue;
        if (first || better(&one, r)) *r = one;
        first = false;
    }
}
