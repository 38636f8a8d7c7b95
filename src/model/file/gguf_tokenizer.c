/* gguf_tokenizer.c - tokenizer.ggml.* of a GGUF file into a tokenizer: see gguf_tokenizer.h.
 *
 * The file names its pre-tokenizer and holds neither the pattern nor the normaliser: "qwen35" stands for Qwen3.5's pattern
 * (tokenizer.json of the published models) and NFC.  Ordinary tokens are text of the byte-level alphabet, added ones plain
 * text.  A begin token is never added, whatever its id.
 * Thread: any.  Memory: the tokenizer's.  Test: tests/unit/test_gguf.c, fuzz/fuzz_gguf.c */
#include "model/file/gguf_tokenizer.h"

#include "base/utf8.h"
#include "model/text/tokbuild.h"

#include <string.h>

#define KEYS   "tokenizer.ggml."
#define TOKENS KEYS "tokens"
#define TYPES  KEYS "token_type"
#define MERGES KEYS "merges"

/* Values of token_type. */
enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

typedef struct loader {
    const lg_gguf *g;
    lg_tokbuild build;
    const lg_gguf_value *token, *type, *merge;
    lg_err *err;
} loader;

static const char pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const char *lg_gguf_tokenizer_pattern(void) {
    return pattern;
}

static lg_status fail_value(const loader *ld, const char *key, lg_status code,
                            const char *expected) {
    char found[80];
    return LG_FAIL(ld->err, code, "%s: %s: found %s, expected %s", lg_gguf_what(ld->g), key,
                   lg_gguf_show(lg_gguf_find(ld->g, key), found, sizeof found), expected);
}

