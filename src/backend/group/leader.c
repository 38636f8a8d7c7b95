/* leader.c - rank 0 of a group: the calls of backend.h, carried out by all ranks: see group.h.
 *
 * In:  the engine's batch, whose sequences say their owner.   Out: sampled tokens of all of them.
 * Owner r is rank r; owner 0 is this process, whose own backend computes its rows between sending the orders and fetching
 * the replies.  What is asked between two steps (snapshots, copies) is queued in the next order.
 * One long prompt of a step may be divided over all ranks (choose_divided): the members then keep what they need for its next step,
 * which is forgotten when the sequence runs otherwise.  A step of few rows of one rank may have the help of all (choose_sliced).
 * Invariant: known[] is what the member has of a slot's ids, as order.c counts it there.
 * When a rank is lost every call returns at once and the step LG_E_BACKEND.
 * Thread: engine.  Memory: at open.  Test: tests/unit/test_group.c */
#include "backend/group/group.h"

#include <string.h>

/* A member as the leader sees it. */
typedef struct remote {
    lg_order_out out;
    lg_comm_req send, reply;
    uint32_t *reply_word;
    uint32_t *known;     /* [n_slot] first ids of the slot that the member has, without a gap */
    bool *bias_known;    /* [n_slot] the member has this sequence's biases */
    uint32_t *seq_at;    /* [n_slot + 1] place in the engine's batch of each sequence sent */
    lg_sampled *sampled; /* [n_slot + 1] */
} remote;

/* lg_backend is opaque: this one is never taken for the CPU's. */
typedef struct leader {
    lg_comm *comm;
    lg_order_limit lim;
    lg_backend *own; /* rank 0's rows */
    remote *member;  /* [n_rank], 0 unused */
    uint32_t rank_tok[LG_MAX_RANK];
    /* the divided sequence */
    lg_exchange_how how;
    lg_group_shape shape;
    lg_divide_shape divide;
    uint64_t *n_divided, *n_sliced; /* lg_dist */
    double row_s;                   /* lg_backend_row_seconds */
    uint32_t divided;               /* place in the engine's batch; UINT32_MAX: none */
    lg_batch_spread spread;
    /* few rows of one rank */
    bool sliced;
    lg_batch_slice slice;
    uint32_t out_row[LG_SLICE_ROWS];
    lg_slice_shape slices;
    double whole_s[2], slice_s[2]; /* lg_backend_dense_seconds of a row, of LG_SLICE_ROWS */
    uint32_t kept_owner, kept_slot, kept_pos; /* what all have up to kept_pos; 0: nothing */
    /* own part of a batch */
    lg_batch_seq *seq;    /* [n_slot + 1] */
    uint32_t *tok, *page; /* [max_tok], [n_slot * pages of a context + pages of n_spread] */
    uint32_t *seq_at;     /* [n_slot + 1] */
    lg_sampled *sampled;  /* [n_slot + 1] */
    uint32_t step;
    void *block;
} leader;

static leader *of(lg_backend *be) {
    return (leader *)(void *)be;
}

