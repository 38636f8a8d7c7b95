/* test_slice.c - few rows of one rank with the help of all: every word lands where it belongs, no byte more than the formulas of slice.h
 * travels, and what the owner computes has the bits of a process alone.
 *
 * Ranks are threads.  Steps are made up: several sequences of any owner, one row or some of each, between steps where nobody helps, with
 * snapshots; compared are all logits and, in the end, the states. */
#include "comm_threads.h"

#include "backend/backend.h"
#include "base/num.h"
#include "base/pool.h"
#include "dist/slice.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_RANK 8
#define MAX_WORD 200

/* ---- messages ---- */

typedef struct words_rig {
    comm_world *w;
    uint32_t n_rank, owner, seed;
    const char *bad[MAX_RANK];
} words_rig;

#define CHECK(cond)                                                                            \
    do {                                                                                       \
        if (!(cond)) return #cond;                                                             \
    } while (0)

static uint32_t word(uint32_t kind, uint32_t i) {
    return (uint32_t)lg_num_rng(kind, i, 0, 0) | 1;
}

static const char *try_collect(const words_rig *r, lg_comm *c, lg_slice *s, bool all) {
    uint32_t words[MAX_WORD] = {0}, me = c->rank, n_other = r->n_rank - 1;
    uint64_t before = c->sent_bytes;
    size_t at = 0;
    for (uint32_t k = 0; k < r->n_rank;
         k++) { /* some have nothing, some leave room after theirs */
        s->at[k] = at;
        s->n[k] = lg_num_rng(r->seed, k, all, 0) % 7 * (lg_num_rng(r->seed, k, 1, 0) % 3);
        at += s->n[k] + k % 2 * 4;
    }
    LG_ASSERT(at <= MAX_WORD);
    for (size_t i = s->at[me]; i < s->at[me] + s->n[me]; i++) words[i] = word(1, (uint32_t)i);
    CHECK(lg_slice_start(s, all, words) == LG_OK);
    lg_slice_progress(s);
    CHECK(lg_slice_wait(s) == LG_OK);
    uint64_t n_to = all ? n_other : me != r->owner;
    CHECK(c->sent_bytes - before == 4 * s->n[me] * n_to);
    for (uint32_t k = 0; k < r->n_rank; k++) {
        bool here = k == me || all || me == r->owner;
        size_t end = k + 1 < r->n_rank ? s->at[k + 1] : MAX_WORD;
        for (size_t i = s->at[k]; i < end; i++)
            CHECK(words[i] == (here && i < s->at[k] + s->n[k] ? word(1, (uint32_t)i) : 0));
    }
    return NULL;
}

static const char *try_copy(const words_rig *r, lg_comm *c, lg_slice *s) {
    uint32_t words[MAX_WORD] = {0};
    bool owner = c->rank == r->owner;
    uint64_t before = c->sent_bytes;
    for (uint32_t i = 0; owner && i < MAX_WORD; i++) words[i] = word(2, i);
    CHECK(lg_slice_copy(s, words, MAX_WORD - 1) == LG_OK);
    CHECK(c->sent_bytes - before == (owner ? 4 * (MAX_WORD - 1) * (r->n_rank - 1) : 0));
    for (uint32_t i = 0; i < MAX_WORD; i++)
        CHECK(words[i] == (owner || i < MAX_WORD - 1 ? word(2, i) : 0));
    return NULL;
}

static void words_body(void *ctx, uint32_t rank) {
    words_rig *r = ctx;
    lg_comm c;
    lg_slice s;
    lg_arena a;
    comm_threads_join(r->w, rank, &c);
    c.timeout_us = 20 * 1000000;
    lg_arena_init(&a, NULL, 0);
    lg_slice_carve(&a, &c, &s);
    size_t bytes = a.used_bytes;
    void *block = lg_mem_alloc(bytes);
    lg_arena_init(&a, block, bytes);
    lg_slice_carve(&a, &c, &s);
    memset(block, 0xff, bytes);
    const char *bad = NULL;
    for (int i = 0; i < 2 && !bad; i++) { /* twice: nothing is left over */
        lg_slice_begin(&s, r->owner);
        bad = try_collect(r, &c, &s, false);
        if (!bad) bad = try_copy(r, &c, &s);
        if (!bad) bad = try_collect(r, &c, &s, true);
    }
    r->bad[rank] = bad;
    if (bad) lg_comm_lose(&c, "%s", bad);
    lg_comm_close(&c);
    lg_mem_free(block);
}

