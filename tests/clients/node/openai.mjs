// OpenAI's own client: chat, the stream and tool helpers, structured output, completions, responses, models.
// Usage: node openai.mjs URL MODEL
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (content) => [{ role: "user", content }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

const answer = await client.chat.completions.create({ model, messages: ask("Say: Hello you") });
assert.equal(answer.choices[0].message.content, "Hello you");
assert.equal(answer.choices[0].finish_reason, "stop");
assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);

const stream = client.chat.completions.stream({
  model,
  messages: ask('Say: I look.\nCall: get_weather {"city": "Oslo"}'),
  tools: [{ type: "function", function: { name: "get_weather", parameters } }],
});
let text = "";
stream.on("content", (piece) => (text += piece));
const streamed = await stream.finalChatCompletion();
assert.equal(text, "I look.");
assert.equal(streamed.choices[0].finish_reason, "tool_calls");
assert.deepEqual(JSON.parse(streamed.choices[0].message.tool_calls[0].function.arguments), { city: "Oslo" });

const runner = client.chat.completions.runTools({
  model,
  stream: true,
  messages: ask('Call: get_weather {"city": "Oslo"}'),
  tools: [
    {
      type: "function",
      function: { name: "get_weather", parameters, parse: JSON.parse, function: ({ city }) => `rain in ${city}` },
    },
  ],
});
assert.equal(await runner.finalContent(), "The tool says: rain in Oslo");

const City = z.object({ name: z.string(), inhabitants: z.number() });
const parsed = await client.chat.completions.parse({
  model,
  messages: ask('Say: {"name": "Oslo", "inhabitants": 7}'),
  response_format: zodResponseFormat(City, "city"),
});
assert.deepEqual(parsed.choices[0].message.parsed, { name: "Oslo", inhabitants: 7 });

const pieces = await client.completions.create({ model, prompt: "hi", max_tokens: 64, stream: true });
let completion = "";
for await (const chunk of pieces) completion += chunk.choices[0]?.text ?? "";
assert.equal(completion, "You said: hi");

const response = await client.responses.create({ model, input: "Say: Hello" });
assert.equal(response.output_text, "Hello");
const kinds = [];
const following = client.responses.stream({ model, input: "Say: Again", previous_response_id: response.id });
for await (const event of following) kinds.push(event.type);
assert.equal((await following.finalResponse()).output_text, "Again");
assert.deepEqual([kinds[0], kinds.at(-1)], ["response.created", "response.completed"]);
await client.responses.delete(response.id);
await assert.rejects(client.responses.retrieve(response.id), OpenAI.NotFoundError);

const names = [];
for await (const card of client.models.list()) names.push(card.id);
assert.deepEqual(names, [model]);
await assert.rejects(client.chat.completions.create({ model: "other", messages: ask("x") }), OpenAI.NotFoundError);
console.log("ok");
