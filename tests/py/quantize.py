#!/usr/bin/env python3
"""`lignum quantize` against the package `gguf`: every tensor of the written files, by name, shape, type and value.

    quantize.py LIGNUM SOURCE_ROOT
F32, BF16 and F16 files hold exactly the published numbers after the transforms of docs/QUANTIZE.md, which are written down
here once more; Q8_0 has the bytes of the package's own quantiser; block types are decoded by the package and are as near
as the type allows.  The package is installed below LG_BUILD_DIR (package.py).
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

import package

package.need("gguf==0.19.0", "gguf")
import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

# Relative rms error that a type may have, on weights that look like normal numbers.
LIMIT = {"F16": 1e-3, "Q8_0": 0.006, "Q6_K": 0.02, "Q5_K": 0.04, "Q5_1": 0.04, "Q5_0": 0.045, "Q4_K": 0.08, "Q4_1": 0.08,
         "Q4_0": 0.09, "IQ4_NL": 0.08, "IQ4_XS": 0.08, "MXFP4": 0.12}


# ---- the folder ----

def floats(raw, kind):
    if kind == "F32":
        return np.frombuffer(raw, "<f4")
    if kind == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32)
    if kind == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    b = np.frombuffer(raw, np.uint8).astype(np.int32)          # E4M3
    e, m = b >> 3 & 15, b & 7
    v = np.where(e == 0, m * 2.0 ** -9, (8 + m) * 2.0 ** (e - 10.0))
    return np.where(b & 128, -v, v).astype(np.float32)


def load(folder):
    cfg, hf = json.load(open(os.path.join(folder, "config.json"))), {}
    cfg = cfg.get("text_config", cfg)
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        data = open(os.path.join(folder, name), "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        for k, t in json.loads(data[8:8 + n]).items():
            if k != "__metadata__" and t["dtype"] in ("F32", "F16", "BF16", "F8_E4M3") and "visual" not in k:
                a, b = t["data_offsets"]
                hf[k.replace("model.language_model.", "model.")] = floats(data[8 + n + a:8 + n + b], t["dtype"]).reshape(t["shape"])
    for k in [k for k in hf if k.endswith("_scale_inv")]:
        s, w = hf.pop(k), k[:-len("_scale_inv")]
        s = s.repeat(128, 0).repeat(128, 1)
        hf[w] = hf[w] * s[:hf[w].shape[0], :hf[w].shape[1]]
    return cfg, hf


# ---- the mapping ----

def tiled(cfg, w, dim, axis=0):
    nk, nv = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"]
    old = [(p % nk) * (nv // nk) + p // nk for p in range(nv)]
    return np.take(w, np.concatenate([np.arange(h * dim, (h + 1) * dim) for h in old]), axis)


def layer(cfg, hf, src, dst):
    take = lambda s: hf.pop(src + s)
    one = np.float32(1)
    yield dst + "attn_norm.weight", take("input_layernorm.weight") + one
    yield dst + "post_attention_norm.weight", take("post_attention_layernorm.weight") + one
    if src + "linear_attn.A_log" in hf:
        dv, keys = cfg["linear_value_head_dim"], 2 * cfg["linear_num_key_heads"] * cfg["linear_key_head_dim"]
        for s, d in ("in_proj_qkv", "attn_qkv"), ("conv1d", "ssm_conv1d"):
            w = take("linear_attn.%s.weight" % s)
            w = w.reshape(w.shape[0], -1)
            yield dst + d + ".weight", np.concatenate([w[:keys], tiled(cfg, w[keys:], dv)])
        yield dst + "attn_gate.weight", tiled(cfg, take("linear_attn.in_proj_z.weight"), dv)
        yield dst + "ssm_alpha.weight", tiled(cfg, take("linear_attn.in_proj_a.weight"), 1)
        yield dst + "ssm_beta.weight", tiled(cfg, take("linear_attn.in_proj_b.weight"), 1)
        yield dst + "ssm_a", -np.exp(tiled(cfg, take("linear_attn.A_log"), 1).astype(np.float64)).astype(np.float32)
        yield dst + "ssm_dt.bias", tiled(cfg, take("linear_attn.dt_bias"), 1)
        yield dst + "ssm_norm.weight", take("linear_attn.norm.weight")
        yield dst + "ssm_out.weight", tiled(cfg, take("linear_attn.out_proj.weight"), dv, 1)
    else:
        for s, d in zip("qkvo", ("q", "k", "v", "output")):
            yield dst + "attn_%s.weight" % d, take("self_attn.%s_proj.weight" % s)
        for s in "qk":
            yield dst + "attn_%s_norm.weight" % s, take("self_attn.%s_norm.weight" % s) + one
    if src + "mlp.gate.weight" not in hf:
        for s in "gate", "up", "down":
            yield dst + "ffn_%s.weight" % s, take("mlp.%s_proj.weight" % s)
        return
    yield dst + "ffn_gate_inp.weight", take("mlp.gate.weight")
    yield dst + "ffn_gate_inp_shexp.weight", take("mlp.shared_expert_gate.weight")[0]
    for s in "gate", "up", "down":
        yield dst + "ffn_%s_shexp.weight" % s, take("mlp.shared_expert.%s_proj.weight" % s)
    if src + "mlp.experts.gate_up_proj" in hf:
        w = take("mlp.experts.gate_up_proj")
        half = w.shape[1] // 2
        parts = {"gate": w[:, :half], "up": w[:, half:], "down": take("mlp.experts.down_proj")}
    else:
        parts = {s: np.stack([take("mlp.experts.%d.%s_proj.weight" % (e, s)) for e in range(cfg["num_experts"])]) for s in ("gate", "up", "down")}
    for s in parts:
        yield dst + "ffn_%s_exps.weight" % s, parts[s]


def expected(cfg, hf):
    n, one = cfg["num_hidden_layers"], np.float32(1)
    yield "token_embd.weight", hf.pop("model.embed_tokens.weight")
    yield "output_norm.weight", hf.pop("model.norm.weight") + one
    if "lm_head.weight" in hf:
        yield "output.weight", hf.pop("lm_head.weight")
    for i in range(n):
        yield from layer(cfg, hf, "model.layers.%d." % i, "blk.%d." % i)
    if "mtp.fc.weight" in hf:
        yield from layer(cfg, hf, "mtp.layers.0.", "blk.%d." % n)
        yield "blk.%d.nextn.eh_proj.weight" % n, hf.pop("mtp.fc.weight")
        for s, d in ("pre_fc_norm_embedding", "enorm"), ("pre_fc_norm_hidden", "hnorm"), ("norm", "shared_head_norm"):
            yield "blk.%d.nextn.%s.weight" % (n, d), hf.pop("mtp.%s.weight" % s) + one


# ---- checks ----

def check_tensor(name, t, want):
    kind = t.tensor_type.name
    shape = [int(d) for d in reversed(t.shape)]
    assert shape == list(want.shape), (name, shape, want.shape)
    got = gguf.quants.dequantize(t.data, t.tensor_type).reshape(want.shape)
    if name.endswith("ssm_a"):
        assert np.allclose(got, want, rtol=2e-7, atol=0), name      # exp to the last bit or the one before
    elif kind in ("F32", "BF16"):
        assert np.array_equal(got, want), (name, kind)
    elif kind == "F16":
        assert np.array_equal(got, want.astype(np.float16).astype(np.float32)), name
    else:
        if kind == "Q8_0":
            assert np.array_equal(t.data.reshape(-1), gguf.quants.quantize(np.ascontiguousarray(want), T.Q8_0).reshape(-1)), name
        err = np.sqrt(((got - want).astype(np.float64) ** 2).sum() / (want.astype(np.float64) ** 2).sum())
        assert err < LIMIT[kind], (name, kind, err)
    return kind


def check_keys(reader, cfg, kind, mtp):
    value = {k: f.contents() for k, f in reader.fields.items()}
    arch = "qwen35moe" if "num_experts" in cfg else "qwen35"
    want = {"general.architecture": arch, "general.type": "model", "general.quantization_version": 2,
            arch + ".block_count": cfg["num_hidden_layers"] + mtp, arch + ".embedding_length": cfg["hidden_size"],
            arch + ".attention.head_count": cfg["num_attention_heads"], arch + ".attention.head_count_kv": cfg["num_key_value_heads"],
            arch + ".ssm.state_size": cfg["linear_key_head_dim"], arch + ".ssm.group_count": cfg["linear_num_key_heads"],
            arch + ".ssm.time_step_rank": cfg["linear_num_value_heads"],
            arch + ".ssm.inner_size": cfg["linear_num_value_heads"] * cfg["linear_value_head_dim"],
            arch + ".attention.recurrent_layers": [k == "linear_attention" for k in cfg["layer_types"]] + [False] * mtp,
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen35", "tokenizer.ggml.add_bos_token": False}
    for k, v in want.items():
        assert value.get(k) == v, (k, value.get(k), v)
    assert value.get(arch + ".nextn_predict_layers", 0) == mtp
    assert len(value["tokenizer.ggml.tokens"]) == len(value["tokenizer.ggml.token_type"]) == cfg["vocab_size"]
    assert value["tokenizer.ggml.tokens"][value["tokenizer.ggml.eos_token_id"]] == "<|im_end|>"
    assert value["general.file_type"] == {"f32": 0, "f16": 1, "q8_0": 7, "q4_k": 15, "q5_k": 17, "q6_k": 18, "iq4_xs": 30, "bf16": 32,
                                          "mxfp4": 38, "q4_0": 2}[kind]


def check(lignum, folder, kind, out):
    run = subprocess.run([lignum, "quantize", folder, out, "--type", kind], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    cfg, hf = load(folder)
    mtp = int("mtp.fc.weight" in hf)
    reader = gguf.GGUFReader(out)
    check_keys(reader, cfg, kind, mtp)
    got, kinds = {t.name: t for t in reader.tensors}, {}
    for name, want in expected(cfg, hf):
        k = check_tensor(name, got.pop(name), want)
        kinds[k] = kinds.get(k, 0) + 1
    assert not got and not hf, (list(got), list(hf))
    print("%s %s: %s" % (os.path.basename(folder), kind, kinds))


def check_importance(lignum, root, tmp):
    """`lignum imatrix`: what a norm has scaled to mean square 1 has it still when the norm's weights are divided out; every token
    goes to all chosen experts; a folder and the file made of it give the same; and `quantize` takes it."""
    model, text = os.path.join(root, "models/tiny-qwen35moe"), os.path.join(root, "docs/QUANTIZE.md")
    cfg, gguf_file, files = json.load(open(os.path.join(model, "config.json"))), os.path.join(tmp, "f32.gguf"), []
    subprocess.run([lignum, "quantize", model, gguf_file, "--type", "f32"], check=True, capture_output=True)
    for i, m in enumerate((model, gguf_file)):
        files.append(os.path.join(tmp, "imatrix%d.gguf" % i))
        run = subprocess.run([lignum, "imatrix", m, text, files[i], "--ctx", "96", "--chunks", "4"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    a, b, w = ({t.name: t.data for t in gguf.GGUFReader(f).tensors} for f in files + [gguf_file])
    assert set(a) == set(b) and len(a) == 2 * 44
    n_normed, n_tok, h = 0, 4 * 96, cfg["hidden_size"]
    for name in a:
        assert np.allclose(a[name], b[name], rtol=1e-3, atol=1e-4), name
        if name.endswith("exps.weight.counts"):
            assert a[name].sum() == n_tok * cfg["num_experts_per_tok"], name
        base = name[:-len(".in_sum2")]
        part = base.split(".")
        if not name.endswith(".in_sum2") or base.endswith("exps.weight") or a[name].size != h:
            continue
        norm = {"output": "output_norm.weight", "ffn_gate_shexp": "post_attention_norm.weight", "ffn_up_shexp": "post_attention_norm.weight"}.get(
            part[-2], "attn_norm.weight" if part[-2] in ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "attn_q", "attn_k", "attn_v") else None)
        if norm:
            scale = w[norm if part[0] == "output" else ".".join(part[:2]) + "." + norm].astype(np.float64)
            assert abs((a[name].reshape(-1) / n_tok / scale ** 2).sum() - h) < 1e-3 * h, name
            n_normed += 1
    assert n_normed == 3 * 4 + 3 + 4 * 2 + 1, n_normed
    run = subprocess.run([lignum, "quantize", model, gguf_file, "--type", "q4_k", "--imatrix", files[0]], capture_output=True, text=True)
    assert run.returncode == 0 and "knows 44 of the matrices" in run.stderr, run
    print("importance: %d tensors" % len(a))
    for f in files + [gguf_file]:
        os.remove(f)


def main(lignum, root):
    models = os.path.join(root, "tests/data/models")
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "out.gguf")
        for model, kinds in {os.path.join(models, "tiny-moe"): ["f32", "bf16", "f16"], os.path.join(models, "tiny-moe-fp8"): ["f32"],
                             os.path.join(models, "tiny-dense"): ["bf16", "q8_0"], os.path.join(models, "tiny-dense-r3"): ["f32", "q4_0"],
                             os.path.join(root, "models/tiny-qwen35moe"): ["bf16", "q8_0", "q6_k", "q5_k", "q4_k", "iq4_xs", "mxfp4"]}.items():
            for kind in kinds:
                check(lignum, model, kind, out)
        check_importance(lignum, root, tmp)
        # Refusals: status 2 for wrong usage, 1 for what cannot be done, and no file.
        for args, status in ((["x"], 2), ([model, out + "2"], 2), ([model, out + "2", "--type", "q9"], 2), ([model, out + "2", "--type", "f32", "--tensor", "no=q8_0"], 1),
                             ([tmp, out + "2", "--type", "f32"], 1)):
            run = subprocess.run([lignum, "quantize"] + args, capture_output=True, text=True)
            assert run.returncode == status and run.stderr and os.listdir(tmp) == ["out.gguf"], (args, run)


main(sys.argv[1], sys.argv[2])
