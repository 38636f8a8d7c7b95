/* qgemm_amx.c - integer products of block types by tiles: 16 rows times 16 channels, 64 input channels an instruction.
 *
 * Blocks of 256 are here, the others in qsmall_amx.c.  Two chains of four products over the digits of the weights (qdigit_amx.h)
 * give the integers of a block; they leave the tiles once, and are then added to the float sums as kern.h says.  A step is one group
 * of rows times one block.  Between its products, in quarters, stand what the processor does meanwhile: it stores the integers of
 * the step before (from the other two tiles: those of this step would have to be waited for), adds those of the step before that,
 * and unpacks weights of the block that follows.
 * Few rows go to the level beneath.  Test: tests/unit/test_qgemm.c; what else was tried: docs/EXPERIMENTS.md */
#include "kern/amx/amx.h"
#include "kern/amx/qdigit_amx.h"
#include "kern/avx512/avx512.h"

#include <string.h>

/* Fewer rows do not pay for copying them and for digits (measured). */
static uint32_t least_rows(lg_dtype type) {
    return type == LG_Q4_K || type == LG_Q6_K || type == LG_Q3_K || type == LG_Q2_K ? 12 : 24;
}

/* ---- rows ---- */

static void pack_meta(const pass *g, const lg_qrows *x, uint32_t i, xtile *t) {
    uint32_t n_row = g->n_group * g->tall;
    bool small = x->group == 32;
    const float *d = x->d + g->k0 / x->group;
    const int16_t *sum = x->sum + g->k0 / 32;
    for (uint32_t b = 0; b < g->n_k / x->group; b++) {
        uint32_t at = b * n_row + i;
        if (small) {
            t->d32[at] = d[b];
            t->sum32[at] = (float)sum[b];
            continue;
        }
        t->d[at] = d[b];
        int32_t *pair = t->pair[at];
        if (g->w->type == LG_Q2_K)
            memcpy(pair, x->sum16 + g->k0 / 16 + 16 * b, 32);
        else
            memcpy(pair, sum + 8 * b, 16);
        if (g->w->type != LG_Q3_K) continue;
        pair[0] = 0;
        for (uint32_t k = 0; k < 8; k++) pair[0] += lg_vwide_offset(LG_Q3_K) * sum[8 * b + k];
    }
}

/* Rows past the last one, which fill its group, repeat the first. */
static void pack_rows(const pass *g, xtile *t) {
    for (uint32_t i = 0; i < g->n_group * g->tall; i++) {
        uint32_t r = g->row0 + (i < g->n_row ? i : 0);
        lg_qrows x = lg_qrows_at(g->x, g->row_idx ? g->row_idx[r] : r);
        size_t to = (size_t)(x_tile(g, t, 0, i / g->tall) - t->v) + i % g->tall * 64;
        for (uint32_t k = 0; k < g->n_k; k += 64) {
            const int8_t *v = x.v8 + g->k0 + k;
            bool whole = g->n_k - k >= 64; /* else 32 */
            store64(t->v + to + (size_t)(x_tile(g, t, k / 64, 0) - t->v),
                    whole ? load64(v) : _mm512_maskz_loadu_epi8(0xffffffffu, v));
        }
        pack_meta(g, &x, i, t);
    }
}

/* ---- blocks of 256 ---- */

/* How a type is multiplied. */
typedef struct kind {
    unpack_256 *unpack;
    unsigned shift;
    bool is_signed; /* the high digit */
    int n_pair;     /* pairs of mins, or 0 */
    bool single;    /* no high digit */
    bool offset;    /* whose part of the sum is known for each row */
} kind;

/* Integer sums of one block, one group of rows times one panel, on their way into float sums. */
typedef struct part {
    const qscale *s;
    const int32_t *c;         /* [high, low][16][16] */
    const float *d;           /* of the rows */
    const int32_t (*pair)[8]; /* of the rows */
    const float *from;        /* [row][16], or [16] zeros */
    float *to;                /* [row][16] */
    size_t ld_from;           /* 16 or 0 */
    uint32_t n_row;           /* 0: nothing to do */
    uint32_t row, panel;      /* where it belongs, */
    bool last;                /* and goes after this block */
} part;

/* What the rows of a part share, in registers. */
typedef struct shared {
    __m512 d, m;
    __m512i j[8];
} shared;

