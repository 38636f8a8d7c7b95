/* test_tokenizer.c - texts to ids and back.
 *
 * The right ids are those of the package `tokenizers` (tests/data/tokenizer, see tests/data/README.md); normal forms come
 * from utf8proc's own normaliser, merges from a quadratic search written here. */
#include "base/json.h"
#include "base/utf8.h"
#include "model/text/tokload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>
#include <cmocka.h>

static const char qwen_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

#define BIG 20000000 /* bytes of a very long run */

/* ---- Helpers ---- */

static uint32_t seed = 1;

static uint32_t draw(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(seed >> 4) * n) >> 28);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool read_file(const char *dir_env, const char *name, lg_buf *out) {
    char path[1024], block[65536];
    const char *dir = getenv(dir_env);
    assert_non_null(dir);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) lg_buf_put(out, block, n);
    fclose(f);
    assert_false(out->failed);
    return true;
}

static lg_tokenizer *parse(const lg_buf *json) {
    lg_tokenizer *tok;
    lg_err err;
    if (lg_tokenizer_parse(lg_buf_str(json), json->len_bytes, "test", &tok, &err) != LG_OK)
        fail_msg("%s", err.msg);
    return tok;
}

static lg_tokenizer *open_tiny(void) {
    lg_buf json = {0};
    assert_true(read_file("LG_SOURCE_DIR", "tests/data/tokenizer/tiny/tokenizer.json", &json));
    lg_tokenizer *tok = parse(&json);
    lg_buf_fini(&json);
    return tok;
}

/* NULL when the archive could not be unpacked while building. */
static lg_tokenizer *open_full(void) {
    lg_buf json = {0};
    if (!read_file("LG_BUILD_DIR", "tests/unit/qwen3.5-tokenizer.json", &json)) {
        print_message(
            "skipped: neither xz nor python3 was there to unpack the full tokenizer\n");
        return NULL;
    }
    double t = seconds();
    lg_tokenizer *tok = parse(&json);
    print_message("full tokenizer: %u ids, read in %.3f s\n", lg_tokenizer_n_id(tok),
                  seconds() - t);
    lg_buf_fini(&json);
    return tok;
}

static void encode(lg_tokenizer *tok, const char *text, size_t len, bool control, lg_ids *ids) {
    lg_err err;
    ids->n = 0;
    if (lg_tokenizer_encode(tok, text, len, NULL, 0, control, ids, &err) != LG_OK)
        fail_msg("%s", err.msg);
}

static void decode(const lg_tokenizer *tok, const lg_ids *ids, lg_buf *out) {
    lg_detok d;
    lg_buf_clear(out);
    lg_detok_init(&d, tok, true);
    for (size_t i = 0; i < ids->n; i++) lg_detok_put(&d, ids->id[i], out);
    lg_detok_finish(&d, out);
    assert_false(out->failed);
}

static bool same_ids(const lg_ids *a, const lg_ids *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->id, b->id, a->n * sizeof *a->id) == 0);
}

/* ---- Vectors ---- */

static void from_hex(const lg_json *v, lg_buf *out) {
    for (const char *p = v->text; *p; p++) {
        unsigned byte;
        if (*p == ' ') continue;
        assert_int_equal(sscanf(p++, "%2x", &byte), 1);
        lg_buf_putc(out, (char)byte);
    }
}

static bool ids_are(const lg_ids *ids, const lg_json *want) {
    size_t i = 0;
    for (const lg_json *v = want->child; v; v = v->next, i++) {
        uint64_t id;
        if (!lg_json_u64(v, &id) || i >= ids->n || ids->id[i] != id) return false;
    }
    return i == ids->n;
}

static bool text_is(const lg_buf *b, const lg_json *want) {
    return b->len_bytes == want->text_len &&
           memcmp(lg_buf_str(b), want->text, want->text_len) == 0;
}

