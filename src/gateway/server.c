/* server.c - sockets: connections, their limits and deadlines, signals, drain.
 *
 * In/out: bytes of clients; complete requests go to routes.c, its answers come back through lg_server_*.
 * Policy: a connection reads one request, is BUSY until it is answered, then reads the next; what a client sends early
 * waits, bounded, in its buffer.  A BUSY connection is watched with EV_CLOSED, which tells of a client that leaves even
 * while nothing is read or written; closing only one's sending side counts as leaving.  A streaming client that lets more
 * than BACKLOG_BYTES pile up is cut off.
 * Invariants: a connection is freed only by reap(), from the loop; state DEAD means it waits for that.
 * Thread: gateway.  Memory: one lg_conn for each connection.  Test: tests/e2e/test_http.py, test_cancel.py */
#include "gateway/gateway.h"

#include "gateway/listen.h"
#include "gateway/notify.h"
#include "gateway/peers.h"
#include "gateway/tls.h"

#include "base/clock.h"
#include "base/mem.h"
#include "gateway/history.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define HISTORY_BYTES ((size_t)16 << 20)         /* kept for previous_response_id */
#define HISTORY_US    ((uint64_t)3600 * 1000000) /* for so long */

enum {
    BACKLOG_BYTES = 1 << 20,   /* unsent bytes of a stream */
    PIPELINE_BYTES = 64 << 10, /* unsent bytes of answers before the next request is read */
    LINGER_BYTES = 64 << 20,   /* what is taken and thrown away after a refusal */
    INPUT_BYTES = 64 << 10,    /* unread bytes kept for a connection */
    BODY_MIN_BYTES = 2 << 20,  /* one body, whatever the context */
    BODY_TOKEN_BYTES = 16,     /* one body, for each token of context */
    BODIES_BYTES = 32 << 20,   /* all bodies of requests that are not answered */
    MMAP_BYTES = 256 << 10,    /* larger blocks go back to the system when they are freed */
    LINGER_US = 2000000,       /* after a refusal: time for the client to read it */
    STALL_S = 60,              /* writing makes no progress */
    PEER_CONNS = 256,          /* connections of one address, when nothing is said */
    DRAIN_POLL_US = 20000,
    UNHEARD_US = 1000000, /* a connection accepted just before the end may still ask */
    OTHER_FILES = 64      /* open files beside connections */
};

typedef enum { READING, BUSY, CLOSING, DEAD } conn_state;

struct lg_conn {
    lg_conn *next, *prev;
    lg_server *sv;
    struct bufferevent *be;
    struct event *on_closed, *on_time;
    conn_state state;
    lg_http http;
    lg_job *job;
    lg_peer *peer;
    lg_key *key;  /* held; whose request it is */
    lg_buf extra; /* header lines for the answer */
    uint64_t n_lingered;
    size_t held_bytes; /* of the body that its job was made of */
    bool streaming, chunked, half_closed, in_body;
    bool answered;    /* has had an answer */
    bool in_turn;     /* inside read_more */
    bool admitted;    /* the request's head was found good */
    bool close_after; /* no further request */
    bool shut;        /* our sending side is closed */
};

struct lg_server {
    lg_gateway g;
    struct event_base *base;
    lg_listen listen;
    lg_tls *tls; /* NULL: plain */
    lg_peers peers;
    uint32_t max_conn; /* opt's, or what the limit on open files leaves */
    char notify[108];  /* socket of the service manager, or "" */
    struct event *on_term, *on_int, *on_hup, *on_reap, *on_drain, *on_ping;
    lg_conn *conns, *dead;
    size_t body_bytes; /* received or held, of all connections */
    uint64_t drain_from_us, drain_until_us;
    lg_status status;
    lg_err err;
    void (*on_ready)(const lg_gateway_opt *opt, const char *url);
};

/* ---- Life of a connection ---- */

static struct timeval timeval_of(uint64_t us) {
    return (struct timeval){.tv_sec = (time_t)(us / 1000000),
                            .tv_usec = (suseconds_t)(us % 1000000)};
}

static void set_deadline(lg_conn *c, uint64_t us) {
    struct timeval tv = timeval_of(us);
    evtimer_add(c->on_time, &tv);
}

