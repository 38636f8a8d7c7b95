/* tokload.c - build a tokenizer from the parsed tokenizer.json: see tokload.h.
 *
 * Order: the stages (normaliser, pre-tokenizer, post-processor, decoder), then vocabulary, added tokens, merges.  Fails
 * closed: a member that is not known, or known with a value that would change the ids, is an error naming it.
 * Invariants afterwards: every byte has an id; ids, contents and merges are unique; a merge's result is in the
 * vocabulary.   Memory: the table from bytes to ids lives only while loading.   Test: tests/unit/test_tokenizer.c */
#include "model/tokload.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ID    (((uint32_t)1 << 24) - 1)
#define ALPHABET  324 /* code points of the byte-level alphabet lie below this */
#define SHOW      72  /* bytes of a value shown in messages */
#define HOLES     8   /* ids without meaning that are put up with, for each token */
#define MAX_MERGE (2 * (size_t)MAX_ID)

typedef struct loader {
    lg_tokenizer *tok;
    const char *what;
    lg_err *err;
    int16_t byte_of[ALPHABET]; /* byte of a character of the alphabet, -1 = none */
    uint64_t *slot;            /* [mask + 1] tag << 32 | id + 1; 0 = free */
    uint64_t mask;
    size_t n_byte, cap_byte; /* of bpe.bytes */
    char *left, *right;      /* scratch: the bytes of one merge */
    size_t cap_merge;
} loader;

/* ---- Messages ---- */

/* Text for a message: quoted, cut, without control characters. */
static const char *show_text(const char *s, size_t len_bytes, char out[SHOW]) {
    size_t max = SHOW - 6, n = len_bytes < max ? len_bytes : lg_utf8_whole(s, max);
    out[0] = '"';
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)s[i];
        out[1 + i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    memcpy(out + 1 + n, n < len_bytes ? "...\"" : "\"", n < len_bytes ? 5 : 2);
    return out;
}

static const char *show(const lg_json *v, char out[SHOW]) {
    if (!v) return "nothing";
    switch (v->kind) {
    case LG_JSON_FALSE: return "false";
    case LG_JSON_TRUE: return "true";
    case LG_JSON_STRING: return show_text(v->text, v->text_len, out);
    case LG_JSON_NUMBER: snprintf(out, SHOW, "%.40s", v->text); return out;
    default: return lg_json_kind_name(v->kind);
    }
}

static lg_status no_memory(const loader *ld) {
    return LG_FAIL(ld->err, LG_E_NOMEM, "%s: out of memory", ld->what);
}

/* `path.field` (or `path` alone when field is NULL) holds v, which is not `expected`. */
static lg_status unsupported(const loader *ld, const char *path, const char *field,
                             const lg_json *v, const char *expected) {
    char buf[SHOW];
    return LG_FAIL(ld->err, LG_E_UNSUPPORTED, "%s: %s%s%s: expected %s, found %s", ld->what,
                   path, field && *path ? "." : "", field ? field : "", expected, show(v, buf));
}

/* ---- Field checks ---- */

enum { ABSENT = 1, NIL = 2, NO = 4, YES = 8, EMPTY = 16 };

static lg_status allow(const loader *ld, const lg_json *obj, const char *path,
                       const char *field, unsigned allowed, const char *expected) {
    const lg_json *v = lg_json_get(obj, field);
    unsigned is = 0;
    if (!v)
        is = ABSENT;
    else if (v->kind == LG_JSON_NULL)
        is = NIL;
    else if (v->kind == LG_JSON_FALSE)
        is = NO;
    else if (v->kind == LG_JSON_TRUE)
        is = YES;
    else if (v->kind == LG_JSON_STRING && v->text_len == 0)
        is = EMPTY;
    return is & allowed ? LG_OK : unsupported(ld, path, field, v, expected);
}

