"""test_cache.py - kept prefixes as a client sees them: what a chat and an agent reuse turn by turn, over a restart, who shares with
whom, the same answers.
"""
import glob
import json
import os
import signal
import subprocess
import tempfile
import time
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


def long_model(folder):
    """The bundled model with a context of 32,768 (its answers mean nothing out there, but they are exact)."""
    path = os.path.join(folder, "long")
    os.mkdir(path)
    for name in os.listdir(server.MODEL):
        if name != "config.json":
            os.symlink(os.path.join(server.MODEL, name), os.path.join(path, name))
    with open(os.path.join(server.MODEL, "config.json"), encoding="utf-8") as f:
        text = f.read()
    assert text.count('"max_position_embeddings": 4096') == 1
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        f.write(text.replace('"max_position_embeddings": 4096', '"max_position_embeddings": 32768'))
    return path


def long_chat(open_server):
    """(answer, prompt, computed, tail) of three turns after 16,000 tokens; open_server is asked for each turn."""
    rules = " ".join("Rule %d: answer question number %d with a short sentence." % (i, i) for i in range(830))
    messages, rows, before = [{"role": "system", "content": rules}], [], 0
    for question in ("What is the capital of France?", "And of Japan?", "How many are two and three?"):
        messages.append({"role": "user", "content": question})
        s = open_server()
        a = turn(s, messages)
        u = a["usage"]
        rows.append((a["choices"][0]["message"]["content"], u["prompt_tokens"], u["prompt_tokens"] - cached(a), u["prompt_tokens"] - before))
        before = u["prompt_tokens"] + u["completion_tokens"]
        messages.append({"role": "assistant", "content": rows[-1][0]})
    return rows


def wait_above(s, name, low):
    """The worker's report may come a little later than the answer."""
    until = time.monotonic() + 20
    while s.metrics()[name] <= low:
        assert time.monotonic() < until, (name, s.metrics()[name])
        time.sleep(0.01)


def with_dir(folder, *args, **more):
    """Its stop() writes what is queued."""
    return server.Server("--cache-dir", folder, *args, **more)


def make_keys(folder, *names):
    path, keys = os.path.join(folder, "keys"), {}
    for name in names:
        keys[name] = subprocess.run([server.LIGNUM, "keys", "add", path, "--name", name], capture_output=True, text=True,
                                    check=True, timeout=30).stdout.strip()
    return path, keys


def ask_as(s, key, **more):
    """Tokens reused for one and the same question."""
    body = {"model": server.NAME, "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hello"}],
            "temperature": 0, "max_tokens": 4, **more}
    code, _, answer = s.request("POST", CHAT, body, headers={"Authorization": "Bearer " + key} if key else None)
    assert code == 200, answer
    return cached(answer)


TOOL = {"name": "add", "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}
QUESTION = "Use the tool to add 840 and 487."
STEPS = 5


def chat_agent(s, think):
    """(prompt, reused, made) of each step.  This client shows no reasoning and spells arguments anew."""
    messages, rows = [{"role": "system", "content": "Be short and precise."}, {"role": "user", "content": QUESTION}], []
    for i in range(STEPS):
        a = s.chat({"model": server.NAME, "messages": messages, "tools": [{"type": "function", "function": TOOL}], "temperature": 0,
                    "max_tokens": 60, "chat_template_kwargs": {"enable_thinking": think}})
        m, u = a["choices"][0]["message"], a["usage"]
        rows.append((u["prompt_tokens"], cached(a), u["completion_tokens"]))
        m.pop("reasoning_content", None)
        for c in m.get("tool_calls") or []:
            c["function"]["arguments"] = json.dumps(json.loads(c["function"]["arguments"]), indent=2, sort_keys=True)
        messages += [m, {"role": "tool", "content": str(1327 + i)}]
    return rows


def messages_agent(s, think):
    messages, rows = [{"role": "user", "content": QUESTION}], []
    for i in range(STEPS):
        body = {"model": server.NAME, "messages": messages, "system": "Be short and precise.", "temperature": 0, "max_tokens": 1100,
                "tools": [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}]}
        if think:
            body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        code, _, a = s.post("/v1/messages", body)
        assert code == 200, a
        u = a["usage"]
        reused = u["cache_read_input_tokens"]
        rows.append((u["input_tokens"] + reused + (u.get("cache_creation_input_tokens") or 0), reused, u["output_tokens"]))
        blocks = [b for b in a["content"] if b["type"] != "thinking"]
        calls = [b for b in blocks if b["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": c["id"], "content": str(1327 + i)} for c in calls]
        messages += [{"role": "assistant", "content": blocks}]
        if not calls:
            break
        messages += [{"role": "user", "content": results}]
    return rows


