/* mosaic_ops.c - the operations of mosaic_eval.h, each obvious and checked. */
#include "mosaic_eval_int.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

float mosaic_bf16(float x) {
    return lg_num_bf16(lg_num_to_bf16(x));
}

/* Search: E4M3 has 256 codes. */
float mosaic_e4m3(float x) {
    float best = 0.0f;
    int even = 0;
    for (int c = 0; c < 127; c++) {
        float v = lg_num_e4m3((uint8_t)c), d = fabsf(fabsf(x) - v), b = fabsf(fabsf(x) - best);
        if (d < b || (d == b && c % 2 == 0 && !even)) {
            best = v;
            even = c % 2 == 0;
        }
    }
    return copysignf(best, x);
}

static bool is_float(elem e) {
    return e >= E_F32 && e <= E_E4M3;
}

value *mosaic_value(type t) {
    value *v = mosaic_new(sizeof *v);
    v->t = t;
    v->n = 1;
    for (uint32_t d = 0; d < t.rank; d++) v->n *= t.dim[d];
    if (is_float(t.e))
        v->f = mosaic_new(v->n * sizeof *v->f);
    else
        v->i = mosaic_new(v->n * sizeof *v->i);
    return v;
}

static float as_elem(elem e, float x) {
    return e == E_BF16 ? mosaic_bf16(x) : e == E_E4M3 ? mosaic_e4m3(x) : x;
}

static bool same_shape(const type *a, const type *b) {
    return a->rank == b->rank && !memcmp(a->dim, b->dim, a->rank * sizeof a->dim[0]);
}

static bool same_type(const type *a, const type *b) {
    return a->e == b->e && a->vector == b->vector && a->ref == b->ref && a->where == b->where &&
           same_shape(a, b);
}

typedef struct call {
    const op *o;
    value *r, *a[MAX_ARG];
} call;

static void must(const call *c, bool ok, const char *what) {
    if (!ok) mosaic_fail("%s: %s; attributes: %.120s", c->o->name, what, c->o->attrs);
}

/* ---- Constants ---- */

static void constant(call *c) {
    const char *p = mosaic_attr(c->o->attrs, "value");
    bool dense = !strncmp(p, "dense<", 6);
    must(c, dense == c->r->t.vector, "a splat is a vector, a number is none");
    if (dense) p += 6;
    char *end;
    if (is_float(c->r->t.e)) {
        must(c, c->r->t.e == E_F32 && !strncmp(p, "0x", 2),
             "floats are f32 and written as bits");
        float x = lg_num_float_of_bits((uint32_t)strtoul(p, &end, 16));
        for (size_t i = 0; i < c->r->n; i++) c->r->f[i] = x;
    } else {
        long x = strtol(p, &end, 10);
        for (size_t i = 0; i < c->r->n; i++) c->r->i[i] = (int32_t)x;
    }
    if (dense) must(c, *end++ == '>', "a splat's end");
    must(c, !strncmp(end, " : ", 3), "a type");
    const char *at = end + 3;
    type t = mosaic_type(&at);
    must(c, same_type(&t, &c->r->t), "the value's type is the result's");
}

static void iota(call *c) {
    int64_t d[2];
    must(c,
         mosaic_numbers(c->o->attrs, "dimensions", d, 2) == 1 && c->r->t.rank == 2 &&
             c->r->t.e == E_I32,
         "a matrix");
    for (size_t i = 0; i < c->r->n; i++)
        c->r->i[i] = (int32_t)(d[0] ? i % c->r->t.dim[1] : i / c->r->t.dim[1]);
}

/* ---- Element by element ---- */

static float unary(const call *c, const char *n, float x) {
    if (!strcmp(n, "math.exp")) return expf(x);
    if (!strcmp(n, "math.log1p")) return log1pf(x);
    if (!strcmp(n, "math.absf")) return fabsf(x);
    if (!strcmp(n, "math.rsqrt")) return 1.0f / sqrtf(x);
    if (!strcmp(n, "arith.negf")) return -x;
    must(c, false, "an unknown operation");
    return 0;
}

