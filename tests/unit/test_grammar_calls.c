/* test_grammar_calls.c - calls that must be made: which texts are one, or several, of the tools. */
#include "grammar_rig.h"

static void test_calls_with_patterns(void **state) {
    (void)state;
    lg_grammar *g = open_grammar(
        "{'tools':[{'name':'f','parameters':{'properties':{'day':{'type':'string','pattern':"
        "'^[0-9]{4}-[0-9]{2}$'},'n':{'type':'integer','minimum':1,'maximum':20},'t':{'type':"
        "'string','pattern':'<b>'}},'required':['day','n']}}]}");
#define F(day, n)                                                                              \
    "<tool_call>\n<function=f>\n<parameter=day>\n" day "\n</parameter>\n<parameter=n>\n" n
#define END "\n</parameter>\n</function>\n</tool_call>"
    assert_int_equal(take(g, false, F("2026-11", "20") END), 2);
    assert_int_equal(take(g, false, F("2026-1", "20")), 0);
    assert_int_equal(take(g, false, F("2026-11", "21")), 0);
    assert_int_equal(take(g, false, F("2026-11", "0")), 0);
    /* a pattern that cannot be enforced without its sign is any text */
    assert_int_equal(take(g, false, F("2026-11", "2") "\n</parameter>\n<parameter=t>\nx" END),
                     2);
    lg_grammar_close(&g);
}

/* Bounds of a string that is written as it is: what looks like the end counts only when it is none. */
static void test_calls_with_lengths(void **state) {
    (void)state;
    lg_grammar *g = open_grammar(
        "{'tools':[{'name':'f','parameters':{'properties':{'s':{'type':'string','minLength':2,"
        "'maxLength':4},'t':{'type':'string','minLength':2,'maxLength':1},'p':{'type':'string',"
        "'pattern':'^x*$','maxLength':3}}}}]}");
    static const char *const fits[] = {"ab",
                                       "abcd",
                                       "a\nb",
                                       "\n\n",
                                       "\n\nab",
                                       "ab\n\n",
                                       "<<<<",
                                       "ab</",
                                       "\n</p",
                                       "a<\n<",
                                       "\u00e9\u00e9\u00e9\u00e9",
                                       "\U0001f600\u20ac"};
    static const char *const long_ones[] = {"abcde",  "ab\n\nc", "<<<<<",      "ab</p",
                                            "\n</pa", "abcd<",   "\u00e9abcd", "abcd\u00e9"};
    static const char *const short_ones[] = {"", "a", "\n", "\u00e9", "\U0001f600"};
#define S(key) "<tool_call>\n<function=f>\n<parameter=" key ">\n"
    for (size_t i = 0; i < LG_COUNT(fits) + LG_COUNT(long_ones) + LG_COUNT(short_ones); i++) {
        size_t k = i - LG_COUNT(fits);
        const char *text = i < LG_COUNT(fits)        ? fits[i]
                           : k < LG_COUNT(long_ones) ? long_ones[k]
                                                     : short_ones[k - LG_COUNT(long_ones)];
        lg_buf b = {0};
        lg_buf_printf(&b, S("s") "%s" END, text);
        assert_int_equal(take(g, false, lg_buf_str(&b)), i < LG_COUNT(fits) ? 2 : 0);
        lg_buf_fini(&b);
    }
    lg_grammar_state at; /* a line feed where there is no more room can only be the end's */
    lg_grammar_begin(g, false, &at);
    for (const char *c = S("s") "abcd\n"; *c; c++)
        assert_true(lg_grammar_step(g, &at, (uint8_t)*c));
    assert_int_equal(lg_grammar_n_plain(g, &at), 0);
    assert_int_equal(take(g, false, S("t") "abc" END), 2); /* bounds that mean nothing */
    assert_int_equal(take(g, false, S("p") "xxx" END), 2);
    assert_int_equal(take(g, false, S("p") "xxxx"), 0);
    lg_grammar_close(&g);
}

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_calls_with_patterns),
        cmocka_unit_test(test_calls_with_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
