#!/usr/bin/env python3
"""Quantised folders written by the packages that define the formats, against what Lignum reads from them.

    quant_packages.py QUANT_DUMP

compressed-tensors: its own compressors write tiny-dense's matrices, its own decompressors say what they mean, its own
QuantizationConfig is the config.json.  AWQ and GPTQ: `unpack_awq`, `reverse_awq_order` (autoawq's awq/utils/packing_utils.py) and
the equations of gptqmodel's `dequantize_weight` read what is written here; the first file is loaded from $LG_AUTOAWQ, an
unpacked source package of autoawq, as the package itself does not install any more.
Needs torch, which is gigabytes, so nothing is installed: without torch and compressed-tensors the test is skipped.
"""
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
except ImportError as e:
    print("skipped: %s (pip install compressed-tensors==0.20.1 torch numpy)" % e)
    sys.exit(77)

SOURCE = os.path.join(os.environ["LG_SOURCE_DIR"], "tests/data/models/tiny-dense")
ORDER = ["linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I32": torch.int32, "I64": torch.int64,
         "I8": torch.int8, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}
NAMES = {v: k for k, v in TYPES.items()}


def load(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            raw = torch.frombuffer(bytearray(data[8 + n + a:8 + n + b]), dtype=TYPES[t["dtype"]])
            out[name] = raw.reshape(t["shape"])
    return out


def save(path, tensors):
    head, body = {}, b""
    for name, t in tensors.items():
        raw = t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        head[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(head).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)


def scales(w, args):
    """Scale and zero point of each part of w as an observer would give them: [rows][groups] or one."""
    size = {"group": args.group_size, "tensor_group": args.group_size}.get(args.strategy, w.shape[1])
    part = w.reshape(w.shape[0], -1, size)
    low, high = part.amin(-1).clamp(max=0), part.amax(-1).clamp(min=0)
    if args.strategy == "tensor":
        low, high = low.min().reshape(1), high.max().reshape(1)
    top = 448.0 if args.num_bits == 8 else 6.0
    if args.type == "int":
        top = 2.0 ** args.num_bits - 1
    span = torch.maximum(-low, high)
    if args.type == "float":
        s = span / top
    else:
        s = span * 2 / top if args.symmetric else (high - low) / top
    s = s.clamp(min=1e-6).bfloat16()
    if args.symmetric:
        return s, None
    zero = torch.round(-low / s.float()) - 2.0 ** (args.num_bits - 1)
    return s, zero.clamp(-2.0 ** (args.num_bits - 1), 2.0 ** (args.num_bits - 1) - 1).to(torch.int8)


def compressed(format, args):
    """tensors, floats and config.json's part for one format of compressed-tensors."""
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=format)
    tool = BaseCompressor.get_value_from_registry(format)

    def one(w):
        s, zero = scales(w, args)
        state = {"weight": w, "weight_scale": s}
        if zero is not None:
            state["weight_zero_point"] = zero
        if args.strategy == "tensor_group":
            state["weight_global_scale"] = (448 * 6 / w.abs().max()).float().reshape(1)
            state["weight_scale"] = (s.float() * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        if format == "mxfp4-pack-quantized":
            state["weight_scale"] = torch.exp2(torch.floor(torch.log2(s.float())) + 1)
        packed = tool.compress(dict(state), scheme)
        if format == "nvfp4-pack-quantized":  # decompress rounds to bfloat16
            value = unpack_fp4_from_uint8(packed["weight_packed"], *w.shape).float().reshape(w.shape[0], -1, 16)
            d = packed["weight_scale"].float() / packed["weight_global_scale"]
            return packed, (value * d[:, :, None]).reshape(w.shape)
        exact = {k: v.float() if k == "weight_scale" and v.dtype == torch.bfloat16 else v for k, v in packed.items()}
        return packed, tool.decompress(exact, scheme)["weight"].float()

    config = QuantizationConfig(config_groups={"group_0": scheme}, format=format, ignore=["lm_head"], quantization_status="compressed")
    # Members that only say that there is nothing are not in files either.
    return one, {k: v for k, v in config.to_dict().items() if v is not None}


def gptq(sym, act_order):
    """GPTQ of version 1, and gptqmodel's dequantize_weight: scales[g_idx] * (q - zeros[g_idx])."""
    def one(w):
        size, n_in = 32, w.shape[1]
        g = torch.arange(n_in) * 37 % n_in // size if act_order else torch.arange(n_in) // size
        g = g.to(torch.int32)
        s = torch.stack([w[:, g == i].abs().amax(1) for i in range(n_in // size)]) / 7.5
        s = s.clamp(min=1e-6).half()
        zero = torch.full(s.shape, 8) if sym else torch.randint(0, 16, s.shape)
        q = (torch.round(w.T / s.float()[g.long()]) + zero[g.long()]).clamp(0, 15).to(torch.int64)
        shift = torch.arange(0, 32, 4)
        qweight = (q.reshape(n_in // 8, 8, -1) << shift[None, :, None]).sum(1)
        # gptqmodel writes version 1 by subtracting 0x11111111 from whole words, so a zero borrows from its neighbour.
        qzeros = ((zero.reshape(zero.shape[0], -1, 8) << shift).sum(-1) - 0x11111111) % 2 ** 32
        value = s.float()[g.long()] * (q - zero[g.long()]).float()
        wrap = lambda t: torch.where(t >= 2 ** 31, t - 2 ** 32, t).to(torch.int32)
        return {"qweight": wrap(qweight), "qzeros": wrap(qzeros), "scales": s, "g_idx": g}, value.T
    return one, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": sym, "desc_act": act_order}


def awq(tool):
    """AWQ: random words, which autoawq's own functions take apart."""
    def one(w):
        n_out, n_in = w.shape
        qweight = torch.randint(-2 ** 31, 2 ** 31, (n_in, n_out // 8), dtype=torch.int64).to(torch.int32)
        qzeros = torch.randint(-2 ** 31, 2 ** 31, (n_in // 32, n_out // 8), dtype=torch.int64).to(torch.int32)
        s = (torch.rand(n_in // 32, n_out) * 1e-2).half()
        q, z = tool.reverse_awq_order(*tool.unpack_awq(qweight, qzeros, 4), 4)
        q, z = q & 15, z & 15
        value = s.float().repeat_interleave(32, 0) * (q - z.repeat_interleave(32, 0)).float()
        return {"qweight": qweight, "qzeros": qzeros, "scales": s}, value.T
    return one, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def check(name, dump, one, config):
    tensors, want = {}, {}
    for key, t in load(os.path.join(SOURCE, "model.safetensors")).items():
        base = key[:-7] if key.endswith(".weight") else ""
        if any(base.endswith(o) for o in ORDER):
            parts, value = one(t.float())
            tensors.update({base + "." + k: v for k, v in parts.items()})
            want[base] = value
        else:
            tensors[key] = t
    with tempfile.TemporaryDirectory() as folder:
        for f in os.listdir(SOURCE):
            shutil.copy(os.path.join(SOURCE, f), folder)
        text = json.load(open(os.path.join(SOURCE, "config.json")))
        text["quantization_config"] = config
        json.dump(text, open(os.path.join(folder, "config.json"), "w"), default=str)
        save(os.path.join(folder, "model.safetensors"), tensors)
        got = subprocess.run([dump, folder], capture_output=True)
    if got.returncode:
        sys.exit("%s: %s" % (name, got.stderr.decode().strip()))
    floats = torch.frombuffer(bytearray(got.stdout), dtype=torch.float32)
    expected = torch.cat([want["model.layers.0." + o].reshape(-1) for o in ORDER])
    assert floats.numel() == expected.numel(), name
    worst = ((floats - expected).abs() / expected.abs().clamp(min=1e-12)).max().item()
    print("%-50s %d numbers, worst relative difference %.1e" % (name, floats.numel(), worst))
    return worst <= 2e-7  # the order of two factors


def main():
    dump = sys.argv[1]
    torch.manual_seed(1)
    A = QuantizationArgs
    cases = [("pack-quantized", A(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)),
             ("pack-quantized", A(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)),
             ("pack-quantized", A(num_bits=4, type="int", strategy="channel", symmetric=True)),
             ("pack-quantized", A(num_bits=8, type="int", strategy="group", group_size=32, symmetric=True)),
             ("int-quantized", A(num_bits=8, type="int", strategy="channel", symmetric=True)),
             ("float-quantized", A(num_bits=8, type="float", strategy="channel", symmetric=True)),
             ("float-quantized", A(num_bits=8, type="float", strategy="tensor", symmetric=True)),
             ("nvfp4-pack-quantized", A(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)),
             ("mxfp4-pack-quantized", A(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True))]
    good = [check("%s %d %s sym=%s" % (f, a.num_bits, a.strategy, a.symmetric), dump, *compressed(f, a)) for f, a in cases]
    good += [check("gptq sym=%s desc_act=%s" % (s, o), dump, *gptq(s, o)) for s in (True, False) for o in (False, True)]
    source = os.environ.get("LG_AUTOAWQ")
    if source:
        spec = importlib.util.spec_from_file_location("packing", os.path.join(source, "awq/utils/packing_utils.py"))
        tool = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tool)
        good.append(check("awq gemm", dump, *awq(tool)))
    else:
        print("awq: not compared (LG_AUTOAWQ is not set)")
    sys.exit(0 if all(good) else "a difference is too large")


if __name__ == "__main__":
    main()
