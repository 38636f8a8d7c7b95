/* server.c - the gateway's process: start, signals, drain, end.
 *
 * In/out: sockets to listen on; each connection lives in conn.c.
 * Thread: gateway.  Test: tests/e2e/test_http.py, test_secure.py, test_load.py */
#include "gateway/net/conn.h"

#include "base/clock.h"
#include "base/mem.h"
#include "gateway/notify.h"
#include "gateway/wire/history.h"
#include "gateway/wire/replay.h"

#include <errno.h>
#include <event2/buffer.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define HISTORY_BYTES ((size_t)16 << 20)         /* kept for previous_response_id */
#define REPLAY_BYTES  ((size_t)32 << 20)         /* ids of answers: eight million */
#define HISTORY_US    ((uint64_t)3600 * 1000000) /* for so long */

enum {
    BODIES_BYTES = 32 << 20, /* all bodies of requests that are not answered */
    MMAP_BYTES = 256 << 10,  /* larger blocks go back to the system when they are freed */
    PEER_CONNS = 256,        /* connections of one address, when nothing is said */
    DRAIN_POLL_US = 20000,
    UNHEARD_US = 1000000, /* a connection accepted just before the end may still ask */
    OTHER_FILES = 64      /* open files beside connections */
};

static struct timeval timeval_of(uint64_t us) {
    return (struct timeval){.tv_sec = (time_t)(us / 1000000),
                            .tv_usec = (suseconds_t)(us % 1000000)};
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr,
                      int len, void *ctx) {
    (void)l;
    (void)len;
    lg_conn_accept(ctx, fd, addr);
}

static void on_reap(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_conn_reap(ctx);
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
    sv->status = lg_routes_open(&sv->g, sv->base, &sv->err);
    if (sv->status != LG_OK) {
        event_base_loopbreak(sv->base);
        return;
    }
    lg_listen_url(&sv->listen, sv->tls ? "https" : "http", url, sizeof url);
    if (sv->on_ready) sv->on_ready(sv->g.opt, &ready->info, url);
    lg_listen_ready(&sv->listen);
    lg_notify_send(sv->notify, "READY=1");
}

/* Whom a successor cannot answer: who was accepted here and has not been heard yet. */
static bool is_ours(const lg_conn *c) {
    return c->state == LG_CONN_READING &&
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
    if (!anything_left(sv, now) || now > sv->drain_until_us + LG_CONN_LINGER_US) {
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
        if (c->state == LG_CONN_READING && !is_ours(c)) lg_conn_kill(c);
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
    sv->on_reap = event_new(sv->base, -1, 0, on_reap, sv);
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
    sv->g.model = (lg_request_model){.name = opt->name,
                                     .tok = sv->g.tok,
                                     .created = (uint64_t)time(NULL),
                                     .lenient = opt->lenient,
                                     .notice = &sv->g.notice,
                                     .keep_header = opt->keep_header};
    allow_files(sv);
    LG_TRY(open_guard(sv, err));
    if (lg_history_open(HISTORY_BYTES, HISTORY_US, &sv->g.model.history) != LG_OK)
        return LG_FAIL(err, LG_E_NOMEM, "no memory for kept responses");
    if (!opt->no_replay && lg_replay_open(REPLAY_BYTES, &sv->g.model.replay) != LG_OK)
        return LG_FAIL(err, LG_E_NOMEM, "no memory for kept answers");
    LG_TRY(lg_listen_open(&sv->listen, sv->base, opt, on_accept, sv, err));
    sv->g.guard.check_host = sv->listen.loopback || opt->n_allow_host > 0;
    return lg_supervise_open(sv->base, &so, &sv->g.sup, err);
}

static void close_all(lg_server *sv) {
    sv->g.draining = true;
    while (sv->conns) lg_conn_kill(sv->conns);
    if (sv->base) lg_conn_reap(sv);
    lg_supervise_close(&sv->g.sup);
    lg_routes_close(&sv->g);
    lg_listen_close(&sv->listen);
    lg_keys_close(&sv->g.guard.keys);
    lg_tls_close(&sv->tls);
    struct event *const ev[] = {sv->on_term, sv->on_int,   sv->on_hup,
                                sv->on_reap, sv->on_drain, sv->on_ping};
    for (size_t i = 0; i < LG_COUNT(ev); i++)
        if (ev[i]) event_free(ev[i]);
    if (sv->base) event_base_free(sv->base);
    lg_history_close(&sv->g.model.history);
    lg_replay_close(&sv->g.model.replay);
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
                        void (*on_ready)(const lg_gateway_opt *opt, const lg_info *info,
                                         const char *url),
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
