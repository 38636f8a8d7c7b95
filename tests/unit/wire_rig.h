/* wire_rig.h - play a model's output through a wire format, for tests of the formats.
 *
 * The model is named "tiny"; bodies are written with ' for ". */
#ifndef WIRE_RIG_H
#define WIRE_RIG_H

#include "gateway/wire/request.h"

/* The served model; opened by wire_rig_setup, closed by wire_rig_teardown (group fixtures of cmocka). */
extern lg_request_model wire_rig_model;
int wire_rig_setup(void **state);
int wire_rig_teardown(void **state);

/* An answer of the model. */
typedef struct wire_rig_answer {
    const char *body; /* of the request, with ' for " */
    const char *text; /* the output; one event for each `step` bytes */
    lg_finish finish;
    uint32_t stop_index;
} wire_rig_answer;

/* *b becomes the text with " for '. */
void wire_rig_quote(lg_buf *b, const char *text);

/* Open a body; fails the test with the error's message when it is refused. */
lg_request_parsed *wire_rig_open(const lg_wire_format *wire, const char *body);

/* The whole way of one request; *text is the stream or the object.  LG_E_NOMEM when an allocation failed. */
lg_status wire_rig_serve(const lg_wire_format *wire, const wire_rig_answer *a, bool stream,
                         size_t step, lg_buf *text);

/* Serve while each allocation in turn fails; returns how many did. */
size_t wire_rig_fail_all(const lg_wire_format *wire, const wire_rig_answer *a, bool stream);

/* Refused with that parameter, status 400 and a well-formed error. */
void wire_rig_expect_bad(const lg_wire_format *wire, const char *body, const char *param);

/* The two bodies make the same prompt. */
void wire_rig_same_prompt(const lg_wire_format *wire, const char *body,
                          const lg_wire_format *wire2, const char *body2);

/* Parse, or fail the test. */
lg_json_doc *wire_rig_parse(const char *text, size_t len_bytes);

#endif
