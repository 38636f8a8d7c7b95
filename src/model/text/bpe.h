/* bpe.h - vocabulary and merge table of a byte-level BPE, and the merging itself.
 *
 * Ids, bytes and merges are filled in by tokload.c, which checks them; afterwards only the scratch changes.
 * Thread: one at a time.  Test: tests/unit/test_tokenizer.c */
#ifndef LG_MODEL_TEXT_BPE_H
#define LG_MODEL_TEXT_BPE_H

#include "model/text/tokenizer.h"

#define LG_BPE_NONE UINT32_MAX

enum { LG_BPE_ADDED = 1, LG_BPE_SPECIAL = 2 };

/* What one id stands for. */
typedef struct lg_bpe_piece {
    uint32_t off;  /* byte in lg_bpe.bytes */
    uint32_t len;  /* bytes; 0 = the id means nothing */
    uint32_t flag; /* LG_BPE_ADDED, LG_BPE_SPECIAL */
} lg_bpe_piece;

/* One slot of the merge table: left, right -> id, and how early it is merged. */
typedef struct lg_bpe_merge {
    uint32_t left, right;
    uint32_t rank; /* LG_BPE_NONE = free slot */
    uint32_t id;
} lg_bpe_merge;

/* A symbol of the word that is being merged. */
typedef struct lg_bpe_sym {
    uint32_t id; /* LG_BPE_NONE = swallowed by its left neighbour */
    uint32_t prev, next;
} lg_bpe_sym;

typedef struct lg_bpe {
    lg_bpe_piece *piece; /* [n_id] owned */
    uint32_t n_id;
    char *bytes;           /* owned: the bytes of all pieces */
    lg_bpe_merge *merge;   /* [merge_mask + 1] owned: open addressing */
    uint32_t merge_mask;   /* slots less one; slots are a power of two */
    uint32_t byte_id[256]; /* id of each single byte */
    lg_bpe_sym *sym;       /* owned scratch */
    uint64_t *heap;        /* owned scratch: rank << 32 | position, smallest first */
    size_t cap_sym, cap_heap, n_heap;
} lg_bpe;

void lg_bpe_fini(lg_bpe *bpe);

/* Make an empty table for n_merge merges.  LG_OK, LG_E_NOMEM. */
lg_status lg_bpe_reserve(lg_bpe *bpe, size_t n_merge);

/* The slot of this pair: taken (rank != LG_BPE_NONE), or free and right for it. */
lg_bpe_merge *lg_bpe_slot(const lg_bpe *bpe, uint32_t left, uint32_t right);

/* Append the ids of word[len_bytes], len_bytes < 2^32 - 1: the pair of lowest rank is merged first, the leftmost of
 * equals.  O(n log n).  LG_OK, LG_E_NOMEM. */
lg_status lg_bpe_word(lg_bpe *bpe, const char *word, size_t len_bytes, lg_ids *ids);

/* Give back scratch that an unusually long word left behind. */
void lg_bpe_trim(lg_bpe *bpe);

#endif
