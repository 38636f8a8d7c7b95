/* test_prefix.c - the tree of kept texts against a plain model: every text a list of ids, every snapshot a pair of text and
 * position; and the ledger: each page and each snapshot number is in exactly one place at any time. */
#include "base/num.h"
#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define NONE LG_PREFIX_NONE

typedef struct world {
    lg_state st;
    lg_prefix t;
} world;

static void open_world(world *w, uint32_t n_page, uint32_t n_snap) {
    assert_int_equal(lg_state_init(&w->st, 8, n_page, 1024), LG_OK);
    assert_int_equal(lg_prefix_init(&w->t, &w->st.pages, n_snap, 1000, 4000), LG_OK);
}

static void close_world(world *w) {
    lg_prefix_fini(&w->t);
    lg_state_fini(&w->st);
    assert_int_equal(lg_mem_alive(), 0);
}

/* Count every reference anew and compare; each leaf carries a snapshot; children differ in their first id. */
static void check_ledger(const world *w, uint32_t n_reserved) {
    const lg_prefix *t = &w->t;
    const lg_pages *p = &w->st.pages;
    uint32_t *n_node = calloc(p->n, sizeof *n_node), *n_seq = calloc(p->n, sizeof *n_seq);
    uint32_t n_used = 0, n_snap = 0, n_cached = 0, n_free = 0;
    uint8_t *is_free = calloc(t->n_node + 1, 1);
    for (uint32_t i = t->node_free; i != NONE; i = t->node[i].chain) is_free[i] = 1;
    for (uint32_t i = 0; i < t->n_node; i++) {
        const lg_prefix_node *n = &t->node[i];
        if (is_free[i]) continue;
        n_used++;
        n_node[n->page]++;
        assert_true(n->n >= 1 && n->pos / LG_PAGE_TOK == (n->pos + n->n - 1) / LG_PAGE_TOK);
        assert_true(n->child != NONE || n->snap != NONE);
        if (n->snap != NONE) {
            assert_int_equal(t->snap_node[n->snap], i);
            n_snap++;
        }
        for (uint32_t c = n->child; c != NONE; c = t->node[c].next) {
            assert_int_equal(t->node[c].parent, i);
            assert_int_equal(t->node[c].pos, n->pos + n->n);
            for (uint32_t d = t->node[c].next; d != NONE; d = t->node[d].next)
                assert_int_not_equal(t->node[c].id[0], t->node[d].id[0]);
        }
    }
    assert_int_equal(n_used + t->n_node_free, t->n_node);
    assert_int_equal(n_snap, t->n_kept);
    assert_int_equal(n_snap + t->n_snap_free + n_reserved, t->n_snap);
    for (uint32_t s = 0; s < w->st.n_slot; s++)
        for (uint32_t i = 0; i < w->st.n_page_of[s]; i++)
            n_seq[w->st.page[s * w->st.max_page + i]]++;
    for (uint32_t i = 0; i < p->n; i++) {
        assert_int_equal(n_node[i], p->n_node[i]);
        assert_int_equal(n_seq[i], p->n_seq[i]);
        n_cached += n_node[i] && !n_seq[i];
        n_free += !n_node[i] && !n_seq[i];
    }
    assert_int_equal(n_cached, p->n_cached);
    assert_int_equal(n_free, p->n_free);
    for (uint32_t i = 0; i < p->n_free; i++) {
        assert_int_equal(p->n_node[p->stack[i]] + p->n_seq[p->stack[i]], 0);
        for (uint32_t j = 0; j < i; j++) assert_int_not_equal(p->stack[i], p->stack[j]);
    }
    free(n_node);
    free(n_seq);
    free(is_free);
}

