/* peers.h - how many connections each address has.
 *
 * IPv6 addresses count by their first 64 bits, which is what one subscriber gets; sockets of files count together.
 * Thread: gateway.  Memory: a node for each address with a connection.  Test: tests/unit/test_peers.c */
#ifndef LG_GATEWAY_NET_PEERS_H
#define LG_GATEWAY_NET_PEERS_H

#include "base/diag.h"

#include <stdbool.h>
#include <stdint.h>

struct sockaddr;

#define LG_PEERS_BUCKET 1024u

typedef struct lg_peer lg_peer;

/* Caller's storage: = {0}; empty again when everybody has left. */
typedef struct lg_peers {
    lg_peer *bucket[LG_PEERS_BUCKET];
    uint32_t max;       /* connections of one address; 0: no limit */
    bool max_for_local; /* also for this machine's own */
} lg_peers;

/* Count a connection.  LG_OK with *peer for lg_peers_leave; LG_AGAIN when the address has enough; LG_E_NOMEM. */
lg_status lg_peers_enter(lg_peers *p, const struct sockaddr *addr, lg_peer **peer);
void lg_peers_leave(lg_peers *p, lg_peer *peer);

#endif
