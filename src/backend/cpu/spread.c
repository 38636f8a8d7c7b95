/* spread.c - the mixers of a sequence whose rows are divided over all ranks: see dist/spread.h.
 *
 * Everything that a row needs alone its rank computes, as for any row.  Between the products:
 *   GDN        rows are swapped for heads (z is multiplied meanwhile), each rank runs its key heads over all rows, outputs are swapped
 *              back.  A rank's own heads of the state stay in memory kept for that; after each layer they also go home, so that after
 *              a step the owner has the whole state, as if it had computed alone, and its snapshots.
 *   attention  all ranks get keys and values of all rows into pages kept for that (queries are multiplied meanwhile); each looks with
 *              its own queries.
 * Also: what of it a cost model needs to know (dist/choose.h).
 * Heads and query rows are independent, so the bits are those of one rank (kern.h, THE RULE).
 * A lost rank ends every wait; the step then returns LG_E_BACKEND.
 * Thread: engine (it alone calls the comm) and pool.  Memory: the step's scratch.  Test: tests/unit/test_group.c */
#include "backend/cpu/cpu.h"

#include "base/clock.h"

#include <string.h>

#define ROWS_PER_TASK  8
#define N_BLOCK        64 /* pages in one call of lg_spread_copy */
#define MEASURED_ROWS  64
#define MEASURED_TIMES 3

static uint32_t ratio_of(const lg_config *c) {
    return c->n_v_head / c->n_k_head;
}

static size_t pages_of(uint32_t n_tok) {
    return ((size_t)n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
}

static size_t state_words(const lg_config *c) {
    size_t dk = c->d_k, dv = c->d_v, open = LG_GDN_C;
    return dk * open + (LG_CONV_K - 1) * 2 * dk +
           ratio_of(c) * (dk * dv + dv * open + open + (LG_CONV_K - 1) * dv);
}

void lg_cpu_spread_carve(lg_arena *a, const lg_config *c, const lg_backend_opt *opt,
                         lg_cpu_spread *s) {
    lg_cpu_layout lay;
    size_t n_rank = opt->dist->comm->n_rank, n = opt->max_tok, f = sizeof(float);
    size_t own = n / n_rank + 1, heads = (c->n_k_head + n_rank - 1) / n_rank;
    lg_cpu_layout_of(c, opt->kv, &lay);
    *s = (lg_cpu_spread){.head_words = 2 * (size_t)c->d_k + ratio_of(c) * (c->d_v + 2),
                         .out_words = ratio_of(c) * (size_t)c->d_v,
                         .state_words = state_words(c)};
    size_t whole = heads * s->head_words, kv = 2 * (size_t)c->n_kv_head * c->d_head;
    size_t n_state = c->n_k_head * s->state_words;
    lg_spread_carve(a, opt->dist->comm, c->n_k_head, &s->to);
    s->page = lg_arena_take(a, pages_of(opt->n_spread), lay.page);
    s->slot = lg_arena_take(a, lay.slot, f);
    s->snap = lg_arena_take(a, LG_SPREAD_MAX_SAVE * lay.gdn, f);
    s->rows = lg_arena_take(a, own * c->n_k_head * s->head_words, f);
    s->whole = lg_arena_take(a, n * (whole > kv ? whole : kv), f);
    s->deal = lg_arena_take(a, n_state, f);
    s->home = lg_arena_take(a, n_state * (1 + LG_SPREAD_MAX_SAVE), f);
}

void lg_cpu_spread_begin(lg_backend *be) {
    const lg_batch_spread *b = be->batch->spread;
    lg_spread *to = &be->s.spread.to;
    const lg_batch_seq *q = &be->batch->seq[be->batch->n_seq - 1];
    lg_spread_begin(to, b->owner, b->n_tok);
    LG_ASSERT(b->pos + b->n_tok <= be->opt.n_spread && b->n_save <= LG_SPREAD_MAX_SAVE);
    LG_ASSERT(q->pos == b->pos + lg_spread_row0(to) && q->n_tok == lg_spread_n_row(to));
    LG_ASSERT(q->n_save == 0 &&
              (b->owner == to->comm->rank || (q->slot == be->opt.n_slot && q->n_out == 0)));
    LG_ASSERT(!be->lay.n_attn || pages_of(b->pos + b->n_tok) <= be->batch->n_page - q->page0);
}

/* ---- rows between the arrays of a row and blocks of heads ---- */

typedef struct rows_ctx {
    lg_backend *be;
    uint32_t layer;
    uint32_t n_row;
    size_t row0;     /* of the arrays */
    uint32_t h0, h1; /* heads */
    size_t w;        /* words of a head's block */
    bool own;        /* blocks of `rows`, else of `whole` */
    void (*each)(const struct rows_ctx *c, size_t r, uint32_t h, float *block);
    bool norm; /* then the gated norm of the row */
} rows_ctx;

static void rows_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const rows_ctx *c = ctx;
    const lg_cpu_spread *s = &c->be->s.spread;
    uint32_t r0 = (uint32_t)task * ROWS_PER_TASK;
    uint32_t r1 = r0 + ROWS_PER_TASK < c->n_row ? r0 + ROWS_PER_TASK : c->n_row;
    for (uint32_t r = r0; r < r1; r++) {
        for (uint32_t h = c->h0; h < c->h1; h++) {
            size_t at = c->own ? lg_spread_block(&s->to, r, h, c->w)
                               : ((size_t)r * (c->h1 - c->h0) + (h - c->h0)) * c->w;
            uint32_t *words = (c->own ? s->rows : s->whole) + at;
            c->each(c, c->row0 + r, h, (float *)(void *)words);
        }
        if (c->norm) lg_cpu_gdn_norm(c->be, c->layer, c->row0 + r);
    }
}

