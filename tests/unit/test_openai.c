/* test_openai.c - the OpenAI wire format, requests: every field's bad and good values, whole bodies, tools and messages. */
#include "openai_rig.h"

static const struct {
    const char *extra, *param;
} bad_both[] = {
    {"'temperature':2.01", "temperature"},
    {"'temperature':-0.1", "temperature"},
    {"'temperature':1e308", "temperature"},
    {"'temperature':1e999", "temperature"},
    {"'temperature':'1'", "temperature"},
    {"'temperature':[]", "temperature"},
    {"'top_p':0", "top_p"},
    {"'top_p':1e-60", "top_p"},
    {"'top_p':1.5", "top_p"},
    {"'top_p':true", "top_p"},
    {"'top_k':-2", "top_k"},
    {"'top_k':1.5", "top_k"},
    {"'top_k':4294967296", "top_k"},
    {"'min_p':-1", "min_p"},
    {"'min_p':1.01", "min_p"},
    {"'presence_penalty':2.5", "presence_penalty"},
    {"'presence_penalty':{}", "presence_penalty"},
    {"'frequency_penalty':-2.5", "frequency_penalty"},
    {"'repetition_penalty':0", "repetition_penalty"},
    {"'repetition_penalty':10.5", "repetition_penalty"},
    {"'repetition_penalty':-1", "repetition_penalty"},
    {"'logit_bias':[]", "logit_bias"},
    {"'logit_bias':{'x':1}", "logit_bias.x"},
    {"'logit_bias':{'':1}", "logit_bias."},
    {"'logit_bias':{'-1':1}", "logit_bias.-1"},
    {"'logit_bias':{'4096':1}", "logit_bias.4096"},
    {"'logit_bias':{'99999999999':1}", "logit_bias.99999999999"},
    {"'logit_bias':{'1':101}", "logit_bias.1"},
    {"'logit_bias':{'1':null}", "logit_bias.1"},
    {"'seed':1.5", "seed"},
    {"'seed':9223372036854775808", "seed"},
    {"'seed':'1'", "seed"},
    {"'stop':''", "stop"},
    {"'stop':'a\\u0000b'", "stop"},
    {"'stop':5", "stop"},
    {"'stop':['a','']", "stop[1]"},
    {"'stop':['a',null]", "stop[1]"},
    {"'stop':['1','2','3','4','5','6','7','8','9','10','11','12','13','14','15','16','17']",
     "stop"},
    {"'n':0", "n"},
    {"'n':9", "n"},
    {"'n':'2'", "n"},
    {"'max_tokens':0", "max_tokens"},
    {"'max_tokens':-1", "max_tokens"},
    {"'max_tokens':1e300", "max_tokens"},
    {"'max_tokens':'5'", "max_tokens"},
    {"'stream':1", "stream"},
    {"'stream':'true'", "stream"},
    {"'stream_options':{}", "stream_options"},
    {"'stream':true,'stream_options':5", "stream_options"},
    {"'stream':true,'stream_options':{'include_usage':1}", "stream_options.include_usage"},
    {"'stream':true,'stream_options':{'x':1}", "stream_options.x"},
    {"'ignore_eos':0", "ignore_eos"},
    {"'user':5", "user"},
    {"'nonsense':5", "nonsense"},
    {"'nonsense':null", "nonsense"},
    {"'temperature\\u0000x':1", "temperature"},
    {"'':1", ""},
    {"'temperature':1,'temperature':1", "temperature"},
    {"'model':'tiny'", "model"},
};

