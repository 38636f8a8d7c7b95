/* qlayout.h - how 16 blocks of 16 output channels lie side by side in a panel (a group).
 *
 * A block's bytes are cut into fields; each field of n bytes is stored for all channels as [n / unit][16][unit], so that a
 * vector load gives the same place of many channels.  Bytes keep their values, and a group is as long as 16 blocks:
 *
 *     Q8_0   d [16]x2 bytes | q [16][16][2]
 *     Q4_K   d | dmin | 12 x scales [16] | q [32][16][4]
 *
 * Types without fields here keep whole blocks one after another.  Thread: any.  Test: tests/unit/test_dequant.c */
#ifndef LG_KERN_QLAYOUT_H
#define LG_KERN_QLAYOUT_H

#include "kern/kern.h"

/* Raise it whenever a panel's bytes change for any type: other fields, other panels (kern.h, lg_mat), other numbers in
 * lg_dtype.  Files of packed weights (model/weights/packed.h) with another one are not used. */
#define LG_QLAYOUT_VERSION 1

/* One group from the blocks of n_ch <= 16 channels at src, src + stride, ...; the other channels become zero bytes. */
void lg_qlayout_pack(lg_dtype type, const uint8_t *src, size_t stride, uint32_t n_ch,
                     uint8_t *group);

/* The block of channel c of a group, as in the file. */
void lg_qlayout_block(lg_dtype type, const uint8_t *group, uint32_t c, uint8_t *block);

#define LG_MAX_BLOCK_BYTES 210

#endif
