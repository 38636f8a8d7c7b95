/* hlo_ops.c - the writer of hlo.h: rows by number, sums, order, loops, collectives.
 *
 * Test: tests/unit/test_step.c */
#include "backend/pjrt/step/hlo_text.h"

#include <stdio.h>
#include <string.h>

/* Text of attributes, growing. */
typedef struct attr {
    char s[2048];
    size_t n;
} attr;

__attribute__((format(printf, 2, 3))) static void say(attr *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(a->s + a->n, sizeof a->s - a->n, fmt, ap);
    va_end(ap);
    LG_ASSERT(n >= 0 && a->n + (size_t)n < sizeof a->s);
    a->n += (size_t)n;
}

/* "NAME = [from, from + 1, ...]" with n entries. */
static void say_run(attr *a, const char *name, uint32_t from, uint32_t n) {
    say(a, "%s = [", name);
    for (uint32_t i = 0; i < n; i++) say(a, "%s%u", i ? ", " : "", from + i);
    say(a, "]");
}

/* ---- rows by number ---- */

/* Shape of the rows of x that idx names: batch axes of idx, then what is left of x. */
static bool rows_type(lg_hlo *h, lg_hlo_val x, lg_hlo_val idx, lg_hlo_type *to, uint32_t *k) {
    if (!lg_hlo_text_ok(h, x) || !lg_hlo_text_ok(h, idx)) return false;
    lg_hlo_type t = h->def[x].type, i = h->def[idx].type;
    if (i.dt != LG_HLO_I32 || i.n_dim == 0 || i.dim[i.n_dim - 1] > t.n_dim) {
        lg_hlo_fail(h, "row numbers of a wrong type");
        return false;
    }
    *k = (uint32_t)i.dim[i.n_dim - 1];
    *to = (lg_hlo_type){.dt = t.dt, .n_dim = i.n_dim - 1 + t.n_dim - *k};
    if (to->n_dim > LG_HLO_MAX_DIM) {
        lg_hlo_fail(h, "rows by number of %u axes", to->n_dim);
        return false;
    }
    for (uint32_t d = 0; d < i.n_dim - 1; d++) to->dim[d] = i.dim[d];
    for (uint32_t d = *k; d < t.n_dim; d++) to->dim[i.n_dim - 1 + d - *k] = t.dim[d];
    return true;
}

lg_hlo_val lg_hlo_take(lg_hlo *h, lg_hlo_val x, lg_hlo_val idx) {
    lg_hlo_type to;
    uint32_t k;
    attr a = {.n = 0};
    if (!rows_type(h, x, idx, &to, &k)) return 0;
    lg_hlo_type t = h->def[x].type;
    uint32_t n_batch = h->def[idx].type.n_dim - 1;
    say(&a, "{dimension_numbers = #stablehlo.gather<");
    say_run(&a, "offset_dims", n_batch, t.n_dim - k);
    say_run(&a, ", collapsed_slice_dims", 0, k);
    say_run(&a, ", start_index_map", 0, k);
    say(&a, ", index_vector_dim = %u>, slice_sizes = array<i64: ", n_batch);
    for (uint32_t i = 0; i < t.n_dim; i++)
        say(&a, "%s%lld", i ? ", " : "", i < k ? 1LL : (long long)t.dim[i]);
    say(&a, ">, indices_are_sorted = false}");
    return lg_hlo_text_op(h, "stablehlo.gather", (lg_hlo_val[]){x, idx}, 2, a.s, to);
}

