/* hlo.c - the writer of hlo.h: values, types, constants, element-wise operations, shapes; hlo_ops.c has the rest.
 *
 * A value's text is %vN, or %vN#i for one of several results; values made in a region (the body of a loop) end with
 * it, so each remembers its region and a use outside is a fault.  Thread: one per lg_hlo.  Memory: the text and the
 * table of values. Test: tests/unit/test_step.c */
#include "backend/pjrt/step/hlo_text.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    uint8_t bytes;
} dts[LG_HLO_N_DT] = {{"f32", 4},  {"bf16", 2}, {"f16", 2}, {"f8E4M3FN", 1}, {"i32", 4},
                      {"ui32", 4}, {"ui16", 2}, {"ui8", 1}, {"i1", 1}};

/* ---- types ---- */

size_t lg_hlo_dt_bytes(lg_hlo_dt dt) {
    return dts[dt].bytes;
}

lg_hlo_type lg_hlo_type_of(lg_hlo_dt dt, const int64_t *dim, size_t n_dim) {
    lg_hlo_type t = {.dt = dt, .n_dim = (uint32_t)n_dim};
    LG_ASSERT(n_dim <= LG_HLO_MAX_DIM);
    for (size_t i = 0; i < n_dim; i++) t.dim[i] = dim[i];
    return t;
}

lg_hlo_type lg_hlo_scalar(lg_hlo_dt dt) {
    return (lg_hlo_type){.dt = dt};
}

lg_hlo_type lg_hlo_as(lg_hlo_type t, lg_hlo_dt dt) {
    t.dt = dt;
    return t;
}

int64_t lg_hlo_count(lg_hlo_type t) {
    int64_t n = 1;
    for (uint32_t i = 0; i < t.n_dim; i++) n *= t.dim[i];
    return n;
}

bool lg_hlo_same(lg_hlo_type a, lg_hlo_type b) {
    if (a.dt != b.dt || a.n_dim != b.n_dim) return false;
    for (uint32_t i = 0; i < a.n_dim; i++)
        if (a.dim[i] != b.dim[i]) return false;
    return true;
}

const char *lg_hlo_text_type(lg_hlo_type t, lg_hlo_name *to) {
    size_t at = (size_t)snprintf(to->s, sizeof to->s, "tensor<");
    for (uint32_t i = 0; i < t.n_dim; i++)
        at += (size_t)snprintf(to->s + at, sizeof to->s - at, "%lldx", (long long)t.dim[i]);
    snprintf(to->s + at, sizeof to->s - at, "%s>", dts[t.dt].name);
    return to->s;
}

/* ---- the writer ---- */

void lg_hlo_init(lg_hlo *h) {
    *h = (lg_hlo){.n_def = 1, .n_open = 1};
}

void lg_hlo_fini(lg_hlo *h) {
    lg_buf_fini(&h->text);
    lg_buf_fini(&h->args);
    lg_mem_free(h->def);
    *h = (lg_hlo){0};
}

void lg_hlo_fail(lg_hlo *h, const char *fmt, ...) {
    if (h->failed) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(h->why, sizeof h->why, fmt, ap);
    va_end(ap);
    h->failed = true;
}

/* A value of the open region with the text number `number`, and place `sub` among several results (or -1). */
static lg_hlo_val define(lg_hlo *h, lg_hlo_type t, uint32_t number, int sub) {
    if (h->n_def >= h->cap_def) {
        uint32_t cap = h->cap_def ? 2 * h->cap_def : 1024;
        lg_hlo_def *def = lg_mem_calloc(cap, sizeof *def);
        if (!def) {
            h->text.failed = true;
            lg_hlo_fail(h, "out of memory");
            return 0;
        }
        if (h->def) memcpy(def, h->def, h->n_def * sizeof *def);
        lg_mem_free(h->def);
        h->def = def;
        h->cap_def = cap;
    }
    for (uint32_t i = 0; i < t.n_dim; i++)
        if (t.dim[i] < 1) lg_hlo_fail(h, "a dimension of %lld", (long long)t.dim[i]);
    h->def[h->n_def] = (lg_hlo_def){t, number, sub, h->region[h->n_open - 1]};
    return h->n_def++;
}

