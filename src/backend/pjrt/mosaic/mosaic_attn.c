/* mosaic_attn.c - attention of many sequences over pages of keys and values, as a Mosaic kernel.
 *
 * One grid step is one tile: a few rows of one sequence with all heads.  Keys and values come in blocks of four pages (256
 * positions), which the kernel copies itself, three blocks deep: while one is computed the next two are on their way, across
 * tiles too, so a short sequence does not leave the memory idle.  Which blocks there are, and in what order, is a list that is
 * made once in a step, for all layers; of a sequence's last block only the pages that it has are copied.
 * A block's scores, their maximum and their sum bring the tile's result forward (softmax in one pass).
 * Pages hold [positions][heads side by side], so a head is a band of lanes, and nothing is re-laid out on the way.
 * What no sequence has written may be anything, NaN too.  Scores of hidden positions are replaced; a value has to be finite for
 * its weight of zero to count, so the rest of a sequence's last page is set to zero in VMEM, and pages that were not copied hold
 * an earlier block's values, or the zeros that the first step stores.
 * Test: tests/unit/test_mosaic_attn.c */
#include "backend/pjrt/mosaic/mosaic_kern.h"

#define PAGE   LG_MOSAIC_ATTN_PAGE
#define BLOCK  LG_MOSAIC_ATTN_BLOCK /* positions of a block */
#define PAGES  (BLOCK / PAGE)
#define DEPTH  3u   /* blocks in VMEM */
#define PART   256u /* rows of a head's scores at once */
#define HIDDEN (-1e30f)

enum { FIRST, TILE_OF, SEQ, POS, SEE, LAYER, TABLE, N_FETCH };
enum { Q, KEY, VALUE, OUT };
enum { KEYS, VALUES, MAX, SUM, ACC, ARRIVED, N_SCRATCH };

bool lg_mosaic_attn_fits(const lg_mosaic_attn *a) {
    uint64_t smem =
        4 * (3 * (uint64_t)a->n_tile + a->n_entry + (uint64_t)a->n_seq * a->n_page_seq);
    if (!a->n_tile || !a->n_seq || !a->n_page_seq || !a->n_layer || !a->n_page || !a->n_kv ||
        !a->group || !a->rows || (a->rows & (a->rows - 1)) || a->d % 128 || !a->d)
        return false;
    uint32_t rows = a->rows * a->group;
    if ((rows > PART && rows % PART) || smem > 512 * 1024) return false;
    return a->act == LG_M_F32
               ? a->kv == LG_M_F32
               : a->act == LG_M_BF16 && (a->kv == LG_M_BF16 || a->kv == LG_M_E4M3);
}

void lg_mosaic_attn_shape(const lg_mosaic_attn *a, lg_mosaic_kernel *k) {
    uint32_t t = a->n_tile, rows = a->rows * a->group, w = a->n_kv * a->d;
    lg_mosaic_at z = lg_mosaic_zero_at(), i = lg_mosaic_grid_at(0);
    *k = (lg_mosaic_kernel){.name = "attention",
                            .n_grid = 1,
                            .grid = {t},
                            .n_fetch = N_FETCH,
                            .fetch = {t + 1, a->n_entry, t, t, t, 1, a->n_seq * a->n_page_seq},
                            .n_in = OUT,
                            .n_out = 1,
                            .whole = 1u << KEY | 1u << VALUE,
                            .n_scratch = N_SCRATCH};
    k->win[Q] = (lg_mosaic_window){.elem = a->act,
                                   .rank = 4,
                                   .array = {t, a->n_kv, rows, a->d},
                                   .block = {1, a->n_kv, rows, a->d},
                                   .at = {i, z, z, z}};
    k->win[OUT] = k->win[Q];
    k->win[OUT].elem = LG_M_F32;
    k->win[KEY] =
        (lg_mosaic_window){.elem = a->kv, .rank = 4, .array = {a->n_layer, a->n_page, PAGE, w}};
    k->win[VALUE] = k->win[KEY];
    k->scratch[KEYS] = lg_mosaic_vmem(a->kv, 3, (uint32_t[]){DEPTH * PAGES, PAGE, w});
    k->scratch[VALUES] = k->scratch[KEYS];
    k->scratch[MAX] = lg_mosaic_vmem(LG_M_F32, 3, (uint32_t[]){a->n_kv, rows, 128});
    k->scratch[SUM] = k->scratch[MAX];
    k->scratch[ACC] = lg_mosaic_vmem(LG_M_F32, 3, (uint32_t[]){a->n_kv, rows, a->d});
    k->scratch[ARRIVED] = lg_mosaic_semaphores(DEPTH);
    lg_mosaic_limit(k);
}

