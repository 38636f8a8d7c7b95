/* test_responses.c - the OpenAI Responses wire format: prompts against those of equal chat requests, refusals by name, event
 * sequences as the API documents them, streams against objects, kept conversations, and every allocation failing. */
#include "base/clock.h"
#include "gateway/wire/anthropic.h"
#include "gateway/wire/history.h"
#include "gateway/wire/responses.h"
#include "wire_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define WIRE &lg_responses_wire
#define HI   "{'model':'tiny','input':'hi'"
#define TOOL                                                                                   \
    ",'tools':[{'type':'function','name':'add','description':'d','parameters':{'type':"        \
    "'object','properties':{'a':{'type':'integer'}}},'strict':null}]"
#define OAI_TOOL                                                                               \
    ",'tools':[{'type':'function','function':{'name':'add','description':'d','parameters':{"   \
    "'type':'object','properties':{'a':{'type':'integer'}}}}}]"
#define OFF ",'enable_thinking':false"

/* ---- Requests ---- */

static void test_prompts_are_those_of_chats(void **state) {
    (void)state;
    static const char *const same[][2] = {
        {HI "}", "{'model':'tiny','messages':[{'role':'user','content':'hi'}]}"},
        {HI ",'reasoning':{'effort':'none'}}",
         "{'model':'tiny','messages':[{'role':'user','content':'hi'}]" OFF "}"},
        {HI ",'instructions':'Be.','chat_template_kwargs':{'enable_thinking':false}}",
         "{'model':'tiny','messages':[{'role':'system','content':'Be.'},{'role':'user',"
         "'content':'hi'}]" OFF "}"},
        {"{'model':'tiny','input':[{'role':'developer','content':'D'},{'type':'message','role':"
         "'user','content':[{'type':'input_text','text':'x'},{'type':'input_text','text':'y'}]}"
         ",{"
         "'type':'reasoning','id':'rs_1','summary':[],'content':[{'type':'reasoning_text','"
         "text'"
         ":'hm'}],'encrypted_content':null},{'type':'message','role':'assistant','id':'m',"
         "'status':'completed','content':[{'type':'output_text','text':'I "
         "add.','annotations':[]"
         "}]},{'type':'function_call','id':'fc','call_id':'c1','name':'add','arguments':'{"
         "\\\"a\\"
         "\":1}'},{'type':'function_call','call_id':'c2','name':'add','arguments':''},{'type':"
         "'function_call_output','call_id':'c1','output':'one'},{'type':'function_call_output',"
         "'call_id':'c2','output':[{'type':'input_text','text':'two'}]}]" TOOL "}",
         "{'model':'tiny','messages':[{'role':'system','content':'D'},{'role':'user','content':"
         "'xy'},{'role':'assistant','reasoning_content':'hm','content':'I add.','tool_calls':[{"
         "'function':{'name':'add','arguments':'{\\\"a\\\":1}'}},{'function':{'name':'add',"
         "'arguments':''}}]},{'role':'tool','content':'one'},{'role':'tool','content':'two'}"
         "]" OAI_TOOL "}"},
        /* a call after a call's result, reasoning after text: separate turns */
        {"{'model':'tiny','input':[{'role':'user','content':'q'},{'type':'function_call',"
         "'call_id':'1','name':'f','arguments':'{}'},{'type':'function_call_output','call_id':"
         "'1','output':'r'},{'type':'reasoning','summary':[{'type':'summary_text','text':'s'}]}"
         ","
         "{'type':'function_call','call_id':'2','name':'g','arguments':'{}'},{'type':"
         "'function_call_output','call_id':'2','output':'r'}]}",
         "{'model':'tiny','messages':[{'role':'user','content':'q'},{'role':'assistant',"
         "'tool_calls':[{'name':'f'}]},{'role':'tool','content':'r'},{'role':'assistant',"
         "'reasoning_content':'s','tool_calls':[{'name':'g'}]},{'role':'tool','content':'r'}]"
         "}"},
        /* functions of a namespace carry its name; the vendor's own search is not offered */
        {"{'model':'tiny','input':[{'role':'user','content':'q'},{'type':'function_call','call_"
         "id'"
         ":'1','namespace':'n','name':'add','arguments':'{}'},{'type':'function_call_output',"
         "'call_id':'1','output':'r'}],'client_metadata':{'x':'y'},'tools':[{'type':'web_"
         "search'},"
         "{'type':'namespace','name':'n','description':'d','tools':[{'type':'function','name':"
         "'add','defer_loading':true,'parameters':{}},{'type':'function','name':'sub'}]},{'"
         "type':"
         "'function','name':'add'},{'type':'web_search_preview'}]}",
         "{'model':'tiny','messages':[{'role':'user','content':'q'},{'role':'assistant',"
         "'tool_calls':[{'name':'n__add'}]},{'role':'tool','content':'r'}],'tools':[{'type':"
         "'function','function':{'name':'n__add','parameters':{}}},{'type':'function','"
         "function':"
         "{'name':'n__sub'}},{'type':'function','function':{'name':'add'}}]}"},
        {HI ",'tools':[{'type':'web_search'}]}",
         "{'model':'tiny','messages':[{'role':'user','content':'hi'}]}"},
        {HI TOOL ",'tool_choice':'none'}",
         "{'model':'tiny','messages':[{'role':'user','content':'hi'}]}"},
    };
    for (size_t i = 0; i < LG_COUNT(same); i++)
        wire_rig_same_prompt(WIRE, same[i][0], &lg_openai_chat, same[i][1]);
}

