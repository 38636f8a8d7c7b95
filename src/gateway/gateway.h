/* gateway.h - the map of src/gateway: the part of Lignum that clients talk to.
 *
 *   server      start, signals, drain                       routes      one function for each route; jobs
 *   supervise   the worker process, requests in flight      keys        hashed keys, roles, limits
 *   expose      what GET /metrics says                      notify      readiness, for systemd
 *   notice      what the log says once
 *
 *   net/: bytes of clients, no meaning
 *   listen      listening sockets                           conn        one connection: deadlines, limits, answers
 *   http        HTTP/1.1 requests out of bytes              tls         TLS for clients
 *   guard       Host, Origin and key of a request           peers       connections of each address
 *   reader      bodies into requests, on a thread of its own
 *
 *   wire/: bodies and answers, no I/O
 *   request     what all wire formats share: fields, prompts
 *   openai, anthropic, responses   the wire formats         tokenize    /tokenize, /detokenize
 *   outparse    output text -> reasoning, content, calls    blocks      output as a list of blocks, for the last two
 *   format      answers of a given form: JSON, forced calls argval      text of an argument -> JSON, by schema
 *   history     conversations for previous_response_id      replay      turns of the model in the ids that were made
 *   openapi     the tables of fields as a document
 *
 * A request's way: server reads it -> routes finds the route, reader parses it by its lg_wire_format -> one job with one flight for each
 * choice -> supervise sends them over the link -> events come back -> the lg_wire_format writes -> server sends.
 * Everything but the reader runs on one thread, libevent's loop.  No weights, no engine. */
#ifndef LG_GATEWAY_GATEWAY_H
#define LG_GATEWAY_GATEWAY_H

#include "gateway/net/guard.h"
#include "gateway/net/http.h"
#include "gateway/net/reader.h"
#include "gateway/notice.h"
#include "gateway/wire/anthropic.h"
#include "gateway/wire/openai.h"
#include "gateway/wire/responses.h"
#include "gateway/wire/tokenize.h"
#include "link/link.h"
#include "record/metrics.h"

struct event_base;

/* ---- Options and entry ---- */

typedef struct lg_gateway_opt {
    const char *model_path;
    const char *host;         /* address to listen on */
    uint16_t port;            /* 0 = any free one */
    const char *name;         /* model id for clients; NULL = last part of the path */
    char *const *worker_argv; /* how to start the worker; see lg_link_client_spawn */
    uint32_t max_conn;        /* connections at one time */
    uint32_t max_conn_addr;   /* of one address; 0: 256, and this machine's own do not count */
    uint64_t max_body; /* bytes of one body; 0: 16 for each token of context, 2 MiB at least */
    uint64_t max_bodies; /* bytes of the bodies of all requests that are not answered yet */
    uint32_t max_flight; /* answers in the making at one time */
    uint64_t head_us, body_us,
        idle_us;               /* deadlines: a request's head, its body, the next request */
    uint64_t drain_us;         /* how long answers may go on after SIGTERM */
    uint64_t restart_us;       /* how long answers wait for a lost worker */
    uint64_t ping_us;          /* a stream that is silent for so long shows that it lives */
    bool keep_header, lenient; /* see lg_request_model */
    bool share_cache;          /* prefixes are shared by all keys */
    bool no_replay;            /* every turn of the assistant is rendered from its text */
    const char *keys_path;     /* NULL: nobody is asked for a key */
    const char *tls_cert, *tls_key, *tls_client_ca; /* files; NULL: no TLS */
    bool insecure; /* listen beyond this machine without keys or TLS */
    const char *allow_host[LG_GUARD_MAX_NAME];
    uint32_t n_allow_host;
    const char *cors_origin[LG_GUARD_MAX_NAME];
    uint32_t n_cors_origin;
    uint64_t
        silent_us; /* a worker with work that says nothing for so long is ended; 0 = never */
    lg_progress_fn *progress; /* of the first load, or NULL; its answer is ignored */
    void *progress_ctx;
} lg_gateway_opt;

void lg_gateway_opt_init(lg_gateway_opt *opt);

/* Serve until SIGTERM or SIGINT.  on_ready is called once, with what was loaded and the address "http://host:port".
 * LG_OK after a drain; otherwise *err: LG_E_IO (address in use, ...), what the worker said when the model did not load,
 * LG_E_NOMEM. */
