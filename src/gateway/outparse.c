/* outparse.c - model output into reasoning, content and tool calls: see outparse.h and docs/CHAT.md, "The output".
 *
 * Bytes wait in `hold` until it is certain what they are: white space that a tag may follow, the beginning of a tag, a whole
 * tool-call block (it is content if it never ends).  Every byte is scanned once, and at most one tag's length again after a
 * tag that did not match.
 * Invariants: start <= safe <= pos <= hold.len_bytes.  hold[start, safe) is text to emit now, hold[safe, pos) is white space
 * that a tag would swallow, or in a block: that white space and the block so far.
 * Thread: gateway.  Memory: hold, at most the longest block.  Test: tests/unit/test_outparse.c, fuzz/fuzz_outparse.c */
#include "gateway/outparse.h"

#include <string.h>

#define NAME_MAX_BYTES 256 /* a longer function name is no call */
#define ARG_DEPTH      64  /* deepest nesting of an argument that is read as JSON */

typedef enum {
    IN_REASONING,
    AFTER_REASONING, /* dropping the line feeds after </think> */
    IN_CONTENT,
    /* inside a block */
    AT_FUNCTION, /* white space, then <function= */
    IN_NAME,
    AT_PARAMETER, /* white space, then <parameter= or </function> */
    IN_KEY,
    IN_VALUE,
    AFTER_VALUE, /* after </parameter>: as AT_PARAMETER, but anything else was part of the value */
    AT_CLOSE     /* white space, then </tool_call> */
} state;

struct lg_outparse {
    const lg_json *tools; /* array, or NULL */
    lg_buf hold;
    size_t start, safe, pos;
    state state;
    bool after_call; /* no content since the last call */
    uint32_t n_call;
    /* the block at hand */
    size_t block, name, name_end, key, key_end, value, value_end; /* places in hold */
    bool wrapped;                                                 /* began with <tool_call> */
    const lg_json *function; /* definition; NULL: not one of the tools */
    lg_buf args;             /* JSON so far */
};

typedef struct sink {
    lg_part_fn *fn;
    void *ctx;
} sink;

static void emit(lg_outparse *op, const sink *to, lg_part_kind kind, const char *text,
                 size_t len_bytes) {
    if (len_bytes == 0 && kind != LG_PART_CALL_BEGIN) return;
    if (kind == LG_PART_CONTENT) op->after_call = false;
    lg_part part = {kind, op->n_call, text, len_bytes};
    to->fn(to->ctx, &part);
}

