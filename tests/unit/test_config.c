/* test_config.c - what is read from config.json and generation_config.json; refusals are in test_loader.c. */
#include "fixture.h"

#include "model/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static lg_config load(const char *name) {
    char path[400];
    lg_config c;
    lg_err err = {0};
    lg_fixture_source(name, path, sizeof path);
    lg_status st = lg_config_load(&c, path, &err);
    if (st != LG_OK) print_error("%s\n", err.msg);
    assert_int_equal(st, LG_OK);
    return c;
}

/* Layers as text: "GGGA". */
static const char *plan(const lg_config *c) {
    static char s[LG_MAX_LAYER + 1];
    for (uint32_t i = 0; i < c->n_layer; i++) s[i] = c->layer[i] == LG_LAYER_ATTN ? 'A' : 'G';
    s[c->n_layer] = '\0';
    return s;
}

static void test_flat_dense(void **state) {
    (void)state;
    lg_config c = load("tests/data/models/tiny-dense");
    assert_string_equal(c.model_type, "qwen3_5_text");
    assert_false(c.nested);
    assert_true(c.tied);
    assert_int_equal(c.quant, LG_QUANT_NONE);
    assert_int_equal(c.n_vocab, 512);
    assert_int_equal(c.n_embd, 128);
    assert_int_equal(c.n_layer, 4);
    assert_string_equal(plan(&c), "GGGA");
    assert_int_equal(c.n_ctx_max, 4096);
    assert_true(c.eps == 1e-6f);
    assert_int_equal(c.n_head, 4);
    assert_int_equal(c.n_kv_head, 1);
    assert_int_equal(c.d_head, 64);
    assert_int_equal(c.n_rot, 16);
    assert_true(c.rope_theta == 1e7);
    assert_int_equal(c.n_k_head, 4);
    assert_int_equal(c.n_v_head, 4);
    assert_int_equal(c.d_k, 32);
    assert_int_equal(c.d_v, 64);
    assert_int_equal(lg_config_conv_dim(&c), 512);
    assert_int_equal(c.n_ff, 160);
    assert_int_equal(c.n_expert, 0);
    assert_int_equal(c.n_mtp_layer, 0);
    assert_int_equal(c.n_eos, 2); /* generation_config.json replaces the one of config.json */
    assert_int_equal(c.eos[0], 481);
    assert_int_equal(c.eos[1], 479);
    assert_true(c.do_sample);
    assert_true(c.temperature == 0.6f && c.top_p == 0.95f);
    assert_int_equal(c.top_k, 20);
    assert_true(c.min_p == 0 && c.repetition_penalty == 1);
}

static void test_nested_moe(void **state) {
    (void)state;
    lg_config c = load("tests/data/models/tiny-moe");
    assert_string_equal(c.model_type, "qwen3_5_moe");
    assert_true(c.nested);
    assert_false(c.tied);
    assert_string_equal(plan(&c), "GGGAGGGA");
    assert_int_equal(c.n_expert, 16);
    assert_int_equal(c.n_expert_tok, 4);
    assert_int_equal(c.n_ff_expert, 32);
    assert_int_equal(c.n_ff_shared, 64);
    assert_int_equal(c.n_ff, 0);
    assert_int_equal(c.n_mtp_layer, 1);
    c = load("tests/data/models/tiny-moe-fp8");
    assert_int_equal(c.quant, LG_QUANT_FP8);
    assert_int_equal(c.n_kv_head, 1);
}

static void test_other_folders(void **state) {
    (void)state;
    lg_config c = load("tests/data/models/tiny-dense-r3");
    assert_string_equal(c.model_type, "qwen3_5");
    assert_true(c.nested);
    assert_int_equal(c.n_v_head, 6);
    assert_int_equal(c.n_k_head, 2);
    assert_int_equal(c.n_ff, 96);
    c = load("models/tiny-qwen35moe");
    assert_string_equal(c.model_type, "qwen3_5_moe_text");
    assert_false(c.nested);
    assert_false(c.do_sample);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 4065);
    assert_int_equal(c.eos[1], 4063);
    assert_true(c.temperature == 1 && c.top_p == 1 && c.top_k == 0);
}