/* What key head h has of a row into its block, or back. */
static void move_in(const rows_ctx *c, size_t r, uint32_t h, float *block, bool pack) {
    const lg_config *cfg = c->be->cfg;
    const lg_cpu_scratch *s = &c->be->s;
    size_t dk = cfg->d_k, dv = cfg->d_v, nv = cfg->n_v_head, keys = cfg->n_k_head * dk;
    float *raw = s->qkv + r * lg_config_conv_dim(cfg);
    for (uint32_t i = 0; i < 2 + ratio_of(cfg); i++) {
        size_t n = i < 2 ? dk : dv;
        float *at =
            raw + (i < 2 ? i * keys + h * dk : 2 * keys + lg_config_v_head(cfg, h, i - 2) * dv);
        memcpy(pack ? block : at, pack ? at : block, n * sizeof *at);
        block += n;
    }
    for (uint32_t j = 0; j < ratio_of(cfg); j++, block += 2) {
        size_t at = r * nv + lg_config_v_head(cfg, h, j);
        if (pack) {
            block[0] = s->b[at];
            block[1] = s->a[at];
        } else {
            s->b[at] = block[0];
            s->a[at] = block[1];
        }
    }
}

static void pack_in(const rows_ctx *c, size_t r, uint32_t h, float *block) {
    move_in(c, r, h, block, true);
}

static void unpack_in(const rows_ctx *c, size_t r, uint32_t h, float *block) {
    move_in(c, r, h, block, false);
}

static void move_out(const rows_ctx *c, size_t r, uint32_t h, float *block, bool pack) {
    const lg_config *cfg = c->be->cfg;
    size_t dv = cfg->d_v, n = c->be->s.n_gdn;
    for (uint32_t j = 0; j < ratio_of(cfg); j++, block += dv) {
        float *at = c->be->s.core + (n * lg_config_v_head(cfg, h, j) + r) * dv;
        memcpy(pack ? block : at, pack ? at : block, dv * sizeof *at);
    }
}

static void pack_out(const rows_ctx *c, size_t r, uint32_t h, float *block) {
    move_out(c, r, h, block, true);
}

static void unpack_out(const rows_ctx *c, size_t r, uint32_t h, float *block) {
    move_out(c, r, h, block, false);
}

/* ---- GDN ---- */

/* Heads of this rank. */
static void own_heads(const lg_backend *be, uint32_t *h0, uint32_t *h1) {
    const lg_spread *to = &be->s.spread.to;
    *h0 = lg_spread_head0(to, to->comm->rank);
    *h1 = lg_spread_head0(to, to->comm->rank + 1);
}

static bool is_own(const lg_backend *be, uint32_t h) {
    uint32_t h0, h1;
    own_heads(be, &h0, &h1);
    return h >= h0 && h < h1;
}

static uint32_t slot_of(const lg_backend *be) {
    return be->batch->seq[be->batch->n_seq - 1].slot;
}

