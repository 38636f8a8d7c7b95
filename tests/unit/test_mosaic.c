/* test_mosaic.c - the text of each Mosaic kernel, run by mosaic_eval.c, against plain C; and its twin, run by XLA's CPU plugin where
 * that is there, on the same arrays.
 *
 * Pools and rows that a kernel must not read hold NaN; those that it must not write are compared bit by bit. */
#include "backend/pjrt/mosaic/mosaic_kern.h"

#include "base/num.h"
#include "backend/pjrt/mosaic/twin.h"
#include "gdn_plain.h"
#include "mosaic_eval.h"
#include "twin_rig.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static uint32_t drawn;

/* Even in [-r, r]; a bfloat16 where `narrow`. */
static float draw(float r, bool narrow) {
    float x = (2.0f * lg_num_rng_unit(7, 0, drawn++, 0) - 1.0f) * r;
    return narrow ? mosaic_bf16(x) : x;
}

static float *drawn_floats(size_t n, float r, bool narrow) {
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = draw(r, narrow);
    return x;
}

static size_t elements(const mosaic_array *a) {
    size_t n = 1;
    for (uint32_t d = 0; d < a->rank; d++) n *= a->dim[d];
    return n;
}

/* Arrays for all windows of a kernel, floats still NULL. */
static void shapes(const lg_mosaic_kernel *k, mosaic_array *a) {
    for (uint32_t i = 0; i < k->n_in + k->n_out; i++) {
        a[i] = (mosaic_array){.rank = k->win[i].rank};
        memcpy(a[i].dim, k->win[i].array, sizeof k->win[i].array);
    }
}

static void run(const lg_buf *body, const mosaic_array *fetch, uint32_t n_fetch,
                const mosaic_array *win, const lg_mosaic_kernel *k, bool overlapped) {
    assert_false(body->failed);
    const char *why =
        mosaic_eval(lg_buf_str(body), fetch, n_fetch, win, k->n_in, k->n_out, overlapped);
    if (why) fail_msg("%s: %s", k->name, why);
}

/* Ways to run a kernel: its text with copies in order, its text with copies overlapped, its twin. */
enum { IN_ORDER, OVERLAPPED, TWIN };
static int first_way, end_way; /* of the test that runs */
static bool has_plugin;

/* As run(), for a way; a twin's results go where the kernel's would. */
static void run_way(int way, const lg_buf *body, const mosaic_array *fetch, mosaic_array *win,
                    const lg_mosaic_kernel *k, twin_fn twin, const void *g) {
    float *out[LG_MOSAIC_ARGS];
    if (way != TWIN) {
        run(body, fetch, k->n_fetch, win, k, way == OVERLAPPED);
        return;
    }
    twin_rig_run(k, twin, g, fetch, win, out);
    for (uint32_t i = 0; i < k->n_out; i++) {
        memcpy(win[k->n_in + i].f, out[i], elements(&win[k->n_in + i]) * 4);
        free(out[i]);
    }
}

static void twin_decode(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result) {
    lg_twin_gdn_decode(g, h, arg, result);
}

static void twin_prefill(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result) {
    lg_twin_gdn_prefill(g, h, arg, result);
}

static void twin_gmm(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result) {
    lg_twin_gmm(g, h, arg, result);
}

static void twin_attn(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result) {
    lg_twin_attn(g, h, arg, result);
}

/* ---- Gated DeltaNet ---- */

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
    shapes(&c->k, c->win);
    c->win[QKV].f = drawn_floats(elements(&c->win[QKV]), 2.0f, act);
    c->win[A_IN].f = drawn_floats(elements(&c->win[A_IN]), 3.0f, false);
    c->win[B_IN].f = drawn_floats(elements(&c->win[B_IN]), 3.0f, false);
    c->win[CONV_W].f = drawn_floats(elements(&c->win[CONV_W]), 1.0f, false);
    c->win[NEG_A].f = drawn_floats(elements(&c->win[NEG_A]), 1.0f, false);
    for (size_t i = 0; i < elements(&c->win[NEG_A]); i++)
        c->win[NEG_A].f[i] = -fabsf(c->win[NEG_A].f[i]);
    c->win[DT].f = drawn_floats(elements(&c->win[DT]), 1.0f, false);
    c->win[CONV].f = drawn_floats(elements(&c->win[CONV]), 2.0f, conv);
    c->win[STATE].f = drawn_floats(elements(&c->win[STATE]), 0.5f, state);
    c->win[OUT].f = drawn_floats(elements(&c->win[OUT]), 1.0f, act);
    c->win[CONV_OUT].f = c->win[CONV].f;
    c->win[STATE_OUT].f = c->win[STATE].f;
    c->conv0 = malloc(elements(&c->win[CONV]) * 4);
    c->state0 = malloc(elements(&c->win[STATE]) * 4);
    assert_true(c->conv0 && c->state0);
}

