/* openapi.c - the OpenAPI 3.1 document: see openapi.h.
 *
 * In:  routes and the tables of fields that read their bodies.   Out: JSON.
 * A field that is understood and not offered is named in "x-refused".
 * Thread: gateway.  Memory: none of its own.  Test: tests/e2e/test_protocols.py */
#include "gateway/openapi.h"

#include "gateway/anthropic.h"
#include "gateway/openai.h"
#include "gateway/responses.h"
#include "gateway/tokenize.h"

#include <string.h>

static const lg_field *table_of(uint32_t at, size_t *n) {
    if (at & (LG_AT_CHAT | LG_AT_TEXT)) return lg_oai_fields(n);
    if (at & (LG_AT_MESSAGES | LG_AT_COUNT)) return lg_anthropic_fields(n);
    if (at & LG_AT_RESPONSES) return lg_responses_fields(n);
    return lg_tokenize_fields(n);
}

/* null means absent everywhere. */
static void put_schema(lg_buf *b, const lg_field *f, bool needed) {
    lg_buf_puts(b, "{");
    if (f->type[0])
        lg_buf_printf(b, needed ? "\"type\":\"%s\"" : "\"type\":[\"%s\",\"null\"]", f->type);
    if (f->type[0] && f->low < f->high)
        lg_buf_printf(b, ",\"%s\":%.0f,\"maximum\":%.0f",
                      f->open ? "exclusiveMinimum" : "minimum", f->low, f->high);
    lg_buf_puts(b, "}");
}

static void put_names(lg_buf *b, const lg_field *table, size_t n, uint32_t at, bool refused) {
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        const lg_field *f = &table[i];
        if (!(f->where & at) || !(refused ? !f->type : f->needed & at)) continue;
        lg_buf_printf(b, "%s\"%s\"", first ? "" : ",", f->name);
        first = false;
    }
}

static void put_body(lg_buf *b, uint32_t at) {
    size_t n;
    const lg_field *table = table_of(at, &n);
    bool first = true;
    lg_buf_puts(b, "\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{"
                   "\"schema\":{\"type\":\"object\",\"additionalProperties\":false,"
                   "\"required\":[");
    put_names(b, table, n, at, false);
    lg_buf_puts(b, "],\"properties\":{");
    for (size_t i = 0; i < n; i++) {
        if (!(table[i].where & at) || !table[i].type) continue;
        lg_buf_printf(b, "%s\"%s\":", first ? "" : ",", table[i].name);
        put_schema(b, &table[i], table[i].needed & at);
        first = false;
    }
    lg_buf_puts(b, "},\"x-refused\":[");
    put_names(b, table, n, at, true);
    lg_buf_puts(b, "]}}}},");
}

void lg_openapi_begin(lg_buf *b) {
    lg_buf_puts(
        b, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Lignum\",\"version\":\"" LG_VERSION
           "\"},\"paths\":{");
}

void lg_openapi_route(lg_buf *b, const char *path, const char *method, uint32_t at) {
    static const char *const also[] = {"400", "401", "404", "429", "500", "503"};
    bool first = b->len_bytes && b->data[b->len_bytes - 1] == '{';
    lg_buf_printf(b, "%s\"%s\":{\"%s\":{", first ? "" : ",", path,
                  strcmp(method, "GET") == 0 ? "get" : "post");
    if (at) put_body(b, at);
    lg_buf_puts(b, "\"responses\":{\"200\":{\"description\":\"The answer.\"}");
    for (size_t i = 0; i < LG_COUNT(also); i++)
        lg_buf_printf(b, ",\"%s\":{\"description\":\"An error object.\"}", also[i]);
    lg_buf_puts(b, "}}}");
}

void lg_openapi_end(lg_buf *b) {
    lg_buf_puts(b, "}}");
}