/* The states before pos from the owner to the ranks of the heads. */
static lg_status deal(lg_backend *be, uint32_t layer) {
    lg_cpu_spread *s = &be->s.spread;
    const lg_batch_spread *b = be->batch->spread;
    bool owner = b->owner == s->to.comm->rank;
    float *state = lg_cpu_slot(be, slot_of(be), layer);
    size_t w = lg_cpu_snap_pack(be, 0, b->pos, state, NULL);
    LG_ASSERT(w <= s->state_words);
    lg_comm_at(s->to.comm, "states", layer);
    for (uint32_t h = 0; owner && h < be->cfg->n_k_head; h++)
        if (!is_own(be, h)) lg_cpu_snap_pack(be, h, b->pos, state, s->deal + h * w);
    LG_TRY(lg_spread_deal(&s->to, w, s->deal));
    for (uint32_t h = 0; !owner && h < be->cfg->n_k_head; h++)
        if (is_own(be, h)) lg_cpu_snap_unpack(be, h, b->pos, state, s->deal + h * w);
    return LG_OK;
}

/* One layer's states of head h after the step, and the snapshots: packed, or unpacked.  Returns words. */
static size_t move_states(lg_backend *be, uint32_t layer, uint32_t h, const uint32_t *snap,
                          uint32_t *words, bool pack) {
    const lg_batch_spread *b = be->batch->spread;
    size_t n = 0;
    for (uint32_t i = 0; i <= b->n_save; i++) {
        bool last = i == b->n_save;
        uint32_t n_tok = b->pos + (last ? b->n_tok : b->save[i].n_row);
        float *at =
            last ? lg_cpu_slot(be, slot_of(be), layer) : lg_cpu_snap(be, snap[i], layer);
        if (words && !pack) lg_cpu_snap_unpack(be, h, n_tok, at, words + n);
        n += lg_cpu_snap_pack(be, h, n_tok, at, words && pack ? words + n : NULL);
    }
    return n;
}

/* Numbers of the snapshots on this rank. */
static void snaps(const lg_backend *be, uint32_t *snap) {
    const lg_batch_spread *b = be->batch->spread;
    bool owner = b->owner == be->s.spread.to.comm->rank;
    for (uint32_t i = 0; i < b->n_save; i++)
        snap[i] = owner ? b->save[i].snap : be->opt.n_snap + i;
}

/* What this rank has made of its heads starts on its way to the owner. */
static lg_status go_home(lg_backend *be, uint32_t layer) {
    lg_cpu_spread *s = &be->s.spread;
    uint32_t snap[LG_SPREAD_MAX_SAVE];
    snaps(be, snap);
    size_t w = move_states(be, layer, 0, snap, NULL, true);
    for (uint32_t h = 0; s->to.owner != s->to.comm->rank && h < be->cfg->n_k_head; h++)
        if (is_own(be, h)) move_states(be, layer, h, snap, s->home + h * w, true);
    s->home_layer = layer;
    return lg_spread_home(&s->to, w, s->home);
}

/* The states that are on their way arrive. */
static lg_status come_home(lg_backend *be) {
    lg_cpu_spread *s = &be->s.spread;
    uint32_t snap[LG_SPREAD_MAX_SAVE], layer = s->home_layer;
    if (s->to.n_home == 0) return LG_OK;
    lg_comm_at(s->to.comm, "states", layer);
    LG_TRY(lg_spread_home_end(&s->to));
    if (s->to.owner != s->to.comm->rank) return LG_OK;
    snaps(be, snap);
    size_t w = move_states(be, layer, 0, snap, NULL, true);
    for (uint32_t h = 0; h < be->cfg->n_k_head; h++)
        if (!is_own(be, h)) move_states(be, layer, h, snap, s->home + h * w, false);
    return LG_OK;
}

void lg_cpu_spread_end(lg_backend *be) {
    come_home(be);
}

/* Rows of the arrays packed into blocks, or back. */
static void move_rows(lg_backend *be, rows_ctx *c) {
    c->be = be;
    lg_cpu_run(be, (c->n_row + ROWS_PER_TASK - 1) / ROWS_PER_TASK,
               (uint64_t)c->n_row * (c->h1 - c->h0) * c->w, rows_task, c);
}

