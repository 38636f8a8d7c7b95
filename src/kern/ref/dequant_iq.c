/* dequant_iq.c - blocks of 256 elements that are rows of a code book with signs, to float.  Contract: kern/dequant.h.
 *
 * Eight elements (or two times four) share an index and a byte of signs.  Where signs have seven bits, the eighth makes their
 * number even.  Thread: any.  Memory: none.  Test: tests/unit/test_dequant.c */
#include "kern/dequant.h"

#include "base/num.h"
#include "kern/ref/dequant_grid.h"

static const float value2[4] = {8, 25, 43, 0};                      /* IQ2 */
static const float value3_xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62}; /* IQ3_XXS */
static const float value3_s[8] = {1, 3, 5, 7, 9, 11, 13, 15};       /* IQ3_S */

static float f16_at(const uint8_t *p) {
    return lg_num_f16(lg_num_load16(p));
}

static unsigned even_signs(unsigned seven) {
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

static int nibble(const uint8_t *p, int i) {
    return p[i / 2] >> i % 2 * 4 & 15;
}

/* The values of elements that share a scale: what an element can be, then the negative of it. */
static void scaled(float d, const float *value, int n, float *t) {
    for (int i = 0; i < n; i++) {
        t[i] = d * value[i];
        t[n + i] = t[i] * -1.0f;
    }
}

static void put8(const float *t, unsigned row, unsigned signs, float *y) {
    for (int i = 0; i < 8; i++) y[i] = t[(row >> 2 * i & 3) | (signs >> i & 1) << 2];
}

static void put4(const float *t, unsigned row, unsigned signs, float *y) {
    for (int i = 0; i < 4; i++) y[i] = t[(row >> 4 * i & 7) | (signs >> i & 1) << 3];
}

/* [d][8 x (4 indices, 4 x 7 signs + 4 bits of scale)] */
void lg_dequant_iq2_xxs(const uint8_t *b, float *y) {
    float d = f16_at(b), t[8];
    for (int run = 0; run < 8; run++) {
        const uint8_t *q = b + 2 + 8 * run;
        uint32_t s = lg_num_load32(q + 4);
        scaled(d * (0.5f + (float)(s >> 28)) * 0.25f, value2, 4, t);
        for (int g = 0; g < 4; g++)
            put8(t, grid_iq2_xxs[q[g]], even_signs(s >> 7 * g & 127), y + 32 * run + 8 * g);
    }
}

/* [d][32 x (9 bits of index, 7 signs)][16 scales] */
void lg_dequant_iq2_xs(const uint8_t *b, float *y) {
    float d = f16_at(b), t[8];
    for (int g = 0; g < 32; g++) {
        unsigned q = lg_num_load16(b + 2 + 2 * g);
        if (g % 2 == 0) scaled(d * (0.5f + (float)nibble(b + 66, g / 2)) * 0.25f, value2, 4, t);
        put8(t, grid_iq2_xs[q & 511], even_signs(q >> 9), y + 8 * g);
    }
}

/* [d][32 indices][32 x 8 signs][32 x 2 high bits][16 scales] */
void lg_dequant_iq2_s(const uint8_t *b, float *y) {
    float d = f16_at(b), t[8];
    for (int g = 0; g < 32; g++) {
        unsigned q = b[2 + g] | (b[66 + g / 4] >> g % 4 * 2 & 3u) << 8;
        if (g % 2 == 0) scaled(d * (0.5f + (float)nibble(b + 74, g / 2)) * 0.25f, value2, 4, t);
        put8(t, grid_iq2_s[q], b[34 + g], y + 8 * g);
    }
}

/* [d][64 indices of four][8 x (4 x 7 signs + 4 bits of scale)] */
void lg_dequant_iq3_xxs(const uint8_t *b, float *y) {
    float d = f16_at(b), t[16];
    for (int g = 0; g < 32; g++) { /* eight elements */
        uint32_t s = lg_num_load32(b + 66 + g / 4 * 4);
        if (g % 4 == 0) scaled(d * (0.5f + (float)(s >> 28)) * 0.5f, value3_xxs, 8, t);
        unsigned signs = even_signs(s >> g % 4 * 7 & 127);
        put4(t, grid_iq3_xxs[b[2 + 2 * g]], signs, y + 8 * g);
        put4(t, grid_iq3_xxs[b[3 + 2 * g]], signs >> 4, y + 8 * g + 4);
    }
}

/* [d][64 indices of four][64 high bits][32 x 8 signs][8 scales] */
void lg_dequant_iq3_s(const uint8_t *b, float *y) {
    float d = f16_at(b), t[16];
    for (int h = 0; h < 64; h++) { /* four elements */
        unsigned q = b[2 + h] | (b[66 + h / 8] >> h % 8 & 1u) << 8;
        if (h % 8 == 0) scaled(d * (float)(1 + 2 * nibble(b + 106, h / 8)), value3_s, 8, t);
        put4(t, grid_iq3_s[q], (unsigned)b[74 + h / 2] >> h % 2 * 4, y + 4 * h);
    }
}

/* What elements can be that share a scale: 0, 1, 2 and 3, less one, moved up; then moved down. */
static void shifted(float d, float *t) {
    for (int i = 0; i < 4; i++) {
        t[i] = d * ((float)i - 1.0f + 0.125f);
        t[4 + i] = d * ((float)i - 1.0f + -0.125f);
    }
}

static void put_iq1(const float *t, unsigned index, bool down, float *y) {
    unsigned row = grid_iq1[index];
    if (down) t += 4;
    for (int i = 0; i < 8; i++) y[i] = t[row >> 2 * i & 3];
}

/* [d][32 indices][8 x (4 x 3 high bits, 3 bits of scale, sign of the shift)] */
void lg_dequant_iq1_s(const uint8_t *b, float *y) {
    float d = f16_at(b), t[8];
    for (int g = 0; g < 32; g++) {
        unsigned h = lg_num_load16(b + 34 + g / 4 * 2);
        if (g % 4 == 0) shifted(d * (float)(2 * (h >> 12 & 7) + 1), t);
        put_iq1(t, b[2 + g] | (h >> g % 4 * 3 & 7) << 8, h >> 15, y + 8 * g);
    }
}

/* [32 indices][32 x (3 high bits, sign of the shift)][4 x (4 scales of 3 bits, 4 bits of d)] */
void lg_dequant_iq1_m(const uint8_t *b, float *y) {
    unsigned half = 0;
    for (int i = 0; i < 4; i++) half |= (lg_num_load16(b + 48 + 2 * i) >> 12 & 15u) << 4 * i;
    float d = lg_num_f16((uint16_t)half), t[8];
    for (int g = 0; g < 32; g++) {
        int run = g / 2, h = nibble(b + 32, g);
        unsigned scale = lg_num_load16(b + 48 + run / 4 * 2) >> run % 4 * 3 & 7u;
        if (g % 2 == 0) shifted(d * (float)(2 * scale + 1), t);
        put_iq1(t, b[g] | (unsigned)(h & 7) << 8, h >> 3, y + 8 * g);
    }
}
