/* test_group.c - an engine over ranks: the same ids and the same bits as one rank alone, whatever the number of ranks, the
 * placement of experts and the replicas.
 *
 * Ranks are threads with their own part of the weights.  Requests sample with every parameter there is, share beginnings,
 * come in waves and are cancelled; what is compared is every id and every reported log-probability.  tests/e2e/test_ranks.py does
 * the like with processes over MPI. */
#include "comm_threads.h"

#include "backend/group/group.h"
#include "base/clock.h"
#include "base/num.h"
#include "engine/engine.h"
#include "model/text/text.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_REQ    24
#define MAX_NEW  20
#define MAX_RANK 4

typedef struct outcome {
    uint32_t n, id[MAX_NEW];
    float logprob[MAX_NEW];
    lg_top top[MAX_NEW][3];
    uint32_t n_cached;
    bool done;
    lg_finish finish;
} outcome;

typedef struct rig {
    char path[600];
    lg_weights *all; /* every expert */
    lg_text *text;
    uint32_t n_rank, n_node;
    lg_exchange_how how;
    uint64_t seed;
    comm_world *w;
    lg_place place;
    lg_comm comm[MAX_RANK];
    lg_weights *part[MAX_RANK];
    lg_dist dist[MAX_RANK];
    lg_budget budget;
    lg_status status[MAX_RANK];
    lg_err err[MAX_RANK];
    uint64_t n_hit, n_divided;
    bool swap; /* run_swapped instead of requests */
    lg_sampled swapped;
    outcome got[N_REQ];
    char dir[64]; /* kept texts in files; "": none */
    lg_stats stats;
    uint64_t n_read[MAX_RANK]; /* tokens that came from the files of each rank */
    uint32_t n_step;           /* > 0: patterns of idleness instead of requests */
    uint32_t idle_us;          /* pause between two waves */
} rig;

static outcome alone[N_REQ];

static const lg_backend_ops cpu = {.plan = lg_backend_plan_bytes,
                                   .open = lg_backend_open,
                                   .close = lg_backend_close,
                                   .step = lg_backend_step,
                                   .save = lg_backend_save,
                                   .load = lg_backend_load,
                                   .copy_page = lg_backend_copy_page};
static const lg_backend_ops group = {.plan = lg_leader_plan_bytes,
                                     .open = lg_leader_open,
                                     .close = lg_leader_close,
                                     .step = lg_leader_step,
                                     .save = lg_leader_save,
                                     .load = lg_leader_load,
                                     .copy_page = lg_leader_copy_page,
                                     .get_page = lg_leader_get_page,
                                     .put_page = lg_leader_put_page,
                                     .get_snap = lg_leader_get_snap,
                                     .put_snap = lg_leader_put_snap,
                                     .call = lg_leader_call};

/* ---- requests ---- */

static void submit(lg_engine *eng, uint32_t n_vocab, uint32_t i, outcome *o) {
    uint32_t ids[400], n_shared = i % 3 * 70 + 20, n = n_shared + 1 + i * 7 % 60;
    lg_bias bias[2] = {{i % n_vocab, 3.0f}, {n_vocab / 2, -5.0f}};
    lg_err err = {0};
    uint64_t id;
    for (uint32_t k = 0; k < n; k++)
        ids[k] = (uint32_t)(lg_num_rng(k < n_shared ? i % 4 : 1000 + i, 0, k, 0) % n_vocab);
    lg_request req = {.ids = ids, .n_id = n, .max_tokens = 1 + i % MAX_NEW, .user = o};
    lg_params_init(eng, &req.params);
    req.params.ignore_eos = true;
    req.params.n_top = 3;
    req.params.has_seed = true;
    req.params.seed = 77 + i;
    req.params.temperature = i % 4 ? 0.7f : 0.0f;
    req.params.top_p = 0.95f;
    req.params.top_k = i % 5 * 10;
    req.params.presence_penalty = i % 2 ? 0.5f : 0.0f;
    req.params.frequency_penalty = i % 3 ? 0.25f : 0.0f;
    req.params.repetition_penalty = i % 4 == 1 ? 1.2f : 1.0f;
    if (i % 3 == 1) {
        req.bias = bias;
        req.n_bias = 2;
    }
    *o = (outcome){0};
    if (lg_submit(eng, &req, &id, &err) != LG_OK) fail_msg("%s", err.msg);
    if (i % 9 == 8) lg_cancel(eng, id);
}

