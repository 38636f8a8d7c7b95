/* round.c - one step on the devices: cut into rounds of programs, packed, run, and its results handed out.
 *
 * In: the engine's batch.  Out: sampled tokens, and logits rows of the sequences that need them.
 * In a round every sequence gives its rows up to its next snapshot.  Parts of about the same length go into one program, as rows of a
 * rectangle; what is due after them is copied; then the next round.
 * Rows of logits come down when a sequence has no sampler or one that is not plain greedy; the others' rows of lg_step_out.logits
 * are not filled.
 * Thread: engine, under be->lock.  Memory: none, but for a program's first use.  Test: tests/unit/test_pjrt_step.c */
#include "backend/pjrt/be.h"

#include <string.h>

static uint32_t max_of(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* ---- cutting ---- */

/* The next part of every sequence; how many there are. */
static uint32_t cut(lg_pjrt_be *be, const lg_batch *batch) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < batch->n_seq; i++) {
        const lg_batch_seq *s = &batch->seq[i];
        uint32_t row0 = be->done[i], end = s->n_tok;
        if (row0 == end) continue;
        lg_pjrt_part p = {.seq = i, .row0 = row0, .save = UINT32_MAX};
        if (be->saved[i] < s->n_save) {
            p.save = be->saved[i]++;
            end = s->save[p.save].n_row;
            LG_ASSERT(end > row0 && end <= s->n_tok);
        }
        uint32_t first_out = max_of(s->n_tok - s->n_out, row0);
        p.n_tok = end - row0;
        p.n_out = end > first_out ? end - first_out : 0;
        p.out0 = be->out0[i] + (first_out - (s->n_tok - s->n_out));
        be->done[i] = end;
        be->part[n++] = p;
    }
    return n;
}

/* A sampler whose choice is the largest logit, of which nothing more is told than its own log-probability. */
static bool is_plain(const lg_sampler *s) {
    const lg_params *p = &s->params;
    return p->temperature == 0.0f && p->presence_penalty == 0.0f &&
           p->frequency_penalty == 0.0f && p->repetition_penalty == 1.0f && s->n_bias == 0 &&
           !s->mask && p->n_top <= 0;
}

/* ---- which program ---- */

/* The parts of a round that one program takes: those of one row, and those of more than `above` and at most n_row rows. */
typedef struct choice {
    bool ones;
    uint32_t above, n_row;
} choice;

static bool takes(const choice *c, const lg_pjrt_part *p) {
    if (p->done) return false;
    if (p->n_tok == 1) return c->ones;
    return p->n_tok > c->above && p->n_tok <= c->n_row;
}

/* The program's rectangle for the first part that waits.  false: none does. */
static bool choose(const lg_pjrt_be *be, choice *c) {
    const lg_pjrt_part *first = NULL;
    bool ones = false;
    for (uint32_t i = 0; i < be->n_part; i++) {
        const lg_pjrt_part *p = &be->part[i];
        if (p->done) continue;
        if (p->n_tok == 1)
            ones = true;
        else if (!first)
            first = p;
    }
    *c = (choice){.ones = ones};
    if (first) {
        c->n_row = lg_pjrt_bucket_rung(first->n_tok, LG_PJRT_LEAST_ROWS, be->opt.max_tok,
                                       be->dev->grow);
        /* the rung below: parts that it holds are another program's */
        for (uint32_t r = LG_PJRT_LEAST_ROWS; r < first->n_tok; r *= be->dev->grow)
            c->above = r;
        if (ones && !be->dev->mixed) c->ones = false;
    }
    return first || ones;
}

