// Requests in flight, and recent errors.
const PHASES = { queued: ["warn", "queued"], waiting: ["muted", "waiting"], generating: ["ok", "generating"] };

function rowOf(columns) {
  const row = make("tr");
  row.parts = columns.map(([label, className]) => cell(label, className));
  row.append(...row.parts);
  return row;
}

const shortUrl = (url) => url.replace(/^(ipc:\/\/(.*\/)?|tcp:\/\/)/, "");

function showRequests(snapshot) {
  const { total, shown } = snapshot.requests;
  const columns = [
    ["", "lead id"], ["Model", ""], ["Endpoint", "tight"], ["Phase", "tight"], ["Age", "number"],
    ["Tokens in + out", "number"], ["Worker", ""],
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
    [one.id, one.model, one.endpoint, null, shortText(one.age_s), `${count(one.prompt_tokens)} + ${count(one.completion_tokens)}`,
      one.workers.map(shortUrl).join(", ") || NONE].forEach((text, index) => {
      if (text !== null) setText(row.parts[index], text);
    });
    row.parts[0].title = one.id;
    row.parts[6].title = one.workers.join(", ");
  });
  showEmpty("requests-empty", !shown.length);
  setText(byId("requests-count"), total > shown.length ? `the oldest ${shown.length} of ${count(total)}` : count(total));
}

function showErrors(snapshot) {
  const columns = [["Time", "tight"], ["Status", "number"], ["", "wide"], ["Where", "where"]];
  const keyOf = (one) => `${one.time} ${one.code} ${one.request_id}`;
  syncRows(byId("error-rows"), snapshot.errors, keyOf, () => rowOf(columns), (row, one) => {
    if (row.parts[0].textContent) return; // an error does not change
    const when = new Date(one.time * 1000);
    setText(row.parts[0], when.toLocaleTimeString("en-GB"));
    setText(row.parts[1], String(one.status));
    row.parts[2].append(make("span", "name", one.code), make("span", "said", one.message));
    row.parts[3].append(one.endpoint);
    const where = [one.model, ...one.workers.map(shortUrl)].filter(Boolean).join(" · ");
    if (where) row.parts[3].append(make("span", "sub", where));
    row.parts[0].title = `${when.toISOString()} ${one.request_id}`.trim();
    row.parts[3].title = one.workers.join(", ");
  });
  showEmpty("errors-empty", !snapshot.errors.length);
  const ours = snapshot.errors.filter((one) => one.status >= 500).length;
  const clients = snapshot.errors.length - ours;
  setText(byId("errors-count"), snapshot.errors.length ? `${ours} of the server, ${clients} of clients` : "");
}
