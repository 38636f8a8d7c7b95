/* test_outparse.c - model output into parts.  Every case is fed whole, at every cut in two, and byte by byte. */
#include "base/num.h"
#include "gateway/wire/outparse.h"
#include "model/text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Parts joined: reasoning, content, and for each call "name(arguments)" with a line feed. */
typedef struct joined {
    lg_buf reasoning, content, calls;
    uint32_t n_call;
    bool order_kept; /* arguments only ever follow the beginning of their call */
    bool cut;        /* the output is cut off, not ended */
    char closing[4]; /* what a cut call lacks */
} joined;

static void joined_fini(joined *j) {
    lg_buf_fini(&j->reasoning);
    lg_buf_fini(&j->content);
    lg_buf_fini(&j->calls);
}

static void collect(void *ctx, const lg_part *part) {
    joined *j = ctx;
    switch (part->kind) {
    case LG_PART_REASONING: lg_buf_put(&j->reasoning, part->text, part->len_bytes); break;
    case LG_PART_CONTENT: lg_buf_put(&j->content, part->text, part->len_bytes); break;
    case LG_PART_CALL_BEGIN:
        j->order_kept &= part->call == j->n_call;
        j->n_call++;
        if (j->calls.len_bytes) lg_buf_puts(&j->calls, "\n");
        lg_buf_put(&j->calls, part->text, part->len_bytes);
        lg_buf_puts(&j->calls, " ");
        break;
    case LG_PART_CALL_ARGS:
        j->order_kept &= part->call + 1 == j->n_call;
        lg_buf_put(&j->calls, part->text, part->len_bytes);
        break;
    }
}

/* Feed text in pieces of `step` bytes after a first piece of `cut` bytes; j->cut tells how it ends. */
static void feed_to(const lg_json *tools, bool reasoning, const char *text, size_t len,
                    size_t cut, size_t step, joined *j) {
    lg_outparse *op;
    *j = (joined){.order_kept = true, .cut = j->cut};
    assert_int_equal(lg_outparse_open(tools, reasoning, &op), LG_OK);
    assert_int_equal(lg_outparse_put(op, text, cut, collect, j), LG_OK);
    for (size_t i = cut; i < len; i += step) {
        size_t n = len - i < step ? len - i : step;
        assert_int_equal(lg_outparse_put(op, text + i, n, collect, j), LG_OK);
    }
    assert_int_equal(lg_outparse_end(op, j->cut, collect, j), LG_OK);
    snprintf(j->closing, sizeof j->closing, "%s", lg_outparse_closing(op));
    if (!j->cut) assert_string_equal(j->closing, "");
    assert_int_equal(lg_outparse_n_call(op) + (j->closing[0] != 0), j->n_call);
    assert_true(j->order_kept);
    lg_outparse_close(&op);
    assert_null(op);
}

static void feed(const lg_json *tools, bool reasoning, const char *text, size_t len, size_t cut,
                 size_t step, joined *j) {
    j->cut = false;
    feed_to(tools, reasoning, text, len, cut, step, j);
}

static bool same_text(const lg_buf *a, const lg_buf *b) {
    return a->len_bytes == b->len_bytes &&
           memcmp(lg_buf_str(a), lg_buf_str(b), a->len_bytes) == 0;
}

static bool same(const joined *a, const joined *b) {
    return same_text(&a->reasoning, &b->reasoning) && same_text(&a->content, &b->content) &&
           same_text(&a->calls, &b->calls) && strcmp(a->closing, b->closing) == 0;
}

static lg_json_doc *parse(const char *text) {
    lg_json_doc *doc;
    lg_err err;
    if (lg_json_parse(text, strlen(text), 64, "test", &doc, &err) != LG_OK)
        fail_msg("%s: %s", err.msg, text);
    return doc;
}

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":"
    "\"number\"},\"b\":{\"type\":\"boolean\"},\"a\":{\"type\":\"array\"},\"o\":{\"type\":"
    "\"object\"},\"sn\":{\"type\":[\"string\",\"null\"]},\"any\":{\"anyOf\":[{\"type\":"
    "\"null\"},"
    "{\"type\":\"string\"}]},\"in\":{\"type\":[\"integer\",\"null\"]},\"so\":{\"oneOf\":[{"
    "\"type\":\"string\"},{\"$ref\":\"#/$defs/"
    "o\"}]}},\"$defs\":{\"o\":{\"type\":\"object\"}}}}},"
    "{\"name\":\"bare\",\"parameters\":{}},{\"type\":\"function\",\"function\":null},7]";

