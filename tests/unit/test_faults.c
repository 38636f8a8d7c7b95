/* test_faults.c - the reference tensors notice mistakes: deliberate faults, each of which must leave the tolerance.
 *
 * No code is patched.  A fault changes the loaded weights, the configuration or the batch in the way that a wrong
 * implementation would act; then the logits of a golden prompt must differ from the reference by more than the tolerance
 * that test_golden.c allows (1e-3).  The table printed shows by how much. */
#include "golden.h"
#include "rig.h"

#include "backend/cpu/cpu.h"
#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TOLERANCE 1e-3
#define MAX_TOK   130

static const uint32_t pages[3] = {2, 0, 1}, swapped_pages[3] = {0, 2, 1};

/* ---- Editing weights in place ---- */

static float *writable(const float *x) {
    return (float *)(uintptr_t)x;
}

typedef uint32_t index_fn(const lg_config *c, uint32_t i);

/* Row (or column) i of the result is row (column) from(i) of the original, for i in [first, first + n). */
static void move_lines(const lg_config *c, const lg_mat *m, bool columns, index_fn *from,
                       uint32_t first, uint32_t n) {
    size_t len, bytes = (size_t)lg_mat_n_panel(m) * m->n_in * LG_NR * lg_dtype_bytes(m->type);
    void *copy = lg_mem_alloc(bytes);
    assert_non_null(copy);
    memcpy(copy, m->panel, bytes);
    lg_mat old = *m;
    old.panel = copy;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t e = 0; e < (columns ? m->n_out : m->n_in); e++) {
            uint32_t to = first + i, src = first + from(c, i);
            uint8_t *dst = columns ? rig_element(m, e, to, &len) : rig_element(m, to, e, &len);
            memcpy(dst,
                   columns ? rig_element(&old, e, src, &len) : rig_element(&old, src, e, &len),
                   len);
        }
    lg_mem_free(copy);
}

/* The same for groups of `width` floats. */
static void move_floats(const lg_config *c, const float *x, uint32_t width, index_fn *from,
                        uint32_t n) {
    size_t bytes = (size_t)n * width * sizeof(float);
    float *copy = lg_mem_alloc(bytes);
    assert_non_null(copy);
    memcpy(copy, x, bytes);
    for (uint32_t i = 0; i < n; i++)
        memcpy(writable(x) + (size_t)i * width, copy + (size_t)from(c, i) * width,
               width * sizeof(float));
    lg_mem_free(copy);
}

static void add_to(const float *x, uint32_t n, float a) {
    for (uint32_t i = 0; i < n; i++) writable(x)[i] += a;
}

static void scale_by(const float *x, uint32_t n, float a) {
    for (uint32_t i = 0; i < n; i++) writable(x)[i] *= a;
}

static void zero_rows(const lg_mat *m, uint32_t r0, uint32_t n) {
    for (uint32_t r = r0; r < r0 + n; r++)
        for (uint32_t k = 0; k < m->n_in; k++) {
            size_t len;
            uint8_t *e = rig_element(m, r, k, &len);
            memset(e, 0, len);
        }
}

static void swap_mats(lg_mat *a, lg_mat *b) {
    lg_mat t = *a;
    *a = *b;
    *b = t;
}

/* Clear the lowest `bits` bits of every BF16 weight. */
static void cut_mantissa(const lg_mat *m, unsigned bits) {
    assert_int_equal(m->type, LG_BF16);
    for (uint32_t r = 0; r < m->n_out; r++)
        for (uint32_t k = 0; k < m->n_in; k++) {
            size_t len;
            uint8_t *e = rig_element(m, r, k, &len);
            uint16_t v = (uint16_t)(lg_num_load16(e) >> bits << bits);
            memcpy(e, &v, sizeof v);
        }
}

#define FOR_KIND(w, l, k)                                                                      \
    for (lg_layer_w *l = (w)->layer; l < (w)->layer + (w)->cfg.n_layer; l++)                   \
        if (l->kind == (k))
