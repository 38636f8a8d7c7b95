/* grammar_make.c - a JSON schema, or tools, into nodes: see grammar.h.
 *
 * In:  the source's JSON.   Out: lg_grammar, or the path of what cannot be enforced.
 * A schema becomes one node; a $ref is the node of what it names, so a schema may contain itself.  In lax mode (a tool's
 * parameters) what is not understood becomes any value.
 * Thread: any.  Memory: the grammar's arrays.  Test: tests/unit/test_grammar.c */
#include "model/grammar/grammar_make.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NODE = 20000, MAX_ITEM = 60000, JSON_DEPTH = 128 };

/* ---- Nodes ---- */

bool lg_grammar_make_grow(void **p, uint32_t *cap, uint32_t n, size_t size) {
    if (n < *cap) return true;
    uint32_t more = *cap ? 2 * *cap : 64;
    void *q = lg_mem_realloc(*p, more * size);
    if (!q) return false;
    *p = q;
    *cap = more;
    return true;
}

/* Refuse what stands at the path; the first word counts. */
uint16_t lg_grammar_make_fail(lg_grammar_maker *m, const char *fmt, ...) {
    char why[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (m->err && !m->err->msg[0])
        (void)LG_FAIL(m->err, LG_E_ARG, "%s: %s", m->path[0] ? m->path : "schema", why);
    return LG_NODE_NONE;
}

uint16_t lg_grammar_make_no_memory(lg_grammar_maker *m) {
    m->no_memory = true;
    return LG_NODE_NONE;
}

uint16_t lg_grammar_make_node(lg_grammar_maker *m, lg_node_kind kind) {
    lg_grammar *g = m->g;
    if (g->n_node == MAX_NODE) return lg_grammar_make_fail(m, "the schema is too large");
    if (!lg_grammar_make_grow((void **)&g->node, &g->cap_node, g->n_node, sizeof *g->node))
        return lg_grammar_make_no_memory(m);
    g->node[g->n_node] = (lg_node){
        .kind = kind, .high = LG_NODE_NO_MAX, .child = LG_NODE_NONE, .item = g->n_item};
    return (uint16_t)g->n_node++;
}

/* Room for n items of a node, in one piece. */
bool lg_grammar_make_items(lg_grammar_maker *m, uint16_t node, uint32_t n) {
    lg_grammar *g = m->g;
    if (n > LG_NODE_NO_MAX - 1 || g->n_item + n > MAX_ITEM) {
        lg_grammar_make_fail(m, "the schema is too large");
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!lg_grammar_make_grow((void **)&g->item, &g->cap_item, g->n_item + i,
                                  sizeof *g->item)) {
            lg_grammar_make_no_memory(m);
            return false;
        }
        g->item[g->n_item + i] = (lg_node_item){.node = LG_NODE_NONE};
    }
    g->node[node].item = g->n_item;
    g->node[node].n_item = (uint16_t)n;
    g->n_item += n;
    return true;
}

lg_node_item *lg_grammar_make_item(lg_grammar_maker *m, uint16_t node, uint32_t i) {
    return &m->g->item[m->g->node[node].item + i];
}

/* Item i's text: what was appended to g->text since `from`.  Until all is made it is kept as a distance. */
bool lg_grammar_make_text(lg_grammar_maker *m, uint16_t node, uint32_t i, size_t from) {
    size_t len = m->g->text.len_bytes - from;
    if (m->g->text.failed) {
        lg_grammar_make_no_memory(m);
        return false;
    }
    if (len > LG_GRAMMAR_MAX_TEXT) {
        lg_grammar_make_fail(m, "a name or value of more than %d bytes", LG_GRAMMAR_MAX_TEXT);
        return false;
    }
    lg_grammar_make_item(m, node, i)->text = (const char *)from; /* resolved at the end */
    lg_grammar_make_item(m, node, i)->len_bytes = (uint16_t)len;
    return true;
}

