/* weights.c - open a model folder or a GGUF file: config, tensors, panels.
 *
 * In:  its path.   Out: lg_weights, whose matrices are packed for the kernels, or mapped from a file of such (packed.c), and
 * whose embedding stays mapped.
 * Two walks over the tensors (weights_map.c): the first checks all and counts bytes, then one block is taken, the second
 * carves it.  Packing is cut into tasks of about a megabyte for the pool and into rounds, between which progress is told.
 * What writes a page first decides on which memory node it lies, so each node's threads pack that node's share of a matrix.
 * Thread: the opener's, and the pool's while packing.  Memory: one block for all panels and vectors, one for the structs.
 * Test: tests/unit/test_weights.c, tests/unit/test_nodes.c, tests/unit/test_loader.c */
#include "model/weights/weights_map.h"

#include "base/buf.h"
#include "base/hash.h"
#include "kern/dequant.h"
#include "model/file/gguf_config.h"
#include "model/file/safetensors.h"
#include "model/weights/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TASK_BYTES  (1u << 20)
#define ROUND_BYTES (64u << 20)

struct lg_weights_own {
    lg_gguf *gguf;    /* owner of the set, or NULL */
    lg_tensors *set;  /* mapped files */
    lg_mlp_w *expert; /* [n_layer][n_expert] */
    void *block;      /* panels and vectors; NULL when they lie in the packed file */
    lg_packed packed;
};

/* Panels [panel0, panel0 + n_panel) of one job. */
typedef struct task {
    const lg_weights_job *job;
    uint32_t panel0, n_panel;
    int node;
} task;

static void pack_task(void *ctx, size_t i, int thread) {
    const task *t = (const task *)ctx + i;
    (void)thread;
    if (t->job->q.code) {
        lg_packq_panels(t->job, t->panel0, t->n_panel);
        return;
    }
    lg_pack_panels(t->job->type, t->job->src, t->job->n_out, t->job->n_in, t->panel0,
                   t->n_panel, t->job->dst);
}

static uint32_t panels_of(const lg_weights_job *j) {
    return (j->n_out + LG_NR - 1) / LG_NR;
}

/* Panels that make about TASK_BYTES. */
static uint32_t panels_a_task(const lg_weights_job *j) {
    uint64_t n = TASK_BYTES / lg_pack_bytes(j->type, LG_NR, j->n_in);
    return n ? (uint32_t)n : 1;
}

static uint64_t task_bytes(const task *t) {
    return t->n_panel * lg_pack_bytes(t->job->type, LG_NR, t->job->n_in);
}

/* A job cut into tasks, nodes in turn so that each has as many in a round; to may be NULL.  Returns how many. */
static size_t cut_job(const lg_weights_job *j, int n_node, task *to) {
    uint32_t step = panels_a_task(j), all = panels_of(j);
    size_t n = 0;
    for (uint32_t at = 0; at < all; at += step) /* a share has no more panels than all */
        for (int node = 0; node < n_node; node++) {
            size_t p = lg_pool_share(all, node, n_node) + at,
                   end = lg_pool_share(all, node + 1, n_node);
            if (p >= end) continue;
            if (to)
                to[n] =
                    (task){j, (uint32_t)p, end - p < step ? (uint32_t)(end - p) : step, node};
            n++;
        }
    return n;
}

/* All jobs cut into tasks; the caller owns *out. */
static lg_status cut_tasks(const lg_weights_walk *k, int n_node, task **out, size_t *n_task,
                           lg_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < k->n_job; i++) n += cut_job(&k->job[i], n_node, NULL);
    task *t = lg_mem_calloc(n, sizeof *t);
    if (!t) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory for %zu tasks", k->path, n);
    *out = t;
    *n_task = n;
    for (size_t i = 0; i < k->n_job; i++) t += cut_job(&k->job[i], n_node, t);
    return LG_OK;
}

static int by_node(const void *pa, const void *pb) {
    const task *a = pa, *b = pb;
    if (a->node != b->node) return a->node < b->node ? -1 : 1;
    if (a->job != b->job) return a->job < b->job ? -1 : 1;
    return a->panel0 < b->panel0 ? -1 : a->panel0 > b->panel0;
}

