/* test_mosaic_gdn.c - the text of the Gated DeltaNet kernels, run by mosaic_eval.c, against plain C; and their twins, run by XLA's CPU
 * plugin where that is there, on the same arrays.
 *
 * Pools and rows that a kernel must not read hold NaN; those that it must not write are compared bit by bit. */
#include "mosaic_rig.h"

#include "backend/pjrt/mosaic/twin.h"
#include "gdn_plain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void twin_decode(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result) {
    lg_twin_gdn_decode(g, h, arg, result);
}

static void twin_prefill(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result) {
    lg_twin_gdn_prefill(g, h, arg, result);
}

enum { QKV, A_IN, B_IN, CONV_W, NEG_A, DT, CONV, STATE, OUT, CONV_OUT, STATE_OUT, N_WIN };

typedef struct gdn_case {
    lg_mosaic_gdn g;
    lg_mosaic_kernel k;
    lg_buf body;
    mosaic_array win[N_WIN];
    float *conv0, *state0; /* the pools before */
} gdn_case;

static void gdn_open(gdn_case *c) {
    bool act = c->g.act == LG_M_BF16, conv = c->g.conv == LG_M_BF16,
         state = c->g.state == LG_M_BF16;
    mosaic_shapes(&c->k, c->win);
    c->win[QKV].f = mosaic_drawn(mosaic_elements(&c->win[QKV]), 2.0f, act);
    c->win[A_IN].f = mosaic_drawn(mosaic_elements(&c->win[A_IN]), 3.0f, false);
    c->win[B_IN].f = mosaic_drawn(mosaic_elements(&c->win[B_IN]), 3.0f, false);
    c->win[CONV_W].f = mosaic_drawn(mosaic_elements(&c->win[CONV_W]), 1.0f, false);
    c->win[NEG_A].f = mosaic_drawn(mosaic_elements(&c->win[NEG_A]), 1.0f, false);
    for (size_t i = 0; i < mosaic_elements(&c->win[NEG_A]); i++)
        c->win[NEG_A].f[i] = -fabsf(c->win[NEG_A].f[i]);
    c->win[DT].f = mosaic_drawn(mosaic_elements(&c->win[DT]), 1.0f, false);
    c->win[CONV].f = mosaic_drawn(mosaic_elements(&c->win[CONV]), 2.0f, conv);
    c->win[STATE].f = mosaic_drawn(mosaic_elements(&c->win[STATE]), 0.5f, state);
    c->win[OUT].f = mosaic_drawn(mosaic_elements(&c->win[OUT]), 1.0f, act);
    c->win[CONV_OUT].f = c->win[CONV].f;
    c->win[STATE_OUT].f = c->win[STATE].f;
    c->conv0 = malloc(mosaic_elements(&c->win[CONV]) * 4);
    c->state0 = malloc(mosaic_elements(&c->win[STATE]) * 4);
    assert_true(c->conv0 && c->state0);
}

static void gdn_close(gdn_case *c) {
    for (int i = 0; i <= OUT; i++) free(c->win[i].f);
    free(c->conv0);
    free(c->state0);
    lg_buf_fini(&c->body);
}

static void gdn_poison(gdn_case *c, uint32_t layer, uint32_t slot) {
    size_t n = mosaic_elements(&c->win[CONV]) / c->g.n_layer / c->g.n_slot,
           m = mosaic_elements(&c->win[STATE]) / c->g.n_layer / c->g.n_slot;
    for (size_t i = 0; i < n; i++)
        c->win[CONV].f[((size_t)layer * c->g.n_slot + slot) * n + i] = NAN;
    for (size_t i = 0; i < m; i++)
        c->win[STATE].f[((size_t)layer * c->g.n_slot + slot) * m + i] = NAN;
}

static gdn_plain gdn_weights(const gdn_case *c, uint32_t layer) {
    size_t r = 2 * c->g.nk + c->g.nv;
    return (gdn_plain){c->g.nk, c->g.nv, c->win[CONV_W].f + layer * 4 * r * GDN_D,
                       c->win[NEG_A].f + layer * c->g.nv, c->win[DT].f + layer * c->g.nv};
}

