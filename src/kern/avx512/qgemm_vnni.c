/* qgemm_vnni.c - qgemm by vpdpbusd, 16 channels a register.
 *
 * More than VG_FEW rows (fewer: qfew_vnni.c).  A group of a panel, or of two, becomes bytes in the first-level cache (qwide_vnni.h); then all rows pass over it, six at a
 * time.  Four products add up in 32 bits; how many more may join them before a scale is multiplied in depends on the type:
 *   - a sum that fits 16 bits is scaled and added by one vpdpwssd (the scale's upper word is 0): Q4_K after 16 channels; Q6_K
 *     after 8, once 32 x the sum of the 8 inputs is taken off
 *   - Q5_K, IQ4_XS: 32 channels, then vpmulld and vpaddd
 *   - Q2_K, Q3_K: the scales are in the bytes already
 *   - blocks of 32: 32 channels, then the float scale
 * Sums of up to VG_ROW rows wait in a buffer on the stack between groups.  Test: tests/unit/test_qgemm.c; what else was
 * tried: docs/EXPERIMENTS.md */
#include "kern/avx512/avx512.h"
#include "kern/avx512/qrows_vnni.h"

#define VG_ROW  96 /* rows that pass over a widened group */
#define VG_TILE 6  /* rows of a tile: with two panels, 12 sums and 12 sums of a run */
#define VG_P    2  /* panels of a tile */

/* How a type is multiplied. */
typedef struct vkind {
    int n_k;             /* input channels that add up before a scale */
    int n_run;           /* those of one integer scale; 0: none */
    bool words;          /* scaled by vpdpwssd */
    bool small;          /* blocks of 32, each with its float scale */
    bool start;          /* sums start with the offset taken off; else it is 0 */
    bool has_min, min16; /* the mins of 16 channels */
} vkind;

/* Rows [0, n_row) over n_part blocks of the widened groups t[0 .. n_p). */
typedef struct vtile {
    const lg_vwide *t;
    const vrow *row;
    uint32_t n_row;
    int n_p, n_part, offset;
    const uint8_t *next[VG_P]; /* the groups that come next in memory */
    size_t len_bytes, step;    /* their length, and what each sum of a tile asks for */
} vtile;

/* ---- tiles ---- */

/* What a row's sums start with: see starts_of_eight and starts_of_32. */
INLINE void row_starts(const vkind k, const vrow *x, int n_part, int offset, int32_t *start) {
    if (k.n_k == 8)
        starts_of_eight(x, start);
    else
        starts_of_32(x, k.small ? n_part : 8, offset, start);
}

/* The sums of 32 inputs, negative, as floats. */
INLINE void row_minus_sums(const vrow *x, int n_part, float *minus) {
    __m128i v = _mm_maskz_loadu_epi16((__mmask8)((1u << n_part) - 1u), x->sum);
    v = _mm_sub_epi16(_mm_setzero_si128(), v);
    _mm256_store_ps(minus, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(v)));
}

INLINE __m512 mins(const vkind k, const lg_vwide *t, const vrow *x) {
    return k.min16 ? min_sum(t, x->sum16, 8) : min_sum(t, x->sum, 4);
}

/* Ask for memory a little at a time: all lines of a group at once would wait for each other, and the products for them. */
INLINE void ask_lines(const vtile *a, const int n_p, size_t at) {
    for (int p = 0; p < n_p; p++)
        for (size_t i = at; i < at + a->step; i += 64)
            _mm_prefetch((const char *)a->next[p] + i, _MM_HINT_T1);
}

