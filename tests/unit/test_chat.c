/* test_chat.c - the chat format against conversations rendered by the release's own template (tests/data/chat.jsonl), and
 * against ids of conversations in which control tokens are typed as text (tests/data/chat_typed.jsonl, made with the
 * reference tokenizer: text between real control tokens encoded with added tokens switched off). */
#include "model/text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TOKENIZER "tests/data/tokenizer/tiny"
#define BUNDLED   "models/tiny-qwen35moe"

static void path_of(char *path, size_t size, const char *name) {
    const char *dir = getenv("LG_SOURCE_DIR");
    snprintf(path, size, "%s/%s", dir ? dir : ".", name);
}

static void read_file(const char *name, lg_buf *b) {
    char path[512], chunk[4096];
    path_of(path, sizeof path, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be read", path);
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) lg_buf_put(b, chunk, n);
    fclose(f);
    assert_false(b->failed);
}

/* Call fn for each line of a JSONL file; returns the number of lines. */
static size_t each_row(const char *name, void (*fn)(const lg_json *row, void *ctx), void *ctx) {
    lg_buf b = {0};
    size_t n = 0;
    read_file(name, &b);
    for (const char *p = b.data, *end; p && *p; p = end + 1) {
        end = strchr(p, '\n');
        assert_non_null(end);
        lg_json_doc *doc;
        lg_err err;
        assert_int_equal(lg_json_parse(p, (size_t)(end - p), 64, name, &doc, &err), LG_OK);
        fn(lg_json_root(doc), ctx);
        lg_json_close(&doc);
        n++;
    }
    lg_buf_fini(&b);
    return n;
}

static lg_chat_opt options_of(const lg_json *row) {
    const lg_json *kw = lg_json_get(row, "kwargs");
    lg_chat_opt opt = {.messages = lg_json_get(row, "messages"),
                       .tools = lg_json_get(row, "tools")};
    bool thinking = true;
    lg_json_bool(lg_json_get(kw, "add_generation_prompt"), &opt.add_generation_prompt);
    lg_json_bool(lg_json_get(kw, "add_vision_id"), &opt.add_vision_id);
    lg_json_bool(lg_json_get(kw, "enable_thinking"), &thinking);
    opt.no_think = !thinking;
    return opt;
}

static void check_spans(const lg_chat *chat) {
    size_t at = 0;
    for (size_t i = 0; i < chat->n_span; i++) {
        assert_int_equal(chat->span[i].begin, at);
        assert_true(chat->span[i].end > at);
        if (i > 0) assert_int_not_equal(chat->span[i].control, chat->span[i - 1].control);
        at = chat->span[i].end;
    }
    assert_int_equal(at, chat->text.len_bytes);
}

typedef struct tally {
    lg_tokenizer *tok; /* NULL: text only */
    bool typed;        /* rows of chat_typed.jsonl: ids are right as they are */
    size_t n_text, n_error, n_ids;
} tally;

/* In these the vectors' ids take typed text for control tokens; chat_typed.jsonl has the right ones. */
static bool typed_in_golden(const lg_json *name) {
    return lg_json_is(name, "special_look_alike") || lg_json_is(name, "think_in_user") ||
           lg_json_is(name, "user_as_tool_response");
}

