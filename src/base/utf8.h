/* utf8.h - UTF-8 as Python's decoder reads it.
 *
 * Invalid input becomes U+FFFD once per maximal ill-formed subpart (Unicode 15, section 3.9, table 3-8), which is what
 * bytes.decode("utf-8", "replace") does.  Test: tests/unit/test_utf8.c */
#ifndef LG_BASE_UTF8_H
#define LG_BASE_UTF8_H

#include "base/buf.h"

/* Decode one code point at s (len_bytes >= 1).  Returns the bytes it takes (>= 1); *cp is the code point, or UINT32_MAX
 * for an ill-formed subpart of that many bytes. */
size_t lg_utf8_next(const char *s, size_t len_bytes, uint32_t *cp);

/* Append the UTF-8 form of cp (a scalar value; anything else becomes U+FFFD). */
void lg_utf8_put(lg_buf *b, uint32_t cp);

/* True when the whole text is well-formed. */
bool lg_utf8_valid(const char *s, size_t len_bytes);

/* Append s with every ill-formed subpart replaced by U+FFFD. */
void lg_utf8_repair(lg_buf *b, const char *s, size_t len_bytes);

/* Length of the longest prefix of s which does not end inside a code point that more bytes could still complete.  An
 * ill-formed tail which nothing can complete counts as finished. */
size_t lg_utf8_whole(const char *s, size_t len_bytes);

#endif