/* ---- Integers ---- */

static lg_mv at_i32(lg_mosaic *m, int fetch, lg_mv i) {
    return lg_mosaic_scalar(m, m->fetch[fetch], lg_mosaic_to(m, i, LG_M_INDEX));
}

static lg_mv i32(lg_mosaic *m, const char *op, lg_mv x, int32_t y) {
    return lg_mosaic_bin(m, op, x, lg_mosaic_i32(m, y));
}

static lg_mv least(lg_mosaic *m, lg_mv x, lg_mv y) {
    return lg_mosaic_bin(m, "arith.minsi", x, y);
}

/* ---- Blocks on their way ---- */

/* A block of the list: where its pages' numbers begin in the table, how many it has, its place among the three. */
typedef struct block {
    lg_mv first, pages, place, from; /* I32; from: its first position */
} block;

static block block_of(lg_mosaic *m, const lg_mosaic_attn *a, lg_mv e, lg_mv tile) {
    lg_mv nth = lg_mosaic_bin(m, "arith.subi", e, at_i32(m, FIRST, tile));
    lg_mv before = i32(m, "arith.muli", nth, PAGES);
    lg_mv has = i32(m, "arith.shrsi", i32(m, "arith.addi", at_i32(m, SEE, tile), PAGE - 1), 6);
    lg_mv row = i32(m, "arith.muli", at_i32(m, SEQ, tile), (int32_t)a->n_page_seq);
    return (block){
        .first = lg_mosaic_bin(m, "arith.addi", row, before),
        .pages = least(m, lg_mosaic_bin(m, "arith.subi", has, before), lg_mosaic_i32(m, PAGES)),
        .place = i32(m, "arith.remsi", e, DEPTH),
        .from = i32(m, "arith.muli", nth, BLOCK)};
}

/* Page j of a block's place in VMEM, and the pool's page `number`. */
static lg_mv page_at(lg_mosaic *m, int scratch, const block *b, lg_mv j) {
    lg_mv at = lg_mosaic_bin(m, "arith.addi", i32(m, "arith.muli", b->place, PAGES), j);
    return lg_mosaic_part(m, m->scratch[scratch], &at, 1);
}

static lg_mv pool_page(lg_mosaic *m, int window, lg_mv number) {
    lg_mv at[2] = {at_i32(m, LAYER, lg_mosaic_i32(m, 0)), number};
    return lg_mosaic_part(m, m->win[window], at, 2);
}

static void send(lg_mosaic *m, const lg_mosaic_attn *a, lg_mv e) {
    block b = block_of(m, a, e, at_i32(m, TILE_OF, e));
    lg_mv j = lg_mosaic_for(m, lg_mosaic_i32(m, 0), b.pages);
    lg_mv number = at_i32(m, TABLE, lg_mosaic_bin(m, "arith.addi", b.first, j));
    lg_mv sem = lg_mosaic_part(m, m->scratch[ARRIVED], &b.place, 1);
    lg_mosaic_copy(m, pool_page(m, KEY, number), page_at(m, KEYS, &b, j), sem);
    lg_mosaic_copy(m, pool_page(m, VALUE, number), page_at(m, VALUES, &b, j), sem);
    lg_mosaic_for_end(m);
}

static void receive(lg_mosaic *m, const block *b) {
    lg_mv zero = lg_mosaic_i32(m, 0), j = lg_mosaic_for(m, zero, b->pages);
    lg_mv sem = lg_mosaic_part(m, m->scratch[ARRIVED], &b->place, 1);
    lg_mosaic_wait(m, pool_page(m, KEY, zero), page_at(m, KEYS, b, j), sem);
    lg_mosaic_wait(m, pool_page(m, VALUE, zero), page_at(m, VALUES, b, j), sem);
    lg_mosaic_for_end(m);
}

