/* test_tokload.c - reading tokenizer.json: what is refused and with which words.
 *
 * The file is written here: 256 bytes, a few merges, two added tokens; each row of the table changes one place. */
#include "base/utf8.h"
#include "model/text/tokload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char head[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
    "{\"id\":261,\"content\":\"<e>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
    "\"normalized\":false,\"special\":true},"
    "{\"id\":262,\"content\":\"<e>f\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
    "\"normalized\":false,\"special\":false}],"
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
    "\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+| \"},\"behavior\":\"Isolated\","
    "\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]"
    "},"
    "\"post_processor\":{\"type\":\"ByteLevel\",\"trim_offsets\":false},"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
    "\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null,"
    "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{";
static const char tail[] = "\"ab\":256,\"bc\":257,\"abc\":258,\"\xc4\xa0\x61\":259,\"aa\":260},"
                           "\"merges\":[[\"b\",\"c\"],[\"a\",\"bc\"],\"a "
                           "b\",[\"ab\",\"c\"],\"\xc4\xa0 a\",[\"a\",\"a\"]]}}";

/* The byte-level alphabet: byte b as UTF-8 text. */
static void put_letter(lg_buf *out, unsigned b) {
    uint32_t cp = b;
    if (b < 33)
        cp = 256 + b;
    else if (b >= 127 && b <= 160)
        cp = 256 + 33 + b - 127;
    else if (b == 173)
        cp = 256 + 67;
    lg_utf8_put(out, cp);
}

static void small_file(lg_buf *out) {
    lg_buf_puts(out, head);
    for (unsigned b = 0; b < 256; b++) {
        lg_buf_putc(out, '"');
        if (b == '"' || b == '\\') lg_buf_putc(out, '\\');
        put_letter(out, b);
        lg_buf_printf(out, "\":%u,", b);
    }
    lg_buf_puts(out, tail);
    assert_false(out->failed);
}

/* The file with the first `find` replaced. */
static void changed_file(lg_buf *out, const char *find, const char *replace) {
    lg_buf file = {0};
    small_file(&file);
    const char *at = strstr(file.data, find);
    if (!at) fail_msg("%s is not in the file", find);
    lg_buf_put(out, file.data, (size_t)(at - file.data));
    lg_buf_puts(out, replace);
    lg_buf_puts(out, at + strlen(find));
    lg_buf_fini(&file);
}

static void expect_ids(const char *json, size_t len, const char *text, size_t n,
                       const uint32_t *want) {
    lg_tokenizer *tok;
    lg_err err;
    lg_ids ids = {0};
    if (lg_tokenizer_parse(json, len, "f", &tok, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_int_equal(lg_tokenizer_encode(tok, text, strlen(text), NULL, 0, true, &ids, &err),
                     LG_OK);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.id, want, n * sizeof *want);
    lg_ids_fini(&ids);
    lg_tokenizer_close(&tok);
}

static void test_small_file(void **state) {
    (void)state;
    lg_buf file = {0};
    small_file(&file);
    /* bc merges before ab, ab before aa, and the longest added token wins.  Ids from the package `tokenizers`. */
    static const uint32_t want[] = {258, 32, 260, 97, 256, 262, 261, 32, 99, 10};
    expect_ids(file.data, file.len_bytes, "abc aaaab<e>f<e> c\n", LG_COUNT(want), want);
    lg_buf_fini(&file);
}

/* Values that mean the same. */
static void test_accepted_variants(void **state) {
    (void)state;
    static const struct {
        const char *find, *replace;
    } row[] = {
        {"\"continuing_subword_prefix\":\"\",", ""},
        {"\"dropout\":null,", ""},
        {"\"post_processor\":{\"type\":\"ByteLevel\",\"trim_offsets\":false}",
         "\"post_processor\":null"},
        {"\"a b\"", "[\"a\",\"b\"]"},
        {"[\"b\",\"c\"]", "\"b c\""},
        {",\"padding\":null", ""},
        {"\"normalizer\":{\"type\":\"NFC\"}", "\"normalizer\":null"},
        {"\"aa\":260}", "\"aa\":260,\"<e>\":261}"},
        {"\"decoder\":{\"type\":\"ByteLevel\"}",
         "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}"},
    };
    static const uint32_t want[] = {258, 262, 261};
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        lg_buf file = {0};
        changed_file(&file, row[i].find, row[i].replace);
        expect_ids(file.data, file.len_bytes, "abc<e>f<e>", LG_COUNT(want), want);
        lg_buf_fini(&file);
    }
}