static const struct {
    const char *extra, *param;
} bad_chat[] = {
    {"'logprobs':1", "logprobs"},
    {"'top_logprobs':3", "top_logprobs"},
    {"'logprobs':false,'top_logprobs':0", "top_logprobs"},
    {"'logprobs':true,'top_logprobs':21", "top_logprobs"},
    {"'logprobs':true,'top_logprobs':-1", "top_logprobs"},
    {"'max_completion_tokens':0", "max_completion_tokens"},
    {"'tools':{}", "tools"},
    {"'tools':[5]", "tools[0]"},
    {"'tools':[{'type':'x'}]", "tools[0].type"},
    {"'tools':[{'type':'function'}]", "tools[0].function.name"},
    {"'tools':[{'type':'function','function':{'name':''}}]", "tools[0].function.name"},
    {"'tools':[{'type':'function','function':{'name':'a>b'}}]", "tools[0].function.name"},
    {"'tools':[{'type':'function','function':{'name':'f','parameters':[]}}]",
     "tools[0].function.parameters"},
    {"'tool_choice':'required'", "tool_choice"},
    {"'tool_choice':{'type':'function','function':{'name':'f'}}", "tool_choice"},
    {"'tool_choice':'x'", "tool_choice"},
    {"'tool_choice':5", "tool_choice"},
    {"'thinking_budget':0", "thinking_budget"},
    {"'enable_thinking':'no'", "enable_thinking"},
    {"'chat_template_kwargs':5", "chat_template_kwargs"},
    {"'chat_template_kwargs':{'enable_thinking':0}", "chat_template_kwargs.enable_thinking"},
    {"'chat_template_kwargs':{'x':0}", "chat_template_kwargs.x"},
    {"'reasoning_effort':'much'", "reasoning_effort"},
    {"'reasoning_effort':5", "reasoning_effort"},
    {"'response_format':'text'", "response_format"},
    {"'response_format':{'type':'json'}", "response_format.type"},
    {"'response_format':{'type':'json_object','schema':{}}", "response_format.schema"},
    {"'response_format':{'type':'json_schema'}", "response_format.json_schema"},
    {"'response_format':{'type':'json_schema','json_schema':{'name':'x'}}",
     "response_format.json_schema.schema"},
    {"'response_format':{'type':'json_schema','json_schema':{'schema':{'type':'x'}}}",
     "response_format.json_schema.schema"},
    {"'response_format':{'type':'json_schema','json_schema':{'schema':{},'x':1}}",
     "response_format.json_schema.x"},
    {"'response_format':{'type':'json_object'}," TOOL, "response_format"},
    {"'response_format':{'type':'json_object'},'ignore_eos':true", "ignore_eos"},
    {TOOL ",'tool_choice':{'type':'function','function':{'name':'sub'}}", "tool_choice"},
    {TOOL ",'tool_choice':{'type':'function'}", "tool_choice"},
    {"'response_format':{}", "response_format.type"},
    {"'response_format':{'type':'text','x':1}", "response_format.x"},
    {"'modalities':['audio']", "modalities"},
    {"'parallel_tool_calls':0", "parallel_tool_calls"},
    {"'store':true", "store"},
    {"'metadata':[]", "metadata"},
    {"'service_tier':'scale'", "service_tier"},
    {"'priority':1.5", "priority"},
    {"'priority':2147483648", "priority"},
    {"'functions':[]", "functions"},
    {"'function_call':'auto'", "function_call"},
    {"'audio':{}", "audio"},
    {"'prediction':{}", "prediction"},
    {"'web_search_options':{}", "web_search_options"},
    {"'safety_identifier':1", "safety_identifier"},
    {"'prompt_cache_key':1", "prompt_cache_key"},
    {"'prompt':'x'", "prompt"},
    {"'suffix':'x'", "suffix"},
    {"'messages':[]", "messages"},
};

static const struct {
    const char *extra, *param;
} bad_text[] = {
    {"'logprobs':true", "logprobs"},      {"'logprobs':-1", "logprobs"},
    {"'logprobs':21", "logprobs"},        {"'echo':true", "echo"},
    {"'suffix':'x'", "suffix"},           {"'best_of':2", "best_of"},
    {"'messages':[]", "messages"},        {"'tools':[]", "tools"},
    {"'top_logprobs':1", "top_logprobs"},
};