static void pack_round(lg_pool *pool, task *t, size_t n) {
    size_t first[LG_POOL_MAX_NODE + 1] = {0};
    int n_node = lg_pool_n_node(pool);
    if (n_node > 1) qsort(t, n, sizeof *t, by_node);
    for (size_t i = 0; i < n; i++) first[t[i].node + 1]++;
    for (int k = 0; k < n_node; k++) first[k + 1] += first[k];
    lg_pool_run_parts(pool, first, true, pack_task, t);
}

/* Run all tasks in rounds. */
static lg_status pack_all(const lg_weights_walk *k, lg_pool *pool, lg_progress_fn *progress,
                          void *progress_ctx, lg_err *err) {
    task *tasks = NULL;
    size_t n_task = 0;
    uint64_t done = 0;
    int n_node = lg_pool_n_node(pool);
    LG_TRY(cut_tasks(k, n_node, &tasks, &n_task, err));
    if (n_node > 1)
        lg_diag_log(LG_LOG_INFO, "weights: each matrix is divided over %d memory nodes",
                    n_node);
    lg_status st = LG_OK;
    for (size_t i = 0; i <= n_task && st == LG_OK;) {
        if (progress && progress(progress_ctx, done, k->pack_bytes)) {
            st = LG_FAIL(err, LG_E_CANCELLED, "%s: loading was cancelled", k->path);
            break;
        }
        if (i == n_task) break;
        size_t j = i;
        for (uint64_t round = 0; j < n_task && round < ROUND_BYTES; j++) {
            round += task_bytes(&tasks[j]);
            done += task_bytes(&tasks[j]);
        }
        pack_round(pool, tasks + i, j - i);
        lg_tensors_release(
            k->set); /* what was read stays in the system's cache, not in our memory */
        i = j;
    }
    lg_mem_free(tasks);
    return st;
}

/* Config and tensors. */
static lg_status read_files(lg_weights *w, const char *path, lg_err *err) {
    struct lg_weights_own *own = w->own;
    if (!lg_gguf_is(path)) {
        LG_TRY(lg_config_load(&w->cfg, path, err));
        return lg_st_open(path, &own->set, err);
    }
    LG_TRY(lg_gguf_open(path, &own->gguf, err));
    own->set = lg_gguf_tensors(own->gguf);
    return lg_gguf_config_read(&w->cfg, own->gguf, err);
}

/* Config, tensors, the arrays of structs and the first walk. */
static lg_status prepare(lg_weights *w, lg_weights_walk *k) {
    LG_TRY(read_files(w, k->path, k->err));
    k->set = w->own->set;
    if (w->cfg.quant > LG_QUANT_FP8) LG_TRY(lg_quant_load(k->path, &k->quant, k->err));
    const lg_config *c = &w->cfg;
    w->layer = lg_mem_calloc(c->n_layer, sizeof *w->layer);
    if (c->n_expert)
        w->own->expert =
            lg_mem_calloc((size_t)c->n_layer * c->n_expert, sizeof *w->own->expert);
    if (!w->layer || (c->n_expert && !w->own->expert))
        return LG_FAIL(k->err, LG_E_NOMEM, "%s: no memory", k->path);
    for (uint32_t i = 0; c->n_expert && i < c->n_layer; i++)
        w->layer[i].expert = w->own->expert + (size_t)i * c->n_expert;
    lg_arena_init(&k->arena, NULL, 0);
    LG_TRY(lg_weights_map_walk(k));
    LG_TRY(lg_weights_map_rest(k));
    w->weight_bytes = k->arena.used_bytes + w->embed.len_bytes;
    w->n_param = k->n_param;
    w->n_param_active = k->n_param - k->n_param_expert;
    if (c->n_expert) w->n_param_active += k->n_param_expert / c->n_expert * c->n_expert_tok;
    return LG_OK;
}

/* The block, the second walk and the panels. */
static lg_status fill(lg_weights *w, lg_weights_walk *k, lg_pool *pool,
                      lg_progress_fn *progress, void *progress_ctx) {
    size_t bytes = k->arena.used_bytes;
    /* Every byte but the gaps between matrices is written below; no file gets what was there before. */
    w->own->block = k->keep ? lg_mem_alloc(bytes) : lg_mem_realloc(NULL, bytes);
    k->job = lg_mem_calloc(k->n_job, sizeof *k->job);
    if (!w->own->block || !k->job)
        return LG_FAIL(k->err, LG_E_NOMEM, "%s: no memory for %zu bytes of weights", k->path,
                       bytes);
    lg_arena_init(&k->arena, w->own->block, bytes);
    LG_TRY(lg_weights_map_walk(k));
    LG_ASSERT(k->arena.used_bytes == bytes);
    return pack_all(k, pool, progress, progress_ctx, k->err);
}

