/* test_grammar.c - texts that a grammar takes and refuses, schemas that it refuses, masks against one id at a time, and random
 * answers that are made of allowed ids alone. */
#include "base/num.h"
#include "grammar_rig.h"

#include <math.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

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
    {"{'type':['string','integer'],'enum':['a',1,1.5,null]}", {"'a'", "1"}, {"'"}, {"1.", "n"}},
    {"{'minLength':2}", {"'ab'"}, {"'a"}, {"'a'", "1"}},
    {"{'minItems':1}", {"[0]"}, {"["}, {"[]", "1"}},
    {"{'maximum':3}", {"3", "-2.5"}, {"-"}, {"4", "'"}},
    {"{'type':['object','null'],'$ref':'#/$defs/a','$defs':{'a':{'anyOf':[{'type':'object'},{"
     "'const':null}]}}}",
     {"{}", "null"},
     {"n"},
     {"1", "["}},
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
    {"{'type':'integer','minimum':-12,'maximum':305}",
     {"0", "-12", "305", "300", "99", "-9"},
     {"-"},
     {"306", "-13", "-0", "00", "1.", "1e", "31.", "1000"}},
    {"{'type':'integer','minimum':95,'maximum':1003,'multipleOf':10}",
     {"100", "990", "1000"},
     {"9", "10", "1"},
     {"1003", "0", "-", "1001", "99.", "1e"}},
    {"{'type':'integer','exclusiveMinimum':3}",
     {"4", "10", "999999999999999999"},
     {"1", "3"},
     {"0", "-", "3]", "1000000000000000000"}},
    {"{'type':'integer','maximum':-7e0}",
     {"-7", "-10", "-999"},
     {"-", "-6"},
     {"7", "-0", "-6]"}},
    {"{'type':'number','minimum':0,'maximum':1}",
     {"0", "1", "0.5", "0.000000001", "1.0", "1.000000000"},
     {"0.", "1."},
     {"-", "1.1", "1.01", "2", "1e", "0.0000000001", "00"}},
    {"{'type':'number','exclusiveMinimum':-0.5,'exclusiveMaximum':1e1}",
     {"9.999999999", "0", "-0.499999999", "-0.3"},
     {"-0.", "-", "-0"},
     {"10", "-0.5]", "-1", "-0.50", "-0.6"}},
    {"{'type':'number','multipleOf':0.25,'minimum':1e-3}",
     {"0.25", "1", "7.75", "123456789.5"},
     {"0.7", "0.", "0"},
     {"0.0", "0.1", "0.26", "0.251", "1234567890"}},
    {"{'type':'number','minimum':123456789012}",
     {"123456789012", "123456789012.5"},
     {"1"},
     {"-"}},
    {"{'type':'string','pattern':'^[a-c]+-\\\\d{2,3}$'}",
     {"'a-12'", "'abcabc-000'"},
     {"'a-1", "'c", "'"},
     {"'-", "'d", "'a-1'", "'a-1234", "'a1", "''", "'a\\"}},
    {"{'type':'string','pattern':'b'}",
     {"'b'", "'aab\\n\xc3\xa9'", "'\xf0\x9f\x98\x80 b\\\\'"},
     {"'a", "'\xc3", "'b"},
     {"'a'", "''", "'\n", "'\\u", "'\xc0", "'\xed\xa0", "'\xe0\x80", "'\xf4\x90"}},
    {"{'type':'string','pattern':'^(foo|ba[rz])?$|^x*$'}",
     {"''", "'foo'", "'bar'", "'xxxx'"},
     {"'b", "'fo", "'x"},
     {"'fo'", "'bax", "'xf", "'fooo", "'a"}},
    {"{'type':'string','pattern':'^.*$','minLength':2,'maxLength':4}",
     {"'ab'", "'a\\\"cd'", "'\xe2\x82\xac\xe2\x82\xac'"},
     {"'abcd", "'a"},
     {"'a'", "'abcde", "'\xe2\x82\xac'", "''", "'\\n"}},
    {"{'type':'string','pattern':'^(ab)*$','minLength':3,'maxLength':5}",
     {"'abab'"},
     {"'ab", "'aba"},
     {"'ab'", "'ababa", "'aa"}},
    {"{'type':'string','pattern':'[^\\\\x00-\\\\x7f]\\u00e9$'}",
     {"'\xe2\x82\xac\xc3\xa9'", "'a\xc3\xa9\xc3\xa9'"},
     {"'\xe2\x82\xac"},
     {"'\xc3\xa9'", "'ab'"}},
    {"{'type':'string','pattern':'^[\\u20ac\\ud83d\\ude00\\u0041]$'}",
     {"'\xe2\x82\xac'", "'\xf0\x9f\x98\x80'", "'A'"},
     {"'\xe2", "'\xe2\x82", "'\xf0\x9f"},
     {"'B", "'\xe2\x81", "'\xe2\x82\xad", "'\xf1", "'\xc3", "'AA"}},
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

