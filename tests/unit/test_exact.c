/* test_exact.c - the same bits, however a step is cut: splits of a prompt, decode, batch mates, threads, memory nodes, kernel
 * levels, places in the pools, and whatever the memory held before.
 *
 * Compared with memcmp: the logits of every position, and each sequence's recurrent and convolution state at its end.
 * The models are tiny-moe (8 layers, two value heads a key head), tiny-moe-fp8 and tiny-dense-r3 (three value heads), and
 * tiny-moe and a bundled model with every matrix rounded to block types, whose products are of integers; the
 * keys and values are kept in each type.  The prompt's length is no multiple of a page, a block of GDN rows or a block of query rows. */
#include "few.h"
#include "quant_fit.h"
#include "rig.h"

#include "backend/cpu/cpu.h"
#include "base/num.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_TOK    139
#define N_SEQ    5
#define SEQ_PAGE 3
#define N_PAGE   (N_SEQ * SEQ_PAGE + 2)
#define N_SNAP   4
#define NODES    4 /* pools from here on pretend to be on several memory nodes */
#define N_POOL   7
#define MANY     9 /* threads of one more pool: more than the models have heads */

typedef struct exact_model {
    const char *name, *folder; /* below the source tree */
    lg_dtype kv;
    bool quant; /* matrices rounded to block types, K types among them where the widths allow */
    quant_fit fit;
    lg_weights *w;
    uint32_t tok[N_SEQ][N_TOK];
    uint32_t n_tok[N_SEQ];
    float *logits[N_SEQ]; /* [n_tok][n_vocab] alone, in one step, one thread, best level */
    float *state[N_SEQ];  /* all GDN layers: state, then convolution rows */
    size_t n_state;
} exact_model;

/* Where a sequence lives. */
typedef struct place {
    uint32_t slot, page[SEQ_PAGE];
} place;

static lg_pool *pools[N_POOL + 1]; /* by number of threads; then of 2, 3 and 2 nodes; of many */
static const struct {
    int n_thread, node[4];
} topologies[N_POOL - NODES] = {{2, {0, 1}}, {3, {0, 1, 2}}, {4, {1, 0, 0, 0}}};
static exact_model models[] = {
    {.name = "tiny-moe", .folder = "tests/data/models"},
    {.name = "tiny-moe-fp8", .folder = "tests/data/models", .kv = LG_F16},
    {.name = "tiny-dense-r3", .folder = "tests/data/models", .kv = LG_BF16},
    {.name = "tiny-moe", .folder = "tests/data/models", .kv = LG_Q8_0, .quant = true},
    {.name = "tiny-qwen35moe", .folder = "models", .kv = LG_F16, .quant = true},
};
static const place home = {1, {0, 1, 2}};

static bool few(void) {
    return test_few("a part of the splits, cuts and mixes");
}

static lg_backend *open_backend(const exact_model *m, int pool, const char *level) {
    lg_backend *be = NULL;
    lg_err err = {0};
    lg_backend_opt opt = {.n_slot = N_SEQ + 1,
                          .n_snap = N_SNAP,
                          .n_page = N_PAGE,
                          .max_tok = N_SEQ * N_TOK,
                          .max_seq = N_SEQ,
                          .max_out = N_SEQ * N_TOK,
                          .n_sample_vocab = m->w->cfg.n_vocab,
                          .kv = m->kv};
    if (lg_backend_open(m->w, &opt, pools[pool], &be, &err) != LG_OK) fail_msg("%s", err.msg);
    if (level) be->kern = lg_kern_level(level);
    rig_poison(be);
    return be;
}

static void read_states(const exact_model *m, const lg_backend *be, uint32_t slot,
                        uint32_t n_tok, float *out) {
    const lg_config *c = &m->w->cfg;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (c->layer[l] != LG_LAYER_GDN) continue;
        float *conv = out + (size_t)c->n_v_head * c->d_k * c->d_v;
        lg_backend_read_state(be, slot, n_tok, l, out, conv);
        out = conv + 3 * (size_t)lg_config_conv_dim(c);
    }
}

