/* mosaic_gdn_chunk.c - Gated DeltaNet for many rows of a sequence, 64 at a time, as a Mosaic kernel.
 *
 * One grid step is one tile of C = 64 rows of one sequence.  The states of all value heads stay in F32 scratch from tile to
 * tile; the pool is read at a sequence's first tile and holds what the last one left.  Chunked form, per value head, with
 * c_r the sum of the gates up to row r (so every exponent is at most 0), N the part below the diagonal of
 * beta_r (k_r.k_j) e^(c_r - c_j):
 *     (I + N) [U | W] = [beta v | beta e^c k]      solved in blocks of 16 rows, whose own inverses come first
 *     Y, Z = W S, (e^c q) S;   D = U - Y;   O = Z + lower((q.k) e^(c_r - c_j)) D;   S = e^c_C S + (e^(c_C - c_r) k)^T D
 * Rows beyond a tile's count as q = k = v = 0, beta = 0, gate 0, which changes nothing.
 * Everything is F32, products in full precision: what bfloat16 costs here must be measured on a device first.
 * Test: tests/unit/test_mosaic_gdn.c */
#include "backend/pjrt/mosaic/mosaic_gdn.h"

#define D   LG_MOSAIC_GDN_D
#define C   LG_MOSAIC_CHUNK
#define SUB 16u /* rows of a block of the solution */
#define PAD 8u  /* rows before the tile's in X: the last three are the earlier rows */

enum { ROWS = GDN_LAYER, LAYER_AT }; /* prefetched: slot, mode, rows, layer */
enum { X, U, PREV, GATE, BETA, S, N_SCRATCH };

void lg_mosaic_gdn_prefill_shape(const lg_mosaic_gdn *g, lg_mosaic_kernel *k) {
    uint32_t r = 2 * g->nk + g->nv, nv = g->nv, n = g->n_row, d = g->d;
    lg_mosaic_at i = lg_mosaic_grid_at(0), z = lg_mosaic_zero_at();
    *k = (lg_mosaic_kernel){
        .name = "gdn_prefill", .n_grid = 1, .grid = {n}, .n_fetch = 4, .fetch = {n, n, n, 2}};
    k->win[GDN_QKV] = (lg_mosaic_window){g->act, 2, {n * C, r * d}, {C, r * d}, {i, z}, 0};
    k->win[GDN_A] = (lg_mosaic_window){LG_M_F32, 3, {n, nv, C}, {1, nv, C}, {i, z, z}, 0};
    k->win[GDN_B] = k->win[GDN_A];
    k->win[GDN_OUT] = (lg_mosaic_window){g->act, 2, {n * C, nv * d}, {C, nv * d}, {i, z}, 0};
    lg_mosaic_gdn_windows(g, k);
    for (uint32_t w = 0; w < k->n_in + k->n_out; w++)
        for (uint32_t j = 0; j < k->win[w].rank; j++)
            if (k->win[w].at[j].kind == LG_M_AT_FETCH && k->win[w].at[j].fetch == GDN_LAYER)
                k->win[w].at[j].fetch = LAYER_AT;
    k->n_scratch = N_SCRATCH;
    k->scratch[X] = lg_mosaic_vmem(LG_M_F32, 3, (uint32_t[]){r, PAD + C, d});
    k->scratch[U] = lg_mosaic_vmem(LG_M_F32, 3, (uint32_t[]){r, C, d});
    k->scratch[PREV] = lg_mosaic_vmem(LG_M_F32, 3, (uint32_t[]){3, r, d});
    k->scratch[GATE] = k->scratch[BETA] = lg_mosaic_vmem(LG_M_F32, 2, (uint32_t[]){nv, C});
    k->scratch[S] = lg_mosaic_vmem(LG_M_F32, 3, (uint32_t[]){nv, d, d});
    lg_mosaic_limit(k);
}

/* What a tile knows of itself. */
typedef struct tile {
    lg_mv z, rows, first,
        has; /* index 0; rows (i32); first tile of its sequence; its slot holds something */
    uint32_t r, nk, nv;
} tile;

static lg_mv index_of(lg_mosaic *m, lg_mv i, uint32_t times) {
    if (times != 1) i = lg_mosaic_bin(m, "arith.muli", i, lg_mosaic_i32(m, (int32_t)times));
    return lg_mosaic_to(m, i, LG_M_INDEX);
}

