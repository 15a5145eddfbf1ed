// A conversation with the model. Below each answer stands what its prompt reused, as a bar.

import { ask, events, get } from "./api.js";
import { spanBar } from "./causes.js";
import { byId, count, element, percent, say } from "./dom.js";

const HINT = "Enter sends, Shift+Enter breaks the line";
const SYSTEM = "You are a kind and knowledgeable assistant. You answer in a few clear sentences.";
const MAX_TOKENS = 256;
const TEMPERATURE = 0.6; // small models repeat themselves at 0

export class Chat {
  // `model` tells the served model's name; `onStory` opens a request's story.
  constructor(model, onStory) {
    this.model = model;
    this.onStory = onStory;
    this.messages = [];
    this.running = null;
    this.log = byId("chat-log");
    byId("system").value = SYSTEM;
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running === null) this.send();
      else this.running.abort();
    });
    byId("question").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (this.running === null) this.send();
      }
    });
    byId("chat-new").addEventListener("click", () => this.begin());
    this.begin();
  }

  begin() {
    this.running?.abort();
    this.messages = [];
    this.log.replaceChildren(
      element("p", { class: "note" }, "Ask twice, and watch the second turn reuse the first."),
    );
    byId("question").focus({ preventScroll: true });
  }

  async send() {
    const question = byId("question").value.trim();
    if (question === "") return;
    byId("question").value = "";
    if (this.messages.length === 0) {
      this.log.replaceChildren();
      const system = byId("system").value.trim();
      if (system !== "") this.messages.push({ role: "system", content: system });
    }
    const messages = this.messages;
    messages.push({ role: "user", content: question });
    const answer = element("p", { class: "answer busy" });
    const turn = element("div", { class: "turn" }, element("p", { class: "question" }, question), answer);
    this.log.append(turn);
    this.log.scrollTop = this.log.scrollHeight;
    this.running = new AbortController();
    say(byId("send"), "Stop");
    say(byId("chat-note"), "answering");
    let text = "";
    try {
      const response = await this.request(messages, this.running.signal);
      for await (const event of events(response)) {
        if (event.error) throw new Error(event.error.message);
        text += event.choices[0]?.delta?.content ?? "";
        const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
        answer.textContent = text;
        if (atEnd) this.log.scrollTop = this.log.scrollHeight;
        if (event.usage) await this.showReuse(turn, response.headers.get("x-request-id"), event.usage);
      }
      say(byId("chat-note"), HINT);
    } catch (problem) {
      const stopped = problem.name === "AbortError";
      say(byId("chat-note"), stopped ? "stopped" : HINT);
      if (!stopped) turn.append(element("p", { class: "problem", role: "alert" }, problem.message));
    }
    // What was said stays said, also where the answer was cut short.
    if (text === "") messages.pop();
    else messages.push({ role: "assistant", content: text });
    answer.classList.remove("busy");
    this.running = null;
    say(byId("send"), "Send");
    this.log.scrollTop = this.log.scrollHeight;
  }

  request(messages, signal) {
    return ask("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        model: this.model(),
        messages,
        max_tokens: MAX_TOKENS,
        temperature: TEMPERATURE,
        stream: true,
        stream_options: { include_usage: true },
      }),
      signal,
    });
  }

  async showReuse(turn, id, usage) {
    const prompt = usage.prompt_tokens;
    const cached = usage.prompt_tokens_details.cached_tokens;
    const words = `reused ${count(cached)} of ${count(prompt)} prompt tokens (${percent(cached / prompt)})`;
    const ledger = await get(`/v1/kvikk/requests/${encodeURIComponent(id)}`).catch(() => null);
    turn.append(
      element(
        "div",
        { class: "reuse" },
        ledger === null ? null : spanBar(ledger.spans, { tokens: prompt }),
        element(
          "p",
          {},
          element("span", {}, words),
          element("button", { type: "button", class: "quiet", click: () => this.onStory(id) }, "Why?"),
        ),
      ),
    );
  }
}
