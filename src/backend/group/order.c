/* order.c - a step as a message of words, and back: see group.h.
 *
 * Invariants: a member uses nothing of a message that was not checked against its own pools; what it keeps of a sequence
 * (ids, biases) begins anew when a slot is used from position 0 or filled from a snapshot.
 * Thread: engine.  Memory: the callers'.  Test: tests/unit/test_order.c */
#include "backend/group/group.h"

#include "base/num.h"

#include <string.h>

enum { F_SAMPLE = 1, F_IGNORE_EOS = 2 };

#define SHARES 7 /* word of the head */

static uint32_t pages_of(uint32_t n_tok) {
    return (n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
}

void lg_order_limit_of(const lg_config *cfg, const lg_backend_opt *opt, uint32_t rank,
                       lg_order_limit *lim) {
    *lim = (lg_order_limit){.n_rank = opt->dist->comm->n_rank,
                            .rank = rank,
                            .n_slot = opt->n_slot,
                            .n_snap = opt->n_snap,
                            .n_page = opt->n_page,
                            .max_tok = opt->max_tok,
                            .n_ctx = opt->n_ctx,
                            .n_vocab = cfg->n_vocab,
                            .n_spread = opt->n_spread,
                            .n_slice = lg_slice_rows(opt)};
}

size_t lg_order_max_words(const lg_order_limit *l) {
    return LG_ORDER_HEAD + (size_t)l->n_rank + LG_ORDER_CMD +
           ((size_t)l->n_slot + 1) * (LG_ORDER_SEQ + pages_of(l->n_ctx)) + l->max_tok +
           2 * ((size_t)l->n_snap + LG_SPREAD_MAX_SAVE) + 2 + 2 * (size_t)l->n_slice;
}

size_t lg_order_reply_words(const lg_order_limit *l) {
    return 4 + ((size_t)l->n_slot + 1) * LG_ORDER_SAMPLED;
}

/* ---- writing ---- */

void lg_order_begin(lg_order_out *o, const lg_order_limit *lim) {
    o->n_word = LG_ORDER_HEAD + lim->n_rank;
    o->n_cmd_word = o->n_seq = 0;
    o->shares = LG_ORDER_OWN;
}

bool lg_order_cmd(lg_order_out *o, lg_cmd op, uint32_t a, uint32_t b, uint32_t c,
                  const uint32_t *data, uint32_t n) {
    LG_ASSERT(o->n_seq == 0);
    if (n > LG_ORDER_CMD - 4 || o->n_cmd_word > LG_ORDER_CMD - 4 - n) return false;
    uint32_t *w = o->word + o->n_word;
    w[0] = (uint32_t)op;
    w[1] = a;
    w[2] = b;
    w[3] = c;
    if (n) memcpy(w + 4, data, n * sizeof *w);
    o->n_word += 4 + n;
    o->n_cmd_word += 4 + n;
    return true;
}

static void put_words(lg_order_out *o, const void *data, uint32_t n) {
    memcpy(o->word + o->n_word, data, n * sizeof *o->word);
    o->n_word += n;
}

static void put_sampler(uint32_t *w, const lg_sampler *s) {
    const lg_params *p = &s->params;
    w[0] = F_SAMPLE | (p->ignore_eos ? (uint32_t)F_IGNORE_EOS : 0);
    w[1] = s->n_prompt;
    w[2] = s->n_id;
    w[3] = lg_num_bits_of_float(p->temperature);
    w[4] = lg_num_bits_of_float(p->top_p);
    w[5] = lg_num_bits_of_float(p->min_p);
    w[6] = p->top_k;
    w[7] = lg_num_bits_of_float(p->presence_penalty);
    w[8] = lg_num_bits_of_float(p->frequency_penalty);
    w[9] = lg_num_bits_of_float(p->repetition_penalty);
    w[10] = (uint32_t)p->seed;
    w[11] = (uint32_t)(p->seed >> 32);
    w[12] = p->choice;
    w[13] = (uint32_t)p->n_top;
}

void lg_order_seq(lg_order_out *o, const lg_batch *b, uint32_t i, const lg_batch_spread *spread,
                  const lg_order_limit *lim) {
    const lg_batch_seq *q = &b->seq[i];
    uint32_t *w = o->word + o->n_word, n_page = pages_of(q->pos + q->n_tok);
    LG_ASSERT(o->shares == LG_ORDER_OWN);
    if (spread) o->shares = LG_ORDER_DIVIDED;
    if (spread && spread->owner != lim->rank) n_page = 0;
    memset(w, 0, LG_ORDER_SEQ * sizeof *w);
    w[0] = q->slot;
    w[1] = q->pos;
    w[2] = q->n_tok;
    w[3] = q->n_out;
    w[4] = n_page;
    w[5] = q->n_save;
    w[6] = spread ? spread->owner : 0;
    w[7] = spread && spread->fresh;
    if (q->sampler) put_sampler(w + 8, q->sampler);
    o->n_word += LG_ORDER_SEQ;
    o->n_seq++;
    put_words(o, b->tok + q->tok0, q->n_tok);
    put_words(o, b->page + q->page0, n_page);
    for (uint32_t k = 0; k < q->n_save; k++)
        put_words(o, (uint32_t[]){q->save[k].n_row, q->save[k].snap}, 2);
}

void lg_order_slice(lg_order_out *o, const lg_batch *b, uint32_t owner,
                    const lg_order_limit *lim) {
    uint32_t *w = o->word + o->n_word;
    LG_ASSERT(o->shares == LG_ORDER_OWN && b->n_tok <= lim->n_slice);
    o->shares = LG_ORDER_SLICED;
    put_words(o, (uint32_t[]){owner, 0}, 2);
    if (owner == lim->rank) return;
    put_words(o, b->tok, b->n_tok);
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const lg_batch_seq *q = &b->seq[i];
        for (uint32_t t = q->n_tok - q->n_out; t < q->n_tok; t++, w[1]++)
            put_words(o, (uint32_t[]){q->tok0 + t}, 1);
    }
}

