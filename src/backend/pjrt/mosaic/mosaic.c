/* mosaic.c - the operations of a Mosaic kernel as text.
 *
 * Generic form of MLIR, names with the prefix "stable_mosaic." that the serialisation format 1 wants.  Floats are written as
 * bit patterns, so a constant is exactly what C computed.  Same calls, same bytes.  Test: tests/unit/test_mosaic_*.c */
#include "backend/pjrt/mosaic/mosaic.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>

static const char *const elem_name[] = {
    "i1", "i32", "index", "f32", "bf16", "f8E4M3FN", "!tpu.dma_semaphore"};
static const uint32_t elem_bytes[] = {1, 4, 4, 4, 2, 1, 4};

/* ---- Types ---- */

static void put_shape(lg_buf *out, uint32_t rank, const uint32_t *dim, lg_mosaic_elem e) {
    for (uint32_t i = 0; i < rank; i++) lg_buf_printf(out, "%ux", dim[i]);
    lg_buf_puts(out, elem_name[e]);
}

static void put_type(lg_buf *out, const lg_mosaic_type *t) {
    static const char *const space[] = {[LG_M_VMEM] = "vmem",
                                        [LG_M_SMEM] = "smem",
                                        [LG_M_HBM] = "hbm",
                                        [LG_M_SEMAPHORE] = "semaphore_mem"};
    switch (t->form) {
    case LG_M_SCALAR: lg_buf_puts(out, elem_name[t->elem]); return;
    case LG_M_VECTOR: lg_buf_puts(out, "vector<"); break;
    default: lg_buf_puts(out, "memref<"); break;
    }
    put_shape(out, t->rank, t->dim, t->elem);
    if (space[t->form]) lg_buf_printf(out, ", #tpu.memory_space<%s>", space[t->form]);
    lg_buf_putc(out, '>');
}

static lg_mosaic_type make_type(lg_mosaic_form f, lg_mosaic_elem e, uint32_t rank,
                                const uint32_t *dim) {
    lg_mosaic_type t = {.form = f, .elem = e, .rank = rank};
    LG_ASSERT(rank <= LG_MOSAIC_RANK);
    for (uint32_t i = 0; i < rank; i++) {
        LG_ASSERT(dim[i] > 0);
        t.dim[i] = dim[i];
    }
    return t;
}

static lg_mosaic_type scalar_type(lg_mosaic_elem e) {
    return make_type(LG_M_SCALAR, e, 0, NULL);
}

lg_mosaic_type lg_mosaic_vector(lg_mosaic_elem e, uint32_t rank, const uint32_t *dim) {
    return make_type(LG_M_VECTOR, e, rank, dim);
}

lg_mosaic_type lg_mosaic_matrix(lg_mosaic_elem e, uint32_t rows, uint32_t cols) {
    return make_type(LG_M_VECTOR, e, 2, (uint32_t[]){rows, cols});
}

lg_mosaic_type lg_mosaic_vmem(lg_mosaic_elem e, uint32_t rank, const uint32_t *dim) {
    return make_type(LG_M_VMEM, e, rank, dim);
}

lg_mosaic_type lg_mosaic_semaphores(uint32_t n) {
    return make_type(LG_M_SEMAPHORE, LG_M_COPIES, 1, &n);
}

static bool same_shape(const lg_mosaic_type *a, const lg_mosaic_type *b) {
    return a->rank == b->rank && memcmp(a->dim, b->dim, a->rank * sizeof a->dim[0]) == 0;
}

static bool same_type(const lg_mosaic_type *a, const lg_mosaic_type *b) {
    return a->form == b->form && a->elem == b->elem && same_shape(a, b);
}

static uint64_t n_elem(const lg_mosaic_type *t) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++) n *= t->dim[i];
    return n;
}

static bool is_float(lg_mosaic_elem e) {
    return e == LG_M_F32 || e == LG_M_BF16 || e == LG_M_E4M3;
}

