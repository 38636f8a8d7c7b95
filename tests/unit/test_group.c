/* test_group.c - an engine over ranks: the same ids and the same bits as one rank alone, whatever the number of ranks, the
 * placement of experts and the replicas.
 *
 * Idle patterns and a lost rank: test_group_loss.c; kept texts in files: test_group_files.c.  tests/e2e/test_ranks.py does the like with
 * processes over MPI. */
#include "group_rig.h"

#include <math.h>

static void same_with_threads(const char *name, const uint32_t *n_rank, size_t n, uint64_t seed,
                              lg_exchange_how how, int n_thread) {
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    group_open_model(r, name);
    group_run_alone(r);
    r->how = how;
    r->n_thread = n_thread;
    for (size_t i = 0; i < n; i++) {
        r->seed = seed + i;
        r->n_divided = r->n_sliced = 0;
        group_open_ranks(r, n_rank[i], r->seed);
        group_run(r, LG_AGAIN);
        group_expect_same(r);
        assert_true(r->n_hit > 0);
        assert_int_equal(r->n_divided > 0, how.divide != LG_DIVIDE_OFF && r->n_rank > 1);
        assert_int_equal(r->n_sliced > 0, how.answers != LG_DIVIDE_OFF && r->n_rank > 1);
        group_close_ranks(r);
    }
    group_close_model(r);
    lg_mem_free(r);
}

static void same_as_alone(const char *name, const uint32_t *n_rank, size_t n, uint64_t seed,
                          lg_exchange_how how) {
    same_with_threads(name, n_rank, n, seed, how, 1);
}

/* Sums in another order: log-probabilities are close, and a greedy answer turns only where two ids are nearly tied. */
static void expect_near(const rig *r, uint32_t *n_same) {
    *n_same = 0;
    for (uint32_t i = 0; i < N_REQ; i++) {
        const outcome *a = &r->alone[i], *g = &r->got[i];
        assert_true(a->done && g->done);
        if (i % 9 == 8) continue;
        uint32_t k = 0;
        for (; k < a->n && k < g->n && a->id[k] == g->id[k]; k++)
            assert_true(fabsf(a->logprob[k] - g->logprob[k]) < 2e-3f);
        if (k == a->n && k == g->n)
            (*n_same)++;
        else if (i % 4 == 0)
            assert_true(a->top[k][0].logprob - a->top[k][1].logprob < 2e-3f);
    }
}

/* The exchanges that round otherwise; ranks, machines, bits of rows on their way. */
static void test_other_sums(void **state) {
    (void)state;
    static const struct {
        uint32_t n_rank, n_node;
        lg_exchange_how how;
    } kind[] = {
        {4, 2, {.kind = LG_EXCHANGE_REDUCE}},
        {3, 3, {.kind = LG_EXCHANGE_REDUCE, .no_overlap = true}},
        {4, 4, {.kind = LG_EXCHANGE_ALLTOALL}},
        {2, 1, {.kind = LG_EXCHANGE_ALLTOALL, .no_overlap = true}},
        {4, 2, {.kind = LG_EXCHANGE_AUTO, .links = {{1e-5, 1e-5, 1e9}, {1e-4, 1e-4, 1e7}}}}};
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    group_open_model(r, "tests/data/models/tiny-moe");
    group_run_alone(r);
    for (size_t i = 0; i < LG_COUNT(kind); i++) {
        uint32_t n_same;
        r->how = kind[i].how;
        r->n_node = kind[i].n_node;
        group_open_ranks(r, kind[i].n_rank, 50 + i);
        group_run(r, LG_AGAIN);
        expect_near(r, &n_same);
        assert_true(n_same >= N_REQ * 2 / 3);
        group_close_ranks(r);
    }
    group_close_model(r);
    lg_mem_free(r);
}

static void test_moe_bits(void **state) {
    (void)state;
    same_as_alone("tests/data/models/tiny-moe", (uint32_t[]){1, 2, 4}, 3, 1,
                  (lg_exchange_how){0});
}

static void test_fp8_bits(void **state) {
    (void)state;
    same_as_alone("tests/data/models/tiny-moe-fp8", (uint32_t[]){2, 3}, 2, 11,
                  (lg_exchange_how){0});
}

static void test_bundled_bits(void **state) {
    (void)state;
    same_as_alone("models/tiny-qwen35moe", (uint32_t[]){3}, 1, 21, (lg_exchange_how){0});
}

/* Steps of few rows of one rank, with the help of all; beside prompts that are divided too. */
static void test_sliced(void **state) {
    (void)state;
    lg_exchange_how how = {.answers = LG_DIVIDE_ON};
    same_as_alone("tests/data/models/tiny-moe", (uint32_t[]){1, 2, 3, 5}, 4, 91, how);
    same_as_alone("tests/data/models/tiny-moe-fp8", (uint32_t[]){3}, 1, 101, how);
    how.divide = LG_DIVIDE_ON;
    how.divide_ctx = 100;
    how.no_overlap = true;
    same_as_alone("models/tiny-qwen35moe", (uint32_t[]){2}, 1, 111, how);
}

