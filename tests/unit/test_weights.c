/* test_weights.c - every weight of every small model against a plain second reading of its file, packing at odd sizes,
 * counts, progress, threads, who touches memory first, and memory that runs out at any point. */
#include "fixture.h"

#include "base/num.h"
#include "model/file/safetensors.h"
#include "model/weights/weights.h"

#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <cmocka.h>

static const char *const models[] = {
    "tests/data/models/tiny-dense", "tests/data/models/tiny-dense-r3",
    "tests/data/models/tiny-moe",   "tests/data/models/tiny-moe-fp8",
    "models/tiny-qwen35moe",
};

/* ---- a second reading ---- */

/* Element i of a tensor, by the definition of its type. */
static float view_at(const lg_view *v, uint64_t i) {
    const uint8_t *p = v->data;
    switch (v->type) {
    case LG_F32: return lg_num_float_of_bits(lg_num_load32(p + 4 * i));
    case LG_BF16: return lg_num_float_of_bits((uint32_t)lg_num_load16(p + 2 * i) << 16);
    case LG_F16: return lg_num_f16(lg_num_load16(p + 2 * i));
    default: break;
    }
    int e = p[i] >> 3 & 15, m = p[i] & 7;
    float x = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    return p[i] & 128 ? -x : x;
}

/* Element [r][c] as the kernels read it. */
static float mat_at(const lg_mat *m, uint32_t r, uint32_t c) {
    size_t at = ((size_t)(r / LG_NR) * m->n_in + c) * LG_NR + r % LG_NR;
    float s = m->scale ? m->scale[(size_t)(r / 128) * ((m->n_in + 127) / 128) + c / 128] : 1;
    switch (m->type) {
    case LG_F32: return ((const float *)m->panel)[at];
    case LG_BF16: return lg_num_bf16(((const uint16_t *)m->panel)[at]);
    case LG_F16: return lg_num_f16(((const uint16_t *)m->panel)[at]);
    default: return lg_num_e4m3(((const uint8_t *)m->panel)[at]) * s;
    }
}

/* What the checks below read from, and how many tensors they have read. */
typedef struct reading {
    lg_tensors *set;
    const lg_weights *w;
    char prefix[64]; /* of the layer */
    size_t n_used;
    uint64_t n_param;
} reading;

static lg_view *find(reading *r, const char *name, bool scale) {
    char full[160];
    snprintf(full, sizeof full, "%s%s", r->prefix, name);
    lg_view *v = lg_tensors_find(r->set, full);
    if (!v) print_error("no tensor %s\n", full);
    assert_non_null(v);
    r->n_used++;
    if (!scale) r->n_param += v->len_bytes / lg_dtype_bytes(v->type);
    return v;
}

/* A matrix whose rows start at element row0 * n_in of the tensor `name`. */
static void check_rows(const lg_view *v, const lg_view *scale, uint64_t row0, const lg_mat *m,
                       uint32_t n_out, uint32_t n_in) {
    assert_int_equal(m->n_out, n_out);
    assert_int_equal(m->n_in, n_in);
    assert_int_equal(m->type, v->type);
    assert_int_equal((uintptr_t)m->panel % LG_MEM_ALIGN, 0);
    uint32_t n_bad = 0;
    for (uint32_t o = 0; o < n_out; o++)
        for (uint32_t i = 0; i < n_in; i++) {
            float want = view_at(v, (row0 + o) * n_in + i);
            if (scale) want *= view_at(scale, o / 128 * scale->shape[1] + i / 128);
            n_bad += mat_at(m, o, i) != want;
        }
    assert_int_equal(n_bad, 0);
    for (uint32_t o = n_out; o % LG_NR != 0; o++)
        for (uint32_t i = 0; i < n_in; i++) n_bad += mat_at(m, o, i) != 0;
    assert_int_equal(n_bad, 0);
}

static void check_mat(reading *r, const char *name, const lg_mat *m, uint32_t n_out,
                      uint32_t n_in) {
    char scale[100];
    const lg_view *v = find(r, name, false);
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    check_rows(v, v->type == LG_E4M3 ? find(r, scale, true) : NULL, 0, m, n_out, n_in);
}

static void check_vec(reading *r, const char *name, const float *y, uint32_t n, float plus) {
    const lg_view *v = find(r, name, false);
    assert_int_equal(v->len_bytes / lg_dtype_bytes(v->type), n);
    for (uint32_t i = 0; i < n; i++) assert_true(y[i] == plus + view_at(v, i));
}

