/* slice.c - a step of few rows of one rank, to whose dense products every rank adds its slice of the channels: dist/slice.h.
 *
 * Every rank has the residual rows and norms them itself.  In a layer:
 *   in      slices of the mixer's input products, to the owner; it alone has states, keys and values, and does what is between
 *   mixed   the owner's rows between the products, to all
 *   out     slices of the output product, to all: residual, norm and router are then computed by all
 *   mlp     slices of the shared expert's gated rows, to all while routed experts are multiplied; slices of its down product
 *           with the product rows of each rank's experts, to all: every rank makes the sum that the owner alone would make
 * and in the end slices of the head's logits, to the owner.  So four times a layer somebody waits for a message.
 * A channel is summed whole by one rank, experts are added in the order of one process: the bits are those of one process, also
 * where other steps sum otherwise (exchange.h).
 * Also: what of it a cost model needs to know (dist/choose.h).
 * A lost rank ends every wait; the step then returns LG_E_BACKEND.
 * Thread: engine (it alone calls the comm) and pool.  Memory: the step's scratch.  Test: tests/unit/test_group.c */
#include "backend/cpu/cpu.h"

#include "base/clock.h"

#include <string.h>

#define HEAD           (LG_EXCHANGE_HEAD / 4) /* words */
#define ALIGN          16                     /* words */
#define MEASURED_TIMES 3

