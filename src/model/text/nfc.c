/* nfc.c - normalisation form C: see nfc.h.
 *
 * Text is cut before every character that can neither combine with nor be reordered against what stands before it; each
 * such segment is decomposed, its marks are ordered (counting sort when there are many), and composed again.  A segment
 * of one character without decomposition is copied. */
#include "model/text/nfc.h"

#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

#define SHORT_RUN 32 /* marks up to which insertion sort is used */

void lg_nfc_fini(lg_nfc *nfc) {
    lg_mem_free(nfc->cp);
    *nfc = (lg_nfc){0};
}

bool lg_nfc_trivial(const char *text, size_t len_bytes) {
    uint8_t most = 0;
    for (size_t i = 0; i < len_bytes; i++)
        most = (uint8_t)text[i] > most ? (uint8_t)text[i] : most;
    return most < 0xcc;
}

/* Room for `more` code points behind the segment. */
static bool reserve(lg_nfc *nfc, size_t more) {
    if (nfc->cap - nfc->n >= more) return true;
    size_t cap = nfc->cap ? nfc->cap : 64;
    while (cap - nfc->n < more) cap *= 2;
    int32_t *p = lg_mem_realloc(nfc->cp, cap * sizeof *p);
    if (!p) return false;
    nfc->cp = p;
    nfc->cap = cap;
    return true;
}

static uint8_t class_of(int32_t cp) {
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

/* True when cp, the first of a decomposition, can't interact with anything before it: no mark, no Hangul vowel or
 * final, none of the Kirat Rai vowel signs (the only letters that are second in a composition). */
static bool starts_segment(int32_t cp) {
    if (cp >= 0x1160 && cp <= 0x11ff) return false;
    if (cp >= 0x16d63 && cp <= 0x16d6a) return false;
    const utf8proc_property_t *p = utf8proc_get_property(cp);
    return p->combining_class == 0 && p->category != UTF8PROC_CATEGORY_MN &&
           p->category != UTF8PROC_CATEGORY_MC && p->category != UTF8PROC_CATEGORY_ME;
}

/* Order the marks cp[n] by combining class, keeping the order of equals.  tmp has room for n. */
static void sort_marks(int32_t *cp, size_t n, int32_t *tmp) {
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++) {
            int32_t c = cp[i];
            size_t k = i;
            for (; k > 0 && class_of(cp[k - 1]) > class_of(c); k--) cp[k] = cp[k - 1];
            cp[k] = c;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[class_of(cp[i]) + 1]++;
    for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++) tmp[start[class_of(cp[i])]++] = cp[i];
    memcpy(cp, tmp, n * sizeof *cp);
}

/* Order and compose the segment and append it. */
static lg_status flush(lg_nfc *nfc, lg_buf *out) {
    if (!reserve(nfc, nfc->n)) return LG_E_NOMEM;
    for (size_t i = 0; i < nfc->n; i++) {
        if (class_of(nfc->cp[i]) == 0) continue;
        size_t end = i + 1;
        while (end < nfc->n && class_of(nfc->cp[end]) != 0) end++;
        sort_marks(nfc->cp + i, end - i, nfc->cp + nfc->n);
        i = end - 1;
    }
    utf8proc_ssize_t n = utf8proc_normalize_utf32(nfc->cp, (utf8proc_ssize_t)nfc->n,
                                                  UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    LG_ASSERT(n >= 0);
    for (utf8proc_ssize_t i = 0; i < n; i++) lg_utf8_put(out, (uint32_t)nfc->cp[i]);
    nfc->n = 0;
    return out->failed ? LG_E_NOMEM : LG_OK;
}

lg_status lg_nfc_put(lg_nfc *nfc, const char *text, size_t len_bytes, lg_buf *out) {
    size_t copied = 0,
           begin = 0;  /* text up to `copied` is in out; the segment starts at `begin` */
    bool plain = true; /* the segment is a character that stays as it is, or empty */
    nfc->n = 0;
    for (size_t i = 0; i < len_bytes;) {
        uint32_t cp;
        size_t len = lg_utf8_next(text + i, len_bytes - i, &cp);
        if (!reserve(nfc, 8)) return LG_E_NOMEM;
        int32_t *d = nfc->cp + nfc->n;
        utf8proc_ssize_t k = 1;
        d[0] = (int32_t)cp;
        if (cp >= 0xc0) {
            k = utf8proc_decompose_char((int32_t)cp, d, 8, UTF8PROC_STABLE | UTF8PROC_COMPOSE,
                                        NULL);
            LG_ASSERT(k >= 1 && k <= 8);
        }
        if (cp < 0x300 || starts_segment(d[0])) {
            int32_t first[8];
            memcpy(first, d, sizeof first);
            if (!plain) {
                lg_buf_put(out, text + copied, begin - copied);
                LG_TRY(flush(nfc, out));
                copied = i;
            }
            memcpy(nfc->cp, first, sizeof first);
            nfc->n = (size_t)k;
            begin = i;
            plain = cp < 0x300 || (k == 1 && first[0] == (int32_t)cp);
        } else {
            nfc->n += (size_t)k;
            plain = false;
        }
        i += len;
    }
    if (!plain) {
        lg_buf_put(out, text + copied, begin - copied);
        LG_TRY(flush(nfc, out));
        copied = len_bytes;
    }
    lg_buf_put(out, text + copied, len_bytes - copied);
    return out->failed ? LG_E_NOMEM : LG_OK;
}
