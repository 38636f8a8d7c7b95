/* unit.c - one page, or one row of the state pools, copied inside a device, or as bytes from and to the host.
 *
 * Small programs over the pools, written here: they know a pool's dimensions and which of them counts units, nothing else.  Copies and
 * puts take the pools and give them back.  With several devices every one runs the program; the others work on the unit that nobody reads.
 * Thread: under be->lock.  Memory: at open.  Test: tests/unit/test_pjrt_step.c */
#include "backend/pjrt/be.h"

#include <inttypes.h>
#include <string.h>

enum { COPY, GET, PUT, N_UNIT };

/* The pools of one kind, in the order of arguments. */
typedef struct kind {
    uint32_t n, arg[LG_PJRT_N_POOL];
} kind;

static kind kind_of(const lg_pjrt_be *be, bool state) {
    kind k = {0};
    for (uint32_t p = 0; p < be->n_pool; p++) {
        lg_pjrt_pool which = be->sig->arg[be->pool_arg[p]].pool;
        if ((which == LG_PJRT_POOL_S || which == LG_PJRT_POOL_CONV) == state)
            k.arg[k.n++] = be->pool_arg[p];
    }
    return k;
}

static lg_pjrt_dims unit_dims(const lg_pjrt_arg *a) {
    lg_pjrt_dims d = a->dims;
    d.dim[a->unit_dim] = 1;
    return d;
}

/* ---- texts ---- */

static void put_type(lg_buf *b, const lg_pjrt_dims *d) {
    lg_buf_puts(b, "tensor<");
    for (uint32_t i = 0; i < d->rank; i++) lg_buf_printf(b, "%" PRId64 "x", d->dim[i]);
    lg_buf_printf(b, "%s>", lg_pjrt_type_name(d->type));
}

/* "%z, %NAME, %z": where a unit begins. */
static void put_place(lg_buf *b, const lg_pjrt_arg *a, const char *name) {
    for (uint32_t i = 0; i < a->dims.rank; i++)
        lg_buf_printf(b, ", %%%s", i == a->unit_dim ? name : "z");
}

static void put_place_types(lg_buf *b, const lg_pjrt_arg *a) {
    for (uint32_t i = 0; i < a->dims.rank; i++) lg_buf_puts(b, ", tensor<i32>");
}

static void put_slice(lg_buf *b, uint32_t i, const lg_pjrt_arg *a) {
    lg_pjrt_dims unit = unit_dims(a);
    lg_buf_printf(b, "    %%s%u = \"stablehlo.dynamic_slice\"(%%p%u", i, i);
    put_place(b, a, "from");
    lg_buf_puts(b, ") {slice_sizes = array<i64");
    for (uint32_t k = 0; k < unit.rank; k++)
        lg_buf_printf(b, "%s %" PRId64, k ? "," : ":", unit.dim[k]);
    lg_buf_puts(b, ">} : (");
    put_type(b, &a->dims);
    put_place_types(b, a);
    lg_buf_puts(b, ") -> ");
    put_type(b, &unit);
    lg_buf_putc(b, '\n');
}

static void put_update(lg_buf *b, uint32_t i, const lg_pjrt_arg *a) {
    lg_pjrt_dims unit = unit_dims(a);
    lg_buf_printf(b, "    %%r%u = \"stablehlo.dynamic_update_slice\"(%%p%u, %%s%u", i, i, i);
    put_place(b, a, "to");
    lg_buf_puts(b, ") : (");
    put_type(b, &a->dims);
    lg_buf_puts(b, ", ");
    put_type(b, &unit);
    put_place_types(b, a);
    lg_buf_puts(b, ") -> ");
    put_type(b, &a->dims);
    lg_buf_putc(b, '\n');
}

/* Element i of the argument %at as a scalar. */
static void put_index(lg_buf *b, const char *name, int i) {
    lg_buf_printf(b,
                  "    %%%s1 = \"stablehlo.slice\"(%%at) {start_indices = array<i64: %d>, "
                  "limit_indices = array<i64: %d>, strides = array<i64: 1>} : (tensor<2xi32>) "
                  "-> tensor<1xi32>\n"
                  "    %%%s = \"stablehlo.reshape\"(%%%s1) : (tensor<1xi32>) -> tensor<i32>\n",
                  name, i, i + 1, name, name);
}

