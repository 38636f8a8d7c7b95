#!/usr/bin/env python3
"""Compare lignum's JSON reader and writer with Python's json module.

Usage: json_compare.py JSON_ECHO [LOCALE]

A fixed seed makes the corpus: values of every kind printed in several ways, every power of two and ten as a float, and
documents damaged by one edit.  For each document both must accept or refuse, and what lignum prints must be
json.dumps(json.loads(x), ensure_ascii=False).  Known differences, by intent: Python accepts NaN and Infinity literals
and lone surrogate escapes, and joins keys that occur twice; lignum refuses the first two and keeps all keys.
"""
import json
import random
import struct
import subprocess
import sys

if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)
sys.setrecursionlimit(100000)
rnd = random.Random(20260)

EXOTIC = ["", "\x00", "\x1f\x7f", "\u0080", "\u07ff\u0800", "\ufffd\uffff\ufeff", "\U00010000\U0010ffff", "\u2028\u2029",
          '"\\/\b\f\n\r\t', "日本語", "e\u0301é", "👩‍👩‍👧", "a" * 300, "\u180e", "ß" * 40]


def random_double():
    kind = rnd.randrange(6)
    if kind == 0:
        x = struct.unpack("<d", rnd.randbytes(8))[0]
        return x if x - x == 0 else 0.0
    if kind == 1:
        return struct.unpack("<f", struct.pack("<f", rnd.gauss(0, 10)))[0]
    if kind == 2:
        return rnd.randrange(10**6) / 10 ** rnd.randrange(9)
    if kind == 3:
        return float(rnd.randrange(10**18))
    if kind == 4:
        return rnd.choice([0.0, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e15, 1e16, 1e17, 1e22,
                           1e23, 9007199254740993.0, 0.1, 0.0001, 0.00001, 1e-7, 123456789012345680.0])
    return rnd.uniform(-1, 1)


def random_string():
    if rnd.random() < 0.3:
        return rnd.choice(EXOTIC)
    top = rnd.choice([0x80, 0x80, 0x800, 0x10000, 0x110000])
    points = (rnd.randrange(top) for _ in range(rnd.randrange(12)))
    return "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000)


def random_value(depth):
    kind = rnd.randrange(8 if depth > 0 else 6)
    if kind == 0:
        return rnd.choice([None, True, False])
    if kind == 1:
        return rnd.choice([0, -1, 2**63, -(2**63), 2**64, 10**40, rnd.randrange(-1000, 1000)])
    if kind == 2:
        return random_double()
    if kind < 6:
        return random_string()
    if kind == 6:
        return [random_value(depth - 1) for _ in range(rnd.randrange(5))]
    return {random_string(): random_value(depth - 1) for _ in range(rnd.randrange(5))}


def documents():
    for _ in range(4000):
        value = random_value(rnd.randrange(5))
        yield json.dumps(value, ensure_ascii=rnd.random() < 0.5, indent=rnd.choice([None, None, 1, "\t"]))
    for e in range(-1074, 1024):
        yield repr(2.0**e)
        yield "[%r, %r]" % (2.0**e * (1 - 2.0**-53), 2.0**e * (1 + 2.0**-52))
    for e in range(-330, 320):
        yield "[1e%d, -9.999999999999999E%+d, %d.5e%d]" % (e, e, rnd.randrange(10**9), e)
    for digits in (17, 18, 25, 400, 2000):
        for _ in range(40):
            text = "".join(rnd.choice("0123456789") for _ in range(digits))
            yield "[1%s, -2.%s, 0.%se-%d]" % (text, text, text, rnd.randrange(400))
    for depth in (1, 10, 500):
        yield "[" * depth + "]" * depth
        yield '{"k":' * depth + "-0" + "}" * depth


PIECES = ['"', "\\", "\\u", "\\ud83d", "\\udc00", "\\u0000", "{", "}", "[", "]", ",", ":", "0", "-", "+", ".", "e", "E1",
          "true", "nul", " ", "\n", "\x0c", "\u00a0", "\x00", "\x1f", "//", "'", "01", "1.", ".5", "\ufeff", "é"]


def damaged(docs):
    for doc in docs:
        at, n = rnd.randrange(len(doc) + 1), rnd.randrange(3)
        yield doc[:at] + (rnd.choice(PIECES) if rnd.random() < 0.8 else "") + doc[at + n :]


def refuse_literal(name):
    raise ValueError("literal " + name)


class Repeated(Exception):
    pass


def unique(pairs):
    keys = [k for k, _ in pairs]
    if len(set(keys)) != len(keys):
        raise Repeated
    return dict(pairs)


def expect(doc):
    """What Python makes of doc: ("ok", text), ("ok", None) when keys repeat, or ("error", None)."""
    try:
        value = json.loads(doc, parse_constant=refuse_literal)
        text = json.dumps(value, ensure_ascii=False)
        text.encode()  # fails on a lone surrogate
    except ValueError:
        return "error", None
    try:
        json.loads(doc, object_pairs_hook=unique)
    except Repeated:
        return "ok", None
    return "ok", text


def main():
    docs = list(documents())
    docs += list(damaged([d for d in docs if len(d) < 2000] * 2))
    wire = b"".join(b"%d\n%s" % (len(b), b) for b in (d.encode() for d in docs))
    run = subprocess.run(sys.argv[1:], input=wire, stdout=subprocess.PIPE)
    if run.returncode:
        return run.returncode
    out, at, n_bad, n_refused = run.stdout, 0, 0, 0
    for doc in docs:
        eol = out.index(b"\n", at)
        word, n = out[at:eol].decode().split()
        got = out[eol + 1 : eol + 1 + int(n)].decode()
        at = eol + 1 + int(n)
        want_word, want = expect(doc)
        n_refused += word == "error"
        if word != want_word or (want is not None and got != want):
            n_bad += 1
            if n_bad <= 10:
                print("document %r\n  lignum %s %r\n  python %s %r" % (doc[:300], word, got[:300], want_word, want))
    print("%d documents, %d refused by both or one, %d differ" % (len(docs), n_refused, n_bad))
    return 1 if n_bad else 0


sys.exit(main())