static void test_divided(void **state) {
    (void)state;
    lg_exchange_how how = {.divide = LG_DIVIDE_ON, .divide_ctx = 448};
    same_as_alone("tests/data/models/tiny-moe", (uint32_t[]){2, 3, 4}, 3, 41, how);
    how.divide_ctx = 100; /* the rest is not divided */
    same_as_alone("models/tiny-qwen35moe", (uint32_t[]){3}, 1, 51, how);
}

/* Ranks without experts to share: refused with a reason. */
static void test_dense_is_refused(void **state) {
    (void)state;
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    group_open_model(r, "tests/data/models/tiny-dense");
    lg_comm c;
    lg_comm_self(&c);
    lg_dist dist = {.comm = &c};
    lg_backend_opt opt = {
        .n_slot = 1, .n_page = 4, .max_tok = 8, .max_seq = 1, .max_out = 1, .dist = &dist};
    lg_backend *be;
    lg_err err = {0};
    assert_int_equal(lg_backend_open(r->all, &opt, NULL, &be, &err), LG_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "without experts"));
    group_close_model(r);
    lg_mem_free(r);
}

/* Ids of a made-up text. */
static void made_up(uint32_t text, uint32_t n_vocab, uint32_t *ids, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) ids[k] = (uint32_t)(lg_num_rng(text, 5, k, 0) % n_vocab);
}

/* Rows of a text in slot 0, whose pages begin at page0. */
static lg_status run_rows(const lg_backend_ops *ops, lg_backend *be, const uint32_t *ids,
                          uint32_t pos, uint32_t n, uint32_t page0, lg_sampled *out) {
    uint32_t page[2] = {page0, page0 + 1};
    lg_sampler greedy = {
        .params = {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_top = 3},
        .ids = ids,
        .n_prompt = pos + n,
        .n_id = pos + n};
    lg_batch_seq seq = {
        .pos = pos, .n_tok = n, .n_out = out != NULL, .sampler = out ? &greedy : NULL};
    lg_batch b = {
        .tok = ids + pos, .n_tok = n, .seq = &seq, .n_seq = 1, .page = page, .n_page = 2};
    lg_step_out o = {.sampled = out};
    lg_sampled none;
    if (!out) o.sampled = &none;
    return ops->step(be, &b, &o);
}

/* A text is kept aside, its slot used by another one up to the same position, and brought back: what the ranks have of the
 * other one must not be taken for it. */
static lg_status run_swapped(const lg_backend_ops *ops, const lg_weights *w,
                             const lg_backend_opt *opt, lg_sampled *out, lg_err *err) {
    uint32_t ids[2][96];
    lg_backend *be;
    lg_status st = ops->open(w, opt, NULL, &be, err);
    if (st != LG_OK) return st;
    for (uint32_t t = 0; t < 2; t++) {
        made_up(t, w->cfg.n_vocab, ids[t], 96);
        for (uint32_t pos = 0; st == LG_OK && pos < 64; pos += 32)
            st = run_rows(ops, be, ids[t], pos, 32, 2 * t, NULL);
        if (t == 0) ops->save(be, 0, 0, 64, 0);
    }
    ops->load(be, 0, 0, 64, 0);
    if (st == LG_OK) st = run_rows(ops, be, ids[0], 64, 30, 0, out);
    ops->close(&be);
    return st;
}

static lg_status lead_swapped(rig *r) {
    lg_backend_opt opt = r->budget.opt;
    opt.dist = &r->dist[0];
    return run_swapped(lg_ranks_ops(), r->part[0], &opt, &r->swapped, &r->err[0]);
}

/* Ranks of several threads, of which the first alone speaks to the others: rows and heads are moved by all. */
static void test_divided_by_threads(void **state) {
    (void)state;
    lg_exchange_how how = {.divide = LG_DIVIDE_ON, .divide_ctx = 448};
    same_with_threads("tests/data/models/tiny-moe", (uint32_t[]){2, 3}, 2, 91, how, 2);
    same_with_threads("tests/data/models/tiny-moe", (uint32_t[]){2}, 1, 95, how, 3);
}

/* The choice step by step: where messages cost nothing every long enough prompt is divided, where they take for ever none; the answers
 * are the same. */
static void test_divided_where_it_pays(void **state) {
    (void)state;
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    group_open_model(r, "tests/data/models/tiny-moe");
    group_run_alone(r);
    for (int slow = 0; slow < 2; slow++) {
        lg_way way = slow ? (lg_way){10, 10, 1} : (lg_way){0, 0, 1e18};
        r->how = (lg_exchange_how){.divide = LG_DIVIDE_AUTO,
                                   .divide_ctx = 448,
                                   .answers = LG_DIVIDE_AUTO,
                                   .links = {.in = way, .out = way}};
        r->n_divided = r->n_sliced = 0;
        group_open_ranks(r, 3, 71);
        comm_threads_run(r->n_rank, group_rank, r);
        assert_int_equal(r->status[0], LG_AGAIN);
        group_expect_same(r);
        assert_int_equal(r->n_divided > 0, !slow);
        assert_int_equal(r->n_sliced > 0, !slow);
        group_close_ranks(r);
    }
    group_close_model(r);
    lg_mem_free(r);
}