/* Emit hold[start, end) as what the state says. */
static void emit_text(lg_outparse *op, const sink *to, size_t end) {
    emit(op, to, op->state == IN_REASONING ? LG_PART_REASONING : LG_PART_CONTENT,
         lg_buf_str(&op->hold) + op->start, end - op->start);
    op->start = end;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* ---- Tags ---- */

typedef enum { NO_TAG, MAYBE_TAG, TAG } match;

static match match_tag(const lg_outparse *op, const char *tag) {
    size_t len = strlen(tag), have = op->hold.len_bytes - op->pos;
    if (memcmp(op->hold.data + op->pos, tag, have < len ? have : len) != 0) return NO_TAG;
    return have < len ? MAYBE_TAG : TAG;
}

/* Match one of two tags at pos; on TAG it is passed and *which tells the one. */
static match match_either(lg_outparse *op, const char *tag0, const char *tag1, int *which) {
    match m[2] = {match_tag(op, tag0), tag1 ? match_tag(op, tag1) : NO_TAG};
    for (int i = 0; i < 2; i++) {
        if (m[i] != TAG) continue;
        op->pos += strlen(i ? tag1 : tag0);
        *which = i;
        return TAG;
    }
    return m[0] == MAYBE_TAG || m[1] == MAYBE_TAG ? MAYBE_TAG : NO_TAG;
}

/* ---- Types ---- */

/* True when the schema allows a value of this JSON schema type. */
static bool allows(const lg_json *schema, const char *type) {
    static const char *const choice[] = {"anyOf", "oneOf"};
    const lg_json *t = lg_json_get(schema, "type");
    if (lg_json_is(t, type)) return true;
    if (t && t->kind == LG_JSON_ARRAY)
        for (const lg_json *c = t->child; c; c = c->next)
            if (lg_json_is(c, type)) return true;
    for (size_t i = 0; i < LG_COUNT(choice); i++) {
        const lg_json *any = lg_json_get(schema, choice[i]);
        if (!any || any->kind != LG_JSON_ARRAY) continue;
        for (const lg_json *c = any->child; c; c = c->next)
            if (lg_json_is(lg_json_get(c, "type"), type)) return true;
    }
    return false;
}

static const lg_json *find_function(const lg_json *tools, const char *name, size_t len_bytes) {
    for (const lg_json *t = tools->child; t; t = t->next) {
        const lg_json *f = lg_json_get(t, "function");
        if (!f) f = t;
        const lg_json *n = lg_json_get(f, "name");
        if (n && n->kind == LG_JSON_STRING && n->text_len == len_bytes &&
            memcmp(n->text, name, len_bytes) == 0)
            return f;
    }
    return NULL;
}

static const lg_json *find_schema(const lg_json *function, const char *key, size_t len_bytes) {
    const lg_json *props = lg_json_get(lg_json_get(function, "parameters"), "properties");
    if (!props || props->kind != LG_JSON_OBJECT) return NULL;
    for (const lg_json *p = props->child; p; p = p->next)
        if (p->key_len == len_bytes && memcmp(p->key, key, len_bytes) == 0) return p;
    return NULL;
}

static bool equals(const char *s, size_t len_bytes, const char *word) {
    return len_bytes == strlen(word) && memcmp(s, word, len_bytes) == 0;
}

/* Append the value as JSON: text that the schema wants as a string stays one, the rest is read as JSON if it can be. */
static lg_status put_value(lg_buf *args, const lg_json *schema, const char *s,
                           size_t len_bytes) {
    bool string = allows(schema, "string");
    if (string && !allows(schema, "null")) {
        lg_json_put_string(args, s, len_bytes);
        return LG_OK;
    }
    if (equals(s, len_bytes, "None") || equals(s, len_bytes, "null")) {
        lg_buf_puts(args, "null");
        return LG_OK;
    }
    if (!string && equals(s, len_bytes, "True")) {
        lg_buf_puts(args, "true");
        return LG_OK;
    }
    if (!string && equals(s, len_bytes, "False")) {
        lg_buf_puts(args, "false");
        return LG_OK;
    }
    lg_json_doc *doc = NULL;
    lg_status st =
        string ? LG_E_FORMAT : lg_json_parse(s, len_bytes, ARG_DEPTH, "argument", &doc, NULL);
    if (st == LG_E_NOMEM) return st;
    if (st == LG_OK)
        lg_json_put(args, lg_json_root(doc), LG_JSON_COMPACT);
    else
        lg_json_put_string(args, s, len_bytes);
    lg_json_close(&doc);
    return LG_OK;
}

/* The value at hand is complete: the next tag was seen. */
static lg_status end_value(lg_outparse *op) {
    const char *h = op->hold.data;
    size_t begin = op->value, end = op->value_end;
    if (begin < end && h[begin] == '\n') begin++;
    if (begin < end && h[end - 1] == '\n') end--;
    const char *key = h + op->key;
    size_t key_len = op->key_end - op->key;
    lg_buf_puts(&op->args, op->args.len_bytes > 1 ? "," : "");
    lg_json_put_string(&op->args, key, key_len);
    lg_buf_puts(&op->args, ":");
    return put_value(&op->args, find_schema(op->function, key, key_len), h + begin,
                     end - begin);
}

/* ---- Blocks ---- */

static void begin_block(lg_outparse *op, size_t at, bool wrapped) {
    op->block = at;
    op->wrapped = wrapped;
    op->state = wrapped ? AT_FUNCTION : IN_NAME;
    op->name = op->pos;
}

/* The block is no call after all: what was read of it is content, and so may be what follows. */
static void drop_block(lg_outparse *op) {
    op->state = IN_CONTENT;
    op->safe = op->pos;
    while (op->safe > op->block && is_blank(op->hold.data[op->safe - 1])) op->safe--;
}

static lg_status end_block(lg_outparse *op, const sink *to) {
    op->state = IN_CONTENT;
    if (!op->function) {
        op->safe = op->pos;
        return LG_OK;
    }
    lg_buf_puts(&op->args, "}");
    if (op->args.failed) return LG_E_NOMEM;
    emit(op, to, LG_PART_CALL_BEGIN, op->hold.data + op->name, op->name_end - op->name);
    emit(op, to, LG_PART_CALL_ARGS, op->args.data, op->args.len_bytes);
    op->n_call++;
    op->after_call = true;
    op->start = op->safe = op->pos;
    return LG_OK;
}

static void scan_name(lg_outparse *op) {
    char c = op->hold.data[op->pos];
    if (c == '\n' || c == '<' || op->pos - op->name > NAME_MAX_BYTES) {
        drop_block(op);
    } else if (c == '>') {
        op->name_end = op->pos++;
        op->function =
            find_function(op->tools, op->hold.data + op->name, op->name_end - op->name);
        lg_buf_clear(&op->args);
        lg_buf_puts(&op->args, "{");
        op->state = AT_PARAMETER;
    } else {
        op->pos++;
    }
}

static void scan_key(lg_outparse *op) {
    char c = op->hold.data[op->pos];
    if (c == '\n') {
        drop_block(op);
        return;
    }
    if (c == '>') {
        op->key_end = op->pos;
        op->value = op->pos + 1;
        op->state = IN_VALUE;
    }
    op->pos++;
}

/* Go to the end of a value.  False: wait for more. */
static bool scan_value(lg_outparse *op) {
    const char *h = op->hold.data;
    const char *p = memchr(h + op->pos, '<', op->hold.len_bytes - op->pos);
    op->pos = p ? (size_t)(p - h) : op->hold.len_bytes;
    if (!p) return true;
    int which;
    size_t at = op->pos;
    switch (match_either(op, "</parameter>", NULL, &which)) {
    case NO_TAG: op->pos++; return true;
    case MAYBE_TAG: return false;
    case TAG: break;
    }
    op->value_end = at;
    op->state = AFTER_VALUE;
    return true;
}

/* At a place where white space and certain tags are allowed.  *wait: more bytes are needed. */
static lg_status scan_between(lg_outparse *op, const sink *to, bool *wait) {
    if (is_blank(op->hold.data[op->pos])) {
        op->pos++;
        return LG_OK;
    }
    int which = 0;
    match m = op->state == AT_FUNCTION ? match_either(op, "<function=", NULL, &which)
              : op->state == AT_CLOSE  ? match_either(op, "</tool_call>", NULL, &which)
                                       : match_either(op, "<parameter=", "</function>", &which);
    if (m == MAYBE_TAG) {
        *wait = true;
        return LG_OK;
    }
    if (m == NO_TAG) {
        if (op->state == AFTER_VALUE)
            op->state = IN_VALUE; /* that tag was part of the value */
        else
            drop_block(op);
        return LG_OK;
    }
    if (op->state == AT_FUNCTION) {
        op->name = op->pos;
        op->state = IN_NAME;
        return LG_OK;
    }
    if (op->state == AT_CLOSE) return end_block(op, to);
    if (op->state == AFTER_VALUE) LG_TRY(end_value(op));
    op->key = op->pos;
    op->state = which == 0 ? IN_KEY : AT_CLOSE;
    return which == 1 && !op->wrapped ? end_block(op, to) : LG_OK;
}

/* ---- Text ---- */

/* One step in reasoning or content.  False: wait for more. */
static bool scan_text(lg_outparse *op, const sink *to) {
    bool reasoning = op->state == IN_REASONING;
    char c = op->hold.data[op->pos];
    if (c != '<') {
        bool swallow = reasoning ? c == '\n' : op->tools && is_blank(c);
        op->pos++;
        if (!swallow) op->safe = op->pos;
        return true;
    }
    size_t at = op->pos;
    const char *call = op->tools ? "<tool_call>" : NULL;
    int which = 0;
    match m = reasoning   ? match_either(op, "</think>", call, &which)
              : op->tools ? match_either(op, "<function=", call, &which)
                          : NO_TAG;
    if (m == MAYBE_TAG) return false;
    if (m == NO_TAG) {
        op->safe = ++op->pos;
        return true;
    }
    emit_text(op, to, op->safe);
    if (reasoning && which == 0) {
        op->start = op->safe = op->pos;
        op->state = AFTER_REASONING;
    } else {
        begin_block(op, at, which == 1);
    }
    return true;
}

static lg_status scan(lg_outparse *op, const sink *to) {
    bool wait = false;
    while (op->pos < op->hold.len_bytes && !wait) {
        switch (op->state) {
        case IN_REASONING:
        case IN_CONTENT: wait = !scan_text(op, to); break;
        case AFTER_REASONING:
            if (op->hold.data[op->pos] == '\n')
                op->start = op->safe = ++op->pos;
            else
                op->state = IN_CONTENT;
            break;
        case IN_NAME: scan_name(op); break;
        case IN_KEY: scan_key(op); break;
        case IN_VALUE: wait = !scan_value(op); break;
        case AT_FUNCTION:
        case AT_PARAMETER:
        case AFTER_VALUE:
        case AT_CLOSE: LG_TRY(scan_between(op, to, &wait)); break;
        }
    }
    return LG_OK;
}

/* ---- Interface ---- */

lg_status lg_outparse_open(const lg_json *tools, bool in_reasoning, lg_outparse **op) {
    *op = lg_mem_alloc(sizeof **op);
    if (!*op) return LG_E_NOMEM;
    (*op)->tools = tools && tools->kind == LG_JSON_ARRAY && tools->child ? tools : NULL;
    (*op)->state = in_reasoning ? IN_REASONING : IN_CONTENT;
    return LG_OK;
}

void lg_outparse_close(lg_outparse **op) {
    if (!*op) return;
    lg_buf_fini(&(*op)->hold);
    lg_buf_fini(&(*op)->args);
    LG_FREE(*op);
}

lg_status lg_outparse_put(lg_outparse *op, const char *text, size_t len_bytes, lg_part_fn *fn,
                          void *ctx) {
    const sink to = {fn, ctx};
    lg_buf_put(&op->hold, text, len_bytes);
    if (op->hold.failed) return LG_E_NOMEM;
    LG_TRY(scan(op, &to));
    if (op->state == IN_REASONING || op->state == IN_CONTENT) emit_text(op, &to, op->safe);
    size_t n = op->start;
    lg_buf_consume(&op->hold, n);
    op->start = 0;
    op->safe -= n;
    op->pos -= n;
    /* Places of a finished block may lie before n; they mean nothing then. */
    op->block -= n;
    op->name -= n;
    op->name_end -= n;
    op->key -= n;
    op->key_end -= n;
    op->value -= n;
    op->value_end -= n;
    return LG_OK;
}

lg_status lg_outparse_end(lg_outparse *op, lg_part_fn *fn, void *ctx) {
    const sink to = {fn, ctx};
    bool blank = op->state == IN_CONTENT && op->pos == op->hold.len_bytes;
    if (!(blank && op->after_call)) emit_text(op, &to, op->hold.len_bytes);
    op->start = op->safe = op->pos = op->hold.len_bytes;
    op->state = IN_CONTENT;
    return LG_OK;
}

uint32_t lg_outparse_n_call(const lg_outparse *op) {
    return op->n_call;
}
