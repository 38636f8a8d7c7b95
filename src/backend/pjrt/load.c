/* load.c - the model's weights as a program's arguments: from packed panels to row-major buffers on the devices.
 *
 * In: lg_weights, the signature's WEIGHT arguments.  Out: be->arg.  A matrix is widened exactly to floats, then rounded once to
 * the type that the program wants; FP8 experts go as they are, with their scales, or experts are rounded to FP8 with scales made here.  Pieces of at most PIECE bytes go to every device that takes them, so the host never holds more.
 * Thread: the opening one and the pool.  Memory: one piece, and a row of the embedding for each thread.
 * Test: tests/unit/test_pjrt_step.c */
#include "backend/pjrt/be.h"
#include "base/num.h"
#include "kern/dequant.h"

#include <math.h>
#include <string.h>

#define PIECE ((size_t)32 << 20)

/* The devices that one argument goes to, in step. */
typedef struct sink {
    lg_pjrt_be *be;
    const lg_pjrt_arg *arg;
    lg_pjrt_stream **stream; /* [n_dev] */
    uint32_t dev0, n_dev;
    uint8_t *room; /* PIECE bytes, or one panel's rows if that is more */
    float *wide;   /* [threads of the pool][n_embd] */
} sink;

static lg_status put(sink *s, const void *data, size_t n_bytes, lg_err *err) {
    for (uint32_t d = 0; d < s->n_dev; d++)
        LG_TRY(lg_pjrt_stream_put(s->stream[d], data, n_bytes, err));
    return LG_OK;
}

/* ---- matrices ---- */

/* Weight k of channel c (0 .. 15) in a panel of elements. */
static float element(const lg_mat *w, uint32_t panel, uint32_t k, uint32_t c) {
    size_t i = ((size_t)panel * w->n_in + k) * LG_NR + c;
    switch (w->type) {
    case LG_F32: return ((const float *)w->panel)[i];
    case LG_BF16: return lg_num_bf16(((const uint16_t *)w->panel)[i]);
    case LG_F16: return lg_num_f16(((const uint16_t *)w->panel)[i]);
    default: break;
    }
    float x = lg_num_e4m3(((const uint8_t *)w->panel)[i]);
    if (w->scale_row) return x * lg_mat_row_scales(w, panel, k)[c];
    return x * w->scale[(size_t)panel * LG_NR / 128 * ((w->n_in + 127u) / 128) + k / 128];
}

