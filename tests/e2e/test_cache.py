"""test_cache.py - kept prefixes as a client sees them: what a chat reuses turn by turn, who shares with whom, the same answers."""
import os
import signal
import subprocess
import tempfile
import unittest

import server

CHAT = "/v1/chat/completions"
SYSTEM = " ".join("Rule %d: answer question number %d with a short sentence." % (i, i) for i in range(40))


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def turn(s, messages, **more):
    return s.chat({"model": server.NAME, "messages": messages, "temperature": 0, "max_tokens": 24,
                   "chat_template_kwargs": {"enable_thinking": False}, **more})


def three_turns(s):
    """Answers, and tokens computed again in each turn beyond what is new."""
    messages, answers, before = [{"role": "system", "content": SYSTEM}], [], 0
    for question in ("What is the capital of France?", "And of Japan?", "How many are two and three?"):
        messages.append({"role": "user", "content": question})
        a = turn(s, messages)
        answers.append((a["choices"][0]["message"]["content"], a["usage"]["prompt_tokens"], cached(a), before))
        before = a["usage"]["prompt_tokens"]
        messages.append({"role": "assistant", "content": answers[-1][0]})
    return answers


class Cache(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = server.Server("--no-prefix-cache")
        cls.cold = three_turns(cls.s)
        cls.s.stop(signal.SIGKILL)

    def test_a_chat_computes_its_tail_only(self):
        self.assertEqual([c for _, _, c, _ in self.cold], [0, 0, 0])
        with server.Server() as s:
            first, again = three_turns(s), three_turns(s)
            for run in (first, again):
                self.assertEqual([(text, n) for text, n, _, _ in run], [(text, n) for text, n, _, _ in self.cold])
            self.assertEqual(first[0][2], 0)
            self.assertGreater(first[0][1], 400)
            for text, n_prompt, n_cached, before in first[1:]:
                self.assertGreaterEqual(n_cached, before - 64)
                self.assertLess(n_cached, n_prompt)
            for text, n_prompt, n_cached, before in again:
                self.assertGreaterEqual(n_cached, n_prompt - 64)
            events = list(s.stream(CHAT, {"model": server.NAME, "max_tokens": 2, "stream_options": {"include_usage": True},
                                          "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello"}]}))
            usage = [e["usage"] for e in events if e != "[DONE]" and e.get("usage")][-1]
            self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 64)
            n_prompt = sum(n for run in (first, again) for _, n, _, _ in run) + usage["prompt_tokens"]
            s.wait_metric("lignum_prefix_prompt_tokens_total", n_prompt)  # the worker's last report
            m = s.metrics()
            self.assertGreater(m["lignum_prefix_snapshots"], 0)
            self.assertGreater(m["lignum_prefix_hit_tokens_total"], m["lignum_prefix_prompt_tokens_total"] / 2)

    def test_little_memory_evicts_and_answers_the_same(self):
        with server.Server("--cache-memory", "2M", "--parallel", "2") as s:
            n_prompt = 0
            for _ in range(2):
                for i in range(12):
                    n_prompt += turn(s, [{"role": "user", "content": "Question %d. " % i + SYSTEM[:600]}])["usage"]["prompt_tokens"]
                warm = three_turns(s)
                n_prompt += sum(n for _, n, _, _ in warm)
                self.assertEqual([(text, n) for text, n, _, _ in warm], [(text, n) for text, n, _, _ in self.cold])
            s.wait_metric("lignum_prefix_prompt_tokens_total", n_prompt)
            self.assertGreater(s.metrics()["lignum_prefix_evictions_total"], 0)

    def test_a_lost_worker_forgets_and_goes_on(self):
        with server.Server() as s:
            first = three_turns(s)
            s.kill_worker()
            s.wait_metric("lignum_worker_up", 0)
            s.wait_metric("lignum_worker_up", 1)
            again = three_turns(s)
            self.assertEqual([a[:3] for a in again], [a[:3] for a in first])

    def test_keys_share_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            path, keys = os.path.join(folder, "keys"), {}
            for name in ("alice", "bob"):
                keys[name] = subprocess.run([server.LIGNUM, "keys", "add", path, "--name", name], capture_output=True, text=True,
                                            check=True, timeout=30).stdout.strip()
            with server.Server("--keys", path) as s:
                body = {"model": server.NAME, "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello"}],
                        "temperature": 0, "max_tokens": 4}
                got = []
                for name in ("alice", "bob", "alice", "bob"):
                    code, _, answer = s.request("POST", CHAT, body, headers={"Authorization": "Bearer " + keys[name]})
                    self.assertEqual(code, 200, answer)
                    got.append(cached(answer))
                self.assertEqual(got[:2], [0, 0])
                self.assertTrue(all(n > 400 for n in got[2:]), got)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
