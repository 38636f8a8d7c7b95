/* test_loader.c - damaged and contradictory model folders: each one a clear error, none a crash, nothing leaked. */
#include "fixture.h"

#include "model/weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define DENSE "tests/data/models/tiny-dense"    /* flat, tied, one file */
#define R3    "tests/data/models/tiny-dense-r3" /* nested, dense, one file */
#define MOE   "tests/data/models/tiny-moe"      /* nested, fused experts, three files */
#define FP8   "tests/data/models/tiny-moe-fp8"  /* nested, one expert a tensor, one file */

#define CONFIG "config.json"
#define GEN    "generation_config.json"
#define ONE    "model.safetensors"
#define INDEX  "model.safetensors.index.json"
#define PART2  "model.safetensors-00002-of-00003.safetensors"
#define PART3  "model.safetensors-00003-of-00003.safetensors"
#define LM     "model.language_model."

/* Rows leave out what they do not need. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

typedef enum {
    WRITE,   /* file a holds text b */
    REMOVE,  /* no file a */
    DIR_,    /* a is a folder */
    REPLACE, /* in file a: b becomes c */
    HEADER,  /* in the header of file a: b becomes c */
    LENGTH,  /* the first 8 bytes of file a are the number b */
    CUT,     /* file a is cut to b bytes (negative: by) */
    GROW,    /* file a gets b more bytes */
    COPY,    /* file a becomes a copy of file b */
    DEEP,    /* file a is b opening brackets */
    DROP,    /* no tensor a */
    RENAME,  /* tensor a is called b */
    ADD,     /* tensor a of type b and shape c, zeros */
    POISON   /* tensor a ends in a NaN */
} op;

typedef struct damage {
    const char *model;
    struct {
        op op;
        const char *a, *b, *c;
    } edit[2]; /* the second one may be absent */
    lg_status want;
    const char *say[2]; /* parts of the message */
} damage;

