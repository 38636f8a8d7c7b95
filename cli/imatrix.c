/* imatrix.c - `lignum imatrix MODEL TEXT OUT`: how strongly each input channel of each matrix is driven by a text.
 *
 * In:  a model and a text.   Out: a GGUF file as llama.cpp's imatrix tool writes it: NAME.in_sum2, sums of squared inputs, and
 * NAME.counts, how many rows were summed, by expert; for `lignum quantize --imatrix` or llama-quantize.
 * The text is cut into chunks as by `lignum perplexity`; products are by floats.  Names and the order of value heads are those
 * of GGUF files also when MODEL is a folder.
 * Memory: 8 bytes an input channel, all experts.  Test: tests/py/quantize.py */
#include "cli.h"
#include "score.h"

#include "model/file/gguf_write.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Measure how much each input channel of a model's matrices matters for a "
    "text.\n"
    "\n"
    "usage: lignum imatrix MODEL TEXTFILE OUT [OPTIONS]\n"
    "\n"
    "OUT is for lignum quantize --imatrix; its format is that of llama.cpp's "
    "imatrix tool (GGUF).\n"
    "\n"
    "options:\n"
    "  --ctx N       tokens in a chunk (default 512)\n"
    "  --chunks N    stop after so many (default: all)\n"
    "  --threads N   default: one a core\n"
    "  --help        print this\n";

/* A matrix, or all experts' matrices of one name. */
typedef struct entry {
    char name[64];
    uint32_t n_in, n_expert;
    double *sum;    /* [n_expert][n_in] owned */
    float *count;   /* [n_expert] owned */
    bool v_columns; /* the columns are value heads */
} entry;

/* Which entry a matrix belongs to. */
typedef struct place {
    const lg_mat *w;
    uint32_t entry, expert;
} place;

typedef struct table {
    const lg_config *c;
    entry *entry; /* [n_entry] owned */
    place *place; /* [n_place] owned, sorted by w */
    size_t n_entry, n_place;
    bool failed; /* out of memory */
} table;

typedef struct options {
    const char *model, *text, *out;
    uint64_t n_ctx, n_chunk;
    int n_thread;
} options;

/* ---- the table ---- */

static void add(table *t, uint32_t layer, const char *name, const lg_mat *w, uint32_t n_expert,
                size_t stride) {
    entry *e = &t->entry[t->n_entry];
    if (layer == UINT32_MAX)
        snprintf(e->name, sizeof e->name, "%.40s", name);
    else
        snprintf(e->name, sizeof e->name, "blk.%u.%.40s", layer, name);
    e->n_in = w->n_in;
    e->n_expert = n_expert;
    e->sum = lg_mem_calloc((size_t)n_expert * w->n_in, sizeof *e->sum);
    e->count = lg_mem_calloc(n_expert, sizeof *e->count);
    if (!e->sum || !e->count) t->failed = true;
    e->v_columns = strcmp(name, "ssm_out.weight") == 0;
    for (uint32_t x = 0; x < n_expert; x++)
        t->place[t->n_place++] =
            (place){(const lg_mat *)(const void *)((const char *)w + x * stride),
                    (uint32_t)t->n_entry, x};
    t->n_entry++;
}

static void add_layer(table *t, const lg_weights *w, uint32_t i) {
    const lg_layer_w *l = &w->layer[i];
    uint32_t n = t->c->n_expert;
    if (l->kind == LG_LAYER_ATTN) {
        add(t, i, "attn_q.weight", &l->q, 1, 0);
        add(t, i, "attn_k.weight", &l->k, 1, 0);
        add(t, i, "attn_v.weight", &l->v, 1, 0);
        add(t, i, "attn_output.weight", &l->o, 1, 0);
    } else {
        add(t, i, "attn_qkv.weight", &l->qkv, 1, 0);
        add(t, i, "attn_gate.weight", &l->z, 1, 0);
        add(t, i, "ssm_alpha.weight", &l->a, 1, 0);
        add(t, i, "ssm_beta.weight", &l->b, 1, 0);
        add(t, i, "ssm_out.weight", &l->out, 1, 0);
    }
    if (n == 0) {
        add(t, i, "ffn_gate.weight", &l->mlp.gate, 1, 0);
        add(t, i, "ffn_up.weight", &l->mlp.up, 1, 0);
        add(t, i, "ffn_down.weight", &l->mlp.down, 1, 0);
        return;
    }
    add(t, i, "ffn_gate_exps.weight", &l->expert[0].gate, n, sizeof l->expert[0]);
    add(t, i, "ffn_up_exps.weight", &l->expert[0].up, n, sizeof l->expert[0]);
    add(t, i, "ffn_down_exps.weight", &l->expert[0].down, n, sizeof l->expert[0]);
    add(t, i, "ffn_gate_shexp.weight", &l->shared.gate, 1, 0);
    add(t, i, "ffn_up_shexp.weight", &l->shared.up, 1, 0);
    add(t, i, "ffn_down_shexp.weight", &l->shared.down, 1, 0);
}

