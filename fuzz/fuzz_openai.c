/* fuzz_openai.c - any bytes as the body of a chat and of a completion request.
 *
 * What is refused must be refused with a well-formed error; what is accepted must be answered with well-formed JSON, as a
 * stream or whole.  Seeds: fuzz/corpus/openai.  Run from the root of the tree, or with LG_SOURCE_DIR set. */
#include "gateway/wire/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char output[] = "Because.\n</think>\n\nSo: \xc3\xa9\n\n<tool_call>\n<function=f>\n"
                             "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call> x";

static void must_parse(const char *text, size_t len_bytes) {
    lg_json_doc *doc;
    LG_ASSERT(lg_json_parse(text, len_bytes, 200, "answer", &doc, NULL) == LG_OK);
    lg_json_close(&doc);
}

static void check_stream(const lg_buf *sse) {
    const char *p = lg_buf_str(sse), *end;
    for (; *p; p = end + 2) {
        LG_ASSERT(strncmp(p, "data: ", 6) == 0 && (end = strstr(p, "\n\n")));
        if (strncmp(p, "data: [DONE]", 12) != 0) must_parse(p + 6, (size_t)(end - p) - 6);
    }
}

static void answer(const lg_request_parsed *req) {
    lg_oai_out *out[LG_REQUEST_MAX_CHOICE];
    lg_buf text = {0};
    lg_top top = {3, -1};
    for (uint32_t i = 0; i < req->n_choice; i++) {
        LG_ASSERT(lg_oai_out_open(req, i, &out[i]) == LG_OK);
        for (size_t k = 0; k < sizeof output - 1; k++) {
            lg_event e = {.kind = LG_EVENT_TOKEN,
                          .token = (uint32_t)k,
                          .logprob = -2,
                          .n_top = req->params.n_top > 0,
                          .top = &top,
                          .text = output + k,
                          .len_bytes = 1};
            LG_ASSERT(lg_oai_out_event(out[i], &e, &text) == LG_OK);
        }
        lg_event e = {.kind = LG_EVENT_DONE, .finish = LG_FINISH_EOS, .n_produced = 9};
        LG_ASSERT(lg_oai_out_event(out[i], &e, &text) == LG_OK);
    }
    if (req->stream) {
        lg_oai_stream_end(req, out, req->n_choice, &text);
        check_stream(&text);
    } else {
        lg_oai_response(req, out, req->n_choice, &text);
        must_parse(text.data, text.len_bytes);
    }
    for (uint32_t i = 0; i < req->n_choice; i++) lg_oai_out_close(&out[i]);
    lg_buf_fini(&text);
}

static void serve(const lg_request_model *model, bool chat, const char *body,
                  size_t len_bytes) {
    lg_request_parsed *req;
    lg_request_error e;
    if (lg_oai_open(model, chat, body, len_bytes, &req, &e)) {
        LG_ASSERT(req->ids.n > 0 && req->ids.n < model->n_ctx);
        LG_ASSERT(req->n_choice >= 1 && req->n_choice <= LG_REQUEST_MAX_CHOICE);
        LG_ASSERT(req->n_stop <= LG_REQUEST_MAX_STOP && req->n_bias <= 1024);
        answer(req);
        lg_request_close(&req);
    } else {
        lg_buf text = {0};
        LG_ASSERT(!req && (e.http == 400 || e.http == 404) && e.msg[0]);
        lg_oai_error_body(&e, &text);
        must_parse(text.data, text.len_bytes);
        lg_buf_fini(&text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lg_request_model model;
    if (!model.tok) {
        char path[512];
        const char *dir = getenv("LG_SOURCE_DIR");
        snprintf(path, sizeof path, "%s/tests/data/models/tiny-dense", dir ? dir : ".");
        LG_ASSERT(lg_tokenizer_open(path, &model.tok, NULL) == LG_OK);
        model.name = "m";
        model.n_ctx = 2000;
        model.n_vocab = lg_tokenizer_n_id(model.tok);
        model.params.n_top = -1;
    }
    serve(&model, true, (const char *)data, size);
    serve(&model, false, (const char *)data, size);
    return 0;
}
