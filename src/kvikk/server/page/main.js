// The page: asks who serves, follows the live feed, and hands what comes to those who draw it.

import { ApiProblem, ask, events, get, useKey } from "./api.js";
import { definePatterns } from "./causes.js";
import { drawHistory, drawMemory, drawRates } from "./charts.js";
import { Chat } from "./chat.js";
import { byId, count, say } from "./dom.js";
import { Maps } from "./map.js";
import { Requests } from "./requests.js";

const LEDGER_MS = 2000;
const RETRY_MS = 2000;
const SPEED_S = 2;

let model = "";
let ledgerIsOld = true;
let pace = []; // of the engine's totals, over the last seconds

startTheme();
definePatterns();
const maps = new Maps();
const requests = new Requests();
new Chat(() => model, (id) => requests.open(id));
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key-form").hidden = true;
  follow();
});
setInterval(() => { ledgerIsOld = true; }, 30_000); // minutes pass, also without requests
setInterval(drawLedger, LEDGER_MS);
follow();

// Follows the server for as long as there is one; stops where it asks for a key.
async function follow() {
  for (;;) {
    try {
      const served = await get("/v1/models");
      model = served.data[0].id;
      say(byId("model"), model);
      document.title = `kvikk · ${model}`;
      const response = await ask("/v1/kvikk/live");
      status("live", "live");
      requests.clear();
      pace = [];
      ledgerIsOld = true;
      drawLedger();
      for await (const event of events(response)) hear(event);
    } catch (problem) {
      if (problem instanceof ApiProblem && problem.status === 401) {
        askForKey(problem);
        return;
      }
    }
    status("gone", "no connection; trying again");
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function hear(event) {
  requests.update(event.requests);
  if (event.requests.length > 0) ledgerIsOld = true;
  byId("no-map").hidden = event.engine !== undefined;
  byId("legend").hidden = event.engine === undefined;
  if (event.engine === undefined) return;
  maps.update(event.groups, event.engine.block_size);
  say(byId("running"), count(event.engine.running_requests));
  say(byId("waiting"), count(event.engine.waiting_requests));
  say(byId("preemptions"), count(event.engine.preemptions));
  pace.push([event.at, event.engine.generated_tokens, event.engine.computed_tokens]);
  drawSpeed(event.at);
}

function drawSpeed(now) {
  while (pace.length > 1 && pace[1][0] <= now - SPEED_S) pace.shift();
  const [then, generated, computed] = pace[0];
  const [, lastGenerated, lastComputed] = pace.at(-1);
  const seconds = Math.max(now - then, 0.5);
  say(byId("speed"), count(Math.round((lastGenerated - generated) / seconds)));
  const rate = count(Math.round((lastComputed - computed) / seconds));
  say(byId("speed-note"), `generated; ${rate} computed`);
}

async function drawLedger() {
  if (!ledgerIsOld || document.hidden || !byId("key-form").hidden) return;
  ledgerIsOld = false;
  try {
    const ledger = await get("/v1/kvikk/ledger?window=3600");
    drawRates(ledger);
    drawHistory(ledger);
    drawMemory(ledger);
  } catch {
    ledgerIsOld = true; // the feed says what is wrong
  }
}

function askForKey(problem) {
  status("gone", "needs a key");
  say(byId("key-problem"), sessionStorage.length > 0 ? problem.message : "");
  byId("key-form").hidden = false;
  byId("key").value = "";
  byId("key").focus();
}

function status(state, text) {
  byId("status").dataset.state = state;
  say(byId("status"), text);
}

// Follows the system, or what was chosen here before.
function startTheme() {
  const order = ["system", "light", "dark"];
  const set = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    say(byId("theme"), `Theme: ${theme}`);
  };
  let theme = localStorage.getItem("kvikk theme") ?? "system";
  set(theme);
  byId("theme").addEventListener("click", () => {
    theme = order[(order.indexOf(theme) + 1) % order.length];
    localStorage.setItem("kvikk theme", theme);
    set(theme);
    maps.restyle();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => maps.restyle());
}
