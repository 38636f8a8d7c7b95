/* mosaic_eval.c - reads and runs the text of a Mosaic kernel (mosaic_eval.h); the operations are in mosaic_ops.c. */
#include "mosaic_eval_int.h"

#include "base/num.h"

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char why[512];
static jmp_buf away;

void mosaic_fail(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    longjmp(away, 1);
}

/* ---- Memory: everything of one run in one list ---- */

typedef struct block {
    struct block *next;
    _Alignas(16) char data[];
} block;

static block *blocks;

void *mosaic_new(size_t n) {
    block *b = calloc(1, sizeof *b + n + 16);
    if (!b) abort();
    b->next = blocks;
    blocks = b;
    return b->data;
}

static void drop_all(void) {
    while (blocks) {
        block *b = blocks;
        blocks = b->next;
        free(b);
    }
}

/* ---- Reading ---- */

typedef struct reader {
    const char *p;
    module *mod;
} reader;

static void skip(reader *r) {
    while (isspace((unsigned char)*r->p)) r->p++;
}

static bool eat(reader *r, const char *s) {
    skip(r);
    size_t n = strlen(s);
    if (strncmp(r->p, s, n) != 0) return false;
    r->p += n;
    return true;
}

static void want(reader *r, const char *s) {
    if (!eat(r, s)) mosaic_fail("expected %s at: %.60s", s, r->p);
}

/* "%name" to a number of its own. */
static uint32_t value_name(reader *r) {
    want(r, "%");
    const char *p = r->p;
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '_') n++;
    if (!n || n >= 32) mosaic_fail("a bad name at: %.40s", p);
    r->p += n;
    for (uint32_t i = 0; i < r->mod->n_name; i++)
        if (strlen(r->mod->name[i]) == n && !memcmp(r->mod->name[i], p, n)) return i;
    if (r->mod->n_name == MAX_NAME) mosaic_fail("more than %d names", MAX_NAME);
    memcpy(r->mod->name[r->mod->n_name], p, n);
    return r->mod->n_name++;
}

elem mosaic_elem_of(const char *s, size_t n) {
    static const char *const name[] = {
        "i1", "i32", "index", "f32", "bf16", "f8E4M3FN", "!tpu.dma_semaphore"};
    for (int i = 0; i < 7; i++)
        if (strlen(name[i]) == n && !memcmp(name[i], s, n)) return (elem)i;
    mosaic_fail("an unknown element type: %.*s", (int)n, s);
    return 0;
}

/* "vector<8x128xf32>", "memref<...>", "f32". */
type mosaic_type(const char **at) {
    type t = {0};
    const char *p = *at;
    bool shaped = false;
    if (!strncmp(p, "vector<", 7)) {
        p += 7;
        shaped = true;
    } else if (!strncmp(p, "memref<", 7)) {
        p += 7;
        shaped = t.ref = true;
    }
    while (shaped && isdigit((unsigned char)*p)) {
        if (t.rank == MOSAIC_EVAL_RANK) mosaic_fail("too many dimensions");
        t.dim[t.rank++] = (uint32_t)strtoul(p, (char **)&p, 10);
        if (*p++ != 'x') mosaic_fail("a bad shape at: %.40s", p);
    }
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || (p[0] == '!' && strchr("!._", p[n]))) n++;
    t.e = mosaic_elem_of(p, n);
    p += n;
    t.vector = shaped && !t.ref;
    if (shaped) {
        if (*p == ',') {
            static const char *const space[] = {"vmem>>", "smem>>", "hbm>>", "semaphore_mem>>"};
            if (strncmp(p, ", #tpu.memory_space<", 20) != 0) mosaic_fail("a memory: %.40s", p);
            p += 20;
            uint32_t w = 0;
            while (w < 4 && strncmp(p, space[w], strlen(space[w])) != 0) w++;
            if (w == 4) mosaic_fail("a memory space: %.40s", p);
            t.where = (memory)w;
            p += strlen(space[w]);
        } else if (*p++ != '>') {
            mosaic_fail("a bad type at: %.40s", p);
        }
    }
    *at = p;
    return t;
}