/* clang-format off */
static const damage table[] = {
/* ---- files ---- */
{DENSE, {{REMOVE, CONFIG}}, LG_E_IO, {CONFIG}},
{DENSE, {{WRITE, CONFIG, ""}}, LG_E_FORMAT, {CONFIG}},
{DENSE, {{DIR_, CONFIG}}, LG_E_IO, {CONFIG, "not a regular file"}},
{DENSE, {{WRITE, CONFIG, "{"}}, LG_E_FORMAT, {CONFIG, "byte"}},
{DENSE, {{CUT, CONFIG, "600"}}, LG_E_FORMAT, {CONFIG, "byte"}},
{DENSE, {{WRITE, CONFIG, "[]"}}, LG_E_FORMAT, {CONFIG, "expected an object"}},
{DENSE, {{WRITE, CONFIG, "{\"model_type\": \"\xff\"}"}}, LG_E_FORMAT, {CONFIG, "byte"}},
{DENSE, {{WRITE, CONFIG, "{\"model_type\": \"qwen3_5_text\",}"}}, LG_E_FORMAT, {CONFIG, "byte"}},
{DENSE, {{DEEP, CONFIG, "100000"}}, LG_E_FORMAT, {CONFIG}},
{DENSE, {{REMOVE, ONE}}, LG_E_IO, {ONE, INDEX}},
{DENSE, {{WRITE, ONE, ""}}, LG_E_FORMAT, {ONE, "empty"}},
{DENSE, {{DIR_, ONE}}, LG_E_IO, {ONE, "not a regular file"}},
{DENSE, {{WRITE, ONE, "abc"}}, LG_E_FORMAT, {ONE, "3 bytes"}},
{DENSE, {{WRITE, ONE, "version https://git-lfs.github.com/spec/v1\n"}}, LG_E_FORMAT, {ONE, "header length"}},
{DENSE, {{CUT, ONE, "100"}}, LG_E_FORMAT, {ONE, "header length"}},
{DENSE, {{CUT, ONE, "8"}}, LG_E_FORMAT, {ONE, "header length"}},
{DENSE, {{LENGTH, ONE, "9223372036854775808"}}, LG_E_FORMAT, {ONE, "9223372036854775808"}},
{DENSE, {{LENGTH, ONE, "18446744073709551615"}}, LG_E_FORMAT, {ONE, "header length"}},
{DENSE, {{LENGTH, ONE, "18446744073709551608"}}, LG_E_FORMAT, {ONE, "header length"}},
{DENSE, {{LENGTH, ONE, "0"}}, LG_E_FORMAT, {ONE}},
{DENSE, {{LENGTH, ONE, "5799"}}, LG_E_FORMAT, {ONE}},
{DENSE, {{LENGTH, ONE, "5801"}}, LG_E_FORMAT, {ONE}},
{DENSE, {{CUT, ONE, "-1"}}, LG_E_FORMAT, {ONE, "model.norm.weight"}},
{DENSE, {{CUT, ONE, "-1000000"}}, LG_E_FORMAT, {ONE, "data_offsets"}},
{DENSE, {{GROW, ONE, "1"}}, LG_E_FORMAT, {ONE, "found 1660233 data bytes, expected 1660232"}},
/* ---- the header ---- */
{DENSE, {{HEADER, ONE, "{\"__meta", "[\"__meta"}}, LG_E_FORMAT, {ONE, "byte"}},
{DENSE, {{HEADER, ONE, "]}}  ", "]}  "}}, LG_E_FORMAT, {ONE, "byte"}},
{DENSE, {{HEADER, ONE, "[1659976,1660232]", "[1659975,1660231]"}}, LG_E_FORMAT, {"model.norm.weight", "overlap"}},
{DENSE, {{HEADER, ONE, "[272,288]", "[256,272]"}}, LG_E_FORMAT, {"layers.1.linear_attn.A_log", "overlap"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4],\"data_offsets\":[0,16]", "\"shape\":[3],\"data_offsets\":[0,12]"}}, LG_E_FORMAT, {"model.layers.0.linear_attn.norm.weight", "gap"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4],\"data_offsets\":[0,16]", "\"shape\":[3],\"data_offsets\":[4,16]"}}, LG_E_FORMAT, {"model.layers.0.linear_attn.A_log", "gap"}},
{DENSE, {{HEADER, ONE, "[272,288]", "[288,272]"}}, LG_E_FORMAT, {"layers.1.linear_attn.A_log", "data_offsets"}},
{DENSE, {{HEADER, ONE, "[1659976,1660232]", "[1659976,99999999]"}}, LG_E_FORMAT, {"model.norm.weight", "1660232 data bytes"}},
{DENSE, {{HEADER, ONE, "[1659976,1660232]", "[18446744073709551360,1660232]"}}, LG_E_FORMAT, {"model.norm.weight", "data_offsets"}},
{DENSE, {{HEADER, ONE, "[272,288]", "[-272,288]"}}, LG_E_FORMAT, {"layers.1.linear_attn.A_log", "two integers"}},
{DENSE, {{HEADER, ONE, "[272,288]", "[272.5,288]"}}, LG_E_FORMAT, {"layers.1.linear_attn.A_log", "two integers"}},
{DENSE, {{HEADER, ONE, "[272,288]", "[272,288,304]"}}, LG_E_FORMAT, {"layers.1.linear_attn.A_log", "two integers"}},
{DENSE, {{HEADER, ONE, "[272,288]", "\"272\""}}, LG_E_FORMAT, {"layers.1.linear_attn.A_log", "two integers"}},
{DENSE, {{HEADER, ONE, ",\"data_offsets\":[0,16]", ""}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "data_offsets"}},
{DENSE, {{HEADER, ONE, "[0,16]}", "[0,16],\"x\":1}"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "dtype, shape and data_offsets"}},
{DENSE, {{HEADER, ONE, "\"data_offsets\":[0,16]", "\"data_offset\":[0,16]"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "data_offsets"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4],", "\"shape\":[4294967296,4294967296,4294967296],"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "overflows"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4],", "\"shape\":[4611686018427387908],"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "overflows"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4],", "\"shape\":[5],"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "16 bytes, expected 20"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4],", "\"shape\":[-4],"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "shape"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4],", "\"shape\":4,"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "shape"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4],", "\"shape\":[1,1,1,1,1,1,1,1,4],"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "shape"}},
{DENSE, {{HEADER, ONE, "\"F32\"", "\"Q4_0\""}}, LG_E_UNSUPPORTED, {"layers.0.linear_attn.A_log", "dtype"}},
{DENSE, {{HEADER, ONE, "\"F32\"", "32"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "dtype"}},
{DENSE, {{HEADER, ONE, "\"F32\"", "\"I32\""}}, LG_E_UNSUPPORTED, {"layers.0.linear_attn.A_log", "found I32, expected BF16, F16 or F32"}},
{DENSE, {{HEADER, ONE, "\"F32\"", "\"F64\""}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "16 bytes, expected 32"}},
{DENSE, {{HEADER, ONE, "\"BF16\"", "\"U16\""}}, LG_E_UNSUPPORTED, {"model.embed_tokens.weight", "found U16"}},
{DENSE, {{HEADER, ONE, "layers.1.linear_attn.A_log", "layers.0.linear_attn.A_log"}}, LG_E_FORMAT, {"model.layers.0.linear_attn.A_log", "given twice"}},
{DENSE, {{HEADER, ONE, "{\"format\":\"pt\"}", "[\"pt\"]"}}, LG_E_FORMAT, {ONE, "__metadata__"}},
{DENSE, {{HEADER, ONE, "\"model.layers.0.linear_attn.A_log\"", "\"\""}}, LG_E_FORMAT, {ONE, "name"}},
{DENSE, {{HEADER, ONE, "layers.0.linear_attn.A_log", "layers\\u001b[0m"}}, LG_E_FORMAT, {ONE, "not printable"}},
{DENSE, {{HEADER, ONE, "layers.0.linear_attn.A_log", "layers\\u0000"}}, LG_E_FORMAT, {ONE, "not printable"}},
{DENSE, {{HEADER, ONE, "{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}", "[1,2,3]"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "expected an object"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4]", "\"shape\":[[[[[[[[[[4]]]]]]]]]]"}}, LG_E_FORMAT, {ONE}},
/* ---- the index ---- */
{MOE, {{WRITE, INDEX, "not json"}}, LG_E_FORMAT, {INDEX, "byte"}},
{MOE, {{WRITE, INDEX, "{}"}}, LG_E_FORMAT, {INDEX, "weight_map"}},
{MOE, {{WRITE, INDEX, "{\"weight_map\": {}}"}}, LG_E_FORMAT, {INDEX, "weight_map"}},
{MOE, {{WRITE, INDEX, "{\"weight_map\": []}"}}, LG_E_FORMAT, {INDEX, "weight_map"}},
{MOE, {{DIR_, INDEX}}, LG_E_IO, {INDEX, "not a regular file"}},
{MOE, {{REMOVE, INDEX}}, LG_E_IO, {"neither"}},
{MOE, {{COPY, ONE, PART2}}, LG_E_FORMAT, {ONE, INDEX}},
{MOE, {{REPLACE, INDEX, ": \"model.safetensors-00001", ": \"../model.safetensors-00001"}}, LG_E_FORMAT, {INDEX, "lm_head.weight"}},
{MOE, {{REPLACE, INDEX, ": \"model.safetensors-00001", ": \"/etc/model.safetensors-00001"}}, LG_E_FORMAT, {INDEX, "in this folder"}},
{MOE, {{REPLACE, INDEX, ": \"model.safetensors-00001", ": \"sub/model.safetensors-00001"}}, LG_E_FORMAT, {INDEX, "in this folder"}},
{MOE, {{REPLACE, INDEX, "\"model.safetensors-00001-of-00003.safetensors\"", "\"..\""}}, LG_E_FORMAT, {INDEX, "in this folder"}},
{MOE, {{REPLACE, INDEX, "\"model.safetensors-00001-of-00003.safetensors\"", "1"}}, LG_E_FORMAT, {INDEX, "in this folder"}},
{MOE, {{REPLACE, INDEX, "\"model.safetensors-00001-of-00003.safetensors\"", "\"a\\u0000b\""}}, LG_E_FORMAT, {INDEX, "in this folder"}},
{MOE, {{REPLACE, INDEX, "-00001-of-00003", "-00004-of-00003"}}, LG_E_IO, {"-00004-of-00003"}},
{MOE, {{REPLACE, INDEX, "-00001-of-00003", "-00002-of-00003"}}, LG_E_FORMAT, {INDEX, "lm_head.weight"}},
{MOE, {{REPLACE, INDEX, "\"lm_head.weight\"", "\"lm_head.wait\""}}, LG_E_FORMAT, {INDEX, "lm_head.wait"}},
{MOE, {{REPLACE, INDEX, "\"lm_head.weight\": \"model.safetensors-00001-of-00003.safetensors\",", ""}}, LG_E_FORMAT, {"lm_head.weight", "not in the weight_map"}},
{MOE, {{REPLACE, INDEX, "\"lm_head.weight\": ", "\"lm_head.weight\": \"model.safetensors-00001-of-00003.safetensors\", \"lm_head.weight\": "}}, LG_E_FORMAT, {INDEX, "given twice"}},
{MOE, {{REMOVE, PART2}}, LG_E_IO, {PART2}},
{MOE, {{DIR_, PART2}}, LG_E_IO, {PART2, "not a regular file"}},
{MOE, {{WRITE, PART2, ""}}, LG_E_FORMAT, {PART2, "empty"}},
{MOE, {{CUT, PART2, "-2"}}, LG_E_FORMAT, {PART2, "data_offsets"}},
{MOE, {{COPY, PART3, PART2}}, LG_E_FORMAT, {"given twice"}},
/* ---- config.json: what is not understood ---- */
{DENSE, {{REPLACE, CONFIG, "\"qwen3_5_text\"", "\"llama\""}}, LG_E_UNSUPPORTED, {"model_type", "llama"}},
{DENSE, {{REPLACE, CONFIG, "\"model_type\": \"qwen3_5_text\",", ""}}, LG_E_UNSUPPORTED, {"model_type", "nothing"}},
{DENSE, {{REPLACE, CONFIG, "\"use_cache\": true", "\"attn_temperature\": 2"}}, LG_E_UNSUPPORTED, {"attn_temperature", "not understood"}},
{MOE, {{REPLACE, CONFIG, "\"use_cache\": true", "\"scoring_func\": \"sigmoid\""}}, LG_E_UNSUPPORTED, {"text_config.scoring_func", "not understood"}},
{MOE, {{REPLACE, CONFIG, "\"image_token_id\"", "\"logit_scale\""}}, LG_E_UNSUPPORTED, {"logit_scale", "not understood"}},
{DENSE, {{REPLACE, CONFIG, "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\""}}, LG_E_UNSUPPORTED, {"rope_parameters.rope_type", "yarn"}},
{DENSE, {{REPLACE, CONFIG, "\"rope_type\": \"default\"", "\"rope_type\": \"default\", \"factor\": 4.0"}}, LG_E_UNSUPPORTED, {"rope_parameters.factor", "not understood"}},
{DENSE, {{REPLACE, CONFIG, "\"linear_attention\"", "\"sliding_attention\""}}, LG_E_UNSUPPORTED, {"layer_types", "sliding_attention"}},
{DENSE, {{REPLACE, CONFIG, "\"silu\"", "\"gelu\""}}, LG_E_UNSUPPORTED, {"hidden_act", "gelu"}},
{DENSE, {{REPLACE, CONFIG, "\"attention_bias\": false", "\"attention_bias\": true"}}, LG_E_UNSUPPORTED, {"attention_bias", "true"}},
{DENSE, {{REPLACE, CONFIG, "\"attention_bias\": false", "\"attention_bias\": \"false\""}}, LG_E_UNSUPPORTED, {"attention_bias"}},
{DENSE, {{REPLACE, CONFIG, "\"attn_output_gate\": true", "\"attn_output_gate\": false"}}, LG_E_UNSUPPORTED, {"attn_output_gate"}},
{DENSE, {{REPLACE, CONFIG, "\"attn_output_gate\": true", "\"output_gate_type\": \"sigmoid\""}}, LG_E_UNSUPPORTED, {"output_gate_type", "sigmoid"}},
{DENSE, {{REPLACE, CONFIG, "\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 3"}}, LG_E_UNSUPPORTED, {"linear_conv_kernel_dim", "expected 4"}},
{DENSE, {{REPLACE, CONFIG, "\"dtype\": \"bfloat16\"", "\"dtype\": \"int4\""}}, LG_E_UNSUPPORTED, {"dtype", "int4"}},
{DENSE, {{REPLACE, CONFIG, "\"use_cache\": true", "\"sliding_window\": 4096"}}, LG_E_UNSUPPORTED, {"sliding_window", "4096"}},
{DENSE, {{REPLACE, CONFIG, "\"use_cache\": true", "\"num_experts\": 8"}}, LG_E_UNSUPPORTED, {"num_experts", "not understood"}},
{DENSE, {{REPLACE, CONFIG, "\"mtp_use_dedicated_embeddings\": false", "\"mtp_use_dedicated_embeddings\": true"}}, LG_E_UNSUPPORTED, {"mtp_use_dedicated_embeddings"}},
{MOE, {{REPLACE, CONFIG, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]"}}, LG_E_UNSUPPORTED, {"mlp_only_layers"}},
{MOE, {{REPLACE, CONFIG, "\"mlp_only_layers\": []", "\"norm_topk_prob\": false"}}, LG_E_UNSUPPORTED, {"norm_topk_prob"}},
{MOE, {{REPLACE, CONFIG, "\"qwen3_5_moe_text\"", "\"qwen3_5_text\""}}, LG_E_UNSUPPORTED, {"text_config.model_type", "qwen3_5_text"}},
{FP8, {{REPLACE, CONFIG, "\"fp8\"", "\"bitsandbytes\""}}, LG_E_UNSUPPORTED, {"quant_method", "bitsandbytes"}},
{FP8, {{REPLACE, CONFIG, "\"fmt\": \"e4m3\"", "\"fmt\": \"e5m2\""}}, LG_E_UNSUPPORTED, {"quantization_config.fmt", "e5m2"}},
{FP8, {{REPLACE, CONFIG, "\"dynamic\"", "\"static\""}}, LG_E_UNSUPPORTED, {"activation_scheme", "static"}},
{FP8, {{REPLACE, CONFIG, "\"fmt\": \"e4m3\"", "\"weight_scale\": \"ue8m0\""}}, LG_E_UNSUPPORTED, {"quantization_config.weight_scale", "not understood"}},
{FP8, {{REPLACE, CONFIG, "128,\n   128\n", "64, 64"}}, LG_E_UNSUPPORTED, {"weight_block_size", "[64, 64]"}},
{FP8, {{REPLACE, CONFIG, "\"weight_block_size\"", "\"ignored_layers\""}}, LG_E_UNSUPPORTED, {"weight_block_size", "[128, 128]"}},
/* ---- config.json: malformed, out of range, contradictory ---- */
{DENSE, {{REPLACE, CONFIG, "\"hidden_size\": 128", "\"hidden_size\": 0"}}, LG_E_FORMAT, {"hidden_size", "found 0"}},
{DENSE, {{REPLACE, CONFIG, "\"hidden_size\": 128", "\"hidden_size\": -128"}}, LG_E_FORMAT, {"hidden_size", "-128"}},
{DENSE, {{REPLACE, CONFIG, "\"hidden_size\": 128", "\"hidden_size\": 128.5"}}, LG_E_FORMAT, {"hidden_size", "128.5"}},
{DENSE, {{REPLACE, CONFIG, "\"hidden_size\": 128", "\"hidden_size\": \"128\""}}, LG_E_FORMAT, {"hidden_size"}},
{DENSE, {{REPLACE, CONFIG, "\"hidden_size\": 128,", ""}}, LG_E_FORMAT, {"hidden_size", "found nothing"}},
{DENSE, {{REPLACE, CONFIG, "\"vocab_size\": 512", "\"vocab_size\": 99999999999999999999999"}}, LG_E_FORMAT, {"vocab_size"}},
{DENSE, {{REPLACE, CONFIG, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 257"}}, LG_E_FORMAT, {"num_hidden_layers", "257"}},
{DENSE, {{REPLACE, CONFIG, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 8"}}, LG_E_FORMAT, {"layer_types", "4 entries"}},
{DENSE, {{REPLACE, CONFIG, "\"full_attention_interval\": 4", "\"full_attention_interval\": 2"}}, LG_E_FORMAT, {"layer_types", "full_attention_interval 2"}},
{DENSE, {{REPLACE, CONFIG, "\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 6"}}, LG_E_FORMAT, {"linear_num_value_heads", "multiple"}},
{MOE, {{REPLACE, CONFIG, "\"num_attention_heads\": 4", "\"num_attention_heads\": 3"}}, LG_E_FORMAT, {"num_attention_heads", "multiple"}},
{MOE, {{REPLACE, CONFIG, "\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 17"}}, LG_E_FORMAT, {"num_experts_per_tok", "at most num_experts 16"}},
{DENSE, {{REPLACE, CONFIG, "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0"}}, LG_E_FORMAT, {"rms_norm_eps"}},
{DENSE, {{REPLACE, CONFIG, "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": NaN"}}, LG_E_FORMAT, {CONFIG, "byte"}},
{DENSE, {{REPLACE, CONFIG, "\"rope_theta\": 10000000,", "\"rope_theta\": 0,"}}, LG_E_FORMAT, {"rope_parameters.rope_theta"}},
{DENSE, {{REPLACE, CONFIG, "\"rope_theta\": 10000000,", ""}}, LG_E_FORMAT, {"rope_theta", "found nothing"}},
{DENSE, {{REPLACE, CONFIG, "\"use_cache\": true", "\"rope_theta\": 10000"}}, LG_E_FORMAT, {"rope_theta", "10000"}},
{DENSE, {{REPLACE, CONFIG, "\"use_cache\": true", "\"rope_scaling\": {\"type\": \"default\"}"}}, LG_E_FORMAT, {"rope_scaling", "beside rope_parameters"}},
{DENSE, {{REPLACE, CONFIG, "\"rope_parameters\": {", "\"vision_config\": {"}}, LG_E_UNSUPPORTED, {"vision_config"}},
{DENSE, {{REPLACE, CONFIG, "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.5"}}, LG_E_FORMAT, {"partial_rotary_factor", "0.5"}},
{DENSE, {{REPLACE, CONFIG, "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.3"}, {REPLACE, CONFIG, "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.3"}}, LG_E_FORMAT, {"partial_rotary_factor", "even number"}},
{DENSE, {{REPLACE, CONFIG, "   2\n", "   3\n"}}, LG_E_FORMAT, {"mrope_section", "sum of 9"}},
{DENSE, {{REPLACE, CONFIG, "   3,\n   2\n", "   5\n"}}, LG_E_FORMAT, {"mrope_section", "3 integers"}},
{DENSE, {{REPLACE, CONFIG, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1"}}, LG_E_FORMAT, {"tie_word_embeddings"}},
{DENSE, {{REPLACE, CONFIG, "\"use_cache\": true", "\"hidden_size\": 128"}}, LG_E_FORMAT, {"hidden_size", "given twice"}},
{DENSE, {{REPLACE, CONFIG, "\"eos_token_id\": 479", "\"eos_token_id\": 512"}}, LG_E_FORMAT, {"eos_token_id", "512"}},
{DENSE, {{REPLACE, CONFIG, "\"eos_token_id\": 479", "\"eos_token_id\": [1,2,3,4,5,6,7,8,9]"}}, LG_E_FORMAT, {"eos_token_id"}},
{MOE, {{REPLACE, CONFIG, "\"text_config\"", "\"vision_config\""}}, LG_E_FORMAT, {"vision_config", "given twice"}},
{MOE, {{WRITE, CONFIG, "{\"model_type\": \"qwen3_5_moe\"}"}}, LG_E_FORMAT, {"text_config", "found nothing"}},
{R3, {{REPLACE, CONFIG, "},\n \"tie_word_embeddings\": false", "},\n \"tie_word_embeddings\": true"}}, LG_E_FORMAT, {"text_config.tie_word_embeddings", "expected true"}},
/* ---- generation_config.json ---- */
{DENSE, {{WRITE, GEN, "oops"}}, LG_E_FORMAT, {GEN, "byte"}},
{DENSE, {{DIR_, GEN}}, LG_E_IO, {GEN, "not a regular file"}},
{DENSE, {{WRITE, GEN, "{\"temperature\": -1}"}}, LG_E_FORMAT, {GEN, "temperature"}},
{DENSE, {{WRITE, GEN, "{\"top_p\": 0}"}}, LG_E_FORMAT, {GEN, "top_p"}},
{DENSE, {{WRITE, GEN, "{\"top_k\": -2}"}}, LG_E_FORMAT, {GEN, "top_k"}},
{DENSE, {{WRITE, GEN, "{\"num_beams\": 4}"}}, LG_E_UNSUPPORTED, {GEN, "num_beams"}},
{DENSE, {{WRITE, GEN, "{\"sampler\": \"mirostat\"}"}}, LG_E_UNSUPPORTED, {GEN, "sampler"}},
{DENSE, {{WRITE, GEN, "{\"eos_token_id\": \"<|im_end|>\"}"}}, LG_E_FORMAT, {GEN, "eos_token_id"}},
{DENSE, {{WRITE, GEN, "{\"eos_token_id\": []}"}}, LG_E_FORMAT, {GEN, "eos_token_id"}},
{DENSE, {{WRITE, GEN, "{\"do_sample\": 1}"}}, LG_E_FORMAT, {GEN, "do_sample"}},
/* ---- config against tensors ---- */
{DENSE, {{REPLACE, CONFIG, "\"hidden_size\": 128", "\"hidden_size\": 256"}}, LG_E_FORMAT, {"model.embed_tokens.weight", "found shape [512, 128], expected [512, 256]"}},
{DENSE, {{REPLACE, CONFIG, "\"vocab_size\": 512", "\"vocab_size\": 513"}}, LG_E_FORMAT, {"model.embed_tokens.weight", "[513, 128]"}},
{DENSE, {{REPLACE, CONFIG, "\"intermediate_size\": 160", "\"intermediate_size\": 161"}}, LG_E_FORMAT, {"mlp.gate_proj.weight", "[161, 128]"}},
{DENSE, {{REPLACE, CONFIG, "\"head_dim\": 64", "\"head_dim\": 128"}, {REPLACE, CONFIG, "   2\n", "   10\n"}}, LG_E_FORMAT, {"self_attn.q_proj.weight", "[1024, 128]"}},
{DENSE, {{REPLACE, CONFIG, "\"linear_value_head_dim\": 64", "\"linear_value_head_dim\": 32"}}, LG_E_FORMAT, {"linear_attn.in_proj_qkv.weight", "expected [384, 128]"}},
{DENSE, {{REPLACE, CONFIG, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"}}, LG_E_FORMAT, {"lm_head.weight", "missing"}},
{DENSE, {{REPLACE, CONFIG, "  \"linear_attention\",\n  \"linear_attention\",\n  \"linear_attention\",\n  \"full_attention\"", "\"linear_attention\", \"linear_attention\", \"full_attention\", \"linear_attention\""}, {REPLACE, CONFIG, "\"full_attention_interval\": 4,", ""}}, LG_E_FORMAT, {"model.layers.2.self_attn.q_proj.weight", "missing"}},
{DENSE, {{REPLACE, CONFIG, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3"}, {REPLACE, CONFIG, "  \"linear_attention\",\n", ""}}, LG_E_FORMAT, {"layer_types"}},
{DENSE, {{REPLACE, CONFIG, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3"}, {REPLACE, CONFIG, ",\n  \"full_attention\"", ""}}, LG_E_FORMAT, {"model.layers.3.", "a tensor that this model does not have"}},
{R3, {{REPLACE, CONFIG, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"}, {REPLACE, CONFIG, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"}}, LG_E_FORMAT, {"lm_head.weight", "tie_word_embeddings"}},
{FP8, {{REPLACE, CONFIG, "\"quantization_config\": {", "\"vision_config\": {"}, {REPLACE, CONFIG, "\"vision_config\": {", "\"image_token_id\": {"}}, LG_E_FORMAT, {CONFIG, "given twice"}},
{FP8, {{REPLACE, CONFIG, "\"quantization_config\": {", "\"language_model_only\": {"}}, LG_E_FORMAT, {"F8_E4M3", "no quantization_config"}},
{R3, {{REPLACE, CONFIG, "\"image_token_id\": 491", "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}"}}, LG_E_FORMAT, {"quantization_config", "no tensor is F8_E4M3"}},
/* ---- tensors missing, left over, of another shape or type ---- */
{DENSE, {{DROP, "model.embed_tokens.weight"}}, LG_E_FORMAT, {"model.embed_tokens.weight", "missing, expected shape [512, 128]"}},
{DENSE, {{DROP, "model.norm.weight"}}, LG_E_FORMAT, {"model.norm.weight", "missing"}},
{DENSE, {{DROP, "model.layers.1.linear_attn.A_log"}}, LG_E_FORMAT, {"model.layers.1.linear_attn.A_log", "missing, expected shape [4]"}},
{DENSE, {{DROP, "model.layers.3.self_attn.k_norm.weight"}}, LG_E_FORMAT, {"self_attn.k_norm.weight", "missing"}},
{MOE, {{DROP, LM "layers.2.mlp.gate.weight"}}, LG_E_FORMAT, {"layers.2.mlp.gate.weight", "missing, expected shape [16, 128]"}},
{MOE, {{DROP, LM "layers.2.mlp.experts.down_proj"}}, LG_E_FORMAT, {"layers.2.mlp.experts.down_proj", "missing, expected shape [16, 128, 32]"}},
{MOE, {{DROP, LM "layers.2.mlp.experts.gate_up_proj"}}, LG_E_FORMAT, {"layers.2.mlp.experts.0.gate_proj.weight", "missing"}},
{MOE, {{DROP, LM "layers.7.mlp.shared_expert_gate.weight"}}, LG_E_FORMAT, {"shared_expert_gate.weight", "missing, expected shape [1, 128]"}},
{FP8, {{DROP, LM "layers.0.mlp.experts.3.up_proj.weight"}}, LG_E_FORMAT, {"experts.3.up_proj.weight", "missing"}},
{DENSE, {{RENAME, "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.wait"}}, LG_E_FORMAT, {"model.layers.0.mlp.up_proj.weight", "missing"}},
{R3, {{RENAME, LM "embed_tokens.weight", "model.embed_tokens.weight"}}, LG_E_FORMAT, {LM "embed_tokens.weight", "missing"}},
{DENSE, {{ADD, "model.layers.3.self_attn.q_proj.bias", "BF16", "[512]"}}, LG_E_FORMAT, {"q_proj.bias", "does not have"}},
{DENSE, {{ADD, "model.layers.4.input_layernorm.weight", "BF16", "[128]"}}, LG_E_FORMAT, {"layers.4.input_layernorm", "does not have"}},
{DENSE, {{ADD, "lm_head.weight", "BF16", "[512,128]"}}, LG_E_FORMAT, {"lm_head.weight", "tie_word_embeddings is true"}},
{DENSE, {{ADD, "model.visual.patch_embed.weight", "BF16", "[8]"}}, LG_E_FORMAT, {"model.visual.patch_embed.weight", "does not have"}},
{MOE, {{ADD, LM "layers.0.mlp.experts.0.up_proj.weight", "BF16", "[32,128]"}}, LG_E_FORMAT, {"experts.0.up_proj.weight", "does not have"}},
{DENSE, {{HEADER, ONE, "\"shape\":[128,160]", "\"shape\":[160,128]"}}, LG_E_FORMAT, {"mlp.down_proj.weight", "found shape [160, 128], expected [128, 160]"}},
{DENSE, {{HEADER, ONE, "\"shape\":[512,1,4]", "\"shape\":[512,4]"}}, LG_E_FORMAT, {"conv1d.weight", "expected [512, 1, 4]"}},
{DENSE, {{HEADER, ONE, "\"shape\":[512,1,4]", "\"shape\":[4,1,512]"}}, LG_E_FORMAT, {"conv1d.weight", "found shape [4, 1, 512]"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4]", "\"shape\":[1,4]"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "found shape [1, 4], expected [4]"}},
{DENSE, {{HEADER, ONE, "\"shape\":[4]", "\"shape\":[4,1]"}}, LG_E_FORMAT, {"layers.0.linear_attn.A_log", "found shape [4, 1]"}},
{MOE, {{ADD, LM "layers.0.mlp.experts.gate_up_proj", "BF16", "[16,128,64]"}}, LG_E_FORMAT, {"experts.gate_up_proj", "expected [16, 64, 128]"}},
{MOE, {{ADD, LM "layers.0.mlp.experts.gate_up_proj", "F8_E4M3", "[16,64,128]"}}, LG_E_UNSUPPORTED, {"experts.gate_up_proj", "found F8_E4M3"}},
{DENSE, {{ADD, "model.layers.0.mlp.up_proj.weight", "F64", "[160,128]"}}, LG_E_UNSUPPORTED, {"mlp.up_proj.weight", "found F64"}},
{DENSE, {{ADD, "model.layers.0.mlp.up_proj.weight", "BF16", "[0,128]"}}, LG_E_FORMAT, {"mlp.up_proj.weight", "found shape [0, 128]"}},
{DENSE, {{ADD, "model.norm.weight", "I32", "[128]"}}, LG_E_UNSUPPORTED, {"model.norm.weight", "found I32"}},
/* ---- FP8 ---- */
{FP8, {{DROP, LM "layers.0.linear_attn.in_proj_qkv.weight_scale_inv"}}, LG_E_FORMAT, {"in_proj_qkv.weight_scale_inv", "missing, expected shape [2, 2]"}},
{FP8, {{ADD, LM "layers.0.linear_attn.in_proj_qkv.weight_scale_inv", "BF16", "[4]"}}, LG_E_FORMAT, {"in_proj_qkv.weight_scale_inv", "found shape [4], expected [2, 2]"}},
{FP8, {{ADD, LM "layers.3.self_attn.k_proj.weight_scale_inv", "BF16", "[2,1]"}}, LG_E_FORMAT, {"k_proj.weight_scale_inv", "found shape [2, 1], expected [1, 2]"}},
{FP8, {{ADD, LM "layers.3.self_attn.k_proj.weight_scale_inv", "F16", "[1,2]"}}, LG_E_UNSUPPORTED, {"k_proj.weight_scale_inv", "found F16"}},
{FP8, {{ADD, LM "layers.0.mlp.gate.weight_scale_inv", "BF16", "[1,2]"}}, LG_E_FORMAT, {"mlp.gate.weight_scale_inv", "a scale for a BF16 matrix"}},
{FP8, {{ADD, LM "layers.0.input_layernorm.weight_scale_inv", "BF16", "[1,2]"}}, LG_E_FORMAT, {"input_layernorm.weight_scale_inv", "does not have"}},
{FP8, {{ADD, LM "embed_tokens.weight", "F8_E4M3", "[512,256]"}}, LG_E_UNSUPPORTED, {"embed_tokens.weight", "found F8_E4M3"}},
{FP8, {{ADD, LM "norm.weight", "F8_E4M3", "[256]"}}, LG_E_UNSUPPORTED, {LM "norm.weight", "found F8_E4M3"}},
{FP8, {{ADD, LM "layers.0.mlp.experts.1.up_proj.weight", "F8_E5M2", "[128,256]"}}, LG_E_UNSUPPORTED, {"experts.1.up_proj.weight", "found F8_E5M2"}},
/* ---- values ---- */
{DENSE, {{POISON, "model.norm.weight"}}, LG_E_FORMAT, {"model.norm.weight", "not finite"}},
{DENSE, {{POISON, "model.layers.2.linear_attn.A_log"}}, LG_E_FORMAT, {"layers.2.linear_attn.A_log", "not finite"}},
{DENSE, {{POISON, "model.layers.0.linear_attn.conv1d.weight"}}, LG_E_FORMAT, {"conv1d.weight", "not finite"}},
};
/* clang-format on */

static void cut_or_grow(const lg_fixture *f, const char *file, long n, bool grow) {
    static const char zeros[64];
    lg_buf b = lg_fixture_read(f, file);
    if (grow)
        lg_buf_put(&b, zeros, (size_t)n);
    else
        b.len_bytes = n >= 0 ? (size_t)n : b.len_bytes - (size_t)-n;
    lg_fixture_write(f, file, b.data, b.len_bytes);
    lg_buf_fini(&b);
}

static void set_length(const lg_fixture *f, const char *file, uint64_t n) {
    lg_buf b = lg_fixture_read(f, file);
    memcpy(b.data, &n, sizeof n);
    lg_fixture_write(f, file, b.data, b.len_bytes);
    lg_buf_fini(&b);
}

static void copy_file(const lg_fixture *f, const char *to, const char *from) {
    lg_buf b = lg_fixture_read(f, from);
    lg_fixture_write(f, to, b.data, b.len_bytes);
    lg_buf_fini(&b);
}

static void write_deep(const lg_fixture *f, const char *file, long n) {
    lg_buf b = {0};
    for (long i = 0; i < n; i++) lg_buf_putc(&b, '[');
    lg_fixture_write(f, file, b.data, b.len_bytes);
    lg_buf_fini(&b);
}

static void apply(const lg_fixture *f, op what, const char *a, const char *b, const char *c) {
    switch (what) {
    case WRITE: lg_fixture_write(f, a, b, strlen(b)); break;
    case REMOVE: lg_fixture_remove(f, a); break;
    case DIR_: lg_fixture_make_dir(f, a); break;
    case REPLACE: lg_fixture_replace(f, a, b, c); break;
    case HEADER: lg_fixture_replace_header(f, a, b, c); break;
    case LENGTH: set_length(f, a, strtoull(b, NULL, 10)); break;
    case CUT: cut_or_grow(f, a, strtol(b, NULL, 10), false); break;
    case GROW: cut_or_grow(f, a, strtol(b, NULL, 10), true); break;
    case COPY: copy_file(f, a, b); break;
    case DEEP: write_deep(f, a, strtol(b, NULL, 10)); break;
    case DROP: lg_fixture_edit_tensor(f, LG_FIXTURE_DROP, a, NULL, NULL); break;
    case RENAME: lg_fixture_edit_tensor(f, LG_FIXTURE_RENAME, a, b, NULL); break;
    case ADD: lg_fixture_edit_tensor(f, LG_FIXTURE_ADD, a, b, c); break;
    case POISON: lg_fixture_edit_tensor(f, LG_FIXTURE_POISON, a, NULL, NULL); break;
    }
}

/* True when the folder gives the wanted error with both calls; says what differs otherwise. */
static bool is_refused(const damage *d, size_t row, const char *path) {
    for (int open = 0; open < 2; open++) {
        lg_weights *w = NULL;
        lg_err err = {0};
        int64_t alive = lg_mem_alive();
        lg_status st = open ? lg_weights_open(path, NULL, NULL, NULL, &w, &err)
                            : lg_weights_check(path, &w, &err);
        bool ok = st == d->want && !w && err.code == st && lg_mem_alive() == alive;
        for (int i = 0; i < 2; i++) ok = ok && (!d->say[i] || strstr(err.msg, d->say[i]));
        if (ok) continue;
        print_error("row %zu (%s %s): got %s: %s\n   wanted %s: %s ... %s\n", row, d->model,
                    d->edit[0].a, lg_status_name(st), err.msg, lg_status_name(d->want),
                    d->say[0], d->say[1] ? d->say[1] : "");
        lg_weights_close(&w);
        return false;
    }
    return true;
}

static void test_damaged_folders_are_refused(void **state) {
    (void)state;
    size_t n_bad = 0;
    for (size_t i = 0; i < LG_COUNT(table); i++) {
        const damage *d = &table[i];
        lg_fixture f;
        lg_fixture_init(&f, d->model);
        for (int k = 0; k < 2; k++)
            if (d->edit[k].a)
                apply(&f, d->edit[k].op, d->edit[k].a, d->edit[k].b, d->edit[k].c);
        n_bad += !is_refused(d, i, f.path);
        lg_fixture_fini(&f);
    }
    print_message("%zu damaged folders, %zu not refused as they should be\n", LG_COUNT(table),
                  n_bad);
    assert_int_equal(n_bad, 0);
}

/* What looks unusual but is right. */
static void test_legal_variants_load(void **state) {
    (void)state;
    /* clang-format off */
    static const damage fine[] = {
        {DENSE, {{REMOVE, GEN}}, LG_OK, {NULL}},
        {DENSE, {{WRITE, GEN, "{}"}}, LG_OK, {NULL}},
        {DENSE, {{HEADER, ONE, "{\"__metadata__\":{\"format\":\"pt\"},", "{"}}, LG_OK, {NULL}},
        {DENSE, {{HEADER, ONE, "}}  ", "}}"}}, LG_OK, {NULL}},
        {DENSE, {{REPLACE, CONFIG, "\"full_attention_interval\": 4,", ""}}, LG_OK, {NULL}},
        {DENSE, {{REPLACE, CONFIG, "\"silu\"", "\"swish\""}}, LG_OK, {NULL}},
        {DENSE, {{REPLACE, CONFIG, "\"use_cache\": true", "\"output_gate_type\": \"swish\""}}, LG_OK, {NULL}},
        {DENSE, {{ADD, "mtp.norm.weight", "I32", "[3,1,4,1,5,2]"}}, LG_OK, {NULL}},
        {MOE, {{DROP, "mtp.norm.weight"}}, LG_OK, {NULL}},
        {R3, {{ADD, "model.visual.x", "F64", "[2,1,1,1,1,1,1,2]"}}, LG_OK, {NULL}},
        {DENSE, {{ADD, "model.layers.0.mlp.up_proj.weight", "F32", "[160,128]"}}, LG_OK, {NULL}},
        {DENSE, {{ADD, "model.norm.weight", "F16", "[128]"}}, LG_OK, {NULL}},
        {FP8, {{ADD, LM "layers.3.self_attn.k_proj.weight_scale_inv", "F32", "[1,2]"}}, LG_OK, {NULL}},
    };
    /* clang-format on */
    for (size_t i = 0; i < LG_COUNT(fine); i++) {
        const damage *d = &fine[i];
        lg_fixture f;
        lg_weights *w;
        lg_err err;
        lg_fixture_init(&f, d->model);
        apply(&f, d->edit[0].op, d->edit[0].a, d->edit[0].b, d->edit[0].c);
        lg_status st = lg_weights_open(f.path, NULL, NULL, NULL, &w, &err);
        if (st != LG_OK) print_error("row %zu: %s\n", i, err.msg);
        assert_int_equal(st, LG_OK);
        lg_weights_close(&w);
        lg_fixture_fini(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damaged_folders_are_refused),
        cmocka_unit_test(test_legal_variants_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
