/* responses_req.c - bodies of /v1/responses into what the engine needs: see responses.h.
 *
 * In:  the bytes of a body.   Out: lg_request_parsed, or the error to answer with.
 * How: instructions, what is kept of previous_response_id and the items of input are written as the JSON that the chat format
 *      reads.  Reasoning, text and calls of the assistant that follow each other become one message.
 * Thread: gateway.  Memory: the request owns both documents and the text to keep.  Test: tests/unit/test_responses.c */
#include "gateway/wire/responses.h"

#include "base/clock.h"
#include "gateway/wire/format.h"
#include "gateway/wire/history.h"

#include <string.h>

/* ---- Fields ---- */

static bool take_input(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_STRING && v->kind != LG_JSON_ARRAY)
        return lg_request_bad(p, f->name, v, "a string or an array of items");
    p->text = v;
    return true;
}

static bool take_instructions(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_STRING) return lg_request_bad(p, f->name, v, "a string");
    p->instructions = v;
    return true;
}

static bool take_previous(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_STRING) return lg_request_bad(p, f->name, v, "a string");
    p->previous = v;
    return true;
}

static bool check_function(lg_parse *p, const char *where, const lg_json *t) {
    static const char *const known[] = {"type",       "name",   "description",
                                        "parameters", "strict", "defer_loading"};
    char param[LG_REQUEST_PARAM];
    const lg_json *schema = lg_json_get(t, "parameters");
    if (t->kind != LG_JSON_OBJECT) return lg_request_bad(p, where, t, "an object");
    lg_request_name(param, "%.48s.type", where);
    if (!lg_json_is(lg_json_get(t, "type"), "function"))
        return lg_request_refuse(p->e, param, "unsupported_value",
                                 "%s: only \"function\", \"namespace\" and, without effect, "
                                 "\"web_search\" are supported",
                                 param);
    lg_request_name(param, "%.48s.name", where);
    if (!lg_request_good_name(lg_json_get(t, "name")))
        return lg_request_refuse(p->e, param, "invalid_value",
                                 "%s: expected 1 to 64 letters, digits, _ or -", param);
    lg_request_name(param, "%.48s.parameters", where);
    if (schema && schema->kind != LG_JSON_OBJECT && schema->kind != LG_JSON_NULL)
        return lg_request_bad(p, param, schema, "a JSON schema object");
    for (const lg_json *m = t->child; m; m = m->next)
        if (!lg_request_key_among(m, known, LG_COUNT(known)) &&
            !lg_request_unknown(p, where, m))
            return false;
    return true;
}

/* A group of functions under one name. */
static bool check_namespace(lg_parse *p, const char *where, const lg_json *t) {
    static const char *const known[] = {"type", "name", "description", "tools"};
    char param[LG_REQUEST_PARAM];
    const lg_json *tools = lg_json_get(t, "tools");
    size_t i = 0;
    lg_request_name(param, "%.48s.name", where);
    if (!lg_request_good_name(lg_json_get(t, "name")))
        return lg_request_refuse(p->e, param, "invalid_value",
                                 "%s: expected 1 to 64 letters, digits, _ or -", param);
    lg_request_name(param, "%.48s.tools", where);
    if (!tools || tools->kind != LG_JSON_ARRAY)
        return lg_request_refuse(p->e, param, "invalid_value", "%s: expected an array of tools",
                                 param);
    for (const lg_json *f = tools->child; f; f = f->next) {
        lg_request_name(param, "%.40s.tools[%zu]", where, i++);
        if (!check_function(p, param, f)) return false;
    }
    for (const lg_json *m = t->child; m; m = m->next)
        if (!lg_request_key_among(m, known, LG_COUNT(known)) &&
            !lg_request_unknown(p, where, m))
            return false;
    return true;
}

static bool take_tools(lg_parse *p, const lg_field *f, const lg_json *v) {
    char where[LG_REQUEST_PARAM];
    size_t i = 0;
    if (v->kind != LG_JSON_ARRAY) return lg_request_bad(p, f->name, v, "an array of tools");
    for (const lg_json *t = v->child; t; t = t->next, i++) {
        const lg_json *type = lg_json_get(t, "type");
        if (lg_request_is_search(p, type)) continue;
        lg_request_name(where, "tools[%zu]", i);
        if (!(lg_json_is(type, "namespace") ? check_namespace(p, where, t)
                                            : check_function(p, where, t)))
            return false;
    }
    p->tools = v;
    return true;
}

