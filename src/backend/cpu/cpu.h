/* cpu.h - the map of src/backend/cpu: one step of the model on the processor.
 *
 *   cpu.c    plan, open, close; one step: embedding, the walk over the layers, what a slot holds
 *   stage.c  parallel regions: matrix products cut into tasks, residual + norm by rows
 *   quant.c  input rows as integers, where the weights are blocks of them
 *   attn.c   gated attention over KV pages
 *   gdn.c    Gated DeltaNet over state slots
 *   moe.c    router, grouped experts, shared expert, combination; the dense MLP
 *   moe_group.c  the same when experts are divided over ranks
 *   spread.c  the mixers of a sequence whose rows are divided over ranks
 *   slice.c  few rows of one rank, to which all ranks add slices of every product
 *   snap.c   snapshots of slots, copies of pages
 *   head.c   final norm, head and sampling of the output rows
 *
 * A step is a chain of stages; a stage is one parallel region on the pool, and all its tasks are independent.  Which
 * thread runs a task and where rows are cut never changes a bit (kern.h, THE RULE).  Stages below LG_CPU_REGION_MACS of
 * work run on the caller: waking the pool would cost more.
 * Equations and the order of every sum: docs/MODEL.md.
 * Memory: page pool, slot pool and step scratch, taken at open; a step allocates nothing.  The pools are never cleared:
 * what a sequence has not written is not read.  Test: tests/unit/test_golden.c, tests/unit/test_exact.c */
#ifndef LG_BACKEND_CPU_CPU_H
#define LG_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "base/clock.h"
#include "base/mem.h"

#define LG_CPU_REGION_MACS 250000 /* multiply-adds below which a stage stays on the caller */
#define LG_CPU_ROW_BLK     64     /* rows of one matrix product task */
#define LG_CPU_ATTN_BLK    16     /* query tokens of one attention task */
#define LG_CPU_SPLIT_PAGES 16     /* pages x tokens of one attention window, per thread */
#define LG_CPU_SPLIT_FROM  16     /* pages from which a block of rows may be divided by pages */
/* Of a value head's recurrence, what each part of its columns repeats: keys side by side, their dots, decays (bench_kern =gdn). */
#define LG_CPU_GDN_REPEATED (1.0 / 6)

/* Where things lie inside a page, in bytes, and inside a slot, in floats. */
typedef struct lg_cpu_layout {
    uint32_t n_attn, n_gdn;     /* layers of each kind */
    uint32_t idx[LG_MAX_LAYER]; /* layer -> its number among the layers of its kind */
    size_t kv;                  /* part of one KV head in one page: lg_kv_bytes */
    size_t page;                /* one page: [n_attn][n_kv_head] of that */
    size_t s, open_k, open_d, open_g, conv; /* offsets inside one layer of a slot */
    size_t gdn;                             /* one layer of a slot */
    size_t slot;                            /* one slot: [n_gdn] of that */
} lg_cpu_layout;

/* Input rows x [n_row][n_in] of some products as integers, in the forms that the weights' types want. */
typedef struct lg_cpu_quant {
    const float *x;
    uint32_t n_row, n_in;
    bool made[2];
    lg_qrows form[2]; /* groups of 32 and of 256 */
} lg_cpu_quant;

/* One matrix product of a stage: y = x W, or with w2 a gated pair y = silu(x W) * (x W2), where y2 is working memory of
 * y's shape.  Rows as in lg_kern.gemm; y row r is row r. */
typedef struct lg_cpu_gemm {
    const lg_mat *w, *w2;
    const float *x;
    size_t ld_x;
    const uint32_t *row_idx;
    uint32_t n_row;
    float *y, *y2;
    size_t ld_y;
    bool sliced;              /* of w and w2 only these panels, maybe none */
    uint32_t panel0, n_panel; /* else all */
    const lg_cpu_quant *q;    /* set by lg_cpu_quant_jobs: x lies in its rows */
    /* the cut of each memory node's share, filled by lg_cpu_gemm_run */
    uint32_t task0, n_row_blk, n_panel_task;
} lg_cpu_gemm;

