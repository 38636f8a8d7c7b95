/* kernels.c - parts of a step as kernels of ours (kernels.h): what goes in and what comes out of them.
 *
 * Rows of padding are told to the kernels as idle; an idle row or tile must name the block of the one before it, so that nothing
 * is moved for it.  Test: tests/unit/test_step_types.c */
#include "backend/pjrt/mosaic/kernels.h"

#include "backend/pjrt/mosaic/twin.h"
#include "kern/kern.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static lg_hlo_val reduce_scatter(void *ctx, lg_hlo *h, lg_hlo_val x, uint32_t n_dev) {
    const lg_kernels *k = ctx;
    LG_ASSERT(n_dev == k->plan.n);
    return lg_collective_reduce_scatter(&k->plan, h, x, lg_hlo_type_at(h, x).dt);
}

static lg_mosaic_elem elem_of(lg_hlo_dt dt) {
    return dt == LG_HLO_F32 ? LG_M_F32 : dt == LG_HLO_BF16 ? LG_M_BF16 : LG_M_E4M3;
}

/* ---- Gated DeltaNet ---- */

/* For each of n: the number of the last one up to it that is live; 0 before the first. */
static lg_hlo_val last_live(lg_hlo *h, lg_hlo_val live) {
    int64_t n = lg_hlo_dim(h, live, 0);
    lg_hlo_type sq = LG_HLO_T(I32, n, n);
    lg_hlo_val j = lg_hlo_iota(h, sq, 1), upto = lg_hlo_cmp(h, "LE", j, lg_hlo_iota(h, sq, 0));
    upto = lg_hlo_bin(h, "and", upto, lg_hlo_bcast(h, live, lg_hlo_as(sq, LG_HLO_I1), "1"));
    return lg_hlo_reduce(h, "maximum", lg_hlo_select(h, upto, j, lg_hlo_int(h, sq, 0)), 1);
}

/* Slots [n] of what lives; the others name the one before, or the slot that nobody reads. */
static lg_hlo_val slots(lg_step_emit *s, lg_hlo_val slot, lg_hlo_val mode) {
    lg_hlo *h = &s->h;
    lg_hlo_val from = last_live(h, lg_hlo_cmp_i(h, "NE", mode, LG_MOSAIC_IDLE));
    slot = lg_hlo_take(h, slot, lg_hlo_idx(h, &from, 1));
    return lg_hlo_bin_i(h, "minimum", slot, s->m->n_slot - 1);
}

/* What the sequences' first rows do: IDLE, NEW or GOES_ON. */
static lg_hlo_val modes(lg_step_emit *s, uint32_t from, uint32_t n) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = LG_HLO_T(I32, n);
    lg_hlo_val fresh = lg_hlo_cmp_i(h, "EQ", lg_step_seqs(s, s->pos, from, n), 0);
    lg_hlo_val mode = lg_hlo_select(h, fresh, lg_hlo_int(h, t, LG_MOSAIC_NEW),
                                    lg_hlo_int(h, t, LG_MOSAIC_GOES_ON));
    lg_hlo_val there = lg_hlo_cmp_i(h, "GT", lg_step_seqs(s, s->n_tok, from, n), 0);
    return lg_hlo_select(h, there, mode, lg_hlo_int(h, t, LG_MOSAIC_IDLE));
}

static lg_mosaic_gdn gdn_of(const lg_step_emit *s, uint32_t n_row) {
    const lg_hlo *h = &s->h;
    lg_hlo_type pool = lg_hlo_type_at(h, s->pool[LG_PJRT_POOL_S]);
    lg_hlo_type conv = lg_hlo_type_at(h, s->layer_w[s->at][LG_PJRT_W_CONV]);
    return (lg_mosaic_gdn){.n_row = n_row,
                           .n_layer = (uint32_t)pool.dim[0],
                           .n_slot = s->m->n_slot,
                           .n_stack = conv.n_dim == 3 ? (uint32_t)conv.dim[0] : 1,
                           .nk = s->cfg->n_k_head,
                           .nv = s->cfg->n_v_head,
                           .d = s->cfg->d_k,
                           .act = LG_M_F32,
                           .state = elem_of(pool.dt),
                           .conv = LG_M_F32};
}