static bool take_tool_choice(lg_parse *p, const lg_field *f, const lg_json *v) {
    p->no_tools = lg_json_is(v, "none");
    if (p->no_tools || lg_json_is(v, "auto")) return true;
    if (lg_json_is(v, "required")) return lg_format_force(p, f->name, false, NULL);
    if (lg_json_is(lg_json_get(v, "type"), "function"))
        return lg_format_force(p, f->name, true, lg_json_get(v, "name"));
    return lg_request_bad(p, f->name, v,
                          "\"auto\", \"none\", \"required\" or {\"type\": \"function\", ...}");
}

static bool take_reasoning(lg_parse *p, const lg_field *f, const lg_json *v) {
    static const char *const summary[] = {"auto", "concise", "detailed"};
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, f->name, v, "an object");
    for (const lg_json *m = v->child; m; m = m->next) {
        const lg_field effort = {.name = "reasoning.effort"};
        const lg_field budget = {
            .name = "reasoning.max_tokens", .low = 1, .high = LG_REQUEST_ANY_COUNT};
        bool ok = true, known = false;
        if (m->kind == LG_JSON_NULL) continue;
        if (lg_request_key_is(m, "effort")) {
            ok = lg_request_take_effort(p, &effort, m);
        } else if (lg_request_key_is(m, "max_tokens")) {
            ok = lg_request_take_count(p, &budget, m, &p->req->think_budget);
        } else if (lg_request_key_is(m, "summary") ||
                   lg_request_key_is(m, "generate_summary")) {
            /* The reasoning itself is given; that is more than any summary. */
            for (size_t i = 0; i < LG_COUNT(summary); i++) known |= lg_json_is(m, summary[i]);
            ok = known || lg_request_bad(p, "reasoning.summary", m,
                                         "\"auto\", \"concise\" or \"detailed\"");
        } else {
            ok = lg_request_unknown(p, f->name, m);
        }
        if (!ok) return false;
    }
    return true;
}

static bool take_text(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, f->name, v, "an object");
    for (const lg_json *m = v->child; m; m = m->next) {
        if (m->kind == LG_JSON_NULL) continue;
        if (lg_request_key_is(m, "format")) {
            if (!lg_format_take(p, "text.format", m, NULL)) return false;
        } else if (lg_request_key_is(m, "verbosity")) {
            if (!lg_json_is(m, "medium"))
                return lg_request_refuse(p->e, "text.verbosity", "unsupported_value",
                                         "text.verbosity: only \"medium\" is supported");
        } else if (!lg_request_unknown(p, f->name, m)) {
            return false;
        }
    }
    return true;
}

static bool take_truncation(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (lg_json_is(v, "disabled")) return true;
    return lg_request_refuse(p->e, f->name, "unsupported_value",
                             "truncation: only \"disabled\" is supported; nothing is cut");
}

/* Reasoning is never encrypted here and always given, so asking for it changes nothing. */
static bool take_include(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_ARRAY) return lg_request_bad(p, f->name, v, "an array of strings");
    for (const lg_json *s = v->child; s; s = s->next)
        if (!lg_json_is(s, "reasoning.encrypted_content"))
            return lg_request_refuse(p->e, f->name, "unsupported_value",
                                     "include: only \"reasoning.encrypted_content\" is "
                                     "supported");
    return true;
}

static bool take_stream_options(lg_parse *p, const lg_field *f, const lg_json *v) {
    bool x;
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, f->name, v, "an object");
    for (const lg_json *m = v->child; m; m = m->next) {
        if (!lg_request_key_is(m, "include_obfuscation")) {
            if (!lg_request_unknown(p, f->name, m)) return false;
            continue;
        }
        if (m->kind != LG_JSON_NULL && !lg_json_bool(m, &x))
            return lg_request_bad(p, "stream_options.include_obfuscation", m, "true or false");
    }
    return true;
}

enum { R = LG_AT_RESPONSES };
#define PARAM(member) LG_REQUEST_PARAMS(member)

