/* be.c - the calls of backend.h on PJRT devices, but for the inside of a step: see be.h.
 *
 * A failure of a device is final (LG_E_BACKEND): pools may be half of one step and half of another.
 * Thread: engine, and the pool for samples.  Memory: at open.  Test: tests/unit/test_pjrt_step.c */
#include "backend/pjrt/be.h"
#include "base/mem.h"

#include <string.h>

/* ---- sizes ---- */

static lg_pjrt_type kv_type(const lg_backend_opt *opt) {
    if (opt->device && opt->device->kv_fp8) return LG_PJRT_F8E4M3FN;
    switch (opt->kv) {
    case LG_F32: return LG_PJRT_F32;
    case LG_BF16: return LG_PJRT_BF16;
    case LG_F16: return LG_PJRT_F16;
    default: return 0;
    }
}

static void plan_bytes(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                       lg_backend_plan *plan) {
    (void)n_thread;
    uint64_t n_attn = 0, n_gdn = 0, rows = opt->max_tok, out = opt->max_out;
    for (uint32_t i = 0; i < cfg->n_layer; i++)
        cfg->layer[i] == LG_LAYER_ATTN ? n_attn++ : n_gdn++;
    uint64_t kv = lg_pjrt_type_bytes(kv_type(opt)), conv = lg_config_conv_dim(cfg);
    uint64_t s = lg_pjrt_type_bytes(opt->device ? opt->device->state : LG_PJRT_F32);
    *plan = (lg_backend_plan){.n_snap_part = 1};
    plan->page_bytes = n_attn * LG_PAGE_TOK * cfg->n_kv_head * cfg->d_head * 2 * kv;
    plan->slot_bytes = n_gdn * ((uint64_t)cfg->n_v_head * cfg->d_k * cfg->d_v * s +
                                (LG_CONV_K - 1) * conv * sizeof(float));
    plan->snap_bytes = plan->slot_bytes;
    /* On the device: about the widest activations of a step, and the keys and values that its sequences see, gathered. */
    uint64_t wide = 4 * ((uint64_t)cfg->n_embd + conv + 3ull * cfg->n_head * cfg->d_head +
                         cfg->n_expert_tok * (uint64_t)cfg->n_ff_expert + cfg->n_ff);
    uint64_t seen = (uint64_t)opt->max_seq * lg_pjrt_bucket_pages(opt->n_ctx) * LG_PAGE_TOK *
                    cfg->n_kv_head * cfg->d_head * 2 * kv;
    plan->scratch_bytes =
        rows * wide * sizeof(float) + seen + 2 * out * cfg->n_vocab * sizeof(float) +
        opt->max_seq * (uint64_t)lg_pjrt_bucket_pages(opt->n_ctx) * sizeof(int32_t);
}

static lg_status check(const lg_config *c, const lg_backend_opt *opt, lg_err *err) {
    const lg_pjrt_device *d = opt->device;
    if (!d) return LG_FAIL(err, LG_E_ARG, "device: none is open");
    if (opt->dist || opt->observe)
        return LG_FAIL(err, LG_E_UNSUPPORTED,
                       "device: ranks and observing products are the processor's only");
    if (!kv_type(opt))
        return LG_FAIL(err, LG_E_UNSUPPORTED,
                       "kv: found %s, expected f32, bf16 or f16 on a device",
                       lg_dtype_name(opt->kv));
    if (c->n_expert % d->n)
        return LG_FAIL(err, LG_E_UNSUPPORTED,
                       "devices: found %u, expected a divisor of %u experts", d->n,
                       c->n_expert);
    if (!opt->n_slot || !opt->n_page || !opt->max_tok || !opt->max_seq || !opt->max_out ||
        !opt->n_ctx)
        return LG_FAIL(err, LG_E_ARG, "backend: a size is 0");
    return LG_OK;
}

/* ---- open ---- */

/* Set the pointers inside a, which may only count. */
static void carve(lg_pjrt_be *be, lg_arena *a) {
    size_t n = be->model.n_device, vocab = be->cfg->n_vocab;
    be->arg = lg_arena_take(a, n * be->n_arg, sizeof *be->arg);
    size_t n_out = LG_PJRT_N_POOL + 4 + (be->opt.trace_all ? LG_STEP_MAX_ITEM : 0);
    be->out = lg_arena_take(a, n * n_out, sizeof *be->out);
    be->keep = lg_arena_take(a, be->n_arg, sizeof *be->keep);
    be->unit_arg = lg_arena_take(a, n * (2 * LG_PJRT_N_POOL + 1), sizeof *be->unit_arg);
    be->unit_out = lg_arena_take(a, n * LG_PJRT_N_POOL, sizeof *be->unit_out);
    be->part = lg_arena_take(a, be->max_seq, sizeof *be->part);
    be->done = lg_arena_take(a, be->max_seq, sizeof *be->done);
    be->saved = lg_arena_take(a, be->max_seq, sizeof *be->saved);
    be->out0 = lg_arena_take(a, be->max_seq, sizeof *be->out0);
    be->logits = lg_arena_take(a, n * be->opt.max_out * vocab, sizeof *be->logits);
    be->sample_work = lg_arena_take(a, 1, lg_sample_work_bytes(be->cfg->n_vocab));
}

