#!/usr/bin/env python3
"""The format matrix: every type of weights x (load, verify at every level, a peer on the same file).

    matrix.py LIGNUM QUANT_MAKE SOURCE_ROOT [--peer] [--only NAME,NAME]
The bundled model in every type.  GGUF files are written by `lignum quantize`; Q2_K, Q3_K and the code-book types, which it does not
write, by llama.cpp's quantiser (with an importance matrix by `lignum imatrix`); folders by tests/unit/quant_make.c.
  verify      KL against the same weights multiplied as floats, KV in F32: 0 at level ref, the same figure at every other level of
              this machine, and below LIMIT
  --peer      llama.cpp's KL on the same file, positions and reference, beside which ours must not be worse.  Perplexity: of both
              with floats, which must agree within 0.05 %, and of both as they serve the file, within 0.5 % unless ours is that
              near to the floats' and the peer is not.  A folder's peer file is F32 with the folder's numbers, dequantised
Programs of the peer: LG_PEER, or where `tools/bench.py --build` puts them; skipped when they are not there.
"""
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

LIGNUM, MAKE, ROOT = (os.path.abspath(x) for x in sys.argv[1:4])
MODEL = os.path.join(ROOT, "models/tiny-qwen35moe")
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lignum/bench")
PEER = os.environ.get("LG_PEER") or os.path.join(CACHE, "llama.cpp-0.3.36/build/bin")
CTX, CHUNKS, FEW = 256, 24, 6  # FEW: of types whose products are slow
LEVELS = ("avx2", "avx512", "avx512vnni", "amx")
FINAL = r"Final estimate: PPL = (\S+)"
LIMIT = 0.01      # nats, of any type at any level
ROUNDED = 2e-5    # nats; a lower median has another reason than rounded rows of most matrices
WORSE = 1.1       # geometric mean of KL over the peer's: both round rows to bytes, and one expert more or less moves a file by a tenth
OURS = "f32 f16 bf16 q8_0 q6_k q5_k q5_1 q5_0 q4_k q4_1 q4_0 iq4_nl iq4_xs mxfp4".split()
THEIRS = "q3_k_s q2_k_s iq3_s iq3_xxs iq2_m iq2_xs iq2_xxs iq1_m iq1_s".split()
GROUP = {"targets": ["Linear"]}


def compressed(form, bits, kind, **more):
    weights = {"num_bits": bits, "type": kind, "symmetric": True, "dynamic": False, **more}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "quantization_status": "compressed",
            "config_groups": {"group_0": {**GROUP, "weights": weights, "input_activations": None}}}


def gptq(bits, sym, act):
    return {"quant_method": "gptq", "bits": bits, "group_size": 128, "sym": sym, "desc_act": act}


FOLDERS = {  # a row of quant_make.c -> what config.json says
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "gptq": gptq(4, False, False), "gptq-act-order": gptq(4, True, True), "gptq-8": gptq(8, True, False),
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": ["lm_head", "mlp.gate."]},
    "ct-int4": compressed("pack-quantized", 4, "int", strategy="group", group_size=32),
    "ct-int4-128": compressed("pack-quantized", 4, "int", strategy="group", group_size=128),
    "ct-fp8": compressed("float-quantized", 8, "float", strategy="channel"),
    "ct-nvfp4": compressed("nvfp4-pack-quantized", 4, "float", strategy="tensor_group", group_size=16),
    "ct-mxfp4": compressed("mxfp4-pack-quantized", 4, "float", strategy="group", group_size=32),
    "modelopt-nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
}


def run(*command, **env):
    """One thread each: a peer's threads wait for each other without end on a busy machine."""
    got = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=600,
                         env={**os.environ, "LG_SOURCE_DIR": ROOT, **env})
    if got.returncode:
        raise AssertionError("%s: exit status %d\n%s" % (" ".join(command), got.returncode, got.stdout[-500:].strip().replace("\n", "; ")))
    return got.stdout


def number(pattern, text):
    found = re.search(pattern, text)
    assert found, (pattern, text[-2000:])
    return float(found.group(1))


def write_text(path):
    """Chats without tags: llama.cpp takes <think> and the like for control tokens even in plain text."""
    with open(path, "w", encoding="utf-8") as f, open(os.path.join(ROOT, "tests/data/eval.jsonl"), encoding="utf-8") as rows:
        for line in rows:
            row = json.loads(line)
            f.write(re.sub(r"<[^<>]*>", "", row["messages"][-1]["content"] + "\n" + row["expected_text"]) + "\n")


# ---- files ----

