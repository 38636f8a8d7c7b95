/* http.h - HTTP/1.1 requests out of bytes, without I/O.
 *
 * Strict where tolerance is dangerous (RFC 9112): lines end with CRLF, no folded headers, no space before a colon, one
 * Content-Length, never together with Transfer-Encoding, exactly one Host; headers that name the client come once.  The sizes of head and body are bounded.
 * One reader reads one request; what follows it (pipelining) is left to the caller.
 * Thread: gateway.  Test: tests/unit/test_http.c, fuzz/fuzz_http.c */
#ifndef LG_GATEWAY_NET_HTTP_H
#define LG_GATEWAY_NET_HTTP_H

#include "base/buf.h"

#define LG_HTTP_MAX_HEAD   (32u << 10) /* bytes of request line and headers, and of trailers */
#define LG_HTTP_MAX_HEADER 100u        /* header lines */
#define LG_HTTP_MAX_BODY   (32u << 20) /* bytes, and at most lg_http.max_body */

typedef enum {
    LG_HTTP_HEAD, /* request line and headers */
    LG_HTTP_BODY, /* Content-Length bytes */
    LG_HTTP_CHUNK_SIZE,
    LG_HTTP_CHUNK,
    LG_HTTP_CHUNK_END,
    LG_HTTP_TRAILER,
    LG_HTTP_DONE
} lg_http_state;

/* A request in the making.  Caller's storage: = {0}, lg_http_fini; lg_http_reset before the next request. */
typedef struct lg_http {
    lg_http_state state;
    lg_buf head;   /* bytes up to the empty line; method and path point into it */
    lg_buf body;   /* decoded */
    size_t line;   /* start of the line being read in head */
    uint64_t left; /* bytes to come of the body or chunk */
    uint32_t n_header;
    uint64_t max_body; /* the caller's; 0 = LG_HTTP_MAX_BODY.  lg_http_reset keeps it */
    /* valid once state is past LG_HTTP_HEAD */
    size_t method_at, path_at; /* in head; see lg_http_method and lg_http_path */
    bool has_line;             /* the request line has been read */
    bool http10, keep_alive;
    bool expect_continue; /* the client waits for 100 before it sends the body */
    bool has_length, chunked;
    size_t host_at, authorization_at, api_key_at, origin_at; /* in head; 0 = no such header */
    size_t cors_headers_at; /* Access-Control-Request-Headers */
    /* valid after an error: the answer */
    int status;
    const char *reason;
} lg_http;

/* Take bytes; *used tells how many (all of them unless the request is complete).
 * LG_OK: the request is complete.  LG_AGAIN: more bytes are needed.  LG_E_FORMAT: answer with h->status and h->reason, then
 * close.  LG_E_NOMEM. */
lg_status lg_http_feed(lg_http *h, const char *data, size_t len_bytes, size_t *used);

/* True once the first byte of a request has been seen. */
static inline bool lg_http_begun(const lg_http *h) {
    return h->head.len_bytes > 0 || h->state != LG_HTTP_HEAD;
}

/* NUL-terminated; the path is without the query.  Valid after the head, until lg_http_feed. */
static inline const char *lg_http_method(const lg_http *h) {
    return h->head.data + h->method_at;
}
static inline const char *lg_http_path(const lg_http *h) {
    return h->head.data + h->path_at;
}

/* The value of a header noted above by its offset, NUL-terminated; NULL when it was not sent. */
static inline char *lg_http_value(const lg_http *h, size_t at) {
    return at ? h->head.data + at : NULL;
}

void lg_http_reset(lg_http *h);
void lg_http_fini(lg_http *h);

/* "Not Found" for 404 and so on. */
const char *lg_http_status_text(int status);

#endif
