/* stage.c - parallel regions of a step: matrix products cut into tiles, rows cut into blocks.
 *
 * Cutting: a product is divided into blocks of LG_CPU_ROW_BLK rows and runs of weight panels, so many that every thread gets
 * several tasks of equal work.  Tasks of the same panels and neighbouring row blocks follow each other, so that a weight
 * is read from memory once.  On a machine of several memory nodes a task has panels of one node only (weights.h) and those of
 * node 0 come first, then those of node 1: each node has as many tasks, some of them empty where panels are few.
 * Thread: engine and pool.  Test: tests/unit/test_exact.c, tests/unit/test_stage.c */
#include "backend/cpu/cpu.h"

#include "base/clock.h"

#define TASKS         16 /* that a thread gets: the last one to end leaves little to wait for */
#define TASKS_COPYING 6  /* where each task of many rows copies its rows first */
#define MANY_ROWS     8
#define FEW_ROWS      4 /* up to here rows cost nothing: memory is what takes the time */
#define FLOAT_COST    4 /* of a product of floats, where one of integers costs 1 */
#define MIN_TASK_MACS 20000
#define ROWS_PER_TASK 8
#define POLL_US       20 /* between two looks at messages under way */

/* A region that runs while messages are under way: MPI over TCP moves only when it is called, so the engine's thread, which is the
 * pool's thread 0, looks after them between its tasks. */
typedef struct watched {
    lg_backend *be;
    lg_pool_body *body;
    void *ctx;
    uint64_t last_us;
} watched;

static void watched_task(void *ctx, size_t task, int thread) {
    watched *w = ctx;
    w->body(w->ctx, task, thread);
    if (thread) return;
    uint64_t now = lg_clock_us();
    if (now - w->last_us < POLL_US) return;
    lg_exchange_progress(&w->be->s.ex);
    lg_slice_progress(&w->be->s.slice.to);
    lg_spread_progress(&w->be->s.spread.to);
    w->last_us = now;
}

/* lg_cpu_run for tasks of which each of n_node nodes has n_task; 1: they belong to none.  stream: as lg_pool_run_streams. */
static void run_nodes(lg_backend *be, size_t n_task, int n_node, bool stream, uint64_t macs,
                      lg_pool_body *body, void *ctx) {
    size_t first[LG_POOL_MAX_NODE + 1], n_all = n_task * (size_t)n_node;
    watched w = {be, body, ctx, 0};
    if (be->s.ex.flying || be->s.slice.to.n_req || be->s.spread.to.n_req) {
        body = watched_task;
        ctx = &w;
    }
    if (be->n_thread == 1 || n_all <= 1 || macs < LG_CPU_REGION_MACS) {
        for (size_t i = 0; i < n_all; i++) body(ctx, i, 0);
    } else if (n_node == 1 && !stream) {
        lg_pool_run(be->pool, n_task, body, ctx);
    } else {
        for (int k = 0; k <= n_node; k++) first[k] = n_task * (size_t)k;
        if (stream)
            lg_pool_run_streams(be->pool, n_node, first, body, ctx);
        else
            lg_pool_run_parts(be->pool, first, false, body, ctx);
    }
}

void lg_cpu_run(lg_backend *be, size_t n_task, uint64_t macs, lg_pool_body *body, void *ctx) {
    run_nodes(be, n_task, 1, false, macs, body, ctx);
}

void lg_cpu_run_streams(lg_backend *be, size_t n_task, uint64_t macs, lg_pool_body *body,
                        void *ctx) {
    run_nodes(be, n_task, 1, true, macs, body, ctx);
}

typedef struct gemm_ctx {
    const lg_kern *kern;
    const lg_cpu_gemm *job;
    uint32_t n_job;
    int n_node;
    uint32_t n_task; /* of each node */
} gemm_ctx;

/* Panels that a job has: all, or its slice of them. */
static uint32_t n_panel_of(const lg_cpu_gemm *j) {
    return j->sliced ? j->n_panel : lg_mat_n_panel(j->w);
}

