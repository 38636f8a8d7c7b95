/* tokbuild.h - fill a tokenizer's tables from vocabulary, added tokens and merges, whatever file they stand in.
 *
 * Order: reserve, every token, bytes, every added token, sort, n merges.  Invariants afterwards: every byte has an id; ids,
 * contents and merges are unique; a merge's result is in the vocabulary.  A failed call leaves the tables to be thrown away.
 * Internal to tokload.c and gguf_tokenizer.c.  Memory: the table from bytes to ids lives until fini.
 * Test: tests/unit/test_tokload.c, tests/unit/test_gguf.c */
#ifndef LG_MODEL_TEXT_TOKBUILD_H
#define LG_MODEL_TEXT_TOKBUILD_H

#include "model/text/tokload.h"

#define LG_TOKBUILD_MAX_ID   (((uint32_t)1 << 24) - 1)
#define LG_TOKBUILD_SHOW     72  /* bytes of a value shown in messages */
#define LG_TOKBUILD_ALPHABET 324 /* code points of the byte-level alphabet lie below this */

typedef struct lg_tokbuild {
    lg_tokenizer *tok;
    const char *what;           /* file, for messages */
    const char *vocab, *merges; /* names of the fields, for messages */
    lg_err *err;
    int16_t byte_of[LG_TOKBUILD_ALPHABET]; /* byte of a character, -1 = none */
    uint64_t *slot;                        /* [mask + 1] tag << 32 | id + 1; 0 = free */
    uint64_t mask;
    size_t n_byte;         /* of bpe.bytes */
    char *pair;            /* scratch: the bytes of one merge */
    size_t cap_pair;       /* bytes of it */
    uint32_t n_merge_done; /* rank of the next merge */
} lg_tokbuild;

void lg_tokbuild_init(lg_tokbuild *b, lg_tokenizer *tok, const char *what, const char *vocab,
                      const char *merges, lg_err *err);
void lg_tokbuild_fini(lg_tokbuild *b);

/* Size the tables: n_id ids (1 + the largest), n_token of them with a text of the alphabet, n_added added ones, text_bytes
 * bytes of all texts as they stand in the file.  LG_OK, LG_E_FORMAT, LG_E_UNSUPPORTED, LG_E_NOMEM. */
lg_status lg_tokbuild_reserve(lg_tokbuild *b, uint32_t n_id, uint64_t n_token, uint64_t n_added,
                              uint64_t text_bytes);

/* An ordinary token: id below n_id, text s in the byte-level alphabet.  LG_OK, LG_E_FORMAT. */
lg_status lg_tokbuild_token(lg_tokbuild *b, uint32_t id, const char *s, size_t len_bytes);

/* After all ordinary tokens: every byte has its id.  LG_OK, LG_E_FORMAT. */
lg_status lg_tokbuild_bytes(lg_tokbuild *b);

/* An added token, its text not empty and as it is; `where` names it in messages.  It may also be in the vocabulary, with the
 * same id.  LG_OK, LG_E_FORMAT. */
lg_status lg_tokbuild_added(lg_tokbuild *b, uint32_t id, const char *s, size_t len_bytes,
                            bool special, const char *where);

/* After all added tokens, n of them.  LG_OK, LG_E_FORMAT (a text twice), LG_E_NOMEM. */
lg_status lg_tokbuild_sort(lg_tokbuild *b, size_t n);

/* Make room for n merges, then give them by rank, both halves in the alphabet.  LG_OK, LG_E_FORMAT, LG_E_UNSUPPORTED,
 * LG_E_NOMEM. */
lg_status lg_tokbuild_n_merge(lg_tokbuild *b, uint64_t n);
lg_status lg_tokbuild_merge(lg_tokbuild *b, const char *left, size_t n_left, const char *right,
                            size_t n_right);

/* Text for a message: quoted, cut, without control characters.  Returns out. */
const char *lg_tokbuild_show(const char *s, size_t len_bytes, char out[LG_TOKBUILD_SHOW]);

#endif
