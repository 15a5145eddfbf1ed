// Draws GET /v1/kvikk/fleet every two seconds. Text goes in as text: nothing that a replica says runs.

const NAMES = {
  achieved: "achieved",
  perfect_placement: "attainable: these caches, perfect placement",
  one_cache: "attainable: one cache of all memory",
  infinite: "attainable: a cache that forgets nothing",
  hit: "reused",
  elsewhere_load: "elsewhere, for load",
  elsewhere_failover: "elsewhere, by failover",
  elsewhere_ignorance: "elsewhere, and not known",
  evicted: "evicted",
  new: "new",
};
const element = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const count = (value) => value.toLocaleString("en");

function row(cells) {
  const line = document.createElement("tr");
  for (const cell of cells) {
    const box = document.createElement("td");
    if (cell instanceof Node) {
      box.append(cell);
      box.className = "share";
    } else {
      box.textContent = cell;
      if (/^[\d.,]+( %)?$/.test(cell)) box.className = "amount";
    }
    line.append(box);
  }
  return line;
}

function meter(share) {
  const bar = document.createElement("meter");
  bar.value = share;
  bar.textContent = percent(share);
  return bar;
}

function draw(fleet) {
  element("policy").textContent =
    `policy ${fleet.policy}, ${count(fleet.prompt_tokens)} prompt tokens, ` +
    `${count(fleet.index_blocks)} blocks in the index`;
  const rates = ["achieved", "perfect_placement", "one_cache", "infinite"];
  element("rates").replaceChildren(
    ...rates.map((name) => row([NAMES[name], percent(fleet.rates[name]), meter(fleet.rates[name])])),
  );
  const all = Math.max(1, fleet.prompt_tokens);
  element("causes").replaceChildren(
    ...Object.entries(fleet.by_cause).map(([cause, tokens]) =>
      row([NAMES[cause], count(tokens), percent(tokens / all), meter(tokens / all)]),
    ),
  );
  element("replicas").replaceChildren(
    ...fleet.replicas.map((one) => {
      const tokens = Object.values(one.by_cause).reduce((sum, value) => sum + value, 0);
      return row([
        one.eligible ? one.id : `${one.id} (not used)`,
        one.source,
        count(one.running_requests),
        count(one.waiting_tokens),
        count(one.held_blocks),
        count(one.answers),
        percent(one.by_cause.hit / Math.max(1, tokens)),
        count(one.predicted_tokens),
        percent(one.agreement),
        one.alarm,
      ]);
    }),
  );
}

async function look() {
  const key = sessionStorage.getItem("key");
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const problem = element("problem");
  try {
    const reply = await fetch("/v1/kvikk/fleet", { headers });
    element("key-form").hidden = ![401, 403].includes(reply.status);
    if (!reply.ok) throw new Error((await reply.json()).error?.message ?? reply.statusText);
    draw(await reply.json());
    element("fleet").hidden = false;
    problem.hidden = true;
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", element("key").value);
  look();
});
look();
setInterval(look, 2000);
