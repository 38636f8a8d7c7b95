/* moe_group.c - the MLP of one layer when its experts are divided over ranks.
 *
 * In: s.xn, s.sg, the rows of all ranks (exchange.h).  Out: s.mix.
 * Own rows are routed here and sent to all ranks; while they fly the shared expert is computed; then the experts that this
 * rank holds multiply whatever rows chose them, a cold expert is not read; product rows go home and are summed there in the
 * order that moe.c has.  So bits are those of one rank alone.
 * A lost rank ends every wait; the step then returns LG_E_BACKEND.
 * Thread: engine (it alone calls the comm) and pool.  Test: tests/unit/test_group.c */
#include "backend/cpu/cpu.h"

/* The shared expert's second product, while rows fly. */
static void run_shared(lg_backend *be, const lg_layer_w *w) {
    lg_cpu_scratch *s = &be->s;
    lg_cpu_gemm job = lg_cpu_moe_shared(be, w);
    lg_cpu_quant_start(&s->mid_q, s->sh, be->batch->n_tok, be->cfg->n_ff_shared);
    lg_cpu_quant_jobs(be, &s->mid_q, &job, 1);
    lg_cpu_gemm_run(be, &job, 1);
}

/* ex.in rows through the experts held here: ex.out. */
static void run_experts(lg_backend *be, const lg_layer_w *w) {
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

void lg_cpu_moe_group(lg_backend *be, uint32_t layer) {
    const lg_layer_w *w = &be->w->layer[layer];
    lg_cpu_scratch *s = &be->s;
    lg_exchange *x = &s->ex;
    bool any = be->batch->n_tok > 0;
    if (any) lg_cpu_moe_route(be, layer);
    lg_status st = lg_exchange_start(x, layer, s->xn, s->top_id, s->top_w);
    if (any) run_shared(be, w);
    if (st == LG_OK) st = lg_exchange_arrive(x);
    if (st != LG_OK) return;
    run_experts(be, w);
    if (lg_exchange_finish(x) != LG_OK || !any) return;
    uint32_t me = x->comm->rank;
    const float *record = lg_exchange_record(x, me, x->row0[me]);
    lg_cpu_combine from = {x->back, x->back_at, record + x->n_embd + x->k, x->ld};
    lg_cpu_moe_combine(be, layer, &from);
}
