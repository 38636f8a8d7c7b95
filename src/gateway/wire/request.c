/* request.c - what the request bodies of all wire formats share: see request.h.
 *
 * In:  the bytes of a body and a table of fields.   Out: lg_request_parsed, or the error to answer with.
 * Thread: gateway.  Memory: the request owns its documents, ids and biases.  Test: tests/unit/test_openai.c,
 * fuzz/fuzz_openai.c */
#include "gateway/wire/request.h"

#include "base/num.h"
#include "gateway/notice.h"
#include "gateway/wire/replay.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define BODY_DEPTH 128 /* deepest nesting of a body */
#define BODY_VALUES                                                                            \
    (1u << 18) /* values in a body, beside one for each token of context: 85 bytes each */
#define MAX_BIAS  1024 /* as lg_request says */
#define MAX_FIELD 80   /* of one table */

/* ---- Errors ---- */

/* Fill *e with a 400; always false. */
bool lg_request_refuse(lg_request_error *e, const char *param, const char *code,
                       const char *fmt, ...) {
    va_list ap;
    *e = (lg_request_error){.http = 400, .type = "invalid_request_error", .code = code};
    snprintf(e->param, sizeof e->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return false;
}

void lg_request_name(char param[LG_REQUEST_PARAM], const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(param, LG_REQUEST_PARAM, fmt, ap);
    va_end(ap);
}

bool lg_request_key_is(const lg_json *member, const char *name) {
    return member->key_len == strlen(name) && memcmp(member->key, name, member->key_len) == 0;
}

bool lg_request_key_among(const lg_json *member, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (lg_request_key_is(member, list[i])) return true;
    return false;
}

bool lg_request_no_memory(lg_request_error *e) {
    *e = (lg_request_error){.http = 503, .type = "server_error", .code = "out_of_memory"};
    snprintf(e->msg, sizeof e->msg, "The server has no memory for this request.");
    return false;
}

/* Refuse value v: expected this, found that. */
bool lg_request_bad(lg_parse *p, const char *param, const lg_json *v, const char *expected) {
    bool shown = v->kind == LG_JSON_NUMBER || v->kind == LG_JSON_STRING;
    return lg_request_refuse(p->e, param, "invalid_value", "%s: expected %s, found %s%s%.60s",
                             param, expected, lg_json_kind_name(v->kind), shown ? " " : "",
                             shown ? v->text : "");
}

void lg_request_ignored(const lg_parse *p, const char *name) {
    /* Places in lists are all alike: tools[0].x and tools[1].x are told as tools[].x. */
    char plain[LG_REQUEST_PARAM], *w = plain;
    for (const char *s = name; *s; s++) {
        *w++ = *s;
        if (*s == '[') s += strspn(s + 1, "0123456789");
    }
    *w = 0;
    lg_notice_once(p->req->model->notice, plain, "fields of this name have no effect");
}

bool lg_request_unknown(lg_parse *p, const char *where, const lg_json *v) {
    char param[LG_REQUEST_PARAM];
    lg_request_name(param, "%s.%.40s", where, v->key);
    if (p->req->model->lenient) {
        lg_request_ignored(p, param);
        return true;
    }
    return lg_request_refuse(p->e, param, "unknown_parameter", "Unknown parameter: '%s'.",
                             param);
}

/* ---- One function for each kind of field ---- */

bool lg_request_take_float(lg_parse *p, const lg_field *f, const lg_json *v) {
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
    return lg_request_bad(p, f->name, v, expected);
}

bool lg_request_take_count(lg_parse *p, const lg_field *f, const lg_json *v, uint32_t *out) {
    char expected[64];
    int64_t x;
    if (lg_json_i64(v, &x) && (double)x >= f->low && (double)x <= f->high) {
        *out = (uint32_t)x;
        return true;
    }
    snprintf(expected, sizeof expected, "an integer from %.0f to %.0f", f->low, f->high);
    return lg_request_bad(p, f->name, v, expected);
}

bool lg_request_take_max_tokens(lg_parse *p, const lg_field *f, const lg_json *v) {
    return lg_request_take_count(p, f, v, &p->max_tokens);
}

bool lg_request_take_top_k(lg_parse *p, const lg_field *f, const lg_json *v) {
    int64_t x;
    if (lg_json_i64(v, &x) && x == -1) { /* another way to say off */
        p->req->params.top_k = 0;
        return true;
    }
    return lg_request_take_count(p, f, v, &p->req->params.top_k);
}

bool lg_request_take_seed(lg_parse *p, const lg_field *f, const lg_json *v) {
    int64_t x;
    if (!lg_json_i64(v, &x)) return lg_request_bad(p, f->name, v, "an integer of 64 bits");
    p->req->params.has_seed = true;
    p->req->params.seed = (uint64_t)x;
    return true;
}

bool lg_request_take_bool(lg_parse *p, const lg_field *f, const lg_json *v) {
    bool x;
    if (!lg_json_bool(v, &x)) return lg_request_bad(p, f->name, v, "true or false");
    memcpy((char *)p->req + f->offset, &x, sizeof x);
    return true;
}

bool lg_request_take_ignore_eos(lg_parse *p, const lg_field *f, const lg_json *v) {
    return lg_json_bool(v, &p->req->params.ignore_eos) ||
           lg_request_bad(p, f->name, v, "true or false");
}

bool lg_request_take_model(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_STRING) return lg_request_bad(p, f->name, v, "a string");
    if (lg_json_is(v, p->req->model->name)) return true;
    lg_request_refuse(p->e, f->name, "model_not_found",
                      "The model '%.200s' does not exist; this server has '%.200s'.", v->text,
                      p->req->model->name);
    p->e->http = 404;
    return false;
}

