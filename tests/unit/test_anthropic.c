/* test_anthropic.c - the Anthropic Messages wire format: prompts against those of equal chat requests, refusals by name,
 * event sequences as the API documents them, streams against objects, and every allocation failing. */
#include "gateway/wire/anthropic.h"
#include "wire_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define WIRE &lg_anthropic_wire
#define HI   "{'model':'tiny','max_tokens':5,'messages':[{'role':'user','content':'hi'}]"
#define TOOL                                                                                   \
    ",'tools':[{'name':'add','description':'d','input_schema':{'type':'object','properties':{" \
    "'a':{'type':'integer'}}}}]"
#define OAI_TOOL                                                                               \
    ",'tools':[{'type':'function','function':{'name':'add','description':'d','parameters':{"   \
    "'type':'object','properties':{'a':{'type':'integer'}}}}}]"

/* ---- Requests ---- */

static void test_prompts_are_those_of_chats(void **state) {
    (void)state;
    static const char *const same[][2] = {
        {HI "}", "{'model':'tiny','messages':[{'role':'user','content':'hi'}],"
                 "'enable_thinking':false}"},
        {HI ",'thinking':{'type':'adaptive'}}",
         "{'model':'tiny','messages':[{'role':'user','content':'hi'}]}"},
        {"{'model':'tiny','max_tokens':5,'system':[{'type':'text','text':'A','cache_control':{"
         "'type':'ephemeral'}},{'type':'text','text':'B'}],'thinking':{'type':'enabled',"
         "'budget_tokens':4},'messages':[{'role':'user','content':[{'type':'text','text':'x'},{"
         "'type':'text','text':'y'}]},{'role':'assistant','content':[{'type':'thinking',"
         "'thinking':'hm','signature':'s'},{'type':'text','text':'I add.'},{'type':'tool_use',"
         "'id':'t1','name':'add','input':{'a':1}},{'type':'tool_use','id':'t2','name':'add',"
         "'input':{'a':2}}]},{'role':'user','content':[{'type':'tool_result','tool_use_id':"
         "'t2','content':[{'type':'text','text':'two'}]},{'type':'tool_result','tool_use_id':"
         "'t1','content':'one','is_error':false}]}]" TOOL "}",
         "{'model':'tiny','messages':[{'role':'system','content':'A\\n\\nB'},{'role':'user',"
         "'content':'xy'},{'role':'assistant','reasoning_content':'hm','content':'I add.',"
         "'tool_calls':[{'function':{'name':'add','arguments':'{\\\"a\\\":1}'}},{'function':{"
         "'name':'add','arguments':'{\\\"a\\\":2}'}}]},{'role':'tool','content':'one'},{'role':"
         "'tool','content':'two'}]" OAI_TOOL "}"},
        {HI TOOL ",'tool_choice':{'type':'none'}}",
         "{'model':'tiny','messages':[{'role':'user','content':'hi'}],'enable_thinking':"
         "false}"},
        {"{'model':'tiny','max_tokens':5,'messages':[{'role':'user','content':[{'type':"
         "'tool_result','tool_use_id':'x'},{'type':'text','text':'why?'}]}]}",
         "{'model':'tiny','messages':[{'role':'tool','content':''},{'role':'user','content':"
         "'why?'}],'enable_thinking':false}"},
    };
    for (size_t i = 0; i < LG_COUNT(same); i++)
        wire_rig_same_prompt(WIRE, same[i][0], &lg_openai_chat, same[i][1]);
}