/* Keep ids[0, n) from a sequence of its own that then ends. */
static bool keep(world *w, uint64_t salt, const uint32_t *ids, uint32_t n) {
    uint32_t slot;
    assert_int_equal(lg_state_reserve(&w->st, n, NULL, 0, &slot), LG_OK);
    uint32_t snap = lg_prefix_reserve(&w->t);
    assert_int_not_equal(snap, NONE);
    bool fresh = lg_prefix_keep(&w->t, salt, ids, n, w->st.page + slot * w->st.max_page, snap);
    lg_state_release(&w->st, slot);
    check_ledger(w, 0);
    return fresh;
}

static lg_prefix_hit find(const world *w, uint64_t salt, const uint32_t *ids, uint32_t n) {
    lg_prefix_hit hit;
    lg_prefix_find(&w->t, salt, ids, n, &hit);
    return hit;
}

static void fill(uint32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (uint32_t)lg_num_rng(seed, 0, i, 0) % 1000;
}

static void test_the_deepest_snapshot_is_the_hit(void **state) {
    (void)state;
    world w;
    static uint32_t a[600], b[600];
    open_world(&w, 64, 16);
    fill(a, 600, 1);
    assert_int_equal(find(&w, 0, a, 600).node, NONE);
    assert_true(keep(&w, 0, a, 100));
    assert_true(keep(&w, 0, a, 300));
    assert_false(keep(&w, 0, a, 300));
    assert_int_equal(find(&w, 0, a, 600).pos, 300);
    assert_int_equal(find(&w, 0, a, 299).pos, 100);
    assert_int_equal(find(&w, 0, a, 299).n_match, 299);
    assert_int_equal(find(&w, 0, a, 100).pos, 100);
    assert_int_equal(find(&w, 0, a, 99).pos, 0);
    memcpy(b, a, sizeof a);
    b[70] ^= 1; /* leaves inside the second page */
    assert_int_equal(find(&w, 0, b, 600).pos, 0);
    assert_int_equal(find(&w, 0, b, 600).n_match, 70);
    assert_true(keep(&w, 0, a, 70));
    assert_true(keep(&w, 0, b, 400));
    assert_int_equal(find(&w, 0, b, 600).pos, 400);
    b[399] ^= 1;
    assert_int_equal(find(&w, 0, b, 600).pos, 70);
    assert_int_equal(find(&w, 0, a, 600).pos, 300);
    /* two pages of a up to 100, one of them again where b leaves; the pages of the path, the deepest of each number */
    uint32_t page[16];
    lg_prefix_hit hit = find(&w, 0, a, 600);
    lg_prefix_pages(&w.t, &hit, page);
    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t j = 0; j < i; j++) assert_int_not_equal(page[i], page[j]);
    lg_prefix_clear(&w.t);
    check_ledger(&w, 0);
    assert_int_equal(w.st.pages.n_free, 64);
    close_world(&w);
}

static void test_salts_share_nothing(void **state) {
    (void)state;
    world w;
    static uint32_t a[200];
    open_world(&w, 64, 16);
    fill(a, 200, 1);
    keep(&w, 7, a, 128);
    assert_int_equal(find(&w, 0, a, 200).n_match, 0);
    assert_int_equal(find(&w, 8, a, 200).n_match, 0);
    assert_int_equal(find(&w, 7, a, 200).pos, 128);
    assert_true(keep(&w, 8, a, 128));
    assert_int_equal(w.st.pages.n_cached, 4);
    lg_prefix_discard(&w.t, 7, a, 200, 0);
    assert_int_equal(find(&w, 7, a, 200).pos, 0);
    assert_int_equal(find(&w, 8, a, 200).pos, 128);
    close_world(&w);
}