/* Whole bodies: for a chat (C) or a completion (T). */
static const struct {
    const char *body, *param, *code;
    bool chat;
    int http;
} bad_whole[] = {
    {"", "", "invalid_json", true, 400},
    {"{", "", "invalid_json", true, 400},
    {"[]", "", "invalid_json", true, 400},
    {"{'model':'tiny'}x", "", "invalid_json", true, 400},
    {"{'messages':[]}", "model", "missing_required_parameter", true, 400},
    {"{'model':null,'messages':[]}", "model", "missing_required_parameter", true, 400},
    {"{'model':'tiny'}", "messages", "missing_required_parameter", true, 400},
    {"{'model':'tiny','messages':null}", "messages", "missing_required_parameter", true, 400},
    {"{'model':'tiny'}", "prompt", "missing_required_parameter", false, 400},
    {"{'model':'gpt-4','messages':[]}", "model", "model_not_found", true, 404},
    {"{'model':'tiny\\u0000x','messages':[]}", "model", "model_not_found", true, 404},
    {"{'model':5,'messages':[]}", "model", "invalid_value", true, 400},
    {"{'model':'tiny','messages':{}}", "messages", "invalid_value", true, 400},
    {"{'model':'tiny','messages':[]}", "messages", "invalid_value", true, 400},
    {"{'model':'tiny','messages':['x']}", "messages[0]", "invalid_value", true, 400},
    {"{'model':'tiny','messages':[{'content':'x'}]}", "messages[0].role", "invalid_value", true,
     400},
    {"{'model':'tiny','messages':[{'role':'user','content':'x','x':1}]}", "messages[0].x",
     "unknown_parameter", true, 400},
    {"{'model':'tiny','messages':[{'role':'user','content':'x','audio':{}}]}",
     "messages[0].audio", "unknown_parameter", true, 400},
    {"{'model':'tiny','messages':[{'role':'user','content':[{'type':'image_url','image_url':{}}"
     "]"
     "}]}",
     "messages[0].content[0]", "unsupported_value", true, 400},
    {"{'model':'tiny','messages':[{'role':'user','content':[{'type':'text','text':'x','image':1"
     "}]}]}",
     "messages[0].content[0].image", "unknown_parameter", true, 400},
    {"{'model':'tiny','messages':[{'role':'user','content':[5]}]}", "messages[0].content[0]",
     "invalid_value", true, 400},
    {"{'model':'tiny','messages':[{'role':'user','content':[{'type':'text'}]}]}", "messages",
     "invalid_value", true, 400},
    {"{'model':'tiny','messages':[{'role':'user','content':5}]}", "messages", "invalid_value",
     true, 400},
    {"{'model':'tiny','messages':[{'role':'cat','content':'x'}]}", "messages", "invalid_value",
     true, 400},
    {"{'model':'tiny','prompt':''}", "prompt", "invalid_value", false, 400},
    {"{'model':'tiny','prompt':[]}", "prompt", "invalid_value", false, 400},
    {"{'model':'tiny','prompt':5}", "prompt", "invalid_value", false, 400},
    {"{'model':'tiny','prompt':['a','b']}", "prompt", "unsupported_value", false, 400},
    {"{'model':'tiny','prompt':[[1],[2]]}", "prompt", "unsupported_value", false, 400},
    {"{'model':'tiny','prompt':[1,'a']}", "prompt[1]", "invalid_value", false, 400},
    {"{'model':'tiny','prompt':[4096]}", "prompt[0]", "invalid_value", false, 400},
    {"{'model':'tiny','prompt':[-1]}", "prompt[0]", "invalid_value", false, 400},
    {"{'model':'tiny','prompt':'hi','max_tokens':600}", "prompt", "context_length_exceeded",
     false, 400},
    {"{'model':'tiny','messages':[{'role':'user','content':'hi'}],'max_tokens':599}",
     "messages", "context_length_exceeded", true, 400},
};

/* The error's own body must be an object with the four members. */
static void check_error_body(const lg_request_error *e) {
    lg_buf b = {0};
    lg_json_doc *doc;
    lg_oai_error_body(e, &b);
    assert_int_equal(lg_json_parse(b.data, b.len_bytes, 8, "error", &doc, NULL), LG_OK);
    const lg_json *err = lg_json_get(lg_json_root(doc), "error");
    assert_int_equal(err->n_child, 4);
    assert_true(lg_json_is(lg_json_get(err, "type"), e->type));
    assert_int_equal(lg_json_get(err, "message")->kind, LG_JSON_STRING);
    if (e->param[0])
        assert_int_equal(lg_json_get(err, "param")->kind, LG_JSON_STRING);
    else
        assert_int_equal(lg_json_get(err, "param")->kind, LG_JSON_NULL);
    lg_json_close(&doc);
    lg_buf_fini(&b);
}

