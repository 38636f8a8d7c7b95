"""test_formats.py - answers of a given form from the bundled model, as wild as the temperature may be: schema x reasoning x protocol x
stream; every answer that ends validates (PyPI jsonschema).  Calls that must be made are made.  What cannot be had is refused.
"""
import json
import os
import subprocess
import sys
import unittest

import clients
import server

SCHEMAS = {
    "object": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"},
                                                "size": {"enum": ["S", "M", 5, None]}}, "required": ["name", "size"],
               "additionalProperties": False},
    "nested": {"type": "object", "properties": {
        "rows": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"$ref": "#/$defs/row"}}, "note": {"anyOf": [{"type": "null"}, {"const": "n/a"}]}},
        "required": ["rows", "note"], "$defs": {"row": {"type": "object", "properties": {"ok": {"type": "boolean"}, "é\n": {"type": "null"}},
                                                        "required": ["ok"]}}},
    "list": {"type": "array", "items": {"type": ["boolean", "null"]}, "maxItems": 4},
    "bounded": {"type": "object", "properties": {
        "day": {"type": "string", "pattern": r"^\d{4}-[01]\d-[0-3]\d$"}, "share": {"type": "number", "minimum": 0, "maximum": 1},
        "code": {"type": "string", "pattern": "[A-Z]+|é", "maxLength": 5}, "n": {"type": "integer", "exclusiveMinimum": -5, "multipleOf": 5}},
        "required": ["day", "share", "code", "n"]},
}
ASK = [{"role": "user", "content": "Fill in the form."}]
TOOLS = [("add", {"type": "object", "properties": {"a": {"type": "integer"}, "how": {"enum": ["fast", "slow"]}}, "required": ["a", "how"]}),
         ("ping", {"type": "object", "properties": {}})]