static void test_values_arrive(void **state) {
    (void)state;
    lg_request_parsed *r = wire_rig_open(
        WIRE,
        HI ",'temperature':2,'top_p':0.25,'top_k':7,'seed':3,'stream':true,'store':false,"
           "'max_output_tokens':9,'parallel_tool_calls':false,'reasoning':{'effort':'low',"
           "'summary':'auto','max_tokens':4},'include':['reasoning.encrypted_content'],"
           "'text':{'format':{'type':'text'}},'metadata':{},'truncation':'disabled',"
           "'background':false,'prompt_cache_key':'k'}");
    assert_true(r->stream && r->chat && r->opened_think && !r->store && r->one_call);
    assert_true(r->params.temperature == 2 && r->params.top_p == 0.25f && r->params.top_k == 7);
    assert_int_equal(r->max_tokens, 9);
    assert_int_equal(r->think_budget, 4);
    assert_int_equal(strncmp(r->id, "resp_", 5), 0);
    lg_request_close(&r);
    r = wire_rig_open(WIRE, HI "}");
    assert_true(r->store && !r->one_call);
    assert_int_equal(r->max_tokens, 0);
    lg_request_close(&r);
}

static void test_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *body, *param;
    } c[] = {
        {"{'model':'tiny'}", "input"},
        {"{'input':'x'}", "model"},
        {"{'model':'tiny','input':5}", "input"},
        {"{'model':'tiny','input':[]}", "input"},
        {HI ",'messages':[]}", "messages"},
        {HI ",'max_tokens':5}", "max_tokens"},
        {HI ",'max_output_tokens':0}", "max_output_tokens"},
        {HI ",'max_output_tokens':900}", "input"},
        {HI ",'temperature':2.5}", "temperature"},
        {HI ",'instructions':[]}", "instructions"},
        {HI ",'previous_response_id':'resp_0'}", "previous_response_id"},
        {HI ",'tools':[{'type':'file_search'}]}", "tools[0].type"},
        {HI ",'tools':[{'type':'namespace','name':'n'}]}", "tools[0].tools"},
        {HI ",'tools':[{'type':'namespace','name':'n','tools':[{'type':'function'}]}]}",
         "tools[0].tools[0].name"},
        {HI ",'tools':[{'type':'namespace','name':'n','tools':[{'type':'namespace'}]}]}",
         "tools[0].tools[0].type"},
        {HI ",'tools':[{'type':'function','name':'a b'}]}", "tools[0].name"},
        {HI ",'tools':[{'type':'function','name':'a','function':{}}]}", "tools[0].function"},
        {HI ",'tools':[{'type':'function','name':'a','parameters':5}]}", "tools[0].parameters"},
        {HI ",'tool_choice':'required'}", "tool_choice"},
        {HI TOOL ",'tool_choice':{'type':'function','name':'a'}}", "tool_choice"},
        {HI ",'parallel_tool_calls':1}", "parallel_tool_calls"},
        {HI ",'reasoning':{'effort':'much'}}", "reasoning.effort"},
        {HI ",'reasoning':{'max_tokens':0}}", "reasoning.max_tokens"},
        {HI ",'reasoning':{'summary':'long'}}", "reasoning.summary"},
        {HI ",'reasoning':{'x':1}}", "reasoning.x"},
        {HI TOOL ",'text':{'format':{'type':'json_object'}}}", "text.format"},
        {HI ",'text':{'format':{'type':'json_schema','schema':{'not':{}}}}}",
         "text.format.schema"},
        {HI ",'text':{'verbosity':'low'}}", "text.verbosity"},
        {HI ",'text':{'x':1}}", "text.x"},
        {HI ",'truncation':'auto'}", "truncation"},
        {HI ",'include':['file_search_call.results']}", "include"},
        {HI ",'background':true}", "background"},
        {HI ",'conversation':'x'}", "conversation"},
        {HI ",'top_logprobs':0}", "top_logprobs"},
        {HI ",'stream_options':{'include_usage':true}}", "stream_options.include_usage"},
    };
    static const struct {
        const char *item, *param;
    } m[] = {
        {"5", "input[0]"},
        {"{'type':'item_reference','id':'x'}", "input[0]"},
        {"{'type':5}", "input[0]"},
        {"{'content':'x'}", "input[0].role"},
        {"{'role':'tool','content':'x'}", "input[0].role"},
        {"{'role':'user'}", "input[0].content"},
        {"{'role':'user','content':'x','name':'n'}", "input[0].name"},
        {"{'role':'user','content':[{'type':'input_text','text':'a'},{'type':'input_image',"
         "'image_url':'x'}]}",
         "input[0].content[1]"},
        {"{'role':'user','content':[{'type':'input_text'}]}", "input[0].content[0].text"},
        {"{'type':'function_call','name':'f','arguments':'{}'}", "input[0].call_id"},
        {"{'type':'function_call','call_id':'c','name':'f','arguments':'['}",
         "input[0].arguments"},
        {"{'type':'function_call','call_id':'c','name':'f','arguments':'[]'}",
         "input[0].arguments"},
        {"{'type':'function_call_output','output':'x'}", "input[0].call_id"},
        {"{'type':'function_call_output','call_id':'c'}", "input[0].output"},
        {"{'type':'reasoning','summary':[{'type':'summary_text','text':5}]}",
         "input[0].summary[0].text"},
    };
    for (size_t i = 0; i < LG_COUNT(c); i++) wire_rig_expect_bad(WIRE, c[i].body, c[i].param);
    for (size_t i = 0; i < LG_COUNT(m); i++) {
        char body[512];
        snprintf(body, sizeof body, "{'model':'tiny','input':[%s]}", m[i].item);
        wire_rig_expect_bad(WIRE, body, m[i].param);
    }
}

