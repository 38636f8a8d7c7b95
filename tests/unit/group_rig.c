/* group_rig.c - see group_rig.h. */
#include "group_rig.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

const lg_backend_ops group_cpu = {.plan = lg_backend_plan_bytes,
                                  .open = lg_backend_open,
                                  .close = lg_backend_close,
                                  .step = lg_backend_step,
                                  .save = lg_backend_save,
                                  .load = lg_backend_load,
                                  .copy_page = lg_backend_copy_page};

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

/* ---- ranks ---- */

void group_fit(rig *r, const lg_dist *dist) {
    lg_options opt = {.n_ctx = 448, .n_seq = dist ? 3 : 6, .n_batch_tok = 40};
    lg_err err = {0};
    uint32_t n_token = lg_tokenizer_n_id(lg_text_tokenizer(r->text));
    if (n_token > r->all->cfg.n_vocab) n_token = r->all->cfg.n_vocab;
    if (lg_budget_fit_on(&r->all->cfg, &opt, 0, UINT64_C(300) << 20, false, n_token, 1,
                         dist ? lg_ranks_ops()->plan : group_cpu.plan, dist, NULL, &r->budget,
                         &err) != LG_OK)
        fail_msg("%s", err.msg);
    r->budget.opt.n_snap = 12;
}

lg_status group_open_engine(rig *r, const lg_weights *w, const lg_backend_ops *ops,
                            uint32_t n_owner, lg_engine **eng, lg_err *err) {
    lg_engine_parts parts = {.ops = ops,
                             .w = w,
                             .n_thread = r->n_thread ? r->n_thread : 1,
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

void group_rank(void *ctx, uint32_t rank) {
    rig *r = ctx;
    lg_engine *eng;
    if (rank > 0) {
        lg_backend_opt opt = r->budget.opt;
        lg_member_calls calls;
        lg_disk_rank *files = NULL;
        lg_pool *pool = NULL;
        if (r->n_thread > 1 && lg_pool_open(r->n_thread, &pool, &r->err[rank]) != LG_OK)
            fail_msg("%s", r->err[rank].msg);
        opt.dist = &r->dist[rank];
        if (r->dir[0] && lg_disk_rank_open(&opt, rank, &files, &calls, &r->err[rank]) != LG_OK)
            fail_msg("%s", r->err[rank].msg);
        r->status[rank] =
            lg_member_run(r->part[rank], &opt, pool, files ? &calls : NULL, &r->err[rank]);
        lg_disk_rank_close(&files);
        lg_pool_close(&pool);
        return;
    }
    if (r->lead) {
        r->status[0] = r->lead(r);
        return;
    }
    r->status[0] =
        group_open_engine(r, r->part[0], lg_ranks_ops(), r->n_rank, &eng, &r->err[0]);
    if (r->status[0] != LG_OK) return;
    r->status[0] = run_requests(r, eng, r->got);
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
void group_open_ranks(rig *r, uint32_t n_rank, uint64_t seed) {
    const lg_config *c = &r->all->cfg;
    size_t n = (size_t)c->n_layer * c->n_expert;
    uint64_t *sum = lg_mem_calloc(n * n_rank, sizeof *sum);
    lg_err err = {0};
    r->n_rank = n_rank;
    r->w = comm_threads_open(n_rank, r->n_node ? r->n_node : 1, (uint32_t)(seed % 3));
    r->place = random_place(c, n_rank, seed);
    for (uint32_t k = 0; k < n_rank; k++) {
        comm_threads_join(r->w, k, &r->comm[k]);
        r->dist[k] = (lg_dist){.comm = &r->comm[k],
                               .place = &r->place,
                               .how = r->how,
                               .n_divided = &r->n_divided,
                               .n_sliced = &r->n_sliced};
        lg_weights_part part = {holds, &r->dist[k]};
        if (lg_weights_open_part(r->path, &part, NULL, NULL, NULL, &r->part[k], &err) != LG_OK)
            fail_msg("%s", err.msg);
        lg_weights_sum_experts(r->part[k], NULL, NULL, sum + k * n);
        r->status[k] = LG_OK;
    }
    if (lg_place_verify(&r->place, sum, &err) != LG_OK) fail_msg("%s", err.msg);
    lg_mem_free(sum);
    group_fit(r, &r->dist[0]);
}

void group_close_ranks(rig *r) {
    for (uint32_t k = 0; k < r->n_rank; k++) {
        lg_comm_close(&r->comm[k]);
        lg_weights_close(&r->part[k]);
    }
    comm_threads_close(r->w);
    lg_place_fini(&r->place);
}

void group_run(rig *r, lg_status end) {
    comm_threads_run(r->n_rank, group_rank, r);
    assert_int_equal(r->status[0], end);
    for (uint32_t k = 1; k < r->n_rank; k++)
        if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
}

/* ---- a model, and one process ---- */

void group_open_model(rig *r, const char *name) {
    lg_err err = {0};
    *r = (rig){0};
    snprintf(r->path, sizeof r->path, "%s/%s", getenv("LG_SOURCE_DIR"), name);
    if (lg_weights_open(r->path, NULL, NULL, NULL, &r->all, &err) != LG_OK ||
        lg_text_open(r->path, &r->text, &err) != LG_OK)
        fail_msg("%s", err.msg);
}

void group_close_model(rig *r) {
    lg_weights_close(&r->all);
    lg_text_close(&r->text);
}

void group_run_alone(rig *r) {
    lg_engine *eng;
    lg_err err = {0};
    group_fit(r, NULL);
    if (group_open_engine(r, r->all, &group_cpu, 0, &eng, &err) != LG_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(run_requests(r, eng, r->alone), LG_AGAIN);
    lg_close(&eng);
}

void group_expect_same(const rig *r) {
    for (uint32_t i = 0; i < N_REQ; i++) {
        const outcome *a = &r->alone[i], *g = &r->got[i];
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
