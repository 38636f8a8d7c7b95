/* test_order.c - a step as a message: what is written is what is read, and nothing that is damaged is believed.
 *
 * Damage: every word replaced by several values, every length.  What is still accepted must be within the member's pools;
 * the sanitizers watch the reading itself. */
#include "fixture.h"

#include "backend/group/group.h"

#include "base/num.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_CTX 200

static const lg_order_limit lim = {.n_rank = 3,
                                   .rank = 1,
                                   .n_slot = 4,
                                   .n_snap = 5,
                                   .n_page = 12,
                                   .max_tok = 64,
                                   .n_ctx = N_CTX,
                                   .n_vocab = 100,
                                   .n_spread = 150,
                                   .n_slice = 8};

typedef struct rig {
    lg_order_out out;
    lg_order_in in;
    uint32_t ids[4][N_CTX];
    uint32_t tok[64], page[16], truth[4][N_CTX];
    lg_batch_seq seq[4];
    lg_batch_spread spread;
    lg_batch_save save[5];
    lg_sampler sampler[4];
    lg_batch batch;
    uint32_t rank_tok[3];
} rig;

static rig *open_rig(void) {
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    lg_order_in *p = &r->in;
    r->out.word = lg_mem_calloc(lg_order_max_words(&lim), 4);
    p->seq = lg_mem_calloc(lim.n_slot + 1, sizeof *p->seq);
    p->sampler = lg_mem_calloc(lim.n_slot + 1, sizeof *p->sampler);
    p->tok = lg_mem_calloc(lim.max_tok, 4);
    p->page = lg_mem_calloc(lim.n_slot * 4 + 3, 4);
    p->save = lg_mem_calloc(lim.n_snap + LG_SPREAD_MAX_SAVE, sizeof *p->save);
    p->seen = lg_mem_calloc(lim.n_slot, sizeof *p->seen);
    p->slot = lg_mem_calloc(lim.n_slot, sizeof *p->slot);
    for (uint32_t i = 0; i < lim.n_slot; i++) {
        p->slot[i].ids = lg_mem_calloc(N_CTX, 4);
        p->slot[i].bias = lg_mem_calloc(LG_ORDER_MAX_BIAS, sizeof(lg_bias));
    }
    return r;
}

static void close_rig(rig **r) {
    lg_order_in *p = &(*r)->in;
    for (uint32_t i = 0; i < lim.n_slot; i++) {
        lg_mem_free(p->slot[i].ids);
        lg_mem_free(p->slot[i].bias);
    }
    lg_mem_free((*r)->out.word);
    lg_mem_free(p->seq);
    lg_mem_free(p->sampler);
    lg_mem_free(p->tok);
    lg_mem_free(p->page);
    lg_mem_free(p->save);
    lg_mem_free(p->seen);
    lg_mem_free(p->slot);
    LG_FREE(*r);
}

