/* test_pool.c - the pool runs every task once, with any number of threads, and sleeps when idle. */
#include "base/base.h"
#include "base/cpus.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define N_MOST 10000

typedef struct count {
    _Atomic int hit[N_MOST];
    _Atomic uint64_t sum;
    _Atomic int bad;
    int n_thread;
} count;

static void count_task(void *ctx, size_t task, int thread) {
    count *c = ctx;
    if (thread < 0 || thread >= c->n_thread) atomic_fetch_add(&c->bad, 1);
    atomic_fetch_add_explicit(&c->hit[task], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->sum, task + 1, memory_order_relaxed);
}

static count counter;

static void check_loop(lg_pool *pool, size_t n_task) {
    atomic_store(&counter.sum, 0);
    atomic_store(&counter.bad, 0);
    counter.n_thread = lg_pool_n_thread(pool);
    for (size_t i = 0; i < n_task; i++) atomic_store(&counter.hit[i], 0);
    lg_pool_run(pool, n_task, count_task, &counter);
    assert_int_equal(atomic_load(&counter.bad), 0);
    assert_int_equal(atomic_load(&counter.sum), (uint64_t)n_task * (n_task + 1) / 2);
    for (size_t i = 0; i < n_task; i++) assert_int_equal(atomic_load(&counter.hit[i]), 1);
}

static void test_every_task_runs_once(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 64, 1009, N_MOST};
    check_loop(NULL, 100);
    for (int n = 1; n <= 8; n++) {
        lg_pool *pool;
        assert_int_equal(lg_pool_open(n, &pool, NULL), LG_OK);
        assert_int_equal(lg_pool_n_thread(pool), n);
        for (size_t i = 0; i < LG_COUNT(sizes); i++) check_loop(pool, sizes[i]);
        lg_pool_close(&pool);
        assert_null(pool);
    }
    assert_int_equal(lg_mem_alive(), 0);
}

/* Many short loops, each reading what the one before wrote without any lock. */
typedef struct chain {
    uint64_t in[16], out[16];
} chain;

static void chain_task(void *ctx, size_t task, int thread) {
    chain *c = ctx;
    (void)thread;
    c->out[task] = c->in[(task + 1) % 16] + task;
}

static void test_short_loops_see_each_other(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n++) {
        lg_pool *pool;
        chain c = {{0}, {0}}, want = {{0}, {0}};
        assert_int_equal(lg_pool_open(n, &pool, NULL), LG_OK);
        for (int i = 0; i < 3000; i++) {
            lg_pool_run(pool, 16, chain_task, &c);
            lg_pool_run(NULL, 16, chain_task, &want);
            memcpy(c.in, c.out, sizeof c.in);
            memcpy(want.in, want.out, sizeof want.in);
            if (i % 500 == 0) lg_clock_sleep_us(200);
        }
        assert_memory_equal(&c, &want, sizeof c);
        lg_pool_close(&pool);
    }
}

static void nest_task(void *ctx, size_t task, int thread) {
    (void)thread;
    uint64_t *sum = ctx;
    chain c = {{0}, {0}};
    lg_pool_run(NULL, 16, chain_task, &c);
    for (int i = 0; i < 16; i++) sum[task] += c.out[i];
}

static void test_a_body_may_run_a_loop_of_its_own(void **state) {
    (void)state;
    lg_pool *pool;
    uint64_t sum[50] = {0};
    assert_int_equal(lg_pool_open(4, &pool, NULL), LG_OK);
    lg_pool_run(pool, 50, nest_task, sum);
    for (int i = 0; i < 50; i++) assert_int_equal(sum[i], 120);
    lg_pool_close(&pool);
}