/* Operands that are the same for one row and for many, from the convolution's weights on; and the two layers. */
static void gdn_rest(lg_step_emit *s, const lg_mosaic_gdn *g, lg_hlo_val *layer,
                     lg_hlo_val *arg) {
    lg_hlo *h = &s->h;
    lg_hlo_type one = LG_HLO_T(I32, 1);
    lg_hlo_val part[2] = {lg_hlo_reshape(h, s->pool_layer, one), lg_hlo_int(h, one, 0)};
    if (s->group) part[1] = lg_hlo_reshape(h, s->group, one);
    *layer = lg_hlo_concat(h, 0, part, 2);
    int64_t rows = 2 * (int64_t)g->nk + g->nv;
    lg_hlo_type head = LG_HLO_T(F32, g->n_stack, 1, g->nv);
    arg[0] = lg_hlo_reshape(h, lg_step_weight_arg(s, LG_PJRT_W_CONV),
                            LG_HLO_T(F32, g->n_stack, 4, rows, g->d));
    arg[1] = lg_hlo_reshape(h, lg_step_weight_arg(s, LG_PJRT_W_NEG_EXP_A), head);
    arg[2] = lg_hlo_reshape(h, lg_step_weight_arg(s, LG_PJRT_W_DT_BIAS), head);
    arg[3] = s->pool[LG_PJRT_POOL_CONV];
    arg[4] = s->pool[LG_PJRT_POOL_S];
}

static lg_hlo_val gdn_one(const lg_kernels *k, lg_step_emit *s, uint32_t from, uint32_t n,
                          lg_hlo_val raw, lg_hlo_val a, lg_hlo_val b) {
    lg_hlo *h = &s->h;
    lg_mosaic_gdn g = gdn_of(s, n);
    lg_mosaic_kernel kernel;
    lg_buf body = {0};
    lg_hlo_val arg[11], out[3];
    lg_hlo_type head = LG_HLO_T(F32, n, 1, g.nv);
    arg[1] = modes(s, from, n);
    arg[0] = slots(s, lg_step_seqs(s, s->slot, from, n), arg[1]);
    arg[3] = lg_hlo_reshape(h, raw, LG_HLO_T(F32, n, 2 * (int64_t)g.nk + g.nv, g.d));
    arg[4] = lg_hlo_reshape(h, a, head);
    arg[5] = lg_hlo_reshape(h, b, head);
    gdn_rest(s, &g, &arg[2], arg + 6);
    if (k->twin) {
        lg_twin_gdn_decode(&g, h, arg, out);
    } else {
        lg_mosaic_gdn_decode(&g, &kernel, &body);
        lg_mosaic_call(&kernel, &body, h, arg, out);
    }
    lg_buf_fini(&body);
    s->pool[LG_PJRT_POOL_CONV] = out[1];
    s->pool[LG_PJRT_POOL_S] = out[2];
    return out[0];
}

/* x [n t][w] with t filled up to whole tiles: [n tiles][C][w]. */
static lg_hlo_val in_tiles(lg_hlo *h, lg_hlo_val x, int64_t n, int64_t t, int64_t tiles) {
    int64_t w = lg_hlo_dim(h, x, 1), c = LG_MOSAIC_CHUNK;
    x = lg_hlo_pad(h, lg_hlo_reshape(h, x, LG_HLO_T(F32, n, t, w)), 1, 0, tiles * c - t);
    return lg_hlo_reshape(h, x, LG_HLO_T(F32, n * tiles, c, w));
}