static void test_divided_slot_is_used_again(void **state) {
    (void)state;
    lg_sampled truth = {0};
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    group_open_model(r, "tests/data/models/tiny-moe");
    group_fit(r, NULL);
    assert_int_equal(run_swapped(&group_cpu, r->all, &r->budget.opt, &truth, &r->err[0]),
                     LG_OK);
    r->how = (lg_exchange_how){.divide = LG_DIVIDE_ON, .divide_ctx = 448};
    r->lead = lead_swapped;
    group_open_ranks(r, 3, 81);
    group_run(r, LG_OK);
    assert_int_equal(r->n_divided, 5);
    assert_int_equal(r->swapped.id, truth.id);
    assert_memory_equal(&r->swapped.logprob, &truth.logprob, sizeof truth.logprob);
    assert_memory_equal(r->swapped.top, truth.top, 3 * sizeof *truth.top);
    group_close_ranks(r);
    group_close_model(r);
    lg_mem_free(r);
}

/* What was sampled of two texts side by side, of each rank in turn: alone, and by ranks. */
static lg_sampled pairs[2][3][2];

/* Steps of 5 and 3 rows of two texts of one owner; the second one samples from both. */
static lg_status run_pairs(const lg_backend_ops *ops, const lg_weights *w,
                           const lg_backend_opt *opt, bool alone, lg_err *err) {
    static const uint32_t pos[2][2] = {{0, 0}, {2, 3}}, n_tok[2][2] = {{2, 3}, {1, 2}};
    uint32_t ids[2][5], page[2] = {0, 1};
    lg_backend *be;
    lg_status st = ops->open(w, opt, NULL, &be, err);
    for (uint32_t i = 0; i < 6 && st == LG_OK; i++) {
        uint32_t owner = i / 2, t = i % 2, tok[5];
        lg_batch b = {.tok = tok, .page = page, .n_page = 2, .n_seq = 2};
        lg_sampled none[2];
        lg_step_out o = {.sampled = t ? pairs[!alone][owner] : none};
        lg_sampler greedy[2];
        lg_batch_seq seq[2];
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t end = pos[t][k] + n_tok[t][k];
            made_up(10 * owner + k, w->cfg.n_vocab, ids[k], 5);
            greedy[k] = (lg_sampler){
                .params = {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_top = 3},
                .ids = ids[k],
                .n_prompt = end,
                .n_id = end};
            seq[k] = (lg_batch_seq){.owner = alone ? 0 : owner,
                                    .slot = k,
                                    .pos = pos[t][k],
                                    .n_tok = n_tok[t][k],
                                    .tok0 = b.n_tok,
                                    .page0 = k,
                                    .n_out = t,
                                    .sampler = t ? &greedy[k] : NULL};
            memcpy(tok + b.n_tok, ids[k] + pos[t][k], n_tok[t][k] * sizeof *tok);
            b.n_tok += n_tok[t][k];
        }
        b.seq = seq;
        st = ops->step(be, &b, &o);
    }
    if (be) ops->close(&be);
    return st;
}

static lg_status lead_pairs(rig *r) {
    lg_backend_opt opt = r->budget.opt;
    opt.dist = &r->dist[0];
    return run_pairs(lg_ranks_ops(), r->part[0], &opt, false, &r->err[0]);
}

/* Several texts of one rank, whichever it is: each helper knows which rows give logits. */
static void test_sliced_pairs(void **state) {
    (void)state;
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    group_open_model(r, "tests/data/models/tiny-moe");
    group_fit(r, NULL);
    assert_int_equal(run_pairs(&group_cpu, r->all, &r->budget.opt, true, &r->err[0]), LG_OK);
    r->how = (lg_exchange_how){.answers = LG_DIVIDE_ON};
    r->lead = lead_pairs;
    group_open_ranks(r, 3, 83);
    group_run(r, LG_OK);
    assert_int_equal(r->n_sliced, 6);
    for (uint32_t i = 0; i < 6; i++) {
        const lg_sampled *a = &pairs[0][i / 2][i % 2], *g = &pairs[1][i / 2][i % 2];
        assert_int_equal(a->id, g->id);
        assert_memory_equal(&a->logprob, &g->logprob, sizeof a->logprob);
        assert_memory_equal(a->top, g->top, 3 * sizeof *a->top);
    }
    group_close_ranks(r);
    group_close_model(r);
    lg_mem_free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_bits),
        cmocka_unit_test(test_fp8_bits),
        cmocka_unit_test(test_bundled_bits),
        cmocka_unit_test(test_other_sums),
        cmocka_unit_test(test_dense_is_refused),
        cmocka_unit_test(test_divided),
        cmocka_unit_test(test_sliced),
        cmocka_unit_test(test_divided_by_threads),
        cmocka_unit_test(test_divided_where_it_pays),
        cmocka_unit_test(test_divided_slot_is_used_again),
        cmocka_unit_test(test_sliced_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