static const lg_field fields[] = {
    {"model", "string", R, lg_request_take_model, 0, 0, 0, false, R},
    {"input", "", R, take_input, 0, 0, 0, false, R},
    {"instructions", "string", R, take_instructions, 0, 0, 0, false, 0},
    {"previous_response_id", "string", R, take_previous, 0, 0, 0, false, 0},
    {"store", "boolean", R, lg_request_take_bool, LG_REQUEST_REQ(store), 0, 0, false, 0},
    {"stream", "boolean", R, lg_request_take_bool, LG_REQUEST_REQ(stream), 0, 0, false, 0},
    {"stream_options", "object", R, take_stream_options, 0, 0, 0, false, 0},
    {"max_output_tokens", "integer", R, lg_request_take_max_tokens, 0, 1, LG_REQUEST_ANY_COUNT,
     false, 0},
    {"temperature", "number", R, lg_request_take_float, PARAM(temperature), 0, 2, false, 0},
    {"top_p", "number", R, lg_request_take_float, PARAM(top_p), 0, 1, true, 0},
    {"tools", "array", R, take_tools, 0, 0, 0, false, 0},
    {"tool_choice", "", R, take_tool_choice, 0, 0, 0, false, 0},
    {"parallel_tool_calls", "boolean", R, lg_request_take_parallel, 0, 0, 0, false, 0},
    {"reasoning", "object", R, take_reasoning, 0, 0, 0, false, 0},
    {"text", "object", R, take_text, 0, 0, 0, false, 0},
    /* beyond the format: what the other routes know */
    {"top_k", "integer", R, lg_request_take_top_k, 0, 0, LG_REQUEST_ANY_COUNT, false, 0},
    {"min_p", "number", R, lg_request_take_float, PARAM(min_p), 0, 1, false, 0},
    {"presence_penalty", "number", R, lg_request_take_float, PARAM(presence_penalty), -2, 2,
     false, 0},
    {"frequency_penalty", "number", R, lg_request_take_float, PARAM(frequency_penalty), -2, 2,
     false, 0},
    {"repetition_penalty", "number", R, lg_request_take_float, PARAM(repetition_penalty), 0, 10,
     true, 0},
    {"seed", "integer", R, lg_request_take_seed, 0, 0, 0, false, 0},
    {"enable_thinking", "boolean", R, lg_request_take_thinking, 0, 0, 0, false, 0},
    {"chat_template_kwargs", "object", R, lg_request_take_template_kwargs, 0, 0, 0, false, 0},
    {"reasoning_effort", "string", R, lg_request_take_effort, 0, 0, 0, false, 0},
    /* nothing else than what happens anyway */
    {"truncation", "string", R, take_truncation, 0, 0, 0, false, 0},
    {"background", "boolean", R, lg_request_only_false, 0, 0, 0, false, 0},
    {"include", "array", R, take_include, 0, 0, 0, false, 0},
    /* harmless */
    {"metadata", "object", R, lg_request_pass_object, 0, 0, 0, false, 0},
    {"client_metadata", "object", R, lg_request_pass_object, 0, 0, 0, false, 0},
    {"user", "string", R, lg_request_pass_string, 0, 0, 0, false, 0},
    {"safety_identifier", "string", R, lg_request_pass_string, 0, 0, 0, false, 0},
    {"cache_salt", "string", R, lg_request_take_cache_salt, 0, 0, 0, false, 0},
    {"prompt_cache_key", "string", R, lg_request_pass_string, 0, 0, 0, false, 0},
    {"prompt_cache_retention", "string", R, lg_request_pass_string, 0, 0, 0, false, 0},
    {"priority", "integer", R, lg_request_take_priority, 0, 0, 0, false, 0},
    {"service_tier", "string", R, lg_request_take_tier, 0, 0, 0, false, 0},
    /* understood and not offered */
    {"conversation", NULL, R, lg_request_never, 0, 0, 0, false, 0},
    {"prompt", NULL, R, lg_request_never, 0, 0, 0, false, 0},
    {"max_tool_calls", NULL, R, lg_request_never, 0, 0, 0, false, 0},
    {"top_logprobs", NULL, R, lg_request_never, 0, 0, 0, false, 0},
};

const lg_field *lg_responses_fields(size_t *n) {
    *n = LG_COUNT(fields);
    return fields;
}

/* ---- Items ---- */

/* The assistant's message in the making. */
typedef struct turn {
    lg_buf reasoning, content, calls;
    bool open, reasoned;
} turn;

typedef struct items {
    lg_parse *p;
    lg_buf *out; /* messages, each followed by a comma */
    turn turn;
} items;

static void put_string(lg_buf *out, const lg_buf *text) {
    out->failed |= text->failed;
    lg_json_put_string(out, lg_buf_str(text), text->len_bytes);
}