static void store(lg_pjrt_type type, void *to, size_t i, float x) {
    if (type == LG_PJRT_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = lg_num_to_bf16(x);
}

static void store_e4m3(const lg_mat *w, uint32_t panel, uint32_t n_row, uint8_t *to) {
    const uint8_t *from = (const uint8_t *)w->panel + (size_t)panel * w->n_in * LG_NR;
    for (uint32_t k = 0; k < w->n_in; k++)
        for (uint32_t c = 0; c < n_row; c++)
            to[(size_t)c * w->n_in + k] = from[(size_t)k * LG_NR + c];
}

/* Weights [k0, k0 + n_k) of a panel as floats [n_k][16]; they lie within LG_MAX_BLOCK from a multiple of it on. */
static void widen(const lg_mat *w, uint32_t panel, uint32_t k0, uint32_t n_k, float *wide) {
    if (lg_dtype_is_block(w->type)) {
        float all[LG_MAX_BLOCK * LG_NR];
        uint32_t skip = k0 % LG_MAX_BLOCK, n = w->n_in - (k0 - skip);
        if (n > LG_MAX_BLOCK) n = LG_MAX_BLOCK;
        lg_dequant_mat(w, panel, k0 - skip, n, n == n_k ? wide : all);
        if (n != n_k) memcpy(wide, all + (size_t)skip * LG_NR, n_k * LG_NR * sizeof *wide);
        return;
    }
    for (uint32_t k = 0; k < n_k; k++)
        for (uint32_t c = 0; c < LG_NR; c++) wide[k * LG_NR + c] = element(w, panel, k0 + k, c);
}

/* Scales of the 16 channels of a panel for inputs [k0, k0 + n_k): the largest becomes 448. */
static void round_scales(const lg_mat *w, uint32_t panel, uint32_t k0, uint32_t n_k,
                         float *scale) {
    float wide[LG_MAX_BLOCK * LG_NR];
    memset(scale, 0, LG_NR * sizeof *scale);
    for (uint32_t k = 0, n; k < n_k; k += n) {
        n = n_k - k < LG_MAX_BLOCK ? n_k - k : LG_MAX_BLOCK;
        widen(w, panel, k0 + k, n, wide);
        for (uint32_t i = 0; i < n * LG_NR; i++)
            scale[i % LG_NR] = fmaxf(scale[i % LG_NR], fabsf(wide[i]));
    }
    for (uint32_t c = 0; c < LG_NR; c++) scale[c] /= 448.0f;
}

/* The panel in E4M3 with such scales. */
static void round_e4m3(const lg_mat *w, uint32_t scale_in, uint32_t panel, uint32_t n_row,
                       uint8_t *to) {
    float wide[LG_MAX_BLOCK * LG_NR], scale[LG_NR];
    uint32_t group = lg_pjrt_scale_in(scale_in, w->n_in);
    for (uint32_t k0 = 0, n; k0 < w->n_in; k0 += n) {
        uint32_t left = group - k0 % group;
        n = left < LG_MAX_BLOCK ? left : LG_MAX_BLOCK;
        if (left == group) round_scales(w, panel, k0, group, scale);
        widen(w, panel, k0, n, wide);
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t c = 0; c < n_row; c++) {
                float x = wide[k * LG_NR + c];
                to[(size_t)c * w->n_in + k0 + k] =
                    scale[c] > 0.0f ? lg_num_to_e4m3(x / scale[c]) : 0;
            }
    }
}

typedef struct matrix {
    const lg_mat *w;
    lg_pjrt_type type;
    uint32_t scale_in; /* E4M3: 0, or how it is to be rounded */
    uint32_t panel0;
    uint8_t *to; /* rows from panel0's first on */
} matrix;

static void panel_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const matrix *m = ctx;
    const lg_mat *w = m->w;
    uint32_t panel = m->panel0 + (uint32_t)task, row0 = panel * LG_NR;
    uint32_t n_row = w->n_out - row0 < LG_NR ? w->n_out - row0 : LG_NR;
    float wide[LG_MAX_BLOCK * LG_NR];
    if (m->type == LG_PJRT_F8E4M3FN) {
        uint8_t *to = m->to + task * LG_NR * w->n_in;
        if (m->scale_in)
            round_e4m3(w, m->scale_in, panel, n_row, to);
        else
            store_e4m3(w, panel, n_row, to);
        return;
    }
    for (uint32_t k0 = 0; k0 < w->n_in; k0 += LG_MAX_BLOCK) {
        uint32_t n_k = w->n_in - k0 < LG_MAX_BLOCK ? w->n_in - k0 : LG_MAX_BLOCK;
        widen(w, panel, k0, n_k, wide);
        for (uint32_t k = 0; k < n_k; k++)
            for (uint32_t c = 0; c < n_row; c++)
                store(m->type, m->to, ((size_t)task * LG_NR + c) * w->n_in + k0 + k,
                      wide[k * LG_NR + c]);
    }
}

static lg_status put_matrix(sink *s, const lg_mat *w, lg_err *err) {
    size_t row = w->n_in * lg_pjrt_type_bytes(s->arg->dims.type);
    uint32_t n_panel = lg_mat_n_panel(w), at_once = (uint32_t)(PIECE / (row * LG_NR));
    if (at_once == 0) at_once = 1;
    for (uint32_t p = 0, n; p < n_panel; p += n) {
        n = n_panel - p < at_once ? n_panel - p : at_once;
        uint32_t n_row = p + n == n_panel ? w->n_out - p * LG_NR : n * LG_NR;
        matrix m = {w, s->arg->dims.type, s->be->round_experts ? s->be->model.scale_in : 0, p,
                    s->room};
        lg_pool_run(s->be->pool, n, panel_task, &m);
        LG_TRY(put(s, s->room, n_row * row, err));
    }
    return LG_OK;
}

