#!/usr/bin/env python3
"""Install into a temporary folder, then build and run examples/embed.c against what was installed, found by pkg-config.

Usage: installed.py BUILD_DIR SOURCE_DIR

Once with the shared library, once with the static one alone (pkg-config --static).  The question and its answer are of
tests/data/eval.jsonl, made by the reference implementation.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

build, source = sys.argv[1:3]
CC = os.environ.get("CC", "cc")


def run(args, **more):
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **more)
    if done.returncode:
        sys.exit("%s\n%s\nfailed with status %d" % (" ".join(args), done.stdout, done.returncode))
    return done.stdout


def question():
    with open(os.path.join(source, "tests/data/eval.jsonl")) as f:
        for line in f:
            row = json.loads(line)
            if row["correct"] and not row["enable_thinking"] and not row["tools"] and len(row["messages"]) == 1:
                return row["messages"][0]["content"], row["expected_text"].replace("<|im_end|>", "")
    sys.exit("eval.jsonl has no plain question")


def build_and_ask(what, pc_dir, lib_dir, flags):
    env = dict(os.environ, PKG_CONFIG_PATH=pc_dir, LD_LIBRARY_PATH=lib_dir)
    words = run(["pkg-config", "--cflags", "--libs"] + flags + ["lignum"], env=env).split()
    program = os.path.join(pc_dir, "embed")
    run([CC, "-std=c11", "-Wall", "-Wextra", "-Werror", os.path.join(source, "examples/embed.c"), "-o", program] + words)
    prompt, answer = question()
    got = run([program, os.path.join(source, "models/tiny-qwen35moe"), prompt], env=env)
    if got.split("\n[")[0] != answer:
        sys.exit("%s: asked %r, expected %r, got %r" % (what, prompt, answer, got))
    print("%s: %s" % (what, got.strip().replace("\n", " ")))


def main():
    for tool in (CC, "pkg-config", "meson"):
        if not shutil.which(tool):
            print("skipped: %s is not installed" % tool)
            return 77
    with tempfile.TemporaryDirectory() as tmp:
        run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", tmp])
        (pc,) = glob.glob(tmp + "/**/lignum.pc", recursive=True)
        lib_dir, pc_dir = os.path.dirname(os.path.dirname(pc)), os.path.dirname(pc)
        with open(pc) as f:
            text = f.read()
        prefix = re.search(r"(?m)^prefix=(.*)$", text).group(1)
        with open(pc, "w") as f:
            f.write(text.replace("prefix=" + prefix, "prefix=" + tmp + prefix))
        build_and_ask("shared", pc_dir, lib_dir, [])
        for shared in glob.glob(lib_dir + "/liblignum.so*"):
            os.remove(shared)
        build_and_ask("static", pc_dir, lib_dir, ["--static"])
        print(run([tmp + prefix + "/bin/lignum", "--version"]).strip())
    return 0


sys.exit(main())
