/* mem.c - heap and arenas: see mem.h.  Counters are atomic; nothing else is shared. */
#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES (UINT64_C(8) << 20) /* blocks from here up ask for huge pages */

static _Atomic uint64_t n_alloc;
static _Atomic int64_t n_alive;
static _Atomic uint64_t n_bytes, peak; /* of what is alive */
static _Atomic uint64_t fail_in;       /* 0 = off */

/* True when this allocation is the one that a test wants to fail. */
static int must_fail(void) {
    if (atomic_load_explicit(&fail_in, memory_order_relaxed) == 0) return 0;
    return atomic_fetch_sub(&fail_in, 1) == 1;
}

/* Every block is preceded by one aligned header that keeps its size, so that realloc can copy. */
typedef struct header {
    size_t size_bytes;
} header;

static header *header_of(void *p) {
    return (header *)(void *)((uint8_t *)p - LG_MEM_ALIGN);
}

/* Ask for huge pages under the whole pages of a big block: weights and the pools are read from end to end. */
static void want_huge(uint8_t *block, size_t size_bytes) {
#ifdef MADV_HUGEPAGE
    static _Atomic int said;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = (page - (uintptr_t)block % page) % page;
    size_t len = (size_bytes - skip) / page * page;
    if (madvise(block + skip, len, MADV_HUGEPAGE) == 0 || atomic_exchange(&said, 1)) return;
    lg_diag_log(LG_LOG_INFO, "no huge pages (madvise: %s): memory is read a little slower",
                strerror(errno));
#else
    (void)block;
    (void)size_bytes;
#endif
}

static void *take(size_t size_bytes, int zero) {
    if (size_bytes == 0) size_bytes = 1;
    if (size_bytes > SIZE_MAX - 2 * LG_MEM_ALIGN || must_fail()) return NULL;
    size_t total = (size_bytes + 2 * LG_MEM_ALIGN - 1) / LG_MEM_ALIGN * LG_MEM_ALIGN;
    uint8_t *block = aligned_alloc(LG_MEM_ALIGN, total);
    if (!block) return NULL;
    if (total >= HUGE_BYTES) want_huge(block, total);
    void *p = block + LG_MEM_ALIGN;
    header_of(p)->size_bytes = size_bytes;
    if (zero) memset(p, 0, size_bytes);
    atomic_fetch_add_explicit(&n_alloc, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&n_alive, 1, memory_order_relaxed);
    uint64_t now =
        atomic_fetch_add_explicit(&n_bytes, size_bytes, memory_order_relaxed) + size_bytes;
    uint64_t most = atomic_load_explicit(&peak, memory_order_relaxed);
    while (now > most && !atomic_compare_exchange_weak_explicit(
                             &peak, &most, now, memory_order_relaxed, memory_order_relaxed))
        ;
    return p;
}

void *lg_mem_alloc(size_t size_bytes) {
    return take(size_bytes, 1);
}

void *lg_mem_calloc(size_t n, size_t size_bytes) {
    size_t total;
    if (__builtin_mul_overflow(n, size_bytes, &total)) return NULL;
    return take(total, 1);
}

void *lg_mem_realloc(void *p, size_t size_bytes) {
    if (!p) return take(size_bytes, 0);
    void *q = take(size_bytes, 0);
    if (!q) return NULL;
    size_t old = header_of(p)->size_bytes, keep = old < size_bytes ? old : size_bytes;
    memcpy(q, p, keep);
    lg_mem_free(p);
    return q;
}

char *lg_mem_strdup(const char *s) {
    size_t len = strlen(s) + 1;
    char *p = take(len, 0);
    if (p) memcpy(p, s, len);
    return p;
}

void lg_mem_free(void *p) {
    if (!p) return;
    atomic_fetch_sub_explicit(&n_bytes, header_of(p)->size_bytes, memory_order_relaxed);
    free(header_of(p));
    atomic_fetch_sub_explicit(&n_alive, 1, memory_order_relaxed);
}

uint64_t lg_mem_count(void) {
    return atomic_load_explicit(&n_alloc, memory_order_relaxed);
}

int64_t lg_mem_alive(void) {
    return atomic_load_explicit(&n_alive, memory_order_relaxed);
}

uint64_t lg_mem_bytes(void) {
    return atomic_load_explicit(&n_bytes, memory_order_relaxed);
}

uint64_t lg_mem_peak(void) {
    return atomic_load_explicit(&peak, memory_order_relaxed);
}

void lg_mem_reset_peak(void) {
    atomic_store_explicit(&peak, lg_mem_bytes(), memory_order_relaxed);
}

void lg_mem_fail_at(uint64_t n) {
    atomic_store(&fail_in, n);
}

void lg_arena_init(lg_arena *a, void *block, size_t size_bytes) {
    a->base = block;
    a->size_bytes = block ? size_bytes : SIZE_MAX;
    a->used_bytes = a->peak_bytes = 0;
}

void *lg_arena_take(lg_arena *a, size_t n, size_t size_bytes) {
    size_t total;
    if (__builtin_mul_overflow(n, size_bytes, &total)) return NULL;
    if (total > SIZE_MAX - LG_MEM_ALIGN) return NULL;
    total = (total + LG_MEM_ALIGN - 1) / LG_MEM_ALIGN * LG_MEM_ALIGN;
    if (total > a->size_bytes - a->used_bytes) return NULL;
    void *p = a->base ? a->base + a->used_bytes : NULL;
    a->used_bytes += total;
    if (a->used_bytes > a->peak_bytes) a->peak_bytes = a->used_bytes;
    return p;
}