def body(protocol, think, seed, schema=None, tools=None, choice=None):
    """A request of that protocol; reasoning is cut short by its budget."""
    if protocol == "chat":
        b = {"messages": ASK, "temperature": 2, "max_tokens": 300, "enable_thinking": think, **({"thinking_budget": 8} if think else {})}
        if schema:
            b["response_format"] = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}
        if tools:
            b["tools"] = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in tools]
            b["tool_choice"] = {"type": "function", "function": {"name": choice}} if choice else "required"
    elif protocol == "responses":
        b = {"input": ASK, "temperature": 2, "max_output_tokens": 300, "enable_thinking": think, "store": False,
             **({"reasoning": {"max_tokens": 8}} if think else {})}
        if schema:
            b["text"] = {"format": {"type": "json_schema", "name": "form", "schema": schema}}
        if tools:
            b["tools"] = [{"type": "function", "name": n, "parameters": p} for n, p in tools]
            b["tool_choice"] = {"type": "function", "name": choice} if choice else "required"
    else:
        b = {"messages": ASK, "temperature": 1, "max_tokens": 300, "thinking": {"type": "enabled", "budget_tokens": 8} if think
             else {"type": "disabled"}}
        if schema:
            b["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        if tools:
            b["tools"] = [{"name": n, "input_schema": p} for n, p in tools]
            b["tool_choice"] = {"type": "tool", "name": choice} if choice else {"type": "any"}
    return {"model": server.NAME, "seed": seed, **({"top_k": 0, "top_p": 1}), **b}


class Formats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = server.Server("--threads", "2")

    @classmethod
    def tearDownClass(cls):
        cls.s.stop()

    def answer(self, protocol, b, stream):
        """Text, calls as (name, arguments), reasoning, and whether it ended by itself."""
        path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}[protocol]
        if stream:
            events = list(self.s.stream(path, b))
            if protocol == "chat":
                reasoning, text, finish = server.text_of(events)
                return text, None, reasoning, finish == "stop"
            if protocol == "messages":
                deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
                return ("".join(d.get("text", "") for d in deltas), None, "".join(d.get("thinking", "") for d in deltas),
                        events[-2]["delta"]["stop_reason"] == "end_turn")
            whole = events[-1]["response"]
        else:
            status, _, whole = self.s.post(path, b)
            self.assertEqual(status, 200, whole)
        if protocol == "chat":
            m = whole["choices"][0]["message"]
            calls = [(c["function"]["name"], c["function"]["arguments"]) for c in m.get("tool_calls", [])]
            return m["content"], calls, m.get("reasoning_content", ""), whole["choices"][0]["finish_reason"] in ("stop", "tool_calls")
        if protocol == "messages":
            return ("".join(c.get("text", "") for c in whole["content"]), [(c["name"], json.dumps(c["input"])) for c in whole["content"]
                                                                         if c["type"] == "tool_use"],
                    "".join(c.get("thinking", "") for c in whole["content"]), whole["stop_reason"] in ("end_turn", "tool_use"))
        parts = {o["type"]: o for o in whole["output"]}
        return (parts["message"]["content"][0]["text"] if "message" in parts else "",
                [(o["name"], o["arguments"]) for o in whole["output"] if o["type"] == "function_call"],
                parts["reasoning"]["content"][0]["text"] if "reasoning" in parts else "", whole["status"] == "completed")

    def test_every_answer_validates(self):
        import jsonschema
        n_end = n = 0
        for name, schema in SCHEMAS.items():
            check = jsonschema.Draft202012Validator(schema)
            for protocol in ("chat", "responses", "messages"):
                for think in (False, True):
                    for stream in (False, True):
                        for seed in range(2):
                            text, _, reasoning, ended = self.answer(protocol, body(protocol, think, seed, schema) | {"stream": stream}, stream)
                            self.assertEqual(bool(reasoning), think, (protocol, stream, reasoning, text))
                            n += 1
                            if not ended:
                                continue
                            errors = list(check.iter_errors(json.loads(text)))
                            self.assertEqual(errors, [], (name, protocol, think, stream, text))
                            n_end += 1
        print("%d of %d answers ended; all of them valid" % (n_end, n))
        self.assertGreater(n_end, n * 9 // 10)

    def test_any_object(self):
        for seed in range(4):
            b = body("chat", False, seed)
            got = self.s.chat({**b, "temperature": 0.5, "response_format": {"type": "json_object"}})["choices"][0]
            if got["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(got["message"]["content"]), dict)
            self.assertEqual(got["message"]["content"].lstrip()[:1], "{")

    def test_calls_that_must_be_made(self):
        for protocol in ("chat", "responses", "messages"):
            for think in (False, True):
                for seed in range(3):
                    for choice in (None, "add"):
                        b = body(protocol, think, seed, tools=TOOLS, choice=choice)
                        text, calls, reasoning, ended = self.answer(protocol, b, False)
                        self.assertEqual(bool(reasoning), think)
                        self.assertFalse(text, (protocol, text))
                        self.assertTrue(calls or not ended, (protocol, think, seed, choice, ended))
                        for name, arguments in calls if ended else []:
                            self.assertIn(name, ("add", "ping") if choice is None else ("add",))
                            if name == "add":
                                arguments = json.loads(arguments)
                                self.assertIsInstance(arguments["a"], int)
                                self.assertIn(arguments["how"], ("fast", "slow"))
                        if ended and choice:
                            self.assertEqual(len(calls), 1)

    def test_refused_with_the_path(self):
        bad = {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string", "pattern": r"\ba"}}}}
        for protocol, path, param in (("chat", "/v1/chat/completions", "response_format.json_schema.schema"),
                                      ("responses", "/v1/responses", "text.format.schema"), ("messages", "/v1/messages", None)):
            status, _, answer = self.s.post(path, body(protocol, False, 0, bad))
            self.assertEqual(status, 400)
            self.assertIn("properties.list.items: pattern '\\ba'", answer["error"]["message"])
            if param:
                self.assertEqual(answer["error"]["param"], param)

    def test_lost_workers_change_nothing(self):
        """The form holds over a worker's death."""
        b = {**body("chat", False, 11, SCHEMAS["nested"]), "stream": True}
        want = server.text_of(self.s.stream("/v1/chat/completions", b))
        got, killed = [], False
        for e in self.s.stream("/v1/chat/completions", b):
            got.append(e)
            if not killed and len(got) > 3:
                self.s.kill_worker()
                killed = True
        self.assertEqual(server.text_of(got), want)


def main():
    if len(sys.argv) == 1:
        python = clients.venv("clients", clients.PY)
        sys.exit(subprocess.run([python, __file__, "inside"]).returncode)
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:])


if __name__ == "__main__":
    main()
