/* anthropic_req.c - bodies of /v1/messages into what the engine needs: see anthropic.h.
 *
 * In:  the bytes of a body.   Out: lg_request_parsed, or the error to answer with.
 * How: system, messages and tools are written as the JSON that the chat format reads; everything else goes through the table
 *      `fields`.  Blocks are checked while they are written, so that the client's own indices appear in errors.
 * Thread: gateway.  Memory: the request owns both documents.  Test: tests/unit/test_anthropic.c */
#include "gateway/wire/anthropic.h"

#include "gateway/wire/format.h"

#include <string.h>

/* The line some client puts first into its system prompt; it differs in every request, so that nothing could be reused. */
static const char changing_line[] = "x-anthropic-billing-header:";

/* ---- Checks ---- */

/* Refuse members of v that are not in the list; cache_control only says what is worth keeping, which is found out here. */
static bool only_members(lg_parse *p, const char *where, const lg_json *v,
                         const char *const *list, size_t n) {
    for (const lg_json *m = v->child; m; m = m->next) {
        bool hint = lg_request_key_is(m, "cache_control") && m->kind == LG_JSON_OBJECT;
        if (hint || m->kind == LG_JSON_NULL || lg_request_key_among(m, list, n)) continue;
        if (!lg_request_unknown(p, where, m)) return false;
    }
    return true;
}

#define ONLY(p, where, v, ...)                                                                 \
    only_members(p, where, v, (const char *const[]){__VA_ARGS__},                              \
                 sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static bool need_string(lg_parse *p, const char *where, const lg_json *v, const char *key,
                        const lg_json **out) {
    char param[LG_REQUEST_PARAM];
    lg_request_name(param, "%.48s.%s", where, key);
    *out = lg_json_get(v, key);
    if (*out && (*out)->kind == LG_JSON_STRING) return true;
    if (*out) return lg_request_bad(p, param, *out, "a string");
    return lg_request_refuse(p->e, param, "missing_required_parameter",
                             "Missing required parameter: '%s'.", param);
}

/* ---- Fields ---- */

static bool take_system(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_STRING && v->kind != LG_JSON_ARRAY)
        return lg_request_bad(p, f->name, v, "a string or an array of text blocks");
    p->system = v;
    return true;
}

static bool take_stop_sequences(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_ARRAY) return lg_request_bad(p, f->name, v, "an array of strings");
    return lg_request_take_stop(p, f, v);
}

static bool take_thinking(lg_parse *p, const lg_field *f, const lg_json *v) {
    const lg_json *type = lg_json_get(v, "type"), *budget = lg_json_get(v, "budget_tokens");
    const lg_json *display = lg_json_get(v, "display");
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, f->name, v, "an object");
    if (!ONLY(p, f->name, v, "type", "budget_tokens", "display")) return false;
    bool enabled = lg_json_is(type, "enabled"), adaptive = lg_json_is(type, "adaptive");
    if (!enabled && !adaptive && !lg_json_is(type, "disabled"))
        return lg_request_refuse(
            p->e, "thinking.type", "invalid_value",
            "thinking.type: expected \"enabled\", \"adaptive\" or \"disabled\"");
    if (display && display->kind != LG_JSON_NULL && !lg_json_is(display, "summarized") &&
        !lg_json_is(display, "omitted"))
        return lg_request_bad(p, "thinking.display", display, "\"summarized\" or \"omitted\"");
    if (enabled != (budget && budget->kind != LG_JSON_NULL))
        return lg_request_refuse(p->e, "thinking.budget_tokens", "invalid_value",
                                 "thinking.budget_tokens: needed with type \"enabled\", and "
                                 "with that only");
    const lg_field range = {
        .name = "thinking.budget_tokens", .low = 1, .high = LG_REQUEST_ANY_COUNT};
    if (enabled && !lg_request_take_count(p, &range, budget, &p->req->think_budget))
        return false;
    p->asked = enabled || adaptive;
    return true;
}