static float binary(const call *c, const char *n, float x, float y) {
    if (!strcmp(n, "arith.addf")) return x + y;
    if (!strcmp(n, "arith.subf")) return x - y;
    if (!strcmp(n, "arith.mulf")) return x * y;
    if (!strcmp(n, "arith.divf")) return x / y;
    if (!strcmp(n, "arith.maximumf")) return isnan(x) || isnan(y) ? NAN : x > y ? x : y;
    if (!strcmp(n, "arith.minimumf")) return isnan(x) || isnan(y) ? NAN : x < y ? x : y;
    must(c, false, "an unknown operation");
    return 0;
}

static int32_t binary_int(const call *c, const char *n, int32_t x, int32_t y) {
    int64_t r = 0;
    if (!strcmp(n, "arith.addi"))
        r = (int64_t)x + y;
    else if (!strcmp(n, "arith.subi"))
        r = (int64_t)x - y;
    else if (!strcmp(n, "arith.muli"))
        r = (int64_t)x * y;
    else if (!strcmp(n, "arith.andi"))
        return x & y;
    else if (!strcmp(n, "arith.ori"))
        return x | y;
    else if (!strcmp(n, "arith.shrsi") && y >= 0 && y < 32)
        return (int32_t)((int64_t)x >> y);
    else if (!strcmp(n, "arith.remsi") && y > 0)
        return x % y;
    else if (!strcmp(n, "arith.maxsi"))
        return x > y ? x : y;
    else if (!strcmp(n, "arith.minsi"))
        return x < y ? x : y;
    else
        must(c, false, "an unknown operation");
    must(c, r == (int32_t)r, "the result fits");
    return (int32_t)r;
}

static void elementwise(call *c) {
    value *r = c->r, *x = c->a[0];
    must(c, (c->o->n_arg == 1 || c->o->n_arg == 2) && same_type(&x->t, &r->t),
         "operands have the result's type");
    must(c, c->o->n_arg == 1 || same_type(&c->a[1]->t, &r->t),
         "both operands have the result's type");
    must(c, !is_float(r->t.e) || r->t.e == E_F32, "arithmetic is in f32");
    for (size_t i = 0; i < r->n; i++) {
        if (r->i) {
            must(c, c->o->n_arg == 2, "two operands");
            r->i[i] = binary_int(c, c->o->name, x->i[i], c->a[1]->i[i]);
        } else if (c->o->n_arg == 1) {
            r->f[i] = unary(c, c->o->name, x->f[i]);
        } else {
            r->f[i] = binary(c, c->o->name, x->f[i], c->a[1]->f[i]);
        }
    }
}

static void cmpi(call *c) {
    long p = strtol(mosaic_attr(c->o->attrs, "predicate"), NULL, 10);
    must(c, c->o->n_arg == 2 && same_type(&c->a[0]->t, &c->a[1]->t) && c->a[0]->t.e == E_I32,
         "two of i32");
    must(c, same_shape(&c->r->t, &c->a[0]->t) && c->r->t.e == E_I1 && p >= 0 && p <= 5,
         "a signed comparison to i1");
    for (size_t i = 0; i < c->r->n; i++) {
        int32_t x = c->a[0]->i[i], y = c->a[1]->i[i];
        bool v[] = {x == y, x != y, x<y, x <= y, x> y, x >= y};
        c->r->i[i] = v[p];
    }
}

static void select_op(call *c) {
    must(c,
         c->o->n_arg == 3 && c->a[0]->t.e == E_I1 && same_type(&c->a[1]->t, &c->r->t) &&
             same_type(&c->a[2]->t, &c->r->t),
         "a condition and two of the result's type");
    bool scalar = !c->a[0]->t.vector;
    must(c, scalar || same_shape(&c->a[0]->t, &c->r->t), "the condition's shape");
    for (size_t i = 0; i < c->r->n; i++) {
        const value *s = c->a[0]->i[scalar ? 0 : i] ? c->a[1] : c->a[2];
        if (c->r->f)
            c->r->f[i] = s->f[i];
        else
            c->r->i[i] = s->i[i];
    }
}

