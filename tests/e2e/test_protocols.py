"""test_protocols.py - the wire formats over HTTP: pings, error shapes by route, /tokenize, relaxed conversations.  The worker is scripted."""
import os
import re
import signal
import unittest

import clients
import server

HI = [{"role": "user", "content": "hi"}]
CHAT = {"model": server.NAME, "messages": HI, "enable_thinking": False}
MESSAGES = {"model": server.NAME, "max_tokens": 40, "messages": HI}


def events(s, path, body):
    """(event name or None, data or comment) of a stream."""
    status, headers, text = s.post(path, {**body, "stream": True})
    assert status == 200 and headers["Content-Type"] == "text/event-stream", (status, text)
    found = []
    for block in text.split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines.get("event"), lines.get("data", block)))
    return found


class Protocols(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path, cls.text = server.script(tokens=30, step_us=1000)
        cls.s = server.scripted(path=cls.path)

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(signal.SIGKILL)

    def test_messages_plain_and_streamed(self):
        status, _, whole = self.s.post("/v1/messages", MESSAGES)
        self.assertEqual((status, whole["content"]), (200, [{"type": "text", "text": self.text}]))
        names = [name for name, _ in events(self.s, "/v1/messages", MESSAGES)]
        self.assertEqual(names, ["message_start", "content_block_start"] + ["content_block_delta"] * 30
                         + ["content_block_stop", "message_delta", "message_stop"])

    def test_errors_have_the_shape_of_the_route(self):
        for method, path, body in (("POST", "/v1/messages", {}), ("POST", "/v1/messages/count_tokens", {}), ("GET", "/v1/messages", None)):
            status, _, answer = self.s.request(method, path, body)
            self.assertIn(status, (400, 405))
            self.assertEqual(answer["type"], "error")
            self.assertEqual(answer["error"]["type"], "invalid_request_error")
        status, _, answer = self.s.post("/v1/embeddings", {"model": server.NAME, "input": "x"})
        self.assertEqual((status, answer["error"]["code"]), (400, "unsupported_operation"))

    def test_tokenize_and_back(self):
        status, _, answer = self.s.post("/tokenize", {"prompt": "Hello <|im_end|> there", "return_token_strs": True})
        self.assertEqual((status, answer["count"], answer["max_model_len"]), (200, len(answer["tokens"]), 2048))
        self.assertEqual("".join(answer["token_strs"]), "Hello <|im_end|> there")
        self.assertEqual(self.s.post("/detokenize", {"tokens": answer["tokens"]})[2], {"prompt": "Hello <|im_end|> there"})
        count = self.s.post("/v1/messages/count_tokens", {"model": server.NAME, "messages": HI})[2]["input_tokens"]
        self.assertEqual(count, self.s.post("/tokenize", {"messages": HI, "enable_thinking": False})[2]["count"])

    def test_conversations_that_the_format_refuses(self):
        def say(role, text):
            return {"role": role, "content": text}
        for messages in ([say("user", "a"), say("system", "b")], [say("system", "a"), say("system", "b"), say("user", "c")],
                         [say("system", "a")], [say("developer", "a")], [say("tool", "a")], HI + [say("assistant", "It is")]):
            self.assertEqual(self.s.chat({**CHAT, "messages": messages})["choices"][0]["message"]["content"], self.text)

    def test_lenient_ignores_and_tells(self):
        extra = {"x_extra": {"secret": 1}, "stream_options": {"include_usage": True, "x_inner": 1}, "stream": True,
                 "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "x_part": 1}], "x_msg": 1}]}
        self.assertEqual(self.s.post("/v1/chat/completions", {**CHAT, **extra})[2]["error"]["param"], "x_extra")
        with server.scripted("--lenient", path=self.path) as s:
            for _ in range(2):
                self.assertEqual(server.text_of(s.stream("/v1/chat/completions", {**CHAT, **extra}))[1], self.text)
                self.assertEqual(s.post("/v1/messages", {**MESSAGES, "x_extra": 1, "y\n\u00e9": 1})[0], 200)
                self.assertEqual(s.post("/v1/responses", {"model": server.NAME, "input": [{"role": "user", "content": "x", "x_item": 1}]})[0], 200)
            told = re.findall(r"(\S+): fields of this name have no effect", s.errors())
            self.assertEqual(sorted(told), ["input[].x_item", "messages[].content[].x_part", "messages[].x_msg", "stream_options.x_inner",
                                            "x_extra", "y???"])
            self.assertNotIn("secret", s.errors())
            # what is known is checked as ever
            for more in ({"temperature": 3}, {"functions": []}, {"seed": "x"}):
                self.assertEqual(s.post("/v1/chat/completions", {**CHAT, **more})[2]["error"]["param"], list(more)[0])

    def test_the_changing_line_is_told_once(self):
        for i in range(3):
            body = {**MESSAGES, "system": "x-anthropic-billing-header: cch=%d;\nYou are" % i}
            self.assertEqual(self.s.post("/v1/messages", body)[0], 200)
        self.assertEqual(self.s.errors().count("header line"), 1, self.s.errors())


class Document(unittest.TestCase):
    """docs/SERVER.md and /openapi.json against each other and the routes."""

    def test_the_page_is_true(self):
        path, _ = server.script(tokens=1)
        with open(os.path.join(server.SOURCE, "docs", "SERVER.md"), encoding="utf-8") as f:
            page = f.read()
        with server.scripted(path=path) as s:
            paths = s.get("/openapi.json")[2]["paths"]
            for p, methods in paths.items():
                method = list(methods)[0].upper()
                self.assertIn("| `%s %s` |" % (method, p), page)
                self.assertIn(s.request(method, p, {} if method == "POST" else None)[0], (200, 400), p)
                self.assertEqual(s.request("DELETE", p)[0], 405, p)
        self.assertEqual(len(re.findall(r"^\| `(?:GET|POST) /", page, re.M)), len(paths))
        letters = dict(re.findall(r"^\| `POST (\S+)` \| (\w) \|", page, re.M))
        known = {p: v["post"]["requestBody"]["content"]["application/json"]["schema"] for p, v in paths.items()
                 if "requestBody" in v.get("post", {})}
        self.assertEqual(set(letters), set(known))
        offered, refused = page.split("## Fields")[1].split("## Conversations")[0].split("Understood and refused")
        for text, member in ((offered, "properties"), (refused, "x-refused")):
            told = {(name, letter) for name, where in re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.M) for letter in where}
            self.assertEqual(told, {(name, letters[p]) for p in known for name in known[p][member]})


    def test_the_clients_are_those_of_the_tests(self):
        with open(os.path.join(server.SOURCE, "docs", "SERVER.md"), encoding="utf-8") as f:
            rows = re.findall(r"^\| [^|]+ \| (PyPI|npm) `([^`]+)` (\S+) \|", f.read(), re.M)
        pins = [("PyPI", *p.split("==")) for p in clients.PY + clients.PY_LONG]
        pins += [("npm", *p.rsplit("@", 1)) for p in clients.NPM + clients.AGENTS]
        self.assertEqual(sorted(rows), sorted(p for p in pins if p[1] != "jsonschema"))


class Budgets(unittest.TestCase):
    """Each flight plays the script from its start, so the answer after the closed reasoning is the whole text."""

    def setUp(self):
        path, self.text = server.script(tokens=30, step_us=1000, extra="cached 3")
        self.s = server.scripted(path=path)

    def tearDown(self):
        self.s.stop(signal.SIGKILL)

    def test_kept_tokens_are_those_of_the_first_flight(self):
        """The second flight, after the reasoning, finds what the first has computed; that is not reuse of an earlier request."""
        whole = self.s.chat({"model": server.NAME, "messages": HI, "thinking_budget": 5})
        self.assertEqual(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 3)
        whole = self.s.chat({"model": server.NAME, "messages": HI, "thinking_budget": 50})
        self.assertEqual(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 9)

    def test_reasoning_is_closed_and_the_answer_follows(self):
        thought = self.text[:self.text.index("w5")]
        n_close = self.s.post("/tokenize", {"prompt": "\n\n"})[2]["count"] + self.s.post("/tokenize", {"prompt": "\n"})[2]["count"] + 1
        body = {"model": server.NAME, "messages": HI, "thinking_budget": 5}
        whole = self.s.chat(body)
        message = whole["choices"][0]["message"]
        self.assertEqual((message["reasoning_content"], message["content"]), (thought, self.text))
        self.assertEqual(whole["usage"]["completion_tokens"], 5 + n_close + 30)
        self.assertEqual(server.text_of(self.s.stream("/v1/chat/completions", body))[:2], (thought, self.text))
        body = {**MESSAGES, "max_tokens": 20, "thinking": {"type": "enabled", "budget_tokens": 5}}
        status, _, whole = self.s.post("/v1/messages", body)
        self.assertEqual((status, whole["stop_reason"], whole["usage"]["output_tokens"]), (200, "max_tokens", 20))
        self.assertEqual(whole["content"][0]["thinking"], thought)
        self.assertEqual(whole["content"][1]["text"], self.text[:self.text.index("w%d " % (15 - n_close))])
        status, _, whole = self.s.post("/v1/responses", {"model": server.NAME, "input": "hi", "reasoning": {"max_tokens": 5}})
        self.assertEqual(whole["output"][0]["content"][0]["text"], thought)
        self.assertEqual(whole["output"][1]["content"][0]["text"], self.text)
        # no room for an answer: the length ends it, as without a budget
        whole = self.s.chat({"model": server.NAME, "messages": HI, "thinking_budget": 5, "max_tokens": 6})
        self.assertEqual((whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]), ("length", 6))
        self.assertEqual(self.s.metrics()["lignum_requests_running"], 0)


class Pings(unittest.TestCase):
    def test_silent_streams_are_pinged(self):
        path, text = server.script(tokens=1, step_us=2500000)
        with server.scripted("--ping", "1", path=path) as s:
            found = events(s, "/v1/messages", MESSAGES)
            self.assertEqual(found[0][0], "message_start")
            self.assertIn(("ping", '{"type":"ping"}'), found[1:3])
            self.assertEqual(found[-1][0], "message_stop")
            found = events(s, "/v1/chat/completions", CHAT)
            self.assertEqual(found[0], (None, ": ping"))
            self.assertEqual(found[-1], (None, "[DONE]"))


if __name__ == "__main__":
    unittest.main()