static void gdn_save(gdn_case *c) {
    memcpy(c->conv0, c->win[CONV].f, mosaic_elements(&c->win[CONV]) * 4);
    memcpy(c->state0, c->win[STATE].f, mosaic_elements(&c->win[STATE]) * 4);
}

static void gdn_restore(gdn_case *c) {
    memcpy(c->win[CONV].f, c->conv0, mosaic_elements(&c->win[CONV]) * 4);
    memcpy(c->win[STATE].f, c->state0, mosaic_elements(&c->win[STATE]) * 4);
}

/* Everything of the pools but the named slots of one layer is as it was. */
static void gdn_untouched(const gdn_case *c, uint32_t layer, const int32_t *slot,
                          uint32_t n_slot) {
    size_t n = mosaic_elements(&c->win[CONV]) / c->g.n_layer / c->g.n_slot,
           m = mosaic_elements(&c->win[STATE]) / c->g.n_layer / c->g.n_slot;
    for (uint32_t l = 0; l < c->g.n_layer; l++)
        for (uint32_t s = 0; s < c->g.n_slot; s++) {
            bool used = false;
            for (uint32_t i = 0; i < n_slot; i++) used |= l == layer && slot[i] == (int32_t)s;
            size_t at = (size_t)l * c->g.n_slot + s;
            if (used) continue;
            assert_memory_equal(c->win[CONV].f + at * n, c->conv0 + at * n, n * 4);
            assert_memory_equal(c->win[STATE].f + at * m, c->state0 + at * m, m * 4);
        }
}

/* One sequence from the saved pools through n rows; compares what the kernel left. */
static void gdn_check_sequence(const gdn_case *c, const float *qkv, const float *a,
                               const float *b, uint32_t n, bool has, uint32_t slot,
                               const int32_t *layer, const float *o, float tol) {
    size_t rd = (size_t)(2 * c->g.nk + c->g.nv) * GDN_D, vd = (size_t)c->g.nv * GDN_D,
           sd = vd * GDN_D;
    size_t at = (size_t)layer[0] * c->g.n_slot + slot;
    gdn_plain w = gdn_weights(c, (uint32_t)layer[1]);
    float *conv = calloc(3 * rd, 4), *want = malloc(vd * 4), *left = malloc(sd * 4);
    double *state = calloc(sd, sizeof *state);
    assert_true(conv && want && left && state);
    if (has) memcpy(conv, c->conv0 + at * 3 * rd, 3 * rd * 4);
    for (size_t i = 0; has && i < sd; i++) state[i] = c->state0[at * sd + i];
    for (uint32_t t = 0; t < n; t++) {
        gdn_plain_row(&w, qkv + t * rd, a + t * c->g.nv, b + t * c->g.nv, conv, state, want);
        mosaic_near("o", o + t * vd, want, vd, tol);
    }
    for (size_t i = 0; i < sd; i++) left[i] = (float)state[i];
    mosaic_near("state", c->win[STATE].f + at * sd, left, sd, tol);
    mosaic_near("earlier rows", c->win[CONV].f + at * 3 * rd, conv, 3 * rd, 0.0f);
    free(conv);
    free(want);
    free(left);
    free(state);
}

