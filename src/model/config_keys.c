/* config_keys.c - every key that config.json and generation_config.json may hold, and what is allowed there.
 *
 * In:  one JSON object and the place it stands at.   Out: LG_OK, or an error that names the key.
 * A key is read by config.c, is fixed to the values that this program computes, or is known to leave the text model's
 * numbers alone.  Any other key is refused: it could change the mathematics.
 * Thread: any.  Memory: none.  Test: tests/unit/test_config.c, fuzz/fuzz_config.c */
#include "model/config_read.h"

#include <stdio.h>
#include <string.h>

#define MAX_KEYS 512 /* members of one object: keeps the duplicate check cheap */

#define FILE_ LG_CONFIG_FILE
#define NEST  LG_CONFIG_NEST
#define TEXT  LG_CONFIG_TEXT
#define MOE   LG_CONFIG_MOE
#define DENSE LG_CONFIG_DENSE
#define ROPE  LG_CONFIG_ROPE
#define QUANT LG_CONFIG_QUANT
#define GEN   LG_CONFIG_GEN
#define GPTQ  LG_CONFIG_GPTQ
#define DYN   LG_CONFIG_DYNAMIC
#define AWQ   LG_CONFIG_AWQ
#define CT    LG_CONFIG_CT
#define CTG   LG_CONFIG_CT_GROUP
#define ARGS  LG_CONFIG_CT_ARGS
#define OPT   LG_CONFIG_MODELOPT
#define MX    LG_CONFIG_MXFP4

/* `only` lists the values that are understood, separated by '|', as found_text below writes them.  Without it the key is
 * read by config.c (READ) or changes nothing that is computed here (FREE). */
typedef enum { READ, FREE, ONLY } rule_kind;

typedef struct rule {
    const char *key;
    unsigned place;
    rule_kind kind;
    const char *only;
} rule;

