#!/usr/bin/env python3
"""inspect_compare.py - `lignum inspect` against counts made here from the files' own headers.

usage: inspect_compare.py LIGNUM SOURCE_DIR
"""
import collections
import glob
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

lignum, source = sys.argv[1], sys.argv[2]
MODELS = ["models/tiny-qwen35moe", "tests/data/models/tiny-dense", "tests/data/models/tiny-dense-r3",
          "tests/data/models/tiny-moe", "tests/data/models/tiny-moe-fp8"]
n_check = 0


def run(*args):
    p = subprocess.run([lignum, "inspect", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def expect(what, got, want):
    global n_check
    n_check += 1
    if got != want:
        sys.exit("%s: got %r, expected %r" % (what, got, want))


def headers(path):
    for name in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        with open(name, "rb") as f:
            head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        for tensor, t in head.items():
            if tensor != "__metadata__":
                yield tensor, t["dtype"], t["shape"], t["data_offsets"][1] - t["data_offsets"][0]


def count(path, cfg):
    """Tallies by type, skipped tallies, parameters and those of routed experts."""
    types, skipped = collections.Counter(), collections.Counter()
    n_param = n_expert = 0
    for name, dtype, shape, size in headers(path):
        group = "mtp" if name.startswith("mtp.") else "vision" if name.startswith("model.visual.") else None
        if group:
            skipped[group, "tensors"] += 1
            skipped[group, "bytes"] += size
            continue
        types[dtype, "tensors"] += 1
        types[dtype, "bytes"] += size
        if not name.endswith("_scale_inv"):
            n_param += math.prod(shape)
            n_expert += math.prod(shape) if ".experts." in name else 0
    active = n_param
    if n_expert:
        active -= n_expert // cfg["num_experts"] * (cfg["num_experts"] - cfg["num_experts_per_tok"])
    return types, skipped, n_param, active


KV_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "q8_0": 1 + 2 / 32}  # an element


def memory(cfg, n_ctx, kv_type):
    """Bytes of keys and values in pages of 64 positions, and of the recurrent state with 32 open rows of float32."""
    kinds = cfg["layer_types"]
    n_attn, n_gdn = kinds.count("full_attention"), kinds.count("linear_attention")
    nk, nv = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"]
    dk, dv = cfg["linear_key_head_dim"], cfg["linear_value_head_dim"]
    kv = -(-n_ctx // 64) * 64 * n_attn * 2 * cfg["num_key_value_heads"] * cfg["head_dim"] * KV_BYTES[kv_type]
    state = nv * dk * dv + 3 * (2 * nk * dk + nv * dv) + 32 * (nk * dk + nv * dv + nv)
    return kv, n_gdn * state * 4


def check_model(name):
    path = os.path.join(source, name)
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        cfg = json.load(f)
    cfg = cfg.get("text_config", cfg)
    types, skipped, n_param, active = count(path, cfg)
    for n_ctx in (1, 64, 65, 1000, cfg["max_position_embeddings"]):
        kv_type = ("f32", "bf16", "f16", "q8_0")[n_ctx % 4]
        rc, out, err = run(path, "--json", "--ctx", str(n_ctx), "--kv", kv_type)
        expect(name + " status", (rc, err), (0, ""))
        got = json.loads(out)
        kv, state = memory(cfg, n_ctx, kv_type)
        m = got["memory"]
        expect(name + " memory", (m["context"], m["kv_type"], m["kv_bytes"], m["sequence_bytes"]), (n_ctx, kv_type, kv, kv + m["state_bytes"]))
        expect(name + " state is at least what it holds", m["state_bytes"] >= state, True)
        expect(name + " state is little more", m["state_bytes"] <= state + 4096, True)
    expect(name + " parameters", got["parameters"], {"total": n_param, "active": active})
    expect(name + " types", {(t, k): v for t, x in got["tensors"].items() for k, v in x.items()}, dict(types))
    expect(name + " skipped", {(t, k): v for t, x in got["skipped"].items() for k, v in x.items() if v}, dict(skipped))
    plan = [u["kind"] for u in got["layers"]["unit"] for _ in range(u["count"])] * got["layers"]["repeat"]
    expect(name + " plan", plan, [{"full_attention": "attention", "linear_attention": "GDN"}[k] for k in cfg["layer_types"]])
    expect(name + " quantization", got["quantization"], "fp8" if "fp8" in name else None)
    rc, out, err = run(path)
    expect(name + " text status", (rc, err), (0, ""))
    for word in ("kind", "layers", "parameters", "tensors", "memory", "a sequence of"):
        expect(name + " text has " + word, word in out, True)
    return out


def check_plan():
    """Budgets from too small to ample: all within, growing, and the line says what would fit."""
    path, last = os.path.join(source, "models/tiny-qwen35moe"), -1
    for mib in (10, 40, 64, 100, 400, 2000):
        got = json.loads(run(path, "--json", "--memory", "%dM" % mib)[1])
        plan = got["plan"]
        expect("plan's budget", plan["budget_bytes"], mib << 20)
        if "error" in plan:
            expect("only the smallest does not fit", mib, 10)
            expect("it says what would", "would fit" in plan["error"], True)
            continue
        total = got["memory"]["weight_bytes"] + plan["state_bytes"] + plan["scratch_bytes"]
        expect("%d MiB: within the budget" % mib, total <= mib << 20, True)
        expect("%d MiB: a whole context fits" % mib, plan["pages"] * 64 >= plan["context"], True)
        expect("%d MiB: more memory, more pages" % mib, plan["pages"] >= last, True)
        last = plan["pages"]
    plan = json.loads(run(path, "--json", "--memory", "100M", "--parallel", "3", "--ctx", "500")[1])["plan"]
    expect("as asked", (plan["sequences"], plan["context"]), (3, 500))
    free = json.loads(run(path, "--json")[1])["plan"]["budget_bytes"]
    with open("/proc/meminfo", encoding="ascii") as f:
        available = int(re.search(r"MemAvailable: *(\d+) kB", f.read()).group(1)) * 1024
    expect("the machine's own is not more than it has", 0 < free <= available, True)


check_plan()
text = [check_model(name) for name in MODELS]
expect("repeated layers", "8: (3 x GDN + 1 x attention) x 2" in text[3], True)
expect("skipped", "draft layer (MTP), 19 tensors" in text[3] and "vision tower, 1 tensor," in text[3], True)

with tempfile.TemporaryDirectory() as tmp:
    for args, rc, word in ((["--help"], 0, ""), ([], 2, "one model folder"), (["a", "b"], 2, "one model folder"),
                           ([tmp], 1, "config.json"), ([tmp + "/none"], 1, "config.json"), (["--bad", tmp], 2, "--bad"),
                           ([os.path.join(source, MODELS[0]), "--ctx", "0"], 2, "--ctx"),
                           ([os.path.join(source, MODELS[0]), "--ctx", "4097"], 1, "at most the model's 4096")):
        got = run(*args)
        expect("inspect %s" % args, got[0], rc)
        expect("inspect %s says %s" % (args, word), word in got[2], True)
    expect("help", "--json" in run("--help")[1], True)
print("%d checks on %d models" % (n_check, len(MODELS)))