lg_status lg_server_run(const lg_gateway_opt *opt,
                        void (*on_ready)(const lg_gateway_opt *opt, const lg_info *info,
                                         const char *url),
                        lg_err *err);

/* ---- supervise.c: the worker and what runs in it ---- */

/* Why a flight ended without LG_EVENT_DONE. */
typedef enum {
    LG_LOST_NONE,
    LG_LOST_REFUSED,    /* the engine refused it: status and text are the engine's */
    LG_LOST_WORKER,     /* it killed its worker twice */
    LG_LOST_UNAVAILABLE /* the worker did not come back in time */
} lg_lost_kind;

typedef struct lg_lost {
    lg_lost_kind kind;
    lg_status status;
    const char *text; /* borrowed for the call */
} lg_lost;

typedef struct lg_super lg_super;
typedef struct lg_flight lg_flight;

/* Told of each event of a flight.  Exactly one of event and lost is set.  After DONE or lost the flight is gone.  The
 * callee may cancel any flight and start new ones. */
typedef void lg_flight_fn(void *ctx, const lg_event *event, const lg_lost *lost);

typedef enum { LG_SUPER_LOADING, LG_SUPER_READY, LG_SUPER_DOWN } lg_super_state;

typedef struct lg_super_opt {
    const char *model_path;
    char *const *worker_argv;
    uint32_t max_flight;
    uint64_t restart_us, silent_us;
    lg_progress_fn *progress; /* of the first load, or NULL */
    void *progress_ctx;
    /* The first READY (failed NULL), or what made the first load fail. */
    void (*on_start)(void *ctx, const lg_link_ready *ready, const lg_err *failed);
    void *ctx;
} lg_super_opt;

/* Start the first worker.  `opt` is copied, its pointers are borrowed.  LG_E_IO, LG_E_NOMEM; the caller owns *sup. */
lg_status lg_supervise_open(struct event_base *base, const lg_super_opt *opt, lg_super **sup,
                            lg_err *err);

/* Ends the worker, waiting at most two seconds.  Flights end without a word. */
void lg_supervise_close(lg_super **sup);

/* Start an answer.  Ids are copied; stop strings, biases and the grammar are borrowed until the flight is gone.  A missing seed is drawn
 * here, so that the answer can go on in another worker.
 * LG_OK; LG_E_ARG when it is empty or too long for the link; LG_AGAIN when max_flight are under way, or this client has more than 4 times what is left; LG_E_COMM while there is no worker (loading, or lost for longer than
 * restart_us); LG_E_NOMEM.  No event is delivered inside the call. */
lg_status lg_supervise_submit(lg_super *sup, const lg_request *req, lg_flight_fn *fn, void *ctx,
                              lg_flight **flight);

/* End a flight; fn is not called any more. */
void lg_supervise_cancel(lg_super *sup, lg_flight *flight);

lg_super_state lg_supervise_get_state(const lg_super *sup);
uint64_t lg_supervise_n_restart(const lg_super *sup);

/* Flights sent to the worker, flights held back here. */
void lg_supervise_count(const lg_super *sup, uint32_t *n_sent, uint32_t *n_held);

/* The worker's last report; its counters and those of all workers before it.  Valid until the next call. */
const lg_stats *lg_supervise_stats(lg_super *sup);

/* What the last worker opened. */
const lg_info *lg_supervise_info(const lg_super *sup);

/* ---- conn.c: what routes need of a connection ---- */

typedef struct lg_server lg_server;
typedef struct lg_conn lg_conn;
typedef struct lg_job lg_job;

/* Answer the connection's request.  headers: extra lines, each ending with CRLF, or "". */
void lg_conn_reply(lg_conn *c, int status, const char *type, const char *headers,
                   const char *body, size_t len_bytes);

/* The same in pieces: event stream.  put sends what is in `data` behind LG_CONN_ROOM bytes of room, and writes into the room
 * and behind the data; it returns false when the client is too slow or memory is out: its connection is closed then, and its
 * job told by lg_routes_gone. */
