/* peak.h - what this processor can do at most: reading memory, and products a second.
 *
 * Figures are of the calling thread and its processor time; 0 where a loop is not known for this processor (all but x86-64 with
 * AVX2).  A multiply-add is one.  What kernels reach is told as a share of these: docs/KERNELS.md, docs/PLAN.md. */
#ifndef LG_KERN_PEAK_H
#define LG_KERN_PEAK_H

#include "base/pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read memory once, as lg_peak_stream_gbs does; n_bytes a multiple of 128, p of 32. */
void lg_peak_read(const uint8_t *p, size_t n_bytes);

double lg_peak_stream_gbs(size_t n_bytes); /* reading n_bytes of memory several times, GB/s */
double lg_peak_fma_gmacs(void);            /* float products on 256 bits, GMAC/s */
double lg_peak_fma512_gmacs(void);         /* and on 512 bits */
double lg_peak_int8_gmacs(void); /* byte products by vpmaddubsw, vpmaddwd, vpaddd on 256 bits */
double lg_peak_vnni_gmacs(void); /* byte products by vpdpbusd on 512 bits */
double lg_peak_amx_gmacs(void);  /* byte products of tiles, on random bytes */

/* All threads of a pool together, each busy at the same time. */
typedef struct lg_peak {
    int n_thread;
    double stream_gbs, fma_gmacs, fma512_gmacs, int8_gmacs, vnni_gmacs, amx_gmacs;
} lg_peak;

/* About two seconds.  pool NULL: the caller alone.  false: no memory, or nothing is known for this processor. */
bool lg_peak_measure(lg_pool *pool, lg_peak *peak);

/* The loop that a level's kernels (lg_kern.name) are made of: float products, and products of bytes. */
double lg_peak_float(const lg_peak *p, const char *level);
double lg_peak_integer(const lg_peak *p, const char *level);

#endif