/* ---- Operations: one line each ---- */

static lg_mv new_value(lg_mosaic *m, lg_mosaic_type t) {
    return (lg_mv){.id = m->n_value++, .type = t};
}

static void indent(lg_mosaic *m) {
    for (uint32_t i = 0; i <= m->depth; i++) lg_buf_puts(m->out, "  ");
}

/* `%R = "stable_mosaic.OP"(%A, ...)`; r NULL for an operation without a result. */
static void op_head(lg_mosaic *m, const lg_mv *r, const char *op, const lg_mv *arg,
                    uint32_t n_arg) {
    indent(m);
    if (r) lg_buf_printf(m->out, "%%%u = ", r->id);
    lg_buf_printf(m->out, "\"stable_mosaic.%s\"(", op);
    for (uint32_t i = 0; i < n_arg; i++)
        lg_buf_printf(m->out, "%s%%%u", i ? ", " : "", arg[i].id);
    lg_buf_putc(m->out, ')');
}

/* ` : (T, ...) -> T` and the line's end. */
static void op_types(lg_mosaic *m, const lg_mv *r, const lg_mv *arg, uint32_t n_arg) {
    lg_buf_puts(m->out, " : (");
    for (uint32_t i = 0; i < n_arg; i++) {
        if (i) lg_buf_puts(m->out, ", ");
        put_type(m->out, &arg[i].type);
    }
    lg_buf_puts(m->out, ") -> ");
    if (r)
        put_type(m->out, &r->type);
    else
        lg_buf_puts(m->out, "()");
    lg_buf_putc(m->out, '\n');
}

static lg_mv op(lg_mosaic *m, lg_mosaic_type t, const char *name, const lg_mv *arg,
                uint32_t n_arg, const char *attr) {
    lg_mv r = new_value(m, t);
    op_head(m, &r, name, arg, n_arg);
    if (attr[0]) lg_buf_printf(m->out, " {%s}", attr);
    op_types(m, &r, arg, n_arg);
    return r;
}

lg_mv lg_mosaic_index(lg_mosaic *m, uint32_t v) {
    char attr[48];
    snprintf(attr, sizeof attr, "value = %u : index", v);
    return op(m, scalar_type(LG_M_INDEX), "arith.constant", NULL, 0, attr);
}

lg_mv lg_mosaic_i32(lg_mosaic *m, int32_t v) {
    char attr[48];
    snprintf(attr, sizeof attr, "value = %d : i32", v);
    return op(m, scalar_type(LG_M_I32), "arith.constant", NULL, 0, attr);
}

lg_mv lg_mosaic_fill_f32(lg_mosaic *m, uint32_t rows, uint32_t cols, float v) {
    char attr[96];
    snprintf(attr, sizeof attr, "value = dense<0x%08X> : vector<%ux%uxf32>",
             lg_num_bits_of_float(v), rows, cols);
    return op(m, lg_mosaic_matrix(LG_M_F32, rows, cols), "arith.constant", NULL, 0, attr);
}

lg_mv lg_mosaic_fill_i32(lg_mosaic *m, uint32_t rows, uint32_t cols, int32_t v) {
    char attr[96];
    snprintf(attr, sizeof attr, "value = dense<%d> : vector<%ux%uxi32>", v, rows, cols);
    return op(m, lg_mosaic_matrix(LG_M_I32, rows, cols), "arith.constant", NULL, 0, attr);
}

static const char *arith_attr(lg_mosaic_elem e) {
    return is_float(e) ? "fastmath = #arith.fastmath<none>"
                       : "overflowFlags = #arith.overflow<none>";
}

lg_mv lg_mosaic_un(lg_mosaic *m, const char *name, lg_mv x) {
    LG_ASSERT(is_float(x.type.elem));
    return op(m, x.type, name, &x, 1, arith_attr(x.type.elem));
}

