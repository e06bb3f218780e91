// Requests in flight, and recent errors.
const PHASES = { queued: ["warn", "queued"], waiting: ["muted", "waiting"], generating: ["ok", "generating"] };

function rowOf(columns) {
  const row = make("tr");
  row.parts = columns.map(([label, className]) => cell(label, className));
  row.append(...row.parts);
  return row;
}

function fill(row, texts) {
  texts.forEach((text, index) => setText(row.parts[index], text));
}

const shortUrl = (url) => url.replace(/^ipc:\/\/(.*\/)?/, "");

function showRequests(snapshot) {
  const { total, shown } = snapshot.requests;
  const columns = [
    ["", "lead id"], ["Model", ""], ["Endpoint", ""], ["Phase", "tight"], ["Age", "number"], ["Prompt", "number"],
    ["Tokens so far", "number"], ["Worker", ""],
  ];
  syncRows(byId("request-rows"), shown, (one) => one.id, () => {
    const row = rowOf(columns);
    row.phase = pill("muted", "");
    row.parts[3].append(row.phase);
    return row;
  }, (row, one) => {
    const [tone, word] = PHASES[one.phase] ?? ["muted", one.phase];
    row.phase.dataset.tone = tone;
    setText(row.phase, word);
    [one.id, one.model, one.endpoint, null, shortText(one.age_s), count(one.prompt_tokens), count(one.completion_tokens),
      one.workers.map(shortUrl).join(", ") || NONE].forEach((text, index) => {
      if (text !== null) setText(row.parts[index], text);
    });
    row.parts[7].title = one.workers.join(", ");
  });
  showEmpty("requests-empty", !shown.length);
  setText(byId("requests-count"), total > shown.length ? `the oldest ${shown.length} of ${count(total)}` : count(total));
}

function showErrors(snapshot) {
  const columns = [
    ["Time", "tight"], ["Status", "number"], ["Code", ""], ["Message", "wide"], ["Endpoint", ""], ["Worker", ""],
  ];
  const keyOf = (one) => `${one.time} ${one.code} ${one.request_id}`;
  syncRows(byId("error-rows"), snapshot.errors, keyOf, () => rowOf(columns), (row, one) => {
    const when = new Date(one.time * 1000);
    const where = one.model ? `${one.endpoint} · ${one.model}` : one.endpoint;
    fill(row, [when.toLocaleTimeString("en-GB"), String(one.status), one.code, one.message, where, one.workers.map(shortUrl).join(", ")]);
    row.parts[0].title = `${when.toISOString()} ${one.request_id}`.trim();
    row.parts[5].title = one.workers.join(", ");
  });
  showEmpty("errors-empty", !snapshot.errors.length);
  const ours = snapshot.errors.filter((one) => one.status >= 500).length;
  const clients = snapshot.errors.length - ours;
  setText(byId("errors-count"), snapshot.errors.length ? `${ours} of the server, ${clients} of clients` : "");
}