static bool take_tools(lg_parse *p, const lg_field *f, const lg_json *v) {
    char where[LG_REQUEST_PARAM], param[LG_REQUEST_PARAM];
    size_t i = 0;
    if (v->kind != LG_JSON_ARRAY) return lg_request_bad(p, f->name, v, "an array of tools");
    for (const lg_json *t = v->child; t; t = t->next, i++) {
        const lg_json *type = lg_json_get(t, "type"), *schema = lg_json_get(t, "input_schema");
        const lg_json *about = lg_json_get(t, "description"),
                      *strict = lg_json_get(t, "strict");
        lg_request_name(where, "tools[%zu]", i);
        if (t->kind != LG_JSON_OBJECT) return lg_request_bad(p, where, t, "an object");
        lg_request_name(param, "%.40s.type", where);
        if (lg_request_is_search(p, type)) continue;
        if (type && type->kind != LG_JSON_NULL && !lg_json_is(type, "custom"))
            return lg_request_refuse(p->e, param, "unsupported_value",
                                     "%s: only \"custom\" tools are supported", param);
        lg_request_name(param, "%.40s.name", where);
        if (!lg_request_good_name(lg_json_get(t, "name")))
            return lg_request_refuse(p->e, param, "invalid_value",
                                     "%s: expected 1 to 64 letters, digits, _ or -", param);
        lg_request_name(param, "%.40s.input_schema", where);
        if (!schema || schema->kind != LG_JSON_OBJECT)
            return lg_request_refuse(p->e, param, "invalid_value",
                                     "%s: expected a JSON schema object", param);
        lg_request_name(param, "%.40s.description", where);
        if (about && about->kind != LG_JSON_NULL && about->kind != LG_JSON_STRING)
            return lg_request_bad(p, param, about, "a string");
        lg_request_name(param, "%.40s.strict", where);
        if (strict && strict->kind != LG_JSON_NULL && strict->kind != LG_JSON_FALSE)
            return lg_request_refuse(p->e, param, "unsupported_value",
                                     "%s: only false is supported", param);
        /* All tools are shown to the model at once, those too that are to be loaded later. */
        if (!ONLY(p, where, t, "type", "name", "description", "input_schema", "strict",
                  "eager_input_streaming", "defer_loading", "allowed_callers",
                  "input_examples"))
            return false;
    }
    p->tools = v;
    return true;
}

static bool take_tool_choice(lg_parse *p, const lg_field *f, const lg_json *v) {
    const lg_json *type = lg_json_get(v, "type");
    const lg_json *alone = lg_json_get(v, "disable_parallel_tool_use");
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, f->name, v, "an object");
    bool tool = lg_json_is(type, "tool");
    if ((tool || lg_json_is(type, "any")) &&
        !lg_format_force(p, f->name, tool, lg_json_get(v, "name")))
        return false;
    p->no_tools = lg_json_is(type, "none");
    if (!p->no_tools && !p->force && !lg_json_is(type, "auto"))
        return lg_request_refuse(
            p->e, "tool_choice.type", "invalid_value",
            "tool_choice.type: expected \"auto\", \"any\", \"tool\" or \"none\"");
    if (alone && alone->kind != LG_JSON_NULL && !lg_json_bool(alone, &p->req->one_call))
        return lg_request_bad(p, "tool_choice.disable_parallel_tool_use", alone,
                              "true or false");
    return tool ? ONLY(p, f->name, v, "type", "disable_parallel_tool_use", "name")
                : ONLY(p, f->name, v, "type", "disable_parallel_tool_use");
}

static bool take_service_tier(lg_parse *p, const lg_field *f, const lg_json *v) {
    return lg_json_is(v, "auto") || lg_json_is(v, "standard_only") ||
           lg_request_bad(p, f->name, v, "\"auto\" or \"standard_only\"");
}

static bool take_output_config(lg_parse *p, const lg_field *f, const lg_json *v) {
    static const char *const effort[] = {"low", "medium", "high", "xhigh", "max"};
    const lg_json *e = lg_json_get(v, "effort"), *format = lg_json_get(v, "format");
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, f->name, v, "an object");
    if (format && format->kind != LG_JSON_NULL &&
        !lg_format_take(p, "output_config.format", format, NULL))
        return false;
    if (!ONLY(p, f->name, v, "effort", "format")) return false;
    if (!e || e->kind == LG_JSON_NULL) return true;
    for (size_t i = 0; i < LG_COUNT(effort); i++)
        if (lg_json_is(e, effort[i])) return true;
    return lg_request_bad(p, "output_config.effort", e,
                          "\"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
}

