/* attn.c - gated attention of one layer: projections, norm + rope, KV store, pages, output gate.
 *
 * In: s.xn.  Out: s.mix, and the KV pages of the rows' positions.  All keys of the step are stored before any query
 * looks, so a row sees its own position and the earlier rows of its sequence.  Pages are merged in ascending order.
 * Tasks: rows for norm and store; (sequence, block of query rows, KV head) for the scores; where these are too few for
 * the threads, (page, KV head) of a long sequence, then a merge by query head.
 * Thread: engine and pool.  Test: tests/unit/test_golden.c, tests/unit/test_exact.c */
#include "backend/cpu/cpu.h"

#include "kern/vmath.h"

#include <math.h>
#include <string.h>

#define ROWS_PER_TASK 8

typedef struct attn_ctx {
    lg_backend *be;
    const lg_layer_w *w;
    uint32_t layer;
    float scale; /* of scores */
} attn_ctx;

/* Query rows of KV head h start here: [rows][group][d]. */
static size_t q_row0(const lg_backend *be, uint32_t h, uint32_t row) {
    uint32_t group = be->cfg->n_head / be->cfg->n_kv_head;
    return ((size_t)h * be->opt.max_tok + row) * group;
}

/* Norm, rotate and store one row: its queries go to s.q, its key and value to their page. */
static void prepare_row(const attn_ctx *c, uint32_t r) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t d = cfg->d_head, group = cfg->n_head / cfg->n_kv_head, half = cfg->n_rot / 2;
    const float *cos = s->cos + (size_t)r * half, *sin = s->sin + (size_t)r * half;
    const lg_batch_seq *seq = &be->batch->seq[s->row_seq[r]];
    uint32_t page = be->batch->page[seq->page0 + s->pos[r] / LG_PAGE_TOK];
    for (uint32_t h = 0; h < cfg->n_kv_head; h++) {
        for (uint32_t i = 0; i < group; i++) {
            const float *src = s->qg + ((size_t)r * cfg->n_head + h * group + i) * 2 * d;
            float *q = s->q + (q_row0(be, h, r) + i) * d;
            be->kern->rmsnorm(src, c->w->q_norm, cfg->eps, d, q);
            be->kern->rope(q, cos, sin, cfg->n_rot);
        }
        float *k = s->k + ((size_t)r * cfg->n_kv_head + h) * d;
        const float *v = s->v + ((size_t)r * cfg->n_kv_head + h) * d;
        be->kern->rmsnorm(k, c->w->k_norm, cfg->eps, d, k);
        be->kern->rope(k, cos, sin, cfg->n_rot);
        be->kern->kv_store(be->opt.kv, k, v, d, s->pos[r] % LG_PAGE_TOK,
                           lg_cpu_kv(be, page, c->layer, h));
    }
}

static void prepare_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const attn_ctx *c = ctx;
    uint32_t r0 = (uint32_t)task * ROWS_PER_TASK, n = c->be->batch->n_tok;
    uint32_t r1 = r0 + ROWS_PER_TASK < n ? r0 + ROWS_PER_TASK : n;
    for (uint32_t r = r0; r < r1; r++) prepare_row(c, r);
}

/* Divide by the sum of weights, then gate: query i of KV head h in row r. */
static void finish_query(const lg_backend *be, uint32_t h, uint32_t i, uint32_t r) {
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t d = cfg->d_head, group = cfg->n_head / cfg->n_kv_head;
    size_t at = q_row0(be, h, r) + i, head = (size_t)r * cfg->n_head + h * group + i;
    float *acc = s->acc + at * d, inv = 1.0f / s->l[at];
    for (uint32_t e = 0; e < d; e++) acc[e] *= inv;
    be->kern->sigmoid_mul(acc, s->qg + (head * 2 + 1) * d, d, s->gated + head * d);
}

/* Positions of page p that a row at position pos sees. */
static uint32_t n_seen(uint32_t pos, uint32_t p) {
    uint32_t end = pos + 1, base = p * LG_PAGE_TOK;
    return end <= base ? 0 : end - base < LG_PAGE_TOK ? end - base : LG_PAGE_TOK;
}

/* Whether the pages of a sequence are divided over the threads: one row of a long text, and too few tasks otherwise. */
static bool is_split(const lg_backend *be, const lg_batch_seq *seq) {
    size_t n_task = (size_t)be->s.seq_task[be->batch->n_seq] * be->cfg->n_kv_head;
    return be->n_thread > 1 && n_task < 2 * (size_t)be->n_thread && seq->n_tok == 1 &&
           seq->pos / LG_PAGE_TOK + 1 >= be->split_from;
}

