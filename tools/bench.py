#!/usr/bin/env python3
"""Lignum beside llama.cpp on the same file: `make bench`.

Builds the peer once from its source package on PyPI (a pinned version, into a cache folder), writes a model of real shape with
random weights, then runs both in turns, repeat after repeat, and prints medians, the median of the ratios within one repeat, and
the share of what this machine could do at most (memory bandwidth and products a second, measured in the same run).

Tests: ppN reads a prompt of N tokens; tg writes one answer; tg@D after D tokens of context; bN writes N answers at the same time
(prompts of 16 tokens, 32 tokens each)."""
import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEER = "0.3.36"  # of llama-cpp-python, whose source package carries llama.cpp
PEER_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SHAPES = {  # hidden, heads, kv heads, experts, used, wide, value heads, layers: as in tests/bench/synth_gguf.c
    "35b": (2048, 16, 2, 256, 8, 512, 32, 40),
    "122b": (3072, 32, 2, 256, 8, 1024, 64, 48),
    "397b": (4096, 32, 2, 512, 10, 1024, 64, 60),
}
TESTS = "pp128,pp512,pp2048,tg,tg@8192,b4,b16,b64"
N_SEED, N_ONE, N_MANY = 16, 64, 32  # prompt and answers of the decode tests


def say(text):
    print("bench: " + text, file=sys.stderr, flush=True)


def quietly(*command, **more):
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if r.returncode:
        sys.stderr.write("\n".join(r.stdout.splitlines()[-20:]) + "\n")
        raise RuntimeError("failed: " + " ".join(command))
    return r.stdout


# ---- the peer ----

