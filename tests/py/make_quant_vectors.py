#!/usr/bin/env python3
"""Vectors for tests/unit/test_dequant.c: blocks of every GGUF block type and what the package `gguf` decodes them to.

    make_quant_vectors.py FOLDER            write FOLDER/<type>.bin
    make_quant_vectors.py --check FOLDER    decode the stored blocks again and compare bits
The package `gguf` is installed below LG_BUILD_DIR (package.py).
A file is N blocks as in a GGUF file, then their N x block elements as little-endian float32.  The bytes of a block are
random; its binary16 scales are taken from a list with zero, subnormals and the largest numbers in it.
"""
import sys
from pathlib import Path

import package

package.need("gguf==0.19.0", "gguf")
import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

# type -> places of its binary16 numbers
TYPES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0], "MXFP4": [],
         "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_XS": [0],
         "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": []}
# 0, -0, least and largest subnormal, least normal, largest, 1, -1, and two ordinary ones
SCALES = [0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00, 0x1c37, 0x9a11]


def blocks_of(name, rnd):
    size, n_bytes = GGML_QUANT_SIZES[T[name]]
    n = 24 if size == 32 else 11
    b = rnd.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    for j, at in enumerate(TYPES[name]):
        for i in range(n):
            h = SCALES[(i + 3 * j) % len(SCALES)]
            b[i, at], b[i, at + 1] = h & 255, h >> 8
    if name == "IQ1_M":  # its scale lies in the high halves of four bytes
        b[:, 55] = b[:, 55] & 0x8f | 0x10
    if name == "MXFP4":
        b[:8, 0] = [0, 1, 2, 3, 127, 250, 253, 254]
    return b


def decode(name, b):
    with np.errstate(all="ignore"):
        return quants.dequantize(b, T[name]).astype("<f4").reshape(-1)


def main():
    check, folder = "--check" in sys.argv, Path(sys.argv[-1])
    rnd = np.random.default_rng(4)
    for name in TYPES:
        path = folder / f"{name}.bin"
        size, n_bytes = GGML_QUANT_SIZES[T[name]]
        if not check:
            b = blocks_of(name, rnd)
            path.write_bytes(b.tobytes() + decode(name, b).tobytes())
            continue
        data = path.read_bytes()
        n = len(data) // (n_bytes + 4 * size)
        b = np.frombuffer(data, np.uint8, n * n_bytes).reshape(n, n_bytes)
        if decode(name, b).tobytes() != data[n * n_bytes:]:
            sys.exit(f"{path}: gguf decodes to other numbers")
    print(f"{len(TYPES)} types")


main()
