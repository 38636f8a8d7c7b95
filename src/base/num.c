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
