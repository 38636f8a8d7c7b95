/* openai_req.c - request bodies of the OpenAI wire format into what the engine needs: see openai.h.
 *
 * In:  the bytes of a body.   Out: lg_oai_req, or the error to answer with.
 * Policy: the table `fields` below is all there is.  A field that is not in it is refused by name, so that nobody believes
 *         that something had an effect which had none; null means absent; a field given twice is refused.
 * Thread: gateway.  Memory: the request owns its document, ids and biases.  Test: tests/unit/test_openai.c,
 * fuzz/fuzz_openai.c */
#include "gateway/openai.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define PARAM_SIZE         sizeof((lg_oai_error *)0)->param
#define BODY_DEPTH         128  /* deepest nesting of a body */
#define MAX_BIAS           1024 /* as lg_request says */
#define DEFAULT_COMPLETION 16   /* max_tokens of /v1/completions when not given */

enum { CHAT = 1, TEXT = 2, BOTH = 3 };

typedef struct parse parse;
typedef struct field field;
typedef bool field_fn(parse *p, const field *f, const lg_json *v);

struct field {
    const char *name;
    int where; /* CHAT, TEXT, BOTH */
    field_fn *fn;
    size_t offset; /* of a float in lg_params, or of a bool in lg_oai_req */
    double low, high;
    bool open; /* low itself is not allowed */
};

/* A body on its way. */
struct parse {
    lg_oai_req *req;
    lg_oai_error *e;
    const lg_json *messages, *tools, *prompt;
    int thinking; /* enable_thinking: -1 not given, 0, 1 */
    bool effort_none, no_tools, logprobs, stream_options;
    int top_logprobs; /* -1 not given */
    uint32_t max_tokens, max_completion_tokens;
};

/* ---- Errors ---- */