static void check_mlp(reading *r, const char *prefix, const lg_mlp_w *m, uint32_t n_ff) {
    char name[100];
    uint32_t h = r->w->cfg.n_embd;
    snprintf(name, sizeof name, "%sgate_proj.weight", prefix);
    check_mat(r, name, &m->gate, n_ff, h);
    snprintf(name, sizeof name, "%sup_proj.weight", prefix);
    check_mat(r, name, &m->up, n_ff, h);
    snprintf(name, sizeof name, "%sdown_proj.weight", prefix);
    check_mat(r, name, &m->down, h, n_ff);
}

static void check_moe(reading *r, const lg_layer_w *l) {
    const lg_config *c = &r->w->cfg;
    check_mat(r, "mlp.gate.weight", &l->router, c->n_expert, c->n_embd);
    if (c->quant == LG_QUANT_FP8) {
        for (uint32_t e = 0; e < c->n_expert; e++) {
            char prefix[64];
            snprintf(prefix, sizeof prefix, "mlp.experts.%u.", e);
            check_mlp(r, prefix, &l->expert[e], c->n_ff_expert);
        }
    } else {
        const lg_view *gu = find(r, "mlp.experts.gate_up_proj", false);
        const lg_view *down = find(r, "mlp.experts.down_proj", false);
        uint32_t i = c->n_ff_expert;
        for (uint32_t e = 0; e < c->n_expert; e++) {
            check_rows(gu, NULL, 2 * (uint64_t)e * i, &l->expert[e].gate, i, c->n_embd);
            check_rows(gu, NULL, (2 * (uint64_t)e + 1) * i, &l->expert[e].up, i, c->n_embd);
            check_rows(down, NULL, (uint64_t)e * c->n_embd, &l->expert[e].down, c->n_embd, i);
        }
    }
    check_mlp(r, "mlp.shared_expert.", &l->shared, c->n_ff_shared);
    check_vec(r, "mlp.shared_expert_gate.weight", l->shared_gate, c->n_embd, 0);
}

static void check_gdn(reading *r, const lg_layer_w *l) {
    const lg_config *c = &r->w->cfg;
    uint32_t conv = 2 * c->n_k_head * c->d_k + c->n_v_head * c->d_v, nv = c->n_v_head;
    check_mat(r, "linear_attn.in_proj_qkv.weight", &l->qkv, conv, c->n_embd);
    check_mat(r, "linear_attn.in_proj_z.weight", &l->z, nv * c->d_v, c->n_embd);
    check_mat(r, "linear_attn.in_proj_b.weight", &l->b, nv, c->n_embd);
    check_mat(r, "linear_attn.in_proj_a.weight", &l->a, nv, c->n_embd);
    check_mat(r, "linear_attn.out_proj.weight", &l->out, c->n_embd, nv * c->d_v);
    check_vec(r, "linear_attn.dt_bias", l->dt_bias, nv, 0);
    check_vec(r, "linear_attn.norm.weight", l->gdn_norm, c->d_v, 0);
    const lg_view *a = find(r, "linear_attn.A_log", false);
    for (uint32_t i = 0; i < nv; i++) {
        double want = -exp((double)view_at(a, i));
        assert_true(fabs(l->neg_exp_a[i] - want) <= 2e-7 * fabs(want));
    }
    const lg_view *taps = find(r, "linear_attn.conv1d.weight", false);
    for (uint32_t ch = 0; ch < conv; ch++)
        for (uint32_t t = 0; t < 4; t++)
            assert_true(l->conv[t * conv + ch] == view_at(taps, (uint64_t)ch * 4 + t));
}

static void check_attn(reading *r, const lg_layer_w *l) {
    const lg_config *c = &r->w->cfg;
    uint32_t q = c->n_head * c->d_head, kv = c->n_kv_head * c->d_head;
    check_mat(r, "self_attn.q_proj.weight", &l->q, 2 * q, c->n_embd);
    check_mat(r, "self_attn.k_proj.weight", &l->k, kv, c->n_embd);
    check_mat(r, "self_attn.v_proj.weight", &l->v, kv, c->n_embd);
    check_mat(r, "self_attn.o_proj.weight", &l->o, c->n_embd, q);
    check_vec(r, "self_attn.q_norm.weight", l->q_norm, c->d_head, 1);
    check_vec(r, "self_attn.k_norm.weight", l->k_norm, c->d_head, 1);
}