/* Run sequence `i` alone in steps of `chunk` rows; its logits go to `logits`, its end state to `state`. */
static void run_alone(const exact_model *m, lg_backend *be, uint32_t i, const place *at,
                      uint32_t chunk, float *logits, float *state) {
    uint32_t n_vocab = m->w->cfg.n_vocab;
    for (uint32_t pos = 0; pos < m->n_tok[i]; pos += chunk) {
        uint32_t n = m->n_tok[i] - pos < chunk ? m->n_tok[i] - pos : chunk;
        rig_seq seq = {at->slot, pos, at->page, SEQ_PAGE, m->tok[i] + pos, n, n};
        lg_step_out out = {0};
        rig_step(be, &seq, 1, &out);
        for (uint32_t r = 0; r < n; r++)
            memcpy(logits + (size_t)(pos + r) * n_vocab, out.logits + r * out.ld_logits,
                   n_vocab * sizeof(float));
        rig_poison_scratch(be);
    }
    read_states(m, be, at->slot, m->n_tok[i], state);
}

static void expect_same(const exact_model *m, uint32_t i, const float *logits,
                        const float *state, const char *what, uint32_t arg) {
    size_t n_vocab = m->w->cfg.n_vocab;
    for (uint32_t t = 0; t < m->n_tok[i]; t++)
        if (memcmp(logits + t * n_vocab, m->logits[i] + t * n_vocab, n_vocab * sizeof(float)))
            fail_msg("%s, %s %u: logits of position %u differ by %g", m->name, what, arg, t,
                     rig_max_diff(logits + t * n_vocab, m->logits[i] + t * n_vocab, n_vocab));
    if (memcmp(state, m->state[i], m->n_state * sizeof(float)))
        fail_msg("%s, %s %u: the end state differs by %g", m->name, what, arg,
                 rig_max_diff(state, m->state[i], m->n_state));
}

static void open_model(exact_model *m) {
    char path[1024];
    lg_err err = {0};
    snprintf(path, sizeof path, "%s/%s/%s", getenv("LG_SOURCE_DIR"), m->folder, m->name);
    if (lg_weights_open(path, pools[1], NULL, NULL, &m->w, &err) != LG_OK)
        fail_msg("%s", err.msg);
    const lg_config *c = &m->w->cfg;
    if (m->quant) quant_fit_weights(&m->fit, m->w, true);
    for (uint32_t l = 0; l < c->n_layer; l++)
        if (c->layer[l] == LG_LAYER_GDN)
            m->n_state +=
                (size_t)c->n_v_head * c->d_k * c->d_v + 3 * (size_t)lg_config_conv_dim(c);
    static const uint32_t n_tok[N_SEQ] = {N_TOK, 5, 33, 64, 97};
    lg_backend *be = open_backend(m, 1, NULL);
    for (uint32_t i = 0; i < N_SEQ; i++) {
        m->n_tok[i] = n_tok[i];
        for (uint32_t t = 0; t < N_TOK; t++)
            m->tok[i][t] = (uint32_t)(lg_num_rng(7, i, t, 0) % c->n_vocab);
        m->logits[i] = lg_mem_calloc((size_t)n_tok[i] * c->n_vocab, sizeof(float));
        m->state[i] = lg_mem_calloc(m->n_state, sizeof(float));
        run_alone(m, be, i, &home, n_tok[i], m->logits[i], m->state[i]);
        assert_true(rig_max_diff(m->logits[i], m->logits[i], (size_t)n_tok[i] * c->n_vocab) ==
                    0);
    }
    lg_backend_close(&be);
}