/* A step with three sequences: a prompt's beginning, a decode that samples, a text that came from a snapshot and samples. */
static void write_step(rig *r) {
    uint32_t pair[2] = {7, lg_num_bits_of_float(2.5f)};
    r->rank_tok[0] = 3;
    r->rank_tok[1] = 21;
    r->rank_tok[2] = 0;
    for (uint32_t i = 0; i < 21; i++) r->tok[i] = i + 1;
    for (uint32_t i = 0; i < 16; i++) r->page[i] = (i * 5 + 3) % 12;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t k = 0; k < N_CTX; k++) r->truth[i][k] = (i * 31 + k * 7) % 100;
    r->save[0] = (lg_batch_save){4, 2};
    r->save[1] = (lg_batch_save){10, 0};
    for (uint32_t i = 1; i < 3; i++)
        r->sampler[i] = (lg_sampler){.params = {.temperature = 0.5f,
                                                .top_p = 0.9f,
                                                .min_p = 0.1f,
                                                .top_k = 40,
                                                .presence_penalty = 0.25f,
                                                .frequency_penalty = -0.5f,
                                                .repetition_penalty = 1.1f,
                                                .has_seed = true,
                                                .seed = 0x123456789abcdef0u,
                                                .choice = 3,
                                                .ignore_eos = i == 1,
                                                .n_top = 5},
                                     .ids = r->truth[i],
                                     .n_prompt = 60};
    r->seq[0] =
        (lg_batch_seq){.owner = 1, .slot = 3, .n_tok = 10, .save = r->save, .n_save = 2};
    r->seq[1] = (lg_batch_seq){
        .owner = 1, .slot = 0, .pos = 70, .n_tok = 1, .tok0 = 10, .page0 = 1, .n_out = 1};
    r->seq[2] = (lg_batch_seq){
        .owner = 1, .slot = 2, .pos = 130, .n_tok = 10, .tok0 = 11, .page0 = 3, .n_out = 1};
    for (uint32_t i = 1; i < 3; i++) {
        r->seq[i].sampler = &r->sampler[i];
        r->sampler[i].n_id = r->seq[i].pos + r->seq[i].n_tok;
    }
    r->batch = (lg_batch){
        .tok = r->tok, .n_tok = 21, .seq = r->seq, .n_seq = 3, .page = r->page, .n_page = 6};
    lg_order_begin(&r->out, &lim);
    assert_true(lg_order_cmd(&r->out, LG_CMD_SAVE, 1, 33, 4, NULL, 0));
    assert_true(lg_order_cmd(&r->out, LG_CMD_LOAD, 2, 130, 3, NULL, 0));
    assert_true(lg_order_cmd(&r->out, LG_CMD_COPY, 11, 0, 0, NULL, 0));
    assert_true(lg_order_cmd(&r->out, LG_CMD_BIAS, 2, 1, 0, pair, 2));
    assert_true(lg_order_cmd(&r->out, LG_CMD_IDS, 2, 0, 130, r->truth[2], 130));
    for (uint32_t i = 0; i < 3; i++) lg_order_seq(&r->out, &r->batch, i, NULL, &lim);
    lg_order_end(&r->out, LG_ORDER_STEP, 77, r->rank_tok, &lim);
}

static void write_any(rig *r, uint32_t owner) {
    (void)owner;
    write_step(r);
}

/* A step of this member (rank 1 of 3): a decode, and a part of a prompt of `owner`, 17 rows from position 120 on. */
static void write_divided(rig *r, uint32_t owner) {
    write_step(r);
    r->seq[0] = (lg_batch_seq){.owner = 1, .slot = 3, .pos = 9, .n_tok = 1, .n_out = 1};
    r->seq[1] = (lg_batch_seq){.owner = owner,
                               .slot = 2,
                               .pos = 120,
                               .n_tok = 17,
                               .tok0 = 1,
                               .page0 = 1,
                               .n_out = 1,
                               .sampler = &r->sampler[2],
                               .save = r->save,
                               .n_save = 2};
    r->sampler[2].n_id = 137;
    r->rank_tok[0] = 5;
    r->rank_tok[1] = owner == 1 ? 7 : owner == 0 ? 6 : 7;
    r->rank_tok[2] = 6;
    r->spread = (lg_batch_spread){owner, 120, 17, true, r->save, 2};
    r->batch = (lg_batch){
        .tok = r->tok, .n_tok = 18, .seq = r->seq, .n_seq = 2, .page = r->page, .n_page = 4};
    lg_order_begin(&r->out, &lim);
    assert_true(lg_order_cmd(&r->out, LG_CMD_IDS, 2, 0, 120, r->truth[2], 120));
    lg_order_seq(&r->out, &r->batch, 0, NULL, &lim);
    lg_order_seq(&r->out, &r->batch, 1, &r->spread, &lim);
    lg_order_end(&r->out, LG_ORDER_STEP, 78, r->rank_tok, &lim);
}

/* A step of few rows that are all of `owner`: of two sequences, one ends a prompt, one decodes. */
static void write_sliced(rig *r, uint32_t owner) {
    lg_order_limit own = lim;
    write_step(r);
    r->seq[0] = (lg_batch_seq){.owner = owner,
                               .slot = 0,
                               .pos = 70,
                               .n_tok = 4,
                               .n_out = 1,
                               .sampler = &r->sampler[1]};
    r->seq[1] = (lg_batch_seq){
        .owner = owner, .slot = 1, .pos = 3, .n_tok = 1, .tok0 = 4, .page0 = 2, .n_out = 1};
    r->sampler[1].n_id = 74;
    memset(r->rank_tok, 0, sizeof r->rank_tok);
    r->rank_tok[owner] = 5;
    r->batch = (lg_batch){
        .tok = r->tok, .n_tok = 5, .seq = r->seq, .n_seq = 2, .page = r->page, .n_page = 3};
    own.rank = 1;
    lg_order_begin(&r->out, &lim);
    for (uint32_t i = 0; i < 2 && owner == 1; i++)
        lg_order_seq(&r->out, &r->batch, i, NULL, &lim);
    lg_order_slice(&r->out, &r->batch, owner, &own);
    lg_order_end(&r->out, LG_ORDER_STEP, 79, r->rank_tok, &lim);
}

