"""test_streams.py - streams against whole answers on the three protocols: order of events, nulls, ids, usage, cuts at every token, errors.

The worker plays turns in the tokens of the bundled model; each turn is asked for whole, streamed, and cut off after each of its tokens.
"""
import json
import os
import unittest

import server

FILE = "#include <stdio.h>\nint main(void) { return 1 < 2 && \"żółw 🐢\"; } // </b> \\n 'x'\n"
TURNS = {
    "plain": "Hello there, żółw 🐢!\n",
    "thinking": "Hm.\nWell.\n</think>\n\nYes & no.",
    "one call": "I'll write.\n</think>\n\nNow.\n\n" + server.call("write", path="a.c", content=FILE, mode=493),
    "two calls": "</think>\n\n" + server.call("write", path="<b>", content="", mode=None) + "\n"
                 + server.call("list", where={"x": [1, "y"]}, deep=True),
    "json call": "Sure.\n</think>\n\n<tool_call>\n" + json.dumps({"name": "list", "arguments": {"where": "x\"y"}}) + "\n</tool_call>",
    "no call": "</think>\n\nI would <tool_call> but <function=nothing>\n<parameter=x>\n1\n</parameter>\n</function>.",
}
PARAMETERS = {
    "write": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"$ref": "#/$defs/text"},
                                               "mode": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
              "$defs": {"text": {"type": "string"}}},
    "list": {"type": "object", "properties": {"where": {"oneOf": [{"type": "string"}, {"type": "object"}]}, "deep": {"type": "boolean"}}}}


def ask(protocol, turn, limit=None):
    """Body of a request that gets that turn."""
    words = "play: " + turn
    if protocol == "chat":
        body = {"messages": [{"role": "user", "content": words}],
                "tools": [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in PARAMETERS.items()],
                "enable_thinking": turn != "plain"}
        return {**body, **({"max_tokens": limit} if limit else {})}
    if protocol == "messages":
        return {"messages": [{"role": "user", "content": words}], "max_tokens": limit or 1000,
                "tools": [{"name": n, "input_schema": p} for n, p in PARAMETERS.items()],
                "thinking": {"type": "disabled" if turn == "plain" else "adaptive"}}
    body = {"input": words, "tools": [{"type": "function", "name": n, "parameters": p} for n, p in PARAMETERS.items()],
            "enable_thinking": turn != "plain", "store": False}
    return {**body, **({"max_output_tokens": limit} if limit else {})}


