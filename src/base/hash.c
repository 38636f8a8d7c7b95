/* hash.c - see hash.h.
 *
 * Four lanes of multiply and rotate over words of 8 bytes, so that memory is the limit, then SplitMix64's finaliser.
 * Thread: any.  Test: tests/unit/test_base.c */
#include "base/hash.h"

#include "base/num.h"

static uint64_t rotl(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t lg_hash_add(uint64_t h, const void *data, size_t len_bytes) {
    static const uint64_t k = UINT64_C(0xd6e8feb86659fd93);
    const uint8_t *p = data;
    uint64_t a[4] = {h, h ^ k, h + k, ~h}, tail = 0;
    size_t i = 0;
    for (; i + 32 <= len_bytes; i += 32)
        for (int j = 0; j < 4; j++) a[j] = rotl((a[j] ^ lg_num_load64(p + i + 8 * j)) * k, 29);
    for (; i + 8 <= len_bytes; i += 8) a[0] = rotl((a[0] ^ lg_num_load64(p + i)) * k, 31);
    for (int j = 0; i < len_bytes; i++, j += 8) tail |= (uint64_t)p[i] << j;
    h = mix(a[0] ^ tail ^ (uint64_t)len_bytes * k);
    for (int j = 1; j < 4; j++) h = mix(h * k + a[j]);
    return h;
}