/* Of each tile: its slot, what it does, its rows. */
static void tile_list(lg_step_emit *s, uint32_t from, uint32_t n, int64_t tiles,
                      lg_hlo_val *arg) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = LG_HLO_T(I32, n, tiles), flat = LG_HLO_T(I32, n * tiles);
    lg_hlo_val j = lg_hlo_iota(h, t, 1),
               n_tok = lg_hlo_bcast(h, lg_step_seqs(s, s->n_tok, from, n), t, "0");
    lg_hlo_val rows = lg_hlo_sub(h, n_tok, lg_hlo_bin_i(h, "multiply", j, LG_MOSAIC_CHUNK));
    rows = lg_hlo_bin_i(h, "maximum", lg_hlo_bin_i(h, "minimum", rows, LG_MOSAIC_CHUNK), 0);
    lg_hlo_val mode = lg_hlo_bcast(h, modes(s, from, n), t, "0");
    mode = lg_hlo_select(h, lg_hlo_cmp_i(h, "EQ", j, 0), mode,
                         lg_hlo_int(h, t, LG_MOSAIC_FOLLOWS));
    mode = lg_hlo_select(h, lg_hlo_cmp_i(h, "GT", rows, 0), mode,
                         lg_hlo_int(h, t, LG_MOSAIC_IDLE));
    lg_hlo_val slot = lg_hlo_bcast(h, lg_step_seqs(s, s->slot, from, n), t, "0");
    arg[1] = lg_hlo_reshape(h, mode, flat);
    arg[2] = lg_hlo_reshape(h, rows, flat);
    arg[0] = slots(s, lg_hlo_reshape(h, slot, flat), arg[1]);
}

static lg_hlo_val gdn_many(const lg_kernels *k, lg_step_emit *s, uint32_t from, uint32_t n,
                           int64_t t, lg_hlo_val raw, lg_hlo_val a, lg_hlo_val b) {
    lg_hlo *h = &s->h;
    int64_t c = LG_MOSAIC_CHUNK, tiles = (t + c - 1) / c;
    lg_mosaic_gdn g = gdn_of(s, (uint32_t)(n * tiles));
    lg_mosaic_kernel kernel;
    lg_buf body = {0};
    lg_hlo_val arg[12], out[3];
    tile_list(s, from, n, tiles, arg);
    arg[4] = lg_hlo_reshape(h, in_tiles(h, raw, n, t, tiles),
                            LG_HLO_T(F32, n * tiles * c, lg_hlo_dim(h, raw, 1)));
    arg[5] = lg_hlo_transpose(h, in_tiles(h, a, n, t, tiles), "021");
    arg[6] = lg_hlo_transpose(h, in_tiles(h, b, n, t, tiles), "021");
    gdn_rest(s, &g, &arg[3], arg + 7);
    if (k->twin) {
        lg_twin_gdn_prefill(&g, h, arg, out);
    } else {
        lg_mosaic_gdn_prefill(&g, &kernel, &body);
        lg_mosaic_call(&kernel, &body, h, arg, out);
    }
    lg_buf_fini(&body);
    s->pool[LG_PJRT_POOL_CONV] = out[1];
    s->pool[LG_PJRT_POOL_S] = out[2];
    int64_t w = (int64_t)g.nv * g.d;
    lg_hlo_val o =
        lg_hlo_slice(h, lg_hlo_reshape(h, out[0], LG_HLO_T(F32, n, tiles * c, w)), 1, 0, t);
    return lg_hlo_reshape(h, o, LG_HLO_T(F32, n * t, g.nv, g.d));
}

static lg_hlo_val gdn(void *ctx, lg_step_emit *s, uint32_t from, uint32_t n, uint32_t t,
                      lg_hlo_val raw, lg_hlo_val a, lg_hlo_val b) {
    if (t == 1) return gdn_one(ctx, s, from, n, raw, a, b);
    return gdn_many(ctx, s, from, n, t, raw, a, b);
}

/* ---- Attention ---- */

/* Sums up to and with each of x [n]. */
static lg_hlo_val running(lg_hlo *h, lg_hlo_val x) {
    int64_t n = lg_hlo_dim(h, x, 0);
    lg_hlo_type sq = LG_HLO_T(I32, n, n);
    lg_hlo_val upto = lg_hlo_cmp(h, "LE", lg_hlo_iota(h, sq, 1), lg_hlo_iota(h, sq, 0));
    return lg_hlo_reduce(
        h, "add", lg_hlo_select(h, upto, lg_hlo_bcast(h, x, sq, "1"), lg_hlo_int(h, sq, 0)), 1);
}