static void convert(call *c) {
    static const int bytes[] = {0, 4, 4, 4, 2, 1};
    elem from = c->a[0]->t.e, to = c->r->t.e;
    must(c, same_shape(&c->a[0]->t, &c->r->t), "one shape");
    if (!strcmp(c->o->name, "arith.index_cast")) {
        must(c, from == E_I32 && to == E_INDEX && !c->r->t.vector, "i32 to index");
        c->r->i[0] = c->a[0]->i[0];
        return;
    }
    if (!strcmp(c->o->name, "arith.sitofp")) {
        must(c, from == E_I32 && to == E_F32, "i32 to f32");
        for (size_t i = 0; i < c->r->n; i++) c->r->f[i] = (float)c->a[0]->i[i];
        return;
    }
    bool wider = !strcmp(c->o->name, "arith.extf");
    must(c,
         is_float(from) && is_float(to) &&
             (wider ? bytes[to] > bytes[from] : bytes[to] < bytes[from]),
         "the widths");
    for (size_t i = 0; i < c->r->n; i++) c->r->f[i] = as_elem(to, c->a[0]->f[i]);
}

/* ---- Memory ---- */

/* Element i of a block of `shape` at idx in ref. */
static size_t element(const call *c, const value *ref, value *const *idx, const type *shape,
                      size_t i) {
    size_t at = 0, stride = 1;
    for (uint32_t d = ref->t.rank; d-- > 0;) {
        int64_t p = (int64_t)idx[d]->i[0] + (int64_t)(i % shape->dim[d]);
        must(c, p >= 0 && p < ref->t.dim[d], "an index inside");
        at += (size_t)p * stride;
        i /= shape->dim[d];
        stride *= ref->t.dim[d];
    }
    return at;
}

static void load(call *c) {
    value *ref = c->a[0];
    must(c,
         ref->t.ref && ref->t.where == IN_VMEM && c->o->n_arg == 1 + ref->t.rank &&
             c->r->t.rank == ref->t.rank && c->r->t.e == ref->t.e,
         "a block of VMEM");
    for (size_t i = 0; i < c->r->n; i++) {
        size_t at = element(c, ref, c->a + 1, &c->r->t, i);
        if (ref->f)
            c->r->f[i] = ref->f[at];
        else
            c->r->i[i] = ref->i[at];
    }
}

static void store(call *c) {
    value *v = c->a[0], *ref = c->a[1];
    must(c,
         ref->t.ref && ref->t.where == IN_VMEM && v->t.vector &&
             c->o->n_arg == 2 + ref->t.rank && v->t.rank == ref->t.rank && v->t.e == ref->t.e,
         "a block of VMEM");
    must(c, !strncmp(mosaic_attr(c->o->attrs, "add"), "false", 5), "a plain store");
    for (size_t i = 0; i < v->n; i++) {
        size_t at = element(c, ref, c->a + 2, &v->t, i);
        if (ref->f)
            ref->f[at] = v->f[i];
        else
            ref->i[at] = v->i[i];
    }
}

/* A slice of memory that lies in one piece: single places of the first dimensions, all of the others. */
static void part(call *c) {
    value *ref = c->a[0];
    int64_t seg[3];
    size_t at = 0;
    must(c,
         ref->t.ref && c->r->t.ref && ref->t.where == c->r->t.where && ref->t.e == c->r->t.e &&
             c->r->t.rank == ref->t.rank && c->o->n_arg == 1 + ref->t.rank,
         "memory and a place in it");
    must(c,
         mosaic_numbers(c->o->attrs, "operandSegmentSizes", seg, 3) == 3 && seg[0] == 1 &&
             seg[1] == ref->t.rank && seg[2] == 0,
         "the counts of operands");
    bool leading = true;
    for (uint32_t d = 0; d < ref->t.rank; d++) {
        int64_t p = c->a[1 + d]->i[0];
        bool all = c->r->t.dim[d] == ref->t.dim[d];
        must(c, c->a[1 + d]->t.e == E_I32 && !c->a[1 + d]->t.vector, "places of i32");
        must(c, p >= 0 && p + c->r->t.dim[d] <= ref->t.dim[d], "it lies inside");
        must(c, all || (leading && c->r->t.dim[d] == 1), "it lies in one piece");
        if (all && c->r->t.dim[d] != 1) leading = false;
        at = at * ref->t.dim[d] + (size_t)p;
    }
    c->r->f = ref->f ? ref->f + at : NULL;
    c->r->i = ref->i ? ref->i + at : NULL;
}