static void fetch(lg_engine *eng) {
    lg_event e;
    while (lg_next_event(eng, &e) == LG_OK) {
        outcome *o = e.user;
        if (e.kind == LG_EVENT_DONE) {
            o->done = true;
            o->finish = e.finish;
            o->n_cached = e.n_cached;
            continue;
        }
        o->id[o->n] = e.token;
        o->logprob[o->n] = e.logprob;
        assert_int_equal(e.n_top, 3);
        memcpy(o->top[o->n++], e.top, 3 * sizeof *e.top);
    }
}

/* Three waves, so that later ones find kept beginnings; single steps in between. */
static lg_status run_requests(rig *r, lg_engine *eng, outcome *out) {
    lg_status st = LG_OK;
    for (uint32_t wave = 0; wave < 3 && st >= 0; wave++) {
        for (uint32_t i = wave * N_REQ / 3; i < (wave + 1) * N_REQ / 3 && st >= 0; i++) {
            submit(eng, r->all->cfg.n_vocab, i, &out[i]);
            if (i % 2) st = lg_step(eng);
            fetch(eng);
        }
        while (st >= 0 && (st = lg_step(eng)) == LG_OK) fetch(eng);
        fetch(eng);
        if (r->idle_us) lg_clock_sleep_us(r->idle_us);
    }
    return st;
}

/* ---- idle patterns ---- */

/* Steps of an engine whose load comes and goes: all idle, one token, one busy rank, cancel storms. */
static lg_status run_patterns(lg_engine *eng, uint32_t n_vocab, uint64_t seed,
                              uint32_t n_step) {
    static outcome many[64];
    uint64_t id[64];
    uint32_t n = 0, step = 0, ids[150];
    lg_status st = LG_OK;
    lg_event e;
    for (uint32_t turn = 0; step < n_step && st >= 0; turn++) {
        uint64_t x = lg_num_rng(seed, 0, turn, 0);
        uint32_t n_new = x % 8 < 4 ? 0 : x % 8 < 7 ? 1 : (uint32_t)(x >> 8) % 9;
        for (uint32_t i = 0; i < n_new; i++, n++) {
            uint64_t y = lg_num_rng(seed, 1, turn, i);
            uint32_t n_id =
                y % 5 == 0 ? 1 + (uint32_t)(y >> 8) % 150 : 1 + (uint32_t)(y >> 8) % 6;
            lg_err err;
            for (uint32_t k = 0; k < n_id; k++)
                ids[k] = (uint32_t)(lg_num_rng(seed, 2, n, k) % n_vocab);
            lg_request req = {.ids = ids,
                              .n_id = n_id,
                              .max_tokens = 1 + (uint32_t)(y >> 32) % 12,
                              .user = &many[n % 64]};
            lg_params_init(eng, &req.params);
            req.params.has_seed = true;
            req.params.seed = y;
            assert_int_equal(lg_submit(eng, &req, &id[n % 64], &err), LG_OK);
        }
        uint32_t n_run = (uint32_t)(x >> 40) % 6;
        for (uint32_t i = 0; i < n_run && st >= 0; i++) {
            st = lg_step(eng);
            step += st == LG_OK;
            while (lg_next_event(eng, &e) == LG_OK) continue;
        }
        if (x >> 56 < 8)
            for (uint32_t i = 0; i < 64 && i < n; i++) lg_cancel(eng, id[i]);
        if (x >> 48 & 1) lg_clock_sleep_us(x >> 49 & 1023);
    }
    while (st == LG_OK) {
        st = lg_step(eng);
        while (lg_next_event(eng, &e) == LG_OK) continue;
    }
    return st;
}

/* ---- ranks ---- */

static void fit(rig *r, const lg_dist *dist) {
    lg_options opt = {.n_ctx = 448, .n_seq = dist ? 3 : 6, .n_batch_tok = 40};
    lg_err err = {0};
    uint32_t n_token = lg_tokenizer_n_id(lg_text_tokenizer(r->text));
    if (n_token > r->all->cfg.n_vocab) n_token = r->all->cfg.n_vocab;
    if (lg_budget_fit_on(&r->all->cfg, &opt, 0, UINT64_C(300) << 20, false, n_token, 1,
                         dist ? group.plan : cpu.plan, dist, NULL, &r->budget, &err) != LG_OK)
        fail_msg("%s", err.msg);
    r->budget.opt.n_snap = 12;
}