/* The sizes of the largest release, layers given by their interval only. */
static const char release[] =
    "{\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"], \"image_token_id\": 248056,"
    " \"model_type\": \"qwen3_5_moe\", \"text_config\": {\"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"attn_output_gate\": true, \"dtype\": \"bfloat16\","
    " \"eos_token_id\": 248044, \"full_attention_interval\": 4, \"head_dim\": 256,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 4096, \"initializer_range\": 0.02,"
    " \"linear_conv_kernel_dim\": 4, \"linear_key_head_dim\": 128,"
    " \"linear_num_key_heads\": 16, \"linear_num_value_heads\": 64,"
    " \"linear_value_head_dim\": 128, \"mamba_ssm_dtype\": \"float32\","
    " \"max_position_embeddings\": 262144, \"mlp_only_layers\": [],"
    " \"model_type\": \"qwen3_5_moe_text\", \"moe_intermediate_size\": 1024,"
    " \"mtp_num_hidden_layers\": 1, \"mtp_use_dedicated_embeddings\": false,"
    " \"num_attention_heads\": 32, \"num_experts\": 512, \"num_experts_per_tok\": 10,"
    " \"num_hidden_layers\": 60, \"num_key_value_heads\": 2, \"output_gate_type\": \"swish\","
    " \"rms_norm_eps\": 1e-06, \"router_aux_loss_coef\": 0.001,"
    " \"shared_expert_intermediate_size\": 1024, \"use_cache\": true, \"vocab_size\": 248320,"
    " \"rope_parameters\": {\"mrope_interleaved\": true, \"mrope_section\": [11, 11, 10],"
    " \"rope_type\": \"default\", \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25}},"
    " \"tie_word_embeddings\": false, \"transformers_version\": \"4.57.0.dev0\","
    " \"video_token_id\": 248057, \"vision_config\": {\"depth\": 27},"
    " \"vision_end_token_id\": 248054, \"vision_start_token_id\": 248053}";

static lg_status parse(lg_config *c, const char *text, lg_err *err) {
    return lg_config_parse(c, text, strlen(text), "text", err);
}

static void test_release_sizes(void **state) {
    (void)state;
    lg_config c;
    lg_err err = {0};
    assert_int_equal(parse(&c, release, &err), LG_OK);
    assert_int_equal(c.n_layer, 60);
    uint32_t n_attn = 0;
    for (uint32_t i = 0; i < 60; i++) {
        n_attn += c.layer[i] == LG_LAYER_ATTN;
        assert_int_equal(c.layer[i] == LG_LAYER_ATTN, i % 4 == 3);
    }
    assert_int_equal(n_attn, 15);
    assert_int_equal(c.n_rot, 64);
    assert_int_equal(lg_config_conv_dim(&c), 12288);
    assert_int_equal(c.n_expert, 512);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 248044);
    assert_false(c.do_sample);
}

/* The release's text with `from` replaced by `to`. */
static lg_status parse_with(lg_config *c, const char *from, const char *to, lg_err *err) {
    lg_buf b = {0};
    const char *at = strstr(release, from);
    assert_non_null(at);
    lg_buf_put(&b, release, (size_t)(at - release));
    lg_buf_puts(&b, to);
    lg_buf_puts(&b, at + strlen(from));
    memset(err, 0, sizeof *err);
    lg_status st = parse(c, lg_buf_str(&b), err);
    lg_buf_fini(&b);
    return st;
}

