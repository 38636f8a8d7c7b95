/* openai_req.c - request bodies of the OpenAI wire format into what the engine needs: see openai.h.
 *
 * In:  the bytes of a body.   Out: lg_request_parsed, or the error to answer with.
 * Policy: the table `fields` below is all there is; request.c says what happens to other fields.
 * Thread: gateway.  Memory: the request owns its document, ids and biases.  Test: tests/unit/test_openai.c,
 * fuzz/fuzz_openai.c */
#include "gateway/wire/openai.h"

#include "gateway/wire/format.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_COMPLETION 16 /* max_tokens of /v1/completions when not given */

/* ---- Fields ---- */

static bool take_max_completion_tokens(lg_parse *p, const lg_field *f, const lg_json *v) {
    return lg_request_take_count(p, f, v, &p->max_completion_tokens);
}

static bool take_n(lg_parse *p, const lg_field *f, const lg_json *v) {
    return lg_request_take_count(p, f, v, &p->req->n_choice);
}

static bool take_prompt(lg_parse *p, const lg_field *f, const lg_json *v) {
    (void)f;
    p->prompt = v;
    return true;
}

bool lg_openai_take_tools(lg_parse *p, const lg_field *f, const lg_json *v) {
    char param[LG_REQUEST_PARAM];
    size_t i = 0;
    if (v->kind != LG_JSON_ARRAY) return lg_request_bad(p, f->name, v, "an array of tools");
    for (const lg_json *t = v->child; t; t = t->next, i++) {
        const lg_json *type = lg_json_get(t, "type"), *fn = lg_json_get(t, "function");
        const lg_json *name = lg_json_get(fn, "name"), *schema = lg_json_get(fn, "parameters");
        lg_request_name(param, "tools[%zu]", i);
        if (t->kind != LG_JSON_OBJECT) return lg_request_bad(p, param, t, "an object");
        lg_request_name(param, "tools[%zu].type", i);
        if (!lg_json_is(type, "function"))
            return lg_request_refuse(p->e, param, "invalid_value", "%s: expected \"function\"",
                                     param);
        lg_request_name(param, "tools[%zu].function.name", i);
        if (!lg_request_good_name(name))
            return lg_request_refuse(p->e, param, "invalid_value",
                                     "%s: expected 1 to 64 letters, digits, _ or -", param);
        lg_request_name(param, "tools[%zu].function.parameters", i);
        if (schema && schema->kind != LG_JSON_OBJECT && schema->kind != LG_JSON_NULL)
            return lg_request_bad(p, param, schema, "a JSON schema object");
    }
    if (v->child) p->tools = v;
    return true;
}

static bool take_tool_choice(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (lg_json_is(v, "auto")) return true;
    p->no_tools = lg_json_is(v, "none");
    if (p->no_tools) return true;
    if (lg_json_is(v, "required")) return lg_format_force(p, f->name, false, NULL);
    if (lg_json_is(lg_json_get(v, "type"), "function"))
        return lg_format_force(p, f->name, true,
                               lg_json_get(lg_json_get(v, "function"), "name"));
    return lg_request_bad(p, f->name, v,
                          "\"auto\", \"none\", \"required\" or {\"type\": \"function\", ...}");
}

static bool take_stream_options(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, f->name, v, "an object");
    p->stream_options = true;
    for (const lg_json *m = v->child; m; m = m->next) {
        bool ignored, *out = &p->req->include_usage;
        if (lg_request_key_is(m, "include_obfuscation")) {
            out = &ignored; /* only whether bytes of padding are wanted */
        } else if (!lg_request_key_is(m, "include_usage")) {
            if (!lg_request_unknown(p, f->name, m)) return false;
            continue;
        }
        if (m->kind != LG_JSON_NULL && !lg_json_bool(m, out))
            return lg_request_bad(p, "stream_options.include_usage", m, "true or false");
    }
    return true;
}

static bool take_logprobs(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (p->at == LG_AT_TEXT) {
        uint32_t n = 0;
        if (!lg_request_take_count(p, f, v, &n)) return false;
        p->req->params.n_top = (int)n;
        return true;
    }
    return lg_json_bool(v, &p->logprobs) || lg_request_bad(p, f->name, v, "true or false");
}

