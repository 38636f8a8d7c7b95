/* test_spread.c - one sequence's rows and heads over ranks that are threads: every word lands where it belongs, and no byte more than the
 * formulas of spread.h travels.  Fewer rows or heads than ranks, no multiples, every owner, late messages. */
#include "comm_threads.h"

#include "base/num.h"
#include "dist/spread.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_ROW  41
#define MAX_HEAD 16
#define W        3
#define MAX_RANK 8
#define N_BLOCK  (LG_SPREAD_DEPTH + 5)

typedef struct rig {
    comm_world *w;
    uint32_t n_rank, n_head, n_row, owner;
    const char *bad[MAX_RANK]; /* what was not as it should be */
} rig;

/* What belongs to a row and a head. */
static uint32_t word(uint32_t kind, uint32_t r, uint32_t h, uint32_t i) {
    return (uint32_t)lg_num_rng(kind, r, h, i) | 1;
}

typedef struct rank_ctx {
    const rig *r;
    lg_comm *c;
    lg_spread s;
    uint32_t row0, n, h0, n_own_head;
    uint64_t sent;
} rank_ctx;

/* Bytes sent since the last call. */
static uint64_t sent(rank_ctx *x) {
    uint64_t n = x->c->sent_bytes - x->sent;
    x->sent = x->c->sent_bytes;
    return n;
}

#define CHECK(cond)                                                                            \
    do {                                                                                       \
        if (!(cond)) return #cond;                                                             \
    } while (0)

static const char *try_swap(rank_ctx *x) {
    const rig *r = x->r;
    uint32_t n_other = r->n_head - x->n_own_head;
    static _Thread_local uint32_t rows[MAX_ROW * MAX_HEAD * W], whole[MAX_ROW * MAX_HEAD * W];
    memset(rows, 0, sizeof rows);
    memset(whole, 0, sizeof whole);
    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t h = 0; h < r->n_head; h++)
            for (uint32_t k = 0; k < W; k++)
                rows[lg_spread_block(&x->s, i, h, W) + k] = word(1, x->row0 + i, h, k);
    CHECK(lg_spread_swap(&x->s, true, W, rows, whole) == LG_OK);
    for (uint32_t i = 0; i < x->n; i++) lg_spread_progress(&x->s);
    CHECK(lg_spread_wait(&x->s) == LG_OK);
    CHECK(sent(x) == 4ull * W * x->n * n_other);
    for (uint32_t i = 0; i < r->n_row; i++)
        for (uint32_t h = 0; h < x->n_own_head; h++)
            for (uint32_t k = 0; k < W; k++) {
                uint32_t *at = &whole[((size_t)i * x->n_own_head + h) * W + k];
                CHECK(*at == word(1, i, x->h0 + h, k));
                *at += 2;
            }
    memset(rows, 0, sizeof rows);
    CHECK(lg_spread_swap(&x->s, false, W, rows, whole) == LG_OK);
    CHECK(lg_spread_wait(&x->s) == LG_OK);
    CHECK(sent(x) == 4ull * W * (r->n_row - x->n) * x->n_own_head);
    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t h = 0; h < r->n_head; h++)
            for (uint32_t k = 0; k < W; k++)
                CHECK(rows[lg_spread_block(&x->s, i, h, W) + k] ==
                      word(1, x->row0 + i, h, k) + 2);
    return NULL;
}

static const char *try_gather(rank_ctx *x) {
    uint32_t all[MAX_ROW * W] = {0};
    for (uint32_t i = 0; i < x->n * W; i++)
        all[x->row0 * W + i] = word(2, x->row0 * W + i, 0, 0);
    CHECK(lg_spread_gather(&x->s, W, all) == LG_OK);
    for (uint32_t i = 0; i < x->n; i++) lg_spread_progress(&x->s);
    CHECK(lg_spread_wait(&x->s) == LG_OK);
    CHECK(sent(x) == 4ull * W * x->n * (x->r->n_rank - 1));
    for (uint32_t i = 0; i < x->r->n_row * W; i++) CHECK(all[i] == word(2, i, 0, 0));
    return NULL;
}

static const char *try_deal(rank_ctx *x) {
    uint32_t heads[MAX_HEAD * W] = {0}, n = x->r->n_head;
    bool owner = x->c->rank == x->r->owner;
    for (uint32_t i = 0; owner && i < n * W; i++) heads[i] = word(3, i, 0, 0);
    CHECK(lg_spread_deal(&x->s, W, heads) == LG_OK);
    CHECK(sent(x) == (owner ? 4ull * W * (n - x->n_own_head) : 0));
    for (uint32_t i = x->h0 * W; i < (x->h0 + x->n_own_head) * W; i++) {
        CHECK(heads[i] == word(3, i, 0, 0));
        heads[i] += 5;
    }
    CHECK(lg_spread_home(&x->s, W, heads) == LG_OK);
    CHECK(lg_spread_home_end(&x->s) == LG_OK);
    CHECK(sent(x) == (owner ? 0 : 4ull * W * x->n_own_head));
    for (uint32_t i = 0; owner && i < n * W; i++) CHECK(heads[i] == word(3, i, 0, 0) + 5);
    return NULL;
}