/* Rows of one head in scratch X or U: [rows][D] from `row` on, and back. */
static lg_mv head_rows(lg_mosaic *m, int scratch, lg_mv head, lg_mv row, uint32_t rows) {
    lg_mv z = lg_mosaic_index(m, 0);
    return lg_mosaic_load_rows(m, m->scratch[scratch], (lg_mv[]){head, row, z}, rows, D);
}

static void put_rows(lg_mosaic *m, lg_mv v, int scratch, lg_mv head, uint32_t row) {
    lg_mv z = lg_mosaic_index(m, 0);
    lg_mosaic_store_rows(m, v, m->scratch[scratch],
                         (lg_mv[]){head, lg_mosaic_index(m, row), z});
}

static lg_mv i32_less(lg_mosaic *m, lg_mv x, lg_mv bound) {
    return lg_mosaic_cmp(m, 2, x, lg_mosaic_spread(m, bound, x.type.dim[0], x.type.dim[1]));
}

/* The pool's earlier rows as F32: single rows of BF16 cannot be read at a place known late. */
static void chunk_earlier(lg_mosaic *m, const tile *t) {
    lg_mosaic_if(m, t->first);
    for (uint32_t j = 0; j < 3; j++) {
        lg_mv at = lg_mosaic_index(m, j);
        lg_mv v = lg_mosaic_load_rows(m, m->win[GDN_CONV],
                                      (lg_mv[]){t->z, t->z, at, t->z, t->z}, t->r, D);
        v = lg_mosaic_select(m, t->has, v, lg_mosaic_fill_f32(m, t->r, D, 0.0f));
        lg_mosaic_store_rows(m, v, m->scratch[PREV], (lg_mv[]){at, t->z, t->z});
    }
    lg_mosaic_if_end(m);
}

/* Convolution and SiLU of head `i`: 128 lanes, all rows. */
static void chunk_conv_head(lg_mosaic *m, const tile *t, lg_mv i) {
    lg_mv head = lg_mosaic_to(m, i, LG_M_INDEX), lane = index_of(m, i, D), sum = {0};
    /* The last three rows of the tile before, which was full, or the pool's. */
    put_rows(m, head_rows(m, X, head, lg_mosaic_index(m, C), PAD), X, head, 0);
    lg_mosaic_if(m, t->first);
    for (uint32_t j = 0; j < 3; j++) {
        lg_mv v = lg_mosaic_load_rows(m, m->scratch[PREV],
                                      (lg_mv[]){lg_mosaic_index(m, j), head, t->z}, 1, D);
        put_rows(m, v, X, head, PAD - 3 + j);
    }
    lg_mosaic_if_end(m);
    lg_mv x = lg_mosaic_load(m, m->win[GDN_QKV], (lg_mv[]){t->z, lane}, (uint32_t[]){C, D});
    put_rows(m, lg_mosaic_to(m, x, LG_M_F32), X, head, PAD);
    for (uint32_t j = 0; j < 4; j++) {
        lg_mv w = lg_mosaic_load_rows(m, m->win[GDN_CONV_W],
                                      (lg_mv[]){t->z, lg_mosaic_index(m, j), head, t->z}, 1, D);
        lg_mv p = lg_mosaic_mul(m, lg_mosaic_spread(m, w, C, D),
                                head_rows(m, X, head, lg_mosaic_index(m, PAD - 3 + j), C));
        sum = j ? lg_mosaic_add(m, sum, p) : p;
    }
    lg_mv u = lg_mosaic_mul(m, sum, lg_mosaic_sigmoid(m, sum));
    lg_mv real = i32_less(m, lg_mosaic_iota(m, C, D, 0), t->rows);
    u = lg_mosaic_select(m, real, u, lg_mosaic_fill_f32(m, C, D, 0.0f));
    put_rows(m, u, U, head, 0);
    /* The newest three rows, for the pool. */
    for (uint32_t j = 0; j < 3; j++) {
        lg_mv row =
            lg_mosaic_bin(m, "arith.addi", t->rows, lg_mosaic_i32(m, (int32_t)(PAD - 3 + j)));
        lg_mv v = head_rows(m, X, head, lg_mosaic_to(m, row, LG_M_INDEX), 1);
        lg_mosaic_store_rows(m, v, m->scratch[PREV],
                             (lg_mv[]){lg_mosaic_index(m, j), head, t->z});
    }
}

