/* bench_ranks.h - what programs that all ranks of a group run and time have in common. */
#ifndef LG_BENCH_RANKS_H
#define LG_BENCH_RANKS_H

#include "dist/comm.h"

extern lg_comm comm; /* of this rank */

/* Ends every rank with the comm's reason unless st is LG_OK. */
void must(lg_status st);

/* Everybody waits for everybody; the largest value comes back. */
double meet(double mine);

/* Sorts x, n > 0 of them. */
double median(double *x, int n);

#endif
