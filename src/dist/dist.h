/* dist.h - the map of src/dist: one model over several processes, its ranks.
 *
 *   comm      messages between ranks: nobody else, or MPI by a module that is loaded on demand (comm_mpi.c)
 *   tags      what a message is about
 *   place     which ranks hold which experts
 *   window    memory that the ranks of one machine share
 *   wire      rows as they travel: floats, 16 or 8 bits
 *   choose    what each exchange costs on this network      trace     spans of a step, as a file for viewers
 *   reduce    sums over ranks of rows that each belong to one of them
 *   spread    one sequence over all ranks: rows to heads and back, keys and values, states
 *   slice     few rows of one rank: slices of products from all ranks
 *   exchange  one MoE layer: rows to the ranks of their experts, sums back to the ranks of the rows (alltoall.c: one of its kinds;
 *             shared.c: inside a machine)
 *
 * Requests live on ranks (each rank has the mixers, the shared experts and the head; keys, values and states of its own
 * sequences), routed experts are divided over ranks.  Every rank takes part in every exchange of a step, with or without
 * rows of its own, in the same order.  How the engine drives it: backend/group/group.h.  docs/DISTRIBUTED.md. */
#ifndef LG_DIST_DIST_H
#define LG_DIST_DIST_H

#include "dist/comm.h"
#include "dist/exchange.h"
#include "dist/place.h"
#include "dist/reduce.h"
#include "dist/slice.h"
#include "dist/spread.h"
#include "dist/window.h"

/* What a backend needs to be one rank of a group; all borrowed. */
typedef struct lg_dist {
    lg_comm *comm;
    const lg_place *place;
    lg_exchange_how how;
    uint64_t *
        n_chosen; /* [n_layer][n_expert] rows of this rank that chose each expert, counted up; NULL: not counted */
    uint64_t *
        n_divided; /* rank 0: steps in which a sequence was divided, counted up; NULL: not counted */
    uint64_t *n_sliced; /* and steps that all ranks helped with (slice.h) */
} lg_dist;

#endif
