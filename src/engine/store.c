/* store.c - token buffers, one for each sequence that was admitted and is not over: see engine.h.
 *
 * Thread: engine.  Memory: one block at init.  Test: tests/unit/test_sched.c */
#include "engine/engine.h"

static void carve_store(lg_store *s, lg_arena *a) {
    s->free = lg_arena_take(a, s->n, sizeof *s->free);
    s->ids = lg_arena_take(a, (size_t)s->n * s->n_ctx, sizeof *s->ids);
}

uint64_t lg_store_bytes(uint32_t n, uint32_t n_ctx) {
    lg_store s = {.n = n, .n_ctx = n_ctx};
    lg_arena a;
    lg_arena_init(&a, NULL, 0);
    carve_store(&s, &a);
    return a.used_bytes;
}

lg_status lg_store_init(lg_store *s, uint32_t n, uint32_t n_ctx) {
    *s = (lg_store){.n = n, .n_ctx = n_ctx, .n_free = n};
    uint64_t bytes = lg_store_bytes(n, n_ctx);
    s->block = lg_mem_alloc(bytes);
    if (!s->block) return LG_E_NOMEM;
    lg_arena a;
    lg_arena_init(&a, s->block, bytes);
    carve_store(s, &a);
    for (uint32_t i = 0; i < n; i++) s->free[i] = n - 1 - i;
    return LG_OK;
}

void lg_store_fini(lg_store *s) {
    lg_mem_free(s->block);
    *s = (lg_store){0};
}

uint32_t lg_store_take(lg_store *s) {
    return s->n_free ? s->free[--s->n_free] : UINT32_MAX;
}

void lg_store_give(lg_store *s, uint32_t store) {
    LG_ASSERT(store < s->n && s->n_free < s->n);
    s->free[s->n_free++] = store;
}
