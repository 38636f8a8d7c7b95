/* test_keys.c - the keys file, finding a key, limits by the clock, reload. */
#include "gateway/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* BLAKE2b-256 of these texts, from Python's hashlib.blake2b(text, digest_size=32). */
static const char key_a[] = "lg-aaaaaaaaaaaaaaaaaaaaaaaaaaaa";
#define HASH_A "blake2b:6e7b8dfa46fa480af4a4ea969c5995048dee5b87ee54fb1c1c3ebad53c31f2eb"
static const char key_b[] = "lg-bbbbbbbbbbbbbbbbbbbbbbbbbbbb";
#define HASH_B "blake2b:975996d7a52c48af8a49c6ad3cf516a3a084a6ccb732145eefe7a67567b39358"

#define LINE_A "{\"name\": \"a\", \"role\": \"user\", \"hash\": \"" HASH_A "\"}\n"

static lg_keys *parse(const char *text) {
    lg_keys *ks = NULL;
    lg_err err = {0};
    if (lg_keys_parse(text, strlen(text), "k", &ks, &err) != LG_OK) fail_msg("%s", err.msg);
    return ks;
}

static void test_hash_is_blake2b(void **state) {
    (void)state;
    uint8_t h[LG_KEYS_HASH_BYTES];
    lg_buf b = {0};
    lg_keys_hash(key_a, strlen(key_a), h);
    lg_keys_put_hash(h, &b);
    assert_string_equal(lg_buf_str(&b), HASH_A);
    lg_buf_fini(&b);
}

static void test_file_and_find(void **state) {
    (void)state;
    lg_keys *ks =
        parse("# who\n\n  \r\n" LINE_A "{\"name\":\"b\",\"role\":\"admin\",\"hash\":\"" HASH_B
              "\",\"requests_per_minute\":1,\"tokens_per_minute\":2,\"concurrent\":3,"
              "\"max_context\":4}");
    const lg_key *a = lg_keys_first(ks), *b = a->next;
    assert_null(b->next);
    assert_string_equal(a->name, "a");
    assert_int_equal(a->role, LG_ROLE_USER);
    assert_int_equal(b->role, LG_ROLE_ADMIN);
    assert_int_equal(b->limits.requests_per_minute, 1);
    assert_int_equal(b->limits.tokens_per_minute, 2);
    assert_int_equal(b->limits.concurrent, 3);
    assert_int_equal(b->limits.max_context, 4);
    assert_ptr_equal(lg_keys_find(ks, key_a, strlen(key_a)), a);
    assert_ptr_equal(lg_keys_find(ks, key_b, strlen(key_b)), b);
    assert_null(lg_keys_find(ks, key_a, strlen(key_a) - 1));
    assert_null(lg_keys_find(ks, "", 0));
    assert_null(lg_keys_find(ks, HASH_A, strlen(HASH_A))); /* the hash is no key */
    lg_keys_close(&ks);
    assert_int_equal(lg_mem_alive(), 0);
}

static void test_nobody_gets_ahead_of_his_key(void **state) {
    (void)state;
    lg_key k = {.priority = 3};
    assert_int_equal(lg_keys_priority(NULL, false, 0), 0);
    assert_int_equal(lg_keys_priority(NULL, true, -5), -5);
    assert_int_equal(lg_keys_priority(&k, false, 0), 3);
    assert_int_equal(lg_keys_priority(&k, true, -5), 3);
    assert_int_equal(lg_keys_priority(&k, true, 8), 8);
}

static void test_lines_go_round(void **state) {
    (void)state;
    static const char line[] =
        "{\"name\": \"b\", \"role\": \"metrics\", \"hash\": \"" HASH_B
        "\", \"requests_per_minute\": 1, \"tokens_per_minute\": 2, \"concurrent\": 3, "
        "\"max_context\": 4, \"priority\": -7}\n";
    lg_keys *ks = parse(line);
    lg_buf b = {0};
    lg_keys_put_line(lg_keys_first(ks), &b);
    assert_string_equal(lg_buf_str(&b), line);
    lg_buf_fini(&b);
    lg_keys_close(&ks);
}

