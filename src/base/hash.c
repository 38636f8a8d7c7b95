/* hash.c - see hash.h.
 *
 * Four lanes of words of 8 bytes, so that memory is the limit.  A step is a bijection of its lane that takes the word's top bits
 * down before it multiplies again: without the rotation in between, a flip of bit 62 and one of bit 27 a step later would
 * cancel.  Thread: any.  Test: tests/unit/test_base.c, tests/unit/test_packed.c */
#include "base/hash.h"

#include "base/num.h"

#define K1 UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio */
#define K2 UINT64_C(0xd6e8feb86659fd93)

static uint64_t rotl(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

static uint64_t step(uint64_t lane, uint64_t word) {
    return rotl(lane ^ word * K2, 29) * K1;
}

/* Every bit of z reaches every bit of the result. */
static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 32) * K2;
    z = (z ^ z >> 29) * K1;
    return z ^ z >> 32;
}

uint64_t lg_hash_add(uint64_t h, const void *data, size_t len_bytes) {
    const uint8_t *p = data;
    uint64_t a[4] = {h, ~h, h ^ K1, h ^ K2};
    size_t i = 0;
    for (; i + 32 <= len_bytes; i += 32)
        for (int j = 0; j < 4; j++) a[j] = step(a[j], lg_num_load64(p + i + 8 * j));
    for (int j = 0; i < len_bytes; j++) {
        uint64_t word = 0;
        for (int b = 0; b < 64 && i < len_bytes; i++, b += 8) word |= (uint64_t)p[i] << b;
        a[j] = step(a[j], word);
    }
    h = (uint64_t)len_bytes * K1;
    for (int j = 0; j < 4; j++) h = rotl(h ^ mix(a[j]), 27) * K1;
    return mix(h);
}
