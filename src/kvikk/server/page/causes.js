// The causes of the ledger: what each means, and how it is drawn. Colours are told apart by people
// who see few of them (after Okabe and Ito), and every cause but a plain hit has a pattern as well.

import { byId, count, element, percent, svg } from "./dom.js";

// name: [what it says, pattern]; in the order of the ledger's precedence.
export const CAUSES = {
  "hit.device": ["reused", "none"],
  "hit.host": ["reused from host memory", "rule"],
  "hit.disk": ["reused from disk", "grid"],
  "hit.remote": ["reused from a remote store", "dots"],
  tail: ["behind the last block a hit can reach", "none"],
  partial: ["the same, but ends inside a block", "up"],
  in_flight: ["another request was computing it", "dots"],
  elsewhere: ["on another replica", "grid"],
  evicted: ["was here and made room", "down"],
  expired: ["was here and was dropped", "rule"],
  changed: ["here under another model or type", "grid"],
  isolated: ["here under another tenant", "bars"],
  moved: ["seen before, behind another beginning", "up"],
  new: ["never seen before", "none"],
};

const STROKES = {
  up: "M-1 1 L1 -1 M0 6 L6 0 M5 7 L7 5",
  down: "M-1 5 L1 7 M0 0 L6 6 M5 -1 L7 1",
  rule: "M0 3 L6 3",
  bars: "M3 0 L3 6",
  grid: "M0 3 L6 3 M3 0 L3 6",
};

const name = (cause) => cause.replace(".", "-");

export const fillOf = (cause) =>
  `url(#cause-${name(cause in CAUSES ? cause : "new")})`;

export const meaning = (cause) => CAUSES[cause]?.[0] ?? cause;

export function definePatterns() {
  const definitions = Object.entries(CAUSES).map(([cause, [, pattern]]) =>
    svg(
      "pattern",
      { id: `cause-${name(cause)}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      svg("rect", { width: 6, height: 6, class: `cause ${name(cause)}` }),
      pattern in STROKES
        ? svg("path", { d: STROKES[pattern], class: "cause-line" })
        : pattern === "dots"
          ? svg("circle", { cx: 3, cy: 3, r: 1.2, class: "cause-dot" })
          : null,
    ),
  );
  byId("patterns").replaceChildren(svg("defs", {}, ...definitions));
}

export function swatch(cause) {
  return svg(
    "svg",
    { class: "swatch", width: 12, height: 12, "aria-hidden": "true" },
    svg("rect", { width: 12, height: 12, rx: 2, fill: fillOf(cause) }),
  );
}

// Tokens by cause, in words, most first in the ledger's own order.
export function summary(spans) {
  const totals = new Map();
  for (const { start, stop, cause } of spans) {
    totals.set(cause, (totals.get(cause) ?? 0) + stop - start);
  }
  return [...totals].map(([cause, tokens]) => `${cause} ${count(tokens)}`).join(", ");
}

// A prompt as a bar: its spans in their places. `tokens` is how long a full-width bar is;
// `computed` draws how far a running request has come.
export function spanBar(spans, { tokens, computed = null, label = summary(spans) }) {
  const length = spans.at(-1)?.stop ?? 0;
  const width = 1000;
  const x = (position) => (position / Math.max(tokens, length, 1)) * width;
  const bar = svg("svg", {
    class: "span-bar",
    viewBox: `0 0 ${width} 14`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  });
  for (const { start, stop, cause } of spans) {
    bar.append(
      svg(
        "rect",
        { x: x(start), width: Math.max(x(stop) - x(start) - 1.5, 1), height: 14, fill: fillOf(cause) },
        svg("title", {}, `${cause}: tokens ${count(start)} to ${count(stop - 1)}, ${meaning(cause)}`),
      ),
    );
  }
  if (computed !== null && computed < length) {
    bar.append(
      svg("rect", { x: x(computed), width: x(length) - x(computed), height: 14, class: "ahead" }),
    );
  }
  return bar;
}

export function causeList(byCause) {
  const total = Object.values(byCause).reduce((sum, tokens) => sum + tokens, 0);
  return Object.keys(CAUSES)
    .filter((cause) => byCause[cause])
    .map((cause) =>
      element(
        "li",
        {},
        swatch(cause),
        element("b", {}, cause),
        element("span", { class: "meaning" }, meaning(cause)),
        element("span", { class: "amount" }, `${count(byCause[cause])} · ${percent(byCause[cause] / total)}`),
      ),
    );
}