static lg_hlo_val scatter(lg_hlo *h, lg_hlo_val x, lg_hlo_val idx, lg_hlo_val rows, bool add) {
    lg_hlo_type want;
    lg_hlo_name one, s;
    uint32_t k;
    attr a = {.n = 0};
    if (!rows_type(h, x, idx, &want, &k) || !lg_hlo_text_ok(h, rows)) return 0;
    lg_hlo_type t = h->def[x].type;
    if (!lg_hlo_same(want, h->def[rows].type)) {
        lg_hlo_fail(h, "rows %s are written where %s fit",
                    lg_hlo_text_type(h->def[rows].type, &s), lg_hlo_text_type(want, &one));
        return 0;
    }
    uint32_t n_batch = h->def[idx].type.n_dim - 1;
    lg_hlo_text_type(lg_hlo_scalar(t.dt), &one);
    say(&a, "({\n    ^bb0(%%ro: %s, %%rn: %s):\n", one.s, one.s);
    if (add)
        say(&a, "      %%rr = \"stablehlo.add\"(%%ro, %%rn) : (%s, %s) -> %s\n", one.s, one.s,
            one.s);
    say(&a, "      \"stablehlo.return\"(%%%s) : (%s) -> ()\n    }) ", add ? "rr" : "rn", one.s);
    say(&a, "{scatter_dimension_numbers = #stablehlo.scatter<");
    say_run(&a, "update_window_dims", n_batch, t.n_dim - k);
    say_run(&a, ", inserted_window_dims", 0, k);
    say_run(&a, ", scatter_dims_to_operand_dims", 0, k);
    say(&a, ", index_vector_dim = %u>, indices_are_sorted = false, unique_indices = false}",
        n_batch);
    return lg_hlo_text_op(h, "stablehlo.scatter", (lg_hlo_val[]){x, idx, rows}, 3, a.s, t);
}

lg_hlo_val lg_hlo_put(lg_hlo *h, lg_hlo_val x, lg_hlo_val idx, lg_hlo_val rows) {
    return scatter(h, x, idx, rows, false);
}

lg_hlo_val lg_hlo_put_add(lg_hlo *h, lg_hlo_val x, lg_hlo_val idx, lg_hlo_val rows) {
    return scatter(h, x, idx, rows, true);
}

lg_hlo_val lg_hlo_idx(lg_hlo *h, const lg_hlo_val *col, uint32_t k) {
    lg_hlo_val part[LG_HLO_MAX_DIM];
    LG_ASSERT(k <= LG_HLO_MAX_DIM);
    for (uint32_t i = 0; i < k; i++) {
        lg_hlo_type t = lg_hlo_type_at(h, col[i]);
        if (t.n_dim >= LG_HLO_MAX_DIM) {
            lg_hlo_fail(h, "row numbers of %u axes", t.n_dim);
            return 0;
        }
        t.dim[t.n_dim++] = 1;
        part[i] = lg_hlo_reshape(h, col[i], t);
    }
    return lg_hlo_concat(h, lg_hlo_type_at(h, part[0]).n_dim - 1, part, k);
}

/* ---- sums ---- */

/* Where the reduction of x by op starts. */
static lg_hlo_val start_of(lg_hlo *h, const char *op, lg_hlo_dt dt) {
    lg_hlo_type one = lg_hlo_scalar(dt);
    bool add = strcmp(op, "add") == 0, max = strcmp(op, "maximum") == 0;
    if (dt == LG_HLO_F32)
        return lg_hlo_float(h, one, add ? 0.0f : max ? -__builtin_inff() : __builtin_inff());
    if (dt == LG_HLO_I1) return lg_hlo_int(h, one, strcmp(op, "and") == 0);
    if (dt != LG_HLO_I32) lg_hlo_fail(h, "a reduction of a narrow type");
    return lg_hlo_int(h, one, add ? 0 : max ? INT32_MIN : INT32_MAX);
}

lg_hlo_val lg_hlo_reduce(lg_hlo *h, const char *op, lg_hlo_val x, uint32_t axis) {
    attr a = {.n = 0};
    lg_hlo_name one;
    if (!lg_hlo_text_ok(h, x)) return 0;
    lg_hlo_type t = h->def[x].type, to = {.dt = t.dt, .n_dim = t.n_dim - 1};
    if (axis >= t.n_dim) {
        lg_hlo_fail(h, "a reduction of axis %u of %u", axis, t.n_dim);
        return 0;
    }
    for (uint32_t i = 0, n = 0; i < t.n_dim; i++)
        if (i != axis) to.dim[n++] = t.dim[i];
    lg_hlo_text_type(lg_hlo_scalar(t.dt), &one);
    say(&a,
        "({\n    ^bb0(%%ra: %s, %%rb: %s):\n      %%rr = \"stablehlo.%s\"(%%ra, %%rb) : (%s, "
        "%s) -> "
        "%s\n      \"stablehlo.return\"(%%rr) : (%s) -> ()\n    }) {dimensions = array<i64: "
        "%u>}",
        one.s, one.s, op, one.s, one.s, one.s, one.s, axis);
    lg_hlo_val start = start_of(h, op, t.dt);
    return lg_hlo_text_op(h, "stablehlo.reduce", (lg_hlo_val[]){x, start}, 2, a.s, to);
}

