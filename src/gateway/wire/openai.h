/* openai.h - the OpenAI wire format without any I/O: request body -> what the engine needs; tokens -> response bytes.
 *
 * Every field is understood, harmless and documented in openai_req.c's table, or refused with 400 naming it.  The server
 * moves bytes and talks to the link.  Requests: openai_req.c; answers: openai_resp.c.
 * Thread: gateway.  Test: tests/unit/test_openai.c, fuzz/fuzz_openai.c */
#ifndef LG_GATEWAY_WIRE_OPENAI_H
#define LG_GATEWAY_WIRE_OPENAI_H

#include "gateway/wire/outparse.h"
#include "gateway/wire/request.h"

/* Parse and render a body.  On false *e is filled and nothing is owned. */
bool lg_oai_open(const lg_request_model *model, bool chat, const char *body, size_t len_bytes,
                 lg_request_parsed **req, lg_request_error *e);

/* The table of fields. */
const lg_field *lg_oai_fields(size_t *n);

/* Tools as this format gives them; the members of p->messages. */
lg_field_fn lg_openai_take_tools;
bool lg_oai_check_messages(lg_parse *p);

/* One choice's answer in the making.  Owned by the caller. */
typedef struct lg_oai_out lg_oai_out;
lg_status lg_oai_out_open(const lg_request_parsed *req, uint32_t choice, lg_oai_out **out);
void lg_oai_out_close(lg_oai_out **out);

/* Take one engine event (TOKEN or DONE; its text, logprobs, finish).  When streaming, appends finished server-sent events
 * ("data: {...}\n\n") to sse; otherwise collects.  A stream that ends with ERROR or CANCELLED gets an error object; without
 * a stream the caller answers that itself.  LG_E_NOMEM. */
lg_status lg_oai_out_event(lg_oai_out *out, const lg_event *event, lg_buf *sse);

/* Stream: the usage chunk (when asked for) and "data: [DONE]\n\n", after every choice is done. */
void lg_oai_stream_end(const lg_request_parsed *req, lg_oai_out *const *out, uint32_t n_out,
                       lg_buf *sse);

/* Not streaming: the whole response object, after every choice is done. */
void lg_oai_response(const lg_request_parsed *req, lg_oai_out *const *out, uint32_t n_out,
                     lg_buf *body);

/* {"error": {...}} */
void lg_oai_error_body(const lg_request_error *e, lg_buf *body);

/* Body of GET /v1/models. */
void lg_oai_models(const lg_request_model *model, lg_buf *body);

#endif