/* ---- scales of inputs ---- */

typedef struct scales {
    const lg_mat *w;
    uint32_t group; /* inputs */
    bool round;
    float *to; /* [groups][n_out] */
} scales;

static void scales_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const scales *s = ctx;
    const lg_mat *w = s->w;
    uint32_t panel = (uint32_t)task, row0 = panel * LG_NR;
    uint32_t n_row = w->n_out - row0 < LG_NR ? w->n_out - row0 : LG_NR;
    float scale[LG_NR];
    for (uint32_t b = 0; b < w->n_in / s->group; b++) {
        const float *from = scale;
        if (s->round)
            round_scales(w, panel, b * s->group, s->group, scale);
        else
            from = lg_mat_row_scales(w, panel, b * s->group);
        memcpy(s->to + (size_t)b * w->n_out + row0, from, n_row * sizeof *from);
    }
}

/* [groups][outputs of one or two matrices of one shape], the second's behind the first's. */
static lg_status put_row_scales(sink *s, const lg_mat *const *mat, lg_err *err) {
    uint32_t n_in = mat[0]->n_in, n_out = mat[0]->n_out,
             group = lg_pjrt_scale_in(s->be->model.scale_in, n_in);
    size_t n = (size_t)(n_in / group) * n_out;
    LG_ASSERT(2 * n * sizeof(float) <= PIECE);
    float *table = (float *)(void *)s->room;
    for (int i = 0; i < 2 && mat[i]; i++) {
        scales work = {mat[i], group, s->be->round_experts, table + (size_t)i * n};
        lg_pool_run(s->be->pool, lg_mat_n_panel(mat[i]), scales_task, &work);
    }
    for (uint32_t b = 0; b < n_in / group; b++)
        for (int i = 0; i < 2 && mat[i]; i++)
            LG_TRY(
                put(s, table + (size_t)i * n + (size_t)b * n_out, n_out * sizeof *table, err));
    return LG_OK;
}

typedef struct embedding {
    const lg_weights *w;
    lg_pjrt_type type;
    uint32_t id0;
    uint8_t *to;
    float *wide; /* [threads][n_embd] */
} embedding;

static void embed_task(void *ctx, size_t task, int thread) {
    const embedding *e = ctx;
    size_t n = e->w->cfg.n_embd;
    float *x = e->wide + (size_t)thread * n;
    lg_weights_embed(e->w, e->id0 + (uint32_t)task, x);
    for (size_t i = 0; i < n; i++) store(e->type, e->to, task * n + i, x[i]);
}

static lg_status put_embed(sink *s, const lg_weights *w, lg_err *err) {
    const lg_config *c = &w->cfg;
    size_t row = c->n_embd * lg_pjrt_type_bytes(s->arg->dims.type);
    uint32_t at_once = row < PIECE ? (uint32_t)(PIECE / row) : 1;
    for (uint32_t i = 0, n; i < c->n_vocab; i += n) {
        n = c->n_vocab - i < at_once ? c->n_vocab - i : at_once;
        embedding e = {w, s->arg->dims.type, i, s->room, s->wide};
        lg_pool_run(s->be->pool, n, embed_task, &e);
        LG_TRY(put(s, s->room, n * row, err));
    }
    return LG_OK;
}

