// The ledger by cause over time, the three rates, and what memory would buy.

import { CAUSES, causeList, fillOf } from "./causes.js";
import { byId, count, element, percent, say, svg } from "./dom.js";

const MINUTES = 60;
const HEIGHT = 120;

export function drawRates(ledger) {
  const { achieved, attainable_by_operator: operator, attainable_by_author: author } = ledger.rates;
  const known = ledger.prompt_tokens > 0;
  const shown = (share) => (known ? percent(share) : "–");
  say(byId("achieved"), shown(achieved));
  say(byId("operator"), shown(operator));
  say(byId("author"), shown(author));
  const bar = byId("rate-bar");
  bar.setAttribute(
    "aria-label",
    known
      ? `${percent(achieved)} reused; attainable by the operator ${percent(operator)}, ` +
          `by the author ${percent(author)}`
      : "No requests yet",
  );
  const parts = ["author", "operator", "achieved"].map((name) => element("i", { class: name }));
  [author, operator, achieved].forEach((share, index) => {
    parts[index].style.width = `${100 * share}%`;
  });
  bar.replaceChildren(...parts);
}

export function drawHistory(ledger) {
  const lastMinute = Math.floor(Date.now() / 60000);
  const most = Math.max(1, ...ledger.history.map((minute) => minute.prompt_tokens));
  const step = 1000 / MINUTES;
  const chart = svg("svg", {
    viewBox: `0 0 1000 ${HEIGHT}`,
    preserveAspectRatio: "none",
    class: "history",
    role: "img",
    "aria-label":
      `Prompt tokens by cause for each minute of the last hour; at most ${count(most)} a minute. ` +
      "The list below has the totals.",
  });
  for (const minute of ledger.history) {
    const place = MINUTES - 1 - (lastMinute - Math.round(minute.at / 60));
    let y = HEIGHT;
    for (const cause of Object.keys(CAUSES)) {
      const tokens = minute.by_cause[cause] ?? 0;
      if (tokens === 0 || place < 0) continue;
      const height = (tokens / most) * HEIGHT;
      y -= height;
      chart.append(
        svg(
          "rect",
          { x: place * step + 1, y, width: step - 2, height, fill: fillOf(cause) },
          svg("title", {}, `${clock(minute.at)} ${cause}: ${count(tokens)} tokens`),
        ),
      );
    }
  }
  byId("chart").replaceChildren(
    element("span", { class: "axis most" }, ledger.history.length ? `${count(most)} tokens a minute` : ""),
    chart,
    element("div", { class: "axis" }, element("span", {}, "an hour ago"), element("span", {}, "now")),
  );
  const causes = causeList(ledger.by_cause);
  byId("causes").replaceChildren(
    ...(causes.length ? causes : [element("li", { class: "note" }, "No requests in the last hour.")]),
  );
}

export function drawMemory(ledger) {
  const rows = ledger.what_if.map((row) => {
    const share = row.prompt_tokens ? row.hit_tokens / row.prompt_tokens : 0;
    const bar = element("i");
    bar.style.width = `${100 * share}%`;
    const times = { 0.5: "half", 1: "as it is", 2: "twice", 4: "four times" }[row.share];
    return element(
      "li",
      { class: row.share === 1 ? "now" : null },
      element("span", {}, times ?? `${row.share} times`),
      element("span", { class: "track", "aria-hidden": "true" }, bar),
      element("b", {}, row.prompt_tokens ? percent(share) : "–"),
      element("span", { class: "amount" }, `${count(row.num_blocks)} blocks`),
    );
  });
  byId("memory").replaceChildren(
    rows.length
      ? element("ul", { class: "memory" }, ...rows)
      : element("p", { class: "note" }, "Of all tenants' requests, and so for the operator's key."),
  );
}

function clock(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false });
}
