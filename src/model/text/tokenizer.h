/* tokenizer.h - tokenizer.json as its format defines it (or the same in a GGUF file): byte-level BPE.
 *
 * text -> cut out added tokens (longest match, leftmost) -> NFC (utf8proc) -> the file's pattern (PCRE2 with UCP, \s and \S
 * written out as classes) -> byte-level alphabet -> merges by rank, O(n log n) for any word.  Invalid UTF-8 is first replaced
 * by U+FFFD as Python's decoder does.  Thread: a tokenizer is used by one thread at a time.
 * Stages: tokload.c and gguf_tokenizer.c (files), nfc.c, pretok.c, bpe.c, detok.c.
 * Test: tests/unit/test_tokenizer.c (all golden vectors), tests/unit/test_tokload.c, fuzz/fuzz_tokenizer.c */
#ifndef LG_MODEL_TEXT_TOKENIZER_H
#define LG_MODEL_TEXT_TOKENIZER_H

#include "base/buf.h"

typedef struct lg_tokenizer lg_tokenizer;

/* Load PATH/tokenizer.json, or the metadata of PATH when it is a GGUF file.  Fails closed on anything in the file that is not understood (normaliser, pre-tokenizer,
 * decoder, post-processor, model kind).  LG_E_IO, LG_E_FORMAT, LG_E_UNSUPPORTED, LG_E_NOMEM; the caller owns *tok. */
lg_status lg_tokenizer_open(const char *path, lg_tokenizer **tok, lg_err *err);

/* The same from the text of the file; `what` names it in messages. */
lg_status lg_tokenizer_parse(const char *json, size_t len_bytes, const char *what,
                             lg_tokenizer **tok, lg_err *err);
void lg_tokenizer_close(lg_tokenizer **tok);

/* Number of ids: 1 + the largest id, added tokens included. */
uint32_t lg_tokenizer_n_id(const lg_tokenizer *tok);

/* Id of the added token with this exact content, or UINT32_MAX. */
uint32_t lg_tokenizer_added(const lg_tokenizer *tok, const char *content);

/* Bytes of one id: *s borrowed, valid until close; *special tells whether it is an added token flagged special, *added
 * whether it is an added token at all.  false for an id that means nothing. */
bool lg_tokenizer_piece(const lg_tokenizer *tok, uint32_t id, const char **s, size_t *len_bytes,
                        bool *added, bool *special);

/* A list of ids that grows. */
typedef struct lg_ids {
    uint32_t *id; /* owned */
    size_t n, cap;
} lg_ids;
void lg_ids_fini(lg_ids *ids);
lg_status lg_ids_push(lg_ids *ids, uint32_t id);

/* A stretch of text in which added tokens may be matched or not. */
typedef struct lg_span {
    size_t begin, end; /* bytes of the text, end exclusive */
    bool control;      /* true: added tokens are matched (scaffold); false: content, none is */
} lg_span;

/* Append the ids of text.  spans cover the text in order without gaps (NULL, 0 = the whole text with `control`).  Text between
 * matched added tokens is normalised, split and merged as one piece, whatever spans it crosses; an added token is matched only
 * where it lies inside control spans as a whole.
 * Returns LG_OK; LG_E_NOMEM; LG_E_FORMAT when the pattern engine gives up (its error, with the byte offset) or a word
 * has 4 GiB.  After an error ids holds what it held before. */
lg_status lg_tokenizer_encode(lg_tokenizer *tok, const char *text, size_t len_bytes,
                              const lg_span *spans, size_t n_span, bool control, lg_ids *ids,
                              lg_err *err);

/* ---- Streaming detokeniser: never emits half a character ---- */
typedef struct lg_detok {
    const lg_tokenizer *tok; /* borrowed */
    bool special;            /* also emit special tokens */
    uint8_t held[4];         /* bytes of an unfinished character */
    uint32_t n_held;
} lg_detok;

void lg_detok_init(lg_detok *d, const lg_tokenizer *tok, bool special);

/* Append what id makes certain; ill-formed bytes become U+FFFD. */
void lg_detok_put(lg_detok *d, uint32_t id, lg_buf *out);

/* Append U+FFFD for bytes that never became a character. */
void lg_detok_finish(lg_detok *d, lg_buf *out);

#endif