#define CALL(name, args) "<tool_call>\n<function=" name ">\n" args "</function>\n</tool_call>"
#define ARG(key, value)  "<parameter=" key ">\n" value "\n</parameter>\n"

typedef struct example {
    bool tools, in_reasoning;
    const char *text, *reasoning, *content, *calls;
} example;

static const example examples[] = {
    /* plain text and reasoning */
    {false, false, "", "", "", ""},
    {false, false, "Hello <b>\n world \n", "", "Hello <b>\n world \n", ""},
    {false, true, "a\nb\n</think>\n\nanswer", "a\nb", "answer", ""},
    {false, true, "</think>answer", "", "answer", ""},
    {false, true, "\n</think>\n\n", "", "", ""},
    {false, true, "r</think>\n\n \n x", "r", " \n x", ""},
    {false, true, "still thinking\n\n", "still thinking\n\n", "", ""},
    {false, true, "cut </thin", "cut </thin", "", ""},
    {false, true, "a </thinking> b\n\n c</think>d</think>", "a </thinking> b\n\n c",
     "d</think>", ""},
    {false, true, "<think>\nx</think>y", "<think>\nx", "y", ""},
    {false, false, "<think>x</think>y", "", "<think>x</think>y", ""},
    {false, true, "use <tool_call> here</think>ok", "use <tool_call> here", "ok", ""},
    {false, false, CALL("f", ""), "", CALL("f", ""), ""},
    /* calls */
    {true, false, CALL("f", ""), "", "", "f {}"},
    {true, false, "Let me look.\n\n" CALL("f", ARG("s", "x")), "", "Let me look.",
     "f {\"s\":\"x\"}"},
    {true, true, "why\n</think>\n\nNow.\n\n" CALL("f", ARG("i", "5")) "\n", "why", "Now.",
     "f {\"i\":5}"},
    {true, true, "why\n" CALL("f", ARG("i", "5")), "why", "", "f {\"i\":5}"},
    {true, false, CALL("f", ARG("i", "1")) "\n" CALL("bare", ARG("x", "2")), "", "",
     "f {\"i\":1}\nbare {\"x\":2}"},
    {true, false, "<function=f>\n" ARG("s", "x") "</function>", "", "", "f {\"s\":\"x\"}"},
    {true, false, "a <function=f></function> b", "", "a b", "f {}"},
    {true, false, "<tool_call><function=f><parameter=s>x</parameter></function></tool_call>",
     "", "", "f {\"s\":\"x\"}"},
    {true, false, CALL("f", "") "\n\nafter", "", "\n\nafter", "f {}"},
    {true, false, CALL("f", "") " \n\n", "", "", "f {}"},
    {true, false, "text \n", "", "text \n", ""},
    /* types */
    {true, false,
     CALL("f", ARG("s", "5") ARG("i", "5") ARG("n", "1e-07") ARG("b", "True")
                   ARG("a", "[1, \"x\"]") ARG("o", "{\"k\": null}")),
     "", "",
     "f {\"s\":\"5\",\"i\":5,\"n\":1e-07,\"b\":true,\"a\":[1,\"x\"],\"o\":{\"k\":null}}"},
    {true, false,
     CALL("f", ARG("s", "True") ARG("i", "many") ARG("b", "False") ARG("b2", "false")
                   ARG("s2", "None") ARG("s", "None") ARG("a", "[1,") ARG("o", "")),
     "", "",
     "f {\"s\":\"True\",\"i\":\"many\",\"b\":false,\"b2\":false,\"s2\":null,\"s\":\"None\","
     "\"a\":\"[1,\",\"o\":\"\"}"},
    {true, false,
     CALL("f", ARG("sn", "None") ARG("sn", "5") ARG("any", "null") ARG("any", "x")
                   ARG("in", "None") ARG("in", "7")),
     "", "", "f {\"sn\":null,\"sn\":\"5\",\"any\":null,\"any\":\"x\",\"in\":null,\"in\":7}"},
    {true, false,
     CALL("f", ARG("so", "{\"k\": [1]}") ARG("so", "{\"k\"") ARG("so", "Nowhere\n null")
                   ARG("sn", "Nonesuch") ARG("sn", "null\n") ARG("so", "12")),
     "", "",
     "f {\"so\":{\"k\":[1]},\"so\":\"{\\\"k\\\"\",\"so\":\"Nowhere\\n null\",\"sn\":"
     "\"Nonesuch\",\"sn\":null,\"so\":\"12\"}"},
    {true, false, CALL("bare", ARG("big", "12345678901234567890") ARG("t", "a \"q\" \\ \t.")),
     "", "", "bare {\"big\":12345678901234567890,\"t\":\"a \\\"q\\\" \\\\ \\t.\"}"},
    /* values that look like tags */
    {true, false, CALL("f", ARG("s", "a < b\n</b> </param\n</function>\n")), "", "",
     "f {\"s\":\"a < b\\n</b> </param\\n</function>\\n\"}"},
    {true, false, CALL("f", ARG("s", "\n\nx\n\n")), "", "", "f {\"s\":\"\\n\\nx\\n\\n\"}"},
    {true, false, CALL("f", ARG("s", "a\n</parameter>\nb")), "", "",
     "f {\"s\":\"a\\n</parameter>\\nb\"}"},
    {true, false, CALL("f", ARG("s", "</parameter></parameter>")), "", "",
     "f {\"s\":\"</parameter></parameter>\"}"},
    {true, false, CALL("f", ARG("s", CALL("f", ""))), "", "",
     "f {\"s\":\"<tool_call>\\n<function=f>\\n</function>\\n</tool_call>\"}"},
    {true, false, CALL("f", ARG("s", "<tool_call>\n</think>")), "", "",
     "f {\"s\":\"<tool_call>\\n</think>\"}"},
    /* what is no call comes out as content */
    {true, false, "x\n\n" CALL("g", ARG("s", "v")) " y", "",
     "x\n\n" CALL("g", ARG("s", "v")) " y", ""},
    {true, false, CALL("g", ARG("s", CALL("f", ""))), "", CALL("g", ARG("s", CALL("f", ""))),
     ""},
    {true, false, "x\n<tool_call>\n<function=f>\n<parameter=s>\n", "", "x", "f {\"s\":\"\"}"},
    {true, false, "x\n<tool_call>\n<function=f>\n<parameter=s", "",
     "x\n<tool_call>\n<function=f>\n<parameter=s", ""},
    {true, false, "x\n<tool_call>\n<function=g>\n<parameter=s>\nv", "",
     "x\n<tool_call>\n<function=g>\n<parameter=s>\nv", ""},
    /* closing tags that the model forgot */
    {true, false, "x\n<tool_call>\n<function=f>\n<parameter=s>\nv", "", "x", "f {\"s\":\"v\"}"},
    {true, false, "<function=f>\n<parameter=i>\n5", "", "", "f {\"i\":5}"},
    {true, false, "<function=f>\n<parameter=s>\nv\n</para", "", "", "f {\"s\":\"v\\n</para\"}"},
    {true, false, "<function=f>\n" ARG("s", "v") "<para", "", "", "f {\"s\":\"v\"}"},
    {true, false, "<function=f>\n" ARG("s", "v") "<parameter=i", "", "", "f {\"s\":\"v\"}"},
    {true, false, "<tool_call>\n<function=f>\n</function>\n", "", "", "f {}"},
    {true, false, "<tool_call>\n<function=f>\n</function>\n</tool_cal", "", "\n</tool_cal",
     "f {}"},
    {true, false, "<tool_call>\n<function=f>\n</function>\n" CALL("f", ARG("i", "2")), "", "",
     "f {}\nf {\"i\":2}"},
    {true, false, "<function=f>\n" ARG("s", "a\n</parameter>\n<parameter=x\n>"), "", "",
     "f {\"s\":\"a\\n</parameter>\\n<parameter=x\\n>\"}"},
    {true, false, CALL("f", ARG("s", "v") "<parameter=i<\n5\n</parameter>\n"), "", "",
     "f {\"s\":\"v\\n</parameter>\\n<parameter=i<\\n5\"}"},
    /* calls as JSON */
    {true, false, "a\n<tool_call>{\"name\": \"f\"}</tool_call>\n", "", "a", "f {}"},
    {true, true,
     "r\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"}\\\"{\", \"i\": [1]}}\n"
     "</tool_call>\n<tool_call>\n{\"arguments\": \"{\\\"i\\\": 5}\", \"name\": \"bare\"}\n"
     "</tool_call>",
     "r", "", "f {\"s\":\"}\\\"{\",\"i\":[1]}\nbare {\"i\":5}"},
    {true, false, "<tool_call>{\"name\": \"f\", \"arguments\": {}} x", "", " x", "f {}"},
    {true, false, "<tool_call>{\"name\": \"g\"}</tool_call>\n", "",
     "<tool_call>{\"name\": \"g\"}</tool_call>\n", ""},
    {true, false, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", "",
     "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", ""},
    {true, false, "<tool_call>{name: f}</tool_call>", "", "<tool_call>{name: f}</tool_call>",
     ""},
    {true, false, "<tool_call>\n{\"name\": \"f\", \"argu", "",
     "<tool_call>\n{\"name\": \"f\", \"argu", ""},
    {true, false, "<tool_call>\n" CALL("f", ""), "", "<tool_call>", "f {}"},
    {true, false, "<function=<function=f></function>", "", "<function=", "f {}"},
    {true, false, "<function=f\n>", "", "<function=f\n>", ""},
    {true, false, "<function=f> text", "", "<function=f> text", ""},
    {true, false, "<function=f><parameter=a\n", "", "<function=f><parameter=a\n", ""},
    {true, false, CALL("f", "") "\n<tool_call>", "", "\n<tool_call>", "f {}"},
    {true, true, "hm\n<tool_call> is a tag\n</think>\nx", "hm",
     "\n<tool_call> is a tag\n</think>\nx", ""},
    {true, true, "a <function=f></function>\n</think>b", "a <function=f></function>", "b", ""},
    {true, false, "<", "", "<", ""},
    {true, false, "a <tool_", "", "a <tool_", ""},
    {true, false,
     "\xc3\xa9 <tool_call>\n<function=f>\n<parameter=\xe4\xba\xac>\n\xf0\x9f\x98\x80\n"
     "</parameter>\n</function>\n</tool_call>",
     "", "\xc3\xa9", "f {\"\xe4\xba\xac\":\"\xf0\x9f\x98\x80\"}"},
};