def peer_program(name):
    return os.path.join(PEER, name)


def sources(tmp):
    return os.path.join(tmp, "source.gguf"), os.path.join(tmp, "imatrix.gguf")


def make_sources(tmp):
    source, matrix = sources(tmp)
    run(LIGNUM, "quantize", MODEL, source, "--type", "bf16", "--no-mtp")
    run(LIGNUM, "imatrix", MODEL, os.path.join(tmp, "text"), matrix, "--ctx", str(CTX))


def make_gguf(tmp, kind):
    """(file for us, file for the peer)"""
    path = os.path.join(tmp, kind + ".gguf")
    if kind in OURS:
        run(LIGNUM, "quantize", MODEL, path, "--type", kind)
        return path, path
    source, matrix = sources(tmp)
    run(peer_program("llama-quantize"), "--pure", "--token-embedding-type", "q4_K", "--imatrix", matrix, source, path, kind.upper(), "2")
    return path, path


def make_folder(tmp, name, peer):
    quant, plain = (os.path.join(tmp, name + "." + x) for x in ("quant", "plain"))
    for folder in quant, plain:
        os.mkdir(folder)
        for f in os.listdir(MODEL):
            if "safetensors" not in f:
                shutil.copy(os.path.join(MODEL, f), folder)
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config["quantization_config"] = FOLDERS[name]
    with open(os.path.join(quant, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    run(MAKE, "models/tiny-qwen35moe", name, quant, plain)
    file = os.path.join(tmp, name + ".gguf")
    if peer:
        run(LIGNUM, "quantize", plain, file, "--type", "f32", "--no-mtp")
    return quant, file


# ---- measuring ----

def verify(model, text, level, *part):
    """(types in it, mean KL, median KL); None when this machine lacks the level."""
    out = run(LIGNUM, "verify", model, "--text", text, "--threads", "1", "--kv", "f32", "--max-kl", str(LIMIT), "--min-top1", "90", *part,
              LG_CPU=level)
    if re.search(r"level +(\S+)", out).group(1) != level:
        return None
    types = " ".join(p for p in re.findall(r"(\S+ \d+)", out.split(": ", 1)[1].splitlines()[0]))
    return types, number(r"KL, nats +mean ([^,]+),", out), number(r"median ([^,]+),", out)


def levels_of(model, text, end):
    """The levels of this machine, and the figures at the highest: a part of the text tells that they are the same at each."""
    level, figures = "ref", verify(model, text + ".short", "ref", "--ctx", "32")
    assert figures[1] < 1e-12, "level ref rounds something"
    half = ["--ctx", str(CTX), "--skip", str(CTX // 2)]
    same = {lv: verify(model, text + ".part", lv, *half) for lv in LEVELS}
    same = {lv: f for lv, f in same.items() if f}
    assert len(set(same.values())) <= 1, same
    if same:
        level = list(same)[-1]
        figures = verify(model, text + end, level, *half)
    return ["ref", *same], figures


def peer_says(patterns, *command):
    """Numbers of its output, whose end it loses now and then when it exits: then again."""
    for attempt in range(10):
        out = run(*command)
        if all(re.search(p, out) for p in patterns):
            break
    return tuple(number(p, out) for p in patterns)


def peer_figures(tmp, name, path, text, chunks, quantised):
    """(perplexity, of floats, mean KL, median KL); KL None for a file that is its own reference."""
    common = ["-c", str(CTX), "--chunks", chunks, "-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "-f", text]
    program = peer_program("llama-perplexity")
    if not quantised:
        return 2 * peer_says([FINAL], program, "-m", path, *common) + (None, None)
    exact, base = os.path.join(tmp, name + ".exact.gguf"), os.path.join(tmp, name + ".base")
    run(peer_program("llama-quantize"), "--allow-requantize", path, exact, "F32", "2")
    floats = peer_says([FINAL], program, "-m", exact, *common, "--kl-divergence-base", base)
    served, *kl = peer_says([r"PPL\(Q\) +: +(\S+)", r"Mean +KLD: +(\S+)", r"Median +KLD: +(\S+)"], program, "-m", path, *common,
                        "--kl-divergence-base", base, "--kl-divergence")
    os.unlink(exact)
    os.unlink(base)
    return served, floats[0], *kl


def measure(tmp, name, peer):
    few = name.startswith("iq") and name in THEIRS
    text, chunks = os.path.join(tmp, "text"), str(FEW if few else CHUNKS)
    model, file = make_folder(tmp, name, peer) if name in FOLDERS else make_gguf(tmp, name)
    levels, (types, mean, median) = levels_of(model, text, ".few" if few else "")
    row = {"name": name, "types": types, "levels": levels, "mean": mean, "median": median}
    if peer:
        for key, more in ("ppl", ("--kv", "f32")), ("exact", ("--exact",)):
            out = run(LIGNUM, "perplexity", model, text, "--ctx", str(CTX), "--chunks", chunks, "--threads", "1", *more)
            row[key] = number(r"perplexity ([0-9.]+)", out)
        quantised = name in OURS[1:] + THEIRS
        row["peer_ppl"], row["peer_exact"], row["peer_mean"], row["peer_median"] = peer_figures(tmp, name, file, text, chunks, quantised)
    for path in {model, file}:
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)
    return row


def measure_all(tmp, names, peer):
    """(rows, errors); one line for each type."""
    rows, bad = [], []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, job in [(n, pool.submit(measure, tmp, n, peer)) for n in names]:
            try:
                rows.append(job.result())
                print(line_of(rows[-1]), flush=True)
            except AssertionError as e:
                bad.append("%s: %s" % (name, e))
                print("| %s | FAILED: %s |" % (name, e), flush=True)
    return rows, bad


def off(x, y):
    return abs(x / y - 1)


def line_of(r):
    cells = [r["name"], r["types"], "%.2g" % r["mean"], "%.2g" % r["median"]]
    if "ppl" in r:
        cells += ["-"] * 3 if r["peer_mean"] is None else ["%.2g" % r["peer_mean"], "%.2g" % r["peer_median"],
                                                           "%.2f" % (r["median"] / r["peer_median"]) if r["median"] else "0"]
        cells += ["%.3f" % r[k] for k in ("exact", "peer_exact", "ppl", "peer_ppl")] + ["%.2f" % (100 * off(r["ppl"], r["peer_ppl"]))]
    return "| " + " | ".join(cells) + " |"


def check(rows, peer):
    bad = ["%s: mean KL %g" % (r["name"], r["mean"]) for r in rows if not r["mean"] < LIMIT]
    for r in rows if peer else []:
        if off(r["exact"], r["peer_exact"]) >= 0.0005:
            bad.append("%s: perplexity with floats %g, the peer's %g" % (r["name"], r["exact"], r["peer_exact"]))
        if off(r["ppl"], r["peer_ppl"]) >= 0.005 and not off(r["ppl"], r["exact"]) < 0.005 <= off(r["peer_ppl"], r["exact"]):
            bad.append("%s: perplexity %g, the peer's %g" % (r["name"], r["ppl"], r["peer_ppl"]))
    for figure in "mean", "median":
        ratios = [r[figure] / r["peer_" + figure] for r in rows if r.get("peer_mean") and r["median"] > ROUNDED and r["peer_" + figure]]
        if not ratios:
            continue
        all_of = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print("%s KL over the peer's, %d types whose rows are rounded: geometric mean %.2f, %.2f to %.2f" % (
            figure, len(ratios), all_of, min(ratios), max(ratios)))
        if all_of > WORSE:
            bad.append("the %s KL is worse than the peer's" % figure)
    return bad


def main():
    peer = "--peer" in sys.argv
    if peer and not all(os.path.exists(peer_program(p)) for p in ("llama-quantize", "llama-perplexity")):
        print("skipped: no llama-quantize and llama-perplexity in %s (tools/bench.py --build makes them)" % PEER)
        return 77
    names = OURS + (THEIRS if peer else []) + list(FOLDERS)
    if "--only" in sys.argv:
        names = sys.argv[sys.argv.index("--only") + 1].split(",")
    with tempfile.TemporaryDirectory() as tmp:
        text = os.path.join(tmp, "text")
        write_text(text)
        with open(text, encoding="utf-8") as f:
            whole = f.read()
        for end, size in ("", 21000), (".few", 5600), (".part", 2200), (".short", 300):  # about CHUNKS pieces, FEW, two, and three of 32 tokens
            with open(text + end, "w", encoding="utf-8") as f:
                f.write(whole[:size])
        more = " peer: mean | median | ratio | perplexity, floats | peer | as served | peer | differs, % |" if peer else ""
        print("| type | matrices | KL: mean | median |" + more)
        if peer:
            make_sources(tmp)
        rows, bad = measure_all(tmp, names, peer)
    print("levels: %s; %d types" % (" ".join(rows[0]["levels"]) if rows else "", len(rows)))
    bad += check(rows, peer)
    print("\n".join(bad) if bad else "all pass")
    return 1 if bad else 0


sys.exit(main())
