/* hlo_check.c - see hlo_check.h. */
#include "hlo_check.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH  32
#define MAX_LIST   1300
#define MAX_NUMBER 400000

/* A value by its text: name and place.  Names of numbers are looked up in a table, the few others in a list. */
typedef struct value {
    const char *type;
    uint32_t scope; /* 0: not defined */
    uint32_t n;     /* results of its operation */
} value;

typedef struct reader {
    hlo_check *c;
    const char *text, *p;
    value *number;     /* [MAX_NUMBER]: first result of %vN */
    const char **more; /* types of the results of the operations that have several, in order */
    uint32_t *more_at; /* [MAX_NUMBER] */
    uint32_t n_more;
    struct {
        char name[16];
        value v;
    } local[256]; /* %ra and the like, of the open regions */
    uint32_t n_local;
    uint32_t scope[MAX_DEPTH], n_scope, last_scope;
    bool failed;
} reader;

static bool wrong(reader *r, const char *fmt, ...) {
    if (r->failed) return false;
    r->failed = true;
    uint32_t line = 1;
    for (const char *p = r->text; p < r->p; p++) line += *p == '\n';
    int n = snprintf(r->c->why, sizeof r->c->why, "line %u: ", line);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->c->why + n, sizeof r->c->why - (size_t)n, fmt, ap);
    va_end(ap);
    return false;
}

static void space(reader *r) {
    while (isspace((unsigned char)*r->p)) r->p++;
}

static bool is(reader *r, const char *s) {
    space(r);
    return strncmp(r->p, s, strlen(s)) == 0;
}

static bool eat(reader *r, const char *s) {
    if (!is(r, s)) return false;
    r->p += strlen(s);
    return true;
}

static bool need(reader *r, const char *s) {
    return eat(r, s) || wrong(r, "'%s' is missing at \"%.20s\"", s, r->p);
}

bool hlo_check_same(const char *a, const char *b) {
    for (; *a == *b; a++, b++)
        if (*a == '>') return true;
    return false;
}

/* tensor<...>: borrowed from the text. */
static const char *type(reader *r) {
    space(r);
    const char *at = r->p, *end = strchr(at, '>');
    if (strncmp(at, "tensor<", 7) != 0 || !end) {
        wrong(r, "no type at \"%.20s\"", at);
        return NULL;
    }
    r->p = end + 1;
    return at;
}

/* "(type, ...)" or one type. */
static uint32_t types(reader *r, const char **t) {
    uint32_t n = 0;
    if (!eat(r, "(")) {
        t[0] = type(r);
        return 1;
    }
    if (eat(r, ")")) return 0;
    do {
        if (n >= MAX_LIST) {
            wrong(r, "a list too long");
            return 0;
        }
        t[n++] = type(r);
    } while (!r->failed && eat(r, ","));
    need(r, ")");
    return n;
}

/* "%v12" -> 12; "%ra" -> -1 and its name. */
static long name(reader *r, char word[16]) {
    if (!need(r, "%")) return -1;
    size_t n = 0;
    while ((isalnum((unsigned char)r->p[n]) || r->p[n] == '_') && n < 15) n++;
    memcpy(word, r->p, n);
    word[n] = 0;
    r->p += n;
    char *end;
    long number =
        word[0] == 'v' && isdigit((unsigned char)word[1]) ? strtol(word + 1, &end, 10) : -1;
    if (number >= MAX_NUMBER) wrong(r, "value %ld", number);
    return number;
}

static value *find(reader *r, long number, const char *word) {
    if (number >= 0) return &r->number[number];
    for (uint32_t i = r->n_local; i-- > 0;)
        if (strcmp(r->local[i].name, word) == 0) return &r->local[i].v;
    return NULL;
}

static bool define(reader *r, long number, const char *word, const char **t, uint32_t n) {
    value v = {.type = t[0], .scope = r->scope[r->n_scope - 1], .n = n};
    if (r->failed) return false;
    if (number < 0) {
        if (find(r, number, word)) return wrong(r, "%%%s is defined again", word);
        if (r->n_local >= 256) return wrong(r, "too many names");
        snprintf(r->local[r->n_local].name, 16, "%s", word);
        r->local[r->n_local++].v = v;
    } else {
        if (r->number[number].scope) return wrong(r, "%%v%ld is defined again", number);
        r->number[number] = v;
        r->more_at[number] = r->n_more;
        for (uint32_t i = 0; n > 1 && i < n; i++) {
            if (r->n_more >= MAX_NUMBER) return wrong(r, "too many values");
            r->more[r->n_more++] = t[i];
        }
    }
    r->c->n_value += n;
    return true;
}

