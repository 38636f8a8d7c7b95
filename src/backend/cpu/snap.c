/* snap.c - snapshots: a slot's state kept aside and brought back, bit for bit.
 *
 * In/out: slots, snapshots, pages.  A snapshot has the layout of a slot, and the same rule: S is there from position
 * LG_GDN_C on, everything else from position 1 on; what was not written is not copied into use.  As bytes for files, pages and
 * snapshots have the layout of memory.
 * Thread: engine and pool.  Memory: the backend's pools.  Test: tests/unit/test_exact.c, tests/unit/test_reuse.c */
#include "backend/cpu/cpu.h"

#include <string.h>

/* A run of floats inside one layer of a slot, given to somebody. */
typedef void run_fn(void *ctx, size_t at, size_t n);

/* All runs of key head kh, in an order that never changes. */
static void each_run(const lg_backend *be, uint32_t kh, uint32_t n_tok, run_fn *give,
                     void *ctx) {
    const lg_config *c = be->cfg;
    const lg_cpu_layout *lay = &be->lay;
    size_t dk = c->d_k, dv = c->d_v, keys = (size_t)c->n_k_head * dk;
    size_t width = lg_config_conv_dim(c), open = LG_GDN_C;
    bool is_open = n_tok % LG_GDN_C != 0;
    if (is_open) give(ctx, lay->open_k + kh * dk * open, dk * open);
    for (size_t row = lay->conv; row < lay->conv + (LG_CONV_K - 1) * width; row += width) {
        give(ctx, row + kh * dk, dk);
        give(ctx, row + keys + kh * dk, dk);
    }
    for (uint32_t j = 0; j < c->n_v_head / c->n_k_head; j++) {
        size_t vh = lg_config_v_head(c, kh, j);
        if (n_tok >= LG_GDN_C) give(ctx, lay->s + vh * dk * dv, dk * dv);
        if (is_open) give(ctx, lay->open_d + vh * dv * open, dv * open);
        if (is_open) give(ctx, lay->open_g + vh * open, open);
        for (size_t row = lay->conv; row < lay->conv + (LG_CONV_K - 1) * width; row += width)
            give(ctx, row + 2 * keys + vh * dv, dv);
    }
}

typedef struct copy_ctx {
    const float *from;
    float *to;
    size_t n; /* packing: words so far */
} copy_ctx;

static void copy_run(void *ctx, size_t at, size_t n) {
    copy_ctx *c = ctx;
    memcpy(c->to + at, c->from + at, n * sizeof *c->to);
}

static void pack_run(void *ctx, size_t at, size_t n) {
    copy_ctx *c = ctx;
    if (c->to) memcpy(c->to + c->n, c->from + at, n * sizeof *c->to);
    c->n += n;
}

static void unpack_run(void *ctx, size_t at, size_t n) {
    copy_ctx *c = ctx;
    memcpy(c->to + at, c->from + c->n, n * sizeof *c->to);
    c->n += n;
}

void lg_cpu_snap_head(const lg_backend *be, uint32_t kh, uint32_t n_tok, const float *from,
                      float *to) {
    copy_ctx c = {from, to, 0};
    each_run(be, kh, n_tok, copy_run, &c);
}

size_t lg_cpu_snap_pack(const lg_backend *be, uint32_t kh, uint32_t n_tok, const float *from,
                        uint32_t *words) {
    copy_ctx c = {from, (float *)(void *)words, 0};
    each_run(be, kh, n_tok, pack_run, &c);
    return c.n;
}

void lg_cpu_snap_unpack(const lg_backend *be, uint32_t kh, uint32_t n_tok, float *to,
                        const uint32_t *words) {
    copy_ctx c = {(const float *)(const void *)words, to, 0};
    each_run(be, kh, n_tok, unpack_run, &c);
}

typedef struct snap_ctx {
    const lg_backend *be;
    uint32_t n_tok;
    const float *from; /* a whole slot or snapshot */
    float *to;
} snap_ctx;

