// The workers with their ranks; adding, draining and removing them.
const TONES = { ready: "ok", pending: "muted", not_ready: "bad", failed: "bad", draining: "warn", loading: "warn", waiting: "muted" };
const WORDS = { not_ready: "not ready" };
const removal = { worker: null, atOnce: false };

function workerRows(workers) {
  const rows = [];
  for (const worker of workers) {
    const ranks = worker.ranks ?? [];
    rows.push({ key: worker.id, worker, ranks });
    if (ranks.length > 1) for (const rank of ranks) rows.push({ key: `${worker.id}/${rank.rank}`, worker, rank });
  }
  return rows;
}

function createWorkerRow(item) {
  const row = make("tr", item.rank ? "rank" : "");
  const cells = {
    name: cell("", "lead"),
    state: cell("State", "state"),
    flight: cell("In flight", "number"),
    running: cell("Running", "number"),
    waiting: cell("Waiting", "number"),
    kv: cell("KV cache", "kv"),
    input: cell("Tokens/s in", "number"),
    output: cell("Tokens/s out", "number"),
    actions: cell("", "buttons"),
  };
  row.cellsByName = cells;
  cells.title = make("span", item.rank ? "" : "name");
  cells.model = make("span", "sub");
  cells.name.append(cells.title, cells.model);
  cells.pill = pill("muted", "");
  cells.extra = pill("warn", "");
  cells.reason = make("span", "sub");
  const state = make("div");
  state.append(cells.pill, cells.extra, cells.reason);
  cells.state.append(state);
  cells.meter = new Meter("KV cache in use");
  cells.kv.append(cells.meter.element);
  if (!item.rank) cells.actions.append(workerButtons(row));
  row.append(...["name", "state", "flight", "running", "waiting", "kv", "input", "output", "actions"].map((one) => cells[one]));
  return row;
}

function workerButtons(row) {
  const box = make("div", "row-buttons");
  const drain = make("button", "", "Drain");
  const remove = make("button", "", "Remove");
  drain.type = remove.type = "button";
  drain.addEventListener("click", () => askToRemove(row.worker, false));
  remove.addEventListener("click", () => askToRemove(row.worker, true));
  row.drainButton = drain;
  row.removeButton = remove;
  box.append(drain, remove);
  return box;
}

function updateWorkerRow(row, item) {
  const { worker, rank } = item;
  const cells = row.cellsByName;
  const ranks = rank ? [rank] : item.ranks;
  const sum = (name) => ranks.reduce((total, one) => total + one[name], 0);
  const state = rank ? rank.status : worker.status;
  row.worker = worker;
  setText(cells.title, rank ? `rank ${rank.rank}` : worker.url);
  const about = [worker.model_id || "model unknown", worker.runtime_type, ranks[0]?.engine_version, `${ranks.length} ranks`];
  setText(cells.model, rank ? "" : about.filter((one, index) => one && (index < 3 || ranks.length > 1)).join(" · "));
  cells.pill.dataset.tone = TONES[state] ?? "muted";
  setText(cells.pill, WORDS[state] ?? state);
  const extra = rank ? [] : [breakerWord(worker), worker.overloaded ? "overloaded" : ""].filter(Boolean);
  setText(cells.extra, extra.join(", "));
  cells.extra.hidden = !extra.length;
  let reason = (rank ? rank.reason : worker.status_reason) ?? "";
  // Each rank's own reason is in its own row.
  if (ranks.length > 1) reason = reason.replace(/ \(rank .*\)$/, "");
  setText(cells.reason, reason === state || reason === WORDS[state] ? "" : reason);
  setText(cells.flight, rank ? count(rank.in_flight) : count(worker.in_flight ?? 0));
  setText(cells.running, ranks.length ? count(sum("num_running_reqs")) : NONE);
  setText(cells.waiting, ranks.length ? count(sum("num_waiting_reqs")) : NONE);
  row.classList.toggle("no-ranks", !ranks.length);
  cells.meter.element.hidden = !ranks.length;
  if (ranks.length) cells.meter.show(Math.max(...ranks.map((one) => one.token_usage)));
  const perSecond = (rank ?? worker).tokens_per_s;
  setText(cells.input, rate(perSecond?.input));
  setText(cells.output, rate(perSecond?.output));
  if (!rank) {
    row.drainButton.hidden = state === "draining" || !ranks.length;
    row.drainButton.setAttribute("aria-label", `Drain ${worker.url}`);
    row.removeButton.setAttribute("aria-label", `Remove ${worker.url}`);
  }
}

