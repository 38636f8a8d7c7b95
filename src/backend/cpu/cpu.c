/* cpu.c - plan, open and close of the CPU backend, and the walk of one step over the layers.
 *
 * In: lg_weights, a batch of rows.  Out: logits rows and sampled tokens; pages and slots of the batch's sequences.
 * The function that carves the scratch also counts it (a NULL arena), so the plan is what open takes.
 * Invariant: page and slot memory is read only where this sequence has written it.
 * Thread: engine, and the pool inside stages.  Test: tests/unit/test_golden.c, tests/unit/test_exact.c */
#include "backend/cpu/cpu.h"

#include "base/num.h"
#include "kern/vmath.h"

#include <string.h>

#define ROWS_PER_TASK 8

static size_t round16(size_t n) {
    return (n + 15) / 16 * 16;
}

void lg_cpu_layout_of(const lg_config *c, lg_dtype kv, lg_cpu_layout *lay) {
    *lay = (lg_cpu_layout){0};
    for (uint32_t i = 0; i < c->n_layer; i++)
        lay->idx[i] = c->layer[i] == LG_LAYER_ATTN ? lay->n_attn++ : lay->n_gdn++;
    lay->kv = lg_kv_bytes(kv, c->d_head);
    lay->page = (size_t)lay->n_attn * c->n_kv_head * lay->kv;
    size_t k = (size_t)c->n_k_head * c->d_k, v = (size_t)c->n_v_head * c->d_v;
    lay->s = 0;
    lay->open_k = lay->s + round16(v * c->d_k);
    lay->open_d = lay->open_k + round16(k * LG_GDN_C);
    lay->open_g = lay->open_d + round16(v * LG_GDN_C);
    lay->conv = lay->open_g + round16((size_t)c->n_v_head * LG_GDN_C);
    lay->gdn = lay->conv + round16((LG_CONV_K - 1) * (size_t)lg_config_conv_dim(c));
    lay->slot = lay->n_gdn * lay->gdn;
}

/* Largest row that needs gathering or converting before it is traced. */
static size_t trace_width(const lg_config *c) {
    size_t heads = (size_t)c->n_head * c->d_head, keys = (size_t)c->n_k_head * c->d_k;
    size_t vals = (size_t)c->n_v_head * c->d_v, most = heads > keys ? heads : keys;
    if (vals > most) most = vals;
    return most > c->n_expert_tok ? most : c->n_expert_tok;
}

static void carve_mixer(lg_arena *a, const lg_config *c, const lg_backend_opt *opt,
                        size_t n_thread, lg_cpu_scratch *s) {
    size_t n = opt->max_tok, f = sizeof(float), heads = (size_t)c->n_head * c->d_head;
    size_t kv = (size_t)c->n_kv_head * c->d_head, conv = lg_config_conv_dim(c);
    size_t keys = (size_t)c->n_k_head * c->d_k, vals = (size_t)c->n_v_head * c->d_v;
    s->qg = lg_arena_take(a, n * heads * 2, f);
    s->k = lg_arena_take(a, n * kv, f);
    s->v = lg_arena_take(a, n * kv, f);
    s->q = lg_arena_take(a, n * heads, f);
    s->m = lg_arena_take(a, n * c->n_head, f);
    s->l = lg_arena_take(a, n * c->n_head, f);
    s->acc = lg_arena_take(a, n * heads, f);
    s->gated = lg_arena_take(a, n * heads, f);
    size_t group = c->n_head / c->n_kv_head,
           part = 2 * n_thread * LG_CPU_SPLIT_PAGES * c->n_head;
    s->part_m = lg_arena_take(a, part, f);
    s->part_l = lg_arena_take(a, part, f);
    s->part_acc = lg_arena_take(a, part * c->d_head, f);
    s->n_see = lg_arena_take(a, n_thread * LG_CPU_ATTN_BLK * group, sizeof(uint32_t));
    if (opt->n_spread) n *= 2;
    s->n_gdn = n;
    s->qkv = lg_arena_take(a, n * conv, f);
    s->u = lg_arena_take(a, n * conv, f);
    s->qk = lg_arena_take(a, n * 2 * keys, f);
    s->z = lg_arena_take(a, n * vals, f);
    s->core = lg_arena_take(a, n * vals, f);
    s->y = lg_arena_take(a, n * vals, f);
    s->b = lg_arena_take(a, n * c->n_v_head, f);
    s->a = lg_arena_take(a, n * c->n_v_head, f);
    s->g = lg_arena_take(a, n * c->n_v_head, f);
    s->beta = lg_arena_take(a, n * c->n_v_head, f);
    s->gdn_ld = round16(lg_gdn_scratch_floats(c->d_k, c->d_v));
    s->gdn = lg_arena_take(a, n_thread * s->gdn_ld, f);
}

