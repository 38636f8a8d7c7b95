/* fake_backend.c - see fake_backend.h. */
#include "fake_backend.h"
#include "base/clock.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

struct lg_backend {
    fake_model *m;
    lg_backend_opt opt;
    uint32_t n_owner;
    uint32_t *page;    /* [n_owner][n_page][LG_PAGE_TOK] */
    uint64_t *slot;    /* [n_owner][n_slot] hash of the history */
    uint64_t *snap;    /* [n_owner][n_snap] */
    uint32_t *history; /* [n_ctx_max] */
    float *logits;     /* [max_out][n_vocab] */
    void *work;
};

static double now_us = 1e6;

uint64_t fake_clock_us(void) {
    return (uint64_t)now_us;
}

static uint64_t hash(uint64_t h, uint32_t id) {
    return lg_num_rng(h, 3, id, 1);
}

void fake_logits(const fake_model *m, const uint32_t *ids, uint32_t n_id, uint32_t n_token,
                 float *logits) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < n_id; i++) h = hash(h, ids[i]);
    for (uint32_t i = 0; i < m->w.cfg.n_vocab; i++) {
        uint32_t bits = ((uint32_t)h ^ i * 0x9e3779b1u) * 0x85ebca6bu;
        logits[i] = i < n_token ? (float)(bits >> 8) * 0x1p-22f : 100.0f;
    }
    logits[m->next(m, ids, n_id)] += 10.0f;
    if (m->nan_after && n_id == m->nan_after) logits[5] = NAN;
}

static void fake_plan(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                      lg_backend_plan *plan) {
    (void)n_thread;
    plan->page_bytes = 1000;
    plan->slot_bytes = 2000;
    plan->snap_bytes = 2000;
    plan->n_snap_part = 2;
    plan->scratch_bytes = 4 * (uint64_t)opt->max_out * cfg->n_vocab;
}

static void fake_close(lg_backend **be) {
    if (!*be) return;
    lg_mem_free((*be)->page);
    lg_mem_free((*be)->slot);
    lg_mem_free((*be)->snap);
    lg_mem_free((*be)->history);
    lg_mem_free((*be)->logits);
    lg_mem_free((*be)->work);
    LG_FREE(*be);
}

static lg_status fake_open(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                           lg_backend **be, lg_err *err) {
    (void)pool;
    lg_backend *b = *be = lg_mem_alloc(sizeof *b);
    if (!b) return LG_FAIL(err, LG_E_NOMEM, "fake");
    b->m = (fake_model *)(void *)(uintptr_t)w;
    b->opt = *opt;
    b->n_owner = b->m->n_owner ? b->m->n_owner : 1;
    b->page = lg_mem_calloc((size_t)b->n_owner * opt->n_page * LG_PAGE_TOK, sizeof *b->page);
    b->slot = lg_mem_calloc((size_t)b->n_owner * opt->n_slot, sizeof *b->slot);
    b->snap = lg_mem_calloc((size_t)b->n_owner * opt->n_snap, sizeof *b->snap);
    b->history = lg_mem_calloc(w->cfg.n_ctx_max, sizeof *b->history);
    b->logits =
        lg_mem_calloc((size_t)b->n_owner * opt->max_out * w->cfg.n_vocab, sizeof *b->logits);
    b->work = lg_mem_alloc(lg_sample_work_bytes(w->cfg.n_vocab));
    if (b->page && b->slot && b->snap && b->history && b->logits && b->work) return LG_OK;
    fake_close(be);
    return LG_FAIL(err, LG_E_NOMEM, "fake");
}

/* The pools of one owner. */
static uint32_t *page_of(const lg_backend *b, uint32_t owner, uint32_t page) {
    LG_ASSERT(owner < b->n_owner && page < b->opt.n_page);
    return b->page + ((size_t)owner * b->opt.n_page + page) * LG_PAGE_TOK;
}

static uint64_t *slot_of(const lg_backend *b, uint32_t owner, uint32_t slot) {
    LG_ASSERT(owner < b->n_owner && slot < b->opt.n_slot);
    return b->slot + (size_t)owner * b->opt.n_slot + slot;
}

static uint64_t *snap_of(const lg_backend *b, uint32_t owner, uint32_t snap) {
    LG_ASSERT(owner < b->n_owner && snap < b->opt.n_snap);
    return b->snap + (size_t)owner * b->opt.n_snap + snap;
}