lg_hlo_val lg_hlo_text_new(lg_hlo *h, lg_hlo_type t) {
    return define(h, t, h->n_def, -1);
}

void lg_hlo_text_new_group(lg_hlo *h, const lg_hlo_type *t, uint32_t n, lg_hlo_val *v) {
    uint32_t number = h->n_def;
    for (uint32_t i = 0; i < n; i++) v[i] = define(h, t[i], number, n > 1 ? (int)i : -1);
}

bool lg_hlo_text_ok(lg_hlo *h, lg_hlo_val v) {
    if (h->failed) return false;
    if (v == 0 || v >= h->n_def) {
        lg_hlo_fail(h, "value %u is none", v);
        return false;
    }
    for (uint32_t i = 0; i < h->n_open; i++)
        if (h->region[i] == h->def[v].region) return true;
    lg_hlo_fail(h, "value %u is used outside its loop", v);
    return false;
}

const char *lg_hlo_text_val(const lg_hlo *h, lg_hlo_val v, lg_hlo_name *to) {
    const lg_hlo_def *d = &h->def[v];
    if (d->sub < 0) {
        snprintf(to->s, sizeof to->s, "%%v%u", d->number);
    } else {
        snprintf(to->s, sizeof to->s, "%%v%u#%d", d->number, d->sub);
    }
    return to->s;
}

lg_hlo_type lg_hlo_type_at(const lg_hlo *h, lg_hlo_val v) {
    return v < h->n_def && h->def ? h->def[v].type : (lg_hlo_type){0};
}

int64_t lg_hlo_dim(const lg_hlo *h, lg_hlo_val v, uint32_t i) {
    lg_hlo_type t = lg_hlo_type_at(h, v);
    return i < t.n_dim ? t.dim[i] : 1;
}

void lg_hlo_op(lg_hlo *h, const char *op, const lg_hlo_val *arg, uint32_t n_arg,
               const char *attrs, const lg_hlo_type *type, uint32_t n_result,
               lg_hlo_val *result) {
    lg_hlo_name s;
    for (uint32_t i = 0; i < n_result; i++) result[i] = 0;
    for (uint32_t i = 0; i < n_arg; i++)
        if (!lg_hlo_text_ok(h, arg[i])) return;
    if (h->failed) return;
    lg_hlo_text_new_group(h, type, n_result, result);
    if (h->failed) return;
    lg_buf_puts(&h->text, "    ");
    if (n_result > 0) {
        lg_buf_printf(&h->text, "%%v%u", h->def[result[0]].number);
        if (n_result > 1) lg_buf_printf(&h->text, ":%u", n_result);
        lg_buf_puts(&h->text, " = ");
    }
    lg_buf_printf(&h->text, "\"%s\"(", op);
    for (uint32_t i = 0; i < n_arg; i++)
        lg_buf_printf(&h->text, "%s%s", i ? ", " : "", lg_hlo_text_val(h, arg[i], &s));
    lg_buf_printf(&h->text, ")%s%s : (", attrs ? " " : "", attrs ? attrs : "");
    for (uint32_t i = 0; i < n_arg; i++)
        lg_buf_printf(&h->text, "%s%s", i ? ", " : "",
                      lg_hlo_text_type(h->def[arg[i]].type, &s));
    lg_buf_puts(&h->text, n_result == 1 ? ") -> " : ") -> (");
    for (uint32_t i = 0; i < n_result; i++)
        lg_buf_printf(&h->text, "%s%s", i ? ", " : "", lg_hlo_text_type(type[i], &s));
    lg_buf_puts(&h->text, n_result == 1 ? "\n" : ")\n");
}

