/* test_openai.c - the OpenAI wire format: every field's bad values, answers against the shapes of OpenAI's API reference,
 * streams against the answers that are not streamed, and every allocation failing. */
#include "base/utf8.h"
#include "gateway/openai.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lg_oai_model model;

static int open_model(void **state) {
    (void)state;
    char path[512];
    lg_err err;
    const char *dir = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/tiny", dir ? dir : ".");
    model =
        (lg_oai_model){.name = "tiny", .n_ctx = 600, .n_vocab = 4096, .created = 1700000000};
    model.params = (lg_params){
        .temperature = 0.5f, .top_p = 0.9f, .top_k = 40, .repetition_penalty = 1, .n_top = -1};
    return lg_tokenizer_open(path, &model.tok, &err);
}

static int close_model(void **state) {
    (void)state;
    lg_tokenizer_close(&model.tok);
    return 0;
}

/* A body from a pattern: ' stands for ". */
static void body_of(lg_buf *b, bool chat, const char *extra) {
    lg_buf_clear(b);
    lg_buf_puts(b, chat ? "{'model':'tiny','messages':[{'role':'user','content':'hi'}]"
                        : "{'model':'tiny','prompt':'hi'");
    lg_buf_puts(b, extra[0] ? "," : "");
    lg_buf_puts(b, extra);
    lg_buf_puts(b, "}");
    for (size_t i = 0; i < b->len_bytes; i++)
        if (b->data[i] == '\'') b->data[i] = '"';
}

static lg_oai_req *open_good(bool chat, const char *extra) {
    lg_buf b = {0};
    lg_oai_req *req;
    lg_oai_error e;
    body_of(&b, chat, extra);
    if (!lg_oai_open(&model, chat, b.data, b.len_bytes, &req, &e))
        fail_msg("%s: %s", b.data, e.msg);
    lg_buf_fini(&b);
    return req;
}

/* ---- Requests ---- */

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
    {"'enable_thinking':'no'", "enable_thinking"},
    {"'chat_template_kwargs':5", "chat_template_kwargs"},
    {"'chat_template_kwargs':{'enable_thinking':0}", "chat_template_kwargs.enable_thinking"},
    {"'chat_template_kwargs':{'x':0}", "chat_template_kwargs.x"},
    {"'reasoning_effort':'much'", "reasoning_effort"},
    {"'reasoning_effort':5", "reasoning_effort"},
    {"'response_format':'text'", "response_format"},
    {"'response_format':{'type':'json_object'}", "response_format.type"},
    {"'response_format':{}", "response_format.type"},
    {"'response_format':{'type':'text','x':1}", "response_format.x"},
    {"'modalities':['audio']", "modalities"},
    {"'parallel_tool_calls':false", "parallel_tool_calls"},
    {"'store':true", "store"},
    {"'metadata':[]", "metadata"},
    {"'service_tier':'flex'", "service_tier"},
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
static void check_error_body(const lg_oai_error *e) {
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
    lg_oai_req *req;
    lg_oai_error e;
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
        lg_oai_req *req;
        lg_oai_error e;
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
    lg_oai_req *req;
    lg_oai_error e;
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
    lg_oai_close(&req);
    lg_buf_fini(&b);
}

static void test_good_values_arrive(void **state) {
    (void)state;
    lg_oai_req *r = open_good(true, "");
    assert_true(r->chat && !r->stream && !r->include_usage && r->opened_think);
    assert_true(r->params.temperature == 0.5f && r->params.top_p == 0.9f &&
                r->params.top_k == 40 && !r->params.has_seed && r->params.n_top == -1);
    assert_int_equal(r->max_tokens, 0);
    assert_int_equal(r->n_choice, 1);
    assert_null(r->tools);
    assert_int_equal(strncmp(r->id, "chatcmpl-", 9), 0);
    assert_int_equal(strlen(r->id), 41);
    assert_true(r->created > 1700000000);
    lg_oai_close(&r);
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
    lg_oai_close(&r);

    r = open_good(false, "'seed':9223372036854775807,'stop':'x','logprobs':3,'echo':false,"
                         "'best_of':1,'temperature':null,'max_tokens':null,'suffix':null");
    assert_true(!r->chat && !r->opened_think && r->params.temperature == 0.5f);
    assert_int_equal(r->max_tokens, 16);
    assert_int_equal(r->params.seed, 0x7fffffffffffffffu);
    assert_int_equal(r->params.n_top, 3);
    assert_string_equal(r->stop[0], "x");
    assert_int_equal(strncmp(r->id, "cmpl-", 5), 0);
    assert_int_equal(r->ids.n, 2);
    lg_oai_close(&r);
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
        lg_oai_req *r = open_good(true, c[i].extra);
        assert_int_equal(r->opened_think, c[i].think);
        lg_oai_close(&r);
    }
}

