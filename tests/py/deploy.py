#!/usr/bin/env python3
"""deploy.py - the recipes in deploy/: Kubernetes manifests against the schemas of several versions, scripts run with stand-ins.

The package kubernetes-validate is pinned and installed below the build folder (clients.py); offline: that part is skipped.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import clients  # noqa: E402
import server  # noqa: E402

DEPLOY = os.path.join(server.SOURCE, "deploy")
MANIFEST = os.path.join(DEPLOY, "kubernetes", "lignum.yaml")
VERSIONS = ["1.29", "1.32", "1.35"]
VALIDATE = """
import sys, yaml, kubernetes_validate as k
for version in sys.argv[2:]:
    for doc in yaml.safe_load_all(open(sys.argv[1])):
        k.validate(doc, version, strict=True)
        print(version, doc["kind"], doc["metadata"]["name"])
"""
FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >>"$LOG"
case "$(basename "$0")" in
hostname) [ "$1" = -f ] && echo node2.cluster || echo node2 ;;
scontrol) printf 'node1\\nnode2\\nnode3\\n' ;;
lignum) while [ $# -gt 0 ]; do [ "$1" = --hosts ] && cat "$2" >>"$LOG"; shift; done; trap 'echo drained >>"$LOG"; exit 0' TERM
    echo up >>"$LOG"; while [ -n "$STAY" ]; do sleep 0.1; done ;;
esac
"""


class Kubernetes(unittest.TestCase):
    def run_python(self, text, *args):
        python = clients.venv("deploy", ["kubernetes-validate==1.37.0", "PyYAML==6.0.3"])
        done = subprocess.run([python, "-c", text, *args], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return done.stdout

    def test_schemas(self):
        said = self.run_python(VALIDATE, MANIFEST, *VERSIONS)
        self.assertEqual(len(said.splitlines()), 6 * len(VERSIONS), said)

    def test_it_can_fail(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f, open(MANIFEST, encoding="utf-8") as good:
            f.write(good.read().replace("replicas: 4", "replica: 4"))
            f.flush()
            with self.assertRaises(AssertionError):
                self.run_python(VALIDATE, f.name, VERSIONS[-1])

    def test_numbers_agree(self):
        """Pods, lines of the hostfile, --ranks; every option is one of the program's."""
        with open(MANIFEST, encoding="utf-8") as f:
            text = f.read()
        n = int(re.search(r"replicas: (\d+)", text).group(1))
        self.assertEqual(re.findall(r"lignum-(\d+)\.lignum-ranks slots=1", text), [str(i) for i in range(n)])
        self.assertIn("--ranks %d " % n, text)
        known = subprocess.run([server.LIGNUM, "serve", "--help"], capture_output=True, text=True, check=True).stdout
        script = text[text.index("exec lignum serve"):text.index("---\n# Names")]
        with open(os.path.join(DEPLOY, "slurm", "lignum.sbatch"), encoding="utf-8") as f:
            script += f.read().split("args=(", 1)[1]
        options = set(re.findall(r"(?<!\S)\(?(--[a-z-]+) ", script))
        self.assertGreater(len(options), 8)
        for option in options:
            self.assertIn(option + " ", known)

    def test_start_script(self):
        with open(MANIFEST, encoding="utf-8") as f:
            text = f.read()
        script = re.sub(r"(?m)^    ", "", text[text.index("    #!/bin/sh"):text.index("---\n# Names")])
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)


class Slurm(unittest.TestCase):
    def start(self, **more):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        for name in ("hostname", "scontrol", "lignum"):
            path = os.path.join(self.dir.name, name)
            with open(path, "w", encoding="utf-8") as f:
                f.write(FAKE)
            os.chmod(path, 0o755)
        self.log = os.path.join(self.dir.name, "log")
        env = {"PATH": self.dir.name + ":" + os.environ["PATH"], "LOG": self.log, "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_JOB_NUM_NODES": "3",
               "MODEL": "/m", "INTERFACE": "ib0", "STAY": "", **more}
        return subprocess.Popen(["bash", os.path.join(DEPLOY, "slurm", "lignum.sbatch")], env=env, stdout=subprocess.DEVNULL)

    def read(self):
        with open(self.log, encoding="utf-8") as f:
            return f.read()

    def test_hosts_and_options(self):
        self.assertEqual(self.start(KEYS="/k", CERT="/c", CERT_KEY="/ck").wait(30), 0)
        said = self.read()
        self.assertIn("node2 slots=1\nnode1 slots=1\nnode3 slots=1\n", said)
        self.assertRegex(said, r"lignum serve --model /m --ranks 3 --hosts \S+ --interface ib0 --port 8080 .*--keys /k --host 0\.0\.0\.0 --tls-cert /c --tls-key /ck")

    def test_signal_drains(self):
        job = self.start(STAY="1")
        while not os.path.exists(self.log) or "up" not in self.read():
            self.assertIsNone(job.poll())
        job.terminate()
        self.assertEqual(job.wait(30), 0)
        self.assertIn("drained", self.read())


unittest.main()
