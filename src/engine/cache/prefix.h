/* prefix.h - which beginnings of texts are kept: a radix tree over token ids.
 *
 * A node holds the ids of some positions inside one KV page, and a reference to that page; the page is good for all
 * positions of it up to the node's end.  Where texts part, a node is split: both halves refer to the page.  A node may carry a
 * snapshot: the recurrent state right after its last id.  Only snapshots make a hit, so hit length and snapshot position are
 * one number; each leaf carries one.  Texts of different salts share nothing.
 *
 * Eviction (Greedy-Dual-Size, Cao and Irani 1997): the least of (clock when last used + tokens to compute again / bytes) goes,
 * of 64 looked at in turn when there are more; the clock advances to what went.  What a running sequence uses stays: it holds references of its own to its pages, and its
 * state is a copy.
 * Thread: engine.  Memory: one block at init; nothing later.  Test: tests/unit/test_prefix.c */
#ifndef LG_ENGINE_CACHE_PREFIX_H
#define LG_ENGINE_CACHE_PREFIX_H

#include "backend/backend.h"

#define LG_PREFIX_NONE UINT32_MAX

/* Pages and who refers to them. */
typedef struct lg_pages {
    uint32_t n;
    uint32_t *stack, n_free; /* free numbers */
    uint32_t *n_seq;         /* [n] references of sequences */
    uint32_t *n_node;        /* [n] references of nodes */
    uint32_t n_cached;       /* pages that nodes alone refer to */
} lg_pages;

/* Take or give a reference of a sequence; a page without any is free. */
void lg_pages_hold(lg_pages *p, uint32_t page);
void lg_pages_drop(lg_pages *p, uint32_t page);

/* Take a free page (there is one), with a reference as of a sequence. */
uint32_t lg_pages_take(lg_pages *p);

typedef struct lg_prefix_node {
    uint64_t salt;
    uint32_t parent, child, next, prev; /* first child, siblings; LG_PREFIX_NONE */
    uint32_t chain;                     /* next of the same bucket, or of the free list */
    uint32_t page, pos, n; /* the ids are of positions [pos, pos + n) of the text */
    uint32_t snap;         /* LG_PREFIX_NONE: none */
    double used;           /* clock when the snapshot was last used */
    uint32_t id[LG_PAGE_TOK];
} lg_prefix_node;

typedef struct lg_prefix {
    lg_pages *pages; /* borrowed */
    lg_prefix_node *node;
    uint32_t n_node, node_free, n_node_free;
    uint32_t *bucket, n_bucket; /* a power of two */
    uint32_t *snap_free, n_snap, n_snap_free;
    uint32_t *snap_node; /* [n_snap] node that carries it, or LG_PREFIX_NONE */
    uint32_t
        *snap_hold;  /* [n_snap] readers: its number is not given out before they let it go */
    uint32_t n_kept; /* snapshots in the tree */
    uint32_t pinned; /* node that stays while a path grows, or LG_PREFIX_NONE */
    uint32_t hand;   /* the next snapshot number that eviction looks at */
    double clock;
    double page_cost; /* bytes of a page / bytes of a snapshot */
    uint64_t n_evicted, n_discarded;
    void *block; /* owned */
} lg_prefix;

/* What is known of a text. */
typedef struct lg_prefix_hit {
    uint32_t node;    /* carries the deepest snapshot; LG_PREFIX_NONE: none */
    uint32_t pos;     /* its position: so many ids need not be computed */
    uint32_t n_match; /* ids on the tree, >= pos */
} lg_prefix_hit;

/* Bytes that lg_prefix_init will take. */
uint64_t lg_prefix_bytes(uint32_t n_page, uint32_t n_snap);

/* LG_OK or LG_E_NOMEM.  Without snapshots (n_snap 0) nothing is ever kept. */
lg_status lg_prefix_init(lg_prefix *t, lg_pages *pages, uint32_t n_snap, uint64_t page_bytes,
                         uint64_t snap_bytes);
void lg_prefix_fini(lg_prefix *t);

/* Find the deepest snapshot at or before n ids, and the pages of its positions: page[i], i < pages of hit->pos. */
void lg_prefix_find(const lg_prefix *t, uint64_t salt, const uint32_t *ids, uint32_t n,
                    lg_prefix_hit *hit);
void lg_prefix_pages(const lg_prefix *t, const lg_prefix_hit *hit, uint32_t *page);

/* The snapshot of this hit was used. */
void lg_prefix_touch(lg_prefix *t, uint32_t node);

/* Take a snapshot number, evicting another one if all are used.  LG_PREFIX_NONE when there is none to be had. */
uint32_t lg_prefix_reserve(lg_prefix *t);

/* Keep ids[0, n) with the snapshot of a reserved number; page[i] holds positions i * LG_PAGE_TOK ...  Pages already on the tree are
 * not taken twice.  false when it was there already, or there was no room: the number is free again then. */
bool lg_prefix_keep(lg_prefix *t, uint64_t salt, const uint32_t *ids, uint32_t n,
                    const uint32_t *page, uint32_t snap);

/* Give a reserved number back. */
void lg_prefix_release(lg_prefix *t, uint32_t snap);

/* Someone reads the memory of a kept snapshot; it may leave the tree meanwhile. */
void lg_prefix_hold_snap(lg_prefix *t, uint32_t snap);
void lg_prefix_let_snap(lg_prefix *t, uint32_t snap);

/* Have n free pages, evicting if need be; never the node `keep` (LG_PREFIX_NONE: none), whose pages the caller holds.
 * false when that is impossible; texts may have been evicted in vain then, since pages that only `keep` needs cannot go. */
bool lg_prefix_make_room(lg_prefix *t, uint32_t n, uint32_t keep);

/* Throw away what may be wrong of ids[0, n): the first snapshot at or after position `from`, and all that continues it. */
void lg_prefix_discard(lg_prefix *t, uint64_t salt, const uint32_t *ids, uint32_t n,
                       uint32_t from);

/* Throw away everything. */
void lg_prefix_clear(lg_prefix *t);

#endif