/* Rows sorted by expert, and where their products go. */
typedef struct lg_cpu_sorted {
    const uint32_t *first; /* [n_expert + 1] first sorted row of each expert */
    const uint32_t *row;   /* [first[n_expert]] row of x */
    const float *x;        /* [..][n_embd] */
    float *h, *h2;         /* [first[n_expert]][n_ff_expert] */
    float *out;            /* [first[n_expert]][n_embd] */
} lg_cpu_sorted;

/* A sequence that is divided over ranks.  Rows of all ranks of it lie in the GDN arrays from row max_tok on. */
typedef struct lg_cpu_spread {
    lg_spread to;
    uint8_t
        *page; /* [pages of n_spread][lay.page] what this rank has of another rank's sequence */
    float *slot;       /* [lay.slot] and its states: of own heads only */
    float *snap;       /* [LG_SPREAD_MAX_SAVE][lay.gdn] */
    size_t head_words; /* of a key head's rows before the convolution, and of its outputs */
    size_t out_words;
    uint32_t *rows,
        *whole; /* [N][n_k_head][head_words], [N][own heads][head_words]; also [N][keys and values] */
    size_t state_words;  /* of a key head's part of one layer of a slot */
    uint32_t *deal;      /* [n_k_head][state_words] */
    uint32_t *home;      /* [n_k_head][1 + LG_SPREAD_MAX_SAVE][state_words] */
    uint32_t home_layer; /* whose states are on their way home */
} lg_cpu_spread;

/* Few rows of one rank. */
typedef struct lg_cpu_slice {
    lg_slice to;
    uint32_t *buf; /* [n_word] what was collected */
    size_t n_word;
    uint32_t *pair; /* [LG_SLICE_ROWS][k] word of buf at which each product row begins */
} lg_cpu_slice;

/* Step scratch.  N = max_tok (of the GDN arrays 2 max_tok with opt.n_spread), S = max_seq, O = max_out, T = threads; see lg_cpu_carve. */
typedef struct lg_cpu_scratch {
    float *x;          /* [N][n_embd] residual stream */
    float *xn;         /* [N][n_embd] normed rows */
    float *mix;        /* [N][n_embd] output of mixer or MLP */
    lg_cpu_quant xn_q; /* xn as integers */
    lg_cpu_quant
        mid_q; /* and the rows that go into output, down and head products, one after the other */
    float *cos, *sin;   /* [N][n_rot / 2] */
    uint32_t *pos;      /* [N] position of each row */
    uint32_t *row_seq;  /* [N] sequence of each row */
    uint32_t *out_row;  /* [O] rows that give logits */
    uint32_t *seq_out;  /* [S] logits row that each sequence samples from */
    uint32_t *seq_task; /* [S + 1] attention tasks before each sequence */
    /* attention; per KV head, so that its query rows are evenly spaced */
    float *qg, *k, *v;  /* [N][n_head * 2 * d], [N][n_kv_head * d] */
    float *q;           /* [n_kv_head][N * group][d] normed and rotated */
    float *m, *l, *acc; /* [n_kv_head][N * group] and the same times d */
    float *gated;       /* [N][n_head * d] */
    float *part_m, *part_l,
        *part_acc;   /* [2][T * LG_CPU_SPLIT_PAGES][n_head], and times d: pages alone */
    uint32_t *n_see; /* [T][LG_CPU_ATTN_BLK * group] */
    /* GDN */
    float *qkv;   /* [N][conv_dim] before the convolution */
    float *z, *y; /* [N][n_v_head * d_v] */
    /* Heads one after the other, the rows of each side by side: those of channels from c on begin at n_gdn * c. */
    float *u;                /* [heads of q, k, v][n_gdn][width] after the convolution */
    float *qk;               /* [2 * n_k_head][n_gdn][d_k] normalised */
    float *core;             /* [n_v_head][n_gdn][d_v] */
    size_t n_gdn;            /* N */
    float *b, *a, *g, *beta; /* [N][n_v_head] */
    float *gdn;              /* [T][gdn_ld] scratch of gdn_rows */
    size_t gdn_ld;
    /* MLP */
    float *logit;         /* [N][n_expert] */
    uint32_t *top_id;     /* [N][k] best first */
    float *top_w;         /* [N][k] */
    uint32_t *first;      /* [n_expert + 1] first sorted row of each expert */
    uint32_t *sorted_tok; /* [N * k] rows by expert */
    float *sorted_w;      /* [N * k] */
    uint32_t *tok_at;     /* [N][k] places of a row among the sorted, ascending */
    float *row_w;         /* [N][k] and the weights in this order */
    uint32_t *n_at;       /* [N] places filled */
    float *h, *h2;        /* [N * k][n_ff_expert], dense: [N][n_ff] */
    float *eo;            /* [N * k][n_embd] */
    float *sh, *sh2, *so; /* shared expert: [N][n_ff_shared] twice, [N][n_embd] */
    float *sg;            /* [N] gate of the shared expert, before its sigmoid */
    lg_cpu_spread spread; /* with opt.n_spread */
    lg_cpu_slice slice;   /* with lg_slice_rows */
    lg_exchange ex;       /* with opt.dist */
    lg_cpu_quant in_q;    /* with opt.dist: ex.in as integers */
    lg_cpu_gemm *job;     /* [2 * n_expert + 8] */
    /* head */
    float *xo;            /* [O][n_embd] */
    float *logits;        /* [O][ld_logits] */
    uint8_t *sample_work; /* [T][sample_ld] bytes */
    size_t sample_ld;
    float *trace; /* only with opt.trace: [N][widest traced row] */
} lg_cpu_scratch;

