/* table_avxvnni.c - the table of level avxvnni: avx2 with other integer products of several rows.  Test: tests/unit/test_kern_bits.c */
#include "kern/avx2/avx2.h"
#include "kern/level.h"

#define FEW                                                                                    \
    4 /* rows below which the products of AVX2 are as fast, or faster, as they are for Q4_K (measured) */

static void qgemm(const lg_mat *w, uint32_t panel0, uint32_t n_panel, const lg_qrows *x,
                  const uint32_t *row_idx, uint32_t n_row, float *y, size_t ld_y) {
    if (n_row < FEW || w->type == LG_Q4_K)
        lg_qgemm_avx2(w, panel0, n_panel, x, row_idx, n_row, y, ld_y);
    else
        lg_qgemm_avxvnni(w, panel0, n_panel, x, row_idx, n_row, y, ld_y);
}

const lg_kern lg_kern_avxvnni = {
    .name = "avxvnni",
    LG_KERN_AVX2_COMMON,
    .qgemm = qgemm,
};
