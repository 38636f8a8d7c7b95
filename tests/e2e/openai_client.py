"""openai_client.py - the official openai package against `lignum serve`: streamed chat, tool round trip, reasoning split.

The package is installed into the build folder once; offline the test is skipped and says why.
"""
import json
import subprocess
import sys

import clients
import server


def streamed_chat(client):
    row = next(r for r in server.evals("facts") if r["enable_thinking"] is False)
    text, usage = "", None
    body = server.chat_body(row)
    extra = {"chat_template_kwargs": body.pop("chat_template_kwargs")}
    for chunk in client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}, extra_body=extra):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    want = row["expected_text"].replace("<|im_end|>", "")
    assert text.strip() == want.strip(), (text, want)
    assert usage.completion_tokens == len(row["expected_ids"]), usage
    print("streamed chat: %r" % text)


def tool_round_trip(client):
    row = next(r for r in server.evals("tool call") if r["enable_thinking"] is False)
    body = server.chat_body(row)
    extra = {"chat_template_kwargs": body.pop("chat_template_kwargs")}
    choice = client.chat.completions.create(**body, extra_body=extra).choices[0]
    assert choice.finish_reason == "tool_calls", choice
    call = choice.message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    want = row["expected_text"]
    assert "<function=%s>" % call.function.name in want, (call, want)
    for name, value in arguments.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        assert "<parameter=%s>\n%s\n" % (name, shown) in want, (arguments, want)
    pieces, names = "", []
    for chunk in client.chat.completions.create(**body, stream=True, extra_body=extra):
        for part in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            pieces += part.function.arguments or ""
            names += [part.function.name] if part.function.name else []
    assert names == [call.function.name] and json.loads(pieces) == arguments, (names, pieces)
    messages = row["messages"] + [choice.message.model_dump(exclude_none=True),
                                  {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"result": 1327})}]
    answer = client.chat.completions.create(**{**body, "messages": messages}, extra_body=extra).choices[0]
    assert answer.message.content and answer.finish_reason in ("stop", "length"), answer
    print("tool round trip: %s(%s) -> %r" % (call.function.name, call.function.arguments, answer.message.content))


def reasoning_split(client):
    row = next(r for r in server.evals("facts") if r["enable_thinking"])
    body = server.chat_body(row)
    extra = {"chat_template_kwargs": body.pop("chat_template_kwargs")}
    thought, said = row["expected_text"].replace("<|im_end|>", "").split("</think>")
    message = client.chat.completions.create(**body, extra_body=extra).choices[0].message
    assert message.reasoning_content.strip() == thought.strip(), message
    assert message.content.strip() == said.strip(), message
    got = ["", ""]
    for chunk in client.chat.completions.create(**body, stream=True, extra_body=extra):
        if chunk.choices:
            got[0] += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
            got[1] += chunk.choices[0].delta.content or ""
    assert got == [message.reasoning_content, message.content], got
    print("reasoning split: %r then %r" % (got[0], got[1]))


def responses(client):
    row = next(r for r in server.evals("facts") if r["enable_thinking"])
    thought, said = row["expected_text"].replace("<|im_end|>", "").split("</think>")
    body = {"model": server.NAME, "temperature": 0, "input": row["messages"]}
    whole = client.responses.create(**body)
    assert whole.status == "completed" and whole.output_text.strip() == said.strip(), whole
    assert [o.type for o in whole.output] == ["reasoning", "message"], whole
    assert whole.output[0].content[0].text.strip() == thought.strip(), whole
    assert whole.usage.output_tokens == len(row["expected_ids"]) > whole.usage.output_tokens_details.reasoning_tokens > 0, whole
    names, text = [], ""
    with client.responses.stream(**body) as stream:
        for event in stream:
            names.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        final = stream.get_final_response()
    assert text == whole.output_text == final.output_text and final.usage.total_tokens == whole.usage.total_tokens, (text, final)
    assert names[:3] == ["response.created", "response.in_progress", "response.output_item.added"], names
    assert names[-1] == "response.completed", names
    cut = client.responses.create(**body, max_output_tokens=2)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut
    off = client.responses.create(**body, reasoning={"effort": "none"})
    assert [o.type for o in off.output] == ["message"], off
    print("responses: %r then %r" % (whole.output[0].content[0].text, text))