static void check_row(const lg_json *row, void *ctx) {
    tally *t = ctx;
    const lg_json *want = lg_json_get(row, "rendered"), *error = lg_json_get(row, "error");
    const lg_json *name = lg_json_get(row, "name"), *want_ids = lg_json_get(row, "ids");
    lg_chat_opt opt = options_of(row);
    lg_chat chat = {0};
    lg_err err = {0};
    lg_status st = lg_chat_render(&opt, &chat, &err);
    if (error) {
        assert_int_equal(st, LG_E_ARG);
        assert_string_equal(err.msg, error->text);
        t->n_error++;
    } else {
        if (st != LG_OK) fail_msg("%s: %s", name->text, err.msg);
        if (strcmp(chat.text.data, want->text) != 0)
            fail_msg("%s: rendered\n%s\nexpected\n%s", name->text, chat.text.data, want->text);
        assert_int_equal(chat.text.len_bytes, want->text_len);
        assert_int_equal(chat.opened_think, opt.add_generation_prompt && !opt.no_think);
        check_spans(&chat);
        t->n_text++;
    }
    if (t->tok && want_ids && (t->typed || !typed_in_golden(name))) {
        lg_ids ids = {0};
        assert_int_equal(lg_chat_encode(&opt, t->tok, &chat, &ids, &err), LG_OK);
        size_t i = 0;
        for (const lg_json *id = want_ids->child; id; id = id->next, i++) {
            uint64_t v;
            assert_true(lg_json_u64(id, &v));
            if (i >= ids.n || ids.id[i] != v)
                fail_msg("%s: id %zu is not %u", name->text, i, (unsigned)v);
        }
        assert_int_equal(ids.n, i);
        lg_ids_fini(&ids);
        t->n_ids++;
    }
    lg_chat_fini(&chat);
}

static void test_golden_text_and_errors(void **state) {
    (void)state;
    tally t = {0};
    assert_int_equal(each_row("tests/data/chat.jsonl", check_row, &t), 77);
    assert_int_equal(t.n_error, 14);
    assert_int_equal(t.n_text, 63);
    t = (tally){0};
    assert_int_equal(each_row("tests/data/chat_typed.jsonl", check_row, &t), 13);
    assert_int_equal(t.n_text, 13);
}

static lg_tokenizer *open_tokenizer(const char *name) {
    char path[512];
    lg_tokenizer *tok;
    lg_err err;
    path_of(path, sizeof path, name);
    if (lg_tokenizer_open(path, &tok, &err) != LG_OK) fail_msg("%s", err.msg);
    return tok;
}

static void test_golden_ids(void **state) {
    (void)state;
    tally t = {.tok = open_tokenizer(TOKENIZER)};
    each_row("tests/data/chat.jsonl", check_row, &t);
    assert_int_equal(t.n_ids, 60);
    t.typed = true;
    t.n_ids = 0;
    each_row("tests/data/chat_typed.jsonl", check_row, &t);
    assert_int_equal(t.n_ids, 13);
    lg_tokenizer_close(&t.tok);
}

