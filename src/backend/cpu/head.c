/* head.c - the end of a step: final norm and head of the rows that give logits, then one token per sampling sequence.
 *
 * In: s.x, s.out_row.  Out: s.logits, lg_step_out.sampled.  Only output rows pay for the head.
 * A row of logits that is not finite is the sampler's to report; the other rows go on.
 * Thread: engine and pool.  Test: tests/unit/test_golden.c */
#include "backend/cpu/cpu.h"

static void norm_rows(lg_backend *be) {
    size_t h = be->cfg->n_embd;
    for (uint32_t i = 0; i < be->n_out; i++)
        be->kern->rmsnorm(be->s.x + be->s.out_row[i] * h, be->w->final_norm, be->cfg->eps,
                          be->cfg->n_embd, be->s.xo + i * h);
}

typedef struct sample_ctx {
    lg_backend *be;
    lg_sampled *sampled;
} sample_ctx;

static void sample_task(void *ctx, size_t task, int thread) {
    const sample_ctx *c = ctx;
    const lg_backend *be = c->be;
    const lg_sampler *sampler = be->batch->seq[task].sampler;
    if (!sampler) return;
    lg_sample(sampler, be->s.logits + be->s.seq_out[task] * be->ld_logits, be->cfg->n_vocab,
              be->opt.n_sample_vocab, be->s.sample_work + (size_t)thread * be->s.sample_ld,
              &c->sampled[task]);
}

void lg_cpu_head(lg_backend *be, lg_step_out *out) {
    const lg_config *cfg = be->cfg;
    out->logits = be->s.logits;
    out->ld_logits = be->ld_logits;
    if (be->n_out == 0) return;
    norm_rows(be);
    lg_cpu_trace(be, -1, "final_norm", be->s.xo, be->n_out, cfg->n_embd, cfg->n_embd);
    lg_cpu_gemm job = {.w = &be->w->head,
                       .x = be->s.xo,
                       .ld_x = cfg->n_embd,
                       .n_row = be->n_out,
                       .y = be->s.logits,
                       .ld_y = be->ld_logits};
    lg_cpu_quant_start(&be->s.mid_q, be->s.xo, be->n_out, cfg->n_embd);
    lg_cpu_quant_jobs(be, &be->s.mid_q, &job, 1);
    lg_cpu_slice_gemm(be, cfg->n_layer, &job, 1, false);
    lg_cpu_mark(be, LG_OP_HEAD);
    sample_ctx c = {be, out->sampled};
    lg_cpu_run(be, be->batch->n_seq, (uint64_t)be->batch->n_seq * cfg->n_vocab * 8, sample_task,
               &c);
    lg_cpu_mark(be, LG_OP_SAMPLE);
}
