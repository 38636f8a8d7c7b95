/* mosaic_gmm.c - rows times the matrix of their expert, as a Mosaic kernel.
 *
 * Rows are sorted by expert and cut into tiles that hold rows of one expert only.  The grid runs over tiles inside panels of
 * output columns: tiles of one expert follow each other, so its panel is read once, and experts without rows are never read.
 * Weights stay as they are stored; FP8 becomes BF16 in VMEM (exact) on its way to the matrix unit, unless rows are FP8 too: then the
 * unit multiplies FP8.  The sum over inputs is cut into blocks as wide as a scale reaches: a block's product, made 512 inputs at a time
 * and summed in F32, times its scales, is added.
 * With gate and up in one weight both panels of the same columns are read, and silu(gate) * up is all that is written.
 * Test: tests/unit/test_mosaic_gmm.c */
#include "backend/pjrt/mosaic/mosaic_kern.h"

#define PANEL_BYTES (2u << 20) /* of weights in one window at most */
#define K_STEP      512 /* inputs of one product, where they divide what a scale reaches */

enum { EXPERT, BLOCK, LIVE, LAYER };

/* Output columns of a window: whole tiles of 128 that divide n_out, and not much more than a step's overhead to read. */
static uint32_t panel_cols(const lg_mosaic_gmm *g) {
    uint64_t bytes = g->weight == LG_M_E4M3 ? 1 : 2, best = 0;
    if (g->cols) return g->cols;
    for (uint32_t c = 128; c <= g->n_out; c += 128)
        if (g->n_out % c == 0 && (c == 128 || c * bytes * g->n_in <= PANEL_BYTES)) best = c;
    return best ? (uint32_t)best : g->n_out;
}

bool lg_mosaic_gmm_fits(const lg_mosaic_gmm *g) {
    bool narrow = g->act == LG_M_E4M3;
    if ((!narrow && g->act != LG_M_BF16) || (narrow && g->weight != LG_M_E4M3) ||
        (g->swiglu && g->hidden != LG_M_BF16))
        return false;
    if (!g->n_tile || !g->n_stack || !g->n_expert || !g->n_in || !g->n_out) return false;
    if (g->tile_rows % (narrow ? 32 : 16) || !g->tile_rows || g->n_out % 128 ||
        g->k_block % 128 || !g->k_block)
        return false;
    if (g->tiled && (g->k_block != 128 || g->weight != LG_M_E4M3)) return false;
    if (g->cols && (g->cols % 128 || g->n_out % g->cols)) return false;
    return g->n_in % g->k_block == 0 && (g->weight == LG_M_BF16 || g->weight == LG_M_E4M3);
}

void lg_mosaic_gmm_shape(const lg_mosaic_gmm *g, lg_mosaic_kernel *k) {
    uint32_t t = g->n_tile, tm = g->tile_rows, cols = panel_cols(g),
             all = g->n_out * (g->swiglu ? 2 : 1);
    uint32_t nb = g->n_in / g->k_block, e = g->n_expert, l = g->n_stack, n = 0,
             pair = g->swiglu ? 2 : 1;
    lg_mosaic_at z = lg_mosaic_zero_at(), col = lg_mosaic_grid_at(0),
                 row = lg_mosaic_fetch_at(BLOCK, 1, 0);
    lg_mosaic_at ex = lg_mosaic_fetch_at(EXPERT, 1, 0), at = lg_mosaic_fetch_at(LAYER, -1, 0);
    *k = (lg_mosaic_kernel){.name = g->swiglu ? "gmm_swiglu" : "gmm",
                            .n_grid = 2,
                            .grid = {g->n_out / cols, t},
                            .n_fetch = 4,
                            .fetch = {t, t, t, 1}};
    k->win[n++] = (lg_mosaic_window){g->act, 2, {t * tm, g->n_in}, {tm, g->n_in}, {row, z}, 0};
    if (g->act == LG_M_E4M3)
        k->win[n++] = (lg_mosaic_window){LG_M_F32, 2, {t * tm, nb}, {tm, nb}, {row, z}, 0};
    for (uint32_t i = 0; i < pair; i++) {
        lg_mosaic_at c =
            i ? (lg_mosaic_at){.kind = LG_M_AT_ADD, .g = 0, .add = g->n_out / cols} : col;
        k->win[n++] = (lg_mosaic_window){
            g->weight, 4, {l, e, all, g->n_in}, {1, 1, cols, g->n_in}, {at, ex, c, z}, 0};
        if (g->weight == LG_M_E4M3 && g->tiled)
            k->win[n++] = (lg_mosaic_window){
                LG_M_F32, 4, {l, e, all / 128, nb}, {1, 1, all / 128, nb}, {at, ex, z, z}, 0};
        else if (g->weight == LG_M_E4M3)
            k->win[n++] = (lg_mosaic_window){
                LG_M_F32, 4, {l, e, nb, all}, {1, 1, nb, cols}, {at, ex, z, c}, 0};
    }
    k->n_in = n;
    k->n_out = 1;
    k->win[n] = (lg_mosaic_window){
        g->swiglu ? g->hidden : LG_M_F32, 2, {t * tm, g->n_out}, {tm, cols}, {row, col}, 0};
    lg_mosaic_limit(k);
}

/* Scales of the panel's columns, [n_in / k_block][cols].  Those of tiles are turned and repeated by products with zeros and ones,
 * which in full precision are exact.  from: the panel's first channel (i32). */