static uint32_t pages_of(uint32_t n_tok) {
    return (n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
}

static void carve_member(lg_arena *a, const lg_order_limit *l, remote *m) {
    m->out.word = lg_arena_take(a, lg_order_max_words(l), sizeof(uint32_t));
    m->reply_word = lg_arena_take(a, lg_order_reply_words(l), sizeof(uint32_t));
    m->known = lg_arena_take(a, l->n_slot, sizeof *m->known);
    m->bias_known = lg_arena_take(a, l->n_slot, sizeof *m->bias_known);
    m->seq_at = lg_arena_take(a, (size_t)l->n_slot + 1, sizeof *m->seq_at);
    m->sampled = lg_arena_take(a, (size_t)l->n_slot + 1, sizeof *m->sampled);
}

static void carve(lg_arena *a, const lg_order_limit *l, leader *g) {
    g->member = lg_arena_take(a, l->n_rank, sizeof *g->member);
    size_t n_seq = (size_t)l->n_slot + 1;
    g->seq = lg_arena_take(a, n_seq, sizeof *g->seq);
    g->tok = lg_arena_take(a, l->max_tok, sizeof *g->tok);
    g->page = lg_arena_take(a, (size_t)l->n_slot * pages_of(l->n_ctx) + pages_of(l->n_spread),
                            sizeof *g->page);
    g->seq_at = lg_arena_take(a, n_seq, sizeof *g->seq_at);
    g->sampled = lg_arena_take(a, n_seq, sizeof *g->sampled);
    for (uint32_t r = 1; r < l->n_rank; r++) {
        remote count;
        carve_member(a, l, g->member ? &g->member[r] : &count);
    }
}

static uint64_t own_bytes(const lg_order_limit *l) {
    leader g;
    lg_arena a;
    lg_arena_init(&a, NULL, SIZE_MAX);
    carve(&a, l, &g);
    return a.used_bytes;
}

void lg_leader_plan_bytes(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                          lg_backend_plan *plan) {
    lg_order_limit l;
    lg_order_limit_of(cfg, opt, 0, &l);
    lg_backend_plan_bytes(cfg, opt, n_thread, plan);
    /* A member keeps each slot's ids; the leader has them in the engine. */
    uint64_t ids = (uint64_t)l.n_slot * (l.n_ctx + 2 * LG_ORDER_MAX_BIAS) * sizeof(uint32_t);
    plan->scratch_bytes += own_bytes(&l) + ids;
}

/* When prompts are divided, as far as it can be said before. */
static void say_forecast(leader *g) {
    double n = g->lim.max_tok, ranks = g->lim.n_rank;
    g->row_s = lg_backend_row_seconds(g->own, &g->divide);
    if (g->how.no_overlap) g->divide.z_s = g->divide.q_s = 0;
    lg_diag_log(LG_LOG_WARN,
                "a prompt of %.0f rows: dividing it adds %.1f ms and spares its rank %.1f ms; "
                "positions before %u",
                n, lg_divide_seconds(&g->how.links, &g->shape, &g->divide, n, 0, 0) * 1e3,
                (n - n / ranks) * g->row_s * 1e3, g->lim.n_spread);
}

/* Seconds that the help of all ranks gains in the products of a step of n rows, and adds in messages. */
static double help_gain(const leader *g, double n) {
    double most = g->lim.n_slice, part = most > 1 ? (n - 1) / (most - 1) : 0;
    return (1 - part) * (g->whole_s[0] - g->slice_s[0]) +
           part * (g->whole_s[1] - g->slice_s[1]);
}

static double help_cost(const leader *g, double n, double n_out) {
    lg_row_count rows = {n, n};
    double n_layer = g->slices.n_gdn + g->slices.n_attn;
    return lg_slice_seconds(&g->how.links, &g->shape, &g->slices, n, n_out) -
           n_layer * lg_exchange_seconds(&g->how.links, &g->shape, g->how.kind, rows);
}

/* How long dense products take, whole and in slices; what follows from it. */
static void measure_help(leader *g) {
    for (int i = 0; i < 2; i++) {
        uint32_t n = i ? g->lim.n_slice : 1;
        g->whole_s[i] = lg_backend_dense_seconds(g->own, n, false);
        g->slice_s[i] = lg_backend_dense_seconds(g->own, n, true);
    }
    lg_diag_log(LG_LOG_WARN,
                "one user's row: products that every rank has %.2f ms, slices of them %.2f ms; "
                "slices add %.2f ms of messages, so %s",
                g->whole_s[0] * 1e3, g->slice_s[0] * 1e3, help_cost(g, 1, 1) * 1e3,
                help_gain(g, 1) > help_cost(g, 1, 1) ? "all ranks help" : "its rank is alone");
}

lg_status lg_leader_open(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                         lg_backend **be, lg_err *err) {
    *be = NULL;
    leader *g = lg_mem_alloc(sizeof *g);
    if (!g) return LG_FAIL(err, LG_E_NOMEM, "group: no memory");
    g->comm = opt->dist->comm;
    lg_order_limit_of(&w->cfg, opt, 0, &g->lim);
    uint64_t bytes = own_bytes(&g->lim);
    lg_status st = LG_E_NOMEM;
    lg_arena a;
    g->block = lg_mem_alloc((size_t)bytes);
    if (!g->block) {
        LG_FAIL(err, st, "group: no memory for the orders of %u ranks", g->lim.n_rank);
        goto fail;
    }
    lg_arena_init(&a, g->block, (size_t)bytes);
    carve(&a, &g->lim, g);
    for (uint32_t r = 1; r < g->lim.n_rank; r++) lg_order_begin(&g->member[r].out, &g->lim);
    LG_TRY_GOTO(lg_backend_open(w, opt, pool, &g->own, err), st, fail);
    g->how = opt->dist->how;
    g->n_divided = opt->dist->n_divided;
    g->n_sliced = opt->dist->n_sliced;
    g->shape = (lg_group_shape){g->comm->n_rank,     g->comm->n_node, w->cfg.n_embd,
                                w->cfg.n_expert_tok, w->cfg.n_expert, opt->dist->how.wire};
    g->divide = lg_backend_divide_shape(&w->cfg, opt->kv);
    if (opt->n_spread && g->how.divide == LG_DIVIDE_AUTO) say_forecast(g);
    g->slices = lg_backend_slice_shape(&w->cfg);
    if (g->lim.n_slice && g->how.answers == LG_DIVIDE_AUTO) measure_help(g);
    *be = (lg_backend *)(void *)g;
    return LG_OK;
fail:
    lg_mem_free(g->block);
    lg_mem_free(g);
    return st;
}

/* Send what is in a member's order and begin the next one. */
static lg_status post(leader *g, uint32_t r, lg_order_kind kind) {
    remote *m = &g->member[r];
    lg_order_end(&m->out, kind, g->step, kind == LG_ORDER_STEP ? g->rank_tok : NULL, &g->lim);
    return lg_comm_send(g->comm, r, LG_TAG_ORDER, m->out.word, m->out.n_word * sizeof(uint32_t),
                        &m->send);
}

/* Append a command; a full order goes out as a note first. */
static void command(leader *g, uint32_t r, lg_cmd op, uint32_t a, uint32_t b, uint32_t c,
                    const uint32_t *data, uint32_t n) {
    remote *m = &g->member[r];
    if (g->comm->lost || lg_order_cmd(&m->out, op, a, b, c, data, n)) return;
    lg_comm_at(g->comm, "note", 0);
    if (post(g, r, LG_ORDER_NOTE) != LG_OK) return;
    if (lg_comm_wait(g->comm, &m->send, 1) != LG_OK) return;
    lg_order_begin(&m->out, &g->lim);
    LG_ASSERT(lg_order_cmd(&m->out, op, a, b, c, data, n));
}

void lg_leader_close(lg_backend **be) {
    if (!*be) return;
    leader *g = of(*be);
    lg_comm_at(g->comm, "quit", 0);
    for (uint32_t r = 1; r < g->lim.n_rank && !g->comm->lost; r++) {
        lg_order_begin(&g->member[r].out, &g->lim);
        if (post(g, r, LG_ORDER_QUIT) == LG_OK) lg_comm_wait(g->comm, &g->member[r].send, 1);
    }
    lg_mem_free(g->block); /* a lost comm moves no message any more */
    lg_backend_close(&g->own);
    lg_mem_free(g);
    *be = NULL;
}

/* ---- between steps ---- */

/* This sequence goes on without the others, or is another one. */
static void forget(leader *g, uint32_t owner, uint32_t slot) {
    if (owner == g->kept_owner && slot == g->kept_slot) g->kept_pos = 0;
}

void lg_leader_save(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                    uint32_t snap) {
    if (owner == 0)
        lg_backend_save(of(be)->own, 0, slot, n_tok, snap);
    else
        command(of(be), owner, LG_CMD_SAVE, slot, n_tok, snap, NULL, 0);
}

void lg_leader_load(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                    uint32_t snap) {
    leader *g = of(be);
    forget(g, owner, slot);
    if (owner == 0) {
        lg_backend_load(g->own, 0, slot, n_tok, snap);
        return;
    }
    command(g, owner, LG_CMD_LOAD, slot, n_tok, snap, NULL, 0);
    g->member[owner].known[slot] = 0;
    g->member[owner].bias_known[slot] = false;
}

void lg_leader_copy_page(lg_backend *be, uint32_t owner, uint32_t from, uint32_t to) {
    if (owner == 0)
        lg_backend_copy_page(of(be)->own, 0, from, to);
    else
        command(of(be), owner, LG_CMD_COPY, from, to, 0, NULL, 0);
}

void lg_leader_get_page(const lg_backend *be, uint32_t owner, uint32_t page, uint32_t n_tok,
                        void *to) {
    LG_ASSERT(owner == 0);
    lg_backend_get_page(((const leader *)(const void *)be)->own, 0, page, n_tok, to);
}

void lg_leader_put_page(lg_backend *be, uint32_t owner, uint32_t page, const void *from) {
    LG_ASSERT(owner == 0);
    lg_backend_put_page(of(be)->own, 0, page, from);
}

void lg_leader_get_snap(const lg_backend *be, uint32_t owner, uint32_t snap, uint32_t n_tok,
                        uint32_t part, void *to) {
    LG_ASSERT(owner == 0);
    lg_backend_get_snap(((const leader *)(const void *)be)->own, 0, snap, n_tok, part, to);
}

void lg_leader_put_snap(lg_backend *be, uint32_t owner, uint32_t snap, uint32_t part,
                        const void *from) {
    LG_ASSERT(owner == 0);
    lg_backend_put_snap(of(be)->own, 0, snap, part, from);
}

lg_status lg_leader_call(lg_backend *be, uint32_t owner, bool patient, const void *msg,
                         size_t n_bytes, void *answer, size_t cap_bytes, size_t *n_answer) {
    leader *g = of(be);
    lg_comm *c = g->comm;
    remote *m = &g->member[owner];
    lg_comm_req send = {0}, recv = {0};
    command(g, owner, LG_CMD_CALL, (uint32_t)n_bytes, 0, 0, NULL, 0);
    if (c->lost) return LG_E_COMM;
    lg_comm_at(c, "call", 0);
    LG_TRY(lg_comm_recv(c, owner, LG_TAG_CALL, answer, cap_bytes, &recv));
    LG_TRY(post(g, owner, LG_ORDER_NOTE));
    LG_TRY(lg_comm_send(c, owner, LG_TAG_CALL, msg, n_bytes, &send));
    LG_TRY(lg_comm_wait(c, &m->send, 1));
    LG_TRY(lg_comm_wait(c, &send, 1));
    lg_order_begin(&m->out, &g->lim);
    LG_TRY(patient ? lg_comm_wait_idle(c, &recv) : lg_comm_wait(c, &recv, 1));
    *n_answer = recv.n_bytes;
    return LG_OK;
}

/* ---- a step ---- */

/* What member r must know before it can run this sequence: biases, and ids that its state was not made of there. */
static void tell(leader *g, uint32_t r, const lg_batch_seq *q) {
    remote *m = &g->member[r];
    uint32_t *known = &m->known[q->slot], end = q->pos + q->n_tok;
    if (q->pos == 0) {
        *known = 0;
        m->bias_known[q->slot] = false;
    }
    if (q->sampler && !m->bias_known[q->slot]) {
        uint32_t pair[2 * LG_ORDER_MAX_BIAS], n = q->sampler->n_bias;
        LG_ASSERT(n <= LG_ORDER_MAX_BIAS);
        for (uint32_t i = 0; i < n; i++) {
            pair[2 * i] = q->sampler->bias[i].id;
            memcpy(&pair[2 * i + 1], &q->sampler->bias[i].bias, sizeof(float));
        }
        command(g, r, LG_CMD_BIAS, q->slot, n, 0, pair, 2 * n);
        m->bias_known[q->slot] = true;
    }
    while (q->sampler && *known < q->pos) {
        uint32_t n = q->pos - *known, most = LG_ORDER_CMD / 2;
        if (n > most) n = most;
        command(g, r, LG_CMD_IDS, q->slot, *known, n, q->sampler->ids + *known, n);
        *known += n;
    }
    if (q->pos <= *known && *known < end) *known = end;
}

/* ---- dividing a prompt ---- */

static uint32_t share_of(const leader *g, uint32_t owner, uint32_t rank, uint32_t n) {
    uint32_t p = lg_spread_place(owner, g->lim.n_rank, rank);
    return lg_spread_part(n, g->lim.n_rank, p + 1) - lg_spread_part(n, g->lim.n_rank, p);
}

/* Whether all have the sequence up to its next row. */
static bool is_kept(const leader *g, const lg_batch_seq *q) {
    return q->pos > 0 && g->kept_pos == q->pos && g->kept_owner == q->owner &&
           g->kept_slot == q->slot;
}

/* Whether dividing q makes a step of these rows shorter. */
static bool pays(const leader *g, const lg_batch_seq *q, uint32_t total) {
    lg_row_count now = {total, 0}, then = {total, 0};
    for (uint32_t r = 0; r < g->lim.n_rank; r++) {
        double rows = g->rank_tok[r], part = share_of(g, q->owner, r, q->n_tok);
        double left = r == q->owner ? rows - q->n_tok : rows;
        if (rows > now.most) now.most = rows;
        if (left + part > then.most) then.most = left + part;
    }
    double n_layer = g->divide.n_gdn + g->divide.n_attn;
    double gain = (now.most - then.most) * g->row_s;
    for (int i = 0; i < 2; i++)
        gain += (i ? -n_layer : n_layer) *
                lg_exchange_seconds(&g->how.links, &g->shape, g->how.kind, i ? then : now);
    return gain > lg_divide_seconds(&g->how.links, &g->shape, &g->divide, q->n_tok, q->n_save,
                                    is_kept(g, q) ? 0 : q->pos);
}

/* Which sequence of the step is divided, the longest if any: fills divided, spread and rank_tok. */
static void choose_divided(leader *g, const lg_batch *b) {
    const lg_batch_seq *q = NULL;
    g->divided = UINT32_MAX;
    memset(g->rank_tok, 0, sizeof g->rank_tok);
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const lg_batch_seq *s = &b->seq[i];
        LG_ASSERT(s->owner < g->lim.n_rank);
        g->rank_tok[s->owner] += s->n_tok;
        if (s->n_tok < g->lim.n_rank || s->pos + s->n_tok > g->lim.n_spread ||
            s->n_save > LG_SPREAD_MAX_SAVE || s->n_out > 1 || (q && s->n_tok <= q->n_tok))
            continue;
        q = s;
        g->divided = i;
    }
    if (q && (g->how.divide == LG_DIVIDE_OFF || g->lim.n_rank < 2 ||
              (g->how.divide == LG_DIVIDE_AUTO && !pays(g, q, b->n_tok))))
        g->divided = UINT32_MAX;
    for (uint32_t i = 0; i < b->n_seq; i++)
        if (i != g->divided) forget(g, b->seq[i].owner, b->seq[i].slot);
    if (g->divided == UINT32_MAX) return;
    g->spread =
        (lg_batch_spread){q->owner, q->pos, q->n_tok, !is_kept(g, q), q->save, q->n_save};
    g->rank_tok[q->owner] -= q->n_tok;
    for (uint32_t r = 0; r < g->lim.n_rank; r++)
        g->rank_tok[r] += share_of(g, q->owner, r, q->n_tok);
    if (g->n_divided) (*g->n_divided)++;
    g->kept_owner = q->owner;
    g->kept_slot = q->slot;
    g->kept_pos = q->pos + q->n_tok;
}

