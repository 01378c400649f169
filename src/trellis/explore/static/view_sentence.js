// A sentence: its trellis while it is typed, surprisal beside a second model, gaps, and the next word.

import { latest } from "./api.js";
import { Waiting, debounce, fill, h, problem, table } from "./dom.js";
import { number, probability, word } from "./format.js";
import { examples } from "./examples.js";
import { TrellisPlot } from "./plot_trellis.js";
import { bestSentence, predictions } from "./predictions.js";
import { surprisalChart } from "./plot_surprisal.js";

const WAIT = 120; // ms after the last key
const TOP = 10;
const GAP = "___";

export function sentenceView(app, params) {
  return new Sentence(app, params).element;
}

class Sentence {
  constructor(app, params) {
    this.app = app;
    this.selected = null;
    this.ask = { trellis: latest(), next: latest(), word: latest() };
    const first = params.text ?? app.info.examples?.[0] ?? "";
    this.input = h("input", { type: "text", id: "sentence", value: first, autocomplete: "off", spellcheck: "false", maxlength: 2000, oninput: debounce(() => this.update(), WAIT) });
    this.hasGaps = app.info.views.includes("states"); // one chain of states
    this.hasStates = this.hasGaps || app.info.views.includes("layers");
    const place = (state) => (state.layer === undefined ? ["state", { id: state.id }] : ["layers", { layer: state.layer }]);
    this.plot = new TrellisPlot({
      onWord: (t) => this.select(t === this.selected ? null : t),
      onState: (state) => app.go(...place(state)),
      stateLink: (state) => app.link(...place(state)),
      announce: (text) => app.announce(text),
    });
    this.waiting = new Waiting();
    this.summary = h("p", { class: "summary" }, "Computing …");
    this.stage = h("div", { class: "stage scroll" });
    this.numbers = h("div");
    this.panel = h("section", { class: "panel", "aria-label": "The chosen word", hidden: true });
    this.next = h("section", { class: "panel", "aria-labelledby": "next-words" }, h("h2", { id: "next-words" }, "The next word"), h("p", { class: "note" }, "Computing …"));
    this.element = h(
      "div",
      { class: "sentence" },
      h("div", { class: "asking" }, h("label", { for: "sentence" }, "Sentence"), this.input),
      examples(app, (text) => this.set(text)),
      this.summary,
      this.stage,
      h("div", { class: "panels" }, this.panel, this.next),
      this.numbers,
    );
    this.update(true);
  }

  get text() {
    return this.input.value.trim();
  }

  set(text) {
    this.input.value = text;
    this.update();
  }

  update(first = false) {
    const { app, text } = this;
    if (!first) app.note({ text });
    if (!text) {
      fill(this.summary, `Type a sentence. ${GAP} is a gap.`);
      fill(this.stage);
      fill(this.numbers);
      this.showNext();
      return;
    }
    const asked = this.hasStates ? app.client.smooth(app.model, text, (data) => this.wait(data, text)) : app.client.score(app.model, text);
    const second = app.other === null ? Promise.resolve(null) : app.client.score(app.other, text).catch(() => null);
    this.ask.trellis(Promise.all([asked, second]), ([data, other]) => this.draw(data, other), (error) => this.fail(error));
    this.showNext();
  }

  /** Show how far the answer about a text is; returns whether it is still the text. */
  wait(data, text) {
    const wanted = this.element.isConnected && this.text === text;
    if (wanted) {
      this.waiting.tell(this.summary, data);
      this.stage.classList.add("stale");
    }
    return wanted;
  }

  fail(error) {
    fill(this.summary, problem(error));
    this.stage.classList.add("stale");
    this.panel.hidden = true;
  }

  draw(data, other) {
    this.data = data;
    this.stage.classList.remove("stale");
    const same = other && data.words.every((each, t) => each === other.words[t]);
    const second = same ? other.surprisal : null;
    const seen = data.words.length - (data.gaps ?? []).length + (data.words.at(-1) === "<eos>" ? 0 : 1); // the end counts
    const facts = [`log p = ${number(data.log_prob)}`, `${number(-data.log_prob / Math.LN2 / seen, 1)} bits per word`];
    if (other) facts.push(`${this.app.about.models[this.app.other].name}: log p = ${number(other.log_prob)}`);
    fill(this.summary, facts.join(" · "));
    if (this.hasStates) {
      this.plot.draw(data, second, this.selected);
      if (!this.plot.element.isConnected) fill(this.stage, this.plot.element);
      fill(this.numbers, numbersTable(data));
    } else fill(this.stage, surprisalChart(data, second, this.app));
    if (this.selected !== null && this.selected >= data.words.length) this.select(null);
    this.app.announce(facts[0]);
  }