static void check_embed(reading *r) {
    const lg_config *c = &r->w->cfg;
    const lg_view *v = find(r, "embed_tokens.weight", false);
    float *y = lg_mem_calloc(c->n_embd, sizeof *y);
    for (uint32_t id = 0; id < c->n_vocab; id++) {
        lg_weights_embed(r->w, id, y);
        for (uint32_t i = 0; i < c->n_embd; i++)
            assert_true(y[i] == view_at(v, (uint64_t)id * c->n_embd + i));
    }
    lg_mem_free(y);
    check_vec(r, "norm.weight", r->w->final_norm, c->n_embd, 1);
    if (c->tied) {
        check_rows(v, NULL, 0, &r->w->head, c->n_vocab, c->n_embd);
    } else {
        r->prefix[0] = '\0';
        check_mat(r, "lm_head.weight", &r->w->head, c->n_vocab, c->n_embd);
    }
}

static void check_all(const lg_weights *w, const char *path) {
    const lg_config *c = &w->cfg;
    reading r = {.w = w};
    const char *root = c->nested ? "model.language_model." : "model.";
    assert_int_equal(lg_st_open(path, &r.set, NULL), LG_OK);
    snprintf(r.prefix, sizeof r.prefix, "%s", root);
    check_embed(&r);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const lg_layer_w *l = &w->layer[i];
        snprintf(r.prefix, sizeof r.prefix, "%slayers.%u.", root, i);
        assert_int_equal(l->kind, c->layer[i]);
        check_vec(&r, "input_layernorm.weight", l->in_norm, c->n_embd, 1);
        check_vec(&r, "post_attention_layernorm.weight", l->post_norm, c->n_embd, 1);
        if (l->kind == LG_LAYER_ATTN)
            check_attn(&r, l);
        else
            check_gdn(&r, l);
        if (c->n_expert)
            check_moe(&r, l);
        else
            check_mlp(&r, "mlp.", &l->mlp, c->n_ff);
    }
    assert_int_equal(r.n_used + w->n_skipped, lg_tensors_count(r.set));
    assert_int_equal(r.n_param, w->n_param);
    lg_tensors_close(&r.set);
}

static void test_every_weight_is_where_it_belongs(void **state) {
    (void)state;
    for (size_t i = 0; i < LG_COUNT(models); i++) {
        char path[400];
        lg_weights *w;
        lg_err err;
        int64_t alive = lg_mem_alive();
        lg_fixture_source(models[i], path, sizeof path);
        assert_int_equal(lg_weights_open(path, NULL, NULL, NULL, &w, &err), LG_OK);
        check_all(w, path);
        lg_weights_close(&w);
        assert_null(w);
        assert_int_equal(lg_mem_alive(), alive);
    }
}

/* All of a tensor's types and shapes at once: other types than the releases use. */
static void test_other_types_keep_their_type(void **state) {
    (void)state;
    static const char *const types[] = {"F32", "F16"};
    for (size_t i = 0; i < LG_COUNT(types); i++) {
        lg_fixture f;
        lg_weights *w;
        lg_err err;
        lg_fixture_init(&f, models[0]);
        lg_fixture_edit_tensor(&f, LG_FIXTURE_ADD, "model.embed_tokens.weight", types[i],
                               "[512,128]");
        lg_fixture_edit_tensor(&f, LG_FIXTURE_ADD, "model.layers.0.mlp.up_proj.weight",
                               types[i], "[160,128]");
        assert_int_equal(lg_weights_open(f.path, NULL, NULL, NULL, &w, &err), LG_OK);
        assert_string_equal(lg_dtype_name(w->head.type), types[i]);
        assert_string_equal(lg_dtype_name(w->layer[0].mlp.up.type), types[i]);
        assert_int_equal(w->layer[0].mlp.gate.type, LG_BF16);
        check_all(w, f.path);
        lg_weights_close(&w);
        lg_fixture_fini(&f);
    }
}

/* Scales are looked at when the weights are loaded, not when the folder is only checked. */
static void test_a_scale_that_is_no_number(void **state) {
    (void)state;
    lg_fixture f;
    lg_weights *w;
    lg_err err;
    int64_t alive = lg_mem_alive();
    lg_fixture_init(&f, models[3]);
    lg_fixture_edit_tensor(
        &f, LG_FIXTURE_POISON,
        "model.language_model.layers.0.linear_attn.in_proj_qkv.weight_scale_inv", NULL, NULL);
    assert_int_equal(lg_weights_open(f.path, NULL, NULL, NULL, &w, &err), LG_E_FORMAT);
    assert_non_null(strstr(err.msg, "in_proj_qkv.weight_scale_inv: found a value that is not"));
    assert_null(w);
    assert_int_equal(lg_mem_alive(), alive);
    lg_fixture_fini(&f);
}

