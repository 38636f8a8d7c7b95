/* test_group_files.c - kept texts in files of every rank's own. */
#include "group_rig.h"
#include "kept_files.h"

#include <stdio.h>
#include <stdlib.h>

static void run_with_files(rig *r, uint32_t n_rank) {
    group_open_ranks(r, n_rank, 31);
    group_run(r, LG_AGAIN);
    group_expect_same(r);
    group_close_ranks(r);
}

/* Every rank keeps its texts in files of its own: a new group finds them again, and what is damaged is removed and computed. */
static void test_kept_in_files(void **state) {
    (void)state;
    char rank1[80];
    rig *r = lg_mem_alloc(sizeof *r);
    assert_non_null(r);
    group_open_model(r, "tests/data/models/tiny-moe");
    group_run_alone(r);
    snprintf(r->dir, sizeof r->dir, "/tmp/lignum-group-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    snprintf(rank1, sizeof rank1, "%s/rank-1", r->dir);
    run_with_files(r, 2);
    uint32_t n = kept_files(r->dir, 0), n1 = kept_files(rank1, 0);
    assert_true(n > 3 && n1 > 3);
    assert_int_equal(r->stats.n_file_written, n + n1);
    run_with_files(r, 2);
    assert_true(r->n_read[0] > 0 && r->n_read[1] > 0);
    assert_int_equal(r->stats.n_file_refused, 0);
    n1 = kept_files(rank1, 20); /* the head: found at the start */
    run_with_files(r, 2);
    assert_true(r->n_read[0] > 0);
    assert_true(r->stats.n_file_refused >= n1);
    n1 = kept_files(rank1, 300); /* ids: found when it is read */
    assert_true(n1 > 0);
    run_with_files(r, 2);
    assert_true(r->stats.n_file_refused > 0);
    run_with_files(r, 3); /* another number of ranks finds what its ranks have */
    assert_true(r->n_read[0] + r->n_read[1] > 0);
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", r->dir);
    assert_int_equal(system(command), 0);
    group_close_model(r);
    lg_mem_free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_in_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
