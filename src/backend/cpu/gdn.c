/* gdn.c - Gated DeltaNet of one layer: projections, convolution, gates, recurrence, gated norm.
 *
 * In: s.xn.  Out: s.mix, and the layer's part of each sequence's slot (state, open rows, last raw rows).
 * Units of the middle stage: (key head, sequence) with the value heads that share it.  A slot of a sequence at position 0
 * is written, never read.  Where a snapshot is wanted, the rows are cut and each unit copies its part of the slot there.
 * Sequences of one token each are bound by reading their states, so a task is several units then, and while one is in work
 * memory is asked for what the next reads.
 * Where threads are more than the units of prompts keep busy, a prompt is gone over in three regions: rows of a key head before the
 * recurrence, columns of a value head through all rows, and rows after it (lg_cpu_gdn_parts says how many columns).
 * Thread: engine and pool.  Test: tests/unit/test_golden.c, tests/unit/test_exact.c; speed: tests/bench/bench_gdn.c */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

#define L2_EPS           1e-6f /* of the official code, not a config field */
#define TASKS_PER_THREAD 4     /* of sequences of one token each */
#define CACHE_LINE       64
#define CHUNK            64 /* rows of a unit that go through all of its work before the next */
#define NORM_AHEAD       4  /* rows ahead that the gated norm asks for */
#define WIDE_ROWS        64 /* of a task of rows; prompts of more may be gone over in regions */
#define REGION_ROWS      8  /* what its two more regions take, in rows of a head */
#define PART_COLS        16 /* a part of a head has a multiple of them */

typedef struct gdn_ctx {
    lg_backend *be;
    const lg_layer_w *w;
    uint32_t layer;
    uint32_t n_unit, n_unit_task; /* units, and how many a task has */
    const lg_batch_seq *seq;      /* [n_seq] */
    uint32_t n_seq, head0;        /* first key head */
    uint32_t most;                /* sequences with more rows are not of these units */
    bool part;                    /* of a divided sequence: the gated norm comes later */
} gdn_ctx;

/* Sequence and key head of a unit. */
static const lg_batch_seq *unit_seq(const gdn_ctx *c, uint32_t unit) {
    return &c->seq[unit % c->n_seq];
}

static uint32_t unit_head(const gdn_ctx *c, uint32_t unit) {
    return c->head0 + unit / c->n_seq;
}

static void ask(const float *from, size_t n_float) {
    for (const char *p = (const char *)from, *end = (const char *)(from + n_float); p < end;
         p += CACHE_LINE)
        __builtin_prefetch(p, 0, 2);
}

/* Ask memory for what a unit reads first: the last rows of its channels and the open keys.  Returns the S that comes then, or NULL. */
static const float *ask_unit(const gdn_ctx *c, uint32_t unit) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_batch_seq *seq = unit_seq(c, unit);
    uint32_t kh = unit_head(c, unit), dk = cfg->d_k, n_open = seq->pos % LG_GDN_C;
    const float *state = lg_cpu_slot(be, seq->slot, c->layer);
    size_t width = lg_config_conv_dim(cfg), keys = (size_t)cfg->n_k_head * dk;
    if (seq->pos == 0) return NULL;
    for (size_t i = 0; i < LG_CONV_K - 1; i++) {
        const float *prev = state + be->lay.conv + i * width;
        ask(prev + kh * dk, dk);
        ask(prev + keys + kh * dk, dk);
        for (uint32_t j = 0; j < cfg->n_v_head / cfg->n_k_head; j++)
            ask(prev + 2 * keys + (size_t)lg_config_v_head(cfg, kh, j) * cfg->d_v, cfg->d_v);
    }
    const float *open_k = state + be->lay.open_k + (size_t)kh * dk * LG_GDN_C;
    for (size_t i = 0; n_open > 0 && i < dk; i++) ask(open_k + i * LG_GDN_C, n_open);
    if (seq->pos < LG_GDN_C) return NULL;
    return state + be->lay.s + (size_t)lg_config_v_head(cfg, kh, 0) * dk * cfg->d_v;
}

/* Rows of a head of `width` channels, the first of which is `ch`, from row `tok` on. */
static float *head_rows(const lg_cpu_scratch *s, float *heads, size_t ch, size_t tok,
                        size_t width) {
    return heads + s->n_gdn * ch + tok * width;
}

