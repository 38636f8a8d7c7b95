/* openai_resp.c - engine events into answers of the OpenAI wire format: see openai.h.
 *
 * In:  events of one choice.   Out: server-sent events at once, or one object at the end.
 * Invariants: the deltas of a stream join to what the object would hold; every chunk is well-formed UTF-8; the log-probability
 * of each token appears once, with the first chunk written at or after its event.
 * Thread: gateway.  Memory: the text of the choice, when not streaming.  Test: tests/unit/test_openai_resp.c */
#include "gateway/wire/openai.h"

#include "base/num.h"
#include "base/utf8.h"

#include <math.h>
#include <string.h>

/* A call of the answer. */
typedef struct call {
    lg_buf name, args;
} call;

enum { TOKENS, LOGPROBS, TOP, OFFSETS, N_LIST }; /* lists of the completions' logprobs object */

struct lg_oai_out {
    const lg_request_parsed *req; /* borrowed */
    uint32_t choice;
    lg_outparse *parse; /* NULL: a completion */
    lg_buf content, reasoning;
    call *call; /* owned */
    uint32_t n_call, cap_call;
    lg_buf head; /* how each chunk begins: made once, as it is the same for every token */
    /* Log-probabilities not written yet: items of lists, comma-separated.  A chat uses the first list only. */
    lg_buf list[N_LIST];
    uint64_t n_char; /* code points of the text so far */
    bool started;    /* the first chunk of a chat is written */
    bool failed;     /* out of memory */
    lg_finish finish;
    uint32_t n_produced, n_cached;
    lg_buf *sse; /* during an event */
};

/* ---- Small pieces ---- */

static void put_text(lg_buf *b, const char *key, const char *s, size_t len_bytes) {
    lg_buf_putc(b, '"');
    lg_buf_puts(b, key);
    lg_buf_put(b, "\":", 2);
    lg_json_put_string(b, s, len_bytes);
}

static void put_head(lg_buf *b, const lg_request_parsed *req, const char *object) {
    lg_buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,", req->id, object,
                  (unsigned long long)req->created);
    put_text(b, "model", req->model->name, strlen(req->model->name));
}

static void put_finish(lg_buf *b, const lg_oai_out *out) {
    const char *reason = NULL;
    switch (out->finish) {
    case LG_FINISH_LENGTH: reason = "length"; break;
    case LG_FINISH_EOS:
    case LG_FINISH_STOP: /* a call that a stop string has cut is none to make */
        reason =
            out->parse && lg_outparse_n_call(out->parse) && !lg_outparse_closing(out->parse)[0]
                ? "tool_calls"
                : "stop";
        break;
    case LG_FINISH_NONE:
    case LG_FINISH_CANCELLED:
    case LG_FINISH_ERROR: break;
    }
    lg_buf_puts(b, "\"finish_reason\":");
    if (reason)
        lg_json_put_string(b, reason, strlen(reason));
    else
        lg_buf_puts(b, "null");
}

static void put_usage(lg_buf *b, const lg_request_parsed *req, lg_oai_out *const *out,
                      uint32_t n_out) {
    /* The prompt is counted once; of it, what was reused for every choice. */
    uint64_t n_prompt = req->ids.n, n = 0, n_cached = n_prompt;
    for (uint32_t i = 0; i < n_out; i++) {
        n += out[i]->n_produced;
        if (out[i]->n_cached < n_cached) n_cached = out[i]->n_cached;
    }
    lg_buf_printf(b,
                  "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,"
                  "\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
                  (unsigned long long)n_prompt, (unsigned long long)n,
                  (unsigned long long)(n_prompt + n), (unsigned long long)n_cached);
}

/* "call_..." from the request's id, the choice and the call's index: the same in every chunk. */
static void put_call_id(lg_buf *b, const lg_oai_out *out, uint32_t i_call) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *p = out->req->id; *p; p++) hash = (hash ^ (uint8_t)*p) * 0x100000001b3u;
    uint64_t x = lg_num_rng(hash, out->choice, i_call, 0);
    uint64_t y = lg_num_rng(hash, out->choice, i_call, 1);
    lg_buf_printf(b, "\"id\":\"call_%016llx%08llx\"", (unsigned long long)x,
                  (unsigned long long)(y >> 32));
}

/* ---- Log-probabilities ---- */

static void put_logprob(lg_buf *b, float x) {
    lg_json_put_double(b, isfinite(x) ? (double)x : -9999.0);
}

static void piece_of(const lg_oai_out *out, uint32_t id, const char **s, size_t *len_bytes) {
    bool added, special;
    if (lg_tokenizer_piece(out->req->model->tok, id, s, len_bytes, &added, &special)) return;
    *s = "";
    *len_bytes = 0;
}

