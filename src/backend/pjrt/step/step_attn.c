/* step_attn.c - gated attention of a step: keys and values go to their pages, then every row looks at its sequence's
 * pages.
 *
 * In: normed rows [R][n_embd]; the KV pools [attention layer][page][LG_PAGE_TOK][n_kv_head * d_head].  Out: rows for
 * the residual. Keys and values are rounded to the pool's type when they are stored, and all of a step are stored
 * before any row looks. Sequences of one row are one product over their gathered pages; longer ones run over tiles of
 * query rows, so that the scores of a tile are all that exists at once.  Places that a row may not see have a score of
 * -1e30 and a value of zero by select. Test: tests/unit/test_step.c */
#include "backend/pjrt/step/step.h"

#include "kern/kern.h"

#include <math.h>

#define HIDDEN (-1e30f)

/* Turn the first n_rot elements of x [R][heads][d] by the rows' angles. */
static lg_hlo_val rope(lg_step_emit *s, lg_hlo_val x) {
    lg_hlo *h = &s->h;
    lg_hlo_type t = lg_hlo_type_at(h, x);
    int64_t half = s->cfg->n_rot / 2, d = s->cfg->d_head;
    if (half == 0 || h->failed) return x;
    lg_hlo_val a = lg_hlo_slice(h, x, 2, 0, half), b = lg_hlo_slice(h, x, 2, half, half);
    lg_hlo_val cos = lg_hlo_like(h, s->cos, a, "02"), sin = lg_hlo_like(h, s->sin, a, "02");
    lg_hlo_val part[3] = {lg_hlo_sub(h, lg_hlo_mul(h, a, cos), lg_hlo_mul(h, b, sin)),
                          lg_hlo_add(h, lg_hlo_mul(h, b, cos), lg_hlo_mul(h, a, sin))};
    uint32_t n = 2;
    if (2 * half < d) part[n++] = lg_hlo_slice(h, x, 2, 2 * half, t.dim[2] - 2 * half);
    return lg_hlo_concat(h, 2, part, n);
}

/* Write rows [R][n_kv_head * d] to the pages of their positions; padding's page is out of range.  What FP8 cannot hold
 * becomes its largest number. */
static void store(lg_step_emit *s, lg_pjrt_pool pool, lg_hlo_val idx, lg_hlo_val rows) {
    lg_hlo *h = &s->h;
    if (s->kv == LG_HLO_E4M3) {
        rows = lg_hlo_bin_f(h, "maximum", rows, -448.0f);
        rows = lg_hlo_bin_f(h, "minimum", rows, 448.0f);
    }
    s->pool[pool] = lg_hlo_put(h, s->pool[pool], idx, lg_hlo_convert(h, rows, s->kv));
}

/* [R][3]: layer, page, place in it of every row's position. */
static lg_hlo_val row_places(lg_step_emit *s) {
    lg_hlo *h = &s->h;
    const lg_pjrt_bucket *b = s->b;
    lg_hlo_val part[2], col[3];
    uint32_t n = 0;
    if (b->n_one) part[n++] = lg_hlo_iota(h, LG_HLO_T(I32, b->n_one), 0);
    if (b->n_many) {
        lg_hlo_val v = lg_hlo_iota(h, LG_HLO_T(I32, b->n_many, b->n_row), 0);
        v = lg_hlo_bin_i(h, "add", v, b->n_one);
        part[n++] = lg_hlo_reshape(h, v, LG_HLO_T(I32, (int64_t)b->n_many * b->n_row));
    }
    lg_hlo_val entry[2] = {lg_hlo_concat(h, 0, part, n),
                           lg_hlo_bin_i(h, "divide", s->row_pos, LG_PAGE_TOK)};
    lg_hlo_val page = lg_hlo_take(h, s->page, lg_hlo_idx(h, entry, 2));
    lg_hlo_type rows = lg_hlo_type_at(h, page);
    col[0] = lg_step_layer_col(s, rows);
    col[1] = lg_hlo_select(h, s->row_ok, page, lg_hlo_int(h, rows, s->m->n_page));
    col[2] = lg_hlo_bin_i(h, "remainder", s->row_pos, LG_PAGE_TOK);
    return lg_hlo_idx(h, col, 3);
}

