/* argval.h - the text of a tool call's argument into a JSON value, as the tool's schema wants it.
 *
 * The format writes strings as they are and everything else as JSON or as Python prints it, so what a text is follows from
 * the schema: a string stays text; where more is allowed, what reads as an allowed value is that value and the rest a string.
 * A text that is nothing allowed is kept: as the JSON it is when no string is allowed, else as a string.
 * Thread: any.  Test: tests/unit/test_argval.c, test_outparse.c */
#ifndef LG_GATEWAY_WIRE_ARGVAL_H
#define LG_GATEWAY_WIRE_ARGVAL_H

#include "base/json.h"

enum {
    LG_ARG_NULL = 1,
    LG_ARG_BOOL = 2,
    LG_ARG_INTEGER = 4,
    LG_ARG_NUMBER = 8, /* one that is no integer */
    LG_ARG_STRING = 16,
    LG_ARG_ARRAY = 32,
    LG_ARG_OBJECT = 64,
    LG_ARG_ANY = 127 /* nothing is known: what reads as JSON is JSON */
};

/* Types that a schema allows: type, enum, const, anyOf, oneOf, allOf and $ref into `root` are read.  A schema that says
 * nothing, or contradicts itself, allows any. */
uint32_t lg_argval_types(const lg_json *root, const lg_json *schema);

/* Append the value of a complete text.  LG_E_NOMEM for the parser's memory; look at out->failed for the buffer's. */
lg_status lg_argval_put(lg_buf *out, uint32_t types, const char *s, size_t len_bytes);

/* What a text that has only begun will be. */
typedef enum {
    LG_ARGVAL_OPEN,  /* both are possible */
    LG_ARGVAL_TEXT,  /* certainly a string, as it is */
    LG_ARGVAL_WHOLE, /* it takes the whole text to tell */
} lg_argval_form;

/* Reads a text byte by byte: = {.types = ...}, then lg_argval_feed until the form is not OPEN. */
typedef struct lg_argval {
    uint32_t types;
    uint8_t phase, n_word;
    char word[6];
} lg_argval;

lg_argval_form lg_argval_begin(lg_argval *a, uint32_t types);
lg_argval_form lg_argval_feed(lg_argval *a, char c);

#endif