static void clear_body(lg_conn *c) {
    c->sv->body_bytes -= c->http.body.len_bytes + c->held_bytes;
    c->held_bytes = 0;
    lg_http_reset(&c->http);
}

static void clear_request(lg_conn *c) {
    clear_body(c);
    lg_server_set_key(c, NULL);
    lg_buf_clear(&c->extra);
    c->in_body = c->admitted = false;
}

/* Nothing of the client is wanted any more; its memory goes at the next turn of the loop. */
static void kill_conn(lg_conn *c) {
    if (c->state == DEAD) return;
    c->state = DEAD;
    lg_job *job = c->job;
    c->job = NULL;
    event_del(c->on_closed);
    event_del(c->on_time);
    bufferevent_disable(c->be, EV_READ | EV_WRITE);
    lg_server *sv = c->sv;
    *(c->prev ? &c->prev->next : &sv->conns) = c->next;
    if (c->next) c->next->prev = c->prev;
    c->prev = NULL;
    c->next = sv->dead;
    sv->dead = c;
    event_active(sv->on_reap, EV_TIMEOUT, 0);
    if (job) lg_routes_gone(job);
}

static void free_conn(lg_conn *c) {
    clear_request(c);
    lg_http_fini(&c->http);
    lg_buf_fini(&c->extra);
    if (c->on_closed) event_free(c->on_closed);
    if (c->on_time) event_free(c->on_time);
    if (c->be) bufferevent_free(c->be);
    lg_peers_leave(&c->sv->peers, c->peer);
    c->sv->g.stats.n_conn--;
    lg_mem_free(c);
}

static void reap(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_server *sv = ctx;
    while (sv->dead) {
        lg_conn *c = sv->dead;
        sv->dead = c->next;
        free_conn(c);
    }
}

/* All is said: let the client read it, then close. */
static void close_gently(lg_conn *c) {
    c->state = CLOSING;
    set_deadline(c, c->sv->g.opt->head_us);
    if (evbuffer_get_length(bufferevent_get_output(c->be)) > 0) return;
    /* Closing a socket with unread input resets the connection and may destroy the answer: shut down, drain, then close. */
    if (!c->shut && c->sv->tls) lg_tls_goodbye(c->be);
    if (!c->shut) shutdown(bufferevent_getfd(c->be), SHUT_WR);
    c->shut = true;
    set_deadline(c, LINGER_US);
    if (c->half_closed) kill_conn(c);
}

/* ---- Answers ---- */

static void read_more(lg_conn *c);

static void end_answer(lg_conn *c) {
    c->streaming = false;
    c->answered = true;
    c->job = NULL;
    clear_request(c);
    if (c->close_after || c->half_closed || c->sv->g.draining) {
        close_gently(c);
        return;
    }
    c->state = READING;
    set_deadline(c, c->sv->g.opt->idle_us);
    read_more(c);
}

/* Header lines that go with every answer to this request. */
static const char *extra_lines(lg_conn *c) {
    if (c->key) lg_keys_put_headers(c->key, lg_clock_us(), &c->extra);
    return c->extra.failed ? "" : lg_buf_str(&c->extra);
}

void lg_server_reply(lg_conn *c, int status, const char *type, const char *headers,
                     const char *body, size_t len_bytes) {
    if (c->state == DEAD) return;
    bool keep = !c->close_after && !c->sv->g.draining;
    struct evbuffer *out = bufferevent_get_output(c->be);
    evbuffer_add_printf(out,
                        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                        "%s%sConnection: %s\r\n\r\n",
                        status, lg_http_status_text(status), type, len_bytes, headers,
                        extra_lines(c), keep ? "keep-alive" : "close");
    evbuffer_add(out, body, len_bytes);
    end_answer(c);
}

void lg_server_stream_begin(lg_conn *c) {
    if (c->state == DEAD) return;
    c->streaming = true;
    c->chunked = !c->http.http10;
    if (!c->chunked) c->close_after = true;
    evbuffer_add_printf(
        bufferevent_get_output(c->be),
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%s%sConnection: %s\r\n\r\n",
        c->chunked ? "Transfer-Encoding: chunked\r\n" : "", extra_lines(c),
        c->close_after ? "close" : "keep-alive");
}

