"""test_protocols.py - the wire formats over HTTP: pings, error shapes by route, /tokenize, relaxed conversations.  The worker is scripted."""
import json
import signal
import unittest

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

    def test_the_changing_line_is_told_once(self):
        for i in range(3):
            body = {**MESSAGES, "system": "x-anthropic-billing-header: cch=%d;\nYou are" % i}
            self.assertEqual(self.s.post("/v1/messages", body)[0], 200)
        self.assertEqual(self.s.errors().count("header line"), 1, self.s.errors())


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
