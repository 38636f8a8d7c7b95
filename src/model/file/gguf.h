/* gguf.h - the GGUF container: metadata and tensor views of a mapped file, or of its parts.
 *
 * Versions 2 and 3, little-endian.  Every count, length, offset, alignment and shape product is checked with overflow-safe
 * arithmetic against the bytes that the file still has, before anything is allocated for it.  What the metadata means is
 * the business of gguf_config.c and gguf_tokenizer.c.
 * Test: tests/unit/test_gguf.c, fuzz/fuzz_gguf.c */
#ifndef LG_MODEL_FILE_GGUF_H
#define LG_MODEL_FILE_GGUF_H

#include "model/weights/tensors.h"

/* Types of metadata, numbered as in the file. */
typedef enum lg_gguf_type {
    LG_GGUF_U8,
    LG_GGUF_I8,
    LG_GGUF_U16,
    LG_GGUF_I16,
    LG_GGUF_U32,
    LG_GGUF_I32,
    LG_GGUF_F32,
    LG_GGUF_BOOL,
    LG_GGUF_STR,
    LG_GGUF_ARRAY,
    LG_GGUF_U64,
    LG_GGUF_I64,
    LG_GGUF_F64,
    LG_GGUF_N_TYPE
} lg_gguf_type;

/* One key and its value.  Borrowed from the lg_gguf. */
typedef struct lg_gguf_value {
    const char *key;
    lg_gguf_type type; /* of the scalar, or of an array's elements; never LG_GGUF_ARRAY */
    bool array;
    uint64_t n;          /* elements; 1 for a scalar */
    const uint8_t *data; /* elements one behind the other, all of them inside the file */
    size_t len_bytes;
} lg_gguf_value;

typedef struct lg_gguf lg_gguf;

/* True when a model path means a GGUF file: it exists and is no folder, or it ends in ".gguf". */
bool lg_gguf_is(const char *path);

/* Map `path` and read its tables.  One part of a split model ("...-00002-of-00003.gguf") stands for all of them, which are
 * found beside it.  The caller owns *g.  LG_OK; LG_E_IO; LG_E_FORMAT (malformed or contradictory, naming file and field);
 * LG_E_UNSUPPORTED (version, byte order, a type); LG_E_NOMEM. */
lg_status lg_gguf_open(const char *path, lg_gguf **g, lg_err *err);

/* The same from a single file in memory, which must outlive *g; `what` names it in messages. */
lg_status lg_gguf_parse(const uint8_t *buf, size_t len_bytes, const char *what, lg_gguf **g,
                        lg_err *err);

/* Free and unmap, set *g to NULL.  NULL is allowed. */
void lg_gguf_close(lg_gguf **g);

/* Path of the file that holds the metadata, for messages. */
const char *lg_gguf_what(const lg_gguf *g);

/* Number of files, and their paths in order. */
size_t lg_gguf_n_part(const lg_gguf *g);
const char *lg_gguf_part(const lg_gguf *g, size_t i);

/* All tensors of all parts; borrowed until close. */
lg_tensors *lg_gguf_tensors(const lg_gguf *g);

/* ---- metadata ---- */

/* The value of that key, or NULL. */
const lg_gguf_value *lg_gguf_find(const lg_gguf *g, const char *key);

size_t lg_gguf_count(const lg_gguf *g);
const lg_gguf_value *lg_gguf_at(const lg_gguf *g, size_t i); /* sorted by key */

/* Bytes of an element; 0 for strings and arrays, which have no fixed size. */
size_t lg_gguf_type_bytes(lg_gguf_type type);

/* The number that stands for a type in the table of tensors.  Not for LG_E4M3, which GGUF does not have. */
uint32_t lg_gguf_type_id(lg_dtype type);

/* Element i (0 of a scalar).  false when v is NULL, of another kind, or has no such element; *out is then untouched.
 * int: any integer type whose value fits.  float: F32 or F64, finite.  text: a string, not NUL-terminated. */
bool lg_gguf_int(const lg_gguf_value *v, uint64_t i, int64_t *out);
bool lg_gguf_float(const lg_gguf_value *v, double *out);
bool lg_gguf_bool(const lg_gguf_value *v, uint64_t i, bool *out);
bool lg_gguf_text(const lg_gguf_value *v, const char **s, size_t *len_bytes);

/* True when v is the scalar string s. */
bool lg_gguf_text_is(const lg_gguf_value *v, const char *s);

/* Walk the strings of an array (or scalar): start with *at = 0.  false past the end. */
bool lg_gguf_next(const lg_gguf_value *v, size_t *at, const char **s, size_t *len_bytes);

/* "nothing", "7 (u32)", "an array of 4 i32", "\"text\"", printable and short.  Returns buf. */
const char *lg_gguf_show(const lg_gguf_value *v, char *buf, size_t size_bytes);

#endif