static void test_bad_lines_are_named(void **state) {
    (void)state;
#define NAME_ROLE "\"name\":\"a\",\"role\":\"user\""
#define GOOD      NAME_ROLE ",\"hash\":\"" HASH_A "\""
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"[]", "line 1: expected a JSON object"},
        {"# x\n{", "line 2: "},
        {"{" NAME_ROLE "}", "\"hash\" is missing"},
        {"{\"name\":\"a\",\"hash\":\"" HASH_A "\"}", "\"role\" is missing"},
        {"{\"name\":\"a b\"}", "\"name\": expected"},
        {"{\"name\":\"\"}", "\"name\": expected"},
        {"{\"name\":3}", "\"name\": expected"},
        {"{\"name\":\"a\\u0000\"}", "\"name\": expected"},
        {"{\"role\":\"root\"}", "\"role\": expected"},
        {"{\"role\":\"user\\u0000\"}", "\"role\": expected"},
        {"{\"hash\":\"blake2b:00\"}", "\"hash\": expected"},
        {"{\"hash\":\"lg-aaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", "\"hash\": expected"},
        {"{" GOOD ",\"concurrent\":0}", "\"concurrent\": expected"},
        {"{" GOOD ",\"concurrent\":-1}", "\"concurrent\": expected"},
        {"{" GOOD ",\"tokens_per_minute\":1e308}", "\"tokens_per_minute\": expected"},
        {"{" GOOD ",\"max_context\":1.5}", "\"max_context\": expected"},
        {"{" GOOD ",\"priority\":1001}", "\"priority\": expected"},
        {"{" GOOD ",\"priority\":\"1\"}", "\"priority\": expected"},
        {"{" GOOD ",\"request_per_minute\":1}", "unknown member \"request_per_minute\""},
        {"{" GOOD ",\"role\":\"admin\"}", "\"role\" appears twice"},
        {"{" GOOD "}\n{" GOOD "}", "line 2: the name a appears twice"},
        {LINE_A "{\"name\":\"b\",\"role\":\"user\",\"hash\":\"" HASH_A "\"}", "same key"},
    };
    for (size_t i = 0; i < LG_COUNT(bad); i++) {
        lg_keys *ks = NULL;
        lg_err err = {0};
        lg_status st = lg_keys_parse(bad[i].text, strlen(bad[i].text), "k", &ks, &err);
        if (st != LG_E_FORMAT || !strstr(err.msg, bad[i].why))
            fail_msg("%s: status %d, '%s'", bad[i].text, st, err.msg);
        if (strstr(err.msg, &HASH_A[8])) fail_msg("a message holds a hash: %s", err.msg);
        assert_null(ks);
    }
    assert_int_equal(lg_mem_alive(), 0);
}

static void test_no_memory_at_any_allocation(void **state) {
    (void)state;
    lg_keys *ks = NULL;
    lg_status st = LG_E_NOMEM;
    for (uint64_t n = 1; st == LG_E_NOMEM && n < 100; n++) {
        lg_err err = {0};
        lg_mem_fail_at(n);
        st = lg_keys_parse(LINE_A, strlen(LINE_A), "k", &ks, &err);
    }
    lg_mem_fail_at(0);
    assert_int_equal(st, LG_OK);
    lg_keys_close(&ks);
    assert_int_equal(lg_mem_alive(), 0);
}

static void test_requests_per_minute(void **state) {
    (void)state;
    lg_key k = {.limits = {.requests_per_minute = 6}};
    lg_keys_refusal why;
    uint64_t t = 1000000;
    for (int i = 0; i < 6; i++) assert_true(lg_keys_count(&k, t, &why));
    assert_false(lg_keys_count(&k, t, &why));
    assert_int_equal(why.http, 429);
    assert_int_equal(why.retry_s, 10); /* one in ten seconds */
    assert_false(lg_keys_count(&k, t + 9900000, &why));
    assert_int_equal(why.retry_s, 1);
    assert_true(lg_keys_count(&k, t + 10100000, &why));
    assert_false(lg_keys_count(&k, t + 10100000, &why));
    /* A long pause fills the bucket, and no more than that. */
    t += 3600u * 1000000;
    for (int i = 0; i < 6; i++) assert_true(lg_keys_count(&k, t, &why));
    assert_false(lg_keys_count(&k, t, &why));
    lg_key free_key = {0};
    for (int i = 0; i < 1000; i++) assert_true(lg_keys_count(&free_key, t, &why));
}

static void test_tokens_per_minute(void **state) {
    (void)state;
    lg_key k = {.limits = {.tokens_per_minute = 600}};
    lg_keys_refusal why;
    uint32_t max = 0;
    uint64_t t = 1000000;
    assert_true(lg_keys_begin(&k, 500, &max, t, &why));
    assert_int_equal(max, 0);
    lg_keys_spend(&k, 200); /* 100 in debt */
    assert_false(lg_keys_begin(&k, 100, &max, t, &why));
    assert_int_equal(why.http, 429);
    assert_int_equal(why.retry_s, 20); /* 200 tokens at 10 a second */
    assert_true(lg_keys_begin(&k, 100, &max, t + 20000000, &why));
    /* A prompt larger than the bucket is let in when it is full. */
    assert_false(lg_keys_begin(&k, 5000, &max, t + 30000000, &why));
    assert_int_equal(why.retry_s, 50);
    assert_true(lg_keys_begin(&k, 5000, &max, t + 200000000, &why));
    lg_keys_end(&k);
    lg_keys_end(&k);
    lg_keys_end(&k);
    assert_int_equal(k.n_active, 0);
}