static void test_words(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= MAX_RANK; n++)
        for (uint32_t owner = 0; owner < n; owner++) {
            words_rig r = {.n_rank = n, .owner = owner, .seed = 10 * n + owner};
            r.w = comm_threads_open(n, 1, owner % 3);
            comm_threads_run(n, words_body, &r);
            comm_threads_close(r.w);
            for (uint32_t k = 0; k < n; k++)
                if (r.bad[k])
                    fail_msg("%u ranks, owner %u: rank %u: %s", n, owner, k, r.bad[k]);
        }
}

/* Slices follow each other, none is lost, and none is larger than another by more than one. */
static void test_parts(void **state) {
    (void)state;
    for (uint32_t n = 0; n < 70; n++)
        for (uint32_t ranks = 1; ranks < 9; ranks++) {
            assert_int_equal(lg_slice_part(n, ranks, 0), 0);
            assert_int_equal(lg_slice_part(n, ranks, ranks), n);
            for (uint32_t r = 0; r < ranks; r++) {
                uint32_t w = lg_slice_part(n, ranks, r + 1) - lg_slice_part(n, ranks, r);
                assert_true(w == n / ranks || w == n / ranks + 1);
            }
        }
    assert_int_equal(lg_slice_part(UINT32_MAX, 256, 256), UINT32_MAX);
}

/* ---- steps ---- */

#define N_SEQ   3
#define N_STEP  36
#define N_CTX   192
#define N_PAGE  3 /* of a sequence */
#define MAX_TOK 24
#define MAX_OUT 6

/* One step: rows of each sequence, logits of its last n_out, a snapshot after the first row. */
typedef struct made_step {
    uint32_t n_tok[N_SEQ], n_out[N_SEQ];
    bool save, helped;
} made_step;

typedef struct steps_rig {
    const lg_weights *w;
    uint32_t n_rank, owner;
    lg_exchange_how how;
    comm_world *world;
    lg_place place;
    made_step step[N_STEP];
    uint32_t tok[N_SEQ][N_CTX];
    float *logits; /* [N_STEP][MAX_OUT][n_vocab] of a process alone */
    float *state;  /* [N_SEQ][n_layer][state, then rows of the convolution] */
    uint32_t pos[N_SEQ];
    uint64_t timeout_us;
    char bad[MAX_RANK][160];
} steps_rig;

static size_t state_floats(const lg_config *c) {
    return (size_t)c->n_v_head * c->d_k * c->d_v +
           (LG_CONV_K - 1) * (size_t)lg_config_conv_dim(c);
}

/* all_helped: no other steps, so that all sums are of one kind. */
static void make_steps(steps_rig *r, uint64_t seed, bool all_helped) {
    memset(r->pos, 0, sizeof r->pos);
    for (uint32_t i = 0; i < N_SEQ; i++)
        for (uint32_t k = 0; k < N_CTX; k++)
            r->tok[i][k] = (uint32_t)(lg_num_rng(seed, i, k, 7) % r->w->cfg.n_vocab);
    for (uint32_t t = 0; t < N_STEP; t++) {
        made_step *s = &r->step[t];
        uint64_t x = lg_num_rng(seed, t, 0, 1);
        uint32_t set = t == 0 ? 7 : 1 + (uint32_t)(x >> 16) % 7;
        uint32_t n_seq = (set & 1) + (set >> 1 & 1) + (set >> 2);
        *s = (made_step){.helped = all_helped || t % 5 != 0, .save = t % 4 == 1};
        for (uint32_t i = 0; i < N_SEQ; i++) {
            uint32_t most = s->helped ? LG_SLICE_ROWS / n_seq : MAX_TOK / n_seq;
            if (!(set >> i & 1)) continue;
            s->n_tok[i] = s->helped && x & 1 ? 1 : 1 + (uint32_t)(x >> (24 + 4 * i)) % most;
            if (!s->helped && t == 0) s->n_tok[i] = most;
            s->n_out[i] = (x >> (40 + i) & 3) != 0;
            if (s->n_tok[i] > 1) s->n_out[i] += x >> (48 + i) & 1;
            r->pos[i] += s->n_tok[i];
            LG_ASSERT(r->pos[i] <= N_CTX);
        }
    }
}