/* ---- Values that are there ---- */

/* To F32 and back: what is narrower than BF16 goes through it. */
static lg_mv widen(lg_mosaic *m, lg_mv x) {
    if (x.type.elem == LG_M_E4M3) x = lg_mosaic_to(m, x, LG_M_BF16);
    return lg_mosaic_to(m, x, LG_M_F32);
}

static lg_mv narrow(lg_mosaic *m, lg_mv x, lg_mosaic_elem e) {
    if (e == LG_M_E4M3) x = lg_mosaic_to(m, x, LG_M_BF16);
    return lg_mosaic_to(m, x, e);
}

/* Values of one page [PAGE][w] by its number in VMEM (I32). */
static lg_mv load_page(lg_mosaic *m, lg_mv at, lg_mv z, uint32_t w) {
    lg_mv idx[3] = {lg_mosaic_to(m, at, LG_M_INDEX), z, z};
    lg_mv v = lg_mosaic_load(m, m->scratch[VALUES], idx, (uint32_t[]){1, PAGE, w});
    return lg_mosaic_matrix_of(m, v, PAGE, w);
}

static void store_page(lg_mosaic *m, lg_mv v, lg_mv at, lg_mv z, uint32_t w) {
    lg_mv idx[3] = {lg_mosaic_to(m, at, LG_M_INDEX), z, z};
    v = narrow(m, v, m->scratch[VALUES].type.elem);
    v = lg_mosaic_shape(m, v, 3, (uint32_t[]){1, PAGE, w});
    lg_mosaic_store(m, v, m->scratch[VALUES], idx);
}

static void clear_values(lg_mosaic *m, uint32_t w, lg_mv z) {
    lg_mv i = lg_mosaic_for(m, lg_mosaic_i32(m, 0), lg_mosaic_i32(m, DEPTH * PAGES));
    store_page(m, lg_mosaic_fill_f32(m, PAGE, w, 0.0f), i, z, w);
    lg_mosaic_for_end(m);
}

/* In the page where the sequence ends: zeros from position `see` on. */
static void clear_end(lg_mosaic *m, const block *b, lg_mv see, uint32_t w, lg_mv z) {
    lg_mv left =
        lg_mosaic_bin(m, "arith.subi", see, b->from); /* positions from the block's first on */
    lg_mosaic_if(m, lg_mosaic_cmp(m, 2, left, i32(m, "arith.muli", b->pages, PAGE)));
    lg_mv last = i32(m, "arith.subi", b->pages, 1);
    lg_mv at = lg_mosaic_bin(m, "arith.addi", i32(m, "arith.muli", b->place, PAGES), last);
    lg_mv n = lg_mosaic_bin(m, "arith.subi", left, i32(m, "arith.muli", last, PAGE));
    lg_mv there =
        lg_mosaic_cmp(m, 2, lg_mosaic_iota(m, PAGE, w, 0), lg_mosaic_spread(m, n, PAGE, w));
    lg_mv v = widen(m, load_page(m, at, z, w));
    store_page(m, lg_mosaic_select(m, there, v, lg_mosaic_fill_f32(m, PAGE, w, 0.0f)), at, z,
               w);
    lg_mosaic_if_end(m);
}

/* ---- A block's part of the result ---- */

/* Columns of x [rows][128], all the same, as [rows][cols]. */
static lg_mv widely(lg_mosaic *m, lg_mv x, uint32_t cols) {
    lg_mv part[LG_MOSAIC_ARGS];
    LG_ASSERT(cols % 128 == 0 && cols / 128 <= LG_MOSAIC_ARGS);
    for (uint32_t i = 0; i < cols / 128; i++) part[i] = x;
    return lg_mosaic_stack(m, part, cols / 128, 1);
}

/* Keys or values of head h of a block: [BLOCK][d]. */
static lg_mv band(lg_mosaic *m, const lg_mosaic_attn *a, int scratch, const block *b,
                  uint32_t h, lg_mv z) {
    lg_mv at[3] = {lg_mosaic_to(m, i32(m, "arith.muli", b->place, PAGES), LG_M_INDEX), z,
                   lg_mosaic_index(m, h * a->d)};
    lg_mv x = lg_mosaic_load(m, m->scratch[scratch], at, (uint32_t[]){PAGES, PAGE, a->d});
    x = lg_mosaic_matrix_of(m, x, BLOCK, a->d);
    return x.type.elem == a->act ? x : lg_mosaic_to(m, x, a->act);
}

