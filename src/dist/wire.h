/* wire.h - rows of floats as they travel between ranks.
 *
 *     f32    n words, the bits themselves
 *     bf16   two values a word, rounded to nearest even; n / 2 words, rounded up
 *     q8     a scale (float), then four signed bytes a word: round(x / scale), scale = largest |x| / 127
 *
 * A row with a value that is not finite arrives as one: f32 and bf16 keep it, a row of q8 becomes NaN altogether.
 * Words are 4 bytes, in the machine's order: ranks run the same program on the same kind of machine.
 * Largest error of a finite value x: bf16 |x| / 256; q8 scale / 2.  Thread: any.  Test: tests/unit/test_wire.c */
#ifndef LG_DIST_WIRE_H
#define LG_DIST_WIRE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { LG_WIRE_F32, LG_WIRE_BF16, LG_WIRE_Q8 } lg_wire;
#define LG_N_WIRE 3

const char *lg_wire_name(lg_wire w);

/* Words of a row of n values. */
size_t lg_wire_words(lg_wire w, uint32_t n);

/* n_row rows of n values, one after the other on both sides: floats to words, words to floats, and added to floats. */
void lg_wire_put(lg_wire w, const float *x, uint32_t n_row, uint32_t n, uint32_t *to);
void lg_wire_get(lg_wire w, const uint32_t *from, uint32_t n_row, uint32_t n, float *y);
void lg_wire_add(lg_wire w, const uint32_t *from, uint32_t n_row, uint32_t n, float *y);

#endif