static type read_type(reader *r) {
    skip(r);
    return mosaic_type(&r->p);
}

static uint32_t read_types(reader *r, type *t, uint32_t cap) {
    uint32_t n = 0;
    if (eat(r, "(")) {
        if (eat(r, ")")) return 0;
        do {
            if (n == cap) mosaic_fail("too many types");
            t[n++] = read_type(r);
        } while (eat(r, ","));
        want(r, ")");
        return n;
    }
    t[0] = read_type(r);
    return 1;
}

/* {a = ..., ...} as text, without the outer braces. */
static char *read_attrs(reader *r) {
    skip(r);
    if (*r->p != '{') return (char *)mosaic_new(1);
    const char *start = r->p + 1;
    int depth = 0;
    do {
        if (!*r->p) mosaic_fail("attributes without an end");
        if (*r->p == '{') depth++;
        if (*r->p == '}') depth--;
        r->p++;
    } while (depth);
    size_t n = (size_t)(r->p - 1 - start);
    char *s = mosaic_new(n + 1);
    memcpy(s, start, n);
    return s;
}

static op *read_op(reader *r);

static region *read_region(reader *r) {
    region *g = mosaic_new(sizeof *g);
    want(r, "{");
    if (eat(r, "^bb0(")) {
        do {
            if (g->n_arg == MAX_ARG) mosaic_fail("too many arguments");
            g->arg[g->n_arg] = value_name(r);
            want(r, ":");
            g->arg_type[g->n_arg++] = read_type(r);
        } while (eat(r, ","));
        want(r, "):");
    }
    op **tail = &g->first;
    while (!eat(r, "}")) {
        *tail = read_op(r);
        tail = &(*tail)->next;
    }
    return g;
}

static op *read_op(reader *r) {
    op *o = mosaic_new(sizeof *o);
    skip(r);
    if (*r->p == '%') {
        o->has_result = true;
        o->result = value_name(r);
        want(r, "=");
    }
    want(r, "\"stable_mosaic.");
    size_t n = strcspn(r->p, "\"");
    if (n >= sizeof o->name) mosaic_fail("a long name");
    memcpy(o->name, r->p, n);
    r->p += n + 1;
    want(r, "(");
    while (!eat(r, ")")) {
        if (o->n_arg == MAX_ARG) mosaic_fail("too many operands");
        if (o->n_arg) want(r, ",");
        o->arg[o->n_arg++] = value_name(r);
    }
    if (eat(r, "(")) {
        do {
            if (o->n_region == 2) mosaic_fail("too many regions");
            o->region[o->n_region++] = read_region(r);
        } while (eat(r, ","));
        want(r, ")");
    }
    o->attrs = read_attrs(r);
    want(r, ":");
    type t[MAX_ARG];
    if (read_types(r, t, MAX_ARG) != o->n_arg)
        mosaic_fail("%s: operands and their types differ in number", o->name);
    memcpy(o->arg_type, t, sizeof t);
    want(r, "->");
    if (read_types(r, &o->type, 1) != (o->has_result ? 1 : 0))
        mosaic_fail("%s: results and their types differ", o->name);
    return o;
}

static void read_module(reader *r) {
    want(r, "module attributes {stable_mosaic.version = ");
    long version = strtol(r->p, (char **)&r->p, 10);
    if (version < 15 || version > 17) mosaic_fail("version %ld", version);
    want(r, ": i64}");
    want(r, "{");
    while (!eat(r, "}")) {
        if (r->mod->n_func == MAX_ARG) mosaic_fail("too many functions");
        op *f = read_op(r);
        if (strcmp(f->name, "func.func") != 0 || f->n_region != 1)
            mosaic_fail("%s where a function should be", f->name);
        r->mod->func[r->mod->n_func++] = f;
    }
    skip(r);
    if (*r->p) mosaic_fail("text after the module");
}

/* ---- Attributes ---- */

const char *mosaic_attr(const char *attrs, const char *name) {
    size_t n = strlen(name);
    for (const char *p = attrs; (p = strstr(p, name)); p++)
        if ((p == attrs || p[-1] == ' ') && !strncmp(p + n, " = ", 3)) return p + n + 3;
    mosaic_fail("no attribute %s in: %.100s", name, attrs);
    return NULL;
}