/* The parts of "th,oh->to". */
typedef struct spec {
    char a[LG_HLO_MAX_DIM + 1], b[LG_HLO_MAX_DIM + 1], out[LG_HLO_MAX_DIM + 1];
} spec;

static bool read_spec(const char *text, spec *s) {
    return sscanf(text, "%6[a-z],%6[a-z]->%6[a-z]", s->a, s->b, s->out) == 3;
}

static uint32_t place(const char *letters, char c) {
    return (uint32_t)(strchr(letters, c) - letters);
}

/* "NAME = [axes of the letters both have]", those that the result has too (batch) or has not (contracted). */
static void say_common(attr *a, const char *name, const spec *s, bool rhs, bool batch) {
    const char *in = rhs ? s->b : s->a;
    uint32_t n = 0;
    say(a, "%s = [", name);
    for (const char *c = s->a; *c; c++)
        if (strchr(s->b, *c) && (strchr(s->out, *c) != NULL) == batch)
            say(a, "%s%u", n++ ? ", " : "", place(in, *c));
    say(a, "]");
}

lg_hlo_val lg_hlo_dot(lg_hlo *h, const char *text, lg_hlo_val x, lg_hlo_val y) {
    spec s;
    attr a = {.n = 0};
    if (!lg_hlo_text_ok(h, x) || !lg_hlo_text_ok(h, y)) return 0;
    lg_hlo_type tx = h->def[x].type, ty = h->def[y].type, to = {.dt = LG_HLO_F32};
    if (!read_spec(text, &s) || strlen(s.a) != tx.n_dim || strlen(s.b) != ty.n_dim ||
        tx.dt != ty.dt) {
        lg_hlo_name n, m;
        lg_hlo_fail(h, "product %s of %s and %s", text, lg_hlo_text_type(tx, &n),
                    lg_hlo_text_type(ty, &m));
        return 0;
    }
    /* What dot_general gives: batch axes, then the rest of x, then the rest of y. */
    char order[2 * LG_HLO_MAX_DIM + 1] = "", perm[LG_HLO_MAX_DIM + 1] = "";
    uint32_t n = 0;
    for (int pass = 0; pass < 3; pass++)
        for (const char *c = pass == 2 ? s.b : s.a; *c; c++) {
            const char *other = pass == 2 ? s.a : s.b;
            bool both = strchr(other, *c) != NULL, kept = strchr(s.out, *c) != NULL;
            int64_t dim = pass == 2 ? ty.dim[place(s.b, *c)] : tx.dim[place(s.a, *c)];
            if (both && dim != (pass == 2 ? tx.dim[place(s.a, *c)] : ty.dim[place(s.b, *c)]))
                lg_hlo_fail(h, "product %s: sizes of %c differ", text, *c);
            if (!both && !kept) lg_hlo_fail(h, "product %s: %c is lost", text, *c);
            if (!kept || both != (pass == 0) || n >= LG_HLO_MAX_DIM) continue;
            order[n] = *c;
            to.dim[n++] = dim;
        }
    to.n_dim = n;
    if (n != strlen(s.out)) lg_hlo_fail(h, "product %s: another result", text);
    if (h->failed) return 0;
    say(&a, "{dot_dimension_numbers = #stablehlo.dot<");
    say_common(&a, "lhs_batching_dimensions", &s, false, true);
    say_common(&a, ", rhs_batching_dimensions", &s, true, true);
    say_common(&a, ", lhs_contracting_dimensions", &s, false, false);
    say_common(&a, ", rhs_contracting_dimensions", &s, true, false);
    say(&a, ">");
    if (tx.dt == LG_HLO_F32)
        say(&a, ", precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision "
                "HIGHEST>]");
    say(&a, "}");
    lg_hlo_val r = lg_hlo_text_op(h, "stablehlo.dot_general", (lg_hlo_val[]){x, y}, 2, a.s, to);
    if (strcmp(order, s.out) == 0) return r;
    for (uint32_t i = 0; i < n; i++) perm[i] = (char)('0' + place(order, s.out[i]));
    return lg_hlo_transpose(h, r, perm);
}