static const struct {
    const char *find, *replace, *message; /* message: part of it, after "f: " */
    lg_status status;
} bad[] = {
    {"\"1.0\"", "\"2.0\"", "version: expected \"1.0\", found \"2.0\"", LG_E_UNSUPPORTED},
    {"\"truncation\":null", "\"truncation\":{}", "truncation: expected null, found object",
     LG_E_UNSUPPORTED},
    {"\"padding\":null", "\"padding\":1", "padding: expected null, found 1", LG_E_UNSUPPORTED},
    {"\"padding\":null", "\"padding\":null,\"extra\":1",
     "top level: member \"extra\" is not known", LG_E_UNSUPPORTED},
    {"\"padding\":null", "\"padding\":null,\"padding\":null", "member padding appears twice",
     LG_E_FORMAT},
    {"\"NFC\"", "\"NFKC\"", "normalizer.type: expected \"NFC\", found \"NFKC\"",
     LG_E_UNSUPPORTED},
    {"{\"type\":\"NFC\"}", "[]", "normalizer: expected an object, found array",
     LG_E_UNSUPPORTED},
    {"\"Sequence\"", "\"Whitespace\"", "pre_tokenizer.type: expected \"Sequence\"",
     LG_E_UNSUPPORTED},
    {",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", "",
     "pre_tokenizer.pretokenizers: expected an array of Split and ByteLevel", LG_E_UNSUPPORTED},
    {"\"Split\"", "\"Digits\"", "pretokenizers[0].type: expected \"Split\"", LG_E_UNSUPPORTED},
    {"\"Isolated\"", "\"Removed\"", "pretokenizers[0].behavior: expected \"Isolated\"",
     LG_E_UNSUPPORTED},
    {"\"invert\":false", "\"invert\":true",
     "pretokenizers[0].invert: expected false, found true", LG_E_UNSUPPORTED},
    {"\"Regex\"", "\"String\"", "pattern: member \"String\" is not known", LG_E_UNSUPPORTED},
    {"\\\\p{L}+| ", "\\\\d", "pre_tokenizer pattern: byte 1: this escape is not supported",
     LG_E_UNSUPPORTED},
    {"\\\\p{L}+| ", "(a", "pcre2 error", LG_E_FORMAT},
    {"\\\\p{L}+| ", "a\\u0000b", "a pattern without U+0000", LG_E_UNSUPPORTED},
    {"\"add_prefix_space\":false", "\"add_prefix_space\":true",
     "pretokenizers[1].add_prefix_space: expected false, found true", LG_E_UNSUPPORTED},
    {"\"use_regex\":false", "\"trim_offsets\":false",
     "pretokenizers[1].use_regex: expected false, found nothing", LG_E_UNSUPPORTED},
    {"\"post_processor\":{\"type\":\"ByteLevel\"",
     "\"post_processor\":{\"type\":\"TemplateProcessing\"",
     "post_processor.type: expected \"ByteLevel\"", LG_E_UNSUPPORTED},
    {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null",
     "decoder: expected an object, found null", LG_E_UNSUPPORTED},
    {"\"BPE\"", "\"Unigram\"", "model.type: expected \"BPE\", found \"Unigram\"",
     LG_E_UNSUPPORTED},
    {"\"dropout\":null", "\"dropout\":0.1", "model.dropout: expected null, found 0.1",
     LG_E_UNSUPPORTED},
    {"\"unk_token\":null", "\"unk_token\":\"<e>\"",
     "model.unk_token: expected null, found \"<e>\"", LG_E_UNSUPPORTED},
    {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"",
     "model.end_of_word_suffix", LG_E_UNSUPPORTED},
    {"\"byte_fallback\":false", "\"byte_fallback\":true",
     "model.byte_fallback: expected false, found true", LG_E_UNSUPPORTED},
    {"\"ignore_merges\":false", "\"ignore_merges\":true",
     "model.ignore_merges: expected false, found true", LG_E_UNSUPPORTED},
    {"\"fuse_unk\"", "\"fuse_all\"", "model: member \"fuse_all\" is not known",
     LG_E_UNSUPPORTED},
    {"\"rstrip\":false", "\"rstrip\":true",
     "added_tokens[0].rstrip: expected false, found true", LG_E_UNSUPPORTED},
    {"\"lstrip\":false", "\"lstrip\":1", "added_tokens[0].lstrip: expected false, found 1",
     LG_E_UNSUPPORTED},
    {"\"single_word\":false", "\"single_word\":true", "added_tokens[0].single_word",
     LG_E_UNSUPPORTED},
    {"\"normalized\":false", "\"normalized\":true", "added_tokens[0].normalized",
     LG_E_UNSUPPORTED},
    {",\"special\":true", "", "added_tokens[0].special: expected true or false, found nothing",
     LG_E_UNSUPPORTED},
    {"\"content\":\"<e>\"", "\"content\":\"\"", "added_tokens[].content: expected a string",
     LG_E_UNSUPPORTED},
    {"\"content\":\"<e>\"", "\"content\":\"<e>f\"", "added_tokens: \"<e>f\" appears twice",
     LG_E_FORMAT},
    {"\"content\":\"<e>\"", "\"content\":\"abc\"", "added_tokens[0]: \"abc\" and id 261",
     LG_E_FORMAT},
    {"\"id\":262", "\"id\":261", "added_tokens[1]: \"<e>f\" and id 261", LG_E_FORMAT},
    {"\"id\":262", "\"id\":260", "added_tokens[1]: \"<e>f\" and id 260", LG_E_FORMAT},
    {"\"id\":262", "\"id\":16777216", "id of \"<e>f\": expected an integer up to 16777215",
     LG_E_FORMAT},
    {"\"id\":262", "\"id\":1000000", "largest id is 1000000, but there are only 263 tokens",
     LG_E_FORMAT},
    {"\"id\":262", "\"id\":-1", "found -1", LG_E_FORMAT},
    {"\"id\":262,", "", "found nothing", LG_E_FORMAT},
    {"{\"id\":261,", "7,{\"id\":261,", "added_tokens[].content", LG_E_UNSUPPORTED},
    {"\"aa\":260", "\"aa\":259", "model.vocab: \"aa\": its id is there twice", LG_E_FORMAT},
    {"\"aa\":260", "\"ab\":260", "model.vocab: \"ab\": its text is there twice", LG_E_FORMAT},
    {"\"aa\":260", "\"aa\":2.5", "model.vocab: id of \"aa\": expected an integer", LG_E_FORMAT},
    {"\"aa\":260", "\"aa\":\"260\"", "found \"260\"", LG_E_FORMAT},
    {"\"aa\":260", "\"a a\":260", "model.vocab: \"a a\" is not text of the byte-level alphabet",
     LG_E_FORMAT},
    {"\"aa\":260", "\"\":260", "model.vocab: \"\" is not text of the byte-level alphabet",
     LG_E_FORMAT},
    {"\"aa\":260", "\"\xe4\xbd\xa0\":260", "is not text of the byte-level alphabet",
     LG_E_FORMAT},
    {"\"q\":113,", "", "model.vocab: byte 0x71 has no id", LG_E_FORMAT},
    {"[\"a\",\"a\"]", "[\"a\",\"d\"]",
     "model.merges[5]: \"a\" \"d\": result is not in the vocabulary", LG_E_FORMAT},
    {"[\"a\",\"a\"]", "[\"ad\",\"a\"]",
     "model.merges[5]: \"ad\" \"a\": left is not in the vocabulary", LG_E_FORMAT},
    {"[\"a\",\"a\"]", "[\"a\",\"\"]", "right is not in the vocabulary", LG_E_FORMAT},
    {"[\"a\",\"a\"]", "[\"a\",\"\xe4\xbd\xa0\"]", "right is not in the vocabulary",
     LG_E_FORMAT},
    {"[\"a\",\"a\"]", "[\"a\",\"b\"]", "model.merges[5]: \"a\" \"b\": appears twice",
     LG_E_FORMAT},
    {"[\"a\",\"a\"]", "[\"a\"]", "model.merges[5]: array : expected two pieces", LG_E_FORMAT},
    {"[\"a\",\"a\"]", "[\"a\",\"a\",\"a\"]", "expected two pieces", LG_E_FORMAT},
    {"[\"a\",\"a\"]", "[1,\"a\"]", "expected two pieces", LG_E_FORMAT},
    {"[\"a\",\"a\"]", "\"aa\"", "expected two pieces", LG_E_FORMAT},
    {"[\"a\",\"a\"]", "\"a a a\"", "right is not in the vocabulary", LG_E_FORMAT},
    {"[\"a\",\"a\"]", "null", "model.merges[5]: null : expected two pieces", LG_E_FORMAT},
    {"\"merges\":[", "\"merges\":{\"x\":[", "", LG_E_FORMAT},
};