/* Whole turns as models write them; the last of the examples. */
#define FILE_BODY                                                                              \
    "#include <stdio.h>\n\nint main(void) {\n    if (1 < 2 && 3 > 2) printf(\"<p>caf\xc3\xa9 " \
    "\xf0\x9f\x98\x80</p>\\n\");\n    return 0;\n}\n"

static const char *const turns[] = {
    "The user wants a file. I should use f.\n</think>\n\nI'll write it now.\n\n" CALL(
        "f", ARG("s", FILE_BODY) ARG("i", "7") ARG("sn", "None")),
    "Two things at once.\n</think>\n\n" CALL(
        "f", ARG("a", "[\"x\", {\"y\": [1, 2]}]")
                 ARG("b", "True")) "\n" CALL("bare", ARG("text", FILE_BODY) ARG("n", "-1.5e3")),
    "</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a \\\"b\\\" }\", "
    "\"o\": {\"k\": "
    "[]}}}\n</tool_call>\n" CALL("f", ARG("so", "{\"k\": 1}") ARG("so", "plain")),
    "Hm, <tool_call> is how I call.\n" CALL("f", ARG("s", "/tmp/x")) "\n\nDone?\n",
};

static void test_examples_at_every_cut(void **state) {
    (void)state;
    lg_json_doc *doc = parse(tools_json);
    for (size_t i = 0; i < LG_COUNT(examples); i++) {
        const example *e = &examples[i];
        const lg_json *tools = e->tools ? lg_json_root(doc) : NULL;
        size_t len = strlen(e->text);
        joined whole, j;
        feed(tools, e->in_reasoning, e->text, len, len, 1, &whole);
        assert_string_equal(lg_buf_str(&whole.reasoning), e->reasoning);
        assert_string_equal(lg_buf_str(&whole.content), e->content);
        assert_string_equal(lg_buf_str(&whole.calls), e->calls);
        for (size_t cut = 0; cut <= len; cut++)
            for (int by_byte = 0; by_byte < 2; by_byte++) {
                feed(tools, e->in_reasoning, e->text, len, cut, by_byte ? 1 : len + 1, &j);
                assert_true(same(&whole, &j));
                joined_fini(&j);
            }
        joined_fini(&whole);
    }
    lg_json_close(&doc);
}

