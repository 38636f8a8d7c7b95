/* score.c - logits of whole texts: see score.h.
 *
 * Thread: the caller's, and the pool's.  Memory: one backend; its logits are LG_SCORE_STEP rows of the vocabulary.
 * Test: tests/unit/test_score.c */
#include "score.h"

#include "base/buf.h"
#include "base/num.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_TEXT (1u << 30)

static uint32_t pages_of(uint32_t n_tok) {
    return (n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
}

lg_status lg_score_init_on(lg_score *s, const lg_weights *w, lg_pool *pool,
                           const lg_backend_ops *ops, const lg_backend_opt *opt, lg_err *err) {
    uint32_t n_ctx = opt->n_ctx;
    *s = (lg_score){.w = w, .ops = ops, .n_ctx = n_ctx, .n_seq = opt->n_slot};
    if (n_ctx > w->cfg.n_ctx_max)
        return LG_FAIL(err, LG_E_ARG, "context: found %u, expected at most the model's %u",
                       n_ctx, w->cfg.n_ctx_max);
    LG_TRY(ops->open(w, opt, pool, &s->be, err));
    s->page = lg_mem_calloc(opt->n_page, sizeof *s->page);
    if (!s->page) {
        lg_score_fini(s);
        return LG_FAIL(err, LG_E_NOMEM, "no memory for %u pages", opt->n_page);
    }
    for (uint32_t i = 0; i < opt->n_page; i++) s->page[i] = i;
    return LG_OK;
}

lg_backend_opt lg_score_options(const lg_weights *w, uint32_t n_ctx, uint32_t n_seq, bool exact,
                                lg_kv_type kv) {
    return (lg_backend_opt){.n_slot = n_seq,
                            .n_ctx = n_ctx,
                            .n_page = pages_of(n_ctx) * n_seq,
                            .max_tok = LG_SCORE_STEP,
                            .max_seq = n_seq,
                            .max_out = LG_SCORE_STEP,
                            .n_sample_vocab = w->cfg.n_vocab,
                            .kv = lg_kv_of(exact ? LG_KV_F32 : kv),
                            .exact = exact};
}

lg_status lg_score_init(lg_score *s, const lg_weights *w, lg_pool *pool, uint32_t n_ctx,
                        uint32_t n_seq, bool exact, lg_kv_type kv, lg_err *err) {
    lg_backend_opt opt = lg_score_options(w, n_ctx, n_seq, exact, kv);
    return lg_score_init_on(s, w, pool, lg_backend_cpu(), &opt, err);
}

lg_status
lg_score_init_observed(lg_score *s, const lg_weights *w, lg_pool *pool, uint32_t n_ctx,
                       void (*observe)(void *ctx, const lg_mat *w, const float *x, size_t ld_x,
                                       const uint32_t *row_idx, uint32_t n_row),
                       void *observe_ctx, lg_err *err) {
    lg_backend_opt opt = lg_score_options(w, n_ctx, 1, true, LG_KV_F32);
    opt.observe = observe;
    opt.observe_ctx = observe_ctx;
    return lg_score_init_on(s, w, pool, lg_backend_cpu(), &opt, err);
}

lg_status lg_score_check(const lg_weights *w, const uint32_t *id, size_t n, const char *what,
                         lg_err *err) {
    for (size_t i = 0; i < n; i++)
        if (id[i] >= w->cfg.n_vocab)
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: id %u: expected fewer than the head's %u rows", what, id[i],
                           w->cfg.n_vocab);
    return LG_OK;
}

void lg_score_fini(lg_score *s) {
    if (s->ops) s->ops->close(&s->be);
    LG_FREE(s->page);
}

lg_status lg_score_step(lg_score *s, const uint32_t *id, uint32_t n, uint32_t pos,
                        uint32_t n_out, const float **logits, size_t *ld, lg_err *err) {
    lg_batch_seq seq = {.pos = pos, .n_tok = n, .n_out = n_out};
    lg_batch batch = {.tok = id,
                      .n_tok = n,
                      .seq = &seq,
                      .n_seq = 1,
                      .page = s->page,
                      .n_page = pages_of(pos + n)};
    lg_step_out out = {0};
    if (s->ops->step(s->be, &batch, &out) != LG_OK)
        return LG_FAIL(err, LG_E_BACKEND, "the backend failed at position %u", pos);
    *logits = out.logits;
    *ld = out.ld_logits;
    return LG_OK;
}

