/* qfew_vnni.c - qgemm for at most VG_FEW rows: weights are multiplied as they come from memory.
 *
 * Bytes are unpacked in registers and multiplied at once, and each load asks for the same place of the next group (into the
 * second-level cache), so that memory, unpacking and products overlap: one row runs at about the speed of memory.
 * A group is walked in segments: `n_i` loads give `n_vec` vectors each, which add up in one sum or in a sum each; at the end
 * of a segment sums are scaled.  How much may add up: qgemm_vnni.c; Q3_K is not scaled in bytes here, but after 16 channels.
 * Test: tests/unit/test_qgemm.c; what else was tried: docs/EXPERIMENTS.md */
#include "kern/avx512/qrows_vnni.h"

/* How a group of a type is walked: constants of the code made for it. */
typedef struct vwalk {
    int n_seg, n_vec, n_i;
    bool one_sum; /* of all vectors */
    bool words;   /* scaled by vpdpwssd, else by vpmulld */
    bool small;   /* parts of 32 with a float scale and no other */
    int offset;   /* of the bytes; 0: no start */
} vwalk;

INLINE vwalk walk_of(const lg_dtype type) {
    switch (type) {
    case LG_Q2_K: return (vwalk){.n_seg = 4, .n_vec = 4, .n_i = 4, .words = true};
    case LG_Q3_K: return (vwalk){.n_seg = 4, .n_vec = 4, .n_i = 4, .words = true, .offset = 4};
    case LG_Q4_K: return (vwalk){.n_seg = 8, .n_vec = 2, .n_i = 4, .words = true};
    case LG_Q5_K: return (vwalk){.n_seg = 4, .n_vec = 2, .n_i = 8};
    case LG_Q6_K: return (vwalk){.n_seg = 8, .n_vec = 4, .n_i = 2, .words = true, .offset = 32};
    case LG_IQ4_XS:
        return (vwalk){.n_seg = 8, .n_vec = 2, .n_i = 4, .one_sum = true, .offset = 128};
    case LG_Q8_0:
    case LG_I8_128:
        return (vwalk){.n_seg = 1, .n_vec = 1, .n_i = 8, .small = true, .offset = 128};
    default: break;
    }
    vwalk k = {.n_seg = 1, .n_vec = 2, .n_i = 4, .one_sum = true, .small = true};
    k.offset = type == LG_IQ4_NL ? 128 : type == LG_Q4_0 ? 8 : 16;
    if (type == LG_Q4_1 || type == LG_Q5_1) k.offset = 0;
    return k;
}

/* Which four input channels vector v of load i holds; the sum's scale; in n_k = 8 its start. */
INLINE int k4_of(const lg_dtype type, int seg, int v, int i) {
    switch (type) {
    case LG_Q2_K:
    case LG_Q3_K: return 32 * (seg / 2) + 8 * v + 4 * (seg % 2) + i;
    case LG_Q4_K: return 16 * (seg / 2) + 8 * v + 4 * (seg % 2) + i;
    case LG_Q5_K: return 16 * seg + 8 * v + i;
    case LG_Q6_K: return 32 * (seg / 4) + 8 * v + 2 * (seg % 4) + i;
    case LG_IQ4_XS: return 8 * seg + 4 * v + i;
    default: return 4 * v + i;
    }
}

INLINE int scale_of(const lg_dtype type, int seg, int v) {
    switch (type) {
    case LG_Q2_K:
    case LG_Q3_K: return 8 * (seg / 2) + 2 * v + seg % 2;
    case LG_Q4_K: return 2 * (seg / 2) + v;
    case LG_Q5_K: return 2 * seg + v;
    case LG_Q6_K: return 8 * (seg / 4) + 2 * v + seg % 4 / 2;
    default: return seg;
    }
}

INLINE int start_of(const lg_dtype type, int seg, int v) {
    if (type == LG_Q6_K) return 2 * (16 * (seg / 4) + 4 * v + seg % 4);
    return scale_of(type, seg, v);
}

/* v shifted left by n bits, or right by -n, in words. */
INLINE __m512i shifted(__m512i v, int n) {
    return n >= 0 ? _mm512_slli_epi16(v, LG_SHIFT(n)) : _mm512_srli_epi16(v, LG_SHIFT(-n));
}