static void test_turns_at_every_cut(void **state) {
    (void)state;
    static const uint32_t n_call[] = {1, 2, 2, 1};
    lg_json_doc *doc = parse(tools_json);
    for (size_t i = 0; i < LG_COUNT(turns); i++) {
        size_t len = strlen(turns[i]);
        joined whole, j;
        feed(lg_json_root(doc), true, turns[i], len, len, 1, &whole);
        assert_int_equal(whole.n_call, n_call[i]);
        for (size_t step = 1; step <= len; step++)
            for (size_t cut = 0; cut <= len; cut += step < 3 ? 1 : 7) {
                feed(lg_json_root(doc), true, turns[i], len, cut, step, &j);
                assert_true(same(&whole, &j));
                joined_fini(&j);
            }
        joined_fini(&whole);
    }
    lg_json_close(&doc);
}

/* What is cut off at any byte: streamed as at once, and closed it is whole. */
static void test_cut_off_anywhere(void **state) {
    (void)state;
    lg_json_doc *doc = parse(tools_json), *args = NULL;
    size_t n_cut = 0;
    for (size_t i = 0; i < LG_COUNT(examples); i++) {
        const example *e = &examples[i];
        const lg_json *tools = e->tools ? lg_json_root(doc) : NULL;
        for (size_t len = strlen(e->text); len > 0; len--) {
            joined whole = {.cut = true}, j = {.cut = true};
            feed_to(tools, e->in_reasoning, e->text, len, len, 1, &whole);
            feed_to(tools, e->in_reasoning, e->text, len, 0, 1, &j);
            assert_true(same(&whole, &j));
            joined_fini(&j);
            const char *last = lg_buf_str(&whole.calls);
            if (whole.closing[0]) {
                while (strchr(last, '\n')) last = strchr(last, '\n') + 1;
                lg_buf all = {0};
                last = strchr(last, ' ') + 1;
                lg_buf_puts(&all, last);
                assert_int_not_equal(
                    lg_json_parse(all.data, all.len_bytes, 64, "cut", &args, NULL), LG_OK);
                lg_buf_puts(&all, whole.closing);
                lg_json_close(&args);
                args = parse(lg_buf_str(&all));
                assert_int_equal(lg_json_root(args)->kind, LG_JSON_OBJECT);
                lg_json_close(&args);
                lg_buf_fini(&all);
                n_cut++;
            }
            joined_fini(&whole);
        }
    }
    assert_true(n_cut > 1000);
    lg_json_close(&doc);
}

