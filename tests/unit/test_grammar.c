/* test_grammar.c - texts that a grammar takes and refuses, schemas that it refuses, masks against one id at a time, and random
 * answers that are made of allowed ids alone. */
#include "model/grammar.h"
#include "base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* JSON with ' for ". */
static void quote(lg_buf *b, const char *s) {
    lg_buf_clear(b);
    for (; *s; s++) lg_buf_putc(b, *s == '\'' ? '"' : *s);
    lg_buf_str(b);
}

static lg_grammar *open_grammar(const char *source) {
    lg_buf b = {0};
    lg_grammar *g;
    lg_err err = {0};
    quote(&b, source);
    if (lg_grammar_open(b.data, b.len_bytes, &g, &err) != LG_OK)
        fail_msg("%s: %s", err.msg, b.data);
    lg_buf_fini(&b);
    return g;
}

/* 2: the text is whole; 1: it is a beginning; 0: it is refused. */
static int take(const lg_grammar *g, bool think, const char *text) {
    lg_grammar_state s;
    lg_grammar_begin(g, think, &s);
    for (; *text; text++)
        if (!lg_grammar_step(g, &s, (uint8_t)*text)) return 0;
    return 1 + lg_grammar_may_end(g, &s);
}

static const struct {
    const char *schema;
    const char *whole[7], *part[5], *never[8]; /* with ' for " */
} rows[] = {
    {"{'type':'string'}",
     {"''", "'a\\n\\u00e9\\\\ \xc3\xa9 \xf0\x9f\x98\x80'", "'\\ud7ff'"},
     {"'", "'a", "'\xf0\x9f", "'\\u12"},
     {"a", "'\n", "'\\x", "'\xc3'", "'\xed\xa0", "'\\ud8", "''x", "1"}},
    {"{'type':'string','minLength':2,'maxLength':3}",
     {"'ab'", "'\xc3\xa9\xc3\xa9\xc3\xa9'", "'\\n\\u0041'"},
     {"'a"},
     {"'a'", "'abcd", "''"}},
    {"{'type':'integer'}",
     {"0", "-5", "12345678901234567890"},
     {"-"},
     {"01", "1.", "1e", "--", "+", "123456789012345678901", "a"}},
    {"{'type':'number'}",
     {"0", "-0.5", "1e9", "1.25E-07", "10"},
     {"1.", "1e+", "0."},
     {"1.e", "1e123", "00", ".5", "1..", "NaN"}},
    {"{'type':'boolean'}", {"true", "false"}, {"t", "fals"}, {"True", "tru ", "truex"}},
    {"{'type':'null'}", {"null"}, {"n"}, {"None"}},
    {"{'enum':['red','green',1,12,null,{'a':[1]}]}",
     {"'red'", "'green'", "1", "12", "null", "{'a':[1]}"},
     {"'", "{'a'"},
     {"'r'", "2", "13", "{'a':[2", "'reds"}},
    {"{'const':'x'}", {"'x'"}, {"'"}, {"'y", "x"}},
    {"{'type':'array','items':{'type':'integer'},'minItems':1,'maxItems':3}",
     {"[1]", "[1,2,3]", "[ 1 ,\n 2 ]", "[-1,0]"},
     {"[", "[1,", "[1 "},
     {"[]", "[1,2,3,", "[1,]", "[a", "[1 2"}},
    {"{'type':'array'}", {"[]", "[1,'a',[],{'k':null}]"}, {"[[["}, {"[,", "[}"}},
    {"{'type':'object','properties':{'a':{'type':'integer'},'ab':{'type':'string'},'c':{'type':"
     "'boolean'}},'required':['ab'],'additionalProperties':false}",
     {"{'ab':''}", "{'a':1,'ab':'x','c':true}", "{'a':1,'ab':'x'}", "{ 'ab':'x' }",
      "{\n  'ab': 'x',\n  'c': false\n}"},
     {"{", "{'a", "{'a':1,", "{'ab':'x',"},
     {"{}", "{'a':1}", "{'c'", "{'ab':'x','a'", "{'b", "{'ab':1", "{'ab':'x',}", "{'a':1,'c"}},
    {"{'type':'object'}", {"{}", "{'x':1,'y':{'z':[]}}"}, {"{'"}, {"{x", "{'x',", "[]"}},
    {"{'type':'object','additionalProperties':{'type':'integer'}}",
     {"{}", "{'x':1}"},
     {"{'x':"},
     {"{'x':'"}},
    {"{'type':'object','properties':{},'additionalProperties':false}", {"{}"}, {"{ "}, {"{'"}},
    {"{'anyOf':[{'type':'string'},{'type':'null'},{'type':'array','items':{'type':'string'}}]}",
     {"'x'", "null", "['a']"},
     {"n"},
     {"1", "[1", "{"}},
    {"{'type':['integer','null']}", {"5", "null"}, {"-"}, {"'"}},
    {"{'oneOf':[{'const':'on'},{'const':'off'}]}", {"'on'", "'off'"}, {"'o"}, {"'x", "'of'"}},
    {"{'$ref':'#/$defs/tree','$defs':{'tree':{'type':'object','properties':{'v':{'type':"
     "'integer'},'kids':{'type':'array','items':{'$ref':'#/$defs/tree'}}},'required':['v']}}}",
     {"{'v':1}", "{'v':1,'kids':[{'v':2},{'v':3,'kids':[]}]}"},
     {"{'v':1,'kids':[{"},
     {"{'kids'", "{'v':1,'kids':[1"}},
    {"{'allOf':[{'type':'boolean'}],'description':'x'}", {"true"}, {"t"}, {"1"}},
    {"{}", {"1", "'a'", "null", "[true,{}]", "{'a':-1.5}"}, {"["}, {"x", "]"}},
    {"{'properties':{'k\\n\xc3\xa9':true}}", {"{}", "{'k\\n\xc3\xa9':[1]}"}, {"{'k"}, {"{'x"}},
};