static lg_status take_memory(lg_pjrt_be *be, lg_err *err) {
    lg_arena a;
    lg_arena_init(&a, NULL, SIZE_MAX);
    carve(be, &a);
    size_t bytes = a.used_bytes;
    be->block = lg_mem_alloc(bytes);
    if (!be->block) return LG_FAIL(err, LG_E_NOMEM, "backend: no memory for %zu bytes", bytes);
    lg_arena_init(&a, be->block, bytes);
    carve(be, &a);
    return LG_OK;
}

/* The signature of all programs, from the smallest. */
static lg_status sign(lg_pjrt_be *be, lg_err *err) {
    const lg_pjrt_bucket least = {.n_one = 1, .n_page = 1, .n_out = 1};
    lg_buf text = {0};
    be->sig = lg_mem_alloc(sizeof *be->sig);
    if (!be->sig) return LG_FAIL(err, LG_E_NOMEM, "program: no memory");
    lg_status st = lg_pjrt_step_text(&be->model, &least, &text, be->sig, err);
    lg_buf_fini(&text);
    LG_TRY(st);
    be->n_arg = be->sig->n_arg;
    for (uint32_t a = 0; a < be->n_arg; a++) {
        const lg_pjrt_arg *arg = &be->sig->arg[a];
        if (arg->role == LG_PJRT_STEP) be->step_arg = a;
        if (arg->role != LG_PJRT_POOL) continue;
        LG_ASSERT(be->n_pool < LG_PJRT_N_POOL && arg->result == (int)be->n_pool);
        be->pool_arg[be->n_pool++] = a;
    }
    return LG_OK;
}

static lg_status fill(lg_pjrt_be *be, const lg_weights *w, lg_err *err) {
    LG_TRY(sign(be, err));
    LG_TRY(take_memory(be, err));
    for (uint32_t a = 0; a < be->n_arg; a++)
        if (be->sig->arg[a].role != LG_PJRT_POOL) be->keep[be->n_keep++] = a;
    LG_TRY(lg_pjrt_load_weights(be, be->dev->source ? be->dev->source : w, err));
    LG_TRY(lg_pjrt_unit_open(be, err));
    return lg_pjrt_bucket_warm(be, err);
}

static void be_close(lg_backend **handle) {
    if (!*handle) return;
    lg_pjrt_be *be = lg_pjrt_be_of(*handle);
    lg_pjrt_client *c = be->dev->client;
    lg_pjrt_counts n = lg_pjrt_be_counts(*handle);
    lg_diag_log(LG_LOG_INFO,
                "device: %llu steps, %llu calls, %llu programs; %llu bytes up, %llu down",
                (unsigned long long)n.n_step, (unsigned long long)n.n_call,
                (unsigned long long)n.n_compiled, (unsigned long long)n.traffic.up_bytes,
                (unsigned long long)n.traffic.down_bytes);
    for (lg_pjrt_program *p = be->program, *next; p; p = next) {
        next = p->next;
        lg_pjrt_exe_close(&p->exe);
        lg_mem_free(p->items);
        lg_mem_free(p);
    }
    lg_pjrt_unit_close(be);
    for (size_t i = 0; be->arg && i < (size_t)be->model.n_device * be->n_arg; i++)
        lg_pjrt_buf_free(c, &be->arg[i]);
    pthread_mutex_destroy(&be->lock);
    lg_mem_free(be->sig);
    lg_mem_free(be->block);
    lg_mem_free(be->step);
    lg_mem_free(be->id);
    lg_mem_free(be->logprob);
    lg_mem_free(be->down);
    lg_mem_free(be);
    *handle = NULL;
}

/* FP8 experts stay what they are where the programs can have them so, or experts are made FP8. */
static void choose_experts(lg_pjrt_be *be, const lg_weights *w) {
    const lg_pjrt_device *d = be->dev;
    uint32_t scale_in = 0;
    if (d->experts == LG_PJRT_EXPERTS_WIDE || !w->cfg.n_expert) return;
    bool fp8 = lg_pjrt_load_has_fp8(w, &scale_in);
    if (d->experts == LG_PJRT_EXPERTS_REGROUPED) {
        be->round_experts = !fp8 || scale_in != d->scale_in;
        be->model.expert = LG_PJRT_F8E4M3FN;
        be->model.scale_in = d->scale_in;
    } else if (fp8) {
        be->model.expert = LG_PJRT_F8E4M3FN;
        be->model.scale_in = scale_in;
    } else if (w->layer[0].expert[0].gate.type == LG_E4M3) {
        lg_diag_log(
            LG_LOG_WARN,
            "device: experts become %s: FP8 is kept when all have scales of whole blocks "
            "of 128 x 128, or of the same number of inputs",
            lg_pjrt_type_name(d->weight));
    }
}