/* Sums of the log decay along the tile, and beta, both [nv][C]; rows beyond the tile's: no decay, beta 0. */
static void chunk_gates(lg_mosaic *m, const tile *t) {
    uint32_t nv = t->nv;
    lg_mv z = t->z, at[3] = {z, z, z}, at2[2] = {z, z};
    lg_mv a = lg_mosaic_load_rows(m, m->win[GDN_A], at, nv, C),
          b = lg_mosaic_load_rows(m, m->win[GDN_B], at, nv, C);
    lg_mv neg = lg_mosaic_column(m, lg_mosaic_load_rows(m, m->win[GDN_NEG_A], at, 1, nv));
    lg_mv dt = lg_mosaic_column(m, lg_mosaic_load_rows(m, m->win[GDN_DT], at, 1, nv));
    lg_mv g = lg_mosaic_softplus(m, lg_mosaic_add(m, a, lg_mosaic_spread(m, dt, nv, C)));
    g = lg_mosaic_mul(m, lg_mosaic_spread(m, neg, nv, C), g);
    lg_mv real = i32_less(m, lg_mosaic_iota(m, nv, C, 1), t->rows),
          none = lg_mosaic_fill_f32(m, nv, C, 0.0f);
    g = lg_mosaic_select(m, real, g, none);
    lg_mv upto = lg_mosaic_cmp(m, 3, lg_mosaic_iota(m, C, C, 0), lg_mosaic_iota(m, C, C, 1));
    lg_mv ones = lg_mosaic_select(m, upto, lg_mosaic_fill_f32(m, C, C, 1.0f),
                                  lg_mosaic_fill_f32(m, C, C, 0.0f));
    lg_mosaic_store(m, lg_mosaic_matmul(m, g, ones, none, false, false), m->scratch[GATE], at2);
    lg_mosaic_store(m, lg_mosaic_select(m, real, lg_mosaic_sigmoid(m, b), none),
                    m->scratch[BETA], at2);
}

/* Inverses of the diagonal blocks of I + N, all at once: [C][SUB], block b in rows b SUB on.  Column by column, every row
 * below takes its share of the finished row away. */
static lg_mv block_inverses(lg_mosaic *m, lg_mv n) {
    const uint32_t nb = C / SUB, all[3] = {nb, SUB, SUB}, col[3] = {nb, SUB, 1},
                   row[3] = {nb, 1, SUB};
    lg_mv part[C / SUB];
    for (uint32_t b = 0; b < nb; b++)
        part[b] = lg_mosaic_slice(m, n, b * SUB, b * SUB, SUB, SUB);
    lg_mv d = lg_mosaic_shape(m, lg_mosaic_stack(m, part, nb, 0), 3, all);
    lg_mv eye =
        lg_mosaic_cmp(m, 0, lg_mosaic_iota(m, SUB, SUB, 0), lg_mosaic_iota(m, SUB, SUB, 1));
    lg_mv one = lg_mosaic_select(m, eye, lg_mosaic_fill_f32(m, SUB, SUB, 1.0f),
                                 lg_mosaic_fill_f32(m, SUB, SUB, 0.0f));
    for (uint32_t b = 0; b < nb; b++) part[b] = one;
    lg_mv x = lg_mosaic_shape(m, lg_mosaic_stack(m, part, nb, 0), 3, all);
    for (uint32_t j = 0; j + 1 < SUB; j++) {
        lg_mv c = lg_mosaic_spread_to(m, lg_mosaic_slice_of(m, d, (uint32_t[]){0, 0, j}, col),
                                      3, all);
        lg_mv r = lg_mosaic_spread_to(m, lg_mosaic_slice_of(m, x, (uint32_t[]){0, j, 0}, row),
                                      3, all);
        x = lg_mosaic_sub(m, x, lg_mosaic_mul(m, c, r));
    }
    return lg_mosaic_matrix_of(m, x, C, SUB);
}

/* X of (I + N) X = rhs [C][2 D]. */
static lg_mv solve(lg_mosaic *m, lg_mv n, lg_mv rhs) {
    lg_mv inv = block_inverses(m, n), zero = lg_mosaic_fill_f32(m, SUB, 2 * D, 0.0f),
          part[C / SUB], x = {0};
    for (uint32_t b = 0; b < C / SUB; b++) {
        lg_mv r = lg_mosaic_slice(m, rhs, b * SUB, 0, SUB, 2 * D);
        if (b) {
            lg_mv known = lg_mosaic_slice(m, n, b * SUB, 0, SUB, b * SUB);
            r = lg_mosaic_sub(m, r, lg_mosaic_matmul(m, known, x, zero, false, false));
        }
        part[b] = lg_mosaic_matmul(m, lg_mosaic_slice(m, inv, b * SUB, 0, SUB, SUB), r, zero,
                                   false, false);
        x = lg_mosaic_stack(m, part, b + 1, 0);
    }
    return x;
}