lg_mv lg_mosaic_bin(lg_mosaic *m, const char *name, lg_mv x, lg_mv y) {
    LG_ASSERT(same_type(&x.type, &y.type));
    bool flags = is_float(x.type.elem) || !strcmp(name, "arith.addi") ||
                 !strcmp(name, "arith.subi") || !strcmp(name, "arith.muli");
    return op(m, x.type, name, (lg_mv[]){x, y}, 2, flags ? arith_attr(x.type.elem) : "");
}

lg_mv lg_mosaic_cmp(lg_mosaic *m, int predicate, lg_mv x, lg_mv y) {
    LG_ASSERT(same_type(&x.type, &y.type) && x.type.elem == LG_M_I32);
    lg_mosaic_type t = x.type;
    t.elem = LG_M_I1;
    char attr[32];
    snprintf(attr, sizeof attr, "predicate = %d : i64", predicate);
    return op(m, t, "arith.cmpi", (lg_mv[]){x, y}, 2, attr);
}

lg_mv lg_mosaic_select(lg_mosaic *m, lg_mv c, lg_mv x, lg_mv y) {
    LG_ASSERT(c.type.elem == LG_M_I1 && same_type(&x.type, &y.type));
    LG_ASSERT(c.type.form == LG_M_SCALAR || same_shape(&c.type, &x.type));
    return op(m, x.type, "arith.select", (lg_mv[]){c, x, y}, 3, "");
}

lg_mv lg_mosaic_to(lg_mosaic *m, lg_mv x, lg_mosaic_elem e) {
    lg_mosaic_type t = x.type;
    t.elem = e;
    if (x.type.elem == e) return x;
    if (e == LG_M_INDEX) {
        LG_ASSERT(x.type.elem == LG_M_I32 && x.type.form == LG_M_SCALAR);
        return op(m, t, "arith.index_cast", &x, 1, "");
    }
    LG_ASSERT(is_float(x.type.elem) && is_float(e) && elem_bytes[e] != elem_bytes[x.type.elem]);
    return op(m, t, elem_bytes[e] > elem_bytes[x.type.elem] ? "arith.extf" : "arith.truncf", &x,
              1, "");
}

lg_mv lg_mosaic_load(lg_mosaic *m, lg_mv ref, const lg_mv *idx, const uint32_t *shape) {
    LG_ASSERT(ref.type.form == LG_M_VMEM);
    lg_mv arg[1 + LG_MOSAIC_RANK] = {ref};
    for (uint32_t i = 0; i < ref.type.rank; i++) {
        LG_ASSERT(idx[i].type.elem == LG_M_INDEX && shape[i] <= ref.type.dim[i]);
        arg[1 + i] = idx[i];
    }
    return op(m, lg_mosaic_vector(ref.type.elem, ref.type.rank, shape), "vector.load", arg,
              1 + ref.type.rank, "");
}

void lg_mosaic_store(lg_mosaic *m, lg_mv v, lg_mv ref, const lg_mv *idx) {
    LG_ASSERT(ref.type.form == LG_M_VMEM && v.type.form == LG_M_VECTOR &&
              v.type.elem == ref.type.elem);
    LG_ASSERT(v.type.rank == ref.type.rank);
    lg_mv arg[2 + LG_MOSAIC_RANK] = {v, ref};
    for (uint32_t i = 0; i < ref.type.rank; i++) {
        LG_ASSERT(idx[i].type.elem == LG_M_INDEX && v.type.dim[i] <= ref.type.dim[i]);
        arg[2 + i] = idx[i];
    }
    op_head(m, NULL, "tpu.vector_store", arg, 2 + ref.type.rank);
    lg_buf_printf(
        m->out,
        " {add = false, operandSegmentSizes = array<i32: 1, 1, %u, 0>, strides = array<i32>}",
        ref.type.rank);
    op_types(m, NULL, arg, 2 + ref.type.rank);
}

