/* disk_index.c - which files of kept texts there are, and which of them goes first: see disk.h.
 *
 * One hash table over (hash, to).  A look-up walks the text once, a multiplication and a probe an id; the probes of a table that is
 * mostly empty stay in the cache.  Thread: engine.  Memory: the caller's arena.  Test: tests/unit/test_disk.c */
#include "engine/cache/disk.h"

#include <string.h>

#define NONE LG_DISK_NONE
#define LOOK 64 /* files compared for one that goes, the next ones each time: see prefix.c */

static uint32_t count_buckets(uint32_t n) {
    uint32_t n_bucket = 64;
    while (n_bucket < 2 * n) n_bucket *= 2;
    return n_bucket;
}

void lg_disk_index_carve(lg_disk_index *x, lg_arena *a, uint32_t n_entry) {
    *x = (lg_disk_index){.n_entry = n_entry, .n_bucket = count_buckets(n_entry)};
    x->entry = lg_arena_take(a, n_entry, sizeof *x->entry);
    x->bucket = lg_arena_take(a, x->n_bucket, sizeof *x->bucket);
}

void lg_disk_index_init(lg_disk_index *x, uint64_t limit_bytes) {
    x->limit_bytes = limit_bytes;
    memset(x->bucket, 0xff, x->n_bucket * sizeof *x->bucket);
    memset(x->entry, 0, x->n_entry * sizeof *x->entry);
    x->free = NONE;
    for (uint32_t i = x->n_entry; i-- > 0;) {
        x->entry[i].chain = x->free;
        x->free = i;
    }
}

static uint32_t *bucket_of(const lg_disk_index *x, uint64_t hash) {
    return &x->bucket[hash & (x->n_bucket - 1)];
}

uint32_t lg_disk_index_find(const lg_disk_index *x, uint64_t hash, uint32_t to) {
    uint32_t at = *bucket_of(x, hash);
    while (at != NONE && (x->entry[at].hash != hash || x->entry[at].to != to))
        at = x->entry[at].chain;
    return at;
}

uint32_t lg_disk_index_deepest(const lg_disk_index *x, uint64_t hash0, const uint32_t *ids,
                               uint32_t n, bool ready, uint64_t *hash) {
    uint32_t best = NONE;
    uint64_t h = hash0;
    for (uint32_t i = 0; i < n; i++) {
        h = lg_disk_roll(h, ids[i]);
        if (*bucket_of(x, h) == NONE) continue;
        uint32_t at = lg_disk_index_find(x, h, i + 1);
        if (at != NONE && (!ready || x->entry[at].state == LG_DISK_READY)) best = at;
    }
    if (hash) *hash = h;
    return best;
}

uint32_t lg_disk_index_add(lg_disk_index *x, uint64_t hash, uint32_t from, uint32_t to,
                           uint32_t parent, uint64_t bytes) {
    uint32_t at = x->free;
    if (at == NONE || lg_disk_index_find(x, hash, to) != NONE) return NONE;
    lg_disk_entry *e = &x->entry[at];
    x->free = e->chain;
    uint32_t *b = bucket_of(x, hash);
    *e = (lg_disk_entry){.hash = hash,
                         .bytes = bytes,
                         .used = x->clock,
                         .from = from,
                         .to = to,
                         .parent = parent,
                         .chain = *b,
                         .state = LG_DISK_WRITING};
    *b = at;
    if (parent != NONE) x->entry[parent].n_child++;
    x->used_bytes += bytes;
    x->n_used++;
    return at;
}

void lg_disk_index_drop(lg_disk_index *x, uint32_t at) {
    lg_disk_entry *e = &x->entry[at];
    LG_ASSERT(e->state != LG_DISK_FREE && e->n_child == 0);
    uint32_t *b = bucket_of(x, e->hash);
    while (*b != at) b = &x->entry[*b].chain;
    *b = e->chain;
    if (e->parent != NONE) x->entry[e->parent].n_child--;
    x->used_bytes -= e->bytes;
    x->n_used--;
    *e = (lg_disk_entry){.chain = x->free};
    x->free = at;
}

uint32_t lg_disk_index_leaf(const lg_disk_index *x, uint32_t top) {
    uint32_t at = top;
    while (x->entry[at].n_child) { /* rare: only for what is damaged or not finite */
        uint32_t child = 0;
        while (x->entry[child].state == LG_DISK_FREE || x->entry[child].parent != at) child++;
        at = child;
    }
    return at;
}

void lg_disk_index_touch(lg_disk_index *x, uint32_t at) {
    for (; at != NONE; at = x->entry[at].parent) x->entry[at].used = x->clock;
}

static double score(const lg_disk_entry *e) {
    return e->used + (double)(e->to - e->from) / (double)e->bytes;
}

uint32_t lg_disk_index_victim(lg_disk_index *x) {
    uint32_t best = NONE, n_seen = 0;
    for (uint32_t n = 0; n < x->n_entry && n_seen < LOOK; n++) {
        uint32_t i = x->hand;
        const lg_disk_entry *e = &x->entry[i];
        x->hand = i + 1 < x->n_entry ? i + 1 : 0;
        if (e->state != LG_DISK_READY || e->n_child || e->busy) continue;
        n_seen++;
        if (best == NONE || score(e) < score(&x->entry[best])) best = i;
    }
    if (best != NONE && score(&x->entry[best]) > x->clock) x->clock = score(&x->entry[best]);
    return best;
}