/* Whether all ranks help with this step: its rows are few and of one rank, and that is expected to be shorter. */
static void choose_sliced(leader *g, const lg_batch *b) {
    g->sliced = false;
    if (b->n_seq == 0 || g->divided != UINT32_MAX || b->n_tok > g->lim.n_slice) return;
    uint32_t owner = b->seq[0].owner;
    if (g->rank_tok[owner] != b->n_tok) return;
    double n_out = 0;
    for (uint32_t i = 0; i < b->n_seq; i++) n_out += b->seq[i].n_out;
    if (g->how.answers == LG_DIVIDE_AUTO &&
        help_gain(g, b->n_tok) <= help_cost(g, b->n_tok, n_out))
        return;
    g->sliced = true;
    g->slice = (lg_batch_slice){.owner = owner};
    if (g->n_sliced) (*g->n_sliced)++;
}

/* Orders for all members; the divided sequence is the last one of each. */
static void make_orders(leader *g, const lg_batch *b) {
    for (uint32_t i = 0; i < b->n_seq; i++)
        if (b->seq[i].owner) tell(g, b->seq[i].owner, &b->seq[i]);
    for (uint32_t i = 0; i < b->n_seq; i++) {
        uint32_t r = b->seq[i].owner;
        if (!r || i == g->divided) continue;
        g->member[r].seq_at[g->member[r].out.n_seq] = i;
        lg_order_seq(&g->member[r].out, b, i, NULL, &g->lim);
    }
    for (uint32_t r = 1; r < g->lim.n_rank && g->divided != UINT32_MAX; r++) {
        lg_order_limit lim = g->lim;
        lim.rank = r;
        g->member[r].seq_at[g->member[r].out.n_seq] = g->divided;
        lg_order_seq(&g->member[r].out, b, g->divided, &g->spread, &lim);
    }
    for (uint32_t r = 1; r < g->lim.n_rank && g->sliced; r++) {
        lg_order_limit lim = g->lim;
        lim.rank = r;
        lg_order_slice(&g->member[r].out, b, g->slice.owner, &lim);
    }
}