struct lg_backend {
    const lg_weights *w; /* borrowed */
    const lg_config *cfg;
    const lg_kern *kern;
    lg_pool *pool; /* borrowed */
    int n_thread;
    uint32_t split_from; /* pages from which a block's attention may be divided by pages */
    uint32_t
        split_step; /* pages x tokens attended before they are merged; at least LG_CPU_ATTN_BLK */
    uint32_t gdn_parts; /* of each value head, in every step; 0: where it saves time */
    bool exact;         /* products of block types by floats */
    lg_backend_opt opt;
    lg_cpu_layout lay;
    uint8_t *page; /* [n_page][lay.page], owned */
    float *slot;   /* [n_slot][lay.slot], owned */
    float *snap;   /* [n_snap][lay.slot], owned: slots kept aside */
    void *block;   /* owned; scratch points into it */
    lg_cpu_scratch s;
    const lg_batch *batch; /* of the running step */
    uint32_t n_out;
    size_t ld_logits;
};

/* ---- cpu.c ---- */

void lg_cpu_layout_of(const lg_config *c, lg_dtype kv, lg_cpu_layout *lay);

/* Part of KV head h of the attention layer `layer` in page `page` of the pool (lg_kv_part); from n_page on: of a divided sequence. */
static inline void *lg_cpu_kv(const lg_backend *be, uint32_t page, uint32_t layer, uint32_t h) {
    size_t at = (size_t)be->lay.idx[layer] * be->cfg->n_kv_head + h;
    const uint32_t n = be->opt.n_page;
    uint8_t *p = page < n ? be->page + page * be->lay.page
                          : be->s.spread.page + (page - n) * be->lay.page;
    return p + at * be->lay.kv;
}

/* State of GDN layer `layer` in a slot; n_slot: of a divided sequence. */
static inline float *lg_cpu_slot(const lg_backend *be, uint32_t slot, uint32_t layer) {
    float *p = slot < be->opt.n_slot ? be->slot + slot * be->lay.slot : be->s.spread.slot;
    return p + be->lay.idx[layer] * be->lay.gdn;
}

/* The same place in a snapshot; from n_snap on: of a divided sequence. */
static inline float *lg_cpu_snap(const lg_backend *be, uint32_t snap, uint32_t layer) {
    const uint32_t n = be->opt.n_snap;
    if (snap >= n) return be->s.spread.snap + (snap - n) * be->lay.gdn;
    return be->snap + snap * be->lay.slot + be->lay.idx[layer] * be->lay.gdn;
}

