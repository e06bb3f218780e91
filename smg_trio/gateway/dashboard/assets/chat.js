// A small chat: streams, shows reasoning and tool calls apart, and takes results of tool calls.
const chat = { messages: [], abort: null, openCalls: [] };

function readTools() {
  const text = byId("chat-tools").value.trim();
  if (!text) return undefined;
  const tools = JSON.parse(text);
  if (!Array.isArray(tools)) throw new Error("it is no array");
  return tools;
}

function chatBody() {
  const number = (id) => (byId(id).value === "" ? undefined : Number(byId(id).value));
  const system = byId("chat-system").value.trim();
  return {
    model: byId("chat-model").value,
    messages: system ? [{ role: "system", content: system }, ...chat.messages] : chat.messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: number("chat-temperature"),
    max_tokens: number("chat-max-tokens"),
    tools: readTools(),
  };
}

// What one streamed answer has come to, and where it is shown.
class AnswerView {
  constructor() {
    this.message = { role: "assistant", content: "" };
    this.calls = [];
    this.started = performance.now();
    this.first = null;
    this.usage = null;
    this.finish = "";
    this.box = make("div", "message assistant");
    this.thought = make("details", "thought");
    this.thought.open = true;
    this.thoughtText = make("div", "text");
    this.thought.append(make("summary", "", "Reasoning"), this.thoughtText);
    this.thought.hidden = true;
    this.text = make("div", "text");
    this.tools = make("div");
    this.facts = make("div", "facts-line");
    this.problem = make("div", "problem");
    this.box.append(this.thought, this.text, this.tools, this.problem, this.facts);
  }

  take(chunk) {
    if (chunk.error) throw new Refused(200, chunk.error.message);
    this.usage = chunk.usage ?? this.usage;
    for (const choice of chunk.choices ?? []) {
      const delta = choice.delta ?? {};
      const reasoning = delta.reasoning ?? delta.reasoning_content;
      if (reasoning) this.thought.hidden = !appendText(this.thoughtText, reasoning);
      if (delta.content) {
        this.message.content += delta.content;
        appendText(this.text, delta.content);
      }
      for (const call of delta.tool_calls ?? []) this.takeCall(call);
      if (this.first === null && (reasoning || delta.content || delta.tool_calls)) this.first = performance.now();
      this.finish = choice.finish_reason ?? this.finish;
    }
  }

  takeCall(part) {
    let call = this.calls[part.index];
    if (!call) {
      call = this.calls[part.index] = { id: part.id, type: "function", function: { name: "", arguments: "" } };
      call.box = make("div", "tool");
      call.title = make("h3");
      call.shown = make("pre", "code");
      const label = make("label", "", "Result to send back");
      call.result = make("textarea");
      call.result.rows = 1;
      label.append(call.result);
      call.box.append(call.title, call.shown, label);
      this.tools.append(call.box);
    }
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
    setText(call.title, `Tool call: ${call.function.name}`);
    setText(call.shown, call.function.arguments);
  }

  end() {
    for (const call of this.calls.filter(Boolean)) {
      try {
        setText(call.shown, JSON.stringify(JSON.parse(call.function.arguments), null, 2));
      } catch {
        // Cut off: shown as it came.
      }
    }
    const parts = [];
    if (this.first !== null) parts.push(`first token ${shortText((this.first - this.started) / 1000)}`);
    if (this.usage) {
      parts.push(`${count(this.usage.prompt_tokens)} + ${count(this.usage.completion_tokens)} tokens`);
      const seconds = (performance.now() - this.first) / 1000;
      if (this.first !== null && this.usage.completion_tokens > 1 && seconds > 0) {
        parts.push(`${rate((this.usage.completion_tokens - 1) / seconds)} tok/s`);
      }
    }
    if (this.finish) parts.push(this.finish);
    setText(this.facts, parts.join(" · "));
  }