/* Append a sequence, or rows first .. first + n - 1 of it, to this rank's batch. */
static void add_own(leader *g, const lg_batch *b, uint32_t i, uint32_t first, uint32_t n,
                    lg_batch *own) {
    lg_batch_seq *q = &g->seq[own->n_seq];
    uint32_t n_page = pages_of(b->seq[i].pos + b->seq[i].n_tok);
    *q = b->seq[i];
    memcpy(g->tok + own->n_tok, b->tok + q->tok0 + first, n * sizeof *g->tok);
    for (uint32_t p = 0; p < n_page; p++)
        g->page[own->n_page + p] = q->owner ? g->lim.n_page + p : b->page[q->page0 + p];
    q->pos += first;
    q->n_tok = n;
    q->tok0 = own->n_tok;
    q->page0 = own->n_page;
    own->n_tok += n;
    own->n_page += n_page;
    g->seq_at[own->n_seq++] = i;
}

/* Another rank's rows, all of the batch, with which this one helps. */
static void help(leader *g, const lg_batch *b, lg_batch *own) {
    uint32_t n = 0;
    own->tok = b->tok;
    own->n_tok = b->n_tok;
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const lg_batch_seq *q = &b->seq[i];
        for (uint32_t t = q->n_tok - q->n_out; t < q->n_tok; t++) g->out_row[n++] = q->tok0 + t;
    }
    g->slice.n_out = n;
    g->slice.out_row = g->out_row;
}