/* ---- packing ---- */

static void check_pack(lg_dtype type, uint32_t n_out, uint32_t n_in) {
    size_t es = lg_dtype_bytes(type), n_panel = (n_out + LG_NR - 1) / LG_NR;
    size_t src_bytes = (size_t)n_out * n_in * es, dst_bytes = n_panel * n_in * LG_NR * es;
    assert_int_equal(lg_pack_bytes(type, n_out, n_in), dst_bytes);
    uint8_t *src = lg_mem_alloc(src_bytes + 1), *got = lg_mem_alloc(dst_bytes + 64),
            *want = lg_mem_alloc(dst_bytes + 64);
    for (size_t i = 0; i < src_bytes; i++)
        src[1 + i] = (uint8_t)lg_num_rng(7, n_out, n_in, (uint32_t)i);
    memset(got, 0xa5, dst_bytes + 64);
    memset(want, 0, dst_bytes);
    memset(want + dst_bytes, 0xa5, 64);
    for (uint32_t o = 0; o < n_out; o++)
        for (uint32_t i = 0; i < n_in; i++)
            memcpy(want + (((size_t)o / LG_NR * n_in + i) * LG_NR + o % LG_NR) * es,
                   src + 1 + ((size_t)o * n_in + i) * es, es);
    uint32_t half = (uint32_t)n_panel / 2;
    lg_pack_panels(type, src + 1, n_out, n_in, half, (uint32_t)n_panel - half, got);
    for (size_t i = 0; i < half * (size_t)n_in * LG_NR * es; i++)
        assert_int_equal(got[i], 0xa5);
    lg_pack_panels(type, src + 1, n_out, n_in, 0, half, got);
    lg_pack_panels(type, src + 1, n_out, n_in, 0, 0, got);
    assert_memory_equal(got, want, dst_bytes + 64);
    lg_mem_free(src);
    lg_mem_free(got);
    lg_mem_free(want);
}

static void test_panels_at_odd_sizes(void **state) {
    (void)state;
    static const uint32_t outs[] = {1, 2, 15, 16, 17, 31, 33, 127, 129};
    static const uint32_t ins[] = {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 129, 257};
    for (int type = 0; type < LG_Q4_0; type++)
        for (size_t o = 0; o < LG_COUNT(outs); o++)
            for (size_t i = 0; i < LG_COUNT(ins); i++)
                check_pack((lg_dtype)type, outs[o], ins[i]);
}

static void test_threads_pack_the_same_bytes(void **state) {
    (void)state;
    char path[400];
    for (int n = 1; n <= 5; n += 2) {
        lg_pool *pool;
        lg_weights *w;
        lg_err err;
        lg_fixture_source(models[2], path, sizeof path);
        assert_int_equal(lg_pool_open(n, &pool, &err), LG_OK);
        assert_int_equal(lg_weights_open(path, pool, NULL, NULL, &w, &err), LG_OK);
        check_all(w, path);
        lg_weights_close(&w);
        lg_pool_close(&pool);
    }
}

/* ---- counts, checking alone, progress ---- */

static void test_counts(void **state) {
    (void)state;
    char path[400];
    lg_weights *w;
    lg_err err;
    lg_fixture_source(models[4], path, sizeof path);
    assert_int_equal(lg_weights_check(path, &w, &err), LG_OK);
    /* The folder's README counts 7,761,040 parameters with the MTP layer, all BF16. */
    assert_int_equal(w->n_param + w->skipped_bytes / 2, 7761040);
    assert_int_equal(w->n_skipped, 19);
    /* 4 layers of 16 experts of 3 x 64 x 256, 4 of 16 in use. */
    assert_int_equal(w->n_param - w->n_param_active, 4 * 12 * 3 * 64 * 256);
    assert_null(w->head.panel);
    assert_int_equal(w->head.n_out, 4096);
    uint64_t bytes = w->weight_bytes;
    lg_weights_close(&w);
    assert_int_equal(lg_weights_open(path, NULL, NULL, NULL, &w, &err), LG_OK);
    assert_int_equal(w->weight_bytes, bytes);
    assert_true(bytes >= 2 * w->n_param && bytes < 2 * w->n_param + (1 << 17));
    lg_weights_close(&w);
    lg_fixture_source(models[0], path, sizeof path);
    assert_int_equal(lg_weights_check(path, &w, &err), LG_OK);
    assert_int_equal(w->n_param, w->n_param_active);
    assert_int_equal(w->n_skipped, 0);
    lg_weights_close(&w);
}