/* n_row rows from row0 and n_p panels in registers. */
INLINE void tile_run(const vkind k, const int n_p, const int n_row, const vtile *a,
                     uint32_t row0, size_t ask) {
    const lg_vwide *t = a->t;
    const vrow *x = a->row + row0;
    int n_part = a->n_part, offset = a->offset;
    _Alignas(64) int32_t start[VG_TILE][64];
    _Alignas(64) float minus[VG_TILE][8];
    const int8_t *v[VG_TILE];
    __m512i sum[VG_TILE][VG_P];
    __m512 acc[VG_TILE][VG_P];
    UNROLL
    for (int r = 0; r < n_row; r++) {
        v[r] = x[r].v8;
        if (k.start) row_starts(k, &x[r], n_part, offset, start[r]);
        if (k.small && k.has_min) row_minus_sums(&x[r], n_part, minus[r]);
        UNROLL
        for (int p = 0; p < n_p; p++) {
            if (k.small) acc[r][p] = _mm512_load_ps(x[r].acc[p]);
            sum[r][p] = _mm512_setzero_si512();
        }
    }
    int n_sum = k.small ? n_part : LG_MAX_BLOCK / k.n_k;
    ROLL for (int c = 0; c < n_sum; c++, ask += a->step) {
        __m512i s[VG_TILE][VG_P];
        ask_lines(a, n_p, ask);
        UNROLL
        for (int r = 0; r < n_row; r++) UNROLL
        for (int p = 0; p < n_p; p++)
            s[r][p] = k.start ? _mm512_set1_epi32(start[r][k.n_k == 8 ? 2 * c : c])
                              : _mm512_setzero_si512();
        UNROLL
        for (int i = 0; i < k.n_k / 4; i++) {
            int k4 = c * (k.n_k / 4) + i;
            UNROLL
            for (int r = 0; r < n_row; r++) {
                __m512i xv = _mm512_set1_epi32((int)lg_num_load32(v[r] + 4 * k4));
                UNROLL
                for (int p = 0; p < n_p; p++)
                    s[r][p] = _mm512_dpbusd_epi32(s[r][p], load_i(t[p].w[k4]), xv);
            }
        }
        UNROLL
        for (int p = 0; p < n_p; p++) UNROLL
        for (int r = 0; r < n_row; r++) {
            if (k.small) {
                acc[r][p] = add_scaled(acc[r][p], s[r][p], t[p].d[c], x[r].d[c]);
                if (k.has_min)
                    acc[r][p] = sub_scaled(acc[r][p], _mm512_set1_ps(minus[r][c]), t[p].m[c],
                                           x[r].d[c]);
            } else if (k.n_run == 0) {
                sum[r][p] = _mm512_add_epi32(sum[r][p], s[r][p]);
            } else {
                __m512i scale = load_i(t[p].scale[c * k.n_k / k.n_run]);
                if (k.words)
                    dot_words(&sum[r][p], s[r][p], scale);
                else
                    sum[r][p] = _mm512_add_epi32(sum[r][p], _mm512_mullo_epi32(s[r][p], scale));
            }
        }
    }
    UNROLL
    for (int r = 0; r < n_row; r++) UNROLL
    for (int p = 0; p < n_p; p++) {
        if (!k.small) {
            acc[r][p] = _mm512_load_ps(x[r].acc[p]);
            acc[r][p] = add_scaled(acc[r][p], sum[r][p], t[p].d[0], x[r].d[0]);
            if (k.has_min)
                acc[r][p] = sub_scaled(acc[r][p], mins(k, &t[p], &x[r]), t[p].m[0], x[r].d[0]);
        }
        _mm512_store_ps(x[r].acc[p], acc[r][p]);
    }
}

/* How many of n_left rows the next tile takes, so that tiles are nearly equal. */
INLINE uint32_t take(uint32_t n_left) {
    uint32_t n_tile = (n_left + VG_TILE - 1) / VG_TILE;
    return (n_left + n_tile - 1) / n_tile;
}

INLINE void tiles_of(const vkind k, const int n_p, const vtile *a) {
    size_t ask = 0, n_sum = k.small ? (size_t)a->n_part : (size_t)(LG_MAX_BLOCK / k.n_k);
    for (uint32_t r = 0; r < a->n_row; ask += n_sum * a->step) {
        uint32_t n = take(a->n_row - r);
        switch (n) {
        case 1: tile_run(k, n_p, 1, a, r, ask); break;
        case 2: tile_run(k, n_p, 2, a, r, ask); break;
        case 3: tile_run(k, n_p, 3, a, r, ask); break;
        case 4: tile_run(k, n_p, 4, a, r, ask); break;
        case 5: tile_run(k, n_p, 5, a, r, ask); break;
        default: tile_run(k, n_p, VG_TILE, a, r, ask); break;
        }
        r += n;
    }
}

INLINE void tiles(const vkind k, vtile *a) {
    uint32_t n_tile = (a->n_row + VG_TILE - 1) / VG_TILE;
    uint32_t n_sum = k.small ? (uint32_t)a->n_part : (uint32_t)(LG_MAX_BLOCK / k.n_k);
    a->step = (a->len_bytes + n_tile * n_sum - 1) / (n_tile * n_sum);
    if (a->n_p == 1)
        tiles_of(k, 1, a);
    else
        tiles_of(k, VG_P, a);
}

static void tiles_small(vtile *a) {
    tiles((vkind){.n_k = 32, .small = true, .start = true}, a);
}

static void tiles_small_min(vtile *a) {
    tiles((vkind){.n_k = 32, .small = true, .has_min = true}, a);
}

