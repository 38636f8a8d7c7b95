/* fuzz_tokenizer.c - any bytes as tokenizer.json.
 *
 * What loads must encode a text to known ids and decode them to well-formed text.  Seeds: fuzz/corpus/tokenizer */
#include "base/utf8.h"
#include "model/text/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] =
    "Hello  e\xcc\x81\n\xff<e>f<|im_end|> 12 abcabc aaaa\xe4\xbd\xa0\xcc\xa3";

static void round_trip(lg_tokenizer *tok, bool control) {
    lg_ids ids = {0};
    lg_buf out = {0};
    lg_detok d;
    lg_err err = {0};
    lg_status st =
        lg_tokenizer_encode(tok, text, sizeof text - 1, NULL, 0, control, &ids, &err);
    LG_ASSERT(st == LG_OK || (st == LG_E_FORMAT && err.msg[0] && ids.n == 0));
    lg_detok_init(&d, tok, true);
    for (size_t i = 0; i < ids.n; i++) {
        const char *s;
        size_t len;
        bool added, special;
        LG_ASSERT(ids.id[i] < lg_tokenizer_n_id(tok));
        LG_ASSERT(lg_tokenizer_piece(tok, ids.id[i], &s, &len, &added, &special));
        lg_detok_put(&d, ids.id[i], &out);
    }
    lg_detok_finish(&d, &out);
    LG_ASSERT(lg_utf8_valid(lg_buf_str(&out), out.len_bytes));
    lg_ids_fini(&ids);
    lg_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lg_tokenizer *tok;
    lg_err err = {0};
    lg_status st = lg_tokenizer_parse((const char *)data, size, "fuzz", &tok, &err);
    if (st != LG_OK) {
        LG_ASSERT(!tok && err.code == st && strncmp(err.msg, "fuzz: ", 6) == 0);
        LG_ASSERT(st == LG_E_FORMAT || st == LG_E_UNSUPPORTED);
    } else {
        round_trip(tok, true);
        round_trip(tok, false);
    }
    lg_tokenizer_close(&tok);
    LG_ASSERT(lg_mem_alive() == 0);
    return 0;
}
