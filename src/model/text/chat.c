/* chat.c - the Qwen3.5 chat format: see chat.h and docs/CHAT.md.
 *
 * In:  a parsed list of messages and tools.   Out: one text with spans (scaffold or content).
 * How: every piece of text goes through put(), which also extends the span list.  A message's content is first joined in a
 *      scratch piece (text and spans), because it is trimmed and split only after joining; then slices of it are put.
 * Invariants: spans are adjacent, not empty, alternate in kind, and cover the text.
 * Thread: any.  Memory: lg_chat's buffers and scratch that does not outlive the call.  Test: tests/unit/test_chat.c */
#include "model/text/chat.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

#define ARG_DEPTH 64 /* deepest nesting of tool-call arguments given as JSON text */

static const char instructions[] =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
    "</parameter>\n<parameter=example_parameter_2>\n"
    "This is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> "
    "block "
    "must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE "
    "the "
    "function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your "
    "current "
    "knowledge and do not tell the user about function calls\n</IMPORTANT>";

/* Tags that stay control tokens when they stand in an assistant's own text. */
static const char *const own_tag[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};

/* A stretch of a piece's text. */
typedef struct slice {
    size_t begin, end;
} slice;

typedef struct render {
    const lg_chat_opt *opt;
    lg_chat *out;
    lg_chat part;            /* scratch: the content of the message at hand, joined */
    size_t n_image, n_video; /* seen so far */
    lg_err *err;
} render;

/* ---- Text with spans ---- */

static void put(lg_chat *c, bool control, const char *s, size_t len_bytes) {
    if (len_bytes == 0 || c->text.failed) return;
    size_t begin = c->text.len_bytes;
    lg_buf_put(&c->text, s, len_bytes);
    if (c->text.failed) return;
    lg_span *last = c->n_span ? &c->span[c->n_span - 1] : NULL;
    if (last && last->control == control) {
        last->end = c->text.len_bytes;
        return;
    }
    if (c->n_span == c->cap_span) {
        size_t cap = c->cap_span ? 2 * c->cap_span : 16;
        lg_span *p = lg_mem_realloc(c->span, cap * sizeof *p);
        if (!p) {
            c->text.failed = true;
            return;
        }
        c->span = p;
        c->cap_span = cap;
    }
    c->span[c->n_span++] = (lg_span){begin, c->text.len_bytes, control};
}

static void scaffold(lg_chat *c, const char *s) {
    put(c, true, s, strlen(s));
}

static void clear(lg_chat *c) {
    lg_buf_clear(&c->text);
    c->n_span = c->n_turn = 0;
    c->opened_think = false;
}

void lg_chat_fini(lg_chat *c) {
    lg_buf_fini(&c->text);
    lg_mem_free(c->span);
    lg_mem_free(c->turn);
    *c = (lg_chat){0};
}