PATH = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path = server.answers(*[("play: " + name, text) for name, text in TURNS.items()], extra="slots 8")
        cls.s = server.scripted(path=cls.path)

    @classmethod
    def tearDownClass(cls):
        cls.s.stop()
        os.unlink(cls.path)

    def post(self, protocol, turn, limit=None):
        status, _, answer = self.s.post(PATH[protocol], {"model": server.NAME, **ask(protocol, turn, limit)})
        self.assertEqual(status, 200, answer)
        return answer

    def stream(self, protocol, turn, limit=None, **more):
        return list(self.s.stream(PATH[protocol], {"model": server.NAME, **ask(protocol, turn, limit), **more}))

    def joined_chat(self, events):
        """The message and finish reason that the chunks make, their form checked."""
        self.assertEqual(events[-1], "[DONE]")
        chunks, usage = events[:-2], events[-2]
        self.assertEqual(len({(c["id"], c["created"], c["model"], c["object"]) for c in events[:-1]}), 1)
        self.assertEqual(usage["choices"], [])
        self.assertIn("cached_tokens", usage["usage"]["prompt_tokens_details"])
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(chunks[-1]["choices"][0]["delta"], {})
        message = {"role": "assistant", "content": ""}
        for c in chunks:
            choice = c["choices"][0]
            self.assertEqual((c["usage"], choice["index"], choice["logprobs"]), (None, 0, None))
            self.assertEqual(choice["finish_reason"] is None, c is not chunks[-1])
            for key in ("content", "reasoning_content"):
                if key in choice["delta"]:
                    message[key] = message.get(key, "") + choice["delta"][key]
            for part in choice["delta"].get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if part["index"] == len(calls):
                    self.assertEqual(set(part), {"index", "id", "type", "function"})
                    calls.append({k: v for k, v in part.items() if k != "index"})
                else:
                    self.assertEqual((part["index"], set(part)), (len(calls) - 1, {"index", "function"}))
                    calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        return message, chunks[-1]["choices"][0]["finish_reason"], usage["usage"]

    def check_chat(self, turn, limit=None):
        whole = self.post("chat", turn, limit)
        message, finish, usage = self.joined_chat(self.stream("chat", turn, limit, stream_options={"include_usage": True}))
        want = {k: v for k, v in whole["choices"][0]["message"].items() if k != "refusal"}
        for m in (want, message):
            m["reasoning_content"], m["content"] = m.get("reasoning_content", ""), m["content"] or ""
            for call in m.get("tool_calls", []):
                call.pop("id")
        self.assertEqual((message, finish, usage["completion_tokens"]),
                         (want, whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]))
        return message, finish

    def joined_messages(self, events):
        kinds = [e["type"] for e in events]
        self.assertEqual((kinds[0], kinds[-2:]), ("message_start", ["message_delta", "message_stop"]))
        content, is_open = [], False
        for e in events[1:-2]:
            if e["type"] == "content_block_start":
                self.assertEqual((e["index"], is_open), (len(content), False))
                content.append({**e["content_block"], "pieces": ""})
                is_open = True
                continue
            self.assertEqual((e["index"], is_open), (len(content) - 1, True))
            if e["type"] == "content_block_stop":
                is_open = False
                continue
            d = e["delta"]
            content[-1]["pieces"] += d.get("text", "") + d.get("thinking", "") + d.get("partial_json", "")
            content[-1]["signature"] = d.get("signature", "")
        self.assertFalse(is_open)
        return content, events[-2]["delta"], events[-2]["usage"]

    def check_messages(self, turn, limit=None):
        whole = self.post("messages", turn, limit)
        content, delta, usage = self.joined_messages(self.stream("messages", turn, limit))
        self.assertEqual(([c["type"] for c in content], delta["stop_reason"], usage),
                         ([c["type"] for c in whole["content"]], whole["stop_reason"], whole["usage"]))
        for got, want in zip(content, whole["content"]):
            if want["type"] != "tool_use":
                self.assertEqual(got["pieces"], want[want["type"]])
                continue
            self.assertEqual(got["name"], want["name"])
            cut = whole["stop_reason"] == "max_tokens" and want is whole["content"][-1]
            try:
                self.assertEqual(json.loads(got["pieces"]), want["input"])
            except ValueError:  # the pieces of a cut call stay cut, the object is closed
                self.assertTrue(cut, got)
                self.assertIn(want["input"], [json.loads(got["pieces"] + end) for end in ("}", "\"}") if valid(got["pieces"] + end)])
        return whole

    def joined_responses(self, events):
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertEqual([e["type"] for e in events[:2]], ["response.created", "response.in_progress"])
        items, pieces = [], ""
        for e in events[2:-1]:
            kind = e["type"]
            if kind == "response.output_item.added":
                self.assertEqual(e["output_index"], len(items))
                items.append(e["item"])
                pieces = ""
            elif kind == "response.output_item.done":
                self.assertEqual((e["item"]["id"], e["item"]["type"]), (items[-1]["id"], items[-1]["type"]))
                inside = e["item"]["arguments"] if "arguments" in e["item"] else e["item"]["content"][0]["text"]
                self.assertEqual(inside, pieces)
                items[-1] = e["item"]
            else:
                self.assertEqual((e["item_id"], e["output_index"]), (items[-1]["id"], len(items) - 1))
                pieces += e["delta"] if kind.endswith(".delta") else ""
        last = events[-1]["response"]
        self.assertEqual(last["output"], items)
        self.assertEqual(events[-1]["type"], "response." + last["status"])
        return last

    def check_responses(self, turn, limit=None):
        def bare(response):
            items = json.loads(json.dumps(response["output"]))
            for item in items:
                item.pop("id")
                item.pop("call_id", None)
            return items, response["status"], response["usage"], response["incomplete_details"]
        whole = self.post("responses", turn, limit)
        self.assertEqual(bare(self.joined_responses(self.stream("responses", turn, limit))), bare(whole))
        return whole

    def test_whole_turns(self):
        calls = {"one call": [("write", {"path": "a.c", "content": FILE, "mode": 493})],
                 "two calls": [("write", {"path": "<b>", "content": "", "mode": None}), ("list", {"where": {"x": [1, "y"]}, "deep": True})],
                 "json call": [("list", {"where": "x\"y"})]}
        for turn in TURNS:
            want = calls.get(turn, [])
            message, finish = self.check_chat(turn)
            self.assertEqual([(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])], want)
            self.assertEqual(finish, "tool_calls" if want else "stop")
            whole = self.check_messages(turn)
            self.assertEqual([(c["name"], c["input"]) for c in whole["content"] if c["type"] == "tool_use"], want)
            self.assertEqual(whole["stop_reason"], "tool_use" if want else "end_turn")
            whole = self.check_responses(turn)
            self.assertEqual([(c["name"], json.loads(c["arguments"])) for c in whole["output"] if c["type"] == "function_call"], want)
            self.assertEqual(whole["status"], "completed")

    def test_cut_after_each_token(self):
        n_cut = 0
        for turn in ("one call", "two calls"):
            n = self.post("chat", turn)["usage"]["completion_tokens"]
            for limit in range(1, n):
                message, finish = self.check_chat(turn, limit)
                self.assertEqual(finish, "length")
                calls = message.get("tool_calls", [])
                n_cut += bool(calls) and not valid(calls[-1]["function"]["arguments"])
                if limit % 3 == 0:
                    self.assertEqual(self.check_messages(turn, limit)["stop_reason"], "max_tokens")
                    self.assertEqual(self.check_responses(turn, limit)["status"], "incomplete")
        self.assertGreater(n_cut, 50)

    def test_long_argument_comes_as_it_is_made(self):
        """The call is there before its long argument, which comes in about as many pieces as it has tokens."""
        chunks = self.stream("chat", "one call")
        parts = [c["choices"][0]["delta"]["tool_calls"][0]["function"] for c in chunks[:-1] if "tool_calls" in c["choices"][0]["delta"]]
        self.assertEqual(parts[0], {"name": "write", "arguments": ""})
        n = self.s.post("/tokenize", {"prompt": FILE})[2]["count"]
        self.assertGreater(len(parts), n * 3 // 4)
        self.assertLess(max(len(p["arguments"]) for p in parts), 40)


class Errors(unittest.TestCase):
    def test_an_answer_that_fails(self):
        """Later than the first token: the last event of the stream, as each protocol has it."""
        path = server.answers(("hi", "Hello there, this is long enough."), extra="fail 4")
        with server.scripted(path=path) as s:
            say = [{"role": "user", "content": "hi"}]
            bodies = {"chat": {"messages": say, "enable_thinking": False}, "messages": {"messages": say, "max_tokens": 50},
                      "responses": {"input": "hi", "enable_thinking": False}}
            for protocol, body in bodies.items():
                status, _, answer = s.post(PATH[protocol], {"model": server.NAME, **body})
                self.assertEqual((status, answer["error"]["type"]), (500, "api_error" if protocol == "messages" else "server_error"))
                events = list(s.stream(PATH[protocol], {"model": server.NAME, **body}))
                self.assertGreater(len(events), 4)
                last = events[-1]
                if protocol == "chat":
                    self.assertEqual(last["error"]["code"], "generation_failed")
                elif protocol == "messages":
                    self.assertEqual((last["type"], last["error"]["type"]), ("error", "api_error"))
                else:
                    self.assertEqual((last["type"], last["response"]["status"], last["response"]["error"]["code"]),
                                     ("response.failed", "failed", "server_error"))


def valid(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


if __name__ == "__main__":
    unittest.main()