/* Channels of a key head: query, key and its value heads, one after the other. */
static uint32_t n_run(const lg_config *cfg) {
    return 2 + cfg->n_v_head / cfg->n_k_head;
}

/* First channel and number of the i-th of them. */
static size_t run_at(const lg_config *cfg, uint32_t kh, uint32_t i, uint32_t *n) {
    size_t keys = (size_t)cfg->n_k_head * cfg->d_k;
    *n = i < 2 ? cfg->d_k : cfg->d_v;
    if (i < 2) return i * keys + (size_t)kh * cfg->d_k;
    return 2 * keys + (size_t)lg_config_v_head(cfg, kh, i - 2) * cfg->d_v;
}

/* Convolve the n channels of a head from `at` on; prev: the rows before, as in lg_kern.conv_silu. */
static void conv(const gdn_ctx *c, const lg_batch_seq *seq, size_t at, uint32_t n,
                 bool has_init, float *prev, size_t ld_prev) {
    const lg_backend *be = c->be;
    size_t width = lg_config_conv_dim(be->cfg), row0 = seq->tok0 * width + at;
    be->kern->conv_silu(be->s.qkv + row0, width, seq->n_tok, n, c->w->conv + at, width,
                        has_init, prev, ld_prev, head_rows(&be->s, be->s.u, at, seq->tok0, n),
                        n);
}

/* Normalise the convolved queries and keys of a key head. */
static void norm_head(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const float scale[2] = {1.0f / sqrtf((float)cfg->d_k), 1.0f};
    for (uint32_t i = 0, dk; i < 2; i++) {
        size_t at = run_at(cfg, kh, i, &dk);
        const float *u = head_rows(&be->s, be->s.u, at, seq->tok0, dk);
        float *qk = head_rows(&be->s, be->s.qk, at, seq->tok0, dk);
        for (size_t t = 0; t < seq->n_tok; t++)
            be->kern->l2norm(u + t * dk, L2_EPS, scale[i], dk, qk + t * dk);
    }
}

/* Gates of the j-th value head of a key head. */
static void gates(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t vh) {
    const lg_config *cfg = c->be->cfg;
    const lg_cpu_scratch *s = &c->be->s;
    for (uint32_t t = 0; t < seq->n_tok; t++) {
        size_t at = (size_t)(seq->tok0 + t) * cfg->n_v_head + vh;
        lg_gdn_gates(s->a + at, s->b + at, c->w->neg_exp_a + vh, c->w->dt_bias + vh, 1,
                     s->g + at, s->beta + at);
    }
}

/* Columns [col0, col0 + n_col) of a value head. */
typedef struct cols {
    uint32_t vh, col0, n_col;
} cols;

/* Recurrence of columns of a value head; `next`: whose S comes after it, or NULL. */
static void recur(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, cols v, float *state,
                  const float *next, int thread) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t dk = cfg->d_k, dv = cfg->d_v;
    size_t keys = (size_t)cfg->n_k_head * dk, tok0 = seq->tok0;
    size_t at_k = (size_t)kh * dk, at_v = (size_t)v.vh * dv;
    be->kern->gdn_rows(
        &(lg_gdn_arg){.dk = dk,
                      .dv = v.n_col,
                      .n_tok = seq->n_tok,
                      .n_open = seq->pos % LG_GDN_C,
                      .has_init = seq->pos >= LG_GDN_C,
                      .q = head_rows(s, s->qk, at_k, tok0, dk),
                      .k = head_rows(s, s->qk, keys + at_k, tok0, dk),
                      .ld_qk = dk,
                      .v = head_rows(s, s->u, 2 * keys + at_v, tok0, dv) + v.col0,
                      .ld_v = dv,
                      .g = s->g + tok0 * cfg->n_v_head + v.vh,
                      .beta = s->beta + tok0 * cfg->n_v_head + v.vh,
                      .ld_g = cfg->n_v_head,
                      .o = head_rows(s, s->core, at_v, tok0, dv) + v.col0,
                      .ld_o = dv,
                      .s = state + be->lay.s + at_v * dk + v.col0,
                      .open_d = state + be->lay.open_d + (size_t)v.vh * LG_GDN_C * dv + v.col0,
                      .ld_s = dv,
                      .open_k = state + be->lay.open_k + (size_t)kh * dk * LG_GDN_C,
                      .open_g = state + be->lay.open_g + (size_t)v.vh * LG_GDN_C,
                      .next = next,
                      .scratch = s->gdn + (size_t)thread * s->gdn_ld});
}

