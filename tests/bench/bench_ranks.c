/* bench_ranks.c - see bench_ranks.h. */
#include "bench_ranks.h"

#include <stdio.h>
#include <stdlib.h>

lg_comm comm;

void must(lg_status st) {
    if (st == LG_OK) return;
    fprintf(stderr, "bench: %s\n", comm.why);
    comm.lost = true;
    lg_comm_close(&comm);
    exit(1);
}

double meet(double mine) {
    double all[LG_MAX_RANK], most = mine;
    for (uint32_t k = 1; k < comm.n_rank; k++) {
        lg_comm_req q[2] = {{0}};
        uint32_t to = (comm.rank + k) % comm.n_rank,
                 from = (comm.rank + comm.n_rank - k) % comm.n_rank;
        must(lg_comm_recv(&comm, from, 9, &all[from], sizeof all[0], &q[0]));
        must(lg_comm_send(&comm, to, 9, &mine, sizeof mine, &q[1]));
        must(lg_comm_wait(&comm, q, 2));
        if (all[from] > most) most = all[from];
    }
    return most;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}