static void put_return(lg_buf *b, const lg_pjrt_be *be, const kind *k, char name, bool units) {
    lg_buf_puts(b, "    \"func.return\"(");
    for (uint32_t i = 0; i < k->n; i++) lg_buf_printf(b, "%s%%%c%u", i ? ", " : "", name, i);
    lg_buf_puts(b, ") : (");
    for (uint32_t i = 0; i < k->n; i++) {
        lg_pjrt_dims unit = unit_dims(&be->sig->arg[k->arg[i]]);
        if (i) lg_buf_puts(b, ", ");
        put_type(b, units ? &unit : &be->sig->arg[k->arg[i]].dims);
    }
    lg_buf_puts(b, ") -> ()\n  }\n}\n");
}

/* "(a, b)": the types of the results. */
static void put_results(lg_buf *b, const lg_pjrt_be *be, const kind *k, bool units) {
    lg_buf_puts(b, ") -> (");
    for (uint32_t i = 0; i < k->n; i++) {
        lg_pjrt_dims unit = unit_dims(&be->sig->arg[k->arg[i]]);
        if (i) lg_buf_puts(b, ", ");
        put_type(b, units ? &unit : &be->sig->arg[k->arg[i]].dims);
    }
    lg_buf_puts(b, ") {\n");
}

static void write_unit(lg_buf *b, const lg_pjrt_be *be, const kind *k, int what) {
    static const char *const name[] = {"copy", "get", "put"};
    lg_buf_printf(b, "module @%s {\n  func.func @main(", name[what]);
    for (uint32_t i = 0; i < k->n; i++) {
        lg_buf_printf(b, "%%p%u: ", i);
        put_type(b, &be->sig->arg[k->arg[i]].dims);
        if (what != GET) lg_buf_printf(b, " {tf.aliasing_output = %u : i32}", i);
        lg_buf_puts(b, ", ");
    }
    for (uint32_t i = 0; what == PUT && i < k->n; i++) {
        lg_pjrt_dims unit = unit_dims(&be->sig->arg[k->arg[i]]);
        lg_buf_printf(b, "%%s%u: ", i);
        put_type(b, &unit);
        lg_buf_puts(b, ", ");
    }
    lg_buf_puts(b, "%at: tensor<2xi32>");
    put_results(b, be, k, what == GET);
    lg_buf_puts(b, "    %z = \"stablehlo.constant\"() {value = dense<0> : tensor<i32>} : () -> "
                   "tensor<i32>\n");
    if (what != PUT) put_index(b, "from", 0);
    if (what != GET) put_index(b, "to", 1);
    for (uint32_t i = 0; i < k->n; i++) {
        if (what != PUT) put_slice(b, i, &be->sig->arg[k->arg[i]]);
        if (what != GET) put_update(b, i, &be->sig->arg[k->arg[i]]);
    }
    put_return(b, be, k, what == GET ? 's' : 'r', what == GET);
}

/* All pools, zero. */
static void write_zero(lg_buf *b, const lg_pjrt_be *be, const kind *k) {
    lg_buf_puts(b, "module @zero {\n  func.func @main(");
    put_results(b, be, k, false);
    for (uint32_t i = 0; i < k->n; i++) {
        const lg_pjrt_dims *d = &be->sig->arg[k->arg[i]].dims, none = {.type = d->type};
        lg_buf_printf(b, "    %%c%u = \"stablehlo.constant\"() {value = dense<0.0> : ", i);
        put_type(b, &none);
        lg_buf_puts(b, "} : () -> ");
        put_type(b, &none);
        lg_buf_printf(b,
                      "\n    %%r%u = \"stablehlo.broadcast_in_dim\"(%%c%u) "
                      "{broadcast_dimensions = array<i64>} : (",
                      i, i);
        put_type(b, &none);
        lg_buf_puts(b, ") -> ");
        put_type(b, d);
        lg_buf_putc(b, '\n');
    }
    put_return(b, be, k, 'r', false);
}