static const rule rules[] = {
    /* the file as a whole */
    {"architectures", FILE_ | TEXT, FREE, NULL},
    {"transformers_version", FILE_ | TEXT | GEN, FREE, NULL},
    {"_name_or_path", FILE_ | TEXT, FREE, NULL},
    {"name_or_path", FILE_ | TEXT, FREE, NULL},
    {"model_name", FILE_ | TEXT, FREE, NULL},
    {"unsloth_fixed", FILE_ | TEXT, FREE, NULL},
    {"unsloth_fixed_mtp", FILE_ | TEXT, FREE, NULL},
    {"unsloth_version", FILE_ | TEXT, FREE, NULL},
    {"language_model_only", FILE_ | TEXT, FREE, NULL},
    {"auto_map", FILE_ | TEXT, ONLY, "null"},
    {"model_type", FILE_ | TEXT, READ, NULL},
    {"quantization_config", FILE_ | TEXT, READ, NULL},
    {"dtype", FILE_ | TEXT, ONLY, "bfloat16|float16|float32|auto|null"},
    {"torch_dtype", FILE_ | TEXT, ONLY, "bfloat16|float16|float32|auto|null"},
    {"tie_word_embeddings", FILE_ | TEXT, READ, NULL},
    {"bos_token_id", FILE_ | TEXT | GEN, FREE, NULL},
    {"pad_token_id", FILE_ | TEXT | GEN, FREE, NULL},
    {"eos_token_id", FILE_ | TEXT | GEN, READ, NULL},
    {"use_cache", FILE_ | TEXT | GEN, FREE, NULL},
    {"return_dict", FILE_ | TEXT, FREE, NULL},
    {"output_attentions", FILE_ | TEXT | GEN, FREE, NULL},
    {"output_hidden_states", FILE_ | TEXT | GEN, FREE, NULL},
    {"_attn_implementation", FILE_ | TEXT, FREE, NULL},
    {"_attn_implementation_autoset", FILE_ | TEXT, FREE, NULL},
    {"attn_implementation", FILE_ | TEXT, FREE, NULL},
    {"chunk_size_feed_forward", FILE_ | TEXT, FREE, NULL},
    {"id2label", FILE_ | TEXT, FREE, NULL},
    {"label2id", FILE_ | TEXT, FREE, NULL},
    {"problem_type", FILE_ | TEXT, FREE, NULL},
    {"tokenizer_class", FILE_ | TEXT, FREE, NULL},
    {"initializer_range", FILE_ | TEXT, FREE, NULL},
    {"is_encoder_decoder", FILE_ | TEXT, ONLY, "false"},
    {"is_decoder", FILE_ | TEXT, FREE, NULL},
    {"add_cross_attention", FILE_ | TEXT, ONLY, "false"},
    {"cross_attention_hidden_size", FILE_ | TEXT, ONLY, "null"},
    {"pruned_heads", FILE_ | TEXT, ONLY, "{}|null"},
    /* around the text model */
    {"text_config", NEST, READ, NULL},
    {"vision_config", NEST, FREE, NULL},
    {"image_token_id", NEST, FREE, NULL},
    {"video_token_id", NEST, FREE, NULL},
    {"vision_start_token_id", NEST, FREE, NULL},
    {"vision_end_token_id", NEST, FREE, NULL},
    /* the text model */
    {"vocab_size", TEXT, READ, NULL},
    {"hidden_size", TEXT, READ, NULL},
    {"num_hidden_layers", TEXT, READ, NULL},
    {"layer_types", TEXT, READ, NULL},
    {"full_attention_interval", TEXT, READ, NULL},
    {"max_position_embeddings", TEXT, READ, NULL},
    {"rms_norm_eps", TEXT, READ, NULL},
    {"num_attention_heads", TEXT, READ, NULL},
    {"num_key_value_heads", TEXT, READ, NULL},
    {"head_dim", TEXT, READ, NULL},
    {"partial_rotary_factor", TEXT, READ, NULL},
    {"rope_theta", TEXT, READ, NULL},
    {"rope_parameters", TEXT, READ, NULL},
    {"rope_scaling", TEXT, READ, NULL},
    {"linear_num_key_heads", TEXT, READ, NULL},
    {"linear_num_value_heads", TEXT, READ, NULL},
    {"linear_key_head_dim", TEXT, READ, NULL},
    {"linear_value_head_dim", TEXT, READ, NULL},
    {"mtp_num_hidden_layers", TEXT, READ, NULL},
    {"intermediate_size", DENSE, READ, NULL},
    {"num_experts", MOE, READ, NULL},
    {"num_experts_per_tok", MOE, READ, NULL},
    {"moe_intermediate_size", MOE, READ, NULL},
    {"shared_expert_intermediate_size", MOE, READ, NULL},
    {"intermediate_size", MOE, FREE, NULL}, /* of dense layers, and mlp_only_layers is empty */
    {"mlp_only_layers", MOE | DENSE, ONLY, "[]|null"},
    {"decoder_sparse_step", MOE, ONLY, "1"},
    {"norm_topk_prob", MOE, ONLY, "true"},
    {"output_router_logits", MOE | DENSE, FREE, NULL},
    {"router_aux_loss_coef", MOE | DENSE, FREE, NULL},
    {"attention_bias", TEXT, ONLY, "false"},
    {"attention_dropout", TEXT, FREE, NULL},
    {"attn_output_gate", TEXT, ONLY, "true"},
    {"output_gate_type", TEXT, ONLY, "swish|silu|null"}, /* of the GDN output norm */
    {"hidden_act", TEXT, ONLY, "silu|swish"},
    {"linear_conv_kernel_dim", TEXT, ONLY, "4"},
    {"mamba_ssm_dtype", TEXT, ONLY, "float32|bfloat16|float16|null"}, /* always float here */
    {"mtp_use_dedicated_embeddings", TEXT, ONLY, "false|null"},
    {"use_sliding_window", TEXT, ONLY, "false|null"},
    {"sliding_window", TEXT, ONLY, "null"},
    {"max_window_layers", TEXT, FREE, NULL}, /* means something with use_sliding_window only */
    /* rope_parameters, rope_scaling */
    {"rope_type", ROPE, ONLY, "default"},
    {"type", ROPE, ONLY, "default"},
    {"rope_theta", ROPE, READ, NULL},
    {"partial_rotary_factor", ROPE, READ, NULL},
    {"mrope_section", ROPE, READ, NULL},
    {"mrope_interleaved", ROPE, ONLY,
     "true|false"}, /* the same for text, whose axes are equal */
    /* quantization_config */
    {"quant_method", QUANT, ONLY, "fp8"},
    {"fmt", QUANT, ONLY, "e4m3"},
    {"weight_block_size", QUANT, READ, NULL},
    {"activation_scheme", QUANT, ONLY, "dynamic"}, /* activations stay float here */
    {"modules_to_not_convert", QUANT, FREE,
     NULL}, /* weight_scale_inv decides, tensor by tensor */
    {"ignored_layers", QUANT, FREE, NULL},
    /* quantization_config: GPTQ and AWQ; how the numbers were found does not matter any more */
    {"quant_method", GPTQ | AWQ | CT | OPT | MX, READ, NULL},
    {"method", GPTQ, ONLY, "gptq"},
    {"method", AWQ, ONLY, "awq"},
    {"bits", GPTQ | DYN | AWQ, READ, NULL},
    {"group_size", GPTQ | DYN | AWQ | ARGS | OPT, READ, NULL},
    {"sym", GPTQ | DYN, READ, NULL},
    {"desc_act", GPTQ | DYN, READ, NULL},
    {"dynamic", GPTQ, READ, NULL},
    {"checkpoint_format", GPTQ, READ, NULL},
    {"format", GPTQ, READ, NULL},
    {"pack_dtype", GPTQ | AWQ, ONLY, "int32|null"},
    {"is_marlin_format", GPTQ, ONLY, "false|null"},
    {"adapter", GPTQ | AWQ, ONLY, "null"},
    {"rotation", GPTQ | AWQ, ONLY, "null"},
    {"lm_head", GPTQ | AWQ, FREE, NULL}, /* the tensors say it */
    {"damp_percent", GPTQ | DYN, FREE, NULL},
    {"damp_auto_increment", GPTQ | DYN, FREE, NULL},
    {"static_groups", GPTQ | DYN, FREE, NULL},
    {"true_sequential", GPTQ, FREE, NULL},
    {"act_group_aware", GPTQ | DYN, FREE, NULL},
    {"hyb_act", GPTQ | DYN, FREE, NULL},
    {"mse", GPTQ | DYN, FREE, NULL},
    {"gptaq", GPTQ, FREE, NULL},
    {"foem", GPTQ, FREE, NULL},
    {"meta", GPTQ | AWQ, FREE, NULL},
    {"uri", GPTQ | AWQ, FREE, NULL},
    {"model_name_or_path", GPTQ | AWQ, FREE, NULL},
    {"model_file_base_name", GPTQ, FREE, NULL},
    {"modules_in_block_to_quantize", GPTQ, FREE, NULL},
    {"block_name_to_quantize", GPTQ, FREE, NULL},
    {"module_name_preceding_first_block", GPTQ, FREE, NULL},
    {"batch_size", GPTQ, FREE, NULL},
    {"tokenizer", GPTQ, FREE, NULL},
    {"dataset", GPTQ, FREE, NULL},
    {"cache_block_outputs", GPTQ, FREE, NULL},
    {"model_seqlen", GPTQ, FREE, NULL},
    {"pad_token_id", GPTQ, FREE, NULL},
    {"use_cuda_fp16", GPTQ, FREE, NULL},
    {"use_exllama", GPTQ, FREE, NULL},
    {"disable_exllama", GPTQ, FREE, NULL},
    {"max_input_length", GPTQ, FREE, NULL},
    {"exllama_config", GPTQ | AWQ, FREE, NULL},
    {"backend", GPTQ | AWQ, FREE, NULL},
    {"zero_point", AWQ, READ, NULL},
    {"version", AWQ, READ, NULL},
    {"modules_to_not_convert", AWQ | MX, READ, NULL},
    {"do_fuse", AWQ, FREE, NULL},
    {"fuse_max_seq_len", AWQ, FREE, NULL},
    {"modules_to_fuse", AWQ, FREE, NULL},
    /* compressed-tensors and modelopt; activations and the KV cache stay float here */
    {"config_groups", CT, READ, NULL},
    {"config_groups", OPT, FREE, NULL}, /* quant_algo says the same */
    {"format", CT | CTG, READ, NULL},
    {"ignore", CT | OPT, READ, NULL},
    {"exclude_modules", OPT, READ, NULL},
    {"quant_algo", OPT, READ, NULL},
    {"kv_cache_scheme", CT | OPT, FREE, NULL},
    {"kv_cache_quant_algo", OPT, FREE, NULL},
    {"producer", OPT, FREE, NULL},
    {"quantization_status", CT, ONLY, "compressed|frozen|null"},
    {"global_compression_ratio", CT, FREE, NULL},
    {"version", CT, FREE, NULL},
    {"sparsity_config", CT, ONLY, "{}|null"},
    {"moe_sparsity_config", CT, ONLY, "{}|null"},
    {"transform_config", CT, ONLY, "{}|null"},
    {"targets", CTG, READ, NULL},
    {"weights", CTG, READ, NULL},
    {"input_activations", CTG, FREE, NULL},
    {"output_activations", CTG, FREE, NULL},
    {"num_bits", ARGS, READ, NULL},
    {"type", ARGS, READ, NULL},
    {"symmetric", ARGS, READ, NULL},
    {"strategy", ARGS, READ, NULL},
    {"block_structure", ARGS, READ, NULL},
    {"actorder", ARGS, READ, NULL},
    {"dynamic", ARGS, ONLY, "false|null"},
    {"observer", ARGS, FREE, NULL},
    {"observer_kwargs", ARGS, FREE, NULL},
    {"scale_dtype", ARGS, FREE, NULL}, /* the tensors say it */
    {"zp_dtype", ARGS, FREE, NULL},
    /* generation_config.json */
    {"do_sample", GEN, READ, NULL},
    {"temperature", GEN, READ, NULL},
    {"top_p", GEN, READ, NULL},
    {"top_k", GEN, READ, NULL},
    {"min_p", GEN, READ, NULL},
    {"repetition_penalty", GEN, READ, NULL},
    {"_from_model_config", GEN, FREE, NULL},
    {"max_length", GEN, FREE, NULL}, /* limits belong to the request */
    {"max_new_tokens", GEN, FREE, NULL},
    {"min_length", GEN, ONLY, "0|null"},
    {"min_new_tokens", GEN, ONLY, "0|null"},
    {"cache_implementation", GEN, FREE, NULL},
    {"return_dict_in_generate", GEN, FREE, NULL},
    {"output_scores", GEN, FREE, NULL},
    {"output_logits", GEN, FREE, NULL},
    {"trust_remote_code", GEN, FREE, NULL},
    {"chat_format", GEN, FREE, NULL},
    {"num_return_sequences", GEN, ONLY, "1"},
    {"num_beams", GEN, ONLY, "1"},
    {"num_beam_groups", GEN, ONLY, "1"},
    {"length_penalty", GEN, FREE, NULL}, /* of beams */
    {"early_stopping", GEN, FREE, NULL},
    {"typical_p", GEN, ONLY, "1.0|1|null"},
    {"epsilon_cutoff", GEN, ONLY, "0.0|0|null"},
    {"eta_cutoff", GEN, ONLY, "0.0|0|null"},
    {"diversity_penalty", GEN, ONLY, "0.0|0|null"},
    {"no_repeat_ngram_size", GEN, ONLY, "0|null"},
    {"presence_penalty", GEN, ONLY, "0.0|0|null"},
    {"frequency_penalty", GEN, ONLY, "0.0|0|null"},
    {"penalty_alpha", GEN, ONLY, "0.0|0|null"},
};

