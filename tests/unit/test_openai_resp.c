/* test_openai_resp.c - the OpenAI wire format, answers: against the shapes of OpenAI's API reference, streams against the
 * answers that are not streamed, and every allocation failing. */
#include "openai_rig.h"

#include "base/utf8.h"

#include <math.h>

typedef struct answer {
    const char *name;
    bool chat;
    const char *extra; /* of the request */
    const char *text;  /* the model's output; one event for each `step` characters */
    lg_finish finish;
    const char *want; /* choices[0] as JSON, call ids as call_X; NULL: not compared */
} answer;

#define NO_THINK "'enable_thinking':false"

static const answer answers[] = {
    {"plain", true, NO_THINK, "Hello, wörld 😀!\n", LG_FINISH_EOS,
     "{'index':0,'message':{'role':'assistant','content':'Hello, wörld 😀!\\n','refusal':null},"
     "'logprobs':null,'finish_reason':'stop'}"},
    {"empty", true, NO_THINK, "", LG_FINISH_EOS,
     "{'index':0,'message':{'role':'assistant','content':'','refusal':null},'logprobs':null,"
     "'finish_reason':'stop'}"},
    {"length", true, NO_THINK, "one two", LG_FINISH_LENGTH,
     "{'index':0,'message':{'role':'assistant','content':'one two','refusal':null},'logprobs':"
     "null,'finish_reason':'length'}"},
    {"stop string", true, NO_THINK, "one", LG_FINISH_STOP,
     "{'index':0,'message':{'role':'assistant','content':'one','refusal':null},'logprobs':null,"
     "'finish_reason':'stop'}"},
    {"reasoning", true, "'n':1", "Because.\n</think>\n\nYes.", LG_FINISH_EOS,
     "{'index':0,'message':{'role':'assistant','content':'Yes.','refusal':null,"
     "'reasoning_content':'Because.'},'logprobs':null,'finish_reason':'stop'}"},
    {"reasoning cut", true, "'n':1", "Because", LG_FINISH_LENGTH,
     "{'index':0,'message':{'role':'assistant','content':'','refusal':null,'reasoning_content':"
     "'Because'},'logprobs':null,'finish_reason':'length'}"},
    {"call", true, TOOL "," NO_THINK,
     "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n<parameter=s>\né \"q\"\n"
     "</parameter>\n</function>\n</tool_call>",
     LG_FINISH_EOS,
     "{'index':0,'message':{'role':'assistant','content':null,'refusal':null,'tool_calls':[{"
     "'id':'call_X','type':'function','function':{'name':'add','arguments':"
     "'{\\'a\\':5,\\'s\\':\\'é \\\\\\'q\\\\\\'\\'}'}}]},'logprobs':null,'finish_reason':"
     "'tool_calls'}"},
    {"two calls", true, TOOL,
     "Add.\n</think>\n\nNow:\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
     "</function>\n</tool_call>\n<tool_call>\n<function=add>\n</function>\n</tool_call>\n",
     LG_FINISH_EOS,
     "{'index':0,'message':{'role':'assistant','content':'Now:','refusal':null,"
     "'reasoning_content':'Add.','tool_calls':[{'id':'call_X','type':'function','function':{"
     "'name':'add','arguments':'{\\'a\\':1}'}},{'id':'call_X','type':'function','function':{"
     "'name':'add','arguments':'{}'}}]},'logprobs':null,'finish_reason':'tool_calls'}"},
    {"call cut", true, TOOL "," NO_THINK, "<tool_call>\n<function=add>\n<para",
     LG_FINISH_LENGTH,
     "{'index':0,'message':{'role':'assistant','content':'<tool_call>\\n<function=add>\\n<para'"
     ","
     "'refusal':null},'logprobs':null,'finish_reason':'length'}"},
    {"call, then cut", true, TOOL "," NO_THINK, "<function=add></function> and <tool_call>",
     LG_FINISH_LENGTH,
     "{'index':0,'message':{'role':'assistant','content':' and <tool_call>','refusal':null,"
     "'tool_calls':[{'id':'call_X','type':'function','function':{'name':'add','arguments':'{}'}"
     "}"
     "]},'logprobs':null,'finish_reason':'length'}"},
    {"controls", true, NO_THINK, "a\x01\x7f\"\\\t</script>", LG_FINISH_EOS,
     "{'index':0,'message':{'role':'assistant','content':'a\\u0001\x7f\\'\\\\\\t</script>',"
     "'refusal':null},'logprobs':null,'finish_reason':'stop'}"},
    {"logprobs", true, NO_THINK ",'logprobs':true,'top_logprobs':2", "ab", LG_FINISH_EOS, NULL},
    {"logprobs and call", true, TOOL ",'logprobs':true", "r</think><function=add></function> ",
     LG_FINISH_EOS, NULL},
    {"completion", false, "'max_tokens':5", "one\ntwo", LG_FINISH_LENGTH,
     "{'index':0,'text':'one\\ntwo','logprobs':null,'finish_reason':'length'}"},
    {"completion is never parsed", false, "'n':1", "<think>x</think><tool_call>", LG_FINISH_EOS,
     "{'index':0,'text':'<think>x</think><tool_call>','logprobs':null,'finish_reason':'stop'}"},
    {"completion logprobs", false, "'logprobs':2", "é!", LG_FINISH_EOS, NULL},
    {"completion chosen logprobs", false, "'logprobs':0", "é!", LG_FINISH_EOS, NULL},
};