static void decode_case(uint32_t nk, uint32_t nv, lg_mosaic_elem act, lg_mosaic_elem state,
                        float tol) {
    /* Four sequences in mixed slots, one of them new in a slot that holds NaN, and two rows of padding.
     * The new one is small, so that what is added to its norms shows. */
    int32_t slot[6] = {3, 6, 1, 1, 4, 4}, layer[2] = {1, 2};
    int32_t mode[6] = {LG_MOSAIC_GOES_ON, LG_MOSAIC_GOES_ON, LG_MOSAIC_NEW,
                       LG_MOSAIC_IDLE,    LG_MOSAIC_GOES_ON, LG_MOSAIC_IDLE};
    gdn_case c = {.g = {.n_row = 6,
                        .n_layer = 2,
                        .n_stack = 3,
                        .n_slot = 7,
                        .nk = nk,
                        .nv = nv,
                        .d = GDN_D,
                        .act = act,
                        .state = state,
                        .conv = act}};
    size_t rd = (2 * nk + nv) * (size_t)GDN_D;
    lg_mosaic_gdn_decode(&c.g, &c.k, &c.body);
    gdn_open(&c);
    for (size_t i = 2 * rd; i < 3 * rd; i++) c.win[QKV].f[i] /= 1024;
    for (uint32_t s = 0; s < 7; s++)
        for (uint32_t l = 0; l < 2; l++)
            if (l != 1 || s == 1 || s == 2 || s == 5) gdn_poison(&c, l, s);
    gdn_save(&c);
    mosaic_array fetch[3] = {{.rank = 1, .dim = {6}, .i = slot},
                             {.rank = 1, .dim = {6}, .i = mode},
                             {.rank = 1, .dim = {2}, .i = layer}};
    size_t vd = nv * (size_t)GDN_D;
    float *first = malloc(6 * vd * 4);
    assert_non_null(first);
    for (int way = mosaic_first_way(); way < mosaic_end_way(); way++) {
        gdn_restore(&c);
        mosaic_run_way(way, &c.body, fetch, c.win, &c.k, twin_decode, &c.g);
        for (uint32_t i = 0; i < 6; i++) {
            if (mode[i] == LG_MOSAIC_IDLE) continue;
            gdn_check_sequence(&c, c.win[QKV].f + i * rd, c.win[A_IN].f + i * nv,
                               c.win[B_IN].f + i * nv, 1, mode[i] == LG_MOSAIC_GOES_ON,
                               (uint32_t)slot[i], layer, c.win[OUT].f + i * vd, tol);
            if (way == MOSAIC_OVERLAPPED)
                assert_memory_equal(first + i * vd, c.win[OUT].f + i * vd, vd * 4);
            memcpy(first + i * vd, c.win[OUT].f + i * vd, vd * 4);
        }
        gdn_untouched(&c, 1, slot, 6);
    }
    /* Nothing but padding: the pools stay as they are. */
    int32_t idle[6] = {0}, one[6] = {2, 2, 2, 2, 2, 2};
    fetch[0].i = one;
    fetch[1].i = idle;
    gdn_restore(&c);
    mosaic_run_way(MOSAIC_OVERLAPPED, &c.body, fetch, c.win, &c.k, NULL, NULL);
    gdn_untouched(&c, 1, slot, 0);
    free(first);
    gdn_close(&c);
}

static void all_gdn_decode(void) {
    decode_case(2, 4, LG_M_F32, LG_M_F32, 2e-5f);
    decode_case(1, 3, LG_M_F32, LG_M_F32, 2e-5f);
    decode_case(3, 6, LG_M_BF16, LG_M_BF16, 8e-3f);
    decode_case(2, 2, LG_M_BF16, LG_M_F32, 8e-3f);
}

