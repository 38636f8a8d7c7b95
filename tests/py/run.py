#!/usr/bin/env python3
"""`lignum run` and `lignum bench` with the bundled model, from outside.

Usage: run.py LIGNUM SOURCE_DIR

Answers are those of tests/data/eval.jsonl, made by the reference implementation.
"""
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

program, source = sys.argv[1:3]
hooks = program + "-hooks"
model = os.path.join(source, "models/tiny-qwen35moe")
n_check = n_bad = 0
SPEED = r"prompt (\d+) tokens, [\d.]+ tokens/s; answer (\d+) tokens, [\d.]+ tokens/s"


def expect(good, what, got):
    global n_bad, n_check
    n_check += 1
    if not good:
        n_bad += 1
        print("expected %s, got %r" % (what, got))


def run(*args, keys=""):
    done = subprocess.run([program, *args], input=keys.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def rows():
    with open(os.path.join(source, "tests/data/eval.jsonl")) as f:
        for line in f:
            row = json.loads(line)
            if row["min_margin"] > 1e-3 and not row["tools"] and row["messages"][0]["role"] == "user":
                yield row


def think(row):
    return "--no-think" if row["enable_thinking"] is False else "--think"


def test_one_answer():
    plain = [r for r in rows() if len(r["messages"]) == 1]
    for row in [r for r in plain if think(r) == "--no-think"][:3] + [r for r in plain if think(r) == "--think"][:3]:
        rc, out, err = run("run", "-m", model, think(row), "-n", "200", "-p", row["messages"][0]["content"])
        expect(rc == 0 and out == row["expected_text"].replace("<|im_end|>", "") + "\n", row["expected_text"], (rc, out, err))
        m = re.search(SPEED, err)
        expect(m and int(m.group(1)) == len(row["prompt_ids"]) and int(m.group(2)) == len(row["expected_ids"]),
               "%d prompt and %d answer tokens" % (len(row["prompt_ids"]), len(row["expected_ids"])), err)


def test_conversation():
    """What was said before counts, without the reasoning."""
    n = 0
    for row in rows():
        said = row["messages"]
        if [m["role"] for m in said] != ["user", "assistant", "user"]:
            continue
        if any("\n" in m["content"] or m.get("reasoning_content") for m in said):
            continue
        rc, out, err = run("run", "-m", model, think(row), "-n", "200", keys=said[0]["content"] + "\n\n" + said[2]["content"] + "\n")
        sizes = re.findall(SPEED, err)
        expect(rc == 0 and len(sizes) == 2, "two answers", (rc, out, err))
        answer = row["expected_text"].replace("<|im_end|>", "") + "\n"
        first = out[: -len(answer)].split("</think>")[-1].strip("\n")
        if first == said[1]["content"]:
            n += 1
            expect(out.endswith(answer) and int(sizes[1][0]) == len(row["prompt_ids"]), "second answer " + answer, (out, sizes))
    expect(n > 0, "a conversation whose first answer is the one in the data", n)
    print("%d conversations with the reference's second answer" % n)


class Keyboard:
    """The program at a terminal."""

    def __init__(self, *args, exe=program, env=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(exe, [exe, *args], {**os.environ, **(env or {})})
        self.text = self.seen = ""

    def wait_for(self, pattern, seconds=30):
        end = time.time() + seconds
        while not re.search(pattern, self.text):
            ready = select.select([self.fd], [], [], max(0, end - time.time()))[0]
            try:
                more = os.read(self.fd, 65536) if ready else b""
            except OSError:
                more = b""
            if not more:
                expect(False, "%r on the terminal" % pattern, self.text[-500:])
                return
            self.text += more.decode(errors="replace")
            self.seen += more.decode(errors="replace")
        self.text = self.text[re.search(pattern, self.text).end():]

    def press(self, keys):
        os.write(self.fd, keys)

    def end(self):
        for _ in range(300):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.1)
        os.kill(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]


def test_interrupt():
    """Ctrl-C ends an answer, the program goes on; twice at the prompt it leaves."""
    k = Keyboard("run", "-m", model, "--no-think", "--temp", "100", "--seed", "6")
    k.wait_for("> ")
    k.press(b"Hello\n")  # with these draws the answer fills the context
    k.wait_for(r"\n.{20}")
    k.press(b"\x03")
    k.wait_for(SPEED + ", stopped")
    k.wait_for("> ")
    k.press(b"\x03")
    k.wait_for("once more")
    k.press(b"\x03")
    expect(k.end() == 0, "status 0 after Ctrl-C twice", k.text)
    k = Keyboard("run", "-m", model, "--no-think")
    k.wait_for("> ")
    k.press(b"Compute 2 + 7.\n")
    k.wait_for("2 \\+ 7 = 9")
    k.wait_for("> ")
    k.press(b"\x04")
    expect(k.end() == 0, "status 0 after Ctrl-D", k.text)


def test_loading_bar():
    """With a loader that takes its time: share, rate and time left, wiped before what follows; nothing when it is quick."""
    if not os.path.exists(hooks):
        print("no bar tested: built without -Dtest_hooks")
        return
    for command, after in ((["run", "--no-think"], "> "), (["serve", "--port", "0"], "is ready")):
        k = Keyboard(*command, "-m", model, exe=hooks, env={"LG_HOOK_SLOW_LOAD": "1200"})
        k.wait_for(r"\rloading \[\.{30}\]   0 %  0 of \d+ MiB  0 MiB/s\x1b\[K")
        k.wait_for(r"\rloading \[#{30}\] 100 %  (\d+) of \1 MiB  \d+ MiB/s  0 s left\x1b\[K\r\x1b\[K[^#]*" + after)
        k.press(b"\x04" if command[0] == "run" else b"\x03")
        expect(k.end() == 0, "status 0 from " + command[0], k.text)
    k = Keyboard("run", "--no-think", "-m", model)
    k.wait_for("> ")
    expect("loading" not in k.seen, "no bar when loading is quick", k.seen)
    k.press(b"\x04")
    k.end()


def test_default_model():
    """Without --model: as built, as installed, and where there is none."""
    ask = ["run", "--no-think", "-p", "Compute 2 + 7."]
    with tempfile.TemporaryDirectory() as tmp:
        for place, want in (("build/cli/lignum", "models"), ("usr/bin/lignum", "usr/share/lignum/models"), ("alone/bin/lignum", None)):
            there = os.path.join(tmp, place)
            os.makedirs(os.path.dirname(there))
            shutil.copy(program, there)
            if want:
                os.makedirs(os.path.join(tmp, want))
                os.symlink(model, os.path.join(tmp, want, "tiny-qwen35moe"))
            done = subprocess.run([there, *ask], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
            good = done.stdout == b"2 + 7 = 9\n" if want else done.returncode == 1 and b"--model" in done.stderr
            expect(good, "the bundled model from " + place, done)
            if place.startswith("build"):
                os.remove(os.path.join(tmp, want, "tiny-qwen35moe"))


def test_options():
    for args in (["--temp", "-1"], ["--top-p", "0"], ["-n", "0"], ["--ctx", "1"], ["--memory", "lots"], ["--seed", "x"], ["word"]):
        rc, out, err = run("run", "-m", model, "-p", "x", *args)
        expect(rc == 2 and not out and err, "2 from %s" % args, (rc, out, err))
    rc, out, err = run("run", "-m", "/no/such/folder", "-p", "x")
    expect(rc == 1 and not out and "/no/such/folder" in err, "1 and the path of a missing model", (rc, out, err))
    rc, out, err = run("run", "-m", model, "--memory", "1M", "-p", "x")
    expect(rc == 1 and "budget 0.001 GiB" in err and "--memory" in err, "1 and numbers when memory is short", (rc, out, err))
    rc, out, err = run("run", "-m", model, "--ctx", "32", "--no-think", "-p", "word " * 100)
    expect(rc == 1 and "n_id" in err, "1 when the prompt is too long", (rc, out, err))
    one = run("run", "-m", model, "--temp", "5", "--seed", "3", "-n", "40", "-p", "Hello")[1]
    two = run("run", "-m", model, "--temp", "5", "--seed", "3", "-n", "40", "-p", "Hello", "--threads", "1")[1]
    expect(one == two, "a seed to repeat", (one, two))


def test_roofline():
    """Each operation's limit is its bytes at the stream's bandwidth, or its products at their peak (this model's are floats)."""
    rc, out, err = run("bench", "-m", model, "--roofline", "--prompt", "40", "--batch", "1,3", "--depth", "0,100", "--repeat", "1", "--json")
    if rc == 1 and "limits of this processor are not known" in err:
        print("roofline: skipped, the limits of this processor are not known")
        return
    got = json.loads(out) if rc == 0 else {}
    steps = [(s["answers"], s["prompt"], s["depth"]) for s in got.get("steps", [])]
    expect(rc == 0 and steps == [(a, p, d) for d in (0, 100) for a, p in ((0, 40), (1, 0), (3, 0), (2, 0), (2, 40))], "the steps", (rc, steps, err))
    for s in got.get("steps", []):
        ops = {o["name"]: o for o in s["operations"]}
        expect(len(ops) == 10 and sum(o["ms"] for o in ops.values()) <= s["ms"] * 1.0001, "parts of the step", s)
        for o in list(ops.values())[:8]:
            least = max(o["bytes"] / got["stream_gbs"] / 1e6, o["macs"] / got["float_gmacs"] / 1e6)
            expect(abs(o["limit_ms"] - least) <= 0.002 * least + 2e-6, "limit %g ms" % least, o)
        expect(abs(s["limit_ms"] - sum(o["limit_ms"] for o in ops.values())) < 2e-5, "the sum of the limits", s)
        expect((s["of_apart"] > 0) == (s["answers"] > 0 and s["prompt"] > 0), "a comparison of mixed steps alone", s)
    rc, out, err = run("bench", "-m", model, "--roofline", "--prompt", "40", "--batch", "2", "--repeat", "1")
    expect(rc == 0 and "experts, shared down: BF16" in out and "of what both steps apart predict" in out, "a table", (rc, out, err))
    rc, out, err = run("bench", "-m", model, "--roofline", "--beside", "1")
    expect(rc == 1 and "not with --device or --beside" in err, "a refusal", (rc, err))


def test_bench():
    rc, out, err = run("bench", "-m", model, "--prompt", "5,70", "--gen", "4", "--batch", "1,3", "--json")
    expect(rc == 0, "0", (rc, out, err))
    got = json.loads(out)
    expect([p["tokens"] for p in got["prompt"]] == [5, 70] and [a["batch"] for a in got["answers"]] == [1, 3], "the sizes asked for", got)
    for f in got["prompt"] + got["answers"]:
        expect(0 < f["min"] <= f["tokens_per_s"] <= f["max"], "min <= median <= max", f)
    # more prompts than one step reads, so that the first answers are ahead of the last
    rc, out, err = run("bench", "-m", model, "--prompt", "5", "--gen", "4", "--batch", "40", "--repeat", "1", "--json")
    expect(rc == 0 and json.loads(out)["answers"][0]["tokens_per_s"] > 0, "a figure", (rc, out, err))
    rc, out, err = run("bench", "-m", model, "--prompt", "5", "--gen", "4", "--batch", "1")
    expect(rc == 0 and "tokens/s" in out and "GB/s" in out and "sampling" in out, "a table", (rc, out, err))
    rc, out, err = run("bench", "-m", model, "--prompt", "9", "--gen", "4", "--batch", "2", "--depth", "0,200,130", "--repeat", "2", "--beside", "1", "--kv", "q8_0",
                       "--json")
    expect(rc == 0, "0", (rc, out, err))
    got = json.loads(out)
    expect([f["depth"] for f in got["prompt"]] == [0, 200, 130] == [f["depth"] for f in got["answers"]], "each depth", got)
    expect(got["busy_processes"] == 1 and 0 < got["fair_share"] <= 1 and got["beside"][0]["tokens_per_s"] > 0, "a busy process", got)
    expect(got["kv_type"] == "q8_0" and all(f["runs"] == 2 for f in got["prompt"]), "two runs, q8_0", got)
    rc, out, err = run("bench", "--batch", "0")
    expect(rc == 2, "2 from a wrong size", (rc, out, err))


for test in (test_one_answer, test_conversation, test_interrupt, test_loading_bar, test_default_model, test_options, test_roofline, test_bench):
    test()
print("%d checks, %d differ" % (n_check, n_bad))
sys.exit(1 if n_bad else 0)
