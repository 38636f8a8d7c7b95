/* pool.h - the thread pool that runs all heavy loops.
 *
 * The caller of lg_pool_run takes part as thread 0.  Workers are pinned to the allowed processors in order (one each,
 * when there are at least as many processors as threads), spin for a part of a millisecond for the next loop, then sleep on a
 * futex-backed condition: an idle process uses no processor time, and a busy machine is yielded to.  Processors are ordered cores first, so
 * hardware threads of one core are shared last.  The caller's own thread is not pinned; the first processor is left to it.
 * Workers block all signals but faults.  Bodies neither allocate nor lock.  Thread: one caller at a time.  Test: tests/unit/test_pool.c */
#ifndef LG_BASE_POOL_H
#define LG_BASE_POOL_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory nodes told apart: threads on others count as on the last of these. */
#define LG_POOL_MAX_NODE 16

typedef struct lg_pool lg_pool;

/* One task of a parallel loop: `task` in [0, n_task), `thread` in [0, lg_pool_n_thread). */
typedef void lg_pool_body(void *ctx, size_t task, int thread);

/* Start a pool of n_thread threads including the caller; 0 = physical cores of the allowed set (a cgroup processor limit
 * counts).  Returns LG_OK; LG_E_NOMEM; LG_E_ARG when n_thread is below 0 or above 1024; LG_E_INTERNAL when a thread does
 * not start.  The caller owns *pool. */
lg_status lg_pool_open(int n_thread, lg_pool **pool, lg_err *err);

/* Stop the threads, free, set *pool to NULL.  NULL is allowed. */
void lg_pool_close(lg_pool **pool);

int lg_pool_n_thread(const lg_pool *pool);

/* Run body for every task; returns when all are done.  Tasks are handed out in ascending order from a shared counter, so
 * put the biggest first.  pool == NULL runs them on the caller.  Which thread runs a task never changes a result. */
void lg_pool_run(lg_pool *pool, size_t n_task, lg_pool_body *body, void *ctx);

/* ---- memory nodes ----
 * Pinned threads are on the node of their processor, the caller on that of the first one; nodes are numbered from 0 in the
 * order of threads.  Threads that are not pinned are all on node 0. */

/* Nodes that the threads are on: at least 1, which it is on most machines and without a pool. */
int lg_pool_n_node(const lg_pool *pool);

/* Where node `node`'s share of n things in a row begins, when each node has as many: it ends where the next one's begins. */
static inline size_t lg_pool_share(size_t n, int node, int n_node) {
    return n * (size_t)node / (size_t)n_node;
}

/* As lg_pool_run, for tasks 0 .. first[lg_pool_n_node]: node k's are [first[k], first[k + 1]), and first[0] is 0.  A thread takes
 * tasks of its own node first, then helps the others.  With own_only workers do not help, for tasks whose point is on which
 * node they run; the caller still does what is left in the end, such as the tasks of a node whose workers are late. */
void lg_pool_run_parts(lg_pool *pool, const size_t *first, bool own_only, lg_pool_body *body,
                       void *ctx);

/* For tasks that read memory one after the other: every thread begins with neighbouring tasks of its own (on a machine of
 * very many, few threads share them) and helps the others when these are done, so that it reads memory in one run, which
 * processors fetch ahead.  n_node 1: first[0] = 0 and first[1] = n_task, as lg_pool_run; else as lg_pool_run_parts. */
void lg_pool_run_streams(lg_pool *pool, int n_node, const size_t *first, lg_pool_body *body,
                         void *ctx);

/* For tests: lg_pool_open with n_thread > 0 threads, where thread t counts as on node node[t] of the system's. */
lg_status lg_pool_open_nodes(int n_thread, const int *node, lg_pool **pool, lg_err *err);

/* Number of threads that `n_thread = 0` means here. */
int lg_pool_default_n_thread(void);

#endif
