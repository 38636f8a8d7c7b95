/* request.h - what the request bodies of all wire formats share: the request itself, tables of fields, errors.
 *
 * Each format has one table of fields and one function for each kind of field.  A field that is not in the table is refused
 * by name, so that nobody believes that something had an effect which had none; null means absent; a field given twice is
 * refused.  GET /openapi.json is written from the same tables.
 * Thread: gateway.  Test: tests/unit/test_openai.c, test_anthropic.c, test_responses.c */
#ifndef LG_GATEWAY_WIRE_REQUEST_H
#define LG_GATEWAY_WIRE_REQUEST_H

#include "model/text/chat.h"

#define LG_REQUEST_MAX_CHOICE 8
#define LG_REQUEST_MAX_STOP   16

/* What the gateway knows of the served model; owned by the server. */
typedef struct lg_request_model {
    const char *name;           /* id in /v1/models */
    lg_tokenizer *tok;          /* borrowed */
    lg_params params;           /* the model's defaults */
    uint32_t n_ctx;             /* longest sequence */
    uint32_t n_vocab;           /* ids below this may be named in logit_bias */
    uint64_t created;           /* Unix seconds */
    struct lg_history *history; /* for previous_response_id, or NULL */
    bool lenient;               /* unknown fields are told in the log and ignored */
    struct lg_notice *notice;   /* what the log has said, or NULL */
    struct lg_replay *replay;   /* turns of the assistant in their own ids, or NULL */
    uint64_t tenant;  /* who asks: set for each request before it is parsed; 0 without keys */
    bool keep_header; /* leave the changing header line in system prompts of /v1/messages */
} lg_request_model;

/* A refused request: HTTP status and the fields of an error object. */
typedef struct lg_request_error {
    int http;         /* 400, 404, 413, 429, 500, 503 */
    const char *type; /* "invalid_request_error", "server_error", ... static */
    const char *code; /* "context_length_exceeded", ... static; NULL = null */
    char param[64];   /* "" = null */
    char msg[512];
} lg_request_error;

#define LG_REQUEST_PARAM sizeof((lg_request_error *)0)->param /* bytes of a field's name */

/* A parsed request.  Owned by the caller: lg_request_close. */
typedef struct lg_request_parsed {
    const lg_request_model *model;
    bool chat; /* from messages, its output is parsed; else plain text */
    bool stream, include_usage;
    bool opened_think;
    lg_ids ids;             /* prompt */
    uint64_t salt;          /* hash of cache_salt; 0: none was given */
    uint64_t tenant;        /* of the model struct, when the request came */
    bool replayable;        /* replay_key is set */
    uint8_t replay_key[16]; /* names the prompt: LG_REPLAY_KEY_BYTES */
    lg_params params;
    uint32_t max_tokens;   /* 0 = until the context is full */
    uint32_t think_budget; /* most ids of reasoning; 0 = no limit of its own */
    uint32_t n_choice;     /* 1 .. LG_REQUEST_MAX_CHOICE */
    const char *stop[LG_REQUEST_MAX_STOP];
    uint32_t n_stop;
    lg_bias *bias;
    uint32_t n_bias;
    const lg_json *tools; /* NULL: none, or tool_choice "none" */
    char id[48];          /* "chatcmpl-...", "cmpl-...", "msg_...", ... */
    uint64_t created;
    lg_json_doc *doc; /* body; stop and tools point into it */
    lg_json_doc *
        chat_doc; /* messages and tools of other formats, as the chat format reads them; or NULL */
    bool dropped_header; /* a changing header line was taken off the system prompt */
    bool one_call;       /* no parallel calls: those after the first are left out */
    bool has_priority;   /* else the key's */
    int32_t priority;    /* lower is earlier */
    bool store;          /* /v1/responses: keep it for previous_response_id */
    lg_buf kept;         /* what is kept: the messages, each followed by a comma */
    bool token_strs;     /* /tokenize: the pieces too */
    lg_buf grammar;      /* what the answer must be; empty: anything */
} lg_request_parsed;

