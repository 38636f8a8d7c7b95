/* text.c - the public text calls of lignum.h over tokenizer and chat format.
 *
 * Out: ids and text in blocks of mem.c which the caller gives back with lg_free.  Thread: one at a time per lg_text.
 * Test: tests/unit/test_text.c */
#include "model/text/text.h"

#include "base/json.h"
#include "model/text/chat.h"

#define CHAT_DEPTH 128 /* deepest nesting of a chat's JSON */

struct lg_text {
    lg_tokenizer *tok;
};

lg_status lg_text_open(const char *model_path, lg_text **out, lg_err *err) {
    lg_text *text = lg_mem_alloc(sizeof *text);
    *out = NULL;
    if (!text) return LG_FAIL(err, LG_E_NOMEM, "%s: out of memory", model_path);
    lg_status st = lg_tokenizer_open(model_path, &text->tok, err);
    if (st != LG_OK) LG_FREE(text);
    *out = text;
    return st;
}

void lg_text_close(lg_text **text) {
    if (!*text) return;
    lg_tokenizer_close(&(*text)->tok);
    LG_FREE(*text);
}

lg_tokenizer *lg_text_tokenizer(lg_text *text) {
    return text->tok;
}

/* Hand list over to the caller; an empty one is a block too. */
static lg_status give_ids(lg_status st, lg_ids *list, uint32_t **ids, size_t *n_id,
                          lg_err *err) {
    if (st == LG_OK && !list->id) list->id = lg_mem_alloc(sizeof *list->id);
    if (st == LG_OK && !list->id) st = LG_FAIL(err, LG_E_NOMEM, "text: out of memory");
    if (st != LG_OK) lg_ids_fini(list);
    *ids = list->id;
    *n_id = list->n;
    return st;
}

lg_status lg_text_encode(lg_text *text, const char *s, size_t len_bytes, uint32_t **ids,
                         size_t *n_id, lg_err *err) {
    lg_ids list = {0};
    lg_status st = lg_tokenizer_encode(text->tok, s, len_bytes, NULL, 0, false, &list, err);
    return give_ids(st, &list, ids, n_id, err);
}

/* A boolean member of the chat object, or `otherwise` when absent or null. */
static lg_status flag(const lg_json *root, const char *name, bool otherwise, bool *out,
                      lg_err *err) {
    const lg_json *v = lg_json_get(root, name);
    *out = otherwise;
    if (!v || v->kind == LG_JSON_NULL || lg_json_bool(v, out)) return LG_OK;
    return LG_FAIL(err, LG_E_ARG, "chat: %s: expected true or false, found %s", name,
                   lg_json_kind_name(v->kind));
}

static lg_status read_chat(const lg_json *root, lg_chat_opt *opt, lg_err *err) {
    bool think;
    if (root->kind != LG_JSON_OBJECT)
        return LG_FAIL(err, LG_E_ARG, "chat: expected an object, found %s",
                       lg_json_kind_name(root->kind));
    opt->messages = lg_json_get(root, "messages");
    if (!opt->messages || opt->messages->kind != LG_JSON_ARRAY)
        return LG_FAIL(err, LG_E_ARG, "chat: messages: expected an array, found %s",
                       opt->messages ? lg_json_kind_name(opt->messages->kind) : "nothing");
    const lg_json *tools = lg_json_get(root, "tools");
    if (tools && tools->kind != LG_JSON_NULL && tools->kind != LG_JSON_ARRAY)
        return LG_FAIL(err, LG_E_ARG, "chat: tools: expected an array, found %s",
                       lg_json_kind_name(tools->kind));
    opt->tools = tools && tools->kind == LG_JSON_ARRAY ? tools : NULL;
    opt->parse_arguments = true;
    LG_TRY(flag(root, "enable_thinking", true, &think, err));
    opt->no_think = !think;
    LG_TRY(flag(root, "add_vision_id", false, &opt->add_vision_id, err));
    return flag(root, "add_generation_prompt", true, &opt->add_generation_prompt, err);
}

lg_status lg_text_chat(lg_text *text, const char *chat_json, size_t len_bytes, uint32_t **ids,
                       size_t *n_id, lg_err *err) {
    lg_json_doc *doc = NULL;
    lg_chat chat = {0};
    lg_ids list = {0};
    lg_chat_opt opt = {0};
    lg_status st = lg_json_parse(chat_json, len_bytes, CHAT_DEPTH, "chat", &doc, err);
    if (st == LG_OK) st = read_chat(lg_json_root(doc), &opt, err);
    if (st == LG_OK) st = lg_chat_encode(&opt, text->tok, &chat, &list, err);
    lg_chat_fini(&chat);
    lg_json_close(&doc);
    return give_ids(st, &list, ids, n_id, err);
}

lg_status lg_text_decode(lg_text *text, const uint32_t *ids, size_t n_id, bool special,
                         char **s, size_t *len_bytes, lg_err *err) {
    lg_buf out = {0};
    lg_detok d;
    lg_detok_init(&d, text->tok, special);
    for (size_t i = 0; i < n_id; i++) lg_detok_put(&d, ids[i], &out);
    lg_detok_finish(&d, &out);
    lg_buf_put(&out, "", 0);
    *s = NULL;
    *len_bytes = 0;
    if (out.failed) {
        lg_buf_fini(&out);
        return LG_FAIL(err, LG_E_NOMEM, "text: out of memory");
    }
    *s = out.data;
    *len_bytes = out.len_bytes;
    return LG_OK;
}

void lg_free(void *p) {
    lg_mem_free(p);
}