static void test_the_changing_line_is_dropped(void **state) {
    (void)state;
    static const char line[] = "x-anthropic-billing-header: cc_version=2; cch=1a2b;";
    char body[2][512], plain[512];
    snprintf(plain, sizeof plain, "%s,'system':'You are x-anthropic-billing-header: y\\nB'}",
             HI);
    snprintf(body[0], sizeof body[0],
             "%s,'system':'%s\\nYou are x-anthropic-billing-header: y\\nB'}", HI, line);
    snprintf(body[1], sizeof body[1],
             "%s,'system':[{'type':'text','text':'%s'},{'type':'text','text':'You are "
             "x-anthropic-billing-header: y\\nB'}]}",
             HI, line);
    for (int i = 0; i < 2; i++) wire_rig_same_prompt(WIRE, body[i], WIRE, plain);
    lg_request_parsed *r = wire_rig_open(WIRE, body[0]);
    size_t n = r->ids.n;
    assert_true(r->dropped_header);
    lg_request_close(&r);
    wire_rig_model.keep_header = true;
    r = wire_rig_open(WIRE, body[0]);
    wire_rig_model.keep_header = false;
    assert_false(r->dropped_header);
    assert_true(r->ids.n > n);
    lg_request_close(&r);
}

static void test_values_arrive(void **state) {
    (void)state;
    lg_request_parsed *r = wire_rig_open(
        WIRE, HI ",'temperature':1,'top_p':0.25,'top_k':7,'stop_sequences':['a','b'],"
                 "'stream':true,'metadata':{'user_id':'u'},'service_tier':'auto','thinking':{"
                 "'type':'enabled','budget_tokens':3},'output_config':{'effort':'high'},"
                 "'context_management':{'edits':[{'type':'clear_thinking_20251015','keep':"
                 "'all'}]}}");
    assert_true(r->stream && r->chat && r->opened_think);
    assert_true(r->params.temperature == 1 && r->params.top_p == 0.25f && r->params.top_k == 7);
    assert_int_equal(r->n_stop, 2);
    assert_int_equal(r->max_tokens, 5);
    assert_int_equal(r->think_budget, 3);
    assert_int_equal(strncmp(r->id, "msg_", 4), 0);
    lg_request_close(&r);
}

