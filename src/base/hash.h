/* hash.h - a fast 64-bit fingerprint of large blocks: to notice a difference, not to withstand one made on purpose. */
#ifndef LG_BASE_HASH_H
#define LG_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Continue hash h (start with LG_HASH_START) over len_bytes.  The cut of the data matters: hash whole parts. */
#define LG_HASH_START UINT64_C(0x9e3779b97f4a7c15)
uint64_t lg_hash_add(uint64_t h, const void *data, size_t len_bytes);

#endif
