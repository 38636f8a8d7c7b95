/* exchange_table.c - every message of one layer's exchange on 2 machines with 2 ranks each, as the code sends it: JSON for
 * tools/exchange_svg.py.
 *
 * 4 rows a rank of 4,096 floats, 10 of 512 experts a row, drawn evenly.  Ranks run on numbers for clocks (comm_sim.h). */
#include "comm_sim.h"

#include "base/mem.h"
#include "base/num.h"
#include "dist/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_RANK   4
#define N_ROW    4
#define N_EMBD   4096
#define N_EXPERT 512
#define K        10

static struct {
    sim *s;
    lg_place place;
    lg_exchange_kind kind;
    const lg_comm_ops *ops;
    lg_comm *comm[N_RANK];
    bool any;
} t;

/* The carrier's own send, and a line about it. */
static lg_status note(void *impl, uint32_t to, int tag, const void *buf, size_t n_bytes,
                      lg_comm_req *req) {
    uint32_t from = 0;
    while (t.comm[from]->impl != impl) from++;
    printf("%s\n    {\"exchange\": \"%s\", \"part\": \"%s\", \"from\": %u, \"to\": %u, "
           "\"bytes\": %zu, "
           "\"inside\": %s}",
           t.any ? "," : "", lg_exchange_name(t.kind), t.comm[from]->what, from, to, n_bytes,
           t.comm[0]->node[from] == t.comm[0]->node[to] ? "true" : "false");
    t.any = true;
    return t.ops->send(impl, to, tag, buf, n_bytes, req);
}

static void fill(void *ctx, uint32_t at, uint32_t n, float *y) {
    (void)ctx;
    (void)at;
    memset(y, 0, (size_t)n * N_EMBD * sizeof *y);
}

static void rank_body(void *ctx, uint32_t rank) {
    (void)ctx;
    lg_comm c;
    lg_exchange x;
    lg_arena a;
    lg_exchange_how how = {.kind = t.kind};
    uint32_t n_row[N_RANK] = {N_ROW, N_ROW, N_ROW, N_ROW}, id[N_ROW * K];
    float *rows = lg_mem_calloc(2 * N_ROW * N_EMBD, sizeof *rows), w[N_ROW * K] = {0};
    sim_join(t.s, rank, &c);
    t.comm[rank] = &c;
    t.ops = c.ops;
    lg_comm_ops noted = *c.ops;
    noted.send = note;
    c.ops = &noted;
    lg_arena_init(&a, NULL, 0);
    lg_exchange_carve(&a, &c, &t.place, &how, N_RANK * N_ROW, N_EMBD, K, &x);
    size_t bytes = a.used_bytes;
    void *block = lg_mem_alloc(bytes);
    LG_ASSERT(rows && block);
    lg_arena_init(&a, block, bytes);
    lg_exchange_carve(&a, &c, &t.place, &how, N_RANK * N_ROW, N_EMBD, K, &x);
    for (uint32_t i = 0; i < N_ROW; i++)
        for (uint32_t j = 0; j < K; j++) /* one of each tenth: all different */
            id[i * K + j] = (uint32_t)(lg_num_rng(1, j, rank * N_ROW + i, 0) % (N_EXPERT / K)) +
                            j * (N_EXPERT / K);
    sim_compute(t.s, rank, 1e-6); /* all are here before anything is sent */
    lg_exchange_begin(&x, n_row);
    lg_status st = lg_exchange_start(&x, 0, rows, id, w);
    if (st == LG_OK) st = lg_exchange_arrive(&x);
    if (st == LG_OK)
        st = t.kind == LG_EXCHANGE_STRICT
                 ? lg_exchange_finish(&x)
                 : lg_exchange_sums(&x, fill, NULL, rows + N_ROW * N_EMBD);
    LG_ASSERT(st == LG_OK);
    lg_mem_free(block);
    lg_mem_free(rows);
    sim_compute(t.s, rank, 1); /* nobody leaves before the last message */
}

int main(void) {
    lg_links links = {{1e-6, 1e-7, 2e10}, {2e-5, 1e-6, 1e10}, 0};
    lg_place_opt o = {.n_rank = N_RANK, .n_layer = 1, .n_expert = N_EXPERT};
    LG_ASSERT(lg_place_balance(&t.place, &o, NULL) == LG_OK);
    printf("{\"ranks\": %d, \"machines\": 2, \"rows\": %d, \"floats\": %d, \"experts\": %d, "
           "\"k\": %d,\n"
           "  \"messages\": [",
           N_RANK, N_ROW, N_EMBD, N_EXPERT, K);
    for (t.kind = LG_EXCHANGE_STRICT; t.kind <= LG_EXCHANGE_ALLTOALL; t.kind++) {
        t.s = sim_open(N_RANK, 2, &links);
        sim_run(t.s, rank_body, NULL);
        sim_close(t.s);
    }
    printf("\n  ]}\n");
    lg_place_fini(&t.place);
    return 0;
}
