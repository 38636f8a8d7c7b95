/* listen.h - listening sockets: bound by us, or handed over by systemd.
 *
 * Thread: gateway.  Test: tests/e2e/test_secure.py */
#ifndef LG_GATEWAY_NET_LISTEN_H
#define LG_GATEWAY_NET_LISTEN_H

#include "gateway/gateway.h"

#include <event2/listener.h>

#define LG_LISTEN_MAX 8u

/* Caller's storage: = {0}, lg_listen_close. */
typedef struct lg_listen {
    struct evconnlistener *on[LG_LISTEN_MAX];
    uint32_t n;
    bool loopback; /* nobody outside this machine can reach any of them */
    bool shared;   /* handed over: others may hold them too */
} lg_listen;

/* Take the sockets that LISTEN_FDS hands over (sd_listen_fds(3)), else bind opt->host and opt->port.  A socket that others
 * can reach is refused without both keys and TLS, unless opt->insecure.  LG_E_IO, LG_E_ARG. */
lg_status lg_listen_open(lg_listen *l, struct event_base *base, const lg_gateway_opt *opt,
                         evconnlistener_cb on_accept, void *ctx, lg_err *err);
void lg_listen_close(lg_listen *l);

/* Sockets handed over accept nothing before lg_listen_ready and after lg_listen_drain: what arrives waits for whoever holds
 * them then, so that a successor takes over without a refused request.  Our own accept all the time, so that clients hear
 * why they have to wait. */
void lg_listen_ready(lg_listen *l);
void lg_listen_drain(lg_listen *l);

/* The address clients use; the port may have been chosen by the system. */
void lg_listen_url(const lg_listen *l, const char *scheme, char *url, size_t cap);

#endif
