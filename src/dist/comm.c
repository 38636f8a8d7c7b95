/* comm.c - waiting, counting and loss around a carrier; loading the MPI module: see comm.h.
 *
 * Policy of a wait: spin SPIN_US, since most messages of a step are there at once; then sleep, a little longer each time.
 * Where ranks share processors the sleep is also what lets the others work.
 * Thread: engine.  Memory: none.  Test: tests/unit/test_exchange.c, tests/e2e/test_ranks.py */
#include "dist/comm.h"

#include "base/clock.h"
#include "lignum_paths.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SPIN_US      40
#define NAP_MIN_US   10
#define NAP_STEP_US  200   /* longest sleep inside a step */
#define NAP_IDLE_US  3000  /* and between steps */
#define NAP_QUIET_US 10000 /* and where nothing has come for long: */
#define QUIET_PART   64    /* a sleep adds at most this part of the wait to it */
#define IDLE_SPIN_US 200

void lg_comm_self(lg_comm *c) {
    *c = (lg_comm){.n_rank = 1, .n_node = 1, .what = ""};
}

lg_status lg_comm_lose(lg_comm *c, const char *fmt, ...) {
    if (c->lost) return LG_E_COMM;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
    c->lost = true;
    lg_diag_log(LG_LOG_ERROR, "rank %u: %s", c->rank, c->why);
    return LG_E_COMM;
}

static lg_status failed(lg_comm *c, const char *act, uint32_t peer) {
    return lg_comm_lose(c, "%s rank %u failed in %s, layer %u, step %llu", act, peer, c->what,
                        c->layer, (unsigned long long)c->step);
}

lg_status lg_comm_send(lg_comm *c, uint32_t to, int tag, const void *buf, size_t n_bytes,
                       lg_comm_req *req) {
    if (c->lost) return LG_E_COMM;
    LG_ASSERT(!req->active && to < c->n_rank && to != c->rank);
    *req = (lg_comm_req){.peer = to};
    if (c->ops->send(c->impl, to, tag, buf, n_bytes, req) != LG_OK)
        return failed(c, "sending to", to);
    req->active = true;
    c->sent_bytes += n_bytes;
    c->n_sent++;
    return LG_OK;
}

lg_status lg_comm_recv(lg_comm *c, uint32_t from, int tag, void *buf, size_t cap_bytes,
                       lg_comm_req *req) {
    if (c->lost) return LG_E_COMM;
    LG_ASSERT(!req->active && from < c->n_rank && from != c->rank);
    *req = (lg_comm_req){.peer = from};
    if (c->ops->recv(c->impl, from, tag, buf, cap_bytes, req) != LG_OK)
        return failed(c, "receiving from", from);
    req->active = true;
    return LG_OK;
}

lg_status lg_comm_poll(lg_comm *c, lg_comm_req *req, uint32_t n, bool *done) {
    *done = true;
    if (c->lost) return LG_E_COMM;
    for (uint32_t i = 0; i < n; i++) {
        bool over = true;
        if (!req[i].active) continue;
        if (c->ops->test(c->impl, &req[i], &over) != LG_OK)
            return failed(c, "a message with", req[i].peer);
        req[i].active = !over;
        if (!over) *done = false;
    }
    return LG_OK;
}

/* Sleeps are as fine as they are asked for, not rounded up to 50 microseconds. */
static void nap(uint64_t *us, uint64_t most) {
    static _Thread_local bool fine;
    if (!fine) prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    fine = true;
    lg_clock_sleep_us(*us);
    *us = *us + *us / 2 + 1;
    if (*us > most) *us = most;
}

/* Which peers are missing, "1, 3". */
static void list_missing(const lg_comm_req *req, uint32_t n, char *text, size_t cap) {
    size_t len = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < n && len + 8 < cap; i++)
        if (req[i].active)
            len +=
                (size_t)snprintf(text + len, cap - len, "%s%u", len ? ", " : "", req[i].peer);
}