lg_mv lg_mosaic_scalar(lg_mosaic *m, lg_mv ref, lg_mv idx) {
    LG_ASSERT(ref.type.form == LG_M_SMEM && ref.type.rank == 1 && idx.type.elem == LG_M_INDEX);
    return op(m, scalar_type(ref.type.elem), "memref.load", (lg_mv[]){ref, idx}, 2, "");
}

lg_mv lg_mosaic_part(lg_mosaic *m, lg_mv ref, const lg_mv *at, uint32_t n_at) {
    lg_mosaic_type t = ref.type, cut = ref.type;
    lg_mv arg[1 + LG_MOSAIC_RANK] = {ref};
    char attr[64];
    LG_ASSERT(n_at >= 1 && n_at <= t.rank && t.form != LG_M_VECTOR && t.form != LG_M_SCALAR);
    for (uint32_t i = 0; i < t.rank; i++) {
        LG_ASSERT(i >= n_at || (at[i].type.form == LG_M_SCALAR && at[i].type.elem == LG_M_I32));
        arg[1 + i] = i < n_at ? at[i] : lg_mosaic_i32(m, 0);
        if (i < n_at) t.dim[i] = 1;
    }
    cut.rank = t.rank - n_at;
    memmove(cut.dim, t.dim + n_at, cut.rank * sizeof cut.dim[0]);
    snprintf(attr, sizeof attr, "operandSegmentSizes = array<i32: 1, %u, 0>", t.rank);
    lg_mv part = op(m, t, "tpu.memref_slice", arg, 1 + t.rank, attr);
    return op(m, cut, "tpu.memref_squeeze", &part, 1, "");
}

static bool copyable(const lg_mv *from, const lg_mv *to, const lg_mv *semaphore) {
    return same_shape(&from->type, &to->type) && from->type.elem == to->type.elem &&
           semaphore->type.form == LG_M_SEMAPHORE && semaphore->type.rank == 0;
}

void lg_mosaic_copy(lg_mosaic *m, lg_mv from, lg_mv to, lg_mv semaphore) {
    const lg_mv arg[3] = {from, to, semaphore};
    LG_ASSERT(copyable(&from, &to, &semaphore));
    op_head(m, NULL, "tpu.enqueue_dma", arg, 3);
    lg_buf_puts(m->out, " {operandSegmentSizes = array<i32: 1, 0, 1, 1, 0, 0, 0>, "
                        "priority = 0 : i32, strict_ordering = false}");
    op_types(m, NULL, arg, 3);
}

void lg_mosaic_wait(lg_mosaic *m, lg_mv from, lg_mv to, lg_mv semaphore) {
    const lg_mv arg[3] = {semaphore, from, to};
    LG_ASSERT(copyable(&from, &to, &semaphore));
    op_head(m, NULL, "tpu.wait_dma2", arg, 3);
    lg_buf_puts(m->out, " {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, "
                        "strict_ordering = false}");
    op_types(m, NULL, arg, 3);
}

lg_mv lg_mosaic_shape(lg_mosaic *m, lg_mv x, uint32_t rank, const uint32_t *dim) {
    lg_mosaic_type t = lg_mosaic_vector(x.type.elem, rank, dim);
    LG_ASSERT(x.type.form == LG_M_VECTOR && n_elem(&t) == n_elem(&x.type));
    return op(m, t, "vector.shape_cast", &x, 1, "");
}

lg_mv lg_mosaic_matrix_of(lg_mosaic *m, lg_mv x, uint32_t rows, uint32_t cols) {
    return lg_mosaic_shape(m, x, 2, (uint32_t[]){rows, cols});
}

lg_mv lg_mosaic_spread_to(lg_mosaic *m, lg_mv x, uint32_t rank, const uint32_t *dim) {
    lg_mosaic_type t = lg_mosaic_vector(x.type.elem, rank, dim);
    if (same_type(&t, &x.type)) return x;
    LG_ASSERT(x.type.form == LG_M_SCALAR ||
              (x.type.form == LG_M_VECTOR && x.type.rank == rank));
    for (uint32_t i = 0; i < x.type.rank; i++)
        LG_ASSERT(x.type.dim[i] == 1 || x.type.dim[i] == dim[i]);
    return op(m, t, "vector.broadcast", &x, 1, "");
}