/* The member has slot 0's first 70 ids already. */
static void know(rig *r) {
    for (uint32_t i = 0; i < 4; i++) r->in.slot[i].n_known = 0;
    memcpy(r->in.slot[0].ids, r->truth[1], 70 * 4);
    r->in.slot[0].n_known = 70;
    r->in.slot[0].n_bias = 0;
}

static void test_round_trip(void **state) {
    (void)state;
    rig *r = open_rig();
    lg_err err = {0};
    write_step(r);
    know(r);
    if (lg_order_read(&r->in, r->out.word, r->out.n_word * 4, &lim, &err) != LG_OK)
        fail_msg("%s", err.msg);
    const lg_batch *b = &r->in.batch;
    assert_int_equal(r->in.kind, LG_ORDER_STEP);
    assert_int_equal(r->in.step, 77);
    assert_int_equal(b->n_seq, 3);
    assert_int_equal(b->n_tok, 21);
    assert_memory_equal(b->tok, r->tok, 21 * 4);
    assert_memory_equal(b->rank_tok, r->rank_tok, sizeof r->rank_tok);
    for (uint32_t i = 0; i < 3; i++) {
        const lg_batch_seq *a = &r->seq[i], *g = &b->seq[i];
        assert_int_equal(g->slot, a->slot);
        assert_int_equal(g->pos, a->pos);
        assert_int_equal(g->n_tok, a->n_tok);
        assert_int_equal(g->tok0, a->tok0);
        assert_int_equal(g->n_out, a->n_out);
        assert_int_equal(g->n_save, a->n_save);
        assert_memory_equal(b->page + g->page0, r->page + a->page0,
                            (a->pos + a->n_tok + 63) / 64 * 4);
        assert_int_equal(g->sampler != NULL, a->sampler != NULL);
        if (!a->sampler) continue;
        assert_memory_equal(&g->sampler->params, &a->sampler->params, sizeof(lg_params));
        assert_int_equal(g->sampler->n_prompt, 60);
        assert_int_equal(g->sampler->n_id, a->sampler->n_id);
        assert_memory_equal(g->sampler->ids, a->sampler->ids, a->pos * 4);
        assert_memory_equal(g->sampler->ids + a->pos, r->tok + a->tok0, a->n_tok * 4);
    }
    assert_memory_equal(b->seq[0].save, r->save, 2 * sizeof *r->save);
    assert_int_equal(b->seq[1].sampler->n_bias, 0);
    assert_int_equal(b->seq[2].sampler->n_bias, 1);
    assert_int_equal(b->seq[2].sampler->bias[0].id, 7);
    assert_true(b->seq[2].sampler->bias[0].bias == 2.5f);
    static const lg_cmd want[] = {LG_CMD_SAVE, LG_CMD_LOAD, LG_CMD_COPY, LG_CMD_BIAS,
                                  LG_CMD_IDS};
    uint32_t at = 0, n = 0;
    lg_cmd op;
    const uint32_t *arg;
    while (lg_order_next(&r->in, &at, &op, &arg)) assert_int_equal(op, want[n++]);
    assert_int_equal(n, 5);
    close_rig(&r);
}

/* The part that a member makes of it: places are owner + 1, owner + 2, owner. */
static void test_divided(void **state) {
    (void)state;
    static const uint32_t first[3] = {0, 11, 5}, n[3] = {5, 6, 6};
    rig *r = open_rig();
    for (uint32_t owner = 0; owner < 3; owner++) {
        lg_err err = {0};
        write_divided(r, owner);
        know(r);
        if (lg_order_read(&r->in, r->out.word, r->out.n_word * 4, &lim, &err) != LG_OK)
            fail_msg("%s", err.msg);
        const lg_batch *b = &r->in.batch;
        const lg_batch_seq *q = &b->seq[1];
        assert_int_equal(b->n_seq, 2);
        assert_non_null(b->spread);
        assert_int_equal(b->spread->owner, owner);
        assert_int_equal(b->spread->pos, 120);
        assert_int_equal(b->spread->n_tok, 17);
        assert_true(b->spread->fresh && b->spread->n_save == 2);
        assert_memory_equal(b->spread->save, r->save, 2 * sizeof *r->save);
        assert_int_equal(q->pos, 120 + first[owner]);
        assert_int_equal(q->n_tok, n[owner]);
        assert_int_equal(q->n_save, 0);
        assert_int_equal(b->n_tok, 1 + n[owner]);
        assert_memory_equal(b->tok + 1, r->tok + 1 + first[owner], n[owner] * 4);
        assert_int_equal(q->slot, owner == 1 ? 2 : 4);
        assert_int_equal(q->n_out, owner == 1);
        assert_int_equal(q->sampler != NULL, owner == 1);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(b->page[q->page0 + i], owner == 1 ? r->page[1 + i] : 12 + i);
        if (owner == 1) assert_memory_equal(q->sampler->ids + 120, r->tok + 1, 17 * 4);
    }
    close_rig(&r);
}