static void snap_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const snap_ctx *c = ctx;
    size_t n_head = c->be->cfg->n_k_head, at = task / n_head * c->be->lay.gdn;
    lg_cpu_snap_head(c->be, (uint32_t)(task % n_head), c->n_tok, c->from + at, c->to + at);
}

static void snap_all(lg_backend *be, uint32_t n_tok, const float *from, float *to) {
    LG_ASSERT(n_tok > 0);
    snap_ctx c = {be, n_tok, from, to};
    lg_cpu_run(be, (size_t)be->lay.n_gdn * be->cfg->n_k_head, be->lay.slot, snap_task, &c);
}

void lg_backend_save(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                     uint32_t snap) {
    LG_ASSERT(owner == 0 && slot < be->opt.n_slot && snap < be->opt.n_snap);
    snap_all(be, n_tok, be->slot + slot * be->lay.slot, be->snap + snap * be->lay.slot);
}

void lg_backend_load(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                     uint32_t snap) {
    LG_ASSERT(owner == 0 && slot < be->opt.n_slot && snap < be->opt.n_snap);
    snap_all(be, n_tok, be->snap + snap * be->lay.slot, be->slot + slot * be->lay.slot);
}

void lg_backend_copy_page(lg_backend *be, uint32_t owner, uint32_t from, uint32_t to) {
    LG_ASSERT(owner == 0 && from < be->opt.n_page && to < be->opt.n_page);
    memcpy(be->page + to * be->lay.page, be->page + from * be->lay.page, be->lay.page);
}

/* ---- as bytes ---- */

void lg_backend_get_page(const lg_backend *be, uint32_t owner, uint32_t page, uint32_t n_tok,
                         void *to) {
    LG_ASSERT(owner == 0 && page < be->opt.n_page);
    const uint8_t *from = be->page + page * be->lay.page;
    for (size_t at = 0; at < be->lay.page; at += be->lay.kv)
        lg_kv_copy(be->opt.kv, be->cfg->d_head, n_tok, from + at, (uint8_t *)to + at);
}

void lg_backend_put_page(lg_backend *be, uint32_t owner, uint32_t page, const void *from) {
    LG_ASSERT(owner == 0 && page < be->opt.n_page);
    memcpy(be->page + page * be->lay.page, from, be->lay.page);
}

/* Zero what open rows that are not there yet left in one layer. */
static void clear_open(const lg_backend *be, uint32_t n_tok, float *to) {
    const lg_config *c = be->cfg;
    size_t n_open = n_tok % LG_GDN_C, left = LG_GDN_C - n_open;
    if (n_open == 0) return;
    float *k = to + be->lay.open_k, *d = to + be->lay.open_d, *g = to + be->lay.open_g;
    for (size_t i = 0; i < (size_t)c->n_k_head * c->d_k; i++)
        memset(k + i * LG_GDN_C + n_open, 0, left * sizeof *k);
    for (size_t vh = 0; vh < c->n_v_head; vh++) {
        memset(d + (vh * LG_GDN_C + n_open) * c->d_v, 0, left * c->d_v * sizeof *d);
        memset(g + vh * LG_GDN_C + n_open, 0, left * sizeof *g);
    }
}

void lg_backend_get_snap(const lg_backend *be, uint32_t owner, uint32_t snap, uint32_t n_tok,
                         uint32_t part, void *to) {
    LG_ASSERT(owner == 0 && snap < be->opt.n_snap && part < be->lay.n_gdn && n_tok > 0);
    memset(to, 0, be->lay.gdn * sizeof(float));
    for (uint32_t kh = 0; kh < be->cfg->n_k_head; kh++)
        lg_cpu_snap_head(be, kh, n_tok, be->snap + snap * be->lay.slot + part * be->lay.gdn,
                         to);
    clear_open(be, n_tok, to);
}

void lg_backend_put_snap(lg_backend *be, uint32_t owner, uint32_t snap, uint32_t part,
                         const void *from) {
    LG_ASSERT(owner == 0 && snap < be->opt.n_snap && part < be->lay.n_gdn);
    memcpy(be->snap + snap * be->lay.slot + part * be->lay.gdn, from,
           be->lay.gdn * sizeof(float));
}
