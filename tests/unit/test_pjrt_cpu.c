/* test_pjrt_cpu.c - the PJRT runtime layer on XLA's CPU plugin: what is only true when a true compiler says so. */
#include "backend/pjrt/be.h"
#include "backend/pjrt/plugin/aot.h"
#include "pjrt_rig.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define N_DEV 8

static lg_pjrt_plugin *plugin;
static lg_pjrt_client *client;
static const lg_pjrt_compile one = {.n_replica = 1, .n_partition = 1};

static int start(void **state) {
    (void)state;
    return pjrt_rig_open(&plugin, &client);
}

static int finish(void **state) {
    (void)state;
    pjrt_rig_close(&plugin, &client);
    return 0;
}

#define NEEDS_PLUGIN                                                                           \
    if (!client) {                                                                             \
        printf("XLA's CPU plugin is not there (make check-pjrt fetches it)\n");                \
        skip();                                                                                \
    }

/* A pool of 4 rows of 2: row `at` is replaced; also its sum. */
static const char step_text[] =
    "module @step {\n"
    "  func.func @main(%pool: tensor<4x2xf32> {tf.aliasing_output = 0 : i32}, %row: "
    "tensor<1x2xf32>, %at: tensor<i32>)\n"
    "      -> (tensor<4x2xf32>, tensor<f32>) {\n"
    "    %z = \"stablehlo.constant\"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>\n"
    "    %f = \"stablehlo.constant\"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>\n"
    "    %p = \"stablehlo.dynamic_update_slice\"(%pool, %row, %at, %z) : (tensor<4x2xf32>, "
    "tensor<1x2xf32>, tensor<i32>, "
    "tensor<i32>) -> tensor<4x2xf32>\n"
    "    %s = \"stablehlo.reduce\"(%p, %f) ({\n"
    "      ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n"
    "        %c = \"stablehlo.add\"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>\n"
    "        \"stablehlo.return\"(%c) : (tensor<f32>) -> ()\n"
    "      }) {dimensions = array<i64: 0, 1>} : (tensor<4x2xf32>, tensor<f32>) -> tensor<f32>\n"
    "    \"func.return\"(%p, %s) : (tensor<4x2xf32>, tensor<f32>) -> ()\n"
    "  }\n"
    "}\n";

/* Every device gives 3 x its argument, summed over all. */
static const char sum_text[] =
    "module @sum {\n"
    "  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n"
    "    %y = \"stablehlo.all_reduce\"(%x) ({\n"
    "      ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n"
    "        %c = \"stablehlo.add\"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>\n"
    "        \"stablehlo.return\"(%c) : (tensor<f32>) -> ()\n"
    "      }) {replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>} : "
    "(tensor<2xf32>) -> tensor<2xf32>\n"
    "    \"func.return\"(%y) : (tensor<2xf32>) -> ()\n"
    "  }\n"
    "}\n";

static const lg_pjrt_dims pool_dims = {LG_PJRT_F32, 2, {4, 2}},
                          row_dims = {LG_PJRT_F32, 2, {1, 2}}, scalar_i = {LG_PJRT_S32, 0, {0}},
                          scalar_f = {LG_PJRT_F32, 0, {0}}, pair = {LG_PJRT_F32, 1, {2}};

static lg_pjrt_buf *put(uint32_t device, const lg_pjrt_dims *d, const void *data) {
    lg_pjrt_buf *b;
    lg_err err;
    if (lg_pjrt_buf_put(client, device, d, data, &b, &err) != LG_OK) fail_msg("%s", err.msg);
    return b;
}

static void get(lg_pjrt_buf *b, const lg_pjrt_dims *d, void *to) {
    lg_err err;
    if (lg_pjrt_buf_get(client, b, d, to, &err) != LG_OK) fail_msg("%s", err.msg);
}

