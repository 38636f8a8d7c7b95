"""test_worker.py - the worker dies: streams go on, deadly requests are found, and what happens when it does not come back."""
import os
import shutil
import signal
import tempfile
import threading
import time
import unittest

import server

CHAT = "/v1/chat/completions"
END_IDS = {"4065": -100, "4063": -100}  # never end: the answers get long enough to be interrupted
RESTARTS = "lignum_worker_restarts_total"


def long_body(i, **more):
    return {"model": server.NAME, "messages": [{"role": "user", "content": "Tell me story number %d." % i}], "max_tokens": 200,
            "logit_bias": END_IDS, **more}


class Recovery(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = server.Server()

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(signal.SIGKILL)

    def interrupted(self, bodies, kills, more=()):
        """Stream all at the same time, killing the worker whenever a third, two thirds ... of the tokens are out."""
        s = self.s
        alone = [server.text_of(s.stream(CHAT, b)) for b in bodies]
        before = s.metrics()
        n_event, lock, marks = [0], threading.Lock(), [200 * len(bodies) * (k + 1) // (kills + 1) for k in range(kills)]

        def run(body):
            events = []
            for e in s.stream(CHAT, body):
                events.append(e)
                with lock:
                    n_event[0] += 1
                    if marks and n_event[0] >= marks[0]:
                        marks.pop(0)
                        s.kill_worker()
            self.assertEqual(events[-1], "[DONE]")
            return server.text_of(events)
        plain = [lambda b=b: s.chat(b) for b in more]
        got = server.in_threads([lambda b=b: run(b) for b in bodies] + plain)
        self.assertEqual(marks, [])
        after = s.metrics()
        self.assertEqual(after[RESTARTS] - before[RESTARTS], kills)
        for a, g in zip(alone, got):
            self.assertEqual(g, a)
            self.assertEqual(a[2], "length")
        self.assertEqual(after["lignum_generated_tokens_total"] - before["lignum_generated_tokens_total"],
                         200 * (len(bodies) + len(more)))
        self.assertNotIn("a resumed answer differs", s.errors())
        return got[len(bodies):]

    def test_one_greedy_stream(self):
        self.interrupted([long_body(1, temperature=0)], 1)

    def test_seeded_sampling(self):
        self.interrupted([long_body(2, temperature=1.0, top_p=0.95, seed=7)], 1)

    def test_many_streams_two_kills(self):
        bodies = [long_body(i, temperature=0) for i in range(3)]
        bodies += [long_body(i, temperature=1.2, seed=i, presence_penalty=0.5, stop=["never seen"]) for i in range(3)]
        self.interrupted(bodies, 2, more=[long_body(9, temperature=0)])

    def test_hanging_worker_is_replaced(self):
        body = long_body(4, temperature=1.0, seed=11)
        with server.Server("--worker-timeout", "2") as s:
            alone = server.text_of(s.stream(CHAT, body))
            events, start = [], None
            for e in s.stream(CHAT, body):
                events.append(e)
                if len(events) == 60:
                    start = time.monotonic()
                    os.kill(s.worker(), signal.SIGSTOP)
            self.assertEqual(server.text_of(events), alone)
            self.assertTrue(1.5 < time.monotonic() - start < 15, time.monotonic() - start)
            self.assertEqual(s.metrics()[RESTARTS], 1)
            self.assertIn("has said nothing", s.errors())

    def test_idle_worker_is_replaced(self):
        before = self.s.metrics()[RESTARTS]
        self.s.kill_worker()
        self.s.wait_metric(RESTARTS, before + 1)
        self.s.wait_metric("lignum_worker_up", 1)
        self.assertEqual(self.s.get("/ready")[0], 200)


class Deadly(unittest.TestCase):
    """The test build's worker dies of a prompt with a certain id."""

    @classmethod
    def setUpClass(cls):
        if not os.path.exists(server.HOOKS):
            raise unittest.SkipTest("built without -Dtest_hooks")
        rows = [r for r in server.evals() if not r["tools"] and r["enable_thinking"] is False]
        cls.deadly = next(r for r in rows if 2134 in r["prompt_ids"])
        cls.rows = [r for r in rows if 2134 not in r["prompt_ids"]][:12]

    def setUp(self):
        self.s = server.Server(exe=server.HOOKS, env={"LG_HOOK_CRASH_TOKEN": "2134"})

    def tearDown(self):
        self.s.stop(signal.SIGKILL)

    def test_alone_it_is_refused_at_the_second_death(self):
        code, _, body = self.s.post(CHAT, server.chat_body(self.deadly))
        self.assertEqual((code, body["error"]["code"], body["error"]["type"]), (500, "worker_failed", "server_error"))
        self.s.wait_metric(RESTARTS, 2)
        self.s.wait_metric("lignum_worker_up", 1)
        self.assertEqual(self.s.chat(server.chat_body(self.rows[0]))["choices"][0]["finish_reason"], "stop")

    def test_among_others_it_is_found_and_they_finish(self):
        s = self.s
        alone = [s.chat(server.chat_body(r))["choices"][0] for r in self.rows]
        long_alone = server.text_of(s.stream(CHAT, long_body(3, temperature=0)))
        jobs = [lambda r=r: s.chat(server.chat_body(r))["choices"][0] for r in self.rows]
        jobs.append(lambda: server.text_of(s.stream(CHAT, long_body(3, temperature=0))))
        jobs.insert(5, lambda: s.post(CHAT, server.chat_body(self.deadly, stream=True)))
        got = server.in_threads(jobs)
        code, _, body = got.pop(5)
        text = str(body)
        self.assertIn("worker_failed", text)
        self.assertIn(code, (200, 500))  # 200: its stream had begun
        self.assertEqual(got.pop(), long_alone)
        self.assertEqual(got, alone)
        restarts = s.metrics()[RESTARTS]
        self.assertTrue(2 <= restarts <= 8, restarts)


class LateDeath(unittest.TestCase):
    """Deadly only after 40 tokens: probation grows until the search ends."""

    def test_it_is_found_too(self):
        if not os.path.exists(server.HOOKS):
            self.skipTest("built without -Dtest_hooks")
        env = {"LG_HOOK_CRASH_TOKEN": "2134", "LG_HOOK_CRASH_AT": "40"}
        deadly = next(r for r in server.evals("facts") if 2134 in r["prompt_ids"] and r["enable_thinking"] is False)
        with server.Server(exe=server.HOOKS, env=env) as s:
            bodies = [long_body(i, temperature=0, max_tokens=120) for i in range(4)]
            alone = [server.text_of(s.stream(CHAT, b)) for b in bodies]
            jobs = [lambda b=b: server.text_of(s.stream(CHAT, b)) for b in bodies]
            jobs.insert(2, lambda: list(s.stream(CHAT, server.chat_body(deadly, max_tokens=120, logit_bias=END_IDS))))
            got = server.in_threads(jobs)
            self.assertEqual(got.pop(2)[-1]["error"]["code"], "worker_failed")
            self.assertEqual(got, alone)


class Gone(unittest.TestCase):
    def test_worker_that_cannot_come_back(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            os.mkdir(model)
            for name in os.listdir(server.MODEL):
                os.symlink(os.path.abspath(os.path.join(server.MODEL, name)), os.path.join(model, name))
            config = os.path.join(model, "config.json")
            with server.Server("--restart-deadline", "2", model=model) as s:
                events = s.stream(CHAT, long_body(1, temperature=0, max_tokens=2000))
                first = next(events)
                self.assertNotIn("error", first)
                os.rename(config, config + ".away")
                s.kill_worker()
                start = time.monotonic()
                last = list(events)[-1]
                self.assertEqual(last["error"]["code"], "worker_unavailable")
                self.assertTrue(1.5 < time.monotonic() - start < 6)
                code, headers, body = s.post(CHAT, long_body(1))
                self.assertEqual((code, body["error"]["code"]), (503, "worker_unavailable"))
                self.assertEqual(headers["Retry-After"], "1")
                self.assertEqual((s.get("/ready")[0], s.get("/live")[0]), (503, 200))
                os.rename(config + ".away", config)
                s.wait_metric("lignum_worker_up", 1)
                self.assertEqual(s.get("/ready")[0], 200)
                self.assertEqual(s.chat(long_body(1, max_tokens=3))["usage"]["completion_tokens"], 3)

    def test_changed_weights_are_not_mixed_into_a_stream(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            shutil.copytree(server.MODEL, model)
            with server.Server("--restart-deadline", "2", model=model) as s:
                os.utime(os.path.join(model, "model.safetensors"))
                events = s.stream(CHAT, long_body(1, temperature=0, max_tokens=2000))
                next(events)
                s.kill_worker()
                self.assertEqual(list(events)[-1]["error"]["code"], "worker_unavailable")
                self.assertIn("have changed", s.errors())

    def test_first_load_fails_with_the_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            shutil.copytree(server.MODEL, model)
            os.truncate(os.path.join(model, "model.safetensors"), 1000)
            s = server.Server(model=model, wait=False)
            self.assertEqual(s.process.wait(20), 1)
            self.assertIn("model.safetensors", s.errors())


if __name__ == "__main__":
    unittest.main(warnings="ignore", verbosity=2)
