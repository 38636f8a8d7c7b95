/* score.h - logits of whole texts, for commands that measure a model: perplexity and verify.
 *
 * A model is loaded once and may get two backends, one with float products and one as it is served.
 * Test: tests/unit/test_score.c */
#ifndef LG_CLI_SCORE_H
#define LG_CLI_SCORE_H

#include "backend/backend.h"

#define LG_SCORE_STEP 128 /* most tokens in a step */

typedef struct lg_score {
    const lg_weights *w; /* borrowed */
    const lg_backend_ops *ops;
    lg_backend *be;
    uint32_t *page; /* owned: 0, 1, 2 ... */
    uint32_t n_ctx, n_seq;
} lg_score;

/* A backend for n_seq (<= LG_SCORE_STEP) sequences of n_ctx tokens; exact: float products for every type, and keys and values
 * kept as F32 whatever `kv` says.  Weights and pool are borrowed.  LG_E_ARG, LG_E_NOMEM; on an error there is nothing to close. */
lg_status lg_score_init(lg_score *s, const lg_weights *w, lg_pool *pool, uint32_t n_ctx,
                        uint32_t n_seq, bool exact, lg_kv_type kv, lg_err *err);

/* What these options are, for a caller who changes some; and the same with other calls than the processor's. */
lg_backend_opt lg_score_options(const lg_weights *w, uint32_t n_ctx, uint32_t n_seq, bool exact,
                                lg_kv_type kv);
lg_status lg_score_init_on(lg_score *s, const lg_weights *w, lg_pool *pool,
                           const lg_backend_ops *ops, const lg_backend_opt *opt, lg_err *err);

/* The same for one sequence with float products, and an observer of all of them (backend.h). */
lg_status
lg_score_init_observed(lg_score *s, const lg_weights *w, lg_pool *pool, uint32_t n_ctx,
                       void (*observe)(void *ctx, const lg_mat *w, const float *x, size_t ld_x,
                                       const uint32_t *row_idx, uint32_t n_row),
                       void *observe_ctx, lg_err *err);
void lg_score_fini(lg_score *s);

/* Every id has a row in the head; `what` names the text in the message.  LG_OK, LG_E_FORMAT. */
lg_status lg_score_check(const lg_weights *w, const uint32_t *id, size_t n, const char *what,
                         lg_err *err);

/* Run tokens id[n] (n <= LG_SCORE_STEP) at position pos of sequence 0, whose earlier tokens were run before.  *logits
 * [n_out][ld], of the last n_out tokens, until the next step.  LG_OK, LG_E_BACKEND. */
lg_status lg_score_step(lg_score *s, const uint32_t *id, uint32_t n, uint32_t pos,
                        uint32_t n_out, const float **logits, size_t *ld, lg_err *err);

/* Sum of -log p(id[i + 1] | id[0 .. i]) over i = first ... n - 2 and of its squares, from an empty context.  n <= n_ctx. */
lg_status lg_score_nll(lg_score *s, const uint32_t *id, uint32_t n, uint32_t first, double *sum,
                       double *sum_sq, lg_err *err);

/* Fill id [n_seq][n] with what the model says by chance (temperature 1): the first id of each is `start`, and the choices
 * are a function of seed alone.  Ids below n_token only.  n <= n_ctx. */
lg_status lg_score_sample(lg_score *s, uint32_t *id, uint32_t n, uint32_t start,
                          uint32_t n_token, uint64_t seed, lg_err *err);

/* log sum exp x[i]. */
double lg_score_log_sum(const float *x, size_t n);

/* Read a file's ids as plain text, without its last line break.  The caller frees *id with lg_free. */
lg_status lg_score_read(const char *model, const char *file, uint32_t **id, size_t *n,
                        lg_err *err);

#endif
