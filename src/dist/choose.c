/* choose.c - see choose.h.
 *
 * Thread: engine.  Memory: a buffer while measuring.  Test: tests/unit/test_choose.c */
#include "dist/choose.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

#define TAG_PING  8
#define N_PING    9
#define N_BURST   16
#define BIG_BYTES (1u << 20)

static const char *const names[] = {"strict", "reduce", "alltoall", "auto"};

const char *lg_exchange_name(lg_exchange_kind kind) {
    LG_ASSERT((unsigned)kind < LG_COUNT(names));
    return names[kind];
}

bool lg_exchange_named(const char *name, lg_exchange_kind *kind) {
    for (size_t i = 0; i < LG_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *kind = (lg_exchange_kind)i;
            return true;
        }
    return false;
}

/* ---- the formulas ---- */

/* A row of k different experts of E has one among E/N. */
static double touch(const lg_group_shape *g) {
    double none = 1, share = g->n_expert / g->n_rank;
    for (double i = 0; i < g->k; i++) {
        double left = g->n_expert - share - i;
        none *= left > 0 ? left / (g->n_expert - i) : 0;
    }
    return 1 - none;
}

/* Every rank sends `bytes` for each of its t rows to each other rank. */
static double to_all(const lg_links *l, const lg_group_shape *g, double t, double bytes) {
    double n = g->n_rank, in = n / g->n_node - 1, out = n - 1 - in, local = n / g->n_node;
    double s = 0;
    if (in > 0)
        s += l->in.latency_s + (in - 1) * l->in.message_s + in * t * bytes / l->in.bytes_s;
    if (out > 0)
        s += l->out.latency_s + (out - 1) * l->out.message_s +
             local * out * t * bytes / l->out.bytes_s;
    return s;
}

static double reduce(const lg_links *l, const lg_group_shape *g, double n_row) {
    double m = g->n_node, local = g->n_rank / m, s = 0;
    double wire = 4.0 * (double)lg_wire_words(g->wire, (uint32_t)g->n_embd);
    bool halving = exp2(floor(log2(m))) == m;
    if (local > 1)
        s += l->in.latency_s + (local - 2) * l->in.message_s +
             4 * g->n_embd * n_row * (local - 1) / local / l->in.bytes_s;
    if (m > 1)
        s += (halving ? log2(m) * l->out.latency_s
                      : l->out.latency_s + (m - 2) * l->out.message_s) +
             wire * n_row * (1 - 1 / m) / l->out.bytes_s;
    return s;
}

lg_exchange_kind lg_exchange_choose(const lg_links *l, const lg_group_shape *g, double n_row) {
    double a = lg_exchange_seconds(l, g, LG_EXCHANGE_REDUCE, n_row);
    double b = lg_exchange_seconds(l, g, LG_EXCHANGE_ALLTOALL, n_row);
    return b < a ? LG_EXCHANGE_ALLTOALL : LG_EXCHANGE_REDUCE;
}

double lg_exchange_seconds(const lg_links *l, const lg_group_shape *g, lg_exchange_kind kind,
                           double n_row) {
    double t = n_row / g->n_rank;
    double row = 4.0 * (double)lg_wire_words(g->wire, (uint32_t)g->n_embd);
    double record = row + 8 * g->k;
    if (g->n_rank < 2) return 0;
    switch (kind) {
    case LG_EXCHANGE_STRICT:
        return to_all(l, g, t, record) + to_all(l, g, t, 4 * g->n_embd * g->k / g->n_rank);
    case LG_EXCHANGE_REDUCE: return to_all(l, g, t, record) + reduce(l, g, n_row);
    case LG_EXCHANGE_ALLTOALL:
        return to_all(l, g, t, touch(g) * (record + 4)) + to_all(l, g, t, touch(g) * row);
    default: return lg_exchange_seconds(l, g, lg_exchange_choose(l, g, n_row), n_row);
    }
}

/* ---- measuring ---- */

static lg_status one(lg_comm *c, uint32_t peer, bool send, void *buf, size_t n_bytes) {
    lg_comm_req q = {0};
    LG_TRY(send ? lg_comm_send(c, peer, TAG_PING, buf, n_bytes, &q)
                : lg_comm_recv(c, peer, TAG_PING, buf, n_bytes, &q));
    return lg_comm_wait(c, &q, 1);
}

/* n messages of n_bytes one way and a short one back; the shortest of some rounds, in microseconds. */
static lg_status volley(lg_comm *c, uint32_t peer, bool first, uint8_t *buf, size_t n_bytes,
                        uint32_t n, double *us) {
    *us = 1e30;
    for (int i = 0; i < N_PING; i++) {
        lg_comm_req q[N_BURST] = {{0}};
        uint64_t start = lg_clock_us();
        for (uint32_t k = 0; k < n; k++)
            LG_TRY(first ? lg_comm_send(c, peer, TAG_PING, buf, n_bytes, &q[k])
                         : lg_comm_recv(c, peer, TAG_PING, buf, n_bytes, &q[k]));
        LG_TRY(lg_comm_wait(c, q, n));
        LG_TRY(one(c, peer, !first, buf, 16));
        double took = (double)(lg_clock_us() - start);
        if (took < *us) *us = took;
    }
    return LG_OK;
}

static lg_status measure(lg_comm *c, uint32_t peer, bool first, lg_way *w) {
    double ping, burst, big;
    uint8_t *buf = lg_mem_alloc(BIG_BYTES);
    if (!buf) return lg_comm_lose(c, "no memory for measuring the network");
    lg_status st = volley(c, peer, first, buf, 16, 1, &ping);
    if (st == LG_OK) st = volley(c, peer, first, buf, 16, N_BURST, &burst);
    if (st == LG_OK) st = volley(c, peer, first, buf, BIG_BYTES, 1, &big);
    lg_mem_free(buf);
    if (st != LG_OK || !first) return st;
    w->latency_s = fmax(ping, 1) / 2 * 1e-6;
    w->message_s = fmax(burst - ping, 0) / (N_BURST - 1) * 1e-6;
    w->bytes_s = BIG_BYTES / (fmax(big - ping, 1) * 1e-6);
    return LG_OK;
}

lg_status lg_links_measure(lg_comm *c, lg_links *l) {
    uint32_t peer[2] = {0, 0}; /* inside, outside */
    lg_way way[2];
    *l = (lg_links){0};
    lg_comm_at(c, "measuring the network", 0);
    for (uint32_t r = c->n_rank; r-- > 1;) peer[c->node[r] != c->node[0]] = r;
    for (int i = 0; i < 2; i++) {
        if (!peer[i]) continue;
        if (c->rank == 0) LG_TRY(measure(c, peer[i], true, &way[i]));
        if (c->rank == peer[i]) LG_TRY(measure(c, 0, false, NULL));
    }
    for (uint32_t r = 1; r < c->n_rank; r++) {
        if (c->rank == 0) LG_TRY(one(c, r, true, way, sizeof way));
        if (c->rank == r) LG_TRY(one(c, 0, false, way, sizeof way));
    }
    if (c->n_rank == 1) return LG_OK;
    l->in = way[peer[0] ? 0 : 1];
    l->out = way[peer[1] ? 1 : 0];
    return LG_OK;
}
