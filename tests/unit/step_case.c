/* step_case.c - see step_case.h. */
#include "step_case.h"
#include "pjrt_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

lg_pjrt_client *case_client;
lg_pool *case_pool;
lg_kernels case_kernels;
bool case_use_twins;

static const uint32_t pages[4][6] = {{7, 2, 19, 0, 11, 5},
                                     {3, 21, 8, 14, 1, 23},
                                     {9, 4, 17, 6, 22, 10},
                                     {12, 20, 15, 13, 16, 18}};

const lg_pjrt_bucket case_prompt_bucket = {
    .n_many = 1, .n_row = 257, .n_page = 6, .n_out = 257, .logits = true, .trace = true};
const lg_pjrt_bucket case_decode_bucket = {.n_one = 4, .n_page = 6, .n_out = 4, .logits = true};
const lg_pjrt_bucket case_ragged_bucket = {
    .n_many = 4, .n_row = 97, .n_page = 6, .n_out = 199, .logits = true};

void case_compare(step_case *m, golden_tensor *t, size_t from, const float *x, size_t n) {
    golden_compare(&m->gold, t, from, x, 1, n, n);
}

step_rig_seq case_rows(uint32_t slot, uint32_t pos, const uint32_t *tok, uint32_t n,
                       uint32_t n_out) {
    return (step_rig_seq){.slot = slot,
                          .pos = pos,
                          .page = pages[slot],
                          .n_page = 6,
                          .tok = tok,
                          .n_tok = n,
                          .n_out = n_out};
}

void case_run(step_case *m, const lg_pjrt_bucket *b, const step_rig_seq *seq, uint32_t n_seq,
              uint32_t n_one, bool debug) {
    step_rig_batch batch = {seq, n_seq, n_one};
    step_rig_step(&m->rig, b, &batch, debug);
}

static void check_states(step_case *m, const char *prompt, uint32_t slot) {
    const lg_config *c = &m->w->cfg;
    size_t conv = 3 * (size_t)lg_config_conv_dim(c),
           n_s = (size_t)c->n_v_head * c->d_k * c->d_v, n, at = 0;
    float *s = step_rig_pool(&m->rig, LG_PJRT_POOL_S, 0, &n),
          *u = step_rig_pool(&m->rig, LG_PJRT_POOL_CONV, 0, &n);
    for (uint32_t l = 0; l < c->n_layer; l++) {
        if (c->layer[l] == LG_LAYER_ATTN) continue;
        golden_tensor *ts = golden_find(&m->gold, "%s.state.L%u", prompt, l);
        golden_tensor *tc = golden_find(&m->gold, "%s.conv.L%u", prompt, l);
        size_t row = at++ * N_SLOT + slot;
        if (!ts || !tc) continue;
        case_compare(m, ts, 0, s + row * n_s, n_s);
        case_compare(m, tc, conv / 3, u + row * conv,
                     conv); /* the oldest of four is not kept */
    }
    lg_mem_free(s);
    lg_mem_free(u);
}

static void check_hidden(step_case *m, const char *prompt, uint32_t n) {
    golden_tensor *t = golden_must_find(&m->gold, prompt, "hidden");
    size_t keep = t->shape[1], width = t->shape[2];
    for (size_t l = 0; l < t->shape[0]; l++)
        case_compare(m, t, l * keep * width,
                     m->rig.trace + (l * case_prompt_bucket.n_row + n - keep) * width,
                     keep * width);
}

/* Greedy steps of up to four sequences side by side: ids exact, on device and host; logits within tolerance. */
static void check_decode(step_case *m, const char *const *prompt, const uint32_t *n,
                         const float *const *last, const int32_t *last_id, uint32_t n_seq) {
    uint32_t n_vocab = m->w->cfg.n_vocab, id[4];
    const float *row[4];
    int32_t got[4];
    for (uint32_t i = 0; i < n_seq; i++) {
        row[i] = last[i];
        got[i] = last_id[i];
    }
    uint32_t n_step = (uint32_t)golden_must_find(&m->gold, prompt[0], "decode_ids")->n;
    for (uint32_t j = 0; j < n_step; j++) {
        step_rig_seq seq[4];
        for (uint32_t i = 0; i < n_seq; i++) {
            golden_tensor *ids = golden_must_find(&m->gold, prompt[i], "decode_ids"),
                          *want = golden_must_find(&m->gold, prompt[i], "decode_logits");
            ids->seen = true;
            case_compare(m, want, (size_t)j * n_vocab, row[i], n_vocab);
            id[i] = rig_argmax(row[i], n_vocab);
            assert_int_equal(id[i], ids->i[j]);
            assert_int_equal(got[i], ids->i[j]);
            seq[i] = case_rows(i, n[i] + j, &id[i], 1, 1);
        }
        if (j + 1 == n_step) break;
        case_run(m, &case_decode_bucket, seq, n_seq, n_seq, false);
        for (uint32_t i = 0; i < n_seq; i++) {
            row[i] = m->rig.logits + i * n_vocab;
            got[i] = m->rig.id[i];
        }
    }
}