void lg_request_close(lg_request_parsed **req);

/* ---- Fields ---- */

/* Bodies in which a field may stand. */
enum {
    LG_AT_CHAT = 1,
    LG_AT_TEXT = 2,
    LG_AT_TOKENIZE = 4,
    LG_AT_DETOKENIZE = 8,
    LG_AT_MESSAGES = 16,
    LG_AT_COUNT = 32,
    LG_AT_RESPONSES = 64
};

typedef struct lg_parse lg_parse;
typedef struct lg_field lg_field;
typedef bool lg_field_fn(lg_parse *p, const lg_field *f, const lg_json *v);

struct lg_field {
    const char *name;
    const char
        *type;      /* JSON type for the OpenAPI document; "" = more than one; NULL = refused */
    uint32_t where; /* LG_AT_... in which it is known */
    lg_field_fn *fn;
    size_t offset; /* of a float in lg_params, or of a bool in lg_request_parsed */
    double low, high;
    bool open;       /* low itself is not allowed */
    uint32_t needed; /* LG_AT_... in which it must be there */
};

#define LG_REQUEST_PARAMS(member) offsetof(lg_params, member)
#define LG_REQUEST_REQ(member)    offsetof(lg_request_parsed, member)
#define LG_REQUEST_ANY_COUNT      2147483647.0

/* A body on its way. */
struct lg_parse {
    lg_request_parsed *req;
    lg_request_error *e;
    uint32_t at;                                            /* LG_AT_..., one */
    const lg_json *messages, *tools, *prompt;               /* as given */
    const lg_json *text, *system, *instructions, *previous; /* other formats */
    int thinking; /* enable_thinking: -1 not given, 0, 1 */
    bool preserve_thinking;
    int asked; /* the same by `thinking` of Messages */
    bool json; /* format.h: the answer is JSON, of this schema or any object */
    const lg_json *schema;
    bool force; /* a call must be made, of this tool or any */
    const lg_json *force_name;
    char form_param[LG_REQUEST_PARAM], force_param[LG_REQUEST_PARAM];
    bool effort_given, effort_none, no_tools, logprobs, stream_options;
    int top_logprobs; /* -1 not given */
    uint32_t max_tokens, max_completion_tokens;
};

/* Make a request and parse its body: the fields through `table`, then `finish`, which renders the prompt.  On false *e is
 * filled and nothing is owned. */
bool lg_request_open(const lg_request_model *model, uint32_t at, const lg_field *table,
                     size_t n_field, bool (*finish)(lg_parse *p), const char *body,
                     size_t len_bytes, lg_request_parsed **req, lg_request_error *e);

/* ---- Errors: all return false, but for the one that may not ---- */

/* Fill *e with a 400. */
bool lg_request_refuse(lg_request_error *e, const char *param, const char *code,
                       const char *fmt, ...) __attribute__((format(printf, 4, 5)));

bool lg_request_no_memory(lg_request_error *e);

/* Refuse value v: expected this, found that. */
bool lg_request_bad(lg_parse *p, const char *param, const lg_json *v, const char *expected);

/* Refuse member v of the object `where`; true when such are ignored (--lenient), which the log says. */
bool lg_request_unknown(lg_parse *p, const char *where, const lg_json *v);

/* Say once in the log that this has no effect. */
void lg_request_ignored(const lg_parse *p, const char *name);

/* Turn an error of the chat format or the tokenizer into an answer. */
bool lg_request_refuse_prompt(lg_parse *p, lg_status st, const lg_err *err);