static void expect_bad(bool chat, const char *extra, const char *param) {
    lg_buf b = {0};
    lg_request_parsed *req;
    lg_request_error e;
    body_of(&b, chat, extra);
    if (lg_oai_open(&model, chat, b.data, b.len_bytes, &req, &e))
        fail_msg("accepted: %s", b.data);
    assert_null(req);
    assert_int_equal(e.http, 400);
    assert_string_equal(e.type, "invalid_request_error");
    assert_string_equal(e.param, param);
    if (param[0]) assert_non_null(strstr(e.msg, param));
    check_error_body(&e);
    lg_buf_fini(&b);
}

static void test_bad_values_are_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < LG_COUNT(bad_both); i++) {
        expect_bad(true, bad_both[i].extra, bad_both[i].param);
        expect_bad(false, bad_both[i].extra, bad_both[i].param);
    }
    for (size_t i = 0; i < LG_COUNT(bad_chat); i++)
        expect_bad(true, bad_chat[i].extra, bad_chat[i].param);
    for (size_t i = 0; i < LG_COUNT(bad_text); i++)
        expect_bad(false, bad_text[i].extra, bad_text[i].param);
}

static void test_bad_bodies(void **state) {
    (void)state;
    lg_buf b = {0};
    for (size_t i = 0; i < LG_COUNT(bad_whole); i++) {
        lg_request_parsed *req;
        lg_request_error e;
        lg_buf_clear(&b);
        for (const char *p = bad_whole[i].body; *p; p++) lg_buf_putc(&b, *p == '\'' ? '"' : *p);
        if (lg_oai_open(&model, bad_whole[i].chat, lg_buf_str(&b), b.len_bytes, &req, &e))
            fail_msg("accepted: %s", b.data);
        assert_int_equal(e.http, bad_whole[i].http);
        assert_string_equal(e.code, bad_whole[i].code);
        assert_string_equal(e.param, bad_whole[i].param);
        check_error_body(&e);
    }
    lg_buf_fini(&b);
}

static void test_length_error_has_the_numbers(void **state) {
    (void)state;
    lg_buf b = {0};
    lg_request_parsed *req;
    lg_request_error e;
    body_of(&b, false, "'max_tokens':700");
    assert_false(lg_oai_open(&model, false, b.data, b.len_bytes, &req, &e));
    assert_string_equal(e.msg,
                        "This model's maximum context length is 600 tokens. However, you "
                        "requested 702 tokens (2 in the prompt, 700 for the answer).");
    lg_buf_clear(&b);
    lg_buf_puts(&b, "{\"model\":\"tiny\",\"prompt\":[");
    for (int i = 0; i < 600; i++) lg_buf_puts(&b, i ? ",7" : "7");
    lg_buf_puts(&b, "]}");
    assert_false(lg_oai_open(&model, false, b.data, b.len_bytes, &req, &e));
    assert_non_null(strstr(e.msg, "600 in the prompt, 1 for the answer"));
    lg_buf_consume(&b, 0);
    b.len_bytes -= 4; /* one id less */
    lg_buf_puts(&b, "]}");
    assert_true(lg_oai_open(&model, false, b.data, b.len_bytes, &req, &e));
    assert_int_equal(req->ids.n, 599);
    assert_int_equal(req->max_tokens, 1);
    lg_request_close(&req);
    lg_buf_fini(&b);
}

