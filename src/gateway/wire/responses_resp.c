/* responses_resp.c - engine events into answers of the OpenAI Responses wire format: see responses.h.
 *
 * In:  events of one answer.   Out: server-sent events at once, or one object at the end.
 * Invariants: events are numbered from 0 without gaps; the deltas of a stream join to what the object holds, and the last
 * event holds the object.
 * Thread: gateway.  Memory: the text of the answer.  Test: tests/unit/test_responses.c */
#include "gateway/wire/responses.h"

#include "base/clock.h"
#include "gateway/wire/blocks.h"
#include "gateway/wire/history.h"

#include <string.h>

typedef struct answer {
    const lg_request_parsed *req; /* borrowed */
    lg_blocks blocks;
    bool started; /* the first two events are written */
    uint32_t n_event, n_produced, n_reasoning, n_cached;
    lg_finish finish;
    lg_buf *sse; /* during an event */
} answer;

/* ---- Small pieces ---- */

static void put_text(lg_buf *b, const char *key, const char *s, size_t len_bytes) {
    lg_buf_printf(b, "\"%s\":", key);
    lg_json_put_string(b, s, len_bytes);
}

/* A member of the request, as it was given, or null. */
static void put_given(lg_buf *b, const answer *a, const char *key, const char *otherwise) {
    const lg_json *v = lg_json_get(lg_json_root(a->req->doc), key);
    lg_buf_printf(b, ",\"%s\":", key);
    if (v && v->kind != LG_JSON_NULL)
        lg_json_put(b, v, LG_JSON_COMPACT);
    else
        lg_buf_puts(b, otherwise);
}

static void put_item_id(lg_buf *b, const answer *a, uint32_t i, lg_block_kind kind) {
    static const char *const prefix[] = {"rs_", "msg_", "fc_"};
    lg_blocks_put_id(b, prefix[kind], a->req->id, i);
}

/* ---- Items ---- */

/* The one content part of a reasoning or message item. */
static void put_part(lg_buf *b, lg_block_kind kind, const char *text, size_t len_bytes) {
    lg_buf_puts(b, kind == LG_BLOCK_REASONING
                       ? "{\"type\":\"reasoning_text\","
                       : "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],");
    put_text(b, "text", text, len_bytes);
    lg_buf_puts(b, "}");
}

/* The function of this name in a list of tools, or NULL. */
static const lg_json *find_tool(const lg_json *tools, const char *name) {
    for (const lg_json *t = tools ? tools->child : NULL; t; t = t->next)
        if (lg_json_is(lg_json_get(t, "name"), name) && !lg_json_get(t, "tools")) return t;
    return NULL;
}

/* The name of a call as the client knows it: a namespace's is told apart. */
static void put_name(lg_buf *b, const answer *a, const lg_buf *name) {
    const lg_json *tools = lg_json_get(lg_json_root(a->req->doc), "tools");
    const char *s = lg_buf_str(name);
    for (const lg_json *t = tools && !find_tool(tools, s) ? tools->child : NULL; t;
         t = t->next) {
        const lg_json *group = lg_json_get(t, "name"), *inside = lg_json_get(t, "tools");
        if (!inside || !group || strncmp(s, group->text, group->text_len) != 0) continue;
        const char *rest = s + group->text_len;
        if (strncmp(rest, "__", 2) != 0 || !find_tool(inside, rest + 2)) continue;
        put_text(b, "name", rest + 2, strlen(rest + 2));
        lg_buf_puts(b, ",");
        put_text(b, "namespace", group->text, group->text_len);
        return;
    }
    put_text(b, "name", s, name->len_bytes);
}

/* The tools that the model was offered, as they were given. */
static void put_tools(lg_buf *b, const answer *a) {
    const lg_json *tools = lg_json_get(lg_json_root(a->req->doc), "tools");
    bool first = true;
    lg_buf_puts(b, ",\"tools\":[");
    for (const lg_json *t = tools ? tools->child : NULL; t; t = t->next) {
        const lg_json *type = lg_json_get(t, "type");
        if (!lg_json_is(type, "function") && !lg_json_is(type, "namespace")) continue;
        lg_buf_puts(b, first ? "" : ",");
        first = false;
        lg_json_put(b, t, LG_JSON_COMPACT);
    }
    lg_buf_puts(b, "]");
}

