/* grammar_make.h - what making a grammar shares: grammar_make.c (schemas) and grammar_tools.c (calls) alone. */
#ifndef LG_MODEL_GRAMMAR_GRAMMAR_MAKE_H
#define LG_MODEL_GRAMMAR_GRAMMAR_MAKE_H

#include "model/grammar/grammar_node.h"

#define LG_GRAMMAR_MAX_TEXT 250 /* most bytes of an item's text */
#define LG_GRAMMAR_MAX_REF  64  /* schemas in each other */

/* A schema that has its node, or will have. */
typedef struct lg_grammar_made {
    const lg_json *schema;
    uint16_t node;
} lg_grammar_made;

/* A choice, or what must be of certain types, and where it stands in the schema. */
typedef struct lg_grammar_fork {
    uint16_t node;
    const lg_json *type; /* NULL: a choice */
    char path[120];
} lg_grammar_fork;

typedef struct lg_grammar_maker {
    lg_grammar *g;
    const lg_json *root; /* what $ref is looked up in */
    lg_grammar_made *made;
    uint32_t n_made, cap_made;
    lg_grammar_fork *fork;
    uint32_t n_fork, cap_fork;
    uint32_t depth;
    uint16_t any, key;       /* nodes of any value and of any name; LG_NODE_NONE until needed */
    uint32_t n_cell, n_work; /* of patterns: see grammar_dfa.h */
    bool lax, no_memory;
    char path[200];
    lg_err *err;
} lg_grammar_maker;

/* Refuse what stands at the path; the first word counts.  Always LG_NODE_NONE, like the next. */
uint16_t lg_grammar_make_fail(lg_grammar_maker *m, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
uint16_t lg_grammar_make_no_memory(lg_grammar_maker *m);

/* A node; LG_NODE_NONE when it was refused.  Room for n items of a node, in one piece; item i. */
uint16_t lg_grammar_make_node(lg_grammar_maker *m, lg_node_kind kind);
bool lg_grammar_make_items(lg_grammar_maker *m, uint16_t node, uint32_t n);
lg_node_item *lg_grammar_make_item(lg_grammar_maker *m, uint16_t node, uint32_t i);

/* Item i's text: what was appended to g->text since `from`. */
bool lg_grammar_make_text(lg_grammar_maker *m, uint16_t node, uint32_t i, size_t from);

/* A node whose items are these nodes; LG_NODE_NONE when one of them is. */
uint16_t lg_grammar_make_group(lg_grammar_maker *m, lg_node_kind kind, const uint16_t *nodes,
                               uint32_t n);

/* A node whose bounds are the schema's keywords `low` and `high`, where it has them. */
uint16_t lg_grammar_make_between(lg_grammar_maker *m, lg_node_kind kind, const lg_json *schema,
                                 const char *low, const char *high);

/* Room for one more element. */
bool lg_grammar_make_grow(void **p, uint32_t *cap, uint32_t n, size_t size);

/* The node of a number whose schema has bounds, and whether it has. */
bool lg_grammar_make_bounded(const lg_json *schema);
uint16_t lg_grammar_make_range(lg_grammar_maker *m, const lg_json *schema, bool integer);

/* The node of a string with `pattern` and low to high characters; raw: without quotes, see grammar_dfa.h. */
uint16_t lg_grammar_make_pattern(lg_grammar_maker *m, const lg_json *pattern, uint32_t low,
                                 uint32_t high, bool raw);

/* The node of the schema at path/part. */
uint16_t lg_grammar_make_schema(lg_grammar_maker *m, const char *part, const lg_json *schema);

/* Whether a name is there twice; whether p's name is in `required`. */
bool lg_grammar_make_twice(const lg_json *props);
bool lg_grammar_make_needed(const lg_json *required, const lg_json *p);

/* When all is made: put what is meant in place of stand-ins, and see that choices can be made. */
bool lg_grammar_make_finish(lg_grammar_maker *m);

/* The node of calls of these tools. */
uint16_t lg_grammar_make_tools(lg_grammar_maker *m, const lg_json *tools, bool many);

#endif