/* Gated norm of one value head. */
static void norm_rows(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t vh) {
    const lg_backend *be = c->be;
    const lg_cpu_scratch *s = &be->s;
    uint32_t dv = be->cfg->d_v;
    const float *core = head_rows(s, s->core, (size_t)vh * dv, seq->tok0, dv);
    for (size_t t = seq->tok0, end = t + seq->n_tok; t < end; t++, core += dv) {
        size_t ld = (size_t)be->cfg->n_v_head * dv, at = t * ld + (size_t)vh * dv;
        for (size_t i = 0; t + NORM_AHEAD < end && i < dv; i += CACHE_LINE / sizeof *core) {
            __builtin_prefetch(s->z + at + NORM_AHEAD * ld + i);
            __builtin_prefetch(s->y + at + NORM_AHEAD * ld + i, 1);
        }
        be->kern->gated_norm(core, c->w->gdn_norm, s->z + at, be->cfg->eps, dv, s->y + at);
    }
}

/* After its value heads: a key head's open rows. */
static void keep_open(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, float *state) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    uint32_t n_open = seq->pos % LG_GDN_C, dk;
    size_t at = run_at(cfg, kh, 1, &dk), tok0 = seq->tok0;
    lg_gdn_keep_k(head_rows(&be->s, be->s.qk, at, tok0, dk), dk, dk, seq->n_tok, n_open,
                  state + be->lay.open_k + (size_t)kh * dk * LG_GDN_C);
    for (uint32_t j = 0; j < cfg->n_v_head / cfg->n_k_head; j++) {
        size_t vh = lg_config_v_head(cfg, kh, j);
        lg_gdn_keep_g(be->s.g + tok0 * cfg->n_v_head + vh, cfg->n_v_head, seq->n_tok, n_open,
                      state + be->lay.open_g + vh * LG_GDN_C);
    }
}

/* Some rows of one sequence, one key head: their outputs, and the state after them; `next`: the S that comes after, or NULL. */
static void run_rows(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t kh, float *state,
                     const float *next, int thread) {
    const lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    uint32_t ratio = cfg->n_v_head / cfg->n_k_head, n;
    for (uint32_t i = 0; i < n_run(cfg); i++) {
        size_t at = run_at(cfg, kh, i, &n);
        conv(c, seq, at, n, seq->pos > 0, state + be->lay.conv + at, lg_config_conv_dim(cfg));
    }
    norm_head(c, seq, kh);
    for (uint32_t j = 0; j < ratio; j++) {
        const float *after = next;
        uint32_t vh = lg_config_v_head(cfg, kh, j);
        if (j + 1 < ratio)
            after = state + be->lay.s +
                    (size_t)lg_config_v_head(cfg, kh, j + 1) * cfg->d_k * cfg->d_v;
        gates(c, seq, vh);
        recur(c, seq, kh, (cols){vh, 0, cfg->d_v}, state, after, thread);
        norm_rows(c, seq, vh);
    }
    keep_open(c, seq, kh, state);
}

static void run_unit(const gdn_ctx *c, uint32_t unit, const float *next, int thread) {
    const lg_backend *be = c->be;
    const lg_batch_seq *seq = unit_seq(c, unit);
    uint32_t kh = unit_head(c, unit);
    float *state = lg_cpu_slot(be, seq->slot, c->layer);
    lg_batch_seq part = *seq;
    if (seq->n_tok > c->most) return;
    for (uint32_t i = 0; i <= seq->n_save; i++) {
        uint32_t end = seq->tok0 + (i < seq->n_save ? seq->save[i].n_row : seq->n_tok);
        for (uint32_t left = end - part.tok0; left > 0; left -= part.n_tok) {
            part.n_tok = left < CHUNK ? left : CHUNK;
            run_rows(c, &part, kh, state, next, thread);
            part.pos += part.n_tok;
            part.tok0 += part.n_tok;
        }
        if (i < seq->n_save)
            lg_cpu_snap_head(be, kh, part.pos, state,
                             lg_cpu_snap(be, seq->save[i].snap, c->layer));
    }
}