/* Name a field for a message, cut to what fits. */
void lg_request_name(char param[LG_REQUEST_PARAM], const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

bool lg_request_key_is(const lg_json *member, const char *name);
bool lg_request_key_among(const lg_json *member, const char *const *list, size_t n);

/* ---- Fields that several formats know ---- */

lg_field_fn lg_request_take_model, lg_request_take_bool, lg_request_take_float,
    lg_request_take_max_tokens, lg_request_take_top_k, lg_request_take_seed,
    lg_request_take_ignore_eos, lg_request_take_stop, lg_request_take_messages,
    lg_request_take_thinking, lg_request_take_template_kwargs, lg_request_take_effort,
    lg_request_take_budget, lg_request_take_cache_salt, lg_request_take_priority,
    lg_request_take_tier, lg_request_take_parallel, lg_request_take_logit_bias,
    lg_request_pass_string, lg_request_pass_object, lg_request_only_false, lg_request_only_true,
    lg_request_only_one, lg_request_never;

/* Who shares kept texts with this request: the key's number and the request's cache_salt as one. */
uint64_t lg_request_salt(uint64_t key, const lg_request_parsed *r);

/* An integer within the field's range. */
bool lg_request_take_count(lg_parse *p, const lg_field *f, const lg_json *v, uint32_t *out);

/* Priorities that service_tier stands for; lower is earlier. */
#define LG_REQUEST_TIER_PRIORITY (-10)
#define LG_REQUEST_TIER_FLEX     10

/* 1 to 64 letters, digits, _ or -. */
bool lg_request_good_name(const lg_json *v);

/* A tool of this type is the vendor's own search: the model is not offered it, and the log says so once. */
bool lg_request_is_search(const lg_parse *p, const lg_json *type);

/* ---- Prompts ---- */

/* Render messages and the request's tools into r->ids, with the thinking switches of the body. */
bool lg_request_render(lg_parse *p, const lg_json *messages);

/* Parse `text` ({"messages": [...], "tools": [...]}), which a format was rewritten to, into r->chat_doc, and render it. */
bool lg_request_render_text(lg_parse *p, lg_buf *text);

/* Refuse what does not fit the context; `param` is blamed. */
bool lg_request_check_length(lg_parse *p, const char *param);

/* Give the request its id, "PREFIX" and 32 hexadecimal digits, and its time. */
bool lg_request_name_it(lg_request_parsed *r, const char *prefix, lg_request_error *e);

/* ---- What routes.c needs of a wire format ---- */

/* A body answered at once, without the engine: appends the answer's JSON.  On false *e is filled. */
typedef bool lg_request_answer_fn(const lg_request_model *model, const char *body,
                                  size_t len_bytes, lg_buf *answer, lg_request_error *e);

typedef struct lg_out lg_out; /* one choice's answer in the making; each format has its own */

typedef struct lg_wire_format {
    bool (*open)(const lg_request_model *model, const char *body, size_t len_bytes,
                 lg_request_parsed **req, lg_request_error *e);
    lg_status (*out_open)(const lg_request_parsed *req, uint32_t choice, lg_out **out);
    void (*out_close)(lg_out **out);
    /* One engine event.  When streaming, appends finished server-sent events; otherwise collects.  LG_E_NOMEM. */
    lg_status (*event)(lg_out *out, const lg_event *event, lg_buf *sse);
    /* Stream: something harmless to show that the server is alive. */
    void (*ping)(lg_out *out, lg_buf *sse);
    /* Stream: what follows when every choice is done. */
    void (*stream_end)(const lg_request_parsed *req, lg_out *const *out, uint32_t n_out,
                       lg_buf *sse);
    /* Stream: what is said instead of stream_end when it cannot go on.  out may be NULL. */
    void (*stream_error)(lg_out *out, const lg_request_error *e, lg_buf *sse);
    /* Not streaming: the whole object, after every choice is done. */
    void (*response)(const lg_request_parsed *req, lg_out *const *out, uint32_t n_out,
                     lg_buf *body);
    void (*error)(const lg_request_error *e, lg_buf *body);
} lg_wire_format;

extern const lg_wire_format lg_openai_chat, lg_openai_text;

#endif