static bool ends(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Every key of the group is one of those read here, an id that is of no use here, or a switch that is off. */
static lg_status check_keys(const loader *ld) {
    static const char *const used[] = {"model", "pre", "tokens", "token_type", "merges"};
    static const char *const off[] = {"add_bos_token", "add_eos_token", "add_sep_token",
                                      "add_space_prefix", "remove_extra_whitespaces"};
    for (size_t i = 0; i < lg_gguf_count(ld->g); i++) {
        const char *key = lg_gguf_at(ld->g, i)->key;
        if (strncmp(key, KEYS, sizeof KEYS - 1) != 0) continue;
        const char *name = key + sizeof KEYS - 1;
        bool known = ends(name, "_token_id") || strcmp(name, "scores") == 0;
        for (size_t k = 0; k < LG_COUNT(used); k++) known = known || strcmp(name, used[k]) == 0;
        for (size_t k = 0; k < LG_COUNT(off); k++) {
            bool on = true;
            if (strcmp(name, off[k]) != 0) continue;
            known = lg_gguf_bool(lg_gguf_at(ld->g, i), 0, &on) && !on;
            if (!known) return fail_value(ld, key, LG_E_UNSUPPORTED, "false");
        }
        if (!known)
            return LG_FAIL(ld->err, LG_E_UNSUPPORTED,
                           "%s: %s: not understood, and it could change the ids",
                           lg_gguf_what(ld->g), key);
    }
    if (!lg_gguf_text_is(lg_gguf_find(ld->g, KEYS "model"), "gpt2"))
        return fail_value(ld, KEYS "model", LG_E_UNSUPPORTED, "gpt2");
    if (!lg_gguf_text_is(lg_gguf_find(ld->g, KEYS "pre"), "qwen35"))
        return fail_value(ld, KEYS "pre", LG_E_UNSUPPORTED, "qwen35");
    return LG_OK;
}

/* An array of that key, of strings or of integers. */
static lg_status find_array(const loader *ld, const char *key, bool strings, uint64_t max,
                            const lg_gguf_value **out) {
    const lg_gguf_value *v = lg_gguf_find(ld->g, key);
    int64_t first;
    bool fits = v && v->array && v->n <= max &&
                (strings ? v->type == LG_GGUF_STR : v->n == 0 || lg_gguf_int(v, 0, &first));
    *out = v;
    return fits ? LG_OK
                : fail_value(ld, key, LG_E_FORMAT,
                             strings ? "an array of strings" : "an array of integers");
}

/* The type of token i: one of the four above. */
static lg_status read_type(const loader *ld, uint64_t i, int64_t *type) {
    if (lg_gguf_int(ld->type, i, type) &&
        (*type == NORMAL || *type == CONTROL || *type == USER_DEFINED || *type == UNUSED))
        return LG_OK;
    return LG_FAIL(ld->err, LG_E_UNSUPPORTED,
                   "%s: " TYPES "[%llu]: found %lld, expected 1, 3, 4 or 5",
                   lg_gguf_what(ld->g), (unsigned long long)i, (long long)*type);
}

/* Control tokens are special, but for these: files type all that is written <|...|> as control. */
static bool is_special(const char *s, size_t len) {
    static const char *const not_special[] = {"<|fim_prefix|>", "<|fim_middle|>",
                                              "<|fim_suffix|>", "<|fim_pad|>",
                                              "<|repo_name|>",  "<|file_sep|>"};
    for (size_t i = 0; i < LG_COUNT(not_special); i++)
        if (len == strlen(not_special[i]) && memcmp(s, not_special[i], len) == 0) return false;
    return true;
}

/* Count ids, ordinary and added tokens and bytes, and size the tables; *n_added gets the added ones. */
static lg_status reserve(loader *ld, uint64_t *n_added) {
    const char *s;
    size_t at = 0, len;
    uint32_t n_id = 0;
    uint64_t n_token = 0, text_bytes = 0, i = 0;
    for (; lg_gguf_next(ld->token, &at, &s, &len); i++) {
        int64_t type = 0;
        LG_TRY(read_type(ld, i, &type));
        if (type == UNUSED) continue;
        bool added = type != NORMAL;
        if (added && (len == 0 || !lg_utf8_valid(s, len)))
            return LG_FAIL(ld->err, LG_E_FORMAT,
                           "%s: " TOKENS
                           "[%llu]: found an added token that is empty or not UTF-8",
                           lg_gguf_what(ld->g), (unsigned long long)i);
        *n_added += added;
        n_token += !added;
        text_bytes += len;
        n_id = (uint32_t)i + 1;
    }
    if (n_id == 0) return fail_value(ld, TOKENS, LG_E_FORMAT, "tokens that are used");
    return lg_tokbuild_reserve(&ld->build, n_id, n_token, *n_added, text_bytes);
}

/* All ordinary tokens, or all added ones. */
static lg_status load_tokens(loader *ld, bool added) {
    const char *s;
    size_t at = 0, len;
    for (uint32_t id = 0; lg_gguf_next(ld->token, &at, &s, &len); id++) {
        int64_t type = 0;
        (void)lg_gguf_int(ld->type, id, &type); /* checked by reserve */
        if (type == UNUSED || added == (type == NORMAL)) continue;
        if (added)
            LG_TRY(lg_tokbuild_added(&ld->build, id, s, len,
                                     type == CONTROL && is_special(s, len), TOKENS));
        else
            LG_TRY(lg_tokbuild_token(&ld->build, id, s, len));
    }
    return LG_OK;
}

/* "left right": the alphabet has no space, so there is one. */
static lg_status load_merges(loader *ld) {
    const char *s;
    size_t at = 0, len;
    LG_TRY(lg_tokbuild_n_merge(&ld->build, ld->merge->n));
    for (uint64_t i = 0; lg_gguf_next(ld->merge, &at, &s, &len); i++) {
        const char *space = memchr(s, ' ', len);
        if (!space)
            return LG_FAIL(ld->err, LG_E_FORMAT,
                           "%s: " MERGES "[%llu]: expected two pieces with a space between",
                           lg_gguf_what(ld->g), (unsigned long long)i);
        size_t left = (size_t)(space - s);
        LG_TRY(lg_tokbuild_merge(&ld->build, s, left, space + 1, len - left - 1));
    }
    return LG_OK;
}

static lg_status load(loader *ld, lg_tokenizer *tok) {
    uint64_t n_added = 0;
    LG_TRY(check_keys(ld));
    LG_TRY(find_array(ld, TOKENS, true, LG_TOKBUILD_MAX_ID, &ld->token));
    LG_TRY(find_array(ld, TYPES, false, LG_TOKBUILD_MAX_ID, &ld->type));
    LG_TRY(find_array(ld, MERGES, true, UINT32_MAX, &ld->merge));
    if (ld->type->n != ld->token->n)
        return fail_value(ld, TYPES, LG_E_FORMAT, "as many as there are tokens");
    tok->nfc = true;
    LG_TRY(lg_pretok_open(pattern, true, lg_gguf_what(ld->g), &tok->pretok, ld->err));
    LG_TRY(reserve(ld, &n_added));
    LG_TRY(load_tokens(ld, false));
    LG_TRY(lg_tokbuild_bytes(&ld->build));
    LG_TRY(load_tokens(ld, true));
    LG_TRY(lg_tokbuild_sort(&ld->build, (size_t)n_added));
    return load_merges(ld);
}

lg_status lg_gguf_tokenizer_build(lg_tokenizer *tok, const lg_gguf *g, lg_err *err) {
    loader ld = {.g = g, .err = err};
    lg_tokbuild_init(&ld.build, tok, lg_gguf_what(g), TOKENS, MERGES, err);
    lg_status st = load(&ld, tok);
    lg_tokbuild_fini(&ld.build);
    return st;
}