/* One line of a vector file: ids both ways, and back. */
static bool vector_holds(lg_tokenizer *tok, const lg_json *v) {
    lg_ids ids = {0};
    lg_buf in = {0}, out = {0};
    const lg_json *text = lg_json_get(v, "text"), *hex = lg_json_get(v, "bytes_hex");
    const lg_json *want = lg_json_get(v, "ids"), *plain = lg_json_get(v, "ids_plain");
    const lg_json *decoded = lg_json_get(v, "decoded");
    assert_non_null(text);
    assert_non_null(want);
    if (hex)
        from_hex(hex, &in);
    else
        lg_buf_put(&in, text->text, text->text_len);
    encode(tok, lg_buf_str(&in), in.len_bytes, true, &ids);
    bool ok = ids_are(&ids, want);
    decode(tok, &ids, &out);
    ok = ok && text_is(&out, decoded ? decoded : text);
    encode(tok, lg_buf_str(&in), in.len_bytes, false, &ids);
    ok = ok && ids_are(&ids, plain ? plain : want);
    decode(tok, &ids, &out);
    ok = ok && text_is(&out, decoded ? decoded : text);
    lg_ids_fini(&ids);
    lg_buf_fini(&in);
    lg_buf_fini(&out);
    return ok;
}

static size_t run_vectors(lg_tokenizer *tok, const char *name) {
    lg_buf file = {0};
    size_t n = 0;
    assert_true(read_file("LG_SOURCE_DIR", name, &file));
    for (char *line = file.data, *end; line && (end = strchr(line, '\n'));
         line = end + 1, n++) {
        lg_json_doc *doc;
        lg_err err;
        if (lg_json_parse(line, (size_t)(end - line), 4, name, &doc, &err) != LG_OK)
            fail_msg("%s", err.msg);
        if (!vector_holds(tok, lg_json_root(doc))) {
            *end = 0;
            fail_msg("%s: line %zu: %.300s", name, n + 1, line);
        }
        lg_json_close(&doc);
    }
    print_message("%s: %zu vectors\n", name, n);
    lg_buf_fini(&file);
    return n;
}

static void test_vectors_of_small_tokenizer(void **state) {
    (void)state;
    lg_tokenizer *tok = open_tiny();
    assert_int_equal(lg_tokenizer_n_id(tok), 4096);
    assert_int_equal(run_vectors(tok, "tests/data/tokenizer/tiny-tokenizer.jsonl"), 400);
    assert_int_equal(run_vectors(tok, "tests/data/tokenizer/tiny-tokenizer-more.jsonl"), 100);
    lg_tokenizer_close(&tok);
    assert_null(tok);
}

static void test_vectors_of_full_tokenizer(void **state) {
    (void)state;
    lg_tokenizer *tok = open_full();
    if (!tok) skip();
    assert_int_equal(lg_tokenizer_n_id(tok), 248077);
    assert_int_equal(lg_tokenizer_added(tok, "<|im_end|>"), 248046);
    assert_int_equal(lg_tokenizer_added(tok, "<|im_end|"), UINT32_MAX);
    assert_int_equal(run_vectors(tok, "tests/data/tokenizer/tokenizer.jsonl"), 400);
    assert_int_equal(run_vectors(tok, "tests/data/tokenizer/tokenizer-more.jsonl"), 100);
    lg_tokenizer_close(&tok);
}

/* ---- Added tokens and spans ---- */

static bool has_added(const lg_tokenizer *tok, const lg_ids *ids) {
    for (size_t i = 0; i < ids->n; i++)
        if (tok->bpe.piece[ids->id[i]].flag & LG_BPE_ADDED) return true;
    return false;
}

static void encode_spans(lg_tokenizer *tok, const char *text, const lg_span *spans, size_t n,
                         lg_ids *ids) {
    lg_err err;
    ids->n = 0;
    assert_int_equal(
        lg_tokenizer_encode(tok, text, spans[n - 1].end, spans, n, false, ids, &err), LG_OK);
}

