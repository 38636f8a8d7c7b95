#!/usr/bin/env python3
"""`lignum group`: which hosts answer decides how many ranks start; the remote shell is a script that reaches some.

Usage: group.py LIGNUM
"""
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))


class Group(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.agent = self.write("agent", '#!/bin/sh\n[ "$1 $3" = "-q true" ] || exit 9\ncase "$2" in up*) exit 0 ;; slow) exec sleep 60 ;; esac\nexit 255\n')
        os.chmod(self.agent, 0o755)

    def write(self, name, text):
        path = os.path.join(self.dir.name, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def start(self, hosts, ranks, least):
        done = subprocess.run([PROGRAM, "group", "--ranks", str(ranks), "--min-ranks", str(least), "--hosts", self.write("in", hosts), "--dir",
                               self.dir.name, "--", "sh", "-c", 'echo "$0"; cat "$1"', "@RANKS", "@HOSTS"], env={**os.environ, "OMPI_MCA_plm_rsh_agent": self.agent + " -q"},
                              capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_all_answer(self):
        self.assertEqual(self.start("here slots=2\nup1 slots=3 max-slots=4 # far\n\n#none slots=1\n", 5, 2), (0, "5\nhere slots=2\nup1 slots=3\n", ""))
        self.assertEqual(self.start("here slots=4\n", 3, 3)[:2], (0, "3\nhere slots=4\n"))

    def test_some_answer(self):
        rc, out, err = self.start("here slots=2\ndown1 slots=2\nup1 slots=2\nslow slots=2\n", 8, 4)
        self.assertEqual((rc, out), (0, "4\nhere slots=2\nup1 slots=2\n"))
        for part in ("down1 does not answer", "slow does not answer", "4 ranks instead of 8"):
            self.assertIn(part, err)

    def test_too_few(self):
        rc, out, err = self.start("here slots=2\ndown1 slots=6\n", 8, 3)
        self.assertEqual((rc, out), (1, ""))
        self.assertIn("room for 2 ranks; --min-ranks 3", err)

    def test_bad_files(self):
        for text in ("here\n", "here slots=0\n", "here slots=2\n-oProxyCommand=x slots=1\n", "h slots=1\n" * 300, "# nothing\n", "x" * 900 + " slots=1\n"):
            rc, out, err = self.start(text, 2, 1)
            self.assertEqual((rc, out), (1, ""), text[:40])
            self.assertIn("in: ", err)


unittest.main()