static uint64_t used_us(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void test_idle_threads_use_no_processor(void **state) {
    (void)state;
    lg_pool *pool;
    assert_int_equal(lg_pool_open(8, &pool, NULL), LG_OK);
    check_loop(pool, 1000);
    uint64_t before = used_us();
    lg_clock_sleep_us(200000);
    assert_true(used_us() - before < 20000);
    check_loop(pool, 1000);
    lg_pool_close(&pool);
}

/* ---- memory nodes, pretended ---- */

/* Threads 0, 1, ... on nodes, whose system numbers have gaps. */
static const struct {
    int n_thread, n_node, node[7];
} topologies[] = {
    {1, 1, {5}},
    {2, 1, {3, 3}},
    {2, 2, {0, 1}},
    {4, 2, {2, 0, 2, 0}},
    {5, 2, {0, 0, 0, 0, 8}},
    {3, 3, {0, 1, 2}},
    {7, 3, {4, 4, 1, 1, 1, 7, 4}},
};

static lg_pool *open_nodes(size_t i) {
    lg_pool *pool;
    assert_int_equal(
        lg_pool_open_nodes(topologies[i].n_thread, topologies[i].node, &pool, NULL), LG_OK);
    assert_int_equal(lg_pool_n_node(pool), topologies[i].n_node);
    return pool;
}

/* The number that the pool gives the node of a thread. */
static int node_of(size_t i, int thread) {
    int n = 0;
    for (int t = 0; t <= thread; t++) {
        int same = 0;
        while (topologies[i].node[same] != topologies[i].node[t]) same++;
        if (same == t) n++;
        if (topologies[i].node[t] == topologies[i].node[thread]) return n - 1;
    }
    return -1;
}

static void check_parts(lg_pool *pool, const size_t *first, bool own_only) {
    size_t n_task = first[lg_pool_n_node(pool)];
    atomic_store(&counter.bad, 0);
    counter.n_thread = lg_pool_n_thread(pool);
    for (size_t i = 0; i < n_task; i++) atomic_store(&counter.hit[i], 0);
    lg_pool_run_parts(pool, first, own_only, count_task, &counter);
    assert_int_equal(atomic_load(&counter.bad), 0);
    for (size_t i = 0; i < n_task; i++) assert_int_equal(atomic_load(&counter.hit[i]), 1);
}

static void test_every_task_of_parts_runs_once(void **state) {
    (void)state;
    static const size_t sizes[][3] = {{0, 0, 0}, {1, 0, 0},    {0, 1, 0},    {0, 0, 1},
                                      {1, 1, 1}, {7, 300, 1},  {0, 1000, 0}, {64, 63, 65},
                                      {3, 0, 9}, {999, 1, 997}};
    for (size_t i = 0; i < LG_COUNT(topologies); i++) {
        lg_pool *pool = open_nodes(i);
        for (size_t k = 0; k < LG_COUNT(sizes); k++)
            for (int own_only = 0; own_only < 2; own_only++) {
                size_t first[4] = {0};
                for (int n = 0; n < 3; n++) first[n + 1] = first[n] + sizes[k][n];
                check_parts(pool, first, own_only);
                check_loop(pool, first[3]);
            }
        lg_pool_close(&pool);
    }
    const size_t alone[] = {0, 100};
    assert_int_equal(lg_pool_n_node(NULL), 1);
    check_parts(NULL, alone, true);
}

static void check_streams(lg_pool *pool, int n_node, const size_t *first) {
    size_t n_task = first[n_node];
    atomic_store(&counter.bad, 0);
    counter.n_thread = lg_pool_n_thread(pool);
    for (size_t i = 0; i < n_task; i++) atomic_store(&counter.hit[i], 0);
    lg_pool_run_streams(pool, n_node, first, count_task, &counter);
    assert_int_equal(atomic_load(&counter.bad), 0);
    for (size_t i = 0; i < n_task; i++) assert_int_equal(atomic_load(&counter.hit[i]), 1);
}

static void test_every_task_of_streams_runs_once(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 64, 1009, N_MOST};
    for (int n = 1; n <= 80; n += n < 8 ? 1 : 24) { /* more threads than runs, too */
        lg_pool *pool;
        assert_int_equal(lg_pool_open(n, &pool, NULL), LG_OK);
        for (size_t i = 0; i < LG_COUNT(sizes); i++)
            check_streams(pool, 1, (const size_t[]){0, sizes[i]});
        check_loop(pool, 100);
        lg_pool_close(&pool);
    }
    check_streams(NULL, 1, (const size_t[]){0, 100});
    for (size_t i = 0; i < LG_COUNT(topologies); i++) {
        lg_pool *pool = open_nodes(i);
        int n_node = topologies[i].n_node;
        for (size_t k = 0; k < LG_COUNT(sizes); k++) {
            size_t first[4] = {0};
            for (int n = 0; n < n_node; n++)
                first[n + 1] = first[n] + sizes[(k + (size_t)n) % 9];
            check_streams(pool, n_node, first);
            check_streams(pool, 1, (const size_t[]){0, sizes[k]});
        }
        lg_pool_close(&pool);
    }
}

/* More nodes than are told apart. */
static void test_many_nodes(void **state) {
    (void)state;
    int node[20];
    size_t first[LG_POOL_MAX_NODE + 1];
    lg_pool *pool;
    for (int t = 0; t < 20; t++) node[t] = 100 - t;
    assert_int_equal(lg_pool_open_nodes(20, node, &pool, NULL), LG_OK);
    assert_int_equal(lg_pool_n_node(pool), LG_POOL_MAX_NODE);
    for (size_t k = 0; k <= LG_POOL_MAX_NODE; k++) first[k] = k * 31;
    check_parts(pool, first, true);
    check_parts(pool, first, false);
    check_streams(pool, LG_POOL_MAX_NODE, first);
    lg_pool_close(&pool);
}