function breakerWord(worker) {
  if (worker.circuit_breaker === "open") return "circuit open";
  return worker.circuit_breaker === "half_open" ? "circuit on trial" : "";
}

function showWorkers(snapshot) {
  syncRows(byId("worker-rows"), workerRows(snapshot.workers), (item) => item.key, createWorkerRow, updateWorkerRow);
  showEmpty("workers-empty", !snapshot.workers.length);
  setText(byId("workers-count"), `${snapshot.gateway.ready_workers} of ${snapshot.workers.length} ready`);
}

function askToRemove(worker, atOnce) {
  removal.worker = worker;
  removal.atOnce = atOnce;
  const busy = worker.load || 0;
  const answers = busy === 1 ? "1 answer is" : `${count(busy)} answers are`;
  setText(byId("remove-title"), atOnce ? "Remove this worker now?" : "Drain and remove this worker?");
  let text = "It takes no new requests.";
  if (atOnce) text = busy ? `${answers} in flight there and will fail.` : "Nothing is in flight there.";
  else text += busy ? ` ${answers} in flight there and may end first; then it is removed.` : " Nothing is in flight there, so it is removed immediately.";
  setText(byId("remove-text"), `${text} Its engines are left alone.`);
  setText(byId("remove-url"), worker.url);
  setText(byId("remove-problem"), "");
  setText(byId("remove-confirm"), atOnce ? "Remove now" : "Drain and remove");
  byId("remove-confirm").disabled = false;
  byId("remove-dialog").showModal();
}

async function removeWorker() {
  const { worker, atOnce } = removal;
  const path = `/workers/${encodeURIComponent(worker.id)}`;
  byId("remove-confirm").disabled = true;
  try {
    if (atOnce && worker.ranks) {
      // A worker without time to drain is removed by the same DELETE immediately.
      const health = { ...worker.health, drain_settle_secs: 0 };
      await request(path, { method: "PATCH", body: JSON.stringify({ health }) });
    }
    await request(path, { method: "DELETE" });
    byId("remove-dialog").close();
  } catch (error) {
    setText(byId("remove-problem"), error.message);
    byId("remove-confirm").disabled = false;
  }
}

async function addWorker() {
  const body = { url: byId("add-url").value.trim(), dp_size: Number(byId("add-size").value) || 1 };
  const model = byId("add-model").value.trim();
  if (model) body.labels = { model_path: model };
  if (byId("add-runtime").value) body.runtime_type = byId("add-runtime").value;
  if (byId("add-handshake").value.trim()) body.zmq_handshake_address = byId("add-handshake").value.trim();
  setText(byId("add-problem"), "");
  try {
    await request("/workers", { method: "POST", body: JSON.stringify(body) });
    byId("add-dialog").close();
  } catch (error) {
    setText(byId("add-problem"), error.message);
  }
}

function setUpWorkers() {
  byId("add-worker-button").addEventListener("click", () => {
    byId("add-form").reset();
    setText(byId("add-problem"), "");
    byId("add-dialog").showModal();
  });
  byId("add-form").addEventListener("submit", (event) => {
    event.preventDefault();
    addWorker();
  });
  byId("remove-form").addEventListener("submit", (event) => {
    event.preventDefault();
    removeWorker();
  });
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
}