/* How far ahead memory is asked for, in bytes: about as much as a group of 256. */
INLINE int ahead_of(const lg_dtype type) {
    switch (type) {
    case LG_Q2_K: return 2688;
    case LG_Q3_K: return 1760;
    case LG_Q5_K: return 2816;
    case LG_Q6_K: return 3360;
    case LG_IQ4_XS: return 2176;
    default: return 2304;
    }
}

INLINE void ask(const lg_dtype type, const uint8_t *p) {
    _mm_prefetch((const char *)p + ahead_of(type), _MM_HINT_T1);
}

INLINE __m512i first64(const lg_dtype type, const uint8_t *p) {
    ask(type, p);
    return vload64(p);
}

INLINE __m512i first_fours(const lg_dtype type, const uint8_t *p) {
    ask(type, p);
    return vfours(p);
}

/* Load i of a segment of 256 elements. */
INLINE void load_vec(const lg_dtype type, const uint8_t *g, int seg, int i, __m512i *w) {
    if (type == LG_Q2_K) {
        __m512i v = first_fours(type, g + 256 + 512 * (seg / 2) + 256 * (seg % 2) + 64 * i);
        UNROLL
        for (int t = 0; t < 4; t++) w[t] = _mm512_and_si512(shifted(v, -2 * t), vbytes(3));
    }
    if (type == LG_Q3_K) {
        int half = seg / 2, at = seg % 2 * 4 + i;
        __m512i v = first_fours(type, g + 512 + 512 * half + 64 * at);
        __m512i h = half ? vfours(g + 64 * at) : first_fours(type, g + 64 * at);
        UNROLL
        for (int t = 0; t < 4; t++) {
            __m512i q = vpick(vbytes(3), shifted(v, -2 * t), shifted(h, 2 - 4 * half - t));
            w[t] = _mm512_and_si512(q, vbytes(7));
        }
    }
    if (type == LG_Q4_K) {
        __m512i v = first64(type, g + 256 + 256 * seg + 64 * i);
        w[0] = vlow4(v);
        w[1] = vhigh4(v);
    }
    if (type == LG_Q5_K) {
        __m512i h = seg ? vfours(g + 256 + 64 * i) : first_fours(type, g + 256 + 64 * i);
        __m512i v = first_fours(type, g + 768 + 512 * seg + 64 * i);
        w[0] = vpick(vbytes(15), v, shifted(h, 4 - 2 * seg));
        w[1] = vpick(vbytes(15), _mm512_srli_epi16(v, 4), shifted(h, 3 - 2 * seg));
        w[0] = _mm512_and_si512(w[0], vbytes(31));
        w[1] = _mm512_and_si512(w[1], vbytes(31));
    }
    if (type == LG_Q6_K) {
        const uint8_t *low = g + 1024 * (seg / 4) + 128 * (seg % 4) + 64 * i;
        __m512i h = first64(type, g + 2048 + 512 * (seg / 4) + 128 * (seg % 4) + 64 * i);
        __m512i a = first64(type, low), b = first64(type, low + 512);
        w[0] = vpick(vbytes(15), a, _mm512_slli_epi16(h, 4));
        w[1] = vpick(vbytes(15), b, _mm512_slli_epi16(h, 2));
        w[2] = vpick(vbytes(15), _mm512_srli_epi16(a, 4), h);
        w[3] = vpick(vbytes(15), _mm512_srli_epi16(b, 4), _mm512_srli_epi16(h, 2));
        UNROLL
        for (int t = 0; t < 4; t++) w[t] = _mm512_and_si512(w[t], vbytes(63));
    }
    if (type == LG_IQ4_XS) {
        __m512i v = first_fours(type, g + 128 + 256 * seg + 64 * i),
                t = vtable(lg_dequant_iq4, 128);
        w[0] = _mm512_shuffle_epi8(t, vlow4(v));
        w[1] = _mm512_shuffle_epi8(t, vhigh4(v));
    }
}

