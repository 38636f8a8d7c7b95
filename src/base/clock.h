/* clock.h - monotonic time. */
#ifndef LG_BASE_CLOCK_H
#define LG_BASE_CLOCK_H

#include <stdint.h>

/* Microseconds of a monotonic clock with an arbitrary start. */
uint64_t lg_clock_us(void);

/* The same clock in nanoseconds. */
uint64_t lg_clock_ns(void);

/* Sleep for about n_us microseconds. */
void lg_clock_sleep_us(uint64_t n_us);

#endif
