/* config.h - what config.json and generation_config.json, or the metadata of a GGUF file, say; checked.
 *
 * Fails closed: every field is understood, known to be harmless, or refused by name.  Test: tests/unit/test_config.c */
#ifndef LG_MODEL_CONFIG_H
#define LG_MODEL_CONFIG_H

#include "base/json.h"

#define LG_MAX_LAYER 256
#define LG_MAX_EOS   8

typedef enum { LG_LAYER_GDN, LG_LAYER_ATTN } lg_layer_kind;

/* quantization_config.quant_method; beyond LG_QUANT_FP8 see quant.h. */
typedef enum {
    LG_QUANT_NONE,
    LG_QUANT_FP8, /* e4m3, 128 x 128 blocks */
    LG_QUANT_GPTQ,
    LG_QUANT_AWQ,
    LG_QUANT_CT, /* compressed-tensors */
    LG_QUANT_MODELOPT,
    LG_QUANT_MXFP4
} lg_quant_method;

typedef struct lg_config {
    char model_type
        [32];    /* "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_text"; of GGUF files
                            "qwen35moe", "qwen35" */
    bool gguf;   /* tensors have GGUF's names and transforms */
    bool nested; /* tensors are named model.language_model.*, not model.* */
    uint32_t n_vocab; /* rows of embedding and head */
    uint32_t n_embd;  /* H, hidden size */
    uint32_t n_layer;
    uint8_t layer[LG_MAX_LAYER]; /* lg_layer_kind of each */
    uint32_t n_ctx_max;          /* max_position_embeddings */
    float eps;                   /* rms_norm_eps */
    bool tied;                   /* head = embedding */
    /* attention */
    uint32_t n_head, n_kv_head, d_head;
    uint32_t n_rot; /* rotated dims = partial_rotary_factor * d_head */
    double rope_theta;
    /* GDN */
    uint32_t n_k_head, n_v_head, d_k, d_v;
    bool v_head_tiled; /* order of the value heads: lg_config_v_head */
    /* MLP: dense when n_expert == 0 */
    uint32_t n_ff; /* dense intermediate size */
    uint32_t n_expert, n_expert_tok, n_ff_expert, n_ff_shared;
    uint32_t n_mtp_layer; /* draft layers in the file */
    lg_quant_method quant;
    /* generation defaults (generation_config.json; without the file: greedy, eos of config.json) */
    uint32_t n_eos, eos[LG_MAX_EOS];
    bool do_sample;
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
} lg_config;

static inline uint32_t lg_config_conv_dim(const lg_config *c) {
    return 2 * c->n_k_head * c->d_k + c->n_v_head * c->d_v;
}

/* Value head j (< n_v_head / n_k_head) of key head g, as the weights are ordered: grouped as published, or tiled as GGUF
 * files have them (value head h uses key head h % n_k_head). */
static inline uint32_t lg_config_v_head(const lg_config *c, uint32_t g, uint32_t j) {
    return c->v_head_tiled ? j * c->n_k_head + g : g * (c->n_v_head / c->n_k_head) + j;
}

/* The key head that value head h uses. */
static inline uint32_t lg_config_k_head(const lg_config *c, uint32_t h) {
    return c->v_head_tiled ? h % c->n_k_head : h / (c->n_v_head / c->n_k_head);
}

/* Read and check PATH/config.json and, if it exists, PATH/generation_config.json; or the metadata of PATH when
 * it is a GGUF file.
 * Returns LG_OK; LG_E_IO; LG_E_FORMAT (a value is malformed, out of range or contradicts another); LG_E_UNSUPPORTED (well
 * formed, but a value we do not implement).  err names file and field, found and expected. */
lg_status lg_config_load(lg_config *c, const char *path, lg_err *err);

/* The same from the text of config.json; `what` names it in messages.  Generation defaults are those of a missing
 * generation_config.json. */
lg_status lg_config_parse(lg_config *c, const char *text, size_t len_bytes, const char *what,
                          lg_err *err);

/* Add the text of generation_config.json to a config read before. */
lg_status lg_config_parse_generation(lg_config *c, const char *text, size_t len_bytes,
                                     const char *what, lg_err *err);

#endif