static void test_refused_files(void **state) {
    (void)state;
    for (size_t i = 0; i < LG_COUNT(bad); i++) {
        lg_buf file = {0};
        lg_tokenizer *tok;
        lg_err err = {0};
        changed_file(&file, bad[i].find, bad[i].replace);
        lg_status st = lg_tokenizer_parse(file.data, file.len_bytes, "f", &tok, &err);
        if (st != bad[i].status || !strstr(err.msg, bad[i].message) ||
            strncmp(err.msg, "f: ", 3) != 0)
            fail_msg("%s -> %s: status %d, \"%s\"", bad[i].find, bad[i].replace, st, err.msg);
        assert_int_equal(err.code, st);
        assert_true(lg_utf8_valid(err.msg, strlen(err.msg)));
        assert_null(tok);
        lg_buf_fini(&file);
    }
    print_message("%zu changed files refused\n", LG_COUNT(bad));
}

/* Every beginning of the file is refused. */
static void test_cut_files(void **state) {
    (void)state;
    lg_buf file = {0};
    small_file(&file);
    for (size_t len = 0; len < file.len_bytes; len++) {
        lg_tokenizer *tok;
        lg_err err;
        assert_int_equal(lg_tokenizer_parse(file.data, len, "f", &tok, &err), LG_E_FORMAT);
        assert_null(tok);
    }
    lg_buf_fini(&file);
}

