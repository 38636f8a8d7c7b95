/* golden.h - reference tensors for tests: a small reader of the golden files (safetensors with F32 and I32), and how far what is
 * computed may be from them. */
#ifndef LG_TEST_GOLDEN_H
#define LG_TEST_GOLDEN_H

#include "base/diag.h"

#include <stddef.h>
#include <stdint.h>

typedef struct golden_tensor {
    char name[96];
    uint32_t n_dim;
    size_t shape[4];
    size_t n;         /* elements */
    const float *f;   /* F32, else NULL */
    const int32_t *i; /* I32, else NULL */
    bool seen;        /* for the tests: compared */
} golden_tensor;

#define GOLDEN_MAX_KIND 48

/* Worst error of one kind of tensor. */
typedef struct golden_row {
    char kind[64];
    uint32_t n_tensor;
    double worst, scale, tol; /* |difference|, largest |golden| of that tensor, allowed */
} golden_row;

typedef struct golden {
    golden_tensor *tensor; /* [n] */
    size_t n;
    uint8_t *file;    /* the whole file */
    const char *name; /* of the model, for golden_compare */
    golden_row row[GOLDEN_MAX_KIND];
    uint32_t n_row;
} golden;

/* Read a file.  LG_E_IO, LG_E_FORMAT, LG_E_NOMEM. */
lg_status golden_open(golden *g, const char *path, lg_err *err);
void golden_close(golden *g);

/* The tensor of that name (formatted), or NULL. */
golden_tensor *golden_find(const golden *g, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* What a tensor holds, without its place: "p65.logits" -> "logits", "trace.L3.attn.q" -> "attn.q". */
const char *golden_kind(const golden_tensor *t, char *buf, size_t len_bytes);

/* ---- for cmocka tests: these fail the test ---- */

golden_tensor *golden_must_find(const golden *g, const char *prompt, const char *what);
const uint32_t *golden_ids(const golden *g, const char *prompt, uint32_t *n); /* now seen */

/* Compare rows [n_row][n_col] at distance ld with elements of t from `from` on: note the worst difference in g->row, and that t is seen. */
void golden_compare(golden *g, golden_tensor *t, size_t from, const float *x, size_t n_row,
                    size_t n_col, size_t ld);

#endif