void case_prompt(step_case *m, const char *prompt) {
    uint32_t n, n_vocab = m->w->cfg.n_vocab;
    const uint32_t *ids = golden_ids(&m->gold, prompt, &n);
    step_rig_seq seq = case_rows(0, 0, ids, n, n);
    case_run(m, &case_prompt_bucket, &seq, 1, 0, false);
    case_compare(m, golden_must_find(&m->gold, prompt, "logits"), 0, m->rig.logits,
                 (size_t)n * n_vocab);
    check_hidden(m, prompt, n);
    check_states(m, prompt, 0);
    float *last = lg_mem_calloc(n_vocab, sizeof *last);
    memcpy(last, m->rig.logits + (size_t)(n - 1) * n_vocab, n_vocab * sizeof *last);
    int32_t id = m->rig.id[n - 1];
    check_decode(m, &prompt, &n, (const float *const[]){last}, &id, 1);
    lg_mem_free(last);
}

void case_two_segments(step_case *m) {
    golden_tensor *t = golden_find(&m->gold, "twoseg.logits");
    if (!t) return;
    uint32_t n, n_vocab = m->w->cfg.n_vocab;
    const uint32_t *ids = golden_ids(&m->gold, "p257", &n);
    uint32_t cut = n - (uint32_t)t->shape[0];
    step_rig_seq seq = case_rows(1, 0, ids, cut, 0);
    case_run(m, &case_prompt_bucket, &seq, 1, 0, false);
    seq = case_rows(1, cut, ids + cut, n - cut, n - cut);
    case_run(m, &case_prompt_bucket, &seq, 1, 0, false);
    case_compare(m, t, 0, m->rig.logits, (size_t)(n - cut) * n_vocab);
    check_states(m, "p257", 1);
}

/* The ragged prompts in one batch, decoded together. */
void case_ragged(step_case *m) {
    if (!golden_find(&m->gold, "ragged0.ids")) return;
    static const char *const name[4] = {"ragged0", "ragged1", "ragged2", "ragged3"};
    uint32_t n[4], n_vocab = m->w->cfg.n_vocab;
    step_rig_seq seq[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t *ids = golden_ids(&m->gold, name[i], &n[i]);
        seq[i] = case_rows(i, 0, ids, n[i], n[i]);
    }
    case_run(m, &case_ragged_bucket, seq, 4, 0, false);
    const float *row = m->rig.logits;
    const int32_t *got = m->rig.id;
    float *last = lg_mem_calloc(4 * (size_t)n_vocab, sizeof *last);
    int32_t id[4];
    for (uint32_t i = 0; i < 4; i++) {
        case_compare(m, golden_must_find(&m->gold, name[i], "logits"), 0, row,
                     (size_t)n[i] * n_vocab);
        row += (size_t)n[i] * n_vocab;
        got += n[i];
        memcpy(last + (size_t)i * n_vocab, row - n_vocab, n_vocab * sizeof *last);
        id[i] = got[-1];
    }
    const float *const at[4] = {last, last + n_vocab, last + 2 * n_vocab, last + 3 * n_vocab};
    check_decode(m, name, n, at, id, 4);
    lg_mem_free(last);
}

lg_pjrt_model case_plain(void) {
    return (lg_pjrt_model){.n_device = 1,
                           .weight = LG_PJRT_F32,
                           .kv = LG_PJRT_F32,
                           .state = LG_PJRT_F32,
                           .n_slot = N_SLOT,
                           .n_page = N_PAGE,
                           .n_ctx = 512,
                           .unrolled = true};
}

