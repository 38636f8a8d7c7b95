/* step_rig.c - see step_rig.h. */
#include "step_rig.h"

#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static void must(lg_status st, const lg_err *err) {
    if (st != LG_OK) fail_msg("%s", err->msg);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- weights as floats ---- */

static float e4m3(uint8_t x) {
    uint32_t e = x >> 3 & 15, m = x & 7;
    float v = e ? ldexpf(1.0f + (float)m / 8, (int)e - 7) : ldexpf((float)m, -9);
    return x & 0x80 ? -v : v;
}

static float scale_of(const lg_mat *m, uint32_t o, uint32_t i) {
    if (!m->scale_row) return m->scale[(size_t)(o / 128) * ((m->n_in + 127) / 128) + i / 128];
    size_t group = i / (m->n_in / m->n_group);
    return m->scale[((o / LG_NR) * m->n_group + group) * LG_NR + o % LG_NR];
}

void step_rig_matrix(const lg_mat *m, float *to) {
    const uint8_t *p = m->panel;
    size_t bytes = lg_dtype_bytes(m->type);
    for (uint32_t o = 0; o < m->n_out; o++)
        for (uint32_t i = 0; i < m->n_in; i++) {
            const uint8_t *at =
                p + (((size_t)(o / LG_NR) * m->n_in + i) * LG_NR + o % LG_NR) * bytes;
            float v = 0;
            if (m->type == LG_F32) memcpy(&v, at, 4);
            if (m->type == LG_BF16) v = lg_num_bf16(lg_num_load16(at));
            if (m->type == LG_F16) v = lg_num_f16(lg_num_load16(at));
            if (m->type == LG_E4M3) v = e4m3(*at) * scale_of(m, o, i);
            to[(size_t)o * m->n_in + i] = v;
        }
}

/* The bytes of an FP8 matrix, row-major, and its scales. */
static uint8_t *put_codes(const lg_mat *m, uint8_t *to) {
    assert_int_equal(m->type, LG_E4M3);
    for (uint32_t o = 0; o < m->n_out; o++)
        for (uint32_t i = 0; i < m->n_in; i++)
            *to++ = ((const uint8_t *)
                         m->panel)[((size_t)(o / LG_NR) * m->n_in + i) * LG_NR + o % LG_NR];
    return to;
}

/* Of one matrix, or of two of one shape side by side. */
static float *put_scales(const lg_mat *m, const lg_mat *beside, float *to) {
    uint32_t n0 = m->scale_row ? m->n_group : m->n_out / 128,
             in = m->n_in / (m->scale_row ? n0 : 128);
    for (uint32_t i = 0; m->scale_row && i < n0; i++)
        for (int k = 0; k < (beside ? 2 : 1); k++)
            for (uint32_t o = 0; o < m->n_out; o++) *to++ = scale_of(k ? beside : m, o, i * in);
    if (m->scale_row) return to;
    for (int k = 0; k < (beside ? 2 : 1); k++, to += (size_t)n0 * in)
        memcpy(to, k ? beside->scale : m->scale, (size_t)n0 * in * sizeof *to);
    return to;
}

static float *put_matrix(const lg_mat *m, float *to) {
    step_rig_matrix(m, to);
    return to + (size_t)m->n_out * m->n_in;
}

static float *put_mlp(const lg_mlp_w *m, bool down, float *to) {
    return down ? put_matrix(&m->down, to) : put_matrix(&m->up, put_matrix(&m->gate, to));
}

static float *put_vector(const float *x, size_t n, float *to) {
    memcpy(to, x, n * sizeof *to);
    return to + n;
}

