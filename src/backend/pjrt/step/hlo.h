/* hlo.h - programs for a PJRT plugin as text: StableHLO in MLIR's generic form, one function `main`.
 *
 * A value is a number with a type.  Each call writes one operation (or a few) and returns its result; types of results
 * are worked out here, and operands are checked: types, shapes, and that the value is visible where it is used.  The
 * first thing that does not fit is kept as the reason, everything after it is ignored, and lg_hlo_finish reports it: a
 * caller checks once. Shapes are static.  Floats are written as their bits.  Memory: the text and a table of types,
 * freed by fini. Thread: one per lg_hlo.  Test: tests/unit/test_step_text.c, tests/unit/test_step.c */
#ifndef LG_BACKEND_PJRT_STEP_HLO_H
#define LG_BACKEND_PJRT_STEP_HLO_H

#include "base/buf.h"
#include "base/diag.h"

#include <stdint.h>

#define LG_HLO_MAX_DIM   6
#define LG_HLO_MAX_DEPTH 8   /* loops inside loops */
#define LG_HLO_MAX_CARRY 128 /* values that a loop carries */
#define LG_HLO_NO_ALIAS  (-1)

typedef enum lg_hlo_dt {
    LG_HLO_F32,
    LG_HLO_BF16,
    LG_HLO_F16,
    LG_HLO_E4M3, /* f8E4M3FN */
    LG_HLO_I32,
    LG_HLO_U32,
    LG_HLO_U16,
    LG_HLO_U8,
    LG_HLO_I1,
    LG_HLO_N_DT
} lg_hlo_dt;

typedef struct lg_hlo_type {
    lg_hlo_dt dt;
    uint32_t n_dim;
    int64_t dim[LG_HLO_MAX_DIM];
} lg_hlo_type;

typedef uint32_t lg_hlo_val; /* 0: none */

typedef struct lg_hlo {
    lg_buf text;            /* body of main */
    lg_buf args;            /* its arguments */
    struct lg_hlo_def *def; /* [n_def] what is known of each value; 0 is none */
    uint32_t n_def, cap_def, n_arg, n_result;
    uint32_t region[LG_HLO_MAX_DEPTH + 1], n_open, n_region;
    struct {
        lg_hlo_val i, result; /* counter of the body; first of the results */
        uint32_t n_carry;
    } loop[LG_HLO_MAX_DEPTH];
    bool failed;
    char why[256];
} lg_hlo;