void lg_order_end(lg_order_out *o, lg_order_kind kind, uint32_t step, const uint32_t *rank_tok,
                  const lg_order_limit *lim) {
    const uint32_t head[LG_ORDER_HEAD] = {LG_ORDER_MAGIC, (uint32_t)kind,     step,
                                          o->n_word,      o->n_cmd_word,      o->n_seq,
                                          lim->n_rank,    (uint32_t)o->shares};
    memcpy(o->word, head, sizeof head);
    if (rank_tok)
        memcpy(o->word + LG_ORDER_HEAD, rank_tok, lim->n_rank * sizeof *rank_tok);
    else
        memset(o->word + LG_ORDER_HEAD, 0, lim->n_rank * sizeof *rank_tok);
    LG_ASSERT(o->n_word <= lg_order_max_words(lim));
}

/* ---- reading ---- */

/* A message being read. */
typedef struct reader {
    const uint32_t *w;
    uint32_t at, n;
    const lg_order_limit *lim;
    lg_order_in *p;
    lg_err *err;
} reader;

#define EXPECT(r, cond, what)                                                                  \
    do {                                                                                       \
        if (!(cond))                                                                           \
            return LG_FAIL((r)->err, LG_E_FORMAT, "order: word %u: %s", (r)->at, what);        \
    } while (0)

static lg_status read_head(reader *r, size_t n_bytes) {
    const uint32_t *w = r->w;
    EXPECT(r, n_bytes >= (LG_ORDER_HEAD + r->lim->n_rank) * sizeof *w, "too short");
    EXPECT(r, w[0] == LG_ORDER_MAGIC && w[3] == n_bytes / sizeof *w && n_bytes % sizeof *w == 0,
           "not an order of this length");
    EXPECT(r, w[1] >= LG_ORDER_NOTE && w[1] <= LG_ORDER_QUIT, "unknown kind");
    EXPECT(r, w[6] == r->lim->n_rank, "another number of ranks");
    bool divided = w[SHARES] == LG_ORDER_DIVIDED;
    EXPECT(r, w[SHARES] <= LG_ORDER_SLICED, "unknown sharing");
    EXPECT(r, !divided || (r->lim->n_spread > 0 && w[5] > 0),
           "a divided sequence that there is not");
    r->n = w[3];
    r->at = LG_ORDER_HEAD + r->lim->n_rank;
    EXPECT(r, w[4] <= r->n - r->at && w[5] <= r->lim->n_slot + divided, "counts");
    EXPECT(r, w[1] == LG_ORDER_STEP || (w[5] == 0 && w[SHARES] != LG_ORDER_SLICED),
           "sequences without a step");
    uint32_t total = 0;
    for (uint32_t i = 0; i < r->lim->n_rank; i++) {
        uint32_t n = w[LG_ORDER_HEAD + i];
        EXPECT(r, n <= r->lim->max_tok - total, "more rows than a step may have");
        total += n;
    }
    r->p->kind = (lg_order_kind)w[1];
    r->p->step = w[2];
    r->p->cmd = w + r->at;
    r->p->n_cmd_word = w[4];
    r->p->batch.rank_tok = w + LG_ORDER_HEAD;
    return LG_OK;
}