/* The owner has its sequences, the others rows and which give logits. */
static void test_sliced(void **state) {
    (void)state;
    rig *r = open_rig();
    for (uint32_t owner = 0; owner < 3; owner++) {
        lg_err err = {0};
        write_sliced(r, owner);
        know(r);
        if (lg_order_read(&r->in, r->out.word, r->out.n_word * 4, &lim, &err) != LG_OK)
            fail_msg("%s", err.msg);
        const lg_batch *b = &r->in.batch;
        assert_non_null(b->slice);
        assert_null(b->spread);
        assert_int_equal(b->slice->owner, owner);
        assert_int_equal(b->n_tok, 5);
        assert_memory_equal(b->tok, r->tok, 5 * 4);
        assert_int_equal(b->n_seq, owner == 1 ? 2 : 0);
        assert_int_equal(b->slice->n_out, owner == 1 ? 0 : 2);
        if (owner == 1) continue;
        assert_int_equal(b->slice->out_row[0], 3);
        assert_int_equal(b->slice->out_row[1], 4);
    }
    /* A group that does not do it believes none. */
    lg_order_limit none = lim;
    none.n_slice = 0;
    assert_int_equal(lg_order_read(&r->in, r->out.word, r->out.n_word * 4, &none, NULL),
                     LG_E_FORMAT);
    /* Nor rows of two ranks, nor more rows than may be. */
    r->out.word[LG_ORDER_HEAD] = 1;
    assert_int_equal(lg_order_read(&r->in, r->out.word, r->out.n_word * 4, &lim, NULL),
                     LG_E_FORMAT);
    write_sliced(r, 0);
    none.n_slice = 4;
    assert_int_equal(lg_order_read(&r->in, r->out.word, r->out.n_word * 4, &none, NULL),
                     LG_E_FORMAT);
    /* The next order is a plain one again. */
    write_step(r);
    know(r);
    assert_int_equal(lg_order_read(&r->in, r->out.word, r->out.n_word * 4, &lim, NULL), LG_OK);
    assert_null(r->in.batch.slice);
    close_rig(&r);
}

/* The part of a divided sequence is the last one; of another rank's, what is kept for it is used. */
static void check_divided(const rig *r) {
    const lg_batch_spread *s = r->in.batch.spread;
    const lg_batch_seq *q = &r->in.batch.seq[r->in.batch.n_seq - 1];
    assert_true(s->owner < 3 && s->pos + s->n_tok <= 150 && s->n_save <= LG_SPREAD_MAX_SAVE);
    assert_true(q->pos >= s->pos && q->pos + q->n_tok <= s->pos + s->n_tok && q->n_save == 0);
    for (uint32_t k = 0; k < s->n_save; k++)
        assert_true(s->save[k].snap < 5 && s->save[k].n_row <= s->n_tok);
    for (uint32_t k = 0; k < (s->pos + s->n_tok + 63) / 64; k++)
        assert_true(s->owner == 1 ? r->in.batch.page[q->page0 + k] < 12
                                  : r->in.batch.page[q->page0 + k] == 12 + k);
    assert_true(s->owner == 1 ? q->slot < 4 : q->slot == 4 && !q->sampler && !q->n_out);
}

