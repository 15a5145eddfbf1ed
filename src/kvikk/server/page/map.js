// The blocks of each group as a map. A block is a cell; of a pool too large for that, a cell is
// several and shows its busiest. Shapes say the state as well as colours do.

import { byId, count, element, plural, say } from "./dom.js";

const STATES = {
  shared: "used by several requests",
  live: "used by one request",
  cached: "free, and still knows its tokens",
  empty: "free",
};
const NAMES = ["empty", "cached", "live", "shared"]; // as the states rise
const MOST_CELLS = 4096;
const FADE_MS = 700;

const calm = matchMedia("(prefers-reduced-motion: reduce)");

class PoolMap {
  constructor(group, index, several) {
    this.group = group;
    this.states = new Uint8Array(group.total_blocks);
    this.changed = new Float64Array(group.total_blocks);
    this.isNew = true;
    this.canvas = element("canvas", { role: "img" });
    const kind =
      group.window_tokens === null ? "all tokens" : `the last ${count(group.window_tokens)} tokens`;
    this.name = several ? `Group ${index + 1}, which keeps ${kind}` : "The pool";
    this.node = element(
      "figure",
      {},
      this.canvas,
      several ? element("figcaption", { class: "note" }, this.name) : null,
    );
    this.counts = { empty: 0, cached: 0, live: 0, shared: 0 };
  }

  update(runs) {
    const now = this.isNew ? 0 : performance.now(); // at first everything is new, and nothing moves
    this.isNew = false;
    for (const [start, stop, name] of runs) {
      const state = NAMES.indexOf(name);
      for (let block = start; block < stop; block += 1) {
        if (this.states[block] !== state) this.changed[block] = now;
        this.states[block] = state;
      }
    }
    const totals = [0, 0, 0, 0];
    for (const state of this.states) totals[state] += 1;
    NAMES.forEach((name, state) => { this.counts[name] = totals[state]; });
  }

  layout() {
    const width = this.node.clientWidth;
    this.perCell = Math.ceil(this.states.length / MOST_CELLS);
    const cells = Math.ceil(this.states.length / this.perCell);
    const wanted = Math.sqrt((width * 170) / cells);
    this.size = Math.max(4, Math.min(28, Math.floor(wanted)));
    this.across = Math.max(1, Math.floor(width / this.size));
    const height = Math.ceil(cells / this.across) * this.size;
    const scale = devicePixelRatio;
    if (this.canvas.width !== width * scale || this.canvas.height !== height * scale) {
      this.canvas.width = width * scale;
      this.canvas.height = height * scale;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
  }

  // Draws the map as it is; true while something still fades.
  draw(colours) {
    this.layout();
    const { size, across, perCell } = this;
    const context = this.canvas.getContext("2d");
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const now = performance.now();
    const gap = size > 18 ? 3 : size > 6 ? 2 : 1;
    let fading = false;
    for (let first = 0, cell = 0; first < this.states.length; first += perCell, cell += 1) {
      let state = 0;
      let changed = 0;
      for (let block = first; block < Math.min(first + perCell, this.states.length); block += 1) {
        state = Math.max(state, this.states[block]);
        changed = Math.max(changed, this.changed[block]);
      }
      const x = (cell % across) * size;
      const y = Math.floor(cell / across) * size;
      paint(context, NAMES[state], colours, x, y, size - gap);
      const age = (now - changed) / FADE_MS;
      if (changed > 0 && age < 1 && !calm.matches) {
        fading = true;
        context.globalAlpha = 0.75 * (1 - age);
        context.fillStyle = colours.flash;
        context.fillRect(x, y, size - gap, size - gap);
        context.globalAlpha = 1;
      }
    }
    const said = NAMES.toReversed().map((name) => `${count(this.counts[name])} ${name}`).join(", ");
    const label = `${this.name}: ${plural(this.states.length, "block")}: ${said}`;
    if (this.canvas.getAttribute("aria-label") !== label) {
      this.canvas.setAttribute("aria-label", label);
    }
    return fading;
  }
}

// shared: full, with a hole; live: full; cached: smaller; empty: a dot.
function paint(context, state, colours, x, y, size) {
  const inset = state === "empty" ? size * 0.36 : state === "cached" ? size * 0.16 : 0;
  context.fillStyle = colours[state];
  context.fillRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
  if (state === "shared") {
    context.fillStyle = colours.hole;
    context.fillRect(x + size * 0.34, y + size * 0.34, size * 0.32, size * 0.32);
  }
}

export class Maps {
  constructor() {
    this.maps = [];
    this.drawing = false;
    this.swatches = {};
    this.amounts = {};
    for (const [state, text] of Object.entries(STATES)) {
      this.swatches[state] = element("canvas", { width: 28, height: 28, "aria-hidden": "true" });
      this.amounts[state] = element("b", { id: `count-${state}` }, "–");
      byId("legend").append(
        element(
          "li",
          {},
          this.swatches[state],
          element("span", {}, this.amounts[state], ` ${state}`),
          element("span", { class: "meaning" }, text),
        ),
      );
    }
    new ResizeObserver(() => this.draw()).observe(byId("maps"));
    this.restyle();
  }

  // Takes the colours of the theme that is on now.
  restyle() {
    const style = getComputedStyle(document.documentElement);
    this.colours = {};
    for (const name of [...NAMES, "hole", "flash"]) {
      // Colours are written for both themes; a canvas wants the one that holds.
      const probe = element("i");
      probe.style.color = style.getPropertyValue(`--block-${name}`);
      document.body.append(probe);
      this.colours[name] = getComputedStyle(probe).color;
      probe.remove();
    }
    for (const [state, canvas] of Object.entries(this.swatches)) {
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, 28, 28);
      paint(context, state, this.colours, 2, 2, 24);
    }
    this.draw();
  }

  // Group by group; all of it is new where the number of blocks is another.
  update(groups, blockSize) {
    const same =
      groups.length === this.maps.length &&
      groups.every((group, index) => group.total_blocks === this.maps[index].states.length);
    if (!same) {
      this.maps = groups.map((group, index) => new PoolMap(group, index, groups.length > 1));
      byId("maps").replaceChildren(...this.maps.map((map) => map.node));
    }
    groups.forEach((group, index) => this.maps[index].update(group.runs));
    for (const state of NAMES) {
      say(this.amounts[state], count(this.maps.reduce((sum, map) => sum + map.counts[state], 0)));
    }
    const blocks = groups.reduce((sum, group) => sum + group.total_blocks, 0);
    const coarse = Math.max(...this.maps.map((map) => Math.ceil(map.states.length / MOST_CELLS)));
    say(
      byId("blocks-note"),
      `${count(blocks)} of ${blockSize} tokens each` +
        (coarse > 1 ? `; a cell is ${coarse} blocks and shows the busiest` : ""),
    );
    if (groups.some((group) => group.runs.length > 0)) this.draw();
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      const fading = this.maps.map((map) => map.draw(this.colours));
      if (fading.includes(true)) this.draw();
    });
  }
}