/* Sequences of 1, 2, 64, 65 and 130 rows in tiles; what a tile's missing rows hold is NaN. */
static void prefill_case(uint32_t nk, uint32_t nv, lg_mosaic_elem act, lg_mosaic_elem state,
                         float tol) {
    static const uint32_t n_row[] = {65, 1, 130, 64, 2}, slots[] = {5, 2, 1, 3, 4};
    static const bool fresh[] = {true, false, false, true, true};
    enum { C = LG_MOSAIC_CHUNK, TILES = 12, SEQS = 5 };
    int32_t slot[TILES], mode[TILES] = {0}, rows[TILES] = {0}, layer[2] = {1, 0};
    gdn_case c = {.g = {.n_row = TILES,
                        .n_layer = 2,
                        .n_stack = 2,
                        .n_slot = 6,
                        .nk = nk,
                        .nv = nv,
                        .d = GDN_D,
                        .act = act,
                        .state = state,
                        .conv = act}};
    size_t rd = (2 * nk + nv) * (size_t)GDN_D, vd = nv * (size_t)GDN_D;
    lg_mosaic_gdn_prefill(&c.g, &c.k, &c.body);
    gdn_open(&c);
    uint32_t first[SEQS], n = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        first[s] = n;
        for (uint32_t left = n_row[s]; left; left -= (uint32_t)rows[n++]) {
            slot[n] = (int32_t)slots[s];
            rows[n] = (int32_t)(left < C ? left : C);
            mode[n] = left != n_row[s] ? LG_MOSAIC_FOLLOWS
                      : fresh[s]       ? LG_MOSAIC_NEW
                                       : LG_MOSAIC_GOES_ON;
        }
        if (fresh[s]) gdn_poison(&c, 1, slots[s]);
    }
    for (; n < TILES; n++) slot[n] = slot[n - 1];
    for (uint32_t t = 0; t < TILES; t++)
        for (uint32_t r = (uint32_t)rows[t]; r < C; r++) {
            for (size_t i = 0; i < rd; i++) c.win[QKV].f[(t * (size_t)C + r) * rd + i] = NAN;
            for (size_t h = 0; h < nv; h++)
                c.win[A_IN].f[(t * nv + h) * C + r] = c.win[B_IN].f[(t * nv + h) * C + r] = NAN;
        }
    gdn_poison(&c, 0, 1);
    gdn_save(&c);
    mosaic_array fetch[4] = {{.rank = 1, .dim = {TILES}, .i = slot},
                             {.rank = 1, .dim = {TILES}, .i = mode},
                             {.rank = 1, .dim = {TILES}, .i = rows},
                             {.rank = 1, .dim = {2}, .i = layer}};
    float *a = malloc(130 * nv * 4), *b = malloc(130 * nv * 4);
    assert_true(a && b);
    for (int way = mosaic_first_way(); way < mosaic_end_way(); way++) {
        gdn_restore(&c);
        mosaic_run_way(way, &c.body, fetch, c.win, &c.k, twin_prefill, &c.g);
        for (uint32_t s = 0; s < SEQS; s++) {
            for (uint32_t r = 0; r < n_row[s]; r++)
                for (uint32_t h = 0; h < nv; h++) {
                    size_t at = ((first[s] + r / C) * (size_t)nv + h) * C + r % C;
                    a[r * nv + h] = c.win[A_IN].f[at];
                    b[r * nv + h] = c.win[B_IN].f[at];
                }
            size_t row = first[s] * (size_t)C;
            gdn_check_sequence(&c, c.win[QKV].f + row * rd, a, b, n_row[s], !fresh[s], slots[s],
                               layer, c.win[OUT].f + row * vd, tol);
        }
        gdn_untouched(&c, 1, (const int32_t *)slots, SEQS);
    }
    free(a);
    free(b);
    gdn_close(&c);
}

static void all_gdn_prefill(void) {
    prefill_case(1, 2, LG_M_F32, LG_M_F32, 5e-5f);
    prefill_case(2, 2, LG_M_BF16, LG_M_BF16, 1e-2f);
}

static void test_gdn_decode(void **state) {
    (void)state;
    mosaic_text(all_gdn_decode);
}

static void test_gdn_prefill(void **state) {
    (void)state;
    mosaic_text(all_gdn_prefill);
}

static void test_twin_gdn_decode(void **state) {
    (void)state;
    mosaic_twin(all_gdn_decode);
}

static void test_twin_gdn_prefill(void **state) {
    (void)state;
    mosaic_twin(all_gdn_prefill);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gdn_decode),
        cmocka_unit_test(test_gdn_prefill),
        cmocka_unit_test(test_twin_gdn_decode),
        cmocka_unit_test(test_twin_gdn_prefill),
    };
    return cmocka_run_group_tests(tests, mosaic_start, mosaic_finish);
}
