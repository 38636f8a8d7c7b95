/* fake_backend.h - a backend of a few lines for tests of the engine.
 *
 * It keeps the id of each position in the page that the engine says, and a running hash in the slot.  The next token is a
 * function of the history read back through both, so a mixed-up page, slot, position or stale state changes the answer. */
#ifndef LG_FAKE_BACKEND_H
#define LG_FAKE_BACKEND_H

#include "engine/engine.h"

typedef struct fake_model fake_model;

/* The id that follows ids[0, n_id). */
typedef uint32_t fake_next_fn(const fake_model *m, const uint32_t *ids, uint32_t n_id);

/* Microseconds that a step takes on the fake clock: a + rows + rows times positions before them. */
typedef struct fake_pace {
    double step, decode, prefill, depth;
} fake_pace;

struct fake_model {
    lg_weights w; /* only cfg is used; first member */
    fake_next_fn *next;
    const void *next_ctx;
    uint32_t n_owner;      /* 0 means 1 */
    uint32_t fail_at_step; /* 1 = the first; 0 = never */
    uint32_t nan_after;    /* histories of this length give NaN; 0 = never */
    fake_pace pace;        /* all 0: the fake clock stands still */
    uint32_t get_page_us;  /* copying a page out takes so long */
    uint32_t n_step;
    /* what the last step was made of */
    uint32_t n_seq, n_tok;
    struct {
        uint32_t owner, slot, pos, n_tok;
    } seq[64];
};

/* Logits of a history: noise in [0, 4), and 10 more for the next id.  Ids above n_sample_vocab get 100. */
void fake_logits(const fake_model *m, const uint32_t *ids, uint32_t n_id, uint32_t n_token,
                 float *logits);

/* The clock that steps of any fake backend move. */
uint64_t fake_clock_us(void);

const lg_backend_ops *fake_ops(void);

#endif