bool lg_server_stream_put(lg_conn *c, const char *data, size_t len_bytes) {
    if (c->state == DEAD) return false;
    struct evbuffer *out = bufferevent_get_output(c->be);
    if (len_bytes == 0) return true;
    if (c->chunked) evbuffer_add_printf(out, "%zx\r\n", len_bytes);
    evbuffer_add(out, data, len_bytes);
    if (c->chunked) evbuffer_add(out, "\r\n", 2);
    if (evbuffer_get_length(out) <= BACKLOG_BYTES) return true;
    c->sv->g.stats.n_slow++;
    kill_conn(c);
    return false;
}

void lg_server_stream_end(lg_conn *c) {
    if (c->state == DEAD) return;
    if (c->chunked) evbuffer_add(bufferevent_get_output(c->be), "0\r\n\r\n", 5);
    end_answer(c);
}

void lg_server_set_job(lg_conn *c, lg_job *job) {
    c->job = job;
}

void lg_server_set_key(lg_conn *c, lg_key *key) {
    if (key) lg_keys_hold(key);
    if (c->key) lg_keys_drop(c->sv->g.guard.keys, c->key);
    c->key = key;
}

lg_key *lg_server_get_key(const lg_conn *c) {
    return c->key;
}

lg_buf *lg_server_headers(lg_conn *c) {
    return &c->extra;
}

/* ---- Requests ---- */

static void refuse(lg_conn *c, int status, const char *reason) {
    c->close_after = true;
    c->state = BUSY;
    lg_routes_bad(&c->sv->g, c, status, reason);
}

/* The head is complete.  False: the request is refused and answered; a body that has not come closes the connection. */
static bool admit(lg_conn *c) {
    bool was = c->close_after;
    if (c->admitted) return true;
    c->state = BUSY;
    c->close_after = was || !c->http.keep_alive || c->http.state != LG_HTTP_DONE;
    c->admitted = lg_routes_admit(&c->sv->g, c, &c->http);
    if (!c->admitted) return false;
    c->state = READING;
    c->close_after = was;
    return true;
}

static void handle(lg_conn *c) {
    if (!admit(c)) return;
    c->state = BUSY;
    event_del(c->on_time);
    if (!c->http.keep_alive) c->close_after = true;
    lg_routes_handle(&c->sv->g, c, &c->http);
    if (c->state != BUSY) return;
    c->held_bytes = c->http.body.len_bytes; /* the job keeps a copy of what it needs */
    lg_buf_fini(&c->http.body);
    if (c->half_closed) kill_conn(c);
}

/* The head has been read and a body follows. */
static void begin_body(lg_conn *c) {
    if (!admit(c)) return;
    c->in_body = true;
    set_deadline(c, c->sv->g.opt->body_us);
    if (c->http.expect_continue && c->http.body.len_bytes == 0)
        evbuffer_add_printf(bufferevent_get_output(c->be), "HTTP/1.1 100 Continue\r\n\r\n");
}

/* The longest body that is taken now. */
static uint64_t body_limit(const lg_server *sv) {
    uint64_t n = (uint64_t)sv->g.model.n_ctx * BODY_TOKEN_BYTES;
    if (sv->g.opt->max_body) return sv->g.opt->max_body;
    return n > BODY_MIN_BYTES ? n : BODY_MIN_BYTES;
}

/* Take one stretch of input. */
static void feed(lg_conn *c, struct evbuffer *in) {
    struct evbuffer_iovec v;
    size_t used = 0, before = c->http.body.len_bytes;
    if (evbuffer_peek(in, -1, NULL, &v, 1) < 1 || v.iov_len == 0) return;
    if (!lg_http_begun(&c->http)) set_deadline(c, c->sv->g.opt->head_us);
    c->http.max_body = body_limit(c->sv);
    bool in_head = c->http.state == LG_HTTP_HEAD;
    lg_status st = lg_http_feed(&c->http, v.iov_base, v.iov_len, &used);
    if (in_head && c->sv->g.guard.keys) lg_keys_wipe(v.iov_base, used);
    evbuffer_drain(in, used);
    c->sv->body_bytes += c->http.body.len_bytes - before;
    if (st == LG_E_NOMEM)
        refuse(c, 503, "no memory for the request");
    else if (st == LG_E_FORMAT)
        refuse(c, c->http.status, c->http.reason);
    else if (c->http.body.len_bytes && c->sv->body_bytes > c->sv->g.opt->max_bodies)
        refuse(c, 503, "too many large requests at the same time");
    else if (st == LG_OK)
        handle(c);
    else if (c->http.state != LG_HTTP_HEAD && !c->in_body)
        begin_body(c);
}