const char *lg_config_show(const lg_json *v, char *buf, size_t size_bytes) {
    if (!v) {
        snprintf(buf, size_bytes, "nothing");
        return buf;
    }
    switch (v->kind) {
    case LG_JSON_NULL: snprintf(buf, size_bytes, "null"); break;
    case LG_JSON_FALSE: snprintf(buf, size_bytes, "false"); break;
    case LG_JSON_TRUE: snprintf(buf, size_bytes, "true"); break;
    case LG_JSON_NUMBER: snprintf(buf, size_bytes, "%.40s", v->text); break;
    case LG_JSON_STRING: snprintf(buf, size_bytes, "%.60s", v->text); break;
    case LG_JSON_ARRAY: snprintf(buf, size_bytes, v->n_child ? "an array" : "[]"); break;
    case LG_JSON_OBJECT: snprintf(buf, size_bytes, v->n_child ? "an object" : "{}"); break;
    }
    for (char *p = buf; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    return buf;
}

/* True when v is one of the '|'-separated words of `only`.  A string never stands for a literal: "false" is not false. */
static bool is_listed(const char *only, const lg_json *v) {
    static const char *const literal[] = {"null", "true", "false", "[]", "{}"};
    char found[80];
    size_t n = strlen(lg_config_show(v, found, sizeof found));
    bool is_literal = found[0] >= '0' && found[0] <= '9';
    for (size_t i = 0; i < LG_COUNT(literal); i++)
        is_literal = is_literal || strcmp(found, literal[i]) == 0;
    if (is_literal == (v->kind == LG_JSON_STRING)) return false;
    if (v->kind == LG_JSON_STRING && n != v->text_len) return false;
    for (const char *p = only; p; p = strchr(p, '|')) {
        if (*p == '|') p++;
        if (strncmp(p, found, n) == 0 && (p[n] == '|' || p[n] == '\0')) return true;
    }
    return false;
}

static const rule *find_rule(const char *key, size_t len, unsigned place) {
    for (size_t i = 0; i < LG_COUNT(rules); i++)
        if ((rules[i].place & place) && strlen(rules[i].key) == len &&
            memcmp(rules[i].key, key, len) == 0)
            return &rules[i];
    return NULL;
}

/* One member against its rule. */
static lg_status check_member(const lg_config_place *at, const lg_json *v) {
    char key[64], found[80];
    lg_json name = {.kind = LG_JSON_STRING, .text = v->key};
    lg_config_show(&name, key, sizeof key);
    const rule *r = find_rule(v->key, v->key_len, at->place);
    if (!r)
        return LG_FAIL(at->err, LG_E_UNSUPPORTED,
                       "%s: %s%s: not understood, and it could change what is computed",
                       at->what, at->prefix, key);
    if (r->kind == ONLY && !is_listed(r->only, v))
        return LG_FAIL(at->err, LG_E_UNSUPPORTED, "%s: %s%s: found %s, expected %s", at->what,
                       at->prefix, key, lg_config_show(v, found, sizeof found), r->only);
    return LG_OK;
}

lg_status lg_config_check_keys(const lg_config_place *at, const lg_json *obj) {
    if (obj->n_child > MAX_KEYS)
        return LG_FAIL(at->err, LG_E_FORMAT, "%s: %s: %u keys, at most %d expected", at->what,
                       at->prefix, obj->n_child, MAX_KEYS);
    for (const lg_json *v = obj->child; v; v = v->next) {
        LG_TRY(check_member(at, v));
        for (const lg_json *u = obj->child; u != v; u = u->next)
            if (u->key_len == v->key_len && memcmp(u->key, v->key, v->key_len) == 0)
                return LG_FAIL(at->err, LG_E_FORMAT, "%s: %s%s: given twice", at->what,
                               at->prefix, v->key);
    }
    return LG_OK;
}
