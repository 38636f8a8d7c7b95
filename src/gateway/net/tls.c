/* tls.c - TLS of OpenSSL under libevent's bufferevents: see tls.h.
 *
 * Policy: 1.2 with forward secrecy and authenticated ciphers only, or 1.3; no compression, no renegotiation, no tickets
 * (a stolen ticket key would open old traffic), no session cache.  Buffers of idle connections are given back.
 * Thread: gateway.  Memory: OpenSSL's.  Test: tests/e2e/test_tls.py */
#include "gateway/net/tls.h"

#include "base/mem.h"

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>

struct lg_tls {
    const char *cert, *key, *client_ca;
    SSL_CTX *ctx;
};

/* An encrypted key file is refused instead of asking on the terminal. */
static int no_password(char *text, int size, int writing, void *ctx) {
    (void)text;
    (void)size;
    (void)writing;
    (void)ctx;
    return 0;
}

static lg_status fail(lg_err *err, const char *path, const char *what) {
    unsigned long code = ERR_get_error();
    const char *why = ERR_reason_error_string(code);
    lg_status st = ERR_GET_LIB(code) == ERR_LIB_SYS ? LG_E_IO : LG_E_FORMAT;
    if (!why && ERR_SYSTEM_ERROR(code)) why = strerror(ERR_GET_REASON(code));
    ERR_clear_error();
    return LG_FAIL(err, st, "%s: %s: %s", path, what, why ? why : "not understood");
}

static lg_status fill(const lg_tls *t, SSL_CTX *ctx, lg_err *err) {
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
                                 SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_default_passwd_cb(ctx, no_password);
    if (SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1)
        return fail(err, "TLS", "ciphers");
    if (SSL_CTX_use_certificate_chain_file(ctx, t->cert) != 1)
        return fail(err, t->cert, "certificate");
    if (SSL_CTX_use_PrivateKey_file(ctx, t->key, SSL_FILETYPE_PEM) != 1)
        return fail(err, t->key, "private key");
    if (SSL_CTX_check_private_key(ctx) != 1)
        return fail(err, t->key, "this key is not the certificate's");
    if (!t->client_ca) return LG_OK;
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(t->client_ca);
    if (!names || SSL_CTX_load_verify_locations(ctx, t->client_ca, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return fail(err, t->client_ca, "certificates of client authorities");
    }
    SSL_CTX_set_client_CA_list(ctx, names);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return LG_OK;
}

lg_status lg_tls_reload(lg_tls *t, lg_err *err) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return LG_FAIL(err, LG_E_NOMEM, "no memory for TLS");
    lg_status st = fill(t, ctx, err);
    if (st != LG_OK) {
        SSL_CTX_free(ctx);
        return st;
    }
    SSL_CTX_free(t->ctx); /* open connections hold their own reference */
    t->ctx = ctx;
    return LG_OK;
}

lg_status lg_tls_open(const char *cert, const char *key, const char *client_ca, lg_tls **tls,
                      lg_err *err) {
    lg_tls *t = lg_mem_alloc(sizeof *t);
    if (!t) return LG_FAIL(err, LG_E_NOMEM, "no memory for TLS");
    *t = (lg_tls){.cert = cert, .key = key, .client_ca = client_ca};
    lg_status st = lg_tls_reload(t, err);
    if (st != LG_OK)
        lg_mem_free(t);
    else
        *tls = t;
    return st;
}

void lg_tls_close(lg_tls **tls) {
    if (!*tls) return;
    SSL_CTX_free((*tls)->ctx);
    LG_FREE(*tls);
}

struct bufferevent *lg_tls_accept(lg_tls *t, struct event_base *base, int fd) {
    SSL *ssl = SSL_new(t->ctx);
    if (!ssl) return NULL;
    struct bufferevent *be = bufferevent_openssl_socket_new(
        base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    if (!be) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(be, 1);
    return be;
}

void lg_tls_goodbye(struct bufferevent *be) {
    SSL *ssl = bufferevent_openssl_get_ssl(be);
    if (ssl && SSL_is_init_finished(ssl)) SSL_shutdown(ssl);
    ERR_clear_error();
}
