/* pool.c - the thread pool: see pool.h.
 *
 * A loop is published by setting OPEN in `state`, whose other bits count the workers inside it.  Workers enter while it is
 * open, the caller closes it once the tasks have run out and waits until nobody is inside.  A worker that wakes too late
 * finds the loop closed, so a short loop never waits for a sleeper.
 * `loop` counts loops: workers watch it for a while, then sleep on it; the caller sleeps on `state`. */
#include "base/pool.h"

#include "base/clock.h"
#include "base/cpus.h"
#include "base/mem.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN 0x80000000u
#define SPIN_US                                                                                \
    100 /* how long a thread watches before it sleeps: longer than one thread works alone in a step */
#define N_MAX   1024 /* threads of a pool */
#define N_PART  64 /* runs of tasks: so many places at most that a thread looks at in the end */
#define LINE    64 /* bytes of a cache line */
#define N_PAUSE 32 /* pauses between two looks at the clock */

typedef struct worker {
    lg_pool *pool;
    pthread_t id;
    int thread; /* 1 .. n_thread - 1 */
    int cpu;    /* processor to stay on, or -1 */
    int node;   /* below n_node */
    int place;  /* among the threads of its node */
} worker;

/* A run of tasks of the open loop: of a node, or of a share of its threads. */
typedef struct part {
    _Alignas(LINE) _Atomic size_t next; /* first one not handed out */
    size_t end;
} part;

struct lg_pool {
    int n_thread, n_started;            /* threads with the caller; workers started */
    int n_node, n_on[LG_POOL_MAX_NODE]; /* nodes, and threads on each */
    uint64_t spin_us;
    lg_pool_body *body; /* of the open loop, with the next four and part */
    void *ctx;
    int n_group; /* n_node, or 1 for tasks that belong to no node */
    int n_run;   /* runs of each: 1, or one for each thread or few of them */
    bool own_only;
    part part[N_PART];                      /* [n_group][n_run] */
    _Alignas(LINE) _Atomic uint32_t state;  /* OPEN | workers inside */
    _Alignas(LINE) _Atomic uint32_t loop;   /* loops published */
    _Alignas(LINE) _Atomic uint32_t n_idle; /* workers about to sleep or asleep */
    _Atomic bool stop;
    worker worker[]; /* [n_thread]; of the caller only node is used */
};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void sleep_on(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Watch *word until it differs from value or the time is over.  Returns whether it differs. */
static bool watch(_Atomic uint32_t *word, uint32_t value, uint64_t spin_us) {
    if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
    if (spin_us == 0) return false;
    uint64_t end = lg_clock_us() + spin_us;
    do {
        for (int i = 0; i < N_PAUSE; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
            relax();
        }
    } while (lg_clock_us() < end);
    return false;
}

static void run_part(lg_pool *p, part *of, int thread) {
    while (atomic_load_explicit(&of->next, memory_order_relaxed) < of->end) {
        size_t task = atomic_fetch_add_explicit(&of->next, 1, memory_order_relaxed);
        if (task >= of->end) return;
        p->body(p->ctx, task, thread);
    }
}

static void run_tasks(lg_pool *p, int thread) {
    const worker *w = &p->worker[thread];
    int own = p->n_group > 1 ? w->node : 0, n = thread && p->own_only ? 1 : p->n_group;
    int run =
        p->n_group > 1 ? w->place * p->n_run / p->n_on[own] : thread * p->n_run / p->n_thread;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < p->n_run; k++)
            run_part(p, &p->part[(own + i) % p->n_group * p->n_run + (run + k) % p->n_run],
                     thread);
}

/* Take part in the open loop, if there is one. */
static void join_loop(lg_pool *p, int thread) {
    uint32_t s = atomic_load_explicit(&p->state, memory_order_relaxed);
    do {
        if (!(s & OPEN)) return;
    } while (!atomic_compare_exchange_weak_explicit(&p->state, &s, s + 1, memory_order_acquire,
                                                    memory_order_relaxed));
    run_tasks(p, thread);
    if (atomic_fetch_sub_explicit(&p->state, 1, memory_order_acq_rel) == 1) wake(&p->state, 1);
}

static void *work(void *arg) {
    worker *w = arg;
    lg_pool *p = w->pool;
    uint32_t seen = 0;
    if (w->cpu >= 0) {
        cpu_set_t set[LG_CPUS_MAX / CPU_SETSIZE];
        memset(set, 0, sizeof set);
        CPU_SET_S((size_t)w->cpu, sizeof set, set);
        sched_setaffinity(0, sizeof set, set);
    }
    for (;;) {
        while (!watch(&p->loop, seen, p->spin_us)) {
            atomic_fetch_add(&p->n_idle, 1);
            if (atomic_load(&p->loop) == seen) sleep_on(&p->loop, seen);
            atomic_fetch_sub(&p->n_idle, 1);
        }
        seen = atomic_load_explicit(&p->loop, memory_order_acquire);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        join_loop(p, w->thread);
    }
}

int lg_pool_default_n_thread(void) {
    int cpu[N_MAX], n_core, limit = lg_cpus_quota();
    lg_cpus_list(cpu, N_MAX, &n_core);
    return limit < n_core ? limit : n_core;
}

/* Start a worker that takes none of the process's signals: they belong to the threads of the program, one of which may hold
 * them back and wait for them (a signal goes to any thread that does not block it).  Faults stay with their thread. */
