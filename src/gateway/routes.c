/* routes.c - one function for each route, and the jobs that answer with the engine's help.
 *
 * In:  complete requests of server.c, events of supervise.c.   Out: answers through lg_server_*.
 * A job is one request; it has a flight and an output for each choice.  The head of a stream is sent with its first event,
 * so that what goes wrong before gets a real HTTP status.
 * Invariants: a job is in g->jobs from start to job_free; conn->job == job as long.  Thread: gateway.
 * Memory: the job, its parsed request and outputs; freed with the answer.  Test: tests/e2e */
#include "base/num.h"
#include "gateway/gateway.h"

#include "base/clock.h"
#include "base/mem.h"
#include "gateway/wire/openapi.h"
#include "gateway/wire/replay.h"

#include <stdio.h>
#include <string.h>

typedef struct choice {
    lg_job *job;
    lg_flight *flight; /* NULL when it has ended */
    uint64_t last_us;  /* its last token; 0: none yet */
    bool thought;      /* its reasoning has ended */
    lg_ids made;       /* of a chat: all ids of the answer, and their text */
    lg_buf text;
    uint32_t n_before; /* ids before the flight at hand */
    bool
        counted; /* n_cached is known: of the first flight, as later ones reuse what it computed */
    uint32_t n_cached;
} choice;

struct lg_job {
    lg_job *next, *prev; /* g->jobs */
    lg_gateway *g;
    lg_conn *conn;
    lg_route route;
    const lg_wire_format *wire;
    lg_read *read;          /* its body is being read; else NULL */
    lg_request_parsed *req; /* NULL until then */
    choice choice[LG_REQUEST_MAX_CHOICE];
    lg_out *out[LG_REQUEST_MAX_CHOICE];
    uint32_t n_done;
    bool began; /* the stream's head is sent */
    uint64_t start_us;
    uint64_t sent_us; /* when the stream last said something */
    lg_key *key;      /* whose tokens these are, or NULL */
};

static const char json_type[] = "application/json";

/* The wire format of a route's answers and errors. */
static const lg_wire_format *wire_of(lg_route route) {
    switch (route) {
    case LG_ROUTE_COMPLETIONS: return &lg_openai_text;
    case LG_ROUTE_MESSAGES:
    case LG_ROUTE_COUNT_TOKENS: return &lg_anthropic_wire;
    case LG_ROUTE_RESPONSES: return &lg_responses_wire;
    default: return &lg_openai_chat;
    }
}

/* ---- Answers ---- */