/* The members "token", "logprob" and "bytes" of a chat's list. */
static void put_chat_token(lg_buf *b, const lg_oai_out *out, uint32_t id, float logprob) {
    const char *s;
    size_t len;
    piece_of(out, id, &s, &len);
    lg_buf_puts(b, "{");
    put_text(b, "token", s, len);
    lg_buf_puts(b, ",\"logprob\":");
    put_logprob(b, logprob);
    lg_buf_puts(b, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++) lg_buf_printf(b, i ? ",%u" : "%u", (uint8_t)s[i]);
    lg_buf_puts(b, "]");
}

static void add_chat_logprob(lg_oai_out *out, const lg_event *e) {
    lg_buf *b = &out->list[TOKENS];
    if (b->len_bytes) lg_buf_puts(b, ",");
    put_chat_token(b, out, e->token, e->logprob);
    lg_buf_puts(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < e->n_top; i++) {
        if (i) lg_buf_puts(b, ",");
        put_chat_token(b, out, e->top[i].id, e->top[i].logprob);
        lg_buf_puts(b, "}");
    }
    lg_buf_puts(b, "]}");
}

/* A token as a completion names it: its text, or "bytes:\xNN..." when that is no whole text. */
static void put_token_name(lg_buf *b, const lg_oai_out *out, uint32_t id) {
    const char *s;
    size_t len;
    piece_of(out, id, &s, &len);
    if (lg_utf8_valid(s, len)) {
        lg_json_put_string(b, s, len);
        return;
    }
    lg_buf_puts(b, "\"bytes:");
    for (size_t i = 0; i < len; i++) lg_buf_printf(b, "\\\\x%02x", (uint8_t)s[i]);
    lg_buf_puts(b, "\"");
}

static void put_top_entry(lg_buf *b, const lg_oai_out *out, uint32_t id, float logprob) {
    put_token_name(b, out, id);
    lg_buf_puts(b, ":");
    put_logprob(b, logprob);
}

static void add_text_logprob(lg_oai_out *out, const lg_event *e) {
    if (out->list[TOKENS].len_bytes)
        for (int i = 0; i < N_LIST; i++) lg_buf_puts(&out->list[i], ",");
    put_token_name(&out->list[TOKENS], out, e->token);
    put_logprob(&out->list[LOGPROBS], e->logprob);
    lg_buf_printf(&out->list[OFFSETS], "%llu", (unsigned long long)out->n_char);
    lg_buf *top = &out->list[TOP];
    bool chosen = false;
    lg_buf_puts(top, "{");
    for (uint32_t i = 0; i < e->n_top; i++) {
        if (i) lg_buf_puts(top, ",");
        put_top_entry(top, out, e->top[i].id, e->top[i].logprob);
        chosen |= e->top[i].id == e->token;
    }
    if (!chosen) {
        if (e->n_top) lg_buf_puts(top, ",");
        put_top_entry(top, out, e->token, e->logprob);
    }
    lg_buf_puts(top, "}");
}

/* Write "logprobs" with what is pending, and forget it. */
static void put_logprobs(lg_buf *b, lg_oai_out *out) {
    if (out->list[TOKENS].len_bytes == 0) {
        lg_buf_puts(b, "\"logprobs\":null,");
        return;
    }
    if (out->parse) {
        lg_buf_puts(b, "\"logprobs\":{\"content\":[");
        lg_buf_put(b, out->list[TOKENS].data, out->list[TOKENS].len_bytes);
        lg_buf_puts(b, "],\"refusal\":null},");
    } else {
        static const char *const name[] = {"tokens", "token_logprobs", "top_logprobs",
                                           "text_offset"};
        lg_buf_puts(b, "\"logprobs\":{");
        for (int i = 0; i < N_LIST; i++) {
            bool none = i == TOP && out->req->params.n_top == 0;
            lg_buf_printf(b, "%s\"%s\":%s", i ? "," : "", name[i], none ? "null" : "[");
            if (none) continue;
            lg_buf_put(b, lg_buf_str(&out->list[i]), out->list[i].len_bytes);
            lg_buf_puts(b, "]");
        }
        lg_buf_puts(b, "},");
    }
    for (int i = 0; i < N_LIST; i++) {
        if (out->list[i].failed) out->failed = true;
        lg_buf_clear(&out->list[i]);
    }
}

/* ---- Chunks ---- */

