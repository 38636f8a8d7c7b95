/* nfc.h - Unicode normalisation form C in linear time.
 *
 * The data is utf8proc's; its own normaliser orders combining marks in quadratic time, which a text of marks alone would
 * turn against us.  The package `tokenizers` orders marks younger than Unicode 9 by tables that don't know them: texts with
 * two such marks out of order are the one place where its ids differ.  Thread: any, one lg_nfc each.  Test: tests/unit/test_tokenizer.c */
#ifndef LG_MODEL_TEXT_NFC_H
#define LG_MODEL_TEXT_NFC_H

#include "base/buf.h"

/* Scratch of the normaliser.  Caller's storage, = {0}. */
typedef struct lg_nfc {
    int32_t *cp; /* owned: one segment, decomposed */
    size_t n, cap;
} lg_nfc;

void lg_nfc_fini(lg_nfc *nfc);

/* True when text holds nothing that normalisation could change: all characters lie below U+0300. */
bool lg_nfc_trivial(const char *text, size_t len_bytes);

/* Append the normalised form of text, which is well-formed UTF-8.  LG_OK, LG_E_NOMEM. */
lg_status lg_nfc_put(lg_nfc *nfc, const char *text, size_t len_bytes, lg_buf *out);

#endif
