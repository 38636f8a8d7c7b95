/* buf.c - growable byte string: see buf.h. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool reserve(lg_buf *b, size_t more) {
    if (b->failed) return false;
    size_t need;
    if (__builtin_add_overflow(b->len_bytes, more, &need) || need > SIZE_MAX / 4) goto fail;
    if (need + 1 <= b->cap_bytes) return true;
    size_t cap = b->cap_bytes ? b->cap_bytes : 64;
    while (cap < need + 1) cap *= 2;
    char *p = lg_mem_realloc(b->data, cap);
    if (!p) goto fail;
    b->data = p;
    b->cap_bytes = cap;
    return true;
fail:
    b->failed = true;
    return false;
}

void lg_buf_fini(lg_buf *b) {
    lg_mem_free(b->data);
    *b = (lg_buf){0};
}

void lg_buf_clear(lg_buf *b) {
    b->len_bytes = 0;
    b->failed = false;
    if (b->data) b->data[0] = 0;
}

void lg_buf_put(lg_buf *b, const void *data, size_t len_bytes) {
    if (!reserve(b, len_bytes)) return;
    if (len_bytes) memcpy(b->data + b->len_bytes, data, len_bytes);
    b->len_bytes += len_bytes;
    b->data[b->len_bytes] = 0;
}

void lg_buf_puts(lg_buf *b, const char *s) {
    lg_buf_put(b, s, strlen(s));
}

void lg_buf_putc(lg_buf *b, char c) {
    lg_buf_put(b, &c, 1);
}

void lg_buf_printf(lg_buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !reserve(b, (size_t)n)) {
        b->failed = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(b->data + b->len_bytes, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len_bytes += (size_t)n;
}

void lg_buf_consume(lg_buf *b, size_t n) {
    LG_ASSERT(n <= b->len_bytes);
    if (n == 0) return;
    memmove(b->data, b->data + n, b->len_bytes - n + 1);
    b->len_bytes -= n;
}