/* One layer's weight; experts of one device. */
static float *put_layer(const step_rig *r, lg_pjrt_weight w, uint32_t layer, uint32_t device,
                        float *to) {
    const lg_config *c = &r->w->cfg;
    const lg_layer_w *l = &r->w->layer[layer];
    uint32_t each = c->n_expert / r->m.n_device;
    switch (w) {
    case LG_PJRT_W_IN_NORM: return put_vector(l->in_norm, c->n_embd, to);
    case LG_PJRT_W_POST_NORM: return put_vector(l->post_norm, c->n_embd, to);
    case LG_PJRT_W_Q: return put_matrix(&l->q, to);
    case LG_PJRT_W_K: return put_matrix(&l->k, to);
    case LG_PJRT_W_V: return put_matrix(&l->v, to);
    case LG_PJRT_W_O: return put_matrix(&l->o, to);
    case LG_PJRT_W_Q_NORM: return put_vector(l->q_norm, c->d_head, to);
    case LG_PJRT_W_K_NORM: return put_vector(l->k_norm, c->d_head, to);
    case LG_PJRT_W_QKV: return put_matrix(&l->qkv, to);
    case LG_PJRT_W_Z: return put_matrix(&l->z, to);
    case LG_PJRT_W_B: return put_matrix(&l->b, to);
    case LG_PJRT_W_A: return put_matrix(&l->a, to);
    case LG_PJRT_W_OUT: return put_matrix(&l->out, to);
    case LG_PJRT_W_CONV:
        return put_vector(l->conv, (size_t)LG_CONV_K * lg_config_conv_dim(c), to);
    case LG_PJRT_W_NEG_EXP_A: return put_vector(l->neg_exp_a, c->n_v_head, to);
    case LG_PJRT_W_DT_BIAS: return put_vector(l->dt_bias, c->n_v_head, to);
    case LG_PJRT_W_GDN_NORM: return put_vector(l->gdn_norm, c->d_v, to);
    case LG_PJRT_W_GATE_UP: return put_mlp(&l->mlp, false, to);
    case LG_PJRT_W_DOWN: return put_mlp(&l->mlp, true, to);
    case LG_PJRT_W_ROUTER: return put_matrix(&l->router, to);
    case LG_PJRT_W_SHARED_GATE_UP: return put_mlp(&l->shared, false, to);
    case LG_PJRT_W_SHARED_DOWN: return put_mlp(&l->shared, true, to);
    case LG_PJRT_W_SHARED_SCALE: return put_vector(l->shared_gate, c->n_embd, to);
    case LG_PJRT_W_EXPERT_GATE_UP:
    case LG_PJRT_W_EXPERT_DOWN:
        for (uint32_t e = 0; e < each; e++)
            to = put_mlp(&l->expert[device * each + e], w == LG_PJRT_W_EXPERT_DOWN, to);
        return to;
    case LG_PJRT_W_EXPERT_GATE_UP_SCALE:
        for (uint32_t e = 0; e < each; e++)
            to = put_scales(&l->expert[device * each + e].gate,
                            &l->expert[device * each + e].up, to);
        return to;
    case LG_PJRT_W_EXPERT_DOWN_SCALE:
        for (uint32_t e = 0; e < each; e++)
            to = put_scales(&l->expert[device * each + e].down, NULL, to);
        return to;
    default: fail_msg("weight %d of layer %u", w, layer); return NULL;
    }
}

static float *put_once(const step_rig *r, lg_pjrt_weight w, float *to) {
    const lg_config *c = &r->w->cfg;
    switch (w) {
    case LG_PJRT_W_EMBED:
        for (uint32_t i = 0; i < c->n_vocab; i++, to += c->n_embd)
            lg_weights_embed(r->w, i, to);
        return to;
    case LG_PJRT_W_HEAD: return put_matrix(&r->w->head, to);
    case LG_PJRT_W_FINAL_NORM: return put_vector(r->w->final_norm, c->n_embd, to);
    case LG_PJRT_W_COS:
    case LG_PJRT_W_SIN:
        for (uint32_t p = 0; p < r->m.n_ctx; p++)
            for (uint32_t i = 0; i < c->n_rot / 2; i++) {
                double a = p * pow(c->rope_theta, -2.0 * i / c->n_rot);
                *to++ = (float)(w == LG_PJRT_W_COS ? cos(a) : sin(a));
            }
        return to;
    default: fail_msg("weight %d", w); return NULL;
    }
}

/* Experts of one device as they are stored. */
static uint8_t *put_fp8(const step_rig *r, const lg_pjrt_arg *a, uint32_t layer,
                        uint32_t device, uint8_t *to) {
    uint32_t each = r->w->cfg.n_expert / r->m.n_device;
    for (uint32_t e = 0; e < each; e++) {
        const lg_mlp_w *m = &r->w->layer[layer].expert[device * each + e];
        to = a->weight == LG_PJRT_W_EXPERT_DOWN ? put_codes(&m->down, to)
                                                : put_codes(&m->up, put_codes(&m->gate, to));
    }
    return to;
}

