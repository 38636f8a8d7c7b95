"""sdk_client.py - what builds on the official clients, against a scripted model: OpenAI Agents SDK, LangChain; `long`: LiteLLM.

Each makes a whole turn: a question, reasoning, a call of a tool with typed arguments, its result, the answer; and a stream.
"""
import asyncio
import json
import os
import subprocess
import sys

import clients
import server

CALL = {"city": "Kraków", "days": 3}
ASK, FINAL, HELLO = "How warm is it?", "It is 22 degrees in Kraków.", "Hello there, żółw 🐢!"
RULES = [("22 degrees", "It says 22.\n</think>\n\n" + FINAL),
         ('"name": "get_weather"', "I should look.\n</think>\n\nLet me look.\n\n" + server.call("get_weather", **CALL)),
         ("Hm.\n</think>\n\n" + HELLO,)]
called = []


def get_weather(city: str, days: int) -> str:
    """The weather of a city.

    Args:
        city: Its name.
        days: How many days ahead.
    """
    called.append({"city": city, "days": days})
    return "22 degrees"


def agents_sdk(url):
    import agents
    from openai import AsyncOpenAI
    agents.set_tracing_disabled(True)

    async def turn(model):
        agent = agents.Agent(name="weather", instructions="Be kind.", model=model, tools=[agents.function_tool(get_weather)],
                             model_settings=agents.ModelSettings(include_usage=True, parallel_tool_calls=False))
        called.clear()
        result = await agents.Runner.run(agent, ASK)
        assert (result.final_output, called) == (FINAL, [CALL]), (result, called)
        result, kinds = agents.Runner.run_streamed(agent, ASK), []
        async for event in result.stream_events():
            if event.type == "run_item_stream_event":
                kinds.append(event.name)
        assert (result.final_output, called) == (FINAL, [CALL, CALL]), (result, called)
        assert [k for k in kinds if "tool" in k] == ["tool_called", "tool_output"], kinds
        usage = result.context_wrapper.usage
        assert usage.requests == 2 and usage.output_tokens > 0, usage
        print("agents sdk, %s: %s" % (type(model).__name__, kinds))

    async def both():
        client = AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        await turn(agents.OpenAIChatCompletionsModel(server.NAME, client))
        await turn(agents.OpenAIResponsesModel(server.NAME, client))

    asyncio.run(both())


def langchain(url):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    weather = tool(get_weather)
    for responses in (False, True):
        plain = ChatOpenAI(model=server.NAME, base_url=url + "/v1", api_key="none", max_retries=0, use_responses_api=responses)
        model = plain.bind_tools([weather])
        messages = [HumanMessage(ASK)]
        answer = model.invoke(messages)
        assert [c["args"] for c in answer.tool_calls] == [CALL], answer
        messages += [answer, ToolMessage(weather.invoke(answer.tool_calls[0]["args"]), tool_call_id=answer.tool_calls[0]["id"])]
        assert model.invoke(messages).text == FINAL
        whole = None
        for chunk in model.stream(messages[:1]):
            whole = chunk if whole is None else whole + chunk
        assert [c["args"] for c in whole.tool_calls] == [CALL] and not whole.invalid_tool_calls, whole
        assert "".join(chunk.text for chunk in plain.stream("hi")) == HELLO
        assert answer.usage_metadata["output_tokens"] > 0, answer
        print("langchain, responses %s: %s" % (responses, answer.tool_calls[0]["args"]))


def litellm(url):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network
    import litellm as lite
    lite.suppress_debug_info = True
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}}}]
    for model, base in (("openai/" + server.NAME, url + "/v1"), ("anthropic/" + server.NAME, url), ("hosted_vllm/" + server.NAME, url + "/v1")):
        how = {"model": model, "api_base": base, "api_key": "none", "tools": tools, "max_tokens": 500, "num_retries": 0}
        if model.startswith("anthropic/"):
            how.update(thinking={"type": "enabled", "budget_tokens": 400}, allowed_openai_params=["thinking"])
        messages = [{"role": "user", "content": ASK}]
        answer = lite.completion(messages=messages, **how).choices[0]
        call = answer.message.tool_calls[0]
        assert answer.finish_reason == "tool_calls" and json.loads(call.function.arguments) == CALL, answer
        messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "22 degrees"}]
        assert lite.completion(messages=messages, **how).choices[0].message.content == FINAL
        chunks = list(lite.completion(messages=messages[:1], stream=True, stream_options={"include_usage": True}, **how))
        built = lite.stream_chunk_builder(chunks, messages=messages[:1])
        assert json.loads(built.choices[0].message.tool_calls[0].function.arguments) == CALL, built
        assert built.usage.completion_tokens == lite.completion(messages=messages[:1], **how).usage.completion_tokens, built.usage
        print("litellm, %s: %s" % (model, call.function.arguments))


def main():
    if sys.argv[1] in ("quick", "long"):
        python = clients.venv("clients", clients.PY) if sys.argv[1] == "quick" else clients.venv("clients-long", clients.PY_LONG)
        with server.scripted(path=server.answers(*RULES, ctx=8192)) as s:
            url = "http://127.0.0.1:%d" % s.port
            todo = ["agents_sdk", "langchain"] if sys.argv[1] == "quick" else ["litellm"]
            running = [subprocess.Popen([python, __file__, name, url]) for name in todo]
            sys.exit(max([p.wait() != 0 for p in running]))
    globals()[sys.argv[1]](sys.argv[2])


if __name__ == "__main__":
    main()
