/* responses.h - the OpenAI Responses wire format without any I/O: POST /v1/responses.
 *
 * Items are rewritten to messages as the chat format reads them; the output comes back as items.
 * Requests: responses_req.c; answers: responses_resp.c.  docs/SERVER.md lists the fields.
 * Thread: gateway.  Test: tests/unit/test_responses.c, tests/e2e/openai_client.py, fuzz/fuzz_protocols.c */
#ifndef LG_GATEWAY_WIRE_RESPONSES_H
#define LG_GATEWAY_WIRE_RESPONSES_H

#include "gateway/wire/request.h"

extern const lg_wire_format lg_responses_wire;

/* The table of fields. */
const lg_field *lg_responses_fields(size_t *n);

/* Parse and render a body.  On false *e is filled and nothing is owned; otherwise lg_request_close. */
bool lg_responses_open(const lg_request_model *model, const char *body, size_t len_bytes,
                       lg_request_parsed **req, lg_request_error *e);

/* Append the name, as a JSON string, by which the model knows a function of a namespace: "GROUP__NAME"; of none (group NULL
 * or null): its own. */
void lg_responses_put_name(lg_buf *b, const lg_json *group, const lg_json *name);

#endif