static int by_matrix(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const place *)a)->w, y = (uintptr_t)((const place *)b)->w;
    return (x > y) - (x < y);
}

static lg_status table_init(table *t, const lg_weights *w, lg_err *err) {
    const lg_config *c = &w->cfg;
    *t = (table){.c = c};
    t->entry = lg_mem_calloc((size_t)c->n_layer * 11 + 1, sizeof *t->entry);
    t->place =
        lg_mem_calloc((size_t)c->n_layer * (8 + 3 * (size_t)c->n_expert) + 1, sizeof *t->place);
    if (t->entry && t->place) {
        for (uint32_t i = 0; i < c->n_layer; i++) add_layer(t, w, i);
        if (!c->tied) add(t, UINT32_MAX, "output.weight", &w->head, 1, 0);
        qsort(t->place, t->n_place, sizeof *t->place, by_matrix);
        if (!t->failed) return LG_OK;
    }
    return LG_FAIL(err, LG_E_NOMEM, "no memory for the sums");
}

static void table_fini(table *t) {
    for (size_t i = 0; i < t->n_entry; i++) {
        lg_mem_free(t->entry[i].sum);
        lg_mem_free(t->entry[i].count);
    }
    lg_mem_free(t->entry);
    lg_mem_free(t->place);
}

/* A product of the backend: rows of x times w. */
static void observe(void *ctx, const lg_mat *w, const float *x, size_t ld_x,
                    const uint32_t *row_idx, uint32_t n_row) {
    table *t = ctx;
    place key = {.w = w};
    const place *p = bsearch(&key, t->place, t->n_place, sizeof key, by_matrix);
    if (!p) return;
    entry *e = &t->entry[p->entry];
    double *sum = e->sum + (size_t)p->expert * e->n_in;
    for (uint32_t r = 0; r < n_row; r++) {
        const float *row = x + (row_idx ? row_idx[r] : r) * ld_x;
        for (uint32_t i = 0; i < e->n_in; i++) sum[i] += (double)row[i] * (double)row[i];
    }
    e->count[p->expert] += (float)n_row;
}

/* ---- the file ---- */

/* Column i of the file is column from(i) of the model. */
static uint32_t from(const table *t, const entry *e, uint32_t i) {
    const lg_config *c = t->c;
    if (!e->v_columns || c->v_head_tiled) return i;
    uint32_t p = i / c->d_v, r = c->n_v_head / c->n_k_head;
    return (p % c->n_k_head * r + p / c->n_k_head) * c->d_v + i % c->d_v;
}

static lg_status write_entry(lg_gguf_write *w, const table *t, const entry *e, lg_err *err) {
    size_t n = (size_t)e->n_expert * e->n_in;
    float *y = lg_mem_calloc(n, sizeof *y);
    if (!y) return LG_FAIL(err, LG_E_NOMEM, "no memory for a matrix");
    for (uint32_t x = 0; x < e->n_expert; x++)
        for (uint32_t i = 0; i < e->n_in; i++)
            y[(size_t)x * e->n_in + i] = (float)e->sum[(size_t)x * e->n_in + from(t, e, i)];
    lg_status st = lg_gguf_write_data(w, y, n * sizeof *y, err);
    lg_mem_free(y);
    if (st == LG_OK) st = lg_gguf_write_data(w, e->count, e->n_expert * sizeof *e->count, err);
    return st;
}

static lg_status write_file(const options *o, const table *t, uint64_t n_chunk, lg_err *err) {
    lg_gguf_write *w;
    lg_buf name = {0};
    LG_TRY(lg_gguf_write_open(o->out, &w, err));
    lg_gguf_write_put_text(&name, o->text, strlen(o->text));
    lg_gguf_write_text(w, "general.type", "imatrix", 7);
    lg_gguf_write_array(w, "imatrix.datasets", LG_GGUF_STR, 1, name.data, name.len_bytes);
    lg_gguf_write_u32(w, "imatrix.chunk_count", (uint32_t)n_chunk);
    lg_gguf_write_u32(w, "imatrix.chunk_size", (uint32_t)o->n_ctx);
    for (size_t i = 0; i < t->n_entry; i++) {
        const entry *e = &t->entry[i];
        char text[96];
        snprintf(text, sizeof text, "%s.in_sum2", e->name);
        lg_gguf_write_tensor(w, text, LG_F32, 2, (uint64_t[]){e->n_in, e->n_expert});
        snprintf(text, sizeof text, "%s.counts", e->name);
        lg_gguf_write_tensor(w, text, LG_F32, 2, (uint64_t[]){1, e->n_expert});
    }
    lg_status st = lg_gguf_write_start(w, err);
    for (size_t i = 0; i < t->n_entry && st == LG_OK; i++)
        st = write_entry(w, t, &t->entry[i], err);
    if (st == LG_OK) st = lg_gguf_write_finish(&w, err);
    lg_gguf_write_close(&w);
    lg_buf_fini(&name);
    return st;
}