static void gdn_close(gdn_case *c) {
    for (int i = 0; i <= OUT; i++) free(c->win[i].f);
    free(c->conv0);
    free(c->state0);
    lg_buf_fini(&c->body);
}

static void gdn_poison(gdn_case *c, uint32_t layer, uint32_t slot) {
    size_t n = elements(&c->win[CONV]) / c->g.n_layer / c->g.n_slot,
           m = elements(&c->win[STATE]) / c->g.n_layer / c->g.n_slot;
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
    memcpy(c->conv0, c->win[CONV].f, elements(&c->win[CONV]) * 4);
    memcpy(c->state0, c->win[STATE].f, elements(&c->win[STATE]) * 4);
}

static void gdn_restore(gdn_case *c) {
    memcpy(c->win[CONV].f, c->conv0, elements(&c->win[CONV]) * 4);
    memcpy(c->win[STATE].f, c->state0, elements(&c->win[STATE]) * 4);
}

static void near(const char *what, const float *got, const float *want, size_t n, float tol) {
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= tol * (1.0f + fabsf(want[i]))))
            fail_msg("%s[%zu]: %.9g, expected %.9g", what, i, (double)got[i], (double)want[i]);
}

/* Everything of the pools but the named slots of one layer is as it was. */
static void gdn_untouched(const gdn_case *c, uint32_t layer, const int32_t *slot,
                          uint32_t n_slot) {
    size_t n = elements(&c->win[CONV]) / c->g.n_layer / c->g.n_slot,
           m = elements(&c->win[STATE]) / c->g.n_layer / c->g.n_slot;
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
        near("o", o + t * vd, want, vd, tol);
    }
    for (size_t i = 0; i < sd; i++) left[i] = (float)state[i];
    near("state", c->win[STATE].f + at * sd, left, sd, tol);
    near("earlier rows", c->win[CONV].f + at * 3 * rd, conv, 3 * rd, 0.0f);
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
    for (int way = first_way; way < end_way; way++) {
        gdn_restore(&c);
        run_way(way, &c.body, fetch, c.win, &c.k, twin_decode, &c.g);
        for (uint32_t i = 0; i < 6; i++) {
            if (mode[i] == LG_MOSAIC_IDLE) continue;
            gdn_check_sequence(&c, c.win[QKV].f + i * rd, c.win[A_IN].f + i * nv,
                               c.win[B_IN].f + i * nv, 1, mode[i] == LG_MOSAIC_GOES_ON,
                               (uint32_t)slot[i], layer, c.win[OUT].f + i * vd, tol);
            if (way == OVERLAPPED)
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
    run(&c.body, fetch, 3, c.win, &c.k, true);
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
    for (int way = first_way; way < end_way; way++) {
        gdn_restore(&c);
        run_way(way, &c.body, fetch, c.win, &c.k, twin_prefill, &c.g);
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

/* ---- Grouped product ---- */

typedef struct gmm_case {
    lg_mosaic_gmm g;
    lg_mosaic_kernel k;
    lg_buf body;
    mosaic_array win[7];
    uint32_t layer;
    uint32_t w; /* window of the weights */
} gmm_case;

static double gmm_dot(const gmm_case *c, size_t row, uint32_t expert, uint32_t channel) {
    uint32_t all = c->g.n_out * (c->g.swiglu ? 2 : 1), nb = c->g.n_in / c->g.k_block;
    size_t matrix = (size_t)c->layer * c->g.n_expert + expert;
    double sum = 0;
    for (uint32_t i = 0; i < c->g.n_in; i++) {
        double w = c->win[c->w].f[(matrix * all + channel) * c->g.n_in + i];
        if (c->g.tiled)
            w *= c->win[c->w + 1].f[(matrix * (all / 128) + channel / 128) * nb + i / 128];
        else if (c->g.weight == LG_M_E4M3)
            w *= c->win[c->w + 1].f[(matrix * nb + i / c->g.k_block) * all + channel];
        if (c->g.act == LG_M_E4M3) w *= c->win[1].f[row * nb + i / c->g.k_block];
        sum += w * c->win[0].f[row * c->g.n_in + i];
    }
    return sum;
}

static void gmm_check(const gmm_case *c, const int32_t *expert, const int32_t *block,
                      const int32_t *live) {
    for (uint32_t t = 0; t < c->g.n_tile; t++)
        for (uint32_t r = 0; live[t] && r < c->g.tile_rows; r++)
            for (uint32_t j = 0; j < c->g.n_out; j += 5) {
                size_t row = (size_t)block[t] * c->g.tile_rows + r;
                double want = gmm_dot(c, row, (uint32_t)expert[t], j);
                if (c->g.swiglu)
                    want *= 1 / (1 + exp(-want)) *
                            gmm_dot(c, row, (uint32_t)expert[t], c->g.n_out + j);
                float w = (float)want;
                near("y", &c->win[c->k.n_in].f[row * c->g.n_out + j], &w, 1,
                     c->g.swiglu ? 5e-3f : 1e-4f);
            }
}

static void gmm_run(lg_mosaic_gmm g) {
    int32_t expert[4] = {2, 2, 0, 0}, block[4] = {0, 2, 1, 1}, live[4] = {1, 1, 1, 0},
            layer[1] = {1};
    bool narrow = g.act == LG_M_E4M3;
    gmm_case c = {.g = g, .layer = 1, .w = narrow ? 2 : 1};
    lg_mosaic_gmm_kernel(&c.g, &c.k, &c.body);
    shapes(&c.k, c.win);
    uint32_t per = g.weight == LG_M_E4M3 ? 2 : 1;
    c.win[0].f = drawn_floats(elements(&c.win[0]), 1.0f, true);
    if (narrow) {
        for (size_t i = 0; i < elements(&c.win[0]); i++)
            c.win[0].f[i] = mosaic_e4m3(100 * c.win[0].f[i]);
        c.win[1].f = drawn_floats(elements(&c.win[1]), 0.01f, false);
    }
    mosaic_array *w = &c.win[c.w];
    w->f = drawn_floats(elements(w), 1.0f, true);
    if (g.weight == LG_M_E4M3) {
        for (size_t i = 0; i < elements(w); i++) w->f[i] = mosaic_e4m3(w->f[i]);
        w[1].f = drawn_floats(elements(&w[1]), 0.2f, false);
    }
    /* The expert without rows holds NaN: it must not be looked at. */
    size_t n = elements(w) / g.n_stack / g.n_expert;
    for (uint32_t l = 0; l < g.n_stack; l++)
        for (size_t i = 0; i < n; i++) w->f[((size_t)l * g.n_expert + 1) * n + i] = NAN;
    if (g.swiglu)
        for (uint32_t i = 0; i < per; i++) w[per + i].f = w[i].f;
    c.win[c.k.n_in].f = drawn_floats(elements(&c.win[c.k.n_in]), 1.0f, false);
    mosaic_array fetch[4] = {{.rank = 1, .dim = {4}, .i = expert},
                             {.rank = 1, .dim = {4}, .i = block},
                             {.rank = 1, .dim = {4}, .i = live},
                             {.rank = 1, .dim = {1}, .i = layer}};
    for (int way = first_way; way < end_way; way++) {
        run_way(way, &c.body, fetch, c.win, &c.k, twin_gmm, &c.g);
        gmm_check(&c, expert, block, live);
    }
    free(c.win[0].f);
    if (narrow) free(c.win[1].f);
    free(w->f);
    if (per == 2) free(w[1].f);
    free(c.win[c.k.n_in].f);
    lg_buf_fini(&c.body);
}

/* Weights of every kind, with rows of one. */
static void all_gmm_of(lg_mosaic_elem act) {
    const lg_mosaic_gmm base = {.n_tile = 4,
                                .tile_rows = act == LG_M_E4M3 ? 32 : 16,
                                .n_stack = 2,
                                .n_expert = 3,
                                .act = act,
                                .hidden = LG_M_BF16};
    lg_mosaic_gmm g = base;
    g.n_in = 512, g.n_out = 256, g.cols = 128, g.k_block = 512, g.swiglu = true,
    g.weight = LG_M_E4M3;
    gmm_run(g);
    g = base;
    g.n_in = 384, g.n_out = 128, g.k_block = 128, g.weight = LG_M_E4M3;
    gmm_run(g);
    g = base;
    g.n_in = 256, g.n_out = 128, g.k_block = 256, g.swiglu = true;
    g.weight = act == LG_M_E4M3 ? LG_M_E4M3 : LG_M_BF16, g.tile_rows *= 2;
    gmm_run(g);
    g = base;
    g.n_in = 384, g.n_out = 256, g.cols = 128, g.k_block = 128, g.swiglu = g.tiled = true,
    g.weight = LG_M_E4M3;
    gmm_run(g);
    g.swiglu = false, g.cols = 256;
    gmm_run(g);
    /* A scale a channel: several products to one scale; and of a width that 512 does not divide. */
    g = base;
    g.n_in = g.k_block = 1024, g.n_out = 128, g.swiglu = true, g.weight = LG_M_E4M3;
    gmm_run(g);
    g.n_in = g.k_block = 640, g.swiglu = false;
    gmm_run(g);
    g.n_in = 2048, g.k_block = 1024;
    gmm_run(g);
}

static void all_gmm(void) {
    all_gmm_of(LG_M_BF16);
    all_gmm_of(LG_M_E4M3);
}

/* ---- Attention ---- */

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
    shapes(&c->k, c->win);
    c->win[0].f = drawn_floats(elements(&c->win[0]), 1.0f, narrow);
    c->win[3].f = drawn_floats(elements(&c->win[3]), 1.0f, false);
    for (int i = 1; i <= 2; i++) {
        c->win[i].f = malloc(elements(&c->win[i]) * 4);
        assert_non_null(c->win[i].f);
        for (size_t j = 0; j < elements(&c->win[i]); j++) c->win[i].f[j] = NAN;
        for (uint32_t q = 0; q < n_seq; q++)
            for (int32_t p = 0; p < s[q].pos + s[q].n; p++)
                for (size_t j = 0; j < w; j++) {
                    float x = draw(1.0f, narrow);
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
                near("o", c->win[3].f + at, want, d, c->live[t] ? tol : 0.0f);
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
    for (int way = first_way; way < end_way; way++) {
        for (size_t i = 0; i < elements(&c.win[3]); i++) c.win[3].f[i] = NAN;
        run_way(way, &c.body, c.fetch, c.win, &c.k, twin_attn, &c.a);
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

static void text(void (*all)(void)) {
    first_way = IN_ORDER;
    end_way = TWIN;
    all();
}

static void twin(void (*all)(void)) {
    if (!has_plugin) {
        printf("XLA's CPU plugin is not there (make check-pjrt fetches it), or this is a "
               "sanitizer's build\n");
        skip();
    }
    first_way = TWIN;
    end_way = TWIN + 1;
    all();
}

static void test_gdn_decode(void **state) {
    (void)state;
    text(all_gdn_decode);
}

static void test_gdn_prefill(void **state) {
    (void)state;
    text(all_gdn_prefill);
}

static void test_gmm(void **state) {
    (void)state;
    text(all_gmm);
}

static void test_attn(void **state) {
    (void)state;
    text(all_attn);
}

static void test_twin_attn(void **state) {
    (void)state;
    twin(all_attn);
}

static void test_twin_gdn_decode(void **state) {
    (void)state;
    twin(all_gdn_decode);
}

static void test_twin_gdn_prefill(void **state) {
    (void)state;
    twin(all_gdn_prefill);
}

static void test_twin_gmm(void **state) {
    (void)state;
    twin(all_gmm);
}

static int start(void **state) {
    (void)state;
    has_plugin = twin_rig_open();
    return 0;
}

static int finish(void **state) {
    (void)state;
    twin_rig_close();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gdn_decode),
        cmocka_unit_test(test_gdn_prefill),
        cmocka_unit_test(test_gmm),
        cmocka_unit_test(test_attn),
        cmocka_unit_test(test_twin_gdn_decode),
        cmocka_unit_test(test_twin_gdn_prefill),
        cmocka_unit_test(test_twin_gmm),
        cmocka_unit_test(test_twin_attn),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