/* A swap or gather has started: it is waited for now, unless other work is to be done meanwhile. */
static lg_status started(lg_backend *be, lg_status st) {
    if (st == LG_OK && be->s.ex.how.no_overlap) st = lg_spread_wait(&be->s.spread.to);
    return st;
}

/* The own rows, and the own heads of all rows; w words of a head. */
static rows_ctx own_rows(const lg_backend *be, uint32_t layer, size_t w) {
    const lg_batch_seq *own = &be->batch->seq[be->batch->n_seq - 1];
    return (rows_ctx){.layer = layer,
                      .n_row = own->n_tok,
                      .row0 = own->tok0,
                      .h1 = be->cfg->n_k_head,
                      .w = w,
                      .own = true};
}

static rows_ctx all_rows(const lg_backend *be, uint32_t layer, size_t w) {
    rows_ctx c = {
        .layer = layer, .n_row = be->batch->spread->n_tok, .row0 = be->opt.max_tok, .w = w};
    own_heads(be, &c.h0, &c.h1);
    return c;
}

void lg_cpu_spread_gdn_start(lg_backend *be, uint32_t layer) {
    lg_cpu_spread *s = &be->s.spread;
    const lg_batch_spread *b = be->batch->spread;
    rows_ctx mine = own_rows(be, layer, s->head_words);
    mine.each = pack_in;
    if (come_home(be) != LG_OK) return;
    if (b->fresh && b->pos > 0 && deal(be, layer) != LG_OK) return;
    lg_comm_at(s->to.comm, "heads", layer);
    move_rows(be, &mine);
    started(be, lg_spread_swap(&s->to, true, s->head_words, s->rows, s->whole));
}

void lg_cpu_spread_gdn(lg_backend *be, uint32_t layer) {
    lg_cpu_spread *s = &be->s.spread;
    const lg_batch_spread *b = be->batch->spread;
    uint32_t snap[LG_SPREAD_MAX_SAVE];
    lg_batch_save save[LG_SPREAD_MAX_SAVE];
    rows_ctx mine = own_rows(be, layer, s->out_words), all = all_rows(be, layer, s->head_words);
    if (lg_spread_wait(&s->to) != LG_OK) return;
    all.each = unpack_in;
    move_rows(be, &all);
    snaps(be, snap);
    for (uint32_t i = 0; i < b->n_save; i++)
        save[i] = (lg_batch_save){b->save[i].n_row, snap[i]};
    lg_batch_seq whole = {.slot = slot_of(be),
                          .pos = b->pos,
                          .n_tok = b->n_tok,
                          .tok0 = be->opt.max_tok,
                          .save = save,
                          .n_save = b->n_save};
    if (all.h1 > all.h0) lg_cpu_gdn_part(be, layer, &whole, all.h0, all.h1 - all.h0);
    all.w = s->out_words;
    all.each = pack_out;
    mine.each = unpack_out;
    mine.norm = true;
    move_rows(be, &all);
    if (lg_spread_swap(&s->to, false, s->out_words, s->rows, s->whole) != LG_OK) return;
    if (lg_spread_wait(&s->to) != LG_OK || go_home(be, layer) != LG_OK) return;
    move_rows(be, &mine);
}

/* ---- attention ---- */

void lg_cpu_spread_pages(lg_backend *be, uint32_t layer) {
    const lg_batch_spread *b = be->batch->spread;
    const lg_batch_seq *own = &be->batch->seq[be->batch->n_seq - 1];
    lg_spread *to = &be->s.spread.to;
    void *block[N_BLOCK];
    size_t n_page = b->fresh ? pages_of(b->pos) : 0;
    lg_comm_at(to->comm, "pages", layer);
    for (size_t p = 0; p < n_page; p += N_BLOCK) {
        size_t n = n_page - p < N_BLOCK ? n_page - p : N_BLOCK;
        for (size_t i = 0; i < n; i++)
            block[i] = lg_cpu_kv(be, be->batch->page[own->page0 + p + i], layer, 0);
        if (lg_spread_copy(to, block, be->cfg->n_kv_head * be->lay.kv, (uint32_t)n) != LG_OK)
            return;
    }
}

typedef struct keys_ctx {
    lg_backend *be;
    uint32_t layer;
} keys_ctx;