static void read_more(lg_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->be);
    struct evbuffer *out = bufferevent_get_output(c->be);
    if (c->in_turn) return; /* called from an answer inside feed: the loop below goes on */
    c->in_turn = true;
    /* Who sends requests and reads no answers waits; on_written goes on. */
    while (c->state == READING && evbuffer_get_length(in) > 0 &&
           evbuffer_get_length(out) <= PIPELINE_BYTES)
        feed(c, in);
    c->in_turn = false;
    if (c->state != CLOSING) return;
    c->n_lingered += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (c->n_lingered > LINGER_BYTES) kill_conn(c);
}

static void on_read(struct bufferevent *be, void *ctx) {
    (void)be;
    read_more(ctx);
}

/* All output is written. */
static void on_written(struct bufferevent *be, void *ctx) {
    (void)be;
    lg_conn *c = ctx;
    if (c->state == CLOSING) close_gently(c);
    if (c->state == READING) read_more(c);
}

static void on_be_event(struct bufferevent *be, short what, void *ctx) {
    lg_conn *c = ctx;
    if (what & BEV_EVENT_CONNECTED) { /* TLS: the handshake is done */
        if (c->state == READING) set_deadline(c, c->sv->g.opt->idle_us);
        return;
    }
    bool stalled = (what & BEV_EVENT_TIMEOUT) && (what & BEV_EVENT_WRITING);
    if (stalled) c->sv->g.stats.n_slow++;
    /* A client that stops sending still gets the answers that are already made. */
    c->half_closed = true;
    if ((what & BEV_EVENT_EOF) && !c->job &&
        evbuffer_get_length(bufferevent_get_output(be)) > 0)
        close_gently(c);
    else
        kill_conn(c);
}

/* The client has closed its side.  While a request is still read, its end is found in the input. */
static void on_closed(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_conn *c = ctx;
    c->half_closed = true;
    event_del(c->on_closed); /* level-triggered */
    if (c->state == BUSY) kill_conn(c);
    if (c->state == CLOSING && c->shut) kill_conn(c);
}

static void on_time(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_conn *c = ctx;
    if (c->state != READING || !lg_http_begun(&c->http)) {
        kill_conn(c);
        return;
    }
    c->sv->g.stats.n_timeout++;
    refuse(c, 408,
           c->in_body ? "the body did not arrive in time"
                      : "the request's head did not arrive in time");
}

/* ---- Accepting ---- */

static bool conn_init(lg_conn *c, lg_server *sv, evutil_socket_t fd) {
    static const struct timeval stall = {.tv_sec = STALL_S};
    int one = 1;
    c->sv = sv;
    sv->g.stats.n_conn++;
    sv->g.stats.n_conn_total++;
    c->be = sv->tls ? lg_tls_accept(sv->tls, sv->base, fd)
                    : bufferevent_socket_new(sv->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c->be) {
        evutil_closesocket(fd);
        return false;
    }
    c->on_closed = event_new(sv->base, fd, EV_CLOSED | EV_PERSIST, on_closed, c);
    c->on_time = evtimer_new(sv->base, on_time, c);
    if (!c->on_closed || !c->on_time || event_add(c->on_closed, NULL) != 0) return false;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    bufferevent_setcb(c->be, on_read, on_written, on_be_event, c);
    bufferevent_setwatermark(c->be, EV_READ, 0, INPUT_BYTES);
    bufferevent_set_timeouts(c->be, NULL, &stall);
    set_deadline(c, sv->tls ? sv->g.opt->head_us : sv->g.opt->idle_us);
    return bufferevent_enable(c->be, EV_READ | EV_WRITE) == 0;
}

