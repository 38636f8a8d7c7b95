/* attn.c - gated attention of one layer: projections, norm + rope, KV store, pages, output gate.
 *
 * In: s.xn.  Out: s.mix, and the KV pages of the rows' positions.  All keys of the step are stored before any query
 * looks, so a row sees its own position and the earlier rows of its sequence.  Pages are merged in ascending order.
 * Tasks: rows for norm and store; (block of query rows, KV head) for the scores, all pages in one task; where the others would
 * wait for a block, (page, KV head), and the merge by query in the next region, which costs a quarter to a half more.
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
    float scale;         /* of scores */
    uint64_t n_row_page; /* tokens x pages of all blocks */
    bool even;           /* whole blocks keep all threads busy */
    bool queries, keys;  /* what of the rows is prepared */
} attn_ctx;

/* Query rows of KV head h start here: [rows][group][d]. */
static size_t q_row0(const lg_backend *be, uint32_t h, uint32_t row) {
    uint32_t group = be->cfg->n_head / be->cfg->n_kv_head;
    return ((size_t)h * be->opt.max_tok + row) * group;
}

/* Norm and rotate the queries of one row: s.q. */
static void prepare_queries(const attn_ctx *c, uint32_t r) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t d = cfg->d_head, group = cfg->n_head / cfg->n_kv_head, half = cfg->n_rot / 2;
    const float *cos = s->cos + (size_t)r * half, *sin = s->sin + (size_t)r * half;
    for (uint32_t i = 0; i < cfg->n_head; i++) {
        const float *src = s->qg + ((size_t)r * cfg->n_head + i) * 2 * d;
        float *q = s->q + (q_row0(be, i / group, r) + i % group) * d;
        be->kern->rmsnorm(src, c->w->q_norm, cfg->eps, d, q);
        be->kern->rope(q, cos, sin, cfg->n_rot);
    }
}

/* The same with its keys, which go to their page with its values. */
static void prepare_keys(const attn_ctx *c, uint32_t r) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t d = cfg->d_head, half = cfg->n_rot / 2;
    const float *cos = s->cos + (size_t)r * half, *sin = s->sin + (size_t)r * half;
    const lg_batch_seq *seq = &be->batch->seq[s->row_seq[r]];
    uint32_t page = be->batch->page[seq->page0 + s->pos[r] / LG_PAGE_TOK];
    for (uint32_t h = 0; h < cfg->n_kv_head; h++) {
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
    for (uint32_t r = r0; r < r1; r++) {
        if (c->queries) prepare_queries(c, r);
        if (c->keys) prepare_keys(c, r);
    }
}

