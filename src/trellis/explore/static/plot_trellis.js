// The trellis of a sentence: words across, states down; circles, curves, rings, and surprisal below.

import { fill, h, s } from "./dom.js";
import { number, probability, word } from "./format.js";

const ROW = 32; // pixels per state
const RADIUS = 13; // of probability 1
const FAINTEST = 0.005; // smaller probabilities are not drawn
const TALL = 64; // pixels of the surprisal bars

/** Draws into one element again and again, so that circles move instead of jumping. */
export class TrellisPlot {
  #circles = new Map();

  constructor({ onWord, onState, stateLink, announce }) {
    Object.assign(this, { onWord, onState, stateLink, announce });
    this.words = h("div", { class: "words", role: "group", "aria-label": "Words: choose one to change it" });
    this.names = h("ol", { class: "names" });
    this.edges = s("g", { class: "edges" });
    this.cells = s("g", { class: "cells" });
    this.rings = s("g", { class: "rings" });
    this.lines = s("g", { class: "lines" });
    this.svg = s("svg", { role: "img" }, this.lines, this.edges, this.rings, this.cells);
    this.tip = h("div", { class: "tip", hidden: true });
    this.plot = h("div", {
      class: "plot", tabindex: "0", role: "group",
      "aria-label": "Posterior probabilities: arrow keys move between words and states, Enter opens the state",
      onpointermove: (event) => this.#point(event), onpointerdown: (event) => this.#point(event), onpointerleave: () => this.#hide(),
      onkeydown: (event) => this.#key(event), onblur: () => this.#hide(),
    }, this.svg, this.tip);
    this.surprisal = h("div", { class: "surprisal" });
    this.legend = h("p", { class: "legend" });
    this.element = h("div", { class: "trellis" }, h("div", { class: "corner" }), this.words, this.names, this.plot, this.legend, this.surprisal);
  }

  /** data: the answer of /api/smooth; second: surprisals of another model, or null; selected: index of a word. */
  draw(data, second, selected) {
    this.data = data;
    this.column = Math.min(Math.max(...data.words.map((token) => 8.4 * word(token, 14).length + 22), 60), 132);
    const [width, height] = [this.column * data.words.length, ROW * data.states.length];
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", height);
    this.svg.setAttribute("aria-label", `The trellis of ${data.words.length} words over ${data.states.length} states. The numbers are in the table below.`);
    this.element.style.setProperty("--column", `${this.column}px`);
    this.#drawWords(data, selected);
    fill(this.names, data.states.map((state) => h("li", null, h("a", { href: this.stateLink(state), title: `State ${state.id}: ${state.label}` }, h("span", null, state.label), h("small", null, state.layer === undefined ? state.id : `${state.layer + 1}.${state.id}`)))));
    fill(this.lines, data.states.map((_, z) => s("line", { x1: 0, x2: width, y1: this.#y(z), y2: this.#y(z) })));
    this.#drawEdges(data);
    this.#drawCells(data);
    this.#drawSurprisal(data, second);
    this.#hide();
  }

  #x(t) {
    return this.column * (t + 0.5);
  }

  #y(z) {
    return ROW * (z + 0.5);
  }

  #drawWords({ words, known, gaps }, selected) {
    const buttons = words.map((token, t) => {
      const gap = (gaps ?? []).includes(t);
      const look = `${gap ? "gap" : ""} ${known && known[t] === false && !gap ? "unknown" : ""}`;
      const title = gap ? "a gap" : known && known[t] === false ? `${token} is not in the vocabulary` : token;
      const end = token === "<eos>" && t === words.length - 1;
      return end
        ? h("span", { class: "end", title: "the end of the sentence" }, "<eos>")
        : h("button", { type: "button", class: look, title, "aria-pressed": String(t === selected), onclick: () => this.onWord(t) }, gap ? "___" : word(token, 14));
    });
    fill(this.words, buttons);
  }

  #drawEdges({ edges }) {
    const drawn = edges.flatMap((step, t) =>
      step.filter(([, , p]) => p >= FAINTEST).map(([i, j, p]) => {
        const middle = this.#x(t) + this.column / 2;
        const d = `M${this.#x(t)} ${this.#y(i)}C${middle} ${this.#y(i)} ${middle} ${this.#y(j)} ${this.#x(t + 1)} ${this.#y(j)}`;
        return s("path", { d, "data-edge": `${t} ${i} ${j} ${p}`, "stroke-width": 0.5 + 7 * p, opacity: (0.65 * Math.sqrt(p)).toFixed(3) });
      }),
    );
    fill(this.edges, drawn);
  }