static int open_all(void **state) {
    lg_err err;
    (void)state;
    for (int n = 1; n <= 3; n++)
        if (lg_pool_open(n, &pools[n], &err) != LG_OK) return -1;
    for (int i = 0; i < N_POOL - NODES; i++)
        if (lg_pool_open_nodes(topologies[i].n_thread, topologies[i].node, &pools[NODES + i],
                               &err) != LG_OK)
            return -1;
    if (lg_pool_open(MANY, &pools[N_POOL], &err) != LG_OK) return -1;
    for (size_t i = 0; i < LG_COUNT(models); i++) open_model(&models[i]);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        for (uint32_t i = 0; i < N_SEQ; i++) {
            lg_mem_free(models[k].logits[i]);
            lg_mem_free(models[k].state[i]);
        }
        lg_weights_close(&models[k].w);
        quant_fit_fini(&models[k].fit);
    }
    for (int n = 1; n <= N_POOL; n++) lg_pool_close(&pools[n]);
    return 0;
}

/* Buffers for one run. */
typedef struct result {
    float *logits, *state;
} result;

static result take_result(const exact_model *m) {
    result r = {lg_mem_calloc((size_t)N_TOK * m->w->cfg.n_vocab, sizeof(float)),
                lg_mem_calloc(m->n_state, sizeof(float))};
    assert_true(r.logits && r.state);
    return r;
}

static void free_result(result *r) {
    lg_mem_free(r->logits);
    lg_mem_free(r->state);
}

static void test_every_split_length(void **state) {
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        const exact_model *m = &models[k];
        result r = take_result(m);
        lg_backend *be = open_backend(m, 2, NULL);
        for (uint32_t chunk = 1; chunk <= 80; chunk++) {
            if (few() && chunk % 9 != 1 && chunk % 32 > 1) continue;
            run_alone(m, be, 0, &home, chunk, r.logits, r.state);
            expect_same(m, 0, r.logits, r.state, "steps of", chunk);
        }
        lg_backend_close(&be);
        free_result(&r);
    }
}

/* Prefill in two steps cut anywhere; the bigger models at fewer places. */
static void test_two_segments(void **state) {
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        const exact_model *m = &models[k];
        uint32_t n_vocab = m->w->cfg.n_vocab;
        result r = take_result(m);
        lg_backend *be = open_backend(m, 2, NULL);
        for (uint32_t cut = 1; cut < N_TOK; cut += few() ? 17 : m->w->cfg.n_expert ? 6 : 1) {
            lg_step_out out = {0};
            rig_seq a = {2, 0, home.page, SEQ_PAGE, m->tok[0], cut, 0};
            rig_seq b = {2, cut, home.page, SEQ_PAGE, m->tok[0] + cut, N_TOK - cut, 1};
            rig_step(be, &a, 1, &out);
            rig_step(be, &b, 1, &out);
            const float *want = m->logits[0] + (size_t)(N_TOK - 1) * n_vocab;
            if (memcmp(out.logits, want, n_vocab * sizeof(float)))
                fail_msg("%s: segments of %u and %u tokens", m->name, cut, N_TOK - cut);
            read_states(m, be, 2, N_TOK, r.state);
            assert_memory_equal(r.state, m->state[0], m->n_state * sizeof(float));
        }
        lg_backend_close(&be);
        free_result(&r);
    }
}

static void test_levels_and_threads(void **state) {
    static const uint32_t chunk[] = {N_TOK, 64, 33, 1};
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        const exact_model *m = &models[k];
        result r = take_result(m);
        for (size_t i = 0; lg_kern_names[i]; i++) {
            const char *level = lg_kern_names[i];
            if (!lg_kern_level(level)) {
                if (k == 0)
                    printf("  skipped: level %s (not in this build or processor)\n", level);
                continue;
            }
            for (int n_thread = 1; n_thread <= 3; n_thread++) {
                if (few() && n_thread != 2) continue;
                lg_backend *be = open_backend(m, n_thread, level);
                for (size_t c = 0; c < LG_COUNT(chunk); c++) {
                    /* ref is slow: one cut for each number of threads. */
                    if (i == 0 && c != (size_t)n_thread) continue;
                    run_alone(m, be, 0, &home, chunk[c], r.logits, r.state);
                    expect_same(m, 0, r.logits, r.state, level, chunk[c]);
                }
                lg_backend_close(&be);
            }
        }
        free_result(&r);
    }
}