/* The same for 32 elements, part `part` of a block; g: the block, fixed: what all loads of it need. */
INLINE void load_small(const lg_dtype type, const uint8_t *g, int part, __m512i fixed, int i,
                       __m512i *w) {
    int head = type == LG_MXFP4                                          ? 16
               : type == LG_Q4_0 || type == LG_Q8_0 || type == LG_IQ4_NL ? 32
               : type == LG_Q4_1 || type == LG_I8_128                    ? 64
               : type == LG_I4_32 || type == LG_I4_128                   ? 80
               : type == LG_Q5_0                                         ? 96
                                                                         : 128;
    if (type == LG_Q8_0 || type == LG_I8_128) {
        w[0] =
            _mm512_xor_si512(first_fours(type, g + head + 512 * part + 64 * i), vbytes(-128));
        return;
    }
    __m512i v = first_fours(type, g + head + 256 * part + 64 * i);
    w[0] = vlow4(v);
    w[1] = vhigh4(v);
    UNROLL
    for (int t = 0; t < 2; t++) {
        if (type == LG_IQ4_NL || type == LG_MXFP4) w[t] = _mm512_shuffle_epi8(fixed, w[t]);
        if (type == LG_I4_32 || type == LG_I4_128) w[t] = _mm512_add_epi8(w[t], fixed);
        if (type == LG_Q5_0 || type == LG_Q5_1) w[t] = vfifth(w[t], fixed, 4 * t + i);
    }
}

INLINE __m512i fixed_of(const lg_dtype type, const uint8_t *g) {
    switch (type) {
    case LG_IQ4_NL: return vtable(lg_dequant_iq4, 128);
    case LG_MXFP4: return vtable(lg_dequant_e2m1, 16);
    case LG_I4_32:
    case LG_I4_128: return _mm512_sub_epi8(vbytes(16), vrepeat(vload16(g + 64)));
    case LG_Q5_0: return vload64(g + 32);
    case LG_Q5_1: return vload64(g + 64);
    default: return _mm512_setzero_si512();
    }
}

/* Float and integer scales of a group. */
INLINE void read_scales(const lg_dtype type, const uint8_t *g, lg_vwide *t) {
    switch (type) {
    case LG_MXFP4: _mm512_store_ps(t->d[0], vpowers(g)); return;
    case LG_I4_32:
    case LG_I4_128:
    case LG_I8_128: vstore(t->d[0], vload64(g)); return;
    case LG_Q2_K:
        vscales_q2(g, t);
        vhalves(g + 1280, t->d[0]);
        vhalves(g + 1312, t->m[0]);
        return;
    case LG_Q6_K:
        vhalves(g + 3328, t->d[0]);
        vscales_q6(g + 3072, t);
        return;
    case LG_Q3_K: {
        _Alignas(64) uint8_t scale[16][LG_NR];
        vhalves(g + 1728, t->d[0]);
        vscales_q3(g + 1536, scale);
        UNROLL
        for (int i = 0; i < 16; i++)
            vstore(t->scale[i], _mm512_and_si512(_mm512_cvtepi8_epi32(vload16(scale[i])),
                                                 _mm512_set1_epi32(0xffff)));
        return;
    }
    default: break;
    }
    vhalves(g, t->d[0]);
    if (type == LG_Q4_1 || type == LG_Q5_1 || type == LG_Q4_K || type == LG_Q5_K)
        vhalves(g + 32, t->m[0]);
    if (type == LG_Q4_K || type == LG_Q5_K) vscales_mins(g + 64, t);
    if (type == LG_IQ4_XS) vscales_iq4_xs(g + 32, t);
}

/* What the sums of a row start with, at start_of. */
INLINE void read_starts(const lg_dtype type, const vrow *x, int32_t *start) {
    const vwalk k = walk_of(type);
    if (type == LG_Q6_K) {
        starts_of_eight(x, start);
    } else if (type == LG_Q3_K) {
        __m512i v =
            _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)x->sum16));
        vstore(start, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(v, 2)));
    } else if (type == LG_IQ4_XS) {
        starts_of_32(x, 8, k.offset, start);
    }
}