static void unit_task(void *ctx, size_t task, int thread) {
    const gdn_ctx *c = ctx;
    uint32_t u0 = (uint32_t)task * c->n_unit_task, left = c->n_unit - u0;
    uint32_t u1 = left < c->n_unit_task ? c->n_unit : u0 + c->n_unit_task;
    for (uint32_t u = u0; u < u1; u++)
        run_unit(c, u, u + 1 < u1 ? ask_unit(c, u + 1) : NULL, thread);
}

/* Heads of `width` channels, n_ch in all, gathered into rows for the tracer. */
static void trace_heads(const lg_backend *be, int layer, const char *name, float *heads,
                        size_t n_ch, size_t width) {
    const lg_cpu_scratch *s = &be->s;
    size_t n = be->batch->n_tok;
    for (size_t r = 0; r < n; r++)
        for (size_t ch = 0; ch < n_ch; ch += width)
            memcpy(s->trace + r * n_ch + ch, head_rows(s, heads, ch, r, width),
                   width * sizeof *heads);
    lg_cpu_trace(be, layer, name, s->trace, n, n_ch, n_ch);
}

static void trace_middle(const lg_backend *be, int layer) {
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    size_t keys = (size_t)cfg->n_k_head * cfg->d_k, vals = (size_t)cfg->n_v_head * cfg->d_v;
    size_t n = be->batch->n_tok, heads = cfg->n_v_head;
    trace_heads(be, layer, "gdn.q", s->u, keys, cfg->d_k);
    trace_heads(be, layer, "gdn.k", s->u + s->n_gdn * keys, keys, cfg->d_k);
    trace_heads(be, layer, "gdn.v", s->u + s->n_gdn * 2 * keys, vals, cfg->d_v);
    lg_cpu_trace(be, layer, "gdn.g", s->g, n, heads, heads);
    lg_cpu_trace(be, layer, "gdn.beta", s->beta, n, heads, heads);
    trace_heads(be, layer, "gdn.core_out", s->core, vals, cfg->d_v);
    lg_cpu_trace(be, layer, "gdn.gated_norm", s->y, n, vals, vals);
}

/* ---- prompts with few heads: rows and columns are tasks ---- */

uint32_t lg_cpu_gdn_parts(uint32_t n_head, int n_thread, uint32_t dv, double *time) {
    uint32_t best = 1;
    for (uint32_t n = 1; n == 1 || dv / n >= PART_COLS; n *= 2) {
        double rounds = ceil((double)n_head * n / n_thread);
        double t = rounds * (LG_CPU_GDN_REPEATED + (1 - LG_CPU_GDN_REPEATED) / n);
        if (n > 1 && t >= *time) continue;
        *time = t;
        best = n;
    }
    return best;
}

double lg_cpu_gdn_time(uint32_t n_k_head, uint32_t n_v_head, int n_thread, uint32_t dv) {
    double wide, units = ceil((double)n_k_head / n_thread) * n_v_head / n_k_head;
    lg_cpu_gdn_parts(n_v_head, n_thread, dv, &wide);
    return fmin(wide, units);
}

/* Rows of one sequence up to a snapshot, or the end, of some key heads. */
typedef struct wide_ctx {
    gdn_ctx c;
    lg_batch_seq seq;
    uint32_t n_head, n_blk; /* key heads, blocks of rows */
    uint32_t n_part,
        n_col;           /* parts of a value head and their columns; the last may have fewer */
    float *state, *snap; /* snap NULL: none is taken after them */
} wide_ctx;

/* Key head of a task of rows, and its rows. */
static lg_batch_seq rows_of(const wide_ctx *w, size_t task, uint32_t *kh) {
    uint32_t r0 = (uint32_t)(task % w->n_blk) * WIDE_ROWS, left = w->seq.n_tok - r0;
    *kh = w->c.head0 + (uint32_t)(task / w->n_blk);
    return (lg_batch_seq){.pos = w->seq.pos + r0,
                          .tok0 = w->seq.tok0 + r0,
                          .n_tok = left < WIDE_ROWS ? left : WIDE_ROWS};
}

