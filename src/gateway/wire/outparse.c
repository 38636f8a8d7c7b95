/* outparse.c - model output into reasoning, content and tool calls: see outparse.h and docs/CHAT.md, "The output".
 *
 * Bytes wait in `hold` until it is certain what they are: white space that a tag may follow, the beginning of a tag, a
 * tool-call block until its first argument begins (and one of an unknown function to its end), an argument that is no string
 * to its end.  Every byte is scanned once, and at most one tag's length again after a tag that did not match.
 * Invariants: start <= safe <= pos <= hold.len_bytes.  hold[start, safe) is text to emit now, hold[safe, pos) is white space
 * that a tag would swallow, or in a block: that white space and the block so far.
 * Thread: gateway.  Memory: hold, at most the longest block.  Test: tests/unit/test_outparse.c, fuzz/fuzz_outparse.c */
#include "gateway/wire/outparse.h"

#include "base/utf8.h"
#include "gateway/wire/argval.h"

#include <string.h>

#define NAME_MAX_BYTES 256 /* a longer name of a function or an argument is none */
#define JSON_DEPTH     64  /* deepest nesting of a call that is written as JSON */

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
    IN_NEXT_KEY, /* as IN_KEY, and the value before may still not have ended */
    AT_CLOSE,    /* after an unknown function: white space, then </tool_call> */
    IN_JSON,     /* {"name": ..., "arguments": {...}} */
    AFTER_CALL   /* white space, then perhaps </tool_call> */
} state;

