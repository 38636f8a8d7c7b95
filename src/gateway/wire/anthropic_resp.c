/* anthropic_resp.c - engine events into answers of the Anthropic Messages wire format: see anthropic.h.
 *
 * In:  events of one answer.   Out: server-sent events at once, or one object at the end.
 * Invariants: the deltas of a stream join to what the object would hold; blocks do not overlap.
 * Thread: gateway.  Memory: the text of the answer.  Test: tests/unit/test_anthropic.c */
#include "gateway/wire/anthropic.h"

#include "gateway/wire/blocks.h"

#include <stdio.h>
#include <string.h>

typedef struct answer {
    const lg_request_parsed *req; /* borrowed */
    lg_blocks blocks;
    bool started; /* message_start is written */
    lg_finish finish;
    uint32_t stop_index, n_produced, n_cached;
    lg_buf *sse; /* during an event */
} answer;

/* ---- Small pieces ---- */

static void put_text(lg_buf *b, const char *key, const char *s, size_t len_bytes) {
    lg_buf_printf(b, "\"%s\":", key);
    lg_json_put_string(b, s, len_bytes);
}

static void put_usage(lg_buf *b, const answer *a) {
    /* Input tokens are those that were computed; how many were reused is known at the end. */
    lg_buf_printf(b,
                  "\"usage\":{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,"
                  "\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
                  a->req->ids.n - a->n_cached, a->n_cached, a->n_produced);
}

static void put_stop(lg_buf *b, const answer *a) {
    const lg_request_parsed *r = a->req;
    const char *reason = NULL, *sequence = NULL;
    switch (a->finish) {
    case LG_FINISH_LENGTH: reason = "max_tokens"; break;
    case LG_FINISH_EOS: reason = lg_blocks_n_call(&a->blocks) ? "tool_use" : "end_turn"; break;
    case LG_FINISH_STOP:
        reason = "stop_sequence";
        if (a->stop_index < r->n_stop) sequence = r->stop[a->stop_index];
        break;
    default: break;
    }
    lg_buf_puts(b, "\"stop_reason\":");
    if (reason)
        lg_json_put_string(b, reason, strlen(reason));
    else
        lg_buf_puts(b, "null");
    lg_buf_puts(b, ",\"stop_sequence\":");
    if (sequence)
        lg_json_put_string(b, sequence, strlen(sequence));
    else
        lg_buf_puts(b, "null");
}

static void put_head(lg_buf *b, const answer *a) {
    lg_buf_printf(b, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",", a->req->id);
    put_text(b, "model", a->req->model->name, strlen(a->req->model->name));
}

/* A block as an object; what a stream adds later is left out unless `full`. */
static void put_block(lg_buf *b, const answer *a, uint32_t i, const lg_block *k, bool full) {
    const char *text = full ? lg_buf_str(&k->text) : "";
    size_t len = full ? k->text.len_bytes : 0;
    switch (k->kind) {
    case LG_BLOCK_REASONING:
        lg_buf_puts(b, "{\"type\":\"thinking\",");
        put_text(b, "thinking", text, len);
        lg_buf_printf(b, ",\"signature\":\"%s\"}", full ? a->req->id : "");
        break;
    case LG_BLOCK_TEXT:
        lg_buf_puts(b, "{\"type\":\"text\",");
        put_text(b, "text", text, len);
        lg_buf_puts(b, "}");
        break;
    case LG_BLOCK_CALL:
        lg_buf_puts(b, "{\"type\":\"tool_use\",\"id\":\"");
        lg_blocks_put_id(b, "toolu_", a->req->id, i);
        lg_buf_puts(b, "\",");
        put_text(b, "name", lg_buf_str(&k->name), k->name.len_bytes);
        lg_buf_puts(b, ",\"input\":");
        if (full)
            lg_blocks_put_object(&a->blocks, k, b);
        else
            lg_buf_puts(b, "{}");
        lg_buf_puts(b, "}");
        break;
    }
}

/* ---- Streams ---- */

