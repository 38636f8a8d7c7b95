/* openapi.c - the OpenAPI 3.1 document: see openapi.h.
 *
 * In:  routes and the tables of fields that read their bodies.   Out: JSON.
 * A field that is understood and not offered is named in "x-refused".
 * Thread: gateway.  Memory: none of its own.  Test: tests/e2e/test_protocols.py */
#include "gateway/wire/openapi.h"

#include "gateway/wire/anthropic.h"
#include "gateway/wire/openai.h"
#include "gateway/wire/responses.h"
#include "gateway/wire/tokenize.h"

#include <string.h>

static const lg_field *table_of(uint32_t at, size_t *n) {
    if (at & (LG_AT_CHAT | LG_AT_TEXT)) return lg_oai_fields(n);
    if (at & (LG_AT_MESSAGES | LG_AT_COUNT)) return lg_anthropic_fields(n);
    if (at & LG_AT_RESPONSES) return lg_responses_fields(n);
    return lg_tokenize_fields(n);
}

/* What is inside of fields: JSON with ' for ". */
#define OBJECT(props, more)                                                                    \
    "{'type':'object','properties':{" props "}," more "'additionalProperties':false}"
#define STRING            "{'type':'string'}"
#define MAYBE_STRING      "{'type':['string','null']}"
#define LIST(items, more) "{'type':'array'," more "'items':" items "}"
#define NAME              "{'type':'string','pattern':'^[A-Za-z0-9_-]{1,64}$'}"
#define SCHEMA            "{'type':'object','properties':{'type':{'const':'object'}}}"
#define TEXTS(type)                                                                            \
    "{'anyOf':[" STRING "," LIST(                                                              \
        OBJECT("'type':{'const':'" type "'},'text':" STRING, "'required':['type','text'],"),   \
        "") "]}"
#define FUNCTION                                                                               \
    OBJECT("'name':" NAME ",'description':" STRING ",'parameters':" SCHEMA,                    \
           "'required':['name'],")
#define CALL                                                                                   \
    OBJECT("'id':" STRING ",'type':{'const':'function'},'function':" OBJECT(                   \
               "'name':" NAME ",'arguments':{'enum':['{}','']}",                               \
               "'required':['name','arguments'],"),                                            \
           "'required':['function'],")
#define STOPS                                                                                  \
    LIST("{'type':'string','minLength':1,'pattern':'^[^\\u0000]*$'}", "'maxItems':16,")
#define EFFORT "{'enum':['none','minimal','low','medium','high','xhigh',null]}"