/* How many allocations of lg_pretok_open may fail without an error: none but those of the JIT compiler. */
static uint64_t optional_allocations(bool jit) {
    lg_pretok *pt;
    lg_err err;
    uint64_t before = lg_mem_count(), n_ok = 0;
    assert_int_equal(lg_pretok_open("\\p{L}+| ", jit, "f", &pt, &err), LG_OK);
    uint64_t n_alloc = lg_mem_count() - before;
    lg_pretok_close(&pt);
    for (uint64_t n = 1; n <= n_alloc; n++) {
        lg_mem_fail_at(n);
        lg_status st = lg_pretok_open("\\p{L}+| ", jit, "f", &pt, &err);
        lg_mem_fail_at(0);
        assert_true(st == LG_OK || st == LG_E_NOMEM);
        n_ok += st == LG_OK;
        lg_pretok_close(&pt);
    }
    return n_ok;
}

/* Parse with the n-th allocation failing, for every n. */
static void test_parse_without_memory(void **state) {
    (void)state;
    lg_buf file = {0};
    assert_int_equal(optional_allocations(false), 0);
    uint64_t n_optional = optional_allocations(true);
    small_file(&file);
    lg_tokenizer *tok;
    lg_err err;
    uint64_t before = lg_mem_count();
    assert_int_equal(lg_tokenizer_parse(file.data, file.len_bytes, "f", &tok, &err), LG_OK);
    uint64_t n_alloc = lg_mem_count() - before, n_failed = 0;
    lg_tokenizer_close(&tok);
    int64_t alive = lg_mem_alive();
    for (uint64_t n = 1; n <= n_alloc; n++) {
        lg_mem_fail_at(n);
        lg_status st = lg_tokenizer_parse(file.data, file.len_bytes, "f", &tok, &err);
        lg_mem_fail_at(0);
        /* Without memory for compiled code the pattern is interpreted. */
        if (st != LG_OK) {
            assert_int_equal(st, LG_E_NOMEM);
            assert_int_equal(err.code, LG_E_NOMEM);
            assert_null(tok);
            n_failed++;
        }
        lg_tokenizer_close(&tok);
        assert_int_equal(lg_mem_alive(), alive);
    }
    print_message("%llu allocations, %llu failures reported\n", (unsigned long long)n_alloc,
                  (unsigned long long)n_failed);
    assert_true(n_failed + n_optional == n_alloc);
    lg_buf_fini(&file);
}

/* ---- Detokeniser ---- */

/* A tokenizer whose vocabulary holds every stretch of s (bytes) as a piece. */
static lg_tokenizer *with_pieces_of(const char *s, size_t len) {
    lg_buf file = {0}, more = {0}, seen = {0};
    lg_tokenizer *tok;
    lg_err err;
    uint32_t id = 263;
    for (size_t i = 0; i < len; i++) {
        for (size_t n = 2; i + n <= len; n++) {
            lg_buf letters = {0};
            lg_buf_puts(&letters, ",\"");
            for (size_t k = 0; k < n; k++) put_letter(&letters, (uint8_t)s[i + k]);
            lg_buf_puts(&letters, "\":");
            if (!strstr(lg_buf_str(&more), letters.data))
                lg_buf_printf(&more, "%s%u", letters.data, id++);
            lg_buf_fini(&letters);
        }
    }
    lg_buf_printf(&seen, "\"aa\":260%s}", lg_buf_str(&more));
    changed_file(&file, "\"aa\":260}", seen.data);
    if (lg_tokenizer_parse(file.data, file.len_bytes, "f", &tok, &err) != LG_OK)
        fail_msg("%s", err.msg);
    lg_buf_fini(&file);
    lg_buf_fini(&more);
    lg_buf_fini(&seen);
    return tok;
}