/* Words of data that follow a command. */
static uint32_t cmd_data(lg_cmd op, const uint32_t *arg) {
    if (op == LG_CMD_IDS) return arg[2];
    if (op == LG_CMD_BIAS) return arg[1] * 2;
    return 0;
}

static lg_status read_bias(reader *r, const uint32_t *arg) {
    EXPECT(r, arg[0] < r->lim->n_slot && arg[1] <= LG_ORDER_MAX_BIAS, "biases");
    lg_order_slot *s = &r->p->slot[arg[0]];
    s->n_bias = arg[1];
    for (uint32_t i = 0; i < s->n_bias; i++) {
        s->bias[i] = (lg_bias){arg[3 + 2 * i], lg_num_float_of_bits(arg[4 + 2 * i])};
        EXPECT(r, s->bias[i].id < r->lim->n_vocab, "bias of an unknown id");
    }
    return LG_OK;
}

static lg_status read_ids(reader *r, const uint32_t *arg) {
    EXPECT(r,
           arg[0] < r->lim->n_slot && arg[2] <= r->lim->n_ctx &&
               arg[1] <= r->lim->n_ctx - arg[2],
           "ids");
    lg_order_slot *s = &r->p->slot[arg[0]];
    EXPECT(r, arg[1] <= s->n_known, "ids after a gap");
    for (uint32_t i = 0; i < arg[2]; i++) EXPECT(r, arg[3 + i] < r->lim->n_vocab, "unknown id");
    memcpy(s->ids + arg[1], arg + 3, arg[2] * sizeof *s->ids);
    s->n_known = arg[1] + arg[2];
    return LG_OK;
}

static lg_status read_cmd(reader *r, lg_cmd op, const uint32_t *arg) {
    const lg_order_limit *l = r->lim;
    switch (op) {
    case LG_CMD_LOAD:
    case LG_CMD_SAVE:
        EXPECT(r, arg[0] < l->n_slot && arg[1] >= 1 && arg[1] <= l->n_ctx && arg[2] < l->n_snap,
               "a snapshot that there is not");
        if (op == LG_CMD_LOAD) r->p->slot[arg[0]].n_known = r->p->slot[arg[0]].n_bias = 0;
        return LG_OK;
    case LG_CMD_COPY:
        EXPECT(r, arg[0] < l->n_page && arg[1] < l->n_page, "a page that there is not");
        return LG_OK;
    case LG_CMD_IDS: return read_ids(r, arg);
    case LG_CMD_BIAS: return read_bias(r, arg);
    case LG_CMD_CALL:
        EXPECT(r, r->p->kind == LG_ORDER_NOTE && arg[0] > 0, "a call");
        return LG_OK;
    }
    EXPECT(r, false, "unknown command");
    return LG_OK;
}

static lg_status read_cmds(reader *r) {
    uint32_t end = r->at + r->p->n_cmd_word;
    while (r->at < end) {
        EXPECT(r, end - r->at >= 4, "half a command");
        lg_cmd op = (lg_cmd)r->w[r->at];
        const uint32_t *arg = r->w + r->at + 1;
        EXPECT(r, op != LG_CMD_BIAS || arg[1] <= LG_ORDER_MAX_BIAS, "biases");
        uint32_t n = cmd_data(op, arg);
        EXPECT(r, n <= end - r->at - 4, "data of a command");
        LG_TRY(read_cmd(r, op, arg));
        r->at += 4 + n;
    }
    return LG_OK;
}