static void open_opt(const steps_rig *r, const lg_dist *dist, lg_backend_opt *opt) {
    *opt = (lg_backend_opt){.n_slot = N_SEQ,
                            .n_snap = 1,
                            .n_ctx = N_CTX,
                            .n_page = N_SEQ * N_PAGE,
                            .max_tok = MAX_TOK,
                            .max_seq = N_SEQ,
                            .max_out = MAX_OUT,
                            .n_sample_vocab = r->w->cfg.n_vocab,
                            .kv = LG_F16,
                            .dist = dist};
}

/* A step's batch with all its sequences; dist: of rank `rank`, else alone. */
typedef struct made_batch {
    lg_batch b;
    uint32_t tok[MAX_TOK], page[N_SEQ * N_PAGE], out_row[MAX_OUT], n_out;
    lg_batch_seq seq[N_SEQ];
    lg_batch_save save;
    uint32_t rank_tok[MAX_RANK];
    lg_batch_slice slice;
} made_batch;

static void make_batch(const steps_rig *r, const made_step *s, const uint32_t *pos, bool dist,
                       uint32_t rank, made_batch *m) {
    bool own = !dist || rank == r->owner;
    *m = (made_batch){.save = {1, 0}};
    for (uint32_t i = 0; i < N_SEQ; i++) {
        if (s->n_tok[i] == 0) continue;
        lg_batch_seq *q = &m->seq[m->b.n_seq++];
        *q = (lg_batch_seq){.slot = i,
                            .pos = pos[i],
                            .n_tok = s->n_tok[i],
                            .tok0 = m->b.n_tok,
                            .page0 = m->b.n_page,
                            .n_out = s->n_out[i]};
        if (s->save && m->b.n_seq == 1) {
            q->save = &m->save;
            q->n_save = 1;
        }
        for (uint32_t p = 0; p < N_PAGE; p++) m->page[m->b.n_page++] = i * N_PAGE + p;
        for (uint32_t k = 0; k < q->n_tok; k++) {
            if (k >= q->n_tok - q->n_out) m->out_row[m->n_out++] = m->b.n_tok;
            m->tok[m->b.n_tok++] = r->tok[i][pos[i] + k];
        }
    }
    m->b.tok = m->tok;
    m->b.seq = m->seq;
    m->b.page = m->page;
    if (!dist) return;
    m->b.rank_tok = m->rank_tok;
    m->rank_tok[r->owner] = m->b.n_tok;
    if (!own) m->b.n_seq = 0;
    if (!own && !s->helped) m->b.n_tok = 0;
    m->slice = (lg_batch_slice){.owner = r->owner};
    if (!own) {
        m->slice.n_out = m->n_out;
        m->slice.out_row = m->out_row;
    }
    if (s->helped) m->b.slice = &m->slice;
}

static const float *read_states(const lg_backend *be, const steps_rig *r, float *to) {
    const lg_config *c = &r->w->cfg;
    size_t n = state_floats(c), n_s = (size_t)c->n_v_head * c->d_k * c->d_v;
    for (uint32_t i = 0; i < N_SEQ; i++)
        for (uint32_t l = 0; l < c->n_layer; l++) {
            float *at = to + (i * c->n_layer + l) * n;
            if (c->layer[l] == LG_LAYER_GDN)
                lg_backend_read_state(be, i, r->pos[i], l, at, at + n_s);
        }
    return to;
}

