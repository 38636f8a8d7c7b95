/* gdn.c - Gated DeltaNet of one layer: projections, convolution, gates, recurrence, gated norm.
 *
 * In: s.xn.  Out: s.mix, and the layer's part of each sequence's slot (state, open rows, last raw rows).
 * Tasks of the middle stage: (sequence, key head) with the value heads that share it.  A slot of a sequence at position 0
 * is written, never read.  Where a snapshot is wanted, the rows are cut and each task copies its part of the slot there.  Thread: engine and pool.  Test: tests/unit/test_golden.c, tests/unit/test_exact.c */
#include "backend/cpu/cpu.h"

#include <math.h>

#define L2_EPS 1e-6f /* of the official code, not a config field */

typedef struct gdn_ctx {
    lg_backend *be;
    const lg_layer_w *w;
    uint32_t layer;
} gdn_ctx;

/* Convolve this key head's query, key and value channels, then normalise query and key. */
static void conv_head(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, float *prev) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t dk = cfg->d_k, ratio = cfg->n_v_head / cfg->n_k_head;
    size_t width = lg_config_conv_dim(cfg), keys = (size_t)cfg->n_k_head * dk;
    size_t row0 = seq->tok0 * width;
    const size_t off[2] = {kh * dk, keys + kh * dk};
    for (uint32_t i = 0; i < 2 + ratio; i++) {
        size_t at =
            i < 2 ? off[i] : 2 * keys + (size_t)lg_config_v_head(cfg, kh, i - 2) * cfg->d_v;
        be->kern->conv_silu(s->qkv + row0 + at, width, seq->n_tok, i < 2 ? dk : cfg->d_v,
                            c->w->conv + at, width, seq->pos > 0, prev + at, width,
                            s->u + row0 + at, width);
    }
    float q_scale = 1.0f / sqrtf((float)dk);
    for (uint32_t t = 0; t < seq->n_tok; t++) {
        const float *u = s->u + row0 + t * width;
        float *qk = s->qk + (seq->tok0 + t) * 2 * keys;
        be->kern->l2norm(u + off[0], L2_EPS, q_scale, dk, qk + off[0]);
        be->kern->l2norm(u + off[1], L2_EPS, 1.0f, dk, qk + off[1]);
    }
}

/* Recurrence and gated norm of one value head. */
static void value_head(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, uint32_t vh,
                       float *state, int thread) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t dk = cfg->d_k, dv = cfg->d_v;
    size_t keys = (size_t)cfg->n_k_head * dk, conv = lg_config_conv_dim(cfg);
    size_t vals = (size_t)cfg->n_v_head * dv, tok0 = seq->tok0;
    lg_gdn_arg a = {.dk = dk,
                    .dv = dv,
                    .n_tok = seq->n_tok,
                    .n_open = seq->pos % LG_GDN_C,
                    .has_init = seq->pos >= LG_GDN_C,
                    .q = s->qk + tok0 * 2 * keys + (size_t)kh * dk,
                    .k = s->qk + tok0 * 2 * keys + keys + (size_t)kh * dk,
                    .ld_qk = 2 * keys,
                    .v = s->u + tok0 * conv + 2 * keys + (size_t)vh * dv,
                    .ld_v = conv,
                    .g = s->g + tok0 * cfg->n_v_head + vh,
                    .beta = s->beta + tok0 * cfg->n_v_head + vh,
                    .ld_g = cfg->n_v_head,
                    .o = s->core + tok0 * vals + (size_t)vh * dv,
                    .ld_o = vals,
                    .s = state + be->lay.s + (size_t)vh * dk * dv,
                    .open_k = state + be->lay.open_k + (size_t)kh * dk * LG_GDN_C,
                    .open_d = state + be->lay.open_d + (size_t)vh * LG_GDN_C * dv,
                    .open_g = state + be->lay.open_g + (size_t)vh * LG_GDN_C,
                    .scratch = s->gdn + (size_t)thread * s->gdn_ld};
    be->kern->gdn_rows(&a);
    for (size_t t = tok0; t < tok0 + seq->n_tok; t++) {
        size_t at = t * vals + (size_t)vh * dv;
        be->kern->gated_norm(s->core + at, c->w->gdn_norm, s->z + at, cfg->eps, dv, s->y + at);
    }
}