  kept() {
    const calls = this.calls.filter(Boolean);
    if (!calls.length) return this.message;
    return { ...this.message, tool_calls: calls.map(({ id, type, function: called }) => ({ id, type, function: called })) };
  }
}

// Adds to a text that begins with its first letter; whether there is any.
function appendText(element, text) {
  const added = element.hasChildNodes() ? text : text.trimStart();
  if (added) element.append(added);
  return element.hasChildNodes();
}

// Does something to the conversation, whose end stays in sight if it was.
function keepingEnd(change) {
  const log = byId("transcript");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

async function readEvents(response, take) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const blocks = text.split("\n\n");
    text = blocks.pop();
    keepingEnd(() => {
      for (const block of blocks) {
        if (block.startsWith("data: ") && block !== "data: [DONE]") take(JSON.parse(block.slice(6)));
      }
    });
  }
}

function addToTranscript(element) {
  byId("transcript-empty").hidden = true;
  const log = byId("transcript");
  log.append(element);
  log.scrollTop = log.scrollHeight;
}

async function send() {
  const text = byId("chat-input").value.trim();
  if (chat.abort || (!text && !pictures.waiting.length && !chat.openCalls.length)) return;
  setText(byId("chat-tools-problem"), "");
  try {
    readTools();
  } catch (error) {
    byId("chat-settings").open = true;
    setText(byId("chat-tools-problem"), `The tools are no JSON array: ${error.message}`);
    return;
  }
  const before = chat.messages.length;
  for (const call of chat.openCalls) {
    chat.messages.push({ role: "tool", tool_call_id: call.id, content: call.result.value });
    call.result.disabled = true;
  }
  const taken = takePictures();
  if (text || taken.length) {
    chat.messages.push({ role: "user", content: contentOf(text, taken) });
    addToTranscript(userMessage(text, taken));
  }
  byId("chat-input").value = "";
  await answer(before, text, taken);
}

async function answer(before, text, taken) {
  const view = new AnswerView();
  const asked = chat.openCalls;
  addToTranscript(view.box);
  chat.abort = new AbortController();
  showBusy(true);
  try {
    const body = JSON.stringify(chatBody());
    const response = await request("/v1/chat/completions", { method: "POST", body, signal: chat.abort.signal });
    await readEvents(response, (chunk) => view.take(chunk));
  } catch (error) {
    if (error.name === "AbortError") view.finish = "stopped";
    else setText(view.problem, error.message);
  }
  chat.abort = null;
  keepingEnd(() => view.end());
  if (view.first !== null) {
    chat.messages.push(view.kept());
    chat.openCalls = view.calls.filter(Boolean);
  } else {
    // Nothing came: what was said is given back, to be sent again.
    chat.messages.length = before;
    chat.openCalls = asked;
    for (const call of asked) call.result.disabled = false;
    byId("chat-input").value = text;
    giveBackPictures(taken);
  }
  showBusy(false);
}

function showBusy(busy) {
  const stop = byId("chat-stop");
  const focused = document.activeElement === stop;
  byId("chat-send").disabled = busy;
  stop.hidden = !busy;
  if (focused && !busy) byId("chat-input").focus();
  setText(byId("chat-status"), busy ? "Answering…" : "");
}

function showModels(models) {
  const select = byId("chat-model");
  const known = Array.from(select.options, (option) => option.value);
  if (known.join("\n") === models.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...models.map((name) => {
    const option = make("option", "", name);
    option.value = name;
    return option;
  }));
  if (models.includes(chosen)) select.value = chosen;
}

function setUpChat() {
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("chat-input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  byId("chat-stop").addEventListener("click", () => chat.abort?.abort());
  byId("chat-clear").addEventListener("click", () => {
    chat.abort?.abort();
    chat.messages = [];
    chat.openCalls = [];
    takePictures();
    byId("transcript").replaceChildren(byId("transcript-empty"));
    byId("transcript-empty").hidden = false;
  });
  setUpPictures();
  byId("chat-settings").open = matchMedia("(min-width: 801px)").matches;
}