/* One edit is what the chat format does anyway: thinking of turns before the last question is not shown to the model. */
static bool take_context(lg_parse *p, const lg_field *f, const lg_json *v) {
    const lg_json *edits = lg_json_get(v, "edits");
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, f->name, v, "an object");
    if (!ONLY(p, f->name, v, "edits")) return false;
    for (const lg_json *e = edits ? edits->child : NULL; e; e = e->next)
        if (!lg_json_is(lg_json_get(e, "type"), "clear_thinking_20251015"))
            return lg_request_refuse(p->e, "context_management.edits", "unsupported_value",
                                     "context_management.edits: only "
                                     "\"clear_thinking_20251015\" is supported");
    return true;
}

enum { M = LG_AT_MESSAGES, BOTH = LG_AT_MESSAGES | LG_AT_COUNT };
#define PARAM(member) LG_REQUEST_PARAMS(member)

static const lg_field fields[] = {
    {"model", "string", BOTH, lg_request_take_model, 0, 0, 0, false, BOTH},
    {"messages", "array", BOTH, lg_request_take_messages, 0, 0, 0, false, BOTH},
    {"max_tokens", "integer", M, lg_request_take_max_tokens, 0, 1, LG_REQUEST_ANY_COUNT, false,
     M},
    {"system", "", BOTH, take_system, 0, 0, 0, false, 0},
    {"stream", "boolean", M, lg_request_take_bool, LG_REQUEST_REQ(stream), 0, 0, false, 0},
    {"temperature", "number", M, lg_request_take_float, PARAM(temperature), 0, 1, false, 0},
    {"top_p", "number", M, lg_request_take_float, PARAM(top_p), 0, 1, true, 0},
    {"top_k", "integer", M, lg_request_take_top_k, 0, 0, LG_REQUEST_ANY_COUNT, false, 0},
    {"stop_sequences", "array", M, take_stop_sequences, 0, 0, 0, false, 0},
    {"thinking", "object", BOTH, take_thinking, 0, 0, 0, false, 0},
    {"tools", "array", BOTH, take_tools, 0, 0, 0, false, 0},
    {"tool_choice", "object", BOTH, take_tool_choice, 0, 0, 0, false, 0},
    {"output_config", "object", BOTH, take_output_config, 0, 0, 0, false, 0},
    {"context_management", "object", BOTH, take_context, 0, 0, 0, false, 0},
    /* beyond the format: what the other routes know */
    {"min_p", "number", M, lg_request_take_float, PARAM(min_p), 0, 1, false, 0},
    {"presence_penalty", "number", M, lg_request_take_float, PARAM(presence_penalty), -2, 2,
     false, 0},
    {"frequency_penalty", "number", M, lg_request_take_float, PARAM(frequency_penalty), -2, 2,
     false, 0},
    {"repetition_penalty", "number", M, lg_request_take_float, PARAM(repetition_penalty), 0, 10,
     true, 0},
    {"seed", "integer", M, lg_request_take_seed, 0, 0, 0, false, 0},
    {"enable_thinking", "boolean", BOTH, lg_request_take_thinking, 0, 0, 0, false, 0},
    {"chat_template_kwargs", "object", BOTH, lg_request_take_template_kwargs, 0, 0, 0, false,
     0},
    {"reasoning_effort", "string", BOTH, lg_request_take_effort, 0, 0, 0, false, 0},
    /* harmless */
    {"metadata", "object", M, lg_request_pass_object, 0, 0, 0, false, 0},
    {"priority", "integer", M, lg_request_take_priority, 0, 0, 0, false, 0},
    {"service_tier", "string", M, take_service_tier, 0, 0, 0, false, 0},
    {"cache_salt", "string", BOTH, lg_request_take_cache_salt, 0, 0, 0, false, 0},
    {"cache_control", "object", BOTH, lg_request_pass_object, 0, 0, 0, false, 0},
    /* understood and not offered */
    {"container", NULL, M, lg_request_never, 0, 0, 0, false, 0},
    {"mcp_servers", NULL, BOTH, lg_request_never, 0, 0, 0, false, 0},
};