/* The last position that each of `rows` rows from `row` (I32) on may see, for every position of a block: [rows][BLOCK]. */
static lg_mv limits(lg_mosaic *m, const lg_mosaic_attn *a, lg_mv tile, uint32_t rows) {
    lg_mv r = lg_mosaic_bin(m, "arith.andi", lg_mosaic_iota(m, rows, BLOCK, 0),
                            lg_mosaic_fill_i32(m, rows, BLOCK, (int32_t)a->rows - 1));
    lg_mv last = i32(m, "arith.subi", at_i32(m, SEE, tile), 1);
    r = lg_mosaic_bin(m, "arith.addi", r,
                      lg_mosaic_spread(m, at_i32(m, POS, tile), rows, BLOCK));
    return least(m, r, lg_mosaic_spread(m, last, rows, BLOCK));
}

/* Rows from `row` (index) on of head h. */
static void attend(lg_mosaic *m, const lg_mosaic_attn *a, const block *b, lg_mv tile,
                   uint32_t h, lg_mv row, uint32_t rows, lg_mv z) {
    lg_mv head = lg_mosaic_index(m, h), at[3] = {head, row, z};
    lg_mv q = lg_mosaic_load(m, m->win[Q], (lg_mv[]){z, head, row, z},
                             (uint32_t[]){1, 1, rows, a->d});
    q = lg_mosaic_matrix_of(m, q, rows, a->d);
    lg_mv s = lg_mosaic_matmul(m, q, band(m, a, KEYS, b, h, z),
                               lg_mosaic_fill_f32(m, rows, BLOCK, 0.0f), false, true);
    lg_mv place = lg_mosaic_bin(m, "arith.addi", lg_mosaic_iota(m, rows, BLOCK, 1),
                                lg_mosaic_spread(m, b->from, rows, BLOCK));
    lg_mv open = lg_mosaic_cmp(m, 3, place, limits(m, a, tile, rows));
    s = lg_mosaic_select(m, open, s, lg_mosaic_fill_f32(m, rows, BLOCK, HIDDEN));
    lg_mv old = lg_mosaic_load_rows(m, m->scratch[MAX], at, rows, 128);
    lg_mv now = lg_mosaic_spread(m, lg_mosaic_max(m, s, 1), rows, 128);
    now = lg_mosaic_bin(m, "arith.maximumf", old, now);
    lg_mv fade = lg_mosaic_un(m, "math.exp", lg_mosaic_sub(m, old, now));
    lg_mv p = lg_mosaic_un(m, "math.exp", lg_mosaic_sub(m, s, widely(m, now, BLOCK)));
    lg_mv sum = lg_mosaic_mul(m, lg_mosaic_load_rows(m, m->scratch[SUM], at, rows, 128), fade);
    sum = lg_mosaic_add(m, sum, lg_mosaic_spread(m, lg_mosaic_sum(m, p, 1), rows, 128));
    lg_mv acc = lg_mosaic_load_rows(m, m->scratch[ACC], at, rows, a->d);
    acc = lg_mosaic_mul(m, acc, widely(m, fade, a->d));
    acc = lg_mosaic_matmul(m, lg_mosaic_to(m, p, a->act), band(m, a, VALUES, b, h, z), acc,
                           false, false);
    lg_mosaic_store_rows(m, now, m->scratch[MAX], at);
    lg_mosaic_store_rows(m, sum, m->scratch[SUM], at);
    lg_mosaic_store_rows(m, acc, m->scratch[ACC], at);
}

/* All rows of all heads: what `each` does for `rows` of them from index `row` on of head h. */
typedef struct walk {
    const lg_mosaic_attn *a;
    const block *b;
    lg_mv tile, z;
} walk;