static void run_alone(steps_rig *r) {
    size_t n_vocab = r->w->cfg.n_vocab;
    lg_backend_opt opt;
    lg_backend *be;
    lg_err err = {0};
    uint32_t pos[N_SEQ] = {0};
    open_opt(r, NULL, &opt);
    if (lg_backend_open(r->w, &opt, NULL, &be, &err) != LG_OK) fail_msg("%s", err.msg);
    for (uint32_t t = 0; t < N_STEP; t++) {
        made_batch m;
        lg_step_out out = {0};
        make_batch(r, &r->step[t], pos, false, 0, &m);
        assert_int_equal(lg_backend_step(be, &m.b, &out), LG_OK);
        for (uint32_t i = 0; i < m.n_out; i++)
            memcpy(r->logits + (t * MAX_OUT + i) * n_vocab, out.logits + i * out.ld_logits,
                   n_vocab * sizeof(float));
        for (uint32_t i = 0; i < N_SEQ; i++) pos[i] += r->step[t].n_tok[i];
    }
    read_states(be, r, r->state);
    lg_backend_close(&be);
}

static void bad(steps_rig *r, lg_comm *c, const char *what, uint32_t step) {
    snprintf(r->bad[c->rank], sizeof r->bad[0], "%s in step %u%s%.100s", what, step,
             c->lost ? ": " : "", c->lost ? c->why : "");
    if (!c->lost) lg_comm_lose(c, "%s", what);
}

static void run_steps(steps_rig *r, lg_backend *be, lg_comm *c) {
    size_t n_vocab = r->w->cfg.n_vocab, n_state = state_floats(&r->w->cfg);
    uint32_t pos[N_SEQ] = {0};
    for (uint32_t t = 0; t < N_STEP; t++) {
        made_batch m;
        lg_step_out out = {0};
        c->step = t;
        make_batch(r, &r->step[t], pos, true, c->rank, &m);
        if (lg_backend_step(be, &m.b, &out) != LG_OK) {
            bad(r, c, "lost", t);
            return;
        }
        for (uint32_t i = 0; c->rank == r->owner && i < m.n_out; i++)
            if (memcmp(r->logits + (t * MAX_OUT + i) * n_vocab, out.logits + i * out.ld_logits,
                       n_vocab * sizeof(float)) != 0) {
                bad(r, c, r->step[t].helped ? "logits" : "logits without help", t);
                return;
            }
        for (uint32_t i = 0; i < N_SEQ; i++) pos[i] += r->step[t].n_tok[i];
    }
    if (c->rank != r->owner) return;
    size_t n = N_SEQ * r->w->cfg.n_layer * n_state;
    float *state = lg_mem_calloc(n, sizeof *state);
    if (memcmp(read_states(be, r, state), r->state, n * sizeof *state) != 0)
        bad(r, c, "states", N_STEP);
    lg_mem_free(state);
}

static void steps_body(void *ctx, uint32_t rank) {
    steps_rig *r = ctx;
    lg_comm c;
    lg_dist dist = {.comm = &c, .place = &r->place, .how = r->how};
    lg_backend_opt opt;
    lg_backend *be;
    lg_pool *pool = NULL;
    comm_threads_join(r->world, rank, &c);
    c.timeout_us = r->timeout_us;
    open_opt(r, &dist, &opt);
    /* One thread, two, two on memory nodes of their own. */
    if (rank % 3 == 1) LG_ASSERT(lg_pool_open_nodes(2, (int[]){0, 0}, &pool, NULL) == LG_OK);
    if (rank % 3 == 2) LG_ASSERT(lg_pool_open_nodes(2, (int[]){0, 1}, &pool, NULL) == LG_OK);
    LG_ASSERT(lg_backend_open(r->w, &opt, pool, &be, NULL) == LG_OK);
    run_steps(r, be, &c);
    lg_backend_close(&be);
    lg_pool_close(&pool);
    lg_comm_close(&c);
}

static void run_ranks(steps_rig *r, uint32_t n_rank, uint32_t owner, lg_exchange_how how,
                      const char *name) {
    const lg_config *c = &r->w->cfg;
    lg_place_opt o = {.n_rank = n_rank, .n_layer = c->n_layer, .n_expert = c->n_expert};
    r->n_rank = n_rank;
    r->owner = owner;
    r->how = how;
    r->how.answers = LG_DIVIDE_ON;
    r->timeout_us = 60 * 1000000;
    memset(r->bad, 0, sizeof r->bad);
    assert_int_equal(lg_place_balance(&r->place, &o, NULL), LG_OK);
    r->world = comm_threads_open(n_rank, 1, owner % 3);
    comm_threads_run(n_rank, steps_body, r);
    comm_threads_close(r->world);
    lg_place_fini(&r->place);
    for (uint32_t k = 0; k < n_rank; k++)
        if (r->bad[k][0])
            fail_msg("%s, %u ranks, owner %u, rank %u: %s", name, n_rank, owner, k, r->bad[k]);
}

