/* prefix.c - the radix tree of kept texts, its snapshots and its pages: see prefix.h.
 *
 * Children are found by one hash table over (parent, first id; salt at the top), so a look-up takes one probe and one
 * comparison for each page of the text, however many texts are kept.
 * Invariants: a node's positions lie in one page; a leaf carries a snapshot, except inside lg_prefix_keep; two children of one
 * node begin with different ids.
 * Thread: engine.  Memory: one block at init.  Test: tests/unit/test_prefix.c */
#include "base/num.h"
#include "engine/cache/prefix.h"

#include <string.h>

#define NONE LG_PREFIX_NONE
#define LOOK 64 /* snapshots compared for one eviction, the next ones each time */

static uint32_t pages_of(uint32_t n_tok) {
    return (uint32_t)(((uint64_t)n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK);
}

/* ---- pages ---- */

void lg_pages_hold(lg_pages *p, uint32_t page) {
    if (p->n_seq[page]++ == 0 && p->n_node[page]) p->n_cached--;
}

uint32_t lg_pages_take(lg_pages *p) {
    LG_ASSERT(p->n_free > 0);
    uint32_t page = p->stack[--p->n_free];
    lg_pages_hold(p, page);
    return page;
}

void lg_pages_drop(lg_pages *p, uint32_t page) {
    LG_ASSERT(p->n_seq[page] > 0);
    if (--p->n_seq[page]) return;
    if (p->n_node[page]) {
        p->n_cached++;
    } else {
        p->stack[p->n_free++] = page;
    }
}

/* References of nodes; the page is in use by someone when the first is taken. */
static void node_hold(lg_pages *p, uint32_t page) {
    LG_ASSERT(p->n_seq[page] + p->n_node[page] > 0);
    p->n_node[page]++;
}

static void node_drop(lg_pages *p, uint32_t page) {
    LG_ASSERT(p->n_node[page] > 0);
    if (--p->n_node[page] || p->n_seq[page]) return;
    p->n_cached--;
    p->stack[p->n_free++] = page;
}

/* ---- memory ---- */

/* Every page may be on the tree, and every snapshot may split a node. */
static uint32_t count_nodes(uint32_t n_page, uint32_t n_snap) {
    return n_snap ? n_page + 2 * n_snap + 2 : 0;
}

static uint32_t count_buckets(uint32_t n_node) {
    uint32_t n = 1;
    while (n < n_node) n *= 2;
    return n;
}

static void carve(lg_prefix *t, lg_arena *a) {
    t->node = lg_arena_take(a, t->n_node, sizeof *t->node);
    t->bucket = lg_arena_take(a, t->n_bucket, sizeof *t->bucket);
    t->snap_free = lg_arena_take(a, t->n_snap, sizeof *t->snap_free);
    t->snap_node = lg_arena_take(a, t->n_snap, sizeof *t->snap_node);
    t->snap_hold = lg_arena_take(a, t->n_snap, sizeof *t->snap_hold);
}

static lg_prefix sized(uint32_t n_page, uint32_t n_snap) {
    lg_prefix t = {.n_snap = n_snap, .n_node = count_nodes(n_page, n_snap)};
    t.n_bucket = count_buckets(t.n_node);
    return t;
}

uint64_t lg_prefix_bytes(uint32_t n_page, uint32_t n_snap) {
    lg_prefix t = sized(n_page, n_snap);
    lg_arena a;
    lg_arena_init(&a, NULL, 0);
    carve(&t, &a);
    return a.used_bytes;
}

lg_status lg_prefix_init(lg_prefix *t, lg_pages *pages, uint32_t n_snap, uint64_t page_bytes,
                         uint64_t snap_bytes) {
    *t = sized(pages->n, n_snap);
    t->pages = pages;
    t->page_cost = snap_bytes ? (double)page_bytes / (double)snap_bytes : 1.0;
    size_t bytes = lg_prefix_bytes(pages->n, n_snap);
    t->block = lg_mem_realloc(NULL, bytes ? bytes : 1);
    if (!t->block) return LG_E_NOMEM;
    lg_arena a;
    lg_arena_init(&a, t->block, bytes);
    carve(t, &a);
    t->node_free = t->pinned = NONE;
    t->n_node_free = t->n_node;
    for (uint32_t i = t->n_node; i-- > 0;) {
        t->node[i].chain = t->node_free;
        t->node_free = i;
    }
    memset(t->bucket, 0xff, t->n_bucket * sizeof *t->bucket);
    for (uint32_t i = 0; i < n_snap; i++) {
        t->snap_free[i] = n_snap - 1 - i;
        t->snap_node[i] = NONE;
        t->snap_hold[i] = 0;
    }
    t->n_snap_free = n_snap;
    return LG_OK;
}

void lg_prefix_fini(lg_prefix *t) {
    lg_mem_free(t->block);
    *t = (lg_prefix){0};
}

/* ---- nodes ---- */

static uint32_t *bucket_of(const lg_prefix *t, uint64_t salt, uint32_t parent, uint32_t id) {
    uint64_t h = lg_num_rng(parent == NONE ? salt : 0, parent, id, 0);
    return &t->bucket[h & (t->n_bucket - 1)];
}

/* The child of `parent` (NONE: the top of this salt) that begins with id, or NONE. */
static uint32_t find_child(const lg_prefix *t, uint64_t salt, uint32_t parent, uint32_t id) {
    uint32_t at = *bucket_of(t, salt, parent, id);
    for (; at != NONE; at = t->node[at].chain) {
        const lg_prefix_node *n = &t->node[at];
        if (n->parent == parent && n->id[0] == id && n->salt == salt) break;
    }
    return at;
}

/* Enter a node, whose parent, salt and ids are set, among its siblings. */
static void link_node(lg_prefix *t, uint32_t at) {
    lg_prefix_node *n = &t->node[at];
    uint32_t *b = bucket_of(t, n->salt, n->parent, n->id[0]);
    n->chain = *b;
    *b = at;
    n->prev = n->next = NONE;
    if (n->parent == NONE) return;
    lg_prefix_node *p = &t->node[n->parent];
    n->next = p->child;
    if (n->next != NONE) t->node[n->next].prev = at;
    p->child = at;
}

static void unlink_node(lg_prefix *t, uint32_t at) {
    lg_prefix_node *n = &t->node[at];
    uint32_t *b = bucket_of(t, n->salt, n->parent, n->id[0]);
    while (*b != at) b = &t->node[*b].chain;
    *b = n->chain;
    if (n->parent == NONE) return;
    if (n->prev != NONE) {
        t->node[n->prev].next = n->next;
    } else {
        t->node[n->parent].child = n->next;
    }
    if (n->next != NONE) t->node[n->next].prev = n->prev;
}

static void drop_snap(lg_prefix *t, uint32_t at) {
    lg_prefix_node *n = &t->node[at];
    if (n->snap == NONE) return;
    t->snap_node[n->snap] = NONE;
    if (t->snap_hold[n->snap] == 0) t->snap_free[t->n_snap_free++] = n->snap;
    t->n_kept--;
    n->snap = NONE;
}

/* Free a node without children. */
static void drop_node(lg_prefix *t, uint32_t at) {
    LG_ASSERT(t->node[at].child == NONE);
    drop_snap(t, at);
    unlink_node(t, at);
    node_drop(t->pages, t->node[at].page);
    t->node[at].chain = t->node_free;
    t->node_free = at;
    t->n_node_free++;
}

/* Free a leaf and what only led to it. */
static void drop_branch(lg_prefix *t, uint32_t at) {
    while (at != NONE && at != t->pinned && t->node[at].child == NONE) {
        uint32_t parent = t->node[at].parent;
        drop_node(t, at);
        if (parent == NONE || t->node[parent].snap != NONE) return;
        at = parent;
    }
}

static uint32_t take_node(lg_prefix *t) {
    uint32_t at = t->node_free;
    LG_ASSERT(at != NONE);
    t->node_free = t->node[at].chain;
    t->n_node_free--;
    return at;
}

/* Cut a node after its first n ids; returns the new node with the first part. */
static uint32_t split_node(lg_prefix *t, uint32_t at, uint32_t n) {
    uint32_t top = take_node(t);
    lg_prefix_node *low = &t->node[at], *up = &t->node[top];
    unlink_node(t, at);
    *up = (lg_prefix_node){.salt = low->salt,
                           .parent = low->parent,
                           .child = NONE,
                           .page = low->page,
                           .pos = low->pos,
                           .n = n,
                           .snap = NONE};
    memcpy(up->id, low->id, n * sizeof *up->id);
    node_hold(t->pages, up->page);
    low->parent = top;
    low->pos += n;
    low->n -= n;
    memmove(low->id, low->id + n, low->n * sizeof *low->id);
    link_node(t, top);
    link_node(t, at);
    return top;
}

/* ---- look-up ---- */

/* Ids of a node that agree with ids[0, n). */
static uint32_t n_common(const lg_prefix_node *node, const uint32_t *ids, uint32_t n) {
    uint32_t most = node->n < n ? node->n : n, i = 0;
    if (memcmp(node->id, ids, most * sizeof *ids) == 0) return most;
    while (node->id[i] == ids[i]) i++;
    return i;
}

void lg_prefix_find(const lg_prefix *t, uint64_t salt, const uint32_t *ids, uint32_t n,
                    lg_prefix_hit *hit) {
    *hit = (lg_prefix_hit){.node = NONE};
    if (t->n_node == 0) return;
    for (uint32_t at = NONE; hit->n_match < n;) {
        at = find_child(t, salt, at, ids[hit->n_match]);
        if (at == NONE) return;
        const lg_prefix_node *node = &t->node[at];
        uint32_t k = n_common(node, ids + hit->n_match, n - hit->n_match);
        hit->n_match += k;
        if (k < node->n) return;
        if (node->snap == NONE) continue;
        hit->node = at;
        hit->pos = hit->n_match;
    }
}

void lg_prefix_pages(const lg_prefix *t, const lg_prefix_hit *hit, uint32_t *page) {
    uint32_t left =
        pages_of(hit->pos); /* entries not known yet; the deepest node of a page knows best */
    for (uint32_t at = hit->node; at != NONE; at = t->node[at].parent)
        if (t->node[at].pos / LG_PAGE_TOK < left) page[--left] = t->node[at].page;
    LG_ASSERT(left == 0);
}

void lg_prefix_touch(lg_prefix *t, uint32_t node) {
    t->node[node].used = t->clock;
}

/* ---- eviction ---- */

/* What evicting a snapshot means.  A leaf goes with the pages that only led to it. */
typedef struct loss {
    double score;
    uint32_t n_page; /* pages that become free */
} loss;

static loss loss_of(const lg_prefix *t, uint32_t at) {
    const lg_prefix_node *n = &t->node[at];
    bool leaf = n->child == NONE;
    uint32_t end = n->pos + n->n, last = NONE, up = at;
    loss l = {0};
    do { /* to the snapshot from which one would compute again */
        n = &t->node[up];
        if (leaf && n->page != last && t->pages->n_seq[n->page] == 0) l.n_page++;
        last = n->page;
        up = n->parent;
        if (up != NONE && t->node[up].child != NONE && leaf)
            leaf = t->node[t->node[up].child].next == NONE;
    } while (up != NONE && t->node[up].snap == NONE);
    uint32_t from = up == NONE ? 0 : t->node[up].pos + t->node[up].n;
    l.score = t->node[at].used + (end - from) / (1.0 + l.n_page * t->page_cost);
    return l;
}

/* Evict the cheapest of the next LOOK snapshots that would do: any, or (for_pages) leaves that free a page; where no leaf does, the
 * cheapest leaf.  false when there is none. */
static bool evict(lg_prefix *t, bool for_pages, uint32_t keep) {
    uint32_t best = NONE, n_seen = 0;
    loss least = {0};
    for (uint32_t n = 0; n < t->n_snap && n_seen < LOOK; n++) {
        uint32_t i = t->hand, at = t->snap_node[i];
        t->hand = i + 1 < t->n_snap ? i + 1 : 0;
        if (at == NONE || at == keep || (for_pages && t->node[at].child != NONE)) continue;
        if (!for_pages && t->snap_hold[i]) continue; /* its number would not become free */
        loss l = loss_of(t, at);
        n_seen += !for_pages || l.n_page > 0;
        bool better = l.score < least.score;
        if (for_pages && (l.n_page > 0) != (least.n_page > 0)) better = l.n_page > 0;
        if (best != NONE && !better) continue;
        best = at;
        least = l;
    }
    if (best == NONE) return false;
    if (least.score > t->clock) t->clock = least.score;
    t->n_evicted++;
    if (t->node[best].child == NONE) {
        drop_branch(t, best);
    } else {
        drop_snap(t, best);
    }
    return true;
}

bool lg_prefix_make_room(lg_prefix *t, uint32_t n, uint32_t keep) {
    lg_pages *p = t->pages;
    if ((uint64_t)p->n_free + p->n_cached < n) return false;
    while (p->n_free < n)
        if (!evict(t, true, keep)) return false;
    return true;
}

uint32_t lg_prefix_reserve(lg_prefix *t) {
    if (t->n_snap_free == 0 && !evict(t, false, NONE)) return NONE;
    return t->snap_free[--t->n_snap_free];
}

void lg_prefix_hold_snap(lg_prefix *t, uint32_t snap) {
    LG_ASSERT(t->snap_node[snap] != NONE);
    t->snap_hold[snap]++;
}

void lg_prefix_let_snap(lg_prefix *t, uint32_t snap) {
    LG_ASSERT(t->snap_hold[snap] > 0);
    if (--t->snap_hold[snap] == 0 && t->snap_node[snap] == NONE)
        t->snap_free[t->n_snap_free++] = snap;
}

void lg_prefix_release(lg_prefix *t, uint32_t snap) {
    t->snap_free[t->n_snap_free++] = snap;
}

/* ---- keeping ---- */

/* Append a node below `parent` for the positions from pos to the end of its page or of the text. */
static uint32_t grow(lg_prefix *t, uint64_t salt, uint32_t parent, const uint32_t *ids,
                     uint32_t pos, uint32_t n, uint32_t page) {
    uint32_t at = take_node(t), room = LG_PAGE_TOK - pos % LG_PAGE_TOK;
    lg_prefix_node *node = &t->node[at];
    *node = (lg_prefix_node){.salt = salt,
                             .parent = parent,
                             .child = NONE,
                             .page = page,
                             .pos = pos,
                             .n = n - pos < room ? n - pos : room,
                             .snap = NONE};
    memcpy(node->id, ids + pos, node->n * sizeof *ids);
    node_hold(t->pages, page);
    link_node(t, at);
    return at;
}

/* Have a free node for the next split or growth; the path up to `at` stays. */
static bool have_node(lg_prefix *t, uint32_t at) {
    bool ok = true;
    t->pinned = at;
    while (ok && t->n_node_free == 0) ok = evict(t, true, at);
    t->pinned = NONE;
    return ok;
}

bool lg_prefix_keep(lg_prefix *t, uint64_t salt, const uint32_t *ids, uint32_t n,
                    const uint32_t *page, uint32_t snap) {
    uint32_t at = NONE, pos = 0;
    bool room = true;
    LG_ASSERT(n > 0);
    while (pos < n && (room = have_node(t, at))) {
        uint32_t child = find_child(t, salt, at, ids[pos]);
        if (child == NONE) {
            at = grow(t, salt, at, ids, pos, n, page[pos / LG_PAGE_TOK]);
            pos += t->node[at].n;
            continue;
        }
        uint32_t k = n_common(&t->node[child], ids + pos, n - pos);
        at = k < t->node[child].n ? split_node(t, child, k) : child;
        pos += k;
    }
    bool fresh = room && t->node[at].snap == NONE;
    if (fresh) {
        t->node[at].snap = snap;
        t->snap_node[snap] = at;
        t->n_kept++;
    } else {
        lg_prefix_release(t, snap);
        if (at != NONE && t->node[at].snap == NONE) drop_branch(t, at);
    }
    if (room) lg_prefix_touch(t, at);
    return fresh;
}

/* ---- throwing away ---- */

/* Free a node and all below it. */
static void drop_tree(lg_prefix *t, uint32_t root) {
    for (uint32_t at = root;;) {
        while (t->node[at].child != NONE) at = t->node[at].child;
        uint32_t parent = t->node[at].parent;
        if (t->node[at].snap != NONE) t->n_discarded++;
        if (at == root) break;
        drop_node(t, at);
        at = parent;
    }
    drop_branch(t, root);
}

void lg_prefix_discard(lg_prefix *t, uint64_t salt, const uint32_t *ids, uint32_t n,
                       uint32_t from) {
    if (t->n_node == 0) return;
    for (uint32_t at = NONE, pos = 0; pos < n;) {
        at = find_child(t, salt, at, ids[pos]);
        if (at == NONE) return;
        const lg_prefix_node *node = &t->node[at];
        if (n_common(node, ids + pos, n - pos) < node->n) return;
        pos += node->n;
        if (node->snap == NONE || pos < from) continue;
        drop_tree(t, at);
        return;
    }
}

void lg_prefix_clear(lg_prefix *t) {
    for (uint32_t i = 0; i < t->n_snap; i++) {
        uint32_t at = t->snap_node[i];
        if (at == NONE) continue;
        drop_snap(t, at);
        if (t->node[at].child == NONE) drop_branch(t, at);
    }
}