static bool take_top_logprobs(lg_parse *p, const lg_field *f, const lg_json *v) {
    uint32_t n = 0;
    if (!lg_request_take_count(p, f, v, &n)) return false;
    p->top_logprobs = (int)n;
    return true;
}

static bool take_response_format(lg_parse *p, const lg_field *f, const lg_json *v) {
    return lg_format_take(p, f->name, v, "json_schema");
}

static bool take_modalities(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind == LG_JSON_ARRAY && v->n_child == 1 && lg_json_is(v->child, "text"))
        return true;
    return lg_request_refuse(p->e, f->name, "unsupported_value",
                             "modalities: only [\"text\"] is supported");
}

enum { BOTH = LG_AT_CHAT | LG_AT_TEXT };

static const lg_field fields[] = {
    {"model", "string", BOTH, lg_request_take_model, 0, 0, 0, false, BOTH},
    {"messages", "array", LG_AT_CHAT, lg_request_take_messages, 0, 0, 0, false, LG_AT_CHAT},
    {"prompt", "", LG_AT_TEXT, take_prompt, 0, 0, 0, false, LG_AT_TEXT},
    {"stream", "boolean", BOTH, lg_request_take_bool, LG_REQUEST_REQ(stream), 0, 0, false, 0},
    {"stream_options", "object", BOTH, take_stream_options, 0, 0, 0, false, 0},
    {"max_tokens", "integer", BOTH, lg_request_take_max_tokens, 0, 1, LG_REQUEST_ANY_COUNT,
     false, 0},
    {"max_completion_tokens", "integer", LG_AT_CHAT, take_max_completion_tokens, 0, 1,
     LG_REQUEST_ANY_COUNT, false, 0},
    {"n", "integer", BOTH, take_n, 0, 1, LG_REQUEST_MAX_CHOICE, false, 0},
    /* sampling */
    {"temperature", "number", BOTH, lg_request_take_float, LG_REQUEST_PARAMS(temperature), 0, 2,
     false, 0},
    {"top_p", "number", BOTH, lg_request_take_float, LG_REQUEST_PARAMS(top_p), 0, 1, true, 0},
    {"top_k", "integer", BOTH, lg_request_take_top_k, 0, 0, LG_REQUEST_ANY_COUNT, false, 0},
    {"min_p", "number", BOTH, lg_request_take_float, LG_REQUEST_PARAMS(min_p), 0, 1, false, 0},
    {"presence_penalty", "number", BOTH, lg_request_take_float,
     LG_REQUEST_PARAMS(presence_penalty), -2, 2, false, 0},
    {"frequency_penalty", "number", BOTH, lg_request_take_float,
     LG_REQUEST_PARAMS(frequency_penalty), -2, 2, false, 0},
    {"repetition_penalty", "number", BOTH, lg_request_take_float,
     LG_REQUEST_PARAMS(repetition_penalty), 0, 10, true, 0},
    {"logit_bias", "object", BOTH, lg_request_take_logit_bias, 0, 0, 0, false, 0},
    {"seed", "integer", BOTH, lg_request_take_seed, 0, 0, 0, false, 0},
    {"stop", "", BOTH, lg_request_take_stop, 0, 0, 0, false, 0},
    {"ignore_eos", "boolean", BOTH, lg_request_take_ignore_eos, 0, 0, 0, false, 0},
    {"logprobs", "", BOTH, take_logprobs, 0, 0, LG_MAX_TOP, false, 0},
    {"top_logprobs", "integer", LG_AT_CHAT, take_top_logprobs, 0, 0, LG_MAX_TOP, false, 0},
    /* chat */
    {"tools", "array", LG_AT_CHAT, lg_openai_take_tools, 0, 0, 0, false, 0},
    {"tool_choice", "", LG_AT_CHAT, take_tool_choice, 0, 0, 0, false, 0},
    {"parallel_tool_calls", "boolean", LG_AT_CHAT, lg_request_take_parallel, 0, 0, 0, false, 0},
    {"enable_thinking", "boolean", LG_AT_CHAT, lg_request_take_thinking, 0, 0, 0, false, 0},
    {"thinking_budget", "integer", LG_AT_CHAT, lg_request_take_budget, 0, 1,
     LG_REQUEST_ANY_COUNT, false, 0},
    {"chat_template_kwargs", "object", LG_AT_CHAT, lg_request_take_template_kwargs, 0, 0, 0,
     false, 0},
    {"reasoning_effort", "string", LG_AT_CHAT, lg_request_take_effort, 0, 0, 0, false, 0},
    /* nothing else than what happens anyway */
    {"response_format", "object", LG_AT_CHAT, take_response_format, 0, 0, 0, false, 0},
    {"modalities", "array", LG_AT_CHAT, take_modalities, 0, 0, 0, false, 0},
    {"store", "boolean", LG_AT_CHAT, lg_request_only_false, 0, 0, 0, false, 0},
    {"echo", "boolean", LG_AT_TEXT, lg_request_only_false, 0, 0, 0, false, 0},
    {"best_of", "integer", LG_AT_TEXT, lg_request_only_one, 0, 0, 0, false, 0},
    /* harmless */
    {"user", "string", BOTH, lg_request_pass_string, 0, 0, 0, false, 0},
    {"safety_identifier", "string", LG_AT_CHAT, lg_request_pass_string, 0, 0, 0, false, 0},
    {"cache_salt", "string", BOTH, lg_request_take_cache_salt, 0, 0, 0, false, 0},
    {"prompt_cache_key", "string", LG_AT_CHAT, lg_request_pass_string, 0, 0, 0, false, 0},
    {"metadata", "object", LG_AT_CHAT, lg_request_pass_object, 0, 0, 0, false, 0},
    {"priority", "integer", BOTH, lg_request_take_priority, 0, 0, 0, false, 0},
    {"service_tier", "string", BOTH, lg_request_take_tier, 0, 0, 0, false, 0},
    /* understood and not offered */
    {"suffix", NULL, LG_AT_TEXT, lg_request_never, 0, 0, 0, false, 0},
    {"functions", NULL, LG_AT_CHAT, lg_request_never, 0, 0, 0, false, 0},
    {"function_call", NULL, LG_AT_CHAT, lg_request_never, 0, 0, 0, false, 0},
    {"audio", NULL, LG_AT_CHAT, lg_request_never, 0, 0, 0, false, 0},
    {"prediction", NULL, LG_AT_CHAT, lg_request_never, 0, 0, 0, false, 0},
    {"web_search_options", NULL, LG_AT_CHAT, lg_request_never, 0, 0, 0, false, 0},
};