/* Keys and values of some rows of all ranks into their pages; own rows are there. */
static void store_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const keys_ctx *c = ctx;
    const lg_backend *be = c->be;
    const lg_cpu_spread *s = &be->s.spread;
    const lg_batch_seq *own = &be->batch->seq[be->batch->n_seq - 1];
    uint32_t n = s->to.n_row, d = be->cfg->d_head, n_head = be->cfg->n_kv_head;
    uint32_t r0 = (uint32_t)task * ROWS_PER_TASK;
    uint32_t r1 = r0 + ROWS_PER_TASK < n ? r0 + ROWS_PER_TASK : n;
    for (uint32_t r = r0; r < r1; r++) {
        uint32_t pos = be->batch->spread->pos + r;
        const uint32_t *words = s->whole + (size_t)r * 2 * n_head * d;
        const float *k = (const float *)(const void *)words, *v = k + (size_t)n_head * d;
        if (pos >= own->pos && pos < own->pos + own->n_tok) continue;
        uint32_t page = be->batch->page[own->page0 + pos / LG_PAGE_TOK];
        for (uint32_t h = 0; h < n_head; h++)
            be->kern->kv_store(be->opt.kv, k + (size_t)h * d, v + (size_t)h * d, d,
                               pos % LG_PAGE_TOK, lg_cpu_kv(be, page, c->layer, h));
    }
}

void lg_cpu_spread_keys_start(lg_backend *be, uint32_t layer) {
    lg_cpu_spread *s = &be->s.spread;
    const lg_batch_seq *own = &be->batch->seq[be->batch->n_seq - 1];
    size_t kv = (size_t)be->cfg->n_kv_head * be->cfg->d_head;
    lg_comm_at(s->to.comm, "keys", layer);
    for (uint32_t r = 0; r < own->n_tok; r++) {
        uint32_t *to = s->whole + (lg_spread_row0(&s->to) + r) * 2 * kv;
        memcpy(to, be->s.k + (own->tok0 + r) * kv, kv * sizeof *to);
        memcpy(to + kv, be->s.v + (own->tok0 + r) * kv, kv * sizeof *to);
    }
    started(be, lg_spread_gather(&s->to, 2 * kv, s->whole));
}