static lg_status read_sampler(reader *r, const uint32_t *w, const lg_batch_seq *q,
                              lg_sampler *s) {
    const lg_order_slot *slot = &r->p->slot[q->slot];
    EXPECT(r, (w[0] & ~(uint32_t)(F_SAMPLE | F_IGNORE_EOS)) == 0, "flags of a sampler");
    *s = (lg_sampler){.params = {.temperature = lg_num_float_of_bits(w[3]),
                                 .top_p = lg_num_float_of_bits(w[4]),
                                 .min_p = lg_num_float_of_bits(w[5]),
                                 .top_k = w[6],
                                 .presence_penalty = lg_num_float_of_bits(w[7]),
                                 .frequency_penalty = lg_num_float_of_bits(w[8]),
                                 .repetition_penalty = lg_num_float_of_bits(w[9]),
                                 .has_seed = true,
                                 .seed = (uint64_t)w[11] << 32 | w[10],
                                 .choice = w[12],
                                 .ignore_eos = (w[0] & F_IGNORE_EOS) != 0,
                                 .n_top = (int)w[13]},
                      .bias = slot->bias,
                      .n_bias = slot->n_bias,
                      .ids = slot->ids,
                      .n_prompt = w[1],
                      .n_id = w[2]};
    EXPECT(r, s->n_id == q->pos + q->n_tok && s->n_prompt <= s->n_id, "ids of a sampler");
    EXPECT(r, slot->n_known >= s->n_id, "a sampler whose ids are not all known");
    EXPECT(r, s->params.n_top >= -1 && s->params.n_top <= LG_MAX_TOP, "log-probabilities");
    return LG_OK;
}

/* Snapshots of a sequence, after its pages. */
static lg_status read_saves(reader *r, lg_batch_seq *q, const uint32_t *save, bool here,
                            uint32_t *n_save) {
    lg_order_in *p = r->p;
    uint32_t most = r->lim->n_snap + (here ? 0 : LG_SPREAD_MAX_SAVE);
    q->save = p->save + *n_save;
    for (uint32_t i = 0, low = 1; i < q->n_save; i++) {
        lg_batch_save s = {save[2 * i], save[2 * i + 1]};
        EXPECT(r,
               s.n_row >= low && s.n_row <= q->n_tok && s.snap < r->lim->n_snap &&
                   *n_save < most,
               "snapshots of a sequence");
        low = s.n_row + 1;
        p->save[(*n_save)++] = s;
    }
    return LG_OK;
}

/* The rows of a sequence: ids, pages, snapshots.  here: its slot and pages are this rank's. */
static lg_status read_rows(reader *r, lg_batch_seq *q, uint32_t n_page, bool here,
                           uint32_t *n_save) {
    lg_order_in *p = r->p;
    const uint32_t *tok = r->w + r->at, *page = tok + q->n_tok;
    for (uint32_t i = 0; i < q->n_tok; i++) EXPECT(r, tok[i] < r->lim->n_vocab, "unknown id");
    for (uint32_t i = 0; i < n_page; i++)
        EXPECT(r, page[i] < r->lim->n_page, "a page that there is not");
    LG_TRY(read_saves(r, q, page + n_page, here, n_save));
    if (here) {
        lg_order_slot *slot = &p->slot[q->slot];
        if (q->pos == 0) slot->n_known = 0;
        memcpy(slot->ids + q->pos, tok, q->n_tok * sizeof *tok);
        if (q->pos <= slot->n_known && slot->n_known < q->pos + q->n_tok)
            slot->n_known = q->pos + q->n_tok;
        memcpy(p->page + p->batch.n_page, page, n_page * sizeof *page);
        p->batch.n_page += n_page;
    }
    r->at += q->n_tok + n_page + 2 * q->n_save;
    return LG_OK;
}

/* Rows first .. first + n - 1 of a sequence become the batch's. */
static lg_status take_rows(reader *r, lg_batch_seq *q, const uint32_t *tok, uint32_t first,
                           uint32_t n) {
    lg_batch *b = &r->p->batch;
    EXPECT(r, n >= 1 && n <= r->lim->max_tok - b->n_tok, "rows of a sequence");
    memcpy(r->p->tok + b->n_tok, tok + first, n * sizeof *tok);
    q->pos += first;
    q->n_tok = n;
    b->n_tok += n;
    return LG_OK;
}