bool lg_request_take_messages(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_ARRAY) return lg_request_bad(p, f->name, v, "an array of messages");
    p->messages = v;
    return true;
}

bool lg_request_good_name(const lg_json *v) {
    if (!v || v->kind != LG_JSON_STRING || v->text_len < 1 || v->text_len > 64) return false;
    for (size_t i = 0; i < v->text_len; i++) {
        char c = v->text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-'))
            return false;
    }
    return true;
}

bool lg_request_is_search(const lg_parse *p, const lg_json *type) {
    static const char *const prefix[] = {"web_search", "web_fetch"};
    if (!type || type->kind != LG_JSON_STRING) return false;
    for (size_t i = 0; i < LG_COUNT(prefix); i++) {
        if (strncmp(type->text, prefix[i], strlen(prefix[i])) != 0) continue;
        lg_notice_once(p->req->model->notice, prefix[i],
                       "this server has no such tool; the model is not offered it");
        return true;
    }
    return false;
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

bool lg_request_take_logit_bias(lg_parse *p, const lg_field *f, const lg_json *v) {
    lg_request_parsed *r = p->req;
    if (v->kind != LG_JSON_OBJECT)
        return lg_request_bad(p, f->name, v, "an object of token ids");
    if (v->n_child > MAX_BIAS)
        return lg_request_refuse(p->e, f->name, "invalid_value",
                                 "logit_bias: at most %d ids, found %u", MAX_BIAS, v->n_child);
    if (v->n_child == 0) return true;
    r->bias = lg_mem_calloc(v->n_child, sizeof *r->bias);
    if (!r->bias) return lg_request_no_memory(p->e);
    for (const lg_json *m = v->child; m; m = m->next) {
        double x;
        uint32_t id;
        char param[LG_REQUEST_PARAM];
        lg_request_name(param, "logit_bias.%.40s", m->key);
        if (!read_id(m->key, m->key_len, r->model->n_vocab, &id))
            return lg_request_refuse(p->e, param, "invalid_value",
                                     "%s: expected a token id below %u as the key", param,
                                     r->model->n_vocab);
        if (!lg_json_f64(m, &x) || x < -100 || x > 100)
            return lg_request_bad(p, param, m, "a number in [-100, 100]");
        r->bias[r->n_bias++] = (lg_bias){id, (float)x};
    }
    return true;
}

static bool take_one_stop(lg_parse *p, const char *param, const lg_json *v) {
    if (v->kind != LG_JSON_STRING || v->text_len == 0 || strlen(v->text) != v->text_len)
        return lg_request_bad(p, param, v, "a string that is not empty and holds no U+0000");
    p->req->stop[p->req->n_stop++] = v->text;
    return true;
}

bool lg_request_take_stop(lg_parse *p, const lg_field *f, const lg_json *v) {
    char param[LG_REQUEST_PARAM];
    if (v->kind != LG_JSON_ARRAY) return take_one_stop(p, f->name, v);
    if (v->n_child > LG_REQUEST_MAX_STOP)
        return lg_request_refuse(p->e, f->name, "invalid_value",
                                 "%s: at most %d strings, found %u", f->name,
                                 LG_REQUEST_MAX_STOP, v->n_child);
    for (const lg_json *s = v->child; s; s = s->next) {
        lg_request_name(param, "%s[%u]", f->name, p->req->n_stop);
        if (!take_one_stop(p, param, s)) return false;
    }
    return true;
}

bool lg_request_take_thinking(lg_parse *p, const lg_field *f, const lg_json *v) {
    bool x;
    if (!lg_json_bool(v, &x)) return lg_request_bad(p, f->name, v, "true or false");
    p->thinking = x;
    return true;
}

bool lg_request_take_template_kwargs(lg_parse *p, const lg_field *f, const lg_json *v) {
    bool x;
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, f->name, v, "an object");
    for (const lg_json *m = v->child; m; m = m->next) {
        bool preserve = lg_request_key_is(m, "preserve_thinking");
        if (!preserve && !lg_request_key_is(m, "enable_thinking")) {
            if (!lg_request_unknown(p, f->name, m)) return false;
            continue;
        }
        if (m->kind == LG_JSON_NULL) continue;
        if (!lg_json_bool(m, &x))
            return lg_request_bad(p,
                                  preserve ? "chat_template_kwargs.preserve_thinking"
                                           : "chat_template_kwargs.enable_thinking",
                                  m, "true or false");
        if (preserve)
            p->preserve_thinking = x;
        else if (p->thinking < 0)
            p->thinking = x;
    }
    return true;
}