static void make_head(lg_oai_out *out) {
    lg_buf *b = &out->head;
    lg_buf_puts(b, "data: ");
    put_head(b, out->req, out->parse ? "chat.completion.chunk" : "text_completion");
    lg_buf_printf(b, ",\"choices\":[{\"index\":%u,%s", out->choice,
                  out->parse ? "\"delta\":{" : "");
    out->failed |= b->failed;
}

static void begin_chunk(lg_oai_out *out) {
    if (out->head.len_bytes == 0) make_head(out);
    lg_buf_put(out->sse, lg_buf_str(&out->head), out->head.len_bytes);
}

static void end_chunk(lg_oai_out *out) {
    static const char plain[] = "},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    if (out->parse && out->finish == LG_FINISH_NONE && out->list[TOKENS].len_bytes == 0 &&
        !out->req->include_usage) { /* nearly every token */
        lg_buf_put(out->sse, plain, sizeof plain - 1);
        return;
    }
    lg_buf_puts(out->sse, out->parse ? "}," : ",");
    put_logprobs(out->sse, out);
    put_finish(out->sse, out);
    lg_buf_puts(out->sse, out->req->include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}

static void chunk_text(lg_oai_out *out, const char *key, const char *s, size_t len_bytes) {
    begin_chunk(out);
    put_text(out->sse, key, s, len_bytes);
    end_chunk(out);
}

static void chunk_call(lg_oai_out *out, const lg_part *part) {
    begin_chunk(out);
    lg_buf_printf(out->sse, "\"tool_calls\":[{\"index\":%u,", part->call);
    if (part->kind == LG_PART_CALL_BEGIN) {
        put_call_id(out->sse, out, part->call);
        lg_buf_puts(out->sse, ",\"type\":\"function\",\"function\":{");
        put_text(out->sse, "name", part->text, part->len_bytes);
        lg_buf_puts(out->sse, ",\"arguments\":\"\"}}]");
    } else {
        lg_buf_puts(out->sse, "\"function\":{");
        put_text(out->sse, "arguments", part->text, part->len_bytes);
        lg_buf_puts(out->sse, "}}]");
    }
    end_chunk(out);
}

/* ---- Parts ---- */

static void stream_part(lg_oai_out *out, const lg_part *part) {
    switch (part->kind) {
    case LG_PART_CONTENT: chunk_text(out, "content", part->text, part->len_bytes); break;
    case LG_PART_REASONING:
        chunk_text(out, "reasoning_content", part->text, part->len_bytes);
        break;
    case LG_PART_CALL_BEGIN:
    case LG_PART_CALL_ARGS: chunk_call(out, part); break;
    }
}

static void add_call(lg_oai_out *out) {
    if (out->n_call == out->cap_call) {
        uint32_t cap = out->cap_call ? 2 * out->cap_call : 4;
        call *p = lg_mem_realloc(out->call, cap * sizeof *p);
        if (!p) {
            out->failed = true;
            return;
        }
        out->call = p;
        out->cap_call = cap;
    }
    out->call[out->n_call++] = (call){0};
}

static void collect_part(lg_oai_out *out, const lg_part *part) {
    if (part->kind == LG_PART_CALL_BEGIN) add_call(out);
    if (out->failed) return;
    lg_buf *to = part->kind == LG_PART_REASONING    ? &out->reasoning
                 : part->kind == LG_PART_CONTENT    ? &out->content
                 : part->kind == LG_PART_CALL_BEGIN ? &out->call[part->call].name
                                                    : &out->call[part->call].args;
    lg_buf_put(to, part->text, part->len_bytes);
    out->failed |= to->failed;
}

static void on_part(void *ctx, const lg_part *part) {
    lg_oai_out *out = ctx;
    bool first = part->kind <= LG_PART_CONTENT || part->call == 0;
    if (out->req->one_call && lg_outparse_n_call(out->parse) + !first > 0 &&
        !(part->kind == LG_PART_CALL_ARGS && first))
        return; /* nothing follows the one call */
    if (out->req->stream)
        stream_part(out, part);
    else
        collect_part(out, part);
}

/* ---- Interface ---- */

lg_status lg_oai_out_open(const lg_request_parsed *req, uint32_t choice, lg_oai_out **out) {
    lg_oai_out *o = *out = lg_mem_alloc(sizeof *o);
    if (!o) return LG_E_NOMEM;
    o->req = req;
    o->choice = choice;
    if (!req->chat) return LG_OK;
    lg_status st = lg_outparse_open(req->tools, req->opened_think, &o->parse);
    if (st != LG_OK) lg_oai_out_close(out);
    return st;
}

