/* test_mosaic_attn.c - the text of the attention kernel, run by mosaic_eval.c, against plain C; and its twin, run by XLA's CPU plugin where
 * that is there, on the same arrays.
 *
 * Pools and rows that a kernel must not read hold NaN; those that it must not write are compared bit by bit. */
#include "mosaic_rig.h"

#include "backend/pjrt/mosaic/twin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void twin_attn(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result) {
    lg_twin_attn(g, h, arg, result);
}

enum { ATTN_SEQS = 8, ATTN_PAGES = 13, ATTN_TILES = 40, ATTN_ENTRIES = 160 };

/* A sequence's rows of this step: n from position pos on. */
typedef struct attn_rows {
    int32_t pos, n;
} attn_rows;

typedef struct attn_case {
    lg_mosaic_attn a;
    lg_mosaic_kernel k;
    lg_buf body;
    mosaic_array win[4], fetch[7];
    int32_t first[ATTN_TILES + 1], tile_of[ATTN_ENTRIES], seq[ATTN_TILES], pos[ATTN_TILES],
        see[ATTN_TILES], layer[1], table[ATTN_SEQS * ATTN_PAGES];
    uint32_t live[ATTN_TILES]; /* rows of the tile */
} attn_case;

/* The list of blocks; places of the table that no sequence has, and of the list, name nothing that there is. */
static void attn_schedule(attn_case *c, const attn_rows *s, uint32_t n_seq) {
    uint32_t m = c->a.rows, t = 0, e = 0, page = 0;
    for (uint32_t i = 0; i < ATTN_SEQS * ATTN_PAGES; i++) c->table[i] = -1;
    for (uint32_t i = 0; i < ATTN_ENTRIES; i++) c->tile_of[i] = -1;
    for (uint32_t i = 0; i < n_seq; i++) {
        /* Pages in no order, most of them nobody's. */
        for (int32_t p = 0; p < (s[i].pos + s[i].n + 63) / 64; p++, page++)
            c->table[i * ATTN_PAGES + (uint32_t)p] = (int32_t)(page * 7 % c->a.n_page);
        for (int32_t at = 0; at == 0 || at < s[i].n; at += (int32_t)m, t++) {
            int32_t left = s[i].n - at < (int32_t)m ? s[i].n - at : (int32_t)m;
            c->live[t] = (uint32_t)left;
            c->seq[t] = (int32_t)i;
            c->pos[t] = s[i].pos + at;
            c->see[t] = left ? c->pos[t] + left : 0;
            c->first[t] = (int32_t)e;
            for (int32_t b = 0; b < (c->see[t] + 255) / 256; b++) c->tile_of[e++] = (int32_t)t;
        }
    }
    c->first[t] = (int32_t)e;
    c->a.n_tile = t;
    c->a.n_entry = e + 3;
    assert_true(t <= ATTN_TILES && e + 3 <= ATTN_ENTRIES);
}

static float *attn_kv(const attn_case *c, int window, uint32_t seq, uint32_t position) {
    size_t w = (size_t)c->a.n_kv * c->a.d,
           page = (size_t)c->table[seq * ATTN_PAGES + position / 64];
    return c->win[window].f +
           (((size_t)c->layer[0] * c->a.n_page + page) * 64 + position % 64) * w;
}

/* Pools that hold NaN but for what the sequences have written. */
static void attn_fill(attn_case *c, const attn_rows *s, uint32_t n_seq) {
    size_t w = (size_t)c->a.n_kv * c->a.d, rows = (size_t)c->a.rows * c->a.group;
    bool narrow = c->a.kv != LG_M_F32;
    mosaic_shapes(&c->k, c->win);
    c->win[0].f = mosaic_drawn(mosaic_elements(&c->win[0]), 1.0f, narrow);
    c->win[3].f = mosaic_drawn(mosaic_elements(&c->win[3]), 1.0f, false);
    for (int i = 1; i <= 2; i++) {
        c->win[i].f = malloc(mosaic_elements(&c->win[i]) * 4);
        assert_non_null(c->win[i].f);
        for (size_t j = 0; j < mosaic_elements(&c->win[i]); j++) c->win[i].f[j] = NAN;
        for (uint32_t q = 0; q < n_seq; q++)
            for (int32_t p = 0; p < s[q].pos + s[q].n; p++)
                for (size_t j = 0; j < w; j++) {
                    float x = mosaic_draw(1.0f, narrow);
                    attn_kv(c, i, q, (uint32_t)p)[j] =
                        c->a.kv == LG_M_E4M3 ? mosaic_e4m3(x) : x;
                }
    }
    for (uint32_t t = 0; t < c->a.n_tile; t++)
        for (uint32_t h = 0; h < c->a.n_kv; h++)
            for (size_t r = 0; r < rows; r++)
                for (uint32_t j = 0; r % c->a.rows >= c->live[t] && j < c->a.d; j++)
                    c->win[0].f[((t * c->a.n_kv + h) * rows + r) * c->a.d + j] = NAN;
}