lg_mv lg_mosaic_spread(lg_mosaic *m, lg_mv x, uint32_t rows, uint32_t cols) {
    return lg_mosaic_spread_to(m, x, 2, (uint32_t[]){rows, cols});
}

static void put_list(char *s, size_t cap, const char *name, const uint32_t *v, uint32_t n) {
    size_t at = (size_t)snprintf(s, cap, "%s = [", name);
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(s + at, cap - at, "%s%u", i ? ", " : "", v[i]);
    snprintf(s + at, cap - at, "]");
}

lg_mv lg_mosaic_slice_of(lg_mosaic *m, lg_mv x, const uint32_t *at, const uint32_t *dim) {
    static const uint32_t one[LG_MOSAIC_RANK] = {1, 1, 1, 1, 1, 1};
    char off[96], size[96], stride[96], attr[300];
    for (uint32_t i = 0; i < x.type.rank; i++)
        LG_ASSERT(dim[i] > 0 && at[i] + dim[i] <= x.type.dim[i]);
    put_list(off, sizeof off, "offsets", at, x.type.rank);
    put_list(size, sizeof size, "sizes", dim, x.type.rank);
    put_list(stride, sizeof stride, "strides", one, x.type.rank);
    snprintf(attr, sizeof attr, "%s, %s, %s", off, size, stride);
    return op(m, lg_mosaic_vector(x.type.elem, x.type.rank, dim),
              "vector.extract_strided_slice", &x, 1, attr);
}

lg_mv lg_mosaic_slice(lg_mosaic *m, lg_mv x, uint32_t row, uint32_t col, uint32_t rows,
                      uint32_t cols) {
    LG_ASSERT(x.type.rank == 2);
    return lg_mosaic_slice_of(m, x, (uint32_t[]){row, col}, (uint32_t[]){rows, cols});
}

lg_mv lg_mosaic_stack(lg_mosaic *m, const lg_mv *x, uint32_t n, int dim) {
    LG_ASSERT(n > 0 && x[0].type.rank == 2 && (dim == 0 || dim == 1));
    lg_mosaic_type t = x[0].type;
    if (n == 1) return x[0];
    for (uint32_t i = 1; i < n; i++) {
        LG_ASSERT(x[i].type.rank == 2 && x[i].type.elem == t.elem &&
                  x[i].type.dim[!dim] == t.dim[!dim]);
        t.dim[dim] += x[i].type.dim[dim];
    }
    char attr[32];
    snprintf(attr, sizeof attr, "dimension = %d : i32", dim);
    return op(m, t, "tpu.concatenate", x, n, attr);
}

/* The reduction has a vector of one dimension as its result, which then gets the other one back. */
static lg_mv reduce(lg_mosaic *m, lg_mv x, int dim, const char *kind, float start) {
    LG_ASSERT(x.type.rank == 2 && x.type.elem == LG_M_F32 && (dim == 0 || dim == 1));
    uint32_t left = x.type.dim[!dim];
    lg_mosaic_type t = lg_mosaic_vector(LG_M_F32, 1, &left);
    char attr[96];
    snprintf(attr, sizeof attr, "value = dense<0x%08X> : vector<%uxf32>",
             lg_num_bits_of_float(start), left);
    lg_mv acc = op(m, t, "arith.constant", NULL, 0, attr);
    snprintf(attr, sizeof attr, "kind = #vector.kind<%s>, reduction_dims = array<i64: %d>",
             kind, dim);
    lg_mv r = op(m, t, "vector.multi_reduction", (lg_mv[]){x, acc}, 2, attr);
    return dim == 0 ? lg_mosaic_matrix_of(m, r, 1, left) : lg_mosaic_matrix_of(m, r, left, 1);
}