/* An item; what a stream adds later is left out unless `full`. */
static void put_item(lg_buf *b, const answer *a, uint32_t i, const lg_block *k, bool full) {
    static const char *const type[] = {"reasoning", "message", "function_call"};
    bool cut = a->finish == LG_FINISH_LENGTH && a->blocks.ended && i + 1 == a->blocks.n;
    lg_buf_puts(b, "{\"id\":\"");
    put_item_id(b, a, i, k->kind);
    lg_buf_printf(b, "\",\"type\":\"%s\",\"status\":\"%s\",", type[k->kind],
                  !full ? "in_progress"
                  : cut ? "incomplete"
                        : "completed");
    if (k->kind == LG_BLOCK_CALL) {
        lg_buf_puts(b, "\"call_id\":\"");
        lg_blocks_put_id(b, "call_", a->req->id, i);
        lg_buf_puts(b, "\",");
        put_name(b, a, &k->name);
        lg_buf_puts(b, ",");
        put_text(b, "arguments", full ? lg_buf_str(&k->text) : "",
                 full ? k->text.len_bytes : 0);
    } else {
        lg_buf_puts(b, k->kind == LG_BLOCK_TEXT ? "\"role\":\"assistant\",\"content\":["
                                                : "\"summary\":[],\"content\":[");
        if (full) put_part(b, k->kind, lg_buf_str(&k->text), k->text.len_bytes);
        lg_buf_puts(b, "]");
    }
    lg_buf_puts(b, "}");
}

static const char *status_of(const answer *a) {
    switch (a->finish) {
    case LG_FINISH_EOS:
    case LG_FINISH_STOP: return "completed";
    case LG_FINISH_LENGTH: return "incomplete";
    default: return "in_progress";
    }
}

static void put_usage(lg_buf *b, const answer *a) {
    size_t n = a->req->ids.n;
    lg_buf_printf(b,
                  ",\"usage\":{\"input_tokens\":%zu,\"input_tokens_details\":{"
                  "\"cached_tokens\":%u},\"output_tokens\":%u,\"output_tokens_details\":{"
                  "\"reasoning_tokens\":%u},\"total_tokens\":%zu}",
                  n, a->n_cached, a->n_produced, a->n_reasoning, n + a->n_produced);
}

/* The object.  status: NULL = what the answer says. */
static void put_response(lg_buf *b, const answer *a, const char *status,
                         const lg_request_error *e) {
    const lg_request_parsed *r = a->req;
    bool done = status_of(a)[0] != 'i' || a->finish == LG_FINISH_LENGTH;
    lg_buf_printf(b, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%llu,", r->id,
                  (unsigned long long)r->created);
    lg_buf_printf(b, "\"status\":\"%s\",\"error\":", status ? status : status_of(a));
    if (e) {
        lg_buf_printf(b, "{\"code\":\"%s\",",
                      e->http == 429 ? "rate_limit_exceeded" : "server_error");
        put_text(b, "message", e->msg, strlen(e->msg));
        lg_buf_puts(b, "}");
    } else {
        lg_buf_puts(b, "null");
    }
    lg_buf_printf(b, ",\"incomplete_details\":%s,",
                  a->finish == LG_FINISH_LENGTH ? "{\"reason\":\"max_output_tokens\"}"
                                                : "null");
    put_text(b, "model", r->model->name, strlen(r->model->name));
    lg_buf_puts(b, ",\"output\":[");
    for (uint32_t i = 0; done && i < a->blocks.n; i++) {
        lg_buf_puts(b, i ? "," : "");
        put_item(b, a, i, &a->blocks.block[i], true);
    }
    lg_buf_puts(b, "]");
    put_given(b, a, "instructions", "null");
    put_given(b, a, "max_output_tokens", "null");
    put_given(b, a, "previous_response_id", "null");
    put_given(b, a, "reasoning", "{\"effort\":null,\"summary\":null}");
    put_tools(b, a);
    put_given(b, a, "tool_choice", "\"auto\"");
    put_given(b, a, "metadata", "{}");
    put_given(b, a, "user", "null");
    lg_buf_printf(b, ",\"parallel_tool_calls\":%s,\"store\":%s,\"truncation\":\"disabled\"",
                  r->one_call ? "false" : "true", r->store ? "true" : "false");
    const lg_json *format =
        lg_json_get(lg_json_get(lg_json_root(a->req->doc), "text"), "format");
    lg_buf_puts(b, ",\"background\":false,\"text\":{\"format\":");
    if (format && format->kind == LG_JSON_OBJECT)
        lg_json_put(b, format, LG_JSON_COMPACT);
    else
        lg_buf_puts(b, "{\"type\":\"text\"}");
    lg_buf_puts(b, "}");
    lg_buf_puts(b, ",\"temperature\":");
    lg_json_put_double(b, (double)r->params.temperature);
    lg_buf_puts(b, ",\"top_p\":");
    lg_json_put_double(b, (double)r->params.top_p);
    if (done)
        put_usage(b, a);
    else
        lg_buf_puts(b, ",\"usage\":null");
    lg_buf_puts(b, "}");
}