static void carve_mlp(lg_arena *a, const lg_config *c, const lg_backend_opt *opt,
                      lg_cpu_scratch *s) {
    size_t n = opt->max_tok, f = sizeof(float), u = sizeof(uint32_t);
    if (c->n_expert == 0) {
        s->h = lg_arena_take(a, n * c->n_ff, f);
        s->h2 = lg_arena_take(a, n * c->n_ff, f);
        return;
    }
    size_t nk = n * c->n_expert_tok;
    s->logit = lg_arena_take(a, n * c->n_expert, f);
    s->top_id = lg_arena_take(a, nk, u);
    s->top_w = lg_arena_take(a, nk, f);
    s->first = lg_arena_take(a, (size_t)c->n_expert + 1, u);
    s->sorted_tok = lg_arena_take(a, nk, u);
    s->sorted_w = lg_arena_take(a, nk, f);
    s->tok_at = lg_arena_take(a, nk, u);
    s->row_w = lg_arena_take(a, nk, f);
    s->n_at = lg_arena_take(a, n, u);
    s->h = lg_arena_take(a, nk * c->n_ff_expert, f);
    s->h2 = lg_arena_take(a, nk * c->n_ff_expert, f);
    s->eo = lg_arena_take(a, nk * c->n_embd, f);
    s->sh = lg_arena_take(a, n * c->n_ff_shared, f);
    s->sh2 = lg_arena_take(a, n * c->n_ff_shared, f);
    s->so = lg_arena_take(a, n * c->n_embd, f);
    s->sg = lg_arena_take(a, n, f);
    s->job = lg_arena_take(a, (size_t)c->n_expert + 2, sizeof *s->job);
    if (!opt->dist) return;
    lg_exchange_carve(a, opt->dist->comm, opt->dist->place, &opt->dist->how, opt->max_tok,
                      c->n_embd, c->n_expert_tok, &s->ex);
    s->ex.n_chosen = opt->dist->n_chosen;
    lg_cpu_quant_carve(a, n * c->n_embd, &s->in_q);
}

/* The most elements that go into an output, down or head product at once. */
static size_t mid_floats(const lg_config *c, const lg_backend_opt *opt) {
    size_t n = opt->max_tok, vals = (size_t)c->n_v_head * c->d_v;
    size_t widest = (size_t)c->n_head * c->d_head, all = (size_t)opt->max_out * c->n_embd;
    size_t ff = c->n_expert ? (size_t)c->n_expert_tok * c->n_ff_expert : c->n_ff;
    if (vals > widest) widest = vals;
    if (ff > widest) widest = ff;
    if (c->n_expert && c->n_ff_shared > widest) widest = c->n_ff_shared;
    return n * widest > all ? n * widest : all;
}

