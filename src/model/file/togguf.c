/* togguf.c - the rows of a folder's tensors, transformed and stored: see togguf.h.
 *
 * A tensor is written in chunks of CHUNK_BYTES of the new file; the rows of a chunk are tasks of the pool.  Pages of the
 * folder that were read are let go of again and again, so the process holds a bounded amount whatever the model's size.
 * Thread: the caller's, and the pool's for rows.  Memory: one chunk, three rows of floats a thread.
 * Test: tests/unit/test_togguf.c */
#include "model/file/togguf.h"

#include "base/mem.h"
#include "base/num.h"
#include "kern/dequant.h"
#include "kern/quantize.h"
#include "model/weights/weights.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define CHUNK_BYTES   (8u << 20)
#define TASK_NUMBERS  (32u << 10) /* about so many elements make a task */
#define RELEASE_BYTES (256u << 20)
#define FP8_BLOCK     128

/* Sums of one thread. */
typedef struct tally {
    double err, all;
    uint8_t pad[48]; /* a line of its own */
} tally;

typedef struct job {
    const lg_config *c;
    const lg_togguf_tensor *t;
    lg_imatrix_entry importance;
    uint8_t *chunk; /* [rows of the chunk] as in the file */
    float *row;     /* [threads][3][widest row] */
    size_t ld_row;
    tally *tally;      /* [threads] */
    uint64_t first, n; /* rows of the chunk */
    uint64_t rows_a_task;
    size_t row_bytes;       /* in the new file */
    _Atomic bool nonfinite; /* a row holds what no type can */
} job;

/* ---- one row ---- */

/* The value head of the folder at place p of the file. */
static uint64_t head_at(const lg_config *c, uint64_t p) {
    uint64_t r = c->n_v_head / c->n_k_head;
    return p % c->n_k_head * r + p / c->n_k_head;
}

static uint64_t source_row(const lg_config *c, const lg_togguf_tensor *t, uint64_t i) {
    if (t->v_rows == 0 || i < t->v_row0) return i;
    uint64_t p = (i - t->v_row0) / t->v_rows;
    return t->v_row0 + head_at(c, p) * t->v_rows + (i - t->v_row0) % t->v_rows;
}

/* Row r of the new tensor as floats; x and tmp [n_in]. */
static void read_row(const lg_config *c, const lg_togguf_tensor *t, uint64_t r, float *x,
                     float *tmp) {
    uint64_t e = r / t->n_row_expert, i = r % t->n_row_expert, at = source_row(c, t, i);
    const lg_view *v = t->expert ? t->expert[2 * e] : t->view;
    const lg_view *s = t->expert ? t->expert[2 * e + 1] : t->scale;
    if (!t->expert) at += e * t->stride + t->row0;
    float *y = t->v_columns ? tmp : x;
    lg_dequant_row(v->type, v->data + at * t->n_in * lg_dtype_bytes(v->type), t->n_in, y);
    if (s) {
        uint64_t n = (t->n_in + FP8_BLOCK - 1) / FP8_BLOCK;
        size_t bytes = lg_dtype_bytes(s->type);
        for (uint32_t k = 0; k < t->n_in; k += FP8_BLOCK) {
            float scale;
            uint32_t end = t->n_in - k < FP8_BLOCK ? t->n_in : k + FP8_BLOCK;
            lg_dequant_row(s->type, s->data + (at / FP8_BLOCK * n + k / FP8_BLOCK) * bytes, 1,
                           &scale);
            for (uint32_t j = k; j < end; j++) y[j] *= scale;
        }
    }
    for (uint32_t k = 0; t->v_columns && k < t->n_in; k += t->v_columns)
        memcpy(x + k, tmp + head_at(c, k / t->v_columns) * t->v_columns,
               t->v_columns * sizeof *x);
    for (uint32_t k = 0; t->map == LG_TOGGUF_ONE_PLUS && k < t->n_in; k++) x[k] = 1 + x[k];
    for (uint32_t k = 0; t->map == LG_TOGGUF_NEG_EXP && k < t->n_in; k++) x[k] = -expf(x[k]);
}