/* Every spelling on every format; the rest of the body asks for reasoning. */
static void test_switches_are_alike(void **state) {
    (void)state;
    static const struct {
        const lg_wire_format *wire;
        const char *body;
    } f[] = {
        {&lg_openai_chat, "{'model':'tiny','messages':[{'role':'user','content':'hi'}],%s}"},
        {&lg_responses_wire, "{'model':'tiny','input':'hi',%s}"},
        {&lg_anthropic_wire, "{'model':'tiny','max_tokens':9,'thinking':{'type':'adaptive'},"
                             "'messages':[{'role':'user','content':'hi'}],%s}"},
        {&lg_anthropic_wire,
         "{'model':'tiny','max_tokens':9,'messages':[{'role':'user','content'"
         ":'hi'}],%s,'thinking':{'type':'adaptive'}}"},
    };
    static const struct {
        const char *extra;
        bool think;
    } c[] = {
        {"'enable_thinking':false", false},
        {"'enable_thinking':true", true},
        {"'chat_template_kwargs':{'enable_thinking':false}", false},
        {"'chat_template_kwargs':{'enable_thinking':true}", true},
        {"'reasoning_effort':'high'", true},
        {"'reasoning_effort':'none'", false},
    };
    for (size_t i = 0; i < LG_COUNT(f); i++) {
        for (size_t k = 0; k < LG_COUNT(c); k++) {
            char body[256];
            snprintf(body, sizeof body, f[i].body, c[k].extra);
            lg_request_parsed *r = wire_rig_open(f[i].wire, body);
            assert_int_equal(r->opened_think, c[k].think);
            lg_request_close(&r);
        }
    }
}