/* Lay out the whole scratch in an arena, or only count it. */
static void carve(lg_arena *a, const lg_config *c, const lg_backend_opt *opt, int n_thread,
                  lg_cpu_scratch *s) {
    size_t n = opt->max_tok, f = sizeof(float), u = sizeof(uint32_t), t = (size_t)n_thread;
    *s = (lg_cpu_scratch){0};
    s->x = lg_arena_take(a, n * c->n_embd, f);
    s->xn = lg_arena_take(a, n * c->n_embd, f);
    s->mix = lg_arena_take(a, n * c->n_embd, f);
    lg_cpu_quant_carve(a, n * c->n_embd, &s->xn_q);
    lg_cpu_quant_carve(a, mid_floats(c, opt), &s->mid_q);
    s->cos = lg_arena_take(a, n * (c->n_rot / 2), f);
    s->sin = lg_arena_take(a, n * (c->n_rot / 2), f);
    s->pos = lg_arena_take(a, n, u);
    s->row_seq = lg_arena_take(a, n, u);
    s->out_row = lg_arena_take(a, opt->max_out, u);
    size_t n_seq = (size_t)opt->max_seq + (opt->n_spread ? 1 : 0);
    s->seq_out = lg_arena_take(a, n_seq, u);
    s->seq_task = lg_arena_take(a, n_seq + 1, u);
    carve_mixer(a, c, opt, t, s);
    if (opt->n_spread) lg_cpu_spread_carve(a, c, opt, &s->spread);
    if (lg_slice_rows(opt)) lg_cpu_slice_carve(a, c, opt, &s->slice);
    carve_mlp(a, c, opt, s);
    s->xo = lg_arena_take(a, (size_t)opt->max_out * c->n_embd, f);
    s->logits = lg_arena_take(a, opt->max_out * round16(c->n_vocab), f);
    s->sample_ld = (lg_sample_work_bytes(c->n_vocab) + 63) / 64 * 64;
    s->sample_work = lg_arena_take(a, t, s->sample_ld);
    if (opt->trace) s->trace = lg_arena_take(a, n * trace_width(c), f);
}

void lg_backend_plan_bytes(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                           lg_backend_plan *plan) {
    lg_cpu_layout lay;
    lg_cpu_scratch s;
    lg_arena a;
    lg_cpu_layout_of(cfg, opt->kv, &lay);
    lg_arena_init(&a, NULL, SIZE_MAX);
    carve(&a, cfg, opt, n_thread, &s);
    plan->page_bytes = lay.page;
    plan->slot_bytes = lay.slot * sizeof(float);
    plan->snap_bytes = lay.slot * sizeof(float);
    plan->n_snap_part = lay.n_gdn;
    plan->scratch_bytes = a.used_bytes;
}

/* Memory of n blocks of size_bytes each, contents undefined; never NULL for an empty pool. */
static void *take_pool(size_t n, uint64_t size_bytes) {
    uint64_t total;
    if (!lg_num_mul(n, size_bytes, &total) || total > SIZE_MAX) return NULL;
    return lg_mem_realloc(NULL, (size_t)total);
}

lg_status lg_backend_open(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                          lg_backend **out, lg_err *err) {
    *out = NULL;
    if (opt->max_tok == 0 || opt->max_seq == 0 || opt->max_out == 0 || opt->n_slot == 0)
        return LG_FAIL(err, LG_E_ARG,
                       "backend: max_tok %u, max_seq %u, max_out %u, n_slot %u: "
                       "each must be at least 1",
                       opt->max_tok, opt->max_seq, opt->max_out, opt->n_slot);
    if (!lg_kv_has(opt->kv))
        return LG_FAIL(err, LG_E_ARG, "backend: keys and values cannot be kept as %s",
                       lg_dtype_name(opt->kv));
    if (opt->dist && w->cfg.n_expert == 0)
        return LG_FAIL(err, LG_E_UNSUPPORTED,
                       "backend: found a model without experts, which %u ranks cannot share",
                       opt->dist->comm->n_rank);
    lg_backend *be = lg_mem_alloc(sizeof *be);
    if (!be) return LG_FAIL(err, LG_E_NOMEM, "backend: no memory");
    be->w = w;
    be->cfg = &w->cfg;
    be->kern = lg_kern_get();
    be->pool = pool;
    be->n_thread = pool ? lg_pool_n_thread(pool) : 1;
    be->split_from = LG_CPU_SPLIT_FROM;
    be->split_step = (uint32_t)be->n_thread * LG_CPU_SPLIT_PAGES;
    be->opt = *opt;
    be->exact = opt->exact || strcmp(be->kern->name, "ref") == 0;
    be->ld_logits = round16(w->cfg.n_vocab);
    lg_cpu_layout_of(be->cfg, opt->kv, &be->lay);
    lg_backend_plan plan;
    lg_backend_plan_bytes(be->cfg, opt, be->n_thread, &plan);
    be->page = take_pool(opt->n_page, plan.page_bytes);
    be->slot = take_pool(opt->n_slot, plan.slot_bytes);
    be->snap = take_pool(opt->n_snap, plan.snap_bytes);
    be->block = take_pool(1, plan.scratch_bytes);
    if (!be->page || !be->slot || !be->snap || !be->block) {
        lg_backend_close(&be);
        return LG_FAIL(
            err, LG_E_NOMEM,
            "backend: no memory for %u pages of %llu bytes, %u slots and %u snapshots of %llu "
            "bytes and %llu bytes of scratch",
            opt->n_page, (unsigned long long)plan.page_bytes, opt->n_slot, opt->n_snap,
            (unsigned long long)plan.slot_bytes, (unsigned long long)plan.scratch_bytes);
    }
    lg_arena a;
    lg_arena_init(&a, be->block, (size_t)plan.scratch_bytes);
    carve(&a, be->cfg, opt, be->n_thread, &be->s);
    *out = be;
    return LG_OK;
}