static void test_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *body, *param;
    } c[] = {
        {"{'model':'tiny','messages':[{'role':'user','content':'x'}]}", "max_tokens"},
        {"{'model':'tiny','max_tokens':5}", "messages"},
        {"{'model':'tiny','max_tokens':5,'messages':[]}", "messages"},
        {HI ",'max_tokens':4}", "max_tokens"},
        {HI ",'temperature':1.1}", "temperature"},
        {HI ",'top_p':0}", "top_p"},
        {HI ",'top_k':1.5}", "top_k"},
        {HI ",'stop_sequences':'x'}", "stop_sequences"},
        {HI ",'stop_sequences':['']}", "stop_sequences[0]"},
        {HI ",'stop':'x'}", "stop"},
        {HI ",'n':1}", "n"},
        {HI ",'system':5}", "system"},
        {HI ",'system':[{'type':'image'}]}", "system[0]"},
        {HI ",'system':[{'type':'text'}]}", "system[0].text"},
        {HI ",'system':[{'type':'text','text':'a','x':1}]}", "system[0].x"},
        {HI ",'thinking':{'type':'maybe'}}", "thinking.type"},
        {HI ",'thinking':{'type':'enabled'}}", "thinking.budget_tokens"},
        {HI ",'thinking':{'type':'enabled','budget_tokens':5}}", "thinking.budget_tokens"},
        {HI ",'thinking':{'type':'enabled','budget_tokens':0}}", "thinking.budget_tokens"},
        {HI ",'thinking':{'type':'disabled','budget_tokens':2}}", "thinking.budget_tokens"},
        {HI ",'thinking':{'type':'adaptive','display':'short'}}", "thinking.display"},
        {HI ",'thinking':{'type':'disabled','x':2}}", "thinking.x"},
        {HI ",'tools':[{'name':'a b','input_schema':{}}]}", "tools[0].name"},
        {HI ",'tools':[{'name':'a'}]}", "tools[0].input_schema"},
        {HI ",'tools':[{'type':'bash_20250124','name':'w'}]}", "tools[0].type"},
        {HI ",'tools':[{'name':'a','input_schema':{},'strict':true}]}", "tools[0].strict"},
        {HI ",'tools':[{'name':'a','input_schema':{},'description':1}]}",
         "tools[0].description"},
        {HI ",'tools':[{'name':'a','input_schema':{},'load_later':true}]}",
         "tools[0].load_later"},
        {HI ",'tool_choice':{'type':'any'}}", "tool_choice"},
        {HI TOOL ",'tool_choice':{'type':'tool','name':'a'}}", "tool_choice"},
        {HI TOOL ",'tool_choice':{'type':'tool'}}", "tool_choice"},
        {HI TOOL ",'tool_choice':{'type':'any','name':'add'}}", "tool_choice.name"},
        {HI TOOL ",'tool_choice':{'type':'some'}}", "tool_choice.type"},
        {HI TOOL ",'output_config':{'format':{'type':'json_schema','schema':{}}}}",
         "output_config.format.schema"},
        {HI ",'output_config':{'format':{'type':'json_schema'}}}",
         "output_config.format.schema"},
        {HI ",'tool_choice':{'type':'auto','disable_parallel_tool_use':1}}",
         "tool_choice.disable_parallel_tool_use"},
        {HI ",'mcp_servers':[]}", "mcp_servers"},
        {HI ",'container':'x'}", "container"},
        {HI ",'service_tier':'flex'}", "service_tier"},
        {HI ",'output_config':{'format':{}}}", "output_config.format.type"},
        {HI ",'output_config':{'effort':'some'}}", "output_config.effort"},
        {HI ",'context_management':{'edits':[{'type':'clear_tool_uses_20250919'}]}}",
         "context_management.edits"},
    };
    static const struct {
        const char *message, *param;
    } m[] = {
        {"5", "messages[0]"},
        {"{'content':'x'}", "messages[0].role"},
        {"{'role':'tool','content':'x'}", "messages[0].role"},
        {"{'role':'user'}", "messages[0].content"},
        {"{'role':'user','content':5}", "messages[0].content"},
        {"{'role':'user','content':'x','name':'y'}", "messages[0].name"},
        {"{'role':'user','content':[5]}", "messages[0].content[0]"},
        {"{'role':'user','content':[{'type':'text','text':'a'},{'type':'image','source':{}}]}",
         "messages[0].content[1]"},
        {"{'role':'user','content':[{'type':'document'}]}", "messages[0].content[0]"},
        {"{'role':'user','content':[{'type':'thinking','thinking':'x'}]}",
         "messages[0].content[0]"},
        {"{'role':'user','content':[{'type':'tool_result'}]}",
         "messages[0].content[0].tool_use_id"},
        {"{'role':'user','content':[{'type':'tool_result','tool_use_id':'a','content':[{'type':"
         "'image'}]}]}",
         "messages[0].content[0].content[0]"},
        {"{'role':'user','content':[{'type':'tool_result','tool_use_id':'a','is_error':1}]}",
         "messages[0].content[0].is_error"},
        {"{'role':'assistant','content':[{'type':'tool_use','id':'a','name':'f'}]}",
         "messages[0].content[0].input"},
        {"{'role':'assistant','content':[{'type':'tool_use','name':'f','input':{}}]}",
         "messages[0].content[0].id"},
        {"{'role':'assistant','content':[{'type':'redacted_thinking','data':'x'}]}",
         "messages[0].content[0]"},
        {"{'role':'assistant','content':[{'type':'tool_result','tool_use_id':'x'}]}",
         "messages[0].content[0]"},
    };
    for (size_t i = 0; i < LG_COUNT(c); i++) wire_rig_expect_bad(WIRE, c[i].body, c[i].param);
    for (size_t i = 0; i < LG_COUNT(m); i++) {
        char body[512];
        snprintf(body, sizeof body, "{'model':'tiny','max_tokens':5,'messages':[%s]}",
                 m[i].message);
        wire_rig_expect_bad(WIRE, body, m[i].param);
    }
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        int http;
        const char *type;
    } c[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
             {404, "not_found_error"},       {413, "request_too_large"},
             {429, "rate_limit_error"},      {500, "api_error"},
             {503, "overloaded_error"}};
    for (size_t i = 0; i < LG_COUNT(c); i++) {
        lg_buf b = {0};
        char want[128];
        lg_request_error e = {
            .http = c[i].http, .type = "x", .msg = "It is so.", .param = "top_k"};
        lg_anthropic_error(&e, &b);
        snprintf(want, sizeof want,
                 "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"top_k: It is "
                 "so.\"}}",
                 c[i].type);
        assert_string_equal(b.data, want);
        lg_buf_fini(&b);
    }
    lg_buf b = {0};
    lg_request_parsed *r;
    lg_request_error e;
    wire_rig_quote(&b, "{'model':'tiny','max_tokens':899,'messages':[{'role':'user','content':"
                       "'hi'}]}");
    assert_false((WIRE)->open(&wire_rig_model, b.data, b.len_bytes, &r, &e));
    assert_non_null(strstr(e.msg, "exceed context limit: "));
    assert_non_null(strstr(e.msg, " + 899 > 900"));
    wire_rig_quote(&b, "{'model':'tiny','max_tokens':1,'messages':[{'role':'user','content':'");
    for (int i = 0; i < 1000; i++) lg_buf_puts(&b, " hi");
    lg_buf_puts(&b, "\"}]}");
    assert_false((WIRE)->open(&wire_rig_model, b.data, b.len_bytes, &r, &e));
    assert_non_null(strstr(e.msg, "prompt is too long: "));
    assert_non_null(strstr(e.msg, " tokens > 900 maximum"));
    lg_buf_fini(&b);
}