static void send_body(lg_gateway *g, lg_conn *c, lg_route route, int status,
                      const char *headers, lg_buf *body) {
    static const char no_memory[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
        "\"code\":null}}";
    if (body->failed) status = 500;
    lg_expose_count(g, route, status);
    if (body->failed)
        lg_conn_reply(c, status, json_type, "", no_memory, sizeof no_memory - 1);
    else
        lg_conn_reply(c, status, json_type, headers, lg_buf_str(body), body->len_bytes);
    lg_buf_fini(body);
}

static void send_error(lg_gateway *g, lg_conn *c, lg_route route, const lg_request_error *e,
                       const char *headers) {
    lg_buf body = {0};
    wire_of(route)->error(e, &body);
    send_body(g, c, route, e->http, headers, &body);
}

static lg_request_error error_of(int http, const char *code, const char *msg) {
    lg_request_error e = {.http = http, .code = code};
    e.type = http == 429  ? "rate_limit_error"
             : http < 500 ? "invalid_request_error"
                          : "server_error";
    snprintf(e.msg, sizeof e.msg, "%s", msg);
    return e;
}

static const char *retry_header(int http) {
    return http == 503 || http == 429 ? "Retry-After: 1\r\n" : "";
}

static void refuse(lg_gateway *g, lg_conn *c, lg_route route, int http, const char *code,
                   const char *msg) {
    lg_request_error e = error_of(http, code, msg);
    send_error(g, c, route, &e, retry_header(http));
}

/* The guard or the key's limits say no. */
static void refuse_key(lg_gateway *g, lg_conn *c, lg_route route, const lg_keys_refusal *why) {
    char headers[64] = "";
    lg_request_error e = error_of(why->http, why->code, why->msg);
    if (why->http == 401) snprintf(headers, sizeof headers, "WWW-Authenticate: Bearer\r\n");
    if (why->retry_s) snprintf(headers, sizeof headers, "Retry-After: %u\r\n", why->retry_s);
    send_error(g, c, route, &e, headers);
}

void lg_routes_bad(lg_gateway *g, lg_conn *c, int status, const char *reason) {
    refuse(g, c, LG_ROUTE_OTHER, status, "bad_http_request", reason);
}

/* A number for whoever a key belongs to; 0 without keys. */
static uint64_t tenant_of(const lg_key *key) {
    return key ? lg_num_load64(key->hash) : 0;
}

/* ---- Jobs ---- */

static void job_free(lg_job *j) {
    lg_gateway *g = j->g;
    if (j->read) j->read->ctx = NULL;
    for (uint32_t i = 0; i < LG_REQUEST_MAX_CHOICE; i++) {
        if (j->choice[i].flight) lg_supervise_cancel(g->sup, j->choice[i].flight);
        if (j->out[i]) j->wire->out_close(&j->out[i]);
        lg_ids_fini(&j->choice[i].made);
        lg_buf_fini(&j->choice[i].text);
    }
    *(j->prev ? &j->prev->next : &g->jobs) = j->next;
    if (j->next) j->next->prev = j->prev;
    g->n_job--;
    if (j->conn) lg_conn_set_job(j->conn, NULL);
    if (j->key) lg_keys_end(j->key);
    lg_request_close(&j->req);
    lg_mem_free(j);
}

void lg_routes_gone(lg_job *j) {
    j->g->stats.n_cancelled++;
    lg_expose_count(j->g, j->route, 499);
    j->conn = NULL;
    job_free(j);
}

/* Where the job at hand puts its stream's next bytes; empty but for the room.  One buffer for all jobs, which stays in the
 * processor's cache: what is put there is sent before anything else is done. */
static lg_buf *empty_sse(lg_gateway *g) {
    static const char room[LG_CONN_ROOM] = {0};
    lg_buf_clear(&g->sse);
    lg_buf_put(&g->sse, room, sizeof room);
    return &g->sse;
}

/* Send what has gathered; false when the client is too slow and the job gone. */
static bool job_flush(lg_job *j, uint64_t now_us) {
    lg_buf *sse = &j->g->sse;
    if (sse->len_bytes <= LG_CONN_ROOM) return true;
    if (!j->began) lg_conn_stream_begin(j->conn);
    j->began = true;
    j->sent_us = now_us;
    if (!lg_conn_stream_put(j->conn, sse)) return false;
    empty_sse(j->g);
    return true;
}

/* The job ends with an error, as a status or, in a stream, as its last event. */
static void job_fail(lg_job *j, const lg_request_error *e) {
    lg_gateway *g = j->g;
    lg_conn *c = j->conn;
    lg_route route = j->route;
    if (!j->began) {
        job_free(j);
        send_error(g, c, route, e, retry_header(e->http));
        return;
    }
    lg_buf *sse = empty_sse(g);
    j->wire->stream_error(j->out[0], e, sse);
    if (!sse->failed && !job_flush(j, lg_clock_us())) return;
    job_free(j);
    lg_expose_count(g, route, e->http);
    lg_conn_stream_end(c);
}

static void job_finish(lg_job *j, uint64_t now_us) {
    lg_gateway *g = j->g;
    lg_conn *c = j->conn;
    lg_route route = j->route;
    lg_buf body = {0};
    if (j->req->stream) {
        j->wire->stream_end(j->req, j->out, j->req->n_choice, &g->sse);
        if (!job_flush(j, now_us)) return;
        job_free(j);
        lg_expose_count(g, route, 200);
        lg_conn_stream_end(c);
        return;
    }
    j->wire->response(j->req, j->out, j->req->n_choice, &body);
    job_free(j);
    send_body(g, c, route, 200, "", &body);
}

static lg_request_error error_of_lost(const lg_lost *lost) {
    switch (lost->kind) {
    case LG_LOST_WORKER: return error_of(500, "worker_failed", lost->text);
    case LG_LOST_UNAVAILABLE: return error_of(503, "worker_unavailable", lost->text);
    default: break;
    }
    switch (lost->status) {
    case LG_AGAIN: return error_of(429, "queue_full", "too many requests are waiting");
    case LG_E_ARG: return error_of(400, NULL, lost->text);
    case LG_E_NOMEM: return error_of(503, "out_of_memory", lost->text);
    default: return error_of(500, "engine_error", lost->text);
    }
}

static void count_token(lg_job *j, choice *ch, uint64_t now) {
    lg_gateway_stats *s = &j->g->stats;
    s->n_generated_tok++;
    if (j->key) lg_keys_spend(j->key, 1);
    if (ch->last_us)
        lg_metrics_hist_add(&s->itl, (double)(now - ch->last_us) * 1e-6);
    else
        lg_metrics_hist_add(&s->ttft, (double)(now - j->start_us) * 1e-6);
    ch->last_us = now;
}

static void on_flight(void *ctx, const lg_event *event, const lg_lost *lost);

/* Submit choice i of the job: `ids`, of which the last ch->n_before were made for it already. */
static lg_status submit(lg_job *j, uint32_t i, const lg_ids *ids) {
    const lg_request_parsed *q = j->req;
    choice *ch = &j->choice[i];
    lg_request r = {.ids = ids->id,
                    .n_id = (uint32_t)ids->n,
                    .max_tokens = q->max_tokens ? q->max_tokens - ch->n_before : 0,
                    .params = q->params,
                    .stop = q->stop,
                    .n_stop = q->n_stop,
                    .bias = q->bias,
                    .n_bias = q->n_bias,
                    .grammar = q->grammar.len_bytes ? q->grammar.data : NULL,
                    .grammar_think = q->opened_think && ch->n_before == 0,
                    .cache_salt =
                        lg_request_salt(j->g->opt->share_cache ? 0 : tenant_of(j->key), q),
                    .client = tenant_of(j->key),
                    .priority = lg_keys_priority(j->key, q->has_priority, q->priority)};
    r.params.choice = i;
    return lg_supervise_submit(j->g->sup, &r, on_flight, ch, &ch->flight);
}

/* ---- What a chat's answer is made of ---- */

static lg_status note(choice *ch, const lg_event *e) {
    const lg_request_parsed *q = ch->job->req;
    if (!q->replayable && !q->think_budget) return LG_OK;
    lg_buf_put(&ch->text, e->text, e->len_bytes);
    if (ch->text.failed) return LG_E_NOMEM;
    return e->kind == LG_EVENT_TOKEN ? lg_ids_push(&ch->made, e->token) : LG_OK;
}

/* A turn that the model has ended is kept in its ids. */
static void keep_turn(const lg_job *j, const choice *ch, const lg_event *e) {
    const lg_request_parsed *q = j->req;
    if (!q->replayable || e->finish != LG_FINISH_EOS || ch->made.n == 0) return;
    if (ch->made.id[ch->made.n - 1] != lg_tokenizer_added(q->model->tok, "<|im_end|>")) return;
    lg_replay_put(q->model->replay, q->replay_key, q->tools, q->opened_think, q->one_call,
                  &ch->text, ch->made.id, ch->made.n);
}

/* ---- Thinking budget ---- */

/* Take a token of a choice that has a budget.  *over: it is spent; a character split over tokens is waited for. */
static lg_status spend(choice *ch, const lg_event *e, bool *over) {
    enum { LONGEST_SPLIT = 16 };
    const lg_request_parsed *q = ch->job->req;
    const lg_tokenizer *tok = q->model->tok;
    *over = false;
    if (!q->think_budget || !q->opened_think || ch->thought) return LG_OK;
    ch->thought = e->token == lg_tokenizer_added(tok, "</think>") ||
                  (q->tools && e->token == lg_tokenizer_added(tok, "<tool_call>"));
    if (ch->thought) return LG_OK;
    *over = ch->made.n >= q->think_budget &&
            (e->len_bytes > 0 || ch->made.n >= (size_t)q->think_budget + LONGEST_SPLIT);
    return LG_OK;
}

/* Write the end of reasoning for choice i, whose ids so far and these go in front of a new flight. */
static lg_status think_no_more(lg_job *j, uint32_t i, const lg_ids *close, lg_ids *ids) {
    const lg_request_parsed *q = j->req;
    choice *ch = &j->choice[i];
    size_t n_made = ch->made.n, n_before = n_made + close->n;
    ch->thought = true;
    if (q->max_tokens && n_before >= q->max_tokens) return LG_OK; /* no room: it ends anyway */
    if (q->ids.n + n_before >= q->model->n_ctx) return LG_OK;
    lg_supervise_cancel(j->g->sup, ch->flight);
    ch->flight = NULL;
    ch->n_before = (uint32_t)n_before;
    for (size_t k = 0; k < q->ids.n; k++) LG_TRY(lg_ids_push(ids, q->ids.id[k]));
    for (size_t k = 0; k < n_made; k++) LG_TRY(lg_ids_push(ids, ch->made.id[k]));
    for (size_t k = 0; k < close->n; k++) {
        lg_event e = {.kind = LG_EVENT_TOKEN, .token = close->id[k]};
        bool added, special;
        lg_tokenizer_piece(q->model->tok, e.token, &e.text, &e.len_bytes, &added, &special);
        LG_TRY(j->wire->event(j->out[i], &e, &j->g->sse));
        LG_TRY(lg_ids_push(ids, e.token));
        LG_TRY(note(ch, &e));
    }
    if (j->key) lg_keys_spend(j->key, (uint32_t)close->n);
    return submit(j, i, ids);
}

static lg_status end_thinking(lg_job *j, uint32_t i) {
    lg_ids ids = {0};
    lg_status st = think_no_more(j, i, &j->g->think_close, &ids);
    lg_ids_fini(&ids);
    return st;
}

/* ---- Events ---- */

static lg_request_error error_of_start(lg_status st);

static void on_flight(void *ctx, const lg_event *event, const lg_lost *lost) {
    choice *ch = ctx;
    lg_job *j = ch->job;
    lg_request_error err;
    lg_event copy = {0}, *e = &copy;
    bool over = false;
    uint64_t now = lg_clock_us();
    lg_buf *sse = empty_sse(j->g);
    if (event) copy = *event;
    if (copy.kind == LG_EVENT_DONE) copy.n_produced += ch->n_before;
    if (event && !ch->counted) ch->n_cached = copy.n_cached;
    ch->counted = true;
    copy.n_cached = ch->n_cached;
    if (lost || e->kind == LG_EVENT_DONE) ch->flight = NULL;
    if (lost) {
        err = error_of_lost(lost);
        job_fail(j, &err);
        return;
    }
    if (e->kind == LG_EVENT_TOKEN) count_token(j, ch, now);
    if (e->kind == LG_EVENT_DONE &&
        (e->finish == LG_FINISH_ERROR || e->finish == LG_FINISH_CANCELLED)) {
        char msg[128];
        snprintf(msg, sizeof msg, "generation ended early: %s", lg_status_name(e->status));
        err = error_of(500, "generation_failed", msg);
        job_fail(j, &err);
        return;
    }
    if (j->wire->event(j->out[ch - j->choice], e, sse) != LG_OK || sse->failed) {
        err = error_of(500, "out_of_memory", "no memory for the answer");
        job_fail(j, &err);
        return;
    }
    lg_status st = note(ch, e);
    if (st == LG_OK && e->kind == LG_EVENT_TOKEN) st = spend(ch, e, &over);
    if (st == LG_OK && over) st = end_thinking(j, (uint32_t)(ch - j->choice));
    if (st != LG_OK) {
        err = error_of_start(st);
        job_fail(j, &err);
        return;
    }
    if (e->kind == LG_EVENT_DONE) {
        keep_turn(j, ch, e);
        j->n_done++;
    }
    if (!job_flush(j, now)) return;
    if (j->n_done == j->req->n_choice) job_finish(j, now);
}

/* Start the flight of choice i. */
static lg_status start_choice(lg_job *j, uint32_t i) {
    j->choice[i].job = j;
    LG_TRY(j->wire->out_open(j->req, i, &j->out[i]));
    return submit(j, i, &j->req->ids);
}

static lg_request_error error_of_start(lg_status st) {
    switch (st) {
    case LG_AGAIN: return error_of(429, "queue_full", "too many requests are waiting");
    case LG_E_COMM:
        return error_of(503, "worker_unavailable", "the model is not loaded at the moment");
    case LG_E_ARG: return error_of(400, NULL, "the request is too long");
    default: return error_of(503, "out_of_memory", "no memory for the request");
    }
}

/* The job ends before it has begun. */
static void give_up(lg_job *j, const lg_request_error *e) {
    lg_gateway *g = j->g;
    lg_conn *c = j->conn;
    lg_route route = j->route;
    job_free(j);
    send_error(g, c, route, e, retry_header(e->http));
}

/* The job's request is there. */
static void begin_job(lg_job *j) {
    lg_gateway *g = j->g;
    lg_request_error err;
    lg_request_parsed *req = j->req;
    lg_key *key = lg_conn_get_key(j->conn);
    lg_keys_refusal why;
    if (key && !lg_keys_begin(key, req->ids.n, &req->max_tokens, lg_clock_us(), &why)) {
        lg_conn *c = j->conn;
        lg_route route = j->route;
        job_free(j);
        refuse_key(g, c, route, &why);
        return;
    }
    j->key = key;
    if (req->dropped_header && !g->told_header)
        lg_diag_log(LG_LOG_WARN, "the changing header line at the start of a client's system "
                                 "prompts is dropped");
    g->told_header |= req->dropped_header;
    for (uint32_t i = 0; i < req->n_choice; i++) {
        lg_status st = start_choice(j, i);
        if (st == LG_OK) continue;
        err = error_of_start(st);
        job_fail(j, &err);
        return;
    }
    g->stats.n_prompt_tok += req->ids.n;
}

/* A body has been read. */
static void on_read(void *ctx, lg_read *read) {
    lg_job *j = read->ctx;
    lg_gateway *g = ctx;
    if (!j) { /* the client has left */
        lg_read_free(read);
        return;
    }
    j->read = NULL;
    if (!read->ok) {
        give_up(j, &read->err);
    } else if (read->answer) {
        lg_conn *c = j->conn;
        lg_route route = j->route;
        job_free(j);
        send_body(g, c, route, 200, "", &read->text);
    } else {
        j->req = read->req;
        read->req = NULL;
        begin_job(j);
    }
    lg_read_free(read);
}

lg_status lg_routes_open(lg_gateway *g, struct event_base *base, lg_err *err) {
    static const char close[] = "\n</think>\n\n";
    LG_TRY(lg_tokenizer_encode(g->model.tok, close, sizeof close - 1, NULL, 0, true,
                               &g->think_close, err));
    return lg_reader_open(base, &g->model, on_read, g, &g->reader, err);
}

void lg_routes_close(lg_gateway *g) {
    lg_reader_close(&g->reader);
    lg_ids_fini(&g->think_close);
    lg_buf_fini(&g->sse);
}

/* Have the body read, for a job of this route or for an answer without the engine. */
static void read_body(lg_gateway *g, lg_conn *c, lg_route route, lg_request_answer_fn *answer,
                      lg_http *h) {
    if (g->draining && !g->successor && !answer) {
        refuse(g, c, route, 503, "shutting_down", "the server is shutting down");
        return;
    }
    if (!g->reader) {
        refuse(g, c, route, 503, "loading", "the model is still loading");
        return;
    }
    lg_job *j = lg_mem_alloc(sizeof *j);
    lg_read *read = lg_mem_alloc(sizeof *read);
    if (!j || !read) {
        lg_mem_free(j);
        lg_mem_free(read);
        refuse(g, c, route, 503, "out_of_memory", "no memory for the request");
        return;
    }
    read->wire = j->wire = wire_of(route);
    read->answer = answer;
    read->body = h->body;
    h->body = (lg_buf){0};
    read->tenant = tenant_of(lg_conn_get_key(c));
    read->ctx = j;
    j->g = g;
    j->conn = c;
    j->route = route;
    j->read = read;
    j->start_us = j->sent_us = lg_clock_us();
    j->next = g->jobs;
    if (j->next) j->next->prev = j;
    g->jobs = j;
    g->n_job++;
    lg_conn_set_job(c, j);
    lg_reader_put(g->reader, read);
}

void lg_routes_ping(lg_gateway *g) {
    uint64_t now = lg_clock_us();
    for (lg_job *j = g->jobs, *next; j; j = next) {
        next = j->next;
        if (!j->req || !j->req->stream || now - j->sent_us < g->opt->ping_us) continue;
        lg_buf *sse = empty_sse(g);
        j->wire->ping(j->out[0], sse);
        if (!sse->failed) job_flush(j, now);
    }
}

void lg_routes_abort(lg_gateway *g) {
    lg_request_error e = error_of(503, "shutting_down", "the server is shutting down");
    while (g->jobs) job_fail(g->jobs, &e);
}

/* ---- The other routes ---- */

static void get_models(lg_gateway *g, lg_conn *c) {
    lg_buf body = {0};
    lg_oai_models(&g->model, &body);
    send_body(g, c, LG_ROUTE_MODELS, 200, "", &body);
}

static void get_live(lg_gateway *g, lg_conn *c) {
    lg_buf body = {0};
    lg_buf_puts(&body, "{\"status\":\"live\"}");
    send_body(g, c, LG_ROUTE_LIVE, 200, "", &body);
}

static void get_ready(lg_gateway *g, lg_conn *c) {
    lg_buf body = {0};
    bool ready = lg_supervise_get_state(g->sup) == LG_SUPER_READY;
    const char *state = g->draining           ? "draining"
                        : ready               ? "ready"
                        : g->model.n_ctx == 0 ? "loading"
                                              : "restarting";
    lg_buf_printf(&body, "{\"status\":\"%s\"}", state);
    int status = ready && !g->draining ? 200 : 503;
    send_body(g, c, LG_ROUTE_READY, status, retry_header(status), &body);
}

static void get_metrics(lg_gateway *g, lg_conn *c) {
    lg_buf body = {0};
    lg_expose_metrics(g, &body);
    if (body.failed) {
        send_body(g, c, LG_ROUTE_METRICS, 500, "", &body);
        return;
    }
    lg_expose_count(g, LG_ROUTE_METRICS, 200);
    lg_conn_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", "", lg_buf_str(&body),
                  body.len_bytes);
    lg_buf_fini(&body);
}