/* One block of query rows of one sequence against one KV head. */
static void score_task(void *ctx, size_t task, int thread) {
    const attn_ctx *c = ctx;
    const lg_backend *be = c->be;
    const lg_cpu_scratch *s = &be->s;
    const lg_config *cfg = be->cfg;
    uint32_t group = cfg->n_head / cfg->n_kv_head;
    uint32_t h = (uint32_t)(task % cfg->n_kv_head), i = 0;
    uint32_t blk = (uint32_t)(task / cfg->n_kv_head);
    while (s->seq_task[i + 1] <= blk) i++;
    const lg_batch_seq *seq = &be->batch->seq[i];
    if (is_split(be, seq)) return;
    /* Late blocks see most: they go first. */
    uint32_t t0 = (s->seq_task[i + 1] - 1 - blk) * LG_CPU_ATTN_BLK;
    uint32_t n = seq->n_tok - t0 < LG_CPU_ATTN_BLK ? seq->n_tok - t0 : LG_CPU_ATTN_BLK;
    uint32_t *n_see = s->n_see + (size_t)thread * LG_CPU_ATTN_BLK * group;
    size_t q0 = q_row0(be, h, seq->tok0 + t0);
    lg_attn_arg a = {.d = cfg->d_head,
                     .n_q = n * group,
                     .q = s->q + q0 * cfg->d_head,
                     .ld_q = cfg->d_head,
                     .n_see = n_see,
                     .kv = be->opt.kv,
                     .scale = c->scale,
                     .m = s->m + q0,
                     .l = s->l + q0,
                     .acc = s->acc + q0 * cfg->d_head};
    uint32_t last = seq->pos + t0 + n - 1;
    for (uint32_t p = 0; p <= last / LG_PAGE_TOK; p++) {
        for (uint32_t t = 0; t < n * group; t++)
            n_see[t] = n_seen(seq->pos + t0 + t / group, p);
        a.first = p == 0;
        a.page = lg_cpu_kv(be, be->batch->page[seq->page0 + p], c->layer, h);
        a.next = p < last / LG_PAGE_TOK
                     ? lg_cpu_kv(be, be->batch->page[seq->page0 + p + 1], c->layer, h)
                     : NULL;
        be->kern->attn_page(&a);
    }
    for (uint32_t t = t0; t < t0 + n; t++)
        for (uint32_t e = 0; e < group; e++) finish_query(be, h, e, seq->tok0 + t);
}

/* A window of pages of one sequence, each attended on its own, then merged. */
typedef struct window {
    attn_ctx c;
    const lg_batch_seq *seq;
    uint32_t page0, n_page;
} window;

/* One page, one KV head: what it gives as if it were the only page. */
static void page_task(void *ctx, size_t task, int thread) {
    const window *w = ctx;
    const lg_backend *be = w->c.be;
    const lg_cpu_scratch *s = &be->s;
    const lg_config *cfg = be->cfg;
    uint32_t group = cfg->n_head / cfg->n_kv_head, h = (uint32_t)(task % cfg->n_kv_head);
    uint32_t i = (uint32_t)(task / cfg->n_kv_head), p = w->page0 + i;
    uint32_t *n_see = s->n_see + (size_t)thread * LG_CPU_ATTN_BLK * group;
    for (uint32_t e = 0; e < group; e++) n_see[e] = n_seen(w->seq->pos, p);
    size_t to = (size_t)i * cfg->n_head + h * group;
    lg_attn_arg a = {.d = cfg->d_head,
                     .n_q = group,
                     .q = s->q + q_row0(be, h, w->seq->tok0) * cfg->d_head,
                     .ld_q = cfg->d_head,
                     .n_see = n_see,
                     .first = true,
                     .kv = be->opt.kv,
                     .page = lg_cpu_kv(be, be->batch->page[w->seq->page0 + p], w->c.layer, h),
                     .scale = w->c.scale,
                     .m = s->part_m + to,
                     .l = s->part_l + to,
                     .acc = s->part_acc + to * cfg->d_head};
    be->kern->attn_page(&a);
}

/* Merge the window's pages into one query head, ascending, with the operations of lg_kern.attn_page. */
static void merge_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const window *w = ctx;
    const lg_backend *be = w->c.be;
    const lg_cpu_scratch *s = &be->s;
    uint32_t d = be->cfg->d_head, group = be->cfg->n_head / be->cfg->n_kv_head;
    uint32_t h = (uint32_t)task / group, e = (uint32_t)task % group;
    size_t at = q_row0(be, h, w->seq->tok0) + e;
    float *acc = s->acc + at * d;
    for (uint32_t i = 0; i < w->n_page; i++) {
        size_t from = (size_t)i * be->cfg->n_head + task;
        const float *part = s->part_acc + from * d;
        float m_b = s->part_m[from], l_b = s->part_l[from];
        if (w->page0 + i == 0) {
            s->m[at] = m_b;
            s->l[at] = l_b;
            memcpy(acc, part, d * sizeof *acc);
            continue;
        }
        float m = m_b > s->m[at] ? m_b : s->m[at];
        float c = lg_expf(s->m[at] - m), c_b = lg_expf(m_b - m);
        for (uint32_t x = 0; x < d; x++) acc[x] *= c;
        be->kern->axpy(c_b, part, d, acc);
        s->l[at] = fmaf(l_b, c_b, s->l[at] * c);
        s->m[at] = m;
    }
    if (w->page0 + w->n_page == w->seq->pos / LG_PAGE_TOK + 1)
        finish_query(be, h, e, w->seq->tok0);
}