uint32_t mosaic_numbers(const char *attrs, const char *name, int64_t *out, uint32_t cap) {
    const char *p = mosaic_attr(attrs, name);
    if (!strncmp(p, "array<i64: ", 11) || !strncmp(p, "array<i32: ", 11))
        p += 11;
    else if (*p == '[')
        p++;
    else
        mosaic_fail("%s is no list", name);
    uint32_t n = 0;
    while (*p != '>' && *p != ']') {
        if (n == cap) mosaic_fail("%s is too long", name);
        char *end;
        out[n++] = strtoll(p, &end, 10);
        if (end == p) mosaic_fail("%s: a bad list", name);
        p = end + (*end == ',');
    }
    return n;
}

/* ---- The pipeline ---- */

typedef struct win_state {
    value *ref;        /* the block in VMEM */
    const char *place; /* name of the function that places it */
    bool live, late;   /* live: the block of `at` is here; late: `old` waits to be written */
    int64_t at[MOSAIC_EVAL_RANK], old_at[MOSAIC_EVAL_RANK], next_at[MOSAIC_EVAL_RANK];
    value old, next; /* blocks on their way out and in */
    bool whole;      /* ref is the whole array, in HBM */
    bool have_next;
} win_state;

static void fill_nan(value *v) {
    for (size_t i = 0; i < v->n; i++) {
        if (v->f) v->f[i] = NAN;
        if (v->i) v->i[i] = v->t.e == E_COPIES ? 0 : INT32_MIN;
    }
}

/* Copy between a block and the whole array. */
static void copy_block(value *b, const mosaic_array *a, const int64_t *at, bool out) {
    for (uint32_t d = 0; d < b->t.rank; d++)
        if (at[d] < 0 || (uint64_t)(at[d] + 1) * b->t.dim[d] > a->dim[d])
            mosaic_fail("block %lld of %u along dimension %u lies outside %u", (long long)at[d],
                        b->t.dim[d], d, a->dim[d]);
    for (size_t i = 0; i < b->n; i++) {
        size_t rest = i, to = 0, stride = 1;
        for (uint32_t d = b->t.rank; d-- > 0;) {
            to += ((size_t)at[d] * b->t.dim[d] + rest % b->t.dim[d]) * stride;
            rest /= b->t.dim[d];
            stride *= a->dim[d];
        }
        if (b->f && out) a->f[to] = b->f[i];
        if (b->f && !out) b->f[i] = a->f[to];
        if (b->i && out) a->i[to] = b->i[i];
        if (b->i && !out) b->i[i] = a->i[to];
    }
}

typedef struct run {
    module *mod;
    op *main;
    const mosaic_array *win;
    uint32_t n_grid, n_fetch, n_in, n_out;
    int64_t grid[3], step[3];
    win_state w[MAX_ARG];
    value **env;
    bool overlapped;
} run;

static op *find_func(module *mod, const char *name, size_t n) {
    for (uint32_t i = 0; i < mod->n_func; i++) {
        const char *s = mosaic_attr(mod->func[i]->attrs, "sym_name");
        if (*s == '"' && !strncmp(s + 1, name, n) && s[n + 1] == '"') return mod->func[i];
    }
    mosaic_fail("no function %.*s", (int)n, name);
    return NULL;
}

static void place(run *r, win_state *w, const int64_t *step, int64_t *at) {
    size_t n = strcspn(w->place, ",}");
    op *f = find_func(r->mod, w->place, n);
    region *g = f->region[0];
    if (g->n_arg != r->n_grid + r->n_fetch)
        mosaic_fail("%.*s has %u arguments", (int)n, w->place, g->n_arg);
    for (uint32_t i = 0; i < r->n_grid; i++) {
        value *v = mosaic_value((type){.e = E_I32});
        v->i[0] = (int32_t)step[i];
        r->env[g->arg[i]] = v;
    }
    for (uint32_t i = 0; i < r->n_fetch; i++)
        r->env[g->arg[r->n_grid + i]] = r->env[r->main->region[0]->arg[r->n_grid + i]];
    op *ret = mosaic_run_region(g, r->env);
    if (ret->n_arg != w->ref->t.rank)
        mosaic_fail("%.*s gives %u numbers", (int)n, w->place, ret->n_arg);
    for (uint32_t d = 0; d < ret->n_arg; d++) at[d] = r->env[ret->arg[d]]->i[0];
}