/* Too many: say so when it can be said without TLS, and close. */
static void turn_away(lg_server *sv, evutil_socket_t fd, int status) {
    char text[160];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %d %s\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
                     "Connection: close\r\n\r\n",
                     status, lg_http_status_text(status));
    sv->g.stats.n_turned_away++;
    if (!sv->tls) (void)!send(fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    evutil_closesocket(fd);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr,
                      int len, void *ctx) {
    (void)l;
    (void)len;
    lg_server *sv = ctx;
    lg_peer *peer = NULL;
    if (sv->g.stats.n_conn >= sv->max_conn) {
        turn_away(sv, fd, 503);
        return;
    }
    lg_status st = lg_peers_enter(&sv->peers, addr, &peer);
    if (st == LG_AGAIN) {
        turn_away(sv, fd, 429);
        return;
    }
    lg_conn *c = st == LG_OK ? lg_mem_alloc(sizeof *c) : NULL;
    if (!c) {
        lg_peers_leave(&sv->peers, peer);
        evutil_closesocket(fd);
        return;
    }
    c->peer = peer;
    if (!conn_init(c, sv, fd)) {
        free_conn(c);
        return;
    }
    c->next = sv->conns;
    if (c->next) c->next->prev = c;
    sv->conns = c;
}

/* ---- Start, drain, end ---- */

static void on_start(void *ctx, const lg_link_ready *ready, const lg_err *failed) {
    lg_server *sv = ctx;
    char url[96];
    if (failed) {
        sv->err = *failed;
        sv->status = failed->code;
        event_base_loopbreak(sv->base);
        return;
    }
    sv->g.model.params = ready->params;
    sv->g.model.n_ctx = ready->info.n_ctx;
    sv->g.model.n_vocab = ready->info.n_token;
    lg_listen_url(&sv->listen, sv->tls ? "https" : "http", url, sizeof url);
    if (sv->on_ready) sv->on_ready(sv->g.opt, url);
    lg_listen_ready(&sv->listen);
    lg_notify_send(sv->notify, "READY=1");
}

/* Whom a successor cannot answer: who was accepted here and has not been heard yet. */
static bool is_ours(const lg_conn *c) {
    return c->state == READING &&
           (c->sv->listen.shared ? !c->answered : lg_http_begun(&c->http));
}

static bool anything_left(const lg_server *sv, uint64_t now_us) {
    bool early = sv->listen.shared && now_us < sv->drain_from_us + UNHEARD_US;
    if (sv->g.n_job > 0) return true;
    for (const lg_conn *c = sv->conns; c; c = c->next)
        if (evbuffer_get_length(bufferevent_get_output(c->be)) > 0 || (early && is_ours(c)))
            return true;
    return false;
}

static void on_drain(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_server *sv = ctx;
    struct timeval tv = timeval_of(DRAIN_POLL_US);
    uint64_t now = lg_clock_us();
    if (!anything_left(sv, now) || now > sv->drain_until_us + LINGER_US) {
        event_base_loopbreak(sv->base);
        return;
    }
    if (now > sv->drain_until_us) lg_routes_abort(&sv->g);
    evtimer_add(sv->on_drain, &tv);
}

static void on_signal(evutil_socket_t sig, short what, void *ctx) {
    (void)what;
    lg_server *sv = ctx;
    if (sv->g.draining) { /* the second one: now */
        event_base_loopbreak(sv->base);
        return;
    }
    lg_notify_send(sv->notify, "STOPPING=1");
    lg_diag_log(LG_LOG_INFO, "signal %d: finishing %u requests", (int)sig, sv->g.n_job);
    sv->g.draining = true;
    lg_listen_drain(&sv->listen);
    sv->g.successor = sv->listen.shared;
    sv->drain_from_us = lg_clock_us();
    sv->drain_until_us = sv->drain_from_us + sv->g.opt->drain_us;
    for (lg_conn *c = sv->conns, *next; c; c = next) {
        next = c->next;
        if (c->state == READING && !is_ours(c)) kill_conn(c);
    }
    event_active(sv->on_drain, EV_TIMEOUT, 0);
}