static void test_the_least_worth_is_evicted(void **state) {
    (void)state;
    world w;
    static uint32_t a[3][512];
    open_world(&w, 64, 3);
    for (uint32_t i = 0; i < 3; i++) {
        fill(a[i], 512, i);
        keep(&w, 0, a[i], i == 1 ? 64 : 512); /* the second is cheap to compute again */
    }
    uint32_t snap = lg_prefix_reserve(&w.t);
    assert_int_equal(find(&w, 0, a[1], 64).pos, 0);
    assert_int_equal(find(&w, 0, a[0], 512).pos, 512);
    lg_prefix_release(&w.t, snap);
    /* What is used stays, however cheap, while the dear one goes in the end. */
    keep(&w, 0, a[1], 64);
    static uint32_t b[128];
    for (uint32_t i = 0; i < 40; i++) {
        fill(b, 128, 100 + i);
        lg_prefix_touch(&w.t, find(&w, 0, a[2], 512).node);
        keep(&w, 0, b, 128);
    }
    assert_int_equal(find(&w, 0, a[2], 512).pos, 512);
    assert_int_equal(find(&w, 0, a[0], 512).pos, 0);
    assert_true(w.t.n_evicted >= 40);
    close_world(&w);
}

static void test_pages_in_use_are_never_freed(void **state) {
    (void)state;
    world w;
    static uint32_t a[512], page[16];
    uint32_t slot, other;
    open_world(&w, 16, 4);
    fill(a, 512, 3);
    keep(&w, 0, a, 512);
    lg_prefix_hit hit = find(&w, 0, a, 512);
    lg_prefix_pages(&w.t, &hit, page);
    for (uint32_t i = 0; i < 8; i++) lg_pages_hold(&w.st.pages, page[i]);
    assert_true(lg_prefix_make_room(&w.t, 8, hit.node));
    assert_false(lg_prefix_make_room(&w.t, 9, hit.node)); /* impossible: nothing happens */
    assert_int_equal(find(&w, 0, a, 512).pos, 512);
    assert_int_equal(lg_state_reserve(&w.st, 1024, page, 8, &slot), LG_OK);
    for (uint32_t i = 0; i < 8; i++) lg_pages_drop(&w.st.pages, page[i]);
    assert_int_equal(lg_state_reserve(&w.st, 1, NULL, 0, &other), LG_AGAIN);
    lg_prefix_clear(&w.t);
    check_ledger(&w, 0);
    assert_int_equal(w.st.pages.n_free, 0);
    lg_state_release(&w.st, slot);
    assert_int_equal(w.st.pages.n_free, 16);
    assert_true(lg_prefix_make_room(&w.t, 16, NONE));
    close_world(&w);
}

static void test_discard_takes_what_continues_it(void **state) {
    (void)state;
    world w;
    static uint32_t a[400], b[400];
    open_world(&w, 64, 16);
    fill(a, 400, 3);
    memcpy(b, a, sizeof a);
    b[150] ^= 1;
    keep(&w, 0, a, 50);
    keep(&w, 0, a, 100);
    keep(&w, 0, a, 200);
    keep(&w, 0, b, 300);
    lg_prefix_discard(&w.t, 0, a, 400, 60);
    check_ledger(&w, 0);
    assert_int_equal(w.t.n_discarded, 3);
    assert_int_equal(find(&w, 0, a, 400).pos, 50);
    assert_int_equal(find(&w, 0, b, 400).pos, 50);
    lg_prefix_discard(&w.t, 0, a, 400, 60); /* nothing there */
    assert_int_equal(w.t.n_discarded, 3);
    close_world(&w);
}

/* ---- random operations against a list ---- */

#define N_TEXT 40
#define LONG   300

typedef struct model {
    uint32_t ids[N_TEXT][LONG]; /* texts over two letters that share beginnings */
    bool kept[N_TEXT][LONG + 1];
} model;

/* Whether a position of a text is kept, told by any text that begins with the same ids. */
static uint32_t model_find(const model *m, const uint32_t *ids, uint32_t n) {
    for (uint32_t pos = n; pos > 0; pos--)
        for (uint32_t i = 0; i < N_TEXT; i++)
            if (m->kept[i][pos] && memcmp(m->ids[i], ids, pos * sizeof *ids) == 0) return pos;
    return 0;
}