  #drawCells({ posterior, states, path, paths }) {
    const seen = new Set();
    posterior.forEach((row, t) => row.forEach((p, z) => {
      if (p < FAINTEST) return;
      const key = `${t} ${states[z].layer ?? ""} ${states[z].id}`;
      seen.add(key);
      if (!this.#circles.has(key)) this.#circles.set(key, this.cells.appendChild(s("circle", { cx: this.#x(t), cy: this.#y(z), r: 0 })));
      const circle = this.#circles.get(key);
      for (const [name, value] of [["cx", this.#x(t)], ["cy", this.#y(z)], ["r", RADIUS * Math.sqrt(p)]]) circle.style.setProperty(name, `${value}px`);
    }));
    for (const [key, circle] of this.#circles) {
      if (seen.has(key)) continue;
      circle.remove();
      this.#circles.delete(key);
    }
    const ring = (z, t) => (typeof z === "number" ? s("circle", { cx: this.#x(t), cy: this.#y(z), r: RADIUS + 2.5 }) : null);
    fill(this.rings, (paths ?? [path]).map((each) => each.map(ring)));
  }

  #drawSurprisal({ words, surprisal, gaps }, second) {
    const highest = Math.max(...surprisal, ...(second ?? []).filter(Number.isFinite), 1);
    const tall = (bits) => (TALL * Math.min(bits, highest)) / highest;
    const one = (bits, side) => h("i", { class: side, style: { height: `${tall(bits).toFixed(1)}px` } });
    const columns = words.map((token, t) => {
      const gap = (gaps ?? []).includes(t);
      const label = gap ? `${word(token, 14)}: a gap` : `${word(token)}: ${number(surprisal[t], 1)} bits${second ? `, other model ${number(second[t], 1)} bits` : ""}`;
      return h("div", { title: label }, h("span", { class: "bars", "aria-hidden": "true" }, gap ? null : one(surprisal[t], "one"), second && !gap ? one(second[t], "two") : null),
        h("small", null, gap ? "–" : number(surprisal[t], 1), second && !gap ? h("em", null, ` ${number(second[t], 1)}`) : null));
    });
    fill(this.surprisal, columns);
    fill(this.legend, "surprisal, bits", second ? h("small", null, h("b", { class: "one" }, "this model"), " ", h("b", { class: "two" }, "the other")) : null);
  }

  /** The numbers under the pointer: of a transition if it is on a curve, otherwise of the nearest cell. */
  #point(event) {
    const edge = event.target.getAttribute?.("data-edge");
    const box = this.svg.getBoundingClientRect();
    if (edge) {
      const [t, i, j, p] = edge.split(" ").map(Number);
      this.#light(t, i, j);
      this.#say(`${this.#state(i)} at “${word(this.data.words[t])}”, then ${this.#state(j)}: ${probability(p)}`, event.clientX - box.left, event.clientY - box.top);
      return;
    }
    const t = Math.floor((event.clientX - box.left) / this.column);
    const z = Math.floor((event.clientY - box.top) / ROW);
    if (t < 0 || z < 0 || t >= this.data.words.length || z >= this.data.states.length) this.#hide();
    else this.#show(t, z);
  }

  #key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const [t, z] = this.cursor ?? [0, 0];
    if (event.key === "Enter" && this.cursor) this.onState(this.data.states[z]);
    if (event.key === "Escape") this.#hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [right, down] = this.cursor ? moves[event.key] : [0, 0];
    const within = (value, size) => Math.min(Math.max(value, 0), size - 1);
    this.cursor = [within(t + right, this.data.words.length), within(z + down, this.data.states.length)];
    this.#show(...this.cursor);
    this.announce(this.tip.textContent);
  }

  #state(z) {
    return `state ${this.data.states[z].id} (${this.data.states[z].label})`;
  }

  #show(t, z) {
    const { posterior, path, words } = this.data;
    this.#light(t, z);
    const best = path[t] === z ? ", on the best path" : "";
    this.#say(`“${word(words[t])}”, ${this.#state(z)}: ${probability(posterior[t][z])}${best}`, this.#x(t), this.#y(z));
  }

  #say(text, x, y) {
    fill(this.tip, text);
    this.tip.hidden = false;
    const widest = this.plot.clientWidth;
    this.tip.style.setProperty("left", `${Math.max(0, Math.min(x - 20, widest - this.tip.offsetWidth))}px`);
    this.tip.style.setProperty("top", `${y + RADIUS + 8}px`);
  }

  /** Emphasise the transitions of a cell, or one transition. */
  #light(t, z, next = null) {
    for (const path of this.edges.children) {
      const [at, i, j] = path.getAttribute("data-edge").split(" ").map(Number);
      const lit = next === null ? (at === t && i === z) || (at + 1 === t && j === z) : at === t && i === z && j === next;
      path.classList.toggle("lit", lit);
    }
  }

  #hide() {
    this.tip.hidden = true;
    this.cursor = null;
    for (const path of this.edges.children) path.classList.remove("lit");
  }
}