/* A pool stays on its device, at its place, over steps that are started without waiting. */
static void test_donation(void **state) {
    (void)state;
    NEEDS_PLUGIN
    lg_err err;
    lg_pjrt_exe *e;
    lg_pjrt_exe_memory m;
    if (lg_pjrt_exe_compile(client, step_text, strlen(step_text), &one, &e, &err) != LG_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(lg_pjrt_exe_n_out(e), 2);
    assert_int_equal(lg_pjrt_exe_memory_of(e, &m, &err), LG_OK);
    assert_int_equal(m.alias_bytes, 32);
    const float zero[8] = {0};
    lg_pjrt_buf *pool = put(0, &pool_dims, zero), *sum = NULL;
    uintptr_t address = lg_pjrt_buf_address(client, pool);
    assert_true(address != 0);
    for (int32_t i = 0; i < 4; i++) {
        const float row[2] = {(float)i, 1};
        lg_pjrt_buf *arg[3] = {pool, put(0, &row_dims, row), put(0, &scalar_i, &i)}, *out[2];
        const int64_t keep[] = {1, 2};
        const lg_pjrt_call call = {
            .arg = arg, .n_arg = 3, .keep = keep, .n_keep = 2, .out = out};
        if (lg_pjrt_exe_run(e, &call, &err) != LG_OK) fail_msg("%s", err.msg);
        assert_true(lg_pjrt_buf_is_deleted(client, pool));
        assert_false(lg_pjrt_buf_is_deleted(client, arg[1]));
        for (int k = 0; k < 3; k++) lg_pjrt_buf_free(client, &arg[k]);
        lg_pjrt_buf_free(client, &sum);
        pool = out[0];
        sum = out[1];
        assert_true(lg_pjrt_buf_address(client, pool) == address);
    }
    float total, rows[8];
    get(sum, &scalar_f, &total);
    get(pool, &pool_dims, rows);
    assert_true(total == 10);
    for (int i = 0; i < 4; i++) assert_true(rows[2 * i] == (float)i && rows[2 * i + 1] == 1);
    lg_pjrt_buf_free(client, &pool);
    lg_pjrt_buf_free(client, &sum);
    lg_pjrt_exe_close(&e);
}

static void test_replicas(void **state) {
    (void)state;
    NEEDS_PLUGIN
    lg_err err;
    lg_pjrt_exe *e;
    const lg_pjrt_compile how = {.n_replica = N_DEV, .n_partition = 1};
    assert_int_equal(lg_pjrt_client_n(client), N_DEV);
    if (lg_pjrt_exe_compile(client, sum_text, strlen(sum_text), &how, &e, &err) != LG_OK)
        fail_msg("%s", err.msg);
    lg_pjrt_buf *arg[N_DEV], *out[N_DEV];
    lg_pjrt_event *done[N_DEV];
    for (uint32_t d = 0; d < N_DEV; d++) {
        const float x[2] = {(float)d, 0.5f};
        arg[d] = put(d, &pair, x);
    }
    const lg_pjrt_call call = {.arg = arg, .n_arg = 1, .out = out, .done = done};
    if (lg_pjrt_exe_run(e, &call, &err) != LG_OK) fail_msg("%s", err.msg);
    for (uint32_t d = 0; d < N_DEV; d++) {
        float y[2];
        assert_int_equal(lg_pjrt_await(plugin, done[d], "run", &err), LG_OK);
        get(out[d], &pair, y);
        assert_true(y[0] == 28 && y[1] == 4);
        lg_pjrt_buf_free(client, &arg[d]);
        lg_pjrt_buf_free(client, &out[d]);
    }
    lg_pjrt_exe_close(&e);
}

static void test_stream(void **state) {
    (void)state;
    NEEDS_PLUGIN
    enum { N = 1000 };
    lg_err err;
    lg_pjrt_stream *s;
    lg_pjrt_buf *b;
    static uint16_t from[N], to[N];
    const lg_pjrt_dims d = {LG_PJRT_BF16, 2, {N / 8, 8}};
    for (int i = 0; i < N; i++) from[i] = (uint16_t)(i * 7);
    if (lg_pjrt_stream_open(client, 3, &d, &s, &err) != LG_OK) fail_msg("%s", err.msg);
    for (size_t at = 0; at < sizeof from; at += 300) {
        size_t n = sizeof from - at < 300 ? sizeof from - at : 300;
        assert_int_equal(lg_pjrt_stream_put(s, (const char *)from + at, n, &err), LG_OK);
    }
    if (lg_pjrt_stream_close(&s, &b, &err) != LG_OK) fail_msg("%s", err.msg);
    get(b, &d, to);
    assert_memory_equal(from, to, sizeof to);
    lg_pjrt_buf_free(client, &b);
}

static void test_errors(void **state) {
    (void)state;
    NEEDS_PLUGIN
    static const char bad[] = "module { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { "
                              "return %zz : tensor<4xf32> } }";
    lg_err err;
    lg_pjrt_exe *e;
    lg_pjrt_client *c;
    lg_pjrt_options o;
    assert_int_equal(lg_pjrt_exe_compile(client, bad, strlen(bad), &one, &e, &err),
                     LG_E_FORMAT);
    if (!strstr(err.msg, "undeclared SSA value name")) fail_msg("%s", err.msg);
    assert_int_equal(lg_pjrt_exe_compile(client, "", 0, &one, &e, &err), LG_E_FORMAT);
    assert_int_equal(lg_pjrt_options_parse("no_such_option=1", &o, &err), LG_OK);
    assert_int_equal(lg_pjrt_client_open(plugin, &o, &c, &err), LG_E_ARG);
    assert_non_null(strstr(err.msg, "no_such_option"));
}

/* A second compile reads the first one's file and computes the same. */
static void test_cache(void **state) {
    (void)state;
    NEEDS_PLUGIN
    char dir[] = "/tmp/lignum-pjrt-XXXXXX", file[512];
    lg_err err;
    lg_pjrt_exe *e;
    assert_non_null(mkdtemp(dir));
    lg_pjrt_cache k = {.dir = dir};
    for (int round = 0; round < 2; round++) {
        if (lg_pjrt_cache_compile(&k, client, step_text, strlen(step_text), &one, &e, &err) !=
            LG_OK)
            fail_msg("%s", err.msg);
        const float zero[8] = {0}, row[2] = {5, 6};
        const int32_t at = 2;
        lg_pjrt_buf *arg[3] = {put(0, &pool_dims, zero), put(0, &row_dims, row),
                               put(0, &scalar_i, &at)},
                    *out[2];
        const int64_t keep[] = {1, 2};
        const lg_pjrt_call call = {
            .arg = arg, .n_arg = 3, .keep = keep, .n_keep = 2, .out = out};
        if (lg_pjrt_exe_run(e, &call, &err) != LG_OK) fail_msg("%s", err.msg);
        float total;
        get(out[1], &scalar_f, &total);
        assert_true(total == 11);
        assert_true(lg_pjrt_buf_is_deleted(client, arg[0]));
        for (int i = 0; i < 3; i++) lg_pjrt_buf_free(client, &arg[i]);
        for (int i = 0; i < 2; i++) lg_pjrt_buf_free(client, &out[i]);
        lg_pjrt_exe_close(&e);
    }
    printf("kept programs: %u read, %u compiled%s\n", k.n_hit, k.n_miss,
           k.refused ? ", not possible" : "");
    assert_false(k.refused);
    assert_int_equal(k.n_hit, 1);
    assert_int_equal(k.n_miss, 1);
    DIR *d = opendir(dir);
    for (struct dirent *f; (f = readdir(d));)
        if (f->d_name[0] != '.') {
            snprintf(file, sizeof file, "%s/%s", dir, f->d_name);
            unlink(file);
        }
    closedir(d);
    rmdir(dir);
}

/* A program that gives its argument back in another order of axes: what is read from it is the same, and so is what a program
 * computes that takes it so. */
static void test_layout(void **state) {
    (void)state;
    NEEDS_PLUGIN
    static const char taker[] =
        "module @taker {\n"
        "  func.func @main(%x: tensor<2x3x5xf32> {mhlo.layout_mode = \"{1,2,0}\"}) -> "
        "tensor<2x3x5xf32> {\n"
        "    %y = \"stablehlo.add\"(%x, %x) : (tensor<2x3x5xf32>, tensor<2x3x5xf32>) -> "
        "tensor<2x3x5xf32>\n"
        "    \"func.return\"(%y) : (tensor<2x3x5xf32>) -> ()\n"
        "  }\n"
        "}\n";
    static const lg_pjrt_dims dims = {LG_PJRT_F32, 3, {2, 3, 5}};
    float x[30], y[30];
    lg_pjrt_exe *exe[2] = {NULL};
    lg_pjrt_buf *buf[3] = {NULL};
    lg_buf text = {0};
    lg_err err = {0};
    for (int i = 0; i < 30; i++) x[i] = (float)i;
    lg_pjrt_layout_text(&dims, "{1,2,0}", 1, &text);
    if (lg_pjrt_exe_compile(client, lg_buf_str(&text), text.len_bytes, &one, &exe[0], &err) ||
        lg_pjrt_exe_compile(client, taker, sizeof taker - 1, &one, &exe[1], &err) ||
        lg_pjrt_buf_put(client, 0, &dims, x, &buf[0], &err))
        fail_msg("%s", err.msg);
    for (int i = 0; i < 2; i++) {
        const lg_pjrt_call call = {.arg = &buf[i], .n_arg = 1, .out = &buf[i + 1]};
        if (lg_pjrt_exe_run(exe[i], &call, &err) ||
            lg_pjrt_buf_get(client, buf[i + 1], &dims, y, &err))
            fail_msg("%s", err.msg);
        for (int k = 0; k < 30; k++) assert_true(y[k] == (float)(1 + i) * x[k]);
    }
    for (int i = 0; i < 3; i++) lg_pjrt_buf_free(client, &buf[i]);
    for (int i = 0; i < 2; i++) lg_pjrt_exe_close(&exe[i]);
    lg_buf_fini(&text);
}

/* The program that lays a stack out for a TPU: libtpu takes it and makes one copy, from the layout that buffers come in to the other;
 * it needs no memory but its argument's and its result's. */
static void test_layout_for_tpu(void **state) {
    (void)state;
    static const lg_pjrt_dims stacks[] = {{LG_PJRT_BF16, 3, {15, 512, 4096}},
                                          {LG_PJRT_BF16, 3, {2, 64, 256}},
                                          {LG_PJRT_BF16, 4, {10, 8, 1024, 2048}}};
    const lg_pjrt_compile how = {.n_replica = 2, .n_partition = 1};
    const char *path = pjrt_rig_path("tpu");
    if (!path) skip();
    const lg_aot aot = {.plugin = path, .topology = "tpu7x:2x2x1"};
    for (size_t i = 0; i < LG_COUNT(stacks); i++) {
        lg_buf text = {0};
        lg_aot_result r;
        lg_err err = {0};
        int64_t bytes = (int64_t)lg_pjrt_dims_bytes(&stacks[i]);
        const char *tiles = stacks[i].rank == 3 ? LG_PJRT_TILES_3 : LG_PJRT_TILES_4;
        lg_pjrt_layout_text(&stacks[i], tiles, how.n_replica, &text);
        if (lg_aot_compile(&aot, &text, &how, 1, &r, &err) != LG_OK) fail_msg("%s", err.msg);
        printf("  %lld bytes: argument %lld, result %lld, temporary %lld; %u copies\n",
               (long long)bytes, (long long)r.memory.arg_bytes, (long long)r.memory.out_bytes,
               (long long)r.memory.temp_bytes, r.sum.n_copy);
        assert_true(r.memory.arg_bytes >= bytes && r.memory.out_bytes >= bytes);
        assert_true(r.memory.temp_bytes <= 1 << 20);
        assert_int_equal(r.memory.alias_bytes, 0);
        assert_int_equal(r.sum.n_copy, 1);
        lg_buf_fini(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_donation),       cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_stream),         cmocka_unit_test(test_errors),
        cmocka_unit_test(test_cache),          cmocka_unit_test(test_layout),
        cmocka_unit_test(test_layout_for_tpu),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
