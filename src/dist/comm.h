/* comm.h - messages between the ranks of a group.
 *
 * Point to point, without blocking, in order between two ranks for one tag; what is collective is built of them in
 * exchange.c and backend/group, so that every byte is counted here.  What carries the messages is behind lg_comm_ops:
 * nothing (a rank alone), MPI (comm_mpi.c, its own shared object, so that this program neither needs nor starts MPI unless
 * it is asked for), or threads of one process (tests/unit/comm_threads.c).
 *
 * Waiting: a short spin, then sleeps that grow, so that an idle rank costs next to nothing.  MPI over TCP moves only when it
 * is called, so whoever has work to do while messages fly calls lg_comm_poll between pieces of it.
 * A peer that does not answer within timeout_us, or an error of the carrier, makes the comm lost: every later call returns
 * LG_E_COMM at once, and comm->why says what was waited for.
 * Thread: one, the engine's (MPI_THREAD_FUNNELED).  Memory: the carrier's.  Test: tests/unit/test_exchange.c, tests/e2e/test_ranks.py */
#ifndef LG_DIST_COMM_H
#define LG_DIST_COMM_H

#include "base/diag.h"
#include "dist/trace.h"

#define LG_MAX_RANK 256

typedef struct lg_window lg_window; /* window.h */

/* A message under way.  Caller's storage, zero when there is none. */
typedef struct lg_comm_req {
    void *handle; /* the carrier's */
    bool active;
    uint32_t peer;
    size_t n_bytes; /* of a finished receive: what came */
} lg_comm_req;

/* A carrier.  It returns LG_OK or LG_E_COMM. */
typedef struct lg_comm_ops {
    lg_status (*send)(void *impl, uint32_t to, int tag, const void *buf, size_t n_bytes,
                      lg_comm_req *req);
    lg_status (*recv)(void *impl, uint32_t from, int tag, void *buf, size_t cap_bytes,
                      lg_comm_req *req);
    /* Move messages; *done when this one is over (req->n_bytes set), and its handle gone. */
    lg_status (*test)(void *impl, lg_comm_req *req, bool *done);
    /* The library's own sum, for comparison: rank r gets the sum over ranks of its part, n_float[r] of x.  May be NULL. */
    lg_status (*reduce_scatter)(void *impl, const float *x, float *y, const uint32_t *n_float);
    /* Leave; with `abort` end all ranks at once, this one too. */
    void (*close)(void *impl, bool abort);
    /* Somebody waits, nothing has come: the carrier's own way to let time pass.  NULL: spin, then sleep. */
    void (*pause)(void *impl);
    /* Move all messages, also those that nobody tests now: whoever waits for shared memory may have sent what others need before
     * they write there.  NULL: messages move by themselves. */
    lg_status (*progress)(void *impl);
} lg_comm_ops;

typedef struct lg_comm {
    const lg_comm_ops *ops;
    void *impl;
    uint32_t rank, n_rank;
    uint32_t node
        [LG_MAX_RANK]; /* machine of each rank, 0 .. n_node - 1, in order of first appearance */
    uint32_t n_node;
    uint64_t timeout_us; /* longest wait for a peer inside a step; 0: none */
    /* for messages about a lost peer */
    const char *what; /* the collective under way */
    uint32_t layer;
    uint64_t step;
    bool lost;
    char why[160];
    uint64_t sent_bytes, n_sent; /* counted since open */
    lg_trace *trace;             /* borrowed; NULL: nothing is noted */
    lg_window *window;           /* borrowed; NULL: messages inside the machine too */
} lg_comm;

/* A rank alone.  No message can be sent. */
void lg_comm_self(lg_comm *c);

/* Join the group that mpirun (or another launcher of the library) started, through the module.  LG_E_UNSUPPORTED when this
 * build or machine has no module, naming where it was looked for; LG_E_COMM when MPI does not start. */
lg_status lg_comm_mpi(lg_comm *c, lg_err *err);

/* Leave the group: all ranks must.  A lost comm ends all ranks, this process too. */
void lg_comm_close(lg_comm *c);

/* Name the collective that follows. */
static inline void lg_comm_at(lg_comm *c, const char *what, uint32_t layer) {
    c->what = what;
    c->layer = layer;
}

/* Start a message.  LG_OK or LG_E_COMM. */
lg_status lg_comm_send(lg_comm *c, uint32_t to, int tag, const void *buf, size_t n_bytes,
                       lg_comm_req *req);
lg_status lg_comm_recv(lg_comm *c, uint32_t from, int tag, void *buf, size_t cap_bytes,
                       lg_comm_req *req);

/* Move messages for a moment; *done when none of n is active any more. */
lg_status lg_comm_poll(lg_comm *c, lg_comm_req *req, uint32_t n, bool *done);

/* Wait for all of n.  Inside a step; LG_E_COMM after timeout_us. */
lg_status lg_comm_wait(lg_comm *c, lg_comm_req *req, uint32_t n);

/* A wait that its caller polls himself: call lg_comm_pause whenever nothing was done, starting with a zeroed struct.  Spins,
 * then sleeps; LG_E_COMM after timeout_us, naming the peers of req.  Messages move meanwhile. */
typedef struct lg_comm_patience {
    uint64_t start_us, nap_us; /* 0: begins now */
} lg_comm_patience;
lg_status lg_comm_pause(lg_comm *c, lg_comm_patience *p, const lg_comm_req *req, uint32_t n);

/* Wait for one without a limit of time: between steps, with longer sleeps. */
lg_status lg_comm_wait_idle(lg_comm *c, lg_comm_req *req);

/* The comm is lost for a reason of the caller's.  Returns LG_E_COMM. */
lg_status lg_comm_lose(lg_comm *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- the module ---- */

#define LG_COMM_MODULE_VERSION 3u

/* Its one symbol, lg_comm_entry: version first.  open fills everything but timeout_us; text: cap bytes for what went
 * wrong. */
typedef struct lg_comm_module {
    uint32_t version;
    size_t comm_bytes; /* sizeof(lg_comm): both sides mean the same struct */
    lg_status (*open)(lg_comm *c, char *text, size_t cap_bytes);
} lg_comm_module;

#endif