/* Give the output to a choice, `step` characters an event; every event is one token. */
static lg_status play(lg_oai_out *out, const answer *a, size_t step, lg_buf *sse) {
    static const lg_top top[] = {{68, -0.25f}, {66, -1.5f}, {67, -INFINITY}};
    uint32_t n = 0;
    for (const char *p = a->text, *end; *p; p = end, n++) {
        end = p;
        for (size_t i = 0; i < step && *end; i++) do
                end++;
            while (((uint8_t)*end & 0xc0) == 0x80);
        int n_top = strstr(a->extra, "logprobs':2") ? 2 : 0;
        lg_event e = {.kind = LG_EVENT_TOKEN,
                      .token = 64 + n % 3,
                      .logprob = -0.5f,
                      .n_top = (uint32_t)n_top,
                      .top = top,
                      .text = p,
                      .len_bytes = (size_t)(end - p)};
        LG_TRY(lg_oai_out_event(out, &e, sse));
    }
    lg_event e = {.kind = LG_EVENT_DONE, .finish = a->finish, .n_prompt = 3, .n_produced = n};
    return lg_oai_out_event(out, &e, sse);
}

static void fix_name(lg_request_parsed *r) {
    snprintf(r->id, sizeof r->id, "chatcmpl-test");
    r->created = 1234;
}

/* Parse text, after "call_" and 24 digits became "call_X". */
static lg_json_doc *parse_masked(const char *text, size_t len) {
    lg_buf b = {0};
    lg_json_doc *doc;
    lg_err err;
    for (size_t i = 0; i < len; i++) {
        lg_buf_putc(&b, text[i]);
        if (len - i > 29 && memcmp(text + i, "\"call_", 6) == 0) {
            assert_int_equal(strspn(text + i + 6, "0123456789abcdef"), 24);
            lg_buf_puts(&b, "call_X");
            i += 29;
        }
    }
    assert_true(lg_utf8_valid(lg_buf_str(&b), b.len_bytes));
    if (lg_json_parse(lg_buf_str(&b), b.len_bytes, 16, "answer", &doc, &err) != LG_OK)
        fail_msg("%s: %s", err.msg, b.data);
    lg_buf_fini(&b);
    return doc;
}

