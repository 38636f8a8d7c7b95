/* fuzz_gguf.c - any bytes as a GGUF file: tables, then metadata as a configuration, then as a tokenizer.
 *
 * What is refused must say so with a message that starts with the file's name; what loads must lie inside the file, and a
 * tokenizer must encode a text to known ids.  Seeds: fuzz/corpus/gguf */
#include "model/file/gguf_config.h"
#include "model/file/gguf_tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] =
    "Hello  e\xcc\x81\n\xff<e>f<|im_end|> 12 abcabc aaaa\xe4\xbd\xa0\xcc\xa3";

static void check_status(lg_status st, const lg_err *err) {
    LG_ASSERT(st == LG_OK || st == LG_E_FORMAT || st == LG_E_UNSUPPORTED);
    LG_ASSERT(st == LG_OK || (err->code == st && strncmp(err->msg, "fuzz: ", 6) == 0));
}

static void check_tables(lg_gguf *g, const uint8_t *data, size_t size) {
    lg_tensors *set = lg_gguf_tensors(g);
    for (size_t i = 0; i < lg_tensors_count(set); i++) {
        const lg_view *v = lg_tensors_at(set, i);
        LG_ASSERT(v->data >= data && v->len_bytes <= (size_t)(data + size - v->data));
        LG_ASSERT(lg_tensors_find(set, v->name) == v);
    }
    for (size_t i = 0; i < lg_gguf_count(g); i++) {
        const lg_gguf_value *v = lg_gguf_at(g, i);
        const char *s;
        char shown[40];
        size_t at = 0, len;
        LG_ASSERT(v->data >= data && v->len_bytes <= (size_t)(data + size - v->data));
        LG_ASSERT(lg_gguf_find(g, v->key) == v);
        LG_ASSERT(strlen(lg_gguf_show(v, shown, sizeof shown)) > 0);
        while (lg_gguf_next(v, &at, &s, &len))
            LG_ASSERT((const uint8_t *)s + len <= data + size);
        LG_ASSERT(v->type != LG_GGUF_STR || at == v->len_bytes);
    }
}

static void check_config(const lg_gguf *g) {
    lg_config c;
    lg_err err = {0};
    lg_status st = lg_gguf_config_read(&c, g, &err);
    check_status(st, &err);
    if (st != LG_OK) return;
    LG_ASSERT(c.n_layer >= 1 && c.n_layer + c.n_mtp_layer <= LG_MAX_LAYER);
    LG_ASSERT(c.n_v_head % c.n_k_head == 0 && c.n_head % c.n_kv_head == 0);
    LG_ASSERT(c.n_rot <= c.d_head && c.n_eos <= LG_MAX_EOS && c.d_v > 0);
    for (uint32_t i = 0; i < c.n_eos; i++) LG_ASSERT(c.eos[i] < c.n_vocab);
}

static void check_tokenizer(const lg_gguf *g) {
    lg_tokenizer *tok = lg_mem_alloc(sizeof *tok);
    lg_err err = {0};
    if (!tok) return;
    lg_status st = lg_gguf_tokenizer_build(tok, g, &err);
    check_status(st, &err);
    if (st == LG_OK) {
        lg_ids ids = {0};
        LG_ASSERT(lg_tokenizer_encode(tok, text, sizeof text - 1, NULL, 0, true, &ids, &err) ==
                  LG_OK);
        for (size_t i = 0; i < ids.n; i++) LG_ASSERT(ids.id[i] < lg_tokenizer_n_id(tok));
        lg_ids_fini(&ids);
    }
    lg_tokenizer_close(&tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lg_gguf *g = NULL;
    lg_err err = {0};
    lg_status st = lg_gguf_parse(data, size, "fuzz", &g, &err);
    check_status(st, &err);
    if (st == LG_OK) {
        check_tables(g, data, size);
        check_config(g);
        check_tokenizer(g);
    }
    lg_gguf_close(&g);
    LG_ASSERT(lg_mem_alive() == 0);
    return 0;
}
