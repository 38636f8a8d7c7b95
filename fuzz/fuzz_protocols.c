/* fuzz_protocols.c - any bytes as the body of /v1/messages, /v1/responses, count_tokens, /tokenize and /detokenize.
 *
 * What is refused must be refused with a well-formed error; what is accepted must be answered with well-formed JSON, as a
 * stream or whole.  Seeds: fuzz/corpus/protocols.  Run from the root of the tree, or with LG_SOURCE_DIR set. */
#include "gateway/wire/anthropic.h"
#include "gateway/wire/history.h"
#include "gateway/wire/responses.h"
#include "gateway/wire/tokenize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char output[] = "Because.\n</think>\n\nSo: \xc3\xa9\n\n<tool_call>\n<function=f>\n"
                             "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call> x";

static void must_parse(const char *text, size_t len_bytes) {
    lg_json_doc *doc;
    LG_ASSERT(lg_json_parse(text, len_bytes, 300, "answer", &doc, NULL) == LG_OK);
    lg_json_close(&doc);
}

static void check_stream(const lg_buf *sse) {
    const char *p = lg_buf_str(sse), *end, *data;
    for (; *p; p = end + 2) {
        LG_ASSERT(strncmp(p, "event: ", 7) == 0 && (end = strstr(p, "\n\n")));
        LG_ASSERT((data = strstr(p, "\ndata: ")) && data < end);
        must_parse(data + 7, (size_t)(end - data) - 7);
    }
}

static void refused(const lg_wire_format *wire, const lg_request_error *e) {
    lg_buf text = {0};
    LG_ASSERT((e->http == 400 || e->http == 404) && e->msg[0]);
    wire->error(e, &text);
    must_parse(text.data, text.len_bytes);
    lg_buf_fini(&text);
}

static void serve(const lg_wire_format *wire, const lg_request_model *model, const char *body,
                  size_t len_bytes) {
    lg_request_parsed *req;
    lg_request_error e;
    lg_out *out;
    lg_buf text = {0};
    if (!wire->open(model, body, len_bytes, &req, &e)) {
        LG_ASSERT(!req);
        refused(wire, &e);
        return;
    }
    LG_ASSERT(req->ids.n > 0 && req->ids.n < model->n_ctx && req->n_choice == 1);
    LG_ASSERT(wire->out_open(req, 0, &out) == LG_OK);
    for (size_t k = 0; k < sizeof output - 1; k++) {
        lg_event ev = {.kind = LG_EVENT_TOKEN, .text = output + k, .len_bytes = 1};
        LG_ASSERT(wire->event(out, &ev, &text) == LG_OK);
    }
    lg_event ev = {.kind = LG_EVENT_DONE, .finish = LG_FINISH_EOS, .n_produced = 9};
    LG_ASSERT(wire->event(out, &ev, &text) == LG_OK);
    if (req->stream) {
        wire->stream_end(req, &out, 1, &text);
        check_stream(&text);
    } else {
        wire->response(req, &out, 1, &text);
        must_parse(text.data, text.len_bytes);
    }
    wire->out_close(&out);
    lg_request_close(&req);
    lg_buf_fini(&text);
}

static void answer(lg_request_answer_fn *fn, const lg_request_model *model, const char *body,
                   size_t len_bytes) {
    lg_buf text = {0};
    lg_request_error e;
    if (fn(model, body, len_bytes, &text, &e))
        must_parse(text.data, text.len_bytes);
    else
        refused(&lg_anthropic_wire, &e);
    lg_buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lg_request_model model;
    const char *body = (const char *)data;
    if (!model.tok) {
        char path[512];
        const char *dir = getenv("LG_SOURCE_DIR");
        snprintf(path, sizeof path, "%s/tests/data/models/tiny-dense", dir ? dir : ".");
        LG_ASSERT(lg_tokenizer_open(path, &model.tok, NULL) == LG_OK);
        LG_ASSERT(lg_history_open(1 << 20, 1000000, &model.history) == LG_OK);
        model.name = "m";
        model.n_ctx = 2000;
        model.n_vocab = lg_tokenizer_n_id(model.tok);
        model.params.n_top = -1;
    }
    serve(&lg_anthropic_wire, &model, body, size);
    serve(&lg_responses_wire, &model, body, size);
    answer(lg_anthropic_count, &model, body, size);
    answer(lg_tokenize_text, &model, body, size);
    answer(lg_tokenize_ids, &model, body, size);
    return 0;
}
