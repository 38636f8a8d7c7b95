/* tls.h - TLS 1.2 and 1.3 for the connections of clients.
 *
 * Thread: gateway.  Memory: OpenSSL's own.  Test: tests/e2e/test_tls.py */
#ifndef LG_GATEWAY_NET_TLS_H
#define LG_GATEWAY_NET_TLS_H

#include "base/diag.h"

struct bufferevent;
struct event_base;

typedef struct lg_tls lg_tls;

/* Read certificate chain and key (PEM files), and the authorities of client certificates when client_ca is not NULL: then a
 * client without a certificate of theirs is turned away.  Paths are borrowed.  LG_E_IO or LG_E_FORMAT naming the file;
 * LG_E_NOMEM.  The caller owns *tls. */
lg_status lg_tls_open(const char *cert, const char *key, const char *client_ca, lg_tls **tls,
                      lg_err *err);

/* Read the files again, for connections from now on.  After an error everything is as before. */
lg_status lg_tls_reload(lg_tls *tls, lg_err *err);

/* Connections that are open keep what they need. */
void lg_tls_close(lg_tls **tls);

/* A bufferevent that waits for the client's handshake on fd and closes fd when it is freed; NULL when there is no memory
 * (fd is still the caller's).  BEV_EVENT_CONNECTED tells of the end of the handshake. */
struct bufferevent *lg_tls_accept(lg_tls *tls, struct event_base *base, int fd);

/* Say that nothing more is sent.  All output must be written. */
void lg_tls_goodbye(struct bufferevent *be);

#endif