void lg_oai_out_close(lg_oai_out **out) {
    lg_oai_out *o = *out;
    if (!o) return;
    lg_outparse_close(&o->parse);
    lg_buf_fini(&o->content);
    lg_buf_fini(&o->reasoning);
    lg_buf_fini(&o->head);
    for (uint32_t i = 0; i < o->n_call; i++) {
        lg_buf_fini(&o->call[i].name);
        lg_buf_fini(&o->call[i].args);
    }
    lg_mem_free(o->call);
    for (int i = 0; i < N_LIST; i++) lg_buf_fini(&o->list[i]);
    LG_FREE(*out);
}

static lg_status take_text(lg_oai_out *out, const lg_event *e) {
    if (e->len_bytes == 0) return LG_OK;
    for (size_t i = 0; i < e->len_bytes; i++) out->n_char += (e->text[i] & 0xc0) != 0x80;
    if (out->parse) return lg_outparse_put(out->parse, e->text, e->len_bytes, on_part, out);
    if (out->req->stream)
        chunk_text(out, "text", e->text, e->len_bytes);
    else
        lg_buf_put(&out->content, e->text, e->len_bytes);
    return LG_OK;
}

static void stream_error(lg_oai_out *out, lg_status status) {
    lg_request_error e = {.http = 500, .type = "server_error", .code = "generation_failed"};
    const char *name = lg_status_name(status);
    memcpy(e.msg, "The answer ended early: ", 24);
    strncat(e.msg, name, sizeof e.msg - 25);
    lg_buf_puts(out->sse, "data: ");
    lg_oai_error_body(&e, out->sse);
    lg_buf_puts(out->sse, "\n\n");
}

static lg_status take_done(lg_oai_out *out, const lg_event *e) {
    if (out->parse)
        LG_TRY(lg_outparse_end(out->parse, e->finish != LG_FINISH_EOS, on_part, out));
    out->finish = e->finish;
    out->n_produced = e->n_produced;
    out->n_cached = e->n_cached;
    if (!out->req->stream) return LG_OK;
    if (e->finish == LG_FINISH_ERROR || e->finish == LG_FINISH_CANCELLED) {
        stream_error(out, e->status);
        return LG_OK;
    }
    begin_chunk(out);
    if (!out->parse) lg_buf_puts(out->sse, "\"text\":\"\"");
    end_chunk(out);
    return LG_OK;
}

lg_status lg_oai_out_event(lg_oai_out *out, const lg_event *event, lg_buf *sse) {
    out->sse = sse;
    if (out->req->stream && out->parse && !out->started) {
        begin_chunk(out);
        lg_buf_puts(sse, "\"role\":\"assistant\",\"content\":\"\"");
        end_chunk(out);
        out->started = true;
    }
    if (event->kind == LG_EVENT_TOKEN && out->req->params.n_top >= 0) {
        if (out->parse)
            add_chat_logprob(out, event);
        else
            add_text_logprob(out, event);
    }
    LG_TRY(take_text(out, event));
    if (event->kind == LG_EVENT_DONE) LG_TRY(take_done(out, event));
    for (int i = 0; i < N_LIST; i++) out->failed |= out->list[i].failed;
    out->failed |= out->content.failed || (out->req->stream && sse->failed);
    return out->failed ? LG_E_NOMEM : LG_OK;
}

void lg_oai_stream_end(const lg_request_parsed *req, lg_oai_out *const *out, uint32_t n_out,
                       lg_buf *sse) {
    if (req->include_usage) {
        lg_buf_puts(sse, "data: ");
        put_head(sse, req, req->chat ? "chat.completion.chunk" : "text_completion");
        lg_buf_puts(sse, ",\"choices\":[],");
        put_usage(sse, req, out, n_out);
        lg_buf_puts(sse, "}\n\n");
    }
    lg_buf_puts(sse, "data: [DONE]\n\n");
}

static void put_message(lg_buf *b, const lg_oai_out *out) {
    lg_buf_puts(b, "\"message\":{\"role\":\"assistant\",");
    if (out->n_call && out->content.len_bytes == 0)
        lg_buf_puts(b, "\"content\":null");
    else
        put_text(b, "content", lg_buf_str(&out->content), out->content.len_bytes);
    lg_buf_puts(b, ",\"refusal\":null");
    if (out->req->opened_think) {
        lg_buf_puts(b, ",");
        put_text(b, "reasoning_content", lg_buf_str(&out->reasoning), out->reasoning.len_bytes);
    }
    for (uint32_t i = 0; i < out->n_call; i++) {
        const call *c = &out->call[i];
        lg_buf_puts(b, i ? ",{" : ",\"tool_calls\":[{");
        put_call_id(b, out, i);
        lg_buf_puts(b, ",\"type\":\"function\",\"function\":{");
        put_text(b, "name", lg_buf_str(&c->name), c->name.len_bytes);
        lg_buf_puts(b, ",");
        put_text(b, "arguments", lg_buf_str(&c->args), c->args.len_bytes);
        lg_buf_puts(b, "}}");
    }
    lg_buf_puts(b, out->n_call ? "]}" : "}");
}

