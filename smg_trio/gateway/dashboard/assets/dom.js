// Elements and figures. Everything that comes from the server is put in as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function cell(label, className) {
  const element = make("td", className);
  element.setAttribute("role", "cell");
  element.dataset.label = label;
  return element;
}

function pill(tone, text) {
  const element = make("span", "pill", text);
  element.dataset.tone = tone;
  return element;
}

// One row per item, in the items' order. Rows stay the same elements, so that focus and selection survive an update.
function syncRows(body, items, keyOf, create, update) {
  const rows = body.rowsByKey ?? (body.rowsByKey = new Map());
  const wanted = new Set();
  let place = body.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    wanted.add(key);
    let row = rows.get(key);
    if (!row) {
      row = create(item);
      row.setAttribute("role", "row");
      rows.set(key, row);
    }
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
    update(row, item);
  }
  for (const [key, row] of rows) {
    if (!wanted.has(key)) {
      row.remove();
      rows.delete(key);
    }
  }
}

function showEmpty(id, empty) {
  const note = byId(id);
  note.hidden = !empty;
  note.previousElementSibling.hidden = empty;
}

const NONE = "–";
const count = (value) => Math.round(value).toLocaleString("en");
const share = (value) => `${(value * 100).toFixed(value < 0.0995 ? 1 : 0)}%`;

function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value > 0 && value < 9.95 ? value.toFixed(1) : count(value);
}

// Seconds as [figure, unit], with three digits or so.
function short(seconds) {
  if (seconds === null || seconds === undefined) return [NONE, ""];
  if (seconds < 1) {
    const ms = seconds * 1000;
    return [ms < 9.95 ? ms.toFixed(ms < 0.995 ? 2 : 1) : ms.toFixed(0), "ms"];
  }
  return seconds < 99.5 ? [seconds.toFixed(seconds < 9.95 ? 2 : 1), "s"] : [count(seconds), "s"];
}
const shortText = (seconds) => short(seconds).join(" ").trim();

function long(seconds) {
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function bytes(value) {
  if (!value) return [NONE, ""];
  return value < 1e9 ? [(value / 1e6).toFixed(0), "MB"] : [(value / 1e9).toFixed(2), "GB"];
}

// The last one and a half minutes of one figure as a line; null leaves a gap.
class Spark {
  constructor(points = 90) {
    this.points = points;
    this.values = [];
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("class", "spark");
    this.svg.setAttribute("viewBox", "0 0 120 30");
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("aria-hidden", "true");
    this.area = document.createElementNS(SVG, "path");
    this.area.setAttribute("class", "area");
    this.line = document.createElementNS(SVG, "path");
    this.svg.append(this.area, this.line);
  }

  add(value) {
    this.values.push(value ?? null);
    if (this.values.length > this.points) this.values.shift();
    const most = Math.max(...this.values.map((one) => one ?? 0)) || 1;
    const step = 120 / (this.points - 1);
    const start = this.points - this.values.length;
    let line = "", area = "", begun = null, x = 0;
    this.values.forEach((one, index) => {
      x = (start + index) * step;
      if (one === null) {
        if (begun !== null) area += `L${(x - step).toFixed(1)} 30Z`;
        begun = null;
        return;
      }
      const at = `${x.toFixed(1)} ${(29 - (one / most) * 27).toFixed(1)}`;
      area += begun === null ? `M${x.toFixed(1)} 30L${at}` : `L${at}`;
      line += `${begun === null ? "M" : "L"}${at}`;
      begun = x;
    });
    if (begun !== null) area += `L${x.toFixed(1)} 30Z`;
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
  }
}

// A bar for a share from 0 to 1.
class Meter {
  constructor(name) {
    this.element = make("div", "meter");
    this.element.setAttribute("role", "meter");
    this.element.setAttribute("aria-label", name);
    this.element.setAttribute("aria-valuemin", "0");
    this.element.setAttribute("aria-valuemax", "100");
    const track = make("span", "track");
    this.fill = make("div", "fill");
    this.figure = make("span", "figure");
    track.append(this.fill);
    this.element.append(track, this.figure);
  }

  show(value) {
    const part = Math.min(Math.max(value, 0), 1);
    this.element.setAttribute("aria-valuenow", (part * 100).toFixed(1));
    this.element.dataset.tone = part >= 0.95 ? "bad" : part >= 0.8 ? "warn" : "";
    this.fill.style.width = `${part * 100}%`;
    setText(this.figure, share(part));
  }
}
