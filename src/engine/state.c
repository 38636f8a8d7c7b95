/* state.c - which pages and slots are free: see engine.h.
 *
 * The numbers are ours, the memory behind them is the backend's.  Lowest numbers are given first, so a light load touches
 * little memory.  Thread: engine.  Memory: one block at init.  Test: tests/unit/test_engine.c */
#include "engine/engine.h"

static uint32_t pages_of(uint32_t n_tok) {
    return (uint32_t)(((uint64_t)n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK);
}

static lg_state sized(uint32_t n_slot, uint32_t n_page, uint32_t n_ctx) {
    return (lg_state){
        .n_slot = n_slot, .pages.n = n_page, .n_ctx = n_ctx, .max_page = pages_of(n_ctx)};
}

/* Set the pointers inside a, which may only count. */
static void carve(lg_state *st, lg_arena *a) {
    st->pages.stack = lg_arena_take(a, st->pages.n, sizeof(uint32_t));
    st->pages.n_seq = lg_arena_take(a, st->pages.n, sizeof(uint32_t));
    st->pages.n_node = lg_arena_take(a, st->pages.n, sizeof(uint32_t));
    st->slot_free = lg_arena_take(a, st->n_slot, sizeof(uint32_t));
    st->n_page_of = lg_arena_take(a, st->n_slot, sizeof(uint32_t));
    st->page = lg_arena_take(a, (size_t)st->n_slot * st->max_page, sizeof(uint32_t));
}

uint64_t lg_state_bytes(uint32_t n_slot, uint32_t n_page, uint32_t n_ctx) {
    lg_state st = sized(n_slot, n_page, n_ctx);
    lg_arena a;
    lg_arena_init(&a, NULL, 0);
    carve(&st, &a);
    return a.used_bytes;
}

lg_status lg_state_init(lg_state *st, uint32_t n_slot, uint32_t n_page, uint32_t n_ctx) {
    *st = sized(n_slot, n_page, n_ctx);
    uint64_t bytes = lg_state_bytes(n_slot, n_page, n_ctx);
    lg_arena a;
    st->block = lg_mem_alloc(bytes);
    if (!st->block) return LG_E_NOMEM;
    lg_arena_init(&a, st->block, bytes);
    carve(st, &a);
    for (uint32_t i = 0; i < n_page; i++) st->pages.stack[i] = n_page - 1 - i;
    for (uint32_t i = 0; i < n_slot; i++) st->slot_free[i] = n_slot - 1 - i;
    st->pages.n_free = n_page;
    st->n_slot_free = n_slot;
    return LG_OK;
}

void lg_state_fini(lg_state *st) {
    lg_mem_free(st->block);
    *st = (lg_state){0};
}

lg_status lg_state_reserve(lg_state *st, uint32_t n_tok, const uint32_t *shared,
                           uint32_t n_shared, uint32_t *slot) {
    LG_ASSERT(n_tok >= 1 && n_tok <= st->n_ctx);
    uint32_t n = pages_of(n_tok);
    LG_ASSERT(n_shared <= n);
    if (st->n_slot_free == 0 || st->pages.n_free < n - n_shared) return LG_AGAIN;
    *slot = st->slot_free[--st->n_slot_free];
    st->n_page_of[*slot] = n;
    uint32_t *page = st->page + (size_t)*slot * st->max_page;
    for (uint32_t i = 0; i < n; i++) {
        page[i] = i < n_shared ? shared[i] : st->pages.stack[--st->pages.n_free];
        lg_pages_hold(&st->pages, page[i]);
    }
    return LG_OK;
}

void lg_state_release(lg_state *st, uint32_t slot) {
    LG_ASSERT(slot < st->n_slot && st->n_page_of[slot] > 0);
    const uint32_t *page = st->page + (size_t)slot * st->max_page;
    for (uint32_t i = st->n_page_of[slot]; i-- > 0;) lg_pages_drop(&st->pages, page[i]);
    st->n_page_of[slot] = 0;
    st->slot_free[st->n_slot_free++] = slot;
}

lg_status lg_state_grow(lg_state *st, uint32_t slot) {
    uint32_t n = st->n_page_of[slot];
    LG_ASSERT(n > 0 && n < st->max_page);
    if (st->pages.n_free == 0) return LG_AGAIN;
    uint32_t page = st->pages.stack[--st->pages.n_free];
    st->page[(size_t)slot * st->max_page + n] = page;
    lg_pages_hold(&st->pages, page);
    st->n_page_of[slot] = n + 1;
    return LG_OK;
}
