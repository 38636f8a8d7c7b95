/* choose.c - see choose.h.
 *
 * Thread: engine.  Memory: none.  Test: tests/unit/test_choose.c */
#include "dist/choose.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

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

/* Every rank has `bytes` for each of its rows for each other rank; in a window, if `shared` and there is one. */
static double to_all(const lg_links *l, const lg_group_shape *g, lg_row_count r, double bytes,
                     bool shared) {
    double n = g->n_rank, local = n / g->n_node, in = local - 1, out = n - local, s = 0;
    shared = shared && l->shared_bytes_s > 0;
    if (in > 0 && shared) s += l->in.latency_s + in * r.most * bytes / l->shared_bytes_s;
    if (in > 0 && !shared)
        s += l->in.latency_s + (in - 1) * l->in.message_s + in * r.most * bytes / l->in.bytes_s;
    if (out > 0)
        s += l->out.latency_s + (out - 1) * l->out.message_s +
             out * fmin(r.all, local * r.most) * bytes / l->out.bytes_s;
    return s;
}

static double reduce(const lg_links *l, const lg_group_shape *g, lg_row_count r) {
    double m = g->n_node, local = g->n_rank / m, s = 0, rows = 0, rounds = 0;
    double wire = 4.0 * (double)lg_wire_words(g->wire, (uint32_t)g->n_embd);
    double machine = fmin(r.all, local * r.most);
    bool shared = l->shared_bytes_s > 0;
    if (local > 1)
        s += l->in.latency_s + (shared ? 0 : (local - 2) * l->in.message_s) +
             4 * g->n_embd * r.all * (local - 1) / local /
                 (shared ? l->shared_bytes_s : l->in.bytes_s);
    if (m < 2) return s;
    if (exp2(floor(log2(m))) == m)
        for (double half = m / 2; half >= 1; half /= 2, rounds++)
            rows += fmax(r.all * half / m, machine);
    else
        rows = (m - 1) * machine;
    s += rounds > 0 ? rounds * l->out.latency_s : l->out.latency_s + (m - 2) * l->out.message_s;
    return s + wire * rows / l->out.bytes_s;
}

static double record_bytes(const lg_group_shape *g, lg_exchange_kind kind) {
    double bytes = 4.0 * (double)lg_wire_words(g->wire, (uint32_t)g->n_embd) + 8 * g->k;
    return kind == LG_EXCHANGE_ALLTOALL ? touch(g) * (bytes + 4) : bytes;
}

double lg_exchange_rows_seconds(const lg_links *l, const lg_group_shape *g,
                                lg_exchange_kind kind, lg_row_count n) {
    if (kind == LG_EXCHANGE_AUTO) kind = lg_exchange_choose(l, g, n);
    return g->n_rank < 2 ? 0
                         : to_all(l, g, n, record_bytes(g, kind), kind != LG_EXCHANGE_ALLTOALL);
}

lg_exchange_kind lg_exchange_choose(const lg_links *l, const lg_group_shape *g,
                                    lg_row_count n) {
    double a = lg_exchange_seconds(l, g, LG_EXCHANGE_REDUCE, n);
    double b = lg_exchange_seconds(l, g, LG_EXCHANGE_ALLTOALL, n);
    return b < a ? LG_EXCHANGE_ALLTOALL : LG_EXCHANGE_REDUCE;
}

double lg_exchange_seconds(const lg_links *l, const lg_group_shape *g, lg_exchange_kind kind,
                           lg_row_count n) {
    double row = 4.0 * (double)lg_wire_words(g->wire, (uint32_t)g->n_embd);
    if (g->n_rank < 2) return 0;
    if (kind == LG_EXCHANGE_AUTO) kind = lg_exchange_choose(l, g, n);
    double there = lg_exchange_rows_seconds(l, g, kind, n);
    if (kind == LG_EXCHANGE_STRICT)
        return there + to_all(l, g, n, 4 * g->n_embd * g->k / g->n_rank, true);
    if (kind == LG_EXCHANGE_REDUCE) return there + reduce(l, g, n);
    /* The more one rank has the rows, the more its last message is still on its way when the first sums come home. */
    double lone = n.all > 0 ? (n.most * g->n_rank / n.all - 1) / (g->n_rank - 1) : 0;
    double before = fmin(fmax(lone, 0), 1) * (g->n_rank - 2) / (g->n_rank - 1);
    return there + (1 - before) * to_all(l, g, n, touch(g) * row, false);
}