/* Hand an intermediate to the tracer, when there is one. */
static inline void lg_cpu_trace(const lg_backend *be, int layer, const char *name,
                                const float *data, size_t n_row, size_t n_col, size_t ld) {
    if (be->opt.trace) be->opt.trace(be->opt.trace_ctx, layer, name, data, n_row, n_col, ld);
}

/* What ran since the last mark was `op`. */
static inline void lg_cpu_mark(const lg_backend *be, lg_op op) {
    lg_profile *p = be->opt.profile;
    if (!p) return;
    uint64_t now = lg_clock_ns();
    p->ns[op] += now - p->last_ns;
    p->last_ns = now;
}

/* ---- stage.c ---- */

/* Run n_task tasks: on the pool, or on the caller when `macs`, the work of all of them, is small. */
void lg_cpu_run(lg_backend *be, size_t n_task, uint64_t macs, lg_pool_body *body, void *ctx);

/* The same for tasks of equal work that read memory one after the other (lg_pool_run_streams). */
void lg_cpu_run_streams(lg_backend *be, size_t n_task, uint64_t macs, lg_pool_body *body,
                        void *ctx);

/* One region over all tiles of n_job products, which are independent of each other. */
void lg_cpu_gemm_run(lg_backend *be, lg_cpu_gemm *job, uint32_t n_job);

/* Sum n_row rows into the residual stream and norm them: x += mix, then xn = norm(x) with weights `norm` (NULL: no norm).  With
 * shared_gate also sg = xn . shared_gate. */
void lg_cpu_residual(lg_backend *be, const float *norm, const float *shared_gate);

/* ---- snap.c ---- */

/* Copy what belongs to key head kh (with its value heads) of one layer of a slot that holds n_tok tokens. */
void lg_cpu_snap_head(const lg_backend *be, uint32_t kh, uint32_t n_tok, const float *from,
                      float *to);

/* The same as words that follow each other, and back; returns how many.  words NULL counts. */
size_t lg_cpu_snap_pack(const lg_backend *be, uint32_t kh, uint32_t n_tok, const float *from,
                        uint32_t *words);
void lg_cpu_snap_unpack(const lg_backend *be, uint32_t kh, uint32_t n_tok, float *to,
                        const uint32_t *words);

/* ---- quant.c ---- */

/* Take memory for n_float elements in both forms. */
void lg_cpu_quant_carve(lg_arena *a, size_t n_float, lg_cpu_quant *q);

/* Declare the rows x [n_row][n_in]: nothing is made of them yet. */
void lg_cpu_quant_start(lg_cpu_quant *q, const float *x, uint32_t n_row, uint32_t n_in);

/* Prepare jobs whose x all lie in the rows of q: those of integer types will multiply integers. */
void lg_cpu_quant_jobs(lg_backend *be, lg_cpu_quant *q, lg_cpu_gemm *job, uint32_t n_job);

/* The integers from row `row` of a job on, for weights w; false when that product reads floats. */
bool lg_cpu_quant_rows(const lg_cpu_gemm *job, const lg_mat *w, uint32_t row, lg_qrows *x);

/* ---- moe.c: what alone and group share ---- */

/* Gate and up of the shared expert and the router, then the experts of each row: s.sh, s.top_id, s.top_w. */
void lg_cpu_moe_route(lg_backend *be, uint32_t layer);

/* The products of the experts that have rows: gate and up (down = false) or down.  Returns how many. */
uint32_t lg_cpu_moe_jobs(const lg_backend *be, const lg_layer_w *w, const lg_cpu_sorted *at,
                         bool down, lg_cpu_gemm *job);

/* The shared expert's down product. */
lg_cpu_gemm lg_cpu_moe_shared(const lg_backend *be, const lg_layer_w *w);

/* Its gate and up product. */
lg_cpu_gemm lg_cpu_moe_gate_up(const lg_backend *be, const lg_layer_w *w);

/* ex.in rows through the experts held here: ex.out. */
void lg_cpu_moe_experts(lg_backend *be, const lg_layer_w *w);

/* s.mix = sum of each row's experts in ascending id, that at out + at[r * k + j] * ld_out times weight[r * ld_weight + j], then the
 * shared expert. */