/* A node whose items are these nodes. */
uint16_t lg_grammar_make_group(lg_grammar_maker *m, lg_node_kind kind, const uint16_t *nodes,
                               uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (nodes[i] == LG_NODE_NONE) return LG_NODE_NONE;
    uint16_t node = lg_grammar_make_node(m, kind);
    if (node == LG_NODE_NONE || !lg_grammar_make_items(m, node, n)) return LG_NODE_NONE;
    for (uint32_t i = 0; i < n; i++) lg_grammar_make_item(m, node, i)->node = nodes[i];
    return node;
}

/* The node of any name of a member. */
static uint16_t any_key(lg_grammar_maker *m) {
    if (m->key == LG_NODE_NONE) m->key = lg_grammar_make_node(m, LG_NODE_STRING);
    return m->key;
}

static uint16_t new_map(lg_grammar_maker *m, uint16_t value) {
    uint16_t key = any_key(m), node = lg_grammar_make_node(m, LG_NODE_MAP);
    if (key == LG_NODE_NONE || node == LG_NODE_NONE) return LG_NODE_NONE;
    m->g->node[node].low = key;
    m->g->node[node].child = value;
    return node;
}

static uint16_t word(lg_grammar_maker *m, const char *a, const char *b) {
    uint16_t node = lg_grammar_make_node(m, LG_NODE_TEXTS);
    const char *text[] = {a, b};
    uint32_t n = b ? 2 : 1;
    if (node == LG_NODE_NONE || !lg_grammar_make_items(m, node, n)) return LG_NODE_NONE;
    for (uint32_t i = 0; i < n; i++) {
        size_t from = m->g->text.len_bytes;
        lg_buf_puts(&m->g->text, text[i]);
        if (!lg_grammar_make_text(m, node, i, from)) return LG_NODE_NONE;
    }
    return node;
}

/* Any value; its containers hold any values. */
static uint16_t any_value(lg_grammar_maker *m) {
    if (m->any != LG_NODE_NONE) return m->any;
    uint16_t any = lg_grammar_make_node(m, LG_NODE_CHOICE);
    if (any == LG_NODE_NONE || !lg_grammar_make_items(m, any, 6)) return LG_NODE_NONE;
    m->any = any;
    uint16_t list = lg_grammar_make_node(m, LG_NODE_ARRAY);
    uint16_t part[] = {any_key(m),
                       lg_grammar_make_node(m, LG_NODE_NUMBER),
                       new_map(m, any),
                       list,
                       word(m, "true", "false"),
                       word(m, "null", NULL)};
    for (uint32_t i = 0; i < LG_COUNT(part); i++) {
        if (part[i] == LG_NODE_NONE) return LG_NODE_NONE;
        lg_grammar_make_item(m, any, i)->node = part[i];
    }
    m->g->node[list].child = any;
    return any;
}

/* ---- Schemas ---- */

static uint16_t make(lg_grammar_maker *m, const lg_json *schema);

/* Make what is at path/part. */
uint16_t lg_grammar_make_schema(lg_grammar_maker *m, const char *part, const lg_json *schema) {
    size_t len = strlen(m->path);
    snprintf(m->path + len, sizeof m->path - len, "%s%.60s", len ? "." : "", part);
    uint16_t node = make(m, schema);
    if (node != LG_NODE_NONE) m->path[len] = 0;
    return node;
}

static bool read_bound(lg_grammar_maker *m, const lg_json *schema, const char *key,
                       uint16_t *out) {
    const lg_json *v = lg_json_get(schema, key);
    uint64_t x;
    if (!v) return true;
    if (!lg_json_u64(v, &x)) {
        lg_grammar_make_fail(m, "%s: expected a whole number", key);
        return false;
    }
    if (x < LG_NODE_NO_MAX) {
        *out = (uint16_t)x;
    } else if (strncmp(key, "min", 3) == 0) {
        lg_grammar_make_fail(m, "%s: expected less than %u", key, LG_NODE_NO_MAX);
        return false;
    }
    return true;
}

