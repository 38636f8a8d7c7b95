/* tokbuild.c - the tables of a tokenizer, entry by entry: see tokbuild.h.
 *
 * Thread: any, one builder each.  Test: tests/unit/test_tokload.c, tests/unit/test_gguf.c */
#include "model/text/tokbuild.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define SHOW      LG_TOKBUILD_SHOW
#define HOLES     8 /* ids without meaning that are put up with, for each token */
#define MAX_MERGE (2 * (uint64_t)LG_TOKBUILD_MAX_ID)

const char *lg_tokbuild_show(const char *s, size_t len_bytes, char out[LG_TOKBUILD_SHOW]) {
    size_t max = SHOW - 6, n = len_bytes < max ? len_bytes : lg_utf8_whole(s, max);
    out[0] = '"';
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)s[i];
        out[1 + i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    memcpy(out + 1 + n, n < len_bytes ? "...\"" : "\"", n < len_bytes ? 5 : 2);
    return out;
}

static lg_status no_memory(const lg_tokbuild *b) {
    return LG_FAIL(b->err, LG_E_NOMEM, "%s: out of memory", b->what);
}

/* ---- From bytes to ids ---- */

/* The byte-level alphabet: a printable byte of Latin-1 is its own character, the others are U+0100 and up in order. */
static void init_alphabet(lg_tokbuild *b) {
    for (size_t i = 0; i < LG_TOKBUILD_ALPHABET; i++) b->byte_of[i] = -1;
    size_t next = 256;
    for (int x = 0; x < 256; x++) {
        bool own = (x >= 33 && x <= 126) || (x >= 161 && x <= 172) || x >= 174;
        b->byte_of[own ? (size_t)x : next++] = (int16_t)x;
    }
}

/* Bytes that s, text in the byte-level alphabet, stands for, to out (room for len_bytes).  SIZE_MAX when s has another
 * character. */
static size_t bytes_of(const lg_tokbuild *b, const char *s, size_t len_bytes, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < len_bytes;) {
        uint32_t cp;
        i += lg_utf8_next(s + i, len_bytes - i, &cp);
        if (cp >= LG_TOKBUILD_ALPHABET || b->byte_of[cp] < 0) return SIZE_MAX;
        out[n++] = (char)b->byte_of[cp];
    }
    return n;
}