/* The whole answer, not streamed. */
static lg_json_doc *whole(const answer *a, size_t step) {
    lg_request_parsed *r = open_good(a->chat, a->extra);
    lg_oai_out *out;
    lg_buf body = {0};
    fix_name(r);
    assert_int_equal(lg_oai_out_open(r, 0, &out), LG_OK);
    assert_int_equal(play(out, a, step, NULL), LG_OK);
    lg_oai_response(r, &out, 1, &body);
    lg_json_doc *doc = parse_masked(body.data, body.len_bytes);
    lg_buf_fini(&body);
    lg_oai_out_close(&out);
    lg_request_close(&r);
    return doc;
}

static void print(lg_buf *b, const lg_json *v) {
    lg_buf_clear(b);
    if (v) lg_json_put(b, v, LG_JSON_COMPACT);
}

static void test_answers_have_the_shape(void **state) {
    (void)state;
    lg_buf got = {0}, want = {0};
    for (size_t i = 0; i < LG_COUNT(answers); i++) {
        const answer *a = &answers[i];
        if (!a->want) continue;
        lg_json_doc *doc = whole(a, 3);
        const lg_json *root = lg_json_root(doc);
        lg_buf_clear(&want);
        for (const char *p = a->want; *p; p++) lg_buf_putc(&want, *p == '\'' ? '"' : *p);
        print(&got, lg_json_get(root, "choices")->child);
        assert_string_equal(lg_buf_str(&got), lg_buf_str(&want));
        assert_int_equal(lg_json_get(root, "choices")->n_child, 1);
        assert_true(lg_json_is(lg_json_get(root, "id"), "chatcmpl-test"));
        assert_true(lg_json_is(lg_json_get(root, "object"),
                               a->chat ? "chat.completion" : "text_completion"));
        assert_true(lg_json_is(lg_json_get(root, "model"), "tiny"));
        print(&got, lg_json_get(root, "created"));
        assert_string_equal(lg_buf_str(&got), "1234");
        lg_json_close(&doc);
    }
    lg_buf_fini(&got);
    lg_buf_fini(&want);
}

/* What a client joins from chunks. */
typedef struct joined {
    lg_buf content, reasoning, calls, lists[4], finish, usage;
    uint32_t n_call;
    size_t n_chunk;
    bool done;
} joined;

static void add_list(lg_buf *b, const lg_json *list) {
    if (!list || list->kind != LG_JSON_ARRAY) return;
    for (const lg_json *v = list->child; v; v = v->next) {
        if (b->len_bytes) lg_buf_puts(b, ",");
        lg_json_put(b, v, LG_JSON_COMPACT);
    }
}

static void add_logprobs(joined *j, const lg_json *lp) {
    static const char *const name[] = {"tokens", "token_logprobs", "top_logprobs",
                                       "text_offset"};
    add_list(&j->lists[0], lg_json_get(lp, "content"));
    for (int i = 0; i < 4; i++) add_list(&j->lists[i], lg_json_get(lp, name[i]));
}

static void add_string(lg_buf *b, const lg_json *s) {
    if (s && s->kind == LG_JSON_STRING) lg_buf_put(b, s->text, s->text_len);
}

static void add_delta(joined *j, const lg_json *delta) {
    add_string(&j->content, lg_json_get(delta, "content"));
    add_string(&j->reasoning, lg_json_get(delta, "reasoning_content"));
    const lg_json *calls = lg_json_get(delta, "tool_calls");
    for (const lg_json *c = calls ? calls->child : NULL; c; c = c->next) {
        uint64_t index;
        const lg_json *f = lg_json_get(c, "function");
        assert_true(lg_json_u64(lg_json_get(c, "index"), &index));
        if (lg_json_get(c, "id")) {
            assert_int_equal(index, j->n_call++);
            assert_true(lg_json_is(lg_json_get(c, "id"), "call_X"));
            assert_true(lg_json_is(lg_json_get(c, "type"), "function"));
            assert_true(lg_json_is(lg_json_get(f, "arguments"), ""));
            lg_buf_puts(&j->calls, "\n");
            add_string(&j->calls, lg_json_get(f, "name"));
            lg_buf_puts(&j->calls, " ");
        } else {
            assert_int_equal(index + 1, j->n_call);
            add_string(&j->calls, lg_json_get(f, "arguments"));
        }
    }
}

