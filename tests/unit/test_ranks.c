/* test_ranks.c - ranks open a model together: what must be the same is compared, and what differs is named on all of them.
 *
 * Ranks are threads, each with a folder of its own, one of which is damaged; and the file that says how often experts are
 * used. */
#include "comm_threads.h"
#include "fixture.h"

#include "base/num.h"
#include "engine/expert_load.h"
#include "engine/ranks.h"
#include "model/file/safetensors.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define MODEL   "models/tiny-qwen35moe"
#define N_RANK  3
#define N_EXTRA 16 /* every rank holds every expert: 16 replicas' checksums are compared */

typedef struct rig {
    comm_world *w;
    char path[N_RANK][300];
    lg_ranks_opt opt;
    lg_kv_type kv[N_RANK];
    const char *pack_dir;
    lg_status status[N_RANK];
    lg_err err[N_RANK];
    uint32_t n_token, token[32]; /* of rank 0's answer */
} rig;

/* A few greedy tokens of one prompt. */
static void answer(lg_engine *eng, rig *r) {
    uint32_t ids[30];
    lg_err err;
    uint64_t id;
    lg_event e;
    for (uint32_t i = 0; i < 30; i++) ids[i] = 300 + 7 * i;
    lg_request req = {.ids = ids, .n_id = 30, .max_tokens = 20};
    lg_params_init(eng, &req.params);
    req.params.temperature = 0;
    req.params.ignore_eos = true;
    assert_int_equal(lg_submit(eng, &req, &id, &err), LG_OK);
    while (lg_step(eng) == LG_OK)
        while (lg_next_event(eng, &e) == LG_OK)
            if (e.kind == LG_EVENT_TOKEN) r->token[r->n_token++] = e.token;
}

static void rank_body(void *ctx, uint32_t rank) {
    rig *r = ctx;
    lg_comm c;
    lg_options o;
    lg_engine *eng = NULL;
    lg_options_init(&o);
    o.model_path = r->path[rank];
    o.memory_bytes = UINT64_C(300) << 20;
    o.n_ctx = 256;
    o.n_seq = 6;
    o.n_thread = 1;
    o.kv = r->kv[rank];
    o.pack_dir = r->pack_dir;
    comm_threads_join(r->w, rank, &c);
    c.timeout_us = 0; /* as MPI's is while loading */
    assert_int_equal(lg_ranks_join_comm(&c, &r->opt, &o.ranks, &r->err[rank]), LG_OK);
    if (rank) {
        r->status[rank] = lg_ranks_serve(o.ranks, &o, &r->err[rank]);
    } else {
        r->status[0] = lg_open(&o, &eng, &r->err[0]);
        if (r->status[0] == LG_OK) {
            lg_info info;
            lg_get_info(eng, &info);
            assert_int_equal(info.n_seq, 6); /* two on each rank */
            answer(eng, r);
        }
        lg_close(&eng);
    }
    lg_ranks_leave(&o.ranks, false);
}

static rig *open_rig(uint32_t n_extra) {
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    r->opt.n_extra = n_extra;
    r->w = comm_threads_open(N_RANK, 1, 0);
    for (uint32_t k = 0; k < N_RANK; k++)
        lg_fixture_source(MODEL, r->path[k], sizeof r->path[k]);
    return r;
}

static void run(rig *r) {
    comm_threads_run(N_RANK, rank_body, r);
}

static void close_rig(rig **r) {
    comm_threads_close((*r)->w);
    LG_FREE(*r);
}

static void test_all_agree(void **state) {
    (void)state;
    rig *alone = open_rig(0), *r = open_rig(2);
    lg_options o;
    lg_engine *eng = NULL;
    lg_err err = {0};
    lg_options_init(&o);
    o.model_path = alone->path[0];
    o.n_ctx = 256;
    o.n_thread = 1;
    o.memory_bytes = UINT64_C(300) << 20;
    assert_int_equal(lg_open(&o, &eng, &err), LG_OK);
    answer(eng, alone);
    lg_close(&eng);
    run(r);
    for (uint32_t k = 0; k < N_RANK; k++)
        if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
    assert_int_equal(r->n_token, 20);
    assert_memory_equal(r->token, alone->token, sizeof r->token);
    close_rig(&r);
    close_rig(&alone);
}

/* Files in a folder; `last`: remove them and it. */
static uint32_t n_file(const char *dir, bool last) {
    uint32_t n = 0;
    char path[800];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (last) unlink(path);
    }
    if (d) closedir(d);
    if (last) rmdir(dir);
    return n;
}

/* Ranks of one machine share one file of packed weights, those of another have their own; a second start maps them, and
 * where none can be written everybody packs for himself. */