lg_hlo_val lg_hlo_text_op(lg_hlo *h, const char *op, const lg_hlo_val *arg, uint32_t n_arg,
                          const char *attrs, lg_hlo_type type) {
    lg_hlo_val r;
    lg_hlo_op(h, op, arg, n_arg, attrs, &type, 1, &r);
    return r;
}

static lg_hlo_val argument(lg_hlo *h, lg_hlo_type t, int alias, const char *layout) {
    lg_hlo_name s;
    lg_hlo_val v = define(h, t, h->n_def, -1);
    if (h->failed) return 0;
    if (h->n_open != 1) lg_hlo_fail(h, "an argument inside a loop");
    lg_buf_printf(&h->args, "%s\n      %%v%u: %s", h->n_arg ? "," : "", h->def[v].number,
                  lg_hlo_text_type(t, &s));
    if (alias >= 0) lg_buf_printf(&h->args, " {tf.aliasing_output = %d : i32}", alias);
    if (layout) lg_buf_printf(&h->args, " {mhlo.layout_mode = \"%s\"}", layout);
    h->n_arg++;
    return v;
}

lg_hlo_val lg_hlo_arg(lg_hlo *h, lg_hlo_type t, int alias) {
    return argument(h, t, alias, NULL);
}

lg_hlo_val lg_hlo_arg_laid_out(lg_hlo *h, lg_hlo_type t, const char *layout) {
    return argument(h, t, LG_HLO_NO_ALIAS, layout);
}

lg_status lg_hlo_finish(lg_hlo *h, const char *name, uint32_t n_replica,
                        const lg_hlo_val *result, uint32_t n_result, lg_buf *out, lg_err *err) {
    lg_hlo_name s;
    for (uint32_t i = 0; i < n_result; i++) lg_hlo_text_ok(h, result[i]);
    if (h->n_open != 1) lg_hlo_fail(h, "a loop is open at the end");
    if (h->text.failed || h->args.failed)
        return LG_FAIL(err, LG_E_NOMEM, "program %s: out of memory", name);
    if (h->failed) return LG_FAIL(err, LG_E_ARG, "program %s: %s", name, h->why);
    lg_buf_printf(
        out,
        "module @%s attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = %u "
        ": i32} {\n  func.func @main(%s) -> (",
        name, n_replica, lg_buf_str(&h->args));
    for (uint32_t i = 0; i < n_result; i++)
        lg_buf_printf(out, "%s%s", i ? ", " : "", lg_hlo_text_type(h->def[result[i]].type, &s));
    lg_buf_puts(out, ") {\n");
    lg_buf_put(out, lg_buf_str(&h->text), h->text.len_bytes);
    lg_buf_puts(out, "    \"func.return\"(");
    for (uint32_t i = 0; i < n_result; i++)
        lg_buf_printf(out, "%s%s", i ? ", " : "", lg_hlo_text_val(h, result[i], &s));
    lg_buf_puts(out, ") : (");
    for (uint32_t i = 0; i < n_result; i++)
        lg_buf_printf(out, "%s%s", i ? ", " : "", lg_hlo_text_type(h->def[result[i]].type, &s));
    lg_buf_puts(out, ") -> ()\n  }\n}\n");
    if (out->failed) return LG_FAIL(err, LG_E_NOMEM, "program %s: out of memory", name);
    return LG_OK;
}

/* ---- constants ---- */

static lg_hlo_val constant(lg_hlo *h, lg_hlo_type t, const char *value) {
    char attrs[192];
    lg_hlo_name s;
    snprintf(attrs, sizeof attrs, "{value = dense<%s> : %s}", value, lg_hlo_text_type(t, &s));
    return lg_hlo_text_op(h, "stablehlo.constant", NULL, 0, attrs, t);
}