static void add_chunk(joined *j, const lg_json *root, const answer *a) {
    const lg_json *choice = lg_json_get(root, "choices")->child;
    assert_true(lg_json_is(lg_json_get(root, "id"), "chatcmpl-test"));
    assert_true(lg_json_is(lg_json_get(root, "object"),
                           a->chat ? "chat.completion.chunk" : "text_completion"));
    assert_non_null(lg_json_get(root, "usage")); /* it was asked for */
    if (!choice) {
        assert_int_equal(j->usage.len_bytes, 0);
        print(&j->usage, lg_json_get(root, "usage"));
        return;
    }
    assert_int_equal(j->finish.len_bytes, 0); /* nothing after the finish */
    const lg_json *delta = lg_json_get(choice, "delta");
    if (a->chat && j->n_chunk == 0) {
        assert_true(lg_json_is(lg_json_get(delta, "role"), "assistant"));
        assert_true(lg_json_is(lg_json_get(delta, "content"), ""));
    } else {
        assert_null(lg_json_get(delta, "role"));
    }
    add_delta(j, delta);
    add_string(&j->content, lg_json_get(choice, "text"));
    add_logprobs(j, lg_json_get(choice, "logprobs"));
    add_string(&j->finish, lg_json_get(choice, "finish_reason"));
    j->n_chunk++;
}

static void join_stream(joined *j, const lg_buf *sse, const answer *a) {
    *j = (joined){0};
    const char *p = lg_buf_str(sse), *end;
    for (; *p; p = end + 2) {
        assert_int_equal(strncmp(p, "data: ", 6), 0);
        end = strstr(p, "\n\n");
        assert_non_null(end);
        assert_false(j->done);
        if (strncmp(p, "data: [DONE]\n", 13) == 0) {
            j->done = true;
            continue;
        }
        lg_json_doc *doc = parse_masked(p + 6, (size_t)(end - p) - 6);
        add_chunk(j, lg_json_root(doc), a);
        lg_json_close(&doc);
    }
}

static void joined_fini(joined *j) {
    lg_buf *all[] = {&j->content,  &j->reasoning, &j->calls,    &j->finish,  &j->usage,
                     &j->lists[0], &j->lists[1],  &j->lists[2], &j->lists[3]};
    for (size_t i = 0; i < LG_COUNT(all); i++) lg_buf_fini(all[i]);
}

/* The same members from the answer that is not streamed. */
static void join_whole(joined *j, const lg_json *root) {
    const lg_json *choice = lg_json_get(root, "choices")->child;
    const lg_json *msg = lg_json_get(choice, "message"),
                  *calls = lg_json_get(msg, "tool_calls");
    *j = (joined){.done = true};
    add_string(&j->content, lg_json_get(msg, "content"));
    add_string(&j->content, lg_json_get(choice, "text"));
    add_string(&j->reasoning, lg_json_get(msg, "reasoning_content"));
    for (const lg_json *c = calls ? calls->child : NULL; c; c = c->next) {
        lg_buf_puts(&j->calls, "\n");
        add_string(&j->calls, lg_json_get(lg_json_get(c, "function"), "name"));
        lg_buf_puts(&j->calls, " ");
        add_string(&j->calls, lg_json_get(lg_json_get(c, "function"), "arguments"));
    }
    add_logprobs(j, lg_json_get(choice, "logprobs"));
    add_string(&j->finish, lg_json_get(choice, "finish_reason"));
    print(&j->usage, lg_json_get(root, "usage"));
}

static void stream(const answer *a, size_t step, lg_buf *sse) {
    char extra[512];
    snprintf(extra, sizeof extra, "%s,'stream':true,'stream_options':{'include_usage':true}",
             a->extra);
    lg_request_parsed *r = open_good(a->chat, extra);
    lg_oai_out *out;
    fix_name(r);
    assert_int_equal(lg_oai_out_open(r, 0, &out), LG_OK);
    assert_int_equal(play(out, a, step, sse), LG_OK);
    lg_oai_stream_end(r, &out, 1, sse);
    lg_oai_out_close(&out);
    lg_request_close(&r);
}