/* Parts of ours in the steps, where the device was opened for them. */
static void choose_parts(lg_pjrt_be *be) {
    lg_pjrt_device_info info[LG_PJRT_MAX_DEV];
    const lg_pjrt_device *d = be->dev;
    if (d->parts == LG_PJRT_PLAIN) return;
    for (uint32_t i = 0; i < d->n; i++) lg_pjrt_client_info(d->client, i, &info[i]);
    lg_kernels_init(&be->kernels, &be->model, info, d->parts == LG_PJRT_TWINS);
    be->model.parts = &be->kernels.parts;
    lg_diag_log(LG_LOG_INFO, "device: %s", lg_kernels_about(&be->kernels));
}

static lg_status be_open(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                         lg_backend **handle, lg_err *err) {
    *handle = NULL;
    LG_TRY(check(&w->cfg, opt, err));
    const lg_pjrt_device *d = opt->device;
    lg_pjrt_be *be = lg_mem_alloc(sizeof *be);
    if (!be) return LG_FAIL(err, LG_E_NOMEM, "backend: no memory");
    *be = (lg_pjrt_be){.dev = opt->device,
                       .cfg = &w->cfg,
                       .opt = *opt,
                       .pool = pool,
                       .max_seq = opt->max_seq * d->n};
    be->model = (lg_pjrt_model){.cfg = &w->cfg,
                                .n_device = d->n,
                                .weight = d->weight,
                                .act_fp8 = d->act_fp8,
                                .kv = kv_type(opt),
                                .state = d->state,
                                .n_slot = opt->n_slot + opt->n_snap + 1,
                                .n_page = opt->n_page + 1,
                                .n_ctx = opt->n_ctx,
                                .n_sample_vocab = opt->n_sample_vocab,
                                .unrolled = opt->trace && opt->trace_all,
                                .tiled = d->tiled};
    choose_experts(be, d->source ? d->source : w);
    choose_parts(be);
    pthread_mutex_init(&be->lock, NULL);
    *handle = (lg_backend *)(void *)be;
    lg_status st = fill(be, w, err);
    if (st != LG_OK) be_close(handle);
    return st;
}

lg_pjrt_counts lg_pjrt_be_counts(lg_backend *handle) {
    const lg_pjrt_be *be = lg_pjrt_be_of(handle);
    return (lg_pjrt_counts){.traffic = lg_pjrt_client_traffic(be->dev->client),
                            .n_step = be->n_step,
                            .n_call = be->n_call,
                            .n_compiled = be->n_compiled};
}

/* ---- steps, snapshots, pages ---- */

/* A device that failed is not asked again. */
static void note(lg_pjrt_be *be, lg_status st, const lg_err *err) {
    if (st == LG_OK) return;
    if (!be->lost) lg_diag_log(LG_LOG_ERROR, "device: %s", err->msg);
    be->lost = true;
}

static lg_status be_step(lg_backend *handle, const lg_batch *batch, lg_step_out *out) {
    lg_pjrt_be *be = lg_pjrt_be_of(handle);
    lg_err err = {0};
    if (be->lost) return LG_E_BACKEND;
    pthread_mutex_lock(&be->lock);
    lg_status st = lg_pjrt_round_step(be, batch, out, &err);
    be->n_step++;
    pthread_mutex_unlock(&be->lock);
    note(be, st, &err);
    return st == LG_OK ? LG_OK : LG_E_BACKEND;
}

static void copy(lg_pjrt_be *be, uint32_t owner, bool state, uint32_t from, uint32_t to) {
    lg_err err = {0};
    LG_ASSERT(owner < be->model.n_device);
    if (be->lost) return;
    pthread_mutex_lock(&be->lock);
    note(be, lg_pjrt_unit_copy(be, owner, state, from, to, &err), &err);
    pthread_mutex_unlock(&be->lock);
}

static void be_save(lg_backend *handle, uint32_t owner, uint32_t slot, uint32_t n_tok,
                    uint32_t snap) {
    lg_pjrt_be *be = lg_pjrt_be_of(handle);
    LG_ASSERT(slot < be->opt.n_slot && snap < be->opt.n_snap && n_tok > 0);
    copy(be, owner, true, slot, be->opt.n_slot + snap);
}