lg_hlo_val lg_hlo_float(lg_hlo *h, lg_hlo_type t, float x) {
    char value[32];
    uint32_t bits = lg_num_bits_of_float(x);
    if (t.dt == LG_HLO_F32) {
        snprintf(value, sizeof value, "0x%08X", bits);
    } else if (t.dt == LG_HLO_BF16 && (bits & 0xffff) == 0) {
        snprintf(value, sizeof value, "0x%04X", bits >> 16);
    } else if (x == 0.0f && (t.dt == LG_HLO_F16 || t.dt == LG_HLO_E4M3)) {
        snprintf(value, sizeof value, t.dt == LG_HLO_F16 ? "0x0000" : "0x00");
    } else {
        lg_hlo_fail(h, "%g as a constant of type %s", (double)x, dts[t.dt].name);
        return 0;
    }
    return constant(h, t, value);
}

lg_hlo_val lg_hlo_int(lg_hlo *h, lg_hlo_type t, int64_t x) {
    char value[32];
    if (t.dt == LG_HLO_I1) {
        snprintf(value, sizeof value, x ? "true" : "false");
    } else {
        snprintf(value, sizeof value, "%lld", (long long)x);
    }
    if (t.dt < LG_HLO_I32)
        lg_hlo_fail(h, "a whole number as a constant of type %s", dts[t.dt].name);
    return constant(h, t, value);
}

lg_hlo_val lg_hlo_i32(lg_hlo *h, int64_t x) {
    return lg_hlo_int(h, lg_hlo_scalar(LG_HLO_I32), x);
}

lg_hlo_val lg_hlo_iota(lg_hlo *h, lg_hlo_type t, uint32_t dim) {
    char attrs[48];
    if (dim >= t.n_dim) lg_hlo_fail(h, "iota along axis %u of %u", dim, t.n_dim);
    snprintf(attrs, sizeof attrs, "{iota_dimension = %u : i64}", dim);
    return lg_hlo_text_op(h, "stablehlo.iota", NULL, 0, attrs, t);
}

/* ---- element by element ---- */

static lg_hlo_val named(lg_hlo *h, const char *op, const lg_hlo_val *arg, uint32_t n,
                        const char *attrs, lg_hlo_type t) {
    char name[64];
    snprintf(name, sizeof name, "stablehlo.%s", op);
    return lg_hlo_text_op(h, name, arg, n, attrs, t);
}

lg_hlo_val lg_hlo_un(lg_hlo *h, const char *op, lg_hlo_val x) {
    lg_hlo_type t = lg_hlo_type_at(h, x);
    return named(h, op, &x, 1, NULL,
                 strcmp(op, "is_finite") == 0 ? lg_hlo_as(t, LG_HLO_I1) : t);
}

static bool equal_types(lg_hlo *h, const char *op, lg_hlo_val a, lg_hlo_val b) {
    lg_hlo_name s, t;
    if (!lg_hlo_text_ok(h, a) || !lg_hlo_text_ok(h, b)) return false;
    if (lg_hlo_same(h->def[a].type, h->def[b].type)) return true;
    lg_hlo_fail(h, "%s of %s and %s", op, lg_hlo_text_type(h->def[a].type, &s),
                lg_hlo_text_type(h->def[b].type, &t));
    return false;
}

lg_hlo_val lg_hlo_bin(lg_hlo *h, const char *op, lg_hlo_val a, lg_hlo_val b) {
    if (!equal_types(h, op, a, b)) return 0;
    return named(h, op, (lg_hlo_val[]){a, b}, 2, NULL, h->def[a].type);
}

lg_hlo_val lg_hlo_add(lg_hlo *h, lg_hlo_val a, lg_hlo_val b) {
    return lg_hlo_bin(h, "add", a, b);
}

lg_hlo_val lg_hlo_sub(lg_hlo *h, lg_hlo_val a, lg_hlo_val b) {
    return lg_hlo_bin(h, "subtract", a, b);
}

