/* test_stage.c - how matrix products are cut into tasks: every panel once for each row, and no task of two memory nodes' panels.
 *
 * The products are only noted, not computed, and the nodes are pretended (lg_pool_open_nodes). */
#include "base/base.h"

#include "backend/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <cmocka.h>

#define N_NOTE 4096

/* One product: which panels of which matrix for how many rows, and the thread, numbered as they come. */
typedef struct note {
    const lg_mat *w;
    uint32_t panel0, n_panel, n_row, thread;
} note;

static struct {
    note note[N_NOTE];
    _Atomic uint32_t n, n_thread;
    uint32_t wait_for; /* threads that must have come before a first product ends */
} notes;
static uint32_t n_run;
static _Thread_local uint32_t my_run, my_number; /* the run that this thread has a number for */

static const struct {
    int n_thread, n_node, node[4];
} topologies[] = {
    {1, 1, {0}}, {2, 1, {0, 0}}, {2, 2, {0, 1}}, {4, 2, {0, 0, 0, 1}}, {3, 3, {0, 1, 2}}};

static lg_pool *open_pool(size_t i) {
    lg_pool *pool;
    assert_int_equal(
        lg_pool_open_nodes(topologies[i].n_thread, topologies[i].node, &pool, NULL), LG_OK);
    assert_int_equal(lg_pool_n_node(pool), topologies[i].n_node);
    return pool;
}

static void note_gemm(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const float *x,
                      size_t ld_x, const uint32_t *row_idx, uint32_t n_row, float *y,
                      size_t ld_y) {
    (void)x, (void)ld_x, (void)row_idx, (void)y, (void)ld_y;
    uint32_t i = atomic_fetch_add(&notes.n, 1);
    if (i >= N_NOTE) return;
    if (my_run != n_run) {
        my_run = n_run;
        my_number = atomic_fetch_add(&notes.n_thread, 1);
    }
    notes.note[i] = (note){w, panel0, n_panel, n_row, my_number};
    while (atomic_load(&notes.n_thread) < notes.wait_for) lg_clock_sleep_us(50);
}

static void run_noted(lg_backend *be, lg_cpu_gemm *job, uint32_t n_job, uint32_t wait_for) {
    memset(&notes, 0, sizeof notes);
    notes.wait_for = wait_for;
    n_run++;
    lg_cpu_gemm_run(be, job, n_job);
    assert_true(notes.n > 0 && notes.n <= N_NOTE);
}

static int node_of_panel(const lg_mat *w, uint32_t panel, int n_node) {
    int node = 0;
    while (panel >= lg_pool_share(lg_mat_n_panel(w), node + 1, n_node)) node++;
    return node;
}

/* Every panel once for each row, and no product of two nodes' panels. */
static void expect_cut(const lg_cpu_gemm *job, uint32_t n_job, int n_node) {
    for (uint32_t j = 0; j < n_job; j++) {
        const lg_mat *w = job[j].w;
        uint32_t seen[40] = {0};
        assert_true(lg_mat_n_panel(w) <= LG_COUNT(seen));
        for (uint32_t i = 0; i < notes.n; i++) {
            const note *a = &notes.note[i];
            if (a->w != w) continue;
            uint32_t last = a->panel0 + a->n_panel - 1;
            assert_true(a->n_panel > 0 && last < lg_mat_n_panel(w));
            assert_int_equal(node_of_panel(w, a->panel0, n_node),
                             node_of_panel(w, last, n_node));
            for (uint32_t p = a->panel0; p <= last; p++) seen[p] += a->n_row;
        }
        for (uint32_t p = 0; p < lg_mat_n_panel(w); p++) {
            bool has =
                !job[j].sliced || (p >= job[j].panel0 && p < job[j].panel0 + job[j].n_panel);
            assert_int_equal(seen[p], has ? job[j].n_row : 0);
        }
    }
}

