// The tiles: figures of the whole gateway, each with its last two minutes.
const percentiles = (of) => (of ? `p90 ${shortText(of.p90)} · p99 ${shortText(of.p99)}` : "none in the last minute");
const median = (of) => short(of ? of.p50 : null);

const TILES = [
  {
    name: "Answers in flight",
    value: (s) => [count(s.requests.total), ""],
    more: (s) => {
      const limit = s.admission.limit === null ? "no limit" : `limit ${count(s.admission.limit)}`;
      return `${count(s.admission.waiting)} queued · ${limit}`;
    },
    spark: (s) => s.requests.total,
  },
  {
    name: "Output",
    value: (s) => [rate(s.rates?.output_tokens_per_s), "tok/s"],
    more: (s) => `input ${rate(s.rates?.input_tokens_per_s)} tok/s`,
    spark: (s) => s.rates?.output_tokens_per_s,
  },
  {
    name: "Answers finished",
    value: (s) => [rate(s.rates?.answers_per_s), "/s"],
    more: (s) => `last minute: ${count(s.latency.answers)} good, ${count(s.latency.failed)} failed`,
    spark: (s) => s.rates?.answers_per_s,
  },
  {
    name: "Event loop lag",
    value: (s) => short(s.gateway.loop_lag_s),
    more: (s) => {
      const [size, unit] = bytes(s.gateway.memory_bytes);
      return `CPU ${s.gateway.cpu_share === null ? NONE : share(s.gateway.cpu_share)} · memory ${size} ${unit}`;
    },
    spark: (s) => s.gateway.loop_lag_s,
  },
  {
    name: "Time to first token, median",
    value: (s) => median(s.latency.ttft_s),
    more: (s) => percentiles(s.latency.ttft_s),
    spark: (s) => s.latency.ttft_s?.p50,
  },
  {
    name: "Between tokens, median",
    value: (s) => median(s.latency.inter_token_s),
    more: (s) => percentiles(s.latency.inter_token_s),
    spark: (s) => s.latency.inter_token_s?.p50,
  },
  {
    name: "Whole answer, median",
    value: (s) => median(s.latency.end_to_end_s),
    more: (s) => percentiles(s.latency.end_to_end_s),
    spark: (s) => s.latency.end_to_end_s?.p50,
  },
  {
    name: "KV cache, fullest engine",
    value: (s) => {
      const most = fullest(s);
      return most === null ? [NONE, ""] : [share(most), ""];
    },
    more: (s) => {
      const ranks = s.workers.flatMap((worker) => worker.ranks ?? []);
      const sum = (name) => count(ranks.reduce((total, rank) => total + rank[name], 0));
      return `${sum("num_running_reqs")} running · ${sum("num_waiting_reqs")} waiting`;
    },
    spark: fullest,
  },
];

function fullest(snapshot) {
  const ranks = snapshot.workers.flatMap((worker) => worker.ranks ?? []).filter((rank) => rank.status === "ready");
  return ranks.length ? Math.max(...ranks.map((rank) => rank.token_usage)) : null;
}

function setUpTiles() {
  for (const tile of TILES) {
    const box = make("div", "tile");
    tile.figure = make("div", "value");
    tile.unit = make("small");
    tile.number = document.createTextNode(NONE);
    tile.figure.append(tile.number, tile.unit);
    tile.note = make("div", "more");
    tile.line = new Spark();
    box.append(make("h3", "", tile.name), tile.figure, tile.note, tile.line.svg);
    byId("tiles").append(box);
  }
}

function showTiles(snapshot) {
  for (const tile of TILES) {
    const [figure, unit] = tile.value(snapshot);
    if (tile.number.data !== figure) tile.number.data = figure;
    setText(tile.unit, unit);
    setText(tile.note, tile.more(snapshot));
    tile.line.add(tile.spark(snapshot));
  }
}

function showStatus(tone, text) {
  const status = byId("status");
  status.dataset.tone = tone;
  setText(status, text);
}

// A model of the hub with the commit and how its files came here; a directory's name says both itself.
function modelText(gateway, name) {
  const files = gateway.model_files.find((one) => one.id === name);
  return files?.revision ? `${name} (${files.revision.slice(0, 8)}, ${files.source})` : name;
}

function showGateway(snapshot) {
  const gateway = snapshot.gateway;
  if (gateway.draining) showStatus("warn", "Draining");
  else if (!gateway.ready) showStatus("bad", "Not ready");
  else if (gateway.ready_workers < gateway.workers) showStatus("warn", `${gateway.ready_workers} of ${gateway.workers} ready`);
  else showStatus("ok", "Ready");
  const models = gateway.models.length > 3 ? `${gateway.models.length} models` : gateway.models.map((name) => modelText(gateway, name)).join(", ");
  const facts = [gateway.version, `up ${long(gateway.uptime_s)}`, gateway.policy, models || "no model"];
  if (gateway.reason) facts.push(gateway.reason);
  setText(byId("facts"), facts.join(" · "));
  byId("facts").title = gateway.model_files.map((files) => `${files.id}: ${files.source} ${files.directory}`).join("\n");
}