/* Attention of blocks divided by pages: from the first page on, with windows smaller than the text. */
static void test_attention_divided_by_pages(void **state) {
    static const uint32_t chunk[] = {1, 3, 16, 37};
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        const exact_model *m = &models[k];
        result r = take_result(m);
        lg_backend *be = open_backend(m, 3, NULL);
        be->split_from = 1;
        for (size_t i = 0; i < LG_COUNT(chunk); i++) {
            be->split_step = i ? LG_CPU_ATTN_BLK : 2;
            run_alone(m, be, 0, &home, chunk[i], r.logits, r.state);
            expect_same(m, 0, r.logits, r.state, "divided by pages, steps of", chunk[i]);
        }
        lg_backend_close(&be);
        free_result(&r);
    }
}

/* Slots and pages of all sequences, shuffled by a counter random number. */
static void shuffle_places(place at[N_SEQ], uint64_t seed) {
    uint32_t slot[N_SEQ + 1], page[N_PAGE];
    for (uint32_t i = 0; i <= N_SEQ; i++) slot[i] = i;
    for (uint32_t i = 0; i < N_PAGE; i++) page[i] = i;
    for (uint32_t i = N_SEQ; i > 0; i--) {
        uint32_t j = (uint32_t)(lg_num_rng(seed, 0, i, 0) % (i + 1)), t = slot[i];
        slot[i] = slot[j];
        slot[j] = t;
    }
    for (uint32_t i = N_PAGE - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(lg_num_rng(seed, 1, i, 0) % (i + 1)), t = page[i];
        page[i] = page[j];
        page[j] = t;
    }
    for (uint32_t i = 0; i < N_SEQ; i++) {
        at[i].slot = slot[i];
        memcpy(at[i].page, page + i * SEQ_PAGE, sizeof at[i].page);
    }
}

/* Run all sequences to their ends in random mixed steps; every logits row and end state must be as alone. */
static void run_mix(const exact_model *m, lg_backend *be, uint64_t seed, result *r) {
    uint32_t pos[N_SEQ] = {0}, n_vocab = m->w->cfg.n_vocab, n_left = N_SEQ;
    place at[N_SEQ];
    shuffle_places(at, seed);
    for (uint32_t step = 0; n_left > 0; step++) {
        rig_seq seq[N_SEQ];
        uint32_t who[N_SEQ], n_seq = 0;
        for (uint32_t j = 0; j < N_SEQ; j++) {
            uint32_t i = (j + step) % N_SEQ, left = m->n_tok[i] - pos[i];
            uint64_t dice = lg_num_rng(seed, 2, step, i);
            if (left == 0 || dice % 4 == 0) continue;
            uint32_t n = dice % 3 == 0 ? 1 : (uint32_t)(dice / 16 % 70) + 1;
            if (n > left) n = left;
            uint32_t n_out = dice % 5 == 0 ? 1 : n;
            who[n_seq] = i;
            seq[n_seq++] = (rig_seq){at[i].slot,         pos[i], at[i].page, SEQ_PAGE,
                                     m->tok[i] + pos[i], n,      n_out};
        }
        if (n_seq == 0) continue;
        lg_step_out out = {0};
        rig_step(be, seq, n_seq, &out);
        const float *row = out.logits;
        for (uint32_t s = 0; s < n_seq; s++) {
            uint32_t i = who[s];
            pos[i] += seq[s].n_tok;
            for (uint32_t t = pos[i] - seq[s].n_out; t < pos[i]; t++, row += out.ld_logits)
                if (memcmp(row, m->logits[i] + (size_t)t * n_vocab, n_vocab * sizeof(float)))
                    fail_msg("%s, mix %u, step %u: sequence %u, position %u", m->name,
                             (unsigned)seed, step, i, t);
            if (pos[i] < m->n_tok[i]) continue;
            read_states(m, be, at[i].slot, pos[i], r->state);
            assert_memory_equal(r->state, m->state[i], m->n_state * sizeof(float));
            n_left--;
        }
        rig_poison_scratch(be);
    }
}