static const struct {
    const char *name;
    uint32_t at;
    const char *schema;
} inside[] = {
    {"messages", LG_AT_CHAT | LG_AT_TOKENIZE,
     LIST("{'oneOf':[" OBJECT(
              "'role':{'enum':['system','developer','user']},'content':" TEXTS("text"),
              "'required':['role','content'],") "," OBJECT("'role':{'const':'"
                                                           "assistant'},'"
                                                           "content'"
                                                           ":" MAYBE_STRING
                                                           ",'reasoning_content'"
                                                           ":" MAYBE_STRING
                                                           ",'tool_calls':" LIST(CALL, ""),
                                                           "'required':['role']"
                                                           ",") "," OBJECT("'rol"
                                                                           "e':{"
                                                                           "'con"
                                                                           "st':"
                                                                           "'too"
                                                                           "l'},"
                                                                           "'too"
                                                                           "l_"
                                                                           "call"
                                                                           "_id'"
                                                                           ":" STRING ",'"
                                                                           "cont"
                                                                           "ent'"
                                                                           ":" TEXTS("text"),
                                                                           "'req"
                                                                           "uire"
                                                                           "d':["
                                                                           "'rol"
                                                                           "e','"
                                                                           "cont"
                                                                           "ent'"
                                                                           "],") "]}",
          "'minItems':1,")},
    {"messages", LG_AT_MESSAGES | LG_AT_COUNT,
     LIST(
         "{'oneOf':[" OBJECT("'role':{'enum':['user','assistant']},'content':" TEXTS("text"), "'required':['role','content'],") "," OBJECT(
             "'role':{'const':'assistant'},'content':" LIST(
                 OBJECT("'type':{'const':'tool_use'},'id':" STRING ",'name':" NAME
                        ",'input':{'type':'object'}",
                        "'required':['type','id','name','input'],"),
                 ""),
             "'required':['role','content'],") "," OBJECT("'role':{'const':'user'},'content'"
                                                          ":" LIST(OBJECT("'type':{'const':'"
                                                                          "tool_result'},'tool_"
                                                                          "use_id':" STRING
                                                                          ",'content':" TEXTS(
                                                                              "text"),
                                                                          "'required':['type','"
                                                                          "tool_use_id'],"),
                                                                   ""),
                                                          "'required':['role','content'],") "]"
                                                                                            "}",
         "'minItems':1,")},
    {"input", LG_AT_RESPONSES,
     "{'anyOf':[" STRING "," LIST(
         "{'oneOf':[" OBJECT(
             "'type':{'const':'message'},'role':{'enum':['system','developer','user','"
             "assistant']},'content':" TEXTS("input_text"),
             "'required':['type','role','content'],") "," OBJECT("'type':{'const':'"
                                                                 "function_call'},'call_"
                                                                 "id':" STRING ",'name':" NAME
                                                                 ",'arguments':{'enum':['{"
                                                                 "}','']}",
                                                                 "'required':['type','"
                                                                 "call_id','name','"
                                                                 "arguments'],") "," OBJECT("'t"
                                                                                            "yp"
                                                                                            "e'"
                                                                                            ":{"
                                                                                            "'c"
                                                                                            "on"
                                                                                            "st"
                                                                                            "':"
                                                                                            "'f"
                                                                                            "un"
                                                                                            "ct"
                                                                                            "io"
                                                                                            "n_"
                                                                                            "ca"
                                                                                            "ll"
                                                                                            "_o"
                                                                                            "ut"
                                                                                            "pu"
                                                                                            "t'"
                                                                                            "},"
                                                                                            "'c"
                                                                                            "al"
                                                                                            "l_"
                                                                                            "id"
                                                                                            "'"
                                                                                            ":" STRING
                                                                                            ",'"
                                                                                            "ou"
                                                                                            "tp"
                                                                                            "ut"
                                                                                            "'"
                                                                                            ":" TEXTS(
                                                                                                "input_text"),
                                                                                            "'r"
                                                                                            "eq"
                                                                                            "ui"
                                                                                            "re"
                                                                                            "d'"
                                                                                            ":["
                                                                                            "'t"
                                                                                            "yp"
                                                                                            "e'"
                                                                                            ",'"
                                                                                            "ca"
                                                                                            "ll"
                                                                                            "_i"
                                                                                            "d'"
                                                                                            ",'"
                                                                                            "ou"
                                                                                            "tp"
                                                                                            "ut"
                                                                                            "']"
                                                                                            ",") "," OBJECT("'type':{'const':'reasoning'},'summary':" LIST(OBJECT("'type':{'const':'summary_text'},'text':" STRING,
                                                                                                                                                                  "'required':['type','text'],"),
                                                                                                                                                           ""),
                                                                                                            "'required':['type'],") "]}",
         "'minItems':1,") "]}"},
    {"prompt", LG_AT_TEXT,
     "{'anyOf':[{'type':'string','minLength':1}," LIST(
         "{'type':'integer','minimum':0,'maximum':255}", "'minItems':1,") "]}"},
    {"tokens", LG_AT_DETOKENIZE, LIST("{'type':'integer','minimum':0,'maximum':255}", "")},
    {"tools", LG_AT_CHAT | LG_AT_TOKENIZE,
     LIST(OBJECT("'type':{'const':'function'},'function':" FUNCTION,
                 "'required':['type','function'],"),
          "")},
    {"tools", LG_AT_MESSAGES | LG_AT_COUNT,
     LIST(OBJECT("'name':" NAME ",'description':" STRING ",'input_schema':" SCHEMA,
                 "'required':['name','input_schema'],"),
          "")},
    {"tools", LG_AT_RESPONSES,
     LIST(OBJECT("'type':{'const':'function'},'name':" NAME ",'description':" STRING
                 ",'parameters':" SCHEMA ",'strict':{'type':'boolean'}",
                 "'required':['type','name'],"),
          "")},
    {"tool_choice", LG_AT_CHAT | LG_AT_RESPONSES, "{'enum':['auto','none','required',null]}"},
    {"tool_choice", LG_AT_MESSAGES | LG_AT_COUNT,
     OBJECT("'type':{'enum':['auto','none']},'disable_parallel_tool_use':{'type':'boolean'}",
            "'required':['type'],")},
    {"system", LG_AT_MESSAGES | LG_AT_COUNT, TEXTS("text")},
    {"stop", LG_AT_CHAT | LG_AT_TEXT, STOPS},
    {"stop_sequences", LG_AT_MESSAGES, STOPS},
    {"thinking", LG_AT_MESSAGES | LG_AT_COUNT,
     OBJECT("'type':{'enum':['adaptive','disabled']},'display':{'enum':['summarized','omitted',"
            "null]}",
            "'required':['type'],")},
    {"output_config", LG_AT_MESSAGES | LG_AT_COUNT,
     OBJECT("'effort':{'enum':['low','medium','high','xhigh','max',null]}", "")},
    {"reasoning_effort", ~0u, EFFORT},
    {"reasoning", LG_AT_RESPONSES,
     OBJECT("'effort':" EFFORT ",'summary':{'enum':['auto','concise','detailed',null]}", "")},
    {"chat_template_kwargs", ~0u, OBJECT("'enable_thinking':{'type':['boolean','null']}", "")},
    {"logit_bias", ~0u,
     "{'type':'object','propertyNames':{'pattern':'^[0-9]{1,2}$'},"
     "'additionalProperties':{'type':'number','minimum':-100,'maximum':100}}"},
    {"response_format", ~0u,
     "{'oneOf':[" OBJECT(
         "'type':{'enum':['text','json_object']}",
         "'required':['type'],") "," OBJECT("'type':{'const':'json_schema'},'json_schema'"
                                            ":" OBJECT("'name':" STRING ",'schema':" SCHEMA,
                                                       "'required':['name','schema'],"),
                                            "'required':['type','json_schema'],") "]}"},
    {"modalities", ~0u, "{'enum':[['text'],null]}"},
    {"text", LG_AT_RESPONSES,
     OBJECT("'format':" OBJECT("'type':{'const':'text'}",
                               "'required':['type'],") ",'verbosity':{'enum':['medium',null]}",
            "")},
    {"include", LG_AT_RESPONSES, LIST("{'const':'reasoning.encrypted_content'}", "")},
    {"truncation", ~0u, "{'enum':['disabled',null]}"},
    {"previous_response_id", LG_AT_RESPONSES, MAYBE_STRING},
    {"service_tier", LG_AT_CHAT | LG_AT_RESPONSES, "{'enum':['auto','default',null]}"},
    {"service_tier", LG_AT_MESSAGES, "{'enum':['auto','standard_only',null]}"},
    {"context_management", ~0u,
     OBJECT("'edits':" LIST(OBJECT("'type':{'const':'clear_thinking_20251015'}", ""), ""), "")},
    {"store", LG_AT_CHAT, "{'enum':[false,null]}"},
    {"echo", ~0u, "{'enum':[false,null]}"},
    {"background", ~0u, "{'enum':[false,null]}"},
    {"best_of", ~0u, "{'enum':[1,null]}"},
    {"add_generation_prompt", ~0u, "{'enum':[true,null]}"},
};

