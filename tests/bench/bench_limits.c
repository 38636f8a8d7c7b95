/* bench_limits.c - what this machine can do at most with N threads at once, as one JSON object: tools/bench.py divides by it.
 *
 * usage: bench_limits N
 * All threads run the same measure at the same time; their figures are added. */
#include "limits.h"

#include "base/base.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    double (*measure)(void);
} limits[] = {{"stream_gbs", limits_stream_gbs},
              {"fma_gmacs", limits_fma_gmacs},
              {"int8_gmacs", limits_int8_gmacs},
              {"int8_vnni_gmacs", limits_vnni_gmacs},
              {"int8_amx_gmacs", limits_amx_gmacs}};

typedef struct worker {
    pthread_t id;
    pthread_barrier_t *start;
    double figure[LG_COUNT(limits)];
} worker;

static void *run(void *arg) {
    worker *w = arg;
    for (size_t i = 0; i < LG_COUNT(limits); i++) {
        pthread_barrier_wait(w->start);
        w->figure[i] = limits[i].measure();
    }
    return NULL;
}

int main(int argc, char **argv) {
    char *end = NULL;
    long n = argc == 2 ? strtol(argv[1], &end, 10) : 0;
    if (n < 1 || n > 1024 || *end) {
        fputs("usage: bench_limits THREADS (1 to 1024)\n", stderr);
        return 2;
    }
    worker *w = lg_mem_calloc((size_t)n, sizeof *w);
    pthread_barrier_t start;
    LG_ASSERT(w && pthread_barrier_init(&start, NULL, (unsigned)n) == 0);
    for (long t = 0; t < n; t++) {
        w[t].start = &start;
        LG_ASSERT(pthread_create(&w[t].id, NULL, run, &w[t]) == 0);
    }
    for (long t = 0; t < n; t++) pthread_join(w[t].id, NULL);
    printf("{\"threads\":%ld", n);
    for (size_t i = 0; i < LG_COUNT(limits); i++) {
        double sum = 0;
        for (long t = 0; t < n; t++) sum += w[t].figure[i];
        printf(",\"%s\":%.1f", limits[i].name, sum);
    }
    puts("}");
    pthread_barrier_destroy(&start);
    lg_mem_free(w);
    return 0;
}