/* White space as Python's str.strip() takes it. */
static bool is_space(uint32_t cp) {
    return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 ||
           cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static slice trim(const char *s, slice at) {
    uint32_t cp;
    while (at.begin < at.end) {
        size_t n = lg_utf8_next(s + at.begin, at.end - at.begin, &cp);
        if (!is_space(cp)) break;
        at.begin += n;
    }
    while (at.begin < at.end) {
        size_t p = at.end - 1;
        while (p > at.begin && ((uint8_t)s[p] & 0xc0) == 0x80) p--;
        if (lg_utf8_next(s + p, at.end - p, &cp) != at.end - p || !is_space(cp)) break;
        at.end = p;
    }
    return at;
}

static const char *find(const char *s, slice at, const char *what) {
    return at.end > at.begin ? memmem(s + at.begin, at.end - at.begin, what, strlen(what))
                             : NULL;
}

/* Put content[b, e) of an assistant: its own tags are control, all else is not. */
static void put_own(lg_chat *c, const char *s, slice at) {
    size_t begin = at.begin;
    for (size_t i = at.begin; i < at.end; i++) {
        if (s[i] != '<') continue;
        for (size_t t = 0; t < LG_COUNT(own_tag); t++) {
            size_t len = strlen(own_tag[t]);
            if (at.end - i < len || memcmp(s + i, own_tag[t], len) != 0) continue;
            put(c, false, s + begin, i - begin);
            put(c, true, s + i, len);
            begin = i + len;
            i = begin - 1;
            break;
        }
    }
    put(c, false, s + begin, at.end - begin);
}

/* Copy a slice of the scratch piece, keeping its spans; `own`: it is the assistant's text. */
static void put_part(render *r, slice at, bool own) {
    const lg_chat *p = &r->part;
    for (size_t i = 0; i < p->n_span; i++) {
        lg_span span = p->span[i];
        size_t begin = span.begin > at.begin ? span.begin : at.begin;
        size_t end = span.end < at.end ? span.end : at.end;
        if (begin >= end) continue;
        if (own && !span.control)
            put_own(r->out, p->text.data, (slice){begin, end});
        else
            put(r->out, span.control, p->text.data + begin, end - begin);
    }
}

/* ---- Shapes ---- */

/* A member that is there and not null, else NULL. */
static const lg_json *member(const lg_json *v, const char *key) {
    const lg_json *m = lg_json_get(v, key);
    return m && m->kind != LG_JSON_NULL ? m : NULL;
}

static const char *found(const lg_json *v) {
    return v ? lg_json_kind_name(v->kind) : "nothing";
}

static lg_status check_shapes(const lg_chat_opt *opt, lg_err *err) {
    size_t i = 0;
    if (!opt->messages || opt->messages->kind != LG_JSON_ARRAY)
        return LG_FAIL(err, LG_E_ARG, "messages: expected an array, found %s",
                       found(opt->messages));
    for (const lg_json *m = opt->messages->child; m; m = m->next, i++) {
        if (m->kind != LG_JSON_OBJECT)
            return LG_FAIL(err, LG_E_ARG, "messages[%zu]: expected an object, found %s", i,
                           found(m));
        const lg_json *role = lg_json_get(m, "role");
        if (!role || role->kind != LG_JSON_STRING)
            return LG_FAIL(err, LG_E_ARG, "messages[%zu].role: expected a string, found %s", i,
                           found(role));
    }
    if (!opt->tools || opt->tools->kind == LG_JSON_NULL) return LG_OK;
    if (opt->tools->kind != LG_JSON_ARRAY)
        return LG_FAIL(err, LG_E_ARG, "tools: expected an array, found %s", found(opt->tools));
    i = 0;
    for (const lg_json *t = opt->tools->child; t; t = t->next, i++)
        if (t->kind != LG_JSON_OBJECT)
            return LG_FAIL(err, LG_E_ARG, "tools[%zu]: expected an object, found %s", i,
                           found(t));
    return LG_OK;
}

static bool is_system(const render *r, const lg_json *msg) {
    const lg_json *role = lg_json_get(msg, "role");
    return lg_json_is(role, "system") ||
           (r->opt->developer_is_system && lg_json_is(role, "developer"));
}

/* ---- Content ---- */

static void put_vision(render *r, bool image, bool count) {
    size_t *n = image ? &r->n_image : &r->n_video;
    if (count) ++*n;
    if (r->opt->add_vision_id) {
        char label[40];
        snprintf(label, sizeof label, "%s %zu: ", image ? "Picture" : "Video", *n);
        scaffold(&r->part, label);
    }
    scaffold(&r->part, image ? "<|vision_start|><|image_pad|><|vision_end|>"
                             : "<|vision_start|><|video_pad|><|vision_end|>");
}

static lg_status join_item(render *r, const lg_json *item, size_t i_msg, size_t i_item,
                           bool count, bool system) {
    if (item->kind != LG_JSON_OBJECT)
        return LG_FAIL(r->err, LG_E_ARG,
                       "messages[%zu].content[%zu]: expected an object, found %s", i_msg,
                       i_item, found(item));
    const lg_json *type = lg_json_get(item, "type");
    bool image = lg_json_get(item, "image") || lg_json_get(item, "image_url") ||
                 lg_json_is(type, "image");
    if (image || lg_json_get(item, "video") || lg_json_is(type, "video")) {
        if (system)
            return LG_FAIL(r->err, LG_E_ARG, "System message cannot contain %s.",
                           image ? "images" : "videos");
        put_vision(r, image, count);
        return LG_OK;
    }
    const lg_json *text = lg_json_get(item, "text");
    if (!text) return LG_FAIL(r->err, LG_E_ARG, "Unexpected item type in content.");
    if (text->kind != LG_JSON_STRING)
        return LG_FAIL(r->err, LG_E_ARG,
                       "messages[%zu].content[%zu].text: expected a string, found %s", i_msg,
                       i_item, found(text));
    put(&r->part, false, text->text, text->text_len);
    return LG_OK;
}

/* Join a message's content in r->part; *at is what remains of it after trimming. */
static lg_status join(render *r, const lg_json *msg, size_t i_msg, bool count, bool system,
                      slice *at) {
    const lg_json *content = member(msg, "content");
    clear(&r->part);
    *at = (slice){0, 0};
    if (!content) return LG_OK;
    if (content->kind == LG_JSON_STRING) {
        put(&r->part, false, content->text, content->text_len);
    } else if (content->kind == LG_JSON_ARRAY) {
        size_t i = 0;
        for (const lg_json *item = content->child; item; item = item->next)
            LG_TRY(join_item(r, item, i_msg, i++, count, system));
    } else {
        return LG_FAIL(r->err, LG_E_ARG, "Unexpected content type.");
    }
    if (r->part.text.failed) return LG_FAIL(r->err, LG_E_NOMEM, "chat: out of memory");
    *at = trim(lg_buf_str(&r->part.text), (slice){0, r->part.text.len_bytes});
    return LG_OK;
}

/* ---- Messages ---- */

static lg_status put_system_block(render *r) {
    const lg_json *tools = r->opt->tools, *first = r->opt->messages->child;
    bool system = is_system(r, first);
    bool any_tool = tools && tools->kind == LG_JSON_ARRAY && tools->child;
    if (!any_tool && !system) return LG_OK;
    scaffold(r->out, "<|im_start|>system\n");
    if (any_tool) {
        lg_buf json = {0};
        scaffold(r->out, "# Tools\n\nYou have access to the following functions:\n\n<tools>");
        for (const lg_json *t = tools->child; t; t = t->next) {
            lg_buf_clear(&json);
            lg_json_put(&json, t, LG_JSON_PYTHON);
            scaffold(r->out, "\n");
            put(r->out, false, lg_buf_str(&json), json.len_bytes);
            if (json.failed) r->out->text.failed = true;
        }
        lg_buf_fini(&json);
        scaffold(r->out, instructions);
    }
    if (system) {
        slice at;
        LG_TRY(join(r, first, 0, false, true, &at));
        if (any_tool && at.begin < at.end) scaffold(r->out, "\n\n");
        put_part(r, at, false);
    }
    scaffold(r->out, "<|im_end|>\n");
    return LG_OK;
}

static bool is_tool_response(const char *s, slice at) {
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    size_t len = at.end - at.begin;
    return len >= sizeof open - 1 && memcmp(s + at.begin, open, sizeof open - 1) == 0 &&
           len >= sizeof close - 1 &&
           memcmp(s + at.end - (sizeof close - 1), close, sizeof close - 1) == 0;
}

/* *after: index of the first message after the last user message that is a question and not the result of a tool. */
static lg_status find_query(render *r, size_t *after) {
    size_t n = r->opt->messages->n_child, i = 0;
    bool any = false;
    const lg_json **msg = lg_mem_calloc(n, sizeof *msg);
    if (!msg) return LG_FAIL(r->err, LG_E_NOMEM, "chat: out of memory");
    for (const lg_json *m = r->opt->messages->child; m; m = m->next) msg[i++] = m;
    lg_status st = LG_OK;
    while (i-- > 0 && !any) {
        if (!lg_json_is(lg_json_get(msg[i], "role"), "user")) continue;
        slice at;
        LG_TRY_GOTO(join(r, msg[i], i, false, false, &at), st, done);
        any = !is_tool_response(lg_buf_str(&r->part.text), at);
        *after = i + 1;
    }
    if (!any) *after = 0;
    if (!any && !r->opt->relaxed)
        st = LG_FAIL(r->err, LG_E_ARG, "No user query found in messages.");
done:
    lg_mem_free(msg);
    return st;
}

static void put_value(render *r, const lg_json *v) {
    lg_buf text = {0};
    switch (v->kind) {
    case LG_JSON_STRING: put(r->out, false, v->text, v->text_len); return;
    case LG_JSON_NULL: lg_buf_puts(&text, "None"); break;
    case LG_JSON_FALSE: lg_buf_puts(&text, "False"); break;
    case LG_JSON_TRUE: lg_buf_puts(&text, "True"); break;
    default: lg_json_put(&text, v, LG_JSON_PYTHON);
    }
    /* Python's str() and json differ in one number only: an overflow such as 1E400. */
    if (v->kind == LG_JSON_NUMBER && strcmp(lg_buf_str(&text), "Infinity") == 0)
        put(r->out, false, "inf", 3);
    else if (v->kind == LG_JSON_NUMBER && strcmp(lg_buf_str(&text), "-Infinity") == 0)
        put(r->out, false, "-inf", 4);
    else
        put(r->out, false, lg_buf_str(&text), text.len_bytes);
    if (text.failed) r->out->text.failed = true;
    lg_buf_fini(&text);
}

static void put_arguments(render *r, const lg_json *args) {
    for (const lg_json *a = args->child; a; a = a->next) {
        scaffold(r->out, "<parameter=");
        put(r->out, false, a->key, a->key_len);
        scaffold(r->out, ">\n");
        put_value(r, a);
        scaffold(r->out, "\n</parameter>\n");
    }
}

/* Arguments as JSON text, the way OpenAI clients send them; blank text means none. */
static lg_status put_arguments_text(render *r, const lg_json *text, const char *where) {
    slice at = trim(text->text, (slice){0, text->text_len});
    if (at.begin == at.end) return LG_OK;
    lg_json_doc *doc = NULL;
    lg_status st = lg_json_parse(text->text, text->text_len, ARG_DEPTH, where, &doc, r->err);
    if (st != LG_OK) {
        if (st != LG_E_FORMAT) return st;
        if (r->err) r->err->code = LG_E_ARG;
        return LG_E_ARG;
    }
    const lg_json *args = lg_json_root(doc);
    if (args->kind == LG_JSON_OBJECT)
        put_arguments(r, args);
    else
        st = LG_FAIL(r->err, LG_E_ARG, "%s: expected the text of an object, found %s", where,
                     found(args));
    lg_json_close(&doc);
    return st;
}

static lg_status put_call(render *r, const lg_json *call, size_t i_msg, size_t i_call) {
    char where[96];
    snprintf(where, sizeof where, "messages[%zu].tool_calls[%zu]", i_msg, i_call);
    if (call->kind != LG_JSON_OBJECT)
        return LG_FAIL(r->err, LG_E_ARG, "%s: expected an object, found %s", where,
                       found(call));
    const lg_json *function = lg_json_get(call, "function");
    if (function) {
        if (function->kind != LG_JSON_OBJECT)
            return LG_FAIL(r->err, LG_E_ARG, "%s.function: expected an object, found %s", where,
                           found(function));
        call = function;
        snprintf(where, sizeof where, "messages[%zu].tool_calls[%zu].function", i_msg, i_call);
    }
    const lg_json *name = lg_json_get(call, "name"), *args = lg_json_get(call, "arguments");
    if (!name || name->kind != LG_JSON_STRING)
        return LG_FAIL(r->err, LG_E_ARG, "%s.name: expected a string, found %s", where,
                       found(name));
    scaffold(r->out, "<tool_call>\n<function=");
    put(r->out, false, name->text, name->text_len);
    scaffold(r->out, ">\n");
    if (args && args->kind == LG_JSON_OBJECT) {
        put_arguments(r, args);
    } else if (args && args->kind == LG_JSON_STRING && r->opt->parse_arguments) {
        strcat(where, ".arguments");
        LG_TRY(put_arguments_text(r, args, where));
    } else if (args) {
        return LG_FAIL(r->err, LG_E_ARG, "Can only get item pairs from a mapping.");
    }
    scaffold(r->out, "</function>\n</tool_call>");
    return LG_OK;
}

static lg_status put_calls(render *r, const lg_json *msg, size_t i_msg, bool after_text) {
    const lg_json *calls = member(msg, "tool_calls");
    if (!calls) return LG_OK;
    if (calls->kind != LG_JSON_ARRAY)
        return LG_FAIL(r->err, LG_E_ARG,
                       "messages[%zu].tool_calls: expected an array, found %s", i_msg,
                       found(calls));
    size_t i = 0;
    for (const lg_json *c = calls->child; c; c = c->next, i++) {
        if (i > 0)
            scaffold(r->out, "\n");
        else if (after_text)
            scaffold(r->out, "\n\n");
        LG_TRY(put_call(r, c, i_msg, i));
    }
    return LG_OK;
}

/* The first of the names under which clients send reasoning; *reasoning is NULL when there is none. */
static lg_status get_reasoning(render *r, const lg_json *msg, size_t i_msg,
                               const lg_json **reasoning) {
    static const char *const name[] = {"reasoning_content", "reasoning", "thinking"};
    *reasoning = NULL;
    for (size_t i = 0; i < LG_COUNT(name) && !*reasoning; i++) {
        *reasoning = member(msg, name[i]);
        if (*reasoning && (*reasoning)->kind != LG_JSON_STRING)
            return LG_FAIL(r->err, LG_E_ARG, "messages[%zu].%s: expected a string, found %s",
                           i_msg, name[i], found(*reasoning));
    }
    return LG_OK;
}

/* Split "...<think>R</think>...</think>C" the way the format does. */
static void split_think(const char *s, slice *content, slice *think) {
    static const char open[] = "<think>", close[] = "</think>";
    const char *first = find(s, *content, close);
    if (!first) return;
    const char *last = first, *p;
    slice rest = {(size_t)(first - s) + sizeof close - 1, content->end};
    while ((p = find(s, rest, close))) {
        last = p;
        rest.begin = (size_t)(p - s) + sizeof close - 1;
    }
    *think = (slice){content->begin, (size_t)(first - s)};
    while (think->end > think->begin && s[think->end - 1] == '\n') think->end--;
    while ((p = find(s, *think, open))) think->begin = (size_t)(p - s) + sizeof open - 1;
    *think = trim(s, *think); /* takes the newlines at its start too */
    content->begin = (size_t)(last - s) + sizeof close - 1;
    while (content->begin < content->end && s[content->begin] == '\n') content->begin++;
}

/* The last message is an assistant's without calls: its turn stays open, to be continued. */
static bool stays_open(const render *r, const lg_json *msg) {
    const lg_json *calls = member(msg, "tool_calls");
    return r->opt->relaxed && r->opt->add_generation_prompt && !msg->next &&
           lg_json_is(lg_json_get(msg, "role"), "assistant") && !(calls && calls->child);
}

/* A turn without content yet goes on thinking, unless thinking is off; a turn with content goes on behind its last byte. */
static void put_open_turn(render *r, const lg_json *given, slice think, slice content) {
    bool thinks = content.begin == content.end && !r->opt->no_think;
    scaffold(r->out, "<|im_start|>assistant\n<think>\n");
    if (given)
        put_own(r->out, given->text, trim(given->text, (slice){0, given->text_len}));
    else
        put_part(r, think, true);
    r->out->opened_think = thinks;
    if (thinks) return;
    scaffold(r->out, "\n</think>\n\n");
    if (content.begin < content.end) content.end = r->part.text.len_bytes; /* not trimmed */
    put_part(r, content, true);
}

/* Note where a turn lies; its end is the text's. */
static void add_turn(lg_chat *c, lg_chat_turn turn) {
    if (c->n_turn == c->cap_turn) {
        size_t cap = c->cap_turn ? 2 * c->cap_turn : 16;
        lg_chat_turn *p = lg_mem_realloc(c->turn, cap * sizeof *p);
        if (!p) {
            c->text.failed = true;
            return;
        }
        c->turn = p;
        c->cap_turn = cap;
    }
    turn.end = c->text.len_bytes;
    c->turn[c->n_turn++] = turn;
}

static lg_status put_assistant(render *r, const lg_json *msg, size_t i_msg, slice content,
                               bool with_think) {
    const lg_json *given;
    LG_TRY(get_reasoning(r, msg, i_msg, &given));
    slice think = {0, 0};
    if (!given) split_think(lg_buf_str(&r->part.text), &content, &think);
    if (stays_open(r, msg)) {
        put_open_turn(r, given, think, content);
        return LG_OK;
    }
    lg_chat_turn turn = {.msg = msg, .begin = r->out->text.len_bytes};
    scaffold(r->out, "<|im_start|>assistant\n");
    if (with_think) {
        scaffold(r->out, "<think>\n");
        turn.think_begin = r->out->text.len_bytes;
        if (given)
            put_own(r->out, given->text, trim(given->text, (slice){0, given->text_len}));
        else
            put_part(r, think, true);
        turn.think_end = r->out->text.len_bytes;
        scaffold(r->out, "\n</think>\n\n");
    }
    turn.content_begin = r->out->text.len_bytes;
    put_part(r, content, true);
    turn.content_end = r->out->text.len_bytes;
    /* content was trimmed: it is blank only when nothing is left of it */
    LG_TRY(put_calls(r, msg, i_msg, content.begin < content.end));
    scaffold(r->out, "<|im_end|>");
    if (with_think) add_turn(r->out, turn);
    scaffold(r->out, "\n");
    return LG_OK;
}

static lg_status put_message(render *r, const lg_json *msg, const lg_json *prev, size_t i_msg,
                             size_t after) {
    const lg_json *role = lg_json_get(msg, "role");
    slice at;
    LG_TRY(join(r, msg, i_msg, true, r->opt->relaxed && is_system(r, msg), &at));
    if (is_system(r, msg)) {
        if (prev && r->opt->relaxed) {
            scaffold(r->out, "<|im_start|>system\n");
            put_part(r, at, false);
            scaffold(r->out, "<|im_end|>\n");
        } else if (prev) {
            return LG_FAIL(r->err, LG_E_ARG, "System message must be at the beginning.");
        }
    } else if (lg_json_is(role, "user")) {
        scaffold(r->out, "<|im_start|>user\n");
        put_part(r, at, false);
        scaffold(r->out, "<|im_end|>\n");
    } else if (lg_json_is(role, "assistant")) {
        return put_assistant(r, msg, i_msg, at, r->opt->preserve_thinking || i_msg >= after);
    } else if (lg_json_is(role, "tool")) {
        if (prev ? !lg_json_is(lg_json_get(prev, "role"), "tool") : r->opt->relaxed)
            scaffold(r->out, "<|im_start|>user");
        scaffold(r->out, "\n<tool_response>\n");
        put_part(r, at, false);
        scaffold(r->out, "\n</tool_response>");
        if (!msg->next || !lg_json_is(lg_json_get(msg->next, "role"), "tool"))
            scaffold(r->out, "<|im_end|>\n");
    } else {
        return LG_FAIL(r->err, LG_E_ARG, "Unexpected message role.");
    }
    return LG_OK;
}

static lg_status render_all(render *r) {
    const lg_json *prev = NULL;
    size_t after = 0, i = 0;
    if (!r->opt->messages->child) return LG_FAIL(r->err, LG_E_ARG, "No messages provided.");
    LG_TRY(put_system_block(r));
    LG_TRY(find_query(r, &after));
    for (const lg_json *m = r->opt->messages->child; m; m = m->next, i++) {
        LG_TRY(put_message(r, m, prev, i, after));
        prev = m;
    }
    if (r->opt->add_generation_prompt && !stays_open(r, prev)) {
        scaffold(r->out, "<|im_start|>assistant\n");
        scaffold(r->out, r->opt->no_think ? "<think>\n\n</think>\n\n" : "<think>\n");
        r->out->opened_think = !r->opt->no_think;
    }
    return r->out->text.failed ? LG_FAIL(r->err, LG_E_NOMEM, "chat: out of memory") : LG_OK;
}

lg_status lg_chat_render(const lg_chat_opt *opt, lg_chat *chat, lg_err *err) {
    LG_TRY(check_shapes(opt, err));
    clear(chat);
    render r = {.opt = opt, .out = chat, .err = err};
    lg_status st = render_all(&r);
    lg_chat_fini(&r.part);
    return st;
}

lg_status lg_chat_encode(const lg_chat_opt *opt, lg_tokenizer *tok, lg_chat *chat, lg_ids *ids,
                         lg_err *err) {
    LG_TRY(lg_chat_render(opt, chat, err));
    return lg_tokenizer_encode(tok, lg_buf_str(&chat->text), chat->text.len_bytes, chat->span,
                               chat->n_span, true, ids, err);
}
