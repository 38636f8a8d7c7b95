/* scale_parts.c - bench_scale: what computing takes at the given rates, what travels in words, and the rates of this machine's kernels. */
#include "bench_scale.h"

#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include "base/num.h"
#include "kern/kern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT 4096.0

scale_opt scale = {.bandwidth = 300e9,
                   .ops = 9.2e12,
                   .n_thread = 16,
                   .head_s = 1.9e-6,
                   .slow = 1,
                   .n_prompt_row = 1024,
                   .links = {.in = {2e-6, 0.5e-6, 20e9}, .out = {20e-6, 2e-6, 12.5e9}},
                   .n_local = 1,
                   .n_layer = 4,
                   .how = {.kind = LG_EXCHANGE_AUTO}};

/* ---- what computing takes ---- */

static double spend(double bytes, double ops) {
    return fmax(bytes / scale.bandwidth, ops / scale.ops);
}

bool scale_is_attn(uint32_t layer) {
    return layer % 4 == 3;
}

double scale_heads(const lg_plan_model *m, double rows, double heads, bool part) {
    uint32_t n_v = (uint32_t)(heads * m->n_v_head / m->n_k_head), dv = (uint32_t)m->d_v;
    int threads = (int)scale.n_thread;
    double time = 0;
    if (part)
        lg_cpu_gdn_parts(n_v, threads, dv, &time);
    else
        time = lg_cpu_gdn_time((uint32_t)heads, n_v, threads, dv);
    return heads > 0 ? rows * time * scale.head_s : 0;
}

double scale_beside(const lg_plan_model *m, bool attn, double rows) {
    double p = m->hidden * (attn ? 2 * m->n_head * m->d_head : m->n_v_head * m->d_v);
    return rows > 0 && !scale.how.no_overlap ? spend(p * m->b_dense, 2 * p * rows) : 0;
}

/* Weights of a mixer's products, on average. */
double scale_mixer_params(const lg_plan_model *m) {
    double n = lg_plan_n_layer(m);
    return (lg_plan_dense_params(m) - n * lg_plan_shared_params(m)) / n;
}

/* States, keys and values of `rows` own rows. */
double scale_states(const lg_plan_model *m, double rows, bool prompt) {
    double n = lg_plan_n_layer(m), share = m->n_attn / n, seqs = prompt ? 1 : rows;
    double state = seqs * (2 * lg_plan_slot_bytes(m) + CONTEXT * lg_plan_token_bytes(m)) / n;
    return spend(state, share * 4 * m->n_head * m->d_head * CONTEXT * rows);
}

/* Mixer, router, norms of `rows` own rows, without the recurrence. */
double scale_mixer(const lg_plan_model *m, double rows, bool prompt) {
    double params = scale_mixer_params(m), router = m->hidden * m->n_expert;
    if (rows == 0) return 0;
    return spend(params * m->b_dense + router * m->b_router, 2 * (params + router) * rows) +
           scale_states(m, rows, prompt);
}

/* A part of a layer's dense weights, one row. */
double scale_slice(const lg_plan_model *m, double params) {
    return spend(params * m->b_dense, 2 * params);
}

double scale_router(const lg_plan_model *m) {
    double p = m->hidden * m->n_expert;
    return spend(p * m->b_router, 2 * p);
}

double scale_shared(const lg_plan_model *m, double rows) {
    double p = lg_plan_shared_params(m);
    return rows > 0 ? spend(p * m->b_dense, 2 * p * rows) : 0;
}

double scale_expert(const lg_plan_model *m, double rows) {
    double p = lg_plan_expert_params(m);
    return rows > 0 ? spend(p * m->b_expert, 2 * p * rows) : 0;
}

double scale_copy(const lg_plan_model *m, double rows) {
    return rows * m->hidden * 4 / scale.bandwidth;
}

static double head_seconds(const lg_plan_model *m, double rows) {
    double p = m->n_vocab * m->hidden;
    return rows > 0 ? spend(p * m->b_head, 2 * p * rows) : 0;
}

/* ---- what travels ---- */

/* Words of a key head: of a row before the recurrence and after it, of its state; of a row's keys and values. */
size_t scale_in_words(const lg_plan_model *m) {
    return (size_t)(2 * m->d_k + m->n_v_head / m->n_k_head * (m->d_v + 2));
}

size_t scale_out_words(const lg_plan_model *m) {
    return (size_t)(m->n_v_head / m->n_k_head * m->d_v);
}

size_t scale_state_words(const lg_plan_model *m) {
    double ratio = m->n_v_head / m->n_k_head;
    return (size_t)(3 * 2 * m->d_k + ratio * (m->d_k + 3) * m->d_v);
}

size_t scale_key_words(const lg_plan_model *m) {
    return (size_t)(2 * m->n_kv_head * m->d_head);
}

/* What is moved in memory of this rank's n rows and of its heads of all. */
double scale_pack(const lg_plan_model *m, double n) {
    return 4 * 4 * n * m->n_k_head * (double)(scale_in_words(m) + scale_out_words(m)) /
           scale.bandwidth;
}

/* What a mixer's input products give for a row, and what goes into its output product, in words. */
double scale_mixed_words(const lg_plan_model *m, bool attn) {
    return attn ? m->n_head * m->d_head : m->n_v_head * m->d_v;
}

double scale_product_words(const lg_plan_model *m, bool attn) {
    if (attn) return 2 * (m->n_head + m->n_kv_head) * m->d_head;
    return 2 * m->n_k_head * m->d_k + 2 * m->n_v_head * (m->d_v + 1);
}