/* Nothing of a member's own is beside the rows that it helps with. */
static void check_sliced(const lg_batch *b) {
    const lg_batch_slice *s = b->slice;
    assert_true(s->owner < 3 && !b->spread && b->n_tok >= 1 && b->n_tok <= 8);
    assert_int_equal(b->rank_tok[s->owner], b->n_tok);
    assert_int_equal(b->rank_tok[0] + b->rank_tok[1] + b->rank_tok[2], b->n_tok);
    assert_true(s->owner == 1 ? s->n_out == 0 : b->n_seq == 0 && s->n_out <= 4);
    for (uint32_t i = 0; i < s->n_out; i++)
        assert_true(s->out_row[i] < b->n_tok && (i == 0 || s->out_row[i] > s->out_row[i - 1]));
}

/* Whatever was accepted can be run. */
static void check_bounds(const rig *r) {
    if (r->in.batch.spread) check_divided(r);
    if (r->in.batch.slice) check_sliced(&r->in.batch);
    const lg_batch *b = &r->in.batch;
    uint32_t n_tok = b->slice && b->slice->owner != 1 ? b->n_tok : 0;
    bool seen[5] = {false};
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const lg_batch_seq *q = &b->seq[i];
        bool other = b->spread && b->spread->owner != 1 && i + 1 == b->n_seq;
        assert_true(q->tok0 == n_tok && q->n_tok >= 1);
        assert_true(other || (q->slot < 4 && !seen[q->slot]));
        seen[q->slot] = true;
        n_tok += q->n_tok;
        assert_true(q->pos + q->n_tok <= N_CTX && q->n_out <= 1);
        for (uint32_t k = 0; k < (q->pos + q->n_tok + 63) / 64; k++)
            assert_true(other || b->page[q->page0 + k] < 12);
        for (uint32_t k = 0; k < q->n_save; k++)
            assert_true(q->save[k].snap < 5 && q->save[k].n_row >= 1 &&
                        q->save[k].n_row <= q->n_tok);
        if (!q->sampler) continue;
        assert_true((q->sampler->n_id == q->pos + q->n_tok || b->spread) &&
                    q->sampler->n_prompt <= q->sampler->n_id);
        assert_true(r->in.slot[q->slot].n_known >= q->sampler->n_id);
        assert_true(q->sampler->params.n_top <= LG_MAX_TOP);
    }
    assert_true(n_tok == b->n_tok && n_tok <= 64);
    for (uint32_t i = 0; i < n_tok; i++) assert_true(b->tok[i] < 100);
    uint32_t at = 0;
    lg_cmd op;
    const uint32_t *arg;
    while (lg_order_next(&r->in, &at, &op, &arg)) {
        if (op == LG_CMD_COPY) assert_true(arg[0] < 12 && arg[1] < 12);
        if (op == LG_CMD_SAVE || op == LG_CMD_LOAD)
            assert_true(arg[0] < 4 && arg[1] >= 1 && arg[1] <= N_CTX && arg[2] < 5);
    }
}

static void damage(void (*write)(rig *r, uint32_t owner), uint32_t owner) {
    static const uint32_t value[] = {0,  1,  2,   3,   4,   5,          6,          12,
                                     64, 99, 100, 128, 200, 0x7fffffff, 0x80000000, UINT32_MAX};
    rig *r = open_rig();
    write(r, owner);
    uint32_t n = r->out.n_word, n_bad = 0;
    uint32_t *good = lg_mem_calloc(n, 4);
    memcpy(good, r->out.word, n * 4);
    for (uint32_t at = 0; at < n; at++)
        for (size_t v = 0; v < LG_COUNT(value); v++) {
            uint32_t *copy = lg_mem_calloc(n, 4); /* of exactly this size, for the sanitizer */
            memcpy(copy, good, n * 4);
            copy[at] = value[v];
            know(r);
            if (lg_order_read(&r->in, copy, n * 4, &lim, NULL) == LG_OK)
                check_bounds(r);
            else
                n_bad++;
            lg_mem_free(copy);
        }
    assert_true(n_bad > n);
    for (uint32_t len = 0; len < n * 4; len++) {
        uint32_t *copy = lg_mem_alloc(len ? len : 1);
        memcpy(copy, good, len);
        if (len >= 16) copy[3] = len / 4; /* a header that fits the length */
        know(r);
        assert_int_equal(lg_order_read(&r->in, copy, len, &lim, NULL), LG_E_FORMAT);
        lg_mem_free(copy);
    }
    lg_mem_free(good);
    close_rig(&r);
}

static void write_plain(rig *r, uint32_t owner) {
    (void)owner;
    write_step(r);
}

static void test_damage(void **state) {
    (void)state;
    damage(write_plain, 0);
}

