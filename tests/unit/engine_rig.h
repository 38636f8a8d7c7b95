/* engine_rig.h - an engine on the fake backend with the bundled model's tokenizer, and answers put together from events. */
#ifndef LG_ENGINE_RIG_H
#define LG_ENGINE_RIG_H

#include "fake_backend.h"

#define RIG_VOCAB 4160 /* rows of the fake head; the tokenizer has fewer ids */

typedef struct rig {
    fake_model m;
    lg_tokenizer *tok;
    lg_engine *eng;
    lg_seq_limit limit;
    uint32_t n_page;
    lg_disk_opt disk; /* for the next rig_open */
    uint32_t hold_steps;
} rig;

/* What came back for one request (lg_request.user points here). */
typedef struct answer {
    uint64_t id;
    uint32_t n_token;
    uint32_t token[4200];
    uint32_t emitted[4200]; /* bytes of text after each token */
    float logprob[4200];
    size_t len_bytes;
    char text[1 << 15];
    bool done;
    lg_event end;
} answer;

/* Load the tokenizer; greedy next() of the hash of the history until a test sets another. */
void rig_init(rig *r);
void rig_fini(rig *r);

/* Open r->eng with a context limit of 4096; with m.pace set, on the fake clock.  n_page: 0, or so many pages instead. */
lg_status rig_open(rig *r, const lg_options *opt, lg_err *err);

/* Fetch all events into their answers; returns how many. */
uint32_t rig_fetch(lg_engine *eng);

/* Step until there is nothing to do; returns the last status. */
lg_status rig_run(lg_engine *eng);

/* A plain greedy request that answers into a (emptied). */
lg_request rig_request(const rig *r, const uint32_t *ids, uint32_t n_id, uint32_t max_tokens,
                       answer *a);

/* The default next(): a function of the whole history that is never a special id. */
uint32_t rig_hash_next(const fake_model *m, const uint32_t *ids, uint32_t n_id);

/* next() that replays a script: next_ctx is a rig_script. */
typedef struct rig_script {
    uint32_t n_prompt;
    const uint32_t *ids;
    uint32_t n_id;
} rig_script;
uint32_t rig_script_next(const fake_model *m, const uint32_t *ids, uint32_t n_id);

#endif