uint16_t lg_grammar_make_between(lg_grammar_maker *m, lg_node_kind kind, const lg_json *schema,
                                 const char *low, const char *high) {
    uint16_t node = lg_grammar_make_node(m, kind);
    if (node == LG_NODE_NONE) return node;
    if (!read_bound(m, schema, low, &m->g->node[node].low) ||
        !read_bound(m, schema, high, &m->g->node[node].high))
        return LG_NODE_NONE;
    if (m->g->node[node].low > m->g->node[node].high)
        return lg_grammar_make_fail(m, "%s is above %s", low, high);
    return node;
}

static uint16_t make_array(lg_grammar_maker *m, const lg_json *schema) {
    const lg_json *items = lg_json_get(schema, "items");
    uint16_t node = lg_grammar_make_between(m, LG_NODE_ARRAY, schema, "minItems", "maxItems");
    if (node == LG_NODE_NONE) return node;
    uint16_t child = items ? lg_grammar_make_schema(m, "items", items) : any_value(m);
    m->g->node[node].child = child;
    return child == LG_NODE_NONE ? child : node;
}

bool lg_grammar_make_needed(const lg_json *required, const lg_json *name) {
    for (const lg_json *r = required ? required->child : NULL; r; r = r->next)
        if (r->kind == LG_JSON_STRING && r->text_len == name->key_len &&
            memcmp(r->text, name->key, name->key_len) == 0)
            return true;
    return false;
}

/* Every name in `required` is one of the properties. */
static bool required_are_there(lg_grammar_maker *m, const lg_json *required,
                               const lg_json *props) {
    if (required && required->kind != LG_JSON_ARRAY) {
        lg_grammar_make_fail(m, "required: expected an array of names");
        return false;
    }
    for (const lg_json *r = required ? required->child : NULL; r; r = r->next) {
        const lg_json *p = props ? props->child : NULL;
        while (p && !(r->kind == LG_JSON_STRING && r->text_len == p->key_len &&
                      memcmp(r->text, p->key, p->key_len) == 0))
            p = p->next;
        if (p) continue;
        lg_grammar_make_fail(m, "required: %.60s is not among the properties",
                             r->kind == LG_JSON_STRING ? r->text : "an item");
        return false;
    }
    return true;
}

bool lg_grammar_make_twice(const lg_json *props) {
    for (const lg_json *p = props->child; p; p = p->next)
        for (const lg_json *q = p->next; q; q = q->next)
            if (p->key_len == q->key_len && memcmp(p->key, q->key, p->key_len) == 0)
                return true;
    return false;
}

static uint16_t make_object(lg_grammar_maker *m, const lg_json *schema) {
    const lg_json *props = lg_json_get(schema, "properties");
    const lg_json *required = lg_json_get(schema, "required");
    const lg_json *others = lg_json_get(schema, "additionalProperties");
    if (props && props->kind != LG_JSON_OBJECT)
        return lg_grammar_make_fail(m, "properties: expected an object");
    if (!required_are_there(m, required, props)) return LG_NODE_NONE;
    if ((!props || !props->child) && !(others && others->kind == LG_JSON_FALSE)) {
        bool any = !others || others->kind == LG_JSON_TRUE;
        uint16_t value =
            any ? any_value(m) : lg_grammar_make_schema(m, "additionalProperties", others);
        return value == LG_NODE_NONE ? value : new_map(m, value);
    }
    uint16_t node = lg_grammar_make_node(m, LG_NODE_OBJECT);
    if (node == LG_NODE_NONE || !lg_grammar_make_items(m, node, props ? props->n_child : 0))
        return LG_NODE_NONE;
    if (props && props->n_child > 1000)
        return lg_grammar_make_fail(m, "properties: more than 1000");
    if (props && lg_grammar_make_twice(props))
        return lg_grammar_make_fail(m, "properties: a name is there twice");
    uint32_t i = 0;
    for (const lg_json *p = props ? props->child : NULL; p; p = p->next, i++) {
        char part[80];
        size_t from = m->g->text.len_bytes;
        lg_json_put_string(&m->g->text, p->key, p->key_len);
        if (!lg_grammar_make_text(m, node, i, from)) return LG_NODE_NONE;
        snprintf(part, sizeof part, "properties.%.60s", p->key);
        uint16_t value = lg_grammar_make_schema(m, part, p);
        if (value == LG_NODE_NONE) return value;
        lg_grammar_make_item(m, node, i)->node = value;
        lg_grammar_make_item(m, node, i)->needed = lg_grammar_make_needed(required, p);
    }
    return node;
}