/* ---- Answers ---- */

#define CALL                                                                                   \
    "<tool_call>\n<function=add>\n<parameter=a>\n12\n</parameter>\n</function>\n</tool_call>"

static const struct {
    wire_rig_answer a;
    const char *status, *output; /* ids as X */
} answers[] = {
    {{HI OFF "}", "Hello, \xc3\xa9!\n", LG_FINISH_EOS, 0},
     "completed",
     "[{'id':'msg_X','type':'message','status':'completed','role':'assistant','content':[{"
     "'type':'output_text','annotations':[],'logprobs':[],'text':'Hello, \xc3\xa9!\\n'}]}]"},
    {{HI OFF "}", "", LG_FINISH_EOS, 0}, "completed", "[]"},
    {{HI "}", "Hm", LG_FINISH_LENGTH, 0},
     "incomplete",
     "[{'id':'rs_X','type':'reasoning','status':'incomplete','summary':[],'content':[{'type':"
     "'reasoning_text','text':'Hm'}]}]"},
    {{HI TOOL "}", "Add.\n</think>\n\nSo:\n\n" CALL "\n" CALL, LG_FINISH_EOS, 0},
     "completed",
     "[{'id':'rs_X','type':'reasoning','status':'completed','summary':[],'content':[{'type':"
     "'reasoning_text','text':'Add.'}]},{'id':'msg_X','type':'message','status':'completed',"
     "'role':'assistant','content':[{'type':'output_text','annotations':[],'logprobs':[],'text'"
     ":"
     "'So:'}]},{'id':'fc_X','type':'function_call','status':'completed','call_id':'call_X',"
     "'name':'add','arguments':'{\\\"a\\\":12}'},{'id':'fc_X','type':'function_call','status':"
     "'completed','call_id':'call_X','name':'add','arguments':'{\\\"a\\\":12}'}]"},
    {{HI TOOL OFF ",'parallel_tool_calls':false}", CALL "\n" CALL "\nx", LG_FINISH_EOS, 0},
     "completed",
     "[{'id':'fc_X','type':'function_call','status':'completed','call_id':'call_X','name':'add'"
     ","
     "'arguments':'{\\\"a\\\":12}'}]"},
    {{HI OFF
      ",'tools':[{'type':'namespace','name':'n','tools':[{'type':'function','name':'add'}]}"
      ",{'type':'function','name':'add'}]}",
      "<function=n__add></function><function=add></function>", LG_FINISH_EOS, 0},
     "completed",
     "[{'id':'fc_X','type':'function_call','status':'completed','call_id':'call_X','name':'add'"
     ","
     "'namespace':'n','arguments':'{}'},{'id':'fc_X','type':'function_call','status':'"
     "completed',"
     "'call_id':'call_X','name':'add','arguments':'{}'}]"},
    {{HI TOOL OFF "}", "<tool_call>\n<function=add>\n<parameter=s>\nhal", LG_FINISH_LENGTH, 0},
     "incomplete",
     "[{'id':'fc_X','type':'function_call','status':'incomplete','call_id':'call_X','name':'"
     "add',"
     "'arguments':'{\\\"s\\\":\\\"hal'}]"},
    {{HI TOOL "}", "a</think>b<tool_call>\n<fun", LG_FINISH_LENGTH, 0},
     "incomplete",
     "[{'id':'rs_X','type':'reasoning','status':'completed','summary':[],'content':[{'type':"
     "'reasoning_text','text':'a'}]},{'id':'msg_X','type':'message','status':'incomplete',"
     "'role':'assistant','content':[{'type':'output_text','annotations':[],'logprobs':[],'text'"
     ":"
     "'b<tool_call>\\n<fun'}]}]"},
};