/* The first task of each thread; nobody goes on before all have one. */
typedef struct firsts {
    _Atomic int n_in;
    int n_thread;
    size_t task[7]; /* of each thread; SIZE_MAX: none yet */
} firsts;

static void first_task(void *ctx, size_t task, int thread) {
    firsts *f = ctx;
    if (f->task[thread] != SIZE_MAX) return;
    f->task[thread] = task;
    atomic_fetch_add(&f->n_in, 1);
    while (atomic_load(&f->n_in) < f->n_thread) lg_clock_sleep_us(50);
}

static void test_a_thread_begins_with_its_node(void **state) {
    (void)state;
    for (size_t i = 0; i < LG_COUNT(topologies); i++) {
        lg_pool *pool = open_nodes(i);
        for (int empty = -1; empty < topologies[i].n_node; empty++) {
            firsts f = {.n_thread = topologies[i].n_thread};
            size_t first[4] = {0};
            if (empty == 0 && topologies[i].n_node == 1) continue;
            for (int t = 0; t < 7; t++) f.task[t] = SIZE_MAX;
            for (int k = 0; k < topologies[i].n_node; k++)
                first[k + 1] = first[k] + (k == empty ? 0 : 7);
            lg_pool_run_parts(pool, first, false, first_task, &f);
            for (int t = 0; t < f.n_thread; t++) { /* those of an empty part help elsewhere */
                int k = node_of(i, t);
                assert_true(f.task[t] < first[topologies[i].n_node]);
                if (k == empty) continue;
                assert_true(f.task[t] >= first[k] && f.task[t] < first[k + 1]);
            }
        }
        lg_pool_close(&pool);
    }
}

/* Nine tasks for each thread: it begins with the first of its own, wherever its node's are. */
static void test_a_thread_begins_with_its_own_run(void **state) {
    (void)state;
    for (size_t i = 0; i < LG_COUNT(topologies); i++) {
        lg_pool *pool = open_nodes(i);
        int n_thread = topologies[i].n_thread, n_node = topologies[i].n_node, most = 0;
        int n_on[3] = {0};
        for (int t = 0; t < n_thread; t++)
            if (++n_on[node_of(i, t)] > most) most = n_on[node_of(i, t)];
        for (int nodes = 1; nodes <= n_node; nodes += n_node > 1 ? n_node - 1 : 1) {
            firsts f = {.n_thread = n_thread};
            int per = nodes > 1 ? most : n_thread, place[3] = {0};
            size_t first[4] = {0};
            for (int t = 0; t < 7; t++) f.task[t] = SIZE_MAX;
            for (int k = 0; k < nodes; k++) first[k + 1] = first[k] + 9 * (size_t)per;
            lg_pool_run_streams(pool, nodes, first, first_task, &f);
            for (int t = 0; t < n_thread; t++) {
                int k = nodes > 1 ? node_of(i, t) : 0;
                int run = nodes > 1 ? place[k]++ * most / n_on[k] : t;
                assert_int_equal(f.task[t], first[k] + 9 * (size_t)run);
            }
        }
        lg_pool_close(&pool);
    }
}

static void slow_task(void *ctx, size_t task, int thread) {
    int *by = ctx;
    by[task] = thread;
    lg_clock_sleep_us(300);
}

static void test_own_only_leaves_the_rest_to_the_caller(void **state) {
    (void)state;
    const size_t first[] = {0, 50, 51, 51};
    for (size_t i = 0; i < LG_COUNT(topologies); i++) {
        int by[51];
        lg_pool *pool = open_nodes(i);
        if (topologies[i].n_node > 1) {
            lg_pool_run_parts(pool, first, true, slow_task, by);
            for (int task = 0; task < 51; task++)
                assert_true(by[task] == 0 || node_of(i, by[task]) == task / 50);
        }
        lg_pool_close(&pool);
    }
}

