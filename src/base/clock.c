/* clock.c - monotonic time: see clock.h. */
#include "base/clock.h"

#include <time.h>

uint64_t lg_clock_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

uint64_t lg_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void lg_clock_sleep_us(uint64_t n_us) {
    struct timespec t = {.tv_sec = (time_t)(n_us / 1000000u),
                         .tv_nsec = (long)(n_us % 1000000u) * 1000};
    nanosleep(&t, NULL);
}