const lg_field *lg_anthropic_fields(size_t *n) {
    *n = LG_COUNT(fields);
    return fields;
}

/* ---- System ---- */

static void put_joined(lg_buf *b, const lg_buf *text) {
    b->failed |= text->failed;
    lg_json_put_string(b, lg_buf_str(text), text->len_bytes);
}

/* The text without the changing line at its start. */
static const char *after_header(lg_parse *p, const lg_json *v, size_t *len_bytes) {
    *len_bytes = v->text_len;
    size_t n = sizeof changing_line - 1;
    if (p->req->model->keep_header || v->text_len < n || memcmp(v->text, changing_line, n) != 0)
        return v->text;
    p->req->dropped_header = true;
    const char *end = memchr(v->text, '\n', v->text_len);
    *len_bytes = end ? v->text_len - (size_t)(end + 1 - v->text) : 0;
    return end ? end + 1 : v->text;
}

static bool put_system(lg_parse *p, lg_buf *b) {
    lg_buf text = {0};
    const char *s;
    size_t i = 0, len;
    bool ok = true;
    if (!p->system) return true;
    if (p->system->kind == LG_JSON_STRING) {
        s = after_header(p, p->system, &len);
        lg_buf_put(&text, s, len);
    }
    for (const lg_json *k = p->system->child; k && ok; k = k->next, i++) {
        char where[LG_REQUEST_PARAM];
        const lg_json *v = NULL;
        lg_request_name(where, "system[%zu]", i);
        if (!lg_json_is(lg_json_get(k, "type"), "text"))
            ok = lg_request_refuse(p->e, where, "unsupported_value",
                                   "%s: only blocks of type \"text\" are supported", where);
        ok = ok && ONLY(p, where, k, "type", "text") && need_string(p, where, k, "text", &v);
        if (!ok) break;
        s = v->text;
        len = v->text_len;
        if (i == 0) s = after_header(p, v, &len);
        if (text.len_bytes && len) lg_buf_puts(&text, "\n\n");
        lg_buf_put(&text, s, len);
    }
    if (text.len_bytes) {
        lg_buf_puts(b, "{\"role\":\"system\",\"content\":");
        put_joined(b, &text);
        lg_buf_puts(b, "},");
    }
    b->failed |= text.failed;
    lg_buf_fini(&text);
    return ok;
}

/* ---- Messages ---- */

/* A block that is no object, or of a type that has no place where it stands. */
static bool bad_block(lg_parse *p, const char *where, const lg_json *k) {
    const lg_json *type = lg_json_get(k, "type");
    if (k->kind != LG_JSON_OBJECT) return lg_request_bad(p, where, k, "an object");
    if (!type || type->kind != LG_JSON_STRING)
        return lg_request_refuse(p->e, where, "invalid_value", "%s.type: expected a string",
                                 where);
    return lg_request_refuse(p->e, where, "unsupported_value",
                             "%s: blocks of type \"%.40s\" are not supported here", where,
                             type->text);
}

static bool is_type(const lg_json *k, const char *type) {
    return k->kind == LG_JSON_OBJECT && lg_json_is(lg_json_get(k, "type"), type);
}

/* Append a text block's text. */
static bool add_text(lg_parse *p, const char *where, const lg_json *k, lg_buf *text) {
    const lg_json *v, *cite = lg_json_get(k, "citations");
    if (cite && cite->child && !lg_request_unknown(p, where, cite)) return false;
    if (!ONLY(p, where, k, "type", "text", "citations") ||
        !need_string(p, where, k, "text", &v))
        return false;
    lg_buf_put(text, v->text, v->text_len);
    return true;
}

/* A search for tools has found this one; its definition is among the tools. */
static bool add_reference(lg_parse *p, const char *where, const lg_json *k, lg_buf *text) {
    const lg_json *name;
    if (!ONLY(p, where, k, "type", "tool_name") ||
        !need_string(p, where, k, "tool_name", &name))
        return false;
    lg_buf_puts(text, text->len_bytes ? "\n" : "");
    lg_buf_put(text, name->text, name->text_len);
    return true;
}