static void test_count(void **state) {
    (void)state;
    lg_request_parsed *r = wire_rig_open(WIRE, HI TOOL "}");
    lg_buf b = {0}, answer = {0};
    lg_request_error e;
    char want[64];
    wire_rig_quote(&b, "{'model':'tiny','messages':[{'role':'user','content':'hi'}]" TOOL "}");
    assert_true(lg_anthropic_count(&wire_rig_model, b.data, b.len_bytes, &answer, &e));
    snprintf(want, sizeof want, "{\"input_tokens\":%zu}", r->ids.n);
    assert_string_equal(answer.data, want);
    wire_rig_quote(&b, HI "}");
    assert_false(lg_anthropic_count(&wire_rig_model, b.data, b.len_bytes, &answer, &e));
    assert_string_equal(e.param, "max_tokens");
    lg_buf_fini(&answer);
    lg_buf_fini(&b);
    lg_request_close(&r);
}

/* ---- Answers ---- */

#define CALL                                                                                   \
    "<tool_call>\n<function=add>\n<parameter=a>\n12\n</parameter>\n</function>\n</tool_call>"
#define THINK ",'thinking':{'type':'adaptive'}}"
#define USAGE(n)                                                                               \
    "'usage':{'input_tokens':N,'cache_creation_input_tokens':0,'cache_read_input_tokens':0,"   \
    "'output_tokens':" n "}"