static int start(worker *w) {
    static const int fault[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t held, before;
    sigfillset(&held);
    for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) sigdelset(&held, fault[i]);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    int rc = pthread_create(&w->id, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* Number the nodes that threads are on; those beyond the last number share it. */
static void number_nodes(lg_pool *p, const int *node) {
    int seen[LG_POOL_MAX_NODE];
    for (int t = 0; t < p->n_thread; t++) {
        int i = 0;
        while (i < p->n_node && seen[i] != node[t]) i++;
        if (i == p->n_node && i < LG_POOL_MAX_NODE) seen[p->n_node++] = node[t];
        p->worker[t].node = i < LG_POOL_MAX_NODE ? i : LG_POOL_MAX_NODE - 1;
        p->worker[t].place = p->n_on[p->worker[t].node]++;
    }
}

static lg_status open_pool(int n_thread, const int *pretended, lg_pool **pool, lg_err *err) {
    *pool = NULL;
    if (n_thread < 0 || n_thread > N_MAX)
        return LG_FAIL(err, LG_E_ARG, "%d threads asked for, expected 0 to %d", n_thread,
                       N_MAX);
    if (n_thread == 0) n_thread = lg_pool_default_n_thread();
    lg_pool *p = lg_mem_alloc(sizeof *p + (size_t)n_thread * sizeof p->worker[0]);
    if (!p) return LG_FAIL(err, LG_E_NOMEM, "no memory for %d threads", n_thread);
    int cpu[N_MAX], node[N_MAX], n_cpu = lg_cpus_list(cpu, N_MAX, NULL);
    bool pin = n_cpu >= n_thread;
    for (int t = 0; t < n_thread; t++) node[t] = pin ? lg_cpus_node(NULL, cpu[t]) : 0;
    p->n_thread = n_thread;
    p->spin_us = pin ? SPIN_US : 0;
    number_nodes(p, pretended ? pretended : node);
    for (int t = 1; t < n_thread; t++) {
        worker *w = &p->worker[t];
        w->pool = p;
        w->thread = t;
        w->cpu = pin ? cpu[t] : -1;
        int rc = start(w);
        if (rc != 0) {
            lg_pool_close(&p);
            return LG_FAIL(err, LG_E_INTERNAL, "thread %d of %d did not start: %s", t, n_thread,
                           strerror(rc));
        }
        p->n_started++;
    }
    *pool = p;
    return LG_OK;
}

lg_status lg_pool_open(int n_thread, lg_pool **pool, lg_err *err) {
    return open_pool(n_thread, NULL, pool, err);
}

lg_status lg_pool_open_nodes(int n_thread, const int *node, lg_pool **pool, lg_err *err) {
    return open_pool(n_thread, node, pool, err);
}

void lg_pool_close(lg_pool **pool) {
    lg_pool *p = *pool;
    if (!p) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->loop, 1);
    wake(&p->loop, INT_MAX);
    for (int t = 1; t <= p->n_started; t++) pthread_join(p->worker[t].id, NULL);
    LG_FREE(*pool);
}

int lg_pool_n_thread(const lg_pool *pool) {
    return pool ? pool->n_thread : 1;
}

int lg_pool_n_node(const lg_pool *pool) {
    return pool ? pool->n_node : 1;
}

/* Close the loop and wait until the last worker has left it. */
static void finish(lg_pool *p) {
    uint32_t s = atomic_fetch_and_explicit(&p->state, ~OPEN, memory_order_acq_rel) & ~OPEN;
    while (s != 0) {
        if (!watch(&p->state, s, p->spin_us)) sleep_on(&p->state, s);
        s = atomic_load_explicit(&p->state, memory_order_acquire);
    }
}

/* Runs that the tasks of each of n_group groups are cut into, so that every thread has one where that is not too many. */
static int n_run_of(const lg_pool *p, int n_group) {
    int most = 0, cap = N_PART / n_group;
    for (int i = 0; i < p->n_node; i++)
        if (p->n_on[i] > most) most = p->n_on[i];
    if (n_group == 1) most = p->n_thread;
    return most < cap ? most : cap;
}

static void run(lg_pool *p, int n_group, const size_t *first, bool own_only, bool stream,
                lg_pool_body *body, void *ctx) {
    size_t n_task = first[n_group];
    if (!p || p->n_thread == 1 || n_task <= 1) {
        for (size_t task = 0; task < n_task; task++) body(ctx, task, 0);
        return;
    }
    p->body = body;
    p->ctx = ctx;
    p->n_group = n_group;
    p->n_run = stream ? n_run_of(p, n_group) : 1;
    p->own_only = own_only;
    for (int i = 0; i < n_group * p->n_run; i++) {
        int g = i / p->n_run, k = i % p->n_run;
        size_t n = first[g + 1] - first[g];
        atomic_store_explicit(&p->part[i].next, first[g] + lg_pool_share(n, k, p->n_run),
                              memory_order_relaxed);
        p->part[i].end = first[g] + lg_pool_share(n, k + 1, p->n_run);
    }
    atomic_store_explicit(&p->state, OPEN, memory_order_release);
    atomic_fetch_add(&p->loop, 1);
    size_t n_idle = atomic_load(&p->n_idle);
    if (n_idle > 0) wake(&p->loop, (int)(n_idle < n_task - 1 ? n_idle : n_task - 1));
    run_tasks(p, 0);
    finish(p);
}

void lg_pool_run(lg_pool *pool, size_t n_task, lg_pool_body *body, void *ctx) {
    const size_t first[] = {0, n_task};
    run(pool, 1, first, false, false, body, ctx);
}

void lg_pool_run_parts(lg_pool *pool, const size_t *first, bool own_only, lg_pool_body *body,
                       void *ctx) {
    run(pool, lg_pool_n_node(pool), first, own_only, false, body, ctx);
}

void lg_pool_run_streams(lg_pool *pool, int n_node, const size_t *first, lg_pool_body *body,
                         void *ctx) {
    LG_ASSERT(n_node == 1 || n_node == lg_pool_n_node(pool));
    run(pool, n_node, first, false, true, body, ctx);
}