/* The job that holds a task: the last one whose first task is not after it. */
static const lg_cpu_gemm *find_job(const gemm_ctx *c, uint32_t task) {
    uint32_t lo = 0, hi = c->n_job;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (c->job[mid].task0 <= task)
            lo = mid;
        else
            hi = mid;
    }
    return &c->job[lo];
}

/* n_row rows from row0 of a job times panels of w, which is the job's w or w2; y is the job's row row0. */
static void product(const lg_kern *kern, const lg_cpu_gemm *j, const lg_mat *w, uint32_t panel0,
                    uint32_t n_panel, uint32_t row0, uint32_t n_row, float *y) {
    lg_qrows q;
    const uint32_t *idx = j->row_idx ? j->row_idx + row0 : NULL;
    uint32_t first = idx ? 0 : row0;
    if (lg_cpu_quant_rows(j, w, first, &q))
        kern->qgemm(w, panel0, n_panel, &q, idx, n_row, y, j->ld_y);
    else
        kern->gemm(w, panel0, n_panel, j->x + first * j->ld_x, j->ld_x, idx, n_row, y, j->ld_y);
}

static void gemm_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const gemm_ctx *c = ctx;
    uint32_t node = 0, t = (uint32_t)task;
    if (c->n_node > 1) {
        node = t / c->n_task;
        t %= c->n_task;
    }
    const lg_cpu_gemm *j = find_job(c, t);
    uint32_t at = t - j->task0, first = j->sliced ? j->panel0 : 0;
    uint32_t p0 = first, p1 = first + n_panel_of(j);
    if (c->n_node > 1) {
        uint32_t n = lg_mat_n_panel(j->w);
        uint32_t n0 = (uint32_t)lg_pool_share(n, (int)node, c->n_node);
        uint32_t n1 = (uint32_t)lg_pool_share(n, (int)node + 1, c->n_node);
        if (p0 < n0) p0 = n0;
        if (p1 > n1) p1 = n1;
    }
    p0 += at / j->n_row_blk * j->n_panel_task;
    if (p0 >= p1) return;
    uint32_t r0 = at % j->n_row_blk * LG_CPU_ROW_BLK;
    uint32_t np = p1 - p0 < j->n_panel_task ? p1 - p0 : j->n_panel_task;
    uint32_t nr = j->n_row - r0 < LG_CPU_ROW_BLK ? j->n_row - r0 : LG_CPU_ROW_BLK;
    float *y = j->y + r0 * j->ld_y;
    product(c->kern, j, j->w, p0, np, r0, nr, y);
    if (!j->w2) return;
    float *y2 = j->y2 + r0 * j->ld_y;
    product(c->kern, j, j->w2, p0, np, r0, nr, y2);
    uint32_t ch0 = p0 * LG_NR, end = (p0 + np) * LG_NR;
    if (end > j->w->n_out) end = j->w->n_out;
    for (uint32_t r = 0; r < nr; r++) {
        float *row = y + r * j->ld_y + ch0;
        c->kern->swiglu(row, y2 + r * j->ld_y + ch0, end - ch0, row);
    }
}

/* Tell the observer of the products that a job is. */
static void show(const lg_backend *be, const lg_cpu_gemm *j) {
    const lg_backend_opt *o = &be->opt;
    o->observe(o->observe_ctx, j->w, j->x, j->ld_x, j->row_idx, j->n_row);
    if (j->w2) o->observe(o->observe_ctx, j->w2, j->x, j->ld_x, j->row_idx, j->n_row);
}

/* What one panel of a job costs, in multiply-adds: a few rows are as quick as memory, so they cost the same. */
static uint64_t panel_cost(const lg_cpu_gemm *j) {
    uint32_t rows = j->n_row < LG_CPU_ROW_BLK ? j->n_row : LG_CPU_ROW_BLK;
    if (rows > 0 && rows < FEW_ROWS) rows = FEW_ROWS;
    return (uint64_t)rows * j->w->n_in * LG_NR * (j->w2 ? 2 : 1) * (j->q ? 1 : FLOAT_COST);
}

