/* mosaic_gdn.c - Gated DeltaNet for one row of each sequence, as a Mosaic kernel.
 *
 * One grid step is one sequence: its earlier rows and its states of all value heads come in through windows whose block is
 * chosen by the prefetched slot, and go out to the same place.  While a step computes, the next sequence's states are on
 * their way, so the kernel runs at the speed of one read and one write of the state (MODEL.md, section 5: with the old S,
 * r = k^T S and p = q^T S come from one pass, and the result is e p + (q.k) delta).
 * Heads are rows of 128 lanes, so convolution, gates and norms are whole-register work on [heads][128].
 * The products with S are sums over sublanes on the vector unit, in F32: at one row the matrix unit has nothing to gain.
 * Test: tests/unit/test_mosaic_gdn.c */
#include "backend/pjrt/mosaic/mosaic_gdn.h"

#define D LG_MOSAIC_GDN_D

/* Scratch: [heads][128] each. */
enum { Q_HEAD, K_HEAD, QK, V_HEAD, DECAY, BETA, O_HEAD, N_SCRATCH };

void lg_mosaic_gdn_decode_shape(const lg_mosaic_gdn *g, lg_mosaic_kernel *k) {
    uint32_t r = 2 * g->nk + g->nv, nv = g->nv, t = g->n_row, d = g->d;
    lg_mosaic_at i = lg_mosaic_grid_at(0), z = lg_mosaic_zero_at();
    *k = (lg_mosaic_kernel){
        .name = "gdn_decode", .n_grid = 1, .grid = {t}, .n_fetch = 3, .fetch = {t, t, 2}};
    k->win[GDN_QKV] = (lg_mosaic_window){g->act, 3, {t, r, d}, {1, r, d}, {i, z, z}, 0};
    k->win[GDN_A] = (lg_mosaic_window){LG_M_F32, 3, {t, 1, nv}, {1, 1, nv}, {i, z, z}, 0};
    k->win[GDN_B] = k->win[GDN_A];
    k->win[GDN_OUT] = (lg_mosaic_window){g->act, 3, {t, nv, d}, {1, nv, d}, {i, z, z}, 0};
    lg_mosaic_gdn_windows(g, k);
    k->n_scratch = N_SCRATCH;
    for (uint32_t j = 0; j < N_SCRATCH; j++)
        k->scratch[j] = lg_mosaic_vmem(LG_M_F32, 2, (uint32_t[]){j < V_HEAD ? g->nk : nv, d});
    lg_mosaic_limit(k);
}

/* The convolution with SiLU over all R rows of 128; the newest three raw rows become the earlier ones. */
static lg_mv decode_conv(lg_mosaic *m, lg_mv has, lg_mv z, uint32_t r) {
    lg_mv zero = lg_mosaic_fill_f32(m, r, D, 0.0f), tap[4], sum = zero;
    for (uint32_t j = 0; j < 4; j++) {
        lg_mv at[5] = {z, z, j < 3 ? lg_mosaic_index(m, j) : z, z, z};
        if (j < 3)
            tap[j] = lg_mosaic_select(m, has,
                                      lg_mosaic_load_rows(m, m->win[GDN_CONV], at, r, D), zero);
        else
            tap[j] = lg_mosaic_load_rows(m, m->win[GDN_QKV], (lg_mv[]){z, z, z}, r, D);
        lg_mv w = lg_mosaic_load_rows(m, m->win[GDN_CONV_W],
                                      (lg_mv[]){z, lg_mosaic_index(m, j), z, z}, r, D);
        sum = j ? lg_mosaic_add(m, sum, lg_mosaic_mul(m, w, tap[j]))
                : lg_mosaic_mul(m, w, tap[j]);
    }
    for (uint32_t j = 0; j < 3; j++)
        lg_mosaic_store_rows(m, tap[j + 1], m->win[GDN_CONV_OUT],
                             (lg_mv[]){z, z, lg_mosaic_index(m, j), z, z});
    return lg_mosaic_mul(m, sum, lg_mosaic_sigmoid(m, sum));
}

/* Heads and gates of the step's row into scratch. */
static void decode_heads(lg_mosaic *m, const lg_mosaic_gdn *g, lg_mv u, lg_mv z) {
    uint32_t nk = g->nk, nv = g->nv;
    lg_mv at[2] = {z, z}, at3[3] = {z, z, z};
    lg_mv q = lg_mosaic_unit_rows(m, lg_mosaic_slice(m, u, 0, 0, nk, D), 0.08838834764831845f);
    lg_mv k = lg_mosaic_unit_rows(m, lg_mosaic_slice(m, u, nk, 0, nk, D), 1.0f);
    lg_mosaic_store(m, q, m->scratch[Q_HEAD], at);
    lg_mosaic_store(m, k, m->scratch[K_HEAD], at);
    lg_mosaic_store(m, lg_mosaic_slice(m, u, 2 * nk, 0, nv, D), m->scratch[V_HEAD], at);
    lg_mosaic_store(m, lg_mosaic_spread(m, lg_mosaic_sum(m, lg_mosaic_mul(m, q, k), 1), nk, D),
                    m->scratch[QK], at);
    lg_mv a = lg_mosaic_load_rows(m, m->win[GDN_A], at3, 1, nv),
          b = lg_mosaic_load_rows(m, m->win[GDN_B], at3, 1, nv);
    lg_mv neg = lg_mosaic_load_rows(m, m->win[GDN_NEG_A], at3, 1, nv),
          dt = lg_mosaic_load_rows(m, m->win[GDN_DT], at3, 1, nv);
    lg_mv decay = lg_mosaic_un(
        m, "math.exp", lg_mosaic_mul(m, neg, lg_mosaic_softplus(m, lg_mosaic_add(m, a, dt))));
    lg_mosaic_store(m, lg_mosaic_spread(m, lg_mosaic_column(m, decay), nv, D),
                    m->scratch[DECAY], at);
    lg_mosaic_store(m, lg_mosaic_spread(m, lg_mosaic_column(m, lg_mosaic_sigmoid(m, b)), nv, D),
                    m->scratch[BETA], at);
}

