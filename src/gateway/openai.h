/* openai.h - the OpenAI wire format without any I/O: request body -> what the engine needs; tokens -> response bytes.
 *
 * Every field is understood, harmless and documented in openai_req.c's table, or refused with 400 naming it.  The server
 * moves bytes and talks to the link.  Requests: openai_req.c; answers: openai_resp.c.
 * Thread: gateway.  Test: tests/unit/test_openai.c, fuzz/fuzz_openai.c */
#ifndef LG_GATEWAY_OPENAI_H
#define LG_GATEWAY_OPENAI_H

#include "gateway/outparse.h"
#include "model/chat.h"

#define LG_OAI_MAX_CHOICE 8
#define LG_OAI_MAX_STOP   16

/* What the gateway knows of the served model; owned by the server. */
typedef struct lg_oai_model {
    const char *name;  /* id in /v1/models */
    lg_tokenizer *tok; /* borrowed */
    lg_params params;  /* the model's defaults */
    uint32_t n_ctx;    /* longest sequence */
    uint32_t n_vocab;  /* ids below this may be named in logit_bias */
    uint64_t created;  /* Unix seconds */
} lg_oai_model;

/* A refused request: HTTP status and the fields of OpenAI's error object. */
typedef struct lg_oai_error {
    int http;         /* 400, 404, 413, 429, 500, 503 */
    const char *type; /* "invalid_request_error", "server_error", ... static */
    const char *code; /* "context_length_exceeded", ... static; NULL = null */
    char param[64];   /* "" = null */
    char msg[512];
} lg_oai_error;

/* A parsed request.  Owned by the caller: lg_oai_close. */
typedef struct lg_oai_req {
    const lg_oai_model *model;
    bool chat; /* /v1/chat/completions; else /v1/completions */
    bool stream, include_usage;
    bool opened_think;
    lg_ids ids; /* prompt */
    lg_params params;
    uint32_t max_tokens; /* 0 = until the context is full */
    uint32_t n_choice;   /* 1 .. LG_OAI_MAX_CHOICE */
    const char *stop[LG_OAI_MAX_STOP];
    uint32_t n_stop;
    lg_bias *bias;
    uint32_t n_bias;
    const lg_json *tools; /* NULL: none, or tool_choice "none" */
    char id[48];          /* "chatcmpl-..." or "cmpl-..." */
    uint64_t created;
    lg_json_doc *doc; /* body; stop and tools point into it */
} lg_oai_req;

/* Parse and render a body.  On false *e is filled and nothing is owned. */
bool lg_oai_open(const lg_oai_model *model, bool chat, const char *body, size_t len_bytes,
                 lg_oai_req **req, lg_oai_error *e);
void lg_oai_close(lg_oai_req **req);

/* One choice's answer in the making.  Owned by the caller. */
typedef struct lg_oai_out lg_oai_out;
lg_status lg_oai_out_open(const lg_oai_req *req, uint32_t choice, lg_oai_out **out);
void lg_oai_out_close(lg_oai_out **out);

/* Take one engine event (TOKEN or DONE; its text, logprobs, finish).  When streaming, appends finished server-sent events
 * ("data: {...}\n\n") to sse; otherwise collects.  A stream that ends with ERROR or CANCELLED gets an error object; without
 * a stream the caller answers that itself.  LG_E_NOMEM. */
lg_status lg_oai_out_event(lg_oai_out *out, const lg_event *event, lg_buf *sse);

/* Stream: the usage chunk (when asked for) and "data: [DONE]\n\n", after every choice is done. */
void lg_oai_stream_end(const lg_oai_req *req, lg_oai_out *const *out, uint32_t n_out,
                       lg_buf *sse);

/* Not streaming: the whole response object, after every choice is done. */
void lg_oai_response(const lg_oai_req *req, lg_oai_out *const *out, uint32_t n_out,
                     lg_buf *body);

/* {"error": {...}} */
void lg_oai_error_body(const lg_oai_error *e, lg_buf *body);

/* Body of GET /v1/models. */
void lg_oai_models(const lg_oai_model *model, lg_buf *body);

#endif