typedef struct lg_cpu_combine {
    const float *out; /* NULL: s.mix is that sum already */
    size_t ld_out;
    const uint32_t *at;
    const float *weight;
    size_t ld_weight;
} lg_cpu_combine;
void lg_cpu_moe_combine(lg_backend *be, uint32_t layer, const lg_cpu_combine *from);

/* ---- one function a stage group; each reads s.xn and writes s.mix ---- */

void lg_cpu_attn(lg_backend *be, uint32_t layer);
/* Of it, the part between the products: the step's queries (s.q) look at their pages, and s.gated is filled. */
void lg_cpu_attn_pages(lg_backend *be, uint32_t layer);
void lg_cpu_gdn(lg_backend *be, uint32_t layer);
/* Of it, the part between the products: from s.qkv, s.z, s.b and s.a to s.y, and the slots go on. */
void lg_cpu_gdn_heads(lg_backend *be, uint32_t layer);
/* The same for some key heads of one sequence, without the gated norm: from qkv, b and a to core. */
void lg_cpu_gdn_part(lg_backend *be, uint32_t layer, const lg_batch_seq *seq, uint32_t head0,
                     uint32_t n_head);
/* In how many parts of its columns each of n_head value heads of a prompt is divided so that n_thread threads are done soonest; all a head's
 * rows are one thread's.  *time: how long that takes, in times of one head on one thread. */
uint32_t lg_cpu_gdn_parts(uint32_t n_head, int n_thread, uint32_t dv, double *time);
/* The same time for a prompt that is not divided: also its key heads may be tasks. */
double lg_cpu_gdn_time(uint32_t n_k_head, uint32_t n_v_head, int n_thread, uint32_t dv);
/* The gated norm of the value heads of row r. */
void lg_cpu_gdn_norm(const lg_backend *be, uint32_t layer, size_t r);

/* ---- spread.c: the divided sequence of a step ---- */

/* Take memory; before it lay and opt must be set.  A counting arena counts. */
void lg_cpu_spread_carve(lg_arena *a, const lg_config *c, const lg_backend_opt *opt,
                         lg_cpu_spread *s);
void lg_cpu_spread_begin(lg_backend *be);
/* What the ranks have before the rows of the step are stored, then all rows after: s.k and s.v of the own ones start, all are stored. */
void lg_cpu_spread_pages(lg_backend *be, uint32_t layer);
void lg_cpu_spread_keys_start(lg_backend *be, uint32_t layer);
void lg_cpu_spread_keys(lg_backend *be, uint32_t layer);
/* s.qkv, s.b and s.a of the own part start; from them and s.z to s.y. */
void lg_cpu_spread_gdn_start(lg_backend *be, uint32_t layer);
void lg_cpu_spread_gdn(lg_backend *be, uint32_t layer);
/* States that are still on their way. */
void lg_cpu_spread_end(lg_backend *be);

/* ---- slice.c: in steps with batch.slice each rank has its slice of what all ranks have ---- */

/* A counting arena counts. */
void lg_cpu_slice_carve(lg_arena *a, const lg_config *c, const lg_backend_opt *opt,
                        lg_cpu_slice *s);
/* Jobs become this rank's slices of them. */
void lg_cpu_slice_cut(const lg_backend *be, lg_cpu_gemm *job, uint32_t n_job);
/* lg_cpu_gemm_run; in a sliced step y is then whole at the owner, or at all ranks. */
void lg_cpu_slice_gemm(lg_backend *be, uint32_t layer, lg_cpu_gemm *job, uint32_t n_job,
                       bool all);
/* In a sliced step all ranks get the owner's rows [n_tok][n_col]. */
void lg_cpu_slice_rows(lg_backend *be, uint32_t layer, float *rows, size_t n_col);
/* The MLP of such a step: s.mix on all ranks. */
void lg_cpu_slice_moe(lg_backend *be, uint32_t layer);

void lg_cpu_moe(lg_backend *be, uint32_t layer);
void lg_cpu_moe_group(lg_backend *be, uint32_t layer);
void lg_cpu_dense(lg_backend *be, uint32_t layer);
void lg_cpu_head(lg_backend *be, lg_step_out *out);

#endif
