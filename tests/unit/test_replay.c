/* test_replay.c - turns in the ids that the model made: what is recognised, what is not, who shares with whom, what stays bounded. */
#include "base/base.h"
#include "gateway/wire/replay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lg_tokenizer *tok;
static uint32_t im_end;

static const char *source(const char *name) {
    static char path[1024];
    const char *root = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    return path;
}

static int open_all(void **state) {
    (void)state;
    lg_err err = {0};
    if (lg_tokenizer_open(source("models/tiny-qwen35moe"), &tok, &err) != LG_OK) return -1;
    im_end = lg_tokenizer_added(tok, "<|im_end|>");
    return 0;
}

static int close_all(void **state) {
    (void)state;
    lg_tokenizer_close(&tok);
    return lg_mem_alive() == 0 ? 0 : -1;
}

static lg_replay *open_replay(size_t bytes) {
    lg_replay *r;
    assert_int_equal(lg_replay_open(bytes, &r), LG_OK);
    return r;
}

static lg_json_doc *parse(const char *json) {
    lg_json_doc *doc;
    lg_err err = {0};
    if (lg_json_parse(json, strlen(json), 64, "test", &doc, &err)) fail_msg("%s", err.msg);
    return doc;
}

/* What a prompt of {"messages": ..., "tools": ...} becomes. */
typedef struct made {
    lg_ids ids;
    uint8_t key[LG_REPLAY_KEY_BYTES];
    bool opened_think;
} made;

static made encode(lg_replay *r, uint64_t tenant, const char *json, bool no_think,
                   bool preserve) {
    made m = {0};
    lg_err err = {0};
    lg_chat chat = {0};
    lg_json_doc *doc = parse(json);
    lg_chat_opt opt = {.messages = lg_json_get(lg_json_root(doc), "messages"),
                       .tools = lg_json_get(lg_json_root(doc), "tools"),
                       .add_generation_prompt = true,
                       .no_think = no_think,
                       .parse_arguments = true,
                       .relaxed = true,
                       .preserve_thinking = preserve};
    if (lg_chat_render(&opt, &chat, &err)) fail_msg("%s", err.msg);
    if (lg_replay_encode(r, tenant, &chat, tok, &m.ids, m.key, &err)) fail_msg("%s", err.msg);
    m.opened_think = chat.opened_think;
    lg_chat_fini(&chat);
    lg_json_close(&doc);
    return m;
}

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":"
    "\"object\","
    "\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"object\"}}}}}]";

/* The model answers `text` in ids of its own making: one character each, as no tokenizer would cut it. */
static lg_ids answer(lg_replay *r, const made *prompt, const char *text, bool one_call) {
    lg_ids ids = {0};
    lg_buf b = {0};
    lg_json_doc *doc = parse(tools);
    static const char *const tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    for (const char *s = text; *s;) {
        size_t len = 1, k = 0;
        while (k < LG_COUNT(tags) && strncmp(s, tags[k], strlen(tags[k])) != 0) k++;
        if (k < LG_COUNT(tags)) len = strlen(tags[k]);
        assert_int_equal(lg_tokenizer_encode(tok, s, len, NULL, 0, true, &ids, NULL), LG_OK);
        s += len;
    }
    lg_buf_puts(&b, text);
    assert_int_equal(lg_ids_push(&ids, im_end), LG_OK);
    lg_replay_put(r, prompt->key, lg_json_root(doc), prompt->opened_think, one_call, &b, ids.id,
                  ids.n);
    lg_buf_fini(&b);
    lg_json_close(&doc);
    return ids;
}

/* Whether `next` begins with the prompt and the answer, in their ids. */
static bool goes_on(const made *next, const made *prompt, const lg_ids *ids) {
    return next->ids.n > prompt->ids.n + ids->n &&
           memcmp(next->ids.id, prompt->ids.id, prompt->ids.n * sizeof(uint32_t)) == 0 &&
           memcmp(next->ids.id + prompt->ids.n, ids->id, ids->n * sizeof(uint32_t)) == 0;
}

#define ASKED "{\"tools\":%s,\"messages\":[{\"role\":\"user\",\"content\":\"Sum?\"}"

static char *text_of(const char *more) {
    static char text[8][4096];
    static int i;
    i = (i + 1) % 8;
    snprintf(text[i], sizeof text[i], ASKED "%s]}", tools, more);
    return text[i];
}

