"""test_model.py - the bundled model behind the gateway: right answers, and the same ones for 32 clients at the same time."""
import http.client
import json
import os
import shutil
import signal
import subprocess
import time
import unittest

import server

CHAT = "/v1/chat/completions"


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = server.Server()

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(signal.SIGKILL)

    def test_capital_city_streamed(self):
        body = {"model": "tiny-qwen35moe", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        events = list(self.s.stream(CHAT, body))
        reasoning, content, finish = server.text_of(events)
        self.assertIn("Paris", content)
        self.assertEqual(finish, "stop")
        self.assertEqual(events[0]["object"], "chat.completion.chunk")
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(len({e["id"] for e in events[:-1]}), 1)

    def test_line_to_paste(self):
        """The curl line that `serve` prints, run by a shell as it stands."""
        if not shutil.which("curl"):
            self.skipTest("no curl here")
        line = next(line for line in self.s.said if line.strip().startswith("curl "))
        out = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60).stdout
        events = [json.loads(part[6:]) for part in out.splitlines() if part.startswith("data: {")]
        self.assertIn("Paris", server.text_of(events)[1])
        self.assertIn("data: [DONE]", out)

    def test_answers_of_the_reference(self):
        rows = [r for r in server.evals() if not r["tools"] and r["enable_thinking"] is False and r["min_margin"] > 1e-3]
        self.assertGreater(len(rows), 60)
        for r in rows:
            answer = self.s.chat(server.chat_body(r))
            want = r["expected_text"].replace("<|im_end|>", "")
            self.assertEqual(answer["choices"][0]["message"]["content"].strip(), want.strip(), r["messages"])
            self.assertEqual(answer["usage"]["prompt_tokens"], len(r["prompt_ids"]))
            self.assertEqual(answer["usage"]["completion_tokens"], len(r["expected_ids"]))

    def test_reasoning_is_split(self):
        rows = [r for r in server.evals() if not r["tools"] and r["enable_thinking"] and r["min_margin"] > 1e-3][:20]
        for r in rows:
            message = self.s.chat(server.chat_body(r))["choices"][0]["message"]
            thought, said = r["expected_text"].replace("<|im_end|>", "").split("</think>")
            self.assertEqual(message["reasoning_content"].strip(), thought.strip())
            self.assertEqual(message["content"].strip(), said.strip())

    def test_completions(self):
        answer = self.s.post("/v1/completions", {"model": server.NAME, "prompt": "The capital of France is", "max_tokens": 4,
                                                 "temperature": 0})[2]
        self.assertEqual(answer["object"], "text_completion")
        self.assertEqual(answer["usage"]["completion_tokens"], 4)
        events = list(self.s.stream("/v1/completions", {"model": server.NAME, "prompt": "The capital of France is",
                                                        "max_tokens": 4, "temperature": 0}))
        self.assertEqual(server.text_of(events)[1], answer["choices"][0]["text"])

    def test_32_clients_get_what_they_get_alone(self):
        rows = (server.evals() * 2)[:256]
        alone = {}
        for i, r in enumerate(rows):
            key = json.dumps(server.chat_body(r), sort_keys=True)
            if key not in alone:
                alone[key] = self.s.chat(server.chat_body(r))["choices"]

        def client(k):
            for i, r in enumerate(rows[k::32]):
                body = server.chat_body(r)
                want = alone[json.dumps(body, sort_keys=True)]
                if (i + k) % 2:
                    got = server.text_of(self.s.stream(CHAT, body))
                    m = want[0]["message"]
                    self.assertEqual(got[1], m["content"] or "")
                    self.assertEqual(got[0], m.get("reasoning_content") or "")
                    self.assertEqual(got[2], want[0]["finish_reason"])
                else:
                    choices = self.s.chat(body)["choices"]
                    for c in choices + want:
                        for call in c["message"].get("tool_calls") or []:
                            call.pop("id", None)
                    self.assertEqual(choices, want)
            return True
        self.assertEqual(server.in_threads([lambda k=k: client(k) for k in range(32)]), [True] * 32)
        m = self.s.metrics()
        self.assertEqual((m["lignum_requests_running"], m["lignum_worker_restarts_total"]), (0, 0))

    def test_keep_alive_client(self):
        c = http.client.HTTPConnection("127.0.0.1", self.s.port, timeout=30)
        for r in server.evals("facts")[:5]:
            c.request("POST", CHAT, json.dumps(server.chat_body(r)), {"Content-Type": "application/json"})
            answer = json.loads(c.getresponse().read())
            self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        c.close()

    def test_context_limit(self):
        code, _, body = self.s.post(CHAT, {"model": server.NAME, "messages": [{"role": "user", "content": "word " * 100000}]})
        self.assertEqual((code, body["error"]["code"]), (400, "context_length_exceeded"))

    def test_strict_refuses_other_sums(self):
        for more in (("--exchange", "reduce"), ("--wire", "q8")):
            out = subprocess.run([server.LIGNUM, "serve", "--model", server.MODEL, "--strict", *more], capture_output=True, text=True,
                                 timeout=30)
            self.assertNotEqual(out.returncode, 0)
            self.assertIn("--strict goes with --exchange strict", out.stderr)
        with server.Server("--strict") as s:
            row = server.evals("facts")[0]
            self.assertEqual(s.chat(server.chat_body(row))["choices"], self.s.chat(server.chat_body(row))["choices"])

    def test_idle_processes_sleep(self):
        def ticks(pid):
            with open("/proc/%d/stat" % pid) as f:
                fields = f.read().rsplit(") ", 1)[1].split()
            return int(fields[11]) + int(fields[12])
        pids = (self.s.process.pid, self.s.worker())
        time.sleep(1)
        before = [ticks(p) for p in pids]
        time.sleep(3)
        for p, b in zip(pids, before):
            self.assertLessEqual(ticks(p) - b, 0.01 * 3 * os.sysconf("SC_CLK_TCK"))


if __name__ == "__main__":
    unittest.main(warnings="ignore", verbosity=2)