#define FOR_LAYER(w, l) for (lg_layer_w *l = (w)->layer; l < (w)->layer + (w)->cfg.n_layer; l++)

/* ---- The faults ---- */

/* Place of value head i when head i is paired with key head i % n_k_head: groups and members trade places. */
static uint32_t pair_by_remainder(const lg_config *c, uint32_t i) {
    uint32_t ratio = c->n_v_head / c->n_k_head;
    return i % ratio * c->n_k_head + i / ratio;
}

static uint32_t v_channel(const lg_config *c, uint32_t i) {
    return pair_by_remainder(c, i / c->d_v) * c->d_v + i % c->d_v;
}

static void fault_value_pairing(lg_weights *w) {
    const lg_config *c = &w->cfg;
    uint32_t keys = 2 * c->n_k_head * c->d_k, vals = c->n_v_head * c->d_v;
    FOR_KIND(w, l, LG_LAYER_GDN) {
        move_lines(c, &l->qkv, false, v_channel, keys, vals);
        move_lines(c, &l->z, false, v_channel, 0, vals);
        move_lines(c, &l->out, true, v_channel, 0, vals);
        move_lines(c, &l->a, false, pair_by_remainder, 0, c->n_v_head);
        move_lines(c, &l->b, false, pair_by_remainder, 0, c->n_v_head);
        move_floats(c, l->neg_exp_a, 1, pair_by_remainder, c->n_v_head);
        move_floats(c, l->dt_bias, 1, pair_by_remainder, c->n_v_head);
        for (uint32_t tap = 0; tap < LG_CONV_K; tap++)
            move_floats(c, l->conv + (size_t)tap * (keys + vals) + keys, 1, v_channel, vals);
    }
}

static uint32_t kv_by_remainder(const lg_config *c, uint32_t i) {
    uint32_t group = c->n_head / c->n_kv_head;
    return i % group * c->n_kv_head + i / group;
}

static uint32_t query_row(const lg_config *c, uint32_t i) {
    return kv_by_remainder(c, i / (2 * c->d_head)) * 2 * c->d_head + i % (2 * c->d_head);
}

static uint32_t o_column(const lg_config *c, uint32_t i) {
    return kv_by_remainder(c, i / c->d_head) * c->d_head + i % c->d_head;
}

static void fault_query_pairing(lg_weights *w) {
    const lg_config *c = &w->cfg;
    FOR_KIND(w, l, LG_LAYER_ATTN) {
        move_lines(c, &l->q, false, query_row, 0, l->q.n_out);
        move_lines(c, &l->o, true, o_column, 0, l->o.n_in);
    }
}

/* Queries of all heads first, then the gates of all heads. */
static uint32_t flat_gate(const lg_config *c, uint32_t i) {
    uint32_t head = i / (2 * c->d_head), in = i % (2 * c->d_head), d = c->d_head;
    return in < d ? head * d + in : c->n_head * d + head * d + in - d;
}

static void fault_gate_interleave(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_ATTN) move_lines(&w->cfg, &l->q, false, flat_gate, 0, l->q.n_out);
}

static uint32_t other_half(const lg_config *c, uint32_t i) {
    uint32_t keys = c->n_k_head * c->d_k;
    return (i + keys) % (2 * keys);
}

static void fault_key_before_query(lg_weights *w) {
    const lg_config *c = &w->cfg;
    FOR_KIND(w, l, LG_LAYER_GDN) {
        move_lines(c, &l->qkv, false, other_half, 0, 2 * c->n_k_head * c->d_k);
        for (uint32_t tap = 0; tap < LG_CONV_K; tap++)
            move_floats(c, l->conv + (size_t)tap * lg_config_conv_dim(c), 1, other_half,
                        2 * c->n_k_head * c->d_k);
    }
}

static uint32_t reversed_tap(const lg_config *c, uint32_t i) {
    (void)c;
    return LG_CONV_K - 1 - i;
}

static void fault_taps_reversed(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_GDN)
    move_floats(&w->cfg, l->conv, lg_config_conv_dim(&w->cfg), reversed_tap, LG_CONV_K);
}

