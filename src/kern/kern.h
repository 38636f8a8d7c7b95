/* kern.h - contracts of all compute kernels: the map of src/kern.
 *
 * vmath.h  the exponential of all levels
 * dtype.c  sizes and names of the weights' types;  qlayout.h  16 blocks side by side;  dequant.h  blocks to float
 * kv.c     sizes of the KV pages;  peak.h  what this processor can do at most
 * ref/     obvious C, the oracle
 * simd/    kernels over short vectors of floats, compiled by the next two with their own vector type
 * avx2/    AVX2 + FMA + F16C; with AVX-VNNI other integer products (level avxvnni)
 * avx512/  AVX-512 F/BW/DQ/VL; with VNNI other integer products (level avx512vnni)
 * amx/     integer products of many rows by tiles (level amx: avx512vnni and these)
 * kern.c   picks one table from CPUID; LG_CPU=ref|avx2|avxvnni|avx512|avx512vnni|amx in the environment forces a lower level
 *
 * THE RULE.  An output row depends on its own input row only, and every sum has one order, the same at every level, for
 * every tile shape, thread count and batch.  So all levels give the same bits, and a test compares them with memcmp.
 *   - A multiply-add is fused (fmaf); built with -ffp-contract=off, so nothing else is.
 *   - gemm: per output channel, k ascending, one accumulator that starts at +0:  acc = fmaf(x[k], w[k], acc).
 *     Channels are the vector lanes, so width never changes the order.  Blocks over k keep the accumulator in memory.
 *   - qgemm: per output channel, blocks of k ascending, one or two fmaf a block; what is inside a block is an exact integer.
 *   - reductions over a row (norms, dot): 16 lanes, lane j takes j, j+16, j+32 ... ascending (missing elements are
 *     skipped), then lanes are added pairwise: j and j+8, then +4, +2, +1.
 *   - exp and what is made of it (sigmoid, silu): lg_expf of kern/vmath.h, whose vector forms do the same operations.
 *   - attention: fixed pages of LG_PAGE_TOK positions, each with its own maximum and sums, merged in ascending order.  Keys and
 *     values are rounded once, when they are stored; everything that reads them reads the rounded ones.
 *   - GDN: row form (docs/MODEL.md), LG_GDN_C rows a block.
 *   - a token's experts are added in ascending expert id.
 *
 * Names: M or n_row tokens, n_out output channels, n_in input width, d head width, ld_* distance between rows in
 * elements.  All activations are float.  Kernels return nothing, allocate nothing and run on the calling thread; callers
 * cut the work (panels, rows, heads) and hand the pieces to the pool.  Zero rows or zero panels are legal.
 * Tests: tests/unit/test_kern.c (ref against double), test_kern_bits.c (every entry of every level against ref, odd sizes,
 * guard pages).  Speed: tests/bench/bench_kern.c.  More: docs/KERNELS.md. */
#ifndef LG_KERN_KERN_H
#define LG_KERN_KERN_H

#include "base/diag.h"

#include <stddef.h>
#include <stdint.h>

#define LG_NR       16 /* output channels in one weight panel */
#define LG_PAGE_TOK 64 /* positions in one KV page */
#define LG_GDN_C    32 /* rows a GDN slot keeps open before they are folded into its state */
#define LG_CONV_K   4  /* taps of the causal convolution: three earlier rows are kept */

/* Types of stored numbers.  From LG_Q4_0 on: block types; a row is a run of blocks, each with its own scales.  Those before
 * LG_I4_32 are GGUF's, named as there.  The others hold what quantised Hugging Face folders hold (model/weights/weights_quant.c), so
 * they exist in memory only.  The formats are written down as code in ref/dequant*.c. */
typedef enum lg_dtype {
    LG_F32,
    LG_BF16,
    LG_F16,
    LG_E4M3,
    LG_Q4_0,
    LG_Q4_1,
    LG_Q5_0,
    LG_Q5_1,
    LG_Q8_0,
    LG_IQ4_NL,
    LG_MXFP4,
    LG_Q2_K,
    LG_Q3_K,
    LG_Q4_K,
    LG_Q5_K,
    LG_Q6_K,
    LG_IQ4_XS,
    LG_IQ2_XXS,
    LG_IQ2_XS,
    LG_IQ2_S,
    LG_IQ3_XXS,
    LG_IQ3_S,
    LG_IQ1_S,
    LG_IQ1_M,
    LG_I4_32,  /* 32 integers of four bits, a zero point and a float scale */
    LG_I4_128, /* 128 of them */
    LG_I8_128, /* 128 signed bytes and a float scale */
    LG_NVFP4,  /* 16 E2M1 numbers and an E4M3 scale; one float for the matrix */
    LG_I4_ANY, /* four bits whose scales and zero points lie in tables of the matrix: groups in any order and size */
    LG_I8_ANY, /* the same with eight bits */
    LG_N_DTYPE
} lg_dtype;