def responses_tools(client):
    row = next(r for r in server.evals("tool call") if r["enable_thinking"] is False)
    tools = [{"type": "function", **t["function"]} for t in row["tools"]]
    body = {"model": server.NAME, "temperature": 0, "tools": tools, "extra_body": {"enable_thinking": False}}
    whole = client.responses.create(**body, input=row["messages"])
    call = next(o for o in whole.output if o.type == "function_call")
    assert "<function=%s>" % call.name in row["expected_text"], (call, row["expected_text"])
    with client.responses.stream(**body, input=row["messages"]) as stream:
        streamed = next(o for o in stream.get_final_response().output if o.type == "function_call")
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments), (streamed, call)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"result": 1327})}
    sent = client.responses.create(**body, input=row["messages"] + [o.model_dump(exclude_none=True) for o in whole.output] + [result])
    kept = client.responses.create(**body, previous_response_id=whole.id, input=[result])
    assert sent.output_text and sent.output_text == kept.output_text, (sent, kept)
    assert sent.usage.input_tokens == kept.usage.input_tokens, (sent, kept)
    again = client.responses.create(**body, previous_response_id=kept.id, input="Thank you.", store=False)
    import openai
    try:
        client.responses.create(**body, previous_response_id=again.id, input="And?")
    except openai.BadRequestError as e:
        assert e.body["code"] == "previous_response_not_found", e.body
    else:
        raise AssertionError("what was not to be stored was found")
    print("responses with tools: %s(%s) -> %r" % (call.name, call.arguments, kept.output_text))


def structured(client):
    """What libraries make of a class: parse(), and LangChain's two ways; the model is wild, the form holds."""
    import enum
    import typing
    import pydantic
    from langchain_openai import ChatOpenAI

    class Kind(enum.Enum):
        SMALL, LARGE = "small", "large"

    class Item(pydantic.BaseModel):
        label: str = pydantic.Field(max_length=8, description="A word.")
        kind: Kind

    class Form(pydantic.BaseModel):
        items: list[Item] = pydantic.Field(max_length=2)
        total: int
        note: typing.Optional[typing.Literal["a", "b"]]

    ask = [{"role": "user", "content": "What is the capital of France?"}]
    how = {"model": server.NAME, "messages": ask, "temperature": 1.5, "seed": 3, "max_tokens": 400, "extra_body": {"enable_thinking": False}}
    form = client.chat.completions.parse(**how, response_format=Form).choices[0].message.parsed
    assert isinstance(form, Form), form
    form = client.responses.parse(model=server.NAME, input=ask, temperature=1.5, max_output_tokens=400, text_format=Form,
                                  extra_body={"enable_thinking": False, "seed": 4}).output_parsed
    assert isinstance(form, Form), form
    chat = ChatOpenAI(model=server.NAME, base_url=str(client.base_url), api_key="none", max_retries=0, temperature=1.5, seed=5, max_tokens=400,
                      extra_body={"enable_thinking": False})
    for method in ("json_schema", "function_calling"):
        form = chat.with_structured_output(Form, method=method).invoke("What is the capital of France?")
        assert isinstance(form, Form), (method, form)
    print("structured: %r" % form)


def errors(client):
    import openai
    try:
        client.chat.completions.create(model=server.NAME, messages=[], max_tokens=1)
    except openai.BadRequestError as e:
        assert e.body["type"] == "invalid_request_error", e.body
    else:
        raise AssertionError("empty messages were accepted")
    assert [m.id for m in client.models.list()] == ["tiny-qwen35moe"]


def main():
    if len(sys.argv) == 1:
        python = clients.venv("clients", clients.PY)
        with server.Server() as s:
            sys.exit(subprocess.run([python, __file__, "http://127.0.0.1:%d/v1" % s.port]).returncode)
    import openai
    client = openai.OpenAI(base_url=sys.argv[1], api_key="none", timeout=60, max_retries=0)
    for check in (streamed_chat, tool_round_trip, reasoning_split, responses, responses_tools, structured, errors):
        check(client)


if __name__ == "__main__":
    main()