lg_hlo_val lg_hlo_solve(lg_hlo *h, lg_hlo_val a, lg_hlo_val b) {
    if (!lg_hlo_text_ok(h, a) || !lg_hlo_text_ok(h, b)) return 0;
    lg_hlo_type ta = h->def[a].type, tb = h->def[b].type;
    bool fits =
        ta.dt == LG_HLO_F32 && tb.dt == LG_HLO_F32 && ta.n_dim == tb.n_dim && ta.n_dim >= 2;
    for (uint32_t i = 0; fits && i + 1 < ta.n_dim; i++) fits = ta.dim[i] == tb.dim[i];
    if (!fits || ta.dim[ta.n_dim - 1] != ta.dim[ta.n_dim - 2]) {
        lg_hlo_fail(h, "a triangular system of unlike shapes");
        return 0;
    }
    return lg_hlo_text_op(
        h, "stablehlo.triangular_solve", (lg_hlo_val[]){a, b}, 2,
        "<{left_side = true, lower = true, unit_diagonal = true, transpose_a = "
        "#stablehlo<transpose NO_TRANSPOSE>}>",
        tb);
}

/* ---- order ---- */

void lg_hlo_top_k(lg_hlo *h, lg_hlo_val x, int64_t k, lg_hlo_val *value, lg_hlo_val *at) {
    attr a = {.n = 0};
    lg_hlo_type t[2] = {lg_hlo_type_at(h, x)};
    lg_hlo_val r[2];
    if (t[0].n_dim == 0 || k > t[0].dim[t[0].n_dim - 1]) {
        lg_hlo_fail(h, "the best %lld of too few", (long long)k);
        *value = *at = 0;
        return;
    }
    t[0].dim[t[0].n_dim - 1] = k;
    t[1] = lg_hlo_as(t[0], LG_HLO_I32);
    say(&a, "<{k = %lld : i64}>", (long long)k);
    lg_hlo_op(h, "chlo.top_k", &x, 1, a.s, t, 2, r);
    *value = r[0];
    *at = r[1];
}

void lg_hlo_sort(lg_hlo *h, lg_hlo_val *key, lg_hlo_val *with) {
    lg_hlo_type t[2] = {lg_hlo_type_at(h, *key), lg_hlo_type_at(h, *with)};
    lg_hlo_val arg[2] = {*key, *with}, r[2];
    lg_hlo_name a, b;
    attr s = {.n = 0};
    if (t[0].n_dim != 1 || !lg_hlo_same(t[0], lg_hlo_as(t[1], t[0].dt)))
        lg_hlo_fail(h, "a sort of unlike lists");
    lg_hlo_text_type(lg_hlo_scalar(t[0].dt), &a);
    lg_hlo_text_type(lg_hlo_scalar(t[1].dt), &b);
    say(&s,
        "({\n    ^bb0(%%ra: %s, %%rb: %s, %%rc: %s, %%rd: %s):\n      %%rr = "
        "\"stablehlo.compare\"(%%ra, %%rb) {comparison_direction = "
        "#stablehlo<comparison_direction "
        "LT>} : (%s, %s) -> tensor<i1>\n      \"stablehlo.return\"(%%rr) : (tensor<i1>) -> "
        "()\n    "
        "}) {dimension = 0 : i64, is_stable = true}",
        a.s, a.s, b.s, b.s, a.s, a.s);
    lg_hlo_op(h, "stablehlo.sort", arg, 2, s.s, t, 2, r);
    *key = r[0];
    *with = r[1];
}

/* ---- loops ---- */

/* "name i: type" of the counter and everything carried, in parentheses; v: their values, or NULL for %c0 ... */
static void put_block(lg_hlo *h, const lg_hlo_type *t, const lg_hlo_val *v, uint32_t n) {
    lg_hlo_name s, name;
    lg_buf_puts(&h->text, "    ^bb0(");
    for (uint32_t i = 0; i < n; i++) {
        if (v) {
            lg_hlo_text_val(h, v[i], &name);
        } else {
            snprintf(name.s, sizeof name.s, "%%c%u", i);
        }
        lg_buf_printf(&h->text, "%s%s: %s", i ? ", " : "", name.s, lg_hlo_text_type(t[i], &s));
    }
    lg_buf_puts(&h->text, "):\n");
}