static void end_turn(items *it) {
    turn *t = &it->turn;
    if (!t->open) return;
    lg_buf_puts(it->out, "{\"role\":\"assistant\",\"content\":");
    put_string(it->out, &t->content);
    if (t->reasoned) {
        lg_buf_puts(it->out, ",\"reasoning_content\":");
        put_string(it->out, &t->reasoning);
    }
    if (t->calls.len_bytes) {
        lg_buf_puts(it->out, ",\"tool_calls\":[");
        lg_buf_put(it->out, t->calls.data, t->calls.len_bytes);
        lg_buf_puts(it->out, "]");
    }
    lg_buf_puts(it->out, "},");
    it->out->failed |= t->calls.failed;
    lg_buf_clear(&t->reasoning);
    lg_buf_clear(&t->content);
    lg_buf_clear(&t->calls);
    t->open = t->reasoned = false;
}

/* id and status are what an answer carried; they mean nothing here. */
static bool only_members(items *it, const char *where, const lg_json *v,
                         const char *const *list, size_t n) {
    for (const lg_json *m = v->child; m; m = m->next) {
        bool mark = lg_request_key_is(m, "id") || lg_request_key_is(m, "status");
        if (mark || m->kind == LG_JSON_NULL || lg_request_key_among(m, list, n)) continue;
        if (!lg_request_unknown(it->p, where, m)) return false;
    }
    return true;
}