/* Whether a value is of a type, or of one of several; NULL: any. */
static bool is_of(const lg_json *v, const lg_json *type) {
    if (!type) return true;
    for (const lg_json *t = type->kind == LG_JSON_ARRAY ? type->child : NULL; t; t = t->next)
        if (is_of(v, t)) return true;
    switch (v->kind) {
    case LG_JSON_NULL: return lg_json_is(type, "null");
    case LG_JSON_FALSE:
    case LG_JSON_TRUE: return lg_json_is(type, "boolean");
    case LG_JSON_STRING: return lg_json_is(type, "string");
    case LG_JSON_ARRAY: return lg_json_is(type, "array");
    case LG_JSON_OBJECT: return lg_json_is(type, "object");
    case LG_JSON_NUMBER: break;
    }
    return lg_json_is(type, "number") ||
           (lg_json_is(type, "integer") && !strpbrk(v->text, ".eE"));
}

/* Values one of which is to come: the n from `first` on that are of the schema's type. */
static uint16_t make_texts(lg_grammar_maker *m, const lg_json *schema, const lg_json *first,
                           uint32_t n) {
    const lg_json *type = lg_json_get(schema, "type");
    uint16_t node = lg_grammar_make_node(m, LG_NODE_TEXTS);
    uint32_t n_fit = 0, i = 0;
    const lg_json *v = first;
    for (uint32_t k = 0; k < n; k++, v = v->next) n_fit += is_of(v, type);
    if (n_fit == 0) return lg_grammar_make_fail(m, "no value of enum or const is of the type");
    if (node == LG_NODE_NONE || !lg_grammar_make_items(m, node, n_fit)) return LG_NODE_NONE;
    for (; i < n_fit; first = first->next) {
        size_t from = m->g->text.len_bytes;
        if (!is_of(first, type)) continue;
        lg_json_put(&m->g->text, first, LG_JSON_COMPACT);
        if (!lg_grammar_make_text(m, node, i++, from)) return LG_NODE_NONE;
    }
    return node;
}

static uint16_t make_string(lg_grammar_maker *m, const lg_json *schema) {
    const lg_json *pattern = lg_json_get(schema, "pattern");
    uint16_t node =
        lg_grammar_make_between(m, LG_NODE_STRING, schema, "minLength", "maxLength");
    if (node == LG_NODE_NONE || !pattern) return node;
    const lg_node *k = &m->g->node[node];
    return lg_grammar_make_pattern(
        m, pattern, k->low, k->high == LG_NODE_NO_MAX ? LG_REGEX_NO_MAX : k->high, false);
}

static uint16_t make_type(lg_grammar_maker *m, const lg_json *schema, const lg_json *type) {
    uint16_t node;
    if (lg_json_is(type, "object")) return make_object(m, schema);
    if (lg_json_is(type, "array")) return make_array(m, schema);
    if (lg_json_is(type, "string")) return make_string(m, schema);
    if (lg_json_is(type, "boolean")) return word(m, "true", "false");
    if (lg_json_is(type, "null")) return word(m, "null", NULL);
    if (!lg_json_is(type, "number") && !lg_json_is(type, "integer"))
        return lg_grammar_make_fail(m, "type: expected the name of a JSON type");
    if (lg_grammar_make_bounded(schema))
        return lg_grammar_make_range(m, schema, lg_json_is(type, "integer"));
    if ((node = lg_grammar_make_node(m, LG_NODE_NUMBER)) != LG_NODE_NONE)
        m->g->node[node].low = lg_json_is(type, "integer");
    return node;
}

