#!/usr/bin/env python3
"""The shared library exports exactly the functions that lignum.h marks with LG_API.

Usage: exports.py LIBRARY HEADER
"""
import re
import shutil
import subprocess
import sys

if not shutil.which("nm"):
    print("skipped: nm is not installed")
    sys.exit(77)
table = subprocess.run(["nm", "-D", "--defined-only", sys.argv[1]], stdout=subprocess.PIPE, check=True).stdout.decode()
exported = {line.split()[-1].split("@")[0] for line in table.splitlines()}
with open(sys.argv[2]) as f:
    declared = set(re.findall(r"LG_API[^;]*?\b(\w+)\(", re.sub(r"(?ms)/\*.*?\*/|^#[^\n]*", "", f.read())))
for name in sorted(exported - declared):
    print("exported, not in lignum.h: " + name)
for name in sorted(declared - exported):
    print("in lignum.h, not exported: " + name)
print("%d functions" % len(exported))
sys.exit(0 if exported == declared and exported else 1)