static void tiles_q2_k(vtile *a) {
    tiles((vkind){.n_k = 32, .has_min = true, .min16 = true}, a);
}

static void tiles_q3_k(vtile *a) {
    tiles((vkind){.n_k = 32, .start = true}, a);
}

static void tiles_q4_k(vtile *a) {
    tiles((vkind){.n_k = 16, .n_run = 32, .words = true, .has_min = true}, a);
}

static void tiles_q5_k(vtile *a) {
    tiles((vkind){.n_k = 32, .n_run = 32, .has_min = true}, a);
}

static void tiles_q6_k(vtile *a) {
    tiles((vkind){.n_k = 8, .n_run = 16, .words = true, .start = true}, a);
}

static void tiles_iq4_xs(vtile *a) {
    tiles((vkind){.n_k = 32, .n_run = 32, .start = true}, a);
}

typedef void tiles_fn(vtile *a);

static tiles_fn *tiles_of_type(lg_dtype type) {
    switch (type) {
    case LG_Q4_1:
    case LG_Q5_1: return tiles_small_min;
    case LG_Q2_K: return tiles_q2_k;
    case LG_Q3_K: return tiles_q3_k;
    case LG_Q4_K: return tiles_q4_k;
    case LG_Q5_K: return tiles_q5_k;
    case LG_Q6_K: return tiles_q6_k;
    case LG_IQ4_XS: return tiles_iq4_xs;
    default: return tiles_small;
    }
}

/* ---- a call ---- */

/* n_p panels from `panel`. */
static void run_panels(const vgemm *g, uint32_t panel, int n_p) {
    lg_vwide t[VG_P];
    vrow row[VG_ROW];
    _Alignas(64) float acc[VG_ROW][VG_P][LG_NR];
    lg_vwiden_fn *widen = lg_vwiden(g->w->type);
    tiles_fn *run = tiles_of_type(g->w->type);
    uint32_t n_k = lg_dtype_row_group(g->w->type), n_group = g->w->n_in / n_k;
    uint32_t step = LG_MAX_BLOCK / n_k, n_widen = lg_dtype_block(g->w->type) / n_k;
    const uint8_t *group = (const uint8_t *)g->w->panel + panel * g->panel_bytes;
    for (uint32_t i = 0; i < g->n_row; i++) {
        row[i] = row_of(g, i);
        row[i].acc = acc[i];
        memset(acc[i], 0, sizeof acc[i]);
    }
    for (uint32_t b = 0; b < n_group; b += step) {
        uint32_t n_part = n_group - b < step ? n_group - b : step;
        vtile a = {.t = t, .row = row, .n_row = g->n_row, .n_p = n_p, .n_part = (int)n_part};
        a.offset = lg_vwide_offset(g->w->type);
        a.len_bytes = n_part / n_widen * g->group_bytes;
        for (int p = 0; p < n_p; p++) {
            const uint8_t *at = group + (size_t)p * g->panel_bytes;
            a.next[p] = at + a.len_bytes;
            for (uint32_t i = 0; i < n_part; i += n_widen, at += g->group_bytes)
                widen(at, &t[p], (int)i);
        }
        group += a.len_bytes;
        run(&a);
        for (uint32_t i = 0; i < g->n_row; i++) row_next(&row[i], n_k * n_part, n_part);
    }
    for (int p = 0; p < n_p; p++)
        for (uint32_t i = 0; i < g->n_row; i++)
            store_row(g, panel + (uint32_t)p, i, _mm512_load_ps(acc[i][p]));
}

void lg_qgemm_avx512vnni(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const lg_qrows *x,
                         const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y) {
    LG_ASSERT(x->group == lg_dtype_row_group(w->type));
    for (uint32_t r = 0; r < n_row; r += VG_ROW) {
        vgemm g = {.w = w, .x = x, .row_idx = row_idx, .row0 = r, .y = y, .ld_y = ld_y};
        g.n_row = n_row - r < VG_ROW ? n_row - r : VG_ROW;
        g.group_bytes = LG_NR * lg_dtype_block_bytes(w->type);
        g.panel_bytes = lg_dtype_panel_bytes(w->type, w->n_in);
        if (g.n_row <= VG_FEW) {
            lg_qgemm_vnni_few(&g, panel0, n_panel);
            continue;
        }
        for (uint32_t p = panel0, end = panel0 + n_panel; p < end;) {
            int n_p = end - p >= VG_P ? VG_P : 1;
            run_panels(&g, p, n_p);
            p += (uint32_t)n_p;
        }
    }
}
