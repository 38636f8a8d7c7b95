/* openai_rig.h - a model and requests for the tests of the OpenAI wire format. */
#ifndef LG_TESTS_OPENAI_RIG_H
#define LG_TESTS_OPENAI_RIG_H

#include "gateway/wire/openai.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* One function, add(a: integer, ...), as a request's tools. */
#define TOOL                                                                                   \
    "'tools':[{'type':'function','function':{'name':'add','parameters':{'type':'object',"      \
    "'properties':{'a':{'type':'integer'},'s':{'type':'string'}}}}}]"

static lg_request_model model;

static inline int open_model(void **state) {
    (void)state;
    char path[512];
    lg_err err;
    const char *dir = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/tiny", dir ? dir : ".");
    model = (lg_request_model){
        .name = "tiny", .n_ctx = 600, .n_vocab = 4096, .created = 1700000000};
    model.params = (lg_params){
        .temperature = 0.5f, .top_p = 0.9f, .top_k = 40, .repetition_penalty = 1, .n_top = -1};
    return lg_tokenizer_open(path, &model.tok, &err);
}

static inline int close_model(void **state) {
    (void)state;
    lg_tokenizer_close(&model.tok);
    return 0;
}

/* A body from a pattern: ' stands for ". */
static inline void body_of(lg_buf *b, bool chat, const char *extra) {
    lg_buf_clear(b);
    lg_buf_puts(b, chat ? "{'model':'tiny','messages':[{'role':'user','content':'hi'}]"
                        : "{'model':'tiny','prompt':'hi'");
    lg_buf_puts(b, extra[0] ? "," : "");
    lg_buf_puts(b, extra);
    lg_buf_puts(b, "}");
    for (size_t i = 0; i < b->len_bytes; i++)
        if (b->data[i] == '\'') b->data[i] = '"';
}

static inline lg_request_parsed *open_good(bool chat, const char *extra) {
    lg_buf b = {0};
    lg_request_parsed *req;
    lg_request_error e;
    body_of(&b, chat, extra);
    if (!lg_oai_open(&model, chat, b.data, b.len_bytes, &req, &e))
        fail_msg("%s: %s", b.data, e.msg);
    lg_buf_fini(&b);
    return req;
}

#endif
