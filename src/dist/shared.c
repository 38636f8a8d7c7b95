/* shared.c - rows and products of the ranks of one machine, in their window: parts of exchange.h.
 *
 * Each rank's part has two blocks of rows, taken in turn, and the products for others.  Nobody says that he has read something: a rank
 * that has begun exchange n + 1 is done with n, and whoever waits for the rows of n + 1 of all ranks, also those without rows, knows that.
 * So products of n + 1, which come later than its rows, go where those of n were, and rows of n + 2 where those of n were.
 * Thread: engine.  Memory: the window.  Test: tests/unit/test_exchange.c */
#include "dist/exchange.h"
#include "dist/window.h"

#include <stdatomic.h>

#define LINE 64

/* At the start of what each rank's part has of it. */
typedef struct shared_head {
    _Alignas(LINE) _Atomic uint64_t rows; /* number of the exchange whose rows are there */
    _Alignas(LINE) _Atomic uint64_t back; /* and products */
    _Alignas(LINE) uint32_t back_at[LG_MAX_RANK];
} shared_head;

static size_t lines(size_t n_bytes) {
    return (n_bytes + LINE - 1) / LINE * LINE;
}

static size_t block_bytes(const lg_exchange *x) {
    return lines(LG_EXCHANGE_HEAD + x->max_row * x->ld * sizeof(uint32_t));
}

size_t lg_shared_more_bytes(const lg_exchange *x) {
    return sizeof(shared_head) + 2 * block_bytes(x);
}

size_t lg_shared_bytes(const lg_exchange *x) {
    bool packs = x->how.kind == LG_EXCHANGE_STRICT;
    size_t pairs = (size_t)x->max_row * x->k;
    return lg_shared_more_bytes(x) + (packs ? lines(pairs * x->n_embd * sizeof(float)) : 0);
}

bool lg_shared_has(const lg_exchange *x, uint32_t r) {
    return x->shared && x->comm->window->part[r];
}

static uint8_t *part_of(const lg_exchange *x, uint32_t r) {
    return x->comm->window->part[r] + x->shared_at;
}

static shared_head *head_of(const lg_exchange *x, uint32_t r) {
    return (shared_head *)(void *)part_of(x, r);
}

static float *pack_of(const lg_exchange *x, uint32_t r) {
    return (float *)(void *)(part_of(x, r) + lg_shared_more_bytes(x));
}

void lg_shared_carve(lg_exchange *x, size_t at) {
    const lg_window *w = x->comm->window;
    x->shared_at = lines(at);
    x->shared = w && w->part_bytes >= x->shared_at + lg_shared_bytes(x);
    if (!x->shared) return;
    x->n_shared = atomic_load(&head_of(x, x->comm->rank)->rows);
    x->pack = pack_of(x, x->comm->rank);
}

uint32_t *lg_shared_block(const lg_exchange *x, uint32_t r) {
    uint8_t *first = part_of(x, r) + sizeof(shared_head);
    return (uint32_t *)(void *)(first + x->n_shared % 2 * block_bytes(x));
}

void lg_shared_post_rows(lg_exchange *x) {
    atomic_store_explicit(&head_of(x, x->comm->rank)->rows, x->n_shared, memory_order_release);
}

void lg_shared_post_back(lg_exchange *x) {
    atomic_store_explicit(&head_of(x, x->comm->rank)->back, x->n_shared, memory_order_release);
}

void lg_shared_put_at(lg_exchange *x, uint32_t r, uint32_t row) {
    head_of(x, x->comm->rank)->back_at[r] = row;
}

const float *lg_shared_back(const lg_exchange *x, uint32_t r) {
    return pack_of(x, r) + (size_t)head_of(x, r)->back_at[x->comm->rank] * x->n_embd;
}

static lg_status wait_for(lg_exchange *x, bool back, const uint32_t *wanted) {
    lg_comm *c = x->comm;
    lg_comm_patience p = {0};
    uint64_t start = lg_trace_now(c->trace);
    for (;;) {
        bool done = true, sent;
        if (x->n_req) LG_TRY(lg_comm_poll(c, x->req, x->n_req, &sent));
        for (uint32_t r = 0; r < c->n_rank; r++) {
            x->peer[r] = (lg_comm_req){.peer = r};
            if (r == c->rank || !lg_shared_has(x, r) || (wanted && !wanted[r])) continue;
            shared_head *h = head_of(x, r);
            x->peer[r].active = atomic_load_explicit(back ? &h->back : &h->rows,
                                                     memory_order_acquire) < x->n_shared;
            done = done && !x->peer[r].active;
        }
        if (done) break;
        LG_TRY(lg_comm_pause(c, &p, x->peer, c->n_rank));
    }
    lg_trace_add(c->trace, LG_SPAN_WAIT, 0, c->layer, 0, start);
    return LG_OK;
}

lg_status lg_shared_wait_rows(lg_exchange *x) {
    return wait_for(x, false, NULL);
}

lg_status lg_shared_wait_back(lg_exchange *x, const uint32_t *n_from) {
    return wait_for(x, true, n_from);
}
