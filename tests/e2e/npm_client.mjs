// npm_client.mjs - a whole turn with each official package: question, reasoning, tool call, result, answer; whole and streamed.
// usage: node npm_client.mjs URL MODEL, beside a node_modules with openai and @anthropic-ai/sdk; the model is npm_client.py's.
import assert from "node:assert/strict";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const [url, model] = process.argv.slice(2);
const args = { city: "Kraków", days: 3 };
const final = "It is 22 degrees in Kraków.", thought = "I should look.", said = "Let me look.", hello = "Hello there, żółw 🐢!";
const schema = { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } }, required: ["city", "days"] };
const ask = [{ role: "user", content: "How warm is it?" }];

async function chat(client) {
  const tools = [{ type: "function", function: { name: "get_weather", parameters: schema } }];
  const whole = (await client.chat.completions.create({ model, messages: ask, tools })).choices[0];
  const call = whole.message.tool_calls[0];
  assert.deepEqual(JSON.parse(call.function.arguments), args);
  assert.equal(whole.finish_reason, "tool_calls");
  assert.equal(whole.message.reasoning_content, thought);
  const messages = [...ask, whole.message, { role: "tool", tool_call_id: call.id, content: "22 degrees" }];
  assert.equal((await client.chat.completions.create({ model, messages, tools })).choices[0].message.content, final);
  const stream = client.chat.completions.stream({ model, messages: ask, tools, stream_options: { include_usage: true } });
  const end = await stream.finalChatCompletion();
  assert.deepEqual(JSON.parse(end.choices[0].message.tool_calls[0].function.arguments), args);
  assert.equal(end.choices[0].message.content, said);
  assert.ok(end.usage.completion_tokens > 10);
  let called = 0;
  const runner = client.chat.completions.runTools({
    model, messages: ask, stream: true,
    tools: [{ type: "function", function: { name: "get_weather", parameters: schema, parse: JSON.parse,
      function: (a) => { called++; assert.deepEqual(a, args); return "22 degrees"; } } }],
  });
  assert.equal(await runner.finalContent(), final);
  assert.equal(called, 1);
  console.log("npm openai, chat:", call.function.arguments);
}

async function responses(client) {
  const tools = [{ type: "function", name: "get_weather", parameters: schema, strict: false }];
  const whole = await client.responses.create({ model, input: ask, tools });
  assert.deepEqual(whole.output.map((o) => o.type), ["reasoning", "message", "function_call"]);
  const call = whole.output[2];
  assert.deepEqual(JSON.parse(call.arguments), args);
  const result = { type: "function_call_output", call_id: call.call_id, output: "22 degrees" };
  assert.equal((await client.responses.create({ model, input: [...ask, ...whole.output, result], tools })).output_text, final);
  assert.equal((await client.responses.create({ model, previous_response_id: whole.id, input: [result], tools })).output_text, final);
  const stream = client.responses.stream({ model, input: ask, tools });
  let pieces = "";
  for await (const e of stream) if (e.type === "response.function_call_arguments.delta") pieces += e.delta;
  assert.deepEqual(JSON.parse(pieces), args);
  assert.equal((await stream.finalResponse()).output[2].arguments, pieces);
  console.log("npm openai, responses:", pieces);
}

async function messages(client) {
  const tools = [{ name: "get_weather", input_schema: schema }];
  const body = { model, max_tokens: 500, thinking: { type: "enabled", budget_tokens: 400 }, tools };
  const whole = await client.messages.create({ ...body, messages: ask });
  assert.deepEqual(whole.content.map((c) => c.type), ["thinking", "text", "tool_use"]);
  assert.deepEqual(whole.content[2].input, args);
  assert.equal(whole.stop_reason, "tool_use");
  const stream = client.messages.stream({ ...body, messages: ask });
  let deltas = 0;
  stream.on("inputJson", () => deltas++);
  const end = await stream.finalMessage();
  assert.deepEqual(end.content.map((c) => c.input ?? c.text ?? c.thinking), [thought, said, args]);
  assert.ok(deltas > 1);
  const result = { role: "user", content: [{ type: "tool_result", tool_use_id: end.content[2].id, content: "22 degrees" }] };
  const answer = await client.messages.create({ ...body, messages: [...ask, { role: "assistant", content: end.content }, result] });
  assert.equal(answer.content.at(-1).text, final);
  const { input_tokens } = await client.messages.countTokens({ model, messages: ask, tools, thinking: { type: "adaptive" } });
  assert.equal(input_tokens, whole.usage.input_tokens);
  console.log("npm anthropic, messages:", deltas, "pieces of", JSON.stringify(end.content[2].input));
}

async function errors(client, claude) {
  await assert.rejects(client.chat.completions.create({ model, messages: ask, temperature: 9 }), (e) => e.status === 400 && e.param === "temperature");
  await assert.rejects(claude.messages.create({ model: "other", max_tokens: 5, messages: ask }), (e) => e.status === 404);
  assert.equal((await client.models.list()).data[0].id, model);
  let text = "";
  for await (const chunk of await client.completions.create({ model, prompt: "x", max_tokens: 50, stream: true })) text += chunk.choices[0].text;
  assert.equal(text, "Hm.\n</think>\n\n" + hello);
  console.log("npm: errors, models, completions");
}

const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
const claude = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
for (const run of [() => chat(client), () => responses(client), () => messages(claude), () => errors(client, claude)]) await run();