def fetch_peer(cache, folder):
    work = os.path.join(cache, "download")
    say("getting the peer's source package")
    quietly(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", work, "llama-cpp-python==" + PEER)
    package = os.path.join(work, "llama_cpp_python-%s.tar.gz" % PEER)
    with open(package, "rb") as f:
        found = hashlib.sha256(f.read()).hexdigest()
    if found != PEER_SHA256:
        raise RuntimeError("%s: SHA-256 is %s, expected %s" % (package, found, PEER_SHA256))
    with tarfile.open(package) as t:
        top = "llama_cpp_python-%s/vendor/llama.cpp/" % PEER
        for m in t.getmembers():
            if m.name.startswith(top):
                m.name = m.name[len(top):]
                t.extract(m, folder + ".part", filter="data")
    os.rename(folder + ".part", folder)
    shutil.rmtree(work)


def build_peer(cache):
    """Folder of the peer's programs; built when they are not there."""
    folder = os.path.join(cache, "llama.cpp-" + PEER)
    programs = os.path.join(folder, "build/bin")
    if all(os.path.exists(os.path.join(programs, p)) for p in ("llama-bench", "llama-batched-bench")):
        return programs
    if not os.path.isdir(folder):
        fetch_peer(cache, folder)
    say("building the peer, once; 10 to 20 minutes on two cores")
    quietly("cmake", "-S", folder, "-B", folder + "/build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
            "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_TOOLS=ON")
    quietly("cmake", "--build", folder + "/build", "-j", str(os.cpu_count()), "--target", "llama-bench", "llama-batched-bench")
    return programs


def run_peer(a, test):
    common = ["-m", a.model, "-t", str(a.threads), "-ub", "512", "-b", "2048"]
    if test[0] == "b":
        n = int(test[1:])
        out = quietly(os.path.join(a.peer, "llama-batched-bench"), *common, "-c", str(n * (N_SEED + N_MANY) + 64), "-npp", str(N_SEED),
                      "-ntg", str(N_MANY), "-npl", str(n), "--output-format", "jsonl")
        return [json.loads(line)["speed_tg"] for line in out.splitlines() if line.startswith("{")][0]
    what, _, depth = test.partition("@")
    n = ["-p", "0", "-n", str(N_ONE)] if what == "tg" else ["-p", what[2:], "-n", "0"]
    out = quietly(os.path.join(a.peer, "llama-bench"), *common, *n, "-d", depth or "0", "-r", "1", "-o", "jsonl")
    return [json.loads(line)["avg_ts"] for line in out.splitlines() if line.startswith("{")][0]


# ---- Lignum ----

def run_ours(a, test):
    what, _, depth = test.partition("@")
    prompt, batch, gen = "16", "1", N_ONE
    if what[:2] == "pp":
        prompt, gen = what[2:], 1
    elif what[0] == "b":
        batch, gen = what[1:], N_MANY
    command = [a.lignum, "bench", "-m", a.model, "--json", "--repeat", "1", "--threads", str(a.threads), "--prompt", prompt,
               "--batch", batch, "--gen", str(gen)] + (["--depth", depth] if depth else [])
    out = json.loads([line for line in quietly(*command).splitlines() if line.startswith("{")][-1])
    a.about = "%s, %s kernels, %d threads" % (out["machine"], out["kernels"], out["threads"])
    return out["prompt" if what[:2] == "pp" else "answers"][0]["tokens_per_s"]


# ---- the limit ----

def limit(a, test, peak):
    """Tokens a second that bandwidth and products of this machine allow at most; None for a model of unknown shape."""
    if not a.shape:
        return None
    hidden, heads, kv, experts, used, wide, vheads, _ = SHAPES[a.shape]
    layers, bytes_per = a.layers, {"Q4_K": 144 / 256, "Q8_0": 34 / 32, "Q6_K": 210 / 256, "BF16": 2, "Q4_0": 18 / 32}.get(a.type)
    if bytes_per is None:
        return None
    attn, gdn = layers // 4, layers - layers // 4
    what, _, depth = test.partition("@")
    depth = int(depth or 0)
    n = int(what[2:]) if what[:2] == "pp" else int(what[1:]) if what[0] == "b" else 1
    dense = attn * (hidden * 256 * (2 * heads + 2 * kv) + 256 * heads * hidden) + gdn * hidden * (4096 + 2 * vheads * 128 + vheads * 128)
    dense += layers * 3 * hidden * wide
    router = layers * hidden * experts + gdn * 2 * hidden * vheads
    expert = layers * 3 * hidden * wide
    head = hidden * a.vocab
    touched = experts * (1 - (1 - used / experts) ** n)
    state = gdn * vheads * 128 * 128 * 4 * (1 + 1 / 32) * (n if what[:2] != "pp" else 1)
    cache = 2 * attn * kv * 256 * 2
    rows_head = 1 if what[:2] == "pp" else n
    load = (dense + expert * touched) * bytes_per + head * 210 / 256 + router * 4 + state + cache * depth * (1 if what[:2] == "pp" else n)
    scores = 2 * attn * heads * 256 * (depth + (n / 2 if what[:2] == "pp" else 0))
    whole = n * (dense + expert * used) + rows_head * head
    real = n * (router + 2 * gdn * vheads * 128 * 128 + scores)
    seconds = max(load / (peak["stream_gbs"] * 1e9), whole / (peak["integer"] * 1e9) + real / (peak["fma_gmacs"] * 1e9))
    return n / seconds


# ---- the run ----

def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", help="a GGUF file instead of a synthetic one")
    ap.add_argument("--shape", default="35b", choices=SHAPES)
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--vocab", type=int, default=32768)
    ap.add_argument("--type", default="Q4_K")
    ap.add_argument("--tests", default=TESTS, help="default " + TESTS)
    ap.add_argument("--repeat", type=int, default=5)
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--peer", help="folder with llama-bench and llama-batched-bench of any llama.cpp; default: built from the package")
    ap.add_argument("--no-peer", action="store_true", help="measure Lignum alone")
    ap.add_argument("--lignum", default=os.path.join(ROOT, "build/cli/lignum"))
    ap.add_argument("--cache", default=os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lignum/bench"))
    ap.add_argument("--json", help="write every figure to this file")
    a = ap.parse_args()
    a.about = ""
    return a


def prepare(a):
    os.makedirs(a.cache, exist_ok=True)
    if a.no_peer:
        a.peer = None
    elif not a.peer:
        try:
            a.peer = build_peer(a.cache)
        except (RuntimeError, OSError) as e:
            say("%s; Lignum is measured alone" % e)
    if a.model:
        a.shape = None
        return
    a.model = os.path.join(a.cache, "%s-%d-%s-%d.gguf" % (a.shape, a.layers, a.type.lower(), a.vocab))
    if not os.path.exists(a.model):
        quietly(os.path.join(os.path.dirname(a.lignum), "../tests/bench/synth_gguf"), a.model, "--shape", a.shape, "--layers",
                str(a.layers), "--vocab", str(a.vocab), "--type", a.type)


def warm(path):
    """Into the page cache, so that nobody pays for the disk."""
    with open(path, "rb", buffering=0) as f:
        buf = bytearray(1 << 24)
        while f.readinto(buf):
            pass


def main():
    a = options()
    prepare(a)
    warm(a.model)
    limits = os.path.join(os.path.dirname(a.lignum), "../tests/bench/bench_limits")
    peak = json.loads(quietly(limits, str(a.threads)))
    peak["integer"] = max(v for k, v in peak.items() if k.startswith("int8"))
    tests, ours, peer = a.tests.split(","), {}, {}
    for r in range(a.repeat):
        for t in tests:
            say("repeat %d of %d: %s" % (r + 1, a.repeat, t))
            ours.setdefault(t, []).append(run_ours(a, t))
            if a.peer:
                peer.setdefault(t, []).append(run_peer(a, t))
    print("%s\n%s, medians of %d, tokens/s" % (a.about, os.path.basename(a.model), a.repeat))
    print("limits: stream %.1f GB/s, %s GMAC/s\n" % (peak["stream_gbs"],
          ", ".join("%s %.0f" % (k.replace("_gmacs", ""), v) for k, v in peak.items() if k.endswith("_gmacs"))))
    print("%-10s %10s %10s %8s %10s %10s" % ("test", "lignum", "llama.cpp", "ratio", "limit", "of limit"))
    for t in tests:
        top, mine = limit(a, t, peak), statistics.median(ours[t])
        theirs = "%10.1f" % statistics.median(peer[t]) if a.peer else "%10s" % "-"
        ratio = "%7.2fx" % statistics.median(x / y for x, y in zip(ours[t], peer[t])) if a.peer else "%8s" % "-"
        share = "%10.0f %9.0f%%" % (top, 100 * mine / top) if top else "%10s %10s" % ("-", "-")
        print("%-10s %10.1f %s %s %s" % (t, mine, theirs, ratio, share))
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"about": a.about, "model": os.path.basename(a.model), "limits": peak, "lignum": ours, "llama.cpp": peer}, f)


if __name__ == "__main__":
    main()
