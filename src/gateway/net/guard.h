/* guard.h - what a request must pass before a route sees it: its Host, its Origin, its key.
 *
 * Decided from the head alone, before a byte of the body is taken.
 * Thread: gateway.  Test: tests/unit/test_guard.c, tests/e2e/test_secure.py */
#ifndef LG_GATEWAY_NET_GUARD_H
#define LG_GATEWAY_NET_GUARD_H

#include "gateway/keys.h"
#include "gateway/net/http.h"

#define LG_GUARD_MAX_NAME 16u /* hosts, and origins, that can be allowed */

/* What may be asked of the endpoint, and from where.  Texts are borrowed. */
typedef struct lg_guard {
    lg_keys *keys;   /* NULL: no keys are asked for */
    bool check_host; /* the Host header must be one of this machine's or of the list */
    const char *host[LG_GUARD_MAX_NAME];
    uint32_t n_host;
    const char *origin[LG_GUARD_MAX_NAME]; /* "https://example.com", or "*" */
    uint32_t n_origin;
} lg_guard;

/* Who may use a route. */
typedef enum { LG_ACCESS_OPEN, LG_ACCESS_USER, LG_ACCESS_METRICS } lg_access;

typedef struct lg_guard_verdict {
    bool preflight; /* answer 200 with nothing but `headers` */
    lg_key *key;    /* whose request it is; NULL without keys */
    lg_keys_refusal why;
} lg_guard_verdict;

/* May this request be answered?  The head must be complete.  Its keys are wiped from it.  CORS headers are appended to
 * `headers` in any case.  false: refuse it with v->why (401, 403, 429). */
bool lg_guard_check(const lg_guard *g, lg_http *h, lg_access access, uint64_t now_us,
                    lg_guard_verdict *v, lg_buf *headers);

/* True for "localhost", names below it, and addresses in numbers, each with an optional port: such a Host cannot be the
 * work of a name server (DNS rebinding). */
bool lg_guard_is_local(const char *host);

#endif