lg_hlo_val lg_hlo_mul(lg_hlo *h, lg_hlo_val a, lg_hlo_val b) {
    return lg_hlo_bin(h, "multiply", a, b);
}

lg_hlo_val lg_hlo_bin_f(lg_hlo *h, const char *op, lg_hlo_val x, float y) {
    return lg_hlo_bin(h, op, x, lg_hlo_float(h, lg_hlo_type_at(h, x), y));
}

lg_hlo_val lg_hlo_bin_i(lg_hlo *h, const char *op, lg_hlo_val x, int64_t y) {
    return lg_hlo_bin(h, op, x, lg_hlo_int(h, lg_hlo_type_at(h, x), y));
}

lg_hlo_val lg_hlo_cmp(lg_hlo *h, const char *dir, lg_hlo_val a, lg_hlo_val b) {
    char attrs[96];
    if (!equal_types(h, dir, a, b)) return 0;
    snprintf(attrs, sizeof attrs,
             "{comparison_direction = #stablehlo<comparison_direction %s>}", dir);
    return named(h, "compare", (lg_hlo_val[]){a, b}, 2, attrs,
                 lg_hlo_as(h->def[a].type, LG_HLO_I1));
}

lg_hlo_val lg_hlo_cmp_i(lg_hlo *h, const char *dir, lg_hlo_val a, int64_t b) {
    return lg_hlo_cmp(h, dir, a, lg_hlo_int(h, lg_hlo_type_at(h, a), b));
}

lg_hlo_val lg_hlo_select(lg_hlo *h, lg_hlo_val pred, lg_hlo_val yes, lg_hlo_val no) {
    if (!equal_types(h, "select", yes, no) || !lg_hlo_text_ok(h, pred)) return 0;
    if (!lg_hlo_same(lg_hlo_as(h->def[yes].type, LG_HLO_I1), h->def[pred].type))
        lg_hlo_fail(h, "select by a predicate of another shape");
    return named(h, "select", (lg_hlo_val[]){pred, yes, no}, 3, NULL, h->def[yes].type);
}

lg_hlo_val lg_hlo_select_f(lg_hlo *h, lg_hlo_val pred, lg_hlo_val yes, float no) {
    return lg_hlo_select(h, pred, yes, lg_hlo_float(h, lg_hlo_type_at(h, yes), no));
}

lg_hlo_val lg_hlo_convert(lg_hlo *h, lg_hlo_val x, lg_hlo_dt dt) {
    lg_hlo_type t = lg_hlo_type_at(h, x);
    return t.dt == dt ? x : named(h, "convert", &x, 1, NULL, lg_hlo_as(t, dt));
}

lg_hlo_val lg_hlo_bitcast(lg_hlo *h, lg_hlo_val x, lg_hlo_type to) {
    if (!lg_hlo_text_ok(h, x)) return 0;
    lg_hlo_type t = h->def[x].type;
    if ((uint64_t)lg_hlo_count(t) * lg_hlo_dt_bytes(t.dt) !=
        (uint64_t)lg_hlo_count(to) * lg_hlo_dt_bytes(to.dt))
        lg_hlo_fail(h, "a bit cast to another size");
    return named(h, "bitcast_convert", &x, 1, NULL, to);
}

/* ---- shapes ---- */

lg_hlo_val lg_hlo_reshape(lg_hlo *h, lg_hlo_val x, lg_hlo_type to) {
    lg_hlo_name a, b;
    if (!lg_hlo_text_ok(h, x)) return 0;
    lg_hlo_type t = h->def[x].type;
    if (t.dt != to.dt || lg_hlo_count(t) != lg_hlo_count(to))
        lg_hlo_fail(h, "reshape of %s to %s", lg_hlo_text_type(t, &a),
                    lg_hlo_text_type(to, &b));
    return lg_hlo_same(t, to) ? x : named(h, "reshape", &x, 1, NULL, to);
}