void lg_cpu_spread_keys(lg_backend *be, uint32_t layer) {
    lg_cpu_spread *s = &be->s.spread;
    size_t kv = (size_t)be->cfg->n_kv_head * be->cfg->d_head;
    uint32_t n = s->to.n_row;
    if (lg_spread_wait(&s->to) != LG_OK) return;
    keys_ctx c = {be, layer};
    lg_cpu_run(be, (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK, (uint64_t)n * kv * 8, store_task,
               &c);
}

/* ---- what it costs ---- */

lg_divide_shape lg_backend_divide_shape(const lg_config *c, lg_dtype kv) {
    lg_cpu_layout lay;
    lg_cpu_layout_of(c, kv, &lay);
    return (lg_divide_shape){.n_gdn = lay.n_gdn,
                             .n_attn = lay.n_attn,
                             .in =
                                 4.0 * c->n_k_head * (2 * c->d_k + ratio_of(c) * (c->d_v + 2)),
                             .out = 4.0 * c->n_v_head * c->d_v,
                             .keys = 8.0 * c->n_kv_head * c->d_head,
                             .page = (double)(c->n_kv_head * lay.kv) / LG_PAGE_TOK,
                             .state = 4.0 * c->n_k_head * (double)state_words(c)};
}

static double n_weight(const lg_mat *w) {
    return (double)w->n_in * w->n_out;
}

/* Weights of mixer and shared expert of a layer. */
static double layer_weights(const lg_config *c, const lg_layer_w *w) {
    double n = c->n_expert
                   ? n_weight(&w->shared.gate) + n_weight(&w->shared.up) +
                         n_weight(&w->shared.down) + n_weight(&w->router)
                   : n_weight(&w->mlp.gate) + n_weight(&w->mlp.up) + n_weight(&w->mlp.down);
    if (w->kind == LG_LAYER_ATTN)
        return n + n_weight(&w->q) + n_weight(&w->k) + n_weight(&w->v) + n_weight(&w->o);
    return n + n_weight(&w->qkv) + n_weight(&w->z) + n_weight(&w->b) + n_weight(&w->a) +
           n_weight(&w->out);
}

/* A value head of a row among many, on one thread. */
static double head_seconds(lg_backend *be) {
    const lg_config *c = be->cfg;
    lg_cpu_scratch *s = &be->s;
    uint32_t n = be->opt.max_tok < LG_GDN_C ? be->opt.max_tok : LG_GDN_C;
    size_t vals = (size_t)n * c->d_v, keys = (size_t)n * c->d_k;
    lg_gdn_arg a = {.dk = c->d_k,
                    .dv = c->d_v,
                    .n_tok = n,
                    .has_init = true,
                    .q = s->qk,
                    .k = s->qk,
                    .ld_qk = c->d_k,
                    .v = s->u,
                    .ld_v = c->d_v,
                    .g = s->g,
                    .beta = s->beta,
                    .ld_g = c->n_v_head,
                    .o = s->core,
                    .ld_o = c->d_v,
                    .s = s->spread.slot + be->lay.s,
                    .open_d = s->spread.slot + be->lay.open_d,
                    .ld_s = c->d_v,
                    .open_k = s->spread.slot + be->lay.open_k,
                    .open_g = s->spread.slot + be->lay.open_g,
                    .scratch = s->gdn};
    uint64_t best = UINT64_MAX;
    memset(s->qk, 0, keys * sizeof *s->qk);
    memset(s->u, 0, vals * sizeof *s->u);
    memset(s->g, 0, (size_t)n * c->n_v_head * sizeof *s->g);
    memset(s->beta, 0, (size_t)n * c->n_v_head * sizeof *s->beta);
    memset(s->spread.slot, 0, be->lay.gdn * sizeof *s->spread.slot);
    for (int i = 0; i < MEASURED_TIMES; i++) {
        uint64_t start = lg_clock_ns();
        be->kern->gdn_rows(&a);
        uint64_t took = lg_clock_ns() - start;
        if (took < best) best = took;
    }
    return (double)best * 1e-9 / n;
}

/* The parts of a row: `weight_s` a weight of its products. */
static void measure_parts(lg_backend *be, double weight_s, lg_divide_shape *d) {
    const lg_config *c = be->cfg;
    uint32_t n_rank = be->s.spread.to.comm->n_rank, own = (c->n_k_head + n_rank - 1) / n_rank;
    double time, head = be->lay.n_gdn ? head_seconds(be) : 0;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        const lg_layer_w *w = &be->w->layer[l];
        if (w->kind == LG_LAYER_ATTN)
            d->q_s = n_weight(&w->q) * weight_s;
        else
            d->z_s = n_weight(&w->z) * weight_s;
    }
    lg_cpu_gdn_parts(own * ratio_of(c), be->n_thread, c->d_v, &time);
    d->own_heads_s = time * head;
    d->all_heads_s = lg_cpu_gdn_time(c->n_k_head, c->n_v_head, be->n_thread, c->d_v) * head;
}

double lg_backend_row_seconds(lg_backend *be, lg_divide_shape *d) {
    const lg_config *c = be->cfg;
    const lg_layer_w *w = &be->w->layer[0];
    lg_cpu_scratch *s = &be->s;
    bool attn = w->kind == LG_LAYER_ATTN;
    uint32_t n = be->opt.max_tok < MEASURED_ROWS ? be->opt.max_tok : MEASURED_ROWS;
    const lg_mat *m = attn ? &w->q : &w->qkv;
    lg_cpu_gemm job = {.w = m,
                       .x = s->xn,
                       .ld_x = c->n_embd,
                       .n_row = n,
                       .y = attn ? s->qg : s->qkv,
                       .ld_y = m->n_out};
    double total = 0;
    uint64_t best = UINT64_MAX;
    for (uint32_t l = 0; l < c->n_layer; l++) total += layer_weights(c, &be->w->layer[l]);
    memset(s->xn, 0, (size_t)n * c->n_embd * sizeof *s->xn);
    for (int i = 0; i < MEASURED_TIMES; i++) {
        uint64_t start = lg_clock_us();
        lg_cpu_quant_start(&s->xn_q, s->xn, n, c->n_embd);
        lg_cpu_quant_jobs(be, &s->xn_q, &job, 1);
        lg_cpu_gemm_run(be, &job, 1);
        uint64_t took = lg_clock_us() - start;
        if (took < best) best = took;
    }
    if (best == 0) best = 1; /* less than the clock shows */
    double weight_s = (double)best * 1e-6 / n / n_weight(m);
    measure_parts(be, weight_s, d);
    return total * weight_s;
}
