/* dequant_iq.c - blocks of 256 elements that are rows of a code book with signs, to float.  Contract: kern/dequant.h.
 *
 * Eight elements (or two times four) share an index and a byte of signs.  Where signs have seven bits, the eighth makes their
 * number even.  Thread: any.  Memory: none.  Test: tests/unit/test_dequant.c */
#include "kern/dequant.h"

#include "base/num.h"
#include "kern/ref/dequant_grid.h"

static const float value2[4] = {8, 25, 43, 0}; /* IQ2 */
static const float value3[8] = {4,  12, 20, 28,
                                36, 44, 52, 62}; /* IQ3_XXS; IQ3_S is 1, 3 .. 15 */

static float f16_at(const uint8_t *p) {
    return lg_num_f16(lg_num_load16(p));
}

static unsigned even_signs(unsigned seven) {
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

static int nibble(const uint8_t *p, int i) {
    return p[i / 2] >> i % 2 * 4 & 15;
}

static void put8(float d, unsigned row, unsigned signs, float *y) {
    for (int i = 0; i < 8; i++)
        y[i] = d * value2[row >> 2 * i & 3] * (signs >> i & 1 ? -1.0f : 1.0f);
}

/* [d][8 x (4 indices, 4 x 7 signs + 4 bits of scale)] */
void lg_dequant_iq2_xxs(const uint8_t *b, float *y) {
    for (int run = 0; run < 8; run++) {
        const uint8_t *q = b + 2 + 8 * run;
        uint32_t s = lg_num_load32(q + 4);
        float d = f16_at(b) * (0.5f + (float)(s >> 28)) * 0.25f;
        for (int g = 0; g < 4; g++)
            put8(d, grid_iq2_xxs[q[g]], even_signs(s >> 7 * g & 127), y + 32 * run + 8 * g);
    }
}

/* [d][32 x (9 bits of index, 7 signs)][16 scales] */
void lg_dequant_iq2_xs(const uint8_t *b, float *y) {
    for (int g = 0; g < 32; g++) {
        unsigned q = lg_num_load16(b + 2 + 2 * g);
        float d = f16_at(b) * (0.5f + (float)nibble(b + 66, g / 2)) * 0.25f;
        put8(d, grid_iq2_xs[q & 511], even_signs(q >> 9), y + 8 * g);
    }
}

/* [d][32 indices][32 x 8 signs][32 x 2 high bits][16 scales] */
void lg_dequant_iq2_s(const uint8_t *b, float *y) {
    for (int g = 0; g < 32; g++) {
        unsigned q = b[2 + g] | (b[66 + g / 4] >> g % 4 * 2 & 3u) << 8;
        float d = f16_at(b) * (0.5f + (float)nibble(b + 74, g / 2)) * 0.25f;
        put8(d, grid_iq2_s[q], b[34 + g], y + 8 * g);
    }
}

/* [d][64 indices of four][8 x (4 x 7 signs + 4 bits of scale)] */
void lg_dequant_iq3_xxs(const uint8_t *b, float *y) {
    for (int k = 0; k < 256; k++) {
        uint32_t s = lg_num_load32(b + 66 + k / 32 * 4);
        float d = f16_at(b) * (0.5f + (float)(s >> 28)) * 0.5f;
        float v = value3[grid_iq3_xxs[b[2 + k / 4]] >> k % 4 * 4 & 7];
        unsigned signs = even_signs(s >> k / 8 % 4 * 7 & 127);
        y[k] = d * v * (signs >> k % 8 & 1 ? -1.0f : 1.0f);
    }
}

/* [d][64 indices of four][64 high bits][32 x 8 signs][8 scales] */
void lg_dequant_iq3_s(const uint8_t *b, float *y) {
    for (int k = 0; k < 256; k++) {
        int h = k / 4;
        unsigned q = b[2 + h] | (b[66 + h / 8] >> h % 8 & 1u) << 8;
        float d = f16_at(b) * (float)(1 + 2 * nibble(b + 106, k / 32));
        float v = (float)(1 + 2 * (grid_iq3_s[q] >> k % 4 * 4 & 7));
        y[k] = d * v * (b[74 + k / 8] >> k % 8 & 1 ? -1.0f : 1.0f);
    }
}

static void put_iq1(float d, unsigned index, bool down, float *y) {
    for (int i = 0; i < 8; i++) {
        float v = (float)(grid_iq1[index] >> 2 * i & 3) - 1.0f;
        y[i] = d * (v + (down ? -0.125f : 0.125f));
    }
}

/* [d][32 indices][8 x (4 x 3 high bits, 3 bits of scale, sign of the shift)] */
void lg_dequant_iq1_s(const uint8_t *b, float *y) {
    for (int g = 0; g < 32; g++) {
        unsigned h = lg_num_load16(b + 34 + g / 4 * 2);
        float d = f16_at(b) * (float)(2 * (h >> 12 & 7) + 1);
        put_iq1(d, b[2 + g] | (h >> g % 4 * 3 & 7) << 8, h >> 15, y + 8 * g);
    }
}

/* [32 indices][32 x (3 high bits, sign of the shift)][4 x (4 scales of 3 bits, 4 bits of d)] */
void lg_dequant_iq1_m(const uint8_t *b, float *y) {
    unsigned half = 0;
    for (int i = 0; i < 4; i++) half |= (lg_num_load16(b + 48 + 2 * i) >> 12 & 15u) << 4 * i;
    for (int g = 0; g < 32; g++) {
        int run = g / 2, h = nibble(b + 32, g);
        unsigned scale = lg_num_load16(b + 48 + run / 4 * 2) >> run % 4 * 3 & 7u;
        float d = lg_num_f16((uint16_t)half) * (float)(2 * scale + 1);
        put_iq1(d, b[g] | (unsigned)(h & 7) << 8, h >> 3, y + 8 * g);
    }
}