typedef struct telling {
    uint64_t last, total;
    int n_call, stop_at;
} telling;

static bool tell(void *ctx, uint64_t done, uint64_t total) {
    telling *t = ctx;
    assert_true(done <= total);
    assert_true(t->n_call == 0 ? done == 0 : done >= t->last);
    t->last = done;
    t->total = total;
    return ++t->n_call == t->stop_at;
}

static void test_progress_and_cancelling(void **state) {
    (void)state;
    char path[400];
    lg_weights *w;
    lg_err err;
    telling t = {0};
    lg_fixture_source(models[4], path, sizeof path);
    assert_int_equal(lg_weights_open(path, NULL, tell, &t, &w, &err), LG_OK);
    assert_true(t.n_call >= 2 && t.last == t.total && t.total > 10000000);
    lg_weights_close(&w);
    int64_t alive = lg_mem_alive();
    for (int stop = 1; stop <= 2; stop++) {
        t = (telling){.stop_at = stop};
        assert_int_equal(lg_weights_open(path, NULL, tell, &t, &w, &err), LG_E_CANCELLED);
        assert_null(w);
        assert_int_equal(lg_mem_alive(), alive);
    }
}

/* ---- memory ---- */

static void test_memory_runs_out_anywhere(void **state) {
    (void)state;
    static const size_t which[] = {1, 2, 3};
    for (size_t i = 0; i < LG_COUNT(which); i++) {
        char path[400];
        lg_weights *w;
        lg_status st = LG_E_NOMEM;
        uint64_t n = 0;
        lg_fixture_source(models[which[i]], path, sizeof path);
        while (st == LG_E_NOMEM) {
            lg_err err = {0};
            int64_t alive = lg_mem_alive();
            lg_mem_fail_at(++n);
            st = lg_weights_open(path, NULL, NULL, NULL, &w, &err);
            lg_mem_fail_at(0);
            if (st == LG_OK) break;
            assert_int_equal(st, LG_E_NOMEM);
            assert_int_equal(err.code, LG_E_NOMEM);
            assert_null(w);
            assert_int_equal(lg_mem_alive(), alive);
        }
        print_message("%s: fails cleanly at each of %u allocations\n", models[which[i]],
                      (unsigned)(n - 1));
        assert_true(n > 10);
        lg_weights_close(&w);
    }
}

/* ---- a part of the experts ---- */

static bool every_third(const void *ctx, uint32_t layer, uint32_t e) {
    return (layer + e) % *(const uint32_t *)ctx == 0;
}

static void expect_same_mat(const lg_mat *a, const lg_mat *b) {
    assert_memory_equal(a->panel, b->panel, (size_t)lg_pack_bytes(a->type, a->n_out, a->n_in));
    assert_int_equal(a->scale != NULL, b->scale != NULL);
    if (a->scale)
        assert_memory_equal(a->scale, b->scale,
                            (size_t)((a->n_out + 127) / 128) * ((a->n_in + 127) / 128) *
                                sizeof *a->scale);
}