/* A long string comes as it is written: after the first byte nothing but a possible closing tag is held back. */
static size_t held(const char *schema_key, const char *value) {
    lg_json_doc *doc = parse(tools_json);
    lg_outparse *op;
    joined j = {.order_kept = true};
    size_t worst = 0, sent = 0;
    char head[64];
    snprintf(head, sizeof head, "<tool_call>\n<function=f>\n<parameter=%s>\n", schema_key);
    assert_int_equal(lg_outparse_open(lg_json_root(doc), false, &op), LG_OK);
    assert_int_equal(lg_outparse_put(op, head, strlen(head), collect, &j), LG_OK);
    assert_int_equal(j.n_call, 1); /* the call is told before its first argument is there */
    size_t n_head = strlen("f {\"\":\"") + strlen(schema_key);
    for (const char *p = value; *p; p++) {
        assert_int_equal(lg_outparse_put(op, p, 1, collect, &j), LG_OK);
        sent++;
        size_t got = j.calls.len_bytes < n_head ? 0 : j.calls.len_bytes - n_head;
        if (sent - got > worst) worst = sent - got;
    }
    assert_int_equal(lg_outparse_end(op, false, collect, &j), LG_OK);
    lg_outparse_close(&op);
    joined_fini(&j);
    lg_json_close(&doc);
    return worst;
}

