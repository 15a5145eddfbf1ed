// The latest requests, conversation by conversation, each with its prompt as a bar of spans. A row
// is a button that opens the request's story below it.

import { get } from "./api.js";
import { meaning, spanBar, summary, swatch } from "./causes.js";
import { byId, count, element, percent, plural, say } from "./dom.js";

const SHOWN = 40;

export class Requests {
  constructor() {
    this.requests = new Map();
    this.rows = new Map();
    this.groups = new Map();
    this.planned = false;
    byId("requests").append(element("p", { class: "note" }, "None yet. Ask the model something."));
  }

  clear() {
    for (const known of [this.requests, this.rows, this.groups]) known.clear();
    byId("requests").replaceChildren();
  }

  update(requests) {
    for (const request of requests) this.requests.set(request.id, request);
    for (const id of [...this.requests.keys()].slice(0, -SHOWN)) {
      this.requests.delete(id);
      this.rows.get(id)?.node.remove();
      this.rows.delete(id);
    }
    if (requests.length === 0 || this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => {
      this.planned = false;
      this.draw();
    });
  }

  draw() {
    const conversations = new Map();
    for (const request of this.requests.values()) {
      const turns = conversations.get(request.conversation) ?? [];
      conversations.set(request.conversation, [...turns, request]);
    }
    const longest = Math.max(1, ...[...this.requests.values()].map((one) => one.prompt_tokens));
    const newestFirst = [...conversations].sort((a, b) => b[1].at(-1).at - a[1].at(-1).at);
    const nodes = newestFirst.map(([name, turns]) => this.group(name, turns, longest));
    for (const name of this.groups.keys()) {
      if (!conversations.has(name)) this.groups.delete(name);
    }
    arrange(byId("requests"), nodes);
  }

  group(name, turns, longest) {
    if (!this.groups.has(name)) {
      const title = element("h3");
      const list = element("ul");
      this.groups.set(name, { node: element("section", { class: "session" }, title, list), title, list });
    }
    const { node, title, list } = this.groups.get(name);
    const prompt = turns.reduce((sum, turn) => sum + turn.prompt_tokens, 0);
    const cached = turns.reduce((sum, turn) => sum + turn.cached_tokens, 0);
    say(title, `${plural(turns.length, "turn")} · ${percent(cached / prompt)} of ${plural(prompt, "prompt token")} reused`);
    arrange(list, turns.toReversed().map((turn) => this.row(turn, longest)));
    return node;
  }

  row(request, longest) {
    if (!this.rows.has(request.id)) this.rows.set(request.id, new Row(request.id));
    const row = this.rows.get(request.id);
    row.update(request, longest);
    return row.node;
  }

  // Opens a request's story and goes there.
  open(id) {
    const row = this.rows.get(id);
    if (row === undefined) return;
    if (!row.isOpen) row.toggle();
    row.button.focus();
    row.button.scrollIntoView({ block: "nearest" });
  }
}

class Row {
  constructor(id) {
    this.id = id;
    this.isOpen = false;
    this.drawn = "";
    this.name = element("span", { class: "request-id" }, id.slice(0, 17));
    this.bar = element("span", { class: "bar" });
    this.state = element("span", { class: "request-state" });
    this.story = element("div", { class: "story", id: `story-${id}`, hidden: true });
    this.button = element(
      "button",
      {
        type: "button",
        class: "request",
        "aria-expanded": "false",
        "aria-controls": this.story.id,
        click: () => this.toggle(),
      },
      this.name,
      this.bar,
      this.state,
    );
    this.node = element("li", {}, this.button, this.story);
  }

  update(request, longest) {
    const drawn = JSON.stringify([request, longest]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const computed = request.state === "ended" ? null : request.computed_tokens;
    this.bar.replaceChildren(spanBar(request.spans, { tokens: longest, computed }));
    const reused = `${count(request.cached_tokens)} of ${count(request.prompt_tokens)}`;
    const answer = request.generated_tokens ? ` +${count(request.generated_tokens)}` : "";
    this.state.replaceChildren(
      element("span", { class: `mark ${request.state}`, title: request.state }),
      `${reused}${answer}`,
    );
    this.button.setAttribute(
      "aria-label",
      `Request ${request.id}, ${request.state}: reused ${reused} prompt tokens; ${summary(request.spans)}`,
    );
  }

  async toggle() {
    this.isOpen = !this.isOpen;
    this.button.setAttribute("aria-expanded", String(this.isOpen));
    this.story.hidden = !this.isOpen;
    if (!this.isOpen) return;
    try {
      this.story.replaceChildren(...storyOf(await get(`/v1/kvikk/requests/${encodeURIComponent(this.id)}`)));
    } catch (problem) {
      this.story.replaceChildren(element("p", { class: "problem" }, problem.message));
    }
  }
}

// A request's ledger in words, and span by span.
export function storyOf(request) {
  const { headline, findings } = request.story;
  const told = findings.map((finding) =>
    element(
      "li",
      {},
      swatch(finding.cause),
      element(
        "div",
        {},
        element("p", {}, element("b", {}, finding.cause), ` ${finding.text}`),
        finding.mend ? element("p", { class: "mend" }, finding.mend) : null,
      ),
    ),
  );
  const rows = request.spans.map((span) =>
    element(
      "tr",
      {},
      element("td", {}, swatch(span.cause), ` ${span.cause}`),
      element("td", { class: "amount" }, `${count(span.start)} – ${count(span.stop - 1)}`),
      element("td", { class: "amount" }, count(span.stop - span.start)),
      element("td", { class: "meaning" }, meaning(span.cause)),
    ),
  );
  const head = ["cause", "tokens", "number", "meaning"].map((text) =>
    element("th", { scope: "col" }, text),
  );
  return [
    element("p", { class: "headline" }, headline),
    element("ul", { class: "findings" }, ...told),
    element(
      "details",
      {},
      element("summary", {}, "Span by span"),
      element(
        "div",
        { class: "scroll", tabindex: "0", role: "group", "aria-label": "Spans" },
        element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)),
      ),
    ),
    element("p", { class: "note" }, `Request ${request.id}`),
  ];
}

// Makes `nodes` the children of `parent`, and leaves alone those that are in place: what is focused
// or selected stays so.
function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, index) => {
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
  });
}
