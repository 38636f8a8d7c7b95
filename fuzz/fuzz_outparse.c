/* fuzz_outparse.c - any bytes as the model's output.
 *
 * The first byte tells whether there are tools, whether the output starts as reasoning, and whether it is cut off.  Fed whole and byte by byte the
 * result must be the same, and the arguments of every call must be one JSON object.  Seeds: fuzz/corpus/outparse */
#include "gateway/wire/outparse.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_json[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                                 "\"parameters\":{\"properties\":{\"s\":"
                                 "{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{"
                                 "\"type\":[\"string\",\"null\"]},\"o\":{\"anyOf\":[{\"type\":"
                                 "\"string\"},{\"type\":\"object\"}]}}}}"
                                 "},{\"name\":\"g\"}]";

typedef struct joined {
    lg_buf text[2]; /* reasoning, content */
    lg_buf calls, args;
    uint32_t n_call;
    bool cut;
} joined;

static void check_args(joined *j) {
    if (j->args.len_bytes == 0) return;
    lg_json_doc *doc;
    LG_ASSERT(lg_json_parse(j->args.data, j->args.len_bytes, 70, "arguments", &doc, NULL) ==
              LG_OK);
    LG_ASSERT(lg_json_root(doc)->kind == LG_JSON_OBJECT);
    lg_json_close(&doc);
    lg_buf_clear(&j->args);
}

static void collect(void *ctx, const lg_part *part) {
    joined *j = ctx;
    switch (part->kind) {
    case LG_PART_REASONING:
        LG_ASSERT(j->text[1].len_bytes == 0 && j->n_call == 0);
        lg_buf_put(&j->text[0], part->text, part->len_bytes);
        break;
    case LG_PART_CONTENT: lg_buf_put(&j->text[1], part->text, part->len_bytes); break;
    case LG_PART_CALL_BEGIN:
        check_args(j);
        LG_ASSERT(part->call == j->n_call++);
        lg_buf_put(&j->calls, part->text, part->len_bytes);
        break;
    case LG_PART_CALL_ARGS:
        LG_ASSERT(part->call + 1 == j->n_call);
        lg_buf_put(&j->calls, part->text, part->len_bytes);
        lg_buf_put(&j->args, part->text, part->len_bytes);
        break;
    }
}

static void feed(const lg_json *tools, bool reasoning, const char *text, size_t len_bytes,
                 size_t step, joined *j) {
    lg_outparse *op;
    LG_ASSERT(lg_outparse_open(tools, reasoning, &op) == LG_OK);
    for (size_t i = 0; i < len_bytes; i += step) {
        size_t n = len_bytes - i < step ? len_bytes - i : step;
        LG_ASSERT(lg_outparse_put(op, text + i, n, collect, j) == LG_OK);
    }
    LG_ASSERT(lg_outparse_end(op, j->cut, collect, j) == LG_OK);
    const char *closing = lg_outparse_closing(op);
    LG_ASSERT(j->cut || !closing[0]);
    LG_ASSERT(lg_outparse_n_call(op) + (closing[0] != 0) == j->n_call);
    lg_buf_puts(&j->args, closing);
    check_args(j);
    lg_outparse_close(&op);
}

static bool same(const lg_buf *a, const lg_buf *b) {
    return a->len_bytes == b->len_bytes &&
           memcmp(lg_buf_str(a), lg_buf_str(b), a->len_bytes) == 0;
}

static void joined_fini(joined *j) {
    lg_buf_fini(&j->text[0]);
    lg_buf_fini(&j->text[1]);
    lg_buf_fini(&j->calls);
    lg_buf_fini(&j->args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lg_json_doc *doc;
    if (size == 0) return 0;
    LG_ASSERT(lg_json_parse(tools_json, sizeof tools_json - 1, 16, "tools", &doc, NULL) ==
              LG_OK);
    const lg_json *tools = data[0] & 1 ? lg_json_root(doc) : NULL;
    bool reasoning = data[0] & 2;
    const char *text = (const char *)data + 1;
    joined whole = {.cut = data[0] & 4}, bytes = {.cut = data[0] & 4};
    feed(tools, reasoning, text, size - 1, size, &whole);
    feed(tools, reasoning, text, size - 1, 1, &bytes);
    LG_ASSERT(same(&whole.text[0], &bytes.text[0]) && same(&whole.text[1], &bytes.text[1]));
    LG_ASSERT(same(&whole.calls, &bytes.calls));
    if (!tools && !reasoning)
        LG_ASSERT(whole.text[1].len_bytes == size - 1 &&
                  memcmp(lg_buf_str(&whole.text[1]), text, size - 1) == 0);
    joined_fini(&whole);
    joined_fini(&bytes);
    lg_json_close(&doc);
    LG_ASSERT(lg_mem_alive() == 0);
    return 0;
}
