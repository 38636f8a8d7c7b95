/* guard.c - Host, Origin and key of a request: see guard.h.
 *
 * Host: a web page can make its own name point at this machine and then talk to us as its origin; the Host header still
 * holds that name.  Origin: a browser sends what a page asks for even where it will not show the answer, so a foreign
 * Origin is refused, not only left without CORS headers.  Keys: Authorization: Bearer, or X-Api-Key.
 * Thread: gateway.  Memory: none.  Test: tests/unit/test_guard.c, tests/e2e/test_secure.py */
#include "gateway/net/guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool refuse(lg_guard_verdict *v, int http, const char *code, const char *msg) {
    v->why = (lg_keys_refusal){.http = http, .code = code};
    snprintf(v->why.msg, sizeof v->why.msg, "%s", msg);
    return false;
}

/* ---- Host ---- */

/* Length of the host in "host:port" or "[v6]:port". */
static size_t host_len(const char *host) {
    if (*host == '[') return strcspn(host, "]") + (strchr(host, ']') ? 1 : 0);
    return strcspn(host, ":");
}

static bool is_address(const char *host, size_t len) {
    char text[64];
    uint8_t a[16];
    if (len >= sizeof text) return false;
    bool v6 = len > 2 && host[0] == '[' && host[len - 1] == ']';
    snprintf(text, sizeof text, "%.*s", (int)(v6 ? len - 2 : len), host + v6);
    return inet_pton(v6 ? AF_INET6 : AF_INET, text, a) == 1;
}

bool lg_guard_is_local(const char *host) {
    static const char name[] = "localhost";
    size_t len = host_len(host), n = sizeof name - 1;
    if (is_address(host, len)) return true;
    if (len < n || strncasecmp(host + len - n, name, n) != 0) return false;
    return len == n || host[len - n - 1] == '.';
}

static bool host_allowed(const lg_guard *g, const char *host) {
    size_t len = host_len(host);
    if (lg_guard_is_local(host)) return true;
    for (uint32_t i = 0; i < g->n_host; i++)
        if (strlen(g->host[i]) == len && strncasecmp(host, g->host[i], len) == 0) return true;
    return false;
}

/* ---- Origin ---- */

static bool origin_listed(const lg_guard *g, const char *origin) {
    for (uint32_t i = 0; i < g->n_origin; i++)
        if (strcmp(g->origin[i], "*") == 0 || strcasecmp(g->origin[i], origin) == 0)
            return true;
    return false;
}

/* A page of our own: "http://HOST" with the request's Host. */
static bool same_origin(const char *origin, const char *host) {
    const char *p = strstr(origin, "://");
    return p && host && strcasecmp(p + 3, host) == 0;
}

/* ---- Keys ---- */

static lg_key *key_of(const lg_guard *g, const lg_http *h) {
    static const char scheme[] = "Bearer ";
    const char *auth = lg_http_value(h, h->authorization_at);
    const char *plain = lg_http_value(h, h->api_key_at);
    lg_key *k = NULL;
    if (auth && strncasecmp(auth, scheme, sizeof scheme - 1) == 0) {
        auth += sizeof scheme - 1;
        auth += strspn(auth, " ");
        k = lg_keys_find(g->keys, auth, strlen(auth));
    }
    if (!k && plain) k = lg_keys_find(g->keys, plain, strlen(plain));
    return k;
}

static void wipe_keys(const lg_http *h) {
    char *const value[] = {lg_http_value(h, h->authorization_at),
                           lg_http_value(h, h->api_key_at)};
    for (size_t i = 0; i < LG_COUNT(value); i++)
        if (value[i]) lg_keys_wipe(value[i], strlen(value[i]));
}

static bool role_allowed(lg_key_role role, lg_access access) {
    if (role == LG_ROLE_ADMIN) return true;
    return (role == LG_ROLE_METRICS) == (access == LG_ACCESS_METRICS);
}

static bool check_key(const lg_guard *g, lg_http *h, lg_access access, uint64_t now_us,
                      lg_guard_verdict *v) {
    bool given = h->authorization_at || h->api_key_at;
    if (!g->keys) return true;
    lg_key *k = key_of(g, h);
    if (!k)
        return refuse(v, 401, "invalid_api_key",
                      given ? "the API key is not known here"
                            : "an API key is needed: Authorization: Bearer KEY, or X-Api-Key");
    if (!role_allowed(k->role, access))
        return refuse(v, 403, "role_not_allowed",
                      "the role of this API key does not allow this route");
    v->key = k;
    if (strcmp(lg_http_method(h), "POST") == 0) return lg_keys_count(k, now_us, &v->why);
    return true;
}

bool lg_guard_check(const lg_guard *g, lg_http *h, lg_access access, uint64_t now_us,
                    lg_guard_verdict *v, lg_buf *headers) {
    const char *host = lg_http_value(h, h->host_at), *origin = lg_http_value(h, h->origin_at);
    *v = (lg_guard_verdict){0};
    bool listed = origin && origin_listed(g, origin);
    if (listed)
        lg_buf_printf(headers, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", origin);
    bool ok = true;
    if (access != LG_ACCESS_OPEN) {
        if (g->check_host && host && !host_allowed(g, host))
            ok = refuse(v, 403, "host_not_allowed",
                        "the Host header names neither this machine nor an --allow-host");
        else if (origin && !listed && !same_origin(origin, host))
            ok = refuse(v, 403, "origin_not_allowed",
                        "the Origin header is not one that --cors-origin names");
        else if (listed && strcmp(lg_http_method(h), "OPTIONS") == 0)
            v->preflight = true;
        else
            ok = check_key(g, h, access, now_us, v);
    }
    wipe_keys(h);
    if (!v->preflight) return ok;
    const char *asked = lg_http_value(h, h->cors_headers_at);
    lg_buf_puts(headers, "Access-Control-Allow-Methods: GET, POST\r\n");
    if (asked) lg_buf_printf(headers, "Access-Control-Allow-Headers: %s\r\n", asked);
    return ok;
}