/* Some rows of a key head up to the recurrence.  The rows before them are read only: other tasks need them too. */
static void before_task(void *ctx, size_t task, int thread) {
    const wide_ctx *w = ctx;
    const lg_backend *be = w->c.be;
    const lg_config *cfg = be->cfg;
    uint32_t kh, n;
    lg_batch_seq seq = rows_of(w, task, &kh);
    size_t width = lg_config_conv_dim(cfg);
    float *prev = be->s.gdn + (size_t)thread * be->s.gdn_ld;
    const float *from = w->state + be->lay.conv;
    if (seq.tok0 > w->seq.tok0) from = be->s.qkv + (seq.tok0 - (LG_CONV_K - 1)) * width;
    for (uint32_t i = 0; i < n_run(cfg); i++) {
        size_t at = run_at(cfg, kh, i, &n);
        for (size_t r = 0; seq.pos > 0 && r < LG_CONV_K - 1; r++)
            memcpy(prev + r * n, from + r * width + at, n * sizeof *prev);
        conv(&w->c, &seq, at, n, seq.pos > 0, prev, n);
    }
    norm_head(&w->c, &seq, kh);
    for (uint32_t j = 0; j + 2 < n_run(cfg); j++)
        gates(&w->c, &seq, lg_config_v_head(cfg, kh, j));
}

static void cols_task(void *ctx, size_t task, int thread) {
    const wide_ctx *w = ctx;
    const lg_config *cfg = w->c.be->cfg;
    uint32_t ratio = cfg->n_v_head / cfg->n_k_head, head = (uint32_t)(task / w->n_part);
    uint32_t col0 = (uint32_t)(task % w->n_part) * w->n_col, kh = w->c.head0 + head / ratio;
    if (col0 >= cfg->d_v) return;
    uint32_t left = cfg->d_v - col0;
    cols v = {lg_config_v_head(cfg, kh, head % ratio), col0, left < w->n_col ? left : w->n_col};
    recur(&w->c, &w->seq, kh, v, w->state, NULL, thread);
}

/* The last raw rows of a key head, as conv_silu leaves them. */
static void keep_raw(const wide_ctx *w, uint32_t kh) {
    const lg_backend *be = w->c.be;
    size_t width = lg_config_conv_dim(be->cfg), n_tok = w->seq.n_tok;
    for (uint32_t i = 0, n; i < n_run(be->cfg); i++) {
        size_t at = run_at(be->cfg, kh, i, &n);
        float *prev = w->state + be->lay.conv + at;
        for (size_t r = 0; r < LG_CONV_K - 1; r++) {
            size_t row = n_tok + r; /* of the earlier rows and those of the step */
            float *to = prev + r * width;
            if (row >= LG_CONV_K - 1)
                memcpy(to, be->s.qkv + (w->seq.tok0 + row - (LG_CONV_K - 1)) * width + at,
                       n * sizeof *to);
            else if (w->seq.pos > 0)
                memcpy(to, prev + row * width, n * sizeof *to);
            else
                memset(to, 0, n * sizeof *to);
        }
    }
}

/* Some rows of a key head after the recurrence; the task of its first ones also what it keeps. */
static void after_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const wide_ctx *w = ctx;
    const lg_config *cfg = w->c.be->cfg;
    uint32_t kh;
    lg_batch_seq seq = rows_of(w, task, &kh);
    for (uint32_t j = 0; !w->c.part && j + 2 < n_run(cfg); j++)
        norm_rows(&w->c, &seq, lg_config_v_head(cfg, kh, j));
    if (task % w->n_blk) return;
    if (w->seq.n_tok) {
        keep_raw(w, kh);
        keep_open(&w->c, &w->seq, kh, w->state);
    }
    if (w->snap) lg_cpu_snap_head(w->c.be, kh, w->seq.pos + w->seq.n_tok, w->state, w->snap);
}

