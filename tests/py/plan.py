#!/usr/bin/env python3
"""`lignum plan` from outside: every command of docs/PLAN.md prints what is shown there, and draws the plots that lie beside it.

Usage: plan.py LIGNUM SOURCE_DIR [--write]

A command is a line `    $ lignum plan ...`; the indented lines after it are its output, where `...` stands for any lines.  With --write
the page and the plots are brought up to date instead.
"""
import csv
import json
import os
import re
import subprocess
import sys
import tempfile

program, source = (os.path.abspath(p) for p in sys.argv[1:3])
page = os.path.join(source, "docs/PLAN.md")
n_check = n_bad = 0


def expect(good, what, got):
    global n_bad, n_check
    n_check += 1
    if not good:
        n_bad += 1
        print("expected %s, got %r" % (what, got))


def run(*args):
    done = subprocess.run([program, "plan", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, cwd=source)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def examples(text):
    """(first line of the output, line after it, arguments) of every command on the page."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if not line.startswith("    $ lignum plan"):
            continue
        end = i + 1
        while end < len(lines) and not lines[end].startswith("    $") and (lines[end].startswith("    ") or not lines[end]):
            end += 1
        while not lines[end - 1]:
            end -= 1
        yield i + 1, end, line.split()[3:]


def same(shown, printed):
    """Whether the printed lines are those shown; `...` is any number of lines, the end of the output after it must be shown or open."""
    at = 0
    gap = False
    for line in shown:
        if line.strip() == "...":
            gap = True
            continue
        while gap and at < len(printed) and printed[at] != line:
            at += 1
        if at >= len(printed) or printed[at] != line:
            return False
        at, gap = at + 1, False
    return gap or at == len(printed)


def test_page():
    with open(page) as f:
        text = f.read()
    lines = text.split("\n")
    n = 0
    with tempfile.TemporaryDirectory() as tmp:
        for first, end, args in reversed(list(examples(text))):
            files = {}
            real = []
            for a in args:
                if a.startswith("docs/plan/") and a.endswith((".svg", ".csv")):
                    files[a] = os.path.join(tmp, os.path.basename(a))
                real.append(files.get(a, a))
            rc, out, err = run(*real)
            printed = out.rstrip("\n").split("\n")
            shown = [line[4:] for line in lines[first:end]]
            if "--write" in sys.argv:
                if not any(s.strip() == "..." for s in shown):
                    lines[first:end] = [("    " + p).rstrip() for p in printed]
            else:
                expect(rc == 0 and same(shown, [p.rstrip() for p in printed]), "what the page shows for %s" % " ".join(args), out + err)
            for name, path in files.items():
                with open(path) as f:
                    made = f.read()
                if "--write" in sys.argv:
                    with open(os.path.join(source, name), "w") as f:
                        f.write(made)
                    continue
                with open(os.path.join(source, name)) as f:
                    expect(f.read() == made, "the picture that %s draws" % " ".join(args), name)
            n += 1
    if "--write" in sys.argv:
        with open(page, "w") as f:
            f.write("\n".join(lines))
    expect(n >= 5, "five commands on the page", n)
    expect(set(re.findall(r"\((plan/[\w-]+\.svg)\)", text)) == set(a[5:] for _, _, args in examples(text) for a in args if a.endswith(".svg")),
           "a command for each picture", text.count(".svg"))


def test_sweep():
    with tempfile.TemporaryDirectory() as tmp:
        sheet, plot = os.path.join(tmp, "s.csv"), os.path.join(tmp, "s.svg")
        rc, out, err = run("--model", "122b", "--hardware", "tpu7x:2x2x2", "--sweep", sheet, "--plot", plot)
        with open(sheet) as f:
            rows = list(csv.DictReader(f))
        with open(plot) as f:
            drawn = f.read()
        expect(rc == 0 and len(rows) == 39 and [int(r["concurrency"]) for r in rows[:13]] == [4 << i for i in range(13)], "13 loads, three ways", rows[:2])
        one = [r for r in rows if r["assume"] == "ideal" and r["concurrency"] == "64"][0]
        alone = run("--model", "122b", "--hardware", "tpu7x:2x2x2", "--concurrency", "64")[1]
        expect("\n%.0f tokens/s a chip" % float(one["tokens_per_s_chip"]) in alone, "the plan's own figure", (one, alone))
        expect(drawn.startswith("<svg ") and all(">%s<" % a in drawn for a in ("ideal", "published", "measured")), "three curves", drawn[:80])
        rc, out, err = run("--sweep", os.path.join(tmp, "no/such"))
        expect(rc == 1 and "no/such" in err, "a file that cannot be written", (rc, err))


def test_this_machine():
    """What is measured can be kept, read again, and gives the same plan."""
    load = ("--isl", "100", "--osl", "20", "--concurrency", "4")
    with tempfile.TemporaryDirectory() as tmp:
        kept = os.path.join(tmp, "node.json")
        rc, out, err = run("--model", "35b", "--hardware", "this", "--keep", kept, *load)
        if rc == 1 and "limits of this processor are not known" in err:
            print("this machine: skipped, its limits are not known")
            return
        with open(kept) as f:
            node = json.load(f)
        expect(rc == 0 and node["nodes"] == 1 and 0.1 < node["memory_gb_s"] < 1e5 and node["f32_gops"] > 0.1, "a node", (rc, node, err))
        again = run("--model", "35b", "--hardware", kept, *load)[1]
        times = [[float(x) for x in re.findall(r"^  sum +([\d.]+)$", t, re.M)] for t in (out, again)]
        expect(len(times[0]) == 2 and all(abs(a - b) < 0.001 * a + 0.002 for a, b in zip(*times)), "the same plan from the file", times)
    rc, out, err = run("--hardware", "tpu7x:2x2x1", "--keep", "/nowhere")
    expect(rc == 1 and "--keep" in err, "nothing to keep", (rc, err))


def test_model_files():
    tiny = os.path.join(source, "models/tiny-qwen35moe")
    rc, out, err = run("--model", tiny, "--hardware", "docs/plan/cluster.json", "--concurrency", "4", "--isl", "50", "--osl", "10")
    expect(rc == 0 and "16 bits a weight (as in the files)" in out, "the bits of the files", (rc, out, err))
    with tempfile.TemporaryDirectory() as tmp:
        with open(os.path.join(tiny, "config.json")) as f:
            text = f.read()
        with open(os.path.join(tmp, "config.json"), "w") as f:
            f.write(text)
        rc, out, err = run("--model", tmp, "--hardware", "docs/plan/cluster.json", "--concurrency", "4")
        expect(rc == 0 and "8 bits a weight (assumed: no weights are there)" in out, "a folder without weights", (rc, out, err))
    rc, out, err = run("--model", "398b")
    expect(rc == 1 and "398b" in err, "no such model", (rc, err))
    rc, out, err = run("--ep", "3")
    expect(rc == 1 and "--ep 3" in err, "devices that cannot be divided", (rc, err))


test_page()
if "--write" not in sys.argv:
    for test in (test_sweep, test_this_machine, test_model_files):
        test()
print("plan: %d checks, %d failed" % (n_check, n_bad))
sys.exit(1 if n_bad else 0)
