/* tokload.h - what a loaded tokenizer holds, and its loader.  Internal to the tokenizer's files. */
#ifndef LG_MODEL_TEXT_TOKLOAD_H
#define LG_MODEL_TEXT_TOKLOAD_H

#include "base/json.h"
#include "model/text/bpe.h"
#include "model/text/nfc.h"
#include "model/text/pretok.h"

struct lg_tokenizer {
    lg_bpe bpe;
    lg_pretok *pretok;
    bool nfc; /* normalise; else text is taken as it is */
    uint32_t
        *added; /* [first[256]] owned: ids of added tokens by first byte, the longest first */
    uint32_t first[257]; /* added[first[b]..first[b + 1]) start with byte b */
    /* Scratch of lg_tokenizer_encode. */
    lg_nfc norm;
    lg_buf text;     /* normalised text between two added tokens */
    lg_buf repaired; /* the whole text when it was not well-formed */
    struct lg_tokrun {
        size_t begin, end;
    } * run; /* owned: the stretches in which added tokens are matched */
    size_t n_run, cap_run;
};

/* Fill *tok, which is zeroed, from the parsed file; `what` names it in messages.  Every field is checked: what is not
 * understood is LG_E_UNSUPPORTED, what is inconsistent LG_E_FORMAT; LG_E_NOMEM.  *tok stays the caller's. */
lg_status lg_tokload_build(lg_tokenizer *tok, const lg_json *root, const char *what,
                           lg_err *err);

#endif
