/* quantize.h - floats to stored numbers: the inverse of dequant.h.
 *
 * Every block is a search for the numbers that decode closest to the input, in the sense of
 *     sum over the block of  weight (x - decoded)^2
 * with weight 1 unless the caller knows better (mean squared activations, say).  The method, by type, is in
 * docs/KERNELS.md.  Deterministic: the same input gives the same bytes on every machine.
 * Thread: any.  Memory: stack.  Test: tests/unit/test_quantize.c */
#ifndef LG_KERN_QUANTIZE_H
#define LG_KERN_QUANTIZE_H

#include "kern/kern.h"

#include <stdbool.h>

/* Whether rows can be written as that type. */
bool lg_quantize_has(lg_dtype type);

/* n elements x (all finite) -> a row as it lies in a file, n / block x block bytes at dst, any alignment.  n is a multiple
 * of the type's block; weight [n], each >= 0, or NULL.  The type is one that lg_quantize_has.  What exceeds the largest
 * binary16 becomes that. */
void lg_quantize_row(lg_dtype type, const float *x, size_t n, const float *weight,
                     uint8_t *dst);

/* ---- between ref/quantize_row.c, ref/quantize_fit.c and ref/quantize_k.c ---- */

/* One block. */
typedef void lg_quantize_fn(const float *x, const float *w, uint8_t *block);
lg_quantize_fn lg_quantize_q4_k, lg_quantize_q5_k, lg_quantize_q6_k, lg_quantize_iq4_xs;

/* How numbers stand for integers: x ~ d value, with value in lo ... hi, or of the table of IQ4_NL. */
typedef enum { LG_QUANTIZE_INT, LG_QUANTIZE_IQ4 } lg_quantize_grid;

/* The d that fits best; n is a multiple of 4.  0 when all w x are 0. */
float lg_quantize_fit_scale(const float *x, const float *w, int n, lg_quantize_grid grid,
                            int lo, int hi);

/* The d >= 0 and b that fit x ~ d q + b, q in 0 ... hi, best; b <= 0 when `below`. */
void lg_quantize_fit_affine(const float *x, const float *w, int n, int hi, bool below, float *d,
                            float *b);

/* Nearest values for x ~ d value + b into q[n]: the integers, or the indices into the table.  q may be NULL.  Returns the
 * weighted sum of squared errors. */
float lg_quantize_nearest(const float *x, const float *w, int n, lg_quantize_grid grid, int lo,
                          int hi, float d, float b, int8_t *q);

#endif
