/* mosaic_eval_int.h - what mosaic_eval.c (text, pipeline) and mosaic_ops.c (operations) share. */
#ifndef LG_TESTS_MOSAIC_EVAL_INT_H
#define LG_TESTS_MOSAIC_EVAL_INT_H

#include "mosaic_eval.h"

#define MAX_ARG  40
#define MAX_NAME 8192

typedef enum { E_I1, E_I32, E_INDEX, E_F32, E_BF16, E_E4M3, E_COPIES } elem;
typedef enum { IN_VMEM, IN_SMEM, IN_HBM, IN_SEMAPHORES } memory;

typedef struct type {
    bool vector, ref;
    memory where; /* of a ref */
    elem e;
    uint32_t rank, dim[MOSAIC_EVAL_RANK];
} type;

/* Floats in f, everything else in i; of a semaphore: bytes that were sent and not yet waited for. */
typedef struct value {
    type t;
    size_t n;
    float *f;
    int32_t *i;
} value;

typedef struct op op;

typedef struct region {
    uint32_t n_arg, arg[MAX_ARG];
    type arg_type[MAX_ARG];
    op *first;
} region;

struct op {
    op *next;
    char name[40];
    bool has_result;
    uint32_t result, n_arg, arg[MAX_ARG], n_region;
    type type, arg_type[MAX_ARG];
    region *region[2];
    char *attrs;
    value *keep; /* the result's memory, used again each time */
};

typedef struct module {
    uint32_t n_name, n_func;
    char name[MAX_NAME][32];
    op *func[MAX_ARG];
} module;

_Noreturn void mosaic_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void *mosaic_new(size_t n);
value *mosaic_value(type t);
type mosaic_type(const char **at);
elem mosaic_elem_of(const char *s, size_t n);

/* The text behind "NAME = "; a list of numbers behind it. */
const char *mosaic_attr(const char *attrs, const char *name);
uint32_t mosaic_numbers(const char *attrs, const char *name, int64_t *out, uint32_t cap);

/* Copies that the body starts itself.  early: their data is there at once; else when their semaphore has been waited for in full,
 * and until then the target holds NaN.  finish: fails when one was never waited for. */
void mosaic_copies_begin(bool early);
void mosaic_copies_finish(void);
void mosaic_copy(const op *o, value *const *a);

/* Run to the operation that ends the region (a return or a yield), and give it. */
op *mosaic_run_region(region *g, value **env);

#endif