/* ---- all ---- */

static lg_status run_chunks(const options *o, lg_score *s, const uint32_t *id, uint64_t n_chunk,
                            lg_err *err) {
    for (uint64_t k = 0; k < n_chunk; k++) {
        double sum, sq;
        LG_TRY(lg_score_nll(s, id + k * o->n_ctx, (uint32_t)o->n_ctx, 0, &sum, &sq, err));
        fprintf(stderr, "chunk %llu of %llu: %.4f nats a token\n", (unsigned long long)k + 1,
                (unsigned long long)n_chunk, sum / (double)(o->n_ctx - 1));
    }
    return LG_OK;
}

static lg_status collect(const options *o, lg_err *err) {
    lg_pool *pool = NULL;
    lg_weights *w = NULL;
    lg_score s = {0};
    table t;
    uint32_t *id = NULL;
    size_t n = 0;
    lg_status st;
    memset(&t, 0, sizeof t);
    LG_TRY_GOTO(lg_score_read(o->model, o->text, &id, &n, err), st, done);
    uint64_t n_chunk = n / o->n_ctx;
    if (o->n_chunk && n_chunk > o->n_chunk) n_chunk = o->n_chunk;
    if (n_chunk == 0) {
        st = LG_FAIL(err, LG_E_ARG, "%s: found %zu tokens, expected at least %llu (--ctx)",
                     o->text, n, (unsigned long long)o->n_ctx);
        goto done;
    }
    LG_TRY_GOTO(lg_pool_open(o->n_thread, &pool, err), st, done);
    LG_TRY_GOTO(lg_weights_open(o->model, pool, NULL, NULL, &w, err), st, done);
    LG_TRY_GOTO(lg_score_check(w, id, n, o->text, err), st, done);
    LG_TRY_GOTO(table_init(&t, w, err), st, done);
    LG_TRY_GOTO(lg_score_init_observed(&s, w, pool, (uint32_t)o->n_ctx, observe, &t, err), st,
                done);
    LG_TRY_GOTO(run_chunks(o, &s, id, n_chunk, err), st, done);
    LG_TRY_GOTO(write_file(o, &t, n_chunk, err), st, done);
    printf("%zu matrices, %llu tokens\n", t.n_entry, (unsigned long long)(n_chunk * o->n_ctx));
done:
    lg_score_fini(&s);
    table_fini(&t);
    lg_weights_close(&w);
    lg_pool_close(&pool);
    lg_free(id);
    return st;
}

/* 0: go on; else the exit status and 1. */
static int read_options(int argc, char **argv, options *o) {
    enum { CTX = 256, CHUNKS, THREADS, HELP };
    static const struct option known[] = {{"ctx", required_argument, NULL, CTX},
                                          {"chunks", required_argument, NULL, CHUNKS},
                                          {"threads", required_argument, NULL, THREADS},
                                          {"help", no_argument, NULL, HELP},
                                          {NULL, 0, NULL, 0}};
    bool ok = true;
    int c;
    while (ok && (c = getopt_long(argc, argv, "", known, NULL)) != -1) switch (c) {
        case CTX: ok = lg_option_u64(argv[0], "--ctx", optarg, 4, 1 << 20, &o->n_ctx); break;
        case CHUNKS:
            ok = lg_option_u64(argv[0], "--chunks", optarg, 1, 1 << 30, &o->n_chunk);
            break;
        case THREADS:
            ok = lg_option_int(argv[0], "--threads", optarg, 1, 1024, &o->n_thread);
            break;
        case HELP: fputs(help, stdout); return 1;
        default: ok = false;
        }
    if (ok && argc - optind != 3) {
        fprintf(stderr, "%s: expected MODEL, TEXTFILE and OUT\n", argv[0]);
        ok = false;
    }
    if (!ok) return 1 + lg_option_usage(argv[0]);
    o->model = argv[optind];
    o->text = argv[optind + 1];
    o->out = argv[optind + 2];
    return 0;
}

int lg_imatrix_main(int argc, char **argv) {
    options o = {.n_ctx = 512};
    lg_err err = {0};
    int end = read_options(argc, argv, &o);
    if (end) return end - 1;
    lg_status st = collect(&o, &err);
    if (st == LG_OK) return 0;
    fprintf(stderr, "%s: %s: %s\n", argv[0], lg_status_name(st), err.msg);
    return 1;
}
