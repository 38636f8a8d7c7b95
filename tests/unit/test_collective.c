/* test_collective.c - the hierarchical reduce-scatter: its text, its sums on 8 devices of XLA's CPU plugin, and what libtpu makes
 * of it for four chips. */
#include "backend/pjrt/step/collective.h"

#include "backend/pjrt/plugin/report.h"
#include "base/num.h"
#include "pjrt_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define N 8

/* Four chips in a square, two cores each; device i at place perm[i]. */
static void square(lg_pjrt_device_info *dev, const uint32_t *perm) {
    for (uint32_t i = 0; i < N; i++) {
        uint32_t at = perm ? perm[i] : i;
        dev[i] = (lg_pjrt_device_info){
            .id = (int)i, .coord = {at / 2 % 2, at / 4, 0}, .core = at % 2};
    }
}

static const uint32_t mixed[N] = {3, 0, 6, 5, 1, 7, 4, 2};

/* A program: x [N rows][cols] F32 -> the hierarchical reduce-scatter, the plain one. */
static void program(const lg_collective_plan *p, int64_t rows, int64_t cols, lg_hlo_dt wire,
                    bool both, lg_buf *text) {
    lg_hlo h;
    lg_err err;
    lg_hlo_val out[2];
    lg_hlo_init(&h);
    lg_hlo_val x = lg_hlo_arg(&h, LG_HLO_T(F32, N * rows, cols), LG_HLO_NO_ALIAS);
    out[0] = lg_collective_reduce_scatter(p, &h, x, wire);
    if (both) out[1] = lg_hlo_reduce_scatter(&h, x, N);
    if (lg_hlo_finish(&h, "sum", N, out, both ? 2 : 1, text, &err) != LG_OK)
        fail_msg("%s", err.msg);
    lg_hlo_fini(&h);
}

static void test_plan(void **state) {
    (void)state;
    lg_pjrt_device_info dev[N];
    lg_collective_plan p;
    lg_err err;
    square(dev, NULL);
    assert_int_equal(lg_collective_plan_make(&p, dev, N, &err), LG_OK);
    assert_int_equal(p.n_core_bit, 1);
    assert_int_equal(p.n_bit, 3);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(p.addr[i], i);
    square(dev, mixed);
    assert_int_equal(lg_collective_plan_make(&p, dev, N, &err), LG_OK);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(p.addr[i], mixed[i]);
    /* A hole in the box, two devices at one place, a side of three. */
    assert_int_equal(lg_collective_plan_make(&p, dev, N - 2, &err), LG_E_UNSUPPORTED);
    square(dev, NULL);
    dev[7] = dev[0];
    assert_int_equal(lg_collective_plan_make(&p, dev, N, &err), LG_E_UNSUPPORTED);
    for (int i = 0; i < 6; i++)
        dev[i] = (lg_pjrt_device_info){.coord = {i / 2, 0, 0}, .core = i % 2};
    assert_int_equal(lg_collective_plan_make(&p, dev, 6, &err), LG_E_UNSUPPORTED);
}

