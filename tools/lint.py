#!/usr/bin/env python3
"""lint.py - the rules of the tree that a compiler does not check.

Prints each violation as FILE:LINE: rule, and exits 1 when there is one.
  format      clang-format has nothing to change
  layer       src/ folders include only what is left of them (LAYERS below); includes name the folder
  heap        malloc and its kin are called in src/base/mem.c only
  intrinsics  vector headers only in folders of src/kern/
  names       what is not static is in lignum.h or the header of the file's name, or is lg_STEM_... or lg_FOLDER_...,
              STEM the first word of the file's name (kern: lg_...)
  opening     each source file opens with a comment that begins with its name
  length      files of src/ and cli/ have at most 700 lines
  mpi         one file at most includes mpi.h
  paths       a file that a document or an opening comment names (a path, or a name with an ending of ours) is there
  text        no note that work is left, no path of one machine, no tab or space at the end of a line
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ORDER = ["base", "record", "kern", "model", "dist", "backend", "engine", "link"]
LAYERS = {name: set(ORDER[: i + 1]) for i, name in enumerate(ORDER)}
LAYERS["gateway"] = {"base", "record", "model", "link", "gateway"}
LAYERS["plan"] = {"base", "model", "plan"}
BARE = {"lignum.h", "lignum_build.h", "lignum_paths.h"}
HEAP = r"\b(malloc|calloc|realloc|reallocarray|free|strdup|strndup|aligned_alloc|posix_memalign|asprintf|vasprintf)\s*\("
VECTOR = r"\w*intrin\.h|arm_neon\.h|arm_sve\.h"
DATA = ("tests/data/", "models/", "fuzz/corpus/", "LICENSE")
MACHINE = "/" + "work/"
PLACEHOLDER = r"STEM|NAME"
LATER = r"\b(TO" + r"DO|FIX" + r"ME)\b"

found = []


def report(path, line, rule):
    found.append((path, line, rule))


def files():
    """Every file of the tree that git does not ignore."""
    out = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], stdout=subprocess.PIPE, check=True)
    return [p for p in out.stdout.decode().splitlines() if os.path.isfile(os.path.join(ROOT, p))]


def bare_code(text):
    """The C text with comments and strings blanked, line breaks kept."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.S)


def lines_of(pattern, text):
    for m in re.finditer(pattern, text):
        yield m, text.count("\n", 0, m.start()) + 1


def check_includes(path, text):
    parts = path.split("/")
    layer = parts[1] if parts[0] == "src" and len(parts) > 2 else None
    for m, line in lines_of(r'(?m)^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', text):
        own, system = m.group(1), m.group(2)
        if system and re.fullmatch(VECTOR, system) and not (layer == "kern" and len(parts) > 3):
            report(path, line, "intrinsics: <%s> outside a folder of src/kern" % system)
        if not own or not layer or own in BARE:
            continue
        folder = own.split("/")[0] if "/" in own else None
        if folder not in LAYERS:
            report(path, line, 'layer: "%s" does not name a folder of src' % own)
        elif folder not in LAYERS.get(layer, set()):
            report(path, line, "layer: %s may not include %s" % (layer, own))


def check_names(path, code, public):
    stem, folders = os.path.basename(path)[:-2].split("_")[0], path.split("/")[:-1]
    want = tuple("lg_" + word + "_" for word in [stem] + folders if word != "src")
    if folders[-1] == "cli" or "kern" in folders:
        want = ("lg_",)
    header = os.path.join(ROOT, os.path.dirname(path), stem + ".h")
    if os.path.isfile(header):
        with open(header) as f:
            public = public | set(re.findall(r"\b(lg_\w+)\(", f.read()))
    function = r"(?m)^((?:[A-Za-z_]\w*[\s\*]+)+)(\w+)\([^;{}]*\)\s*\{"
    variable = r"(?m)^((?:[A-Za-z_]\w*[\s\*]+)+)(\w+)(?:\[[^\]]*\])*\s*(?:=|;)"
    for pattern in (function, variable):
        for m, line in lines_of(pattern, code):
            words, name = m.group(1).split(), m.group(2)
            if words[0] in ("static", "INLINE", "typedef", "extern", "return", "else", "struct", "enum", "union") or "static" in words:
                continue
            if name in public or name == "main" or name + "_" in want or name.startswith(want):
                continue
            report(path, line, "names: %s should start with %s" % (name, " or ".join(want)))