struct lg_outparse {
    const lg_json *tools; /* array, or NULL */
    lg_buf hold;
    size_t start, safe, pos;
    state state;
    bool after_call; /* no content since the last call */
    uint32_t n_call;
    /* the block at hand */
    size_t block, name, name_end, key, value, value_end, json; /* places in hold */
    bool wrapped;                                              /* began with <tool_call> */
    const lg_json *function; /* definition; NULL: not one of the tools */
    bool called;             /* its call has been told */
    uint32_t n_arg;          /* arguments written */
    lg_buf args;             /* JSON that is not told yet */
    /* the value at hand; of a string, `value` is where the rest begins */
    lg_buf key_text;
    lg_argval look;
    lg_argval_form form;
    size_t looked; /* bytes before it were shown to `look` */
    bool at_value_start;
    /* the JSON at hand */
    uint32_t n_open;
    bool in_string, escaped;
    const char *closing;
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

/* ---- Functions ---- */

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

static uint32_t types_of(const lg_json *function, const char *key, size_t len_bytes) {
    const lg_json *root = lg_json_get(function, "parameters");
    const lg_json *props = lg_json_get(root, "properties");
    if (!props || props->kind != LG_JSON_OBJECT) return LG_ARG_ANY;
    for (const lg_json *p = props->child; p; p = p->next)
        if (p->key_len == len_bytes && memcmp(p->key, key, len_bytes) == 0)
            return lg_argval_types(root, p);
    return LG_ARG_ANY;
}

/* ---- Values ---- */

/* Send the arguments' JSON that has gathered. */
static void flush_args(lg_outparse *op, const sink *to) {
    if (op->args.len_bytes) emit(op, to, LG_PART_CALL_ARGS, op->args.data, op->args.len_bytes);
    lg_buf_clear(&op->args);
}

static void put_key(lg_outparse *op) {
    lg_buf_puts(&op->args, op->n_arg++ ? "," : "{");
    lg_json_put_string(&op->args, lg_buf_str(&op->key_text), op->key_text.len_bytes);
    lg_buf_puts(&op->args, ":");
}

/* The key at hand is complete at its ">"; the first of a known function makes the block a call. */
static void begin_value(lg_outparse *op, const sink *to) {
    const char *h = op->hold.data;
    lg_buf_clear(&op->key_text);
    lg_buf_put(&op->key_text, h + op->key, op->pos - op->key);
    op->value = ++op->pos;
    op->state = IN_VALUE;
    op->at_value_start = true;
    if (!op->function) return;
    if (!op->called) emit(op, to, LG_PART_CALL_BEGIN, h + op->name, op->name_end - op->name);
    op->called = true;
    op->start = op->safe = op->value;
    op->form = lg_argval_begin(
        &op->look, types_of(op->function, lg_buf_str(&op->key_text), op->key_text.len_bytes));
    op->looked = op->value;
    if (op->form == LG_ARGVAL_TEXT) {
        put_key(op);
        lg_buf_putc(&op->args, '"');
    }
}

/* Drop the line feed before the value. */
static void skip_first(lg_outparse *op, size_t end) {
    if (!op->at_value_start || op->value == end) return;
    if (op->hold.data[op->value] == '\n') op->value++;
    op->at_value_start = false;
    if (op->looked < op->value) op->looked = op->value;
}

/* Write what of a string value is certain: not a line feed at `end`, which a tag would swallow, nor a piece of a code point. */
static void spill_value(lg_outparse *op, size_t end) {
    if (!op->function) return;
    skip_first(op, end);
    const char *h = op->hold.data;
    while (op->form == LG_ARGVAL_OPEN && op->looked < end) {
        /* the last line feed may not be part of the value */
        if (h[op->looked] == '\n' && op->looked + 1 == end) break;
        op->form = lg_argval_feed(&op->look, h[op->looked++]);
        if (op->form != LG_ARGVAL_TEXT) continue;
        put_key(op);
        lg_buf_putc(&op->args, '"');
    }
    if (op->form != LG_ARGVAL_TEXT || op->value >= end) return;
    size_t n = end - op->value - (h[end - 1] == '\n');
    n = lg_utf8_whole(h + op->value, n);
    lg_json_put_escaped(&op->args, h + op->value, n);
    op->value += n;
    op->start = op->safe = op->value;
}

/* The value ends at `end`; `tag`: by its closing tag, which swallows a line feed.  A cut one stays open. */
static lg_status end_value(lg_outparse *op, size_t end, bool tag, bool cut) {
    if (!op->function) return LG_OK;
    skip_first(op, end);
    const char *h = op->hold.data;
    if (tag && end > op->value && h[end - 1] == '\n') end--;
    const char *s = lg_buf_str(&op->hold) + op->value;
    size_t len = end - op->value;
    if (op->form != LG_ARGVAL_TEXT) {
        put_key(op);
        if (!cut) return lg_argval_put(&op->args, op->look.types, s, len);
        lg_buf_putc(&op->args, '"');
    }
    lg_json_put_escaped(&op->args, s, len);
    if (!cut) lg_buf_putc(&op->args, '"');
    return LG_OK;
}

/* ---- Blocks ---- */

static void begin_block(lg_outparse *op, size_t at, bool wrapped) {
    op->block = at;
    op->wrapped = wrapped;
    op->state = wrapped ? AT_FUNCTION : IN_NAME;
    op->name = op->pos;
    op->function = NULL;
    op->called = false;
    op->n_arg = 0;
}

/* The block is no call after all: what was read of it is content, and so may be what follows. */
static void drop_block(lg_outparse *op) {
    op->state = IN_CONTENT;
    op->safe = op->pos;
    while (op->safe > op->block && is_blank(op->hold.data[op->safe - 1])) op->safe--;
}

/* A call is complete at </function>; </tool_call> may follow. */
static lg_status end_call(lg_outparse *op, const sink *to) {
    if (!op->called)
        emit(op, to, LG_PART_CALL_BEGIN, op->hold.data + op->name, op->name_end - op->name);
    lg_buf_puts(&op->args, op->n_arg ? "}" : "{}");
    if (op->args.failed) return LG_E_NOMEM;
    flush_args(op, to);
    op->called = false;
    op->n_call++;
    op->after_call = true;
    op->start = op->safe = op->pos;
    op->state = op->wrapped ? AFTER_CALL : IN_CONTENT;
    return LG_OK;
}

/* A block of an unknown function has ended: it is content. */
static void end_unknown(lg_outparse *op) {
    op->state = IN_CONTENT;
    op->safe = op->pos;
}

static void scan_name(lg_outparse *op) {
    char c = op->hold.data[op->pos];
    if (c == '\n' || c == '<' || op->pos - op->name > NAME_MAX_BYTES) {
        drop_block(op);
    } else if (c == '>') {
        op->name_end = op->pos++;
        op->function =
            find_function(op->tools, op->hold.data + op->name, op->name_end - op->name);
        op->state = AT_PARAMETER;
    } else {
        op->pos++;
    }
}

/* In a key.  One that does not end properly is none: then the tag before it was part of the value. */
static lg_status scan_key(lg_outparse *op, const sink *to) {
    char c = op->hold.data[op->pos];
    bool next = op->state == IN_NEXT_KEY;
    if (c == '\n' || c == '<' || op->pos - op->key > NAME_MAX_BYTES) {
        if (next)
            op->state = IN_VALUE;
        else
            drop_block(op);
        return LG_OK;
    }
    if (c != '>') {
        op->pos++;
        return LG_OK;
    }
    if (next) LG_TRY(end_value(op, op->value_end, true, false));
    begin_value(op, to);
    return LG_OK;
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

/* A tag that may follow was seen. */
static lg_status take_tag(lg_outparse *op, const sink *to, int which) {
    switch (op->state) {
    case AT_FUNCTION:
        op->name = op->pos;
        op->state = IN_NAME;
        return LG_OK;
    case AFTER_CALL:
        op->start = op->safe = op->pos;
        op->state = IN_CONTENT;
        return LG_OK;
    case AT_CLOSE: end_unknown(op); return LG_OK;
    default: break;
    }
    if (which == 0) {
        op->key = op->pos;
        op->state = op->state == AFTER_VALUE ? IN_NEXT_KEY : IN_KEY;
        return LG_OK;
    }
    if (op->state == AFTER_VALUE) LG_TRY(end_value(op, op->value_end, true, false));
    if (op->function) return end_call(op, to);
    op->state = AT_CLOSE;
    if (!op->wrapped) end_unknown(op);
    return LG_OK;
}

/* At a place where white space and certain tags are allowed.  *wait: more bytes are needed. */
static lg_status scan_between(lg_outparse *op, const sink *to, bool *wait) {
    char c = op->hold.data[op->pos];
    if (is_blank(c)) {
        op->pos++;
        return LG_OK;
    }
    if (op->state == AT_FUNCTION && c == '{') {
        op->json = op->pos;
        op->n_open = 0;
        op->in_string = op->escaped = false;
        op->state = IN_JSON;
        return LG_OK;
    }
    int which = 0;
    bool close = op->state == AT_CLOSE || op->state == AFTER_CALL;
    match m = op->state == AT_FUNCTION ? match_either(op, "<function=", NULL, &which)
              : close                  ? match_either(op, "</tool_call>", NULL, &which)
                                       : match_either(op, "<parameter=", "</function>", &which);
    if (m == TAG) return take_tag(op, to, which);
    if (m == MAYBE_TAG)
        *wait = true;
    else if (op->state == AFTER_VALUE)
        op->state = IN_VALUE; /* that tag was part of the value */
    else if (op->state == AFTER_CALL)
        op->state = IN_CONTENT;
    else
        drop_block(op);
    return LG_OK;
}

/* ---- Calls as JSON ---- */

/* The object {"name": ..., "arguments": {...}} is complete at pos. */
static lg_status end_json(lg_outparse *op, const sink *to) {
    lg_json_doc *doc = NULL, *inner = NULL;
    lg_status st = lg_json_parse(op->hold.data + op->json, op->pos - op->json, JSON_DEPTH,
                                 "call", &doc, NULL);
    const lg_json *root = st == LG_OK ? lg_json_root(doc) : NULL;
    const lg_json *name = lg_json_get(root, "name"), *args = lg_json_get(root, "arguments");
    if (args && args->kind == LG_JSON_STRING) { /* some write the text of an object */
        st = lg_json_parse(args->text, args->text_len, JSON_DEPTH, "arguments", &inner, NULL);
        args = st == LG_OK ? lg_json_root(inner) : args;
    }
    bool known = name && name->kind == LG_JSON_STRING &&
                 find_function(op->tools, name->text, name->text_len);
    if (known && (!args || args->kind == LG_JSON_OBJECT)) {
        emit(op, to, LG_PART_CALL_BEGIN, name->text, name->text_len);
        op->called = true;
        if (args && args->child) {
            lg_json_put(&op->args, args, LG_JSON_COMPACT);
            op->args.len_bytes--; /* end_call closes it */
            op->n_arg = 1;
        }
        st = end_call(op, to);
    } else if (st != LG_E_NOMEM) {
        drop_block(op);
    }
    lg_json_close(&inner);
    lg_json_close(&doc);
    return st == LG_E_NOMEM ? st : LG_OK;
}

static lg_status scan_json(lg_outparse *op, const sink *to) {
    char c = op->hold.data[op->pos++];
    if (op->in_string) {
        bool end = c == '"' && !op->escaped;
        op->escaped = c == '\\' && !op->escaped;
        op->in_string = !end;
    } else if (c == '"') {
        op->in_string = true;
    } else if (c == '{' || c == '[') {
        op->n_open++;
    } else if ((c == '}' || c == ']') && --op->n_open == 0) {
        return end_json(op, to);
    }
    return LG_OK;
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
        case IN_KEY:
        case IN_NEXT_KEY: LG_TRY(scan_key(op, to)); break;
        case IN_VALUE: wait = !scan_value(op); break;
        case IN_JSON: LG_TRY(scan_json(op, to)); break;
        case AT_FUNCTION:
        case AT_PARAMETER:
        case AFTER_VALUE:
        case AFTER_CALL:
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
    (*op)->closing = "";
    return LG_OK;
}

void lg_outparse_close(lg_outparse **op) {
    if (!*op) return;
    lg_buf_fini(&(*op)->hold);
    lg_buf_fini(&(*op)->args);
    lg_buf_fini(&(*op)->key_text);
    LG_FREE(*op);
}

/* Forget the bytes before start. */
static void consume(lg_outparse *op) {
    size_t n = op->start;
    /* Places of a finished block may lie before n; they mean nothing then. */
    size_t *const place[] = {&op->safe, &op->pos,   &op->block,     &op->name,   &op->name_end,
                             &op->key,  &op->value, &op->value_end, &op->looked, &op->json};
    lg_buf_consume(&op->hold, n);
    op->start = 0;
    for (size_t i = 0; i < LG_COUNT(place); i++) *place[i] -= n;
}

static lg_status failed(const lg_outparse *op) {
    return op->args.failed || op->key_text.failed ? LG_E_NOMEM : LG_OK;
}

lg_status lg_outparse_put(lg_outparse *op, const char *text, size_t len_bytes, lg_part_fn *fn,
                          void *ctx) {
    const sink to = {fn, ctx};
    lg_buf_put(&op->hold, text, len_bytes);
    if (op->hold.failed) return LG_E_NOMEM;
    LG_TRY(scan(op, &to));
    if (op->state == IN_REASONING || op->state == IN_CONTENT) emit_text(op, &to, op->safe);
    if (op->state == IN_VALUE) spill_value(op, op->pos);
    if (op->state == AFTER_VALUE || op->state == IN_NEXT_KEY) spill_value(op, op->value_end);
    LG_TRY(failed(op));
    flush_args(op, &to);
    consume(op);
    return LG_OK;
}

/* A call is under way, and the output has ended. */
static lg_status end_inside(lg_outparse *op, bool cut, const sink *to) {
    bool open = op->state == IN_VALUE; /* else its closing tag was there */
    size_t end = open ? op->hold.len_bytes : op->value_end;
    LG_TRY(end_value(op, end, !open, cut && open));
    op->pos = op->hold.len_bytes;
    op->wrapped = false;
    if (!cut) return end_call(op, to);
    op->closing = open ? "\"}" : "}";
    LG_TRY(failed(op));
    flush_args(op, to);
    op->start = op->safe = op->pos;
    op->state = IN_CONTENT;
    return LG_OK;
}

lg_status lg_outparse_end(lg_outparse *op, bool cut, lg_part_fn *fn, void *ctx) {
    const sink to = {fn, ctx};
    if (op->called) LG_TRY(end_inside(op, cut, &to));
    size_t end = op->hold.len_bytes;
    bool text = op->state == IN_CONTENT || op->state == AFTER_CALL;
    bool blank = text && op->pos == end;
    if (op->state != IN_REASONING) op->state = IN_CONTENT;
    if (!(blank && op->after_call)) emit_text(op, &to, end);
    op->start = op->safe = op->pos = end;
    op->state = IN_CONTENT;
    return failed(op);
}

uint32_t lg_outparse_n_call(const lg_outparse *op) {
    return op->n_call;
}

const char *lg_outparse_closing(const lg_outparse *op) {
    return op->closing;
}