/* The object, with N for the prompt's tokens and X for the digits of call ids. */
static const struct {
    wire_rig_answer a;
    const char *content, *stop;
} answers[] = {
    {{HI "}", "Hello, \xc3\xa9!\n", LG_FINISH_EOS, 0},
     "[{'type':'text','text':'Hello, \xc3\xa9!\\n'}]",
     "'stop_reason':'end_turn','stop_sequence':null"},
    {{HI "}", "", LG_FINISH_EOS, 0}, "[]", "'stop_reason':'end_turn','stop_sequence':null"},
    {{HI ",'stop_sequences':['u','v']}", "one", LG_FINISH_STOP, 1},
     "[{'type':'text','text':'one'}]",
     "'stop_reason':'stop_sequence','stop_sequence':'v'"},
    {{HI THINK, "Hm.\n</think>\n\nYes.", LG_FINISH_LENGTH, 0},
     "[{'type':'thinking','thinking':'Hm.','signature':'id_test'},{'type':'text','text':"
     "'Yes.'}]",
     "'stop_reason':'max_tokens','stop_sequence':null"},
    {{HI THINK, "Hm", LG_FINISH_LENGTH, 0},
     "[{'type':'thinking','thinking':'Hm','signature':'id_test'}]",
     "'stop_reason':'max_tokens','stop_sequence':null"},
    {{HI TOOL THINK, "Add.\n</think>\n\nSo:\n\n" CALL "\n" CALL, LG_FINISH_EOS, 0},
     "[{'type':'thinking','thinking':'Add.','signature':'id_test'},{'type':'text','text':'So:'}"
     ",{'type':'tool_use','id':'toolu_X','name':'add','input':{'a':12}},{'type':'tool_use','id'"
     ":'toolu_X','name':'add','input':{'a':12}}]",
     "'stop_reason':'tool_use','stop_sequence':null"},
    {{HI TOOL ",'tool_choice':{'type':'auto','disable_parallel_tool_use':true}}",
      CALL "\n" CALL "\nx", LG_FINISH_EOS, 0},
     "[{'type':'tool_use','id':'toolu_X','name':'add','input':{'a':12}}]",
     "'stop_reason':'tool_use','stop_sequence':null"},
    /* cut: an object all the same, and the reason says that it is not whole */
    {{HI TOOL "}", "<tool_call>\n<function=add>\n<parameter=s>\nhal", LG_FINISH_LENGTH, 0},
     "[{'type':'tool_use','id':'toolu_X','name':'add','input':{'s':'hal'}}]",
     "'stop_reason':'max_tokens','stop_sequence':null"},
};

/* *out becomes text with ids and counts masked. */
static void mask(lg_buf *out, const lg_buf *text, size_t n_prompt) {
    char count[48];
    lg_buf_clear(out);
    snprintf(count, sizeof count, "\"input_tokens\":%zu,", n_prompt);
    for (size_t i = 0; i < text->len_bytes; i++) {
        const char *s = text->data + i;
        if (strncmp(s, "\"toolu_", 7) == 0) {
            assert_int_equal(strspn(s + 7, "0123456789abcdef"), 24);
            lg_buf_puts(out, "\"toolu_X");
            i += 30;
        } else if (strncmp(s, count, strlen(count)) == 0) {
            lg_buf_puts(out, "\"input_tokens\":N,");
            i += strlen(count) - 1;
        } else {
            lg_buf_putc(out, *s);
        }
    }
}

static size_t prompt_tokens(const char *body) {
    lg_request_parsed *r = wire_rig_open(WIRE, body);
    size_t n = r->ids.n;
    lg_request_close(&r);
    return n;
}

static void want_object(lg_buf *want, size_t i) {
    char text[1024];
    snprintf(text, sizeof text,
             "{'id':'id_test','type':'message','role':'assistant','model':'tiny','content':%s,"
             "%s," USAGE("7") "}",
             answers[i].content, answers[i].stop);
    wire_rig_quote(want, text);
}

static void test_objects_have_the_shape(void **state) {
    (void)state;
    lg_buf text = {0}, got = {0}, want = {0};
    for (size_t i = 0; i < LG_COUNT(answers); i++) {
        assert_int_equal(wire_rig_serve(WIRE, &answers[i].a, false, 3, &text), LG_OK);
        mask(&got, &text, prompt_tokens(answers[i].a.body));
        want_object(&want, i);
        assert_string_equal(got.data, want.data);
    }
    lg_buf_fini(&text);
    lg_buf_fini(&got);
    lg_buf_fini(&want);
}