bool lg_request_take_effort(lg_parse *p, const lg_field *f, const lg_json *v) {
    static const char *const effort[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    for (size_t i = 0; i < LG_COUNT(effort); i++)
        if (lg_json_is(v, effort[i])) {
            p->effort_given = true;
            p->effort_none = i == 0;
            return true;
        }
    return lg_request_bad(p, f->name, v,
                          "\"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"");
}

bool lg_request_take_budget(lg_parse *p, const lg_field *f, const lg_json *v) {
    return lg_request_take_count(p, f, v, &p->req->think_budget);
}

bool lg_request_take_priority(lg_parse *p, const lg_field *f, const lg_json *v) {
    int64_t x;
    if (!lg_json_i64(v, &x) || x < INT32_MIN || x > INT32_MAX)
        return lg_request_bad(p, f->name, v, "an integer of 32 bits");
    p->req->priority = (int32_t)x;
    p->req->has_priority = true;
    return true;
}

/* Whichever comes first, the plain number beats the name of a tier. */
bool lg_request_take_tier(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (lg_json_is(v, "auto") || lg_json_is(v, "default")) return true;
    bool flex = lg_json_is(v, "flex");
    if (!flex && !lg_json_is(v, "priority"))
        return lg_request_bad(p, f->name, v, "auto, default, flex or priority");
    if (p->req->has_priority) return true;
    p->req->priority = flex ? LG_REQUEST_TIER_FLEX : LG_REQUEST_TIER_PRIORITY;
    p->req->has_priority = true;
    return true;
}

bool lg_request_take_cache_salt(lg_parse *p, const lg_field *f, const lg_json *v) {
    uint8_t hash[16];
    if (v->kind != LG_JSON_STRING || v->text_len == 0)
        return lg_request_bad(p, f->name, v, "a string that is not empty");
    crypto_generichash(hash, sizeof hash, (const uint8_t *)v->text, v->text_len, NULL, 0);
    p->req->salt = lg_num_load64(hash) | 1;
    return true;
}

uint64_t lg_request_salt(uint64_t key, const lg_request_parsed *r) {
    uint8_t hash[16];
    if (!r->salt) return key;
    crypto_generichash(hash, sizeof hash, (const uint8_t *)&r->salt, sizeof r->salt,
                       (const uint8_t *)&(uint64_t[2]){key, 0}, 16);
    return lg_num_load64(hash);
}

bool lg_request_take_parallel(lg_parse *p, const lg_field *f, const lg_json *v) {
    bool x;
    if (!lg_json_bool(v, &x)) return lg_request_bad(p, f->name, v, "true or false");
    p->req->one_call = !x;
    return true;
}

/* Harmless: it changes nothing here. */
bool lg_request_pass_string(lg_parse *p, const lg_field *f, const lg_json *v) {
    return v->kind == LG_JSON_STRING || lg_request_bad(p, f->name, v, "a string");
}

bool lg_request_pass_object(lg_parse *p, const lg_field *f, const lg_json *v) {
    return v->kind == LG_JSON_OBJECT || lg_request_bad(p, f->name, v, "an object");
}

/* Only what is the case anyway may be asked for. */
bool lg_request_only_false(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind == LG_JSON_FALSE) return true;
    return lg_request_refuse(p->e, f->name, "unsupported_value", "%s: only false is supported",
                             f->name);
}

bool lg_request_only_true(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind == LG_JSON_TRUE) return true;
    return lg_request_refuse(p->e, f->name, "unsupported_value", "%s: only true is supported",
                             f->name);
}