/* Rows of a tile: the most that are worth reading a sequence's pages for once, or as many as there are. */
static uint32_t attn_rows(uint32_t group, uint32_t t) {
    uint32_t rows = 1;
    while (rows < t && rows < 64 && 2 * rows * group <= 512 &&
           (2 * rows * group <= 256 || 2 * rows * group % 256 == 0))
        rows *= 2;
    return rows;
}

static lg_mosaic_attn attn_of(const lg_step_emit *s, uint32_t n, uint32_t t) {
    lg_hlo_type pool = lg_hlo_type_at(&s->h, s->pool[LG_PJRT_POOL_KEY]);
    uint32_t group = s->cfg->n_head / s->cfg->n_kv_head, rows = attn_rows(group, t);
    bool narrow = s->weight == LG_HLO_BF16 && (s->kv == LG_HLO_BF16 || s->kv == LG_HLO_E4M3);
    uint32_t tiles = n * ((t + rows - 1) / rows), pages = LG_MOSAIC_ATTN_BLOCK / LG_PAGE_TOK;
    return (lg_mosaic_attn){.n_tile = tiles,
                            .rows = rows,
                            .n_entry = tiles * ((s->b->n_page + pages - 1) / pages),
                            .n_seq = n,
                            .n_page_seq = s->b->n_page,
                            .n_layer = (uint32_t)pool.dim[0],
                            .n_page = s->m->n_page,
                            .n_kv = s->cfg->n_kv_head,
                            .group = group,
                            .d = s->cfg->d_head,
                            .act = narrow ? LG_M_BF16 : LG_M_F32,
                            .kv = elem_of(s->kv)};
}

/* The prefetched operands but the layer, in the kernel's order with its place left out. */
static void attn_list(lg_step_emit *s, const lg_mosaic_attn *a, uint32_t from,
                      lg_hlo_val *list) {
    lg_hlo *h = &s->h;
    int64_t n = a->n_seq, each = a->n_tile / a->n_seq, m = a->rows;
    lg_hlo_type t = LG_HLO_T(I32, n, each), flat = LG_HLO_T(I32, a->n_tile),
                one = LG_HLO_T(I32, 1);
    lg_hlo_val n_tok = lg_hlo_bcast(h, lg_step_seqs(s, s->n_tok, from, a->n_seq), t, "0");
    lg_hlo_val pos = lg_hlo_bcast(h, lg_step_seqs(s, s->pos, from, a->n_seq), t, "0");
    lg_hlo_val at = lg_hlo_bin_i(h, "multiply", lg_hlo_iota(h, t, 1), m);
    lg_hlo_val rows = lg_hlo_bin_i(h, "minimum", lg_hlo_sub(h, n_tok, at), m);
    pos = lg_hlo_add(h, pos, at);
    lg_hlo_val see = lg_hlo_select(h, lg_hlo_cmp_i(h, "GT", rows, 0), lg_hlo_add(h, pos, rows),
                                   lg_hlo_int(h, t, 0));
    see = lg_hlo_reshape(h, see, flat);
    lg_hlo_val block = lg_hlo_bin_i(h, "add", see, LG_MOSAIC_ATTN_BLOCK - 1);
    lg_hlo_val end = running(h, lg_hlo_bin_i(h, "divide", block, LG_MOSAIC_ATTN_BLOCK));
    lg_hlo_type te = LG_HLO_T(I32, a->n_entry, a->n_tile);
    lg_hlo_val done = lg_hlo_cmp(h, "LE", lg_hlo_bcast(h, end, te, "1"), lg_hlo_iota(h, te, 0));
    list[0] = lg_hlo_concat(h, 0, (lg_hlo_val[]){lg_hlo_int(h, one, 0), end}, 2);
    list[1] = lg_hlo_reduce(h, "add", lg_hlo_convert(h, done, LG_HLO_I32), 1);
    list[2] = lg_hlo_reshape(h, lg_hlo_iota(h, t, 0), flat);
    list[3] = lg_hlo_reshape(h, pos, flat);
    list[4] = see;
    list[5] = lg_hlo_reshape(h, lg_step_seqs(s, s->page, from, a->n_seq),
                             LG_HLO_T(I32, n * a->n_page_seq));
}

