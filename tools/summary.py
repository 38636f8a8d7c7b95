#!/usr/bin/env python3
"""summary.py - count what test runs did, over all runners.

usage: summary.py TESTLOG.json ... [--broken N]

Each file is meson's testlog.json.  Inside one meson test, cmocka's and unittest's lines and a script's last line "N passed,
N failed, N skipped" are counted; a test without either counts as one.  Skips are printed with their reasons, failures with the
end of their output.  N builds or tools that failed before any test count as failed.  Exits 1 when something failed or
nothing passed.
"""
import json
import os
import re
import sys

LINE = re.compile(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*\Z")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def reason_before(lines, i):
    """The line that a test printed before cmocka reported its skip."""
    return lines[i - 1] if i and not lines[i - 1].startswith("[") else "no reason given"


def cmocka(lines):
    ok = failed = 0
    skips = []
    for i, line in enumerate(lines):
        if line.startswith("[==========]") and " run." in line:
            break
        if line.startswith("[       OK ]"):
            ok += 1
        elif line.startswith("[  FAILED  ]"):
            failed += 1
        elif line.startswith("[  SKIPPED ]"):
            skips.append(line[12:].strip() + ": " + reason_before(lines, i))
    return ok, failed, skips


def pyunit(text):
    """(passed, failed, reasons of skips) of a run of Python's unittest, or None."""
    ran = re.search(r"(?m)^Ran (\d+) tests? in ", text)
    if not ran:
        return None
    bad = sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", text[ran.end():]))
    skipped = sum(int(n) for n in re.findall(r"skipped=(\d+)", text[ran.end():]))
    told = [m.group(1) + ": " + m.group(2) for m in re.finditer(r"(?m)^(\S+) .*\.\.\. skipped ['\"](.*)['\"]$", text)]
    return int(ran.group(1)) - bad - skipped, bad, (told + ["no reason given"] * skipped)[:skipped]


def count(test):
    """(passed, failed, reasons of skips) of one meson test."""
    text = ESCAPE.sub("", test.get("stdout", ""))
    both = text + ESCAPE.sub("", test.get("stderr", ""))
    lines = [line for line in text.splitlines() if line.strip()]
    result = test["result"]
    if result == "SKIP":
        return 0, 0, [lines[-1] if lines else "no reason given"]
    m = LINE.search(text.rstrip())
    unit = pyunit(both)
    if unit:
        passed, failed, skips = unit
    elif m:
        passed, failed, skips = int(m.group(1)), int(m.group(2)), ["counted by the script"] * int(m.group(3) or 0)
        told = [line for line in lines if line.lower().startswith("skipped: ")]
        skips[: len(told)] = told[: len(skips)]
    else:
        passed, failed, skips = cmocka(lines)
        failed = max(failed, len(set(re.findall(r"(?m)^\[  FAILED  \] (test_\w+)", both))))
    good = result in ("OK", "EXPECTEDFAIL")
    if good and passed + len(skips) == 0:
        passed = 1
    if not good and failed == 0:
        failed = 1
    return passed, failed, skips


def main():
    args, broken = sys.argv[1:], 0
    if "--broken" in args:
        at = args.index("--broken")
        broken = int(args[at + 1])
        del args[at : at + 2]
    n_pass, n_fail, n_skip = 0, broken, 0
    for path in args:
        where = path.split(os.sep)[0]
        if not os.path.exists(path):
            print("summary: %s: the tests did not run" % where)
            n_fail += 1
            continue
        with open(path) as f:
            tests = [json.loads(line) for line in f if line.strip()]
        for test in tests:
            passed, failed, skips = count(test)
            n_pass, n_fail, n_skip = n_pass + passed, n_fail + failed, n_skip + len(skips)
            for reason in skips:
                print("skipped: %s: %s: %s" % (where, test["name"], reason))
            if failed:
                print("failed: %s: %s (%s); its output ends:" % (where, test["name"], test["result"]))
                out = (test.get("stdout", "") + test.get("stderr", "")).splitlines()
                print("\n".join("    " + line for line in out[-40:]))
    print("%d passed, %d failed, %d skipped" % (n_pass, n_fail, n_skip))
    return 1 if n_fail or not n_pass else 0


sys.exit(main())
