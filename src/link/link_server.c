/* link_server.c - the worker: one engine behind one socket.
 *
 * In:  SUBMIT, CANCEL, GOODBYE frames.   Out: HELLO, PROGRESS, READY, TOKEN, DONE, REFUSED, STATS, GOODBYE.
 * Policy: between two steps all frames that have arrived are taken, so a CANCEL acts within one step; while more than
 * OUT_MAX_BYTES wait to be written no step is run; with nothing to do the thread sleeps in poll().
 * Invariants: `live` holds exactly the requests that the engine has accepted and not finished.
 * Thread: one, the engine's.  Memory: socket buffers and the live list; both grow only while frames are taken.
 * Test: tests/unit/test_link.c, tests/e2e */
#include "link/link.h"

#include "base/clock.h"
#include "base/mem.h"
#include "model/config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef LG_TEST_HOOKS
#include <signal.h>
#endif

enum { OUT_MAX_BYTES = 1 << 20, READ_BYTES = 1 << 16, STATS_US = 500000, PROGRESS_US = 100000 };

typedef struct pair {
    uint64_t gate_id, eng_id;
} pair;

typedef struct server {
    int fd;
    bool gone; /* the gateway has left */
    lg_engine *eng;
    lg_buf out;
    lg_link_reader reader;
    pair *live; /* [n_live] by gate_id */
    size_t n_live, cap_live;
    uint64_t progress_us, stats_us; /* when they were last sent */
    lg_stats sent;
#ifdef LG_TEST_HOOKS
    int steps_to_crash; /* 0: none */
#endif
} server;

/* ---- Socket ---- */

static void flush(server *s) {
    size_t at = 0;
    while (at < s->out.len_bytes) {
        ssize_t n = send(s->fd, s->out.data + at, s->out.len_bytes - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) s->gone = true;
        if (n <= 0) break;
        at += (size_t)n;
    }
    lg_buf_consume(&s->out, at);
}

/* Wait until something can be read (or written, when bytes wait); timeout_ms -1 = for ever. */
static void wait_for(server *s, int timeout_ms) {
    struct pollfd p = {.fd = s->fd,
                       .events = (short)(POLLIN | (s->out.len_bytes ? POLLOUT : 0))};
    poll(&p, 1, timeout_ms);
}

static lg_status receive(server *s) {
    char block[READ_BYTES];
    for (;;) {
        ssize_t n = recv(s->fd, block, sizeof block, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) s->gone = true;
        if (n <= 0) return LG_OK;
        LG_TRY(lg_link_feed(&s->reader, block, (size_t)n));
        if ((size_t)n < sizeof block) return LG_OK;
    }
}

static bool on_progress(void *ctx, uint64_t done_bytes, uint64_t total_bytes) {
    server *s = ctx;
#ifdef LG_TEST_HOOKS
    /* Test build: loading takes so many milliseconds longer before each report. */
    if (getenv("LG_HOOK_SLOW_LOAD"))
        lg_clock_sleep_us(strtoull(getenv("LG_HOOK_SLOW_LOAD"), NULL, 10) * 1000);
#endif
    uint64_t now = lg_clock_us();
    if (now - s->progress_us >= PROGRESS_US) {
        s->progress_us = now;
        if (s->out.len_bytes < OUT_MAX_BYTES)
            lg_link_put_progress(&s->out, done_bytes, total_bytes);
        flush(s);
        if (receive(s) != LG_OK) s->gone = true;
    }
    return s->gone;
}

/* ---- Frames ---- */

