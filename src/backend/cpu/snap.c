/* snap.c - snapshots: a slot's state kept aside and brought back, bit for bit.
 *
 * In/out: slots, snapshots, pages.  A snapshot has the layout of a slot, and the same rule: S is there from position
 * LG_GDN_C on, everything else from position 1 on; what was not written is not copied into use.
 * Thread: engine and pool.  Memory: the backend's pools.  Test: tests/unit/test_exact.c, tests/unit/test_reuse.c */
#include "backend/cpu/cpu.h"

#include <string.h>

static void copy(const float *from, float *to, size_t at, size_t n) {
    memcpy(to + at, from + at, n * sizeof *to);
}

void lg_cpu_snap_head(const lg_backend *be, uint32_t kh, uint32_t n_tok, const float *from,
                      float *to) {
    const lg_config *c = be->cfg;
    const lg_cpu_layout *lay = &be->lay;
    size_t dk = c->d_k, dv = c->d_v, keys = (size_t)c->n_k_head * dk;
    size_t width = lg_config_conv_dim(c), open = LG_GDN_C;
    bool is_open = n_tok % LG_GDN_C != 0;
    if (is_open) copy(from, to, lay->open_k + kh * dk * open, dk * open);
    for (size_t row = lay->conv; row < lay->conv + (LG_CONV_K - 1) * width; row += width) {
        copy(from, to, row + kh * dk, dk);
        copy(from, to, row + keys + kh * dk, dk);
    }
    for (uint32_t j = 0; j < c->n_v_head / c->n_k_head; j++) {
        size_t vh = lg_config_v_head(c, kh, j);
        if (n_tok >= LG_GDN_C) copy(from, to, lay->s + vh * dk * dv, dk * dv);
        if (is_open) copy(from, to, lay->open_d + vh * dv * open, dv * open);
        if (is_open) copy(from, to, lay->open_g + vh * open, open);
        for (size_t row = lay->conv; row < lay->conv + (LG_CONV_K - 1) * width; row += width)
            copy(from, to, row + 2 * keys + vh * dv, dv);
    }
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

void lg_backend_save(lg_backend *be, uint32_t slot, uint32_t n_tok, uint32_t snap) {
    LG_ASSERT(slot < be->opt.n_slot && snap < be->opt.n_snap);
    snap_all(be, n_tok, be->slot + slot * be->lay.slot, be->snap + snap * be->lay.slot);
}

void lg_backend_load(lg_backend *be, uint32_t slot, uint32_t n_tok, uint32_t snap) {
    LG_ASSERT(slot < be->opt.n_slot && snap < be->opt.n_snap);
    snap_all(be, n_tok, be->snap + snap * be->lay.slot, be->slot + slot * be->lay.slot);
}

void lg_backend_copy_page(lg_backend *be, uint32_t from, uint32_t to) {
    LG_ASSERT(from < be->opt.n_page && to < be->opt.n_page);
    memcpy(be->page + to * be->lay.page, be->page + from * be->lay.page,
           be->lay.page * sizeof(float));
}
