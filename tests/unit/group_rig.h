/* group_rig.h - an engine over ranks that are threads with their own part of the weights, for tests.
 *
 * Requests sample with every parameter there is, share beginnings, come in waves and are cancelled; what is compared is every id and every
 * reported log-probability. */
#ifndef LG_TEST_GROUP_RIG_H
#define LG_TEST_GROUP_RIG_H

#include "comm_threads.h"

#include "backend/group/group.h"
#include "base/num.h"
#include "engine/ranks.h"
#include "model/text/text.h"

#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#define N_REQ    24
#define MAX_NEW  20
#define MAX_RANK 5

typedef struct outcome {
    uint32_t n, id[MAX_NEW];
    float logprob[MAX_NEW];
    lg_top top[MAX_NEW][3];
    uint32_t n_cached;
    bool done;
    lg_finish finish;
} outcome;

typedef struct rig rig;

struct rig {
    char path[600];
    lg_weights *all; /* every expert */
    lg_text *text;
    uint32_t n_rank, n_node;
    int n_thread; /* of each rank; 0: 1 */
    lg_exchange_how how;
    uint64_t seed;
    comm_world *w;
    lg_place place;
    lg_comm comm[MAX_RANK];
    lg_weights *part[MAX_RANK];
    lg_dist dist[MAX_RANK];
    lg_budget budget;
    lg_status status[MAX_RANK];
    lg_err err[MAX_RANK];
    uint64_t n_hit, n_divided, n_sliced;
    lg_status (*lead)(rig *r); /* what rank 0 does; NULL: the requests */
    lg_sampled swapped;
    outcome alone[N_REQ], got[N_REQ]; /* of one process, of the group */
    char dir[64];                     /* kept texts in files; "": none */
    lg_stats stats;
    uint64_t n_read[MAX_RANK]; /* tokens that came from the files of each rank */
    uint32_t n_step;           /* of patterns of idleness */
    uint32_t idle_us;          /* pause between two waves */
};

extern const lg_backend_ops group_cpu; /* a group's are lg_ranks_ops() */

/* A model of the tree; failures end the test, here and below. */
void group_open_model(rig *r, const char *name);
void group_close_model(rig *r);

/* Budget for one process (dist NULL) or a rank. */
void group_fit(rig *r, const lg_dist *dist);

lg_status group_open_engine(rig *r, const lg_weights *w, const lg_backend_ops *ops,
                            uint32_t n_owner, lg_engine **eng, lg_err *err);

/* The requests' outcome of one process: r->alone. */
void group_run_alone(rig *r);

/* Load each rank's part for a random placement with replicas; checksums of all of them must fit it. */
void group_open_ranks(rig *r, uint32_t n_rank, uint64_t seed);
void group_close_ranks(rig *r);

/* One rank of a run, for comm_threads_run. */
void group_rank(void *ctx, uint32_t rank);

/* All ranks to the end, which must be good; rank 0's must be `end`. */
void group_run(rig *r, lg_status end);

/* r->got are the ids and bits of r->alone. */
void group_expect_same(const rig *r);

#endif