/* Some rows of one sequence, one key head: their outputs, and the state after them. */
static void run_rows(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, float *state,
                     int thread) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t ratio = cfg->n_v_head / cfg->n_k_head;
    size_t keys = (size_t)cfg->n_k_head * cfg->d_k;
    conv_head(c, seq, kh, state + be->lay.conv);
    for (uint32_t j = 0; j < ratio; j++) {
        uint32_t vh = lg_config_v_head(cfg, kh, j);
        for (uint32_t t = 0; t < seq->n_tok; t++) {
            size_t at = (size_t)(seq->tok0 + t) * cfg->n_v_head + vh;
            lg_gdn_gates(s->a + at, s->b + at, c->w->neg_exp_a + vh, c->w->dt_bias + vh, 1,
                         s->g + at, s->beta + at);
        }
        value_head(c, seq, kh, vh, state, thread);
    }
    lg_gdn_keep_k(s->qk + seq->tok0 * 2 * keys + keys + (size_t)kh * cfg->d_k, 2 * keys,
                  cfg->d_k, seq->n_tok, seq->pos % LG_GDN_C,
                  state + be->lay.open_k + (size_t)kh * cfg->d_k * LG_GDN_C);
}

static void head_task(void *ctx, size_t task, int thread) {
    const gdn_ctx *c = ctx;
    const lg_backend *be = c->be;
    const lg_batch_seq *seq = &be->batch->seq[task / be->cfg->n_k_head];
    uint32_t kh = (uint32_t)(task % be->cfg->n_k_head);
    float *state = lg_cpu_slot(be, seq->slot, c->layer);
    lg_batch_seq part = *seq;
    for (uint32_t i = 0; i <= seq->n_save; i++) {
        uint32_t end = seq->tok0 + (i < seq->n_save ? seq->save[i].n_row : seq->n_tok);
        part.n_tok = end - part.tok0;
        if (part.n_tok) run_rows(c, &part, kh, state, thread);
        part.pos += part.n_tok;
        part.tok0 = end;
        if (i < seq->n_save)
            lg_cpu_snap_head(be, kh, part.pos, state,
                             lg_cpu_snap(be, seq->save[i].snap, c->layer));
    }
}

static void trace_middle(const lg_backend *be, int layer) {
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    size_t keys = (size_t)cfg->n_k_head * cfg->d_k, vals = (size_t)cfg->n_v_head * cfg->d_v;
    size_t conv = lg_config_conv_dim(cfg), n = be->batch->n_tok, heads = cfg->n_v_head;
    lg_cpu_trace(be, layer, "gdn.q", s->u, n, keys, conv);
    lg_cpu_trace(be, layer, "gdn.k", s->u + keys, n, keys, conv);
    lg_cpu_trace(be, layer, "gdn.v", s->u + 2 * keys, n, vals, conv);
    lg_cpu_trace(be, layer, "gdn.g", s->g, n, heads, heads);
    lg_cpu_trace(be, layer, "gdn.beta", s->beta, n, heads, heads);
    lg_cpu_trace(be, layer, "gdn.core_out", s->core, n, vals, vals);
    lg_cpu_trace(be, layer, "gdn.gated_norm", s->y, n, vals, vals);
}

void lg_cpu_gdn(lg_backend *be, uint32_t layer) {
    const lg_config *cfg = be->cfg;
    const lg_layer_w *w = &be->w->layer[layer];
    lg_cpu_scratch *s = &be->s;
    uint32_t n = be->batch->n_tok, h = cfg->n_embd, nv = cfg->n_v_head;
    size_t conv = lg_config_conv_dim(cfg), vals = (size_t)nv * cfg->d_v;
    lg_cpu_gemm in[4] = {
        {.w = &w->qkv, .x = s->xn, .ld_x = h, .n_row = n, .y = s->qkv, .ld_y = conv},
        {.w = &w->z, .x = s->xn, .ld_x = h, .n_row = n, .y = s->z, .ld_y = vals},
        {.w = &w->b, .x = s->xn, .ld_x = h, .n_row = n, .y = s->b, .ld_y = nv},
        {.w = &w->a, .x = s->xn, .ld_x = h, .n_row = n, .y = s->a, .ld_y = nv}};
    lg_cpu_quant_jobs(be, &s->xn_q, in, 4);
    lg_cpu_gemm_run(be, in, 4);
    lg_cpu_trace(be, (int)layer, "gdn.qkv_raw", s->qkv, n, conv, conv);
    lg_cpu_trace(be, (int)layer, "gdn.z", s->z, n, vals, vals);
    gdn_ctx c = {be, w, layer};
    lg_cpu_run(be, (size_t)be->batch->n_seq * cfg->n_k_head, (uint64_t)n * vals * cfg->d_k * 3,
               head_task, &c);
    if (be->opt.trace) trace_middle(be, (int)layer);
    lg_cpu_gemm out = {
        .w = &w->out, .x = s->y, .ld_x = vals, .n_row = n, .y = s->mix, .ld_y = h};
    lg_cpu_quant_start(&s->mid_q, s->y, n, (uint32_t)vals);
    lg_cpu_quant_jobs(be, &s->mid_q, &out, 1);
    lg_cpu_gemm_run(be, &out, 1);
}