/* Each added token: matched in scaffold, never when any byte of it is content. */
static void test_content_never_gives_an_added_token(void **state) {
    (void)state;
    lg_tokenizer *tok = open_tiny();
    lg_ids ids = {0}, plain = {0};
    size_t n_added = 0;
    for (uint32_t id = 0; id < lg_tokenizer_n_id(tok); id++) {
        const char *s;
        char text[64];
        size_t len;
        bool added, special;
        if (!lg_tokenizer_piece(tok, id, &s, &len, &added, &special) || !added) continue;
        n_added++;
        snprintf(text, sizeof text, "%.*s", (int)len, s);
        assert_int_equal(lg_tokenizer_added(tok, text), id);
        encode(tok, text, len, true, &ids);
        assert_true(ids.n == 1 && ids.id[0] == id);
        encode(tok, text, len, false, &plain);
        assert_false(has_added(tok, &plain));
        for (size_t cut = 0; cut <= len; cut++) {
            for (int kind = 0; kind < 4; kind++) {
                lg_span span[2] = {{0, cut, kind & 1}, {cut, len, kind >> 1 & 1}};
                bool whole = (cut == 0 || span[0].control) && (cut == len || span[1].control);
                encode_spans(tok, text, span, 2, &ids);
                if (whole)
                    assert_true(ids.n == 1 && ids.id[0] == id);
                else
                    assert_true(same_ids(&ids, &plain));
            }
        }
    }
    assert_int_equal(n_added, 33);
    lg_ids_fini(&ids);
    lg_ids_fini(&plain);
    lg_tokenizer_close(&tok);
}

/* Words and normalisation go on across borders of spans. */
static void test_spans_do_not_cut_words(void **state) {
    (void)state;
    static const char *const text[] = {"}\n",         "e\xcc\x81", "  x",
                                       "hello world", "\r\n",      "a\n\n b"};
    lg_tokenizer *tok = open_tiny();
    lg_ids ids = {0}, whole = {0};
    for (size_t i = 0; i < LG_COUNT(text); i++) {
        size_t len = strlen(text[i]);
        encode(tok, text[i], len, false, &whole);
        for (size_t cut = 0; cut <= len; cut++) {
            lg_span span[2] = {{0, cut, false}, {cut, len, true}};
            encode_spans(tok, text[i], span, 2, &ids);
            assert_true(same_ids(&ids, &whole));
        }
    }
    lg_ids_fini(&ids);
    lg_ids_fini(&whole);
    lg_tokenizer_close(&tok);
}

/* Ill-formed bytes move the spans, and a character cut by a border is content. */
static void test_spans_in_ill_formed_text(void **state) {
    (void)state;
    lg_tokenizer *tok = open_tiny();
    lg_ids ids = {0}, want = {0};
    static const char text[] = "\xff<think>\xe4\xbd\xa0\xff<think>\xe4\xbd<think>";
    /* scaffold up to the middle of the first character, content up to the middle of the second */
    lg_span span[3] = {{0, 9, true}, {9, 20, false}, {20, sizeof text - 1, true}};
    encode_spans(tok, text, span, 3, &ids);
    uint32_t think = lg_tokenizer_added(tok, "<think>");
    static const char middle[] = "\xe4\xbd\xa0\xef\xbf\xbd<think>\xef\xbf\xbd";
    encode(tok, "\xef\xbf\xbd", 3, false, &want);
    assert_int_equal(lg_ids_push(&want, think), LG_OK);
    lg_err err;
    assert_int_equal(
        lg_tokenizer_encode(tok, middle, sizeof middle - 1, NULL, 0, false, &want, &err),
        LG_OK);
    assert_int_equal(lg_ids_push(&want, think), LG_OK);
    assert_true(same_ids(&ids, &want));
    lg_ids_fini(&ids);
    lg_ids_fini(&want);
    lg_tokenizer_close(&tok);
}

/* ---- Merging ---- */

