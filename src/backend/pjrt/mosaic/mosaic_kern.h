/* mosaic_kern.h - the Mosaic kernels: what they compute and what their operands are.
 *
 * Every kernel has a twin in plain StableHLO with the same operands and results: the twin runs on any plugin and
 * says what the numbers are; the kernel is for TPUs.  Operands are arrays of the program, row-major; weights are stacked by
 * layer and pools hold all layers, and the kernel picks the layer itself, so that no program slices (copies) them.
 * T rows; nk key heads, nv value heads, d their width (128 for the kernels); value head h uses key head h / (nv / nk).
 *
 * `fits` says whether a kernel can serve these sizes; where it says no, use the twin. */
#ifndef LG_BACKEND_PJRT_MOSAIC_MOSAIC_KERN_H
#define LG_BACKEND_PJRT_MOSAIC_MOSAIC_KERN_H

#include "backend/pjrt/mosaic/mosaic.h"

#define LG_MOSAIC_CHUNK 64 /* rows of one tile of gdn_prefill */

/* ---- Gated DeltaNet with its convolution and gates (mosaic_gdn.c; MODEL.md: Gated DeltaNet) ---- */

typedef struct lg_mosaic_gdn {
    uint32_t n_row;   /* decode: sequences T; prefill: tiles of LG_MOSAIC_CHUNK rows */
    uint32_t n_layer; /* layers in the pools */
    uint32_t n_stack; /* layers in the stacked weights */
    uint32_t n_slot;  /* slots of a layer */
    uint32_t nk, nv, d;
    lg_mosaic_elem act;   /* of qkv and of the result */
    lg_mosaic_elem state; /* of the state pool */
    lg_mosaic_elem conv;  /* of the pool of earlier rows */
} lg_mosaic_gdn;

/* What a row (decode) or tile (prefill) does with the state of its slot. */
enum { LG_MOSAIC_IDLE = 0, LG_MOSAIC_NEW = 1, LG_MOSAIC_GOES_ON = 2 };

/* One row of each of T sequences.  R = 2 nk + nv rows of d: q heads, k heads, v heads.
 *   i32: slot [T]; mode [T]: IDLE (a row of padding: it names the slot of the row before it and changes nothing), NEW (state
 *        and earlier rows count as zero, whatever the pools hold), GOES_ON; layer [2] = layer in the pools, in the weights
 *   operands: qkv [T][R][d] before the convolution; a [T][1][nv], b [T][1][nv] F32;
 *        conv weights [n_stack][4][R][d] F32 (tap j meets row t - 3 + j); -exp(A_log) and dt_bias [n_stack][1][nv] F32;
 *        earlier rows [n_layer][n_slot][3][R][d]; state [n_layer][n_slot][nv][d][d] (keys down, values across)
 *   results: o [T][nv][d] before the output norm (rows of padding: anything); both pools, in place. */
bool lg_mosaic_gdn_fits(const lg_mosaic_gdn *g);
void lg_mosaic_gdn_decode(const lg_mosaic_gdn *g, lg_mosaic_kernel *k, lg_buf *body);
/* What the kernel looks like from outside, for any d. */
void lg_mosaic_gdn_decode_shape(const lg_mosaic_gdn *g, lg_mosaic_kernel *k);

/* The same for many rows of each sequence, LG_MOSAIC_CHUNK at a time, in chunked form.  N tiles of C = LG_MOSAIC_CHUNK rows;
 * a sequence's tiles follow each other, all but its last are full.
 *   i32: slot [N]; mode [N]: IDLE (it names the slot of the tile before it), NEW or GOES_ON for a sequence's first tile, and
 *        LG_MOSAIC_FOLLOWS for the others; rows [N], 1 to C; layer [2]
 *   operands: qkv [N C][R d], heads side by side; a [N][nv][C], b [N][nv][C] F32; then as above
 *   results: o [N C][nv d] (rows beyond a tile's: anything); both pools, in place. */
enum { LG_MOSAIC_FOLLOWS = 3 };
void lg_mosaic_gdn_prefill(const lg_mosaic_gdn *g, lg_mosaic_kernel *k, lg_buf *body);
void lg_mosaic_gdn_prefill_shape(const lg_mosaic_gdn *g, lg_mosaic_kernel *k);

/* ---- Grouped product of experts (mosaic_gmm.c) ---- */

