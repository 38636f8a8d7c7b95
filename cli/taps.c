/* taps.c - see taps.h. */
#include "taps.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* What is compared, in the order of a layer; names as in backend.h.  kind: layers that have it. */
typedef struct operation {
    const char *name, *label;
    enum { ANY, GDN, ATTN } kind;
} operation;

static const operation operations[] = {
    {"in_norm", "norm before the mixer", ANY},
    {"gdn.qkv_raw", "GDN projections", GDN},
    {"gdn.q", "GDN queries, convolved", GDN},
    {"gdn.k", "GDN keys, convolved", GDN},
    {"gdn.v", "GDN values, convolved", GDN},
    {"gdn.g", "GDN log decay", GDN},
    {"gdn.beta", "GDN beta", GDN},
    {"gdn.core_out", "GDN recurrence", GDN},
    {"gdn.gated_norm", "GDN gated norm", GDN},
    {"mixer_out", "GDN out", GDN},
    {"attn.q", "attention queries", ATTN},
    {"attn.k", "attention keys", ATTN},
    {"attn.v", "attention values", ATTN},
    {"attn.core_out", "attention", ATTN},
    {"attn.gated", "attention gated", ATTN},
    {"mixer_out", "attention out", ATTN},
    {"post_norm", "norm before the MLP", ANY},
    {"moe.router_logits", "router", ANY},
    {"moe.topk_weights", "routing weights", ANY},
    {"moe.routed_out", "routed experts", ANY},
    {"moe.shared_out", "shared expert", ANY},
    {"mlp.out", "MLP out", ANY},
    {"final_norm", "norm before the head", ANY},
};

#define N_OPERATION (sizeof operations / sizeof *operations)

typedef struct sums {
    double worst, sum, scale; /* largest |difference|, sums of |difference| and |reference| */
    uint64_t n;
} sums;

/* What the reference traced in this step under one name. */
typedef struct kept {
    int layer;
    const char *name; /* the tracer's, a constant */
    float *x;         /* owned: [max_row][n_col] */
    size_t n_row, n_col, n_seen;
} kept;

struct lg_taps {
    const lg_config *cfg;
    bool all, failed;
    uint32_t max_row;
    size_t n_skip; /* rows of this step that are not compared */
    kept *kept;    /* owned: [n_kept], room */
    size_t n_kept, room;
    sums op[N_OPERATION];
    sums *layer; /* owned: [n_layer + 1]: before the first layer and after each */
    uint64_t n_routed, n_choice, n_other;
};

lg_status lg_taps_open(const lg_config *cfg, bool all, uint32_t max_row, lg_taps **t,
                       lg_err *err) {
    *t = lg_mem_calloc(1, sizeof **t);
    if (*t) (*t)->layer = lg_mem_calloc(cfg->n_layer + 1, sizeof *(*t)->layer);
    if (!*t || !(*t)->layer) {
        lg_taps_close(t);
        return LG_FAIL(err, LG_E_NOMEM, "no memory for intermediates");
    }
    (*t)->cfg = cfg;
    (*t)->all = all;
    (*t)->max_row = max_row;
    return LG_OK;
}

void lg_taps_close(lg_taps **t) {
    if (!*t) return;
    for (size_t i = 0; i < (*t)->n_kept; i++) lg_mem_free((*t)->kept[i].x);
    lg_mem_free((*t)->kept);
    lg_mem_free((*t)->layer);
    LG_FREE(*t);
}

/* ---- one step ---- */

static bool is_stream(int layer, const char *name) {
    return strcmp(name, layer < 0 ? "embed" : "out") == 0;
}

static kept *find(lg_taps *t, int layer, const char *name) {
    for (size_t i = 0; i < t->n_kept; i++)
        if (t->kept[i].layer == layer && strcmp(t->kept[i].name, name) == 0) return &t->kept[i];
    return NULL;
}

static kept *make(lg_taps *t, int layer, const char *name, size_t n_col) {
    if (t->n_kept == t->room) {
        size_t room = t->room ? 2 * t->room : 64;
        kept *more = lg_mem_calloc(room, sizeof *more);
        if (!more) return NULL;
        if (t->n_kept) memcpy(more, t->kept, t->n_kept * sizeof *more);
        lg_mem_free(t->kept);
        t->kept = more;
        t->room = room;
    }
    kept k = {.layer = layer, .name = name, .n_col = n_col};
    k.x = lg_mem_calloc(t->max_row, n_col * sizeof *k.x);
    if (!k.x) return NULL;
    t->kept[t->n_kept] = k;
    return &t->kept[t->n_kept++];
}