/* "{NAME = array<i64: 0, 2>}" of an axis list. */
static void axes_attr(char attrs[128], const char *name, const char *axes) {
    size_t at =
        (size_t)snprintf(attrs, 128, *axes ? "{%s = array<i64: " : "{%s = array<i64", name);
    for (size_t i = 0; axes[i]; i++)
        at += (size_t)snprintf(attrs + at, 128 - at, "%s%c", i ? ", " : "", axes[i]);
    snprintf(attrs + at, 128 - at, ">}");
}

lg_hlo_val lg_hlo_transpose(lg_hlo *h, lg_hlo_val x, const char *axes) {
    char attrs[128];
    if (!lg_hlo_text_ok(h, x)) return 0;
    lg_hlo_type t = h->def[x].type, to = t;
    bool seen[LG_HLO_MAX_DIM] = {0};
    if (strlen(axes) != t.n_dim) {
        lg_hlo_fail(h, "transpose of %u axes by \"%s\"", t.n_dim, axes);
        return 0;
    }
    for (uint32_t i = 0; i < t.n_dim; i++) {
        uint32_t from = (uint32_t)(axes[i] - '0');
        if (from >= t.n_dim || seen[from]) {
            lg_hlo_fail(h, "transpose by \"%s\"", axes);
            return 0;
        }
        seen[from] = true;
        to.dim[i] = t.dim[from];
    }
    axes_attr(attrs, "permutation", axes);
    return named(h, "transpose", &x, 1, attrs, to);
}

lg_hlo_val lg_hlo_bcast(lg_hlo *h, lg_hlo_val x, lg_hlo_type to, const char *axes) {
    char attrs[128];
    if (!lg_hlo_text_ok(h, x)) return 0;
    lg_hlo_type t = h->def[x].type;
    bool fits = strlen(axes) == t.n_dim;
    for (uint32_t i = 0; fits && i < t.n_dim; i++) {
        uint32_t at = (uint32_t)(axes[i] - '0');
        fits = at < to.n_dim && t.dim[i] == to.dim[at] && (i == 0 || axes[i] > axes[i - 1]);
    }
    if (!fits) {
        lg_hlo_name a, b;
        lg_hlo_fail(h, "broadcast of %s to %s by \"%s\"", lg_hlo_text_type(t, &a),
                    lg_hlo_text_type(to, &b), axes);
        return 0;
    }
    axes_attr(attrs, "broadcast_dimensions", axes);
    return named(h, "broadcast_in_dim", &x, 1, attrs, lg_hlo_as(to, t.dt));
}

lg_hlo_val lg_hlo_like(lg_hlo *h, lg_hlo_val x, lg_hlo_val y, const char *axes) {
    return lg_hlo_bcast(h, x, lg_hlo_type_at(h, y), axes);
}

/* "[a, b, c]"-like lists of whole numbers, from base with one entry changed. */
static size_t put_list(char *to, size_t cap, const char *name, const int64_t *x, uint32_t n) {
    size_t at = (size_t)snprintf(to, cap, "%s = array<i64: ", name);
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(to + at, cap - at, "%s%lld", i ? ", " : "", (long long)x[i]);
    return at + (size_t)snprintf(to + at, cap - at, ">");
}

