#!/usr/bin/env python3
"""`lignum compile` from outside: options, and with libtpu toy widths for four chips.

Usage: compile.py LIGNUM SOURCE_DIR options|toy|35b|397b

Only the options; toy widths; or real ones, which take minutes: prints the tables that docs/PJRT.md keeps.  All but the first skip
(77) without libtpu.
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tpu_config

program, source, what = sys.argv[1:4]
home = os.environ.get("LIGNUM_PJRT_DIR") or os.path.expanduser("~/.cache/lignum/pjrt")
plugin = os.path.join(home, "tpu/libtpu/libtpu.so")
n_bad = 0


def expect(good, what, got):
    global n_bad
    if not good:
        n_bad += 1
        print("expected %s, got: %s" % (what, got))


def run(*args):
    done = subprocess.run([program, "compile", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=6600)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def config(folder, name):
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as f:
        tpu_config.json.dump(tpu_config.config(name), f)
    return path


def wrong_use(path):
    for args, part in [(("--model", path, "--decode", "8,x"), "--decode 8,x"), (("--model", path, "--prefill", "8"), "--prefill 8"),
                       (("--model", path, "--kv", "f64"), "--kv f64"),
                       (("--model", path, "--experts", "fp8s64"), "--experts fp8s64: expected one of f32, bf16, fp8, wide, fp8s128, "),
                       (("--model", path, "--experts", "f16"), "--experts f16: expected one of f32, bf16, fp8, wide, fp8s128, "),
                       (("--model", path, "--act", "f32"), "--act f32: expected bf16 or fp8"), ((), "--model is missing")]:
        code, out, err = run(*args)
        expect(code == 2 and part in err, "status 2 and %r" % part, (code, err))
    code, out, err = run("--model", path + ".none.json")
    expect(code == 1 and "cannot be read" in err, "a missing config", (code, err))
    code, out, err = run("--model", path, "--plugin", "/nowhere/plugin.so")
    expect(code == 1 and "/nowhere/plugin.so" in err, "a missing plugin", (code, err))


def rows(text):
    return [line for line in text.splitlines() if line.startswith(("decode-", "prefill-", "mixed-"))]


def temp(out, most):
    """The programs' temporary memory, GiB a device, is at most what it was when this was written, and some room."""
    found = {row.split()[0]: float(row.split()[5]) for row in rows(out)}
    for name, gib in most.items():
        expect(name in found and found[name] <= gib, "%s: temporary memory of at most %.3f GiB" % (name, gib), found)


def toy(path):
    code, out, err = run("--model", path, "--experts", "fp8", "--decode", "16", "--prefill", "8x128", "--ctx", "512",
                         "--mixed")
    print(out)
    expect(code == 0, "status 0", (code, err))
    expect("GDN kernels, attention kernel, expert kernels, sums along the wires" in out, "all parts of ours", out)
    expect(len(rows(out)) == 3 and all(r.endswith(" fits") for r in rows(out)), "three rows that fit", out)
    # Of a group of 4 layers: 3 GDN kernels, 1 of attention, 2 for experts in each layer; 5 exchanges in each layer for 16 rows.
    expect(out.count("; 12 kernels; ") == 2 and out.count("; 16 kernels; ") == 1, "12 kernels, with both kinds 16", out)
    expect("20 collective-permute" in out and "reduce-scatter" not in out, "the exchanges of the sums", out)
    temp(out, {"decode-16-ctx-512": 0.010, "prefill-8x128-ctx-512": 0.030, "mixed-16-8x128-ctx-512": 0.030})
    # Written out, each of the two groups has its kernels, and the loop takes no more memory than that.
    code, out, err = run("--model", path, "--experts", "fp8", "--decode", "16", "--prefill", "", "--ctx", "512", "--unrolled")
    print(out)
    expect(code == 0 and "; 24 kernels; " in out, "24 kernels written out", (code, out, err))
    temp(out, {"decode-16-ctx-512": 0.015})
    # Experts as --device takes them.
    for experts, act, said in [("wide", "bf16", "experts bf16,"), ("fp8s128", "bf16", "experts f8E4M3FN (a scale for 128 inputs),"),
                               ("fp8", "fp8", "experts f8E4M3FN with rows of FP8,"),
                               ("fp8s2048", "fp8", "experts f8E4M3FN (a scale for 2048 inputs) with rows of FP8,")]:
        code, out, err = run("--model", path, "--experts", experts, "--act", act, "--decode", "16", "--prefill", "8x128" if act == "fp8" else "",
                             "--ctx", "512")
        print(out)
        expect(code == 0 and said in out and "expert kernels" in out, "%s, expert kernels" % said, (code, out, err))
    # Too much for a device: more pages than it has memory for.
    code, out, err = run("--model", path, "--decode", "8", "--prefill", "", "--ctx", "262144", "--parallel", "8000", "--pool-ctx", "262144")
    expect(code == 1 and ("DOES NOT FIT" in out or "FAILED" in out), "pools that do not fit", (code, out))
    # A topology that does not exist.
    code, out, err = run("--model", path, "--target", "tpu99:2x2x1")
    expect(code == 1 and err.strip(), "an unknown target", (code, err))


# What was compiled when this was written, and some room.
WIDE = {"35b": {"decode-64-ctx-8192": 0.15, "decode-512-ctx-8192": 0.3, "prefill-8x1024-ctx-8192": 2.3},
        "397b": {"decode-64-ctx-8192": 0.3, "decode-512-ctx-8192": 0.9, "prefill-8x1024-ctx-8192": 4.5}}


def wide(path, name):
    code, out, err = run("--model", path, "--experts", "fp8", "--ctx", "8192", "--state", "bf16", "--decode", "64,512", "--prefill",
                         "8x1024", "--pool-ctx", "9216")
    print(out)
    expect(code == 0, "status 0", (code, err))
    expect(len(rows(out)) == 3 and all(r.endswith(" fits") for r in rows(out)), "three rows that fit", out)
    expect(out.count("; 12 kernels; 0 copies as big as a pool ") >= 2, "decode without a copy of a pool", out)
    temp(out, WIDE[name])


with tempfile.TemporaryDirectory() as folder:
    if what == "options":
        wrong_use(config(folder, "toy"))
    elif not os.path.exists(plugin):
        print("libtpu is not there (make check-pjrt fetches it)")
        sys.exit(77)
    elif what == "toy":
        toy(config(folder, "toy"))
    else:
        wide(config(folder, what), what)
sys.exit(1 if n_bad else 0)