/* Merge by definition: look for the lowest rank, the leftmost of equals, again and again. */
static void merge_slowly(const lg_bpe *bpe, const char *word, size_t len, lg_ids *out) {
    out->n = 0;
    for (size_t i = 0; i < len; i++)
        assert_int_equal(lg_ids_push(out, bpe->byte_id[(uint8_t)word[i]]), LG_OK);
    for (;;) {
        const lg_bpe_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < out->n; i++) {
            const lg_bpe_merge *m = lg_bpe_slot(bpe, out->id[i], out->id[i + 1]);
            if (m->rank == LG_BPE_NONE || (best && m->rank >= best->rank)) continue;
            best = m;
            at = i;
        }
        if (!best) return;
        out->id[at] = best->id;
        memmove(out->id + at + 1, out->id + at + 2, (out->n - at - 2) * sizeof *out->id);
        out->n--;
    }
}

static void test_merging_against_definition(void **state) {
    (void)state;
    static const char letters[] = "aeinorst";
    lg_tokenizer *tok = open_tiny();
    lg_ids ids = {0}, want = {0};
    char word[400];
    for (int round = 0; round < 600; round++) {
        size_t len = 1 + draw(round < 300 ? 30 : sizeof word - 1);
        uint32_t n_letter = 1 + draw(8);
        for (size_t i = 0; i < len; i++)
            word[i] = round % 3 ? letters[draw(n_letter)] : (char)draw(256);
        ids.n = 0;
        assert_int_equal(lg_bpe_word(&tok->bpe, word, len, &ids), LG_OK);
        merge_slowly(&tok->bpe, word, len, &want);
        assert_true(same_ids(&ids, &want));
    }
    lg_ids_fini(&ids);
    lg_ids_fini(&want);
    lg_tokenizer_close(&tok);
}

static void check_long(lg_tokenizer *tok, const char *name, const char *text, size_t len) {
    lg_ids ids = {0};
    lg_buf out = {0};
    double t = seconds();
    encode(tok, text, len, false, &ids);
    print_message("%s, %zu bytes: %zu ids, %.3f s\n", name, len, ids.n, seconds() - t);
    decode(tok, &ids, &out);
    assert_true(out.len_bytes == len && memcmp(out.data, text, len) == 0);
    lg_ids_fini(&ids);
    lg_buf_fini(&out);
}

static void test_long_words(void **state) {
    (void)state;
    lg_tokenizer *tok = open_full();
    if (!tok) tok = open_tiny();
    size_t len = 1000000;
    char *text = lg_mem_alloc(BIG);
    for (size_t i = 0; i < len; i++) text[i] = (char)('a' + draw(26));
    check_long(tok, "random letters", text, len);
    memset(text, '<', len);
    check_long(tok, "punctuation", text, len);
    for (size_t i = 0; i + 3 <= len; i += 3) memcpy(text + i, "\xe4\xbd\xa0", 3);
    check_long(tok, "one ideograph", text, len / 3 * 3);
    memset(text, ' ', BIG);
    check_long(tok, "spaces", text, BIG);
    lg_mem_free(text);
    lg_tokenizer_close(&tok);
}

/* ---- The pattern ---- */

static size_t word_end(lg_pretok *pt, const char *text, size_t len) {
    size_t end = 0;
    lg_err err;
    if (lg_pretok_next(pt, text, len, 0, &end, &err) != LG_OK) fail_msg("%s", err.msg);
    return end;
}

/* Runs that would exceed a limit of steps: \s*[\r\n]+ gives back one space after the other before it fails. */
static void test_pattern_on_very_long_runs(void **state) {
    (void)state;
    for (int jit = 0; jit < 2; jit++) {
        lg_pretok *pt;
        lg_err err;
        char *text = lg_mem_alloc(BIG);
        double t = seconds();
        assert_int_equal(lg_pretok_open(qwen_pattern, jit, "test", &pt, &err), LG_OK);
        static const char one[] = " \n\tx!";
        for (size_t i = 0; i < (jit ? sizeof one - 1 : 1); i++) {
            memset(text, one[i], BIG);
            assert_int_equal(word_end(pt, text, BIG), BIG);
        }
        memset(text, ' ', BIG);
        text[BIG - 1] = 'x';
        assert_int_equal(word_end(pt, text, BIG), BIG - 2);
        text[BIG - 1] = '\n';
        assert_int_equal(word_end(pt, text, BIG), BIG);
        memset(text, '7', BIG);
        assert_int_equal(word_end(pt, text, BIG), 1);
        print_message("runs of %d bytes, jit %d: %.3f s\n", BIG, jit, seconds() - t);
        lg_mem_free(text);
        lg_pretok_close(&pt);
    }
}