static const char *try_copy(rank_ctx *x) {
    uint32_t data[N_BLOCK][W] = {{0}};
    void *block[N_BLOCK];
    bool owner = x->c->rank == x->r->owner;
    for (uint32_t i = 0; i < N_BLOCK; i++) {
        block[i] = data[i];
        for (uint32_t k = 0; owner && k < W; k++) data[i][k] = word(4, i, k, 0);
    }
    CHECK(lg_spread_copy(&x->s, block, sizeof data[0], N_BLOCK) == LG_OK);
    CHECK(sent(x) == (owner ? (x->r->n_rank - 1) * sizeof data : 0));
    for (uint32_t i = 0; i < N_BLOCK; i++)
        for (uint32_t k = 0; k < W; k++) CHECK(data[i][k] == word(4, i, k, 0));
    return NULL;
}

static const char *run(rank_ctx *x) {
    const char *bad = NULL;
    for (int i = 0; i < 2 && !bad; i++) { /* twice: nothing is left over */
        lg_spread_begin(&x->s, x->r->owner, x->r->n_row);
        x->row0 = lg_spread_row0(&x->s);
        x->n = lg_spread_n_row(&x->s);
        x->h0 = lg_spread_head0(&x->s, x->c->rank);
        x->n_own_head = lg_spread_head0(&x->s, x->c->rank + 1) - x->h0;
        if (x->c->rank == x->r->owner && x->row0 + x->n != x->r->n_row)
            return "the owner has the last rows";
        bad = try_swap(x);
        if (!bad) bad = try_gather(x);
        if (!bad) bad = try_deal(x);
        if (!bad) bad = try_copy(x);
    }
    return bad;
}

/* Each exchange has left its span; states are under way only where there is a message. */
static const char *check_spans(const rank_ctx *x) {
    static const lg_span_kind kind[] = {LG_SPAN_HEADS, LG_SPAN_OUTPUT, LG_SPAN_KEYS,
                                        LG_SPAN_DEAL,  LG_SPAN_HOME,   LG_SPAN_PAGES};
    const lg_trace *t = x->c->trace;
    bool any = x->c->rank == x->r->owner ? x->n_own_head < x->r->n_head : x->n_own_head > 0;
    uint64_t at = 0;
    for (size_t i = 0; i < 2 * LG_COUNT(kind); i++) {
        lg_span_kind want = kind[i % LG_COUNT(kind)];
        if (want == LG_SPAN_HOME && !any) continue;
        while (at < t->n && t->span[at].kind == LG_SPAN_WAIT) at++;
        CHECK(at < t->n && t->span[at].kind == want);
        CHECK(t->span[at].layer == 7 && t->span[at].arg == x->n);
        CHECK(t->span[at++].track == (want == LG_SPAN_HOME ? LG_TRACE_HOME : LG_TRACE_ROWS));
    }
    while (at < t->n && t->span[at].kind == LG_SPAN_WAIT) at++;
    CHECK(at == t->n);
    return NULL;
}

static void rank_body(void *ctx, uint32_t rank) {
    rig *r = ctx;
    lg_comm c;
    rank_ctx x = {.r = r, .c = &c};
    lg_arena a;
    comm_threads_join(r->w, rank, &c);
    c.timeout_us = 20 * 1000000;
    lg_arena_init(&a, NULL, 0);
    lg_spread_carve(&a, &c, r->n_head, &x.s);
    size_t bytes = a.used_bytes;
    void *block = lg_mem_alloc(bytes);
    lg_arena_init(&a, block, bytes);
    lg_spread_carve(&a, &c, r->n_head, &x.s);
    memset(block, 0xff, bytes);
    lg_err err;
    if (lg_trace_open(&c.trace, &err) != LG_OK) fail_msg("%s", err.msg);
    lg_comm_at(&c, "test", 7);
    r->bad[rank] = run(&x);
    if (!r->bad[rank]) r->bad[rank] = check_spans(&x);
    if (r->bad[rank]) lg_comm_lose(&c, "%s", r->bad[rank]);
    lg_trace_close(&c.trace);
    lg_comm_close(&c);
    lg_mem_free(block);
}

static void test_spread(void **state) {
    (void)state;
    static const uint32_t n_rank[] = {1, 2, 3, 4, 5, 8}, n_head[] = {2, 7, 16},
                          n_row[] = {1, 8, MAX_ROW};
    uint32_t turn = 0;
    for (size_t i = 0; i < LG_COUNT(n_rank); i++)
        for (size_t h = 0; h < LG_COUNT(n_head); h++)
            for (size_t t = 0; t < LG_COUNT(n_row); t++, turn++) {
                rig r = {.n_rank = n_rank[i],
                         .n_head = n_head[h],
                         .n_row = n_row[t],
                         .owner = turn % n_rank[i]};
                r.w = comm_threads_open(r.n_rank, 1, turn % 3);
                comm_threads_run(r.n_rank, rank_body, &r);
                comm_threads_close(r.w);
                for (uint32_t k = 0; k < r.n_rank; k++)
                    if (r.bad[k])
                        fail_msg("%u ranks, %u heads, %u rows, owner %u: rank %u: %s", r.n_rank,
                                 r.n_head, r.n_row, r.owner, k, r.bad[k]);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_spread)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
