/* buf.h - a growable byte string, the one way to build text.
 *
 * Caller's storage: init (or = {0}), append, fini.  A failed append sets `failed` and later ones do nothing, so a writer
 * checks once at the end.  data is always NUL-terminated once something was appended.  Test: tests/unit/test_base.c */
#ifndef LG_BASE_BUF_H
#define LG_BASE_BUF_H

#include "base/mem.h"

#include <stdbool.h>

typedef struct lg_buf {
    char *data;       /* owned; NULL while nothing was appended */
    size_t len_bytes; /* without the NUL */
    size_t cap_bytes;
    bool failed; /* out of memory at some append */
} lg_buf;

void lg_buf_fini(lg_buf *b);
void lg_buf_clear(lg_buf *b); /* length 0, memory kept */
void lg_buf_put(lg_buf *b, const void *data, size_t len_bytes);
void lg_buf_puts(lg_buf *b, const char *s);
void lg_buf_putc(lg_buf *b, char c);
void lg_buf_printf(lg_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Drop the first n bytes (n <= len_bytes). */
void lg_buf_consume(lg_buf *b, size_t n);

/* The text, "" when empty; borrowed until the next append. */
static inline const char *lg_buf_str(const lg_buf *b) {
    return b->data ? b->data : "";
}

#endif