/* Value heads as parts of their columns, rows before and after them as tasks of their own; 0: where the threads ask for it. */
static void test_heads_divided_by_columns(void **state) {
    static const uint32_t chunk[] = {1, 2, 33, 70, N_TOK};
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        const exact_model *m = &models[k];
        result r = take_result(m);
        for (int n_thread = 1; n_thread <= 4; n_thread++) {
            int pool = n_thread < 4 ? n_thread : N_POOL;
            if (few() && n_thread < 3) continue;
            lg_backend *be = open_backend(m, pool, NULL);
            for (uint32_t parts = n_thread < 3 ? 1 : 0; parts <= 4; parts++) {
                be->gdn_parts = parts;
                for (size_t i = 0; i < LG_COUNT(chunk); i++) {
                    if (i % 4 != parts % 4) continue;
                    run_alone(m, be, 0, &home, chunk[i], r.logits, r.state);
                    expect_same(m, 0, r.logits, r.state, "parts of heads, steps of", chunk[i]);
                }
                run_mix(m, be, parts, &r);
            }
            lg_backend_close(&be);
        }
        free_result(&r);
    }
}

static void test_ragged_mixes_with_places_shuffled(void **state) {
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        const exact_model *m = &models[k];
        result r = take_result(m);
        lg_backend *be = open_backend(m, 2, NULL);
        /* The pools are not cleaned between mixes: what the last one left must not matter either. */
        for (uint64_t seed = 1; seed <= (few() ? 8 : 12); seed += few() ? 3 : 1) {
            if (seed == 7) rig_poison(be);
            run_mix(m, be, seed, &r);
        }
        lg_backend_close(&be);
        free_result(&r);
    }
}

static void expect_panels(const lg_mat *a, const lg_mat *b) {
    assert_true(a->type == b->type && a->n_out == b->n_out && a->n_in == b->n_in);
    if (a->panel)
        assert_memory_equal(a->panel, b->panel,
                            lg_mat_n_panel(a) * lg_dtype_panel_bytes(a->type, a->n_in));
}

/* Weights packed and read by several nodes' threads, alone and in mixes. */
static void test_memory_nodes(void **state) {
    static const uint32_t chunk[] = {N_TOK, 33};
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++)
        for (int p = NODES; p < N_POOL; p++) {
            if (few() && p != NODES + 1) continue;
            exact_model m = models[k];
            char path[1024];
            lg_err err = {0};
            snprintf(path, sizeof path, "%s/%s/%s", getenv("LG_SOURCE_DIR"), m.folder, m.name);
            lg_weights *w = NULL; /* rounded matrices are not packed from files */
            if (!m.quant) {
                assert_int_equal(lg_weights_open(path, pools[p], NULL, NULL, &w, &err), LG_OK);
                expect_panels(&w->head, &m.w->head);
                expect_panels(&w->layer[0].qkv, &m.w->layer[0].qkv);
                m.w = w;
            }
            result r = take_result(&m);
            lg_backend *be = open_backend(&m, p, NULL);
            for (size_t c = 0; c < LG_COUNT(chunk); c++) {
                run_alone(&m, be, 0, &home, chunk[c], r.logits, r.state);
                expect_same(&m, 0, r.logits, r.state, "memory nodes, steps of", chunk[c]);
            }
            run_mix(&m, be, 1, &r);
            lg_backend_close(&be);
            free_result(&r);
            lg_weights_close(&w);
        }
}