/* This rank's own part of the batch. */
static void own_part(leader *g, const lg_batch *b, lg_batch *own) {
    *own = (lg_batch){.tok = g->tok, .seq = g->seq, .page = g->page, .rank_tok = g->rank_tok};
    for (uint32_t i = 0; i < b->n_seq; i++)
        if (b->seq[i].owner == 0 && i != g->divided) add_own(g, b, i, 0, b->seq[i].n_tok, own);
    if (g->sliced) {
        own->slice = &g->slice;
        if (g->slice.owner != 0) help(g, b, own);
    }
    if (g->divided == UINT32_MAX) return;
    uint32_t n = g->spread.n_tok, p = lg_spread_place(g->spread.owner, g->lim.n_rank, 0);
    add_own(g, b, g->divided, lg_spread_part(n, g->lim.n_rank, p),
            share_of(g, g->spread.owner, 0, n), own);
    lg_batch_seq *q = &g->seq[own->n_seq - 1];
    q->save = NULL;
    q->n_save = 0;
    own->spread = &g->spread;
    if (q->owner == 0) return;
    q->slot = g->lim.n_slot;
    q->n_out = 0;
    q->sampler = NULL;
}

/* What was sampled for a rank's own sequences. */
static void take_sampled(const lg_batch *b, uint32_t rank, const uint32_t *seq_at, uint32_t n,
                         const lg_sampled *from, lg_sampled *to) {
    for (uint32_t k = 0; k < n; k++) {
        const lg_batch_seq *q = &b->seq[seq_at[k]];
        if (q->sampler && q->owner == rank) to[seq_at[k]] = from[k];
    }
}

