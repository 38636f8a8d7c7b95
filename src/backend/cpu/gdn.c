/* gdn.c - Gated DeltaNet of one layer: projections, convolution, gates, recurrence, gated norm.
 *
 * In: s.xn.  Out: s.mix, and the layer's part of each sequence's slot (state, open rows, last raw rows).
 * Units of the middle stage: (key head, sequence) with the value heads that share it.  A slot of a sequence at position 0
 * is written, never read.  Where a snapshot is wanted, the rows are cut and each unit copies its part of the slot there.
 * Sequences of one token each are bound by reading their states, so a task is several units then, and while one is in work
 * memory is asked for what the next reads.
 * Thread: engine and pool.  Test: tests/unit/test_golden.c, tests/unit/test_exact.c; speed: tests/bench/bench_gdn.c */
#include "backend/cpu/cpu.h"

#include <math.h>

#define L2_EPS           1e-6f /* of the official code, not a config field */
#define TASKS_PER_THREAD 4     /* of sequences of one token each */
#define CACHE_LINE       64

typedef struct gdn_ctx {
    lg_backend *be;
    const lg_layer_w *w;
    uint32_t layer;
    uint32_t n_unit, n_unit_task; /* units, and how many a task has */
    const lg_batch_seq *seq;      /* [n_seq] */
    uint32_t n_seq, head0;        /* first key head */
    bool part;                    /* of a divided sequence: the gated norm comes later */
} gdn_ctx;

/* Sequence and key head of a unit. */
static const lg_batch_seq *unit_seq(const gdn_ctx *c, uint32_t unit) {
    return &c->seq[unit % c->n_seq];
}

static uint32_t unit_head(const gdn_ctx *c, uint32_t unit) {
    return c->head0 + unit / c->n_seq;
}

static void ask(const float *from, size_t n_float) {
    for (const char *p = (const char *)from, *end = (const char *)(from + n_float); p < end;
         p += CACHE_LINE)
        __builtin_prefetch(p, 0, 2);
}

/* Ask memory for what a unit reads first: the last rows of its channels and the open keys.  Returns the S that comes then, or NULL. */
static const float *ask_unit(const gdn_ctx *c, uint32_t unit) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_batch_seq *seq = unit_seq(c, unit);
    uint32_t kh = unit_head(c, unit), dk = cfg->d_k, n_open = seq->pos % LG_GDN_C;
    const float *state = lg_cpu_slot(be, seq->slot, c->layer);
    size_t width = lg_config_conv_dim(cfg), keys = (size_t)cfg->n_k_head * dk;
    if (seq->pos == 0) return NULL;
    for (size_t i = 0; i < LG_CONV_K - 1; i++) {
        const float *prev = state + be->lay.conv + i * width;
        ask(prev + kh * dk, dk);
        ask(prev + keys + kh * dk, dk);
        for (uint32_t j = 0; j < cfg->n_v_head / cfg->n_k_head; j++)
            ask(prev + 2 * keys + (size_t)lg_config_v_head(cfg, kh, j) * cfg->d_v, cfg->d_v);
    }
    const float *open_k = state + be->lay.open_k + (size_t)kh * dk * LG_GDN_C;
    for (size_t i = 0; n_open > 0 && i < dk; i++) ask(open_k + i * LG_GDN_C, n_open);
    if (seq->pos < LG_GDN_C) return NULL;
    return state + be->lay.s + (size_t)lg_config_v_head(cfg, kh, 0) * dk * cfg->d_v;
}

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

/* Recurrence and gated norm of one value head; `next`: whose S comes after it, or NULL. */
static void value_head(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, uint32_t vh,
                       float *state, const float *next, int thread) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t dk = cfg->d_k, dv = cfg->d_v;
    size_t keys = (size_t)cfg->n_k_head * dk, conv = lg_config_conv_dim(cfg);
    size_t vals = (size_t)cfg->n_v_head * dv, tok0 = seq->tok0;
    float *open_g = state + be->lay.open_g + (size_t)vh * LG_GDN_C;
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
                    .open_d = state + be->lay.open_d + (size_t)vh * LG_GDN_C * dv,
                    .ld_s = dv,
                    .open_k = state + be->lay.open_k + (size_t)kh * dk * LG_GDN_C,
                    .open_g = open_g,
                    .next = next,
                    .scratch = s->gdn + (size_t)thread * s->gdn_ld};
    be->kern->gdn_rows(&a);
    lg_gdn_keep_g(a.g, a.ld_g, a.n_tok, a.n_open, open_g);
    if (c->part) return;
    for (size_t t = tok0; t < tok0 + seq->n_tok; t++) {
        size_t at = t * vals + (size_t)vh * dv;
        be->kern->gated_norm(s->core + at, c->w->gdn_norm, s->z + at, cfg->eps, dv, s->y + at);
    }
}

