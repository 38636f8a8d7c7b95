/* gdn_plain.h - Gated DeltaNet as MODEL.md, section 5, defines it, one row at a time, in double: what kernels are held against. */
#ifndef LG_TESTS_GDN_PLAIN_H
#define LG_TESTS_GDN_PLAIN_H

#include <stdint.h>

#define GDN_D 128

/* Weights of one layer; R = 2 nk + nv rows of GDN_D. */
typedef struct gdn_plain {
    uint32_t nk, nv;
    const float *conv_w;     /* [4][R][D] */
    const float *neg_a, *dt; /* [nv] */
} gdn_plain;

/* qkv [R][D], a, b [nv]; conv [3][R][D] and state [nv][D][D] are brought forward; o [nv][D]. */
void gdn_plain_row(const gdn_plain *g, const float *qkv, const float *a, const float *b,
                   float *conv, double *state, float *o);

#endif
