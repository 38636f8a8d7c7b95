/* test_http.c - the request reader: what it understands, what it refuses, and that cuts do not matter. */
#include "base/base.h"
#include "gateway/net/http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

typedef struct sample {
    const char *text;
    lg_status st;
    int status;       /* LG_E_FORMAT */
    const char *rest; /* LG_OK: what is left for the next request */
    const char *method, *path, *body;
    bool keep;
} sample;

static const sample samples[] = {
    {"GET /live HTTP/1.1\r\nHost: x\r\n\r\nGET", LG_OK, 0, "GET", "GET", "/live", "", true},
    {"\r\n\r\nGET /a?b=/c HTTP/1.1\r\nhOsT:\r\n\r\n", LG_OK, 0, "", "GET", "/a", "", true},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcd", LG_OK, 0, "d", "POST", "/",
     "abc", true},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0003\r\nConnection: a, Close \r\n\r\nabc",
     LG_OK, 0, "", "POST", "/", "abc", false},
    {"GET / HTTP/1.0\r\n\r\n", LG_OK, 0, "", "GET", "/", "", false},
    {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", LG_OK, 0, "", "GET", "/", "", true},
    {"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
     "Chunked\r\n\r\n3\r\nabc\r\n0A;e=\"1\"\r\n"
     "0123456789\r\n0\r\nT: v\r\n\r\nrest",
     LG_OK, 0, "rest", "POST", "/x", "abc0123456789", true},
    {"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", LG_OK, 0, "",
     "POST", "/x", "", true},
    {"GET /\r\n", LG_E_FORMAT, 400, NULL, NULL, NULL, NULL, false},
    {"GET / HTTP/1.1\n", LG_E_FORMAT, 400, NULL, NULL, NULL, NULL, false},
    {"GET / HTTP/1.1 \r\n", LG_E_FORMAT, 505, NULL, NULL, NULL, NULL, false},
    {"PRI * HTTP/2.0\r\n", LG_E_FORMAT, 400, NULL, NULL, NULL, NULL, false},
    {"GET / HTTP/1.1\r\n\r\n", LG_E_FORMAT, 400, NULL, NULL, NULL, NULL, false},
    {"GET / HTTP/1.1\r\nHost: x\rX: y\r\n", LG_E_FORMAT, 400, NULL, NULL, NULL, NULL, false},
    {"GET / HTTP/1.1\r\nHost: x\r\nExpect: me\r\n", LG_E_FORMAT, 417, NULL, NULL, NULL, NULL,
     false},
    {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n", LG_E_FORMAT, 400, NULL, NULL, NULL,
     NULL, false},
    {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 33554433\r\n", LG_E_FORMAT, 413, NULL, NULL,
     NULL, NULL, false},
    {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", LG_E_FORMAT, 400, NULL, NULL, NULL,
     NULL, false},
    {"P / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2000001\r\n", LG_E_FORMAT,
     413, NULL, NULL, NULL, NULL, false},
    {"P / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n123456789\r\n", LG_E_FORMAT,
     400, NULL, NULL, NULL, NULL, false},
    {"P / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\n", LG_E_FORMAT, 400,
     NULL, NULL, NULL, NULL, false},
    {"P / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", LG_E_FORMAT,
     400, NULL, NULL, NULL, NULL, false},
    {"GET /live HTTP/1.1\r\nHost: x\r\n", LG_AGAIN, 0, NULL, NULL, NULL, NULL, true},
};

static void check(const sample *s, size_t step) {
    lg_http h = {0};
    size_t len = strlen(s->text), at = 0;
    lg_status st = LG_AGAIN;
    while (at < len && st == LG_AGAIN) {
        size_t used, n = len - at < step ? len - at : step;
        st = lg_http_feed(&h, s->text + at, n, &used);
        assert_true(used <= n);
        if (st == LG_AGAIN) assert_int_equal(used, n);
        at += used;
    }
    assert_int_equal(st, s->st);
    if (st == LG_E_FORMAT) {
        assert_int_equal(h.status, s->status);
        assert_non_null(h.reason);
    }
    if (st == LG_OK) {
        assert_string_equal(s->text + at, s->rest);
        assert_string_equal(lg_http_method(&h), s->method);
        assert_string_equal(lg_http_path(&h), s->path);
        assert_string_equal(lg_buf_str(&h.body), s->body);
        assert_int_equal(h.keep_alive, s->keep);
        lg_http_reset(&h);
        assert_false(lg_http_begun(&h));
    }
    lg_http_fini(&h);
}

static void test_requests_in_any_pieces(void **state) {
    (void)state;
    for (size_t i = 0; i < LG_COUNT(samples); i++)
        for (size_t step = 1; step < 90; step++) check(&samples[i], step);
}

static void feed_all(const char *start, const char *line, size_t n, int want) {
    lg_http h = {0};
    lg_buf b = {0};
    size_t used;
    lg_buf_puts(&b, start);
    for (size_t i = 0; i < n; i++) lg_buf_puts(&b, line);
    lg_status st = lg_http_feed(&h, b.data, b.len_bytes, &used);
    assert_int_equal(st, want ? LG_E_FORMAT : LG_AGAIN);
    assert_int_equal(h.status, want);
    lg_http_fini(&h);
    lg_buf_fini(&b);
}

static void test_limits(void **state) {
    (void)state;
    feed_all("GET / HTTP/1.1\r\n", "A: b\r\n", 100, 0);
    feed_all("GET / HTTP/1.1\r\n", "A: b\r\n", 101, 431);
    feed_all("GET / HTTP/1.1\r\nA: ", "aaaaaaaaaaaaaaaa", 2000, 0);
    feed_all("GET / HTTP/1.1\r\nA: ", "aaaaaaaaaaaaaaaa", 2100, 431);
    feed_all("", "\r\n", 8, 0);
    feed_all("", "\r\n", 9, 400);
    feed_all("P / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;",
             "aaaaaaaaaaaaaaaa", 2100, 431);
    feed_all("P / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "A: b\r\n",
             101, 431);
}

static void test_mutations_never_crash(void **state) {
    (void)state;
    for (uint32_t k = 0; k < 50000; k++) {
        char text[256];
        const sample *s = &samples[k % LG_COUNT(samples)];
        size_t len = strlen(s->text), used;
        lg_http h = {0};
        memcpy(text, s->text, len);
        for (uint32_t j = 0; j < 1 + k % 4; j++) {
            uint64_t x = lg_num_rng(11, 0, k, j);
            text[(x >> 8) % len] = (char)x;
        }
        lg_status st = lg_http_feed(&h, text, len, &used);
        assert_true(st == LG_OK || st == LG_AGAIN || (st == LG_E_FORMAT && h.status >= 400));
        lg_http_fini(&h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_in_any_pieces),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_mutations_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