static bool put_result(lg_parse *p, const char *where, const lg_json *k, lg_buf *b) {
    const lg_json *id, *content = lg_json_get(k, "content");
    const lg_json *error = lg_json_get(k, "is_error");
    char part[LG_REQUEST_PARAM];
    lg_buf text = {0};
    bool ok = need_string(p, where, k, "tool_use_id", &id), x;
    lg_request_name(part, "%.48s.is_error", where);
    if (ok && error && error->kind != LG_JSON_NULL && !lg_json_bool(error, &x))
        ok = lg_request_bad(p, part, error, "true or false");
    ok = ok && ONLY(p, where, k, "type", "tool_use_id", "content", "is_error");
    lg_request_name(part, "%.48s.content", where);
    if (ok && content && content->kind == LG_JSON_STRING)
        lg_buf_put(&text, content->text, content->text_len);
    else if (ok && content && content->kind != LG_JSON_ARRAY && content->kind != LG_JSON_NULL)
        ok = lg_request_bad(p, part, content, "a string or an array of text blocks");
    size_t i = 0;
    if (ok && content && content->kind == LG_JSON_ARRAY)
        for (const lg_json *c = content->child; c && ok; c = c->next, i++) {
            lg_request_name(part, "%.40s.content[%zu]", where, i);
            ok = is_type(c, "text")             ? add_text(p, part, c, &text)
                 : is_type(c, "tool_reference") ? add_reference(p, part, c, &text)
                                                : bad_block(p, part, c);
        }
    lg_buf_puts(b, "{\"role\":\"tool\",\"content\":");
    put_joined(b, &text);
    lg_buf_puts(b, "},");
    lg_buf_fini(&text);
    return ok;
}

/* The results of a user's message, in the order of the calls before it: the chat format knows them by order only. */
static bool put_results(lg_parse *p, size_t i_msg, const lg_json *content, const lg_json *calls,
                        lg_buf *b) {
    char where[LG_REQUEST_PARAM];
    for (const lg_json *c = calls ? calls->child : NULL;; c = c->next) {
        size_t i = 0;
        while (c && !is_type(c, "tool_use")) c = c->next;
        const lg_json *id = lg_json_get(c, "id");
        for (const lg_json *k = content->child; k; k = k->next, i++) {
            if (!is_type(k, "tool_result")) continue;
            const lg_json *of = lg_json_get(k, "tool_use_id");
            bool known = false;
            for (const lg_json *o = calls ? calls->child : NULL; o && !known && !c; o = o->next)
                known = of && of->kind == LG_JSON_STRING &&
                        lg_json_is(lg_json_get(o, "id"), of->text);
            /* c: results of that call; no c: the others */
            bool now =
                c ? of && of->kind == LG_JSON_STRING && lg_json_is(id, of->text) : !known;
            lg_request_name(where, "messages[%zu].content[%zu]", i_msg, i);
            if (now && !put_result(p, where, k, b)) return false;
        }
        if (!c) return true;
    }
}

static bool put_user(lg_parse *p, size_t i_msg, const lg_json *content, const lg_json *calls,
                     const char *role, lg_buf *b) {
    char where[LG_REQUEST_PARAM];
    lg_buf text = {0};
    size_t i = 0;
    bool ok = put_results(p, i_msg, content, calls, b), any = !content->child;
    for (const lg_json *k = content->child; k && ok; k = k->next, i++) {
        lg_request_name(where, "messages[%zu].content[%zu]", i_msg, i);
        if (is_type(k, "tool_result")) continue;
        ok = is_type(k, "text") ? add_text(p, where, k, &text) : bad_block(p, where, k);
        any = true;
    }
    if (any) {
        lg_buf_printf(b, "{\"role\":\"%s\",\"content\":", role);
        put_joined(b, &text);
        lg_buf_puts(b, "},");
    }
    lg_buf_fini(&text);
    return ok;
}

static bool add_thinking(lg_parse *p, const char *where, const lg_json *k, lg_buf *text) {
    const lg_json *v;
    if (!ONLY(p, where, k, "type", "thinking", "signature") ||
        !need_string(p, where, k, "thinking", &v))
        return false;
    if (text->len_bytes) lg_buf_puts(text, "\n\n");
    lg_buf_put(text, v->text, v->text_len);
    return true;
}

