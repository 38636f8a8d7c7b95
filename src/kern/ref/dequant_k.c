/* dequant_k.c - blocks of 256 elements to float.  Contract: kern/dequant.h.
 *
 * Elements come in runs of 16 or 32 with an integer scale each, which is multiplied with the block's float first.
 * Thread: any.  Memory: none.  Test: tests/unit/test_dequant.c */
#include "kern/dequant.h"

#include "base/num.h"

static float f16_at(const uint8_t *p) {
    return lg_num_f16(lg_num_load16(p));
}

/* [16 x (scale | min << 4)][64 bytes][d][dmin].  Bytes 32h .. 32h+31 hold, two bits each, the runs of 32 at 128h. */
void lg_dequant_q2_k(const uint8_t *b, float *y) {
    const uint8_t *q = b + 16;
    float d = f16_at(b + 80), dmin = f16_at(b + 82);
    for (int run = 0; run < 16; run++) {
        float dl = d * (float)(b[run] & 15), ml = dmin * (float)(b[run] >> 4);
        int at = run / 8 * 32 + run % 2 * 16, shift = run / 2 % 4 * 2;
        for (int i = 0; i < 16; i++)
            y[run * 16 + i] = dl * (float)(q[at + i] >> shift & 3) - ml;
    }
}

/* Scale of run r (0 .. 15) of Q3_K, six bits: 4 low bits in bytes 0 .. 7, 2 high ones in bytes 8 .. 11. */
static int scale_q3(const uint8_t *s, int run) {
    int low = run < 8 ? s[run] & 15 : s[run - 8] >> 4;
    return (low | (s[8 + run % 4] >> (run / 4 * 2) & 3) << 4) - 32;
}

/* [32 bytes of third bits][64 bytes of two low bits][12 bytes of scales][d]; a third bit that is 0 means -4. */
void lg_dequant_q3_k(const uint8_t *b, float *y) {
    const uint8_t *q = b + 32;
    float d = f16_at(b + 108);
    for (int run = 0; run < 16; run++) {
        float dl = d * (float)scale_q3(b + 96, run);
        int at = run / 8 * 32 + run % 2 * 16, shift = run / 2 % 4 * 2;
        for (int i = 0; i < 16; i++) {
            int high = b[run % 2 * 16 + i] >> (run / 2) & 1;
            int v = (q[at + i] >> shift & 3) - (high ? 0 : 4);
            y[run * 16 + i] = dl * (float)v;
        }
    }
}

/* Scale and min of run r (0 .. 7) of Q4_K and Q5_K, six bits each, in 12 bytes. */
static void scale_min(const uint8_t *s, int run, int *scale, int *min) {
    if (run < 4) {
        *scale = s[run] & 63;
        *min = s[run + 4] & 63;
    } else {
        *scale = (s[run + 4] & 15) | (s[run - 4] >> 6) << 4;
        *min = s[run + 4] >> 4 | (s[run] >> 6) << 4;
    }
}

/* [d][dmin][12 bytes of scales and mins][128 bytes].  Bytes 32p .. 32p+31: runs 2p (low halves) and 2p + 1 (high). */
void lg_dequant_q4_k(const uint8_t *b, float *y) {
    float d = f16_at(b), dmin = f16_at(b + 2);
    for (int run = 0; run < 8; run++) {
        int scale, min;
        scale_min(b + 4, run, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *q = b + 16 + run / 2 * 32;
        for (int i = 0; i < 32; i++)
            y[run * 32 + i] = dl * (float)(q[i] >> run % 2 * 4 & 15) - ml;
    }
}

/* Q4_K with 32 bytes of fifth bits before the others: bit r of byte i belongs to element i of run r. */
void lg_dequant_q5_k(const uint8_t *b, float *y) {
    float d = f16_at(b), dmin = f16_at(b + 2);
    for (int run = 0; run < 8; run++) {
        int scale, min;
        scale_min(b + 4, run, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *q = b + 48 + run / 2 * 32;
        for (int i = 0; i < 32; i++) {
            int v = (q[i] >> run % 2 * 4 & 15) | (b[16 + i] >> run & 1) << 4;
            y[run * 32 + i] = dl * (float)v - ml;
        }
    }
}

/* [128 bytes of four low bits][64 bytes of two high bits][16 signed scales][d].  In each half of 128 elements, the low bits
 * of elements i and i + 64 (i < 64) share byte i, the high bits of i, i + 32, i + 64 and i + 96 (i < 32) byte i. */
void lg_dequant_q6_k(const uint8_t *b, float *y) {
    float d = f16_at(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, at = i % 128;
        int low = b[half * 64 + at % 64] >> at / 64 * 4 & 15;
        int high = b[128 + half * 32 + at % 32] >> at / 32 * 2 & 3;
        float dl = d * (float)(int8_t)b[192 + i / 16];
        y[i] = dl * (float)((low | high << 4) - 32);
    }
}

/* [d][8 x two high bits of the scales][8 x four low bits][128 bytes]: each run of 32 as a block of IQ4_NL. */
void lg_dequant_iq4_xs(const uint8_t *b, float *y) {
    float d = f16_at(b);
    unsigned high = lg_num_load16(b + 2);
    for (int run = 0; run < 8; run++) {
        int scale = (b[4 + run / 2] >> run % 2 * 4 & 15) | (int)(high >> 2 * run & 3) << 4;
        float dl = d * (float)(scale - 32);
        const uint8_t *q = b + 8 + run * 16;
        for (int i = 0; i < 32; i++)
            y[run * 32 + i] = dl * (float)lg_dequant_iq4[i < 16 ? q[i] & 15 : q[i - 16] >> 4];
    }
}