#define LG_MAX_BLOCK 256 /* no block has more elements, and every block's size divides it */

/* ---- dtype.c ---- */

/* Bytes of one element; only for types without blocks. */
size_t lg_dtype_bytes(lg_dtype type);
const char *lg_dtype_name(lg_dtype type); /* "F32" "BF16" "F16" "F8_E4M3" "Q4_0" "Q4_K" ... */

/* Elements of one block (1 to 256) and its bytes.  The width of a matrix is a multiple of it. */
uint32_t lg_dtype_block(lg_dtype type);
size_t lg_dtype_block_bytes(lg_dtype type);

static inline bool lg_dtype_is_block(lg_dtype type) {
    return type >= LG_Q4_0 && type < LG_N_DTYPE;
}

/* Bytes of one panel: 16 channels of n_in elements. */
size_t lg_dtype_panel_bytes(lg_dtype type, uint32_t n_in);

/* Whether qgemm takes matrices of this type. */
bool lg_dtype_is_int(lg_dtype type);

/* Elements of a row that share a scale in products with this type (lg_qrows.group): 32 or 256. */
uint32_t lg_dtype_row_group(lg_dtype type);

/* Whether the blocks are not all: scales lie in tables of lg_mat. */
static inline bool lg_dtype_has_table(lg_dtype type) {
    return type == LG_NVFP4 || type == LG_I4_ANY || type == LG_I8_ANY;
}

/* A weight matrix [n_out][n_in] in panel layout: panel p holds channels 16p .. 16p+15 as [n_in][16] elements, or as
 * [n_in / block] groups of 16 blocks, whose bytes are interleaved as qlayout.h says; channels past n_out are zero bytes.
 * The first panel is 64-byte aligned (for speed; kernels do not depend on it), the others follow without gaps.  Borrowed. */
typedef struct lg_mat {
    lg_dtype type;
    uint32_t n_out, n_in;
    const void *panel; /* ceil(n_out/16) x lg_dtype_panel_bytes(type, n_in) */
    /* LG_E4M3: [ceil(n_out/128)][ceil(n_in/128)], or with scale_row one for n_in / n_group inputs of a channel, a multiple of
     *          128 of them unless n_group is 1: [panel][n_group][16]; weight = float(element) * scale.
     * LG_NVFP4: one number; weight = E2M1 * (E4M3 * scale).
     * LG_I4_ANY, LG_I8_ANY: [panel][n_group][16]; weight = scale * (q - zero), with the group of the input channel.
     * else NULL */
    const float *scale;
    const uint8_t *zero;   /* LG_I*_ANY: [panel][n_group][16] */
    const uint16_t *group; /* LG_I*_ANY: [n_in], below n_group */
    uint16_t n_group;      /* LG_I*_ANY, and of scale_row */
    bool scale_row;
} lg_mat;

static inline uint32_t lg_mat_n_panel(const lg_mat *w) {
    return (w->n_out + LG_NR - 1) / LG_NR;
}

/* scale_row: the 16 scales of a panel's channels at input channel k. */
static inline const float *lg_mat_row_scales(const lg_mat *w, uint32_t panel, uint32_t k) {
    return w->scale + ((size_t)panel * w->n_group + k / (w->n_in / w->n_group)) * LG_NR;
}

/* Rows quantised for qgemm.  A group is `group` elements, 32 or 256, as the weights' type asks; in each, with amax the
 * largest |x|:  d = amax / 127,  v = x * (127 / amax) rounded to nearest even, so |v| <= 127.  A group whose amax is below
 * 2^-100 is all zero; one with an element that is not finite has d = NaN and v = 0.  Borrowed memory. */
typedef struct lg_qrows {
    uint32_t group;
    size_t ld;      /* elements between rows, a multiple of 32 */
    int8_t *v8;     /* [row][ld] */
    int16_t *v16;   /* [row][ld]: the same numbers */
    int16_t *sum;   /* [row][ld / 32]: sums of 32 of them */
    int16_t *sum16; /* [row][ld / 16]: sums of 16 */
    float *d;       /* [row][ld / 32]: entry g for group g */
} lg_qrows;