/* Look at a node again when all is made. */
static bool remember(lg_grammar_maker *m, uint16_t node, const lg_json *type, const char *key) {
    if (!lg_grammar_make_grow((void **)&m->fork, &m->cap_fork, m->n_fork, sizeof *m->fork)) {
        lg_grammar_make_no_memory(m);
        return false;
    }
    lg_grammar_fork *f = &m->fork[m->n_fork++];
    f->node = node;
    f->type = type;
    snprintf(f->path, sizeof f->path, "%.60s%s%s", m->path, m->path[0] ? "." : "", key);
    return true;
}

/* One of several schemas, or of several types of one schema. */
static uint16_t make_choice(lg_grammar_maker *m, const lg_json *schema, const lg_json *list,
                            const char *key, bool types) {
    uint16_t node = lg_grammar_make_node(m, LG_NODE_CHOICE);
    if (list->kind != LG_JSON_ARRAY || !list->child)
        return lg_grammar_make_fail(m, "%s: expected an array that is not empty", key);
    if (node == LG_NODE_NONE || !lg_grammar_make_items(m, node, list->n_child))
        return LG_NODE_NONE;
    if (!remember(m, node, NULL, key)) return LG_NODE_NONE;
    uint32_t i = 0;
    for (const lg_json *c = list->child; c; c = c->next, i++) {
        char part[48];
        snprintf(part, sizeof part, "%s[%u]", key, i);
        uint16_t one = types ? make_type(m, schema, c) : lg_grammar_make_schema(m, part, c);
        if (one == LG_NODE_NONE) return one;
        lg_grammar_make_item(m, node, i)->node = one;
    }
    return node;
}

static uint16_t make_ref(lg_grammar_maker *m, const lg_json *ref) {
    const char *text = ref->kind == LG_JSON_STRING ? ref->text : "";
    if (*text != '#')
        return lg_grammar_make_fail(m, "$ref: only references within the schema are supported");
    const lg_json *v = lg_json_point(m->root, text);
    if (!v) return lg_grammar_make_fail(m, "$ref: '%.60s' leads nowhere", text);
    return make(m, v);
}

/* What may stand in a schema: with and without effect. */
static bool known_member(const lg_json *v) {
    static const char *const known[] = {"type",
                                        "enum",
                                        "const",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "items",
                                        "minItems",
                                        "maxItems",
                                        "minLength",
                                        "maxLength",
                                        "anyOf",
                                        "pattern",
                                        "minimum",
                                        "maximum",
                                        "multipleOf",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "oneOf",
                                        "allOf",
                                        "$ref",
                                        "title",
                                        "description",
                                        "default",
                                        "examples",
                                        "$schema",
                                        "$id",
                                        "$comment",
                                        "$defs",
                                        "definitions",
                                        "deprecated",
                                        "readOnly",
                                        "writeOnly",
                                        "format",
                                        "strict",
                                        "nullable"};
    for (size_t i = 0; i < LG_COUNT(known); i++)
        if (v->key_len == strlen(known[i]) && memcmp(v->key, known[i], v->key_len) == 0)
            return strcmp(known[i], "nullable") != 0 || v->kind == LG_JSON_FALSE;
    return false;
}

/* Members that each say what the value is: more than one of them at a time would have to be met together. */
static uint32_t n_of(const lg_json *schema) {
    static const char *const key[] = {"anyOf", "oneOf", "allOf", "$ref"};
    uint32_t n = 0;
    for (size_t i = 0; i < LG_COUNT(key); i++) n += lg_json_get(schema, key[i]) != NULL;
    return n;
}

/* What these say is said elsewhere. */
static uint16_t make_other(lg_grammar_maker *m, const lg_json *schema) {
    const lg_json *v;
    if ((v = lg_json_get(schema, "$ref"))) return make_ref(m, v);
    if ((v = lg_json_get(schema, "anyOf"))) return make_choice(m, schema, v, "anyOf", false);
    if ((v = lg_json_get(schema, "oneOf"))) return make_choice(m, schema, v, "oneOf", false);
    v = lg_json_get(schema, "allOf");
    if (v->kind != LG_JSON_ARRAY || v->n_child != 1)
        return lg_grammar_make_fail(m, "allOf: only one schema is supported");
    return lg_grammar_make_schema(m, "allOf[0]", v->child);
}