static void check_eval_row(const lg_json *row, void *ctx) {
    lg_tokenizer *tok = ctx;
    const lg_json *want = lg_json_get(row, "prompt_ids");
    bool thinking = true;
    lg_json_bool(lg_json_get(row, "enable_thinking"), &thinking);
    lg_chat_opt opt = {.messages = lg_json_get(row, "messages"),
                       .tools = lg_json_get(row, "tools"),
                       .add_generation_prompt = true,
                       .no_think = !thinking};
    lg_chat chat = {0};
    lg_ids ids = {0};
    lg_err err = {0};
    if (lg_chat_encode(&opt, tok, &chat, &ids, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_int_equal(ids.n, want->n_child);
    size_t i = 0;
    for (const lg_json *id = want->child; id; id = id->next) {
        uint64_t v;
        assert_true(lg_json_u64(id, &v));
        assert_int_equal(ids.id[i++], v);
    }
    lg_ids_fini(&ids);
    lg_chat_fini(&chat);
}

/* The prompts of the bundled model's evaluation. */
static void test_eval_prompts(void **state) {
    (void)state;
    lg_tokenizer *tok = open_tokenizer(BUNDLED);
    assert_int_equal(each_row("tests/data/eval.jsonl", check_eval_row, tok), 200);
    lg_tokenizer_close(&tok);
}

static lg_json_doc *parse(const char *text) {
    lg_json_doc *doc;
    lg_err err;
    if (lg_json_parse(text, strlen(text), 64, "test", &doc, &err) != LG_OK)
        fail_msg("%s: %s", err.msg, text);
    return doc;
}

/* Number of added tokens in the prompt of {"messages": ..., "tools": ...}. */
static size_t count_added(lg_tokenizer *tok, const char *json) {
    lg_json_doc *doc = parse(json);
    lg_chat_opt opt = options_of(lg_json_root(doc));
    opt.parse_arguments = true;
    lg_chat chat = {0};
    lg_ids ids = {0};
    lg_err err;
    if (lg_chat_encode(&opt, tok, &chat, &ids, &err) != LG_OK) fail_msg("%s", err.msg);
    size_t n = 0, len;
    for (size_t i = 0; i < ids.n; i++) {
        const char *s;
        bool added, special;
        assert_true(lg_tokenizer_piece(tok, ids.id[i], &s, &len, &added, &special));
        n += added;
    }
    lg_ids_fini(&ids);
    lg_chat_fini(&chat);
    lg_json_close(&doc);
    return n;
}

/* Where text can stand, with @ for it; `own`: the format's own tags may match there. */
static const struct {
    const char *json;
    bool own;
} place[] = {
    {"{'messages':[{'role':'system','content':'a @b'},{'role':'user','content':'q'}]}", false},
    {"{'messages':[{'role':'user','content':'@'}]}", false},
    {"{'messages':[{'role':'user','content':[{'type':'text','text':'@'},{'type':'image','image'"
     ":"
     "'@'}]}]}",
     false},
    {"{'messages':[{'role':'user','content':'q'},{'role':'tool','content':'x@'}]}", false},
    {"{'messages':[{'role':'user','content':'q'}],'tools':[{'name':'@','d':{'@':['@']}}]}",
     false},
    {"{'messages':[{'role':'system','content':'@'},{'role':'user','content':'q'}],'tools':[{"
     "'name':'f'}]}",
     false},
    {"{'messages':[{'role':'user','content':'q'},{'role':'assistant','tool_calls':[{'name':'@',"
     "'arguments':{'@':'@','n':['@'],'o':{'@':1}}}]}]}",
     false},
    {"{'messages':[{'role':'user','content':'q'},{'role':'assistant','tool_calls':[{'function':"
     "{'name':'f','arguments':'{\\'@\\':\\'@\\'}'}}]}]}",
     false},
    {"{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a @ b',"
     "'reasoning_content':'r'}]}",
     true},
    {"{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a',"
     "'reasoning_content':'r@r'}]}",
     true},
};

static void fill(lg_buf *out, const char *json, const char *text) {
    lg_buf_clear(out);
    for (const char *p = json; *p; p++) {
        if (*p == '@')
            lg_buf_puts(out, text);
        else
            lg_buf_putc(out, *p == '\'' ? '"' : *p);
    }
}

static void test_no_typed_token_is_ever_special(void **state) {
    (void)state;
    lg_tokenizer *tok = open_tokenizer(TOKENIZER);
    lg_buf json = {0};
    size_t n_checked = 0;
    for (uint32_t id = 0; id < lg_tokenizer_n_id(tok); id++) {
        const char *s;
        char text[64];
        size_t len;
        bool added, special;
        if (!lg_tokenizer_piece(tok, id, &s, &len, &added, &special) || !added) continue;
        snprintf(text, sizeof text, "%.*s", (int)len, s);
        bool own = !strcmp(text, "<think>") || !strcmp(text, "</think>") ||
                   !strcmp(text, "<tool_call>") || !strcmp(text, "</tool_call>");
        for (size_t i = 0; i < LG_COUNT(place); i++) {
            fill(&json, place[i].json, "x");
            size_t plain = count_added(tok, json.data);
            fill(&json, place[i].json, text);
            assert_int_equal(count_added(tok, json.data), plain + (place[i].own && own));
            n_checked++;
        }
    }
    assert_int_equal(n_checked, 33 * LG_COUNT(place));
    lg_buf_fini(&json);
    lg_tokenizer_close(&tok);
}

#define U "{'role':'user','content':'q'}"
#define A "{'role':'assistant','content':'c',"

static void test_malformed_shapes_name_message_and_field(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"{'tools':[]}", "messages: expected an array, found nothing"},
        {"{'messages':{}}", "messages: expected an array, found object"},
        {"{'messages':[" U ",5]}", "messages[1]: expected an object, found number"},
        {"{'messages':[{'content':'x'}]}",
         "messages[0].role: expected a string, found nothing"},
        {"{'messages':[" U ",{'role':null}]}",
         "messages[1].role: expected a string, found null"},
        {"{'messages':[" U "],'tools':{}}", "tools: expected an array, found object"},
        {"{'messages':[" U "],'tools':[{},'x']}", "tools[1]: expected an object, found string"},
        {"{'messages':[{'role':'user','content':['x']}]}",
         "messages[0].content[0]: expected an object, found string"},
        {"{'messages':[" U ",{'role':'user','content':[{'text':'x'},{'text':7}]}]}",
         "messages[1].content[1].text: expected a string, found number"},
        {"{'messages':[" U "," A "'reasoning_content':7}]}",
         "messages[1].reasoning_content: expected a string, found number"},
        {"{'messages':[" U "," A "'thinking':[]}]}",
         "messages[1].thinking: expected a string, found array"},
        {"{'messages':[" U "," A "'tool_calls':{}}]}",
         "messages[1].tool_calls: expected an array, found object"},
        {"{'messages':[" U "," A "'tool_calls':[[]]}]}",
         "messages[1].tool_calls[0]: expected an object, found array"},
        {"{'messages':[" U "," A "'tool_calls':[{'function':null}]}]}",
         "messages[1].tool_calls[0].function: expected an object, found null"},
        {"{'messages':[" U "," A "'tool_calls':[{'name':'f'},{'name':1}]}]}",
         "messages[1].tool_calls[1].name: expected a string, found number"},
        {"{'messages':[" U "," A "'tool_calls':[{'function':{}}]}]}",
         "messages[1].tool_calls[0].function.name: expected a string, found nothing"},
        {"{'messages':[" U "," A "'tool_calls':[{'name':'f','arguments':[]}]}]}",
         "Can only get item pairs from a mapping."},
        {"{'messages':[" U "," A "'tool_calls':[{'name':'f','arguments':'[1]'}]}]}",
         "messages[1].tool_calls[0].arguments: expected the text of an object, found array"},
    };
    lg_buf json = {0};
    for (size_t i = 0; i < LG_COUNT(bad); i++) {
        fill(&json, bad[i][0], "");
        lg_json_doc *doc = parse(json.data);
        lg_chat_opt opt = options_of(lg_json_root(doc));
        opt.parse_arguments = true;
        lg_chat chat = {0};
        lg_err err = {0};
        assert_int_equal(lg_chat_render(&opt, &chat, &err), LG_E_ARG);
        assert_int_equal(err.code, LG_E_ARG);
        assert_string_equal(err.msg, bad[i][1]);
        lg_chat_fini(&chat);
        lg_json_close(&doc);
    }
    lg_buf_fini(&json);
}