/* A pattern of exponential cost is an error, not no match, and comes soon. */
static void test_pattern_out_of_control(void **state) {
    (void)state;
    static const char text[] =
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (int jit = 0; jit < 2; jit++) {
        lg_pretok *pt;
        lg_err err;
        size_t end;
        assert_int_equal(lg_pretok_open("(?:a|a)*[bc]", jit, "test", &pt, &err), LG_OK);
        assert_int_equal(lg_pretok_next(pt, text, sizeof text - 1, 2, &end, &err), LG_E_FORMAT);
        assert_non_null(strstr(err.msg, "text: byte 2: match limit exceeded"));
        lg_pretok_close(&pt);
    }
}

static void test_pattern_rewriting(void **state) {
    (void)state;
    static const char space[] =
        "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
        "\\x{202f}\\x{205f}\\x{3000}";
    static const struct {
        const char *pattern, *before, *after;
    } row[] = {{"a\\s+", "a[", "]+"},
               {"\\S?", "[^", "]?"},
               {"[^\\s\\r]*", "[^", "\\r]*"},
               {"x\\\\[\\s]", "x\\\\[", "]"}};
    lg_err err;
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        lg_buf out = {0};
        char want[512];
        snprintf(want, sizeof want, "%s%s%s", row[i].before, space, row[i].after);
        assert_int_equal(lg_pretok_rewrite(row[i].pattern, "test", &out, &err), LG_OK);
        assert_string_equal(out.data, want);
        lg_buf_fini(&out);
    }
    static const char *const refused[] = {
        "a.",      "^a",      "a$",       "\\d+",    "\\w",      "\\b",         "\\1",
        "(?<=a)b", "(?>a)",   "(?P<x>a)", "(*UCP)a", "(?s:a)",   "[[:alpha:]]", "[a&&b]",
        "[\\S]",   "[\\Pl]",  "\\p{Han}", "\\pL",    "a{,3}",    "a{1,2}+",     "a{",
        "}",       "[]a]",    "[abc",     "\\",      "[\\P{L}]", "\\x41",       "\\h",
        "\\p{L",   "a{9999}", "\\p{Lz}",  "\\R",     "\\K",      "\\v",         "[a-[b]]"};
    for (size_t i = 0; i < LG_COUNT(refused); i++) {
        lg_pretok *pt;
        lg_status st = lg_pretok_open(refused[i], true, "file", &pt, &err);
        if (st != LG_E_UNSUPPORTED) fail_msg("%s: %s", refused[i], lg_status_name(st));
        assert_non_null(strstr(err.msg, "file: pre_tokenizer pattern: byte "));
        assert_null(pt);
    }
    lg_pretok *pt;
    assert_int_equal(lg_pretok_open("(a", true, "file", &pt, &err), LG_E_FORMAT);
    assert_int_equal(lg_pretok_open("a**", true, "file", &pt, &err), LG_E_FORMAT);
}

/* Text between matches is a word of its own, and an empty match cuts it. */
static void test_pattern_with_gaps(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        size_t end[6];
    } row[] = {{"b+", "aabbac", {2, 4, 6, 0}},
               {"b*", "aabba", {1, 2, 4, 5}},
               {"x", "\xc3\xa9\xc3\xa9", {4, 0}},
               {"x*", "\xc3\xa9\xc3\xa9", {2, 4, 0}},
               {"\\p{N}{1,3}", "12345", {3, 5, 0}},
               {"[a-c]++|d?+", "abcdd\xc3\xa9\x61", {3, 4, 5, 7, 8}},
               {"[a-c]++|d*+", "abcdd\xc3\xa9\x61", {3, 5, 7, 8}}};
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        lg_pretok *pt;
        lg_err err;
        assert_int_equal(lg_pretok_open(row[i].pattern, true, "test", &pt, &err), LG_OK);
        size_t len = strlen(row[i].text), begin = 0, end = 0, k = 0;
        for (; begin < len; begin = end) {
            assert_int_equal(lg_pretok_next(pt, row[i].text, len, begin, &end, &err), LG_OK);
            assert_int_equal(end, row[i].end[k++]);
        }
        assert_int_equal(row[i].end[k], 0);
        lg_pretok_close(&pt);
    }
}