/* The sequence that the API's documentation shows. */
static void test_stream_transcript(void **state) {
    (void)state;
    static const char transcript[] =
        "event: message_start\ndata: {'type':'message_start','message':{'id':'id_test','type':"
        "'message','role':'assistant','model':'tiny','content':[],'stop_reason':null,"
        "'stop_sequence':null," USAGE(
            "0") "}}\n\n"
                 "event: content_block_start\ndata: {'type':'content_block_start','index':0,"
                 "'content_block':{'type':'thinking','thinking':'','signature':''}}\n\n"
                 "event: content_block_delta\ndata: "
                 "{'type':'content_block_delta','index':0,'delta':{"
                 "'type':'thinking_delta','thinking':'Add.'}}\n\n"
                 "event: content_block_delta\ndata: "
                 "{'type':'content_block_delta','index':0,'delta':{"
                 "'type':'signature_delta','signature':'id_test'}}\n\n"
                 "event: content_block_stop\ndata: {'type':'content_block_stop','index':0}\n\n"
                 "event: content_block_start\ndata: {'type':'content_block_start','index':1,"
                 "'content_block':{'type':'text','text':''}}\n\n"
                 "event: content_block_delta\ndata: "
                 "{'type':'content_block_delta','index':1,'delta':{"
                 "'type':'text_delta','text':'So:'}}\n\n"
                 "event: content_block_stop\ndata: {'type':'content_block_stop','index':1}\n\n"
                 "event: content_block_start\ndata: {'type':'content_block_start','index':2,"
                 "'content_block':{'type':'tool_use','id':'toolu_X','name':'add','input':{}}}"
                 "\n\n"
                 "event: content_block_delta\ndata: "
                 "{'type':'content_block_delta','index':2,'delta':{"
                 "'type':'input_json_delta','partial_json':'{\\'a\\':12}'}}\n\n"
                 "event: content_block_stop\ndata: {'type':'content_block_stop','index':2}\n\n"
                 "event: message_delta\ndata: "
                 "{'type':'message_delta','delta':{'stop_reason':'tool_use',"
                 "'stop_sequence':null}," USAGE(
                     "7") "}\n\n"
                          "event: message_stop\ndata: {'type':'message_stop'}\n\n";
    static const wire_rig_answer a = {HI TOOL THINK, "Add.\n</think>\n\nSo:\n\n" CALL,
                                      LG_FINISH_EOS, 0};
    lg_buf text = {0}, got = {0}, want = {0};
    assert_int_equal(wire_rig_serve(WIRE, &a, true, 1000, &text), LG_OK);
    mask(&got, &text, prompt_tokens(a.body));
    wire_rig_quote(&want, transcript);
    assert_string_equal(got.data, want.data);
    lg_buf_fini(&text);
    lg_buf_fini(&got);
    lg_buf_fini(&want);
}

/* Join a stream's blocks as a client does, into the "content" of the object. */
static void join(const char *sse, lg_buf *content) {
    bool call = false, open = false;
    char type[16] = "";
    const char *p = sse, *end;
    lg_buf text = {0}, signature = {0}, head = {0};
    lg_buf_puts(content, "[");
    for (; *p; p = end + 2) {
        end = strstr(p, "\n\n");
        const char *data = strstr(p, "\ndata: ");
        assert_true(end && data && data < end);
        lg_json_doc *doc = wire_rig_parse(data + 7, (size_t)(end - data) - 7);
        const lg_json *e = lg_json_root(doc), *k = lg_json_get(e, "content_block");
        const lg_json *delta = lg_json_get(e, "delta");
        const char *name = lg_json_get(e, "type")->text;
        assert_int_equal(strncmp(p + 7, name, strlen(name)), 0);
        if (strcmp(name, "content_block_start") == 0) {
            assert_false(open);
            open = true;
            snprintf(type, sizeof type, "%s", lg_json_get(k, "type")->text);
            call = strcmp(type, "tool_use") == 0;
            lg_buf_clear(&head);
            if (call) {
                lg_buf_printf(&head, "\"id\":\"%s\",\"name\":\"%s\",\"input\":",
                              lg_json_get(k, "id")->text, lg_json_get(k, "name")->text);
            } else {
                lg_buf_printf(&head, "\"%s\":", type);
            }
            lg_buf_clear(&text);
            lg_buf_clear(&signature);
        } else if (strcmp(name, "content_block_delta") == 0) {
            static const char *const key[] = {"text", "thinking", "partial_json"};
            assert_true(open);
            for (size_t i = 0; i < 3; i++) {
                const lg_json *s = lg_json_get(delta, key[i]);
                if (s) lg_buf_put(&text, s->text, s->text_len);
            }
            const lg_json *s = lg_json_get(delta, "signature");
            if (s) lg_buf_put(&signature, s->text, s->text_len);
        } else if (strcmp(name, "content_block_stop") == 0) {
            open = false;
            lg_buf_printf(content, "%s{\"type\":\"%s\",%s", content->len_bytes > 1 ? "," : "",
                          type, head.data);
            if (call)
                lg_buf_puts(content, lg_buf_str(&text));
            else
                lg_json_put_string(content, lg_buf_str(&text), text.len_bytes);
            if (signature.len_bytes)
                lg_buf_printf(content, ",\"signature\":\"%s\"", signature.data);
            lg_buf_puts(content, "}");
        }
        lg_json_close(&doc);
    }
    assert_false(open);
    lg_buf_puts(content, "]");
    lg_buf_fini(&text);
    lg_buf_fini(&signature);
    lg_buf_fini(&head);
}