static bool add_call(lg_parse *p, const char *where, const lg_json *k, lg_buf *calls) {
    char param[LG_REQUEST_PARAM];
    const lg_json *id, *name, *input = lg_json_get(k, "input");
    if (!need_string(p, where, k, "id", &id) || !need_string(p, where, k, "name", &name) ||
        !ONLY(p, where, k, "type", "id", "name", "input", "caller"))
        return false;
    lg_request_name(param, "%.48s.input", where);
    if (!input || input->kind != LG_JSON_OBJECT)
        return lg_request_refuse(p->e, param, "invalid_value", "%s: expected an object", param);
    lg_buf_puts(calls, calls->len_bytes ? ",{\"name\":" : "{\"name\":");
    lg_json_put_string(calls, name->text, name->text_len);
    lg_buf_puts(calls, ",\"arguments\":");
    lg_json_put(calls, input, LG_JSON_COMPACT);
    lg_buf_puts(calls, "}");
    return true;
}

static bool put_assistant(lg_parse *p, size_t i_msg, const lg_json *content, lg_buf *b) {
    char where[LG_REQUEST_PARAM];
    lg_buf text = {0}, thinking = {0}, calls = {0};
    size_t i = 0;
    bool ok = true, thought = false;
    for (const lg_json *k = content->child; k && ok; k = k->next, i++) {
        lg_request_name(where, "messages[%zu].content[%zu]", i_msg, i);
        bool think = is_type(k, "thinking");
        thought |= think;
        ok = think                    ? add_thinking(p, where, k, &thinking)
             : is_type(k, "text")     ? add_text(p, where, k, &text)
             : is_type(k, "tool_use") ? add_call(p, where, k, &calls)
                                      : bad_block(p, where, k);
    }
    lg_buf_puts(b, "{\"role\":\"assistant\",\"content\":");
    put_joined(b, &text);
    if (thought) {
        lg_buf_puts(b, ",\"reasoning_content\":");
        put_joined(b, &thinking);
    }
    if (calls.len_bytes) {
        lg_buf_puts(b, ",\"tool_calls\":[");
        lg_buf_put(b, calls.data, calls.len_bytes);
        lg_buf_puts(b, "]");
    }
    lg_buf_puts(b, "},");
    b->failed |= calls.failed;
    lg_buf_fini(&text);
    lg_buf_fini(&thinking);
    lg_buf_fini(&calls);
    return ok;
}

static bool put_message(lg_parse *p, size_t i, const lg_json *msg, const lg_json *before,
                        lg_buf *b) {
    char where[LG_REQUEST_PARAM];
    const lg_json *role, *content = lg_json_get(msg, "content");
    lg_request_name(where, "messages[%zu]", i);
    if (msg->kind != LG_JSON_OBJECT) return lg_request_bad(p, where, msg, "an object");
    if (!need_string(p, where, msg, "role", &role) || !ONLY(p, where, msg, "role", "content"))
        return false;
    bool assistant = lg_json_is(role, "assistant"), system = lg_json_is(role, "system");
    lg_request_name(where, "messages[%zu].role", i);
    if (!assistant && !system && !lg_json_is(role, "user"))
        return lg_request_bad(p, where, role, "\"user\", \"assistant\" or \"system\"");
    lg_request_name(where, "messages[%zu].content", i);
    if (!content)
        return lg_request_refuse(p->e, where, "missing_required_parameter",
                                 "Missing required parameter: '%s'.", where);
    if (content->kind == LG_JSON_STRING) {
        lg_buf_printf(b, "{\"role\":\"%s\",\"content\":", role->text);
        lg_json_put_string(b, content->text, content->text_len);
        lg_buf_puts(b, "},");
        return true;
    }
    if (content->kind != LG_JSON_ARRAY)
        return lg_request_bad(p, where, content, "a string or an array of blocks");
    if (assistant) return put_assistant(p, i, content, b);
    const lg_json *calls = lg_json_get(before, "content");
    bool after = lg_json_is(lg_json_get(before, "role"), "assistant") && calls &&
                 calls->kind == LG_JSON_ARRAY;
    return put_user(p, i, content, after ? calls : NULL, role->text, b);
}