static void test_long_strings_come_at_once(void **state) {
    (void)state;
    lg_buf text = {0};
    while (text.len_bytes < 50000) lg_buf_puts(&text, "int main(void) { return a < b; } ");
    assert_int_equal(held("s", lg_buf_str(&text)), 1);  /* "<" may begin a tag */
    assert_int_equal(held("sn", lg_buf_str(&text)), 1); /* may be null, which "i" is not */
    assert_int_equal(held("so", lg_buf_str(&text)), 1); /* may be an object */
    assert_int_equal(held("unknown", lg_buf_str(&text)), 1);
    assert_int_equal(held("sn", "nullable text"), 4);
    assert_int_equal(held("unknown", "12 monkeys"), 3);
    assert_int_equal(held("s", "a </parameter> b"), 13);
    lg_buf_fini(&text);
}

/* Text with NULs and bytes that are no UTF-8 passes as it is. */
static void test_any_byte_passes(void **state) {
    (void)state;
    char text[256];
    joined j;
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    lg_json_doc *doc = parse(tools_json);
    feed(lg_json_root(doc), false, text, sizeof text, 0, 1, &j);
    assert_int_equal(j.content.len_bytes, sizeof text);
    assert_memory_equal(j.content.data, text, sizeof text);
    joined_fini(&j);
    lg_json_close(&doc);
}

/* ---- Rendered calls come back ---- */

static void expect_message(const lg_json *msg, const joined *j) {
    lg_buf want = {0}, content = {0};
    const lg_json *calls = lg_json_get(msg, "tool_calls");
    for (const lg_json *c = calls->child; c; c = c->next) {
        const lg_json *f = lg_json_get(c, "function");
        if (!f) f = c;
        if (want.len_bytes) lg_buf_puts(&want, "\n");
        lg_buf_printf(&want, "%s ", lg_json_get(f, "name")->text);
        lg_json_put(&want, lg_json_get(f, "arguments"), LG_JSON_COMPACT);
    }
    assert_string_equal(lg_buf_str(&j->calls), lg_buf_str(&want));
    const lg_json *text = lg_json_get(msg, "content");
    if (text && text->kind == LG_JSON_STRING) lg_buf_puts(&content, text->text);
    assert_string_equal(lg_buf_str(&j->content), lg_buf_str(&content));
    lg_buf_fini(&want);
    lg_buf_fini(&content);
}

/* Render the messages up to and with an assistant's calls, and parse what the assistant said. */
static size_t round_trip(const lg_json *row) {
    const lg_json *messages = lg_json_get(row, "messages"), *tools = lg_json_get(row, "tools");
    lg_json_doc *other = parse("[{\"name\":\"ping\"}]");
    size_t n = 0;
    for (const lg_json *m = messages->child; m; m = m->next) {
        if (!lg_json_get(m, "tool_calls")) continue;
        lg_json first = *messages, last = *m;
        lg_chat_opt opt = {.messages = &first, .tools = tools};
        lg_chat chat = {0};
        lg_err err = {0};
        /* a copy of the list that ends at m */
        lg_json copy[8];
        size_t n_copy = 0;
        for (const lg_json *p = messages->child; p != m; p = p->next) copy[n_copy++] = *p;
        last.next = NULL;
        copy[n_copy++] = last;
        for (size_t i = 0; i + 1 < n_copy; i++) copy[i].next = &copy[i + 1];
        first.child = copy;
        first.n_child = (uint32_t)n_copy;
        if (lg_chat_render(&opt, &chat, &err) != LG_OK) fail_msg("%s", err.msg);
        static const char head[] = "<|im_start|>assistant\n<think>\n";
        const char *said = strstr(chat.text.data, head), *next;
        while ((next = strstr(said + 1, head))) said = next;
        said += sizeof head - 1;
        size_t len = (size_t)(strstr(said, "<|im_end|>") - said);
        joined j;
        feed(tools ? tools : lg_json_root(other), true, said, len, 0, 1, &j);
        expect_message(m, &j);
        const lg_json *think = lg_json_get(m, "reasoning_content");
        assert_string_equal(lg_buf_str(&j.reasoning), think ? think->text : "");
        joined_fini(&j);
        lg_chat_fini(&chat);
        n++;
    }
    lg_json_close(&other);
    return n;
}

