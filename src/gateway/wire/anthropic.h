/* anthropic.h - the Anthropic Messages wire format without any I/O: POST /v1/messages and /v1/messages/count_tokens.
 *
 * A body is rewritten to messages and tools as the chat format reads them; the output comes back as content blocks.
 * Requests: anthropic_req.c; answers: anthropic_resp.c.  docs/SERVER.md lists the fields.
 * Thread: gateway.  Test: tests/unit/test_anthropic.c, tests/e2e/anthropic_client.py, fuzz/fuzz_protocols.c */
#ifndef LG_GATEWAY_WIRE_ANTHROPIC_H
#define LG_GATEWAY_WIRE_ANTHROPIC_H

#include "gateway/wire/request.h"

extern const lg_wire_format lg_anthropic_wire;

/* The table of fields. */
const lg_field *lg_anthropic_fields(size_t *n);

/* Parse and render a body.  On false *e is filled and nothing is owned; otherwise lg_request_close. */
bool lg_anthropic_open(const lg_request_model *model, const char *body, size_t len_bytes,
                       lg_request_parsed **req, lg_request_error *e);

/* Body of /v1/messages/count_tokens: {"input_tokens": N}. */
lg_request_answer_fn lg_anthropic_count;

/* {"type": "error", "error": {"type", "message"}} */
void lg_anthropic_error(const lg_request_error *e, lg_buf *body);

#endif
