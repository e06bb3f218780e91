// The AI SDK over its OpenAI-compatible provider: text, reasoning, tools in steps, structured output, completions.
// Usage: node ai_sdk.mjs URL MODEL
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "smg",
  baseURL: `${url}/v1`,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider(name);
const tools = {
  get_weather: tool({
    description: "The weather",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `rain in ${city}`,
  }),
};

const answer = await generateText({ model, prompt: "Say: Hello you" });
assert.equal(answer.text, "Hello you");
assert.equal(answer.finishReason, "stop");

const failed = [];
const stream = streamText({
  model,
  tools,
  stopWhen: stepCountIs(3),
  prompt: 'Say: I look.\nCall: get_weather {"city": "Oslo"}',
  onError: ({ error }) => failed.push(error),
});
let text = "";
for await (const piece of stream.textStream) text += piece;
assert.deepEqual(failed, []);
const steps = await stream.steps;
assert.equal(steps.length, 2);
assert.equal(steps[0].finishReason, "tool-calls");
assert.deepEqual(steps[0].toolCalls[0].input, { city: "Oslo" });
assert.equal(steps[1].text, "The tool says: rain in Oslo");
assert.equal(text, "I look.The tool says: rain in Oslo");
assert.ok((await stream.totalUsage).outputTokens > 5);

const whole = await generateText({ model, tools, stopWhen: stepCountIs(3), prompt: 'Call: get_weather {"city": "Oslo"}' });
assert.equal(whole.text, "The tool says: rain in Oslo");
const forced = await generateText({ model, tools, toolChoice: "required", prompt: 'Call: get_weather {"city": "Oslo"}' });
assert.deepEqual(forced.toolCalls[0].input, { city: "Oslo" });

const thought = streamText({ model, prompt: "Think: hm\nSay: yes" });
assert.equal((await thought.reasoningText).trim(), "hm");
assert.equal(await thought.text, "yes");

const schema = z.object({ name: z.string(), inhabitants: z.number() });
const prompt = 'Say: {"name": "Oslo", "inhabitants": 7}';
assert.deepEqual((await generateObject({ model, schema, prompt })).object, { name: "Oslo", inhabitants: 7 });
const object = streamObject({ model, schema, prompt });
let last;
for await (const part of object.partialObjectStream) last = part;
assert.deepEqual(last, { name: "Oslo", inhabitants: 7 });

const completion = streamText({ model: provider.completionModel(name), prompt: "hi" });
assert.match(await completion.text, /^You said: /);
console.log("ok");
