/* moe.c - the MLP of one layer: router, routed experts, shared expert and their sum; or the dense MLP.
 *
 * In: s.xn, s.sg (the shared gate's dot, from the residual stage).  Out: s.mix.
 * Rows are sorted by expert (counting sort, stable); each expert is one product over its gathered rows, read once.
 * Order of a row's sum: acc = +0; for its experts in ascending id: acc = fmaf(weight, expert_out, acc); then acc =
 * fmaf(sigmoid(sg), shared_out, acc).  Thread: engine and pool.  Test: tests/unit/test_golden.c */
#include "backend/cpu/cpu.h"

#include <string.h>

#define ROWS_PER_TASK 8

static void topk_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const lg_backend *be = ctx;
    const lg_config *cfg = be->cfg;
    uint32_t r0 = (uint32_t)task * ROWS_PER_TASK, n = be->batch->n_tok, k = cfg->n_expert_tok;
    uint32_t r1 = r0 + ROWS_PER_TASK < n ? r0 + ROWS_PER_TASK : n;
    for (uint32_t r = r0; r < r1; r++)
        lg_router_topk(be->s.logit + (size_t)r * cfg->n_expert, cfg->n_expert, k,
                       be->s.top_id + (size_t)r * k, be->s.top_w + (size_t)r * k);
}

/* Counting sort of (row, expert) pairs by expert; rows stay in order inside an expert. */
static void sort_rows(lg_backend *be) {
    lg_cpu_scratch *s = &be->s;
    uint32_t n = be->batch->n_tok, k = be->cfg->n_expert_tok, n_expert = be->cfg->n_expert;
    memset(s->first, 0, (n_expert + 1) * sizeof *s->first);
    for (uint32_t i = 0; i < n * k; i++) s->first[s->top_id[i] + 1]++;
    for (uint32_t e = 0; e < n_expert; e++) s->first[e + 1] += s->first[e];
    /* first[e] serves as the cursor of e, then everything moves up by one expert. */
    for (uint32_t i = 0; i < n * k; i++) {
        uint32_t at = s->first[s->top_id[i]]++;
        s->sorted_tok[at] = i / k;
        s->sorted_w[at] = s->top_w[i];
    }
    memmove(s->first + 1, s->first, n_expert * sizeof *s->first);
    s->first[0] = 0;
    /* Places ascend with the expert's id, so appending them in order sorts each row's list. */
    memset(s->n_at, 0, n * sizeof *s->n_at);
    for (uint32_t at = 0; at < n * k; at++) {
        uint32_t r = s->sorted_tok[at];
        s->row_w[(size_t)r * k + s->n_at[r]] = s->sorted_w[at];
        s->tok_at[(size_t)r * k + s->n_at[r]++] = at;
    }
}

typedef struct combine_ctx {
    lg_backend *be;
    const lg_cpu_combine *from;
    bool routed, shared;
} combine_ctx;

static void combine_task(void *ctx, size_t task, int thread) {
    (void)thread;
    static const float one = 1.0f;
    const combine_ctx *c = ctx;
    const lg_backend *be = c->be;
    const lg_cpu_scratch *s = &be->s;
    uint32_t r0 = (uint32_t)task * ROWS_PER_TASK, n = be->batch->n_tok, h = be->cfg->n_embd;
    uint32_t r1 = r0 + ROWS_PER_TASK < n ? r0 + ROWS_PER_TASK : n, k = be->cfg->n_expert_tok;
    for (uint32_t r = r0; r < r1; r++) {
        float *y = s->mix + (size_t)r * h, gate;
        if (c->routed) {
            const uint32_t *at = c->from->at + (size_t)r * k;
            const float *weight = c->from->weight + r * c->from->ld_weight;
            memset(y, 0, h * sizeof *y);
            for (uint32_t j = 0; j < k; j++)
                be->kern->axpy(weight[j], c->from->out + at[j] * c->from->ld_out, h, y);
        }
        if (c->shared) {
            be->kern->sigmoid_mul(&one, &s->sg[r], 1, &gate);
            be->kern->axpy(gate, s->so + (size_t)r * h, h, y);
        }
    }
}