static uint32_t count_of(const char *text, const char *what) {
    uint32_t n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

/* One block: the cores' exchange, then two strips that take x and y in opposite orders. */
static void test_text(void **state) {
    (void)state;
    lg_pjrt_device_info dev[N];
    lg_collective_plan p;
    lg_buf text = {0};
    square(dev, NULL);
    assert_int_equal(lg_collective_plan_make(&p, dev, N, NULL), LG_OK);
    program(&p, 3, 37, LG_HLO_F32, false, &text);
    const char *s = lg_buf_str(&text);
    const char *core = "[[0, 1], [1, 0], [2, 3], [3, 2], [4, 5], [5, 4], [6, 7], [7, 6]]";
    const char *x = "[[0, 2], [1, 3], [2, 0], [3, 1], [4, 6], [5, 7], [6, 4], [7, 5]]";
    const char *y = "[[0, 4], [1, 5], [2, 6], [3, 7], [4, 0], [5, 1], [6, 2], [7, 3]]";
    assert_int_equal(count_of(s, "stablehlo.collective_permute"), 5);
    assert_int_equal(count_of(s, core), 1);
    assert_int_equal(count_of(s, x), 2);
    assert_int_equal(count_of(s, y), 2);
    const char *x1 = strstr(s, x), *y1 = strstr(s, y), *x2 = strstr(x1 + 1, x),
               *y2 = strstr(y1 + 1, y);
    assert_true(strstr(s, core) < x1 && x1 < y1 && y1 < y2 && y2 < x2);
    lg_buf_clear(&text);
    program(&p, 512, 64, LG_HLO_BF16, false, &text);
    assert_int_equal(count_of(lg_buf_str(&text), "stablehlo.collective_permute"), 8 * 5);
    lg_buf_fini(&text);
}

/* ---- On 8 devices of the CPU plugin ---- */

static lg_pjrt_plugin *plugin;
static lg_pjrt_client *client;

static int start(void **state) {
    (void)state;
    return pjrt_rig_open(&plugin, &client);
}

static int finish(void **state) {
    (void)state;
    pjrt_rig_close(&plugin, &client);
    return 0;
}

/* Whole numbers up to `whole`, whose sums are exact, or anything when 0: then within tol of the plain one. */
static void sums(const uint32_t *perm, int64_t rows, int64_t cols, lg_hlo_dt wire, int whole,
                 float tol) {
    lg_pjrt_device_info dev[N];
    lg_collective_plan p;
    lg_buf text = {0};
    lg_err err;
    lg_pjrt_exe *e;
    const lg_pjrt_compile how = {.n_replica = N, .n_partition = 1};
    const lg_pjrt_dims in = {LG_PJRT_F32, 2, {N * rows, cols}},
                       part = {LG_PJRT_F32, 2, {rows, cols}};
    size_t n_in = (size_t)(N * rows * cols), n_part = (size_t)(rows * cols);
    float *x = malloc(n_in * 4), *y[2] = {malloc(n_part * 4), malloc(n_part * 4)},
          *want = calloc(n_in, 4);
    lg_pjrt_buf *arg[N], *out[2 * N];
    assert_true(x && y[0] && y[1] && want);
    square(dev, perm);
    assert_int_equal(lg_collective_plan_make(&p, dev, N, NULL), LG_OK);
    program(&p, rows, cols, wire, true, &text);
    if (lg_pjrt_exe_compile(client, lg_buf_str(&text), text.len_bytes, &how, &e, &err) != LG_OK)
        fail_msg("%s", err.msg);
    for (uint32_t d = 0; d < N; d++) {
        for (size_t i = 0; i < n_in; i++) {
            float r = 2 * lg_num_rng_unit(3, d, i, 0) - 1;
            x[i] = whole ? (float)(int)(r * (float)whole) : r;
            want[i] += x[i];
        }
        if (lg_pjrt_buf_put(client, d, &in, x, &arg[d], &err) != LG_OK) fail_msg("%s", err.msg);
    }
    const lg_pjrt_call call = {.arg = arg, .n_arg = 1, .out = out};
    if (lg_pjrt_exe_run(e, &call, &err) != LG_OK) fail_msg("%s", err.msg);
    for (uint32_t d = 0; d < N; d++) {
        for (int k = 0; k < 2; k++)
            if (lg_pjrt_buf_get(client, out[d * 2 + (uint32_t)k], &part, y[k], &err) != LG_OK)
                fail_msg("%s", err.msg);
        if (whole) {
            assert_memory_equal(y[0], y[1], n_part * 4);
            assert_memory_equal(y[0], want + d * n_part, n_part * 4);
        }
        for (size_t i = 0; i < n_part; i++)
            if (!(y[0][i] - y[1][i] <= tol && y[1][i] - y[0][i] <= tol))
                fail_msg("device %u, %zu: %.9g, plain %.9g", d, i, (double)y[0][i],
                         (double)y[1][i]);
        for (int k = 0; k < 2; k++) lg_pjrt_buf_free(client, &out[d * 2 + (uint32_t)k]);
        lg_pjrt_buf_free(client, &arg[d]);
    }
    lg_pjrt_exe_close(&e);
    lg_buf_fini(&text);
    free(x);
    free(y[0]);
    free(y[1]);
    free(want);
}

static void test_sums(void **state) {
    (void)state;
    if (!client) {
        printf("XLA's CPU plugin is not there (make check-pjrt fetches it), or this is a "
               "sanitizer's build\n");
        skip();
    }
    sums(NULL, 3, 37, LG_HLO_F32, 1000, 0);
    sums(mixed, 1, 5, LG_HLO_F32, 1000, 0);
    sums(mixed, 33, 48, LG_HLO_BF16, 30,
         0); /* sums of 8 stay below 256: exact in BF16 too; two blocks */
    sums(mixed, 7, 1, LG_HLO_F32, 0, 2e-6f); /* one column: a strip is empty */
    sums(NULL, 33, 31, LG_HLO_BF16, 0, 0.06f);
}

/* ---- Compiled for four chips ---- */

typedef struct seen {
    uint32_t n[3], other;
} seen;

static void look(void *ctx, const lg_report_op *op) {
    seen *s = ctx;
    if (!lg_report_is(op, "collective-permute") &&
        !lg_report_is(op, "collective-permute-start")) {
        if (op->opcode_len >= 4 &&
            (!memcmp(op->opcode, "all-", 4) || !memcmp(op->opcode, "redu", 4)) &&
            !lg_report_is(op, "reduce"))
            s->other++;
        return;
    }
    bool axis[3] = {true, true, true};
    for (uint32_t i = 0; i < op->n_pair; i++)
        for (uint32_t b = 0; b < 3; b++)
            axis[b] &= op->pair[i][1] == (op->pair[i][0] ^ 1u << b);
    for (uint32_t b = 0; b < 3; b++) s->n[b] += axis[b] && op->n_pair == N;
    s->other += !(axis[0] || axis[1] || axis[2]);
}

static int compile_tpu(const char *path) {
    lg_pjrt_plugin *tpu;
    lg_pjrt_topo *t;
    lg_pjrt_device_info dev[N];
    lg_collective_plan p;
    lg_buf text = {0}, proto = {0};
    lg_pjrt_exe *e;
    lg_err err = {0};
    seen s = {0};
    const lg_pjrt_compile how = {.n_replica = N, .n_partition = 1};
    setenv("TPU_SKIP_MDS_QUERY", "1", 1);
    setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "true", 1);
    if (lg_pjrt_plugin_open(path, &tpu, &err) != LG_OK ||
        lg_pjrt_topo_open(tpu, "tpu7x:2x2x1", NULL, &t, &err) != LG_OK ||
        lg_pjrt_topo_n(t) != N) {
        printf("%s\n", err.msg);
        return 1;
    }
    for (uint32_t i = 0; i < N; i++) lg_pjrt_topo_info(t, i, &dev[i]);
    if (lg_collective_plan_make(&p, dev, N, &err) != LG_OK) return 2;
    program(&p, 40, 256, LG_HLO_BF16, false, &text);
    if (lg_pjrt_exe_compile_for(t, lg_buf_str(&text), text.len_bytes, &how, &e, &err) !=
            LG_OK ||
        lg_pjrt_exe_optimised(e, &proto, &err) != LG_OK ||
        lg_report_read(proto.data, proto.len_bytes, look, &s, &err) != LG_OK) {
        printf("%s\n", err.msg);
        return 3;
    }
    printf("tpu7x:2x2x1: collective-permutes between cores %u, along x %u, along y %u, other "
           "collectives %u\n",
           s.n[0], s.n[1], s.n[2], s.other);
    fflush(stdout);
    return s.n[0] == 2 && s.n[1] == 4 && s.n[2] == 4 && s.other == 0 ? 0 : 4;
}

/* In a process of its own: a compiler that does not like a program may end it. */
static void test_compiled(void **state) {
    (void)state;
    const char *path = pjrt_rig_path("tpu");
    if (!path) skip();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(compile_tpu(path));
    int status = 0;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_compiled),
        cmocka_unit_test_setup_teardown(test_sums, start, finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