/* v is an object whose members are among names (ends with NULL), each at most once. */
static lg_status known(const loader *ld, const lg_json *v, const char *path,
                       const char *const *names) {
    char buf[SHOW];
    if (!v || v->kind != LG_JSON_OBJECT) return unsupported(ld, path, NULL, v, "an object");
    unsigned seen = 0;
    for (const lg_json *m = v->child; m; m = m->next) {
        size_t i = 0;
        while (names[i] &&
               (strlen(names[i]) != m->key_len || memcmp(names[i], m->key, m->key_len) != 0))
            i++;
        if (!names[i])
            return LG_FAIL(ld->err, LG_E_UNSUPPORTED, "%s: %s: member %s is not known",
                           ld->what, *path ? path : "top level",
                           show_text(m->key, m->key_len, buf));
        if (seen >> i & 1)
            return LG_FAIL(ld->err, LG_E_FORMAT, "%s: %s: member %s appears twice", ld->what,
                           *path ? path : "top level", names[i]);
        seen |= 1u << i;
    }
    return LG_OK;
}

static lg_status string_is(const loader *ld, const lg_json *obj, const char *path,
                           const char *field, const char *value) {
    char expected[SHOW];
    const lg_json *v = lg_json_get(obj, field);
    if (lg_json_is(v, value)) return LG_OK;
    return unsupported(ld, path, field, v, show_text(value, strlen(value), expected));
}

/* ---- Stages ---- */

static lg_status load_normalizer(loader *ld, const lg_json *root) {
    static const char *const names[] = {"type", NULL};
    const lg_json *v = lg_json_get(root, "normalizer");
    if (!v || v->kind == LG_JSON_NULL) return LG_OK;
    LG_TRY(known(ld, v, "normalizer", names));
    LG_TRY(string_is(ld, v, "normalizer", "type", "NFC"));
    ld->tok->nfc = true;
    return LG_OK;
}