/* ---- Streams ---- */

static void begin_event(answer *a, const char *name) {
    lg_buf_printf(a->sse, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", name,
                  name, a->n_event++);
}

static void end_event(answer *a) {
    lg_buf_puts(a->sse, "}\n\n");
}

static void put_response_event(answer *a, const char *name, const char *status,
                               const lg_request_error *e) {
    begin_event(a, name);
    lg_buf_puts(a->sse, ",\"response\":");
    put_response(a->sse, a, status, e);
    end_event(a);
}

static void start(answer *a) {
    if (a->started || !a->req->stream) return;
    a->started = true;
    put_response_event(a, "response.created", "in_progress", NULL);
    put_response_event(a, "response.in_progress", "in_progress", NULL);
}

static void put_item_event(answer *a, const char *name, uint32_t i, const lg_block *k,
                           bool full) {
    begin_event(a, name);
    lg_buf_printf(a->sse, ",\"output_index\":%u,\"item\":", i);
    put_item(a->sse, a, i, k, full);
    end_event(a);
}

/* An event about the content of item i; the caller adds to it. */
static void begin_content_event(answer *a, const char *name, uint32_t i, const lg_block *k) {
    begin_event(a, name);
    lg_buf_puts(a->sse, ",\"item_id\":\"");
    put_item_id(a->sse, a, i, k->kind);
    lg_buf_printf(a->sse, "\",\"output_index\":%u", i);
    if (k->kind != LG_BLOCK_CALL) lg_buf_puts(a->sse, ",\"content_index\":0");
}

static void put_content_event(answer *a, const char *name, uint32_t i, const lg_block *k,
                              const char *key, const char *text, size_t len_bytes) {
    begin_content_event(a, name, i, k);
    lg_buf_puts(a->sse, ",");
    put_text(a->sse, key, text, len_bytes);
    if (k->kind == LG_BLOCK_TEXT) lg_buf_puts(a->sse, ",\"logprobs\":[]");
    end_event(a);
}

static void put_part_event(answer *a, const char *name, uint32_t i, const lg_block *k,
                           bool full) {
    if (k->kind == LG_BLOCK_CALL) return;
    begin_content_event(a, name, i, k);
    lg_buf_puts(a->sse, ",\"part\":");
    put_part(a->sse, k->kind, full ? lg_buf_str(&k->text) : "", full ? k->text.len_bytes : 0);
    end_event(a);
}

static void on_block(void *ctx, lg_block_change change, uint32_t i, const lg_block *k,
                     const char *text, size_t len_bytes) {
    static const char *const delta[] = {"response.reasoning_text.delta",
                                        "response.output_text.delta",
                                        "response.function_call_arguments.delta"};
    static const char *const done[] = {"response.reasoning_text.done",
                                       "response.output_text.done",
                                       "response.function_call_arguments.done"};
    answer *a = ctx;
    if (!a->req->stream) return;
    switch (change) {
    case LG_BLOCK_BEGIN:
        put_item_event(a, "response.output_item.added", i, k, false);
        put_part_event(a, "response.content_part.added", i, k, false);
        break;
    case LG_BLOCK_DELTA:
        put_content_event(a, delta[k->kind], i, k, "delta", text, len_bytes);
        break;
    case LG_BLOCK_END:
        begin_content_event(a, done[k->kind], i, k);
        if (k->kind == LG_BLOCK_CALL) {
            lg_buf_puts(a->sse, ",");
            put_name(a->sse, a, &k->name);
        }
        lg_buf_puts(a->sse, ",");
        put_text(a->sse, k->kind == LG_BLOCK_CALL ? "arguments" : "text", lg_buf_str(&k->text),
                 k->text.len_bytes);
        if (k->kind == LG_BLOCK_TEXT) lg_buf_puts(a->sse, ",\"logprobs\":[]");
        end_event(a);
        put_part_event(a, "response.content_part.done", i, k, true);
        put_item_event(a, "response.output_item.done", i, k, true);
        break;
    }
}

/* ---- Keeping ---- */