static bool may_open(lg_hlo *h, lg_hlo_val n, const lg_hlo_val *carry, uint32_t n_carry) {
    if (n_carry > LG_HLO_MAX_CARRY || h->n_open > LG_HLO_MAX_DEPTH)
        lg_hlo_fail(h, "a loop too deep or too wide");
    if (!lg_hlo_text_ok(h, n)) return false;
    if (!lg_hlo_same(h->def[n].type, lg_hlo_scalar(LG_HLO_I32)))
        lg_hlo_fail(h, "a loop's count is no scalar i32");
    for (uint32_t i = 0; i < n_carry; i++)
        if (!lg_hlo_text_ok(h, carry[i])) return false;
    return !h->failed;
}

lg_hlo_val lg_hlo_for(lg_hlo *h, lg_hlo_val n, lg_hlo_val *carry, uint32_t n_carry) {
    lg_hlo_type type[LG_HLO_MAX_CARRY + 1];
    lg_hlo_val v[LG_HLO_MAX_CARRY + 1];
    lg_hlo_name s;
    if (!may_open(h, n, carry, n_carry)) return 0;
    lg_hlo_val zero = lg_hlo_i32(h, 0);
    type[0] = lg_hlo_scalar(LG_HLO_I32);
    for (uint32_t i = 0; i < n_carry; i++) type[i + 1] = h->def[carry[i]].type;
    lg_hlo_text_new_group(h, type, n_carry + 1, v);
    if (h->failed) return 0;
    uint32_t depth = h->n_open - 1;
    h->loop[depth].result = v[0];
    h->loop[depth].n_carry = n_carry;
    lg_buf_printf(&h->text, "    %%v%u", h->def[v[0]].number);
    if (n_carry > 0) lg_buf_printf(&h->text, ":%u", n_carry + 1);
    lg_buf_printf(&h->text, " = \"stablehlo.while\"(%s", lg_hlo_text_val(h, zero, &s));
    for (uint32_t i = 0; i < n_carry; i++)
        lg_buf_printf(&h->text, ", %s", lg_hlo_text_val(h, carry[i], &s));
    lg_buf_puts(&h->text, ") ({\n");
    put_block(h, type, NULL, n_carry + 1);
    lg_buf_printf(
        &h->text,
        "      %%cr = \"stablehlo.compare\"(%%c0, %s) {comparison_direction = "
        "#stablehlo<comparison_direction LT>} : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
        "      \"stablehlo.return\"(%%cr) : (tensor<i1>) -> ()\n    }, {\n",
        lg_hlo_text_val(h, n, &s));
    h->region[h->n_open++] = ++h->n_region;
    for (uint32_t i = 0; i <= n_carry; i++) v[i] = lg_hlo_text_new(h, type[i]);
    put_block(h, type, v, n_carry + 1);
    h->loop[depth].i = v[0];
    for (uint32_t i = 0; i < n_carry; i++) carry[i] = v[i + 1];
    return v[0];
}

void lg_hlo_end_for(lg_hlo *h, lg_hlo_val *carry, uint32_t n_carry) {
    lg_hlo_name s;
    if (h->failed) return;
    if (h->n_open < 2 || h->loop[h->n_open - 2].n_carry != n_carry) {
        lg_hlo_fail(h, "the end of another loop");
        return;
    }
    lg_hlo_val r = h->loop[h->n_open - 2].result,
               next = lg_hlo_bin_i(h, "add", h->loop[h->n_open - 2].i, 1);
    for (uint32_t i = 0; i < n_carry; i++) {
        if (!lg_hlo_text_ok(h, carry[i])) return;
        if (!lg_hlo_same(h->def[carry[i]].type, h->def[r + 1 + i].type)) {
            lg_hlo_fail(h, "value %u of a loop changes its type", i);
            return;
        }
    }
    lg_buf_printf(&h->text, "    \"stablehlo.return\"(%s", lg_hlo_text_val(h, next, &s));
    for (uint32_t i = 0; i < n_carry; i++)
        lg_buf_printf(&h->text, ", %s", lg_hlo_text_val(h, carry[i], &s));
    for (int part = 0; part < 3; part++) {
        lg_buf_puts(&h->text, part == 0   ? ") : ("
                              : part == 1 ? ") -> ()\n    }) : ("
                                          : ") -> (");
        for (uint32_t i = 0; i <= n_carry; i++)
            lg_buf_printf(&h->text, "%s%s", i ? ", " : "",
                          lg_hlo_text_type(h->def[r + i].type, &s));
    }
    lg_buf_puts(&h->text, ")\n");
    h->n_open--;
    for (uint32_t i = 0; i < n_carry; i++) carry[i] = r + 1 + i;
}