/* ---- the packed file ---- */

/* config.json decides how tensors are read, so it is part of the source. */
static lg_status hash_config(const char *folder, uint64_t *hash, lg_err *err) {
    char part[4096];
    char *path = lg_tensors_path(folder, "config.json");
    FILE *f = path ? fopen(path, "rb") : NULL;
    lg_status st = f ? LG_OK : LG_FAIL(err, LG_E_IO, "%s/config.json: cannot be read", folder);
    for (size_t n; f && (n = fread(part, 1, sizeof part, f)) > 0;)
        *hash = lg_hash_add(*hash, part, n);
    if (f) fclose(f);
    lg_mem_free(path);
    return st;
}

static lg_status identity_of(const lg_weights *w, const lg_weights_walk *k, uint64_t *id) {
    *id = lg_hash_add(k->plan, w->cfg.model_type, strlen(w->cfg.model_type)) ^
          lg_tensors_identity(w->own->set);
    return w->cfg.gguf ? LG_OK : hash_config(k->path, id, k->err);
}

/* The second walk over a block that is there already.  A process that is alone copies it into huge pages, from which answers come a fifth
 * faster; ranks share the file's pages. */
static lg_status carve_packed(lg_weights *w, lg_weights_walk *k, lg_pool *pool) {
    const lg_packed *p = &w->own->packed;
    void *block = (void *)(uintptr_t)p->block;
    if (!k->part) {
        block = w->own->block = lg_mem_realloc(NULL, (size_t)p->block_bytes);
        if (!block)
            return LG_FAIL(k->err, LG_E_NOMEM, "%s: no memory for %llu bytes of weights",
                           k->path, (unsigned long long)p->block_bytes);
        LG_TRY(lg_packed_read(p, block, pool, k->err));
    }
    lg_arena_init(&k->arena, block, (size_t)p->block_bytes);
    k->ready = true;
    LG_TRY(lg_weights_map_walk(k));
    LG_ASSERT(k->arena.used_bytes == p->block_bytes);
    if (k->part) lg_packed_touch(p, pool);
    if (lg_pool_n_node(pool) > 1)
        lg_diag_log(LG_LOG_INFO,
                    "packed weights are not divided over memory nodes: they lie where %s",
                    k->part ? "the system's file cache has them" : "they were copied");
    return LG_OK;
}

/* Keep what was packed.  A rank goes on with the file in place of the heap, so that memory is there once for all of them. */
static lg_status keep_packed(lg_weights *w, lg_weights_walk *k, lg_pool *pool, const char *file,
                             uint64_t id) {
    lg_err err = {0};
    uint64_t bytes = k->arena.used_bytes;
    struct lg_weights_own *own = w->own;
    lg_status st = lg_packed_write(file, id, own->block, bytes, pool, &err);
    if (st == LG_OK) st = lg_packed_open(file, id, bytes, &own->packed, &err);
    if (st != LG_OK) {
        lg_diag_log(LG_LOG_WARN, "packed weights are not kept: %s",
                    st == LG_AGAIN ? "the file is gone" : err.msg);
        return LG_OK;
    }
    lg_diag_log(LG_LOG_WARN, "packed weights: %.1f MiB written to %s for later starts",
                (double)bytes / 0x1p20, file);
    w->packed = LG_PACKED_WRITTEN;
    if (!k->part) return LG_OK;
    lg_mem_free(k->job);
    k->job = NULL;
    LG_FREE(own->block);
    return carve_packed(w, k, pool);
}