/* Smallest bucket for a choice, over all devices. */
static lg_pjrt_bucket bucket_of(const lg_pjrt_be *be, const lg_batch *batch, const choice *c) {
    lg_pjrt_bucket b = {.trace = be->opt.trace != NULL};
    uint32_t n_page = 1, n_out = 0, grow = be->dev->grow;
    for (uint32_t d = 0; d < be->model.n_device; d++) {
        uint32_t one = 0, many = 0, out = 0;
        for (uint32_t i = 0; i < be->n_part; i++) {
            const lg_pjrt_part *p = &be->part[i];
            const lg_batch_seq *s = &batch->seq[p->seq];
            if (s->owner != d || !takes(c, p)) continue;
            p->n_tok == 1 ? one++ : many++;
            out += p->n_out;
            n_page = max_of(n_page, lg_pjrt_bucket_pages(s->pos + p->row0 + p->n_tok));
            b.logits |= p->n_out && (!s->sampler || !is_plain(s->sampler));
        }
        b.n_one = max_of(b.n_one, one);
        b.n_many = max_of(b.n_many, many);
        n_out = max_of(n_out, out);
    }
    if (b.n_one) b.n_one = lg_pjrt_bucket_rung(b.n_one, 1, be->opt.max_seq, grow);
    if (b.n_many) {
        b.n_many = lg_pjrt_bucket_rung(b.n_many, 1, be->opt.max_seq, grow);
        b.n_row = c->n_row;
    }
    b.n_page = lg_pjrt_bucket_rung(n_page, LG_PJRT_LEAST_PAGES,
                                   lg_pjrt_bucket_pages(be->opt.n_ctx), grow);
    uint32_t n_seq = b.n_one + b.n_many;
    b.n_out = n_out <= 1 ? 1 : n_out <= n_seq ? n_seq : b.n_one + b.n_many * b.n_row;
    return b;
}

/* ---- arguments ---- */

static void fill_empty(const lg_pjrt_be *be, const lg_pjrt_bucket *b, const lg_pjrt_step *at) {
    uint32_t n_seq = b->n_one + b->n_many;
    memset(be->step, 0, at->n * sizeof *be->step);
    for (uint32_t s = 0; s < n_seq; s++) be->step[at->slot + s] = (int32_t)be->model.n_slot - 1;
    for (uint32_t i = 0; i < n_seq * b->n_page; i++)
        be->step[at->page + i] = (int32_t)be->model.n_page - 1;
}

/* Sequence s of the program, with its rows from `row` on and its output rows from entry `out` on. */
static void fill_part(const lg_pjrt_be *be, const lg_batch *batch, const lg_pjrt_part *p,
                      const lg_pjrt_bucket *b, const lg_pjrt_step *at, uint32_t s, uint32_t row,
                      uint32_t out) {
    const lg_batch_seq *q = &batch->seq[p->seq];
    int32_t *v = be->step;
    uint32_t n_page = lg_pjrt_bucket_pages(q->pos + p->row0 + p->n_tok);
    v[at->pos + s] = (int32_t)(q->pos + p->row0);
    v[at->n_tok + s] = (int32_t)p->n_tok;
    v[at->slot + s] = (int32_t)q->slot;
    for (uint32_t i = 0; i < p->n_tok; i++)
        v[at->tok + row + i] = (int32_t)batch->tok[q->tok0 + p->row0 + i];
    for (uint32_t i = 0; i < n_page; i++)
        v[at->page + s * b->n_page + i] = (int32_t)batch->page[q->page0 + i];
    for (uint32_t i = 0; i < p->n_out; i++)
        v[at->out + out + i] = (int32_t)(row + p->n_tok - p->n_out + i);
}

/* The step vector of device d, up. */
static lg_status send(lg_pjrt_be *be, const lg_batch *batch, const choice *c,
                      const lg_pjrt_bucket *b, uint32_t d, lg_err *err) {
    const lg_pjrt_step at = lg_pjrt_step_of(b);
    const lg_pjrt_dims dims = {LG_PJRT_S32, 1, {at.n}};
    uint32_t one = 0, many = 0, out = 0;
    fill_empty(be, b, &at);
    for (uint32_t i = 0; i < be->n_part; i++) {
        const lg_pjrt_part *p = &be->part[i];
        if (batch->seq[p->seq].owner != d || !takes(c, p)) continue;
        uint32_t s = p->n_tok == 1 ? one : b->n_one + many;
        uint32_t row = p->n_tok == 1 ? one++ : b->n_one + many++ * b->n_row;
        fill_part(be, batch, p, b, &at, s, row, out);
        out += p->n_out;
    }
    return lg_pjrt_buf_put(be->dev->client, d, &dims, be->step,
                           &be->arg[(size_t)d * be->n_arg + be->step_arg], err);
}

/* ---- results ---- */

static void sample(lg_pjrt_be *be, const lg_batch_seq *s, const lg_pjrt_part *p, uint32_t out,
                   lg_sampled *to) {
    uint32_t last = p->out0 + p->n_out - 1;
    if (!is_plain(s->sampler)) {
        lg_sample(s->sampler, be->logits + (size_t)last * be->cfg->n_vocab, be->cfg->n_vocab,
                  be->opt.n_sample_vocab, be->sample_work, to);
        return;
    }
    int32_t id = be->id[out + p->n_out - 1];
    *to = (lg_sampled){.id = id < 0 ? 0 : (uint32_t)id, .nonfinite = id < 0};
    if (s->sampler->params.n_top >= 0) to->logprob = be->logprob[out + p->n_out - 1];
}