/* A divided sequence: this rank's part of it. */
static lg_status divide(reader *r, lg_batch_seq *q, const uint32_t *w, const uint32_t *tok) {
    const lg_order_limit *l = r->lim;
    lg_order_in *p = r->p;
    p->spread = (lg_batch_spread){w[6], q->pos, q->n_tok, w[7] != 0, q->save, q->n_save};
    p->batch.spread = &p->spread;
    q->n_save = 0;
    q->save = NULL;
    if (w[6] != l->rank) {
        q->slot = l->n_slot;
        q->n_out = 0;
        for (uint32_t i = 0; i < pages_of(q->pos + q->n_tok); i++)
            p->page[p->batch.n_page++] = l->n_page + i;
    }
    uint32_t place = lg_spread_place(w[6], l->n_rank, l->rank), n = q->n_tok;
    uint32_t first = lg_spread_part(n, l->n_rank, place);
    return take_rows(r, q, tok, first, lg_spread_part(n, l->n_rank, place + 1) - first);
}

static lg_status check_seq(const reader *r, const uint32_t *w, const lg_batch_seq *q,
                           bool divided, bool here) {
    const lg_order_limit *l = r->lim;
    if (here) {
        EXPECT(r, q->slot < l->n_slot && !r->p->seen[q->slot],
               "a slot that there is not, or twice");
        r->p->seen[q->slot] = true;
    }
    EXPECT(r,
           q->n_tok >= 1 && q->n_tok <= l->max_tok && q->pos <= l->n_ctx &&
               q->n_tok <= l->n_ctx - q->pos,
           "rows of a sequence");
    EXPECT(r,
           q->n_out <= 1 && w[4] == (here ? pages_of(q->pos + q->n_tok) : 0) &&
               q->n_save <= q->n_tok,
           "a sequence's counts");
    if (!divided) return LG_OK;
    EXPECT(r,
           w[6] < l->n_rank && w[7] <= 1 && q->n_save <= LG_SPREAD_MAX_SAVE &&
               q->pos + q->n_tok <= l->n_spread,
           "a divided sequence");
    return LG_OK;
}

static lg_status read_seq(reader *r, uint32_t i, bool divided, uint32_t *n_save) {
    lg_order_in *p = r->p;
    EXPECT(r, r->n - r->at >= LG_ORDER_SEQ, "half a sequence");
    const uint32_t *w = r->w + r->at;
    bool here = !divided || w[6] == r->lim->rank;
    lg_batch_seq *q = &p->seq[i];
    *q = (lg_batch_seq){.slot = w[0],
                        .pos = w[1],
                        .n_tok = w[2],
                        .tok0 = p->batch.n_tok,
                        .page0 = p->batch.n_page,
                        .n_out = w[3],
                        .n_save = w[5]};
    LG_TRY(check_seq(r, w, q, divided, here));
    r->at += LG_ORDER_SEQ;
    EXPECT(r, r->n - r->at >= (uint64_t)q->n_tok + w[4] + 2 * (uint64_t)q->n_save,
           "half the rows of a sequence");
    const uint32_t *tok = r->w + r->at;
    LG_TRY(read_rows(r, q, w[4], here, n_save));
    if (here && w[8] & F_SAMPLE) {
        EXPECT(r, q->n_out == 1, "a sampler without logits");
        q->sampler = &p->sampler[i];
        LG_TRY(read_sampler(r, w + 8, q, &p->sampler[i]));
    }
    return divided ? divide(r, q, w, tok) : take_rows(r, q, tok, 0, q->n_tok);
}

/* The rows of a step with which all ranks help: after the sequences of their owner, or instead of any. */
static lg_status read_slice(reader *r) {
    const lg_order_limit *l = r->lim;
    lg_order_in *p = r->p;
    EXPECT(r, r->n - r->at >= 2, "half of what is helped with");
    const uint32_t *w = r->w + r->at, *rows = p->batch.rank_tok;
    uint32_t total = 0;
    EXPECT(r, w[0] < l->n_rank && w[1] <= l->n_slot, "what is helped with");
    for (uint32_t i = 0; i < l->n_rank; i++) total += rows[i];
    EXPECT(r, total >= 1 && total <= l->n_slice && rows[w[0]] == total,
           "rows that are helped with");
    bool own = w[0] == l->rank;
    uint32_t n = own ? 0 : total;
    EXPECT(r, own ? w[1] == 0 : p->batch.n_tok == 0 && w[1] <= total, "whose rows");
    r->at += 2;
    EXPECT(r, r->n - r->at >= n + w[1], "half the rows that are helped with");
    for (uint32_t i = 0; i < n; i++) EXPECT(r, w[2 + i] < l->n_vocab, "unknown id");
    const uint32_t *out = w + 2 + n;
    for (uint32_t i = 0; i < w[1]; i++)
        EXPECT(r, out[i] < total && (i == 0 || out[i] > out[i - 1]), "rows that give logits");
    if (n) memcpy(p->tok, w + 2, n * sizeof *p->tok);
    p->batch.n_tok += n;
    p->slice = (lg_batch_slice){w[0], w[1], out};
    p->batch.slice = &p->slice;
    r->at += n + w[1];
    return LG_OK;
}