static const char call_text[] =
    "I think\nlong and hard.\n</think>\n\nLet me see.\n\n<tool_call>\n<function=add>\n"
    "<parameter=a>\n1\n</parameter>\n<parameter=b>\n{\"x\": 1.5, \"y\": [2, "
    "\"z\"]}\n</parameter>\n"
    "</function>\n</tool_call>";

#define CALL(think, content, args)                                                             \
    ",{\"role\":\"assistant\"" think ",\"content\":" content                                   \
    ",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"add\","                  \
    "\"arguments\":" args "}}]},{\"role\":\"tool\",\"content\":\"3\"}"
#define ARGS  "\"{\\\"a\\\":1,\\\"b\\\":{\\\"x\\\":1.5,\\\"y\\\":[2,\\\"z\\\"]}}\""
#define MIXED "\"{ \\\"b\\\" : {\\\"y\\\": [2, \\\"z\\\"], \\\"x\\\": 1.50}, \\\"a\\\": 1 }\""
#define OBJ   "{\"b\":{\"y\":[2,\"z\"],\"x\":1.5},\"a\":1}"

/* Ways in which clients send the same turn, and turns that are not the same. */
static void test_what_is_recognised(void **state) {
    (void)state;
    static const struct {
        const char *more;
        bool same;
    } row[] = {
        {CALL("", "\"Let me see.\"", ARGS), true}, /* without reasoning */
        {CALL(",\"reasoning_content\":\"I think\\nlong and hard.\"", "\"Let me see.\"", ARGS),
         true},
        {CALL(",\"reasoning\":\" I think\\nlong and hard.\\n\"", "\"Let me see.\\n\"", ARGS),
         true},
        {CALL("", "\"<think>I think\\nlong and hard.</think>Let me see.\"", ARGS), true},
        {CALL("", "[{\"type\":\"text\",\"text\":\"Let me see.\"}]", MIXED), true},
        {CALL("", "\"Let me see.\"", OBJ), true},
        {CALL(",\"reasoning_content\":\"I thought.\"", "\"Let me see.\"", ARGS), false},
        {CALL("", "\"Let me see!\"", ARGS), false},
        {CALL("", "null", ARGS), false},
        {CALL("", "\"Let me see.\"",
              "\"{\\\"a\\\":2,\\\"b\\\":{\\\"x\\\":1.5,\\\"y\\\":[2,\\\"z\\\"]}}\""),
         false},
        {CALL("", "\"Let me see.\"", "\"{\\\"a\\\":1}\""), false},
        {CALL("", "\"Let me see.\"", "\"{}\""), false},
        {",{\"role\":\"assistant\",\"content\":\"Let me "
         "see.\"},{\"role\":\"tool\",\"content\":\"3\"}",
         false}};
    lg_replay *r = open_replay(1 << 20);
    made prompt = encode(r, 1, text_of(""), false, false);
    lg_ids ids = answer(r, &prompt, call_text, false);
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        made next = encode(r, 1, text_of(row[i].more), false, false);
        if (goes_on(&next, &prompt, &ids) != row[i].same) fail_msg("row %zu", i);
        made other = encode(r, 2, text_of(row[i].more), false, false); /* somebody else's */
        assert_false(goes_on(&other, &prompt, &ids));
        lg_ids_fini(&next.ids);
        lg_ids_fini(&other.ids);
    }
    lg_ids_fini(&prompt.ids);
    lg_ids_fini(&ids);
    lg_replay_close(&r);
}

