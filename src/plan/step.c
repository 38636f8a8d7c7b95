/* step.c - the terms of one step: see plan.h.
 *
 * Of one device of a group: n_ep devices hold every expert once, n_tp of them share a set of sequences.  Hidden rows reach
 * all devices of the group by an all-gather and come back by a reduce-scatter, or go to the experts' devices and back by
 * all-to-all, where a token goes once to a device.  Memory: none.  Test: tests/unit/test_plan.c */
#include "plan/plan.h"

#include <math.h>

typedef struct group {
    const lg_plan_model *m;
    const lg_plan_hw *hw;
    const lg_plan_cal *cal;
    double n, tp, dp; /* devices, devices of a set of sequences, sets */
    double n_chip, n_link;
    double
        hops; /* links a chip's bytes cross on the way to a random other chip; 1 without a torus */
    lg_plan_step *out;
} group;

lg_plan_cal lg_plan_cal_ideal(void) {
    return (lg_plan_cal){.latency = -1,
                         .eff_proj = 1,
                         .eff_core = 1,
                         .eff_small = 1,
                         .eff_expert = 1,
                         .eff_move = 1,
                         .eff_gather = 1,
                         .eff_scatter = 1};
}

/* The published decode limit reads every local weight once a step.  The published prefill limit is 3.0 times the ideal time:
 * shares that sum to it, of which move and scatter have a measurement near (docs/PLAN.md). */
lg_plan_cal lg_plan_cal_published(void) {
    return (lg_plan_cal){.all_hot = true,
                         .latency = 1.73e-6,
                         .eff_proj = 0.50,
                         .eff_core = 0.15,
                         .eff_small = 0.50,
                         .eff_expert = 0.60,
                         .eff_move = 0.22,
                         .eff_gather = 0.70,
                         .eff_scatter = 0.42,
                         .other_per_tok = 480e-6 / 1024};
}

/* Cold experts are skipped there; what decode steps of 4, 64, 128, 256 and 512 sequences on 8 devices took beyond the ideal,
 * as a line (docs/PLAN.md).  Prefill as in the published limit. */
lg_plan_cal lg_plan_cal_measured(void) {
    lg_plan_cal c = lg_plan_cal_published();
    c.all_hot = false;
    c.step_fixed = 8.77e-3;
    c.step_per_seq = 68.8e-6;
    return c;
}

double lg_plan_copies_gather(double n_dev) {
    return n_dev - 1;
}

/* Expected devices that hold experts of a token, less its own: n (1 - C(E - E/n, k) / C(E, k)) (n - 1) / n. */
double lg_plan_copies_a2a(const lg_plan_model *m, double n_dev) {
    double e = m->n_expert, here = e / n_dev, none = 1;
    if (here < 1) return fmin(m->n_used, n_dev) * (n_dev - 1) / n_dev; /* replicas: one each */
    for (double i = 0; i < m->n_used; i++) none *= fmax(0, e - here - i) / (e - i);
    return n_dev * (1 - none) * (n_dev - 1) / n_dev;
}

/* ---- a group on the hardware ---- */

/* Chips along the axes: the smallest axis is doubled first. */
static void lay_out(group *g) {
    double d[3] = {1, 1, 1}, size = 1;
    const double *whole = g->hw->dim;
    g->n_link = g->hw->n_link;
    g->hops = 1;
    if (whole[0] == 0) return;
    while (size < g->n_chip) {
        int at = -1;
        for (int i = 0; i < 3; i++)
            if (d[i] < whole[i] && (at < 0 || d[i] < d[at])) at = i;
        if (at < 0) break;
        d[at] = fmin(2 * d[at], whole[at]);
        size = d[0] * d[1] * d[2];
    }
    g->n_link = g->hops = 0;
    for (int i = 0; i < 3; i++) {
        bool ring = d[i] == whole[i] && d[i] >= 4 && fmod(d[i], 4) == 0;
        g->n_link += d[i] < 2 ? 0 : ring ? 2 : 1;
        g->hops += ring ? d[i] / 4 : (d[i] - 1 / d[i]) / 3;
    }
    g->n_link = fmax(g->n_link, 1);
    g->hops = fmax(g->hops, 1);
}

static group group_of(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_split *sp,
                      const lg_plan_cal *cal, lg_plan_step *out) {
    group g = {.m = m, .hw = hw, .cal = cal, .n = sp->n_ep, .tp = sp->n_tp, .out = out};
    g.dp = g.n / g.tp;
    g.n_chip = fmax(1, g.n / hw->n_dev);
    lay_out(&g);
    *out = (lg_plan_step){0};
    return g;
}

