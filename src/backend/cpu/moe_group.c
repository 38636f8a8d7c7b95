/* moe_group.c - the MLP of one layer when its experts are divided over ranks.
 *
 * In: s.xn, s.sg, the rows of all ranks (exchange.h).  Out: s.mix.
 * Own rows are routed here and sent to all ranks; while they fly the shared expert is computed; then the experts that this
 * rank holds multiply whatever rows chose them, a cold expert is not read.  Strict: product rows go home and are summed there
 * in the order that moe.c has, so bits are those of one rank alone.  Else each rank's sums are summed over the ranks, piece by
 * piece, a piece travelling while the next is summed (stage.c moves messages between tasks).
 * A lost rank ends every wait; the step then returns LG_E_BACKEND.
 * Thread: engine (it alone calls the comm) and pool.  Test: tests/unit/test_group.c */
#include "backend/cpu/cpu.h"

#include <string.h>

#define ROWS_PER_TASK 8

/* The shared expert's second product, while rows fly. */
static void run_shared(lg_backend *be, const lg_layer_w *w) {
    lg_cpu_scratch *s = &be->s;
    lg_cpu_gemm job = lg_cpu_moe_shared(be, w);
    lg_cpu_quant_start(&s->mid_q, s->sh, be->batch->n_tok, be->cfg->n_ff_shared);
    lg_cpu_quant_jobs(be, &s->mid_q, &job, 1);
    lg_cpu_gemm_run(be, &job, 1);
}

void lg_cpu_moe_experts(lg_backend *be, const lg_layer_w *w) {
    lg_cpu_scratch *s = &be->s;
    const lg_config *cfg = be->cfg;
    lg_exchange *x = &s->ex;
    lg_cpu_sorted at = {x->first, x->in_row, x->in, s->h, s->h2, x->out};
    uint32_t n_pair = x->first[cfg->n_expert];
    uint32_t n_job = lg_cpu_moe_jobs(be, w, &at, false, s->job);
    lg_cpu_quant_start(&s->in_q, x->in, x->n_in, cfg->n_embd);
    lg_cpu_quant_jobs(be, &s->in_q, s->job, n_job);
    lg_cpu_gemm_run(be, s->job, n_job);
    n_job = lg_cpu_moe_jobs(be, w, &at, true, s->job);
    lg_cpu_quant_start(&s->mid_q, s->h, n_pair, cfg->n_ff_expert);
    lg_cpu_quant_jobs(be, &s->mid_q, s->job, n_job);
    lg_cpu_gemm_run(be, s->job, n_job);
}

typedef struct fill_ctx {
    lg_backend *be;
    uint32_t g;
    float *y;
    uint32_t n;
} fill_ctx;

/* Sums of the experts held here, for rows of all ranks. */
static void fill_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const fill_ctx *c = ctx;
    const lg_exchange *x = &c->be->s.ex;
    uint32_t r0 = (uint32_t)task * ROWS_PER_TASK, h = x->n_embd;
    uint32_t r1 = r0 + ROWS_PER_TASK < c->n ? r0 + ROWS_PER_TASK : c->n;
    for (uint32_t r = r0; r < r1; r++) {
        uint32_t g = c->g + r, rank = 0;
        while (x->row0[rank + 1] <= g) rank++;
        const float *w = lg_exchange_weights(x, lg_exchange_record(x, rank, g));
        float *y = c->y + (size_t)r * h;
        memset(y, 0, h * sizeof *y);
        for (uint32_t j = 0; j < x->k; j++) {
            uint32_t pair = x->pair[(size_t)g * x->k + j];
            if (pair != UINT32_MAX) c->be->kern->axpy(w[j], x->out + (size_t)pair * h, h, y);
        }
    }
}

static void fill(void *ctx, uint32_t g, uint32_t n, float *y) {
    lg_backend *be = ctx;
    fill_ctx c = {be, g, y, n};
    lg_cpu_run(be, (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK,
               (uint64_t)n * be->cfg->n_embd * be->cfg->n_expert_tok, fill_task, &c);
}

void lg_cpu_moe_group(lg_backend *be, uint32_t layer) {
    const lg_layer_w *w = &be->w->layer[layer];
    lg_cpu_scratch *s = &be->s;
    lg_exchange *x = &s->ex;
    lg_trace *t = x->comm->trace;
    bool any = be->batch->n_tok > 0;
    if (any) lg_cpu_moe_route(be, layer);
    lg_status st = lg_exchange_start(x, layer, s->xn, s->top_id, s->top_w);
    uint64_t start = lg_trace_now(t);
    if (any) run_shared(be, w);
    lg_trace_add(t, LG_SPAN_SHARED, 0, layer, be->batch->n_tok, start);
    if (st == LG_OK) st = lg_exchange_arrive(x);
    if (st != LG_OK) return;
    start = lg_trace_now(t);
    lg_cpu_moe_experts(be, w);
    lg_trace_add(t, LG_SPAN_EXPERTS, 0, layer, x->first[be->cfg->n_expert], start);
    if (x->kind != LG_EXCHANGE_STRICT) {
        lg_cpu_combine shared = {0};
        st = lg_exchange_sums(x, fill, be, s->mix);
        if (st == LG_OK && any) lg_cpu_moe_combine(be, layer, &shared);
        return;
    }
    if (lg_exchange_finish(x) != LG_OK || !any) return;
    uint32_t me = x->comm->rank;
    lg_cpu_combine from = {x->back, x->n_embd, x->back_at,
                           lg_exchange_weights(x, lg_exchange_record(x, me, x->row0[me])),
                           x->ld};
    lg_cpu_moe_combine(be, layer, &from);
}