static void test_streams_join_to_the_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < LG_COUNT(answers); i++)
        for (size_t step = 1; step < 9; step++) {
            const answer *a = &answers[i];
            lg_buf sse = {0};
            joined s, w;
            stream(a, step, &sse);
            join_stream(&s, &sse, a);
            lg_json_doc *doc = whole(a, step);
            join_whole(&w, lg_json_root(doc));
            assert_true(s.done);
            assert_string_equal(lg_buf_str(&s.content), lg_buf_str(&w.content));
            assert_string_equal(lg_buf_str(&s.reasoning), lg_buf_str(&w.reasoning));
            assert_string_equal(lg_buf_str(&s.calls), lg_buf_str(&w.calls));
            assert_string_equal(lg_buf_str(&s.finish), lg_buf_str(&w.finish));
            assert_string_equal(lg_buf_str(&s.usage), lg_buf_str(&w.usage));
            for (int k = 0; k < 4; k++)
                assert_string_equal(lg_buf_str(&s.lists[k]), lg_buf_str(&w.lists[k]));
            lg_json_close(&doc);
            joined_fini(&s);
            joined_fini(&w);
            lg_buf_fini(&sse);
        }
}

static void expect_logprobs(size_t i_answer, const char *want) {
    lg_buf got = {0}, text = {0};
    lg_json_doc *doc = whole(&answers[i_answer], 1);
    print(&got, lg_json_get(lg_json_get(lg_json_root(doc), "choices")->child, "logprobs"));
    for (const char *p = want; *p; p++) lg_buf_putc(&text, *p == '\'' ? '"' : *p);
    assert_string_equal(lg_buf_str(&got), lg_buf_str(&text));
    lg_json_close(&doc);
    lg_buf_fini(&got);
    lg_buf_fini(&text);
}

static size_t find_answer(const char *name) {
    size_t i = 0;
    while (strcmp(answers[i].name, name) != 0) i++;
    return i;
}

/* Ids 64, 65, ... of a byte-level tokenizer are "a", "b", ...  (33 printable bytes from "!" = id 0 on). */
static void test_logprobs_have_the_shape(void **state) {
    (void)state;
    expect_logprobs(
        find_answer("logprobs"),
        "{'content':[{'token':'a','logprob':-0.5,'bytes':[97],'top_logprobs':[{'token':'e',"
        "'logprob':-0.25,'bytes':[101]},{'token':'c','logprob':-1.5,'bytes':[99]}]},{'token':"
        "'b','logprob':-0.5,'bytes':[98],'top_logprobs':[{'token':'e','logprob':-0.25,'bytes':"
        "[101]},{'token':'c','logprob':-1.5,'bytes':[99]}]}],'refusal':null}");
    expect_logprobs(
        find_answer("completion logprobs"),
        "{'tokens':['a','b'],'token_logprobs':[-0.5,-0.5],'top_logprobs':[{'e':-0.25,"
        "'c':-1.5,'a':-0.5},{'e':-0.25,'c':-1.5,'b':-0.5}],'text_offset':[0,1]}");
    expect_logprobs(find_answer("completion chosen logprobs"),
                    "{'tokens':['a','b'],'token_logprobs':[-0.5,-0.5],'top_logprobs':null,"
                    "'text_offset':[0,1]}");
}