static void begin(void *ctx, lg_step_emit *s) {
    const lg_kernels *k = ctx;
    const lg_pjrt_bucket *b = s->b;
    for (uint32_t many = 0; many < 2 && s->pool[LG_PJRT_POOL_KEY]; many++) {
        uint32_t n = many ? b->n_many : b->n_one;
        if (!n) continue;
        lg_mosaic_attn a = attn_of(s, n, many ? b->n_row : 1);
        if (k->twin || lg_mosaic_attn_fits(&a))
            attn_list(s, &a, many ? b->n_one : 0, s->list[many]);
    }
}

/* q [n t][heads][d] as the kernel's: tiles, heads of keys, then the group's heads with a tile's rows. */
static lg_hlo_val attn_query(lg_hlo *h, const lg_mosaic_attn *a, lg_hlo_val q, int64_t t) {
    int64_t n = a->n_seq, filled = a->n_tile / a->n_seq * (int64_t)a->rows;
    lg_hlo_dt act = a->act == LG_M_BF16 ? LG_HLO_BF16 : LG_HLO_F32;
    lg_hlo_type heads = LG_HLO_T(F32, n, t, a->n_kv * a->group * (int64_t)a->d);
    q = lg_hlo_bin_f(h, "multiply", q, 1.0f / sqrtf((float)a->d));
    q = lg_hlo_convert(h, lg_hlo_pad(h, lg_hlo_reshape(h, q, heads), 1, 0, filled - t), act);
    lg_hlo_type tiles = LG_HLO_T(F32, a->n_tile, a->rows, a->n_kv, a->group, a->d);
    q = lg_hlo_transpose(h, lg_hlo_reshape(h, q, lg_hlo_as(tiles, act)), "02314");
    tiles = LG_HLO_T(F32, a->n_tile, a->n_kv, a->group * (int64_t)a->rows, a->d);
    return lg_hlo_reshape(h, q, lg_hlo_as(tiles, act));
}

static lg_hlo_val attn(void *ctx, lg_step_emit *s, uint32_t from, uint32_t n, uint32_t t,
                       lg_hlo_val q) {
    const lg_kernels *k = ctx;
    lg_hlo *h = &s->h;
    const lg_hlo_val *list = s->list[from < s->b->n_one ? 0 : 1];
    lg_mosaic_attn a = attn_of(s, n, t);
    lg_mosaic_kernel kernel;
    lg_buf body = {0};
    lg_hlo_val arg[10], o;
    if (!list[0]) return 0;
    memcpy(arg, list, 5 * sizeof *arg);
    arg[5] = lg_hlo_reshape(h, s->pool_layer, LG_HLO_T(I32, 1));
    arg[6] = list[5];
    arg[7] = attn_query(h, &a, q, t);
    arg[8] = s->pool[LG_PJRT_POOL_KEY];
    arg[9] = s->pool[LG_PJRT_POOL_VALUE];
    if (k->twin) {
        lg_twin_attn(&a, h, arg, &o);
    } else {
        lg_mosaic_attn_kernel(&a, &kernel, &body);
        lg_mosaic_call(&kernel, &body, h, arg, &o);
    }
    lg_buf_fini(&body);
    int64_t width = a.n_kv * a.group * (int64_t)a.d,
            filled = a.n_tile / a.n_seq * (int64_t)a.rows;
    o = lg_hlo_reshape(h, o, LG_HLO_T(F32, a.n_tile, a.n_kv, a.group, a.rows, a.d));
    o = lg_hlo_reshape(h, lg_hlo_transpose(h, o, "03124"), LG_HLO_T(F32, n, filled, width));
    return lg_hlo_reshape(h, lg_hlo_slice(h, o, 1, 0, t), LG_HLO_T(F32, (int64_t)n * t, width));
}

/* ---- Experts ---- */

