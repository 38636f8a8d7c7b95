/* mosaic_gdn_parts.c - what the two Gated DeltaNet kernels share (mosaic_gdn.h).
 *
 * Test: tests/unit/test_mosaic_gdn.c */
#include "backend/pjrt/mosaic/mosaic_gdn.h"

bool lg_mosaic_gdn_fits(const lg_mosaic_gdn *g) {
    if (!g->n_row || !g->n_slot || !g->n_layer || !g->n_stack || !g->nk || !g->nv ||
        g->nv % g->nk)
        return false;
    const lg_mosaic_elem e[] = {g->act, g->state, g->conv};
    for (size_t i = 0; i < LG_COUNT(e); i++)
        if (e[i] != LG_M_F32 && e[i] != LG_M_BF16) return false;
    return true;
}

void lg_mosaic_gdn_windows(const lg_mosaic_gdn *g, lg_mosaic_kernel *k) {
    uint32_t r = 2 * g->nk + g->nv, nv = g->nv, d = g->d;
    lg_mosaic_at z = lg_mosaic_zero_at(), s = lg_mosaic_fetch_at(GDN_SLOT, 0, 0);
    lg_mosaic_at p = lg_mosaic_fetch_at(GDN_LAYER, -1, 0),
                 w = lg_mosaic_fetch_at(GDN_LAYER, -1, 1);
    k->n_in = GDN_OUT;
    k->n_out = 3;
    k->win[GDN_CONV_W] =
        (lg_mosaic_window){LG_M_F32, 4, {g->n_stack, 4, r, d}, {1, 4, r, d}, {w, z, z, z}, 0};
    k->win[GDN_NEG_A] =
        (lg_mosaic_window){LG_M_F32, 3, {g->n_stack, 1, nv}, {1, 1, nv}, {w, z, z}, 0};
    k->win[GDN_DT] = k->win[GDN_NEG_A];
    k->win[GDN_CONV] = (lg_mosaic_window){
        g->conv, 5, {g->n_layer, g->n_slot, 3, r, d}, {1, 1, 3, r, d}, {p, s, z, z, z}, 0};
    k->win[GDN_STATE] = (lg_mosaic_window){
        g->state, 5, {g->n_layer, g->n_slot, nv, d, d}, {1, 1, nv, d, d}, {p, s, z, z, z}, 0};
    k->win[GDN_CONV_OUT] = k->win[GDN_CONV];
    k->win[GDN_CONV_OUT].alias = 1 + GDN_CONV;
    k->win[GDN_STATE_OUT] = k->win[GDN_STATE];
    k->win[GDN_STATE_OUT].alias = 1 + GDN_STATE;
}

void lg_mosaic_gdn_through(lg_mosaic *m, uint32_t from, uint32_t to, lg_mv mode, lg_mv z) {
    lg_mv zero = lg_mosaic_i32(m, 0);
    lg_mv first = lg_mosaic_cmp(m, 0, m->grid[0], zero), idle = lg_mosaic_cmp(m, 0, mode, zero);
    const lg_mosaic_type *t = &m->win[from].type;
    uint32_t shape[LG_MOSAIC_RANK] = {1, 1, 1, t->dim[3], t->dim[4]};
    lg_mosaic_if(m, lg_mosaic_bin(m, "arith.andi", first, idle));
    lg_mv i = lg_mosaic_for(m, zero, lg_mosaic_i32(m, (int32_t)t->dim[2]));
    lg_mv at[5] = {z, z, lg_mosaic_to(m, i, LG_M_INDEX), z, z};
    lg_mosaic_store(m, lg_mosaic_load(m, m->win[from], at, shape), m->win[to], at);
    lg_mosaic_for_end(m);
    lg_mosaic_if_end(m);
}