/* The same rows from `row` on. */
static inline lg_qrows lg_qrows_at(const lg_qrows *q, size_t row) {
    size_t n = row * q->ld, m = n / 32;
    return (lg_qrows){q->group,         q->ld,   q->v8 + n, q->v16 + n, q->sum + m,
                      q->sum16 + 2 * m, q->d + m};
}

/* One value head of one sequence in gdn_rows, or some of its columns: a column of S and d depends on nothing of the others, so several
 * threads may have a part of dv each.  The memory S [dk][dv] as of the last multiple of LG_GDN_C tokens, plus n_open rows since: key k_l,
 * written delta d_l, cumulative log-decay G_l.  For every new token, in order:
 *     G = G_last + g  (G_last = 0 right after a fold);  e = exp(G)
 *     r = e (k S);  p = e (q S)                                 sums over dk ascending
 *     for every open row l ascending:  w = exp(G - G_l);  r += (w (k . k_l)) d_l;   p += (w (q . k_l)) d_l
 *     d = beta (v - r);   o = p + (q . k) d;   append row (k, d, G)      dots over dk ascending, sums fused
 *     when LG_GDN_C rows are open:  S = exp(G_C) S;  for l ascending: S[i][:] += (exp(G_C - G_l) k_l[i]) d_l[:];  n_open = 0
 * Prefill evaluates the same expressions as blocked products; bits do not depend on how tokens are cut into calls. */
typedef struct lg_gdn_arg {
    uint32_t dk, dv; /* dv: columns of this call */
    uint32_t n_tok;
    uint32_t n_open; /* rows open before this call, = position % LG_GDN_C */
    bool
        has_init; /* position >= LG_GDN_C: S was written.  false: S is zero by definition, its terms are left out and its
                      memory, never written yet, is not read; n_open may still be > 0 */
    const float *q, *k; /* [n_tok][ld_qk]: normalised, q scaled by dk^-1/2 */
    size_t ld_qk;
    const float *v; /* [n_tok][ld_v] */
    size_t ld_v;
    const float *g,
        *beta; /* [n_tok * ld_g]: log decay (<= 0) and write strength of this head */
    size_t ld_g;
    float *o; /* [n_tok][ld_o] */
    size_t ld_o;
    float *s;      /* [dk][ld_s], updated in place at folds */
    float *open_d; /* [LG_GDN_C][ld_s], updated */
    size_t ld_s;   /* columns of the whole head */
    /* What value heads of a key head share, and parts of a head: after all of them the caller appends to it. */
    const float *open_k; /* [dk][LG_GDN_C]: open keys, one a column; lg_gdn_keep_k */
    const float *open_g; /* [LG_GDN_C]; lg_gdn_keep_g */
    const float *
        next; /* the S of the head that will follow on this thread, or NULL: it may be fetched ahead */
    float *scratch; /* lg_gdn_scratch_floats(dk, dv) floats, 64-byte aligned */
} lg_gdn_arg;

/* Floats of scratch that gdn_rows may use. */
size_t lg_gdn_scratch_floats(uint32_t dk, uint32_t dv);

/* ---- kv.c: pages of keys and values ---- */

/* Whether keys and values can be kept in this type: LG_F32, LG_BF16, LG_F16, LG_Q8_0. */
bool lg_kv_has(lg_dtype type);

/* The type that an option means; LG_N_DTYPE for a value that is none. */
lg_dtype lg_kv_of(lg_kv_type kv);

/* Bytes of one KV head's part of a page, a multiple of 64: the one function that knows. */
size_t lg_kv_bytes(lg_dtype type, uint32_t d);

/* Where things lie in that part.  Elements: keys [d][LG_PAGE_TOK], one position a column; values [LG_PAGE_TOK][d], one position a row.
 * Q8_0 has bytes, and a scale (F16) for 32 elements of one position: [ceil(d / 32)][LG_PAGE_TOK] of the keys, as many of the
 * values.  In memory: keys, their scales, values, their scales. */
typedef struct lg_kv_part {
    uint8_t *key, *value;
    uint16_t *key_scale, *value_scale; /* only Q8_0 */
} lg_kv_part;

static inline size_t lg_kv_n_scale(uint32_t d) {
    return (size_t)(d + 31) / 32 * LG_PAGE_TOK;
}

static inline lg_kv_part lg_kv_at(lg_dtype type, uint32_t d, const void *part) {
    lg_kv_part at = {.key = (uint8_t *)(uintptr_t)part};
    at.value = at.key + lg_kv_bytes(type, d) / 2;
    if (type != LG_Q8_0) return at;
    at.key_scale = (uint16_t *)(void *)(at.key + (size_t)d * LG_PAGE_TOK);
    at.value_scale = (uint16_t *)(void *)(at.value + (size_t)d * LG_PAGE_TOK);
    return at;
}