static void check_render(const char *json, bool relaxed, bool think, const char *want) {
    lg_buf b = {0};
    fill(&b, json, "");
    lg_json_doc *doc = parse(b.data);
    lg_chat_opt opt = options_of(lg_json_root(doc));
    opt.parse_arguments = true;
    opt.relaxed = relaxed;
    lg_chat chat = {0};
    lg_err err = {0};
    if (lg_chat_render(&opt, &chat, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_string_equal(chat.text.data, want);
    assert_int_equal(chat.opened_think, think);
    check_spans(&chat);
    lg_chat_fini(&chat);
    lg_json_close(&doc);
    lg_buf_fini(&b);
}

static void check_text(const char *json, const char *want) {
    check_render(json, false, false, want);
}

#define SYSTEM(text)   "<|im_start|>system\n" text "<|im_end|>\n"
#define USER(text)     "<|im_start|>user\n" text "<|im_end|>\n"
#define GO             "<|im_start|>assistant\n<think>\n"
#define KW             "],'kwargs':{'add_generation_prompt':true}}"
#define KW_NO          "],'kwargs':{'add_generation_prompt':true,'enable_thinking':false}}"
#define MSG(role, say) "{'role':'" role "','content':'" say "'}"

static void test_relaxed_conversations(void **state) {
    (void)state;
    static const struct {
        const char *json, *want;
        bool think;
    } c[] = {
        {MSG("system", "a") "," MSG("user", "q") "," MSG("system", " b ") KW,
         SYSTEM("a") USER("q") SYSTEM("b") GO, true},
        {MSG("system", "a") "," MSG("system", "b") KW, SYSTEM("a") SYSTEM("b") GO, true},
        {MSG("system", "a") KW, SYSTEM("a") GO, true},
        {MSG("tool", "r") "," MSG("tool", "s") KW,
         USER("<tool_response>\nr\n</tool_response>\n<tool_response>\ns\n</tool_response>") GO,
         true},
        {MSG("tool", "r") "," MSG("user", "q") KW_NO,
         USER("<tool_response>\nr\n</tool_response>") USER("q") GO "\n</think>\n\n", false},
        {MSG("assistant", "a") "," MSG("tool", "r") KW,
         GO "\n</think>\n\na<|im_end|>\n" USER("<tool_response>\nr\n</tool_response>") GO,
         true},
        /* open turns */
        {MSG("user", "q") "," MSG("assistant", " one, ") KW, USER("q") GO "\n</think>\n\none, ",
         false},
        {MSG("user", "q") "," MSG("assistant", "<think>t</think>x") KW,
         USER("q") GO "t\n</think>\n\nx", false},
        {MSG("user", "q") ",{'role':'assistant','reasoning_content':'so'}" KW,
         USER("q") GO "so", true},
        {MSG("user", "q") ",{'role':'assistant','reasoning_content':'so'}" KW_NO,
         USER("q") GO "so\n</think>\n\n", false},
        {MSG("user", "q") "," MSG("assistant", "") KW, USER("q") GO, true},
        {MSG("user", "q") "," MSG("assistant", "") KW_NO, USER("q") GO "\n</think>\n\n", false},
        {MSG("assistant", "x") KW, GO "\n</think>\n\nx", false},
        {MSG("user", "q") ",{'role':'assistant','content':'c','tool_calls':[{'name':'f'}]}" KW,
         USER("q") GO "\n</think>\n\nc\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>"
                      "<|im_end|>\n" GO,
         true},
    };
    for (size_t i = 0; i < LG_COUNT(c); i++) {
        char json[512];
        snprintf(json, sizeof json, "{'messages':[%s", c[i].json);
        check_render(json, true, c[i].think, c[i].want);
    }
}

/* What the format takes, it takes relaxed too, with the same text. */
static void same_relaxed(const lg_json *row, void *ctx) {
    (void)ctx;
    lg_chat_opt opt = options_of(row);
    const lg_json *messages = lg_json_get(row, "messages");
    if (lg_json_get(row, "error")) return;
    const lg_json *last = lg_json_at(messages, messages->n_child - 1);
    const lg_json *first = lg_json_get(messages->child, "role");
    if (lg_json_is(lg_json_get(last, "role"), "assistant") || lg_json_is(first, "tool")) return;
    lg_chat chat = {0};
    opt.relaxed = true;
    assert_int_equal(lg_chat_render(&opt, &chat, NULL), LG_OK);
    assert_string_equal(chat.text.data, lg_json_get(row, "rendered")->text);
    lg_chat_fini(&chat);
}

static void test_relaxed_changes_nothing_else(void **state) {
    (void)state;
    assert_true(each_row("tests/data/chat.jsonl", same_relaxed, NULL) > 50);
}

static void test_arguments_as_text_and_aliases(void **state) {
    (void)state;
    static const char head[] =
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n";
    char want[512];
    snprintf(
        want, sizeof want,
        "%sr\n</think>\n\nc\n\n<tool_call>\n<function=f>\n<parameter=a>\n1e-07\n</parameter>"
        "\n<parameter=b>\ninf\n</parameter>\n<parameter=c>\n-inf\n</parameter>\n</function>"
        "\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n",
        head);
    check_text("{'messages':[" U "," A
               "'thinking':' r\\u001f','tool_calls':[{'function':{'name':'f','arguments':"
               "'{\\'a\\': 1E-7, \\'b\\': 1e999, \\'c\\': -1e999}'}},{'name':'g','arguments':"
               "' '}]}]}",
               want);
    snprintf(want, sizeof want, "%sone\n</think>\n\nc<|im_end|>\n", head);
    check_text("{'messages':[" U "," A "'reasoning_content':'one','reasoning':'two'}]}", want);
    check_text("{'messages':[" U "," A "'reasoning_content':null,'reasoning':'one'}]}", want);
}

static void test_bad_arguments_text_tells_the_byte(void **state) {
    (void)state;
    lg_buf b = {0};
    fill(&b,
         "{'messages':[" U "," A
         "'tool_calls':[{'function':{'name':'f','arguments':'{\\'a\\': }'}}]}]}",
         "");
    lg_json_doc *doc = parse(b.data);
    lg_chat_opt opt = options_of(lg_json_root(doc));
    opt.parse_arguments = true;
    lg_chat chat = {0};
    lg_err err = {0};
    assert_int_equal(lg_chat_render(&opt, &chat, &err), LG_E_ARG);
    assert_int_equal(err.code, LG_E_ARG);
    assert_ptr_equal(strstr(err.msg, "messages[1].tool_calls[0].function.arguments: byte 6"),
                     err.msg);
    lg_chat_fini(&chat);
    lg_json_close(&doc);
    lg_buf_fini(&b);
}

static void fail_everywhere(const lg_json *row, void *ctx) {
    size_t *n_failed = ctx;
    lg_chat_opt opt = options_of(row);
    bool error = lg_json_get(row, "error") != NULL;
    for (uint64_t n = 1;; n++) {
        int64_t alive = lg_mem_alive();
        lg_chat chat = {0};
        lg_err err = {0};
        lg_mem_fail_at(n);
        lg_status st = lg_chat_render(&opt, &chat, &err);
        lg_mem_fail_at(0);
        if (st == LG_OK)
            assert_string_equal(chat.text.data, lg_json_get(row, "rendered")->text);
        lg_chat_fini(&chat);
        assert_int_equal(lg_mem_alive(), alive);
        if (st == (error ? LG_E_ARG : LG_OK)) break;
        assert_int_equal(st, LG_E_NOMEM);
        ++*n_failed;
    }
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    size_t n_failed = 0;
    each_row("tests/data/chat.jsonl", fail_everywhere, &n_failed);
    assert_true(n_failed > 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_text_and_errors),
        cmocka_unit_test(test_relaxed_conversations),
        cmocka_unit_test(test_relaxed_changes_nothing_else),
        cmocka_unit_test(test_arguments_as_text_and_aliases),
        cmocka_unit_test(test_bad_arguments_text_tells_the_byte),
        cmocka_unit_test(test_malformed_shapes_name_message_and_field),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_golden_ids),
        cmocka_unit_test(test_eval_prompts),
        cmocka_unit_test(test_no_typed_token_is_ever_special),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