static void get_openapi(lg_gateway *g, lg_conn *c);

static const struct {
    const char *path, *method;
    lg_route route;
    void (*get)(lg_gateway *g, lg_conn *c);
    lg_request_answer_fn *answer; /* neither get nor answer: a job */
    uint32_t at;                  /* fields of the body: LG_AT_... */
} table[] = {
    {"/v1/chat/completions", "POST", LG_ROUTE_CHAT, NULL, NULL, LG_AT_CHAT},
    {"/v1/completions", "POST", LG_ROUTE_COMPLETIONS, NULL, NULL, LG_AT_TEXT},
    {"/v1/models", "GET", LG_ROUTE_MODELS, get_models, NULL, 0},
    {"/live", "GET", LG_ROUTE_LIVE, get_live, NULL, 0},
    {"/ready", "GET", LG_ROUTE_READY, get_ready, NULL, 0},
    {"/metrics", "GET", LG_ROUTE_METRICS, get_metrics, NULL, 0},
    {"/v1/messages", "POST", LG_ROUTE_MESSAGES, NULL, NULL, LG_AT_MESSAGES},
    {"/v1/messages/count_tokens", "POST", LG_ROUTE_COUNT_TOKENS, NULL, lg_anthropic_count,
     LG_AT_COUNT},
    {"/v1/responses", "POST", LG_ROUTE_RESPONSES, NULL, NULL, LG_AT_RESPONSES},
    {"/tokenize", "POST", LG_ROUTE_TOKENIZE, NULL, lg_tokenize_text, LG_AT_TOKENIZE},
    {"/detokenize", "POST", LG_ROUTE_DETOKENIZE, NULL, lg_tokenize_ids, LG_AT_DETOKENIZE},
    {"/v1/embeddings", "POST", LG_ROUTE_EMBEDDINGS, NULL, lg_tokenize_embed, 0},
    {"/openapi.json", "GET", LG_ROUTE_OPENAPI, get_openapi, NULL, 0},
};