#define ONLY(it, where, v, ...)                                                                \
    only_members(it, where, v, (const char *const[]){__VA_ARGS__},                             \
                 sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static bool need_string(items *it, const char *where, const lg_json *v, const char *key,
                        const lg_json **out) {
    char param[LG_REQUEST_PARAM];
    lg_request_name(param, "%.48s.%s", where, key);
    *out = lg_json_get(v, key);
    if (*out && (*out)->kind == LG_JSON_STRING) return true;
    if (*out) return lg_request_bad(it->p, param, *out, "a string");
    return lg_request_refuse(it->p->e, param, "missing_required_parameter",
                             "Missing required parameter: '%s'.", param);
}

/* Append a string, or the texts of an array of parts. */
static bool add_text(items *it, const char *where, const lg_json *v, lg_buf *text) {
    static const char *const type[] = {"input_text", "output_text", "text", "summary_text",
                                       "reasoning_text"};
    char part[LG_REQUEST_PARAM];
    size_t i = 0;
    if (v && v->kind == LG_JSON_STRING) {
        lg_buf_put(text, v->text, v->text_len);
        return true;
    }
    if (!v || v->kind != LG_JSON_ARRAY)
        return lg_request_refuse(it->p->e, where, "invalid_value",
                                 "%s: expected a string or an array of parts", where);
    for (const lg_json *c = v->child; c; c = c->next, i++) {
        const lg_json *s;
        bool known = false;
        lg_request_name(part, "%.48s[%zu]", where, i);
        if (c->kind != LG_JSON_OBJECT) return lg_request_bad(it->p, part, c, "an object");
        for (size_t k = 0; k < LG_COUNT(type); k++)
            known |= lg_json_is(lg_json_get(c, "type"), type[k]);
        if (!known)
            return lg_request_refuse(it->p->e, part, "unsupported_value",
                                     "%s: only parts of text are supported", part);
        if (!need_string(it, part, c, "text", &s) ||
            !ONLY(it, part, c, "type", "text", "annotations", "logprobs"))
            return false;
        lg_buf_put(text, s->text, s->text_len);
    }
    return true;
}

static bool put_message(items *it, const char *where, const lg_json *v) {
    static const char *const roles[] = {"user", "system", "developer"};
    const lg_json *role;
    char param[LG_REQUEST_PARAM];
    if (!need_string(it, where, v, "role", &role) ||
        !ONLY(it, where, v, "type", "role", "content", "phase"))
        return false;
    lg_request_name(param, "%.48s.content", where);
    if (lg_json_is(role, "assistant")) {
        if (it->turn.calls.len_bytes) end_turn(it);
        it->turn.open = true;
        return add_text(it, param, lg_json_get(v, "content"), &it->turn.content);
    }
    bool known = false;
    for (size_t i = 0; i < LG_COUNT(roles); i++) known |= lg_json_is(role, roles[i]);
    if (!known) {
        lg_request_name(param, "%.48s.role", where);
        return lg_request_bad(it->p, param, role,
                              "\"user\", \"assistant\", \"system\" or \"developer\"");
    }
    lg_buf text = {0};
    end_turn(it);
    bool ok = add_text(it, param, lg_json_get(v, "content"), &text);
    lg_buf_printf(it->out, "{\"role\":\"%s\",\"content\":", role->text);
    put_string(it->out, &text);
    lg_buf_puts(it->out, "},");
    lg_buf_fini(&text);
    return ok;
}

static bool put_call(items *it, const char *where, const lg_json *v) {
    const lg_json *id, *name, *args;
    lg_buf *b = &it->turn.calls;
    if (!need_string(it, where, v, "call_id", &id) ||
        !need_string(it, where, v, "name", &name) ||
        !need_string(it, where, v, "arguments", &args) ||
        !ONLY(it, where, v, "type", "call_id", "name", "namespace", "arguments"))
        return false;
    lg_json_doc *doc = NULL;
    char param[LG_REQUEST_PARAM];
    const lg_json *group = lg_json_get(v, "namespace");
    if (group && group->kind != LG_JSON_NULL && !need_string(it, where, v, "namespace", &group))
        return false;
    lg_request_name(param, "%.48s.arguments", where);
    lg_status st = lg_json_parse(args->text, args->text_len, 64, param, &doc, NULL);
    bool object = st == LG_OK && lg_json_root(doc)->kind == LG_JSON_OBJECT;
    lg_json_close(&doc);
    if (st == LG_E_NOMEM) return lg_request_no_memory(it->p->e);
    if (!object && args->text_len)
        return lg_request_refuse(it->p->e, param, "invalid_value",
                                 "%s: expected the JSON text of an object", param);
    it->turn.open = true;
    lg_buf_puts(b, b->len_bytes ? ",{\"name\":" : "{\"name\":");
    lg_responses_put_name(b, group, name);
    lg_buf_puts(b, ",\"arguments\":");
    lg_json_put_string(b, args->text, args->text_len);
    lg_buf_puts(b, "}");
    return true;
}

static bool put_output(items *it, const char *where, const lg_json *v) {
    const lg_json *id;
    char param[LG_REQUEST_PARAM];
    lg_buf text = {0};
    lg_request_name(param, "%.48s.output", where);
    bool ok = need_string(it, where, v, "call_id", &id) &&
              ONLY(it, where, v, "type", "call_id", "output") &&
              add_text(it, param, lg_json_get(v, "output"), &text);
    end_turn(it);
    lg_buf_puts(it->out, "{\"role\":\"tool\",\"content\":");
    put_string(it->out, &text);
    lg_buf_puts(it->out, "},");
    lg_buf_fini(&text);
    return ok;
}

/* The text of reasoning; a summary stands in where that is all there is. */
static bool put_reasoning(items *it, const char *where, const lg_json *v) {
    const lg_json *content = lg_json_get(v, "content"), *summary = lg_json_get(v, "summary");
    char param[LG_REQUEST_PARAM];
    if (!ONLY(it, where, v, "type", "summary", "content", "encrypted_content")) return false;
    bool full = content && content->kind == LG_JSON_ARRAY && content->child;
    if (!full && !(summary && summary->child)) return true;
    if (it->turn.content.len_bytes || it->turn.calls.len_bytes) end_turn(it);
    it->turn.open = it->turn.reasoned = true;
    lg_request_name(param, "%.48s.%s", where, full ? "content" : "summary");
    return add_text(it, param, full ? content : summary, &it->turn.reasoning);
}

static bool put_item(items *it, size_t i, const lg_json *v) {
    char where[LG_REQUEST_PARAM];
    const lg_json *type = lg_json_get(v, "type");
    lg_request_name(where, "input[%zu]", i);
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(it->p, where, v, "an object");
    if (!type || lg_json_is(type, "message")) return put_message(it, where, v);
    if (lg_json_is(type, "function_call")) return put_call(it, where, v);
    if (lg_json_is(type, "function_call_output")) return put_output(it, where, v);
    if (lg_json_is(type, "reasoning")) return put_reasoning(it, where, v);
    return lg_request_refuse(it->p->e, where, "unsupported_value",
                             "%s: items of type \"%.40s\" are not supported", where,
                             type->kind == LG_JSON_STRING ? type->text : "?");
}

/* Write the new messages to `out`, each followed by a comma. */
static bool put_input(lg_parse *p, lg_buf *out) {
    const lg_json *input = p->text;
    items it = {.p = p, .out = out};
    size_t i = 0;
    bool ok = true;
    if (input->kind == LG_JSON_STRING) {
        lg_buf_puts(out, "{\"role\":\"user\",\"content\":");
        lg_json_put_string(out, input->text, input->text_len);
        lg_buf_puts(out, "},");
        return true;
    }
    for (const lg_json *v = input->child; v && ok; v = v->next) ok = put_item(&it, i++, v);
    end_turn(&it);
    lg_buf_fini(&it.turn.reasoning);
    lg_buf_fini(&it.turn.content);
    lg_buf_fini(&it.turn.calls);
    return ok;
}

static bool put_previous(lg_parse *p, lg_buf *out) {
    lg_history *h = p->req->model->history;
    if (!p->previous) return true;
    if (h && lg_history_get(h, p->req->tenant, p->previous->text, out, lg_clock_us()))
        return true;
    return lg_request_refuse(p->e, "previous_response_id", "previous_response_not_found",
                             "Previous response with id '%.60s' not found.", p->previous->text);
}

void lg_responses_put_name(lg_buf *b, const lg_json *group, const lg_json *name) {
    lg_buf_puts(b, "\"");
    if (group && group->kind == LG_JSON_STRING) {
        lg_json_put_escaped(b, group->text, group->text_len);
        lg_buf_puts(b, "__");
    }
    lg_json_put_escaped(b, name->text, name->text_len);
    lg_buf_puts(b, "\"");
}

/* Functions as the chat format has them; those of a namespace carry its name in theirs. */
static void put_functions(const lg_parse *p, const lg_json *tools, const lg_json *group,
                          lg_buf *b) {
    for (const lg_json *t = tools ? tools->child : NULL; t; t = t->next) {
        bool first = true;
        if (lg_json_is(lg_json_get(t, "type"), "namespace")) {
            put_functions(p, lg_json_get(t, "tools"), lg_json_get(t, "name"), b);
            continue;
        }
        if (lg_request_is_search(p, lg_json_get(t, "type"))) continue;
        lg_buf_puts(b, b->data[b->len_bytes - 1] == '[' ? "" : ",");
        lg_buf_puts(b, "{\"type\":\"function\",\"function\":{");
        for (const lg_json *m = t->child; m; m = m->next) {
            if (lg_request_key_is(m, "type") || lg_request_key_is(m, "defer_loading") ||
                m->kind == LG_JSON_NULL)
                continue;
            lg_buf_puts(b, first ? "" : ",");
            first = false;
            lg_json_put_string(b, m->key, m->key_len);
            lg_buf_puts(b, ":");
            if (lg_request_key_is(m, "name"))
                lg_responses_put_name(b, group, m);
            else
                lg_json_put(b, m, LG_JSON_COMPACT);
        }
        lg_buf_puts(b, "}}");
    }
}

static void put_tools(const lg_parse *p, lg_buf *b) {
    lg_buf_puts(b, "],\"tools\":[");
    if (!b->failed) put_functions(p, p->tools, NULL, b);
    lg_buf_puts(b, "]}");
}

static bool render(lg_parse *p) {
    lg_request_parsed *r = p->req;
    lg_buf b = {0};
    if (!put_previous(p, &r->kept) || !put_input(p, &r->kept)) return false;
    if (r->kept.failed) return lg_request_no_memory(p->e);
    lg_buf_puts(&b, "{\"messages\":[");
    if (p->instructions) {
        lg_buf_puts(&b, "{\"role\":\"system\",\"content\":");
        lg_json_put_string(&b, p->instructions->text, p->instructions->text_len);
        lg_buf_puts(&b, "},");
    }
    lg_buf_put(&b, lg_buf_str(&r->kept), r->kept.len_bytes);
    if (b.len_bytes && b.data[b.len_bytes - 1] == ',') b.len_bytes--;
    put_tools(p, &b);
    bool ok = lg_request_render_text(p, &b);
    lg_buf_fini(&b);
    return ok;
}

static bool finish(lg_parse *p) {
    lg_request_parsed *r = p->req;
    const lg_json *store = lg_json_get(lg_json_root(r->doc), "store");
    r->chat = true;
    r->max_tokens = p->max_tokens;
    if (!store || store->kind == LG_JSON_NULL) r->store = true; /* the format's default */
    return render(p) && lg_format_finish(p) && lg_request_check_length(p, "input") &&
           lg_request_name_it(r, "resp_", p->e);
}

bool lg_responses_open(const lg_request_model *model, const char *body, size_t len_bytes,
                       lg_request_parsed **req, lg_request_error *e) {
    return lg_request_open(model, LG_AT_RESPONSES, fields, LG_COUNT(fields), finish, body,
                           len_bytes, req, e);
}