/* What the value heads of one key head share. */
typedef struct key_head {
    lg_mv q, k, kt, kk, qk; /* [C][D] twice, [D][C], [C][C] twice */
} key_head;

static void chunk_head(lg_mosaic *m, const tile *t, const key_head *h, lg_mv i) {
    lg_mv z = t->z, at = lg_mosaic_to(m, i, LG_M_INDEX);
    lg_mv cc = lg_mosaic_fill_f32(m, C, C, 0.0f), cd = lg_mosaic_fill_f32(m, C, D, 0.0f);
    lg_mv dd = lg_mosaic_fill_f32(m, D, D, 0.0f);
    lg_mv v_head = lg_mosaic_bin(m, "arith.addi", i, lg_mosaic_i32(m, (int32_t)(2 * t->nk)));
    lg_mv v = head_rows(m, U, lg_mosaic_to(m, v_head, LG_M_INDEX), z, C);
    lg_mv s = lg_mosaic_load_rows(m, m->scratch[S], (lg_mv[]){at, z, z}, D, D);
    lg_mv pool = lg_mosaic_load_rows(m, m->win[GDN_STATE], (lg_mv[]){z, z, at, z, z}, D, D);
    s = lg_mosaic_select(m, t->first, lg_mosaic_select(m, t->has, pool, dd), s);

    lg_mv c_row = lg_mosaic_load(m, m->scratch[GATE], (lg_mv[]){at, z}, (uint32_t[]){1, C});
    lg_mv c_col = lg_mosaic_column(m, c_row);
    lg_mv beta = lg_mosaic_column(
        m, lg_mosaic_load(m, m->scratch[BETA], (lg_mv[]){at, z}, (uint32_t[]){1, C}));
    lg_mv row = lg_mosaic_iota(m, C, C, 0), col = lg_mosaic_iota(m, C, C, 1);
    lg_mv lower = lg_mosaic_cmp(m, 3, col, row), below = lg_mosaic_cmp(m, 2, col, row);
    lg_mv gap =
        lg_mosaic_sub(m, lg_mosaic_spread(m, c_col, C, C), lg_mosaic_spread(m, c_row, C, C));
    lg_mv l = lg_mosaic_un(
        m, "math.exp",
        lg_mosaic_select(m, lower, gap, cc)); /* above the diagonal it would overflow */
    lg_mv n = lg_mosaic_mul(m, lg_mosaic_mul(m, lg_mosaic_spread(m, beta, C, C), h->kk), l);
    n = lg_mosaic_select(m, below, n, cc);

    lg_mv e_col = lg_mosaic_spread(m, lg_mosaic_un(m, "math.exp", c_col), C, D),
          b_col = lg_mosaic_spread(m, beta, C, D);
    lg_mv ek = lg_mosaic_mul(m, b_col, lg_mosaic_mul(m, e_col, h->k));
    lg_mv uw = solve(m, n, lg_mosaic_stack(m, (lg_mv[]){lg_mosaic_mul(m, b_col, v), ek}, 2, 1));
    lg_mv w = lg_mosaic_slice(m, uw, 0, D, C, D), u = lg_mosaic_slice(m, uw, 0, 0, C, D);
    lg_mv two = lg_mosaic_stack(m, (lg_mv[]){w, lg_mosaic_mul(m, e_col, h->q)}, 2, 0);
    lg_mv yz = lg_mosaic_matmul(m, two, s, lg_mosaic_fill_f32(m, 2 * C, D, 0.0f), false, false);
    lg_mv delta = lg_mosaic_sub(m, u, lg_mosaic_slice(m, yz, 0, 0, C, D));
    lg_mv p = lg_mosaic_select(m, lower, lg_mosaic_mul(m, h->qk, l), cc);
    lg_mv o = lg_mosaic_add(m, lg_mosaic_slice(m, yz, C, 0, C, D),
                            lg_mosaic_matmul(m, p, delta, cd, false, false));
    lg_mosaic_store(m, lg_mosaic_to(m, o, m->win[GDN_OUT].type.elem), m->win[GDN_OUT],
                    (lg_mv[]){z, index_of(m, i, D)});

    lg_mv c_end = lg_mosaic_slice(m, c_row, 0, C - 1, 1, 1);
    lg_mv rest =
        lg_mosaic_un(m, "math.exp", lg_mosaic_sub(m, lg_mosaic_spread(m, c_end, 1, C), c_row));
    lg_mv kt = lg_mosaic_mul(m, h->kt, lg_mosaic_spread(m, rest, D, C));
    lg_mv kept =
        lg_mosaic_mul(m, lg_mosaic_spread(m, lg_mosaic_un(m, "math.exp", c_end), D, D), s);
    s = lg_mosaic_matmul(m, kt, delta, kept, false, false);
    lg_mosaic_store_rows(m, s, m->scratch[S], (lg_mv[]){at, z, z});
    lg_mosaic_store_rows(m, s, m->win[GDN_STATE_OUT], (lg_mv[]){z, z, at, z, z});
}

