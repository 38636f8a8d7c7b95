#!/usr/bin/env python3
"""The program's own words: version, help of each command, and exit statuses for wrong usage.

Usage: cli.py LIGNUM VERSION
"""
import os
import re
import subprocess
import sys

program, version = sys.argv[1:3]
n_bad = 0


def run(*args, **env):
    done = subprocess.run([program, *args], env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def expect(good, what, got):
    global n_bad
    if not good:
        n_bad += 1
        print("expected %s, got %r" % (what, got))


rc, out, err = run("--version")
pattern = r"lignum %s \(build \S+, (gcc|clang) [^,]+, [^)]+\)\n" % re.escape(version)
expect(rc == 0 and re.fullmatch(pattern, out) and not err, "a version line", (rc, out, err))

rc, top, err = run("--help")
commands = re.findall(r"(?m)^  (\w+) +\S", top.split("commands:")[1].split("options:")[0])
expect(rc == 0 and not err and "help" in commands, "a list of commands", (rc, top, err))
expect(run("help")[1] == top and run("-h")[1] == top, "the same from help and -h", None)
for name in commands:
    if name == "help":
        continue
    rc, out, err = run("help", name)
    expect(rc == 0 and not err and "lignum " + name in out and "--help" in out, "help of " + name, (rc, out, err))
    expect(run(name, "--help") == (0, out, ""), "the same from %s --help" % name, run(name, "--help"))
    rc, out, err = run(name, "--no-such-option")
    good = rc == 2 and not out and err.startswith("lignum %s: " % name) and "lignum %s --help" % name in err
    expect(good, "%s to refuse a wrong option with 2" % name, (rc, out, err))

for args in ([], ["no-such-command"], ["help", "no-such-command"], ["--no-such-option"]):
    rc, out, err = run(*args)
    expect(rc == 2 and not out and err, "2 from %s" % args, (rc, out, err))
for level in ("error", "warning", "info", "debug", ""):
    rc, out, err = run("help", "run", LG_LOG=level)
    expect(rc == 0 and not err, "LG_LOG=" + level, (rc, out, err))
rc, out, err = run("help", "run", LG_LOG="loud")
expect(rc == 2 and not out and "LG_LOG=loud: expected error, warning, info or debug" in err, "2 from a wrong LG_LOG", (rc, out, err))
print("%d commands, %d differ" % (len(commands), n_bad))
sys.exit(1 if n_bad else 0)
