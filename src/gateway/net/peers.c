/* peers.c - connections of each address, in a table of chains: see peers.h.
 *
 * Thread: gateway.  Memory: a node for each address with a connection.  Test: tests/unit/test_peers.c */
#include "gateway/net/peers.h"

#include "base/mem.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

struct lg_peer {
    lg_peer *next;
    uint8_t id[9]; /* family, then address or prefix */
    uint32_t bucket, n;
};

/* What of an address counts.  True when it is this machine's own. */
static bool identify(const struct sockaddr *a, uint8_t id[9]) {
    memset(id, 0, 9);
    uint32_t v4 = 0;
    if (a->sa_family == AF_INET) {
        v4 = ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr;
    } else if (a->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        if (IN6_IS_ADDR_LOOPBACK(v6)) return true;
        if (!IN6_IS_ADDR_V4MAPPED(v6)) {
            id[0] = 6;
            memcpy(id + 1, v6->s6_addr, 8);
            return false;
        }
        memcpy(&v4, v6->s6_addr + 12, 4);
    } else {
        return true;
    }
    bool local = ntohl(v4) >> 24 == 127;
    id[0] = 4;
    memcpy(id + 1, &v4, 4);
    if (local) memset(id, 0, 9);
    return local;
}

static uint32_t bucket_of(const uint8_t id[9]) {
    uint32_t h = 2166136261u;
    for (int i = 0; i < 9; i++) h = (h ^ id[i]) * 16777619u;
    return (h ^ h >> 16) % LG_PEERS_BUCKET;
}

lg_status lg_peers_enter(lg_peers *p, const struct sockaddr *addr, lg_peer **peer) {
    uint8_t id[9];
    bool local = identify(addr, id);
    uint32_t b = bucket_of(id);
    lg_peer *e = p->bucket[b];
    while (e && memcmp(e->id, id, sizeof id) != 0) e = e->next;
    if (e && p->max && e->n >= p->max && (!local || p->max_for_local)) return LG_AGAIN;
    if (!e) {
        e = lg_mem_alloc(sizeof *e);
        if (!e) return LG_E_NOMEM;
        memcpy(e->id, id, sizeof id);
        e->bucket = b;
        e->next = p->bucket[b];
        p->bucket[b] = e;
    }
    e->n++;
    *peer = e;
    return LG_OK;
}

void lg_peers_leave(lg_peers *p, lg_peer *e) {
    if (!e || --e->n > 0) return;
    lg_peer **at = &p->bucket[e->bucket];
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    lg_mem_free(e);
}