static void on_ping(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_server *sv = ctx;
    lg_routes_ping(&sv->g);
}

/* Every connection is an open file: ask for as many as may be needed. */
static void allow_files(lg_server *sv) {
    struct rlimit r;
    uint64_t want = (uint64_t)sv->g.opt->max_conn + OTHER_FILES;
    sv->max_conn = sv->g.opt->max_conn;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want) return;
    r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0) getrlimit(RLIMIT_NOFILE, &r);
    if (r.rlim_cur >= want) return;
    sv->max_conn =
        r.rlim_cur > 2 * OTHER_FILES ? (uint32_t)(r.rlim_cur - OTHER_FILES) : OTHER_FILES;
    lg_diag_log(LG_LOG_WARN, "the limit on open files leaves %u connections of %u",
                sv->max_conn, sv->g.opt->max_conn);
}

static lg_status open_guard(lg_server *sv, lg_err *err) {
    const lg_gateway_opt *opt = sv->g.opt;
    lg_guard *gd = &sv->g.guard;
    if (opt->keys_path) LG_TRY(lg_keys_open(opt->keys_path, &gd->keys, err));
    if (opt->tls_cert)
        LG_TRY(lg_tls_open(opt->tls_cert, opt->tls_key, opt->tls_client_ca, &sv->tls, err));
    sv->peers.max = opt->max_conn_addr ? opt->max_conn_addr : PEER_CONNS;
    sv->peers.max_for_local = opt->max_conn_addr != 0;
    gd->host[gd->n_host++] = opt->host;
    for (uint32_t i = 0; i < opt->n_allow_host && gd->n_host < LG_GUARD_MAX_NAME; i++)
        gd->host[gd->n_host++] = opt->allow_host[i];
    for (; gd->n_origin < opt->n_cors_origin; gd->n_origin++)
        gd->origin[gd->n_origin] = opt->cors_origin[gd->n_origin];
    return LG_OK;
}

/* SIGHUP: what was read from files is read again; what cannot be read stays as it was. */
static void on_reload(evutil_socket_t sig, short what, void *ctx) {
    (void)sig;
    (void)what;
    lg_server *sv = ctx;
    lg_err err = {0};
    char state[64];
    snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)lg_clock_us());
    lg_notify_send(sv->notify, state);
    if (sv->g.guard.keys && lg_keys_reload(sv->g.guard.keys, &err) != LG_OK)
        lg_diag_log(LG_LOG_ERROR, "the keys stay as they were: %s", err.msg);
    if (sv->tls && lg_tls_reload(sv->tls, &err) != LG_OK)
        lg_diag_log(LG_LOG_ERROR, "TLS stays as it was: %s", err.msg);
    lg_notify_send(sv->notify, "READY=1");
}

static lg_status make_events(lg_server *sv, lg_err *err) {
    struct event_config *cfg = event_config_new();
    if (cfg) {
        event_config_require_features(cfg, EV_FEATURE_EARLY_CLOSE);
        event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
        sv->base = event_base_new_with_config(cfg);
        event_config_free(cfg);
    }
    if (!sv->base)
        return LG_FAIL(err, LG_E_UNSUPPORTED,
                       "no event method that tells of closed connections");
    sv->on_term = evsignal_new(sv->base, SIGTERM, on_signal, sv);
    sv->on_int = evsignal_new(sv->base, SIGINT, on_signal, sv);
    sv->on_hup = evsignal_new(sv->base, SIGHUP, on_reload, sv);
    sv->on_reap = event_new(sv->base, -1, 0, reap, sv);
    sv->on_drain = evtimer_new(sv->base, on_drain, sv);
    sv->on_ping = event_new(sv->base, -1, EV_PERSIST, on_ping, sv);
    struct timeval often = timeval_of(sv->g.opt->ping_us / 4);
    if (!sv->on_term || !sv->on_int || !sv->on_hup || !sv->on_reap || !sv->on_drain ||
        !sv->on_ping || event_add(sv->on_ping, &often) != 0 ||
        event_add(sv->on_term, NULL) != 0 || event_add(sv->on_int, NULL) != 0 ||
        event_add(sv->on_hup, NULL) != 0)
        return LG_FAIL(err, LG_E_NOMEM, "no memory for the gateway's events");
    return LG_OK;
}

