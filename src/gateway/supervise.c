/* supervise.c - keep a worker running, and every answer going whatever happens to it.
 *
 * In:  requests of routes.c, frames of the worker.   Out: events to routes.c, SUBMIT and CANCEL frames.
 * A flight keeps the prompt and all ids produced; when the worker dies, it is submitted again with both.  The last id is
 * left out and produced once more, its event dropped: so an end of the answer that was lost with the worker is found again.
 *
 * Suspects: the flights that were inside a worker when it died are put into two groups and submitted a group at a time; the
 * next group waits until each member of the one before has ended or made `probation` tokens, which doubles with every death,
 * so that the search ends whatever makes the request deadly.  A flight that was alone in the worker at its second death is
 * lost; everything else goes on.
 * A worker that has work and stays silent for opt.silent_us hangs: it is killed and counts as dead.
 * Invariants: flight.state SENT <=> the worker knows flight.id; n_trial counts SENT flights that are on probation.
 * Thread: gateway.  Memory: a flight with its ids.  Test: tests/e2e/test_worker.py */
#include "gateway/gateway.h"
#include "model/grammar/grammar.h"

#include "base/clock.h"
#include "base/mem.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>

enum {
    BACKOFF_MIN_MS = 100,
    BACKOFF_MAX_MS = 5000,
    STEADY_US = 10 * 1000000,
    CONNECT_US = 10000,
    PROBATION = 4,
    OUT_MAX_BYTES = 64 << 20,
    N_BUCKET = 1024,
    CLIENT_SHARE = 4,
    MAX_CTX = 4 << 20, /* ids of a request fit one frame beside its stop strings */
    MAX_STOP_BYTES = 1 << 20
};

typedef enum { HELD, SENT } flight_state;

struct lg_flight {
    lg_flight *next, *prev; /* sup->all, oldest first */
    lg_flight *chain;       /* SENT: next of the same bucket */
    lg_flight_fn *fn;
    void *ctx;
    uint64_t id;    /* new for every submission */
    lg_request req; /* ids, n_id, n_produced are kept up to date */
    uint32_t *ids;  /* owned; prompt, then produced */
    uint32_t cap_id;
    flight_state state;
    int64_t group;    /* HELD: groups are sent in ascending order */
    uint32_t n_death; /* workers that died with it inside */
    uint32_t n_new;   /* tokens since it was last sent */
    uint32_t n_skip;  /* events to drop: tokens that the client has already */
    uint32_t probation;
    bool trial; /* SENT and on probation */
};

struct lg_super {
    struct event_base *base;
    lg_super_opt opt;
    lg_super_state state;
    bool started; /* the first worker became ready */
    bool expired; /* no worker for longer than restart_us */
    bool hello_seen;
    lg_link_hello hello; /* of the first worker */
    uint64_t tokenizer_hash;
    lg_link_client link;
    lg_err bye; /* what the worker said last */
    struct event *on_read, *on_write, *on_connect, *on_restart, *on_deadline, *on_release,
        *on_watch;
    uint64_t heard_us; /* the last time the worker spoke or had no work */
    lg_flight *first, *last;
    lg_flight *sent[N_BUCKET]; /* by the last bits of id */
    uint32_t n_flight, n_trial;
    uint64_t next_id;
    int64_t front; /* lower than any group in use */
    uint64_t ready_us;
    uint32_t n_fail; /* deaths in a row */
    uint64_t n_restart;
    lg_stats stats, past; /* the worker's last report; counters of all workers before it */
    lg_info info;
    lg_stats sum;
};

/* ---- Flights ---- */

static lg_flight **bucket_of(lg_super *s, uint64_t id) {
    return &s->sent[id % N_BUCKET];
}

static lg_flight *flight_find(lg_super *s, uint64_t id) {
    lg_flight *f = *bucket_of(s, id);
    while (f && f->id != id) f = f->chain;
    return f;
}

/* The worker knows it no more. */
static void flight_recall(lg_super *s, lg_flight *f) {
    lg_flight **at = bucket_of(s, f->id);
    if (f->state != SENT) return;
    while (*at != f) at = &(*at)->chain;
    *at = f->chain;
    f->state = HELD;
}

