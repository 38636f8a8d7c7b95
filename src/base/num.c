/* num.c - number formats and the counter random generator: see num.h. */
#include "base/num.h"

#include <math.h>

float lg_num_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, frac = h & 0x3ffu;
    if (exp == 31) return lg_num_float_of_bits(sign | 0x7f800000u | frac << 13);
    if (exp == 0) {
        float v = (float)frac * 0x1p-24f;
        return sign ? -v : v;
    }
    return lg_num_float_of_bits(sign | (exp + 112u) << 23 | frac << 13);
}

uint16_t lg_num_to_f16(float f) {
    uint32_t u = lg_num_bits_of_float(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 2^16 and more */
    if (u < 0x38800000u)                                     /* below 2^-14: steps of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(lg_num_float_of_bits(u) * 0x1p24f));
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | (u - 0x38000000u) >> 13);
}

float lg_num_e4m3(uint8_t b) {
    uint32_t exp = (b >> 3) & 15u, frac = b & 7u;
    float v;
    if (exp == 15 && frac == 7) {
        v = NAN;
    } else if (exp == 0) {
        v = (float)frac * 0x1p-9f;
    } else {
        v = lg_num_float_of_bits((exp + 120u) << 23 | frac << 20);
    }
    return b & 0x80u ? -v : v;
}

uint8_t lg_num_to_e4m3(float f) {
    uint32_t u = lg_num_bits_of_float(f), sign = (u >> 24) & 0x80u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (u >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* 448 and more */
    if (u < 0x3c800000u)                                  /* below 2^-6: steps of 2^-9 */
        return (uint8_t)(sign | (uint32_t)lrintf(lg_num_float_of_bits(u) * 0x1p9f));
    u += 0x7ffffu + ((u >> 20) & 1u);
    return (uint8_t)(sign | ((u >> 20) - (120u << 3)));
}

/* Finaliser of SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t lg_num_rng(uint64_t seed, uint32_t choice, uint64_t pos, uint32_t draw) {
    return mix(mix(mix(seed) ^ pos) ^ ((uint64_t)choice << 32 | draw));
}

float lg_num_rng_unit(uint64_t seed, uint32_t choice, uint64_t pos, uint32_t draw) {
    return (float)(lg_num_rng(seed, choice, pos, draw) >> 40) * 0x1p-24f;
}
