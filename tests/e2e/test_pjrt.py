"""test_pjrt.py - the bundled model on XLA's CPU plugin behind the gateway: the reference's answers, for many clients and over a lost worker.

Skipped where tools/pjrt_plugins.py has not fetched the plugin.
"""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

import server

DIR = os.environ.get("LIGNUM_PJRT_DIR") or os.path.join(os.path.expanduser("~"), ".cache", "lignum", "pjrt")
PLUGIN = os.path.join(DIR, "cpu", "lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so")
N_CLIENT = 8
TIE = 0.01  # rows where the reference's two best logits came closer may answer otherwise


def device(n=1, more=""):
    """Few sizes, and programs kept for the next run."""
    return "pjrt:%s,weights=f32,grow=8,devices=%d,cpu_device_count=%d,programs=%s%s" % (
        PLUGIN, n, n, os.path.join(server.BUILD, "pjrt-programs"), more)


def open_server(*args, n=1, more=""):
    return server.Server("--device", device(n, more), "--ctx", "1024", "--parallel", str(N_CLIENT // n), "--memory", "1G", "--max-stall", "0",
                         *args)


class Case(unittest.TestCase):
    N_DEVICE = 1

    @classmethod
    def setUpClass(cls):
        cls.s = open_server(n=cls.N_DEVICE)

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(signal.SIGKILL)

    def check_all(self, rows):
        """Whether each answer is the reference's, N_CLIENT at a time."""
        done = [None] * len(rows)

        def client(k):
            for i in range(k, len(rows), N_CLIENT):
                done[i] = self.check(rows[i])

        server.in_threads([lambda k=k: client(k) for k in range(N_CLIENT)])
        return done

    def check(self, row):
        """Whether the answer is the reference's; a near tie may differ and is not counted."""
        answer = self.s.post("/v1/chat/completions", server.chat_body(row), timeout=1200)
        self.assertEqual(answer[0], 200, answer)
        answer = answer[2]
        message = answer["choices"][0]["message"]
        self.assertEqual(answer["usage"]["prompt_tokens"], len(row["prompt_ids"]))
        same = answer["usage"]["completion_tokens"] == len(row["expected_ids"])
        if not row["tools"]:
            want = row["expected_text"].replace("<|im_end|>", "").split("</think>")
            same = same and message["content"].strip() == want[-1].strip()
            if len(want) == 2:
                same = same and message["reasoning_content"].strip() == want[0].strip()
        return same


class OneDevice(Case):
    def test_answers_of_the_reference(self):
        rows = [r for r in server.evals()]
        done = self.check_all(rows)
        clear = [i for i, r in enumerate(rows) if r["min_margin"] > TIE]
        wrong = [rows[i]["messages"][-1]["content"] for i in clear if not done[i]]
        print("%d of %d answers are the reference's; %d of them had a near tie, of which %d differ" % (
            sum(done), len(rows), len(rows) - len(clear), sum(not done[i] for i in range(len(rows)) if i not in clear)))
        self.assertGreater(len(clear), 150)
        self.assertEqual(wrong, [])

    def test_sampling_and_logprobs(self):
        """What needs a row of logits: a seed repeats, alternatives come with the best one first."""
        body = {"model": server.NAME, "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 1.5,
                "seed": 7, "max_tokens": 12, "logprobs": True, "top_logprobs": 3}
        a, b = self.s.chat(body), self.s.chat(body)
        self.assertEqual(a["choices"][0]["message"], b["choices"][0]["message"])
        for token in a["choices"][0]["logprobs"]["content"]:
            best = token["top_logprobs"]
            self.assertEqual(len(best), 3)
            self.assertGreaterEqual(best[0]["logprob"], best[1]["logprob"])
            self.assertGreaterEqual(best[0]["logprob"] + 1e-4, token["logprob"])

    def test_worker_is_lost(self):
        """Another worker reads the kept programs and goes on."""
        row = [r for r in server.evals() if not r["tools"] and r["min_margin"] > 1][0]
        self.assertTrue(self.check(row))
        self.s.kill_worker()
        self.assertTrue(self.check(row))


class TwoDevices(Case):
    """Each has half of the experts, and sequences, pages and slots of its own."""
    N_DEVICE = 2

    def test_answers_of_the_reference(self):
        rows = [r for r in server.evals() if r["min_margin"] > TIE][:24]
        self.assertEqual(self.check_all(rows), [True] * 24)


def kept_files(folder):
    return [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names if name.endswith(".kept")]


def wait_for_files(folder):
    """Until no more are written: a server that ends does not wait long for them."""
    n, now = -1, len(kept_files(folder))
    while n != now:
        time.sleep(3)
        n, now = now, len(kept_files(folder))


class Files(unittest.TestCase):
    @staticmethod
    def body(what="answer"):
        return {"model": server.NAME, "temperature": 0, "max_tokens": 16, "chat_template_kwargs": {"enable_thinking": False},
                "messages": [{"role": "system", "content": " ".join("Rule %d: %s shortly." % (i, what) for i in range(60))},
                             {"role": "user", "content": "What is the capital of France?"}]}

    def test_restart(self):
        """Kept prefixes come back from files into the device, for the same answers; not where states have another type."""
        body, found = self.body(), []
        with tempfile.TemporaryDirectory() as folder:
            for more in "", "", ",state=bf16":
                with open_server("--cache-dir", folder, more=more) as s:
                    a = s.chat(body)
                    found.append((a["choices"][0]["message"]["content"], a["usage"]["prompt_tokens_details"]["cached_tokens"]))
                    s.stop()
        self.assertEqual(found[1][0], found[0][0])
        self.assertEqual(found[0][1], 0)
        self.assertGreater(found[1][1], a["usage"]["prompt_tokens"] - 64)
        self.assertEqual(found[2][1], 0)

    def test_restart_of_two_devices(self):
        """Each device has files of its own; they are not those of another number of devices."""
        bodies = [self.body(what) for what in ("answer", "speak", "write", "reply")]
        found = []
        with tempfile.TemporaryDirectory() as folder:
            for n in 2, 2, 1:
                with open_server("--cache-dir", folder, n=n) as s:
                    answers = [None] * len(bodies)

                    def client(k):
                        status, _, answers[k] = s.post("/v1/chat/completions", bodies[k], timeout=1200)
                        self.assertEqual(status, 200, answers[k])

                    server.in_threads([lambda k=k: client(k) for k in range(len(bodies))] if not found else
                                      [lambda: [client(k) for k in range(len(bodies))]])
                    found.append([(a["choices"][0]["message"]["content"], a["usage"]["prompt_tokens_details"]["cached_tokens"],
                                   a["usage"]["prompt_tokens"]) for a in answers])
                    wait_for_files(folder)
                    s.stop()
                    if n == 2:
                        self.assertEqual({os.path.dirname(path) for path in kept_files(folder)}, {folder, os.path.join(folder, "device-1")})
        for first, second, other in zip(*found):
            self.assertEqual(second[0], first[0])
            self.assertGreater(second[1], second[2] - 64)
        self.assertEqual(found[2][0][1], 0)


class Bench(unittest.TestCase):
    def test_bench(self):
        got = subprocess.run([server.LIGNUM, "bench", "--model", server.MODEL, "--device", device(), "--prompt", "32", "--gen", "8",
                              "--batch", "2", "--repeat", "1", "--json"], capture_output=True, text=True)
        self.assertEqual(got.returncode, 0, got)
        figures = json.loads(got.stdout)
        for kind, name, n in ("prompt", "tokens", 32), ("answers", "batch", 2):
            self.assertEqual([f[name] for f in figures[kind]], [n], got.stdout)
            self.assertGreater(figures[kind][0]["tokens_per_s"], 0)


if not os.path.exists(PLUGIN):
    server.skip("XLA's CPU plugin is not there (make check-pjrt fetches it)")
unittest.main()
