/* utf8.c - UTF-8 decoding: see utf8.h.  The bounds per lead byte are table 3-7 of the Unicode standard. */
#include "base/utf8.h"

/* What may follow a lead byte: length of the sequence and the range of its second byte.  len 1 = never a lead. */
typedef struct lead {
    uint8_t len, lo, hi;
} lead;

static lead lead_of(uint8_t b) {
    if (b < 0xc2 || b > 0xf4) return (lead){1, 0, 0};
    if (b < 0xe0) return (lead){2, 0x80, 0xbf};
    if (b == 0xe0) return (lead){3, 0xa0, 0xbf};
    if (b == 0xed) return (lead){3, 0x80, 0x9f};
    if (b < 0xf0) return (lead){3, 0x80, 0xbf};
    if (b == 0xf0) return (lead){4, 0x90, 0xbf};
    if (b == 0xf4) return (lead){4, 0x80, 0x8f};
    return (lead){4, 0x80, 0xbf};
}

size_t lg_utf8_next(const char *s, size_t len_bytes, uint32_t *cp) {
    const uint8_t *u = (const uint8_t *)s;
    if (u[0] < 0x80) {
        *cp = u[0];
        return 1;
    }
    lead l = lead_of(u[0]);
    *cp = UINT32_MAX;
    if (l.len == 1 || len_bytes < 2 || u[1] < l.lo || u[1] > l.hi) return 1;
    uint32_t v = u[0] & (0x7fu >> l.len);
    v = v << 6 | (u[1] & 0x3fu);
    for (size_t i = 2; i < l.len; i++) {
        if (i >= len_bytes || (u[i] & 0xc0) != 0x80) return i;
        v = v << 6 | (u[i] & 0x3fu);
    }
    *cp = v;
    return l.len;
}

void lg_utf8_put(lg_buf *b, uint32_t cp) {
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) cp = 0xfffd;
    uint8_t u[4];
    size_t n;
    if (cp < 0x80) {
        u[0] = (uint8_t)cp;
        n = 1;
    } else if (cp < 0x800) {
        u[0] = (uint8_t)(0xc0 | cp >> 6);
        n = 2;
    } else if (cp < 0x10000) {
        u[0] = (uint8_t)(0xe0 | cp >> 12);
        n = 3;
    } else {
        u[0] = (uint8_t)(0xf0 | cp >> 18);
        n = 4;
    }
    for (size_t i = 1; i < n; i++) u[i] = (uint8_t)(0x80 | (cp >> 6 * (n - 1 - i) & 0x3f));
    lg_buf_put(b, u, n);
}

/* Bytes of the longest well-formed prefix. */
static size_t valid_prefix(const char *s, size_t len_bytes) {
    size_t i = 0;
    while (i < len_bytes) {
        if ((uint8_t)s[i] < 0x80) {
            i++;
            continue;
        }
        uint32_t cp;
        size_t n = lg_utf8_next(s + i, len_bytes - i, &cp);
        if (cp == UINT32_MAX) break;
        i += n;
    }
    return i;
}

bool lg_utf8_valid(const char *s, size_t len_bytes) {
    return valid_prefix(s, len_bytes) == len_bytes;
}

void lg_utf8_repair(lg_buf *b, const char *s, size_t len_bytes) {
    while (len_bytes) {
        size_t n = valid_prefix(s, len_bytes);
        lg_buf_put(b, s, n);
        s += n;
        len_bytes -= n;
        if (!len_bytes) break;
        uint32_t cp;
        n = lg_utf8_next(s, len_bytes, &cp);
        lg_utf8_put(b, 0xfffd);
        s += n;
        len_bytes -= n;
    }
}

size_t lg_utf8_whole(const char *s, size_t len_bytes) {
    for (size_t back = 1; back <= 3 && back <= len_bytes; back++) {
        const char *tail = s + len_bytes - back;
        if (((uint8_t)*tail & 0xc0) == 0x80)
            continue; /* a continuation byte: look further back */
        uint32_t cp;
        size_t n = lg_utf8_next(tail, back, &cp);
        bool open = cp == UINT32_MAX && n == back && lead_of((uint8_t)*tail).len > back;
        return open ? len_bytes - back : len_bytes;
    }
    return len_bytes;
}
