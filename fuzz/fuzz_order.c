/* fuzz_order.c - any bytes as an order of rank 0 to a member: what is accepted must be within the member's pools.
 *
 * Seeds: fuzz/corpus/order, orders for the limits below. */
#include "backend/group/group.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    N_SLOT = 4,
    N_SNAP = 5,
    N_PAGE = 12,
    MAX_TOK = 64,
    N_CTX = 200,
    N_VOCAB = 100,
    N_SPREAD = 150,
    N_SLICE = 8
};

static uint32_t ids[N_SLOT][N_CTX], tok[MAX_TOK], page[N_SLOT * 4 + 3];
static lg_bias bias[N_SLOT][LG_ORDER_MAX_BIAS];
static lg_batch_seq seq[N_SLOT + 1];
static lg_sampler sampler[N_SLOT + 1];
static lg_batch_save save[N_SNAP + LG_SPREAD_MAX_SAVE];
static lg_order_slot slot[N_SLOT];
static bool seen[N_SLOT];

/* A part of another rank's sequence uses what is kept for it. */
static bool check_part(const lg_batch *b, const lg_batch_seq *q) {
    const lg_batch_spread *s = b->spread;
    if (!s || q != &b->seq[b->n_seq - 1]) return false;
    uint32_t n_page = (s->pos + s->n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
    LG_ASSERT(s->owner < 3 && s->pos + s->n_tok <= N_SPREAD && s->n_save <= LG_SPREAD_MAX_SAVE);
    LG_ASSERT(q->pos >= s->pos && q->pos + q->n_tok <= s->pos + s->n_tok && !q->n_save);
    for (uint32_t i = 0; i < s->n_save; i++)
        LG_ASSERT(s->save[i].snap < N_SNAP && s->save[i].n_row <= s->n_tok);
    for (uint32_t i = 0; i < n_page; i++)
        LG_ASSERT(b->page[q->page0 + i] < N_PAGE + (s->owner == 1 ? 0 : i + 1));
    if (s->owner == 1) return false;
    LG_ASSERT(q->slot == N_SLOT && q->n_tok >= 1 && !q->n_out && !q->sampler);
    return true;
}

static void check_seq(const lg_batch *b, const lg_batch_seq *q) {
    if (check_part(b, q)) return;
    LG_ASSERT(q->slot < N_SLOT && q->n_tok >= 1 && q->pos + q->n_tok <= N_CTX && q->n_out <= 1);
    LG_ASSERT(q->tok0 + q->n_tok <= b->n_tok);
    for (uint32_t i = 0; i < q->n_tok; i++) LG_ASSERT(b->tok[q->tok0 + i] < N_VOCAB);
    for (uint32_t i = 0; i < (q->pos + q->n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK; i++)
        LG_ASSERT(b->page[q->page0 + i] < N_PAGE);
    for (uint32_t i = 0; i < q->n_save; i++)
        LG_ASSERT(q->save[i].snap < N_SNAP && q->save[i].n_row >= 1 &&
                  q->save[i].n_row <= q->n_tok);
    if (!q->sampler) return;
    const lg_sampler *s = q->sampler;
    LG_ASSERT((b->spread || s->n_id == q->pos + q->n_tok) && s->n_prompt <= s->n_id &&
              s->params.n_top <= LG_MAX_TOP);
    for (uint32_t i = 0; i < s->n_id; i++) LG_ASSERT(s->ids[i] < N_VOCAB);
    for (uint32_t i = 0; i < s->n_bias; i++) LG_ASSERT(s->bias[i].id < N_VOCAB);
}

/* Rows of another rank that this one helps with: nothing of its own beside them. */
static void check_slice(const lg_batch *b) {
    const lg_batch_slice *s = b->slice;
    uint32_t total = b->rank_tok[0] + b->rank_tok[1] + b->rank_tok[2];
    LG_ASSERT(s->owner < 3 && !b->spread && total == b->n_tok && total >= 1);
    LG_ASSERT(total <= N_SLICE && b->rank_tok[s->owner] == total);
    if (s->owner == 1) return;
    LG_ASSERT(b->n_seq == 0 && s->n_out <= total && s->n_out <= N_SLOT);
    for (uint32_t i = 0; i < total; i++) LG_ASSERT(b->tok[i] < N_VOCAB);
    for (uint32_t i = 0; i < s->n_out; i++) LG_ASSERT(s->out_row[i] < total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const lg_order_limit lim = {3,       1,     N_SLOT,  N_SNAP,   N_PAGE,
                                       MAX_TOK, N_CTX, N_VOCAB, N_SPREAD, N_SLICE};
    lg_order_in p = {.seq = seq,
                     .sampler = sampler,
                     .tok = tok,
                     .page = page,
                     .save = save,
                     .seen = seen,
                     .slot = slot};
    uint32_t *copy = lg_mem_alloc(size + 1), at = 0;
    lg_cmd op;
    const uint32_t *arg;
    LG_ASSERT(copy);
    memcpy(copy, data, size);
    memset(ids, 0, sizeof ids);
    for (uint32_t i = 0; i < N_SLOT; i++)
        slot[i] = (lg_order_slot){.ids = ids[i], .n_known = 70, .bias = bias[i]};
    if (lg_order_read(&p, copy, size, &lim, NULL) == LG_OK) {
        LG_ASSERT(p.batch.n_seq <= N_SLOT + 1 && p.batch.n_tok <= MAX_TOK);
        if (p.batch.slice) check_slice(&p.batch);
        for (uint32_t i = 0; i < p.batch.n_seq; i++) check_seq(&p.batch, &p.batch.seq[i]);
        while (lg_order_next(&p, &at, &op, &arg)) {
            if (op == LG_CMD_COPY) LG_ASSERT(arg[0] < N_PAGE && arg[1] < N_PAGE);
            if (op == LG_CMD_SAVE || op == LG_CMD_LOAD)
                LG_ASSERT(arg[0] < N_SLOT && arg[1] >= 1 && arg[1] <= N_CTX && arg[2] < N_SNAP);
        }
    }
    lg_mem_free(copy);
    return 0;
}
