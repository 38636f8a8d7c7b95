/* bench_limits.c - what this machine can do at most with N threads at once, as one JSON object: tools/bench.py divides by it.
 *
 * usage: bench_limits N */
#include "base/pool.h"
#include "kern/peak.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    char *end = NULL;
    long n = argc == 2 ? strtol(argv[1], &end, 10) : 0;
    lg_pool *pool;
    lg_err err = {0};
    lg_peak p;
    if (n < 1 || n > 1024 || *end) {
        fputs("usage: bench_limits THREADS (1 to 1024)\n", stderr);
        return 2;
    }
    if (lg_pool_open((int)n, &pool, &err) != LG_OK) {
        fprintf(stderr, "bench_limits: %s\n", err.msg);
        return 1;
    }
    bool ok = lg_peak_measure(pool, &p);
    lg_pool_close(&pool);
    if (!ok) {
        fputs("bench_limits: no memory, or a processor without AVX2\n", stderr);
        return 1;
    }
    printf("{\"threads\":%ld,\"stream_gbs\":%.1f,\"fma_gmacs\":%.1f,\"int8_gmacs\":%.1f,"
           "\"int8_vnni_gmacs\":%.1f,\"int8_amx_gmacs\":%.1f}\n",
           n, p.stream_gbs, p.fma512_gmacs > 0 ? p.fma512_gmacs : p.fma_gmacs, p.int8_gmacs,
           p.vnni_gmacs, p.amx_gmacs);
    return 0;
}
