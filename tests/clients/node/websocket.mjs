// OpenAI's own client: several turns of responses on one WebSocket.
// Usage: node websocket.mjs URL MODEL
import assert from "node:assert/strict";
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const socket = new ResponsesWS(client);
const finished = (start) =>
  new Promise((resolve, reject) => {
    socket.on("response.completed", (event) => resolve(event.response));
    socket.on("error", reject);
    start();
  });

await new Promise((resolve) => socket.socket.on("open", resolve));
const first = await finished(() => socket.send({ type: "response.create", model, input: "Say: one" }));
const more = { type: "response.create", model, input: "Say: two", previous_response_id: first.id };
const second = await finished(() => socket.send(more)).then((response) => response);
assert.equal(first.output[0].content[0].text, "one");
assert.equal(second.previous_response_id, first.id);
assert.equal(second.output[0].content[0].text, "two");
socket.close();
console.log("ok");