void lg_backend_close(lg_backend **be) {
    if (!*be) return;
    lg_mem_free((*be)->page);
    lg_mem_free((*be)->slot);
    lg_mem_free((*be)->snap);
    lg_mem_free((*be)->block);
    LG_FREE(*be);
}

/* Rows of another rank, to which this one adds slices. */
static void place_helped(lg_backend *be, const lg_batch *b) {
    lg_cpu_scratch *s = &be->s;
    const lg_batch_slice *h = b->slice;
    LG_ASSERT(b->n_seq == 0 && h->n_out <= be->opt.max_out && h->n_out <= b->n_tok);
    s->seq_task[0] = 0;
    for (uint32_t r = 0; r < b->n_tok; r++) {
        LG_ASSERT(b->tok[r] < be->cfg->n_vocab);
        s->pos[r] = 0; /* of no use here */
    }
    for (uint32_t i = 0; i < h->n_out; i++) {
        LG_ASSERT(h->out_row[i] < b->n_tok);
        s->out_row[be->n_out++] = h->out_row[i];
    }
}

/* With ranks: how many rows each has. */
static void place_ranks(lg_backend *be, const lg_batch *b) {
    const lg_comm *c = be->opt.dist->comm;
    bool helps = b->slice && b->slice->owner != c->rank;
    LG_ASSERT(b->rank_tok[c->rank] == (helps ? 0 : b->n_tok));
    if (be->cfg->n_expert) lg_exchange_begin(&be->s.ex, b->rank_tok);
    if (b->spread) lg_cpu_spread_begin(be);
    if (!b->slice) return;
    LG_ASSERT(b->n_tok <= lg_slice_rows(&be->opt) && !b->spread);
    LG_ASSERT(b->rank_tok[b->slice->owner] == b->n_tok);
    lg_slice_begin(&be->s.slice.to, b->slice->owner);
}