/* Rows of the step between the products and the pages. */
static void prepare(attn_ctx *c, bool queries, bool keys) {
    lg_backend *be = c->be;
    uint32_t n = be->batch->n_tok;
    c->queries = queries;
    c->keys = keys;
    if (be->batch->n_seq == 0) return; /* they are another rank's */
    lg_cpu_run(be, (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK,
               (uint64_t)n * be->cfg->n_head * be->cfg->d_head * 4, prepare_task, c);
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

/* What KV head h keeps in page p of a sequence. */
static const void *kv_part(const attn_ctx *c, const lg_batch_seq *seq, uint32_t p, uint32_t h) {
    return lg_cpu_kv(c->be, c->be->batch->page[seq->page0 + p], c->layer, h);
}

/* Positions of page p that a row at position pos sees. */
static uint32_t n_seen(uint32_t pos, uint32_t p) {
    uint32_t end = pos + 1, base = p * LG_PAGE_TOK;
    return end <= base ? 0 : end - base < LG_PAGE_TOK ? end - base : LG_PAGE_TOK;
}

/* One block of query rows: n tokens of a sequence from its token t0 of the step on. */
typedef struct block {
    const lg_batch_seq *seq;
    uint32_t t0, n;
    uint32_t n_page; /* pages that its last token sees */
    bool split;      /* its pages are divided over the threads */
} block;

/* Block `blk` of the step.  Blocks of a sequence are numbered from the last, which sees most: it goes first. */
static block find_block(const attn_ctx *c, uint32_t blk) {
    const lg_backend *be = c->be;
    const uint32_t *first = be->s.seq_task;
    uint32_t i = 0;
    while (first[i + 1] <= blk) i++;
    block b = {.seq = &be->batch->seq[i], .t0 = (first[i + 1] - 1 - blk) * LG_CPU_ATTN_BLK};
    uint32_t left = b.seq->n_tok - b.t0;
    b.n = left < LG_CPU_ATTN_BLK ? left : LG_CPU_ATTN_BLK;
    b.n_page = (b.seq->pos + b.t0 + b.n - 1) / LG_PAGE_TOK + 1;
    /* Where one KV head of it is more than half of what a thread gets, the others would wait. */
    b.split = be->n_thread > 1 && !c->even && b.n_page >= be->split_from &&
              2 * (uint64_t)b.n * b.n_page * (uint32_t)be->n_thread >
                  c->n_row_page * be->cfg->n_kv_head;
    return b;
}

/* One block of query rows of one sequence against one KV head. */
static void score_task(void *ctx, size_t task, int thread) {
    const attn_ctx *c = ctx;
    const lg_backend *be = c->be;
    const lg_cpu_scratch *s = &be->s;
    const lg_config *cfg = be->cfg;
    uint32_t group = cfg->n_head / cfg->n_kv_head, h = (uint32_t)(task % cfg->n_kv_head);
    block b = find_block(c, (uint32_t)(task / cfg->n_kv_head));
    if (b.split) return;
    uint32_t *n_see = s->n_see + (size_t)thread * LG_CPU_ATTN_BLK * group;
    size_t q0 = q_row0(be, h, b.seq->tok0 + b.t0);
    lg_attn_arg a = {.d = cfg->d_head,
                     .n_q = b.n * group,
                     .q = s->q + q0 * cfg->d_head,
                     .ld_q = cfg->d_head,
                     .n_see = n_see,
                     .kv = be->opt.kv,
                     .scale = c->scale,
                     .m = s->m + q0,
                     .l = s->l + q0,
                     .acc = s->acc + q0 * cfg->d_head};
    for (uint32_t p = 0; p < b.n_page; p++) {
        for (uint32_t t = 0; t < a.n_q; t++)
            n_see[t] = n_seen(b.seq->pos + b.t0 + t / group, p);
        a.first = p == 0;
        a.page = kv_part(c, b.seq, p, h);
        a.next = p + 1 < b.n_page ? kv_part(c, b.seq, p + 1, h) : NULL;
        be->kern->attn_page(&a);
    }
    for (uint32_t t = b.t0; t < b.t0 + b.n; t++)
        for (uint32_t e = 0; e < group; e++) finish_query(be, h, e, b.seq->tok0 + t);
}

/* ---- divided by pages ---- */

/* Some pages of a block that are attended on their own, and those before them, which wait to be merged. */
typedef struct window {
    attn_ctx c;
    block b;
    uint32_t page0, n_page; /* these */
    uint32_t old0, n_old;   /* those before */
    size_t part, old_part;  /* where their results begin: rows of the parts */
    uint32_t n_merge;       /* tasks that merge; they come first */
} window;

/* Row of the parts for page i of a window, KV head h: rows of the block follow. */
static size_t part_row(const window *w, size_t part, uint32_t i, uint32_t h) {
    const lg_config *cfg = w->c.be->cfg;
    return part + ((size_t)i * cfg->n_kv_head + h) * w->b.n * (cfg->n_head / cfg->n_kv_head);
}

/* One page, one KV head: what it gives as if it were the only page. */
static void attend_page(const window *w, size_t task, int thread) {
    const lg_backend *be = w->c.be;
    const lg_cpu_scratch *s = &be->s;
    const lg_config *cfg = be->cfg;
    const block *b = &w->b;
    uint32_t group = cfg->n_head / cfg->n_kv_head, h = (uint32_t)(task % cfg->n_kv_head);
    uint32_t i = (uint32_t)(task / cfg->n_kv_head), p = w->page0 + i;
    uint32_t *n_see = s->n_see + (size_t)thread * LG_CPU_ATTN_BLK * group;
    for (uint32_t t = 0; t < b->n * group; t++)
        n_see[t] = n_seen(b->seq->pos + b->t0 + t / group, p);
    /* What this thread will probably read next. */
    size_t next = (size_t)p * cfg->n_kv_head + h + (size_t)be->n_thread;
    size_t to = part_row(w, w->part, i, h);
    lg_attn_arg a = {.d = cfg->d_head,
                     .n_q = b->n * group,
                     .q = s->q + q_row0(be, h, b->seq->tok0 + b->t0) * cfg->d_head,
                     .ld_q = cfg->d_head,
                     .n_see = n_see,
                     .first = true,
                     .kv = be->opt.kv,
                     .page = kv_part(&w->c, b->seq, p, h),
                     .scale = w->c.scale,
                     .m = s->part_m + to,
                     .l = s->part_l + to,
                     .acc = s->part_acc + to * cfg->d_head};
    if (next / cfg->n_kv_head < b->n_page)
        a.next = kv_part(&w->c, b->seq, (uint32_t)(next / cfg->n_kv_head),
                         (uint32_t)(next % cfg->n_kv_head));
    be->kern->attn_page(&a);
}

/* (m, l, acc) of one query with one page's, by the operations of lg_kern.attn_page. */
static void merge_page(const lg_backend *be, size_t at, size_t from, bool first) {
    const lg_cpu_scratch *s = &be->s;
    uint32_t d = be->cfg->d_head;
    float *acc = s->acc + at * d, m_b = s->part_m[from], l_b = s->part_l[from];
    const float *part = s->part_acc + from * d;
    if (first) {
        s->m[at] = m_b;
        s->l[at] = l_b;
        memcpy(acc, part, d * sizeof *acc);
        return;
    }
    float m = m_b > s->m[at] ? m_b : s->m[at];
    float c = lg_expf(s->m[at] - m), c_b = lg_expf(m_b - m);
    if (c != 1.0f)
        for (uint32_t x = 0; x < d; x++) acc[x] *= c;
    be->kern->axpy(c_b, part, d, acc);
    s->l[at] = fmaf(l_b, c_b, s->l[at] * c);
    s->m[at] = m;
}

/* Merge the pages that wait into query row `row` of KV head h, ascending. */
static void merge_row(const window *w, uint32_t h, uint32_t row) {
    const lg_backend *be = w->c.be;
    uint32_t group = be->cfg->n_head / be->cfg->n_kv_head, t = w->b.t0 + row / group;
    size_t at = q_row0(be, h, w->b.seq->tok0 + w->b.t0) + row;
    for (uint32_t i = 0; i < w->n_old; i++)
        if (n_seen(w->b.seq->pos + t, w->old0 + i) > 0)
            merge_page(be, at, part_row(w, w->old_part, i, h) + row, w->old0 + i == 0);
    if (w->old0 + w->n_old == w->b.n_page) finish_query(be, h, row % group, w->b.seq->tok0 + t);
}

static void window_task(void *ctx, size_t task, int thread) {
    const window *w = ctx;
    uint32_t n_row = w->b.n * (w->c.be->cfg->n_head / w->c.be->cfg->n_kv_head);
    if (task < w->n_merge)
        merge_row(w, (uint32_t)task / n_row, (uint32_t)task % n_row);
    else
        attend_page(w, task - w->n_merge, thread);
}

/* Windows of pages, each one region: its pages, and the merge of the window before. */
static void split_block(const attn_ctx *c, const block *b) {
    lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    uint32_t step = be->split_step / b->n, n_page;
    window w = {.c = *c, .b = *b};
    for (uint32_t p = 0; p < b->n_page || w.n_page > 0; p += n_page) {
        n_page = b->n_page - p < step ? b->n_page - p : step;
        w.old0 = w.page0;
        w.n_old = w.n_page;
        w.old_part = w.part;
        w.page0 = p;
        w.n_page = n_page;
        w.part = w.old_part ? 0 : (size_t)be->split_step * cfg->n_head;
        w.n_merge = w.n_old > 0 ? b->n * cfg->n_head : 0;
        uint64_t row = (uint64_t)b->n * cfg->n_head * cfg->d_head;
        lg_cpu_run(be, w.n_merge + (size_t)n_page * cfg->n_kv_head,
                   row * 2 * (w.n_old + (uint64_t)n_page * LG_PAGE_TOK), window_task, &w);
    }
}

/* Whether few whole tasks, taken in turn by whoever is free, end within a tenth of the least time that there can be: one sequence on
 * as many threads as there are KV heads, for one. */
static bool ends_evenly(const attn_ctx *c, uint32_t n_blk) {
    enum { MAX_THREAD = 64, MAX_TASK = 128 };
    uint64_t load[MAX_THREAD] = {0}, most = 0, all = c->n_row_page * c->be->cfg->n_kv_head;
    uint32_t n_thread = (uint32_t)c->be->n_thread, n_head = c->be->cfg->n_kv_head;
    if (n_thread > MAX_THREAD || n_blk > MAX_TASK / n_head) return false;
    for (uint32_t i = 0; i < n_blk * n_head; i++) {
        block b = find_block(c, i / n_head);
        uint32_t first = 0;
        for (uint32_t t = 1; t < n_thread; t++)
            if (load[t] < load[first]) first = t;
        load[first] += (uint64_t)b.n * b.n_page;
        if (load[first] > most) most = load[first];
    }
    return 10 * most * n_thread <= 11 * all;
}

void lg_cpu_attn_pages(lg_backend *be, uint32_t layer) {
    const lg_config *cfg = be->cfg;
    attn_ctx c = {.be = be,
                  .w = &be->w->layer[layer],
                  .layer = layer,
                  .scale = 1.0f / sqrtf((float)cfg->d_head)};
    uint32_t n_blk = be->s.seq_task[be->batch->n_seq];
    uint64_t n_apart = 0;
    for (uint32_t i = 0; i < n_blk; i++) {
        block b = find_block(&c, i);
        c.n_row_page += (uint64_t)b.n * b.n_page;
    }
    c.even = ends_evenly(&c, n_blk);
    for (uint32_t i = 0; i < n_blk; i++) {
        block b = find_block(&c, i);
        if (!b.split) continue;
        n_apart += (uint64_t)b.n * b.n_page;
        split_block(&c, &b);
    }
    lg_cpu_run(be, (size_t)n_blk * cfg->n_kv_head,
               (c.n_row_page - n_apart) * LG_PAGE_TOK * cfg->n_head * cfg->d_head * 2,
               score_task, &c);
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
    attn_ctx c = {.be = be, .w = w, .layer = layer, .scale = 1.0f / sqrtf((float)d)};
    if (batch->spread) {
        lg_cpu_gemm_run(be, in + 1, 2);
        lg_cpu_mark(be, LG_OP_MIX_IN);
        lg_cpu_spread_pages(be, layer);
        prepare(&c, false, true);
        lg_cpu_spread_keys_start(be, layer);
        lg_cpu_mark(be, LG_OP_ROWS);
        lg_cpu_gemm_run(be, in, 1);
        lg_cpu_mark(be, LG_OP_MIX_IN);
        prepare(&c, true, false);
        lg_cpu_spread_keys(be, layer);
    } else {
        lg_cpu_slice_gemm(be, layer, in, 3, false);
        lg_cpu_mark(be, LG_OP_MIX_IN);
        prepare(&c, true, true);
    }
    if (be->opt.trace) trace_prepared(be, layer);
    lg_cpu_mark(be, LG_OP_ROWS);
    lg_cpu_attn_pages(be, layer);
    lg_cpu_slice_rows(be, layer, s->gated, width);
    lg_cpu_mark(be, LG_OP_ATTN);
    if (be->opt.trace) trace_heads(be, layer, "attn.core_out", s->acc);
    lg_cpu_trace(be, (int)layer, "attn.gated", s->gated, n, width, width);
    lg_cpu_gemm out = {
        .w = &w->o, .x = s->gated, .ld_x = width, .n_row = n, .y = s->mix, .ld_y = cfg->n_embd};
    lg_cpu_quant_start(&s->mid_q, s->gated, n, (uint32_t)width);
    lg_cpu_quant_jobs(be, &s->mid_q, &out, 1);
    lg_cpu_slice_gemm(be, layer, &out, 1, true);
    lg_cpu_mark(be, LG_OP_MIX_OUT);
}