static void fault_in_norm(lg_weights *w) {
    FOR_LAYER(w, l) add_to(l->in_norm, w->cfg.n_embd, -1.0f);
}
static void fault_post_norm(lg_weights *w) {
    FOR_LAYER(w, l) add_to(l->post_norm, w->cfg.n_embd, -1.0f);
}
static void fault_final_norm(lg_weights *w) {
    add_to(w->final_norm, w->cfg.n_embd, -1.0f);
}
static void fault_q_norm(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_ATTN) add_to(l->q_norm, w->cfg.d_head, -1.0f);
}
static void fault_k_norm(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_ATTN) add_to(l->k_norm, w->cfg.d_head, -1.0f);
}
static void fault_gdn_norm(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_GDN) add_to(l->gdn_norm, w->cfg.d_v, 1.0f);
}

/* 1 + w kept in BF16: what rounding a normed activation once would do. */
static void fault_norm_rounded(lg_weights *w) {
    FOR_LAYER(w, l)
    for (uint32_t i = 0; i < w->cfg.n_embd; i++)
        writable(l->in_norm)[i] = lg_num_bf16(lg_num_to_bf16(l->in_norm[i]));
}
static void fault_final_norm_rounded(lg_weights *w) {
    for (uint32_t i = 0; i < w->cfg.n_embd; i++)
        writable(w->final_norm)[i] = lg_num_bf16(lg_num_to_bf16(w->final_norm[i]));
}
static void fault_one_matrix_short(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_GDN) {
        cut_mantissa(&l->out, 1);
        return;
    }
}

static void fault_gate_up(lg_weights *w) {
    FOR_LAYER(w, l) {
        if (w->cfg.n_expert == 0) swap_mats(&l->mlp.gate, &l->mlp.up);
        for (uint32_t e = 0; e < w->cfg.n_expert; e++)
            swap_mats(&l->expert[e].gate, &l->expert[e].up);
    }
}
static void fault_shared_gate_up(lg_weights *w) {
    FOR_LAYER(w, l) swap_mats(&l->shared.gate, &l->shared.up);
}
static uint32_t next_expert(const lg_config *c, uint32_t i) {
    return (i + 1) % c->n_expert;
}
static void fault_router_rows(lg_weights *w) {
    FOR_LAYER(w, l) move_lines(&w->cfg, &l->router, false, next_expert, 0, w->cfg.n_expert);
}
static void fault_shared_gate(lg_weights *w) {
    FOR_LAYER(w, l) scale_by(l->shared_gate, w->cfg.n_embd, 0.0f);
}
static void fault_fewer_experts(lg_weights *w) {
    w->cfg.n_expert_tok--;
}
static void fault_a_b_swapped(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_GDN) swap_mats(&l->a, &l->b);
}
static void fault_dt_bias(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_GDN) scale_by(l->dt_bias, w->cfg.n_v_head, 0.0f);
}
static void fault_a_log(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_GDN) scale_by(l->neg_exp_a, w->cfg.n_v_head, 1.01f);
}
static void fault_no_decay(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_GDN) scale_by(l->neg_exp_a, w->cfg.n_v_head, 0.0f);
}
static void fault_out_gate_half(lg_weights *w) {
    FOR_KIND(w, l, LG_LAYER_ATTN)
    for (uint32_t h = 0; h < w->cfg.n_head; h++)
        zero_rows(&l->q, (2 * h + 1) * w->cfg.d_head, w->cfg.d_head);
}
static void fault_theta(lg_weights *w) {
    w->cfg.rope_theta = 1e6;
}
static void fault_rotated_dims(lg_weights *w) {
    w->cfg.n_rot *= 2;
}
static void fault_eps(lg_weights *w) {
    w->cfg.eps = 1e-3f;
}
static void fault_eps_small(lg_weights *w) {
    w->cfg.eps = 1e-5f;
}

/* ---- Faults of the batch ---- */