/* ---- open ---- */

static lg_status compile(lg_pjrt_be *be, lg_buf *text, lg_pjrt_exe **exe, lg_err *err) {
    const lg_pjrt_compile how = {.n_replica = be->model.n_device, .n_partition = 1};
    if (text->failed) return LG_FAIL(err, LG_E_NOMEM, "program: no memory");
    return lg_pjrt_cache_compile(&be->dev->cache, be->dev->client, lg_buf_str(text),
                                 text->len_bytes, &how, exe, err);
}

/* The pools, as results of a program without arguments. */
static lg_status make_pools(lg_pjrt_be *be, lg_err *err) {
    lg_pjrt_exe *zero = NULL;
    lg_buf text = {0};
    kind all = {.n = be->n_pool};
    memcpy(all.arg, be->pool_arg, sizeof all.arg);
    write_zero(&text, be, &all);
    lg_status st = compile(be, &text, &zero, err);
    const lg_pjrt_call call = {.arg = be->unit_arg, .out = be->unit_out};
    if (st == LG_OK) st = lg_pjrt_exe_run(zero, &call, err);
    for (uint32_t d = 0; st == LG_OK && d < be->model.n_device; d++)
        for (uint32_t p = 0; p < be->n_pool; p++)
            be->arg[(size_t)d * be->n_arg + be->pool_arg[p]] = be->unit_out[d * be->n_pool + p];
    lg_pjrt_exe_close(&zero);
    lg_buf_fini(&text);
    return st;
}

lg_status lg_pjrt_unit_open(lg_pjrt_be *be, lg_err *err) {
    LG_TRY(make_pools(be, err));
    lg_buf text = {0};
    lg_status st = LG_OK;
    for (int state = 0; st == LG_OK && state < 2; state++) {
        kind k = kind_of(be, state);
        for (int what = 0; st == LG_OK && k.n && what < N_UNIT; what++) {
            lg_buf_clear(&text);
            write_unit(&text, be, &k, what);
            st = compile(be, &text, &be->unit[state][what], err);
        }
    }
    lg_buf_fini(&text);
    return st;
}

void lg_pjrt_unit_close(lg_pjrt_be *be) {
    for (int i = 0; i < 2 * N_UNIT; i++) lg_pjrt_exe_close(&be->unit[i / N_UNIT][i % N_UNIT]);
}

/* ---- calls ---- */

/* Run on all devices, on device `dev` from -> to and on the others on the last unit.  unit: [k.n] of that device for PUT, and
 * of GET its results. */
static lg_status run(lg_pjrt_be *be, bool state, int what, uint32_t dev, uint32_t from,
                     uint32_t to, lg_pjrt_buf **unit, lg_err *err) {
    static const lg_pjrt_dims two = {LG_PJRT_S32, 1, {2}};
    const kind k = kind_of(be, state);
    lg_pjrt_client *c = be->dev->client;
    uint32_t n_dev = be->model.n_device, n_arg = k.n * (what == PUT ? 2 : 1) + 1;
    uint32_t last = (state ? be->model.n_slot : be->model.n_page) - 1;
    int64_t keep[2 * LG_PJRT_N_POOL + 1];
    uint32_t n_keep = 0;
    for (uint32_t i = what == GET ? 0 : k.n; i < n_arg; i++) keep[n_keep++] = i;
    lg_status st = LG_OK;
    for (uint32_t d = 0; d < n_dev; d++) be->unit_arg[d * n_arg + n_arg - 1] = NULL;
    for (uint32_t d = 0; st == LG_OK && d < n_dev; d++) {
        lg_pjrt_buf **arg = be->unit_arg + (size_t)d * n_arg;
        const int32_t at[2] = {(int32_t)(d == dev ? from : last),
                               (int32_t)(d == dev ? to : last)};
        for (uint32_t i = 0; i < k.n; i++) arg[i] = be->arg[(size_t)d * be->n_arg + k.arg[i]];
        for (uint32_t i = 0; what == PUT && i < k.n; i++)
            arg[k.n + i] = unit[(size_t)d * k.n + i];
        st = lg_pjrt_buf_put(c, d, &two, at, &arg[n_arg - 1], err);
    }
    const lg_pjrt_call call = {.arg = be->unit_arg,
                               .n_arg = n_arg,
                               .keep = keep,
                               .n_keep = n_keep,
                               .out = be->unit_out};
    if (st == LG_OK) st = lg_pjrt_exe_run(be->unit[state][what], &call, err);
    for (uint32_t d = 0; d < n_dev; d++)
        lg_pjrt_buf_free(c, &be->unit_arg[d * n_arg + n_arg - 1]);
    LG_TRY(st);
    for (uint32_t d = 0; d < n_dev; d++)
        for (uint32_t i = 0; i < k.n; i++) {
            lg_pjrt_buf **out = &be->unit_out[(size_t)d * k.n + i];
            lg_pjrt_buf **pool = &be->arg[(size_t)d * be->n_arg + k.arg[i]];
            if (what != GET) {
                lg_pjrt_buf_free(c, pool);
                *pool = *out;
            } else if (d == dev) {
                unit[i] = *out;
            } else {
                lg_pjrt_buf_free(c, out);
            }
        }
    return LG_OK;
}

