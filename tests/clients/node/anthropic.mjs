// Anthropic's own client: messages, the stream helper, the tool runner, thoughts, token counts, models.
// Usage: node anthropic.mjs URL MODEL
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const [url, model] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const ask = (content) => [{ role: "user", content }];
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "The weather", input_schema }];

const answer = await client.messages.create({ model, max_tokens: 64, messages: ask("Say: Hello you") });
assert.equal(answer.content[0].text, "Hello you");
assert.equal(answer.stop_reason, "end_turn");

const messages = ask('Say: I look.\nCall: get_weather {"city": "Oslo"}');
const stream = client.messages.stream({ model, max_tokens: 200, tools, messages });
let text = "";
stream.on("text", (piece) => (text += piece));
const streamed = await stream.finalMessage();
assert.equal(text.trim(), "I look.");
assert.equal(streamed.stop_reason, "tool_use");
assert.deepEqual(streamed.content.at(-1).input, { city: "Oslo" });

const tool = betaTool({ name: "get_weather", description: "The weather", inputSchema: input_schema, run: ({ city }) => `rain in ${city}` });
const last = await client.beta.messages.toolRunner({
  model,
  max_tokens: 200,
  tools: [tool],
  messages: ask('Call: get_weather {"city": "Oslo"}'),
});
assert.equal(last.content[0].text, "The tool says: rain in Oslo");

const thinking = { type: "enabled", budget_tokens: 1024 };
const thought = await client.messages
  .stream({ model, max_tokens: 2048, thinking, messages: ask("Think: hm\nSay: yes") })
  .finalMessage();
assert.deepEqual(thought.content.map((block) => block.type), ["thinking", "text"]);

const counted = await client.messages.countTokens({ model, messages: ask("Say: Hello you") });
assert.equal(counted.input_tokens, answer.usage.input_tokens);
const names = [];
for await (const card of client.models.list()) names.push([card.type, card.id]);
assert.deepEqual(names, [["model", model]]);
await assert.rejects(
  client.messages.create({ model: "other", max_tokens: 8, messages: ask("x") }),
  Anthropic.NotFoundError,
);
console.log("ok");