/* With a tracer in two passes, so that it can see the first sum. */
void lg_cpu_moe_combine(lg_backend *be, uint32_t layer, const lg_cpu_combine *from) {
    uint32_t n = be->batch->n_tok, h = be->cfg->n_embd;
    size_t n_task = (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    uint64_t macs = (uint64_t)n * h * (be->cfg->n_expert_tok + 1);
    combine_ctx both = {be, from, true, true}, routed = {be, from, true, false};
    combine_ctx shared = {be, from, false, true};
    lg_cpu_trace(be, (int)layer, "moe.shared_out", be->s.so, n, h, h);
    if (!be->opt.trace && from->out) {
        lg_cpu_run(be, n_task, macs, combine_task, &both);
        return;
    }
    if (from->out) lg_cpu_run(be, n_task, macs, combine_task, &routed);
    lg_cpu_trace(be, (int)layer, "moe.routed_out", be->s.mix, n, h, h);
    lg_cpu_run(be, n_task, macs, combine_task, &shared);
}

static void trace_router(const lg_backend *be, int layer) {
    const lg_cpu_scratch *s = &be->s;
    size_t n = be->batch->n_tok, k = be->cfg->n_expert_tok, n_expert = be->cfg->n_expert;
    lg_cpu_trace(be, layer, "moe.router_logits", s->logit, n, n_expert, n_expert);
    for (size_t i = 0; i < n * k; i++) s->trace[i] = (float)s->top_id[i];
    lg_cpu_trace(be, layer, "moe.topk_ids", s->trace, n, k, k);
    lg_cpu_trace(be, layer, "moe.topk_weights", s->top_w, n, k, k);
    lg_cpu_trace(be, layer, "moe.shared_gate_logit", s->sg, n, 1, 1);
}

uint32_t lg_cpu_moe_jobs(const lg_backend *be, const lg_layer_w *w, const lg_cpu_sorted *s,
                         bool down, lg_cpu_gemm *job) {
    const lg_config *cfg = be->cfg;
    uint32_t n_job = 0;
    for (uint32_t e = 0; e < cfg->n_expert; e++) {
        uint32_t at = s->first[e], n = s->first[e + 1] - at;
        if (n == 0) continue;
        float *h = s->h + (size_t)at * cfg->n_ff_expert;
        const lg_mlp_w *m = &w->expert[e];
        if (down)
            job[n_job++] = (lg_cpu_gemm){.w = &m->down,
                                         .x = h,
                                         .ld_x = cfg->n_ff_expert,
                                         .n_row = n,
                                         .y = s->out + (size_t)at * cfg->n_embd,
                                         .ld_y = cfg->n_embd};
        else
            job[n_job++] = (lg_cpu_gemm){.w = &m->gate,
                                         .w2 = &m->up,
                                         .x = s->x,
                                         .ld_x = cfg->n_embd,
                                         .row_idx = s->row + at,
                                         .n_row = n,
                                         .y = h,
                                         .y2 = s->h2 + (size_t)at * cfg->n_ff_expert,
                                         .ld_y = cfg->n_ff_expert};
    }
    return n_job;
}

/* The two products of a gated MLP over all rows. */
static lg_cpu_gemm gate_up_job(const lg_backend *be, const lg_mlp_w *m, float *h, float *h2) {
    return (lg_cpu_gemm){.w = &m->gate,
                         .w2 = &m->up,
                         .x = be->s.xn,
                         .ld_x = be->cfg->n_embd,
                         .n_row = be->batch->n_tok,
                         .y = h,
                         .y2 = h2,
                         .ld_y = m->gate.n_out};
}

static lg_cpu_gemm down_job(const lg_backend *be, const lg_mlp_w *m, const float *h, float *y) {
    return (lg_cpu_gemm){.w = &m->down,
                         .x = h,
                         .ld_x = m->down.n_in,
                         .n_row = be->batch->n_tok,
                         .y = y,
                         .ld_y = be->cfg->n_embd};
}

lg_cpu_gemm lg_cpu_moe_gate_up(const lg_backend *be, const lg_layer_w *w) {
    return gate_up_job(be, &w->shared, be->s.sh, be->s.sh2);
}

lg_cpu_gemm lg_cpu_moe_shared(const lg_backend *be, const lg_layer_w *w) {
    return down_job(be, &w->shared, be->s.sh, be->s.so);
}

void lg_cpu_moe_route(lg_backend *be, uint32_t layer) {
    const lg_config *cfg = be->cfg;
    const lg_layer_w *w = &be->w->layer[layer];
    lg_cpu_scratch *s = &be->s;
    uint32_t n = be->batch->n_tok;
    s->job[0] = lg_cpu_moe_gate_up(be, w);
    if (be->batch->slice) lg_cpu_slice_cut(be, s->job, 1);
    s->job[1] = (lg_cpu_gemm){.w = &w->router,
                              .x = s->xn,
                              .ld_x = cfg->n_embd,
                              .n_row = n,
                              .y = s->logit,
                              .ld_y = cfg->n_expert};
    lg_cpu_quant_jobs(be, &s->xn_q, s->job, 2);
    lg_cpu_gemm_run(be, s->job, 2);
    lg_cpu_mark(be, LG_OP_ROUTE);
    lg_cpu_run(be, (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK,
               (uint64_t)n * cfg->n_expert * cfg->n_expert_tok, topk_task, be);
    if (be->opt.trace) trace_router(be, (int)layer);
}

void lg_cpu_moe(lg_backend *be, uint32_t layer) {
    const lg_config *cfg = be->cfg;
    const lg_layer_w *w = &be->w->layer[layer];
    lg_cpu_scratch *s = &be->s;
    uint32_t n = be->batch->n_tok, n_job;
    /* The shared expert needs no routing, so it fills the two stages that have little else to do. */
    lg_cpu_moe_route(be, layer);
    sort_rows(be);
    lg_cpu_sorted at = {s->first, s->sorted_tok, s->xn, s->h, s->h2, s->eo};
    n_job = lg_cpu_moe_jobs(be, w, &at, false, s->job);
    lg_cpu_quant_jobs(be, &s->xn_q, s->job, n_job);
    s->job[n_job] = lg_cpu_moe_shared(be, w);
    lg_cpu_quant_start(&s->mid_q, s->sh, n, cfg->n_ff_shared);
    lg_cpu_quant_jobs(be, &s->mid_q, s->job + n_job, 1);
    lg_cpu_gemm_run(be, s->job, n_job + 1);
    lg_cpu_mark(be, LG_OP_MLP);
    if (be->opt.profile) be->opt.profile->n_expert += n_job;
    n_job = lg_cpu_moe_jobs(be, w, &at, true, s->job);
    lg_cpu_quant_start(&s->mid_q, s->h, n * cfg->n_expert_tok, cfg->n_ff_expert);
    lg_cpu_quant_jobs(be, &s->mid_q, s->job, n_job);
    lg_cpu_gemm_run(be, s->job, n_job);
    lg_cpu_mark(be, LG_OP_MLP);
    lg_cpu_combine from = {s->eo, cfg->n_embd, s->tok_at, s->row_w, cfg->n_expert_tok};
    lg_cpu_moe_combine(be, layer, &from);
}

void lg_cpu_dense(lg_backend *be, uint32_t layer) {
    const lg_mlp_w *m = &be->w->layer[layer].mlp;
    lg_cpu_gemm job = gate_up_job(be, m, be->s.h, be->s.h2);
    lg_cpu_quant_jobs(be, &be->s.xn_q, &job, 1);
    lg_cpu_gemm_run(be, &job, 1);
    lg_cpu_mark(be, LG_OP_MLP);
    job = down_job(be, m, be->s.h, be->s.mix);
    lg_cpu_quant_start(&be->s.mid_q, be->s.h, job.n_row, m->down.n_in);
    lg_cpu_quant_jobs(be, &be->s.mid_q, &job, 1);
    lg_cpu_gemm_run(be, &job, 1);
    lg_cpu_mark(be, LG_OP_MLP);
}