/* What the fields mean together. */
static bool combine_fields(lg_parse *p) {
    lg_request_parsed *r = p->req;
    if (p->stream_options && !r->stream)
        return lg_request_refuse(p->e, "stream_options", "invalid_value",
                                 "stream_options is only allowed when stream is true.");
    if (p->top_logprobs >= 0 && !p->logprobs)
        return lg_request_refuse(p->e, "top_logprobs", "invalid_value",
                                 "top_logprobs is only allowed when logprobs is true.");
    if (p->logprobs) r->params.n_top = p->top_logprobs < 0 ? 0 : p->top_logprobs;
    r->max_tokens = p->max_completion_tokens ? p->max_completion_tokens : p->max_tokens;
    if (!p->no_tools) r->tools = p->tools;
    return true;
}

/* ---- Messages ---- */

static bool check_parts(lg_parse *p, const lg_json *content, size_t i_msg) {
    char param[LG_REQUEST_PARAM];
    size_t i = 0;
    for (const lg_json *part = content->child; part; part = part->next, i++) {
        lg_request_name(param, "messages[%zu].content[%zu]", i_msg, i);
        if (part->kind != LG_JSON_OBJECT) return lg_request_bad(p, param, part, "an object");
        if (!lg_json_is(lg_json_get(part, "type"), "text"))
            return lg_request_refuse(p->e, param, "unsupported_value",
                                     "%s: only parts of type \"text\" are supported", param);
        for (const lg_json *m = part->child; m; m = m->next)
            if (!lg_request_key_is(m, "type") && !lg_request_key_is(m, "text") &&
                !lg_request_unknown(p, param, m))
                return false;
    }
    return true;
}

/* Members of messages: those that the chat format reads, those that are harmless, and those that must be empty, which
 * clients send back from an answer.  Shapes are checked by the chat format. */
