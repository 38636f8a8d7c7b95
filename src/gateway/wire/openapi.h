/* openapi.h - the OpenAPI document of the served routes, written from the tables of fields.
 *
 * Thread: gateway.  Test: tests/e2e/test_protocols.py */
#ifndef LG_GATEWAY_WIRE_OPENAPI_H
#define LG_GATEWAY_WIRE_OPENAPI_H

#include "gateway/wire/request.h"

/* The document in pieces: begin, each route once, end. */
void lg_openapi_begin(lg_buf *b);

/* One route.  model: the served one's name; at: the body's LG_AT_..., 0 = without a body, or with any. */
void lg_openapi_route(lg_buf *b, const char *model, const char *path, const char *method,
                      uint32_t at);
void lg_openapi_end(lg_buf *b);

#endif