static lg_pjrt_buf *upload(step_rig *r, const lg_pjrt_arg *a, uint32_t device) {
    lg_err err;
    size_t bytes = lg_pjrt_dims_bytes(&a->dims), n = bytes / lg_pjrt_type_bytes(a->dims.type);
    lg_pjrt_buf *buf = NULL;
    float *x = lg_mem_calloc(n, sizeof *x), *end = x;
    assert_non_null(x);
    if (a->role == LG_PJRT_POOL) {
        memset(x, 0xff, n * sizeof *x);
        end = x + n;
    } else if (a->dims.type == LG_PJRT_F8E4M3FN) {
        uint8_t *to = (uint8_t *)x;
        for (uint32_t i = 0; i < (a->n_layer ? a->n_layer : 1u); i++)
            to = put_fp8(r, a, a->layer0 + i * a->layer_step, device, to);
        assert_int_equal(to - (uint8_t *)x, n);
        end = x + n;
    } else if (a->weight < LG_PJRT_W_IN_NORM) {
        end = put_once(r, a->weight, x);
    } else {
        for (uint32_t i = 0; i < (a->n_layer ? a->n_layer : 1u); i++)
            end = put_layer(r, a->weight, a->layer0 + i * a->layer_step, device, end);
    }
    assert_int_equal(end - x, n);
    if (a->dims.type == LG_PJRT_BF16 && a->role == LG_PJRT_WEIGHT)
        for (size_t i = 0; i < n; i++) {
            uint16_t h = lg_num_to_bf16(x[i]);
            memcpy((uint8_t *)x + 2 * i, &h, 2);
        }
    must(lg_pjrt_buf_put(r->client, device, &a->dims, x, &buf, &err), &err);
    lg_mem_free(x);
    return buf;
}

/* ---- programs ---- */

static bool same_bucket(const lg_pjrt_bucket *a, const lg_pjrt_bucket *b) {
    return a->n_one == b->n_one && a->n_many == b->n_many && a->n_row == b->n_row &&
           a->n_page == b->n_page && a->n_out == b->n_out && a->logits == b->logits &&
           a->trace == b->trace;
}

static void text_of(step_rig *r, const lg_pjrt_bucket *b, bool debug, lg_buf *text) {
    lg_err err;
    must(debug ? lg_step_debug_text(&r->m, b, text, r->sig, &r->debug, &err)
               : lg_pjrt_step_text(&r->m, b, text, r->sig, &err),
         &err);
}

static uint32_t program_of(step_rig *r, const lg_pjrt_bucket *b, bool debug) {
    lg_err err;
    for (uint32_t i = 0; i < r->n_exe; i++)
        if (r->exe[i].debug == debug && same_bucket(&r->exe[i].b, b)) return i;
    assert_true(r->n_exe < STEP_RIG_MAX_EXE);
    lg_buf text = {0};
    lg_pjrt_compile how = {.n_replica = r->m.n_device, .n_partition = 1};
    double t = now_s();
    uint32_t i = r->n_exe++;
    text_of(r, b, debug, &text);
    r->exe[i].b = *b;
    r->exe[i].debug = debug;
    r->exe[i].out = r->sig->out;
    must(lg_pjrt_exe_compile(r->client, text.data, text.len_bytes, &how, &r->exe[i].exe, &err),
         &err);
    r->compile_s += now_s() - t;
    lg_buf_fini(&text);
    return i;
}

void step_rig_open(step_rig *r, lg_pjrt_client *client, const lg_weights *w,
                   const lg_pjrt_model *m) {
    lg_buf text = {0};
    *r = (step_rig){.client = client, .w = w, .m = *m};
    r->m.cfg = &w->cfg;
    r->sig = lg_mem_calloc(1, sizeof *r->sig);
    assert_non_null(r->sig);
    lg_pjrt_bucket b = {.n_one = 1, .n_page = 1, .n_out = 1};
    text_of(r, &b, false, &text);
    lg_buf_fini(&text);
    r->n_arg = r->sig->n_arg;
    r->buf = lg_mem_calloc((size_t)r->n_arg * m->n_device, sizeof(lg_pjrt_buf *));
    assert_non_null(r->buf);
    for (uint32_t d = 0; d < m->n_device; d++)
        for (uint32_t a = 0; a + 1 < r->n_arg; a++)
            r->buf[d * r->n_arg + a] = upload(r, &r->sig->arg[a], d);
    while (r->sig->arg[r->n_pool].role == LG_PJRT_POOL) r->n_pool++;
}

