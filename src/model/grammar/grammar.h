/* grammar.h - what an answer may be: an automaton over bytes from a JSON schema, or from tools of which one must be called.
 *
 *   grammar_make.c, grammar_tools.c   JSON text -> nodes      grammar.c   one byte at a time      grammar_mask.c   which ids may come next
 *   grammar_number.c   numbers with bounds      grammar_pattern.c   strings with a pattern: grammar_regex.c, grammar_dfa.c
 *
 * The source is one JSON object:
 *   {"schema": S}                      a JSON value of that schema
 *   {"tools": [T, ...], "many": B}     a call of one of these tools, as the chat format writes it; with many: more may follow
 * T is a tool as the chat format takes it, {"type": "function", "function": {"name", "parameters"}}.
 *
 * Schemas: type, enum, const, properties, required, additionalProperties, items, minItems, maxItems, minLength, maxLength,
 * pattern, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf,
 * anyOf and oneOf of alternatives that differ in their first byte, allOf of one, $ref within the schema; annotations are
 * passed over.  Anything else is refused by its path: what cannot be enforced is not accepted.  Objects hold their properties
 * in the schema's order, and others only when none is named.  Of a tool's parameters, what is not understood is any value.
 * White space in JSON is one space or a line feed with an indentation; nesting is bounded (LG_GRAMMAR_DEPTH).
 * Thread: an automaton is not changed by use; its states belong to who uses them.  Test: tests/unit/test_grammar.c */
#ifndef LG_MODEL_GRAMMAR_GRAMMAR_H
#define LG_MODEL_GRAMMAR_GRAMMAR_H

#include "base/json.h"
#include "model/text/tokenizer.h"

#define LG_GRAMMAR_DEPTH                                                                       \
    64 /* frames of a state: a nested array or object takes one, a choice on top one more */
#define LG_GRAMMAR_MAX_BYTES (1 << 20) /* of a source */

typedef struct lg_grammar lg_grammar;

/* LG_OK and the caller owns *g; LG_E_ARG with the path of what is not supported; LG_E_NOMEM. */
lg_status lg_grammar_open(const char *source, size_t len_bytes, lg_grammar **g, lg_err *err);
void lg_grammar_close(lg_grammar **g);

/* What it takes of memory; a source's limits keep it below LG_GRAMMAR_MAX_MEMORY. */
size_t lg_grammar_bytes(const lg_grammar *g);
#define LG_GRAMMAR_MAX_MEMORY (8u << 20)

typedef struct lg_grammar_frame {
    uint16_t node;
    uint8_t phase, x;
    uint16_t a, b;
    uint64_t v;
} lg_grammar_frame;

/* Where in the grammar a text stands.  Copy with lg_grammar_copy: frames from n up mean nothing. */
typedef struct lg_grammar_state {
    uint16_t n;       /* frames; 0: complete */
    uint16_t n_blank; /* white space in a row */
    lg_grammar_frame frame[LG_GRAMMAR_DEPTH];
} lg_grammar_state;

/* The state before the first byte.  think: any text up to "</think>" comes first. */
void lg_grammar_begin(const lg_grammar *g, bool think, lg_grammar_state *s);

void lg_grammar_copy(lg_grammar_state *to, const lg_grammar_state *from);
bool lg_grammar_same(const lg_grammar_state *a, const lg_grammar_state *b);

/* Go on by one byte.  false: it cannot stand here, and *s means nothing any more. */
bool lg_grammar_step(const lg_grammar *g, lg_grammar_state *s, uint8_t byte);

/* Code points of plain text that may come here, whatever they are, without changing more than their count: well-formed UTF-8
 * from U+0020 up but for ", \ and <.  UINT32_MAX: any number; 0: none, or it depends. */
uint32_t lg_grammar_n_plain(const lg_grammar *g, const lg_grammar_state *s);

/* Whether the text may end here. */
bool lg_grammar_may_end(const lg_grammar *g, const lg_grammar_state *s);

/* ---- grammar_mask.c ---- */

/* The ids of a tokenizer in the order of their bytes, without special ones.  Used by one thread at a time. */
typedef struct lg_grammar_vocab lg_grammar_vocab;

/* Ids below n_id.  LG_E_NOMEM; the caller owns *v. */
lg_status lg_grammar_vocab_open(const lg_tokenizer *tok, uint32_t n_id, lg_grammar_vocab **v);
void lg_grammar_vocab_close(lg_grammar_vocab **v);

/* At most what it takes. */
size_t lg_grammar_vocab_bytes(const lg_tokenizer *tok, uint32_t n_id);

/* Set bit id of mask[(n_id + 31) / 32] for each id whose bytes may come next, clear the others; returns how many are set. */
uint32_t lg_grammar_mask(lg_grammar_vocab *v, const lg_grammar *g, const lg_grammar_state *s,
                         uint32_t *mask);

#endif