/* One segment: products of n_row rows into sums, which are scaled into sum. */
INLINE void add_segment(const lg_dtype type, const uint8_t *g, const lg_vwide *t, int seg,
                        const vrow *row, const int n_row, int32_t (*start)[64], __m512i *sum) {
    const vwalk k = walk_of(type);
    const int n_sum = k.one_sum ? 1 : k.n_vec;
    __m512i s[VG_FEW][4];
    UNROLL
    for (int r = 0; r < n_row; r++) UNROLL
    for (int v = 0; v < n_sum; v++)
        s[r][v] = k.offset ? _mm512_set1_epi32(start[r][start_of(type, seg, v)])
                           : _mm512_setzero_si512();
    UNROLL
    for (int i = 0; i < k.n_i; i++) {
        __m512i w[4];
        load_vec(type, g, seg, i, w);
        UNROLL
        for (int r = 0; r < n_row; r++) UNROLL
        for (int v = 0; v < k.n_vec; v++)
            s[r][k.one_sum ? 0 : v] = _mm512_dpbusd_epi32(
                s[r][k.one_sum ? 0 : v], w[v], four_of(&row[r], k4_of(type, seg, v, i)));
    }
    UNROLL
    for (int v = 0; v < n_sum; v++) UNROLL
    for (int r = 0; r < n_row; r++) {
        __m512i scale = load_i(t->scale[scale_of(type, seg, v)]);
        if (k.words)
            dot_words(&sum[r], s[r][v], scale);
        else
            sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(s[r][v], scale));
    }
}

/* Ask for the places of scales. */
INLINE void ask_scales(const lg_dtype type, const uint8_t *g) {
    int from = type == LG_Q3_K ? 1536 : type == LG_Q6_K ? 3072 : 0, len = 64;
    if (type == LG_Q3_K || type == LG_Q2_K || type == LG_Q4_K || type == LG_Q5_K) len = 256;
    if (type == LG_Q6_K) len = 288;
    if (type == LG_IQ4_XS) len = 128;
    for (int at = from; at < from + len; at += 64) ask(type, g + at);
}

/* A group of 256. */
INLINE void add_group(const lg_dtype type, const uint8_t *g, vrow *row, const int n_row,
                      __m512 *acc) {
    const vwalk k = walk_of(type);
    lg_vwide t;
    _Alignas(64) int32_t start[VG_FEW][64];
    __m512i sum[VG_FEW];
    ask_scales(type, g);
    read_scales(type, g, &t);
    UNROLL
    for (int r = 0; r < n_row; r++) {
        sum[r] = _mm512_setzero_si512();
        read_starts(type, &row[r], start[r]);
    }
    if (k.n_seg == 4) { /* shifts depend on the segment */
        UNROLL
        for (int seg = 0; seg < 4; seg++) add_segment(type, g, &t, seg, row, n_row, start, sum);
    } else {
        ROLL for (int seg = 0; seg < k.n_seg; seg++)
            add_segment(type, g, &t, seg, row, n_row, start, sum);
    }
    UNROLL
    for (int r = 0; r < n_row; r++) {
        acc[r] = add_scaled(acc[r], sum[r], t.d[0], row[r].d[0]);
        if (type == LG_Q4_K || type == LG_Q5_K)
            acc[r] = sub_scaled(acc[r], min_sum(&t, row[r].sum, 4), t.m[0], row[r].d[0]);
        if (type == LG_Q2_K)
            acc[r] = sub_scaled(acc[r], min_sum(&t, row[r].sum16, 8), t.m[0], row[r].d[0]);
        row_next(&row[r], 256, 1);
    }
}