void case_twins(lg_pjrt_model *how, const lg_config *cfg) {
    static const uint32_t place[8] = {3, 0, 6, 5, 1, 7, 4, 2};
    lg_pjrt_device_info dev[8] = {0};
    for (uint32_t i = 0; i < how->n_device; i++) {
        uint32_t at = how->n_device == 8 ? place[i] : i;
        dev[i].core = at % 2;
        dev[i].coord[0] = at / 2 % 2;
        dev[i].coord[1] = at / 4;
    }
    how->cfg = cfg;
    lg_kernels_init(&case_kernels, how, dev, true);
    how->parts = &case_kernels.parts;
}

void case_open(step_case *m, const char *name, lg_pjrt_model how) {
    char models[512], goldens[512], path[1100];
    lg_err err = {0};
    memset(m, 0, sizeof *m);
    m->name = name;
    assert_true(rig_data(0, models, goldens));
    snprintf(path, sizeof path, "%s/%s", models, name);
    if (lg_weights_open(path, case_pool, NULL, NULL, &m->w, &err) != LG_OK)
        fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/%s.safetensors", goldens, name);
    if (golden_open(&m->gold, path, &err) != LG_OK) fail_msg("%s", err.msg);
    m->gold.name = name;
    how.n_sample_vocab = m->w->cfg.n_vocab;
    if (case_use_twins) case_twins(&how, &m->w->cfg);
    step_rig_open(&m->rig, case_client, m->w, &how);
}

void case_close(step_case *m) {
    step_rig_close(&m->rig);
    lg_weights_close(&m->w);
    golden_close(&m->gold);
}

/* Largest difference of the last rows' logits, [n][n_vocab], from golden rows of `prompt` from row `from` on. */
double case_off_golden(step_case *m, const char *prompt, uint32_t from, uint32_t n,
                       const float *logits) {
    golden_tensor *t = golden_must_find(&m->gold, prompt, "logits");
    size_t n_vocab = m->w->cfg.n_vocab;
    assert_true((from + n) * n_vocab <= t->n);
    return rig_max_diff(t->f + from * n_vocab, logits, n * n_vocab);
}

/* One step that has everything: two sequences go on by one row while two prompts of different lengths come in, one in
 * its middle. */
double case_mixed(step_case *m) {
    const lg_pjrt_bucket b = {
        .n_one = 3, .n_many = 3, .n_row = 80, .n_page = 6, .n_out = 150, .logits = true};
    uint32_t n[4], n_vocab = m->w->cfg.n_vocab;
    const uint32_t *ids[4];
    static const char *const name[4] = {"ragged0", "ragged1", "ragged2", "ragged3"};
    for (uint32_t i = 0; i < 4; i++) ids[i] = golden_ids(&m->gold, name[i], &n[i]);
    step_rig_seq first[3] = {case_rows(0, 0, ids[0], n[0] - 1, 0),
                             case_rows(1, 0, ids[1], n[1] - 1, 0),
                             case_rows(3, 0, ids[3], 30, 0)};
    case_run(m, &case_ragged_bucket, first, 3, 0, false);
    step_rig_seq all[4] = {case_rows(0, n[0] - 1, ids[0] + n[0] - 1, 1, 1),
                           case_rows(1, n[1] - 1, ids[1] + n[1] - 1, 1, 1),
                           case_rows(2, 0, ids[2], n[2], n[2]),
                           case_rows(3, 30, ids[3] + 30, n[3] - 30, n[3] - 30)};
    case_run(m, &b, all, 4, 2, false);
    const float *row = m->rig.logits;
    double worst = case_off_golden(m, name[0], n[0] - 1, 1, row);
    for (uint32_t i = 1; i < 4; i++) {
        row += (size_t)all[i - 1].n_out * n_vocab;
        double d = case_off_golden(m, name[i], n[i] - all[i].n_out, all[i].n_out, row);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static lg_pjrt_plugin *plugin;

int case_start(void **state) {
    lg_err err;
    (void)state;
    if (lg_pool_open(2, &case_pool, &err) != LG_OK) return 1;
    return pjrt_rig_open(&plugin, &case_client);
}

int case_finish(void **state) {
    (void)state;
    pjrt_rig_close(&plugin, &case_client);
    lg_pool_close(&case_pool);
    return 0;
}