static void test_good_values_arrive(void **state) {
    (void)state;
    lg_request_parsed *r = open_good(true, "");
    assert_true(r->chat && !r->stream && !r->include_usage && r->opened_think);
    assert_true(r->params.temperature == 0.5f && r->params.top_p == 0.9f &&
                r->params.top_k == 40 && !r->params.has_seed && r->params.n_top == -1);
    assert_int_equal(r->max_tokens, 0);
    assert_int_equal(r->n_choice, 1);
    assert_null(r->tools);
    assert_int_equal(strncmp(r->id, "chatcmpl-", 9), 0);
    assert_int_equal(strlen(r->id), 41);
    assert_true(r->created > 1700000000);
    lg_request_close(&r);
    assert_null(r);

    r = open_good(true,
                  "'stream':true,'stream_options':{'include_usage':true,'include_obfuscation':"
                  "false},'max_tokens':7,'max_completion_tokens':5,'n':8,'temperature':2,"
                  "'top_p':1.0,'top_k':-1,'min_p':1,'presence_penalty':-2,"
                  "'frequency_penalty':2,'repetition_penalty':10,'logit_bias':{'0':-100,'4095':"
                  "0.5},'seed':-9223372036854775808,'stop':['a','bc'],'logprobs':true,"
                  "'top_logprobs':20,'ignore_eos':true,'user':'u','metadata':{},'store':false,"
                  "'parallel_tool_calls':true,'service_tier':'auto','enable_thinking':false,"
                  "'response_format':{'type':'text'},'tool_choice':'auto'");
    assert_true(r->stream && r->include_usage && !r->opened_think && r->params.ignore_eos);
    assert_true(r->params.temperature == 2 && r->params.top_p == 1 && r->params.top_k == 0 &&
                r->params.min_p == 1 && r->params.presence_penalty == -2 &&
                r->params.frequency_penalty == 2 && r->params.repetition_penalty == 10);
    assert_int_equal(r->max_tokens, 5);
    assert_int_equal(r->n_choice, 8);
    assert_int_equal(r->n_bias, 2);
    assert_true(r->bias[0].id == 0 && r->bias[0].bias == -100 && r->bias[1].id == 4095 &&
                r->bias[1].bias == 0.5f);
    assert_true(r->params.has_seed && r->params.seed == 0x8000000000000000u);
    assert_int_equal(r->n_stop, 2);
    assert_string_equal(r->stop[0], "a");
    assert_string_equal(r->stop[1], "bc");
    assert_int_equal(r->params.n_top, 20);
    lg_request_close(&r);

    r = open_good(false, "'seed':9223372036854775807,'stop':'x','logprobs':3,'echo':false,"
                         "'best_of':1,'temperature':null,'max_tokens':null,'suffix':null");
    assert_true(!r->chat && !r->opened_think && r->params.temperature == 0.5f);
    assert_int_equal(r->max_tokens, 16);
    assert_int_equal(r->params.seed, 0x7fffffffffffffffu);
    assert_int_equal(r->params.n_top, 3);
    assert_string_equal(r->stop[0], "x");
    assert_int_equal(strncmp(r->id, "cmpl-", 5), 0);
    assert_int_equal(r->ids.n, 2);
    lg_request_close(&r);
}

static void test_priorities_and_tiers(void **state) {
    (void)state;
    static const struct {
        const char *fields;
        bool has;
        int32_t priority;
    } t[] = {{"'n':1", false, 0},
             {"'service_tier':'auto'", false, 0},
             {"'service_tier':'default'", false, 0},
             {"'service_tier':'flex'", true, LG_REQUEST_TIER_FLEX},
             {"'service_tier':'priority'", true, LG_REQUEST_TIER_PRIORITY},
             {"'priority':-2147483648", true, INT32_MIN},
             {"'priority':0", true, 0},
             {"'priority':7,'service_tier':'priority'", true, 7},
             {"'service_tier':'priority','priority':7", true, 7}};
    for (size_t i = 0; i < LG_COUNT(t); i++) {
        lg_request_parsed *r = open_good(i % 2, t[i].fields);
        assert_int_equal(r->has_priority, t[i].has);
        assert_int_equal(r->priority, t[i].priority);
        lg_request_close(&r);
    }
}

static void test_thinking_switches(void **state) {
    (void)state;
    static const struct {
        const char *extra;
        bool think;
    } c[] = {
        {"'enable_thinking':true", true},
        {"'enable_thinking':null", true},
        {"'chat_template_kwargs':{'enable_thinking':false}", false},
        {"'chat_template_kwargs':{'enable_thinking':true}", true},
        {"'chat_template_kwargs':{}", true},
        {"'enable_thinking':false,'chat_template_kwargs':{'enable_thinking':true}", false},
        {"'chat_template_kwargs':{'enable_thinking':true},'enable_thinking':false", false},
        {"'reasoning_effort':'none'", false},
        {"'reasoning_effort':'low'", true},
        {"'reasoning_effort':'none','enable_thinking':true", true},
    };
    for (size_t i = 0; i < LG_COUNT(c); i++) {
        lg_request_parsed *r = open_good(true, c[i].extra);
        assert_int_equal(r->opened_think, c[i].think);
        lg_request_close(&r);
    }
}