static void test_odd_tokens_and_infinite_logprobs(void **state) {
    (void)state;
    for (int chat = 0; chat < 2; chat++) {
        lg_request_parsed *r = open_good(
            chat, chat ? NO_THINK ",'logprobs':true,'top_logprobs':1" : "'logprobs':1");
        lg_oai_out *out;
        lg_buf body = {0};
        assert_int_equal(lg_oai_out_open(r, 0, &out), LG_OK);
        /* a lone byte of a character, an id that means nothing, no probability at all */
        const char *s;
        size_t len;
        bool added, special;
        uint32_t half = 0;
        while (lg_tokenizer_piece(model.tok, half, &s, &len, &added, &special) &&
               lg_utf8_valid(s, len))
            half++;
        lg_top top = {999999, -INFINITY};
        lg_event e = {.kind = LG_EVENT_TOKEN,
                      .token = half,
                      .logprob = -INFINITY,
                      .n_top = 1,
                      .top = &top,
                      .text = "\xff",
                      .len_bytes = 1};
        assert_int_equal(lg_oai_out_event(out, &e, NULL), LG_OK);
        e.kind = LG_EVENT_DONE;
        e.len_bytes = 0;
        e.finish = LG_FINISH_EOS;
        assert_int_equal(lg_oai_out_event(out, &e, NULL), LG_OK);
        lg_oai_response(r, &out, 1, &body);
        assert_non_null(strstr(body.data, "-9999.0"));
        if (!chat) assert_non_null(strstr(body.data, "\"bytes:\\\\x"));
        assert_non_null(strstr(body.data, "\xef\xbf\xbd"));
        lg_json_doc *doc = parse_masked(body.data, body.len_bytes);
        lg_json_close(&doc);
        lg_buf_fini(&body);
        lg_oai_out_close(&out);
        lg_request_close(&r);
    }
}

static void test_several_choices_share_one_answer(void **state) {
    (void)state;
    lg_request_parsed *r = open_good(true, TOOL "," NO_THINK ",'n':2");
    lg_oai_out *out[2];
    lg_buf body = {0};
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(lg_oai_out_open(r, i, &out[i]), LG_OK);
        assert_int_equal(play(out[i], &answers[find_answer("call")], 1, NULL), LG_OK);
    }
    lg_oai_response(r, out, 2, &body);
    /* the calls of two choices must not have the same id */
    const char *first = strstr(body.data, "\"call_"), *second = strstr(first + 1, "\"call_");
    assert_non_null(second);
    assert_memory_not_equal(first, second, 30);
    lg_json_doc *doc = parse_masked(body.data, body.len_bytes);
    const lg_json *choices = lg_json_get(lg_json_root(doc), "choices");
    const lg_json *usage = lg_json_get(lg_json_root(doc), "usage");
    uint64_t n, n_prompt, total;
    assert_int_equal(choices->n_child, 2);
    assert_true(lg_json_u64(lg_json_get(lg_json_at(choices, 1), "index"), &n) && n == 1);
    assert_true(lg_json_u64(lg_json_get(usage, "completion_tokens"), &n));
    assert_true(lg_json_u64(lg_json_get(usage, "prompt_tokens"), &n_prompt));
    assert_true(lg_json_u64(lg_json_get(usage, "total_tokens"), &total));
    size_t n_event = 0; /* one for each character */
    for (const char *p = answers[find_answer("call")].text; *p; p++)
        n_event += ((uint8_t)*p & 0xc0) != 0x80;
    assert_int_equal(n, 2 * n_event);
    assert_int_equal(n_prompt, r->ids.n);
    assert_int_equal(total, n + n_prompt);
    assert_true(lg_json_u64(
        lg_json_get(lg_json_get(usage, "prompt_tokens_details"), "cached_tokens"), &n));
    assert_int_equal(n, 0);
    lg_json_close(&doc);
    lg_buf_fini(&body);
    for (int i = 0; i < 2; i++) lg_oai_out_close(&out[i]);
    lg_request_close(&r);
}

static void test_usage_only_when_asked_for(void **state) {
    (void)state;
    lg_request_parsed *r = open_good(true, "'stream':true");
    lg_oai_out *out;
    lg_buf sse = {0};
    assert_int_equal(lg_oai_out_open(r, 0, &out), LG_OK);
    assert_int_equal(play(out, &answers[0], 1, &sse), LG_OK);
    lg_oai_stream_end(r, &out, 1, &sse);
    assert_null(strstr(sse.data, "usage"));
    assert_string_equal(sse.data + sse.len_bytes - 14, "data: [DONE]\n\n");
    lg_buf_fini(&sse);
    lg_oai_out_close(&out);
    lg_request_close(&r);
}

