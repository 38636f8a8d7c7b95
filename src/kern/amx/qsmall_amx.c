/* qsmall_amx.c - products with blocks that have a float scale for 32 input channels: all types but those of 256.
 *
 * A block is one product of tiles of half the depth, whose integers leave the tile at once.  Eight blocks make a window, for which
 * the float sums of a group of rows stay in registers.  While the tiles of one window and group are multiplied, the integers of the
 * one before are added, and the window that follows is widened to bytes (avx512/qwide_vnni.h).
 * Test: tests/unit/test_qgemm.c */
#include "kern/amx/qpass_amx.h"
#include "kern/avx512/qwide_vnni.h"

#include <string.h>

#define PART VW_PART /* blocks of a window */

typedef struct work {
    lg_vwide t[3]; /* the window before still needs its scales */
    _Alignas(64) int32_t c[2][PART][QA_TILE][LG_NR];    /* [turn] */
    _Alignas(64) float acc[2][QA_ROW + QA_TILE][LG_NR]; /* [panel % 2] */
} work;

/* Blocks [b, b + n) of panel p, all counted from the start of the pass. */
typedef struct window {
    uint32_t p, b, n;
    bool last; /* of the panel */
} window;

static window window_at(const pass *g, uint32_t p, uint32_t b) {
    uint32_t n_block = g->n_k / 32;
    if (b >= n_block) {
        p++;
        b = 0;
    }
    uint32_t n = n_block - b < PART ? n_block - b : PART;
    return (window){p, b, n, b + n == n_block};
}

/* Block i of a window to signed bytes, with those that its block of weights holds besides. */
static void widen_one(const pass *g, const window *w, uint32_t i, lg_vwide *t) {
    uint32_t each = lg_dtype_block(g->w->type) / 32; /* 1 or 4 */
    if (w->p >= g->n_panel || i >= w->n || i % each) return;
    const uint8_t *group = weight_group(g, w->p, (w->b + i) / each);
    for (size_t at = 0; at < g->group_bytes; at += 64)
        _mm_prefetch((const char *)group + 4096 + at, _MM_HINT_T0);
    lg_vwiden(g->w->type)(group, t, (int)i);
    const __m512i off = bytes64(lg_vwide_offset(g->w->type));
    for (uint32_t k = 8 * i; k < 8 * (i + each); k++)
        store64(t->w[k], _mm512_sub_epi8(load64(t->w[k]), off));
}

/* A window times a group of rows, whose integers are not added yet. */
typedef struct part {
    const lg_vwide *t;
    const int32_t (*c)[QA_TILE][LG_NR];
    const float *d, *sum; /* [block][row] of the pass */
    float (*acc)[LG_NR];
    uint32_t n, group, panel;
    bool last;
} part;

/* acc += integers of block i, n_acc rows. */
static FORCED void add_block(const part *p, uint32_t i, uint32_t n_row, const bool has_min,
                             const uint32_t n_acc, __m512 *acc) {
    const __m512 dw = _mm512_load_ps(p->t->d[i]), mw = _mm512_load_ps(p->t->m[i]);
    const float *d = p->d + i * n_row, *sum = p->sum + i * n_row;
    const int32_t(*c)[LG_NR] = p->c[i];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < n_acc; r++) {
        __m512 dx = _mm512_set1_ps(d[r]), v = _mm512_cvtepi32_ps(load64(c[r]));
        acc[r] = _mm512_fmadd_ps(v, _mm512_mul_ps(dw, dx), acc[r]);
        if (has_min) /* J is -1: the min is added */
            acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(sum[r]), _mm512_mul_ps(mw, dx), acc[r]);
    }
}

#define BLOCK(sum_tile, x_tile, w_tile)                                                        \
    tile_zero(sum_tile);                                                                       \
    tile_load(x_tile, a, 0);                                                                   \
    tile_load(w_tile, t->w[8 * i], 0);                                                         \
    tile_mac_ss(sum_tile, x_tile, w_tile);                                                     \
    tile_store(sum_tile, c[i], 0)

/* Multiply block i of a window for a group of rows. */
static FORCED void multiply(const pass *g, const xtile *x, const lg_vwide *t, const window *w,
                            uint32_t i, uint32_t group, int32_t (*c)[QA_TILE][LG_NR]) {
    uint32_t b = w->b + i;
    const int8_t *a = x_tile(g, x, b / 2, group) + b % 2 * 32;
    if (i % 2) {
        BLOCK(0, 4, 6);
    } else {
        BLOCK(1, 5, 7);
    }
}

