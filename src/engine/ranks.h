/* ranks.h - opening one model on all ranks of a group.
 *
 *   join    every process: MPI, which rank am I, my share of this machine's processors
 *   lg_open with opt->ranks on rank 0;  lg_ranks_serve on the others, until rank 0 closes its engine
 *   leave
 *
 * Everything between is agreed upon: in each stage every rank reports to rank 0, which compares and answers all with one
 * verdict, so that what is wrong on one rank ends all of them with its message.  The stages: same program, same shapes ->
 * placement -> memory -> weights loaded, checksums of every expert and of everything else -> the engine's sizes.
 * Thread: engine.  Test: tests/unit/test_ranks.c, tests/e2e/test_ranks.py */
#ifndef LG_ENGINE_RANKS_H
#define LG_ENGINE_RANKS_H

#include "dist/dist.h"
#include "engine/engine.h"

typedef struct lg_ranks_opt {
    uint64_t
        timeout_us; /* longest wait for another rank inside a step; 0: LG_RANKS_TIMEOUT_US */
    uint32_t
        n_extra; /* experts a rank may hold in a layer beyond its share, for replicas of hot ones */
    const char *
        load_path; /* how often each expert is chosen (JSON, docs/DISTRIBUTED.md); NULL: all alike */
    const char *
        load_out_path; /* rank 0 writes there at the end how often each was chosen; NULL: nothing */
    lg_exchange_how how; /* links are measured */
    uint32_t
        hold_steps; /* a prompt waits so many steps, at most, for others to begin with (engine.h) */
    const char *
        trace_path; /* rank 0 writes there at the end what all ranks did (trace.h); NULL: nothing */
} lg_ranks_opt;

#define LG_RANKS_HOLD_STEPS 8
#define LG_RANKS_TIMEOUT_US (8 * 1000000)

typedef struct lg_ranks {
    lg_comm comm;
    lg_ranks_opt opt;
    uint32_t n_local; /* ranks on this machine */
    lg_place place;
    lg_dist dist;
    lg_window
        window; /* instead of the arena's memory for what the ranks of a machine read of each other */
} lg_ranks;

/* Collective.  Join the group that a launcher started; the process runs on its share of the machine's processors from here
 * on.  opt is copied, its texts are borrowed.  LG_E_UNSUPPORTED without the MPI module, LG_E_COMM, LG_E_NOMEM. */
lg_status lg_ranks_join(const lg_ranks_opt *opt, lg_ranks **ranks, lg_err *err);

/* The same over a comm that is there already, which is taken over: for tests. */
lg_status lg_ranks_join_comm(const lg_comm *comm, const lg_ranks_opt *opt, lg_ranks **ranks,
                             lg_err *err);

/* Leave: after lg_close on rank 0, after lg_ranks_serve on the others.  When something went wrong (or `abort`) all ranks end
 * at once, this process too. */
void lg_ranks_leave(lg_ranks **ranks, bool abort);

/* What lg_open (rank 0) and lg_ranks_serve share: everything before the engine.  Collective.  The caller owns *w; b
 * becomes the sizes that all ranks take.  n_token: ids of the tokenizer, rank 0's say. */
lg_status lg_ranks_load(lg_ranks *r, const lg_options *opt, lg_pool *pool, uint32_t n_token,
                        lg_weights **w, lg_budget *b, lg_err *err);

/* Threads of a rank that was not told: its share of the machine. */
int lg_ranks_n_thread(const lg_ranks *r);

/* Ranks above 0.  LG_OK when rank 0 has closed its engine. */
lg_status lg_ranks_serve(lg_ranks *r, const lg_options *opt, lg_err *err);

/* The ops of a backend over ranks. */
const lg_backend_ops *lg_ranks_ops(void);

#endif