/* ---- dividing a sequence ---- */

static const char *const divide_names[] = {"off", "on", "auto"};

const char *lg_divide_name(lg_divide d) {
    LG_ASSERT((unsigned)d < LG_COUNT(divide_names));
    return divide_names[d];
}

bool lg_divide_named(const char *name, lg_divide *d) {
    for (size_t i = 0; i < LG_COUNT(divide_names); i++)
        if (strcmp(name, divide_names[i]) == 0) {
            *d = (lg_divide)i;
            return true;
        }
    return false;
}

double lg_divide_seconds(const lg_links *l, const lg_group_shape *g, const lg_divide_shape *d,
                         double n, double n_save, double n_before) {
    double ranks = g->n_rank;
    if (ranks < 2) return 0;
    lg_row_count rows = {n, n / ranks}, lone = {1, 1};
    double there = fmax(to_all(l, g, rows, d->in / ranks, false) - rows.most * d->z_s, 0);
    double swaps = there + to_all(l, g, rows, d->out / ranks, false);
    double keys = fmax(to_all(l, g, rows, d->keys, false) - rows.most * d->q_s, 0);
    double heads = n * (d->own_heads_s - d->all_heads_s);
    double home = (1 + n_save) * to_all(l, g, lone, d->state / ranks, false);
    double before = 0;
    if (n_before > 0)
        before = d->n_gdn * to_all(l, g, lone, d->state / ranks, false) +
                 d->n_attn * to_all(l, g, lone, n_before * d->page, false);
    return d->n_gdn * (swaps + home + heads) + d->n_attn * keys + before;
}

/* ---- slices ---- */

double lg_slice_fullest(double n, double n_rank) {
    /* Largest of 2^i draws from a normal distribution, in deviations above the mean. */
    static const double at[] = {0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344};
    double x = log2(n_rank), mean = n / n_rank;
    if (n <= 0 || n_rank < 2) return 1;
    int i = x < 5 ? (int)x : 5;
    double above = at[i] + (at[i + 1] - at[i]) * fmin(x - i, 1);
    return fmin(fmax(mean + above * sqrt(mean * (1 - 1 / n_rank)), 1) / n, 1);
}

/* Words of every other rank to the owner, `bytes` of all ranks. */
static double to_one(const lg_links *l, const lg_group_shape *g, double bytes) {
    double n = g->n_rank, local = n / g->n_node, in = local - 1, out = n - local, s = 0;
    if (in > 0) s += l->in.latency_s + in / n * bytes / l->in.bytes_s;
    if (out > 0) s += l->out.latency_s + out / n * bytes / l->out.bytes_s;
    return s;
}

/* From every rank to every other, `bytes` of all ranks, of which one has a part `most`. */
static double among_all(const lg_links *l, const lg_group_shape *g, double bytes, double most) {
    double n = g->n_rank, local = n / g->n_node, in = local - 1, out = n - local, s = 0;
    if (in > 0)
        s += l->in.latency_s + (in - 1) * l->in.message_s + in * most * bytes / l->in.bytes_s;
    if (out > 0)
        s += l->out.latency_s + (out - 1) * l->out.message_s +
             out * (most + (local - 1) / n) * bytes / l->out.bytes_s;
    return s;
}

double lg_slice_seconds(const lg_links *l, const lg_group_shape *g, const lg_slice_shape *s,
                        double n, double n_out) {
    double row = 4 * g->n_embd, even = 1 / g->n_rank, pairs = n * g->k;
    if (g->n_rank < 2) return 0;
    lg_row_count one = {n, n};
    double gdn = to_one(l, g, n * s->gdn_in) + to_all(l, g, one, s->gdn_mixed, false);
    double attn = to_one(l, g, n * s->attn_in) + to_all(l, g, one, s->attn_mixed, false);
    double back = pairs * row + n * row;
    double most = (pairs * row * lg_slice_fullest(pairs, g->n_rank) + n * row * even) / back;
    double posts = (g->n_rank / g->n_node - 1) * l->in.message_s +
                   (g->n_rank - g->n_rank / g->n_node) * l->out.message_s;
    double each = among_all(l, g, n * row, even) + posts + among_all(l, g, back, most);
    return s->n_gdn * gdn + s->n_attn * attn + (s->n_gdn + s->n_attn) * each +
           (n_out > 0 ? to_one(l, g, n_out * s->logits) : 0);
}