static void store_rows(const pass *g, const part *p) {
    __mmask16 ch = panel_channels(g, p->panel);
    uint32_t r = p->group * g->tall, end = r + g->tall < g->n_row ? r + g->tall : g->n_row;
    for (; r < end; r++)
        _mm512_mask_storeu_ps(panel_y(g, p->panel, r), ch, _mm512_load_ps(p->acc[r]));
}

static void start_rows(const pass *g, uint32_t p, float (*acc)[LG_NR]) {
    __mmask16 ch = panel_channels(g, p);
    for (uint32_t r = 0; r < g->n_row; r++) {
        const float *y = panel_y(g, p, r);
        __builtin_prefetch(y, 1);
        _mm512_store_ps(acc[r], g->k0 ? _mm512_maskz_loadu_ps(ch, y) : _mm512_setzero_ps());
    }
}

/* Multiply a window for a group, add the part before.  Lines past the group's rows are added up too, and not kept. */
static FORCED void step(const pass *g, const xtile *x, const window *w, const part *now,
                        const part *old, const window *next, lg_vwide *ahead,
                        int32_t (*c)[QA_TILE][LG_NR], const bool has_min,
                        const uint32_t n_acc) {
    uint32_t r0 = old->group * g->tall, n_row = g->n_group * g->tall;
    __m512 acc[QA_TILE];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < n_acc; r++) acc[r] = _mm512_load_ps(old->acc[r0 + r]);
    for (uint32_t i = 0; i < PART; i++) {
        if (i < now->n) multiply(g, x, now->t, w, i, now->group, c);
        if (i < old->n) add_block(old, i, n_row, has_min, n_acc, acc);
        if (now->group == 0) widen_one(g, next, i, ahead);
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < n_acc; r++)
        if (r < g->tall) _mm512_store_ps(old->acc[r0 + r], acc[r]);
    if (old->n && old->last) store_rows(g, old);
}

static FORCED void run(const pass *g, const xtile *x, const bool has_min,
                       const uint32_t n_acc) {
    work m;
    memset(m.c, 0, sizeof m.c);
    memset(m.acc, 0, sizeof m.acc);
    part parts[2] = {{.t = &m.t[2], .acc = m.acc[1]}, {.t = &m.t[2], .acc = m.acc[1]}};
    uint32_t turn = 0, n_row = g->n_group * g->tall;
    window w = window_at(g, 0, 0);
    for (uint32_t i = 0; i < w.n; i++) widen_one(g, &w, i, &m.t[0]);
    for (uint32_t at = 0; w.p < g->n_panel; at++) {
        window next = window_at(g, w.p, w.b + w.n);
        float(*acc)[LG_NR] = m.acc[w.p % 2];
        if (w.b == 0) start_rows(g, w.p, acc);
        for (uint32_t group = 0; group < g->n_group; group++, turn ^= 1) {
            part *now = &parts[turn];
            uint32_t first = w.b * n_row + group * g->tall;
            now->t = &m.t[at % 3];
            now->c = (const int32_t(*)[QA_TILE][LG_NR])m.c[turn];
            now->d = x->d32 + first;
            now->sum = x->sum32 + first;
            now->acc = acc;
            now->n = w.n;
            now->group = group;
            now->panel = w.p;
            now->last = w.last;
            step(g, x, &w, now, &parts[turn ^ 1], &next, &m.t[(at + 1) % 3], m.c[turn], has_min,
                 n_acc);
        }
        w = next;
    }
    part none = {.t = &m.t[0], .group = 1};
    step(g, x, &w, &none, &parts[turn ^ 1], &w, &m.t[0], m.c[turn], has_min, n_acc);
}

void lg_qgemm_amx_small(const pass *g, const xtile *x) {
    bool has_min = g->w->type == LG_Q4_1 || g->w->type == LG_Q5_1;
    if (g->tall > 8 && has_min)
        run(g, x, true, 16);
    else if (g->tall > 8)
        run(g, x, false, 16);
    else if (has_min)
        run(g, x, true, 8);
    else
        run(g, x, false, 8);
}