/* The same memory without leading dimensions of 1. */
static void squeeze(call *c) {
    const type *x = &c->a[0]->t, *r = &c->r->t;
    must(c, x->ref && r->ref && x->where == r->where && x->e == r->e && x->rank >= r->rank,
         "memory");
    uint32_t gone = x->rank - r->rank;
    for (uint32_t d = 0; d < x->rank; d++)
        must(c, x->dim[d] == (d < gone ? 1 : r->dim[d - gone]), "dimensions of 1 in front");
    c->r->f = c->a[0]->f;
    c->r->i = c->a[0]->i;
}

static void scalar_load(call *c) {
    must(c,
         c->o->n_arg == 2 && c->a[0]->t.where == IN_SMEM && c->a[0]->t.rank == 1 &&
             c->a[1]->t.e == E_INDEX,
         "one number of SMEM");
    int32_t at = c->a[1]->i[0];
    must(c, at >= 0 && (uint32_t)at < c->a[0]->t.dim[0], "an index inside");
    c->r->i[0] = c->a[0]->i[at];
}

/* ---- Shapes ---- */

static void copy_at(call *c, size_t to, const value *from, size_t at) {
    if (from->f)
        c->r->f[to] = from->f[at];
    else
        c->r->i[to] = from->i[at];
}

static void shape_cast(call *c) {
    must(c,
         c->a[0]->t.vector && c->r->t.vector && c->a[0]->n == c->r->n &&
             c->a[0]->t.e == c->r->t.e,
         "the same elements");
    for (size_t i = 0; i < c->r->n; i++) copy_at(c, i, c->a[0], i);
}

static void broadcast(call *c) {
    const value *x = c->a[0];
    must(c, x->t.e == c->r->t.e && (x->t.rank == 0 || x->t.rank == c->r->t.rank), "the ranks");
    for (uint32_t d = 0; d < x->t.rank; d++)
        must(c, x->t.dim[d] == 1 || x->t.dim[d] == c->r->t.dim[d],
             "a dimension of 1 or the same");
    for (size_t i = 0; i < c->r->n; i++) {
        size_t rest = i, at = 0, stride = 1;
        for (uint32_t d = x->t.rank; d-- > 0;) {
            if (x->t.dim[d] != 1) at += rest % c->r->t.dim[d] * stride;
            rest /= c->r->t.dim[d];
            stride *= x->t.dim[d];
        }
        copy_at(c, i, x, at);
    }
}

static void slice(call *c) {
    int64_t off[MOSAIC_EVAL_RANK], size[MOSAIC_EVAL_RANK], stride[MOSAIC_EVAL_RANK];
    const value *x = c->a[0];
    uint32_t n = x->t.rank;
    must(c,
         c->r->t.rank == n && x->t.e == c->r->t.e &&
             mosaic_numbers(c->o->attrs, "offsets", off, n) == n &&
             mosaic_numbers(c->o->attrs, "sizes", size, n) == n &&
             mosaic_numbers(c->o->attrs, "strides", stride, n) == n,
         "one rank");
    for (uint32_t d = 0; d < n; d++)
        must(c,
             off[d] >= 0 && stride[d] == 1 && off[d] + size[d] <= x->t.dim[d] &&
                 size[d] == c->r->t.dim[d],
             "it lies inside");
    for (size_t i = 0; i < c->r->n; i++) {
        size_t rest = i, at = 0, step = 1;
        for (uint32_t d = n; d-- > 0;) {
            at += ((size_t)off[d] + rest % c->r->t.dim[d]) * step;
            rest /= c->r->t.dim[d];
            step *= x->t.dim[d];
        }
        copy_at(c, i, x, at);
    }
}