/* Pairs of row and expert in tiles of one expert. */
typedef struct tiled {
    int64_t n_pair, n_tile, m, n_expert;
    lg_hlo_val fetch[3];  /* expert, block, live */
    lg_hlo_val row_place; /* [n_tile m]: place in the sorted order of each row of the tiles */
    lg_hlo_val pair;      /* [n_pair] sorted */
    lg_hlo_val back;      /* [n_pair]: row of the tiles of each pair */
} tiled;

static lg_hlo_val pick(lg_hlo *h, lg_hlo_val table, lg_hlo_val at) {
    return lg_hlo_take(h, table, lg_hlo_idx(h, &at, 1));
}

/* local [n_pair]: expert of this device, n_expert for others'. */
static void make_tiles(lg_hlo *h, lg_hlo_val local, tiled *t) {
    lg_hlo_type wide = LG_HLO_T(I32, t->n_expert, t->n_pair), tiles = LG_HLO_T(I32, t->n_tile);
    lg_hlo_val is =
        lg_hlo_cmp(h, "EQ", lg_hlo_iota(h, wide, 0), lg_hlo_bcast(h, local, wide, "1"));
    lg_hlo_val count = lg_hlo_reduce(h, "add", lg_hlo_convert(h, is, LG_HLO_I32), 1);
    lg_hlo_val start = lg_hlo_sub(h, running(h, count), count);
    lg_hlo_val each = lg_hlo_bin_i(h, "divide", lg_hlo_bin_i(h, "add", count, t->m - 1), t->m);
    lg_hlo_val end = running(h, each), first = lg_hlo_sub(h, end, each);
    lg_hlo_val total = lg_hlo_bcast(h, lg_hlo_reduce(h, "add", each, 0), tiles, "");
    /* Tiles beyond the last one stay with it. */
    lg_hlo_val i = lg_hlo_iota(h, tiles, 0);
    lg_hlo_val at = lg_hlo_bin(
        h, "minimum", i, lg_hlo_bin_i(h, "maximum", lg_hlo_bin_i(h, "subtract", total, 1), 0));
    lg_hlo_type te = LG_HLO_T(I32, t->n_tile, t->n_expert);
    lg_hlo_val done =
        lg_hlo_cmp(h, "LE", lg_hlo_bcast(h, end, te, "1"), lg_hlo_bcast(h, at, te, "0"));
    lg_hlo_val e = lg_hlo_reduce(h, "add", lg_hlo_convert(h, done, LG_HLO_I32), 1);
    t->fetch[0] = lg_hlo_bin_i(h, "minimum", e, t->n_expert - 1);
    t->fetch[1] = at;
    t->fetch[2] = lg_hlo_convert(h, lg_hlo_cmp(h, "LT", i, total), LG_HLO_I32);
    lg_hlo_val place =
        lg_hlo_bin_i(h, "multiply", lg_hlo_sub(h, at, pick(h, first, t->fetch[0])), t->m);
    place = lg_hlo_add(h, place, pick(h, start, t->fetch[0]));
    lg_hlo_type rows = LG_HLO_T(I32, t->n_tile, t->m);
    place = lg_hlo_add(h, lg_hlo_bcast(h, place, rows, "0"), lg_hlo_iota(h, rows, 1));
    t->row_place = lg_hlo_reshape(h, place, LG_HLO_T(I32, t->n_tile * t->m));
    /* Sorted, and where each pair went. */
    lg_hlo_val place_of = lg_hlo_iota(h, LG_HLO_T(I32, t->n_pair), 0);
    t->pair = place_of;
    lg_hlo_sort(h, &local, &t->pair);
    lg_hlo_val spot = lg_hlo_sub(h, lg_hlo_bin_i(h, "multiply", pick(h, first, local), t->m),
                                 pick(h, start, local));
    spot = lg_hlo_add(h, spot, place_of);
    t->back = lg_hlo_put(h, lg_hlo_int(h, LG_HLO_T(I32, t->n_pair), 0),
                         lg_hlo_idx(h, &t->pair, 1), spot);
}

