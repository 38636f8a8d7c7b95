/* pretok.h - the pre-tokenizer pattern of a tokenizer.json: where text is cut into words.
 *
 * The pattern is written for another regular-expression engine, so only the syntax in which both agree is accepted, and
 * what both write alike but read differently is rewritten (pretok.c).  Thread: one at a time.
 * Test: tests/unit/test_tokenizer.c */
#ifndef LG_MODEL_TEXT_PRETOK_H
#define LG_MODEL_TEXT_PRETOK_H

#include "base/buf.h"

typedef struct lg_pretok lg_pretok;

/* Compile pattern (UTF-8, NUL-terminated).  `what` names the file in messages.  jit: use PCRE2's compiler where the machine
 * allows it; the interpreter gives the same answers.  LG_E_UNSUPPORTED with the byte of the pattern for syntax outside
 * the accepted subset, LG_E_FORMAT when it does not compile, LG_E_NOMEM.  The caller owns *pt. */
lg_status lg_pretok_open(const char *pattern, bool jit, const char *what, lg_pretok **pt,
                         lg_err *err);
void lg_pretok_close(lg_pretok **pt);

/* Find the word that starts at byte `begin` < len_bytes of text, which is well-formed UTF-8: *end is the byte after it,
 * > begin.  Text the pattern does not match is a word of its own.
 * Returns LG_OK; LG_E_NOMEM; LG_E_FORMAT when the engine gives up (its message and the byte in *err). */
lg_status lg_pretok_next(lg_pretok *pt, const char *text, size_t len_bytes, size_t begin,
                         size_t *end, lg_err *err);

/* Append the rewritten form of pattern, for tests.  As lg_pretok_open. */
lg_status lg_pretok_rewrite(const char *pattern, const char *what, lg_buf *out, lg_err *err);

#endif
