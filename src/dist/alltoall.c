/* alltoall.c - the exchange in which a row goes once to each rank that has one of its experts: see exchange.h.
 *
 * A rank does not know how many rows another sends it, only the most: each pair of ranks exchanges one message of rows when the
 * sender has any row, and the head says how many.  Both ends then know what comes back: one sum for each row sent.
 * Where sums lie: this rank's parts in x.in (its rows are multiplied by then), on the wire over the records they belong to.
 * Thread: engine.  Memory: the exchange's.  Test: tests/unit/test_exchange.c */
#include "dist/exchange.h"
#include "dist/tags.h"

#include <string.h>

#define HEAD (LG_EXCHANGE_HEAD / 4)

/* Most ranks that a row goes to. */
static size_t most_copies(const lg_exchange *x) {
    size_t others = x->comm->n_rank - 1;
    return x->k < others ? x->k : others;
}

void lg_alltoall_carve(lg_arena *a, lg_exchange *x) {
    /* Copies for each rank are packed where products will be: they have left before. */
    size_t packed = x->max_row * most_copies(x) * x->ld + (size_t)x->comm->n_rank * HEAD;
    if (x->out_words < packed) x->out_words = packed;
    x->home = lg_arena_take(a, x->max_row * most_copies(x) * x->hw, sizeof *x->home);
}

/* Whether rank r computes a pair of this record. */
static bool has_pair(const lg_exchange *x, uint32_t r, const uint32_t *record) {
    const uint32_t *id = lg_exchange_ids(x, record);
    for (uint32_t j = 0; j < x->k; j++)
        if (lg_place_rank(x->place, x->layer, id[j], record[x->ld - 1]) == r) return true;
    return false;
}

/* Own rows for rank r, after their head; returns how many. */
static uint32_t pack_for(const lg_exchange *x, uint32_t r, uint32_t *to) {
    uint32_t me = x->comm->rank, n = 0;
    for (uint32_t g = x->row0[me]; g < x->row0[me + 1]; g++) {
        const uint32_t *record = lg_exchange_record(x, me, g);
        if (has_pair(x, r, record))
            memcpy(to + HEAD + (size_t)n++ * x->ld, record, x->ld * sizeof *to);
    }
    lg_exchange_head(x, n, to);
    return n;
}

lg_status lg_alltoall_start(lg_exchange *x) {
    lg_comm *c = x->comm;
    uint32_t me = c->rank, *pack = (uint32_t *)(void *)x->out;
    for (uint32_t r = 0; r < c->n_rank; r++) {
        size_t n = x->row0[r + 1] - x->row0[r];
        x->n_sent[r] = 0;
        if (r == me || n == 0) continue;
        LG_TRY(lg_comm_recv(c, r, LG_TAG_TO, lg_exchange_record(x, r, x->row0[r]) - HEAD,
                            LG_EXCHANGE_HEAD + n * x->ld * sizeof *pack, &x->req[r]));
    }
    for (uint32_t d = 1; lg_exchange_n_own(x) && d < c->n_rank; d++) {
        uint32_t r = (me + d) % c->n_rank, n = x->n_sent[r] = pack_for(x, r, pack);
        size_t words = HEAD + n * x->ld;
        LG_TRY(
            lg_comm_send(c, r, LG_TAG_TO, pack, words * sizeof *pack, &x->req[c->n_rank + r]));
        pack += words;
    }
    x->n_req = 2 * c->n_rank;
    return LG_OK;
}

lg_status lg_alltoall_arrive(lg_exchange *x) {
    const lg_comm *c = x->comm;
    for (uint32_t r = 0; r < c->n_rank; r++) {
        uint32_t most = x->row0[r + 1] - x->row0[r];
        x->n_got[r] = most;
        if (r == c->rank || most == 0) continue;
        const uint32_t *head = lg_exchange_record(x, r, x->row0[r]) - HEAD;
        size_t n_bytes = x->req[r].n_bytes;
        if (n_bytes < LG_EXCHANGE_HEAD || head[2] > most ||
            n_bytes != LG_EXCHANGE_HEAD + head[2] * x->ld * sizeof *head)
            return lg_comm_lose(x->comm, "rank %u sent %zu bytes of rows; it has %u rows", r,
                                n_bytes, most);
        x->n_got[r] = head[2];
        for (uint32_t i = 0; i < head[2]; i++) {
            const uint32_t *record = lg_exchange_record(x, r, x->row0[r] + i);
            uint32_t g = record[x->ld - 1], last = i ? record[-1] : 0;
            if (g < x->row0[r] || g >= x->row0[r + 1] || (i && g <= last))
                return lg_comm_lose(x->comm, "rank %u sent row %u; its rows are %u to %u", r, g,
                                    x->row0[r], x->row0[r + 1]);
        }
    }
    return LG_OK;
}