/* What the engine is told of the answer's form. */
static void test_forms_of_answers(void **state) {
    (void)state;
    static const struct {
        const char *more, *grammar;
    } c[] = {
        {"'response_format':{'type':'text'}", ""},
        {"'response_format':{'type':'json_object'}", "{'schema':{'type':'object'}}"},
        {"'response_format':{'type':'json_schema','json_schema':{'name':'n','strict':true,'"
         "schema':{"
         "'type':'integer'}}}",
         "{'schema':{'type':'integer'}}"},
        {TOOL ",'tool_choice':'none','response_format':{'type':'json_object'}",
         "{'schema':{'type':'object'}}"},
        {TOOL ",'tool_choice':'auto'", ""},
        {"'tools':[{'type':'function','function':{'name':'a'}},{'type':'function','function':{'"
         "name':"
         "'b'}}],'tool_choice':'required'",
         "{'tools':[{'type':'function','function':{'name':'a'}},{'type':'function','function':{"
         "'name':"
         "'b'}}],'many':true}"},
        {"'tools':[{'type':'function','function':{'name':'a'}},{'type':'function','function':{'"
         "name':"
         "'b'}}],'tool_choice':{'type':'function','function':{'name':'b'}}",
         "{'tools':[{'type':'function','function':{'name':'b'}}],'many':false}"},
        {"'tools':[{'type':'function','function':{'name':'a'}}],'tool_choice':'required',"
         "'parallel_tool_calls':false",
         "{'tools':[{'type':'function','function':{'name':'a'}}],'many':false}"},
    };
    for (size_t i = 0; i < LG_COUNT(c); i++) {
        lg_request_parsed *r = open_good(true, c[i].more);
        lg_buf want = {0};
        for (const char *p = c[i].grammar; *p; p++) lg_buf_putc(&want, *p == '\'' ? '"' : *p);
        assert_string_equal(lg_buf_str(&r->grammar), lg_buf_str(&want));
        lg_buf_fini(&want);
        lg_request_close(&r);
    }
}

static void test_tools_and_messages_of_clients(void **state) {
    (void)state;
    lg_request_parsed *with = open_good(true, TOOL),
                      *none = open_good(true, TOOL ",'tool_choice':'none'");
    lg_request_parsed *plain = open_good(true, "'tools':[]");
    assert_non_null(with->tools);
    assert_null(none->tools);
    assert_null(plain->tools);
    assert_int_equal(none->ids.n, plain->ids.n);
    assert_true(with->ids.n > plain->ids.n + 100);
    lg_request_close(&with);
    lg_request_close(&none);
    lg_request_close(&plain);
    /* what the official client sends back after a call; developer is system */
    static const char body[] =
        "{\"model\":\"tiny\",\"messages\":[{\"role\":\"%s\",\"content\":\"Be brief.\",\"name\":"
        "\"me\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"1+1?\"}]},{"
        "\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"annotations\":[],\"audio\":"
        "null,\"function_call\":null,\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\","
        "\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"a\\\": "
        "1}\"}}]},{\"role\":\"tool\","
        "\"tool_call_id\":\"call_1\",\"content\":\"2\"}]}";
    lg_ids ids[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        lg_buf b = {0};
        lg_request_parsed *r;
        lg_request_error e;
        lg_buf_printf(&b, body, i ? "developer" : "system");
        if (!lg_oai_open(&model, true, b.data, b.len_bytes, &r, &e)) fail_msg("%s", e.msg);
        ids[i] = r->ids;
        r->ids = (lg_ids){0};
        lg_request_close(&r);
        lg_buf_fini(&b);
    }
    assert_int_equal(ids[0].n, ids[1].n);
    assert_memory_equal(ids[0].id, ids[1].id, ids[0].n * sizeof(uint32_t));
    lg_ids_fini(&ids[0]);
    lg_ids_fini(&ids[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_values_are_refused_by_name),
        cmocka_unit_test(test_bad_bodies),
        cmocka_unit_test(test_length_error_has_the_numbers),
        cmocka_unit_test(test_good_values_arrive),
        cmocka_unit_test(test_priorities_and_tiers),
        cmocka_unit_test(test_thinking_switches),
        cmocka_unit_test(test_forms_of_answers),
        cmocka_unit_test(test_tools_and_messages_of_clients),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