/* First index whose number is not below gate_id. */
static size_t live_place(const server *s, uint64_t gate_id) {
    size_t low = 0, high = s->n_live;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (s->live[mid].gate_id < gate_id) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

/* Index of a request, or n_live. */
static size_t live_find(const server *s, uint64_t gate_id) {
    size_t i = live_place(s, gate_id);
    return i < s->n_live && s->live[i].gate_id == gate_id ? i : s->n_live;
}

static lg_status live_add(server *s, uint64_t gate_id, uint64_t eng_id) {
    if (s->n_live == s->cap_live) {
        size_t cap = s->cap_live ? 2 * s->cap_live : 64;
        pair *p = lg_mem_realloc(s->live, cap * sizeof *p);
        if (!p) return LG_E_NOMEM;
        s->live = p;
        s->cap_live = cap;
    }
    size_t i = live_place(s, gate_id);
    memmove(s->live + i + 1, s->live + i, (s->n_live++ - i) * sizeof *s->live);
    s->live[i] = (pair){.gate_id = gate_id, .eng_id = eng_id};
    return LG_OK;
}

static void live_remove(server *s, size_t i) {
    memmove(s->live + i, s->live + i + 1, (--s->n_live - i) * sizeof *s->live);
}

#ifdef LG_TEST_HOOKS
/* Test build: a prompt that holds the id in LG_HOOK_CRASH_TOKEN kills the worker about when LG_HOOK_CRASH_AT (1) ids have
 * been produced for it, counted over all its lives. */
static void hook_submit(server *s, const lg_request *req) {
    const char *text = getenv("LG_HOOK_CRASH_TOKEN"), *at = getenv("LG_HOOK_CRASH_AT");
    if (!text) return;
    uint32_t id = (uint32_t)strtoul(text, NULL, 10);
    long left = (at ? strtol(at, NULL, 10) : 1) - (long)req->n_produced;
    for (uint32_t i = 0; i < req->n_id - req->n_produced; i++)
        if (req->ids[i] == id && !s->steps_to_crash)
            s->steps_to_crash = left > 1 ? (int)left : 1;
}

/* And LG_HOOK_SLOW_STEP makes each step so many milliseconds longer. */
static void hook_step(server *s) {
    const char *ms = getenv("LG_HOOK_SLOW_STEP");
    if (s->steps_to_crash && --s->steps_to_crash == 0) raise(SIGKILL);
    if (ms) lg_clock_sleep_us(strtoull(ms, NULL, 10) * 1000);
}
#endif

static void on_submit(server *s, const lg_link_msg *m) {
    lg_request req = m->u.submit.req;
    uint64_t eng_id;
    lg_err err = {0};
    /* The gateway's number comes back in every event. */
    req.user = (void *)(uintptr_t)m->id;
    lg_status st = live_find(s, m->id) < s->n_live
                       ? LG_FAIL(&err, LG_E_ARG, "request number %llu is in use",
                                 (unsigned long long)m->id)
                       : lg_submit(s->eng, &req, &eng_id, &err);
    if (st == LG_OK && live_add(s, m->id, eng_id) != LG_OK) {
        lg_cancel(s->eng, eng_id);
        st = LG_FAIL(&err, LG_E_NOMEM, "no memory for the list of requests");
    }
    if (st != LG_OK) {
        lg_link_put_refused(&s->out, m->id, st, err.msg);
        return;
    }
#ifdef LG_TEST_HOOKS
    hook_submit(s, &req);
#endif
}

static void send_events(server *s) {
    lg_event e;
    while (lg_next_event(s->eng, &e) == LG_OK) {
        uint64_t gate_id = (uint64_t)(uintptr_t)e.user;
        size_t i = live_find(s, gate_id);
        if (i == s->n_live) continue;
        lg_link_put_event(&s->out, gate_id, &e);
        if (e.kind == LG_EVENT_DONE) live_remove(s, i);
    }
}

static lg_status on_frames(server *s, lg_err *err) {
    lg_link_msg m;
    lg_status st;
    while ((st = lg_link_next(&s->reader, &m, err)) == LG_OK) {
        size_t i;
        switch (m.kind) {
        case LG_LINK_SUBMIT: on_submit(s, &m); break;
        case LG_LINK_CANCEL:
            i = live_find(s, m.id);
            if (i == s->n_live) break;
            lg_cancel(s->eng, s->live[i].eng_id);
            send_events(s);
            break;
        case LG_LINK_GOODBYE: s->gone = true; return LG_OK;
        default:
            return LG_FAIL(err, LG_E_FORMAT, "link: a worker does not take frames of kind %d",
                           (int)m.kind);
        }
    }
    return st == LG_AGAIN ? LG_OK : st;
}

static void send_stats(server *s, bool force) {
    uint64_t now = lg_clock_us();
    if (!force && now - s->stats_us < STATS_US) return;
    lg_stats st;
    memset(&st, 0, sizeof st);
    lg_get_stats(s->eng, &st);
    s->stats_us = now;
    if (memcmp(&st, &s->sent, sizeof st) == 0) return;
    s->sent = st;
    lg_link_put_stats(&s->out, &st);
}

/* ---- The loop ---- */

static lg_status run(server *s, lg_err *err) {
    bool idle = true;
    send_stats(s, true); /* what is free is known before the first request */
    flush(s);
    while (!s->gone) {
        bool full = s->out.len_bytes >= OUT_MAX_BYTES;
        if (idle || full) wait_for(s, -1);
        LG_TRY(receive(s));
        LG_TRY(on_frames(s, err));
        if (s->out.len_bytes >= OUT_MAX_BYTES) {
            flush(s);
            continue;
        }
        lg_status st = lg_step(s->eng);
        /* A lost device's events say that all requests failed; without them the gateway lets them go on elsewhere. */
        if (st < 0) return LG_FAIL(err, st, "the engine stopped: %s", lg_status_name(st));
        send_events(s);
        idle = st == LG_AGAIN;
#ifdef LG_TEST_HOOKS
        if (!idle) hook_step(s);
#endif
        send_stats(s, idle);
        if (s->out.failed) return LG_FAIL(err, LG_E_NOMEM, "no memory for the link's output");
        flush(s);
    }
    return LG_OK;
}

static lg_status say_hello(server *s, const char *model_path, lg_err *err) {
    lg_link_hello h = {.version = LG_LINK_VERSION};
    LG_TRY(lg_link_weights_hash(model_path, &h.weights_hash, err));
    LG_TRY(lg_link_tokenizer_hash(model_path, &h.tokenizer_hash, err));
    const char *slash = strrchr(model_path, '/');
    const char *name = slash && slash[1] ? slash + 1 : model_path;
    strncpy(h.model_name, name, sizeof h.model_name - 1);
    lg_link_put_hello(&s->out, &h);
    flush(s);
    return LG_OK;
}

static lg_status say_ready(server *s, const char *model_path, lg_err *err) {
    lg_link_ready r;
    lg_config cfg;
    memset(&r, 0, sizeof r);
    LG_TRY(lg_config_load(&cfg, model_path, err));
    lg_get_info(s->eng, &r.info);
    lg_params_init(s->eng, &r.params);
    for (; r.n_eos < cfg.n_eos && r.n_eos < LG_LINK_MAX_EOS; r.n_eos++)
        r.eos[r.n_eos] = cfg.eos[r.n_eos];
    lg_link_put_ready(&s->out, &r);
    flush(s);
    return LG_OK;
}

/* The last words must get out even when the socket is full just now. */
static void say_goodbye(server *s, lg_status st, const char *why) {
    uint64_t until = lg_clock_us() + 1000000;
    lg_link_put_goodbye(&s->out, st, why);
    for (flush(s); s->out.len_bytes && !s->gone && lg_clock_us() < until; flush(s))
        wait_for(s, 100);
}

lg_status lg_link_serve(int fd, const lg_options *opt, lg_err *err) {
    server *s = lg_mem_alloc(sizeof *s);
    if (!s) return LG_FAIL(err, LG_E_NOMEM, "no memory for the worker");
    s->fd = fd;
    lg_options o = *opt;
    o.progress = on_progress;
    o.progress_ctx = s;
    lg_status st;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        st = LG_FAIL(err, LG_E_IO, "file descriptor %d: %s", fd, strerror(errno));
        goto done;
    }
    LG_TRY_GOTO(say_hello(s, opt->model_path, err), st, done);
    LG_TRY_GOTO(lg_open(&o, &s->eng, err), st, done);
    LG_TRY_GOTO(say_ready(s, opt->model_path, err), st, done);
    st = run(s, err);
done:
    if (st != LG_OK && !s->gone) say_goodbye(s, st, err->msg);
    lg_close(&s->eng);
    lg_buf_fini(&s->out);
    lg_link_reader_fini(&s->reader);
    lg_mem_free(s->live);
    lg_mem_free(s);
    return st;
}