static double local_experts(const group *g) {
    return ceil(g->m->n_expert / g->n); /* 0 in a dense model; at least one else */
}

/* ---- terms ---- */

static void put(group *g, const char *name, double bytes, double ops, double s, char limit) {
    if (s <= 0) return;
    g->out->term[g->out->n_term++] = (lg_plan_term){name, bytes, ops, s, limit};
    g->out->s += s;
}

lg_plan_term lg_plan_term_of(const char *name, double bytes, double ops, double ops_s,
                             double bandwidth) {
    double memory = bytes / bandwidth;
    return (lg_plan_term){name, bytes, ops, fmax(memory, ops_s), memory >= ops_s ? 'm' : 'c'};
}

/* Limited by memory or by products; eff of the ideal is reached. */
static void put_work(group *g, const char *name, double bytes, double ops, double peak,
                     double eff) {
    lg_plan_term t = lg_plan_term_of(name, bytes, ops, ops / peak, g->hw->bandwidth);
    put(g, name, bytes, ops, t.s / eff, t.limit);
}

static double latency(const group *g) {
    return g->cal->latency < 0 ? g->hw->latency : g->cal->latency;
}

/* Seconds in which every device gets all n_tok rows of the group. */
static double gather_s(const group *g, double row_bytes, double n_tok) {
    double all = n_tok * row_bytes;
    if (g->n_chip > 1) return all * (1 - 1 / g->n_chip) / (g->n_link * g->hw->link);
    return all * (1 - 1 / g->n) / g->hw->inside;
}

/* The same backwards: halves between the devices of a chip, hidden behind the links. */
static double scatter_s(const group *g, double row_bytes, double n_tok) {
    double within = g->hw->n_dev > 1 ? n_tok * row_bytes / 2 / g->hw->inside : 0;
    return fmax(within, gather_s(g, row_bytes, n_tok));
}

/* A chip's rows to the devices of their experts, over links that also carry what passes through. */
static double a2a_s(const group *g, double row_bytes, double n_tok) {
    double sent = lg_plan_copies_a2a(g->m, g->n) * n_tok / g->n * row_bytes;
    if (g->n_chip <= 1) return sent / g->hw->inside;
    double out = sent * g->hw->n_dev * (1 - 1 / g->n_chip);
    return out * g->hops / (g->n_link * g->hw->link);
}

static double row_bytes(const group *g) {
    return g->m->hidden * g->m->b_act;
}

/* Which exchange of n_tok rows it is, with these shares of the ideal. */
static void choose_exchange(group *g, lg_plan_exchange how, double n_tok, double eff_there,
                            double eff_back) {
    double row = row_bytes(g), a2a = a2a_s(g, row, n_tok);
    double by_gather =
        gather_s(g, row, n_tok) / eff_there + scatter_s(g, row, n_tok) / eff_back;
    double by_a2a = a2a / eff_there + a2a / eff_back;
    if (g->n <= 1 || g->m->n_expert == 0) return;
    g->out->a2a = how == LG_PLAN_A2A || (how == LG_PLAN_AUTO && by_a2a < by_gather);
}

/* Copies of a row that leave its device in the chosen exchange. */
static double copies(const group *g) {
    return g->out->a2a ? lg_plan_copies_a2a(g->m, g->n) : lg_plan_copies_gather(g->n);
}

static void put_exchange(group *g, double n_tok, double eff_there, double eff_back) {
    double row = row_bytes(g), n_layer = lg_plan_n_layer(g->m);
    double there = gather_s(g, row, n_tok), back = scatter_s(g, row, n_tok);
    double a2a = a2a_s(g, row, n_tok);
    bool use = g->out->a2a;
    if (g->n <= 1) return;
    if (g->m->n_expert > 0) {
        double bytes = n_layer * copies(g) * n_tok / g->n * row; /* sent, and received */
        put(g, use ? "dispatch" : "all-gather", bytes, 0,
            n_layer * ((use ? a2a : there) / eff_there + latency(g)), 'l');
        put(g, use ? "combine" : "reduce-scatter", bytes, 0,
            n_layer * ((use ? a2a : back) / eff_back + latency(g)), 'l');
    }
    if (g->tp > 1) { /* the mixers' outputs */
        double bytes = 2 * (1 - 1 / g->tp) * n_tok / g->dp * row;
        double rate = g->tp <= g->hw->n_dev ? g->hw->inside : g->n_link * g->hw->link;
        put(g, "all-reduce", n_layer * bytes, 0, n_layer * (bytes / rate + latency(g)), 'l');
    }
}