static void concatenate(call *c) {
    long dim = strtol(mosaic_attr(c->o->attrs, "dimension"), NULL, 10);
    must(c, (dim == 0 || dim == 1) && c->r->t.rank == 2, "matrices");
    size_t from = 0;
    for (uint32_t k = 0; k < c->o->n_arg; k++) {
        const value *x = c->a[k];
        must(c, x->t.rank == 2 && x->t.e == c->r->t.e && x->t.dim[!dim] == c->r->t.dim[!dim],
             "matching sides");
        must(c, from + x->t.dim[dim] <= c->r->t.dim[dim], "the result's size");
        for (size_t i = 0; i < x->n; i++) {
            size_t row = i / x->t.dim[1] + (dim == 0 ? from : 0),
                   col = i % x->t.dim[1] + (dim == 1 ? from : 0);
            copy_at(c, row * c->r->t.dim[1] + col, x, i);
        }
        from += x->t.dim[dim];
    }
    must(c, from == c->r->t.dim[dim], "the result's size");
}

static void transpose(call *c) {
    int64_t p[2];
    const value *x = c->a[0];
    must(c,
         mosaic_numbers(c->o->attrs, "permutation", p, 2) == 2 && p[0] == 1 && p[1] == 0 &&
             x->t.rank == 2 && x->t.dim[0] == c->r->t.dim[1] && x->t.dim[1] == c->r->t.dim[0] &&
             x->t.e == c->r->t.e,
         "a matrix and its transpose");
    for (size_t i = 0; i < x->n; i++)
        copy_at(c, i % x->t.dim[1] * x->t.dim[0] + i / x->t.dim[1], x, i);
}

/* ---- Sums and products ---- */

static void reduction(call *c) {
    const value *x = c->a[0], *start = c->a[1];
    int64_t dim;
    must(c,
         c->o->n_arg == 2 && x->t.rank == 2 && x->t.e == E_F32 &&
             mosaic_numbers(c->o->attrs, "reduction_dims", &dim, 1) == 1,
         "one dimension of a matrix of f32");
    must(c,
         same_type(&start->t, &c->r->t) && c->r->t.rank == 1 &&
             c->r->t.dim[0] == x->t.dim[!dim],
         "the result's size");
    bool sum = !strncmp(mosaic_attr(c->o->attrs, "kind"), "#vector.kind<add>", 17);
    must(c, sum || !strncmp(mosaic_attr(c->o->attrs, "kind"), "#vector.kind<maximumf>", 22),
         "add or maximumf");
    for (uint32_t i = 0; i < c->r->t.dim[0]; i++) {
        double acc = start->f[i];
        for (uint32_t j = 0; j < x->t.dim[dim]; j++) {
            float v = x->f[dim ? i * x->t.dim[1] + j : j * x->t.dim[1] + i];
            acc = sum ? acc + v : isnan(v) || isnan(acc) ? NAN : v > acc ? v : acc;
        }
        c->r->f[i] = (float)acc;
    }
}

/* #tpu.dot_dimension_numbers<[a], [b], [c], [d], [0, c, 1, d], [], []>. */
static void matmul(call *c) {
    const value *a = c->a[0], *b = c->a[1], *acc = c->a[2];
    const char *p = mosaic_attr(c->o->attrs, "dimension_numbers");
    int ka, kb, na, nb, oa, ob, end = 0;
    int got = sscanf(
        p, "#tpu.dot_dimension_numbers<[%d], [%d], [%d], [%d], [0, %d, 1, %d], [], []>%n", &ka,
        &kb, &na, &nb, &oa, &ob, &end);
    must(c, got == 6 && end && ka + na == 1 && kb + nb == 1 && oa == na && ob == nb,
         "two matrices");
    must(c,
         a->t.rank == 2 && b->t.rank == 2 && same_type(&acc->t, &c->r->t) && c->r->t.e == E_F32,
         "a sum in f32");
    must(c,
         a->t.dim[ka] == b->t.dim[kb] && a->t.dim[na] == c->r->t.dim[0] &&
             b->t.dim[nb] == c->r->t.dim[1],
         "the sizes");
    must(c, is_float(a->t.e) && a->t.e == b->t.e, "two operands of one type");
    bool exact = strstr(c->o->attrs, "precision = #tpu.contract_precision<fp32>") != NULL;
    must(c, exact == (a->t.e == E_F32), "full precision for f32, and only for it");
    size_t sa = ka ? 1 : a->t.dim[1], ra = ka ? a->t.dim[1] : 1, sb = kb ? 1 : b->t.dim[1],
           rb = kb ? b->t.dim[1] : 1;
    for (uint32_t i = 0; i < c->r->t.dim[0]; i++)
        for (uint32_t j = 0; j < c->r->t.dim[1]; j++) {
            size_t at = (size_t)i * c->r->t.dim[1] + j;
            double sum = 0;
            for (uint32_t k = 0; k < a->t.dim[ka]; k++)
                sum += (double)a->f[i * ra + k * sa] * b->f[j * rb + k * sb];
            c->r->f[at] = (float)(acc->f[at] + sum);
        }
}