lg_status lg_comm_pause(lg_comm *c, lg_comm_patience *p, const lg_comm_req *req, uint32_t n) {
    uint64_t now = lg_clock_us();
    if (p->start_us == 0) *p = (lg_comm_patience){now, NAP_MIN_US};
    uint64_t waited = now - p->start_us;
    if (c->ops->pause) {
        c->ops->pause(c->impl);
        return LG_OK;
    }
    if (c->timeout_us && waited > c->timeout_us) {
        char who[64];
        list_missing(req, n, who, sizeof who);
        return lg_comm_lose(c, "no answer from rank %s for %.1f s in %s, layer %u, step %llu",
                            who, (double)waited * 1e-6, c->what, c->layer,
                            (unsigned long long)c->step);
    }
    if (c->ops->progress && c->ops->progress(c->impl) != LG_OK)
        return lg_comm_lose(c, "messages do not move any more in %s, layer %u, step %llu",
                            c->what, c->layer, (unsigned long long)c->step);
    if (waited >= SPIN_US)
        nap(&p->nap_us, NAP_STEP_US);
    else
        sched_yield(); /* to a rank that shares this processor */
    return LG_OK;
}

lg_status lg_comm_wait(lg_comm *c, lg_comm_req *req, uint32_t n) {
    lg_comm_patience p = {0};
    uint64_t start = lg_trace_now(c->trace);
    for (;;) {
        bool done;
        LG_TRY(lg_comm_poll(c, req, n, &done));
        if (done) {
            lg_trace_add(c->trace, LG_SPAN_WAIT, 0, c->layer, 0, start);
            return LG_OK;
        }
        LG_TRY(lg_comm_pause(c, &p, req, n));
    }
}

lg_status lg_comm_wait_idle(lg_comm *c, lg_comm_req *req) {
    uint64_t start = lg_clock_us(), us = NAP_MIN_US;
    for (;;) {
        bool done;
        LG_TRY(lg_comm_poll(c, req, 1, &done));
        if (done) return LG_OK;
        uint64_t waited = lg_clock_us() - start, most = waited / QUIET_PART;
        if (most < NAP_IDLE_US) most = NAP_IDLE_US;
        if (most > NAP_QUIET_US) most = NAP_QUIET_US;
        if (waited >= IDLE_SPIN_US) nap(&us, most);
    }
}

void lg_comm_close(lg_comm *c) {
    if (c->ops) c->ops->close(c->impl, c->lost);
    c->ops = NULL;
}

/* ---- the module ---- */

/* Where it may be: $LG_MODULE_DIR, the build folder of the program, or where it is installed, found from the program's
 * place so that an installation can be moved. */
static bool module_path(int i, char *path, size_t cap) {
    char exe[1024];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return false;
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (!slash) return false;
    *slash = 0;
    const char *dir = getenv("LG_MODULE_DIR");
    int len = -1;
    if (i == 0 && dir) len = snprintf(path, cap, "%s/lignum-mpi.so", dir);
    if (i == 1) len = snprintf(path, cap, "%s/../src/dist/lignum-mpi.so", exe);
    if (i == 2) len = snprintf(path, cap, "%s/../%s/lignum/lignum-mpi.so", exe, LG_LIBDIR);
    return len > 0 && (size_t)len < cap;
}

lg_status lg_comm_mpi(lg_comm *c, lg_err *err) {
    char path[1200], looked[1200] = "", text[256] = "";
    void *so = NULL;
    lg_comm_self(c);
    for (int i = 0; i < 3 && !so; i++) {
        if (!module_path(i, path, sizeof path)) continue;
        snprintf(looked, sizeof looked, "%.1190s", path);
        if (access(path, F_OK) != 0) continue;
        /* Global: the library loads parts of itself that look for its own symbols. */
        so = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (!so) return LG_FAIL(err, LG_E_UNSUPPORTED, "%s: %s", path, dlerror());
    }
    if (!so)
        return LG_FAIL(err, LG_E_UNSUPPORTED,
                       "%.200s: not there; ranks need the MPI module, which is built where "
                       "Open MPI's headers are (libopenmpi-dev)",
                       looked);
    const lg_comm_module *m = dlsym(so, "lg_comm_entry");
    if (!m || m->version != LG_COMM_MODULE_VERSION || m->comm_bytes != sizeof *c)
        return LG_FAIL(err, LG_E_UNSUPPORTED, "%s: a module of another version", path);
    lg_status st = m->open(c, text, sizeof text);
    if (st != LG_OK) return LG_FAIL(err, st, "MPI: %s", text);
    c->what = "start";
    return LG_OK;
}