static size_t round_words(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t max_of(size_t a, size_t b) {
    return a > b ? a : b;
}

void lg_cpu_slice_carve(lg_arena *a, const lg_config *c, const lg_backend_opt *opt,
                        lg_cpu_slice *s) {
    size_t rows = lg_slice_rows(opt), n_rank = opt->dist->comm->n_rank, k = c->n_expert_tok;
    size_t gdn = lg_config_conv_dim(c) + (size_t)c->n_v_head * (c->d_v + 2);
    size_t attn = 2 * ((size_t)c->n_head + c->n_kv_head) * c->d_head;
    size_t outs = rows < opt->max_out ? rows : opt->max_out;
    size_t words = rows * max_of(max_of(gdn, attn), max_of(c->n_embd, 2 * c->n_ff_shared));
    words = max_of(words, outs * c->n_vocab);
    words = max_of(words, n_rank * 2 * ALIGN + rows * (1 + k) * c->n_embd);
    *s = (lg_cpu_slice){.n_word = words};
    lg_slice_carve(a, opt->dist->comm, &s->to);
    s->buf = lg_arena_take(a, words, sizeof *s->buf);
    s->pair = lg_arena_take(a, rows * k, sizeof *s->pair);
}

/* ---- products ---- */

/* Channels of w that a rank has. */
static uint32_t channel0(const lg_backend *be, const lg_mat *w, uint32_t rank) {
    uint32_t p = lg_slice_part(lg_mat_n_panel(w), be->s.slice.to.comm->n_rank, rank) * LG_NR;
    return p < w->n_out ? p : w->n_out;
}

static uint32_t n_channel(const lg_backend *be, const lg_mat *w, uint32_t rank) {
    return channel0(be, w, rank + 1) - channel0(be, w, rank);
}

void lg_cpu_slice_cut(const lg_backend *be, lg_cpu_gemm *job, uint32_t n_job) {
    const lg_comm *c = be->s.slice.to.comm;
    for (uint32_t i = 0; i < n_job; i++) {
        uint32_t n = lg_mat_n_panel(job[i].w);
        job[i].sliced = true;
        job[i].panel0 = lg_slice_part(n, c->n_rank, c->rank);
        job[i].n_panel = lg_slice_part(n, c->n_rank, c->rank + 1) - job[i].panel0;
    }
}

/* Rank's slice of the jobs' rows into words that follow each other, or back. */
static void move(const lg_backend *be, const lg_cpu_gemm *job, uint32_t n_job, uint32_t rank,
                 uint32_t *words, bool pack) {
    for (uint32_t i = 0; i < n_job; i++) {
        uint32_t c0 = channel0(be, job[i].w, rank), n = n_channel(be, job[i].w, rank);
        for (uint32_t r = 0; r < job[i].n_row; r++, words += n) {
            float *y = job[i].y + r * job[i].ld_y + c0;
            memcpy(pack ? (void *)words : y, pack ? (void *)y : words, n * sizeof *y);
        }
    }
}

/* One row of one product is where it shall be. */
static bool is_plain(const lg_cpu_gemm *job, uint32_t n_job) {
    return n_job == 1 && job->n_row == 1;
}

/* The slices of all ranks start on their way; job[0].y of a single row and s.slice.buf stay as they are until they are taken. */
static lg_status send_slices(lg_backend *be, const lg_cpu_gemm *job, uint32_t n_job, bool all) {
    lg_cpu_slice *s = &be->s.slice;
    uint32_t me = s->to.comm->rank;
    size_t at = 0;
    for (uint32_t r = 0; r < s->to.comm->n_rank; at += s->to.n[r++]) {
        s->to.at[r] = at;
        s->to.n[r] = 0;
        for (uint32_t i = 0; i < n_job; i++)
            s->to.n[r] += (size_t)n_channel(be, job[i].w, r) * job[i].n_row;
    }
    if (is_plain(job, n_job)) return lg_slice_start(&s->to, all, (uint32_t *)(void *)job->y);
    LG_ASSERT(at <= s->n_word);
    move(be, job, n_job, me, s->buf + s->to.at[me], true);
    return lg_slice_start(&s->to, all, s->buf);
}

static lg_status take_slices(lg_backend *be, const lg_cpu_gemm *job, uint32_t n_job, bool all) {
    lg_cpu_slice *s = &be->s.slice;
    uint32_t me = s->to.comm->rank;
    LG_TRY(lg_slice_wait(&s->to));
    if (is_plain(job, n_job) || (!all && me != s->to.owner)) return LG_OK;
    for (uint32_t r = 0; r < s->to.comm->n_rank; r++)
        if (r != me) move(be, job, n_job, r, s->buf + s->to.at[r], false);
    return LG_OK;
}

void lg_cpu_slice_gemm(lg_backend *be, uint32_t layer, lg_cpu_gemm *job, uint32_t n_job,
                       bool all) {
    if (be->batch->slice) lg_cpu_slice_cut(be, job, n_job);
    lg_cpu_gemm_run(be, job, n_job);
    if (!be->batch->slice) return;
    lg_comm_at(be->s.slice.to.comm, "slices", layer);
    if (send_slices(be, job, n_job, all) == LG_OK) take_slices(be, job, n_job, all);
}

void lg_cpu_slice_rows(lg_backend *be, uint32_t layer, float *rows, size_t n_col) {
    if (!be->batch->slice) return;
    lg_comm_at(be->s.slice.to.comm, "rows between products", layer);
    lg_slice_copy(&be->s.slice.to, (uint32_t *)(void *)rows, be->batch->n_tok * n_col);
}

/* ---- the experts of a layer ---- */

/* Where each rank's words lie in buf: a head, its slice of the shared expert's rows (`down`), product rows of its experts.  Where the
 * product row of every (row, expert) lies goes to `pair`. */
static void plan_back(lg_backend *be, const lg_cpu_gemm *down) {
    lg_cpu_slice *s = &be->s.slice;
    const lg_exchange *x = &be->s.ex;
    uint32_t owner = s->to.owner, n_rank = s->to.comm->n_rank, rank[LG_SLICE_ROWS * 256];
    size_t next[LG_MAX_RANK] = {0}, at = 0;
    uint32_t n = x->row0[owner + 1] - x->row0[owner];
    LG_ASSERT((size_t)n * x->k <= LG_COUNT(rank));
    for (uint32_t i = 0; i < n * x->k; i++) {
        uint32_t g = x->row0[owner] + i / x->k;
        rank[i] =
            lg_place_rank(x->place, x->layer,
                          lg_exchange_ids(x, lg_exchange_record(x, owner, g))[i % x->k], g);
        next[rank[i]]++;
    }
    for (uint32_t r = 0; r < n_rank; at += round_words(s->to.n[r++])) {
        size_t slice = round_words((size_t)n_channel(be, down->w, r) * n);
        s->to.at[r] = at;
        s->to.n[r] = ALIGN + slice + next[r] * x->n_embd;
        next[r] = at + ALIGN + slice;
    }
    LG_ASSERT(at <= s->n_word);
    for (uint32_t i = 0; i < n * x->k; i++) {
        s->pair[i] = (uint32_t)next[rank[i]];
        next[rank[i]] += x->n_embd;
    }
}

/* Product rows and slices of the shared expert, from every rank to every rank. */
static lg_status bring_back(lg_backend *be, const lg_cpu_gemm *down) {
    lg_cpu_slice *s = &be->s.slice;
    const lg_exchange *x = &be->s.ex;
    lg_comm *c = s->to.comm;
    uint32_t n = be->batch->n_tok, head[HEAD];
    plan_back(be, down);
    uint32_t *mine = s->buf + s->to.at[c->rank];
    size_t slice = round_words((size_t)n_channel(be, down->w, c->rank) * n);
    lg_exchange_head(x, n, head);
    memcpy(mine, head, sizeof head);
    move(be, down, 1, c->rank, mine + ALIGN, true);
    lg_exchange_pack(x, s->to.owner, (float *)(void *)(mine + ALIGN + slice));
    LG_TRY(lg_slice_start(&s->to, true, s->buf));
    LG_TRY(lg_slice_wait(&s->to));
    for (uint32_t r = 0; r < c->n_rank; r++) {
        const uint32_t *got = s->buf + s->to.at[r];
        if (memcmp(got, head, sizeof head) != 0)
            return lg_comm_lose(c,
                                "rank %u is at step %u, layer %u, with %u rows; expected step "
                                "%u, layer %u, %u rows, come to by the same collectives",
                                r, got[0], got[1], got[2], head[0], head[1], head[2]);
        if (r != c->rank) move(be, down, 1, r, s->buf + s->to.at[r] + ALIGN, false);
    }
    return LG_OK;
}

void lg_cpu_slice_moe(lg_backend *be, uint32_t layer) {
    const lg_layer_w *w = &be->w->layer[layer];
    lg_cpu_slice *sl = &be->s.slice;
    lg_cpu_scratch *s = &be->s;
    lg_exchange *x = &s->ex;
    lg_cpu_gemm up = lg_cpu_moe_gate_up(be, w), down = lg_cpu_moe_shared(be, w);
    lg_cpu_moe_route(be, layer);
    lg_comm_at(sl->to.comm, "shared expert", layer);
    lg_status st = send_slices(be, &up, 1, true);
    if (st == LG_OK && x->how.no_overlap) st = take_slices(be, &up, 1, true);
    if (st != LG_OK) return;
    lg_exchange_known(x, layer, sl->to.owner, s->xn, s->top_id, s->top_w);
    lg_cpu_moe_experts(be, w);
    if (!x->how.no_overlap && take_slices(be, &up, 1, true) != LG_OK) return;
    lg_cpu_slice_cut(be, &down, 1);
    lg_cpu_quant_start(&s->mid_q, s->sh, be->batch->n_tok, be->cfg->n_ff_shared);
    lg_cpu_quant_jobs(be, &s->mid_q, &down, 1);
    lg_cpu_gemm_run(be, &down, 1);
    lg_comm_at(sl->to.comm, "back", layer);
    if (bring_back(be, &down) != LG_OK) return;
    const uint32_t *first = lg_exchange_record(x, sl->to.owner, x->row0[sl->to.owner]);
    lg_cpu_combine from = {.out = (const float *)(const void *)sl->buf,
                           .ld_out = 1,
                           .at = sl->pair,
                           .weight = lg_exchange_weights(x, first),
                           .ld_weight = x->ld};
    lg_cpu_moe_combine(be, layer, &from);
}

/* ---- what it costs ---- */

lg_slice_shape lg_backend_slice_shape(const lg_config *c) {
    lg_cpu_layout lay;
    lg_cpu_layout_of(c, LG_F32, &lay);
    double vals = (double)c->n_v_head * c->d_v, heads = (double)c->n_head * c->d_head;
    return (lg_slice_shape){.n_gdn = lay.n_gdn,
                            .n_attn = lay.n_attn,
                            .gdn_in =
                                4 * ((double)lg_config_conv_dim(c) + vals + 2 * c->n_v_head),
                            .gdn_mixed = 4 * vals,
                            .attn_in = 8 * (heads + (double)c->n_kv_head * c->d_head),
                            .attn_mixed = 4 * heads,
                            .shared = 4.0 * c->n_ff_shared,
                            .logits = 4.0 * c->n_vocab};
}

typedef struct trial {
    lg_backend *be;
    uint32_t n_row;
    bool sliced;
} trial;

/* Products of the rows x with some matrices, as in a step; what comes out is of no use. */
static void try_products(const trial *t, const float *x, const lg_mat *const *w, uint32_t n) {
    lg_cpu_gemm job[4] = {{0}};
    lg_cpu_scratch *s = &t->be->s;
    float *y = (float *)(void *)s->slice.buf;
    uint32_t n_in = w[0]->n_in;
    for (uint32_t i = 0; i < n; y += t->n_row * w[i++]->n_out)
        job[i] = (lg_cpu_gemm){
            .w = w[i], .x = x, .ld_x = n_in, .n_row = t->n_row, .y = y, .ld_y = w[i]->n_out};
    if (t->sliced) lg_cpu_slice_cut(t->be, job, n);
    lg_cpu_quant_start(&s->mid_q, x, t->n_row, n_in);
    lg_cpu_quant_jobs(t->be, &s->mid_q, job, n);
    lg_cpu_gemm_run(t->be, job, n);
}

static void try_layer(const trial *t, const lg_layer_w *w) {
    const lg_cpu_scratch *s = &t->be->s;
    const lg_mat *gdn[] = {&w->qkv, &w->z, &w->b, &w->a}, *attn[] = {&w->q, &w->k, &w->v};
    const lg_mat *mixed[] = {w->kind == LG_LAYER_ATTN ? &w->o : &w->out};
    const lg_mat *up[] = {&w->shared.gate, &w->shared.up}, *down[] = {&w->shared.down};
    bool is_attn = w->kind == LG_LAYER_ATTN;
    try_products(t, s->xn, is_attn ? attn : gdn, is_attn ? 3 : 4);
    try_products(t, is_attn ? s->gated : s->y, mixed, 1);
    try_products(t, s->xn, up, 2);
    try_products(t, s->sh, down, 1);
}

double lg_backend_dense_seconds(lg_backend *be, uint32_t n_row, bool sliced) {
    const lg_config *c = be->cfg;
    lg_cpu_scratch *s = &be->s;
    const lg_mat *head[] = {&be->w->head};
    trial t = {be, n_row, sliced}, last = t;
    uint64_t best = UINT64_MAX;
    LG_ASSERT(n_row >= 1 && n_row <= lg_slice_rows(&be->opt));
    if (last.n_row > be->opt.max_out) last.n_row = be->opt.max_out;
    memset(s->xn, 0, (size_t)n_row * c->n_embd * sizeof *s->xn);
    memset(s->gated, 0, (size_t)n_row * c->n_head * c->d_head * sizeof *s->gated);
    memset(s->y, 0, (size_t)n_row * c->n_v_head * c->d_v * sizeof *s->y);
    memset(s->sh, 0, (size_t)n_row * c->n_ff_shared * sizeof *s->sh);
    for (int i = 0; i < MEASURED_TIMES; i++) {
        uint64_t start = lg_clock_us();
        for (uint32_t l = 0; l < c->n_layer; l++) try_layer(&t, &be->w->layer[l]);
        try_products(&last, s->xn, head, 1);
        uint64_t took = lg_clock_us() - start;
        if (took < best) best = took;
    }
    return (double)best * 1e-6;
}