#define LG_CONN_ROOM 24
void lg_conn_stream_begin(lg_conn *c);
bool lg_conn_stream_put(lg_conn *c, lg_buf *data);
void lg_conn_stream_end(lg_conn *c);

/* The job that will answer; NULL when it is done. */
void lg_conn_set_job(lg_conn *c, lg_job *job);

/* Whose request it is, until it is answered; NULL when no keys are asked for. */
void lg_conn_set_key(lg_conn *c, lg_key *key);
lg_key *lg_conn_get_key(const lg_conn *c);

/* Header lines that go with the answer, whatever it is. */
lg_buf *lg_conn_headers(lg_conn *c);

#define LG_MAX_ROUTE  16
#define LG_MAX_STATUS 16

/* Counters and histograms of one gateway. */
typedef struct lg_gateway_stats {
    uint64_t n_request[LG_MAX_ROUTE]
                      [LG_MAX_STATUS]; /* rows and columns: the tables of expose.c */
    uint64_t n_prompt_tok, n_generated_tok;
    uint64_t n_cancelled;   /* answers whose client left */
    uint64_t n_slow;        /* connections closed because the client did not read */
    uint64_t n_timeout;     /* connections closed for a deadline */
    uint64_t n_turned_away; /* connections that were too many */
    uint64_t n_conn_total;
    uint32_t n_conn;
    lg_metrics_hist ttft, itl; /* seconds */
} lg_gateway_stats;

/* What server and routes share. */
typedef struct lg_gateway {
    const lg_gateway_opt *opt;
    lg_super *sup;
    lg_tokenizer *tok;
    lg_request_model model;
    lg_guard guard;
    lg_notice notice;
    bool draining;
    bool
        successor; /* draining, and new connections go to somebody else: what came here is answered */
    bool told_header; /* the log says once that a header line is dropped */
    uint32_t n_job;
    lg_job *jobs;       /* list */
    lg_buf sse;         /* routes.c */
    lg_reader *reader;  /* NULL until the model is loaded */
    lg_ids think_close; /* ids of what closes reasoning */
    lg_gateway_stats stats;
} lg_gateway;

/* ---- routes.c ---- */

/* Called once for each request when its head is complete and, unless it came with it, none of its body is taken.  False:
 * the request has been refused (or was a CORS preflight) and answered. */
bool lg_routes_admit(lg_gateway *g, lg_conn *c, lg_http *h);

/* Answer the complete request `h` of connection c, at once or later through a job, which takes its body. */
void lg_routes_handle(lg_gateway *g, lg_conn *c, lg_http *h);

/* The model is loaded: bodies can be read from now on.  LG_E_NOMEM, LG_E_IO. */
lg_status lg_routes_open(lg_gateway *g, struct event_base *base, lg_err *err);
void lg_routes_close(lg_gateway *g);

/* A request that could not be read: an error body for lg_http's status. */
void lg_routes_bad(lg_gateway *g, lg_conn *c, int status, const char *reason);

/* The job's client has left: cancel its flights and free it. */
void lg_routes_gone(lg_job *job);

/* Ping the streams that were silent for opt->ping_us. */
void lg_routes_ping(lg_gateway *g);

/* End all jobs with a retryable error: the drain is over. */
void lg_routes_abort(lg_gateway *g);

/* ---- expose.c ---- */

/* Append the text of GET /metrics. */
void lg_expose_metrics(const lg_gateway *g, lg_buf *body);

/* Count one answered request; codes outside the table count as "other". */
void lg_expose_count(lg_gateway *g, uint32_t route, int status);

/* Row names of n_request: "chat", "completions", ... */
typedef enum {
    LG_ROUTE_CHAT,
    LG_ROUTE_COMPLETIONS,
    LG_ROUTE_MODELS,
    LG_ROUTE_LIVE,
    LG_ROUTE_READY,
    LG_ROUTE_METRICS,
    LG_ROUTE_MESSAGES,
    LG_ROUTE_COUNT_TOKENS,
    LG_ROUTE_RESPONSES,
    LG_ROUTE_OPENAPI,
    LG_ROUTE_TOKENIZE,
    LG_ROUTE_DETOKENIZE,
    LG_ROUTE_EMBEDDINGS,
    LG_ROUTE_OTHER
} lg_route;

#endif
