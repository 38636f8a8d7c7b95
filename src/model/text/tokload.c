/* tokload.c - build a tokenizer from the parsed tokenizer.json: see tokload.h.
 *
 * Order: the stages (normaliser, pre-tokenizer, post-processor, decoder), then vocabulary, added tokens, merges.  Fails
 * closed: a member that is not known, or known with a value that would change the ids, is an error naming it.
 * The tables themselves are tokbuild.c's.   Test: tests/unit/test_tokenizer.c, tests/unit/test_tokload.c */
#include "model/text/tokload.h"

#include "model/text/tokbuild.h"

#include <stdio.h>
#include <string.h>

#define SHOW LG_TOKBUILD_SHOW

typedef struct loader {
    lg_tokenizer *tok;
    const char *what;
    lg_err *err;
    lg_tokbuild build;
} loader;

/* ---- Messages ---- */

static const char *show(const lg_json *v, char out[SHOW]) {
    if (!v) return "nothing";
    switch (v->kind) {
    case LG_JSON_FALSE: return "false";
    case LG_JSON_TRUE: return "true";
    case LG_JSON_STRING: return lg_tokbuild_show(v->text, v->text_len, out);
    case LG_JSON_NUMBER: snprintf(out, SHOW, "%.40s", v->text); return out;
    default: return lg_json_kind_name(v->kind);
    }
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
                           lg_tokbuild_show(m->key, m->key_len, buf));
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
    return unsupported(ld, path, field, v, lg_tokbuild_show(value, strlen(value), expected));
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

/* ---- Vocabulary ---- */

/* Read an id, and note the largest. */
static lg_status read_id(const loader *ld, const lg_json *v, const char *path, const char *name,
                         size_t name_len, uint32_t *id, uint32_t *n_id) {
    char buf[SHOW], buf2[SHOW];
    uint64_t x;
    if (!lg_json_u64(v, &x) || x > LG_TOKBUILD_MAX_ID)
        return LG_FAIL(ld->err, LG_E_FORMAT,
                       "%s: %s: id of %s: expected an integer up to %u, found %s", ld->what,
                       path, lg_tokbuild_show(name, name_len, buf), LG_TOKBUILD_MAX_ID,
                       show(v, buf2));
    *id = (uint32_t)x;
    if (*id >= *n_id) *n_id = *id + 1;
    return LG_OK;
}

/* Size the tables: count ids and bytes of vocabulary and added tokens. */
static lg_status reserve(loader *ld, const lg_json *vocab, const lg_json *added) {
    uint32_t id, n_id = 0;
    uint64_t text_bytes = 0;
    for (const lg_json *m = vocab->child; m; m = m->next) {
        LG_TRY(read_id(ld, m, "model.vocab", m->key, m->key_len, &id, &n_id));
        text_bytes += m->key_len;
    }
    for (const lg_json *a = added ? added->child : NULL; a; a = a->next) {
        const lg_json *content = lg_json_get(a, "content");
        if (!content || content->kind != LG_JSON_STRING || content->text_len == 0)
            return unsupported(ld, "added_tokens[]", "content", content, "a string, not empty");
        LG_TRY(read_id(ld, lg_json_get(a, "id"), "added_tokens", content->text,
                       content->text_len, &id, &n_id));
        text_bytes += content->text_len;
    }
    return lg_tokbuild_reserve(&ld->build, n_id, vocab->n_child, added ? added->n_child : 0,
                               text_bytes);
}

static lg_status load_vocab(loader *ld, const lg_json *vocab) {
    for (const lg_json *m = vocab->child; m; m = m->next) {
        uint64_t id = 0;
        (void)lg_json_u64(m, &id); /* checked by reserve */
        LG_TRY(lg_tokbuild_token(&ld->build, (uint32_t)id, m->key, m->key_len));
    }
    return lg_tokbuild_bytes(&ld->build);
}

/* ---- Added tokens ---- */

/* One added token: its flags, and that id and content agree with the vocabulary. */
static lg_status load_added_one(loader *ld, const lg_json *a, size_t index) {
    static const char *const names[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    char path[40];
    snprintf(path, sizeof path, "added_tokens[%zu]", index);
    LG_TRY(known(ld, a, path, names));
    for (size_t i = 2; i < 6; i++) LG_TRY(allow(ld, a, path, names[i], NO, "false"));
    LG_TRY(allow(ld, a, path, "special", NO | YES, "true or false"));
    const lg_json *content = lg_json_get(a, "content");
    uint64_t id = 0;
    (void)lg_json_u64(lg_json_get(a, "id"), &id); /* checked by reserve */
    bool special = lg_json_get(a, "special")->kind == LG_JSON_TRUE;
    return lg_tokbuild_added(&ld->build, (uint32_t)id, content->text, content->text_len,
                             special, path);
}

static lg_status load_added(loader *ld, const lg_json *added) {
    size_t n = added ? added->n_child : 0, i = 0;
    for (const lg_json *a = added ? added->child : NULL; a; a = a->next)
        LG_TRY(load_added_one(ld, a, i++));
    return lg_tokbuild_sort(&ld->build, n);
}

/* ---- Merges ---- */

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

static lg_status load_merges(loader *ld, const lg_json *merges) {
    size_t i = 0;
    LG_TRY(lg_tokbuild_n_merge(&ld->build, merges->n_child));
    for (const lg_json *v = merges->child; v; v = v->next, i++) {
        const char *s[2];
        size_t len[2];
        char buf[SHOW];
        if (!halves(v, s, len))
            return LG_FAIL(ld->err, LG_E_FORMAT,
                           "%s: model.merges[%zu]: %s : expected two pieces", ld->what, i,
                           show(v, buf));
        LG_TRY(lg_tokbuild_merge(&ld->build, s[0], len[0], s[1], len[1]));
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
    lg_tokbuild_init(&ld.build, tok, what, "model.vocab", "model.merges", err);
    lg_status st = load_stages(&ld, root);
    if (st == LG_OK) st = load_model(&ld, root);
    lg_tokbuild_fini(&ld.build);
    return st;
}