/* Check the batch against what was opened (a wrong one is a bug of the engine) and note where each row belongs. */
static void place_rows(lg_backend *be, const lg_batch *b) {
    lg_cpu_scratch *s = &be->s;
    be->batch = b;
    be->n_out = 0;
    uint32_t n_row = 0, n_more = b->spread ? 1 : 0; /* a part of a divided sequence */
    uint32_t n_slot = be->opt.n_slot, n_all = be->opt.n_page;
    LG_ASSERT(b->n_tok <= be->opt.max_tok && b->n_seq <= be->opt.max_seq + n_more);
    LG_ASSERT(!b->spread || (be->opt.n_spread && b->n_seq > 0));
    s->seq_task[0] = 0;
    if (b->slice && b->slice->owner != be->opt.dist->comm->rank) {
        place_helped(be, b);
        n_row = b->n_tok;
    }
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const lg_batch_seq *q = &b->seq[i];
        LG_ASSERT(q->tok0 == n_row && q->n_tok >= 1 && q->n_tok <= b->n_tok - n_row);
        if (n_more && i + 1 == b->n_seq) {
            n_slot++;
            n_all += (be->opt.n_spread + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
        }
        LG_ASSERT(q->slot < n_slot && q->n_out <= q->n_tok);
        LG_ASSERT(q->n_out <= be->opt.max_out - be->n_out && (q->n_out > 0 || !q->sampler));
        uint32_t n_page = be->lay.n_attn ? (q->pos + q->n_tok - 1) / LG_PAGE_TOK + 1 : 0;
        LG_ASSERT(q->page0 <= b->n_page && n_page <= b->n_page - q->page0);
        for (uint32_t p = 0; p < n_page; p++) LG_ASSERT(b->page[q->page0 + p] < n_all);
        for (uint32_t k = 0, low = 1; k < q->n_save; low = q->save[k++].n_row + 1)
            LG_ASSERT(q->save[k].snap < be->opt.n_snap && q->save[k].n_row >= low &&
                      q->save[k].n_row <= q->n_tok);
        for (uint32_t t = 0; t < q->n_tok; t++, n_row++) {
            LG_ASSERT(b->tok[n_row] < be->cfg->n_vocab);
            s->pos[n_row] = q->pos + t;
            s->row_seq[n_row] = i;
        }
        for (uint32_t t = q->n_out; t > 0; t--) s->out_row[be->n_out++] = n_row - t;
        s->seq_out[i] = be->n_out - (q->n_out > 0);
        s->seq_task[i + 1] =
            s->seq_task[i] + (q->n_tok + LG_CPU_ATTN_BLK - 1) / LG_CPU_ATTN_BLK;
    }
    LG_ASSERT(n_row == b->n_tok);
    if (be->opt.dist) place_ranks(be, b);
}

static void embed_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const lg_backend *be = ctx;
    const lg_config *c = be->cfg;
    uint32_t r0 = (uint32_t)task * ROWS_PER_TASK, n = be->batch->n_tok, half = c->n_rot / 2;
    uint32_t r1 = r0 + ROWS_PER_TASK < n ? r0 + ROWS_PER_TASK : n;
    for (uint32_t r = r0; r < r1; r++) {
        float *x = be->s.x + (size_t)r * c->n_embd;
        lg_weights_embed(be->w, be->batch->tok[r], x);
        if (be->lay.n_attn)
            lg_rope_table(be->s.pos[r], c->rope_theta, c->n_rot, be->s.cos + (size_t)r * half,
                          be->s.sin + (size_t)r * half);
        be->kern->rmsnorm(x, be->w->layer[0].in_norm, c->eps, c->n_embd,
                          be->s.xn + (size_t)r * c->n_embd);
    }
}

/* One layer.  On entry s.xn is the normed input; on return the normed input of the next layer. */
static void run_layer(lg_backend *be, uint32_t layer) {
    const lg_config *c = be->cfg;
    const lg_layer_w *w = &be->w->layer[layer];
    size_t n = be->batch->n_tok, h = c->n_embd;
    int l = (int)layer;
    lg_cpu_trace(be, l, "in_norm", be->s.xn, n, h, h);
    if (n == 0) { /* a rank without rows of its own still serves its experts */
        lg_cpu_moe_group(be, layer);
        return;
    }
    if (w->kind == LG_LAYER_ATTN)
        lg_cpu_attn(be, layer);
    else
        lg_cpu_gdn(be, layer);
    lg_cpu_trace(be, l, "mixer_out", be->s.mix, n, h, h);
    lg_cpu_residual(be, w->post_norm, c->n_expert ? w->shared_gate : NULL);
    lg_cpu_trace(be, l, "post_norm", be->s.xn, n, h, h);
    if (be->batch->slice)
        lg_cpu_slice_moe(be, layer);
    else if (c->n_expert && be->opt.dist)
        lg_cpu_moe_group(be, layer);
    else if (c->n_expert)
        lg_cpu_moe(be, layer);
    else
        lg_cpu_dense(be, layer);
    lg_cpu_trace(be, l, "mlp.out", be->s.mix, n, h, h);
    lg_cpu_residual(be, layer + 1 < c->n_layer ? be->w->layer[layer + 1].in_norm : NULL, NULL);
    lg_cpu_trace(be, l, "out", be->s.x, n, h, h);
}