static lg_status put_rope(sink *s, bool sin, lg_err *err) {
    const lg_config *c = s->be->cfg;
    size_t half = c->n_rot / 2, at_once = PIECE / 2 / (half * sizeof(float));
    float *table = (float *)(void *)s->room, *other = table + at_once * half;
    for (size_t pos = 0, n; pos < s->be->model.n_ctx; pos += n) {
        n = s->be->model.n_ctx - pos < at_once ? s->be->model.n_ctx - pos : at_once;
        for (size_t i = 0; i < n; i++) {
            float *keep = table + i * half;
            lg_rope_table((uint32_t)(pos + i), c->rope_theta, c->n_rot, sin ? other : keep,
                          sin ? keep : other);
        }
        LG_TRY(put(s, table, n * half * sizeof(float), err));
    }
    return LG_OK;
}

/* ---- which weight ---- */

/* A weight is one or two matrices, or their scales, or a vector. */
typedef struct source {
    const lg_mat *mat[2];
    bool scales; /* of mat */
    const float *vec;
    size_t n_vec;
} source;

static source mlp_source(const lg_mlp_w *m, bool down) {
    source s = {.mat = {down ? &m->down : &m->gate, down ? NULL : &m->up}};
    return s;
}

static source mlp_scales(const lg_mlp_w *m, bool down) {
    source s = mlp_source(m, down);
    s.scales = true;
    return s;
}

static source vector(const float *v, size_t n) {
    source s = {.vec = v, .n_vec = n};
    return s;
}

static source one(const lg_mat *m) {
    source s = {.mat = {m, NULL}};
    return s;
}

static source layer_source(const lg_config *c, const lg_layer_w *l, lg_pjrt_weight which,
                           uint32_t expert) {
    switch (which) {
    case LG_PJRT_W_IN_NORM: return vector(l->in_norm, c->n_embd);
    case LG_PJRT_W_POST_NORM: return vector(l->post_norm, c->n_embd);
    case LG_PJRT_W_Q: return one(&l->q);
    case LG_PJRT_W_K: return one(&l->k);
    case LG_PJRT_W_V: return one(&l->v);
    case LG_PJRT_W_O: return one(&l->o);
    case LG_PJRT_W_Q_NORM: return vector(l->q_norm, c->d_head);
    case LG_PJRT_W_K_NORM: return vector(l->k_norm, c->d_head);
    case LG_PJRT_W_QKV: return one(&l->qkv);
    case LG_PJRT_W_Z: return one(&l->z);
    case LG_PJRT_W_B: return one(&l->b);
    case LG_PJRT_W_A: return one(&l->a);
    case LG_PJRT_W_OUT: return one(&l->out);
    case LG_PJRT_W_CONV: return vector(l->conv, LG_CONV_K * (size_t)lg_config_conv_dim(c));
    case LG_PJRT_W_NEG_EXP_A: return vector(l->neg_exp_a, c->n_v_head);
    case LG_PJRT_W_DT_BIAS: return vector(l->dt_bias, c->n_v_head);
    case LG_PJRT_W_GDN_NORM: return vector(l->gdn_norm, c->d_v);
    case LG_PJRT_W_GATE_UP: return mlp_source(&l->mlp, false);
    case LG_PJRT_W_DOWN: return mlp_source(&l->mlp, true);
    case LG_PJRT_W_ROUTER: return one(&l->router);
    case LG_PJRT_W_EXPERT_GATE_UP: return mlp_source(&l->expert[expert], false);
    case LG_PJRT_W_EXPERT_DOWN: return mlp_source(&l->expert[expert], true);
    case LG_PJRT_W_EXPERT_GATE_UP_SCALE: return mlp_scales(&l->expert[expert], false);
    case LG_PJRT_W_EXPERT_DOWN_SCALE: return mlp_scales(&l->expert[expert], true);
    case LG_PJRT_W_SHARED_GATE_UP: return mlp_source(&l->shared, false);
    case LG_PJRT_W_SHARED_DOWN: return mlp_source(&l->shared, true);
    case LG_PJRT_W_SHARED_SCALE: return vector(l->shared_gate, c->n_embd);
    default: return vector(NULL, 0);
    }
}

