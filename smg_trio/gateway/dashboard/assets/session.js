// The key, requests with it, and the feed. The key is kept in this tab's session storage and never put into a URL.
const KEY_NAME = "smg-trio-key";
const ROOT = location.pathname.replace(/\/dashboard\/?$/, "");
const RETRY_MS = [500, 1000, 2000, 5000];
const UNAUTHORIZED = 4401;
const session = { key: sessionStorage.getItem(KEY_NAME) ?? "", socket: null, attempts: 0, timer: 0 };

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (session.key) headers.authorization = `Bearer ${asHeader(session.key)}`;
  if (options.body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(ROOT + path, { ...options, headers, credentials: "omit", cache: "no-store" });
  if (response.ok) return response;
  if (response.status === 401) askForKey("This gateway wants an API key, and this one is not it.");
  throw new Refused(response.status, await refusal(response));
}

async function refusal(response) {
  const text = await response.text();
  try {
    const error = JSON.parse(text).error;
    return String(error?.message ?? error);
  } catch {
    return text.slice(0, 300) || `status ${response.status}`;
  }
}

// Headers carry bytes: those of the key in UTF-8, one character each.
const asHeader = (key) => String.fromCharCode(...new TextEncoder().encode(key));

function useKey(key) {
  session.key = key;
  sessionStorage.setItem(KEY_NAME, key);
  session.attempts = 0;
  connect();
}

const KEY_REASON = "Sent with everything this page asks for. Kept until this tab is closed, and nowhere else.";

function askForKey(reason) {
  const dialog = byId("key-dialog");
  setText(byId("key-reason"), reason ?? KEY_REASON);
  if (dialog.open) return;
  byId("key-input").value = "";
  byId("key-forget").hidden = !session.key;
  dialog.showModal();
}

function setUpKey() {
  byId("key-button").addEventListener("click", () => askForKey());
  byId("key-forget").addEventListener("click", () => {
    sessionStorage.removeItem(KEY_NAME);
    location.reload(); // what was shown with it goes too
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = byId("key-input").value.trim();
    if (!key) {
      setText(byId("key-reason"), "Type a key first.");
      return;
    }
    byId("key-input").value = "";
    byId("key-dialog").close();
    useKey(key);
  });
}

// The feed: connects again and again, less and less often.
const feed = { onSnapshot: () => {}, onState: () => {} };

function connect() {
  clearTimeout(session.timer);
  if (session.socket) {
    session.socket.onclose = null;
    session.socket.close();
  }
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(`${scheme}//${location.host}${ROOT}/dashboard/feed`);
  session.socket = socket;
  socket.onopen = () => socket.send(JSON.stringify({ type: "auth", key: session.key }));
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.type !== "snapshot") return;
    session.attempts = 0;
    feed.onSnapshot(message);
  };
  socket.onclose = (event) => {
    session.socket = null;
    if (event.code === UNAUTHORIZED) {
      feed.onState("locked");
      askForKey(session.key ? "That key is not accepted." : "This gateway wants an API key.");
      return;
    }
    feed.onState("lost");
    const wait = RETRY_MS[Math.min(session.attempts, RETRY_MS.length - 1)];
    session.attempts += 1;
    session.timer = setTimeout(connect, wait);
  };
}
