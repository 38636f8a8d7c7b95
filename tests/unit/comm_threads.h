/* comm_threads.h - ranks that are threads of one process, for tests: a carrier of comm.h over mailboxes.
 *
 * Messages are copied when they are sent.  A world can lose a rank (its messages stay away) and mix up the times at which
 * messages appear. */
#ifndef LG_TEST_COMM_THREADS_H
#define LG_TEST_COMM_THREADS_H

#include "dist/comm.h"

typedef struct comm_world comm_world;

/* A world of n_rank ranks on n_node machines (in equal runs; n_rank a multiple).  jitter: a message is seen only after up to so
 * many tests of it. */
comm_world *comm_threads_open(uint32_t n_rank, uint32_t n_node, uint32_t jitter);
void comm_threads_close(comm_world *w);

/* The comm of one rank. */
void comm_threads_join(comm_world *w, uint32_t rank, lg_comm *c);

/* Messages of this rank are dropped from now on. */
void comm_threads_mute(comm_world *w, uint32_t rank);

/* Run body(ctx, rank) on a thread for each rank; returns when all have. */
void comm_threads_run(uint32_t n_rank, void (*body)(void *ctx, uint32_t rank), void *ctx);

#endif