static bool same_at(const int64_t *a, const int64_t *b, uint32_t rank) {
    return memcmp(a, b, rank * sizeof *a) == 0;
}

/* Blocks that wait to be written go out. */
static void write_late(run *r) {
    for (uint32_t i = r->n_in; i < r->n_in + r->n_out; i++) {
        win_state *w = &r->w[i];
        if (w->late) copy_block(&w->old, &r->win[i], w->old_at, true);
        w->late = false;
    }
}

/* A result's block is done with: it goes out now or, when overlapped, after the next step. */
static void retire(run *r, uint32_t i) {
    win_state *w = &r->w[i];
    if (!w->live) return;
    if (!r->overlapped) {
        copy_block(w->ref, &r->win[i], w->at, true);
    } else {
        if (w->late) copy_block(&w->old, &r->win[i], w->old_at, true);
        memcpy(w->old.f ? (void *)w->old.f : (void *)w->old.i,
               w->ref->f ? (void *)w->ref->f : (void *)w->ref->i, w->ref->n * 4);
        memcpy(w->old_at, w->at, sizeof w->at);
        w->late = true;
    }
    w->live = false;
    fill_nan(w->ref);
}

static bool next_step(run *r, int64_t *s) {
    for (uint32_t d = r->n_grid; d-- > 0;) {
        if (++s[d] < r->grid[d]) return true;
        s[d] = 0;
    }
    return false;
}

static void fetch_ahead(run *r, const int64_t *step) {
    for (uint32_t i = 0; i < r->n_in; i++) {
        win_state *w = &r->w[i];
        if (w->whole) continue;
        place(r, w, step, w->next_at);
        w->have_next = !(w->live && same_at(w->next_at, w->at, w->ref->t.rank));
        if (w->have_next) copy_block(&w->next, &r->win[i], w->next_at, false);
    }
}

static void enter(run *r) {
    for (uint32_t i = 0; i < r->n_in; i++) {
        win_state *w = &r->w[i];
        int64_t at[MOSAIC_EVAL_RANK] = {0};
        if (w->whole) continue;
        place(r, w, r->step, at);
        if (w->live && same_at(at, w->at, w->ref->t.rank)) continue;
        if (r->overlapped && w->have_next)
            memcpy(w->ref->f ? (void *)w->ref->f : (void *)w->ref->i,
                   w->next.f ? (void *)w->next.f : (void *)w->next.i, w->ref->n * 4);
        else
            copy_block(w->ref, &r->win[i], at, false);
        memcpy(w->at, at, sizeof at);
        w->live = true;
        w->have_next = false;
    }
    for (uint32_t i = r->n_in; i < r->n_in + r->n_out; i++) {
        win_state *w = &r->w[i];
        int64_t at[MOSAIC_EVAL_RANK] = {0};
        place(r, w, r->step, at);
        if (w->live && same_at(at, w->at, w->ref->t.rank)) continue;
        retire(r, i);
        memcpy(w->at, at, sizeof at);
        w->live = true;
    }
}

static void run_grid(run *r) {
    bool more = true;
    while (more) {
        int64_t ahead[3];
        enter(r);
        memcpy(ahead, r->step, sizeof ahead);
        more = next_step(r, ahead);
        if (more && r->overlapped) fetch_ahead(r, ahead);
        for (uint32_t i = 0; i < r->n_grid; i++) {
            value *v = mosaic_value((type){.e = E_I32});
            v->i[0] = (int32_t)r->step[i];
            r->env[r->main->region[0]->arg[i]] = v;
        }
        mosaic_run_region(r->main->region[0], r->env);
        write_late(r); /* of the step before this one */
        memcpy(r->step, ahead, sizeof ahead);
    }
    for (uint32_t i = r->n_in; i < r->n_in + r->n_out; i++) retire(r, i);
    write_late(r);
}