bool lg_request_only_one(lg_parse *p, const lg_field *f, const lg_json *v) {
    uint64_t n;
    if (lg_json_u64(v, &n) && n == 1) return true;
    return lg_request_refuse(p->e, f->name, "unsupported_value", "%s: only 1 is supported",
                             f->name);
}

bool lg_request_never(lg_parse *p, const lg_field *f, const lg_json *v) {
    (void)v;
    return lg_request_refuse(p->e, f->name, "unsupported_parameter", "%s is not supported.",
                             f->name);
}

/* Turn an error of the chat format or the tokenizer into an answer. */
bool lg_request_refuse_prompt(lg_parse *p, lg_status st, const lg_err *err) {
    char param[LG_REQUEST_PARAM];
    const char *colon = strchr(err->msg, ':');
    if (st == LG_E_NOMEM) return lg_request_no_memory(p->e);
    lg_request_name(param, "%s",
                    p->at == LG_AT_RESPONSES ? "input"
                    : p->req->chat           ? "messages"
                                             : "prompt");
    if (colon && strncmp(err->msg, "messages[", 9) == 0)
        lg_request_name(param, "%.*s", (int)(colon - err->msg), err->msg);
    return lg_request_refuse(p->e, param, "invalid_value", "%s", err->msg);
}

/* ---- Bodies ---- */

static bool given(const lg_json *body, const char *name) {
    const lg_json *v = lg_json_get(body, name);
    return v && v->kind != LG_JSON_NULL;
}

static bool take_fields(lg_parse *p, const lg_field *table, size_t n_field,
                        const lg_json *body) {
    bool seen[MAX_FIELD] = {false};
    LG_ASSERT(n_field <= MAX_FIELD);
    for (const lg_json *v = body->child; v; v = v->next) {
        size_t i = 0;
        while (i < n_field &&
               !((table[i].where & p->at) && lg_request_key_is(v, table[i].name)))
            i++;
        if (i == n_field) {
            if (!p->req->model->lenient)
                return lg_request_refuse(p->e, v->key, "unknown_parameter",
                                         "Unknown parameter: '%.200s'.", v->key);
            lg_request_ignored(p, v->key);
            continue;
        }
        if (seen[i])
            return lg_request_refuse(p->e, v->key, "duplicate_parameter", "%s is given twice.",
                                     v->key);
        seen[i] = true;
        if (v->kind != LG_JSON_NULL && !table[i].fn(p, &table[i], v)) return false;
    }
    for (size_t i = 0; i < n_field; i++)
        if ((table[i].needed & p->at) && !given(body, table[i].name))
            return lg_request_refuse(p->e, table[i].name, "missing_required_parameter",
                                     "Missing required parameter: '%s'.", table[i].name);
    return true;
}

bool lg_request_name_it(lg_request_parsed *r, const char *prefix, lg_request_error *e) {
    uint64_t x[2];
    if (getrandom(x, sizeof x, 0) != (ssize_t)sizeof x) {
        *e = (lg_request_error){.http = 500, .type = "server_error"};
        snprintf(e->msg, sizeof e->msg, "The server has no random numbers.");
        return false;
    }
    snprintf(r->id, sizeof r->id, "%.12s%016llx%016llx", prefix, (unsigned long long)x[0],
             (unsigned long long)x[1]);
    r->created = (uint64_t)time(NULL);
    return true;
}

static bool fill(lg_parse *p, const lg_field *table, size_t n_field,
                 bool (*finish)(lg_parse *p), const char *body, size_t len_bytes) {
    lg_err err = {0};
    lg_status st =
        lg_json_parse_bounded(body, len_bytes, BODY_DEPTH, BODY_VALUES + p->req->model->n_ctx,
                              "request body", &p->req->doc, &err);
    if (st == LG_E_NOMEM) return lg_request_no_memory(p->e);
    if (st != LG_OK)
        return lg_request_refuse(p->e, "", "invalid_json", "The body is not valid JSON: %s",
                                 err.msg);
    const lg_json *root = lg_json_root(p->req->doc);
    if (root->kind != LG_JSON_OBJECT)
        return lg_request_refuse(p->e, "", "invalid_json",
                                 "The body is not a JSON object but: %s",
                                 lg_json_kind_name(root->kind));
    return take_fields(p, table, n_field, root) && finish(p);
}