lg_hlo_val lg_hlo_slice(lg_hlo *h, lg_hlo_val x, uint32_t axis, int64_t from, int64_t n) {
    char attrs[512];
    if (!lg_hlo_text_ok(h, x)) return 0;
    lg_hlo_type t = h->def[x].type, to = t;
    if (axis >= t.n_dim || from < 0 || n < 1 || from + n > t.dim[axis]) {
        lg_hlo_fail(h, "slice [%lld, +%lld) of axis %u", (long long)from, (long long)n, axis);
        return 0;
    }
    if (n == t.dim[axis]) return x;
    int64_t start[LG_HLO_MAX_DIM] = {0}, limit[LG_HLO_MAX_DIM], stride[LG_HLO_MAX_DIM];
    for (uint32_t i = 0; i < t.n_dim; i++) {
        limit[i] = t.dim[i];
        stride[i] = 1;
    }
    start[axis] = from;
    limit[axis] = from + n;
    to.dim[axis] = n;
    attrs[0] = '{';
    size_t at = 1 + put_list(attrs + 1, sizeof attrs - 1, "start_indices", start, t.n_dim);
    at += (size_t)snprintf(attrs + at, sizeof attrs - at, ", ");
    at += put_list(attrs + at, sizeof attrs - at, "limit_indices", limit, t.n_dim);
    at += (size_t)snprintf(attrs + at, sizeof attrs - at, ", ");
    at += put_list(attrs + at, sizeof attrs - at, "strides", stride, t.n_dim);
    snprintf(attrs + at, sizeof attrs - at, "}");
    return named(h, "slice", &x, 1, attrs, to);
}

lg_hlo_val lg_hlo_concat(lg_hlo *h, uint32_t axis, const lg_hlo_val *x, uint32_t n) {
    char attrs[48];
    if (n == 0 || !lg_hlo_text_ok(h, x[0])) return 0;
    lg_hlo_type to = h->def[x[0]].type;
    if (axis >= to.n_dim) {
        lg_hlo_fail(h, "concatenation along axis %u", axis);
        return 0;
    }
    for (uint32_t i = 1; i < n; i++) {
        if (!lg_hlo_text_ok(h, x[i])) return 0;
        lg_hlo_type t = h->def[x[i]].type;
        int64_t more = axis < t.n_dim ? t.dim[axis] : 0;
        t.dim[axis] = to.dim[axis];
        if (!lg_hlo_same(t, to)) lg_hlo_fail(h, "concatenation of unlike shapes");
        to.dim[axis] += more;
    }
    if (n == 1) return x[0];
    snprintf(attrs, sizeof attrs, "{dimension = %u : i64}", axis);
    return named(h, "concatenate", x, n, attrs, to);
}

lg_hlo_val lg_hlo_pad(lg_hlo *h, lg_hlo_val x, uint32_t axis, int64_t before, int64_t after) {
    char attrs[512];
    if (!lg_hlo_text_ok(h, x)) return 0;
    lg_hlo_type t = h->def[x].type, to = t;
    if (axis >= t.n_dim || before < 0 || after < 0) {
        lg_hlo_fail(h, "padding of axis %u", axis);
        return 0;
    }
    if (before == 0 && after == 0) return x;
    int64_t low[LG_HLO_MAX_DIM] = {0}, high[LG_HLO_MAX_DIM] = {0}, inner[LG_HLO_MAX_DIM] = {0};
    low[axis] = before;
    high[axis] = after;
    to.dim[axis] += before + after;
    attrs[0] = '{';
    size_t at = 1 + put_list(attrs + 1, sizeof attrs - 1, "edge_padding_low", low, t.n_dim);
    at += (size_t)snprintf(attrs + at, sizeof attrs - at, ", ");
    at += put_list(attrs + at, sizeof attrs - at, "edge_padding_high", high, t.n_dim);
    at += (size_t)snprintf(attrs + at, sizeof attrs - at, ", ");
    at += put_list(attrs + at, sizeof attrs - at, "interior_padding", inner, t.n_dim);
    snprintf(attrs + at, sizeof attrs - at, "}");
    lg_hlo_type one = lg_hlo_scalar(t.dt);
    lg_hlo_val zero = t.dt >= LG_HLO_I32 ? lg_hlo_int(h, one, 0) : lg_hlo_float(h, one, 0);
    return named(h, "pad", (lg_hlo_val[]){x, zero}, 2, attrs, to);
}

static bool starts_ok(lg_hlo *h, const lg_hlo_val *start, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (!lg_hlo_text_ok(h, start[i])) return false;
        if (!lg_hlo_same(h->def[start[i]].type, lg_hlo_scalar(LG_HLO_I32))) {
            lg_hlo_fail(h, "a window's start is no scalar i32");
            return false;
        }
    }
    return true;
}

