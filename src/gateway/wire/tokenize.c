/* tokenize.c - bodies answered by the tokenizer alone: see tokenize.h.
 *
 * In:  the bytes of a body.   Out: the answer's JSON, or the error.
 * Thread: gateway.  Memory: nothing outlives the call.  Test: tests/unit/test_tokenize.c, fuzz/fuzz_protocols.c */
#include "gateway/wire/tokenize.h"

#include "gateway/wire/openai.h"

#include <stdio.h>
#include <string.h>

static bool take_prompt(lg_parse *p, const lg_field *f, const lg_json *v) {
    if (v->kind != LG_JSON_STRING) return lg_request_bad(p, f->name, v, "a string");
    if (p->text)
        return lg_request_refuse(p->e, f->name, "invalid_value",
                                 "prompt and text are the same; give one of them");
    p->text = v;
    return true;
}

static bool take_tokens(lg_parse *p, const lg_field *f, const lg_json *v) {
    char param[LG_REQUEST_PARAM];
    size_t i = 0;
    if (v->kind != LG_JSON_ARRAY) return lg_request_bad(p, f->name, v, "an array of token ids");
    for (const lg_json *t = v->child; t; t = t->next, i++) {
        uint64_t id;
        lg_request_name(param, "tokens[%zu]", i);
        if (!lg_json_u64(t, &id) || id >= p->req->model->n_vocab)
            return lg_request_refuse(p->e, param, "invalid_value",
                                     "%s: expected a token id below %u", param,
                                     p->req->model->n_vocab);
        if (lg_ids_push(&p->req->ids, (uint32_t)id) != LG_OK) return lg_request_no_memory(p->e);
    }
    return true;
}

/* This tokenizer adds no token to a text, whatever is asked for. */
static bool pass_bool(lg_parse *p, const lg_field *f, const lg_json *v) {
    bool x;
    return lg_json_bool(v, &x) || lg_request_bad(p, f->name, v, "true or false");
}

enum { BOTH = LG_AT_TOKENIZE | LG_AT_DETOKENIZE, TOK = LG_AT_TOKENIZE };

static const lg_field fields[] = {
    {"model", "string", BOTH, lg_request_take_model, 0, 0, 0, false, 0},
    {"prompt", "string", TOK, take_prompt, 0, 0, 0, false, 0},
    {"text", "string", TOK, take_prompt, 0, 0, 0, false, 0},
    {"messages", "array", TOK, lg_request_take_messages, 0, 0, 0, false, 0},
    {"tools", "array", TOK, lg_openai_take_tools, 0, 0, 0, false, 0},
    {"enable_thinking", "boolean", TOK, lg_request_take_thinking, 0, 0, 0, false, 0},
    {"chat_template_kwargs", "object", TOK, lg_request_take_template_kwargs, 0, 0, 0, false, 0},
    {"reasoning_effort", "string", TOK, lg_request_take_effort, 0, 0, 0, false, 0},
    {"add_generation_prompt", "boolean", TOK, lg_request_only_true, 0, 0, 0, false, 0},
    {"add_special_tokens", "boolean", TOK, pass_bool, 0, 0, 0, false, 0},
    {"return_token_strs", "boolean", TOK, lg_request_take_bool, LG_REQUEST_REQ(token_strs), 0,
     0, false, 0},
    {"tokens", "array", LG_AT_DETOKENIZE, take_tokens, 0, 0, 0, false, LG_AT_DETOKENIZE},
};

const lg_field *lg_tokenize_fields(size_t *n) {
    *n = LG_COUNT(fields);
    return fields;
}

/* An answer that lists more would fill memory. */
static bool few_enough(lg_parse *p) {
    enum { MOST = 1 << 18 };
    if (p->req->ids.n <= MOST) return true;
    return lg_request_refuse(p->e, p->messages ? "messages" : "prompt", "too_many_tokens",
                             "%zu tokens; at most %d are listed", p->req->ids.n, MOST);
}

static bool finish_text(lg_parse *p) {
    lg_request_parsed *r = p->req;
    if (!p->text == !p->messages)
        return lg_request_refuse(p->e, "prompt", "missing_required_parameter",
                                 "Give either prompt (or text) or messages.");
    if (p->messages) {
        r->chat = true;
        r->tools = p->tools;
        return lg_oai_check_messages(p) && lg_request_render(p, p->messages) && few_enough(p);
    }
    lg_err err = {0};
    lg_status st = lg_tokenizer_encode(r->model->tok, p->text->text, p->text->text_len, NULL, 0,
                                       false, &r->ids, &err);
    return st == LG_OK ? few_enough(p) : lg_request_refuse_prompt(p, st, &err);
}

static bool finish_ids(lg_parse *p) {
    (void)p;
    return true;
}

bool lg_tokenize_text(const lg_request_model *model, const char *body, size_t len_bytes,
                      lg_buf *answer, lg_request_error *e) {
    lg_request_parsed *r;
    if (!lg_request_open(model, LG_AT_TOKENIZE, fields, LG_COUNT(fields), finish_text, body,
                         len_bytes, &r, e))
        return false;
    lg_buf_printf(answer, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", r->ids.n,
                  model->n_ctx);
    for (size_t i = 0; i < r->ids.n; i++) lg_buf_printf(answer, i ? ",%u" : "%u", r->ids.id[i]);
    lg_buf_puts(answer, "]");
    if (r->token_strs) {
        lg_buf_puts(answer, ",\"token_strs\":[");
        for (size_t i = 0; i < r->ids.n; i++) {
            const char *s = "";
            size_t len = 0;
            bool added, special;
            lg_tokenizer_piece(model->tok, r->ids.id[i], &s, &len, &added, &special);
            lg_buf_puts(answer, i ? "," : "");
            lg_json_put_string(answer, s, len);
        }
        lg_buf_puts(answer, "]");
    }
    lg_buf_puts(answer, "}");
    lg_request_close(&r);
    return true;
}

bool lg_tokenize_ids(const lg_request_model *model, const char *body, size_t len_bytes,
                     lg_buf *answer, lg_request_error *e) {
    lg_request_parsed *r;
    lg_buf text = {0};
    lg_detok d;
    if (!lg_request_open(model, LG_AT_DETOKENIZE, fields, LG_COUNT(fields), finish_ids, body,
                         len_bytes, &r, e))
        return false;
    lg_detok_init(&d, model->tok, true);
    for (size_t i = 0; i < r->ids.n; i++) lg_detok_put(&d, r->ids.id[i], &text);
    lg_detok_finish(&d, &text);
    lg_buf_puts(answer, "{\"prompt\":");
    lg_json_put_string(answer, lg_buf_str(&text), text.len_bytes);
    lg_buf_puts(answer, "}");
    answer->failed |= text.failed;
    lg_buf_fini(&text);
    lg_request_close(&r);
    return true;
}

bool lg_tokenize_embed(const lg_request_model *model, const char *body, size_t len_bytes,
                       lg_buf *answer, lg_request_error *e) {
    (void)body;
    (void)len_bytes;
    (void)answer;
    return lg_request_refuse(e, "model", "unsupported_operation",
                             "The model '%.200s' writes text; this server makes no embeddings.",
                             model->name);
}