/* An operand that stays in HBM: the array itself. */
static void bind_whole(win_state *w, type t, const mosaic_array *a, bool is_operand,
                       uint32_t i) {
    w->ref = mosaic_value(t);
    if (!is_operand || t.rank != a->rank ||
        memcmp(t.dim, a->dim, t.rank * sizeof t.dim[0]) != 0)
        mosaic_fail("operand %u in HBM: its shape", i);
    w->ref->f = a->f;
    w->ref->i = a->i;
}

static void bind(run *r, const mosaic_array *fetch, const mosaic_array *win) {
    region *g = r->main->region[0];
    const char *list = mosaic_attr(r->main->attrs, "window_params");
    int64_t n_fetch = strtoll(mosaic_attr(r->main->attrs, "scalar_prefetch"), NULL, 10);
    int64_t n_scratch = strtoll(mosaic_attr(r->main->attrs, "scratch_operands"), NULL, 10);
    if (n_fetch != r->n_fetch ||
        g->n_arg != r->n_grid + r->n_fetch + r->n_in + r->n_out + (uint32_t)n_scratch)
        mosaic_fail("main has %u arguments", g->n_arg);
    uint32_t a = r->n_grid;
    for (uint32_t i = 0; i < r->n_fetch; i++, a++) {
        value *v = mosaic_value(g->arg_type[a]);
        if (v->t.where != IN_SMEM || v->n != fetch[i].dim[0])
            mosaic_fail("prefetched operand %u: %zu elements", i, v->n);
        v->i = fetch[i].i;
        r->env[g->arg[a]] = v;
    }
    for (uint32_t i = 0; i < r->n_in + r->n_out; i++, a++) {
        win_state *w = &r->w[i];
        int64_t bound[MOSAIC_EVAL_RANK];
        if (g->arg_type[a].where == IN_HBM) {
            w->whole = true;
            bind_whole(w, g->arg_type[a], &win[i], i < r->n_in, i);
            r->env[g->arg[a]] = w->ref;
            continue;
        }
        list = strstr(list, "transform_indices = @");
        if (!list) mosaic_fail("fewer windows than operands");
        w->place = list += 21;
        if (mosaic_numbers(list, "window_bounds", bound, MOSAIC_EVAL_RANK) != win[i].rank)
            mosaic_fail("window %u: rank", i);
        w->ref = mosaic_value(g->arg_type[a]);
        w->old = *mosaic_value(g->arg_type[a]);
        w->next = *mosaic_value(g->arg_type[a]);
        for (uint32_t d = 0; d < win[i].rank; d++)
            if (w->ref->t.rank != win[i].rank || w->ref->t.dim[d] != bound[d])
                mosaic_fail("window %u: bounds", i);
        fill_nan(w->ref);
        r->env[g->arg[a]] = w->ref;
    }
    for (; a < g->n_arg; a++) {
        value *v = mosaic_value(g->arg_type[a]);
        fill_nan(v);
        r->env[g->arg[a]] = v;
    }
}

const char *mosaic_eval(const char *text, const mosaic_array *fetch, uint32_t n_fetch,
                        const mosaic_array *win, uint32_t n_in, uint32_t n_out,
                        bool overlapped) {
    if (setjmp(away)) {
        drop_all();
        return why;
    }
    module *mod = mosaic_new(sizeof *mod);
    reader r = {.p = text, .mod = mod};
    read_module(&r);
    run *u = mosaic_new(sizeof *u);
    *u = (run){.mod = mod,
               .win = win,
               .n_fetch = n_fetch,
               .n_in = n_in,
               .n_out = n_out,
               .overlapped = overlapped};
    u->main = find_func(mod, "main", 4);
    u->n_grid = mosaic_numbers(u->main->attrs, "iteration_bounds", u->grid, 3);
    u->env = mosaic_new(mod->n_name * sizeof(value *));
    bind(u, fetch, win);
    mosaic_copies_begin(!overlapped);
    run_grid(u);
    mosaic_copies_finish();
    drop_all();
    return NULL;
}
