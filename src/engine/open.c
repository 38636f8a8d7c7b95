/* open.c - lg_open: from a model folder or GGUF file to an engine that stands on it.
 *
 * In:  lg_options.   Out: lg_engine.   Order: threads, tokenizer, shapes, pool sizes, weights, backend; so that a model that
 * does not fit is refused before any of it is read.
 * Thread: the engine's.  Memory: what is opened here lives until lg_close.  Test: tests/unit/test_eval.c */
#include "backend/pjrt/be.h"
#include "engine/engine.h"
#include "engine/ranks.h"
#include "model/identity.h"
#include "model/text/text.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What an engine opened from a folder owns. */
typedef struct folder {
    lg_pool *pool;
    lg_text *text;
    lg_weights *w;          /* on a device: shapes alone */
    lg_pjrt_device *device; /* NULL: this processor */
    char name[128];
} folder;

static void release(void *ctx) {
    folder *f = ctx;
    lg_weights_close(&f->w);
    lg_pjrt_device_close(&f->device);
    lg_text_close(&f->text);
    lg_pool_close(&f->pool);
    lg_mem_free(f);
}

/* Last part of a path. */
static void set_name(folder *f, const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    snprintf(f->name, sizeof f->name, "%.*s", (int)(end - begin), path + begin);
}

/* Bytes that there are for weights and pools: on a device, its own. */
static uint64_t room_of(const lg_options *opt, const lg_pjrt_device *d) {
    if (opt->memory_bytes) return opt->memory_bytes;
    uint64_t there = d ? lg_pjrt_device_memory(d) : 0;
    if (there) return there - there / 10;
    return lg_budget_machine("") / (d ? d->n : 1);
}

/* Choose sizes from shapes alone, before the weights are read. */
static lg_status plan(const lg_options *opt, folder *f, const lg_backend_ops *ops, lg_budget *b,
                      lg_err *err) {
    lg_weights *w = NULL;
    LG_TRY(lg_weights_check(opt->model_path, &w, err));
    uint32_t n_token = lg_tokenizer_n_id(lg_text_tokenizer(f->text));
    uint64_t bytes = room_of(opt, f->device);
    if (f->device) w->weight_bytes = lg_pjrt_device_weight_bytes(f->device, w);
    lg_status st = LG_OK;
    if (n_token > w->cfg.n_vocab)
        st = LG_FAIL(err, LG_E_FORMAT,
                     "%s: the tokenizer has %u ids, expected at most vocab_size (%u)",
                     opt->model_path, n_token, w->cfg.n_vocab);
    if (st == LG_OK)
        st = lg_budget_fit_on(&w->cfg, opt, w->weight_bytes, bytes, opt->memory_bytes == 0,
                              n_token, lg_pool_n_thread(f->pool), ops->plan, NULL, f->device, b,
                              err);
    b->stall_us = opt->max_stall_us;
    if (f->device && st == LG_OK)
        f->w = w;
    else
        lg_weights_close(&w);
    return st;
}

/* What the bits of kept texts depend on: the weights, this build (with the processor features that it uses), how products are
 * computed and how keys and values are stored; with ranks whose exchange is not strict, which ranks there are. */
