/* model.c - what a model weighs: see plan.h.
 *
 * Counts of parameters are sums of the matrices of docs/MODEL.md.  Memory: none.  Test: tests/unit/test_plan.c */
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t n_embd, n_layer, n_head, n_v_head, n_expert, n_expert_tok, n_ff;
} known[] = {{"397b", 4096, 60, 32, 64, 512, 10, 1024},
             {"122b", 3072, 48, 32, 64, 256, 8, 1024},
             {"35b", 2048, 40, 16, 32, 256, 8, 512}};

bool lg_plan_config_named(const char *name, lg_config *c) {
    size_t i = 0;
    while (i < LG_COUNT(known) && strcmp(known[i].name, name) != 0) i++;
    if (i == LG_COUNT(known)) return false;
    *c = (lg_config){.n_vocab = 248320,
                     .n_embd = known[i].n_embd,
                     .n_layer = known[i].n_layer,
                     .n_ctx_max = 262144,
                     .eps = 1e-6f,
                     .n_head = known[i].n_head,
                     .n_kv_head = 2,
                     .d_head = 256,
                     .n_rot = 64,
                     .rope_theta = 1e7,
                     .n_k_head = 16,
                     .n_v_head = known[i].n_v_head,
                     .d_k = 128,
                     .d_v = 128,
                     .n_expert = known[i].n_expert,
                     .n_expert_tok = known[i].n_expert_tok,
                     .n_ff_expert = known[i].n_ff,
                     .n_ff_shared = known[i].n_ff};
    for (uint32_t l = 0; l < c->n_layer; l++)
        c->layer[l] = l % 4 == 3 ? LG_LAYER_ATTN : LG_LAYER_GDN;
    return true;
}

bool lg_plan_model_named(const char *name, lg_plan_model *m) {
    lg_config c;
    if (!lg_plan_config_named(name, &c)) return false;
    lg_plan_model_of(&c, 1, m);
    m->b_router = m->b_head = m->b_act = m->b_state = 2;
    m->b_kv = 1;
    m->state_moves = 2;
    m->chunk = 64;
    snprintf(m->name, sizeof m->name, "%s", name);
    return true;
}

void lg_plan_model_of(const lg_config *c, double weight_bytes, lg_plan_model *m) {
    *m = (lg_plan_model){
        .hidden = c->n_embd,
        .n_head = c->n_head,
        .n_kv_head = c->n_kv_head,
        .d_head = c->d_head,
        .n_k_head = c->n_k_head,
        .n_v_head = c->n_v_head,
        .d_k = c->d_k,
        .d_v = c->d_v,
        .n_expert = c->n_expert,
        .n_used = c->n_expert_tok,
        .wide = c->n_ff_expert,
        .wide_shared = c->n_expert ? c->n_ff_shared : c->n_ff,
        .n_vocab = c->n_vocab,
        .b_dense = weight_bytes,
        .b_expert = weight_bytes,
        .b_router = weight_bytes > 2 ? 4 : 2,
        .b_head = weight_bytes,
        .b_act = 4,
        .b_kv = 2,
        .b_state = 4,
        .state_moves =
            1 + 1.0 / LG_GDN_C, /* read for each token, written when rows are folded in */
        .chunk = LG_GDN_C};
    for (uint32_t i = 0; i < c->n_layer; i++)
        *(c->layer[i] == LG_LAYER_ATTN ? &m->n_attn : &m->n_gdn) += 1;
    snprintf(m->name, sizeof m->name, "%s", c->model_type);
}

double lg_plan_n_layer(const lg_plan_model *m) {
    return m->n_gdn + m->n_attn;
}

static double conv_dim(const lg_plan_model *m) {
    return 2 * m->n_k_head * m->d_k + m->n_v_head * m->d_v;
}

double lg_plan_gdn_params(const lg_plan_model *m) {
    double value = m->n_v_head * m->d_v;
    return m->hidden * (conv_dim(m) + 2 * value + 2 * m->n_v_head);
}

double lg_plan_attn_params(const lg_plan_model *m) {
    return m->hidden * m->d_head * (3 * m->n_head + 2 * m->n_kv_head);
}

double lg_plan_shared_params(const lg_plan_model *m) {
    return 3 * m->hidden * m->wide_shared + (m->n_expert > 0 ? m->hidden : 0);
}

double lg_plan_expert_params(const lg_plan_model *m) {
    return 3 * m->hidden * m->wide;
}

double lg_plan_dense_params(const lg_plan_model *m) {
    return m->n_gdn * lg_plan_gdn_params(m) + m->n_attn * lg_plan_attn_params(m) +
           lg_plan_n_layer(m) * lg_plan_shared_params(m);
}

double lg_plan_slot_bytes(const lg_plan_model *m) {
    return m->n_gdn * (m->n_v_head * m->d_k * m->d_v * m->b_state + 3 * conv_dim(m) * m->b_act);
}

double lg_plan_slot_moved(const lg_plan_model *m) {
    return m->n_gdn * (m->n_v_head * m->d_k * m->d_v * m->b_state * m->state_moves +
                       2 * 3 * conv_dim(m) * m->b_act);
}

/* Key and query with the state and its update; in a chunk also K K^T, Q K^T, the two solved blocks and half of the block below
 * the diagonal. */
double lg_plan_gdn_ops(const lg_plan_model *m, double chunk) {
    double head = 6 * m->d_k * m->d_v + chunk * (4 * m->d_k + 2 * (m->d_k + m->d_v) + m->d_v);
    return m->n_gdn * m->n_v_head * head;
}

double lg_plan_token_bytes(const lg_plan_model *m) {
    return m->n_attn * 2 * m->n_kv_head * m->d_head * m->b_kv;
}

double lg_plan_touched(const lg_plan_model *m, double n_tok) {
    return m->n_expert > 0 ? 1 - pow(1 - m->n_used / m->n_expert, n_tok) : 0;
}