static lg_status fill_or_map(lg_weights *w, lg_weights_walk *k, const char *pack_dir,
                             lg_pool *pool, lg_progress_fn *progress, void *progress_ctx) {
    uint64_t id;
    lg_err err = {0};
    if (!pack_dir) return fill(w, k, pool, progress, progress_ctx);
    LG_TRY(identity_of(w, k, &id));
    char *file = lg_packed_path(pack_dir, k->path, k->part ? k->plan : 0);
    if (!file) return LG_FAIL(k->err, LG_E_NOMEM, "%s: no memory", k->path);
    lg_status st = lg_packed_open(file, id, k->arena.used_bytes, &w->own->packed, &err);
    if (st == LG_OK) {
        w->packed = LG_PACKED_FOUND;
        st = carve_packed(w, k, pool);
    } else {
        if (st != LG_AGAIN)
            lg_diag_log(LG_LOG_WARN, "%s; it is not used and made anew", err.msg);
        k->keep = true;
        st = fill(w, k, pool, progress, progress_ctx);
        if (st == LG_OK) st = keep_packed(w, k, pool, file, id);
    }
    lg_mem_free(file);
    return st;
}

lg_status lg_weights_verify_packed(const lg_weights *w, lg_pool *pool, lg_err *err) {
    return w->packed == LG_PACKED_NO ? LG_OK : lg_packed_verify(&w->own->packed, pool, err);
}

static lg_status start(lg_weights **w, const char *path, lg_err *err) {
    *w = lg_mem_alloc(sizeof **w);
    if (*w) (*w)->own = lg_mem_alloc(sizeof *(*w)->own);
    if (*w && (*w)->own) return LG_OK;
    lg_mem_free(*w);
    *w = NULL;
    return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
}

lg_status lg_weights_open_packed(const char *path, const lg_weights_part *part,
                                 const char *pack_dir, lg_pool *pool, lg_progress_fn *progress,
                                 void *progress_ctx, lg_weights **w, lg_err *err) {
    LG_TRY(start(w, path, err));
    lg_weights_walk walk = {.w = *w, .path = path, .part = part, .err = err};
    lg_status st = prepare(*w, &walk);
    if (st == LG_OK && walk.n_slow)
        lg_diag_log(
            LG_LOG_WARN,
            "%s: %u matrices (such as %s) have no integer products and are multiplied as "
            "floats, which is slower",
            path, walk.n_slow, lg_dtype_name(walk.slow));
    if (st == LG_OK) st = fill_or_map(*w, &walk, pack_dir, pool, progress, progress_ctx);
    lg_mem_free(walk.job);
    lg_quant_close(&walk.quant);
    if (st != LG_OK) lg_weights_close(w);
    return st;
}

lg_status lg_weights_check_part(const char *path, const lg_weights_part *part, lg_weights **w,
                                lg_err *err) {
    LG_TRY(start(w, path, err));
    lg_weights_walk walk = {.w = *w, .path = path, .part = part, .err = err};
    lg_status st = prepare(*w, &walk);
    lg_quant_close(&walk.quant);
    if (st != LG_OK) lg_weights_close(w);
    return st;
}

lg_status lg_weights_open_part(const char *path, const lg_weights_part *part, lg_pool *pool,
                               lg_progress_fn *progress, void *progress_ctx, lg_weights **w,
                               lg_err *err) {
    return lg_weights_open_packed(path, part, NULL, pool, progress, progress_ctx, w, err);
}

lg_status lg_weights_open(const char *path, lg_pool *pool, lg_progress_fn *progress,
                          void *progress_ctx, lg_weights **w, lg_err *err) {
    return lg_weights_open_part(path, NULL, pool, progress, progress_ctx, w, err);
}

lg_status lg_weights_check(const char *path, lg_weights **w, lg_err *err) {
    return lg_weights_check_part(path, NULL, w, err);
}

void lg_weights_close(lg_weights **w) {
    lg_weights *p = *w;
    if (!p) return;
    if (p->own->gguf)
        lg_gguf_close(&p->own->gguf);
    else
        lg_tensors_close(&p->own->set);
    lg_mem_free(p->own->block);
    lg_packed_close(&p->own->packed);
    lg_mem_free(p->own->expert);
    lg_mem_free(p->own);
    lg_mem_free(p->layer);
    LG_FREE(*w);
}

lg_tensors *lg_weights_tensors(const lg_weights *w) {
    return w->own->set;
}

void lg_weights_embed(const lg_weights *w, uint32_t id, float *y) {
    uint32_t n = w->cfg.n_embd;
    LG_ASSERT(id < w->cfg.n_vocab);
    const uint8_t *row = w->embed.data + id * (w->embed.len_bytes / w->cfg.n_vocab);
    lg_dequant_row(w->embed.type, row, n, y);
}
