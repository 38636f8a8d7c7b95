/* weights_sum.c - checksums of loaded weights, so that ranks can tell that they mean the same model: see weights.h.
 *
 * Panels are summed, not files: what is compared is what will be multiplied.
 * Thread: the caller's and the pool's.  Memory: none.  Test: tests/unit/test_weights.c */
#include "model/weights/weights.h"

#include "base/hash.h"

static uint64_t add_mat(uint64_t h, const lg_mat *m) {
    uint32_t shape[3] = {(uint32_t)m->type, m->n_out, m->n_in};
    h = lg_hash_add(h, shape, sizeof shape);
    if (!m->panel) return h;
    h = lg_hash_add(h, m->panel, (size_t)lg_pack_bytes(m->type, m->n_out, m->n_in));
    if (!m->scale) return h;
    size_t per_row = (size_t)lg_mat_n_panel(m) * LG_NR;
    size_t n = m->type == LG_NVFP4 ? 1
               : m->zero || m->scale_row
                   ? per_row * m->n_group
                   : (size_t)((m->n_out + 127) / 128) * ((m->n_in + 127) / 128);
    h = lg_hash_add(h, m->scale, n * sizeof *m->scale);
    if (!m->zero) return h;
    h = lg_hash_add(h, m->zero, n);
    return lg_hash_add(h, m->group, m->n_in * sizeof *m->group);
}

static uint64_t add_mlp(uint64_t h, const lg_mlp_w *m) {
    return add_mat(add_mat(add_mat(h, &m->gate), &m->up), &m->down);
}

typedef struct sum_ctx {
    const lg_weights *w;
    const lg_weights_part *part;
    uint64_t *sum;
} sum_ctx;

static void expert_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const sum_ctx *c = ctx;
    uint32_t n = c->w->cfg.n_expert, l = (uint32_t)(task / n), e = (uint32_t)(task % n);
    const lg_mlp_w *m = &c->w->layer[l].expert[e];
    c->sum[task] = 0;
    if (!m->gate.panel || (c->part && !c->part->has(c->part->ctx, l, e))) return;
    uint64_t h = add_mlp(LG_HASH_START, m);
    c->sum[task] = h ? h : 1;
}

void lg_weights_sum_experts(const lg_weights *w, const lg_weights_part *part, lg_pool *pool,
                            uint64_t *sum) {
    sum_ctx c = {w, part, sum};
    lg_pool_run(pool, (size_t)w->cfg.n_layer * w->cfg.n_expert, expert_task, &c);
}

static uint64_t add_vec(uint64_t h, const float *v, size_t n) {
    return v ? lg_hash_add(h, v, n * sizeof *v) : h;
}

static uint64_t sum_layer(const lg_weights *w, const lg_layer_w *l) {
    const lg_config *c = &w->cfg;
    const lg_mat *mat[] = {&l->q, &l->k, &l->v, &l->o,   &l->qkv,
                           &l->z, &l->b, &l->a, &l->out, &l->router};
    uint32_t kind = (uint32_t)l->kind;
    uint64_t h = lg_hash_add(LG_HASH_START, &kind, sizeof kind);
    for (size_t i = 0; i < LG_COUNT(mat); i++) h = add_mat(h, mat[i]);
    h = add_mlp(add_mlp(h, &l->mlp), &l->shared);
    h = add_vec(h, l->in_norm, c->n_embd);
    h = add_vec(h, l->post_norm, c->n_embd);
    h = add_vec(h, l->q_norm, c->d_head);
    h = add_vec(h, l->k_norm, c->d_head);
    h = add_vec(h, l->conv, (size_t)LG_CONV_K * lg_config_conv_dim(c));
    h = add_vec(h, l->neg_exp_a, c->n_v_head);
    h = add_vec(h, l->dt_bias, c->n_v_head);
    h = add_vec(h, l->gdn_norm, c->d_v);
    return add_vec(h, l->shared_gate, c->n_embd);
}

static void layer_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const sum_ctx *c = ctx;
    const lg_weights *w = c->w;
    if (task < w->cfg.n_layer)
        c->sum[task] = sum_layer(w, &w->layer[task]);
    else if (task == w->cfg.n_layer)
        c->sum[task] = add_vec(add_mat(LG_HASH_START, &w->head), w->final_norm, w->cfg.n_embd);
    else
        c->sum[task] = lg_hash_add(LG_HASH_START, w->embed.data, (size_t)w->embed.len_bytes);
}

uint64_t lg_weights_sum_rest(const lg_weights *w, lg_pool *pool) {
    uint64_t sum[LG_MAX_LAYER + 2];
    uint32_t n = w->cfg.n_layer + 2;
    sum_ctx c = {w, NULL, sum};
    uint32_t shape[] = {w->cfg.n_layer,  w->cfg.n_embd,       w->cfg.n_vocab,
                        w->cfg.n_expert, w->cfg.n_expert_tok, w->cfg.n_ff_expert};
    lg_pool_run(pool, n, layer_task, &c);
    return lg_hash_add(lg_hash_add(LG_HASH_START, shape, sizeof shape), sum, n * sizeof *sum);
}