static void test_damage_sliced(void **state) {
    (void)state;
    for (uint32_t owner = 0; owner < 2; owner++) damage(write_sliced, owner);
}

static void test_damage_divided(void **state) {
    (void)state;
    for (uint32_t owner = 0; owner < 2; owner++) damage(write_divided, owner);
}

/* Commands do not outgrow their room; the caller is told. */
static void test_full_of_commands(void **state) {
    (void)state;
    rig *r = open_rig();
    uint32_t n = 0;
    lg_order_begin(&r->out, &lim);
    while (lg_order_cmd(&r->out, LG_CMD_IDS, 0, 0, 130, r->truth[0], 130)) n++;
    assert_int_equal(n, LG_ORDER_CMD / 134);
    lg_order_end(&r->out, LG_ORDER_NOTE, 5, NULL, &lim);
    know(r);
    assert_int_equal(lg_order_read(&r->in, r->out.word, r->out.n_word * 4, &lim, NULL), LG_OK);
    assert_int_equal(r->in.kind, LG_ORDER_NOTE);
    assert_int_equal(r->in.batch.n_seq, 0);
    close_rig(&r);
}

static void test_reply(void **state) {
    (void)state;
    rig *r = open_rig();
    lg_sampled in[3] = {{0}}, out[3] = {{0}};
    uint32_t word[4 + 3 * LG_ORDER_SAMPLED];
    lg_status st = LG_E_INTERNAL;
    write_step(r);
    in[1] = (lg_sampled){
        .id = 42, .logprob = -1.25f, .n_top = 2, .top = {{42, -1.25f}, {7, -2.5f}}};
    in[2] = (lg_sampled){.id = 3, .nonfinite = true};
    size_t n = lg_order_put_reply(word, 9, LG_OK, &r->batch, in);
    assert_int_equal(lg_order_get_reply(word, n * 4, 9, 3, &st, out, NULL), LG_OK);
    assert_int_equal(st, LG_OK);
    assert_int_equal(out[1].id, 42);
    assert_true(out[1].logprob == -1.25f && out[1].n_top == 2 && out[1].top[1].id == 7 &&
                out[1].top[1].logprob == -2.5f);
    assert_true(out[2].nonfinite && !out[1].nonfinite);
    assert_int_equal(lg_order_get_reply(word, n * 4, 8, 3, &st, out, NULL), LG_E_FORMAT);
    assert_int_equal(lg_order_get_reply(word, n * 4 - 4, 9, 3, &st, out, NULL), LG_E_FORMAT);
    assert_int_equal(lg_order_get_reply(word, n * 4, 9, 2, &st, out, NULL), LG_E_FORMAT);
    word[4 + LG_ORDER_SAMPLED + 2] = LG_MAX_TOP + 1;
    assert_int_equal(lg_order_get_reply(word, n * 4, 9, 3, &st, out, NULL), LG_E_FORMAT);
    close_rig(&r);
}

/* The fuzzer's seeds are these orders as they are written now: with them it knows every kind.  To write them anew: LG_ORDER_SEEDS=1. */
static void test_seeds(void **state) {
    (void)state;
    static const struct {
        const char *name;
        void (*write)(rig *r, uint32_t owner);
        uint32_t owner;
    } seed[] = {{"divided_helper", write_divided, 0},
                {"divided_owner", write_divided, 1},
                {"sliced_helper", write_sliced, 0},
                {"sliced_owner", write_sliced, 1},
                {"step", write_any, 0}};
    lg_fixture f;
    lg_fixture_source("fuzz/corpus/order", f.path, sizeof f.path);
    for (size_t i = 0; i < LG_COUNT(seed); i++) {
        rig *r = open_rig();
        seed[i].write(r, seed[i].owner);
        if (getenv("LG_ORDER_SEEDS"))
            lg_fixture_write(&f, seed[i].name, r->out.word, r->out.n_word * 4);
        lg_buf file = lg_fixture_read(&f, seed[i].name);
        if (file.len_bytes != r->out.n_word * 4 ||
            memcmp(file.data, r->out.word, file.len_bytes) != 0)
            fail_msg("%s/%s is not the order of today", f.path, seed[i].name);
        lg_buf_fini(&file);
        close_rig(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_divided),
        cmocka_unit_test(test_damage_divided),
        cmocka_unit_test(test_sliced),
        cmocka_unit_test(test_damage_sliced),
        cmocka_unit_test(test_full_of_commands),
        cmocka_unit_test(test_reply),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
