/* mem.h - the only door to the heap, and arenas.
 *
 * Five lifetimes (weights, pools, sequence, request, step scratch) each have one owner; this file counts allocations so
 * that a test can prove that nothing is allocated on the engine thread after open, and can make the n-th one fail.
 * Blocks of 8 MiB and more ask for huge pages; where the system has none, that is logged once.
 * Thread: any.  Test: tests/unit/test_base.c */
#ifndef LG_BASE_MEM_H
#define LG_BASE_MEM_H

#include "base/diag.h"

#include <stddef.h>
#include <stdint.h>

#define LG_MEM_ALIGN 64 /* bytes: one cache line, one AVX-512 register */

/* Allocate size_bytes (0 counts as 1), zeroed, aligned to LG_MEM_ALIGN.  NULL when there is no memory.
 * The caller owns it until lg_mem_free. */
void *lg_mem_alloc(size_t size_bytes) __attribute__((malloc, warn_unused_result));

/* As lg_mem_alloc for n elements of size_bytes each; NULL when the product overflows. */
void *lg_mem_calloc(size_t n, size_t size_bytes) __attribute__((malloc, warn_unused_result));

/* Grow or shrink a block from these functions, keeping min(old, new) bytes; alignment is kept, new bytes are not
 * zeroed.  NULL when there is no memory (p stays valid). */
void *lg_mem_realloc(void *p, size_t size_bytes) __attribute__((warn_unused_result));

/* Copy a NUL-terminated string.  NULL when there is no memory. */
char *lg_mem_strdup(const char *s) __attribute__((warn_unused_result));

/* Free a block of these functions; NULL is allowed. */
void lg_mem_free(void *p);

/* Free *p and set it to NULL. */
#define LG_FREE(p) (lg_mem_free(p), (p) = NULL)

/* Number of successful allocations and reallocations since start, over all threads. */
uint64_t lg_mem_count(void);

/* Blocks alive now: 0 after everything is closed. */
int64_t lg_mem_alive(void);

/* Bytes alive now, and the most at once since lg_mem_reset_peak (which starts again from what is alive). */
uint64_t lg_mem_bytes(void);
uint64_t lg_mem_peak(void);
void lg_mem_reset_peak(void);

/* For tests: the n-th allocation from now fails once (1 = the next).  0 switches it off. */
void lg_mem_fail_at(uint64_t n);

/* An arena: bump allocation inside one block.  With base == NULL it only counts, so that the code which carves memory
 * also tells how much it needs.  Caller's storage; the block is the caller's. */
typedef struct lg_arena {
    uint8_t *base;     /* start, LG_MEM_ALIGN aligned, or NULL when counting */
    size_t size_bytes; /* capacity; SIZE_MAX when counting */
    size_t used_bytes; /* bytes carved */
    size_t peak_bytes; /* largest used_bytes seen */
} lg_arena;

/* Start an arena on block (NULL = count only). */
void lg_arena_init(lg_arena *a, void *block, size_t size_bytes);

/* Carve n * size_bytes, aligned to LG_MEM_ALIGN, contents undefined.  NULL when it does not fit, and always when
 * counting (a counting arena never fails: used_bytes tells). */
void *lg_arena_take(lg_arena *a, size_t n, size_t size_bytes);

#endif