static void flight_free(lg_super *s, lg_flight *f) {
    flight_recall(s, f);
    *(f->prev ? &f->prev->next : &s->first) = f->next;
    *(f->next ? &f->next->prev : &s->last) = f->prev;
    if (f->trial) s->n_trial--;
    s->n_flight--;
    if (s->n_trial == 0) event_active(s->on_release, EV_TIMEOUT, 0);
    lg_mem_free(f->ids);
    lg_mem_free(f);
}

/* The flight ends here: tell its owner. */
static void flight_lose(lg_super *s, lg_flight *f, lg_lost_kind kind, lg_status status,
                        const char *text) {
    lg_lost lost = {.kind = kind, .status = status, .text = text};
    lg_flight_fn *fn = f->fn;
    void *ctx = f->ctx;
    flight_free(s, f);
    fn(ctx, NULL, &lost);
}

static bool flight_push(lg_flight *f, uint32_t id) {
    if (f->req.n_id == f->cap_id) {
        uint32_t cap = f->cap_id < MAX_CTX ? f->cap_id * 2 : 0;
        uint32_t *p = cap ? lg_mem_realloc(f->ids, cap * sizeof *p) : NULL;
        if (!p) return false;
        f->ids = p;
        f->req.ids = p;
        f->cap_id = cap;
    }
    f->ids[f->req.n_id++] = id;
    f->req.n_produced++;
    return true;
}

static void write_link(lg_super *s) {
    lg_status st = lg_link_client_write(&s->link);
    if (st == LG_AGAIN) event_add(s->on_write, NULL);
    /* A lost worker is noticed by the reading side. */
}

static void flight_send(lg_super *s, lg_flight *f, bool trial) {
    lg_request req = f->req;
    f->n_skip = 0;
    if (req.n_produced) {
        req.n_id--;
        req.n_produced--;
        f->n_skip = 1;
    }
    f->id = ++s->next_id;
    f->state = SENT;
    f->chain = *bucket_of(s, f->id);
    *bucket_of(s, f->id) = f;
    f->n_new = 0;
    f->trial = trial;
    f->probation = (uint32_t)PROBATION << (f->n_death < 16 ? f->n_death : 16);
    if (trial) s->n_trial++;
    /* Its limits were checked when it came in, and ids grow only up to the context. */
    lg_status st = lg_link_put_submit(&s->link.out, f->id, &req);
    LG_ASSERT(st == LG_OK);
}

/* The lowest group held, or false. */
static bool lowest_group(const lg_super *s, int64_t *group) {
    bool any = false;
    for (const lg_flight *f = s->first; f; f = f->next)
        if (f->state == HELD && (!any || f->group < *group)) {
            *group = f->group;
            any = true;
        }
    return any;
}

/* Send the next group, once nothing is on probation any more. */
static void release(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_super *s = ctx;
    int64_t group = 0;
    while (s->state == LG_SUPER_READY && s->n_trial == 0 && lowest_group(s, &group)) {
        for (lg_flight *f = s->first; f; f = f->next)
            if (f->state == HELD && f->group == group) flight_send(s, f, f->n_death > 0);
    }
    if (s->state == LG_SUPER_READY) write_link(s);
}

/* ---- A worker died ---- */

/* Give the flights that were inside new groups, in front of everything held. */
static void accuse(lg_super *s) {
    uint32_t n_sent = 0, n_trial = 0, i = 0;
    for (lg_flight *f = s->first; f; f = f->next) {
        if (f->state != SENT) continue;
        f->n_death++;
        n_sent++;
        n_trial += f->trial;
    }
    s->n_trial = 0;
    lg_flight *lone = NULL;
    bool all = n_trial == 0; /* nobody is more suspect than the others */
    uint32_t n_suspect = all ? n_sent : n_trial, half = (n_suspect + 1) / 2;
    int64_t base = s->front -= 3;
    for (lg_flight *f = s->first; f; f = f->next) {
        if (f->state != SENT) continue;
        f->group = base + 2;
        if (all || f->trial) f->group = base + (i++ < half ? 0 : 1);
        flight_recall(s, f);
        f->trial = false;
        if (n_sent == 1 && f->n_death >= 2) lone = f;
    }
    if (lone)
        flight_lose(s, lone, LG_LOST_WORKER, LG_E_COMM,
                    "the worker ended twice while it worked on this request");
}

static void fail_all(lg_super *s) {
    while (s->first)
        flight_lose(s, s->first, LG_LOST_UNAVAILABLE, LG_E_COMM,
                    "the worker was lost and could not be started again in time");
}