/* Type of the operands of both products: narrow only where everything that goes in is. */
static lg_hlo_dt operand(const lg_step_emit *s) {
    bool narrow = s->kv == LG_HLO_BF16 || s->kv == LG_HLO_E4M3;
    return narrow && s->weight == LG_HLO_BF16 ? LG_HLO_BF16 : LG_HLO_F32;
}

/* What the sequences from..from + n - 1 have in their pages: [n][places][n_kv_head][d]. */
static lg_hlo_val fetch(lg_step_emit *s, lg_pjrt_pool pool, uint32_t from, uint32_t n) {
    lg_hlo *h = &s->h;
    int64_t places = (int64_t)s->b->n_page * LG_PAGE_TOK;
    lg_hlo_val page = lg_step_seqs(s, s->page, from, n);
    lg_hlo_val col[2] = {lg_step_layer_col(s, lg_hlo_type_at(h, page)), page};
    lg_hlo_val x = lg_hlo_take(h, s->pool[pool], lg_hlo_idx(h, col, 2));
    x = lg_hlo_reshape(
        h, x, lg_hlo_as(LG_HLO_T(F32, n, places, s->cfg->n_kv_head, s->cfg->d_head), s->kv));
    return lg_hlo_convert(h, x, operand(s));
}

/* Values with zeros where the sequence has nothing: what lies there may be anything, and a weight of zero does not
 * undo it. */
static lg_hlo_val fetch_values(lg_step_emit *s, uint32_t from, uint32_t n) {
    lg_hlo *h = &s->h;
    lg_hlo_val v = fetch(s, LG_PJRT_POOL_VALUE, from, n);
    lg_hlo_val end =
        lg_hlo_add(h, lg_step_seqs(s, s->pos, from, n), lg_step_seqs(s, s->n_tok, from, n));
    lg_hlo_type at = LG_HLO_T(I32, n, lg_hlo_dim(h, v, 1));
    lg_hlo_val seen = lg_hlo_cmp(h, "LT", lg_hlo_iota(h, at, 1), lg_hlo_bcast(h, end, at, "0"));
    return lg_hlo_select_f(h, lg_hlo_like(h, seen, v, "01"), v, 0.0f);
}

/* Rows q [n][c][n_head][d] of sequences from.. at positions pos [n][c]: softmax(q k) v, [n][c][n_head * d].  end [n]:
 * positions of the sequence; a row sees places up to its own and below end, and a row of padding no more than that. */
typedef struct seen {
    lg_hlo_val k, v, end;
    uint32_t n;
} seen;

static lg_hlo_val attend(lg_step_emit *s, const seen *kv, lg_hlo_val q, lg_hlo_val pos) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    int64_t n = kv->n, rows = lg_hlo_dim(h, q, 1), places = lg_hlo_dim(h, kv->k, 1);
    int64_t group = c->n_head / c->n_kv_head;
    q = lg_hlo_bin_f(h, "multiply", q, 1.0f / sqrtf((float)c->d_head));
    q = lg_hlo_reshape(h, q, LG_HLO_T(F32, n, rows, c->n_kv_head, group, c->d_head));
    lg_hlo_val score =
        lg_hlo_dot(h, "nckgd,nlkd->nkgcl", lg_hlo_convert(h, q, operand(s)), kv->k);
    lg_hlo_type at = LG_HLO_T(I32, n, rows, places);
    lg_hlo_val place = lg_hlo_iota(h, at, 2);
    lg_hlo_val open =
        lg_hlo_bin(h, "and", lg_hlo_cmp(h, "LE", place, lg_hlo_bcast(h, pos, at, "01")),
                   lg_hlo_cmp(h, "LT", place, lg_hlo_bcast(h, kv->end, at, "0")));
    score = lg_hlo_select_f(h, lg_hlo_like(h, open, score, "034"), score, HIDDEN);
    lg_hlo_val max = lg_hlo_reduce(h, "maximum", score, 4);
    lg_hlo_val p =
        lg_hlo_un(h, "exponential", lg_hlo_sub(h, score, lg_hlo_like(h, max, score, "0123")));
    lg_hlo_val sum = lg_hlo_reduce(h, "add", p, 4);
    lg_hlo_val o = lg_hlo_dot(h, "nkgcl,nlkd->nkgcd", lg_hlo_convert(h, p, operand(s)), kv->v);
    o = lg_hlo_bin(h, "divide", o, lg_hlo_like(h, sum, o, "0123"));
    return lg_hlo_reshape(h, lg_hlo_transpose(h, o, "03124"),
                          LG_HLO_T(F32, n, rows, (int64_t)c->n_head * c->d_head));
}