static lg_mv panel_scales(lg_mosaic *m, const lg_mosaic_gmm *g, uint32_t window, uint32_t cols,
                          lg_mv from, lg_mv z) {
    lg_mv at[4] = {z, z, z, z};
    uint32_t nb = g->n_in / g->k_block;
    if (!g->tiled) return lg_mosaic_load_rows(m, m->win[window], at, nb, cols);
    uint32_t rows = m->win[window].type.dim[2];
    lg_mv s = lg_mosaic_load_rows(m, m->win[window], at, rows, nb);
    lg_mv eye = lg_mosaic_cmp(m, 0, lg_mosaic_iota(m, nb, nb, 0), lg_mosaic_iota(m, nb, nb, 1));
    eye = lg_mosaic_select(m, eye, lg_mosaic_fill_f32(m, nb, nb, 1.0f),
                           lg_mosaic_fill_f32(m, nb, nb, 0.0f));
    lg_mv turned =
        lg_mosaic_matmul(m, eye, s, lg_mosaic_fill_f32(m, nb, rows, 0.0f), false, true);
    lg_mv channel = lg_mosaic_bin(m, "arith.addi", lg_mosaic_iota(m, rows, cols, 1),
                                  lg_mosaic_spread(m, from, rows, cols));
    lg_mv first = lg_mosaic_bin(m, "arith.muli", lg_mosaic_iota(m, rows, cols, 0),
                                lg_mosaic_fill_i32(m, rows, cols, 128));
    lg_mv next = lg_mosaic_bin(m, "arith.addi", first, lg_mosaic_fill_i32(m, rows, cols, 128));
    lg_mv in = lg_mosaic_bin(m, "arith.andi", lg_mosaic_cmp(m, 3, first, channel),
                             lg_mosaic_cmp(m, 2, channel, next));
    in = lg_mosaic_select(m, in, lg_mosaic_fill_f32(m, rows, cols, 1.0f),
                          lg_mosaic_fill_f32(m, rows, cols, 0.0f));
    return lg_mosaic_matmul(m, turned, in, lg_mosaic_fill_f32(m, nb, cols, 0.0f), false, false);
}

/* One panel: x [tile_rows][n_in] times the panel's rows, [tile_rows][cols]. */
static lg_mv panel(lg_mosaic *m, const lg_mosaic_gmm *g, uint32_t weight, uint32_t first,
                   lg_mv z) {
    uint32_t cols = m->win[weight].type.dim[2], kb = g->k_block;
    uint32_t step = kb % K_STEP ? kb : K_STEP;
    lg_mv zero = lg_mosaic_fill_f32(m, g->tile_rows, cols, 0.0f), sum = zero, part = zero,
          scale = {0}, row_scale = {0};
    if (g->act == LG_M_E4M3)
        row_scale = lg_mosaic_load_rows(m, m->win[1], (lg_mv[]){z, z}, g->tile_rows,
                                        g->n_in / g->k_block);
    if (g->weight == LG_M_E4M3) {
        lg_mv from =
            lg_mosaic_bin(m, "arith.muli", m->grid[0], lg_mosaic_i32(m, (int32_t)cols));
        from = lg_mosaic_bin(m, "arith.addi", from, lg_mosaic_i32(m, (int32_t)first));
        scale = panel_scales(m, g, weight + 1, cols, from, z);
    }
    for (uint32_t k = 0; k < g->n_in; k += step) {
        lg_mv at = lg_mosaic_index(m, k);
        lg_mv x =
            lg_mosaic_load(m, m->win[0], (lg_mv[]){z, at}, (uint32_t[]){g->tile_rows, step});
        lg_mv w = lg_mosaic_load(m, m->win[weight], (lg_mv[]){z, z, z, at},
                                 (uint32_t[]){1, 1, cols, step});
        w = lg_mosaic_matrix_of(m, w, cols, step);
        if (g->act != LG_M_E4M3) w = lg_mosaic_to(m, w, LG_M_BF16);
        part = lg_mosaic_matmul(m, x, w, part, false, true);
        if (g->weight != LG_M_E4M3 || (k + step) % kb) continue;
        lg_mv s = lg_mosaic_slice(m, scale, k / kb, 0, 1, cols);
        part = lg_mosaic_mul(m, part, lg_mosaic_spread(m, s, g->tile_rows, cols));
        if (g->act == LG_M_E4M3) {
            s = lg_mosaic_slice(m, row_scale, 0, k / kb, g->tile_rows, 1);
            part = lg_mosaic_mul(m, part, lg_mosaic_spread(m, s, g->tile_rows, cols));
        }
        sum = lg_mosaic_add(m, sum, part);
        part = zero;
    }
    return g->weight == LG_M_E4M3 ? sum : part;
}

void lg_mosaic_gmm_kernel(const lg_mosaic_gmm *g, lg_mosaic_kernel *k, lg_buf *body) {
    lg_mosaic w, *m = &w;
    LG_ASSERT(lg_mosaic_gmm_fits(g));
    lg_mosaic_gmm_shape(g, k);
    lg_mosaic_begin(m, k, body);
    lg_mv z = lg_mosaic_index(m, 0);
    lg_mv live = lg_mosaic_scalar(m, m->fetch[LIVE], lg_mosaic_to(m, m->grid[1], LG_M_INDEX));
    lg_mosaic_if(m, lg_mosaic_cmp(m, 1, live, lg_mosaic_i32(m, 0)));
    uint32_t first = g->act == LG_M_E4M3 ? 2 : 1;
    lg_mv y = panel(m, g, first, 0, z);
    if (g->swiglu) {
        lg_mv up = panel(m, g, first + (g->weight == LG_M_E4M3 ? 2 : 1), g->n_out, z);
        y = lg_mosaic_mul(m, lg_mosaic_mul(m, y, lg_mosaic_sigmoid(m, y)), up);
    }
    lg_mosaic_store_rows(m, y, m->win[k->n_in], (lg_mv[]){z, z});
    lg_mosaic_if_end(m);
    lg_mosaic_end(m);
}
