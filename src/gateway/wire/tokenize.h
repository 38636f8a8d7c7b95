/* tokenize.h - POST /tokenize, /detokenize and /v1/embeddings: answers that need the tokenizer only.
 *
 * Thread: gateway.  Test: tests/unit/test_tokenize.c */
#ifndef LG_GATEWAY_WIRE_TOKENIZE_H
#define LG_GATEWAY_WIRE_TOKENIZE_H

#include "gateway/wire/request.h"

/* A text ("prompt" or "text") or a conversation ("messages") -> its ids, exactly as a completion or a chat would use them. */
lg_request_answer_fn lg_tokenize_text;

/* "tokens" -> their text, control tokens included. */
lg_request_answer_fn lg_tokenize_ids;

/* Always refused, and says so. */
lg_request_answer_fn lg_tokenize_embed;

/* The table of fields of both. */
const lg_field *lg_tokenize_fields(size_t *n);

#endif