/* Store a sequence's rows, check its slot against the history in its pages, sample if asked. */
static uint32_t run_seq(lg_backend *b, const lg_batch *batch, const lg_batch_seq *s,
                        float *logits, lg_sampled *sampled) {
    const uint32_t *page = batch->page + s->page0;
    uint32_t end = s->pos + s->n_tok;
    const lg_batch_save *save = s->save, *save_end = save + s->n_save;
    uint64_t *slot = slot_of(b, s->owner, s->slot);
    if (s->pos == 0) *slot = 0;
    for (uint32_t i = 0; i < s->n_tok; i++) {
        uint32_t pos = s->pos + i, id = batch->tok[s->tok0 + i];
        page_of(b, s->owner, page[pos / LG_PAGE_TOK])[pos % LG_PAGE_TOK] = id;
        *slot = hash(*slot, id);
        if (save == save_end || save->n_row != i + 1) continue;
        *snap_of(b, s->owner, save++->snap) = *slot;
    }
    LG_ASSERT(save == save_end);
    uint64_t h = 0;
    for (uint32_t pos = 0; pos < end; pos++) {
        uint32_t id = page_of(b, s->owner, page[pos / LG_PAGE_TOK])[pos % LG_PAGE_TOK];
        b->history[pos] = id;
        h = hash(h, id);
    }
    LG_ASSERT(h == *slot);
    if (!s->n_out) return 0;
    fake_logits(b->m, b->history, end, b->opt.n_sample_vocab, logits);
    if (s->sampler)
        lg_sample(s->sampler, logits, b->m->w.cfg.n_vocab, b->opt.n_sample_vocab, b->work,
                  sampled);
    return 1;
}

/* Move the clock on. */
static void spend(const fake_model *m, const lg_batch *batch) {
    now_us += m->pace.step;
    for (uint32_t i = 0; i < batch->n_seq; i++) {
        double n = batch->seq[i].n_tok, before = batch->seq[i].pos + n / 2;
        now_us += n * (n > 1 ? m->pace.prefill : m->pace.decode) + n * before * m->pace.depth;
    }
}

static lg_status fake_step(lg_backend *b, const lg_batch *batch, lg_step_out *out) {
    fake_model *m = b->m;
    m->n_seq = batch->n_seq;
    m->n_tok = batch->n_tok;
    if (++m->n_step == m->fail_at_step) return LG_E_BACKEND;
    LG_ASSERT(batch->n_tok <= b->opt.max_tok && batch->n_seq <= b->opt.max_seq * b->n_owner);
    uint32_t n_out = 0, n_tok = 0;
    for (uint32_t i = 0; i < batch->n_seq; i++) {
        const lg_batch_seq *s = &batch->seq[i];
        LG_ASSERT(s->n_tok >= 1 && s->tok0 == n_tok);
        LG_ASSERT(n_out < b->opt.max_out * b->n_owner || !s->n_out);
        if (i < LG_COUNT(m->seq)) {
            m->seq[i].owner = s->owner;
            m->seq[i].slot = s->slot;
            m->seq[i].pos = s->pos;
            m->seq[i].n_tok = s->n_tok;
        }
        n_tok += s->n_tok;
        n_out += run_seq(b, batch, s, b->logits + (size_t)n_out * m->w.cfg.n_vocab,
                         &out->sampled[i]);
    }
    LG_ASSERT(n_tok == batch->n_tok);
    spend(m, batch);
    out->logits = b->logits;
    out->ld_logits = m->w.cfg.n_vocab;
    return LG_OK;
}

static void fake_save(lg_backend *b, uint32_t owner, uint32_t slot, uint32_t n_tok,
                      uint32_t snap) {
    (void)n_tok;
    *snap_of(b, owner, snap) = *slot_of(b, owner, slot);
}

static void fake_load(lg_backend *b, uint32_t owner, uint32_t slot, uint32_t n_tok,
                      uint32_t snap) {
    (void)n_tok;
    *slot_of(b, owner, slot) = *snap_of(b, owner, snap);
}

static void fake_copy_page(lg_backend *b, uint32_t owner, uint32_t from, uint32_t to) {
    memcpy(page_of(b, owner, to), page_of(b, owner, from), LG_PAGE_TOK * sizeof *b->page);
}

static void fake_get_page(const lg_backend *b, uint32_t owner, uint32_t page, uint32_t n_tok,
                          void *to) {
    memset(to, 0, 1000);
    if (b->m->get_page_us) lg_clock_sleep_us(b->m->get_page_us);
    memcpy(to, page_of(b, owner, page), n_tok * sizeof *b->page);
}

static void fake_put_page(lg_backend *b, uint32_t owner, uint32_t page, const void *from) {
    memcpy(page_of(b, owner, page), from, LG_PAGE_TOK * sizeof *b->page);
}

static void fake_get_snap(const lg_backend *b, uint32_t owner, uint32_t snap, uint32_t n_tok,
                          uint32_t part, void *to) {
    LG_ASSERT(n_tok > 0 && part < 2);
    memset(to, 0, 1000);
    if (part) memcpy(to, snap_of(b, owner, snap), sizeof *b->snap);
}

static void fake_put_snap(lg_backend *b, uint32_t owner, uint32_t snap, uint32_t part,
                          const void *from) {
    if (part) memcpy(snap_of(b, owner, snap), from, sizeof *b->snap);
}

const lg_backend_ops *fake_ops(void) {
    static const lg_backend_ops ops = {
        fake_plan,      fake_open,     fake_close,    fake_step,     fake_save,     fake_load,
        fake_copy_page, fake_get_page, fake_put_page, fake_get_snap, fake_put_snap, NULL};
    return &ops;
}