static void test_concurrent_and_context(void **state) {
    (void)state;
    lg_key k = {.limits = {.concurrent = 2, .max_context = 100}};
    lg_keys_refusal why;
    uint32_t max = 0;
    assert_true(lg_keys_begin(&k, 99, &max, 1, &why));
    assert_int_equal(max, 1); /* what the context leaves */
    max = 50;
    assert_true(lg_keys_begin(&k, 50, &max, 1, &why));
    assert_int_equal(max, 50);
    assert_false(lg_keys_begin(&k, 50, &max, 1, &why));
    assert_int_equal(why.http, 429);
    lg_keys_end(&k);
    max = 51;
    assert_false(lg_keys_begin(&k, 50, &max, 1, &why));
    assert_int_equal(why.http, 400);
    assert_string_equal(why.code, "context_length_exceeded");
    max = 0;
    assert_false(lg_keys_begin(&k, 100, &max, 1, &why));
    assert_int_equal(why.http, 400);
}

static void test_headers(void **state) {
    (void)state;
    lg_key k = {.limits = {.requests_per_minute = 60, .tokens_per_minute = 1000}};
    lg_keys_refusal why;
    lg_buf b = {0};
    assert_true(lg_keys_count(&k, 5, &why));
    lg_keys_spend(&k, 1500);
    lg_keys_put_headers(&k, 5, &b);
    assert_string_equal(lg_buf_str(&b), "x-ratelimit-limit-requests: 60\r\n"
                                        "x-ratelimit-remaining-requests: 59\r\n"
                                        "x-ratelimit-reset-requests: 1s\r\n"
                                        "x-ratelimit-limit-tokens: 1000\r\n"
                                        "x-ratelimit-remaining-tokens: 0\r\n"
                                        "x-ratelimit-reset-tokens: 90s\r\n");
    lg_buf_fini(&b);
    lg_key none = {0};
    lg_keys_put_headers(&none, 5, &b);
    assert_int_equal(b.len_bytes, 0);
}

static void put_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_reload(void **state) {
    (void)state;
    char path[] = "/tmp/lignum-keys-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    lg_keys *ks = NULL;
    lg_err err = {0};
    lg_keys_refusal why;
    put_file(path, "{\"name\":\"a\",\"role\":\"user\",\"hash\":\"" HASH_A
                   "\",\"requests_per_minute\":2}\n");
    assert_int_equal(lg_keys_open(path, &ks, &err), LG_OK);
    lg_key *a = lg_keys_find(ks, key_a, strlen(key_a));
    assert_true(lg_keys_count(a, 1, &why));
    lg_keys_hold(a);
    /* A bad file keeps the old keys. */
    put_file(path, LINE_A "{");
    assert_int_equal(lg_keys_reload(ks, &err), LG_E_FORMAT);
    assert_ptr_equal(lg_keys_find(ks, key_a, strlen(key_a)), a);
    /* The same name with another key keeps what it has used. */
    put_file(path, "{\"name\":\"a\",\"role\":\"user\",\"hash\":\"" HASH_B
                   "\",\"requests_per_minute\":2}\n");
    assert_int_equal(lg_keys_reload(ks, &err), LG_OK);
    assert_null(lg_keys_find(ks, key_a, strlen(key_a)));
    assert_ptr_equal(lg_keys_find(ks, key_b, strlen(key_b)), a);
    assert_true(lg_keys_count(a, 1, &why));
    assert_false(lg_keys_count(a, 1, &why));
    /* A removed key lives as long as somebody holds it. */
    put_file(path, "");
    assert_int_equal(lg_keys_reload(ks, &err), LG_OK);
    assert_null(lg_keys_first(ks));
    assert_string_equal(a->name, "a");
    lg_keys_drop(ks, a);
    /* Who may write the file decides who may come in. */
    chmod(path, 0666);
    assert_int_equal(lg_keys_reload(ks, &err), LG_E_ARG);
    unlink(path);
    assert_int_equal(lg_keys_reload(ks, &err), LG_E_IO);
    lg_keys_close(&ks);
    assert_int_equal(lg_mem_alive(), 0);
}

static void test_drawn_keys(void **state) {
    (void)state;
    char a[LG_KEYS_TEXT_BYTES], b[LG_KEYS_TEXT_BYTES];
    assert_int_equal(lg_keys_draw(a, NULL), LG_OK);
    assert_int_equal(lg_keys_draw(b, NULL), LG_OK);
    assert_int_equal(strlen(a), 46);
    assert_memory_equal(a, "lg-", 3);
    assert_string_not_equal(a, b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_is_blake2b),
        cmocka_unit_test(test_file_and_find),
        cmocka_unit_test(test_nobody_gets_ahead_of_his_key),
        cmocka_unit_test(test_lines_go_round),
        cmocka_unit_test(test_bad_lines_are_named),
        cmocka_unit_test(test_no_memory_at_any_allocation),
        cmocka_unit_test(test_requests_per_minute),
        cmocka_unit_test(test_tokens_per_minute),
        cmocka_unit_test(test_concurrent_and_context),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_drawn_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