static void drop_results(step_rig *r) {
    lg_mem_free(r->logits);
    lg_mem_free(r->id);
    lg_mem_free(r->logprob);
    lg_mem_free(r->trace);
    for (size_t i = 0; i < LG_COUNT(r->item); i++) lg_mem_free(r->item[i]);
    r->logits = r->logprob = r->trace = NULL;
    r->id = NULL;
    memset(r->item, 0, sizeof r->item);
}

void step_rig_close(step_rig *r) {
    drop_results(r);
    for (uint32_t i = 0; i < r->n_exe; i++) lg_pjrt_exe_close(&r->exe[i].exe);
    for (uint32_t i = 0; i < r->n_arg * r->m.n_device; i++)
        lg_pjrt_buf_free(r->client, &r->buf[i]);
    lg_mem_free(r->buf);
    lg_mem_free(r->sig);
    *r = (step_rig){0};
}

/* ---- a step ---- */

static void fill(const step_rig *r, const lg_pjrt_bucket *b, const step_rig_batch *batch,
                 int32_t *v) {
    lg_pjrt_step at = lg_pjrt_step_of(b);
    uint32_t n_out = 0;
    assert_true(batch->n_one <= b->n_one && batch->n_seq - batch->n_one <= b->n_many);
    for (uint32_t i = 0; i < b->n_one + b->n_many; i++) {
        v[at.slot + i] = (int32_t)r->m.n_slot - 1;
        for (uint32_t p = 0; p < b->n_page; p++)
            v[at.page + i * b->n_page + p] = (int32_t)r->m.n_page - 1;
    }
    for (uint32_t i = 0; i < batch->n_seq; i++) {
        const step_rig_seq *q = &batch->seq[i];
        uint32_t s = i < batch->n_one ? i : b->n_one + i - batch->n_one;
        uint32_t row = i < batch->n_one ? i : b->n_one + (i - batch->n_one) * b->n_row;
        assert_true(q->n_tok <= (i < batch->n_one ? 1 : b->n_row));
        v[at.pos + s] = (int32_t)q->pos;
        v[at.n_tok + s] = (int32_t)q->n_tok;
        v[at.slot + s] = (int32_t)q->slot;
        for (uint32_t p = 0; p < q->n_page && p < b->n_page; p++)
            v[at.page + s * b->n_page + p] = (int32_t)q->page[p];
        for (uint32_t t = 0; t < q->n_tok; t++) v[at.tok + row + t] = (int32_t)q->tok[t];
        for (uint32_t o = 0; o < q->n_out; o++) {
            assert_true(n_out < b->n_out);
            v[at.out + n_out++] = (int32_t)(row + q->n_tok - q->n_out + o);
        }
    }
}

static void *get(step_rig *r, lg_pjrt_buf *buf, lg_pjrt_type type, int64_t n, int64_t m,
                 void *to) {
    lg_err err;
    lg_pjrt_dims d = {.type = type, .rank = m ? 2 : 1, .dim = {n, m}};
    if (!to) to = lg_mem_calloc(lg_pjrt_dims_bytes(&d), 1);
    assert_non_null(to);
    must(lg_pjrt_buf_get(r->client, buf, &d, to, &err), &err);
    return to;
}

static void get_item(step_rig *r, uint32_t i, lg_pjrt_buf *buf) {
    lg_err err;
    lg_hlo_type t = r->debug.item[i].type;
    lg_pjrt_dims d = {.type = LG_PJRT_F32, .rank = t.n_dim};
    for (uint32_t k = 0; k < t.n_dim; k++) d.dim[k] = t.dim[k];
    r->item[i] = lg_mem_calloc(lg_pjrt_dims_bytes(&d), 1);
    assert_non_null(r->item[i]);
    must(lg_pjrt_buf_get(r->client, buf, &d, r->item[i], &err), &err);
}