static void test_tasks_stay_within_a_node(void **state) {
    static const uint32_t n_out[] = {1, 15, 16, 17, 33, 160, 511, 640}, n_row[] = {0, 1, 7, 65};
    static float none[1];
    (void)state;
    for (size_t p = 0; p < LG_COUNT(topologies); p++) {
        lg_pool *pool = open_pool(p);
        lg_kern kern = *lg_kern_level("ref");
        kern.gemm = note_gemm;
        lg_backend be = {.kern = &kern, .pool = pool, .n_thread = lg_pool_n_thread(pool)};
        for (uint32_t n_in = 8; n_in <= 2048; n_in *= 256) /* on the caller, on the pool */
            for (size_t i = 1; i < LG_COUNT(n_row); i++) {
                lg_mat w[LG_COUNT(n_out)];
                lg_cpu_gemm job[LG_COUNT(n_out)];
                for (size_t j = 0; j < LG_COUNT(n_out); j++) {
                    w[j] = (lg_mat){.type = LG_F32, .n_out = n_out[j], .n_in = n_in};
                    job[j] = (lg_cpu_gemm){
                        .w = &w[j], .x = none, .n_row = n_row[(i + j) % 4], .y = none};
                }
                run_noted(&be, job, LG_COUNT(n_out), 0);
                expect_cut(job, LG_COUNT(n_out), lg_pool_n_node(pool));
                for (uint32_t part = 0; part < 3; part++) { /* slices of them, some empty */
                    for (size_t j = 0; j < LG_COUNT(n_out); j++) {
                        uint32_t n = lg_mat_n_panel(&w[j]);
                        job[j].sliced = j != 3;
                        job[j].panel0 = n * part / 3;
                        job[j].n_panel = n * (part + 1) / 3 - job[j].panel0;
                    }
                    run_noted(&be, job, LG_COUNT(n_out), 0);
                    expect_cut(job, LG_COUNT(n_out), lg_pool_n_node(pool));
                }
            }
        lg_pool_close(&pool);
    }
}

/* What a thread takes first are panels of its node, when nobody goes on before all have some. */
static void test_threads_begin_with_their_panels(void **state) {
    (void)state;
    lg_kern kern = *lg_kern_level("ref");
    kern.gemm = note_gemm;
    for (size_t p = 0; p < LG_COUNT(topologies); p++) {
        int n = topologies[p].n_thread;
        if (topologies[p].n_node < n) continue;
        lg_pool *pool = open_pool(p);
        lg_backend be = {.kern = &kern, .pool = pool, .n_thread = n};
        lg_mat w = {.type = LG_F32, .n_out = 517, .n_in = 4096};
        lg_cpu_gemm job = {.w = &w, .n_row = 3};
        bool node[3] = {false}, thread[3] = {false};
        run_noted(&be, &job, 1, (uint32_t)n);
        expect_cut(&job, 1, n);
        for (uint32_t i = 0; i < notes.n; i++) { /* the first of each thread */
            const note *a = &notes.note[i];
            if (thread[a->thread]) continue;
            int k = node_of_panel(&w, a->panel0, n);
            assert_false(node[k]);                              /* nobody else began there */
            if (a->thread == my_number) assert_int_equal(k, 0); /* the caller's node */
            node[k] = thread[a->thread] = true;
        }
        lg_pool_close(&pool);
    }
}

/* A head's columns are divided while that keeps more threads busy: times of one head, of which a sixth is repeated in each part. */
static void test_parts_of_heads(void **state) {
    static const struct {
        uint32_t n_head, dv, parts;
        int n_thread;
        double time;
    } rows[] = {{32, 128, 1, 1, 32},
                {32, 128, 1, 16, 2},
                {32, 128, 2, 24, 3 * 7 / 12.},
                {32, 128, 2, 64, 7 / 12.},
                {32, 128, 4, 128, 3 / 8.},
                {4, 128, 4, 16, 3 / 8.},
                {5, 128, 2, 16, 7 / 12.},
                {2, 128, 8, 16, 1 / 6. + 5 / 48.},
                {1, 128, 8, 128, 1 / 6. + 5 / 48.},
                {1, 32, 2, 128, 7 / 12.},
                {1, 16, 1, 128, 1},
                {3, 5, 1, 128, 1}};
    (void)state;
    for (size_t i = 0; i < LG_COUNT(rows); i++) {
        double time = 0;
        assert_int_equal(lg_cpu_gdn_parts(rows[i].n_head, rows[i].n_thread, rows[i].dv, &time),
                         rows[i].parts);
        assert_true(time > rows[i].time - 1e-9 && time < rows[i].time + 1e-9);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_of_heads),

        cmocka_unit_test(test_tasks_stay_within_a_node),
        cmocka_unit_test(test_threads_begin_with_their_panels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