/* ---- Normalisation ---- */

static void check_nfc(lg_nfc *nfc, const char *text, size_t len) {
    lg_buf out = {0};
    uint8_t *want;
    utf8proc_ssize_t n = utf8proc_map((const uint8_t *)text, (utf8proc_ssize_t)len, &want,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_true(n >= 0);
    assert_int_equal(lg_nfc_put(nfc, text, len, &out), LG_OK);
    if (out.len_bytes != (size_t)n || memcmp(lg_buf_str(&out), want, (size_t)n) != 0)
        fail_msg("normal form of \"%.*s\" is \"%s\"", (int)len, text, (const char *)want);
    if (lg_nfc_trivial(text, len)) assert_int_equal(n, len);
    lg_buf_fini(&out);
    free(want);
}

static void test_normal_form_against_utf8proc(void **state) {
    (void)state;
    static const uint32_t pick[] = {
        'a',    'e',    0xe9,    0xc5,    0x300,   0x301,   0x323,   0x345,   0x344,   0xf71,
        0xf72,  0xf73,  0xf74,   0xf81,   0x1100,  0x1161,  0x11a8,  0xac00,  0xac01,  0x9c7,
        0x9be,  0x9d7,  0xb47,   0xb56,   0x1025,  0x102e,  0x212b,  0x2126,  0x1e9b,  0x1eab,
        0x2add, 0xfb1d, 0x3099,  0x304b,  0x4e00,  0xf900,  0x338,   0x226e,  0x11131, 0x11127,
        0x1b05, 0x1b35, 0x110a5, 0x110ba, 0x1d15e, 0x1d158, 0x1d165, 0x1d16e, ' '};
    lg_nfc nfc = {0};
    lg_buf text = {0};
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        lg_buf_clear(&text);
        lg_buf_putc(&text, 'a');
        lg_utf8_put(&text, cp);
        if (cp % 8 == 0) lg_buf_puts(&text, "\xcc\xa3\xcc\x81");
        check_nfc(&nfc, text.data, text.len_bytes);
    }
    for (int round = 0; round < 40000; round++) {
        lg_buf_clear(&text);
        for (uint32_t n = draw(10); n-- > 0;) lg_utf8_put(&text, pick[draw(LG_COUNT(pick))]);
        check_nfc(&nfc, lg_buf_str(&text), text.len_bytes);
    }
    lg_buf_clear(&text);
    for (int i = 0; i < 1000; i++) lg_utf8_put(&text, i % 3 ? 0x301 : 0x323);
    check_nfc(&nfc, text.data, text.len_bytes);
    lg_buf_fini(&text);
    lg_nfc_fini(&nfc);
}

/* Half a million marks in the worst order take linear time, and come out ordered. */
static void test_normal_form_of_marks_alone(void **state) {
    (void)state;
    size_t n = 500000;
    lg_nfc nfc = {0};
    lg_buf text = {0}, want = {0}, out = {0};
    for (size_t i = 0; i < n; i++) lg_utf8_put(&text, i % 2 ? 0x323 : 0x30f);
    for (size_t i = 0; i < n; i++) lg_utf8_put(&want, i < n / 2 ? 0x323 : 0x30f);
    double t = seconds();
    assert_int_equal(lg_nfc_put(&nfc, text.data, text.len_bytes, &out), LG_OK);
    print_message("%zu marks: %.3f s\n", n, seconds() - t);
    assert_true(out.len_bytes == want.len_bytes);
    assert_memory_equal(out.data, want.data, want.len_bytes);
    lg_buf_fini(&text);
    lg_buf_fini(&want);
    lg_buf_fini(&out);
    lg_nfc_fini(&nfc);
}

