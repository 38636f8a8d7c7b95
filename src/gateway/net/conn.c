/* conn.c - one client's connection: its requests, answers, limits and deadlines.
 *
 * In/out: bytes of the client; complete requests go to routes.c, its answers come back through lg_server_*.
 * Policy: a connection reads one request, is BUSY until it is answered, then reads the next; what a client sends early
 * waits, bounded, in its buffer.  A BUSY connection is watched with EV_CLOSED, which tells of a client that leaves even
 * while nothing is read or written; closing only one's sending side counts as leaving.  A streaming client that lets more
 * than BACKLOG_BYTES pile up is cut off.
 * Invariants: a connection is freed only by lg_conn_reap(), from the loop; state DEAD means it waits for that.
 * Thread: gateway.  Memory: one lg_conn for each connection.  Test: tests/e2e/test_http.py, test_cancel.py */
#include "gateway/net/conn.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <event2/buffer.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BACKLOG_BYTES = 1 << 20,   /* unsent bytes of a stream */
    PIPELINE_BYTES = 64 << 10, /* unsent bytes of answers before the next request is read */
    LINGER_BYTES = 64 << 20,   /* what is taken and thrown away after a refusal */
    INPUT_BYTES = 64 << 10,    /* unread bytes kept for a connection */
    BODY_MIN_BYTES = 2 << 20,  /* one body, whatever the context */
    BODY_TOKEN_BYTES = 16,     /* one body, for each token of context */
    STALL_S = 60,              /* writing makes no progress */
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
    lg_conn_set_key(c, NULL);
    lg_buf_clear(&c->extra);
    c->in_body = c->admitted = false;
}