static void test_other_spellings(void **state) {
    (void)state;
    lg_config c;
    lg_err err;
    /* The older pair of rope_scaling and rope_theta beside it. */
    assert_int_equal(parse_with(&c,
                                "\"rope_parameters\": {\"mrope_interleaved\": true, "
                                "\"mrope_section\": [11, 11, 10], \"rope_type\": \"default\", "
                                "\"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25}",
                                "\"rope_scaling\": {\"mrope_section\": [11, 11, 10], \"type\": "
                                "\"default\"}, \"rope_theta\": 5e6, "
                                "\"partial_rotary_factor\": 0.25",
                                &err),
                     LG_OK);
    assert_true(c.rope_theta == 5e6);
    assert_int_equal(c.n_rot, 64);
    /* The outer object has the last word on the end token. */
    assert_int_equal(
        parse_with(&c, "\"image_token_id\": 248056", "\"eos_token_id\": [7, 8]", &err), LG_OK);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[1], 8);
    assert_int_equal(parse_with(&c, "\"tie_word_embeddings\": false, ", "", &err), LG_OK);
    assert_false(c.tied);
    assert_int_equal(parse_with(&c, "\"tie_word_embeddings\": false, ",
                                "\"tie_word_embeddings\": true, ", &err),
                     LG_OK);
    assert_true(c.tied);
    /* Numbers written as floats. */
    assert_int_equal(parse_with(&c, "\"hidden_size\": 4096", "\"hidden_size\": 4096.0", &err),
                     LG_OK);
    assert_int_equal(c.n_embd, 4096);
    /* Layer kinds in any order when no interval is given. */
    assert_int_equal(parse_with(&c, "\"num_hidden_layers\": 60",
                                "\"num_hidden_layers\": 3, \"layer_types\": "
                                "[\"full_attention\", \"linear_attention\", "
                                "\"linear_attention\"]",
                                &err),
                     LG_E_FORMAT);
    assert_non_null(strstr(err.msg, "layer_types"));
    assert_int_equal(
        parse_with(&c, "\"full_attention_interval\": 4", "\"use_sliding_window\": false", &err),
        LG_E_FORMAT);
    assert_non_null(strstr(err.msg, "full_attention_interval"));
}

/* Every cut of a good file is refused, and none of them crashes. */
static void test_every_prefix_is_refused(void **state) {
    (void)state;
    lg_config c;
    lg_err err;
    for (size_t n = 0; n < sizeof release - 1; n++)
        assert_int_equal(lg_config_parse(&c, release, n, "text", &err), LG_E_FORMAT);
}

static void test_generation(void **state) {
    (void)state;
    lg_config c;
    lg_err err;
    const char *text = "{\"do_sample\": true, \"temperature\": 0.7, \"top_p\": 0.8, \"top_k\": "
                       "20, \"min_p\": 0.05, \"repetition_penalty\": 1.05, \"eos_token_id\": "
                       "[248046, 248044], \"transformers_version\": \"5.0\", \"num_beams\": 1}";
    assert_int_equal(parse(&c, release, &err), LG_OK);
    assert_int_equal(lg_config_parse_generation(&c, text, strlen(text), "gen", &err), LG_OK);
    assert_true(c.do_sample);
    assert_true(c.temperature == 0.7f && c.top_p == 0.8f && c.min_p == 0.05f);
    assert_true(c.repetition_penalty == 1.05f);
    assert_int_equal(c.top_k, 20);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 248046);
    text = "{\"top_k\": -1, \"min_p\": null}";
    assert_int_equal(parse(&c, release, &err), LG_OK);
    assert_int_equal(lg_config_parse_generation(&c, text, strlen(text), "gen", &err), LG_OK);
    assert_int_equal(c.top_k, 0);
    assert_int_equal(c.n_eos, 1);
}

static void test_memory_runs_out_anywhere(void **state) {
    (void)state;
    lg_config c;
    lg_err err;
    int64_t alive = lg_mem_alive();
    lg_status st = LG_E_NOMEM;
    for (uint64_t n = 1; st == LG_E_NOMEM; n++) {
        lg_mem_fail_at(n);
        st = parse(&c, release, &err);
        lg_mem_fail_at(0);
        assert_int_equal(lg_mem_alive(), alive);
    }
    assert_int_equal(st, LG_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flat_dense),      cmocka_unit_test(test_nested_moe),
        cmocka_unit_test(test_other_folders),   cmocka_unit_test(test_release_sizes),
        cmocka_unit_test(test_other_spellings), cmocka_unit_test(test_every_prefix_is_refused),
        cmocka_unit_test(test_generation),      cmocka_unit_test(test_memory_runs_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