static void cut_lost_state(lg_backend *be, rig_seq *second) {
    second->slot = 1;
    memset(be->slot + be->lay.slot, 0, be->lay.slot * sizeof(float));
}
static void cut_lost_conv(lg_backend *be, rig_seq *second) {
    size_t bytes = 3 * (size_t)lg_config_conv_dim(be->cfg) * sizeof(float);
    for (uint32_t l = 0; l < be->cfg->n_layer; l++)
        if (be->cfg->layer[l] == LG_LAYER_GDN)
            memset(lg_cpu_slot(be, second->slot, l) + be->lay.conv, 0, bytes);
}
static void cut_pages_swapped(lg_backend *be, rig_seq *second) {
    (void)be;
    second->page = swapped_pages;
}
static void cut_open_rows_lost(lg_backend *be, rig_seq *second) {
    for (uint32_t l = 0; l < be->cfg->n_layer; l++)
        if (be->cfg->layer[l] == LG_LAYER_GDN)
            memset(lg_cpu_slot(be, second->slot, l) + be->lay.open_d, 0,
                   (be->lay.open_g - be->lay.open_d) * sizeof(float));
}

typedef struct fault {
    const char *what;
    void (*weights)(lg_weights *w);                /* or */
    void (*cut)(lg_backend *be, rig_seq *second);  /* between two steps of p130 */
    enum { ANY, MOE, GROUPED_V, GROUPED_Q } needs; /* models it applies to */
} fault;

static const fault faults[] = {
    {"value heads paired by remainder", fault_value_pairing, NULL, GROUPED_V},
    {"query heads paired by remainder", fault_query_pairing, NULL, GROUPED_Q},
    {"queries before gates in q_proj", fault_gate_interleave, NULL, ANY},
    {"GDN keys before queries", fault_key_before_query, NULL, ANY},
    {"convolution taps reversed", fault_taps_reversed, NULL, ANY},
    {"input norm without 1 +", fault_in_norm, NULL, ANY},
    {"post norm without 1 +", fault_post_norm, NULL, ANY},
    {"final norm without 1 +", fault_final_norm, NULL, ANY},
    {"query norm without 1 +", fault_q_norm, NULL, ANY},
    {"key norm without 1 +", fault_k_norm, NULL, ANY},
    {"GDN norm with 1 +", fault_gdn_norm, NULL, ANY},
    {"input norm rounded to BF16", fault_norm_rounded, NULL, ANY},
    {"final norm rounded to BF16", fault_final_norm_rounded, NULL, ANY},
    {"one matrix a bit short", fault_one_matrix_short, NULL, ANY},
    {"gate and up swapped", fault_gate_up, NULL, ANY},
    {"shared gate and up swapped", fault_shared_gate_up, NULL, MOE},
    {"router rows moved by one", fault_router_rows, NULL, MOE},
    {"shared expert's gate dropped", fault_shared_gate, NULL, MOE},
    {"one expert fewer", fault_fewer_experts, NULL, MOE},
    {"a and b swapped", fault_a_b_swapped, NULL, ANY},
    {"dt_bias dropped", fault_dt_bias, NULL, ANY},
    {"A_log shifted by 0.01", fault_a_log, NULL, ANY},
    {"no decay", fault_no_decay, NULL, ANY},
    {"attention gate always one half", fault_out_gate_half, NULL, ANY},
    {"rope theta 1e6", fault_theta, NULL, ANY},
    {"twice as many rotated dims", fault_rotated_dims, NULL, ANY},
    {"eps 1e-3", fault_eps, NULL, ANY},
    {"eps 1e-5", fault_eps_small, NULL, ANY},
    {"state lost at a step's border", NULL, cut_lost_state, ANY},
    {"convolution rows lost at a border", NULL, cut_lost_conv, ANY},
    {"open rows lost at a border", NULL, cut_open_rows_lost, ANY},
    {"two pages exchanged", NULL, cut_pages_swapped, ANY},
};

static bool applies(const fault *f, const lg_config *c) {
    switch (f->needs) {
    case MOE: return c->n_expert > 0;
    case GROUPED_V: return c->n_k_head > 1 && c->n_v_head > c->n_k_head;
    case GROUPED_Q: return c->n_kv_head > 1 && c->n_head > c->n_kv_head;
    case ANY: break;
    }
    return true;
}

