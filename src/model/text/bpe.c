/* bpe.c - merge the bytes of a word: see bpe.h.
 *
 * Symbols form a linked list over the byte positions; a heap holds every adjacent pair that has a rank.  A pair
 * that changed since it was pushed is recognised by its rank, which belongs to one pair only.
 * Memory: table at load; scratch grows with the longest word and is kept up to KEEP symbols. */
#include "model/text/bpe.h"

#define KEEP ((size_t)1 << 16) /* symbols of scratch that stay allocated */

void lg_bpe_fini(lg_bpe *bpe) {
    lg_mem_free(bpe->piece);
    lg_mem_free(bpe->bytes);
    lg_mem_free(bpe->merge);
    lg_mem_free(bpe->sym);
    lg_mem_free(bpe->heap);
    *bpe = (lg_bpe){0};
}

lg_status lg_bpe_reserve(lg_bpe *bpe, size_t n_merge) {
    size_t n_slot = 16;
    while (n_slot < 2 * n_merge) n_slot *= 2;
    LG_ASSERT(n_slot <= UINT32_MAX);
    bpe->merge = lg_mem_calloc(n_slot, sizeof *bpe->merge);
    if (!bpe->merge) return LG_E_NOMEM;
    for (size_t i = 0; i < n_slot; i++) bpe->merge[i].rank = LG_BPE_NONE;
    bpe->merge_mask = (uint32_t)(n_slot - 1);
    return LG_OK;
}

lg_bpe_merge *lg_bpe_slot(const lg_bpe *bpe, uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    for (uint32_t i = (uint32_t)(h >> 32);; i++) {
        lg_bpe_merge *m = &bpe->merge[i & bpe->merge_mask];
        if (m->rank == LG_BPE_NONE || (m->left == left && m->right == right)) return m;
    }
}

#define FAN ((size_t)4) /* children of a node: half the cache misses of a binary heap */

/* ---- Heap ---- */

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t key = heap[i];
    for (;;) {
        size_t k = FAN * i + 1, end = k + FAN < n ? k + FAN : n;
        if (k >= n) break;
        for (size_t c = k + 1; c < end; c++)
            if (heap[c] < heap[k]) k = c;
        if (heap[k] >= key) break;
        heap[i] = heap[k];
        i = k;
    }
    heap[i] = key;
}

static uint64_t heap_pop(lg_bpe *bpe) {
    uint64_t least = bpe->heap[0];
    bpe->heap[0] = bpe->heap[--bpe->n_heap];
    if (bpe->n_heap) sift_down(bpe->heap, bpe->n_heap, 0);
    return least;
}

static bool heap_push(lg_bpe *bpe, uint64_t key) {
    if (bpe->n_heap == bpe->cap_heap) {
        uint64_t *p = lg_mem_realloc(bpe->heap, 2 * bpe->cap_heap * sizeof *p);
        if (!p) return false;
        bpe->heap = p;
        bpe->cap_heap *= 2;
    }
    size_t i = bpe->n_heap++;
    for (; i > 0 && bpe->heap[(i - 1) / FAN] > key; i = (i - 1) / FAN)
        bpe->heap[i] = bpe->heap[(i - 1) / FAN];
    bpe->heap[i] = key;
    return true;
}

/* ---- Merging ---- */

static bool reserve_scratch(lg_bpe *bpe, size_t n) {
    size_t cap = n < 256 ? 256 : n;
    if (n > bpe->cap_sym) {
        lg_mem_free(bpe->sym);
        bpe->cap_sym = 0;
        bpe->sym = lg_mem_realloc(NULL, cap * sizeof *bpe->sym);
        if (!bpe->sym) return false;
        bpe->cap_sym = cap;
    }
    if (n > bpe->cap_heap) {
        lg_mem_free(bpe->heap);
        bpe->cap_heap = 0;
        bpe->heap = lg_mem_realloc(NULL, cap * sizeof *bpe->heap);
        if (!bpe->heap) return false;
        bpe->cap_heap = cap;
    }
    return true;
}

/* Key of the pair that starts at symbol i, or UINT64_MAX when it is none. */
static uint64_t pair_key(const lg_bpe *bpe, uint32_t i) {
    const lg_bpe_sym *s = &bpe->sym[i];
    if (s->next == LG_BPE_NONE) return UINT64_MAX;
    uint32_t rank = lg_bpe_slot(bpe, s->id, bpe->sym[s->next].id)->rank;
    return rank == LG_BPE_NONE ? UINT64_MAX : (uint64_t)rank << 32 | i;
}

/* Merge the pair of `key` if it still exists, and push the pairs that this makes. */
static bool merge_pair(lg_bpe *bpe, uint64_t key) {
    uint32_t i = (uint32_t)key;
    lg_bpe_sym *s = &bpe->sym[i];
    if (s->id == LG_BPE_NONE || s->next == LG_BPE_NONE) return true;
    lg_bpe_sym *gone = &bpe->sym[s->next];
    const lg_bpe_merge *m = lg_bpe_slot(bpe, s->id, gone->id);
    if (m->rank != (uint32_t)(key >> 32)) return true;
    s->id = m->id;
    s->next = gone->next;
    gone->id = LG_BPE_NONE;
    if (s->next != LG_BPE_NONE) bpe->sym[s->next].prev = i;
    uint64_t right = pair_key(bpe, i);
    uint64_t left = s->prev == LG_BPE_NONE ? UINT64_MAX : pair_key(bpe, s->prev);
    return (right == UINT64_MAX || heap_push(bpe, right)) &&
           (left == UINT64_MAX || heap_push(bpe, left));
}

lg_status lg_bpe_word(lg_bpe *bpe, const char *word, size_t len_bytes, lg_ids *ids) {
    LG_ASSERT(len_bytes < UINT32_MAX);
    if (len_bytes == 0) return LG_OK;
    if (!reserve_scratch(bpe, len_bytes)) return LG_E_NOMEM;
    uint32_t n = (uint32_t)len_bytes;
    for (uint32_t i = 0; i < n; i++)
        bpe->sym[i] = (lg_bpe_sym){.id = bpe->byte_id[(uint8_t)word[i]],
                                   .prev = i == 0 ? LG_BPE_NONE : i - 1,
                                   .next = i + 1 == n ? LG_BPE_NONE : i + 1};
    bpe->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = pair_key(bpe, i);
        if (key != UINT64_MAX) bpe->heap[bpe->n_heap++] = key;
    }
    size_t n_parent = bpe->n_heap > 1 ? (bpe->n_heap - 2) / FAN + 1 : 0;
    for (size_t i = n_parent; i-- > 0;) sift_down(bpe->heap, bpe->n_heap, i);
    while (bpe->n_heap)
        if (!merge_pair(bpe, heap_pop(bpe))) return LG_E_NOMEM;
    for (uint32_t i = 0; i != LG_BPE_NONE; i = bpe->sym[i].next)
        LG_TRY(lg_ids_push(ids, bpe->sym[i].id));
    return LG_OK;
}

void lg_bpe_trim(lg_bpe *bpe) {
    if (bpe->cap_sym > KEEP) {
        LG_FREE(bpe->sym);
        bpe->cap_sym = 0;
    }
    if (bpe->cap_heap > 2 * KEEP) {
        LG_FREE(bpe->heap);
        bpe->cap_heap = 0;
    }
}