typedef struct lg_mosaic_gmm {
    uint32_t n_tile, tile_rows; /* tile_rows: a multiple of 16 */
    uint32_t n_stack, n_expert; /* of the stacked weights */
    uint32_t n_in, n_out;       /* n_out: columns of the result, a multiple of 128 */
    uint32_t cols;              /* of one panel; 0: chosen */
    uint32_t k_block; /* inputs that share a scale: a multiple of 128 that divides n_in */
    bool
        tiled; /* scales are of 128 x 128 weights (k_block 128), not of k_block inputs of one output */
    bool swiglu; /* gate's rows, then up's: the result is silu(gate) * up */
    lg_mosaic_elem
        act; /* of rows: BF16 for the kernel, or E4M3 with scales where weights are */
    lg_mosaic_elem weight; /* BF16, or E4M3 with scales */
    lg_mosaic_elem hidden; /* of swiglu's result: BF16 for the kernel */
} lg_mosaic_gmm;

/* N tiles of M rows (a multiple of 16, of FP8 ones of 32) of one expert each; tiles of an expert follow each other.  W = n_out, or 2 n_out with swiglu.
 *   i32: expert [N]; block [N]: where the tile's rows are, in tiles; live [N]: 0 for a tile without rows, which names the expert
 *        and block of the one before it (so nothing is read or written for it); layer [1]
 *   operands: x [N M][n_in] of type act, and of E4M3 scales F32 [N M][n_in / k_block]; then once, or with swiglu twice (the same arrays): weights [n_stack][n_expert][W][n_in] and,
 *        for E4M3, scales F32 (multiply to get the number): [n_stack][n_expert][n_in / k_block][W], or when tiled
 *        [n_stack][n_expert][W / 128][n_in / 128]
 *   result: [N M][n_out], of type hidden with swiglu, else F32; blocks that no live tile names: anything. */
bool lg_mosaic_gmm_fits(const lg_mosaic_gmm *g);
void lg_mosaic_gmm_kernel(const lg_mosaic_gmm *g, lg_mosaic_kernel *k, lg_buf *body);
void lg_mosaic_gmm_shape(const lg_mosaic_gmm *g, lg_mosaic_kernel *k);

/* ---- Attention over pages (mosaic_attn.c; MODEL.md: Gated attention, without the gate) ---- */

#define LG_MOSAIC_ATTN_PAGE  64  /* positions of a page */
#define LG_MOSAIC_ATTN_BLOCK 256 /* positions of a block */

typedef struct lg_mosaic_attn {
    uint32_t n_tile, rows;      /* tiles of `rows` rows (a power of two) of one sequence */
    uint32_t n_entry;           /* places of the list of blocks */
    uint32_t n_seq, n_page_seq; /* of the page table */
    uint32_t n_layer, n_page;   /* of the pools */
    uint32_t n_kv, group,
        d; /* heads of keys; heads of queries for each of them; width, a multiple of 128 */
    lg_mosaic_elem
        act;           /* of q and of both products' operands: BF16, or F32 with pools of F32 */
    lg_mosaic_elem kv; /* of the pools */
} lg_mosaic_attn;

/* T tiles.  Row r of tile t stands at position pos[t] + r and sees the positions up to its own and below see[t].
 *   i32: first [T + 1]: the blocks of tile t are those from first[t] to first[t + 1] - 1 of the list, in order, ceil(see / 256) of them;
 *        tile of each block [n_entry] (beyond first[T]: anything); sequence [T]; pos [T]; see [T], 0 for a tile without rows;
 *        layer [1] in the pools; page table [n_seq n_page_seq]: page p of sequence s at s n_page_seq + p
 *   operands: q [T][n_kv][group rows][d], times d^-1/2 already, of type act: row r of query head g of its group at g rows + r;
 *        keys and values [n_layer][n_page][64][n_kv d]
 *   result: o [T][n_kv][group rows][d] F32; rows that are not there: as if they stood at the last one's position, or 0 where there
 *        are none. */
bool lg_mosaic_attn_fits(const lg_mosaic_attn *a);
void lg_mosaic_attn_kernel(const lg_mosaic_attn *a, lg_mosaic_kernel *k, lg_buf *body);
void lg_mosaic_attn_shape(const lg_mosaic_attn *a, lg_mosaic_kernel *k);

#endif
