/* qwide_vnni.h - a group of 16 blocks (kern/qlayout.h) as unsigned bytes, for vpdpbusd and whatever else multiplies bytes.
 *
 * A weight is its byte less an offset that belongs to the type: what the offset adds to a sum, offset x sum of the row's
 * numbers, is known from the row alone.  [4 k][16 channels][4]: one load gives four input channels of a whole panel.
 * Integers are those of lg_qsplit_block.  Test: tests/unit/test_qgemm.c */
#ifndef LG_KERN_AVX512_QWIDE_VNNI_H
#define LG_KERN_AVX512_QWIDE_VNNI_H

#include "kern/kern.h"

#define VW_PART 8 /* groups of 32 that are widened together */

/* 256 input channels of a panel: weight = (w - offset) x scale (where there are scales), times d, less min x m. */
typedef struct lg_vwide {
    _Alignas(64) uint8_t w[LG_MAX_BLOCK / 4][LG_NR][4];
    _Alignas(64) int32_t scale
        [16]
        [LG_NR]; /* of a run, low 16 bits: Q6_K 16 runs, Q4_K Q5_K 8; IQ4_XS 8, 32 bits; in w for Q2_K, Q3_K */
    _Alignas(64) int16_t pair[8][LG_NR][2]; /* mins of two runs of 32; Q2_K: of 16 */
    _Alignas(64) float d[VW_PART][LG_NR], m[VW_PART][LG_NR];
} lg_vwide;

/* Widen one group of 256, or of 32 as part 0 .. VW_PART - 1, or of 128 as four parts from that one on. */
typedef void lg_vwiden_fn(const uint8_t *group, lg_vwide *t, int part);

/* For a type that is lg_dtype_is_int. */
lg_vwiden_fn *lg_vwiden(lg_dtype type);
int lg_vwide_offset(lg_dtype type);

#endif