static lg_status open_engine(rig *r, const lg_weights *w, const lg_backend_ops *ops,
                             uint32_t n_owner, lg_engine **eng, lg_err *err) {
    lg_engine_parts parts = {.ops = ops,
                             .w = w,
                             .n_thread = 1,
                             .tok = lg_text_tokenizer(r->text),
                             .name = "group",
                             .n_owner = n_owner,
                             .budget = r->budget};
    if (r->dir[0])
        parts.disk =
            (lg_disk_opt){.dir = r->dir, .limit_bytes = 1 << 28, .model = "m", .always = true};
    return lg_engine_open(&parts, eng, err);
}

static bool holds(const void *ctx, uint32_t layer, uint32_t e) {
    const lg_dist *d = ctx;
    return lg_place_holds(d->place, d->comm->rank, layer, e);
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

static void rank_body(void *ctx, uint32_t rank) {
    rig *r = ctx;
    lg_engine *eng;
    if (rank > 0) {
        lg_backend_opt opt = r->budget.opt;
        lg_member_calls calls;
        lg_disk_rank *files = NULL;
        opt.dist = &r->dist[rank];
        if (r->dir[0] && lg_disk_rank_open(&opt, rank, &files, &calls, &r->err[rank]) != LG_OK)
            fail_msg("%s", r->err[rank].msg);
        r->status[rank] =
            lg_member_run(r->part[rank], &opt, NULL, files ? &calls : NULL, &r->err[rank]);
        lg_disk_rank_close(&files);
        return;
    }
    if (r->swap) {
        lg_backend_opt opt = r->budget.opt;
        opt.dist = &r->dist[0];
        r->status[0] = run_swapped(&group, r->part[0], &opt, &r->swapped, &r->err[0]);
        return;
    }
    r->status[0] = open_engine(r, r->part[0], &group, r->n_rank, &eng, &r->err[0]);
    if (r->status[0] != LG_OK) return;
    r->status[0] = r->n_step ? run_patterns(eng, r->all->cfg.n_vocab, r->seed, r->n_step)
                             : run_requests(r, eng, r->got);
    for (uint32_t i = 0; r->dir[0] && i < r->n_rank; i++) {
        lg_disk_flush(eng->home[i].disk);
        r->n_read[i] = eng->home[i].disk->n_read_tok;
    }
    lg_get_stats(eng, &r->stats);
    r->n_hit = r->stats.n_hit_tok;
    lg_close(&eng);
}

static lg_place random_place(const lg_config *c, uint32_t n_rank, uint64_t seed) {
    static uint32_t n_holder[4096];
    static uint16_t holder[4096 * MAX_RANK];
    size_t n = (size_t)c->n_layer * c->n_expert, total = 0;
    assert_true(n <= LG_COUNT(n_holder));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = (uint32_t)(lg_num_rng(seed, 9, i, 0) % n_rank);
        n_holder[i] = 0;
        for (uint32_t k = 0; k < n_rank; k++)
            if (k == first || lg_num_rng(seed, 10, i, k) % 5 == 0) {
                holder[total++] = (uint16_t)k;
                n_holder[i]++;
            }
    }
    lg_place_opt o = {.n_rank = n_rank, .n_layer = c->n_layer, .n_expert = c->n_expert};
    lg_place p;
    assert_int_equal(lg_place_set(&p, &o, n_holder, holder, NULL), LG_OK);
    return p;
}

/* Load each rank's part; checksums of all of them must fit the placement. */
static void open_ranks(rig *r, uint32_t n_rank, uint64_t seed) {
    const lg_config *c = &r->all->cfg;
    size_t n = (size_t)c->n_layer * c->n_expert;
    uint64_t *sum = lg_mem_calloc(n * n_rank, sizeof *sum);
    lg_err err = {0};
    r->n_rank = n_rank;
    r->w = comm_threads_open(n_rank, r->n_node ? r->n_node : 1, (uint32_t)(seed % 3));
    r->place = random_place(c, n_rank, seed);
    for (uint32_t k = 0; k < n_rank; k++) {
        comm_threads_join(r->w, k, &r->comm[k]);
        r->dist[k] = (lg_dist){
            .comm = &r->comm[k], .place = &r->place, .how = r->how, .n_divided = &r->n_divided};
        lg_weights_part part = {holds, &r->dist[k]};
        if (lg_weights_open_part(r->path, &part, NULL, NULL, NULL, &r->part[k], &err) != LG_OK)
            fail_msg("%s", err.msg);
        lg_weights_sum_experts(r->part[k], NULL, NULL, sum + k * n);
        r->status[k] = LG_OK;
    }
    if (lg_place_verify(&r->place, sum, &err) != LG_OK) fail_msg("%s", err.msg);
    lg_mem_free(sum);
    fit(r, &r->dist[0]);
}