/* Softmax of one row over the positions it sees, and the values' mean by it. */
static void attn_row(const attn_case *c, uint32_t tile, uint32_t head, const float *q,
                     uint32_t see, float *want) {
    uint32_t seq = (uint32_t)c->seq[tile], d = c->a.d;
    double *p = malloc(see * sizeof *p), max = -1e300, sum = 0;
    assert_non_null(p);
    for (uint32_t i = 0; i < see; i++) {
        const float *k = attn_kv(c, 1, seq, i) + head * d;
        p[i] = 0;
        for (uint32_t j = 0; j < d; j++) p[i] += (double)q[j] * k[j];
        max = fmax(max, p[i]);
    }
    for (uint32_t i = 0; i < see; i++) sum += p[i] = exp(p[i] - max);
    for (uint32_t j = 0; j < d; j++) {
        double o = 0;
        for (uint32_t i = 0; i < see; i++) o += p[i] * attn_kv(c, 2, seq, i)[head * d + j];
        want[j] = (float)(o / sum);
    }
    free(p);
}

static void attn_check(const attn_case *c, float tol) {
    uint32_t rows = c->a.rows * c->a.group, d = c->a.d;
    float want[512];
    assert_true(d <= LG_COUNT(want));
    for (uint32_t t = 0; t < c->a.n_tile; t++)
        for (uint32_t h = 0; h < c->a.n_kv; h++)
            for (uint32_t i = 0; i < rows; i++) {
                size_t at = ((size_t)(t * c->a.n_kv + h) * rows + i) * d;
                uint32_t r = i % c->a.rows;
                if (c->live[t] && r >= c->live[t]) continue;
                memset(want, 0, sizeof want);
                if (c->live[t])
                    attn_row(c, t, h, c->win[0].f + at, (uint32_t)c->pos[t] + r + 1, want);
                mosaic_near("o", c->win[3].f + at, want, d, c->live[t] ? tol : 0.0f);
            }
}

static void attn_run(lg_mosaic_attn a, const attn_rows *s, uint32_t n_seq, float tol) {
    static attn_case c;
    memset(&c, 0, sizeof c);
    c.a = a;
    c.a.n_layer = 2;
    c.a.n_page = 120;
    c.a.n_seq = ATTN_SEQS;
    c.a.n_page_seq = ATTN_PAGES;
    c.layer[0] = 1;
    attn_schedule(&c, s, n_seq);
    lg_mosaic_attn_kernel(&c.a, &c.k, &c.body);
    attn_fill(&c, s, n_seq);
    int32_t *const list[7] = {c.first, c.tile_of, c.seq, c.pos, c.see, c.layer, c.table};
    for (uint32_t i = 0; i < 7; i++)
        c.fetch[i] = (mosaic_array){.rank = 1, .dim = {c.k.fetch[i]}, .i = list[i]};
    for (int way = mosaic_first_way(); way < mosaic_end_way(); way++) {
        for (size_t i = 0; i < mosaic_elements(&c.win[3]); i++) c.win[3].f[i] = NAN;
        mosaic_run_way(way, &c.body, c.fetch, c.win, &c.k, twin_attn, &c.a);
        attn_check(&c, tol);
    }
    for (int i = 0; i < 4; i++) free(c.win[i].f);
    lg_buf_fini(&c.body);
}

static void all_attn(void) {
    /* One row each: lengths around a page's and a block's end, nothing at all, the first in front. */
    static const attn_rows one[] = {{0, 0},   {0, 1},   {63, 1}, {64, 1},
                                    {255, 1}, {256, 1}, {0, 0},  {700, 1}};
    static const attn_rows many[] = {{0, 7}, {61, 4}, {250, 9}, {0, 0}, {513, 1}, {64, 64}};
    static const attn_rows none[] = {{0, 0}, {5, 0}}, tall[] = {{230, 40}, {3, 5}};
    lg_mosaic_attn a = {
        .rows = 1, .n_kv = 2, .group = 3, .d = 128, .act = LG_M_F32, .kv = LG_M_F32};
    attn_run(a, one, LG_COUNT(one), 2e-5f);
    attn_run(a, none, LG_COUNT(none), 0.0f);
    a.rows = 4;
    attn_run(a, many, LG_COUNT(many), 2e-5f);
    a = (lg_mosaic_attn){
        .rows = 1, .n_kv = 2, .group = 16, .d = 256, .act = LG_M_BF16, .kv = LG_M_BF16};
    attn_run(a, one, LG_COUNT(one), 1e-2f);
    a.group = 8;
    a.kv = LG_M_E4M3;
    attn_run(a, one, LG_COUNT(one), 1e-2f);
    /* More rows than scores at once. */
    a = (lg_mosaic_attn){
        .rows = 32, .n_kv = 1, .group = 16, .d = 128, .act = LG_M_BF16, .kv = LG_M_BF16};
    attn_run(a, tall, LG_COUNT(tall), 1e-2f);
}

static void test_attn(void **state) {
    (void)state;
    mosaic_text(all_attn);
}

static void test_twin_attn(void **state) {
    (void)state;
    mosaic_twin(all_attn);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attn),
        cmocka_unit_test(test_twin_attn),
    };
    return cmocka_run_group_tests(tests, mosaic_start, mosaic_finish);
}