  /** The next word after the sentence, and the words for its gaps. */
  showNext() {
    const { app, text } = this;
    const gaps = text.includes(GAP);
    const heading = h("h2", { id: "next-words" }, gaps ? "Words for the gap" : "The next word");
    const asked = gaps ? app.client.infill(app.model, text, TOP, true, (data) => this.waitNext(data, text)) : app.client.predict(app.model, text, TOP);
    this.ask.next(asked, (data) => fill(this.next, gaps ? this.gapLists(data) : this.nextList(data)), (error) =>
      fill(this.next, heading, h("p", { class: "note" }, error.message)));
  }

  waitNext(data, text) {
    const wanted = this.element.isConnected && this.text === text;
    if (wanted) fill(this.next, h("h2", { id: "next-words" }, "Words for the gap"), h("p", { class: "note" }, data.doing, "."));
    return wanted;
  }

  nextList(data) {
    const use = (token) => this.set(this.join([this.text, token].filter(Boolean)));
    return [h("h2", { id: "next-words" }, "The next word"), h("p", { class: "note" }, this.carryNote("What may follow the text, if it goes on.")), predictions(this.app, data.items, "add", this.app.client.live ? use : null, "Next words")];
  }

  gapLists(data) {
    const lists = data.gaps.map((gap, i) => [
      h("h3", null, `Gap ${i + 1}`),
      predictions(this.app, gap.items, "use", (token) => this.set(replaceGap(this.text, i, token)), `Words for gap ${i + 1}`),
    ]);
    const best = bestSentence(data.best);
    return [h("h2", { id: "next-words" }, data.gaps.length > 1 ? "Words for the gaps" : "Words for the gap"), h("p", { class: "note" }, this.carryNote("Given all the other words.")), best, lists];
  }

  carryNote(text) {
    return this.hasGaps ? `${text} Click a word to see the states that carry it.` : text;
  }

  join(tokens) {
    return tokens.join(this.app.info.separator ?? " ");
  }

  /** The sentence with other tokens in place of the one at t. */
  spliced(t, ...tokens) {
    const words = this.data.words.map((each, i) => ((this.data.gaps ?? []).includes(i) ? GAP : each));
    if (words.at(-1) === "<eos>") words.pop();
    words.splice(t, 1, ...tokens);
    return this.join(words);
  }

  select(t) {
    this.selected = t;
    this.panel.hidden = t === null;
    this.plot.words.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(i === t)));
    if (t === null) return;
    const isGap = (this.data.gaps ?? []).includes(t);
    const shown = isGap ? "gap" : `“${word(this.data.words[t])}”`;
    const change = (text) => {
      this.select(null);
      this.set(text);
      this.input.focus();
    };
    const other = h("input", { type: "text", "aria-label": "Another word", placeholder: "another word", size: 14, maxlength: 200 });
    const list = h("div", { "aria-live": "polite" });
    const waiting = new Waiting();
    fill(
      this.panel,
      h("h2", null, `Word ${t + 1}: ${shown}`),
      h("form", { class: "actions", onsubmit: (event) => (event.preventDefault(), other.value.trim() && change(this.spliced(t, other.value.trim()))) },
        isGap || !this.hasGaps ? null : h("button", { type: "button", onclick: () => change(this.spliced(t, GAP)) }, "Make it a gap"),
        h("button", { type: "button", onclick: () => change(this.spliced(t)) }, "Remove it"),
        h("span", { class: "pair" }, other, h("button", { type: "submit" }, "Replace")),
      ),
      this.hasGaps ? h("p", { class: "note" }, this.carryNote("Words that fit here, given all the others.")) : null,
      list,
    );
    if (!this.hasGaps) return;
    const gapped = this.spliced(t, GAP);
    const index = gapped.split(GAP).length - 2 - (this.data.gaps ?? []).filter((g) => g > t).length;
    this.ask.word(
      this.app.client.infill(this.app.model, gapped, TOP, true, (data) => {
        const wanted = this.element.isConnected && this.selected === t && list.isConnected;
        if (wanted) waiting.tell(list, data);
        return wanted;
      }),
      (data) => fill(list, predictions(this.app, data.gaps[index].items, "use", (token) => change(this.spliced(t, token)), "Words that fit here")),
      (error) => fill(list, h("p", { class: "note" }, error.message)),
    );
  }
}

function replaceGap(text, which, token) {
  let seen = -1;
  return text.replaceAll(GAP, (gap) => ((seen += 1) === which ? token : gap));
}

function numbersTable({ words, states, posterior, path, surprisal }) {
  const rows = words.map((token, t) => {
    const ranked = posterior[t].map((p, z) => [p, z]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([p]) => p >= 0.001);
    const best = typeof path[t] !== "number" ? "–" : `${states[path[t]].id} ${states[path[t]].label}`;
    return [word(token), number(surprisal[t]), best, ranked.map(([p, z]) => `${states[z].id} ${states[z].label} ${probability(p)}`).join("; ")];
  });
  return h("details", null, h("summary", null, "The numbers as a table"), table("Each word with its states", ["word", "surprisal, bits", "best path", "most probable states"], rows));
}