/* Rows of one traced result to the tracer: x [n_row][n_col] in the program's order, of device d. */
static void trace_rows(lg_pjrt_be *be, const lg_batch *batch, const choice *c,
                       const lg_pjrt_bucket *b, uint32_t d, int layer, const char *name,
                       const float *x, size_t n_col) {
    uint32_t one = 0, many = 0;
    for (uint32_t i = 0; i < be->n_part; i++) {
        const lg_pjrt_part *part = &be->part[i];
        if (batch->seq[part->seq].owner != d || !takes(c, part)) continue;
        size_t row = part->n_tok == 1 ? one++ : b->n_one + (size_t)many++ * b->n_row;
        be->opt.trace(be->opt.trace_ctx, layer, name, x + row * n_col, part->n_tok, n_col,
                      n_col);
    }
}

/* The intermediates that a program with opt.trace_all gives. */
static lg_status trace_items(lg_pjrt_be *be, const lg_batch *batch, const choice *c,
                             const lg_pjrt_program *p, uint32_t d, lg_err *err) {
    lg_pjrt_buf **from = be->out + (size_t)d * lg_pjrt_exe_n_out(p->exe) + (uint32_t)p->out.n;
    lg_status st = LG_OK;
    for (uint32_t i = 0; st == LG_OK && i < p->items->n; i++) {
        const lg_hlo_type *t = &p->items->item[i].type;
        lg_pjrt_dims dims = {.type = LG_PJRT_F32, .rank = t->n_dim};
        size_t n_col = 1;
        LG_ASSERT(t->dt == LG_HLO_F32);
        for (uint32_t k = 0; k < t->n_dim; k++) {
            dims.dim[k] = t->dim[k];
            if (k) n_col *= (size_t)t->dim[k];
        }
        float *x = lg_mem_alloc(lg_pjrt_dims_bytes(&dims));
        if (!x) return LG_FAIL(err, LG_E_NOMEM, "trace: no memory");
        st = lg_pjrt_buf_get(be->dev->client, from[i], &dims, x, err);
        if (st == LG_OK)
            trace_rows(be, batch, c, &p->bucket, d, p->items->item[i].layer,
                       p->items->item[i].name, x, n_col);
        lg_mem_free(x);
    }
    return st;
}

/* The residual stream of every part of device d, to the tracer. */
static lg_status trace(lg_pjrt_be *be, const lg_batch *batch, const choice *c,
                       const lg_pjrt_program *p, uint32_t d, lg_err *err) {
    const lg_pjrt_bucket *b = &p->bucket;
    size_t n_row = b->n_one + (size_t)b->n_many * b->n_row, h = be->cfg->n_embd;
    uint32_t n_layer = be->cfg->n_layer;
    const lg_pjrt_dims dims = {LG_PJRT_F32, 3, {n_layer + 1, (int64_t)n_row, (int64_t)h}};
    lg_pjrt_buf *from = be->out[(size_t)d * lg_pjrt_exe_n_out(p->exe) + (uint32_t)p->out.trace];
    float *x = lg_mem_alloc(lg_pjrt_dims_bytes(&dims));
    if (!x) return LG_FAIL(err, LG_E_NOMEM, "trace: no memory");
    lg_status st = lg_pjrt_buf_get(be->dev->client, from, &dims, x, err);
    for (uint32_t l = 0; st == LG_OK && l <= n_layer; l++)
        if (l == 0 || !p->items)
            trace_rows(be, batch, c, b, d, (int)l - 1, l ? "out" : "embed", x + l * n_row * h,
                       h);
    lg_mem_free(x);
    return st;
}