double lg_score_log_sum(const float *x, size_t n) {
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) top = fmax(top, (double)x[i]);
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

lg_status lg_score_nll(lg_score *s, const uint32_t *id, uint32_t n, uint32_t first, double *sum,
                       double *sum_sq, lg_err *err) {
    LG_ASSERT(n <= s->n_ctx);
    *sum = *sum_sq = 0;
    for (uint32_t at = 0, len; at < n; at += len) {
        const float *x;
        size_t ld;
        len = n - at < LG_SCORE_STEP ? n - at : LG_SCORE_STEP;
        uint32_t begin = at < first ? first - at : 0, n_out = begin < len ? len - begin : 0;
        LG_TRY(lg_score_step(s, id + at, len, at, n_out, &x, &ld, err));
        for (uint32_t i = len - n_out; i < len && at + i + 1 < n; i++, x += ld) {
            uint32_t next = id[at + i + 1];
            double nll = lg_score_log_sum(x, s->w->cfg.n_vocab) - (double)x[next];
            if (!isfinite(nll))
                return LG_FAIL(err, LG_E_BACKEND, "logits are not finite at position %u",
                               at + i);
            *sum += nll;
            *sum_sq += nll * nll;
        }
    }
    return LG_OK;
}

/* The id at which the distribution function of the row reaches u. */
static uint32_t draw(const float *x, uint32_t n, double u) {
    double left = u, all = lg_score_log_sum(x, n);
    uint32_t i = 0;
    while (i + 1 < n && (left -= exp((double)x[i] - all)) >= 0) i++;
    return i;
}

lg_status lg_score_sample(lg_score *s, uint32_t *id, uint32_t n, uint32_t start,
                          uint32_t n_token, uint64_t seed, lg_err *err) {
    lg_batch_seq seq[LG_SCORE_STEP];
    uint32_t tok[LG_SCORE_STEP], n_page = pages_of(s->n_ctx);
    LG_ASSERT(n <= s->n_ctx && s->n_seq <= LG_SCORE_STEP);
    for (uint32_t q = 0; q < s->n_seq; q++) id[(size_t)q * n] = start;
    for (uint32_t pos = 0; pos + 1 < n; pos++) {
        lg_step_out out = {0};
        for (uint32_t q = 0; q < s->n_seq; q++) {
            tok[q] = id[(size_t)q * n + pos];
            seq[q] = (lg_batch_seq){
                .slot = q, .pos = pos, .n_tok = 1, .tok0 = q, .page0 = q * n_page, .n_out = 1};
        }
        lg_batch batch = {.tok = tok,
                          .n_tok = s->n_seq,
                          .seq = seq,
                          .n_seq = s->n_seq,
                          .page = s->page,
                          .n_page = n_page * s->n_seq};
        if (s->ops->step(s->be, &batch, &out) != LG_OK)
            return LG_FAIL(err, LG_E_BACKEND, "the backend failed at position %u", pos);
        for (uint32_t q = 0; q < s->n_seq; q++)
            id[(size_t)q * n + pos + 1] = draw(out.logits + q * out.ld_logits, n_token,
                                               (double)lg_num_rng_unit(seed, q, pos, 0));
    }
    return LG_OK;
}

lg_status lg_score_read(const char *model, const char *file, uint32_t **id, size_t *n,
                        lg_err *err) {
    char part[4096];
    size_t got;
    lg_buf b = {0};
    lg_text *text;
    FILE *f = fopen(file, "rb");
    if (!f) return LG_FAIL(err, LG_E_IO, "%s: %s", file, strerror(errno));
    while ((got = fread(part, 1, sizeof part, f)) > 0 && b.len_bytes < MAX_TEXT)
        lg_buf_put(&b, part, got);
    bool bad = ferror(f) || b.failed || b.len_bytes >= MAX_TEXT;
    fclose(f);
    lg_status st = bad ? LG_FAIL(err, LG_E_IO, "%s: cannot be read as a whole", file)
                       : lg_text_open(model, &text, err);
    if (st == LG_OK) {
        size_t len = b.len_bytes;
        if (len && b.data[len - 1] == '\n') len--;
        st = lg_text_encode(text, lg_buf_str(&b), len, id, n, err);
        lg_text_close(&text);
    }
    lg_buf_fini(&b);
    return st;
}