static void test_rendered_calls_come_back(void **state) {
    (void)state;
    char path[512], line[16384];
    const char *dir = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/data/chat.jsonl", dir ? dir : ".");
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be read", path);
    size_t n = 0;
    while (fgets(line, sizeof line, f)) {
        assert_non_null(strchr(line, '\n'));
        lg_json_doc *doc = parse(line);
        if (!lg_json_get(lg_json_root(doc), "error")) n += round_trip(lg_json_root(doc));
        lg_json_close(&doc);
    }
    fclose(f);
    assert_int_equal(n, 17);
}

/* ---- Mutations ---- */

static bool starts(const char *s, size_t len, const char *word) {
    return len >= strlen(word) && memcmp(s, word, strlen(word)) == 0;
}

static bool blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* True when out is in without n_call blocks, each from an opening to a closing tag, white space aside. */
static bool conserved(const char *in, size_t n_in, const char *out, size_t n_out,
                      uint32_t n_call) {
    for (;;) {
        while (n_in && blank(*in)) in++, n_in--;
        while (n_out && blank(*out)) out++, n_out--;
        if (n_in == 0) return n_out == 0 && n_call == 0;
        if (n_call && (starts(in, n_in, "<tool_call>") || starts(in, n_in, "<function="))) {
            if (n_call == 1 && n_out == 0) return true; /* never closed */
            for (size_t i = 1; i < n_in; i++) {
                static const char *const close[] = {"</function>", "</tool_call>", "}"};
                for (size_t t = 0; t < LG_COUNT(close); t++) {
                    size_t len = strlen(close[t]);
                    if (starts(in + i, n_in - i, close[t]) &&
                        conserved(in + i + len, n_in - i - len, out, n_out, n_call - 1))
                        return true;
                }
            }
        }
        if (n_out == 0 || *in != *out) return false;
        in++, n_in--;
        out++, n_out--;
    }
}

static size_t mutate(char *text, size_t len, size_t cap, uint64_t key) {
    static const char *const piece[] = {
        "<tool_call>",   "</tool_call>", "<function=f>", "</function>", "<parameter=s>",
        "</parameter>",  "</think>",     "\n",           "<",           "x",
        "<function=g>",  "</",           "\n\n",         ">",           "<parameter=",
        "\n</parameter>"};
    for (uint32_t k = 0; k < 1 + lg_num_rng(key, 0, 0, 0) % 4; k++) {
        size_t at = lg_num_rng(key, 1, k, 0) % (len + 1);
        size_t n = lg_num_rng(key, 1, k, 1) % 12, what = lg_num_rng(key, 1, k, 2) % 4;
        if (what == 0) { /* delete */
            if (n > len - at) n = len - at;
            memmove(text + at, text + at + n, len - at - n);
            len -= n;
        } else if (what == 1 && at < len) { /* change */
            text[at] = (char)lg_num_rng(key, 1, k, 3);
        } else { /* insert */
            const char *p = piece[lg_num_rng(key, 1, k, 4) % LG_COUNT(piece)];
            n = strlen(p);
            if (len + n > cap) continue;
            memmove(text + at + n, text + at, len - at);
            memcpy(text + at, p, n);
            len += n;
        }
    }
    return len;
}