/* One task: read, store, and compare what was stored. */
static void row_task(void *ctx, size_t task, int thread) {
    job *j = ctx;
    const lg_togguf_tensor *t = j->t;
    float *x = j->row + (size_t)thread * 3 * j->ld_row, *y = x + j->ld_row, *w = y + j->ld_row;
    uint64_t begin = task * j->rows_a_task, end = begin + j->rows_a_task;
    double err = 0, all = 0;
    if (end > j->n) end = j->n;
    for (uint64_t r = begin; r < end; r++) {
        uint8_t *dst = j->chunk + r * j->row_bytes;
        read_row(j->c, t, j->first + r, x, y);
        double sum = 0;
        for (uint32_t k = 0; k < t->n_in; k++) sum += (double)x[k] * (double)x[k];
        if (!isfinite(sum)) {
            atomic_store(&j->nonfinite, true);
            return;
        }
        bool known =
            lg_imatrix_weights(j->importance, (j->first + r) / t->n_row_expert, t->n_in, w);
        lg_quantize_row(t->type, x, t->n_in, known ? w : NULL, dst);
        lg_dequant_row(t->type, dst, t->n_in, y);
        for (uint32_t k = 0; k < t->n_in; k++) {
            double d = (double)x[k] - (double)y[k];
            err += d * d;
        }
        all += sum;
    }
    j->tally[thread].err += err;
    j->tally[thread].all += all;
}

/* ---- all rows ---- */

typedef struct state {
    const lg_togguf_opt *opt;
    lg_pool *pool;
    lg_tensors *set;
    lg_gguf_write *w;
    lg_togguf_report *report;
    uint64_t done, total; /* bytes of the new file's data */
    uint64_t read_bytes;  /* since pages were let go of */
    double err[LG_N_DTYPE], all[LG_N_DTYPE];
    lg_err *err_out;
} state;

static size_t row_bytes(const lg_togguf_tensor *t) {
    return t->n_in / lg_dtype_block(t->type) * lg_dtype_block_bytes(t->type);
}

static lg_status write_chunk(state *s, job *j) {
    const lg_togguf_tensor *t = j->t;
    size_t n_task = (size_t)((j->n + j->rows_a_task - 1) / j->rows_a_task);
    lg_pool_run(s->pool, n_task, row_task, j);
    if (atomic_load(&j->nonfinite))
        return LG_FAIL(
            s->err_out, LG_E_FORMAT, "%s: tensor %s: found a value that is not finite",
            t->view ? t->view->file : t->expert[0]->file, t->view ? t->view->name : t->name);
    LG_TRY(lg_gguf_write_data(s->w, j->chunk, (size_t)j->n * j->row_bytes, s->err_out));
    s->done += j->n * j->row_bytes;
    s->read_bytes += j->n * t->n_in * 2;
    if (s->read_bytes >= RELEASE_BYTES) {
        lg_tensors_release(s->set);
        s->read_bytes = 0;
    }
    if (s->opt->progress && s->opt->progress(s->opt->progress_ctx, s->done, s->total))
        return LG_FAIL(s->err_out, LG_E_CANCELLED, "writing was cancelled");
    return LG_OK;
}

static lg_status write_tensor(state *s, job *j, const lg_togguf_tensor *t) {
    uint64_t at_once = CHUNK_BYTES / row_bytes(t);
    int n_thread = lg_pool_n_thread(s->pool);
    j->t = t;
    j->row_bytes = row_bytes(t);
    j->importance = (lg_imatrix_entry){NULL, NULL};
    if (s->opt->imatrix && lg_dtype_is_block(t->type))
        j->importance =
            lg_imatrix_find(s->opt->imatrix, t->name, t->n_row / t->n_row_expert, t->n_in);
    s->report->n_weighted += j->importance.sum != NULL;
    j->rows_a_task = TASK_NUMBERS / t->n_in;
    if (j->rows_a_task == 0) j->rows_a_task = 1;
    if (at_once == 0) at_once = 1;
    memset(j->tally, 0, (size_t)n_thread * sizeof *j->tally);
    for (j->first = 0; j->first < t->n_row; j->first += j->n) {
        j->n = t->n_row - j->first < at_once ? t->n_row - j->first : at_once;
        LG_TRY(write_chunk(s, j));
    }
    for (int i = 0; i < n_thread; i++) {
        s->err[t->type] += j->tally[i].err;
        s->all[t->type] += j->tally[i].all;
    }
    s->report->n_tensor[t->type]++;
    s->report->bytes[t->type] += t->n_row * j->row_bytes;
    return LG_OK;
}