static void close_ranks(rig *r) {
    for (uint32_t k = 0; k < r->n_rank; k++) {
        lg_comm_close(&r->comm[k]);
        lg_weights_close(&r->part[k]);
    }
    comm_threads_close(r->w);
    lg_place_fini(&r->place);
}

/* ---- tests ---- */

static void open_model(rig *r, const char *name) {
    lg_err err = {0};
    *r = (rig){0};
    snprintf(r->path, sizeof r->path, "%s/%s", getenv("LG_SOURCE_DIR"), name);
    if (lg_weights_open(r->path, NULL, NULL, NULL, &r->all, &err) != LG_OK ||
        lg_text_open(r->path, &r->text, &err) != LG_OK)
        fail_msg("%s", err.msg);
}

static void close_model(rig *r) {
    lg_weights_close(&r->all);
    lg_text_close(&r->text);
}

static void run_alone(rig *r) {
    lg_engine *eng;
    lg_err err = {0};
    fit(r, NULL);
    if (open_engine(r, r->all, &cpu, 0, &eng, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_int_equal(run_requests(r, eng, alone), LG_AGAIN);
    lg_close(&eng);
}

static void expect_same(const rig *r) {
    for (uint32_t i = 0; i < N_REQ; i++) {
        const outcome *a = &alone[i], *g = &r->got[i];
        assert_true(a->done && g->done);
        if (i % 9 == 8) continue; /* cancelled at different points */
        assert_int_equal(a->finish, g->finish);
        if (a->n != g->n || memcmp(a->id, g->id, sizeof a->id) != 0 ||
            memcmp(a->logprob, g->logprob, sizeof a->logprob) != 0 ||
            memcmp(a->top, g->top, sizeof a->top) != 0)
            fail_msg("%s, %u ranks, seed %llu: request %u differs", r->path, r->n_rank,
                     (unsigned long long)r->seed, i);
    }
}

static void same_as_alone(const char *name, const uint32_t *n_rank, size_t n, uint64_t seed,
                          lg_exchange_how how) {
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    open_model(r, name);
    run_alone(r);
    r->how = how;
    for (size_t i = 0; i < n; i++) {
        r->seed = seed + i;
        r->n_divided = 0;
        open_ranks(r, n_rank[i], r->seed);
        comm_threads_run(r->n_rank, rank_body, r);
        assert_int_equal(r->status[0], LG_AGAIN);
        for (uint32_t k = 1; k < r->n_rank; k++)
            if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
        expect_same(r);
        assert_true(r->n_hit > 0);
        assert_int_equal(r->n_divided > 0, how.divide != LG_DIVIDE_OFF && r->n_rank > 1);
        close_ranks(r);
    }
    close_model(r);
    lg_mem_free(r);
}

/* Sums in another order: log-probabilities are close, and a greedy answer turns only where two ids are nearly tied. */
static void expect_near(const rig *r, uint32_t *n_same) {
    *n_same = 0;
    for (uint32_t i = 0; i < N_REQ; i++) {
        const outcome *a = &alone[i], *g = &r->got[i];
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
    open_model(r, "tests/data/models/tiny-moe");
    run_alone(r);
    for (size_t i = 0; i < LG_COUNT(kind); i++) {
        uint32_t n_same;
        r->how = kind[i].how;
        r->n_node = kind[i].n_node;
        open_ranks(r, kind[i].n_rank, 50 + i);
        comm_threads_run(r->n_rank, rank_body, r);
        assert_int_equal(r->status[0], LG_AGAIN);
        for (uint32_t k = 1; k < r->n_rank; k++)
            if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
        expect_near(r, &n_same);
        assert_true(n_same >= N_REQ * 2 / 3);
        close_ranks(r);
    }
    close_model(r);
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

static void test_divided(void **state) {
    (void)state;
    lg_exchange_how how = {.divide = LG_DIVIDE_ON, .divide_ctx = 448};
    same_as_alone("tests/data/models/tiny-moe", (uint32_t[]){2, 3, 4}, 3, 41, how);
    how.divide_ctx = 100; /* the rest is not divided */
    same_as_alone("models/tiny-qwen35moe", (uint32_t[]){3}, 1, 51, how);
}

/* Turn a bit in every file of a folder, or (at 0) none; returns how many there are. */
static uint32_t damage(const char *dir, long at) {
    uint32_t n = 0;
    DIR *d = opendir(dir);
    const struct dirent *e;
    assert_non_null(d);
    while ((e = readdir(d))) {
        char path[400];
        if (!strstr(e->d_name, ".kept")) continue;
        snprintf(path, sizeof path, "%s/%.40s", dir, e->d_name);
        n++;
        if (at == 0) continue;
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        int c = fgetc(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        assert_int_equal(fputc(c ^ 2, f), c ^ 2);
        assert_int_equal(fclose(f), 0);
    }
    closedir(d);
    return n;
}

static void run_with_files(rig *r, uint32_t n_rank) {
    open_ranks(r, n_rank, 31);
    comm_threads_run(r->n_rank, rank_body, r);
    assert_int_equal(r->status[0], LG_AGAIN);
    for (uint32_t k = 1; k < r->n_rank; k++)
        if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
    expect_same(r);
    close_ranks(r);
}

/* Every rank keeps its texts in files of its own: a new group finds them again, and what is damaged is removed and computed. */
static void test_kept_in_files(void **state) {
    (void)state;
    char rank1[80];
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    open_model(r, "tests/data/models/tiny-moe");
    run_alone(r);
    snprintf(r->dir, sizeof r->dir, "/tmp/lignum-group-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    snprintf(rank1, sizeof rank1, "%s/rank-1", r->dir);
    run_with_files(r, 2);
    uint32_t n = damage(r->dir, 0), n1 = damage(rank1, 0);
    assert_true(n > 3 && n1 > 3);
    assert_int_equal(r->stats.n_file_written, n + n1);
    run_with_files(r, 2);
    assert_true(r->n_read[0] > 0 && r->n_read[1] > 0);
    assert_int_equal(r->stats.n_file_refused, 0);
    n1 = damage(rank1, 20); /* the head: found at the start */
    run_with_files(r, 2);
    assert_true(r->n_read[0] > 0);
    assert_true(r->stats.n_file_refused >= n1);
    n1 = damage(rank1, 300); /* ids: found when it is read */
    assert_true(n1 > 0);
    run_with_files(r, 2);
    assert_true(r->stats.n_file_refused > 0);
    run_with_files(r, 3); /* another number of ranks finds what its ranks have */
    assert_true(r->n_read[0] + r->n_read[1] > 0);
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", r->dir);
    assert_int_equal(system(command), 0);
    close_model(r);
    lg_mem_free(r);
}

/* LG_GROUP_STEPS steps (300) over 4 ranks, each exchange in turn: nobody is left waiting. */
static void test_idle_patterns(void **state) {
    (void)state;
    const char *text = getenv("LG_GROUP_STEPS");
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    open_model(r, "tests/data/models/tiny-moe");
    for (int i = 0; i < 3; i++) {
        r->how = (lg_exchange_how){.kind = (lg_exchange_kind)i,
                                   .wire = i ? LG_WIRE_BF16 : LG_WIRE_F32};
        r->n_node = i ? 2 : 1;
        r->seed = 60 + (uint64_t)i;
        r->n_step = (text ? (uint32_t)atoi(text) : 300) / 3 + 1;
        open_ranks(r, 4, r->seed);
        for (uint32_t k = 0; k < 4; k++) r->comm[k].timeout_us = 30 * 1000000;
        comm_threads_run(r->n_rank, rank_body, r);
        assert_int_equal(r->status[0], LG_AGAIN);
        for (uint32_t k = 1; k < r->n_rank; k++)
            if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
        close_ranks(r);
    }
    close_model(r);
    lg_mem_free(r);
}

/* The group runs, rests, runs again; then a rank falls silent in the middle: every rank leaves within the time limit, and
 * every request has its end. */
static void lose_a_rank(lg_divide divide) {
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    open_model(r, "tests/data/models/tiny-moe");
    r->how = (lg_exchange_how){.divide = divide, .divide_ctx = 448};
    open_ranks(r, 3, 31);
    for (uint32_t k = 0; k < 3; k++) r->comm[k].timeout_us = 300000;
    comm_threads_mute(r->w, 2);
    uint64_t start = lg_clock_us();
    /* A member waits for plans without limit: only the leader and rank 2 are in the step to the end. */
    comm_threads_run(3, rank_body, r);
    assert_true(lg_clock_us() - start < 30 * 1000000);
    assert_int_equal(r->status[0], LG_E_BACKEND);
    assert_int_equal(r->status[1], LG_E_COMM);
    uint32_t n_error = 0;
    for (uint32_t i = 0; i < N_REQ; i++)
        n_error += r->got[i].done && r->got[i].finish == LG_FINISH_ERROR;
    assert_true(n_error > 0);
    if (!strstr(r->comm[0].why, "rank 2")) fail_msg("%s", r->comm[0].why);
    close_ranks(r);
    close_model(r);
    lg_mem_free(r);
}

static void test_a_rank_is_lost(void **state) {
    (void)state;
    lose_a_rank(LG_DIVIDE_OFF);
    lose_a_rank(LG_DIVIDE_ON);
}

/* Ranks without experts to share: refused with a reason. */
static void test_dense_is_refused(void **state) {
    (void)state;
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    open_model(r, "tests/data/models/tiny-dense");
    lg_comm c;
    lg_comm_self(&c);
    lg_dist dist = {.comm = &c};
    lg_backend_opt opt = {
        .n_slot = 1, .n_page = 4, .max_tok = 8, .max_seq = 1, .max_out = 1, .dist = &dist};
    lg_backend *be;
    lg_err err = {0};
    assert_int_equal(lg_backend_open(r->all, &opt, NULL, &be, &err), LG_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "without experts"));
    close_model(r);
    lg_mem_free(r);
}

/* The choice step by step: where messages cost nothing every long enough prompt is divided, where they take for ever none; the answers
 * are the same. */
static void test_divided_where_it_pays(void **state) {
    (void)state;
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    open_model(r, "tests/data/models/tiny-moe");
    run_alone(r);
    for (int slow = 0; slow < 2; slow++) {
        lg_way way = slow ? (lg_way){10, 10, 1} : (lg_way){0, 0, 1e18};
        r->how = (lg_exchange_how){
            .divide = LG_DIVIDE_AUTO, .divide_ctx = 448, .links = {.in = way, .out = way}};
        r->n_divided = 0;
        open_ranks(r, 3, 71);
        comm_threads_run(r->n_rank, rank_body, r);
        assert_int_equal(r->status[0], LG_AGAIN);
        expect_same(r);
        assert_int_equal(r->n_divided > 0, !slow);
        close_ranks(r);
    }
    close_model(r);
    lg_mem_free(r);
}

static void test_divided_slot_is_used_again(void **state) {
    (void)state;
    lg_sampled truth = {0};
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    open_model(r, "tests/data/models/tiny-moe");
    fit(r, NULL);
    assert_int_equal(run_swapped(&cpu, r->all, &r->budget.opt, &truth, &r->err[0]), LG_OK);
    r->how = (lg_exchange_how){.divide = LG_DIVIDE_ON, .divide_ctx = 448};
    r->swap = true;
    open_ranks(r, 3, 81);
    comm_threads_run(r->n_rank, rank_body, r);
    for (uint32_t k = 0; k < r->n_rank; k++)
        if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
    assert_int_equal(r->n_divided, 5);
    assert_int_equal(r->swapped.id, truth.id);
    assert_memory_equal(&r->swapped.logprob, &truth.logprob, sizeof truth.logprob);
    assert_memory_equal(r->swapped.top, truth.top, 3 * sizeof *truth.top);
    close_ranks(r);
    close_model(r);
    lg_mem_free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_bits),
        cmocka_unit_test(test_fp8_bits),
        cmocka_unit_test(test_bundled_bits),
        cmocka_unit_test(test_other_sums),
        cmocka_unit_test(test_idle_patterns),
        cmocka_unit_test(test_kept_in_files),
        cmocka_unit_test(test_a_rank_is_lost),
        cmocka_unit_test(test_dense_is_refused),
        cmocka_unit_test(test_divided),
        cmocka_unit_test(test_divided_where_it_pays),
        cmocka_unit_test(test_divided_slot_is_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
