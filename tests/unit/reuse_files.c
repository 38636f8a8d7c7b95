/* reuse_files.c - kept texts that come back from files are what they were, and files without state or pages show. */
#include "reuse_rig.h"

/* A folder for files of kept texts, empty again. */
static const char *fresh_dir(void) {
    static char dir[64];
    char command[128];
    if (dir[0]) {
        snprintf(command, sizeof command, "rm -rf %s", dir);
        assert_int_equal(system(command), 0);
    }
    snprintf(dir, sizeof dir, "/tmp/lignum-reuse-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void fill_dir(bench *b, const char *dir) {
    open_bench(b, &(setting){.n_seq = 16, .n_snap = 800, .n_page = 1500, .dir = dir});
    run_all(b, false);
    lg_stats st;
    lg_get_stats(b->eng, &st);
    assert_true(st.n_file > b->n_text / 2);
    assert_int_equal(st.n_file_skipped, 0);
    close_bench(b);
}

void test_restored(void **state) {
    (void)state;
    EACH(b) {
        const char *dir = fresh_dir();
        lg_stats st;
        fill_dir(b, dir);
        expect_same(b, "writing files");
        for (uint32_t pass = 0; pass < 2; pass++) {
            /* The second time there is so little room that texts come back again and again. */
            open_bench(b, &(setting){.n_seq = pass ? 4 : 16,
                                     .n_snap = pass ? 6 : 800,
                                     .n_page = pass ? 64 : 1500,
                                     .dir = dir});
            run_all(b, pass);
            expect_same(b, pass ? "restored, little memory" : "restored");
            /* In company another home may have been sooner than the files'. */
            bool free_home = pass == 0 && b->eng->n_home > 1;
            for (uint32_t i = 0; i < b->n_text; i++)
                assert_true(free_home || b->got[i].n_cached + 64 >= b->text[i].n_id);
            lg_get_stats(b->eng, &st);
            assert_true(st.n_file_tok > 0);
            assert_int_equal(st.n_file_refused, 0);
            close_bench(b);
        }
    }
    assert_int_equal(system("rm -rf /tmp/lignum-reuse-??????"), 0);
}

void test_mutated_files_show(void **state) {
    (void)state;
    bench *b = first_bench();
    for (int f = LATE; f <= FILE_PAGES; f++) {
        const char *dir = fresh_dir();
        fault = f == LATE ? LATE : NO_FAULT;
        fill_dir(b, dir);
        fault = (enum fault)f;
        open_bench(b, &(setting){.n_seq = 16, .n_snap = 800, .n_page = 1500, .dir = dir});
        run_all(b, false);
        uint32_t n = n_different(b);
        print_message("  %s: %u of %u prompts differ with mutation %d\n", b->name, n, b->n_text,
                      f);
        assert_true(n > b->n_text / 4);
        close_bench(b);
        fault = NO_FAULT;
    }
    assert_int_equal(system("rm -rf /tmp/lignum-reuse-??????"), 0);
}
