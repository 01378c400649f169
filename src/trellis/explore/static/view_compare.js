// Two models: a sentence under both, where they differ most, and their results side by side.

import { latest } from "./api.js";
import { debounce, fill, h, problem, table } from "./dom.js";
import { number, word } from "./format.js";
import { examples } from "./examples.js";
import { surprisalChart } from "./plot_surprisal.js";

export function compareView(app, params) {
  const [first, second] = app.about.models;
  const sentence = h("div", { class: "scroll" });
  const most = h("div", { "aria-live": "polite" });
  const ask = { text: latest(), most: latest() };
  const input = h("input", { type: "text", id: "compared", value: params.text ?? first.examples?.[0] ?? "", maxlength: 2000, autocomplete: "off", spellcheck: "false", oninput: debounce(() => update(), 150) });
  const shown = { ...app, model: 0, other: 1, about: app.about };
  const update = (begin = false) => {
    const text = input.value.trim();
    if (!begin) app.note({ text });
    if (!text) return fill(sentence);
    ask.text(app.client.compare(text), (data) => fill(sentence, surprisalChart({ words: data.words, surprisal: data.surprisal[0] }, data.surprisal[1], shown), sums(data, app)), (error) => fill(sentence, problem(error)));
    return undefined;
  };
  update(true);
  fill(most, app.about.corpus ? h("p", { class: "loading" }, "Reading validation text …") : differences({}));
  if (app.about.corpus) ask.most(app.client.compare(), (data) => fill(most, differences(data, first, second)), (error) => fill(most, h("p", { class: "note" }, error.message)));
  return h("div", { class: "compare" },
    h("div", { class: "asking" }, h("label", { for: "compared" }, "Sentence"), input),
    examples(app, (text) => {
      input.value = text;
      update();
    }),
    sentence,
    h("section", { "aria-labelledby": "most" }, h("h2", { id: "most" }, "Where they differ most"), most),
    h("section", { "aria-labelledby": "facts" }, h("h2", { id: "facts" }, "Side by side"), facts(first, second)));
}

function sums({ surprisal }, app) {
  const total = (bits) => bits.reduce((sum, each) => sum + each, 0);
  return h("p", { class: "summary" }, surprisal.map((bits, i) => `${app.about.models[i].name}: ${number(total(bits), 1)} bits`).join(" · "));
}

function differences(data, first, second) {
  if (!data.differences?.length) return h("p", { class: "note" }, "There is no validation text at hand.");
  const row = ({ before, word: token, bits }) => [h("span", { class: "kwic" }, before.join(" "), " ", h("b", null, word(token))), number(bits[0], 1), number(bits[1], 1), `${bits[0] > bits[1] ? "−" : "+"}${number(Math.abs(bits[1] - bits[0]), 1)}`];
  return [h("p", { class: "note" }, "Words of validation text, with their surprisal in bits. Less is better."), table("Where the models differ most", ["word in context", first.name, second.name, "difference"], data.differences.map(row), "differences")];
}

function facts(first, second) {
  const names = [...new Set([...first.facts, ...second.facts].map(([name]) => name))];
  const value = (model, name) => model.facts.find(([each]) => each === name)?.[1] ?? "–";
  return table("The two models", ["", `A: ${first.name}`, `B: ${second.name}`], names.map((name) => [name, value(first, name), value(second, name)]));
}