def check_c(path, text, public):
    code = bare_code(text)
    if not text.startswith("/* " + os.path.basename(path) + " - "):
        report(path, 1, "opening: the file should open with /* %s - ..." % os.path.basename(path))
    check_includes(path, text)
    if not path.startswith(("src/", "cli/")):
        return
    if path != "src/base/mem.c":
        for m, line in lines_of(HEAP, code):
            report(path, line, "heap: %s outside src/base/mem.c" % m.group(1))
    if path.endswith(".c"):
        check_names(path, code, public)
    if text.count("\n") > 700:
        report(path, 701, "length: %d lines" % text.count("\n"))


def check_script(path, text):
    head = re.sub(r"\A#![^\n]*\n", "", text)
    quoted = '"""' if path.endswith(".py") else "# "
    if not head.startswith(quoted):
        report(path, 1, "opening: the file should open with a comment that says what it does")


def check_text(path, text):
    for m, line in lines_of(LATER, text):
        report(path, line, "text: " + m.group(1))
    for _, line in lines_of(re.escape(MACHINE), text):
        report(path, line, "text: a path of one machine")
    for _, line in lines_of(r"(?m)[ \t]+$", text):
        report(path, line, "text: space at the end of the line")


def check_paths(path, text, known):
    """Names in backquotes of a document, and paths below our folders anywhere in a document or an opening comment."""
    prose = text if path.endswith(".md") else text[: text.find("*/")]
    quoted = r"`[^`\n]*`" if path.endswith(".md") else r"$^"
    for m, line in lines_of(quoted, prose):
        for name in re.findall(r"[\w./-]*\w\.(?:c|h|py|sh|md|build)\b", m.group(0)):
            if not re.search(PLACEHOLDER, name) and not any(("/" + k).endswith("/" + name) for k in known):
                report(path, line, "paths: %s is not in the tree" % name)
    for m, line in lines_of(r"\b(?:src|cli|tests|tools|fuzz|docs|models|examples|include)/[\w./-]*\w\.(?:c|h|py|sh|md|build|jsonl)\b", prose):
        if not re.search(PLACEHOLDER, m.group(0)) and m.group(0) not in known:
            report(path, line, "paths: %s is not in the tree" % m.group(0))


def check_format(paths):
    try:
        run = subprocess.run(["clang-format", "--dry-run"] + paths, cwd=ROOT, stderr=subprocess.PIPE)
    except FileNotFoundError:
        report("tools/lint.py", 1, "format: clang-format is not installed (tools/bootstrap.sh check)")
        return
    for m in re.finditer(r"(?m)^(\S+?):(\d+):\d+: (?:warning|error): ", run.stderr.decode()):
        report(m.group(1), int(m.group(2)), "format: clang-format would change this")


def main():
    with open(os.path.join(ROOT, "include/lignum.h")) as f:
        public = set(re.findall(r"(?m)^LG_API[^;]*?\b(\w+)\(", f.read()))
    c_files, mpi = [], []
    known = set(files())
    for path in sorted(known):
        if path.startswith(DATA):
            continue
        with open(os.path.join(ROOT, path), "rb") as f:
            raw = f.read()
        if b"\0" in raw:
            continue
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            report(path, 1, "text: not UTF-8")
            continue
        check_text(path, text)
        if path.endswith((".md", ".c", ".h")):
            check_paths(path, text, known)
        if path.endswith((".c", ".h")):
            c_files.append(path)
            check_c(path, text, public)
            mpi += [(path, line) for _, line in lines_of(r"(?m)^\s*#\s*include\s+<mpi\.h>", text)]
        elif path.endswith((".py", ".sh")):
            check_script(path, text)
    for path, line in mpi[1:]:
        report(path, line, "mpi: mpi.h is already included by " + mpi[0][0])
    check_format(c_files)
    for path, line, rule in sorted(set(found)):
        print("%s:%d: %s" % (path, line, rule))
    print("lint: %d files, %d violations" % (len(c_files), len(set(found))))
    return 1 if found else 0


sys.exit(main())