def shares(rows):
    """What each step reuses of all tokens that the step before knew."""
    return [reused / (prompt + made) for (prompt, _, made), (_, reused, _) in zip(rows, rows[1:])]


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
            path, keys = make_keys(folder, "alice", "bob")
            with server.Server("--keys", path) as s:
                got = [ask_as(s, keys[name]) for name in ("alice", "bob", "alice", "bob")]
                self.assertEqual(got[:2], [0, 0])
                self.assertTrue(all(n > 400 for n in got[2:]), got)
                # One key in front of many users: cache_salt keeps them apart.
                got = [ask_as(s, keys["alice"], cache_salt=salt) for salt in ("x", "y", "x", "y")]
                self.assertEqual(got[:2], [0, 0])
                self.assertTrue(all(n > 400 for n in got[2:]), got)
            with server.Server("--keys", path, "--share-cache") as s:
                got = [ask_as(s, keys["alice"]), ask_as(s, keys["bob"]), ask_as(s, keys["bob"], cache_salt="x")]
                self.assertEqual((got[0], got[2]), (0, 0))
                self.assertGreater(got[1], 400)

    def test_a_restart_forgets_nothing(self):
        with tempfile.TemporaryDirectory() as top:
            folder = os.path.join(top, "cache")
            with with_dir(folder) as s:
                first = three_turns(s)
                self.assertEqual([a[:2] for a in first], [a[:2] for a in self.cold])
                self.assertEqual(s.stop(), 0)  # writes what is queued
            self.assertEqual(oct(os.stat(folder).st_mode & 0o777), "0o700")
            files = glob.glob(os.path.join(folder, "*.kept"))
            self.assertTrue(files)
            self.assertEqual({oct(os.stat(f).st_mode & 0o777) for f in files}, {"0o600"})
            with with_dir(folder) as s:
                again = three_turns(s)
                self.assertEqual([a[:2] for a in again], [a[:2] for a in self.cold])
                for text, n_prompt, n_cached, before in again:
                    self.assertGreaterEqual(n_cached, n_prompt - 64)
                s.kill_worker()  # no chance to write anything
                s.wait_metric("lignum_worker_up", 0)
                s.wait_metric("lignum_worker_up", 1)
                last = three_turns(s)
                self.assertEqual([a[:2] for a in last], [a[:2] for a in again])
                for text, n_prompt, n_cached, before in last:  # exactly how many depends on what had been written by then
                    self.assertGreaterEqual(n_cached, n_prompt - 64)
                wait_above(s, "lignum_cache_file_tokens_total", 700)

    def test_turns_after_a_restart_compute_their_tail(self):
        """A server for each turn: every turn computes what is new and at most 64 tokens."""
        with tempfile.TemporaryDirectory() as folder:
            messages, before = [{"role": "system", "content": SYSTEM}], 0
            for question, (text, n_prompt, _, _) in zip(("What is the capital of France?", "And of Japan?",
                                                          "How many are two and three?"), self.cold):
                messages.append({"role": "user", "content": question})
                with with_dir(folder) as s:
                    a = turn(s, messages)
                    self.assertEqual(a["choices"][0]["message"]["content"], text)
                    self.assertEqual(a["usage"]["prompt_tokens"], n_prompt)
                    self.assertGreaterEqual(cached(a), before - 64 if before else 0)
                    before = n_prompt
                    messages.append({"role": "assistant", "content": text})
                    self.assertEqual(s.stop(), 0)

    def test_a_long_chat_computes_its_tail_only(self):
        """Three turns of a chat of 16,000 tokens, by one server, and by one server for each turn."""
        with tempfile.TemporaryDirectory() as folder:
            model, files = long_model(folder), os.path.join(folder, "cache")
            args = ("--ctx", "20000", "--parallel", "2", "--memory", "1G")
            with server.Server(*args, model=model) as s:
                one = long_chat(lambda: s)
            servers = []

            def next_server():
                if servers:
                    self.assertEqual(servers[-1].stop(), 0)
                servers.append(with_dir(files, *args, model=model))
                return servers[-1]
            try:
                many = long_chat(next_server)
            finally:
                servers[-1].stop(9)
            self.assertEqual([r[:2] for r in many], [r[:2] for r in one])
            for what, rows in (("one server", one), ("restarted", many)):
                print("  %s: %s" % (what, ", ".join("%d of %d (tail %d)" % (computed, n, tail) for _, n, computed, tail in rows)))
                self.assertGreater(rows[0][1], 16000)
                for _, _, computed, tail in rows[1:]:
                    self.assertLessEqual(computed, tail + 64)

    def test_damaged_and_foreign_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            with with_dir(folder) as s:
                three_turns(s)
                self.assertEqual(s.stop(), 0)
            files = sorted(glob.glob(os.path.join(folder, "*.kept")))
            for path in files:
                with open(path, "r+b") as f:
                    f.seek(os.path.getsize(path) // 2)
                    byte = f.read(1)
                    f.seek(-1, os.SEEK_CUR)
                    f.write(bytes([byte[0] ^ 4]))
            with with_dir(folder) as s:
                self.assertEqual([a[:2] for a in three_turns(s)], [a[:2] for a in self.cold])
                wait_above(s, "lignum_cache_files_refused_total", 0)
                self.assertRegex(s.errors(), r"[0-9a-f]{16}-[0-9a-f]{8}\.kept: .* does not match its checksum; the file is removed")
            os.chmod(folder, 0o755)
            s = server.Server("--cache-dir", folder, wait=False)
            self.assertEqual(s.process.wait(60), 1)
            self.assertIn("found mode 755, expected 700", s.errors())
            os.chmod(folder, 0o700)

    def test_keys_share_no_files(self):
        with tempfile.TemporaryDirectory() as top:
            path, keys = make_keys(top, "alice", "bob")
            folder = os.path.join(top, "cache")
            for name, low, high in (("alice", 0, 0), ("bob", 0, 0), ("alice", 400, 9999), ("bob", 400, 9999)):
                with server.Server("--cache-dir", folder, "--keys", path) as s:
                    n = ask_as(s, keys[name])
                    self.assertTrue(low <= n <= high, (name, n))
                    self.assertEqual(s.stop(), 0)

    def test_an_agent_reuses_its_own_turns(self):
        """The client strips reasoning and spells calls anew: over 95 % of what was known is reused in each step."""
        with server.Server() as s:
            for agent in (chat_agent, messages_agent):
                for think in (False, True):
                    rows = agent(s, think)
                    self.assertGreater(len(rows), 1)
                    self.assertTrue(all(x > 0.95 for x in shares(rows)), (agent.__name__, think, rows))
            self.assertGreater(s.metrics()["lignum_replay_turns_total"], 10)
            replayed = chat_agent(s, True)
        with server.Server("--no-replay") as s:
            rows = chat_agent(s, True)
            self.assertTrue(any(x < 0.95 for x in shares(rows)), rows)
            # The reasoning that the client left out is in the prompt again, and counted.
            self.assertGreater(replayed[1][0], rows[1][0])
            self.assertEqual(s.metrics()["lignum_replay_turns_total"], 0)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