static void test_texts(void **state) {
    (void)state;
    lg_buf b = {0}, t = {0};
    for (size_t i = 0; i < LG_COUNT(rows); i++) {
        lg_buf_clear(&b);
        lg_buf_printf(&b, "{'schema':%s}", rows[i].schema);
        lg_grammar *g = open_grammar(b.data);
        for (int k = 0; k < 3; k++) {
            size_t n = k == 0 ? 7 : k == 1 ? 5 : 8;
            const char *const *list = k == 0   ? rows[i].whole
                                      : k == 1 ? rows[i].part
                                               : rows[i].never;
            for (size_t j = 0; j < n && list[j]; j++) {
                quote(&t, list[j]);
                int got = take(g, false, t.data);
                if (got != 2 - k)
                    fail_msg("%s: %s: %d, expected %d", b.data, t.data, got, 2 - k);
                lg_buf_clear(&t);
            }
        }
        lg_grammar_close(&g);
    }
    lg_buf_fini(&b);
    lg_buf_fini(&t);
}

static void test_thinking_and_space(void **state) {
    (void)state;
    lg_grammar *g = open_grammar("{'schema':{'type':'integer'}}");
    assert_int_equal(take(g, true, "Hm {}.\n</think>\n\n5"), 2);
    assert_int_equal(take(g, true, "</thin</think>5"), 2);
    assert_int_equal(take(g, true, "Hm 5"), 1);
    assert_int_equal(take(g, true, "</think>\n\n\n"), 0);
    assert_int_equal(take(g, true, "x<tool_call>"), 0);
    assert_int_equal(take(g, false, "</think>"), 0);
    lg_grammar_close(&g);
    g = open_grammar("{'schema':{'type':'array'}}");
    assert_int_equal(take(g, false, "[ ]"), 2);
    assert_int_equal(take(g, false, "[  "), 0); /* white space ends */
    assert_int_equal(take(g, false, "[ \n"), 0);
    char text[80] = "[\n";
    memset(text + 2, ' ', 33);
    assert_int_equal(take(g, false, text), 0);
    text[34] = 0;
    assert_int_equal(take(g, false, text), 1);
    assert_int_equal(take(g, false, "[\n\t\ttrue,\n\tnull\n]"), 2);
    lg_grammar_close(&g);
    /* nesting ends, and what is open can be closed */
    lg_buf deep = {0};
    g = open_grammar("{'schema':{'type':'array'}}");
    while (deep.len_bytes < 500 && take(g, false, lg_buf_str(&deep)) != 0)
        lg_buf_putc(&deep, '[');
    size_t n = deep.len_bytes - 1;
    assert_in_range(n, 30, LG_GRAMMAR_DEPTH);
    deep.len_bytes = n;
    for (size_t i = 0; i < n; i++) lg_buf_putc(&deep, ']');
    assert_int_equal(take(g, false, lg_buf_str(&deep)), 2);
    lg_buf_fini(&deep);
    lg_grammar_close(&g);
}