/* The shape of a group, for choose.h. */
lg_group_shape scale_group_of(const scale_step *r) {
    return (lg_group_shape){r->n_rank,     fmax(1, floor(r->n_rank / scale.n_local)),
                            r->m.hidden,   r->m.n_used,
                            r->m.n_expert, scale.how.wire};
}

/* The head, which is in no simulated layer. */
double scale_end(const scale_step *r, double most) {
    const lg_plan_model *m = &r->m;
    lg_group_shape g = scale_group_of(r);
    lg_slice_shape logits = {.logits = 4 * m->n_vocab};
    if (!r->sliced) return head_seconds(m, r->prompt ? 1 : most);
    return head_seconds(m, 1) / r->n_rank + lg_slice_seconds(&scale.links, &g, &logits, 1, 1);
}

/* ---- this machine ---- */

/* Rows of n_in numbers, quantised as the type's products take them. */
static lg_qrows make_rows(lg_dtype type, uint32_t n_in, uint32_t n_row) {
    size_t n = (size_t)n_in * n_row;
    lg_qrows q = {.group = lg_dtype_row_group(type), .ld = n_in};
    float *x = calloc(n_in, sizeof *x);
    q.v8 = aligned_alloc(64, n);
    q.v16 = aligned_alloc(64, 2 * n);
    q.sum = calloc(n / 32, sizeof *q.sum);
    q.sum16 = calloc(n / 16, sizeof *q.sum16);
    q.d = calloc(n / 32, sizeof *q.d);
    LG_ASSERT(x && q.v8 && q.v16 && q.sum && q.sum16 && q.d);
    for (uint32_t r = 0; r < n_row; r++) {
        for (uint32_t i = 0; i < n_in; i++) x[i] = lg_num_rng_unit(1, r, i, 0) - 0.5f;
        lg_kern_get()->quant_row(x, n_in, &q, r);
    }
    free(x);
    return q;
}

/* This machine's products of 8-bit weights, as the models have them (one thread, times n_thread): bytes a second of one row, from more
 * matrices than a cache of a core holds; operations a second of 64 rows. */
void scale_measure_kernels(double n_thread) {
    enum { OUT = 2048, IN = 4096, ROWS = 64, N_MAT = 24, ROUNDS = 5 };
    const lg_kern *k = lg_kern_get();
    lg_mat w = {.type = LG_Q8_0, .n_out = OUT, .n_in = IN};
    size_t bytes = lg_dtype_panel_bytes(w.type, IN) * lg_mat_n_panel(&w), step;
    step = (bytes + 63) / 64 * 64;
    uint8_t *panel = aligned_alloc(64, N_MAT * step);
    float *y = calloc((size_t)ROWS * OUT, sizeof *y);
    lg_qrows x = make_rows(w.type, IN, ROWS);
    double best[2] = {1e30, 1e30};
    LG_ASSERT(panel && y);
    memset(panel, 0, N_MAT * step);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        uint64_t start = lg_clock_us();
        for (size_t m = 0; m < N_MAT; m++) {
            w.panel = panel + m * step;
            k->qgemm(&w, 0, lg_mat_n_panel(&w), &x, NULL, i % 2 ? ROWS : 1, y, OUT);
        }
        best[i % 2] = fmin(best[i % 2], (double)(lg_clock_us() - start) * 1e-6);
    }
    scale.bandwidth = (double)bytes * N_MAT / best[0] * n_thread;
    scale.ops = 2.0 * OUT * IN * ROWS * N_MAT / best[1] * n_thread;
    free(panel);
    free(y);
    free(x.v8);
    free(x.v16);
    free(x.sum);
    free(x.sum16);
    free(x.d);
}

/* One value head of a row of a prompt by this machine's kernel, one thread. */
void scale_measure_head(void) {
    enum { D = 128, ROWS = LG_GDN_C, ROUNDS = 20 };
    static float q[ROWS * D], k[ROWS * D], v[ROWS * D], o[ROWS * D], g[ROWS], beta[ROWS],
        s[D * D];
    static float open_k[D * LG_GDN_C], open_d[LG_GDN_C * D], open_g[LG_GDN_C];
    size_t n = (lg_gdn_scratch_floats(D, D) * sizeof(float) + 63) / 64 * 64;
    float *scratch = aligned_alloc(64, n);
    LG_ASSERT(scratch);
    for (uint32_t i = 0; i < ROWS * D; i++) {
        q[i] = 0.1f * (lg_num_rng_unit(2, i, 0, 0) - 0.5f);
        k[i] = 0.1f * (lg_num_rng_unit(2, i, 1, 0) - 0.5f);
        v[i] = lg_num_rng_unit(2, i, 2, 0) - 0.5f;
        g[i % ROWS] = -0.1f;
        beta[i % ROWS] = 0.5f;
    }
    lg_gdn_arg a = {.dk = D,
                    .dv = D,
                    .n_tok = ROWS,
                    .has_init = true,
                    .q = q,
                    .k = k,
                    .ld_qk = D,
                    .v = v,
                    .ld_v = D,
                    .g = g,
                    .beta = beta,
                    .ld_g = 1,
                    .o = o,
                    .ld_o = D,
                    .s = s,
                    .ld_s = D,
                    .open_k = open_k,
                    .open_d = open_d,
                    .open_g = open_g,
                    .scratch = scratch};
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start = lg_clock_ns();
        lg_kern_get()->gdn_rows(&a);
        best = fmin(best, (double)(lg_clock_ns() - start) * 1e-9);
    }
    scale.head_s = best / ROWS;
    free(scratch);
}
