"""test_soak.py - many clients at random, with little memory: complete, streamed, broken off, of several keys and priorities, their
beginnings evicted, written to files and restored.

usage: test_soak.py [SECONDS]     120 in `make check`, 1800 in `make check-long`

Every answer to one prompt is the same text.  At the end a ledger: each request sent is counted once, every slot and page is
free again, the worker was never replaced; and memory: the worker's anonymous memory stays within its budget and, after the
first third, does not grow; nor does the gateway's.
"""
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import server

SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 120
CHAT = "/v1/chat/completions"
BUDGET = 40 << 20
N_SLOT, N_CLIENT = 8, 20
WORDS = "river stone cloud paper horse candle window garden".split()


def anonymous(pid):
    """Bytes of a process that are in no file, swapped ones too."""
    with open("/proc/%d/status" % pid) as f:
        field = dict(line.split(":", 1) for line in f)
    return sum(int(field[name].split()[0]) for name in ("RssAnon", "VmSwap")) * 1024


class Soak(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "keys")
        self.key = []
        for name, more in (("a", []), ("b", []), ("c", ["--priority", "1"]), ("admin", ["--role", "admin"])):
            self.key.append(subprocess.run([server.LIGNUM, "keys", "add", path, "--name", name, *more], capture_output=True, text=True,
                                           check=True, timeout=30).stdout.strip())
        self.s = server.Server("--keys", path, "--parallel", str(N_SLOT), "--ctx", "1024", "--memory", "%dK" % (BUDGET >> 10),
                               "--cache-memory", "4M", "--max-stall", "100", "--cache-dir", os.path.join(self.folder.name, "cache"),
                               "--cache-disk", "64M")
        self.rows = [r for r in server.evals() if len(json.dumps(r["messages"])) < 1500]
        self.lock, self.texts, self.wrong = threading.Lock(), {}, []
        self.n_sent = self.n_full = self.n_broken = 0
        self.end = time.monotonic() + SECONDS

    def tearDown(self):
        self.s.stop(9)
        self.folder.cleanup()

    def metrics(self):
        code, _, text = self.s.request("GET", "/metrics", headers={"Authorization": "Bearer " + self.key[3]})
        self.assertEqual(code, 200)
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and line[0] != "#"}

    # ---- clients ----

    def any_body(self, r):
        kind = r.randrange(4)
        if kind < 2:
            body = server.chat_body(r.choice(self.rows), max_tokens=r.choice((8, 40)))
        else:
            text = " ".join(WORDS[(kind + i * (1 + kind)) % 8] for i in range(r.choice((20, 80, 200)))) + r.choice(" .!?")
            body = {"model": server.NAME, "messages": [{"role": "system", "content": "Repeat what you are told."}, {"role": "user", "content": text}],
                    "temperature": 0, "max_tokens": r.choice((5, 100, 300)), "ignore_eos": kind == 3}
        return body

    def check(self, body, text):
        name = json.dumps(body, sort_keys=True)
        with self.lock:
            self.n_full += 1
            if self.texts.setdefault(name, text) != text:
                self.wrong.append((name, self.texts[name], text))

    def one(self, r):
        body = self.any_body(r)
        sent = dict(body, stream=r.random() < 0.5, stream_options=None)
        if r.random() < 0.2:
            sent["priority"] = r.randrange(-1, 3)
        data = json.dumps(sent).encode()
        head = {"Content-Type": "application/json", "Authorization": "Bearer " + r.choice(self.key[:3]), "Connection": "close"}
        c = self.s.http(600)
        with self.lock:
            self.n_sent += 1
        try:
            c.request("POST", CHAT, data, head)
            if r.random() < 0.25:  # leave: while it waits, in the prompt, in the answer
                with self.lock:
                    self.n_broken += 1
                time.sleep(r.choice((0, 0.005, 0.05, 0.3)))
                return
            answer = c.getresponse()
            if answer.status != 200:
                raise AssertionError((answer.status, answer.read()[:300]))
            if not sent["stream"]:
                message = json.loads(answer.read())["choices"][0]["message"]
                self.check(body, (message.get("reasoning_content") or "") + (message["content"] or ""))
                return
            events = []
            leave = r.randrange(30) if r.random() < 0.2 else None
            for line in answer:
                if line.startswith(b"data: "):
                    events.append(line[6:].strip())
                if leave is not None and len(events) > leave:
                    with self.lock:
                        self.n_broken += 1
                    return
            self.assertEqual(events[-1], b"[DONE]")
            reasoning, content, finish = server.text_of([json.loads(e) for e in events[:-1]])
            self.assertIn(finish, ("stop", "length", "tool_calls"))
            if finish != "tool_calls" and not body.get("tools"):
                self.check(body, reasoning + content)
        finally:
            c.close()

    def client(self, seed):
        r = random.Random(seed)
        while time.monotonic() < self.end and not self.wrong:
            self.one(r)
            if r.random() < 0.2:
                time.sleep(r.random() * 0.2)

    # ---- the watch ----

    def watch(self, samples):
        while time.monotonic() < self.end:
            samples.append((anonymous(self.s.worker()), anonymous(self.s.process.pid)))
            time.sleep(min(1, SECONDS / 60))

    def flat(self, name, values, slack):
        third = len(values) // 3
        before, after = max(values[:2 * third]), max(values[2 * third:])
        print("  %s: anonymous memory at most %.1f MB, then %.1f MB" % (name, before / 1e6, after / 1e6))
        self.assertLessEqual(after, before * 1.01 + slack, name)

    def test_soak(self):
        samples = []
        server.in_threads([lambda i=i: self.client(i) for i in range(N_CLIENT)] + [lambda: self.watch(samples)])
        self.assertEqual(self.wrong, [])
        deadline = time.monotonic() + 30
        while True:
            m = self.metrics()
            if m["lignum_requests_running"] + m["lignum_requests_waiting"] == 0 and m["lignum_worker_slots_free"] == N_SLOT:
                break
            self.assertLess(time.monotonic(), deadline, m)
            time.sleep(0.1)
        n_answered = {code: sum(v for name, v in m.items() if name.startswith("lignum_http_requests_total{route=\"chat\"") and code in name)
                      for code in ("200", "499", "")}
        print("  %d requests, %d complete, %d broken off; %d texts; put back %d and %d, %d tokens computed again, %d held, %d evicted, "
              "%d of %d prompt tokens reused, %d from %d files (%d skipped), %d aged"
              % (self.n_sent, self.n_full, self.n_broken, len(self.texts), m['lignum_preemptions_total{kept="snapshot"}'],
                 m['lignum_preemptions_total{kept="nothing"}'], m["lignum_recomputed_tokens_total"], m["lignum_requests_held_total"],
                 m["lignum_prefix_evictions_total"], m["lignum_prefix_hit_tokens_total"], m["lignum_prefix_prompt_tokens_total"],
                 m["lignum_cache_file_tokens_total"], m["lignum_cache_files_written_total"], m["lignum_cache_files_skipped_total"],
                 m["lignum_requests_aged_total"]))
        # Whoever left before his request was read was never counted.
        self.assertLessEqual(n_answered[""], self.n_sent)
        self.assertGreaterEqual(n_answered[""], self.n_sent - self.n_broken)
        self.assertEqual(n_answered["200"] + n_answered["499"], n_answered[""])
        self.assertGreaterEqual(n_answered["200"], self.n_full)
        self.assertEqual(m["lignum_worker_pages_free"], m["lignum_worker_pages"])
        self.assertEqual(m["lignum_worker_slots_free"], m["lignum_worker_slots"])
        self.assertEqual(m["lignum_worker_restarts_total"], 0)
        self.assertEqual(m["lignum_nonfinite_total"], 0)
        for name in ('lignum_preemptions_total{kept="nothing"}', "lignum_prefix_evictions_total", "lignum_prefix_hit_tokens_total",
                     "lignum_cache_file_tokens_total"):
            self.assertGreater(m[name], 0, name)
        worker, gateway = [a for a, _ in samples], [b for _, b in samples]
        self.flat("worker", worker, 1 << 20)
        self.flat("gateway", gateway, 2 << 20)
        self.assertLessEqual(max(worker), BUDGET * 1.01)
        self.assertEqual(self.s.errors(), "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], warnings="ignore")