static lg_status identify(const lg_options *opt, const lg_budget *b, lg_disk_opt *disk,
                          lg_err *err) {
    const lg_pjrt_device *d = b->opt.device;
    uint64_t device = d ? lg_pjrt_device_build(d) : 0;
    uint8_t weights[LG_IDENTITY_BYTES];
    crypto_generichash_state s;
    const char *build = lg_version(), *level = lg_kern_get()->name;
    const uint8_t how[2] = {b->opt.exact, (uint8_t)b->opt.kv};
    const lg_ranks *r = opt->ranks;
    *disk = (lg_disk_opt){.dir = opt->cache_dir, .limit_bytes = opt->cache_disk_bytes};
    if (!opt->cache_dir) return LG_OK;
    LG_TRY(lg_identity_of(opt->model_path, weights, err));
    crypto_generichash_init(&s, NULL, 0, sizeof disk->model);
    crypto_generichash_update(&s, weights, sizeof weights);
    crypto_generichash_update(&s, (const uint8_t *)build, strlen(build) + 1);
    crypto_generichash_update(&s, (const uint8_t *)level, strlen(level) + 1);
    crypto_generichash_update(&s, how, sizeof how);
    crypto_generichash_update(&s, (const uint8_t *)&device, sizeof device);
    if (r &&
        r->dist.how.kind != LG_EXCHANGE_STRICT) { /* sums are rounded as ranks and places are */
        const uint64_t sums[4] = {r->comm.n_rank, (uint64_t)r->dist.how.kind,
                                  (uint64_t)r->dist.how.wire, lg_place_hash(&r->place)};
        crypto_generichash_update(&s, (const uint8_t *)sums, sizeof sums);
    }
    crypto_generichash_final(&s, disk->model, sizeof disk->model);
    return LG_OK;
}

void lg_options_init(lg_options *opt) {
    *opt = (lg_options){0};
}

lg_status lg_open(const lg_options *opt, lg_engine **eng, lg_err *err) {
    *eng = NULL;
    if (!opt->model_path) return LG_FAIL(err, LG_E_ARG, "model_path: found nothing");
    folder *f = lg_mem_alloc(sizeof *f);
    if (!f) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", opt->model_path);
    set_name(f, opt->model_path);
    lg_engine_parts parts = {
        .ops = lg_backend_cpu(), .name = f->name, .release = release, .ctx = f};
    lg_weights *loaded = NULL; /* until the device has them */
    lg_status st;
    int n_thread = opt->n_thread;
    if (opt->device && strcmp(opt->device, "cpu") != 0) {
        if (opt->ranks)
            LG_TRY_GOTO(
                LG_FAIL(err, LG_E_ARG, "device: found '%s' together with ranks", opt->device),
                st, fail);
        LG_TRY_GOTO(lg_pjrt_device_open(opt->device, &f->device, err), st, fail);
    }
    if (opt->ranks && n_thread == 0) n_thread = lg_ranks_n_thread(opt->ranks);
    LG_TRY_GOTO(lg_pool_open(n_thread, &f->pool, err), st, fail);
    LG_TRY_GOTO(lg_text_open(opt->model_path, &f->text, err), st, fail);
    if (opt->ranks) {
        uint32_t n_token = lg_tokenizer_n_id(lg_text_tokenizer(f->text));
        LG_TRY_GOTO(lg_ranks_load(opt->ranks, opt, f->pool, n_token, &f->w, &parts.budget, err),
                    st, fail);
        parts.ops = lg_ranks_ops();
        parts.n_owner = opt->ranks->comm.n_rank;
        if (opt->ranks->opt.how.divide ==
            LG_DIVIDE_OFF) /* else one prompt has all ranks work */
            parts.hold_steps = opt->ranks->opt.hold_steps;
    } else {
        if (f->device) {
            parts.ops = lg_backend_pjrt();
            parts.n_owner = f->device->n;
        }
        LG_TRY_GOTO(plan(opt, f, parts.ops, &parts.budget, err), st, fail);
        LG_TRY_GOTO(lg_weights_open_packed(opt->model_path, NULL, opt->pack_dir, f->pool,
                                           opt->progress, opt->progress_ctx,
                                           f->device ? &loaded : &f->w, err),
                    st, fail);
    }
    if (f->device) f->device->source = loaded;
    LG_TRY_GOTO(identify(opt, &parts.budget, &parts.disk, err), st, fail);
    parts.w = f->w;
    parts.pool = f->pool;
    parts.n_thread = lg_pool_n_thread(f->pool);
    parts.text = f->text;
    parts.tok = lg_text_tokenizer(f->text);
    LG_TRY_GOTO(lg_engine_open(&parts, eng, err), st, fail);
    lg_weights_close(&loaded);
    return LG_OK;
fail:
    lg_weights_close(&loaded);
    release(f);
    return st;
}