static void results(step_rig *r, const lg_pjrt_bucket *b, const lg_pjrt_out *o, bool debug,
                    lg_pjrt_buf **out, uint32_t n_out) {
    lg_err err;
    const lg_config *c = &r->w->cfg;
    size_t n_dev = r->m.n_device;
    drop_results(r);
    r->id = lg_mem_calloc(n_dev * b->n_out, sizeof *r->id);
    r->logprob = lg_mem_calloc(n_dev * b->n_out, sizeof *r->logprob);
    r->logits = lg_mem_calloc(n_dev * b->n_out * c->n_vocab, sizeof *r->logits);
    assert_true(r->id && r->logprob && r->logits);
    for (uint32_t d = 0; d < n_dev; d++) {
        lg_pjrt_buf **of = out + d * n_out;
        get(r, of[o->id], LG_PJRT_S32, b->n_out, 0, r->id + d * b->n_out);
        get(r, of[o->logprob], LG_PJRT_F32, b->n_out, 0, r->logprob + d * b->n_out);
        if (b->logits)
            get(r, of[o->logits], LG_PJRT_F32, b->n_out, c->n_vocab,
                r->logits + (size_t)d * b->n_out * c->n_vocab);
    }
    if (b->trace) {
        lg_pjrt_dims d = {.type = LG_PJRT_F32,
                          .rank = 3,
                          .dim = {c->n_layer + 1, b->n_one + b->n_many * b->n_row, c->n_embd}};
        r->trace = lg_mem_calloc(lg_pjrt_dims_bytes(&d), 1);
        assert_non_null(r->trace);
        must(lg_pjrt_buf_get(r->client, out[o->trace], &d, r->trace, &err), &err);
    }
    for (uint32_t i = 0; debug && i < r->debug.n; i++) get_item(r, i, out[o->n + (int)i]);
}

void step_rig_step(step_rig *r, const lg_pjrt_bucket *b, const step_rig_batch *batch,
                   bool debug) {
    lg_err err;
    uint32_t at = program_of(r, b, debug), n_dev = r->m.n_device,
             n_out = lg_pjrt_exe_n_out(r->exe[at].exe);
    lg_pjrt_dims step = {.type = LG_PJRT_S32, .rank = 1, .dim = {lg_pjrt_step_of(b).n}};
    int32_t *v = lg_mem_calloc((size_t)step.dim[0], sizeof *v);
    lg_pjrt_buf **out = lg_mem_calloc((size_t)n_out * n_dev, sizeof(lg_pjrt_buf *));
    lg_pjrt_event **done = lg_mem_calloc(n_dev, sizeof(lg_pjrt_event *));
    assert_true(v && out && done);
    assert_int_equal(n_out, (uint32_t)r->exe[at].out.n + (debug ? r->debug.n : 0));
    for (uint32_t d = 0; d < n_dev; d++) {
        memset(v, 0, (size_t)step.dim[0] * sizeof *v);
        fill(r, b, &batch[d], v);
        lg_pjrt_buf **to = &r->buf[d * r->n_arg + r->n_arg - 1];
        lg_pjrt_buf_free(r->client, to);
        must(lg_pjrt_buf_put(r->client, d, &step, v, to, &err), &err);
    }
    lg_pjrt_call call = {.arg = r->buf, .n_arg = r->n_arg, .out = out, .done = done};
    must(lg_pjrt_exe_run(r->exe[at].exe, &call, &err), &err);
    for (uint32_t d = 0; d < n_dev; d++) {
        must(lg_pjrt_await(lg_pjrt_client_plugin(r->client), done[d], "step", &err), &err);
        for (uint32_t p = 0; p < r->n_pool; p++) {
            lg_pjrt_buf_free(r->client, &r->buf[d * r->n_arg + p]);
            r->buf[d * r->n_arg + p] = out[d * n_out + p];
        }
    }
    results(r, b, &r->exe[at].out, debug, out, n_out);
    for (uint32_t d = 0; d < n_dev; d++)
        for (uint32_t o = r->n_pool; o < n_out; o++)
            lg_pjrt_buf_free(r->client, &out[d * n_out + o]);
    lg_mem_free(v);
    lg_mem_free(out);
    lg_mem_free(done);
}

float *step_rig_pool(step_rig *r, lg_pjrt_pool pool, uint32_t device, size_t *n) {
    lg_err err;
    for (uint32_t a = 0; a < r->n_pool; a++) {
        const lg_pjrt_arg *arg = &r->sig->arg[a];
        if (arg->pool != pool) continue;
        assert_int_equal(arg->dims.type, LG_PJRT_F32);
        float *x = lg_mem_calloc(lg_pjrt_dims_bytes(&arg->dims), 1);
        assert_non_null(x);
        *n = lg_pjrt_dims_bytes(&arg->dims) / sizeof *x;
        must(lg_pjrt_buf_get(r->client, r->buf[device * r->n_arg + a], &arg->dims, x, &err),
             &err);
        return x;
    }
    *n = 0;
    return NULL;
}