static void test_one_file_for_a_machine(void **state) {
    (void)state;
    lg_fixture f;
    rig *alone = open_rig(0);
    lg_fixture_init(&f, MODEL);
    run(alone);
    for (int i = 0; i < 4; i++) {
        rig *r = open_rig(2);
        char dir[400];
        snprintf(dir, sizeof dir, i == 3 ? "%s/none/none" : "%s/pack%d", f.path, i == 2);
        r->pack_dir = dir;
        comm_threads_close(r->w);
        r->w = comm_threads_open(N_RANK, i == 2 ? N_RANK : 1, 0);
        run(r);
        for (uint32_t k = 0; k < N_RANK; k++)
            if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
        assert_memory_equal(r->token, alone->token, sizeof r->token);
        assert_int_equal(n_file(dir, i > 0), i == 3 ? 0 : i == 2 ? N_RANK : 1);
        close_rig(&r);
    }
    close_rig(&alone);
    lg_fixture_fini(&f);
}

/* Spans of all ranks in one file, whose clocks are one here: a chunk under way lies inside its step. */
static void test_trace(void **state) {
    (void)state;
    static const char *const name[] = {"step",    "rows",    "shared expert", "sort",
                                       "experts", "combine", "sums",          "wait"};
    char path[] = "/tmp/lignum-trace-XXXXXX", text[80];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    rig *r = open_rig(0);
    r->opt.how.kind = LG_EXCHANGE_REDUCE;
    r->opt.trace_path = path;
    run(r);
    for (uint32_t k = 0; k < N_RANK; k++)
        if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    static char data[4 << 20];
    data[fread(data, 1, sizeof data - 1, f)] = 0;
    fclose(f);
    unlink(path);
    for (uint32_t k = 0; k < N_RANK; k++)
        for (size_t i = 0; i < LG_COUNT(name); i++) {
            snprintf(text, sizeof text, "\"ph\": \"X\", \"name\": \"%s\", \"pid\": %u,",
                     name[i], k);
            if (!strstr(data, text)) fail_msg("no %s of rank %u", name[i], k);
        }
    assert_null(strstr(data, "\"ts\": -1000")); /* no clock is off by a second and more */
    close_rig(&r);
}

/* How often experts were chosen is the same whatever carries the rows: each rank counts its own. */
static void test_load_of_all_ranks(void **state) {
    (void)state;
    static float load[4][16];
    for (int kind = LG_EXCHANGE_STRICT; kind <= LG_EXCHANGE_ALLTOALL;
         kind += LG_EXCHANGE_ALLTOALL) {
        rig *r = open_rig(0);
        lg_fixture f;
        lg_err err = {0};
        char path[400];
        lg_fixture_init(&f, MODEL);
        snprintf(path, sizeof path, "%s/load.json", f.path);
        r->opt.how.kind = (lg_exchange_kind)kind;
        r->opt.load_out_path = path;
        run(r);
        for (uint32_t k = 0; k < N_RANK; k++)
            if (r->status[k] != LG_OK) fail_msg("rank %u: %s", k, r->err[k].msg);
        if (lg_expert_load_read(path, 4, 16, &load[0][0], &err) != LG_OK)
            fail_msg("%s", err.msg);
        for (int l = 0; l < 4; l++) {
            float sum = 0;
            for (int e = 0; e < 16; e++) sum += load[l][e];
            assert_int_equal(sum, (30 + 19) * 4); /* rows computed, 4 experts each */
        }
        close_rig(&r);
        lg_fixture_fini(&f);
    }
}

/* Rank 1 alone finds something; everybody says it. */
static void expect_all(rig *r, lg_status st, const char *part) {
    run(r);
    for (uint32_t k = 0; k < N_RANK; k++) {
        assert_int_equal(r->status[k], st);
        if (!strstr(r->err[k].msg, part))
            fail_msg("rank %u: %s: expected %s", k, r->err[k].msg, part);
    }
    close_rig(&r);
}

/* Flip one bit of a tensor's byte `at` in rank 1's copy of the model. */
static void damage(rig *r, lg_fixture *f, const char *tensor, size_t at) {
    lg_tensors *set = NULL;
    lg_fixture_init(f, MODEL);
    lg_buf file = lg_fixture_read(f, "model.safetensors");
    assert_int_equal(lg_st_open(f->path, &set, NULL), LG_OK);
    const lg_view *v = lg_tensors_find(set, tensor);
    assert_true(v && v->len_bytes > at + 64);
    char *found = memmem(file.data, file.len_bytes, v->data + at, 64);
    assert_non_null(found);
    assert_null(memmem(found + 1, file.len_bytes - (size_t)(found + 1 - (char *)file.data),
                       v->data + at, 64));
    *found ^= 1;
    lg_tensors_close(&set);
    lg_fixture_write(f, "model.safetensors", file.data, file.len_bytes);
    lg_buf_fini(&file);
    snprintf(r->path[1], sizeof r->path[1], "%s", f->path);
}