static void test_streams_join_to_the_object(void **state) {
    (void)state;
    lg_buf whole = {0}, sse = {0}, content = {0}, want = {0};
    for (size_t i = 0; i < LG_COUNT(answers); i++) {
        assert_int_equal(wire_rig_serve(WIRE, &answers[i].a, false, 1, &whole), LG_OK);
        lg_json_doc *doc = wire_rig_parse(whole.data, whole.len_bytes);
        lg_buf_clear(&want);
        lg_json_put(&want, lg_json_get(lg_json_root(doc), "content"), LG_JSON_COMPACT);
        lg_json_close(&doc);
        for (size_t step = 1; step <= strlen(answers[i].a.text) + 1; step++) {
            assert_int_equal(wire_rig_serve(WIRE, &answers[i].a, true, step, &sse), LG_OK);
            lg_buf_clear(&content);
            join(sse.data, &content);
            if (answers[i].a.finish == LG_FINISH_LENGTH && strstr(want.data, "tool_use")) {
                /* the pieces of a cut call stay cut */
                assert_string_equal(content.data + content.len_bytes - 2, "}]");
                content.len_bytes -= 2;
                lg_buf_puts(&content, "\"}}]");
            }
            assert_string_equal(content.data, want.data);
        }
    }
    lg_buf_fini(&whole);
    lg_buf_fini(&sse);
    lg_buf_fini(&content);
    lg_buf_fini(&want);
}

static void test_ping_and_error_events(void **state) {
    (void)state;
    lg_request_parsed *r = wire_rig_open(WIRE, HI ",'stream':true}");
    lg_out *out;
    lg_buf sse = {0};
    lg_request_error e = {.http = 503, .type = "server_error", .msg = "Gone."};
    assert_int_equal((WIRE)->out_open(r, 0, &out), LG_OK);
    (WIRE)->ping(out, &sse);
    assert_int_equal(strncmp(sse.data, "event: message_start\n", 21), 0);
    (WIRE)->ping(out, &sse);
    const char *first = strstr(sse.data, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    assert_non_null(first);
    assert_string_equal(first, "event: ping\ndata: {\"type\":\"ping\"}\n\n"
                               "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    lg_buf_clear(&sse);
    (WIRE)->stream_error(out, &e, &sse);
    assert_string_equal(sse.data, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
                                  "\"overloaded_error\",\"message\":\"Gone.\"}}\n\n");
    (WIRE)->out_close(&out);
    lg_buf_fini(&sse);
    lg_request_close(&r);
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
        cmocka_unit_test(test_the_changing_line_is_dropped),
        cmocka_unit_test(test_values_arrive),
        cmocka_unit_test(test_refused_by_name),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_objects_have_the_shape),
        cmocka_unit_test(test_stream_transcript),
        cmocka_unit_test(test_streams_join_to_the_object),
        cmocka_unit_test(test_ping_and_error_events),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, wire_rig_setup, wire_rig_teardown);
}