/* Gates, recurrence and gated norm of the j-th value head of a key head. */
static void gates_and_head(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, uint32_t j,
                           float *state, const float *next, int thread) {
    const lg_config *cfg = c->be->cfg;
    const lg_cpu_scratch *s = &c->be->s;
    uint32_t vh = lg_config_v_head(cfg, kh, j);
    for (uint32_t t = 0; t < seq->n_tok; t++) {
        size_t at = (size_t)(seq->tok0 + t) * cfg->n_v_head + vh;
        lg_gdn_gates(s->a + at, s->b + at, c->w->neg_exp_a + vh, c->w->dt_bias + vh, 1,
                     s->g + at, s->beta + at);
    }
    value_head(c, seq, kh, vh, state, next, thread);
}

/* After its value heads: a key head's open rows. */
static void keep_keys(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, float *state) {
    const lg_config *cfg = c->be->cfg;
    size_t keys = (size_t)cfg->n_k_head * cfg->d_k;
    lg_gdn_keep_k(c->be->s.qk + seq->tok0 * 2 * keys + keys + (size_t)kh * cfg->d_k, 2 * keys,
                  cfg->d_k, seq->n_tok, seq->pos % LG_GDN_C,
                  state + c->be->lay.open_k + (size_t)kh * cfg->d_k * LG_GDN_C);
}

/* Some rows of one sequence, one key head: their outputs, and the state after them; `next`: the S that comes after, or NULL. */
static void run_rows(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, float *state,
                     const float *next, int thread) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    uint32_t ratio = cfg->n_v_head / cfg->n_k_head;
    conv_head(c, seq, kh, state + be->lay.conv);
    for (uint32_t j = 0; j < ratio; j++) {
        const float *after = next;
        if (j + 1 < ratio)
            after = state + be->lay.s +
                    (size_t)lg_config_v_head(cfg, kh, j + 1) * cfg->d_k * cfg->d_v;
        gates_and_head(c, seq, kh, j, state, after, thread);
    }
    keep_keys(c, seq, kh, state);
}

static void run_unit(const gdn_ctx *c, uint32_t unit, const float *next, int thread) {
    const lg_backend *be = c->be;
    const lg_batch_seq *seq = unit_seq(c, unit);
    uint32_t kh = unit_head(c, unit);
    float *state = lg_cpu_slot(be, seq->slot, c->layer);
    lg_batch_seq part = *seq;
    for (uint32_t i = 0; i <= seq->n_save; i++) {
        uint32_t end = seq->tok0 + (i < seq->n_save ? seq->save[i].n_row : seq->n_tok);
        part.n_tok = end - part.tok0;
        if (part.n_tok) run_rows(c, &part, kh, state, next, thread);
        part.pos += part.n_tok;
        part.tok0 = end;
        if (i < seq->n_save)
            lg_cpu_snap_head(be, kh, part.pos, state,
                             lg_cpu_snap(be, seq->save[i].snap, c->layer));
    }
}

static void unit_task(void *ctx, size_t task, int thread) {
    const gdn_ctx *c = ctx;
    uint32_t u0 = (uint32_t)task * c->n_unit_task, left = c->n_unit - u0;
    uint32_t u1 = left < c->n_unit_task ? c->n_unit : u0 + c->n_unit_task;
    for (uint32_t u = u0; u < u1; u++)
        run_unit(c, u, u + 1 < u1 ? ask_unit(c, u + 1) : NULL, thread);
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

void lg_cpu_gdn_heads(lg_backend *be, uint32_t layer) {
    const lg_config *cfg = be->cfg;
    const lg_batch *b = be->batch;
    uint32_t n_seq = b->n_seq - (b->spread ? 1 : 0); /* the last one is not all here */
    uint32_t n_tok = n_seq < b->n_seq ? b->seq[n_seq].tok0 : b->n_tok;
    uint64_t vals = (uint64_t)cfg->n_v_head * cfg->d_v;
    uint32_t n = n_seq * cfg->n_k_head, at_most = (uint32_t)be->n_thread * TASKS_PER_THREAD;
    gdn_ctx c = {be, &be->w->layer[layer], layer, n, 1, b->seq, n_seq, 0, false};
    if (n_tok == n_seq && n > at_most) c.n_unit_task = (n + at_most - 1) / at_most;
    lg_cpu_run(be, (n + c.n_unit_task - 1) / c.n_unit_task, n_tok * vals * cfg->d_k * 3,
               unit_task, &c);
}

/* ---- few key heads: each value head is a task ---- */

/* Rows of one sequence up to a snapshot, or the end. */
typedef struct wide_ctx {
    gdn_ctx c;
    lg_batch_seq seq;
    float *state, *snap; /* snap NULL: none is taken after them */
} wide_ctx;

static void wide_conv_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const wide_ctx *w = ctx;
    conv_head(&w->c, &w->seq, w->c.head0 + (uint32_t)task, w->state + w->c.be->lay.conv);
}

