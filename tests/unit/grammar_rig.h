/* grammar_rig.h - grammars from sources that are easy to write, and what they say of a text: for their tests. */
#ifndef LG_TESTS_GRAMMAR_RIG_H
#define LG_TESTS_GRAMMAR_RIG_H

#include "model/grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* JSON with ' for ". */
static inline void quote(lg_buf *b, const char *s) {
    lg_buf_clear(b);
    for (; *s; s++) lg_buf_putc(b, *s == '\'' ? '"' : *s);
    lg_buf_str(b);
}

static inline lg_grammar *open_grammar(const char *source) {
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
static inline int take(const lg_grammar *g, bool think, const char *text) {
    lg_grammar_state s;
    lg_grammar_begin(g, think, &s);
    for (; *text; text++)
        if (!lg_grammar_step(g, &s, (uint8_t)*text)) return 0;
    return 1 + lg_grammar_may_end(g, &s);
}

/* Two tools; after it comes true or false, whether there may be several calls, and "}". */
#define TOOLS                                                                                  \
    "{'tools':[{'type':'function','function':{'name':'add','parameters':{'type':'object',"     \
    "'properties':{'a':{'type':'integer'},'s':{'type':'string'},'e':{'enum':['x','y']},'o':{"  \
    "'anyOf':[{'type':'object','properties':{'k':{'type':'integer','minimum':1}}},{'type':"    \
    "'object'}]},'m':{'anyOf':[{'const':'red'},{'type':'null'},{'enum':[7]}]}},'required':['"  \
    "a']}}},"                                                                                  \
    "{'name':'ping'}],'many':"

#endif