/* A group of 32, or of 128 in four parts. */
INLINE void add_small(const lg_dtype type, const uint8_t *g, int n_part, vrow *row,
                      const int n_row, __m512 *acc) {
    const vwalk k = walk_of(type);
    lg_vwide t;
    __m512i fixed = fixed_of(type, g);
    ask_scales(type, g);
    read_scales(type, g, &t);
    for (int part = 0; part < n_part; part++) {
        __m512i s[VG_FEW];
        UNROLL
        for (int r = 0; r < n_row; r++) s[r] = _mm512_set1_epi32(-k.offset * row[r].sum[0]);
        UNROLL
        for (int i = 0; i < k.n_i; i++) {
            __m512i w[2];
            load_small(type, g, part, fixed, i, w);
            UNROLL
            for (int r = 0; r < n_row; r++) UNROLL
            for (int v = 0; v < k.n_vec; v++)
                s[r] = _mm512_dpbusd_epi32(s[r], w[v], four_of(&row[r], k4_of(type, 0, v, i)));
        }
        UNROLL
        for (int r = 0; r < n_row; r++) {
            acc[r] = add_scaled(acc[r], s[r], t.d[0], row[r].d[0]);
            if (type == LG_Q4_1 || type == LG_Q5_1)
                acc[r] = sub_scaled(acc[r], _mm512_set1_ps((float)-row[r].sum[0]), t.m[0],
                                    row[r].d[0]);
            row_next(&row[r], 32, 1);
        }
    }
}

INLINE void run_rows(const lg_dtype type, const vgemm *g, uint32_t panel0, uint32_t n_panel,
                     const int n_row) {
    const vwalk k = walk_of(type);
    uint32_t n_group = g->w->n_in / lg_dtype_block(type);
    int n_part = (int)(lg_dtype_block(type) / 32);
    size_t len = g->group_bytes;
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        const uint8_t *group = (const uint8_t *)g->w->panel + p * g->panel_bytes;
        vrow row[VG_FEW];
        __m512 acc[VG_FEW];
        UNROLL
        for (int r = 0; r < n_row; r++) {
            row[r] = row_of(g, (uint32_t)r);
            acc[r] = _mm512_setzero_ps();
        }
        for (uint32_t b = 0; b < n_group; b++, group += len) {
            if (k.small)
                add_small(type, group, n_part, row, n_row, acc);
            else
                add_group(type, group, row, n_row, acc);
        }
        UNROLL
        for (int r = 0; r < n_row; r++) store_row(g, p, (uint32_t)r, acc[r]);
    }
}

INLINE void run(const lg_dtype type, const vgemm *g, uint32_t panel0, uint32_t n_panel) {
    switch (g->n_row) {
    case 1: run_rows(type, g, panel0, n_panel, 1); break;
    case 2: run_rows(type, g, panel0, n_panel, 2); break;
    case 3: run_rows(type, g, panel0, n_panel, 3); break;
    default: run_rows(type, g, panel0, n_panel, VG_FEW); break;
    }
}

void lg_qgemm_vnni_few(const vgemm *g, uint32_t panel0, uint32_t n_panel) {
    switch (g->w->type) {
    case LG_Q4_0: run(LG_Q4_0, g, panel0, n_panel); break;
    case LG_Q4_1: run(LG_Q4_1, g, panel0, n_panel); break;
    case LG_Q5_0: run(LG_Q5_0, g, panel0, n_panel); break;
    case LG_Q5_1: run(LG_Q5_1, g, panel0, n_panel); break;
    case LG_Q8_0: run(LG_Q8_0, g, panel0, n_panel); break;
    case LG_IQ4_NL: run(LG_IQ4_NL, g, panel0, n_panel); break;
    case LG_MXFP4: run(LG_MXFP4, g, panel0, n_panel); break;
    case LG_Q2_K: run(LG_Q2_K, g, panel0, n_panel); break;
    case LG_Q3_K: run(LG_Q3_K, g, panel0, n_panel); break;
    case LG_Q4_K: run(LG_Q4_K, g, panel0, n_panel); break;
    case LG_Q5_K: run(LG_Q5_K, g, panel0, n_panel); break;
    case LG_Q6_K: run(LG_Q6_K, g, panel0, n_panel); break;
    case LG_IQ4_XS: run(LG_IQ4_XS, g, panel0, n_panel); break;
    case LG_I4_32: run(LG_I4_32, g, panel0, n_panel); break;
    case LG_I4_128: run(LG_I4_128, g, panel0, n_panel); break;
    case LG_I8_128: run(LG_I8_128, g, panel0, n_panel); break;
    default: LG_ASSERT(lg_dtype_is_int(g->w->type)); break;
    }
}