static bool refuse(lg_oai_error *e, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Fill *e with a 400; always false. */
static bool refuse(lg_oai_error *e, const char *param, const char *code, const char *fmt, ...) {
    va_list ap;
    *e = (lg_oai_error){.http = 400, .type = "invalid_request_error", .code = code};
    snprintf(e->param, sizeof e->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return false;
}

/* Name a field for a message, cut to what fits. */
static void name_param(char param[PARAM_SIZE], const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void name_param(char param[PARAM_SIZE], const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(param, PARAM_SIZE, fmt, ap);
    va_end(ap);
}

static bool key_is(const lg_json *member, const char *name) {
    return member->key_len == strlen(name) && memcmp(member->key, name, member->key_len) == 0;
}

static bool no_memory(lg_oai_error *e) {
    *e = (lg_oai_error){.http = 503, .type = "server_error", .code = "out_of_memory"};
    snprintf(e->msg, sizeof e->msg, "The server has no memory for this request.");
    return false;
}

/* Refuse value v: expected this, found that. */
static bool bad(parse *p, const char *param, const lg_json *v, const char *expected) {
    bool shown = v->kind == LG_JSON_NUMBER || v->kind == LG_JSON_STRING;
    return refuse(p->e, param, "invalid_value", "%s: expected %s, found %s%s%.60s", param,
                  expected, lg_json_kind_name(v->kind), shown ? " " : "", shown ? v->text : "");
}

static bool unknown_member(parse *p, const char *where, const lg_json *v) {
    char param[PARAM_SIZE];
    name_param(param, "%s.%.40s", where, v->key);
    return refuse(p->e, param, "unknown_parameter", "Unknown parameter: '%s'.", param);
}

/* ---- One function per kind of field ---- */

static bool take_float(parse *p, const field *f, const lg_json *v) {
    char expected[64];
    double x;
    if (lg_json_f64(v, &x) && x <= f->high) {
        float y = (float)x;
        if ((double)y > f->low || (!f->open && x >= f->low)) {
            memcpy((char *)&p->req->params + f->offset, &y, sizeof y);
            return true;
        }
    }
    snprintf(expected, sizeof expected, "a number in %c%g, %g]", f->open ? '(' : '[', f->low,
             f->high);
    return bad(p, f->name, v, expected);
}

static bool take_count(parse *p, const field *f, const lg_json *v, uint32_t *out) {
    char expected[64];
    int64_t x;
    if (lg_json_i64(v, &x) && (double)x >= f->low && (double)x <= f->high) {
        *out = (uint32_t)x;
        return true;
    }
    snprintf(expected, sizeof expected, "an integer from %.0f to %.0f", f->low, f->high);
    return bad(p, f->name, v, expected);
}

static bool take_max_tokens(parse *p, const field *f, const lg_json *v) {
    return take_count(p, f, v, &p->max_tokens);
}

static bool take_max_completion_tokens(parse *p, const field *f, const lg_json *v) {
    return take_count(p, f, v, &p->max_completion_tokens);
}

static bool take_n(parse *p, const field *f, const lg_json *v) {
    return take_count(p, f, v, &p->req->n_choice);
}

static bool take_top_k(parse *p, const field *f, const lg_json *v) {
    int64_t x;
    if (lg_json_i64(v, &x) && x == -1) { /* another way to say off */
        p->req->params.top_k = 0;
        return true;
    }
    return take_count(p, f, v, &p->req->params.top_k);
}

static bool take_seed(parse *p, const field *f, const lg_json *v) {
    int64_t x;
    if (!lg_json_i64(v, &x)) return bad(p, f->name, v, "an integer of 64 bits");
    p->req->params.has_seed = true;
    p->req->params.seed = (uint64_t)x;
    return true;
}

static bool take_bool(parse *p, const field *f, const lg_json *v) {
    bool x;
    if (!lg_json_bool(v, &x)) return bad(p, f->name, v, "true or false");
    memcpy((char *)p->req + f->offset, &x, sizeof x);
    return true;
}

static bool take_ignore_eos(parse *p, const field *f, const lg_json *v) {
    return lg_json_bool(v, &p->req->params.ignore_eos) || bad(p, f->name, v, "true or false");
}

static bool take_model(parse *p, const field *f, const lg_json *v) {
    if (v->kind != LG_JSON_STRING) return bad(p, f->name, v, "a string");
    if (lg_json_is(v, p->req->model->name)) return true;
    refuse(p->e, f->name, "model_not_found",
           "The model '%.200s' does not exist; this server has '%.200s'.", v->text,
           p->req->model->name);
    p->e->http = 404;
    return false;
}

static bool take_messages(parse *p, const field *f, const lg_json *v) {
    if (v->kind != LG_JSON_ARRAY) return bad(p, f->name, v, "an array of messages");
    p->messages = v;
    return true;
}

static bool take_prompt(parse *p, const field *f, const lg_json *v) {
    (void)f;
    p->prompt = v;
    return true;
}

static bool good_name(const lg_json *v) {
    if (!v || v->kind != LG_JSON_STRING || v->text_len < 1 || v->text_len > 64) return false;
    for (size_t i = 0; i < v->text_len; i++) {
        char c = v->text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-'))
            return false;
    }
    return true;
}

static bool take_tools(parse *p, const field *f, const lg_json *v) {
    char param[PARAM_SIZE];
    size_t i = 0;
    if (v->kind != LG_JSON_ARRAY) return bad(p, f->name, v, "an array of tools");
    for (const lg_json *t = v->child; t; t = t->next, i++) {
        const lg_json *type = lg_json_get(t, "type"), *fn = lg_json_get(t, "function");
        const lg_json *name = lg_json_get(fn, "name"), *schema = lg_json_get(fn, "parameters");
        name_param(param, "tools[%zu]", i);
        if (t->kind != LG_JSON_OBJECT) return bad(p, param, t, "an object");
        name_param(param, "tools[%zu].type", i);
        if (!lg_json_is(type, "function"))
            return refuse(p->e, param, "invalid_value", "%s: expected \"function\"", param);
        name_param(param, "tools[%zu].function.name", i);
        if (!good_name(name))
            return refuse(p->e, param, "invalid_value",
                          "%s: expected 1 to 64 letters, digits, _ or -", param);
        name_param(param, "tools[%zu].function.parameters", i);
        if (schema && schema->kind != LG_JSON_OBJECT && schema->kind != LG_JSON_NULL)
            return bad(p, param, schema, "a JSON schema object");
    }
    if (v->child) p->tools = v;
    return true;
}

static bool take_tool_choice(parse *p, const field *f, const lg_json *v) {
    if (lg_json_is(v, "auto")) return true;
    p->no_tools = lg_json_is(v, "none");
    if (p->no_tools) return true;
    if (lg_json_is(v, "required") || v->kind == LG_JSON_OBJECT)
        return refuse(p->e, f->name, "unsupported_value",
                      "tool_choice: forcing a call is not supported; use \"auto\" or \"none\"");
    return bad(p, f->name, v, "\"auto\" or \"none\"");
}

static bool take_stream_options(parse *p, const field *f, const lg_json *v) {
    if (v->kind != LG_JSON_OBJECT) return bad(p, f->name, v, "an object");
    p->stream_options = true;
    for (const lg_json *m = v->child; m; m = m->next) {
        bool ignored, *out = &p->req->include_usage;
        if (key_is(m, "include_obfuscation"))
            out = &ignored; /* only whether bytes of padding are wanted */
        else if (!key_is(m, "include_usage"))
            return unknown_member(p, f->name, m);
        if (m->kind != LG_JSON_NULL && !lg_json_bool(m, out))
            return bad(p, "stream_options.include_usage", m, "true or false");
    }
    return true;
}

static bool read_id(const char *s, size_t len, uint32_t limit, uint32_t *id) {
    uint64_t x = 0;
    if (len < 1 || len > 10) return false;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        x = 10 * x + (uint64_t)(s[i] - '0');
    }
    *id = (uint32_t)x;
    return x < limit;
}

static bool take_logit_bias(parse *p, const field *f, const lg_json *v) {
    lg_oai_req *r = p->req;
    if (v->kind != LG_JSON_OBJECT) return bad(p, f->name, v, "an object of token ids");
    if (v->n_child > MAX_BIAS)
        return refuse(p->e, f->name, "invalid_value", "logit_bias: at most %d ids, found %u",
                      MAX_BIAS, v->n_child);
    if (v->n_child == 0) return true;
    r->bias = lg_mem_calloc(v->n_child, sizeof *r->bias);
    if (!r->bias) return no_memory(p->e);
    for (const lg_json *m = v->child; m; m = m->next) {
        double x;
        uint32_t id;
        char param[PARAM_SIZE];
        name_param(param, "logit_bias.%.40s", m->key);
        if (!read_id(m->key, m->key_len, r->model->n_vocab, &id))
            return refuse(p->e, param, "invalid_value",
                          "%s: expected a token id below %u as the key", param,
                          r->model->n_vocab);
        if (!lg_json_f64(m, &x) || x < -100 || x > 100)
            return bad(p, param, m, "a number in [-100, 100]");
        r->bias[r->n_bias++] = (lg_bias){id, (float)x};
    }
    return true;
}

static bool take_one_stop(parse *p, const char *param, const lg_json *v) {
    if (v->kind != LG_JSON_STRING || v->text_len == 0 || strlen(v->text) != v->text_len)
        return bad(p, param, v, "a string that is not empty and holds no U+0000");
    p->req->stop[p->req->n_stop++] = v->text;
    return true;
}

static bool take_stop(parse *p, const field *f, const lg_json *v) {
    char param[PARAM_SIZE];
    if (v->kind != LG_JSON_ARRAY) return take_one_stop(p, f->name, v);
    if (v->n_child > LG_OAI_MAX_STOP)
        return refuse(p->e, f->name, "invalid_value", "stop: at most %d strings, found %u",
                      LG_OAI_MAX_STOP, v->n_child);
    for (const lg_json *s = v->child; s; s = s->next) {
        name_param(param, "stop[%u]", p->req->n_stop);
        if (!take_one_stop(p, param, s)) return false;
    }
    return true;
}

static bool take_logprobs(parse *p, const field *f, const lg_json *v) {
    if (!p->req->chat) {
        uint32_t n = 0;
        if (!take_count(p, f, v, &n)) return false;
        p->req->params.n_top = (int)n;
        return true;
    }
    return lg_json_bool(v, &p->logprobs) || bad(p, f->name, v, "true or false");
}

static bool take_top_logprobs(parse *p, const field *f, const lg_json *v) {
    uint32_t n = 0;
    if (!take_count(p, f, v, &n)) return false;
    p->top_logprobs = (int)n;
    return true;
}

static bool take_thinking(parse *p, const field *f, const lg_json *v) {
    bool x;
    if (!lg_json_bool(v, &x)) return bad(p, f->name, v, "true or false");
    p->thinking = x;
    return true;
}

static bool take_template_kwargs(parse *p, const field *f, const lg_json *v) {
    bool x;
    if (v->kind != LG_JSON_OBJECT) return bad(p, f->name, v, "an object");
    for (const lg_json *m = v->child; m; m = m->next) {
        if (!key_is(m, "enable_thinking")) return unknown_member(p, f->name, m);
        if (m->kind == LG_JSON_NULL) continue;
        if (!lg_json_bool(m, &x))
            return bad(p, "chat_template_kwargs.enable_thinking", m, "true or false");
        if (p->thinking < 0) p->thinking = x;
    }
    return true;
}

static bool take_effort(parse *p, const field *f, const lg_json *v) {
    static const char *const effort[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    for (size_t i = 0; i < LG_COUNT(effort); i++)
        if (lg_json_is(v, effort[i])) {
            p->effort_none = i == 0;
            return true;
        }
    return bad(p, f->name, v,
               "\"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"");
}

static bool take_response_format(parse *p, const field *f, const lg_json *v) {
    const lg_json *type = lg_json_get(v, "type");
    if (v->kind != LG_JSON_OBJECT) return bad(p, f->name, v, "an object");
    if (!lg_json_is(type, "text"))
        return refuse(p->e, "response_format.type", "unsupported_value",
                      "response_format.type: only \"text\" is supported");
    for (const lg_json *m = v->child; m; m = m->next)
        if (!key_is(m, "type")) return unknown_member(p, f->name, m);
    return true;
}

static bool take_modalities(parse *p, const field *f, const lg_json *v) {
    if (v->kind == LG_JSON_ARRAY && v->n_child == 1 && lg_json_is(v->child, "text"))
        return true;
    return refuse(p->e, f->name, "unsupported_value",
                  "modalities: only [\"text\"] is supported");
}

static bool take_service_tier(parse *p, const field *f, const lg_json *v) {
    return lg_json_is(v, "auto") || lg_json_is(v, "default") ||
           bad(p, f->name, v, "\"auto\" or \"default\"");
}

/* Harmless: it changes nothing here. */
static bool pass_string(parse *p, const field *f, const lg_json *v) {
    return v->kind == LG_JSON_STRING || bad(p, f->name, v, "a string");
}

static bool pass_object(parse *p, const field *f, const lg_json *v) {
    return v->kind == LG_JSON_OBJECT || bad(p, f->name, v, "an object");
}

/* Only what is the case anyway may be asked for. */
static bool only_false(parse *p, const field *f, const lg_json *v) {
    if (v->kind == LG_JSON_FALSE) return true;
    return refuse(p->e, f->name, "unsupported_value", "%s: only false is supported", f->name);
}

static bool only_true(parse *p, const field *f, const lg_json *v) {
    if (v->kind == LG_JSON_TRUE) return true;
    return refuse(p->e, f->name, "unsupported_value", "%s: only true is supported", f->name);
}

static bool only_one(parse *p, const field *f, const lg_json *v) {
    uint64_t n;
    if (lg_json_u64(v, &n) && n == 1) return true;
    return refuse(p->e, f->name, "unsupported_value", "%s: only 1 is supported", f->name);
}

static bool never(parse *p, const field *f, const lg_json *v) {
    (void)v;
    return refuse(p->e, f->name, "unsupported_parameter", "%s is not supported.", f->name);
}

#define PARAM(member) offsetof(lg_params, member)
#define REQ(member)   offsetof(lg_oai_req, member)
#define ANY_COUNT     2147483647.0

static const field fields[] = {
    {"model", BOTH, take_model, 0, 0, 0, false},
    {"messages", CHAT, take_messages, 0, 0, 0, false},
    {"prompt", TEXT, take_prompt, 0, 0, 0, false},
    {"stream", BOTH, take_bool, REQ(stream), 0, 0, false},
    {"stream_options", BOTH, take_stream_options, 0, 0, 0, false},
    {"max_tokens", BOTH, take_max_tokens, 0, 1, ANY_COUNT, false},
    {"max_completion_tokens", CHAT, take_max_completion_tokens, 0, 1, ANY_COUNT, false},
    {"n", BOTH, take_n, 0, 1, LG_OAI_MAX_CHOICE, false},
    /* sampling */
    {"temperature", BOTH, take_float, PARAM(temperature), 0, 2, false},
    {"top_p", BOTH, take_float, PARAM(top_p), 0, 1, true},
    {"top_k", BOTH, take_top_k, 0, 0, ANY_COUNT, false},
    {"min_p", BOTH, take_float, PARAM(min_p), 0, 1, false},
    {"presence_penalty", BOTH, take_float, PARAM(presence_penalty), -2, 2, false},
    {"frequency_penalty", BOTH, take_float, PARAM(frequency_penalty), -2, 2, false},
    {"repetition_penalty", BOTH, take_float, PARAM(repetition_penalty), 0, 10, true},
    {"logit_bias", BOTH, take_logit_bias, 0, 0, 0, false},
    {"seed", BOTH, take_seed, 0, 0, 0, false},
    {"stop", BOTH, take_stop, 0, 0, 0, false},
    {"ignore_eos", BOTH, take_ignore_eos, 0, 0, 0, false},
    {"logprobs", BOTH, take_logprobs, 0, 0, LG_MAX_TOP, false},
    {"top_logprobs", CHAT, take_top_logprobs, 0, 0, LG_MAX_TOP, false},
    /* chat */
    {"tools", CHAT, take_tools, 0, 0, 0, false},
    {"tool_choice", CHAT, take_tool_choice, 0, 0, 0, false},
    {"enable_thinking", CHAT, take_thinking, 0, 0, 0, false},
    {"chat_template_kwargs", CHAT, take_template_kwargs, 0, 0, 0, false},
    {"reasoning_effort", CHAT, take_effort, 0, 0, 0, false},
    /* nothing else than what happens anyway */
    {"response_format", CHAT, take_response_format, 0, 0, 0, false},
    {"modalities", CHAT, take_modalities, 0, 0, 0, false},
    {"parallel_tool_calls", CHAT, only_true, 0, 0, 0, false},
    {"store", CHAT, only_false, 0, 0, 0, false},
    {"echo", TEXT, only_false, 0, 0, 0, false},
    {"best_of", TEXT, only_one, 0, 0, 0, false},
    /* harmless */
    {"user", BOTH, pass_string, 0, 0, 0, false},
    {"safety_identifier", CHAT, pass_string, 0, 0, 0, false},
    {"prompt_cache_key", CHAT, pass_string, 0, 0, 0, false},
    {"metadata", CHAT, pass_object, 0, 0, 0, false},
    {"service_tier", CHAT, take_service_tier, 0, 0, 0, false},
    /* understood and not offered */
    {"suffix", TEXT, never, 0, 0, 0, false},
    {"functions", CHAT, never, 0, 0, 0, false},
    {"function_call", CHAT, never, 0, 0, 0, false},
    {"audio", CHAT, never, 0, 0, 0, false},
    {"prediction", CHAT, never, 0, 0, 0, false},
    {"web_search_options", CHAT, never, 0, 0, 0, false},
};

static bool take_fields(parse *p, const lg_json *body) {
    bool seen[LG_COUNT(fields)] = {false};
    int here = p->req->chat ? CHAT : TEXT;
    for (const lg_json *v = body->child; v; v = v->next) {
        size_t i = 0;
        while (i < LG_COUNT(fields) && !((fields[i].where & here) && key_is(v, fields[i].name)))
            i++;
        if (i == LG_COUNT(fields))
            return refuse(p->e, v->key, "unknown_parameter", "Unknown parameter: '%.200s'.",
                          v->key);
        if (seen[i])
            return refuse(p->e, v->key, "duplicate_parameter", "%s is given twice.", v->key);
        seen[i] = true;
        if (v->kind != LG_JSON_NULL && !fields[i].fn(p, &fields[i], v)) return false;
    }
    const lg_json *model = lg_json_get(body, "model");
    const char *missing = NULL;
    if (!(p->req->chat ? p->messages : p->prompt))
        missing = p->req->chat ? "messages" : "prompt";
    if (!model || model->kind == LG_JSON_NULL) missing = "model";
    if (missing)
        return refuse(p->e, missing, "missing_required_parameter",
                      "Missing required parameter: '%s'.", missing);
    return true;
}

/* What the fields mean together. */
static bool combine_fields(parse *p) {
    lg_oai_req *r = p->req;
    if (p->stream_options && !r->stream)
        return refuse(p->e, "stream_options", "invalid_value",
                      "stream_options is only allowed when stream is true.");
    if (p->top_logprobs >= 0 && !p->logprobs)
        return refuse(p->e, "top_logprobs", "invalid_value",
                      "top_logprobs is only allowed when logprobs is true.");
    if (p->logprobs) r->params.n_top = p->top_logprobs < 0 ? 0 : p->top_logprobs;
    r->max_tokens = p->max_completion_tokens ? p->max_completion_tokens : p->max_tokens;
    if (!p->no_tools) r->tools = p->tools;
    return true;
}

/* ---- Messages ---- */

static bool among(const lg_json *member, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (key_is(member, list[i])) return true;
    return false;
}

static bool check_parts(parse *p, const lg_json *content, size_t i_msg) {
    char param[PARAM_SIZE];
    size_t i = 0;
    for (const lg_json *part = content->child; part; part = part->next, i++) {
        name_param(param, "messages[%zu].content[%zu]", i_msg, i);
        if (part->kind != LG_JSON_OBJECT) return bad(p, param, part, "an object");
        if (!lg_json_is(lg_json_get(part, "type"), "text"))
            return refuse(p->e, param, "unsupported_value",
                          "%s: only parts of type \"text\" are supported", param);
        for (const lg_json *m = part->child; m; m = m->next)
            if (!key_is(m, "type") && !key_is(m, "text")) return unknown_member(p, param, m);
    }
    return true;
}

/* Members of messages: those that the chat format reads, those that are harmless, and those that must be empty, which
 * clients send back from an answer.  Shapes are checked by the chat format. */
static bool check_messages(parse *p) {
    static const char *const known[] = {
        "role",      "content",  "tool_calls", "reasoning_content",
        "reasoning", "thinking", "name",       "tool_call_id"};
    static const char *const empty[] = {"refusal", "annotations", "audio", "function_call"};
    size_t i = 0;
    for (const lg_json *msg = p->messages->child; msg; msg = msg->next, i++) {
        char where[PARAM_SIZE];
        name_param(where, "messages[%zu]", i);
        if (msg->kind != LG_JSON_OBJECT) return bad(p, where, msg, "an object");
        for (const lg_json *m = msg->child; m; m = m->next) {
            if (among(m, known, LG_COUNT(known)) || m->kind == LG_JSON_NULL) continue;
            bool nothing = m->kind == LG_JSON_ARRAY && !m->child;
            if (among(m, empty, LG_COUNT(empty)) && nothing) continue;
            return unknown_member(p, where, m);
        }
        const lg_json *content = lg_json_get(msg, "content");
        if (content && content->kind == LG_JSON_ARRAY && !check_parts(p, content, i))
            return false;
    }
    return true;
}

/* Turn an error of the chat format or the tokenizer into an answer. */
static bool refuse_prompt(parse *p, lg_status st, const lg_err *err) {
    char param[PARAM_SIZE];
    const char *colon = strchr(err->msg, ':');
    if (st == LG_E_NOMEM) return no_memory(p->e);
    name_param(param, "%s", p->req->chat ? "messages" : "prompt");
    if (colon && strncmp(err->msg, "messages[", 9) == 0)
        name_param(param, "%.*s", (int)(colon - err->msg), err->msg);
    return refuse(p->e, param, "invalid_value", "%s", err->msg);
}

static bool render_chat(parse *p) {
    lg_oai_req *r = p->req;
    lg_chat chat = {0};
    lg_err err = {0};
    bool no_think = p->thinking >= 0 ? p->thinking == 0 : p->effort_none;
    if (!check_messages(p)) return false;
    lg_chat_opt opt = {.messages = p->messages,
                       .tools = r->tools,
                       .add_generation_prompt = true,
                       .no_think = no_think,
                       .parse_arguments = true,
                       .developer_is_system = true};
    lg_status st = lg_chat_encode(&opt, r->model->tok, &chat, &r->ids, &err);
    r->opened_think = chat.opened_think;
    lg_chat_fini(&chat);
    return st == LG_OK || refuse_prompt(p, st, &err);
}

/* ---- Prompts ---- */

static bool take_ids(parse *p, const lg_json *list) {
    char param[PARAM_SIZE];
    size_t i = 0;
    for (const lg_json *v = list->child; v; v = v->next, i++) {
        uint64_t id;
        name_param(param, "prompt[%zu]", i);
        if (!lg_json_u64(v, &id) || id >= p->req->model->n_vocab)
            return refuse(p->e, param, "invalid_value", "%s: expected a token id below %u",
                          param, p->req->model->n_vocab);
        if (lg_ids_push(&p->req->ids, (uint32_t)id) != LG_OK) return no_memory(p->e);
    }
    return true;
}

/* Text is text: no control token is matched in it.  Who wants one gives ids. */
static bool encode_prompt(parse *p) {
    lg_oai_req *r = p->req;
    const lg_json *v = p->prompt;
    if (v->kind == LG_JSON_ARRAY && v->child &&
        (v->child->kind == LG_JSON_STRING || v->child->kind == LG_JSON_ARRAY)) {
        if (v->n_child != 1)
            return refuse(p->e, "prompt", "unsupported_value",
                          "prompt: one prompt a request is supported, found %u", v->n_child);
        v = v->child;
    }
    if (v->kind == LG_JSON_STRING) {
        lg_err err = {0};
        lg_status st = lg_tokenizer_encode(r->model->tok, v->text, v->text_len, NULL, 0, false,
                                           &r->ids, &err);
        if (st != LG_OK) return refuse_prompt(p, st, &err);
    } else if (v->kind != LG_JSON_ARRAY) {
        return bad(p, "prompt", v, "a string or an array of token ids");
    } else if (!take_ids(p, v)) {
        return false;
    }
    return r->ids.n > 0 || refuse(p->e, "prompt", "invalid_value", "prompt: it is empty");
}

static bool check_length(parse *p) {
    lg_oai_req *r = p->req;
    uint64_t n_ctx = r->model->n_ctx, n = r->ids.n, more = r->max_tokens ? r->max_tokens : 1;
    if (n + more > n_ctx) {
        const char *param = r->chat ? "messages" : "prompt";
        return refuse(p->e, param, "context_length_exceeded",
                      "This model's maximum context length is %llu tokens. However, you "
                      "requested %llu tokens (%llu in the prompt, %llu for the answer).",
                      (unsigned long long)n_ctx, (unsigned long long)(n + more),
                      (unsigned long long)n, (unsigned long long)more);
    }
    if (!r->chat && !r->max_tokens)
        r->max_tokens =
            n_ctx - n < DEFAULT_COMPLETION ? (uint32_t)(n_ctx - n) : DEFAULT_COMPLETION;
    return true;
}

/* ---- Interface ---- */

static bool name_request(lg_oai_req *r, lg_oai_error *e) {
    uint64_t x[2];
    if (getrandom(x, sizeof x, 0) != (ssize_t)sizeof x) {
        *e = (lg_oai_error){.http = 500, .type = "server_error"};
        snprintf(e->msg, sizeof e->msg, "The server has no random numbers.");
        return false;
    }
    snprintf(r->id, sizeof r->id, "%s-%016llx%016llx", r->chat ? "chatcmpl" : "cmpl",
             (unsigned long long)x[0], (unsigned long long)x[1]);
    r->created = (uint64_t)time(NULL);
    return true;
}

static bool fill(lg_oai_req *r, const char *body, size_t len_bytes, lg_oai_error *e) {
    parse p = {.req = r, .e = e, .thinking = -1, .top_logprobs = -1};
    lg_err err = {0};
    lg_status st = lg_json_parse(body, len_bytes, BODY_DEPTH, "request body", &r->doc, &err);
    if (st == LG_E_NOMEM) return no_memory(e);
    if (st != LG_OK)
        return refuse(e, "", "invalid_json", "The body is not valid JSON: %s", err.msg);
    const lg_json *root = lg_json_root(r->doc);
    if (root->kind != LG_JSON_OBJECT)
        return refuse(e, "", "invalid_json", "The body is not a JSON object but: %s",
                      lg_json_kind_name(root->kind));
    return take_fields(&p, root) && combine_fields(&p) &&
           (r->chat ? render_chat(&p) : encode_prompt(&p)) && check_length(&p) &&
           name_request(r, e);
}

bool lg_oai_open(const lg_oai_model *model, bool chat, const char *body, size_t len_bytes,
                 lg_oai_req **req, lg_oai_error *e) {
    *e = (lg_oai_error){0};
    *req = lg_mem_alloc(sizeof **req);
    if (!*req) return no_memory(e);
    (*req)->model = model;
    (*req)->chat = chat;
    (*req)->params = model->params;
    (*req)->params.n_top = -1;
    (*req)->n_choice = 1;
    if (fill(*req, body, len_bytes, e)) return true;
    lg_oai_close(req);
    return false;
}

void lg_oai_close(lg_oai_req **req) {
    lg_oai_req *r = *req;
    if (!r) return;
    lg_ids_fini(&r->ids);
    lg_mem_free(r->bias);
    lg_json_close(&r->doc);
    LG_FREE(*req);
}