#define TOOLS                                                                                  \
    "{'tools':[{'type':'function','function':{'name':'add','parameters':{'type':'object',"     \
    "'properties':{'a':{'type':'integer'},'s':{'type':'string'},'e':{'enum':['x','y']},'o':{"  \
    "'anyOf':[{'type':'object','properties':{'k':{'type':'integer','minimum':1}}},{'type':"    \
    "'object'}]},'m':{'anyOf':[{'const':'red'},{'type':'null'},{'enum':[7]}]}},'required':['"  \
    "a']}}},"                                                                                  \
    "{'name':'ping'}],'many':"

#define CALL(name, args) "<tool_call>\n<function=" name ">\n" args "</function>\n</tool_call>"
#define ARG(key, value)  "<parameter=" key ">\n" value "\n</parameter>\n"

static void test_calls(void **state) {
    (void)state;
    lg_grammar *one = open_grammar(TOOLS "false}"), *many = open_grammar(TOOLS "true}");
    static const char *const whole[] = {
        CALL("ping", ""),
        CALL("add", ARG("a", "5")),
        CALL("add", ARG("a", "-5") ARG("s", "any <b>\n\n</param> text\n") ARG("e", "y")),
        CALL("add", ARG("a", "1") ARG("s", "") ARG("o", "{\"x\": [1,\n 2]}")),
        CALL("add", ARG("a", "1") ARG("s", "\n</parameter\n>") ARG("e", "x")),
        CALL("add", ARG("a", "1") ARG("m", "red")),
        CALL("add", ARG("a", "1") ARG("m", "null")),
        CALL("add", ARG("a", "1") ARG("m", "7"))};
    static const char *const never[] = {
        "x",
        "\n",
        CALL("add", ""),
        "<tool_call>\n<function=sub>",
        "<tool_call>\n{",
        "<tool_call>\n<function=add>\n<parameter=s>",
        "<tool_call>\n<function=add>\n<parameter=a>\nx",
        "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n<parameter=a>",
        ("<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n<parameter=s>\nx</"
         "parameter>"),
        "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n<parameter=e>\nz",
        "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n<parameter=m>\n\"red",
        "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n<parameter=m>\nblue"};
    for (size_t i = 0; i < LG_COUNT(whole); i++) {
        lg_buf two = {0};
        assert_int_equal(take(one, false, whole[i]), 2);
        lg_buf_printf(&two, "%s\n%s", whole[i], whole[0]);
        assert_int_equal(take(many, false, two.data), 2);
        assert_int_equal(take(one, false, two.data), 0);
        lg_buf_fini(&two);
    }
    for (size_t i = 0; i < LG_COUNT(never); i++)
        assert_int_equal(take(many, false, never[i]), 0);
    assert_int_equal(take(one, true, "I call.\n</think>\n\n" CALL("ping", "")), 2);
    lg_grammar_close(&one);
    lg_grammar_close(&many);
}

static const struct {
    const char *schema, *path;
} refused[] = {
    {"5", "schema"},
    {"{'type':'date'}", "schema"},
    {"{'type':'string','pattern':'a+'}", "'pattern'"},
    {"{'properties':{'a':{'type':'integer','minimum':1}}}", "properties.a"},
    {"{'properties':{'a':{'items':{'not':{}}}}}", "properties.a.items"},
    {"{'anyOf':[{'type':'object','properties':{'a':true}},{'type':'object'}]}", "anyOf: two"},
    {"{'anyOf':[{'type':'string'},{'const':'x'}]}", "anyOf: two"},
    {"{'anyOf':[]}", "anyOf"},
    {"{'allOf':[{},{}]}", "allOf"},
    {"{'$ref':'#'}", "nothing but itself"},
    {"{'anyOf':[{'$ref':'#'},{'type':'null'}]}", "anyOf: two"},
    {"{'$ref':'#/$defs/x'}", "leads nowhere"},
    {"{'$ref':'http://x'}", "$ref"},
    {"{'$ref':'#/$defs/a','type':'object','properties':{},'$defs':{'a':{}}}", "exclude"},
    {"{'type':'object','properties':{'a':{}},'required':['b']}", "required: b"},
    {"{'type':'array','prefixItems':[]}", "'prefixItems'"},
    {"{'type':'string','minLength':5,'maxLength':2}", "minLength"},
    {"{'type':'string','minLength':-1}", "minLength"},
    {"{'enum':[]}", "enum"},
    {"{'properties':{'a':1}}", "properties.a"},
    {"{'properties':{'a':{},'a':{}}}", "twice"},
};

