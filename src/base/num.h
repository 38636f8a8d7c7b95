/* num.h - number formats, checked arithmetic and the counter random generator.
 *
 * All conversions to float are exact.  Thread: any.  Test: tests/unit/test_base.c */
#ifndef LG_BASE_NUM_H
#define LG_BASE_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Unaligned little-endian loads: tensors in files are seldom aligned. */
static inline uint16_t lg_num_load16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t lg_num_load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t lg_num_load64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float lg_num_float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t lg_num_bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* bfloat16 bits -> float. */
static inline float lg_num_bf16(uint16_t h) {
    return lg_num_float_of_bits((uint32_t)h << 16);
}

/* float -> bfloat16 bits, nearest even; a NaN stays a NaN. */
static inline uint16_t lg_num_to_bf16(float f) {
    uint32_t u = lg_num_bits_of_float(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* IEEE binary16 bits -> float. */
float lg_num_f16(uint16_t h);

/* float -> IEEE binary16 bits, nearest even; what is too large becomes infinite, a NaN stays a NaN. */
uint16_t lg_num_to_f16(float f);

/* OCP FP8 E4M3 (no infinities, 0x7f and 0xff are NaN) -> float. */
float lg_num_e4m3(uint8_t b);

/* float -> E4M3, nearest even; what is larger than 448 becomes that, a NaN stays one. */
uint8_t lg_num_to_e4m3(float f);

/* *out = a * b, a + b; false when it does not fit. */
static inline bool lg_num_mul(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool lg_num_add(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

/* Counter random numbers: a function of (seed, choice, position, draw) alone, so that a resubmitted request goes on with
 * the same numbers.  64 uniform bits (SplitMix64 finaliser over the mixed key). */
uint64_t lg_num_rng(uint64_t seed, uint32_t choice, uint64_t pos, uint32_t draw);

/* The same as a float in [0, 1): 24 bits. */
float lg_num_rng_unit(uint64_t seed, uint32_t choice, uint64_t pos, uint32_t draw);

#endif
