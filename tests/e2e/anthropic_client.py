"""anthropic_client.py - the official anthropic package against `lignum serve`: message, stream, tool round trip, thinking, count.

The package is installed into the build folder once; offline the test is skipped and says why.
"""
import json
import subprocess
import sys

import clients
import server


def body_of(row, **more):
    """The Messages request that renders to the row's prompt, greedy."""
    body = {"model": server.NAME, "max_tokens": 400, "extra_body": {"temperature": 0},
            "messages": [m for m in row["messages"] if m["role"] != "system"]}
    system = [m["content"] for m in row["messages"] if m["role"] == "system"]
    if system:
        body["system"] = system[0]
    if row["enable_thinking"] is not False:
        body["thinking"] = {"type": "enabled", "budget_tokens": 399}
    if row["tools"]:
        body["tools"] = [{"name": t["function"]["name"], "description": t["function"]["description"],
                          "input_schema": t["function"]["parameters"]} for t in row["tools"]]
    return {**body, **more}


def said(row):
    return row["expected_text"].replace("<|im_end|>", "")


def read(usage):
    """Prompt tokens, found in the cache or not."""
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def message_and_stream(client):
    row = next(r for r in server.evals("facts") if r["enable_thinking"] is False)
    whole = client.messages.create(**body_of(row))
    assert whole.content[0].text.strip() == said(row).strip(), whole
    assert whole.stop_reason == "end_turn" and whole.usage.output_tokens == len(row["expected_ids"]), whole
    with client.messages.stream(**body_of(row)) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text, (text, whole)
    assert (read(final.usage), final.usage.output_tokens) == (read(whole.usage), whole.usage.output_tokens), (final, whole)
    assert final.stop_reason == "end_turn", (final, whole)
    names = [e.type for e in client.messages.create(**body_of(row), stream=True)]
    assert [n for n in names if n not in ("ping", "content_block_delta")] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"], names
    cut = client.messages.create(**body_of(row, max_tokens=2))
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 2, cut
    stop = text.strip()[3:6]
    cut = client.messages.create(**body_of(row, stop_sequences=[stop]))
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop), cut
    print("message and stream: %r" % text)


def tool_round_trip(client):
    row = next(r for r in server.evals("tool call") if r["enable_thinking"] is False and len(r["messages"]) < 3)
    whole = client.messages.create(**body_of(row))
    call = next(b for b in whole.content if b.type == "tool_use")
    assert whole.stop_reason == "tool_use" and "<function=%s>" % call.name in row["expected_text"], whole
    for name, value in call.input.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        assert "<parameter=%s>\n%s\n" % (name, shown) in row["expected_text"], (call, row["expected_text"])
    with client.messages.stream(**body_of(row)) as stream:
        streamed = next(b for b in stream.get_final_message().content if b.type == "tool_use")
    assert (streamed.name, streamed.input) == (call.name, call.input), (streamed, call)
    body = body_of(row)
    body["messages"] = body["messages"] + [
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "{\"result\": 1327}"}]}]
    answer = client.messages.create(**body)
    assert answer.content and answer.stop_reason in ("end_turn", "max_tokens"), answer
    print("tool round trip: %s(%s) -> %r" % (call.name, call.input, answer.content))


def thinking(client):
    row = next(r for r in server.evals("facts") if r["enable_thinking"])
    thought, content = said(row).split("</think>")
    whole = client.messages.create(**body_of(row))
    assert [b.type for b in whole.content] == ["thinking", "text"], whole
    assert whole.content[0].thinking.strip() == thought.strip() and whole.content[1].text.strip() == content.strip(), whole
    with client.messages.stream(**body_of(row)) as stream:
        final = stream.get_final_message()
    got = [b.model_dump(exclude={"signature"}) for b in final.content]
    assert [g.get("thinking") or g.get("text") for g in got] == [whole.content[0].thinking, whole.content[1].text], got
    print("thinking: %r then %r" % (whole.content[0].thinking, whole.content[1].text))


def count(client):
    row = next(r for r in server.evals("tool call") if r["enable_thinking"] is False)
    body = body_of(row)
    n = client.messages.count_tokens(**{k: body[k] for k in ("model", "messages", "tools", "system") if k in body}).input_tokens
    assert n == read(client.messages.create(**body_of(row, max_tokens=1)).usage), n
    print("count_tokens: %d" % n)


def errors(client):
    import anthropic
    for kind, more in ((anthropic.BadRequestError, {"messages": []}), (anthropic.BadRequestError, {"extra_body": {"temperature": 1.5}}),
                       (anthropic.NotFoundError, {"model": "claude"}), (anthropic.BadRequestError, {"max_tokens": 10**6})):
        try:
            client.messages.create(**{"model": server.NAME, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], **more})
        except kind as e:
            assert e.body["type"] == "error" and e.body["error"]["message"], e.body
        else:
            raise AssertionError("accepted: %s" % more)


def main():
    if len(sys.argv) == 1:
        python = clients.venv("clients", clients.PY)
        with server.Server() as s:
            sys.exit(subprocess.run([python, __file__, "http://127.0.0.1:%d" % s.port]).returncode)
    import anthropic
    client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", timeout=60, max_retries=0)
    for check in (message_and_stream, tool_round_trip, thinking, count, errors):
        check(client)


if __name__ == "__main__":
    main()