/* The rows of w. */
static void run_wide(wide_ctx *w) {
    lg_backend *be = w->c.be;
    const lg_config *cfg = be->cfg;
    uint32_t n_head = w->n_head * (cfg->n_v_head / cfg->n_k_head), n_tok = w->seq.n_tok;
    uint64_t row = (uint64_t)n_head * cfg->d_v;
    w->n_blk = n_tok > WIDE_ROWS ? (n_tok + WIDE_ROWS - 1) / WIDE_ROWS : 1;
    if (n_tok) {
        lg_cpu_run(be, (size_t)w->n_head * w->n_blk, n_tok * row * 24, before_task, w);
        lg_cpu_run(be, (size_t)n_head * w->n_part, n_tok * row * cfg->d_k * 3, cols_task, w);
    }
    if (w->c.part) w->n_blk = 1; /* its rows are normed elsewhere */
    lg_cpu_run(be, (size_t)w->n_head * w->n_blk, (n_tok + cfg->d_k) * row, after_task, w);
}

/* All rows of a sequence, some key heads. */
static void run_seq(const gdn_ctx *c, const lg_batch_seq *seq, uint32_t n_head) {
    lg_backend *be = c->be;
    const lg_config *cfg = be->cfg;
    double time = 0;
    wide_ctx w = {
        .c = *c, .seq = *seq, .n_head = n_head, .state = lg_cpu_slot(be, seq->slot, c->layer)};
    w.n_part = lg_cpu_gdn_parts(n_head * (cfg->n_v_head / cfg->n_k_head), be->n_thread,
                                cfg->d_v, &time);
    if (be->gdn_parts) w.n_part = be->gdn_parts;
    w.n_col = (cfg->d_v + w.n_part - 1) / w.n_part;
    w.n_col = (w.n_col + PART_COLS - 1) / PART_COLS * PART_COLS;
    for (uint32_t i = 0; i <= seq->n_save; i++) {
        bool last = i == seq->n_save;
        uint32_t end = seq->tok0 + (last ? seq->n_tok : seq->save[i].n_row);
        w.seq.n_tok = end - w.seq.tok0;
        w.snap = last ? NULL : lg_cpu_snap(be, seq->save[i].snap, c->layer);
        run_wide(&w);
        w.seq.pos += w.seq.n_tok;
        w.seq.tok0 = end;
    }
}

void lg_cpu_gdn_part(lg_backend *be, uint32_t layer, const lg_batch_seq *seq, uint32_t head0,
                     uint32_t n_head) {
    gdn_ctx c = {
        .be = be, .w = &be->w->layer[layer], .layer = layer, .head0 = head0, .part = true};
    run_seq(&c, seq, n_head);
}

/* Sequences of how many rows, at most, are units: longer ones are gone over in regions where that is expected to be over sooner. */
static uint32_t most_rows(const lg_backend *be, const lg_batch_seq *seq, uint32_t n_seq) {
    const lg_config *cfg = be->cfg;
    double longest = 0, sum = 0, wide = 0, time = 0, n = 0;
    if (be->gdn_parts) return 0;
    lg_cpu_gdn_parts(cfg->n_v_head, be->n_thread, cfg->d_v, &time);
    for (uint32_t i = 0; i < n_seq; i++) {
        if (seq[i].n_tok <= WIDE_ROWS) continue;
        n++;
        sum += seq[i].n_tok;
        wide += seq[i].n_tok * time + REGION_ROWS * (1.0 + seq[i].n_save);
        longest = fmax(longest, seq[i].n_tok);
    }
    if (n == 0) return UINT32_MAX;
    double units = fmax(longest, ceil(n * cfg->n_k_head / be->n_thread) * sum / n);
    return wide < units * cfg->n_v_head / cfg->n_k_head ? WIDE_ROWS : UINT32_MAX;
}

