/* conn.h - one client's connection; between conn.c and server.c.
 *
 * Thread: gateway. */
#ifndef LG_GATEWAY_NET_CONN_H
#define LG_GATEWAY_NET_CONN_H

#include "gateway/gateway.h"
#include "gateway/net/listen.h"
#include "gateway/net/peers.h"
#include "gateway/net/tls.h"

#include <event2/bufferevent.h>
#include <event2/event.h>

enum {
    LG_CONN_LINGER_US = 2000000 /* after a refusal: time for the client to read it */
};

typedef enum { LG_CONN_READING, LG_CONN_BUSY, LG_CONN_CLOSING, LG_CONN_DEAD } lg_conn_state;

struct lg_conn {
    lg_conn *next, *prev;
    lg_server *sv;
    struct bufferevent *be;
    evutil_socket_t fd; /* be's */
    struct event *on_closed, *on_time;
    lg_conn_state state;
    lg_http http;
    lg_job *job;
    lg_peer *peer;
    lg_key *key;  /* held; whose request it is */
    lg_buf extra; /* header lines for the answer */
    uint64_t n_lingered;
    size_t held_bytes; /* of the body that its job was made of */
    bool streaming, chunked, half_closed, in_body;
    bool answered;    /* has had an answer */
    bool in_turn;     /* inside read_more */
    bool admitted;    /* the request's head was found good */
    bool close_after; /* no further request */
    bool shut;        /* our sending side is closed */
};

struct lg_server {
    lg_gateway g;
    struct event_base *base;
    lg_listen listen;
    lg_tls *tls; /* NULL: plain */
    lg_peers peers;
    uint32_t max_conn; /* opt's, or what the limit on open files leaves */
    char notify[108];  /* socket of the service manager, or "" */
    struct event *on_term, *on_int, *on_hup, *on_reap, *on_drain, *on_ping;
    lg_conn *conns, *dead;
    size_t body_bytes; /* received or held, of all connections */
    uint64_t drain_from_us, drain_until_us;
    lg_status status;
    lg_err err;
    void (*on_ready)(const lg_gateway_opt *opt, const lg_info *info, const char *url);
};

/* A new client: turned away when there are too many, else read from the loop on. */
void lg_conn_accept(lg_server *sv, evutil_socket_t fd, const struct sockaddr *addr);

/* Nothing of the client is wanted any more; its memory goes with the next lg_conn_reap, which sv->on_reap calls. */
void lg_conn_kill(lg_conn *c);
void lg_conn_reap(lg_server *sv);

#endif
