/* links.c - what messages cost on this network: lg_links_measure of choose.h.
 *
 * Latency is that of a message alone.  Rates, and what one message more costs, are those of all ranks sending to all at once, as the exchanges
 * do: with what cables, switches and processors take when they are shared.  In a group whose ranks share processors that is much more.
 * Thread: engine.  Memory: a buffer while measuring.  Test: tests/unit/test_choose.c */
#include "dist/choose.h"
#include "dist/tags.h"

#include "base/clock.h"
#include "base/mem.h"
#include "dist/window.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_ROUND    9
#define N_BURST    16
#define PING_BYTES 16
#define ALL_BYTES  (1u << 20) /* of each rank to all others */

static lg_status one(lg_comm *c, uint32_t peer, bool send, void *buf, size_t n_bytes) {
    lg_comm_req q = {0};
    LG_TRY(send ? lg_comm_send(c, peer, LG_TAG_PING, buf, n_bytes, &q)
                : lg_comm_recv(c, peer, LG_TAG_PING, buf, n_bytes, &q));
    return lg_comm_wait(c, &q, 1);
}

/* ---- two ranks ---- */

/* n short messages one way and one back; the shortest of some rounds, in seconds. */
static lg_status volley(lg_comm *c, uint32_t peer, bool first, uint32_t n, double *s) {
    uint8_t buf[N_BURST][PING_BYTES] = {{0}};
    *s = 1e30;
    for (int i = 0; i < N_ROUND; i++) {
        lg_comm_req q[N_BURST] = {{0}};
        uint64_t start = lg_clock_us();
        for (uint32_t k = 0; k < n; k++)
            LG_TRY(first ? lg_comm_send(c, peer, LG_TAG_PING, buf[k], PING_BYTES, &q[k])
                         : lg_comm_recv(c, peer, LG_TAG_PING, buf[k], PING_BYTES, &q[k]));
        LG_TRY(lg_comm_wait(c, q, n));
        LG_TRY(one(c, peer, !first, buf[0], PING_BYTES));
        *s = fmin(*s, fmax((double)(lg_clock_us() - start), 1) * 1e-6);
    }
    return LG_OK;
}

static lg_status pair(lg_comm *c, uint32_t peer, bool first, lg_way *w) {
    double ping, burst;
    LG_TRY(volley(c, peer, first, 1, &ping));
    LG_TRY(volley(c, peer, first, N_BURST, &burst));
    w->latency_s = ping / 2;
    w->message_s = fmax(burst - ping, 0) / (N_BURST - 1);
    return LG_OK;
}

/* ---- all ranks ---- */

/* Nobody goes on before all are here. */
static lg_status meet(lg_comm *c) {
    uint32_t n = c->n_rank;
    for (uint32_t d = 1; d < n; d *= 2) {
        uint8_t out = 0, in;
        lg_comm_req q[2] = {{0}};
        LG_TRY(lg_comm_recv(c, (c->rank + n - d) % n, LG_TAG_PING, &in, 1, &q[0]));
        LG_TRY(lg_comm_send(c, (c->rank + d) % n, LG_TAG_PING, &out, 1, &q[1]));
        LG_TRY(lg_comm_wait(c, q, 2));
    }
    return LG_OK;
}

static bool is_peer(const lg_comm *c, uint32_t r, bool out) {
    return r != c->rank && (c->node[r] != c->node[c->rank]) == out;
}