lg_status lg_backend_step(lg_backend *be, const lg_batch *batch, lg_step_out *out) {
    lg_trace *t = be->opt.dist ? be->opt.dist->comm->trace : NULL;
    uint64_t start = lg_trace_now(t);
    if (be->opt.profile) be->opt.profile->last_ns = lg_clock_ns();
    place_rows(be, batch);
    uint32_t n = batch->n_tok;
    size_t h = be->cfg->n_embd;
    lg_cpu_run(be, (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK, (uint64_t)n * h * 8, embed_task,
               be);
    lg_cpu_quant_start(&be->s.xn_q, be->s.xn, n, be->cfg->n_embd);
    lg_cpu_trace(be, -1, "embed", be->s.x, n, h, h);
    bool lost = false;
    for (uint32_t l = 0; l < be->cfg->n_layer && !lost; l++) {
        run_layer(be, l);
        lost = be->opt.dist && be->opt.dist->comm->lost;
    }
    if (batch->spread) lg_cpu_spread_end(be);
    lost = be->opt.dist && be->opt.dist->comm->lost;
    if (!lost) lg_cpu_head(be, out);
    lost = be->opt.dist && be->opt.dist->comm->lost;
    lg_cpu_mark(be, LG_OP_ROWS);
    lg_trace_add(t, LG_SPAN_STEP, 0, 0, n, start);
    be->batch = NULL;
    return lost ? LG_E_BACKEND : LG_OK;
}

/* S of one value head with its open rows folded in, as gdn_rows would fold them. */
static void fold(const lg_backend *be, const float *state, uint32_t vh, uint32_t n_tok,
                 float *out) {
    const lg_config *c = be->cfg;
    size_t dk = c->d_k, dv = c->d_v, n = dk * dv, n_open = n_tok % LG_GDN_C;
    const float *s = state + be->lay.s + vh * n;
    const float *k = state + be->lay.open_k + lg_config_k_head(c, vh) * dk * LG_GDN_C;
    const float *d = state + be->lay.open_d + vh * LG_GDN_C * dv;
    const float *g = state + be->lay.open_g + (size_t)vh * LG_GDN_C;
    if (n_tok < LG_GDN_C)
        memset(out, 0, n * sizeof *out);
    else
        memcpy(out, s, n * sizeof *out);
    if (n_open == 0) return;
    float last = g[n_open - 1], decay = lg_expf(last);
    for (size_t i = 0; i < n; i++) out[i] *= decay;
    for (size_t l = 0; l < n_open; l++) {
        float w = lg_expf(last - g[l]);
        for (size_t i = 0; i < dk; i++)
            be->kern->axpy(w * k[i * LG_GDN_C + l], d + l * dv, c->d_v, out + i * dv);
    }
}

void lg_backend_read_state(const lg_backend *be, uint32_t slot, uint32_t n_tok, uint32_t layer,
                           float *s, float *conv) {
    const lg_config *c = be->cfg;
    LG_ASSERT(slot < be->opt.n_slot && layer < c->n_layer && n_tok > 0);
    LG_ASSERT(c->layer[layer] == LG_LAYER_GDN);
    const float *state = lg_cpu_slot(be, slot, layer);
    if (s)
        for (uint32_t vh = 0; vh < c->n_v_head; vh++)
            fold(be, state, vh, n_tok, s + (size_t)vh * c->d_k * c->d_v);
    if (conv)
        memcpy(conv, state + be->lay.conv,
               (LG_CONV_K - 1) * (size_t)lg_config_conv_dim(c) * sizeof *conv);
}

const lg_backend_ops *lg_backend_cpu(void) {
    static const lg_backend_ops ops = {.plan = lg_backend_plan_bytes,
                                       .open = lg_backend_open,
                                       .close = lg_backend_close,
                                       .step = lg_backend_step,
                                       .save = lg_backend_save,
                                       .load = lg_backend_load,
                                       .copy_page = lg_backend_copy_page,
                                       .get_page = lg_backend_get_page,
                                       .put_page = lg_backend_put_page,
                                       .get_snap = lg_backend_get_snap,
                                       .put_snap = lg_backend_put_snap};
    return &ops;
}
