/* limits.h - what this machine can do at most on the calling thread; 0 where it is not known.  Processor time. */
#ifndef LG_BENCH_LIMITS_H
#define LG_BENCH_LIMITS_H

#include <stddef.h>
#include <stdint.h>

/* Read memory once, as limits_stream_gbs does; n_bytes a multiple of 128, p of 32.  Nothing where the limit is not known. */
void limits_read(const uint8_t *p, size_t n_bytes);

double limits_fma512_gmacs(void); /* float products on 512 bits */
double limits_stream_gbs(void);   /* reading memory, GB/s */
double limits_fma_gmacs(void);    /* float products, GMAC/s */
double limits_int8_gmacs(void);   /* byte products by vpmaddubsw, vpmaddwd, vpaddd */
double limits_vnni_gmacs(void);   /* byte products by vpdpbusd on 512 bits */
double limits_amx_gmacs(void);    /* byte products of tiles, on random bytes */

#endif