/* What is inside of field f of the body `at`, if there is more to say than its type. */
static const char *find_inside(const lg_field *f, uint32_t at) {
    for (size_t i = 0; i < LG_COUNT(inside); i++)
        if ((inside[i].at & at) && strcmp(inside[i].name, f->name) == 0)
            return inside[i].schema;
    return NULL;
}

/* null means absent everywhere. */
static void put_schema(lg_buf *b, const lg_field *f, uint32_t at, const char *model) {
    const char *text = find_inside(f, at);
    bool needed = f->needed & at;
    if (strcmp(f->name, "model") == 0) {
        lg_buf_puts(b, "{\"const\":");
        lg_json_put_string(b, model, strlen(model));
        lg_buf_puts(b, "}");
        return;
    }
    for (const char *p = text; p && *p; p++) lg_buf_putc(b, *p == '\'' ? '"' : *p);
    if (text) return;
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

static void put_body(lg_buf *b, uint32_t at, const char *model) {
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
        put_schema(b, &table[i], at, model);
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

void lg_openapi_route(lg_buf *b, const char *model, const char *path, const char *method,
                      uint32_t at) {
    static const char *const also[] = {"400", "401", "404", "429", "500", "503"};
    bool first = b->len_bytes && b->data[b->len_bytes - 1] == '{';
    lg_buf_printf(b, "%s\"%s\":{\"%s\":{", first ? "" : ",", path,
                  strcmp(method, "GET") == 0 ? "get" : "post");
    if (at) put_body(b, at, model);
    lg_buf_puts(b, "\"responses\":{\"200\":{\"description\":\"The answer.\"}");
    for (size_t i = 0; i < LG_COUNT(also); i++)
        lg_buf_printf(b, ",\"%s\":{\"description\":\"An error object.\"}", also[i]);
    lg_buf_puts(b, "}}}");
}

void lg_openapi_end(lg_buf *b) {
    lg_buf_puts(b, "}}");
}