/* Row `at` of a scratch array. */
static lg_mv head_row(lg_mosaic *m, int scratch, lg_mv at, lg_mv z) {
    return lg_mosaic_load(m, m->scratch[scratch], (lg_mv[]){at, z}, (uint32_t[]){1, D});
}

/* One value head: reads its state once, writes it once. */
static void decode_head(lg_mosaic *m, lg_mv h, lg_mv kb, lg_mv qb, lg_mv qk, lg_mv has,
                        lg_mv z) {
    lg_mv at[5] = {z, z, h, z, z};
    lg_mv s = lg_mosaic_load_rows(m, m->win[GDN_STATE], at, D, D);
    s = lg_mosaic_select(m, has, s, lg_mosaic_fill_f32(m, D, D, 0.0f));
    lg_mv e = head_row(m, DECAY, h, z), beta = head_row(m, BETA, h, z),
          v = head_row(m, V_HEAD, h, z);
    lg_mv r = lg_mosaic_sum(m, lg_mosaic_mul(m, kb, s), 0),
          p = lg_mosaic_sum(m, lg_mosaic_mul(m, qb, s), 0);
    lg_mv delta = lg_mosaic_mul(m, beta, lg_mosaic_sub(m, v, lg_mosaic_mul(m, e, r)));
    lg_mv o = lg_mosaic_add(m, lg_mosaic_mul(m, e, p), lg_mosaic_mul(m, qk, delta));
    lg_mosaic_store(m, o, m->scratch[O_HEAD], (lg_mv[]){h, z});
    lg_mv kept = lg_mosaic_mul(m, lg_mosaic_spread(m, e, D, D), s);
    lg_mosaic_store_rows(
        m, lg_mosaic_add(m, kept, lg_mosaic_mul(m, kb, lg_mosaic_spread(m, delta, D, D))),
        m->win[GDN_STATE_OUT], at);
}

/* The body of a row that is one. */
static void decode_row(lg_mosaic *m, const lg_mosaic_gdn *g, lg_mv has, lg_mv z) {
    lg_mv zero = lg_mosaic_i32(m, 0);
    decode_heads(m, g, decode_conv(m, has, z, 2 * g->nk + g->nv), z);
    uint32_t rep = g->nv / g->nk;
    lg_mv i = lg_mosaic_for(m, zero, lg_mosaic_i32(m, (int32_t)g->nk));
    lg_mv key = lg_mosaic_to(m, i, LG_M_INDEX);
    lg_mv kb = lg_mosaic_spread(m, lg_mosaic_column(m, head_row(m, K_HEAD, key, z)), D, D);
    lg_mv qb = lg_mosaic_spread(m, lg_mosaic_column(m, head_row(m, Q_HEAD, key, z)), D, D);
    lg_mv qk = head_row(m, QK, key, z),
          first = lg_mosaic_bin(m, "arith.muli", i, lg_mosaic_i32(m, (int32_t)rep));
    for (uint32_t j = 0; j < rep; j++) {
        lg_mv h = lg_mosaic_bin(m, "arith.addi", first, lg_mosaic_i32(m, (int32_t)j));
        decode_head(m, lg_mosaic_to(m, h, LG_M_INDEX), kb, qb, qk, has, z);
    }
    lg_mosaic_for_end(m);
    /* Rows of BF16 lie in pairs, so single ones are collected as F32 first. */
    lg_mv o = lg_mosaic_load(m, m->scratch[O_HEAD], (lg_mv[]){z, z}, (uint32_t[]){g->nv, D});
    lg_mosaic_store_rows(m, o, m->win[GDN_OUT], (lg_mv[]){z, z, z});
}

void lg_mosaic_gdn_decode(const lg_mosaic_gdn *g, lg_mosaic_kernel *k, lg_buf *body) {
    lg_mosaic w, *m = &w;
    LG_ASSERT(lg_mosaic_gdn_fits(g));
    lg_mosaic_gdn_decode_shape(g, k);
    lg_mosaic_begin(m, k, body);
    lg_mv z = lg_mosaic_index(m, 0);
    lg_mv mode =
        lg_mosaic_scalar(m, m->fetch[GDN_MODE], lg_mosaic_to(m, m->grid[0], LG_M_INDEX));
    lg_mosaic_gdn_through(m, GDN_CONV, GDN_CONV_OUT, mode, z);
    lg_mosaic_gdn_through(m, GDN_STATE, GDN_STATE_OUT, mode, z);
    lg_mosaic_if(m, lg_mosaic_cmp(m, 1, mode, lg_mosaic_i32(m, LG_MOSAIC_IDLE)));
    decode_row(m, g, lg_mosaic_cmp(m, 0, mode, lg_mosaic_i32(m, LG_MOSAIC_GOES_ON)), z);
    lg_mosaic_if_end(m);
    lg_mosaic_end(m);
}