static void on_deadline(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_super *s = ctx;
    s->expired = true;
    lg_diag_log(LG_LOG_ERROR, "no worker for %llu s: requests are refused until there is one",
                (unsigned long long)(s->opt.restart_us / 1000000));
    fail_all(s);
}

static void add_timer(struct event *ev, uint64_t us) {
    struct timeval tv = {.tv_sec = (time_t)(us / 1000000),
                         .tv_usec = (suseconds_t)(us % 1000000)};
    event_add(ev, &tv);
}

/* A worker that hangs is ended; the rest is as after any death. */
static void on_watch(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_super *s = ctx;
    uint32_t n_sent, n_held;
    uint64_t now = lg_clock_us();
    lg_supervise_count(s, &n_sent, &n_held);
    if (s->state != LG_SUPER_READY || n_sent == 0) s->heard_us = now;
    if (now - s->heard_us > s->opt.silent_us) {
        lg_diag_log(LG_LOG_ERROR,
                    "the worker has work and has said nothing for %llu s: ending it",
                    (unsigned long long)((now - s->heard_us) / 1000000));
        s->heard_us = now;
        kill(s->link.pid, SIGKILL);
    }
    add_timer(s->on_watch, s->opt.silent_us / 4);
}

static void describe_end(const lg_super *s, int status, char *text, size_t cap) {
    if (s->bye.code != LG_OK)
        snprintf(text, cap, "%s", s->bye.msg);
    else if (WIFSIGNALED(status))
        snprintf(text, cap, "ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(text, cap, "ended with exit status %d", WEXITSTATUS(status));
}

/* Add what only grows. */
static void add_counters(lg_stats *to, const lg_stats *from) {
    static const size_t at[] = {offsetof(lg_stats, n_step),
                                offsetof(lg_stats, n_prefill_tok),
                                offsetof(lg_stats, n_decode_tok),
                                offsetof(lg_stats, n_submitted),
                                offsetof(lg_stats, n_done),
                                offsetof(lg_stats, n_cancelled),
                                offsetof(lg_stats, n_failed),
                                offsetof(lg_stats, n_nonfinite),
                                offsetof(lg_stats, n_prompt_tok),
                                offsetof(lg_stats, n_hit_tok),
                                offsetof(lg_stats, n_evicted),
                                offsetof(lg_stats, n_discarded),
                                offsetof(lg_stats, step_us),
                                offsetof(lg_stats, n_preempt_kept),
                                offsetof(lg_stats, n_preempt_dropped),
                                offsetof(lg_stats, n_again_tok),
                                offsetof(lg_stats, n_held),
                                offsetof(lg_stats, n_aged),
                                offsetof(lg_stats, n_file_tok),
                                offsetof(lg_stats, n_file_written),
                                offsetof(lg_stats, n_file_refused),
                                offsetof(lg_stats, n_file_skipped),
                                offsetof(lg_stats, n_cut_step),
                                offsetof(lg_stats, n_mixed_step),
                                offsetof(lg_stats, mixed_us),
                                offsetof(lg_stats, mixed_expected_us),
                                offsetof(lg_stats, mixed_error_us)};
    for (size_t i = 0; i < LG_COUNT(at); i++) {
        uint64_t x, y;
        memcpy(&x, (char *)to + at[i], sizeof x);
        memcpy(&y, (const char *)from + at[i], sizeof y);
        x += y;
        memcpy((char *)to + at[i], &x, sizeof x);
    }
}

static void worker_lost(lg_super *s) {
    int status = 0;
    char text[600];
    if (s->on_read) event_del(s->on_read);
    if (s->on_write) event_del(s->on_write);
    event_del(s->on_connect);
    lg_link_client_stop(&s->link, s->bye.code != LG_OK ? 200000 : 0, &status);
    describe_end(s, status, text, sizeof text);
    if (!s->started) {
        lg_err err = s->bye;
        if (err.code == LG_OK) LG_FAIL(&err, LG_E_COMM, "the worker %s while loading", text);
        s->state = LG_SUPER_DOWN;
        s->expired = true;
        s->opt.on_start(s->opt.ctx, NULL, &err);
        return;
    }
    add_counters(&s->past, &s->stats);
    memset(&s->stats, 0, sizeof s->stats);
    lg_super_state was = s->state;
    s->state = LG_SUPER_DOWN;
    if (was == LG_SUPER_READY) {
        if (lg_clock_us() - s->ready_us > STEADY_US) s->n_fail = 0;
        if (!s->expired) add_timer(s->on_deadline, s->opt.restart_us);
        accuse(s);
    }
    uint64_t ms = 0;
    if (s->n_fail > 0) ms = (uint64_t)BACKOFF_MIN_MS << (s->n_fail < 7 ? s->n_fail - 1 : 6);
    if (ms > BACKOFF_MAX_MS) ms = BACKOFF_MAX_MS;
    s->n_fail++;
    lg_diag_log(LG_LOG_WARN, "worker %s; starting it again in %llu ms, %u requests wait", text,
                (unsigned long long)ms, s->n_flight);
    add_timer(s->on_restart, ms * 1000);
}

/* ---- Frames ---- */

static void on_event(lg_super *s, const lg_link_msg *m) {
    lg_flight *f = flight_find(s, m->id);
    if (!f) return; /* cancelled meanwhile */
    lg_event e = m->u.event;
    lg_flight_fn *fn = f->fn;
    void *ctx = f->ctx;
    if (e.kind == LG_EVENT_TOKEN) {
        if (f->n_skip) {
            f->n_skip--;
            if (e.token != f->ids[f->req.n_id - 1])
                lg_diag_log(LG_LOG_ERROR, "a resumed answer differs at token %u",
                            f->req.n_produced);
            return;
        }
        if (!flight_push(f, e.token)) {
            lg_link_put_cancel(&s->link.out, f->id);
            flight_lose(s, f, LG_LOST_REFUSED, LG_E_NOMEM, "no memory for the answer");
            return;
        }
        if (++f->n_new >= f->probation && f->trial) {
            f->trial = false;
            if (--s->n_trial == 0) event_active(s->on_release, EV_TIMEOUT, 0);
        }
    } else {
        flight_free(s, f);
    }
    fn(ctx, &e, NULL);
}

static lg_status on_hello(lg_super *s, const lg_link_hello *h, lg_err *err) {
    if (h->version != LG_LINK_VERSION)
        return LG_FAIL(err, LG_E_UNSUPPORTED, "the worker speaks link version %u; expected %u",
                       h->version, LG_LINK_VERSION);
    if (h->tokenizer_hash != s->tokenizer_hash)
        return LG_FAIL(err, LG_E_FORMAT, "the worker has another tokenizer than the gateway");
    if (!s->started) s->hello = *h;
    if (h->weights_hash != s->hello.weights_hash)
        return LG_FAIL(err, LG_E_FORMAT, "%s: the model's files have changed since the start",
                       s->opt.model_path);
    s->hello_seen = true;
    return LG_OK;
}

static void on_ready(lg_super *s, const lg_link_ready *r) {
    s->state = LG_SUPER_READY;
    s->expired = false;
    s->ready_us = lg_clock_us();
    s->info = r->info;
    event_del(s->on_deadline);
    if (!s->started) {
        s->started = true;
        s->opt.on_start(s->opt.ctx, r, NULL);
    } else {
        lg_diag_log(LG_LOG_WARN, "worker is ready again; %u requests go on", s->n_flight);
    }
    event_active(s->on_release, EV_TIMEOUT, 0);
}

static lg_status on_frame(lg_super *s, const lg_link_msg *m, lg_err *err) {
    lg_flight *f;
    if (m->kind == LG_LINK_HELLO) return on_hello(s, &m->u.hello, err);
    if (m->kind == LG_LINK_GOODBYE)
        return LG_FAIL(err, m->u.why.status < 0 ? m->u.why.status : LG_E_COMM, "%s",
                       m->u.why.text);
    if (!s->hello_seen)
        return LG_FAIL(err, LG_E_FORMAT, "link: frame of kind %d before HELLO", (int)m->kind);
    switch (m->kind) {
    case LG_LINK_PROGRESS:
        if (!s->started && s->opt.progress)
            s->opt.progress(s->opt.progress_ctx, m->u.progress.done_bytes,
                            m->u.progress.total_bytes);
        break;
    case LG_LINK_READY:
        if (m->u.ready.info.n_ctx > MAX_CTX)
            return LG_FAIL(err, LG_E_UNSUPPORTED, "context of %u tokens; at most %d are served",
                           m->u.ready.info.n_ctx, MAX_CTX);
        on_ready(s, &m->u.ready);
        break;
    case LG_LINK_STATS: s->stats = m->u.stats; break;
    case LG_LINK_TOKEN:
    case LG_LINK_DONE: on_event(s, m); break;
    case LG_LINK_REFUSED:
        f = flight_find(s, m->id);
        if (f) flight_lose(s, f, LG_LOST_REFUSED, m->u.why.status, m->u.why.text);
        break;
    default:
        return LG_FAIL(err, LG_E_FORMAT, "link: a gateway does not take frames of kind %d",
                       (int)m->kind);
    }
    return LG_OK;
}

static void on_readable(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_super *s = ctx;
    lg_status st = lg_link_client_read(&s->link);
    s->heard_us = lg_clock_us();
    if (st == LG_AGAIN) return;
    if (st == LG_OK) {
        lg_link_msg m;
        while ((st = lg_link_next(&s->link.reader, &m, &s->bye)) == LG_OK)
            if (on_frame(s, &m, &s->bye) != LG_OK) break;
        if (st == LG_AGAIN) {
            if (s->link.out.len_bytes) write_link(s);
            return;
        }
    }
    worker_lost(s);
}

static void on_writable(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    write_link(ctx);
}

/* ---- Starting ---- */

static void free_io_events(lg_super *s) {
    if (s->on_read) event_free(s->on_read);
    if (s->on_write) event_free(s->on_write);
    s->on_read = s->on_write = NULL;
}

/* The worker's socket is there. */
static lg_status watch_link(lg_super *s, lg_err *err) {
    s->on_read = event_new(s->base, s->link.fd, EV_READ | EV_PERSIST, on_readable, s);
    s->on_write = event_new(s->base, s->link.fd, EV_WRITE, on_writable, s);
    if (!s->on_read || !s->on_write || event_add(s->on_read, NULL) != 0)
        return LG_FAIL(err, LG_E_NOMEM, "no memory for the worker's events");
    return LG_OK;
}

/* A launcher was started: look whether its worker has connected. */
static void on_connect(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    lg_super *s = ctx;
    lg_status st = lg_link_client_accept(&s->link);
    if (st == LG_OK) st = watch_link(s, &s->bye);
    if (st == LG_AGAIN)
        add_timer(s->on_connect, CONNECT_US);
    else if (st != LG_OK)
        worker_lost(s);
}

static lg_status spawn(lg_super *s, lg_err *err) {
    free_io_events(s);
    s->bye = (lg_err){0};
    s->hello_seen = false;
    LG_TRY(lg_link_client_spawn(&s->link, s->opt.worker_argv, err));
    if (s->link.fd >= 0) return watch_link(s, err);
    add_timer(s->on_connect, CONNECT_US);
    return LG_OK;
}

static void start_worker(lg_super *s) {
    lg_err err;
    s->n_restart++;
    if (spawn(s, &err) == LG_OK) {
        s->state = LG_SUPER_LOADING;
        return;
    }
    lg_diag_log(LG_LOG_ERROR, "cannot start a worker: %s", err.msg);
    lg_link_client_stop(&s->link, 0, NULL);
    add_timer(s->on_restart, (uint64_t)BACKOFF_MAX_MS * 1000);
}

static void on_restart(evutil_socket_t fd, short what, void *ctx) {
    (void)fd;
    (void)what;
    start_worker(ctx);
}

lg_status lg_supervise_open(struct event_base *base, const lg_super_opt *opt, lg_super **sup,
                            lg_err *err) {
    lg_super *s = lg_mem_alloc(sizeof *s);
    if (!s) return LG_FAIL(err, LG_E_NOMEM, "no memory for the supervisor");
    lg_status st;
    s->base = base;
    s->opt = *opt;
    s->link.fd = s->link.listen_fd = -1;
    s->on_restart = evtimer_new(base, on_restart, s);
    s->on_deadline = evtimer_new(base, on_deadline, s);
    s->on_release = event_new(base, -1, 0, release, s);
    s->on_watch = evtimer_new(base, on_watch, s);
    s->on_connect = evtimer_new(base, on_connect, s);
    if (!s->on_connect || !s->on_restart || !s->on_deadline || !s->on_release || !s->on_watch) {
        st = LG_FAIL(err, LG_E_NOMEM, "no memory for the supervisor");
        goto fail;
    }
    LG_TRY_GOTO(lg_link_tokenizer_hash(opt->model_path, &s->tokenizer_hash, err), st, fail);
    LG_TRY_GOTO(spawn(s, err), st, fail);
    if (opt->silent_us) add_timer(s->on_watch, opt->silent_us / 4);
    *sup = s;
    return LG_OK;
fail:
    lg_supervise_close(&s);
    return st;
}

void lg_supervise_close(lg_super **sup) {
    lg_super *s = *sup;
    if (!s) return;
    while (s->first) flight_free(s, s->first);
    lg_link_client_stop(&s->link, 2000000, NULL);
    lg_link_client_fini(&s->link);
    free_io_events(s);
    if (s->on_connect) event_free(s->on_connect);
    if (s->on_restart) event_free(s->on_restart);
    if (s->on_deadline) event_free(s->on_deadline);
    if (s->on_release) event_free(s->on_release);
    if (s->on_watch) event_free(s->on_watch);
    LG_FREE(*sup);
}

/* ---- Requests ---- */

static uint64_t draw_seed(void) {
    uint64_t v = lg_clock_us();
    if (getrandom(&v, sizeof v, 0) != (ssize_t)sizeof v)
        lg_diag_log(LG_LOG_WARN, "getrandom gave nothing; the seed is the clock");
    return v;
}

/* A client may have so many times what is left for all others: one alone gets most of the room, and there is always some. */
static bool may_enter(const lg_super *s, uint64_t client) {
    uint32_t n_own = 0, n_free = s->opt.max_flight - s->n_flight;
    if (client == 0) return true;
    for (const lg_flight *f = s->first; f; f = f->next) n_own += f->req.client == client;
    return n_own < CLIENT_SHARE * n_free;
}

lg_status lg_supervise_submit(lg_super *s, const lg_request *req, lg_flight_fn *fn, void *ctx,
                              lg_flight **flight) {
    size_t stop_bytes = 0;
    for (uint32_t i = 0; i < req->n_stop; i++) stop_bytes += strlen(req->stop[i]);
    if (req->n_id == 0 || req->n_id > MAX_CTX || req->n_bias > LG_LINK_MAX_BIAS ||
        req->n_stop > LG_LINK_MAX_STOP || stop_bytes > MAX_STOP_BYTES || req->n_produced ||
        (req->grammar && strlen(req->grammar) > LG_GRAMMAR_MAX_BYTES))
        return LG_E_ARG;
    if (!s->started || s->expired) return LG_E_COMM;
    if (s->n_flight >= s->opt.max_flight || !may_enter(s, req->client) ||
        s->link.out.len_bytes > OUT_MAX_BYTES)
        return LG_AGAIN;
    lg_flight *f = lg_mem_alloc(sizeof *f);
    uint32_t cap = req->n_id + 64;
    uint32_t *ids = lg_mem_calloc(cap, sizeof *ids);
    if (!f || !ids) {
        lg_mem_free(f);
        lg_mem_free(ids);
        return LG_E_NOMEM;
    }
    memcpy(ids, req->ids, req->n_id * sizeof *ids);
    f->req = *req;
    f->req.ids = f->ids = ids;
    f->cap_id = cap;
    f->fn = fn;
    f->ctx = ctx;
    if (!f->req.params.has_seed) {
        f->req.params.has_seed = true;
        f->req.params.seed = draw_seed();
    }
    f->group = INT64_MAX; /* after all suspects */
    f->prev = s->last;
    *(s->last ? &s->last->next : &s->first) = f;
    s->last = f;
    s->n_flight++;
    event_active(s->on_release, EV_TIMEOUT, 0);
    *flight = f;
    return LG_OK;
}

void lg_supervise_cancel(lg_super *s, lg_flight *f) {
    if (f->state == SENT && s->state == LG_SUPER_READY) {
        lg_link_put_cancel(&s->link.out, f->id);
        write_link(s);
    }
    flight_free(s, f);
}

lg_super_state lg_supervise_get_state(const lg_super *s) {
    return s->state;
}

uint64_t lg_supervise_n_restart(const lg_super *s) {
    return s->n_restart;
}

void lg_supervise_count(const lg_super *s, uint32_t *n_sent, uint32_t *n_held) {
    *n_sent = *n_held = 0;
    for (const lg_flight *f = s->first; f; f = f->next)
        (*(f->state == SENT ? n_sent : n_held))++;
}

const lg_stats *lg_supervise_stats(lg_super *s) {
    s->sum = s->stats;
    add_counters(&s->sum, &s->past);
    return &s->sum;
}

const lg_info *lg_supervise_info(const lg_super *s) {
    return &s->info;
}