static void test_refused_by_path(void **state) {
    (void)state;
    lg_buf b = {0}, q = {0};
    for (size_t i = 0; i < LG_COUNT(refused); i++) {
        lg_grammar *g;
        lg_err err = {0};
        lg_buf_clear(&b);
        lg_buf_printf(&b, "{'schema':%s}", refused[i].schema);
        quote(&q, b.data);
        assert_int_equal(lg_grammar_open(q.data, q.len_bytes, &g, &err), LG_E_ARG);
        assert_null(g);
        if (!strstr(err.msg, refused[i].path)) fail_msg("%s: %s", b.data, err.msg);
        lg_buf_clear(&q);
    }
    assert_int_equal(lg_grammar_open("{", 1, &(lg_grammar *){NULL}, NULL), LG_E_ARG);
    assert_int_equal(lg_grammar_open("{}", 2, &(lg_grammar *){NULL}, NULL), LG_E_ARG);
    lg_buf_fini(&b);
    lg_buf_fini(&q);
}

/* ---- Masks ---- */

static lg_tokenizer *tok;
static lg_grammar_vocab *vocab;

static int setup(void **state) {
    (void)state;
    char path[512];
    const char *dir = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/tiny", dir ? dir : ".");
    if (lg_tokenizer_open(path, &tok, NULL) != LG_OK) return 1;
    return lg_grammar_vocab_open(tok, lg_tokenizer_n_id(tok), &vocab) != LG_OK;
}

static int teardown(void **state) {
    (void)state;
    lg_grammar_vocab_close(&vocab);
    lg_tokenizer_close(&tok);
    return 0;
}

