"""test_fair.py - who is served first: keys side by side, priorities, and what /metrics says of the scheduler and of memory."""
import json
import os
import subprocess
import tempfile
import threading
import time
import unittest

import server

CHAT = "/v1/chat/completions"
HI = {"model": server.NAME, "messages": [{"role": "user", "content": "Count."}], "temperature": 0, "ignore_eos": True, "max_tokens": 60}


class Fair(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        path = os.path.join(cls.folder.name, "keys")
        cls.key = {}
        for name, more in (("many", []), ("few", []), ("late", ["--priority", "5"]), ("admin", ["--role", "admin"])):
            cls.key[name] = subprocess.run([server.LIGNUM, "keys", "add", path, "--name", name, *more], capture_output=True, text=True,
                                           check=True, timeout=30).stdout.strip()
        cls.s = server.Server("--keys", path, "--parallel", "2", "--max-requests", "50", "--max-stall", "200")

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(9)
        cls.folder.cleanup()

    def ask(self, name, **more):
        return self.s.request("POST", CHAT, {**HI, **more}, headers={"Authorization": "Bearer " + self.key[name]})

    def crowd(self, n, done, name, **more):
        """n requests at the same time; each appends (name, status) when it is over."""
        def one(i):
            code, _, answer = self.ask(name, seed=i, **more)
            done.append((name, code))
            return answer
        threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
        for t in threads:
            t.start()
        return threads

    def metrics(self):
        code, _, text = self.s.request("GET", "/metrics", headers={"Authorization": "Bearer " + self.key["admin"]})
        self.assertEqual(code, 200)
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and line[0] != "#"}

    def wait_busy(self, n):
        end = time.monotonic() + 20
        while self.metrics()["lignum_requests_running"] + self.metrics()["lignum_requests_waiting"] < n:
            self.assertLess(time.monotonic(), end)

    def test_a_crowd_does_not_delay_another_key(self):
        done = []
        threads = self.crowd(30, done, "many", max_tokens=200)
        self.wait_busy(20)
        before = len(done)
        self.assertEqual(self.ask("few")[0], 200)
        self.assertLess(len(done) - before, 12)
        for t in threads:
            t.join()
        self.assertEqual(done, [("many", 200)] * 30)

    def test_priorities(self):
        done = []
        threads = self.crowd(8, done, "late", max_tokens=300)
        self.wait_busy(8)
        threads += self.crowd(2, done, "few", service_tier="priority", max_tokens=5)
        for t in threads:
            t.join()
        self.assertLess(max(i for i, (name, _) in enumerate(done) if name == "few"), 6, done)
        self.assertEqual({code for _, code in done}, {200})

    def test_one_key_leaves_room_for_others(self):
        done = []
        threads = self.crowd(60, done, "many", max_tokens=100)
        self.wait_busy(30)
        self.assertEqual(self.ask("few", max_tokens=2)[0], 200)
        for t in threads:
            t.join()
        n_refused = sum(code == 429 for _, code in done)
        self.assertGreaterEqual(n_refused, 10)
        self.assertEqual(len(done), 60)
        self.assertEqual({code for _, code in done}, {200, 429})

    def test_metrics_of_the_scheduler_and_memory(self):
        self.assertEqual(self.ask("few", max_tokens=2)[0], 200)
        m = self.metrics()
        part = {what: m['lignum_worker_memory_bytes{what="%s"}' % what] for what in ("budget", "weights", "state", "scratch")}
        self.assertGreater(min(part.values()), 0)
        self.assertLessEqual(part["weights"] + part["state"] + part["scratch"], part["budget"])
        out = subprocess.run([server.LIGNUM, "inspect", server.MODEL, "--json", "--memory", "%d" % part["budget"], "--parallel", "2"],
                             capture_output=True, text=True, check=True, timeout=30).stdout
        told = json.loads(out)
        self.assertEqual(told["memory"]["weight_bytes"], part["weights"])
        self.assertGreater(told["plan"]["pages"], m["lignum_worker_pages"] / 2)
        for name in ('lignum_preemptions_total{kept="snapshot"}', 'lignum_preemptions_total{kept="nothing"}', "lignum_steps_cut_total",
                     "lignum_requests_held_total", 'lignum_mixed_step_seconds_total{what="error"}', "lignum_recomputed_tokens_total"):
            self.assertIn(name, m)
        steps = m["lignum_steps_total"]
        os.kill(self.s.worker(), 9)  # counters go on over workers
        self.assertEqual(self.ask("few", max_tokens=2)[0], 200)
        self.assertGreaterEqual(self.metrics()["lignum_steps_total"], steps)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