static void every(lg_mosaic *m, const walk *w,
                  void (*each)(lg_mosaic *m, const walk *w, uint32_t h, lg_mv row,
                               uint32_t rows)) {
    uint32_t all = w->a->rows * w->a->group, part = all < PART ? all : PART;
    for (uint32_t h = 0; h < w->a->n_kv; h++) {
        if (part == all) {
            each(m, w, h, w->z, all);
            continue;
        }
        lg_mv i =
            lg_mosaic_for(m, lg_mosaic_i32(m, 0), lg_mosaic_i32(m, (int32_t)(all / part)));
        lg_mv row = lg_mosaic_to(m, i32(m, "arith.muli", i, (int32_t)part), LG_M_INDEX);
        each(m, w, h, row, part);
        lg_mosaic_for_end(m);
    }
}

static void begin_rows(lg_mosaic *m, const walk *w, uint32_t h, lg_mv row, uint32_t rows) {
    lg_mv at[3] = {lg_mosaic_index(m, h), row, w->z};
    lg_mosaic_store_rows(m, lg_mosaic_fill_f32(m, rows, 128, HIDDEN), m->scratch[MAX], at);
    lg_mosaic_store_rows(m, lg_mosaic_fill_f32(m, rows, 128, 0.0f), m->scratch[SUM], at);
    lg_mosaic_store_rows(m, lg_mosaic_fill_f32(m, rows, w->a->d, 0.0f), m->scratch[ACC], at);
}

static void attend_rows(lg_mosaic *m, const walk *w, uint32_t h, lg_mv row, uint32_t rows) {
    attend(m, w->a, w->b, w->tile, h, row, rows, w->z);
}

/* A tile that saw nothing has a sum of zero and a result of zero. */
static void end_rows(lg_mosaic *m, const walk *w, uint32_t h, lg_mv row, uint32_t rows) {
    lg_mv head = lg_mosaic_index(m, h), at[3] = {head, row, w->z};
    lg_mv sum = lg_mosaic_load_rows(m, m->scratch[SUM], at, rows, 128);
    sum = lg_mosaic_bin(m, "arith.maximumf", sum, lg_mosaic_fill_f32(m, rows, 128, 1e-30f));
    lg_mv o = lg_mosaic_load_rows(m, m->scratch[ACC], at, rows, w->a->d);
    o = lg_mosaic_bin(m, "arith.divf", o, widely(m, sum, w->a->d));
    lg_mosaic_store_rows(m, o, m->win[OUT], (lg_mv[]){w->z, head, row, w->z});
}

void lg_mosaic_attn_kernel(const lg_mosaic_attn *a, lg_mosaic_kernel *k, lg_buf *body) {
    lg_mosaic writer, *m = &writer;
    LG_ASSERT(lg_mosaic_attn_fits(a));
    lg_mosaic_attn_shape(a, k);
    lg_mosaic_begin(m, k, body);
    uint32_t w = a->n_kv * a->d;
    lg_mv z = lg_mosaic_index(m, 0), zero = lg_mosaic_i32(m, 0), tile = m->grid[0];
    lg_mv total = at_i32(m, FIRST, lg_mosaic_i32(m, (int32_t)a->n_tile));
    lg_mosaic_if(m, lg_mosaic_cmp(m, 0, tile, zero));
    clear_values(m, w, z);
    send(m, a, lg_mosaic_for(m, zero, least(m, total, lg_mosaic_i32(m, DEPTH - 1))));
    lg_mosaic_for_end(m);
    lg_mosaic_if_end(m);
    walk all = {.a = a, .tile = tile, .z = z};
    every(m, &all, begin_rows);
    lg_mv e = lg_mosaic_for(m, at_i32(m, FIRST, tile),
                            at_i32(m, FIRST, i32(m, "arith.addi", tile, 1)));
    lg_mv ahead = i32(m, "arith.addi", e, DEPTH - 1);
    lg_mosaic_if(m, lg_mosaic_cmp(m, 2, ahead, total));
    send(m, a, ahead);
    lg_mosaic_if_end(m);
    block b = block_of(m, a, e, tile);
    receive(m, &b);
    clear_end(m, &b, at_i32(m, SEE, tile), w, z);
    all.b = &b;
    every(m, &all, attend_rows);
    lg_mosaic_for_end(m);
    every(m, &all, end_rows);
    lg_mosaic_end(m);
}