lg_mv lg_mosaic_sum(lg_mosaic *m, lg_mv x, int dim) {
    return reduce(m, x, dim, "add", 0.0f);
}

lg_mv lg_mosaic_max(lg_mosaic *m, lg_mv x, int dim) {
    return reduce(m, x, dim, "maximumf", -3.4028234663852886e38f);
}

lg_mv lg_mosaic_iota(lg_mosaic *m, uint32_t rows, uint32_t cols, int dim) {
    char attr[48];
    snprintf(attr, sizeof attr, "dimensions = array<i32: %d>", dim);
    return op(m, lg_mosaic_matrix(LG_M_I32, rows, cols), "tpu.iota", NULL, 0, attr);
}

lg_mv lg_mosaic_transpose(lg_mosaic *m, lg_mv x) {
    LG_ASSERT(x.type.rank == 2);
    return op(m, lg_mosaic_matrix(x.type.elem, x.type.dim[1], x.type.dim[0]), "tpu.transpose",
              &x, 1, "permutation = array<i64: 1, 0>");
}

lg_mv lg_mosaic_matmul(lg_mosaic *m, lg_mv a, lg_mv b, lg_mv acc, bool at, bool bt) {
    LG_ASSERT(a.type.rank == 2 && b.type.rank == 2 && acc.type.rank == 2 &&
              acc.type.elem == LG_M_F32);
    LG_ASSERT(a.type.dim[!at] == b.type.dim[bt] && a.type.dim[at] == acc.type.dim[0] &&
              b.type.dim[!bt] == acc.type.dim[1]);
    char attr[400];
    snprintf(attr, sizeof attr,
             "dimension_numbers = #tpu.dot_dimension_numbers<[%d], [%d], [%d], [%d], [0, %d, "
             "1, %d], [], []>, %s"
             "transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = false",
             !at, bt, at, !bt, at, !bt,
             a.type.elem == LG_M_F32 ? "precision = #tpu.contract_precision<fp32>, " : "");
    return op(m, acc.type, "tpu.matmul", (lg_mv[]){a, b, acc}, 3, attr);
}

/* ---- Control ---- */

void lg_mosaic_if(lg_mosaic *m, lg_mv c) {
    LG_ASSERT(c.type.form == LG_M_SCALAR && c.type.elem == LG_M_I1);
    op_head(m, NULL, "scf.if", &c, 1);
    lg_buf_puts(m->out, " ({\n");
    m->depth++;
}

static void yield(lg_mosaic *m) {
    indent(m);
    lg_buf_puts(m->out, "\"stable_mosaic.scf.yield\"() : () -> ()\n");
}

void lg_mosaic_if_end(lg_mosaic *m) {
    yield(m);
    m->depth--;
    indent(m);
    lg_buf_puts(m->out, "}, {\n");
    m->depth++;
    yield(m);
    m->depth--;
    indent(m);
    lg_buf_puts(m->out, "}) : (i1) -> ()\n");
}

lg_mv lg_mosaic_for(lg_mosaic *m, lg_mv lo, lg_mv hi) {
    lg_mv one = lg_mosaic_i32(m, 1), i = new_value(m, scalar_type(LG_M_I32));
    LG_ASSERT(lo.type.elem == LG_M_I32 && hi.type.elem == LG_M_I32);
    op_head(m, NULL, "scf.for", (lg_mv[]){lo, hi, one}, 3);
    lg_buf_puts(m->out, " ({\n");
    m->depth++;
    indent(m);
    lg_buf_printf(m->out, "^bb0(%%%u: i32):\n", i.id);
    return i;
}

void lg_mosaic_for_end(lg_mosaic *m) {
    yield(m);
    m->depth--;
    indent(m);
    lg_buf_puts(m->out, "}) : (i32, i32, i32) -> ()\n");
}