void lg_conn_kill(lg_conn *c) {
    if (c->state == LG_CONN_DEAD) return;
    c->state = LG_CONN_DEAD;
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

void lg_conn_reap(lg_server *sv) {
    while (sv->dead) {
        lg_conn *c = sv->dead;
        sv->dead = c->next;
        free_conn(c);
    }
}

/* All is said: let the client read it, then close. */
static void close_gently(lg_conn *c) {
    c->state = LG_CONN_CLOSING;
    set_deadline(c, c->sv->g.opt->head_us);
    if (evbuffer_get_length(bufferevent_get_output(c->be)) > 0) return;
    /* Closing a socket with unread input resets the connection and may destroy the answer: shut down, drain, then close. */
    if (!c->shut && c->sv->tls) lg_tls_goodbye(c->be);
    if (!c->shut) shutdown(bufferevent_getfd(c->be), SHUT_WR);
    c->shut = true;
    set_deadline(c, LG_CONN_LINGER_US);
    if (c->half_closed) lg_conn_kill(c);
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
    c->state = LG_CONN_READING;
    set_deadline(c, c->sv->g.opt->idle_us);
    read_more(c);
}

/* Header lines that go with every answer to this request. */
static const char *extra_lines(lg_conn *c) {
    if (c->key) lg_keys_put_headers(c->key, lg_clock_us(), &c->extra);
    return c->extra.failed ? "" : lg_buf_str(&c->extra);
}

void lg_conn_reply(lg_conn *c, int status, const char *type, const char *headers,
                   const char *body, size_t len_bytes) {
    if (c->state == LG_CONN_DEAD) return;
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

void lg_conn_stream_begin(lg_conn *c) {
    if (c->state == LG_CONN_DEAD) return;
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

/* Send now what goes into the socket at once, without a turn of the loop; how many bytes went. */
static size_t send_now(lg_conn *c, const char *data, size_t len_bytes) {
    if (c->sv->tls || evbuffer_get_length(bufferevent_get_output(c->be)) > 0) return 0;
    ssize_t n = send(c->fd, data, len_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? (size_t)n : 0; /* an error shows again when the loop writes the rest */
}

/* Put a chunk's head into the room in front of the data, and what follows it; where it begins.  By hand: snprintf would take
 * longer than all the rest of a token. */
static size_t frame_chunk(lg_buf *b) {
    size_t at = LG_CONN_ROOM;
    b->data[--at] = '\n';
    b->data[--at] = '\r';
    for (size_t n = b->len_bytes - LG_CONN_ROOM; n; n >>= 4)
        b->data[--at] = "0123456789abcdef"[n & 15];
    lg_buf_put(b, "\r\n", 2);
    return at;
}

bool lg_conn_stream_put(lg_conn *c, lg_buf *data) {
    if (c->state == LG_CONN_DEAD) return false;
    if (data->len_bytes <= LG_CONN_ROOM) return true;
    size_t at = c->chunked ? frame_chunk(data) : LG_CONN_ROOM;
    if (!data->failed) {
        at += send_now(c, data->data + at, data->len_bytes - at);
        if (at == data->len_bytes) return true;
        struct evbuffer *out = bufferevent_get_output(c->be);
        evbuffer_add(out, data->data + at, data->len_bytes - at);
        if (evbuffer_get_length(out) <= BACKLOG_BYTES) return true;
        c->sv->g.stats.n_slow++;
    }
    lg_conn_kill(c);
    return false;
}

void lg_conn_stream_end(lg_conn *c) {
    if (c->state == LG_CONN_DEAD) return;
    if (c->chunked) evbuffer_add(bufferevent_get_output(c->be), "0\r\n\r\n", 5);
    end_answer(c);
}

void lg_conn_set_job(lg_conn *c, lg_job *job) {
    c->job = job;
}

void lg_conn_set_key(lg_conn *c, lg_key *key) {
    if (key) lg_keys_hold(key);
    if (c->key) lg_keys_drop(c->sv->g.guard.keys, c->key);
    c->key = key;
}

lg_key *lg_conn_get_key(const lg_conn *c) {
    return c->key;
}

lg_buf *lg_conn_headers(lg_conn *c) {
    return &c->extra;
}

/* ---- Requests ---- */

static void refuse(lg_conn *c, int status, const char *reason) {
    c->close_after = true;
    c->state = LG_CONN_BUSY;
    lg_routes_bad(&c->sv->g, c, status, reason);
}

/* The head is complete.  False: the request is refused and answered; a body that has not come closes the connection. */
static bool admit(lg_conn *c) {
    bool was = c->close_after;
    if (c->admitted) return true;
    c->state = LG_CONN_BUSY;
    c->close_after = was || !c->http.keep_alive || c->http.state != LG_HTTP_DONE;
    c->admitted = lg_routes_admit(&c->sv->g, c, &c->http);
    if (!c->admitted) return false;
    c->state = LG_CONN_READING;
    c->close_after = was;
    return true;
}

static void handle(lg_conn *c) {
    if (!admit(c)) return;
    c->state = LG_CONN_BUSY;
    event_del(c->on_time);
    if (!c->http.keep_alive) c->close_after = true;
    size_t len = c->http.body.len_bytes; /* it may be taken away, and counts until the answer */
    lg_routes_handle(&c->sv->g, c, &c->http);
    if (c->state != LG_CONN_BUSY) return;
    c->held_bytes = len;
    lg_buf_fini(&c->http.body);
    if (c->half_closed) lg_conn_kill(c);
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
    while (c->state == LG_CONN_READING && evbuffer_get_length(in) > 0 &&
           evbuffer_get_length(out) <= PIPELINE_BYTES)
        feed(c, in);
    c->in_turn = false;
    if (c->state != LG_CONN_CLOSING) return;
    c->n_lingered += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (c->n_lingered > LINGER_BYTES) lg_conn_kill(c);
}

static void on_read(struct bufferevent *be, void *ctx) {
    (void)be;
    read_more(ctx);
}

/* All output is written. */
static void on_written(struct bufferevent *be, void *ctx) {
    (void)be;
    lg_conn *c = ctx;
    if (c->state == LG_CONN_CLOSING) close_gently(c);
    if (c->state == LG_CONN_READING) read_more(c);
}

static void on_be_event(struct bufferevent *be, short what, void *ctx) {
    lg_conn *c = ctx;
    if (what & BEV_EVENT_CONNECTED) { /* TLS: the handshake is done */
        if (c->state == LG_CONN_READING) set_deadline(c, c->sv->g.opt->idle_us);
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
        lg_conn_kill(c);
}

/* The client has closed its side.  While a request is still read, its end is found in the input. */
static void on_closed(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_conn *c = ctx;
    c->half_closed = true;
    event_del(c->on_closed); /* level-triggered */
    if (c->state == LG_CONN_BUSY) lg_conn_kill(c);
    if (c->state == LG_CONN_CLOSING && c->shut) lg_conn_kill(c);
}

static void on_time(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_conn *c = ctx;
    if (c->state != LG_CONN_READING || !lg_http_begun(&c->http)) {
        lg_conn_kill(c);
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
    c->fd = fd;
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

void lg_conn_accept(lg_server *sv, evutil_socket_t fd, const struct sockaddr *addr) {
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
