// Theme, and what happens with each snapshot.
const THEMES = ["auto", "light", "dark"];

function showTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  setText(byId("theme-name"), theme);
}

function setUpTheme() {
  let theme = localStorage.getItem("smg-trio-theme");
  if (!THEMES.includes(theme)) theme = "auto";
  showTheme(theme);
  byId("theme-button").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem("smg-trio-theme", theme);
    showTheme(theme);
  });
}

feed.onSnapshot = (snapshot) => {
  showGateway(snapshot);
  showTiles(snapshot);
  showWorkers(snapshot);
  showRequests(snapshot);
  showErrors(snapshot);
  showModels(snapshot.gateway.models);
  document.body.dataset.sequence = snapshot.sequence;
  delete document.body.dataset.stale;
};
feed.onState = (state) => {
  document.body.dataset.stale = state;
  if (state === "locked") showStatus("warn", "Key needed");
  else showStatus("bad", "No connection; trying again");
};

setUpTheme();
setUpTiles();
setUpKey();
setUpWorkers();
setUpChat();
connect();
