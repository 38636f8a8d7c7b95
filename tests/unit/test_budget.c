/* test_budget.c - pool sizes within a budget, and what the machine has. */
#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

/* 1 MiB a page, 2 MiB a slot, 64 KiB of scratch a row. */
static void plan(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                 lg_backend_plan *p) {
    (void)cfg;
    (void)n_thread;
    p->page_bytes = MIB;
    p->slot_bytes = 2 * MIB;
    p->scratch_bytes = opt->max_tok * (MIB / 16);
}

static lg_status fit(lg_options opt, uint64_t weights_mib, uint64_t mib, bool roomy,
                     lg_budget *b, lg_err *err) {
    lg_config cfg = {.n_ctx_max = 32768};
    return lg_budget_fit(&cfg, &opt, weights_mib * MIB, mib * MIB, roomy, 100, 1, plan, b, err);
}

static void expect(lg_options opt, uint64_t weights_mib, uint64_t mib, bool roomy,
                   uint32_t n_ctx, uint32_t n_seq, uint32_t n_page) {
    lg_budget b;
    lg_err err = {0};
    if (fit(opt, weights_mib, mib, roomy, &b, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_int_equal(b.n_ctx, n_ctx);
    assert_int_equal(b.opt.n_slot, n_seq);
    assert_int_equal(b.opt.max_seq, n_seq);
    assert_int_equal(b.opt.max_out, n_seq);
    assert_in_range(b.opt.n_page, n_page, n_page + 2); /* what our tables leave of 3 MiB */
    assert_true(b.opt.max_tok >= n_seq);
    assert_true(weights_mib * MIB + b.state_bytes + b.scratch_bytes <= mib * MIB);
    /* Two contexts of ids for each slot, and the largest lists that one may bring. */
    assert_true(b.request_bytes >= 8 * (uint64_t)n_seq * n_ctx +
                                       LG_MAX_STOP * 5 * LG_MAX_STOP_BYTES +
                                       LG_MAX_BIAS * sizeof(lg_bias));
    assert_true(b.request_bytes <= b.state_bytes);
}

static void test_everything_fits_where_there_is_room(void **state) {
    (void)state;
    expect((lg_options){0}, 100, 100000, false, 32768, 64, 64 * 512);
    /* Half of what weights, scratch (32), slots (128), our tables (a little above 16) and requests (17) leave, and
     * requests take 47 more of it; a 64th of what is more than one context is for guides. */
    expect((lg_options){0}, 1000, 11180, true, 32768, 64, 4945 - (4945 - 512) / 64);
    expect((lg_options){.n_ctx = 100, .n_seq = 3}, 100, 1000, false, 100, 3, 6);
    expect((lg_options){.n_batch_tok = 5}, 100, 100000, false, 32768, 5, 5 * 512);
    expect((lg_options){.n_seq = 600, .n_ctx = 64}, 100, 100000, false, 64, 600, 600);
}

static void test_what_was_not_asked_for_gives_way(void **state) {
    (void)state;
    /* 512 pages + 32 scratch + 2 a slot, tables below 3, requests as much */
    expect((lg_options){0}, 100, 100 + 512 + 32 + 8 * 2 + 6, false, 32768, 8, 512);
    expect((lg_options){0}, 100, 100 + 256 + 32 + 8 * 2 + 5, false, 16384, 8, 256);
    expect((lg_options){0}, 100, 100 + 64 + 32 + 2 * 2 + 3, false, 4096, 2, 64);
    expect((lg_options){0}, 100, 100 + 4 + 32 + 1 * 2 + 1, false, 256, 1, 4);
    expect((lg_options){.n_ctx = 32768}, 100, 100 + 512 + 32 + 2 + 2, false, 32768, 1, 512);
    expect((lg_options){.n_seq = 64}, 100, 100 + 64 + 32 + 128 + 6, false, 4096, 64, 64);
}

static void test_too_little_memory_names_the_numbers(void **state) {
    (void)state;
    lg_budget b;
    lg_err err = {0};
    assert_int_equal(fit((lg_options){0}, 2048, 1024, false, &b, &err), LG_E_NOMEM);
    assert_non_null(strstr(err.msg, "weights 2.000"));
    assert_non_null(strstr(err.msg, "budget 1.000 GiB"));
    assert_null(strstr(err.msg, "--ctx"));
    const char *m = strstr(err.msg, "--memory ");
    assert_non_null(m);
    uint64_t would = strtoull(m + 9, NULL, 10);
    expect((lg_options){0}, 2048, would, false, 256, 1, 4);
    assert_int_equal(fit((lg_options){0}, 2048, would - 2, false, &b, &err), LG_E_NOMEM);

    assert_int_equal(fit((lg_options){.n_ctx = 32768, .n_seq = 4}, 100, 400, false, &b, &err),
                     LG_E_NOMEM);
    const char *c = strstr(err.msg, "--ctx ");
    assert_non_null(c);
    uint32_t ctx = (uint32_t)strtoul(c + 6, NULL, 10);
    expect((lg_options){.n_ctx = ctx, .n_seq = 4}, 100, 400, false, ctx, 4, ctx / 64);
    assert_int_equal(
        fit((lg_options){.n_ctx = ctx + 64, .n_seq = 4}, 100, 400, false, &b, &err),
        LG_E_NOMEM);
    print_message("%s\n", err.msg);
}

static void test_contradictions_are_refused(void **state) {
    (void)state;
    lg_budget b;
    lg_err err;
    static const struct {
        lg_options opt;
        const char *field;
    } bad[] = {{{.n_ctx = 1}, "n_ctx"},       {{.n_ctx = 32769}, "n_ctx"},
               {{.n_seq = 4097}, "n_seq"},    {{.n_batch_tok = 65537}, "n_batch_tok"},
               {{.kv = (lg_kv_type)5}, "kv"}, {{.n_batch_tok = 4, .n_seq = 5}, "n_batch_tok"}};
    for (size_t i = 0; i < LG_COUNT(bad); i++) {
        assert_int_equal(fit(bad[i].opt, 1, 100000, false, &b, &err), LG_E_ARG);
        assert_memory_equal(err.msg, bad[i].field, strlen(bad[i].field));
    }
}

/* The same with snapshots of 2 MiB. */
static void plan_snap(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                      lg_backend_plan *p) {
    plan(cfg, opt, n_thread, p);
    p->snap_bytes = 2 * MIB;
}

static lg_status fit_snap(lg_options opt, uint64_t mib, lg_budget *b, lg_err *err) {
    lg_config cfg = {.n_ctx_max = 32768};
    opt.n_ctx = 4096;
    opt.n_seq = 4;
    return lg_budget_fit(&cfg, &opt, 100 * MIB, mib * MIB, false, 100, 1, plan_snap, b, err);
}

static void test_snapshots_are_in_the_budget(void **state) {
    (void)state;
    lg_budget b;
    lg_err err = {0};
    /* weights 100, scratch 32, slots 8, a context of 64 pages: a quarter of the rest is for snapshots */
    for (uint64_t mib = 207; mib < 3000; mib += 17) {
        assert_int_equal(fit_snap((lg_options){0}, mib, &b, &err), LG_OK);
        assert_true(100 * MIB + b.state_bytes + b.scratch_bytes <= mib * MIB);
        assert_true(b.opt.n_page >= 64 && b.opt.n_snap <= 256);
        if (mib > 300 && mib < 1000)
            assert_in_range(b.opt.n_snap, (mib - 206) * 31 / 256 - 2, (mib - 204) / 8);
    }
    assert_int_equal(b.opt.n_snap, 256);
    assert_true(b.opt.n_page > 256); /* more than the running sequences can use */
    assert_int_equal(fit_snap((lg_options){.no_cache = true}, 3000, &b, &err), LG_OK);
    assert_int_equal(b.opt.n_snap, 0);
    assert_int_equal(b.opt.n_page, 256);
    assert_int_equal(fit_snap((lg_options){.cache_bytes = 101 * MIB}, 400, &b, &err), LG_OK);
    assert_int_equal(b.opt.n_snap, 50);
    assert_true(100 * MIB + b.state_bytes + b.scratch_bytes <= 400 * MIB);
    assert_int_equal(fit_snap((lg_options){.cache_bytes = MIB}, 400, &b, &err), LG_E_ARG);
    assert_memory_equal(err.msg, "cache_bytes", 11);
    assert_int_equal(fit_snap((lg_options){.cache_bytes = 300 * MIB}, 400, &b, &err),
                     LG_E_NOMEM);
    assert_int_equal(
        fit_snap((lg_options){.cache_bytes = MIB, .no_cache = true}, 400, &b, &err), LG_E_ARG);
}

/* ---- the machine, as files below a folder ---- */

static char root[64];

static void put(const char *path, const char *text) {
    char full[256];
    snprintf(full, sizeof full, "%s/", root);
    for (const char *p = path; *p; p++) {
        if (*p == '/') mkdir(full, 0700);
        size_t n = strlen(full);
        full[n] = *p;
        full[n + 1] = 0;
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_root(void **state) {
    (void)state;
    strcpy(root, "/tmp/lignum-budget-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state) {
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", root);
    return system(cmd);
}

static void test_the_machine_without_cgroups(void **state) {
    (void)state;
    assert_int_equal(lg_budget_machine(root), 0);
    put("proc/meminfo", "MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n");
    assert_int_equal(lg_budget_machine(root), 1000 * 1024 - 1000 * 1024 / 10);
    put("proc/self/cgroup", "0::/\n");
    assert_int_equal(lg_budget_machine(root), 921600);
}

static void test_cgroup_two_and_all_above_it(void **state) {
    (void)state;
    put("proc/meminfo", "MemAvailable: 1000 kB\n");
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_int_equal(lg_budget_machine(root), 921600);
    put("sys/fs/cgroup/a/memory.max", "500000\n");
    put("sys/fs/cgroup/a/memory.current", "300000\n");
    put("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\n");
    assert_int_equal(lg_budget_machine(root), 270000);
    put("sys/fs/cgroup/a/b/memory.max", "1000\n");
    put("sys/fs/cgroup/a/b/memory.current", "2000\n");
    assert_int_equal(lg_budget_machine(root), 0);
    put("proc/self/cgroup", "0::/gone/elsewhere\n"); /* inside a container: the root is ours */
    put("sys/fs/cgroup/memory.max", "400000\n");
    assert_int_equal(lg_budget_machine(root), 360000);
}

static void test_cgroup_one(void **state) {
    (void)state;
    put("proc/meminfo", "MemAvailable: 1000 kB\n");
    put("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/a\n0::/\n");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "600000\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "200000\n");
    put("sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 100000\n");
    assert_int_equal(lg_budget_machine(root), 450000);
}

int main(void) {
#define ROOT(name) cmocka_unit_test_setup_teardown(name, make_root, drop_root)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_fits_where_there_is_room),
        cmocka_unit_test(test_what_was_not_asked_for_gives_way),
        cmocka_unit_test(test_too_little_memory_names_the_numbers),
        cmocka_unit_test(test_contradictions_are_refused),
        cmocka_unit_test(test_snapshots_are_in_the_budget),
        ROOT(test_the_machine_without_cgroups),
        ROOT(test_cgroup_two_and_all_above_it),
        ROOT(test_cgroup_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
