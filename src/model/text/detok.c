/* detok.c - ids to text as they come: see tokenizer.h.
 *
 * Bytes that may still become a character are held back; a special token that is left out does not end them, so that the
 * stream equals the decoding of all bytes at once.  Memory: none but the output. */
#include "model/text/tokenizer.h"

#include "base/utf8.h"

#include <string.h>

void lg_detok_init(lg_detok *d, const lg_tokenizer *tok, bool special) {
    *d = (lg_detok){.tok = tok, .special = special};
}

void lg_detok_put(lg_detok *d, uint32_t id, lg_buf *out) {
    const char *s;
    size_t len;
    bool added, special;
    if (!lg_tokenizer_piece(d->tok, id, &s, &len, &added, &special)) return;
    if (special && !d->special) return;
    size_t i = 0;
    while (d->n_held && i < len) {
        LG_ASSERT(d->n_held < sizeof d->held);
        d->held[d->n_held++] = (uint8_t)s[i++];
        size_t whole = lg_utf8_whole((const char *)d->held, d->n_held);
        lg_utf8_repair(out, (const char *)d->held, whole);
        d->n_held -= (uint32_t)whole;
        memmove(d->held, d->held + whole, d->n_held);
    }
    size_t whole = lg_utf8_whole(s + i, len - i);
    lg_utf8_repair(out, s + i, whole);
    for (i += whole; i < len; i++) {
        LG_ASSERT(d->n_held < sizeof d->held);
        d->held[d->n_held++] = (uint8_t)s[i];
    }
}

void lg_detok_finish(lg_detok *d, lg_buf *out) {
    lg_utf8_repair(out, (const char *)d->held, d->n_held);
    d->n_held = 0;
}
