/* test_pool.c - the pool runs every task once, with any number of threads, and sleeps when idle. */
#include "base/base.h"
#include "base/cpus.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/resource.h>
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
        cmocka_unit_test(test_workers_take_no_signals),
        cmocka_unit_test(test_bad_counts_and_no_memory),
        cmocka_unit_test(test_default_is_cores_within_quota),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
