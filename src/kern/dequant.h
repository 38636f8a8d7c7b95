/* dequant.h - stored numbers to float.
 *
 * The float operations of a block type and their order are those of the format's reference, so results have its bits.
 * Thread: any.  Memory: none.  Test: tests/unit/test_dequant.c */
#ifndef LG_KERN_DEQUANT_H
#define LG_KERN_DEQUANT_H

#include "kern/kern.h"

/* n elements of a row of blocks, at any alignment; n is a multiple of the type's block.  LG_E4M3 and LG_NVFP4 without the
 * matrix's scale; not LG_I4_ANY and LG_I8_ANY. */
void lg_dequant_row(lg_dtype type, const uint8_t *src, size_t n, float *y);

/* Input channels [k0, k0 + n_k) of one panel of a block type as y[n_k][16]; k0 and n_k are multiples of LG_MAX_BLOCK, or
 * of the block where that is smaller. */
void lg_dequant_panel(lg_dtype type, const void *panel, uint32_t k0, uint32_t n_k, float *y);

/* The same for panel `panel` of a matrix of any block type, with its tables. */
void lg_dequant_mat(const lg_mat *w, uint32_t panel, uint32_t k0, uint32_t n_k, float *y);

/* One block -> its elements: the decoders behind the above (ref/dequant_k.c, ref/dequant_iq.c, ref/dequant_hf.c). */
typedef void lg_dequant_fn(const uint8_t *block, float *y);
lg_dequant_fn lg_dequant_q2_k, lg_dequant_q3_k, lg_dequant_q4_k, lg_dequant_q5_k,
    lg_dequant_q6_k, lg_dequant_iq4_xs, lg_dequant_iq2_xxs, lg_dequant_iq2_xs, lg_dequant_iq2_s,
    lg_dequant_iq3_xxs, lg_dequant_iq3_s, lg_dequant_iq1_s, lg_dequant_iq1_m, lg_dequant_i4_32,
    lg_dequant_i4_128, lg_dequant_i8_128, lg_dequant_nvfp4;

/* The 16 values of IQ4_NL and IQ4_XS; those of E2M1 (MXFP4), doubled. */
extern const int8_t lg_dequant_iq4[16], lg_dequant_e2m1[16];

/* ---- ref/qsplit.c ---- */

/* A block as integers and two floats: weight_k = d i[k] - m j[k / 16], up to the rounding of the decoders above. */
typedef struct lg_qsplit {
    float d, m; /* m is 0 where the type has none */
    int16_t i[LG_MAX_BLOCK];
    int16_t j[LG_MAX_BLOCK / 16];
} lg_qsplit;

/* Take one file block of an lg_dtype_is_int type apart. */
void lg_qsplit_block(lg_dtype type, const uint8_t *block, lg_qsplit *s);

/* Whether a type has m. */
bool lg_qsplit_has_min(lg_dtype type);

#endif