/* LG_HLO_T(F32, 4, 8) is tensor<4x8xf32>. */
#define LG_HLO_T(dt, ...)                                                                      \
    lg_hlo_type_of(LG_HLO_##dt, (const int64_t[]){__VA_ARGS__},                                \
                   sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
lg_hlo_type lg_hlo_type_of(lg_hlo_dt dt, const int64_t *dim, size_t n_dim);
lg_hlo_type lg_hlo_scalar(lg_hlo_dt dt);
/* The same shape with another element. */
lg_hlo_type lg_hlo_as(lg_hlo_type t, lg_hlo_dt dt);
size_t lg_hlo_dt_bytes(lg_hlo_dt dt);
int64_t lg_hlo_count(lg_hlo_type t);
bool lg_hlo_same(lg_hlo_type a, lg_hlo_type b);

void lg_hlo_init(lg_hlo *h);
void lg_hlo_fini(lg_hlo *h);
lg_hlo_type lg_hlo_type_at(const lg_hlo *h, lg_hlo_val v);
int64_t lg_hlo_dim(const lg_hlo *h, lg_hlo_val v, uint32_t i);

/* The next argument of main; alias: the number of the result whose memory it gives, or LG_HLO_NO_ALIAS. */
lg_hlo_val lg_hlo_arg(lg_hlo *h, lg_hlo_type t, int alias);
/* The same laid out on the device as `layout` says: "{2,1,0:T(16,128)(2,1)}", axes from the fastest on, tiles. */
lg_hlo_val lg_hlo_arg_laid_out(lg_hlo *h, lg_hlo_type t, const char *layout);

/* End main with these results and append the module to *out.  LG_E_ARG with the first fault; LG_E_NOMEM. */
lg_status lg_hlo_finish(lg_hlo *h, const char *name, uint32_t n_replica,
                        const lg_hlo_val *result, uint32_t n_result, lg_buf *out, lg_err *err);

/* Note a fault of the caller's; the first one stays. */
void lg_hlo_fail(lg_hlo *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- constants ---- */

lg_hlo_val
lg_hlo_float(lg_hlo *h, lg_hlo_type t,
             float x); /* the same everywhere; of F32, BF16 or F16: exact, or a fault */
lg_hlo_val lg_hlo_int(lg_hlo *h, lg_hlo_type t, int64_t x);
lg_hlo_val lg_hlo_i32(lg_hlo *h, int64_t x); /* a scalar */
lg_hlo_val lg_hlo_iota(lg_hlo *h, lg_hlo_type t, uint32_t dim);

/* ---- element by element ---- */

/* "exponential" "negate" "logistic" "log_plus_one" "rsqrt" "is_finite" "not" ...: the name behind "stablehlo.". */
lg_hlo_val lg_hlo_un(lg_hlo *h, const char *op, lg_hlo_val x);
/* "add" "subtract" "multiply" "divide" "maximum" "minimum" "and" "or" ... of equal types. */
lg_hlo_val lg_hlo_bin(lg_hlo *h, const char *op, lg_hlo_val a, lg_hlo_val b);
lg_hlo_val lg_hlo_add(lg_hlo *h, lg_hlo_val a, lg_hlo_val b);
lg_hlo_val lg_hlo_sub(lg_hlo *h, lg_hlo_val a, lg_hlo_val b);
lg_hlo_val lg_hlo_mul(lg_hlo *h, lg_hlo_val a, lg_hlo_val b);
/* The same with one number, splat to x's type. */
lg_hlo_val lg_hlo_bin_f(lg_hlo *h, const char *op, lg_hlo_val x, float y);
lg_hlo_val lg_hlo_bin_i(lg_hlo *h, const char *op, lg_hlo_val x, int64_t y);
/* "LT" "LE" "EQ" "GE" "GT" "NE" -> I1. */
lg_hlo_val lg_hlo_cmp(lg_hlo *h, const char *dir, lg_hlo_val a, lg_hlo_val b);
lg_hlo_val lg_hlo_cmp_i(lg_hlo *h, const char *dir, lg_hlo_val a, int64_t b);
lg_hlo_val lg_hlo_select(lg_hlo *h, lg_hlo_val pred, lg_hlo_val yes, lg_hlo_val no);
lg_hlo_val lg_hlo_select_f(lg_hlo *h, lg_hlo_val pred, lg_hlo_val yes, float no);
lg_hlo_val lg_hlo_convert(lg_hlo *h, lg_hlo_val x, lg_hlo_dt dt); /* x itself when it is one */
lg_hlo_val lg_hlo_bitcast(lg_hlo *h, lg_hlo_val x, lg_hlo_type to);

/* ---- shapes.  An axis list is a string of digits: "021" ---- */

lg_hlo_val lg_hlo_reshape(lg_hlo *h, lg_hlo_val x, lg_hlo_type to); /* to.dt must be x's */
lg_hlo_val lg_hlo_transpose(lg_hlo *h, lg_hlo_val x,
                            const char *axes); /* result axis i is x's axes[i] */
/* Axis i of x becomes axis axes[i] of `to`; x's element. */
lg_hlo_val lg_hlo_bcast(lg_hlo *h, lg_hlo_val x, lg_hlo_type to, const char *axes);
/* The same to the shape of y. */
lg_hlo_val lg_hlo_like(lg_hlo *h, lg_hlo_val x, lg_hlo_val y, const char *axes);
lg_hlo_val lg_hlo_slice(lg_hlo *h, lg_hlo_val x, uint32_t axis, int64_t from, int64_t n);
lg_hlo_val lg_hlo_concat(lg_hlo *h, uint32_t axis, const lg_hlo_val *x, uint32_t n);
lg_hlo_val lg_hlo_pad(lg_hlo *h, lg_hlo_val x, uint32_t axis, int64_t before,
                      int64_t after); /* with zeros */
/* Windows at scalar I32 positions, one for each axis; a start is moved so that the window lies inside. */
lg_hlo_val lg_hlo_window(lg_hlo *h, lg_hlo_val x, const lg_hlo_val *start, const int64_t *size);
lg_hlo_val lg_hlo_window_put(lg_hlo *h, lg_hlo_val x, lg_hlo_val part, const lg_hlo_val *start);
/* The same along the first axis only: n rows from `start`; one row without its axis; and n rows written. */
lg_hlo_val lg_hlo_rows(lg_hlo *h, lg_hlo_val x, lg_hlo_val start, int64_t n);
lg_hlo_val lg_hlo_row(lg_hlo *h, lg_hlo_val x, lg_hlo_val at);
lg_hlo_val lg_hlo_rows_put(lg_hlo *h, lg_hlo_val x, lg_hlo_val part, lg_hlo_val start);

/* ---- rows by number.  idx: I32 [..][k], numbers along the first k axes of x; the rest of x's axes stay ---- */

lg_hlo_val lg_hlo_take(lg_hlo *h, lg_hlo_val x,
                       lg_hlo_val idx); /* a number out of range is moved into it */
lg_hlo_val lg_hlo_put(lg_hlo *h, lg_hlo_val x, lg_hlo_val idx,
                      lg_hlo_val rows); /* one out of range: not written */
lg_hlo_val lg_hlo_put_add(lg_hlo *h, lg_hlo_val x, lg_hlo_val idx, lg_hlo_val rows);
/* Columns of the same shape side by side along a new last axis: the idx of the above. */
lg_hlo_val lg_hlo_idx(lg_hlo *h, const lg_hlo_val *col, uint32_t k);

/* ---- sums ---- */

/* "add" "maximum" "minimum" over one axis, which goes. */
lg_hlo_val lg_hlo_reduce(lg_hlo *h, const char *op, lg_hlo_val x, uint32_t axis);
/* Sum of products as letters: "th,oh->to".  A letter in both and in the result is a batch axis; one in both and not in
 * the result is summed.  Result F32 whatever the operands, which are of one type; sums of F32 are asked for at full
 * precision. */
lg_hlo_val lg_hlo_dot(lg_hlo *h, const char *spec, lg_hlo_val a, lg_hlo_val b);
/* X of A X = B, A [..][n][n] lower triangular with ones on the diagonal (what lies above is not read), B [..][n][m];
 * F32. */
lg_hlo_val lg_hlo_solve(lg_hlo *h, lg_hlo_val a, lg_hlo_val b);

/* ---- order ---- */

/* The k largest of the last axis, best first, ties to the lower place. */
void lg_hlo_top_k(lg_hlo *h, lg_hlo_val x, int64_t k, lg_hlo_val *value, lg_hlo_val *place);
/* Sort key [n] ascending, stable, and what goes with it. */
void lg_hlo_sort(lg_hlo *h, lg_hlo_val *key, lg_hlo_val *with);

/* ---- a counted loop: i = 0 .. n - 1, n a scalar I32 ---- */

/* Opens the body.  carry[n_carry]: in the starts, out the body's own values.  Outer values may be used inside. */
lg_hlo_val lg_hlo_for(lg_hlo *h, lg_hlo_val n, lg_hlo_val *carry, uint32_t n_carry);
/* Closes it.  carry: in the next values, out the results. */
void lg_hlo_end_for(lg_hlo *h, lg_hlo_val *carry, uint32_t n_carry);

/* ---- between replicas 0 .. n - 1 ---- */

lg_hlo_val lg_hlo_replica_id(lg_hlo *h);                               /* scalar I32 */
lg_hlo_val lg_hlo_all_gather(lg_hlo *h, lg_hlo_val x, uint32_t n);     /* along axis 0 */
lg_hlo_val lg_hlo_reduce_scatter(lg_hlo *h, lg_hlo_val x, uint32_t n); /* along axis 0 */
/* pair[i] = {from, to}; a replica that is no `to` gets zeros. */
lg_hlo_val lg_hlo_permute(lg_hlo *h, lg_hlo_val x, const uint32_t (*pair)[2], uint32_t n_pair);

/* ---- anything else ---- */

/* x, in a place of its own: what makes it and what uses it are not merged. */
lg_hlo_val lg_hlo_apart(lg_hlo *h, lg_hlo_val x);

/* Write  results = "OP"(arg...) ATTRS : (types) -> (types).  attrs: text as in "{dimension = 0 : i64}" or "<{...}>". */
void lg_hlo_op(lg_hlo *h, const char *op, const lg_hlo_val *arg, uint32_t n_arg,
               const char *attrs, const lg_hlo_type *type, uint32_t n_result,
               lg_hlo_val *result);

#endif