/* Several calls one after the other: each prompt is the one before, the answer, and what is new. */
static void test_a_loop_of_calls(void **state) {
    (void)state;
    for (int no_think = 0; no_think < 2; no_think++) {
        lg_replay *r = open_replay(1 << 20);
        static char more[1 << 16];
        more[0] = 0;
        made prompt = {0};
        lg_ids ids = {0};
        for (int step = 0; step < 12; step++) {
            static char json[1 << 17];
            char text[512];
            snprintf(json, sizeof json, ASKED "%s]}", tools, more);
            made next = encode(r, 1, json, no_think, false);
            if (step) assert_true(goes_on(&next, &prompt, &ids));
            lg_ids_fini(&prompt.ids);
            lg_ids_fini(&ids);
            prompt = next;
            snprintf(text, sizeof text,
                     "%s<tool_call>\n<function=add>\n<parameter=a>\n%d\n</parameter>\n"
                     "</function>\n</tool_call>",
                     no_think ? "" : "Once more.\n</think>\n\n", step);
            ids = answer(r, &prompt, text, false);
            snprintf(
                more + strlen(more), sizeof more - strlen(more),
                ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{"
                "\"name\":\"add\",\"arguments\":\"{ \\\"a\\\" : %d }\"}}]},{\"role\":\"tool\","
                "\"content\":\"%d\"}",
                step, step + 7);
        }
        uint64_t n_kept, n_bytes, n_used;
        lg_replay_count(r, &n_kept, &n_bytes, &n_used);
        assert_int_equal(n_kept, 12);
        assert_int_equal(n_used, 66);
        lg_ids_fini(&prompt.ids);
        lg_ids_fini(&ids);
        lg_replay_close(&r);
    }
}

/* After a new question the format drops reasoning: kept ids are used only with preserve_thinking. */
static void test_finished_turns(void **state) {
    (void)state;
    lg_replay *r = open_replay(1 << 20);
    made prompt = encode(r, 1, text_of(""), false, false);
    lg_ids ids = answer(r, &prompt, "Easy.\n</think>\n\nThree.", false);
    const char *next =
        ",{\"role\":\"assistant\",\"content\":\"Three.\"},{\"role\":\"user\",\"content\":"
        "\"And now?\"}";
    for (int preserve = 0; preserve < 2; preserve++) {
        made m = encode(r, 1, text_of(next), false, preserve);
        assert_int_equal(goes_on(&m, &prompt, &ids), preserve);
        lg_ids_fini(&m.ids);
    }
    lg_ids_fini(&prompt.ids);
    lg_ids_fini(&ids);
    lg_replay_close(&r);
}

/* A client that was told only the first of two calls has another turn; an answer without words is none; a later answer to the same
 * question wins when words are the same. */
static void test_what_is_not_kept(void **state) {
    (void)state;
    uint64_t n_kept, n_bytes, n_used;
    lg_replay *r = open_replay(1 << 20);
    made prompt = encode(r, 1, text_of(""), false, false);
    static const char two[] = "<tool_call>\n<function=add>\n</function>\n</tool_call>\n"
                              "<tool_call>\n<function=add>\n</function>\n</tool_call>";
    static char text[200];
    snprintf(text, sizeof text, "x</think>\n\n%s", two);
    lg_ids ids = answer(r, &prompt, text, true);
    lg_ids_fini(&ids);
    ids = answer(r, &prompt, "Thinking and nothing else", false);
    lg_ids_fini(&ids);
    lg_replay_count(r, &n_kept, &n_bytes, &n_used);
    assert_int_equal(n_kept, 0);
    ids = answer(r, &prompt, "first thought</think>Three.", false);
    lg_ids_fini(&ids);
    ids = answer(r, &prompt, "second thought</think>Three.", false);
    made m =
        encode(r, 1,
               text_of(",{\"role\":\"assistant\",\"content\":\"Three.\"},{\"role\":\"tool\","
                       "\"content\":\"3\"}"),
               false, false);
    assert_true(goes_on(&m, &prompt, &ids));
    lg_ids_fini(&m.ids);
    lg_ids_fini(&prompt.ids);
    lg_ids_fini(&ids);
    lg_replay_close(&r);
}

static void test_it_stays_bounded(void **state) {
    (void)state;
    lg_replay *r = open_replay(40000);
    uint64_t n_kept, n_bytes, n_used;
    made first = encode(r, 1, text_of(""), false, false);
    lg_ids ids = answer(r, &first, "x</think>kept", false);
    const char *back =
        ",{\"role\":\"assistant\",\"content\":\"kept\"},{\"role\":\"tool\",\"content\":\"\"}";
    for (uint32_t i = 0; i < 300; i++) {
        char text[64];
        made p = first;
        memcpy(p.key, &i, sizeof i);
        snprintf(text, sizeof text, "x</think>number %u %.*s", i, (int)(i % 30),
                 "..............................");
        lg_ids other = answer(r, &p, text, false);
        lg_ids_fini(&other);
        lg_replay_count(r, &n_kept, &n_bytes, &n_used);
        assert_true(n_bytes <= 40000);
        made m = encode(r, 1, text_of(back), false, false); /* used again and again: it stays */
        assert_true(goes_on(&m, &first, &ids));
        lg_ids_fini(&m.ids);
    }
    assert_true(n_kept > 50 && n_kept < 300);
    /* One that would take more than a quarter is not kept. */
    static char big[20000];
    memset(big, 'y', sizeof big - 1);
    memcpy(big, "x</think>", 9);
    lg_ids_fini(&ids);
    ids = answer(r, &first, big, false);
    lg_replay_count(r, &n_bytes, &n_used, &n_used);
    assert_int_equal(n_bytes, n_kept);
    lg_ids_fini(&first.ids);
    lg_ids_fini(&ids);
    lg_replay_close(&r);
}

/* With nothing kept, a prompt cut at its turns has the ids of the prompt in one piece: all golden conversations. */
static void test_cuts_change_nothing(void **state) {
    (void)state;
    static char line[1 << 18];
    lg_replay *r = open_replay(1 << 20);
    FILE *f = fopen(source("tests/data/chat.jsonl"), "r");
    assert_non_null(f);
    uint32_t n = 0, n_turn = 0;
    while (fgets(line, sizeof line, f)) {
        lg_json_doc *doc = parse(line);
        const lg_json *root = lg_json_root(doc), *in = lg_json_get(root, "request");
        if (!in) in = lg_json_get(root, "input");
        if (!in) in = root;
        for (int preserve = 0; preserve < 2; preserve++) {
            lg_chat chat = {0};
            lg_ids want = {0}, got = {0};
            uint8_t key[LG_REPLAY_KEY_BYTES];
            lg_chat_opt opt = {.messages = lg_json_get(in, "messages"),
                               .tools = lg_json_get(in, "tools"),
                               .add_generation_prompt = true,
                               .parse_arguments = true,
                               .relaxed = true,
                               .preserve_thinking = preserve};
            if (!opt.messages || lg_chat_render(&opt, &chat, NULL) != LG_OK) {
                lg_chat_fini(&chat);
                continue;
            }
            assert_int_equal(lg_tokenizer_encode(tok, chat.text.data, chat.text.len_bytes,
                                                 chat.span, chat.n_span, true, &want, NULL),
                             LG_OK);
            assert_int_equal(lg_replay_encode(r, 0, &chat, tok, &got, key, NULL), LG_OK);
            assert_int_equal(want.n, got.n);
            assert_memory_equal(want.id, got.id, want.n * sizeof *want.id);
            n++;
            n_turn += (uint32_t)chat.n_turn;
            lg_ids_fini(&want);
            lg_ids_fini(&got);
            lg_chat_fini(&chat);
        }
        lg_json_close(&doc);
    }
    fclose(f);
    print_message("  %u prompts with %u turns\n", n, n_turn);
    assert_true(n > 100 && n_turn > 30);
    lg_replay_close(&r);
}

static void test_every_failed_allocation(void **state) {
    (void)state;
    lg_replay *r = open_replay(1 << 20);
    made prompt = encode(r, 1, text_of(""), false, false);
    lg_ids ids = answer(r, &prompt, call_text, false);
    lg_json_doc *doc = parse(text_of(CALL("", "\"Let me see.\"", MIXED)));
    lg_chat chat = {0};
    lg_chat_opt opt = {.messages = lg_json_get(lg_json_root(doc), "messages"),
                       .tools = lg_json_get(lg_json_root(doc), "tools"),
                       .add_generation_prompt = true,
                       .parse_arguments = true,
                       .relaxed = true};
    assert_int_equal(lg_chat_render(&opt, &chat, NULL), LG_OK);
    lg_status st = LG_E_NOMEM;
    bool right = false;
    for (uint64_t n = 1; !right; n++) {
        lg_ids got = {0};
        uint8_t key[LG_REPLAY_KEY_BYTES];
        lg_mem_fail_at(n);
        st = lg_replay_encode(r, 1, &chat, tok, &got, key, NULL);
        lg_mem_fail_at(0);
        assert_true(st == LG_OK || st == LG_E_NOMEM);
        made next = {.ids = got};
        /* A failure inside the comparison may only mean that the turn is not recognised. */
        right = st == LG_OK && goes_on(&next, &prompt, &ids);
        lg_ids_fini(&got);
        assert_true(n < 1000);
    }
    lg_chat_fini(&chat);
    lg_json_close(&doc);
    lg_ids_fini(&prompt.ids);
    lg_ids_fini(&ids);
    lg_replay_close(&r);
}

int main(void) {
    const struct CMUnitTest test[] = {cmocka_unit_test(test_what_is_recognised),
                                      cmocka_unit_test(test_a_loop_of_calls),
                                      cmocka_unit_test(test_finished_turns),
                                      cmocka_unit_test(test_what_is_not_kept),
                                      cmocka_unit_test(test_it_stays_bounded),
                                      cmocka_unit_test(test_cuts_change_nothing),
                                      cmocka_unit_test(test_every_failed_allocation)};
    return cmocka_run_group_tests(test, open_all, close_all);
}