static void wide_head_task(void *ctx, size_t task, int thread) {
    const wide_ctx *w = ctx;
    uint32_t ratio = w->c.be->cfg->n_v_head / w->c.be->cfg->n_k_head;
    gates_and_head(&w->c, &w->seq, w->c.head0 + (uint32_t)task / ratio, (uint32_t)task % ratio,
                   w->state, NULL, thread);
}

static void wide_end_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const wide_ctx *w = ctx;
    uint32_t kh = w->c.head0 + (uint32_t)task;
    if (w->seq.n_tok) keep_keys(&w->c, &w->seq, kh, w->state);
    if (w->snap) lg_cpu_snap_head(w->c.be, kh, w->seq.pos + w->seq.n_tok, w->state, w->snap);
}

void lg_cpu_gdn_part(lg_backend *be, uint32_t layer, const lg_batch_seq *seq, uint32_t head0,
                     uint32_t n_head) {
    const lg_config *cfg = be->cfg;
    uint32_t ratio = cfg->n_v_head / cfg->n_k_head;
    wide_ctx w = {.c = {be, &be->w->layer[layer], layer, n_head, 1, seq, 1, head0, true},
                  .seq = *seq,
                  .state = lg_cpu_slot(be, seq->slot, layer)};
    for (uint32_t i = 0; i <= seq->n_save; i++) {
        bool last = i == seq->n_save;
        uint32_t end = seq->tok0 + (last ? seq->n_tok : seq->save[i].n_row);
        w.seq.n_tok = end - w.seq.tok0;
        w.snap = last ? NULL : lg_cpu_snap(be, seq->save[i].snap, layer);
        uint64_t macs = (uint64_t)w.seq.n_tok * n_head * ratio * cfg->d_v * cfg->d_k * 3;
        if (w.seq.n_tok) {
            lg_cpu_run(be, n_head, macs / cfg->d_k, wide_conv_task, &w);
            lg_cpu_run(be, (size_t)n_head * ratio, macs, wide_head_task, &w);
        }
        lg_cpu_run(be, n_head, macs / cfg->d_k, wide_end_task, &w);
        w.seq.pos += w.seq.n_tok;
        w.seq.tok0 = end;
    }
}

void lg_cpu_gdn_norm(const lg_backend *be, uint32_t layer, size_t r) {
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t dv = cfg->d_v;
    for (size_t h = 0, at = r * cfg->n_v_head * dv; h < cfg->n_v_head; h++, at += dv)
        be->kern->gated_norm(s->core + at, be->w->layer[layer].gdn_norm, s->z + at, cfg->eps,
                             dv, s->y + at);
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
    lg_cpu_slice_gemm(be, layer, in, 4, false);
    lg_cpu_mark(be, LG_OP_MIX_IN);
    lg_cpu_trace(be, (int)layer, "gdn.qkv_raw", s->qkv, n, conv, conv);
    lg_cpu_trace(be, (int)layer, "gdn.z", s->z, n, vals, vals);
    lg_cpu_gdn_heads(be, layer);
    if (be->batch->spread) lg_cpu_spread_gdn(be, layer);
    lg_cpu_slice_rows(be, layer, s->y, vals);
    lg_cpu_mark(be, LG_OP_GDN);
    if (be->opt.trace) trace_middle(be, (int)layer);
    lg_cpu_gemm out = {
        .w = &w->out, .x = s->y, .ld_x = vals, .n_row = n, .y = s->mix, .ld_y = h};
    lg_cpu_quant_start(&s->mid_q, s->y, n, (uint32_t)vals);
    lg_cpu_quant_jobs(be, &s->mid_q, &out, 1);
    lg_cpu_slice_gemm(be, layer, &out, 1, true);
    lg_cpu_mark(be, LG_OP_MIX_OUT);
}