static FORCED void add_row(const kind k, const part *p, const shared *w, uint32_t r) {
    __m512i sum = load64(p->c + 256 + 16 * r);
    if (k.offset) sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(p->pair[r][0]));
    if (!k.single)
        sum = _mm512_add_epi32(_mm512_slli_epi32(load64(p->c + 16 * r), k.shift), sum);
    __m512 dx = _mm512_set1_ps(p->d[r]), acc = _mm512_load_ps(p->from + r * p->ld_from);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(w->d, dx), acc);
    if (k.n_pair) {
        __m512i s = _mm512_setzero_si512();
        for (int i = 0; i < k.n_pair; i++)
            s = _mm512_dpwssd_epi32(s, w->j[i], _mm512_set1_epi32(p->pair[r][i]));
        acc = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(w->m, dx), acc);
    }
    _mm512_store_ps(p->to + r * LG_NR, acc);
}

#define ADD 4 /* rows added in a quarter of a step */

/* Rows [r, r + ADD) of a part, if it has row r; lines past its rows are added up too, and not kept.  Single fields are read: a copy
 * of the struct would wait for all stores to it. */
static FORCED void add_part(const kind k, const part *of, uint32_t r) {
    const part p = {.c = of->c,
                    .d = of->d,
                    .pair = of->pair,
                    .from = of->from,
                    .to = of->to,
                    .ld_from = of->ld_from};
    if (r >= of->n_row) return;
    shared w = {.d = _mm512_load_ps(of->s->d)};
    if (k.n_pair) {
        w.m = _mm512_load_ps(of->s->m);
        for (int i = 0; i < k.n_pair; i++) w.j[i] = load64(of->s->j[i]);
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < ADD; i++) add_row(k, &p, &w, r + i);
}

/* Quarters [q, end) of a group to unpack during a step. */
typedef struct ahead {
    const uint8_t *group, *far; /* NULL: none; what will be unpacked two blocks later */
    size_t bytes;               /* of a group */
    qscale *s;
    qtile *t;
    int q, end;
} ahead;

static FORCED void unpack_ahead(const kind k, const ahead *next, int i) {
    int q = next->q + i;
    if (q >= next->end || !next->group) return;
    const char *far = (const char *)next->far;
    size_t end = (size_t)(q + 1) * next->bytes / 4;
    for (size_t at = (size_t)q * next->bytes / 4; far && at < end; at += 64)
        _mm_prefetch(far + at, _MM_HINT_T1);
    k.unpack(next->group, q, next->s, next->t);
}

/* Products of quarter q into tiles high and low. */
#define MAC_QUARTER(high_tile, low_tile)                                                       \
    tile_load(4, a, q *TILE_BYTES);                                                            \
    if (!k.single) tile_load(6, t, offsetof(qtile, high) + (size_t)q * TILE_BYTES);            \
    if (!k.single && k.is_signed) tile_mac_ss(high_tile, 4, 6);                                \
    if (!k.single && !k.is_signed) tile_mac_su(high_tile, 4, 6);                               \
    tile_load(7, t, offsetof(qtile, low) + (size_t)q * TILE_BYTES);                            \
    tile_mac_su(low_tile, 4, 7)

#define STORE(high_tile, low_tile)                                                             \
    if (!k.single) tile_store(high_tile, before, 0);                                           \
    tile_store(low_tile, before, TILE_BYTES)

/* One step, whose integers stay in its two tiles; `before`: where those of the step before go; `old`: what is added. */
static FORCED void multiply(const kind k, const int turn, const int8_t *a, const qtile *t,
                            int32_t *before, const part *old, const ahead *next) {
    if (turn) {
        tile_zero(2);
        tile_zero(3);
    } else {
        tile_zero(0);
        tile_zero(1);
    }
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        if (turn) {
            MAC_QUARTER(2, 3);
        } else {
            MAC_QUARTER(0, 1);
        }
        if (q == 1 && turn) {
            STORE(0, 1);
        } else if (q == 1) {
            STORE(2, 3);
        }
        add_part(k, old, (uint32_t)q * ADD);
        unpack_ahead(k, next, q);
    }
}

/* The steps of a type, even and odd ones; functions of their own have registers enough. */
typedef void step_fn(const int8_t *a, const qtile *t, int32_t *before, const part *old,
                     const ahead *next);