/* A message to each peer and one from each; buf has room for one and one from every rank. */
static lg_status swap_once(lg_comm *c, bool out, uint8_t *buf, size_t n_bytes) {
    lg_comm_req q[2 * LG_MAX_RANK] = {{0}};
    uint32_t n = 0;
    for (uint32_t r = 0; r < c->n_rank; r++)
        if (is_peer(c, r, out))
            LG_TRY(lg_comm_recv(c, r, LG_TAG_PING, buf + (r + 1) * n_bytes, n_bytes, &q[n++]));
    for (uint32_t d = 1; d < c->n_rank; d++) {
        uint32_t r = (c->rank + d) % c->n_rank;
        if (is_peer(c, r, out)) LG_TRY(lg_comm_send(c, r, LG_TAG_PING, buf, n_bytes, &q[n++]));
    }
    return lg_comm_wait(c, q, n);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What ranks do at once. */
typedef struct lg_links_act {
    bool out; /* messages between machines */
    uint8_t *buf;
    size_t n_bytes;
} lg_links_act;

static lg_status send_all(lg_comm *c, const lg_links_act *a) {
    return swap_once(c, a->out, a->buf, a->n_bytes);
}

/* What the others of the machine have in their parts of the window. */
static lg_status read_all(lg_comm *c, const lg_links_act *a) {
    for (uint32_t r = 0; c->window && r < c->n_rank; r++)
        if (is_peer(c, r, false)) memcpy(a->buf, c->window->part[r], a->n_bytes);
    return LG_OK;
}

/* All ranks at once; on rank 0 *s is the median of the slowest rank's seconds. */
static lg_status crowd(lg_comm *c, lg_status (*act)(lg_comm *c, const lg_links_act *a),
                       const lg_links_act *a, double *s) {
    double took[N_ROUND], other[N_ROUND];
    for (int i = 0; i < N_ROUND; i++) {
        LG_TRY(meet(c));
        uint64_t start = lg_clock_us();
        LG_TRY(act(c, a));
        took[i] = fmax((double)(lg_clock_us() - start), 1) * 1e-6;
        if (act == read_all && c->window) /* to be fetched anew, as sums are */
            memset(c->window->part[c->rank], 0, a->n_bytes);
    }
    if (c->rank > 0) return one(c, 0, true, took, sizeof took);
    for (uint32_t r = 1; r < c->n_rank; r++) {
        LG_TRY(one(c, r, false, other, sizeof other));
        for (int i = 0; i < N_ROUND; i++) took[i] = fmax(took[i], other[i]);
    }
    qsort(took, N_ROUND, sizeof *took, ascending);
    *s = took[N_ROUND / 2];
    return LG_OK;
}

/* Short messages and long ones; rank 0 learns what they cost. */
static lg_status measure(lg_comm *c, bool out, lg_way *w) {
    double n = 0, local = 1, small = 0, big = 0;
    for (uint32_t r = 1; r < c->n_rank; r++) {
        n += (c->node[r] != c->node[0]) == out; /* alike for all, or nearly */
        local += c->node[r] == c->node[0];
    }
    size_t bytes = ALL_BYTES / (size_t)n;
    uint8_t *buf = lg_mem_calloc(c->n_rank + 1, bytes);
    if (!buf) return lg_comm_lose(c, "no memory for measuring the network");
    lg_status st = crowd(c, send_all, &(lg_links_act){out, buf, PING_BYTES}, &small);
    if (st == LG_OK) st = crowd(c, send_all, &(lg_links_act){out, buf, bytes}, &big);
    lg_mem_free(buf);
    if (st != LG_OK || c->rank > 0) return st;
    if (n > 1) w->message_s = fmax(w->message_s, (small - w->latency_s) / (n - 1));
    w->bytes_s = n * (out ? local : 1) * (double)bytes / fmax(big - small, 1e-6);
    return LG_OK;
}

/* How fast the window is read, if rank 0's machine has one. */
static lg_status measure_window(lg_comm *c, double *bytes_s) {
    double n = -1, s = 0;
    for (uint32_t r = 0; r < c->n_rank; r++) n += c->node[r] == c->node[c->rank];
    lg_links_act a = {.n_bytes = n > 0 ? ALL_BYTES / (size_t)n : 0};
    if (c->window && a.n_bytes > c->window->part_bytes) a.n_bytes = c->window->part_bytes;
    a.buf = lg_mem_alloc(a.n_bytes);
    if (!a.buf) return lg_comm_lose(c, "no memory for measuring the window");
    lg_status st = crowd(c, read_all, &a, &s);
    lg_mem_free(a.buf);
    if (st == LG_OK && c->rank == 0 && c->window) *bytes_s = n * (double)a.n_bytes / s;
    return st;
}

lg_status lg_links_measure(lg_comm *c, lg_links *l) {
    uint32_t peer[2] = {0, 0}; /* inside, outside */
    lg_way way[2] = {{0}};
    double shared_bytes_s = 0;
    *l = (lg_links){0};
    lg_comm_at(c, "measuring the network", 0);
    for (uint32_t r = c->n_rank; r-- > 1;) peer[c->node[r] != c->node[0]] = r;
    for (int i = 0; i < 2; i++) {
        if (!peer[i]) continue;
        if (c->rank == 0) LG_TRY(pair(c, peer[i], true, &way[i]));
        if (c->rank == peer[i]) LG_TRY(pair(c, 0, false, &way[i]));
        LG_TRY(measure(c, i == 1, &way[i]));
    }
    if (peer[0]) LG_TRY(measure_window(c, &shared_bytes_s));
    for (uint32_t r = 1; r < c->n_rank; r++) {
        if (c->rank == 0) LG_TRY(one(c, r, true, way, sizeof way));
        if (c->rank == r) LG_TRY(one(c, 0, false, way, sizeof way));
        if (c->rank == 0) LG_TRY(one(c, r, true, &shared_bytes_s, sizeof shared_bytes_s));
        if (c->rank == r) LG_TRY(one(c, 0, false, &shared_bytes_s, sizeof shared_bytes_s));
    }
    l->shared_bytes_s = shared_bytes_s;
    if (c->n_rank == 1) return LG_OK;
    l->in = way[peer[0] ? 0 : 1];
    l->out = way[peer[1] ? 1 : 0];
    return LG_OK;
}