static lg_status open_all(lg_server *sv, lg_err *err) {
    const lg_gateway_opt *opt = sv->g.opt;
    lg_super_opt so = {.model_path = opt->model_path,
                       .worker_argv = opt->worker_argv,
                       .max_flight = opt->max_flight,
                       .restart_us = opt->restart_us,
                       .silent_us = opt->silent_us,
                       .progress = opt->progress,
                       .progress_ctx = opt->progress_ctx,
                       .on_start = on_start,
                       .ctx = sv};
    LG_TRY(make_events(sv, err));
    LG_TRY(lg_tokenizer_open(opt->model_path, &sv->g.tok, err));
    sv->g.model = (lg_oai_model){.name = opt->name,
                                 .tok = sv->g.tok,
                                 .created = (uint64_t)time(NULL),
                                 .keep_header = opt->keep_header};
    allow_files(sv);
    LG_TRY(open_guard(sv, err));
    if (lg_history_open(HISTORY_BYTES, HISTORY_US, &sv->g.model.history) != LG_OK)
        return LG_FAIL(err, LG_E_NOMEM, "no memory for kept responses");
    LG_TRY(lg_listen_open(&sv->listen, sv->base, opt, on_accept, sv, err));
    sv->g.guard.check_host = sv->listen.loopback || opt->n_allow_host > 0;
    return lg_supervise_open(sv->base, &so, &sv->g.sup, err);
}

static void close_all(lg_server *sv) {
    sv->g.draining = true;
    while (sv->conns) kill_conn(sv->conns);
    if (sv->base) reap(-1, 0, sv);
    lg_supervise_close(&sv->g.sup);
    lg_listen_close(&sv->listen);
    lg_keys_close(&sv->g.guard.keys);
    lg_tls_close(&sv->tls);
    struct event *const ev[] = {sv->on_term, sv->on_int,   sv->on_hup,
                                sv->on_reap, sv->on_drain, sv->on_ping};
    for (size_t i = 0; i < LG_COUNT(ev); i++)
        if (ev[i]) event_free(ev[i]);
    if (sv->base) event_base_free(sv->base);
    lg_history_close(&sv->g.model.history);
    lg_tokenizer_close(&sv->g.tok);
    lg_mem_free(sv);
}

void lg_gateway_opt_init(lg_gateway_opt *opt) {
    *opt = (lg_gateway_opt){.host = "127.0.0.1",
                            .port = 8080,
                            .max_conn = 1024,
                            .ping_us = 10000000,
                            .max_flight = 1024,
                            .max_bodies = BODIES_BYTES,
                            .head_us = 10 * 1000000,
                            .body_us = 120 * 1000000,
                            .idle_us = 75 * 1000000,
                            .drain_us = 30 * 1000000,
                            .restart_us = 60 * 1000000,
                            .silent_us = 600 * 1000000ull};
}

lg_status lg_server_run(const lg_gateway_opt *opt,
                        void (*on_ready)(const lg_gateway_opt *opt, const char *url),
                        lg_err *err) {
    static const double ttft[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                                  5,    10,    20,   40,  80,   160, 320, 640};
    static const double itl[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                 0.25,  0.5,    1,     2.5,  5,     10};
    lg_server *sv = lg_mem_alloc(sizeof *sv);
    if (!sv) return LG_FAIL(err, LG_E_NOMEM, "no memory for the gateway");
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_MMAP_THRESHOLD,
            MMAP_BYTES); /* a fixed one: glibc's own grows with what is freed */
    sv->g.opt = opt;
    sv->on_ready = on_ready;
    lg_notify_init(sv->notify);
    lg_metrics_hist_init(&sv->g.stats.ttft, ttft, LG_COUNT(ttft));
    lg_metrics_hist_init(&sv->g.stats.itl, itl, LG_COUNT(itl));
    lg_status st = open_all(sv, err);
    if (st == LG_OK) {
        event_base_dispatch(sv->base);
        st = sv->status;
        if (st != LG_OK) *err = sv->err;
    }
    close_all(sv);
    return st;
}