void lg_cpu_gdn_heads(lg_backend *be, uint32_t layer) {
    const lg_config *cfg = be->cfg;
    const lg_batch *b = be->batch;
    uint32_t n_seq = b->n_seq - (b->spread ? 1 : 0); /* the last one is not all here */
    uint32_t n_tok = n_seq < b->n_seq ? b->seq[n_seq].tok0 : b->n_tok;
    uint64_t vals = (uint64_t)cfg->n_v_head * cfg->d_v;
    uint32_t n = n_seq * cfg->n_k_head, at_most = (uint32_t)be->n_thread * TASKS_PER_THREAD;
    gdn_ctx c = {.be = be,
                 .w = &be->w->layer[layer],
                 .layer = layer,
                 .n_unit = n,
                 .n_unit_task = 1,
                 .seq = b->seq,
                 .n_seq = n_seq,
                 .most = most_rows(be, b->seq, n_seq)};
    for (uint32_t i = 0; i < n_seq; i++) {
        if (b->seq[i].n_tok <= c.most) continue;
        run_seq(&c, &b->seq[i], cfg->n_k_head);
        n_tok -= b->seq[i].n_tok;
    }
    if (n_tok == 0) return;
    bool one_each = n_tok == n_seq;
    if (one_each && n > at_most) c.n_unit_task = (n + at_most - 1) / at_most;
    (one_each ? lg_cpu_run_streams : lg_cpu_run)(be, (n + c.n_unit_task - 1) / c.n_unit_task,
                                                 n_tok * vals * cfg->d_k * 3, unit_task, &c);
}

void lg_cpu_gdn_norm(const lg_backend *be, uint32_t layer, size_t r) {
    const lg_config *cfg = be->cfg;
    const lg_cpu_scratch *s = &be->s;
    uint32_t dv = cfg->d_v;
    for (size_t h = 0, at = r * cfg->n_v_head * dv; h < cfg->n_v_head; h++, at += dv)
        be->kern->gated_norm(head_rows(s, s->core, h * dv, r, dv), be->w->layer[layer].gdn_norm,
                             s->z + at, cfg->eps, dv, s->y + at);
}

void lg_cpu_gdn(lg_backend *be, uint32_t layer) {
    const lg_config *cfg = be->cfg;
    const lg_layer_w *w = &be->w->layer[layer];
    lg_cpu_scratch *s = &be->s;
    uint32_t n = be->batch->n_tok, h = cfg->n_embd, nv = cfg->n_v_head;
    size_t conv = lg_config_conv_dim(cfg), vals = (size_t)nv * cfg->d_v;
    lg_cpu_gemm in[4] = {
        {.w = &w->z, .x = s->xn, .ld_x = h, .n_row = n, .y = s->z, .ld_y = vals},
        {.w = &w->qkv, .x = s->xn, .ld_x = h, .n_row = n, .y = s->qkv, .ld_y = conv},
        {.w = &w->b, .x = s->xn, .ld_x = h, .n_row = n, .y = s->b, .ld_y = nv},
        {.w = &w->a, .x = s->xn, .ld_x = h, .n_row = n, .y = s->a, .ld_y = nv}};
    lg_cpu_quant_jobs(be, &s->xn_q, in, 4);
    if (be->batch->spread) {
        lg_cpu_gemm_run(be, in + 1, 3);
        lg_cpu_mark(be, LG_OP_MIX_IN);
        lg_cpu_spread_gdn_start(be, layer);
        lg_cpu_mark(be, LG_OP_GDN);
        lg_cpu_gemm_run(be, in, 1);
    } else {
        lg_cpu_slice_gemm(be, layer, in, 4, false);
    }
    lg_cpu_mark(be, LG_OP_MIX_IN);
    lg_cpu_trace(be, (int)layer, "gdn.qkv_raw", s->qkv, n, conv, conv);
    lg_cpu_trace(be, (int)layer, "gdn.z", s->z, n, vals, vals);
    lg_cpu_gdn_heads(be, layer);
    if (be->batch->spread) lg_cpu_spread_gdn(be, layer);
    lg_cpu_slice_rows(be, layer, s->y, vals);
    lg_cpu_mark(be, LG_OP_GDN);
    if (be->opt.trace) trace_middle(be, (int)layer);
    lg_cpu_gemm out = {
        .w = &w->out, .x = s->y, .ld_x = vals, .n_row = n, .y = s->mix, .ld_y = h};
    lg_cpu_quant_start(&s->mid_q, s->y, n, (uint32_t)vals);
    lg_cpu_quant_jobs(be, &s->mid_q, &out, 1);
    lg_cpu_slice_gemm(be, layer, &out, 1, true);
    lg_cpu_mark(be, LG_OP_MIX_OUT);
}