/* Members that bound a value of one type; NULL when there is none.  *type: that type, as a schema names it. */
static const char *find_bound(const lg_json *schema, const lg_json **type) {
    static const lg_json types[] = {{.kind = LG_JSON_STRING, .text = "string", .text_len = 6},
                                    {.kind = LG_JSON_STRING, .text = "number", .text_len = 6},
                                    {.kind = LG_JSON_STRING, .text = "array", .text_len = 5},
                                    {.kind = LG_JSON_STRING, .text = "object", .text_len = 6}};
    static const struct {
        const char *name;
        int type;
    } bound[] = {{"pattern", 0},
                 {"minLength", 0},
                 {"maxLength", 0},
                 {"minimum", 1},
                 {"maximum", 1},
                 {"exclusiveMinimum", 1},
                 {"items", 2},
                 {"minItems", 2},
                 {"exclusiveMaximum", 1},
                 {"maxItems", 2},
                 {"multipleOf", 1},
                 {"properties", 3},
                 {"required", 3},
                 {"additionalProperties", 3}};
    for (size_t i = 0; i < LG_COUNT(bound); i++)
        if (lg_json_get(schema, bound[i].name)) {
            *type = &types[bound[i].type];
            return bound[i].name;
        }
    return NULL;
}

static uint16_t make_object_schema(lg_grammar_maker *m, const lg_json *schema) {
    const lg_json *type = lg_json_get(schema, "type"), *implied = NULL;
    const char *bound = find_bound(schema, &implied);
    uint16_t node;
    for (const lg_json *k = schema->child; k; k = k->next)
        if (!known_member(k))
            return lg_grammar_make_fail(m, "'%.60s' is not supported", k->key);
    const lg_json *one = lg_json_get(schema, "const"), *list = lg_json_get(schema, "enum");
    uint32_t n = n_of(schema);
    if ((one || list) + n > 1 || (one && list))
        return lg_grammar_make_fail(
            m, "const, enum, anyOf, oneOf, allOf and $ref exclude each other");
    if ((one || list || n) && bound)
        return lg_grammar_make_fail(
            m, "'%s' beside const, enum, anyOf, oneOf, allOf or $ref is not supported", bound);
    if (one) return make_texts(m, schema, one, 1);
    if (list) {
        if (list->kind != LG_JSON_ARRAY || !list->child)
            return lg_grammar_make_fail(m, "enum: expected an array that is not empty");
        return make_texts(m, schema, list->child, list->n_child);
    }
    if (n > 0) {
        node = make_other(m, schema);
        bool ok = node != LG_NODE_NONE && (!type || remember(m, node, type, "type"));
        return ok ? node : LG_NODE_NONE;
    }
    if (!type) type = implied;
    if (type && type->kind == LG_JSON_ARRAY) return make_choice(m, schema, type, "type", true);
    return type ? make_type(m, schema, type) : any_value(m);
}

static uint16_t make(lg_grammar_maker *m, const lg_json *schema) {
    for (uint32_t i = 0; i < m->n_made; i++)
        if (m->made[i].schema == schema) return m->made[i].node;
    if (schema->kind == LG_JSON_TRUE) return any_value(m);
    if (schema->kind != LG_JSON_OBJECT)
        return lg_grammar_make_fail(m, "expected a schema object");
    if (m->depth == LG_GRAMMAR_MAX_REF) return lg_grammar_make_fail(m, "nested too deeply");
    /* A sequence of one stands for the schema until its node is known: it may contain itself. */
    uint16_t self = lg_grammar_make_node(m, LG_NODE_SEQ);
    if (self == LG_NODE_NONE || !lg_grammar_make_items(m, self, 1)) return LG_NODE_NONE;
    if (!lg_grammar_make_grow((void **)&m->made, &m->cap_made, m->n_made, sizeof *m->made))
        return lg_grammar_make_no_memory(m);
    m->made[m->n_made++] = (lg_grammar_made){schema, self};
    m->depth++;
    uint16_t node = make_object_schema(m, schema);
    m->depth--;
    if (node == LG_NODE_NONE && m->lax && !m->no_memory) {
        if (m->err) m->err->msg[0] = 0;
        node = any_value(m);
    }
    if (node != LG_NODE_NONE) lg_grammar_make_item(m, self, 0)->node = node;
    return node == LG_NODE_NONE ? node : self;
}