static void put_experts(group *g, double n_tok, double eff) {
    const lg_plan_model *m = g->m;
    double n_layer = lg_plan_n_layer(m), one = lg_plan_expert_params(m);
    if (m->n_expert == 0) return;
    double n_copy = fmax(1, g->n / m->n_expert);
    double share = g->cal->all_hot ? 1 : lg_plan_touched(m, n_tok / n_copy);
    put_work(g, "experts", local_experts(g) * share * one * n_layer * m->b_expert,
             2 * one * n_layer * m->n_used * n_tok / g->n, g->hw->ops_weight, eff);
}

void lg_plan_decode(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_split *sp,
                    const lg_plan_cal *cal, double n_seq, double context, lg_plan_step *out) {
    group g = group_of(m, hw, sp, cal, out);
    double n_layer = lg_plan_n_layer(m), dense = lg_plan_dense_params(m);
    double router = n_layer * m->hidden * m->n_expert, head = m->n_vocab * m->hidden;
    double mine = n_seq / g.n, set = n_seq / g.dp; /* sequences of a device, of a set */
    put_experts(&g, n_seq, 1);
    put_work(&g, "mixers, shared", dense * m->b_dense / g.tp, 2 * dense * mine, hw->ops_weight,
             1);
    put_work(&g, "router", router * m->b_router, 2 * router * set, hw->ops_16, 1);
    put_work(&g, "head", head * m->b_head / g.n, 2 * head * n_seq / g.n, hw->ops_16, 1);
    put_work(&g, "GDN state", mine * lg_plan_slot_moved(m), mine * lg_plan_gdn_ops(m, 0),
             hw->ops_32, 1);
    put_work(&g, "keys, values",
             set * context * lg_plan_token_bytes(m) / fmin(g.tp, m->n_kv_head),
             4 * mine * context * m->n_attn * m->n_head * m->d_head, hw->ops_16, 1);
    choose_exchange(&g, sp->exchange, n_seq, 1, 1);
    put_exchange(&g, n_seq, 1, 1);
    put(&g, "other", 0, 0, cal->step_fixed + cal->step_per_seq * n_seq * 8 / g.n, 'f');
}

void lg_plan_prefill(const lg_plan_model *m, const lg_plan_hw *hw, const lg_plan_split *sp,
                     const lg_plan_cal *cal, double n_tok, double context, lg_plan_step *out) {
    group g = group_of(m, hw, sp, cal, out);
    double n_layer = lg_plan_n_layer(m), t = n_tok / g.n;
    double shared = n_layer * lg_plan_shared_params(m), proj = lg_plan_dense_params(m) - shared;
    double router = n_layer * m->hidden * m->n_expert;
    double attn = 4 * t * context * m->n_attn * m->n_head * m->d_head;
    double rows = n_tok * m->n_used / g.n; /* rows of experts on this device */
    choose_exchange(&g, sp->exchange, n_tok, cal->eff_gather, cal->eff_scatter);
    double there = g.out->a2a ? t * (copies(&g) + 1) : n_tok; /* rows that are on this device */
    double moved = rows * (4 * m->hidden + 2 * m->wide) + there * m->hidden;
    put_experts(&g, n_tok, cal->eff_expert);
    put_work(&g, "mixers", proj * m->b_dense / g.tp, 2 * proj * t, hw->ops_weight,
             cal->eff_proj);
    put_work(&g, "GDN", 0, t * lg_plan_gdn_ops(m, m->chunk), hw->ops_32, cal->eff_core);
    put_work(&g, "attention", 0, attn, hw->ops_16, cal->eff_core);
    put_work(&g, "shared", shared * m->b_dense / g.tp, 2 * shared * t, hw->ops_weight,
             cal->eff_small);
    put_work(&g, "router", 0, 2 * router * t, hw->ops_16, cal->eff_small);
    if (m->n_expert > 0)
        put_work(&g, "rows moved", n_layer * moved * m->b_act, 0, 1, cal->eff_move);
    put_exchange(&g, n_tok, cal->eff_gather, cal->eff_scatter);
    put(&g, "other", 0, 0, cal->other_per_tok * t * n_layer, 'f');
}

const lg_plan_term *lg_plan_longest(const lg_plan_step *s) {
    const lg_plan_term *t = s->term;
    for (uint32_t i = 1; i < s->n_term; i++)
        if (s->term[i].s > t->s) t = &s->term[i];
    return t;
}