/* x: rows, and where they are FP8 their scales (else 0). */
static lg_hlo_val gmm(const lg_kernels *k, lg_step_emit *s, const tiled *t,
                      const lg_hlo_val x[2], lg_pjrt_weight w, lg_pjrt_weight scale,
                      bool swiglu) {
    lg_hlo *h = &s->h;
    lg_hlo_val weight[2] = {lg_step_weight_arg(s, w)}, arg[10], out = 0;
    lg_mosaic_kernel kernel;
    lg_buf body = {0};
    uint32_t n = 4, n_weight = s->expert == LG_HLO_E4M3 ? 2 : 1;
    if (n_weight == 2) weight[1] = lg_step_weight_arg(s, scale);
    for (uint32_t i = 0; i < n_weight; i++) {
        lg_hlo_type wt = lg_hlo_type_at(h, weight[i]);
        if (wt.n_dim == 3)
            weight[i] = lg_hlo_reshape(
                h, weight[i],
                lg_hlo_as(LG_HLO_T(F32, 1, wt.dim[0], wt.dim[1], wt.dim[2]), wt.dt));
    }
    lg_hlo_type wt = lg_hlo_type_at(h, weight[0]);
    uint32_t in = (uint32_t)wt.dim[3];
    lg_mosaic_gmm g = {.n_tile = (uint32_t)t->n_tile,
                       .tile_rows = (uint32_t)t->m,
                       .n_stack = (uint32_t)wt.dim[0],
                       .n_expert = (uint32_t)t->n_expert,
                       .n_in = in,
                       .n_out = (uint32_t)wt.dim[2] / (swiglu ? 2 : 1),
                       .k_block = n_weight == 1    ? lg_pjrt_scale_in(512, in)
                                  : s->m->scale_in ? lg_pjrt_scale_in(s->m->scale_in, in)
                                                   : 128,
                       .tiled = n_weight == 2 && !s->m->scale_in,
                       .swiglu = swiglu,
                       .weight = elem_of(s->expert),
                       .hidden = k->twin ? elem_of(s->weight) : LG_M_BF16};
    g.act = x[1] ? LG_M_E4M3 : g.hidden;
    lg_hlo_type one = LG_HLO_T(I32, 1);
    memcpy(arg, t->fetch, sizeof t->fetch);
    arg[3] = s->group ? lg_hlo_reshape(h, s->group, one) : lg_hlo_int(h, one, 0);
    if (x[1]) {
        arg[n++] = x[0];
        arg[n++] = x[1];
    } else {
        arg[n++] = lg_hlo_convert(h, x[0], g.act == LG_M_F32 ? LG_HLO_F32 : LG_HLO_BF16);
    }
    for (uint32_t twice = 0; twice < (swiglu ? 2u : 1u); twice++)
        for (uint32_t i = 0; i < n_weight; i++) arg[n++] = weight[i];
    if (k->twin) {
        lg_twin_gmm(&g, h, arg, &out);
    } else if (!lg_mosaic_gmm_fits(&g)) {
        lg_hlo_fail(h, "experts of %u x %u: no kernel", g.n_out, g.n_in);
    } else {
        lg_mosaic_gmm_kernel(&g, &kernel, &body);
        lg_mosaic_call(&kernel, &body, h, arg, &out);
    }
    lg_buf_fini(&body);
    return out;
}