static seen look(lg_step_emit *s, uint32_t from, uint32_t n) {
    lg_hlo_val pos = lg_step_seqs(s, s->pos, from, n),
               more = lg_step_seqs(s, s->n_tok, from, n);
    return (seen){fetch(s, LG_PJRT_POOL_KEY, from, n), fetch_values(s, from, n),
                  lg_hlo_add(&s->h, pos, more), n};
}

static lg_hlo_val attend_one(lg_step_emit *s, lg_hlo_val q) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    int64_t n = s->b->n_one, width = (int64_t)c->n_head * c->d_head;
    seen kv = look(s, 0, s->b->n_one);
    lg_hlo_val pos =
        lg_hlo_reshape(h, lg_hlo_slice(h, s->row_pos, 0, 0, n), LG_HLO_T(I32, n, 1));
    q = lg_hlo_reshape(h, q, LG_HLO_T(F32, n, 1, c->n_head, c->d_head));
    return lg_hlo_reshape(h, attend(s, &kv, q, pos), LG_HLO_T(F32, n, width));
}

/* Longer sequences, tile by tile; tiles past the longest are not run. */
static lg_hlo_val attend_many(lg_step_emit *s, lg_hlo_val q) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    int64_t n = s->b->n_many, t = s->b->n_row, width = (int64_t)c->n_head * c->d_head;
    int64_t tile = t < LG_STEP_ATTN_TILE ? t : LG_STEP_ATTN_TILE;
    seen kv = look(s, s->b->n_one, s->b->n_many);
    lg_hlo_val first = lg_step_seqs(s, s->pos, s->b->n_one, s->b->n_many),
               zero = lg_hlo_i32(h, 0);
    q = lg_hlo_reshape(h, q, LG_HLO_T(F32, n, t, c->n_head, c->d_head));
    q = lg_hlo_pad(h, q, 1, 0, (tile - t % tile) % tile);
    int64_t padded = lg_hlo_dim(h, q, 1);
    lg_hlo_val longest =
        lg_hlo_reduce(h, "maximum", lg_step_seqs(s, s->n_tok, s->b->n_one, s->b->n_many), 0);
    lg_hlo_val n_tile =
        lg_hlo_bin_i(h, "divide", lg_hlo_bin_i(h, "add", longest, tile - 1), tile);
    lg_hlo_val o = lg_hlo_float(h, LG_HLO_T(F32, n, padded, width), 0.0f);
    lg_hlo_val at = lg_hlo_bin_i(h, "multiply", lg_hlo_for(h, n_tile, &o, 1), tile);
    lg_hlo_type rows = LG_HLO_T(I32, n, tile);
    lg_hlo_val pos = lg_hlo_add(h, lg_hlo_iota(h, rows, 1), lg_hlo_bcast(h, first, rows, "0"));
    pos = lg_hlo_add(h, pos, lg_hlo_bcast(h, at, rows, ""));
    lg_hlo_val part = lg_hlo_window(h, q, (lg_hlo_val[]){zero, at, zero, zero},
                                    (int64_t[]){n, tile, c->n_head, c->d_head});
    o = lg_hlo_window_put(h, o, attend(s, &kv, part, pos), (lg_hlo_val[]){zero, at, zero});
    lg_hlo_end_for(h, &o, 1);
    return lg_hlo_reshape(h, lg_hlo_slice(h, o, 1, 0, t), LG_HLO_T(F32, n * t, width));
}