static void add(sums *s, const float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)x[i] - (double)y[i]);
        if (!(d <= s->worst)) s->worst = d;
        s->sum += d;
        s->scale += fabs((double)x[i]);
    }
    s->n += n;
}

/* Chosen experts of a row: how many of the tested one's are not the reference's. */
static void add_choice(lg_taps *t, const float *x, const float *y, size_t k) {
    size_t other = 0;
    for (size_t i = 0; i < k; i++) {
        bool there = false;
        for (size_t j = 0; j < k; j++) there |= x[j] == y[i];
        other += !there;
    }
    t->n_routed++;
    t->n_choice += k;
    t->n_other += other;
}

static void compare(lg_taps *t, const kept *k, const float *x, const float *y) {
    if (is_stream(k->layer, k->name)) add(&t->layer[k->layer + 1], x, y, k->n_col);
    if (!t->all) return;
    if (strcmp(k->name, "moe.topk_ids") == 0) add_choice(t, x, y, k->n_col);
    bool attn = k->layer >= 0 && t->cfg->layer[k->layer] == LG_LAYER_ATTN;
    for (size_t i = 0; i < N_OPERATION; i++)
        if (strcmp(operations[i].name, k->name) == 0 &&
            (operations[i].kind == ANY || (operations[i].kind == ATTN) == attn))
            add(&t->op[i], x, y, k->n_col);
}

void lg_taps_take(void *ctx, int layer, const char *name, const float *data, size_t n_row,
                  size_t n_col, size_t ld) {
    const lg_tap *tap = ctx;
    lg_taps *t = tap->all;
    if (t->failed || layer >= (int)t->cfg->n_layer || (!t->all && !is_stream(layer, name)))
        return;
    kept *k = find(t, layer, name);
    if (tap->tested) {
        /* rows come in order, perhaps in several parts */
        for (size_t i = 0; k && k->n_col == n_col && i < n_row && k->n_seen < k->n_row; i++) {
            size_t row = k->n_seen++;
            if (row >= t->n_skip) compare(t, k, k->x + row * n_col, data + i * ld);
        }
        return;
    }
    if (!k) k = make(t, layer, name, n_col);
    if (!k || k->n_row + n_row > t->max_row) {
        t->failed = true;
        return;
    }
    for (size_t i = 0; i < n_row; i++)
        memcpy(k->x + k->n_row++ * n_col, data + i * ld, n_col * sizeof *k->x);
}

lg_status lg_taps_next(lg_taps *t, size_t n_skip, lg_err *err) {
    t->n_skip = n_skip;
    for (size_t i = 0; i < t->n_kept; i++) t->kept[i].n_row = t->kept[i].n_seen = 0;
    return t->failed ? LG_FAIL(err, LG_E_NOMEM, "no memory for intermediates") : LG_OK;
}

/* ---- the tables ---- */

static void print_sums(FILE *to, const char *name, const sums *s) {
    double n = s->n ? (double)s->n : 1;
    fprintf(to, "  %-24s %9.3g %9.3g %9.3g %9.2g\n", name, s->worst, s->sum / n, s->scale / n,
            s->scale > 0 ? s->sum / s->scale : 0.0);
}

static void print_head(FILE *to, const char *what) {
    fprintf(to, "%-26s %9s %9s %9s %9s\n", what, "max", "mean", "size", "mean/size");
}

void lg_taps_print(const lg_taps *t, FILE *to) {
    char name[32];
    fprintf(to, "|difference| from the reference, size: mean |reference|\n");
    print_head(to, "residual stream");
    for (uint32_t l = 0; l <= t->cfg->n_layer; l++) {
        snprintf(name, sizeof name, "layer %u", l - 1);
        print_sums(to, l ? name : "embedding", &t->layer[l]);
    }
    if (!t->all) return;
    print_head(to, "operation, all layers");
    for (size_t i = 0; i < N_OPERATION; i++)
        if (t->op[i].n) print_sums(to, operations[i].label, &t->op[i]);
    if (t->n_choice)
        fprintf(to, "  chosen experts           %.3g %% are not the reference's\n",
                100.0 * (double)t->n_other / (double)t->n_choice);
}