/* A use: its type. */
static const char *use(reader *r) {
    char word[16];
    long number = name(r, word);
    if (r->failed) return NULL;
    const value *v = find(r, number, word);
    bool visible = false;
    for (uint32_t i = 0; v && i < r->n_scope; i++) visible |= v->scope == r->scope[i];
    if (!visible) {
        wrong(r, "%%%s is used where it is not defined", word);
        return NULL;
    }
    if (!eat(r, "#")) {
        if (v->n > 1) wrong(r, "%%%s has %u results", word, v->n);
        return v->type;
    }
    unsigned long i = strtoul(r->p, (char **)(uintptr_t)&r->p, 10);
    if (number < 0 || v->n < 2 || i >= v->n) {
        wrong(r, "%%%s#%lu", word, i);
        return NULL;
    }
    return r->more[r->more_at[number] + i];
}

/* A balanced { } or < >, strings and arrows inside passed over. */
static void skip(reader *r, char open, char close) {
    int depth = 0;
    for (; *r->p; r->p++) {
        if (*r->p == '"') {
            r->p = strchr(r->p + 1, '"');
            if (!r->p) return;
        } else if (*r->p == open) {
            depth++;
        } else if (*r->p == close && --depth == 0) {
            r->p++;
            return;
        }
    }
    wrong(r, "the end inside attributes");
}

static bool operation(reader *r, const char **returned, uint32_t *n_returned);

/* "{ ^bb0(args): operations }"; the last one's operands are what it returns. */
static void region(reader *r, const char **returned, uint32_t *n_returned) {
    uint32_t n_local = r->n_local;
    const char *t;
    char word[16];
    if (!need(r, "{")) return;
    if (r->n_scope >= MAX_DEPTH) {
        wrong(r, "regions too deep");
        return;
    }
    r->scope[r->n_scope++] = ++r->last_scope;
    if (eat(r, "^bb0(")) {
        do {
            long number = name(r, word);
            need(r, ":");
            t = type(r);
            define(r, number, word, &t, 1);
        } while (!r->failed && eat(r, ","));
        need(r, "):");
    }
    while (!r->failed && !is(r, "}")) operation(r, returned, n_returned);
    need(r, "}");
    r->n_scope--;
    r->n_local = n_local;
}

static void count(reader *r, const char *op, size_t len) {
    hlo_check *c = r->c;
    uint32_t i = 0;
    while (i < c->n_kind &&
           (strlen(c->op[i].name) != len || memcmp(c->op[i].name, op, len) != 0))
        i++;
    if (i == HLO_CHECK_MAX_OP || len >= sizeof c->op[i].name) {
        wrong(r, "too many kinds of operations");
        return;
    }
    if (i == c->n_kind) {
        snprintf(c->op[i].name, sizeof c->op[i].name, "%.*s", (int)len, op);
        c->n_kind++;
    }
    c->op[i].n++;
    c->n_op++;
}