lg_status lg_pjrt_unit_copy(lg_pjrt_be *be, uint32_t d, bool state, uint32_t from, uint32_t to,
                            lg_err *err) {
    return be->unit[state][COPY] ? run(be, state, COPY, d, from, to, NULL, err) : LG_OK;
}

size_t lg_pjrt_unit_bytes(const lg_pjrt_be *be, bool state) {
    kind k = kind_of(be, state);
    size_t n = 0;
    for (uint32_t i = 0; i < k.n; i++) {
        lg_pjrt_dims unit = unit_dims(&be->sig->arg[k.arg[i]]);
        n += lg_pjrt_dims_bytes(&unit);
    }
    return n;
}

lg_status lg_pjrt_unit_get(lg_pjrt_be *be, uint32_t d, bool state, uint32_t at, void *to,
                           lg_err *err) {
    kind k = kind_of(be, state);
    lg_pjrt_buf *unit[LG_PJRT_N_POOL];
    uint8_t *p = to;
    if (k.n == 0) return LG_OK;
    LG_TRY(run(be, state, GET, d, at, at, unit, err));
    lg_status st = LG_OK;
    for (uint32_t i = 0; i < k.n; i++) {
        lg_pjrt_dims dims = unit_dims(&be->sig->arg[k.arg[i]]);
        if (st == LG_OK) st = lg_pjrt_buf_get(be->dev->client, unit[i], &dims, p, err);
        p += lg_pjrt_dims_bytes(&dims);
        lg_pjrt_buf_free(be->dev->client, &unit[i]);
    }
    return st;
}

lg_status lg_pjrt_unit_put(lg_pjrt_be *be, uint32_t d, bool state, uint32_t at,
                           const void *from, lg_err *err) {
    kind k = kind_of(be, state);
    lg_pjrt_client *c = be->dev->client;
    uint32_t n_dev = be->model.n_device;
    if (k.n == 0) return LG_OK;
    /* the others get the same bytes, for their unit that nobody reads */
    lg_pjrt_buf **unit = lg_mem_calloc((size_t)n_dev * k.n, sizeof *unit);
    lg_status st = unit ? LG_OK : LG_FAIL(err, LG_E_NOMEM, "page: no memory");
    for (uint32_t i = 0; st == LG_OK && i < n_dev; i++) {
        const uint8_t *p = from;
        for (uint32_t j = 0; st == LG_OK && j < k.n; j++) {
            lg_pjrt_dims dims = unit_dims(&be->sig->arg[k.arg[j]]);
            st = lg_pjrt_buf_put(c, i, &dims, p, &unit[(size_t)i * k.n + j], err);
            p += lg_pjrt_dims_bytes(&dims);
        }
    }
    if (st == LG_OK) st = run(be, state, PUT, d, at, at, unit, err);
    for (size_t i = 0; unit && i < (size_t)n_dev * k.n; i++) lg_pjrt_buf_free(c, &unit[i]);
    lg_mem_free(unit);
    return st;
}