/* Copy the first n_tok positions of a part; the rest of `to` becomes zero. */
void lg_kv_copy(lg_dtype type, uint32_t d, uint32_t n_tok, const void *from, void *to);

/* One page of attention for one KV head.  With k_j, v_j the floats that the page holds (F32, BF16, F16: float(element); Q8_0:
 * float(byte) * float(scale), which is exact), running (m, l, acc) of every query row is merged with this page:
 *     s_j = scale * (q . k_j)   (dot over d ascending);  m_b = max_j s_j;  p_j = exp(s_j - m_b)
 *     l_b = sum_j p_j;  a_b = sum_j p_j v_j                            (j ascending, fused)
 *     first page:  (m, l, acc) = (m_b, l_b, a_b)
 *     else m' = max(m, m_b);  c = exp(m - m');  c_b = exp(m_b - m');  l = fmaf(l_b, c_b, l c);  acc = fmaf(a_b, c_b, acc c)
 * A maximum that is zero is +0.  A row with n_see == 0 in this page is left as it is; when first is set, such a row must
 * be started by its own first page. */
typedef struct lg_attn_arg {
    uint32_t d;     /* head width */
    uint32_t n_q;   /* query rows */
    const float *q; /* [n_q][ld_q] */
    size_t ld_q;
    const uint32_t *n_see; /* [n_q]: positions of this page the row may see, 0 .. LG_PAGE_TOK */
    bool first;            /* nothing merged yet */
    lg_dtype kv;           /* how the page keeps its numbers */
    const void *
        page; /* lg_kv_bytes(kv, d) bytes; positions never written may hold anything, also NaN */
    const void *next; /* the page that will follow, or NULL: it may be fetched ahead */
    float scale;      /* d^-1/2 */
    float *m, *l;     /* [n_q] */
    float *acc;       /* [n_q][d] */
} lg_attn_arg;

typedef struct lg_kern {
    const char *name;  /* one of lg_kern_names */
    bool qgemm_copies; /* qgemm of many rows copies them first: larger tasks are better */

    /* y[r][c] = sum_k x[row(r)][k] W[c][k] for channels c of panels [panel0, panel0 + n_panel), absolute channel index c < n_out;
     * row(r) = row_idx ? row_idx[r] : r.  Overwrites y there, touches nothing else of y. */
    void (*gemm)(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const float *x,
                 size_t ld_x, const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y);

    /* Quantise one row of n floats, a multiple of q->group, into row `row` of q. */
    void (*quant_row)(const float *x, uint32_t n, const lg_qrows *q, size_t row);

    /* gemm with quantised rows, for types that are lg_dtype_is_int; x->group is lg_dtype_row_group.  A block of such a type
     * is weight_k = d I_k - m J_k with integers I, J (J the same for 16 k), see lg_qsplit.  For each group b of the row
     * ascending (a block of 128 has four, with the same d):
     *     acc = fmaf((float)sum_k I_k v_k, d * dx, acc);   and where the type has m:   acc = fmaf(-(float)sum_k J_k v_k, m * dx, acc)
     * from +0, dx the scale of the row's group b.  Integer sums are exact, so their order is free. */
    void (*qgemm)(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const lg_qrows *x,
                  const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y);

    /* y = x / sqrt(mean(x^2) + eps) * w, n elements (w already holds 1 + weight where the model says so).  y may be x.
     * scale = 1 / sqrtf(sum / n + eps);  y = (x * scale) * w. */
    void (*rmsnorm)(const float *x, const float *w, float eps, uint32_t n, float *y);

    /* y = x / sqrt(sum(x^2) + eps) * scale:  y = (x * (1 / sqrtf(sum + eps))) * scale.  y may be x. */
    void (*l2norm)(const float *x, float eps, float scale, uint32_t n, float *y);

    /* sum_i x_i y_i in the 16-lane order. */
    float (*dot)(const float *x, const float *y, uint32_t n);

    /* y += x. */
    void (*add)(const float *x, uint32_t n, float *y);

    /* y = fmaf(a, x, y). */
    void (*axpy)(float a, const float *x, uint32_t n, float *y);

    /* y = silu(gate) * up, silu(t) = t / (1 + exp(-t)).  y may be gate or up. */
    void (*swiglu)(const float *gate, const float *up, uint32_t n, float *y);

    /* y = x * sigmoid(gate).  y may be x. */
    void (*sigmoid_mul)(const float *x, const float *gate, uint32_t n, float *y);

    /* One row of the GDN output norm: y = (x / sqrt(mean(x^2) + eps)) * w * silu(z), evaluated left to right, with
     * the scale of rmsnorm. */
    void (*gated_norm)(const float *x, const float *w, const float *z, float eps, uint32_t n,
                       float *y);

    /* Rotate the first n_rot elements of x in half-split pairs (i, i + n_rot/2) by cos/sin [n_rot/2]:
     * lo' = fmaf(lo, cos, -(hi sin)), hi' = fmaf(hi, cos, lo sin). */
    void (*rope)(float *x, const float *cos, const float *sin, uint32_t n_rot);

    /* Causal convolution over n_tok rows of channels [0, n_ch) of one sequence, then SiLU:
     *     u_t[c] = ((w[c][0] x_{t-3} + w[c][1] x_{t-2}) + w[c][2] x_{t-1}) + w[c][3] x_t   (fused from +0, taps ascending)
     * x: [n_tok][ld_x] raw rows.  prev: [3][ld_prev] the raw rows before them, oldest first, read when has_init (else
     * zero) and replaced by the last three rows seen (zero rows before the start included, also when n_tok is 0).  w_tap: [LG_CONV_K][ld_w], one tap a row.  u: [n_tok][ld_u], not x. */
    void (*conv_silu)(const float *x, size_t ld_x, uint32_t n_tok, uint32_t n_ch,
                      const float *w_tap, size_t ld_w, bool has_init, float *prev,
                      size_t ld_prev, float *u, size_t ld_u);

    void (*gdn_rows)(const lg_gdn_arg *a);

    void (*attn_page)(const lg_attn_arg *a);

    /* Store the key and value of one token, k and v [d], at position j of a page (lg_kv_part), rounded to nearest even.  Q8_0: of
     * each 32 elements amax is the largest |x|;  scale = F16(amax / 127), byte = x / float(scale) rounded, within +-127 (0 when
     * the scale is 0).  Elements that are not finite make the scale NaN and the bytes 0. */
    void (*kv_store)(lg_dtype kv, const float *k, const float *v, uint32_t d, uint32_t j,
                     void *page);

    /* Largest element and its index (lowest on ties); NaN anywhere, or n == 0, gives index UINT32_MAX and max NaN. */
    uint32_t (*argmax)(const float *x, uint32_t n, float *max);
} lg_kern;