/* Rows [pos, end) of sequence 0 in slot 2, with snapshots on the way. */
static const float *run_saving(const exact_model *m, lg_backend *be, uint32_t slot,
                               const uint32_t *page, uint32_t pos, uint32_t end,
                               const lg_batch_save *save, uint32_t n_save) {
    lg_batch_seq seq = {.slot = slot,
                        .pos = pos,
                        .n_tok = end - pos,
                        .n_out = 1,
                        .save = save,
                        .n_save = n_save};
    lg_batch batch = {.tok = m->tok[0] + pos,
                      .n_tok = end - pos,
                      .seq = &seq,
                      .n_seq = 1,
                      .page = page,
                      .n_page = SEQ_PAGE};
    lg_step_out out = {0};
    assert_int_equal(lg_backend_step(be, &batch, &out), LG_OK);
    return out.logits;
}

/* A snapshot taken anywhere, inside a step or after one, with its page copied where it is shared: the rest of the text
 * gives the bits of a run without it, in another slot, after the first one went on. */
static void test_snapshots_at_every_position(void **state) {
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        const exact_model *m = &models[k];
        result r = take_result(m);
        lg_backend *be = open_backend(m, 2, NULL);
        const float *want = m->logits[0] + (size_t)(N_TOK - 1) * m->w->cfg.n_vocab;
        for (uint32_t cut = 1; cut < N_TOK; cut += few() ? 11 : m->w->cfg.n_expert ? 3 : 1) {
            uint32_t next = cut + 1 + cut % 40, n = next < N_TOK ? 2 : 1;
            be->gdn_parts = cut % 3; /* also heads in parts */
            lg_batch_save save[2] = {{cut, 3}, {next, 1}};
            const float *got = run_saving(m, be, 2, home.page, 0, N_TOK, save, cut % 2 ? n : 0);
            assert_memory_equal(got, want, m->w->cfg.n_vocab * sizeof(float));
            if (cut % 2 == 0) { /* after a step instead */
                run_saving(m, be, 2, home.page, 0, cut, NULL, 0);
                lg_backend_save(be, 0, 2, cut, 3);
                run_saving(m, be, 2, home.page, cut, N_TOK, NULL, 0);
                n = 1;
            }
            read_states(m, be, 2, N_TOK, r.state);
            assert_memory_equal(r.state, m->state[0], m->n_state * sizeof(float));
            for (uint32_t i = 0; i < n; i++) {
                uint32_t at = save[i].n_row, own[SEQ_PAGE] = {5, 6, 7};
                for (uint32_t p = 0; p < at / LG_PAGE_TOK; p++) own[p] = home.page[p];
                if (at % LG_PAGE_TOK)
                    lg_backend_copy_page(be, 0, home.page[at / LG_PAGE_TOK],
                                         own[at / LG_PAGE_TOK]);
                memset(be->slot + 4 * be->lay.slot, 0xff, be->lay.slot * sizeof(float));
                lg_backend_load(be, 0, 4, at, save[i].snap);
                got = run_saving(m, be, 4, own, at, N_TOK, NULL, 0);
                if (memcmp(got, want, m->w->cfg.n_vocab * sizeof(float)))
                    fail_msg("%s: from the snapshot at %u", m->name, at);
                read_states(m, be, 4, N_TOK, r.state);
                assert_memory_equal(r.state, m->state[0], m->n_state * sizeof(float));
            }
            rig_poison(be);
        }
        lg_backend_close(&be);
        free_result(&r);
    }
}

/* Integer products against float products over the same rounded weights, on the trained model: a random one with chosen
 * experts (tiny-moe) is chaotic. */