static void open_case(const char *name, const fault *f, lg_weights **w, lg_backend **be) {
    char path[1024], models[512], unused[512];
    lg_err err = {0};
    assert_true(rig_data(0, models, unused));
    snprintf(path, sizeof path, "%s/%s", models, name);
    if (lg_weights_open(path, NULL, NULL, NULL, w, &err) != LG_OK) fail_msg("%s", err.msg);
    if (f && f->weights && applies(f, &(*w)->cfg)) f->weights(*w);
    lg_backend_opt opt = {.n_slot = 2,
                          .n_page = 3,
                          .max_tok = MAX_TOK,
                          .max_seq = 1,
                          .max_out = MAX_TOK,
                          .n_sample_vocab = (*w)->cfg.n_vocab};
    if (lg_backend_open(*w, &opt, NULL, be, &err) != LG_OK) fail_msg("%s", err.msg);
}

/* Largest difference from the golden logits of p130 with (or, f == NULL, without) a fault; two steps, cut at 80. */
static double difference(const char *name, const golden *gold, const fault *f) {
    lg_weights *w = NULL;
    lg_backend *be = NULL;
    const golden_tensor *ids = golden_find(gold, "p130.ids");
    const golden_tensor *want = golden_find(gold, "p130.logits");
    assert_true(ids && want);
    open_case(name, f, &w, &be);
    double worst = -1;
    if (!f || applies(f, &w->cfg)) {
        uint32_t n = (uint32_t)ids->n, cut = 80, n_vocab = w->cfg.n_vocab;
        const uint32_t *tok = (const uint32_t *)ids->i;
        rig_seq first = {0, 0, pages, 3, tok, cut, 0},
                second = {0, cut, pages, 3, tok + cut, n - cut, n - cut};
        lg_step_out out = {0};
        rig_step(be, &first, 1, &out);
        if (f && f->cut) f->cut(be, &second);
        rig_step(be, &second, 1, &out);
        worst = 0;
        for (uint32_t r = 0; r < n - cut; r++) {
            double d = rig_max_diff(out.logits + r * out.ld_logits,
                                    want->f + (size_t)(cut + r) * n_vocab, n_vocab);
            if (d > worst) worst = d;
        }
    }
    lg_backend_close(&be);
    lg_weights_close(&w);
    return worst;
}

static void test_faults_leave_the_tolerance(void **state) {
    static const char *const model[] = {"tiny-moe", "tiny-dense-r3", "tiny-dense"};
    golden gold[3];
    lg_err err = {0};
    (void)state;
    printf("  largest logit difference, allowed %.0e%12s%16s%16s\n", TOLERANCE, model[0],
           model[1], model[2]);
    for (size_t m = 0; m < LG_COUNT(model); m++) {
        char path[1024], unused[512], goldens[512];
        assert_true(rig_data(0, unused, goldens));
        snprintf(path, sizeof path, "%s/%s.safetensors", goldens, model[m]);
        if (golden_open(&gold[m], path, &err) != LG_OK) fail_msg("%s", err.msg);
        double d = difference(model[m], &gold[m], NULL);
        if (!(d <= TOLERANCE)) fail_msg("%s without a fault differs by %g", model[m], d);
    }
    for (size_t i = 0; i < LG_COUNT(faults); i++) {
        printf("  %-36s", faults[i].what);
        for (size_t m = 0; m < LG_COUNT(model); m++) {
            double d = difference(model[m], &gold[m], &faults[i]);
            if (d < 0)
                printf("%16s", "-");
            else
                printf("%16.3g", d);
            if (d >= 0 && d <= TOLERANCE)
                fail_msg("%s: fault '%s' stays within the tolerance: %g", model[m],
                         faults[i].what, d);
        }
        printf("\n");
    }
    for (size_t m = 0; m < LG_COUNT(model); m++) golden_close(&gold[m]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults_leave_the_tolerance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
