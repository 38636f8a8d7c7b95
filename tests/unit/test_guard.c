/* test_guard.c - which Host, Origin and key pass, role by role. */
#include "gateway/net/guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const key_text[] = {"user-key-0123456789-0123456789",
                                       "admin-key-0123456789-0123456789",
                                       "metrics-key-0123456789-0123456789"};

static lg_keys *make_keys(void) {
    lg_buf b = {0};
    lg_keys *ks = NULL;
    for (int i = 0; i < 3; i++) {
        lg_key k = {.role = (lg_key_role)i};
        snprintf(k.name, sizeof k.name, "k%d", i);
        lg_keys_hash(key_text[i], strlen(key_text[i]), k.hash);
        lg_keys_put_line(&k, &b);
    }
    assert_int_equal(lg_keys_parse(b.data, b.len_bytes, "k", &ks, NULL), LG_OK);
    lg_buf_fini(&b);
    return ks;
}

/* HTTP status of the refusal, or 0; the header lines into `lines` when it is not NULL. */
static int check(const lg_guard *g, lg_access access, const char *method, const char *headers,
                 lg_buf *lines) {
    char text[1024];
    size_t used;
    lg_http h = {0};
    lg_buf own = {0};
    lg_guard_verdict v;
    int n = snprintf(text, sizeof text, "%s /x HTTP/1.1\r\n%s\r\n", method, headers);
    assert_int_equal(lg_http_feed(&h, text, (size_t)n, &used), LG_OK);
    bool ok = lg_guard_check(g, &h, access, 1, &v, lines ? lines : &own);
    for (int i = 0; i < 3; i++) /* nothing of a key is left */
        assert_null(memmem(h.head.data, h.head.len_bytes, key_text[i], 8));
    lg_buf_fini(&own);
    lg_http_fini(&h);
    return ok ? 0 : v.why.http;
}

static void test_local_hosts(void **state) {
    (void)state;
    static const char *const yes[] = {"localhost", "LocalHost:8080", "a.localhost:1",
                                      "127.0.0.1", "127.0.0.1:80",   "[::1]:8080",
                                      "[::1]",     "10.1.2.3"};
    static const char *const no[] = {"",           "example.com",      "localhost.evil.com",
                                     "xlocalhost", "127.0.0.1.nip.io", "[::1",
                                     "evil:127",   "127.0.0.1evil:80", "::1"};
    for (size_t i = 0; i < LG_COUNT(yes); i++)
        if (!lg_guard_is_local(yes[i])) fail_msg("%s", yes[i]);
    for (size_t i = 0; i < LG_COUNT(no); i++)
        if (lg_guard_is_local(no[i])) fail_msg("%s", no[i]);
}

static void test_host(void **state) {
    (void)state;
    lg_guard g = {.check_host = true, .host = {"box.lan"}, .n_host = 1};
    assert_int_equal(check(&g, LG_ACCESS_USER, "GET", "Host: box.lan:8080\r\n", NULL), 0);
    assert_int_equal(check(&g, LG_ACCESS_USER, "GET", "Host: BOX.lan\r\n", NULL), 0);
    assert_int_equal(check(&g, LG_ACCESS_USER, "GET", "Host: box.lan.evil.com\r\n", NULL), 403);
    assert_int_equal(check(&g, LG_ACCESS_USER, "GET", "Host: evil.com\r\n", NULL), 403);
    assert_int_equal(check(&g, LG_ACCESS_OPEN, "GET", "Host: evil.com\r\n", NULL), 0);
    g.check_host = false;
    assert_int_equal(check(&g, LG_ACCESS_USER, "GET", "Host: evil.com\r\n", NULL), 0);
}

static void test_origin(void **state) {
    (void)state;
    lg_guard g = {.check_host = true};
    lg_buf b = {0};
#define AT "Host: localhost:8080\r\nOrigin: "
    assert_int_equal(check(&g, LG_ACCESS_USER, "POST", AT "https://evil.com\r\n", &b), 403);
    assert_int_equal(check(&g, LG_ACCESS_USER, "POST", AT "null\r\n", &b), 403);
    assert_int_equal(check(&g, LG_ACCESS_USER, "POST", AT "http://localhost:9\r\n", &b), 403);
    assert_int_equal(check(&g, LG_ACCESS_USER, "POST", AT "http://localhost:8080\r\n", &b), 0);
    assert_int_equal(b.len_bytes, 0); /* no CORS header without --cors-origin */
    g.origin[g.n_origin++] = "https://app.example";
    assert_int_equal(check(&g, LG_ACCESS_USER, "POST", AT "https://app.example\r\n", &b), 0);
    assert_string_equal(lg_buf_str(&b),
                        "Access-Control-Allow-Origin: https://app.example\r\nVary: Origin\r\n");
    lg_buf_clear(&b);
    assert_int_equal(check(&g, LG_ACCESS_USER, "POST", AT "https://app.example.evil\r\n", &b),
                     403);
    assert_int_equal(b.len_bytes, 0);
    assert_int_equal(check(&g, LG_ACCESS_USER, "OPTIONS",
                           AT "https://app.example\r\nAccess-Control-Request-Headers: "
                              "authorization, x-a\r\n",
                           &b),
                     0);
    assert_non_null(
        strstr(lg_buf_str(&b), "Access-Control-Allow-Headers: authorization, x-a\r\n"));
    lg_buf_clear(&b);
    g.origin[0] = "*";
    assert_int_equal(check(&g, LG_ACCESS_USER, "POST", AT "https://any.example\r\n", &b), 0);
    lg_buf_fini(&b);
}

static void test_roles(void **state) {
    (void)state;
    lg_guard g = {.keys = make_keys()};
    static const int want[3][3] = {/* open, user, metrics */
                                   {0, 0, 403},
                                   {0, 0, 0},
                                   {0, 403, 0}};
    for (int i = 0; i < 3; i++) {
        for (int access = 0; access < 3; access++) {
            char line[3][160];
            snprintf(line[0], sizeof line[0], "Host: x\r\nAuthorization: Bearer %s\r\n",
                     key_text[i]);
            snprintf(line[1], sizeof line[1], "Host: x\r\nauthorization: bearer  %s\r\n",
                     key_text[i]);
            snprintf(line[2], sizeof line[2], "Host: x\r\nX-Api-Key: %s\r\n", key_text[i]);
            for (int l = 0; l < 3; l++)
                assert_int_equal(check(&g, (lg_access)access, "POST", line[l], NULL),
                                 want[i][access]);
        }
    }
    static const char *const bad[] = {"",
                                      "Authorization: Bearer\r\n",
                                      "Authorization: Bearer x\r\n",
                                      "Authorization: Basic user-key-0123456789-0123456789\r\n",
                                      "Authorization: user-key-0123456789-0123456789\r\n",
                                      "X-Api-Key: \r\n",
                                      "X-Api-Key: user-key-0123456789-012345678\r\n"};
    for (size_t i = 0; i < LG_COUNT(bad); i++) {
        char line[200];
        snprintf(line, sizeof line, "Host: x\r\n%s", bad[i]);
        assert_int_equal(check(&g, LG_ACCESS_USER, "POST", line, NULL), 401);
        assert_int_equal(check(&g, LG_ACCESS_METRICS, "GET", line, NULL), 401);
        assert_int_equal(check(&g, LG_ACCESS_OPEN, "GET", line, NULL), 0);
    }
    lg_keys_close(&g.keys);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_hosts),
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_origin),
        cmocka_unit_test(test_roles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
