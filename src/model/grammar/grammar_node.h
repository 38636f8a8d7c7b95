/* grammar_node.h - the nodes of a grammar: shared by grammar.c and grammar_make.c alone. */
#ifndef LG_MODEL_GRAMMAR_GRAMMAR_NODE_H
#define LG_MODEL_GRAMMAR_GRAMMAR_NODE_H

#include "model/grammar/grammar.h"
#include "model/grammar/grammar_dfa.h"

#define LG_NODE_NONE   UINT16_MAX
#define LG_NODE_NO_MAX UINT16_MAX

typedef enum {
    LG_NODE_STRING,  /* low..high code points */
    LG_NODE_NUMBER,  /* integer: low = 1 */
    LG_NODE_RANGE,   /* item: index into range */
    LG_NODE_PATTERN, /* item: index into dfa; low: 1, as it is, else in quotes */
    LG_NODE_TEXTS,   /* one of its items' texts */
    LG_NODE_OBJECT,  /* items: "\"name\"", value, needed */
    LG_NODE_MAP,     /* an object of any names; child: their value */
    LG_NODE_ARRAY,   /* low..high of child */
    LG_NODE_CHOICE,  /* one of the items' nodes, by its first byte */
    LG_NODE_SEQ,     /* its items' nodes in order */
    LG_NODE_THINK,   /* text up to and with </think> */
    LG_NODE_LINES,   /* at most high line feeds */
    LG_NODE_RAW,     /* low..high code points, and "\n</parameter>" */
    LG_NODE_CALLS,   /* items: "<tool_call>\n<function=NAME>\n", parameters; high: calls */
    LG_NODE_PARAMS /* items: "<parameter=KEY>\n", value, needed; the last one is the closing tags */
} lg_node_kind;

typedef struct lg_node_item {
    const char *text; /* owned by the grammar */
    uint16_t len_bytes, node;
    bool needed;
} lg_node_item;

typedef struct lg_node {
    lg_node_kind kind;
    uint16_t low, high, child;
    uint16_t n_item;
    uint32_t item; /* index of its first one in lg_grammar.item */
} lg_node;

/* A number with bounds, in units of 10^-scale: magnitudes [low, high] from 0 up [0] and below 0 [1]. */
typedef struct lg_node_range {
    uint64_t low[2], high[2], multiple;
    bool some[2]; /* there is one */
    uint8_t scale;
} lg_node_range;

struct lg_grammar {
    lg_node *node;
    lg_node_item *item;
    uint32_t n_node, cap_node, n_item, cap_item;
    lg_node_range *range;
    uint32_t n_range, cap_range;
    lg_dfa *dfa;
    uint32_t n_dfa, cap_dfa;
    lg_buf text; /* of items; they point into it when all are there */
    uint16_t root;
};

/* What a byte does to the frame of a RANGE or PATTERN.  NO: it is not part of the value, which may have ended before it. */
typedef enum { LG_STEP_NO, LG_STEP_TAKEN, LG_STEP_LAST } lg_node_step;

/* grammar_number.c */
lg_node_step lg_grammar_range_step(const lg_grammar *g, const lg_node *k, lg_grammar_frame *f,
                                   uint8_t c);
bool lg_grammar_range_may_end(const lg_grammar *g, const lg_node *k, const lg_grammar_frame *f);
bool lg_grammar_range_begins(const lg_grammar *g, const lg_node *k, uint8_t c);

/* grammar_pattern.c */
lg_node_step lg_grammar_pattern_step(const lg_grammar *g, const lg_node *k, lg_grammar_frame *f,
                                     uint8_t c);
bool lg_grammar_pattern_may_end(const lg_grammar *g, const lg_node *k,
                                const lg_grammar_frame *f);
uint32_t lg_grammar_pattern_n_plain(const lg_grammar *g, const lg_node *k,
                                    const lg_grammar_frame *f);

#endif