/* ---- Random bytes, memory ---- */

static void test_random_bytes_round_trip(void **state) {
    (void)state;
    static const char *const part[] = {"\xf0\x9f\x99", "\x82",        "\xe4\xbd", "\xa0",
                                       "\xcc\x81",     "e",           " ",        "\r\n",
                                       "\xff",         "\xed\xa0\x80"};
    lg_tokenizer *tok = open_tiny();
    lg_ids ids = {0};
    lg_buf in = {0}, repaired = {0}, out = {0};
    for (int round = 0; round < 10000; round++) {
        lg_buf_clear(&in);
        lg_buf_clear(&repaired);
        for (uint32_t n = draw(16); n-- > 0;) {
            if (draw(2))
                lg_buf_putc(&in, (char)draw(256));
            else
                lg_buf_puts(&in, part[draw(LG_COUNT(part))]);
        }
        lg_utf8_repair(&repaired, lg_buf_str(&in), in.len_bytes);
        encode(tok, lg_buf_str(&in), in.len_bytes, round & 1, &ids);
        decode(tok, &ids, &out);
        uint8_t *want;
        utf8proc_ssize_t n = utf8proc_map((const uint8_t *)lg_buf_str(&repaired),
                                          (utf8proc_ssize_t)repaired.len_bytes, &want,
                                          UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert_true(n >= 0 && out.len_bytes == (size_t)n);
        assert_memory_equal(lg_buf_str(&out), want, (size_t)n);
        free(want);
    }
    lg_ids_fini(&ids);
    lg_buf_fini(&in);
    lg_buf_fini(&repaired);
    lg_buf_fini(&out);
    lg_tokenizer_close(&tok);
}

/* Encode with the n-th allocation failing, for every n: an error and no ids, or the right ids. */
static void test_encode_without_memory(void **state) {
    (void)state;
    static const char text[] = "x\xff<think>e\xcc\x81 hello world<|im_end|>\n";
    lg_ids want = {0};
    for (uint64_t n = 0, failures = 1; failures; n++) {
        lg_tokenizer *tok = open_tiny();
        lg_ids ids = {0};
        lg_err err;
        lg_mem_fail_at(n);
        lg_status st =
            lg_tokenizer_encode(tok, text, sizeof text - 1, NULL, 0, true, &ids, &err);
        lg_mem_fail_at(0);
        if (n == 0) {
            assert_int_equal(st, LG_OK);
            want = ids;
            ids = (lg_ids){0};
        } else if (st == LG_OK) {
            assert_true(same_ids(&ids, &want));
            failures = 0;
        } else {
            assert_int_equal(st, LG_E_NOMEM);
            assert_int_equal(err.code, LG_E_NOMEM);
            assert_int_equal(ids.n, 0);
            encode(tok, text, sizeof text - 1, true, &ids);
            assert_true(same_ids(&ids, &want));
        }
        lg_ids_fini(&ids);
        lg_tokenizer_close(&tok);
    }
    lg_ids_fini(&want);
}

static void test_nothing_leaks(void **state) {
    (void)state;
    assert_int_equal(lg_mem_alive(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors_of_small_tokenizer),
        cmocka_unit_test(test_vectors_of_full_tokenizer),
        cmocka_unit_test(test_content_never_gives_an_added_token),
        cmocka_unit_test(test_spans_do_not_cut_words),
        cmocka_unit_test(test_spans_in_ill_formed_text),
        cmocka_unit_test(test_merging_against_definition),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_pattern_on_very_long_runs),
        cmocka_unit_test(test_pattern_out_of_control),
        cmocka_unit_test(test_pattern_rewriting),
        cmocka_unit_test(test_pattern_with_gaps),
        cmocka_unit_test(test_normal_form_against_utf8proc),
        cmocka_unit_test(test_normal_form_of_marks_alone),
        cmocka_unit_test(test_random_bytes_round_trip),
        cmocka_unit_test(test_encode_without_memory),
        cmocka_unit_test(test_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