static void test_an_error_ends_a_stream(void **state) {
    (void)state;
    lg_request_parsed *r = open_good(true, "'stream':true");
    lg_oai_out *out;
    lg_buf sse = {0};
    assert_int_equal(lg_oai_out_open(r, 0, &out), LG_OK);
    lg_event e = {.kind = LG_EVENT_DONE, .finish = LG_FINISH_ERROR, .status = LG_E_BACKEND};
    assert_int_equal(lg_oai_out_event(out, &e, &sse), LG_OK);
    const char *last = strstr(sse.data + 1, "data: ");
    assert_non_null(last);
    lg_json_doc *doc = parse_masked(last + 6, strlen(last) - 8);
    const lg_json *err = lg_json_get(lg_json_root(doc), "error");
    assert_true(lg_json_is(lg_json_get(err, "type"), "server_error"));
    assert_non_null(strstr(lg_json_get(err, "message")->text, lg_status_name(LG_E_BACKEND)));
    lg_json_close(&doc);
    lg_buf_fini(&sse);
    lg_oai_out_close(&out);
    lg_request_close(&r);
}

static void test_models(void **state) {
    (void)state;
    lg_buf b = {0};
    lg_oai_models(&model, &b);
    assert_string_equal(b.data, "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":"
                                "\"model\",\"created\":1700000000,\"owned_by\":\"lignum\"}]}");
    lg_buf_fini(&b);
}

/* ---- Memory ---- */

/* One request from body to answer; LG_E_NOMEM when some allocation failed. */
static lg_status serve(const lg_buf *body, const answer *a, bool streamed) {
    lg_request_parsed *r = NULL;
    lg_oai_out *out = NULL;
    lg_request_error e;
    lg_buf text = {0};
    if (!lg_oai_open(&model, a->chat, body->data, body->len_bytes, &r, &e)) {
        assert_int_equal(e.http, 503);
        return LG_E_NOMEM;
    }
    lg_status st = lg_oai_out_open(r, 0, &out);
    if (st == LG_OK) st = play(out, a, 2, streamed ? &text : NULL);
    if (st == LG_OK && streamed) lg_oai_stream_end(r, &out, 1, &text);
    if (st == LG_OK && !streamed) lg_oai_response(r, &out, 1, &text);
    if (text.failed) st = LG_E_NOMEM;
    lg_buf_fini(&text);
    lg_oai_out_close(&out);
    lg_request_close(&r);
    return st;
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    size_t n_failed = 0;
    for (size_t i = 0; i < 2 * LG_COUNT(answers); i++) {
        const answer *a = &answers[i / 2];
        char extra[512];
        lg_buf body = {0};
        snprintf(extra, sizeof extra, "%s,'logit_bias':{'1':1}%s", a->extra,
                 i % 2 ? ",'stream':true" : "");
        body_of(&body, a->chat, extra);
        for (uint64_t n = 1;; n++) {
            int64_t alive = lg_mem_alive();
            lg_mem_fail_at(n);
            lg_status st = serve(&body, a, i % 2);
            lg_mem_fail_at(0);
            assert_int_equal(lg_mem_alive(), alive);
            if (st == LG_OK) break;
            assert_int_equal(st, LG_E_NOMEM);
            n_failed++;
        }
        lg_buf_fini(&body);
    }
    assert_true(n_failed > 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_have_the_shape),
        cmocka_unit_test(test_streams_join_to_the_whole),
        cmocka_unit_test(test_logprobs_have_the_shape),
        cmocka_unit_test(test_odd_tokens_and_infinite_logprobs),
        cmocka_unit_test(test_several_choices_share_one_answer),
        cmocka_unit_test(test_usage_only_when_asked_for),
        cmocka_unit_test(test_an_error_ends_a_stream),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