/* E4M3 with a scale for each whole block of 128 x 128. */
static bool is_blocks(const lg_mat *m) {
    return m->type == LG_E4M3 && !m->scale_row && m->scale && m->n_out % 128 == 0 &&
           m->n_in % 128 == 0;
}

/* E4M3 whose scales are those of scale_in. */
static bool has_scales(const lg_mat *m, uint32_t scale_in) {
    if (!scale_in) return is_blocks(m);
    return m->type == LG_E4M3 && m->scale_row && m->scale &&
           m->n_in / m->n_group == lg_pjrt_scale_in(scale_in, m->n_in);
}

bool lg_pjrt_load_has_fp8(const lg_weights *w, uint32_t *scale_in) {
    uint32_t in = 0;
    if (w->cfg.n_expert == 0 || !w->layer || !w->layer[0].expert) return false;
    const lg_mlp_w *first = &w->layer[0].expert[0];
    const lg_mat *mat[2] = {&first->gate, &first->down};
    for (int i = 0; i < 2; i++)
        if (mat[i]->type == LG_E4M3 && mat[i]->scale_row && mat[i]->n_in / mat[i]->n_group > in)
            in = mat[i]->n_in / mat[i]->n_group;
    for (uint32_t l = 0; l < w->cfg.n_layer; l++)
        for (uint32_t e = 0; e < w->cfg.n_expert; e++) {
            const lg_mlp_w *m = &w->layer[l].expert[e];
            if (!has_scales(&m->gate, in) || !has_scales(&m->up, in) ||
                !has_scales(&m->down, in))
                return false;
        }
    *scale_in = in;
    return true;
}

static lg_status put_source(sink *s, const source *from, lg_err *err) {
    lg_pjrt_type type = s->arg->dims.type;
    bool fits = from->vec ? type == LG_PJRT_F32 : from->mat[0] && from->mat[0]->panel;
    for (int i = 0; fits && i < 2 && !s->be->round_experts; i++)
        if (from->mat[i] && (from->scales || type == LG_PJRT_F8E4M3FN))
            fits = has_scales(from->mat[i], s->be->model.scale_in);
    if (type != LG_PJRT_F32 && type != LG_PJRT_BF16 && type != LG_PJRT_F8E4M3FN) fits = false;
    if (!fits || s->arg->in_out)
        return LG_FAIL(err, LG_E_UNSUPPORTED, "%s: the model has no such weight as %s",
                       s->arg->name, lg_pjrt_type_name(type));
    if (from->vec) return put(s, from->vec, from->n_vec * sizeof(float), err);
    if (from->scales && s->be->model.scale_in) return put_row_scales(s, from->mat, err);
    for (int i = 0; i < 2; i++) {
        const lg_mat *m = from->mat[i];
        if (m && from->scales)
            LG_TRY(put(s, m->scale, m->n_out / 128 * (m->n_in / 128) * sizeof(float), err));
        else if (m)
            LG_TRY(put_matrix(s, m, err));
    }
    return LG_OK;
}

static bool is_expert(lg_pjrt_weight w) {
    return w >= LG_PJRT_W_EXPERT_GATE_UP && w <= LG_PJRT_W_EXPERT_DOWN_SCALE;
}