/* ---- between replicas ---- */

lg_hlo_val lg_hlo_replica_id(lg_hlo *h) {
    lg_hlo_val id =
        lg_hlo_text_op(h, "stablehlo.replica_id", NULL, 0, NULL, lg_hlo_scalar(LG_HLO_U32));
    return lg_hlo_convert(h, id, LG_HLO_I32);
}

static void say_group(attr *a, uint32_t n) {
    say(a, "replica_groups = dense<[[");
    for (uint32_t i = 0; i < n; i++) say(a, "%s%u", i ? ", " : "", i);
    say(a, "]]> : tensor<1x%uxi64>", n);
}

lg_hlo_val lg_hlo_all_gather(lg_hlo *h, lg_hlo_val x, uint32_t n) {
    attr a = {.n = 0};
    lg_hlo_type t = lg_hlo_type_at(h, x);
    if (t.n_dim == 0 || n == 0 || n > 256) lg_hlo_fail(h, "a gather over %u replicas", n);
    if (h->failed) return 0;
    t.dim[0] *= n;
    say(&a, "<{all_gather_dim = 0 : i64, ");
    say_group(&a, n);
    say(&a, "}>");
    return lg_hlo_text_op(h, "stablehlo.all_gather", &x, 1, a.s, t);
}

lg_hlo_val lg_hlo_reduce_scatter(lg_hlo *h, lg_hlo_val x, uint32_t n) {
    attr a = {.n = 0};
    lg_hlo_name one;
    lg_hlo_type t = lg_hlo_type_at(h, x);
    if (t.n_dim == 0 || n == 0 || n > 256 || t.dim[0] % n != 0)
        lg_hlo_fail(h, "a reduce-scatter over %u replicas", n);
    if (h->failed) return 0;
    t.dim[0] /= n;
    lg_hlo_text_type(lg_hlo_scalar(t.dt), &one);
    say(&a, "<{scatter_dimension = 0 : i64, ");
    say_group(&a, n);
    say(&a,
        "}> ({\n    ^bb0(%%ra: %s, %%rb: %s):\n      %%rr = \"stablehlo.add\"(%%ra, %%rb) : "
        "(%s, %s) "
        "-> %s\n      \"stablehlo.return\"(%%rr) : (%s) -> ()\n    })",
        one.s, one.s, one.s, one.s, one.s, one.s);
    return lg_hlo_text_op(h, "stablehlo.reduce_scatter", &x, 1, a.s, t);
}

lg_hlo_val lg_hlo_permute(lg_hlo *h, lg_hlo_val x, const uint32_t (*pair)[2], uint32_t n_pair) {
    attr a = {.n = 0};
    if (n_pair == 0 || n_pair > 128) {
        lg_hlo_fail(h, "a permutation of %u pairs", n_pair);
        return 0;
    }
    say(&a, "<{source_target_pairs = dense<[");
    for (uint32_t i = 0; i < n_pair; i++)
        say(&a, "%s[%u, %u]", i ? ", " : "", pair[i][0], pair[i][1]);
    say(&a, "]> : tensor<%ux2xi64>}>", n_pair);
    return lg_hlo_text_op(h, "stablehlo.collective_permute", &x, 1, a.s, lg_hlo_type_at(h, x));
}

lg_hlo_val lg_hlo_apart(lg_hlo *h, lg_hlo_val x) {
    return lg_hlo_text_op(h, "stablehlo.optimization_barrier", &x, 1, NULL,
                          lg_hlo_type_at(h, x));
}