static lg_status check_byte_level(const loader *ld, const lg_json *v, const char *path) {
    static const char *const names[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    LG_TRY(known(ld, v, path, names));
    LG_TRY(string_is(ld, v, path, "type", "ByteLevel"));
    for (size_t i = 1; names[i]; i++)
        LG_TRY(allow(ld, v, path, names[i], ABSENT | NO | YES, "true or false"));
    return LG_OK;
}

static lg_status load_pre_tokenizer(loader *ld, const lg_json *root) {
    static const char *const top[] = {"type", "pretokenizers", NULL};
    static const char *const split[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const regex[] = {"Regex", NULL};
    static const char at0[] = "pre_tokenizer.pretokenizers[0]";
    static const char at1[] = "pre_tokenizer.pretokenizers[1]";
    const lg_json *v = lg_json_get(root, "pre_tokenizer");
    LG_TRY(known(ld, v, "pre_tokenizer", top));
    LG_TRY(string_is(ld, v, "pre_tokenizer", "type", "Sequence"));
    const lg_json *list = lg_json_get(v, "pretokenizers");
    if (!list || list->kind != LG_JSON_ARRAY || list->n_child != 2)
        return unsupported(ld, "pre_tokenizer", "pretokenizers", list,
                           "an array of Split and ByteLevel");
    const lg_json *s = list->child, *b = s->next;
    LG_TRY(known(ld, s, at0, split));
    LG_TRY(string_is(ld, s, at0, "type", "Split"));
    LG_TRY(string_is(ld, s, at0, "behavior", "Isolated"));
    LG_TRY(allow(ld, s, at0, "invert", ABSENT | NO, "false"));
    const lg_json *pattern = lg_json_get(s, "pattern");
    LG_TRY(known(ld, pattern, "pre_tokenizer.pretokenizers[0].pattern", regex));
    const lg_json *text = lg_json_get(pattern, "Regex");
    if (!text || text->kind != LG_JSON_STRING || text->text_len == 0 ||
        strlen(text->text) != text->text_len)
        return unsupported(ld, "pre_tokenizer.pretokenizers[0].pattern", "Regex", text,
                           "a pattern without U+0000");
    LG_TRY(check_byte_level(ld, b, at1));
    LG_TRY(allow(ld, b, at1, "add_prefix_space", NO, "false"));
    LG_TRY(allow(ld, b, at1, "use_regex", NO, "false"));
    return lg_pretok_open(text->text, true, ld->what, &ld->tok->pretok, ld->err);
}

static lg_status load_stages(loader *ld, const lg_json *root) {
    static const char *const names[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    LG_TRY(known(ld, root, "", names));
    LG_TRY(string_is(ld, root, "", "version", "1.0"));
    LG_TRY(allow(ld, root, "", "truncation", ABSENT | NIL, "null"));
    LG_TRY(allow(ld, root, "", "padding", ABSENT | NIL, "null"));
    LG_TRY(load_normalizer(ld, root));
    LG_TRY(load_pre_tokenizer(ld, root));
    const lg_json *post = lg_json_get(root, "post_processor");
    if (post && post->kind != LG_JSON_NULL)
        LG_TRY(check_byte_level(ld, post, "post_processor"));
    return check_byte_level(ld, lg_json_get(root, "decoder"), "decoder");
}

static lg_status check_model(const loader *ld, const lg_json *model) {
    static const char *const names[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges",
                                        NULL};
    LG_TRY(known(ld, model, "model", names));
    LG_TRY(string_is(ld, model, "model", "type", "BPE"));
    LG_TRY(allow(ld, model, "model", "dropout", ABSENT | NIL, "null"));
    LG_TRY(allow(ld, model, "model", "unk_token", ABSENT | NIL, "null"));
    LG_TRY(
        allow(ld, model, "model", "continuing_subword_prefix", ABSENT | NIL | EMPTY, "null"));
    LG_TRY(allow(ld, model, "model", "end_of_word_suffix", ABSENT | NIL | EMPTY, "null"));
    LG_TRY(allow(ld, model, "model", "fuse_unk", ABSENT | NIL | NO, "false"));
    LG_TRY(allow(ld, model, "model", "byte_fallback", ABSENT | NIL | NO, "false"));
    return allow(ld, model, "model", "ignore_merges", ABSENT | NIL | NO, "false");
}

/* ---- From bytes to ids ---- */

/* The byte-level alphabet: a printable byte of Latin-1 is its own character, the others are U+0100 and up in order. */
static void init_alphabet(loader *ld) {
    for (size_t i = 0; i < ALPHABET; i++) ld->byte_of[i] = -1;
    size_t next = 256;
    for (int b = 0; b < 256; b++) {
        bool own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        ld->byte_of[own ? (size_t)b : next++] = (int16_t)b;
    }
}

/* Bytes that s, text in the byte-level alphabet, stands for, to out (room for len_bytes).  SIZE_MAX when s has another
 * character. */
static size_t bytes_of(const loader *ld, const char *s, size_t len_bytes, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < len_bytes;) {
        uint32_t cp;
        i += lg_utf8_next(s + i, len_bytes - i, &cp);
        if (cp >= ALPHABET || ld->byte_of[cp] < 0) return SIZE_MAX;
        out[n++] = (char)ld->byte_of[cp];
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
static uint64_t *slot_of(const loader *ld, const char *s, size_t len_bytes, uint64_t h) {
    const lg_bpe *bpe = &ld->tok->bpe;
    for (uint64_t i = h;; i++) {
        uint64_t *slot = &ld->slot[i & ld->mask];
        if (*slot == 0) return slot;
        if (*slot >> 32 != h >> 32) continue;
        const lg_bpe_piece *p = &bpe->piece[(uint32_t)*slot - 1];
        if (p->len == len_bytes && memcmp(bpe->bytes + p->off, s, len_bytes) == 0) return slot;
    }
}

static uint32_t find(const loader *ld, const char *s, size_t len_bytes) {
    uint64_t slot = *slot_of(ld, s, len_bytes, hash(s, len_bytes));
    return slot ? (uint32_t)slot - 1 : LG_BPE_NONE;
}

/* ---- Vocabulary ---- */

/* Read an id, and note the largest. */
static lg_status read_id(const loader *ld, const lg_json *v, const char *path, const char *name,
                         size_t name_len, uint32_t *id, uint32_t *n_id) {
    char buf[SHOW], buf2[SHOW];
    uint64_t x;
    if (!lg_json_u64(v, &x) || x > MAX_ID)
        return LG_FAIL(ld->err, LG_E_FORMAT,
                       "%s: %s: id of %s: expected an integer up to %u, found %s", ld->what,
                       path, show_text(name, name_len, buf), MAX_ID, show(v, buf2));
    *id = (uint32_t)x;
    if (*id >= *n_id) *n_id = *id + 1;
    return LG_OK;
}

/* Size the tables: count ids and bytes of vocabulary and added tokens. */
static lg_status reserve(loader *ld, const lg_json *vocab, const lg_json *added) {
    lg_bpe *bpe = &ld->tok->bpe;
    uint32_t id;
    for (const lg_json *m = vocab->child; m; m = m->next) {
        LG_TRY(read_id(ld, m, "model.vocab", m->key, m->key_len, &id, &bpe->n_id));
        ld->cap_byte += m->key_len;
    }
    for (const lg_json *a = added ? added->child : NULL; a; a = a->next) {
        const lg_json *content = lg_json_get(a, "content");
        if (!content || content->kind != LG_JSON_STRING || content->text_len == 0)
            return unsupported(ld, "added_tokens[]", "content", content, "a string, not empty");
        LG_TRY(read_id(ld, lg_json_get(a, "id"), "added_tokens", content->text,
                       content->text_len, &id, &bpe->n_id));
        ld->cap_byte += content->text_len;
    }
    uint64_t n_token = (uint64_t)vocab->n_child + (added ? added->n_child : 0);
    if (bpe->n_id > HOLES * n_token + 4096)
        return LG_FAIL(ld->err, LG_E_FORMAT,
                       "%s: largest id is %u, but there are only %llu tokens", ld->what,
                       bpe->n_id - 1, (unsigned long long)n_token);
    if (ld->cap_byte >= UINT32_MAX)
        return LG_FAIL(ld->err, LG_E_UNSUPPORTED, "%s: vocabulary of more than 4 GiB",
                       ld->what);
    uint64_t n_slot = 16;
    while (n_slot < 2 * (uint64_t)vocab->n_child) n_slot *= 2;
    ld->mask = n_slot - 1;
    ld->slot = lg_mem_calloc(n_slot, sizeof *ld->slot);
    bpe->piece = lg_mem_calloc(bpe->n_id, sizeof *bpe->piece);
    bpe->bytes = lg_mem_realloc(NULL, ld->cap_byte);
    return ld->slot && bpe->piece && bpe->bytes ? LG_OK : no_memory(ld);
}

static lg_status load_vocab(loader *ld, const lg_json *vocab) {
    char buf[SHOW];
    lg_bpe *bpe = &ld->tok->bpe;
    for (const lg_json *m = vocab->child; m; m = m->next) {
        char *s = bpe->bytes + ld->n_byte;
        size_t len = bytes_of(ld, m->key, m->key_len, s);
        if (len == 0 || len == SIZE_MAX)
            return LG_FAIL(ld->err, LG_E_FORMAT,
                           "%s: model.vocab: %s is not text of the byte-level alphabet",
                           ld->what, show_text(m->key, m->key_len, buf));
        uint64_t id = 0, h = hash(s, len), *slot = slot_of(ld, s, len, h);
        (void)lg_json_u64(m, &id); /* checked by reserve */
        if (*slot || bpe->piece[id].len)
            return LG_FAIL(ld->err, LG_E_FORMAT, "%s: model.vocab: %s: its %s is there twice",
                           ld->what, show_text(m->key, m->key_len, buf), *slot ? "text" : "id");
        *slot = h >> 32 << 32 | (id + 1);
        bpe->piece[id] = (lg_bpe_piece){.off = (uint32_t)ld->n_byte, .len = (uint32_t)len};
        ld->n_byte += len;
    }
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        bpe->byte_id[b] = find(ld, &c, 1);
        if (bpe->byte_id[b] == LG_BPE_NONE)
            return LG_FAIL(ld->err, LG_E_FORMAT, "%s: model.vocab: byte 0x%02x has no id",
                           ld->what, (unsigned)b);
    }
    return LG_OK;
}

/* ---- Added tokens ---- */

/* One added token: its flags, and that id and content agree with the vocabulary. */
static lg_status load_added_one(loader *ld, const lg_json *a, size_t index) {
    static const char *const names[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    char path[40], buf[SHOW];
    lg_bpe *bpe = &ld->tok->bpe;
    snprintf(path, sizeof path, "added_tokens[%zu]", index);
    LG_TRY(known(ld, a, path, names));
    for (size_t i = 2; i < 6; i++) LG_TRY(allow(ld, a, path, names[i], NO, "false"));
    LG_TRY(allow(ld, a, path, "special", NO | YES, "true or false"));
    const lg_json *content = lg_json_get(a, "content");
    uint64_t id = 0;
    (void)lg_json_u64(lg_json_get(a, "id"), &id); /* checked by reserve */
    char *s = bpe->bytes + ld->n_byte;
    size_t len = bytes_of(ld, content->text, content->text_len, s);
    uint32_t other = len == SIZE_MAX ? LG_BPE_NONE : find(ld, s, len);
    lg_bpe_piece *p = &bpe->piece[id];
    if ((other != LG_BPE_NONE && other != id) || (p->len && other != id) ||
        p->flag & LG_BPE_ADDED)
        return LG_FAIL(ld->err, LG_E_FORMAT,
                       "%s: %s: %s and id %u: one of them is already taken", ld->what, path,
                       show_text(content->text, content->text_len, buf), (unsigned)id);
    memcpy(s, content->text, content->text_len);
    *p = (lg_bpe_piece){
        .off = (uint32_t)ld->n_byte, .len = (uint32_t)content->text_len, .flag = LG_BPE_ADDED};
    if (lg_json_get(a, "special")->kind == LG_JSON_TRUE) p->flag |= LG_BPE_SPECIAL;
    ld->n_byte += content->text_len;
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

static lg_status load_added(loader *ld, const lg_json *added) {
    lg_tokenizer *tok = ld->tok;
    size_t n = added ? added->n_child : 0, i = 0;
    for (const lg_json *a = added ? added->child : NULL; a; a = a->next)
        LG_TRY(load_added_one(ld, a, i++));
    entry *list = lg_mem_calloc(n, sizeof *list);
    tok->added = lg_mem_calloc(n, sizeof *tok->added);
    if (!list || !tok->added) {
        lg_mem_free(list);
        return no_memory(ld);
    }
    i = 0;
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
            st = LG_FAIL(ld->err, LG_E_FORMAT, "%s: added_tokens: %s appears twice", ld->what,
                         show_text(list[i].s, list[i].len, buf));
    }
    for (size_t b = 0; b < 256; b++) tok->first[b + 1] += tok->first[b];
    lg_mem_free(list);
    return st;
}

/* ---- Merges ---- */

static lg_status bad_merge(const loader *ld, size_t index, const lg_json *v, const char *why) {
    char left[SHOW], right[SHOW] = "";
    bool pair = v->kind == LG_JSON_ARRAY && v->n_child == 2;
    return LG_FAIL(ld->err, LG_E_FORMAT, "%s: model.merges[%zu]: %s %s: %s", ld->what, index,
                   show(pair ? v->child : v, left), pair ? show(v->child->next, right) : "",
                   why);
}

/* The two halves of a merge as text of the byte-level alphabet. */
static bool halves(const lg_json *v, const char *s[2], size_t len[2]) {
    if (v->kind == LG_JSON_ARRAY && v->n_child == 2) {
        const lg_json *a = v->child, *b = a->next;
        s[0] = a->text, len[0] = a->text_len;
        s[1] = b->text, len[1] = b->text_len;
        return a->kind == LG_JSON_STRING && b->kind == LG_JSON_STRING;
    }
    if (v->kind != LG_JSON_STRING) return false;
    const char *space = memchr(v->text, ' ', v->text_len);
    if (!space) return false;
    s[0] = v->text, len[0] = (size_t)(space - v->text);
    s[1] = space + 1, len[1] = v->text_len - len[0] - 1;
    return true;
}

/* Bytes of both halves, one behind the other, in ld->left; ld->right points at the second. */
static lg_status merge_bytes(loader *ld, size_t index, const lg_json *v, size_t n[2]) {
    const char *s[2];
    size_t len[2];
    if (!halves(v, s, len)) return bad_merge(ld, index, v, "expected two pieces");
    if (len[0] + len[1] > ld->cap_merge) {
        char *p = lg_mem_realloc(ld->left, len[0] + len[1] + 256);
        if (!p) return no_memory(ld);
        ld->left = p;
        ld->cap_merge = len[0] + len[1] + 256;
    }
    n[0] = bytes_of(ld, s[0], len[0], ld->left);
    if (n[0] == SIZE_MAX) return bad_merge(ld, index, v, "left is not in the vocabulary");
    ld->right = ld->left + n[0];
    n[1] = bytes_of(ld, s[1], len[1], ld->right);
    if (n[1] == SIZE_MAX) return bad_merge(ld, index, v, "right is not in the vocabulary");
    return LG_OK;
}

static lg_status load_merges(loader *ld, const lg_json *merges) {
    lg_bpe *bpe = &ld->tok->bpe;
    if (merges->n_child > MAX_MERGE)
        return unsupported(ld, "model", "merges", merges, "at most 2^25 merges");
    if (lg_bpe_reserve(bpe, merges->n_child) != LG_OK) return no_memory(ld);
    uint32_t rank = 0;
    for (const lg_json *v = merges->child; v; v = v->next, rank++) {
        size_t n[2] = {0, 0};
        LG_TRY(merge_bytes(ld, rank, v, n));
        uint32_t left = find(ld, ld->left, n[0]), right = find(ld, ld->right, n[1]);
        if (left == LG_BPE_NONE) return bad_merge(ld, rank, v, "left is not in the vocabulary");
        if (right == LG_BPE_NONE)
            return bad_merge(ld, rank, v, "right is not in the vocabulary");
        uint32_t id = find(ld, ld->left, n[0] + n[1]);
        if (id == LG_BPE_NONE) return bad_merge(ld, rank, v, "result is not in the vocabulary");
        lg_bpe_merge *m = lg_bpe_slot(bpe, left, right);
        if (m->rank != LG_BPE_NONE) return bad_merge(ld, rank, v, "appears twice");
        *m = (lg_bpe_merge){.left = left, .right = right, .rank = rank, .id = id};
    }
    return LG_OK;
}

static lg_status load_model(loader *ld, const lg_json *root) {
    const lg_json *model = lg_json_get(root, "model"),
                  *added = lg_json_get(root, "added_tokens");
    LG_TRY(check_model(ld, model));
    const lg_json *vocab = lg_json_get(model, "vocab"), *merges = lg_json_get(model, "merges");
    if (!vocab || vocab->kind != LG_JSON_OBJECT)
        return unsupported(ld, "model", "vocab", vocab, "an object");
    if (!merges || merges->kind != LG_JSON_ARRAY)
        return unsupported(ld, "model", "merges", merges, "an array");
    if (added && added->kind != LG_JSON_ARRAY)
        return unsupported(ld, "", "added_tokens", added, "an array");
    LG_TRY(reserve(ld, vocab, added));
    LG_TRY(load_vocab(ld, vocab));
    LG_TRY(load_added(ld, added));
    return load_merges(ld, merges);
}

lg_status lg_tokload_build(lg_tokenizer *tok, const lg_json *root, const char *what,
                           lg_err *err) {
    loader ld = {.tok = tok, .what = what, .err = err};
    init_alphabet(&ld);
    lg_status st = load_stages(&ld, root);
    if (st == LG_OK) st = load_model(&ld, root);
    lg_mem_free(ld.slot);
    lg_mem_free(ld.left);
    return st;
}
