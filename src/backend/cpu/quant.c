/* quant.c - input rows of a stage as integers, for products with weights of block types.
 *
 * A stage that writes rows declares them (start); a stage that multiplies them asks for its jobs (jobs), which quantises the
 * rows once in each form that these jobs' types need and have not got yet.  Products of other types keep reading floats.
 * A row's integers depend on the row alone.  Thread: engine and pool.  Memory: step scratch.  Test: tests/unit/test_exact.c */
#include "backend/cpu/cpu.h"

#define ROWS_PER_TASK 8

void lg_cpu_quant_carve(lg_arena *a, size_t n_float, lg_cpu_quant *q) {
    size_t n = (n_float + 31) / 32 * 32;
    for (int f = 0; f < 2; f++) {
        q->form[f] = (lg_qrows){.group = f ? 256 : 32};
        q->form[f].v8 = lg_arena_take(a, n, 1);
        q->form[f].v16 = lg_arena_take(a, n, sizeof(int16_t));
        q->form[f].sum = lg_arena_take(a, n / 32, sizeof(int16_t));
        q->form[f].sum16 = lg_arena_take(a, n / 16, sizeof(int16_t));
        q->form[f].d = lg_arena_take(a, n / 32, sizeof(float));
    }
}

void lg_cpu_quant_start(lg_cpu_quant *q, const float *x, uint32_t n_row, uint32_t n_in) {
    q->x = x;
    q->n_row = n_row;
    q->n_in = n_in;
    q->made[0] = q->made[1] = false;
}

typedef struct quant_ctx {
    const lg_backend *be;
    const lg_cpu_quant *q;
    const lg_qrows *form;
} quant_ctx;

static void quant_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const quant_ctx *c = ctx;
    uint32_t r0 = (uint32_t)task * ROWS_PER_TASK, n = c->q->n_row;
    uint32_t r1 = n - r0 < ROWS_PER_TASK ? n : r0 + ROWS_PER_TASK;
    for (uint32_t r = r0; r < r1; r++)
        c->be->kern->quant_row(c->q->x + (size_t)r * c->q->n_in, c->q->n_in, c->form, r);
}

static void make_form(lg_backend *be, lg_cpu_quant *q, int f) {
    if (q->made[f]) return;
    q->made[f] = true;
    q->form[f].ld = q->n_in;
    quant_ctx c = {be, q, &q->form[f]};
    lg_cpu_run(be, (q->n_row + ROWS_PER_TASK - 1) / ROWS_PER_TASK,
               (uint64_t)q->n_row * q->n_in * 4, quant_task, &c);
}

void lg_cpu_quant_jobs(lg_backend *be, lg_cpu_quant *q, lg_cpu_gemm *job, uint32_t n_job) {
    lg_cpu_mark(be, LG_OP_ROWS);
    if (be->exact) return;
    for (uint32_t i = 0; i < n_job; i++) {
        const lg_mat *w[2] = {job[i].w, job[i].w2};
        for (int k = 0; k < 2; k++) {
            if (!w[k] || !lg_dtype_is_int(w[k]->type)) continue;
            make_form(be, q, lg_dtype_row_group(w[k]->type) == 256);
            job[i].q = q;
        }
    }
    lg_cpu_mark(be, LG_OP_QUANTISE);
}

bool lg_cpu_quant_rows(const lg_cpu_gemm *job, const lg_mat *w, uint32_t row, lg_qrows *x) {
    if (!job->q || !lg_dtype_is_int(w->type)) return false;
    const lg_cpu_quant *q = job->q;
    size_t first = (size_t)(job->x - q->x) / q->n_in;
    *x = lg_qrows_at(&q->form[lg_dtype_row_group(w->type) == 256], first + row);
    return true;
}