static void test_mutations_lose_nothing(void **state) {
    (void)state;
    lg_json_doc *doc = parse(tools_json);
    uint64_t n_call = 0, n_text = 0;
    for (uint64_t key = 0; key < 20000; key++) {
        const example turn = {true, true, turns[key % LG_COUNT(turns)], NULL, NULL, NULL};
        const example *e = &examples[lg_num_rng(key, 2, 0, 0) % LG_COUNT(examples)];
        if (key < 10000) e = &turn;
        char text[1024];
        size_t len = strlen(e->text);
        memcpy(text, e->text, len);
        len = mutate(text, len, sizeof text, key);
        const lg_json *tools = e->tools ? lg_json_root(doc) : NULL;
        joined whole, j;
        feed(tools, e->in_reasoning, text, len, len, 1, &whole);
        feed(tools, e->in_reasoning, text, len, 0, 1, &j);
        assert_true(same(&whole, &j));
        joined_fini(&j);
        feed(tools, e->in_reasoning, text, len, len / 3, 7, &j);
        assert_true(same(&whole, &j));
        joined_fini(&j);
        /* Only </think>, calls and white space may be missing. */
        size_t r = whole.reasoning.len_bytes, at = r;
        assert_memory_equal(text, lg_buf_str(&whole.reasoning), r);
        if (e->in_reasoning) {
            while (at < len && text[at] == '\n') at++;
            if (starts(text + at, len - at, "</think>")) at += 8;
        }
        assert_true(conserved(text + at, len - at, lg_buf_str(&whole.content),
                              whole.content.len_bytes, whole.n_call));
        n_call += whole.n_call;
        n_text += whole.n_call == 0;
        for (const char *p = whole.calls.data; p && *p;
             p = strchr(p, '\n') ? strchr(p, '\n') + 1 : "") {
            const char *args = strchr(p, '{'), *end = strchr(p, '\n');
            lg_json_doc *parsed;
            assert_int_equal(lg_json_parse(args, end ? (size_t)(end - args) : strlen(args), 64,
                                           "arguments", &parsed, NULL),
                             LG_OK);
            assert_int_equal(lg_json_root(parsed)->kind, LG_JSON_OBJECT);
            lg_json_close(&parsed);
        }
        joined_fini(&whole);
    }
    printf("%u mutations: %u calls, %u without one\n", 20000u, (unsigned)n_call,
           (unsigned)n_text);
    assert_true(n_call > 1000 && n_text > 1000);
    lg_json_close(&doc);
}

/* A megabyte of each hard pattern: quadratic work would take minutes. */
static void test_linear(void **state) {
    (void)state;
    static const char *const pattern[] = {
        "<",
        "\n",
        "<tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>\n",
        "</parameter>\n",
        "<tool_call>\n<function=f>\n</function>\n</tool_call>\n",
        "<function=f>",
        "x\n",
        "</think"};
    lg_json_doc *doc = parse(tools_json);
    for (size_t i = 0; i < 2 * LG_COUNT(pattern); i++) {
        lg_buf text = {0};
        joined j;
        if (i % 2) lg_buf_puts(&text, "<tool_call>\n<function=f>\n<parameter=s>\n");
        while (text.len_bytes < 1 << 20) lg_buf_puts(&text, pattern[i / 2]);
        feed(lg_json_root(doc), false, text.data, text.len_bytes, 0, 3, &j);
        joined_fini(&j);
        feed(lg_json_root(doc), false, text.data, text.len_bytes, text.len_bytes, 1, &j);
        joined_fini(&j);
        lg_buf_fini(&text);
    }
    lg_json_close(&doc);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    lg_json_doc *doc = parse(tools_json);
    size_t n_failed = 0;
    for (size_t i = 0; i < LG_COUNT(examples); i++) {
        for (uint64_t n = 1;; n++) {
            int64_t alive = lg_mem_alive();
            lg_outparse *op = NULL;
            joined j = {.order_kept = true};
            lg_mem_fail_at(n);
            lg_status st = lg_outparse_open(examples[i].tools ? lg_json_root(doc) : NULL,
                                            examples[i].in_reasoning, &op);
            for (const char *p = examples[i].text; *p && st == LG_OK; p++)
                st = lg_outparse_put(op, p, 1, collect, &j);
            if (st == LG_OK) st = lg_outparse_end(op, false, collect, &j);
            lg_mem_fail_at(0);
            bool lost = j.reasoning.failed || j.content.failed || j.calls.failed;
            lg_outparse_close(&op);
            joined_fini(&j);
            assert_int_equal(lg_mem_alive(), alive);
            if (st == LG_OK && !lost) break;
            assert_true(st == LG_E_NOMEM || st == LG_OK);
            n_failed++;
        }
    }
    assert_true(n_failed > 200);
    lg_json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples_at_every_cut),
        cmocka_unit_test(test_turns_at_every_cut),
        cmocka_unit_test(test_cut_off_anywhere),
        cmocka_unit_test(test_long_strings_come_at_once),
        cmocka_unit_test(test_any_byte_passes),
        cmocka_unit_test(test_rendered_calls_come_back),
        cmocka_unit_test(test_mutations_lose_nothing),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
