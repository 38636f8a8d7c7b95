/* rig.c - see rig.h. */
#include "rig.h"

#include "backend/cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rig_step(lg_backend *be, const rig_seq *seq, uint32_t n_seq, lg_step_out *out) {
    uint32_t n_tok = 0, n_page = 0;
    LG_ASSERT(n_seq <= RIG_MAX_SEQ);
    for (uint32_t i = 0; i < n_seq; i++) {
        n_tok += seq[i].n_tok;
        n_page += seq[i].n_page;
    }
    uint32_t *tok = lg_mem_calloc(n_tok, sizeof *tok);
    uint32_t *page = lg_mem_calloc(n_page, sizeof *page);
    LG_ASSERT(tok && page);
    lg_batch_seq part[RIG_MAX_SEQ];
    uint32_t t = 0, p = 0;
    for (uint32_t i = 0; i < n_seq; i++) {
        const rig_seq *s = &seq[i];
        part[i] = (lg_batch_seq){.slot = s->slot,
                                 .pos = s->pos,
                                 .n_tok = s->n_tok,
                                 .tok0 = t,
                                 .page0 = p,
                                 .n_out = s->n_out};
        memcpy(tok + t, s->tok, s->n_tok * sizeof *tok);
        memcpy(page + p, s->page, s->n_page * sizeof *page);
        t += s->n_tok;
        p += s->n_page;
    }
    lg_batch batch = {.tok = tok,
                      .n_tok = n_tok,
                      .seq = part,
                      .n_seq = n_seq,
                      .page = page,
                      .n_page = n_page};
    LG_ASSERT(lg_backend_step(be, &batch, out) == LG_OK);
    lg_mem_free(tok);
    lg_mem_free(page);
}

/* Bytes of the scratch block, as the backend's plan counts them. */
static size_t scratch_bytes(const lg_backend *be) {
    lg_backend_plan plan;
    lg_backend_plan_bytes(be->cfg, &be->opt, be->n_thread, &plan);
    return (size_t)plan.scratch_bytes;
}

void rig_poison_scratch(lg_backend *be) {
    memset(be->block, 0xff, scratch_bytes(be));
}

void rig_poison(lg_backend *be) {
    memset(be->page, 0xff, be->opt.n_page * be->lay.page);
    memset(be->slot, 0xff, be->opt.n_slot * be->lay.slot * sizeof(float));
    memset(be->snap, 0xff, be->opt.n_snap * be->lay.slot * sizeof(float));
    rig_poison_scratch(be);
}

uint32_t rig_argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

double rig_max_diff(const float *a, const float *b, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
    }
    return worst;
}

double rig_mean_kl(const float *a, size_t ld_a, const float *b, size_t ld_b, uint32_t n_row,
                   uint32_t n, uint32_t *n_same) {
    double sum = 0;
    *n_same = 0;
    for (uint32_t r = 0; r < n_row; r++, a += ld_a, b += ld_b) {
        double ma = (double)a[rig_argmax(a, n)], mb = (double)b[rig_argmax(b, n)];
        double za = 0, zb = 0;
        for (uint32_t i = 0; i < n; i++) {
            za += exp((double)a[i] - ma);
            zb += exp((double)b[i] - mb);
        }
        for (uint32_t i = 0; i < n; i++) {
            double la = (double)a[i] - ma - log(za), lb = (double)b[i] - mb - log(zb);
            sum += exp(la) * (la - lb);
        }
        *n_same += rig_argmax(a, n) == rig_argmax(b, n);
    }
    return sum / n_row;
}

bool rig_data(int i, char models[512], char goldens[512]) {
    const char *dir = getenv(i == 0 ? "LG_SOURCE_DIR" : "LG_GOLDEN");
    if (i > 1 || !dir || !*dir) return false;
    snprintf(models, 512, i == 0 ? "%s/tests/data/models" : "%s/models", dir);
    snprintf(goldens, 512, i == 0 ? "%s/tests/data/golden" : "%s", dir);
    return true;
}

uint8_t *rig_element(const lg_mat *m, uint32_t channel, uint32_t k, size_t *len_bytes) {
    *len_bytes = lg_dtype_bytes(m->type);
    size_t at = ((size_t)(channel / LG_NR) * m->n_in + k) * LG_NR + channel % LG_NR;
    return (uint8_t *)(uintptr_t)m->panel + at * *len_bytes;
}
