"""package.py - a Python package that a test compares with, in a virtual environment below the build folder (clients.py).

Where it cannot be had the test is skipped with the reason.
"""
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import clients


def need(pin, module):
    """Go on if `module` can be imported; else run this script in a Python that has the package `pin`, and exit as it does."""
    try:
        __import__(module)
    except ImportError:
        python = clients.venv(module, [pin])
        sys.exit(subprocess.run([python, *sys.argv], timeout=600).returncode)
