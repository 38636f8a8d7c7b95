/* json.h - a small strict JSON reader and writer (RFC 8259).
 *
 * Strict: one value, no comments, no trailing comma, no NaN, no duplicate check (the last key wins in lookups, all are
 * kept), well-formed UTF-8, escapes checked (a lone surrogate escape \ud800 is an error).  Kept: order of keys, the text
 * of every number, big integers, U+0000 in strings.  The tree lives in one growing arena owned by lg_json_doc; strings
 * are decoded.  Nesting and total size are limited by the caller.  Why not a library: docs/DECISIONS.md.
 * Thread: a document belongs to one thread.  Test: tests/unit/test_json.c, fuzz/fuzz_json.c */
#ifndef LG_BASE_JSON_H
#define LG_BASE_JSON_H

#include "base/buf.h"

typedef enum {
    LG_JSON_NULL,
    LG_JSON_FALSE,
    LG_JSON_TRUE,
    LG_JSON_NUMBER,
    LG_JSON_STRING,
    LG_JSON_ARRAY,
    LG_JSON_OBJECT
} lg_json_kind;

typedef struct lg_json lg_json;

/* A value.  Read the fields directly; children form a linked list in file order. */
struct lg_json {
    lg_json_kind kind;
    uint32_t n_child; /* array, object: number of children */
    const char *
        key; /* decoded key when this is an object member, else NULL; NUL-terminated, may hold NULs */
    size_t key_len;   /* bytes */
    const char *text; /* string: decoded text; number: its text as written; NUL-terminated */
    size_t text_len;  /* bytes */
    size_t offset;    /* byte offset of the value in the source, for messages */
    const lg_json *child; /* first child */
    const lg_json *next;  /* next sibling */
};

typedef struct lg_json_doc lg_json_doc;

#define LG_JSON_MAX_DEPTH 4096 /* the deepest nesting that any caller can allow */

/* Parse text[len_bytes].  max_depth: deepest nesting of arrays and objects allowed (e.g. 64;
 * LG_JSON_MAX_DEPTH at most).  `what` names the source in
 * messages (a file path or "request body").  On LG_OK *doc is the caller's (close it) and borrows nothing from text.
 * Returns LG_E_FORMAT with "what: byte N: ..." for anything not strict JSON or above 4 GiB; LG_E_NOMEM. */
lg_status lg_json_parse(const char *text, size_t len_bytes, unsigned max_depth,
                        const char *what, lg_json_doc **doc, lg_err *err);

/* The same with at most max_value values (containers, members and elements): LG_E_FORMAT for more.  A value takes about 80
 * bytes of memory and as few as two of text, so text from outside wants a bound. */
lg_status lg_json_parse_bounded(const char *text, size_t len_bytes, unsigned max_depth,
                                size_t max_value, const char *what, lg_json_doc **doc,
                                lg_err *err);

/* Read and parse a whole file of at most max_bytes.  Adds LG_E_IO for what cannot be read or is no
 * regular file, and LG_E_FORMAT for a larger one. */
lg_status lg_json_load(const char *path, size_t max_bytes, unsigned max_depth,
                       lg_json_doc **doc, lg_err *err);

const lg_json *lg_json_root(const lg_json_doc *doc);
void lg_json_close(lg_json_doc **doc);

/* Member of an object by NUL-terminated key (the last one of that name), or NULL when v is NULL, no object, or has none.
 * Linear in the number of members. */
const lg_json *lg_json_get(const lg_json *v, const char *key);

/* What "#/a/b" names below root, a JSON pointer in a fragment (RFC 6901: ~0 for ~, ~1 for /); "#" is root.  NULL when it leads
 * nowhere, does not begin with #, goes through an array, or has a step of 128 bytes or more. */
const lg_json *lg_json_point(const lg_json *root, const char *pointer);

/* Element i of an array or member i of an object, or NULL.  Linear. */
const lg_json *lg_json_at(const lg_json *v, size_t i);

/* True when v is a string equal to s. */
bool lg_json_is(const lg_json *v, const char *s);

/* Numbers.  false when v is NULL, not a number, not integral text for the integer forms (1.0 and 1e3 count as integral
 * when exact), or out of range; *out is then untouched. */
bool lg_json_u64(const lg_json *v, uint64_t *out);
bool lg_json_i64(const lg_json *v, int64_t *out);
bool lg_json_f64(const lg_json *v, double *out); /* finite only; correctly rounded */
bool lg_json_bool(const lg_json *v, bool *out);

/* "null", "boolean", "number", "string", "array", "object". */
const char *lg_json_kind_name(lg_json_kind kind);

/* ---- Writing ----
 * Text is appended to a lg_buf; strings must be well-formed UTF-8 (ill-formed parts become U+FFFD). */
typedef enum {
    LG_JSON_COMPACT, /* separators "," and ":"                       */
    LG_JSON_PYTHON,  /* ", " and ": " as Python's json.dumps(ensure_ascii=False) prints */
} lg_json_style;

/* Append s as a JSON string with quotes; escapes ", \, and control characters below U+0020 exactly as Python's json with
 * ensure_ascii=False: \n \r \t \b \f short forms, \u00XX for the rest, everything else as it is. */
void lg_json_put_string(lg_buf *b, const char *s, size_t len_bytes);

/* The same without the quotes: a piece of a string. */
void lg_json_put_escaped(lg_buf *b, const char *s, size_t len_bytes);

/* Append value v.  Numbers in LG_JSON_COMPACT keep their text; in LG_JSON_PYTHON they are printed as Python prints them
 * after json.loads: integers as they are ("-0" is 0), floats as repr does (shortest round trip, 1e-07, 1e+16, 2.0,
 * 1E400 as Infinity). */
void lg_json_put(lg_buf *b, const lg_json *v, lg_json_style style);

/* Append a double as Python's repr prints it ("0.75", "2.0", "1e-07", "inf", "nan"). */
void lg_json_put_double(lg_buf *b, double x);

#endif
