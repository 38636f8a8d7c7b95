/* rig.h - a model and a backend on a small pool, for tests of the forward pass. */
#ifndef LG_TEST_RIG_H
#define LG_TEST_RIG_H

#include "backend/backend.h"

#define RIG_MAX_SEQ 8

/* Some rows of one sequence in a step. */
typedef struct rig_seq {
    uint32_t slot, pos;
    const uint32_t *page; /* page numbers from position 0 on */
    uint32_t n_page;
    const uint32_t *tok; /* [n_tok] */
    uint32_t n_tok, n_out;
} rig_seq;

/* Run one step of logits rows; asserts LG_OK. */
void rig_step(lg_backend *be, const rig_seq *seq, uint32_t n_seq, lg_step_out *out);

/* Fill page pool, slot pool and scratch with bytes 0xff: every float a NaN. */
void rig_poison(lg_backend *be);
void rig_poison_scratch(lg_backend *be);

/* Index of the largest logit, the lowest on ties. */
uint32_t rig_argmax(const float *x, uint32_t n);

/* Largest |a - b|; infinity when either holds a NaN. */
double rig_max_diff(const float *a, const float *b, size_t n);

/* Mean over n_row rows of sum p log(p / q), p and q the softmax of a and b, [n_row][ld] with n used; *n_same counts the rows
 * whose largest logit is the same. */
double rig_mean_kl(const float *a, size_t ld_a, const float *b, size_t ld_b, uint32_t n_row,
                   uint32_t n, uint32_t *n_same);

/* Folders with golden models: tests/data of the source tree, then LG_GOLDEN when set.  `models` and `goldens` of folder i;
 * false past the end. */
bool rig_data(int i, char models[512], char goldens[512]);

/* The packed element (channel, k) of a matrix, writable; *len_bytes gets its size. */
uint8_t *rig_element(const lg_mat *m, uint32_t channel, uint32_t k, size_t *len_bytes);

#endif