/* Sequences from..from + n - 1 of t rows each, whose rows of q begin at row `from` (all before have one). */
static lg_hlo_val attend_group(lg_step_emit *s, lg_hlo_val q, uint32_t from, uint32_t n,
                               uint32_t t, bool many) {
    const lg_step_parts *p = s->m->parts;
    q = lg_hlo_slice(&s->h, q, 0, from, (int64_t)n * t);
    lg_hlo_val o = p && p->attn ? p->attn(p->ctx, s, from, n, t, q) : 0;
    return o ? o : many ? attend_many(s, q) : attend_one(s, q);
}

/* A product whose result is cut into heads.  Kept apart, or a compiler may move the heads into the weights and, in a
 * loop over layers, copy the layer's out of the stack. */
static lg_hlo_val project(lg_step_emit *s, lg_hlo_val xn, lg_pjrt_weight w) {
    return lg_hlo_apart(&s->h, lg_step_matmul(s, xn, lg_step_weight(s, w)));
}

lg_hlo_val lg_step_attn(lg_step_emit *s, lg_hlo_val xn) {
    lg_hlo *h = &s->h;
    const lg_config *c = s->cfg;
    int64_t n = s->n_row, d = c->d_head, width = (int64_t)c->n_head * d;
    lg_hlo_type kv = LG_HLO_T(F32, n, c->n_kv_head, d),
                flat = LG_HLO_T(F32, n, c->n_kv_head * d);
    lg_hlo_val qg =
        lg_hlo_reshape(h, project(s, xn, LG_PJRT_W_Q), LG_HLO_T(F32, n, c->n_head, 2 * d));
    lg_hlo_val k = lg_hlo_reshape(h, project(s, xn, LG_PJRT_W_K), kv);
    lg_hlo_val v = project(s, xn, LG_PJRT_W_V);
    lg_hlo_val q = lg_hlo_slice(h, qg, 2, 0, d), gate = lg_hlo_slice(h, qg, 2, d, d);
    q = rope(s, lg_step_norm(s, q, lg_step_weight(s, LG_PJRT_W_Q_NORM)));
    k = rope(s, lg_step_norm(s, k, lg_step_weight(s, LG_PJRT_W_K_NORM)));
    lg_step_note(s, "attn.q", q);
    lg_step_note(s, "attn.k", k);
    lg_step_note(s, "attn.v", lg_hlo_reshape(h, v, kv));
    lg_step_note(s, "attn.gate", gate);
    lg_hlo_val places = row_places(s), part[2];
    store(s, LG_PJRT_POOL_KEY, places, lg_hlo_reshape(h, k, flat));
    store(s, LG_PJRT_POOL_VALUE, places, v);
    uint32_t n_part = 0;
    if (s->b->n_one) part[n_part++] = attend_group(s, q, 0, s->b->n_one, 1, false);
    if (s->b->n_many)
        part[n_part++] = attend_group(s, q, s->b->n_one, s->b->n_many, s->b->n_row, true);
    lg_hlo_val core = lg_hlo_concat(h, 0, part, n_part);
    lg_step_note(s, "attn.core_out", core);
    gate = lg_hlo_un(h, "logistic", lg_hlo_reshape(h, gate, LG_HLO_T(F32, n, width)));
    core = lg_hlo_mul(h, core, gate);
    lg_step_note(s, "attn.gated", core);
    return lg_step_matmul(s, core, lg_step_weight(s, LG_PJRT_W_O));
}
