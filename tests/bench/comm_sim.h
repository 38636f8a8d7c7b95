/* comm_sim.h - ranks on machines that are not there, for bench_scale: a carrier of comm.h whose messages take the time that a network of
 * given latency and rate would need, on clocks that are numbers.
 *
 * Ranks are threads, of which one runs at a time: the one whose clock is lowest.  Its clock moves when it says that it computes
 * (sim_compute) and when it waits; what the processor of this machine needs for running the code is not counted.  So results do not
 * depend on this machine, nor on what else runs on it.
 * A message inside a machine leaves its rank at the rate `in.bytes_s` after what the rank sent before, one between machines
 * its machine at the rate `out.bytes_s` after what the machine sent before, and comes in at the other machine one after the other
 * at the same rate; both come a latency later.  Sending costs its rank message_s. */
#ifndef LG_BENCH_COMM_SIM_H
#define LG_BENCH_COMM_SIM_H

#include "dist/choose.h"

typedef struct sim sim;

/* n_rank ranks on n_node machines, in equal runs. */
sim *sim_open(uint32_t n_rank, uint32_t n_node, const lg_links *links);
void sim_close(sim *s);

/* The comm of one rank; clocks begin at 0. */
void sim_join(sim *s, uint32_t rank, lg_comm *c);

/* Run body(ctx, rank) for each rank; returns when all have. */
void sim_run(sim *s, void (*body)(void *ctx, uint32_t rank), void *ctx);

/* This rank computes for so long. */
void sim_compute(sim *s, uint32_t rank, double seconds);
double sim_clock(const sim *s, uint32_t rank);

#endif