static void begin_event(lg_buf *b, const char *name) {
    lg_buf_printf(b, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void end_event(lg_buf *b) {
    lg_buf_puts(b, "}\n\n");
}

static void put_delta(lg_buf *b, uint32_t i, const char *type, const char *key, const char *s,
                      size_t len_bytes) {
    begin_event(b, "content_block_delta");
    lg_buf_printf(b, ",\"index\":%u,\"delta\":{\"type\":\"%s\",", i, type);
    put_text(b, key, s, len_bytes);
    lg_buf_puts(b, "}");
    end_event(b);
}

static void on_block(void *ctx, lg_block_change change, uint32_t i, const lg_block *k,
                     const char *text, size_t len_bytes) {
    static const char *const type[] = {"thinking_delta", "text_delta", "input_json_delta"};
    static const char *const key[] = {"thinking", "text", "partial_json"};
    answer *a = ctx;
    lg_buf *b = a->sse;
    if (!a->req->stream) return;
    switch (change) {
    case LG_BLOCK_BEGIN:
        begin_event(b, "content_block_start");
        lg_buf_printf(b, ",\"index\":%u,\"content_block\":", i);
        put_block(b, a, i, k, false);
        end_event(b);
        break;
    case LG_BLOCK_DELTA: put_delta(b, i, type[k->kind], key[k->kind], text, len_bytes); break;
    case LG_BLOCK_END:
        if (k->kind == LG_BLOCK_REASONING)
            put_delta(b, i, "signature_delta", "signature", a->req->id, strlen(a->req->id));
        begin_event(b, "content_block_stop");
        lg_buf_printf(b, ",\"index\":%u", i);
        end_event(b);
        break;
    }
}

static void start(answer *a) {
    if (a->started || !a->req->stream) return;
    a->started = true;
    begin_event(a->sse, "message_start");
    lg_buf_puts(a->sse, ",\"message\":");
    put_head(a->sse, a);
    lg_buf_puts(a->sse, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(a->sse, a);
    lg_buf_puts(a->sse, "}");
    end_event(a->sse);
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
    LG_TRY(lg_blocks_put(&a->blocks, event->text, event->len_bytes));
    if (event->kind == LG_EVENT_DONE) {
        LG_TRY(lg_blocks_end(&a->blocks, event->finish));
        a->finish = event->finish;
        a->stop_index = event->stop_index;
        a->n_produced = event->n_produced;
        a->n_cached = event->n_cached;
    }
    return a->req->stream && sse->failed ? LG_E_NOMEM : LG_OK;
}

static void stream_end(const lg_request_parsed *req, lg_out *const *out, uint32_t n_out,
                       lg_buf *sse) {
    const answer *a = (const answer *)out[0];
    (void)req;
    (void)n_out;
    begin_event(sse, "message_delta");
    lg_buf_puts(sse, ",\"delta\":{");
    put_stop(sse, a);
    lg_buf_puts(sse, "},");
    put_usage(sse, a);
    end_event(sse);
    begin_event(sse, "message_stop");
    end_event(sse);
}

static void ping(lg_out *out, lg_buf *sse) {
    answer *a = (answer *)out;
    a->sse = sse;
    start(a);
    begin_event(sse, "ping");
    end_event(sse);
}

static void stream_error(lg_out *out, const lg_request_error *e, lg_buf *sse) {
    (void)out;
    lg_buf_puts(sse, "event: error\ndata: ");
    lg_anthropic_error(e, sse);
    lg_buf_puts(sse, "\n\n");
}

static void response(const lg_request_parsed *req, lg_out *const *out, uint32_t n_out,
                     lg_buf *body) {
    const answer *a = (const answer *)out[0];
    (void)req;
    (void)n_out;
    put_head(body, a);
    lg_buf_puts(body, ",\"content\":[");
    for (uint32_t i = 0; i < a->blocks.n; i++) {
        lg_buf_puts(body, i ? "," : "");
        put_block(body, a, i, &a->blocks.block[i], true);
    }
    lg_buf_puts(body, "],");
    put_stop(body, a);
    lg_buf_puts(body, ",");
    put_usage(body, a);
    lg_buf_puts(body, "}");
}

static const char *type_of(int http) {
    switch (http) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return http < 500 ? "invalid_request_error" : "api_error";
    }
}

void lg_anthropic_error(const lg_request_error *e, lg_buf *body) {
    char msg[sizeof e->msg + sizeof e->param + 2];
    bool named = !e->param[0] || strstr(e->msg, e->param);
    snprintf(msg, sizeof msg, "%s%s%s", named ? "" : e->param, named ? "" : ": ", e->msg);
    lg_buf_printf(body, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",", type_of(e->http));
    put_text(body, "message", msg, strlen(msg));
    lg_buf_puts(body, "}}");
}

const lg_wire_format lg_anthropic_wire = {lg_anthropic_open, out_open, out_close,
                                          take_event,        ping,     stream_end,
                                          stream_error,      response, lg_anthropic_error};