/* Keep the conversation, this answer included, for previous_response_id. */
static void keep(const answer *a) {
    const lg_request_parsed *r = a->req;
    lg_buf b = {0};
    uint32_t n_call = 0;
    if (!r->store || !r->model->history) return;
    lg_buf_put(&b, lg_buf_str(&r->kept), r->kept.len_bytes);
    lg_buf_puts(&b, "{\"role\":\"assistant\",\"content\":[");
    for (int kind = LG_BLOCK_TEXT; kind >= LG_BLOCK_REASONING; kind--) {
        bool reasoning = kind == LG_BLOCK_REASONING;
        lg_buf all = {0};
        for (uint32_t i = 0; i < a->blocks.n; i++) {
            const lg_block *k = &a->blocks.block[i];
            if ((int)k->kind == kind) lg_buf_put(&all, lg_buf_str(&k->text), k->text.len_bytes);
        }
        if (reasoning && all.len_bytes) lg_buf_puts(&b, ",\"reasoning_content\":");
        if (!reasoning) lg_buf_puts(&b, "{\"type\":\"text\",\"text\":");
        if (!reasoning || all.len_bytes)
            lg_json_put_string(&b, lg_buf_str(&all), all.len_bytes);
        if (!reasoning) lg_buf_puts(&b, "}]");
        b.failed |= all.failed;
        lg_buf_fini(&all);
    }
    for (uint32_t i = 0; i < a->blocks.n; i++) {
        const lg_block *k = &a->blocks.block[i];
        if (k->kind != LG_BLOCK_CALL) continue;
        lg_buf_puts(&b, n_call++ ? ",{" : ",\"tool_calls\":[{");
        put_text(&b, "name", lg_buf_str(&k->name), k->name.len_bytes);
        lg_buf_puts(&b, ",\"arguments\":");
        lg_blocks_put_object(&a->blocks, k, &b);
        lg_buf_puts(&b, "}");
    }
    lg_buf_puts(&b, n_call ? "]}," : "},");
    if (!b.failed)
        lg_history_put(r->model->history, r->tenant, r->id, b.data, b.len_bytes, lg_clock_us());
    lg_buf_fini(&b);
}

/* ---- As a wire format ---- */

static lg_status out_open(const lg_request_parsed *req, uint32_t choice, lg_out **out) {
    (void)choice;
    answer *a = lg_mem_alloc(sizeof *a);
    *out = (lg_out *)a;
    if (!a) return LG_E_NOMEM;
    a->req = req;
    a->blocks.one_call = req->one_call;
    return lg_blocks_init(&a->blocks, req->tools, req->opened_think, on_block, a);
}

static void out_close(lg_out **out) {
    answer *a = (answer *)*out;
    if (a) lg_blocks_fini(&a->blocks);
    lg_mem_free(a);
    *out = NULL;
}

static lg_status take_event(lg_out *out, const lg_event *event, lg_buf *sse) {
    answer *a = (answer *)out;
    a->sse = sse;
    start(a);
    bool done = event->kind == LG_EVENT_DONE;
    if (done) {
        a->finish = event->finish;
        a->n_produced = event->n_produced;
        a->n_cached = event->n_cached;
    }
    LG_TRY(lg_blocks_put(&a->blocks, event->text, event->len_bytes));
    const lg_blocks *k = &a->blocks;
    bool reasoning = k->n == 0 || (k->n == 1 && k->block[0].kind == LG_BLOCK_REASONING);
    if (!done && a->req->opened_think && reasoning) a->n_reasoning++;
    if (done) LG_TRY(lg_blocks_end(&a->blocks, event->finish));
    return a->req->stream && sse->failed ? LG_E_NOMEM : LG_OK;
}

static void ping(lg_out *out, lg_buf *sse) {
    answer *a = (answer *)out;
    a->sse = sse;
    start(a);
    lg_buf_puts(sse, ": ping\n\n");
}

static void stream_end(const lg_request_parsed *req, lg_out *const *out, uint32_t n_out,
                       lg_buf *sse) {
    answer *a = (answer *)out[0];
    (void)req;
    (void)n_out;
    a->sse = sse;
    keep(a);
    put_response_event(
        a, a->finish == LG_FINISH_LENGTH ? "response.incomplete" : "response.completed", NULL,
        NULL);
}

static void stream_error(lg_out *out, const lg_request_error *e, lg_buf *sse) {
    answer *a = (answer *)out;
    a->sse = sse;
    start(a);
    put_response_event(a, "response.failed", "failed", e);
}

static void response(const lg_request_parsed *req, lg_out *const *out, uint32_t n_out,
                     lg_buf *body) {
    const answer *a = (const answer *)out[0];
    (void)req;
    (void)n_out;
    keep(a);
    put_response(body, a, NULL, NULL);
}

static void put_error(const lg_request_error *e, lg_buf *body) {
    lg_openai_chat.error(e, body);
}

const lg_wire_format lg_responses_wire = {lg_responses_open, out_open, out_close,
                                          take_event,        ping,     stream_end,
                                          stream_error,      response, put_error};
