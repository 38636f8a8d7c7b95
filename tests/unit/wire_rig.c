/* wire_rig.c - see wire_rig.h. */
#include "wire_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

lg_request_model wire_rig_model;

int wire_rig_setup(void **state) {
    (void)state;
    char path[512];
    lg_err err;
    const char *dir = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/tiny", dir ? dir : ".");
    wire_rig_model = (lg_request_model){
        .name = "tiny", .n_ctx = 900, .n_vocab = 4096, .created = 1700000000};
    wire_rig_model.params = (lg_params){
        .temperature = 0.5f, .top_p = 0.9f, .top_k = 40, .repetition_penalty = 1, .n_top = -1};
    return lg_tokenizer_open(path, &wire_rig_model.tok, &err);
}

int wire_rig_teardown(void **state) {
    (void)state;
    lg_tokenizer_close(&wire_rig_model.tok);
    return 0;
}

void wire_rig_quote(lg_buf *b, const char *text) {
    lg_buf_clear(b);
    for (const char *p = text; *p; p++) lg_buf_putc(b, *p == '\'' ? '"' : *p);
}

lg_request_parsed *wire_rig_open(const lg_wire_format *wire, const char *body) {
    lg_buf b = {0};
    lg_request_parsed *r;
    lg_request_error e;
    wire_rig_quote(&b, body);
    if (!wire->open(&wire_rig_model, b.data, b.len_bytes, &r, &e))
        fail_msg("%s: %s", b.data, e.msg);
    lg_buf_fini(&b);
    return r;
}

static lg_status play(const lg_wire_format *wire, lg_out *out, const wire_rig_answer *a,
                      size_t step, lg_buf *sse) {
    size_t len = strlen(a->text);
    uint32_t n = 0;
    for (size_t i = 0, end; i < len; i = end) {
        end = len - i < step ? len : i + step;
        while (end < len && ((uint8_t)a->text[end] & 0xc0) == 0x80)
            end++; /* whole characters */
        lg_event e = {
            .kind = LG_EVENT_TOKEN, .token = n++, .text = a->text + i, .len_bytes = end - i};
        LG_TRY(wire->event(out, &e, sse));
    }
    lg_event e = {.kind = LG_EVENT_DONE,
                  .finish = a->finish,
                  .stop_index = a->stop_index,
                  .n_produced = 7};
    return wire->event(out, &e, sse);
}

static lg_status serve(const lg_wire_format *wire, const wire_rig_answer *a, const lg_buf *body,
                       bool stream, size_t step, lg_buf *text) {
    lg_request_parsed *r = NULL;
    lg_out *out = NULL;
    lg_request_error e;
    if (!wire->open(&wire_rig_model, body->data, body->len_bytes, &r, &e)) {
        if (e.http != 503) fail_msg("%s: %s", body->data, e.msg);
        return LG_E_NOMEM;
    }
    r->stream = stream;
    snprintf(r->id, sizeof r->id, "id_test");
    r->created = 1234;
    lg_status st = wire->out_open(r, 0, &out);
    if (st == LG_OK) st = play(wire, out, a, step, text);
    if (st == LG_OK && stream) wire->stream_end(r, &out, 1, text);
    if (st == LG_OK && !stream) wire->response(r, &out, 1, text);
    if (text->failed) st = LG_E_NOMEM;
    if (out) wire->out_close(&out);
    lg_request_close(&r);
    return st;
}

lg_status wire_rig_serve(const lg_wire_format *wire, const wire_rig_answer *a, bool stream,
                         size_t step, lg_buf *text) {
    lg_buf body = {0};
    wire_rig_quote(&body, a->body);
    lg_buf_clear(text);
    lg_status st = serve(wire, a, &body, stream, step, text);
    lg_buf_fini(&body);
    return st;
}

size_t wire_rig_fail_all(const lg_wire_format *wire, const wire_rig_answer *a, bool stream) {
    lg_buf body = {0};
    wire_rig_quote(&body, a->body);
    for (uint64_t n = 1;; n++) {
        int64_t alive = lg_mem_alive();
        lg_buf text = {0};
        lg_mem_fail_at(n);
        lg_status st = serve(wire, a, &body, stream, 2, &text);
        lg_mem_fail_at(0);
        lg_buf_fini(&text);
        assert_int_equal(lg_mem_alive(), alive);
        if (st == LG_OK) {
            lg_buf_fini(&body);
            return n - 1;
        }
        assert_int_equal(st, LG_E_NOMEM);
    }
}

lg_json_doc *wire_rig_parse(const char *text, size_t len_bytes) {
    lg_json_doc *doc;
    lg_err err;
    if (lg_json_parse(text, len_bytes, 32, "answer", &doc, &err) != LG_OK)
        fail_msg("%s: %.*s", err.msg, (int)len_bytes, text);
    return doc;
}

void wire_rig_expect_bad(const lg_wire_format *wire, const char *body, const char *param) {
    lg_buf b = {0}, text = {0};
    lg_request_parsed *r;
    lg_request_error e;
    wire_rig_quote(&b, body);
    if (wire->open(&wire_rig_model, b.data, b.len_bytes, &r, &e))
        fail_msg("accepted: %s", b.data);
    assert_null(r);
    if (strcmp(e.param, param) != 0) fail_msg("%s: '%s' (%s)", b.data, e.param, e.msg);
    assert_int_equal(e.http, 400);
    wire->error(&e, &text);
    lg_json_doc *doc = wire_rig_parse(text.data, text.len_bytes);
    const lg_json *err = lg_json_get(lg_json_root(doc), "error");
    assert_true(lg_json_is(lg_json_get(err, "type"), "invalid_request_error"));
    assert_non_null(strstr(text.data, param));
    lg_json_close(&doc);
    lg_buf_fini(&text);
    lg_buf_fini(&b);
}

void wire_rig_same_prompt(const lg_wire_format *wire, const char *body,
                          const lg_wire_format *wire2, const char *body2) {
    lg_request_parsed *a = wire_rig_open(wire, body), *b = wire_rig_open(wire2, body2);
    lg_detok d;
    lg_buf text[2] = {{0}, {0}};
    for (int k = 0; k < 2; k++) {
        const lg_ids *ids = k ? &b->ids : &a->ids;
        lg_detok_init(&d, wire_rig_model.tok, true);
        for (size_t i = 0; i < ids->n; i++) lg_detok_put(&d, ids->id[i], &text[k]);
    }
    assert_string_equal(lg_buf_str(&text[0]), lg_buf_str(&text[1]));
    assert_int_equal(a->ids.n, b->ids.n);
    assert_memory_equal(a->ids.id, b->ids.id, a->ids.n * sizeof(uint32_t));
    assert_int_equal(a->opened_think, b->opened_think);
    lg_buf_fini(&text[0]);
    lg_buf_fini(&text[1]);
    lg_request_close(&a);
    lg_request_close(&b);
}
