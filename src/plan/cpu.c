/* cpu.c - the least time of each operation of a step of the CPU backend: see plan.h.
 *
 * Products with weights read each weight once for all rows and multiply it with each; keys, values and states are read once for
 * each sequence.  An operation takes the longer of its bytes at the stream's bandwidth and its products at their peaks, those of
 * bytes and those of floats one after the other.  Memory: none.  Test: tests/unit/test_plan.c */
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void note_type(lg_plan_weights *p, const char *name) {
    size_t n = strlen(p->types), len = strlen(name);
    for (const char *at = p->types; (at = strstr(at, name)); at += len)
        if ((at == p->types || at[-1] == ' ') && (at[len] == 0 || at[len] == ' ')) return;
    if (n + len + 2 > sizeof p->types) return;
    snprintf(p->types + n, sizeof p->types - n, "%s%s", n ? " " : "", name);
}

static void add(lg_plan_weights *p, const lg_mat *w, bool as_float) {
    double n = (double)w->n_out * w->n_in, block = lg_dtype_block(w->type);
    if (n == 0) return;
    *(lg_dtype_is_int(w->type) && !as_float ? &p->n_int : &p->n_float) += n;
    p->bytes += n / block * (double)lg_dtype_block_bytes(w->type);
    note_type(p, lg_dtype_name(w->type));
}

static void add_mlp(lg_plan_weights *p, const lg_mlp_w *w, bool as_float) {
    add(p, &w->gate, as_float);
    add(p, &w->up, as_float);
    add(p, &w->down, as_float);
}

static void add_layer(lg_plan_cpu *c, const lg_config *cfg, const lg_layer_w *w, bool f) {
    const lg_mat *in[] = {&w->qkv, &w->z, &w->b, &w->a, &w->q, &w->k, &w->v};
    bool attn = w->kind == LG_LAYER_ATTN;
    for (size_t i = attn ? 4 : 0; i < (attn ? LG_COUNT(in) : 4); i++) add(&c->mix_in, in[i], f);
    add(&c->mix_out, attn ? &w->o : &w->out, f);
    if (cfg->n_expert == 0) {
        add_mlp(&c->mlp, &w->mlp, f);
        return;
    }
    add(&c->route, &w->router, f);
    add(&c->route, &w->shared.gate, f);
    add(&c->route, &w->shared.up, f);
    add(&c->shared_down, &w->shared.down, f);
    for (uint32_t e = 0; e < cfg->n_expert; e++) add_mlp(&c->mlp, &w->expert[e], f);
}

static double count(const lg_plan_weights *p) {
    return p->n_int + p->n_float;
}

void lg_plan_cpu_of(const lg_weights *w, bool as_float, double b_kv, lg_plan_cpu *c) {
    const lg_config *cfg = &w->cfg;
    *c = (lg_plan_cpu){0};
    lg_plan_weights router = {0};
    for (uint32_t i = 0; i < cfg->n_layer; i++) {
        add_layer(c, cfg, &w->layer[i], as_float);
        if (cfg->n_expert) add(&router, &w->layer[i].router, as_float);
    }
    add(&c->head, &w->head, as_float);
    lg_plan_model_of(cfg, 1, &c->m);
    lg_plan_model *m = &c->m;
    const lg_plan_weights *dense[] = {&c->mix_in, &c->mix_out, &c->route, &c->shared_down};
    double n = -count(&router), bytes = -router.bytes;
    for (size_t i = 0; i < LG_COUNT(dense); i++) {
        n += count(dense[i]);
        bytes += dense[i]->bytes;
    }
    if (cfg->n_expert == 0) {
        n += count(&c->mlp);
        bytes += c->mlp.bytes;
    }
    m->b_dense = bytes / n;
    if (cfg->n_expert) {
        m->b_expert = c->mlp.bytes / count(&c->mlp);
        m->b_router = router.bytes / count(&router);
    } else {
        m->b_expert = m->b_dense;
    }
    m->b_head = c->head.bytes / count(&c->head);
    m->b_kv = b_kv;
}

void lg_plan_batch_add(lg_plan_batch *b, double n_row, double context, bool samples) {
    b->n_row += n_row;
    b->n_seq++;
    b->n_one += n_row == 1;
    b->n_out += samples;
    b->n_sample += samples;
    b->seen += n_row * context + n_row * (n_row + 1) / 2;
    b->read += context + n_row;
}

static double ops_of(const lg_plan_weights *p, double n_row) {
    return 2 * n_row * count(p);
}

static double seconds_of(const lg_plan_weights *p, double n_row, const lg_plan_hw *hw) {
    return 2 * n_row * (p->n_int / hw->ops_weight + p->n_float / hw->ops_32);
}

/* n_row rows times all of these weights. */
static lg_plan_term product(const char *name, const lg_plan_weights *p, double n_row,
                            const lg_plan_hw *hw) {
    return lg_plan_term_of(name, n_row > 0 ? p->bytes : 0, ops_of(p, n_row),
                           seconds_of(p, n_row, hw), hw->bandwidth);
}

/* Experts, of which some are read and each row meets a few, and the shared expert's down product. */
static lg_plan_term mlp(const lg_plan_cpu *c, const lg_plan_hw *hw, const lg_plan_batch *b) {
    const lg_plan_model *m = &c->m;
    if (m->n_expert == 0) return product("MLP", &c->mlp, b->n_row, hw);
    double share = b->touched < 0 ? lg_plan_touched(m, b->n_row) : b->touched;
    double n = b->n_row * m->n_used / m->n_expert; /* rows of one expert */
    return lg_plan_term_of(
        "experts, shared down", share * c->mlp.bytes + c->shared_down.bytes,
        ops_of(&c->mlp, n) + ops_of(&c->shared_down, b->n_row),
        seconds_of(&c->mlp, n, hw) + seconds_of(&c->shared_down, b->n_row, hw), hw->bandwidth);
}

void lg_plan_cpu_step(const lg_plan_cpu *c, const lg_plan_hw *hw, const lg_plan_batch *b,
                      lg_plan_step *out) {
    const lg_plan_model *m = &c->m;
    double n = b->n_row, many = b->n_seq - b->n_one;
    double gdn =
        b->n_one * lg_plan_gdn_ops(m, 0) + (n - b->n_one) * lg_plan_gdn_ops(m, m->chunk);
    double state = b->n_one * lg_plan_slot_moved(m) + many * 2 * lg_plan_slot_bytes(m);
    double attn = 4 * b->seen * m->n_attn * m->n_head * m->d_head;
    *out = (lg_plan_step){.n_term = LG_PLAN_N_CPU};
    lg_plan_term *t = out->term;
    t[0] = product("mixers in", &c->mix_in, n, hw);
    t[1] = lg_plan_term_of("GDN", state, gdn, gdn / hw->ops_32, hw->bandwidth);
    t[2] = lg_plan_term_of("attention", b->read * lg_plan_token_bytes(m), attn,
                           attn / hw->ops_32, hw->bandwidth);
    t[3] = product("mixers out", &c->mix_out, n, hw);
    t[4] = product("router, shared up", &c->route, n, hw);
    t[5] = mlp(c, hw, b);
    t[6] = product("head", &c->head, b->n_out, hw);
    t[7] = lg_plan_term_of("sampling", b->n_sample * m->n_vocab * 4, 0, 0, hw->bandwidth);
    for (uint32_t i = 0; i < LG_PLAN_N_CPU; i++) out->s += t[i].s;
}