lg_status lg_order_read(lg_order_in *p, const uint32_t *word, size_t n_bytes,
                        const lg_order_limit *lim, lg_err *err) {
    reader r = {.w = word, .lim = lim, .p = p, .err = err};
    uint32_t n_save = 0;
    p->batch = (lg_batch){.tok = p->tok, .seq = p->seq, .page = p->page};
    LG_TRY(read_head(&r, n_bytes));
    LG_TRY(read_cmds(&r));
    memset(p->seen, 0, lim->n_slot * sizeof *p->seen);
    for (uint32_t i = 0; i < word[5]; i++)
        LG_TRY(read_seq(&r, i, i + 1 == word[5] && word[SHARES] == LG_ORDER_DIVIDED, &n_save));
    p->batch.n_seq = word[5];
    if (word[SHARES] == LG_ORDER_SLICED) LG_TRY(read_slice(&r));
    EXPECT(&r, r.at == r.n, "words left over");
    uint32_t whose = p->batch.slice ? p->slice.owner : lim->rank;
    EXPECT(&r, p->kind != LG_ORDER_STEP || p->batch.n_tok == p->batch.rank_tok[whose],
           "rows of this rank");
    return LG_OK;
}

bool lg_order_next(const lg_order_in *p, uint32_t *at, lg_cmd *op, const uint32_t **arg) {
    if (*at >= p->n_cmd_word) return false;
    *op = (lg_cmd)p->cmd[*at];
    *arg = p->cmd + *at + 1;
    *at += 4 + cmd_data(*op, *arg);
    return true;
}

/* ---- replies ---- */

size_t lg_order_put_reply(uint32_t *word, uint32_t step, lg_status st, const lg_batch *b,
                          const lg_sampled *sampled) {
    uint32_t *w = word;
    w[0] = LG_ORDER_MAGIC;
    w[1] = (uint32_t)st;
    w[2] = step;
    w[3] = b->n_seq;
    w += 4;
    for (uint32_t i = 0; i < b->n_seq; i++, w += LG_ORDER_SAMPLED) {
        const lg_sampled *s = &sampled[i];
        memset(w, 0, LG_ORDER_SAMPLED * sizeof *w);
        if (!b->seq[i].sampler) continue;
        w[0] = s->id;
        w[1] = lg_num_bits_of_float(s->logprob);
        w[2] = s->nonfinite ? 0 : s->n_top;
        w[3] = s->nonfinite;
        for (uint32_t k = 0; k < w[2]; k++) {
            w[4 + 2 * k] = s->top[k].id;
            w[5 + 2 * k] = lg_num_bits_of_float(s->top[k].logprob);
        }
    }
    return (size_t)(w - word);
}

lg_status lg_order_get_reply(const uint32_t *word, size_t n_bytes, uint32_t step,
                             uint32_t n_seq, lg_status *st, lg_sampled *sampled, lg_err *err) {
    const uint32_t *w = word + 4;
    if (n_bytes != (4 + (size_t)n_seq * LG_ORDER_SAMPLED) * sizeof *word ||
        word[0] != LG_ORDER_MAGIC || word[2] != step || word[3] != n_seq)
        return LG_FAIL(err, LG_E_FORMAT, "a reply of %zu bytes that is not of step %u", n_bytes,
                       step);
    *st = (lg_status)word[1];
    for (uint32_t i = 0; i < n_seq; i++, w += LG_ORDER_SAMPLED) {
        lg_sampled *s = &sampled[i];
        if (w[2] > LG_MAX_TOP || w[3] > 1)
            return LG_FAIL(err, LG_E_FORMAT, "a reply with %u alternatives", w[2]);
        s->id = w[0];
        s->logprob = lg_num_float_of_bits(w[1]);
        s->n_top = w[2];
        s->nonfinite = w[3] != 0;
        for (uint32_t k = 0; k < w[2]; k++)
            s->top[k] = (lg_top){w[4 + 2 * k], lg_num_float_of_bits(w[5 + 2 * k])};
    }
    return LG_OK;
}