static void get_openapi(lg_gateway *g, lg_conn *c) {
    lg_buf body = {0};
    lg_openapi_begin(&body);
    for (size_t i = 0; i < LG_COUNT(table); i++)
        lg_openapi_route(&body, g->model.name, table[i].path, table[i].method, table[i].at);
    lg_openapi_end(&body);
    send_body(g, c, LG_ROUTE_OPENAPI, 200, "", &body);
}

/* Row of the table for this path, or LG_COUNT(table). */
static size_t find_route(const lg_http *h) {
    size_t i = 0;
    while (i < LG_COUNT(table) && strcmp(table[i].path, lg_http_path(h)) != 0) i++;
    return i;
}

/* A route that is not named here needs a user's key. */
static lg_access access_of(lg_route route) {
    if (route == LG_ROUTE_LIVE || route == LG_ROUTE_READY) return LG_ACCESS_OPEN;
    return route == LG_ROUTE_METRICS ? LG_ACCESS_METRICS : LG_ACCESS_USER;
}

bool lg_routes_admit(lg_gateway *g, lg_conn *c, lg_http *h) {
    size_t i = find_route(h);
    lg_route route = i < LG_COUNT(table) ? table[i].route : LG_ROUTE_OTHER;
    lg_guard_verdict v;
    bool ok =
        lg_guard_check(&g->guard, h, access_of(route), lg_clock_us(), &v, lg_conn_headers(c));
    if (v.key) lg_conn_set_key(c, v.key);
    if (!ok) {
        refuse_key(g, c, route, &v.why);
    } else if (v.preflight) {
        lg_buf body = {0};
        send_body(g, c, route, 200, "", &body);
    }
    return ok && !v.preflight;
}

void lg_routes_handle(lg_gateway *g, lg_conn *c, lg_http *h) {
    char text[160];
    size_t i = find_route(h);
    if (i == LG_COUNT(table)) {
        snprintf(text, sizeof text, "no route %s %.100s", lg_http_method(h), lg_http_path(h));
        refuse(g, c, LG_ROUTE_OTHER, 404, "unknown_route", text);
        return;
    }
    if (strcmp(table[i].method, lg_http_method(h)) != 0) {
        snprintf(text, sizeof text, "%s is asked for with %s", table[i].path, table[i].method);
        lg_request_error e = error_of(405, "method_not_allowed", text);
        snprintf(text, sizeof text, "Allow: %s\r\n", table[i].method);
        send_error(g, c, table[i].route, &e, text);
        return;
    }
    if (table[i].get)
        table[i].get(g, c);
    else
        read_body(g, c, table[i].route, table[i].answer, h);
}