/* Tensors one after the other, in buffers that fit the widest. */
static lg_status write_all(state *s, const lg_config *c, const lg_togguf_list *list) {
    size_t n_thread = (size_t)lg_pool_n_thread(s->pool), chunk = CHUNK_BYTES;
    job j = {.c = c};
    for (size_t i = 0; i < list->n; i++) {
        const lg_togguf_tensor *t = &list->tensor[i];
        if (row_bytes(t) > chunk) chunk = row_bytes(t);
        if (t->n_in > j.ld_row) j.ld_row = t->n_in;
        s->total += t->n_row * row_bytes(t);
    }
    s->report->buffer_bytes = chunk + n_thread * 3 * j.ld_row * sizeof *j.row;
    j.chunk = lg_mem_alloc(chunk);
    j.row = lg_mem_calloc(n_thread * 3 * j.ld_row, sizeof *j.row);
    j.tally = lg_mem_calloc(n_thread, sizeof *j.tally);
    lg_status st = LG_OK;
    if (!j.chunk || !j.row || !j.tally)
        st = LG_FAIL(s->err_out, LG_E_NOMEM, "no memory for %llu bytes of buffers",
                     (unsigned long long)s->report->buffer_bytes);
    for (size_t i = 0; i < list->n && st == LG_OK; i++)
        st = write_tensor(s, &j, &list->tensor[i]);
    for (int t = 0; t < LG_N_DTYPE; t++)
        s->report->error[t] = s->all[t] > 0 ? s->err[t] / s->all[t] : 0;
    lg_mem_free(j.chunk);
    lg_mem_free(j.row);
    lg_mem_free(j.tally);
    return st;
}

/* ---- the file ---- */

static lg_status check_types(const lg_togguf_opt *opt, lg_err *err) {
    bool ok = lg_quantize_has(opt->type);
    for (size_t i = 0; i < opt->n_rule; i++) ok = ok && lg_quantize_has(opt->rule[i].type);
    return ok ? LG_OK : LG_FAIL(err, LG_E_ARG, "a type that cannot be written");
}

static lg_status write_file(const char *folder, const char *out, const lg_weights *weights,
                            state *s, lg_togguf_list *list) {
    LG_TRY(lg_togguf_tensors_list(folder, &weights->cfg, s->set, s->opt, list, s->report,
                                  s->err_out));
    LG_TRY(lg_gguf_write_open(out, &s->w, s->err_out));
    LG_TRY(
        lg_togguf_meta_write(s->w, folder, &weights->cfg, s->opt, s->report->mtp, s->err_out));
    for (size_t i = 0; i < list->n; i++) {
        const lg_togguf_tensor *t = &list->tensor[i];
        lg_gguf_write_tensor(s->w, t->name, t->type, t->n_dim, t->dim);
    }
    LG_TRY(lg_gguf_write_start(s->w, s->err_out));
    LG_TRY(write_all(s, &weights->cfg, list));
    s->report->file_bytes = lg_gguf_write_bytes(s->w);
    return lg_gguf_write_finish(&s->w, s->err_out);
}

lg_status lg_togguf_write(const char *folder, const char *out, const lg_togguf_opt *opt,
                          lg_pool *pool, lg_togguf_report *report, lg_err *err) {
    lg_weights *weights = NULL;
    lg_togguf_list list = {0};
    *report = (lg_togguf_report){0};
    LG_TRY(check_types(opt, err));
    if (lg_gguf_is(folder))
        return LG_FAIL(err, LG_E_UNSUPPORTED, "%s: expected a folder with safetensors", folder);
    LG_TRY(lg_weights_check(folder, &weights, err));
    state s = {.opt = opt,
               .pool = pool,
               .set = lg_weights_tensors(weights),
               .report = report,
               .err_out = err};
    lg_status st = write_file(folder, out, weights, &s, &list);
    lg_gguf_write_close(&s.w);
    lg_togguf_tensors_fini(&list);
    lg_weights_close(&weights);
    return st;
}