static void chunk_heads(lg_mosaic *m, const tile *t) {
    lg_mv zero = lg_mosaic_i32(m, 0), cc = lg_mosaic_fill_f32(m, C, C, 0.0f);
    uint32_t rep = t->nv / t->nk;
    key_head h;
    lg_mv g = lg_mosaic_for(m, zero, lg_mosaic_i32(m, (int32_t)t->nk));
    lg_mv k_head = lg_mosaic_bin(m, "arith.addi", g, lg_mosaic_i32(m, (int32_t)t->nk));
    h.q = lg_mosaic_unit_rows(m, head_rows(m, U, lg_mosaic_to(m, g, LG_M_INDEX), t->z, C),
                              0.08838834764831845f);
    h.k = lg_mosaic_unit_rows(m, head_rows(m, U, lg_mosaic_to(m, k_head, LG_M_INDEX), t->z, C),
                              1.0f);
    h.kt = lg_mosaic_transpose(m, h.k);
    h.kk = lg_mosaic_matmul(m, h.k, h.k, cc, false, true);
    h.qk = lg_mosaic_matmul(m, h.q, h.k, cc, false, true);
    lg_mv first = lg_mosaic_bin(m, "arith.muli", g, lg_mosaic_i32(m, (int32_t)rep));
    lg_mv j = lg_mosaic_for(m, zero, lg_mosaic_i32(m, (int32_t)rep));
    chunk_head(m, t, &h, lg_mosaic_bin(m, "arith.addi", first, j));
    lg_mosaic_for_end(m);
    lg_mosaic_for_end(m);
}

void lg_mosaic_gdn_prefill(const lg_mosaic_gdn *g, lg_mosaic_kernel *k, lg_buf *body) {
    lg_mosaic w, *m = &w;
    LG_ASSERT(lg_mosaic_gdn_fits(g));
    lg_mosaic_gdn_prefill_shape(g, k);
    lg_mosaic_begin(m, k, body);
    lg_mv z = lg_mosaic_index(m, 0), zero = lg_mosaic_i32(m, 0),
          i = lg_mosaic_to(m, m->grid[0], LG_M_INDEX);
    lg_mv mode = lg_mosaic_scalar(m, m->fetch[GDN_MODE], i);
    tile t = {.z = z, .r = 2 * g->nk + g->nv, .nk = g->nk, .nv = g->nv};
    t.rows = lg_mosaic_scalar(m, m->fetch[ROWS], i);
    t.first = lg_mosaic_cmp(m, 1, mode, lg_mosaic_i32(m, LG_MOSAIC_FOLLOWS));
    t.has = lg_mosaic_cmp(m, 0, mode, lg_mosaic_i32(m, LG_MOSAIC_GOES_ON));
    lg_mosaic_gdn_through(m, GDN_CONV, GDN_CONV_OUT, mode, z);
    lg_mosaic_gdn_through(m, GDN_STATE, GDN_STATE_OUT, mode, z);
    lg_mosaic_if(m, lg_mosaic_cmp(m, 1, mode, zero));
    chunk_earlier(m, &t);
    lg_mv head = lg_mosaic_for(m, zero, lg_mosaic_i32(m, (int32_t)t.r));
    chunk_conv_head(m, &t, head);
    lg_mosaic_for_end(m);
    for (uint32_t j = 0; j < 3; j++) {
        lg_mv at = lg_mosaic_index(m, j);
        lg_mv v = lg_mosaic_load_rows(m, m->scratch[PREV], (lg_mv[]){at, z, z}, t.r, D);
        lg_mosaic_store_rows(m, v, m->win[GDN_CONV_OUT], (lg_mv[]){z, z, at, z, z});
    }
    chunk_gates(m, &t);
    chunk_heads(m, &t);
    lg_mosaic_if_end(m);
    lg_mosaic_end(m);
}
