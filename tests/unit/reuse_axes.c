/* reuse_axes.c - ways to come by an answer, each of which must give the same one: see reuse_rig.h. */
#include "reuse_rig.h"

void test_warm_and_batched(void **state) {
    (void)state;
    EACH(b) {
        open_bench(b, &(setting){.n_seq = 16, .n_snap = 800, .n_page = 1500});
        run_all(b, false);
        expect_same(b, "first time, 16 at a time");
        run_all(b, false);
        expect_same(b, "again, 16 at a time");
        assert_true(n_cached(b) > 0);
        run_all(b, true);
        expect_same(b, "again, alone");
        for (uint32_t i = 0; i < b->n_text; i++)
            assert_true(b->got[i].n_cached + 64 >= b->text[i].n_id);
        close_bench(b);
    }
}

void test_split(void **state) {
    (void)state;
    EACH(b) {
        for (uint32_t n_tok = 7; n_tok < 70; n_tok += 33) {
            open_bench(b, &(setting){.n_seq = 3, .n_batch_tok = n_tok});
            run_all(b, false);
            expect_same(b, n_tok == 7 ? "steps of 7 rows" : "steps of 40 rows");
            run_all(b, false);
            expect_same(b, "again");
            close_bench(b);
        }
    }
}

/* A text that goes on from every position around the ends of two pages, with what had been kept up to there. */
void test_every_boundary(void **state) {
    (void)state;
    bench *b = &benches[1];
    uint32_t at = 0, n_done = 0, n_reused = 0;
    while (b->text[at].n_id < 3 * LG_PAGE_TOK) at++;
    text *t = &b->text[at];
    uint32_t n_id = t->n_id;
    open_bench(b, &(setting){.n_seq = 2});
    for (uint32_t n = LG_PAGE_TOK - 16; n < 2 * LG_PAGE_TOK + 16; n++) {
        if (few() && n % 5) continue;
        for (uint32_t pass = 0; pass < 2; pass++) {
            t->n_id = pass ? n_id : n;
            submit(b, at, 0);
            run(b);
        }
        n_done++;
        n_reused += b->got[at].n_cached + 1 == n;
        assert_true(is_same(b, at));
        forget(b);
    }
    t->n_id = n_id;
    print_message("  %u lengths, %u of them reused to the last token but one\n", n_done,
                  n_reused);
    assert_int_equal(n_reused, n_done);
    close_bench(b);
}

void test_one_thread(void **state) {
    (void)state;
    EACH(b) {
        open_bench(b, &(setting){.n_seq = 5, .n_batch_tok = 60, .one_thread = true});
        run_all(b, false);
        expect_same(b, "one thread");
        close_bench(b);
    }
}

void test_after_evictions(void **state) {
    (void)state;
    uint32_t n_home = under.n_home ? under.n_home : 1; /* which have so much together */
    EACH(b) {
        open_bench(b, &(setting){.n_seq = 6, .n_snap = 7 / n_home, .n_page = 24 / n_home});
        for (uint32_t pass = 0; pass < 2; pass++) {
            run_all(b, false);
            expect_same(b, "7 snapshots, 24 pages");
        }
        lg_stats st;
        lg_get_stats(b->eng, &st);
        assert_true(st.n_evicted > b->n_text / 2);
        close_bench(b);
    }
}

void test_after_cancels(void **state) {
    (void)state;
    EACH(b) {
        open_bench(b, &(setting){.n_seq = 8, .n_batch_tok = 48});
        for (uint32_t i = 0; i < b->n_text; i++) {
            uint64_t id = submit(b, i, 0);
            for (uint32_t k = 0; k < i % 9; k++)
                if (lg_step(b->eng) == LG_OK) fetch(b);
            lg_cancel(b->eng, id);
            fetch(b);
        }
        run_all(b, false);
        expect_same(b, "after a cancel");
        close_bench(b);
    }
}

/* What a gateway does when its worker was lost: the ids produced so far come with the prompt. */
void test_continued(void **state) {
    (void)state;
    EACH(b) {
        open_bench(b, &(setting){.n_seq = 8});
        for (uint32_t pass = 0; pass < 2; pass++) {
            for (uint32_t i = 0; i < b->n_text; i++) submit(b, i, 1 + (i + 4 * pass) % 9);
            run(b);
            expect_same(b, "continued");
        }
        close_bench(b);
    }
}

/* The harness notices what it is there for. */
void test_mutations_show(void **state) {
    (void)state;
    EACH(b) {
        for (fault = DROP_STATE; fault <= LATE; fault++) {
            open_bench(b, &(setting){.n_seq = 8, .n_snap = 800, .n_page = 1500});
            run_all(b, false);
            run_all(b, false);
            uint32_t n = n_different(b);
            const char *what = fault == LATE ? "when snapshots come late" : "without the state";
            print_message("  %s: %u of %u prompts differ %s\n", b->name, n, b->n_text, what);
            assert_true(n > b->n_text / 4);
            close_bench(b);
            open_bench(b, &(setting){.n_seq = 6, .n_batch_tok = 40});
            run_putting_back(b);
            n = n_different(b);
            print_message("  %s, put back: %u of %u prompts differ %s\n", b->name, n, b->n_text,
                          what);
            assert_true(n > 0);
            close_bench(b);
        }
        fault = NO_FAULT;
    }
}