static bool make_root(lg_grammar_maker *m, const lg_json *source) {
    const lg_json *schema = lg_json_get(source, "schema"),
                  *tools = lg_json_get(source, "tools");
    bool many = false;
    (void)lg_json_bool(lg_json_get(source, "many"), &many);
    m->root = schema;
    if (!schema && !tools) {
        lg_grammar_make_fail(m, "neither a schema nor tools");
        return false;
    }
    /* One that resolving needs may not be made then: texts are places in the buffer by now. */
    if (tools && any_value(m) == LG_NODE_NONE) return false;
    uint16_t value = schema ? make(m, schema) : lg_grammar_make_tools(m, tools, many);
    uint16_t lines = lg_grammar_make_node(m, LG_NODE_LINES);
    if (lines != LG_NODE_NONE) m->g->node[lines].high = 2;
    uint16_t root = lg_grammar_make_group(
        m, LG_NODE_SEQ, (uint16_t[]){lg_grammar_make_node(m, LG_NODE_THINK), lines, value}, 3);
    if (root == LG_NODE_NONE) return false;
    m->g->root = root;
    m->path[0] = 0;
    return !m->g->text.failed && lg_grammar_make_finish(m);
}

/* ---- Interface ---- */

lg_status lg_grammar_open(const char *source, size_t len_bytes, lg_grammar **g, lg_err *err) {
    lg_err own = {0};
    lg_json_doc *doc = NULL;
    *g = NULL;
    if (!err) err = &own;
    err->msg[0] = 0;
    if (len_bytes > LG_GRAMMAR_MAX_BYTES)
        return LG_FAIL(err, LG_E_ARG, "schema: more than %d bytes", LG_GRAMMAR_MAX_BYTES);
    lg_status st = lg_json_parse(source, len_bytes, JSON_DEPTH, "schema", &doc, err);
    if (st != LG_OK) return st == LG_E_FORMAT ? LG_E_ARG : st;
    lg_grammar_maker m = {
        .g = lg_mem_alloc(sizeof **g), .any = LG_NODE_NONE, .key = LG_NODE_NONE, .err = err};
    bool ok = m.g && make_root(&m, lg_json_root(doc));
    lg_mem_free(m.made);
    lg_mem_free(m.fork);
    lg_json_close(&doc);
    *g = m.g;
    if (ok) return LG_OK;
    bool memory = !m.g || m.no_memory || m.g->text.failed;
    lg_grammar_close(g);
    return memory ? LG_FAIL(err, LG_E_NOMEM, "schema: no memory") : LG_E_ARG;
}

void lg_grammar_close(lg_grammar **g) {
    if (!*g) return;
    lg_mem_free((*g)->node);
    lg_mem_free((*g)->item);
    lg_mem_free((*g)->range);
    for (uint32_t i = 0; i < (*g)->n_dfa; i++) lg_grammar_dfa_fini(&(*g)->dfa[i]);
    lg_mem_free((*g)->dfa);
    lg_buf_fini(&(*g)->text);
    LG_FREE(*g);
}

size_t lg_grammar_bytes(const lg_grammar *g) {
    size_t n = sizeof *g + g->cap_node * sizeof *g->node + g->cap_item * sizeof *g->item +
               g->cap_range * sizeof *g->range + g->cap_dfa * sizeof *g->dfa +
               g->text.cap_bytes;
    for (uint32_t i = 0; i < g->n_dfa; i++) n += lg_grammar_dfa_bytes(&g->dfa[i]);
    return n;
}
