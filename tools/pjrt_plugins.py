#!/usr/bin/env python3
"""pjrt_plugins.py - fetch the PJRT plugins that `make check-pjrt` uses, once, into a cache folder.

usage: tools/pjrt_plugins.py [cpu] [tpu]
  cpu   XLA's CPU plugin (62.7 MB), to run programs
  tpu   libtpu (221 MB), to compile for TPUs without one
Prints "NAME PATH" for each.  A wheel from PyPI is a zip file: it is checked against the hash below, the library is taken out, and
nothing of it is installed or imported.  The folder is $LIGNUM_PJRT_DIR, or ~/.cache/lignum/pjrt.  What is there already is
not fetched again.  Exit status 77: a plugin cannot be had, with one line that says why; the tests then skip.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

DIR = os.environ.get("LIGNUM_PJRT_DIR") or os.path.join(os.path.expanduser("~"), ".cache", "lignum", "pjrt")
PLUGINS = {
    "cpu": ("lammps-jax-pjrt-cpu==0.11.2", "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
            "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"),
    "tpu": ("libtpu==0.0.48", "ee0fc264db65e46a0f9e5e4222816a77d6741cdd5283518b4ccbfd19e530af76", "libtpu/libtpu.so"),
}


def unavailable(text):
    print("pjrt: skipped: " + text)
    sys.exit(77)


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for part in iter(lambda: f.read(1 << 20), b""):
            h.update(part)
    return h.hexdigest()


def fetch(name):
    """Path of the library, which is in the cache folder afterwards."""
    pin, want, member = PLUGINS[name]
    path = os.path.join(DIR, name, member)
    if os.path.exists(path):
        return path
    os.makedirs(DIR, exist_ok=True)
    work = tempfile.mkdtemp(prefix=name + ".", dir=DIR)
    try:
        # The Python version and platform are the wheel's, whichever Python runs this.
        got = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15",
             "--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.11", "--abi", "cp311", "--abi", "none",
             "--platform", "manylinux_2_31_x86_64", "--platform", "manylinux_2_27_x86_64", "-d", work, pin],
            capture_output=True, text=True)
        if got.returncode:
            unavailable("%s cannot be fetched: %s" % (pin, (got.stderr or got.stdout).strip().splitlines()[-1][:200]))
        wheel = os.path.join(work, [n for n in os.listdir(work) if n.endswith(".whl")][0])
        found = sha256(wheel)
        if found != want:
            sys.exit("pjrt: %s: sha256 %s, expected %s" % (pin, found, want))
        with zipfile.ZipFile(wheel) as z:
            z.extract(member, work)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.replace(os.path.join(work, member), path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return path


def main():
    names = sys.argv[1:] or list(PLUGINS)
    for name in names:
        if name not in PLUGINS:
            sys.exit(__doc__.strip())
        print(name, fetch(name), flush=True)


main()