static void copies(call *c) {
    mosaic_copy(c->o, c->a);
}

/* ---- Which operation ---- */

static const struct {
    const char *name;
    void (*run)(call *c);
    bool result;
} table[] = {
    {"arith.constant", constant, true},
    {"arith.cmpi", cmpi, true},
    {"arith.select", select_op, true},
    {"arith.extf", convert, true},
    {"arith.truncf", convert, true},
    {"arith.sitofp", convert, true},
    {"arith.index_cast", convert, true},
    {"vector.load", load, true},
    {"tpu.vector_store", store, false},
    {"memref.load", scalar_load, true},
    {"tpu.memref_slice", part, true},
    {"tpu.memref_squeeze", squeeze, true},
    {"tpu.enqueue_dma", copies, false},
    {"tpu.wait_dma2", copies, false},
    {"vector.shape_cast", shape_cast, true},
    {"vector.broadcast", broadcast, true},
    {"vector.extract_strided_slice", slice, true},
    {"vector.multi_reduction", reduction, true},
    {"tpu.concatenate", concatenate, true},
    {"tpu.transpose", transpose, true},
    {"tpu.iota", iota, true},
    {"tpu.matmul", matmul, true},
};

static void control(op *o, value **env) {
    if (!strcmp(o->name, "scf.if")) {
        if (o->n_arg != 1 || o->n_region != 2 || env[o->arg[0]]->t.e != E_I1)
            mosaic_fail("scf.if: a condition and two regions");
        mosaic_run_region(o->region[env[o->arg[0]]->i[0] ? 0 : 1], env);
        return;
    }
    if (o->n_arg != 3 || o->n_region != 1 || o->region[0]->n_arg != 1)
        mosaic_fail("scf.for: three bounds and one region");
    int32_t lo = env[o->arg[0]]->i[0], hi = env[o->arg[1]]->i[0], by = env[o->arg[2]]->i[0];
    if (by < 1) mosaic_fail("scf.for: a step below 1");
    for (int32_t i = lo; i < hi; i += by) {
        value *v = mosaic_value((type){.e = E_I32});
        v->i[0] = i;
        env[o->region[0]->arg[0]] = v;
        mosaic_run_region(o->region[0], env);
    }
}

static void run_op(op *o, value **env) {
    call c = {.o = o};
    for (uint32_t i = 0; i < o->n_arg; i++) {
        c.a[i] = env[o->arg[i]];
        if (!c.a[i]) mosaic_fail("%s: operand %u has no value yet", o->name, i);
        if (!same_type(&c.a[i]->t, &o->arg_type[i]))
            mosaic_fail("%s: operand %u is not of the type that is stated", o->name, i);
    }
    if (!strncmp(o->name, "scf.", 4)) {
        control(o, env);
        return;
    }
    if (o->has_result) {
        if (!o->keep) o->keep = mosaic_value(o->type);
        c.r = o->keep;
        env[o->result] = c.r;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].name, o->name) != 0) continue;
        must(&c, table[i].result == o->has_result, "a result or none");
        table[i].run(&c);
        return;
    }
    must(&c, o->has_result && (!strncmp(o->name, "arith.", 6) || !strncmp(o->name, "math.", 5)),
         "an unknown operation");
    elementwise(&c);
}

op *mosaic_run_region(region *g, value **env) {
    for (op *o = g->first; o; o = o->next) {
        if (!strcmp(o->name, "func.return") || !strcmp(o->name, "scf.yield")) return o;
        run_op(o, env);
    }
    mosaic_fail("a region without an end");
    return NULL;
}