static void test_integers_stay_near_floats(void **state) {
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        const exact_model *m = &models[k];
        if (!m->quant || strcmp(m->name, "tiny-qwen35moe") != 0) continue;
        result r = take_result(m);
        lg_backend *be = open_backend(m, 2, NULL);
        uint32_t same;
        be->exact = true;
        run_alone(m, be, 0, &home, N_TOK, r.logits, r.state);
        size_t n_vocab = m->w->cfg.n_vocab;
        double kl = rig_mean_kl(r.logits, n_vocab, m->logits[0], n_vocab, N_TOK,
                                (uint32_t)n_vocab, &same);
        printf(
            "  %s, %u Q8_0, %u Q4_K, %u Q6_K: mean KL %.5f, the same first choice %u of %u\n",
            m->name, m->fit.n_type[LG_Q8_0], m->fit.n_type[LG_Q4_K], m->fit.n_type[LG_Q6_K], kl,
            same, (unsigned)N_TOK);
        assert_true(kl > 0 && kl < 0.003);
        lg_backend_close(&be);
        free_result(&r);
    }
}

/* What rounding keys and values costs the trained model, and that it is done. */
static void test_kept_keys_stay_near_floats(void **state) {
    static const struct {
        lg_dtype kv;
        double most;
    } rows[] = {{LG_F16, 1e-7}, {LG_BF16, 1e-5}, {LG_Q8_0, 2e-4}};
    (void)state;
    for (size_t k = 0; k < LG_COUNT(models); k++) {
        exact_model m = models[k];
        if (strcmp(m.name, "tiny-qwen35moe") != 0) continue;
        result exact = take_result(&m), r = take_result(&m);
        for (size_t i = 0; i <= LG_COUNT(rows); i++) {
            m.kv = i ? rows[i - 1].kv : LG_F32;
            lg_backend *be = open_backend(&m, 2, NULL);
            be->exact = true;
            result *to = i ? &r : &exact;
            run_alone(&m, be, 0, &home, N_TOK, to->logits, to->state);
            lg_backend_close(&be);
            if (i == 0) continue;
            uint32_t n_vocab = m.w->cfg.n_vocab, same;
            double kl =
                rig_mean_kl(exact.logits, n_vocab, r.logits, n_vocab, N_TOK, n_vocab, &same);
            printf("  %s, keys and values %s: mean KL %.2g, the same first choice %u of %u\n",
                   m.name, lg_dtype_name(m.kv), kl, same, (unsigned)N_TOK);
            assert_true(kl > 0 && kl < rows[i - 1].most);
        }
        free_result(&exact);
        free_result(&r);
    }
}

static void test_a_step_allocates_nothing(void **state) {
    (void)state;
    const exact_model *m = &models[0];
    lg_backend *be = open_backend(m, 2, NULL);
    lg_batch_seq seq = {.slot = 0, .n_tok = 70, .n_out = 70};
    lg_batch batch = {
        .tok = m->tok[0], .n_tok = 70, .seq = &seq, .n_seq = 1, .page = home.page, .n_page = 3};
    lg_step_out out = {0};
    uint64_t before = lg_mem_count();
    assert_int_equal(lg_backend_step(be, &batch, &out), LG_OK);
    assert_int_equal(lg_mem_count(), before);
    lg_backend_close(&be);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_split_length),
                                       cmocka_unit_test(test_two_segments),
                                       cmocka_unit_test(test_levels_and_threads),
                                       cmocka_unit_test(test_attention_divided_by_pages),
                                       cmocka_unit_test(test_heads_divided_by_columns),
                                       cmocka_unit_test(test_ragged_mixes_with_places_shuffled),
                                       cmocka_unit_test(test_memory_nodes),
                                       cmocka_unit_test(test_snapshots_at_every_position),
                                       cmocka_unit_test(test_integers_stay_near_floats),
                                       cmocka_unit_test(test_kept_keys_stay_near_floats),
                                       cmocka_unit_test(test_a_step_allocates_nothing)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