static const struct {
    const char *schema, *path;
} refused[] = {
    {"5", "schema"},
    {"{'type':'date'}", "schema"},
    {"{'properties':{'a':{'type':'string','pattern':'a(?=b)'}}}", "properties.a: pattern"},
    {"{'type':'string','pattern':'(a'}", "not closed"},
    {"{'type':'string','pattern':'a)'}", "closes nothing"},
    {"{'type':'string','pattern':'*a'}", "nothing stands before"},
    {"{'type':'string','pattern':'a**'}", "repeated"},
    {"{'type':'string','pattern':'^+a'}", "cannot be repeated"},
    {"{'type':'string','pattern':'{2}x'}", "nothing stands before"},
    {"{'type':'string','pattern':'a{2}{3}'}", "repeated"},
    {"{'type':'string','pattern':'(?<=a)b'}", "looking"},
    {"{'type':'string','pattern':'[b-a]'}", "goes down"},
    {"{'type':'string','pattern':'[a'}", "not closed"},
    {"{'type':'string','pattern':'(a)\\\\1'}", "references"},
    {"{'type':'string','pattern':'\\\\p{L}'}", "\\p"},
    {"{'type':'string','pattern':'a{3,2}'}", "wrong way round"},
    {"{'type':'string','pattern':'a{1001}'}", "more than 1000"},
    {"{'type':'string','pattern':'^((a{99}){99}){99}$'}", "too long"},
    {"{'type':'string','pattern':'^(((((){999}){999}){999}){999}){999}$'}", "too long"},
    {"{'type':'string','pattern':'(a|b)*a(a|b){40}$'}", "pattern"},
    {"{'type':'string','pattern':'a^'}", "nothing fits"},
    {"{'type':'string','pattern':'^a{5}$','maxLength':4}", "nothing fits"},
    {"{'type':'string','pattern':5}", "expected a string"},
    {"{'properties':{'a':{'type':'integer','minimum':'1'}}}", "properties.a: minimum"},
    {"{'type':'integer','minimum':1.2,'maximum':1.9}", "no number"},
    {"{'type':'integer','minimum':1e30}", "no number"},
    {"{'type':'integer','minimum':11,'maximum':19,'multipleOf':10}", "no number"},
    {"{'type':'integer','multipleOf':0}", "multipleOf"},
    {"{'type':'integer','multipleOf':0.5}", "multipleOf"},
    {"{'type':'number','multipleOf':1e-10}", "multipleOf"},
    {"{'type':'integer','exclusiveMinimum':true}", "exclusiveMinimum"},
    {"{'properties':{'a':{'items':{'not':{}}}}}", "properties.a.items"},
    {"{'anyOf':[{'type':'object','properties':{'a':true}},{'type':'object'}]}", "anyOf: two"},
    {"{'anyOf':[{'type':'string'},{'const':'x'}]}", "anyOf: two"},
    {"{'anyOf':[]}", "anyOf"},
    {"{'allOf':[{},{}]}", "allOf"},
    {"{'$ref':'#'}", "nothing but itself"},
    {"{'anyOf':[{'$ref':'#'},{'type':'null'}]}", "anyOf: two"},
    {"{'$ref':'#/$defs/x'}", "leads nowhere"},
    {"{'$ref':'http://x'}", "$ref"},
    {"{'$ref':'#/$defs/a','properties':{},'$defs':{'a':{}}}", "'properties' beside"},
    {"{'$ref':'#/$defs/a','anyOf':[{}],'$defs':{'a':{}}}", "exclude"},
    {"{'const':'x','minLength':2}", "'minLength' beside"},
    {"{'properties':{'a':{'type':'string','const':5}}}", "properties.a: no value"},
    {"{'type':'string','anyOf':[{'type':'integer'},{'type':'null'}]}", "type: it excludes"},
    {"{'type':'integer','$ref':'#/$defs/a','$defs':{'a':{'type':'number'}}}",
     "type: it excludes"},
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

/* ---- Bounds and patterns against others ---- */

/* Every text of an alphabet up to some length: what `keep` says of it must be what the grammar says, and what the grammar takes as a
 * beginning must have a way on among them. */
static bool every(const lg_grammar *g, const char *letters, size_t longest, char *text,
                  size_t n, const char *quote, bool (*keep)(const void *ctx, const char *text),
                  const void *ctx) {
    char whole[40];
    snprintf(whole, sizeof whole, "%s%s%s", quote, text, quote);
    bool fits = keep(ctx, text), any = fits;
    if ((take(g, false, whole) == 2) != fits)
        fail_msg("%s: %s", whole, fits ? "refused" : "taken");
    for (const char *c = letters; *c && n < longest; c++) {
        text[n] = *c;
        text[n + 1] = 0;
        bool on = every(g, letters, longest, text, n + 1, quote, keep, ctx);
        snprintf(whole, sizeof whole, "%s%s", quote, text);
        if (on && take(g, false, whole) == 0) fail_msg("%s is refused too early", whole);
        any |= on;
    }
    text[n] = 0;
    return any;
}

static bool matches(const void *ctx, const char *text) {
    return regexec(ctx, text, 0, NULL, 0) == 0;
}

/* Append a random expression that POSIX and ECMA read alike. */
static void put_regex(lg_buf *b, uint64_t key, uint64_t *n, int depth) {
    static const char *const atom[] = {"a", "b", "c", "[ab]", "[^a]", ".", "a", "[a-b]"};
    static const char *const times[] = {"", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,1}"};
    uint64_t parts = 1 + lg_num_rng(key, 1, (*n)++, 0) % 3;
    for (uint64_t i = 0; i < parts; i++) {
        uint64_t r = lg_num_rng(key, 1, (*n)++, 0);
        if (i > 0 && r % 4 == 0) lg_buf_putc(b, '|');
        if (depth > 0 && r / 8 % 3 == 0) {
            lg_buf_putc(b, '(');
            put_regex(b, key, n, depth - 1);
            lg_buf_putc(b, ')');
        } else {
            lg_buf_puts(b, atom[r / 32 % LG_COUNT(atom)]);
        }
        lg_buf_puts(b, times[r / 512 % LG_COUNT(times)]);
    }
}

static void test_patterns_against_posix(void **state) {
    (void)state;
    lg_buf b = {0}, s = {0};
    for (uint64_t key = 0; key < 400; key++) {
        uint64_t n = 0;
        regex_t re;
        char text[8] = "";
        lg_buf_clear(&b);
        lg_buf_clear(&s);
        if (key % 3) lg_buf_puts(&b, "^(");
        put_regex(&b, key, &n, 2);
        if (key % 3) lg_buf_puts(&b, ")$");
        assert_int_equal(regcomp(&re, b.data, REG_EXTENDED | REG_NOSUB), 0);
        lg_buf_printf(&s, "{'schema':{'type':'string','pattern':'%s'}}", b.data);
        lg_grammar *g = open_grammar(s.data);
        every(g, "abcd", 5, text, 0, "\"", matches, &re);
        lg_grammar_close(&g);
        regfree(&re);
    }
    lg_buf_fini(&b);
    lg_buf_fini(&s);
}

typedef struct bounds {
    double low, high, step;
    bool integer;
} bounds;

/* A JSON number without exponent that the bounds allow, told by doubles: all values here are multiples of 1/8 with few digits. */
static bool in_bounds(const void *ctx, const char *text) {
    const bounds *b = ctx;
    const char *p = text + (*text == '-');
    size_t n = strspn(p, "0123456789"), f = 0;
    if (n == 0 || (n > 1 && *p == '0')) return false;
    if (p[n] == '.') {
        f = strspn(p + n + 1, "0123456789");
        if (f == 0 || b->integer) return false;
        f++;
    }
    if (p[n + f]) return false;
    double v = strtod(text, NULL), q = v / b->step;
    if (*text == '-' && v == 0) return false; /* -0 is left out */
    return v >= b->low && v <= b->high && q == floor(q);
}

static void test_bounds_against_doubles(void **state) {
    (void)state;
    lg_buf s = {0};
    for (uint64_t key = 0; key < 300; key++) {
        char text[8] = "";
        uint64_t r = lg_num_rng(key, 2, 0, 0);
        bounds b = {.integer = key % 2, .step = (double)(1 + r % 5) / (key % 2 ? 1 : 8)};
        b.low = ((double)(r / 8 % 256) - 128) / (b.integer ? 1 : 8);
        b.high = b.low + (double)(r / 2048 % 256) / (b.integer ? 1 : 8);
        lg_buf_clear(&s);
        lg_buf_printf(&s,
                      "{'schema':{'type':'%s','minimum':%.10g,'maximum':%.10g,'multipleOf':"
                      "%.10g}}",
                      b.integer ? "integer" : "number", b.low, b.high, b.step);
        double first = ceil(b.low / b.step) * b.step;
        if (first > b.high) continue; /* empty: refused */
        lg_grammar *g = open_grammar(s.data);
        every(g, b.integer ? "-.0123456789" : "-.012357", 4, text, 0, "", in_bounds, &b);
        lg_grammar_close(&g);
    }
    lg_buf_fini(&s);
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

/* Patterns of all kinds: any text, some at most so many characters, none in words; and numbers with bounds. */
static const char bounded_source[] =
    "{'schema':{'type':'array','minItems':1,'items':{'anyOf':[{'type':'object','properties':{"
    "'p':{'type':'string','pattern':'.*'},'q':{'type':'string','pattern':'^.{0,9}$'},'r':{"
    "'type':'string','pattern':'^[A-Z][a-z]+( [a-z]+)?[^\\\\x00-\\\\x7f]?$','maxLength':20}},"
    "'required':['p']},{'type':'number','minimum':-3.5,'maximum':1250,'multipleOf':0.5}]}}}";

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
    lg_grammar *bounded = open_grammar(bounded_source);
    lg_buf text = {0};
    for (uint64_t key = 0; key < 6; key++) play(g, false, key, true, &text);
    for (uint64_t key = 0; key < 2; key++) play(bounded, false, key, true, &text);
    lg_grammar_close(&bounded);
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
    static const char *const source[] = {random_source, TOOLS "true}", bounded_source};
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
        cmocka_unit_test(test_refused_by_path),
        cmocka_unit_test(test_patterns_against_posix),
        cmocka_unit_test(test_bounds_against_doubles),
        cmocka_unit_test(test_masks_are_what_steps_say),
        cmocka_unit_test(test_random_answers_are_valid),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