static void test_another_expert(void **state) {
    (void)state;
    rig *r = open_rig(N_EXTRA);
    lg_fixture f;
    damage(r, &f, "model.layers.2.mlp.experts.down_proj", 70000);
    expect_all(r, LG_E_FORMAT, "rank 1: layer 2, expert ");
    lg_fixture_fini(&f);
}

static void test_another_router(void **state) {
    (void)state;
    rig *r = open_rig(0);
    lg_fixture f;
    damage(r, &f, "model.layers.1.mlp.gate.weight", 100);
    expect_all(r, LG_E_FORMAT, "rank 1: its weights (those that every rank has) differ");
    lg_fixture_fini(&f);
}

static void test_another_model(void **state) {
    (void)state;
    rig *r = open_rig(0);
    lg_fixture_source("tests/data/models/tiny-moe", r->path[1], sizeof r->path[1]);
    expect_all(r, LG_E_FORMAT, "rank 1: its model is not that of rank 0");
}

static void test_no_model(void **state) {
    (void)state;
    rig *r = open_rig(0);
    lg_fixture f;
    lg_fixture_init(&f, MODEL);
    lg_fixture_remove(&f, "config.json");
    snprintf(r->path[2], sizeof r->path[2], "%s", f.path);
    expect_all(r, LG_E_IO, "config.json");
    lg_fixture_fini(&f);
}

static void test_another_kv(void **state) {
    (void)state;
    rig *r = open_rig(0);
    r->kv[1] = LG_KV_Q8_0;
    expect_all(r, LG_E_ARG, "rank 1: --kv is not that of rank 0");
}

static void test_strict_floats(void **state) {
    (void)state;
    rig *r = open_rig(0);
    r->opt.how.wire = LG_WIRE_Q8;
    expect_all(r, LG_E_ARG, "--wire q8: the strict exchange sends floats");
}

static void test_dense(void **state) {
    (void)state;
    rig *r = open_rig(0);
    for (uint32_t k = 0; k < N_RANK; k++)
        lg_fixture_source("tests/data/models/tiny-dense", r->path[k], sizeof r->path[k]);
    expect_all(r, LG_E_UNSUPPORTED, "no experts");
}

/* ---- the file of loads ---- */

static void test_expert_load(void **state) {
    (void)state;
    lg_fixture f;
    char path[400];
    uint64_t n[6] = {0, 1, 2, UINT64_C(1) << 40, 4, 5};
    float got[6];
    lg_err err = {0};
    lg_fixture_init(&f, MODEL);
    snprintf(path, sizeof path, "%s/load.json", f.path);
    assert_int_equal(lg_expert_load_write(path, 2, 3, n, &err), LG_OK);
    assert_int_equal(lg_expert_load_read(path, 2, 3, got, &err), LG_OK);
    for (int i = 0; i < 6; i++) assert_true(got[i] == (float)n[i]);
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"{}", "found 0 layers"},
        {"{\"load\": [[1, 2, 3]]}", "found 1 layers, expected 2"},
        {"{\"load\": [[1, 2, 3], [1, 2, 3], [1, 2, 3]]}", "more than the model's 2 layers"},
        {"{\"load\": [[1, 2, 3], [1, 2]]}", "layer 1: found 2 numbers"},
        {"{\"load\": [[1, 2, 3], [1, 2, 3, 4]]}", "at place 3"},
        {"{\"load\": [[1, -2, 3], [1, 2, 3]]}", "\"-2\" at place 1"},
        {"{\"load\": [[1, 1e39, 3], [1, 2, 3]]}", "at place 1"},
        {"{\"load\": [[1, \"2\", 3], [1, 2, 3]]}", "at place 1"},
        {"{\"load\": [1, 2]}", "layer 0: found 0"},
        {"[", "byte"},
    };
    for (size_t i = 0; i < LG_COUNT(bad); i++) {
        lg_fixture_write(&f, "load.json", bad[i].text, strlen(bad[i].text));
        assert_int_equal(lg_expert_load_read(path, 2, 3, got, &err), LG_E_FORMAT);
        if (!strstr(err.msg, bad[i].part)) fail_msg("%s: expected %s", err.msg, bad[i].part);
    }
    lg_fixture_remove(&f, "load.json");
    assert_int_equal(lg_expert_load_read(path, 2, 3, got, &err), LG_E_IO);
    assert_int_equal(lg_expert_load_write("/no/such/folder/load", 2, 3, n, &err), LG_E_IO);
    lg_fixture_fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_agree),      cmocka_unit_test(test_load_of_all_ranks),
        cmocka_unit_test(test_another_expert), cmocka_unit_test(test_another_router),
        cmocka_unit_test(test_another_model),  cmocka_unit_test(test_no_model),
        cmocka_unit_test(test_dense),          cmocka_unit_test(test_one_file_for_a_machine),
        cmocka_unit_test(test_trace),          cmocka_unit_test(test_another_kv),
        cmocka_unit_test(test_strict_floats),  cmocka_unit_test(test_expert_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