/* Cut a node's n_panel panels of a job into tasks of about `want`, all of nearly equal size; 0: one task.  Returns how many. */
static uint32_t cut_job(lg_cpu_gemm *j, uint32_t n_panel, uint64_t want) {
    uint32_t n_cut = 1;
    uint64_t cost = panel_cost(j) * n_panel;
    if (want > 0 && cost > want) {
        uint64_t n = (cost + want / 2) / want;
        n_cut = n < n_panel ? (uint32_t)n : n_panel;
    }
    j->n_panel_task = (n_panel + n_cut - 1) / n_cut;
    j->n_row_blk = (j->n_row + LG_CPU_ROW_BLK - 1) / LG_CPU_ROW_BLK;
    if (j->n_panel_task == 0) return 0;
    return j->n_row_blk * ((n_panel + j->n_panel_task - 1) / j->n_panel_task);
}

void lg_cpu_gemm_run(lg_backend *be, lg_cpu_gemm *job, uint32_t n_job) {
    for (uint32_t i = 0; be->opt.observe && i < n_job; i++) show(be, &job[i]);
    uint64_t total = 0, cost = 0, elements = 0;
    for (uint32_t i = 0; i < n_job; i++) {
        uint64_t n_out = job[i].sliced ? job[i].n_panel * LG_NR : job[i].w->n_out;
        uint64_t n = n_out * job[i].w->n_in * (job[i].w2 ? 2 : 1);
        total += n * job[i].n_row;
        elements += n;
        cost += panel_cost(&job[i]) * n_panel_of(&job[i]) *
                ((job[i].n_row + LG_CPU_ROW_BLK - 1) / LG_CPU_ROW_BLK);
    }
    bool many = total >= elements * MANY_ROWS, copies = many && be->kern->qgemm_copies;
    uint64_t n_per = copies ? TASKS_COPYING : TASKS;
    uint64_t want = cost / ((uint64_t)be->n_thread * n_per);
    if (want < MIN_TASK_MACS) want = MIN_TASK_MACS;
    if (be->n_thread == 1 || total < LG_CPU_REGION_MACS) want = 0;
    gemm_ctx c = {be->kern, job, n_job, lg_pool_n_node(be->pool), 0};
    for (uint32_t i = 0; i < n_job; i++) {
        uint32_t n_node = (uint32_t)c.n_node; /* the most panels that one has */
        uint32_t most = (lg_mat_n_panel(job[i].w) + n_node - 1) / n_node;
        if (most > n_panel_of(&job[i])) most = n_panel_of(&job[i]);
        job[i].task0 = c.n_task;
        c.n_task += cut_job(&job[i], most, want);
    }
    run_nodes(be, c.n_task, c.n_node, !many, total, gemm_task, &c);
}

typedef struct residual_ctx {
    lg_backend *be;
    const float *norm, *shared_gate;
} residual_ctx;

static void residual_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const residual_ctx *c = ctx;
    const lg_backend *be = c->be;
    const lg_kern *k = be->kern;
    uint32_t n = be->cfg->n_embd, r0 = (uint32_t)task * ROWS_PER_TASK;
    uint32_t r1 = r0 + ROWS_PER_TASK < be->batch->n_tok ? r0 + ROWS_PER_TASK : be->batch->n_tok;
    for (uint32_t r = r0; r < r1; r++) {
        size_t at = (size_t)r * n;
        float *x = be->s.x + at, *xn = be->s.xn + at;
        k->add(be->s.mix + at, n, x);
        if (c->norm) k->rmsnorm(x, c->norm, be->cfg->eps, n, xn);
        if (c->shared_gate) be->s.sg[r] = k->dot(xn, c->shared_gate, n);
    }
}

void lg_cpu_residual(lg_backend *be, const float *norm, const float *shared_gate) {
    residual_ctx c = {be, norm, shared_gate};
    uint32_t n = be->batch->n_tok;
    lg_cpu_run(be, (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK, (uint64_t)n * be->cfg->n_embd * 4,
               residual_task, &c);
    lg_cpu_quant_start(&be->s.xn_q, be->s.xn, n, be->cfg->n_embd);
}