lg_hlo_val lg_hlo_window(lg_hlo *h, lg_hlo_val x, const lg_hlo_val *start,
                         const int64_t *size) {
    char attrs[160];
    if (!lg_hlo_text_ok(h, x)) return 0;
    lg_hlo_type t = h->def[x].type, to = t;
    lg_hlo_val arg[LG_HLO_MAX_DIM + 1] = {x};
    if (!starts_ok(h, start, t.n_dim)) return 0;
    for (uint32_t i = 0; i < t.n_dim; i++) {
        if (size[i] < 1 || size[i] > t.dim[i])
            lg_hlo_fail(h, "a window wider than its axis %u", i);
        to.dim[i] = size[i];
        arg[i + 1] = start[i];
    }
    attrs[0] = '{';
    size_t at = 1 + put_list(attrs + 1, sizeof attrs - 1, "slice_sizes", size, t.n_dim);
    snprintf(attrs + at, sizeof attrs - at, "}");
    return named(h, "dynamic_slice", arg, t.n_dim + 1, attrs, to);
}

lg_hlo_val lg_hlo_window_put(lg_hlo *h, lg_hlo_val x, lg_hlo_val part,
                             const lg_hlo_val *start) {
    if (!lg_hlo_text_ok(h, x) || !lg_hlo_text_ok(h, part)) return 0;
    lg_hlo_type t = h->def[x].type, p = h->def[part].type;
    lg_hlo_val arg[LG_HLO_MAX_DIM + 2] = {x, part};
    if (!starts_ok(h, start, t.n_dim)) return 0;
    if (p.dt != t.dt || p.n_dim != t.n_dim)
        lg_hlo_fail(h, "a window of another type is written");
    for (uint32_t i = 0; i < t.n_dim; i++) {
        if (p.dim[i] > t.dim[i])
            lg_hlo_fail(h, "a window wider than its axis %u is written", i);
        arg[i + 2] = start[i];
    }
    return named(h, "dynamic_update_slice", arg, t.n_dim + 2, NULL, t);
}

/* Starts along the first axis only. */
static void first_axis(lg_hlo *h, lg_hlo_val x, lg_hlo_val at,
                       lg_hlo_val start[LG_HLO_MAX_DIM]) {
    lg_hlo_val zero = lg_hlo_i32(h, 0);
    for (uint32_t i = 0; i < LG_HLO_MAX_DIM; i++) start[i] = i ? zero : at;
    if (lg_hlo_type_at(h, x).n_dim == 0) lg_hlo_fail(h, "rows of a scalar");
}

lg_hlo_val lg_hlo_rows(lg_hlo *h, lg_hlo_val x, lg_hlo_val at, int64_t n) {
    lg_hlo_val start[LG_HLO_MAX_DIM];
    lg_hlo_type t = lg_hlo_type_at(h, x);
    first_axis(h, x, at, start);
    t.dim[0] = n;
    return lg_hlo_window(h, x, start, t.dim);
}

lg_hlo_val lg_hlo_row(lg_hlo *h, lg_hlo_val x, lg_hlo_val at) {
    lg_hlo_type t = lg_hlo_type_at(h, x), to = {.dt = t.dt, .n_dim = t.n_dim ? t.n_dim - 1 : 0};
    for (uint32_t i = 0; i < to.n_dim; i++) to.dim[i] = t.dim[i + 1];
    return lg_hlo_reshape(h, lg_hlo_rows(h, x, at, 1), to);
}

lg_hlo_val lg_hlo_rows_put(lg_hlo *h, lg_hlo_val x, lg_hlo_val part, lg_hlo_val at) {
    lg_hlo_val start[LG_HLO_MAX_DIM];
    first_axis(h, x, at, start);
    return lg_hlo_window_put(h, x, part, start);
}