static void make_texts(model *m, uint64_t seed) {
    for (uint32_t i = 0; i < N_TEXT; i++) {
        uint64_t r = lg_num_rng(seed, 1, i, 0);
        uint32_t same = i ? (uint32_t)(r >> 8) % LONG : 0;
        if (i) memcpy(m->ids[i], m->ids[r % i], same * sizeof(uint32_t));
        for (uint32_t j = same; j < LONG; j++)
            m->ids[i][j] = (uint32_t)lg_num_rng(seed, 2, i * LONG + j, 0) % 3;
    }
}

static void test_random_operations_without_eviction(void **state) {
    (void)state;
    static model m;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        world w;
        memset(&m, 0, sizeof m);
        make_texts(&m, seed);
        open_world(&w, 2000, 300);
        for (uint32_t step = 0; step < 250; step++) {
            uint64_t r = lg_num_rng(seed, 3, step, 0);
            uint32_t i = (uint32_t)(r % N_TEXT), n = 1 + (uint32_t)(r >> 16) % LONG;
            uint32_t was = model_find(&m, m.ids[i], n);
            assert_int_equal(find(&w, 0, m.ids[i], n).pos, was);
            if (step % 50 == 49) {
                lg_prefix_discard(&w.t, 0, m.ids[i], LONG, n);
                uint32_t at = n;
                while (at < LONG && model_find(&m, m.ids[i], at) != at) at++;
                if (model_find(&m, m.ids[i], at) == at) {
                    static bool next[N_TEXT][LONG + 1];
                    memcpy(next, m.kept, sizeof next);
                    for (uint32_t j = 0; j < N_TEXT; j++)
                        for (uint32_t p = at; p <= LONG; p++)
                            if (memcmp(m.ids[j], m.ids[i], at * sizeof(uint32_t)) == 0)
                                next[j][p] = false;
                    memcpy(m.kept, next, sizeof next);
                }
                check_ledger(&w, 0);
                continue;
            }
            assert_int_equal(keep(&w, 0, m.ids[i], n), was != n);
            m.kept[i][n] = true;
        }
        assert_int_equal(w.t.n_evicted, 0);
        lg_prefix_clear(&w.t);
        check_ledger(&w, 0);
        assert_int_equal(w.st.pages.n_free, 2000);
        close_world(&w);
    }
}