/* Ids "PREFIX_" and 24 digits become "PREFIX_X". */
static void mask(lg_buf *out, const char *s, size_t len) {
    lg_buf_clear(out);
    for (size_t i = 0; i < len; i++) {
        lg_buf_putc(out, s[i]);
        if (s[i] != '_' || i + 24 >= len || strspn(s + i + 1, "0123456789abcdef") != 24)
            continue;
        lg_buf_putc(out, 'X');
        i += 24;
    }
}

static void print(lg_buf *b, const lg_json *v) {
    lg_buf_clear(b);
    lg_json_put(b, v, LG_JSON_COMPACT);
}

static void check_object(const lg_json *r, size_t i) {
    lg_buf got = {0}, want = {0}, masked = {0};
    uint64_t n, n_in, n_total;
    assert_true(lg_json_is(lg_json_get(r, "id"), "id_test"));
    assert_true(lg_json_is(lg_json_get(r, "object"), "response"));
    assert_true(lg_json_is(lg_json_get(r, "status"), answers[i].status));
    assert_true(lg_json_is(lg_json_get(r, "model"), "tiny"));
    print(&got, lg_json_get(r, "output"));
    mask(&masked, got.data, got.len_bytes);
    wire_rig_quote(&want, answers[i].output);
    assert_string_equal(masked.data, want.data);
    bool cut = strcmp(answers[i].status, "incomplete") == 0;
    print(&got, lg_json_get(r, "incomplete_details"));
    assert_string_equal(got.data, cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    const lg_json *usage = lg_json_get(r, "usage");
    assert_true(lg_json_u64(lg_json_get(usage, "output_tokens"), &n) && n == 7);
    assert_true(lg_json_u64(lg_json_get(usage, "input_tokens"), &n_in) && n_in > 5);
    assert_true(lg_json_u64(lg_json_get(usage, "total_tokens"), &n_total));
    assert_int_equal(n_total, n + n_in);
    /* what the official client's model of a response needs */
    static const char *const key[] = {
        "created_at",  "error",       "instructions", "metadata", "parallel_tool_calls",
        "temperature", "tool_choice", "tools",        "top_p",    "text",
        "truncation",  "reasoning"};
    for (size_t k = 0; k < LG_COUNT(key); k++) assert_non_null(lg_json_get(r, key[k]));
    lg_buf_fini(&got);
    lg_buf_fini(&want);
    lg_buf_fini(&masked);
}

static void test_objects_have_the_shape(void **state) {
    (void)state;
    lg_buf text = {0};
    for (size_t i = 0; i < LG_COUNT(answers); i++) {
        assert_int_equal(wire_rig_serve(WIRE, &answers[i].a, false, 3, &text), LG_OK);
        lg_json_doc *doc = wire_rig_parse(text.data, text.len_bytes);
        check_object(lg_json_root(doc), i);
        lg_json_close(&doc);
    }
    lg_buf_fini(&text);
}

/* Names of the events, joined deltas, numbers without gaps; the last event holds the object. */
static void check_stream(const lg_buf *sse, size_t i, lg_buf *names, lg_buf *joined) {
    const char *end;
    uint64_t n = 0, number;
    lg_buf_clear(names);
    lg_buf_clear(joined);
    for (const char *p = sse->data; *p; p = end + 2) {
        end = strstr(p, "\n\n");
        const char *data = strstr(p, "\ndata: ");
        assert_true(end && data && data < end);
        lg_json_doc *doc = wire_rig_parse(data + 7, (size_t)(end - data) - 7);
        const lg_json *e = lg_json_root(doc), *delta = lg_json_get(e, "delta");
        const char *type = lg_json_get(e, "type")->text;
        assert_true(lg_json_u64(lg_json_get(e, "sequence_number"), &number) && number == n++);
        assert_int_equal(strncmp(p + 7, type, strlen(type)), 0);
        const char *dot = strrchr(type, '.');
        if (!delta) lg_buf_printf(names, "%s\n", type + 9);
        if (delta) lg_buf_put(joined, delta->text, delta->text_len);
        if (strcmp(dot, ".done") == 0 && lg_json_get(e, "text")) lg_buf_puts(joined, "|");
        if (end[2] == 0) check_object(lg_json_get(e, "response"), i);
        lg_json_close(&doc);
    }
}

#define CALLED "output_item.added\nfunction_call_arguments.done\noutput_item.done\n"
#define ITEM(done)                                                                             \
    "output_item.added\ncontent_part.added\n" done "content_part.done\noutput_item.done\n"

static void test_streams(void **state) {
    (void)state;
    static const char *const names_of[] = {
        ITEM("output_text.done\n") "completed\n",
        "completed\n",
        ITEM("reasoning_text.done\n") "incomplete\n",
        ITEM("reasoning_text.done\n") ITEM("output_text.done\n") CALLED CALLED "completed\n",
        CALLED "completed\n",
        CALLED CALLED "completed\n",
        CALLED "incomplete\n",
        ITEM("reasoning_text.done\n") ITEM("output_text.done\n") "incomplete\n",
    };
    static const char *const joined_of[] = {
        "Hello, \xc3\xa9!\n|", "",     "Hm|",          "Add.|So:|{\"a\":12}{\"a\":12}",
        "{\"a\":12}",          "{}{}", "{\"s\":\"hal", "a|b<tool_call>\n<fun|"};
    lg_buf sse = {0}, names = {0}, joined = {0};
    for (size_t i = 0; i < LG_COUNT(answers); i++) {
        for (size_t step = 1; step <= strlen(answers[i].a.text) + 1; step++) {
            assert_int_equal(wire_rig_serve(WIRE, &answers[i].a, true, step, &sse), LG_OK);
            check_stream(&sse, i, &names, &joined);
            assert_int_equal(strncmp(names.data, "created\nin_progress\n", 20), 0);
            assert_string_equal(names.data + 20, names_of[i]);
            assert_string_equal(lg_buf_str(&joined), joined_of[i]);
        }
    }
    lg_buf_fini(&sse);
    lg_buf_fini(&names);
    lg_buf_fini(&joined);
}

static void test_a_failed_stream(void **state) {
    (void)state;
    lg_request_parsed *r = wire_rig_open(WIRE, HI ",'stream':true}");
    lg_out *out;
    lg_buf sse = {0};
    lg_request_error e = {.http = 503, .type = "server_error", .msg = "Gone."};
    assert_int_equal((WIRE)->out_open(r, 0, &out), LG_OK);
    (WIRE)->ping(out, &sse);
    assert_non_null(strstr(sse.data, "\n\n: ping\n\n"));
    (WIRE)->stream_error(out, &e, &sse);
    const char *last = strstr(sse.data, "event: response.failed\ndata: ");
    assert_non_null(last);
    lg_json_doc *doc = wire_rig_parse(last + 29, strlen(last + 29));
    const lg_json *err = lg_json_get(lg_json_get(lg_json_root(doc), "response"), "error");
    assert_true(lg_json_is(lg_json_get(err, "code"), "server_error"));
    assert_true(lg_json_is(lg_json_get(err, "message"), "Gone."));
    lg_json_close(&doc);
    (WIRE)->out_close(&out);
    lg_buf_fini(&sse);
    lg_request_close(&r);
}

/* ---- Kept conversations ---- */

static void test_going_on_after_an_answer(void **state) {
    (void)state;
    lg_buf text = {0};
    static const wire_rig_answer first = {
        "{'model':'tiny','input':'1+1?','instructions':'Old.'" TOOL "}",
        "Add.\n</think>\n\nSo:\n\n" CALL, LG_FINISH_EOS, 0};
    static const wire_rig_answer forgotten = {HI ",'store':false}", "x", LG_FINISH_EOS, 0};
    assert_int_equal(lg_history_open(1 << 20, 1000000000, &wire_rig_model.history), LG_OK);
    assert_int_equal(wire_rig_serve(WIRE, &forgotten, false, 3, &text), LG_OK);
    wire_rig_expect_bad(WIRE, HI ",'previous_response_id':'id_test'}", "previous_response_id");
    assert_int_equal(wire_rig_serve(WIRE, &first, false, 3, &text), LG_OK);
    wire_rig_model.tenant = 9; /* another key */
    wire_rig_expect_bad(WIRE, HI ",'previous_response_id':'id_test'}", "previous_response_id");
    wire_rig_model.tenant = 0;
    lg_history_close(&wire_rig_model.history);
    assert_int_equal(lg_history_open(1 << 20, 1000000000, &wire_rig_model.history), LG_OK);
    for (int stream = 0; stream < 2; stream++) {
        assert_int_equal(wire_rig_serve(WIRE, &first, stream, 3, &text), LG_OK);
        wire_rig_same_prompt(
            WIRE,
            "{'model':'tiny','previous_response_id':'id_test','instructions':'New.','input':[{"
            "'type':'function_call_output','call_id':'c','output':'2'}]" TOOL "}",
            &lg_openai_chat,
            "{'model':'tiny','messages':[{'role':'system','content':'New.'},{'role':'user',"
            "'content':'1+1?'},{'role':'assistant','reasoning_content':'Add.','content':'So:',"
            "'tool_calls':[{'name':'add','arguments':{'a':12}}]},{'role':'tool','content':'2'}"
            "]" OAI_TOOL "}");
        lg_history_close(&wire_rig_model.history);
        assert_int_equal(lg_history_open(1 << 20, 1000000000, &wire_rig_model.history), LG_OK);
    }
    lg_history_close(&wire_rig_model.history);
    lg_buf_fini(&text);
}

static void test_history_is_bounded(void **state) {
    (void)state;
    lg_history *h;
    lg_buf got = {0};
    char id[16], text[1000];
    memset(text, 'x', sizeof text);
    int64_t alive = lg_mem_alive();
    assert_int_equal(lg_history_open(10000, 100, &h), LG_OK);
    for (int i = 0; i < 1000; i++) {
        snprintf(id, sizeof id, "r%d", i);
        lg_history_put(h, 7, id, text, sizeof text, 5);
        assert_true(lg_mem_alive() - alive < 20); /* blocks */
    }
    assert_false(lg_history_get(h, 7, "r990", &got, 5));
    assert_true(lg_history_get(h, 7, "r992", &got, 5));
    assert_false(lg_history_get(h, 8, "r992", &got, 5)); /* somebody else's */
    assert_int_equal(got.len_bytes, sizeof text);
    lg_buf_clear(&got);
    assert_true(lg_history_get(h, 7, "r999", &got, 104));
    assert_memory_equal(got.data, text, sizeof text);
    assert_false(lg_history_get(h, 7, "r999", &got, 105)); /* too old */
    lg_buf_fini(&got);
    assert_int_equal(lg_mem_alive() - alive, 1);
    lg_history_put(h, 7, "big", text, 9000,
                   5); /* more than a quarter: not kept, and not read */
    assert_false(lg_history_get(h, 7, "big", &got, 5));
    lg_history_put(h, 7, "", text, 0, 5);
    assert_true(lg_history_get(h, 7, "", &got, 5));
    lg_buf_fini(&got);
    lg_history_close(&h);
    assert_int_equal(lg_mem_alive(), alive);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    size_t n = 0;
    for (size_t i = 0; i < LG_COUNT(answers); i++)
        for (int stream = 0; stream < 2; stream++)
            n += wire_rig_fail_all(WIRE, &answers[i].a, stream);
    assert_true(n > 200);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_are_those_of_chats),
        cmocka_unit_test(test_values_arrive),
        cmocka_unit_test(test_switches_are_alike),
        cmocka_unit_test(test_refused_by_name),
        cmocka_unit_test(test_objects_have_the_shape),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_a_failed_stream),
        cmocka_unit_test(test_going_on_after_an_answer),
        cmocka_unit_test(test_history_is_bounded),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, wire_rig_setup, wire_rig_teardown);
}
