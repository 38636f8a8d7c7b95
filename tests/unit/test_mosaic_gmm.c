/* test_mosaic_gmm.c - the text of the grouped products, rows in BF16 and FP8, run by mosaic_eval.c, against plain C; and their twins, run by
 * XLA's CPU plugin where that is there, on the same arrays.  Experts without rows and unused slots hold NaN. */
#include "mosaic_rig.h"

#include "backend/pjrt/mosaic/twin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void twin_gmm(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result) {
    lg_twin_gmm(g, h, arg, result);
}

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
                mosaic_near("y", &c->win[c->k.n_in].f[row * c->g.n_out + j], &w, 1,
                            c->g.swiglu ? 5e-3f : 1e-4f);
            }
}

static void gmm_run(lg_mosaic_gmm g) {
    int32_t expert[4] = {2, 2, 0, 0}, block[4] = {0, 2, 1, 1}, live[4] = {1, 1, 1, 0},
            layer[1] = {1};
    bool narrow = g.act == LG_M_E4M3;
    gmm_case c = {.g = g, .layer = 1, .w = narrow ? 2 : 1};
    lg_mosaic_gmm_kernel(&c.g, &c.k, &c.body);
    mosaic_shapes(&c.k, c.win);
    uint32_t per = g.weight == LG_M_E4M3 ? 2 : 1;
    c.win[0].f = mosaic_drawn(mosaic_elements(&c.win[0]), 1.0f, true);
    if (narrow) {
        for (size_t i = 0; i < mosaic_elements(&c.win[0]); i++)
            c.win[0].f[i] = mosaic_e4m3(100 * c.win[0].f[i]);
        c.win[1].f = mosaic_drawn(mosaic_elements(&c.win[1]), 0.01f, false);
    }
    mosaic_array *w = &c.win[c.w];
    w->f = mosaic_drawn(mosaic_elements(w), 1.0f, true);
    if (g.weight == LG_M_E4M3) {
        for (size_t i = 0; i < mosaic_elements(w); i++) w->f[i] = mosaic_e4m3(w->f[i]);
        w[1].f = mosaic_drawn(mosaic_elements(&w[1]), 0.2f, false);
    }
    /* The expert without rows holds NaN: it must not be looked at. */
    size_t n = mosaic_elements(w) / g.n_stack / g.n_expert;
    for (uint32_t l = 0; l < g.n_stack; l++)
        for (size_t i = 0; i < n; i++) w->f[((size_t)l * g.n_expert + 1) * n + i] = NAN;
    if (g.swiglu)
        for (uint32_t i = 0; i < per; i++) w[per + i].f = w[i].f;
    c.win[c.k.n_in].f = mosaic_drawn(mosaic_elements(&c.win[c.k.n_in]), 1.0f, false);
    mosaic_array fetch[4] = {{.rank = 1, .dim = {4}, .i = expert},
                             {.rank = 1, .dim = {4}, .i = block},
                             {.rank = 1, .dim = {4}, .i = live},
                             {.rank = 1, .dim = {1}, .i = layer}};
    for (int way = mosaic_first_way(); way < mosaic_end_way(); way++) {
        mosaic_run_way(way, &c.body, fetch, c.win, &c.k, twin_gmm, &c.g);
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

static void test_gmm(void **state) {
    (void)state;
    mosaic_text(all_gmm);
}

static void test_twin_gmm(void **state) {
    (void)state;
    mosaic_twin(all_gmm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gmm),
        cmocka_unit_test(test_twin_gmm),
    };
    return cmocka_run_group_tests(tests, mosaic_start, mosaic_finish);
}