/* The table for this processor, chosen once (thread-safe); LG_CPU forces a lower level, and an unknown or unavailable name
 * in it is reported once on standard error and ignored. */
const lg_kern *lg_kern_get(void);

/* Names of all levels, lowest first, NULL after the last; some may not be available here. */
extern const char *const lg_kern_names[];

/* A level by name, or NULL when this processor or build lacks it.  For tests and benchmarks. */
const lg_kern *lg_kern_level(const char *name);

/* Processor features found, for --version: "avx2 fma f16c". Borrowed, static. */
const char *lg_kern_features(void);

/* ---- Not dispatched: small, once a token or once a step ---- */

/* Append the last open keys of one key head after gdn_rows of all its value heads: k [n_tok][ld_k], n_open as in lg_gdn_arg;
 * open_k [dk][LG_GDN_C].  Returns the rows open afterwards. */
uint32_t lg_gdn_keep_k(const float *k, size_t ld_k, uint32_t dk, uint32_t n_tok,
                       uint32_t n_open, float *open_k);

/* The same for the cumulative log-decay of one value head: g [n_tok * ld_g]; open_g [LG_GDN_C]. */
void lg_gdn_keep_g(const float *g, size_t ld_g, uint32_t n_tok, uint32_t n_open, float *open_g);

/* log decay and write strength of one token's value heads: g = neg_exp_a * softplus(a + dt_bias), beta = sigmoid(b);
 * softplus(x) = max(x, 0) + log1p(exp(-|x|)).  n heads. */
void lg_gdn_gates(const float *a, const float *b, const float *neg_exp_a, const float *dt_bias,
                  uint32_t n, float *g, float *beta);

/* cos and sin of position pos for n_rot/2 pairs: pos * theta^(-2i/n_rot), angles in double, results rounded to float. */
void lg_rope_table(uint32_t pos, double theta, uint32_t n_rot, float *cos, float *sin);

/* The k largest of n router logits, best first, ties to the lower id; weight = exp(logit - max) renormalised over the k
 * (softmax over all, top-k, renormalise is the same).  k <= n. */
void lg_router_topk(const float *logit, uint32_t n, uint32_t k, uint32_t *id, float *weight);

#endif