/* All layers of one argument, for the devices of s. */
static lg_status put_argument(sink *s, const lg_weights *w, lg_err *err) {
    const lg_pjrt_arg *a = s->arg;
    const lg_config *c = &w->cfg;
    source head = one(&w->head), norm = vector(w->final_norm, c->n_embd);
    switch (a->weight) {
    case LG_PJRT_W_EMBED: return put_embed(s, w, err);
    case LG_PJRT_W_HEAD: return put_source(s, &head, err);
    case LG_PJRT_W_FINAL_NORM: return put_source(s, &norm, err);
    case LG_PJRT_W_COS: return put_rope(s, false, err);
    case LG_PJRT_W_SIN: return put_rope(s, true, err);
    default: break;
    }
    uint32_t n_layer = a->n_layer ? a->n_layer : 1, first = 0, n = 1;
    if (is_expert(a->weight)) {
        n = c->n_expert / s->be->model.n_device;
        first = s->dev0 * n;
    }
    for (uint32_t i = 0; i < n_layer; i++) {
        uint32_t layer = a->layer0 + i * a->layer_step;
        if (layer >= c->n_layer)
            return LG_FAIL(err, LG_E_INTERNAL, "%s: layer %u of %u", a->name, layer,
                           c->n_layer);
        for (uint32_t e = first; e < first + n; e++) {
            source from = layer_source(c, &w->layer[layer], a->weight, e);
            LG_TRY(put_source(s, &from, err));
        }
    }
    return LG_OK;
}

/* One argument to the devices [dev0, dev0 + n_dev), which get the same bytes. */
static lg_status send(lg_pjrt_be *be, const lg_weights *w, uint32_t index, sink *s,
                      lg_err *err) {
    lg_status st = LG_OK;
    uint32_t n_open = 0;
    for (; st == LG_OK && n_open < s->n_dev; n_open += st == LG_OK)
        st = lg_pjrt_stream_open(be->dev->client, s->dev0 + n_open, &s->arg->dims,
                                 &s->stream[n_open], err);
    if (st == LG_OK) st = put_argument(s, w, err);
    for (uint32_t d = 0; d < n_open; d++) {
        lg_pjrt_buf **to = &be->arg[(size_t)(s->dev0 + d) * be->n_arg + index];
        lg_status end = lg_pjrt_stream_close(&s->stream[d], to, st == LG_OK ? err : NULL);
        if (st == LG_OK) st = end;
    }
    return st;
}

lg_status lg_pjrt_load_weights(lg_pjrt_be *be, const lg_weights *w, lg_err *err) {
    lg_pjrt_exe *lay_out[LG_PJRT_N_WEIGHT] = {NULL};
    uint32_t n_dev = be->model.n_device;
    size_t row = (size_t)w->cfg.n_embd;
    if (w->cfg.n_ff > row) row = w->cfg.n_ff;
    if ((size_t)w->cfg.n_head * w->cfg.d_head > row)
        row = (size_t)w->cfg.n_head * w->cfg.d_head;
    if ((size_t)w->cfg.n_v_head * w->cfg.d_v > row) row = (size_t)w->cfg.n_v_head * w->cfg.d_v;
    size_t room = row * LG_NR * sizeof(float);
    sink s = {.be = be,
              .stream = lg_mem_calloc(n_dev, sizeof *s.stream),
              .room = lg_mem_alloc(room > PIECE ? room : PIECE),
              .wide = lg_mem_calloc((size_t)lg_pool_n_thread(be->pool) * w->cfg.n_embd,
                                    sizeof *s.wide)};
    lg_status st =
        s.stream && s.room && s.wide ? LG_OK : LG_FAIL(err, LG_E_NOMEM, "weights: no memory");
    for (uint32_t a = 0; st == LG_OK && a < be->n_arg; a++) {
        s.arg = &be->sig->arg[a];
        if (s.arg->role != LG_PJRT_WEIGHT) continue;
        bool apart = is_expert(s.arg->weight);
        s.n_dev = apart ? 1 : n_dev;
        for (s.dev0 = 0; st == LG_OK && s.dev0 < n_dev; s.dev0 += s.n_dev)
            st = send(be, w, a, &s, err);
        /* one kind of weight has the same dims in every layer */
        if (st == LG_OK && s.arg->tiled)
            st = lg_pjrt_layout_apply(be, a, &lay_out[s.arg->weight], err);
    }
    for (int i = 0; i < LG_PJRT_N_WEIGHT; i++) lg_pjrt_exe_close(&lay_out[i]);
    lg_mem_free(s.stream);
    lg_mem_free(s.room);
    lg_mem_free(s.wide);
    return st;
}