static void put_tools(const lg_parse *p, lg_buf *b) {
    bool first = true;
    lg_buf_puts(b, "],\"tools\":[");
    for (const lg_json *t = p->tools ? p->tools->child : NULL; t; t = t->next) {
        const lg_json *name = lg_json_get(t, "name"), *about = lg_json_get(t, "description");
        if (lg_request_is_search(p, lg_json_get(t, "type"))) continue;
        lg_buf_puts(b, first ? "" : ",");
        first = false;
        lg_buf_puts(b, "{\"type\":\"function\",\"function\":{\"name\":");
        lg_json_put(b, name, LG_JSON_COMPACT);
        if (about && about->kind == LG_JSON_STRING) {
            lg_buf_puts(b, ",\"description\":");
            lg_json_put(b, about, LG_JSON_COMPACT);
        }
        lg_buf_puts(b, ",\"parameters\":");
        lg_json_put(b, lg_json_get(t, "input_schema"), LG_JSON_COMPACT);
        lg_buf_puts(b, "}}");
    }
    lg_buf_puts(b, "]}");
}

static bool render(lg_parse *p) {
    lg_buf b = {0};
    const lg_json *before = NULL;
    size_t i = 0;
    p->req->chat = true;
    if (!p->messages->child)
        return lg_request_refuse(p->e, "messages", "invalid_value",
                                 "messages: at least one message is needed");
    if (p->thinking < 0) { /* in this format thinking is asked for */
        bool think = p->asked >= 0 ? p->asked == 1 : p->effort_given;
        p->thinking = think && !p->effort_none;
    }
    lg_buf_puts(&b, "{\"messages\":[");
    bool ok = put_system(p, &b);
    for (const lg_json *m = p->messages->child; m && ok; m = m->next, i++) {
        ok = put_message(p, i, m, before, &b);
        before = m;
    }
    if (b.len_bytes && b.data[b.len_bytes - 1] == ',') b.len_bytes--;
    put_tools(p, &b);
    ok = ok && lg_request_render_text(p, &b);
    lg_buf_fini(&b);
    return ok;
}

/* The wording is what clients of this format look for. */
static bool check_length(lg_parse *p) {
    const lg_request_parsed *r = p->req;
    size_t n = r->ids.n, n_ctx = r->model->n_ctx;
    if (n + 1 > n_ctx)
        return lg_request_refuse(p->e, "messages", "context_length_exceeded",
                                 "prompt is too long: %zu tokens > %zu maximum (messages, and "
                                 "at least 1 token for the answer)",
                                 n, n_ctx);
    if (n + r->max_tokens > n_ctx)
        return lg_request_refuse(p->e, "max_tokens", "context_length_exceeded",
                                 "input length and `max_tokens` exceed context limit: %zu + %u "
                                 "> %zu, decrease input length or `max_tokens` and try again",
                                 n, r->max_tokens, n_ctx);
    return true;
}

static bool finish(lg_parse *p) {
    lg_request_parsed *r = p->req;
    r->max_tokens = p->max_tokens;
    if (r->think_budget && r->think_budget >= r->max_tokens)
        return lg_request_refuse(p->e, "thinking.budget_tokens", "invalid_value",
                                 "thinking.budget_tokens: expected less than max_tokens (%u), "
                                 "found %u",
                                 r->max_tokens, r->think_budget);
    return render(p) && lg_format_finish(p) && check_length(p) &&
           lg_request_name_it(r, "msg_", p->e);
}

bool lg_anthropic_open(const lg_request_model *model, const char *body, size_t len_bytes,
                       lg_request_parsed **req, lg_request_error *e) {
    return lg_request_open(model, LG_AT_MESSAGES, fields, LG_COUNT(fields), finish, body,
                           len_bytes, req, e);
}

bool lg_anthropic_count(const lg_request_model *model, const char *body, size_t len_bytes,
                        lg_buf *answer, lg_request_error *e) {
    lg_request_parsed *r;
    if (!lg_request_open(model, LG_AT_COUNT, fields, LG_COUNT(fields), render, body, len_bytes,
                         &r, e))
        return false;
    lg_buf_printf(answer, "{\"input_tokens\":%zu}", r->ids.n);
    lg_request_close(&r);
    return true;
}
