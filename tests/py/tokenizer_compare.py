#!/usr/bin/env python3
"""Compare lignum's tokenizer with the package `tokenizers` on random texts of many scripts.

Usage: tokenizer_compare.py TOKENIZER_ECHO TOKENIZER_JSON [COUNT [SEED]]
The package is installed below LG_BUILD_DIR (package.py).  Known difference, by intent: the package orders combining
marks by the tables of an old Unicode version; texts in which Python's own normalisation differs from the package's, or
the two answers differ in the order of characters only, are counted and not compared.
"""
import random
import subprocess
import sys
import unicodedata

import package

package.need("tokenizers==0.22.1", "tokenizers")
from tokenizers import Tokenizer

BLOCKS = [(0x20, 0x7e), (0x20, 0x7e), (0xa0, 0x24f), (0x250, 0x36f), (0x370, 0x52f), (0x530, 0x6ff), (0x700, 0x8ff),
          (0x900, 0xdff), (0xe00, 0x10ff), (0x1100, 0x11ff), (0x1200, 0x18af), (0x1900, 0x1cff), (0x1d00, 0x1fff),
          (0x2000, 0x20ff), (0x2100, 0x2bff), (0x2c00, 0x2fff), (0x3000, 0x33ff), (0x4e00, 0x9fff), (0xa000, 0xabff),
          (0xac00, 0xd7a3), (0xf900, 0xffff), (0x10000, 0x10fff), (0x11000, 0x12fff), (0x13000, 0x1afff),
          (0x1b000, 0x1cfff), (0x1d000, 0x1dfff), (0x1e000, 0x1efff), (0x1f000, 0x1faff), (0x20000, 0x323ff),
          (0xe0000, 0xe01ef), (0, 0x10ffff)]
SPACES = [" ", " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "\r", "\u00a0", "\u3000", "\u2003", "\u0085", "\u2028", "\x0b", "\u180e",
          "\u200b", "\ufeff", "\u1680", "\u202f", "\x1c", "\x1f"]
BITS = ["'s", "'S", "'LL", "'ve", "'ſ", "’s", "'d", "n't", "...", "--", "!!", "\"", "(", "_", "/", "=>", "123", "٣", "²", "Ⅷ",
        "the", "Hello", "World", "ing", "日本", "здравствуй", "한국", "مرحبا", "नमस्ते", "สวัสดี", "\u0301", "\u0323\u0301", "e\u0301",
        "\u1112\u1161\u11ab", "🙂", "👩‍👩‍👧", "🇩🇪", "\ufe0f", "\u00df", "İ", "ß", "\ufffd", "\x00", "a\u0344", "\u0f73"]


def random_char(rnd):
    low, high = rnd.choice(BLOCKS)
    while True:
        c = rnd.randint(low, high)
        if not 0xd800 <= c < 0xe000:
            return chr(c)


def random_text(rnd, added):
    parts = []
    for _ in range(rnd.randint(1, 24)):
        r = rnd.random()
        if r < 0.25:
            low, high = rnd.choice(BLOCKS)
            parts.append("".join(chr(c) for c in (rnd.randint(low, high) for _ in range(rnd.randint(1, 8)))
                                 if not 0xd800 <= c < 0xe000))
        elif r < 0.45:
            parts.append(rnd.choice(SPACES) * rnd.choice([1, 1, 1, 2, 5]))
        elif r < 0.75:
            parts.append(rnd.choice(BITS))
        elif r < 0.8:
            token = rnd.choice(added)
            parts.append(token if rnd.random() < 0.7 else token[:rnd.randint(1, len(token))])
        else:
            parts.append(random_char(rnd))
    return "".join(parts)


def ask(echo, path, control, texts):
    data = b"".join(b"%d\n%s" % (len(t), t) for t in (t.encode() for t in texts))
    out = subprocess.run([echo, path, str(control)], input=data, stdout=subprocess.PIPE, check=True).stdout.decode()
    return [[int(x) for x in line.split()] for line in out.split("\n")[:-1]]


def main():
    echo, path = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
    rnd = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    ref = Tokenizer.from_file(path)
    added = [t.content for t in ref.get_added_tokens_decoder().values()]
    texts = [random_text(rnd, added) for _ in range(count)]
    texts += [chr(c) + "a" for c in range(0x2000)] + ["x" + chr(c) for c in range(0x2000)]
    got = ask(echo, path, 1, texts)
    if len(got) != len(texts):
        print(f"{len(texts)} texts, {len(got)} answers")
        return 1
    bad = other = 0
    for text, ids in zip(texts, got):
        want = ref.encode(text, add_special_tokens=False).ids
        if ids == want:
            continue
        ours, theirs = (ref.decode(x, skip_special_tokens=False) for x in (ids, want))
        if (ref.normalizer.normalize_str(text) != unicodedata.normalize("NFC", text)
                or (ours != theirs and sorted(ours) == sorted(theirs))):
            other += 1
            continue
        bad += 1
        if bad <= 10:
            print(f"{text!r}\n  expected {want}\n  found    {ids}")
    print(f"{path}: {len(texts)} texts, {bad} differ, {other} not compared (their marks are ordered otherwise)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