/* Experts of a part are bit for bit those of the whole, the others are not there; checksums say so. */
static void test_a_part_of_the_experts(void **state) {
    (void)state;
    const uint32_t step = 3;
    const lg_weights_part part = {every_third, &step};
    for (size_t i = 0; i < LG_COUNT(models); i++) {
        char path[512];
        lg_weights *all = NULL, *some = NULL, *checked = NULL;
        lg_fixture_source(models[i], path, sizeof path);
        assert_int_equal(lg_weights_open(path, NULL, NULL, NULL, &all, NULL), LG_OK);
        assert_int_equal(lg_weights_open_part(path, &part, NULL, NULL, NULL, &some, NULL),
                         LG_OK);
        assert_int_equal(lg_weights_check_part(path, &part, &checked, NULL), LG_OK);
        assert_int_equal(checked->weight_bytes, some->weight_bytes);
        assert_int_equal(all->n_param, some->n_param);
        const lg_config *c = &all->cfg;
        size_t n = (size_t)c->n_layer * c->n_expert;
        uint64_t *sum_all = lg_mem_calloc(n, sizeof *sum_all);
        uint64_t *sum_some = lg_mem_calloc(n, sizeof *sum_some);
        lg_weights_sum_experts(all, NULL, NULL, sum_all);
        lg_weights_sum_experts(some, NULL, NULL, sum_some);
        for (uint32_t l = 0; l < c->n_layer; l++)
            for (uint32_t e = 0; e < c->n_expert; e++) {
                const lg_mlp_w *a = &all->layer[l].expert[e], *b = &some->layer[l].expert[e];
                size_t at = (size_t)l * c->n_expert + e;
                assert_true(sum_all[at] != 0);
                if ((l + e) % step) {
                    assert_true(!b->gate.panel && !b->up.panel && !b->down.panel &&
                                !b->gate.scale);
                    assert_true(sum_some[at] == 0);
                    continue;
                }
                expect_same_mat(&a->gate, &b->gate);
                expect_same_mat(&a->up, &b->up);
                expect_same_mat(&a->down, &b->down);
                assert_true(sum_some[at] == sum_all[at]);
            }
        uint64_t rest = lg_weights_sum_rest(all, NULL);
        assert_true(rest == lg_weights_sum_rest(some, NULL));
        if (c->n_expert) {
            assert_true(some->weight_bytes < all->weight_bytes);
            /* One byte of one expert, then one of the router. */
            ((uint8_t *)(uintptr_t)some->layer[0].expert[0].down.panel)[5] ^= 1;
            lg_weights_sum_experts(some, NULL, NULL, sum_some);
            assert_true(sum_some[0] != sum_all[0]);
            assert_true(sum_some[step] == sum_all[step]);
            ((uint8_t *)(uintptr_t)some->layer[1].router.panel)[7] ^= 1;
            assert_true(rest != lg_weights_sum_rest(some, NULL));
        }
        lg_mem_free(sum_all);
        lg_mem_free(sum_some);
        lg_weights_close(&all);
        lg_weights_close(&some);
        lg_weights_close(&checked);
    }
}

/* ---- who touches a page first ---- */

/* Memory of our own that is there, without mapped files. */
static size_t resident_bytes(void) {
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (kib == 0 && fgets(line, sizeof line, f))
        if (strncmp(line, "RssAnon:", 8) == 0) kib = strtoul(line + 8, NULL, 10);
    fclose(f);
    assert_true(kib > 0);
    return kib * 1024;
}

static bool note_resident(void *ctx, uint64_t done, uint64_t total) {
    (void)total;
    if (done == 0) *(size_t *)ctx = resident_bytes();
    return false;
}

/* A page lies on the memory node of the thread that touches it first: the threads that pack, one a core, and not the one that
 * opens, which must not write the block before them. */
static void test_pages_are_touched_by_packing(void **state) {
    char path[512];
    lg_pool *pool;
    lg_weights *w;
    lg_err err;
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    printf("  skipped: this build's allocator writes blocks itself\n");
    skip();
#endif
    lg_fixture_source("models/tiny-qwen35moe", path, sizeof path);
    mallopt(M_PERTURB,
            0); /* else malloc writes every byte where the environment asks for that */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* norms are written before; one would bring 2 MiB */
    assert_int_equal(lg_pool_open(4, &pool, &err), LG_OK);
    size_t before = resident_bytes(), at_start = 0;
    assert_int_equal(lg_weights_open(path, pool, note_resident, &at_start, &w, &err), LG_OK);
    size_t after = resident_bytes(), bytes = w->weight_bytes - w->embed.len_bytes;
    if (at_start > before + bytes / 4 || after < before + bytes / 2)
        fail_msg("%zu bytes of weights; resident: %zu before, %zu before packing, %zu after",
                 bytes, before, at_start, after);
    lg_weights_close(&w);
    lg_pool_close(&pool);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    const char *perturb = getenv("MALLOC_PERTURB_");
    if (perturb) mallopt(M_PERTURB, atoi(perturb));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_are_touched_by_packing), /* first: the heap is fresh */
        cmocka_unit_test(test_every_weight_is_where_it_belongs),
        cmocka_unit_test(test_other_types_keep_their_type),
        cmocka_unit_test(test_a_scale_that_is_no_number),
        cmocka_unit_test(test_panels_at_odd_sizes),
        cmocka_unit_test(test_threads_pack_the_same_bytes),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_progress_and_cancelling),
        cmocka_unit_test(test_memory_runs_out_anywhere),
        cmocka_unit_test(test_a_part_of_the_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