/* Few pages, few snapshots, sequences that come and go on shared pages: a hit is always something that was kept. */
static void test_random_operations_with_eviction(void **state) {
    (void)state;
    static model m;
    for (uint64_t seed = 11; seed <= 16; seed++) {
        world w;
        uint32_t live[8], n_live = 0;
        memset(&m, 0, sizeof m);
        make_texts(&m, seed);
        open_world(&w, 40, 9);
        for (uint32_t step = 0; step < 1500; step++) {
            uint64_t r = lg_num_rng(seed, 3, step, 0);
            uint32_t i = (uint32_t)(r % N_TEXT), n = 1 + (uint32_t)(r >> 16) % LONG, page[8],
                     slot;
            if (n_live == 8 || (n_live && r >> 60 == 0)) {
                lg_state_release(&w.st, live[--n_live]);
                continue;
            }
            lg_prefix_hit hit = find(&w, 0, m.ids[i], n);
            assert_true(hit.pos <= model_find(&m, m.ids[i], n) && hit.pos <= hit.n_match);
            lg_prefix_pages(&w.t, &hit, page);
            uint32_t n_page = (hit.pos + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
            uint32_t full = hit.pos / LG_PAGE_TOK;
            uint32_t need = (n + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
            for (uint32_t p = 0; p < n_page; p++) lg_pages_hold(&w.st.pages, page[p]);
            uint32_t could = w.st.pages.n_free + w.st.pages.n_cached;
            bool ok = lg_prefix_make_room(&w.t, need - full, hit.node);
            assert_int_equal(ok, could >= need - full);
            if (hit.node != NONE)
                assert_int_equal(find(&w, 0, m.ids[i], n).pos, hit.pos); /* it stayed */
            if (ok) {
                assert_int_equal(lg_state_reserve(&w.st, n, page, full, &slot), LG_OK);
                live[n_live++] = slot;
            }
            for (uint32_t p = 0; p < n_page; p++) lg_pages_drop(&w.st.pages, page[p]);
            if (ok) {
                uint32_t snap = lg_prefix_reserve(&w.t);
                assert_int_not_equal(snap, NONE);
                if (lg_prefix_keep(&w.t, 0, m.ids[i], n, w.st.page + slot * w.st.max_page,
                                   snap))
                    assert_int_equal(find(&w, 0, m.ids[i], n).pos, n);
                m.kept[i][n] = true;
            }
            check_ledger(&w, 0);
        }
        while (n_live) lg_state_release(&w.st, live[--n_live]);
        assert_true(lg_prefix_make_room(&w.t, 40, NONE)); /* everything can be had back */
        check_ledger(&w, 0);
        assert_int_equal(w.t.n_snap_free, 9);
        close_world(&w);
    }
}

static void test_a_million_tokens_are_looked_up_quickly(void **state) {
    (void)state;
    world w;
    static uint32_t ids[1024];
    enum { N = 1000000 / 1024 + 1, ROUNDS = 20 };
    assert_int_equal(lg_state_init(&w.st, 8, N * 16 + 16, 1024), LG_OK);
    assert_int_equal(lg_prefix_init(&w.t, &w.st.pages, N, 1000, 4000), LG_OK);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t slot, snap = lg_prefix_reserve(&w.t);
        fill(ids, 1024, i);
        ids[0] = 1; /* all begin alike */
        assert_int_equal(lg_state_reserve(&w.st, 1024, NULL, 0, &slot), LG_OK);
        assert_true(lg_prefix_keep(&w.t, 0, ids, 1024, w.st.page + slot * w.st.max_page, snap));
        lg_state_release(&w.st, slot);
    }
    struct timespec a, b;
    double us = 0;
    for (uint32_t k = 0; k < ROUNDS * N; k++) {
        lg_prefix_hit hit;
        fill(ids, 1024, k % N);
        ids[0] = 1;
        clock_gettime(CLOCK_MONOTONIC, &a);
        lg_prefix_find(&w.t, 0, ids, 1024, &hit);
        clock_gettime(CLOCK_MONOTONIC, &b);
        us += (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3;
        assert_int_equal(hit.pos, 1024);
    }
    us /= ROUNDS * N;
    print_message("%u texts of 1024 ids kept: %.2f us a look-up\n", N, us);
    assert_true(us < 50);
    close_world(&w);
}

static void test_without_snapshots_nothing_is_kept(void **state) {
    (void)state;
    world w;
    static uint32_t a[100];
    open_world(&w, 8, 0);
    assert_int_equal(lg_prefix_reserve(&w.t), NONE);
    assert_int_equal(find(&w, 0, a, 100).n_match, 0);
    lg_prefix_discard(&w.t, 0, a, 100, 0);
    assert_true(lg_prefix_make_room(&w.t, 8, NONE));
    assert_false(lg_prefix_make_room(&w.t, 9, NONE));
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_deepest_snapshot_is_the_hit),
        cmocka_unit_test(test_salts_share_nothing),
        cmocka_unit_test(test_the_least_worth_is_evicted),
        cmocka_unit_test(test_pages_in_use_are_never_freed),
        cmocka_unit_test(test_discard_takes_what_continues_it),
        cmocka_unit_test(test_random_operations_without_eviction),
        cmocka_unit_test(test_random_operations_with_eviction),
        cmocka_unit_test(test_a_million_tokens_are_looked_up_quickly),
        cmocka_unit_test(test_without_snapshots_nothing_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