static uint64_t hash(const char *s, size_t len_bytes) {
    uint64_t h = len_bytes, w;
    for (; len_bytes >= 8; s += 8, len_bytes -= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    w = 0;
    memcpy(&w, s, len_bytes);
    h = (h ^ w) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* The slot of these bytes: the one that holds them, or a free one. */
static uint64_t *slot_of(const lg_tokbuild *b, const char *s, size_t len_bytes, uint64_t h) {
    const lg_bpe *bpe = &b->tok->bpe;
    for (uint64_t i = h;; i++) {
        uint64_t *slot = &b->slot[i & b->mask];
        if (*slot == 0) return slot;
        if (*slot >> 32 != h >> 32) continue;
        const lg_bpe_piece *p = &bpe->piece[(uint32_t)*slot - 1];
        if (p->len == len_bytes && memcmp(bpe->bytes + p->off, s, len_bytes) == 0) return slot;
    }
}

static uint32_t find(const lg_tokbuild *b, const char *s, size_t len_bytes) {
    uint64_t slot = *slot_of(b, s, len_bytes, hash(s, len_bytes));
    return slot ? (uint32_t)slot - 1 : LG_BPE_NONE;
}

void lg_tokbuild_init(lg_tokbuild *b, lg_tokenizer *tok, const char *what, const char *vocab,
                      const char *merges, lg_err *err) {
    *b = (lg_tokbuild){.tok = tok, .what = what, .vocab = vocab, .merges = merges, .err = err};
    init_alphabet(b);
}

void lg_tokbuild_fini(lg_tokbuild *b) {
    LG_FREE(b->slot);
    LG_FREE(b->pair);
}

/* ---- Vocabulary ---- */

lg_status lg_tokbuild_reserve(lg_tokbuild *b, uint32_t n_id, uint64_t n_token, uint64_t n_added,
                              uint64_t text_bytes) {
    lg_bpe *bpe = &b->tok->bpe;
    bpe->n_id = n_id;
    if (n_id > HOLES * (n_token + n_added) + 4096)
        return LG_FAIL(b->err, LG_E_FORMAT,
                       "%s: largest id is %u, but there are only %llu tokens", b->what,
                       n_id - 1, (unsigned long long)(n_token + n_added));
    if (text_bytes >= UINT32_MAX)
        return LG_FAIL(b->err, LG_E_UNSUPPORTED, "%s: vocabulary of more than 4 GiB", b->what);
    uint64_t n_slot = 16;
    while (n_slot < 2 * n_token) n_slot *= 2;
    b->mask = n_slot - 1;
    b->slot = lg_mem_calloc(n_slot, sizeof *b->slot);
    bpe->piece = lg_mem_calloc(n_id, sizeof *bpe->piece);
    bpe->bytes = lg_mem_realloc(NULL, text_bytes);
    return b->slot && bpe->piece && bpe->bytes ? LG_OK : no_memory(b);
}

lg_status lg_tokbuild_token(lg_tokbuild *b, uint32_t id, const char *text, size_t len_bytes) {
    char buf[SHOW];
    lg_bpe *bpe = &b->tok->bpe;
    char *s = bpe->bytes + b->n_byte;
    size_t len = bytes_of(b, text, len_bytes, s);
    if (len == 0 || len == SIZE_MAX)
        return LG_FAIL(b->err, LG_E_FORMAT, "%s: %s: %s is not text of the byte-level alphabet",
                       b->what, b->vocab, lg_tokbuild_show(text, len_bytes, buf));
    uint64_t h = hash(s, len), *slot = slot_of(b, s, len, h);
    if (*slot || bpe->piece[id].len)
        return LG_FAIL(b->err, LG_E_FORMAT, "%s: %s: %s: its %s is there twice", b->what,
                       b->vocab, lg_tokbuild_show(text, len_bytes, buf), *slot ? "text" : "id");
    *slot = h >> 32 << 32 | (id + 1);
    bpe->piece[id] = (lg_bpe_piece){.off = (uint32_t)b->n_byte, .len = (uint32_t)len};
    b->n_byte += len;
    return LG_OK;
}

lg_status lg_tokbuild_bytes(lg_tokbuild *b) {
    lg_bpe *bpe = &b->tok->bpe;
    for (int x = 0; x < 256; x++) {
        char c = (char)x;
        bpe->byte_id[x] = find(b, &c, 1);
        if (bpe->byte_id[x] == LG_BPE_NONE)
            return LG_FAIL(b->err, LG_E_FORMAT, "%s: %s: byte 0x%02x has no id", b->what,
                           b->vocab, (unsigned)x);
    }
    return LG_OK;
}

/* ---- Added tokens ---- */

lg_status lg_tokbuild_added(lg_tokbuild *b, uint32_t id, const char *text, size_t len_bytes,
                            bool special, const char *where) {
    char buf[SHOW];
    lg_bpe *bpe = &b->tok->bpe;
    char *s = bpe->bytes + b->n_byte;
    size_t len = bytes_of(b, text, len_bytes, s);
    uint32_t other = len == SIZE_MAX ? LG_BPE_NONE : find(b, s, len);
    lg_bpe_piece *p = &bpe->piece[id];
    if ((other != LG_BPE_NONE && other != id) || (p->len && other != id) ||
        p->flag & LG_BPE_ADDED)
        return LG_FAIL(b->err, LG_E_FORMAT,
                       "%s: %s: %s and id %u: one of them is already taken", b->what, where,
                       lg_tokbuild_show(text, len_bytes, buf), (unsigned)id);
    memcpy(s, text, len_bytes);
    *p = (lg_bpe_piece){
        .off = (uint32_t)b->n_byte, .len = (uint32_t)len_bytes, .flag = LG_BPE_ADDED};
    if (special) p->flag |= LG_BPE_SPECIAL;
    b->n_byte += len_bytes;
    return LG_OK;
}

/* An added token for sorting: by first byte, then the longest first, then by content. */
typedef struct entry {
    const char *s;
    uint32_t len, id;
} entry;

static int compare(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    if (a->s[0] != b->s[0]) return (uint8_t)a->s[0] < (uint8_t)b->s[0] ? -1 : 1;
    if (a->len != b->len) return a->len > b->len ? -1 : 1;
    return memcmp(a->s, b->s, a->len);
}

lg_status lg_tokbuild_sort(lg_tokbuild *b, size_t n) {
    lg_tokenizer *tok = b->tok;
    entry *list = lg_mem_calloc(n, sizeof *list);
    tok->added = lg_mem_calloc(n, sizeof *tok->added);
    if (!list || !tok->added) {
        lg_mem_free(list);
        return no_memory(b);
    }
    size_t i = 0;
    for (uint32_t id = 0; id < tok->bpe.n_id; id++) {
        const lg_bpe_piece *p = &tok->bpe.piece[id];
        if (p->flag & LG_BPE_ADDED)
            list[i++] = (entry){.s = tok->bpe.bytes + p->off, .len = p->len, .id = id};
    }
    LG_ASSERT(i == n);
    qsort(list, n, sizeof *list, compare);
    lg_status st = LG_OK;
    for (i = 0; i < n; i++) {
        char buf[SHOW];
        tok->added[i] = list[i].id;
        tok->first[(uint8_t)list[i].s[0] + 1]++;
        if (i > 0 && compare(&list[i - 1], &list[i]) == 0)
            st = LG_FAIL(b->err, LG_E_FORMAT, "%s: added_tokens: %s appears twice", b->what,
                         lg_tokbuild_show(list[i].s, list[i].len, buf));
    }
    for (size_t x = 0; x < 256; x++) tok->first[x + 1] += tok->first[x];
    lg_mem_free(list);
    return st;
}

/* ---- Merges ---- */

lg_status lg_tokbuild_n_merge(lg_tokbuild *b, uint64_t n) {
    if (n > MAX_MERGE)
        return LG_FAIL(b->err, LG_E_UNSUPPORTED, "%s: %s: found %llu, expected at most 2^25",
                       b->what, b->merges, (unsigned long long)n);
    return lg_bpe_reserve(&b->tok->bpe, n) == LG_OK ? LG_OK : no_memory(b);
}

lg_status lg_tokbuild_merge(lg_tokbuild *b, const char *left, size_t n_left, const char *right,
                            size_t n_right) {
    char buf[SHOW], buf2[SHOW];
    const char *why = NULL;
    if (n_left + n_right > b->cap_pair) {
        char *p = lg_mem_realloc(b->pair, n_left + n_right + 256);
        if (!p) return no_memory(b);
        b->pair = p;
        b->cap_pair = n_left + n_right + 256;
    }
    size_t nl = bytes_of(b, left, n_left, b->pair), nr = 0;
    uint32_t l = nl == SIZE_MAX ? LG_BPE_NONE : find(b, b->pair, nl), r = LG_BPE_NONE,
             id = LG_BPE_NONE;
    if (l != LG_BPE_NONE) {
        nr = bytes_of(b, right, n_right, b->pair + nl);
        if (nr != SIZE_MAX) r = find(b, b->pair + nl, nr);
    }
    if (r != LG_BPE_NONE) id = find(b, b->pair, nl + nr);
    lg_bpe_merge *m = NULL;
    if (l == LG_BPE_NONE)
        why = "left is not in the vocabulary";
    else if (r == LG_BPE_NONE)
        why = "right is not in the vocabulary";
    else if (id == LG_BPE_NONE)
        why = "result is not in the vocabulary";
    else if ((m = lg_bpe_slot(&b->tok->bpe, l, r))->rank != LG_BPE_NONE)
        why = "appears twice";
    if (why)
        return LG_FAIL(b->err, LG_E_FORMAT, "%s: %s[%u]: %s %s: %s", b->what, b->merges,
                       b->n_merge_done, lg_tokbuild_show(left, n_left, buf),
                       lg_tokbuild_show(right, n_right, buf2), why);
    *m = (lg_bpe_merge){.left = l, .right = r, .rank = b->n_merge_done++, .id = id};
    return LG_OK;
}