bool lg_oai_check_messages(lg_parse *p) {
    static const char *const known[] = {
        "role",      "content",  "tool_calls", "reasoning_content",
        "reasoning", "thinking", "name",       "tool_call_id"};
    static const char *const empty[] = {"refusal", "annotations", "audio", "function_call"};
    size_t i = 0;
    for (const lg_json *msg = p->messages->child; msg; msg = msg->next, i++) {
        char where[LG_REQUEST_PARAM];
        lg_request_name(where, "messages[%zu]", i);
        if (msg->kind != LG_JSON_OBJECT) return lg_request_bad(p, where, msg, "an object");
        for (const lg_json *m = msg->child; m; m = m->next) {
            if (lg_request_key_among(m, known, LG_COUNT(known)) || m->kind == LG_JSON_NULL)
                continue;
            bool nothing = m->kind == LG_JSON_ARRAY && !m->child;
            if (lg_request_key_among(m, empty, LG_COUNT(empty)) && nothing) continue;
            if (!lg_request_unknown(p, where, m)) return false;
        }
        const lg_json *content = lg_json_get(msg, "content");
        if (content && content->kind == LG_JSON_ARRAY && !check_parts(p, content, i))
            return false;
    }
    return true;
}

/* ---- Prompts ---- */

static bool take_ids(lg_parse *p, const lg_json *list) {
    char param[LG_REQUEST_PARAM];
    size_t i = 0;
    for (const lg_json *v = list->child; v; v = v->next, i++) {
        uint64_t id;
        lg_request_name(param, "prompt[%zu]", i);
        if (!lg_json_u64(v, &id) || id >= p->req->model->n_vocab)
            return lg_request_refuse(p->e, param, "invalid_value",
                                     "%s: expected a token id below %u", param,
                                     p->req->model->n_vocab);
        if (lg_ids_push(&p->req->ids, (uint32_t)id) != LG_OK) return lg_request_no_memory(p->e);
    }
    return true;
}

/* Text is text: no control token is matched in it.  Who wants one gives ids. */
static bool encode_prompt(lg_parse *p) {
    lg_request_parsed *r = p->req;
    const lg_json *v = p->prompt;
    if (v->kind == LG_JSON_ARRAY && v->child &&
        (v->child->kind == LG_JSON_STRING || v->child->kind == LG_JSON_ARRAY)) {
        if (v->n_child != 1)
            return lg_request_refuse(p->e, "prompt", "unsupported_value",
                                     "prompt: one prompt a request is supported, found %u",
                                     v->n_child);
        v = v->child;
    }
    if (v->kind == LG_JSON_STRING) {
        lg_err err = {0};
        lg_status st = lg_tokenizer_encode(r->model->tok, v->text, v->text_len, NULL, 0, false,
                                           &r->ids, &err);
        if (st != LG_OK) return lg_request_refuse_prompt(p, st, &err);
    } else if (v->kind != LG_JSON_ARRAY) {
        return lg_request_bad(p, "prompt", v, "a string or an array of token ids");
    } else if (!take_ids(p, v)) {
        return false;
    }
    return r->ids.n > 0 ||
           lg_request_refuse(p->e, "prompt", "invalid_value", "prompt: it is empty");
}

/* ---- Interface ---- */

static bool finish(lg_parse *p) {
    lg_request_parsed *r = p->req;
    r->chat = p->at == LG_AT_CHAT;
    if (!combine_fields(p)) return false;
    if (r->chat)
        return lg_oai_check_messages(p) && lg_request_render(p, p->messages) &&
               lg_format_finish(p) && lg_request_check_length(p, "messages") &&
               lg_request_name_it(r, "chatcmpl-", p->e);
    if (!encode_prompt(p) || !lg_request_check_length(p, "prompt")) return false;
    uint64_t left = r->model->n_ctx - r->ids.n;
    if (!r->max_tokens)
        r->max_tokens = left < DEFAULT_COMPLETION ? (uint32_t)left : DEFAULT_COMPLETION;
    return lg_request_name_it(r, "cmpl-", p->e);
}

const lg_field *lg_oai_fields(size_t *n) {
    *n = LG_COUNT(fields);
    return fields;
}

bool lg_oai_open(const lg_request_model *model, bool chat, const char *body, size_t len_bytes,
                 lg_request_parsed **req, lg_request_error *e) {
    return lg_request_open(model, chat ? LG_AT_CHAT : LG_AT_TEXT, fields, LG_COUNT(fields),
                           finish, body, len_bytes, req, e);
}
