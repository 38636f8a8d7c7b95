/* taps.h - intermediates of two backends side by side: how far each operation of the second is from the first's.
 *
 * Both run the same rows, the reference first; what it traces (backend.h) is kept until the other has traced the same.  What only
 * one of them tells about is left out.
 * Thread: the stepping one.  Memory: grows by what a step of the reference traces.  Test: tests/unit/test_score.c */
#ifndef LG_CLI_TAPS_H
#define LG_CLI_TAPS_H

#include "base/diag.h"
#include "model/config.h"

#include <stdio.h>

typedef struct lg_taps lg_taps;

/* Where a backend's trace goes: opt.trace = lg_taps_take, opt.trace_ctx = one of these. */
typedef struct lg_tap {
    lg_taps *all;
    bool tested; /* else the reference */
} lg_tap;

/* all: every operation; else the residual stream alone.  max_row: rows in a step.  LG_E_NOMEM. */
lg_status lg_taps_open(const lg_config *cfg, bool all, uint32_t max_row, lg_taps **t,
                       lg_err *err);
void lg_taps_close(lg_taps **t);

void lg_taps_take(void *ctx, int layer, const char *name, const float *data, size_t n_row,
                  size_t n_col, size_t ld);

/* Before each step of the reference, whose first n_skip rows are not to be compared; LG_E_NOMEM when there was no memory for the
 * last one. */
lg_status lg_taps_next(lg_taps *t, size_t n_skip, lg_err *err);

/* The tables: the residual stream by layer, and operations over all layers. */
void lg_taps_print(const lg_taps *t, FILE *to);

#endif
