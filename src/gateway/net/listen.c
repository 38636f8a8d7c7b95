/* listen.c - listening sockets: see listen.h.
 *
 * Policy: what others can reach needs keys and TLS, or a word that says "insecure".  A socket of a file (AF_UNIX) counts
 * as this machine's own.  Thread: gateway.  Memory: libevent's.  Test: tests/e2e/test_secure.py */
#include "gateway/net/listen.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST_FD = 3, BACKLOG = 1024 };

/* Out of file descriptors, usually: wait a moment instead of spinning. */
static void on_accept_error(struct evconnlistener *on, void *ctx) {
    (void)on;
    (void)ctx;
    lg_diag_log(LG_LOG_ERROR, "accept: %s", strerror(errno));
    lg_clock_sleep_us(10000);
}

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_UNIX) return true;
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    if (a->sa_family != AF_INET6) return false;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a;
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static lg_status check_reach(lg_listen *l, const struct sockaddr *a, const lg_gateway_opt *opt,
                             lg_err *err) {
    if (is_loopback(a)) return LG_OK;
    l->loopback = false;
    if (opt->insecure || (opt->keys_path && opt->tls_cert)) return LG_OK;
    return LG_FAIL(err, LG_E_ARG,
                   "others could reach this address, and there %s: give --keys, --tls-cert and "
                   "--tls-key, or say --insecure",
                   opt->keys_path  ? "is no TLS, so keys and texts could be read on the way"
                   : opt->tls_cert ? "are no keys, so anybody could use it"
                                   : "are neither keys nor TLS");
}

static lg_status add(lg_listen *l, struct evconnlistener *on) {
    if (!on) return LG_E_IO;
    evconnlistener_set_error_cb(on, on_accept_error);
    l->on[l->n++] = on;
    return LG_OK;
}

static lg_status bind_host(lg_listen *l, struct event_base *base, const lg_gateway_opt *opt,
                           evconnlistener_cb cb, void *ctx, lg_err *err) {
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", opt->port);
    int rc = getaddrinfo(opt->host, port, &hint, &list);
    if (rc != 0) return LG_FAIL(err, LG_E_IO, "host %s: %s", opt->host, gai_strerror(rc));
    lg_status st = LG_E_IO;
    int why = 0;
    for (const struct addrinfo *a = list; a && st == LG_E_IO; a = a->ai_next) {
        st = check_reach(l, a->ai_addr, opt, err);
        if (st != LG_OK) break;
        unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;
        st = add(l, evconnlistener_new_bind(base, cb, ctx, flags, BACKLOG, a->ai_addr,
                                            (int)a->ai_addrlen));
        why = errno;
    }
    freeaddrinfo(list);
    if (st == LG_E_IO)
        return LG_FAIL(err, st, "cannot listen on %s, port %u: %s", opt->host, opt->port,
                       strerror(why));
    return st;
}

/* Number of sockets that systemd has opened for this process; the worker must not see them. */
static uint32_t handed_over(void) {
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
    uint32_t n = 0;
    if (pid && fds && strtol(pid, NULL, 10) == (long)getpid()) {
        long v = strtol(fds, NULL, 10);
        n = v < 0 ? 0 : v > (long)LG_LISTEN_MAX ? LG_LISTEN_MAX : (uint32_t)v;
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return n;
}

static lg_status take_fd(lg_listen *l, struct event_base *base, int fd,
                         const lg_gateway_opt *opt, evconnlistener_cb cb, void *ctx,
                         lg_err *err) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a, size = sizeof(int);
    int listening = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || !listening ||
        getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return LG_FAIL(err, LG_E_IO, "LISTEN_FDS: file descriptor %d is no listening socket",
                       fd);
    LG_TRY(check_reach(l, (struct sockaddr *)&a, opt, err));
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || evutil_make_socket_nonblocking(fd) != 0)
        return LG_FAIL(err, LG_E_IO, "LISTEN_FDS: file descriptor %d: %s", fd, strerror(errno));
    /* backlog 0: it listens already */
    unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_DISABLED;
    if (add(l, evconnlistener_new(base, cb, ctx, flags, 0, fd)) != LG_OK)
        return LG_FAIL(err, LG_E_NOMEM, "no memory for a listener");
    return LG_OK;
}

lg_status lg_listen_open(lg_listen *l, struct event_base *base, const lg_gateway_opt *opt,
                         evconnlistener_cb on_accept, void *ctx, lg_err *err) {
    uint32_t n = handed_over();
    l->loopback = true;
    l->shared = n > 0;
    if (n == 0) return bind_host(l, base, opt, on_accept, ctx, err);
    for (uint32_t i = 0; i < n; i++)
        LG_TRY(take_fd(l, base, FIRST_FD + (int)i, opt, on_accept, ctx, err));
    return LG_OK;
}

void lg_listen_close(lg_listen *l) {
    while (l->n > 0) evconnlistener_free(l->on[--l->n]);
}

void lg_listen_ready(lg_listen *l) {
    for (uint32_t i = 0; l->shared && i < l->n; i++) evconnlistener_enable(l->on[i]);
}

void lg_listen_drain(lg_listen *l) {
    for (uint32_t i = 0; l->shared && i < l->n; i++) evconnlistener_disable(l->on[i]);
}

void lg_listen_url(const lg_listen *l, const char *scheme, char *url, size_t cap) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    char host[64] = "?", port[8] = "?";
    if (l->n && getsockname(evconnlistener_get_fd(l->on[0]), (struct sockaddr *)&a, &len) == 0)
        getnameinfo((struct sockaddr *)&a, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(url, cap, strchr(host, ':') ? "%s://[%s]:%s" : "%s://%s:%s", scheme, host, port);
}
