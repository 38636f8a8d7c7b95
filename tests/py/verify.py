#!/usr/bin/env python3
"""`lignum verify` and `lignum perplexity` on the bundled model and GGUF files made of it.

    verify.py LIGNUM SOURCE_ROOT
The figures themselves are checked by tests/unit/test_score.c and test_togguf.c; here: that the commands print them, agree with
each other where they must, and end with the right status.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

LIGNUM, ROOT = sys.argv[1], sys.argv[2]
MODEL = os.path.join(ROOT, "models/tiny-qwen35moe")


def run(*args, status=0, **env):
    got = subprocess.run([LIGNUM, *args], capture_output=True, text=True, env={**os.environ, **env})
    assert got.returncode == status, (args, got)
    return got.stdout


def mean(out):
    return float(re.search(r"KL, nats +mean ([^,]+),", out).group(1))


def table(out):
    """Rows of the tables of differences: name, largest, mean, size, mean / size."""
    return re.findall(r"^  (\S.*?)" + 4 * r" +([0-9.e+-]+)" + "$", out, re.M)


def nll(out):
    return float(re.search(r"log-likelihood ([0-9.]+),", out).group(1))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        text = os.path.join(tmp, "text")
        with open(text, "w", encoding="utf-8") as f, open(os.path.join(ROOT, "tests/data/eval.jsonl"), encoding="utf-8") as rows:
            for line in rows:
                row = json.loads(line)
                f.write(row["messages"][-1]["content"] + "\n" + row["expected_text"].replace("<|im_end|>", "") + "\n")
        files = {t: os.path.join(tmp, t + ".gguf") for t in ("bf16", "q8_0", "q4_k")}
        for t, path in files.items():
            run("quantize", MODEL, path, "--type", t)

        # Nothing is rounded in a model without block types whose keys and values are floats: no divergence, all agree.
        out = run("verify", MODEL, "--ctx", "48", "--kv", "f32")
        assert mean(out) < 1e-12 and "agreement  100.00 %" in out and "passed" in out, out
        kv = [mean(run("verify", MODEL, "--ctx", "48", "--kv", t)) for t in ("f16", "bf16", "q8_0")]
        assert 0 < kv[0] < 1e-7 and kv[0] < kv[1] < 1e-5 and 0 < kv[2] < 1e-3, kv
        run("verify", MODEL, "--kv", "q4_0", status=2)
        for t in "q8_0", "q4_k":
            out = run("verify", files[t])
            print(out)
            assert 0 <= mean(out) <= 0.003 and "positions        1024" in out and "passed" in out, out
        # The portable level multiplies floats.
        assert mean(run("verify", files["q4_k"], "--ctx", "16", "--kv", "f32", LG_CPU="ref")) < 1e-12
        # Operations: of float products none differs; of a quantised model's all that a layer has, and no other.
        out = run("verify", MODEL, "--ctx", "48", "--kv", "f32", "--operations")
        rows = table(out)
        assert len(rows) == 5 + 23 and all(r[1] == r[2] == "0" and float(r[3]) > 0 for r in rows), out
        assert "chosen experts           0 %" in out, out
        out = run("verify", files["q4_k"], "--ctx", "48", "--operations", "--max-kl", "1")
        rows = table(out)
        differ = {r[0] for r in rows if float(r[1]) >= float(r[2]) > 0}
        assert len(rows) == 5 + 23 and differ == {r[0] for r in rows} - {"embedding"}, out

        assert "positions        128" in run("verify", files["q8_0"], "--ctx", "48", "--skip", "32")
        run("verify", files["q8_0"], "--ctx", "48", "--skip", "48", status=2)
        # A gate that cannot be met; another model as the reference.
        out = run("verify", files["q4_k"], "--against", MODEL, "--ctx", "48", "--max-kl", "1e-9", status=1)
        assert mean(out) > 1e-4 and "MISSED" in out, out
        far = mean(run("verify", files["q4_k"], "--against", MODEL, "--text", text, "--ctx", "256"))
        near = mean(run("verify", files["q8_0"], "--against", MODEL, "--text", text, "--ctx", "256"))
        assert near < far, (near, far)

        want = nll(run("perplexity", MODEL, text, "--ctx", "256"))
        assert abs(nll(run("perplexity", files["bf16"], text, "--ctx", "256")) - want) < 1e-4
        q4 = run("perplexity", files["q4_k"], text, "--ctx", "256", "--chunks", "4")
        exact = run("perplexity", files["q4_k"], text, "--ctx", "256", "--chunks", "4", "--exact")
        assert "508 tokens scored in 4 chunks of 256" in q4, q4   # 256 - 128 - 1 a chunk
        assert abs(nll(q4) - nll(exact)) < 0.02, (q4, exact)

        run("perplexity", MODEL, text, "--ctx", "3", status=2)
        run("perplexity", MODEL, os.path.join(tmp, "none"), status=1)
        run("perplexity", MODEL, text, "--ctx", "100000", status=1)
        run("verify", MODEL, "--text", text, "--ctx", "5000", status=1)
        run("verify", status=2)
        run("verify", files["q4_k"], "--against", os.path.join(ROOT, "tests/data/models/tiny-moe"), status=1)


main()
