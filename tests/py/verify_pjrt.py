#!/usr/bin/env python3
"""`lignum verify --device` on XLA's CPU plugin: cheaper types on a device are accepted or refused by the gates.

    verify_pjrt.py LIGNUM SOURCE_ROOT
Skipped where tools/pjrt_plugins.py has not fetched the plugin.
"""
import os
import re
import subprocess
import sys

LIGNUM, ROOT = sys.argv[1], sys.argv[2]
MODEL = os.path.join(ROOT, "models/tiny-qwen35moe")
DIR = os.environ.get("LIGNUM_PJRT_DIR") or os.path.join(os.path.expanduser("~"), ".cache", "lignum", "pjrt")
PLUGIN = os.path.join(DIR, "cpu", "lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so")


def verify(options, *args, status=0):
    # What compiles fast is enough here.
    env = {"XLA_FLAGS": "--xla_backend_optimization_level=0", **os.environ}
    device = "pjrt:" + PLUGIN + "," + options
    got = subprocess.run([LIGNUM, "verify", MODEL, "--ctx", "32", "--kv", "f32", "--device", device, *args], capture_output=True,
                         text=True, env=env)
    assert got.returncode == status, (options, got)
    print(options, *re.findall(r"KL, nats.*|result .*", got.stdout), sep="\n  ")
    return got.stdout, float(re.search(r"mean ([^,]+),", got.stdout).group(1))


def table(out):
    return {r[0]: float(r[4]) for r in re.findall(r"^  (\S.*?)" + 4 * r" +([0-9.e+-]+)" + "$", out, re.M)}


def main():
    if not os.path.exists(PLUGIN):
        print("XLA's CPU plugin is not there (make check-pjrt fetches it)")
        sys.exit(77)
    out, exact = verify("weights=f32", "--operations")
    rows = table(out)
    assert exact < 1e-10 and len(rows) == 5 + 23 and max(rows.values()) < 1e-4, out
    # Each is rounded somewhere, and no more than the gates allow.
    for cheaper in "state=bf16", "kv=fp8", "act=fp8":
        out, kl = verify("weights=f32," + cheaper)
        assert 1e-9 < kl < 0.003 and "passed" in out, out
    # With FP8 weights the twins multiply FP8 by FP8, and the plain form the same numbers as floats.
    kl = [verify("weights=f32,experts=fp8s512,act=fp8" + how)[1] for how in ("", ",kernels=twin")]
    assert 1e-9 < kl[1] < 0.003 and abs(kl[1] - kl[0]) < 0.02 * kl[0], kl
    # Rows in FP8 are seen where they go into products, not before.
    out, kl = verify("weights=f32,act=fp8", "--operations", "--max-kl", "1e-6", status=1)
    rows = table(out)
    assert "MISSED" in out and rows["routed experts"] > 0.01 and rows["layer 0"] > 1e-3, out


main()