/* What device d computed, down and to its sequences. */
static lg_status receive(lg_pjrt_be *be, const lg_batch *batch, const choice *c,
                         const lg_pjrt_program *p, uint32_t d, lg_step_out *to, lg_err *err) {
    const lg_pjrt_bucket *b = &p->bucket;
    lg_pjrt_client *client = be->dev->client;
    lg_pjrt_buf **result = be->out + (size_t)d * lg_pjrt_exe_n_out(p->exe);
    size_t vocab = be->cfg->n_vocab;
    const lg_pjrt_dims id = {LG_PJRT_S32, 1, {b->n_out}},
                       logprob = {LG_PJRT_F32, 1, {b->n_out}},
                       logits = {LG_PJRT_F32, 2, {b->n_out, (int64_t)vocab}};
    LG_TRY(lg_pjrt_buf_get(client, result[p->out.id], &id, be->id, err));
    LG_TRY(lg_pjrt_buf_get(client, result[p->out.logprob], &logprob, be->logprob, err));
    if (b->logits)
        LG_TRY(lg_pjrt_buf_get(client, result[p->out.logits], &logits, be->down, err));
    if (b->trace) LG_TRY(trace(be, batch, c, p, d, err));
    if (p->items) LG_TRY(trace_items(be, batch, c, p, d, err));
    uint32_t out = 0;
    for (uint32_t i = 0; i < be->n_part; i++) {
        const lg_pjrt_part *part = &be->part[i];
        const lg_batch_seq *s = &batch->seq[part->seq];
        if (s->owner != d || !takes(c, part)) continue;
        if (b->logits && part->n_out)
            memcpy(be->logits + part->out0 * vocab, be->down + out * vocab,
                   part->n_out * vocab * sizeof *be->logits);
        bool ends = part->row0 + part->n_tok == s->n_tok;
        if (ends && s->sampler && part->n_out)
            sample(be, s, part, out, &to->sampled[part->seq]);
        out += part->n_out;
    }
    return LG_OK;
}

/* One program: what `c` takes. */
static lg_status run(lg_pjrt_be *be, const lg_batch *batch, const choice *c, lg_step_out *to,
                     lg_err *err) {
    lg_pjrt_client *client = be->dev->client;
    uint32_t n_dev = be->model.n_device;
    lg_pjrt_program *p;
    lg_pjrt_bucket b = bucket_of(be, batch, c);
    lg_status st = LG_OK;
    bool any_out = false;
    LG_TRY(lg_pjrt_bucket_program(be, &b, &p, err));
    for (uint32_t d = 0; st == LG_OK && d < n_dev; d++) st = send(be, batch, c, &b, d, err);
    if (st == LG_OK) st = lg_pjrt_bucket_call(be, p->exe, err);
    for (uint32_t i = 0; i < be->n_part; i++)
        any_out |= takes(c, &be->part[i]) && (be->part[i].n_out || b.trace);
    for (uint32_t d = 0; st == LG_OK && any_out && d < n_dev; d++)
        st = receive(be, batch, c, p, d, to, err);
    for (uint32_t d = 0; d < n_dev; d++)
        lg_pjrt_buf_free(client, &be->arg[(size_t)d * be->n_arg + be->step_arg]);
    for (size_t i = 0; i < (size_t)n_dev * lg_pjrt_exe_n_out(p->exe); i++)
        lg_pjrt_buf_free(client, &be->out[i]);
    for (uint32_t i = 0; i < be->n_part; i++) be->part[i].done |= takes(c, &be->part[i]);
    return st;
}

/* Snapshots that are due after this round. */
static lg_status save(lg_pjrt_be *be, const lg_batch *batch, lg_err *err) {
    for (uint32_t i = 0; i < be->n_part; i++) {
        const lg_pjrt_part *p = &be->part[i];
        const lg_batch_seq *s = &batch->seq[p->seq];
        if (p->save == UINT32_MAX) continue;
        LG_TRY(lg_pjrt_unit_copy(be, s->owner, true, s->slot,
                                 be->opt.n_slot + s->save[p->save].snap, err));
    }
    return LG_OK;
}

lg_status lg_pjrt_round_step(lg_pjrt_be *be, const lg_batch *batch, lg_step_out *out,
                             lg_err *err) {
    uint32_t n_out = 0;
    LG_ASSERT(batch->n_seq <= be->max_seq);
    for (uint32_t i = 0; i < batch->n_seq; i++) {
        const lg_batch_seq *s = &batch->seq[i];
        LG_ASSERT(s->owner < be->model.n_device && s->n_tok >= 1 && s->n_out <= s->n_tok);
        be->done[i] = be->saved[i] = 0;
        be->out0[i] = n_out;
        n_out += s->n_out;
    }
    LG_ASSERT(n_out <= be->opt.max_out * be->model.n_device);
    out->logits = be->logits;
    out->ld_logits = be->cfg->n_vocab;
    while ((be->n_part = cut(be, batch)) > 0) {
        choice c;
        while (choose(be, &c)) LG_TRY(run(be, batch, &c, out, err));
        LG_TRY(save(be, batch, err));
    }
    return LG_OK;
}
