#!/usr/bin/env python3
"""Errors of the format's reference quantiser, for tests/unit/test_quantize.c.

    make_quantize_reference.py LIBGGML_BASE > tests/data/quant/quantize.json

LIBGGML_BASE is the library of that name of a llama.cpp build; the numbers stored are those of ggml 0.25.3.  For every type
and data set two numbers: sum (x - y)^2 / sum x^2 without weights, and the same sums weighted, with those weights given to
the quantiser.  The numbers x are made by the generator of the tree (base/num.h), or read from the bundled model.
"""
import ctypes
import json
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
WIDTH, ROWS = 256, 256
MODEL = Path(__file__).resolve().parents[2] / "models/tiny-qwen35moe/model.safetensors"
U = np.uint64


def mix(z):
    z = z + U(0x9e3779b97f4a7c15)
    z = (z ^ (z >> U(30))) * U(0xbf58476d1ce4e5b9)
    z = (z ^ (z >> U(27))) * U(0x94d049bb133111eb)
    return z ^ (z >> U(31))


def unit(seed, pos, draw):
    with np.errstate(over="ignore"):
        return (mix(mix(mix(U(seed)) ^ pos) ^ U(draw)) >> U(40)).astype(np.float64) * 2.0 ** -24


def normal():
    pos = np.arange(WIDTH * ROWS, dtype=U)
    return sum(unit(1, pos, d) for d in range(12)) - 6


def data():
    pos = np.arange(WIDTH * ROWS, dtype=U)
    yield "normal", (normal() * 0.02).astype(np.float32)
    yield "heavy", (normal() * 0.02 / (0.05 + unit(2, pos, 0))).astype(np.float32)
    with open(MODEL, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        for name in ["model.layers.0.linear_attn.in_proj_qkv.weight", "model.layers.1.mlp.experts.gate_up_proj"]:
            begin = head[name]["data_offsets"][0]
            f.seek(8 + n + begin)
            h = np.frombuffer(f.read(2 * WIDTH * ROWS), "<u2").astype(np.uint32)
            yield name, (h << np.uint32(16)).view(np.float32)


def pointer(a):
    return a.ctypes.data_as(ctypes.c_void_p) if a is not None else None


def error(lib, name, x, w):
    size, n_bytes = GGML_QUANT_SIZES[T[name]]
    out = np.zeros(x.size // size * n_bytes, np.uint8)
    lib.ggml_quantize_chunk(int(T[name]), pointer(x), pointer(out), ctypes.c_int64(0), ctypes.c_int64(ROWS), ctypes.c_int64(WIDTH), pointer(w))
    y = quants.dequantize(out.reshape(ROWS, -1), T[name]).reshape(-1).astype(np.float64)
    weight = 1.0 if w is None else np.tile(w.astype(np.float64), ROWS)
    x = x.astype(np.float64)
    return float((weight * (x - y) ** 2).sum() / (weight * x ** 2).sum())


def main():
    lib = ctypes.CDLL(sys.argv[1])
    w = ((unit(3, np.arange(WIDTH, dtype=U), 0)) ** 2 + 0.01).astype(np.float32)
    out = {}
    for name in TYPES:
        out[name] = {d: [float("%.5g" % error(lib, name, x, None)), float("%.5g" % error(lib, name, x, w))] for d, x in data()}
    print(json.dumps(out, indent=1))


main()