#define TOOL                                                                                   \
    "'tools':[{'type':'function','function':{'name':'add','parameters':{'type':'object',"      \
    "'properties':{'a':{'type':'integer'},'s':{'type':'string'}}}}}]"

static void test_tools_and_messages_of_clients(void **state) {
    (void)state;
    lg_oai_req *with = open_good(true, TOOL),
               *none = open_good(true, TOOL ",'tool_choice':'none'");
    lg_oai_req *plain = open_good(true, "'tools':[]");
    assert_non_null(with->tools);
    assert_null(none->tools);
    assert_null(plain->tools);
    assert_int_equal(none->ids.n, plain->ids.n);
    assert_true(with->ids.n > plain->ids.n + 100);
    lg_oai_close(&with);
    lg_oai_close(&none);
    lg_oai_close(&plain);
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
        lg_oai_req *r;
        lg_oai_error e;
        lg_buf_printf(&b, body, i ? "developer" : "system");
        if (!lg_oai_open(&model, true, b.data, b.len_bytes, &r, &e)) fail_msg("%s", e.msg);
        ids[i] = r->ids;
        r->ids = (lg_ids){0};
        lg_oai_close(&r);
        lg_buf_fini(&b);
    }
    assert_int_equal(ids[0].n, ids[1].n);
    assert_memory_equal(ids[0].id, ids[1].id, ids[0].n * sizeof(uint32_t));
    lg_ids_fini(&ids[0]);
    lg_ids_fini(&ids[1]);
}

/* ---- Answers ---- */

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

static void fix_name(lg_oai_req *r) {
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
    lg_oai_req *r = open_good(a->chat, a->extra);
    lg_oai_out *out;
    lg_buf body = {0};
    fix_name(r);
    assert_int_equal(lg_oai_out_open(r, 0, &out), LG_OK);
    assert_int_equal(play(out, a, step, NULL), LG_OK);
    lg_oai_response(r, &out, 1, &body);
    lg_json_doc *doc = parse_masked(body.data, body.len_bytes);
    lg_buf_fini(&body);
    lg_oai_out_close(&out);
    lg_oai_close(&r);
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
    lg_oai_req *r = open_good(a->chat, extra);
    lg_oai_out *out;
    fix_name(r);
    assert_int_equal(lg_oai_out_open(r, 0, &out), LG_OK);
    assert_int_equal(play(out, a, step, sse), LG_OK);
    lg_oai_stream_end(r, &out, 1, sse);
    lg_oai_out_close(&out);
    lg_oai_close(&r);
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
        lg_oai_req *r = open_good(chat, chat ? NO_THINK ",'logprobs':true,'top_logprobs':1"
                                             : "'logprobs':1");
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
        lg_oai_close(&r);
    }
}

static void test_several_choices_share_one_answer(void **state) {
    (void)state;
    lg_oai_req *r = open_good(true, TOOL "," NO_THINK ",'n':2");
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
    lg_oai_close(&r);
}

static void test_usage_only_when_asked_for(void **state) {
    (void)state;
    lg_oai_req *r = open_good(true, "'stream':true");
    lg_oai_out *out;
    lg_buf sse = {0};
    assert_int_equal(lg_oai_out_open(r, 0, &out), LG_OK);
    assert_int_equal(play(out, &answers[0], 1, &sse), LG_OK);
    lg_oai_stream_end(r, &out, 1, &sse);
    assert_null(strstr(sse.data, "usage"));
    assert_string_equal(sse.data + sse.len_bytes - 14, "data: [DONE]\n\n");
    lg_buf_fini(&sse);
    lg_oai_out_close(&out);
    lg_oai_close(&r);
}

static void test_an_error_ends_a_stream(void **state) {
    (void)state;
    lg_oai_req *r = open_good(true, "'stream':true");
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
    lg_oai_close(&r);
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
    lg_oai_req *r = NULL;
    lg_oai_out *out = NULL;
    lg_oai_error e;
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
    lg_oai_close(&r);
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
        cmocka_unit_test(test_bad_values_are_refused_by_name),
        cmocka_unit_test(test_bad_bodies),
        cmocka_unit_test(test_length_error_has_the_numbers),
        cmocka_unit_test(test_good_values_arrive),
        cmocka_unit_test(test_thinking_switches),
        cmocka_unit_test(test_tools_and_messages_of_clients),
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