/* Own rows: parts of all ranks in order of rank.  home[r]: rows from rank r, mine: own parts. */
static void add_parts(const lg_exchange *x, const uint32_t *const *home, const float *mine,
                      float *out) {
    const lg_comm *c = x->comm;
    uint32_t at[LG_MAX_RANK] = {0}, n = lg_exchange_n_own(x);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *record = lg_exchange_record(x, c->rank, x->row0[c->rank] + i);
        float *y = out + (size_t)i * x->n_embd;
        memset(y, 0, x->n_embd * sizeof *y);
        for (uint32_t r = 0; r < c->n_rank; r++) {
            if (!has_pair(x, r, record)) continue;
            if (r == c->rank)
                lg_wire_add(LG_WIRE_F32,
                            (const uint32_t *)(const void *)(mine + (size_t)i * x->n_embd), 1,
                            x->n_embd, y);
            else
                lg_wire_add(x->how.wire, home[r] + at[r]++ * x->hw, 1, x->n_embd, y);
        }
    }
}

/* Sums of the rows that came from rank r, and off they go. */
static lg_status send_home(lg_exchange *x, uint32_t r, lg_reduce_fill *fill, void *ctx,
                           float *part) {
    lg_comm *c = x->comm;
    uint32_t n = x->n_got[r], *wire = lg_exchange_record(x, r, x->row0[r]);
    uint64_t start = lg_trace_now(c->trace);
    if (n == 0) return LG_OK;
    fill(ctx, x->row0[r], n, part);
    lg_wire_put(x->how.wire, part, n, x->n_embd, wire);
    lg_trace_add(c->trace, LG_SPAN_COMBINE, 0, x->layer, r, start);
    LG_TRY(lg_comm_send(c, r, LG_TAG_HOME_ROWS, wire, n * x->hw * sizeof *wire,
                        &x->req[c->n_rank + r]));
    return x->how.no_overlap ? lg_comm_wait(c, &x->req[c->n_rank + r], 1) : LG_OK;
}

lg_status lg_alltoall_sums(lg_exchange *x, lg_reduce_fill *fill, void *ctx, float *out) {
    lg_comm *c = x->comm;
    const uint32_t *home[LG_MAX_RANK];
    uint32_t me = c->rank, *to = x->home;
    float *part = x->in;
    uint64_t start = lg_trace_now(c->trace);
    for (uint32_t r = 0; r < c->n_rank; r++) {
        home[r] = to;
        if (x->n_sent[r] == 0) continue;
        size_t words = x->n_sent[r] * x->hw;
        LG_TRY(lg_comm_recv(c, r, LG_TAG_HOME_ROWS, to, words * sizeof *to, &x->req[r]));
        to += words;
    }
    x->n_req = 2 * c->n_rank;
    for (uint32_t d = 1; d < c->n_rank; d++) {
        uint32_t r = (me + d) % c->n_rank;
        LG_TRY(send_home(x, r, fill, ctx, part));
        part += (size_t)x->n_got[r] * x->n_embd;
    }
    uint64_t own = lg_trace_now(c->trace);
    if (lg_exchange_n_own(x)) fill(ctx, x->row0[me], lg_exchange_n_own(x), part);
    lg_trace_add(c->trace, LG_SPAN_COMBINE, 0, x->layer, me, own);
    LG_TRY(lg_comm_wait(c, x->req, x->n_req));
    lg_trace_add(c->trace, LG_SPAN_SUMS, LG_TRACE_SUMS, x->layer, 0, start);
    add_parts(x, home, part, out);
    return LG_OK;
}