/* Whether an id may come next, the plain way. */
static bool allowed(const lg_grammar *g, const lg_grammar_state *s, uint32_t id) {
    const char *p;
    size_t len;
    bool added, special;
    lg_grammar_state t = *s;
    if (!lg_tokenizer_piece(tok, id, &p, &len, &added, &special) || special || !len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (!lg_grammar_step(g, &t, (uint8_t)p[i])) return false;
    return true;
}

static const char random_source[] =
    "{'schema':{'type':'object','properties':{'name':{'type':'string','maxLength':12},'tags':{'"
    "type':"
    "'array','items':{'enum':['a','bc','d\\n']},'maxItems':4},'size':{'anyOf':[{'type':'number'"
    "},{"
    "'type':'null'}]},'sub':{'$ref':'#/$defs/"
    "s'}},'required':['name','sub'],'additionalProperties':"
    "false,'$defs':{'s':{'type':'object','properties':{'ok':{'type':'boolean'},'n':{'type':"
    "'integer'}},'required':['ok']}}}}";

/* Random answers: any allowed id, until the text may end.  Returns the text. */
static void play(const lg_grammar *g, bool think, uint64_t key, bool check, lg_buf *text) {
    uint32_t n_id = lg_tokenizer_n_id(tok), n;
    uint32_t *mask = lg_mem_calloc((n_id + 31) / 32, sizeof *mask);
    lg_grammar_state s;
    lg_grammar_begin(g, think, &s);
    lg_buf_clear(text);
    for (uint32_t step = 0; step < 3000; step++) {
        if (lg_grammar_may_end(g, &s) && lg_num_rng(key, 0, step, 0) % 4 == 0) break;
        n = lg_grammar_mask(vocab, g, &s, mask);
        if (n == 0) {
            assert_true(lg_grammar_may_end(g, &s));
            break;
        }
        uint64_t pick = lg_num_rng(key, 0, step, 1) % n;
        uint32_t count = 0, id = 0;
        for (uint32_t i = 0; i < n_id; i++) {
            bool bit = mask[i / 32] >> i % 32 & 1;
            if (check) assert_int_equal(bit, allowed(g, &s, i));
            if (bit && count++ == pick) id = i;
        }
        assert_int_equal(count, n);
        const char *p;
        size_t len;
        bool added, special;
        assert_true(lg_tokenizer_piece(tok, id, &p, &len, &added, &special));
        lg_buf_put(text, p, len);
        for (size_t i = 0; i < len; i++) assert_true(lg_grammar_step(g, &s, (uint8_t)p[i]));
    }
    assert_true(lg_grammar_may_end(g, &s));
    lg_mem_free(mask);
}

static void test_masks_are_what_steps_say(void **state) {
    (void)state;
    lg_grammar *g = open_grammar(random_source), *calls = open_grammar(TOOLS "false}");
    lg_buf text = {0};
    for (uint64_t key = 0; key < 6; key++) play(g, false, key, true, &text);
    for (uint64_t key = 0; key < 2; key++) play(calls, false, key, true, &text);
    lg_grammar_state s;
    uint32_t n_id = lg_tokenizer_n_id(tok);
    uint32_t *mask = lg_mem_calloc((n_id + 31) / 32, sizeof *mask);
    lg_grammar_begin(g, true, &s);
    for (const char *p = "So <tool_cal"; *p; p++) {
        lg_grammar_mask(vocab, g, &s, mask);
        for (uint32_t id = 0; id < n_id; id++)
            assert_int_equal(mask[id / 32] >> id % 32 & 1, allowed(g, &s, id));
        assert_true(lg_grammar_step(g, &s, (uint8_t)*p));
    }
    lg_mem_free(mask);
    lg_grammar_close(&g);
    lg_grammar_close(&calls);
    lg_buf_fini(&text);
}

/* The same schema checked by hand. */
static void check_object(const lg_json *v) {
    const lg_json *name = lg_json_get(v, "name"), *tags = lg_json_get(v, "tags");
    const lg_json *size = lg_json_get(v, "size"), *sub = lg_json_get(v, "sub");
    bool ok;
    int64_t n;
    uint32_t chars = 0;
    assert_true(v->kind == LG_JSON_OBJECT && name && name->kind == LG_JSON_STRING && sub);
    assert_int_equal(v->n_child, 2 + (tags != NULL) + (size != NULL));
    for (size_t i = 0; i < name->text_len; i++) chars += (name->text[i] & 0xc0) != 0x80;
    assert_true(chars <= 12);
    for (const lg_json *t = tags ? tags->child : NULL; t; t = t->next)
        assert_true(lg_json_is(t, "a") || lg_json_is(t, "bc") || lg_json_is(t, "d\n"));
    assert_true(!tags || (tags->kind == LG_JSON_ARRAY && tags->n_child <= 4));
    assert_true(!size || size->kind == LG_JSON_NUMBER || size->kind == LG_JSON_NULL);
    assert_true(lg_json_bool(lg_json_get(sub, "ok"), &ok));
    const lg_json *count = lg_json_get(sub, "n");
    assert_true(!count || (count->kind == LG_JSON_NUMBER &&
                           (lg_json_i64(count, &n) || strlen(count->text) > 18)));
    assert_int_equal(sub->n_child, 1 + (count != NULL));
}

static void test_random_answers_are_valid(void **state) {
    (void)state;
    lg_grammar *g = open_grammar(random_source);
    lg_buf text = {0};
    for (uint64_t key = 100; key < 300; key++) {
        lg_json_doc *doc;
        lg_err err = {0};
        play(g, false, key, false, &text);
        if (lg_json_parse(text.data, text.len_bytes, 64, "answer", &doc, &err) != LG_OK)
            fail_msg("%s: %s", err.msg, text.data);
        check_object(lg_json_root(doc));
        lg_json_close(&doc);
    }
    lg_buf_fini(&text);
    lg_grammar_close(&g);
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    static const char *const source[] = {random_source, TOOLS "true}"};
    lg_buf b = {0};
    for (size_t i = 0; i < LG_COUNT(source); i++) {
        quote(&b, source[i]);
        uint64_t n = 1;
        for (lg_status st = LG_E_NOMEM; st != LG_OK; n++) {
            lg_grammar *g;
            int64_t alive = lg_mem_alive();
            lg_mem_fail_at(n);
            st = lg_grammar_open(b.data, b.len_bytes, &g, NULL);
            lg_mem_fail_at(0);
            assert_true(st == LG_OK || st == LG_E_NOMEM);
            lg_grammar_close(&g);
            assert_int_equal(lg_mem_alive(), alive);
        }
        assert_true(n > 10);
    }
    lg_buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_thinking_and_space),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_refused_by_path),
        cmocka_unit_test(test_masks_are_what_steps_say),
        cmocka_unit_test(test_random_answers_are_valid),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
