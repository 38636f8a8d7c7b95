/* replay.h - the ids that the model made, kept so that a turn which comes back is the turn that was made.
 *
 * A client sends a conversation as text: without the reasoning, with calls spelled anew.  Rendered from that, a turn has other ids than
 * the model produced, and nothing computed from there on can be reused.  So the ids of finished answers are kept under a hash of
 * who asked and of all ids before them; when a prompt reaches a turn of the assistant behind the same ids, and its content and
 * calls are those of the answer, and its reasoning too unless it was left out, the kept ids take its place.
 * Only where the format keeps a turn's reasoning: after the last question, and everywhere with preserve_thinking.
 * Thread: any; what is kept is locked.  Memory: max_bytes, the least recently used go first.  Test: tests/unit/test_replay.c, tests/e2e/test_cache.py */
#ifndef LG_GATEWAY_WIRE_REPLAY_H
#define LG_GATEWAY_WIRE_REPLAY_H

#include "model/text/chat.h"

#define LG_REPLAY_KEY_BYTES 16

typedef struct lg_replay lg_replay;

/* LG_E_NOMEM, LG_E_IO when the system has no random numbers; the caller owns *r. */
lg_status lg_replay_open(size_t max_bytes, lg_replay **r);
void lg_replay_close(lg_replay **r);

/* Append the ids of a rendered prompt, kept turns in their own ids.  key (for lg_replay_put) names the whole prompt.
 * Errors as lg_tokenizer_encode. */
lg_status lg_replay_encode(lg_replay *r, uint64_t tenant, const lg_chat *chat,
                           lg_tokenizer *tok, lg_ids *ids, uint8_t key[LG_REPLAY_KEY_BYTES],
                           lg_err *err);

/* Keep an answer: the ids made behind the prompt `key`, the last one the end of the turn, and their text without special
 * tokens.  tools and in_reasoning as lg_outparse_open.  What does not parse as a client would see it is not kept. */
void lg_replay_put(lg_replay *r, const uint8_t key[LG_REPLAY_KEY_BYTES], const lg_json *tools,
                   bool in_reasoning, bool one_call, const lg_buf *text, const uint32_t *made,
                   size_t n_made);

/* Answers kept, and turns replaced so far. */
void lg_replay_count(lg_replay *r, uint64_t *n_kept, uint64_t *n_bytes, uint64_t *n_used);

#endif
