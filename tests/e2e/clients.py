"""clients.py - a virtual environment with pinned packages of official clients, in the build folder; offline: a skip."""
import os
import subprocess
import sys

import server


def venv(name, pins):
    """Path of a Python in BUILD/NAME-venv that has the pinned packages, or a skip with the reason."""
    folder = os.path.join(server.BUILD, name + "-venv")
    python, stamp = os.path.join(folder, "bin", "python"), os.path.join(folder, "pins")
    if os.path.exists(stamp) and open(stamp).read() == repr(pins):
        return python
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", folder], capture_output=True, text=True)
    if made.returncode:
        server.skip("python3 -m venv fails: " + (made.stdout + made.stderr).strip()[-200:])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "10", *pins]
    try:
        got = subprocess.run(pip, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        server.skip("%s cannot be installed within 240 s" % ", ".join(pins))
    if got.returncode:
        server.skip("%s cannot be installed: %s" % (", ".join(pins), got.stderr.strip()[-300:]))
    with open(stamp, "w") as f:
        f.write(repr(pins))
    return python
