/* grammar_dfa.h - the `pattern` of a string as a table of states: shared by grammar_regex.c, grammar_dfa.c and the grammar alone.
 *
 * An expression becomes places (what is still to come), sets of places become states, and of these only those are kept from
 * which a match can still be reached.  A text fits when the expression matches somewhere in it, as JSON schemas say.
 * Everything is bounded: what is too large is refused, with what it is too large in. */
#ifndef LG_MODEL_GRAMMAR_GRAMMAR_DFA_H
#define LG_MODEL_GRAMMAR_GRAMMAR_DFA_H

#include "base/buf.h"
#include "base/diag.h"

#define LG_REGEX_MAX_BYTES 1000
#define LG_REGEX_MAX_PLACE 4096
#define LG_REGEX_MAX_SET   128
#define LG_REGEX_MAX_SPAN  1024
#define LG_REGEX_NO_MAX    UINT32_MAX

typedef struct lg_regex_span {
    uint32_t low, high;
} lg_regex_span;

typedef struct lg_regex_set {
    uint32_t first, n; /* spans, in order */
} lg_regex_set;

typedef enum {
    LG_REGEX_CHAR,  /* a: set, b: next */
    LG_REGEX_FORK,  /* a, b: next */
    LG_REGEX_BEGIN, /* at the beginning of the text; a: next */
    LG_REGEX_END,   /* at its end; a: next */
    LG_REGEX_DONE   /* matched */
} lg_regex_kind;

typedef struct lg_regex_place {
    lg_regex_kind kind;
    uint32_t a, b;
} lg_regex_place;

/* Caller's storage, about 60 KiB: from the heap. */
typedef struct lg_regex {
    lg_regex_place place[LG_REGEX_MAX_PLACE];
    lg_regex_set set[LG_REGEX_MAX_SET];
    lg_regex_span span[LG_REGEX_MAX_SPAN];
    uint32_t n_place, n_set, n_span;
    uint32_t start, done; /* place */
    const char *why;      /* static: why it is refused */
    bool no_memory;
} lg_regex;

/* false: x->why. */
bool lg_grammar_regex_parse(lg_regex *x, const char *text, size_t len_bytes);

#define LG_DFA_DEAD      UINT16_MAX
#define LG_DFA_MAX_STATE 4096
#define LG_DFA_MAX_CELL  (1u << 19) /* of all tables of a grammar */
/* Steps for all tables of a grammar: some hundredths of a second.  Fuzzers take fewer, to try more. */
#ifndef LG_DFA_MAX_WORK
#define LG_DFA_MAX_WORK 4000000u
#endif
#define LG_DFA_ENDLESS UINT16_MAX

typedef struct lg_dfa {
    uint16_t n_state, n_class;
    uint32_t n_span;
    uint16_t *next; /* owned: [n_state][n_class], LG_DFA_DEAD */
    uint16_t *
        plain; /* owned: [n_state], how many characters of any plain text may come; LG_DFA_ENDLESS */
    bool *match;        /* owned: [n_state], the text may end */
    uint32_t *low;      /* owned: [n_span], where spans of characters begin, from 0 */
    uint16_t *class_of; /* owned: [n_span] */
} lg_dfa;

/* The texts that fit x and have low to high characters (high LG_REGEX_NO_MAX: any number).  raw: and no line feed and no "<".
 * State 0 is the first.  *n_cell and *n_work grow by what it took.  false: x->why (x->no_memory). */
bool lg_grammar_dfa_make(lg_dfa *d, lg_regex *x, uint32_t low, uint32_t high, bool raw,
                         uint32_t *n_cell, uint32_t *n_work);
void lg_grammar_dfa_fini(lg_dfa *d);
size_t lg_grammar_dfa_bytes(const lg_dfa *d);

/* The state after a character; LG_DFA_DEAD. */
uint16_t lg_grammar_dfa_step(const lg_dfa *d, uint16_t state, uint32_t c);

/* Whether a character of [low, high] may come. */
bool lg_grammar_dfa_any(const lg_dfa *d, uint16_t state, uint32_t low, uint32_t high);

#endif
