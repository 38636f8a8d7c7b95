/* guide.h - a sequence whose answer must fit a grammar: where it stands, and the ids that may come next.
 *
 * Masks of states that come again are kept (a long string is one state), so that most tokens cost a comparison.
 * Thread: engine.  Memory: at lg_guide_open, within the kit's limit; nothing later.  Test: tests/unit/test_guide.c */
#ifndef LG_ENGINE_GUIDE_H
#define LG_ENGINE_GUIDE_H

#include "model/grammar/grammar.h"

typedef struct lg_guide lg_guide;

/* What guides share: the ids in order, made when the first one is opened.  = {.tok, .n_id, .eos, .n_eos, .limit_bytes},
 * lg_guide_kit_fini. */
typedef struct lg_guide_kit {
    const lg_tokenizer *tok; /* borrowed */
    uint32_t n_id;
    const uint32_t *eos; /* borrowed: end the answer, where it may end */
    uint32_t n_eos;
    uint64_t limit_bytes; /* of the ids and all guides; 0: none */
    uint64_t used_bytes;
    lg_grammar_vocab *vocab; /* owned */
} lg_guide_kit;

void lg_guide_kit_fini(lg_guide_kit *kit);

/* A guide at its beginning, after the ids that were produced already.  LG_E_ARG: the source, or ids that do not fit it;
 * LG_E_NOMEM: also when all guides would take more than the kit's limit. */
lg_status lg_guide_open(lg_guide_kit *kit, const char *source, bool think, const uint32_t *ids,
                        uint32_t n_id, lg_guide **guide, lg_err *err);
void lg_guide_close(lg_guide **guide);

/* Go on by an id that the mask allows. */
void lg_guide_take(lg_guide *guide, uint32_t id);

/* Bit id is set for each id that may come next, ends included; valid until the next take.  NULL: none may, the grammar does
 * not go on and may not end. */
const uint32_t *lg_guide_mask(const lg_guide *guide);

#endif