static bool operation(reader *r, const char **returned, uint32_t *n_returned) {
    const char **in = lg_mem_calloc(3 * MAX_LIST, sizeof *in), **want = in + MAX_LIST,
               **out = want + MAX_LIST;
    char word[16];
    long number = -1;
    uint32_t n_in = 0, n_def = 0, n_inner = 0;
    if (is(r, "%")) {
        number = name(r, word);
        n_def = eat(r, ":") ? (uint32_t)strtoul(r->p, (char **)(uintptr_t)&r->p, 10) : 1;
        need(r, "=");
    }
    if (need(r, "\"")) {
        const char *end = strchr(r->p, '"');
        count(r, r->p, end ? (size_t)(end - r->p) : 0);
        bool loop = end && strncmp(r->p, "stablehlo.while", 15) == 0,
             ret = end && end - r->p >= 6 && memcmp(end - 6, "return", 6) == 0;
        r->c->n_loop += loop;
        if (end) r->p = end + 1;
        if (need(r, "(") && !is(r, ")")) do {
                in[n_in++] = use(r);
            } while (!r->failed && n_in < MAX_LIST && eat(r, ","));
        need(r, ")");
        if (is(r, "<{")) skip(r, '<', '>');
        if (eat(r, "(")) {
            do {
                region(r, out, &n_inner);
            } while (!r->failed && eat(r, ","));
            need(r, ")");
        }
        if (is(r, "{")) skip(r, '{', '}');
        need(r, ":");
        uint32_t n_want = types(r, want);
        if (!r->failed && n_want != n_in) wrong(r, "%u operands of %u types", n_in, n_want);
        for (uint32_t i = 0; !r->failed && i < n_in; i++)
            if (!hlo_check_same(in[i], want[i]))
                wrong(r, "operand %u is %.40s, not %.40s", i, in[i], want[i]);
        if (ret) {
            *n_returned = n_in;
            memcpy(returned, in, n_in * sizeof *in);
        }
        /* A loop's body returns what the loop carries. */
        if (loop && !r->failed && n_inner != n_in)
            wrong(r, "a body returns %u values of %u", n_inner, n_in);
        for (uint32_t i = 0; loop && !r->failed && i < n_in; i++)
            if (!hlo_check_same(in[i], out[i])) wrong(r, "a body changes value %u", i);
        need(r, "->");
        uint32_t n_out = types(r, out);
        if (!r->failed && n_out != n_def) wrong(r, "%u results of %u types", n_def, n_out);
        if (n_def && !r->failed) define(r, number, word, out, n_def);
    }
    lg_mem_free(in);
    return !r->failed;
}

/* Arguments of main with their aliases. */
static void arguments(reader *r) {
    hlo_check *c = r->c;
    char word[16];
    need(r, "(");
    do {
        long number = name(r, word);
        need(r, ":");
        const char *t = type(r);
        define(r, number, word, &t, 1);
        if (c->n_arg >= HLO_CHECK_MAX_ARG) {
            wrong(r, "too many arguments");
            return;
        }
        c->arg[c->n_arg] = t;
        c->alias[c->n_arg] = -1;
        if (eat(r, "{tf.aliasing_output = ")) {
            c->alias[c->n_arg] = (int)strtol(r->p, (char **)(uintptr_t)&r->p, 10);
            need(r, ": i32}");
        }
        if (eat(r, "{mhlo.layout_mode = \"")) {
            c->n_laid_out++;
            r->p = strchr(r->p, '"') ? strchr(r->p, '"') + 1 : r->p;
            need(r, "}");
        }
        c->n_arg++;
    } while (!r->failed && eat(r, ","));
    need(r, ")");
}

static void module(reader *r) {
    hlo_check *c = r->c;
    const char **returned = lg_mem_calloc(MAX_LIST, sizeof *returned);
    uint32_t n_returned = 0;
    r->p = strstr(r->text, "func.func @main");
    if (r->p) {
        r->p += 15;
        arguments(r);
        need(r, "->");
        c->n_result = types(r, c->result);
        region(r, returned, &n_returned);
        need(r, "}");
        space(r);
        if (!r->failed && *r->p) wrong(r, "more behind the end");
        if (!r->failed && n_returned != c->n_result)
            wrong(r, "main returns %u values of %u", n_returned, c->n_result);
        for (uint32_t i = 0; !r->failed && i < n_returned; i++)
            if (!hlo_check_same(returned[i], c->result[i]))
                wrong(r, "result %u is %.40s, not %.40s", i, returned[i], c->result[i]);
    } else {
        r->p = r->text;
        wrong(r, "no main");
    }
    lg_mem_free(returned);
}

bool hlo_check_text(hlo_check *c, const char *text) {
    reader *r = lg_mem_calloc(1, sizeof *r);
    *c = (hlo_check){.n_arg = 0};
    r->c = c;
    r->text = text;
    r->number = lg_mem_calloc(MAX_NUMBER, sizeof *r->number);
    r->more = lg_mem_calloc(MAX_NUMBER, sizeof *r->more);
    r->more_at = lg_mem_calloc(MAX_NUMBER, sizeof *r->more_at);
    r->scope[r->n_scope++] = ++r->last_scope;
    module(r);
    bool ok = !r->failed;
    lg_mem_free(r->number);
    lg_mem_free(r->more);
    lg_mem_free(r->more_at);
    lg_mem_free(r);
    return ok;
}

uint32_t hlo_check_count(const hlo_check *c, const char *op) {
    for (uint32_t i = 0; i < c->n_kind; i++)
        if (strcmp(c->op[i].name, op) == 0) return c->op[i].n;
    return 0;
}