static void be_load(lg_backend *handle, uint32_t owner, uint32_t slot, uint32_t n_tok,
                    uint32_t snap) {
    lg_pjrt_be *be = lg_pjrt_be_of(handle);
    LG_ASSERT(slot < be->opt.n_slot && snap < be->opt.n_snap && n_tok > 0);
    copy(be, owner, true, be->opt.n_slot + snap, slot);
}

static void be_copy_page(lg_backend *handle, uint32_t owner, uint32_t from, uint32_t to) {
    lg_pjrt_be *be = lg_pjrt_be_of(handle);
    LG_ASSERT(from < be->opt.n_page && to < be->opt.n_page);
    copy(be, owner, false, from, to);
}

/* A unit as bytes; a device that failed gives zeros. */
static void get_unit(lg_pjrt_be *be, uint32_t owner, bool state, uint32_t at, void *to) {
    lg_err err = {0};
    LG_ASSERT(owner < be->model.n_device);
    pthread_mutex_lock(&be->lock);
    lg_status st = be->lost ? LG_E_BACKEND : lg_pjrt_unit_get(be, owner, state, at, to, &err);
    pthread_mutex_unlock(&be->lock);
    if (st != LG_OK) memset(to, 0, lg_pjrt_unit_bytes(be, state));
    if (!be->lost) note(be, st, &err);
}

static void put_unit(lg_pjrt_be *be, uint32_t owner, bool state, uint32_t at,
                     const void *from) {
    lg_err err = {0};
    LG_ASSERT(owner < be->model.n_device);
    if (be->lost) return;
    pthread_mutex_lock(&be->lock);
    note(be, lg_pjrt_unit_put(be, owner, state, at, from, &err), &err);
    pthread_mutex_unlock(&be->lock);
}

/* Backends are opened writable; get_ calls leave what they read as it is. */
static lg_pjrt_be *of_const(const lg_backend *handle) {
    return (lg_pjrt_be *)(uintptr_t)handle;
}

static void be_get_page(const lg_backend *handle, uint32_t owner, uint32_t page, uint32_t n_tok,
                        void *to) {
    lg_pjrt_be *be = of_const(handle);
    LG_ASSERT(page < be->opt.n_page && n_tok <= LG_PAGE_TOK);
    get_unit(be, owner, false, page, to);
    uint8_t *p = to;
    for (uint32_t i = 0; i < be->n_pool; i++) {
        const lg_pjrt_arg *a = &be->sig->arg[be->pool_arg[i]];
        if (a->pool != LG_PJRT_POOL_KEY && a->pool != LG_PJRT_POOL_VALUE) continue;
        /* [layers][1][LG_PAGE_TOK][...] */
        LG_ASSERT(a->unit_dim == 1 && a->dims.dim[2] == LG_PAGE_TOK);
        size_t row = lg_pjrt_type_bytes(a->dims.type);
        for (uint32_t k = 3; k < a->dims.rank; k++) row *= (size_t)a->dims.dim[k];
        for (int64_t l = 0; l < a->dims.dim[0]; l++, p += LG_PAGE_TOK * row)
            memset(p + n_tok * row, 0, (LG_PAGE_TOK - n_tok) * row);
    }
}

static void be_put_page(lg_backend *handle, uint32_t owner, uint32_t page, const void *from) {
    lg_pjrt_be *be = lg_pjrt_be_of(handle);
    LG_ASSERT(page < be->opt.n_page);
    put_unit(be, owner, false, page, from);
}

static void be_get_snap(const lg_backend *handle, uint32_t owner, uint32_t snap, uint32_t n_tok,
                        uint32_t part, void *to) {
    lg_pjrt_be *be = of_const(handle);
    LG_ASSERT(snap < be->opt.n_snap && part == 0 && n_tok > 0);
    get_unit(be, owner, true, be->opt.n_slot + snap, to);
}

static void be_put_snap(lg_backend *handle, uint32_t owner, uint32_t snap, uint32_t part,
                        const void *from) {
    lg_pjrt_be *be = lg_pjrt_be_of(handle);
    LG_ASSERT(snap < be->opt.n_snap && part == 0);
    put_unit(be, owner, true, be->opt.n_slot + snap, from);
}

const lg_backend_ops *lg_backend_pjrt(void) {
    static const lg_backend_ops ops = {.plan = plan_bytes,
                                       .open = be_open,
                                       .close = be_close,
                                       .step = be_step,
                                       .save = be_save,
                                       .load = be_load,
                                       .copy_page = be_copy_page,
                                       .get_page = be_get_page,
                                       .put_page = be_put_page,
                                       .get_snap = be_get_snap,
                                       .put_snap = be_put_snap};
    return &ops;
}