static void split_sequence(const attn_ctx *c, const lg_batch_seq *seq) {
    lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    uint32_t n_page = seq->pos / LG_PAGE_TOK + 1, step = be->split_step;
    for (uint32_t p = 0; p < n_page; p += step) {
        window w = {*c, seq, p, n_page - p < step ? n_page - p : step};
        uint64_t row = (uint64_t)w.n_page * cfg->n_head * cfg->d_head;
        lg_cpu_run(be, (size_t)w.n_page * cfg->n_kv_head, row * 2 * LG_PAGE_TOK, page_task, &w);
        lg_cpu_run(be, cfg->n_head, row * 2, merge_task, &w);
    }
}

/* Gather a per-KV-head array into rows of heads for the tracer. */
static void trace_heads(const lg_backend *be, uint32_t layer, const char *name,
                        const float *src) {
    const lg_config *cfg = be->cfg;
    uint32_t d = cfg->d_head, group = cfg->n_head / cfg->n_kv_head, n = be->batch->n_tok;
    size_t width = (size_t)cfg->n_head * d;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < cfg->n_head; h++)
            memcpy(be->s.trace + r * width + (size_t)h * d,
                   src + (q_row0(be, h / group, r) + h % group) * d, d * sizeof *src);
    lg_cpu_trace(be, (int)layer, name, be->s.trace, n, width, width);
}

static void trace_prepared(const lg_backend *be, uint32_t layer) {
    const lg_config *cfg = be->cfg;
    uint32_t d = cfg->d_head, n = be->batch->n_tok;
    size_t width = (size_t)cfg->n_head * d, kv = (size_t)cfg->n_kv_head * d;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < cfg->n_head; h++)
            memcpy(be->s.trace + r * width + (size_t)h * d,
                   be->s.qg + (((size_t)r * cfg->n_head + h) * 2 + 1) * d, d * sizeof(float));
    lg_cpu_trace(be, (int)layer, "attn.gate", be->s.trace, n, width, width);
    trace_heads(be, layer, "attn.q", be->s.q);
    lg_cpu_trace(be, (int)layer, "attn.k", be->s.k, n, kv, kv);
    lg_cpu_trace(be, (int)layer, "attn.v", be->s.v, n, kv, kv);
}

void lg_cpu_attn(lg_backend *be, uint32_t layer) {
    const lg_config *cfg = be->cfg;
    const lg_layer_w *w = &be->w->layer[layer];
    lg_cpu_scratch *s = &be->s;
    const lg_batch *batch = be->batch;
    uint32_t n = batch->n_tok, d = cfg->d_head;
    size_t kv = (size_t)cfg->n_kv_head * d, width = (size_t)cfg->n_head * d;
    lg_cpu_gemm in[3] = {
        {.w = &w->q,
         .x = s->xn,
         .ld_x = cfg->n_embd,
         .n_row = n,
         .y = s->qg,
         .ld_y = 2 * width},
        {.w = &w->k, .x = s->xn, .ld_x = cfg->n_embd, .n_row = n, .y = s->k, .ld_y = kv},
        {.w = &w->v, .x = s->xn, .ld_x = cfg->n_embd, .n_row = n, .y = s->v, .ld_y = kv}};
    lg_cpu_quant_jobs(be, &s->xn_q, in, 3);
    lg_cpu_gemm_run(be, in, 3);
    attn_ctx c = {be, w, layer, 1.0f / sqrtf((float)d)};
    lg_cpu_run(be, (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK, (uint64_t)n * width * 4,
               prepare_task, &c);
    if (be->opt.trace) trace_prepared(be, layer);
    uint64_t macs = 0;
    for (uint32_t i = 0; i < batch->n_seq; i++) {
        const lg_batch_seq *q = &batch->seq[i];
        if (!is_split(be, q)) macs += (uint64_t)q->n_tok * (q->pos + q->n_tok);
    }
    lg_cpu_run(be, (size_t)s->seq_task[batch->n_seq] * cfg->n_kv_head, macs * width * 2,
               score_task, &c);
    for (uint32_t i = 0; i < batch->n_seq; i++)
        if (is_split(be, &batch->seq[i])) split_sequence(&c, &batch->seq[i]);
    if (be->opt.trace) trace_heads(be, layer, "attn.core_out", s->acc);
    lg_cpu_trace(be, (int)layer, "attn.gated", s->gated, n, width, width);
    lg_cpu_gemm out = {
        .w = &w->o, .x = s->gated, .ld_x = width, .n_row = n, .y = s->mix, .ld_y = cfg->n_embd};
    lg_cpu_quant_start(&s->mid_q, s->gated, n, (uint32_t)width);
    lg_cpu_quant_jobs(be, &s->mid_q, &out, 1);
    lg_cpu_gemm_run(be, &out, 1);
}
