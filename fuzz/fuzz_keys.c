/* fuzz_keys.c - any bytes as a keys file: what is accepted can be written and read again.
 *
 * Seeds: fuzz/corpus/keys */
#include "gateway/keys.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lg_keys *keys = NULL, *again = NULL;
    lg_err err = {0};
    lg_buf text = {0};
    if (lg_keys_parse((const char *)data, size, "keys", &keys, &err) != LG_OK) {
        LG_ASSERT(!keys && err.msg[0]);
        return 0;
    }
    for (const lg_key *k = lg_keys_first(keys); k; k = k->next) {
        LG_ASSERT(lg_keys_is_name(k->name, strlen(k->name)));
        lg_keys_put_line(k, &text);
    }
    LG_ASSERT(lg_keys_parse(lg_buf_str(&text), text.len_bytes, "again", &again, &err) == LG_OK);
    const lg_key *b = lg_keys_first(again);
    for (const lg_key *a = lg_keys_first(keys); a; a = a->next, b = b->next) {
        LG_ASSERT(b && strcmp(a->name, b->name) == 0 && a->role == b->role);
        LG_ASSERT(memcmp(a->hash, b->hash, sizeof a->hash) == 0);
        LG_ASSERT(memcmp(&a->limits, &b->limits, sizeof a->limits) == 0);
    }
    LG_ASSERT(!b);
    lg_keys_close(&keys);
    lg_keys_close(&again);
    lg_buf_fini(&text);
    return 0;
}
