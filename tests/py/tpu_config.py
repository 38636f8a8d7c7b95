#!/usr/bin/env python3
"""tpu_config.py - config.json files of the family's widths, for programs that are compiled and not run.

usage: tpu_config.py toy|35b|397b > config.json
"""
import json
import sys

# hidden, layers, heads, value heads, key heads, experts, used, their width, vocabulary, head width, GDN head width
SHAPES = {"toy": (256, 8, 4, 4, 2, 16, 4, 128, 512, 128, 128),
          "35b": (2048, 40, 16, 32, 16, 256, 8, 512, 248320, 256, 128),
          "397b": (4096, 60, 32, 64, 16, 512, 10, 1024, 248320, 256, 128)}


def config(name):
    hidden, layers, heads, v_heads, k_heads, experts, used, wide, vocab, d_head, d_gdn = SHAPES[name]
    return {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "vocab_size": vocab, "hidden_size": hidden,
            "num_hidden_layers": layers, "full_attention_interval": 4,
            "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
            "num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": d_head, "attn_output_gate": True,
            "attention_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-06, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": d_gdn, "linear_value_head_dim": d_gdn, "linear_num_key_heads": k_heads,
            "linear_num_value_heads": v_heads, "num_experts": experts, "num_experts_per_tok": used, "moe_intermediate_size": wide,
            "shared_expert_intermediate_size": wide, "max_position_embeddings": 262144, "partial_rotary_factor": 0.25,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
            "tie_word_embeddings": False, "dtype": "bfloat16", "eos_token_id": 1}


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SHAPES:
        sys.exit("usage: tpu_config.py " + "|".join(SHAPES))
    json.dump(config(sys.argv[1]), sys.stdout, indent=1)
    print()
