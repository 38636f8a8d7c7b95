/* fuzz_config.c - any text as config.json, and what follows a NUL as generation_config.json.
 *
 * What is accepted must keep the promises of config.h.  Seeds: fuzz/corpus/config */
#include "model/config.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_refusal(lg_status st, const lg_err *err, const char *what) {
    LG_ASSERT(st == LG_E_FORMAT || st == LG_E_UNSUPPORTED);
    LG_ASSERT(err->code == st && strncmp(err->msg, what, strlen(what)) == 0);
}

static void check_promises(const lg_config *c) {
    LG_ASSERT(c->n_layer >= 1 && c->n_layer <= LG_MAX_LAYER);
    LG_ASSERT(c->n_vocab >= 1 && c->n_embd >= 1 && c->d_head >= 1 && c->n_ctx_max >= 1);
    LG_ASSERT(c->n_kv_head >= 1 && c->n_head % c->n_kv_head == 0);
    LG_ASSERT(c->n_k_head >= 1 && c->n_v_head % c->n_k_head == 0);
    LG_ASSERT(c->n_rot >= 2 && c->n_rot % 2 == 0 && c->n_rot <= c->d_head);
    LG_ASSERT(c->n_expert_tok <= c->n_expert);
    LG_ASSERT((c->n_expert == 0) == (c->n_ff != 0));
    LG_ASSERT(lg_config_conv_dim(c) >= 3 && lg_config_conv_dim(c) <= 1u << 24);
    LG_ASSERT(c->eps > 0 && c->rope_theta >= 1);
    LG_ASSERT(c->n_eos <= LG_MAX_EOS);
    for (uint32_t i = 0; i < c->n_eos; i++) LG_ASSERT(c->eos[i] < c->n_vocab);
    LG_ASSERT(c->temperature >= 0 && c->top_p > 0 && c->top_p <= 1);
    LG_ASSERT(c->min_p >= 0 && c->min_p <= 1 && c->repetition_penalty > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lg_config c;
    lg_err err = {0};
    const char *text = (const char *)data;
    size_t n = strnlen(text, size);
    lg_status st = lg_config_parse(&c, text, n, "config", &err);
    if (st != LG_OK) {
        check_refusal(st, &err, "config: ");
        return 0;
    }
    check_promises(&c);
    if (n == size) return 0;
    st = lg_config_parse_generation(&c, text + n + 1, size - n - 1, "gen", &err);
    if (st != LG_OK)
        check_refusal(st, &err, "gen: ");
    else
        check_promises(&c);
    return 0;
}