static void test_node_of_a_processor(void **state) {
    (void)state;
    static const char *const folders[] = {"cpu0",          "cpu0/topology", "cpu0/node0",
                                          "cpu12",         "cpu12/nodes",   "cpu12/node31",
                                          "cpu12/cpufreq", "cpu3"};
    char sys[] = "/tmp/lignum-cpu-XXXXXX", path[64];
    assert_non_null(mkdtemp(sys));
    for (size_t i = 0; i < LG_COUNT(folders); i++) {
        snprintf(path, sizeof path, "%s/%s", sys, folders[i]);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    assert_int_equal(lg_cpus_node(sys, 0), 0);
    assert_int_equal(lg_cpus_node(sys, 12), 31);
    assert_int_equal(lg_cpus_node(sys, 3), 0); /* says nothing */
    assert_int_equal(lg_cpus_node(sys, 1), 0); /* is not there */
    for (size_t i = LG_COUNT(folders); i-- > 0;) {
        snprintf(path, sizeof path, "%s/%s", sys, folders[i]);
        assert_int_equal(rmdir(path), 0);
    }
    assert_int_equal(rmdir(sys), 0);
    int cpu[LG_CPUS_MAX], n = lg_cpus_list(cpu, LG_CPUS_MAX, NULL);
    for (int i = 0; i < n; i++) assert_true(lg_cpus_node(NULL, cpu[i]) >= 0);
}

/* ---- signals ---- */

static volatile sig_atomic_t n_signal;

static void on_signal(int sig) {
    (void)sig;
    n_signal++;
}

/* A signal that the program holds back waits for it; no worker takes it away. */
static void test_workers_take_no_signals(void **state) {
    (void)state;
    lg_pool *pool;
    sigset_t held, before, waiting;
    struct sigaction counting = {.sa_handler = on_signal}, old;
    sigaction(SIGUSR1, &counting, &old);
    assert_int_equal(lg_pool_open(4, &pool, NULL), LG_OK);
    check_loop(pool, 1000);
    sigemptyset(&held);
    sigaddset(&held, SIGUSR1);
    sigprocmask(SIG_BLOCK, &held, &before);
    n_signal = 0;
    kill(getpid(), SIGUSR1);
    check_loop(pool, 1000);
    lg_clock_sleep_us(20000);
    assert_int_equal(n_signal, 0);
    sigpending(&waiting);
    assert_true(sigismember(&waiting, SIGUSR1));
    sigprocmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(n_signal, 1);
    lg_pool_close(&pool);
    sigaction(SIGUSR1, &old, NULL);
}

static void test_bad_counts_and_no_memory(void **state) {
    (void)state;
    lg_pool *pool;
    lg_err err;
    assert_int_equal(lg_pool_open(-1, &pool, &err), LG_E_ARG);
    assert_int_equal(lg_pool_open(1025, &pool, &err), LG_E_ARG);
    lg_mem_fail_at(1);
    assert_int_equal(lg_pool_open(2, &pool, &err), LG_E_NOMEM);
    assert_null(pool);
    lg_pool_close(&pool);
}

static void test_default_is_cores_within_quota(void **state) {
    (void)state;
    int cpu[LG_CPUS_MAX], n_core = 0, n = lg_cpus_list(cpu, LG_CPUS_MAX, &n_core);
    cpu_set_t set[LG_CPUS_MAX / CPU_SETSIZE];
    memset(set, 0, sizeof set);
    assert_int_equal(sched_getaffinity(0, sizeof set, set), 0);
    assert_int_equal(n, CPU_COUNT_S(sizeof set, set));
    assert_true(n_core >= 1 && n_core <= n);
    for (int i = 0; i < n; i++) {
        assert_true(CPU_ISSET_S((size_t)cpu[i], sizeof set, set));
        CPU_CLR_S((size_t)cpu[i], sizeof set, set); /* so that a second one is noticed */
    }
    int n_thread = lg_pool_default_n_thread();
    assert_true(n_thread >= 1 && n_thread <= n_core && n_thread <= lg_cpus_quota());
    assert_int_equal(lg_cpus_quota_of("max 100000\n"), LG_CPUS_MAX);
    assert_int_equal(lg_cpus_quota_of("350000 100000\n"), 3);
    assert_int_equal(lg_cpus_quota_of("50000 100000\n"), 1);
    assert_int_equal(lg_cpus_quota_of(""), LG_CPUS_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_runs_once),
        cmocka_unit_test(test_short_loops_see_each_other),
        cmocka_unit_test(test_a_body_may_run_a_loop_of_its_own),
        cmocka_unit_test(test_idle_threads_use_no_processor),
        cmocka_unit_test(test_every_task_of_parts_runs_once),
        cmocka_unit_test(test_every_task_of_streams_runs_once),
        cmocka_unit_test(test_many_nodes),
        cmocka_unit_test(test_a_thread_begins_with_its_node),
        cmocka_unit_test(test_a_thread_begins_with_its_own_run),
        cmocka_unit_test(test_own_only_leaves_the_rest_to_the_caller),
        cmocka_unit_test(test_node_of_a_processor),
        cmocka_unit_test(test_workers_take_no_signals),
        cmocka_unit_test(test_bad_counts_and_no_memory),
        cmocka_unit_test(test_default_is_cores_within_quota),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
