/* limits.h - what this machine can do at most on the calling thread; 0 where it is not known.  Processor time. */
#ifndef LG_BENCH_LIMITS_H
#define LG_BENCH_LIMITS_H

double limits_stream_gbs(void); /* reading memory, GB/s */
double limits_fma_gmacs(void);  /* float products, GMAC/s */
double limits_int8_gmacs(void); /* byte products by vpmaddubsw, vpmaddwd, vpaddd */
double limits_vnni_gmacs(void); /* byte products by vpdpbusd on 512 bits */

#endif