void lg_oai_response(const lg_request_parsed *req, lg_oai_out *const *out, uint32_t n_out,
                     lg_buf *body) {
    put_head(body, req, req->chat ? "chat.completion" : "text_completion");
    lg_buf_puts(body, ",\"choices\":[");
    for (uint32_t i = 0; i < n_out; i++) {
        lg_buf_printf(body, "%s{\"index\":%u,", i ? "," : "", out[i]->choice);
        if (req->chat)
            put_message(body, out[i]);
        else
            put_text(body, "text", lg_buf_str(&out[i]->content), out[i]->content.len_bytes);
        lg_buf_puts(body, ",");
        put_logprobs(body, out[i]);
        put_finish(body, out[i]);
        lg_buf_puts(body, "}");
    }
    lg_buf_puts(body, "],");
    put_usage(body, req, out, n_out);
    lg_buf_puts(body, "}");
}

void lg_oai_error_body(const lg_request_error *e, lg_buf *body) {
    lg_buf_puts(body, "{\"error\":{");
    put_text(body, "message", e->msg, strlen(e->msg));
    lg_buf_puts(body, ",");
    put_text(body, "type", e->type, strlen(e->type));
    lg_buf_puts(body, ",\"param\":");
    if (e->param[0])
        lg_json_put_string(body, e->param, strlen(e->param));
    else
        lg_buf_puts(body, "null");
    lg_buf_puts(body, ",\"code\":");
    if (e->code)
        lg_json_put_string(body, e->code, strlen(e->code));
    else
        lg_buf_puts(body, "null");
    lg_buf_puts(body, "}}");
}

void lg_oai_models(const lg_request_model *model, lg_buf *body) {
    lg_buf_puts(body, "{\"object\":\"list\",\"data\":[{");
    put_text(body, "id", model->name, strlen(model->name));
    lg_buf_printf(body, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"lignum\"}]}",
                  (unsigned long long)model->created);
}

/* ---- As a wire format ---- */

static bool open_chat(const lg_request_model *model, const char *body, size_t len_bytes,
                      lg_request_parsed **req, lg_request_error *e) {
    return lg_oai_open(model, true, body, len_bytes, req, e);
}

static bool open_text(const lg_request_model *model, const char *body, size_t len_bytes,
                      lg_request_parsed **req, lg_request_error *e) {
    return lg_oai_open(model, false, body, len_bytes, req, e);
}

static lg_status wire_out_open(const lg_request_parsed *req, uint32_t choice, lg_out **out) {
    lg_oai_out *o;
    lg_status st = lg_oai_out_open(req, choice, &o);
    *out = (lg_out *)o;
    return st;
}

static void wire_out_close(lg_out **out) {
    lg_oai_out *o = (lg_oai_out *)*out;
    lg_oai_out_close(&o);
    *out = NULL;
}

static lg_status wire_event(lg_out *out, const lg_event *event, lg_buf *sse) {
    return lg_oai_out_event((lg_oai_out *)out, event, sse);
}

static void wire_stream_end(const lg_request_parsed *req, lg_out *const *out, uint32_t n_out,
                            lg_buf *sse) {
    lg_oai_stream_end(req, (lg_oai_out *const *)out, n_out, sse);
}

static void wire_ping(lg_out *out, lg_buf *sse) {
    (void)out;
    lg_buf_puts(sse, ": ping\n\n");
}

static void wire_stream_error(lg_out *out, const lg_request_error *e, lg_buf *sse) {
    (void)out;
    lg_buf_puts(sse, "data: ");
    lg_oai_error_body(e, sse);
    lg_buf_puts(sse, "\n\n");
}

static void wire_response(const lg_request_parsed *req, lg_out *const *out, uint32_t n_out,
                          lg_buf *body) {
    lg_oai_response(req, (lg_oai_out *const *)out, n_out, body);
}

#define WIRE(open)                                                                             \
    {                                                                                          \
        open, wire_out_open, wire_out_close, wire_event, wire_ping, wire_stream_end,           \
            wire_stream_error, wire_response, lg_oai_error_body                                \
    }

const lg_wire_format lg_openai_chat = WIRE(open_chat);
const lg_wire_format lg_openai_text = WIRE(open_text);
