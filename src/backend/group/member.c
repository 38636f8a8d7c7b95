/* member.c - every rank of a group but 0: see group.h.
 *
 * In:  orders of the leader.   Out: replies, and this rank's part of every exchange.
 * Between two messages it waits without a limit and nearly without cost; inside a step it waits for a peer as long as
 * comm->timeout_us says.  Thread: engine.  Memory: at open.  Test: tests/unit/test_group.c */
#include "backend/group/group.h"

#include <string.h>

typedef struct member {
    lg_comm *comm;
    lg_order_limit lim;
    lg_backend *be;
    const lg_member_calls *calls; /* NULL: none */
    uint32_t *word;               /* [lg_order_max_words] */
    uint32_t *reply;
    lg_order_in in;
    lg_sampled *sampled; /* [n_slot + 1] */
    lg_comm_req recv, send;
    void *block;
} member;

static void carve(lg_arena *a, const lg_order_limit *l, member *m) {
    size_t u = sizeof(uint32_t), n_page = (size_t)(l->n_ctx + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
    lg_order_in *p = &m->in;
    m->word = lg_arena_take(a, lg_order_max_words(l), u);
    m->reply = lg_arena_take(a, lg_order_reply_words(l), u);
    size_t n_seq = (size_t)l->n_slot + 1; /* one may be a part of another rank's */
    m->sampled = lg_arena_take(a, n_seq, sizeof *m->sampled);
    p->seq = lg_arena_take(a, n_seq, sizeof *p->seq);
    p->sampler = lg_arena_take(a, n_seq, sizeof *p->sampler);
    p->tok = lg_arena_take(a, l->max_tok, u);
    p->page = lg_arena_take(
        a, l->n_slot * n_page + ((size_t)l->n_spread + LG_PAGE_TOK - 1) / LG_PAGE_TOK, u);
    p->save = lg_arena_take(a, (size_t)l->n_snap + LG_SPREAD_MAX_SAVE, sizeof *p->save);
    p->seen = lg_arena_take(a, l->n_slot, sizeof *p->seen);
    p->slot = lg_arena_take(a, l->n_slot, sizeof *p->slot);
    for (uint32_t i = 0; i < l->n_slot; i++) {
        uint32_t *ids = lg_arena_take(a, l->n_ctx, u);
        lg_bias *bias = lg_arena_take(a, LG_ORDER_MAX_BIAS, sizeof *bias);
        if (p->slot) p->slot[i] = (lg_order_slot){.ids = ids, .bias = bias};
    }
}

static lg_status open_member(member *m, const lg_weights *w, const lg_backend_opt *opt,
                             lg_pool *pool, lg_err *err) {
    lg_arena a;
    m->comm = opt->dist->comm;
    lg_order_limit_of(&w->cfg, opt, m->comm->rank, &m->lim);
    lg_arena_init(&a, NULL, SIZE_MAX);
    carve(&a, &m->lim, m);
    size_t bytes = a.used_bytes;
    m->block = lg_mem_alloc(bytes);
    if (!m->block) return LG_FAIL(err, LG_E_NOMEM, "rank %u: no memory", m->comm->rank);
    lg_arena_init(&a, m->block, bytes);
    carve(&a, &m->lim, m);
    return lg_backend_open(w, opt, pool, &m->be, err);
}

/* Fetch a message of the leader and answer it. */
static lg_status answer_call(member *m, uint32_t n_bytes) {
    const void *out;
    if (!m->calls || n_bytes > m->calls->cap_bytes)
        return lg_comm_lose(m->comm, "a call of %u bytes, expected at most %zu", n_bytes,
                            m->calls ? m->calls->cap_bytes : 0);
    lg_comm_at(m->comm, "call", 0);
    LG_TRY(lg_comm_recv(m->comm, 0, LG_TAG_CALL, m->calls->msg, n_bytes, &m->recv));
    LG_TRY(lg_comm_wait(m->comm, &m->recv, 1));
    size_t n = m->calls->answer(m->calls->ctx, m->be, m->recv.n_bytes, &out);
    LG_TRY(lg_comm_send(m->comm, 0, LG_TAG_CALL, out, n, &m->send));
    return lg_comm_wait(m->comm, &m->send, 1);
}

/* Move states and pages as the commands say. */
static lg_status run_commands(member *m) {
    uint32_t at = 0;
    lg_cmd op;
    const uint32_t *arg;
    while (lg_order_next(&m->in, &at, &op, &arg)) {
        if (op == LG_CMD_SAVE) lg_backend_save(m->be, 0, arg[0], arg[1], arg[2]);
        if (op == LG_CMD_LOAD) lg_backend_load(m->be, 0, arg[0], arg[1], arg[2]);
        if (op == LG_CMD_COPY) lg_backend_copy_page(m->be, 0, arg[0], arg[1]);
        if (op == LG_CMD_CALL) LG_TRY(answer_call(m, arg[0]));
    }
    return LG_OK;
}

static lg_status run_step(member *m) {
    lg_step_out out = {.sampled = m->sampled};
    m->comm->step = m->in.step;
    lg_status st = lg_backend_step(m->be, &m->in.batch, &out);
    if (m->comm->lost) return LG_E_COMM;
    lg_comm_at(m->comm, "reply", 0);
    size_t n = lg_order_put_reply(m->reply, m->in.step, st, &m->in.batch, m->sampled);
    LG_TRY(lg_comm_send(m->comm, 0, LG_TAG_REPLY, m->reply, n * sizeof *m->reply, &m->send));
    return lg_comm_wait(m->comm, &m->send, 1);
}

static lg_status serve(member *m, lg_err *err) {
    for (;;) {
        lg_comm_at(m->comm, "order", 0);
        LG_TRY(lg_comm_recv(m->comm, 0, LG_TAG_ORDER, m->word,
                            lg_order_max_words(&m->lim) * sizeof *m->word, &m->recv));
        LG_TRY(lg_comm_wait_idle(m->comm, &m->recv));
        lg_status st = lg_order_read(&m->in, m->word, m->recv.n_bytes, &m->lim, err);
        if (st != LG_OK) {
            lg_comm_lose(m->comm, "%.140s", err->msg);
            return st;
        }
        LG_TRY(run_commands(m));
        if (m->in.kind == LG_ORDER_QUIT) return LG_OK;
        if (m->in.kind == LG_ORDER_STEP) LG_TRY(run_step(m));
    }
}

lg_status lg_member_run(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                        const lg_member_calls *calls, lg_err *err) {
    member *m = lg_mem_alloc(sizeof *m);
    if (!m) return LG_FAIL(err, LG_E_NOMEM, "rank %u: no memory", opt->dist->comm->rank);
    m->calls = calls;
    lg_status st = open_member(m, w, opt, pool, err);
    if (st == LG_OK) st = serve(m, err);
    if (st == LG_E_COMM) LG_FAIL(err, st, "rank %u: %s", m->comm->rank, m->comm->why);
    if (calls) calls->close(calls->ctx);
    if (m->be) lg_backend_close(&m->be);
    lg_mem_free(m->block);
    lg_mem_free(m);
    return st;
}