static lg_hlo_val experts(void *ctx, lg_step_emit *s, lg_hlo_val x, lg_hlo_val id, lg_hlo_val w,
                          lg_hlo_val first) {
    lg_hlo *h = &s->h;
    int64_t n = lg_hlo_dim(h, id, 0), k = lg_hlo_dim(h, id, 1), each = n * k / s->cfg->n_expert;
    tiled t = {.n_pair = n * k,
               .n_expert = s->cfg->n_expert / s->m->n_device,
               .m = each >= 64   ? 128
                    : each >= 24 ? 64
                                 : 16};
    /* With FP8 weights, FP8 rows stay so; else rounded ones are the weights' type. */
    bool narrow = s->m->act_fp8 && s->expert == LG_HLO_E4M3;
    if (narrow && t.m < 32) t.m = 32; /* rows of a tile of FP8 */
    lg_hlo_type flat = LG_HLO_T(I32, t.n_pair), nk = LG_HLO_T(I32, n, k);
    t.n_tile = t.n_pair / t.m + (t.n_expert < t.n_pair ? t.n_expert : t.n_pair);
    lg_hlo_val local = lg_hlo_sub(h, id, lg_hlo_bcast(h, first, nk, ""));
    lg_hlo_val mine = lg_hlo_bin(h, "and", lg_hlo_cmp_i(h, "GE", local, 0),
                                 lg_hlo_cmp_i(h, "LT", local, t.n_expert));
    local = lg_hlo_select(h, mine, local, lg_hlo_int(h, nk, t.n_expert));
    make_tiles(h, lg_hlo_reshape(h, local, flat), &t);
    lg_hlo_val row = lg_hlo_bin_i(h, "divide", pick(h, t.pair, t.row_place), k);
    lg_hlo_val in[2] = {x, 0}, hid[2] = {0};
    if (narrow) {
        in[0] = lg_step_split_rows(s, x, &in[1]);
        in[1] = pick(h, in[1], row);
    }
    in[0] = pick(h, in[0], row);
    hid[0] =
        gmm(ctx, s, &t, in, LG_PJRT_W_EXPERT_GATE_UP, LG_PJRT_W_EXPERT_GATE_UP_SCALE, true);
    if (narrow)
        hid[0] = lg_step_split_rows(s, hid[0], &hid[1]);
    else if (s->m->act_fp8)
        hid[0] = lg_step_round_rows(s, hid[0]);
    lg_hlo_val y =
        gmm(ctx, s, &t, hid, LG_PJRT_W_EXPERT_DOWN, LG_PJRT_W_EXPERT_DOWN_SCALE, false);
    lg_hlo_val own = lg_hlo_reshape(h, pick(h, y, t.back), LG_HLO_T(F32, n, k, s->cfg->n_embd));
    own = lg_hlo_mul(h, own, lg_hlo_like(h, w, own, "01"));
    own = lg_hlo_select_f(h, lg_hlo_like(h, mine, own, "01"), own,
                          0.0f); /* what is not mine may be anything */
    return lg_hlo_reduce(h, "add", own, 1);
}

/* ---- Which ---- */

static void say(lg_kernels *k, const char *what) {
    size_t n = strlen(k->about);
    snprintf(k->about + n, sizeof k->about - n, "%s%s", n ? ", " : "", what);
}

void lg_kernels_init(lg_kernels *k, const lg_pjrt_model *m, const lg_pjrt_device_info *dev,
                     bool twin) {
    const lg_config *c = m->cfg;
    lg_pjrt_type expert = m->expert ? m->expert : m->weight;
    *k = (lg_kernels){.parts = {.ctx = k}, .twin = twin};
    if (c->d_k && c->d_k == c->d_v && c->n_v_head % c->n_k_head == 0 && !c->v_head_tiled &&
        (twin || c->d_k == 128)) {
        k->parts.gdn = gdn;
        say(k, "GDN kernels");
    }
    /* As the products' operands are: narrow ones, or everything F32. */
    bool kv = m->weight == LG_PJRT_BF16 ? m->kv == LG_PJRT_BF16 || m->kv == LG_PJRT_F8E4M3FN
                                        : m->kv == LG_PJRT_F32;
    if (c->d_head && (twin || (c->d_head % 128 == 0 && kv))) {
        k->parts.begin = begin;
        k->parts.attn = attn;
        say(k, "attention kernel");
    }
    bool whole = c->n_embd % 128 == 0 && c->n_ff_expert % 128 == 0;
    if (c->n_expert && (twin || (expert != LG_PJRT_F32 && whole))) {
        k->parts.experts = experts;
        say(k, "expert kernels");
    }
    if (dev && m->n_device > 1 &&
        lg_collective_plan_make(&k->plan, dev, m->n_device, NULL) == LG_OK) {
        k->parts.reduce_scatter = reduce_scatter;
        say(k, "sums along the wires");
    }
}

const char *lg_kernels_about(const lg_kernels *k) {
    return k->about[0] ? k->about : "no part of ours fits";
}