static uint32_t piece_id(const lg_tokenizer *tok, const char *s, size_t len) {
    for (uint32_t id = 0; id < lg_tokenizer_n_id(tok); id++) {
        const char *p;
        size_t n;
        bool added, special;
        if (lg_tokenizer_piece(tok, id, &p, &n, &added, &special) && n == len &&
            memcmp(p, s, len) == 0)
            return id;
    }
    fail_msg("no such piece");
    return 0;
}

/* s cut at i and k, with a special token that is left out between the pieces, must give want. */
static void check_split(const lg_tokenizer *tok, const char *s, size_t len, size_t i, size_t k,
                        const char *want) {
    size_t cut[4] = {0, i, k, len};
    lg_buf out = {0};
    lg_detok d;
    lg_detok_init(&d, tok, false);
    for (size_t part = 0; part < 3; part++) {
        size_t n = cut[part + 1] - cut[part];
        if (n == 0) continue;
        lg_detok_put(&d, piece_id(tok, s + cut[part], n), &out);
        assert_true(lg_utf8_valid(lg_buf_str(&out), out.len_bytes));
        assert_true(d.n_held <= 3);
        lg_detok_put(&d, 261, &out);
        lg_detok_put(&d, UINT32_MAX, &out);
    }
    lg_detok_finish(&d, &out);
    assert_string_equal(lg_buf_str(&out), want);
    lg_buf_fini(&out);
}

#define FFFD "\xef\xbf\xbd"

/* What Python's bytes.decode("utf-8", "replace") gives, whatever the split. */
static void test_detokeniser_at_every_split(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *text;
    } row[] = {
        {"a\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x99\x82z", "a\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x99\x82z"},
        {"\xf0\x9f\x99", FFFD},
        {"\xf0\x9f\x99q\xf0\x9f", FFFD "q" FFFD},
        {"\xe4\xbd\xe4\xbd\xa0\xff", FFFD "\xe4\xbd\xa0" FFFD},
        {"\xed\xa0\x80\xc0\x80", FFFD FFFD FFFD FFFD FFFD},
        {"\xf4\x90\x80\x80x", FFFD FFFD FFFD FFFD "x"},
        {"\xc3\x28\x80\xbf", FFFD "(" FFFD FFFD},
        {"\xf0\xf0\x9f\x99\x82\xc3", FFFD "\xf0\x9f\x99\x82" FFFD},
    };
    for (size_t r = 0; r < LG_COUNT(row); r++) {
        size_t len = strlen(row[r].bytes);
        lg_tokenizer *tok = with_pieces_of(row[r].bytes, len);
        for (size_t i = 0; i <= len; i++)
            for (size_t k = i; k <= len; k++)
                check_split(tok, row[r].bytes, len, i, k, row[r].text);
        lg_tokenizer_close(&tok);
    }
}

/* Added tokens that are not special stay in the text; special ones only on demand; unfinished bytes come before them. */
static void test_detokeniser_with_added_tokens(void **state) {
    (void)state;
    lg_buf file = {0}, out = {0};
    lg_tokenizer *tok;
    lg_err err;
    small_file(&file);
    assert_int_equal(lg_tokenizer_parse(file.data, file.len_bytes, "f", &tok, &err), LG_OK);
    static const uint32_t ids[] = {'a', 261, 0xe4, 262, 258};
    for (int special = 0; special < 2; special++) {
        lg_detok d;
        lg_buf_clear(&out);
        lg_detok_init(&d, tok, special);
        for (size_t i = 0; i < LG_COUNT(ids); i++) lg_detok_put(&d, ids[i], &out);
        lg_detok_finish(&d, &out);
        assert_string_equal(out.data, special ? "a<e>" FFFD "<e>fabc" : "a" FFFD "<e>fabc");
    }
    lg_buf_fini(&file);
    lg_buf_fini(&out);
    lg_tokenizer_close(&tok);
}

static void test_nothing_leaks(void **state) {
    (void)state;
    assert_int_equal(lg_mem_alive(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_file),
        cmocka_unit_test(test_accepted_variants),
        cmocka_unit_test(test_refused_files),
        cmocka_unit_test(test_cut_files),
        cmocka_unit_test(test_parse_without_memory),
        cmocka_unit_test(test_detokeniser_at_every_split),
        cmocka_unit_test(test_detokeniser_with_added_tokens),
        cmocka_unit_test(test_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