bool lg_request_open(const lg_request_model *model, uint32_t at, const lg_field *table,
                     size_t n_field, bool (*finish)(lg_parse *p), const char *body,
                     size_t len_bytes, lg_request_parsed **req, lg_request_error *e) {
    *e = (lg_request_error){0};
    lg_request_parsed *r = *req = lg_mem_alloc(sizeof *r);
    if (!r) return lg_request_no_memory(e);
    r->model = model;
    r->tenant = model->tenant;
    r->params = model->params;
    r->params.n_top = -1;
    r->n_choice = 1;
    lg_parse p = {.req = r, .e = e, .at = at, .thinking = -1, .asked = -1, .top_logprobs = -1};
    if (fill(&p, table, n_field, finish, body, len_bytes)) return true;
    lg_request_close(req);
    return false;
}

void lg_request_close(lg_request_parsed **req) {
    lg_request_parsed *r = *req;
    if (!r) return;
    lg_ids_fini(&r->ids);
    lg_mem_free(r->bias);
    lg_buf_fini(&r->kept);
    lg_buf_fini(&r->grammar);
    lg_json_close(&r->chat_doc);
    lg_json_close(&r->doc);
    LG_FREE(*req);
}

/* ---- Prompts ---- */

/* The prompt's ids with kept turns in their own.  false: that would not fit, or the text is not for the model. */
static bool replay(lg_parse *p, const lg_chat *chat, lg_status *st, lg_err *err) {
    lg_request_parsed *r = p->req;
    const lg_request_model *m = r->model;
    uint32_t wants =
        p->max_tokens > p->max_completion_tokens ? p->max_tokens : p->max_completion_tokens;
    if (!m->replay || p->at == LG_AT_TOKENIZE) return false;
    *st = lg_replay_encode(m->replay, lg_request_salt(m->tenant, r), chat, m->tok, &r->ids,
                           r->replay_key, err);
    if (*st != LG_OK) return true;
    r->replayable = r->ids.n + (wants ? wants : 1) <= m->n_ctx;
    if (!r->replayable) r->ids.n = 0; /* reasoning that the client took out may be too much */
    return r->replayable;
}

bool lg_request_render(lg_parse *p, const lg_json *messages) {
    lg_request_parsed *r = p->req;
    lg_chat chat = {0};
    lg_err err = {0};
    bool no_think = p->thinking >= 0 ? p->thinking == 0 : p->effort_none;
    lg_chat_opt opt = {.messages = messages,
                       .tools = r->tools,
                       .add_generation_prompt = true,
                       .no_think = no_think,
                       .parse_arguments = true,
                       .developer_is_system = true,
                       .relaxed = true,
                       .preserve_thinking = p->preserve_thinking};
    lg_status st = lg_chat_render(&opt, &chat, &err);
    if (st == LG_OK && !replay(p, &chat, &st, &err))
        st = lg_tokenizer_encode(r->model->tok, lg_buf_str(&chat.text), chat.text.len_bytes,
                                 chat.span, chat.n_span, true, &r->ids, &err);
    r->opened_think = chat.opened_think;
    lg_chat_fini(&chat);
    return st == LG_OK || lg_request_refuse_prompt(p, st, &err);
}

bool lg_request_render_text(lg_parse *p, lg_buf *text) {
    lg_request_parsed *r = p->req;
    lg_err err = {0};
    if (text->failed) return lg_request_no_memory(p->e);
    lg_status st = lg_json_parse(lg_buf_str(text), text->len_bytes, 2 * BODY_DEPTH, "messages",
                                 &r->chat_doc, &err);
    if (st != LG_OK) return lg_request_refuse_prompt(p, st, &err);
    const lg_json *root = lg_json_root(r->chat_doc), *tools = lg_json_get(root, "tools");
    if (tools && tools->child && !p->no_tools) r->tools = tools;
    return lg_request_render(p, lg_json_get(root, "messages"));
}

bool lg_request_check_length(lg_parse *p, const char *param) {
    const lg_request_parsed *r = p->req;
    uint64_t n_ctx = r->model->n_ctx, n = r->ids.n, more = r->max_tokens ? r->max_tokens : 1;
    if (n + more <= n_ctx) return true;
    return lg_request_refuse(p->e, param, "context_length_exceeded",
                             "This model's maximum context length is %llu tokens. However, you "
                             "requested %llu tokens (%llu in the prompt, %llu for the answer).",
                             (unsigned long long)n_ctx, (unsigned long long)(n + more),
                             (unsigned long long)n, (unsigned long long)more);
}