static lg_status fetch_reply(leader *g, uint32_t r, const lg_batch *b, lg_sampled *sampled) {
    remote *m = &g->member[r];
    lg_status st = LG_OK;
    lg_err err = {0};
    uint32_t n = m->out.n_seq;
    LG_TRY(lg_comm_wait(g->comm, &m->reply, 1));
    LG_TRY(lg_comm_wait(g->comm, &m->send, 1));
    if (lg_order_get_reply(m->reply_word, m->reply.n_bytes, g->step, n, &st, m->sampled,
                           &err) != LG_OK)
        return lg_comm_lose(g->comm, "rank %u: %s", r, err.msg);
    if (st != LG_OK)
        return lg_comm_lose(g->comm, "rank %u could not run step %u: %s", r, g->step,
                            lg_status_name(st));
    take_sampled(b, r, m->seq_at, n, m->sampled, sampled);
    lg_order_begin(&m->out, &g->lim);
    return LG_OK;
}

lg_status lg_leader_step(lg_backend *be, const lg_batch *batch, lg_step_out *out) {
    leader *g = of(be);
    lg_batch own;
    g->comm->step = ++g->step;
    choose_divided(g, batch);
    choose_sliced(g, batch);
    make_orders(g, batch);
    lg_comm_at(g->comm, "order", 0);
    for (uint32_t r = 1; r < g->lim.n_rank; r++) {
        remote *m = &g->member[r];
        if (lg_comm_recv(g->comm, r, LG_TAG_REPLY, m->reply_word,
                         lg_order_reply_words(&g->lim) * sizeof(uint32_t), &m->reply) != LG_OK)
            return LG_E_BACKEND;
        if (post(g, r, LG_ORDER_STEP) != LG_OK) return LG_E_BACKEND;
    }
    own_part(g, batch, &own);
    lg_step_out mine = {.sampled = g->sampled};
    if (lg_backend_step(g->own, &own, &mine) != LG_OK) return LG_E_BACKEND;
    take_sampled(batch, 0, g->seq_at, own.n_seq, g->sampled, out->sampled);
    lg_comm_at(g->comm, "reply", 0);
    for (uint32_t r = 1; r < g->lim.n_rank; r++)
        if (fetch_reply(g, r, batch, out->sampled) != LG_OK) return LG_E_BACKEND;
    out->logits = NULL; /* of other ranks' rows there are none here */
    out->ld_logits = 0;
    return LG_OK;
}