typedef struct steps {
    unpack_256 *unpack;
    step_fn *step[2];
} steps;

#define STEPS(name, ...)                                                                       \
    NOINLINE void name##_even(const int8_t *a, const qtile *t, int32_t *before,                \
                              const part *old, const ahead *next) {                            \
        multiply((kind){digits_##name, __VA_ARGS__}, 0, a, t, before, old, next);              \
    }                                                                                          \
    NOINLINE void name##_odd(const int8_t *a, const qtile *t, int32_t *before,                 \
                             const part *old, const ahead *next) {                             \
        multiply((kind){digits_##name, __VA_ARGS__}, 1, a, t, before, old, next);              \
    }                                                                                          \
    static const steps steps_##name = {digits_##name, {name##_even, name##_odd}}

STEPS(q2_k, .n_pair = 8, .single = true);
STEPS(q3_k, .single = true, .offset = true);
STEPS(q4_k, .shift = 3, .n_pair = 4);
STEPS(q5_k, .shift = 3, .n_pair = 4);
STEPS(q6_k, .shift = 8, .is_signed = true);
STEPS(iq4_xs, .shift = 8, .is_signed = true);

/* Working memory of a call; things of different blocks lie apart by turns. */
typedef struct work {
    qtile t[2];  /* [block % 2] */
    qscale s[4]; /* [block % 4]: two steps later they are needed still */
    _Alignas(64) int32_t c[2][2][QA_TILE][LG_NR];                /* [step % 2]: high, low */
    _Alignas(64) float acc[3][QA_ROW / QA_TILE][QA_TILE][LG_NR]; /* [panel % 3][group] */
    part parts[4];                                               /* [step % 4] */
} work;

static const _Alignas(64) float no_sum[LG_NR];

/* From the local sums to y, or back. */
static void rows_to_y(const pass *g, const part *p) {
    __mmask16 ch = panel_channels(g, p->panel);
    float *y = panel_y(g, p->panel, p->row);
    for (uint32_t r = 0; r < p->n_row; r++)
        _mm512_mask_storeu_ps(y + r * g->ld_y, ch, _mm512_load_ps(p->to + r * LG_NR));
}

static void rows_from_y(const pass *g, const part *p) {
    __mmask16 ch = panel_channels(g, p->panel);
    const float *y = panel_y(g, p->panel, p->row);
    for (uint32_t r = 0; r < p->n_row; r++)
        _mm512_store_ps(p->to + r * LG_NR, _mm512_maskz_loadu_ps(ch, y + r * g->ld_y));
}

/* Block b of panel p times a group of rows. */
static void part_set(part *to, const pass *g, const xtile *x, uint32_t p, uint32_t b,
                     uint32_t group, const qscale *s, const int32_t *c, float (*acc)[LG_NR]) {
    uint32_t r = group * g->tall, row = b * g->n_group * g->tall + r;
    bool fresh = b == 0 && g->k0 == 0;
    to->s = s;
    to->c = c;
    to->d = x->d + row;
    to->pair = x->pair + row;
    to->from = fresh ? no_sum : acc[0];
    to->to = acc[0];
    to->ld_from = fresh ? 0 : LG_NR;
    to->n_row = g->n_row - r < g->tall ? g->n_row - r : g->tall;
    to->row = r;
    to->panel = p;
    to->last = (b + 1) * 256 == g->n_k;
    if (b) return;
    for (uint32_t i = 0; i < to->n_row; i++) __builtin_prefetch(panel_y(g, p, r + i), 1);
    if (g->k0) rows_from_y(g, to);
}

/* The group that comes `n` blocks after block b of panel p. */
static const uint8_t *group_after(const pass *g, uint32_t p, uint32_t b, uint32_t n) {
    uint32_t n_block = g->n_k / 256;
    return weight_group(g, p + (b + n) / n_block, (b + n) % n_block);
}

/* The share of step i of n in unpacking the quarters of a group. */
static void ahead_share(ahead *next, uint32_t i, uint32_t n) {
    uint32_t of = n < 4 ? n : 4;
    next->q = (int)(4 * i / of);
    next->end = i < of ? (int)(4 * (i + 1) / of) : 0;
}

static void run_step(const pass *g, const steps *k, work *m, uint32_t step, const int8_t *a,
                     const qtile *t, const ahead *next) {
    const part *old = &m->parts[(step - 2) % 4];
    k->step[step % 2](a, t, m->c[(step - 1) % 2][0][0], old, next);
    if (old->n_row && old->last) rows_to_y(g, old);
}

static void run_pass(const pass *g, const xtile *x, const steps *k) {
    work m;
    const uint32_t n_block = g->n_k / 256;
    ahead next = {.bytes = g->group_bytes};
    uint32_t block = 0, step = 0;
    m.parts[2].n_row = m.parts[3].n_row = 0;
    for (int q = 0; q < 4; q++) k->unpack(weight_group(g, 0, 0), q, &m.s[0], &m.t[0]);
    for (uint32_t p = 0; p < g->n_panel; p++)
        for (uint32_t b = 0; b < n_block; b++, block++) {
            next.group = group_after(g, p, b, 1);
            next.far = group_after(g, p, b, 3);
            next.s = &m.s[(block + 1) % 4];
            next.t = &m.t[(block + 1) % 2];
            for (uint32_t r = 0; r < g->n_group; r++, step++) {
                part_set(&m.parts[step % 4], g, x, p, b, r, &m.s[block % 4],
                         m.c[step % 2][0][0], m.acc[p % 3][r]);
                ahead_share(&next, r, g->n_group);
                run_step(g, k, &m, step, x_tile(g, x, 4 * b, r), &m.t[block % 2], &next);
            }
        }
    /* Two more steps, whose products nobody wants, store and add what is left. */
    next.end = 0;
    for (uint32_t i = 0; i < 2; i++, step++) {
        m.parts[step % 4].n_row = 0;
        run_step(g, k, &m, step, x->v, &m.t[0], &next);
    }
}

static void run_type(const pass *g, const xtile *x) {
    switch (g->w->type) {
    case LG_Q2_K: run_pass(g, x, &steps_q2_k); break;
    case LG_Q3_K: run_pass(g, x, &steps_q3_k); break;
    case LG_Q4_K: run_pass(g, x, &steps_q4_k); break;
    case LG_Q5_K: run_pass(g, x, &steps_q5_k); break;
    case LG_Q6_K: run_pass(g, x, &steps_q6_k); break;
    case LG_IQ4_XS: run_pass(g, x, &steps_iq4_xs); break;
    default: lg_qgemm_amx_small(g, x); break;
    }
}

/* ---- the call ---- */

/* Sums in tiles 0 to 3, rows in 4 and 5, weights in 6 and 7; blocks of 32 have half of a line. */
static void configure(uint32_t tall, bool small) {
    tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = small && (i == 4 || i == 5) ? 32 : 64;
        c.n_row[i] = (uint8_t)(i < 6 ? tall : small ? 8 : 16);
    }
    tile_configure(&c);
}

void lg_qgemm_amx(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const lg_qrows *x,
                  const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y) {
    if (n_row < least_rows(w->type) || w->n_in == 0) {
        lg_qgemm_avx512vnni(w, panel0, n_panel, x, row_idx, n_row, y, ld_y);
        return;
    }
    LG_ASSERT(x->group == lg_dtype_row_group(w->type));
    xtile t;
    pass g = {.w = w, .x = x, .row_idx = row_idx, .ld_y = ld_y};
    g.panel0 = panel0;
    g.n_panel = n_panel;
    g.group_bytes = LG_NR * lg_dtype_block_bytes(w->type);
    g.panel_bytes = lg_dtype_panel_bytes(w->type, w->n_in);
    for (uint32_t r = 0; r < n_row; r += g.n_row) {
        g.row0 = r;
        g.n_row = n_row - r < QA_ROW ? n_row - r : QA_ROW;
        g.y = y + r * ld_y;
        g.n_group = (g.n_row + QA_TILE - 1) / QA_TILE;
        g.tall = (g.n_row + g.n_group - 1) / g.n_group;
        configure(g.tall, x->group == 32);
        uint32_t most = QA_X / (g.n_group * QA_TILE) / 256 * 256;
        for (g.k0 = 0; g.k0 < w->n_in; g.k0 += g.n_k) {
            g.n_k = w->n_in - g.k0 < most ? w->n_in - g.k0 : most;
            pack_rows(&g, &t);
            run_type(&g, &t);
        }
    }
    tile_release();
}