static steps_rig *open_steps(const char *name, lg_weights **w) {
    char path[600];
    lg_err err = {0};
    steps_rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    snprintf(path, sizeof path, "%s/%s", getenv("LG_SOURCE_DIR"), name);
    if (lg_weights_open(path, NULL, NULL, NULL, w, &err) != LG_OK) fail_msg("%s", err.msg);
    r->w = *w;
    r->logits = lg_mem_calloc((size_t)N_STEP * MAX_OUT * (*w)->cfg.n_vocab, sizeof *r->logits);
    r->state =
        lg_mem_calloc(N_SEQ * (*w)->cfg.n_layer * state_floats(&(*w)->cfg), sizeof *r->state);
    return r;
}

static void close_steps(steps_rig **r, lg_weights **w) {
    lg_mem_free((*r)->logits);
    lg_mem_free((*r)->state);
    LG_FREE(*r);
    lg_weights_close(w);
}

/* Floats, scales of 128 x 128, blocks of integers. */
static void test_steps(void **state) {
    (void)state;
    static const char *const model[] = {"tests/data/models/tiny-moe",
                                        "tests/data/models/tiny-moe-fp8",
                                        "tests/data/gguf/tiny-moe-256-Q4_K_M.gguf"};
    static const uint32_t n_rank[] = {2, 3, 5};
    for (uint32_t k = 0; k < LG_COUNT(model); k++) {
        lg_weights *w;
        steps_rig *r = open_steps(model[k], &w);
        make_steps(r, 40 + k, false);
        run_alone(r);
        for (uint32_t i = 0; i < LG_COUNT(n_rank); i++)
            run_ranks(r, n_rank[i], (k + i) % n_rank[i],
                      (lg_exchange_how){.no_overlap = i == 1}, model[k]);
        close_steps(&r, &w);
    }
}

/* Whatever other steps do: what all help with has the sums of one process. */
static void test_steps_of_other_exchanges(void **state) {
    (void)state;
    lg_weights *w;
    steps_rig *r = open_steps("tests/data/models/tiny-moe", &w);
    make_steps(r, 50, true);
    run_alone(r);
    for (int k = LG_EXCHANGE_REDUCE; k <= LG_EXCHANGE_AUTO; k++)
        run_ranks(r, 4, (uint32_t)k,
                  (lg_exchange_how){.kind = (lg_exchange_kind)k,
                                    .links = {{1e-5, 1e-5, 1e9}, {1e-4, 1e-4, 1e7}}},
                  lg_exchange_name((lg_exchange_kind)k));
    close_steps(&r, &w);
}

/* A rank that falls silent: the others leave within the time limit, and say whom they miss. */
static void test_a_rank_is_lost(void **state) {
    (void)state;
    lg_weights *w;
    steps_rig *r = open_steps("tests/data/models/tiny-moe", &w);
    lg_place_opt o = {.n_rank = 3, .n_layer = w->cfg.n_layer, .n_expert = w->cfg.n_expert};
    make_steps(r, 60, true);
    run_alone(r);
    r->n_rank = 3;
    r->how = (lg_exchange_how){.answers = LG_DIVIDE_ON};
    r->timeout_us = 300000;
    assert_int_equal(lg_place_balance(&r->place, &o, NULL), LG_OK);
    r->world = comm_threads_open(3, 1, 0);
    comm_threads_mute(r->world, 2);
    comm_threads_run(3, steps_body, r);
    comm_threads_close(r->world);
    lg_place_fini(&r->place);
    for (uint32_t k = 0; k < 2; k++)
        if (!strstr(r->bad[k], "no answer from rank")) fail_msg("rank %u: %s", k, r->bad[k]);
    if (!strstr(r->bad[0], "rank 2")) fail_msg("%s", r->bad[0]);
    close_steps(&r, &w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),          cmocka_unit_test(test_parts),
        cmocka_unit_test(test_steps),          cmocka_unit_test(test_steps_of_other_exchanges),
        cmocka_unit_test(test_a_rank_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
